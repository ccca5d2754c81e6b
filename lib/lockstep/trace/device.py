"""The busy and the idle times of one rank's device, and what the idle ones waited for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .intervals import EMPTY, Intervals, Times, join, union
from .slices import NONE, Column, Kind, Slices
from .steps import Step

_UNKNOWN = np.iinfo(np.int64).max
_LONG_AGO = np.iinfo(np.int64).min


class DeviceTimes:
    """The work on one rank's device: rows of the trace, without those that took no time.

    start, end: nanoseconds. known: whether the launch is in the trace. called, returned: start and
    end of the launching call, where it is known. busy: when anything ran.
    """

    def __init__(self, trace: Slices, rows: Column, calls: Column):
        lasting = trace.duration[rows] > 0
        self.rows, self.calls = rows[lasting], calls[lasting]
        self.start = trace.start[self.rows]
        self.end = self.start + trace.duration[self.rows]
        self.kind = trace.kind[self.rows]
        self.known = self.calls != NONE
        self.called = trace.start[self.calls]
        self.returned = self.called + trace.duration[self.calls]
        compute, communication = self.kind == Kind.COMPUTE, self.kind == Kind.COMMUNICATION
        self.compute = union(self.start[compute], self.end[compute])
        self.communication = union(self.start[communication], self.end[communication])
        self.kernels = join(self.compute, self.communication)
        copies = ~(compute | communication)
        self.busy = self.kernels
        if copies.any():
            others = union(self.start[copies], self.end[copies])
            self.busy = join(self.kernels, others)

    def idle(self, since: int) -> tuple[Intervals, Intervals]:
        """Return the idle times from `since` to the last start: (host-bound, dependency).

        A gap belongs to what ends it. Until the call that launches that has returned, the host is
        late; from then on it is a dependency. What a graph runs after its first kernel was
        launched long ago.
        """
        if not len(self.start):
            return EMPTY, EMPTY
        gap_end = self.busy.starts
        gap_start = np.concatenate(([min(since, gap_end[0])], self.busy.ends[:-1]))
        gap = np.searchsorted(gap_end, self.start, side="right") - 1
        ends_it = (self.start == gap_end[gap]) & self.known
        launched = np.where(_first_of_call(self.calls, self.start), self.returned, _LONG_AGO)
        ready = np.full(len(gap_end), _UNKNOWN)
        np.minimum.at(ready, gap[ends_it], launched[ends_it])
        known = ready != _UNKNOWN
        ready = np.clip(ready, gap_start, gap_end)
        return _lasting(gap_start[known], ready[known]), _lasting(ready[known], gap_end[known])


def windows(own: Sequence[Step], work: DeviceTimes) -> Times:
    """The bounds of a rank's steps, one more than there are: step i is [bounds[i], bounds[i+1])."""
    last = own[-1].end
    begun = np.where(work.known, work.called, work.start) < last
    ends = work.end[begun & (work.end > last)]
    last = max(last, int(ends.max())) if len(ends) else last
    return np.array([*(step.start for step in own), last], np.int64)


def _first_of_call(calls: Column, start: Times) -> Column:
    """Whether a row is the first, or began with the first, of what its call launched."""
    order = np.lexsort((start, calls))
    calls, start = calls[order], start[order]
    heads = np.flatnonzero(np.concatenate(([True], calls[1:] != calls[:-1])))
    earliest = np.repeat(start[heads], np.diff(np.append(heads, len(calls))))
    first = np.empty(len(calls), bool)
    first[order] = start == earliest
    return first


def _lasting(starts: Times, ends: Times) -> Intervals:
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])
