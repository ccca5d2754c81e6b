"""Each stream by itself, and what stands out: kernels and launches of unusual length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.formatting import microseconds, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..device import DeviceTimes
from ..intervals import covered
from ..joins import grouped, launch_of, on_device, pieces
from ..slices import NONE, Column, Slices, TraceError
from ..unseen import refuse_unseen
from .wording import Answer, shortened

US = 1_000


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """One stream, from the first start to the last end on its rank's GPUs. Nanoseconds.

    busy: while anything runs on it. Idle, by what ends it: host_bound, what runs next has not been
    launched; dependency, it has; other, of what runs next there is no launch, or nothing follows.
    alone: of busy, while no other stream of the rank runs anything. gaps: how many stretches of
    idle time; longest: of them.
    """

    rank: int
    stream: int
    device: int
    count: int
    busy: int
    alone: int
    host_bound: int
    dependency: int
    other: int
    gaps: int
    longest: int

    @property
    def idle(self) -> int:
        return self.host_bound + self.dependency + self.other


@dataclass(frozen=True, slots=True)
class Outlier:
    """A kernel or call that stands out on one rank, of one kind, by name of the kernel or call.
    Nanoseconds.

    kind: "shorter than its launch" (a kernel, and the call that launched it took longer: the host
    can hardly keep up), "short" (a kernel below the limit), "long call" (a launching call above
    it), "late start" (the call returned, the stream was free, and the kernel began later than the
    limit). count: such ones. of: all of that name. time: of what stands out, in all. worst: the
    longest (of short kernels the shortest).
    """

    rank: int
    kind: str
    name: str
    count: int
    of: int
    time: int
    worst: int


@dataclass(frozen=True)
class Streams(Answer):
    """Streams by rank and number; outliers by rank and kind, those that took most time first."""

    streams: tuple[StreamTimes, ...]
    outliers: tuple[Outlier, ...]
    limits: tuple[int, int, int]
    stamp: Provenance

    def _notes(self) -> list[str]:
        short, call, late = (microseconds(limit, 1) for limit in self.limits)
        return [f"limits: short below {short} µs, long calls over {call} µs, late over {late} µs"]

    def _tables(self) -> tuple[Table, Table]:
        heads = ["rank", "stream", "kernels, copies", "busy", "share", "alone"]
        streams = self._table(
            "streams · ms",
            [*heads, "idle: host-bound", "dependency", "other", "gaps", "longest"],
            [
                [
                    *(one.rank, _whose(one), f"{one.count:,}"),
                    milliseconds(one.busy),
                    percent(one.busy / max(one.busy + one.idle, 1), 1),
                    *(milliseconds(one.alone), milliseconds(one.host_bound)),
                    *(milliseconds(one.dependency), milliseconds(one.other)),
                    *(f"{one.gaps:,}", milliseconds(one.longest)),
                ]
                for one in self.streams
            ],
        )
        top = [
            one
            for kind in _KINDS
            for one in [found for found in self.outliers if found.kind == kind][:_TOP]
        ]
        outliers = self._table(
            f"what stands out, {len(top)} of {len(self.outliers)} · ms, worst µs",
            ["rank", "what", "name", "count", "of", "time", "worst"],
            [
                [
                    *(one.rank, one.kind, shortened(one.name, 56), f"{one.count:,}"),
                    *(f"{one.of:,}", milliseconds(one.time), microseconds(one.worst, 1)),
                ]
                for one in top
            ],
        )
        return streams, outliers


_KINDS = ("shorter than its launch", "short", "long call", "late start")
_TOP = 4


def streams(
    trace: Slices, *, short: int = 10 * US, call: int = 50 * US, late: int = 100 * US
) -> Streams:
    """Each stream's busy and idle time, and the kernels and launches that stand out.

    short, call, late: limits in nanoseconds, see `Outlier`; those of Holistic Trace Analysis'
    launch statistics, where they are not given. Raises TraceError for a limit below 0, and for a
    trace without what the devices did (see `unseen`).
    """
    if min(short, call, late) < 0:
        raise TraceError("the limits of outliers must be 0 ns or more")
    refuse_unseen(trace)
    device = on_device(trace)
    calls = launch_of(trace, device)
    found: list[StreamTimes] = []
    outliers: list[Outlier] = []
    for rank, piece in pieces(trace, device).items():
        rows, their = device[piece], calls[piece]
        found += _streams(trace, rank, rows, their)
        outliers += _outliers(trace, rank, rows, their, (short, call, late))
    return Streams(tuple(found), tuple(outliers), (short, call, late), trace.provenance)


def _streams(trace: Slices, rank: int, rows: Column, calls: Column) -> list[StreamTimes]:
    start, end = int(trace.start[rows].min()), int(trace.end[rows].max())
    lanes = trace.lane[rows]
    found = []
    for lane in np.unique(lanes).tolist():
        mine = lanes == lane
        work = DeviceTimes(trace, rows[mine], calls[mine])
        others = DeviceTimes(trace, rows[~mine], calls[~mine])
        host_bound, dependency = work.idle(start)
        both = int(covered(others.busy, work.busy.starts, work.busy.ends).sum())
        gaps = np.concatenate((work.busy.starts, [end])) - np.concatenate(([start], work.busy.ends))
        idle = end - start - work.busy.total
        found.append(
            StreamTimes(
                rank,
                trace.lanes[lane].stream,
                trace.lanes[lane].device,
                count=int(mine.sum()),
                busy=work.busy.total,
                alone=work.busy.total - both,
                host_bound=host_bound.total,
                dependency=dependency.total,
                other=idle - host_bound.total - dependency.total,
                gaps=int((gaps > 0).sum()),
                longest=int(gaps.max()),
            )
        )
    return found


def _outliers(
    trace: Slices, rank: int, rows: Column, calls: Column, limits: tuple[int, int, int]
) -> list[Outlier]:
    short, long, late = limits
    took = trace.duration[rows]
    known = calls != NONE
    own, first, launched = np.unique(calls[known], return_index=True, return_counts=True)
    called = trace.duration[own]
    # A graph's call launches many: its kernels are not held against it.
    single = np.zeros(len(rows), bool)
    single[np.flatnonzero(known)[first[launched == 1]]] = True
    host = np.where(known, trace.duration[calls], 0)
    waited = _after_free(trace, rows, calls)
    found = [
        *_by_name(trace, rank, _KINDS[0], rows, single & (took < host), took, worst=np.min),
        *_by_name(trace, rank, _KINDS[1], rows, took < short, took, worst=np.min),
        *_by_name(trace, rank, _KINDS[2], own, called > long, called, worst=np.max),
        *_by_name(trace, rank, _KINDS[3], rows, single & (waited > late), waited, worst=np.max),
    ]
    return found


def _after_free(trace: Slices, rows: Column, calls: Column) -> Column:
    """For each row the nanoseconds from its call's return, or from when the stream was free where
    that is later, until it began."""
    order = np.lexsort((trace.start[rows], trace.lane[rows]))
    ends = trace.end[rows[order]]
    free = np.empty(len(rows), np.int64)
    never = np.iinfo(np.int64).min
    for _, mine in grouped(trace.lane[rows[order]]):
        free[order[mine]] = np.concatenate(([never], np.maximum.accumulate(ends[mine])[:-1]))
    returned = np.where(calls != NONE, trace.end[calls], trace.start[rows])
    return trace.start[rows] - np.maximum(free, returned)


def _by_name(
    trace: Slices, rank: int, kind: str, rows: Column, which: Column, values: Column, *, worst: Any
) -> list[Outlier]:
    names = trace.name[rows]
    of = np.bincount(names, minlength=1)
    found = []
    for name in np.unique(names[which]).tolist():
        mine = values[which & (names == name)]
        text = trace.names[name]
        found.append(
            Outlier(rank, kind, text, len(mine), int(of[name]), int(mine.sum()), int(worst(mine)))
        )
    return sorted(found, key=lambda one: (-one.time, one.name))


def _whose(one: StreamTimes) -> str:
    return str(one.stream) if one.device == NONE else f"{one.stream} of GPU {one.device}"
