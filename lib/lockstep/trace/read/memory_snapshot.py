"""A GPU's memory over time, from a snapshot of PyTorch's allocator.

`torch.cuda.memory._record_memory_history()` makes the allocator write down what it does, and
`torch.cuda.memory._dump_snapshot(file)` writes that and the state at the end to a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...base.formatting import BYTES, binary, fitting, printable
from ...base.provenance import Provenance, simulated
from ...base.style import ERROR, GROUPS, MEMORY, Look
from ...figures.memory_over_time import MemoryOverTime
from ...figures.picture import PALETTE, Figure
from ...figures.widget import Playable
from ..slices import NONE, Column, TraceError
from .memory_kinds import KINDS, Allocated, kinds_of
from .pickles import line_outside_torch, read_plain

_ALLOCATES = ("alloc", "free_requested", "free_completed")
_RESERVES = {"segment_alloc": 1, "segment_free": -1, "segment_map": 1, "segment_unmap": -1}
EARLIER = "allocated before the recording began"
_NO_FRAME = "no Python line outside of torch is known"


@dataclass(frozen=True)
class Alive:
    """Allocations that came from one line: where ("file.py:12 function"), how many, bytes."""

    where: str
    category: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes that were allocated at once, for what, from which line; alive after the events from
    number `begin` on, until `end`."""

    bytes: int
    kind: str
    where: str
    begin: int
    end: int


