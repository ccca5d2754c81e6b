"""Step times of small programs on a GPU, to compare the virtual GPU's with.

`PROGRAMS` are as labs 04 and 06 have them, and are compared. `OTHERS` are other programs, of other
shapes: on them, and never on those that are compared, the model's constants are fitted. Each makes
a step of a module with torch.cuda's names. A step is timed by two events on the current stream,
from an idle device; of those that are timed `ahead`, while the device is kept busy until the host
has launched all, so that only the device's time is in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lockstep import virtual
from lockstep.base.machine import Machine
from lockstep.base.provenance import recorded
from torch import nn

from .experiment import Experiment, Result, gpu_name

WARM, TIMES = 5, 41  # steps that are not counted, and that are
AHEAD = 2_000_000  # cycles that the device is kept busy, about 1 ms
MB = 1 << 20
Step = Callable[[], object]
Make = Callable[[Any], Step]
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Program:
    """lab: the one that has it. values: whether the virtual GPU must have any for it."""

    make: Make
    lab: str = ""
    ahead: bool = False
    values: bool = False


# ── Timing ───────────────────────────────────────────────────────────────────────────────────


def times(cuda: Any, program: Program, count: int = TIMES, warm: int = WARM) -> dict[str, float]:
    """Seconds of a step: the median and quartiles, and the host's until all is launched."""
    step = program.make(cuda)
    for _ in range(warm):
        step()
    device, host = [], []
    for _ in range(count):
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        if program.ahead:
            cuda._sleep(AHEAD)
        first.record()
        began = virtual.perf_counter()
        step()
        host.append(virtual.perf_counter() - began)
        last.record()
        cuda.synchronize()
        device.append(first.elapsed_time(last) / 1e3)
    device.sort()
    quarter = count // 4
    return {
        "seconds": statistics.median(device),
        "lower_quartile": device[quarter],
        "upper_quartile": device[-1 - quarter],
        "host_seconds": statistics.median(host),
    }


def simulated(programs: Mapping[str, Program], machine: str | Any = "H200") -> dict[str, float]:
    """Seconds of a step on a virtual GPU, by program; there one step is as good as many."""
    found = {}
    for name, program in programs.items():
        with virtual.device(machine, values=program.values) as cuda:
            found[name] = times(cuda, program, count=1, warm=1)["seconds"]
    return found


# ── What labs 04 and 06 run ──────────────────────────────────────────────────────────────────


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def product_and_copy(cuda: Any, streams: int) -> Step:
    """OP1, a copy of 64 MB, OP2."""
    a = random(8192, 8192)
    there = torch.empty(64 * MB, dtype=torch.uint8).pin_memory()
    here = torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    side = cuda.Stream() if streams == 2 else cuda.current_stream()

    def step() -> None:
        side.wait_stream(cuda.current_stream())
        torch.mm(a, a)
        with cuda.stream(side):
            here.copy_(there, non_blocking=True)
        torch.mm(a, a)
        cuda.current_stream().wait_stream(side)

    return step


def products(cuda: Any, m: int, k: int, n: int, streams: int, count: int = 8) -> Step:
    """Equal products, on so many streams."""
    a, b = random(m, k), random(k, n)
    sides = [cuda.Stream() for _ in range(streams)] if streams > 1 else [cuda.current_stream()]

    def step() -> None:
        for side in sides:
            side.wait_stream(cuda.current_stream())
        for number in range(count):
            with cuda.stream(sides[number % streams]):
                torch.mm(a, b)
        for side in sides:
            cuda.current_stream().wait_stream(side)

    return step


def batched(cuda: Any, count: int, m: int, k: int, n: int) -> Step:
    a, b = random(count, m, k), random(count, k, n)
    return lambda: torch.bmm(a, b)


