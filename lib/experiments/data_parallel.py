"""A training step, data parallel in several ways; what FSDP2, compression and BatchNorm take.

Each way is timed on the slowest rank, and seen by the profiler: how long collectives run, how much
of that nothing hides, how many there are; and how many bytes are alive when the step begins, after
its forward pass, and at most. A wide model is sharded, too, as a narrow one's GPU waits for the
host. Under gloo the layers are small, and steps are only timed. PyTorch's torchrun starts the
ranks, because Lockstep's record of calls takes time of the host.
"""

from __future__ import annotations

import cProfile
import gc
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.trace import Kind, Trace
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from .experiment import Experiment, Result, by_torchrun, device_name, guarded, join, traces_in

FIRST, EACH = 1, 4  # layers in the first bucket, and in each other one
MEGABYTES = {"cuda": (1, 25, 100), "cpu": (1,)}  # of a bucket that is compressed
SHARE = 0.01  # of a bucket that Top-K keeps
STEPS = {"cuda": 11, "cpu": 3}
PROFILED = 2  # steps
LONGEST = 8  # rows of what the host's time goes to
KEPT = {  # ways whose traces are kept, and their folders
    "own buckets": "own-buckets",
    "DDP": "ddp",
    "FSDP2, block by block": "fsdp2",
}

Step = Callable[[], object]
Finish = Callable[[], object]  # what follows the backward pass


@dataclass(frozen=True)
class Shape:
    """A model of equal square layers, and the rows of a step."""

    kind: str  # of device
    layers: int
    width: int
    rows: int
    dtype: torch.dtype

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.layers} layers of {self.width} squared, {self.rows} rows, {dtype}"

    def model(self) -> torch.nn.Sequential:
        how: dict[str, Any] = {"bias": False, "device": self.kind, "dtype": self.dtype}
        layers = (torch.nn.Linear(self.width, self.width, **how) for _ in range(self.layers))
        return torch.nn.Sequential(*layers)


SHAPES = {
    "narrow": {
        "cuda": Shape("cuda", 24, 4096, 4096, torch.bfloat16),
        "cpu": Shape("cpu", 24, 64, 64, torch.float32),
    },
    "wide": {
        "cuda": Shape("cuda", 8, 12_288, 4096, torch.bfloat16),
        "cpu": Shape("cpu", 8, 128, 64, torch.float32),
    },
    "compressed": {
        "cuda": Shape("cuda", 24, 2048, 4096, torch.float32),
        "cpu": Shape("cpu", 4, 64, 64, torch.float32),
    },
}
Way = Callable[[Shape], tuple[torch.nn.Module, Finish]]


def nothing() -> None:
    pass


def in_buckets(layers: torch.nn.Sequential) -> list[list[torch.nn.Parameter]]:
    """The weights from the last layer on, a small bucket first."""
    last_first = list(layers.parameters())[::-1]
    ends = [0, *range(FIRST, len(last_first), EACH), len(last_first)]
    return [last_first[a:b] for a, b in pairwise(ends)]


def replicate(groups: list[list[torch.nn.Parameter]]) -> Finish:
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


def plain(shape: Shape) -> tuple[torch.nn.Module, Finish]:
    return shape.model(), nothing


def afterwards(shape: Shape) -> tuple[torch.nn.Module, Finish]:
    model = shape.model()

    def finish() -> None:
        for weight in reversed(list(model.parameters())):
            dist.all_reduce(weight.grad)

    return model, finish


def by_hand(
    shape: Shape, groups: Callable[[torch.nn.Sequential], Any]
) -> tuple[torch.nn.Module, Finish]:
    model = shape.model()
    return model, replicate(groups(model))


def ddp(shape: Shape, hook: Any = None, **how: Any) -> tuple[torch.nn.Module, Finish]:
    """hook: a communication hook and its state."""
    model = DistributedDataParallel(shape.model(), **how)
    if hook:
        model.register_comm_hook(*hook)
    return model, nothing


