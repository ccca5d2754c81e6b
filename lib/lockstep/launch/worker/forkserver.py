"""The forkserver: a process with torch imported and one thread, which forks the ranks.

Starting Python and importing torch takes seconds; forking a process that has done both takes
milliseconds. The notebook starts this process once and sends it jobs. It watches over what it
started: it ends a job when the notebook says so, lets go of the job's channel or dies, including
what the ranks started themselves, and says how each rank ended. It never waits for one process:
what cannot be ended is named and left, and other jobs are served meanwhile.

It must stay forkable: one thread, no tensor operation, no CUDA. It checks that before each fork;
where it does not hold, and where forking is not safe at all (macOS), ranks are started as
programs of their own, which takes seconds, and the reason is passed on.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import logging
import multiprocessing.util
import os
import re
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import processes
from ..channel import Channel, NoMessage, in_turn
from ..errors import refusal
from ..locks import is_held
from ..processes import FOLDER, GRACE, LAST_MOMENT, Reaper
from . import hooks, rank
from .process import adopt_orphans, aside, die_with_parent

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
    "lockstep.virtual.switch",  # ranks of many labs import it
)
_CUDA_NOT_INITIALIZED = 3
_DONT_NEED, _COLLAPSE = 4, 25  # MADV_DONTNEED, MADV_COLLAPSE
_HUGE = 2 << 20  # bytes of a huge page

_environment = dict(os.environ)  # before the imports, which change it
# Variables that Python, its libraries or PyTorch read when they start or are imported, so that a
# fork would not heed them; and those among them that are read later, or again by a rank.
_AT_THE_START = re.compile(
    "PYTHON|LD_|MALLOC_|GLIBC_TUNABLES$|LANG$|LC_|G?OMP_|KMP_|MKL_|TORCH|PYTORCH_|AOT_|AOTINDUCTOR_"
    "|INDUCTOR_|FX_|SYMPY_|NUMPY_|NPY_"
)
_LATER = re.compile(
    "PYTHONPATH$|OMP_NUM_THREADS$|PYTORCH_NVML_BASED_CUDA_CHECK$|TORCHELASTIC_|TORCH_NCCL_|TORCH_FR_"
    "|TORCHINDUCTOR_C(ACHE_DIR|OMPILE_THREADS)$|TORCH_HOME$|TORCH_EXTENSIONS_DIR$"
)

_TICK = 0.02  # seconds between two looks at a job that ends


@dataclass
class _Job:
    name: str
    channel: Channel
    directory: str  # for files that must go with the job
    claim: int  # a descriptor that says: this folder is in use
    leaders: dict[int, int] = field(default_factory=dict)  # process: its start time
    running: dict[int, int] = field(default_factory=dict)  # process: its index in the job
    waiting_for: set[int] = field(default_factory=set)  # processes that end by themselves
    until: float | None = None  # when patience ends, once the job is to end
    look_again: float = 0.0
    reaper: Reaper | None = None  # once those that are left are being killed
    by_agent: bool = False  # what runs is PyTorch's elastic agent, which starts the ranks
    unused_until: float | None = None  # its ranks are in reserve, and end then; None: in use

    def may_end_by_itself(self, pid: int) -> bool:
        """Return whether the ranks there handle SIGTERM; an agent always does, and passes it on."""
        ranks = processes.children(pid) if self.by_agent else [pid]
        return any(processes.catches(rank, signal.SIGTERM) for rank in ranks)


class _Forkserver:
    def __init__(self, control: Channel, kernel: int):
        self._control = control
        self._jobs: list[_Job] = []
        self._survivors: set[int] = set()  # could not be ended; they may yet
        self._leaving = False
        self._in_small_pages = _huge_pages()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._receive)
        # A child's end wakes the loop: the signal's number is written to this pipe.
        self._wake, self._wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._wake_end, False)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wake, selectors.EVENT_READ, self._reap)
        # What the notebook forks keeps the control channel open after the notebook has died.
        self._kernel = -1
        if hasattr(os, "pidfd_open"):
            try:
                self._kernel = os.pidfd_open(kernel)
                self._selector.register(self._kernel, selectors.EVENT_READ, self._leave)
            except ProcessLookupError:
                self._leaving = True
        if os.getppid() != kernel:
            self._leaving = True

    def serve(self) -> None:
        while self._jobs or not self._leaving:
            for key in in_turn(self._selector, self._patience()):
                key.data(key)
            for job in list(self._jobs):
                if job.unused_until is not None and time.monotonic() > job.unused_until:
                    self._end(job, gracefully=False)
                self._go_on_ending(job)
            if not self._jobs and self._in_small_pages:
                self._use_huge_page()

    def _use_huge_page(self) -> None:
        """Move some memory of the imports into one huge page, where Linux can (since 6.1).

        A fork copies an entry for each page, and the rank's end removes them: with small ones that
        is most of what a fork takes. A huge page that a rank writes to is split, so ranks share as
        much as before. All pages take 0.1 to 0.5 s, which the first job need not wait for.
        """
        _advise(self._in_small_pages.pop(), _HUGE, _COLLAPSE)

    def _patience(self) -> float | None:
        """Seconds until something is to be done though nothing comes; None: for ever."""
        if any(job.until is not None for job in self._jobs):
            return _TICK
        if not self._jobs and self._in_small_pages:
            return 0
        unused = [job.unused_until for job in self._jobs if job.unused_until is not None]
        return max(min(unused) - time.monotonic(), 0) + _TICK if unused else None

    def _leave(self, _: Any = None) -> None:
        """The notebook has closed its end, or died."""
        self._leaving = True
        for descriptor in (self._control, self._kernel):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(descriptor)
        for job in self._jobs:
            self._end(job, gracefully=False)

    # ── A job begins ─────────────────────────────────────────────────────────────────────────

    def _receive(self, _: Any) -> None:
        try:
            received = self._control.take()
        except (EOFError, NoMessage):
            self._leave()
            return
        except OSError as error:  # its descriptors, and so the job's channel, could not come in
            print(refusal(error), file=sys.stderr, flush=True)
            return
        if received is None:
            return
        message, (events, claim, *ends) = received
        channel = Channel(socket.socket(fileno=events))
        by_agent = bool(message["argv"])
        job = _Job(message["job"], channel, message["directory"], claim, by_agent=by_agent)
        if message["unused"] is not None:
            job.unused_until = time.monotonic() + message["unused"]
        self._jobs.append(job)
        self._selector.register(channel, selectors.EVENT_READ, lambda _: self._listen(job))
        try:
            note = self._start(job, message, ends)
            pids = list(job.leaders.items())
            self._tell(job, {"did": "started", "pids": pids, "note": note})
        except OSError as error:  # no more processes, no memory, no such Python: not our end
            self._tell(job, {"did": "refused", "why": str(refusal(error))})
            self._end(job, gracefully=False)
        finally:
            for end in ends:
                os.close(end)

    def _start(self, job: _Job, message: dict[str, Any], ends: list[int]) -> str:
        """Start its processes; returns a note for the learner, mostly empty."""
        why = "" if message["argv"] else _why_not_fork(message["environment"])
        alone = [sys.executable, "-u", "-m", rank.__spec__.name]
        argv = message["argv"] or (alone if why else None)
        environment = {**message["environment"], "LOCKSTEP_DIRECTORY": job.directory}
        if why:  # it has to find Lockstep first, and is told then which path is its program's
            environment["PYTHONPATH"] = _environment.get("PYTHONPATH", "")
        gc.collect()  # what a rank's collector finds of this process's it would have to copy first
        for index in range(message["count"]):
            if argv is None:
                pid = self._fork(ends, index, job.directory)
            else:
                pid = _start_program(argv, environment, ends[index : index + 1])
            job.running[pid] = index
            job.leaders[pid] = processes.start_of(pid)
        return why

    def _fork(self, ends: list[int], index: int, directory: str) -> int:
        gc.freeze()  # keep the garbage collector from copying the pages that are shared
        pid = os.fork()
        if pid:
            return pid
        try:
            die_with_parent()
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for job in self._jobs:
                job.channel.close()
                os.close(job.claim)
            self._control.close()
            for descriptor in (self._wake, self._wake_end, self._kernel):
                if descriptor >= 0:
                    os.close(descriptor)
            for other, end in enumerate(ends):
                if other != index:
                    os.close(end)
            _reseed()
            rank.main(Channel(socket.socket(fileno=aside(ends[index]))), directory)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(70)
        raise AssertionError("unreachable")

    # ── A job ends ───────────────────────────────────────────────────────────────────────────

    def _listen(self, job: _Job) -> None:
        """The notebook says that a reserve is used now, or how a job is to end; or it has let go,
        and that says it, too."""
        try:
            received = job.channel.take()
        except (EOFError, NoMessage, OSError):
            self._selector.unregister(job.channel)
            self._end(job, gracefully=False)
            return
        if received is None:
            return
        if received[0]["do"] == "use":
            if job.until is None:  # else it has ended unused, and hears that
                job.unused_until = None
                self._tell(job, {"did": "used"})
            return
        self._end(job, gracefully=bool(received[0].get("gracefully")))

    def _end(self, job: _Job, gracefully: bool) -> None:
        job.unused_until = None
        if not gracefully:
            job.waiting_for.clear()
        elif job.until is None:
            job.waiting_for = {pid for pid in job.running if job.may_end_by_itself(pid)}
            # Who has no handler dies of it at once, or ignores it: nobody waits for that.
            for pid in job.running:
                with contextlib.suppress(PermissionError):  # another user's by now
                    os.kill(pid, signal.SIGTERM)
        if job.until is None:
            job.until = time.monotonic() + GRACE

    def _go_on_ending(self, job: _Job) -> None:
        """Wait for those that end by themselves, then kill what is left; never for ever."""
        if job.until is None:
            return
        now = time.monotonic()
        if job.reaper is None:
            if job.waiting_for & job.running.keys() and now < job.until:
                return
            for pid in job.running:  # they go while the rest is looked for
                with contextlib.suppress(PermissionError):  # another user's by now
                    os.kill(pid, signal.SIGKILL)
            job.reaper = Reaper(job.name, job.leaders)
            job.until = now + LAST_MOMENT
        elif job.running and now < job.look_again:
            return  # its ranks are about to end
        job.look_again = now + _TICK
        were_running = bool(job.running)
        others = {pid for other in self._jobs if other is not job for pid in other.running}
        orphans = set(processes.children(os.getpid())) - others - self._survivors
        # What nobody else can own goes, too; ranks in reserve have started nobody.
        last = all(other is job or other.unused_until is not None for other in self._jobs)
        alive = job.reaper.kill_once(orphans - job.running.keys(), own=True, all_belong=last)
        # What a rank leaves behind becomes our child when it ends, so look once more after that;
        # and after any other end, as a chain of forks passes by a look and leaves dead links.
        if not (self._reap() or alive or job.running or were_running):
            self._conclude(job, set())
        elif now > job.until:
            self._conclude(job, alive | job.running.keys())

    def _conclude(self, job: _Job, survivors: set[int]) -> None:
        """The job is over for us, though some of its processes may live on."""
        named = [
            [job.running.get(pid, -1), pid, processes.why_alive(pid)] for pid in sorted(survivors)
        ]
        self._survivors |= survivors
        shutil.rmtree(job.directory, ignore_errors=True)
        self._jobs.remove(job)
        self._tell(job, {"did": "over", "survivors": named})
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(job.channel)
        job.channel.close()
        os.close(job.claim)

    def _reap(self, _: Any = None) -> int:
        """Take leave of the children that have ended; returns how many there were."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (ended := self._next_dead()) is not None:
                self._ended(*ended)
                count += 1
        return count

    def _next_dead(self) -> tuple[int, int, Any] | None:
        ended = os.wait4(-1, os.WNOHANG)
        return ended if ended[0] else None

    def _ended(self, pid: int, status: int, usage: Any) -> None:
        self._survivors.discard(pid)
        for job in self._jobs:
            if pid in job.running:
                index = job.running.pop(pid)
                scale = 1 if sys.platform == "darwin" else 1024
                peak = usage.ru_maxrss * scale
                code = os.waitstatus_to_exitcode(status)
                self._tell(job, {"did": "ended", "index": index, "code": code, "peak": peak})
                return

    def _tell(self, job: _Job, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the notebook may be gone, or not listen
            job.channel.send(message, patience=0)


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
    """NumPy's and PyTorch's global generators were seeded at import; ranks must not share their
    numbers. Python's own sees to that itself.
    """
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()


def _why_not_fork(environment: Mapping[str, str]) -> str:
    """Say why ranks with these variables cannot be forked here now; "" where they can."""
    if not sys.platform.startswith("linux"):
        return "ranks are forked on Linux only; here each one starts its own Python"
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"the forkserver has {threads} threads, so its ranks were started one by one"
    if _cuda_is_initialized():
        return "CUDA is in use in the forkserver, so its ranks were started one by one"
    changed = sorted(
        name
        for name in environment.keys() | _environment.keys()
        if _AT_THE_START.match(name)
        and not _LATER.match(name)
        and environment.get(name) != _environment.get(name)
    )
    if changed:
        named = ", ".join(changed[:3]) + (", …" if len(changed) > 3 else "")
        return f"Python and PyTorch read {named} when they start, so ranks were started one by one"
    return ""


def _cuda_is_initialized() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return bool(driver.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED)


def _mappings(permissions: str) -> Iterator[tuple[int, int, bool]]:
    """Yield where each mapping with these permissions starts and ends, and whether it is a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, allowed, _, _, inode = line.split()[:5]
        if allowed == permissions:
            start, end = (int(address, 16) for address in span.split("-"))
            yield start, end, inode != "0"


def _advise(start: int, length: int, advice: int) -> None:
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


def _give_back_code() -> None:
    """Unmap code that only the imports have run; what is needed again comes from the page cache.

    Safe for mappings that are executable and not writable: nobody has changed those pages.
    """
    for start, end, is_file in _mappings("r-xp"):
        if is_file:
            _advise(start, end - start, _DONT_NEED)


def _huge_pages() -> list[int]:
    """Return where the memory of this process could lie in huge pages; nowhere outside Linux."""
    if not sys.platform.startswith("linux"):
        return []
    return [
        page
        for start, end, is_file in _mappings("rw-p")
        if not is_file
        for page in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE)
    ]


def _keep_from_ranks() -> None:
    """Forget what the imports want done at the end of this process: its forks need not do it.

    A rank does at its end what its own program has asked for: finalizers, `atexit`, handlers of
    logs. Those of the imports would take apart every operator library, and to go through them
    costs each job milliseconds.
    """
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    logging._handlerList.clear()  # type: ignore[attr-defined]
    atexit._clear()
    for own in (weakref.finalize._exitfunc, multiprocessing.util._exit_function, logging.shutdown):  # type: ignore[attr-defined]
        atexit.register(own)


def _sweep() -> None:
    """Remove the folders of jobs whose notebook and forkserver were both killed.

    Whoever uses a folder holds a lock on it; the number of a process would say nothing in a
    container that shares its folder for temporary files with others.
    """
    for base in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(base).glob(f"{FOLDER}*"):
            with contextlib.suppress(OSError):  # another process has just removed it
                about = folder.lstat()
                young = time.time() - about.st_mtime < 60  # it may not be locked yet
                ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
                if ours and not young and not is_held(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def main(control: Channel, kernel: int) -> None:
    adopt_orphans()
    with contextlib.suppress(OSError):
        _sweep()
    if sys.platform.startswith("linux"):
        # To look for garbage among what imports make takes a third of their time, and finds little.
        gc.disable()
        for name in PRELOADED:
            with contextlib.suppress(ImportError):  # torch itself missing: the ranks will say so
                importlib.import_module(name)
        hooks.install()
        _keep_from_ranks()
        gc.freeze()
        gc.enable()
        _give_back_code()
    _Forkserver(control, kernel).serve()


if __name__ == "__main__":
    main(Channel(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2]))
