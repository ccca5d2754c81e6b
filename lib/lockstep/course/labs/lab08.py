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
from ..judging.values import alike, make

HIDDEN = 0.95 * 2 / 3  # of the all-reduces: the last bucket, which has a third, comes too late
ALL_USED = "all parameters used"
ONE_UNUSED = "a parameter that rank 1 does not use"
ON_GPUS = "two virtual GPUs"
BYTES_EACH = 12  # of a number that Top-K sends: a float32 and an int64


def _numbers(draw: random.Random, *shape: int, least: int = -1999, most: int = 1999) -> Any:
    """Fractions, all of which differ. Sums of them have no rounding errors."""
    return np.array(draw.sample(range(least, most, 2), prod(shape))).reshape(shape) / 8


def _tensor(numbers: Any, dtype: str = "float64") -> Tensor:
    return Tensor.of(numbers.flatten().tolist(), dtype, numbers.shape)


def _called(run: Run, rank: int) -> list[str]:
    return [f"{call.operation} of {call.bytes} B" for call in run.job.calls[rank]]


def _other_calls(run: Run, rank: int) -> Any:
    """Whether a rank's next call is not that of rank 0."""
    both = zip_longest(_called(run, 0), _called(run, rank), fillvalue="nothing more")
    return next(({"call": call, "own": own} for call, own in both if call != own), False)


def _gradients(weights: Any) -> list[Any]:
    return [None if one.grad is None else one.grad.clone() for one in weights]


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
    model = torch.nn.ParameterList(torch.zeros_like(one) for one in grads[0])
    finish = answer(model, [[model[at] for at in group] for group in groups])
    ends, backward = [], None
    for step in grads:
        model.zero_grad()
        # What was computed last is the first in the backward pass.
        sum((model[at] * step[at]).sum() for at in reversed(order)).backward()
        backward = backward or time.perf_counter()
        finish()
        ends.append(_gradients(model))
    return Noted(ends, {"backward": backward})


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
            if rank != 1 and not in_order:
                middle, (first, last) = draw.sample(range(3), 3), draw.sample((3, 4), 2)
                others = {
                    0: [*middle, first, last],  # the last bucket is complete before its turn
                    2: [first, *middle, last],  # a bucket waits for its last one while others come
                    3: [first, last, *middle],
                }[rank]
            orders.append([5, *(at for at in others if in_order or (rank, at) != (1, 3))])
        used = [[grads[r][step][at] * (at in orders[r]) for r in ranks]
                for step in range(3) for at in range(6)]  # fmt: skip
        means = [_tensor(np.mean(each, axis=0), dtype) for each in used]
        given = [([[_tensor(one, dtype) for one in step] for step in grads[r]], orders[r], groups)
                 for r in ranks]  # fmt: skip
        sizes = [sum(prod(shapes[at]) for at in group) * (4 if in_order else 8) for group in groups]
        facts = {"sizes": sizes, "said": ", ".join(map(str, sizes))}
        right = [[means[:6], means[6:12], means[12:]]] * len(ranks)
        yield Trial(len(ranks), given, right, facts, like=ALL_USED if in_order else ONE_UNUSED)
    yield Trial(2, given=[(None, [], [])] * 2, right=[...] * 2, like=ON_GPUS)


def _first_step_alone(run: Run, rank: int) -> bool:
    """Whether the gradients of the first step are right, so that a later step's are not."""
    return alike(run.got(rank)[0], run.right(rank)[0])


def _never_waited(run: Run, rank: int) -> Any:
    lost = [call for call in run.job.calls[rank] if not call.waited]
    return run.trial.like != ON_GPUS and bool(lost) and {"call": lost[0]}


def _other_bytes(run: Run, rank: int) -> Any:
    called = _called(run, rank)
    wanted = [f"all_reduce of {size} B" for size in run.trial.facts.get("sizes", ())] * 3
    return bool(wanted) and called != wanted and {"called": ", ".join(called[:4]) or "nothing"}


def _late(run: Run, rank: int) -> bool:
    """Whether the first bucket began after the backward pass."""
    backward = run.noted[rank].get("backward")
    return bool(backward) and run.job.calls[rank][0].start > backward


def _one_late(run: Run, rank: int) -> Any:
    """The bucket that began after a backward pass in which all of its gradients were ready."""
    backward = run.noted[rank].get("backward")
    if not backward or (run.trial.like, rank) == (ONE_UNUSED, 1):
        return False
    first = run.job.calls[rank][: len(run.trial.sizes)]
    late = next((at for at, call in enumerate(first) if call.start > backward), None)
    return late is not None and {"bucket": late}


def _raced(run: Run, rank: int) -> Any:
    races = run.noted[rank].get("races")
    return bool(races) and {"race": races[0]}


