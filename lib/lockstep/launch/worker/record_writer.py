"""Writes entries of the call record into memory that the notebook maps, too.

The layout of that memory, and its reader, are in `calls/record.py`. What this module uses of Python
it takes when it is imported: a program may put something else into `os`.
"""

from __future__ import annotations

import math
import threading
from builtins import len
from collections.abc import Callable
from os import getpid
from time import perf_counter
from typing import Any

import msgspec

from ...calls.record import (
    CALL,
    COUNT,
    DOUBT,
    DROPPED,
    ENTRY,
    F64,
    GROUP,
    HEADER,
    ONCE,
    SECTION,
    U64,
    USED,
    WAITED_FOR,
    Group,
    offset_of,
    section_size,
)

# A sequence in which calls are counted: the group's number, and as `line_of`.
_CountedLine = tuple[int, tuple[str, int | None, int]]
_pack = msgspec.msgpack.Encoder().encode


class RecordWriter:
    """Appends entries to shared memory, in two sections by turns, and marks them later."""

    def __init__(self, memory: Any):
        self._memory = memory
        self._lock = threading.RLock()  # what interrupts a thread may make calls, too
        self._is_writing = False
        self._size = section_size(memory)
        self._section = 0
        self._used = 1  # place 0 is nobody's
        self._held = 0  # calls in the current section
        self._held_before = 0  # and in the one before it
        self._counts: dict[_CountedLine, int] = {}
        self._groups: dict[Any, tuple[int, Group]] = {}
        self._groups_made = 0
        self.newest = 0
        self.fault = ""  # what went wrong here first, in a line
        HEADER.pack_into(memory, 0, getpid(), 0, 0, 0, 0, 0, 0, self._used, 0, 0, 0)

    def doubt(self, fault: str = "") -> None:
        """From now on nobody is to judge by this record: calls are missing, or mean another rank.

        fault: why, where that is no doing of the program's.
        """
        U64.pack_into(self._memory, DOUBT, 1)
        self.fault = self.fault or fault

    def knows(self, key: Any) -> bool:
        """Return whether a group is in the record."""
        return key in self._groups

    def group(self, key: Any, describe: Callable[[], Group]) -> tuple[int, Group]:
        known = self._groups.get(key)
        if known is None:
            described = describe()
            with self._lock:
                if (known := self._groups.get(key)) is None:  # another thread may have been first
                    known = self._groups[key] = (self._groups_made, described)
                    self._groups_made += 1
                    self._append(math.nan, GROUP, _introduction(*known))
        return known

    def _append(self, start: float, kind: int, entry: tuple[Any, ...]) -> int:
        if self._is_writing:  # a signal's handler, or a `__del__`, in the middle of this
            self.doubt()
            return 0
        self._is_writing = True
        try:
            data = _pack(entry)
            if len(data) > self._size // 4 and kind == CALL:  # thousands of tensors at once
                data = _pack((*entry[:3], (), *entry[4:]))
            if self._used + ENTRY.size + len(data) > self._size:
                self._next_section()
            return self._write(start, kind, data)
        finally:
            self._is_writing = False

    def _next_section(self) -> None:
        dropped = U64.unpack_from(self._memory, DROPPED)[0] + self._held_before
        self._section += 1
        self._held, self._held_before = 0, self._held
        self._begin_section()
        U64.pack_into(self._memory, DROPPED, dropped)

    def _begin_section(self) -> None:
        """Say in a new section what one must know to read it; it takes the oldest one's memory."""
        self._used = 0
        U64.pack_into(self._memory, USED + 8 * (self._section % 2), 0)
        U64.pack_into(self._memory, SECTION, self._section)
        for number, group in self._groups.values():
            self._write(math.nan, GROUP, _pack(_introduction(number, group)))
        for (number, line), count in self._counts.items():
            self._write(math.nan, COUNT, _pack((number, line, count)))

    def _write(self, start: float, kind: int, data: bytes) -> int:
        memory, length = self._memory, len(data)
        place = self._section * self._size + self._used
        offset = offset_of(place, self._size)
        ENTRY.pack_into(memory, offset, start, math.nan, length, kind, 0)
        memory[offset + ENTRY.size : offset + ENTRY.size + length] = data
        self._used = used = self._used + ENTRY.size + length
        # Only now does a reader see the entry.
        U64.pack_into(memory, USED + 8 * (self._section % 2), used)
        if kind == CALL:
            self.newest = place
            self._held += 1
        return place

    def end(self, place: int, at: float | None = None) -> None:
        """Write down that a call is over, unless that is known or its entry is gone."""
        section = place // self._size
        if not place or not 0 <= self._section - section <= 1:
            return
        offset = offset_of(place, self._size) + 8
        if math.isnan(F64.unpack_from(self._memory, offset)[0]):
            F64.pack_into(self._memory, offset, perf_counter() if at is None else at)

    def say_waited(self, place: int, how: int = ONCE) -> None:
        """Write down that somebody waits, or has waited, for the end of a call."""
        if place and 0 <= self._section - place // self._size <= 1:
            self._memory[offset_of(place, self._size) + WAITED_FOR] = how


def _introduction(number: int, group: Group) -> tuple[Any, ...]:
    return (number, group.name, group.ranks, group.called)
