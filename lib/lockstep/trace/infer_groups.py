"""Which ranks form a group, where the trace does not say it: by when their collectives end.

A communicator's collectives come one after the other on one stream of each rank, and those that
synchronise end on all of its ranks at once. So the times between the ends of one stream's
collectives are the same on all ranks of a group, whatever their clocks show.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from .intervals import Times
from .slices import NONE, SYNCHRONISING, Column, Slices

_AGREE = 20_000  # ns by which times between ends differ in the median within one group, at most
_FEWEST = 8  # collectives of a stream that tell enough
_CLEARLY = 3  # times better than the next, else nothing is said


@dataclass(frozen=True)
class _Line:
    """The collectives of one stream of one rank. rows, ends: in order of time; names: of what."""

    rank: int
    rows: Column
    ends: Times
    what: Column


def guessed_groups(trace: Slices, rows: Column) -> tuple[Column, list[tuple[int, ...]]]:
    """For each of these rows (of unknown groups) the index of its group, NONE if that is not clear;
    and the ranks of the groups.

    Nothing is guessed where each rank has but one stream of such rows: then it may be the group of
    all. Two streams belong together where the same operations come in the same order, the times
    between their ends differ by less than 20 µs in the median, and no other stream of that rank
    fits nearly as well.
    """
    group = np.full(len(rows), NONE, np.int64)
    lines = _lines(trace, rows)
    of_rank: dict[int, list[int]] = defaultdict(list)
    for at, line in enumerate(lines):
        of_rank[line.rank].append(at)
    if len(of_rank) < 2 or max(map(len, of_rank.values())) < 2:
        return group, []
    import networkx  # only here, as that takes a while

    fits = networkx.Graph()
    fits.add_nodes_from(range(len(lines)))
    for rank, own in of_rank.items():
        for other, theirs in of_rank.items():
            if rank < other:
                fits.add_edges_from(_pairs(lines, own, theirs))
    groups: list[tuple[int, ...]] = []
    place = {int(row): at for at, row in enumerate(rows.tolist())}
    for same in map(sorted, networkx.connected_components(fits)):
        ranks = tuple(sorted(lines[at].rank for at in same))
        if len(set(ranks)) == len(ranks) > 1:
            for at in same:
                group[[place[row] for row in lines[at].rows.tolist()]] = len(groups)
            groups.append(ranks)
    return group, groups


def _lines(trace: Slices, rows: Column) -> list[_Line]:
    operation = np.array([one.operation for one in trace.known] or [""])
    names, code = np.unique(operation, return_inverse=True)
    synchronises = np.isin(names, sorted(SYNCHRONISING))
    lanes = trace.lane[rows]
    found = []
    for lane in np.unique(lanes).tolist():
        mine = rows[lanes == lane]
        mine = mine[np.argsort(trace.start[mine], kind="stable")]
        what = code[trace.collective[mine]]
        if len(mine) >= _FEWEST and synchronises[what].all():
            found.append(_Line(trace.lanes[lane].rank, mine, trace.end[mine], what))
    return found


def _pairs(lines: list[_Line], own: list[int], theirs: list[int]) -> list[tuple[int, int]]:
    """Lines of two ranks that are each other's only fit."""
    cost = np.array([[_apart(lines[a], lines[b]) for b in theirs] for a in own])
    pairs = []
    for at, row in enumerate(cost):
        best = int(row.argmin())
        rest = min([*np.delete(row, best), *np.delete(cost[:, best], at)], default=np.inf)
        if row[best] <= _AGREE and rest >= _CLEARLY * row[best]:
            pairs.append((own[at], theirs[best]))
    return pairs


def _apart(a: _Line, b: _Line) -> float:
    """Median nanoseconds by which the times between ends differ; infinite where lines differ."""
    if not np.array_equal(a.what, b.what):
        return np.inf
    return float(np.median(np.abs(np.diff(a.ends - b.ends)))) + 1
