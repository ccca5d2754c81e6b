"""Lab 07, multi-GPU tracing: its cases, the trials of its exercises, and the signs of mistakes."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.formatting import percent
from ...base.provenance import recorded
from ...trace import Kind, Trace
from ..judging import Noted, Number, Run, Trial, judged, numbers_in
from ..judging.values import show

US = 1_000  # nanoseconds


def _alone(
    like: str,
    given: tuple[Any, ...],
    right: Any,
    smaller: Callable[[], Iterable[Trial]] = tuple,
    **facts: Any,
) -> Trial:
    """One call of the answer, without any process group."""
    facts["asked"] = ", ".join(map(show, given))
    return Trial(0, given=[given], right=[right], facts=facts, like=like, smaller=smaller)


def _without_one(items: Sequence[Any]) -> Iterator[list[Any]]:
    return ([*items[:at], *items[at + 1 :]] for at in range(len(items)))


# ── Which steps are recorded ─────────────────────────────────────────────────────────────────


@judged("recorded_steps", lab="07", silent=True)
def recorded_steps(draw: random.Random) -> Iterator[Trial]:
    """`recorded_steps(wait, warmup, active, repeat, steps)`: the numbers of the recorded steps."""
    active = draw.randint(3, 4)  # so that a loop can end within it
    warmup = draw.choice([count for count in range(2, 6) if count != active])
    wait = draw.choice([count for count in range(1, 5) if count not in (active, warmup)])
    cycle = wait + warmup + active
    for like, waits, repeat, steps in (
        ("one cycle", wait, 1, cycle + 1),
        ("two cycles", wait, 2, 4 * cycle),
        ("wait=0", 0, 1, 3 * cycle),
        ("a loop that ends within a cycle", wait, 3, 2 * cycle + wait + warmup + 1),
        ("repeat=0", wait, 0, 4 * cycle - 1),
        ("repeat=0 and a long loop", 0, 0, 1030 * cycle + 1),
        ("a loop that ends before anything is recorded", wait, 2, wait),
    ):
        yield _scheduled(like, (waits, warmup, active, repeat, steps))


def _scheduled(like: str, given: tuple[int, ...]) -> Trial:
    least = (0, 0, 1, 0, 1)
    return _alone(
        like, given, _recorded(*given),
        lambda: (
            _scheduled(like, (*given[:at], less, *given[at + 1 :]))
            for at, one in enumerate(given)
            for less in sorted({least[at], one // 2, one - 1})
            if least[at] <= less < one
        ),
    )  # fmt: skip


def _recorded(wait: int, warmup: int, active: int, repeat: int, steps: int) -> list[int]:
    cycle = wait + warmup + active
    return [
        step
        for step in range(steps)
        if step % cycle >= wait + warmup and (not repeat or step // cycle < repeat)
    ]


# ── The profiler's loop ──────────────────────────────────────────────────────────────────────


def _recording(answer: Any, steps: int, first: int, count: int) -> Noted:
    """Return for which steps `train` was called, in which of them the profiler was recording, and
    the ranges in this rank's file, in order: None without such a file. Noted is which files there
    are, in the folder and beside it, and whether PyTorch warned that there is no warm-up."""
    import torch

    called, recorded = [], []

    def train(number: int) -> None:
        called.append(number)
        if torch.autograd._profiler_enabled():
            recorded.append(number)
        with torch.profiler.record_function(f"train {number}"):
            torch.ones(8).sum()

    with tempfile.TemporaryDirectory() as here, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        folder = Path(here) / "traces"
        folder.mkdir()
        with contextlib.chdir(here):
            answer(train, steps, first, count, str(folder))
        files, beside = sorted(os.listdir(folder)), sorted({*os.listdir(here)} - {"traces"})
        file = folder / f"rank{os.environ['RANK']}.json"
        known = first if recorded[:1] == [first] else 0
        ranges = _ranges(file, known) if file.exists() else None
    end = {"called": called, "recorded": recorded, "ranges": ranges}
    cold = any("won't be using warmup" in str(one.message) for one in said)
    return Noted(end, {"files": files, "beside": beside, "cold": cold})


def _ranges(file: Path, first: int) -> list[str]:
    """Steps and calls of `train`, in order: an answer may have ranges of its own. first: the number
    of the first step, if that is known: a profiler that was started later counts from there."""
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    ranges = [one for one in events if one.get("cat") == "user_annotation"]
    names = [one["name"] for one in sorted(ranges, key=lambda one: one["ts"])]
    steps = [name for name in names if name.startswith("ProfilerStep#")]
    if first and steps:
        new = {old: f"ProfilerStep#{number}" for number, old in enumerate(steps, first)}
        names = [new.get(name, name) for name in names]
    return [name for name in names if name.startswith(("ProfilerStep#", "train "))]


@judged("profiled", lab="07", play=_recording, silent=True)
def profiled(draw: random.Random) -> Iterator[Trial]:
    """`profiled(train, steps, first, count, folder)`: the loop, and a file of some steps a rank."""
    first, count = draw.sample((2, 3, 4), 2)
    for nproc, start, steps in (
        (2, first, first + count + 1),
        (3, first + 1, 3 * (first + 1 + count)),  # further cycles would fit in
        (2, 1, count + 2),  # nothing to wait for
        (2, first, first + count),  # ends with the last one that is kept
    ):
        kept = range(start, start + count)
        right = {
            "called": list(range(steps)),
            "recorded": list(kept),
            "ranges": [name for at in kept for name in (f"ProfilerStep#{at}", f"train {at}")],
        }
        facts = {"steps": steps, "first": start, "count": count, "last": start + count - 1}
        given = (steps, start, count)
        yield Trial(nproc, given=[given] * nproc, right=[right] * nproc, facts=facts)


def _no_file(run: Run, rank: int) -> bool:
    return run.got(rank)["ranges"] is None


def _no_steps(run: Run, rank: int) -> bool:
    ranges = run.got(rank)["ranges"]
    return bool(ranges) and not any(name.startswith("ProfilerStep#") for name in ranges)


def _not_each_rank(run: Run, rank: int) -> bool:
    """Whether rank 0 has its file, and this rank has written none."""
    return _no_file(run, rank) and not run.noted[rank]["files"] and not _no_file(run, 0)


def _another_file(run: Run, rank: int) -> Any:
    files = run.noted[rank]["files"]
    return _no_file(run, rank) and bool(files) and {"files": ", ".join(files)}


def _another_folder(run: Run, rank: int) -> Any:
    beside = run.noted[rank]["beside"]
    return _no_file(run, rank) and bool(beside) and {"files": ", ".join(beside)}


def _never_recorded(run: Run, rank: int) -> bool:
    return _no_file(run, rank) and not run.got(rank)["recorded"]


profiled.shows("not-each-rank", _not_each_rank)
profiled.shows("another-folder", _another_folder)
profiled.shows("another-file", _another_file)
profiled.shows("never-recorded", _never_recorded)
profiled.shows("no-file", _no_file)
profiled.shows("no-steps", _no_steps)
profiled.demands("no-warm-up", lambda run, rank: run.noted[rank]["cold"])


# ── One clock ────────────────────────────────────────────────────────────────────────────────


@judged("offsets", lab="07", silent=True)
def offsets(draw: random.Random) -> Iterator[Trial]:
    """`offsets(ends)`: by how much each rank's clock is ahead of rank 0's; ends[collective][rank]
    in nanoseconds. An odd number of collectives, so that there is one median. Few and small numbers
    come first. Then the clocks have run for hours: float64 holds such numbers, and float32 does
    not."""
    one, other, late = draw.sample(range(10, 90, 5), 3)
    few = [
        [100, 100 + one + late, 90],
        [200, 200 - other, 230],
        [301, 301 + one + 2, 308],
        [450, 450 + one, 455],
        [500, 500 + one - 3, 498],
    ]
    for like, ends in (("one collective", few[:1]), ("five collectives", few)):
        yield _alone(like, (ends,), [Number(one) for one in _medians(ends)])
    for nproc, count, most in ((4, 5, 10**7), (3, 7, 10**9), (8, 9, 10**9)):
        ahead = [0, *(draw.choice((-1, 1)) * draw.randrange(10**5, most) for _ in range(1, nproc))]
        up = draw.randrange(10**13, 10**14)
        # So near each other that one which is late ends after others.
        times = sorted(up + draw.randrange(count * 10**6) for _ in range(count))
        ends = [[time + own + draw.randrange(-4 * US, 4 * US) for own in ahead] for time in times]
        for rank in range(nproc):  # one of the ends is late, by far, on each
            ends[draw.randrange(1, count)][rank] += draw.randrange(2, 6) * 10**6
        like = f"{nproc} ranks and {count} collectives"
        yield _alone(like, (ends,), [Number(one) for one in _medians(ends)])


def _differences(ends: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each rank its end less rank 0's, one a collective."""
    return [[row[rank] - row[0] for row in ends] for rank in range(len(ends[0]))]


