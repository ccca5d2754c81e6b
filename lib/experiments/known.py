"""Traces of small programs of which something is known before they are read.

They are written as users write them: DDP, FSDP2, tensor parallel, captured graphs, a step that
hardly fits into memory; nothing of Lockstep runs in them. What a program is known to do follows
from its code, or was counted beside the profiler: by the host's clock, DDP, the driver and the
allocator. That is `known/PROGRAM.json`, by rank; tests compare it with what is read from the
traces. And the allocator's history of two steps of three of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, record_function

from .experiment import Experiment, ExperimentFailed, Result, by_torchrun, join

SKIPPED = 3  # steps before those that are recorded
LATE_IN = SKIPPED + 1  # the step in which a rank is late
LATE, LATE_RANK = 0.02, 1  # seconds
PRODUCTS, SIDE = 40, 4096  # that a rank does more, SIDE x SIDE
GPU = torch.cuda.is_available()
KIND = "cuda" if GPU else "cpu"
LIMIT = 90.0  # seconds for a program


class Program:
    """A program of a rank: `step` for each number, `known` of it, and what else it writes."""

    recorded = 3  # steps

    def __init__(self) -> None:
        self.device = join()
        self.known: dict[str, Any] = {}
        torch.manual_seed(dist.get_rank())

    def step(self, number: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Add what is known only at the end."""

    def late(self, number: int) -> None:
        """Let one rank begin a step late, by a known time."""
        if number == LATE_IN and dist.get_rank() == LATE_RANK:
            with record_function("read from a slow disk"):
                began = time.perf_counter()
                time.sleep(LATE)
                self.known["late_seconds"] = time.perf_counter() - began


