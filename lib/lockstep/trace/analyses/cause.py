"""The most likely cause of slow steps, as one word: a guess, with the numbers it rests on.

Signs that settle it come first: ranges of TorchDynamo or Inductor, and calls of `cudaMalloc` and
`cudaFree`, in steps after the first one (that one compiles, and fills the allocator's cache); of a
trace with one step its allocations count. Then, whether ranks are late: those that `collectives`
says are, if the others' exposed communication is mostly waiting for them, or else the rank that
waits least. What they do more than the others says why; where nobody is late, what takes most of
the time besides computing does. Where that has no word here, there is none.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...base.formatting import milliseconds, percent, printable, ranks_text
from ..intervals import covered, subtract, union
from ..joins import busy, computes_on_host, launch_of, named, on_device
from ..slices import NONE, Kind, Slices, TraceError
from .breakdown import Breakdown, Spent, breakdown
from .collectives import Collectives, collectives
from .launches import Launches, launches

CAUSES = (
    *("straggler", "starved input", "exposed communication", "launch-bound", "recompile"),
    *("allocator thrashing", "checkpoint"),
)
LITTLE = 0.1  # of a step: shares below are not what makes it slow
SHORT = 500_000  # nanoseconds between two launches that follow each other, by far; more is a pause
DRIVER = re.compile(r"^(cuda|hip)(Malloc|Free)(Async)?$|^(cu|hip)Mem(Create|Map|Unmap|Release)$")
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

    ranks: whose it is, () where all ranks are alike. share: which part of those ranks' steps (else
    of the rank that waits least) it takes, of several stragglers which part of the others' steps,
    0 … 1. because: the numbers, in a sentence.
    """

    word: str
    ranks: tuple[int, ...]
    share: float
    because: str

    @property
    def who(self) -> str:
        """Whose it is, in words."""
        return ranks_text(self.ranks) if self.ranks else "all ranks alike"

    def __str__(self) -> str:
        if not self.word:
            why = "nothing but computing" if self.share < LITTLE else "no word for it"
            return printable(f"{why}: {self.because}")
        return printable(
            f"{self.word}, {self.who}, {percent(self.share)} of a step: {self.because}"
        )


def cause(trace: Slices, *, skip: int = 0) -> Cause:
    """The likely cause of slow steps. skip: how many first steps of each rank to leave out.

    Ranks that lack kernels are left out. Raises TraceError where the breakdown does, where all
    ranks lack kernels, or where ranks have no common clock.
    """
    found = breakdown(trace, skip=skip).whole
    met, since = collectives(trace), min(one.start for one in found.totals)
    late = met.late(since)
    named = [one for rank in late for one in found.totals if one.rank == rank]
    latest = named or [min(found.totals, key=lambda one: _share(one, "exposed"))]
    own, others = latest[0], [one for one in found.totals if one not in latest]
    if settled := _settled(trace, found, own):
        return settled
    waiting = statistics.median([_share(one, "exposed") for one in others] or [0.0])
    if len(late) > 1:
        waits = _waiting_for(trace, found, met, late)
        said = f"the others wait {percent(waits)} of their steps for {ranks_text(sorted(late))}"
    else:
        waits = waiting - _share(own, "exposed")
        said = f"the others wait {percent(waits)} of their steps more than rank {own.rank}"
    if (named or not len(met)) and waits > max(LITTLE, waiting / 2):
        return _late(trace, found, latest, others, waits, said)
    return _alike(trace, found, own, met, late)


def _settled(trace: Slices, found: Breakdown, own: Spent) -> Cause | None:
    """The cause by calls and ranges that say it by themselves, if this rank's steps have many."""
    for word, names, what in (
        ("allocator thrashing", DRIVER, "calls of {}"),
        ("recompile", _COMPILER, "ranges of the compiler"),
    ):
        here = within(trace, found, own.rank, names)
        if here.share > LITTLE:
            ranks = {one.rank for one in found.totals}
            shares = {rank: within(trace, found, rank, names).share for rank in ranks}
            alike = {rank for rank, share in shares.items() if share >= here.share / 2}
            whose = () if alike == ranks else tuple(sorted(alike))
            many = f"{here.times / here.steps:,.0f} {what.format(here.named)}"
            return Cause(word, whose, here.share, f"{many} a step on rank {own.rank}")
    return None


def _share(one: Spent, part: str) -> float:
    return float(getattr(one, part)) / max(one.length, 1)


def _alone(rank: int, share: float, rest: Sequence[float]) -> tuple[int, ...]:
    """The rank, if the others do not have half as much of it."""
    return (rank,) if rest and statistics.median(rest) < share / 2 else ()


class Within(NamedTuple):
    """The share of a rank's steps that slices of some names take, their number, that of steps, and
    the names, in words."""

    share: float
    times: int
    steps: int
    named: str