def batches(cuda: Any, prefetch: bool) -> Step:
    """Five batches of 64 MB, with a product for each; copied while the one before is computed."""
    a, side = random(8192, 8192), cuda.Stream()
    there = [torch.empty(64 * MB, dtype=torch.uint8).pin_memory() for _ in range(5)]
    here = [torch.empty(64 * MB, dtype=torch.uint8, device="cuda") for _ in range(2)]

    def step() -> None:
        now = cuda.current_stream()
        free = [now.record_event() for _ in here]
        for number, batch in enumerate(there):
            stream = side if prefetch else now
            free[number % 2].wait(stream)
            with cuda.stream(stream):
                here[number % 2].copy_(batch, non_blocking=True)
                full = stream.record_event()
            full.wait(now)
            torch.mm(a, a)
            free[number % 2] = now.record_event()

    return step


def beside_a_spin(cuda: Any) -> Step:
    """A collective's stand-in on a stream of its own, a product beside it."""
    a, x, side = random(4096, 4096), random(1000), cuda.Stream()

    def step() -> None:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            cuda._sleep(400_000)
            x.mul_(4)
        torch.mm(a, a)
        cuda.current_stream().wait_stream(side)
        x.add_(1)

    return step


def mlp(layers: int, width: int, dtype: torch.dtype) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*blocks).to(device="cuda", dtype=dtype)


def forward(cuda: Any, batch: int, layers: int, width: int, dtype: torch.dtype) -> Step:
    model, x = mlp(layers, width, dtype), random(batch, width, dtype=dtype)

    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def residual(cuda: Any, batch: int, layers: int, width: int) -> Step:
    """Lab 06's forward pass: layers x + relu(x·w), of three kernels each."""
    weights = [random(width, width) * (0.5 / width**0.5) for _ in range(layers)]
    given = random(batch, width)

    def step() -> None:
        x = given
        for w in weights:
            x = x + torch.relu(x @ w)

    return step


