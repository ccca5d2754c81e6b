"""Sets of times as sorted, disjoint, half-open intervals: two int64 arrays, starts and ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


class Intervals(NamedTuple):
    """[starts[i], ends[i]) in nanoseconds; ascending, not empty, not touching each other."""

    starts: Times
    ends: Times

    @property
    def total(self) -> int:
        """Nanoseconds that are covered."""
        return int((self.ends - self.starts).sum())


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Times, ends: Times) -> Intervals:
    """Return what any of these (unordered, perhaps overlapping or empty) intervals covers."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(starts[first], ends[last])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return what both cover."""
    return _where(a, b, lambda in_a, in_b: in_a & in_b)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return what `a` covers and `b` does not."""
    return _where(a, b, lambda in_a, in_b: in_a & ~in_b)


def join(a: Intervals, b: Intervals) -> Intervals:
    """Return what either covers."""
    return union(np.concatenate((a.starts, b.starts)), np.concatenate((a.ends, b.ends)))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return what `a` covers of [start, end)."""
    return intersect(a, union(np.array([start], np.int64), np.array([end], np.int64)))


def covered(a: Intervals, starts: Times, ends: Times) -> Times:
    """For each [starts[i], ends[i]), in any order, the nanoseconds of it that `a` covers."""
    return _before(a, ends) - _before(a, starts)


def _before(a: Intervals, times: Times) -> Times:
    """For each time, the nanoseconds that `a` covers before it."""
    if not len(a.starts):
        return np.zeros(len(times), np.int64)
    whole = np.concatenate(([0], np.cumsum(a.ends - a.starts)))
    at = np.searchsorted(a.starts, times, side="right")  # intervals begun by then
    open_until = a.ends[np.maximum(at - 1, 0)]
    too_much = np.where(at > 0, np.maximum(open_until - times, 0), 0)
    return whole[at] - too_much


def _where(a: Intervals, b: Intervals, keep) -> Intervals:  # type: ignore[no-untyped-def]
    # Equal times make intervals of no length, which nothing covers: no need for np.unique, which
    # takes ten times as long.
    times = np.sort(np.concatenate((a.starts, a.ends, b.starts, b.ends)))
    if len(times) < 2:
        return EMPTY
    starts, ends = times[:-1], times[1:]
    kept = keep(covered(a, starts, ends) > 0, covered(b, starts, ends) > 0)
    return union(starts[kept], ends[kept])
