"""Sweep every collective, and ping-pong, over message sizes: the sweeps below data/sweeps.

    torchrun --nproc-per-node 4 tests/bench/sweeps.py data/sweeps/h200-x4.json
    NCCL_ALGO=Ring torchrun --nproc-per-node 4 tests/bench/sweeps.py data/sweeps/h200-x4-ring.json
    NCCL_ALGO=Tree torchrun --nproc-per-node 4 tests/bench/sweeps.py data/sweeps/h200-x4-tree.json

With NCCL_ALGO set only all_reduce is swept: the others have one algorithm. `bytes` is, as in
nccl-tests, the larger one of a rank's two buffers: the output of all_gather and gather, the input
of reduce_scatter, scatter and all_to_all. A batch is many calls in a row, timed by CUDA events; the
time of a call is the batch's on its slowest rank, divided by the calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

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
    return torch.zeros(max(size // 4, 1), device="cuda")


def chunks(size: int) -> list[torch.Tensor]:
    return list(buffer(size).chunk(dist.get_world_size()))


def seconds(call: Callable[[], object], calls: int) -> list[float]:
    """Seconds a call of each batch, on the slowest rank."""
    for _ in range(5):
        call()
    batches = []
    for _ in range(BATCHES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        batches.append(begin.elapsed_time(end) / 1000 / calls)
    slowest = torch.tensor(batches, device="cuda", dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    found: list[float] = slowest.tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    algorithm = os.environ.get("NCCL_ALGO", "")
    found: dict[str, list[dict[str, float]]] = {}
    for name, make in SWEEPS.items():
        if algorithm and name != "all_reduce":
            continue
        found[name] = []
        for size in SIZES:
            calls = 50 if size <= 1 << 20 else 20 if size <= 1 << 26 else 5
            times = sorted(seconds(make(size), calls))
            quarter = len(times) // 4
            found[name].append(
                {
                    "bytes": size,
                    "seconds": statistics.median(times),
                    "lower_quartile": times[quarter],
                    "upper_quartile": times[-1 - quarter],
                }
            )
        if dist.get_rank() == 0:
            print(name, f"{size / found[name][-1]['seconds'] / 1e9:.0f} GB/s", flush=True)
    if dist.get_rank() == 0:
        options.file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "world_size": dist.get_world_size(),
            "algorithm": algorithm or "NCCL's choice",
            "batches": BATCHES,
            "sweeps": found,
        }
        options.file.write_text(json.dumps(content, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
