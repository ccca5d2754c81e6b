"""Joins of slices: a launch and what it launched, a moment and the range around it."""

from __future__ import annotations

import re

import numpy as np

from .intervals import Intervals, covered, union
from .slices import NONE, Column, Kind, Slices

# Operators that only hand a communication over; gloo says itself when it communicates.
_HANDS_OVER = ("c10d::", "record_param_comms")


def on_device(trace: Slices) -> Column:
    """The rows of what keeps the GPUs busy (kernels, copies, memsets, on streams), by rank."""
    rows = np.flatnonzero((trace.kind >= Kind.COMPUTE) & (trace.kind <= Kind.SET))
    return sorted_by_rank(trace, rows[trace.stream[rows] != NONE])


def named(trace: Slices, pattern: re.Pattern[str]) -> Column:
    """For each name of the trace whether this is in its first 1,000 characters: names of megabytes
    occur."""
    return np.array([bool(pattern.search(name[:1000])) for name in trace.names], bool)


def outermost(trace: Slices, rows: Column) -> Column:
    """Which of these rows, in the trace's order, begin in no other one of them on their lane."""
    found = np.ones(len(rows), bool)
    for _, here in grouped(trace.lane[rows]):
        start, end = trace.start[rows[here]], trace.end[rows[here]]
        found[here[1:]] = start[1:] >= np.maximum.accumulate(end)[:-1]
    return found


def sorted_by_rank(trace: Slices, rows: Column) -> Column:
    """These rows, rank after rank, else in their order."""
    return rows[np.argsort(trace.rank[rows], kind="stable")]


def pieces(trace: Slices, rows: Column) -> dict[int, slice]:
    """Rank → its piece of these rows, which are sorted by rank; only ranks that have any."""
    ranks = trace.rank[rows]
    firsts = np.searchsorted(ranks, trace.ranks).tolist()
    ends = np.searchsorted(ranks, trace.ranks, side="right").tolist()
    bounds = zip(trace.ranks, firsts, ends, strict=True)
    return {rank: slice(first, end) for rank, first, end in bounds if end > first}


def launch_of(trace: Slices, rows: Column) -> Column:
    """For each of these rows, in any order, the row of the call that launched it, or NONE.

    Rank and correlation join them; a replay of a graph is one call for many rows. Where two calls
    have one correlation (the runtime's and, inside of it, the driver's) it is the outer one.
    """
    found = np.full(len(rows), NONE, np.int64)
    calls = np.flatnonzero(trace.kind == Kind.LAUNCH)
    calls = sorted_by_rank(trace, calls[trace.correlation[calls] != NONE])
    of_rank = pieces(trace, calls)
    places = np.argsort(trace.rank[rows], kind="stable")
    for rank, piece in pieces(trace, rows[places]).items():
        own, wanted = calls[of_rank.get(rank, slice(0))], trace.correlation[rows[places[piece]]]
        found[places[piece]] = look_up(trace.correlation, own, wanted)
    return found


def look_up(column: Column, rows: Column, values: Column) -> Column:
    """For each value the first of these rows whose column has it, NONE where there is none."""
    if not len(rows):
        return np.full(len(values), NONE, np.int64)
    rows = rows[np.argsort(column[rows], kind="stable")]
    at = np.minimum(np.searchsorted(column[rows], values), len(rows) - 1)
    return np.where(column[rows[at]] == values, rows[at], NONE)


def grouped(values: Column) -> list[tuple[int, Column]]:
    """(value, its places, ascending) of each distinct value."""
    order = np.argsort(values, kind="stable")
    distinct, first = np.unique(values[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(order, first[1:]), strict=False))


def by_end(end: Column, rows: Column) -> tuple[Column, Column]:
    """These rows in order of their ends, and these ends. end: of all rows."""
    order = rows[np.argsort(end[rows], kind="stable")]
    return order, end[order]


def last_ended(rows: Column, ends: Column, times: Column) -> Column:
    """For each time, the row that ended last by then, or NONE. `rows` are in order of `ends`."""
    if not len(rows):
        return np.full(len(times), NONE, np.int64)
    at = np.searchsorted(ends, times, side="right") - 1
    return np.where(at >= 0, rows[np.maximum(at, 0)], NONE)


def by_thread(trace: Slices, calls: Column) -> list[tuple[int, Column]]:
    """(lane, places in `calls` of the calls that this thread made)."""
    known = np.flatnonzero(calls != NONE)
    return [(lane, known[places]) for lane, places in grouped(trace.lane[calls[known]])]


