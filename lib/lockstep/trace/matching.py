"""Which slices of different ranks are the same collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .infer_groups import guessed_groups
from .joins import launch_of
from .slices import NONE, SYNCHRONISING, Column, Kind, Slices, once

_POINT_TO_POINT = frozenset({"send", "recv"})
# Operations in which all ranks pass as many bytes; elsewhere splits may be uneven.
_SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce"})
# How far apart, in collectives, two recordings of one group may begin. Bounds the search only.
_FURTHEST = 256
_SAMPLE = 256  # collectives that a shift is judged by
_CLEARLY = 3  # times better than the next: then a shift fits, and no other does


@dataclass(frozen=True)
class Matches:
    """Collectives that two ranks or more have recorded.

    One entry a collective and rank; those of collective i are first[i]:first[i + 1], ranks
    ascending. rank: global. start, end: nanoseconds on the trace's clock (of several kernels the
    first start and the last end). row: of the trace, the first kernel's.

    One value a collective. known: index into `trace.known`, the lowest rank's. number: its
    sequence, or its place among those of its group and operation. size: ranks in the group,
    recorded or not. complete: all ranks of the group that are in the trace have it.
    synchronises: nobody leaves before the last has come. assumed: the trace does not say the
    group, and it was taken for that of all ranks, or guessed (see `guess`). even: every rank moves
    as many bytes.

    unmatched: reason → number of slices left over. notes: what was assumed, in sentences.
    """

    first: Column
    rank: Column
    start: Column
    end: Column
    row: Column
    known: Column
    number: Column
    size: Column
    complete: Column
    synchronises: Column
    assumed: Column
    even: Column
    unmatched: dict[str, int]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.known)

    @property
    def counts(self) -> Column:
        """Entries of each collective."""
        return np.diff(self.first)

    def highest(self, values: Column) -> Column:
        """For each collective the highest of its entries' values."""
        return np.maximum.reduceat(values, self.first[:-1]) if len(self) else values[:0]

    def lowest(self, values: Column) -> Column:
        """For each collective the lowest of its entries' values."""
        return np.minimum.reduceat(values, self.first[:-1]) if len(self) else values[:0]

    def total(self, values: Column) -> Column:
        """For each collective the sum of its entries' values."""
        return np.add.reduceat(values, self.first[:-1]) if len(self) else values[:0]

    def each(self, values: Column) -> Column:
        """For each entry the value of its collective."""
        return np.repeat(values, self.counts)

    def select(self, which: Column) -> Matches:
        """Only these collectives (indices), in this order."""
        counts = self.counts[which]
        first = np.concatenate(([0], np.cumsum(counts)))
        entries = np.arange(first[-1]) + np.repeat(self.first[:-1][which] - first[:-1], counts)
        entry_columns = {c: getattr(self, c)[entries] for c in ("rank", "start", "end", "row")}
        columns = {c: getattr(self, c)[which] for c in _OF_A_COLLECTIVE}
        return Matches(
            first=first, **entry_columns, **columns, unmatched=self.unmatched, notes=self.notes
        )


def awaited(trace: Slices, matches: Matches) -> tuple[Column, Column]:
    """For each collective the entry that others waited for; for each entry whether it waited.

    All wait for the last to come where the collective synchronises, and both of a send and its
    recv; in a broadcast or scatter all for the root, if it is there; in a reduce or gather the root
    for the last. Of several that come last it is the lowest rank.
    """
    owner = matches.each(np.arange(len(matches)))
    is_last = np.flatnonzero(matches.start == matches.each(matches.highest(matches.start)))
    found = np.zeros(len(matches), np.int64)
    found[owner[is_last][::-1]] = is_last[::-1]

    def of_known(facts: list[Any]) -> Column:
        return matches.each(np.array(facts or [False])[matches.known])

    is_root = matches.rank == of_known([one.peer for one in trace.known])
    from_root = of_known([one.operation in _FROM_ROOT for one in trace.known])
    to_root = of_known([one.operation in _TO_ROOT for one in trace.known])
    with_root = np.flatnonzero(is_root & from_root)
    found[owner[with_root]] = with_root
    waits = np.where(from_root, np.isin(owner, owner[with_root]), is_root | ~to_root)
    return found, waits


_FROM_ROOT = ("broadcast", "scatter")
_TO_ROOT = ("reduce", "gather")
_OF_A_COLLECTIVE = ("known", "number", "size", "complete", "synchronises", "assumed", "even")


