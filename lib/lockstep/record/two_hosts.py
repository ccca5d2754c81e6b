"""All-reduces over two hosts, as NCCL sees them: of one machine, halves that may not use NVLink.

With another NCCL_HOSTID on each half NCCL takes them for two hosts (getHostHash in its
src/misc/utils.cc), and has nothing but sockets between them. Both are reached by loopback, whose
counter says how many bytes crossed. Under PyTorch's own torchrun.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..machine import Machine
from .experiment import Experiment, Result, by_torchrun
from .traces import data_parallel_after, trace, traces

SIZES = [1 << power for power in (12, 16, 20, 22, 24, 26, 28)]
REPEATS = 7
PROGRAM = "data-parallel-after"
HOSTS = {"NCCL_HOSTID": "another one for each two ranks", "NCCL_SOCKET_IFNAME": "lo"}


def run(_: Machine, nproc: int) -> list[Result]:
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for hosts in (1, 2):
            folder = Path(name, str(hosts))
            folder.mkdir()
            by_torchrun(__name__, folder, hosts, nproc=nproc // 2, nodes=2)
            rows = json.loads((folder / "rows.json").read_text())
            found[f"{hosts}"] = {"rows": rows, "transports": _transports(folder)}
        steps = traces(Path(name, "2", PROGRAM))
    for rank, content in enumerate(steps.values()):
        content["host_name"] = f"host{rank // (nproc // 2)}"
    what = (
        "all-reduces of four ranks by NCCL that takes them for two hosts, flat and on two levels, "
        "and bytes by loopback; beside it the same on one host"
    )
    shown = f"{PROGRAM} on two hosts, as NCCL_HOSTID says: halves of one machine, so of one clock"
    return [
        Result("nodes/two-hosts.json", what, found, HOSTS),
        Result("traces/two-hosts", shown, steps, HOSTS),
    ]


def _transports(folder: Path) -> dict[str, int]:
    """How NCCL says that its channels are connected."""
    said = "".join(file.read_text(errors="replace") for file in folder.glob("debug-*"))
    return dict(Counter(re.findall(r" via ([A-Za-z]+(?:/[A-Za-z]+)?)", said)))


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def measure(folder: Path, hosts: int) -> None:
    rank, local, half = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"))
    each = int(os.environ["LOCAL_WORLD_SIZE"])
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / f"debug-{rank}")}
    if hosts == 2:
        os.environ |= {"NCCL_HOSTID": f"host{half}", "NCCL_SOCKET_IFNAME": "lo"}
    device = torch.device("cuda", each * half + local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    n = dist.get_world_size()
    inside = [dist.new_group(list(range(at, at + each))) for at in range(0, n, each)][half]
    across = [dist.new_group(list(range(at, n, each))) for at in range(each)][local]

    def on_two_levels(x: torch.Tensor) -> None:
        part = x.chunk(each)[local]
        dist.reduce_scatter_tensor(part, x, group=inside)
        dist.all_reduce(part, group=across)
        dist.all_gather_into_tensor(x, part, group=inside)

    rows = []
    for size in SIZES:
        x = torch.zeros(size // 4, device=device)
        ways: dict[str, Callable[[torch.Tensor], Any]] = {
            "flat": dist.all_reduce,
            "two levels": on_two_levels,
        }
        rows.append({"bytes": size} | {name: several(way, x) for name, way in ways.items()})
        if rank == 0:
            print(hosts, rows[-1], file=sys.stderr, flush=True)
            (folder / "rows.json").write_text(json.dumps(rows))
    if hosts == 2:
        trace(data_parallel_after(), folder / PROGRAM / f"rank{rank}.json")
    dist.destroy_process_group()


def several(way: Callable[[torch.Tensor], Any], x: torch.Tensor) -> dict[str, Any]:
    """seconds: of one call, the median. crossed: bytes that went by loopback in one call."""
    for _ in range(2):
        way(x)
    times = []
    together()
    before = by_loopback()
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        way(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    together()
    crossed = (by_loopback() - before) / REPEATS
    return {"seconds": statistics.median(times), "times": times, "crossed": crossed}


def together() -> None:
    dist.barrier()
    torch.cuda.synchronize()


def by_loopback() -> int:
    """Bytes that this machine has sent to itself, headers included."""
    (line,) = (one for one in Path("/proc/net/dev").read_text().splitlines() if "lo:" in one)
    return int(line.split()[9])


EXPERIMENT = Experiment(
    "two-hosts",
    "all-reduces over two hosts as NCCL sees them, flat and on two levels; a trace of two hosts",
    minutes=2,
    run=run,
    least=4,
    most=4,
    ranks=4,
)


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]), int(sys.argv[2]))
