"""Lab 14, the capstone: the trials of its exercises, and the signs of what goes wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..judging import Noted, Run, Tensor, Trial, judged
from ..judging.values import make

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def _numbers(draw: random.Random, *shape: int) -> Any:
    """Fractions, all of which differ."""
    return np.array(draw.sample(range(-1999, 1999, 2), prod(shape))).reshape(shape) / 1000


def _tensor(numbers: Any, dtype: str = "float64") -> Tensor:
    numbers = np.asarray(numbers)
    return Tensor.of(numbers.flatten().tolist(), dtype, numbers.shape)


def _told(words: str) -> Callable[[Run, int], bool]:
    """Whether an exception says this, where {n} is the number of ranks."""
    return lambda run, rank: any(
        words.format(n=run.nproc) in one.message for one in run.job.failures
    )


# ── by_expert ────────────────────────────────────────────────────────────────────────────────


def _kept(expert: Sequence[int], E: int, capacity: int) -> tuple[list[int], list[int]]:
    """The kept tokens by expert, and how many each expert has."""
    each = [[t for t, one in enumerate(expert) if one == e][:capacity] for e in range(E)]
    return [t for one in each for t in one], [len(one) for one in each]


@judged("by_expert", lab="14", called="(order_R, counts_E)")
def by_expert(draw: random.Random) -> Iterator[Trial]:
    """`by_expert(expert_T, E, capacity)`: the kept tokens by expert, and how many each has."""
    for T, E, capacity in ((10, 3, 10), (14, 4, 3), (17, 5, 2)):
        used = E if capacity == 10 else E - 1  # the last expert may have none
        expert = [0] * (capacity + 2) + [*range(used)]
        expert = expert[:T] + draw.choices(range(used), k=max(0, T - len(expert)))
        draw.shuffle(expert)
        if capacity == 10:
            capacity = max(Counter(expert).values())
        right = tuple(_tensor(one, "int64") for one in _kept(expert, E, capacity))
        like = f"{T} tokens, E = {E}, capacity {capacity}"
        given = [(_tensor(expert, "int64"), E, capacity)]
        yield Trial(0, given=given, right=[right], like=like)


# ── exchange ─────────────────────────────────────────────────────────────────────────────────


def _exchanged(
    answer: Any, rows: Any, send: list[int], receive: list[int], grad: Any, back: bool
) -> Noted:
    """What came, and the gradient of the rows, which may have gone back as well; a barrier parts
    the calls of the two passes."""
    import torch.distributed as dist

    rows = make(rows).requires_grad_()
    came = answer(rows, send, receive)
    found = _as_it_is(came)
    if isinstance(came, list | tuple):
        return Noted(came, None)
    last = answer(came, receive, send) if back else came
    dist.barrier()
    if getattr(last, "requires_grad", False):
        last.backward(make(grad))
    return Noted([found, rows.grad], None)


def _as_it_is(returned: Any) -> Any:
    """What an answer returned, before anything else can change it; it may be no tensor."""
    return returned.detach().clone() if hasattr(returned, "detach") else returned


@judged("exchange", lab="14", play=_exchanged, called="[rows, gradient]: ", silent=True)
def exchange(draw: random.Random) -> Iterator[Trial]:
    """`exchange(rows_RD, send, receive)`: rows to other ranks, and theirs to this one."""
    for n, like in (
        (2, "all have rows"),
        (3, "all have rows"),
        (4, "a rank gets none"),
        (2, "a gradient with gaps in memory"),
        (3, "there and back before the gradient comes"),
    ):
        back, gaps = like.startswith("there"), like.endswith("memory")
        table = np.array(draw.sample(range(1, n * n + 1), n * n)).reshape(n, n) % 4 + 1
        table[0, 1:] = table[1:, 0] + 1  # what goes is not what comes
        if n == 4:
            table[:, 2] = 0
            table[1] = 0
        D, total = 2, int(table.sum())
        rows, grads = _numbers(draw, total, D), _numbers(draw, total, D)
        sent = [np.split(one, np.cumsum(table[r])[:-1]) for r, one in enumerate(_cut(rows, table))]
        came = [np.concatenate([sent[s][r] for s in range(n)]) for r in range(n)]
        grad_came = _cut(grads, table.T)
        parts = [np.split(one, np.cumsum(table[:, r])[:-1]) for r, one in enumerate(grad_came)]
        returned = [np.concatenate([parts[r][s] for r in range(n)]) for s in range(n)]
        grad_last = returned if back else grad_came  # the rows that came back are its own
        given = [
            (_tensor(np.concatenate(sent[r])), table[r].tolist(), table[:, r].tolist(),
             replace(_tensor(grad_last[r]), strided=gaps), back)
            for r in range(n)
        ]  # fmt: skip
        right = [[_tensor(came[r]), _tensor(returned[r])] for r in range(n)]
        facts = {"back": back}
        yield Trial(n, given=given, right=right, facts=facts, like=f"{n} ranks, {like}")


def _cut(rows: Any, table: Any) -> list[Any]:
    """Each rank's rows: as many as its line of the table says."""
    return np.split(rows, np.cumsum(table.sum(1))[:-1])


