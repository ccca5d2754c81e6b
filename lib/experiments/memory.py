"""What a training step keeps on a GPU, what the allocator's settings change, and what copies take.

Ten transformers after two steps of AdamW, by what holds the bytes, and PyTorch's own snapshot of
one; one of them recomputed in several ways, or with what it saves on the host; a sequence of sizes
under the allocator's settings; steps of many lengths with little memory to spare; copies beside
products, weights that are fetched one ahead, by hand and by FSDP2; memory pools, for what stays and
for NCCL; and small all-reduces over symmetric memory beside NCCL's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import checkpoint

from .experiment import Experiment, Result, device_name
from .known import Block

LIMIT = 60.0  # seconds for each job
MB = 1 << 20
WHAT = "what training keeps and recomputing saves, settings of the allocator, copies, fetching"


class Config(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    dtype: str = "bfloat16"


CONFIGS = (
    Config(4, 512, 8, 8192, 4, 512),
    Config(12, 768, 12, 50304, 8, 1024),
    Config(12, 768, 12, 50304, 2, 1024, "float32"),
    Config(24, 1024, 16, 50304, 8, 1024),
    Config(24, 1024, 16, 1000, 8, 1024),
    Config(36, 1280, 20, 50304, 4, 1024),
    Config(8, 4096, 32, 32000, 2, 2048),
    Config(2, 8192, 64, 32000, 1, 4096),
    Config(16, 1536, 12, 32000, 3, 777),
    Config(6, 1024, 8, 100_000, 16, 256, "float32"),
)
RECOMPUTED = CONFIGS[3]
KEPT_OPERATORS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Transformer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, ids_bt: torch.Tensor, recompute: str) -> torch.Tensor:
        x = self.embedding(ids_bt)
        for at, block in enumerate(self.blocks):
            if recompute == "all" or (recompute == "every second" and at % 2 == 0):
                x = checkpoint.checkpoint(block, x, use_reentrant=False)
            elif recompute == "all but products":
                keep = partial(
                    checkpoint.create_selective_checkpoint_contexts, list(KEPT_OPERATORS)
                )
                x = checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=keep)
            else:
                x = block(x)
        return self.head(self.norm(x))


def seconds(call: Callable[[], object], times: int, gpus: Sequence[int | None] = (None,)) -> float:
    """Return the median time of a call until these GPUs are done, without the first call's.

    gpus: None is the current one.
    """
    took = []
    for _ in range(times):
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        began = time.perf_counter()
        call()
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])


def seconds_in_a_graph(call: Callable[[], object], calls: int) -> float:
    """Return the median time of one of so many captured calls, of replays that ranks begin at the
    same time."""
    graph, took = torch.cuda.CUDAGraph(), []
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    for _ in range(9):
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - began) / calls)
    graph.reset()
    return statistics.median(took)


def training(config: Config, recompute: str = "none", steps: int = 2) -> dict[str, Any]:
    """Bytes of what a step keeps, and its peaks; with more steps, its time too."""
    torch.manual_seed(0)
    dtype = getattr(torch, config.dtype)
    model = Transformer(config).to("cuda", dtype)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.randint(config.vocabulary, (config.batch, config.length), device="cuda")
    base = torch.cuda.memory_allocated()
    found: dict[str, Any] = {**config._asdict(), "recompute": recompute, "weights": base}
    marks, took = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        on_host = recompute == "saved on the host"
        saved = torch.autograd.graph.save_on_cpu(pin_memory=True) if on_host else nullcontext()
        with saved:
            loss = cross_entropy(model(ids, recompute).flatten(0, 1), ids.flatten())
        after_forward = torch.cuda.memory_allocated()
        loss.backward()
        del loss
        peak_backward = torch.cuda.max_memory_allocated()
        after_backward = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        peak_optimizer = torch.cuda.max_memory_allocated()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
        marks.append(
            {
                "after forward": after_forward,
                "peak until the backward's end": peak_backward,
                "after backward": after_backward,
                "peak of the optimizer": peak_optimizer,
                "after the step": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
            }
        )
    found["parameters"] = sum(one.numel() for one in model.parameters())
    found["steps"], found["seconds"] = marks[:2], statistics.median(took[1:])
    return found


def alone(config: Config, recompute: str = "none", steps: int = 2) -> dict[str, Any]:
    """The same, with nothing before it in the allocator."""
    torch.cuda.empty_cache()
    return training(config, recompute, steps)


def models() -> list[dict[str, Any]]:
    return [alone(config) for config in CONFIGS]


def recomputing() -> list[dict[str, Any]]:
    return [
        alone(RECOMPUTED, how, steps=8)
        for how in ("none", "every second", "all but products", "all", "saved on the host")
    ]


def snapshot() -> dict[str, Any]:
    """Return what PyTorch's own recording of memory says of two steps of the smallest model."""
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    training(CONFIGS[0])
    found: dict[str, Any] = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    return found


