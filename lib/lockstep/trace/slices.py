"""The slices of every rank in plain columns: one row a slice, one numpy column a property."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..base.formatting import milliseconds, printable
from ..base.provenance import Provenance, simulated
from .certificate import Certificate

Column = NDArray[Any]
Answer = TypeVar("Answer")
NONE = -1  # "there is no such thing", in integer columns


class TraceError(Exception):
    """A trace that cannot be read or analysed: says what is wrong, where, and what to do."""

    def __init__(self, what: str):
        super().__init__(printable(what))  # it names files and slices of others


class Kind(IntEnum):
    """The kind of a slice, by the evidence of the trace (see `kinds`)."""

    OTHER = 0
    OPERATOR = 1  # on the CPU: aten::mm, autograd nodes, …
    PYTHON = 2  # a Python function's frame
    ANNOTATION = 3  # record_function and NVTX ranges on the CPU
    STEP = 4  # ProfilerStep#N, and what a program calls a step, on the CPU
    LAUNCH = 5  # a call of the CUDA or HIP runtime or driver
    COMPUTE = 6  # a kernel that computes
    COMMUNICATION = 7  # a kernel, or a gloo operation, that communicates
    COPY = 8  # a copy by the GPU's copy engine
    SET = 9  # memset on the GPU
    GPU_ANNOTATION = 10  # an annotation as the GPU saw it
    WAIT = 11  # a stream or the host waits for an event

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


# What keeps a device busy.
DEVICE_KINDS = (Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY, Kind.SET)
# Collectives that nobody can leave before the last rank has come.
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a rank: a thread of its process, or a stream of its GPU.

    stream: number of the stream, NONE for a thread. device: index of the GPU, NONE for a thread.
    """

    rank: int
    label: str
    stream: int = NONE
    device: int = NONE
    process: str = ""

    @property
    def on_device(self) -> bool:
        return self.stream != NONE


@dataclass(frozen=True, slots=True)
class Collective:
    """The known facts of a communication.

    operation: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
        "gather", "scatter", "barrier", "send", "recv", or "" if unknown.
    group: the process group's name, "" if unknown. ranks: its global ranks, () if unknown.
    bytes_in, bytes_out: of this rank's input and output, NONE if unknown.
    peer: global rank of the root, or of the other side of a send or recv; NONE if unknown.
    evidence: "metadata" (the kernel says it itself), "launch" or "external id" (the operator in
        which it was launched says it, found by the place of the launch or by that number), "call
        record", or "name".
    """

    operation: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    bytes_in: int = NONE
    bytes_out: int = NONE
    dtype: str = ""
    peer: int = NONE
    evidence: str = "name"

    @property
    def synchronises(self) -> bool:
        return self.operation in SYNCHRONISING


@dataclass(frozen=True, slots=True)
class Slice:
    """One row of a trace. Times in nanoseconds; lane: its label, such as "stream 7"."""

    rank: int
    lane: str
    name: str
    start: int
    duration: int
    kind: Kind = Kind.OTHER
    stream: int = NONE
    correlation: int = NONE
    external: int = NONE
    collective: Collective | None = None
    sequence: int = NONE

    @property
    def end(self) -> int:
        return self.start + self.duration


# Column → type. Times are nanoseconds; after `load` on the host's clock, since the Unix epoch.
COLUMNS: Mapping[str, Any] = {
    "start": np.int64,
    "duration": np.int64,
    "lane": np.int32,  # index into `lanes`; before rank and stream, which follow from it
    "rank": np.int32,  # global rank
    "name": np.int32,  # index into `names`
    "kind": np.uint8,  # a Kind
    "stream": np.int32,  # NONE on threads
    "correlation": np.int64,  # joins a launch and what it launched
    "external": np.int64,  # joins an operator and what was launched inside
    "collective": np.int32,  # index into `known`, or NONE
    "sequence": np.int32,  # number of the collective within its group, if the trace says it
    "origin": np.int32,  # number of the event within its rank's file, or NONE
}


# Columns that a Slice has as they stand.
_AS_THEY_ARE = COLUMNS.keys() - {"lane", "name", "collective", "origin"}


