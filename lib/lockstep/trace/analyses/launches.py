"""The host's supply of its GPU: launch latency, queue depth, host-bound stretches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...base.formatting import microseconds, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..device import DeviceTimes, windows
from ..intervals import Intervals, Times, clip
from ..joins import launch_of, named, on_device, pieces
from ..slices import NONE, Column, Kind, Slices, TraceError
from ..steps import steps_by_rank
from ..unseen import LAUNCHES, refuse_unseen
from .wording import Answer

_NEVER = np.iinfo(np.int64).min
_HOWS = ("kernel", "copy", "graph")
GRAPH = re.compile("GraphLaunch", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one rank that launched something, all of one sort. Times in nanoseconds.

    how: "kernel", "copy" (copies and memsets), or "graph" (one call, many kernels).
    calls: how many. launched: what they launched: kernels, copies, memsets.
    host: time the host spent in these calls, in all.
    latency: (median, 90th percentile, largest) from a call's start to the start of the first thing
        that it launched. after_call: the same from the call's end; negative where the GPU began
        before the call returned.
    """

    rank: int
    how: str
    calls: int
    launched: int
    host: int
    latency: tuple[int, int, int]
    after_call: tuple[int, int, int]

    @property
    def per_call(self) -> float:
        """Kernels (or copies) that one call launches, on average."""
        return self.launched / self.calls

    @property
    def host_per_call(self) -> float:
        """Nanoseconds of the host for one call, on average."""
        return self.host / self.calls

    @property
    def host_per_launched(self) -> float:
        """Nanoseconds of the host for one kernel (or copy): what a graph makes small."""
        return self.host / self.launched


@dataclass(frozen=True, slots=True)
class LaunchQueue:
    """The lead of the host over one rank's GPU, from its first step's start to its last's end.

    depth: (median, 90th percentile, largest) number of kernels and copies whose call has returned
        and which have not begun, weighted by time. length: nanoseconds looked at.
    empty: nanoseconds of it in which nothing was queued, the GPU busy or not.
    host_bound: nanoseconds in which the GPU idled because what it ran next had not been launched
        (as in `breakdown`). stretches: how many such stretches. longest: the longest of them.
    """

    rank: int
    length: int
    depth: tuple[int, int, int]
    empty: int
    host_bound: int
    stretches: int
    longest: int

    @property
    def share(self) -> float:
        """The host-bound share of the time."""
        return self.host_bound / self.length if self.length else 0.0


@dataclass(frozen=True)
class Launches(Answer):
    """Calls by rank and sort, queues by rank.

    depths: rank → (times, depth): depth[i] kernels are queued from times[i] to times[i + 1].
    stretches: rank → its host-bound intervals. Ranks without a GPU are in none of these.
    """

    calls: tuple[Calls, ...]
    queues: tuple[LaunchQueue, ...]
    notes: tuple[str, ...]
    stamp: Provenance
    depths: Mapping[int, tuple[Times, Times]] = field(repr=False, compare=False)
    stretches: Mapping[int, Intervals] = field(repr=False, compare=False)

    def of(self, rank: int, how: str) -> Calls:
        """The calls of a rank of one sort. Raises TraceError where there are none."""
        for calls in self.calls:
            if (calls.rank, calls.how) == (rank, how):
                return calls
        known = ", ".join(f"rank {calls.rank} {calls.how}" for calls in self.calls) or "none"
        raise TraceError(f"there are no {how} launches of rank {rank}; there are: {known}")

    def queue(self, rank: int) -> LaunchQueue:
        """The queue of a rank. Raises TraceError where it launched nothing."""
        for queue in self.queues:
            if queue.rank == rank:
                return queue
        known = ", ".join(str(queue.rank) for queue in self.queues) or "none"
        raise TraceError(f"rank {rank} has nothing on a GPU; ranks that have: {known}")

    def __str__(self) -> str:
        if not self.queues:
            return "nothing was launched on a GPU"
        return super().__str__()

    def _tables(self) -> tuple[Table, Table]:
        calls = self._table(
            "launches · µs: median / 90th percentile / largest",
            [
                *("rank", "launches", "calls", "kernels or copies", "per call", "host per call"),
                *("host per kernel or copy", "call to begin", "return to begin"),
            ],
            [
                [
                    *(one.rank, one.how, f"{one.calls:,}", f"{one.launched:,}"),
                    *(f"{one.per_call:,.1f}", microseconds(one.host_per_call, 2)),
                    microseconds(one.host_per_launched, 2),
                    *(_micro(one.latency), _micro(one.after_call)),
                ]
                for one in self.calls
            ],
        )
        queues = self._table(
            "queue of the GPU · depth: median / 90th percentile / largest · ms",
            [
                *("rank", "length", "queued", "nothing queued", "share", "host-bound", "share"),
                *("stretches", "longest"),
            ],
            [
                [
                    *(one.rank, milliseconds(one.length)),
                    " / ".join(f"{depth:,}" for depth in one.depth),
                    *(milliseconds(one.empty), percent(one.empty / max(one.length, 1), 1)),
                    *(milliseconds(one.host_bound), percent(one.share, 1)),
                    *(f"{one.stretches:,}", milliseconds(one.longest)),
                ]
                for one in self.queues
            ],
        )
        return calls, queues


def _micro(times: tuple[int, int, int]) -> str:
    return " / ".join(microseconds(time, 2) for time in times)


