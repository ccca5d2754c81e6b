"""Lab 00, start here: the trials of its exercise, and the signs of what goes wrong in it."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from typing import Any

from ...calls.record import POINT_TO_POINT
from ..judging import Run, Tensor, Trial, call_after, judged


@judged("average", lab="00", play=call_after, may_change=(0,))
def average(draw: random.Random) -> Iterator[Trial]:
    """`average(x)`: the mean of x over all ranks, on every rank, with one collective."""
    for nproc, dtype in zip(draw.sample((3, 5, 6), 2), ("float32", "float64"), strict=True):
        length = draw.randint(2, 5)
        yield _mean(draw, nproc, dtype, (length,))
        yield _mean(draw, nproc, dtype, draw.choice(((), (1,), (length, 3), (2, 1, 2))))


def _mean(draw: random.Random, nproc: int, dtype: str, shape: tuple[int, ...]) -> Trial:
    length = math.prod(shape)
    # Not the same on any two ranks, so that an answer that does nothing is not the mean; and of
    # three, rank 0 has neither the least nor the most.
    levels = draw.sample(range(nproc), nproc)
    levels.insert(0, levels.pop(levels.index(nproc // 2)))
    own = [
        [draw.choice((-1, 3)) * draw.randint(1, 39) / 8 + 50 * level + 20 for _ in range(length)]
        for level in levels
    ]
    total = [sum(column) for column in zip(*own, strict=True)]
    return Trial(
        nproc,
        given=[(Tensor.of(mine, dtype, shape), _on_two_nodes) for mine in own],
        right=[Tensor.of((one / nproc for one in total), dtype, shape)] * nproc,
    )


def _on_two_nodes() -> None:
    """On a rank: its variables are those of a node with about half of the ranks."""
    os.environ["LOCAL_WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) // 2 + 1)


def _reduced(run: Run, rank: int) -> Any:
    """Whether the sum was brought to one rank, and to no other."""
    calls = run.calls(rank)
    return [call.operation for call in calls] == ["reduce"] and {"root": calls[0].peer}


def _several(run: Run, rank: int) -> Any:
    called = run.operations(rank)
    return len(called) > 1 and {"count": len(called), "calls": ", ".join(called)}


average.shows("not-on-all", _reduced)
average.demands(
    "not-a-collective",
    lambda run, rank: any(call.operation in POINT_TO_POINT for call in run.calls(rank)),
)
average.demands("several-collectives", _several)