def _exposed(run: Run, rank: int) -> Any:
    share = run.noted[rank].get("share", 1.0)
    return share < HIDDEN and {"share": percent(share), "least": percent(HIDDEN)}


replicate.fails(
    "own-order", lambda run, rank: run.trial.like == ONE_UNUSED and _other_calls(run, rank)
)
replicate.shows("never-waited", _never_waited)
replicate.shows("first-step-only", _first_step_alone)
replicate.demands("never-waited", _never_waited)
replicate.demands("other-bytes", _other_bytes)
replicate.demands("after-the-backward", _late)
replicate.demands("late-bucket", _one_late)
replicate.demands("race", _raced)
replicate.demands("not-hidden", _exposed)


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
        right = [...] * nproc if on_gpu else right
        yield Trial(nproc, given=given, right=right, like=ON_GPUS if on_gpu else "")


def _calls(run: Run, rank: int) -> Any:
    called = [call.operation for call in run.job.calls[rank]]
    short = sorted(one[:10] for one in called)  # all_gather_into_tensor is one, too
    wrong = short != ["all_gather", "all_gather", "reduce_sca"] and run.trial.like != ON_GPUS
    return wrong and {"called": ", ".join(called) or "nothing"}


def _kept(run: Run, rank: int) -> Any:
    noted = run.noted[rank]
    return run.trial.like == ON_GPUS and noted["kept"] >= noted["whole"] and noted


sharded_linear.demands("keeps-the-whole", _kept)
sharded_linear.demands("other-calls", _calls)


# ── top_k ────────────────────────────────────────────────────────────────────────────────────


def _compressed(answer: Any, share: float, steps: Any) -> Noted:
    """Gradients of each step, by DDP with this hook; each parameter is a bucket of its own."""
    import torch

    steps, model = make(steps), torch.nn.Module()
    weights = torch.nn.ParameterList(torch.zeros_like(one) for one in steps[0])
    changed, most = [], 0
    model.weights = weights
    model.forward = lambda numbers: sum(map(torch.vdot, weights, numbers))

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads the annotations
        nonlocal most
        before = bucket.buffer().clone()
        most += BYTES_EACH * max(1, int(share * len(before)))
        future = answer(state, bucket)
        changed.append(not torch.equal(bucket.buffer(), before))
        return future

    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-6)
    ddp.register_comm_hook({"share": share, "residuals": {}}, hook)
    ends = []
    for numbers in steps:
        ddp.zero_grad()
        ddp(numbers).backward()
        ends.append(_gradients(weights))
    return Noted(ends, {"changed": any(changed), "most": most})


@judged("top_k", lab="08", play=_compressed, may_change=(0,), further=True,
        called="gradients by step and parameter: ")  # fmt: skip
def top_k(draw: random.Random) -> Iterator[Trial]:
    """`top_k(state, bucket)`: a hook of DDP that sends the largest part of a gradient."""
    for nproc, lengths, share in ((4, [20], 0.15), (2, [30, 17], 0.1), (4, [9], 0.05)):
        ends = np.cumsum(lengths)[:-1]
        steps = _numbers(draw, 4, nproc, sum(lengths), least=-(10**5) + 1, most=10**5)
        parts = [[[_tensor(one, "float32") for one in np.split(mine, ends)] for mine in step]
                 for step in [*steps, *_sent(steps, ends, share)]]  # fmt: skip
        given = [(share, [step[rank] for step in parts[:4]]) for rank in range(nproc)]
        like = f"{len(lengths)} bucket{'s' * (len(lengths) > 1)} and {nproc} ranks"
        right = [[step[0] for step in parts[4:]]] * nproc
        yield Trial(nproc, given=given, right=right, like=like)


def _sent(steps: Any, ends: Any, share: float) -> Iterator[Any]:
    """The gradients after each step. In the first one DDP has all parameters in one bucket."""
    kept = np.zeros_like(steps[0])
    for number, step in enumerate(steps):
        sent, left = np.zeros_like(step), step + kept
        for bucket in np.split(np.arange(step.shape[1]), ends if number else []):
            count = max(1, int(share * len(bucket)))
            largest = bucket[np.argsort(-abs(left[:, bucket]))[:, :count]]
            np.put_along_axis(sent, largest, np.take_along_axis(left, largest, 1), 1)
        kept = left - sent if number or not len(ends) else 0 * left  # else of another length
        yield sent.mean(axis=0, keepdims=True)


def _too_many_bytes(run: Run, rank: int) -> Any:
    sent = sum(call.bytes for call in run.calls(rank))
    return sent > run.noted[rank]["most"] and {"sent": sent, "most": run.noted[rank]["most"]}


top_k.fails(
    "old-length", lambda run, rank: any("must match" in f.message for f in run.job.failures)
)
top_k.demands("changes-the-buffer", lambda run, rank: run.noted[rank]["changed"])
top_k.demands("sends-it-all", _too_many_bytes)