@dataclass(frozen=True)
class OutOfMemory:
    """A request that failed. after: events before it; asked, device_free, …: bytes.

    device_free: what the driver still had, NONE if the snapshot does not say it.
    """

    after: int
    asked: int
    device_free: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class Memory(Playable):
    """One GPU's memory after each event of its allocator; bytes, as int64 columns.

    The first value is before the first event; each holds until the next.

    time: nanoseconds since the first event; numbers of events where the snapshot has no times
        (`timed` is False). allocated: what tensors asked for. active: that, and what is freed but
        still in use by another stream. reserved: what the allocator has from the driver.
        Allocations are counted as asked for, before they are rounded up to blocks.
    peak: index of the first largest `allocated`. at_peak: what was alive then, the most first.
    mismatch: bytes that the events leave at the end less those that the snapshot's segments hold:
        allocated, active, reserved. All 0 where the events tell everything.
    allocations: each with its kind, which is inferred from call stacks (see `memory_kinds`).

    In a notebook it is a picture to zoom, pan and point at, with who holds what; a saved notebook
    has it as a still one.
    """

    start = "memory"

    device: int
    time: Column
    timed: bool
    allocated: Column
    active: Column
    reserved: Column
    peak: int
    at_peak: tuple[Alive, ...]
    out_of_memory: tuple[OutOfMemory, ...]
    mismatch: Mapping[str, int]
    allocations: tuple[Allocation, ...] = ()
    notes: tuple[str, ...] = ()
    stamp: Provenance = field(default_factory=lambda: simulated("made by hand"))

    @property
    def fragmentation(self) -> int:
        """Bytes reserved at the peak that no tensor asked for: free pieces and rounding."""
        return int(self.reserved[self.peak] - self.allocated[self.peak])

    def _sentences(self) -> list[str]:
        at = self.peak
        said = [
            f"GPU {self.device}: {binary(self.allocated[at])} allocated at the peak, "
            f"{binary(self.reserved[at])} reserved then ({binary(self.fragmentation)} of it free "
            f"or rounding), {binary(self.reserved.max())} reserved at most"
        ]
        said += [
            f"out of memory after {one.after:,} events: {binary(one.asked)} asked for, "
            + (f"{binary(one.device_free)} free on the GPU, " if one.device_free != NONE else "")
            + f"{binary(one.allocated)} allocated, {binary(one.reserved)} reserved"
            for one in self.out_of_memory
        ]
        said += [
            f"the events leave {binary(abs(bytes_))} {'more' if bytes_ > 0 else 'less'} {what} "
            "than the snapshot holds"
            for what, bytes_ in self.mismatch.items()
            if bytes_
        ]
        return [*said, *self.notes]

    def __str__(self) -> str:
        most = [
            f"  {binary(one.bytes):>10}  {one.count:,} × {one.where}"
            + (f" ({one.category})" if one.category else "")
            for one in self.at_peak[:10]
        ]
        return printable("\n".join([*self._sentences(), "alive at the peak:", *most]))

    def by_kind(self, at: int | None = None) -> dict[str, int]:
        """Bytes of each kind after so many events (by default at the peak), the most first."""
        at = self.peak if at is None else at
        size: Counter[str] = Counter()
        for one in self.allocations:
            if one.begin <= at < one.end:
                size[one.kind] += one.bytes
        return dict(size.most_common())

    @cached_property
    def _over_time(self) -> MemoryOverTime:
        found = {one.kind for one in self.allocations}
        own = zip(sorted(found - set(KINDS)), GROUPS, strict=False)
        looks = [*MEMORY, *(Look(name, *look) for name, look in own)]
        looks = [look for look in looks if look.label in found]
        kinds = {look.label: at for at, look in enumerate(looks)}
        lines: dict[str, int] = {}
        rows = [
            (
                one.begin,
                one.end,
                one.bytes,
                kinds[one.kind],
                lines.setdefault(one.where, len(lines)),
            )
            for one in self.allocations
        ]
        begin, end, size, kind, where = np.array(rows, np.int64).reshape(-1, 5).T
        return MemoryOverTime(
            time=self.time,
            timed=self.timed,
            allocated=self.allocated,
            reserved=self.reserved,
            peak=self.peak,
            begin=begin,
            end=end,
            size=size,
            kind=kind,
            where=where,
            looks=looks,
            lines=list(lines),
            failed=[min(one.after, len(self.time) - 1) for one in self.out_of_memory],
            title=f"Memory of GPU {self.device} over time, by kind",
            said=self._sentences(),
            stamp=self.stamp,
        )

    def first(self) -> dict[str, Any]:
        return {"first": 0, "last": len(self.time)}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        first, last = max(int(asked["first"]), 0), min(int(asked["last"]), len(self.time))
        if first >= last:
            raise ValueError(f"there are no states from {first} to {last}")
        return self._over_time.scene(first, last)

    def still(self) -> dict[str, Any]:
        picture = self._over_time.picture()._repr_mimebundle_()
        shown = self._over_time.table()._repr_mimebundle_()
        html = picture["text/html"] + shown["text/html"]
        return {**picture, "text/html": html, "text/plain": f"{self}\n{self.stamp}"}

    def draw(self) -> Figure:
        """Reserved, active and allocated bytes over time; crosses where memory ran out."""
        name, unit = fitting(int(self.reserved.max()), BYTES)
        time = self.time / 1e6 if self.timed else self.time
        lines = (
            ("reserved", self.reserved, PALETTE[7], ":"),
            ("active", self.active, PALETTE[1], "--"),
            ("allocated", self.allocated, PALETTE[0], "-"),
        )

        def draw(canvas: Any) -> None:
            axes = canvas.subplots()
            for label, values, colour, style in lines:
                axes.step(
                    time, values / unit, where="post", color=colour, linestyle=style, label=label
                )
            top = self.allocated[self.peak] / unit
            axes.plot(time[self.peak], top, "o", color=PALETTE[0], label="peak")
            for number, one in enumerate(self.out_of_memory):
                label = "" if number else "out of memory"
                place = (time[min(one.after, len(time) - 1)], one.reserved / unit)
                axes.plot(*place, "x", color=ERROR, markersize=9, label=label)
            axes.set_xlabel("ms" if self.timed else "events of the allocator")
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            canvas.legend(loc="outside upper left", ncols=5, frameon=False, fontsize=8)

        alt = f"Memory of GPU {self.device} over time. " + "; ".join(self._sentences()) + "."
        return Figure(draw, alt=alt, stamp=self.stamp)


