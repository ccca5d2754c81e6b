"""What fresh and kept ranks cost on a machine with GPUs, and how failures under NCCL read.

    python tests/bench/gpus.py --json data/launch/NAME.json

Run it where torch sees the GPUs; it uses all of them, then 1, then half.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from typing import Any

from jupyter_client.manager import start_new_kernel
from lockstep import JobFailed, torchrun
from lockstep.launch.run import gpu_count
from lockstep.machine import probe


def phases() -> dict[str, float]:
    """Seconds that a rank spends on each step from nothing to its second all-reduce."""
    import torch
    import torch.distributed as dist

    marks = {"start": time.perf_counter()}
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    x = torch.ones(1 << 20, device=device)
    torch.cuda.synchronize()
    marks["CUDA context"] = time.perf_counter()
    dist.init_process_group("nccl", device_id=device)
    marks["init_process_group"] = time.perf_counter()
    for name in ("first all_reduce", "second all_reduce"):
        dist.all_reduce(x)
        torch.cuda.synchronize()
        marks[name] = time.perf_counter()
    steps = list(marks)
    return {b: marks[b] - marks[a] for a, b in itertools.pairwise(steps)}


def fresh(nproc: int, times: int = 3) -> dict[str, Any]:
    runs = []
    for _ in range(times):
        began = time.perf_counter()
        job = torchrun(phases, nproc_per_node=nproc, init=False, show=False)
        whole = time.perf_counter() - began
        slowest = {step: max(r[step] for r in job.results) for step in job.results[0]}
        runs.append({"cell to result": whole, **slowest, "teardown": whole - job.seconds})
    return {step: statistics.median(run[step] for run in runs) for step in runs[0]}


WORLD_CELL = """%%torchrun --world world
import torch, torch.distributed as dist, lockstep
x = torch.ones(1 << 20, device=lockstep.device())
dist.all_reduce(x)
x[0].item()
"""


def world(nproc: int, times: int = 20) -> dict[str, Any]:
    """A cell with an all-reduce on a kept world, in a real kernel, from request to idle."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:

        def seconds(code: str) -> float:
            began = time.perf_counter()
            reply = client.execute_interactive(code, timeout=120, output_hook=lambda _: None)
            assert reply["content"]["status"] == "ok", reply["content"]
            return time.perf_counter() - began

        seconds("%load_ext lockstep\nimport lockstep")
        seconds(f"world = lockstep.World({nproc})")
        first = seconds(WORLD_CELL)
        later = [seconds(WORLD_CELL) for _ in range(times)]
        return {
            "first cell": first,
            "second cell": later[0],
            "later cells, median": statistics.median(later),
            "later cells, slowest": max(later),
            "close": seconds("world.close()"),
        }
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def different() -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(8, device="cuda")
    if dist.get_rank() == 0:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, 0)
    torch.cuda.synchronize()


def early() -> float:
    import torch
    import torch.distributed as dist

    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    if dist.get_rank() != 1:
        dist.all_reduce(x)
    return x.sum().item()


def raises() -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(8, device="cuda")
    if dist.get_rank() == 1:
        raise ValueError("on purpose")
    dist.all_reduce(x)
    torch.cuda.synchronize()


def all_send() -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(1 << 24, device="cuda")
    y = torch.empty_like(x)
    peer = dist.get_rank() ^ 1
    dist.send(x, peer)
    dist.recv(y, peer)
    torch.cuda.synchronize()


def graph_outlives_group() -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def failures(nproc: int) -> dict[str, Any]:
    told = {}
    for function in (raises, different, early, all_send, graph_outlives_group):
        began = time.perf_counter()
        try:
            torchrun(function, nproc_per_node=nproc, backend="nccl", timeout=20, show=False)
            report = "(no failure)"
        except JobFailed as error:
            report = str(error)
        told[function.__name__] = {"seconds": time.perf_counter() - began, "report": report}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    gpus = gpu_count()
    if gpus == 0:
        sys.exit("no GPU that PyTorch can use")
    machine = torchrun(probe, nproc_per_node=1, init=False, show=False).results[0]
    result: dict[str, Any] = {
        "machine": machine.gpus[0].name,
        "gpus": gpus,
        "cores": machine.cores,
        "torch": machine.torch.version,
        "nccl": machine.torch.nccl,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "command": "python tests/bench/gpus.py",
        "unit": "seconds, median of the runs, slowest rank",
    }
    for nproc in sorted({1, max(1, gpus // 2), gpus}):
        result[f"fresh, {nproc}"] = fresh(nproc)
        result[f"world, {nproc}"] = world(nproc)
        print(json.dumps({k: v for k, v in result.items() if k.endswith(f", {nproc}")}, indent=1))
    if gpus > 1:
        result["failures"] = failures(gpus)
        print(json.dumps(result["failures"], indent=1, ensure_ascii=False))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
