"""The slices of a trace: what host and device did."""

from __future__ import annotations

from typing import Any

from ..trace import Kind, Slice
from .costs import UNKNOWN
from .kernels import About
from .schedule import DeviceTask


class Profiler:
    """Notes what a device and its host do. rank: whose they are, in traces."""

    def __init__(self, rank: int) -> None:
        self.slices: list[Slice] = []
        self._rank = rank
        self._busy = self._guessed = 0.0  # ns of operations so far, and of those without a model

    def host(self, name: str, start: float, end: float, kind: Kind, correlation: int = 0) -> None:
        more = {"correlation": correlation} if correlation else {}
        self._note("host", name, start, end, kind, **more)

    def ended(self, task: DeviceTask) -> None:
        about: About = task.about
        assert task.start is not None and task.end is not None
        self._busy += task.end - task.start
        self._guessed += (task.end - task.start) * task.name.endswith(UNKNOWN)
        self._note(
            f"stream {task.stream}", task.name, task.start, task.end, about.kind,
            stream=task.stream, correlation=about.correlation, collective=about.collective,
        )  # fmt: skip

    def waited(self, stream: int, start: float, end: float) -> None:
        name = "waits for an event"
        self._note(f"stream {stream}", name, start, end, Kind.WAIT, stream=stream)

    @property
    def guessed(self) -> float:
        """The share of the operations' time that is only estimated from bytes."""
        return self._guessed / self._busy if self._busy else 0.0

    def _note(
        self, lane: str, name: str, start: float, end: float, kind: Kind, **more: Any
    ) -> None:
        begin = round(start)
        self.slices.append(Slice(self._rank, lane, name, begin, round(end) - begin, kind, **more))
