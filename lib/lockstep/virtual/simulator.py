"""The virtual GPU of a process: takes what the host launches, and plays it when the host looks."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..base.provenance import simulated
from ..trace import Kind, Slice, Trace
from .backward import BackwardPasses
from .capture import Capture, Captured
from .costs import UNKNOWN
from .dependencies import Dependencies
from .happens_before import HOST, Clock, Order, merge
from .kernels import About, Kernel, Memory, computed
from .memory import EVERYBODY, Allocator
from .model import Machine
from .race_detector import (
    Races,
    SourceLine,
    assigned_name,
    ignores_answer,
    place,
    variable_name,
)
from .race_watch import Actor, RaceWatch
from .schedule import Await, DeviceTask, Marker, Record, Schedule, Unit
from .tiles import Tiles

DEFAULT_STREAM = 7  # what profilers call a GPU's default stream
_INSIDE = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
    f"{sysconfig.get_path('stdlib')}/contextlib.py",
)
_HOST_LANE = "host"


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


class Device:
    """Host and device in virtual time, the memory, what is ordered, and what has been seen.

    machine: what it is made of. rank: whose it is, in traces. values: whether it computes any; a
    device that does not has times only, and no race shows in a number.
    """

    def __init__(self, machine: Machine, rank: int = 0, *, values: bool = True) -> None:
        self.machine, self.rank, self.values = machine, rank, values
        self.host = 0.0  # the host's clock, ns
        self.order = Order()
        self.schedule = Schedule(self._ended, self._waited, machine.notice)
        self.allocator = Allocator(machine.capacity, f"GPU 0 (a virtual {machine.name})", values)
        self.streams: dict[int, StreamState] = {}
        self._moved = 0  # bytes that operations have used so far
        self._used: dict[tuple[int, int], int] = {}  # by place: `_moved` when it was used last
        self.state = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63)).get_state()
        self.playing = False
        self.capture: Capture | None = None
        self.capture_mode = "global"
        self.backward = BackwardPasses(DEFAULT_STREAM, self.wait_stream)
        self.watch = RaceWatch(self.named, self.coded, self.as_device)
        self.dependencies = Dependencies()
        self._slices: list[Slice] = []
        self._busy = self._guessed = 0.0  # ns of operations so far, and of those without a model
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

    def line(self) -> SourceLine | None:
        """The line of the program that the host is at."""
        return place(sys._getframe(1), _INSIDE)

    # ── Launching ────────────────────────────────────────────────────────────────────────────

    def launch(
        self, kernel: Kernel, stream: int, operator: str, call: str = "", dispatch: float = 0.0
    ) -> DeviceTask | None:
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
        call = call or ("cudaLaunchKernel" if kernel.engine is Unit.SMS else "cudaMemcpyAsync")
        self._note(_HOST_LANE, operator, began, self.host, Kind.OPERATOR)
        self._note(_HOST_LANE, call, called, self.host, Kind.LAUNCH, correlation=self._correlation)
        return self.enqueue(
            kernel, stream, called + machine.latency, machine.gap, self._correlation
        )

    def fetched(self, read: Iterable[Memory], written: Iterable[Memory]) -> int:
        """Bytes of what is read that have left the L2 cache, as so much else was used after it."""
        read, before = list(read), self._moved
        cold = sum(
            memory.nbytes
            for memory in read
            if before - self._used.get(memory.place, before) > self.machine.kept
        )
        for memory in (*read, *written):
            self._moved += memory.nbytes
            self._used[memory.place] = self._moved
        return cold

    def wait_for_room(self, stream: int) -> None:
        """A launch blocks while its queue is full."""
        queue = self.schedule.queues[stream]
        if queue.tasks >= self.machine.depth:
            self.play(lambda: queue.tasks < self.machine.depth)
            self.host = max(self.host, self.schedule.now)

    def enqueue(
        self, kernel: Kernel, stream: int, ready: float, gap: float, correlation: int,
        again: bool = False,
    ) -> DeviceTask:  # fmt: skip
        """Hand a kernel to a stream; see what it races with. again: of a graph."""
        work = kernel.values if self.values else None
        if work is not None:
            work = work.again() if again else work
            if kernel.draw is not None:
                work.before = kernel.draw()
        task = DeviceTask(
            kernel.name, stream, kernel.work, ready, kernel.share, kernel.traffic, gap,
            kernel.engine,
            Tiles(kernel.tiles, self.machine.sms, kernel.work) if kernel.tiles else None,
            kernel.meet() if kernel.meet is not None else None,
            about=About(kernel.kind, correlation, kernel.collective, kernel.line, work),
        )  # fmt: skip
        if work is not None:
            task.finish = partial(computed, work.run, task)
            if task.meeting is not None:
                task.begin = partial(computed, work.read, task)
        actor = Actor(
            kernel.name, stream, self.order.launch(stream), self.order.of(stream), kernel.line, task
        )
        self.watch.on_launch(kernel, actor)
        self.dependencies.on_launch(kernel, correlation)
        self.schedule.add(stream, task)
        return task

    def host_uses(self, address: int, view: torch.Tensor, writes: bool, name: str) -> None:
        """The program itself reads or writes memory that the device copies from or to."""
        actor = Actor(name, HOST, self.order.host_acts(), self.order.host, self.line())
        self.watch.on_host_use(address, view, writes, actor)

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

    def replay(
        self, items: Sequence[Captured], branches: dict[int, int], last: tuple[Marker, Clock] | None
    ) -> tuple[Marker, Clock]:
        """Launch all that was captured at once, and say when it is over.

        branches: captured stream → the graph's own; what the origin was told goes to the current
        stream (-1). last: the end of its last replay, which CUDA has this one wait for.
        """
        self.refuse_in_capture("cudaGraphLaunch")
        self.leave_backward()
        machine, current = self.machine, self.current
        if last is not None:
            self.wait(current, *last)
        if any(item.kernel is not None and item.kernel.draw is not None for item in items):
            for _ in range(2):  # PyTorch tells the graph the generator's seed, and where it is
                fill = Kernel("fill_", machine.kernel, 1 / machine.sms, 0.0, Kind.COMPUTE, ())
                self.launch(fill, current, "aten::fill_")
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
                kernel, gap = item.kernel, machine.gap_in_graph(item.kernel.work)
                self.enqueue(kernel, stream, ready, gap, self._correlation, again=True)
            elif item.record is not None:
                marker = Marker()
                self.schedule.add(stream, Record(marker, ready))
                points[item.record] = marker, self.order.record(stream)
            elif item.wait is not None:
                marker, clock = points[item.wait]
                self.order.wait(stream, clock)
                self.schedule.add(stream, Await(marker, ready))
        return self.record(current)

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

    def refuse_unpinned(self, stream: int) -> None:
        """As PyTorch 2.11, in its words; the capture itself is not harmed."""
        if self.capture is not None and stream in self.capture.streams:
            raise RuntimeError(
                "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU "
                "tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with "
                "pin_memory=True."
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
        self.watch.forget(self.order.host)

    def is_done(self, marker: Marker) -> bool:
        """Whether a point has been reached by now, on the host's clock."""
        if marker.time is None:
            self.play(lambda: marker.time is not None, self.host)
        return marker.time is not None and marker.time <= self.host

    def answer(self, marker: Marker, clock: Clock) -> bool:
        """Tell the caller's caller `is_done`: a yes orders what that does next, unless ignored."""
        done = self.is_done(marker)
        if done and not ignores_answer(sys._getframe(2)):
            self.order.host_waits(clock)
            self.watch.forget(self.order.host)
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

    # ── Backward passes ──────────────────────────────────────────────────────────────────────

    def stream_of_call(self) -> int:
        """Return the stream that an operation goes to now."""
        return self.backward.stream_of_call(self.current)

    def leave_backward(self) -> None:
        self.backward.leave(self.current)

    def inside_backward(self, memory: Memory, stream: int, writes: bool) -> None:
        memory.made_in = self.backward.takes(memory.made_in, stream, writes)

    # ── Memory ───────────────────────────────────────────────────────────────────────────────

    def take(self, nbytes: int, stream: int) -> Memory:
        capture = self.capture
        pool, graph = EVERYBODY, 0
        if capture is not None and stream in capture.streams:
            pool, graph = capture.pool, capture.number
        elif capture is not None and not self.allocator.fits(nbytes, stream):
            self.refuse_in_capture("cudaMalloc", stream)
        block = self.allocator.take(nbytes, stream, pool)
        memory = Memory(self, block, nbytes, stream, graph)
        if pool != EVERYBODY:
            self.watch.pooled.add(memory)
        self.watch.given_out(memory, self.order.host)
        return memory

    def release(self, memory: Memory) -> None:
        """The host has let go of the last tensor that has this memory."""
        block, done = memory.block, dict(self.order.host)
        others = memory.recorded - {memory.stream}
        if others and self.capture is not None and memory.block.segment.key[0] == self.capture.pool:
            self.capture.kept.append(block)
        elif others:
            waits = [self.record(stream) for stream in sorted(others)]
            self.allocator.give_back(block, [partial(self.is_done, marker) for marker, _ in waits])
            for _, clock in waits:
                merge(done, clock)
        else:
            self.allocator.give_back(block)
        self.watch.given_back(memory, done)

    # ── What has been seen ───────────────────────────────────────────────────────────────────

    def _note(
        self, lane: str, name: str, start: float, end: float, kind: Kind, **more: Any
    ) -> None:
        begin = round(start)
        self._slices.append(Slice(self.rank, lane, name, begin, round(end) - begin, kind, **more))

    def annotate(self, name: str, since: float, kind: Kind) -> None:
        self._note(_HOST_LANE, name, since, self.host, kind)

    def _ended(self, task: DeviceTask) -> None:
        about: About = task.about
        assert task.start is not None and task.end is not None
        self._busy += task.end - task.start
        self._guessed += (task.end - task.start) * task.name.endswith(UNKNOWN)
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
        model = f"virtual {self.machine.name}"
        guessed = self._guessed / self._busy if self._busy else 0.0
        if guessed >= 0.01:
            model += f", {guessed:.0%} of its time only estimated from bytes"
        return simulated(model)

    def races(self) -> Races:
        return self.watch.races


def environment_rank() -> int:
    return int(os.environ.get("RANK", "0"))
