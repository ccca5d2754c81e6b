"""CUDA graphs beside eager calls: steps by model and batch, memory by pool, latencies.

A step is a forward pass of equal layers x + relu(x·w) in bfloat16, or a training step. `eager_us`
is a step as it is written; `replay_us` one `replay()` in a bare loop; `served_us` what a caller
needs who brings an input and keeps an output: copy, replay, clone. Each is the median of batches of
steps, of which the host waits for the last; the ways take turns.

Everything takes `cuda`, so that the virtual GPU can do it, too.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from lockstep.base.machine import Machine
from lockstep.launch import torchrun
from lockstep.virtual import perf_counter
from torch import nn

from .experiment import Experiment, Result, device_name

Step = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """models: layers and width. batches: rows of the input. graphs: rows that have a graph each,
    in the second model. latencies: steps of which each is timed. seconds: the longest for that."""

    models: tuple[tuple[int, int], ...] = ((24, 512), (24, 2048), (24, 8192))
    batches: tuple[int, ...] = (1, 8, 64, 256, 1024, 4096)
    graphs: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    training: tuple[tuple[int, int, int], ...] = ((8, 512, 64), (8, 2048, 1024))
    latencies: int = 3000
    seconds: float = 8.0
    repeats: int = 20


SIZES = Sizes()


# ── What is measured ─────────────────────────────────────────────────────────────────────────


def layers(count: int, width: int) -> list[torch.Tensor]:
    """Return `count` weights of width × width, bfloat16."""
    scale = 0.5 / width**0.5
    return [
        torch.randn(width, width, device="cuda").mul_(scale).to(torch.bfloat16)
        for _ in range(count)
    ]


def forward(weights: Sequence[torch.Tensor], x_BD: torch.Tensor) -> torch.Tensor:
    for w_DD in weights:
        x_BD = x_BD + torch.relu(x_BD @ w_DD)
    return x_BD


def training(cuda: Any, depth: int, width: int, batch: int) -> Step:
    """Return a step of SGD with momentum on a small MLP, bfloat16."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts).to("cuda").to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x_BD, y_BD = (torch.zeros(batch, width, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x_BD), y_BD).backward()
        optimizer.step()

    return step


def captured(cuda: Any, step: Step, pool: Any = None) -> tuple[Any, Any]:
    """Return (graph, what the step returned), after two calls on a side stream."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            step()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, pool=pool):
        made = step()
    return graph, made


def serve(
    graph: Any, x_BD: torch.Tensor, out_BD: torch.Tensor, new_BD: torch.Tensor
) -> torch.Tensor:
    """Return what a replay makes of a new input."""
    x_BD.copy_(new_BD)
    graph.replay()
    return out_BD.clone()


def microseconds(cuda: Any, ways: dict[str, Step], repeats: int) -> dict[str, float]:
    """Return, by way, µs of a step, the median of seven batches; the ways take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(8):
        for name, step in ways.items():
            cuda.synchronize()
            began = perf_counter()
            for _ in range(repeats):
                step()
            cuda.synchronize()
            if turn:  # the first is a warm-up
                found[name].append((perf_counter() - began) / repeats * 1e6)
    return {f"{name}_us": statistics.median(some) for name, some in found.items()}


def kernels(cuda: Any, step: Step) -> int | None:
    """Count the kernels that a step launches; None where there is no profiler for the device."""
    if cuda is not torch.cuda:
        return None
    with torch.profiler.profile() as profiler:
        step()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    return sum(one.device_type == on_device for one in profiler.events())


def steps(cuda: Any, sizes: Sizes) -> list[dict[str, Any]]:
    """Time forward passes by model and batch: eager, replayed, served."""
    found = []
    for depth, width in sizes.models:
        weights = layers(depth, width)
        for batch in sizes.batches:
            x_BD = torch.zeros(batch, width, dtype=torch.bfloat16, device="cuda")
            eager = partial(forward, weights, x_BD)
            graph, out_BD = captured(cuda, eager)
            served = partial(serve, graph, x_BD, out_BD, torch.ones_like(x_BD))
            ways = {"eager": eager, "replay": graph.replay, "served": served}
            found.append(
                {
                    "layers": depth,
                    "width": width,
                    "batch": batch,
                    "kernels": kernels(cuda, eager),
                    **microseconds(cuda, ways, sizes.repeats),
                }
            )
            del eager, graph, out_BD, served, ways
        del weights
        gc.collect()
        cuda.empty_cache()
    return found


