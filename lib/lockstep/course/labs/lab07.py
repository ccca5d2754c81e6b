"""Lab 07, multi-GPU tracing: its cases, the trials of its exercises, and the signs of mistakes."""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.formatting import percent
from ...base.provenance import recorded
from ...trace import Kind, Trace
from ..judging import Noted, Number, Run, Trial, judged

US = 1_000  # nanoseconds


def _alone(given: tuple[Any, ...], right: Any, **facts: Any) -> Trial:
    """One call of the answer, without any process group."""
    return Trial(0, given=[given], right=[right], facts={"given": given, **facts})


# ── Which steps are recorded ─────────────────────────────────────────────────────────────────


@judged("recorded_steps", lab="07", silent=True)
def recorded_steps(draw: random.Random) -> Iterator[Trial]:
    """`recorded_steps(wait, warmup, active, repeat, steps)`: the numbers of the recorded steps."""
    active = draw.randint(2, 4)  # so that a loop can end within it
    wait, warmup = draw.sample([count for count in range(1, 5) if count != active], 2)
    cycle = wait + warmup + active
    for waits, repeat, steps in (
        (wait, 1, cycle + 1),
        (wait, 2, 4 * cycle),
        (0, 1, 3 * cycle),
        (wait, 3, 2 * cycle + wait + warmup + 1),  # ends within a cycle
        (wait, 0, 4 * cycle - 1),  # for ever
        (0, 0, 130 * cycle + 1),  # for long
        (wait, 2, wait),  # ends before anything is recorded
    ):
        given = (waits, warmup, active, repeat, steps)
        yield _alone(given, _recorded(*given))


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
    are, and whether PyTorch warned that there is no warm-up."""
    import torch

    called, recorded = [], []

    def train(number: int) -> None:
        called.append(number)
        if torch.autograd._profiler_enabled():
            recorded.append(number)
        with torch.profiler.record_function(f"train {number}"):
            torch.ones(8).sum()

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answer(train, steps, first, count, folder)
        files = sorted(os.listdir(folder))
        file = Path(folder) / f"rank{os.environ['RANK']}.json"
        ranges = _ranges(file) if file.exists() else None
    end = {"called": called, "recorded": recorded, "ranges": ranges}
    cold = any("won't be using warmup" in str(one.message) for one in said)
    return Noted(end, {"files": files, "cold": cold})


def _ranges(file: Path) -> list[str]:
    """Steps and calls of `train`, in order: an answer may have ranges of its own."""
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    ranges = [one for one in events if one.get("cat") == "user_annotation"]
    names = [one["name"] for one in sorted(ranges, key=lambda one: one["ts"])]
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


def _not_each_rank(run: Run, rank: int) -> bool:
    """Whether rank 0 has its file, and this rank has written none."""
    return _no_file(run, rank) and not run.noted[rank]["files"] and not _no_file(run, 0)


def _another_file(run: Run, rank: int) -> Any:
    files = run.noted[rank]["files"]
    return _no_file(run, rank) and bool(files) and {"files": ", ".join(files)}


def _never_recorded(run: Run, rank: int) -> bool:
    return _no_file(run, rank) and not run.got(rank)["recorded"]


profiled.shows("not-each-rank", _not_each_rank)
profiled.shows("another-file", _another_file)
profiled.shows("never-recorded", _never_recorded)
profiled.shows("no-file", _no_file)
profiled.demands("no-warm-up", lambda run, rank: run.noted[rank]["cold"])


# ── One clock ────────────────────────────────────────────────────────────────────────────────


@judged("offsets", lab="07", silent=True)
def offsets(draw: random.Random) -> Iterator[Trial]:
    """`offsets(ends)`: by how much each rank's clock is ahead of rank 0's; ends[collective][rank]
    in nanoseconds. An odd number of collectives, so that there is one median. The clocks have run
    for hours: float64 holds such numbers, and float32 does not."""
    for nproc, count in ((4, 5), (3, 7), (8, 9)):
        most = draw.choice((10**7, 10**9))
        ahead = [0, *(draw.choice((-1, 1)) * draw.randrange(10**5, most) for _ in range(1, nproc))]
        up = draw.randrange(10**13, 10**14)
        # So near each other that one which is late ends after others.
        times = sorted(up + draw.randrange(count * 10**6) for _ in range(count))
        ends = [[time + own + draw.randrange(-4 * US, 4 * US) for own in ahead] for time in times]
        for rank in range(nproc):  # one of the ends is late, by far, on each
            ends[draw.randrange(1, count)][rank] += draw.randrange(2, 6) * 10**6
        yield _alone((ends,), [Number(one) for one in _medians(ends)])


def _differences(ends: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each rank its end less rank 0's, one a collective."""
    return [[row[rank] - row[0] for row in ends] for rank in range(len(ends[0]))]


