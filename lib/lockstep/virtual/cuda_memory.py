"""torch.cuda.memory's names, for the virtual GPU: what tensors have, and its history."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from .memory import Block, Segment
from .memory_history import MemoryHistory
from .simulator import Device
from .stream_table import DEFAULT_STREAM
from .streams import active
from .streams import empty_cache as empty_cache
from .streams import max_memory_allocated as max_memory_allocated
from .streams import max_memory_reserved as max_memory_reserved
from .streams import mem_get_info as mem_get_info
from .streams import memory_allocated as memory_allocated
from .streams import memory_reserved as memory_reserved
from .streams import reset_peak_memory_stats as reset_peak_memory_stats
from .work import NotOffered


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
) -> None:
    """Record what the allocator does from now on, in virtual time; None stops it, and forgets.

    "state" keeps the frames of what is alive, and no events. context: None keeps no frames,
    "state" and "alloc" keep none of what is freed. stacks: frames are Python's only.
    """
    gpu = active()
    if enabled not in (None, "state", "all") or context not in (None, "state", "alloc", "all"):
        raise RuntimeError(f"expected state or all or None, but got {enabled!r} and {context!r}")
    before = gpu.allocator.history
    gpu.allocator.history = None
    if enabled is None:
        return
    history = MemoryHistory(
        lambda: gpu.host,
        _stream,
        max_entries if enabled == "all" else 0,
        frames=context is not None,
        frees=context == "all",
    )
    if before is not None:
        history.metadata = before.metadata
        if not clear_history:
            history.events.extend(before.events)
    gpu.allocator.history = history


def _stream(number: int) -> int:
    return 0 if number == DEFAULT_STREAM else number


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Return what `torch.cuda.memory._snapshot` does: the history, and the state now."""
    allocator = active().allocator
    waiting = {id(block) for block, _ in allocator.waiting}
    segments = [one for some in allocator.segments.values() for one in some]
    return {
        "segments": [
            _segment(one, waiting) for one in sorted(segments, key=lambda one: one.address)
        ],
        "device_traces": [list(allocator.history.events) if allocator.history else []],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(segment: Segment, waiting: set[int]) -> dict[str, Any]:
    pool, stream, small = segment.key
    blocks = [_block(one, id(one) in waiting) for one in segment.blocks]
    active = [one for one in blocks if one["state"] != "inactive"]
    allocated = [one for one in blocks if one["state"] == "active_allocated"]
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(one["size"] for one in allocated),
        "active_size": sum(one["size"] for one in active),
        "requested_size": sum(one["requested_size"] for one in active),
        "stream": _stream(stream),
        "segment_type": "small" if small else "large",
        "segment_pool_id": pool,
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block(block: Block, waits: bool) -> dict[str, Any]:
    state = "active_pending_free" if waits else "active_allocated"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": 0 if block.free else block.requested,
        "state": "inactive" if block.free else state,
        "frames": [] if block.free else block.frames,
    }


def _dump_snapshot(
    filename: str | Path = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    with Path(filename).open("wb") as file:
        pickle.dump(_snapshot(), file)


def _recording(gpu: Device) -> MemoryHistory:
    if gpu.allocator.history is None:
        raise NotOffered("the virtual GPU takes metadata only while a history is recorded")
    return gpu.allocator.history


def _set_memory_metadata(metadata: str) -> None:
    """Attach a text to all that is allocated from now on; "" ends that."""
    _recording(active()).metadata = metadata


def _get_memory_metadata() -> str:
    return _recording(active()).metadata


def __getattr__(name: str) -> Any:
    if hasattr(torch.cuda.memory, name):
        raise NotOffered(f"the virtual GPU does not model torch.cuda.memory.{name}")
    raise AttributeError(f"module 'torch.cuda.memory' has no attribute {name!r}")
