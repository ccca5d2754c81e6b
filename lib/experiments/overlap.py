"""Products beside an all-reduce on GPUs, with few and with many of the SMs for NCCL.

Four products of 8192³ in bfloat16, and an all-reduce of 512 MB: alone, one after the other, and
together, launched in several orders. `max_ctas` is NCCL's limit of the thread blocks, and so of
SMs, that a communicator's kernels take. Each is timed by events, on the slowest rank.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from .experiment import Experiment, Result, device_name, measured_by_torchrun

SIZE, PRODUCTS = 8192, 4
NBYTES = 512 * 10**6
BATCHES = 15
LIMITS: tuple[int | None, ...] = (None, 4, 8, 16, 32)


def ways(group: Any, a: torch.Tensor, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name. a: a factor of the products. x: what is reduced."""
    out = torch.empty_like(a)

    def products(count: int = PRODUCTS) -> None:
        for _ in range(count):
            torch.mm(a, a, out=out)

    def reduced(parts: int = 1) -> list[Any]:
        return [dist.all_reduce(one, group=group, async_op=True) for one in x.chunk(parts)]

    def wait(handles: list[Any]) -> None:
        for handle in handles:
            handle.wait()

    def after() -> None:
        products()
        wait(reduced())

    def first() -> None:
        handles = reduced()
        products()
        wait(handles)

    def later() -> None:
        products(1)
        handles = reduced()
        products(PRODUCTS - 1)
        wait(handles)

    def in_parts() -> None:
        handles = reduced(PRODUCTS)
        products()
        wait(handles)

    def in_between() -> None:
        handles = []
        for part in x.chunk(PRODUCTS):  # after each turn a product more, and the part beside it
            handles.append(dist.all_reduce(part, group=group, async_op=True))
            products(1)
        wait(handles)

    return {
        "products": products,
        "all-reduce": lambda: wait(reduced()),
        "one after the other": after,
        "together, all-reduce launched first": first,
        "together, launched after a product": later,
        "together, four parts first": in_parts,
        "together, a part before each product": in_between,
    }


def seconds(call: Callable[[], object]) -> float:
    """Return the median over batches of what a call takes, on the slowest rank."""
    for _ in range(3):
        call()
    found = []
    for _ in range(BATCHES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1000)
    slowest = torch.tensor(found, device="cuda", dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist())


def measure(file: Path) -> None:
    """Measure on each rank of torchrun, under NCCL; rank 0 writes the file."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")  # without device_id a new group has a communicator of its own
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    x = torch.zeros(NBYTES // 2, device="cuda", dtype=torch.bfloat16)
    rows = []
    for limit in LIMITS:
        for urgent in (False, True):
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=urgent)
            if limit is not None:
                options.config.max_ctas = limit
            group = dist.new_group(pg_options=options)
            row: dict[str, Any] = {"max_ctas": limit, "high_priority": urgent}
            row["seconds"] = {name: seconds(call) for name, call in ways(group, a, x).items()}
            rows.append(row)
            if dist.get_rank() == 0:
                print(json.dumps(row), file=sys.stderr, flush=True)
            dist.destroy_process_group(group)
    if dist.get_rank() == 0:
        content = {
            "world_size": dist.get_world_size(),
            "products": f"{PRODUCTS} of {SIZE} cubed, bfloat16",
            "all_reduce_bytes": NBYTES,
            "batches": BATCHES,
            "rows": rows,
        }
        file.write_text(json.dumps(content))
    dist.destroy_process_group()


def run(machine: Machine, nproc: int) -> list[Result]:
    content = measured_by_torchrun(__name__, nproc=nproc)
    what = f"four products beside an all-reduce on {nproc} ranks, by NCCL's max_ctas and priority"
    return [Result(f"overlap/{device_name(machine)}-x{nproc}.json", what, content)]


EXPERIMENT = Experiment(
    "overlap",
    "products beside an all-reduce, by how many SMs NCCL may take",
    minutes=1,
    run=run,
    least=2,
    writes={
        "overlap/*-x[0-9]*.json": ("world_size", "products", "all_reduce_bytes", "batches", "rows"),
    },
)


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]))
