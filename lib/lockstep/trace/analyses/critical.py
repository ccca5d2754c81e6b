"""The critical path of a job: one chain of work, across ranks, from the end back to the start.

A trace does not hold all dependencies. The walk goes from the end of the last device work to what
held it up last, and so on back. What it follows is, by evidence:

- stream order: the slice before it on its stream;
- launch: the call that launched it (correlation);
- collective: the rank that came last to the same collective, where it came;
- thread order: what the thread did before, whatever it was inside of;

and, by timing only (that two things follow each other does not prove that one caused the other):

- a slice of another stream of the rank that ended at most `AT_ONCE` before (an event was waited
  for, perhaps);
- the device's work that ended last before the host's synchronising call came back;
- what a thread launched last, if that runs until a long time without operators is over: programs
  poll (for the tokens that experts get, say) in Python or C++ that the trace does not tell of;
- another thread's work that ended last while this thread did nothing that the trace tells of.

Of several, the one that ended last is what the next had to wait for. What a thread does inside of
an annotation, but outside of operators, for `UNTOLD` or longer, is unknown: "waiting".

A GPU that is busy may be off the path: where its host launches only just in time, the end waits for
the host, and faster kernels win nothing. How much a faster host wins, until the kernels hold the
end, is what the GPU idles meanwhile: `CriticalPath.idle`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np

from ...base.formatting import milliseconds, percent, printable
from ...base.provenance import Provenance, simulated
from ...figures.table import Table, table
from ..intervals import covered, union
from ..joins import by_end, grouped, innermost, last_ended, launch_of
from ..matching import awaited, match
from ..slices import DEVICE_KINDS, NONE, Column, Kind, Slices, TraceError
from ..unseen import refuse_unseen, unseen
from .wording import Answer, shortened

AT_ONCE = 10_000  # ns: what starts within this after the end of another may have waited for it
UNTOLD = 100_000  # ns: longer than Python takes from one operator to the next
KINDS = ("compute", "transfer", "copy", "host", "launch", "waiting")
_COMPUTE, _TRANSFER, _COPY, _HOST, _LAUNCH, _WAITING = range(len(KINDS))
EVIDENCE = ("stream order", "launch", "collective", "thread order")
TIMING = (
    *("another stream's end", "synchronisation", "another thread's end"),
    "launched last",
)

_PATH_KIND = np.full(256, _HOST, np.int64)
_PATH_KIND[Kind.COMPUTE], _PATH_KIND[Kind.COMMUNICATION] = _COMPUTE, _TRANSFER
_PATH_KIND[Kind.COPY] = _PATH_KIND[Kind.SET] = _COPY
_HOST_KINDS = (
    *(Kind.OPERATOR, Kind.PYTHON, Kind.ANNOTATION, Kind.STEP, Kind.LAUNCH, Kind.WAIT, Kind.OTHER),
    *DEVICE_KINDS,
)
_LOOSE = (Kind.PYTHON, Kind.ANNOTATION, Kind.STEP, Kind.OTHER)  # say where, not what is done
_BEGIN, _END = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class PathSegment(NamedTuple):
    """A piece of the path: what rank `rank` did on `lane` from `start` to `end` (nanoseconds).

    kind: "compute" (of a rank without a GPU: its operators), "transfer" (a communication, from when
    its last rank had come), "copy" (and memset), "host" (the CPU), "launch" (from the launching
    call's end to the kernel's start), or "waiting" (nothing that the trace tells of, or of which it
    has only an annotation's name).
    """

    rank: int
    lane: str
    kind: str
    name: str
    start: int
    end: int


class Segments(Sequence[PathSegment]):
    """The segments, which become objects when they are looked at: there may be millions.

    columns: for each, the row of the trace that it is of or NONE, the index of its lane, that of
    its kind in `KINDS`, start and end.
    """

    def __init__(self, trace: Slices, columns: Sequence[Column]):
        self.owner, self.lane, self.kind, self.start, self.end = columns
        self.name = np.where(self.owner == NONE, NONE, trace.name[np.maximum(self.owner, 0)])
        self._names, self._lanes = trace.names, trace.lanes
        self.rank = np.array([one.rank for one in trace.lanes], np.int32)[self.lane]
        with_gpu = [one.rank for one in trace.lanes if one.on_device]
        self.on_gpus = np.isin(self.rank, with_gpu)  # whether its rank has a GPU in the trace

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, at: int) -> PathSegment: ...
    @overload
    def __getitem__(self, at: slice) -> list[PathSegment]: ...
    def __getitem__(self, at: int | slice) -> PathSegment | list[PathSegment]:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        at = range(len(self))[at]
        lane, name = self._lanes[self.lane[at]], int(self.name[at])
        return PathSegment(
            lane.rank,
            lane.label,
            KINDS[self.kind[at]],
            "" if name == NONE else self._names[name],
            int(self.start[at]),
            int(self.end[at]),
        )

    def spent(self, by: Column, where: Column | None = None) -> list[tuple[int, int, int]]:
        """(value, how many, nanoseconds) of each value of a column, the most time first."""
        which = np.arange(len(self)) if where is None else np.flatnonzero(where)
        values, of = np.unique(by[which], return_inverse=True)
        total = np.zeros(len(values), np.int64)
        np.add.at(total, of, (self.end - self.start)[which])
        found = zip(values.tolist(), np.bincount(of).tolist(), total.tolist(), strict=True)
        return sorted(found, key=lambda one: -one[2])

    def top(self, count: int) -> tuple[tuple[str, str, int, int], ...]:
        """(kind, name, how many segments, nanoseconds) of what takes most of the time."""
        both = self.name.astype(np.int64) * len(KINDS) + self.kind
        return tuple(
            (KINDS[one % len(KINDS)], "" if one < 0 else self._names[one // len(KINDS)], many, ns)
            for one, many, ns in self.spent(both)[:count]
        )


@dataclass(frozen=True)
class CriticalPath(Answer):
    """The chain of work that the end waited for.

    segments: in order of time; each begins where the one before ends, so that together they tile
        [first, last] to the nanosecond.
    by_kind, by_rank: nanoseconds, the largest first; each adds up to last − first.
    links: how many times the walk went on by each kind of link (`EVIDENCE` and `TIMING`).
    idle: nanoseconds of the path in which it was on the host of a rank with a GPU (or in a launch,
        or waiting), and no device slice of that rank ran.
    unmatched: communications on the path of which no other rank's part is in the trace: their
        transfer holds waiting that cannot be told from it.
    """

    segments: Segments
    by_kind: Mapping[str, int]
    by_rank: Mapping[int, int]
    links: Mapping[str, int]
    idle: int = 0
    unmatched: int = 0
    notes: tuple[str, ...] = ()
    stamp: Provenance = field(default_factory=lambda: simulated("made by hand"))

    @property
    def first(self) -> int:
        return int(self.segments.start[0])

    @property
    def last(self) -> int:
        return int(self.segments.end[-1])

    @property
    def by_evidence(self) -> int:
        """The number of links that the trace proves."""
        return sum(self.links.get(link, 0) for link in EVIDENCE)

    @property
    def by_timing(self) -> int:
        """The number of links that rest on one thing's ending when the next began."""
        return sum(self.links.get(link, 0) for link in TIMING)

    def on(self, rank: int) -> Mapping[str, int]:
        """Nanoseconds by kind of the path's part on this rank, the largest first."""
        mine = self.segments.spent(self.segments.kind, self.segments.rank == rank)
        return {KINDS[kind]: ns for kind, _, ns in mine}

    def top(self, count: int = 10) -> tuple[tuple[str, str, int, int], ...]:
        """(kind, name, how many segments, nanoseconds) of what takes most of the path."""
        return self.segments.top(count)

    def _shares(self) -> str:
        whole = max(self.last - self.first, 1)
        return ", ".join(f"{percent(ns / whole)} {kind}" for kind, ns in self.by_kind.items())

    def __str__(self) -> str:
        return printable("\n".join([self._caption(), *self._notes()]))

    def _caption(self) -> str:
        return f"critical path of {milliseconds(self.last - self.first)} ms: {self._shares()}"

    def _notes(self) -> list[str]:
        whole = max(self.last - self.first, 1)
        rank, most = next(iter(self.by_rank.items()))
        said = [
            f"most of it is on rank {rank} ({percent(most / whole)}): "
            + ", ".join(f"{milliseconds(ns)} ms {kind}" for kind, ns in self.on(rank).items()),
            "the longest: "
            + "; ".join(
                f"{kind} {shortened(name, 48) or '(unknown)'} {milliseconds(ns)} ms"
                + (f" in {count:,} pieces" if count > 1 else "")
                for kind, name, count, ns in self.top(5)
            ),
            f"{self.by_evidence:,} links by evidence, {self.by_timing:,} by timing only",
        ]
        if self.by_kind.get("host", 0) > whole / 2 and any(self.segments.on_gpus):
            said.append(
                f"while the path is on a host, its GPU idles for {milliseconds(self.idle)} "
                "ms: faster hosts would save about that much, and then the GPUs' work would "
                "limit the end"
            )
        if self.unmatched:
            said.append(
                f"{self.unmatched} communications have no counterpart on another rank in the "
                "trace: their transfer includes waiting"
            )
        return [*said, *self.notes]

    def _tables(self) -> list[Table]:
        whole = max(self.last - self.first, 1)
        rows = [
            (
                shortened(name, 80) or "(unknown)",
                kind,
                f"{count:,}",
                milliseconds(ns),
                percent(ns / whole, 1),
            )
            for kind, name, count, ns in self.top()
        ]
        columns = ("what", "kind", "times", "ms", "of the path")
        return [table(self._caption(), columns, rows, stamp=self.stamp)]


def critical_path(trace: Slices) -> CriticalPath:
    """Find what the end of the last device work waited for (without any: the last operator's).

    Segments tile the time from where the walk ended to that end. Read the module's text for what
    is followed and how well it is proved. Of a communication only the time since its last rank
    came is on the path; the path then goes on with what that rank did before. Graph replays: the
    kernels of one replay are held together by stream order and timing, the first by its launch.

    Raises TraceError for a trace without work, for one without what the devices did (see
    `unseen`), and for recorded traces of several ranks that
    have no common clock yet.
    """
    if not trace.has_one_clock:
        raise TraceError(
            f"the clocks of these {len(trace.ranks)} ranks are not aligned, so a path across "
            "them would jump in time: call align() first, and ask the trace that it returns"
        )
    refuse_unseen(trace)
    work = _Predecessors(trace)
    path = _Path(trace, work)
    path.walk()
    return path.result()


class _Predecessors:
    """The predecessor of every slice of a device, found for all of them at once."""

    def __init__(self, trace: Slices):
        self.start, self.end = trace.start, trace.end
        kind = trace.kind
        device = (kind >= Kind.COMPUTE) & (kind <= Kind.SET) & (trace.duration > 0)
        hosts = np.unique(
            trace.rank[np.isin(kind, (Kind.OPERATOR, Kind.PYTHON, Kind.LAUNCH))]
        )  # elsewhere (schedules, virtual devices) lanes without a stream are devices, too
        self.on_device = device & ((trace.stream != NONE) | ~np.isin(trace.rank, hosts))
        rows = np.flatnonzero(self.on_device)
        self.rows = rows
        self.place = np.full(len(trace), NONE, np.int64)  # row → index in `rows`
        self.place[rows] = np.arange(len(rows))
        self.last_come, self.unmatched = _last_to_come(trace)
        self.ended = {}  # rank → its device rows by end, and these ends
        start, rank, lane = self.start[rows], trace.rank[rows], trace.lane[rows]
        stream, cross = (np.full(len(rows), NONE, np.int64) for _ in range(2))
        # Rows come by lane, and lanes by rank only in traces from `from_slices`.
        for _, here in grouped(lane):
            stream[here] = last_ended(*by_end(self.end, rows[here]), start[here])
        for one, here in grouped(rank):
            self.ended[one] = ended = by_end(self.end, rows[here])
            cross[here] = last_ended(*ended, start[here])
        launch = launch_of(trace, rows)
        calls = np.maximum(launch, 0)
        before = np.where(self.end[calls] <= start, self.end[calls], self.start[calls])
        before = np.where((launch != NONE) & (before <= start), before, _BEGIN)
        ready_stream = np.where(stream != NONE, self.end[stream], _BEGIN)
        ready_cross = np.where(cross != NONE, self.end[cross], _BEGIN)
        ready_cross[(cross == NONE) | (ready_cross < start - AT_ONCE)] = _BEGIN
        ready = np.stack([ready_stream, before, ready_cross])  # the first of equals is taken
        which = np.argmax(ready, axis=0)
        nothing = ready.max(axis=0, initial=_BEGIN) == _BEGIN
        chosen = np.stack([stream, launch, cross])
        index = np.arange(len(rows))
        self.link = np.where(nothing, NONE, which)
        self.before = np.where(nothing, NONE, chosen[which, index]) if len(rows) else stream
        self.ready = ready[which, index] if len(rows) else stream


def _last_to_come(trace: Slices) -> tuple[Column, Column]:
    """For each row, the row of the same communication that it waited for, itself if none is known.

    And whether it is a communication of which the trace holds no other rank's part (see
    `matching`, also for who waits for whom).
    """
    last = np.arange(len(trace))
    unmatched = trace.kind == Kind.COMMUNICATION
    found = match(trace)
    if len(found):
        unmatched[found.row] = False
        whom, waits = awaited(trace, found)
        last[found.row] = np.where(waits, found.each(found.row[whom]), found.row)
    return last, unmatched


class _Thread:
    """A thread as pieces of time, each owned by the innermost slice then, or by none (NONE)."""

    def __init__(self, trace: Slices, work: _Predecessors, lane: int):
        span = trace.rows_of(lane)
        rows = np.arange(span.start, span.stop)
        kept = np.isin(trace.kind[rows], _HOST_KINDS) & (trace.duration[rows] > 0)
        rows = rows[kept & ~work.on_device[rows]]
        start, end = work.start[rows], work.end[rows]
        bounds = np.unique(np.concatenate((start, end)))
        at = innermost(start, end, bounds)
        owner = np.where(at >= 0, rows[np.maximum(at, 0)], NONE) if len(rows) else at
        owner = owner.astype(np.int32)
        self.start = np.concatenate(([_BEGIN], bounds))
        self.end = np.concatenate((bounds, [_END]))
        self.owner = np.append(np.array([NONE], np.int32), owner if len(bounds) else owner[:0])
        self.kind = trace.kind[np.maximum(self.owner, 0)]
        self.kind[self.owner == NONE] = Kind.OTHER
        self.loose = np.isin(self.kind, _LOOSE)
        named = np.isin(self.kind, (Kind.ANNOTATION, Kind.STEP))
        self.untold = named & (self.end - self.start >= UNTOLD)


class _Threads:
    """The threads of one rank, and at which of their pieces a walk has to look around."""

    def __init__(self, trace: Slices, work: _Predecessors, rank: int):
        self.work = work
        lanes = [
            lane
            for lane, one in enumerate(trace.lanes)
            if one.rank == rank and len(trace.start[trace.rows_of(lane)])
        ]
        self.threads = {lane: _Thread(trace, work, lane) for lane in lanes}
        self.ended = work.ended.get(rank, (np.empty(0, np.int64), np.empty(0, np.int64)))
        copies = work.rows[(trace.kind[work.rows] == Kind.COPY) & (trace.rank[work.rows] == rank)]
        calls = launch_of(trace, copies)
        self.copied = {
            int(call): int(copy) for call, copy in zip(calls, copies, strict=True) if call != NONE
        }
        mine = work.rows[trace.rank[work.rows] == rank]
        calls = launch_of(trace, mine)
        mine, calls = mine[calls != NONE], calls[calls != NONE]
        order = np.argsort(calls, kind="stable")  # of one lane: in order of time
        self.launched = {
            lane: (calls[here], mine[here])
            for lane in lanes
            if len(here := order[trace.lane[calls[order]] == lane])
        }
        synchronises = np.array(["ynchronize" in name for name in trace.names] or [False], bool)
        blocking = np.zeros(len(trace) + 1, bool)  # the last one is for pieces of nobody
        blocking[:-1] = synchronises[trace.name] & np.isin(trace.kind, (Kind.LAUNCH, Kind.WAIT))
        self.synchronises = blocking.copy()
        blocking[[*self.copied]] = True
        self.others = {
            lane: (self._others(lane, False), self._others(lane, True)) for lane in lanes
        }
        self.stop: dict[int, Column] = {}  # lane → for each piece, the last one to stop at by then
        for lane, one in self.threads.items():
            stops = (one.kind == Kind.COMMUNICATION) | blocking[one.owner] | one.untold
            for (ends, _), here in zip(self.others[lane], (one.loose, ~one.loose), strict=True):
                at = np.searchsorted(ends, one.end, side="right") - 1
                stops |= here & (at >= 0) & (np.append(ends, _BEGIN)[at] > one.start)
            stops[[0, -1]] = True
            self.stop[lane] = np.maximum.accumulate(
                np.where(stops, np.arange(len(stops), dtype=np.int32), np.int32(NONE))
            )

    def _others(self, lane: int, communication: bool) -> tuple[Column, Column]:
        """Ends, ascending, of the other threads' pieces of work, and whose they are.

        A thread without operators (NCCL's watchdog asks for events all the time) works for nobody.
        """
        ends, lanes = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for other, one in self.threads.items():
            communicates = one.kind == Kind.COMMUNICATION
            if other != lane and (communicates.any() or (one.kind == Kind.OPERATOR).any()):
                mine = communicates if communication else ~one.loose
                ends.append(one.end[mine])
                lanes.append(np.full(int(mine.sum()), other, np.int32))
        end, whose = np.concatenate(ends), np.concatenate(lanes)
        order = np.argsort(end, kind="stable")
        return end[order], whose[order]

    def leave(self, lane: int, piece: int, time: int) -> tuple[str, int, int] | None:
        """By which link a walk leaves the thread within this piece; to which lane or row; when."""
        one, ended = self.threads[lane], self.work.end
        start, owner = int(one.start[piece]), int(one.owner[piece])
        copy = self.copied.get(owner)
        if copy is not None and start < ended[copy] <= time:
            return "launch", copy, int(ended[copy])
        if owner != NONE and self.synchronises[owner]:
            row = int(last_ended(*self.ended, np.array(time))) if len(self.ended[0]) else NONE
            if row != NONE and ended[row] > start:
                return "synchronisation", row, int(ended[row])
        if one.untold[piece] and lane in self.launched:
            calls, rows = self.launched[lane]
            at = int(np.searchsorted(self.work.start[calls], start, side="right")) - 1
            row = int(rows[at])
            if at >= 0 and self.work.start[row] < time and ended[row] > max(start, time - AT_ONCE):
                return "launched last", row, min(time, int(ended[row]))
        ends, lanes = self.others[lane][0 if one.loose[piece] else 1]
        at = int(np.searchsorted(ends, time, side="right")) - 1
        if at >= 0 and ends[at] > start:
            return "another thread's end", int(lanes[at]), int(ends[at])
        return None


class _Path:
    """The walk: `time` falls; each piece that it passes becomes a segment."""

    def __init__(self, trace: Slices, work: _Predecessors):
        self.trace, self.work = trace, work
        self.resolution = 0 if trace.certificate is None else trace.certificate.resolution
        self.threads: dict[int, _Threads] = {}
        self.links: Counter[str] = Counter()
        self.unmatched = 0
        # Of each piece owner, lane, kind, start, end. Of threads first and last piece, until when.
        self.pieces = [array("q") for _ in range(5)]
        self.runs: dict[tuple[int, int], list[array[int]]] = {}

    def walk(self) -> None:
        work = self.work
        if len(work.rows):
            row = int(work.rows[np.argmax(work.end[work.rows])])
            self.steps((row, int(work.end[row])))
            return
        last: tuple[int, int, int] | None = None  # end, rank, lane
        for rank in self.trace.ranks:
            for lane, one in self.of_rank(rank).threads.items():
                busy = one.owner != NONE if one.loose.all() else ~one.loose
                if busy.any():
                    end = int(one.end[busy].max())
                    last = (end, rank, lane) if last is None or end > last[0] else last
        if last is None:
            raise TraceError("this trace holds no work, so there is nothing to wait for")
        self.steps(self.host(last[1], last[2], last[0]))

    def of_rank(self, rank: int) -> _Threads:
        if rank not in self.threads:
            self.threads[rank] = _Threads(self.trace, self.work, rank)
        return self.threads[rank]

    def add(self, *piece: int) -> None:
        for column, value in zip(self.pieces, piece, strict=True):
            column.append(value)

    def steps(self, at: tuple[int, int] | None) -> None:
        """Go back from a device's slice (row, time since when it is waited for) to the begin."""
        trace, work = self.trace, self.work
        lane_of, before, ready, link = trace.lane, work.before, work.ready, work.link
        while at is not None:
            row, time = at
            row, time = self.entered(row, time)
            if not work.on_device[row]:  # the last to come was a thread
                at = self.host(int(trace.rank[row]), int(lane_of[row]), time)
                continue
            place = work.place[row]
            how, start = int(link[place]), int(work.start[row])
            if start < time:
                self.add(row, int(lane_of[row]), int(_PATH_KIND[trace.kind[row]]), start, time)
            if how == NONE:
                return
            reached, source = int(ready[place]), int(before[place])
            if how == 1:
                self.links["launch"] += 1
                if reached < start:
                    self.add(source, int(lane_of[row]), _LAUNCH, reached, start)
                at = self.host(int(trace.rank[row]), int(lane_of[source]), reached)
                continue
            self.links["stream order" if how == 0 else "another stream's end"] += 1
            if reached < start:
                self.add(NONE, int(lane_of[row]), _WAITING, reached, start)
            at = source, reached

    def entered(self, row: int, time: int) -> tuple[int, int]:
        """Return the row and the time at which a communication's last rank came; else what was
        given."""
        if self.trace.kind[row] != Kind.COMMUNICATION:
            return row, time
        self.unmatched += bool(self.work.unmatched[row])
        last = int(self.work.last_come[row])
        came = int(self.work.start[last])
        waited = came - int(self.work.start[row])
        if last == row or waited <= self.resolution or came >= time:
            return row, time
        self.links["collective"] += 1
        self.add(row, int(self.trace.lane[row]), _TRANSFER, came, time)
        return last, came

    def host(self, rank: int, lane: int, time: int) -> tuple[int, int] | None:
        """Go back on a rank's threads until a device is met: its slice, and when it ended."""
        all_threads = self.of_rank(rank)
        while True:
            one = all_threads.threads[lane]
            at = int(np.searchsorted(one.start, time, side="left")) - 1
            stop = int(all_threads.stop[lane][at])
            if stop < at:
                self.passed(rank, lane, stop + 1, at, time)
                time = int(one.start[stop + 1])
            owner, communicates = int(one.owner[stop]), one.kind[stop] == Kind.COMMUNICATION
            if communicates and (entered := self.entered(owner, time))[0] != owner:
                return entered
            found = None if communicates else all_threads.leave(lane, stop, time)
            if found is None:
                if one.start[stop] == _BEGIN:
                    return None
                self.passed(rank, lane, stop, stop, time)
                time = int(one.start[stop])
                continue
            link, target, when = found
            if when < time:
                untold = owner == NONE or one.untold[stop]
                self.add(owner, lane, _WAITING if untold else _HOST, when, time)
            self.links[link] += 1
            if link != "another thread's end":
                return target, when
            lane, time = target, when

    def passed(self, rank: int, lane: int, first: int, last: int, time: int) -> None:
        """The pieces first … last of a thread, the last one until `time`, are on the path."""
        self.links["thread order"] += last + 1 - first
        run = self.runs.setdefault((rank, lane), [array("q") for _ in range(3)])
        for column, value in zip(run, (first, last, time), strict=True):
            column.append(value)

    def _of_threads(self) -> Iterator[list[Column]]:
        """Owner, lane, kind, start and end of the pieces of each thread that are on the path."""
        for (rank, lane), run in self.runs.items():
            one = self.threads[rank].threads[lane]
            first, last, time = (np.frombuffer(column, np.int64) for column in run)
            counts = last - first + 1
            ends = np.cumsum(counts)
            piece = np.arange(ends[-1]) + np.repeat(first - ends + counts, counts)
            owner, end = one.owner[piece], one.end[piece]
            end[ends - 1] = time
            kind = np.where(
                (owner == NONE) | one.untold[piece], _WAITING, _PATH_KIND[one.kind[piece]]
            )
            yield [owner, np.full(len(piece), lane, np.int32), kind, one.start[piece], end]

    def idle(self, segments: Segments) -> int:
        """See `CriticalPath`."""
        aside = np.isin(segments.kind, (_HOST, _LAUNCH, _WAITING)) & segments.on_gpus
        total = 0
        for rank, (rows, ends) in self.work.ended.items():
            busy = union(self.work.start[rows], ends)
            here = aside & (segments.rank == rank)
            start, end = segments.start[here], segments.end[here]
            total += int((end - start - covered(busy, start, end)).sum())
        return total

    def result(self) -> CriticalPath:
        trace = self.trace
        parts = [[np.frombuffer(one, np.int64) for one in self.pieces], *self._of_threads()]
        types = (np.int32, np.int32, np.int8, np.int64, np.int64)
        columns = [np.concatenate([part.pop(0).astype(kind) for part in parts]) for kind in types]
        self.threads.clear()
        order = np.argsort(columns[3], kind="stable")
        owner, lane, kind, start, end = (column[order] for column in columns)
        del columns
        operators = (owner != NONE) & (trace.kind[owner] == Kind.OPERATOR)
        segments = Segments(trace, (owner, lane, kind, start, end))
        kind[operators & (kind == _HOST) & ~segments.on_gpus] = _COMPUTE
        return CriticalPath(
            segments=segments,
            by_kind={KINDS[one]: ns for one, _, ns in segments.spent(segments.kind)},
            by_rank={one: ns for one, _, ns in segments.spent(segments.rank)},
            links=dict(self.links),
            idle=self.idle(segments),
            unmatched=self.unmatched,
            notes=tuple(f"{why}: the path has only its host" for why in unseen(trace).values()),
            stamp=trace.provenance,
        )
