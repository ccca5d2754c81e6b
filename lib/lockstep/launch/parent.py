"""The warm parent: a process with torch imported and one thread, which forks the ranks.

Starting Python and importing torch takes seconds; forking a process that has done both takes
milliseconds. The notebook starts this process once and sends it jobs. It watches over what it
started: it kills a job when the notebook lets go of the job's channel (or dies), including what
the ranks started themselves, and says how each rank ended.

It must stay forkable: one thread, no tensor operation, no CUDA. It checks that before each fork;
where it does not hold, and where forking is not safe at all (macOS), ranks are started as
programs of their own, which takes seconds, and the reason is passed on.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import rank, recorder
from .channel import Channel

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "torch.distributed.device_mesh",
    "torch.profiler",
)
_CUDA_NOT_INITIALIZED = 3


@dataclass
class _Job:
    channel: Channel
    directory: str  # for files that must go with the job
    running: dict[int, int] = field(default_factory=dict)  # pid: index of the process in its job


class _Parent:
    def __init__(self, control: Channel):
        self._control = control
        self._jobs: dict[int, _Job] = {}  # by the descriptor of the job's channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._receive)
        # A child's end wakes the loop: the signal's number is written to this pipe.
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)

    def serve(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    key.data(key)
        except EOFError:  # the notebook has closed its end, or died
            for job in list(self._jobs.values()):
                self._kill(job)

    def _receive(self, _: Any) -> None:
        message, (events, *ends) = self._control.receive()
        directory = message["directory"] or tempfile.mkdtemp(prefix="lockstep-")
        job = _Job(Channel(socket.socket(fileno=events)), directory)
        self._jobs[events] = job
        why = "" if message["argv"] else _why_not_fork()
        argv = message["argv"] or ([sys.executable, "-m", rank.__spec__.name] if why else None)
        for index in range(message["count"]):
            if argv is None:
                pid = self._fork(ends, index, job.directory)
            else:
                environment = {**message["environment"], "LOCKSTEP_DIRECTORY": job.directory}
                pid = _start_program(argv, environment, ends[index : index + 1])
            job.running[pid] = index
        for end in ends:
            os.close(end)
        self._tell(job, {"did": "started", "pids": list(job.running), "note": why})
        self._selector.register(job.channel, selectors.EVENT_READ, self._let_go)

    def _fork(self, ends: list[int], index: int, directory: str) -> int:
        gc.freeze()  # keep the garbage collector from copying the pages that are shared
        pid = os.fork()
        if pid:
            return pid
        try:
            rank.die_with_parent()
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for job in self._jobs.values():
                job.channel.close()
            self._control.close()
            os.close(self._wake)
            for other, end in enumerate(ends):
                if other != index:
                    os.close(end)
            _reseed()
            rank.main(Channel(socket.socket(fileno=ends[index])), directory)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
        raise AssertionError("unreachable")

    def _let_go(self, key: selectors.SelectorKey) -> None:
        """The notebook has closed its side of a job's channel: the job is over."""
        self._kill(self._jobs[key.fd])

    def _kill(self, job: _Job) -> None:
        """Kill what is left of a job and wait until it is gone; then close its channel."""
        for pid in job.running:
            _kill_group(pid)
        while job.running:
            self._ended(*os.wait4(next(iter(job.running)), 0)[:3])
        self._kill_orphans()
        shutil.rmtree(job.directory, ignore_errors=True)
        for descriptor, known in list(self._jobs.items()):
            if known is job:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(job.channel)
                del self._jobs[descriptor]
        job.channel.close()

    def _reap(self, _: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                self._ended(pid, status, usage)

    def _ended(self, pid: int, status: int, usage: Any) -> None:
        for job in self._jobs.values():
            if pid in job.running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # what it left behind: data loader workers, …
                index = job.running.pop(pid)
                scale = 1 if sys.platform == "darwin" else 1024
                peak = usage.ru_maxrss * scale
                code = os.waitstatus_to_exitcode(status)
                self._tell(job, {"did": "ended", "index": index, "code": code, "peak": peak})
                return

    def _tell(self, job: _Job, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the notebook may be gone
            job.channel.send(message)

    def _kill_orphans(self) -> None:
        """Processes that ranks started and detached have become our children: end them too."""
        known = {pid for job in self._jobs.values() for pid in job.running}
        while orphans := _children() - known:
            for pid in orphans:
                _kill_group(pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    """A process and its group; one that was forked a moment ago leads no group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in listing.read_text().split()} if listing.exists() else set()


def _start_program(argv: list[str], environment: dict[str, str], ends: list[int]) -> int:
    environment = dict(environment)
    if ends:
        environment["LOCKSTEP_CHANNEL"] = str(ends[0])
    process = subprocess.Popen(
        argv, env=environment, pass_fds=ends, start_new_session=True, stdin=subprocess.DEVNULL
    )
    process.returncode = 0  # it is reaped by _reap, not by subprocess
    return process.pid


def _reseed() -> None:
    """NumPy's global generator was seeded at import; ranks must not share its numbers."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _why_not_fork() -> str:
    """Why ranks cannot be forked from this process now; "" where they can."""
    if not sys.platform.startswith("linux"):
        return "ranks are forked on Linux only; here each one starts a Python of its own"
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"the warm parent has {threads} threads, so its ranks were started one by one"
    if _cuda_is_initialized():
        return "CUDA is in use in the warm parent, so its ranks were started one by one"
    return ""


def _cuda_is_initialized() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED)


def _give_back_code() -> None:
    """Unmap code that only the imports have run; what is needed again comes from the page cache.

    Safe for mappings that are executable and not writable: nobody has changed those pages.
    """
    dont_need = 4  # MADV_DONTNEED
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, _, _, inode = line.split()[:5]
        if permissions == "r-xp" and inode != "0":
            start, end = (int(address, 16) for address in span.split("-"))
            libc = ctypes.CDLL(None)
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), dont_need)


def _keep_from_ranks() -> None:
    """What the imports want done at the end of this process is not for its forks to do.

    A rank does at its end what its own program has asked for, and some of the imports' wishes,
    such as to take apart every operator library, cost more than a whole job.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def main(control: Channel) -> None:
    rank.adopt_orphans()
    if sys.platform.startswith("linux"):
        for name in PRELOADED:
            with contextlib.suppress(ImportError):  # torch itself missing: the ranks will say so
                importlib.import_module(name)
        recorder.install()
        _keep_from_ranks()
        gc.collect()
        _give_back_code()
    _Parent(control).serve()


if __name__ == "__main__":
    main(Channel(socket.socket(fileno=int(sys.argv[1]))))
