"""Ranks on two nodes that Slurm gives: who is told what, and traces of them.

Needs a profile (`lockstep cluster init`), or a job of two nodes around it. Where both nodes are on
one machine, as in `tests/slurm.py`, their clocks are one, and no byte crosses a network.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import platformdirs
import torch
import torch.distributed as dist

from ..launch import cluster, torchrun
from ..machine import Machine
from .experiment import CannotRecord, Experiment, Result

NAMES = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURMD_NODENAME"]
STEPS = 12


def run(_: Machine, nproc: int) -> list[Result]:
    nodes = cluster(nodes=2)
    if nodes is None:
        raise CannotRecord("slurm-nodes needs two nodes of Slurm: lockstep cluster init")
    shared = platformdirs.user_state_path("lockstep")  # the nodes have the home folder, too
    shared.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shared) as name:
        job = torchrun(steps, nproc_per_node=nproc, backend="gloo", on=nodes, trace=name)
        traces = {
            f"rank{rank}.json.gz": _of_node(Path(name, f"rank{rank}.json.gz"), told)
            for rank, told in enumerate(job.results)
        }
    count = f"{nproc} ranks on each of two nodes of Slurm"
    alone = "" if len({told.pop("host") for told in job.results}) > 1 else ", both on one machine"
    return [
        Result("launch/slurm-nodes.json", f"the variables of {count}{alone}", job.results),
        Result(
            "traces/two-nodes",
            f"{STEPS} steps of data-parallel training by gloo, {count}{alone}; rank 1 computes "
            "twice",
            traces,
        ),
    ]


def steps() -> dict[str, str]:
    """On a rank: gradients of a small MLP, reduced one by one; what the rank was told."""
    torch.manual_seed(0)
    weights = [torch.randn(512, 512) / 23 for _ in range(3)]
    x_BD = torch.randn(256, 512)
    for _ in range(STEPS):
        y_BD = x_BD
        for weight in weights * (2 if dist.get_rank() == 1 else 1):
            y_BD = (y_BD @ weight).relu()
        for weight in weights:
            dist.all_reduce(weight)
            weight /= dist.get_world_size()
    return {name: os.environ.get(name, "") for name in NAMES} | {"host": os.uname().nodename}


def _of_node(file: Path, told: dict[str, str]) -> Any:
    """A rank's trace, whose host has the name that Slurm has for it."""
    content = json.loads(gzip.decompress(file.read_bytes()))
    content["host_name"] = told["SLURMD_NODENAME"]
    content["traceName"] = file.name
    content["torch_version"] = torch.__version__
    return content


EXPERIMENT = Experiment(
    "slurm-nodes",
    "what ranks on two nodes of Slurm are told, and traces of them; -n is for each node",
    minutes=1,
    run=run,
    ranks=2,
    gpus=False,
)
