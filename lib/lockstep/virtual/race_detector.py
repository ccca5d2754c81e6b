"""Races: two operations on the same memory, one of which writes, and nothing that orders them.

`History` finds them when the second is launched, by clocks and not by times: a race that this
device's times hide is one, too. `Race` says it in words, with the lines of the program and what
would repair it.
"""

from __future__ import annotations

import dis
import linecache
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

import torch

from ..base.formatting import printable
from ..base.machine import is_cell
from .happens_before import HOST, Clock
from .schedule import DeviceTask

COLLECTIVE = "nccl "  # how the names of collectives begin
_LONGEST = 64  # elements of a list in which a stream is looked for
_EXACT = 1 << 24  # elements up to which two views with gaps are compared element by element


class SourceLine(NamedTuple):
    """A line of the program: `file`, `number`."""

    file: str
    number: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        """A notebook's cell has no name: its file is the kernel's, another one each time."""
        where = f"line {self.number}"
        if not is_cell(self.file):
            where = f"{self.file.rpartition('/')[2]}, {where}"
        return f"{where}: {self.text}" if self.text else where


class Owned(NamedTuple):
    """The owner of memory: a tensor's number, and the number of the capture that made it, or 0."""

    graph: int
    number: int


NOBODY = Owned(0, 0)


@dataclass(eq=False, slots=True)
class Access:
    """The access of one operation to some memory: bytes [first, last) of its segment, by `view`.

    stream: HOST for the host itself. number: of the operation on its stream. owner: of the memory
    then. replayed: whether a graph overwrote by it what another graph of its pool has put out.
    """

    task: DeviceTask | None
    name: str
    stream: int
    number: int
    first: int
    last: int
    view: torch.Tensor
    writes: bool
    line: SourceLine | None
    owner: Owned
    replayed: bool = False

    def is_past(self, new: Access) -> bool:
        """Whether this was to a tensor that had the memory before."""
        return self.owner is not new.owner


class History:
    """The accesses to some memory that something could still race with.

    written: from, to, owner and launch of what is in it (see `dependencies`).
    """

    __slots__ = ("known", "written")

    def __init__(self) -> None:
        self.known: list[Access] = []
        self.written: list[tuple[int, int, Owned, int]] = []

    def add(self, new: Access, clock: Clock) -> list[Access]:
        """Remember an access; what it races with. clock: what is done before it."""
        against, kept = [], []
        first, last, stream, writes = new.first, new.last, new.stream, new.writes
        for old in self.known:
            if old.last <= first or last <= old.first:
                kept.append(old)
                continue
            ordered = old.stream == stream or clock.get(old.stream, 0) >= old.number
            # What a new tensor holds before it is written to was never promised to be anything.
            matters = writes or (old.writes and not old.is_past(new))
            if matters and not ordered and _overlap(old, new):
                against.append(old)
            instead = ordered and (writes or (not old.writes and old.stream == stream))
            if not (instead and _covers(new, old)):
                kept.append(old)
        self.known = [*kept, new]
        return against

    def forget(self, host: Clock) -> None:
        """Drop accesses that the host has waited for: they are before all that comes."""
        self.known = [one for one in self.known if host.get(one.stream, 0) < one.number]


def _covers(new: Access, old: Access) -> bool:
    """Whether all that the old access was to is used by the new one."""
    a, b = new.view, old.view
    if a.is_contiguous():
        return new.first <= old.first and old.last <= new.last
    same = a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
    return same and new.first == old.first


def _overlap(old: Access, new: Access) -> bool:
    a, b = old.view, new.view
    if old.is_past(new) or (a.is_contiguous() and b.is_contiguous()):
        return True
    if a.dtype != b.dtype or max(old.last, new.last) > _EXACT * a.element_size():
        return True
    length = max(old.last, new.last) // a.element_size() + 1
    marks = torch.zeros(length, dtype=torch.bool)
    marks.as_strided(a.shape, a.stride(), a.storage_offset() - _base(a, old)).fill_(True)
    return bool(marks.as_strided(b.shape, b.stride(), b.storage_offset() - _base(b, new)).any())


def _base(view: torch.Tensor, access: Access) -> int:
    """The element of the storage at which the access's memory begins."""
    return int(view.storage_offset()) - access.first // view.element_size()


