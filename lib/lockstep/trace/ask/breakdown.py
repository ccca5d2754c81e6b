"""What each rank's time went to, step by step, as numbers that add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...figures.table import Table, table
from ...stamps import Stamp
from ...words import milliseconds, printable
from ..device import DeviceTimes, windows
from ..intervals import Intervals, Times, covered, join, union
from ..joins import computes_on_host, launch_of, on_device, pieces
from ..slices import NONE, Column, Kind, Slices, TraceError
from ..steps import Step, steps
from .wording import with_notes


@dataclass(frozen=True, slots=True)
class Spent:
    """What the time of one rank went to, in one step or, where step is None, in all of them.

    Integers, nanoseconds. step: its number; NONE where the trace names no steps. Of [start, end):
    compute, communication: while any kernel of that kind runs; overlapped: while both do.
    copies: while copies or memsets run and no kernel does.
    host_bound: nothing runs, and the call that launches what runs next has not returned yet.
    dependency: nothing runs, though what runs next has been launched: it waits for an event, for
        another rank, for what is before it in its stream or graph, or for the GPU to begin it.
    other: nothing runs, and of what runs next the trace has no launch, or nothing runs any more.

    compute + exposed + copies + host_bound + dependency + other == length, exactly.
    """

    rank: int
    step: int | None
    start: int
    end: int
    compute: int
    communication: int
    overlapped: int
    copies: int
    host_bound: int
    dependency: int
    other: int

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def exposed(self) -> int:
        """Communication that no computation hides: communication − overlapped."""
        return self.communication - self.overlapped

    @property
    def idle(self) -> int:
        return self.host_bound + self.dependency + self.other

    @property
    def overlap(self) -> float | None:
        """|communication ∩ compute| / |communication|; None where there is no communication."""
        return self.overlapped / self.communication if self.communication else None


@dataclass(frozen=True)
class Breakdown:
    """What time went to, by rank and step, and each rank's total.

    left_out: for each rank, the numbers of the steps that `skip` left out. notes: what the numbers
    do not say by themselves, in sentences.
    """

    steps: tuple[Spent, ...]
    totals: tuple[Spent, ...]
    left_out: dict[int, tuple[int, ...]]
    notes: tuple[str, ...]
    stamp: Stamp

    def of(self, rank: int, step: int | None = None) -> Spent:
        """What the time of this rank went to in this step; of all its steps without a step.

        Raises TraceError, naming what there is, where there is none.
        """
        every = self.totals if step is None else self.steps
        for spent in every:
            if (spent.rank, spent.step) == (rank, step):
                return spent
        if rank not in {spent.rank for spent in every}:
            known = ", ".join(str(spent.rank) for spent in self.totals) or "none"
            raise TraceError(f"there is no rank {rank} in this breakdown; there are: {known}")
        known = ", ".join(str(spent.step) for spent in self.steps if spent.rank == rank)
        raise TraceError(f"rank {rank} has no step {step} in this breakdown; it has: {known}")

    def by_step(self) -> Table:
        """The table of every rank and step, to be shown."""
        return self._table(self.steps)

    def __str__(self) -> str:
        return printable("\n".join([repr(self._table(self.totals)), *self.notes]))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return with_notes(self._table(self.totals), self.notes)

    def _table(self, every: Sequence[Spent]) -> Table:
        columns = ["rank", "step"] if every is self.steps else ["rank", "steps"]
        columns += ["length", "compute", "exposed communication", "exposed copies"]
        columns += ["host-bound", "dependency", "other idle", "communication", "overlap"]
        rows = [[spent.rank, self._step(spent), *_cells(spent)] for spent in every]
        return table(f"breakdown{self._without()} · ms", columns, rows, stamp=self.stamp)

    def _step(self, spent: Spent) -> str:
        if spent.step is None:
            own = [one.step for one in self.steps if one.rank == spent.rank]
            return "whole trace" if own == [NONE] else str(len(own))
        return "whole trace" if spent.step == NONE else str(spent.step)

    def _without(self) -> str:
        distinct = set(self.left_out.values())
        if distinct <= {()}:
            return ""
        if len(distinct) > 1:
            return f" without the first {max(map(len, distinct))} steps of each rank"
        numbers = [str(number) for number in distinct.pop()]
        if len(numbers) == 1:
            return f" without step {numbers[0]}"
        return f" without steps {', '.join(numbers[:-1])} and {numbers[-1]}"


def _cells(spent: Spent) -> list[str]:
    shares = [
        spent.compute,
        spent.exposed,
        spent.copies,
        spent.host_bound,
        spent.dependency,
        spent.other,
    ]
    overlap = "no communication" if spent.overlap is None else f"{spent.overlap:.1%}"
    length = max(spent.length, 1)
    return [
        milliseconds(spent.length),
        *(f"{milliseconds(share)} ({share / length:.1%})" for share in shares),
        milliseconds(spent.communication),
        overlap,
    ]


def breakdown(trace: Slices, *, skip: int = 0) -> Breakdown:
    """What each rank's time went to, per step and in all.

    A step lasts from its annotation's start on the CPU to the next one's start, so that nothing is
    counted twice or lost; the last step lasts until its annotation ends and all that was launched
    by then has run. Work is counted in the step in which it runs, though the step before may have
    launched it. `skip=1` leaves out the first step of each rank, and the table says so.

    A rank with a GPU is broken down by what runs on its streams, and by nothing else; its streams
    count together. A rank without one computes while an operator runs on any thread, those that
    only hand over a communication (`c10d::…`) excepted, and communicates while gloo does; its idle
    time is "other", as nothing is launched.

    Raises TraceError where a rank has no more than `skip` steps, or the trace no slices.
    """
    if skip < 0:
        raise TraceError(f"skip={skip}: the number of steps to leave out is 0 or more")
    of_rank: dict[int, list[Step]] = {}
    for step in steps(trace):
        of_rank.setdefault(step.rank, []).append(step)
    if not of_rank:
        raise TraceError("this trace has no slices, so there is nothing to break down")
    device = on_device(trace)
    calls = launch_of(trace, device)
    of_device = pieces(trace, device)
    every: list[Spent] = []
    totals: list[Spent] = []
    left_out: dict[int, tuple[int, ...]] = {}
    notes: list[str] = []
    for rank, own in of_rank.items():
        if len(own) <= skip:
            has = "no step annotations" if own[0].number == NONE else f"{len(own)} steps"
            raise TraceError(f"rank {rank} has {has}, so skip={skip} leaves nothing of it")
        piece = of_device.get(rank, slice(0))
        work = DeviceTimes(trace, device[piece], calls[piece])
        bounds = windows(own, work)
        left_out[rank] = tuple(step.number for step in own[:skip])
        if rank in of_device:
            columns = _on_device(work, bounds)[:, skip:]
        else:
            columns = _on_host(trace, rank, bounds)[:, skip:]
        starts, ends = bounds[skip:-1].tolist(), bounds[skip + 1 :].tolist()
        numbers = [step.number for step in own[skip:]]
        every += [
            Spent(rank, *own_values, *values)
            for *own_values, values in zip(numbers, starts, ends, columns.T.tolist(), strict=True)
        ]
        totals.append(Spent(rank, None, starts[0], ends[-1], *columns.sum(axis=1).tolist()))
        notes += _notes(rank, own[skip:], work, bounds[skip:])
    return Breakdown(tuple(every), tuple(totals), left_out, tuple(notes), trace.provenance)


def _on_device(work: DeviceTimes, bounds: Times) -> Times:
    """One row each for Spent's fields from `compute` on, one column a step."""
    compute, communication, either, busy, host_bound, dependency = (
        covered(times, bounds[:-1], bounds[1:])
        for times in (
            work.compute,
            work.communication,
            work.kernels,
            work.busy,
            *work.idle(int(bounds[0])),
        )
    )
    other = np.diff(bounds) - busy - host_bound - dependency
    overlapped = compute + communication - either
    copies = busy - either
    return np.stack([compute, communication, overlapped, copies, host_bound, dependency, other])


