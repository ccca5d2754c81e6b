"""Variables of ranks on two nodes that Slurm gives.

Needs a profile (`lockstep cluster init`), or a job of two nodes around it.
"""

from __future__ import annotations

import os

from lockstep.base.machine import Machine
from lockstep.launch import cluster, torchrun

from .experiment import CannotRecord, Experiment, Result

NAMES = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURMD_NODENAME"]


def run(_: Machine, nproc: int) -> list[Result]:
    nodes = cluster(nodes=2)
    if nodes is None:
        raise CannotRecord("slurm-nodes needs two nodes of Slurm: lockstep cluster init")
    job = torchrun(told, nproc_per_node=nproc, backend="gloo", on=nodes)
    one_host = len({rank.pop("host") for rank in job.results}) == 1
    what = f"the variables of {nproc} ranks on each of two nodes of Slurm"
    return [
        Result(
            "launch/slurm-nodes.json",
            what + (", both on one machine" if one_host else ""),
            job.results,
        )
    ]


def told() -> dict[str, str]:
    """On a rank."""
    return {name: os.environ.get(name, "") for name in NAMES} | {"host": os.uname().nodename}


EXPERIMENT = Experiment(
    "slurm-nodes",
    "what ranks on two nodes of Slurm are told; -n is for each node",
    minutes=1,
    run=run,
    ranks=2,
    gpus=False,
    writes={
        "launch/slurm-nodes.json": tuple(NAMES),
    },
)
