"""Fresh ranks, forked from the warm parent."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..channel import Channel, anonymous_file, deaf
from ..place import Place
from .base import Arrival, torchrun_environment
from .supervised import Supervised


class Warm(Supervised):
    """Fresh ranks, forked from the warm parent."""

    name = "warm"
    restarts = False
    ranks_exit_on_failure = False

    def __init__(self) -> None:
        super().__init__()
        self._arrivals: list[Arrival] = []

    def start(self, place: Place, environment: Mapping[str, str]) -> Place:
        with deaf():  # half a start could not be ended
            place = self._fork(place, environment)
        self.started()
        return place

    def _fork(self, place: Place, environment: Mapping[str, str]) -> Place:
        theirs: list[socket.socket] = []
        try:
            with contextlib.ExitStack() as stack:
                listener = None
                if place.node == 0:
                    listener = stack.enter_context(socket.socket())
                    listener.bind(place.master)
                    listener.listen(1024)
                    place = replace(place, master=listener.getsockname()[:2])
                for rank in range(place.first, place.first + place.count):
                    ours, end = socket.socketpair(socket.AF_UNIX)
                    theirs.append(end)
                    variables = torchrun_environment(rank, place)
                    self._arrivals.append(Arrival(rank, 0, Channel(ours), variables, {}))
                if listener is not None:
                    self._arrivals[0].descriptors["listener"] = listener.detach()
            if place.nodes == 1 and hasattr(os, "memfd_create"):  # else they meet at the store, too
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
        self._begin(place.count, [], environment, [end.detach() for end in theirs])
        return place

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
