"""What engines have in common with those who use them: ranks that come up, and their variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

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
