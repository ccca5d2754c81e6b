"""Cold starts of ranks that compile: who compiles, and what a folder that they share saves.

Each start is a job of fresh processes. "seconds" is a rank's, from a barrier to the first result of
a compiled step with collectives in it; "parts" is what PyTorch's own clocks say of it.
"""

from __future__ import annotations

import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.course.compiled import CPU_ALONE, require, variables
from lockstep.launch import torchrun

from .experiment import Experiment, Result, device_name

LIMIT = 200.0
WIDTH, BLOCKS = 256, 2


def first_step(folder: Path, each_its_own: bool) -> dict[str, Any]:
    """Compile and run a step; tell seconds, and how often Inductor found its code in a cache."""
    from torch._dynamo.utils import compilation_time_metrics, counters

    rank, on_gpu = dist.get_rank(), dist.get_backend() == "nccl"
    device = torch.device("cuda" if on_gpu else "cpu")
    if not on_gpu:
        require()
    if each_its_own:
        os.environ |= variables(folder / f"rank{rank}")
    weights = [torch.randn(WIDTH, WIDTH, device=device) / WIDTH for _ in range(BLOCKS)]
    x = torch.ones(8, WIDTH, device=device)
    dist.all_reduce(x)

    @torch.compile(dynamic=False)
    def step(x: torch.Tensor) -> torch.Tensor:
        for at, weight in enumerate(weights):
            y = torch.nn.functional.gelu(x @ weight) * (at + 1)
            dist.all_reduce(y)
            x = (x + y).softmax(-1) * y.sin()
        return x

    dist.barrier()
    begin = time.perf_counter()
    with torch.no_grad():
        float(step(x).sum())
    seconds = time.perf_counter() - begin
    inductor = counters["inductor"]
    return {
        "seconds": seconds,
        "hits": inductor["fxgraph_cache_hit"],
        "misses": inductor["fxgraph_cache_miss"],
        "bypasses": inductor["fxgraph_cache_bypass"],
        "parts": {name: sum(took) for name, took in compilation_time_metrics.items()},
    }


def start(folder: Path, nproc: int, backend: str, each_its_own: bool = False) -> dict[str, Any]:
    """Start ranks that compile; returns what each tells, and how many binaries there are."""
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    job = torchrun(
        first_step, folder, each_its_own,
        nproc_per_node=nproc, backend=backend, show=False, timeout=LIMIT, may_fail=True,
        env=variables(folder / "all"),
    )  # fmt: skip
    found: dict[str, Any] = {"seconds": time.perf_counter() - began}
    found |= {"ranks": job.results} if job.ok else {"failed": job.report}
    binaries = [file for file in folder.rglob("*") if file.suffix in (".so", ".cubin", ".hsaco")]
    return found | {"binaries": len(binaries)}


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    backend, name = ("nccl", device_name(machine)) if machine.gpus else ("gloo", "cpu")
    file = f"compile/cold-{name}-x{nproc}.json"
    what = f"cold starts of {nproc} ranks that compile: with a folder for all, and one for each"
    content: dict[str, Any] = {"world_size": nproc, "starts": {}}
    with tempfile.TemporaryDirectory(prefix="lockstep-cold-") as place:
        folder = Path(place)
        starts: dict[str, tuple[Any, ...]] = {
            "one rank": (folder / "one", 1),
            "a folder for all": (folder / "all", nproc),
            "the same folder again": (folder / "all", nproc),
            "a folder each": (folder / "each", nproc, True),
        }
        for which, (where, count, *own) in starts.items():
            try:
                content["starts"][which] = start(where, count, backend, *own)
            except Exception:  # the other starts are still wanted
                content["starts"][which] = {"failed": traceback.format_exc()}
            yield Result(file, what, content, {} if machine.gpus else dict(CPU_ALONE))


EXPERIMENT = Experiment(
    "cold-start",
    "ranks that compile for the first time: with a cache for all, and with one each",
    minutes=2,
    run=run,
    gpus=False,
    least=2,
    writes={"compile/cold-*.json": ("world_size", "starts")},
)
