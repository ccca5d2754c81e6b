"""Ask each backend which c10d operations it has, by where the tensor is: a table of lab 01."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun

from .experiment import Experiment, Result, device_name

PAIRS = ("gloo", "cuda"), ("nccl", "cuda"), ("nccl", "cpu")


def operations(device: str, rank: int, size: int) -> dict[str, Callable[[], Any]]:
    """Return ways to call c10d, by name: small ones, on every rank of a group of two."""

    def one(kind: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(4, device=device, dtype=kind)

    def many() -> list[torch.Tensor]:
        return [one() for _ in range(size)]

    def uneven() -> list[torch.Tensor]:
        return [torch.ones(r + 1, device=device) for r in range(size)]

    def both_ways() -> None:
        pair = [dist.P2POp(way, one(), 1 - rank) for way in (dist.isend, dist.irecv)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return {
        "send and recv": lambda: dist.recv(one(), 0) if rank else dist.send(one(), 1),
        "batch_isend_irecv": both_ways,
        "broadcast": lambda: dist.broadcast(one(), 0),
        "broadcast, float8": lambda: dist.broadcast(one(torch.float8_e4m3fn), 0),
        "reduce": lambda: dist.reduce(one(), 0),
        "all_reduce": lambda: dist.all_reduce(one()),
        "all_reduce, AVG": lambda: dist.all_reduce(one(), op=dist.ReduceOp.AVG),
        "gather": lambda: dist.gather(one(), None if rank else many()),
        "all_gather": lambda: dist.all_gather(many(), one()),
        "all_gather, uneven": lambda: dist.all_gather(uneven(), uneven()[rank]),
        "scatter": lambda: dist.scatter(one(), None if rank else many()),
        "reduce_scatter": lambda: dist.reduce_scatter(one(), many()),
        "all_to_all": lambda: dist.all_to_all(many(), many()),
        "barrier": lambda: dist.barrier(),
        "monitored_barrier": lambda: dist.monitored_barrier(),
    }


def attempt(name: str, device: str) -> str:
    """Try one operation: "yes", or the type of the error that it raised on this rank."""
    try:
        operations(device, dist.get_rank(), dist.get_world_size())[name]()
        if device == "cuda":
            torch.cuda.synchronize()
        return "yes"
    except Exception as error:
        return type(error).__name__


def answers(backend: str, device: str) -> dict[str, str]:
    """Try all operations, each on fresh ranks: a group in which one failed may be broken."""
    found = {}
    options: dict[str, Any] = {"nproc_per_node": 2, "backend": backend, "show": False}
    for name in operations(device, 0, 2):
        job = torchrun(attempt, name, device, may_fail=True, **options)
        said = job.results if job.ok else ["hangs" if job.verdict else "process ends"]
        found[name] = next((answer for answer in said if answer != "yes"), "yes")
    return found


def run(machine: Machine, nproc: int) -> list[Result]:
    what = (
        "which c10d operations each backend has, with tensors on the GPU and on the CPU; two ranks"
    )
    found = {f"{backend} · {device}": answers(backend, device) for backend, device in PAIRS}
    return [Result(f"backends/nccl-{device_name(machine)}.json", what, found)]


EXPERIMENT = Experiment(
    "backends",
    "which operations gloo and NCCL have on GPUs",
    minutes=4,
    run=run,
    least=2,
    most=2,
    ranks=2,
    writes={
        "backends/nccl-*.json": ("gloo · cuda", "nccl · cuda", "nccl · cpu"),
    },
)
