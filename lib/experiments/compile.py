"""torch.compile's modes on three models, compile time flat and by regions, and generated code.

There are two processes: the first compiles with caches that are empty, one for each row ("cold"),
the second takes what the first has left ("warm"). The seconds of a compilation are those of the
first call, less those of a later one; what a process does once for all compilations is done before.
A step is a forward pass without gradients; its time is a batch's, divided by the steps in it.
Kernels are counted in the second process: one that has ever had a profiler launches more slowly.
What takes longest comes last, and what is found is handed on after each row.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from lockstep.base.machine import Machine
from lockstep.course.compiled import CPU_ALONE, look, require, variables
from lockstep.launch import JobFailed, World
from torch import nn
from torch.nn import functional

from .experiment import Experiment, Result, gpu_name

QUICK = ("default", "reduce-overhead")
TUNED = ("max-autotune-no-cudagraphs", "max-autotune")
MODES = (*QUICK, *TUNED)
BATCHES = 15
PER_BATCH = 10


@dataclass(frozen=True)
class Sizes:
    """Of the models: tokens, width and depth of each; experts of the third; numbers of blocks.

    attention: heads, length, width of a head, and how far back a window reaches.
    """

    dense: tuple[int, int, int] = (4096, 4096, 2)
    small: tuple[int, int, int] = (16, 256, 12)
    experts: tuple[int, int, int] = (4096, 1024, 8)
    blocks: tuple[int, ...] = (1, 3, 6)
    attention: tuple[int, int, int, int] = (32, 8192, 128, 1024)
    dtype: str = "bfloat16"


SIZES = Sizes()
ON_CPU = Sizes((256, 256, 2), (8, 64, 6), (64, 64, 4), (1, 3, 6), (2, 1024, 32, 128), "float32")


# ── Models ───────────────────────────────────────────────────────────────────────────────────


class Block(nn.Module):
    """x + W2·gelu(W1·norm(x)), its hidden part `wide` times as wide."""

    def __init__(self, width: int, wide: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, wide * width), nn.Linear(wide * width, width)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        return x_BD + self.down(functional.gelu(self.up(self.norm(x_BD))))


class Experts(nn.Module):
    """Each token goes to two of the experts, of whom each takes a fixed number of tokens.

    B tokens, D width, E experts, C the tokens that an expert takes; those beyond are dropped.
    """

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up_EDF = nn.Parameter(torch.randn(experts, width, width) / width**0.5)
        self.down_EFD = nn.Parameter(torch.randn(experts, width, width) / width**0.5)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        (tokens, width), experts = x_BD.shape, self.up_EDF.shape[0]
        capacity = 5 * tokens // (2 * experts)  # a quarter more than an even share of 2 · tokens
        weights_B2, chosen_B2 = self.gate(x_BD).float().softmax(-1).topk(2, dim=-1)
        flat_S = chosen_B2.flatten()
        one_hot_SE = functional.one_hot(flat_S, experts)
        place_S = (one_hot_SE.cumsum(0) * one_hot_SE).sum(-1) - 1
        kept_S = place_S < capacity
        slot_S = torch.where(kept_S, flat_S * capacity + place_S, experts * capacity)
        rows_SD = x_BD.repeat_interleave(2, dim=0)
        room = x_BD.new_zeros(experts * capacity + 1, width).index_copy(0, slot_S, rows_SD)
        in_ECD = room[:-1].view(experts, capacity, width)
        out_ECD = functional.silu(in_ECD @ self.up_EDF) @ self.down_EFD
        out_SD = functional.pad(out_ECD.flatten(0, 1), (0, 0, 0, 1))[slot_S]
        scaled_SD = out_SD * (weights_B2.flatten() * kept_S)[:, None].to(out_SD.dtype)
        return x_BD + scaled_SD.view(tokens, 2, width).sum(1)


def models(sizes: Sizes) -> dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]]:
    """By name: what makes the model, and the shape of its input.

    Each has square weights only: a product of one shape is tuned once.
    """
    tokens, width, depth = sizes.dense
    few, narrow, layers = sizes.small
    many, wide, experts = sizes.experts
    return {
        "dense": (lambda: stack(depth, width, 1), (tokens, width)),
        "small": (lambda: stack(layers, narrow, 1), (few, narrow)),
        "experts": (lambda: Experts(wide, experts), (many, wide)),
    }


def stack(depth: int, width: int, wide: int) -> nn.Sequential:
    return nn.Sequential(*(Block(width, wide) for _ in range(depth)))


def ten_lines(
    x_BD: torch.Tensor, w_DF: torch.Tensor, b_F: torch.Tensor, gain_F: torch.Tensor
) -> torch.Tensor:
    h_BF = x_BD @ w_DF + b_F
    h_BF = torch.relu(h_BF)
    mean_B1 = h_BF.mean(-1, keepdim=True)
    centred_BF = h_BF - mean_B1
    scale_B1 = torch.rsqrt(centred_BF.square().mean(-1, keepdim=True) + 1e-5)
    normed_BF = centred_BF * scale_B1 * gain_F
    gate_BF = torch.sigmoid(normed_BF)
    return (normed_BF * gate_BF).sum()


def swish(x_BD: torch.Tensor) -> torch.Tensor:
    """Four operations on each number by itself."""
    return torch.relu(x_BD * torch.sigmoid(x_BD) + 1)


def softmax(x_BD: torch.Tensor) -> torch.Tensor:
    """By hand: two reductions over a row, and what is done to each number."""
    shifted_BD = torch.exp(x_BD - x_BD.amax(-1, keepdim=True))
    return shifted_BD / shifted_BD.sum(-1, keepdim=True)


def between(x_BD: torch.Tensor) -> torch.Tensor:
    """A matrix product with something before and something after it."""
    return torch.sigmoid(torch.relu(x_BD) @ x_BD.T) * 2


def views(x_BD: torch.Tensor) -> torch.Tensor:
    """Views between operations on each number: they move nothing."""
    return (x_BD.T * 2).reshape(-1).view(x_BD.shape[1], -1).T + x_BD


FUSION = (swish, softmax, between, views)


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def where() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any]) -> float:
    synchronize()
    began = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - began


@cache
def warm_up() -> None:
    """What a process does once: imports, the device's context, the compilers' own set-up."""
    require()
    x = torch.randn(64, 64, device=where())
    torch.compile(lambda x: (x * 2 + 1).sin())(x)
    if torch.cuda.is_available():
        torch.compile(lambda x: (x * 3 + 1).cos(), mode="reduce-overhead")(x)
    torch.compiler.reset()


def steps(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds of a step: median and quartiles of batches."""

    def batch() -> None:
        for _ in range(PER_BATCH):
            call()

    seconds(batch)
    times = [seconds(batch) / PER_BATCH for _ in range(BATCHES)]
    lower, median, upper = statistics.quantiles(times, n=4)
    return {"seconds": median, "lower_quartile": lower, "upper_quartile": upper}


