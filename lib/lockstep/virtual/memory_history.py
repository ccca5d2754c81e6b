"""What the allocator of the virtual GPU did, in the dicts that PyTorch's snapshots have."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from .memory import Allocator, Block, Segment

_OURS = str(Path(__file__).parent)
_ENGINE = "_engine_run_backward"
# How PyTorch calls the virtual GPU: on a GPU there are no such frames.
_CALLS_US = ("torch/_dynamo/eval_frame.py", "torch/_compile.py", "torch/overrides.py")


class MemoryHistory:
    """Notes what an allocator does: the newest `most` events.

    clock: the host's time in nanoseconds. stream: of our number PyTorch's, where the default stream
    is 0. frees: whether events that free have frames, too.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        stream: Callable[[int], int],
        most: int = sys.maxsize,
        *,
        frames: bool = True,
        frees: bool = True,
    ) -> None:
        self._clock, self.stream, self._framed, self._frees = clock, stream, frames, frees
        self.metadata = ""
        self.events: deque[dict[str, Any]] = deque(maxlen=min(most, sys.maxsize))
        self._stacks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}  # each stack is kept once

    def note(self, action: str, size: int, segment: Segment, address: int) -> list[dict[str, Any]]:
        """Write an event down; return its frames."""
        return self._note(action, size, segment.key[1], segment.key[0], addr=address)

    def out_of_memory(self, size: int, stream: int, pool: tuple[int, int], free: int) -> None:
        self._note("oom", size, stream, pool, device_free=free)

    def _note(
        self, action: str, size: int, stream: int, pool: tuple[int, int], **where: int
    ) -> list[dict[str, Any]]:
        with_frames = self._framed and (self._frees or not action.startswith("free"))
        frames = self._frames() if with_frames else []
        event = {
            "action": action,
            **where,
            "size": size,
            "stream": self.stream(stream),
            "time_us": int(self._clock() // 1000),
            "compile_context": "N/A",
            "user_metadata": self.metadata,
            "pool_id": pool,
            "frames": frames,
        }
        self.events.append(event)
        return frames

    def _frames(self) -> list[dict[str, Any]]:
        """Python's frames, the innermost first, without those of the virtual GPU.

        On a GPU the backward pass runs in a thread of its own, whose frames end where Python does.
        """
        stack, called_us = [], True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != _ENGINE:
            file = frame.f_code.co_filename
            called_us = file.startswith(_OURS) or (called_us and file.endswith(_CALLS_US))
            if not called_us:
                stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = tuple(stack)
        if key not in self._stacks:
            self._stacks[key] = [
                {"name": code.co_name, "filename": code.co_filename, "line": line}
                for code, line in stack
            ]
        return self._stacks[key]


def snapshot(allocator: Allocator) -> dict[str, Any]:
    """Return what `torch.cuda.memory._snapshot` returns: the history, and the state now."""
    history = allocator.history
    of_stream = history.stream if history is not None else int
    waiting = {id(block) for block, _ in allocator.waiting}
    segments = [one for some in allocator.segments.values() for one in some]
    return {
        "segments": [
            _segment(one, of_stream, waiting)
            for one in sorted(segments, key=lambda one: one.address)
        ],
        "device_traces": [list(history.events) if history is not None else []],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(
    segment: Segment, of_stream: Callable[[int], int], waiting: set[int]
) -> dict[str, Any]:
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
        "stream": of_stream(stream),
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
