"""A fresh cell with ranks in reserve and without, in one run, by turns.

"off": no reserve. "ready": the learner has read as long as the reserve needs to come up. "at once":
the next cell comes as soon as one ends. "behind": the same, where the reserve comes up behind the
running cell; what that does to the cell, the latencies of small all-reduces say.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Sequence
from typing import Any

from lockstep.base.machine import Machine, gpu_memory_in_use
from lockstep.launch import sources
from lockstep.launch.cell import Cell
from lockstep.launch.job import Job
from lockstep.launch.options import Options
from lockstep.launch.reserve import kept
from lockstep.launch.reserve import reserve as set_reserve
from lockstep.launch.run import run_cell

from .experiment import Experiment, Result, device_name

WAYS = ("off", "ready", "at once", "behind")
TIMES = 6
PATIENCE = 60.0  # seconds for a reserve to come up
# Cells, because a rank would have to import a module first.
REDUCE = """\
import time
began = time.perf_counter()
import torch, torch.distributed as dist
x = torch.ones(1 << 10, device=f"cuda:{dist.get_rank()}" if dist.get_backend() == "nccl" else "cpu")
dist.all_reduce(x)
assert x[0].item() == dist.get_world_size()
time.perf_counter() - began
"""
LATENCIES = """\
import time
import torch, torch.distributed as dist
x = torch.ones(1 << 10, device=f"cuda:{dist.get_rank()}" if dist.get_backend() == "nccl" else "cpu")
found, began = [], time.perf_counter()
going = torch.ones(1, device=x.device)
while going.item():
    for _ in range(100):
        start = time.perf_counter()
        dist.all_reduce(x)
        x[0].item()
        found.append(time.perf_counter() - start)
    going.fill_(float(time.perf_counter() - began < SECONDS))
    dist.all_reduce(going, op=dist.ReduceOp.MIN)
found
"""


def cell(source: str, nproc: int, backend: str, **values: Any) -> Job:
    """Run a job that is shown, as a cell's is; its lines go nowhere."""
    name = "cell-1"
    sources.remember(name, source)
    options = Options(nproc_per_node=nproc, backend=backend)
    with contextlib.redirect_stdout(io.StringIO()):
        return run_cell(Cell(source, name), values, options)


def timed(nproc: int, backend: str) -> dict[str, float]:
    """Time a cell with an all-reduce: seconds of all of it, of its job, on its slowest rank."""
    began = time.perf_counter()
    job = cell(REDUCE, nproc, backend)
    whole = time.perf_counter() - began
    return {"cell": whole, "job": job.seconds, "first all_reduce": max(job.results)}


def come_up() -> float:
    """Wait for the reserve; returns the seconds, NaN where it did not come."""
    began = time.perf_counter()
    while not kept.is_ready:
        if time.perf_counter() - began > PATIENCE:
            return float("nan")
        time.sleep(0.01)
    return time.perf_counter() - began


def measure(nproc: int, backend: str, times: int = TIMES, seconds: float = 2.5) -> dict[str, Any]:
    """Return medians and each cell's seconds; bytes in use; latencies under a job of `seconds`."""
    found: dict[str, Any] = {"ranks": nproc, "backend": backend}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    waits: list[float] = []
    try:
        set_reserve("off")
        cell(REDUCE, nproc, backend)  # wakes the forkserver
        found["bytes in use without"] = gpu_memory_in_use()
        for _ in range(2):  # by turns, for what else the machine does
            set_reserve("off")
            runs["off"] += [timed(nproc, backend) for _ in range(times // 2)]
            set_reserve("between")
            cell(REDUCE, nproc, backend)
            for _ in range(times // 2):
                waits.append(come_up())
                runs["ready"].append(timed(nproc, backend))
        come_up()
        found["bytes in use with a reserve"] = gpu_memory_in_use()
        found["seconds until it is ready"] = statistics.median(waits)
        for name, when in (("at once", "between"), ("behind", "behind")):
            set_reserve("off")
            set_reserve(when)
            cell(REDUCE, nproc, backend)
            runs[name] = [timed(nproc, backend) for _ in range(4)]
        for name, rows in runs.items():
            found[name] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            found[f"{name}, all"] = [row["cell"] for row in rows]
        for when in ("off", "behind"):
            set_reserve("off")
            set_reserve(when)
            took = cell(LATENCIES, nproc, backend, SECONDS=seconds).results[0][10:]
            found[f"all_reduce of 4 KiB, reserve {when}"] = _spread(took)
    finally:
        set_reserve("off")
        set_reserve()
    return found


def _spread(took: Sequence[float]) -> dict[str, float]:
    ordered = sorted(took)
    shares = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999}
    said = {name: ordered[int(len(ordered) * share)] for name, share in shares.items()}
    return {**said, "slowest": ordered[-1], "n": len(ordered)}


def run(machine: Machine, nproc: int) -> list[Result]:
    found = measure(nproc, "nccl" if machine.gpus else "gloo")
    what = "a fresh cell with ranks in reserve and without: seconds, memory, latencies meanwhile"
    return [Result(f"launch/reserve-{device_name(machine)}-x{nproc}.json", what, found)]


EXPERIMENT = Experiment(
    "reserve",
    "a fresh cell with ranks in reserve and without",
    minutes=1,
    run=run,
    least=2,
    gpus=False,
    writes={
        "launch/reserve-*.json": (
            "ranks",
            "backend",
            "bytes in use with*",
            "seconds until it is ready",
            *(f"{name}{all_of}" for name in WAYS for all_of in ("", ", all")),
            "all_reduce of 4 KiB, reserve *",
        ),
    },
)
