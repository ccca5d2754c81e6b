"""CUDA graphs on the virtual GPU: launches that are recorded once, and replayed as one.

Nothing runs while a graph is captured. Its tensors lie in a pool of its own, in which memory that a
tensor gave up is used again; a replay reads and writes the addresses of the capture, whatever is
there by then.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..trace import Kind
from .capture import Capture, Captured
from .happens_before import Clock
from .kernels import Kernel
from .memory import Pool
from .schedule import Marker
from .streams import Stream, StreamContext, active, empty_cache, synchronize

_POOLS = itertools.count(1)
_BRANCHES = itertools.count(1000)  # streams inside of graphs


def graph_pool_handle() -> Pool:
    """A name for a pool that several graphs can share."""
    return (0, next(_POOLS))


def is_current_stream_capturing() -> bool:
    gpu = active()
    return gpu.capture is not None and gpu.current in gpu.capture.streams


class CUDAGraph:
    """Launches that were captured: `replay()` gives all of them to the current stream at once."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._items: list[Captured] | None = None
        self._capture: Capture | None = None
        self._pool: Pool | None = None
        self._branches: dict[int, int] = {}
        self._replayed: tuple[Marker, Clock] | None = None  # the end of the last replay
        self._watch: Any = None  # of optimizers, while capturing

    def capture_begin(
        self, pool: Pool | None = None, capture_error_mode: str = "global", **more: Any
    ) -> None:
        gpu = active()
        if self._items is not None or self._capture is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "
                f"{capture_error_mode}"
            )
        if Stream._of(gpu.current).cuda_stream == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        if gpu.capture is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        gpu.capture_mode = capture_error_mode
        self._pool = pool or graph_pool_handle()
        gpu.allocator.users[self._pool] += 1
        gpu.capture = self._capture = Capture(self._pool, gpu.current)
        self._watch = register_optimizer_step_pre_hook(_refuse_uncapturable)

    def capture_end(self) -> None:
        gpu = active()
        capture, self._capture = self._capture, None
        if capture is None:
            raise RuntimeError("CUDA error: invalid argument: no capture has begun")
        self._watch.remove()
        gpu.leave_backward()
        gpu.capture = None
        for block in capture.kept:
            gpu.allocator.give_back(block)
        try:
            capture.check()
        except RuntimeError:
            self._give_up_pool()
            raise
        self._items = capture.items
        others = sorted(capture.streams - {capture.origin})
        self._branches = {stream: next(_BRANCHES) for stream in others}
        for branch in self._branches.values():
            gpu.add_stream(gpu.streams.add(0, branch))
        self._branches[capture.origin] = -1  # whatever stream it is replayed on

    def replay(self) -> None:
        """Launch all that was captured at once, on the current stream; after the last replay."""
        items, gpu = self._items, active()
        if items is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        gpu.refuse_in_capture("cudaGraphLaunch")
        gpu.leave_backward()
        machine, current = gpu.machine, gpu.current
        if self._replayed is not None:
            gpu.wait(current, *self._replayed)
        if any(item.kernel is not None and item.kernel.draw is not None for item in items):
            for _ in range(2):  # PyTorch tells the graph the generator's seed, and where it is
                fill = Kernel("fill_", machine.kernel, 1 / machine.sms, 0.0, Kind.COMPUTE, ())
                gpu.launch(fill, current, "aten::fill_")
        nodes = sum(item.kernel is not None for item in items)
        takes = machine.launch + nodes * machine.graph_launch
        called, correlation = gpu.call("cudaGraphLaunch", takes)
        ready = called + machine.graph_latency
        points: dict[Marker, tuple[Marker, Clock]] = {}
        for item in items:
            stream = self._branches[item.stream]
            stream = current if stream < 0 else stream
            if item.kernel is not None:
                kernel, gap = item.kernel, machine.gap_in_graph(item.kernel.work)
                gpu.enqueue(kernel, stream, ready, gap, correlation, again=True)
            elif item.record is not None:
                points[item.record] = gpu.record(stream, ready)
            elif item.wait is not None:
                gpu.wait(stream, *points[item.wait], ready)
        self._replayed = gpu.record(current)

    def reset(self) -> None:
        if self._items is not None:
            self._items = None
            self._give_up_pool()

    def _give_up_pool(self) -> None:
        memory = active().allocator
        if self._pool is not None:
            memory.users[self._pool] -= 1
            if not memory.users[self._pool]:
                memory.drop_pool(self._pool)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # its device may have been switched off
            self.reset()

    def pool(self) -> Pool:
        if self._items is None or self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool


def _refuse_uncapturable(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Refuse what optimizers that count steps on the host ask of a real GPU before each step."""
    groups = optimizer.param_groups
    if is_current_stream_capturing() and not all(one.get("capturable", True) for one in groups):
        raise RuntimeError(
            "Attempting CUDA graph capture of step() for an instance of "
            f"{type(optimizer).__name__} but param_groups' capturable is False."
        )


class graph:
    """`with graph(g):` captures what is launched inside, on a stream of its own, into `g`."""

    default_capture_stream: tuple[Any, Stream] | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Pool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
        **more: Any,
    ) -> None:
        gpu = active()
        known = graph.default_capture_stream
        if stream is None and (known is None or known[0] is not gpu):
            known = graph.default_capture_stream = (gpu, Stream())
        self._graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._context = StreamContext(stream if stream is not None else known[1] if known else None)

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self._context.__enter__()
        try:
            self._graph.capture_begin(pool=self._pool, capture_error_mode=self._mode)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._graph.capture_end()
        finally:
            self._context.__exit__()


class _Torch:
    """torch, with the virtual GPU for torch.cuda."""

    cuda = SimpleNamespace(
        CUDAGraph=CUDAGraph, graph=graph, Stream=Stream, stream=StreamContext,
        synchronize=synchronize,
    )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def make_graphed_callables(*args: Any, **kwargs: Any) -> Any:
    """PyTorch's own function, with this module's graphs."""
    plain = torch.cuda.make_graphed_callables
    known = {**plain.__globals__, "torch": _Torch(), "graph_pool_handle": graph_pool_handle}
    ours = FunctionType(plain.__code__, known, plain.__name__, plain.__defaults__)
    return ours(*args, **kwargs)