LENGTHS = (1024, 611, 893, 402, 1000, 755, 533, 948)


def lengths(spare: float | None, setting: str = "") -> dict[str, Any]:
    """Steps of a model on batches of many lengths, with little memory beside what they need.

    spare: what may be reserved beyond the most that is allocated, as a part of it; None: all.
    """
    if setting:
        torch.cuda.memory._set_allocator_settings(setting)
    config = Config(12, 1024, 16, 16_384, 8, 1024)
    torch.manual_seed(0)
    model = Transformer(config).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(length: int) -> None:
        ids = torch.randint(config.vocabulary, (config.batch, length), device="cuda")
        cross_entropy(model(ids, "none").flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for length in (1024, 1024):
        step(length)
    needed = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    if spare is not None:
        whole = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(needed * (1 + spare) / whole)
    for length in LENGTHS:
        step(length)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    began = time.perf_counter()
    for length in LENGTHS:
        step(length)
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    after = torch.cuda.memory_stats()
    found: dict[str, Any] = {
        "spare": spare,
        "setting": setting or "default",
        "needed": needed,
        "reserved": torch.cuda.max_memory_reserved(),
        "seconds a step": took / len(LENGTHS),
        **{
            name: after[name] - before[name]
            for name in ("num_alloc_retries", "num_device_alloc", "num_device_free")
        },
    }
    return found


SPARED: tuple[tuple[float | None, str], ...] = (
    (None, ""),
    (0.25, ""),
    (0.1, ""),
    (0.05, ""),
    (0.05, "expandable_segments:True"),
    (0.05, "roundup_power2_divisions:8"),
)

SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
)


def growing() -> Iterator[int]:
    """Bytes, one after the other: as of a cache of keys that grows with each token, by 3 %."""
    size = 64 * MB
    while size < 2048 * MB:
        yield size
        size = int(size * 1.03) // 512 * 512


