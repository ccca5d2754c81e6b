"""Lab 00, start here: its check."""

from __future__ import annotations

from typing import Any

from ..checks import WrongAnswer, exercise
from ..launch import torchrun


def _shard(rank: int) -> list[float]:
    return [1.0 + rank, 10.0 * rank * rank, -3.0]


def _on_rank(average: Any) -> Any:
    import torch
    import torch.distributed as dist

    from lockstep import device

    answer = average(torch.tensor(_shard(dist.get_rank()), device=device()))
    if answer is None:
        return None
    return answer.tolist() if isinstance(answer, torch.Tensor) else repr(answer)


@exercise("average")
def average(answer: Any) -> None:
    """`average(x)`: the mean of x over all ranks, on every rank, with one collective."""
    for nproc in (3, 2):  # two sizes, so that a fixed number of ranks cannot pass
        job = torchrun(_on_rank, answer, nproc_per_node=nproc, backend="gloo", show=False)
        shards = [_shard(rank) for rank in range(nproc)]
        total = [sum(column) for column in zip(*shards, strict=True)]
        mean = [value / nproc for value in total]
        _judge(job.results, mean, total, shards, nproc)
        collectives = [call.operation for call in job.calls[0]]
        if len(collectives) != 1:
            raise WrongAnswer(
                "several-collectives",
                f"the values are right, but it took {len(collectives)} collectives "
                f"({', '.join(collectives)}). One is enough.",
            )


def _judge(
    results: list[Any], mean: list[float], total: list[float], shards: list[Any], nproc: int
) -> None:
    if all(_close(result, mean) for result in results):
        return
    if any(result is None for result in results):
        raise WrongAnswer(
            "returns-none",
            "it returned None. dist.all_reduce changes the tensor in place and returns None: "
            "return the tensor itself, divided.",
        )
    if all(_close(result, total) for result in results):
        raise WrongAnswer(
            "sum-not-mean",
            "every rank has the sum over the ranks. The mean is that sum divided by the number "
            "of ranks.",
        )
    if all(_close(result, own) for result, own in zip(results, shards, strict=True)):
        raise WrongAnswer(
            "nothing-sent",
            "every rank still has its own numbers: nothing has been communicated.",
        )
    if any(_close(result, mean) for result in results):
        right = [rank for rank, result in enumerate(results) if _close(result, mean)]
        raise WrongAnswer(
            "not-on-all",
            f"only rank {right[0]} has the mean. A reduce brings it to one rank; every rank needs "
            "it here: all_reduce.",
        )
    if any(_close(result, [t / k for t in total]) for result in results for k in (2, 4, 8)):
        raise WrongAnswer(
            "fixed-number",
            f"this ran on {nproc} ranks and was divided by another number. Ask "
            "dist.get_world_size() instead of writing a number.",
        )
    raise WrongAnswer("wrong", f"rank 0 returned {results[0]}, the mean is {mean}.")


def _close(result: Any, expected: list[float]) -> bool:
    return (
        isinstance(result, list)
        and len(result) == len(expected)
        and all(abs(a - b) < 1e-4 for a, b in zip(result, expected, strict=True))
    )
