"""Ranks under PyTorch's own elastic agent, as `torchrun` starts them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping

from .. import processes
from ..channel import Channel, NoMessage
from ..interrupts import defer_signals
from ..place import Place
from .base import Arrival
from .supervised import TICK, Engine, Folder, python_path

_AGENT = "lockstep.launch.worker.elastic"  # the module that its process runs


class Elastic(Engine):
    """Ranks under `torch.distributed.launcher`'s elastic agent, as torchrun starts them."""

    ranks_exit_on_failure = True
    _called = "the elastic agent"

    def __init__(self, max_restarts: int = 0):
        super().__init__()
        self._max_restarts = max_restarts
        self.restarts = max_restarts > 0
        self._listener: socket.socket | None = None

    def start(self, place: Place, environment: Mapping[str, str]) -> Place:
        # Ranks that an agent starts inherit nothing, so they find us by a path in a folder that
        # is ours alone (0700).
        self._nproc = place.count
        with defer_signals():
            self._folder = Folder()
        address = os.path.join(self._folder.path, "channel")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        options = {
            "nproc_per_node": place.count,
            "max_restarts": self._max_restarts,
            "directory": self._folder.path,
        }
        self._begin(
            1,
            [sys.executable, "-m", _AGENT, json.dumps(options)],
            {
                **environment,
                "PYTHONPATH": python_path(environment),
                "LOCKSTEP_CHANNEL": address,
                processes.VARIABLE: self.job,
            },
            [],
        )
        self.started()
        return place

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
                    hello = channel.receive(TICK)[0]
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