@dataclass(frozen=True)
class _Queue:
    """A sequence of collectives: one operation of one group."""

    operation: str
    label: str  # of the group, for messages
    ranks: tuple[int, ...] = ()  # () if unknown
    assumed: bool = False


@once
def match(trace: Slices) -> Matches:
    """Find the same collective on several ranks, by (group, operation, size, sequence).

    Where the trace gives no sequence, the order within group and operation counts. If a rank's
    recording begins or ends earlier than another's, the shift is taken at which sizes agree and
    the times between collectives agree `_CLEARLY` best, and a note says so; without such a shift
    they stay unmatched. Kernels of calls before the recording are left out. Kernels that follow
    each other with one sequence are one collective. Sends and receives are matched by their peers.
    A group of unknown ranks and name is guessed by when its collectives end (see `guess`), or else
    taken for that of all ranks if all of them have it. Takes time in proportion to the slices.
    """
    unmatched: Counter[str] = Counter()
    notes: list[str] = []
    ranks = np.array(trace.ranks or (0,), np.int32)
    entries, queues = _entries(trace, ranks, unmatched)
    # For each known collective the bytes that must be the same on all ranks; 0 where not.
    same = [one.bytes_in if one.operation in _SAME_SIZE else 0 for one in trace.known]
    sizes = np.array(same or [0], np.int64)
    number = _numbers(entries, sizes[entries.known], queues, ranks, unmatched, notes)
    entries, number = _side_by_side(entries, number)
    begin = np.flatnonzero(_is_new(entries.queue, number))
    found = _collectives(trace, entries, number, begin, queues, ranks)

    agree, alone = _alike(sizes[entries.known], begin), found.counts < 2
    slices = found.total(entries.kernels)
    unmatched["no other rank has it"] += int(slices[alone].sum())
    unmatched["the ranks' sizes differ"] += int(slices[~alone & ~agree].sum())
    found = found.select(np.flatnonzero(~alone & agree))
    return replace(found, unmatched=dict(+unmatched), notes=tuple(notes))


@dataclass(frozen=True)
class _Entries:
    """A collective as one rank has it, a value each; kernels: of how many slices it is made.

    queue: index of its queue. place: of its rank among the trace's.
    """

    row: Column
    queue: Column
    place: Column
    sequence: Column
    start: Column
    end: Column
    known: Column
    kernels: Column

    def select(self, which: Column) -> _Entries:
        return _Entries(*(getattr(self, one.name)[which] for one in fields(self)))


def _entries(
    trace: Slices, ranks: Column, unmatched: Counter[str]
) -> tuple[_Entries, list[_Queue]]:
    """In order of queue, rank, time. Successive kernels of one sequence are one collective."""
    rows = trace.where(Kind.COMMUNICATION)
    earlier = _called_earlier(trace, rows, ranks)
    unmatched["the calls come before the recording"] += int(earlier.sum())
    rows = rows[~earlier]
    queue, queues = _queues(trace, rows)
    unmatched["the operation is unknown"] += int((queue == _NO_OPERATION).sum())
    unmatched["the peer is unknown"] += int((queue == _NO_PEER).sum())
    rows, queue = rows[queue >= 0], queue[queue >= 0]

    segment = queue * len(ranks) + np.searchsorted(ranks, trace.rank[rows])
    order = _stable(segment)
    start = trace.start[rows]
    same = segment[order][1:] == segment[order][:-1]
    if np.any(same & (np.diff(start[order]) < 0)):  # a rank communicates on several lanes
        by_start = np.argsort(start, kind="stable")
        order = by_start[_stable(segment[by_start])]
    rows, segment, start = rows[order], segment[order], start[order]
    sequence, end = trace.sequence[rows].astype(np.int64), start + trace.duration[rows]

    begin = np.flatnonzero(_is_new(segment, sequence) | (sequence < 0))
    kernels = np.diff(np.append(begin, len(rows)))
    if len(begin) < len(rows):
        end = np.maximum.reduceat(end, begin)
        rows, segment, start, sequence = rows[begin], segment[begin], start[begin], sequence[begin]
    queue, place = segment // len(ranks), segment % len(ranks)
    known = trace.collective[rows]
    return _Entries(rows, queue, place, sequence, start, end, known, kernels), queues


