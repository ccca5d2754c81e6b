"""A question of lab 02 about NCCL: in which calls does the host wait when a rank is late?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lockstep import device, torchrun
from lockstep.base.machine import Machine

from .experiment import Experiment, Result

LATE = 0.2  # seconds
Start = Callable[[torch.Tensor, int], Any]


def host_seconds(start: Start, nbytes: int) -> float:
    """Seconds that rank 0 spends in `start(x, rank)`; rank 1, at the other end, comes late."""
    x = torch.zeros(nbytes, dtype=torch.uint8, device=device())
    rank, seconds = dist.get_rank(), 0.0
    for turn in range(2):  # the first turn makes the connections
        dist.barrier()
        if rank == 1 and turn == 1:
            time.sleep(LATE)
        begin = time.perf_counter()
        handle = start(x, rank)
        seconds = time.perf_counter() - begin
        if hasattr(handle, "wait"):
            handle.wait()
    return seconds


def send(x: torch.Tensor, rank: int) -> Any:
    return dist.recv(x, 0) if rank else dist.send(x, 1)


def recv(x: torch.Tensor, rank: int) -> Any:
    return dist.send(x, 0) if rank else dist.recv(x, 1)


def isend(x: torch.Tensor, rank: int) -> Any:
    return dist.irecv(x, 0) if rank else dist.isend(x, 1)


def irecv(x: torch.Tensor, rank: int) -> Any:
    return dist.isend(x, 0) if rank else dist.irecv(x, 1)


WAYS: dict[str, tuple[Start, int]] = {
    "send, 4 bytes": (send, 4),
    "send, 4 MB": (send, 4_000_000),
    "recv": (recv, 4),
    "isend": (isend, 4),
    "isend, then wait()": (lambda x, rank: isend(x, rank).wait(), 4),
    "irecv": (irecv, 4),
    "irecv, then wait()": (lambda x, rank: irecv(x, rank).wait(), 4),
}


def answers(backend: str) -> dict[str, str]:
    """Say what the host does, by call."""
    said = {}
    for name, way in WAYS.items():
        job = torchrun(host_seconds, *way, nproc_per_node=2, backend=backend, show=False)
        said[name] = "waits for the other rank" if job[0] > LATE / 2 else "returns at once"
    return said


def run(_: Machine, nproc: int) -> list[Result]:
    what = (
        "what the host of rank 0 does under NCCL, by point-to-point call, "
        f"when rank 1 comes {LATE} s late; two ranks"
    )
    return [Result("backends/waits-nccl.json", what, answers("nccl"))]


EXPERIMENT = Experiment(
    "waits",
    "which point-to-point calls make the host wait under NCCL",
    minutes=1,
    run=run,
    least=2,
    most=2,
    ranks=2,
    writes={
        "backends/waits-nccl.json": tuple(WAYS),
    },
)