def training_steps(cuda: Any, sizes: Sizes) -> list[dict[str, Any]]:
    """Time training steps, eager and replayed."""
    found = []
    for depth, width, batch in sizes.training:
        step = training(cuda, depth, width, batch)
        graph, _ = captured(cuda, step)
        ways = {"eager": step, "replay": graph.replay}
        found.append(
            {
                "layers": depth,
                "width": width,
                "batch": batch,
                "kernels": kernels(cuda, step),
                **microseconds(cuda, ways, sizes.repeats),
            }
        )
    return found


def memory(cuda: Any, sizes: Sizes, shared: bool, largest_first: bool) -> list[dict[str, Any]]:
    """Return, after each capture, bytes that the allocator has taken and that the device has lost.

    One graph for each batch size, each with a pool of its own or all with one. What was there
    before the first capture, weights and inputs, is not counted.
    """
    weights = layers(*sizes.models[1])
    order = sorted(sizes.graphs, reverse=largest_first)
    inputs = {
        rows: torch.zeros(rows, weights[0].shape[0], dtype=torch.bfloat16, device="cuda")
        for rows in order
    }
    for x_BD in inputs.values():
        forward(weights, x_BD)
    cuda.synchronize()
    cuda.empty_cache()
    reserved, free = cuda.memory_reserved(), cuda.mem_get_info()[0]
    pool = cuda.graph_pool_handle() if shared else None
    kept, found = [], []
    for rows in order:
        began = time.perf_counter()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            out_BD = forward(weights, inputs[rows])
        graph.replay()
        cuda.synchronize()
        seconds = time.perf_counter() - began
        cuda.empty_cache()
        kept.append((graph, out_BD))
        found.append(
            {
                "batch": rows,
                "reserved": cuda.memory_reserved() - reserved,
                "device": free - cuda.mem_get_info()[0],
                "capture_seconds": seconds,
            }
        )
    return found


def latencies(cuda: Any, sizes: Sizes, busy: bool) -> dict[str, dict[str, float]]:
    """Return µs from call to end of one step, by way; busy: another thread runs Python, too."""
    weights = layers(*sizes.models[0])
    x_BD = torch.zeros(1, weights[0].shape[0], dtype=torch.bfloat16, device="cuda")
    graph, _ = captured(cuda, partial(forward, weights, x_BD))
    ways = {"eager": partial(forward, weights, x_BD), "replay": graph.replay}
    over = threading.Event()
    other = threading.Thread(target=_burn, args=(over,), daemon=True)
    if busy:
        other.start()
    found = {}
    try:
        for name, step in ways.items():
            took: list[float] = []
            began = time.monotonic()
            while len(took) < sizes.latencies and time.monotonic() - began < sizes.seconds:
                cuda.synchronize()
                start = perf_counter()
                step()
                cuda.synchronize()
                took.append((perf_counter() - start) * 1e6)
            took = sorted(took[10:])
            found[name] = {"steps": len(took)} | {
                f"p{part:g}": took[min(int(len(took) * part / 100), len(took) - 1)]
                for part in (1, 50, 90, 99, 99.9, 100)
            }
    finally:
        over.set()
    return found


def _burn(over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        number += 1


# ── Here ─────────────────────────────────────────────────────────────────────────────────────

MEMORY = {
    "own pools": (False, True),
    "one pool, largest first": (True, True),
    "one pool, smallest first": (True, False),
}


def measure(part: str, sizes: Sizes, *args: Any) -> Any:
    """Measure one part, on this process's GPU."""
    parts: dict[str, Callable[..., Any]] = {
        "steps": steps,
        "training": training_steps,
        "memory": memory,
        "latencies": latencies,
    }
    return parts[part](torch.cuda, sizes, *args)


def run(machine: Machine, _: int) -> list[Result]:
    def apart(part: str, *args: Any) -> Any:  # its memory and streams are nobody else's
        job = torchrun(
            measure, part, SIZES, *args, nproc_per_node=1, init=False, show=False, timeout=200
        )
        return job[0]

    content = {
        "sizes": asdict(SIZES),
        "steps": apart("steps"),
        "training": apart("training"),
        "memory": {name: apart("memory", *how) for name, how in MEMORY.items()},
        "latencies": {
            name: apart("latencies", busy) for name, busy in (("quiet", False), ("busy", True))
        },
    }
    what = "CUDA graphs and eager calls: steps by model and batch, memory by pool, latencies"
    return [Result(f"graphs/{device_name(machine)}.json", what, content)]


EXPERIMENT = Experiment(
    "graphs",
    "CUDA graphs: steps eager and replayed, memory of a graph for each batch, latencies",
    minutes=2,
    run=run,
    least=1,
    most=1,
    ranks=1,
    writes={
        "graphs/*.json": ("sizes", "steps", "training", "memory", "latencies"),
    },
)