def busy(trace: Slices, rows: Column) -> Intervals:
    """When any of these rows lasts."""
    start = trace.start[rows]
    return union(start, start + trace.duration[rows])


def own_time(trace: Slices, rows: Column, within: Intervals | None = None) -> Column:
    """For each of these rows its nanoseconds, without those of the rows inside of it.

    rows: in the trace's order; on a lane they are nested. within: only these times.
    """
    start, end = trace.start[rows], trace.start[rows] + trace.duration[rows]
    time = end - start if within is None else covered(within, start, end)
    own = time.copy()
    for _, here in grouped(trace.lane[rows]):
        # So many have begun before, so many are over.
        depth = np.arange(len(here)) - np.searchsorted(np.sort(end[here]), start[here], "right")
        for level in range(1, int(depth.max(initial=0)) + 1):
            inner, outer = here[depth == level], here[depth == level - 1]
            parent = np.searchsorted(outer, inner) - 1
            np.subtract.at(own, outer[parent[parent >= 0]], time[inner[parent >= 0]])
    clipped: Column = own.clip(0)
    return clipped


def launched_in(trace: Slices, rows: Column, wanted: Column) -> Column:
    """For each of these rows the innermost wanted slice around the start of its launch, or NONE.

    wanted: a mask of all rows.
    """
    return called_in(trace, launch_of(trace, rows), wanted)


def called_in(trace: Slices, calls: Column, wanted: Column) -> Column:
    """For each of these calls (NONE for none) the innermost wanted slice around its start, or
    NONE. wanted: a mask of all rows."""
    found = np.full(len(calls), NONE, np.int64)
    for lane, mine in by_thread(trace, calls):
        piece = trace.rows_of(lane)
        ranges = piece.start + np.flatnonzero(wanted[piece])
        start, called = trace.start[ranges], trace.start[calls[mine]]
        at = innermost(start, start + trace.duration[ranges], called)
        found[mine[at != NONE]] = ranges[at[at != NONE]]
    return found


def computes_on_host(trace: Slices, rows: Column) -> Column:
    """Which of these rows, of a rank without a GPU, compute: its operators, but not those that
    only hand a communication over."""
    hands_over = np.array([name.startswith(_HANDS_OVER) for name in trace.names], bool)
    return np.isin(trace.kind[rows], (Kind.OPERATOR, Kind.COMPUTE)) & ~hands_over[trace.name[rows]]


def innermost(starts: Column, ends: Column, times: Column) -> Column:
    """For each time, the index of the interval that began last of those that hold it, or NONE.

    starts: ascending; of equal ones the longer first. Intervals are half-open and may overlap in
    any way. Taken in blocks, so that memory grows with the intervals, and not with their number
    times its logarithm: what holds a time began in its block, or began before and is still open.
    """
    found = np.full(len(times), NONE, np.int64)
    order = np.argsort(times, kind="stable")
    firsts = np.arange(0, len(starts), _BLOCK)
    until = np.append(np.searchsorted(times[order], starts[firsts], side="left"), len(times))
    open_before = np.empty(0, np.int64)
    for first, low, high in zip(firsts.tolist(), until[:-1], until[1:], strict=True):
        rows = np.concatenate((open_before, np.arange(first, min(first + _BLOCK, len(starts)))))
        here = order[low:high]
        at = _innermost(starts[rows], ends[rows], times[here])
        found[here] = np.where(at == NONE, NONE, rows[at])
        if first + _BLOCK < len(starts):
            open_before = rows[ends[rows] > starts[first + _BLOCK]]
    return found


_BLOCK = 1 << 18  # intervals


def _innermost(starts: Column, ends: Column, times: Column) -> Column:
    """The same, with `reach[k][i]`, the last end of the 2^k intervals up to i: so that 2^k
    intervals which have all ended can be passed over at once."""
    at = np.searchsorted(starts, times, side="right") - 1
    if not len(starts):
        return at
    reach = [ends]
    while 1 << len(reach) <= len(ends):
        half = 1 << (len(reach) - 1)
        widest = reach[-1].copy()
        widest[half:] = np.maximum(widest[half:], reach[-1][:-half])
        reach.append(widest)
    for power in range(len(reach) - 1, -1, -1):
        over = (at >= 0) & (reach[power][np.maximum(at, 0)] <= times)
        at = np.where(over, np.maximum(at - (1 << power), NONE), at)
    return at