def memory(
    snapshot: str | Path | Mapping[str, Any],
    *,
    device: int | None = None,
    kinds: Mapping[str, str] | None = None,
    stamp: Provenance | None = None,
) -> Memory:
    """A GPU's memory over time.

    snapshot: the file of `torch.cuda.memory._dump_snapshot`, or what `_snapshot` gives. device:
    the GPU; may be left out where only one has a history. What was alive before the recording
    began is told from what is freed without having been allocated, and from what the segments
    hold at the end without an event.

    kinds: what you know better than call stacks tell, as {"weights": r"model.py:.* __init__"}:
    allocations of which a whole frame ("model.py:12 __init__"), or the text that you attached by
    `torch.cuda.memory._set_memory_metadata`, matches a pattern; the first that does. Names are
    those of `memory_kinds` or up to four of your own. Attached texts such as "weights" need no
    pattern.

    Raises TraceError for a file that is not plain values (a pickle can run programs; see
    `pickles`), is no snapshot, has no history, or where the GPU must be said.
    """
    name = "the snapshot"
    if not isinstance(snapshot, Mapping):
        path = Path(snapshot)
        name, stamp = path.name, stamp or Provenance("recorded", path.name)
        snapshot = read_plain(path)
    traces, segments = _parts(snapshot, name)
    device = _device(traces, device, name)
    segments = [one for one in segments if one.get("device", 0) == device]
    try:
        return _measure(
            traces[device], segments, device, kinds or {}, stamp or simulated("made by hand")
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TraceError(
            f"{name}: an event, a segment or a block of GPU {device} is not as PyTorch writes it "
            f"({type(error).__name__}: {str(error)[:200]})"
        ) from None


def _parts(snapshot: Any, name: str) -> tuple[Sequence[Any], Sequence[Any]]:
    if isinstance(snapshot, Mapping):
        traces, segments = snapshot.get("device_traces"), snapshot.get("segments")
        if not isinstance(traces, Sequence) or not isinstance(segments, Sequence):
            pass
        elif all(isinstance(one, Mapping) for one in segments):
            return traces, segments
    raise TraceError(
        f"{name} is not a snapshot of PyTorch's allocator: it has no lists device_traces and "
        "segments"
    )


def _device(traces: Sequence[Any], device: int | None, name: str) -> int:
    recorded = [at for at, events in enumerate(traces) if events]
    if not recorded or (device is not None and device not in recorded):
        of = f" of GPU {device}" if device is not None else ""
        raise TraceError(
            f"{name} has no history{of}: call torch.cuda.memory._record_memory_history() "
            "before the part that you want to see, in the process that allocates"
        )
    if device is None and len(recorded) > 1:
        raise TraceError(f"{name} has a history of GPUs {recorded}: choose one with device=…")
    return recorded[0] if device is None else device


@dataclass
class _Replay:
    """Holds what is allocated, or freed but waited for, by address; and all allocated so far."""

    alive: dict[int, Allocated]
    waiting: dict[int, Allocated]
    every: list[Allocated]

    def apply(self, event: Mapping[str, Any], number: int) -> tuple[int, int]:
        """Do one event, the first has number 1; by how much allocated and active bytes change."""
        address, action = event["addr"], event["action"]
        if action == "alloc":
            lost = self.alive.pop(address, None)
            if lost:
                lost.end = number
            also_lost = self.waiting.pop(address, None)
            new = _allocated(event, number)
            self.alive[address] = new
            self.every.append(new)
            gone = lost.size if lost else 0
            return new.size - gone, new.size - gone - (also_lost.size if also_lost else 0)
        if action == "free_requested":
            freed = self.alive.pop(address, None)
            if freed is None:
                return 0, 0
            freed.end, freed.freed = number, event.get("frames")
            self.waiting[address] = freed
            return -freed.size, 0
        done = self.waiting.pop(address, None)
        return 0, -done.size if done else 0


def _allocated(event: Mapping[str, Any], number: int) -> Allocated:
    frames = event.get("frames")
    return Allocated(
        int(event["size"]),
        _where(frames),
        str(event.get("category") or ""),
        str(event.get("user_metadata") or ""),
        frames,
        begin=number,
    )


def _measure(
    events: Sequence[Mapping[str, Any]],
    segments: Sequence[Mapping[str, Any]],
    device: int,
    kinds: Mapping[str, str],
    stamp: Provenance,
) -> Memory:
    alive, waiting, reserved, notes = _before(events, segments)
    replay = _Replay(alive, waiting, list(alive.values()))
    allocated = sum(one.size for one in alive.values())
    active = allocated + sum(one.size for one in waiting.values())
    history = [(allocated, active, reserved)]
    failed = []
    for event in events:
        action = event["action"]
        if action in _ALLOCATES:
            more, more_active = replay.apply(event, len(history))
            allocated, active = allocated + more, active + more_active
        elif action in _RESERVES:
            reserved += _RESERVES[action] * int(event["size"])
        elif action == "oom":
            asked, free = int(event["size"]), int(event.get("device_free", NONE))
            failed.append(OutOfMemory(len(history) - 1, asked, free, allocated, reserved))
        history.append((allocated, active, reserved))
    values = np.array(history, np.int64).T
    peak = int(np.argmax(values[0]))
    leaves = (("allocated", allocated), ("active", active), ("reserved", reserved))
    at_end = _at_end(segments)
    mismatch = {what: left - held for (what, left), held in zip(leaves, at_end, strict=True)}
    time, timed = _times(events)
    told = kinds_of(replay.every, kinds)
    return Memory(
        device=device,
        time=time,
        timed=timed,
        allocated=values[0],
        active=values[1],
        reserved=values[2],
        peak=peak,
        at_peak=_grouped(
            one for one in replay.every if one.begin <= peak and not 0 <= one.end <= peak
        ),
        out_of_memory=tuple(failed),
        mismatch=mismatch,
        allocations=tuple(
            Allocation(
                one.size, kind, one.where, one.begin, len(history) if one.end < 0 else one.end
            )
            for one, kind in zip(replay.every, told, strict=True)
        ),
        notes=tuple(notes),
        stamp=stamp,
    )


def _times(events: Sequence[Mapping[str, Any]]) -> tuple[Column, bool]:
    """Nanoseconds since the first event, of the start and of each event; or their numbers."""
    if not all("time_us" in event for event in events):
        return np.arange(len(events) + 1), False
    times = np.array([int(event["time_us"]) for event in events], np.int64) * 1_000
    return np.concatenate(([0], np.maximum.accumulate(times - times[0]))), True


def _before(
    events: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, Allocated], dict[int, Allocated], int, list[str]]:
    """Return the bytes allocated, waiting to be free, and reserved before the first event."""
    alive: dict[int, Allocated] = {}
    waiting: dict[int, Allocated] = {}
    touched: set[int] = set()
    for event in events:
        if event["action"] in _ALLOCATES and event["addr"] not in touched:
            touched.add(event["addr"])
            if event["action"] != "alloc":
                held = alive if event["action"] == "free_requested" else waiting
                held[event["addr"]] = Allocated(int(event["size"]), EARLIER)
    for address, block in _blocks(segments):
        if block["state"].startswith("active") and address not in touched:
            frames = block.get("frames") or None
            held = alive if block["state"] == "active_allocated" else waiting
            where = _where(frames) if frames else EARLIER
            held[address] = Allocated(_requested(block), where, frames=frames)
    notes = []
    if early := sum(one.where == EARLIER for one in (*alive.values(), *waiting.values())):
        notes.append(f"{early:,} allocations are older than the history: their lines are unknown")
    reserving = [event for event in events if event["action"] in _RESERVES]
    if any(event["action"] in ("segment_map", "segment_unmap") for event in reserving):
        # Expandable segments grow and merge: their addresses at the end are not the events'.
        notes.append("segments are expandable: reserved memory is computed back from the end")
        come = sum(_RESERVES[one["action"]] * int(one["size"]) for one in reserving)
        return alive, waiting, _at_end(segments)[2] - come, notes
    first = {event["addr"]: event for event in reversed(reserving)}
    reserved = sum(int(one["size"]) for one in first.values() if one["action"] == "segment_free")
    reserved += sum(int(one["total_size"]) for one in segments if one["address"] not in first)
    return alive, waiting, reserved, notes


