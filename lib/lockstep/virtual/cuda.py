"""torch.cuda's names, for the virtual GPU: what `lockstep.cuda()` is where there is no GPU.

What is not here says so by its name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import OutOfMemoryError

from . import cuda_memory as memory
from .graphs import (
    CUDAGraph,
    graph,
    graph_pool_handle,
    is_current_stream_capturing,
    make_graphed_callables,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    _sleep,
    current_device,
    current_stream,
    default_stream,
    device,
    device_count,
    empty_cache,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    manual_seed,
    manual_seed_all,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    reset_peak_memory_stats,
    set_device,
    set_stream,
    stream,
    synchronize,
)
from .work import NotOffered

__all__ = [
    "CUDAGraph",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_sleep",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "graph",
    "graph_pool_handle",
    "init",
    "is_available",
    "is_current_stream_capturing",
    "is_initialized",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    if hasattr(torch.cuda, name):
        raise NotOffered(f"the virtual GPU does not model torch.cuda.{name}")
    raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}")
