"""The choices of a learner who starts ranks: the options of `torchrun()` and the magic."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .errors import LaunchError
from .logs import Logs

if TYPE_CHECKING:
    from .cluster.slurm import Slurm
    from .nodes.remote import Nodes

BACKENDS = ("auto", "gloo", "nccl")
ENGINES = ("warm", "torchrun")
Tracing: TypeAlias = bool | str | os.PathLike[str]  # whether, or where, to keep profiles


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that `torchrun()` describes.

    Raises LaunchError for what makes no sense on any machine.
    """

    nproc_per_node: int | str = 4
    backend: str = "auto"
    init: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    engine: str = "warm"
    max_restarts: int = 0
    timeout: float | None = None
    may_fail: bool = False
    trace: Tracing = False
    logs: Logs = field(default_factory=Logs)
    show: bool = True
    on: Nodes | Slurm | None = None
    note: str = ""  # for the learner, to be shown with the job

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise LaunchError(
                f"there is no backend {self.backend!r} here; there are {', '.join(BACKENDS)}. "
                "For another one, create the process group yourself: init=False, or "
                "--no-init in a cell."
            )
        if self.engine not in ENGINES:
            raise LaunchError(
                f"there is no engine {self.engine!r}; there are {' and '.join(ENGINES)}"
            )
        if self.max_restarts and self.engine != "torchrun":
            raise LaunchError(
                "max_restarts needs engine='torchrun': the elastic agent restarts ranks"
            )
        if self.engine == "torchrun" and self.on is not None:
            raise LaunchError("engine='torchrun' starts ranks on this host only; leave out `on`")
        if self.timeout is not None and self.timeout <= 0:
            raise LaunchError(f"timeout must be a positive number of seconds, not {self.timeout:g}")
