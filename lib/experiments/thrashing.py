"""A program that gives its memory back after each step: a case of lab 07, and what that costs.

Under PyTorch's own torchrun, so that nothing of Lockstep is in the traces. In "emptied" each step
ends with `torch.cuda.empty_cache()`: the next one has to ask the driver for all its memory again.
"kept" is the same without it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from .experiment import Experiment, Result, by_torchrun
from .traces import DTYPE, mlp, seconds, traces

ROWS, WARM, STEPS, TIMED = 4096, 3, 4, 20  # of a batch; not counted; recorded; timed
WAYS = ("kept", "emptied")


def trace_all(folder: Path, way: str) -> None:
    """Trace the program on this rank; leaves its trace and its numbers."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    model = DistributedDataParallel(mlp(), bucket_cap_mb=25)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        with record_function("input"):
            x_BD = torch.ones(ROWS, 2048, device="cuda", dtype=DTYPE)
        with record_function("forward"):
            loss = model(x_BD).float().square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if way == "emptied":
            del loss, x_BD
            torch.cuda.empty_cache()

    for _ in range(WARM):
        step()
    before = dict(torch.cuda.memory_stats())
    times = seconds(step, TIMED)
    held = torch.cuda.memory_reserved()  # by the process, when a step is over
    after = torch.cuda.memory_stats()
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, schedule=plan, record_shapes=True) as profiler:
        for _ in range(2 + STEPS):
            step()
            torch.cuda.synchronize()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    if rank == 0:
        counts = ("num_device_alloc", "num_device_free")
        told = {"step_seconds": times, "steps": TIMED, "reserved_between_bytes": held}
        told |= {name: after[name] - before[name] for name in counts}
        told["most_reserved_bytes"] = torch.cuda.max_memory_reserved()
        (folder.parent / f"{way}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def run(_: Machine, nproc: int) -> list[Result]:
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for way in WAYS:
            folder = Path(name, way)
            folder.mkdir()
            by_torchrun(__name__, folder, way, nproc=nproc)
            numbers[way] = json.loads(Path(name, f"{way}.json").read_text())
        what = (
            f"{STEPS} steps of a 10-layer MLP with DDP that calls torch.cuda.empty_cache() after "
            "each"
        )
        results = [Result("traces/cases/emptied", what, traces(Path(name, "emptied")))]
    what = (
        f"{TIMED} steps of that program without the profiler, with empty_cache() and without: "
        "seconds, and what the allocator asked of the driver"
    )
    return [*results, Result("traces/emptied.json", what, numbers)]


EXPERIMENT = Experiment(
    "thrashing",
    "a trace of a program that gives its memory back after each step, for lab 07",
    minutes=1,
    run=run,
    least=2,
    ranks=2,
    writes={
        "traces/cases/emptied": ("rank*.json.gz",),
        "traces/emptied.json": ("kept", "emptied"),
    },
)


if __name__ == "__main__":  # a rank
    trace_all(Path(sys.argv[1]), sys.argv[2])