def _one_each_way(run: Run, rank: int) -> Any:
    called = [call.operation for call in run.job.calls[rank]]
    at = called.index("barrier")
    ways = [[one for one in part if one != "barrier"] for part in (called[:at], called[at:])]
    each = 1 + run.trial.back
    right = all(len(one) == each and one[0].startswith("all_to_all") for one in ways)
    forward, backward = (", ".join(one) or "nothing" for one in ways)
    return not right and {"forward": forward, "backward": backward}


_sizes = _told("plit sizes")
exchange.fails("splits-swapped", lambda run, rank: not run.trial.back and _sizes(run, rank))
exchange.fails("splits-overwritten", _sizes)
exchange.fails("not-contiguous", _told("contiguous"))
exchange.demands("other-calls", _one_each_way)


# ── moe ──────────────────────────────────────────────────────────────────────────────────────


def _layer(answer: Any, given: list[Any], expert: list[int], capacity: int, grad: Any) -> Any:
    """y, and the gradients of x, gate, w1 and w2."""
    import torch

    x, gate, w1, w2 = (one.requires_grad_() for one in make(given))
    y = answer(x, gate, torch.tensor(expert, dtype=torch.int64), capacity, w1, w2)
    found = [_as_it_is(y)]
    if getattr(y, "requires_grad", False):
        y.backward(make(grad))
    # Where no row came, a weight has no gradient, or zeros: both are right.
    zeros = [torch.zeros_like(one) if one.grad is None else one.grad for one in (x, gate, w1, w2)]
    return [*found, *zeros]


@judged("moe", lab="14", play=_layer, called="[y, gradients of x, gate, w1, w2]: ")
def moe(draw: random.Random) -> Iterator[Trial]:
    """`moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD)`: each token through its expert."""
    e, T, D, F = 2, 6, 2, 3
    for n, like in ((2, "nothing dropped"), (3, "tokens are dropped"), (4, "a rank gets none")):
        capacity = T if n == 2 else 2
        x, grad = _numbers(draw, n, T, D), _numbers(draw, n, T, D)
        gate = np.abs(_numbers(draw, n, T)) + 0.1
        w1, w2 = _numbers(draw, n * e, D, F), _numbers(draw, n * e, F, D)
        # Of 3 ranks the last expert gets none, and of 4 ranks rank 2, which has 4 and 5.
        free = {2: range(4), 3: range(5), 4: [0, 1, 2, 3, 6, 7]}[n]
        expert = [[0, 0, 0, *draw.choices(free, k=T - 3)] for _ in range(n)]
        for one in expert:
            one[-1] = free[-1]
            draw.shuffle(one)
        found = _whole(x, gate, expert, capacity, w1, w2, grad)
        given, right = [], []
        for r in range(n):
            mine = slice(r * e, r * e + e)
            own = [_tensor(one) for one in (x[r], gate[r], w1[mine], w2[mine])]
            given.append((own, expert[r], capacity, _tensor(grad[r])))
            y, gx, gg, g1, g2 = found
            right.append([_tensor(one) for one in (y[r], gx[r], gg[r], g1[mine], g2[mine])])
        yield Trial(n, given=given, right=right, like=f"{n} ranks, {like}")