# ── Models, as users write them ──────────────────────────────────────────────────────────────


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_btD: torch.Tensor) -> torch.Tensor:
        b, t, D = x_btD.shape
        parts = self.qkv(x_btD).view(b, t, 3, self.heads, D // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(b, t, D))


class Block(nn.Module):
    """Attention and an MLP of four times the width, each behind a norm and beside the residual."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x_btD: torch.Tensor) -> torch.Tensor:
        x_btD = x_btD + self.attention(self.first(x_btD))
        return x_btD + self.mlp(self.second(x_btD))


LAYERS, WIDTH, HEADS, VOCABULARY = 3, 256, 4, 1024
BATCH, LENGTH = (16, 256) if GPU else (2, 16)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids_bt: torch.Tensor) -> torch.Tensor:
        x_btD = self.embedding(ids_bt)
        for block in self.blocks:
            x_btD = block(x_btD)
        return self.head(self.norm(x_btD))


class Training(Program):
    """Steps of a transformer on random tokens; the loss is printed, as everybody does."""

    recorded = 2

    def __init__(self) -> None:
        super().__init__()
        self.model = self.parallel(Transformer().to(self.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=GPU)
        shape = (BATCH, LENGTH)
        self.ids = torch.randint(VOCABULARY, shape, device=self.device)

    def parallel(self, model: Transformer) -> nn.Module:
        raise NotImplementedError

    def step(self, number: int) -> None:
        self.late(number)
        with torch.autocast(KIND, torch.bfloat16):
            loss = cross_entropy(self.model(self.ids).flatten(0, 1), self.ids.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        print(f"step {number}: loss {loss.item():.3f}")


class Ddp(Training):
    """As nanoGPT trains."""

    compiled = False

    def parallel(self, model: Transformer) -> nn.Module:
        weights = sum(one.numel() for one in model.parameters())
        self.known |= {"gradient_bytes_a_step": 4 * weights}
        on = [self.device.index] if GPU else None
        given: Any = torch.compile(model) if self.compiled else model
        return DistributedDataParallel(given, device_ids=on, bucket_cap_mb=4)

    def finish(self) -> None:
        assert isinstance(self.model, DistributedDataParallel)
        said = self.model._get_ddp_logging_data().get("rebuilt_bucket_sizes")
        if said:  # after two steps it is not there yet
            self.known["bucket_bytes"] = [int(one) for one in str(said).split(", ")]


class CompiledDdp(Ddp):
    compiled = True


class Fsdp2(Training):
    """`fully_shard` for each block and the rest, in bfloat16."""

    def parallel(self, model: Transformer) -> nn.Module:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        of_block = sum(one.numel() for one in model.blocks[0].parameters())
        of_all = sum(one.numel() for one in model.parameters())
        self.known |= {"weights_of_a_block": of_block, "weights_of_the_rest": of_all}
        self.known["weights_of_the_rest"] -= LAYERS * of_block
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        return model


TP_LAYERS, TP_WIDTH, TP_ROWS = 6, *((2048, 4096) if GPU else (64, 32))


class TensorParallel(Program):
    """MLPs cut by columns and by rows; a rank does more products than the others."""

    def __init__(self) -> None:
        super().__init__()
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        torch.manual_seed(0)
        dtype = torch.bfloat16 if GPU else torch.float32
        layers = [
            nn.Sequential(
                nn.Linear(TP_WIDTH, 4 * TP_WIDTH, bias=False),
                nn.ReLU(),
                nn.Linear(4 * TP_WIDTH, TP_WIDTH, bias=False),
            )
            for _ in range(TP_LAYERS)
        ]
        model = nn.Sequential(*layers).to(self.device, dtype)
        mesh = init_device_mesh(KIND, (dist.get_world_size(),))
        for layer in model:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        self.x = torch.randn(TP_ROWS, TP_WIDTH, device=self.device, dtype=dtype)
        side = SIDE if GPU else 64
        self.a = torch.randn(side, side, device=self.device, dtype=dtype)
        self.known |= {
            "all_reduce_bytes": TP_ROWS * TP_WIDTH * self.x.element_size(),
            "all_reduces_a_step": 2 * TP_LAYERS - 1,  # the first layer's input has no gradient
            "rows": TP_ROWS,
            "width": TP_WIDTH,
            "hidden_of_a_rank": 4 * TP_WIDTH // dist.get_world_size(),
            "layers": TP_LAYERS,
            "more_products": PRODUCTS,
            "side": side,
        }

    def step(self, number: int) -> None:
        if number == LATE_IN and dist.get_rank() == LATE_RANK:
            for _ in range(PRODUCTS):
                self.a @ self.a
        loss = self.model(self.x).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        print(f"step {number}: loss {loss.item():.3f}")


# ── What only GPUs have ──────────────────────────────────────────────────────────────────────


def nodes_of(graph: torch.cuda.CUDAGraph) -> dict[str, int]:
    """Ask the driver how many nodes a graph has, by kind."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    driver.cuGraphGetNodes(handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kinds: Counter[str] = Counter()
    for node in nodes:
        kind = ctypes.c_int()
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds[{0: "kernel", 1: "copy", 2: "memset"}.get(kind.value, f"type {kind.value}")] += 1
    return dict(kinds)


class Graph(Program):
    """A graph that is captured in the first recorded step, and replayed twice in each later one."""

    operators: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self.x = torch.ones(1 << 20, device=self.device)
        self.copy, self.other = torch.zeros_like(self.x), torch.ones_like(self.x)
        self.small = torch.ones(1 << 10, device=self.device)
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        self.work()  # connects the ranks
        torch.cuda.synchronize()

    def work(self) -> None:
        raise NotImplementedError

    def step(self, number: int) -> None:
        if number < SKIPPED:
            self.work()
        elif number == SKIPPED:
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.work()
            self.graph.instantiate()
        else:
            self.graph.replay()
            self.graph.replay()
        for _ in range(2):  # clocks of ranks are compared by such calls
            dist.all_reduce(self.small, op=dist.ReduceOp.AVG)
        torch.cuda.synchronize()

    def finish(self) -> None:
        counts = dict(Counter(self.operators))
        self.known |= {"replays": 2 * (self.recorded - 1), "operators": counts}
        self.known["nodes"] = nodes_of(self.graph)
        self.graph.reset()  # a group does not end before


class OneStream(Graph):
    """Ten times a product by a number, an addition and an all-reduce; and a copy."""

    operators = ("aten::mul_", "aten::add_", "all_reduce") * 10 + ("aten::copy_",)

    def work(self) -> None:
        for _ in range(10):
            self.x.mul_(0.25)
            self.x.add_(1)
            dist.all_reduce(self.x)
        self.copy.copy_(self.x)


class TwoStreams(Graph):
    """Eight products by a number beside six additions on a second stream; then two roots."""

    operators = ("aten::mul_",) * 8 + ("aten::add_",) * 6 + ("aten::sqrt_",) * 2

    def work(self) -> None:
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(6):
                self.other.add_(0.5)
        for _ in range(8):
            self.x.mul_(0.5)
        main.wait_stream(side)
        self.x.sqrt_()
        self.other.sqrt_()


class Thrashing(Program):
    """Steps of DDP whose batch grows by 8 % each time, with half of their memory to spare.

    What the allocator has kept of earlier steps is too small, and there is no room for more. With
    less to spare, what the blocks of earlier steps leave over is in too many pieces.
    """

    rows, depth, side, spare = 8192, 10, 2048, 1.5

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Sequential(nn.Linear(self.side, self.side), nn.ReLU()) for _ in range(self.depth)
        ]
        model = nn.Sequential(*layers).to(self.device, torch.bfloat16)
        self.model = DistributedDataParallel(model, device_ids=[self.device.index], bucket_cap_mb=8)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.before: dict[str, Any] = {}
        self._train(self._rows(SKIPPED + self.recorded))
        needed = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        whole = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(self.spare * needed / whole)

    def _rows(self, number: int) -> int:
        return int(self.rows * 1.08**number) // 8 * 8

    def _train(self, rows: int) -> None:
        x = torch.randn(rows, self.side, device=self.device, dtype=torch.bfloat16)
        self.model(x).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.cuda.synchronize()

    def step(self, number: int) -> None:
        if number == SKIPPED:
            self.before = torch.cuda.memory_stats()
        self._train(self._rows(number))

    def finish(self) -> None:
        after = torch.cuda.memory_stats()
        for name in ("num_alloc_retries", "num_device_alloc", "num_device_free"):
            self.known[name] = after[name] - self.before[name]


