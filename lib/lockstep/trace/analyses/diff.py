"""The changes between two traces: which work is more, less, gone or new, and where."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...base.formatting import milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table, table
from ..joins import grouped, innermost, launch_of, on_device, own_time
from ..slices import NONE, Column, Kind, Slices, TraceError
from ..steps import steps_by_rank
from .wording import Answer, shortened

_HASH = re.compile(r"(?<=CompiledFxGraph )\w+ ")
_SEPARATOR = " / "
_TOP = 10  # changes in the table


class Work(NamedTuple):
    """A kind of work that is counted together: the same in two traces if all four fields are.

    kind: a Kind's label. name: in full. shape: of communication: operation, bytes in, bytes out,
    dtype; "" for the rest, as traces do not say it of kernels. range: the annotations around the
    call that launched it, the outermost first, "forward / block 3"; "" outside of all.
    """

    kind: str
    name: str
    shape: str
    range: str


@dataclass(frozen=True)
class Side:
    """The count and the time of work in one of the traces. total: nanoseconds of all ranks and
    steps."""

    count: int = 0
    total: int = 0


@dataclass(frozen=True)
class Change:
    """One kind of work in both traces; a side without it is `Side(0, 0)`.

    moved_to: the range that it is in afterwards, where that is another one: the name and shape are
    left over exactly once on either side. per: (before, after): what totals are divided by.
    """

    work: Work
    before: Side
    after: Side
    per: tuple[int, int]
    moved_to: str | None = None

    @property
    def per_step(self) -> tuple[float, float]:
        """Nanoseconds of a rank's step, before and after."""
        return self.before.total / self.per[0], self.after.total / self.per[1]

    @property
    def counts(self) -> tuple[float, float]:
        """The number in a rank's step, before and after."""
        return self.before.count / self.per[0], self.after.count / self.per[1]

    @property
    def delta(self) -> float:
        """Nanoseconds of a rank's step: more is positive."""
        before, after = self.per_step
        return after - before

    @property
    def matched(self) -> bool:
        return bool(self.before.count and self.after.count)


@dataclass(frozen=True)
class Replaced:
    """In one range, what is only before and what is only after: fusing kernels looks like this."""

    range: str
    gone: tuple[Change, ...]
    new: tuple[Change, ...]

    @property
    def delta(self) -> float:
        """Nanoseconds of a rank's step: more is positive."""
        return sum(one.delta for one in (*self.gone, *self.new))


@dataclass(frozen=True)
class Diff(Answer):
    """The changes; nanoseconds are averages over a rank's step, so that lengths do not matter.

    changes: all work of either trace, the largest difference first. steps: (before, after), of all
    ranks together; where a trace has no steps, its ranks. step: (before, after), the mean time of a
    step from its begin to its end. what: what was compared, in words. notes: what was left out.
    """

    changes: tuple[Change, ...]
    steps: tuple[int, int]
    step: tuple[float, float]
    what: str
    notes: tuple[str, ...]
    stamps: tuple[Provenance, ...]

    @property
    def matched(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if one.matched)

    @property
    def only_before(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if not one.after.count)

    @property
    def only_after(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if not one.before.count)

    @property
    def total(self) -> tuple[float, float]:
        """Nanoseconds of work in a rank's step, before and after; parallel work counts twice."""
        before = sum(one.before.total for one in self.changes) / self.steps[0]
        return before, sum(one.after.total for one in self.changes) / self.steps[1]

    def replaced(self) -> tuple[Replaced, ...]:
        """By range, what was not matched; the largest difference first."""
        found: dict[str, tuple[list[Change], list[Change]]] = defaultdict(lambda: ([], []))
        for one in self.changes:
            if not one.matched:
                found[one.work.range][one.before.count == 0].append(one)
        ranges = [Replaced(at, tuple(gone), tuple(new)) for at, (gone, new) in found.items()]
        return tuple(sorted(ranges, key=lambda one: (-abs(one.delta), one.range)))

    def _tables(self) -> list[Table]:
        rows = [
            (
                shortened(one.work.name, 48) + (f" [{one.work.shape}]" if one.work.shape else ""),
                _where(one),
                *(f"{count:,.6g}" for count in one.counts),
                *map(milliseconds, one.per_step),
                f"{one.delta / 1e6:+,.3f}",
            )
            for one in self.changes[:_TOP]
            if one.delta or one.before.count * one.per[1] != one.after.count * one.per[0]
        ]
        (before, after), (long, short) = self.total, self.step
        growth = f" ({percent((after - before) / before, 1, sign=True)})" if before else ""
        caption = (
            f"{self.what} of a rank's step: {milliseconds(before)} → {milliseconds(after)} ms"
            f"{growth}; the step itself: {milliseconds(long)} → {milliseconds(short)} ms"
        )
        columns = (
            "work",
            "in",
            "count before",
            "count after",
            "ms before",
            "ms after",
            "difference",
        )
        return [table(caption, columns, rows, stamp=self.stamps)]

    def _notes(self) -> list[str]:
        said = [
            f"{len(self.matched)} kinds of work are in both traces, {len(self.only_before)} only "
            f"before, {len(self.only_after)} only after"
        ]
        for one in self.replaced()[:5]:
            gone = sum(each.counts[0] for each in one.gone)
            new = sum(each.counts[1] for each in one.new)
            said.append(
                f"in {_named(one.range)}: {gone:,.6g} slices are gone and {new:,.6g} new, "
                f"{one.delta / 1e6:+,.3f} ms"
            )
        return [*said, *self.notes]


