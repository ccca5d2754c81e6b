"""A decode step of cut layers in every way, on Lockstep's ranks and on torchrun's by turns."""

from __future__ import annotations

import json
import os
import statistics
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lockstep.base.machine import Machine

from .experiment import (
    Experiment,
    Result,
    device_name,
    join,
    measured_by_torchrun,
    of_rank_0,
)
from .reduce_overhead import ways

TURNS = 2


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    file = f"graphs/decode-{device_name(machine)}-x{nproc}.json"
    what = f"a decode step on {nproc} ranks in six ways, on Lockstep's ranks and on torchrun's"
    content: dict[str, Any] = {"world_size": nproc, "seconds": {}, "failed": []}
    launchers = {
        "lockstep": lambda: of_rank_0(ways, machine=machine, nproc=nproc),
        "torchrun": lambda: measured_by_torchrun(__name__, nproc=nproc),
    }
    for _ in range(TURNS):
        for launcher, ranks in launchers.items():
            try:
                took = {way: statistics.median(all_of) for way, all_of in ranks().items()}
            except Exception:  # the other launcher's are still wanted
                content["failed"].append(traceback.format_exc())
                took = {}
            for way, seconds in took.items():
                by_way = content["seconds"].setdefault(launcher, {})
                by_way.setdefault(way, []).append(seconds)
            yield Result(file, what, content)


EXPERIMENT = Experiment(
    "decode-step",
    "a decode step: eager, compiled, as a graph; on Lockstep's ranks and on torchrun's",
    minutes=2,
    run=run,
    least=2,
    writes={"graphs/decode-*.json": ("world_size", "seconds", "failed")},
)


if __name__ == "__main__":  # a rank of torchrun
    join()
    found = ways()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # to destroy a group hangs while graphs of reduce-overhead have its collectives
