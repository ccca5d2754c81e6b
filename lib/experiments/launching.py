"""The cost of fresh and kept ranks on GPUs, and how failures under NCCL read.

On all ranks, on half of them and on one. A cell on kept ranks is timed from Python: a notebook
adds the messages of its kernel.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import World, sources, torchrun
from lockstep.launch.cell import Cell
from lockstep.launch.options import Options
from lockstep.launch.run import run_cell

from .experiment import Experiment, Result, device_name


def phases() -> dict[str, float]:
    """Return the seconds that a rank spends on each step from nothing to its second all-reduce."""
    marks = {"start": time.perf_counter()}
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    x = torch.ones(1 << 20, device=device)
    torch.cuda.synchronize()
    marks["CUDA context"] = time.perf_counter()
    dist.init_process_group("nccl", device_id=device)
    marks["init_process_group"] = time.perf_counter()
    for name in ("first all_reduce", "second all_reduce"):
        dist.all_reduce(x)
        torch.cuda.synchronize()
        marks[name] = time.perf_counter()
    steps = list(marks)
    return {b: marks[b] - marks[a] for a, b in itertools.pairwise(steps)}


def fresh(nproc: int, times: int = 3) -> dict[str, float]:
    """Time fresh ranks: medians of the runs, of the slowest rank in each."""
    runs = []
    for _ in range(times):
        began = time.perf_counter()
        job = torchrun(phases, nproc_per_node=nproc, init=False, show=False)
        whole = time.perf_counter() - began
        slowest = {step: max(r[step] for r in job.results) for step in job.results[0]}
        runs.append({"cell to result": whole, **slowest, "teardown": whole - job.seconds})
    return {step: statistics.median(run[step] for run in runs) for step in runs[0]}


WORLD_CELL = """\
import torch, torch.distributed as dist, lockstep
x = torch.ones(1 << 20, device=lockstep.device())
dist.all_reduce(x)
x[0].item()
"""


def world(nproc: int, backend: str = "nccl", times: int = 20) -> dict[str, float]:
    """Time a cell with an all-reduce on ranks that stay."""
    cell = Cell(WORLD_CELL, "cell-1")
    kept = World(nproc, backend=backend)

    def seconds() -> float:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):  # the job's lines
            kept.run_cell(cell, {}, Options())
        return time.perf_counter() - began

    with kept:
        first = seconds()
        later = [seconds() for _ in range(times)]
        began = time.perf_counter()
        kept.close()
        return {
            "first cell": first,
            "second cell": later[0],
            "later cells, median": statistics.median(later),
            "later cells, slowest": max(later),
            "close": time.perf_counter() - began,
        }


# Cells, because a report names the place, and reports leave out Lockstep's own files. The last line
# of each waits for the GPU.
FAILURES = {
    "raises": """\
import torch, torch.distributed as dist, lockstep
x = torch.ones(8, device=lockstep.device())
if dist.get_rank() == 1:
    raise ValueError("on purpose")
dist.all_reduce(x)
x.sum().item()
""",
    "different": """\
import torch, torch.distributed as dist, lockstep
x = torch.ones(8, device=lockstep.device())
if dist.get_rank() == 0:
    dist.all_reduce(x)
else:
    dist.broadcast(x, 0)
x.sum().item()
""",
    "early": """\
import torch, torch.distributed as dist, lockstep
x = torch.ones(8, device=lockstep.device())
dist.all_reduce(x)
if dist.get_rank() != 1:
    dist.all_reduce(x)
x.sum().item()
""",
    "all_send": """\
import torch, torch.distributed as dist, lockstep
x = torch.ones(1 << 24, device=lockstep.device())
y = torch.empty_like(x)
n, rank = dist.get_world_size(), dist.get_rank()
dist.send(x, (rank + 1) % n)
dist.recv(y, (rank - 1) % n)
y.sum().item()
""",
}
# Only GPUs have this one.
GRAPH_OUTLIVES_GROUP = """\
import torch, torch.distributed as dist, lockstep
x = torch.ones(8, device=lockstep.device())
dist.all_reduce(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(x)
graph.replay()
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def failures(cells: Mapping[str, str], nproc: int, backend: str = "nccl") -> dict[str, Any]:
    """Return the report of each cell, and after how many seconds it was there."""
    told = {}
    for name, source in cells.items():
        cell = Cell(source, f"cell-{name}")
        sources.remember(cell.filename, source)
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):  # the job's lines, which end in the report
            options = Options(nproc_per_node=nproc, backend=backend, timeout=20, may_fail=True)
            job = run_cell(cell, {}, options)
        seconds = time.perf_counter() - began
        told[name] = {"seconds": seconds, "report": job.report or "(no failure)"}
    return told


def run(machine: Machine, nproc: int) -> list[Result]:
    found: dict[str, Any] = {"unit": "seconds, median of the runs, slowest rank"}
    for count in sorted({1, max(1, nproc // 2), nproc}):
        found[f"fresh, {count}"] = fresh(count)
        found[f"world, {count}"] = world(count)
    if nproc > 1:
        cells = {**FAILURES, "graph_outlives_group": GRAPH_OUTLIVES_GROUP}
        found["failures"] = failures(cells, nproc)
    file = f"launch/{device_name(machine)}-x{nproc}.json"
    return [Result(file, "fresh and kept ranks, phases of a start, failures under NCCL", found)]


EXPERIMENT = Experiment(
    "launch",
    "what fresh and kept ranks cost, and how failures read",
    minutes=3,
    run=run,
    writes={
        "launch/*-x[0-9]*.json": ("unit", "fresh, *", "world, *", "failures"),
    },
)
