"""The virtual GPU of a process: takes what the host launches, and plays it when the host looks."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from ..base.provenance import simulated
from ..trace import Collective, Kind, Slice, Trace
from .happens_before import HOST, Clock, Order
from .memory import EVERYBODY, Allocator, Block, Pool
from .model import Machine
from .race_detector import (
    Access,
    History,
    Line,
    Race,
    Races,
    assigned_name,
    place,
    race,
    variable_name,
)
from .schedule import Await, Engine, Marker, Meeting, Record, Schedule, Task
from .work import Work

DEFAULT_STREAM = 7  # what profilers call a GPU's default stream
_INSIDE = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    f"{sysconfig.get_path('stdlib')}/contextlib.py",
)
_HOST_LANE = "host"


class Use(NamedTuple):
    """A tensor's memory as an operation uses it."""

    memory: Memory | HostMemory | Extent
    view: torch.Tensor
    writes: bool


@dataclass(eq=False)
class Kernel:
    """The work that a launch gives to the device; a captured one is launched again and again."""

    name: str
    work: float
    share: float
    traffic: float
    kind: Kind
    uses: Sequence[Use]
    values: Work | None = None
    engine: Engine = Engine.SMS
    line: Line | None = None
    collective: Collective | None = None
    meet: Callable[[], Meeting] | None = None
    draw: Callable[[], torch.Tensor] | None = None  # takes random numbers, says from what state


class About(NamedTuple):
    """The origin of a task."""

    kind: Kind
    correlation: int
    collective: Collective | None
    line: Line | None
    work: Work | None


class Memory:
    """A block of device memory that a tensor and its views share."""

    def __init__(self, device: Device, block: Block, nbytes: int, stream: int) -> None:
        self.device, self.block, self.nbytes, self.stream = device, block, nbytes, stream
        self.history = History()
        self.recorded: set[int] = set()  # other streams that record_stream named
        self.made_in = (0, stream)  # the backward pass, and the stream, that wrote to it last
        self.overwritten: Access | None = None  # by a replay, for a tensor that was there before

    @property
    def base(self) -> int:
        return self.block.offset

    @property
    def place(self) -> tuple[int, int]:
        """The segment and the place in it: what is given out there again has it, too."""
        return id(self.block.segment), self.block.offset

    def tensor(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        start = self.block.offset // dtype.itemsize
        storage = self.block.segment.storage
        return torch.empty(0, dtype=dtype, device=storage.device).set_(
            storage, start, shape, stride
        )

    def __del__(self) -> None:
        self.device.release(self)


@dataclass(eq=False)
class HostMemory:
    """Memory of the host that the device copies from or to while the host goes on."""

    tensor: torch.Tensor  # which keeps it
    history: History = field(default_factory=History)
    base: int = 0

    @property
    def nbytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


@dataclass(eq=False)
class StreamState:
    """label: what it is called in reports. name: the variable that it was assigned to."""

    number: int
    priority: int
    label: str = ""
    name: str = ""


class StreamHandle:
    """The program's handle of a stream."""

    def __init__(self, device: Device, number: int) -> None:
        self._device, self._number = device, number

    def is_of(self, device: Device, number: int) -> bool:
        return self._device is device and self._number == number


@dataclass(eq=False)
class Extent:
    """A piece of memory that does not keep it: captured kernels know addresses, not tensors."""

    history: History
    base: int
    nbytes: int
    segment: int  # its id, as in the place of a Memory; 0 of the host's


class Captured(NamedTuple):
    """A thing that a stream was told while it was captured: a kernel, or a marker to record or wait
    for."""

    stream: int
    kernel: Kernel | None = None
    record: Marker | None = None
    wait: Marker | None = None


class Capture:
    """The things that the streams of a graph are told while it is captured, and their order."""

    def __init__(self, pool: Pool, origin: int) -> None:
        self.pool, self.origin = pool, origin
        self.streams: set[int] = {origin}
        self.items: list[Captured] = []
        self.order = Order()
        self.kept: list[Block] = []  # freed, but used on other streams of the capture
        self.broken = ""
        self._recorded: dict[Marker, Clock] = {}

    def launch(self, stream: int, kernel: Kernel) -> None:
        self.order.launch(stream)
        uses = [
            Use(
                Extent(
                    memory.history,
                    memory.base,
                    memory.nbytes,
                    memory.place[0] if isinstance(memory, Memory) else 0,
                ),
                view,
                writes,
            )
            for memory, view, writes in kernel.uses
        ]
        self.items.append(Captured(stream, kernel=replace(kernel, uses=uses)))

    def record(self, stream: int) -> tuple[Marker, Clock]:
        marker = Marker()
        self._recorded[marker] = self.order.record(stream)
        self.items.append(Captured(stream, record=marker))
        return marker, self._recorded[marker]

    def wait(self, stream: int, marker: Marker) -> bool:
        """A wait for what was captured makes a stream part of the graph; False for other waits."""
        if marker not in self._recorded:
            if stream in self.streams:
                self.broken = "a wait for an event that was recorded outside of the capture"
                raise RuntimeError(
                    "CUDA error: dependency created on uncaptured work in another stream"
                )
            return False
        if stream not in self.streams:
            self.streams.add(stream)
            self.order.launch(stream)
        self.order.wait(stream, self._recorded[marker])
        self.items.append(Captured(stream, wait=marker))
        return True

    def check(self) -> None:
        """Raises RuntimeError as the end of a capture does."""
        if self.broken:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture "
                f"({self.broken})"
            )
        joined = self.order.of(self.origin)
        for stream in sorted(self.streams):
            if not self.order.is_before(stream, self.order.of(stream)[stream], joined):
                raise RuntimeError(
                    f"CUDA error: capturing stream has unjoined work: stream {stream} was given "
                    "work that the capturing stream does not wait for"
                )