def _named(place: str) -> str:
    if not place:
        return "no range"
    return place if len(place) <= 60 else f"{place[:20]}…{place[-39:]}"


def _where(one: Change) -> str:
    if one.moved_to is not None:
        return f"{_named(one.work.range)} → {_named(one.moved_to)}"
    unmatched = {(True, False): "only before: ", (False, True): "only after: "}
    side = (bool(one.before.count), bool(one.after.count))
    return unmatched.get(side, "") + _named(one.work.range)


def diff(before: Slices, after: Slices) -> Diff:
    """Compare two traces, per rank and step.

    Compared is what kept the GPUs busy (kernels, communication, copies, memsets); where neither
    trace has any, operators with their own time, without that of the slices inside of them, and
    what else works or communicates. Work is matched by kind, name, shape and range (see `Work`);
    what is left over by kind, name and shape alone if that is possible in one way only; the rest
    is reported as only before or only after. Where a trace has steps, only what was launched
    between the first one's start and the last one's end counts, and a note says how much did not.

    Raises TraceError where a trace is empty.
    """
    for trace, name in ((before, "before"), (after, "after")):
        if not len(trace):
            raise TraceError(f"the trace {name} has no slices: there is nothing to compare")
    device = any(len(on_device(trace)) for trace in (before, after))
    sides, counts, lengths, notes = [], [], [], []
    for trace, name in ((before, "before"), (after, "after")):
        found = _measure(trace, device)
        sides.append(found.work)
        counts.append(found.steps)
        lengths.append(found.length)
        if found.outside:
            notes.append(f"{name}: {found.outside:,} slices outside of the steps are not counted")
    per = (counts[0], counts[1])
    changes = sorted(_changes(sides[0], sides[1], per), key=lambda one: (-abs(one.delta), one.work))
    stamps = dict.fromkeys((before.provenance, after.provenance))
    return Diff(
        changes=tuple(changes),
        steps=per,
        step=(lengths[0], lengths[1]),
        what="GPU time" if device else "time of operators",
        notes=tuple(notes),
        stamps=tuple(stamps),
    )


def _changes(
    before: dict[Work, Side], after: dict[Work, Side], per: tuple[int, int]
) -> Iterator[Change]:
    nothing = Side()
    left: dict[tuple[str, str, str], tuple[list[Work], list[Work]]] = defaultdict(lambda: ([], []))
    for work in before.keys() | after.keys():
        if work in before and work in after:
            yield Change(work, before[work], after[work], per)
        else:
            left[work[:3]][work not in before].append(work)
    for gone, new in left.values():
        if len(gone) == len(new) == 1:
            yield Change(gone[0], before[gone[0]], after[new[0]], per, moved_to=new[0].range)
            continue
        yield from (Change(work, before[work], nothing, per) for work in gone)
        yield from (Change(work, nothing, after[work], per) for work in new)