def sharded(
    shape: Shape, *, each: int = 1, keep: bool = False, ahead: int = 0
) -> tuple[torch.nn.Module, Finish]:
    """each: layers of a block; 0 for the root alone."""
    model = shape.model()
    blocks: list[Any] = []
    if each:
        layers = list(model)
        parts = [layers[at : at + each] for at in range(0, len(layers), each)]
        blocks = [torch.nn.Sequential(*part) for part in parts]
        model = torch.nn.Sequential(*blocks)
    for block in (*blocks, model):
        fully_shard(block, reshard_after_forward=not keep)
    for at, block in enumerate(blocks if ahead else ()):
        block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + ahead])
        block.set_modules_to_backward_prefetch(blocks[max(0, at - ahead) : at][::-1])
    return model, nothing


def ways() -> dict[str, Way]:
    """Return what is measured, by name; each makes its own model."""
    return {
        "no communication": plain,
        "after the backward": afterwards,
        "gradient by gradient": partial(
            by_hand, groups=lambda model: [[one] for one in reversed(list(model.parameters()))]
        ),
        "own buckets": partial(by_hand, groups=in_buckets),
        "own buckets, wrong order": partial(by_hand, groups=lambda model: in_buckets(model)[::-1]),
        "DDP": ddp,
        "DDP, bucket_cap_mb 1": partial(ddp, bucket_cap_mb=1),
        "DDP, bucket_cap_mb 200": partial(ddp, bucket_cap_mb=200),
        "DDP, gradient_as_bucket_view": partial(ddp, gradient_as_bucket_view=True),
        "DDP, find_unused_parameters": partial(ddp, find_unused_parameters=True),
        "DDP, static_graph": partial(ddp, static_graph=True),
        "FSDP2, one root": partial(sharded, each=0),
        "FSDP2, block by block": sharded,
        "FSDP2, four layers a block": partial(sharded, each=4),
        "FSDP2, gathered until its backward": partial(sharded, keep=True),
        "FSDP2, two blocks ahead": partial(sharded, ahead=2),
    }


def wide_ways() -> dict[str, Way]:
    """Return what is measured with the wide model."""
    names = [
        "no communication",
        "own buckets",
        "DDP",
        "FSDP2, one root",
        "FSDP2, block by block",
        "FSDP2, gathered until its backward",
        "FSDP2, two blocks ahead",
    ]
    return {name: ways()[name] for name in names}


def top_k(state: dict[int, torch.Tensor], bucket: dist.GradBucket) -> Any:
    """Top-K with error feedback, as lab 08's."""
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state.get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(SHARE * len(gradient)))).indices
    values = gradient[places]
    gradient[places] = 0
    state[bucket.index()] = gradient
    all_values = values.new_empty(n * len(values))
    all_places = places.new_empty(n * len(places))
    dist.all_gather_into_tensor(all_values, values)
    dist.all_gather_into_tensor(all_places, places)
    mean = torch.zeros_like(gradient).index_add_(0, all_places, all_values / n)
    future: Any = torch.futures.Future(devices=[mean.device] if mean.is_cuda else None)
    future.set_result(mean)
    return future


def compressed_ways() -> dict[str, Way]:
    """Return DDP with several communication hooks."""
    power = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
    hooks: dict[str, Any] = {
        "nothing": None,
        "float16": (None, default_hooks.fp16_compress_hook),
        "PowerSGD, rank 1": (power, powerSGD_hook.powerSGD_hook),
        "Top-K": ({}, lambda state, bucket: top_k(state, bucket)),  # DDP reads annotations
    }
    return {name: partial(ddp, hook=hook) for name, hook in hooks.items()}


def take(
    model: torch.nn.Module,
    finish: Finish,
    shape: Shape,
    note: Callable[[str], object] = lambda when: None,
) -> None:
    """A step without the optimizer."""
    model.zero_grad()
    note("start")
    x = torch.ones(shape.rows, shape.width, device=shape.kind, dtype=shape.dtype)
    loss = model(x).square().mean()
    note("after_forward")
    loss.backward()
    finish()


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


def let_go() -> None:
    """What a collective used stays in memory until NCCL's thread looks again, and another is
    called."""
    torch.cuda.synchronize()
    time.sleep(0.3)
    dist.barrier()


