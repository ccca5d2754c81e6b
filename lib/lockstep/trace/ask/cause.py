"""What most likely makes the steps slow, as one word: a guess, with the numbers that it rests on.

First, whether one rank is late: the rank that waits least is, if the others' exposed communication
is mostly waiting for it. Then what that rank does more than the others says why; where nobody is
late, what takes most of the time besides computing does. Signs of PyTorch's own that settle it:
ranges of TorchDynamo or Inductor in a step, and calls of `cudaMalloc` and `cudaFree` in steps.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...words import milliseconds, printable
from ..slices import Kind, Slices, TraceError
from .breakdown import Breakdown, Spent, breakdown
from .collectives import collectives
from .launches import launches

CAUSES = (
    *("straggler", "starved input", "exposed communication", "launch-bound", "recompile"),
    *("allocator thrashing", "checkpoint"),
)
LITTLE = 0.1  # of a step: shares below are not what makes it slow
_DRIVER = re.compile(r"(cuda|hip)(Malloc|Free)(Async)?")
_COMPILER = re.compile(r"\(dynamo_timed\)|compile_fx|compile_inner")  # not its cache lookups
_OWN = ("compute", "copies", "host_bound", "dependency", "other")


@dataclass(frozen=True)
class Cause:
    """word: one of CAUSES, or "" where nothing but computing takes much time.

    rank: whose it is, None where all ranks are alike. share: which part of that rank's steps (else
    of the rank that waits least) it takes, 0 … 1. because: the numbers, in a sentence.
    """

    word: str
    rank: int | None
    share: float
    because: str

    def __str__(self) -> str:
        if not self.word:
            return printable(f"nothing but computing: {self.because}")
        whose = "all ranks alike" if self.rank is None else f"rank {self.rank}"
        return printable(f"{self.word}, {whose}, {self.share:.0%} of a step: {self.because}")


def cause(trace: Slices, *, skip: int = 0) -> Cause:
    """The likely cause of slow steps. skip: how many first steps of each rank to leave out.

    Raises TraceError where the breakdown does, or where ranks have no common clock.
    """
    found = breakdown(trace, skip=skip)
    own = min(found.totals, key=lambda one: _share(one, "exposed"))
    others = [one for one in found.totals if one.rank != own.rank]
    if asked := _thrashing(trace, found, own):
        return asked
    waiting = statistics.median([_share(one, "exposed") for one in others] or [0.0])
    more = waiting - _share(own, "exposed")
    if more > max(LITTLE, waiting / 2):
        return _late(trace, found, own, others, more)
    return _alike(trace, found, own)


def _share(one: Spent, part: str) -> float:
    return float(getattr(one, part)) / max(one.length, 1)


def _thrashing(trace: Slices, found: Breakdown, own: Spent) -> Cause | None:
    """Where steps ask the driver for memory, and that takes a good part of them."""
    asks = np.array([bool(_DRIVER.fullmatch(name)) for name in trace.names] or [False])
    rows = np.flatnonzero(asks[trace.name] & (trace.kind == Kind.LAUNCH))
    spent, counts, steps = 0, 0, 0
    for step in found.steps:
        if step.rank == own.rank:
            inside = rows[trace.rank[rows] == own.rank]
            inside = inside[(trace.start[inside] >= step.start) & (trace.end[inside] <= step.end)]
            spent += int(trace.duration[inside].sum())
            counts, steps = counts + len(inside), steps + 1
    if spent <= LITTLE * own.length:
        return None
    said = f"{counts / steps:.0f} calls of cudaMalloc and cudaFree a step on rank {own.rank}"
    return Cause("allocator thrashing", None, spent / own.length, said)


def _late(
    trace: Slices, found: Breakdown, own: Spent, others: Sequence[Spent], waits: float
) -> Cause:
    """One rank comes last: by what it does more than the others."""

    def more(part: str) -> float:
        return _share(own, part) - statistics.median(_share(one, part) for one in others)

    part = max(_OWN, key=more)
    said = f"the others wait {waits:.0%} of their steps more than rank {own.rank}"
    met = collectives(trace).stragglers
    doing = next((one.doing for one in met if one.rank == own.rank), ())
    compiling = next((one.name for one in doing if _COMPILER.search(one.name)), "")
    if compiling:
        return Cause("recompile", own.rank, more(part), f"{said}, which runs {compiling}")
    if part == "host_bound":
        found_ = _host(trace, found, own)
        rank = own.rank if _launches_more(trace, own.rank) else None
        return Cause(found_.word, rank, found_.share, f"{found_.because}; {said}")
    each = [_share(one, part) for one in found.steps if one.rank == own.rank]
    if part == "other" and max(each) > 2 * statistics.median(each) + LITTLE:
        some = sum(one > statistics.median(each) + LITTLE for one in each)
        said += f", of which {some} of {len(each)} steps hold long stretches that nothing tells of"
        return Cause("checkpoint", own.rank, more(part), said)
    return Cause("straggler", own.rank, waits, said)


def _launches_more(trace: Slices, rank: int) -> bool:
    calls: dict[int, int] = {}
    for one in launches(trace).calls:
        calls[one.rank] = calls.get(one.rank, 0) + one.calls
    rest = [count for other, count in calls.items() if other != rank]
    return bool(rest) and calls.get(rank, 0) > 1.1 * statistics.median(rest)


def _alike(trace: Slices, found: Breakdown, own: Spent) -> Cause:
    """Nobody is late: by what takes most besides computing."""
    shares = {part: _share(own, part) for part in ("exposed", "host_bound", "copies", "other")}
    part = max(shares, key=lambda one: shares[one])
    if shares[part] < LITTLE or part in ("copies", "other"):
        return Cause("", None, shares[part], f"{part} takes {shares[part]:.0%} of a step")
    if part == "host_bound":
        return _host(trace, found, own)
    said = f"no computing hides {shares[part]:.0%} of a step, and no rank is late"
    return Cause("exposed communication", None, shares[part], said)


def _host(trace: Slices, found: Breakdown, own: Spent) -> Cause:
    """The GPU waits for its host: once a step for long, or all the time."""
    try:
        (queue,) = (one for one in launches(trace).queues if one.rank == own.rank)
    except ValueError:
        raise TraceError(f"rank {own.rank} has several GPUs, or none") from None
    steps = sum(one.rank == own.rank for one in found.steps)
    share = _share(own, "host_bound")
    gaps = f"{queue.stretches} gaps of at most {milliseconds(queue.longest)} ms"
    said = f"the GPU waits for its host {share:.0%} of a step, in {gaps}"
    one_gap = queue.longest * steps > queue.host_bound / 2
    return Cause("starved input" if one_gap else "launch-bound", None, share, said)