def given() -> int:
    """Bytes that the allocator has given out."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def memory(call: Callable[[], Any], before: int) -> dict[str, int]:
    """Bytes that steps have at most, and that the allocator holds for them, beyond those `before`:
    of the model and its input. (A CUDA graph's are held, and not given out.)"""
    if not torch.cuda.is_available():
        return {}
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        call()
    synchronize()
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()
    return {"peak_bytes": peak - before, "reserved_bytes": held - before}


def launches(call: Callable[[], Any]) -> dict[str, int]:
    """Kernels that ran in a step, and the host's calls that launched them or a graph of them."""
    if not torch.cuda.is_available():
        return {}
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        seconds(call)
    events: Any = profiler.events()
    on_gpu = [one.name for one in events if "CUDA" in str(one.device_type)]
    launched = [one.name for one in events if "CUDA" not in str(one.device_type)]
    others = ("Memcpy", "Memset", "##", "Torch-Compiled")  # copies, and what annotates
    return {
        "kernels": sum(not name.startswith(others) for name in on_gpu),
        "launches": sum("LaunchKernel" in name for name in launched),
        "graph_launches": sum("GraphLaunch" in name for name in launched),
    }


def by_model(sizes: Sizes, mode: str) -> dict[str, dict[str, Any]]:
    """By model: what its steps take in a mode, or "eager"; and to compile it."""
    return {name: one_model(sizes, mode, name) for name in models(sizes)}


def one_model(sizes: Sizes, mode: str, name: str, counts: bool = False) -> dict[str, Any]:
    """The seconds of compiling a model and of its steps, and their memory; or, for those who have
    the code already, the seconds of compiling and the counts of launches."""
    torch.manual_seed(0)
    gc.collect()
    make, shape = models(sizes)[name]
    dtype = getattr(torch, sizes.dtype)
    model, x_BD = make().to(where(), dtype), torch.randn(shape, device=where(), dtype=dtype)
    compiled = model if mode == "eager" else torch.compile(model, mode=mode, dynamic=False)
    call, before = partial(compiled, x_BD), given()
    found: dict[str, Any] = {}
    with torch.no_grad():
        first = seconds(call)
        for _ in range(3):  # CUDA graphs are captured after a first run
            seconds(call)
        if mode != "eager":
            found["compile_seconds"] = first - seconds(call)
        found |= launches(call) if counts else memory(call, before) | steps(call)
    del compiled, call, model, x_BD
    torch.compiler.reset()
    gc.collect()
    return found


def keep_caches(folder: Path) -> None:
    """From now on this process has all caches in this folder, and nothing in memory."""
    from torch._inductor.utils import clear_inductor_caches

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    clear_inductor_caches()


def compiled_row(sizes: Sizes, mode: str, name: str, folder: Path, counts: bool) -> dict[str, Any]:
    warm_up()
    keep_caches(folder)
    return one_model(sizes, mode, name, counts)


def blocks(counts: tuple[int, ...]) -> list[dict[str, float]]:
    """Seconds to compile a stack of equal blocks: as one, or, of two and more, block by block.

    Each stack has a width of its own, so that none is helped by what was compiled for another.
    """
    warm_up()
    found: list[dict[str, float]] = []
    for number, count in enumerate(counts):
        took: dict[str, float] = {"blocks": count}
        for kind, width in (("flat", 256 + 32 * number), ("regional", 272 + 32 * number)):
            if kind == "regional" and count == 1:
                continue  # that is the same
            model = stack(count, width, 4).to(where())
            x_BD = torch.randn(64, width, device=where())
            for part in [model] if kind == "flat" else model:
                part.compile(dynamic=False)
            with torch.no_grad():
                first = seconds(partial(model, x_BD))
                took[f"{kind}_seconds"] = first - seconds(partial(model, x_BD))
            torch.compiler.reset()
        found.append(took)
    return found


def attention(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """By mask and who computes it: what a step takes, the operators that were chosen, the part of
    the blocks of 128 × 128 pairs that the mask needs, and how far off PyTorch's own math it is."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    heads, length, width, back = sizes.attention
    dtype, device = getattr(torch, sizes.dtype), where()
    q, k, v = torch.randn(3, 1, heads, length, width, dtype=dtype, device=device)
    place_L = torch.arange(length, device=device)

    def causal(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return k <= q

    def window(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (q - k <= back)

    ready = functional.scaled_dot_product_attention
    by_function = torch.compile(flex_attention, dynamic=False)
    found = {}
    for name, mask in (("causal", causal), ("window", window)):
        mask_LL = mask(0, 0, place_L[:, None], place_L[None, :])
        table = create_block_mask(mask, None, None, length, length, device=str(device))
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            right = ready(q, k, v, attn_mask=mask_LL)
        ways = {"a tensor": partial(ready, q, k, v, attn_mask=mask_LL)}
        if name == "causal":
            ways["a word"] = partial(ready, q, k, v, is_causal=True)
        ways["a function"] = partial(by_function, q, k, v, block_mask=table)
        for way, call in ways.items():
            with torch.no_grad():
                apart = (call() - right).abs().max()
                found[f"{name}, {way}"] = {
                    **steps(call),
                    **launches(call),
                    "operators": chosen(call),
                    "needed": 1 - table.sparsity() / 100,
                    "apart": float(apart),
                }
    return found


def chosen(call: Callable[[], Any]) -> list[str]:
    """The operators of attention that a call came to."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        seconds(call)
    events: Any = profiler.events()
    return sorted({one.name for one in events if one.name.startswith("aten::_scaled_dot_product")})


def precision(terms: int = 1024) -> dict[str, dict[str, float]]:
    """Of a product with so many terms, by precision: u, and the largest error as a part of the
    bound terms · u · Σ|x·w|."""
    torch.manual_seed(0)
    x, w = torch.randn(2, terms, 512, dtype=torch.float64, device=where())
    found = {}
    for name, u in (
        ("float32", 2.0**-24),
        ("TF32", 2.0**-11),
        ("float16", 2.0**-11),
        ("bfloat16", 2.0**-8),
    ):
        if name == "TF32" and not torch.cuda.is_available():
            continue
        torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
        dtype = torch.float32 if name == "TF32" else getattr(torch, name)
        a, b = x.T.to(dtype), w.to(dtype)
        error = (a @ b).double() - a.double() @ b.double()
        bound = terms * u * (a.double().abs() @ b.double().abs())
        found[name] = {"u": u, "part": float((error.abs() / bound).max())}
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def fusion(size: int = 1024) -> dict[str, dict[str, Any]]:
    """By function, on a square of float32: kernels of its compiled form, and the bytes that they
    move; where there is a GPU, also the kernels that ran, eager and compiled."""
    warm_up()
    x_BD = torch.randn(size, size, device=where())
    found: dict[str, dict[str, Any]] = {}
    for function in FUSION:
        seen = look(function, x_BD)
        compiled = torch.compile(function, dynamic=False)
        compiled(x_BD)
        found[function.__name__] = {
            "eager": launches(partial(function, x_BD)),
            "compiled": launches(partial(compiled, x_BD)),
            "kernels": [kernel.language for kernel in seen.kernels],
            "moved": seen.moved[0],
            "square_bytes": x_BD.nbytes,
        }
    return found


def code() -> dict[str, Any]:
    """The stages of the ten-line function, forward and backward."""
    torch.manual_seed(0)
    x_BD = torch.randn(512, 256, device=where())
    w_DF = torch.randn(256, 1024, device=where(), requires_grad=True)
    b_F, gain_F = (torch.randn(1024, device=where(), requires_grad=True) for _ in range(2))
    return look(ten_lines, x_BD, w_DF, b_F, gain_F).plain


# ── Here ─────────────────────────────────────────────────────────────────────────────────────


def everything(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """What is recorded for models of these sizes: all that there is so far, after each row.

    A row that fails is left out; why is printed.
    """
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    modes: dict[str, dict[str, Any]] = {}

    def so_far() -> dict[str, Any]:
        in_order = [mode for mode in ("eager", *MODES) if mode in modes]
        return {**found, "modes": {mode: dict(modes[mode]) for mode in in_order}}

    with tempfile.TemporaryDirectory(prefix="lockstep-compile-") as folder:
        caches, once = Path(folder), variables(Path(folder, "set-up"))
        with World(1, backend="gloo", env=once) as cold, World(1, backend="gloo", env=once) as warm:

            def row(mode: str, name: str) -> dict[str, Any]:
                own = caches / mode / name
                here = told(cold, compiled_row, sizes, mode, name, own, False)
                again = told(warm, compiled_row, sizes, mode, name, own, True)
                compiling = {
                    f"{which}_seconds": one.pop("compile_seconds")
                    for which, one in (("cold", here), ("warm", again))
                    if mode != "eager"
                }
                return compiling | here | again

            plain: dict[str, Callable[[], Any]] = {
                "code": partial(told, cold, code),
                "fusion": partial(told, warm, fusion),
                "precision": partial(told, warm, precision),
                "attention": partial(told, warm, attention, sizes),
                "blocks": partial(told, cold, blocks, sizes.blocks),
            }
            for name, part in plain.items():
                with going_on(name):
                    found[name] = part()
                yield so_far()
            names = ("small", "dense", "experts")
            rows = [(mode, name) for mode in ("eager", *QUICK) for name in names]
            for mode, name in [*rows, *((mode, name) for name in names for mode in TUNED)]:
                with going_on(f"{name}, {mode}"):
                    modes.setdefault(mode, {})[name] = row(mode, name)
                yield so_far()


def told(world: World, function: Callable[..., Any], *args: object) -> Any:
    """What a function returns in the world's only rank."""
    return world.run(function, *args)[0]


@contextlib.contextmanager
def going_on(what: str) -> Iterator[None]:
    """Print how long this took, or why it failed."""
    began = time.perf_counter()
    try:
        yield
    except JobFailed as failed:
        print(f"{what} is left out:\n{failed}", file=sys.stderr, flush=True)
    else:
        print(f"{what}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def run(machine: Machine, _: int) -> Iterator[Result]:
    name, sizes = (gpu_name(machine), SIZES) if machine.gpus else ("cpu", ON_CPU)
    what = (
        "torch.compile's modes on three models: compile time, steps, memory, kernels; and its code"
    )
    for so_far in everything(sizes):
        yield Result(f"compile/{name}.json", what, so_far, dict(CPU_ALONE if name == "cpu" else {}))


EXPERIMENT = Experiment(
    "compile",
    "torch.compile's modes on three models, compile time by regions, generated code",
    minutes=5,
    run=run,
    ranks=1,
    most=1,
    gpus=False,
    writes={
        "compile/*.json": ("sizes", "code", "fusion", "precision", "attention", "blocks", "modes"),
    },
)
