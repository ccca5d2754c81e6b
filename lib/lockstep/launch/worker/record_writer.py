"""Writes entries of the call record into memory that the notebook maps, too.

The layout of that memory, and its reader, are in `calls/record.py`. What this module uses of Python
it takes when it is imported: a program may put something else into `os`.
"""

from __future__ import annotations

import threading
from builtins import hash, len, max, repr  # noqa: UP029
from collections.abc import Callable
from math import isnan, nan
from os import getpid
from struct import Struct
from time import perf_counter
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from ...calls.record import (
    CALL,
    COUNT,
    DOUBT,
    DROPPED,
    END,
    ENTRY,
    F64,
    GROUP,
    HEADER,
    ONCE,
    SECTION,
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
    """The part of an entry that calls which are alike have in common.

    body, layout: what stands in their entries, and the layout of those. counter: how many calls
    there were in their sequence, in a list of one. checksum, said: of a group, in a list of one,
    and what they add to it.
    """

    body: bytes
    layout: Struct
    counter: list[int]
    checksum: list[int]
    said: int


class RecordWriter:
    """Appends entries to shared memory, in two sections by turns, and marks them later."""

    def __init__(self, memory: Any):
        self._memory = memory
        self._header = memoryview(memory)[: HEADER.size].cast("Q")
        self._lock = threading.RLock()  # what interrupts a thread may make calls, too
        self._is_writing = False
        self._size = section_size(memory)
        self._section = 0
        self._held = 0  # calls in the current section
        self._held_before = 0  # and in the one before it
        self._counts: dict[_CountedLine, list[int]] = {}
        self._checksums: dict[tuple[str, tuple[int, ...]], list[int]] = {}  # by name and ranks
        self._groups: dict[Any, tuple[int, Group]] = {}
        self._groups_made = 0
        self.newest = 0
        self.fault = ""  # what went wrong here first, in a line
        HEADER.pack_into(memory, 0, getpid(), *[0] * 10)
        self._begin_section()
        self._used = self._header[USED] = 1  # place 0 is nobody's

    def doubt(self, fault: str = "") -> None:
        """From now on nobody is to judge by this record: calls are missing, or mean another rank.

        fault: why, where that is no doing of the program's.
        """
        self._header[DOUBT] = 1
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
                    body = _introduction(*known)
                    self._enter(CallKind(body, _layout(body), [0], [0], 0), nan, what=GROUP)
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
        sums = ([0], 0) if summed is None else (self._checksum(summed[0]), _code(summed[1]))
        return CallKind(body, _layout(body), counter, *sums)

    def _enter(
        self,
        kind: CallKind,
        at: float | None = None,
        number: int | None = None,
        what: int = CALL,
        waited: int = 0,
    ) -> int:
        """Append a call, or what else is like it; number: in its sequence, None: the next one."""
        body, layout, counter, checksum, said = kind
        with self._lock:
            if self._is_writing:  # a signal's handler, or a `__del__`, in the middle of this
                self.doubt()
                return 0
            self._is_writing = True
            try:
                if number is None:
                    number = counter[0]
                counter[0] = number + 1
                checksum[0] = hash((checksum[0], said))
                if self._used + layout.size > self._size:
                    self._next_section()
                start, used = perf_counter() if at is None else at, self._used
                offset, place = self._begins_at + used, self._first + used
                entry = start, nan, number, len(body), what, waited, body
                layout.pack_into(self._memory, offset, *entry)
                # Only now does a reader see the entry.
                self._used = self._header[self._used_of] = used + layout.size
                if what == CALL:
                    self.newest = place
                    self._held += 1
                return place
            finally:
                self._is_writing = False

    def sum_up(self, group: Group, *call: Any) -> None:
        """Keep a checksum of what all ranks of a group must do alike, to compare at the end."""
        checksum = self._checksum(group)
        checksum[0] = hash((checksum[0], _code(call)))

    def _checksum(self, group: Group) -> list[int]:
        return self._checksums.setdefault((group.name, group.ranks), [0])

    @property
    def digest(self) -> list[tuple[str, tuple[int, ...], int]]:
        """The checksum of each group: its name, its ranks, the sum."""
        return [(*group, checksum[0]) for group, checksum in self._checksums.items()]

    def _next_section(self) -> None:
        dropped = self._header[DROPPED] + self._held_before
        self._section += 1
        self._held, self._held_before = 0, self._held
        self._begin_section()
        self._header[DROPPED] = dropped

    def _begin_section(self) -> None:
        """Say in a new section what one must know to read it; it takes the oldest one's memory."""
        self._first = self._section * self._size  # its place
        self._oldest = max(1, self._first - self._size)  # places before this one are gone
        self._begins_at = offset_of(self._first, self._size)
        self._used_of = USED + self._section % 2  # the number of the header that says how much
        self._header[self._used_of] = 0
        self._header[SECTION] = self._section
        known = [(GROUP, _introduction(*group)) for group in self._groups.values()]
        known += [(COUNT, _pack((*line, count[0]))) for line, count in self._counts.items()]
        data = b"".join(
            _layout(body).pack(nan, nan, 0, len(body), what, 0, body) for what, body in known
        )
        self._memory[self._begins_at : self._begins_at + len(data)] = data
        self._used = self._header[self._used_of] = len(data)

    def end(self, place: int, at: float | None = None) -> None:
        """Write down that a call is over, unless that is known or its entry is gone."""
        if place >= self._oldest:
            offset = offset_of(place, self._size) + END
            if isnan(F64.unpack_from(self._memory, offset)[0]):
                F64.pack_into(self._memory, offset, perf_counter() if at is None else at)

    def say_waited(self, place: int, how: int = ONCE) -> None:
        """Write down that somebody waits, or has waited, for the end of a call (0: nobody does)."""
        if place >= self._oldest:
            self._memory[offset_of(place, self._size) + WAITED_FOR] = how


def _layout(body: bytes) -> Struct:
    """The layout of an entry with this body."""
    return Struct(f"{ENTRY.format}{len(body)}s")


def _code(call: Any) -> int:
    """A number for what is said of a call, the same in each process."""
    return crc32(repr(call).encode())


def _introduction(number: int, group: Group) -> bytes:
    return _pack((number, group.name, group.ranks, group.called))
