"""Small programs under torch.profiler, the allocator's history of one, and what recording costs.

Under PyTorch's own torchrun, so that nothing of Lockstep is in the traces.
"""

from __future__ import annotations

import json
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from lockstep.base.machine import Machine
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from .experiment import Experiment, Result, by_torchrun, join_nccl

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
                assert parameter.grad is not None
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
    world = dist.group.WORLD
    assert world is not None
    width, hidden, blocks = 1024, 4096 // dist.get_world_size(), 16
    up_DH = [torch.randn(width, hidden, device="cuda", dtype=DTYPE) / 32 for _ in range(blocks)]
    down_HD = [torch.randn(hidden, width, device="cuda", dtype=DTYPE) / 64 for _ in range(blocks)]
    x_BD = torch.randn(64, width, device="cuda", dtype=DTYPE)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(up_DH, down_HD, strict=True):
            partial = nn.functional.gelu(x @ up) @ down
            if how == "compiled":
                partial = functional.all_reduce(partial, "sum", world)
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


PROGRAMS: dict[str, tuple[Callable[[], Step], str]] = {
    "data-parallel-before": (
        data_parallel_before,
        "three steps of a 10-layer MLP, batch 8192 a rank; every gradient reduced by itself after "
        "the backward pass",
    ),
    "data-parallel-after": (
        data_parallel_after,
        "the same with DDP: gradients travel in buckets of 25 MB while the backward pass goes on",
    ),
    "tensor-parallel-eager": (
        lambda: tensor_parallel("eager"),
        "three forward passes of 16 tensor-parallel MLP blocks (width 1024, batch 64), one "
        "all-reduce a block",
    ),
    "tensor-parallel-compiled": (
        lambda: tensor_parallel("compiled"),
        "the same through torch.compile with functional collectives",
    ),
    "tensor-parallel-graph": (
        lambda: tensor_parallel("graph"),
        "the same as one captured CUDA graph a rank, replayed",
    ),
    "experts": (
        experts,
        "three steps of a mixture-of-experts layer, one expert a rank, tokens there and back by "
        "all_to_all",
    ),
    "slow-rank": (
        lambda: data_parallel_after(late_rank=1),
        "data-parallel-after with six more 4096x4096 products on rank 1",
    ),
    "starved": (
        lambda: data_parallel_after(starved=True),
        "data-parallel-after where each step first makes its input on the CPU",
    ),
}


# ── Recording ────────────────────────────────────────────────────────────────────────────────


def trace_all(folder: Path) -> None:
    """Trace each program on this rank; rank 0 also leaves what is not of all ranks."""
    join_nccl()
    rank = dist.get_rank()
    overhead: dict[str, Any] = {}
    for name, (program, _) in PROGRAMS.items():
        step = program()
        for _ in range(5):
            step()
        plain = seconds(step)
        overhead[name] = cost(plain, trace(step, folder / name / f"rank{rank}.json"))
        if rank == 0:
            print(name, overhead[name], file=sys.stderr, flush=True)
        if name == "data-parallel-after":
            history = allocations(step)
            if rank == 0:
                (folder / "memory.pickle").write_bytes(pickle.dumps(history))
        del step  # a captured graph must be gone before the process group is
        torch.cuda.synchronize()
        dist.barrier()
    if rank == 0:
        (folder / "overhead.json").write_text(json.dumps(overhead))
    dist.destroy_process_group()


def seconds(step: Step, steps: int = 30) -> list[float]:
    """Return the seconds of each step, from one synchronisation to the next."""
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


def trace(step: Step, file: Path) -> list[float]:
    """Record STEPS steps into `file`; returns the seconds of steps while being recorded."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with profile(activities=activities, schedule=plan, record_shapes=True) as profiler:
        for _ in range(2 + STEPS):
            step()
            torch.cuda.synchronize()
            profiler.step()
    file.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(file))
    with profile(activities=activities, record_shapes=True):
        return seconds(step)


def cost(plain: list[float], recorded: list[float]) -> dict[str, float]:
    before, after = statistics.median(plain), statistics.median(recorded)
    return {
        "step_seconds": before,
        "recorded_step_seconds": after,
        "percent": 100 * (after / before - 1),
    }


def allocations(step: Step) -> Any:
    """Record what the allocator did in two steps."""
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=3000)
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    content = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    return content


# ── Reading what the ranks left ──────────────────────────────────────────────────────────────


def run(_: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_torchrun(__name__, folder, nproc=nproc)
        results = [
            Result(f"traces/{program}", what, traces(folder / program))
            for program, (_, what) in PROGRAMS.items()
        ]
        history = pickle.loads((folder / "memory.pickle").read_bytes())
        overhead = json.loads((folder / "overhead.json").read_text())
    what = "the CUDA allocator's history of two steps of data-parallel-after on rank 0"
    results.append(Result("traces/memory", what, {"rank0.pickle.gz": history}))
    what = "step time without and with the profiler, medians of 30 steps"
    results.append(Result("traces/overhead.json", what, overhead))
    return results


def traces(folder: Path) -> dict[str, Any]:
    """Return the trace of each rank, by the name of its file, without what names the machine."""
    found = {}
    for file in sorted(folder.iterdir()):
        content = json.loads(file.read_text())
        content["host_name"] = "host"
        content["traceName"] = f"{file.name}.gz"
        content["torch_version"] = torch.__version__
        found[f"{file.name}.gz"] = content
    return found


EXPERIMENT = Experiment(
    "traces",
    "traces of eight small programs, the allocator's history, the cost of recording",
    minutes=3,
    run=run,
    least=2,
    ranks=4,
    triton=True,
    writes={
        **{f"traces/{program}": ("rank*.json.gz",) for program in PROGRAMS},
        "traces/memory": ("rank0.pickle.gz",),
        "traces/overhead.json": tuple(PROGRAMS),
    },
)


if __name__ == "__main__":  # a rank
    trace_all(Path(sys.argv[1]))
