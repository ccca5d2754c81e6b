"""The time that an operation keeps the device busy, from the shapes of its tensors.

Products of matrices and convolutions cost their floating-point operations
(torch.utils.flop_counter's formulas) or their memory traffic, whichever takes longer; all else is
in `passes`, and what is not even there costs its traffic: each input is read once, each output
written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..trace import Kind
from . import passes
from .model import Machine

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm")
SEVERAL = "_foreach_"  # how operations on many tensors begin
_MOVES_ONLY = ("copy_", "clone", "_to_copy", "cat", "stack")
UNKNOWN = " (time unknown: estimated from bytes)"  # how such operations are named
_LONG = 3_072  # an inner dimension that is cut where there are few rows and columns
_BLOCK_OF_PRODUCT = 128 * 128  # elements of the result of what is counted by its FLOP


@dataclass(frozen=True)
class Cost:
    """work: ns alone on the device. share, traffic: see `schedule.DeviceTask`. name: what it is.

    kernels: how many such the operation launches. tiles: of a product, those that SMs compute one
    after the other.
    """

    name: str
    work: float
    share: float
    traffic: float
    kind: Kind
    kernels: int = 1
    tiles: int = 0

    def lasts(self, machine: Machine, cold: int) -> float:
        """`work`, and more where so many bytes that it reads are not in the L2 cache any more."""
        moving, work = self.work * self.traffic, self.work
        if cold and moving <= 1e9 * machine.cached / machine.l2:
            read = moving + 1e9 * cold * (1 / machine.memory - 1 / machine.l2)
            work = max(work, read + min(work - moving, machine.product))
        return work + (machine.cold if cold and self.share < 1 else 0)


def cost(
    machine: Machine,
    func: Any,
    given: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor],
    args: Sequence[Any],
    returned: Any,
) -> Cost:
    """given, made: the tensors that it reads, and those that it writes.

    args, returned: what it is called with, and what it gives.
    """
    name = func.overloadpacket.__name__
    nbytes = sum(map(touched, {id(one): one for one in given}.values())) + sum(map(touched, made))
    moving = machine.traffic(nbytes, name.startswith(SEVERAL))
    elements = max((one.numel() for one in (*given, *made)), default=0)
    adding, tiles = 0.0, 0
    if name in PRODUCTS:
        a, b = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
        (m, k), n, batch = a.shape[-2:], b.shape[-1], math.prod(a.shape[:-2])
        computing, share, tiles = machine.multiply(m, n, k, rate_of(a.dtype), batch)
        if min(m, n) <= 128 and k >= _LONG >= 0.75 * max(m, n):
            adding = machine.split  # of the parts that a long inner dimension is cut into
        if name == "addmm" and not machine.has_tensor_cores(rate_of(a.dtype)):
            computing += machine.bias
        name = f"{name} {m}×{k}×{n}" if batch == 1 else f"{name} {batch}×{m}×{k}×{n}"
    elif name.startswith("_scaled_dot_product_flash_attention_for_cpu"):
        backward = name.endswith("backward")
        query, key = args[1:3] if backward else args[:2]
        dropout, causal = [*args, 0.0, False][6 if backward else 3 :][:2]
        masked = len(given) > (6 if backward else 3)
        work = passes.attention(machine, query, key, causal, dropout, masked, backward)
        work += passes.UNSEEN * (4 if backward else 2)
        name = "attention, backward" if backward else "attention"
        return Cost(name, work, 1.0, min(moving / work, 1.0), Kind.COMPUTE)
    elif (flops := _flops(func, args, returned)) is not None:
        rate = machine.flops.get(rate_of(given[0].dtype), machine.vector)
        blocks = math.ceil(max((one.numel() for one in made), default=1) / _BLOCK_OF_PRODUCT)
        share = min(max(blocks, 1) / machine.sms, 1.0)
        computing = machine.kernel + 1e9 * flops / rate / share
    else:
        share = machine.elementwise(elements)
        known = passes.time(machine, func, given, made, args, nbytes)
        work, kernels = known or (machine.kernel + moving, 1)
        work /= kernels
        kind = Kind.COPY if name in _MOVES_ONLY and _same_type(given, made) else Kind.COMPUTE
        traffic = min(moving / kernels / work, 1.0)
        return Cost(name + UNKNOWN * (known is None), work, share, traffic, kind, kernels)
    work = max(computing, machine.product + moving) + adding
    traffic = min(moving / work, 1.0)
    return Cost(name, work, share, traffic, Kind.COMPUTE, tiles=tiles)


def touched(tensor: torch.Tensor) -> int:
    """The bytes behind a view: what it repeats (expand) is in memory once."""
    real = (
        length
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if stride or length == 0
    )
    return math.prod(real) * tensor.element_size()


def rate_of(dtype: torch.dtype) -> str:
    """The name of the rate at which products of this dtype are computed."""
    if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return str(dtype).removeprefix("torch.")


def _flops(func: Any, args: Sequence[Any], returned: Any) -> float | None:
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(func.overloadpacket)
    if formula is None:
        return None
    return float(formula(*args, out_val=returned))


def _same_type(given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    every = (*given, *made)
    return all(one.dtype == every[0].dtype and one.is_contiguous() for one in every)