def _whole(
    x: Any, gate: Any, expert: Any, capacity: int, w1: Any, w2: Any, grad: Any
) -> tuple[Any, ...]:
    """y and the gradients of x, gate, w1 and w2, of all ranks."""
    y, gx, gg = np.zeros_like(x), np.zeros_like(x), np.zeros_like(gate)
    g1, g2 = np.zeros_like(w1), np.zeros_like(w2)
    for r in range(len(x)):
        order, counts = _kept(expert[r], len(w1), capacity)
        for t, e in zip(order, np.repeat(np.arange(len(w1)), counts), strict=True):
            h = np.maximum(x[r, t] @ w1[e], 0)
            y[r, t] = gate[r, t] * (h @ w2[e])
            gg[r, t] = grad[r, t] @ (h @ w2[e])
            out = gate[r, t] * grad[r, t]
            g2[e] += np.outer(h, out)
            back = (w2[e] @ out) * (h > 0)
            g1[e] += np.outer(x[r, t], back)
            gx[r, t] = w1[e] @ back
    return y, gx, gg, g1, g2


moe.fails("own-experts-counted", _told("shape '[{n}, -1]' is invalid"))
moe.fails("splits-not-swapped", _sizes)


# ── place ────────────────────────────────────────────────────────────────────────────────────


@judged("place", lab="14", called="the list")
def place(draw: random.Random) -> Iterator[Trial]:
    """`place(rows_E, n)`: the rank of each expert."""
    for n, e in ((2, 3), (3, 3), (4, 3)):
        E = n * e
        rows = draw.sample(range(20, 90), E)
        rows[draw.randrange(1, E)] = 700 + n  # more than all others
        yield Trial(0, given=[(rows, n)], right=[_placed(rows, n)], like=f"E = {E}, n = {n}")


def _placed(rows: list[int], n: int) -> list[int]:
    owners, load, room = [0] * len(rows), [0] * n, [len(rows) // n] * n
    for e in sorted(range(len(rows)), key=lambda e: -rows[e]):
        rank = min((r for r in range(n) if room[r]), key=lambda r: load[r])
        owners[e], load[rank], room[rank] = rank, load[rank] + rows[e], room[rank] - 1
    return owners


# ── grouped ──────────────────────────────────────────────────────────────────────────────────


def _grouped(answer: Any, *given: Any) -> Noted:
    """The rows; how many products were computed, and what got no gradient."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(op._overloadpacket.__name__)
            return op(*args, **(kwargs or {}))

    rows, local, most, w1, w2 = make(given)
    learn = {"rows_RD": rows, "w1_eDF": w1, "w2_eFD": w2}
    for one in learn.values():
        one.requires_grad_()
    with Count():
        y = answer(rows, local, most, w1, w2)
    found = _as_it_is(y)
    if getattr(y, "requires_grad", False):
        y.sum().backward()
    lost = [name for name, one in learn.items() if one.grad is None]
    products = sum(one in _PRODUCTS for one in seen)
    return Noted(found, {"products": products, "lost": ", ".join(lost)})


@judged("grouped", lab="14", play=_grouped, called="the result")
def grouped(draw: random.Random) -> Iterator[Trial]:
    """`grouped(rows_RD, local_R, most, w1_eDF, w2_eFD)`: each row through its expert."""
    for e, R, D, F in ((2, 5, 2, 3), (3, 8, 2, 4), (4, 9, 3, 2)):
        used = range(e) if e < 4 else [0, 1, 3]  # an expert with no rows
        local = [used[0]] * 3 + [*used] + draw.choices(used, k=max(0, R - 3 - len(used)))
        draw.shuffle(local)
        rows = _numbers(draw, len(local), D)
        w1, w2 = _numbers(draw, e, D, F), _numbers(draw, e, F, D)
        y = np.stack([np.maximum(x @ w1[i], 0) @ w2[i] for x, i in zip(rows, local, strict=True)])
        most = max(Counter(local).values())
        given = (_tensor(rows), _tensor(local, "int64"), most, _tensor(w1), _tensor(w2))
        yield Trial(0, given=[given], right=[_tensor(y)], like=f"{e} experts, {len(local)} rows")


def _many(run: Run, rank: int) -> Any:
    products = run.noted[rank]["products"]
    return products > 2 and {"products": products}


def _lost(run: Run, rank: int) -> Any:
    return bool(run.noted[rank]["lost"]) and run.noted[rank]


grouped.demands("no-gradient", _lost)
grouped.demands("many-products", _many)
