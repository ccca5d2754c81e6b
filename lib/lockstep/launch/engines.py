"""What starts the ranks. One small interface: start, tell what came up and what ended, kill.

`Warm` forks them from the warm parent; `Elastic` runs them under PyTorch's own elastic agent, as
`torchrun` does. Either way the warm parent watches over the processes, so that nothing is left
when the job, the notebook's kernel, or the machine's patience ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .channel import Channel, anonymous_file, deaf
from .errors import LaunchError


@dataclass(frozen=True)
class Arrival:
    """A rank that has come up and waits to be told what to do."""

    rank: int
    channel: Channel
    environment: dict[str, str]  # what torchrun would have set for it
    # Descriptors by name, which whoever takes the arrival closes: "file", an anonymous file in
    # which the ranks meet to make the default group; "listener", a bound socket on which this rank
    # serves the store of a job that makes its group by itself.
    descriptors: dict[str, int]


class Engine(Protocol):
    """Starts and ends the processes of one set of ranks."""

    name: str
    restarts: bool  # whether ranks that fail may come back by themselves
    events: Channel  # `started`, `ended` (index, exit code, peak memory); closed: all are gone

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        """Raises LaunchError where nothing can be started."""

    def started(self) -> str:
        """Wait until processes exist; returns a note for the learner, mostly empty."""

    def fileno(self) -> int | None:
        """Readable when ranks may have come up; None when all are there at once."""

    def arrivals(self) -> list[Arrival]:
        """The ranks that have come up since the last call."""

    def kill(self) -> None:
        """End everything that was started; returns when it is gone."""


class _WarmParent:
    """The notebook's handle on its warm parent, which is started once and restarted if it dies."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._words = -1

    def wake(self) -> None:
        """Start it if it does not run; returns at once, it warms up by itself."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._control is not None:
                self._control.close()
                os.close(self._words)
            ours, theirs = socket.socketpair(socket.AF_UNIX)
            self._words = anonymous_file("parent")
            package = str(Path(__file__).parents[2])
            environment = dict(os.environ)
            paths = [package, environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
            # NumPy's BLAS starts threads on import, and a process with threads cannot be forked.
            environment["OPENBLAS_NUM_THREADS"] = "1"
            environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.parent", str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                start_new_session=True,
                cwd="/",  # it must not depend on a directory that may go
            )
            theirs.close()
            self._control = Channel(ours)

    def send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with deaf():
            self.wake()
            assert self._control is not None
            try:
                with self._lock:
                    self._control.send(message, descriptors)
            except OSError:  # it has died; once more, with a new one
                self.wake()
                with self._lock:
                    self._control.send(message, descriptors)

    def last_words(self) -> str:
        """What it printed, which is something only when it could not go on."""
        size = os.fstat(self._words).st_size
        return os.pread(self._words, size, 0).decode(errors="replace").strip()

    def close(self) -> None:
        with self._lock:
            if self._process is not None and self._control is not None:
                self._control.close()
                self._control = None
                self._process.wait()
                os.close(self._words)
                self._process = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None


parent = _WarmParent()
atexit.register(parent.close)


class _Supervised:
    """What both engines share: processes that the warm parent starts, watches and ends."""

    def __init__(self) -> None:
        self._note: str | None = None
        self._raw: socket.socket | None = None

    def _begin(
        self,
        count: int,
        argv: list[str],
        environment: Mapping[str, str],
        ends: list[int],
        directory: str | None = None,
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        self._raw = ours
        self.events = Channel(ours)
        try:
            parent.send(
                {
                    "count": count,
                    "argv": argv,
                    "environment": dict(environment),
                    "directory": directory,
                },
                [theirs.fileno(), *ends],
            )
        finally:
            theirs.close()
            for end in ends:
                os.close(end)

    def started(self) -> str:
        """Wait until the processes exist; returns a note for the learner, mostly empty.

        Raises LaunchError where the warm parent has died instead.
        """
        if self._note is None:
            try:
                message, _ = self.events.receive()
            except EOFError:
                raise LaunchError(
                    "the process that starts the ranks has died. What it said last:\n"
                    + (parent.last_words() or "(nothing)")
                ) from None
            self._note = message["note"]
        return self._note

    def kill(self) -> None:
        raw, self._raw = self._raw, None
        if raw is None:
            return
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(4096):  # until the other end is closed: then nothing is left
                pass
        raw.close()


class Warm(_Supervised):
    """Fresh ranks, forked from the warm parent."""

    name = "warm"
    restarts = False

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: list[Arrival] = []

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX) for _ in range(nproc)]
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        port = listener.getsockname()[1]
        self._arrivals = [
            Arrival(rank, Channel(ours), torchrun_environment(rank, nproc, port), {})
            for rank, (ours, _) in enumerate(pairs)
        ]
        self._arrivals[0].descriptors["listener"] = listener.detach()
        if hasattr(os, "memfd_create"):  # else they meet at the store, too
            file = anonymous_file("rendezvous")
            for arrival in self._arrivals:
                arrival.descriptors["file"] = os.dup(file)
            os.close(file)
        self._begin(nproc, [], environment, [theirs.detach() for _, theirs in pairs])
        self.started()

    def fileno(self) -> None:
        return None

    def arrivals(self) -> list[Arrival]:
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def kill(self) -> None:
        for arrival in self._arrivals:
            arrival.channel.close()
            for descriptor in arrival.descriptors.values():
                os.close(descriptor)
        self._arrivals = []
        super().kill()


class Elastic(_Supervised):
    """Ranks under `torch.distributed.launcher`'s elastic agent, as torchrun starts them."""

    name = "torchrun"

    def __init__(self, max_restarts: int = 0):
        super().__init__()
        self._max_restarts = max_restarts
        self.restarts = max_restarts > 0
        self._listener = socket.socket(socket.AF_UNIX)

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        # Ranks that an agent starts inherit nothing, so they find us by a path. The directory is
        # ours alone (0700), and the warm parent removes it with the job.
        self._directory = tempfile.mkdtemp(prefix="lockstep-")
        address = os.path.join(self._directory, "channel")
        self._listener.bind(address)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        options = {
            "nproc_per_node": nproc,
            "max_restarts": self._max_restarts,
            "directory": self._directory,
        }
        argv = [sys.executable, "-m", f"{__package__}.elastic", json.dumps(options)]
        package = str(Path(__file__).parents[2])
        paths = [package, environment.get("PYTHONPATH", "")]
        self._begin(
            1,
            argv,
            {
                **environment,
                "PYTHONPATH": os.pathsep.join(p for p in paths if p),
                "LOCKSTEP_CHANNEL": address,
            },
            [],
            self._directory,
        )
        self.started()

    def fileno(self) -> int:
        return self._listener.fileno()

    def arrivals(self) -> list[Arrival]:
        arrivals = []
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(True)
                channel = Channel(connection)
                hello, _ = channel.receive()
                environment = hello["environment"]
                arrivals.append(Arrival(int(environment["RANK"]), channel, environment, {}))
        return arrivals

    def kill(self) -> None:
        self._listener.close()
        super().kill()


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
