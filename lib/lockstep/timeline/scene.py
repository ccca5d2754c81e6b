"""The content of a timeline: rows of slices that do not overlap, made from one trace or from
two."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import formatting, style
from ..base.formatting import by_value, counted, cut
from ..base.provenance import Provenance
from ..base.style import GROUPS, Look
from ..trace import Kind, Trace, TraceError
from ..trace.analyses.critical import CriticalPath
from ..trace.intervals import Intervals, covered
from ..trace.joins import busy, computes_on_host, launch_of, on_device
from ..trace.matching import match
from ..trace.slices import NONE
from ..trace.steps import Step, steps_by_rank
from ..trace.unseen import unseen

Column = NDArray[Any]

# What the band above a rank's lanes says; numbers as if they were kinds, beyond Kind's own.
COMPUTES, HIDDEN, EXPOSED = 20, 21, 22
SENDS, RECEIVES = 23, 24  # communication that is known to be one of them
GROUP = 30  # and on: of the first group of slices that the user named, and of those after it
_QUIET = 0.005  # of the time, in which a quiet lane has slices
_LONGEST_NAME = 300  # characters; what is longer is cut in the picture


LOOKS: dict[int, Look] = {
    Kind.COMPUTE: style.COMPUTE,
    Kind.COMMUNICATION: style.COMMUNICATION,
    SENDS: style.SEND,
    RECEIVES: style.RECV,
    Kind.COPY: style.COPY,
    Kind.SET: style.SET,
    Kind.WAIT: style.WAITING,
    Kind.LAUNCH: style.LAUNCH,
    Kind.OPERATOR: style.HOST,
    Kind.PYTHON: Look("python", style.GREY, "-"),
    Kind.ANNOTATION: Look("annotation", style.GREY),
    Kind.GPU_ANNOTATION: Look("gpu annotation", style.GREY, "|"),
    Kind.STEP: Look("step", style.GREY, "\\"),
    Kind.OTHER: Look("other", style.GREY, "."),
    COMPUTES: Look("computes only", style.COMPUTE.colour),
    HIDDEN: style.HIDDEN,
    EXPOSED: style.EXPOSED,
}


@dataclass(frozen=True)
class Row:
    """One line of the picture: slices [first, last) of the scene, by start, not overlapping.

    part: 0, or 1 for "after" in a comparison. lane: its label, "" for the rank's band. level: of
    slices of a lane that nest or overlap, the inner or later ones stand a level lower.
    """

    part: int
    rank: int
    lane: str
    level: int
    first: int
    last: int
    on_device: bool = False
    is_quiet: bool = False  # of a thread: next to nothing happens there

    @property
    def is_band(self) -> bool:
        return not self.lane


@dataclass(frozen=True)
class RankTimes:
    """Nanoseconds of one rank in which something computes, communicates, and either one alone.

    span: of all ranks, or of this one where their clocks differ. exposed: communicates while
    nothing computes. has_compute: False where no slice is known to
    compute; nothing can then be said of overlap.
    """

    part: int
    rank: int
    span: int
    compute: int
    communication: int
    exposed: int
    has_compute: bool
    groups: tuple[int, ...] = ()  # nanoseconds in which slices of each group last


@dataclass(frozen=True)
class Part:
    """One trace of the picture."""

    label: str
    stamp: Provenance
    slices: int
    lanes: int
    ranks: tuple[int, ...]
    span: int
    one_clock: bool  # whether times of different ranks may be compared
    resolution: int  # nanoseconds; no waiting time below it may be told
    communications: str  # such as "2 all_reduce, 1 barrier on each rank"


@dataclass(frozen=True)
class Scene:
    """All that is drawn. Times are nanoseconds since the first start of the slice's own trace.

    start, duration, name (index into names), kind (a Kind, or of the band): one a slice, sorted by
    row, then start. launches, launched: positions of slices that are joined by a correlation.
    communications: positions of slices, ascending. known and instance, one each: index into
    collectives, and a number that all ranks' slices of one collective share; NONE if unknown.
    """

    title: str
    parts: tuple[Part, ...]
    rows: tuple[Row, ...]
    times: tuple[RankTimes, ...]
    span: int
    names: tuple[str, ...]
    start: Column
    duration: Column
    name: Column
    kind: Column
    launches: Column
    launched: Column
    communications: Column
    known: Column
    instance: Column
    collectives: tuple[dict[str, Any], ...]
    groups: tuple[str, ...] = ()  # their labels
    path: tuple[tuple[int, int, int], ...] = ()  # start, end and row of each piece, in order
    steps: tuple[tuple[str, int, int], ...] = ()  # label, first rank's start, last rank's end
    is_overview: bool = False

    @property
    def slices(self) -> int:
        return sum(part.slices for part in self.parts)

    @property
    def stamp(self) -> Provenance:
        """One for all that is drawn; of a comparison it names both where they differ."""
        stamps = list(dict.fromkeys(part.stamp for part in self.parts))
        if len(stamps) == 1:
            return stamps[0]
        kinds = list(dict.fromkeys(stamp.kind for stamp in stamps))
        said = (
            f"{part.label}: {part.stamp if len(kinds) > 1 else part.stamp.source}"
            for part in self.parts
        )
        return Provenance(" and ".join(kinds), "; ".join(said))

    def operation(self, at: int) -> str:
        """Return the communication at this position, such as "all_reduce"; "" if unknown."""
        place = int(np.searchsorted(self.communications, at))
        if place == len(self.communications) or self.communications[place] != at:
            return ""
        known = int(self.known[place])
        return "" if known == NONE else str(self.collectives[known]["operation"])

    @property
    def looks(self) -> dict[int, Look]:
        """Return the styles of the kinds that occur."""
        groups = {GROUP + at: Look(label, *GROUPS[at]) for at, label in enumerate(self.groups)}
        counts = np.bincount(self.kind, minlength=GROUP + len(GROUPS))
        return {kind: look for kind, look in (LOOKS | groups).items() if counts[kind]}

    @property
    def legend(self) -> list[int]:
        """One kind for each colour and pattern: "compute" says what "computes only" looks like."""
        first: dict[tuple[str, str], int] = {}
        for kind, look in self.looks.items():
            first.setdefault((look.colour, look.pattern), kind)
        return list(first.values())


def scene(
    trace: Trace,
    *,
    before: Trace | None = None,
    title: str = "",
    groups: Mapping[str, str] | None = None,
    path: CriticalPath | None = None,
) -> Scene:
    """Lay out a trace, below another one if `before` is given; each starts at its own 0.

    groups: by label a regular expression; slices of which it matches the whole
    name are a kind of their own. path: of `trace`, drawn on it. Raises TraceError
    where there is nothing to draw, or a group cannot be told.
    """
    patterns = _patterns(groups or {})
    traces = {"": trace} if before is None else {"before": before, "after": trace}
    pieces = [
        _Piece(number, label, one, patterns) for number, (label, one) in enumerate(traces.items())
    ]
    columns, rows = _joined(pieces)
    names = [name for piece in pieces for name in piece.names]
    for at, label in enumerate(patterns):
        if not (columns["kind"] == GROUP + at).any():
            raise TraceError(_matches_nothing(label, patterns[label].pattern, names, columns))
    last = pieces[-1]
    return Scene(
        title=title,
        parts=tuple(piece.part for piece in pieces),
        rows=rows,
        times=tuple(times for piece in pieces for times in piece.times),
        span=max(piece.part.span for piece in pieces),
        names=tuple(names),
        collectives=tuple(_described(one) for piece in pieces for one in piece.trace.known),
        groups=tuple(patterns),
        path=_path(path, rows, len(pieces) - 1, last.trace.span[0]) if path else (),
        steps=tuple(step for piece in pieces for step in _steps(piece)),
        **columns,
    )


def _joined(pieces: Sequence[_Piece]) -> tuple[dict[str, Any], tuple[Row, ...]]:
    """The columns and rows of all pieces, one after the other: what they count goes on."""
    columns: dict[str, list[Column]] = {}
    rows: list[Row] = []
    names = slices = collectives = instances = 0
    for piece in pieces:
        before = {
            "name": names,
            **dict.fromkeys(("launches", "launched", "communications"), slices),
            "known": collectives,
            "instance": instances,
        }
        for key, values in piece.columns.items():
            if by := before.get(key, 0):
                values = np.where(values == NONE, NONE, values + by)
            columns.setdefault(key, []).append(values)
        rows += [
            replace(one, first=one.first + slices, last=one.last + slices) for one in piece.rows
        ]
        names += len(piece.names)
        slices += len(piece.columns["start"])
        collectives += len(piece.trace.known)
        instances += int(piece.columns["instance"].max(initial=NONE)) + 1
    return {key: np.concatenate(values) for key, values in columns.items()}, tuple(rows)


def _path(
    path: CriticalPath, rows: Sequence[Row], part: int, first: int
) -> tuple[tuple[int, int, int], ...]:
    """The pieces of a critical path; what follows each other on one lane is one piece."""
    of_lane = {
        (row.rank, row.lane): at
        for at, row in reversed([*enumerate(rows)])
        if row.part == part and row.lane
    }
    segments = path.segments
    cuts = np.flatnonzero(np.diff(segments.lane, prepend=NONE))
    ends = segments.end[np.append(cuts[1:], len(segments)) - 1]
    pieces = []
    for at, end in zip(cuts.tolist(), ends.tolist(), strict=True):
        one = segments[at]
        if (row := of_lane.get((one.rank, cut(one.lane, _LONGEST_NAME) or "?"))) is None:
            raise TraceError(f"the critical path is on rank {one.rank}, which is not drawn")
        pieces.append((one.start - first, end - first, row))
    return tuple(pieces)


def _steps(piece: _Piece) -> Iterator[tuple[str, int, int]]:
    """A step that several ranks number alike is one; so is the second of a number on each."""
    found: dict[tuple[int, int], list[Step]] = {}
    for own in steps_by_rank(piece.trace).values():
        seen: Counter[int] = Counter()
        for step in own:
            found.setdefault((seen[step.number], step.number), []).append(step)
            seen[step.number] += 1
    first = piece.trace.span[0]
    for (_, number), same in found.items():
        if number != NONE:
            label = f"{piece.part.label} step {number}".strip()
            yield (
                label,
                min(one.start for one in same) - first,
                max(one.end for one in same) - first,
            )


def _patterns(groups: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    if len(groups) > len(GROUPS):
        said = ", ".join(map(repr, groups))
        raise TraceError(f"{len(groups)} groups ({said}): there are colours for {len(GROUPS)}")
    taken = {look.label for look in LOOKS.values()}
    patterns = {}
    for label, pattern in groups.items():
        if not label.strip() or label in taken:
            why = "the legend has this one already" if label in taken else "this one is empty"
            raise TraceError(f"group {label!r}: take another label, {why}")
        try:
            patterns[label] = re.compile(pattern)
        except (re.error, TypeError) as error:
            what = f"{pattern!r} is not a regular expression: {error}"
            raise TraceError(f"group {label!r}: {what}") from None
    return patterns


def _matches_nothing(label: str, pattern: str, names: list[str], columns: dict[str, Any]) -> str:
    drawn = columns["name"][np.isin(columns["kind"], (COMPUTES, HIDDEN, EXPOSED), invert=True)]
    some = sorted({names[one] for one in np.unique(drawn).tolist()})
    said = ", ".join(repr(name[:40]) for name in some[:5]) + (", …" if len(some) > 5 else "")
    return f"group {label!r}: {pattern!r} matches no slice's whole name; names are {said}"


def _groups(names: Sequence[str], patterns: dict[str, re.Pattern[str]]) -> Column:
    """For each name the group that it is in, or NONE."""
    found = np.full(len(names), NONE, np.int64)
    for at, name in enumerate(names):
        mine = [label for label, pattern in patterns.items() if pattern.fullmatch(name)]
        if len(mine) > 1:
            raise TraceError(f"{name[:40]!r} is in two groups: {mine[0]!r} and {mine[1]!r}")
        if mine:
            found[at] = list(patterns).index(mine[0])
    return found


class _Piece:
    """One trace of the picture, for which it counts from 0."""

    def __init__(self, number: int, label: str, trace: Trace, patterns: dict[str, re.Pattern[str]]):
        if not len(trace):
            raise TraceError("this trace has no slices: there is nothing to draw")
        self.trace = trace
        self.names = [cut(name, _LONGEST_NAME) for name in trace.names]
        self.names += [LOOKS[kind].label for kind in (COMPUTES, HIDDEN, EXPOSED)]
        self.rows: list[Row] = []
        self.times: list[RankTimes] = []
        self._number, self._patterns = number, patterns
        self._first, last = trace.span
        self._span = max(last - self._first, 1)
        self._position = np.empty(len(trace), np.int64)  # for each row of the trace, its slice
        self._kinds = _kinds_of(trace, patterns)
        self._pieces: list[tuple[Column, ...]] = []
        # Streams stand above threads: what the GPUs do is what one looks for.
        lanes = sorted(range(len(trace.lanes)), key=lambda lane: not trace.lanes[lane].on_device)
        lanes = [lane for lane in lanes if trace.rows_of(lane).start < trace.rows_of(lane).stop]
        for rank in sorted({trace.lanes[lane].rank for lane in lanes}):
            mine = [lane for lane in lanes if trace.lanes[lane].rank == rank]
            self._add_band(rank, [trace.rows_of(lane) for lane in mine])
            for lane in mine:
                self._add_lane(rank, lane)
        drawn = map(np.concatenate, zip(*self._pieces, strict=True))
        self.columns = dict(zip(("start", "duration", "name", "kind"), drawn, strict=True))
        self.columns |= self._joins()
        self.part = Part(
            label,
            trace.provenance,
            len(trace),
            len(lanes),
            tuple(times.rank for times in self.times),
            self._span,
            len(self.times) == 1 or trace.has_one_clock,
            trace.certificate.resolution if trace.certificate else 0,
            _communications(trace),
        )

    def _add(self, *piece: Column) -> int:
        """Add slices: start, duration, name, kind. Returns the place of the first."""
        begun = self.rows[-1].last if self.rows else 0
        self._pieces.append(piece)
        return begun

    def _add_band(self, rank: int, lanes: list[slice]) -> None:
        trace = self.trace
        band, times = _band(trace, self._number, rank, lanes, self._first)
        rows = np.concatenate([np.arange(lane.start, lane.stop) for lane in lanes])
        groups = (rows[self._kinds[rows] == GROUP + at] for at in range(len(self._patterns)))
        self.times.append(replace(times, groups=tuple(busy(trace, own).total for own in groups)))
        start, duration, kind = band
        if len(start):
            name = kind.astype(np.int32) - COMPUTES + len(trace.names)
            first = self._add(start, duration, name, kind)
            self.rows.append(Row(self._number, rank, "", 0, first, first + len(start)))

    def _add_lane(self, rank: int, lane: int) -> None:
        trace, piece, one = self.trace, self.trace.rows_of(lane), self.trace.lanes[lane]
        level = levels(trace.start[piece], trace.duration[piece])
        rows = np.argsort(level, kind="stable") + piece.start
        first = self._add(
            trace.start[rows] - self._first,
            trace.duration[rows],
            trace.name[rows],
            self._kinds[rows],
        )
        self._position[rows] = np.arange(first, first + len(rows))
        lasts = busy(trace, np.arange(piece.start, piece.stop)).total
        is_quiet = not one.on_device and lasts < _QUIET * self._span
        bounds = np.cumsum([first, *np.bincount(level)]).tolist()
        self.rows += [
            Row(
                self._number,
                rank,
                cut(one.label, _LONGEST_NAME) or "?",
                at,
                *ends,
                one.on_device,
                is_quiet,
            )
            for at, ends in enumerate(pairwise(bounds))
        ]

    def _joins(self) -> dict[str, Column]:
        """Return rows that belong together: launches and their work, ranks in a collective."""
        trace, position = self.trace, self._position
        rows = on_device(trace)
        calls = launch_of(trace, rows)
        launched = calls != NONE
        where = np.flatnonzero(trace.kind == Kind.COMMUNICATION)
        where = where[np.argsort(position[where])]
        return {
            "launches": position[calls[launched]],
            "launched": position[rows[launched]],
            "communications": position[where],
            "known": trace.collective[where],
            "instance": _instances(trace, where),
        }


def _kinds_of(trace: Trace, patterns: dict[str, re.Pattern[str]]) -> Column:
    """The kind of each row: its group, if it is in one; messages apart from other communication."""
    ways = {"send": SENDS, "recv": RECEIVES}
    known = np.array([ways.get(one.operation, 0) for one in trace.known] + [0], np.uint8)
    way = known[trace.collective]  # of NONE, the last
    kinds = np.where((trace.kind == Kind.COMMUNICATION) & (way > 0), way, trace.kind)
    if patterns:
        group = _groups(trace.names, patterns)[trace.name]
        kinds = np.where(group == NONE, kinds, GROUP + group)
    return kinds.astype(np.uint8)


def levels(start: Column, duration: Column) -> Column:
    """For slices of one lane (sorted by start, then the longer first): which level each is on.

    No two slices of a level overlap; what is nested stands one level below what it is nested in.
    """
    ends = start + np.maximum(duration, 1)  # what lasts no time takes some room, too
    # How many are still open: exact for call stacks, whose slices nest.
    level = np.arange(len(start)) - np.searchsorted(np.sort(ends), start, side="right")
    level = level.astype(np.uint16 if level.max(initial=0) < 2**16 else np.int64)
    order = np.argsort(level, kind="stable")
    s, e, same = start[order], ends[order], level[order][1:] == level[order][:-1]
    clash = order[1:][same & (s[1:] < e[:-1])]
    if len(clash):
        # Slices overlap without nesting. One after the other, but only the runs of slices in which
        # that happens: this takes a microsecond a slice.
        until = np.maximum.accumulate(ends)
        run = np.concatenate(([0], np.cumsum(start[1:] >= until[:-1])))
        rows = np.flatnonzero(np.isin(run, run[clash]))
        level[rows] = _first_fit(start[rows].tolist(), ends[rows].tolist())
    return level


def _first_fit(starts: list[int], ends: list[int]) -> list[int]:
    """The first level that is free, for each in turn."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    given = []
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        level = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, level))
        given.append(level)
    return given


