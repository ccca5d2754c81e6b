"""Lab 08, data parallelism: the trials of its exercises, and the signs of what goes wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

from ... import virtual
from ...base.formatting import percent
from ...calls.record import Call
from ...trace import Kind
from ..judging import Noted, Number, Run, Tensor, Trial, judged
from ..judging.values import make

Rows = list[list[float]]
_GATHERS, _SCATTERS = "all_gather", "reduce_scatter"  # with all that begins so
_HIDDEN = 0.95 * 0.67  # of the all-reduces: with the course's own 67 % run beside the backward
_BYTES_EACH = 12  # of a number that Top-K sends: a float32 and an int64


def _numbers(draw: random.Random, count: int) -> list[float]:
    """So many fractions, all of which differ."""
    return [one / 8 for one in draw.sample([n for n in range(-2000, 2001) if n % 8], count)]


def _made(run: Run, rank: int) -> list[Call]:
    """What a rank called while the trial ran: in hooks, too, when the answer had returned."""
    noted = run.noted[rank]
    return [c for c in run.job.calls[rank] if noted["began"] <= c.start <= noted["ended"]]


# ── average_gradients ────────────────────────────────────────────────────────────────────────


def _averaged(answer: Any, rows: Tensor, branch: bool) -> list[Any]:
    """A model with a tied, a frozen and an unused weight, and a branch that few ranks use."""
    import torch

    x = make(rows)
    model = torch.nn.Module()
    for name in ("first", "tied", "branch", "nobody", "frozen"):
        setattr(model, name, torch.nn.Parameter(x.new_ones(x.shape[1])))
    model.also_tied = model.tied
    model.frozen.requires_grad_(False)
    if len(x):
        y = x @ (model.first + model.tied + model.frozen) + x.square() @ model.also_tied
        (y + x @ model.branch if branch else y).mean().backward()
    answer(model, len(x))
    used = (model.first, model.tied, model.branch, model.frozen)
    nobody = model.nobody.grad
    unused = torch.zeros_like(model.nobody) if nobody is None else nobody
    return [*(weight.grad for weight in used), unused]


@judged(
    "average_gradients", lab="08", play=_averaged, called="[first, tied, branch, frozen, nobody]"
)
def average_gradients(draw: random.Random) -> Iterator[Trial]:
    """`average_gradients(model, rows)`: the gradients of the mean over all ranks' rows."""
    n = draw.choice((3, 5))
    for counts, dtype in (([2] * 3, "float32"), (draw.sample(range(1, 7), n), "float64"), ([3, 0, 2, 4], "float64")):  # fmt: skip
        users = [True] * 3 if dtype == "float32" else [r == 1 + (0 in counts) for r in range(n)]
        users = users[: len(counts)] + [False] * (len(counts) - len(users))
        width = draw.randint(2, 4)
        rows = [[_numbers(draw, width) for _ in range(count)] for count in counts]
        total = sum(counts)

        def mean(term: Callable[[float], float], chosen: Any, rows: list[Rows] = rows,
                 total: int = total, width: int = width) -> list[float]:  # fmt: skip
            mine = [row for part, one in zip(rows, chosen, strict=True) if one for row in part]
            return [sum(term(row[at]) for row in mine) / total for at in range(width)]

        everybody = [True] * len(counts)
        right = [
            Tensor.of(mean(lambda x: x, everybody), dtype),
            Tensor.of(mean(lambda x: x + x * x, everybody), dtype),
            Tensor.of(mean(lambda x: x, users), dtype),
            None,
            Tensor.of([0.0] * width, dtype),
        ]
        given = [Tensor.of([x for row in part for x in row], dtype, (len(part), width))
                 for part in rows]  # fmt: skip
        yield Trial(
            len(counts),
            given=list(zip(given, users, strict=True)),
            right=[right] * len(counts),
            facts={"counts": ", ".join(map(str, counts))},
            like=f"parts of {', '.join(map(str, counts))} rows",
        )