def _medians(ends: Sequence[Sequence[int]]) -> list[float]:
    return [statistics.median(every) for every in _differences(ends)]


# ── What nothing hides ───────────────────────────────────────────────────────────────────────

Spans = Sequence[tuple[int, int]]


@judged("exposed", lab="07", silent=True)
def exposed(draw: random.Random) -> Iterator[Trial]:
    """`exposed(compute, communication)`: nanoseconds in which a communication runs and nothing
    computes; both are lists of (start, end)."""
    yield _spans([(0, 100)], [(60, 160)])
    yield _spans([(0, 50), (80, 130)], [(40, 90)])  # hidden at both ends
    yield _spans([(0, 300)], [(50, 120), (200, 260)])  # all is hidden
    for _ in range(2):  # several at a time, of either kind, in no order
        spans = [
            [(at, at + draw.randrange(40, 400)) for at in draw.sample(range(0, 3000, 7), 6)]
            for _ in range(2)
        ]
        at = draw.randrange(4000, 5000)
        spans[0] += [(at, at + 200), (at + 50, at + 300)]
        spans[1] += [(at - 80, at + 400), (at + 10, at + 500)]
        at = draw.randrange(6000, 7000)  # one lies inside of another, of either kind
        spans[0] += [(at, at + 200), (at + 20, at + 60)]
        spans[1] += [(at + 100, at + 400), (at + 210, at + 260)]
        for one in spans:
            draw.shuffle(one)
        yield _spans(*spans)
    yield _spans([], [(3, 9)])


def _spans(compute: Spans, communication: Spans) -> Trial:
    return _alone((list(compute), list(communication)), Number(_covered(communication, compute)))


def _covered(spans: Spans, without: Spans = ()) -> int:
    """Nanoseconds that the spans cover and `without` does not."""
    inside = {time for first, last in spans for time in range(first, last)}
    return len(inside - {time for first, last in without for time in range(first, last)})


# ── Who is charged ───────────────────────────────────────────────────────────────────────────


@judged("charged", lab="07", silent=True)
def charged(draw: random.Random) -> Iterator[Trial]:
    """`charged(arrivals, resolution)`: for each rank the nanoseconds that others waited for it;
    arrivals[collective][rank] on one clock."""
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
        given = (arrivals, resolution)
        yield _alone(given, [Number(one) for one in _charged(*given)])


def _charged(
    arrivals: Sequence[Sequence[int]],
    resolution: int,
    who: Callable[..., int] = max,
    of: Callable[..., Any] = sum,
) -> list[int]:
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[row.index(who(row))] += of([one for one in waits if one >= resolution] or [0])
    return found


# ── The cases ────────────────────────────────────────────────────────────────────────────────

CAUSES = (
    "straggler",
    "starved input",
    "exposed communication",
    "launch-bound",
    "recompile",
    "allocator thrashing",
    "checkpoint",
)
_FILES = {
    "X": "tensor-parallel-eager",  # explained in the lab
    "A": "slow-rank",
    "B": "starved",
    "C": "cases/compiling",
    "D": "cases/saving",
    "E": "cases/emptied",
    "F": "cases/reducing",
}
_CAUSES: dict[str, tuple[tuple[int | None, ...], str]] = {
    "A": ((1,), "straggler"),
    "B": ((None,), "starved input"),
    "C": ((2,), "recompile"),
    "D": ((0,), "checkpoint"),
    "E": ((None,), "allocator thrashing"),
    "F": ((None,), "exposed communication"),
}
_ASKED = "ABCDEF"
_SLACK = 0.05  # of a share: its steps differ by less


