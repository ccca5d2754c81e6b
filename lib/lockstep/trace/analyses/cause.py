"""The most likely cause of slow steps, as one word: a guess, with the numbers it rests on.

Signs that settle it come first: ranges of TorchDynamo or Inductor, and calls of `cudaMalloc` and
`cudaFree`, in steps after the first one (that one compiles, and fills the allocator's cache). Then,
whether one rank is late: the rank that waits least is, if the others' exposed communication is
mostly waiting for it. What that rank does more than the others says why; where nobody is late, what
takes most of the time besides computing does. Where that has no word here, there is none.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...base.formatting import milliseconds, percent, printable
from ..intervals import covered, union
from ..joins import launch_of, on_device
from ..slices import NONE, Slices, TraceError
from .breakdown import Breakdown, Spent, breakdown
from .collectives import collectives
from .launches import Launches, launches

CAUSES = (
    *("straggler", "starved input", "exposed communication", "launch-bound", "recompile"),
    *("allocator thrashing", "checkpoint"),
)
LITTLE = 0.1  # of a step: shares below are not what makes it slow
SHORT = 500_000  # nanoseconds between two launches that follow each other, by far; more is a pause
DRIVER = re.compile(r"^(cuda|hip)(Malloc|Free)(Async)?$")
_COMPILER = re.compile(r"\(dynamo_timed\)|compile_fx|compile_inner")  # not its cache lookups
_OWN = ("compute", "copies", "host_bound", "dependency", "other")
_PARTS = {
    "exposed": "exposed communication",
    "host_bound": "host-bound",
    "copies": "exposed copies",
    "dependency": "dependency",
    "other": "other idle",
}


@dataclass(frozen=True)
class Cause:
    """word: one of CAUSES, or "" where nothing but computing takes much time, or what has no word.

    rank: whose it is, None where all ranks are alike. share: which part of that rank's steps (else
    of the rank that waits least) it takes, 0 … 1. because: the numbers, in a sentence.
    """

    word: str
    rank: int | None
    share: float
    because: str

    def __str__(self) -> str:
        if not self.word:
            why = "nothing but computing" if self.share < LITTLE else "no word for it"
            return printable(f"{why}: {self.because}")
        whose = "all ranks alike" if self.rank is None else f"rank {self.rank}"
        return printable(f"{self.word}, {whose}, {percent(self.share)} of a step: {self.because}")


def cause(trace: Slices, *, skip: int = 0) -> Cause:
    """The likely cause of slow steps. skip: how many first steps of each rank to leave out.

    Raises TraceError where the breakdown does, or where ranks have no common clock.
    """
    found = breakdown(trace, skip=skip)
    own = min(found.totals, key=lambda one: _share(one, "exposed"))
    others = [one for one in found.totals if one.rank != own.rank]
    for word, names, what in (
        ("allocator thrashing", DRIVER, "calls of cudaMalloc and cudaFree"),
        ("recompile", _COMPILER, "ranges of the compiler"),
    ):
        share, times, steps = within(trace, found, own.rank, names)
        if share > LITTLE:
            rest = [within(trace, found, one.rank, names)[0] for one in others]
            said = f"{times / steps:,.0f} {what} a step on rank {own.rank}"
            return Cause(word, _alone(own.rank, share, rest), share, said)
    waiting = statistics.median([_share(one, "exposed") for one in others] or [0.0])
    more = waiting - _share(own, "exposed")
    if more > max(LITTLE, waiting / 2):
        return _late(trace, found, own, others, more)
    return _alike(trace, found, own)


def _share(one: Spent, part: str) -> float:
    return float(getattr(one, part)) / max(one.length, 1)


def _alone(rank: int, share: float, rest: Sequence[float]) -> int | None:
    """The rank, if the others do not have half as much of it."""
    return rank if rest and statistics.median(rest) < share / 2 else None


def within(
    trace: Slices, found: Breakdown, rank: int, names: re.Pattern[str]
) -> tuple[float, int, int]:
    """Return, for a rank's steps after the first, the share that slices of these names take, their
    number, and that of steps."""
    rows = np.flatnonzero(np.array([bool(names.search(one)) for one in trace.names])[trace.name])
    steps = [one for one in found.steps if one.rank == rank]
    steps = steps if found.left_out.get(rank) else steps[1:]
    own = rows[trace.rank[rows] == rank]
    starts = np.array([one.start for one in steps], np.int64)
    ends = np.array([one.end for one in steps], np.int64)
    spent = covered(union(trace.start[own], trace.end[own]), starts, ends)
    begun = np.searchsorted(np.sort(trace.start[own]), np.stack([starts, ends]))
    times = int((begun[1] - begun[0]).sum())
    return float(spent.sum()) / max(int((ends - starts).sum()), 1), times, max(len(steps), 1)


def _late(
    trace: Slices, found: Breakdown, own: Spent, others: Sequence[Spent], waits: float
) -> Cause:
    """One rank comes last: by what it does more than the others."""

    def more(part: str) -> float:
        return _share(own, part) - statistics.median(_share(one, part) for one in others)

    part = max(_OWN, key=more)
    said = f"the others wait {percent(waits)} of their steps more than rank {own.rank}"
    if part == "host_bound":
        late = _host(trace, found, own, others)
        because = f"{late.because}; {said}"
        if not late.word:
            return Cause("straggler", own.rank, waits, because)
        return Cause(late.word, late.rank, late.share, because)
    each = [_share(one, part) for one in found.steps if one.rank == own.rank]
    if part == "other" and max(each) > 2 * statistics.median(each) + LITTLE:
        some = sum(one > statistics.median(each) + LITTLE for one in each)
        said += (
            f", of which {some} of {len(each)} steps hold long stretches that the trace "
            "does not explain"
        )
        return Cause("checkpoint", own.rank, more(part), said)
    return Cause("straggler", own.rank, waits, said)


def _alike(trace: Slices, found: Breakdown, own: Spent) -> Cause:
    """Nobody is late: by what takes most besides computing."""
    shares = {part: _share(own, part) for part in _PARTS}
    part = max(shares, key=lambda one: shares[one])
    said = f"{percent(shares[part])} of a step"
    if shares[part] < LITTLE or part not in ("host_bound", "exposed"):
        return Cause("", None, shares[part], f"{_PARTS[part]} takes {said}")
    if part == "host_bound":
        return _host(trace, found, own, [one for one in found.totals if one.rank != own.rank])
    if len(trace.ranks) > 1:
        late = f"no rank is late; {percent(collectives(trace).share)} of it is waiting"
    else:
        late = "the trace of one rank does not show whether it waits for another rank"
    return Cause(
        "exposed communication", None, shares[part], f"no computing hides {said}, and {late}"
    )


def _host(trace: Slices, found: Breakdown, own: Spent, others: Sequence[Spent]) -> Cause:
    """The GPU waits for its host: before each step begins, or all the time."""
    if len([one for one in found.totals if one.rank == own.rank]) > 1:
        raise TraceError(f"rank {own.rank} has several GPUs")
    met, share = launches(trace), _share(own, "host_bound")
    queue, gaps = met.queue(own.rank), met.stretches[own.rank]
    said = (
        f"the GPU waits for its host {percent(share)} of a step, in {queue.stretches} gaps of at "
        f"most {milliseconds(queue.longest)} ms"
    )
    before = {one.rank: _before_steps(trace, found, met, one.rank) for one in (own, *others)}
    if before[own.rank] > queue.share / 2:
        rest = [before[one.rank] for one in others]
        return Cause("starved input", _alone(own.rank, before[own.rank], rest), share, said)
    lengths = gaps.ends - gaps.starts
    if int(lengths[lengths < SHORT].sum()) > queue.host_bound / 2:
        alone = own.rank if _launches_more(met, own.rank) else None
        return Cause("launch-bound", alone, share, said)
    return Cause("", None, share, f"{said}, most of it in long pauses")


def _before_steps(trace: Slices, found: Breakdown, met: Launches, rank: int) -> float:
    """The share of a rank's time in which its GPU waits for the first launch of a step.

    0 where the trace names no steps, or only one: what comes once is no habit.
    """
    starts = np.array([one.start for one in found.steps if one.rank == rank and one.step != NONE])
    if len(starts) < 2 or rank not in met.stretches:
        return 0.0
    rows = on_device(trace)
    calls = launch_of(trace, rows[trace.rank[rows] == rank])
    called = np.sort(trace.start[calls[calls != NONE]])
    at = np.searchsorted(called, starts)
    first = called[at[at < len(called)]]
    gaps = met.stretches[rank]
    waits = np.zeros(len(first), np.int64)
    if len(gaps.starts):
        gap = np.maximum(np.searchsorted(gaps.starts, first, side="right") - 1, 0)
        inside = (gaps.starts[gap] <= first) & (first <= gaps.ends[gap])
        waits = np.where(inside, gaps.ends[gap] - gaps.starts[gap], 0)
    return float(waits.sum()) / max(met.queue(rank).length, 1)


def _launches_more(met: Launches, rank: int) -> bool:
    calls: dict[int, int] = {}
    for one in met.calls:
        calls[one.rank] = calls.get(one.rank, 0) + one.calls
    rest = [count for other, count in calls.items() if other != rank]
    return bool(rest) and calls.get(rank, 0) > 1.1 * statistics.median(rest)
