"""Memory over time by the profiler's own events: peaks, growth, and which operators allocate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ...base.formatting import in_one_line
from ...base.provenance import Provenance
from ...figures.table import Table
from ..intervals import Times
from ..joins import innermost
from ..slices import NONE, Column, Kind, Slices, TraceError
from ..steps import Step, steps_by_rank
from .wording import Answer

_EVENT = "[memory]"
_NOWHERE = "no operator"


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory of one device of one rank. Bytes; times in nanoseconds.

    device: its index, NONE for the host's memory, of which only changes since the recording began
    are known. peak, at, step, operator: the most that was allocated, when, in which step (NONE:
    none) and operator ("no operator"). reserved: the most the allocator held, NONE for the host.
    first, last: allocated after the first and the last event. events: how many.
    """

    rank: int
    device: int
    peak: int
    at: int
    step: int
    operator: str
    reserved: int
    first: int
    last: int
    events: int

    @property
    def growth(self) -> int:
        """Bytes that were allocated at the end and not at the start."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class StepUsage:
    """The memory of a device in one step: its peak, and what the step left behind. Bytes."""

    rank: int
    device: int
    step: int
    peak: int
    growth: int


@dataclass(frozen=True, slots=True)
class AllocatingOperator:
    """The memory that one operator allocated on one rank's device. Bytes.

    count: allocations. total: of them. kept: of those that were not freed in the recording.
    """

    rank: int
    device: int
    operator: str
    count: int
    total: int
    kept: int


@dataclass(frozen=True)
class Allocations(Answer):
    """By rank and device; operators that allocated most first.

    curves: (rank, device) → (times in ns, bytes allocated from then on).
    """

    usage: tuple[Usage, ...]
    by_step: tuple[StepUsage, ...]
    operators: tuple[AllocatingOperator, ...]
    notes: tuple[str, ...]
    stamp: Provenance
    curves: dict[tuple[int, int], tuple[Times, Times]] = field(repr=False, compare=False)

    def _tables(self) -> tuple[Table, Table]:
        usage = self._table(
            "memory · MB",
            ["rank", "device", "peak", "in step", "in operator", "reserved", "first", "last"],
            [
                [
                    *(one.rank, _device(one.device), _mb(one.peak)),
                    *("" if one.step == NONE else str(one.step), in_one_line(one.operator)),
                    "" if one.reserved == NONE else _mb(one.reserved),
                    *(_mb(one.first), _mb(one.last)),
                ]
                for one in self.usage
            ],
        )
        top = self.operators[:_TOP]
        operators = self._table(
            f"who allocates, {len(top)} of {len(self.operators)} · MB",
            ["rank", "device", "operator", "allocations", "total", "not freed"],
            [
                [
                    *(one.rank, _device(one.device), in_one_line(one.operator)),
                    *(f"{one.count:,}", _mb(one.total), _mb(one.kept)),
                ]
                for one in top
            ],
        )
        return usage, operators


_TOP = 12


def allocations(trace: Slices) -> Allocations:
    """Memory by the "[memory]" events of profile_memory=True; reads the files again.

    An event belongs to the operator that began last, on any thread of its rank, and still ran.
    Memory that was allocated before the recording has no operator. Of a rank that used a GPU the
    host's memory is left out. Raises TraceError where there are no such events (record with
    profile_memory=True), and where the files have changed or are gone.
    """
    usage: list[Usage] = []
    by_step: list[StepUsage] = []
    operators: list[AllocatingOperator] = []
    curves: dict[tuple[int, int], tuple[Times, Times]] = {}
    notes = []
    own_steps = steps_by_rank(trace)
    for rank in trace.ranks:
        times, events = _events(trace, rank)
        on_host = np.array([one["Device Id"] < 0 for one in events], bool)
        if len(events) and not on_host.all() and (many := int(on_host.sum())):
            notes.append(f"rank {rank}: {many:,} × the host's memory left out")
            times, events = times[~on_host], [one for one in events if one["Device Id"] >= 0]
        for device in sorted({max(one["Device Id"], NONE) for one in events}):
            which = [at for at, one in enumerate(events) if max(one["Device Id"], NONE) == device]
            mine = [events[at] for at in which]
            found = _device_of(trace, rank, device, times[which], mine, own_steps.get(rank, []))
            usage.append(found[0])
            by_step += found[1]
            operators += found[2]
            curves[rank, device] = found[3]
    if not usage:
        raise TraceError("the traces have no memory events: record them with profile_memory=True")
    operators.sort(key=lambda one: (-one.total, one.rank, one.operator))
    return Allocations(
        *(tuple(usage), tuple(by_step), tuple(operators), tuple(notes), trace.provenance), curves
    )


_FIELDS = ("Bytes", "Addr", "Device Id", "Total Allocated", "Total Reserved")


def _events(trace: Slices, rank: int) -> tuple[Times, list[dict[str, int]]]:
    """Those with whole numbers, in order of time; "Device Id" is NONE for the host."""
    times, found = trace.moments(rank, _EVENT)
    order = np.argsort(times, kind="stable")
    good, events = [], []
    for at in order.tolist():
        one = {name: value for name in _FIELDS if type(value := found[at].get(name)) is int}
        if "Bytes" in one and "Device Id" in one:
            good.append(at)
            events.append({"Total Reserved": NONE, "Addr": NONE, **one})
    return times[good], events


def _device_of(
    trace: Slices,
    rank: int,
    device: int,
    times: Times,
    events: list[dict[str, int]],
    own: list[Step],
) -> tuple[Usage, list[StepUsage], list[AllocatingOperator], tuple[Times, Times]]:
    change = np.array([one["Bytes"] for one in events], np.int64)
    if device == NONE or any("Total Allocated" not in one for one in events):
        allocated = np.cumsum(change)
        reserved = NONE
    else:
        allocated = np.array([one["Total Allocated"] for one in events], np.int64)
        reserved = max(one["Total Reserved"] for one in events)
    around = _operators(trace, rank, times)
    names = [_NOWHERE if row == NONE else trace.names[trace.name[row]] for row in around.tolist()]
    most = int(allocated.argmax())
    numbered = [step for step in own if step.number != NONE]
    inside = (step.number for step in numbered if step.start <= times[most] < step.end)
    usage = Usage(
        *(rank, device, int(allocated[most]), int(times[most]), next(inside, NONE), names[most]),
        *(reserved, int(allocated[0]), int(allocated[-1]), len(events)),
    )
    before = np.concatenate(([allocated[0] - change[0]], allocated))
    by_step = []
    for step in numbered:
        first, last = np.searchsorted(times, [step.start, step.end])
        peak = int(before[first : last + 1].max())
        by_step.append(
            StepUsage(rank, device, step.number, peak, int(before[last] - before[first]))
        )
    return usage, by_step, _allocators(rank, device, events, names), (times, allocated)


def _operators(trace: Slices, rank: int, times: Times) -> Column:
    """For each time the rank's operator that began last and still runs, or NONE."""
    rows = trace.where(Kind.OPERATOR, rank=rank)
    rows = rows[np.lexsort((-trace.duration[rows], trace.start[rows]))]
    if not len(rows):
        return np.full(len(times), NONE, np.int64)
    at = innermost(trace.start[rows], trace.end[rows], times)
    return np.where(at == NONE, NONE, rows[at])


def _allocators(
    rank: int, device: int, events: list[dict[str, int]], names: list[str]
) -> list[AllocatingOperator]:
    count: Counter[str] = Counter()
    total: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    open_now: dict[int, tuple[str, int]] = {}  # address → who allocated it, and how much
    for one, name in zip(events, names, strict=True):
        size = one["Bytes"]
        if size > 0:
            count[name] += 1
            total[name] += size
            kept[name] += size
            open_now[one["Addr"]] = name, size
        elif found := open_now.pop(one["Addr"], None):
            kept[found[0]] -= found[1]
    return [
        AllocatingOperator(rank, device, name, count[name], total[name], kept[name])
        for name in count
    ]


def _device(device: int) -> str:
    return "host" if device == NONE else f"GPU {device}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.3f}"
