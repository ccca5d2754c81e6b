"""Products beside collectives, kernel by kernel: when each began, and how long it took.

The profiler says it of rank 0, where the ranks' launches wait behind a kernel that only spins. In
`late` programs rank 1 comes to the collective later, so that rank 0's takes SMs and moves nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from . import data_parallel, overlap, tensor_parallel
from .experiment import (
    Experiment,
    ExperimentFailed,
    Result,
    by_torchrun,
    device_name,
)

MB = 1 << 20
LARGE = (8192, 8192, 8192)
SHAPES = (  # rows, inner, columns
    (1024, 1024, 1024), (1024, 8192, 1024), (2048, 8192, 2048), (8192, 2048, 2048),
    (4096, 4096, 4096), (4096, 4096, 8192), (8192, 4096, 8192), LARGE,
)  # fmt: skip
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LIMITS = (16, 8, 4)
NARROW = data_parallel.SHAPES["narrow"]["cuda"]
LATE = 2.5e-3  # seconds
CYCLES = 1.98e9
REPEATS = 3
KERNELS = 300  # of a repeat, at most
SECONDS = 110  # after which no further program begins

Call = Callable[[], object]
Start = Callable[[], Any]
Named = Iterator[tuple[str, float, Callable[[], Call]]]  # text, seconds that rank 1 is late, maker


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def product(m: int, k: int, n: int) -> Call:
    return partial(torch.mm, random(m, k), random(k, n), out=random(m, n))


def collective(operation: str, nbytes: int, group: Any = None) -> Start:
    """nbytes: of the longer of its tensors."""
    whole = torch.zeros(nbytes // 2, device="cuda", dtype=torch.bfloat16)
    part = whole.chunk(dist.get_world_size())[dist.get_rank()].clone()
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group, async_op=True),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            part, whole, group=group, async_op=True
        ),
        "all_to_all": lambda: dist.all_to_all_single(
            torch.empty_like(whole), whole, group=group, async_op=True
        ),
    }
    return calls[operation]


def times(call: Call, count: int) -> Call:
    def run() -> None:
        for _ in range(count):
            call()

    return run


def beside(start: Start, then: Call, before: Call | None = None) -> Call:
    def run() -> None:
        if before is not None:
            before()
        handle = start()
        then()
        handle.wait()

    return run


def meanwhile(cuda: Any, start: Start, then: Call) -> Call:
    """A collective that comes while a product is running."""
    side = cuda.Stream()

    def run() -> None:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            cuda._sleep(int(0.3e-3 * CYCLES))
            handle = start()
        then()
        handle.wait()

    return run


def covering(shape: tuple[int, int, int]) -> Call:
    m, k, n = shape
    return times(product(m, k, n), max(1, round(LATE * 650e12 / (2 * m * k * n))))


def programs(cuda: Any, groups: dict[Any, Any]) -> Named:
    """Return what is recorded. groups: by their limit of NCCL's SMs, "urgent" of high priority."""
    for text, work in works().items():
        yield f"{text} alone", 0, work
    for operation in OPERATIONS:
        for size in (8, 64, 512):
            yield f"{operation} of {size} MiB alone", 0, partial(alone, operation, size)
    yield from beside_works(groups, None)
    yield from orders(cuda, groups)
    yield from of_labs(groups)
    for limit in LIMITS:
        yield from beside_works(groups, limit)


def alone(operation: str, size: int, group: Any = None) -> Call:
    return beside(collective(operation, size * MB, group), lambda: None)


def works() -> dict[str, Callable[[], Call]]:
    found = {"×".join(map(str, shape)): partial(covering, shape) for shape in SHAPES}
    return found | {"add_ of 512 MiB": lambda: times(partial(random(256 * MB).add_, 1), 10)}


