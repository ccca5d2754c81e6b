"""The program of a rank: it sets itself up, does the jobs it is sent, reports, and leaves.

A rank is told everything over its channel: first who it is and where its output goes, then one
job after another. It answers each with `done` or `failed`. After its last job a rank leaves as
Python does: it joins threads, runs what `atexit` knows, closes files. Then it stays until the
notebook ends it: its peers never see a closed connection where the truth is that somebody left
early.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.machinery
import multiprocessing.process
import os
import resource
import signal
import socket
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Iterator

# Names, and not their modules: what runs after a program must not be what it has put there.
from os import _exit, close, dup, dup2, getpid
from os import open as open_descriptor
from signal import signal as handle
from sys import getprofile, gettrace, setprofile, settrace
from time import perf_counter, time_ns
from typing import Any

from msgspec import to_builtins

from ...calls.record import SYNCHRONIZE
from .. import payload
from ..cell import Cell
from ..channel import Channel, map_file
from ..errors import CannotSend
from ..replies import Done, Reply
from . import children, hooks
from .exceptions import exit_status, failed, innermost, shortened, tell_hook
from .modules import Modules
from .process import STACK_SIGNAL, aside, die_with_parent, end_before_others
from .profiling import profiled
from .programs import run_module, run_script
from .recorder import Recorder
from .recursion import hide_frames
from .rendezvous import make_default_group, meet_in_file, serve_store
from .short_repr import short_repr
from .streams import close_files, flush, open_files, redirect

_UNWRITTEN = "its output could not be flushed at its exit, so Python exited with code 120"
_fflush = ctypes.CDLL(None).fflush
_COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE; 0 is the default one
_LEAST_FREE = 4  # a GPU with less than this part of its memory free has no room for a reserve
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def main(channel: Channel, directory: str) -> None:
    """Serve one channel as long as the notebook is there. Never returns.

    directory: goes with the job; for what multiprocessing puts into files, which a rank that is
    killed cannot clean up.
    """
    end_before_others()
    multiprocessing.process.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]
    with contextlib.suppress(EOFError, ConnectionError):  # the notebook is gone, so it is over
        message, descriptors = channel.receive()
        try:
            rank = _Rank(message, descriptors)
        except Exception as error:  # such as a working directory that is no more
            channel.send({"job": 0, **to_builtins(failed(error))})
            channel.receive()
            _exit(1)
        while True:
            message, descriptors = channel.receive()
            if message["do"] == "leave":
                rank.leave()
                break
            if message["do"] == "prepare":
                rank.prepare(message["backend"])
                channel.send({"job": 0, "did": "ready"})
                continue
            reply, attached = rank.run(message, descriptors)
            if not reply.ok:
                rank.wait_with_the_end()
            channel.send({"job": message["job"], **to_builtins(reply)}, attached)
            for descriptor in attached:
                close(descriptor)
            if not reply.ok:
                with contextlib.suppress(BaseException):
                    rank.leave()
                if rank.exits_on_failure:
                    _exit(1)
    _exit(0)


def _set_environment(wanted: dict[str, str]) -> None:
    """Only what differs: setting all of them takes a rank half a millisecond."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