def launches(trace: Slices) -> Launches:
    """Every call joined to what it launched, by rank and correlation.

    A call is a graph's if it launched more than one thing or is named so, a copy's if it launched
    a copy or memset, else a kernel's. Of a graph, latencies are those of its first kernel. A kernel
    is queued from the return of its call until it begins; not at all if it begins before that.
    Calls and latencies are of the whole trace, queues of its steps. Several GPUs of one rank
    count together. Raises TraceError for a trace without what the devices did (see `unseen`).
    """
    refuse_unseen(trace)
    device = on_device(trace)
    calls = launch_of(trace, device)
    own = steps_by_rank(trace)
    groups: list[Calls] = []
    queues: list[LaunchQueue] = []
    depths: dict[int, tuple[Times, Times]] = {}
    stretches: dict[int, Intervals] = {}
    notes: list[str] = []
    for rank, piece in pieces(trace, device).items():
        rows, their = device[piece], calls[piece]
        groups += _calls(trace, rank, rows, their)
        notes += _notes(trace, rank, rows, their)
        work = DeviceTimes(trace, rows, their)
        bounds = windows(own[rank], work)
        start, end = int(bounds[0]), int(bounds[-1])
        host_bound = clip(work.idle(start)[0], start, end)
        depths[rank], stretches[rank] = _depth(work, start, end), host_bound
        queues.append(_queue(rank, *depths[rank], host_bound))
    return Launches(tuple(groups), tuple(queues), tuple(notes), trace.provenance, depths, stretches)


def _calls(trace: Slices, rank: int, rows: Column, calls: Column) -> list[Calls]:
    rows, calls = rows[calls != NONE], calls[calls != NONE]
    order = np.lexsort((trace.start[rows], calls))
    rows, calls = rows[order], calls[order]
    calls, first, launched = np.unique(calls, return_index=True, return_counts=True)
    first = rows[first]
    graph = (launched > 1) | named(trace, GRAPH)[trace.name[calls]]
    copy = ~graph & np.isin(trace.kind[first], (Kind.COPY, Kind.SET))
    found = []
    for how, among in zip(_HOWS, (~graph & ~copy, copy, graph), strict=True):
        if among.any():
            begun, called = trace.start[first[among]], trace.start[calls[among]]
            host = trace.duration[calls[among]]
            found.append(
                Calls(
                    rank,
                    how,
                    calls=int(among.sum()),
                    launched=int(launched[among].sum()),
                    host=int(host.sum()),
                    latency=_quantiles(begun - called),
                    after_call=_quantiles(begun - called - host),
                )
            )
    return found


def _quantiles(times: Times) -> tuple[int, int, int]:
    """(median, 90th percentile, largest): values that occur, the lower where two are next to it."""
    median, high = np.quantile(times, [0.5, 0.9], method="inverted_cdf")
    return int(median), int(high), int(times.max())


def _depth(work: DeviceTimes, start: int, end: int) -> tuple[Times, Times]:
    """(times, depth) over [start, end]; the last time is `end`, with nothing after it."""
    begun = np.clip(work.start[work.known], start, end)
    queued = np.minimum(np.clip(work.returned[work.known], start, end), begun)
    times = np.concatenate((queued, begun, [start, end]))
    change = np.concatenate((np.ones_like(queued), -np.ones_like(begun), [0, 0]))
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(change[order])
    last = np.append(times[1:] > times[:-1], True)  # of several at one time the last holds
    return times[last], depth[last]


def _queue(rank: int, times: Times, depth: Times, host_bound: Intervals) -> LaunchQueue:
    lasting, depth = np.diff(times), depth[:-1]
    order = np.argsort(depth, kind="stable")
    shares, sorted_depth = np.cumsum(lasting[order]), depth[order]
    length = int(times[-1] - times[0])
    # In integers: the depths that are not exceeded for half and for nine tenths of the time.
    needed = np.array([-(-length // 2), -(-length * 9 // 10)])
    quantiles = sorted_depth[np.searchsorted(shares, needed)] if length else np.zeros(2, np.int64)
    lengths = host_bound.ends - host_bound.starts
    return LaunchQueue(
        rank,
        length=length,
        depth=(int(quantiles[0]), int(quantiles[1]), int(depth.max(initial=0))),
        empty=int(lasting[depth == 0].sum()),
        host_bound=host_bound.total,
        stretches=len(lengths),
        longest=int(lengths.max(initial=0)),
    )


def _notes(trace: Slices, rank: int, rows: Column, calls: Column) -> list[str]:
    notes = []
    if lost := int(np.count_nonzero(calls == NONE)):
        notes.append(
            f"rank {rank}: the launches of {lost:,} of {len(rows):,} kernels and copies are "
            "not in the trace; these are not counted here"
        )
    made = trace.where(Kind.LAUNCH, rank=rank)
    made = made[named(trace, LAUNCHES)[trace.name[made]]]
    if idle := int(np.count_nonzero(~np.isin(made, calls))):
        notes.append(
            f"rank {rank}: what {idle:,} of {len(made):,} launching calls launched is not in "
            "the trace; these are not counted here"
        )
    gpus = {lane.device for lane in trace.lanes if lane.rank == rank and lane.on_device}
    if len(gpus) > 1:
        notes.append(
            f"rank {rank}: its {len(gpus)} GPUs are counted together: idle time is "
            "when all of them idle"
        )
    early = np.count_nonzero(
        trace.start[rows] < np.where(calls == NONE, _NEVER, trace.start[calls])
    )
    if early:
        notes.append(
            f"rank {rank}: {early:,} kernels and copies begin before they are launched: the clocks "
            "of its host and its GPU disagree, and its latencies are too small"
        )
    return notes
