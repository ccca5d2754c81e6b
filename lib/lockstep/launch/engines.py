"""What starts the ranks. One small interface: start, tell what came up and what ended, kill.

`Warm` forks them from the warm parent; `Elastic` runs them under PyTorch's own elastic agent, as
`torchrun` does. Either way the warm parent watches over the processes, so that nothing is left
when the job, the notebook's kernel, or the machine's patience ends. The notebook waits for nobody
for ever: where the parent does not answer, or is gone, it ends the ranks by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import json
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from . import processes
from .channel import Channel, NoMessage, anonymous_file, deaf
from .errors import LaunchError
from .processes import FOLDER, GRACE, LAST_MOMENT

# Seconds in which the warm parent must have answered, on a busy machine, too.
_PATIENCE = 15.0
_PATIENCE_AT_FIRST = 300.0  # it imports torch, which takes long from a cold or a distant disk
_PATIENCE_WHEN_STOPPED = 1.0
_LOOK = 0.1
_MOST_WORDS = 4000  # bytes
# Unix sockets take 107 bytes, and multiprocessing adds its own to the folder of a job.
_LONGEST_BASE = 107 - len(f"/{FOLDER}12345678/listener-12345678")


@dataclass(frozen=True)
class Arrival:
    """A rank that has come up and waits to be told what to do."""

    rank: int
    pid: int
    channel: Channel
    environment: dict[str, str]  # what torchrun would have set for it
    # Descriptors by name, which whoever takes the arrival closes: "file", an anonymous file in
    # which the ranks meet to make the default group; "listener", a bound socket on which this rank
    # serves the store of a job that makes its group by itself.
    descriptors: dict[str, int]

    def close(self) -> None:
        self.channel.close()
        for descriptor in self.descriptors.values():
            os.close(descriptor)


class Engine(Protocol):
    """Starts and ends the processes of one set of ranks."""

    name: str
    restarts: bool  # whether ranks that fail may come back by themselves
    job: str  # a name that no other job on this machine has; it marks the processes
    events: Channel  # `ended` (index, exit code, peak memory); closed: the warm parent is gone

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        """Raises LaunchError, or OSError, where nothing can be started."""

    def started(self) -> str:
        """Wait until processes exist; returns a note for the learner, mostly empty."""

    def fileno(self) -> int | None:
        """Readable when ranks may have come up; None when all are there at once."""

    def arrivals(self) -> list[Arrival]:
        """The ranks that have come up since the last call."""

    def fate(self) -> str:
        """What became of the process that watches over the ranks; "" while it lives."""

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        """End everything that was started, in bounded time.

        gracefully: who handles SIGTERM may end by itself before. meanwhile: called now and then.
        Returns a sentence for each process that could not be ended, and for what was lost.
        """


class _Parent:
    """One warm parent, from its start to its end."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair(socket.AF_UNIX)
            stack.callback(theirs.close)
            failed = stack.enter_context(contextlib.ExitStack())
            failed.callback(ours.close)
            self._words = open(anonymous_file("parent"), "r+b", buffering=0)  # noqa: SIM115
            failed.callback(self._words.close)
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"{__package__}.parent"),
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
        """Whether it cannot act: somebody has stopped it (SIGSTOP, or a debugger)."""
        seen = processes.status(self.pid)
        return seen is not None and seen.state in "Tt"

    def send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            self._control.send(message, descriptors, patience=_PATIENCE)

    def last_words(self) -> str:
        """What it printed last, which is something only when it could not go on."""
        size = os.fstat(self._words.fileno()).st_size
        words = os.pread(self._words.fileno(), _MOST_WORDS, max(size - _MOST_WORDS, 0))
        return words.decode(errors="replace").strip() or "(nothing)"

    def fate(self) -> str:
        """How it ended, for people; "" while it lives."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        what = "The warm parent, which starts and watches the ranks,"
        again = "Its ranks went with it. Run the cell again: a new one starts by itself."
        if code >= 0:
            return f"{what} has ended by itself. {again} What it said last:\n{self.last_words()}"
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
        until = time.monotonic() + LAST_MOMENT + _PATIENCE
        while time.monotonic() < until and not self.is_stopped:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE_WHEN_STOPPED)
                return
        self.kill()


class WarmParent:
    """The notebook's warm parent, which is started once, and again when it has ended."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._current: _Parent | None = None
        self._owner = os.getpid()

    def wake(self) -> None:
        """Start it if it does not run; returns at once, it warms up by itself."""
        with self._lock:
            if self._owner != os.getpid():  # a fork of the notebook: it has none of its own yet
                self._current, self._owner = None, os.getpid()
            if self._current is None or not self._current.lives:
                self._current = _Parent()

    def send(self, message: dict[str, Any], descriptors: list[int]) -> _Parent:
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

    def drop(self, parent: _Parent) -> None:
        """End one that does not answer; the next job starts another."""
        with self._lock:
            if self._current is parent:
                self._current = None
        parent.kill()

    def close(self) -> None:
        with self._lock:
            if self._current is not None and self._owner == os.getpid():
                self._current.close()
            self._current = None

    @property
    def pid(self) -> int | None:
        return self._current.pid if self._current is not None else None