class _Rank:
    def __init__(self, message: dict[str, Any], descriptors: list[int]):
        named = dict(zip(message["descriptors"], descriptors, strict=True))
        for name in ("stacks", "file", "listener") & named.keys():
            named[name] = aside(named[name])
        self.rank: int = message["rank"]
        self.exits_on_failure: bool = message["exits_on_failure"]
        self._pid = getpid()
        self._is_leaving = self._asked_to_end = False
        self._unwritten: Exception | None = None  # why its output could not be flushed at the end
        redirect(named["output"], named.get("stdout"), named.get("stderr"))
        _set_environment(message["environment"])
        self._directory: str = message["directory"]
        os.chdir(self._directory)
        sys.path[:] = message["path"]
        self._stacks = open(named["stacks"], "wb", buffering=0)  # noqa: SIM115 - open as long as the rank
        faulthandler.enable(self._stacks, all_threads=False)
        faulthandler.register(STACK_SIGNAL, self._stacks, all_threads=False)

        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ:
            from torch._inductor import config

            config.compile_threads = config.decide_compile_threads()
        self._recorder = hooks.start(map_file(named["record"], shared=True))
        self._meeting: int | None = named.get("file")
        self._listener: int | None = named.get("listener")
        self._store: Any = None
        self._module = types.ModuleType("__main__")
        self._module.__dict__.update(__builtins__=builtins)
        if sys.version_info < (3, 14):  # as Python's own __main__ has it, annotated or not
            self._module.__dict__.update(__annotations__={})
        sys.modules["__main__"] = self._module
        self.namespace = self._module.__dict__
        self._modules = Modules()
        self._bound: set[str] = set()  # names that cells have bound, and not the notebook
        self._is_prepared = False
        self._tracing: tuple[Any, Any] = (None, None)  # the program's trace and profile functions
        if self._meeting is not None:
            meet_in_file(f"/proc/self/fd/{self._meeting}")

    # ── In reserve ───────────────────────────────────────────────────────────────────────────

    def prepare(self, backend: str) -> None:
        """Do beforehand what the first job would begin with, and nothing that it could notice.

        Ends the process where that must not be: whoever wants ranks then starts fresh ones.
        """
        try:
            if backend == "nccl":
                _refuse_a_scarce_gpu(int(os.environ["LOCAL_RANK"]))
            make_default_group(backend, self.rank, self._meeting)
            _synchronize(self._recorder)
        except BaseException:
            traceback.print_exc()
            _exit(1)
        self._is_prepared = True

    def _wake(self) -> None:
        """See files and folders as they are now."""
        self._is_prepared = False
        os.chdir(self._directory)
        importlib.invalidate_caches()

    # ── One job ──────────────────────────────────────────────────────────────────────────────

    def run(self, message: dict[str, Any], descriptors: list[int]) -> tuple[Reply, list[int]]:
        """Do one job, and leave after the last; returns the reply and what descriptors go along."""
        began, self._note = time_ns(), ""
        reply, attached = self._try(message, descriptors)
        with self._noted():
            hooks.settle()
        with self._noted():
            self._modules.note(began)
        if reply.ok and message["last"]:
            with self._noted():
                self.leave()
            if self._unwritten is not None:
                why = f"{_UNWRITTEN}: {type(self._unwritten).__name__}: {self._unwritten}"
                reply = failed(self._unwritten)
                reply.blocks = [(why, [])]
        reply.note = "; ".join(filter(None, (self._note, self._recorder.fault)))
        return reply, attached

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Note what goes wrong here; it changes nothing of a job that is done."""
        try:
            yield
        except BaseException as error:
            what = f"after the job Lockstep itself failed in rank {self.rank}"
            note = f"{what} ({type(error).__name__}); the job is not affected"
            self._note = "; ".join(filter(None, [self._note, note]))

    def _try(self, message: dict[str, Any], descriptors: list[int]) -> tuple[Reply, list[int]]:
        hook: Any = None
        try:
            if self._is_prepared:
                self._wake()
            if message["again"]:
                self._recorder.reset()
                self._note = self._modules.reload()
            connects = message["backend"] is None or self._meeting is None
            if connects and self._listener is not None:
                self._store, self._listener = serve_store(self._listener), None
            if message["backend"] is not None:
                make_default_group(message["backend"], self.rank, self._meeting)
            task = self._unpack(payload.Parcel.from_file(descriptors[0], message["sizes"]))
            before = dict(self.namespace)
            hook = innermost(sys.excepthook)
            try:
                value = self._do(task)
            finally:
                if getpid() != self._pid:
                    self._end_of_fork()
            self._bound |= {
                name
                for name, value_now in self.namespace.items()
                if name not in before or before[name] is not value_now
            }
            return self._report(value)
        except BaseException as error:
            ended = error
        finally:
            flush()
        try:  # out here, where nothing is being handled any more
            reply = failed(tell_hook(ended, hook))
            with contextlib.suppress(Exception):  # of a GPU that has failed
                reply.device = _device_name()
            return reply, []
        finally:
            del ended  # its traceback holds this frame

    def _end_of_fork(self) -> None:
        """A process that the job forked and that has come to the job's end: it is no rank."""
        error, code = sys.exc_info()[1], 0
        if isinstance(error, SystemExit):
            code = exit_status(error)
        elif error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
        with contextlib.suppress(BaseException):
            self._close_down()
        _exit(code)

    def _unpack(self, parcel: payload.Parcel) -> dict[str, Any]:
        """A job's content. What cells have bound here stays, whatever comes along with it."""
        own = {name: self.namespace[name] for name in self._bound if name in self.namespace}
        task: dict[str, Any] = parcel.open(self.namespace)
        self.namespace.update(task.get("values", {}))
        self.namespace.update(own)
        return task

    def _do(self, task: dict[str, Any]) -> Any:
        """The job itself; returns its value."""
        value = None
        if task["kind"] in ("cell", "function"):
            children.send_by_value()
        with profiled(task["trace"], self.rank):
            hide_frames(sys._getframe(), called=task["kind"] == "function")
            self._trace_again()
            try:
                if task["kind"] == "cell":
                    value = Cell(task["source"], task["filename"]).run(self.namespace)
                elif task["kind"] == "function":
                    value = task["function"](*task["args"], **task["kwargs"])
                elif task["kind"] == "module":
                    run_module(task["module"], task["arguments"])
                else:
                    run_script(task["script"], task["argv"], self.namespace)
            except SystemExit as error:
                if exit_status(error) != 0:
                    raise
            finally:
                self._trace_no_more()
        _synchronize(self._recorder)
        return value

    def _trace_again(self) -> None:
        trace, profile = self._tracing
        setprofile(profile)
        settrace(trace)

    def _trace_no_more(self) -> None:
        """Stop tracing: a program traces itself, and what it leaves on waits for its next cell."""
        trace = gettrace()
        settrace(None)
        self._tracing = trace, getprofile()
        setprofile(None)

    def _report(self, value: Any) -> tuple[Reply, list[int]]:
        """Return what is to be said of a job that is done, and a descriptor of its value."""
        reply = Done(
            at=perf_counter(),
            shown=None if value is None else short_repr(value),
            digest=self._recorder.digest,
            device=_device_name(),
            peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
            bound=sorted(name for name in self._bound if type(name) is str),
        )
        if value is None:
            return reply, []
        try:
            file, reply.sizes = payload.write(value)
        except (CannotSend, OSError) as error:
            reply.unsent = (
                f"a {type(value).__name__} that cannot leave its rank: {shortened(str(error))}"
            )
            return reply, []
        with file:  # files in Python are closed when the rank leaves, which comes before it sends
            return reply, [dup(file.fileno())]

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def wait_with_the_end(self) -> None:
        """From now on hear that the end is asked for (SIGTERM), and heed it when all is left.

        Where one rank fails the notebook asks all of them, and waits for those that listen.
        """
        if not self._is_leaving:
            self._is_leaving = True
            handle(signal.SIGTERM, lambda *_: setattr(self, "_asked_to_end", True))

    def leave(self) -> None:
        """Do what Python does at its end, so that nothing the job has written is lost.

        The process itself stays, and with it modules and process groups that nobody destroyed.
        """
        if not hasattr(self, "namespace"):
            return  # it has left
        self.wait_with_the_end()
        try:
            waiting = [t.name for t in threading.enumerate() if not t.daemon][1:]
            if waiting:
                with self._recorder.leaving(f"the end of its thread {waiting[0]!r}"):
                    threading._shutdown()  # type: ignore[attr-defined]
            self._groups = hooks.groups()
            own = "the end of its variables and of its atexit functions"
            with self._recorder.leaving(own, may_be_helped=True):
                self._close_down()
        finally:
            handle(signal.SIGTERM, signal.SIG_DFL)
            if self._asked_to_end:
                _exit(1)

    def _close_down(self) -> None:
        threading._shutdown()  # type: ignore[attr-defined]
        self._trace_again()
        atexit._run_exitfuncs()
        self._trace_no_more()
        self._unwritten = flush()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        # Python lets no other thread run from here on. We cannot; but nobody is to hear of them.
        threading.excepthook = _say_nothing
        files = open_files()  # held: in a circle of garbage they might be closed inside out
        hooks.forget_departed()
        self._forget_program()
        sys.unraisablehook = _say_nothing
        close_files(files)
        _fflush(None)  # what C has in its buffers
        null = open_descriptor(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):  # what is said from here on, torchrun's ranks do not live to say
            dup2(null, descriptor)
        close(null)

    def _forget_program(self) -> None:
        """Let go of `__main__`, in Python's order: what nobody else holds ends with all names still
        there; where somebody holds the module, each name becomes None. What another thread is in
        stays as it is.
        """
        module, self._tracing = weakref.ref(self._module), (None, None)
        sys.modules.pop("__main__", None)
        del self._module, self.namespace
        gc.collect()
        if (held := module()) is not None:
            names = [name for name in vars(held) if name != "__builtins__"]
            own = [name for name in names if name[:1] == "_" and name[:2] != "__"]
            vars(held).update(dict.fromkeys([*own, *names]))
            gc.collect()