def _medians(ends: Sequence[Sequence[int]]) -> list[float]:
    return [statistics.median(every) for every in _differences(ends)]


def _rounded(run: Run, _: int) -> Any:
    for rank, (got, right) in enumerate(
        zip(numbers_in(run.got(0)), numbers_in(run.right(0)), strict=True)
    ):
        if abs(got - right) >= 1:
            return {"whose": rank, "offset": f"{got:,.0f}", "exact": f"{right:,}"}
    return False


offsets.demands("rounded", _rounded)


# ── What nothing hides ───────────────────────────────────────────────────────────────────────

Spans = Sequence[tuple[int, int]]


@judged("exposed", lab="07", silent=True)
def exposed(draw: random.Random) -> Iterator[Trial]:
    """`exposed(compute, communication)`: nanoseconds in which a communication runs and nothing
    computes; both are lists of (start, end)."""
    few: tuple[tuple[str, Spans, Spans], ...] = (
        ("one span each", [(0, 100)], [(60, 160)]),
        ("spans that touch", [(0, 50), (80, 130)], [(40, 90)]),
        ("spans apart", [(0, 10), (50, 60)], [(20, 30), (55, 58), (70, 90)]),
        ("all hidden", [(0, 300)], [(50, 120), (200, 260)]),
        ("no order", [(60, 90), (0, 20)], [(80, 95), (10, 40)]),
        ("compute that overlaps", [(0, 60), (40, 100)], [(50, 130)]),
        ("compute within compute", [(0, 100), (20, 40)], [(30, 120)]),
        ("communication that overlaps", [(0, 10)], [(5, 40), (20, 60)]),
        ("communication within communication", [(15, 20)], [(0, 100), (10, 30)]),
        ("no compute", [], [(3, 9)]),
        ("no communication", [(3, 9)], []),
    )
    for like, compute, communication in few:
        yield _spans(like, compute, communication)
    for _ in range(2):
        spans = [
            [(at, at + draw.randrange(40, 400)) for at in draw.sample(range(0, 3000, 7), 6)]
            for _ in range(2)
        ]
        yield _spans("six spans each, which overlap", *spans)