def within(trace: Slices, found: Breakdown, rank: int, names: re.Pattern[str]) -> Within:
    """Return what slices of these names take of a rank's steps after the first.

    Of an only step allocations count, too; what compiles there may do so for the first time.
    """
    rows = np.flatnonzero(named(trace, names)[trace.name])
    steps = [one for one in found.steps if one.rank == rank]
    if not found.left_out.get(rank):
        steps = steps[1:] or (steps if names is DRIVER else [])
    own = rows[trace.rank[rows] == rank]
    starts = np.array([one.start for one in steps], np.int64)
    ends = np.array([one.end for one in steps], np.int64)
    spent = covered(busy(trace, own), starts, ends)
    begun = np.searchsorted(np.sort(trace.start[own]), np.stack([starts, ends]))
    share = float(spent.sum()) / max(int((ends - starts).sum()), 1)
    said = sorted({trace.names[name] for name in trace.name[own]}, reverse=True)
    return Within(share, int((begun[1] - begun[0]).sum()), max(len(steps), 1), " and ".join(said))


def _waiting_for(trace: Slices, found: Breakdown, met: Collectives, late: tuple[int, ...]) -> float:
    """The share of the other ranks' steps in which they wait for these and compute nothing."""
    spent = length = 0
    for rank in {one.rank for one in found.totals} - set(late):
        entry = (met.matches.rank == rank) & np.isin(met.matches.each(met.last), late)
        begin, waited = met.matches.start[entry], met.waited[entry]
        rows = trace.where(rank=rank)
        computes = (trace.kind[rows] == Kind.COMPUTE) & (trace.stream[rows] != NONE)
        if not (trace.stream[rows] != NONE).any():
            computes = computes_on_host(trace, rows)
        idle = subtract(union(begin, begin + waited), busy(trace, rows[computes]))
        steps = [one for one in found.steps if one.rank == rank]
        bounds = np.array([(one.start, one.end) for one in steps], np.int64).T
        spent += int(covered(idle, *bounds).sum())
        length += int((bounds[1] - bounds[0]).sum())
    return spent / max(length, 1)


def _late(
    trace: Slices,
    found: Breakdown,
    latest: Sequence[Spent],
    others: Sequence[Spent],
    waits: float,
    said: str,
) -> Cause:
    """Some ranks come last: by what they do more than the others."""

    def more(part: str) -> float:
        own, rest = (
            statistics.median(_share(one, part) for one in those) for those in (latest, others)
        )
        return own - rest

    part, ranks = max(_OWN, key=more), tuple(sorted({one.rank for one in latest}))
    if part == "host_bound":
        late = _host(trace, found, latest[0], others)
        last = "" if late.ranks else f"all hosts are busy, and {ranks_text(ranks)} comes last: "
        because = f"{late.because}; {last}{said}"
        if not late.word:
            return Cause("straggler", ranks, waits, because)
        return Cause(late.word, late.ranks and ranks, late.share, because)
    each = [_share(one, part) for one in found.steps if (one.rank,) == ranks]
    if part == "other" and each and max(each) > 2 * statistics.median(each) + LITTLE:
        some = sum(one > statistics.median(each) + LITTLE for one in each)
        said += (
            f", of which {some} of {len(each)} steps hold long stretches that the trace "
            "does not explain"
        )
        return Cause("checkpoint", ranks, more(part), said)
    return Cause("straggler", ranks, waits, said)


def _alike(
    trace: Slices, found: Breakdown, own: Spent, met: Collectives, late: tuple[int, ...]
) -> Cause:
    """Waiting for late ranks is not what it is: by what takes most besides computing."""
    shares = {part: _share(own, part) for part in _PARTS}
    part = max(shares, key=lambda one: shares[one])
    said = f"{percent(shares[part])} of a step"
    if shares[part] < LITTLE or part not in ("host_bound", "exposed"):
        return Cause("", (), shares[part], f"{_PARTS[part]} takes {said}")
    if part == "host_bound":
        return _host(trace, found, own, [one for one in found.totals if one.rank != own.rank])
    if len(trace.ranks) < 2:
        waits = "the trace of one rank does not show whether it waits for another rank"
    elif not len(met):
        waits = "no collective shows whether ranks wait for each other"
    else:
        for_whom = f"mostly for {ranks_text(sorted(late))}" if late else "for no rank in particular"
        waits = f"{percent(met.share)} of it is waiting" + (f", {for_whom}" if met.waiting else "")
    return Cause("exposed communication", (), shares[part], f"no computing hides {said}; {waits}")


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
        alone = (own.rank,) if _launches_more(met, own.rank) else ()
        return Cause("launch-bound", alone, share, said)
    return Cause("", (), share, f"{said}, most of it in long pauses")


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