class ThrashingOnce(Thrashing):
    """The same, of which one step is recorded."""

    recorded = 1


PROGRAMS: dict[str, Callable[[], Program]] = {
    "ddp": Ddp,
    "fsdp2": Fsdp2,
    "tensor-parallel": TensorParallel,
}
WHAT = {
    "ddp": "two steps of a transformer with DDP; in the second, rank 1 is late",
    "fsdp2": "two steps of a transformer with FSDP2; in the second, rank 1 is late",
    "tensor-parallel": f"three steps of {TP_LAYERS} tensor-parallel MLPs; in the second, "
    f"rank 1 does {PRODUCTS} more products",
    "graph": "a CUDA graph with NCCL in it, captured on one stream, and its replays",
    "graph-two-streams": "a CUDA graph that was captured on two streams, and its replays",
    "thrashing": "three steps of DDP that hardly fit into memory, each larger than the last",
    "thrashing-one-step": "one step of DDP that hardly fits into memory",
    "memory-ddp": "the CUDA allocator's history of two steps of a transformer with DDP",
    "memory-fsdp2": "the CUDA allocator's history of two steps of a transformer with FSDP2",
    "memory-compiled": "the CUDA allocator's history of two steps with DDP and torch.compile",
}
ON_GPUS: dict[str, Callable[[], Program]] = {
    "graph": OneStream,
    "graph-two-streams": TwoStreams,
    "thrashing": Thrashing,
    "thrashing-one-step": ThrashingOnce,
}
HISTORIES: dict[str, Callable[[], Program]] = {
    "memory-ddp": Ddp,
    "memory-fsdp2": Fsdp2,
    "memory-compiled": CompiledDdp,
}


