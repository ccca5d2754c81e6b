"""Batch sizes of captured graphs for a stream of steps, and the padding that they cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Choice = Callable[[Sequence[int], int], Sequence[int]]


def computed(rows: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how many rows graphs of these sizes compute, each step in the smallest that fits.

    Raises ValueError where a step fits into none.
    """
    if max(rows) > max(sizes, default=0):
        raise ValueError(f"{max(rows)} rows fit into none of the sizes {list(sizes)}")
    return sum(min(size for size in sizes if size >= one) for one in rows)


def halves(rows: Sequence[int], count: int) -> list[int]:
    """Return the largest number of rows, a half of it, a quarter, and so on."""
    largest = max(rows)
    return sorted({max(1, -(-largest // 2**k)) for k in range(count)})


def even(rows: Sequence[int], count: int) -> list[int]:
    """Return sizes at equal distances, up to the largest number of rows."""
    largest = max(rows)
    return sorted({-(-largest * k // count) for k in range(1, count + 1)})


CHOICES: dict[str, Choice] = {"halves": halves, "equal distances": even}


def stream(kind: str, largest: int, steps: int = 120) -> list[int]:
    """Return the rows of each step; the same ones for the same kind. One step has `largest`."""
    draw = random.Random(largest)
    drawn: dict[str, Callable[[], int]] = {
        "any number of rows": lambda: draw.randint(1, largest),
        "mostly few": lambda: min(largest, 1 + int(draw.expovariate(8 / largest))),
        "mostly nearly full": lambda: (
            largest - min(largest - 1, int(draw.expovariate(8 / largest)))
        ),
    }
    return [drawn[kind]() for _ in range(steps - 1)] + [largest]


STREAMS = ("any number of rows", "mostly few", "mostly nearly full")
