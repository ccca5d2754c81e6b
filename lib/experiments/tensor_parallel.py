"""An MLP and an attention cut over the ranks, serial and in pieces that travel beside products.

A rank has a part of the rows. Before its columns stands an all-gather of the rows, and behind its
rows of weights a reduce-scatter. In pieces, the rows of one piece travel while the products of the
piece before run. Each is timed on the slowest rank, and seen by the profiler. Beside it are the
whole layer on one GPU, the collectives and the products alone, and lab 09's product that does not
wait for its all-gather, with PyTorch's. PyTorch's torchrun starts the ranks, because Lockstep's
record of calls takes time of the host.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch.nn.functional import gelu, scaled_dot_product_attention

from .data_parallel import profiled, seconds
from .experiment import Experiment, Result, by_torchrun, device_name, guarded, join, traces_in

HEAD = 128  # numbers of a head
ROWS = {"cuda": 8192, "cpu": 64}
WIDTHS = {"cuda": (512, 1024, 2048, 4096, 8192), "cpu": (256, 512)}
PIECES = (1, 2, 4, 8)
COLUMNS = 3072  # of lab 09's product, on GPUs
KEPT = {"serial": 1, "in-pieces": 4}  # pieces of the widest MLP's traces that are kept, by folder

Layer = Callable[[torch.Tensor, int], torch.Tensor]


@cache
def random(rows: int, columns: int, kind: str) -> torch.Tensor:
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    return torch.randn(rows, columns, device=kind, dtype=dtype) * columns**-0.5


class Alone:
    """Stands in for n ranks' collectives where products alone are timed: parts of the right shape,
    with random numbers to multiply."""

    def __init__(self, n: int):
        self.n = n

    def gather(self, piece_sD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        s, D = piece_sD.shape
        return random(self.n * s, D, piece_sD.device.type).view(self.n, s, D), None

    def scatter(self, piece_nsD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return torch.empty_like(piece_nsD[0]), None


class Together(Alone):
    """The collectives of all ranks: what comes, and a handle to wait for it."""

    def __init__(self) -> None:
        super().__init__(dist.get_world_size())

    def gather(self, piece_sD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        out = piece_sD.new_empty(self.n, *piece_sD.shape)
        handle = dist.all_gather_into_tensor(out.flatten(0, 1), piece_sD, async_op=True)
        return out, handle

    def scatter(self, piece_nsD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        out = torch.empty_like(piece_nsD[0])
        handle = dist.reduce_scatter_tensor(out, piece_nsD.flatten(0, 1), async_op=True)
        return out, handle


def arrived(coming: tuple[torch.Tensor, Any]) -> torch.Tensor:
    """Let what follows wait for this part, and return it."""
    part, handle = coming
    if handle is not None:
        handle.wait()
    return part


def mlp(width: int, kind: str, ranks: Alone) -> Layer:
    """Up to four times the width, cut by columns, and down, cut by rows."""
    inner = 4 * width // ranks.n
    up_fD, down_Df = random(inner, width, kind), random(width, inner, kind)

    def run(x_sD: torch.Tensor, pieces: int) -> torch.Tensor:
        coming = [ranks.gather(piece) for piece in x_sD.chunk(pieces)]
        going = [ranks.scatter(gelu(arrived(one) @ up_fD.T) @ down_Df.T) for one in coming]
        return torch.cat([arrived(one) for one in going])

    return run


def attention(width: int, kind: str, ranks: Alone) -> Layer:
    """Causal attention, cut by heads: it needs all rows between its two products."""
    heads = width // HEAD // ranks.n
    inner = heads * HEAD
    qkv_fD, out_Df = random(3 * inner, width, kind), random(width, inner, kind)

    def run(x_sD: torch.Tensor, pieces: int) -> torch.Tensor:
        coming = [ranks.gather(piece) for piece in x_sD.chunk(pieces)]
        found = torch.cat([arrived(one) @ qkv_fD.T for one in coming], dim=1)
        q, k, v = found.view(1, -1, 3, heads, HEAD).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        seen_nsf = seen.transpose(1, 2).reshape(ranks.n, -1, inner)
        going = [ranks.scatter(one @ out_Df.T) for one in seen_nsf.chunk(pieces, dim=1)]
        return torch.cat([arrived(one) for one in going])

    return run


LAYERS = {"MLP": mlp, "attention": attention}


def collectives(x_sD: torch.Tensor) -> None:
    """The two of a layer, one after the other."""
    ranks = Together()
    arrived(ranks.scatter(arrived(ranks.gather(x_sD))))


def timed(call: Callable[..., object], *given: object, kind: str) -> float:
    step = partial(call, *given)
    for _ in range(3):
        step()
    return seconds(step, kind)[0]


def seen(call: Callable[..., object], *given: object) -> tuple[dict[str, Any], Any]:
    """Return what the profiler sees of a call, and the trace."""
    found, trace = profiled(partial(call, *given))
    names = ("communication_us", "exposed_us", "transfer_us", "collectives")
    return {name: found[name] for name in names}, trace


def measured(name: str, width: int, kind: str) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return seconds of a layer by the number of pieces, of its parts alone and of the whole; and
    traces."""
    n, rows = dist.get_world_size(), ROWS[kind]
    x_sD, x_SD = random(rows // n, width, kind), random(rows, width, kind)
    make = LAYERS[name]
    together, alone = make(width, kind, Together()), make(width, kind, Alone(n))
    row: dict[str, Any] = {
        "layer": name,
        "width": width,
        "whole": timed(make(width, kind, Alone(1)), x_SD, 1, kind=kind),
        "seconds": {pieces: timed(together, x_sD, pieces, kind=kind) for pieces in PIECES},
        "products": {pieces: timed(alone, x_sD, pieces, kind=kind) for pieces in PIECES},
        "collectives": timed(collectives, x_sD, kind=kind),
    }
    if dist.get_rank() == 0:
        print(json.dumps(row), file=sys.stderr, flush=True)  # what follows may fail
    both = {pieces: seen(together, x_sD, pieces) for pieces in PIECES if kind == "cuda"}
    row["seen"] = {pieces: found for pieces, (found, _) in both.items()}
    return row, {pieces: trace for pieces, (_, trace) in both.items()}


def gather_first(x_sD: torch.Tensor, w_fD: torch.Tensor) -> torch.Tensor:
    return arrived(Together().gather(x_sD)).flatten(0, 1) @ w_fD.T


def own_rows_first(x_sD: torch.Tensor, w_fD: torch.Tensor, pieces: int) -> torch.Tensor:
    """The product of the rows of all ranks, as lab 09's exercise has it."""
    rank, ranks = dist.get_rank(), Together()
    products: list[list[torch.Tensor]] = [[] for _ in range(ranks.n)]
    coming = [ranks.gather(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for one in coming:
        for other, part in enumerate(arrived(one)):
            if other != rank:
                products[other].append(part @ w_fD.T)
    return torch.cat([product for some in products for product in some])


def fused(x_sD: torch.Tensor, w_fD: torch.Tensor) -> torch.Tensor:
    """PyTorch's, which fetches parts from symmetric memory by copies."""
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    enable_symm_mem_for_group(group)
    found: Any = torch.ops.symm_mem.fused_all_gather_matmul(x_sD, [w_fD.T], 0, group)
    return found[1][0]


def product_ways() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Return how a product gets the rows of all ranks, by name."""
    own = {f"own rows first, pieces: {n}": partial(own_rows_first, pieces=n) for n in PIECES}
    return {"gathered first": gather_first, **own, "fused": fused}


def gathered(kind: str) -> list[dict[str, Any]]:
    """Measure lab 09's product, and its parts alone."""
    width = WIDTHS[kind][-1]
    x_sD, w_fD = random(ROWS[kind], width, kind), random(min(COLUMNS, width), width, kind)
    x_SD, right = random(ROWS[kind] * dist.get_world_size(), width, kind), gather_first(x_sD, w_fD)
    rows: list[dict[str, Any]] = [
        {"how": "product alone", "seconds": timed(lambda: x_SD @ w_fD.T, kind=kind)},
        {"how": "all-gather alone",
         "seconds": timed(lambda: arrived(Together().gather(x_sD)), kind=kind)},
    ]  # fmt: skip
    for name, call in product_ways().items():
        if name == "fused" and kind != "cuda":
            continue
        row: dict[str, Any] = {"how": name, "seconds": timed(call, x_sD, w_fD, kind=kind)}
        row["right"] = bool((call(x_sD, w_fD) - right).abs().max() <= 0.02 * right.abs().max())
        if kind == "cuda":
            row |= seen(call, x_sD, w_fD)[0]
        rows.append(row)
    return rows


def measure(folder: Path) -> None:
    """Measure on each rank of torchrun; rank 0 writes what it found, and ranks their traces."""
    kind = join().type
    rank = dist.get_rank()
    layers = []
    with torch.no_grad():
        for width in WIDTHS[kind]:
            for name in LAYERS:
                row, traces = measured(name, width, kind)
                layers.append(row)
                if (name, width) == ("MLP", WIDTHS[kind][-1]) and traces:
                    for kept, pieces in KEPT.items():
                        file = folder / f"{kept}-rank{rank}.json"
                        file.write_text(json.dumps(traces[pieces]))
        products = guarded("products", partial(gathered, kind), [])
    if rank == 0:
        content = {
            "world_size": dist.get_world_size(),
            "rows": ROWS[kind],
            "layers": layers,
            "products": products,
        }
        (folder / "found.json").write_text(json.dumps(content))
    dist.barrier()
    sys.stderr.flush()
    os._exit(0)


def run(machine: Machine, nproc: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_torchrun(__name__, folder, nproc=nproc, limit=240)
        content = json.loads((folder / "found.json").read_bytes())
        what = f"an MLP and an attention on {nproc} ranks, serial and in pieces"
        found = [Result(f"tensor-parallel/{device_name(machine)}-x{nproc}.json", what, content)]
        for kept, pieces in KEPT.items():
            if traces := traces_in(folder, kept, nproc):
                what = f"an MLP of width {WIDTHS['cuda'][-1]} on {nproc} ranks, pieces: {pieces}"
                found.append(Result(f"traces/tensor-parallel/{kept}", what, traces))
    return found


EXPERIMENT = Experiment(
    "tensor-parallel",
    "layers cut over ranks, serial and in pieces that travel beside products",
    minutes=1,
    run=run,
    least=2,
    gpus=False,
    writes={
        "tensor-parallel/*-x[0-9]*.json": ("world_size", "rows", "layers", "products"),
        "traces/tensor-parallel/*": ("rank*.json.gz",),
    },
)


if __name__ == "__main__":  # a rank
    measure(Path(sys.argv[1]))