def _spans(like: str, compute: Spans, communication: Spans) -> Trial:
    right = Number(_covered(communication, compute))

    def smaller() -> Iterator[Trial]:
        yield from (_spans(like, fewer, communication) for fewer in _without_one(compute))
        yield from (_spans(like, compute, fewer) for fewer in _without_one(communication))

    return _alone(like, (list(compute), list(communication)), right, smaller)


def _covered(spans: Spans, without: Spans = ()) -> int:
    """Nanoseconds that the spans cover and `without` does not."""
    inside = {time for first, last in spans for time in range(first, last)}
    return len(inside - {time for first, last in without for time in range(first, last)})


# ── Who is charged ───────────────────────────────────────────────────────────────────────────


@judged("charged", lab="07", silent=True)
def charged(draw: random.Random) -> Iterator[Trial]:
    """`charged(arrivals, resolution)`: for each rank the nanoseconds that others waited for it;
    arrivals[collective][rank] on one clock."""
    for like, arrivals in (
        ("one collective", [[0, 107, 42]]),
        ("a short wait", [[95, 0, 100]]),
        ("a wait as long as the resolution", [[100, 70, 90]]),
        ("short waits only", [[96, 100, 93]]),
        ("short waits that do not add up to the resolution", [[97, 100, 95]]),
        ("two ranks that come last", [[0, 20, 50], [130, 100, 110]]),
        ("a rank that comes last twice", [[0, 50, 20], [100, 180, 175]]),
    ):
        yield _arrived(like, arrivals, 10)
    for nproc, count in ((4, 3), (3, 6), (5, 8)):
        resolution = draw.randrange(5, 9) * US
        arrivals = []
        for at in range(count):
            time = draw.randrange(10**9)
            rows = [time - draw.randrange(20, 900) * US for _ in range(nproc)]
            late = draw.randrange(nproc)
            rows[late] = time
            if at % 3 != 1:  # somebody comes so little earlier that the clocks cannot tell
                near = draw.choice([one for one in range(nproc) if one != late])
                rows[near] = time - draw.randrange(1, resolution)
            if at == 1:  # exactly as long as they can tell
                rows[(late + 1) % nproc] = time - resolution
            if at == count - 1:  # nobody is late
                rows = [time - draw.randrange(1, resolution) for _ in rows]
                rows[late] = time
            arrivals.append(rows)
        yield _arrived(f"{count} collectives of {nproc} ranks", arrivals, resolution)