def beside_works(groups: dict[Any, Any], limit: int | None) -> Named:
    def made(work: Callable[[], Call], operation: str = "all_reduce", size: int = 512) -> Call:
        return beside(collective(operation, size * MB, groups[limit]), work())

    by = "" if limit is None else f", max_ctas {limit}"
    if limit:
        group = groups[limit]
        yield f"all_reduce of 512 MiB alone{by}", 0, partial(alone, "all_reduce", 512, group)
    for text, work in works().items():
        yield f"{text} beside late all_reduce of 8 MiB{by}", LATE, partial(made, work, size=8)
        yield f"{text} beside all_reduce of 512 MiB{by}", 0, partial(made, work)
    if limit:
        return
    for text in ("4096×4096×4096", "8192×8192×8192"):
        for size in (16, 64, 128, 256):
            work = partial(made, works()[text], size=size)
            yield f"{text} beside all_reduce of {size} MiB", 0, work
    for operation in OPERATIONS[1:]:
        for text in ("4096×4096×4096", "8192×8192×8192", "add_ of 512 MiB"):
            work = partial(made, works()[text], operation=operation)
            yield f"{text} beside {operation} of 512 MiB", 0, work


def orders(cuda: Any, groups: dict[Any, Any]) -> Named:
    """A collective that comes when a product ends, and one that comes while it runs."""

    def behind(shape: tuple[int, int, int], group: Any) -> Call:
        one, start = product(*shape), collective("all_reduce", 128 * MB, groups[group])
        return beside(start, times(one, 3), one)

    def coming(shape: tuple[int, int, int], group: Any) -> Call:
        start = collective("all_reduce", 128 * MB, groups[group])
        return meanwhile(cuda, start, times(product(*shape), 4))

    for group, by in ((None, ""), ("urgent", " of high priority")):
        for shape in ((4096, 4096, 4096), LARGE):
            text, reduced = "×".join(map(str, shape)), f"all_reduce of 128 MiB{by}"
            yield f"{reduced} behind a {text}, before three", 0, partial(behind, shape, group)
            yield f"{reduced} while four {text} run", 0, partial(coming, shape, group)