def _environment_of_parent() -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop(processes.VARIABLE, None)  # a notebook that runs in a rank has jobs of its own
    environment["PYTHONPATH"] = _python_path(environment)
    # NumPy's BLAS starts threads on import, and a process with threads cannot be forked.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    return environment


def _python_path(environment: Mapping[str, str]) -> str:
    package = str(Path(__file__).parents[2])
    return os.pathsep.join(p for p in (package, environment.get("PYTHONPATH", "")) if p)


parent = WarmParent()
atexit.register(parent.close)
_numbers = itertools.count(1)


class _Folder:
    """A folder for files that must go with a job. Whoever dies, another removes it.

    The warm parent does when the job is over, the notebook when the parent has died; where both
    were killed, the next parent finds it without a lock.
    """

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(base) > _LONGEST_BASE:
            base = "/tmp"
        try:
            self.path = tempfile.mkdtemp(prefix=FOLDER, dir=base)
        except OSError as error:
            raise LaunchError(
                f"the ranks cannot be started: no folder can be made in {base}, the place for "
                f"temporary files ({error.strerror}). Make it, or let TMPDIR name another and "
                "restart the kernel."
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


class _Supervised:
    """What both engines share: processes that the warm parent starts, watches and ends."""

    _called = "rank {}"  # what the processes are that the warm parent starts, by their index

    def __init__(self) -> None:
        self.job = f"{os.getpid()}-{next(_numbers)}"
        self._note: str | None = None
        self._folder: _Folder | None = None
        self._parent: _Parent | None = None
        self._pids: dict[int, int] = {}  # what the warm parent has started, with its start time

    def _begin(
        self, count: int, argv: list[str], environment: Mapping[str, str], ends: list[int]
    ) -> None:
        """Have the processes started; closes `ends`."""
        with deaf(), contextlib.ExitStack() as sent:  # what was begun must be known, to be ended
            for end in ends:
                sent.callback(os.close, end)
            if self._folder is None:
                self._folder = _Folder()
            ours, theirs = socket.socketpair(socket.AF_UNIX)
            sent.callback(theirs.close)
            self.events = Channel(ours)
            self._parent = parent.send(
                {
                    "job": self.job,
                    "count": count,
                    "argv": argv,
                    "environment": dict(environment),
                    "directory": self._folder.path,
                },
                [theirs.fileno(), self._folder.claim, *ends],
            )

    def started(self) -> str:
        """Wait until the processes exist; returns a note for the learner, mostly empty.

        Raises LaunchError where the warm parent refuses, has died, or does not answer.
        """
        if self._note is None:
            message = self._answer()
            if message["did"] == "refused":
                raise LaunchError(message["why"])
            self._pids = dict(message["pids"])
            self._note = message["note"]
        return self._note

    def _answer(self) -> dict[str, Any]:
        assert self._parent is not None
        patience = _PATIENCE if self._parent.has_answered else _PATIENCE_AT_FIRST
        try:
            message = self._hear(patience, lambda: None)
        except (EOFError, NoMessage):
            raise LaunchError(
                self._parent.fate()
                or f"the warm parent refuses. What it said last:\n{self._parent.last_words()}"
            ) from None
        if message is None:
            why = self._give_up()
            raise LaunchError(f"{why} Run the cell again: a new one starts by itself.")
        self._parent.has_answered = True
        return message

    def _hear(self, patience: float, meanwhile: Callable[[], None]) -> dict[str, Any] | None:
        """The parent's next message; None when it does not answer in time, or cannot."""
        assert self._parent is not None
        until = time.monotonic() + patience
        stopped_since: float | None = None
        while True:
            try:
                return self.events.receive(_LOOK)[0]
            except TimeoutError:
                meanwhile()
            now = time.monotonic()
            stopped_since = (stopped_since or now) if self._parent.is_stopped else None
            if now > until or (stopped_since and now - stopped_since > _PATIENCE_WHEN_STOPPED):
                return None

    def _give_up(self) -> str:
        """End a parent that does not answer; returns what is to be said of it."""
        assert self._parent is not None
        why = "it had been stopped" if self._parent.is_stopped else "it hung"
        parent.drop(self._parent)
        return (
            f"The warm parent (pid {self._parent.pid}), which starts and watches the ranks, did "
            f"not answer ({why}), so it was ended, and with it all Worlds that it kept."
        )

    def fate(self) -> str:
        return self._parent.fate() if self._parent is not None else ""

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        if self._folder is None:
            return []
        folder, self._folder = self._folder, None
        said: list[str] = []
        if self._parent is not None:
            said = self._end_processes(gracefully, meanwhile)
            self.events.close()
        folder.remove()
        folder.close()
        return said

    def _end_processes(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        assert self._parent is not None
        patience = LAST_MOMENT + _PATIENCE + (GRACE if gracefully else 0)
        why = ""
        try:
            with contextlib.suppress(OSError):
                self.events.send({"do": "end", "gracefully": gracefully}, patience=_LOOK)
            while (message := self._hear(patience, meanwhile)) is not None:
                if message["did"] == "over":
                    return [
                        self._sentence(index, pid, why) for index, pid, why in message["survivors"]
                    ]
            why = self._give_up()
        except (EOFError, NoMessage, OSError):
            why = self.fate()
        return [*([why] if why else []), *self._hunt()]

    def _hunt(self) -> list[str]:
        """Without a parent: find what is left of the job, and end it."""
        hunt = processes.Hunt(self.job, self._pids)
        until = time.monotonic() + LAST_MOMENT
        while alive := hunt.strike(processes.everybody(), own=False):
            if time.monotonic() > until:
                index = {pid: at for at, pid in enumerate(self._pids)}
                return [
                    self._sentence(index.get(pid, -1), pid, processes.why_alive(pid))
                    for pid in sorted(alive)
                ]
            time.sleep(_LOOK / 5)
        return []

    def _sentence(self, index: int, pid: int, why: str) -> str:
        who = "a process that the ranks started" if index < 0 else self._called.format(index)
        return f"{who} (pid {pid}) could not be ended: {why}"


class Warm(_Supervised):
    """Fresh ranks, forked from the warm parent."""

    name = "warm"
    restarts = False

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: list[Arrival] = []

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        theirs: list[socket.socket] = []
        try:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen(1024)
                port = listener.getsockname()[1]
                for rank in range(nproc):
                    ours, end = socket.socketpair(socket.AF_UNIX)
                    theirs.append(end)
                    variables = torchrun_environment(rank, nproc, port)
                    self._arrivals.append(Arrival(rank, 0, Channel(ours), variables, {}))
                self._arrivals[0].descriptors["listener"] = listener.detach()
            if hasattr(os, "memfd_create"):  # else they meet at the store, too
                file = anonymous_file("rendezvous")
                try:
                    for arrival in self._arrivals:
                        arrival.descriptors["file"] = os.dup(file)
                finally:
                    os.close(file)
        except OSError:
            for end in theirs:
                end.close()
            raise
        self._begin(nproc, [], environment, [end.detach() for end in theirs])
        self.started()

    def fileno(self) -> None:
        return None

    def arrivals(self) -> list[Arrival]:
        arrivals, self._arrivals = self._arrivals, []
        return [
            replace(arrival, pid=pid) for arrival, pid in zip(arrivals, self._pids, strict=False)
        ]

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        for arrival in self._arrivals:
            arrival.close()
        self._arrivals = []
        return super().end(gracefully, meanwhile)


class Elastic(_Supervised):
    """Ranks under `torch.distributed.launcher`'s elastic agent, as torchrun starts them."""

    name = "torchrun"
    _called = "the elastic agent"

    def __init__(self, max_restarts: int = 0):
        super().__init__()
        self._max_restarts = max_restarts
        self.restarts = max_restarts > 0
        self._listener: socket.socket | None = None

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        # Ranks that an agent starts inherit nothing, so they find us by a path in a folder that
        # is ours alone (0700).
        self._nproc = nproc
        self._folder = _Folder()
        address = os.path.join(self._folder.path, "channel")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        options = {
            "nproc_per_node": nproc,
            "max_restarts": self._max_restarts,
            "directory": self._folder.path,
        }
        self._begin(
            1,
            [sys.executable, "-m", f"{__package__}.elastic", json.dumps(options)],
            {
                **environment,
                "PYTHONPATH": _python_path(environment),
                "LOCKSTEP_CHANNEL": address,
                processes.VARIABLE: self.job,
            },
            [],
        )
        self.started()

    def fileno(self) -> int:
        assert self._listener is not None
        return self._listener.fileno()

    def arrivals(self) -> list[Arrival]:
        assert self._listener is not None
        arrivals = []
        with contextlib.suppress(BlockingIOError):
            while True:
                channel = Channel(self._listener.accept()[0])
                try:
                    # A rank greets us at once. What does not is none: a program that looks around.
                    hello = channel.receive(_LOOK)[0]
                    environment, pid = hello["environment"], int(hello["pid"])
                    rank = int(environment["RANK"])
                    if not 0 <= rank < self._nproc:
                        raise ValueError(f"there is no rank {rank}")
                except (EOFError, NoMessage, OSError, LookupError, TypeError, ValueError):
                    channel.close()
                    continue
                arrivals.append(Arrival(rank, pid, channel, environment, {}))
        return arrivals

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        if self._listener is not None:
            self._listener.close()
        return super().end(gracefully, meanwhile)


def torchrun_environment(rank: int, nproc: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for a rank of one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "lockstep",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