def _band(
    trace: Trace, part: int, rank: int, pieces: list[slice], first: int
) -> tuple[tuple[Column, Column, Column], RankTimes]:
    """(start, duration, kind) of the band of a rank, and its times: as `breakdown` has them."""
    rows = np.concatenate([np.arange(piece.start, piece.stop) for piece in pieces])
    compute = busy(trace, rows[_computes(trace, rank, rows)])
    communication = busy(trace, rows[trace.kind[rows] == Kind.COMMUNICATION])
    cuts = np.sort(np.concatenate((*compute, *communication)))
    start, end = cuts[:-1], cuts[1:]
    computes = covered(compute, start, end) > 0
    communicates = covered(communication, start, end) > 0
    kind = np.select(
        (computes & communicates, computes, communicates), (HIDDEN, COMPUTES, EXPOSED)
    ).astype(np.uint8)
    lasted = end - start
    # A rank that begins late or is done early is idle then, as far as clocks can tell.
    begins, ends = trace.start[rows].min(), (trace.start[rows] + trace.duration[rows]).max()
    whole = trace.span[1] - trace.span[0] if trace.has_one_clock else int(ends - begins)
    times = RankTimes(
        part,
        rank,
        span=whole,
        compute=compute.total,
        communication=communication.total,
        exposed=int(lasted[kind == EXPOSED].sum()),
        has_compute=bool(len(compute.starts)),
    )
    # Where nothing is known to compute, nothing can be said of overlap.
    if not len(compute.starts) or not len(communication.starts):
        kind = np.zeros_like(kind)
    shown = (kind > 0) & (lasted > 0)
    return (start[shown] - first, lasted[shown], kind[shown]), times