def _blocks(
    segments: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(address, block) of all segments; old snapshots give the blocks' sizes only."""
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            yield block.get("address", address), block
            address += block["size"]


def _requested(block: Mapping[str, Any]) -> int:
    """Bytes that were asked for; the block may be larger."""
    return int(block.get("requested_size", block["size"]))


def _at_end(segments: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Bytes allocated, active and reserved by what the segments hold."""
    by_state: Counter[str] = Counter()
    for _, block in _blocks(segments):
        by_state[block["state"]] += _requested(block)
    allocated = by_state["active_allocated"]
    active = allocated + sum(by_state[one] for one in _AWAITING)
    return allocated, active, sum(int(segment["total_size"]) for segment in segments)


_AWAITING = ("active_awaiting_free", "active_pending_free")  # by the docs, and by the code


def _where(frames: Sequence[Mapping[str, Any]] | None) -> str:
    return " ".join(line_outside_torch(frames)).strip() or _NO_FRAME


def _grouped(alive: Iterable[Allocated]) -> tuple[Alive, ...]:
    """Group allocations by line and category."""
    count: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for one in alive:
        count[one.where, one.category] += 1
        size[one.where, one.category] += one.size
    groups = [Alive(*key, count[key], total) for key, total in size.items()]
    return tuple(sorted(groups, key=lambda one: (-one.bytes, one.where, one.category)))
