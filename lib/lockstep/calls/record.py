"""The call record: every c10d call of a rank, read where the rank is not.

A rank writes each call into memory that it shares with the notebook's kernel (`recorder.py`), so
the record is there even while the rank is blocked inside C++ or after it was killed. This module
is the layout of that memory, what an entry means (`Call`, `Group`), and its reader.

Layout: a header of eleven unsigned 64-bit numbers (process id; place of the entry in which the
rank's main thread now waits, or 0; calls that were dropped; 1 once a call or a group was on a GPU,
2 once a group was to be destroyed while a captured graph held work of NCCL; 1 if something other
than the ranks' main threads may end the wait; 1 once the record does not tell enough to judge by;
number of the current section; bytes used of the even and of the odd section; 1 while the main
thread stands still and uses a processor, as it does while it waits for its GPU; how often NCCL's
calls were seen to go on), then two sections of equal size. A full section is followed by
the other one, which is overwritten: the record keeps the newest calls, and each section begins
with the groups and with how many calls of each sequence came before. An entry is start and end
(float64, seconds), a call's number in its sequence (uint64), length (uint32), kind (uint8), 1 once
somebody waited for it and 2 while that is done again (uint8), MessagePack: what a call is (the same
bytes for all that are alike), the introduction of a process group, or such a count. A place is the
section's number times its size plus the offset in it, and so names an entry for ever; place 0 is
nobody's. A rank's program may write anything over all this: what cannot be an entry ends the
reading of its section.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec

from ..base.formatting import ranks_text

SIZE = 32 << 20  # bytes of address space; memory is used only as the record grows
HEADER = struct.Struct("<11Q")
PID, WAITING, DROPPED, ON_GPU, HELP, DOUBT, SECTION, USED = range(8)  # numbers of the header
STANDS, MOVES = 9, 10
ENTRY = struct.Struct("<ddQIBB")
END, WAITED_FOR = 8, ENTRY.size - 1  # where in an entry these are said
ONCE, AGAIN = 1, 2  # what is said there
CALL, GROUP, COUNT = 0, 1, 2  # kinds of entries
F64 = struct.Struct("<d")
_U64 = struct.Struct("<Q")
FORSAKEN = -1.0  # in place of an end: nobody kept what isend() or irecv() returned

GRAPH = 2  # in the header: see `Reader.holds_a_graph`
ANY_SOURCE = -1
NOBODY = -2  # the peer of a message to or from a negative rank
POINT_TO_POINT = frozenset({"send", "recv"})
# Operations in which every rank must pass as many elements of the same type.
SAME_SIZE = frozenset(
    {"all_reduce", "broadcast", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor"}
)
SYNCHRONIZE = "torch.cuda.synchronize"  # what a rank does last on a GPU
LEAVING = "leaving"  # the group of what a rank does when its job is done
_REPLAY = re.compile(r"replay of graph (\d+) \((\d+) collectives?\)")


def section_size(memory: Any) -> int:
    """Bytes of each of the two sections of a record."""
    return (len(memory) - HEADER.size) // 2


def offset_of(place: int, size: int) -> int:
    """Return where the entry at a place lies in the memory, while its section is there."""
    return HEADER.size + place % (2 * size)


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it.

    called: the name that the rank's program had for it when it first used it, "" if none was seen.
    """

    name: str
    ranks: tuple[int, ...]
    called: str = field(default="", compare=False)

    @property
    def is_default(self) -> bool:
        return self.name.startswith("default")

    @property
    def is_internal(self) -> bool:
        """Not a process group: rendezvous on a store, making and ending groups, leaving."""
        return self.name in ("store", "setup", LEAVING)

    def __str__(self) -> str:
        if self.is_default:
            return "the default group"
        if self.called:
            return f"group {self.called} ({ranks_text(self.ranks)})"
        number = f" {self.name}" if len(self.name) < 4 else ""  # others are long hashes
        return f"group{number} {list(self.ranks)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One c10d call of one rank.

    start, end: seconds on the host's monotonic clock, the same for all ranks of one machine.
        `end` is when the operation was complete. None: it never was. Of a call that is `queued`
        see there.
    shapes, dtype: of the tensors that the rank passed in (for `recv`: that it received into).
    bytes: of those tensors together.
    peer: global rank of the other side (send, recv) or of the root (broadcast, reduce, gather,
        scatter); None for the others, and where it is not known, which is so of a root under NCCL;
        ANY_SOURCE for a recv from anybody. A rank that is not there
        stands as the program asked for it, a negative one as NOBODY. Of init_process_group: the
        rank that was to be, where the program said so.
    number: 0 for the rank's first operation on this group, and so on; sends and receives are
        counted apart, by direction and peer.
    waited: the program waited for its end: it called wait(), or what it called does.
    again: the program waits a second time for the end of a message that is over. gloo tells an end
        once, and so that wait never returns.
    forsaken: nobody kept what isend() or irecv() had returned, and so the message was given up.
    batched: batch_isend_irecv() began it.
    queued: NCCL's call, which a GPU does when its turn comes, and of which PyTorch's flight
        recorder tells: `start` is when it was queued, and `end` the same once the GPU has done it
        (when it did is a trace's business). Its `asynchronous` and `tag` are not known.
    """

    rank: int
    operation: str
    group: Group
    number: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    bytes: int
    peer: int | None
    tag: int
    asynchronous: bool
    start: float
    end: float | None
    waited: bool = True
    forsaken: bool = False
    batched: bool = False
    queued: bool = False
    again: bool = False

    @property
    def seconds(self) -> float:
        """From start to end; NaN where the call never ended, or was queued for a GPU."""
        return math.nan if self.end is None or self.queued else self.end - self.start

    @property
    def line(self) -> CallLine:
        """The sequence that `number` counts: a group's collectives, or one way of a pair."""
        return (self.group, *line_of(self.operation, self.peer, self.tag))

    def __str__(self) -> str:
        if self.group.is_internal:
            # Which of the rank's calls of new_group it is makes the group's name.
            return f"{self.operation}{f' #{self.number}' if is_new_group(self.operation) else ''}"
        what = f"{self.operation} #{self.number}"
        if self.operation in POINT_TO_POINT:
            way = "to" if self.operation == "send" else "from"
            named = {ANY_SOURCE: "any rank", NOBODY: "a rank below 0"}
            other = named.get(self.peer or 0, f"rank {self.peer}")
            what = f"{self.operation} #{self.number} {way} {other}"
            if self.tag:
                what += f" (tag {self.tag})"
        elif self.peer is not None:
            what += f" with root {self.peer}"
        if self.shapes and self.dtype:
            shown = ", ".join(str(list(shape)) for shape in self.shapes[:3])
            more = f", … {len(self.shapes)} tensors" if len(self.shapes) > 3 else ""
            what += f" of {self.dtype}{shown}{more}"
        return f"{what} on {self.group}"


def is_new_group(operation: str) -> bool:
    return operation.startswith("new_group(")


def replay(graph: int, collectives: int) -> str:
    """Return what a replay is called in the record, of a captured graph that holds NCCL's calls.

    graph: its place among the rank's captures, from 0. collectives: on one group; a graph that
    holds several groups' is recorded once for each.
    """
    return f"replay of graph {graph} ({collectives} collective{'s' * (collectives != 1)})"


def replayed(operation: str) -> int:
    """Return how many collectives of its group a replay has; 0 for what is no replay."""
    found = _REPLAY.fullmatch(operation)
    return int(found[2]) if found else 0


CallLine = tuple[Group, str, int | None, int]


@lru_cache(4096)
def line_of(operation: str, peer: int | None, tag: int) -> tuple[str, int | None, int]:
    """The sequence, within a group, in which a call is counted."""
    if operation in ("destroy_process_group", SYNCHRONIZE):  # leaving is no partner of new_group
        return (operation, None, 0)
    if is_new_group(operation):
        return ("new_group", None, 0)
    if replayed(operation):
        return (operation, None, 0)
    return (operation, peer, tag) if operation in POINT_TO_POINT else ("", None, 0)


class Reader:
    """Reads a rank's record while it is being written, or from a copy afterwards.

    ahead: seconds by which the clock of the rank's host is ahead of this one's. is_current: a copy
    that comes from another host may have a newer header than sections.
    """

    def __init__(self, memory: Any, rank: int, ahead: float = 0.0):
        self._memory = memory
        self._rank = rank
        self._ahead = ahead
        self._before: dict[Any, int] = {}
        self._kept: list[tuple[int, bytes]] | None = None  # by a copy: what the sections held
        self.is_current = True
        self._agreed: Mapping[Group, str] | None = None  # None: what this rank calls its groups

    @classmethod
    def empty(cls, rank: int) -> Reader:
        """The record of a rank that has not come up."""
        return cls(bytes(HEADER.size), rank)

    @classmethod
    def from_sections(
        cls,
        header: bytes,
        sections: list[tuple[int, bytes]],
        rank: int,
        ahead: float = 0.0,
        is_current: bool = True,
    ) -> Reader:
        """A record that was copied: its header, and what `sections` returned."""
        copy = cls(header, rank, ahead)
        copy._kept, copy.is_current = sections, is_current
        return copy

    def copy(self) -> Reader:
        """The record as it is now; it stays when the shared memory goes."""
        sections = self.sections()
        return Reader.from_sections(self.header, sections, self._rank, self._ahead, self.is_current)

    @property
    def header(self) -> bytes:
        return bytes(self._memory[: HEADER.size])

    def _number(self, which: int) -> int:
        number: int = _U64.unpack_from(self._memory, 8 * which)[0]
        return number

    @property
    def pid(self) -> int:
        """The rank's process; 0 until it has begun."""
        return self._number(PID)

    @property
    def on_gpu(self) -> bool:
        """Return whether the rank has made calls on a GPU, which return when they are queued."""
        return self._number(ON_GPU) != 0

    @property
    def holds_a_graph(self) -> bool:
        """Return whether it went to destroy groups while a captured graph held work of NCCL."""
        return self._number(ON_GPU) == GRAPH

    @property
    def may_be_helped(self) -> bool:
        """Return whether what the main thread waits for, if it does, may come from something that
        is no rank's main thread: another thread of the rank, a store of the program's own.
        """
        return self._number(HELP) != 0

    @property
    def is_doubtful(self) -> bool:
        """Return whether its calls are not all here, or its rank is another one to the program."""
        return self._number(DOUBT) != 0

    @property
    def dropped(self) -> int:
        """Return how many calls the record no longer holds, the oldest ones."""
        return self._number(DROPPED)

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes whenever the rank's main thread enters or leaves a call, or NCCL's go on."""
        section = self._number(SECTION)
        used = self._number(USED + section % 2)
        return section, used, *map(self._number, (WAITING, STANDS, MOVES))

    @property
    def stands(self) -> bool:
        """Return whether the main thread stands still as it does while it waits for its GPU."""
        return self._number(STANDS) != 0

    @property
    def waits(self) -> bool:
        """Return whether the rank's main thread is blocked in a call at this moment."""
        return self._number(WAITING) != 0

    def calls(self) -> list[Call]:
        """The operations on process groups so far, in the order in which they began.

        Of very many the newest: see `dropped`.
        """
        return [call for call in self.log().values() if not call.group.is_internal]

    def setup(self) -> list[Call]:
        """The calls so far that make or end process groups, in the order in which they began."""
        return [call for call in self.log().values() if call.group.name == "setup"]

    def blocked_in(self) -> Call | None:
        """The call in which the rank's main thread waits, if it does."""
        return self.log().get(self._number(WAITING))

    def leaving(self) -> Call | None:
        """Return what the rank does now that its job is done, if it has not left yet."""
        own = [call for call in self.log().values() if call.group.name == LEAVING]
        return own[-1] if own and own[-1].end is None else None

    def reached(self) -> dict[CallLine, int]:
        """For each sequence of calls, how many of them this rank has entered."""
        calls = self.log().values()
        return self._before | {call.line: call.number + 1 for call in calls}

    def log(self) -> dict[int, Call]:
        """Everything that the record holds, by its place in it."""
        groups: dict[int, Group] = {}
        entries: dict[int, Call] = {}
        self._before = {}
        for section, data in self.sections():
            self._read(section, data, groups, entries)
        return entries

    def queued(self) -> list[Call]:
        """The calls that a GPU has yet to do, in the order in which they were queued."""
        return [call for call in self.calls() if call.queued and call.end is None]

    def sections(self) -> list[tuple[int, bytes]]:
        """The place at which each section begins and what it holds, the older one first."""
        if self._kept is not None:
            return self._kept
        size = section_size(self._memory)
        while True:
            current = self._number(SECTION)
            found = []
            for section in range(max(0, current - 1), current + 1):
                used = min(self._number(USED + section % 2), size)
                at = HEADER.size + section % 2 * size
                found.append((section * size, bytes(self._memory[at : at + used])))
            if self._number(SECTION) == current:  # else the rank has begun the next one meanwhile
                return found

    def _read(
        self, place: int, data: bytes, groups: dict[int, Group], entries: dict[int, Call]
    ) -> None:
        at = 0 if place else 1  # place 0 is nobody's
        while at < len(data):
            try:
                start, end, number, length, kind, waited = ENTRY.unpack_from(data, at)
                body = data[at + ENTRY.size : at + ENTRY.size + length]
                if kind == GROUP:
                    made, name, ranks, called = _group.decode(body)
                    group = Group(name, ranks, called)
                    if self._agreed is not None:
                        group = replace(group, called=self._agreed.get(group, ""))
                    groups[made] = group
                elif kind == COUNT:
                    one, line, count = _count.decode(body)
                    self._before[(groups[one], *line)] = count
                else:
                    call = _call.decode(body)
                    entries[place + at] = Call(
                        self._rank,
                        call[0],
                        groups[call[1]],
                        number,
                        *call[2:-2],
                        start - self._ahead,
                        None if math.isnan(end) or end == FORSAKEN else end - self._ahead,
                        waited != 0,
                        end == FORSAKEN,
                        *call[-2:],
                        again=waited == AGAIN,
                    )
            except (struct.error, msgspec.MsgspecError, LookupError):
                return
            at += ENTRY.size + length


def agree(readers: Iterable[Reader]) -> None:
    """From now on these readers call a group what all ranks that have a name for it call it.

    Not where two ranks differ, and not by a name that a rank has had for two groups.
    """
    readers = list(readers)
    said: dict[Group, set[str]] = {}
    ambiguous: set[str] = set()
    for reader in readers:
        reader._agreed = None
        own = {call.group: call.group.called for call in reader.log().values()}
        names = [name for name in own.values() if name]
        ambiguous |= {name for name in names if names.count(name) > 1}
        for group, name in own.items():
            said.setdefault(group, set()).update({name} - {""})
    agreed = {group: names.pop() for group, names in said.items() if len(names) == 1}
    agreed = {group: name for group, name in agreed.items() if name not in ambiguous}
    for reader in readers:
        reader._agreed = agreed


# Operation, group, shapes, dtype, bytes, peer, tag, asynchronous, batched, queued.
_Shapes = tuple[tuple[int, ...], ...]
_call = msgspec.msgpack.Decoder(
    tuple[str, int, _Shapes, str, int, int | None, int, bool, bool, bool]
)
_group = msgspec.msgpack.Decoder(tuple[int, str, tuple[int, ...], str])
_count = msgspec.msgpack.Decoder(tuple[int, tuple[str, int | None, int], int])
