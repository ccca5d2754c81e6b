"""What a change would gain: the recorded program, replayed with some of its work faster.

The replay is a graph of moments: start and end of what devices do and of what their hosts call
(without a device: of what threads compute and communicate), and of each collective the moment at
which its last rank came. An edge says that one moment comes at least so long after another. Each
moment is as late as its edges demand. What the trace does not explain stays as a fixed gap behind
the edge that allowed a moment last, so that a replay without a change gives the measured times, and
one with shorter edges never takes longer.

The trace proves these edges: the order of a stream or thread; a launch, which takes at least as
long as the shortest of its rank; a collective, which ends so long after its last rank came; that
NCCL's stream waits for what its thread launched before (c10d makes it wait); a synchronising call;
a copy that ended inside its call. By timing only: that a kernel waited for what ended on another
stream at most `AT_ONCE` before, if that came last; that what a host does waited for what ended last
on any thread of its rank: a host keeps its pace.

A stream that waits for an event which is over leaves no trace. So there are two answers: `most`, as
if nothing waited in vain, and `least`, as if each kernel depended on everything that had ended on
its device when it started.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ...base.formatting import counted, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..joins import (
    by_end,
    computes_on_host,
    grouped,
    last_ended,
    launch_of,
    named,
    on_device,
    outermost,
)
from ..matching import awaited, match
from ..slices import DEVICE_KINDS, NONE, Column, Kind, Slices, TraceError
from ..steps import steps
from ..unseen import refuse_unseen, unseen
from .critical import AT_ONCE
from .wording import Answer, shortened

_NEVER = -(1 << 62)
# Sorts of moments, in their order at one time: a host's ends come after what it waited for.
_END, _ALL_ENDED, _ON_HOST, _START, _CAME = range(5)
_WAITS = re.compile("ynchronize|wait_tensor")
_ON_ALL = re.compile("DeviceSynchronize")
_TOP = 5  # kernels that are tried
_NO_TIME = 1 << 62  # times as fast
_NOTES = (
    "at most: as if streams waited only for what the trace shows; at least: as if each kernel "
    "waited for everything that had ended on its device",
    "no trace tells, so the replay cannot know, what Python waits for (queues, locks, polling) and "
    "how kernels at the same time slow each other down; communication whose other ranks are not in "
    "the trace counts what it waited as its work",
)


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain by one change, in nanoseconds of the whole recording.

    change: in words. removed: what is taken out of all ranks together, of work or of waiting for a
    rank. least, most: see the module's text; 0 ≤ least ≤ most ≤ removed.
    """

    change: str
    removed: int
    least: int
    most: int


@dataclass(frozen=True)
class WhatIf(Answer):
    """The gain by each change, the most first.

    length: nanoseconds from the replay's first moment to its last, as measured. steps: of a rank.
    """

    gains: tuple[Gain, ...]
    length: int
    steps: int
    notes: tuple[str, ...]
    stamp: Provenance

    def _tables(self) -> list[Table]:
        of = f"{milliseconds(self.length)} ms ({counted(self.steps, 'step')})"
        columns = ("change", "removed, all ranks", "gains at least", "at most", "of the time")
        rows = [
            (
                *(one.change, *map(milliseconds, (one.removed, one.least, one.most))),
                percent(one.most / self.length, 1),
            )
            for one in self.gains
        ]
        caption = f"what changes would gain of {of} · ms"
        return [self._table(caption, columns, rows)]