def of_labs(groups: dict[Any, Any]) -> Named:

    def lab_04(name: str, limit: int | None) -> Call:
        a, x = random(overlap.SIZE, overlap.SIZE), random(overlap.NBYTES // 2).zero_()
        return overlap.ways(groups[limit], a, x)[name]

    def layer(name: str, pieces: int) -> Call:
        make = tensor_parallel.LAYERS[name](4096, "cuda", tensor_parallel.Together())
        x = tensor_parallel.random(8192 // dist.get_world_size(), 4096, "cuda")
        return torch.no_grad()(partial(make, x, pieces))

    for limit in (None, 16):
        for name in overlap.ways(None, torch.empty(1), torch.empty(1)):
            yield f"lab 04, max_ctas {limit}: {name}", 0, partial(lab_04, name, limit)
    for name in tensor_parallel.LAYERS:
        for pieces in (1, 2, 4):
            yield f"{name} in {pieces} pieces", 0, partial(layer, name, pieces)
    for name in ("gradient by gradient", "own buckets", "own buckets, wrong order"):
        yield f"24 layers, {name}", 0, partial(step, data_parallel.ways()[name])


def step(way: data_parallel.Way, shape: data_parallel.Shape = NARROW) -> Call:
    """Return a step of a model that is reduced in some way."""
    return partial(data_parallel.take, *way(shape), shape)


def recorded(cuda: Any, make: Callable[[], Call], late: float) -> list[list[list[Any]]]:
    """Return [name, blocks, start, ns] of each kernel, by repeats, from the call's begin on."""
    call = make()
    for _ in range(2):
        call()
    cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            dist.barrier()
            cuda._sleep(int(2e-3 * CYCLES))
            if dist.get_rank() == 1 and late:
                cuda._sleep(int(late * CYCLES))
            call()
            cuda._sleep(1)
            cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    every = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    every.sort(key=lambda one: one["ts"])
    spins = [one for one in every if "spin_kernel" in one["name"]]
    marks = [one for one in spins if one["args"]["stream"] == spins[0]["args"]["stream"]]

    def between(begin: dict[str, Any], end: dict[str, Any]) -> list[list[Any]]:
        zero = begin["ts"] + begin["dur"]
        inside = [one for one in every if begin["ts"] < one["ts"] < end["ts"] and one not in marks]
        return [
            [
                one["name"][:24],
                one["args"].get("grid", [0]),
                round(1e3 * (one["ts"] - zero)),
                round(1e3 * one["dur"]),
            ]
            for one in inside[:KERNELS]
        ]

    return [between(*pair) for pair in zip(marks[::2], marks[1::2], strict=False)]


def powered(cuda: Any, group: Any) -> list[dict[str, Any]]:
    """Return ms of lab 04's ways by turns: of random numbers and zeros, at once and after rests."""
    found = []
    x = random(overlap.NBYTES // 2).zero_()
    for what, a in (("random", random(8192, 8192)), ("zeros", random(8192, 8192).zero_())):
        ways = overlap.ways(group, a, x)
        for rest in (0.0, 0.03):
            took: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(13):
                for name, call in ways.items():
                    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
                    cuda.synchronize()
                    time.sleep(rest)
                    dist.barrier()
                    begin.record()
                    call()
                    end.record()
                    cuda.synchronize()
                    if turn > 2:
                        took[name].append(round(begin.elapsed_time(end), 4))
            found.append({"factors": what, "rest": rest, "ms": took})
    return found


def clocks(cuda: Any, group: Any) -> list[dict[str, Any]]:
    """Return clock and power while one of lab 04's ways goes on for a second."""
    a, x = random(8192, 8192), random(overlap.NBYTES // 2).zero_()
    found = []
    ways = overlap.ways(group, a, x)
    for name in [*ways][:4]:
        seen = None
        if dist.get_rank() == 0 and shutil.which("nvidia-smi"):
            query = "--query-gpu=index,clocks.sm,power.draw,clocks_event_reasons.active"
            command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "100"]
            seen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ms = []
        for _ in range(200):
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            ways[name]()
            end.record()
            cuda.synchronize()
            ms.append(round(begin.elapsed_time(end), 4))
        rows = []
        if seen is not None:
            seen.terminate()
            rows = [line.strip() for line in seen.communicate(timeout=5)[0].splitlines()]
        found.append({"way": name, "ms": ms, "index, MHz, W, reasons": rows})
    return found


def measure(file: Path) -> None:
    """Measure on each rank of torchrun; rank 0 writes what there is after each program."""
    began, cuda = time.monotonic(), torch.cuda
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")  # as in `overlap`
    content: dict[str, Any] = {"world_size": dist.get_world_size(), "programs": {}, "failed": {}}

    def keep() -> None:
        if dist.get_rank() == 0:
            part = file.with_suffix(".part")
            part.write_text(json.dumps(content))
            part.replace(file)

    def guarded(name: str, record: Callable[[], Any]) -> Any:
        try:
            return record()
        except Exception:
            content["failed"][name] = traceback.format_exc()
            print(name, content["failed"][name], file=sys.stderr, flush=True)
            return None

    groups: dict[Any, Any] = {}
    for limit in (None, *LIMITS, "urgent"):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=limit == "urgent")
        if isinstance(limit, int):
            options.config.max_ctas = limit
        groups[limit] = dist.new_group(pg_options=options)
    for name, record in (("powered", powered), ("clocks", clocks)):
        content[name] = guarded(name, partial(record, cuda, groups[None]))
        keep()
    for text, late, make in programs(cuda, groups):
        over = torch.tensor(float(time.monotonic() - began > SECONDS), device="cuda")
        dist.all_reduce(over, op=dist.ReduceOp.MAX)
        if over.item():
            break
        found = guarded(text, partial(recorded, cuda, make, late))
        if dist.get_rank() == 0:
            content["programs"][text] = found
            print(f"{time.monotonic() - began:.1f} s: {text}", file=sys.stderr, flush=True)
        keep()
    dist.destroy_process_group()


def run(machine: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        with suppress(ExperimentFailed):  # what there is by then is kept
            by_torchrun(__name__, file, nproc=nproc, limit=2 * SECONDS)
        content = json.loads(file.read_text())
    what = f"kernels of products and of collectives beside each other on {nproc} ranks"
    return [Result(f"virtual/contention-{device_name(machine)}-x{nproc}.json", what, content)]


EXPERIMENT = Experiment(
    "contention",
    "products beside collectives, kernel by kernel",
    minutes=2,
    run=run,
    least=2,
    writes={
        "virtual/contention-*-x[0-9]*.json": (
            "world_size",
            "programs",
            "failed",
            "powered",
            "clocks",
        )
    },
)


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]))