class Numbering(dict[Any, int]):
    """Numbers things, from 0, in the order in which they are first asked for."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = number = len(self)
        return number


class Slices:
    """The slices of every rank as one immutable table; `Trace` adds the questions.

    Rows are sorted by lane, then start, then the longer first, so that each lane is one contiguous
    piece: `rows_of(lane)`. Columns (see COLUMNS) are attributes and cannot be written to:
    `trace.start`, `trace.duration`, `trace.kind`, … Slices of one lane may overlap.

    lanes: tuple of Lane. names: tuple of str. known: the distinct Collectives. notes: what was
    repaired or left out while reading, in sentences. about: for each rank, what its file says of
    itself (world size, process groups, GPU, PyTorch). certificate: of the common clock, once
    `align()` has made it.
    """

    start: Column
    duration: Column
    rank: Column
    lane: Column
    name: Column
    kind: Column
    stream: Column
    correlation: Column
    external: Column
    collective: Column
    sequence: Column
    origin: Column

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        lanes: Sequence[Lane],
        names: Sequence[str],
        known: Sequence[Collective] = (),
        stamp: Provenance | None = None,
        notes: Sequence[str] = (),
        about: Mapping[int, Mapping[str, Any]] | None = None,
        certificate: Certificate | None = None,
        files: Any = None,
    ):
        """For those who read traces; others use `load` and `from_slices`.

        columns: may be in any order of rows and lack any but start, duration, lane and name.
        files: what the slices come from, as `read.kineto.rank_files` has it.
        """
        rows = len(columns["start"])
        lane = np.asarray(columns["lane"])
        in_order = _is_sorted(lane, columns["start"], columns["duration"])
        order = None if in_order else np.lexsort((-columns["duration"], columns["start"], lane))
        ranks = np.array([one.rank for one in lanes] or [0], dtype=np.int32)
        streams = np.array([one.stream for one in lanes] or [NONE], dtype=np.int32)
        for column, dtype in COLUMNS.items():
            if column in columns:
                values = np.asarray(columns[column]).astype(dtype, copy=False)
                values = values if order is None else values[order]
            elif column == "rank":
                values = ranks[self.lane] if rows else np.empty(0, dtype)
            elif column == "stream":
                values = streams[self.lane] if rows else np.empty(0, dtype)
            else:
                values = np.full(rows, 0 if column == "kind" else NONE, dtype)
            values = values.view()
            values.flags.writeable = False
            setattr(self, column, values)
        self.lanes = tuple(lanes)
        self.names = tuple(names)
        self.known = tuple(known)
        self.stamp = stamp
        self.notes = tuple(notes)
        self.about = dict(about or {})
        self.certificate = certificate
        self.files = files
        self._bounds = np.searchsorted(self.lane, np.arange(len(self.lanes) + 1))

    @classmethod
    def of_slices(cls, slices: Slices) -> Self:
        """The same slices, as a table of this class."""
        return cls(slices.columns(), **slices._properties())

    # ── Looking ──────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Column:
        """Nanoseconds, one a row: start + duration."""
        return self.start + self.duration

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks that have a lane, ascending."""
        return tuple(sorted({lane.rank for lane in self.lanes}))

    @property
    def span(self) -> tuple[int, int]:
        """(first start, last end) in nanoseconds. Raises TraceError where there is no slice."""
        if not len(self):
            raise TraceError("this trace has no slices")
        return int(self.start.min()), int(self.end.max())

    @property
    def has_one_clock(self) -> bool:
        """Whether times of different ranks may be compared.

        Those of a trace made by hand (a schedule, a call record) may: nothing in `about`, and no
        row of a file. Those of measured ranks may once they are aligned.
        """
        if self.certificate is not None or len(self.ranks) < 2:
            return True
        return not self.about and bool((self.origin == NONE).all())

    @property
    def provenance(self) -> Provenance:
        """The trace's stamp; of one without, that it was made by hand."""
        return self.stamp or simulated("made by hand")

    def rows_of(self, lane: int) -> slice:
        """The rows of a lane, by its index in `lanes`."""
        return slice(int(self._bounds[lane]), int(self._bounds[lane + 1]))

    def where(self, *kinds: Kind, rank: int | None = None) -> Column:
        """Indices of the rows of these kinds (of any, if none is given), of one rank or of all."""
        mask = np.isin(self.kind, kinds) if kinds else np.ones(len(self), bool)
        if rank is not None:
            mask &= self.rank == rank
        return np.flatnonzero(mask)

    def __getitem__(self, row: int) -> Slice:
        row = range(len(self))[row]
        known = int(self.collective[row])
        return Slice(
            rank=int(self.rank[row]),
            lane=self.lanes[self.lane[row]].label,
            name=self.names[self.name[row]],
            start=int(self.start[row]),
            duration=int(self.duration[row]),
            kind=Kind(int(self.kind[row])),
            stream=int(self.stream[row]),
            correlation=int(self.correlation[row]),
            external=int(self.external[row]),
            collective=None if known == NONE else self.known[known],
            sequence=int(self.sequence[row]),
        )

    def __iter__(self) -> Iterator[Slice]:
        return (self[row] for row in range(len(self)))

    def args(self, row: int) -> dict[str, Any]:
        """Everything the file says of this slice, read from it now; {} for slices made by hand.

        Raises TraceError where the file has changed or is gone.
        """
        return next((args for _, args in self.args_of(np.array([row]))), {})

    def args_of(self, rows: Column) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row, everything its file says of it) of these rows, but of those made by hand.

        Each rank's file is read once, which takes about as long as loading it did. Raises
        TraceError where it has changed or is gone.
        """
        rows = rows[self.origin[rows] != NONE] if self.files is not None else rows[:0]
        for rank in np.unique(self.rank[rows]).tolist():
            mine = rows[self.rank[rows] == rank]
            mine = mine[np.argsort(self.origin[mine], kind="stable")]
            assert self.files is not None
            yield from zip(mine.tolist(), self.files.args(rank, self.origin[mine]), strict=True)

    def moments(self, rank: int, name: str) -> tuple[Column, list[dict[str, Any]]]:
        """(times in ns, args) of the instants of this name in a rank's file, on the trace's clock.

        Raises TraceError where the file has changed or is gone.
        """
        has_any = self.files is not None and (self.rank == rank).any()
        found = self.files.moments(rank, name) if has_any else []
        times = np.array([time for time, _ in found], np.int64)
        times += self.about.get(rank, {}).get("base", 0)
        if self.certificate is not None:
            times -= self.certificate.ahead(rank, times)
        return times, [args for _, args in found]

    # ── Deriving ─────────────────────────────────────────────────────────────────────────────

    def columns(self) -> dict[str, Column]:
        """All columns, by name."""
        return {column: getattr(self, column) for column in COLUMNS}

    def derive(self, columns: Mapping[str, Column] | None = None, **changes: Any) -> Self:
        """A copy with other columns (of as many rows) or other properties; the rest is shared."""
        return type(self)(
            {**self.columns(), **(columns or {})}, **{**self._properties(), **changes}
        )

    def _properties(self) -> dict[str, Any]:
        """Return what a table is made of beside its columns."""
        return {
            "lanes": self.lanes,
            "names": self.names,
            "known": self.known,
            "stamp": self.stamp,
            "notes": self.notes,
            "about": self.about,
            "certificate": self.certificate,
            "files": self.files,
        }

    def select(self, rows: Column) -> Self:
        """Only these rows (indices, or a mask of booleans); lanes and names stay."""
        return self.derive({column: values[rows] for column, values in self.columns().items()})

    @classmethod
    def from_slices(
        cls, slices: Iterable[Slice], *, stamp: Provenance | None = None, notes: Sequence[str] = ()
    ) -> Self:
        """A trace made by hand: a schedule, a call record, a virtual device.

        Raises TraceError for a negative rank or duration, naming the slice.
        """
        lanes, names, known = Numbering(), Numbering(), Numbering()
        rows: dict[str, list[int]] = {column: [] for column in COLUMNS}
        for one in slices:
            if one.duration < 0 or one.rank < 0:
                what = "has a negative duration" if one.duration < 0 else "has a negative rank"
                raise TraceError(f"{one.name!r} at {one.start} ns of rank {one.rank} {what}")
            for column in _AS_THEY_ARE:
                rows[column].append(getattr(one, column))
            rows["lane"].append(lanes[one.rank, one.lane, one.stream])
            rows["name"].append(names[one.name])
            rows["collective"].append(NONE if one.collective is None else known[one.collective])
            rows["origin"].append(NONE)
        columns = {column: np.array(rows[column], dtype) for column, dtype in COLUMNS.items()}
        keys = list(lanes)
        by_rank = sorted(range(len(keys)), key=lambda at: keys[at][0])  # stable within a rank
        place = np.empty(len(keys), np.int32)
        place[by_rank] = np.arange(len(keys))
        columns["lane"] = place[columns["lane"]] if len(keys) else columns["lane"]
        return cls(
            columns,
            lanes=[Lane(*keys[at]) for at in by_rank],
            names=list(names),
            known=list(known),
            stamp=stamp,
            notes=notes,
        )

    def __repr__(self) -> str:
        what = type(self).__name__
        if not len(self):
            return f"<{what}: no slices>"
        first, last = self.span
        return (
            f"<{what}: {len(self):,} slices in {len(self.lanes)} lanes of {len(self.ranks)} ranks, "
            f"{milliseconds(last - first)} ms>"
        )


def _is_sorted(lane: Column, start: Column, duration: Column) -> bool:
    if len(lane) < 2:
        return True
    lane_up, start_up = lane[1:] > lane[:-1], start[1:] > start[:-1]
    lane_same, start_same = lane[1:] == lane[:-1], start[1:] == start[:-1]
    shorter = duration[1:] <= duration[:-1]
    return bool(np.all(lane_up | (lane_same & (start_up | (start_same & shorter)))))


def once(question: Callable[[Slices], Answer]) -> Callable[[Slices], Answer]:
    """Answers a question once for each table, and keeps the answer for as long as the table.

    The answer must not hold the table, or both would be kept for ever.
    """
    kept: WeakKeyDictionary[Slices, Answer] = WeakKeyDictionary()

    @wraps(question)
    def answer(slices: Slices) -> Answer:
        if slices not in kept:
            kept[slices] = question(slices)
        return kept[slices]

    return answer
