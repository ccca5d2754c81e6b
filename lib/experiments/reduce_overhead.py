"""A decode step whose layers are cut over the ranks: eager, compiled, reduce-overhead, as a graph.

And what `mode="reduce-overhead"` captures and refuses with collectives inside, in its own words.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun

from .experiment import Experiment, Result, device_name

LAYERS, WIDTH, ROWS = 16, 512, 8
TURNS, STEPS = 9, 50
LIMIT = 60.0  # seconds for each job
AT_ONCE = 4

Step = Callable[[torch.Tensor], torch.Tensor]


def make_decode(layers: int = LAYERS) -> Step:
    """Products, relu, an all-reduce and an addition a layer, of which each rank has a part."""
    part = WIDTH // dist.get_world_size()
    weights = [
        (torch.randn(WIDTH, part) / WIDTH, torch.randn(part, WIDTH) / WIDTH) for _ in range(layers)
    ]
    on_gpu = [(one.bfloat16().cuda(), two.bfloat16().cuda()) for one, two in weights]

    def decode(x: torch.Tensor) -> torch.Tensor:
        for first, second in on_gpu:
            y = torch.relu(x @ first) @ second
            dist.all_reduce(y)
            x = x + y
        return x

    return decode


def rows(count: int = ROWS) -> torch.Tensor:
    return torch.ones(count, WIDTH, dtype=torch.bfloat16, device="cuda")


def captured(step: Step, x: torch.Tensor) -> torch.cuda.CUDAGraph:
    step(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x)
    return graph


@torch.no_grad()
def ways() -> dict[str, list[float]]:
    """Seconds of a step in each way, in turns: of the host's clock, with a wait after all steps."""
    decode, x = make_decode(), rows()
    compiled, trees = torch.compile(decode), torch.compile(decode, mode="reduce-overhead")
    only = [rows() for _ in range(LAYERS)]
    graph, inductor = captured(decode, x), captured(compiled, x)
    calls: dict[str, Callable[[], object]] = {
        "eager": lambda: decode(x),
        "compiled": lambda: compiled(x),
        "reduce-overhead": lambda: trees(x),
        "graph": graph.replay,
        "graph of compiled": inductor.replay,
        "collectives alone": lambda: [dist.all_reduce(one) for one in only],
    }
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS + 1):
        for name, call in calls.items():
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(STEPS):
                call()
            torch.cuda.synchronize()
            took[name].append((time.perf_counter() - begin) / STEPS)
    graph.reset()
    inductor.reset()
    return {name: seconds[1:] for name, seconds in took.items()}


class Counted:
    """How often CUDA graphs were captured and replayed since."""

    def __init__(self) -> None:
        self.captures = self.replays = 0
        begin, replay = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.replay

        def capture_begin(graph: torch.cuda.CUDAGraph, *given: Any, **named: Any) -> None:
            self.captures += 1
            begin(graph, *given, **named)

        def counted_replay(graph: torch.cuda.CUDAGraph) -> None:
            self.replays += 1
            replay(graph)

        torch.cuda.CUDAGraph.capture_begin = capture_begin  # type: ignore[assignment,method-assign]
        torch.cuda.CUDAGraph.replay = counted_replay  # type: ignore[assignment,method-assign]


