"""Dumps of NCCL's flight recorder on every rank when one leaves out an all-reduce."""

from __future__ import annotations

import pickle
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from .experiment import Experiment, ExperimentFailed, Result, by_torchrun, join_nccl

# Each variable under its name of today and under the one that older PyTorch knows.
RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "200",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "200",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def hang() -> None:
    """Run on each rank. Rank 2 leaves out the fourth all-reduce; the watchdog then dumps."""
    device = join_nccl(timeout=timedelta(seconds=10))
    x = torch.ones(1 << 20, device=device)
    for number in range(6):
        if dist.get_rank() == 2 and number == 3:
            continue
        dist.all_reduce(x)
    torch.cuda.synchronize()
    time.sleep(60)  # the watchdog ends this process


def run(_: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**RECORDER, **dict.fromkeys(FILES, f"{folder}/rank")}
        by_torchrun(__name__, nproc=nproc, environment=environment, may_fail=True)
        files = sorted(Path(folder).glob("rank*"))
        if len(files) != nproc:
            raise ExperimentFailed(f"{len(files)} of {nproc} ranks left a dump")
        dumps = {file.name: pickle.loads(file.read_bytes()) for file in files}
    what = (
        "NCCL flight recorder dumps of a job in which rank 2 leaves out the fourth of six "
        "all-reduces"
    )
    return [Result("traces/hang", what, dumps, RECORDER)]


EXPERIMENT = Experiment(
    "hang",
    "what NCCL's flight recorder writes about a hang",
    minutes=2,
    run=run,
    least=3,
    ranks=4,
    writes={
        "traces/hang": ("rank*",),
    },
)


if __name__ == "__main__":  # a rank
    hang()
