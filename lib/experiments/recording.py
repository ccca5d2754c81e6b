"""What Lockstep's record of calls costs a program: the same one by torchrun and by Lockstep."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun
from torch import nn

from .experiment import Experiment, Result, device_name, measured_by_torchrun

TURNS = 6
LOOPS, CALLS = 9, 200
STEPS = 30
Seconds = dict[str, float]


def measured() -> Seconds:
    """Return the seconds of a call, or of a step, of each program: the median, on this rank.

    To run on a rank that has no process group.
    """
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    small, large = (torch.ones(size, device=device) for size in (1, 1 << 18))
    found = {
        "all_reduce of 4 B": _call(lambda: dist.all_reduce(small)),
        "all_reduce of 1 MB": _call(lambda: dist.all_reduce(large)),
    }
    if on_gpus:
        found["all_reduce of 4 B and synchronize"] = _call(lambda: _and_wait(small))
        found["DDP step, 24 layers of 512²"] = _step(_ddp(_layers(24, 512, None, device)))
        big = _layers(16, 4096, torch.bfloat16, device)
        found["DDP step, 16 layers of 4096², bfloat16"] = _step(_ddp(big))
        found["FSDP2 step, 24 layers of 1024²"] = _step(_sharded(_layers(24, 1024, None, device)))
    dist.destroy_process_group()
    return found


def _and_wait(x: torch.Tensor) -> None:
    dist.all_reduce(x)
    torch.cuda.synchronize()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _call(call: Callable[[], Any]) -> float:
    """Seconds of a call as the host sees it."""
    seconds = []
    for _ in range(LOOPS + 1):
        _wait()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        seconds.append((time.perf_counter() - began) / CALLS)
    return statistics.median(seconds[1:])


def _layers(count: int, width: int, dtype: Any, device: torch.device) -> nn.Module:
    layers = [nn.Linear(width, width, dtype=dtype, device=device) for _ in range(count)]
    return nn.Sequential(*layers)


def _ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)


def _sharded(model: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def _step(model: nn.Module) -> float:
    """Seconds of a forward and a backward pass."""
    weight = next(model.parameters())
    x = torch.ones(64, weight.shape[-1], dtype=weight.dtype, device=weight.device)
    seconds = []
    for _ in range(STEPS):
        _wait()
        began = time.perf_counter()
        model(x).sum().backward()
        _wait()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[STEPS // 3 :])


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    """Yield the seconds of all turns so far, of rank 0."""
    turns: dict[str, list[Seconds]] = {"torchrun": [], "Lockstep": []}
    where = f"{device_name(machine)}-x{nproc}"
    what = f"the same calls and steps by torchrun and by Lockstep, by turns, on {nproc} ranks"
    for _ in range(TURNS):
        turns["torchrun"].append(measured_by_torchrun("experiments.recording", nproc=nproc))
        job = torchrun(measured, nproc_per_node=nproc, init=False, show=False)
        turns["Lockstep"].append(job[0])
        yield Result(f"recording/{where}.json", what, {"unit": "seconds, of rank 0", **turns})


EXPERIMENT = Experiment(
    "recording",
    "what the record of calls costs a program, beside torchrun",
    minutes=4,
    run=run,
    gpus=False,
    writes={"recording/*.json": ("unit", "torchrun", "Lockstep")},
)


if __name__ == "__main__":  # a rank of torchrun
    result = measured()
    if os.environ["RANK"] == "0":
        Path(sys.argv[1]).write_text(json.dumps(result))