def peaks(step: Callable[[Callable[[str], object]], object], before: int) -> dict[str, int]:
    """Return the bytes alive beyond `before`, when a step begins, after its forward pass, and at
    most; and how often it asked the driver for memory."""
    let_go()
    step(lambda when: None)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    found: dict[str, int] = {}
    asked = torch.cuda.memory_stats()["num_device_alloc"]
    step(lambda when: found.update({f"{when}_bytes": torch.cuda.memory_allocated() - before}))
    found["peak_bytes"] = torch.cuda.max_memory_allocated() - before
    return {**found, "device_allocations": torch.cuda.memory_stats()["num_device_alloc"] - asked}


def profiled(step: Step) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the profiler sees of steps, each of its numbers a step's, and rank 0's trace.

    transfer_us: of each collective what it took on the rank on which it was quickest, so without
    waiting for others.
    """
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=PROFILED, repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for _ in range(1 + PROFILED):
            step()
            torch.cuda.synchronize()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"rank{dist.get_rank()}.json")
        profiler.export_chrome_trace(str(file))
        trace, content = Trace.load(folder), json.loads(file.read_bytes())
    spent = trace.breakdown().of(dist.get_rank())
    runs = [one.duration for one in trace if one.kind == Kind.COMMUNICATION]
    all_runs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_runs, runs)
    calls = Counter[str]()
    took = Counter[str]()
    for event in content["traceEvents"]:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            calls[event["name"]] += 1
            took[event["name"]] += event["dur"]
    found = {
        "communication_us": spent.communication / 1e3 / PROFILED,
        "exposed_us": (spent.communication - spent.overlapped) / 1e3 / PROFILED,
        "transfer_us": sum(map(min, zip(*all_runs, strict=False))) / 1e3 / PROFILED,
        "collectives": len(runs) / PROFILED,
        "driver": {  # calls of a step, and their time
            name: {"calls": calls[name] / PROFILED, "us": us / PROFILED}
            for name, us in took.most_common(LONGEST)
        },
    }
    return found, content


def python(step: Step) -> dict[str, dict[str, float]]:
    """Return the functions that a step spends most time in, without what they call, by Python's
    profiler, which takes time itself."""
    profile = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):  # it profiles one thread
        profile.runcall(step)
    torch.cuda.synchronize()
    entries: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    longest = sorted(entries.items(), key=lambda one: -one[1][2])[:LONGEST]
    return {
        f"{Path(file).name}:{name}": {"calls": calls, "us": 1e6 * own}
        for (file, _, name), (_, calls, own, *_) in longest
    }


def measured(name: str, make: Way, shape: Shape) -> tuple[dict[str, Any], Any]:
    """Return a way's row, and its trace."""
    cuda, before = shape.kind == "cuda", 0
    if cuda:  # of the way before
        gc.collect()
        let_go()
        before = torch.cuda.memory_allocated()
    model, finish = make(shape)
    step = partial(take, model, finish, shape)
    for _ in range(3):  # DDP makes its buckets anew in the second
        step()
    whole, host = seconds(step, shape.kind)
    row: dict[str, Any] = {"how": name, "seconds": whole, "host_seconds": host}
    if not cuda:
        return row, None
    row |= peaks(step, before)
    if dist.get_rank() == 0:
        print(json.dumps(row), file=sys.stderr, flush=True)  # what follows may fail
    seen, trace = profiled(step)
    return row | seen | {"python": python(step)}, trace


def compressions(gradient: torch.Tensor) -> dict[str, Step]:
    """Return what makes a bucket smaller, by name; nothing is sent."""
    count = int(SHARE * len(gradient))
    matrix = gradient.view(-1, 1000)
    thin = torch.randn(1000, 1, device=gradient.device)

    def largest() -> None:
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
        "Top-K": largest,
        "bfloat16": lambda: gradient.bfloat16().float(),
        "PowerSGD, rank 1": power_sgd,
    }


