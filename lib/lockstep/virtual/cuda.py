"""torch.cuda's names, for the virtual GPU: what `lockstep.cuda()` is where there is no GPU.

`X as X` gives a name out. What is not here says so by its name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import OutOfMemoryError as OutOfMemoryError

from . import cuda_memory as memory  # noqa: F401
from .graphs import CUDAGraph as CUDAGraph
from .graphs import graph as graph
from .graphs import graph_pool_handle as graph_pool_handle
from .graphs import is_current_stream_capturing as is_current_stream_capturing
from .graphs import make_graphed_callables as make_graphed_callables
from .streams import Event as Event
from .streams import Stream as Stream
from .streams import StreamContext as StreamContext
from .streams import _sleep as _sleep
from .streams import current_device as current_device
from .streams import current_stream as current_stream
from .streams import default_stream as default_stream
from .streams import device as device
from .streams import device_count as device_count
from .streams import empty_cache as empty_cache
from .streams import get_device_name as get_device_name
from .streams import get_device_properties as get_device_properties
from .streams import init as init
from .streams import is_available as is_available
from .streams import is_initialized as is_initialized
from .streams import manual_seed as manual_seed
from .streams import manual_seed_all as manual_seed_all
from .streams import max_memory_allocated as max_memory_allocated
from .streams import max_memory_reserved as max_memory_reserved
from .streams import mem_get_info as mem_get_info
from .streams import memory_allocated as memory_allocated
from .streams import memory_reserved as memory_reserved
from .streams import reset_peak_memory_stats as reset_peak_memory_stats
from .streams import set_device as set_device
from .streams import set_stream as set_stream
from .streams import stream as stream
from .streams import synchronize as synchronize
from .work import NotOffered


def __getattr__(name: str) -> Any:
    if hasattr(torch.cuda, name):
        raise NotOffered(f"the virtual GPU does not model torch.cuda.{name}")
    raise AttributeError(f"module 'torch.cuda' has no attribute {name!r}")
