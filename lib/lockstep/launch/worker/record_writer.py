"""Writes entries of the call record into memory that the notebook maps, too.

The layout of that memory, and its reader, are in `calls/record.py`. What this module uses of Python
it takes when it is imported: a program may put something else into `os`.
"""

from __future__ import annotations

import math
import threading
from builtins import len, repr
from collections.abc import Callable
from os import getpid
from time import perf_counter
from typing import Any, NamedTuple
from zlib import crc32

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
    line_of,
    offset_of,
    section_size,
)

# A sequence in which calls are counted: the group's number, and as `line_of`.
_CountedLine = tuple[int, tuple[str, int | None, int]]
_pack = msgspec.msgpack.Encoder().encode


class CallKind(NamedTuple):
    """What calls that are alike have in common.

    counter: how many calls there were in their sequence, in a list of one. body: what stands in
    their entries. checksum, said: of a group, in a list of one, and what they add to it.
    """

    counter: list[int]
    body: bytes
    checksum: list[int]
    said: bytes


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
        self._counts: dict[_CountedLine, list[int]] = {}
        self._checksums: dict[tuple[str, tuple[int, ...]], list[int]] = {}  # by name and ranks
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
                    self._append(math.nan, GROUP, 0, _pack(_introduction(*known)))
        return known

    def kind(
        self,
        operation: str,
        group: int,
        shapes: tuple[tuple[int, ...], ...] = (),
        dtype: str = "",
        size: int = 0,
        peer: int | None = None,
        tag: int = 0,
        asynchronous: bool = False,
        *,
        batched: bool = False,
        queued: bool = False,
        summed: tuple[Group, tuple[Any, ...]] | None = None,
    ) -> CallKind:
        """Return what such calls have in common.

        summed: a group, and what all its ranks must do alike, which is compared at the end.
        """
        more = (dtype, size, peer, tag, asynchronous, batched, queued)
        body = _pack((operation, group, shapes, *more))
        if len(body) > self._size // 4:  # thousands of tensors at once
            body = _pack((operation, group, (), *more))
        counter = self._counts.setdefault((group, line_of(operation, peer, tag)), [0])
        if summed is None:
            return CallKind(counter, body, [0], b"")
        return CallKind(counter, body, self._checksum(summed[0]), repr(summed[1]).encode())

    def _enter(self, kind: CallKind, at: float | None = None, number: int | None = None) -> int:
        """Append a call; number: in its sequence, None: the next one."""
        counter, body, checksum, said = kind
        with self._lock:
            if number is None:
                number = counter[0]
            counter[0] = number + 1
            checksum[0] = crc32(said, checksum[0])
            return self._append(perf_counter() if at is None else at, CALL, number, body)

    def sum_up(self, group: Group, *call: Any) -> None:
        """Keep a checksum of what all ranks of a group must do alike, to compare at the end."""
        checksum = self._checksum(group)
        checksum[0] = crc32(repr(call).encode(), checksum[0])

    def _checksum(self, group: Group) -> list[int]:
        return self._checksums.setdefault((group.name, group.ranks), [0])

    @property
    def digest(self) -> list[tuple[str, tuple[int, ...], int]]:
        """The checksum of each group: its name, its ranks, the sum."""
        return [(*group, checksum[0]) for group, checksum in self._checksums.items()]

    def _append(self, start: float, kind: int, number: int, data: bytes) -> int:
        if self._is_writing:  # a signal's handler, or a `__del__`, in the middle of this
            self.doubt()
            return 0
        self._is_writing = True
        try:
            if self._used + ENTRY.size + len(data) > self._size:
                self._next_section()
            return self._write(start, kind, number, data)
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
            self._write(math.nan, GROUP, 0, _pack(_introduction(number, group)))
        for (number, line), count in self._counts.items():
            self._write(math.nan, COUNT, 0, _pack((number, line, count[0])))

    def _write(self, start: float, kind: int, number: int, data: bytes) -> int:
        memory, length = self._memory, len(data)
        place = self._section * self._size + self._used
        offset = offset_of(place, self._size)
        body = offset + ENTRY.size
        ENTRY.pack_into(memory, offset, start, math.nan, number, length, kind, 0)
        memory[body : body + length] = data
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