def _computes(trace: Trace, rank: int, rows: Column) -> Column:
    """Which of one rank's rows compute: of a rank without a GPU, its operators do; of one whose
    GPU's work is not in the trace, nothing is known to."""
    if rank in unseen(trace):
        return np.zeros(len(rows), bool)
    if len(rows) and (trace.stream[rows] != NONE).any():
        return (trace.kind[rows] == Kind.COMPUTE) & (trace.stream[rows] != NONE)
    return computes_on_host(trace, rows)


def _instances(trace: Trace, where: Column) -> Column:
    """For each of these communications, a number that its counterparts share, or NONE."""
    instance = np.full(len(trace), NONE, np.int64)
    if len(trace.ranks) > 1:
        matches = match(trace)
        instance[matches.row] = matches.each(np.arange(len(matches)))
    return instance[where]


def _described(one: Any) -> dict[str, Any]:
    return {
        "operation": one.operation,
        "group": cut(one.group, _LONGEST_NAME),
        "ranks": list(one.ranks),
        "in": one.bytes_in,
        "out": one.bytes_out,
        "dtype": one.dtype,
        "peer": one.peer,
        "evidence": one.evidence,
    }


def coverage(scene: Scene, row: Row, edges: Column) -> dict[int, Column]:
    """By kind, the nanoseconds of a row that are covered between each edge and the next."""
    piece = slice(row.first, row.last)
    start, kind = scene.start[piece], scene.kind[piece]
    end = start + scene.duration[piece]
    found = {}
    for one in np.flatnonzero(np.bincount(kind)).tolist():
        these = kind == one
        found[one] = covered(Intervals(start[these], end[these]), edges[:-1], edges[1:])
    return found


