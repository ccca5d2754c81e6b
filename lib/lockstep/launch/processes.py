"""The processes of a job: who belongs to it, how to end them all, and why one cannot be ended.

A rank leads a session of its own, and what it starts is below it. What it has detached is not: a
process that leaves its session and whose parent ends belongs to nobody in the kernel's eyes. It is
known by what it carries: a program by the variable LOCKSTEP_JOB in its environment, a mere fork by
the call record of its rank, which it has mapped.

All of this reads /proc. Where there is none (macOS), the ranks and their process groups are ended,
and nobody else is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

GRACE = 3.0  # seconds in which ranks that handle SIGTERM may end by themselves
LAST_MOMENT = 2.0  # seconds in which a process that was killed should be gone
FOLDER = "lockstep-job-"  # how the names of jobs' folders begin
VARIABLE = "LOCKSTEP_JOB"  # in a rank's environment: the name of its job
_TRACKER = 1.0  # seconds for multiprocessing to tidy up behind processes that were killed
_EXEC = 5.0  # seconds in which a program that begins has its environment, on a busy machine, too
_ROUNDS = 50  # of stopping what has come since the last look; each round has less to do


class Status(NamedTuple):
    """A process as the kernel describes it."""

    state: str  # R, S, D, T, t, Z, X
    parent: int
    session: int
    start: int  # in clock ticks since the machine came up; with the number it names one process
    threads: int

    @property
    def has_ended(self) -> bool:
        """A process whose first thread has ended is shown as Z while others still do."""
        return self.state in "ZX" and self.threads <= 1


def status(pid: int) -> Status | None:
    """Read what the kernel says of a process; None where there is none (or no /proc)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    parent, session, threads, start = (int(fields[at]) for at in (1, 3, 17, 19))
    return Status(fields[0].decode(), parent, session, start, threads)


def start_of(pid: int) -> int:
    """Return when a process began, which with its number names it for ever; 0 if not known."""
    found = status(pid)
    return found.start if found else 0


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def everybody() -> list[int]:
    """List all processes that may be ours, but for this one."""
    own = os.geteuid()
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if own in (0, entry.stat().st_uid):
                        found.append(int(entry.name))
    return found


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    caught = _field(pid, "SigCgt")
    return bool(caught) and bool(int(caught, 16) >> (number - 1) & 1)


def send(pid: int, start: int, number: int) -> None:
    """Send a signal to just that process, and to none that has got its number since.

    Raises PermissionError where we may not.
    """
    with contextlib.suppress(ProcessLookupError):
        if not hasattr(signal, "pidfd_send_signal"):
            os.kill(pid, number)
            return
        process = os.pidfd_open(pid)
        try:
            if start_of(pid) == start:
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


class Reaper:
    """Ends a job's processes; call `kill_once` again and again until it says that none is left.

    job: its name. leaders: its ranks (or its agent), by number with the start time.
    """

    def __init__(self, job: str, leaders: Mapping[int, int]):
        self._job = job
        self._leaders = dict(leaders)
        self._members: dict[int, int] = dict(leaders)  # and all that was found to belong to them
        self._strangers: set[tuple[int, int]] = set()
        self._trackers_since: dict[int, float] = {}

    def kill_once(
        self, suspects: Iterable[int], *, own: bool, all_belong: bool = False
    ) -> set[int]:
        """Stop all that belongs to the job, then kill it; returns what was still alive before.

        Who is stopped starts nobody else, so it ends when a look finds nobody new. Ranks that have
        started nobody are not stopped: what they start in that moment is found by the next call.
        suspects: who may belong to it besides what the leaders started. own: they are children of
        this process and can be stopped before they are looked at. all_belong: all suspects do.
        """
        for suspect in suspects:
            if suspect not in self._members:
                self._examine(suspect, own, all_belong)
        for _ in range(_ROUNDS):
            alive = self._alive()
            below = {child for pid in alive for child in children(pid)} - self._members.keys()
            if not below:
                break
            fresh = {pid: start_of(pid) for pid in below}
            self._members |= fresh
            for pid, start in (alive | fresh).items():
                _try_to_send(pid, start, signal.SIGSTOP)
        alive = self._alive()
        for pid, start in self._first(alive).items():
            _try_to_send(pid, start, signal.SIGKILL)
        return set(alive)

    def _first(self, alive: dict[int, int]) -> dict[int, int]:
        """Return those that go before the others.

        multiprocessing's tracker removes the semaphores of those it serves when they are gone, and
        then ends by itself: it is let, for a moment.
        """
        trackers = {pid for pid in alive if _tracks_resources(pid)}
        others = {pid: start for pid, start in alive.items() if pid not in trackers}
        for pid in trackers:
            self._trackers_since.setdefault(pid, time.monotonic())
            _try_to_send(pid, alive[pid], signal.SIGCONT)
            if time.monotonic() - self._trackers_since[pid] > _TRACKER:
                others[pid] = alive[pid]
        return others

    def _examine(self, pid: int, own: bool, belongs: bool) -> None:
        seen = status(pid)
        if seen is None or seen.has_ended or (pid, seen.start) in self._strangers:
            return
        marked = _marked(pid)
        if belongs or seen.session in self._leaders or marked == self._job:
            self._members[pid] = seen.start
            return
        # It may be the link of a chain whose next link begins in a moment: hold it first.
        held = own and not marked and seen.state not in "Tt"
        if held:
            _try_to_send(pid, seen.start, signal.SIGSTOP)
        if not marked and _has_record(pid, self._job):
            self._members[pid] = seen.start
            return
        self._strangers.add((pid, seen.start))
        if held:
            _try_to_send(pid, seen.start, signal.SIGCONT)

    def _alive(self) -> dict[int, int]:
        alive = {}
        for pid, start in self._members.items():
            seen = status(pid)
            if seen is not None and seen.start == start and not seen.has_ended:
                alive[pid] = start
        return alive


