"""A training step of 24 layers, data parallel in several ways; and what compression takes.

Each way is timed on the slowest rank, and seen once by the profiler: how long collectives run, how
much of that nothing hides, how many there are, how many bytes are alive at most. Under gloo the
layers are small, and a rank's calls alone are counted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.trace import Kind, Trace
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .experiment import Experiment, Result, device_name, of_rank_0

LAYERS, FIRST, EACH = 24, 1, 4  # layers; of them in the first bucket, and in each other one
WIDTH = {"cuda": 4096, "cpu": 64}
SIZES = {"cuda": (1, 25, 100), "cpu": (1,)}  # MB of a bucket that is compressed
SHARE = 0.01  # of a bucket that Top-K keeps
STEPS = {"cuda": 15, "cpu": 3}

Step = Callable[[], object]


def in_buckets(layers: torch.nn.Sequential) -> list[list[torch.nn.Parameter]]:
    """The weights from the last layer on, a small bucket first."""
    last_first = list(layers.parameters())[::-1]
    ends = [0, *range(FIRST, LAYERS, EACH), LAYERS]
    return [last_first[a:b] for a, b in pairwise(ends)]


def replicate(groups: list[list[torch.nn.Parameter]]) -> Callable[[], None]:
    """Reduce each bucket in hooks as soon as it and all before it are complete, as lab 08 does."""
    missing = [len(group) for group in groups]
    started: list[tuple[torch.Tensor, Any]] = []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

    def ready(weight: torch.nn.Parameter) -> None:
        missing[bucket_of[weight]] -= 1
        while len(started) < len(groups) and not missing[len(started)]:
            grads = [one.grad.flatten() for one in groups[len(started)] if one.grad is not None]
            flat = torch.cat(grads)
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish() -> None:
        for group, (flat, work) in zip(groups, started, strict=True):
            work.wait()
            pieces = flat.div_(dist.get_world_size()).split([one.numel() for one in group])
            for weight, piece in zip(group, pieces, strict=True):
                weight.grad = piece.view_as(weight)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


def model_of(kind: str) -> torch.nn.Sequential:
    shape = {"device": kind, "dtype": torch.bfloat16 if kind == "cuda" else torch.float32}
    width = WIDTH[kind]
    return torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False, **shape) for _ in range(LAYERS))
    )


def ddp(kind: str, **how: Any) -> Step:
    model = DistributedDataParallel(model_of(kind), **how)
    return lambda: backward(model, kind)


def by_hand(kind: str, groups: Callable[[torch.nn.Sequential], Any]) -> Step:
    model = model_of(kind)
    finish = replicate(groups(model))

    def step() -> None:
        backward(model, kind)
        finish()

    return step


def plain(kind: str, reduced: bool) -> Step:
    model = model_of(kind)

    def step() -> None:
        backward(model, kind)
        for weight in reversed(list(model.parameters())) if reduced else ():
            dist.all_reduce(weight.grad)

    return step


def sharded(kind: str, *, blocks: bool = True, keep: bool = False, ahead: int = 0) -> Step:
    model = model_of(kind)
    for layer in model if blocks else ():
        fully_shard(layer, reshard_after_forward=not keep)
    fully_shard(model, reshard_after_forward=not keep)
    layers: list[Any] = list(model)
    for at, layer in enumerate(layers if ahead else ()):
        layer.set_modules_to_forward_prefetch(layers[at + 1 : at + 1 + ahead])
        layer.set_modules_to_backward_prefetch(layers[max(0, at - ahead) : at][::-1])
    return lambda: backward(model, kind)


def backward(model: torch.nn.Module, kind: str) -> None:
    """A step without the optimizer."""
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    model.zero_grad()
    model(torch.ones(WIDTH[kind], WIDTH[kind], device=kind, dtype=dtype)).square().mean().backward()


def ways() -> dict[str, Callable[[str], Step]]:
    """Return what is measured, by name; each makes its own model."""
    return {
        "no communication": lambda kind: plain(kind, False),
        "after the backward": lambda kind: plain(kind, True),
        "gradient by gradient": lambda kind: by_hand(
            kind, lambda model: [[one] for one in reversed(list(model.parameters()))]
        ),
        "own buckets": lambda kind: by_hand(kind, in_buckets),
        "own buckets, wrong order": lambda kind: by_hand(
            kind, lambda model: in_buckets(model)[::-1]
        ),
        "DDP": ddp,
        "DDP, bucket_cap_mb 1": lambda kind: ddp(kind, bucket_cap_mb=1),
        "DDP, bucket_cap_mb 200": lambda kind: ddp(kind, bucket_cap_mb=200),
        "DDP, gradient_as_bucket_view": lambda kind: ddp(kind, gradient_as_bucket_view=True),
        "FSDP2, one root": lambda kind: sharded(kind, blocks=False),
        "FSDP2, block by block": sharded,
        "FSDP2, gathered until its backward": lambda kind: sharded(kind, keep=True),
        "FSDP2, two blocks ahead": lambda kind: sharded(kind, ahead=2),
    }


def synchronize(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def seconds(step: Step, kind: str) -> tuple[float, float]:
    """Return the median times of a step on the slowest rank: until all is done, and until the host
    has launched it all. Where they are equal, the device waits for the host."""
    found = []
    for _ in range(STEPS[kind]):
        synchronize(kind)
        dist.barrier()
        began = time.perf_counter()
        step()
        launched = time.perf_counter()
        synchronize(kind)
        found.append((time.perf_counter() - began, launched - began))
    slowest = torch.tensor(found, device=kind, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    whole, host = slowest.T.tolist()
    return statistics.median(whole), statistics.median(host)


def profiled(step: Step) -> dict[str, Any]:
    """One step as the profiler of this rank's GPU sees it."""
    with torch.profiler.profile() as profiler:
        step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")
        trace = Trace.load(folder)
    spent = trace.breakdown().of(dist.get_rank())
    collectives = [one for one in trace if one.kind == Kind.COMMUNICATION]
    return {
        "communication_us": spent.communication / 1e3,
        "exposed_us": (spent.communication - spent.overlapped) / 1e3,
        "collectives": len(collectives),
    }


