"""Processes that the forkserver starts, watches and ends: what both engines share.

Nothing is left when the job, the notebook's kernel, or the machine's patience ends. The notebook
waits for nobody for ever: where the forkserver does not answer, or is gone, it ends the ranks
itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import processes
from ..channel import Channel, NoMessage, anonymous_file
from ..errors import LaunchError
from ..interrupts import defer_signals
from ..place import Place
from ..processes import FOLDER, GRACE, LAST_MOMENT
from .base import Arrival

_MODULE = "lockstep.launch.worker.forkserver"  # the module that it runs
# Seconds in which the forkserver must have answered, on a busy machine, too.
PATIENCE = 15.0
_PATIENCE_AT_FIRST = 300.0  # it imports torch, which takes long from a cold or a distant disk
_PATIENCE_WHEN_STOPPED = 1.0
TICK = 0.1
_LOOKS = 3  # at all processes, in a row, that find none of a job
_MOST_WORDS = 4000  # bytes
# Unix sockets take 107 bytes, and multiprocessing adds its own to the folder of a job.
_LONGEST_BASE = 107 - len(f"/{FOLDER}12345678/listener-12345678")


class _ForkserverProcess:
    """One process that runs `worker/forkserver.py`, from its start to its end."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair(socket.AF_UNIX)
            stack.callback(theirs.close)
            failed = stack.enter_context(contextlib.ExitStack())
            failed.callback(ours.close)
            self._words = open(anonymous_file("forkserver"), "r+b", buffering=0)  # noqa: SIM115
            failed.callback(self._words.close)
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-u", "-m", _MODULE),  # as torchrun's ranks
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                env=_environment_of_parent(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                start_new_session=True,
                cwd="/",  # it must not depend on a directory that may go
            )
            failed.pop_all()
        self._control = Channel(ours)
        self._lock = threading.Lock()
        self.has_answered = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """True where it cannot act: somebody has stopped it (SIGSTOP, or a debugger)."""
        seen = processes.status(self.pid)
        return seen is not None and seen.state in "Tt"

    def send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            self._control.send(message, descriptors, patience=PATIENCE)

    def last_words(self) -> str:
        """Return what it printed last, which is something only when it could not go on."""
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), _MOST_WORDS, max(size - _MOST_WORDS, 0))
        return words.decode(errors="replace").strip() or "(nothing)"

    def why_ended(self) -> str:
        """Say how it ended, for people; "" while it lives."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        what = "The forkserver, which starts and watches the ranks,"
        again = "Its ranks ended with it. Run the cell again: a new one starts by itself."
        if code >= 0:
            return f"{what} has ended unexpectedly. {again} Its last output:\n{self.last_words()}"
        name = {number.value: number.name for number in signal.Signals}.get(
            -code, f"signal {-code}"
        )
        why = " (by hand, or because memory ran out)" if -code == signal.SIGKILL else ""
        return f"{what} was ended by {name}{why}. {again}"

    def kill(self) -> None:
        """End it, and with it the ranks that it has forked."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_MOMENT)

    def close(self) -> None:
        """Let go of it: it ends what it has started, then itself."""
        self._control.close()
        until = time.monotonic() + LAST_MOMENT + PATIENCE
        while time.monotonic() < until and not self.is_stopped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE_WHEN_STOPPED)
                return
        self.kill()