class _Measured(NamedTuple):
    work: dict[Work, Side]
    steps: int
    length: float  # mean nanoseconds of a step
    outside: int  # slices


def _measure(trace: Slices, device: bool) -> _Measured:
    # Without a GPU operators work, and what communicates.
    works = (trace.kind >= Kind.COMPUTE) & (trace.kind <= Kind.SET) | (trace.kind == Kind.OPERATOR)
    rows = on_device(trace) if device else np.flatnonzero(works)
    calls = launch_of(trace, rows)
    calls = np.where(calls == NONE, rows, calls)
    kept, number, length = _in_steps(trace, calls)
    durations = trace.duration[rows] if device else own_time(trace, rows)
    rows, calls, durations = rows[kept], calls[kept], durations[kept]
    known, names = trace.collective[rows], trace.name[rows]
    place, ranges = _ranges(trace, calls)
    shapes = [_shape(trace, at) for at in range(len(trace.known))] + [""]
    shape_codes = {shape: code for code, shape in enumerate(dict.fromkeys(shapes))}
    shape = np.array([shape_codes[one] for one in shapes])[known]  # NONE is the last one's place
    keys = np.stack([trace.kind[rows].astype(np.int64), names, shape, place])
    distinct, which, times = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    totals = np.zeros(distinct.shape[1], np.int64)
    np.add.at(totals, which.ravel(), durations)
    texts = list(shape_codes)
    found = {
        Work(Kind(kind).label, trace.names[name], texts[form], ranges[at]): Side(count, total)
        for (kind, name, form, at), count, total in zip(
            distinct.T.tolist(), times.tolist(), totals.tolist(), strict=True
        )
    }
    return _Measured(found, number, length, int((~kept).sum()))


def _in_steps(trace: Slices, calls: Column) -> tuple[Column, int, float]:
    """Which of the calls count; how many steps there are of all ranks; their mean length."""
    kept, when, rank = np.ones(len(calls), bool), trace.start[calls], trace.rank[calls]
    number, length = 0, 0
    for one, own in steps_by_rank(trace).items():
        if own[0].number != NONE:
            kept &= (rank != one) | ((when >= own[0].start) & (when < own[-1].end))
        number += len(own)
        length += sum(step.end - step.start for step in own)
    return kept, max(number, 1), length / max(number, 1)


def _shape(trace: Slices, at: int) -> str:
    one = trace.known[at]
    sizes = [f"{size:,} B" for size in (one.bytes_in, one.bytes_out) if size != NONE]
    return " ".join(word for word in (one.operation, " → ".join(sizes), one.dtype) if word)


def _ranges(trace: Slices, calls: Column) -> tuple[Column, list[str]]:
    """For each call, which of these paths of annotations it was made in; the first is ""."""
    paths = {"": 0}
    place = np.zeros(len(calls), np.int64)
    for lane, mine in grouped(trace.lane[calls]):
        rows = trace.rows_of(lane)
        notes = rows.start + np.flatnonzero(trace.kind[rows] == Kind.ANNOTATION)
        if not len(notes):
            continue
        start, end = trace.start[notes], trace.end[notes]
        of_note = np.array([paths.setdefault(path, len(paths)) for path in _paths(trace, notes)])
        at = innermost(start, end, trace.start[calls[mine]])
        place[mine] = np.where(at == NONE, 0, of_note[at])
    return place, list(paths)


def _paths(trace: Slices, notes: Column) -> Iterator[str]:
    """The names of the annotations around each annotation of a lane, and its own.

    Compiled graphs are named after a hash that differs from rank to rank and from run to run.
    """
    around: list[tuple[int, str]] = []  # end and path, the innermost last
    ends, names = (trace.start[notes] + trace.duration[notes]).tolist(), trace.name[notes].tolist()
    for start, end, name in zip(trace.start[notes].tolist(), ends, names, strict=True):
        while around and (around[-1][0] <= start or around[-1][0] < end):
            around.pop()
        path = _HASH.sub("", trace.names[name])
        if around:
            path = f"{around[-1][1]}{_SEPARATOR}{path}"
        around.append((end, path))
        yield path