def _arrived(like: str, arrivals: list[list[int]], resolution: int) -> Trial:
    right = [Number(one) for one in _charged(arrivals, resolution)]
    fewer = list(_without_one(arrivals)) if len(arrivals) > 1 else []
    return _alone(
        like, (arrivals, resolution), right,
        lambda: (_arrived(like, rows, resolution) for rows in fewer),
    )  # fmt: skip


def _charged(arrivals: Sequence[Sequence[int]], resolution: int) -> list[int]:
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[row.index(max(row))] += sum(one for one in waits if one >= resolution)
    return found


# ── The cases ────────────────────────────────────────────────────────────────────────────────

CAUSES = {  # and what of a trace shows each
    "straggler": "one rank has more kernels to run than the others, in every step",
    "starved input": "one long gap on all GPUs when a step begins",
    "exposed communication": "collectives that are long on all ranks, and mostly transfer",
    "launch-bound": "hundreds of short gaps, and hosts that do nothing but launch",
    "recompile": "ranges of TorchDynamo or Inductor on a rank that others wait for",
    "allocator thrashing": "cudaMalloc and cudaFree as what hosts are in, in every step",
    "checkpoint": "long stretches of one rank, in some steps, in which nothing is recorded",
}
_FILES = {
    "X": "tensor-parallel-eager",  # explained in the lab
    "A": "slow-rank",
    "B": "starved",
    "C": "cases/compiling",
    "D": "cases/saving",
    "E": "cases/emptied",
    "F": "cases/reducing",
}
_CAUSES: dict[str, tuple[int | None, str]] = {
    "A": (1, "straggler"),
    "B": (None, "starved input"),
    "C": (2, "recompile"),
    "D": (0, "checkpoint"),
    "E": (None, "allocator thrashing"),
    "F": (None, "exposed communication"),
}
_ASKED = "ABCDEF"
_SLACK = 0.015  # of a share: a hundredth, and what was rounded before


class Case(NamedTuple):
    """rank: None where all are alike. least, most: of the share."""

    rank: int | None
    cause: str
    least: float
    most: float


@cache
def case(letter: str) -> Trace:
    """The trace of a case, "A" to "F" or "X", on one clock, without the ranges that the program had
    named for what is wrong with it. Raises KeyError for another.
    """
    trace = _whole(letter)
    ranges = trace.where(Kind.ANNOTATION, Kind.GPU_ANNOTATION)
    telling = [row for row in ranges if trace[row].name in ("the slow part", "input")]
    return trace.select(np.setdiff1d(np.arange(len(trace)), telling))


@cache
def _whole(letter: str) -> Trace:
    return Trace.load(recorded(f"traces/{_FILES[letter]}")).align()


