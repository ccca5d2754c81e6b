"""Lockstep: hands-on labs for multi-GPU PyTorch.

`%load_ext lockstep` gives notebooks the magics `%%torchrun`, for a cell, and `%torchrun`, for a
script; `torchrun()` does the same for a function or a script. Importing this package does not
import torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import virtual
from .base.provenance import live, published, recorded, simulated
from .course import (
    capstone,
    labs,  # noqa: F401 - they register their exercises
)
from .course.doctor import Diagnosis
from .course.exercises import carry_on, check, hint, solution
from .course.predict import claim, compare
from .course.progress import Progress
from .figures import interactive
from .figures.buffers import buffers
from .figures.chart import chart
from .figures.grid import grid
from .figures.picture import PALETTE, figure
from .figures.table import table
from .launch import (
    CannotSend,
    Job,
    JobFailed,
    JobInterrupted,
    LaunchError,
    Logs,
    Nodes,
    RankError,
    ResultNotSent,
    Slurm,
    World,
    cluster,
    gpu_count,
    reserve,
    torchrun,
)
from .models import cost, pipeline
from .trace import Trace
from .trace.gate import gate

__version__ = "0.1.0"
__all__ = [
    "PALETTE",
    "CannotSend",
    "Job",
    "JobFailed",
    "JobInterrupted",
    "LaunchError",
    "Logs",
    "Nodes",
    "RankError",
    "ResultNotSent",
    "Slurm",
    "Timeline",
    "Trace",
    "World",
    "buffers",
    "capstone",
    "carry_on",
    "chart",
    "check",
    "claim",
    "cluster",
    "compare",
    "cost",
    "cuda",
    "device",
    "doctor",
    "figure",
    "gate",
    "gpu_count",
    "grid",
    "hint",
    "interactive",
    "live",
    "pipeline",
    "progress",
    "published",
    "recorded",
    "reserve",
    "simulated",
    "solution",
    "step",
    "table",
    "torchrun",
    "virtual",
]


def doctor() -> Diagnosis:
    """Find out what works on this machine and how to fix the rest; the result draws itself.

    A rank examines the machine, so that the notebook's own process stays free of torch and CUDA.
    """
    from .base.machine import probe
    from .course.doctor import diagnose, held_in_reserve

    machine = torchrun(probe, nproc_per_node=1, init=False, show=False).results[0]
    return diagnose(machine, reserved=held_in_reserve(machine))


def progress(lab: str | None = None) -> Progress:
    """Return which exercises you have done, of all labs or of one ("01" or "1"); the result draws
    itself.

    In a notebook the picture follows your later checks. Raises ValueError for an unknown lab.
    """
    from .course.exercises import exercises
    from .course.progress import LabExercises
    from .course.syllabus import LABS

    course = [
        LabExercises(
            one.number,
            one.title,
            tuple(exercise.name for exercise in exercises() if exercise.lab == one.number),
            frozenset(exercise.name for exercise in exercises() if exercise.further),
        )
        for one in LABS
        if lab is None or lab.zfill(2) == one.number
    ]
    if not course:
        known = ", ".join(one.number for one in LABS)
        raise ValueError(f"there is no lab {lab!r}; there are: {known}")
    return Progress(course)


def cuda(*, virtual: bool | None = None) -> Any:
    """Return `torch.cuda` where there is a GPU, else a virtual GPU with the same names.

    virtual=True, or LOCKSTEP_VIRTUAL=1 in the environment: the virtual one in any case. It stays
    until the process ends; `lockstep.virtual.device` makes one for part of a program. From then on
    `lockstep.device()` is this GPU. Call it in a rank, never in the notebook's process.
    """
    import os

    import torch

    from .virtual import is_on, switch_on

    if virtual is None:
        virtual = is_on() or os.environ.get("LOCKSTEP_VIRTUAL") == "1"
        virtual = virtual or not torch.cuda.is_available()
    return switch_on() if virtual else torch.cuda


def device() -> Any:
    """Return the device of this rank (a `torch.device`): its GPU under NCCL, the CPU under gloo.

    After `lockstep.cuda()` has made a virtual GPU, return that one.
    """
    import os

    import torch
    import torch.distributed as dist

    from .virtual import gpu, is_on

    if is_on():
        return gpu()

    if dist.is_initialized() and dist.get_backend() != "nccl":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


@contextlib.contextmanager
def step(number: int) -> Iterator[None]:
    """Mark a block as step `number` of this rank in a trace: `with lockstep.step(3):`

    It makes the same annotation as torch.profiler's own schedule.
    """
    import torch

    with torch.profiler.record_function(f"ProfilerStep#{number}"):
        yield


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "Timeline":  # with widgets and matplotlib, which not every use needs
        from .timeline import Timeline

        return Timeline
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, and hide answers until they are predicted; `%load_ext lockstep`."""
    from .course import spoiler
    from .magic import load_ipython_extension as load

    load(shell)
    spoiler.watch(shell)
