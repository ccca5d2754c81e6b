"""One small interface: start, tell what came up and what ended, end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..channel import Channel
from ..place import Place


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

    restarts: bool  # whether ranks that fail may come back by themselves
    ranks_exit_on_failure: bool  # as whoever watches over them expects
    job: str  # a name that no other job on this machine has; it marks the processes
    events: Channel  # `ended` (index, exit code, peak memory); closed: the forkserver is gone

    def start(self, place: Place, environment: Mapping[str, str]) -> Place:
        """Start the ranks of a place; returns it with the master that was found.

        Raises LaunchError, or OSError, where nothing can be started.
        """

    def started(self) -> str:
        """Wait until processes exist; returns a note for the learner, mostly empty."""

    def fileno(self) -> int | None:
        """Readable when ranks may have come up; None when all are there at once."""

    def arrivals(self) -> list[Arrival]:
        """The ranks that have come up since the last call."""

    def fate(self) -> str:
        """Return what became of the process that watches over the ranks; "" while it lives."""

    def detach(self) -> None:
        """Have everything ended; the next job of this process waits for that."""

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        """End everything that was started, in bounded time.

        gracefully: who handles SIGTERM may end by itself before. meanwhile: called now and then.
        Returns a sentence for each process that could not be ended, and for what was lost.
        """


def torchrun_environment(rank: int, place: Place) -> dict[str, str]:
    """The variables that torchrun sets for a rank."""
    address, port = place.master
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - place.first),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.count),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "lockstep",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": os.devnull,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