def overview(scene: Scene, columns: int = 1000) -> Scene:
    """A scene that looks the same as long as all of it is seen, of few slices.

    Each stands for the time that a kind covers in one of so many pieces of the span.
    """
    edges = np.linspace(0, scene.span, columns + 1).astype(np.int64)
    rows, start, duration, kind = [], [], [], []
    at = 0
    for row in scene.rows:
        cover = coverage(scene, row, edges)
        lasts = np.stack(list(cover.values()))
        starts = edges[:-1] + np.cumsum(lasts, axis=0) - lasts  # one kind after the other
        kinds = np.broadcast_to(np.array(list(cover), np.uint8)[:, None], lasts.shape)
        some = lasts.T > 0
        start.append(starts.T[some])
        duration.append(lasts.T[some])
        kind.append(kinds.T[some])
        rows.append(replace(row, first=at, last=at + int(some.sum())))
        at = rows[-1].last
    none = np.empty(0, np.int64)
    return replace(
        scene,
        rows=tuple(rows),
        start=np.concatenate(start),
        duration=np.concatenate(duration),
        name=np.zeros(at, np.int32),
        kind=np.concatenate(kind),
        names=("",),
        launches=none,
        launched=none,
        communications=none,
        known=none,
        instance=none,
        collectives=(),
        is_overview=True,
    )