class Case(NamedTuple):
    """ranks: those that may be named, None for all alike. least, most: of the share."""

    ranks: tuple[int | None, ...]
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
    ranks, cause = _CAUSES[letter]
    return Case(ranks, cause, min(shares) - _SLACK, max(shares) + _SLACK)


def _shares(letter: str, skip: int) -> list[float]:
    """Return the share by the goal's words: of all steps together, and where a rank is named on
    average over the steps, too."""
    trace = _whole(letter)
    breakdown = trace.breakdown(skip=skip)
    (rank,), *_ = _CAUSES[letter]
    if rank is None:
        least = min(breakdown.totals, key=lambda one: one.exposed / one.length)
        part = "exposed" if letter == "F" else "host_bound"
        return [getattr(least, part) / least.length]
    return [_less(rows, rank) for rows in (breakdown.totals, breakdown.steps)]


def _less(rows: Sequence[Any], rank: int) -> float:
    """How much smaller the share of exposed communication is on this rank than on the others."""
    own: list[float] = []
    others: list[float] = []
    for row in rows:
        (own if row.rank == rank else others).append(row.exposed / row.length)
    return statistics.fmean(others) - statistics.fmean(own)


@judged("diagnoses", lab="07", silent=True)
def diagnoses(draw: random.Random) -> Iterator[Trial]:
    """`diagnoses()`: for each case "A" to "F" a tuple (rank or None, cause, share)."""
    del draw  # the traces are what they are
    yield _alone((), ...)


def _said(run: Run) -> dict[str, Any]:
    """Each diagnosis by its letter, large or small."""
    said = run.returned(0)
    return {str(key).upper(): one for key, one in said.items()} if isinstance(said, dict) else {}


def _first(run: Run, wrong: Callable[[str, Any, Any, Any, Case], Any]) -> Any:
    """Say what is wrong with the first of the cases, in order."""
    for letter in _ASKED:
        if letter in _said(run):
            rank, cause, share = _said(run)[letter]
            found = wrong(letter, _rank(rank), cause, share, truth(letter))
            if found:
                return {"case": letter, **(found if isinstance(found, dict) else {})}
    return False


def _no_dict(run: Run, _: int) -> Any:
    return not isinstance(run.returned(0), dict) and {"kind": type(run.returned(0)).__name__}


def _missing(run: Run, _: int) -> Any:
    missing = [letter for letter in _ASKED if letter not in _said(run)]
    return bool(missing) and {"missing": ", ".join(missing)}


def _no_triple(run: Run, _: int) -> Any:
    wrong = (letter for letter in _ASKED if not _is_diagnosis(_said(run).get(letter)))
    return next(({"case": letter} for letter in wrong), False)


def _is_diagnosis(one: Any) -> bool:
    if not isinstance(one, tuple | list) or len(one) != 3:
        return False
    rank, cause, share = one
    return (
        (_rank(rank) is None or _is_number(rank, Integral))
        and isinstance(cause, str)
        and _is_number(share, Real)
    )


def _rank(said: Any) -> Any:
    """None where all ranks are meant."""
    return None if isinstance(said, str) and said.lower() == "all" else said


