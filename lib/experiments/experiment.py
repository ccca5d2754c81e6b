"""Experiments, and the ways in which they start their ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun
from lockstep.launch.interrupts import defer_signals

Variables = Mapping[str, str | None]  # of the environment; None: taken away
ENDING = 60  # seconds for PyTorch's agent to end its ranks


class CannotRecord(Exception):
    """This cannot be recorded, or not here; the message says why and what to do."""


class ExperimentFailed(Exception):
    """An experiment did not come to its end."""


@dataclass(frozen=True)
class Result:
    """A finding of an experiment; becomes a file or a folder below `data/`.

    file: "launch/two-nodes.json", or the name of a folder, which has no suffix. what: one line for
    the manifest. content: plain values (of a folder: by the name of each file); they are written as
    the suffix says: `.json`, `.json.gz`, `.pickle.gz`, and without one as a pickle. environment:
    variables that the experiment itself set for this result (None: took away).
    """

    file: str
    what: str
    content: Any
    environment: Variables = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return "." not in self.file


@dataclass(frozen=True)
class Experiment:
    """A thing that can be recorded, what it needs, and how.

    run: gets the machine and the number of ranks, and returns its results, which are written
    together or not at all; or it yields them, and each is written when it comes: one of a file that
    it has given before takes that one's place. minutes: about how long it takes. least, most: ranks
    for which it makes sense. ranks: how many it takes where nobody says a number; None for one on
    each GPU. gpus: whether each rank needs a GPU, and NCCL. part: as `run`, of one of its parts
    only, whose name it gets first. writes: patterns of the keys, or files, of its recordings.
    """

    name: str
    what: str
    minutes: int
    run: Callable[[Machine, int], Iterable[Result]]
    least: int = 1
    most: int | None = None
    ranks: int | None = None
    gpus: bool = True
    part: Callable[[str, Machine, int], Iterable[Result]] | None = None
    writes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """Say in words what it needs: "2 or more GPUs", "nothing but PyTorch"."""
        if not self.gpus:
            return "nothing but PyTorch"
        number = f"{self.least}" if self.most == self.least else f"{self.least} or more"
        return f"{number} GPU{'' if number == '1' else 's'}"

    def ranks_on(self, machine: Machine, asked: int | None) -> int:
        """Return how many ranks it takes there. Raises CannotRecord where the machine lacks
        something."""
        usual = self.ranks or max(len(machine.gpus), self.least)
        nproc = usual if asked is None else asked
        if nproc < self.least or nproc > (self.most or nproc):
            number = f"{self.least}" if self.most == self.least else f"{self.least} or more"
            if self.most not in (None, self.least):
                number = f"{self.least} to {self.most}"
            raise CannotRecord(f"{self.name} takes {number} ranks, not {nproc}: say another -n")
        if machine.torch is None:
            raise CannotRecord(f"{self.name} needs PyTorch, which cannot be imported here")
        if self.gpus and len(machine.gpus) < nproc:
            there = {0: "no GPU", 1: "1 GPU"}.get(len(machine.gpus), f"{len(machine.gpus)} GPUs")
            why = f" ({machine.gpu_error})" if machine.gpu_error else ""
            fewer = f", or say -n {len(machine.gpus)}" if len(machine.gpus) >= self.least else ""
            raise CannotRecord(
                f"{self.name} needs a GPU for each of its {nproc} ranks, and PyTorch can use "
                f"{there} here{why}: run it on a machine that has them{fewer}"
            )
        if self.gpus and "nccl" not in machine.torch.backends:
            raise CannotRecord(f"{self.name} needs NCCL, which this PyTorch is built without")
        return nproc


def device_name(machine: Machine) -> str:
    """Return the GPUs' name as it stands in names of files: "h200" of "NVIDIA H200"; or "cpu"."""
    if not machine.gpus:
        return "cpu"
    return machine.gpus[0].name.removeprefix("NVIDIA ").replace(" ", "-").lower()


def of_rank_0(function: Callable[..., Any], *given: Any, machine: Machine, nproc: int) -> Any:
    """Call a function on Lockstep's ranks, under NCCL where the machine has GPUs; returns what it
    returns on rank 0."""
    backend = "nccl" if machine.gpus else "gloo"
    return torchrun(function, *given, nproc_per_node=nproc, backend=backend, show=False)[0]


def by_torchrun(
    module: str,
    *arguments: object,
    nproc: int,
    nodes: int = 1,
    environment: Variables | None = None,
    limit: float | None = None,
) -> None:
    """Run a module on ranks as PyTorch's own torchrun does, where Lockstep shall add nothing.

    nproc: ranks of each node. nodes: an agent of torchrun for each of them, all on this host.
    environment: variables to set, or with None to take away. limit: seconds. Raises
    ExperimentFailed where an agent fails, or takes longer.
    """
    given = environment or {}
    variables = {name: value for name, value in os.environ.items() if name not in given}
    variables |= {name: value for name, value in given.items() if value is not None}
    variables.setdefault("OMP_NUM_THREADS", "1")  # as torchrun would, and say so at length
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"]
    launcher += [f"--nproc-per-node={nproc}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    program = ["-m", module, *map(str, arguments)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for node in range(nodes):
            command = [*launcher, f"--node-rank={node}", *program]
            with defer_signals():  # an interrupt between start and note would leave it running
                running.append(subprocess.Popen(command, env=variables))
        codes = [agent.wait(limit) for agent in running]
    except subprocess.TimeoutExpired:
        raise ExperimentFailed(f"{module} took longer than {limit:g} s") from None
    finally:
        for agent in running:
            end(agent)
    if any(codes):
        raise ExperimentFailed(f"torchrun ended {module} with exit code {max(codes, key=abs)}")


def measured_by_torchrun(module: str, *, nproc: int, environment: Variables | None = None) -> Any:
    """Run a module as `by_torchrun` does; returns what rank 0 wrote, as JSON, in the file that the
    module is given."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        by_torchrun(module, file, nproc=nproc, environment=environment)
        return json.loads(file.read_text())


def join() -> torch.device:
    """Join the process group on a rank of torchrun, under NCCL where there are GPUs; return the
    rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    return device


def traces_in(folder: Path, kept: str, nproc: int) -> dict[str, Any]:
    """Return the traces that ranks have left there, by the names of their recording."""
    return {
        f"rank{rank}.json.gz": json.loads(file.read_bytes())
        for rank in range(nproc)
        if (file := folder / f"{kept}-rank{rank}.json").is_file()
    }


def guarded(name: str, call: Callable[[], Any], otherwise: Any) -> Any:
    """Call a part of an experiment; one that fails prints why, and does not lose the others."""
    try:
        return call()
    except Exception:
        print(f"rank {dist.get_rank()}: {name}", file=sys.stderr)
        traceback.print_exc()
        return otherwise


def end(agent: subprocess.Popen[Any]) -> None:
    """End an agent of torchrun, which ends its ranks."""
    agent.terminate()  # of one that has ended already: nothing
    try:
        agent.wait(ENDING)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()