def _other_calls(run: Run, rank: int) -> Any:
    """Whether a rank's next call is not that of rank 0."""
    for both in zip_longest(run.job.calls[0], run.job.calls[rank]):
        call, own = ((one.operation, one.bytes) if one else None for one in both)
        if call != own:
            said = [str(one) if one else "nothing more" for one in both]
            return {"call": said[0], "own": said[1]}
    return False


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
    exact = [30, 20, 30, 50, 20, 10, 10]
    cases = [(small, 60, 30, "small ones"), (large, 80, 40, "a large one"),
             (exact, 50, 20, "sizes that fill buckets exactly"), ([70], 50, 20, "a single one"),
             ([10, 10], 50, 30, "two that fill nothing"), ([], 50, 20, "no parameter")]  # fmt: skip
    for sizes, cap, first_cap, like in cases:
        found: list[list[int]] = []
        full = True
        for number in reversed(range(len(sizes))):
            found += [[]] * full
            found[-1] = [*found[-1], number]
            full = sum(sizes[one] for one in found[-1]) >= (first_cap if len(found) < 2 else cap)
        facts = {"sizes": sizes, "cap": cap, "first_cap": first_cap}
        yield Trial(
            0, given=[(list(sizes), cap, first_cap)], right=[str(found)], facts=facts, like=like
        )


# ── replicate ────────────────────────────────────────────────────────────────────────────────


def _replicated(answer: Any, grads: Any, order: Any, buckets: list[list[int]]) -> Noted:
    """Steps in which gradients get ready in this order; or, without any, the time on GPUs."""
    import torch

    if grads is None:
        return _on_gpu(answer)
    grads = make(grads)
    weights = [torch.nn.Parameter(torch.zeros_like(one)) for one in grads[0]]
    model = torch.nn.ParameterList(weights)
    began = time.perf_counter()
    finish = answer(model, [[weights[at] for at in bucket] for bucket in buckets])
    ends, backwards = [], []
    for step, numbers in zip(grads, order, strict=True):
        model.zero_grad()
        # What was computed last is the first in the backward pass.
        sum((weights[at] * step[at]).sum() for at in reversed(numbers)).backward()
        backwards.append(time.perf_counter())
        finish()
        ends.append([None if one.grad is None else one.grad.clone() for one in weights])
    noted = {"began": began, "ended": time.perf_counter(), "backwards": backwards}
    return Noted(ends, noted)


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
        slices = list(virtual.trace())
        races = [str(one).splitlines()[0] for one in virtual.races()]
    over = max(one.end for one in slices if one.name.startswith("mm "))  # the backward pass
    sent = [one for one in slices if one.kind == Kind.COMMUNICATION and one.rank == dist.get_rank()]
    beside = [one for one in slices if one.kind == Kind.COMPUTE and one.end <= over]
    hidden = sum(
        max(0, min(one.end, other.end) - max(one.start, other.start))
        for one in sent
        for other in beside
    )
    share = hidden / max(1, sum(one.duration for one in sent))
    return Noted(None, {"share": share, "races": races})


@judged(
    "replicate", lab="08", play=_replicated, called="gradients by step and parameter: ", silent=True
)
def replicate(draw: random.Random) -> Iterator[Trial]:
    """`replicate(model, groups)`: hooks that reduce buckets, and a function finish()."""
    for nproc, unused in ((3, False), (draw.choice((2, 4)), True)):
        shapes = [(draw.randint(1, 3), draw.randint(1, 3)) for _ in range(6)]
        buckets = [[5], [4, 3], [2, 1, 0]]
        dtype = "float64" if unused else "float32"
        given: list[Any] = []
        for rank in range(nproc):
            steps, orders = [], []
            for _ in range(3):
                numbers = [Tensor.of(_numbers(draw, a * b), dtype, (a, b)) for a, b in shapes]
                order = [5, 4, 3, 2, 1, 0]
                if unused:  # ready in another order on each rank, and one is not used
                    order = [5, *draw.sample(order[1:], 5)]
                    order = [at for at in order if at != 3 or rank != 1]
                steps.append(numbers)
                orders.append(order)
            given.append((steps, orders, buckets))
        right = [
            [
                Tensor.of(
                    [
                        sum(x for x, r in zip(each, range(nproc), strict=True)
                            if at in given[r][1][step]) / nproc
                        for each in zip(*(given[r][0][step][at].numbers for r in range(nproc)),
                                        strict=True)
                    ],
                    dtype, shapes[at],
                )
                for at in range(6)
            ]
            for step in range(3)
        ]  # fmt: skip
        size = 8 if unused else 4
        sizes = [sum(shapes[at][0] * shapes[at][1] * size for at in bucket) for bucket in buckets]
        like = "a parameter that rank 1 does not use" if unused else "all parameters used"
        facts = {"sizes": sizes, "said": ", ".join(map(str, sizes)), "order": not unused}
        yield Trial(nproc, given=given, right=[right] * nproc, facts=facts, like=like)
    yield Trial(2, given=[(None, None, [])] * 2, right=[...] * 2, like="two virtual GPUs")