def reduced(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def reduces_its_input(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x + 1


def with_a_number(x: torch.Tensor, on_host: torch.Tensor) -> torch.Tensor:
    y = x * on_host
    dist.all_reduce(y)
    return y


def in_two_graphs(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.broadcast(y, 0)  # breaks the graph
    return y + 1


@torch.no_grad()
def case(name: str) -> dict[str, Any]:
    """Run a program in `mode="reduce-overhead"`: return captures, replays, values and words."""
    torch._inductor.config.triton.cudagraph_or_error = name.startswith("strict: ")
    counted, x = Counted(), torch.ones(4, device="cuda")
    values: list[float] = []
    said = ""

    def compiled(program: Callable[..., torch.Tensor], **named: Any) -> Any:
        return torch.compile(program, mode="reduce-overhead", **named)

    def tried() -> None:
        match name.removeprefix("strict: "):
            case "a collective inside":
                f = compiled(reduced)
                values.extend(f(x)[0].item() for _ in range(6))
            case "its input is reduced in place":
                f = compiled(reduces_its_input)
                values.extend(f(torch.ones(4, device="cuda"))[0].item() for _ in range(6))
            case "a tensor on the host":
                f, two = compiled(with_a_number), torch.tensor(2.0)
                values.extend(f(x, two)[0].item() for _ in range(6))
            case "a line that breaks the graph":
                f = compiled(in_two_graphs)
                values.extend(f(x)[0].item() for _ in range(6))
            case "five sizes, one after the other":
                f = compiled(reduced)
                for size in (4, 5, 6, 7, 8) * 3:
                    values.append(f(torch.ones(size, device="cuda"))[0].item())
            case "five sizes, marked dynamic":
                f = compiled(reduced, dynamic=True)
                for size in (4, 5, 6, 7, 8) * 3:
                    values.append(f(torch.ones(size, device="cuda"))[0].item())
            case "an output is read after the next call":
                f = compiled(reduced)
                for _ in range(4):
                    f(x)
                kept = f(x)
                f(x + 1)
                values.append(kept[0].item())
            case "an output is copied before the next call":
                f = compiled(reduced)
                for _ in range(4):
                    torch.compiler.cudagraph_mark_step_begin()
                    f(x)
                torch.compiler.cudagraph_mark_step_begin()
                kept = f(x).clone()
                torch.compiler.cudagraph_mark_step_begin()
                f(x + 1)
                values.append(kept[0].item())
            case "rank 1 compiles anew while the others replay":
                f = compiled(reduced, dynamic=False)
                for at in range(6):
                    rank_1_parts = at == 4 and dist.get_rank() == 1
                    given = torch.ones(5, device="cuda")[:4] if rank_1_parts else x
                    if rank_1_parts:
                        torch.compiler.reset()
                    values.append(f(given)[0].item())
            case other:
                raise ValueError(other)

    began = time.perf_counter()
    try:
        tried()
        torch.cuda.synchronize()
    except Exception as error:  # what it says is the finding
        said = f"{type(error).__name__}: {str(error).strip()}"[:700]
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    return {
        "captures": counted.captures,
        "replays": counted.replays,
        "skips": skips,
        "values": values,
        "said": said,
        "seconds": time.perf_counter() - began,
    }


CASES = (
    "a collective inside",
    "its input is reduced in place",
    "strict: its input is reduced in place",
    "a tensor on the host",
    "strict: a tensor on the host",
    "a line that breaks the graph",
    "five sizes, one after the other",
    "five sizes, marked dynamic",
    "an output is read after the next call",
    "an output is copied before the next call",
    "rank 1 compiles anew while the others replay",
)


def _job(function: Callable[..., Any], *given: Any, n: int) -> Any:
    """Results by rank, or what the report says of a job that failed."""
    named: dict[str, Any] = {"nproc_per_node": n, "backend": "nccl", "show": False}
    job = torchrun(function, *given, **named, timeout=LIMIT, may_fail=True)
    return job.results if job.ok else str(job.verdict)[:700]


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    file = f"graphs/reduce-overhead-{device_name(machine)}-x{nproc}.json"
    what = f"a decode step on {nproc} ranks: eager, compiled, reduce-overhead, graph"
    times = _job(ways, n=nproc)
    content: dict[str, Any] = {"world_size": nproc, "ways": times}
    if not isinstance(times, str):
        medians = {name: [statistics.median(one[name]) for one in times] for name in times[0]}
        content["medians"] = {name: max(of_ranks) for name, of_ranks in medians.items()}
    yield Result(file, what, content)
    with ThreadPoolExecutor(AT_ONCE) as jobs:  # nothing is timed in these
        content["cases"] = dict(
            zip(CASES, jobs.map(partial(_job, case, n=nproc), CASES), strict=True)
        )
    yield Result(file, what, content)


EXPERIMENT = Experiment(
    "reduce-overhead",
    "compiled graphs with collectives: cudagraph trees, what they refuse",
    minutes=4,
    run=run,
    least=2,
    writes={
        "graphs/reduce-overhead-*.json": ("world_size", "ways", "medians", "cases"),
    },
)
