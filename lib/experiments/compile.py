"""torch.compile's modes on three models, compile time flat and by regions, and generated code.

There are two processes: the first compiles with caches that are empty, one for each row ("cold"),
the second takes what the first has left ("warm"). The seconds of a compilation are those of the
first call, less those of a later one; what a process does once for all compilations is done before.
A step is a forward pass without gradients. The steps of a model are timed in a third process, all
modes by turns: the host's speed differs from minute to minute by more than most modes gain. (And a
process that has ever had a profiler launches more slowly.) "processes" has the small model's steps
in more processes, each of its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lockstep.base.machine import Machine
from lockstep.course.compiled import CPU_ALONE, look, variables
from lockstep.course.compiled.models import (
    FUSION,
    Sizes,
    blocks,
    by_turns,
    given,
    launches,
    made,
    memory,
    seconds,
    warm_up,
    where,
)
from lockstep.launch import JobFailed, World
from torch.nn import functional

from .experiment import Experiment, Result, device_name

QUICK = ("default", "reduce-overhead")
TUNED = ("max-autotune-no-cudagraphs", "max-autotune")
MODES = (*QUICK, *TUNED)
PROCESSES = 3


SIZES = Sizes()
ON_CPU = Sizes(
    (256, 256, 2), (8, 64, 6), (64, 64, 4), (1, 6, 24, 48), (2, 1024, 32, 128), "float32"
)


# ── Models ───────────────────────────────────────────────────────────────────────────────────


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


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def keep_caches(folder: Path) -> None:
    """Have all caches of this process in this folder from now on, and nothing in memory."""
    from torch._inductor.utils import clear_inductor_caches

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    clear_inductor_caches()


def compiled_row(sizes: Sizes, mode: str, name: str, folder: Path, counts: bool) -> dict[str, Any]:
    """Return the seconds of compiling a model, and its memory; or, for those who have the code
    already, the seconds and the counts of launches."""
    warm_up()
    keep_caches(folder)
    gc.collect()
    model, x_BD = made(sizes, name)
    compiled = model if mode == "eager" else torch.compile(model, mode=mode, dynamic=False)
    call, before = partial(compiled, x_BD), given()
    found: dict[str, Any] = {}
    with torch.no_grad():
        first = seconds(call)
        for _ in range(3):  # CUDA graphs are captured after a first run
            seconds(call)
        if mode != "eager":
            found["compile_seconds"] = first - seconds(call)
        found |= launches(call) if counts else memory(call, before)
    del compiled, call, model, x_BD
    torch.compiler.reset()
    gc.collect()
    return found


def steps(sizes: Sizes, name: str, folders: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """Return, by mode, what a step takes, all of them by turns; `folders` has the code of each."""
    warm_up()
    model, x_BD = made(sizes, name)
    ways: dict[str, Callable[[], Any]] = {"eager": partial(model, x_BD)}
    with torch.no_grad():
        for mode, folder in folders.items():
            keep_caches(folder)
            ways[mode] = partial(torch.compile(model, mode=mode, dynamic=False), x_BD)
            ways[mode]()
        found = by_turns(ways)
    del ways, model, x_BD
    torch.compiler.reset()
    gc.collect()
    return found


def attention(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Return, by mask and who computes it: what a step takes, the operators that were chosen, the
    part of the blocks of 128 × 128 pairs that the mask needs, and how far off PyTorch's own math
    it is."""
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
                    **by_turns({"": call})[""],
                    **launches(call),
                    "operators": chosen(call),
                    "needed": 1 - table.sparsity() / 100,
                    "apart": float(apart),
                }
    return found


def chosen(call: Callable[[], Any]) -> list[str]:
    """Return the operators of attention that a call came to."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        seconds(call)
    events: Any = profiler.events()
    return sorted({one.name for one in events if one.name.startswith("aten::_scaled_dot_product")})


def precision(terms: int = 1024) -> dict[str, dict[str, float]]:
    """Return, for a product with so many terms, by precision: u, and the largest error as a part of
    the bound terms · u · Σ|x·w|."""
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
    """Return, by function, on a square of float32: kernels of its compiled form, and the bytes that
    they move; where there is a GPU, also the kernels that ran, eager and compiled."""
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
    """Return the stages of the ten-line function, forward and backward."""
    torch.manual_seed(0)
    x_BD = torch.randn(512, 256, device=where())
    w_DF = torch.randn(256, 1024, device=where(), requires_grad=True)
    b_F, gain_F = (torch.randn(1024, device=where(), requires_grad=True) for _ in range(2))
    return look(ten_lines, x_BD, w_DF, b_F, gain_F).plain


# ── Here ─────────────────────────────────────────────────────────────────────────────────────


def everything(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield what is recorded for models of these sizes: all that there is so far, after each row.

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
                here = told(cold, compiled_row, sizes, mode, name, caches / mode / name, False)
                again = told(warm, compiled_row, sizes, mode, name, caches / mode / name, True)
                compiling = {
                    f"{which}_seconds": one.pop("compile_seconds")
                    for which, one in (("cold", here), ("warm", again))
                    if mode != "eager"
                }
                return compiling | here | again

            def timed(name: str, asked: Sequence[str]) -> dict[str, dict[str, float]]:
                ready = [mode for mode in asked if name in modes.get(mode, {})]
                folders = {mode: caches / mode / name for mode in ready}
                with World(1, backend="gloo", env=once) as fresh:
                    found: dict[str, dict[str, float]] = told(fresh, steps, sizes, name, folders)
                return found

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
            for name in ("small", "dense", "experts"):
                for mode in ("eager", *MODES):
                    with going_on(f"{name}, {mode}"):
                        modes.setdefault(mode, {})[name] = row(mode, name)
                with going_on(f"{name}, steps"):
                    for mode, one in timed(name, MODES).items():
                        modes[mode][name] |= one
                yield so_far()
            found["processes"] = []
            for _ in range(PROCESSES):
                with going_on("small, in a process of its own"):
                    found["processes"].append(timed("small", QUICK))
            yield so_far()


def told(world: World, function: Callable[..., Any], *args: object) -> Any:
    """Return what a function returns in the world's only rank."""
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
    name, sizes = device_name(machine), (SIZES if machine.gpus else ON_CPU)
    what = (
        "torch.compile's modes on three models: compile time, steps, memory, kernels; and its code"
    )
    for so_far in everything(sizes):
        yield Result(f"compile/{name}.json", what, so_far, dict(CPU_ALONE if name == "cpu" else {}))


EXPERIMENT = Experiment(
    "compile",
    "torch.compile's modes on three models, compile time by regions, generated code",
    minutes=8,
    run=run,
    ranks=1,
    most=1,
    gpus=False,
    writes={
        "compile/*.json": (
            "sizes",
            "code",
            "fusion",
            "precision",
            "attention",
            "blocks",
            "modes",
            "processes",
        ),
    },
)
