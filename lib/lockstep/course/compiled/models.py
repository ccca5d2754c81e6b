"""Models and functions for torch.compile to work on, and what they take: compile time, steps,
memory and launches. To be called on a rank.

The seconds of a compilation are those of the first call, less those of a later one; what a process
does once for all compilations is done before. A step is a forward pass without gradients.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

from .compile_session import require

BATCHES = 15


PER_BATCH = 10


@dataclass(frozen=True)
class Sizes:
    """The sizes of the models: tokens, width and depth of each; experts of the third; numbers of
    blocks.

    attention: heads, length, width of a head, and how far back a window reaches.
    """

    dense: tuple[int, int, int] = (4096, 4096, 2)
    small: tuple[int, int, int] = (16, 256, 12)
    experts: tuple[int, int, int] = (4096, 1024, 8)
    blocks: tuple[int, ...] = (1, 6, 24, 48)
    attention: tuple[int, int, int, int] = (32, 8192, 128, 1024)
    dtype: str = "bfloat16"


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
    """Do what a process does once: imports, the device's context, the compilers' own set-up."""
    require()
    x = torch.randn(64, 64, device=where())
    torch.compile(lambda x: (x * 2 + 1).sin())(x)
    if torch.cuda.is_available():
        torch.compile(lambda x: (x * 3 + 1).cos(), mode="reduce-overhead")(x)
    torch.compiler.reset()


def by_turns(calls: Mapping[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """Return, by name, the seconds of a step: median and quartiles of batches.

    A batch of one follows a batch of another: a host is not as fast now as a minute ago.
    """
    for call in calls.values():
        for _ in range(3):  # what is new is compiled; CUDA graphs are captured after a first run
            seconds(call)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(BATCHES):
        for name, call in calls.items():
            seconds(call)
            times[name].append(seconds(partial(_repeat, call)) / PER_BATCH)
    found = {}
    for name, taken in times.items():
        lower, median, upper = statistics.quantiles(taken, n=4)
        found[name] = {"seconds": median, "lower_quartile": lower, "upper_quartile": upper}
    return found


def _repeat(call: Callable[[], Any]) -> None:
    for _ in range(PER_BATCH):
        call()


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


def made(sizes: Sizes, name: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a model and an input for it, the same in every process."""
    torch.manual_seed(0)
    make, shape = models(sizes)[name]
    dtype = getattr(torch, sizes.dtype)
    return make().to(where(), dtype), torch.randn(shape, device=where(), dtype=dtype)


def blocks(counts: tuple[int, ...]) -> list[dict[str, float]]:
    """Return the seconds and the graphs that it takes to compile a stack of equal blocks: as one
    graph ("flat"), and block by block ("regional").

    Each stack has a width of its own, so that none is helped by what was compiled for another.
    """
    warm_up()
    found: list[dict[str, float]] = []
    for number, count in enumerate(counts):
        took: dict[str, float] = {"blocks": count}
        for kind, width in (("flat", 256 + 32 * number), ("regional", 272 + 32 * number)):
            model = stack(count, width, 4).to(where())
            x_BD = torch.randn(64, width, device=where())
            torch.compiler.reset()
            counters.clear()
            # model.compile() would not do: Dynamo skips the frame of a Sequential.
            call = torch.compile(model, dynamic=False) if kind == "flat" else model
            for block in model if kind == "regional" else ():
                block.compile(dynamic=False)
            with torch.no_grad():
                first = seconds(partial(call, x_BD))
                took[f"{kind}_seconds"] = first - seconds(partial(call, x_BD))
            took[f"{kind}_graphs"] = counters["stats"]["unique_graphs"]
            took[f"{kind}_calls"] = counters["stats"]["calls_captured"]
        torch.compiler.reset()
        found.append(took)
    return found
