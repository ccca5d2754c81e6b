"""What the allocator of the virtual GPU does, in the dicts that PyTorch's snapshots have."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

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

    def note(
        self, action: str, size: int, stream: int, pool: tuple[int, int], **where: int
    ) -> list[dict[str, Any]]:
        """Write an event down; return its frames. where: `addr`, or `device_free` of an oom."""
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