def _called_earlier(trace: Slices, rows: Column, ranks: Column) -> Column:
    """Return of which slices no launch is in the trace, and nothing but the name says what they
    are, and which began before any slice of their rank with a launch."""
    start, place = trace.start[rows], np.searchsorted(ranks, trace.rank[rows])
    named = np.array([one.evidence == "name" for one in trace.known] or [False])
    launched = launch_of(trace, rows) != NONE
    first = np.full(len(ranks), np.iinfo(np.int64).min)  # of a rank without launches
    first[place[launched]] = np.iinfo(np.int64).max
    np.minimum.at(first, place[launched], start[launched])
    return ~launched & named[trace.collective[rows]] & (start < first[place])


def _side_by_side(entries: _Entries, number: Column) -> tuple[_Entries, Column]:
    """In order of queue, number, rank, without those that are lost."""
    keep = np.flatnonzero(number != _LOST)
    order = keep[np.argsort(number[keep], kind="stable")]
    order = order[_stable(entries.queue[order])]
    return entries.select(order), number[order]


def _collectives(
    trace: Slices,
    entries: _Entries,
    number: Column,
    begin: Column,
    queues: list[_Queue],
    ranks: Column,
) -> Matches:
    """Those that begin at `begin`, whether another rank has them or not."""
    first = np.append(begin, len(entries.row))
    expected, of_group, assumed, synchronises = _expected(queues, trace.ranks, entries, len(ranks))
    one = entries.queue[begin]
    handed_in = np.array([one.bytes_in for one in trace.known] or [0], np.int64)
    return Matches(
        first=first,
        rank=ranks[entries.place],
        start=entries.start,
        end=entries.end,
        row=entries.row,
        known=entries.known[begin],
        number=number[begin] % _REPEATS,
        size=of_group[one],
        complete=np.diff(first) == expected[one],
        synchronises=synchronises[one],
        assumed=assumed[one],
        even=_alike(handed_in[entries.known], begin),
        unmatched={},
        notes=(),
    )


_NO_OPERATION, _NO_PEER = -1, -2
_LOST = -1
_REPEATS = 1 << 32  # a sequence that comes again later is the same number + k × this


def _is_new(one: Column, other: Column) -> Column:
    """Whether one of the columns has another value than before."""
    new = np.ones(len(one), bool)
    new[1:] = (one[1:] != one[:-1]) | (other[1:] != other[:-1])
    return new


def _stable(codes: Column) -> Column:
    """A stable order of codes ≥ 0; numpy sorts 16 bits by radix, in linear time."""
    small = len(codes) and codes.max() < 1 << 16
    return np.argsort(codes.astype(np.uint16) if small else codes, kind="stable")


def _alike(values: Column, begin: Column) -> Column:
    """For each piece that begins at `begin`, whether all its values are the same."""
    if not len(begin):
        return np.empty(0, bool)
    return np.minimum.reduceat(values, begin) == np.maximum.reduceat(values, begin)