def pack(scene: Scene) -> tuple[str, list[Column]]:
    """Return what the browser gets: a head (JSON) and columns in the smallest exact types.

    Times are uint32 where the picture spans less than 4.29 s, else float64, which holds whole
    nanoseconds up to 104 days.
    """
    time = np.uint32 if scene.span < 2**32 else np.float64
    name = np.uint16 if len(scene.names) <= 2**16 else np.uint32
    columns = {
        "start": scene.start.astype(time),
        "duration": scene.duration.astype(time),
        "name": scene.name.astype(name),
        "kind": scene.kind,
        "launches": scene.launches.astype(np.uint32),
        "launched": scene.launched.astype(np.uint32),
        "communications": scene.communications.astype(np.uint32),
        "known": scene.known.astype(np.int32),
        "instance": scene.instance.astype(np.int32),
    }
    head = {
        "title": scene.title,
        "stamp": str(scene.stamp),
        "parts": [
            {
                "label": part.label,
                "span": part.span,
                "oneClock": part.one_clock,
                "resolution": part.resolution,
            }
            for part in scene.parts
        ],
        "rows": [
            [
                *(row.part, row.rank, row.lane, row.level, row.first, row.last),
                *(_kinds(scene, row), row.on_device, row.is_quiet),
            ]
            for row in scene.rows
        ],
        "times": [
            {
                "part": one.part,
                "rank": one.rank,
                "span": one.span,
                "compute": one.compute,
                "communication": one.communication,
                "exposed": one.exposed,
                "hasCompute": one.has_compute,
                "groups": one.groups,
            }
            for one in scene.times
        ],
        "span": scene.span,
        "names": scene.names,
        "collectives": scene.collectives,
        "kinds": {kind: vars(look) for kind, look in scene.looks.items()},
        "legend": scene.legend,
        "groups": scene.groups,
        "path": scene.path,
        "steps": [{"label": label, "from": start, "to": end} for label, start, end in scene.steps],
        "exposed": EXPOSED,
        "waiting": vars(style.WAITING),
        "isOverview": scene.is_overview,
        "alt": summary(scene),
        "columns": [[key, values.dtype.name] for key, values in columns.items()],
    }
    return json.dumps(head), list(columns.values())