def training(
    cuda: Any, batch: int, layers: int, width: int, dtype: torch.dtype, adam: bool = False
) -> Step:
    model, x = mlp(layers, width, dtype), random(batch, width, dtype=dtype)
    if adam:
        optimizer: Any = torch.optim.Adam(model.parameters(), 1e-3, capturable=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def captured(cuda: Any, make: Make) -> Step:
    """The same step out of a graph, for one launch."""
    step, side = make(cuda), cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            step()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()
    return lambda: graph.replay()


_UNEVEN, _LARGE, _SMALL, _EXPERT = (
    (1536, 4096, 3072),
    (4096, 4096, 4096),
    (256, 256, 256),
    (256, 4096, 1024),
)
_FP32 = torch.float32
_DECODING = {"layers": 32, "width": 1024, "dtype": BF16}
_TRAINED = {"batch": 64, "layers": 8, "width": 1024, "dtype": _FP32}


def _both(name: str, make: Any, lab: str, *args: Any, **more: Any) -> dict[str, Program]:
    """A program eager, and out of a graph."""

    def eager(cuda: Any) -> Step:
        step: Step = make(cuda, *args, **more)
        return step

    return {
        f"{name}, eager": Program(eager, lab),
        f"{name}, captured": Program(partial(captured, make=eager), lab),
    }


PROGRAMS: dict[str, Program] = {
    "two products and a copy, one stream": Program(partial(product_and_copy, streams=1), "04"),
    "two products and a copy, two streams": Program(partial(product_and_copy, streams=2), "04"),
    **{
        f"eight {name} products, {streams} stream{'s' * (streams > 1)}": Program(
            partial(products, m=m, k=k, n=n, streams=streams), "04"
        )
        for name, (m, k, n) in {"large": _LARGE, "uneven": _UNEVEN, "small": _SMALL}.items()
        for streams in (1, 2)
    },
    **{
        f"eight experts, {streams} stream{'s' * (streams > 1)}": Program(
            partial(products, m=_EXPERT[0], k=_EXPERT[1], n=_EXPERT[2], streams=streams), "04"
        )
        for streams in (1, 2, 4, 8)
    },
    "eight experts, one batch": Program(partial(batched, count=8, m=256, k=4096, n=1024), "04"),
    "five batches, plain": Program(partial(batches, prefetch=False), "04"),
    "five batches, prefetched": Program(partial(batches, prefetch=True), "04"),
    "a product beside a spin": Program(beside_a_spin, "04"),
    **_both("32 layers, 8 rows", forward, "06", 8, **_DECODING),
    **_both("32 layers, 64 rows", forward, "06", 64, **_DECODING),
    **_both("32 layers, 1024 rows", forward, "06", 1024, **_DECODING),
    **_both("24 residual layers of 512, 8 rows", residual, "06", 8, layers=24, width=512),
    **_both("24 residual layers of 2048, 1024 rows", residual, "06", 1024, layers=24, width=2048),
    **_both("a small training step, SGD", training, "06", **_TRAINED),
    **_both("a small training step, Adam", training, "06", **_TRAINED, adam=True),
    **_both("a large training step", training, "06", batch=8192, layers=4, width=2048, dtype=BF16),
}


# ── Others, for the constants ────────────────────────────────────────────────────────────────


def repeated(call: Callable[[], object], count: int) -> Step:
    def step() -> None:
        for _ in range(count):
            call()

    return step


def small_operations(cuda: Any, name: str, count: int) -> Step:
    """Operations that the host takes longer to launch than the device to do."""
    x, y = random(64, 64), random(64, 64)
    w = random(64, 64).requires_grad_()
    layer = nn.Linear(64, 64, device="cuda", dtype=BF16)
    calls: dict[str, Callable[[], object]] = {
        "add_": lambda: x.add_(1),
        "relu": x.relu,
        "mm": lambda: torch.mm(x, y),
        "view": lambda: x.view(-1),
        "empty": lambda: torch.empty(64, 64, device="cuda"),
        "linear": lambda: _without_grad(lambda: layer(x)),
        "module": lambda: layer(x),
        "mul and backward": lambda: (w * x).sum().backward(),
    }
    return repeated(calls[name], count)


def _without_grad(call: Callable[[], object]) -> None:
    with torch.no_grad():
        call()


def ladder(cuda: Any, m: int, k: int, n: int, dtype: torch.dtype, count: int) -> Step:
    a, b, out = random(m, k, dtype=dtype), random(k, n, dtype=dtype), random(m, n, dtype=dtype)
    return repeated(lambda: torch.mm(a, b, out=out), count)


def filled(cuda: Any, value: float) -> Step:
    """A product whose numbers are all alike, which takes less power."""
    a = torch.full((6144, 6144), value, device="cuda", dtype=BF16)
    out = torch.empty_like(a)
    return repeated(lambda: torch.mm(a, a, out=out), 4)


def elementwise(cuda: Any, name: str, nbytes: int, dtype: torch.dtype, count: int) -> Step:
    x = torch.ones(nbytes // dtype.itemsize, device="cuda", dtype=dtype)
    y, out = torch.ones_like(x), torch.empty_like(x)
    calls: dict[str, Callable[[], object]] = {
        "add_": lambda: x.add_(1),
        "relu": lambda: torch.clamp_min(x, 0, out=out),
        "add": lambda: torch.add(x, y, out=out),
        "sum": lambda: x.sum(),
        "clone": lambda: out.copy_(x),
    }
    return repeated(calls[name], count)


def copies(cuda: Any, nbytes: int, inward: bool, pinned: bool = True) -> Step:
    there = torch.empty(nbytes, dtype=torch.uint8)
    there = there.pin_memory() if pinned else there
    here = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    if inward:
        return lambda: here.copy_(there, non_blocking=True)
    return lambda: there.copy_(here, non_blocking=True)


def copy_beside(cuda: Any, beside: str, nbytes: int) -> Step:
    """A copy beside a product, or beside an addition that wants the memory."""
    a, out, big, side = random(6144, 6144), random(6144, 6144), random(1 << 27), cuda.Stream()
    there = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    here = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def step() -> None:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            here.copy_(there, non_blocking=True)
        for _ in range(4):
            if beside == "product":
                torch.mm(a, a, out=out)
            else:
                big.add_(1)
        cuda.current_stream().wait_stream(side)

    return step


def to_and_fro(cuda: Any, count: int) -> Step:
    """Small kernels by turns on two streams, each of which waits for the other."""
    x, one, two = random(64, 64), cuda.Stream(), cuda.Stream()

    def step() -> None:
        one.wait_stream(cuda.current_stream())
        for _ in range(count):
            with cuda.stream(one):
                x.add_(1)
            two.wait_stream(one)
            with cuda.stream(two):
                x.mul_(1)
            one.wait_stream(two)
        cuda.current_stream().wait_stream(one)

    return step


def between_products(cuda: Any, name: str, rows: int, width: int, dtype: torch.dtype) -> Step:
    """Run what a training step has between its products, and the product with a bias, 20 times."""
    x, y = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype)
    layer = nn.Linear(width, width, device="cuda", dtype=dtype)
    calls: dict[str, Callable[[], object]] = {
        "linear": lambda: _without_grad(lambda: layer(x)),
        "relu backward": lambda: torch.ops.aten.threshold_backward(x, y, 0),
        "column sums": lambda: x.sum(0),
        "transposed product": lambda: torch.mm(x.t(), y),
    }
    return repeated(calls[name], 20)


def optimizer_step(cuda: Any, adam: bool, tensors: int, elements: int) -> Step:
    some = [random(elements, dtype=_FP32).requires_grad_() for _ in range(tensors)]
    for one in some:
        one.grad = torch.ones_like(one)
    optimizer: Any
    if adam:
        optimizer = torch.optim.Adam(some, 1e-6, capturable=True)
    else:
        optimizer = torch.optim.SGD(some, 1e-6)
    return lambda: optimizer.step()


def _made(make: Any, args: Sequence[Any], cuda: Any) -> Step:
    step: Step = make(cuda, *args)
    return step


def normalised(cuda: Any, rows: int, width: int) -> Step:
    """Run what stands between products: layer norm, GELU and an addition, forward only."""
    x = random(rows, width)

    def step() -> None:
        for _ in range(10):
            torch.add(nn.functional.gelu(nn.functional.layer_norm(x, (width,))), x)

    return step


_SHAPES = {
    BF16: (
        (8192, 4096, 8192), (4096, 8192, 4096), (6144, 6144, 6144), (2048, 2048, 2048),
        (3072, 3072, 3072), (1024, 1024, 1024), (512, 512, 512), (128, 128, 128), (64, 64, 64),
        (2048, 4096, 4096), (1024, 4096, 4096), (512, 4096, 4096), (128, 4096, 4096),
        (32, 4096, 4096), (8, 4096, 4096), (512, 2048, 2048), (256, 2048, 2048), (128, 2048, 512),
        (128, 1024, 1024), (16, 1024, 1024), (512, 1024, 1024), (1792, 4096, 3072),
        (1408, 4096, 3072), (2816, 4096, 3072), (3072, 2048, 3072), (256, 512, 256),
        (512, 8192, 512), (384, 4096, 1024), (8192, 1024, 1024), (16384, 2048, 2048),
    ),
    _FP32: (
        (4096, 4096, 4096), (1024, 1024, 1024), (256, 2048, 2048), (128, 512, 512),
        (128, 1024, 1024), (32, 1024, 1024), (512, 512, 512), (1024, 64, 1024), (64, 2048, 2048),
    ),
}  # fmt: skip
_PAIRED = ((1792, 4096, 3072), (3072, 2048, 3072), (1024, 4096, 1024), (512, 8192, 512))


def _ladder() -> dict[str, Program]:
    """Many products of a shape in a row, ahead of which the device is busy."""
    found = {}
    for dtype, shapes in _SHAPES.items():
        for m, k, n in shapes:
            count = 4 if 2 * m * k * n > 5e10 else 20
            name = f"product {m}×{k}×{n} {str(dtype).removeprefix('torch.')}, {count} times"
            make = partial(ladder, m=m, k=k, n=n, dtype=dtype, count=count)
            found[name] = Program(make, ahead=True)
    return found


OTHERS: dict[str, Program] = {
    "nothing": Program(lambda cuda: lambda: None),
    "nothing, ahead": Program(lambda cuda: lambda: None, ahead=True),
    "one add_": Program(partial(small_operations, name="add_", count=1)),
    **{
        f"{count} {name}": Program(partial(small_operations, name=name, count=count))
        for name, count in {
            "add_": 200, "relu": 200, "mm": 200, "view": 500, "empty": 500, "linear": 200,
            "module": 200, "mul and backward": 50,
        }.items()
    },
    "60 add_, ahead": Program(partial(small_operations, name="add_", count=60), ahead=True),
    "60 mm, ahead": Program(partial(small_operations, name="mm", count=60), ahead=True),
    "a spin of 200,000 cycles": Program(lambda cuda: lambda: cuda._sleep(200_000)),
    **{
        f"{count} add_, captured": Program(
            partial(captured, make=partial(small_operations, name="add_", count=count))
        )
        for count in (1, 50, 200)
    },
    **{
        f"50 {name}, captured": Program(
            partial(captured, make=partial(small_operations, name=name, count=50))
        )
        for name in ("mm", "linear")
    },
    "20 times to and fro": Program(partial(to_and_fro, count=20)),
    "20 times to and fro, ahead": Program(partial(to_and_fro, count=20), ahead=True),
    "20 times to and fro, captured": Program(partial(captured, make=partial(to_and_fro, count=20))),
    **_ladder(),
    **{f"products of {value:g}s": Program(partial(filled, value=value)) for value in (0, 1, 1.5)},
    **{
        f"a batch of {count} products {m}×{k}×{n}": Program(
            partial(batched, count=count, m=m, k=k, n=n), ahead=True
        )
        for count, m, k, n in ((4, 512, 2048, 1024), (16, 128, 2048, 1024), (32, 64, 1024, 512))
    },
    **{
        f"{name} of {nbytes / MB:g} MiB {str(dtype).removeprefix('torch.')}, 10 times": Program(
            partial(elementwise, name=name, nbytes=nbytes, dtype=dtype, count=10), ahead=True
        )
        for dtype in (BF16, _FP32)
        for name in ("add_", "relu", "add", "sum", "clone")
        for nbytes in (MB // 16, MB, 4 * MB, 16 * MB, 64 * MB, 512 * MB)
    },
    **{
        f"a copy {'in' if inward else 'out'} of {nbytes / MB:g} MiB": Program(
            partial(copies, nbytes=nbytes, inward=inward), values=not inward
        )
        for inward in (True, False)
        for nbytes in (MB // 16, MB, 16 * MB, 256 * MB)
    },
    "a copy in of 16 MiB, pageable": Program(
        partial(copies, nbytes=16 * MB, inward=True, pinned=False)
    ),
    **{
        f"a copy of 128 MiB beside a {beside}": Program(
            partial(copy_beside, beside=beside, nbytes=128 * MB)
        )
        for beside in ("product", "addition")
    },
    **{
        f"eight products {m}×{k}×{n}, {streams} streams": Program(
            partial(products, m=m, k=k, n=n, streams=streams)
        )
        for m, k, n in _PAIRED
        for streams in (1, 2, 4)
    },
    **{
        f"{name} of {tensors} tensors of {elements:,}{', ahead' * ahead}": Program(
            partial(optimizer_step, adam=adam, tensors=tensors, elements=elements), ahead=ahead
        )
        for name, adam in (("SGD", False), ("Adam", True))
        for tensors, elements in ((4, 1 << 10), (40, 1 << 10), (4, 1 << 22))
        for ahead in (False, True)
    },
    **{
        f"20 {name} of {rows} × {width} {str(dtype).removeprefix('torch.')}, captured": Program(
            partial(
                captured,
                make=partial(between_products, name=name, rows=rows, width=width, dtype=dtype),
            )
        )
        for name in ("linear", "relu backward", "column sums", "transposed product")
        for rows, width, dtype in (
            (96, 768, _FP32), (16, 1536, BF16), (96, 768, BF16), (768, 1280, BF16),
        )
    },
    "layer norm and GELU, 512 × 1024": Program(partial(normalised, rows=512, width=1024)),
    "layer norm and GELU, 8192 × 4096": Program(partial(normalised, rows=8192, width=4096)),
    **{
        f"{name}, {how}": program
        for name, args in {
            "6 layers of 512, 128 rows, float32": (128, 6, 512, _FP32),
            "6 layers of 4096, 2048 rows, bfloat16": (2048, 6, 4096, BF16),
            "10 layers of 1536, 32 rows, bfloat16": (32, 10, 1536, BF16),
            "10 layers of 768, 512 rows, bfloat16": (512, 10, 768, BF16),
        }.items()
        for how, program in {
            "forward": Program(partial(_made, forward, args)),
            "forward, captured": Program(partial(captured, make=partial(_made, forward, args))),
            "training": Program(partial(_made, training, args)),
            "training, captured": Program(partial(captured, make=partial(_made, training, args))),
        }.items()
    },
}  # fmt: skip


# ── The experiment ───────────────────────────────────────────────────────────────────────────


def measured(programs: Mapping[str, Program]) -> dict[str, dict[str, float]]:
    """Each program's times on this machine's GPU."""
    found = {}
    for name, program in programs.items():
        found[name] = times(torch.cuda, program)
        torch.cuda.empty_cache()
    return found


def run(machine: Machine, _: int) -> list[Result]:
    # Twice, before and after the others: what two runs differ by, no model can be better than.
    before = measured(PROGRAMS)
    others = measured(OTHERS)
    again = measured(PROGRAMS)
    content = {"times": TIMES, "programs": before, "programs_again": again, "others": others}
    what = f"step times of {len(PROGRAMS)} programs of labs 04 and 06, and of {len(OTHERS)} others"
    return [Result(f"virtual/steps-{gpu_name(machine)}.json", what, content)]


EXPERIMENT = Experiment(
    "virtual",
    "step times of small programs, to compare the virtual GPU's with",
    minutes=2,
    run=run,
    most=1,
    ranks=1,
    writes={
        "virtual/steps-*.json": ("times", "programs", "programs_again", "others"),
    },
)


def quicker(content: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return, for programs measured twice, the quicker run's seconds and the other's excess.

    What else runs on a machine makes a step longer, never shorter.
    """
    found = {}
    for name, row in content["programs"].items():
        one, other = sorted((row["seconds"], content["programs_again"][name]["seconds"]))
        found[name] = one, other / one - 1
    return found


def table(measured: Mapping[str, tuple[float, float]], programs: Mapping[str, Program]) -> str:
    """Measured and simulated step times side by side; deviations of the simulated ones."""
    ours = simulated({name: programs[name] for name in measured})
    rows = []
    for name, (seconds, spread) in measured.items():
        deviation = ours[name] / seconds - 1
        row = f"{seconds * 1e6:,.1f}", f"{spread:.0%}", f"{ours[name] * 1e6:,.1f}", deviation
        rows.append((name, *row))
    width = max(len(name) for name, *_ in rows)
    lines = [f"{'program':{width}}  {'H200, µs':>10}  other run  {'simulated':>10}  deviation"]
    lines += [
        f"{name:{width}}  {a:>10}  {'+' + s:>9}  {b:>10}  {d:+9.1%}" for name, a, s, b, d in rows
    ]
    every = sorted(abs(d) for *_, d in rows)
    lines.append(f"median {statistics.median(every):.1%}, worst {every[-1]:.1%}, of {len(every)}")
    return "\n".join(lines)


if __name__ == "__main__":
    content = recorded("virtual/steps-h200-2.json").content
    once = {name: (row["seconds"], 0.0) for name, row in content["others"].items()}
    print(table(quicker(content), PROGRAMS), table(once, OTHERS), sep="\n\n")
