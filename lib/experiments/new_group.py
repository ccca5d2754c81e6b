"""A question of lab 01: what does `new_group` do when only its members call it?"""

from __future__ import annotations

from typing import Any

from lockstep.base.machine import Machine
from lockstep.launch import sources, torchrun

from .experiment import Experiment, Result

# A cell as in lab 01, because the report names the place: reports leave out Lockstep's own files.
CELL = """\
def only_members():
    import torch
    import torch.distributed as dist

    x = torch.ones(1, device=lockstep.device())
    if dist.get_rank() < 2:
        pair = dist.new_group([0, 1])
        dist.all_reduce(x, group=pair)
"""


def answers(backend: str, nproc: int) -> dict[str, Any]:
    """Whether it ended well, and the report if not."""
    sources.remember("cell-1", CELL)
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("import lockstep", "cell-0", "exec"), notebook)
    exec(compile(CELL, "cell-1", "exec"), notebook)
    options: dict[str, Any] = {"nproc_per_node": nproc, "backend": backend, "show": False}
    job = torchrun(notebook["only_members"], timeout=30, may_fail=True, **options)
    return {"ok": job.ok, "report": job.report}


def run(_: Machine, nproc: int) -> list[Result]:
    what = "new_group under NCCL when only its members call it"
    return [Result("backends/new-group-nccl.json", what, answers("nccl", nproc))]


EXPERIMENT = Experiment(
    "new-group",
    "new_group under NCCL when only its members call it",
    minutes=1,
    run=run,
    least=3,
    ranks=4,
    writes={
        "backends/new-group-nccl.json": ("ok", "report"),
    },
)
