"""Finds the hosts that a word means: of the Slurm job that we are in, or of a profile."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import LaunchError
from ..nodes.remote import Nodes
from . import profile
from .slurm import Allocation, Slurm

_standing: dict[tuple[int, int], Allocation] = {}  # by process and number of nodes


def find(on: str | None, nodes: int | None = None) -> Slurm | None:
    """The hosts that `--on` and `--nnodes` mean; None for this one alone.

    "slurm" are the nodes of the Slurm job that this process is in, where it has that many (without
    a number, several), and else those that the profile asks for. Without a word, several nodes are
    those of the job, and one is this host.
    Raises LaunchError where there are no such hosts.
    """
    if on not in ("slurm", None):
        raise LaunchError(f"there is no cluster {on!r}; use slurm, or the name of a variable")
    if on is None and nodes in (None, 1):
        return None
    here = _nodes_of_this_job()
    if (nodes or 2) <= here:  # a notebook that Slurm started has a node, and means others
        return CurrentSlurmJob(nodes=nodes or here)
    if on is None:
        inside = f", and this Slurm job has {here}" if here else ""
        raise LaunchError(
            f"several nodes are asked for ({nodes}){inside}. --on slurm gets them from Slurm; "
            "without Slurm, create nodes = lockstep.Nodes(…), run nodes.command on each, and use "
            "--on nodes"
        )
    wanted = profile.read()
    return wanted if nodes is None else replace(wanted, nodes=nodes)


def cluster(nodes: int = 2) -> Slurm | None:
    """Return nodes of Slurm, for `torchrun(..., on=…)` and `World(on=…)`: those of the Slurm job
    that this process is in, or what the profile of `lockstep cluster init` asks for. Return None
    where there is neither; then `on=lockstep.cluster()` means this host.

    Raises LaunchError for a profile that cannot be read.
    """
    if nodes <= _nodes_of_this_job() or (profile.path().exists() and shutil.which("sbatch")):
        return find("slurm", nodes)
    return None


def resolve_hosts(on: Nodes | Slurm | str | None) -> Nodes | Slurm | None:
    """Return the hosts that `torchrun(..., on=…)` means; a word as for `find`."""
    return find(on) if isinstance(on, str) else on


def _nodes_of_this_job() -> int:
    """Return how many nodes the Slurm job has that this process is in; 0 outside of one."""
    said = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return int(said) if said.isdigit() and os.environ.get("SLURM_JOB_ID") else 0


@dataclass(frozen=True, kw_only=True)
class CurrentSlurmJob(Slurm):
    """Nodes of the Slurm job that this process is in. Agents are started once and stay."""

    each_has = "one of this Slurm job's nodes has"
    no_gpu = Nodes.no_gpu

    def count_gpus(self) -> int:
        with self.lease(1, show=True) as nodes:  # only its agents know
            return nodes.count_gpus()

    def count_cores(self) -> int:
        with self.lease(1, show=True) as nodes:
            return nodes.count_cores()

    def allocate(self, ranks_per_node: int = 1, *, show: bool = True) -> Allocation:
        return self._ready(SlurmStep(self, ranks_per_node), show)

    @contextlib.contextmanager
    def lease(self, ranks_per_node: int, show: bool) -> Iterator[Allocation]:
        key = os.getpid(), self.nodes
        standing = _standing.get(key)
        if standing is None or standing.is_lost:
            if standing is not None:
                standing.close()
            standing = _standing[key] = self.allocate(ranks_per_node, show=show)
        yield standing


class SlurmStep(Allocation):
    """A step of the job that this process is in, which runs an agent on each of its nodes."""

    _step: subprocess.Popen[bytes] | None = None

    def _submit(self, ranks_per_node: int) -> str:
        job = os.environ["SLURM_JOB_ID"]
        # The step shares what the job has with all others of it.
        command = ["srun", f"--jobid={job}", "--overlap", "--cpu-bind=none", "--kill-on-bad-exit=0"]
        command += [f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1"]
        if cores := re.match(r"\d+", os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")):
            command.append(f"--cpus-per-task={cores[0]}")  # "4(x2)": the first node's
        with open(self._printed, "wb") as printed:
            self._step = subprocess.Popen(
                [*command, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return job

    def _has_ended(self) -> str:
        code = None if self._step is None else self._step.poll()
        return super()._has_ended() if code is None else f"srun has ended with {code}"

    def cancel(self) -> None:
        if self._step is not None:
            self._step.terminate()
        self.close()