def _say_nothing(_: Any) -> None:
    pass


def _synchronize(recorder: Recorder) -> None:
    """A job on a GPU has ended when the GPU has done it."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        with recorder.internal("setup", SYNCHRONIZE):
            torch.cuda.synchronize()


def _refuse_a_scarce_gpu(device: int) -> None:
    """Raise RuntimeError where a context in reserve would be in the way of others."""
    import torch

    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    if free < total / _LEAST_FREE:
        raise RuntimeError(f"GPU {device} has {free / 2**30:.1f} GiB left")
    mode = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, device)
    if mode.value != 0:  # one process at a time, or none
        raise RuntimeError(f"GPU {device} is not for several processes")


def _device_name() -> str:
    """The GPU's name, if this rank has used it: a profiler makes a context on any that is there."""
    torch = sys.modules["torch"]
    cuda, dist = torch.cuda, torch.distributed
    if not cuda.is_initialized():
        return "CPU"
    communicates = dist.is_initialized() and "nccl" in dist.get_backend()
    return str(cuda.get_device_name()) if communicates or _has_had_memory(cuda) else "CPU"


def _has_had_memory(cuda: Any) -> bool:
    """Return whether PyTorch has ever asked a GPU for memory."""
    with contextlib.suppress(RuntimeError):  # allocators of others count nothing
        stats = map(cuda.memory_stats, range(cuda.device_count()))
        return any(one.get("num_device_alloc", 0) for one in stats)
    return True


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
    greeting = Channel(socket.socket(fileno=aside(connection.detach())))
    greeting.send({"did": "hello", "pid": os.getpid(), "environment": dict(os.environ)})
    hooks.install()
    main(greeting, os.environ.pop("LOCKSTEP_DIRECTORY"))