def compressed(kind: str) -> list[dict[str, Any]]:
    found = []
    for megabytes in MEGABYTES[kind]:
        gradient = torch.randn(megabytes * 250_000, device=kind)
        for name, compress in compressions(gradient).items():
            compress()
            took, _ = seconds(compress, kind)
            found.append({"how": name, "megabytes": megabytes, "seconds": took})
    return found


def normalized(kind: str) -> list[dict[str, Any]]:
    """Return how far gradients are from one process's with BatchNorm and with SyncBatchNorm, and
    the collectives of a step."""
    n, rank = dist.get_world_size(), dist.get_rank()

    def gradient(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        model(rows).square().mean().backward()
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        return torch.cat([grad.flatten() for grad in grads])

    def network() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        return torch.nn.Sequential(*layers).to(kind)

    rows = torch.randn(6 * n, 4, generator=torch.Generator().manual_seed(1)).to(kind)
    right, found = gradient(network(), rows), []
    convert = torch.nn.SyncBatchNorm.convert_sync_batchnorm
    for name in ("BatchNorm", "SyncBatchNorm"):
        model = network() if name == "BatchNorm" else convert(network())
        model = DistributedDataParallel(model)
        gradient(model, rows.chunk(n)[rank])
        with torch.profiler.profile() as profiler:
            ours = gradient(model, rows.chunk(n)[rank])
            synchronize(kind)
        names = [one.name for one in profiler.events() if one.name.startswith("nccl:")]
        off = float((ours - right).norm() / right.norm())
        found.append({"how": name, "off": off, "collectives": dict(Counter(names))})
    return found


def measure(folder: Path) -> None:
    """Measure on each rank of torchrun; rank 0 writes what it found, and ranks their traces."""
    kind = join().type
    rank, n = dist.get_rank(), dist.get_world_size()
    several = kind == "cuda" and n > 1

    def steps_of(shape: Shape, chosen: Mapping[str, Way]) -> list[dict[str, Any]]:
        rows = []
        for name, make in chosen.items():
            row, trace = guarded(name, partial(measured, name, make, shape), (None, None))
            if row:
                rows.append(row)
            if trace and shape == SHAPES["narrow"][kind] and several and name in KEPT:
                (folder / f"{KEPT[name]}-rank{rank}.json").write_text(json.dumps(trace))
        return rows

    shapes = {name: own[kind] for name, own in SHAPES.items()}
    content = {
        "world_size": n,
        "model": str(shapes["narrow"]),
        "steps": steps_of(shapes["narrow"], ways()),
        "wide_model": str(shapes["wide"]),
        "wide": steps_of(shapes["wide"], wide_ways()),
        "hooked_model": str(shapes["compressed"]),
        "hooked": steps_of(shapes["compressed"], compressed_ways()),
        "norm": guarded("BatchNorm", partial(normalized, kind), []) if several else [],
        "share": SHARE,
        "compressed": guarded("compression", partial(compressed, kind), []),
    }
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(content))
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)  # models that are alive when Python ends abort some ranks


def run(machine: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_torchrun(__name__, folder, nproc=nproc, limit=240)
        content = json.loads((folder / "found.json").read_bytes())
        traces = {kept: traces_in(folder, kept, nproc) for kept in KEPT.values()}
    what = f"a step of 24 layers, data parallel in {len(ways())} ways, on {nproc} ranks"
    found = [Result(f"data-parallel/{device_name(machine)}-x{nproc}.json", what, content)]
    for how, kept in KEPT.items():
        if traces[kept]:
            what = f"{PROFILED} steps of {content['model']}: {how}"
            found.append(Result(f"traces/data-parallel/{kept}", what, traces[kept]))
    return found


EXPERIMENT = Experiment(
    "data-parallel",
    "a training step under DDP, FSDP2 and by hand; what compression takes",
    minutes=2,
    run=run,
    gpus=False,
    writes={
        "data-parallel/*-x[0-9]*.json": (
            "world_size", "model", "steps", "wide_model", "wide", "hooked_model", "hooked", "norm",
            "share", "compressed",
        ),
        "traces/data-parallel/*": ("rank*.json.gz",),
    },
)  # fmt: skip


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]))