def what_if(trace: Slices, *kernels: str, times: int = 2) -> WhatIf:
    """Replay the program with each of these changes, and say what it gains.

    The changes: the computing kernels of each of these names, or else whose names contain it, run
    `times` as fast (without names, each of those that take the most time; without a GPU, outermost
    operators); communication takes no time once its last rank has come; nobody waits for the rank
    that is waited for most, which gains for the others.

    Raises TraceError for recorded traces of several ranks that have no common clock yet, without
    what the devices did (see `unseen`), for a name that no kernel has, and for a trace without
    work. Raises ValueError for times below 1.
    """
    if times < 1:
        raise ValueError(f"times={times}: kernels can be replayed 1 time as fast, or faster")
    if not trace.has_one_clock:
        raise TraceError("a replay across ranks needs one clock: call align(), and ask its result")
    refuse_unseen(trace)
    replay = Replay(trace)
    gains = [replay.faster(name, times) for name in kernels or replay.longest(_TOP)]
    if replay.communicates.any():
        gains.append(replay.shorter("no exposed communication", replay.communicates, _NO_TIME))
    if replay.waited[1].any():
        gains.append(replay.without_straggler())
    gains.sort(key=lambda one: -one.most)
    per_rank = len(steps(trace)) // len(trace.ranks)
    notes = [f"{why}: its kernels are not replayed" for why in unseen(trace).values()]
    return WhatIf(tuple(gains), replay.length, per_rank, (*notes, *_NOTES), trace.provenance)


