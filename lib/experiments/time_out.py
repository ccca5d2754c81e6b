"""The time that a process group waits before it gives up, as its options say."""

from __future__ import annotations

import torch.distributed as dist
from lockstep import device, torchrun
from lockstep.base.machine import Machine

from .experiment import Experiment, Result


def minutes() -> float:
    world = dist.group.WORLD
    assert world is not None
    seconds: float = world._get_backend(device()).options._timeout.total_seconds()
    return seconds / 60


def answers(backend: str) -> dict[str, float]:
    return {backend: torchrun(minutes, nproc_per_node=1, backend=backend, show=False)[0]}


def run(_: Machine, nproc: int) -> list[Result]:
    what = "minutes until a process group under NCCL gives up, as its options say"
    return [Result("backends/time-out-nccl.json", what, answers("nccl"))]


EXPERIMENT = Experiment(
    "time-out",
    "minutes until a process group under NCCL gives up",
    minutes=1,
    run=run,
    most=1,
    ranks=1,
    writes={
        "backends/time-out-nccl.json": ("nccl",),
    },
)
