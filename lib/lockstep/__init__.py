"""Lockstep: hands-on labs for multi-GPU PyTorch.

`%load_ext lockstep` gives notebooks the cell magic `%%torchrun`; `torchrun()` does the same for a
function or a script. Importing this package does not import torch.
"""

from __future__ import annotations

from typing import Any

from .checks import check
from .checkup import Diagnosis
from .labs import lab00  # noqa: F401 - registers its checks
from .launch import (
    CannotSend,
    Job,
    JobFailed,
    JobInterrupted,
    LaunchError,
    ResultNotSent,
    World,
    torchrun,
)
from .predict import compare

__version__ = "0.1.0"
__all__ = [
    "CannotSend",
    "Job",
    "JobFailed",
    "JobInterrupted",
    "LaunchError",
    "ResultNotSent",
    "World",
    "check",
    "compare",
    "device",
    "doctor",
    "torchrun",
]


def doctor() -> Diagnosis:
    """What works on this machine and what to do about the rest; draws itself.

    The machine is looked at from a rank, so that the notebook's own process stays free of torch
    and CUDA.
    """
    from .checkup import diagnose
    from .machine import probe

    return diagnose(torchrun(probe, nproc_per_node=1, init=False, show=False).results[0])


def device() -> Any:
    """The device of this rank (a `torch.device`): its GPU under NCCL, the CPU under gloo."""
    import os

    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() != "nccl":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext lockstep`."""
    from .launch.magic import load_ipython_extension as load

    load(shell)