class Replay:
    """The graph of a trace's moments, and how long it takes where edges are shorter."""

    def __init__(self, trace: Slices):
        self.trace = trace
        self.rows, self.device = _work(trace)
        if not len(self.rows):
            raise TraceError("nothing in this trace runs on a device, computes or communicates")
        self.place = np.full(len(trace) + 1, NONE, np.int64)  # row → index in `rows`
        self.place[self.rows] = np.arange(len(self.rows))
        self.call = np.where(self.device, self.place[launch_of(trace, self.rows)], NONE)
        self.rank, self.lane = trace.rank[self.rows], trace.lane[self.rows]
        self.start = trace.start[self.rows]
        self.end = np.maximum(trace.end[self.rows], self.start + 1)  # some are below the clock's 1
        self.length = int(self.end.max() - self.start.min())  # ns
        self.communicates = trace.kind[self.rows] == Kind.COMMUNICATION
        kernels = trace.kind[self.rows] == Kind.COMPUTE
        self.computes = np.where(self.device, kernels, computes_on_host(trace, self.rows))
        self.graph = _Graph()
        self.starts = self.graph.moments(self.start, _START)
        awaits = ~self.device & ~self.communicates
        self.ends = self.graph.moments(self.end, np.where(awaits, _ON_HOST, _END))
        self.ready = self.start.copy()  # when it goes on, if it waits for something inside
        self.inside = [(self.starts, np.arange(len(self.rows)))]
        self._order()
        self._launches()
        self._synchronisations()
        self._collectives()
        self.takes = self.end - self.ready
        for moments, work in self.inside:
            self.graph.edges(moments, self.ends[work], self.takes[work], work)
        self.graph.settle()

    def longest(self, count: int) -> list[str]:
        """The names of what computes that take the most time."""
        time = (self.end - self.start) * self.computes
        total = np.bincount(self.trace.name[self.rows], time)
        first = np.argsort(-total, kind="stable")[:count]
        return [self.trace.names[at] for at in first if total[at]]

    def faster(self, name: str, times: int) -> Gain:
        """The gain where what computes under this name runs `times` as fast."""
        names = self.trace.names
        fits = np.array([one == name if name in names else name in one for one in names])
        which = fits[self.trace.name[self.rows]] & self.computes
        if not which.any():
            raise TraceError(f"nothing that computes in this trace has {name!r} in its name")
        return self.shorter(f"{shortened(name, 40)}: {times} × as fast", which, times)

    def without_straggler(self) -> Gain:
        """The gain of the others, by their own last end, where nobody waits for the rank that is
        waited for most."""
        waited = np.bincount(*self.waited, 1)
        rank, graph = int(np.argmax(waited)), self.graph
        its = np.isin(graph.from_moment, self.starts[self.rank == rank])
        weight = np.where(its & np.isin(graph.to_moment, self.came), _NEVER, graph.weight)
        removed = int(waited[rank])
        return self._gain(f"nobody waits for rank {rank}", removed, weight, self.rank != rank)

    def shorter(self, change: str, which: Column, times: int) -> Gain:
        """The gain where this work takes 1/times of its time, once it need not wait any more."""
        saved = np.where(which, self.takes - self.takes // times, 0)
        weight = self.graph.weight - np.append(saved, 0)[self.graph.work]  # NONE is the last
        return self._gain(change, int(saved.sum()), weight, self.rank >= 0)

    def _gain(self, change: str, removed: int, weight: Column, of: Column) -> Gain:
        """The gain of this work's last end where edges take so long."""
        measured = int(self.end[of].max() - self.start.min())
        least, most = (
            measured - self.graph.last(weight, self.ends[of], least=one) for one in (True, False)
        )
        return Gain(change, removed, least, most)

    def _order(self) -> None:
        """All waits for what its stream, or thread, did before; for what ended on another one of
        the device just then, or of the host last; and, perhaps, for all of its device."""
        for _, here in grouped(self.lane):
            self._after(last_ended(*by_end(self.end, here), self.start[here]), here)
        self.all_ended = np.full(len(self.rows), NONE, np.int64)  # by the end of each
        for _, here in grouped(self.rank * 2 + self.device):
            ended, ends = by_end(self.end, here)
            sort = np.where(self.device[ended], _ALL_ENDED, _START)
            self.all_ended[ended] = moments = self.graph.moments(ends, sort)
            self.graph.edges(self.ends[ended], moments)
            self.graph.edges(moments[:-1], moments[1:])
            before = last_ended(ended, ends, self.start[here])
            some = before != NONE
            self.graph.edges(self.all_ended[before[some]], self.starts[here[some]], perhaps=True)
            late = self.device[here] & (self.end[before] < self.start[here] - AT_ONCE)
            self._after(np.where(late, NONE, before), here)

    def _after(self, before: Column, here: Column) -> None:
        """Each of these starts when the one before it, if any, has ended."""
        some = before != NONE
        self.graph.edges(self.ends[before[some]], self.starts[here[some]])

    def _launches(self) -> None:
        """A kernel starts a while after its call; NCCL's, after what was launched before it."""
        call, here = self.call, np.flatnonzero(self.call != NONE)
        latency = self.start[here] - self.start[call[here]]
        shortest = np.full(max(self.trace.ranks) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, self.rank[here], np.where(latency < 0, shortest[0], latency))
        takes = np.minimum(latency, shortest[self.rank[here]])
        self.graph.edges(self.starts[call[here]], self.starts[here], takes)
        own, others = here[self.communicates[here]], here[~self.communicates[here]]
        before = last_ended(*by_end(call, others), call[own] - 1)  # calls are in order of lanes
        same = self.lane[call[before]] == self.lane[call[own]]
        self._after(np.where(same, before, NONE), own)

    def _synchronisations(self) -> None:
        """A call that waits for its device, or for a communication, returns when that has ended; a
        call in which its copy ends, then."""
        names = self.trace.name[self.rows]
        waits = named(self.trace, _WAITS)[names] & ~self.device & ~self.communicates
        on_all = named(self.trace, _ON_ALL)[names]
        for _, here in grouped(self.rank):
            calls, done = here[waits[here]], here[self.device[here] | self.communicates[here]]
            whom = last_ended(*by_end(self.end, done), self.end[calls])
            calls, whom = calls[whom != NONE], whom[whom != NONE]
            moments = np.where(on_all[calls], self.all_ended[whom], self.ends[whom])
            self._inside(moments, calls, self.end[whom])
        held = (self.trace.kind[self.rows] == Kind.COPY) & (self.call != NONE)
        held &= (self.start[self.call] < self.end) & (self.end <= self.end[self.call])
        self._inside(self.ends[held], self.call[held], self.end[held])

    def _collectives(self) -> None:
        """Who waits in a collective ends so long after the last had come."""
        found = match(self.trace)
        whom, waits = awaited(self.trace, found)
        mine, latest = self.place[found.row], found.each(found.start[whom])
        waits &= (mine != NONE) & (latest < found.end)
        waited = (latest - found.start)[waits].clip(0)
        self.waited = found.each(found.rank[whom])[waits], waited  # for which rank, nanoseconds
        self.came = self.graph.moments(found.start[whom], _CAME)
        came = found.each(self.came)
        last = np.isin(found.row, found.row[whom])
        comes = (mine != NONE) & (last | found.each(found.synchronises))
        self.graph.edges(self.starts[mine[comes]], came[comes])
        self._inside(came[waits], mine[waits], latest[waits])

    def _inside(self, moments: Column, work: Column, times: Column) -> None:
        """This work waits, once it has started, for these moments, which came at these times."""
        np.maximum.at(self.ready, work, times)
        self.inside.append((moments, work))


def _work(trace: Slices) -> tuple[Column, Column]:
    """The rows of the work, and which of it is a device's.

    Of ranks with a device what that does, and the calls that launch it or wait; of others their
    outermost operators and communications. Ranks without a host (a schedule, say) are all device.
    """
    on_thread, every = trace.stream == NONE, np.arange(len(trace))
    with_device = np.isin(trace.rank, trace.rank[on_device(trace)])
    hosts = trace.rank[trace.where(Kind.OPERATOR, Kind.PYTHON, Kind.LAUNCH)]
    on_host = on_thread & np.isin(trace.rank, hosts)
    device = np.isin(trace.kind, DEVICE_KINDS) & (trace.duration > 0) & ~on_host
    calls = np.isin(every, launch_of(trace, np.flatnonzero(device)))
    calls |= np.isin(trace.kind, (Kind.LAUNCH, Kind.WAIT)) & named(trace, _WAITS)[trace.name]
    computing = trace.where(Kind.OPERATOR, Kind.COMPUTE)
    operators = np.isin(every, computing[outermost(trace, computing)])
    operators &= ~with_device & computes_on_host(trace, every)
    host = on_host & ((with_device & calls) | operators | (trace.kind == Kind.COMMUNICATION))
    rows = np.flatnonzero(device | host)
    return rows, device[rows]


class _Graph:
    """Moments, and the edges between them. Moments without edges stay where they were measured."""

    def __init__(self) -> None:
        self._moments: list[tuple[Column, ...]] = []
        self._edges: list[tuple[Column, ...]] = []
        self._count = 0

    def moments(self, time: Column, sort: Column | int) -> Column:
        """Add moments at these times (ns); returns their numbers."""
        self._moments.append((time, np.broadcast_to(sort, time.shape)))
        self._count += len(time)
        return np.arange(self._count - len(time), self._count)

    def edges(
        self, source: Column, target: Column, *about: Column | int, perhaps: bool = False
    ) -> None:
        """Add edges; about: the least nanoseconds (0), and the work that is done in them (NONE)."""
        rest = (*about, *(0, NONE)[len(about) :], perhaps)
        self._edges.append((source, target, *(np.broadcast_to(one, target.shape) for one in rest)))

    def settle(self) -> None:
        """Sort moments by time and edges by target, and make the last edge of each moment exact."""
        time, sort = map(np.concatenate, zip(*self._moments, strict=True))
        edges = list(map(np.concatenate, zip(*self._edges, strict=True)))
        order = np.lexsort((sort, time))
        self.place = np.argsort(order)
        time = time[order] - time.min()
        source, target, weight, _, perhaps = self.place[edges[0]], self.place[edges[1]], *edges[2:]
        reached = time[source] + weight
        holds = (source < target) & (weight >= 0) & (reached <= time[target])
        kept = np.lexsort((reached, ~perhaps, target))
        kept = kept[holds[kept]]
        self.source, self.target, self.sure = source[kept], target[kept], ~perhaps[kept]
        self.from_moment, self.to_moment, self.weight, self.work, _ = (one[kept] for one in edges)
        last = self.sure & (np.append(self.target[1:], NONE) != self.target)
        self.weight[last] = (time[self.target] - time[self.source])[last]
        self.measured = time
        self.measured[self.target[self.sure]] = _NEVER

    def last(self, weight: Column, moments: Column, *, least: bool) -> int:
        """Nanoseconds until the last of these moments, if edges take so long.

        One edge after the other, as each moment depends on those before it.
        """
        reached = self.measured.tolist()
        kept = slice(None) if least else self.sure
        edges = (column[kept].tolist() for column in (self.source, self.target, weight))
        for source, target, takes in zip(*edges, strict=True):
            if (then := reached[source] + takes) > reached[target]:
                reached[target] = then
        return max(reached[at] for at in self.place[moments].tolist())
