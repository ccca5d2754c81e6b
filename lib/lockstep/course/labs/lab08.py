"""Lab 08, data parallelism: the trials of its exercises, and the signs of what goes wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from ... import virtual
from ...base.formatting import percent
from ..judging import Noted, Number, Run, Tensor, Trial, judged
from ..judging.values import make

HIDDEN = 0.95 * 2 / 3  # of the all-reduces: the last bucket, which has a third, comes too late
BYTES_EACH = 12  # of a number that Top-K sends: a float32 and an int64


def _numbers(draw: random.Random, *shape: int, least: int = -1999, most: int = 1999) -> Any:
    """Fractions, all of which differ. Sums of them have no rounding errors."""
    return np.array(draw.sample(range(least, most, 2), prod(shape))).reshape(shape) / 8


def _tensor(numbers: Any, dtype: str = "float64") -> Tensor:
    return Tensor.of(numbers.flatten().tolist(), dtype, numbers.shape)


def _other_calls(run: Run, rank: int) -> Any:
    """Whether a rank's next call is not that of rank 0."""
    for both in zip_longest(run.job.calls[0], run.job.calls[rank]):
        call, own = ((one.operation, one.bytes) if one else () for one in both)
        if call != own:
            said = [f"{one.operation} of {one.bytes} B" if one else "nothing more" for one in both]
            return {"call": said[0], "own": said[1]}
    return False


# ── average_gradients ────────────────────────────────────────────────────────────────────────


def _averaged(answer: Any, rows: Tensor, branch: bool) -> list[Any]:
    """A model with a tied, a frozen and an unused weight, and a branch that few ranks use."""
    import torch

    x = make(rows)
    model: Any = torch.nn.Module()
    for name in ("first", "tied", "branch", "nobody", "frozen"):
        setattr(model, name, torch.nn.Parameter(x.new_ones(x.shape[1])))
    model.also_tied = model.tied
    model.frozen.requires_grad_(False)
    if len(x):
        y = x @ (model.first + model.tied + model.frozen) + x.square() @ model.also_tied
        (y + x @ model.branch if branch else y).mean().backward()
    answer(model, len(x))
    nobody = torch.zeros_like(model.nobody) if model.nobody.grad is None else model.nobody.grad
    return [model.first.grad, model.tied.grad, model.branch.grad, model.frozen.grad, nobody]


@judged(
    "average_gradients", lab="08", play=_averaged, called="[first, tied, branch, frozen, nobody]"
)
def average_gradients(draw: random.Random) -> Iterator[Trial]:
    """`average_gradients(model, rows)`: the gradients of the mean over all ranks' rows."""
    unequal = draw.sample(range(1, 7), draw.choice((3, 5)))
    for counts, users in (
        ([2, 2, 2], (0, 1, 2)),
        (unequal, (1,)),
        ([3, 0, 2, 4], (2,)),
    ):
        parts = [_numbers(draw, count, 3, least=1) for count in counts]
        every, of_users = np.concatenate(parts), np.concatenate([parts[rank] for rank in users])
        sums = every.sum(0), (every + every**2).sum(0), of_users.sum(0)
        first, tied, branch = (_tensor(one / len(every), "float32") for one in sums)
        right = [first, tied, branch, None, _tensor(np.zeros(3), "float32")]
        yield Trial(
            len(counts),
            given=[(_tensor(part, "float32"), rank in users) for rank, part in enumerate(parts)],
            right=[right] * len(counts),
            facts={"counts": ", ".join(map(str, counts))},
            like=f"parts of {', '.join(map(str, counts))} rows",
        )


average_gradients.fails("skips-none", _other_calls)


# ── buckets ──────────────────────────────────────────────────────────────────────────────────


def _as_text(answer: Any, *given: Any) -> Any:
    """The buckets as a text, so that where one ends is compared, too."""
    found = answer(*given)
    is_nested = isinstance(found, list | tuple) and all(isinstance(b, list | tuple) for b in found)
    return str([list(bucket) for bucket in found]) if is_nested else found


