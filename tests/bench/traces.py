"""Record small programs with torch.profiler on N GPUs: the traces below data/traces.

    torchrun --nproc-per-node 4 tests/bench/traces.py data/traces
    torchrun --nproc-per-node 4 tests/bench/traces.py data/traces --hang

The first writes a folder a program, a memory snapshot of rank 0, and `overhead.json`: what
recording costs. The second ends with an error on purpose: rank 2 leaves out an all-reduce, and
what NCCL's flight recorder then writes is the recording. Paths and host names are removed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import re
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = 3  # recorded, after warm-up
DTYPE = torch.bfloat16
Step = Callable[[], Any]


# ── Programs: each returns one step ──────────────────────────────────────────────────────────


def mlp(layers: int = 10, width: int = 2048) -> nn.Module:
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).to("cuda", DTYPE)


def data_parallel_before() -> Step:
    """Every gradient is reduced by itself, when the whole backward pass is done."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x_BD = torch.randn(8192, 2048, device="cuda", dtype=DTYPE)

    def step() -> None:
        with record_function("forward"):
            loss = model(x_BD).float().square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("gradients"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def data_parallel_after(late_rank: int | None = None, starved: bool = False) -> Step:
    """DDP: gradients travel in buckets while the backward pass goes on."""
    model = DistributedDataParallel(mlp(), bucket_cap_mb=25)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x_BD = torch.randn(8192, 2048, device="cuda", dtype=DTYPE)
    late = dist.get_rank() == late_rank
    a_NN = torch.randn(4096, 4096, device="cuda", dtype=DTYPE)

    def step() -> None:
        batch = x_BD
        if starved:
            with record_function("input"):
                batch = torch.randn(512, 2048).to("cuda", DTYPE).repeat(16, 1)
        if late:
            with record_function("the slow part"):
                for _ in range(6):
                    a_NN @ a_NN
        with record_function("forward"):
            loss = model(batch).float().square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def tensor_parallel(how: str) -> Step:
    """16 blocks: column-parallel linear, GELU, row-parallel linear, all-reduce."""
    torch.manual_seed(0)
    width, hidden, blocks = 1024, 4096 // dist.get_world_size(), 16
    up_DH = [torch.randn(width, hidden, device="cuda", dtype=DTYPE) / 32 for _ in range(blocks)]
    down_HD = [torch.randn(hidden, width, device="cuda", dtype=DTYPE) / 64 for _ in range(blocks)]
    x_BD = torch.randn(64, width, device="cuda", dtype=DTYPE)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(up_DH, down_HD, strict=True):
            partial = nn.functional.gelu(x @ up) @ down
            if how == "compiled":
                partial = functional.all_reduce(partial, "sum", dist.group.WORLD)
            else:
                dist.all_reduce(partial)
            x = nn.functional.layer_norm(x + partial, (width,))
        return x

    if how == "compiled":
        compiled = torch.compile(forward)
        return torch.no_grad()(lambda: compiled(x_BD))
    if how == "eager":
        return torch.no_grad()(lambda: forward(x_BD))
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            forward(x_BD)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        forward(x_BD)
    return graph.replay


def experts() -> Step:
    """A mixture-of-experts layer: tokens go to the rank of their expert, and back."""
    n, width, tokens = dist.get_world_size(), 1024, 8192
    torch.manual_seed(dist.get_rank())
    x_TD = torch.randn(tokens, width, device="cuda", dtype=DTYPE)
    router_DE = torch.randn(width, n, device="cuda", dtype=DTYPE)
    router_DE[:, 0] += 0.02  # expert 0 is a little more popular
    up = nn.Linear(width, 4 * width, device="cuda", dtype=DTYPE)
    down = nn.Linear(4 * width, width, device="cuda", dtype=DTYPE)

    @torch.no_grad()
    def step() -> None:
        with record_function("route"):
            expert_T = (x_TD @ router_DE).argmax(1)
            order_T = expert_T.argsort()
            sent_E = torch.bincount(expert_T, minlength=n)
            received_E = torch.empty_like(sent_E)
            dist.all_to_all_single(received_E, sent_E)
            sent, received = sent_E.tolist(), received_E.tolist()
        with record_function("dispatch"):
            mine_TD = torch.empty(sum(received), width, device="cuda", dtype=DTYPE)
            dist.all_to_all_single(mine_TD, x_TD[order_T], received, sent)
        with record_function("expert"):
            mine_TD = down(nn.functional.gelu(up(mine_TD)))
        with record_function("combine"):
            back_TD = torch.empty_like(x_TD)
            dist.all_to_all_single(back_TD, mine_TD, sent, received)

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "data-parallel-before": data_parallel_before,
    "data-parallel-after": data_parallel_after,
    "tensor-parallel-eager": lambda: tensor_parallel("eager"),
    "tensor-parallel-compiled": lambda: tensor_parallel("compiled"),
    "tensor-parallel-graph": lambda: tensor_parallel("graph"),
    "experts": experts,
    "slow-rank": lambda: data_parallel_after(late_rank=1),
    "starved": lambda: data_parallel_after(starved=True),
}


