"""What of a program's communication could be hidden, by what its operations need of each other.

The streams and the host are free: nothing waits for its turn, or for its launch, but for the
results that it needs. A communication can be hidden by what its rank computes, if neither needs the
other, directly or through others on any rank. A nanosecond of computing hides one of communication:
so what a rank can hide at most is the maximum flow from its communications to what it computes. Any
order of the program hides as much or less, as what runs at the same time is a flow, too.

No order ends before the longest chain of operations that need each other (the critical path, with
free resources), nor before each rank has computed, and communicated what it cannot hide.

Durations are those of the trace. A communication's is the time since its last rank has come. What
the host reads and decides by, `needs` does not know: so the least time may be too short. A buffer
that is written to again is one result that needs the other: with more buffers the least time may be
shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np

from ...trace.intervals import intersect, union
from ...trace.joins import on_device
from ...trace.matching import awaited, match
from ...trace.slices import Column, Kind, Slices

# By rank and launch the launches of the rank whose results it needs: `lockstep.virtual.needs()`.
Needs = Mapping[int, Mapping[int, Collection[int]]]


@dataclass(frozen=True)
class Overlap:
    """Nanoseconds. hidden, hideable: of all ranks' communication, what computing hides, and what it
    could hide at most. least: the time below which no order of the program is."""

    hidden: int
    hideable: int
    least: int

    @property
    def share(self) -> float:
        """The share of what could be hidden that is."""
        return self.hidden / max(self.hideable, 1)


def overlap(trace: Slices, needs: Needs) -> Overlap:
    """Say what the program hides and could hide, and how long it takes at least.

    trace: of ranks with one clock. A launch that is not in it is over when the trace begins.
    """
    rows = on_device(trace)
    came = _came(trace)
    node, before, finish = _graph(trace, rows, trace.end - came, needs)
    hideable = 0
    least = max(finish, default=0)
    for rank in trace.ranks:
        compute, sent = _apart(trace, rows, rank)
        computes = union(trace.start[compute], trace.end[compute])
        sends = union(came[sent], trace.end[sent])
        after = _bits(before, node[sent], node[compute])
        free = ~(after | _bits(before, node[compute], node[sent]).T)
        most = _flow(free, (trace.end - came)[sent], trace.duration[compute])
        hideable += most
        least = max(least, computes.total + sends.total - most)
    return Overlap(hidden(trace), hideable, least)


def hidden(trace: Slices) -> int:
    """Nanoseconds of all ranks' communication that computing hides."""
    rows, came, found = on_device(trace), _came(trace), 0
    for rank in trace.ranks:
        compute, sent = _apart(trace, rows, rank)
        computes = union(trace.start[compute], trace.end[compute])
        found += intersect(computes, union(came[sent], trace.end[sent])).total
    return found


def _apart(trace: Slices, rows: Column, rank: int) -> tuple[Column, Column]:
    """Return the rows, among these, of what a rank computes, and of what it communicates."""
    mine = rows[trace.rank[rows] == rank]
    compute, sent = (mine[trace.kind[mine] == kind] for kind in (Kind.COMPUTE, Kind.COMMUNICATION))
    return compute, sent


def _came(trace: Slices) -> Column:
    """When the last rank came to each communication; of all else its start."""
    found, came = match(trace), trace.start.copy()
    whom, waits = awaited(trace, found)
    last = np.maximum(found.start, found.each(found.start[whom]))
    came[found.row] = np.where(waits, np.minimum(last, found.end), found.start)
    return came


def _graph(
    trace: Slices, rows: Column, takes: Column, needs: Needs
) -> tuple[Column, list[int], list[int]]:
    """The node of each row, and of each node those before it, as bits, and when it ends at the
    earliest. All ranks' parts of a collective are one node."""
    node = np.arange(len(trace))
    found = match(trace)
    node[found.row] = found.each(found.row[found.first[:-1]])
    launched = defaultdict(list)
    for row in rows.tolist():
        launched[int(trace.rank[row]), int(trace.correlation[row])].append(int(node[row]))
    edges: dict[int, set[int]] = {int(one): set() for one in node[rows]}
    for (rank, launch), mine in launched.items():
        wanted = {at for one in needs[rank].get(launch, ()) for at in launched.get((rank, one), ())}
        for at in mine:
            edges[at] |= wanted - {at}
    before, finish = [0] * len(trace), [0] * len(trace)
    longest = np.zeros(len(trace), np.int64)
    np.maximum.at(longest, node, takes)
    for at in TopologicalSorter(edges).static_order():
        for one in edges[at]:
            before[at] |= before[one] | 1 << one
        finish[at] = max((finish[one] for one in edges[at]), default=0) + int(longest[at])
    return node, before, finish


def _bits(before: list[int], of: Column, which: Column) -> Column:
    """For each of these nodes (rows) whether those others (columns) are before it."""
    size = len(before) // 8 + 1
    table = np.zeros((len(of), len(which)), bool)
    for at, one in enumerate(of.tolist()):
        packed = np.frombuffer(before[one].to_bytes(size, "little"), np.uint8)
        table[at] = np.unpackbits(packed, bitorder="little")[which]
    return table


def _flow(free: Column, sends: Iterable[int], computes: Column) -> int:
    """The most of these communications (rows) that what may run with them (columns) hides."""
    import networkx  # torch has it, too

    if not free.size:
        return 0
    kinds, of = np.unique(free, axis=1, return_inverse=True)  # what may run with the same ones
    lasts = np.bincount(of.ravel(), computes, kinds.shape[1])
    graph = networkx.DiGraph()
    for at, time in enumerate(sends):
        graph.add_edge("all", ("sent", at), capacity=int(time))
    for at, time in enumerate(lasts.tolist()):
        graph.add_edge(("computed", at), "end", capacity=int(time))
    graph.add_edges_from((("sent", i), ("computed", j)) for i, j in np.argwhere(kinds).tolist())
    return int(networkx.maximum_flow_value(graph, "all", "end"))
