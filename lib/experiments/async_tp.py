"""All-gather and product, product and reduce-scatter: one after the other, and fused.

The fused ones are PyTorch's `torch.ops.symm_mem.fused_all_gather_matmul` and
`fused_matmul_reduce_scatter`: they split the product, and fetch the next part from the peers'
symmetric memory by copies while one part is computed. Tensor parallelism with them is called
asynchronous. All is timed twice: as it is called, and launched ahead of a device that is kept busy.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch.distributed._symmetric_memory import enable_symm_mem_for_group

from .experiment import Experiment, Result, by_torchrun, gpu_name
from .overlap import BATCHES, seconds

AHEAD = 6_000_000  # cycles, about 3 ms
ROWS, INNER, COLUMNS = 8192, 8192, 2048  # of all ranks' rows together; bfloat16


def ways() -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    n, name = dist.get_world_size(), dist.group.WORLD.group_name  # type: ignore[union-attr]
    part = torch.randn(ROWS // n, INNER, device="cuda", dtype=torch.bfloat16)
    whole = torch.randn(ROWS, INNER, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(INNER, COLUMNS, device="cuda", dtype=torch.bfloat16)
    product = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    mine = torch.empty(ROWS // n, COLUMNS, device="cuda", dtype=torch.bfloat16)
    fused = torch.ops.symm_mem

    def gather_then_product() -> None:
        dist.all_gather_into_tensor(whole, part)
        torch.mm(whole, weights, out=product)

    def product_then_scatter() -> None:
        torch.mm(whole, weights, out=product)
        dist.reduce_scatter_tensor(mine, product)

    return {
        "product": lambda: torch.mm(whole, weights, out=product),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(mine, product),
        "all-gather, then product": gather_then_product,
        "fused all-gather and product": lambda: fused.fused_all_gather_matmul(
            part, [weights], 0, name
        ),
        "product, then reduce-scatter": product_then_scatter,
        "fused product and reduce-scatter": lambda: fused.fused_matmul_reduce_scatter(
            whole, weights, "sum", 0, name
        ),
    }


def measure(file: Path) -> None:
    """Measure on each rank of torchrun, under NCCL; rank 0 writes the file."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    enable_symm_mem_for_group(dist.group.WORLD.group_name)  # type: ignore[union-attr]
    calls = ways()
    found = {name: seconds(call) for name, call in calls.items()}
    ahead = {name: seconds(call, AHEAD) for name, call in calls.items()}
    if dist.get_rank() == 0:
        content = {
            "world_size": dist.get_world_size(),
            "rows": ROWS,
            "inner": INNER,
            "columns": COLUMNS,
            "batches": BATCHES,
            "seconds": found,
            "seconds_ahead": ahead,
        }
        file.write_text(json.dumps(content))
    dist.destroy_process_group()


def run(machine: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "async-tp.json")
        by_torchrun(__name__, file, nproc=nproc)
        content = json.loads(file.read_text())
    what = f"all-gather and product, product and reduce-scatter on {nproc} ranks, plain and fused"
    return [Result(f"overlap/async-tp-{gpu_name(machine)}-x{nproc}.json", what, content)]


EXPERIMENT = Experiment(
    "async-tp",
    "collectives fused with products through symmetric memory, beside plain ones",
    minutes=1,
    run=run,
    least=2,
    writes={
        "overlap/async-tp-*.json": (
            *("world_size", "rows", "inner", "columns", "batches", "seconds", "seconds_ahead"),
        ),
    },
)


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]))
