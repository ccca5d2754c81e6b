"""A backward pass beside its gradients' all-reduces: what each way of launching them hides.

The model is lab 04's: twelve linear layers of 4096, 4096 rows, bfloat16. Gradients are reduced in
hooks, so many layers to a message, by process groups that differ in NCCL's `max_ctas` and in their
stream's priority; all after the backward pass; and by DDP. Each is timed by events without the
profiler, on the slowest rank. Then a trace of some steps says how much of the communication has
computation beside it: the mean of the ranks, as lab 04 counts it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.trace import Trace
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from .experiment import Experiment, Result, by_torchrun, gpu_name
from .overlap import BATCHES, seconds

LAYERS, WIDTH, ROWS = 12, 4096, 4096
TRACED = 5  # steps
BUCKETS = (1, 2, 4, 6)  # layers in a message
LIMITS = (8, 16, 32)
DDP_MB = (25, 64, 128)  # a gradient is 32 MiB; 25 is DDP's own
Step = Callable[[], None]


def model(width: int = WIDTH, rows: int = ROWS) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    how: Any = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [nn.Linear(width, width, bias=False, **how) for _ in range(LAYERS)]
    return nn.Sequential(*layers), torch.randn(rows, width, **how)


def hooked(group: Any, size: int, net: nn.Module, x: torch.Tensor) -> Step:
    """Every `size` layers whose gradients are there go together, in one launch of NCCL's."""
    ready: list[torch.Tensor] = []
    handles: list[Any] = []

    def reduce(weight: torch.Tensor) -> None:
        assert weight.grad is not None
        ready.append(weight.grad)
        if len(ready) < size:
            return
        if size == 1:
            handles.append(dist.all_reduce(ready[0], group=group, async_op=True))
        else:
            with dist._coalescing_manager(group, async_ops=True) as several:
                for gradient in ready:
                    dist.all_reduce(gradient, group=group)
            handles.append(several)
        ready.clear()

    for weight in net.parameters():
        weight.register_post_accumulate_grad_hook(reduce)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        for handle in handles:
            handle.wait()
        handles.clear()

    return step


def after() -> Step:
    net, x = model()

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(x).square().mean().backward()
        handles = [dist.all_reduce(one.grad, async_op=True) for one in net.parameters()]
        for handle in handles:
            handle.wait()

    return step


def alone() -> Step:
    """Without any communication."""
    net, x = model()

    def step() -> None:
        net.zero_grad(set_to_none=True)
        net(x).square().mean().backward()

    return step


def messages() -> Step:
    """The gradients' all-reduces without anything beside them."""
    net, _ = model()
    gradients = [torch.zeros_like(weight) for weight in net.parameters()]

    def step() -> None:
        for handle in [dist.all_reduce(one, async_op=True) for one in gradients]:
            handle.wait()

    return step


def by_ddp(cap: int) -> Step:
    net, x = model()
    whole = DistributedDataParallel(net, bucket_cap_mb=cap, gradient_as_bucket_view=True)

    def step() -> None:
        whole.zero_grad(set_to_none=True)
        whole(x).square().mean().backward()

    return step


def ways() -> Iterator[tuple[dict[str, Any], Step]]:
    """Return what each way is, and its step; the course's answer is that of one layer, no
    option."""
    yield {"how": "no communication"}, alone()
    yield {"how": "all-reduces alone"}, messages()
    yield {"how": "after the backward"}, after()
    for limit, urgent in ((None, False), (None, True), *((limit, False) for limit in LIMITS)):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=urgent)
        if limit is not None:
            options.config.max_ctas = limit
        group = dist.new_group(pg_options=options)
        for size in BUCKETS if limit is None else BUCKETS[:2]:
            how = {"how": "in hooks", "layers": size, "max_ctas": limit, "high_priority": urgent}
            yield how, hooked(group, size, *model())
        torch.cuda.synchronize()
        dist.destroy_process_group(group)
    for cap in DDP_MB:
        yield {"how": "DDP", "bucket_cap_mb": cap}, by_ddp(cap)


def trace(step: Step, file: Path) -> None:
    """The ranks meet in a step that is not kept: starting a profiler takes each its own time."""
    plan = schedule(wait=0, warmup=1, active=TRACED, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, schedule=plan) as profiler:
        for number in range(1 + TRACED):
            step()
            if number == 0:
                dist.barrier()
            torch.cuda.synchronize()
            profiler.step()
    profiler.export_chrome_trace(str(file))


def shares(folder: Path) -> dict[str, float]:
    """Return, from the traces there, µs a step of communication, exposed ones, and the hidden
    share.

    A step's are the mean of its ranks; of the steps the median.
    """
    breakdown = Trace.load(folder).breakdown()
    steps: dict[int | None, list[tuple[int, int]]] = {}
    for one in breakdown.steps:
        steps.setdefault(one.step, []).append((one.communication, one.exposed))
    found = []
    for every in steps.values():
        communication, exposed = (statistics.mean(some) / 1e3 for some in zip(*every, strict=True))
        found.append((communication, exposed, 1 - exposed / communication))
    names = ("communication_us", "exposed_us", "hidden")
    return dict(zip(names, map(statistics.median, zip(*found, strict=True)), strict=True))


def measure(folder: Path) -> None:
    """Measure on each rank of torchrun, under NCCL; a line and a folder of traces for each way."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")  # without device_id a new group has a communicator of its own
    rank = dist.get_rank()
    for number, (how, step) in enumerate(ways()):
        row = {**how, "seconds": seconds(step)}
        here = folder / str(number)
        here.mkdir(exist_ok=True)
        trace(step, here / f"rank{rank}.json")
        if rank == 0:
            print(json.dumps(row), file=sys.stderr, flush=True)
            (here / "row.txt").write_text(json.dumps(row))
    dist.destroy_process_group()


def run(machine: Machine, nproc: int) -> list[Result]:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        by_torchrun(__name__, name, nproc=nproc)
        for folder in sorted(Path(name).iterdir(), key=lambda one: int(one.name)):
            row = json.loads((folder / "row.txt").read_text())
            if row["how"] != "no communication":
                row |= shares(folder)
            rows.append(row)
    content = {
        "world_size": nproc,
        "layers": LAYERS,
        "width": WIDTH,
        "rows": ROWS,
        "batches": BATCHES,
        "traced": TRACED,
        "ways": rows,
    }
    what = f"a backward pass beside its all-reduces on {nproc} ranks, hooked in several ways"
    return [Result(f"overlap/backward-{gpu_name(machine)}-x{nproc}.json", what, content)]


EXPERIMENT = Experiment(
    "backward",
    "a backward pass beside its gradients' all-reduces: by buckets, max_ctas, priority, DDP",
    minutes=2,
    run=run,
    least=2,
    writes={
        "overlap/backward-*.json": (
            *("world_size", "layers", "width", "rows"),
            *("batches", "traced", "ways"),
        ),
    },
)


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]))