def _other_bytes(run: Run, rank: int) -> Any:
    if "sizes" not in run.trial.facts:
        return False
    called = [f"{call.operation} of {call.bytes} B" for call in _made(run, rank)]
    wanted = [f"all_reduce of {size} B" for size in run.trial.sizes] * 3
    return called != wanted and {"called": ", ".join(called[:4]) or "nothing"}


def _never_waited(run: Run, rank: int) -> Any:
    lost = [c for c in _made(run, rank) if not c.waited] if "sizes" in run.trial.facts else []
    return bool(lost) and {"call": lost[0]}


def _late(run: Run, rank: int) -> bool:
    """Whether the first bucket began after the backward pass."""
    backwards = run.noted[rank].get("backwards")
    return bool(backwards) and _made(run, rank)[0].start > backwards[0]


def _shown(run: Run, rank: int) -> Any:
    share = run.noted[rank].get("share", 1.0)
    return share < _HIDDEN and {"share": percent(share), "least": percent(_HIDDEN)}


def _raced(run: Run, rank: int) -> Any:
    races = run.noted[rank].get("races")
    return bool(races) and {"race": races[0]}


replicate.fails("own-order", lambda run, rank: bool(run.trial.facts) and not run.trial.order
                and _other_calls(run, rank))  # fmt: skip
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
    for stage in range(4):
        for ranks in (draw.choice((4, 8)), draw.randint(10, 99)):
            parameters = ranks * draw.randint(1000, 9999)
            divided = (0, 12, 14, 16)[stage]
            kept = (16 - divided) * parameters + divided * parameters // ranks
            facts = {"parameters": parameters, "ranks": ranks, "stage": stage}
            yield Trial(0, given=[(parameters, ranks, stage)], right=[Number(kept)], facts=facts)


# ── sharded_linear ───────────────────────────────────────────────────────────────────────────


def _sharded(answer: Any, x: Any, shard: Any, weights: Any, on_gpu: bool) -> Noted:
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
    x, shard, weights = make(x), make(shard), make(weights)
    began = time.perf_counter()
    y = answer(x.requires_grad_(), shard.requires_grad_())
    found = [y.detach().clone()]
    if y.requires_grad:
        y.backward(weights)
    found += [x.grad, shard.grad]
    return Noted(found, {"began": began, "ended": time.perf_counter()})


def _product(a: Rows, b: Rows) -> Rows:
    """a times the transposed of b."""
    return [[sum(x * y for x, y in zip(p, q, strict=True)) for q in b] for p in a]


def _turned(a: Rows) -> Rows:
    return [list(column) for column in zip(*a, strict=True)]


def _tensor(rows: Rows, dtype: str) -> Tensor:
    return Tensor.of([x for row in rows for x in row], dtype, (len(rows), len(rows[0])))


@judged("sharded_linear", lab="08", play=_sharded, called="[y, x.grad, shard.grad]")
def sharded_linear(draw: random.Random) -> Iterator[Trial]:
    """`sharded_linear(x, shard)`: x @ whole.T, of which each rank has a shard."""
    for nproc, dtype, on_gpu in ((2, "float64", False), (draw.choice((3, 4)), "float64", False),
                                 (2, "float32", True)):  # fmt: skip
        # On a GPU memory is given out in pieces of 512 bytes.
        mine, columns, batch = (64, 64, 2) if on_gpu else (draw.randint(2, 3), 4, 3)
        whole = [_numbers(draw, columns) for _ in range(nproc * mine)]
        xs = [[_numbers(draw, columns) for _ in range(batch)] for _ in range(nproc)]
        grads = [[_numbers(draw, nproc * mine) for _ in range(batch)] for _ in range(nproc)]
        each = [_product(_turned(g), _turned(x)) for g, x in zip(grads, xs, strict=True)]
        mean = [
            [sum(p) / nproc for p in zip(*rows, strict=True)] for rows in zip(*each, strict=True)
        ]
        shards = [whole[rank * mine : (rank + 1) * mine] for rank in range(nproc)]
        right: list[Any] = [
            [
                _tensor(_product(xs[rank], whole), dtype),
                _tensor(_product(grads[rank], _turned(whole)), dtype),
                _tensor(mean[rank * mine : (rank + 1) * mine], dtype),
            ]
            for rank in range(nproc)
        ]
        given = [(_tensor(xs[r], dtype), _tensor(shards[r], dtype), _tensor(grads[r], dtype), on_gpu)
                 for r in range(nproc)]  # fmt: skip
        like = "two virtual GPUs" if on_gpu else ""
        yield Trial(nproc, given=given, right=[...] * nproc if on_gpu else right, like=like)