# ── Recording ────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hang", action="store_true")
    options = parser.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    if options.hang:
        hang(options.folder / "hang", rank, local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    overhead: dict[str, Any] = {}
    for name, program in PROGRAMS.items():
        step = program()
        for _ in range(5):
            step()
        plain = seconds(step)
        file = options.folder / name / f"rank{rank}.json.gz"
        recorded = record(step, file)
        overhead[name] = cost(plain, recorded)
        if rank == 0:
            print(name, file.stat().st_size, overhead[name], flush=True)
        if name == "data-parallel-after":
            snapshot(step, options.folder / "memory" / "rank0.pickle.gz", rank)
        del step  # a captured graph must be gone before the process group is
        torch.cuda.synchronize()
        dist.barrier()
    if rank == 0:
        (options.folder / "overhead.json").write_text(json.dumps(overhead, indent=1) + "\n")
    dist.destroy_process_group()


def seconds(step: Step, steps: int = 30) -> list[float]:
    """Seconds of each step, from one synchronisation to the next."""
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times


def record(step: Step, file: Path) -> list[float]:
    """Record STEPS steps into `file`; returns the seconds of steps while being recorded."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with profile(activities=activities, schedule=plan, record_shapes=True) as profiler:
        for _ in range(2 + STEPS):
            step()
            torch.cuda.synchronize()
            profiler.step()
    file.parent.mkdir(parents=True, exist_ok=True)
    raw = file.with_suffix(".raw")
    profiler.export_chrome_trace(str(raw))
    content = json.loads(raw.read_text())
    raw.unlink()
    content["host_name"] = "host"
    content["traceName"] = file.name
    content["torch_version"] = torch.__version__
    text = json.dumps(without_paths(content))
    with gzip.GzipFile(file, "wb", mtime=0) as packed:
        packed.write(text.encode())
    with profile(activities=activities, record_shapes=True):
        return seconds(step)


def cost(plain: list[float], recorded: list[float]) -> dict[str, float]:
    before, after = statistics.median(plain), statistics.median(recorded)
    return {
        "step_seconds": before,
        "recorded_step_seconds": after,
        "percent": 100 * (after / before - 1),
    }


def snapshot(step: Step, file: Path, rank: int) -> None:
    """What the allocator did in two steps, on rank 0."""
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=3000)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    content = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    if rank == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.GzipFile(file, "wb", mtime=0) as packed:
            pickle.dump(without_paths(content), packed)


def without_paths(value: Any) -> Any:
    """The same content with file names (of packages: module paths) instead of paths."""
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_paths(item) for item in value)
    if isinstance(value, str) and re.match(r"(/[\w.-]+){3,}", value):
        _, package, module = value.rpartition("/site-packages/")
        return module if package else value.rpartition("/")[2]
    return value


def hang(folder: Path, rank: int, local: int) -> None:
    """Rank 2 leaves out the fourth all-reduce; the watchdog writes a dump on every rank."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "200"
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    prefix = str(folder.resolve() / "rank")
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] = prefix
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=10))
    x = torch.ones(1 << 20, device=device)
    for number in range(6):
        if rank == 2 and number == 3:
            continue
        dist.all_reduce(x)
    torch.cuda.synchronize()
    time.sleep(60)  # the watchdog ends this process


def clean_dumps(folder: Path) -> None:
    """Take the paths out of the dumps that `--hang` left: run it when all ranks are gone."""
    for file in folder.glob("rank*"):
        content = pickle.loads(file.read_bytes())
        file.write_bytes(pickle.dumps(without_paths(content)))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--clean":
        clean_dumps(Path(sys.argv[2]))
    else:
        main()
