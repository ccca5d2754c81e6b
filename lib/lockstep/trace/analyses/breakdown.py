"""The breakdown of each rank's time, step by step, in numbers that add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ...base.formatting import milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..device import DeviceTimes, windows
from ..intervals import Times, covered, join
from ..joins import busy, computes_on_host, launch_of, on_device, pieces
from ..slices import NONE, Column, Kind, Slices, TraceError
from ..steps import Step, steps_by_rank
from ..unseen import damaged, doubtful, lossy, lost_kernels, unseen
from .wording import Answer


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of one rank in one step, split up; in all steps where `step` is None.

    Integers, nanoseconds. step: its number; NONE where the trace names no steps. device: the index
    of the GPU, NONE where the rank has one or none. Of [start, end):
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
    device: int = NONE

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
class Breakdown(Answer):
    """The time of each rank and step, split up, and each rank's total.

    A rank whose process drives several GPUs has an entry for each of them. left_out: for each
    rank, the numbers of the steps that `skip` left out. notes: what the numbers do not say by
    themselves, in sentences. unseen: rank → why nothing can be said of it; it has no entry.
    doubts: why numbers may be wrong, in sentences. lost: rank → the share of its launching calls,
    0 … 1, whose kernels are missing in the trace; more than a few make its idle time unknown, and
    the rank is one of `lossy`.
    """

    steps: tuple[Spent, ...]
    totals: tuple[Spent, ...]
    left_out: dict[int, tuple[int, ...]]
    notes: tuple[str, ...]
    stamp: Provenance
    unseen: dict[int, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    lost: dict[int, float] = field(default_factory=dict)
    lossy: dict[int, str] = field(default_factory=dict)

    @property
    def whole(self) -> Breakdown:
        """The same without `lossy` ranks. Raises TraceError, with the reasons, where all are."""
        totals, steps = (
            tuple(one for one in those if one.rank not in self.lossy)
            for those in (self.totals, self.steps)
        )
        if not totals:
            raise TraceError("; ".join(self.lossy.values()))
        return replace(self, totals=totals, steps=steps)

    def of(self, rank: int, step: int | None = None, *, device: int | None = None) -> Spent:
        """Return the split time of this rank in this step; of all its steps without a step.

        device: the GPU, which must be said where the rank has several. Raises TraceError, naming
        what there is, where there is none, and where there are several.
        """
        every = self.totals if step is None else self.steps
        found = [
            spent
            for spent in every
            if (spent.rank, spent.step) == (rank, step) and device in (None, spent.device)
        ]
        if len(found) == 1:
            return found[0]
        devices = ", ".join(str(one.device) for one in self.totals if one.rank == rank)
        if found:
            raise TraceError(f"rank {rank} has several GPUs: choose one with device=, of {devices}")
        if rank in self.unseen:
            raise TraceError(self.unseen[rank])
        if device is not None and rank in self.left_out:
            raise TraceError(f"rank {rank} has no GPU {device} in this breakdown: {devices}")
        if rank not in {spent.rank for spent in every}:
            known = ", ".join(str(spent.rank) for spent in self.totals) or "none"
            raise TraceError(f"there is no rank {rank} in this breakdown; there are: {known}")
        known = ", ".join(str(spent.step) for spent in self.steps if spent.rank == rank)
        raise TraceError(f"rank {rank} has no step {step} in this breakdown; it has: {known}")

    def _first(self) -> list[str]:
        return [*(f"{why}: left out" for why in self.unseen.values()), *self.doubts]

    def _tables(self) -> list[Table]:
        """Milliseconds, and the same as shares: a cell has one number."""
        who = [[_whose(spent), self._steps(spent)] for spent in self.totals]
        return [
            self._table(
                f"breakdown{self._without()} · ms",
                ["rank", "steps", "length", *_PARTS, "communication"],
                [[*own, *_times(spent)] for own, spent in zip(who, self.totals, strict=True)],
            ),
            self._table(
                "shares of the length · overlapped: of the communication",
                ["rank", "steps", *_PARTS, "overlapped"],
                [[*own, *_shares(spent)] for own, spent in zip(who, self.totals, strict=True)],
            ),
        ]

    def _steps(self, total: Spent) -> str:
        of = total.rank, total.device
        own = [one.step for one in self.steps if (one.rank, one.device) == of]
        return "whole trace" if own == [NONE] else str(len(own))

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


def _whose(spent: Spent) -> str:
    return str(spent.rank) if spent.device == NONE else f"{spent.rank}, GPU {spent.device}"


_PARTS = (
    *("compute", "exposed communication", "exposed copies"),
    *("host-bound", "dependency", "other idle"),
)


def _parts(spent: Spent) -> list[int]:
    """Return the seconds of `_PARTS`, which add up to the length."""
    busy = [spent.compute, spent.exposed, spent.copies]
    return [*busy, spent.host_bound, spent.dependency, spent.other]


def _times(spent: Spent) -> list[str]:
    times = [spent.length, *_parts(spent), spent.communication]
    return [milliseconds(time) for time in times]


def _shares(spent: Spent) -> list[str]:
    shares = [part / max(spent.length, 1) for part in _parts(spent)]
    of_communication = "–" if spent.overlap is None else percent(spent.overlap, 1)
    return [*(percent(share, 1) for share in shares), of_communication]


def breakdown(trace: Slices, *, skip: int = 0) -> Breakdown:
    """Split up each rank's time, per step and in all.

    A step lasts from its annotation's start on the CPU to the next one's start, so that nothing is
    counted twice or lost; the last step lasts until its annotation ends and all that was launched
    by then has run. Work is counted in the step in which it runs, though the step before may have
    launched it. `skip=1` leaves out the first step of each rank, and the table says so.

    A rank with a GPU is broken down by what runs on its streams, and by nothing else; the streams
    of one GPU count together. A rank whose GPU's work is not in the trace is left out (see
    `unseen`). A rank without one computes while an operator runs on any thread, those that
    only hand over a communication (`c10d::…`) excepted, and communicates while gloo does; its idle
    time is "other", as nothing is launched.

    Raises TraceError where a rank has no more than `skip` steps, where the trace has no slices, or
    of no rank what its device did.
    """
    if skip < 0:
        raise TraceError(f"skip={skip}: the number of steps to leave out must be 0 or more")
    of_rank = steps_by_rank(trace)
    if not of_rank:
        raise TraceError("this trace has no slices, so there is nothing to break down")
    silent = unseen(trace)
    if set(silent) >= set(of_rank):
        raise TraceError("; ".join(silent.values()))
    device = on_device(trace)
    calls = launch_of(trace, device)
    of_device = pieces(trace, device)
    every: list[Spent] = []
    totals: list[Spent] = []
    left_out: dict[int, tuple[int, ...]] = {}
    notes: list[str] = []
    for rank, own in of_rank.items():
        if rank in silent:
            continue
        if len(own) <= skip:
            has = "no step annotations" if own[0].number == NONE else f"{len(own)} steps"
            raise TraceError(f"rank {rank} has {has}, so skip={skip} leaves nothing of it")
        piece = of_device.get(rank, slice(0))
        work = DeviceTimes(trace, device[piece], calls[piece])
        bounds = windows(own, work)
        left_out[rank] = tuple(step.number for step in own[:skip])
        for gpu, rows, called in _by_gpu(trace, device[piece], calls[piece]):
            if rank in of_device:
                columns = _on_device(DeviceTimes(trace, rows, called), bounds)[:, skip:]
            else:
                columns = _on_host(trace, rank, bounds)[:, skip:]
            starts, ends = bounds[skip:-1].tolist(), bounds[skip + 1 :].tolist()
            numbers = [step.number for step in own[skip:]]
            of_steps = zip(numbers, starts, ends, columns.T.tolist(), strict=True)
            every += [Spent(rank, *of, *[*values, gpu]) for *of, values in of_steps]
            sums = [*columns.sum(axis=1).tolist(), gpu]
            totals.append(Spent(rank, None, starts[0], ends[-1], *sums))
        notes += _notes(rank, own[skip:], work, bounds[skip:])
    return Breakdown(
        *(tuple(every), tuple(totals), left_out, tuple(notes), trace.provenance, dict(silent)),
        doubts=(*damaged(trace).values(), *doubtful(trace).values(), *lossy(trace).values()),
        lost={rank: one.share for rank, one in lost_kernels(trace).items()},
        lossy=lossy(trace),
    )


def _by_gpu(trace: Slices, rows: Column, calls: Column) -> list[tuple[int, Column, Column]]:
    """(index of the GPU, NONE where there is but one; its rows; their launches)."""
    gpus = np.array([lane.device for lane in trace.lanes], np.int64)[trace.lane[rows]]
    several = np.unique(gpus)
    if len(several) < 2:
        return [(NONE, rows, calls)]
    return [(int(gpu), rows[gpus == gpu], calls[gpus == gpu]) for gpu in several]


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
    works = busy(trace, rows[computes_on_host(trace, rows)])
    talks = busy(trace, trace.where(Kind.COMMUNICATION, rank=rank))
    compute, communication, either = (
        covered(times, bounds[:-1], bounds[1:]) for times in (works, talks, join(works, talks))
    )
    nothing = np.zeros_like(compute)
    overlapped = compute + communication - either
    return np.stack(
        [compute, communication, overlapped, nothing, nothing, nothing, np.diff(bounds) - either]
    )


def _notes(rank: int, own: Sequence[Step], work: DeviceTimes, bounds: Times) -> list[str]:
    notes = []
    if own[0].number == NONE:
        notes.append(f"rank {rank} names no steps: its whole trace counts as one")
    between = int(sum(after.start - before.end for before, after in pairwise(own)))
    if between * 100 > (length := int(bounds[-1] - bounds[0])):
        notes.append(
            f"rank {rank}: {percent(between / length, 1)} of the time is between its step "
            "annotations, and is counted to the step before"
        )
    lost = int(np.count_nonzero(~work.known))
    if lost:
        notes.append(
            f"rank {rank}: the launches of {lost:,} of {len(work.rows):,} kernels and copies "
            "are not in the trace; idle time before these counts as other"
        )
    return notes
