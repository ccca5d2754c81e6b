"""An MLP and an attention cut over the ranks, serial and in pieces that travel beside products.

A rank has a part of the rows. Before its columns stands an all-gather of the rows, and behind its
rows of weights a reduce-scatter. In pieces, the rows of one piece travel while the products of the
piece before run. Each is timed on the slowest rank; so are the collectives and the products alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from torch.nn.functional import gelu, scaled_dot_product_attention

from .data_parallel import seconds
from .experiment import Experiment, Result, device_name, of_rank_0

HEAD = 128  # numbers of a head
ROWS = {"cuda": 8192, "cpu": 64}
WIDTHS = {"cuda": (4096, 8192), "cpu": (256, 512)}
PIECES = (1, 2, 4, 8)

Layer = Callable[[torch.Tensor, int], torch.Tensor]


class Alone:
    """What takes the place of collectives where products alone are timed: parts of the right shape,
    whatever is in them."""

    def gather(self, piece_sD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return piece_sD.new_empty(dist.get_world_size(), *piece_sD.shape), None

    def scatter(self, piece_nsD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return torch.empty_like(piece_nsD[0]), None


class Together(Alone):
    """The collectives of all ranks: what comes, and a handle to wait for it."""

    def gather(self, piece_sD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        out, _ = super().gather(piece_sD)
        handle = dist.all_gather_into_tensor(out.flatten(0, 1), piece_sD, async_op=True)
        return out, handle

    def scatter(self, piece_nsD: torch.Tensor) -> tuple[torch.Tensor, Any]:
        out, _ = super().scatter(piece_nsD)
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
    inner = 4 * width // dist.get_world_size()
    up_fD, down_Df = random(inner, width, kind), random(width, inner, kind)

    def run(x_sD: torch.Tensor, pieces: int) -> torch.Tensor:
        coming = [ranks.gather(piece) for piece in x_sD.chunk(pieces)]
        going = [ranks.scatter(gelu(arrived(one) @ up_fD.T) @ down_Df.T) for one in coming]
        return torch.cat([arrived(one) for one in going])

    return run


def attention(width: int, kind: str, ranks: Alone) -> Layer:
    """Causal attention, cut by heads: it needs all rows between its two products."""
    n = dist.get_world_size()
    heads = width // HEAD // n
    inner = heads * HEAD
    qkv_fD, out_Df = random(3 * inner, width, kind), random(width, inner, kind)

    def run(x_sD: torch.Tensor, pieces: int) -> torch.Tensor:
        coming = [ranks.gather(piece) for piece in x_sD.chunk(pieces)]
        found = torch.cat([arrived(one) @ qkv_fD.T for one in coming], dim=1)
        q, k, v = found.view(1, -1, 3, heads, HEAD).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        seen_nsf = seen.transpose(1, 2).reshape(n, -1, inner)
        going = [ranks.scatter(one @ out_Df.T) for one in seen_nsf.chunk(pieces, dim=1)]
        return torch.cat([arrived(one) for one in going])

    return run


LAYERS = {"MLP": mlp, "attention": attention}


def random(rows: int, columns: int, kind: str) -> torch.Tensor:
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    return torch.randn(rows, columns, device=kind, dtype=dtype) * columns**-0.5


def collectives(x_sD: torch.Tensor) -> None:
    """The two of a layer, one after the other."""
    ranks = Together()
    arrived(ranks.scatter(arrived(ranks.gather(x_sD))))


def measured(name: str, width: int, kind: str) -> dict[str, Any]:
    """Seconds of a layer, by the number of pieces, and of its parts alone."""
    x_sD = random(ROWS[kind] // dist.get_world_size(), width, kind)

    def timed(call: Callable[..., object], *given: object) -> float:
        step = partial(call, x_sD, *given)
        for _ in range(3):
            step()
        return seconds(step, kind)[0]

    make = LAYERS[name]
    together, alone = make(width, kind, Together()), make(width, kind, Alone())
    return {
        "layer": name,
        "width": width,
        "seconds": {pieces: timed(together, pieces) for pieces in PIECES},
        "products": {pieces: timed(alone, pieces) for pieces in PIECES},
        "collectives": timed(collectives),
    }


def measure(widths: Sequence[int]) -> list[dict[str, Any]]:
    """Measure all layers, on each rank."""
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    with torch.no_grad():
        return [measured(name, width, kind) for width in widths for name in LAYERS]


def run(machine: Machine, nproc: int) -> list[Result]:
    kind = "cuda" if machine.gpus else "cpu"
    rows = of_rank_0(measure, WIDTHS[kind], machine=machine, nproc=nproc)
    content = {"world_size": nproc, "rows": ROWS[kind], "layers": rows}
    what = f"an MLP and an attention on {nproc} ranks, serial and in pieces"
    return [Result(f"tensor-parallel/{device_name(machine)}-x{nproc}.json", what, content)]


EXPERIMENT = Experiment(
    "tensor-parallel",
    "layers cut over ranks, serial and in pieces that travel beside products",
    minutes=1,
    run=run,
    least=2,
    gpus=False,
    writes={"tensor-parallel/*-x[0-9]*.json": ("world_size", "rows", "layers")},
)