@dataclass(frozen=True)
class Race:
    """Two operations that nothing orders.

    kind: "read after write", "write after read", "write after write", "memory given back" (what
        the second wrote to was a tensor that the first still used), "host" (one of them is the
        program itself, on the CPU), or "pool shared" (a replay wrote where the output lies that
        another graph of its pool has made).
    by_luck: whether the number is right all the same: they came in the program's order this time.
    first, second: their names, in the order of the program. streams: of both, in words. lines: of
        both, None where it is not known.
    """

    kind: str
    first: str
    second: str
    streams: tuple[str, str]
    lines: tuple[SourceLine | None, SourceLine | None]
    repair: str
    by_luck: bool = False

    def __str__(self) -> str:
        what = {
            "read after write": ("writes", "reads it"),
            "write after read": ("reads", "writes to it"),
            "write after write": ("writes", "writes to it, too"),
            "memory given back": ("uses", "writes to the same memory, for another tensor"),
            "host": ("uses", "uses it, too, without waiting"),
            "pool shared": ("writes, in a replay,", "reads it, as what another graph made"),
        }[self.kind]
        unordered = "" if self.kind == "pool shared" else ", and nothing orders the two"
        said = [
            f"race, {self.kind}: {self.first} on {self.streams[0]} {what[0]} memory; {self.second} "
            f"on {self.streams[1]} {what[1]}{unordered}",
            f"  first:  {self.lines[0] or 'a line that is not known'}",
            f"  second: {self.lines[1] or 'a line that is not known'}",
            f"  repair: {self.repair}",
        ]
        if self.by_luck:
            said.append("  number: right by luck: this time the two came in this order")
        return printable("\n".join(said))


class Races(tuple[Race, ...]):
    """The races of a program so far, each pair of lines once; `print` it to read them."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no races: whatever two streams share is ordered"

    __repr__ = __str__


def race(old: Access, new: Access, named: Callable[[int], str], code: Callable[[int], str]) -> Race:
    """The race of an earlier access and a later one.

    named, code: a stream in words, and as the program writes it.
    """
    if old.replayed:
        kind = "pool shared"
    elif old.is_past(new):
        kind = "memory given back"
    elif HOST in (old.stream, new.stream):
        kind = "host"
    else:
        kind = f"{_verb(new)} after {_verb(old)}"
    first, second = _where(old.line), _where(new.line)
    one, other = named(old.stream), named(new.stream)
    if kind == "pool shared":
        repair = (
            "replay the graphs of one pool in the order in which they were captured and read their "
            f"outputs before the next round, or clone what {new.name} reads{second} before the "
            "other graph is replayed"
        )
    elif kind == "memory given back" and 0 != old.owner.graph != new.owner.graph != 0:
        repair = (
            f"capture the two graphs with pools of their own, or let {other} wait for {one}: "
            "graphs of one pool must not run at the same time"
        )
    elif kind == "memory given back":
        repair = (
            f"call record_stream({code(old.stream)}) on the tensor that {old.name} uses{first}, so "
            f"that its memory is not given to others before {one} is done with it"
        )
    elif old.name.startswith(COLLECTIVE):
        repair = (
            f"call wait() on the handle of the collective{first} before {new.name}{second}: that "
            "makes the current stream wait"
        )
    elif new.stream == HOST:
        repair = f"let the host wait before this line: {code(old.stream)}.synchronize()"
    elif old.stream == HOST:
        repair = f"do it before {new.name} is launched{second}"
    else:
        call = f"{code(new.stream)}.wait_stream({code(old.stream)})"
        repair = (
            f"record an event on {one} after {old.name}{first}, and let {other} wait for it before "
            f"{new.name}{second}, by {call} between the two"
        )
    return Race(kind, old.name, new.name, (one, other), (old.line, new.line), repair)


def _verb(access: Access) -> str:
    return "write" if access.writes else "read"


def _where(line: SourceLine | None) -> str:
    return f" (line {line.number})" if line else ""


_ASSIGNED = re.compile(r"^\s*([A-Za-z_]\w*)\s*(?::[^=]+)?=\s*[\w.]+\([^()]*\)\s*(#.*)?$")


def assigned_name(line: SourceLine | None) -> str:
    """The variable to which a line of code assigns what one call makes, "" if it does not."""
    found = _ASSIGNED.match(line.text) if line else None
    return found[1] if found else ""


def variable_name(frame: Any, inside: tuple[str, ...], wanted: Callable[[Any], bool]) -> str:
    """Return what the program calls something: `left`, `streams[1]` or `self.side`, "" if
    nothing."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(inside):
            for name, value in [*frame.f_locals.items()]:
                if wanted(value):
                    return str(name)
                parts: Iterable[tuple[str, Any]] = ()
                if type(value) in (list, tuple):
                    parts = ((f"[{at}]", one) for at, one in enumerate(value[:_LONGEST]))
                elif type(value) is dict:
                    parts = ((f"[{at!r}]", one) for at, one in [*value.items()][:_LONGEST])
                elif name == "self":
                    parts = ((f".{at}", one) for at, one in getattr(value, "__dict__", {}).items())
                for part, one in parts:
                    if wanted(one):
                        return f"{name}{part}"
        frame = frame.f_back
    return ""


def ignores_answer(frame: Any) -> bool:
    """Whether the program drops what the call that it is at returns."""
    code = _instructions(frame.f_code)
    return next(name for offset, name in code if offset > frame.f_lasti) == "POP_TOP"


@lru_cache(64)
def _instructions(code: CodeType) -> list[tuple[int, str]]:
    return [(one.offset, one.opname) for one in dis.get_instructions(code)]


def place(frame: Any, inside: tuple[str, ...]) -> SourceLine | None:
    """The line of the program that is being run: the first frame up that is not `inside`."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(inside):
            return SourceLine(file, frame.f_lineno)
        frame = frame.f_back
    return None
