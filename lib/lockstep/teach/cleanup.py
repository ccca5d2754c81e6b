"""Find and remove what crashes have left behind on this machine: `lockstep clean`.

The launcher tidies up behind itself, and behind what was killed. Left is what nobody could end or
remove any more: kernel and forkserver killed at once, a machine that ran out of memory. What is
listed here belongs to this user and to nobody alive:

- a process names its notebook (LOCKSTEP_JOB, or the forkserver's command line), which has ended;
- a job's folder, a demo's, or an agent's ticket, is locked while it is used, and is not;
- other temporary folders, and shared memory of PyTorch and NCCL, are older than each process of
  the user that has this package or PyTorch loaded, so none of those has made them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import platformdirs
import psutil

from ..base.formatting import binary, in_one_line
from ..launch import processes
from ..launch.locks import is_held

DEMO = "lockstep-demo-"  # how the names of demos' folders begin
_YOUNG = 60.0  # seconds: whoever makes a file may not have locked it yet
_TEMPORARY = re.compile(r"lockstep-(trace-)?[a-z0-9_]{8}")
_SHARED = re.compile(r"torch_\d+_\d+_\d+|nccl-\w{6}")
_LOADED = ("msgspec", "libtorch")  # in the maps of a process that has this package, or PyTorch
_PARENT = "lockstep.launch.worker.forkserver"
_PATIENCE = 2.0  # seconds for a process that was killed


@dataclass(frozen=True)
class Leftover:
    """kind: "process", "folder", "ticket" or "shared memory". what: how it is found. detail: its
    age and size, or its command."""

    kind: str
    what: str
    detail: str = field(compare=False)
    _remove: Callable[[], None] = field(repr=False, compare=False)

    def remove(self) -> str:
        """Remove it; returns "", or why it is still there."""
        try:
            self._remove()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def __str__(self) -> str:
        return in_one_line(f"{self.kind} {self.what} ({self.detail})")


@dataclass(frozen=True)
class Places:
    """The folders that are searched."""

    temporary: tuple[Path, ...] = ()
    shared: Path = Path("/dev/shm")
    tickets: Path = Path()
    traces: Path = Path()

    @classmethod
    def usual(cls) -> Places:
        return cls(
            tuple(map(Path, sorted({os.path.realpath(tempfile.gettempdir()), "/tmp"}))),
            tickets=platformdirs.user_state_path("lockstep") / "nodes",
            traces=platformdirs.user_cache_path("lockstep") / "traces",
        )


def find(places: Places) -> list[Leftover]:
    """Return all leftovers, processes first: folders may be theirs."""
    oldest = _oldest_user()
    found = list(_processes())
    for base in places.temporary:
        found += _folders(base, oldest)
    found += _tickets(places.tickets)
    found += _caches(places.traces, oldest)
    found += _shared_memory(places.shared, oldest)
    return found


# ── Processes ────────────────────────────────────────────────────────────────────────────────


def _processes() -> Iterator[Leftover]:
    try:
        here = os.readlink("/proc/self/ns/pid")
    except OSError:  # no /proc: nobody can say whose a process is
        return
    for pid in processes.everybody():
        with contextlib.suppress(OSError, psutil.Error, ValueError):
            process = psutil.Process(pid)
            same = process.uids().effective == os.geteuid()
            if not same or os.readlink(f"/proc/{pid}/ns/pid") != here:
                continue  # in a container the notebook's number is another
            notebook = _notebook(process)
            if notebook and not psutil.pid_exists(notebook):
                start = processes.start_of(pid)
                said = f"of notebook {notebook}, which has ended: "
                said += " ".join(process.cmdline())[:100]
                yield Leftover("process", str(pid), said, partial(_kill, pid, start))


def _notebook(process: psutil.Process) -> int:
    """Return the number of the notebook that a process belongs to; 0 for none."""
    command = process.cmdline()
    if _PARENT in command:
        return int(command[-1])
    job = process.environ().get(processes.VARIABLE, "")
    return int(job.partition("-")[0]) if job else 0


def _kill(pid: int, start: int) -> None:
    processes.send(pid, start, signal.SIGKILL)
    until = time.monotonic() + _PATIENCE
    while (seen := processes.status(pid)) and seen.start == start and not seen.has_ended:
        if time.monotonic() > until:
            raise OSError(0, processes.why_alive(pid))
        time.sleep(0.02)


def _oldest_user() -> float:
    """Return when this user's oldest process began that has the package or PyTorch loaded, in
    seconds since 1970; now, if there is none."""
    began = [time.time()]
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if process.pid == os.getpid() or process.uids().effective != os.geteuid():
                continue
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            if any(name in maps for name in _LOADED):
                began.append(process.create_time())
    return min(began)


# ── Files ────────────────────────────────────────────────────────────────────────────────────


def _folders(base: Path, oldest: float) -> Iterator[Leftover]:
    for path, about in _own(base.glob("lockstep-*"), stat.S_ISDIR):
        if path.name.startswith((processes.FOLDER, DEMO)):
            if not is_held(path):
                yield _folder(path, about, _remove_unlocked)
        elif _TEMPORARY.fullmatch(path.name) and about.st_mtime < oldest - _YOUNG:
            yield _folder(path, about, shutil.rmtree)


def _caches(traces: Path, oldest: float) -> Iterator[Leftover]:
    """Yield the entries of the cache of traces that were never finished."""
    for path, about in _own(traces.glob(".*"), stat.S_ISDIR):
        if about.st_mtime < oldest - _YOUNG:
            yield _folder(path, about, shutil.rmtree)


def _tickets(folder: Path) -> Iterator[Leftover]:
    for path, about in _own(folder.glob("ticket-*.json"), stat.S_ISREG):
        if not is_held(path):
            yield Leftover("ticket", str(path), _age(about), path.unlink)


def _shared_memory(folder: Path, oldest: float) -> Iterator[Leftover]:
    for path, about in _own(folder.glob("*"), stat.S_ISREG):
        if _SHARED.fullmatch(path.name) and about.st_mtime < oldest - _YOUNG:
            detail = f"{_age(about)}, {binary(about.st_size)}"
            yield Leftover("shared memory", str(path), detail, path.unlink)


def _own(
    paths: Iterable[Path], kind: Callable[[int], bool]
) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield those of this kind that are this user's and were not just made, with their stat."""
    with contextlib.suppress(OSError):  # no such folder, or not ours to read
        for path in sorted(paths):
            with contextlib.suppress(OSError):  # it has just gone
                about = path.lstat()
                old = time.time() - about.st_mtime > _YOUNG
                if kind(about.st_mode) and about.st_uid == os.geteuid() and old:
                    yield path, about


def _remove_unlocked(path: Path) -> None:
    if is_held(path):
        raise OSError(0, "in use now")
    shutil.rmtree(path)


def _folder(path: Path, about: os.stat_result, remove: Callable[[Path], None]) -> Leftover:
    size = sum(
        one.lstat().st_size for one in path.rglob("*") if not one.is_symlink() and one.is_file()
    )
    return Leftover("folder", str(path), f"{_age(about)}, {binary(size)}", partial(remove, path))


def _age(about: os.stat_result) -> str:
    seconds = max(time.time() - about.st_mtime, 0)
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} old"
    return f"{seconds:.0f} seconds old"