def _queues(trace: Slices, rows: Column) -> tuple[Column, list[_Queue]]:
    """For each row the index of its queue, or why it has none; and the queues."""
    groups: dict[tuple[tuple[int, ...], str], int] = {((), ""): 0}
    group_of = np.zeros(len(trace.known) + 1, np.int64)
    for index, one in enumerate(trace.known):
        group_of[index] = groups.setdefault((one.ranks, one.group), len(groups))
    names = list(groups)
    used = _distinct(trace.rank[rows] * np.int64(len(names)) + group_of[trace.collective[rows]])
    same = _one_name(names, [divmod(int(code), len(names)) for code in used])

    # Every known collective stands twice: without and with sequence.
    queues: dict[tuple[int, _Queue], int] = {}
    made: dict[tuple[str, int], tuple[int, int]] = {}  # sizes make many collectives of one queue
    table = np.full(2 * len(trace.known) + 2, _NO_OPERATION, np.int64)
    pairs = np.zeros(len(trace.known) + 1, bool)
    for index, one in enumerate(trace.known):
        if one.operation in _POINT_TO_POINT:
            pairs[index] = True
        elif one.operation:
            short = one.operation, int(group_of[index])
            if short not in made:
                ranks, name = same.get(names[short[1]], names[short[1]])
                label = name or (str(list(ranks)) if ranks else "")
                queue = _Queue(one.operation, label, ranks, assumed=not (ranks or name))
                without, numbered = (queues.setdefault((n, queue), len(queues)) for n in (0, 1))
                made[short] = without, numbered
            table[2 * index], table[2 * index + 1] = made[short]
    key = table[2 * trace.collective[rows] + (trace.sequence[rows] >= 0)]  # NONE is the last two
    silent = [one.operation != "" and not (one.ranks or one.group) for one in trace.known]
    no_group = np.array([*silent, False], bool) & ~pairs
    unknown = np.flatnonzero(no_group[trace.collective[rows]])
    guessed, members = guessed_groups(trace, rows[unknown])
    unknown, guessed = unknown[guessed != NONE], guessed[guessed != NONE]
    if len(unknown):
        codes = guessed * np.int64(len(pairs)) + trace.collective[rows[unknown]]
        distinct, inverse = np.unique(codes, return_inverse=True)
        key_of = np.empty(len(distinct), np.int64)
        for place, code in enumerate(distinct.tolist()):
            group, index = divmod(code, len(pairs))
            again = members[:group].count(members[group])  # communicators of the same ranks
            label = f"{list(members[group])}{f' ({again + 1})' if again else ''}"
            queue = _Queue(trace.known[index].operation, label, members[group], assumed=True)
            key_of[place] = queues.setdefault((0, queue), len(queues))
        key[unknown] = key_of[inverse]
    one_sided = np.flatnonzero(pairs[trace.collective[rows]])
    if len(one_sided):
        # A rank counts its sends for itself, so here sequences do not help.
        at = rows[one_sided]
        codes = trace.rank[at].astype(np.int64) * len(pairs) + trace.collective[at]
        distinct, inverse = np.unique(codes, return_inverse=True)
        key_of = np.full(len(distinct), _NO_PEER, np.int64)
        for place, code in enumerate(distinct):
            rank, index = divmod(int(code), len(pairs))
            one = trace.known[index]
            if one.peer != NONE:
                ends = (rank, one.peer) if one.operation == "send" else (one.peer, rank)
                queue = _Queue("send to recv", f"{one.group} {ends[0]} → {ends[1]}".strip(), ends)
                key_of[place] = queues.setdefault((0, queue), len(queues))
        key[one_sided] = key_of[inverse]
    return key, [queue for _, queue in queues]


def _one_name(
    names: list[tuple[tuple[int, ...], str]], used: list[tuple[int, int]]
) -> dict[tuple[tuple[int, ...], str], tuple[tuple[int, ...], str]]:
    """Groups of the same ranks that each rank knows by one name, but not all by the same one."""
    by_ranks: dict[tuple[int, ...], dict[int, set[str]]] = {}
    for rank, group in used:
        if names[group][0]:
            by_ranks.setdefault(names[group][0], {}).setdefault(rank, set()).add(names[group][1])
    return {
        (ranks, name): (ranks, min(set().union(*of_rank.values())))
        for ranks, of_rank in by_ranks.items()
        if all(len(of) == 1 for of in of_rank.values())
        for of in of_rank.values()
        for name in of
    }


def _numbers(
    entries: _Entries,
    size: Column,
    queues: list[_Queue],
    ranks: Column,
    unmatched: Counter[str],
    notes: list[str],
) -> Column:
    """For each entry its number within the queue, the same on all ranks; _LOST if there is none."""
    number, end = entries.sequence.copy(), entries.end
    begin = np.flatnonzero(_is_new(entries.queue, entries.place)).tolist()
    parts_of: dict[int, list[slice]] = {}  # queue → its entries on each rank
    for part in map(slice, begin, [*begin[1:], len(number)]):
        parts_of.setdefault(int(entries.queue[part.start]), []).append(part)
    for key, parts in parts_of.items():
        queue, whole = queues[key], max(parts, key=lambda part: part.stop - part.start)
        if queue.assumed and len(parts) < len(queue.ranks or ranks):
            for part in parts:
                number[part] = _LOST
                unmatched["the group is unknown"] += int(entries.kernels[part].sum())
            continue
        if entries.sequence[whole.start] >= 0 and queue.operation != "send to recv":
            for part in parts:
                number[part] = _with_repeats(entries.sequence[part])
            continue
        shifts = [
            0 if part is whole else _shift(end[whole], size[whole], end[part], size[part])
            for part in parts
        ]
        earliest = max(shift for shift in shifts if shift is not None)
        for part, shift in zip(parts, shifts, strict=True):
            if shift is None:
                number[part] = _LOST
                unmatched["several matches are possible"] += int(entries.kernels[part].sum())
                continue
            number[part] = np.arange(part.stop - part.start) - shift + earliest
            if shift:
                one, other = (int(ranks[entries.place[p.start]]) for p in (part, whole))
                when = "earlier" if shift > 0 else "later"
                notes.append(
                    f"rank {one}'s recording begins {abs(shift)} × {queue.operation} of group "
                    f"{queue.label or 'unknown'} {when} than rank {other}'s"
                )
    if len(notes) > 8:
        notes[8:] = [f"and {len(notes) - 8} more like these"]
    guessed = sorted({queue.label for queue in queues if queue.assumed and queue.ranks})
    if guessed:
        notes.append(
            "the trace does not say the groups of some collectives: by when they end, they are "
            + ", ".join(guessed[:8])
            + (f" and {len(guessed) - 8} more" if len(guessed) > 8 else "")
        )
    assumed = sorted({queue.operation for queue in queues if queue.assumed and not queue.ranks})
    if assumed:
        notes.append(
            f"the trace does not say the group of some {', '.join(assumed)}: assumed to be "
            "the group of all ranks"
        )
    return number


