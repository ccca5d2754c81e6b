"""A step compiled ahead of time: one rank compiles its part of a cut layer, and all load the file.

"seconds" are a rank's; "off" is the largest difference from the same step in eager mode: with the
weights that the file brought, which are the compiling rank's, and with the rank's own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.course.compiled import CPU_ALONE, variables
from lockstep.launch import torchrun
from torch.distributed import _functional_collectives as functional

from .experiment import Experiment, Result, device_name

LIMIT = 200.0
ROWS, WIDTH = 8, 256


class Cut(torch.nn.Module):
    """An MLP cut by columns and rows, with this rank's part of the weights."""

    def __init__(self) -> None:
        super().__init__()
        part = WIDTH // dist.get_world_size()
        self.first = torch.nn.Linear(WIDTH, part, bias=False)
        self.second = torch.nn.Linear(part, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, group = self.second(torch.relu(self.first(x))), dist.group.WORLD
        assert group is not None
        return x + functional.all_reduce(y, "sum", group)


@torch.no_grad()
def served(folder: Path) -> dict[str, Any]:
    """Compile on rank 0, load everywhere; tell how long that takes, and how far off results are."""
    torch.manual_seed(dist.get_rank())
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    model, x = Cut().to(device), torch.ones(ROWS, WIDTH, device=device)
    right, package = model(x), folder / "step.pt2"
    seconds: dict[str, float] = {}

    def taken(what: str, work: Callable[[], Any]) -> Any:
        dist.barrier()
        begin = time.perf_counter()
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds[what] = time.perf_counter() - begin
        return result

    if dist.get_rank() == 0:
        begin = time.perf_counter()
        program = torch.export.export(model, (x,))
        torch._inductor.aoti_compile_and_package(program, package_path=str(package))
        seconds["compile"] = time.perf_counter() - begin
    loaded = taken("load", lambda: torch._inductor.aoti_load_package(str(package)))
    found = taken("first step", lambda: loaded(x))
    off = {"weights of the file": (found - right).abs().max().item()}
    own = dict(model.state_dict())
    taken("weights", lambda: loaded.load_constants(own, check_full_update=True))
    off["its own weights"] = (taken("step", lambda: loaded(x)) - right).abs().max().item()
    return {"seconds": seconds, "off": off, "bytes": package.stat().st_size}


def run(machine: Machine, nproc: int) -> list[Result]:
    backend, name = ("nccl", device_name(machine)) if machine.gpus else ("gloo", "cpu")
    with tempfile.TemporaryDirectory(prefix="lockstep-aot-") as place:
        folder = Path(place)
        job = torchrun(
            served, folder,
            nproc_per_node=nproc, backend=backend, show=False, timeout=LIMIT,
            env=variables(folder / "cache"),
        )  # fmt: skip
    what = f"a step compiled ahead of time by one of {nproc} ranks, and loaded by all"
    content = {"world_size": nproc, "ranks": job.results}
    own = {} if machine.gpus else dict(CPU_ALONE)
    return [Result(f"compile/ahead-{name}-x{nproc}.json", what, content, own)]


EXPERIMENT = Experiment(
    "ahead-of-time",
    "a step compiled ahead of time by one rank, and loaded by all",
    minutes=1,
    run=run,
    gpus=False,
    least=2,
    writes={"compile/ahead-*.json": ("world_size", "ranks")},
)