def others_live(job: str, ranks: Collection[int]) -> bool:
    """Return whether a process of a job lives that its ranks have started.

    What only keeps semaphores in order for them does not count.
    """
    below = {child for rank in ranks for child in children(rank)}
    for pid in (*below, *everybody()):
        seen = None if pid in ranks or _tracks_resources(pid) else status(pid)
        if seen is None or seen.has_ended:
            continue
        if pid in below or seen.session in ranks or _marked(pid) == job or _has_record(pid, job):
            return True
    return False


def _try_to_send(pid: int, start: int, number: int) -> None:
    with contextlib.suppress(OSError):  # another user's: why_alive() says so
        send(pid, start, number)


def _marked(pid: int) -> str:
    """Return the job of a program that a rank has started; "" where its environment names none."""
    for variable in _environment(pid).split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == VARIABLE.encode():
            return value.decode(errors="replace")
    return ""


def _environment(pid: int) -> bytes:
    """Read the environment with which a process began.

    While it is about to become another program that reads as empty: look again then.
    """
    folder = Path(f"/proc/{pid}")
    until = time.monotonic() + _EXEC
    found = b""
    with contextlib.suppress(OSError):
        while not (found := (folder / "environ").read_bytes()) and time.monotonic() < until:
            os.stat(folder / "exe")  # the kernel's own threads have none, and never will
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            start, end = int(fields[47]), int(fields[48])  # env_start and env_end of proc(5)
            if start == end != 0:  # it has none
                break
            time.sleep(0.001)
    return found


def _tracks_resources(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _has_record(pid: int, job: str) -> bool:
    """Return whether a process is a fork of a rank of this job.

    Its environment is the one with which the forkserver began. The notebook's own forks have its
    records mapped, too, and are told by their command line.
    """
    folder = Path(f"/proc/{pid}")
    try:
        return (
            b"lockstep.launch.worker.forkserver" in (folder / "cmdline").read_bytes()
            and f"/memfd:lockstep-{record_name(job)}".encode() in (folder / "maps").read_bytes()
        )
    except OSError:
        return False


def record_name(job: str) -> str:
    """Return how the names of the files with a job's call records begin."""
    return f"calls-{job}-"


def why_alive(pid: int) -> str:
    """Say why a process that was sent SIGKILL still lives, as far as one can see."""
    seen = status(pid)
    if seen is None:
        return "the reason is unknown"
    if seen.state == "Z":
        tracer = _field(pid, "TracerPid")
        return f"it has ended, but a debugger (pid {tracer}) holds what is left of it"
    owner = (_field(pid, "Uid").split() or ["?"])[0]
    if os.geteuid() != 0 and owner != str(os.geteuid()):
        return f"it runs as another user (uid {owner})"
    with contextlib.suppress(PermissionError):
        send(pid, seen.start, 0)
        return _why_unkillable(pid, seen.state)
    return f"there is no permission to end it (it runs as uid {owner})"


def _why_unkillable(pid: int, state: str) -> str:
    if _is_frozen(pid):
        return "it is frozen by its control group (cgroup freezer)"
    if state == "t":
        return f"a debugger (pid {_field(pid, 'TracerPid')}) holds it"
    if state == "D":
        with contextlib.suppress(OSError):
            where = Path(f"/proc/{pid}/wchan").read_text()
            if where not in ("", "0"):
                return f"it waits in the kernel (state D, in {where}), as for a disk or a GPU"
        return "it waits in the kernel (state D), as for a disk or a GPU"
    return f"it is still ending (state {state})"


def _is_frozen(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if "freezer" in controllers.split(","):
                state = Path(f"/sys/fs/cgroup/freezer{group}/freezer.state").read_text().strip()
                return state != "THAWED"
    return False


def _field(pid: int, name: str) -> str:
    """Return one line of /proc/PID/status; "" where it is not there."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
    return ""


_IDLE_BUT_AWAKE = "gloo_tcp_loop"  # it looks around a hundred times a second


def processor_time(pids: Iterable[int]) -> tuple[int, ...] | None:
    """Return what each process has used of the processor so far, in clock ticks.

    None while one of their threads runs or waits for a core. Empty where there is no /proc.
    """
    used = []
    for pid in pids:
        ticks = 0
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                if (thread / "comm").read_text().startswith(_IDLE_BUT_AWAKE):
                    continue
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
                if fields[0] in "RD":
                    return None
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            return ()
        used.append(ticks)
    return tuple(used)
