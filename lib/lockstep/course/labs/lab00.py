"""Lab 00, start here: its check."""

from __future__ import annotations

import random
from typing import Any

from ..exercises import WrongAnswer, close, exercise, operations, trial


def _on_rank(average: Any, shards: list[list[float]]) -> Any:
    import torch
    import torch.distributed as dist

    answer = average(torch.tensor(shards[dist.get_rank()]))
    if answer is None:
        return None
    return answer.tolist() if isinstance(answer, torch.Tensor) else repr(answer)


@exercise(
    "average",
    lab="00",
    hints=(
        "What does every rank hold after dist.all_reduce(x), and what is missing from there to "
        "the mean?",
        "all_reduce leaves the sum of all ranks in x itself. How many numbers went into that sum? "
        "The process group knows.",
        "Call all_reduce on x and ignore what the call returns. Then return x divided by the "
        "world size, which dist.get_world_size() says.",
    ),
)
def average(answer: Any, draw: random.Random) -> None:
    """`average(x)`: the mean of x over all ranks, on every rank, with one collective."""
    for nproc in draw.sample((2, 3, 5), 2):  # two sizes, so that a fixed number cannot pass
        length = draw.randint(2, 5)
        # Not the same on any two ranks, so that an answer that does nothing is not the mean.
        shards = [
            [rank * 10 + float(draw.randint(1, 9)) for _ in range(length)] for rank in range(nproc)
        ]
        job = trial(_on_rank, answer, shards, nproc=nproc)
        total = [sum(column) for column in zip(*shards, strict=True)]
        mean = [value / nproc for value in total]
        _judge(job.results, mean, total, shards, nproc)
        collectives = operations(job, 0)
        if len(collectives) != 1:
            raise WrongAnswer(
                "several-collectives",
                f"the values are right, but it took {len(collectives)} collectives "
                f"({', '.join(collectives)}). One is enough.",
            )


def _judge(
    results: list[Any], mean: list[float], total: list[float], shards: list[Any], nproc: int
) -> None:
    if all(close(result, mean) for result in results):
        return
    if any(result is None for result in results):
        raise WrongAnswer(
            "returns-none",
            "it returned None. dist.all_reduce changes the tensor in place and returns None: "
            "return the tensor itself, divided.",
        )
    if all(close(result, total) for result in results):
        raise WrongAnswer(
            "sum-not-mean",
            "every rank has the sum over the ranks. The mean is that sum divided by the number "
            "of ranks.",
        )
    if all(close(result, own) for result, own in zip(results, shards, strict=True)):
        raise WrongAnswer(
            "nothing-sent",
            "every rank still has its own numbers: nothing has been communicated.",
        )
    if any(close(result, mean) for result in results):
        right = [rank for rank, result in enumerate(results) if close(result, mean)]
        raise WrongAnswer(
            "not-on-all",
            f"only rank {right[0]} has the mean. A reduce brings it to one rank; every rank needs "
            "it here: all_reduce.",
        )
    if any(close(result, [t / k for t in total]) for result in results for k in (2, 4, 8)):
        raise WrongAnswer(
            "fixed-number",
            f"this ran on {nproc} ranks and was divided by another number. Ask "
            "dist.get_world_size() instead of writing a number.",
        )
    raise WrongAnswer("wrong", f"rank 0 returned {results[0]}, the mean is {mean}.")
