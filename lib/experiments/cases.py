"""Three programs on gloo ranks, each with one thing that slows it: cases of lab 07.

Under PyTorch's own torchrun, so that nothing of Lockstep is in the traces. The programs name the
phases of their steps, as programs should, and nothing in the names says what slows them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from .experiment import Experiment, Result, by_torchrun
from .traces import traces

STEPS = 6  # recorded, after warm-up
Step = Callable[[int], None]


def reducing(width: int = 2048) -> Step:
    """Large gradients, reduced when the backward pass is done, of a small batch."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x_BD = torch.randn(1, width)

    def step(_: int) -> None:
        train(model, optimizer, x_BD)

    return step


def compiling(late_rank: int = 2) -> Step:
    """A compiled step whose input has another length each time, on one rank."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    torch._dynamo.config.recompile_limit = 100

    def step(number: int) -> None:
        length = 512 + number if dist.get_rank() == late_rank else 512
        train(compiled, optimizer, torch.ones(length, 256))

    return step


def saving(every: int = 3, width: int = 2048) -> Step:
    """A checkpoint that is written by rank 0, while the others go on to the next step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state = {str(at): torch.randn(width, width) for at in range(8)}
    x_BD = torch.randn(512, 256)

    def step(number: int) -> None:
        train(model, optimizer, x_BD)
        if dist.get_rank() == 0 and number % every == 0:
            with tempfile.TemporaryFile() as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())

    return step


def train(model: Any, optimizer: torch.optim.Optimizer, x_BD: torch.Tensor) -> None:
    with record_function("forward"):
        loss = model(x_BD).square().mean() / dist.get_world_size()
    with record_function("backward"):
        loss.backward()
    with record_function("gradients"):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
    with record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS: dict[str, tuple[Callable[[], Step], str]] = {
    "cases/reducing": (
        reducing,
        "six steps of a 3-layer MLP, width 2048, batch 1 a rank; gradients reduced afterwards",
    ),
    "cases/compiling": (
        compiling,
        'six steps of a model through torch.compile(backend="eager"), whose input on rank 2 has '
        "another length each time",
    ),
    "cases/saving": (
        saving,
        "six steps of a small MLP, of which rank 0 writes 134 MB to disk after every third",
    ),
}


def trace_all(folder: Path) -> None:
    """Trace each program on this rank; leaves a folder a program."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for name, (program, _) in PROGRAMS.items():
        step = program()
        plan = schedule(wait=1, warmup=2, active=STEPS, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
            for number in range(3 + STEPS):
                step(number)
                profiler.step()
        file = folder / name / f"rank{dist.get_rank()}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(file))
        dist.barrier()
    dist.destroy_process_group()


def run(_: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_torchrun(__name__, folder, nproc=nproc)
        return [
            Result(f"traces/{program}", what, traces(folder / program))
            for program, (_, what) in PROGRAMS.items()
        ]


EXPERIMENT = Experiment(
    "cases",
    "traces of three gloo programs, each with one thing that slows it, for lab 07",
    minutes=1,
    run=run,
    least=4,
    ranks=4,
    gpus=False,
    writes={
        **{f"traces/{program}": ("rank*.json.gz",) for program in PROGRAMS},
    },
)


if __name__ == "__main__":  # a rank
    trace_all(Path(sys.argv[1]))
