"""How long ranks take from their start to the first steps of a compiled program, by the caches.

All are started by torchrun, each time anew: with a folder for the compiler's caches for each rank
or one for all, which is empty at first and then full. Inductor's folder holds Triton's, too. The
same steps without a compiler are what a start costs anyway.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch import nn

from .experiment import Experiment, ExperimentFailed, Result, by_torchrun, device_name

STARTS = (
    ("each its own, empty", "own"),
    ("each its own, full", "own"),
    ("one for all, empty", "all"),
    ("one for all, full", "all"),
    ("not compiled", ""),
)
LAYERS = 4
LIMIT = 120.0  # seconds for a start
Step = Callable[[], object]


def decoding(device: torch.device, compiled: bool) -> Step:
    """A step of tensor-parallel MLPs, with an all-reduce in each layer."""
    width, part = 512, 512 // dist.get_world_size()
    weights = [
        (torch.randn(width, part, device=device), torch.randn(part, width, device=device))
        for _ in range(LAYERS)
    ]
    x = torch.ones(8, width, device=device)

    def decode(x: torch.Tensor) -> torch.Tensor:
        for first, second in weights:
            y = torch.nn.functional.gelu(torch.layer_norm(x, (width,)) @ first) @ second
            dist.all_reduce(y)
            x = x + y / width
        return x

    step = torch.compile(decode) if compiled else decode

    def run() -> float:
        with torch.no_grad():
            return step(x).sum().item()

    return run


def training(device: torch.device, compiled: bool) -> Step:
    """A step of a compiled model with DDP and AdamW."""
    layers = [
        nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        for _ in range(LAYERS)
    ]
    model: Any = nn.Sequential(*layers).to(device)
    ddp = nn.parallel.DistributedDataParallel(torch.compile(model) if compiled else model)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 256, device=device)

    def run() -> float:
        loss = ddp(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


PROGRAMS: dict[str, Callable[[torch.device, bool], Step]] = {
    "tensor-parallel decode step": decoding,
    "DDP training step": training,
}


def measured(folder: str, name: str, cache: str, began: str) -> None:
    """Write a rank's seconds of each part of its start; `began` is when torchrun was called."""
    marks = {"processes, import torch": time.time() - float(began)}
    rank, at = int(os.environ["RANK"]), time.perf_counter()
    if cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{cache}{rank}" if cache.endswith("own") else cache

    def mark(step: str) -> None:
        nonlocal at
        now = time.perf_counter()
        marks[step], at = now - at, now

    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo", device_id=device if on_gpus else None)
    dist.all_reduce(torch.ones(1, device=device))
    if on_gpus:
        torch.cuda.synchronize()
    mark("group and first all_reduce")
    step = PROGRAMS[name](device, bool(cache))
    mark("model")
    for number in ("first step", "second step", "third step"):
        step()
        mark(number)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(marks))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a DDP model that is alive when Python ends aborts some ranks


def started(name: str, cache: str, nproc: int) -> list[dict[str, float]] | str:
    """Return the seconds of each rank, or what failed."""
    with tempfile.TemporaryDirectory(prefix="lockstep-cold-") as folder:
        try:
            by_torchrun(__name__, folder, name, cache, time.time(), nproc=nproc, limit=LIMIT)
        except ExperimentFailed as error:
            return str(error)
        files = [Path(folder, f"rank{rank}.json") for rank in range(nproc)]
        return [json.loads(file.read_text()) for file in files]


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    content: dict[str, Any] = {"world_size": nproc, "unit": "seconds, by rank", "starts": {}}
    what = f"{nproc} ranks from their start to the first compiled steps, by the compiler's caches"
    file = f"compile/cold-{device_name(machine)}-x{nproc}.json"
    for name in PROGRAMS:
        content["starts"][name] = {}
        with tempfile.TemporaryDirectory(prefix="lockstep-caches-") as caches:
            for state, folder in STARTS:
                cache = str(Path(caches, folder)) if folder else ""
                content["starts"][name][state] = started(name, cache, nproc)
                yield Result(file, what, content)


EXPERIMENT = Experiment(
    "cold-start",
    "ranks' start of a compiled program, by what the compiler's caches hold",
    minutes=4,
    run=run,
    least=2,
    gpus=False,
    writes={"compile/cold-*.json": ("world_size", "unit", "starts")},
)


if __name__ == "__main__":  # a rank
    measured(*sys.argv[1:])
