"""The steps of every rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .slices import NONE, Column, Kind, Slices, once

_NUMBER = re.compile(r"step\s*[#:=_-]?\s*(\d{1,9})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """One step of one rank: [start, end) in nanoseconds, from the CPU-side annotation."""

    rank: int
    number: int
    start: int
    end: int


@once
def steps(trace: Slices) -> tuple[Step, ...]:
    """The steps of every rank, by rank and time, from the annotations on the CPU.

    Start and end are the annotation's own, except that an annotation which reaches into the next
    one ends where that begins. Of annotations inside each other the outermost counts, of several
    threads the one with the most, and where the profiler has numbered the steps itself
    (`ProfilerStep#N`) nothing else does. The number is the one in the name ("step 3"), or else the
    step's place, from 0. The GPU's copies of the annotations are never used: they begin with the
    first kernel, not with the step.

    A rank without such annotations has one step, from its first start to its last end, whose
    number is NONE; a rank without slices has none.
    """
    rows = np.flatnonzero(trace.kind == Kind.STEP)
    rows = rows[trace.stream[rows] == NONE]
    return tuple(
        step
        for rank in trace.ranks
        for step in _of_rank(trace, rank, rows[trace.rank[rows] == rank])
    )


def _of_rank(trace: Slices, rank: int, rows: Column) -> list[Step]:
    if not len(rows):
        return _whole(trace, rank)
    names = {int(name): trace.names[name] for name in np.unique(trace.name[rows])}
    profilers = [name for name, text in names.items() if text.startswith("ProfilerStep")]
    if profilers:
        rows = rows[np.isin(trace.name[rows], profilers)]
    rows = rows[trace.lane[rows] == np.bincount(trace.lane[rows]).argmax()]
    start = trace.start[rows]
    end = start + trace.duration[rows]
    before = np.concatenate(([start[0]], np.maximum.accumulate(end)[:-1]))
    outermost = (start >= before) | (end > before)
    rows, start, end = rows[outermost], start[outermost], end[outermost]
    end = np.minimum(end, np.concatenate((start[1:], end[-1:])))
    found = [_NUMBER.search(names[int(name)][:1000]) for name in trace.name[rows]]
    return [
        Step(rank, int(number[1]) if number else place, int(start[place]), int(end[place]))
        for place, number in enumerate(found)
    ]


def _whole(trace: Slices, rank: int) -> list[Step]:
    lanes = [at for at, lane in enumerate(trace.lanes) if lane.rank == rank]
    pieces = [rows for lane in lanes if (rows := trace.rows_of(lane)).stop > rows.start]
    if not pieces:
        return []
    start = min(int(trace.start[rows.start]) for rows in pieces)
    end = max(int((trace.start[rows] + trace.duration[rows]).max()) for rows in pieces)
    return [Step(rank, NONE, start, end)]
