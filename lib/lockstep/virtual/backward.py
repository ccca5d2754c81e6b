"""Backward passes: the stream of each of their operations, and who waits for whom.

As autograd does it: an operation runs on the stream of its forward operation, streams of the pass
wait for the one that called it, and this one for them when the pass is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class BackwardPasses:
    """The backward passes of a device's program.

    default: the number of the default stream. wait_stream: lets a stream wait for another one.
    """

    def __init__(self, default: int, wait_stream: Callable[[int, int], None]) -> None:
        self._default, self._wait_stream = default, wait_stream
        self._number = 0  # of the pass that goes on, or went on last
        self._streams: set[int] = set()  # of the pass that goes on
        self._stream = default  # of its last operation
        self._stream_of_node: dict[int, int] = {}  # of those that are not the default's
        self._nodes = 0  # of autograd, so far

    def stream_of_call(self, current: int) -> int:
        """Return the stream that an operation goes to; outside of a pass it is the current one."""
        node: Any = torch._C._current_autograd_node()  # None outside of a backward pass
        if node is None:
            self.leave(current)
            following = torch.autograd._get_sequence_nr()  # the number of the next node
            if current != self._default:
                made = range(max(self._nodes, following - 8), following)
                self._stream_of_node.update(dict.fromkeys(made, current))
            self._nodes = following
            return current
        if not self._streams:
            self._number += 1
        if node.name() != "torch::autograd::AccumulateGrad":
            self._stream = self._stream_of_node.get(node._sequence_nr(), self._default)
        if self._stream not in self._streams:
            self._streams.add(self._stream)
            self._wait_stream(self._stream, current)
        return self._stream

    def leave(self, current: int) -> None:
        """End the pass, where one was and is over."""
        if self._streams and torch._C._current_autograd_node() is None:
            streams, self._streams = self._streams, set()
            for stream in sorted(streams):
                self._wait_stream(current, stream)

    def takes(self, made_in: tuple[int, int], stream: int, writes: bool) -> tuple[int, int]:
        """Between operations of one pass autograd orders what one makes and another takes.

        made_in: the pass, and the stream, that wrote to some memory last; returned for it from now
        on.
        """
        if not self._streams:
            return made_in
        number, made_on = made_in
        if number == self._number and made_on != stream:
            self._wait_stream(stream, made_on)
        return (self._number, stream) if writes else made_in
