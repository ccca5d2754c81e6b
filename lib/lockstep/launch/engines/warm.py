"""Fresh ranks, forked from the forkserver."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..channel import Channel, NoMessage, anonymous_file
from ..errors import LaunchError
from ..interrupts import defer_signals
from ..place import Place
from .base import Arrival, torchrun_environment
from .supervised import PATIENCE, TICK, Engine, reap_detached


class Warm(Engine):
    """Fresh ranks, forked from the forkserver."""

    restarts = False
    ranks_exit_on_failure = False

    def __init__(self, unused: float | None = None) -> None:
        """unused: seconds after which ranks that are kept in reserve end; None: no reserve."""
        super().__init__()
        self._unused = unused
        self._arrivals: list[Arrival] = []

    def start(self, place: Place, environment: Mapping[str, str]) -> Place:
        with defer_signals():  # half a start could not be ended
            return self._fork(place, environment)

    def use(self) -> bool:
        """Say that ranks in reserve have a job now; False where that cannot be any more."""
        try:
            self.started()
            self._said = reap_detached()
            self._note = "; ".join(filter(None, [self._note, *self._said]))
            self.events.send({"do": "use"}, patience=TICK)
            answer = self._hear(PATIENCE, lambda: None)
        except (EOFError, NoMessage, OSError, LaunchError):
            return False
        if answer is None:
            self._give_up()
        return answer is not None and answer["did"] == "used"

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
        pids = self.pids or [0] * len(arrivals)  # not known yet
        return [replace(arrival, pid=pid) for arrival, pid in zip(arrivals, pids, strict=True)]

    def let_go(self) -> None:
        """Leave ranks in reserve to the forkserver, which ends them."""
        if self._folder is not None:
            folder, self._folder = self._folder, None
            self.events.close()
            folder.remove()
            folder.close()

    @property
    def pids(self) -> Sequence[int]:
        """The processes of its ranks; none before `started`."""
        return list(self._pids)

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        for arrival in self._arrivals:
            arrival.close()
        self._arrivals = []
        return super().end(gracefully, meanwhile)