# ── Recording ────────────────────────────────────────────────────────────────────────────────


def profiled(name: str, folder: str) -> None:
    """Run a program on a rank of torchrun; write its trace and what is known of it."""
    program = (PROGRAMS | ON_GPUS)[name]()
    rank = dist.get_rank()
    profiler = torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])],
        schedule=torch.profiler.schedule(
            wait=SKIPPED - 1, warmup=1, active=program.recorded, repeat=1
        ),
        on_trace_ready=lambda it: it.export_chrome_trace(f"{folder}/rank{rank}.json"),
        record_shapes=True,
    )
    with profiler:
        for number in range(SKIPPED + program.recorded):
            program.step(number)
            profiler.step()
    _leave(program, folder)


def remembered(name: str, folder: str) -> None:
    """Run two steps on a rank of torchrun; write the allocator's history of all of it."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.cuda.init()  # without it, nothing would be recorded
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
    program = HISTORIES[name]()
    for number in range(2):
        program.step(number)
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        with open(f"{folder}/rank0.pickle", "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
    torch.cuda.memory._record_memory_history(enabled=None)
    _leave(program, folder)


def _leave(program: Program, folder: str) -> None:
    program.finish()
    text = json.dumps(program.known)
    Path(folder, f"known{dist.get_rank()}.json").write_text(text)
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a DDP model that is alive when Python ends aborts some ranks


def record(name: str, nproc: int) -> list[Result]:
    """Return a program's traces, or its history, and what is known of it by rank."""
    with tempfile.TemporaryDirectory(prefix="lockstep-known-") as folder:
        by_torchrun(__name__, name, folder, nproc=nproc, limit=LIMIT)
        files = {one.name: one for one in Path(folder).iterdir()}
        known = {
            str(rank): json.loads(files[f"known{rank}.json"].read_text()) for rank in range(nproc)
        }
        content: dict[str, Any] = {}
        for rank in range(nproc):
            if trace := files.get(f"rank{rank}.json"):
                content[f"rank{rank}.json.gz"] = json.loads(trace.read_bytes())
            if history := files.get(f"rank{rank}.pickle"):
                content[f"rank{rank}.pickle.gz"] = pickle.loads(history.read_bytes())
    what = f"what is known of traces/known/{name} without reading it, by rank"
    return [
        Result(f"traces/known/{name}", WHAT[name], content),
        Result(f"known/{name}.json", what, known),
    ]


def of_program(name: str, machine: Machine, nproc: int) -> Iterator[Result]:
    """Record these programs, or all for "": one that fails is said, and leaves the others be."""
    every = {**PROGRAMS, **(ON_GPUS | HISTORIES if machine.gpus else {})}
    failed = []
    for one in [name] if name else every:
        began = time.perf_counter()
        try:
            results = record(one, nproc)
        except (ExperimentFailed, LookupError, OSError, ValueError) as error:
            failed.append(f"{one}: {type(error).__name__}: {error}")
            continue
        finally:
            print(f"{one}: {time.perf_counter() - began:.1f} s", flush=True)
        yield from results
    if failed:
        raise ExperimentFailed("; ".join(failed))


EXPERIMENT = Experiment(
    "known",
    "traces of small programs of which something is known before they are read",
    minutes=4,
    run=partial(of_program, ""),
    least=2,
    most=2,
    ranks=2,
    gpus=False,
    part=of_program,
    writes={
        "known/*.json": ("[0-9]",),
        "traces/known/memory-*": ("rank0.pickle.gz",),
        "traces/known/[!m]*": ("rank*.json.gz",),
    },
)


if __name__ == "__main__":  # a rank
    (remembered if sys.argv[1] in HISTORIES else profiled)(*sys.argv[1:])
