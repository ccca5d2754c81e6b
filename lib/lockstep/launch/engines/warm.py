"""Fresh ranks, forked from the warm parent."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..channel import Channel, anonymous_file, deaf
from .base import Arrival, torchrun_environment
from .supervised import Supervised


class Warm(Supervised):
    """Fresh ranks, forked from the warm parent."""

    name = "warm"
    restarts = False

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: list[Arrival] = []

    def start(self, nproc: int, environment: Mapping[str, str]) -> None:
        with deaf():  # half a start could not be ended
            self._fork(nproc, environment)
        self.started()

    def _fork(self, nproc: int, environment: Mapping[str, str]) -> None:
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