def _on_host(trace: Slices, rank: int, bounds: Times) -> Times:
    """The same for a rank without a GPU."""
    rows = trace.where(rank=rank)
    works = _covers(trace, rows[computes_on_host(trace, rows)])
    talks = _covers(trace, trace.where(Kind.COMMUNICATION, rank=rank))
    compute, communication, either = (
        covered(times, bounds[:-1], bounds[1:]) for times in (works, talks, join(works, talks))
    )
    nothing = np.zeros_like(compute)
    overlapped = compute + communication - either
    return np.stack(
        [compute, communication, overlapped, nothing, nothing, nothing, np.diff(bounds) - either]
    )


def _covers(trace: Slices, rows: Column) -> Intervals:
    start = trace.start[rows]
    return union(start, start + trace.duration[rows])


def _notes(rank: int, own: Sequence[Step], work: DeviceTimes, bounds: Times) -> list[str]:
    notes = []
    if own[0].number == NONE:
        notes.append(f"rank {rank} names no steps: its whole trace counts as one")
    between = int(sum(after.start - before.end for before, after in pairwise(own)))
    if between * 100 > (length := int(bounds[-1] - bounds[0])):
        notes.append(
            f"rank {rank}: {between / length:.1%} of the time is between its step annotations, and "
            "counts to the step before"
        )
    lost = int(np.count_nonzero(~work.known))
    if lost:
        notes.append(
            f"rank {rank}: the launches of {lost:,} of {len(work.rows):,} kernels and copies are "
            "not in the trace; idle time before these is other"
        )
    return notes