@cache
def truth(letter: str) -> Case:
    """Return what the trace of an asked case says, by each way in which its share can be taken from
    it."""
    shares = [share for skip in (0, 1) for share in _shares(letter, skip)]
    rank, cause = _CAUSES[letter]
    return Case(rank, cause, min(shares) - _SLACK, max(shares) + _SLACK)


def _shares(letter: str, skip: int) -> list[float]:
    """Return the share by the goal's words: of all steps together, and where a rank is named on
    average over the steps, too."""
    breakdown = _whole(letter).breakdown(skip=skip)
    rank, _ = _CAUSES[letter]
    if rank is None:
        least = min(breakdown.totals, key=_exposed)
        return [getattr(least, _part(letter)) / least.length]
    return [_less(rows, rank) for rows in (breakdown.totals, breakdown.steps)]


def _part(letter: str) -> str:
    """Of the breakdown, where all ranks are alike."""
    return "exposed" if letter == "F" else "host_bound"


def _exposed(row: Any) -> float:
    return float(row.exposed / row.length)


def _less(rows: Sequence[Any], rank: int) -> float:
    """How much smaller the share of exposed communication is on this rank than on the others."""
    own: list[float] = []
    others: list[float] = []
    for row in rows:
        (own if row.rank == rank else others).append(_exposed(row))
    return statistics.fmean(others) - statistics.fmean(own)


_READING = 30.0  # seconds: an answer may read all six traces anew


@judged("diagnoses", lab="07", silent=True)
def diagnoses(draw: random.Random) -> Iterator[Trial]:
    """`diagnoses()`: for each case "A" to "F" a tuple (rank or None, cause, share)."""
    del draw  # the traces are what they are
    yield Trial(0, given=[()], right=[...], facts={"asked": ""}, patience=_READING)


def _mistake(run: Run) -> tuple[str, dict[str, Any]]:
    """The first mistake, case by case, and what its sentence needs; "" if there is none."""
    said = run.returned(0)
    if not isinstance(said, dict):
        return "no-dict", {"kind": type(said).__name__}
    by_letter = {str(key).upper(): one for key, one in said.items()}
    if missing := [letter for letter in _ASKED if letter not in by_letter]:
        return "missing-case", {"missing": ", ".join(missing)}
    for letter in _ASKED:
        mistake, facts = _in_case(letter, by_letter[letter])
        if mistake:
            return mistake, facts | {"case": letter}
    return "", {}


