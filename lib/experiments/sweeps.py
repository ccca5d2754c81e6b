"""Every collective, ping-pong and ring shift over message sizes; all_reduce by ring and tree, too.

Under PyTorch's own torchrun, so that Lockstep's record of calls adds nothing to small messages.
`bytes` is, as in nccl-tests, the larger one of a rank's two buffers: the output of all_gather and
gather, the input of reduce_scatter, scatter and all_to_all. A batch is many calls in a row, timed
by CUDA events; the time of a call is the batch's on its slowest rank, divided by the calls.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from lockstep import device
from lockstep.base.machine import Machine

from .experiment import Experiment, Result, device_name, join, measured_by_torchrun

SIZES = [1 << power for power in range(8, 31)]  # 256 B to 1 GiB
BATCHES = 15
Make = Callable[[int], Callable[[], object]]


def all_reduce(size: int) -> Callable[[], object]:
    x = buffer(size)
    return lambda: dist.all_reduce(x)


def broadcast(size: int) -> Callable[[], object]:
    x = buffer(size)
    return lambda: dist.broadcast(x, src=0)


def reduce(size: int) -> Callable[[], object]:
    x = buffer(size)
    return lambda: dist.reduce(x, dst=0)


def all_gather(size: int) -> Callable[[], object]:
    whole, part = buffer(size), buffer(size // dist.get_world_size())
    return lambda: dist.all_gather_into_tensor(whole, part)


def reduce_scatter(size: int) -> Callable[[], object]:
    whole, part = buffer(size), buffer(size // dist.get_world_size())
    return lambda: dist.reduce_scatter_tensor(part, whole)


def all_to_all(size: int) -> Callable[[], object]:
    x, y = buffer(size), buffer(size)
    return lambda: dist.all_to_all_single(y, x)


def gather(size: int) -> Callable[[], object]:
    parts, part = chunks(size), buffer(size // dist.get_world_size())
    return lambda: dist.gather(part, parts if dist.get_rank() == 0 else None, dst=0)


def scatter(size: int) -> Callable[[], object]:
    parts, part = chunks(size), buffer(size // dist.get_world_size())
    return lambda: dist.scatter(part, parts if dist.get_rank() == 0 else None, src=0)


def ping_pong(size: int) -> Callable[[], object]:
    """Rank 0 to rank 1 and back: two messages a call. The other ranks look on."""
    x = buffer(size)

    def call() -> None:
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
            dist.send(x, 0)

    return call


def ring_shift(size: int) -> Callable[[], object]:
    """Everybody sends to the next rank and receives from the one before, at the same time."""
    n, rank = dist.get_world_size(), dist.get_rank()
    x, y = buffer(size), buffer(size)
    both = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
    return lambda: [work.wait() for work in dist.batch_isend_irecv(both)]


SWEEPS: dict[str, Make] = {
    make.__name__: make
    for make in (
        all_reduce,
        all_gather,
        reduce_scatter,
        all_to_all,
        broadcast,
        reduce,
        gather,
        scatter,
        ping_pong,
        ring_shift,
    )
}


def buffer(size: int) -> torch.Tensor:
    return torch.zeros(max(size // 4, 1), device=device())


def chunks(size: int) -> list[torch.Tensor]:
    return list(buffer(size).chunk(dist.get_world_size()))


def seconds(call: Callable[[], object], calls: int, batches: int) -> list[float]:
    """Return the seconds a call of each batch, on the slowest rank."""
    for _ in range(5):
        call()
    found = [batch(call, calls) / calls for _ in range(batches)]
    slowest = torch.tensor(found, device=device(), dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return [float(each) for each in slowest.tolist()]


def batch(call: Callable[[], object], calls: int) -> float:
    """Time calls from the first one's start to the last one's end: on a GPU, by its own clock."""
    if device().type == "cpu":
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    dist.barrier()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def measure(make: Make, sizes: Sequence[int], batches: int = BATCHES) -> list[dict[str, float]]:
    """Return a row for each size: seconds a call, the batches' median and quartiles."""
    rows = []
    for size in sizes:
        calls = 50 if size <= 1 << 20 else 20 if size <= 1 << 26 else 5
        try:
            times = sorted(seconds(make(size), calls, batches))
        except Exception as error:
            error.add_note(f"in calls of {size} bytes")
            raise
        quarter = len(times) // 4
        rows.append(
            {
                "bytes": size,
                "seconds": statistics.median(times),
                "lower_quartile": times[quarter],
                "upper_quartile": times[-1 - quarter],
            }
        )
    return rows


def sweep(file: Path, makes: Mapping[str, Make]) -> None:
    """Measure on each rank of torchrun, under NCCL; rank 0 writes the file."""
    join()
    found = {}
    for name, make in makes.items():
        found[name] = measure(make, SIZES)
        if dist.get_rank() == 0:
            print(name, "measured", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        content = {
            "world_size": dist.get_world_size(),
            "algorithm": os.environ.get("NCCL_ALGO", "NCCL's choice"),
            "batches": BATCHES,
            "sweeps": found,
        }
        file.write_text(json.dumps(content))
    dist.destroy_process_group()


def run(machine: Machine, nproc: int) -> list[Result]:
    results = []
    for algorithm in (None, "Ring", "Tree"):
        environment = {"NCCL_ALGO": algorithm}
        content = measured_by_torchrun(__name__, nproc=nproc, environment=environment)
        name = f"sweeps/{device_name(machine)}-x{nproc}"
        if algorithm is None:
            name, swept = f"{name}.json", "every collective, ping-pong and ring shift"
            what = f"{swept} over message sizes on {nproc} ranks"
        else:
            name, forced = f"{name}-{algorithm.lower()}.json", f"{algorithm.lower()} forced"
            what = f"all_reduce over message sizes on {nproc} ranks, {forced}"
        results.append(Result(name, what, content, environment))
    return results


EXPERIMENT = Experiment(
    "sweeps",
    "every collective, ping-pong and ring shift over message sizes",
    minutes=3,
    run=run,
    least=2,
    writes={
        "sweeps/*.json": ("world_size", "algorithm", "batches", "sweeps"),
    },
)


if __name__ == "__main__":  # a rank
    forced = "NCCL_ALGO" in os.environ  # of the others there is one algorithm
    sweep(Path(sys.argv[1]), {"all_reduce": all_reduce} if forced else SWEEPS)