def _kinds(scene: Scene, row: Row) -> list[int]:
    return np.flatnonzero(np.bincount(scene.kind[row.first : row.last])).tolist()


def counts(scene: Scene) -> str:
    """Count what is shown, without any measured time: "timeline: 4 ranks, 9 lanes, 1,234 slices".

    Of what is live only what is the same in every run of the same program: no profiler sees as many
    slices twice, but each rank communicates as often.
    """
    said = []
    for part in scene.parts:
        label = f"{part.label}: " if part.label else ""
        what = f"{counted(part.lanes, 'lane')}, {counted(part.slices, 'slice')}"
        if part.stamp.kind == "live":
            what = part.communications
        said.append(f"{label}{counted(len(part.ranks), 'rank')}, {what}")
    title = f" {scene.title!r}" if scene.title else ""
    return f"timeline{title}: " + "; ".join(said)


def _communications(trace: Trace) -> str:
    said: list[str | None] = [None] * (max(trace.ranks) + 1)
    for rank in trace.ranks:
        known = trace.collective[trace.where(Kind.COMMUNICATION, rank=rank)]
        counted = Counter(trace.known[one].operation for one in known[known != NONE].tolist())
        said[rank] = ", ".join(
            f"{count} {name or 'unknown'}" for name, count in sorted(counted.items())
        )
    groups = by_value(said)
    if len(groups) == 1:
        what = groups[0][1] or "no communication recorded"
        return what if len(trace.ranks) == 1 else f"{what} on each rank"
    return "; ".join(f"{what or 'no communication recorded'} on {who}" for who, what in groups)


