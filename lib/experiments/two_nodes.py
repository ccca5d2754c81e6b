"""Variables that torchrun gives the ranks of two nodes.

Two agents of torchrun, as two nodes would have, on this host: the variables are the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from lockstep.base.machine import Machine

from .experiment import Experiment, Result, by_torchrun

NAMES = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"]
SIZES = ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"]


def run(_: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        by_torchrun(__name__, folder, nproc=nproc, nodes=2)
        said = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    said.sort(key=lambda variables: int(variables["RANK"]))
    what = "the variables that torchrun gives the ranks of two nodes (two agents on one host)"
    return [Result("launch/two-nodes.json", what, said)]


EXPERIMENT = Experiment(
    "two-nodes",
    "the variables that torchrun gives the ranks of two nodes; -n is for each node",
    minutes=1,
    run=run,
    ranks=4,
    gpus=False,
    writes={
        "launch/two-nodes.json": (*NAMES, *SIZES),
    },
)


if __name__ == "__main__":  # a rank
    variables = {name: os.environ[name] for name in NAMES + SIZES}
    Path(sys.argv[1], f"{variables['RANK']}.json").write_text(json.dumps(variables))