@judged("buckets", lab="08", play=_as_text)
def buckets(draw: random.Random) -> Iterator[Trial]:
    """`buckets(sizes, cap, first_cap)`: the parameters' numbers, in buckets."""
    small = [draw.randint(1, 4) * 10 for _ in range(draw.randint(9, 12))]
    large = [*small[:4], 500, *small[4:6]]
    for like, sizes, cap, first_cap in (
        ("small ones", small, 60, 30),
        ("a large one", large, 80, 40),
        ("sizes that fill buckets exactly", [30, 20, 30, 50, 20, 10, 10], 50, 20),
        ("a first cap that is the larger one", [20, 30, 20, 40, 30, 20], 30, 60),
        ("a single one", [70], 50, 20),
        ("two that fill nothing", [10, 10], 50, 30),
        ("no parameter", [], 50, 20),
    ):
        found: list[list[int]] = []
        full = True
        for number in reversed(range(len(sizes))):
            found += [[]] * full
            found[-1] = [*found[-1], number]
            full = sum(sizes[one] for one in found[-1]) >= (first_cap if len(found) < 2 else cap)
        facts = {"sizes": sizes, "cap": cap, "first_cap": first_cap}
        given = [(list(sizes), cap, first_cap)]
        yield Trial(0, given=given, right=[str(found)], facts=facts, like=like)


# ── replicate ────────────────────────────────────────────────────────────────────────────────


def _replicated(answer: Any, grads: Any, order: list[int], groups: list[list[int]]) -> Noted:
    """Steps in which gradients become ready in this order; or, without any, one on GPUs."""
    import torch

    if grads is None:
        return _on_gpu(answer)
    grads = make(grads)
    weights = [torch.nn.Parameter(torch.zeros_like(one)) for one in grads[0]]
    model = torch.nn.ParameterList(weights)
    finish = answer(model, [[weights[at] for at in group] for group in groups])
    ends, backwards = [], []
    for step in grads:
        model.zero_grad()
        # What was computed last is the first in the backward pass.
        sum((weights[at] * step[at]).sum() for at in reversed(order)).backward()
        backwards.append(time.perf_counter())
        finish()
        ends.append([None if one.grad is None else one.grad.clone() for one in weights])
    return Noted(ends, {"backward": backwards[0]})


def _on_gpu(answer: Any) -> Noted:
    """The share of the all-reduces that is hidden; the model and the buckets of section 3."""
    import torch
    import torch.distributed as dist

    shape: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    with virtual.device("H200", values=False):
        layers = [torch.nn.Linear(4096, 4096, False, **shape) for _ in range(12)]
        model, last = torch.nn.Sequential(*layers), [one.weight for one in layers[::-1]]
        finish = answer(model, [last[:1], last[1:4], last[4:8], last[8:]])
        x = torch.randn(4096, 4096, **shape)
        dist.barrier()
        model(x).square().mean().backward()
        finish()
        trace, races = virtual.trace(), [str(one).splitlines()[0] for one in virtual.races()]
    spent = trace.breakdown().of(dist.get_rank())
    return Noted(None, {"share": spent.overlapped / max(1, spent.communication), "races": races})


@judged(
    "replicate", lab="08", play=_replicated, called="gradients by step and parameter: ", silent=True
)
def replicate(draw: random.Random) -> Iterator[Trial]:
    """`replicate(model, groups)`: hooks that reduce buckets, and a function finish()."""
    groups = [[5], [4, 3], [2, 1, 0]]
    for ranks, dtype in ((range(3), "float32"), (range(4), "float64")):
        in_order = dtype == "float32"  # else in another order on each rank, and rank 1 has no 3
        shapes = [(draw.randint(1, 3), draw.randint(1, 3)) for _ in range(6)]
        grads, orders = [], []
        for rank in ranks:
            least = 1 if in_order else -1999
            grads.append([[_numbers(draw, *s, least=least) for s in shapes] for _ in range(3)])
            others = [4, 3, 2, 1, 0] if in_order else draw.sample(range(5), 5)
            orders.append([5, *(at for at in others if in_order or (rank, at) != (1, 3))])
        right = [
            [
                _tensor(
                    sum(grads[r][step][at] * (at in orders[r]) for r in ranks) / len(ranks), dtype
                )
                for at in range(6)
            ]
            for step in range(3)
        ]
        given = [([[_tensor(one, dtype) for one in step] for step in grads[r]], orders[r], groups)
                 for r in ranks]  # fmt: skip
        sizes = [sum(prod(shapes[at]) for at in group) * (4 if in_order else 8) for group in groups]
        like = "all parameters used" if in_order else "a parameter that rank 1 does not use"
        facts = {"sizes": sizes, "said": ", ".join(map(str, sizes)), "in_order": in_order}
        yield Trial(len(ranks), given, [right] * len(ranks), facts, like=like)
    yield Trial(2, given=[(None, [], [])] * 2, right=[...] * 2, like="two virtual GPUs")


