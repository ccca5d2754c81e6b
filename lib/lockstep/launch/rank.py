"""What runs inside of a rank: it sets itself up, does the jobs it is sent, reports, and leaves.

A rank is told everything over its channel: first who it is and where its output goes, then one
job after another. It answers each with `done` or `failed`. A rank that has finished stays until
the notebook ends it: its peers never see a closed connection where the truth is that somebody
left early.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import io
import multiprocessing.process
import os
import resource
import runpy
import signal
import socket
import sys
import time
import traceback
import types
from typing import Any

from . import children, payload, record
from .cell import Cell
from .channel import Channel, map_file
from .errors import CannotSend
from .modules import Modules
from .profiling import profiled
from .shown import shown

STACK_SIGNAL = signal.SIGQUIT  # "show your stack", as for a Java virtual machine
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def main(channel: Channel, directory: str) -> None:
    """Serve one channel as long as the notebook is there. Never returns.

    directory: goes with the job; for what multiprocessing puts into files, which a rank that is
    killed cannot clean up.
    """
    multiprocessing.process.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]
    with contextlib.suppress(EOFError, ConnectionError):  # the notebook is gone, so it is over
        message, descriptors = channel.receive()
        try:
            rank = _Rank(message, descriptors)
        except Exception as error:  # such as a working directory that is no more
            channel.send(_failed(error))
            channel.receive()
            os._exit(1)
        while True:
            message, descriptors = channel.receive()
            reply, attached = rank.run(message, descriptors)
            channel.send(reply, attached)
            for descriptor in attached:
                os.close(descriptor)
            if reply["did"] == "failed" and rank.exits_on_failure:
                os._exit(1)
    os._exit(0)


def _failed(error: BaseException) -> dict[str, Any]:
    return {"did": "failed", "at": time.perf_counter(), **describe(error)}


class _Rank:
    def __init__(self, message: dict[str, Any], descriptors: list[int]):
        named = dict(zip(message["descriptors"], descriptors, strict=True))
        self.rank: int = message["rank"]
        self.exits_on_failure: bool = message["exits_on_failure"]
        self._redirect(named["output"], named.get("stdout"), named.get("stderr"))
        os.environ.clear()
        os.environ.update(message["environment"])
        os.chdir(message["directory"])
        sys.path[:] = message["path"]
        self._stacks = open(named["stacks"], "wb", buffering=0)  # noqa: SIM115 - open as long as the rank
        faulthandler.enable(self._stacks, all_threads=False)
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=False)

        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._recorder = record.start(map_file(named["record"], shared=True), self.rank)
        self._meeting: int | None = named.get("file")
        self._listener: int | None = named.get("listener")
        self._store: Any = None
        self._module = types.ModuleType("__main__")
        self._module.__dict__.update(__builtins__=__builtins__, __file__=None)
        sys.modules["__main__"] = self._module
        self.namespace = self._module.__dict__
        self._modules = Modules()
        self._bound: set[str] = set()  # names that cells have bound, and not the notebook

    def _redirect(self, output: int, stdout: int | None, stderr: int | None) -> None:
        """At the level of descriptors, so that what C++ prints is caught as well.

        stdout, stderr: where they go instead of `output`.
        """
        os.dup2(output if stdout is None else stdout, 1)
        os.dup2(output if stderr is None else stderr, 2)
        for descriptor in (output, stdout, stderr):
            if descriptor is not None:
                os.close(descriptor)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            stream = open(  # noqa: SIM115
                descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def run(self, message: dict[str, Any], descriptors: list[int]) -> tuple[dict[str, Any], Any]:
        """Do one job; returns the reply and the descriptors that go with it."""
        began, self._note = time.time_ns(), ""
        reply, attached = self._try(message, descriptors)
        self._modules.note(began)
        return {**reply, "note": self._note}, attached

    def _try(self, message: dict[str, Any], descriptors: list[int]) -> tuple[dict[str, Any], Any]:
        try:
            if message["again"]:
                self._recorder.reset()
                self._note = self._modules.reload()
            if message["backend"] is None or self._meeting is None:
                self._serve_store()
            if message["backend"] is not None:
                self._initialize(message["backend"])
            task = self._unpack(payload.Parcel(descriptors[0], message["sizes"]))
            before = dict(self.namespace)
            left = self._do(task)
            self._bound |= {
                name
                for name, value in self.namespace.items()
                if name not in before or before[name] is not value
            }
            return self._report(*left)
        except BaseException as error:
            return _failed(error), []
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # a cell may have closed them
                    stream.flush()

    def _initialize(self, backend: str) -> None:
        """Make the default process group, unless this rank has one already.

        The ranks meet in a file that has no name. A store on a socket would ask for the host's
        name at each connection, and where the name server does not answer that takes seconds.
        """
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            return
        options: dict[str, Any] = {}
        if self._meeting is not None:
            world_size = int(os.environ["WORLD_SIZE"])
            store = dist.FileStore(f"/proc/self/fd/{self._meeting}", world_size)
            options = {"store": store, "rank": self.rank, "world_size": world_size}
        if backend == "nccl":
            options["device_id"] = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(options["device_id"])
        dist.init_process_group(backend, **options)

    def _serve_store(self) -> None:
        """Let init_process_group() without arguments find its store.

        torchrun's agent serves it; here rank 0 does, on the loopback socket that was bound for it
        before any rank existed, so nobody has to try twice.
        """
        import torch.distributed as dist

        if self._listener is not None:
            self._store = dist.TCPStore(
                "127.0.0.1",
                int(os.environ["MASTER_PORT"]),
                int(os.environ["WORLD_SIZE"]),
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=self._listener,
            )
            self._listener = None

    def _unpack(self, parcel: payload.Parcel) -> dict[str, Any]:
        """A job's content. What cells have bound here stays, whatever comes along with it."""
        own = {name: self.namespace[name] for name in self._bound if name in self.namespace}
        task: dict[str, Any] = parcel.open(self.namespace)
        self.namespace.update(task.get("values", {}))
        self.namespace.update(own)
        return task

    def _do(self, task: dict[str, Any]) -> tuple[Any, bool]:
        """The job itself; returns its value, and whether it left by sys.exit."""
        value, left = None, False
        if task["kind"] in ("cell", "function"):
            children.send_by_value()
        with profiled(task["trace"], self.rank):
            try:
                if task["kind"] == "cell":
                    value = Cell(task["source"], task["filename"]).run(self.namespace)
                elif task["kind"] == "function":
                    value = task["function"](*task["args"], **task["kwargs"])
                elif task["kind"] == "module":
                    sys.path.insert(0, os.getcwd())  # as python -m does
                    sys.argv[:] = [task["module"], *task["arguments"]]
                    runpy.run_module(task["module"], run_name="__main__", alter_sys=True)
                else:
                    sys.path.insert(0, os.path.dirname(task["script"]))  # as python does
                    sys.argv[:] = [task["script"], *task["arguments"]]
                    runpy.run_path(task["script"], run_name="__main__")
            except SystemExit as error:
                if error.code not in (None, 0):
                    raise
                left = True
        if task["kind"] in ("script", "module"):
            atexit._run_exitfuncs()
        _synchronize(self._recorder)
        return value, left

    def _report(self, value: Any, left: bool) -> tuple[dict[str, Any], Any]:
        reply: dict[str, Any] = {"did": "done", "at": time.perf_counter(), "left": left}
        reply["shown"] = None if value is None else shown(value)
        reply["digest"] = self._recorder.digest
        reply["device"] = _device_name()
        reply["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
        reply["bound"] = sorted(self._bound)
        if value is None:
            return reply, []
        try:
            descriptor, reply["sizes"] = payload.write(value)
        except (CannotSend, OSError) as error:
            reply["unsent"] = f"a {type(value).__name__} that cannot leave its rank: {error}"
            return reply, []
        return reply, [descriptor]


def _synchronize(recorder: record.Recorder) -> None:
    """A job on a GPU has ended when the GPU has done it."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        with recorder.internal("setup", record.SYNCHRONIZE):
            torch.cuda.synchronize()


def _device_name() -> str:
    torch = sys.modules["torch"]
    return str(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else "CPU"


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data, the cause first: what, where, and itself if it can travel."""
    blocks = []
    at: BaseException | None = error
    while at is not None:
        frames = [
            (frame.filename, frame.lineno or 0, frame.name, frame.line or "")
            for frame in traceback.extract_tb(at.__traceback__)
        ]
        if isinstance(at, SyntaxError) and at.filename:
            frames.append((at.filename, at.lineno or 0, "<module>", at.text or ""))
            text = f"{type(at).__name__}: {at.msg}"
        else:
            text = "".join(traceback.format_exception_only(at)).strip()
        blocks.append((text, frames))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    code = error.code if isinstance(error, SystemExit) else None
    try:
        file = io.BytesIO()
        buffers = payload.dump(error.with_traceback(None), file)
        pickled = file.getvalue()
    except CannotSend:
        pickled, buffers = b"", []
    return {
        "kind": type(error).__name__,
        "blocks": blocks,
        "exit_code": code,
        "exception": None if buffers else pickled,
    }


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux)."""
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind (Linux)."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    # A rank that was started as a program of its own, and not forked: the environment says where
    # its notebook listens.
    die_with_parent()
    address = os.environ.pop("LOCKSTEP_CHANNEL")
    if address.isdigit():
        connection = socket.socket(fileno=int(address))
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    greeting = Channel(connection)
    greeting.send({"did": "hello", "pid": os.getpid(), "environment": dict(os.environ)})
    record.install()
    main(greeting, os.environ.pop("LOCKSTEP_DIRECTORY"))