def _is_number(value: Any, kind: type) -> bool:
    """Say whether this is a number of Python's or numpy's."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _word(cause: str) -> str:
    return " ".join(cause.lower().replace("_", " ").replace("-", " ").split())


def _unknown(run: Run, _: int) -> Any:
    return _first(
        run,
        lambda letter, rank, cause, share, right: (
            _word(cause) not in map(_word, CAUSES) and {"cause": cause, "causes": ", ".join(CAUSES)}
        ),
    )


def _percent(run: Run, _: int) -> Any:
    return _first(run, lambda letter, rank, cause, share, right: not 0 <= share <= 1)


def _no_rank(run: Run, _: int) -> Any:
    def absent(letter: str, rank: Any, cause: str, share: float, right: Case) -> Any:
        there = (None, *case(letter).ranks)
        return rank not in there and {"named": rank, "last": there[-1]}

    return _first(run, absent)


def _victim(run: Run, _: int) -> Any:
    """A rank that waits is named, where another one makes it wait."""

    def waits(letter: str, rank: Any, cause: str, share: float, right: Case) -> Any:
        if rank is None or rank in right.ranks or right.ranks[0] is None:
            return False
        return {"named": rank}

    return _first(run, waits)


def _not_all(run: Run, _: int) -> Any:
    return _first(
        run,
        lambda letter, rank, cause, share, right: rank is None and None not in right.ranks,
    )


def _not_one(run: Run, _: int) -> Any:
    def one(letter: str, rank: Any, cause: str, share: float, right: Case) -> Any:
        return rank not in right.ranks and {"named": rank}

    return _first(run, one)


def _cause(run: Run, _: int) -> Any:
    return _first(
        run,
        lambda letter, rank, cause, share, right: (
            _word(cause) != _word(right.cause) and {"cause": cause}
        ),
    )


def _share(run: Run, _: int) -> Any:
    return _first(
        run,
        lambda letter, rank, cause, share, right: (
            not right.least <= share <= right.most
            and {"share": percent(float(share)), "way": "less" if share > right.most else "more"}
        ),
    )


diagnoses.demands("no-dict", _no_dict)
diagnoses.demands("missing-case", _missing)
diagnoses.demands("no-triple", _no_triple)
diagnoses.demands("unknown-cause", _unknown)
diagnoses.demands("percent", _percent)
diagnoses.demands("unknown-rank", _no_rank)
diagnoses.demands("victim-named", _victim)
diagnoses.demands("not-all", _not_all)
diagnoses.demands("not-one", _not_one)
diagnoses.demands("wrong-cause", _cause)
diagnoses.demands("wrong-share", _share)


# ── Further: noise ───────────────────────────────────────────────────────────────────────────


@judged("chance", lab="07", silent=True, further=True)
def chance(draw: random.Random) -> Iterator[Trial]:
    """`chance(before, after)`: the share of all ways to deal the values out to the two sides in
    which the mean of `after` is at least that much larger."""
    for count, other, shift in ((3, 3, 900), (4, 4, 40), (3, 5, 60), (4, 4, -50)):
        before = draw.sample(range(1000, 1100), count)
        after = [one + shift for one in draw.sample(range(1000, 1100), other)]
        yield _alone((before, after), Number(_chance(before, after)))
    short, middle, long = sorted(draw.sample(range(1000, 1100), 3))
    before, after = [short, short, middle, short], [middle, long, middle]
    yield _alone((before, after), Number(_chance(before, after)))
    while True:  # many ways have the same sum, which is another one where digits are lost
        a, b, c, d = draw.sample(range(1000, 1100), 4)
        before, after = [a, b, c, d, a], [d, c, b, a, c]
        right = _chance(before, after)
        if right not in (_in_ms(before, after), _of_whole(before, after)):
            break
    yield _alone((before, after), Number(right))
    same = draw.randrange(1000, 2000)
    yield _alone(([same] * 3, [same] * 3), Number(1.0))


def _in_ms(before: Sequence[int], after: Sequence[int]) -> float:
    """With sums of fractions, which differ in the last bit where they are equal."""
    count = len(after)
    small, large = ([one / 1e6 for one in values] for values in (before, after))
    return _chance(small, large, lambda one, seen: one / count >= seen / count)


def _of_whole(before: Sequence[int], after: Sequence[int]) -> float:
    """As if means were whole numbers."""
    count = len(after)
    return _chance(before, after, lambda one, seen: one // count >= seen // count)


Sums = Callable[[float, float], bool]


def _chance(
    before: Sequence[float], after: Sequence[float], counts: Sums = lambda one, seen: one >= seen
) -> float:
    values = [*before, *after]
    seen = sum(after)  # of equal numbers of values the sum orders as the mean does
    ways = [sum(one) for one in itertools.combinations(values, len(after))]
    return sum(counts(one, seen) for one in ways) / len(ways)
