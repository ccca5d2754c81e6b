"""The capture of a graph: what its streams are told, and in what order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

from .happens_before import Clock, Order
from .kernels import Extent, Kernel, Use
from .memory import Block, Pool
from .schedule import Marker

_CAPTURES = itertools.count(1)


class Captured(NamedTuple):
    """A thing that a stream was told while it was captured: a kernel, or a marker to record or wait
    for."""

    stream: int
    kernel: Kernel | None = None
    record: Marker | None = None
    wait: Marker | None = None


class Capture:
    """The things that the streams of a graph are told while it is captured, and their order."""

    def __init__(self, pool: Pool, origin: int) -> None:
        self.pool, self.origin, self.number = pool, origin, next(_CAPTURES)
        self.streams: set[int] = {origin}
        self.items: list[Captured] = []
        self.order = Order()
        self.kept: list[Block] = []  # freed, but used on other streams of the capture
        self.broken = ""
        self._recorded: dict[Marker, Clock] = {}

    def launch(self, stream: int, kernel: Kernel) -> None:
        self.order.launch(stream)
        uses = [
            Use(Extent(one.history, one.owner, one.base, one.nbytes, one.segment), view, writes)
            for one, view, writes in kernel.uses
        ]
        self.items.append(Captured(stream, kernel=replace(kernel, uses=uses)))

    def record(self, stream: int) -> tuple[Marker, Clock]:
        marker = Marker()
        self._recorded[marker] = self.order.record(stream)
        self.items.append(Captured(stream, record=marker))
        return marker, self._recorded[marker]

    def wait(self, stream: int, marker: Marker) -> bool:
        """A wait for what was captured makes a stream part of the graph; False for other waits."""
        if marker not in self._recorded:
            if stream in self.streams:
                self.broken = "a wait for an event that was recorded outside of the capture"
                raise RuntimeError(
                    "CUDA error: dependency created on uncaptured work in another stream"
                )
            return False
        if stream not in self.streams:
            self.streams.add(stream)
            self.order.launch(stream)
        self.order.wait(stream, self._recorded[marker])
        self.items.append(Captured(stream, wait=marker))
        return True

    def check(self) -> None:
        """Raises RuntimeError as the end of a capture does."""
        if self.broken:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture "
                f"({self.broken})"
            )
        joined = self.order.clock(self.origin)
        for stream in sorted(self.streams):
            if not self.order.is_before(stream, self.order.clock(stream)[stream], joined):
                raise RuntimeError(
                    f"CUDA error: capturing stream has unjoined work: stream {stream} was given "
                    "work that the capturing stream does not wait for"
                )