def _own_order(run: Run, rank: int) -> Any:
    return "sizes" in run.trial.facts and not run.trial.in_order and _other_calls(run, rank)


def _never_waited(run: Run, rank: int) -> Any:
    lost = [c for c in run.job.calls[rank] if not c.waited] if "sizes" in run.trial.facts else []
    return bool(lost) and {"call": lost[0]}


def _other_bytes(run: Run, rank: int) -> Any:
    if "sizes" not in run.trial.facts:
        return False
    called = [f"{call.operation} of {call.bytes} B" for call in run.job.calls[rank]]
    wanted = [f"all_reduce of {size} B" for size in run.trial.sizes] * 3
    return called != wanted and {"called": ", ".join(called[:4]) or "nothing"}


def _late(run: Run, rank: int) -> bool:
    """Whether the first bucket began after the backward pass."""
    backward = run.noted[rank].get("backward")
    return bool(backward) and run.job.calls[rank][0].start > backward


def _shown(run: Run, rank: int) -> Any:
    share = run.noted[rank].get("share", 1.0)
    return share < HIDDEN and {"share": percent(share), "least": percent(HIDDEN)}


def _raced(run: Run, rank: int) -> Any:
    races = run.noted[rank].get("races")
    return bool(races) and {"race": races[0]}


replicate.fails("own-order", _own_order)
replicate.shows("never-waited", _never_waited)
replicate.demands("never-waited", _never_waited)
replicate.demands("other-bytes", _other_bytes)
replicate.demands("after-the-backward", _late)
replicate.demands("race", _raced)
replicate.demands("not-hidden", _shown)


# ── bytes_per_rank ───────────────────────────────────────────────────────────────────────────


@judged("bytes_per_rank", lab="08")
def bytes_per_rank(draw: random.Random) -> Iterator[Trial]:
    """`bytes_per_rank(parameters, ranks, stage)`: what a rank keeps, in bytes."""
    for stage, divided in enumerate((0, 12, 14, 16)):
        for ranks in (draw.choice((4, 8)), draw.randint(10, 99)):
            share = draw.randint(1000, 9999)
            right = (16 - divided) * share * ranks + divided * share
            facts = {"parameters": share * ranks, "ranks": ranks, "stage": stage}
            given = [(share * ranks, ranks, stage)]
            yield Trial(0, given=given, right=[Number(right)], facts=facts)


# ── sharded_linear ───────────────────────────────────────────────────────────────────────────


def _sharded(answer: Any, x: Any, shard: Any, weights: Any, on_gpu: bool) -> Noted:
    """The result and the gradients; or, on GPUs, the bytes kept between forward and backward."""
    import torch.distributed as dist

    if on_gpu:
        with virtual.device("H200") as cuda:
            x, shard, weights = (make(one).to("cuda") for one in (x, shard, weights))
            before = cuda.memory_allocated()
            y = answer(x.requires_grad_(), shard.requires_grad_())
            kept = cuda.memory_allocated() - before - y.nbytes
            y.backward(weights)
            cuda.synchronize()
        return Noted(None, {"kept": kept, "whole": shard.nbytes * dist.get_world_size()})
    x, shard = make(x).requires_grad_(), make(shard).requires_grad_()
    y = answer(x, shard)
    found = [y.detach().clone()]
    if y.requires_grad:
        y.backward(make(weights))
    return Noted([*found, x.grad, shard.grad], {})


@judged("sharded_linear", lab="08", play=_sharded, called="[y, x.grad, shard.grad]")
def sharded_linear(draw: random.Random) -> Iterator[Trial]:
    """`sharded_linear(x, shard)`: x @ whole.T, of which each rank has a shard."""
    for nproc, on_gpu in ((3, False), (4, False), (2, True)):
        # On a GPU memory is given out in pieces of 512 bytes.
        mine, columns, batch = (64, 64, 2) if on_gpu else (draw.randint(2, 3), 5, 4)
        shards, xs, grads = (
            [_numbers(draw, *shape, least=-9999, most=9999) for _ in range(nproc)]
            for shape in ((mine, columns), (batch, columns), (batch, nproc * mine))
        )
        whole = np.concatenate(shards)
        mean = sum(grad.T @ x for grad, x in zip(grads, xs, strict=True)) / nproc
        right: list[Any] = [
            [*map(_tensor, (x @ whole.T, grad @ whole, mean[r * mine : (r + 1) * mine]))]
            for r, (x, grad) in enumerate(zip(xs, grads, strict=True))
        ]
        given = [(*map(_tensor, one), on_gpu) for one in zip(xs, shards, grads, strict=True)]
        like = "two virtual GPUs" if on_gpu else ""
        yield Trial(nproc, given=given, right=[...] * nproc if on_gpu else right, like=like)


