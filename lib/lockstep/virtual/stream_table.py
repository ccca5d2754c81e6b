"""The streams of a device: their numbers, as on a GPU, and what reports call them."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .happens_before import HOST
from .race_detector import SourceLine, assigned_name, place, variable_name

DEFAULT_STREAM = 7  # what profilers call a GPU's default stream
_INSIDE = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    f"{sysconfig.get_path('stdlib')}/contextlib.py",
)


@dataclass(eq=False)
class StreamState:
    """label: what it is called in reports. name: the variable that it was assigned to."""

    number: int
    priority: int
    label: str = ""
    name: str = ""


class StreamHandle:
    """The program's handle of a stream. device: whose it is."""

    def __init__(self, device: Any, number: int) -> None:
        self._device, self._number = device, number

    def is_of(self, device: Any, number: int) -> bool:
        return self._device is device and self._number == number


class StreamTable:
    """The streams of `device`. priorities: the least and the greatest."""

    def __init__(self, device: Any, priorities: tuple[int, int]) -> None:
        self._device, self._priorities = device, priorities
        self.states: dict[int, StreamState] = {}
        self._made: dict[int, int] = {}

    def add(self, priority: int, number: int) -> StreamState:
        return self.states.setdefault(number, StreamState(number, priority))

    def take(self, priority: int, label: str = "") -> StreamState:
        """Return a stream of the pool: on a GPU there are 32 a priority, and the 33rd is the first.

        label: what it is called in reports, instead of the variable that the program has it in.
        """
        least, greatest = self._priorities
        priority = min(max(priority, greatest), least)
        turn = self._made.get(priority, 0)
        self._made[priority] = turn + 1
        state = self.add(priority, 13 + 4 * (turn % 32) + 128 * -priority)
        state.label, state.name = label, assigned_name(program_line())
        return state

    def named(self, stream: int) -> str:
        """Return what reports call a stream, or the host."""
        if stream == HOST:
            return "the host"
        if stream == DEFAULT_STREAM:
            return "the default stream"
        state = self.states[stream]
        name = "" if state.label else self._variable(stream)
        called = state.label or (f"`{name}`" if name else "")
        return f"{called} (stream {stream})" if called else f"stream {stream}"

    def coded(self, stream: int) -> str:
        """Return a stream as the program can write it."""
        if stream == DEFAULT_STREAM:
            return "cuda.default_stream()"
        return self._variable(stream) or "it"

    def _variable(self, stream: int) -> str:
        """Return where the program has a stream: as it was made, else where it is at now."""

        def wanted(value: Any) -> bool:
            return isinstance(value, StreamHandle) and value.is_of(self._device, stream)

        known = self.states.get(stream)
        return (known.name if known else "") or variable_name(sys._getframe(1), _INSIDE, wanted)


def program_line() -> SourceLine | None:
    """Return the line of the program that the host is at."""
    return place(sys._getframe(1), _INSIDE)