def _in_case(letter: str, said: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(said, tuple | list) or len(said) != 3:
        return "no-triple", {}
    rank, cause, share = said
    rank = None if isinstance(rank, str) and rank.lower() == "all" else rank
    a_rank = rank is None or _is_number(rank, Integral)
    if not (a_rank and isinstance(cause, str) and _is_number(share, Real)):
        return "no-triple", {}
    right, ranks = truth(letter), case(letter).ranks
    known = {_word(one): look for one, look in CAUSES.items()}
    if _word(cause) not in known:
        return "unknown-cause", {"cause": cause, "causes": ", ".join(CAUSES)}
    if not 0 <= share <= 1:
        return "percent", {}
    if rank not in (None, *ranks):
        return "unknown-rank", {"named": rank, "last": ranks[-1]}
    if rank != right.rank:
        mistake = "not-all" if rank is None else "not-one" if right.rank is None else "victim-named"
        return mistake, {"named": rank}
    if _word(cause) != _word(right.cause):
        return "wrong-cause", {"cause": cause, "look": known[_word(cause)]}
    if not right.least <= share <= right.most:
        return _other_share(letter, right.rank, share)
    return "", {}


def _other_share(letter: str, rank: int | None, share: float) -> tuple[str, dict[str, Any]]:
    """Say where a share may come from that is not the right one."""
    trace = case(letter)
    rows = trace.breakdown().totals
    taken = [("what cause() guesses for the calls alone", trace.cause().share)]
    taken += [("the part of the time in collectives that is waiting", trace.collectives().share)]
    for row in rows:
        for part in ("exposed", "host_bound", "compute", "other", "communication"):
            name = {"host_bound": "host-bound", "exposed": "exposed communication"}.get(part, part)
            taken.append((f"rank {row.rank}'s part of {name}", getattr(row, part) / row.length))
    others = [_exposed(row) for row in rows if row.rank != rank]
    if rank is not None:
        taken += [
            (
                "how much less that is in parts of theirs",
                _less(rows, rank) / statistics.fmean(others),
            )
        ]
    near = min(taken, key=lambda one: abs(one[1] - share))
    facts = {"share": percent(float(share)), "others": ", ".join(map(percent, others))}
    facts["taken"] = f" ({near[0]} is {percent(near[1])})" if abs(near[1] - share) < 0.01 else ""
    if rank is not None:
        return "share-of-one", facts | {"named": rank, "own": percent(_exposed(rows[rank]))}
    least = min(rows, key=_exposed)
    part = "exposed communication" if _part(letter) == "exposed" else "host-bound"
    return "share-of-all", facts | {"least": least.rank, "part": part}


def _is_number(value: Any, kind: type) -> bool:
    """Say whether this is a number of Python's or numpy's."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _word(cause: str) -> str:
    return " ".join(cause.lower().replace("_", " ").replace("-", " ").split())


def _is_the(mistake: str) -> Callable[[Run, int], Any]:
    def sign(run: Run, _: int) -> Any:
        found, facts = _mistake(run)
        return found == mistake and (facts or True)

    return sign


for _name in (
    "no-dict", "missing-case", "no-triple", "unknown-cause", "percent", "unknown-rank", "not-all",
    "not-one", "victim-named", "wrong-cause", "share-of-one", "share-of-all",
):  # fmt: skip
    diagnoses.demands(_name, _is_the(_name))


# ── Further: noise ───────────────────────────────────────────────────────────────────────────


@judged("chance", lab="07", silent=True, further=True)
def chance(draw: random.Random) -> Iterator[Trial]:
    """`chance(before, after)`: the share of all ways to deal the values out to the two sides in
    which the mean of `after` is at least that much larger."""
    for like, before, after in (
        ("one value each", [10], [12]),
        ("a step that got faster", [12], [10]),
        ("two values each", [10, 11], [14, 13]),
        ("equal values", [10, 10, 12], [12, 12]),
        ("a mean that is no whole number", [10, 12], [11, 12]),
        ("more values before than after", [10, 15, 13], [12]),
        ("more values after than before", [12], [11, 15, 10]),
    ):
        yield _dealt(like, before, after)
    for count, other, shift in ((3, 3, 900), (4, 4, 40), (3, 5, 60), (4, 4, -50)):
        before = draw.sample(range(1000, 1100), count)
        after = [one + shift for one in draw.sample(range(1000, 1100), other)]
        yield _dealt(f"{count} values before and {other} after", before, after)
    while any(_chance(before, after) == _in_ms(before, after, by) for by in (1, len(after))):
        a, b, c, d = draw.sample(range(1000, 1100), 4)
        before, after = [a, b, c, d, a], [d, c, b, a, c]
    yield _dealt("many ways of the same sum, which fractions miss", before, after)


def _dealt(like: str, before: list[int], after: list[int]) -> Trial:
    ways = math.comb(len(before + after), len(after))
    share = _chance(before, after)
    counts = {"ways": ways, "count": round(share * ways)}

    def smaller() -> Iterator[Trial]:
        yield from (_dealt(like, fewer, after) for fewer in _without_one(before) if fewer)
        yield from (_dealt(like, before, fewer) for fewer in _without_one(after) if fewer)

    return _alone(like, (before, after), Number(share), smaller, **counts)


def _chance(before: Sequence[float], after: Sequence[float], by: int = 1) -> float:
    """by: what sums are divided by, which may round them."""
    ways = [sum(one) for one in itertools.combinations([*before, *after], len(after))]
    return sum(one / by >= sum(after) / by for one in ways) / len(ways)


def _in_ms(before: Sequence[int], after: Sequence[int], by: int) -> float:
    return _chance([one / 1e6 for one in before], [one / 1e6 for one in after], by)