def _calls(run: Run, rank: int) -> Any:
    if "began" not in run.noted[rank]:
        return False
    called = [call.operation for call in _made(run, rank)]
    gathers = sum(one.startswith(_GATHERS) for one in called)
    scatters = sum(one.startswith(_SCATTERS) for one in called)
    return (gathers, scatters, len(called)) != (2, 1, 3) and {"called": ", ".join(called)}


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
    changed, sent = [], []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(weights)

        def forward(self, numbers: Any) -> Any:
            return sum((w * one).sum() for w, one in zip(self.weights, numbers, strict=True))

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads the annotations
        before = bucket.buffer().clone()
        sent.append(max(1, int(share * len(before))))
        future = answer(state, bucket)
        changed.append(not torch.equal(bucket.buffer(), before))
        return future

    model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1e-6)
    model.register_comm_hook({"share": share, "residuals": {}}, hook)
    ends = []
    for numbers in steps:
        model.zero_grad()
        model(numbers).backward()
        ends.append([one.grad.clone() for one in weights])
    return Noted(ends, {"changed": any(changed), "most": _BYTES_EACH * sum(sent)})


@judged(
    "top_k", lab="08", play=_compressed, may_change=(0,), called="gradients by step and parameter: "
)
def top_k(draw: random.Random) -> Iterator[Trial]:
    """`top_k(state, bucket)`: a hook of DDP that sends the largest part of a gradient."""
    for nproc, lengths, share in ((3, [20], 0.15), (draw.choice((2, 4)), [30, 17], 0.1), (2, [9], 0.05)):  # fmt: skip
        steps = [
            [[[draw.uniform(-9, 9) for _ in range(length)] for length in lengths] for _ in range(4)]
            for _ in range(nproc)
        ]
        right = _sent_on(steps, lengths, share)
        given = [(share, [[Tensor.of(one) for one in step] for step in mine]) for mine in steps]
        like = f"{len(lengths)} bucket{'s' * (len(lengths) > 1)} and {nproc} ranks"
        yield Trial(nproc, given=given, right=[right] * nproc, like=like)


def _sent_on(steps: list[list[Rows]], lengths: list[int], share: float) -> list[list[Tensor]]:
    """The gradients of each step. In the first one DDP has all parameters in one bucket."""
    kept = [[[0.0] * length for length in lengths] for _ in steps]
    found = []
    for number in range(len(steps[0])):
        total = [[0.0] * length for length in lengths]
        together = [[*range(len(lengths))]] if number == 0 else [[at] for at in range(len(lengths))]
        for rank, mine in enumerate(steps):
            now = [[x + y for x, y in zip(*both, strict=True)]
                   for both in zip(mine[number], kept[rank], strict=True)]  # fmt: skip
            for bucket in together:
                places = [(at, place) for at in bucket for place in range(lengths[at])]
                places.sort(key=lambda one: -abs(now[one[0]][one[1]]))
                for at, place in places[: max(1, int(share * len(places)))]:
                    total[at][place] += now[at][place] / len(steps)
                    now[at][place] = 0.0
            dropped = number == 0 and len(lengths) > 1  # the buckets are made anew
            kept[rank] = [[0.0] * length for length in lengths] if dropped else now
        found.append([Tensor.of(one) for one in total])
    return found


def _too_many_bytes(run: Run, rank: int) -> Any:
    sent = sum(call.bytes for call in run.calls(rank))
    return sent > run.noted[rank]["most"] and {"sent": sent, "most": run.noted[rank]["most"]}


top_k.fails(
    "old-length", lambda run, rank: any("must match" in f.message for f in run.job.failures)
)
top_k.demands("changes-the-buffer", lambda run, rank: run.noted[rank]["changed"])
top_k.demands("sends-it-all", _too_many_bytes)
