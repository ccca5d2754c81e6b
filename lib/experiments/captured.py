"""Collectives called one by one, out of a CUDA graph, by symmetric memory; and the host's part.

A small call takes as long as PyTorch needs to launch it; the GPU takes the calls of a graph without
PyTorch. An all-reduce by symmetric memory (PyTorch's own kernels, in which ranks read and write
each other's memory) is out of a graph, too. `host_seconds` is how long the program itself is in a
call of 4 KiB. `bytes` are counted as in `sweeps`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from lockstep import device
from lockstep.base.machine import Machine

from .experiment import Experiment, ExperimentFailed, Result, by_torchrun, gpu_name
from .protocols import by_call
from .protocols import captured as in_graph
from .sweeps import Make, all_gather, all_reduce, all_to_all, buffer, host, measure, reduce_scatter

SIZES = [1 << power for power in range(8, 27)]  # 256 B to 64 MiB
BATCHES = 9
MAKES: dict[str, Make] = {
    make.__name__: make for make in (all_reduce, all_gather, reduce_scatter, all_to_all)
}
_HOST_SIZE = 1 << 12
_LEAST = 1 << 12  # bytes that symmetric memory is asked for: every rank's part must be aligned


def one_shot(size: int) -> Callable[[], object]:
    """Every rank reads all of the others' buffers and adds."""
    x, name = _shared(size)
    return lambda: torch.ops.symm_mem.one_shot_all_reduce(x, "sum", name)


def two_shot(size: int) -> Callable[[], object]:
    """Every rank adds its part of all buffers, and gives the others the sum."""
    x, name = _shared(size)
    return lambda: torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", name)


def _shared(size: int) -> tuple[torch.Tensor, str]:
    group = dist.group.WORLD
    assert group is not None
    x = symmetric.empty(size // 4, dtype=torch.float32, device=device())
    symmetric.rendezvous(x, group)
    return x.zero_(), group.group_name


def hosts(calls: int = 50, batches: int = BATCHES) -> dict[str, float]:
    """Seconds that each call keeps the program on this rank, plain and with async_op=True."""
    n = dist.get_world_size()
    x, y = buffer(_HOST_SIZE), buffer(_HOST_SIZE)
    part = buffer(_HOST_SIZE // n)
    ways: dict[str, Callable[[bool], Any]] = {
        "all_reduce": lambda later: dist.all_reduce(x, async_op=later),
        "all_gather": lambda later: dist.all_gather_into_tensor(x, part, async_op=later),
        "reduce_scatter": lambda later: dist.reduce_scatter_tensor(part, x, async_op=later),
        "all_to_all": lambda later: dist.all_to_all_single(y, x, async_op=later),
    }
    found = {}
    for name, call in ways.items():
        found[name] = host(partial(call, False), calls, batches)
        found[f"{name}, async_op=True"] = host(partial(call, True), calls, batches)
    return found


def record(file: Path) -> None:
    """Measure on each rank of torchrun, under NCCL; rank 0 writes the file."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    content: dict[str, Any] = {
        "world_size": dist.get_world_size(),
        "batches": BATCHES,
        "sweeps": {},
        "host_seconds": {},
    }

    def note(part: str, name: str, value: Any) -> None:
        content[part][name] = value
        if dist.get_rank() == 0:
            beside = file.with_suffix(".new")
            beside.write_text(json.dumps(content))
            beside.replace(file)  # never half a file, whenever ranks end
            print(name, "measured", file=sys.stderr, flush=True)

    for name, make in MAKES.items():
        note("sweeps", name, measure(make, SIZES, BATCHES))
        note("sweeps", f"{name}, captured", by_call(measure(in_graph(make), SIZES, BATCHES)))
    for name, costs in hosts().items():
        note("host_seconds", name, costs)
    for make in (one_shot, two_shot):
        name = f"{make.__name__.replace('_', '-')} all_reduce, captured"
        sizes = [size for size in SIZES if size >= _LEAST]
        note("sweeps", name, by_call(measure(in_graph(make), sizes, BATCHES)))
    dist.destroy_process_group()


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    """One result; where ranks fail, of what they had measured, and then the failure."""
    environment = {"NCCL_GRAPH_REGISTER": "0"}  # as in `protocols`
    what = f"collectives on {nproc} ranks called, captured and by symmetric memory; the host's part"
    failure: ExperimentFailed | None = None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "captured.json")
        try:
            by_torchrun(__name__, file, nproc=nproc, environment=environment)
        except ExperimentFailed as error:
            if not file.exists():
                raise
            what, failure = f"{what} (broken off)", error
        content = json.loads(file.read_text())
    yield Result(f"captured/{gpu_name(machine)}-x{nproc}.json", what, content, environment)
    if failure is not None:
        raise failure


EXPERIMENT = Experiment(
    "captured",
    "collectives over message sizes called, out of a CUDA graph and by symmetric memory",
    minutes=1,
    run=run,
    least=2,
    writes={
        "captured/*.json": ("world_size", "batches", "sweeps", "host_seconds"),
    },
)


if __name__ == "__main__":  # a rank
    record(Path(sys.argv[1]))