class Forkserver:
    """The notebook's forkserver, which is started once, and again when it has ended."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._current: _ForkserverProcess | None = None
        self._owner = os.getpid()

    def wake(self) -> None:
        """Start it if it does not run; returns at once, it warms up by itself."""
        with self._lock:
            if self._owner != os.getpid():  # a fork of the notebook: it has none of its own yet
                self._current, self._owner = None, os.getpid()
            if self._current is None or not self._current.lives:
                self._current = _ForkserverProcess()

    def send(self, message: dict[str, Any], descriptors: list[int]) -> _ForkserverProcess:
        """Hand it a job; returns the one that took it. Raises OSError where none can."""
        with self._lock:
            self.wake()
            assert self._current is not None
            try:
                self._current.send(message, descriptors)
            except OSError:  # it has died, or does not read; once more, with a new one
                self.drop(self._current)
                self.wake()
                self._current.send(message, descriptors)
            return self._current

    def drop(self, process: _ForkserverProcess) -> None:
        """End one that does not answer; the next job starts another."""
        with self._lock:
            if self._current is process:
                self._current = None
        process.kill()

    def close(self) -> None:
        with self._lock:
            if self._current is not None and self._owner == os.getpid():
                self._current.close()
            self._current = None

    @property
    def pid(self) -> int | None:
        return self._current.pid if self._current is not None else None

    @property
    def has_answered(self) -> bool:
        """True once the one that runs has started something, and so has imported torch."""
        current = self._current
        return current is not None and current.lives and current.has_answered


def _environment_of_parent() -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop(processes.VARIABLE, None)  # a notebook that runs in a rank has jobs of its own
    environment["PYTHONPATH"] = python_path(environment)
    # NumPy's BLAS starts threads on import, and a process with threads cannot be forked.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return environment


def python_path(environment: Mapping[str, str]) -> str:
    package = str(Path(__file__).parents[3])
    return os.pathsep.join(p for p in (package, environment.get("PYTHONPATH", "")) if p)


_detached: list[tuple[int, Engine]] = []  # with the process whose they are
forkserver = Forkserver()
atexit.register(forkserver.close)
_numbers = itertools.count(1)


class Folder:
    """A folder for files that must go with a job. Whoever dies, another removes it.

    The forkserver does when the job is over, the notebook when the forkserver has died; where both
    were killed, the next forkserver finds it without a lock.
    """

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) > _LONGEST_BASE:
            base = "/tmp"
        try:
            self.path = tempfile.mkdtemp(prefix=FOLDER, dir=base)
        except OSError as error:
            raise LaunchError(
                f"the ranks cannot be started: no folder can be created in {base}, the "
                f"directory for temporary files ({error.strerror}). Create it, or set TMPDIR "
                "to another and restart the kernel."
            ) from None
        try:
            self.claim = os.open(self.path, os.O_RDONLY)
        except OSError:
            self.remove()
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self.claim, fcntl.LOCK_SH)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        os.close(self.claim)


def reap_detached() -> list[str]:
    """Wait until detached jobs have ended; returns what `Engine.end` does."""
    said: list[str] = []
    with defer_signals(), contextlib.suppress(IndexError):
        while True:
            owner, engine = _detached.pop(0)
            if owner == os.getpid():
                said += engine.end(False, lambda: None)
    return said


class Engine:
    """Starts, watches and ends the processes of one set of ranks, by the forkserver."""

    restarts: bool  # whether ranks that fail may come back by themselves
    ranks_exit_on_failure: bool  # as whoever watches over them expects
    events: Channel  # `ended` (index, exit code, peak memory); closed: the forkserver is gone
    _called = "rank {}"  # what the processes are that the forkserver starts, by their index

    def __init__(self) -> None:
        self.job = f"{os.getpid()}-{next(_numbers)}"  # no other on this machine has this name
        self._note: str | None = None
        self._said: list[str] = []  # of processes of jobs before that could not be ended
        self._folder: Folder | None = None
        self._forkserver: _ForkserverProcess | None = None
        self._has_events = False
        self._unused: float | None = None  # seconds in which somebody must use what was started
        self._pids: dict[int, int] = {}  # what the forkserver has started, with its start time

    def start(self, place: Place, environment: Mapping[str, str]) -> Place:
        """Start the ranks of a place; returns it with the master that was found.

        Raises LaunchError, or OSError, where nothing can be started.
        """
        raise NotImplementedError

    def fileno(self) -> int | None:
        """Readable when ranks may have come up; None when all are there at once."""
        raise NotImplementedError

    def arrivals(self) -> list[Arrival]:
        """Return the ranks that have come up since the last call."""
        raise NotImplementedError

    def _begin(
        self, count: int, argv: list[str], environment: Mapping[str, str], ends: list[int]
    ) -> None:
        """Have the processes started; closes `ends`."""
        if self._unused is None:
            self._said = reap_detached()
        with (
            defer_signals(),
            contextlib.ExitStack() as sent,
        ):  # what was begun must be known, to be ended
            for end in ends:
                sent.callback(os.close, end)
            if self._folder is None:
                self._folder = Folder()
            ours, theirs = socket.socketpair(socket.AF_UNIX)
            sent.callback(theirs.close)
            self.events, self._has_events = Channel(ours), True
            self._forkserver = forkserver.send(
                {
                    "job": self.job,
                    "count": count,
                    "argv": argv,
                    "environment": dict(environment),
                    "directory": self._folder.path,
                    "unused": self._unused,
                },
                [theirs.fileno(), self._folder.claim, *ends],
            )

    def started(self) -> str:
        """Wait until the processes exist; returns a note for the learner, mostly empty.

        Raises LaunchError where the forkserver refuses, has died, or does not answer.
        """
        if self._note is None:
            message = self._answer()
            if message["did"] == "refused":
                raise LaunchError(message["why"])
            self._pids = dict(message["pids"])
            self._note = "; ".join(filter(None, [message["note"], *self._said]))
        return self._note

    def _answer(self) -> dict[str, Any]:
        assert self._forkserver is not None
        patience = PATIENCE if self._forkserver.has_answered else _PATIENCE_AT_FIRST
        try:
            message = self._hear(patience, lambda: None)
        except (EOFError, NoMessage):
            raise LaunchError(
                self._forkserver.why_ended()
                or f"the forkserver refused. Its last output:\n{self._forkserver.last_words()}"
            ) from None
        if message is None:
            why = self._give_up()
            raise LaunchError(f"{why} Run the cell again: a new one starts by itself.")
        self._forkserver.has_answered = True
        return message

    def _hear(self, patience: float, meanwhile: Callable[[], None]) -> dict[str, Any] | None:
        """Return the forkserver's next message; None when it does not answer in time, or cannot."""
        assert self._forkserver is not None
        until = time.monotonic() + patience
        stopped_since: float | None = None
        while True:
            try:
                return self.events.receive(TICK)[0]
            except TimeoutError:
                meanwhile()
            now = time.monotonic()
            stopped_since = (stopped_since or now) if self._forkserver.is_stopped else None
            if now > until or (stopped_since and now - stopped_since > _PATIENCE_WHEN_STOPPED):
                return None

    def _give_up(self) -> str:
        """End a forkserver that does not answer; returns what is to be said of it."""
        assert self._forkserver is not None
        why = "it had been stopped" if self._forkserver.is_stopped else "it hung"
        forkserver.drop(self._forkserver)
        return (
            f"The forkserver (pid {self._forkserver.pid}), which starts and watches the ranks, "
            f"did not answer ({why}), so it was ended, and with it all Worlds that it kept."
        )

    def why_ended(self) -> str:
        """Return what became of the forkserver; "" while it lives."""
        return self._forkserver.why_ended() if self._forkserver is not None else ""

    def detach(self) -> None:
        """Have everything ended; the next job of this process waits for that (`reap_detached`)."""
        with contextlib.suppress(OSError):
            self.events.send({"do": "end", "gracefully": False}, patience=TICK)
        _detached.append((os.getpid(), self))

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        """End everything that was started, in bounded time.

        gracefully: who handles SIGTERM may end by itself before. meanwhile: called now and then.
        Returns a sentence for each process that could not be ended, and for what was lost.
        """
        if self._folder is None:
            return []
        folder, self._folder = self._folder, None
        said: list[str] = []
        if self._forkserver is not None:
            said = self._end_processes(gracefully, meanwhile)
        if self._has_events:
            self.events.close()  # which says it to a forkserver that has the job, too
        folder.remove()
        folder.close()
        return said

    def _end_processes(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        assert self._forkserver is not None
        patience = LAST_MOMENT + PATIENCE + (GRACE if gracefully else 0)
        why = ""
        try:
            with contextlib.suppress(OSError):
                self.events.send({"do": "end", "gracefully": gracefully}, patience=TICK)
            while (message := self._hear(patience, meanwhile)) is not None:
                if message["did"] == "over":
                    return [
                        self._sentence(index, pid, why) for index, pid, why in message["survivors"]
                    ]
            why = self._give_up()
        except (EOFError, NoMessage, OSError):
            why = self.why_ended()
        return [*([why] if why else []), *self._kill_all()]

    def _kill_all(self) -> list[str]:
        """Find what is left of the job without a forkserver, and end it.

        A chain of forks can pass by a look at all processes, so several must find nobody.
        """
        reaper = processes.Reaper(self.job, self._pids)
        until = time.monotonic() + LAST_MOMENT
        found_nobody = 0
        while found_nobody < _LOOKS:
            alive = reaper.kill_once(processes.everybody(), own=False)
            if alive and time.monotonic() > until:
                index = {pid: at for at, pid in enumerate(self._pids)}
                return [
                    self._sentence(index.get(pid, -1), pid, processes.why_alive(pid))
                    for pid in sorted(alive)
                ]
            found_nobody = 0 if alive else found_nobody + 1
            time.sleep(TICK / 5 if alive else 0)
        return []

    def _sentence(self, index: int, pid: int, why: str) -> str:
        who = "a process that the ranks started" if index < 0 else self._called.format(index)
        return f"{who} (pid {pid}) could not be ended: {why}"
