"""Whether two ranks that both send first ever receive: a question of lab 02."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lockstep import device, torchrun
from lockstep.base.machine import Machine

from .experiment import Experiment, Result

TOO_LONG = 10  # seconds
SIZES = (4, 4_000, 4_000_000, 16_000_000, 64_000_000, 256_000_000)  # bytes
FILE = "backends/mutual-send-nccl.json"


def send_first(nbytes: int, connected: bool) -> int:
    """Both ranks send to the other one, and only then receive; the last byte that came.

    connected: whether they have swapped once before, by turns, so that the connection is there.
    """
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    mine = torch.full((nbytes,), rank, dtype=torch.uint8, device=device())
    theirs = torch.empty_like(mine)
    if connected:
        for sender in (0, 1):
            if rank == sender:
                dist.send(mine, other)
            else:
                dist.recv(theirs, other)
        theirs.fill_(99)
    dist.send(mine, other)
    dist.recv(theirs, other)
    return int(theirs[-1].item())  # which waits for the GPU, too


def outcome(backend: str, nbytes: int, connected: bool) -> dict[str, Any]:
    """Whether it hangs, in which call the hosts were then, and whether the right bytes came."""
    options: dict[str, Any] = {"nproc_per_node": 2, "backend": backend, "show": False}
    job = torchrun(send_first, nbytes, connected, timeout=TOO_LONG, may_fail=True, **options)
    hosts = [[call.operation for call in calls if call.end is None] for calls in job.calls]
    return {
        "bytes": nbytes,
        "connected": connected,
        "hangs": not job.ok,
        "right": job.ok and list(job.results) == [1, 0],
        "host in": [calls[0] if calls else None for calls in hosts],
        "said": job.report.partition("\n")[0],
    }


def outcomes(
    backend: str, first: Sequence[int], later: Sequence[int]
) -> Iterator[list[dict[str, Any]]]:
    """Return what became of a pair's first messages of each size, and of later ones, so far."""
    found = []
    for connected, sizes in ((True, later), (False, first)):
        for size in sizes:
            found.append(outcome(backend, size, connected))
            yield found


def run(_: Machine, nproc: int) -> Iterator[Result]:
    what = (
        "two ranks that both send first under NCCL: their first messages, and later ones "
        f"(connected); hangs: no end within {TOO_LONG} s"
    )
    for found in outcomes("nccl", first=(4, 4_000_000), later=SIZES):
        yield Result(FILE, what, found)


EXPERIMENT = Experiment(
    "mutual-sends",
    "whether two ranks that both send first hang under NCCL, by size",
    minutes=2,
    run=run,
    least=2,
    most=2,
    ranks=2,
    writes={
        FILE: ("bytes", "connected", "hangs", "right", "host in", "said"),
    },
)