def _with_repeats(sequence: Column) -> Column:
    """A sequence that comes again (its group was made anew) gets a number of its own."""
    if np.all(np.diff(sequence) > 0):
        return sequence
    order = np.argsort(sequence, kind="stable")
    run = np.flatnonzero(np.diff(sequence[order], prepend=-1))
    counts = np.diff(np.append(run, len(sequence)))
    number = sequence.copy()
    number[order] += (np.arange(len(sequence)) - np.repeat(run, counts)) * _REPEATS
    return number


def _shift(a: Column, size_a: Column, b: Column, size_b: Column) -> int | None:
    """Return how many entries of b come before a[0]'s partner; None where that is not clear.

    a, b: ends in nanoseconds, ascending. What is compared are the times between ends: they need no
    common clock.
    """
    alike = len(a) == len(b)
    near = 2 if alike and np.array_equal(size_a, size_b) else _FURTHEST
    costs = {
        shift: cost
        for shift in range(-near, near + 1)
        if (cost := _cost(shift, a, size_a, b, size_b)) is not None
    }
    if not costs:
        return 0 if alike else None
    best = min(costs, key=lambda shift: (costs[shift], abs(shift)))
    rest = [cost for shift, cost in costs.items() if shift != best]
    if not rest or min(rest) >= _CLEARLY * costs[best]:
        return best
    return 0 if alike and 0 in costs else None


def _cost(shift: int, a: Column, size_a: Column, b: Column, size_b: Column) -> float | None:
    """Median nanoseconds by which the times between ends differ; None where sizes say no."""
    low, high = max(0, -shift), min(len(a), len(b) - shift)
    if high - low < max(8, min(len(a), len(b)) // 2):
        return None
    low += max(0, (high - low - _SAMPLE) // 2)
    high = min(high, low + _SAMPLE)
    if np.mean(size_a[low:high] == size_b[low + shift : high + shift]) < 0.9:
        return None
    return float(np.median(np.abs(np.diff(b[low + shift : high + shift] - a[low:high])))) + 1


def _expected(
    queues: list[_Queue], present: Iterable[int], entries: _Entries, ranks: int
) -> tuple[Column, Column, Column, Column]:
    """For each queue: ranks that should have it, ranks of its group, assumed, synchronises."""
    present = set(present)
    having = np.zeros(max(1, len(queues)), np.int64)
    np.add.at(having, _distinct(entries.queue * ranks + entries.place) // ranks, 1)
    expected, size = having.copy(), having.copy()
    for index, queue in enumerate(queues):
        if queue.ranks:
            expected[index] = len(present.intersection(queue.ranks))
            size[index] = len(queue.ranks)
        elif queue.assumed:
            expected[index] = size[index] = len(present)
    assumed = np.array([queue.assumed for queue in queues] or [False])
    synchronises = np.array([queue.operation in SYNCHRONISING for queue in queues] or [False])
    return expected, size, assumed, synchronises


def _distinct(codes: Column) -> Column:
    """np.unique for codes ≥ 0 of a small range, in linear time."""
    seen = np.zeros(int(codes.max(initial=0)) + 1, bool)
    seen[codes] = True
    return np.flatnonzero(seen)