def measured(name: str, make: Callable[[str], Step], kind: str) -> dict[str, Any]:
    step = make(kind)
    for _ in range(3):  # DDP makes its buckets anew in the second
        step()
    if kind == "cuda":
        # The first ones stayed in memory for two or more steps, or until this wait: as if NCCL's
        # thread let go of them when it looks again, and a call is made after that.
        torch.cuda.synchronize()
        time.sleep(1)
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    whole, host = seconds(step, kind)
    row: dict[str, Any] = {"how": name, "seconds": whole, "host_seconds": host}
    if kind == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row |= profiled(step)
    return row


def compressions(gradient: torch.Tensor) -> dict[str, Step]:
    """Return what makes a bucket smaller, by name; nothing is sent."""
    count = int(SHARE * len(gradient))
    matrix = gradient.view(-1, 1000)
    thin = torch.randn(1000, 1, device=gradient.device)

    def top_k() -> None:
        left = gradient.clone()
        places = left.abs().topk(count).indices
        values = left[places]
        left[places] = 0
        torch.zeros_like(gradient).index_add_(0, places, values)

    def power_sgd() -> None:
        p = torch.linalg.qr(matrix @ thin).Q
        q = matrix.T @ p
        matrix.sub(p @ q.T)  # the residual

    return {
        "Top-K": top_k,
        "bfloat16": lambda: gradient.bfloat16().float(),
        "PowerSGD, rank 1": power_sgd,
    }


def measure(chosen: Sequence[str]) -> list[dict[str, Any]]:
    """Measure these ways on each rank, or compression where there are none."""
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    found = [measured(name, ways()[name], kind) for name in chosen]
    for megabytes in () if chosen else SIZES[kind]:
        gradient = torch.randn(megabytes * 250_000, device=kind)
        for name, compress in compressions(gradient).items():
            compress()
            took, _ = seconds(compress, kind)
            found.append({"how": name, "megabytes": megabytes, "seconds": took})
    return found


def run(machine: Machine, nproc: int) -> list[Result]:
    kind = "cuda" if machine.gpus else "cpu"
    taken = partial(of_rank_0, measure, machine=machine, nproc=nproc)
    # On a GPU each has processes of its own: hooks keep models alive, and so their memory.
    together = [[name] for name in ways()] if kind == "cuda" else [list(ways())]
    content = {
        "world_size": nproc,
        "model": f"{LAYERS} layers of {WIDTH[kind]} squared, as many rows",
        "steps": [step for chosen in together for step in taken(chosen)],
        "share": SHARE,
        "compressed": taken([]),
    }
    what = f"a step of {LAYERS} layers, data parallel in {len(ways())} ways, on {nproc} ranks"
    return [Result(f"data-parallel/{device_name(machine)}-x{nproc}.json", what, content)]


EXPERIMENT = Experiment(
    "data-parallel",
    "a training step under DDP, FSDP2 and by hand; what compression takes",
    minutes=2,
    run=run,
    gpus=False,
    writes={
        "data-parallel/*-x[0-9]*.json": ("world_size", "model", "steps", "share", "compressed"),
    },
)
