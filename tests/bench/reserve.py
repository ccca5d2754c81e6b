"""A fresh cell with ranks in reserve and without, in one run, by turns.

    reserve.py [-n N] [--backend gloo|nccl] [--times 10] [--json FILE]

"ready": the learner has read as long as the reserve needs to come up. "at once": the next cell
comes as soon as one ends. "behind": the same, where the reserve comes up behind the running cell.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import reserve, torchrun
from lockstep.launch.reserve import kept

PATIENCE = 60.0  # seconds for a reserve to come up


def _device(dist: Any) -> str:
    """Not by lockstep, which a rank would have to import first."""
    return f"cuda:{dist.get_rank()}" if dist.get_backend() == "nccl" else "cpu"


def reduce(size: int) -> dict[str, float]:
    """One all-reduce, and the seconds that it took on this rank."""
    import torch
    import torch.distributed as dist

    began = time.perf_counter()
    x = torch.ones(size, device=_device(dist))
    dist.all_reduce(x)
    value = x[0].item()
    assert value == dist.get_world_size(), value
    return {"first all_reduce": time.perf_counter() - began}


def latencies(seconds: float) -> list[tuple[float, float]]:
    """When each all-reduce of 4 KiB was over, since the start, and how long it took."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1 << 10, device=_device(dist))
    found, began = [], time.perf_counter()
    going = torch.ones(1, device=x.device)
    while going.item():
        for _ in range(100):
            start = time.perf_counter()
            dist.all_reduce(x)
            x[0].item()
            found.append((time.perf_counter() - began, time.perf_counter() - start))
        going.fill_(float(time.perf_counter() - began < seconds))
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
    return found


def cell(nproc: int, backend: str, what: Callable[..., Any] = reduce, *args: Any) -> Any:
    """A job that is shown, as a cell's is; its lines go nowhere."""
    with contextlib.redirect_stdout(io.StringIO()):
        return torchrun(what, *(args or (1 << 10,)), nproc_per_node=nproc, backend=backend)


def timed(nproc: int, backend: str) -> dict[str, float]:
    began = time.perf_counter()
    job = cell(nproc, backend)
    whole = time.perf_counter() - began
    inside = max(result["first all_reduce"] for result in job.results)
    return {"cell": whole, "job": job.seconds, "first all_reduce": inside}


def come_up() -> float:
    """Wait for the reserve; returns the seconds, NaN where it did not come."""
    began = time.perf_counter()
    while not kept.is_ready:
        if time.perf_counter() - began > PATIENCE:
            return float("nan")
        time.sleep(0.01)
    return time.perf_counter() - began


def memory() -> list[int]:
    """MiB in use on each GPU; [] where there is none."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return [int(word) for word in subprocess.check_output(ask, text=True).split()]
    return []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=4)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    nproc, backend, file = given.n, given.backend, given.json
    found: dict[str, Any] = {"ranks": nproc, "backend": backend}

    def note(name: str, value: Any) -> None:
        found[name] = value
        print(name, value, flush=True)
        if file:
            file.write_text(json.dumps(found, indent=1))

    reserve("off")
    cell(nproc, backend)  # wakes the warm parent
    note("memory without, MiB", memory())
    runs: dict[str, list[dict[str, float]]] = {"off": [], "ready": []}
    waits = []
    for _ in range(2):  # by turns, for what else the machine does
        reserve("off")
        runs["off"] += [timed(nproc, backend) for _ in range(given.times // 2)]
        reserve("between")
        cell(nproc, backend)
        for _ in range(given.times // 2):
            waits.append(come_up())
            runs["ready"].append(timed(nproc, backend))
    come_up()
    note("memory with a reserve, MiB", memory())
    note("seconds until it is ready", statistics.median(waits))
    for name, when in (("at once", "between"), ("behind", "behind")):
        reserve("off")
        reserve(when)
        cell(nproc, backend)
        runs[name] = [timed(nproc, backend) for _ in range(4)]
    for name, rows in runs.items():
        note(name, {key: statistics.median(row[key] for row in rows) for key in rows[0]})
        note(f"{name}, all", [round(row["cell"], 4) for row in rows])
    for when in ("off", "behind"):
        reserve("off")
        reserve(when)
        took = sorted(taken for _, taken in cell(nproc, backend, latencies, 2.5).results[0][10:])
        shares = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999}
        said = {name: took[int(len(took) * share)] for name, share in shares.items()}
        note(f"all_reduce of 4 KiB, reserve {when}", {**said, "slowest": took[-1], "n": len(took)})
    reserve("off")


if __name__ == "__main__":
    sys.exit(main())
