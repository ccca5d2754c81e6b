"""Did a change make the steps slower? Two runs compared, and what grew beyond noise."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as xml

import numpy as np

from ..base.formatting import in_one_line, milliseconds, percent, printable, ranks_text
from ..base.provenance import Provenance, Recording
from ..figures.table import Table, table
from . import Kind, Trace, TraceError, noise
from .analyses.breakdown import Spent
from .analyses.diff import Change, diff
from .analyses.wording import Answer, shortened
from .joins import launch_of, on_device
from .slices import NONE
from .unseen import damaged, lossy

Run = str | Path | Trace | Recording
_FAR = 300  # times as long: two programs, or two units of time
_LONG = 1.5  # medians: such steps do something else, too; the first is a warm-up


class GateError(Exception):
    """Runs that cannot be compared: says what is wrong and what to do."""

    def __init__(self, what: str):
        super().__init__(printable(what))


@dataclass(frozen=True)
class Measure:
    """One measure before and after.

    name: "step time", "exposed communication" (nanoseconds), "launches" (of a rank's step) or
        "peak memory" (bytes). before, after: one value a step, or one a run where either side has
        several. chance: how often equal programs would differ as much in this direction by noise;
        None where that cannot be told. untold: why not.
    grew: chance is below what the gate allows. blame: which kernel or rank, in sentences.
    """

    name: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    chance: float | None
    grew: bool
    blame: tuple[str, ...] = ()
    untold: str = ""

    @property
    def medians(self) -> tuple[float, float]:
        return float(np.median(self.before)), float(np.median(self.after))

    @property
    def growth(self) -> float:
        """The growth of the median: 0.05 is 5 % more. Infinite where there was nothing before."""
        before, after = self.medians
        if not before:
            return math.inf if after else 0.0
        return after / before - 1

    @property
    def said(self) -> tuple[str, str, str]:
        """(before, after, growth), in words."""
        before, after = (_quantity(self.name, one) for one in self.medians)
        nothing = math.isinf(self.growth)
        return before, after, "from nothing" if nothing else percent(self.growth, 1, sign=True)

    @property
    def odds(self) -> str:
        """How often noise does that, in words."""
        return "unknown" if self.chance is None else _likely(self.chance)

    @property
    def verdict(self) -> str:
        """ "GREW", "ok" or "cannot tell"."""
        return "cannot tell" if self.untold else "GREW" if self.grew else "ok"

    def __str__(self) -> str:
        before, after, growth = self.said
        verdict = "grew" if self.grew else "did not grow beyond noise"
        said = f"{self.name} {verdict}: {before} → {after} ({growth}; chance by noise: {self.odds})"
        if self.untold:
            said = f"{self.name} {self.untold}: {before} → {after} ({growth})"
        return printable("; ".join([said, *self.blame]))


@dataclass(frozen=True)
class Gate(Answer):
    """The gate's verdict. runs: of either side. level: false alarms that it allows, of all pairs.

    left_out: measures that one side or both do not have, and why.
    """

    measures: tuple[Measure, ...]
    left_out: dict[str, str]
    runs: tuple[int, int]
    level: float
    notes: tuple[str, ...]
    stamps: tuple[Provenance, ...]

    @property
    def failed(self) -> bool:
        """Did a measure grow?"""
        return any(one.grew for one in self.measures)

    @property
    def passed(self) -> bool:
        """Was every measure judged, and did none grow?"""
        return all(one.verdict == "ok" for one in self.measures)

    @property
    def verdict(self) -> str:
        """ "FAILED", "passed", or "CANNOT TELL"."""
        return "FAILED" if self.failed else "passed" if self.passed else "CANNOT TELL"

    def of(self, name: str) -> Measure:
        """The measure of this name. Raises GateError, saying which there are, for another."""
        for one in self.measures:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.measures)
        raise GateError(f"{name!r} was not measured; measured: {known}")

    def junit(self) -> str:
        """JUnit's XML: a test case for each measure. One that was left out is skipped, and one of
        which nothing can be told is an error.

        As both common schemas want it: Apache Ant's (github.com/windyroad/JUnit-Schema) and that of
        Jenkins (junit-10.xsd of github.com/jenkinsci/xunit-plugin).
        """
        root = xml.Element("testsuites")
        counts = {
            "tests": len(self.measures) + len(self.left_out),
            "failures": sum(one.grew for one in self.measures),
            "errors": sum(one.verdict == "cannot tell" for one in self.measures),
            "skipped": len(self.left_out),
            "time": 0,
        }
        suite = xml.SubElement(root, "testsuite", name="lockstep gate", package="lockstep", id="0")
        suite.attrib |= {name: str(count) for name, count in counts.items()}
        suite.set("timestamp", datetime.now().isoformat(timespec="seconds"))
        suite.set("hostname", "localhost")
        xml.SubElement(suite, "properties")

        def case(name: str) -> xml.Element:
            return xml.SubElement(suite, "testcase", classname="lockstep.gate", name=name, time="0")

        for one in self.measures:
            measured = case(one.name)
            if one.verdict != "ok":
                said, tag = in_one_line(one), "failure" if one.grew else "error"
                xml.SubElement(measured, tag, type=one.verdict, message=said).text = said
        for name, why in self.left_out.items():
            xml.SubElement(case(name), "skipped", message=in_one_line(why))
        xml.SubElement(suite, "system-out").text = str(self)
        xml.SubElement(suite, "system-err")
        xml.indent(root)
        return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

    def markdown(self) -> str:
        """A table and sentences, for a comment below a change or a job's summary."""
        (shown,) = self._tables()
        lines = [f"### {shown.caption}", "", _row(shown.columns), _row(["---"] * 6)]
        lines += [_row(row) for row in shown.rows]
        said = [*self._notes(), *map(str, self.stamps)]
        return "\n".join([*lines, "", *(f"- {_plain(one)}" for one in said)]) + "\n"

    def _tables(self) -> list[Table]:
        rows = [(one.name, *one.said, one.odds, one.verdict) for one in self.measures]
        columns = ("measure", "before", "after", "growth", "chance by noise", "verdict")
        return [table(f"lockstep gate: {self.verdict}", columns, rows, stamp=self.stamps)]

    def _notes(self) -> list[str]:
        said = [str(one) for one in self.measures if one.verdict != "ok"]
        said += [f"{name} is left out: {why}" for name, why in self.left_out.items()]
        return [*said, *self.notes]


def gate(
    baseline: Run | Sequence[Run], new: Run | Sequence[Run], *, skip: int = 0, level: float = 0.01
) -> Gate:
    """Compare the steps of two runs, or of several repeats each, and say what grew beyond noise.

    baseline, new: a trace, a recording, a folder of traces, a folder of such folders (one a
    repeat), or several of these. skip: how many first steps of each run to leave out. level: the
    share of pairs of equal programs in which the gate may fail.

    Compared are, step by step: the time of the step, of its slowest rank; exposed communication,
    the mean of the ranks; launches, the calls of a rank that launch work (without GPUs: its
    operators); and peak memory, of the rank that needs most, one value a run, where allocator
    snapshots (*.pickle, *.pickle.gz) lie beside the traces.

    Where each side is one run, a value is a step's; else it is the median of a run, as runs differ
    by more than their steps do (Georges, Buytaert and Eeckhout, "Statistically rigorous Java
    performance evaluation", 2007). A first step that takes longer than all others, and more than
    1.5 times their median, is taken for a warm-up and left out, which is said.

    `noise` has the test. It asks each measure that scatters at `level` divided by their number
    (Bonferroni). What is counted (launches, bytes) does not scatter by measuring: where it is the
    same in all of a side's values, any growth is one. A measure is not judged, and the gate is not
    passed, where a side has fewer than 16 steps or 5 repeats, where neighbours are so alike that
    there are too few independent blocks of them, where a drift inside the runs may be all that is
    seen, and where steps changed inside a run, not between both. `data/GATE.md` has measured how
    often the gate errs.

    What it cannot know:

    - whether the program or the machine changed between two single runs. Where that matters, give
      five or more repeats a side, run by turns;
    - what grows in a few steps alone, as values are medians: notes say how many steps take more
      than 1.5 times the median, and how many were left out because some rank lacks them;
    - whether steps changed or noise did, where a drift is too small to be seen, or where a state of
      the machine begins within a few steps of the new run.

    Raises GateError where the sides cannot be compared (other ranks, a rank that lacks kernels, a
    damaged file, steps 300 times as long), and TraceError where a trace cannot be read.
    """
    if not noise.LEAST <= level < 1:
        raise GateError(
            f"level={level}: the share of false alarms must be between {noise.LEAST} and 1"
        )
    sides = (_runs(baseline, "baseline", skip), _runs(new, "new", skip))
    _refuse_misfits(*sides)
    single = all(len(side) == 1 for side in sides)
    what = "steps" if single else "runs"
    columns, left_out = _columns(sides, single)
    typical = (_typical(sides[0]), _typical(sides[1]))
    exact = {name: _exact(name, *values) for name, values in columns.items()}
    each = level / max(sum(one is None for one in exact.values()), 1)
    judge = noise.of_steps if single else noise.of_runs
    measures = []
    for name, (before, after) in columns.items():
        found = exact[name] or judge(np.array(before), np.array(after), each)
        grew = found.chance is not None and found.chance < each
        growth = float(np.median(after) - np.median(before))
        blamed = grew or (found.untold and growth > 0)
        blame = _blame(name, growth, *typical) if blamed else ()
        values = (tuple(before), tuple(after))
        measures.append(Measure(name, *values, found.chance, grew, blame, found.untold))
    counts = [len(values) for values in columns["step time"]]
    notes = [f"compared: {counts[0]} {what} of the baseline, {counts[1]} new"]
    if single:
        notes.append("one run on each side: how much runs of the same program differ is not known")
    if typical[0].operators:
        notes.append("these ranks have no GPU: their operators count as launches")
    notes += [note for side in sides for one in side for note in one.notes]
    notes += [*_long_steps(sides[0], "baseline"), *_long_steps(sides[1], "new")]
    stamps = dict.fromkeys(one.trace.provenance for side in sides for one in side)
    runs = (len(sides[0]), len(sides[1]))
    return Gate(tuple(measures), left_out, runs, level, tuple(notes), tuple(stamps))


# ── What a run is ────────────────────────────────────────────────────────────────────────────


class _Run(NamedTuple):
    name: str
    trace: Trace
    # a step's number, and how many of that number came before → what it went to, one a GPU
    spent: dict[tuple[int | None, int], list[Spent]]
    values: dict[str, list[float]]  # a measure → one value a step
    operators: bool  # launches are operators
    peaks: dict[str, int]  # a snapshot's name → bytes
    notes: tuple[str, ...]


def _runs(source: Run | Sequence[Run], side: str, skip: int) -> list[_Run]:
    given = [source] if isinstance(source, str | Path | Trace | Recording) else list(source)
    found = [one for each in given for one in _repeats(each)]
    if not found:
        raise GateError(f"{side} names no run: give a trace, its folder, or several of these")
    return [_run(one, side, skip) for one in found]


def _repeats(source: Run) -> list[Run]:
    """The runs in a folder: itself, if it has files of traces, or else its folders."""
    if isinstance(source, Trace | Recording) or not Path(source).is_dir():
        return [source]
    entries = sorted(Path(source).iterdir())
    if any(one.name.endswith((".json", ".json.gz")) for one in entries):
        return [source]
    return [one for one in entries if one.is_dir()] or [source]


def _run(source: Run, side: str, skip: int) -> _Run:
    if isinstance(source, Trace):
        trace, name, peaks = source, side, {}
    else:
        path = source.path if isinstance(source, Recording) else Path(source)
        trace, name = Trace.load(source), str(path)
        peaks = _peaks(path) if path.is_dir() else {}
    found = trace.breakdown(skip=skip)
    if lost := [*found.unseen.values(), *damaged(trace).values(), *lossy(trace).values()]:
        raise GateError(
            f"{name}: {'; '.join(lost)}. It cannot be compared with certainty: record it again"
        )
    by_step: dict[tuple[int | None, int], list[Spent]] = defaultdict(list)
    times: Counter[tuple[int, int, int | None]] = Counter()
    for one in found.steps:
        again = (
            one.rank,
            one.device,
            one.step,
        )  # a program may count its steps from 0 more than once
        by_step[one.step, times[again]].append(one)
        times[again] += 1
    gpus = len(found.totals)
    whole = {step: every for step, every in by_step.items() if len(every) == gpus}
    lengths = {step: float(max(one.length for one in every)) for step, every in whole.items()}
    if not whole:
        raise GateError(
            f"{name}: no step was recorded by all of {ranks_text(trace.ranks)}: give all "
            "ranks the same schedule, and steps the same numbers"
        )
    notes = [f"{name}: {one}" for one in found.doubts]
    if partly := len(by_step) - len(whole):
        notes.append(
            f"{name}: {partly} of {len(by_step)} steps are left out, because a rank lacks them"
        )
    if warm_up := _warm_up([*lengths.values()]):
        del whole[first := next(iter(whole))]
        notes.append(
            f"{name}: the first step took {milliseconds(lengths.pop(first))} ms, {warm_up:,.1f} "
            "times the median: it is taken for a warm-up and left out"
        )
    counts, operators = _launches(trace)
    values = {
        "step time": [*lengths.values()],
        "exposed communication": [
            float(np.mean([one.exposed for one in every])) for every in whole.values()
        ],
        "launches": [
            float(np.mean([_within(counts[one.rank], one) for one in every]))
            for every in whole.values()
        ],
    }
    return _Run(name, trace, whole, values, operators, peaks, tuple(notes))


def _warm_up(lengths: list[float]) -> float:
    """Return how many times the others' median a first step takes that is a warm-up, else 0."""
    first, *others = lengths
    if not others or first <= max(others):
        return 0.0
    times = first / float(np.median(others))
    return times if times > _LONG else 0.0


def _launches(trace: Trace) -> tuple[dict[int, np.ndarray[Any, Any]], bool]:
    """For each rank when its launching calls begin, in order; whether these are operators."""
    rows = on_device(trace)
    calls = np.unique(launch_of(trace, rows))
    calls = calls[calls != NONE]
    operators = not len(rows)
    if operators:
        calls = trace.where(Kind.OPERATOR)
    begun = {rank: np.sort(trace.start[calls[trace.rank[calls] == rank]]) for rank in trace.ranks}
    return begun, operators


def _within(times: np.ndarray[Any, Any], one: Spent) -> int:
    first, last = np.searchsorted(times, (one.start, one.end))
    return int(last - first)


def _peaks(folder: Path) -> dict[str, int]:
    files = sorted([*folder.glob("*.pickle"), *folder.glob("*.pickle.gz")])
    try:
        return {one.name: int(Trace.memory(one).allocated.max()) for one in files}
    except TraceError as error:
        raise GateError(f"{folder}: {error}") from None


def _refuse_misfits(before: list[_Run], after: list[_Run]) -> None:
    first = before[0]
    for one in (*before, *after):
        if one.trace.ranks != first.trace.ranks:
            raise GateError(
                f"{first.name} is of {ranks_text(first.trace.ranks)} and {one.name} of "
                f"{ranks_text(one.trace.ranks)}: only runs of the same ranks can be compared"
            )
        if one.operators != first.operators:
            on, off = (one, first) if first.operators else (first, one)
            raise GateError(f"{on.name} ran on GPUs and {off.name} did not")
    lengths = [(float(np.median(one.values["step time"])), one.name) for one in (*before, *after)]
    (short, fast), (long, slow) = min(lengths), max(lengths)
    if long > _FAR * short:
        raise GateError(
            f"a step takes {milliseconds(short)} ms in {fast} and {milliseconds(long)} ms in "
            f"{slow}: is that the same program, and are the times of both files in microseconds, "
            "as in what PyTorch's profiler writes?"
        )


def _long_steps(side: list[_Run], name: str) -> list[str]:
    """Steps that do something else, too: an evaluation, a checkpoint, a warm-up."""
    times = [
        (one, _LONG * np.median(run.values["step time"]))
        for run in side
        for one in run.values["step time"]
    ]
    long = [one for one, limit in times if one > limit]
    if not long:
        return []
    return [
        f"{len(long)} of {len(times)} steps of {name} take more than {_LONG} times the "
        f"median, {milliseconds(max(long))} ms at most: growth in such steps alone may not be "
        "seen"
    ]


def _typical(side: list[_Run]) -> _Run:
    """The run with the median step, to say of what the growth is made."""
    order = sorted(side, key=lambda one: float(np.median(one.values["step time"])))
    return order[(len(order) - 1) // 2]


# ── Noise ────────────────────────────────────────────────────────────────────────────────────


def _columns(
    sides: tuple[list[_Run], list[_Run]], single: bool
) -> tuple[dict[str, tuple[list[float], list[float]]], dict[str, str]]:
    """Return each measure's values of both sides; those that are left out, and why."""
    columns, left_out = {}, {}
    for name in ("step time", "exposed communication", "launches"):
        columns[name] = _values(sides[0], name, single), _values(sides[1], name, single)
    before, after = (
        [float(max(one.peaks.values())) for one in side if one.peaks] for side in sides
    )
    if before and after:
        columns["peak memory"] = before, after
    else:
        without = [name for name, own in (("baseline", before), ("new", after)) if not own]
        left_out["peak memory"] = (
            f"no snapshot of the allocator (*.pickle) beside the traces of {' and '.join(without)}"
        )
    return columns, left_out


def _values(side: list[_Run], name: str, single: bool) -> list[float]:
    if single:
        return side[0].values[name]
    return [float(np.median(one.values[name])) for one in side]


def _exact(name: str, before: list[float], after: list[float]) -> noise.Judgement | None:
    """Judge what has no noise: what is the same everywhere, or is counted and does not scatter."""
    if len({*before, *after}) == 1:
        return noise.Judgement(1.0)
    if name in ("launches", "peak memory") and len(set(before)) == len(set(after)) == 1:
        return noise.Judgement(float(after[0] < before[0]))
    return None


# ── What it is made of ───────────────────────────────────────────────────────────────────────

# What a rank makes the others wait with; the rest of its step it waits itself.
_OWN = {"computing": "compute", "copying": "copies", "host-bound": "host_bound", "idle": "other"}


def _blame(name: str, growth: float, before: _Run, after: _Run) -> tuple[str, ...]:
    """Which rank, and which kernel or range; what does not grow is not blamed."""
    if name == "peak memory":
        grown = {file: size - before.peaks.get(file, 0) for file, size in after.peaks.items()}
        worst = max(grown, key=grown.__getitem__)
        return (f"most in {worst}: {grown[worst] / 2**20:+,.1f} MiB",)
    traces = (before.trace, after.trace)
    if name == "launches":
        one = max(diff(*traces).changes, key=lambda change: change.counts[1] - change.counts[0])
        fewer, more = one.counts
        return (f"{_named(one)}: {fewer:,.6g} → {more:,.6g} a step",) if more > fewer else ()
    late = _late(before, after, growth)
    if name == "exposed communication":
        talks = [one for one in diff(*traces).changes if one.work.kind == "communication"]
        return (late.said, *_longest(talks))
    of_rank = [
        one if late.rank is None else one.select(one.where(rank=late.rank)) for one in traces
    ]
    if late.how in ("host-bound", "idle"):
        return (late.said, *_longest_range(*of_rank))
    return (late.said, *_longest(diff(*of_rank).changes))


class _Late(NamedTuple):
    said: str
    rank: int | None  # None: all alike, or nobody
    how: str


def _late(before: _Run, after: _Run, growth: float) -> _Late:
    """Say who needs more time of its own, without waiting; which rank, if one alone does."""
    more = {
        rank: {
            how: _median(after, rank, part) - _median(before, rank, part)
            for how, part in _OWN.items()
        }
        for rank in after.trace.ranks
    }
    total = {rank: sum(parts.values()) for rank, parts in more.items()}
    worst = max(total, key=total.__getitem__)
    how = max(more[worst], key=more[worst].__getitem__)
    if total[worst] < growth / 4:  # its part in what grew is small
        return _Late("no rank itself needs much longer: they wait", None, "")
    of_it = f"{milliseconds(total[worst])} ms a step, {milliseconds(more[worst][how])} of it {how}"
    rest = float(np.median([one for rank, one in total.items() if rank != worst] or [total[worst]]))
    if total[worst] > 2 * max(rest, 0):
        others = f"the others by {milliseconds(rest)}" if rest > 0 else "the others do not"
        return _Late(f"rank {worst} itself needs longer by {of_it} ({others})", worst, how)
    return _Late(f"all ranks alike need longer themselves: rank {worst} by {of_it}", None, how)


def _median(run: _Run, rank: int, part: str) -> float:
    every = (one for spent in run.spent.values() for one in spent if one.rank == rank)
    return float(np.median([getattr(one, part) for one in every]))


def _longest(changes: Sequence[Change]) -> tuple[str, ...]:
    one = max(changes, key=lambda change: change.delta, default=None)
    if one is None or one.delta <= 0:
        return ()
    return (f"{_named(one)}: {one.delta / 1e6:+,.3f} ms of a rank's step",)


def _longest_range(before: Trace, after: Trace) -> tuple[str, ...]:
    """Among the ranges that the program names, the one that takes longer by most."""
    more: dict[str, float] = defaultdict(float)
    for sign, trace in ((-1, before), (1, after)):
        steps = max(len([one for one in trace.steps() if one.number != NONE]), 1)
        rows = trace.where(Kind.ANNOTATION)
        spent = np.bincount(trace.name[rows], trace.duration[rows], len(trace.names))
        for name in np.unique(trace.name[rows]).tolist():
            more[trace.names[name]] += sign * spent[name] / steps
    worst = max(more, key=more.__getitem__, default="")
    if not worst or more[worst] <= 0:
        return ()
    return (f"the range {shortened(worst, 60)}: {more[worst] / 1e6:+,.3f} ms of a rank's step",)


def _named(one: Change) -> str:
    place = one.moved_to or one.work.range
    return shortened(one.work.name, 60) + (f" in {place}" if place else "")


# ── Words ────────────────────────────────────────────────────────────────────────────────────


def _quantity(name: str, value: float) -> str:
    if name == "launches":
        return f"{value:,.6g}"
    if name == "peak memory":
        return f"{value / 2**20:,.1f} MiB"
    return f"{milliseconds(value)} ms"


def _likely(chance: float) -> str:
    if chance >= 0.01:
        return f"{100 * chance:.0f} in 100"
    return f"1 in {1 / chance:,.0f}" if chance else "none: it is counted"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """Text of traces as Markdown shows it: no tags, in one line."""
    text = in_one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return text.replace("`", "\\`").replace("*", "\\*").replace("_", "\\_")