class Device:
    """Host and device in virtual time, the memory, what is ordered, and what has been seen.

    machine: what it is made of. rank: whose it is, in traces. values: whether it computes any; a
    device that does not has times only, and no race shows in a number.
    """

    def __init__(self, machine: Machine, rank: int = 0, *, values: bool = True) -> None:
        self.machine, self.rank, self.values = machine, rank, values
        self.host = 0.0  # the host's clock, ns
        self.order = Order()
        self.schedule = Schedule(self._ended, self._waited)
        self.allocator = Allocator(machine.capacity, f"GPU 0 (a virtual {machine.name})", values)
        self.streams: dict[int, StreamState] = {}
        self._moved = 0  # bytes that operations have used so far
        self._used: dict[tuple[int, int], int] = {}  # by place: `_moved` when it was used last
        self.pinned: dict[int, Any] = {}
        self.shared: dict[int, HostMemory] = {}  # by address
        self.state = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63)).get_state()
        self.playing = False
        self.capture: Capture | None = None
        self.capture_mode = "global"
        self.pass_number = 0  # of the backward pass that goes on, or went on last
        self.pass_streams: set[int] = set()
        self.stream_of_node: dict[int, int] = {}  # of those that are not the default's
        self._nodes = 0  # of autograd, so far
        self._pass_stream = DEFAULT_STREAM
        self._slices: list[Slice] = []
        self._races: dict[Any, Race] = {}
        self._pooled: WeakSet[Memory] = WeakSet()  # memory that tensors have in pools of graphs
        self._correlation = 0
        self._made: dict[int, int] = {}
        self.current = self.add_stream(0, DEFAULT_STREAM).number

    # ── Streams ──────────────────────────────────────────────────────────────────────────────

    def add_stream(self, priority: int, number: int) -> StreamState:
        self.schedule.queue(number, priority)
        self.order.of(number)
        return self.streams.setdefault(number, StreamState(number, priority))

    def new_stream(self, priority: int, label: str = "") -> int:
        """A stream of the pool: as on a GPU there are 32 a priority, and the 33rd is the first.

        label: what it is called in reports, instead of the variable that the program has it in.
        """
        least, greatest = self.machine.priorities
        priority = min(max(priority, greatest), least)
        turn = self._made.get(priority, 0)
        self._made[priority] = turn + 1
        number = 13 + 4 * (turn % 32) + 128 * -priority
        state = self.add_stream(priority, number)
        state.label, state.name = label, assigned_name(self.line())
        return number

    def named(self, stream: int) -> str:
        if stream == HOST:
            return "the host"
        if stream == DEFAULT_STREAM:
            return "the default stream"
        state = self.streams[stream]
        name = "" if state.label else self._variable(stream)
        called = state.label or (f"`{name}`" if name else "")
        return f"{called} (stream {stream})" if called else f"stream {stream}"

    def coded(self, stream: int) -> str:
        """A stream as the program can write it."""
        if stream == DEFAULT_STREAM:
            return "cuda.default_stream()"
        return self._variable(stream) or "it"

    def _variable(self, stream: int) -> str:
        """Say where the program has a stream: as it was made, else where it is at now."""

        def wanted(value: Any) -> bool:
            return isinstance(value, StreamHandle) and value.is_of(self, stream)

        known = self.streams.get(stream)
        return (known.name if known else "") or variable_name(sys._getframe(1), _INSIDE, wanted)

    # ── The host's time ──────────────────────────────────────────────────────────────────────

    def spend(self, name: str, nanoseconds: float, kind: Kind = Kind.OPERATOR, **more: Any) -> None:
        """The host is busy with something for so long."""
        self._note(_HOST_LANE, name, self.host, self.host + nanoseconds, kind, **more)
        self.host += nanoseconds

    def line(self) -> Line | None:
        """The line of the program that the host is at."""
        return place(sys._getframe(1), _INSIDE)

    # ── Launching ────────────────────────────────────────────────────────────────────────────

    def launch(
        self, kernel: Kernel, stream: int, operator: str, call: str = "", dispatch: float = 0.0
    ) -> Task | None:
        """The host launches a kernel, for which it needs time, and goes on.

        dispatch: ns before the launch itself, 0 for the machine's.
        """
        machine = self.machine
        began = self.host
        self.host += dispatch or machine.dispatch
        if self.capture is not None and stream in self.capture.streams:
            self.capture.launch(stream, kernel)
            self._note(_HOST_LANE, operator, began, self.host, Kind.OPERATOR)
            return None
        self.wait_for_room(stream)
        self._correlation += 1
        called = self.host
        self.host += machine.launch
        call = call or ("cudaLaunchKernel" if kernel.engine is Engine.SMS else "cudaMemcpyAsync")
        self._note(_HOST_LANE, operator, began, self.host, Kind.OPERATOR)
        self._note(_HOST_LANE, call, called, self.host, Kind.LAUNCH, correlation=self._correlation)
        return self.enqueue(
            kernel, stream, called + machine.latency, machine.gap, self._correlation
        )

    def fetched(self, read: Iterable[Memory], written: Iterable[Memory]) -> float:
        """ns for what is read and has left the L2 cache, as so much else was used after it."""
        read, before = list(read), self._moved
        cold = any(
            before - self._used.get(memory.place, before) > self.machine.kept for memory in read
        )
        for memory in (*read, *written):
            self._moved += memory.nbytes
            self._used[memory.place] = self._moved
        return self.machine.cold if cold else 0.0

    def wait_for_room(self, stream: int) -> None:
        """A launch blocks while its queue is full."""
        queue = self.schedule.queues[stream]
        if queue.tasks >= self.machine.depth:
            self.play(lambda: queue.tasks < self.machine.depth)
            self.host = max(self.host, self.schedule.now)

    def enqueue(
        self, kernel: Kernel, stream: int, ready: float, gap: float, correlation: int,
        again: bool = False,
    ) -> Task:  # fmt: skip
        """Hand a kernel to a stream; see what it races with. again: of a graph."""
        work = kernel.values if self.values else None
        if work is not None:
            work = work.again() if again else work
            if kernel.draw is not None:
                work.before = kernel.draw()
        task = Task(
            kernel.name, stream, kernel.work, ready, kernel.share, kernel.traffic, gap,
            kernel.engine, kernel.meet() if kernel.meet is not None else None,
            about=About(kernel.kind, correlation, kernel.collective, kernel.line, work),
        )  # fmt: skip
        if work is not None:
            task.finish = partial(_computed, work.run, task)
            if task.meeting is not None:
                task.begin = partial(_computed, work.read, task)
        self._uses(kernel, task, work, stream)
        self.schedule.add(stream, task)
        return task

    def _uses(self, kernel: Kernel, task: Task, work: Work | None, stream: int) -> None:
        number = self.order.launch(stream)
        clock = self.order.of(stream)
        for memory, view, writes in kernel.uses:
            for old, new in self._use(
                memory, view, writes, stream, number, clock, task, kernel.name, kernel.line
            ):
                self._race(old, new)
                if old.task is not None:
                    _hold(old, new, task)
                    self._read_early(old.task)
                    self._read_early(task)

    def _use(
        self, memory: Memory | HostMemory | Extent, view: torch.Tensor, writes: bool, stream: int,
        number: int, clock: Clock, task: Task | None, name: str, line: Line | None,
    ) -> list[tuple[Access, Access]]:  # fmt: skip
        size = view.element_size()
        first = int(view.storage_offset()) * size - memory.base
        contiguous = view.is_contiguous()
        extent = view.numel()
        if extent and not contiguous:
            extent = sum((n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True)) + 1
        last = first + extent * size
        new = Access(task, name, stream, number, first, last, view, writes, line)
        whole = contiguous and first == 0 and last >= memory.nbytes
        if self._pooled:
            self._share_pool(memory, new)
        return [(old, new) for old in memory.history.add(new, clock, whole)]

    def _share_pool(self, memory: Memory | HostMemory | Extent, new: Access) -> None:
        """See a replay overwrite what another graph of its pool has put out, and who reads it."""
        for other in self._pooled:
            if other is memory or other.history is memory.history:
                if new.writes:
                    other.overwritten = None
                elif other.overwritten is not None:
                    self._race(other.overwritten, new)
            elif isinstance(memory, Extent) and new.writes:
                segment, start = other.place
                begins, ends = memory.base + new.first, memory.base + new.last
                if segment == memory.segment and begins < start + other.nbytes and start < ends:
                    other.overwritten = replace(new, replayed=True)

    def _read_early(self, task: Task) -> None:
        """A task that races reads when it begins, and writes when it ends."""
        work = task.about.work
        if work is None or task.end is not None:
            return
        if task.start is None:
            task.begin = partial(_computed, work.read, task)
        else:
            with self.as_device():
                work.read()

    def _race(self, old: Access, new: Access) -> None:
        key = (old.line, new.line, old.name, new.name, old.writes, new.writes)
        if key not in self._races:
            self._races[key] = race(old, new, self.named, self.coded)

    def host_uses(self, address: int, view: torch.Tensor, writes: bool, name: str) -> None:
        """The program itself reads or writes memory that the device copies from or to."""
        memory = self.shared[address]
        number = self.order.host_acts()
        line = self.line()
        found = self._use(memory, view, writes, HOST, number, self.order.host, None, name, line)
        for old, new in found:
            self._race(old, new)

    # ── Events ───────────────────────────────────────────────────────────────────────────────

    def record(self, stream: int) -> tuple[Marker, Clock]:
        if self.capture is not None and stream in self.capture.streams:
            return self.capture.record(stream)
        marker = Marker()
        self.schedule.add(stream, Record(marker, self.host))
        return marker, self.order.record(stream)

    def wait(self, stream: int, marker: Marker, recorded: Clock) -> None:
        if self.capture is not None and self.capture.wait(stream, marker):
            return
        self.order.wait(stream, recorded)
        self.schedule.add(stream, Await(marker, self.host))

    def wait_stream(self, stream: int, other: int) -> None:
        if stream != other:
            self.wait(stream, *self.record(other))

    # ── Graphs ───────────────────────────────────────────────────────────────────────────────

    def replay(self, items: Sequence[Captured], branches: dict[int, int]) -> None:
        """Launch all that was captured at once; branches: captured stream → the graph's own.

        What the origin was told goes to the current stream (-1).
        """
        self.refuse_in_capture("cudaGraphLaunch")
        self.leave_backward()
        machine, current = self.machine, self.current
        nodes = sum(item.kernel is not None for item in items)
        self._correlation += 1
        called = self.host
        self.host += machine.launch + nodes * machine.graph_launch
        self._note(
            _HOST_LANE, "cudaGraphLaunch", called, self.host, Kind.LAUNCH,
            correlation=self._correlation,
        )  # fmt: skip
        ready = called + machine.graph_latency
        points: dict[Marker, tuple[Marker, Clock]] = {}
        for item in items:
            stream = branches[item.stream]
            stream = current if stream < 0 else stream
            if item.kernel is not None:
                kernel, gap = item.kernel, machine.graph_gap
                self.enqueue(kernel, stream, ready, gap, self._correlation, again=True)
            elif item.record is not None:
                marker = Marker()
                self.schedule.add(stream, Record(marker, ready))
                points[item.record] = marker, self.order.record(stream)
            elif item.wait is not None:
                marker, clock = points[item.wait]
                self.order.wait(stream, clock)
                self.schedule.add(stream, Await(marker, ready))

    # ── The host waits ───────────────────────────────────────────────────────────────────────

    def refuse_in_capture(self, what: str, *streams: int) -> None:
        """End the capture by what may not be done while a stream is being captured.

        streams: those that are asked about, none for all. Mode "relaxed" lets a thread ask about
        those that are not captured; "global" and "thread_local" differ in other threads only.
        """
        if self.capture is not None:
            free = streams and not self.capture.streams & {*streams}
            if free and self.capture_mode == "relaxed":
                return
            self.capture.broken = what
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing ({what})"
            )

    def synchronise(
        self, streams: Iterable[int], call: str, operator: str = "", at_least: float = 0.0
    ) -> None:
        """The host waits until all that these streams were given is done."""
        asked = [*streams]
        self.refuse_in_capture(call, *asked)
        self.leave_backward()
        reached = [self.record(stream) for stream in asked]
        self.wait_for(reached, call, operator, at_least)

    def wait_for(
        self,
        reached: Sequence[tuple[Marker, Clock]],
        call: str,
        operator: str = "",
        at_least: float = 0.0,
    ) -> None:
        """The host waits for these points of streams."""
        began = self.host
        self.play(lambda: all(marker.time is not None for marker, _ in reached))
        last = max((marker.time or 0.0 for marker, _ in reached), default=0.0)
        self.host = max(began + max(self.machine.synchronise, at_least), last)
        if operator:
            self._note(_HOST_LANE, operator, began, self.host, Kind.OPERATOR)
        self._note(_HOST_LANE, call, began, self.host, Kind.LAUNCH)
        for _, clock in reached:
            self.order.host_waits(clock)
        self._forget()

    def is_done(self, marker: Marker, clock: Clock) -> bool:
        """Whether a point has been reached by now, on the host's clock."""
        if marker.time is None:
            self.play(lambda: marker.time is not None, self.host)
        done = marker.time is not None and marker.time <= self.host
        if done:
            self.order.host_waits(clock)
            self._forget()
        return done

    def play(self, until: Callable[[], bool] | None = None, limit: float = math.inf) -> None:
        with self.as_device():
            self.schedule.play(until, limit)

    @contextlib.contextmanager
    def as_device(self) -> Iterator[None]:
        """Count what is computed inside as the device's work, and not the program's."""
        with self.aside(), torch.inference_mode():
            yield

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Let what is computed inside cost no virtual time; it may be handed to the program."""
        before, self.playing = self.playing, True
        try:
            yield
        finally:
            self.playing = before

    def _forget(self) -> None:
        for address, memory in [*self.shared.items()]:
            memory.history.forget(self.order.host)
            if not memory.history.known:
                del self.shared[address]

    # ── Backward passes ──────────────────────────────────────────────────────────────────────

    def stream_of_call(self) -> int:
        """The stream that an operation goes to: in a backward pass that of its forward operation.

        As autograd does: streams of the pass wait for the one that called it, and this one for
        them when the pass is over.
        """
        node: Any = torch._C._current_autograd_node()  # None outside of a backward pass
        if node is None:
            self.leave_backward()
            following = torch.autograd._get_sequence_nr()  # the number of the next node
            if self.current != DEFAULT_STREAM:
                made = range(max(self._nodes, following - 8), following)
                self.stream_of_node.update(dict.fromkeys(made, self.current))
            self._nodes = following
            return self.current
        if not self.pass_streams:
            self.pass_number += 1
        stream = self._pass_stream
        if node.name() != "torch::autograd::AccumulateGrad":
            stream = self.stream_of_node.get(node._sequence_nr(), DEFAULT_STREAM)
        self._pass_stream = stream
        if stream not in self.pass_streams:
            self.pass_streams.add(stream)
            self.wait_stream(stream, self.current)
        return stream

    def leave_backward(self) -> None:
        if self.pass_streams and torch._C._current_autograd_node() is None:
            streams, self.pass_streams = self.pass_streams, set()
            for stream in sorted(streams):
                self.wait_stream(self.current, stream)

    def inside_backward(self, memory: Memory, stream: int, writes: bool) -> None:
        """Between operations of one pass autograd orders what one makes and another takes."""
        if not self.pass_streams:
            return
        number, made_on = memory.made_in
        if number == self.pass_number and made_on != stream:
            self.wait_stream(stream, made_on)
        if writes:
            memory.made_in = (self.pass_number, stream)

    # ── Memory ───────────────────────────────────────────────────────────────────────────────

    def take(self, nbytes: int, stream: int) -> Memory:
        capture = self.capture
        pool = EVERYBODY
        if capture is not None and stream in capture.streams:
            pool = capture.pool
        block = self.allocator.take(nbytes, stream, pool)
        memory = Memory(self, block, nbytes, stream)
        if pool != EVERYBODY:
            self._pooled.add(memory)
        segment, kept = block.segment, []
        for first, last, access in segment.left:
            if self.order.host.get(access.stream, 0) >= access.number:
                continue
            if first < block.offset + block.size and block.offset < last:
                start = first - block.offset
                memory.history.known.append(
                    Access(
                        access.task, access.name, access.stream, access.number, start,
                        last - block.offset, access.view, access.writes, access.line, past=True,
                    )
                )  # fmt: skip
                if block.offset <= first and last <= block.offset + block.size:
                    continue
            kept.append((first, last, access))
        segment.left[:] = kept
        return memory

    def release(self, memory: Memory) -> None:
        """The host has let go of the last tensor that has this memory."""
        block = memory.block
        others = memory.recorded - {memory.stream}
        if others and self.capture is not None and memory.block.segment.key[0] == self.capture.pool:
            self.capture.kept.append(block)
        elif others:
            waits = [self.record(stream) for stream in sorted(others)]
            clocks = [partial(self.is_done, *point) for point in waits]
            self.allocator.give_back(block, clocks)
        else:
            self.allocator.give_back(block)
        memory.history.forget(self.order.host)
        block.segment.left += [
            (block.offset + one.first, block.offset + one.last, one)
            for one in memory.history.known
            if one.stream not in others
        ]

    # ── What has been seen ───────────────────────────────────────────────────────────────────

    def _note(
        self, lane: str, name: str, start: float, end: float, kind: Kind, **more: Any
    ) -> None:
        begin = round(start)
        self._slices.append(Slice(self.rank, lane, name, begin, round(end) - begin, kind, **more))

    def annotate(self, name: str, since: float, kind: Kind) -> None:
        self._note(_HOST_LANE, name, since, self.host, kind)

    def _ended(self, task: Task) -> None:
        about: About = task.about
        assert task.start is not None and task.end is not None
        self._note(
            f"stream {task.stream}", task.name, task.start, task.end, about.kind,
            stream=task.stream, correlation=about.correlation,
            collective=about.collective,
        )  # fmt: skip

    def _waited(self, stream: int, start: float, end: float) -> None:
        if stream in self.streams:
            self._note(
                f"stream {stream}", "waits for an event", start, end, Kind.WAIT, stream=stream
            )

    def slices(self) -> list[Slice]:
        """All that host and device did, to the end of what was launched."""
        self.leave_backward()
        self.play()
        return list(self._slices)

    def trace(self) -> Trace:
        return Trace.from_slices(self.slices(), stamp=self.stamp)

    @property
    def stamp(self) -> Any:
        return simulated(f"virtual {self.machine.name}")

    def races(self) -> Races:
        return Races(list(self._races.values()))


def _computed(compute: Callable[[], None], task: Task) -> None:
    """An error comes when the operation is played, as a GPU's does: so it names the operation."""
    try:
        compute()
    except Exception as error:
        where = task.about.line or "a line that is not known"
        raise RuntimeError(
            f"{task.name}, launched in {where}, failed on the virtual GPU: {error}"
        ) from error


def _hold(old: Access, new: Access, task: Task) -> None:
    """Let the second of two that race come first, if the first is not over."""
    first = old.task
    if first is None or first.end is not None:
        return
    if old.writes:
        first.ends_after.append(task)
    elif first.start is None:
        first.starts_after.append(task)


def environment_rank() -> int:
    return int(os.environ.get("RANK", "0"))
