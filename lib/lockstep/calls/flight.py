"""How PyTorch's flight recorder writes down calls, in the words of `torch.distributed`.

The fields of its entries are in torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What the recorder calls it → what `torch.distributed` does. The rest has its name already.
_NAMES = {
    "_all_gather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "allreduce_coalesced": "all_reduce_coalesced",
    "ALLGATHER_coalesced": "all_gather",
    "REDUCE_SCATTER_coalesced": "reduce_scatter",
    "all_reduce_barrier": "barrier",
}
# Tensors of several sizes are gathered, or scattered, by one of these for each rank.
PARTS = frozenset({"_broadcast_oop", "_reduce_oop"})
COALESCED = "coalesced"  # the end of a batch, of which the entries before it are
_MESSAGE = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
# c10's names of scalar types → PyTorch's, and bytes of an element.
_TYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}


@dataclass(frozen=True)
class Recorded:
    """The call that an entry says was made.

    backend: such as "nccl". peer: within the group, as c10d counts; None for a collective. shapes,
    dtype, bytes: of what went in.
    """

    backend: str
    operation: str
    peer: int | None
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    bytes: int


def recorded(entry: Mapping[str, Any]) -> Recorded:
    """Read an entry. Raises KeyError, TypeError or ValueError where it is none."""
    backend, _, called = entry["profiling_name"].partition(":")
    message = _MESSAGE.fullmatch(called)
    operation = message[1] if message else _NAMES.get(called, called)
    shapes = tuple(tuple(map(int, size)) for size in entry["input_sizes"])
    if operation == "barrier":  # its tensor is PyTorch's
        shapes = ()
    types = entry.get("input_dtypes") or [""]
    dtype, size = _TYPES.get(types[0], (str(types[0]).lower(), 1))
    return Recorded(
        backend=backend,
        operation=operation,
        peer=int(message[3]) if message else None,
        shapes=shapes,
        dtype=dtype if shapes else "",
        bytes=size * sum(map(math.prod, shapes)),
    )
