"""Gradients that are sent in buckets while the backward pass goes on: what of it is hidden.

Not modelled: that both become slower where they share a device, that layers are of different
sizes, and DDP's smaller first bucket.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """sent: start and end of each bucket's all-reduce. Seconds, from the backward's start."""

    backward: float
    sent: tuple[tuple[float, float], ...]

    @property
    def end(self) -> float:
        """The time at which both the backward and the last all-reduce are over."""
        return max(self.backward, self.sent[-1][1])

    @property
    def exposed(self) -> float:
        """The time after the backward in which ranks only communicate, or wait for it."""
        return self.end - self.backward

    @property
    def communication(self) -> float:
        return sum(end - start for start, end in self.sent)


def buckets(
    backward: float, nbytes: float, bucket: float, seconds: Callable[[float], float]
) -> Overlap:
    """A backward of so many seconds, whose gradients become ready at an even pace.

    nbytes: of all gradients. bucket: bytes of each bucket; the last one has the rest. seconds: of
    an all-reduce of so many bytes. A bucket is sent when it is full, after the one before it.
    Raises ValueError for bytes or seconds that are not above 0.
    """
    if not min(backward, nbytes, bucket) > 0:
        raise ValueError("backward, bytes and bucket must be above 0")
    sent: list[tuple[float, float]] = []
    for number in range(1, math.ceil(nbytes / bucket) + 1):
        full = min(number * bucket, nbytes)
        ready = backward * full / nbytes
        start = max(ready, sent[-1][1] if sent else 0.0)
        sent.append((start, start + seconds(full - (number - 1) * bucket)))
    return Overlap(backward, tuple(sent))