def mixed() -> Iterator[int]:
    """Bytes, one after the other: as of experts that get a different share at each step."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(400):
        yield 512 * int(torch.randint(2000, 200_000, (), generator=draw))


def sequence(setting: str, sizes: Callable[[], Iterator[int]], alive: int) -> dict[str, Any]:
    """Bytes reserved and allocated at most where the last `alive` tensors live, and the seconds."""
    torch.cuda.init()
    if setting:
        torch.cuda.memory._set_allocator_settings(setting)
    limit = 12 << 30
    whole = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(limit / whole)
    kept: list[torch.Tensor] = []
    failed = ""
    torch.cuda.synchronize()
    began = time.perf_counter()
    done = 0
    try:
        for size in sizes():
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            del kept[:-alive]
            done += 1
    except torch.OutOfMemoryError as error:
        failed = str(error).split(". ")[0]
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "setting": setting or "default",
        "sizes": sizes.__name__,
        "done": done,
        "seconds": time.perf_counter() - began,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "retries": stats["num_alloc_retries"],
        "num_device_alloc": stats["num_device_alloc"],
        "failed": failed,
    }


def copies() -> list[dict[str, Any]]:
    """Seconds of copies to the GPU, pinned or not, alone and beside products of another stream."""
    rows = []
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    side = torch.cuda.Stream()

    def products() -> None:
        for _ in range(20):
            a @ a

    def timed(*calls: Callable[[], object]) -> float:
        return seconds(lambda: [call() for call in calls], 4)

    def copy(there: torch.Tensor, host: torch.Tensor) -> None:
        with torch.cuda.stream(side):
            there.copy_(host, non_blocking=True)

    for size in (MB // 16, MB, 16 * MB, 256 * MB, 1024 * MB):
        for pinned in (False, True):
            host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            host.fill_(1)
            there = torch.empty(size, dtype=torch.uint8, device="cuda")
            to_gpu, back = partial(copy, there, host), partial(copy, host, there)
            rows.append(
                {
                    "bytes": size,
                    "pinned": pinned,
                    "to the GPU": timed(to_gpu),
                    "from the GPU": timed(back),
                    "products": timed(products),
                    "both": timed(products, to_gpu),
                    "both, the copy first": timed(to_gpu, products),
                }
            )
    return rows


FETCHED, SIDE = 12, 8192  # products with weights of SIDE x SIDE that lie in pinned memory


def prefetching() -> list[dict[str, Any]]:
    """Seconds of products by rows: with weights there, fetched when needed, and one ahead."""
    on_host = [torch.empty(SIDE, SIDE, dtype=torch.bfloat16, pin_memory=True) for _ in range(2)]
    weights = [torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    for host, one in zip(on_host, weights, strict=True):
        host.copy_(one / SIDE)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    fetched, used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def resident(x: torch.Tensor) -> None:
        for at in range(FETCHED):
            x = x @ weights[at % 2]

    def on_demand(x: torch.Tensor) -> None:
        for at in range(FETCHED):
            weights[at % 2].copy_(on_host[at % 2], non_blocking=True)
            x = x @ weights[at % 2]

    def fetch(at: int) -> None:
        with torch.cuda.stream(side):
            if at >= 2:
                side.wait_event(used[at % 2])
            weights[at % 2].copy_(on_host[at % 2], non_blocking=True)
            fetched[at % 2].record(side)

    def ahead(x: torch.Tensor) -> None:
        side.wait_stream(main)
        fetch(0)
        for at in range(FETCHED):
            if at + 1 < FETCHED:
                fetch(at + 1)
            main.wait_event(fetched[at % 2])
            x = x @ weights[at % 2]
            used[at % 2].record(main)

    def copies_alone(x: torch.Tensor) -> None:
        for at in range(FETCHED):
            weights[at % 2].copy_(on_host[at % 2], non_blocking=True)

    found = []
    for rows in (1024, 4096, 8192, 12_288, 16_384, 32_768):
        x = torch.randn(rows, SIDE, dtype=torch.bfloat16, device="cuda")
        row: dict[str, Any] = {"rows": rows}
        for call in (resident, copies_alone, on_demand, ahead):
            row[call.__name__] = seconds(partial(call, x), 6)
        found.append(row)
    return found


def sharded(on_host: bool) -> dict[str, Any]:
    """A step of FSDP2 on one rank, with the parameters on the GPU or on the host."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    torch.manual_seed(0)
    policy = CPUOffloadPolicy() if on_host else OffloadPolicy()
    model = Transformer(RECOMPUTED).to(dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, offload_policy=policy)
    fully_shard(model, offload_policy=policy)
    model.to("cpu" if on_host else "cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.randint(RECOMPUTED.vocabulary, (RECOMPUTED.batch, 1024), device="cuda")

    def step() -> None:
        torch.cuda.reset_peak_memory_stats()
        cross_entropy(model(ids, "none").flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {
        "parameters": "on the host" if on_host else "on the GPU",
        "seconds": seconds(step, 4),
        "peak": torch.cuda.max_memory_allocated(),
    }


BLOCKS, PLACES = 8, 2  # weights of SIDE x SIDE, and places for them on the GPU


class Product(nn.Module):
    """A block of one product."""

    def __init__(self, trained: bool):
        super().__init__()
        weight = torch.full((SIDE, SIDE), 1 / SIDE, dtype=torch.bfloat16)
        self.weight = nn.Parameter(weight, requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)


def by_hand(x: torch.Tensor, on_host: list[torch.Tensor], ahead: bool) -> None:
    """There and back through all weights, as lab 12's `offloaded`, or each fetched when needed."""
    now, side = torch.cuda.current_stream(), torch.cuda.Stream()
    order = [*range(BLOCKS), *reversed(range(BLOCKS))]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(PLACES)]
    free = [now.record_event()] * PLACES

    def fetch(i: int) -> None:
        free[i % PLACES].wait(side if ahead else now)
        with torch.cuda.stream(side if ahead else now):
            places[i % PLACES].copy_(on_host[i], non_blocking=True)

    fetch(0)
    for step, i in enumerate(order):
        now.wait_stream(side)
        last = step + 1 == len(order)
        if ahead and not last and order[step + 1] != i:
            fetch(order[step + 1])
        weight = places[i % PLACES]
        x = x @ (weight.T if step < BLOCKS else weight)
        free[i % PLACES] = now.record_event()
        if not ahead and not last and order[step + 1] != i:
            fetch(order[step + 1])


def resident(x: torch.Tensor, weights: list[torch.Tensor]) -> None:
    """The same with all weights on the GPU."""
    for weight in weights:
        x = x @ weight.T
    for weight in reversed(weights):
        x = x @ weight


def forward_backward(model: nn.Module, x: torch.Tensor) -> None:
    y = model(x.requires_grad_())
    y.backward(torch.ones_like(y))
    x.grad = None
    model.zero_grad()


def by_fsdp2(trained: bool, prefetches: bool) -> Any:
    """The same blocks with FSDP2 and their parameters on the host."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    blocks: list[Any] = [Product(trained) for _ in range(BLOCKS)]
    policy = CPUOffloadPolicy()
    for block in blocks:
        fully_shard(block, offload_policy=policy)
    whole = fully_shard(nn.Sequential(*blocks), offload_policy=policy)
    if prefetches:
        for at, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 2])
            block.set_modules_to_backward_prefetch(blocks[max(at - 1, 0) : at])
    return whole


def fetching(how: str) -> list[dict[str, Any]]:
    """Seconds and peak of a way through blocks of one product, forward and backward, by rows."""
    call: Callable[[torch.Tensor], object]
    if how in ("resident", "when needed", "ahead"):
        device = "cuda" if how == "resident" else "cpu"
        weight = torch.full((BLOCKS, SIDE, SIDE), 1 / SIDE, dtype=torch.bfloat16, device=device)
        if how == "resident":
            call = partial(resident, weights=list(weight))
        else:
            call = partial(by_hand, on_host=list(weight.pin_memory()), ahead=how == "ahead")
    else:
        call = partial(forward_backward, by_fsdp2("trained" in how, "prefetching" in how))
    found = []
    for rows in (4096, 16_384, 32_768):
        x = torch.randn(rows, SIDE, device="cuda").to(torch.bfloat16)
        torch.cuda.reset_peak_memory_stats()
        took = seconds(partial(call, x), 5)
        peak = torch.cuda.max_memory_allocated()
        found.append({"rows": rows, "seconds": took, "peak": peak})
    return found


WAYS = (
    *("resident", "when needed", "ahead"),
    *("FSDP2", "FSDP2, prefetching", "FSDP2, trained", "FSDP2, trained, prefetching"),
)


def staying(pooled: bool) -> dict[str, Any]:
    """Bytes that stay reserved after large tensors have come and gone, and each time a small one
    has come that stays: beside them, or in a pool of its own."""
    draw = torch.Generator().manual_seed(0)
    pool = torch.cuda.MemPool()
    kept: list[torch.Tensor] = []
    passing: list[torch.Tensor] = []
    for _ in range(200):
        size = 512 * int(torch.randint(20_000, 200_000, (), generator=draw))
        passing.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        del passing[:-4]
        with torch.cuda.use_mem_pool(pool) if pooled else nullcontext():
            kept.append(torch.empty(3 * MB, dtype=torch.uint8, device="cuda"))
    most = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    passing.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {
        "pool": pooled,
        "allocated at most": most[0],
        "reserved at most": most[1],
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
    }


POOLED = (1 << 10, 16 << 10, 256 << 10, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)


def registered(how: str) -> list[dict[str, Any]]:
    """Seconds of NCCL's all-reduces, of ordinary memory or of a pool that NCCL knows; medians."""
    group = dist.group.WORLD
    assert group is not None
    backend: Any = group._get_backend(torch.device("cuda"))
    dist.all_reduce(torch.ones(1, device="cuda"))  # so that there is a communicator
    numbers = [size // 2 for size in POOLED]
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool) if how != "ordinary" else nullcontext():
        tensors = [torch.ones(n, dtype=torch.bfloat16, device="cuda") for n in numbers]
    if how == "registered":
        backend.register_mem_pool(pool)
    if how == "symmetric":
        backend.register_mem_pool(pool, symm=True)
    rows = []
    for size, x in zip(POOLED, tensors, strict=True):
        dist.all_reduce(x)
        right = bool((x == dist.get_world_size()).all())
        x.zero_()
        took = seconds_in_a_graph(partial(dist.all_reduce, x), 50 if size <= 4 * MB else 10)
        rows.append({"bytes": size, "right": right, "seconds": took})
    return rows


def peers() -> list[dict[str, Any]]:
    """Seconds of copies from one GPU to another, which this process sees both."""
    found = []
    for size in (MB // 256, MB // 16, MB, 16 * MB, 256 * MB, 1024 * MB):
        here = torch.ones(size, dtype=torch.uint8, device="cuda:0")
        there = torch.empty(size, dtype=torch.uint8, device="cuda:1")
        took = seconds(partial(there.copy_, here, non_blocking=True), 10, gpus=(0, 1))
        can = torch.cuda.can_device_access_peer(0, 1)
        found.append({"bytes": size, "peer access": can, "seconds": took})
    return found


def small_sums() -> list[dict[str, Any]]:
    """Seconds of small all-reduces: NCCL's, and in one step over symmetric memory; medians."""
    import torch.distributed._symmetric_memory as symmetric

    group = dist.group.WORLD
    assert group is not None
    rows = []
    for size in (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, MB):
        shared = symmetric.empty(size // 2, dtype=torch.bfloat16, device=torch.device("cuda"))
        symmetric.rendezvous(shared, group.group_name)
        shared.fill_(dist.get_rank() + 1)
        one_shot = partial(torch.ops.symm_mem.one_shot_all_reduce, shared, "sum", group.group_name)
        own = torch.ones(size // 2, dtype=torch.bfloat16, device="cuda")
        right = one_shot()[0].item() == sum(range(1, dist.get_world_size() + 1))
        row: dict[str, Any] = {"bytes": size, "right": right}
        calls: dict[str, Callable[[], object]] = {
            "nccl": partial(dist.all_reduce, own),
            "one shot": one_shot,
        }
        for name, call in calls.items():
            call()
            row[name] = seconds_in_a_graph(call, 50)
        rows.append(row)
    return rows


def _job(function: Callable[..., Any], *given: Any, n: int = 1) -> Any:
    """Run a job; return rank 0's result, or what the report says of a failure."""
    named: dict[str, Any] = {"nproc_per_node": n, "backend": "nccl", "show": False}
    job = torchrun(function, *given, **named, timeout=LIMIT, may_fail=True)
    return job.results[0] if job.ok else str(job.report)[:1500]


def of_fetching(machine: Machine, nproc: int) -> Iterator[Result]:
    content: dict[str, Any] = {"blocks": BLOCKS, "side": SIDE, "ways": {}}
    what = "blocks of one product, weights on the host: fetched by hand, and by FSDP2"
    for how in WAYS:
        content["ways"][how] = _job(fetching, how)
        yield Result(f"memory/fetching-{device_name(machine)}.json", what, content)


def of_pools(machine: Machine, nproc: int) -> Iterator[Result]:
    content: dict[str, Any] = {"world_size": nproc, "nccl": {}}
    content["staying"] = [_job(staying, pooled) for pooled in (False, True)]
    for how in ("ordinary", "registered", "symmetric"):
        content["nccl"][how] = _job(registered, how, n=nproc)
        what = f"pools: small tensors that stay; all-reduces on {nproc} ranks of pools NCCL knows"
        yield Result(f"memory/pools-{device_name(machine)}-x{nproc}.json", what, content)


PARTS = {"fetching": of_fetching, "pools": of_pools}


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    yield from of_fetching(machine, nproc)
    name = device_name(machine)
    content = {"models": _job(models), "recomputing": _job(recomputing), "copies": _job(copies)}
    yield Result(f"memory/{name}.json", WHAT, content)
    content |= {"prefetching": _job(prefetching)}
    content |= {"sharded": [_job(sharded, on_host) for on_host in (False, True)]}
    found = _job(snapshot)
    if isinstance(found, dict):
        what = "PyTorch's snapshot of two steps of the smallest of the ten models"
        yield Result(f"memory/snapshot-{name}.pickle.gz", what, found)
    content["lengths"] = [_job(lengths, *given) for given in SPARED]
    content["sequences"] = [
        _job(sequence, setting, sizes, alive)
        for sizes, alive in ((growing, 2), (mixed, 60))
        for setting in SETTINGS
    ]
    yield Result(f"memory/{name}.json", WHAT, content)
    if nproc > 1:
        sums = {"world_size": nproc, "sums": _job(small_sums, n=nproc), "peers": _job(peers)}
        what = f"small all-reduces on {nproc} ranks, NCCL and symmetric memory; copies to a peer"
        yield Result(f"memory/symmetric-{name}-x{nproc}.json", what, sums)
        yield from of_pools(machine, nproc)


EXPERIMENT = Experiment(
    "memory",
    "what training keeps on a GPU, the allocator's settings, copies, symmetric memory",
    minutes=5,
    run=run,
    part=lambda name, machine, nproc: PARTS[name](machine, nproc),
    writes={
        "memory/[!fps]*.json": (
            *("models", "recomputing", "copies", "prefetching", "sharded"),
            *("lengths", "sequences"),
        ),
        "memory/snapshot-*.pickle.gz": (
            *("segments", "device_traces"),
            *("allocator_settings", "external_annotations"),
        ),
        "memory/symmetric-*.json": ("world_size", "sums", "peers"),
        "memory/fetching-*.json": ("blocks", "side", "ways"),
        "memory/pools-*.json": ("world_size", "nccl", "staying"),
    },
)