def _calls(run: Run, rank: int) -> Any:
    if "kept" in run.noted[rank]:
        return False
    called = [call.operation for call in run.job.calls[rank]]
    short = sorted(one[:10] for one in called)  # all_gather_into_tensor is one, too
    asked = ["all_gather", "all_gather", "reduce_sca"]
    return short != asked and {"called": ", ".join(called) or "nothing"}


def _kept(run: Run, rank: int) -> Any:
    noted = run.noted[rank]
    return "kept" in noted and noted["kept"] >= noted["whole"] and noted


sharded_linear.demands("keeps-the-whole", _kept)
sharded_linear.demands("other-calls", _calls)


# ── top_k ────────────────────────────────────────────────────────────────────────────────────


def _compressed(answer: Any, share: float, steps: Any) -> Noted:
    """Gradients of each step, by DDP with this hook; each parameter is a bucket of its own."""
    import torch

    steps = make(steps)
    weights = [torch.nn.Parameter(torch.zeros_like(one)) for one in steps[0]]
    changed, most = [], 0

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(weights)

        def forward(self, numbers: Any) -> Any:
            return sum((w * one).sum() for w, one in zip(self.weights, numbers, strict=True))

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads the annotations
        nonlocal most
        before = bucket.buffer().clone()
        most += BYTES_EACH * max(1, int(share * len(before)))
        future = answer(state, bucket)
        changed.append(not torch.equal(bucket.buffer(), before))
        return future

    model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1e-6)
    model.register_comm_hook({"share": share, "residuals": {}}, hook)
    ends = []
    for numbers in steps:
        model.zero_grad()
        model(numbers).backward()
        ends.append([None if one.grad is None else one.grad.clone() for one in weights])
    return Noted(ends, {"changed": any(changed), "most": most})


@judged("top_k", lab="08", play=_compressed, may_change=(0,), further=True,
        called="gradients by step and parameter: ")  # fmt: skip
def top_k(draw: random.Random) -> Iterator[Trial]:
    """`top_k(state, bucket)`: a hook of DDP that sends the largest part of a gradient."""
    for nproc, lengths, share in ((4, [20], 0.15), (2, [30, 17], 0.1), (4, [9], 0.05)):
        steps = [[_numbers(draw, sum(lengths), least=-(10**5) + 1, most=10**5) for _ in range(4)]
                 for _ in range(nproc)]  # fmt: skip

        right = [_parts(step, lengths) for step in _sent(np.array(steps), lengths, share)]
        given = [(share, [_parts(step, lengths) for step in mine]) for mine in steps]
        like = f"{len(lengths)} bucket{'s' * (len(lengths) > 1)} and {nproc} ranks"
        yield Trial(nproc, given=given, right=[right] * nproc, like=like)


def _parts(step: Any, lengths: list[int]) -> list[Tensor]:
    return [_tensor(one, "float32") for one in np.split(step, np.cumsum(lengths)[:-1])]


def _sent(steps: Any, lengths: list[int], share: float) -> Iterator[Any]:
    """The gradients after each step. In the first one DDP has all parameters in one bucket."""
    kept = np.zeros_like(steps[:, 0])
    for number in range(steps.shape[1]):
        now = steps[:, number] + kept
        total = np.zeros_like(now[0])
        ends: Any = np.cumsum(lengths)[:-1] if number else []
        for mine in now:
            for bucket in np.split(np.arange(len(mine)), ends):
                largest = bucket[np.argsort(-abs(mine[bucket]))]
                chosen = largest[: max(1, int(share * len(bucket)))]
                total[chosen] += mine[chosen]
                mine[chosen] = 0
        kept = now if number or len(lengths) == 1 else 0 * now  # no bucket has the old length
        yield total / len(now)


def _too_many_bytes(run: Run, rank: int) -> Any:
    sent = sum(call.bytes for call in run.calls(rank))
    return sent > run.noted[rank]["most"] and {"sent": sent, "most": run.noted[rank]["most"]}


top_k.fails(
    "old-length", lambda run, rank: any("must match" in f.message for f in run.job.failures)
)
top_k.demands("changes-the-buffer", lambda run, rank: run.noted[rank]["changed"])
top_k.demands("sends-it-all", _too_many_bytes)
