"""The virtual GPU of a process: takes what the host launches, and plays it when the host looks."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ..base.provenance import simulated
from ..trace import Kind, Slice, Trace
from .backward import BackwardPasses
from .cache import L2Cache
from .capture import Capture
from .dependencies import Dependencies
from .happens_before import HOST, Clock, Order, merge
from .kernels import About, Kernel, Memory, computed
from .memory import EVERYBODY, Allocator
from .model import Machine
from .profiler import Profiler
from .race_detector import Races, ignores_answer
from .race_watch import Actor, RaceWatch
from .schedule import Await, DeviceTask, Marker, Record, Schedule, Unit
from .stream_table import DEFAULT_STREAM, StreamState, StreamTable, program_line
from .tiles import Tiles


class Device:
    """Host and device in virtual time, the memory, what is ordered, and what has been seen.

    machine: what it is made of. rank: whose it is, in traces. values: whether it computes any; a
    device that does not has times only, and no race shows in a number.
    """

    def __init__(self, machine: Machine, rank: int = 0, *, values: bool = True) -> None:
        self.machine, self.rank, self.values = machine, rank, values
        self.host = 0.0  # the host's clock, ns
        self.order = Order()
        self.profiler = Profiler(rank)
        self.schedule = Schedule(self.profiler.ended, self.profiler.waited, machine.notice)
        self.allocator = Allocator(machine.capacity, f"GPU 0 (a virtual {machine.name})", values)
        self.streams = StreamTable(self, machine.priorities)
        self.cache = L2Cache(machine.kept)
        self.state = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63)).get_state()
        self.playing = False
        self.capture: Capture | None = None
        self.capture_mode = "global"
        self.backward = BackwardPasses(DEFAULT_STREAM, self.wait_stream)
        self.watch = RaceWatch(self.streams.named, self.streams.coded, self.as_device)
        self.dependencies = Dependencies()
        self._correlation = 0
        self.current = DEFAULT_STREAM
        self.add_stream(self.streams.add(0, DEFAULT_STREAM))

    # ── Streams ──────────────────────────────────────────────────────────────────────────────

    def add_stream(self, stream: StreamState) -> int:
        """Make a queue for a stream of the table; return its number."""
        self.schedule.queue(stream.number, stream.priority)
        self.order.clock(stream.number)
        return stream.number

    # ── The host's time ──────────────────────────────────────────────────────────────────────

    def spend(self, name: str, nanoseconds: float, kind: Kind = Kind.OPERATOR, **more: Any) -> None:
        """The host is busy with something for so long."""
        self.profiler.host(name, self.host, self.host + nanoseconds, kind, **more)
        self.host += nanoseconds

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
            self.profiler.host(operator, began, self.host, Kind.OPERATOR)
            return None
        self.wait_for_room(stream)
        call = call or ("cudaLaunchKernel" if kernel.engine is Unit.SMS else "cudaMemcpyAsync")
        self.profiler.host(operator, began, self.host + machine.launch, Kind.OPERATOR)
        called, correlation = self.call(call, machine.launch)
        return self.enqueue(kernel, stream, called + machine.latency, machine.gap, correlation)

    def call(self, name: str, nanoseconds: float) -> tuple[float, int]:
        """The host calls what gives work to the device; return when it does, and the number by
        which the work is told."""
        self._correlation += 1
        called = self.host
        self.host += nanoseconds
        self.profiler.host(name, called, self.host, Kind.LAUNCH, self._correlation)
        return called, self._correlation

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
            kernel.name,
            stream,
            self.order.launch(stream),
            self.order.clock(stream),
            kernel.line,
            task,
        )
        self.watch.on_launch(kernel, actor)
        self.dependencies.on_launch(kernel, correlation)
        self.schedule.add(stream, task)
        return task

    def host_uses(self, address: int, view: torch.Tensor, writes: bool, name: str) -> None:
        """The program itself reads or writes memory that the device copies from or to."""
        actor = Actor(name, HOST, self.order.host_acts(), self.order.host, program_line())
        self.watch.on_host_use(address, view, writes, actor)

    # ── Events ───────────────────────────────────────────────────────────────────────────────

    def record(self, stream: int, came: float | None = None) -> tuple[Marker, Clock]:
        """Record a new event. came: when the device is told, on the host's clock; None for now."""
        if self.capture is not None and stream in self.capture.streams:
            return self.capture.record(stream)
        marker = Marker()
        self.schedule.add(stream, Record(marker, self.host if came is None else came))
        return marker, self.order.record(stream)

    def wait(self, stream: int, marker: Marker, recorded: Clock, came: float | None = None) -> None:
        """Let a stream wait for a recorded event. came: as for `record`."""
        if self.capture is not None and self.capture.wait(stream, marker):
            return
        self.order.wait(stream, recorded)
        self.schedule.add(stream, Await(marker, self.host if came is None else came))

    def wait_stream(self, stream: int, other: int) -> None:
        if stream != other:
            self.wait(stream, *self.record(other))

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

    def synchronise(self, streams: Iterable[int], call: str, operator: str = "") -> None:
        """The host waits until all that these streams were given is done."""
        asked = [*streams]
        self.refuse_in_capture(call, *asked)
        self.leave_backward()
        reached = [self.record(stream) for stream in asked]
        self.wait_for(reached, call, operator)

    def wait_for(
        self, reached: Sequence[tuple[Marker, Clock]], call: str, operator: str = ""
    ) -> None:
        """The host waits for these points of streams."""
        began = self.host
        self.play(lambda: all(marker.time is not None for marker, _ in reached))
        last = max((marker.time or 0.0 for marker, _ in reached), default=0.0)
        self.host = max(began + self.machine.synchronise, last)
        if operator:
            self.profiler.host(operator, began, self.host, Kind.OPERATOR)
        self.profiler.host(call, began, self.host, Kind.LAUNCH)
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

    def slices(self) -> list[Slice]:
        """All that host and device did, to the end of what was launched."""
        self.leave_backward()
        self.play()
        return list(self.profiler.slices)

    def trace(self) -> Trace:
        return Trace.from_slices(self.slices(), stamp=self.stamp)

    @property
    def stamp(self) -> Any:
        model = f"virtual {self.machine.name}"
        if self.profiler.guessed >= 0.01:
            model += f", {self.profiler.guessed:.0%} of its time only estimated from bytes"
        return simulated(model)

    def races(self) -> Races:
        return self.watch.races


def environment_rank() -> int:
    return int(os.environ.get("RANK", "0"))
