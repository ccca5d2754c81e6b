"""A data-parallel program whose batches grow, in little memory: a case of lab 07, and two remedies.

Under PyTorch's own torchrun, so that nothing of Lockstep is in the traces. Batches are longer in
each step, so that no block that the allocator keeps is large enough for the next one; it has to
give them back to the driver first, because the process may not have more memory. The same with
`expandable_segments`, and with all batches padded to the longest.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ..machine import Machine
from .experiment import Experiment, ExperimentFailed, Result, by_torchrun
from .traces import DTYPE, mlp, traces

FIRST, MORE = 4096, 256  # rows of the first batch, and how many more each time
SLACKS = (1.25, 1.5, 2.0)
STEPS, TIMED = 4, 16  # recorded; timed without a profiler
WAYS = ("growing", "expandable", "padded")


class Program:
    """A step whose batch has a given number of rows."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(mlp(), bucket_cap_mb=25)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, rows: int) -> None:
        with record_function("input"):
            x_BD = torch.ones(rows, 2048, device="cuda", dtype=DTYPE)
        with record_function("forward"):
            loss = self.model(x_BD).float().square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()


def in_little_memory(lengths: Sequence[int]) -> tuple[Program, float, int]:
    """A program that has run all lengths in the least of SLACKS times what the longest needs.

    Returns it, that factor, and the bytes that the process may have.
    """
    total = torch.cuda.get_device_properties(0).total_memory
    program = Program()
    program.step(lengths[-1])
    torch.cuda.synchronize()
    needed = torch.cuda.max_memory_allocated()
    for slack in SLACKS:
        del program
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(slack * needed / total)
        program = Program()
        try:
            for rows in lengths:
                program.step(rows)
        except torch.OutOfMemoryError:
            continue
        return program, slack, int(slack * needed)
    raise ExperimentFailed(f"{SLACKS[-1]} times of what the longest batch needs is too little")


def trace_all(folder: Path, way: str) -> None:
    """What each rank does: leaves its trace and its numbers."""
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    lengths = [FIRST + MORE * number for number in range(TIMED)]
    program, slack, allowed = in_little_memory(lengths)
    rows = [lengths[-1]] * TIMED if way == "padded" else lengths
    for one in rows[:2]:
        program.step(one)
    before = dict(torch.cuda.memory_stats())
    seconds = []
    for one in rows:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        program.step(one)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    after = torch.cuda.memory_stats()
    counts = {
        name: after[name] - before[name]
        for name in ("num_alloc_retries", "num_device_alloc", "num_device_free")
    }
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, schedule=plan, record_shapes=True) as profiler:
        for one in rows[4 : 6 + STEPS]:
            program.step(one)
            torch.cuda.synchronize()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    if rank == 0:
        told = {
            "slack": slack,
            "allowed_bytes": allowed,
            "rows": rows,
            "step_seconds": seconds,
            **counts,
        }
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
            settings = "expandable_segments:True" if way == "expandable" else None
            environment = {"PYTORCH_CUDA_ALLOC_CONF": settings}
            by_torchrun(__name__, folder, way, nproc=nproc, environment=environment)
            numbers[way] = json.loads(Path(name, f"{way}.json").read_text())
        what = (
            f"{STEPS} steps of a 10-layer MLP with DDP, whose batch grows by {MORE} rows a step, "
            f"in {numbers['growing']['slack']} times the memory that the longest batch needs"
        )
        results = [Result("traces/cases/growing", what, traces(Path(name, "growing")))]
    what = (
        f"{TIMED} steps of that program without the profiler, with expandable_segments, and with "
        "all batches padded to the longest: seconds, and what the allocator asked of the driver"
    )
    return [*results, Result("traces/growing.json", what, numbers)]


EXPERIMENT = Experiment(
    "thrashing",
    "a trace of a program with growing batches in little memory, for lab 07, and two remedies",
    minutes=1,
    run=run,
    ranks=1,
)


if __name__ == "__main__":  # a rank
    trace_all(Path(sys.argv[1]), sys.argv[2])