def summary(scene: Scene) -> str:
    """In words: what there is, and which shares of their time ranks compute and communicate."""
    said = [counts(scene)]
    for number, part in enumerate(scene.parts):
        times = [one for one in scene.times if one.part == number]
        shares = []
        if computing := [one for one in times if one.has_compute]:
            shares.append(("compute", [(one.compute, one.span) for one in computing]))
        if any(one.communication for one in times):
            shares.append(("communicate", [(one.communication, one.span) for one in times]))
        if both := [one for one in computing if one.communication]:
            shares.append(("communicate exposed", [(one.exposed, one.span) for one in both]))
        for at, group in enumerate(scene.groups):
            shares.append((f"are in {group}", [(one.groups[at], one.span) for one in times]))
        label = f"{part.label}: " if part.label else ""
        told = ", ".join(f"{what} {_range(values)}" for what, values in shares)
        said += [f"{label}ranks {told} of the time"] if told else []
    return ". ".join(said) + "."


def _range(shares: list[tuple[int, int]]) -> str:
    least, most = (percent(*choose(shares, key=_share)) for choose in (min, max))
    return least if least == most else f"{least.removesuffix(' %')} to {most}"


def _share(one: tuple[int, int]) -> float:
    return one[0] / max(one[1], 1)


def percent(part: int, whole: int) -> str:
    return formatting.percent(part / whole, 1) if whole else "–"
