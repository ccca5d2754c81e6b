"""Lab 09, tensor, sequence and context parallelism: the trials of its exercises, and the signs of
what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ... import virtual
from ...base.formatting import percent
from ..judging import Noted, Run, Tensor, Trial, judged
from ..judging.values import make
from . import layers

HIDDEN = 0.8  # of a ring's messages
AS_MUCH = 0.95  # of what can be hidden with one product a piece: several small ones hide more
INNER, OUTER = 1.5, 0.5  # what block's two drops multiply by, in place of dropping


def _numbers(draw: random.Random, *shape: int, most: int = 1999) -> Any:
    """Fractions, all of which differ."""
    return np.array(draw.sample(range(-most, most, 2), prod(shape))).reshape(shape) / 1000


def _tensor(numbers: Any, dtype: str = "float64") -> Tensor:
    return Tensor.of(numbers.flatten().tolist(), dtype, numbers.shape)


def _part(numbers: Any, n: int, rank: int, axis: int = 0) -> Any:
    """A rank's part; the first ones are larger where not all can be equal."""
    return np.array_split(numbers, n, axis)[rank]


# ── mlp ──────────────────────────────────────────────────────────────────────────────────────


def _mlp(answer: Any, given: list[Any], grad: Any) -> Noted:
    """y and all gradients; how many calls the forward pass made."""
    import torch.distributed as dist

    given = [one.requires_grad_() for one in make(given)]
    y = answer(*given)
    found = [y.detach().clone()]
    dist.barrier()
    if y.requires_grad:
        y.backward(make(grad))
    return Noted([*found, *(one.grad for one in given)], {"size": given[0].nbytes})


_GRADIENTS = "[y, gradients of x, w1, b1, w2, b2]: "


@judged("mlp", lab="09", play=_mlp, called=_GRADIENTS, silent=True)
def mlp(draw: random.Random) -> Iterator[Trial]:
    """`mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D)`: relu(x w1ᵀ + b1) w2ᵀ + b2, over the ranks."""
    for n, F in ((2, 4), (3, 8), (4, 3)):
        B, D = draw.randint(2, 3), draw.randint(2, 4)
        shapes = (B, D), (F, D), (F,), (D, F), (D,), (B, D)
        x, w1, b1, w2, b2, grad = (_numbers(draw, *shape) for shape in shapes)
        y, gx, gw1, gb1, gw2, gb2 = layers.mlp(x, w1, b1, w2, b2, grad)
        right = []
        for rank in range(n):
            mine = np.isin(np.arange(F), _part(np.arange(F), n, rank))
            found = y, gx, gw1 * mine[:, None], gb1 * mine, gw2 * mine, gb2
            right.append([*map(_tensor, found)])
        given = [([*map(_tensor, (x, w1, b1, w2, b2))], _tensor(grad))] * n
        like = f"F = {F} on {n} ranks"
        yield Trial(n, given=given, right=right, facts={"F": F}, like=like)


def _one_each_way(run: Run, rank: int) -> Any:
    calls = run.job.calls[rank]
    size = run.noted[rank]["size"]
    called = [f"{call.operation} of {call.bytes} B" for call in calls]
    wanted = [f"all_reduce of {size} B", "barrier of 0 B", f"all_reduce of {size} B"]
    at = next((i for i, one in enumerate(called) if one.startswith("barrier")), len(called))
    ways = {"forward": ", ".join(called[:at]), "backward": ", ".join(called[at + 1 :])}
    said = {way: calls or "nothing" for way, calls in ways.items()}
    return called != wanted and {**said, "size": size}


mlp.demands("other-calls", _one_each_way)


# ── VocabularyLoss ───────────────────────────────────────────────────────────────────────────


def _loss(answer: Any, logits: Any, target: list[int], start: int, grad: Any) -> Noted:
    import torch
    import torch.distributed as dist

    logits = make(logits).requires_grad_()
    loss = answer(logits, torch.tensor(target), start)
    found = loss.detach().clone()
    dist.barrier()
    if loss.requires_grad:
        loss.backward(make(grad))
    return Noted([found, logits.grad], {"number": logits.element_size()})


@judged("vocabulary_loss", lab="09", play=_loss, called="[loss, gradient of logits]: ")
def vocabulary_loss(draw: random.Random) -> Iterator[Trial]:
    """`vocabulary_loss(logits_Tv, target_T, start)`: the cross entropy of each token."""
    for n, like, shift in ((2, "small logits", 0), (3, "small logits", 0), (4, "large logits", 1)):
        words = [draw.randint(2, 4) for _ in range(n)]
        T, V = 5, sum(words)
        logits = _numbers(draw, T, V) * 2
        if shift:
            logits += np.array([10_000, -10_000, 5_000, 0, -2_000])[:, None]
            logits[3, : words[0]] += 3_000  # far above the words of other ranks
        starts = np.cumsum([0, *words])
        has = [r % n for r in range(T)] if n != 3 else [0, 2, 2, 0, 2]  # rank 1 has no target
        target = [draw.choice((starts[r], starts[r + 1] - 1)) for r in has]
        grad = _numbers(draw, T)
        loss, slope = layers.cross_entropy(logits, target, grad)
        given, right = [], []
        for rank in range(n):
            mine = slice(starts[rank], starts[rank + 1])
            given.append((_tensor(logits[:, mine]), [*map(int, target)], int(starts[rank]),
                          _tensor(grad)))  # fmt: skip
            right.append([_tensor(loss), _tensor(slope[:, mine])])
        facts = {"T": T, "words": ", ".join(map(str, words))}
        yield Trial(n, given=given, right=right, facts=facts, like=f"{like}, {n} ranks")


def _passed(run: Run, rank: int) -> Any:
    calls = [call for call in run.job.calls[rank] if call.operation != "barrier"]
    numbers = sum(call.bytes for call in calls) // run.noted[rank]["number"]
    most = 3 * run.trial.T
    called = ", ".join(call.operation for call in calls)
    return numbers > most and {"numbers": numbers, "most": most, "called": called}


def _in_backward(run: Run, rank: int) -> Any:
    names = [call.operation for call in run.job.calls[rank]]
    after = names[names.index("barrier") + 1 :]
    return bool(after) and {"called": ", ".join(after)}


vocabulary_loss.demands("calls-in-backward", _in_backward)
vocabulary_loss.demands("passes-more", _passed)


# ── block ────────────────────────────────────────────────────────────────────────────────────


def _block(answer: Any, given: list[Any], grad: Any, seed: int) -> Noted:
    """y and all gradients; the seeds of `drop`, which drops nothing, and what autograd keeps."""
    import torch

    given = [one.requires_grad_() for one in make(given)]
    seeds, kept, outer = [], [], [0]

    def drop(x: Any, seed: Any) -> Any:
        seeds.append(int(seed))
        if x.shape[-1] != given[0].shape[-1]:
            return x * INNER
        outer.append(x.numel() // given[0].numel())
        return x * OUTER

    def keep(x: Any) -> Any:
        kept.append([size for size in x.shape if size > 1])
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y = answer(*given, drop, seed)
    found = [y.detach().clone()]
    if y.requires_grad:
        y.backward(make(grad))
    noted = {"seeds": seeds, "kept": kept, "outer": outer}
    return Noted([*found, *(one.grad for one in given)], noted)


@judged("block", lab="09", play=_block, called="[y, gradients of x, gain, w1, w2]: ")
def block(draw: random.Random) -> Iterator[Trial]:
    """`block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed)`: an MLP whose norm is cut by sequence."""
    for n, B, s in ((2, 1, 2), (3, 2, 2), (4, 2, 2)):
        D, f = 3, draw.choice((2, 4))
        S, F = n * s, n * f
        shapes = (B, S, D), (D,), (F, D), (D, F), (B, S, D)
        x, gain, w1, w2, grad = (_numbers(draw, *shape) for shape in shapes)
        y, gx, ggain, gw1, gw2 = layers.block(x, gain, w1, w2, grad, INNER * OUTER)
        given, right = [], []
        seed = 1000 * draw.randint(1, 99)
        for r in range(n):
            cut = _part(x, n, r, 1), gain, _part(w1, n, r), _part(w2, n, r, 1)
            given.append(([*map(_tensor, cut)], _tensor(_part(grad, n, r, 1)), seed))
            found = (_part(y, n, r, 1), _part(gx, n, r, 1), ggain, _part(gw1, n, r),
                     _part(gw2, n, r, 1))  # fmt: skip
            right.append([*map(_tensor, found)])
        facts = {"seed": seed, "gain": D * 8, "sizes": {"B": B, "S": S, "s": s}}
        yield Trial(n, given=given, right=right, facts=facts)


def _seeds(run: Run, rank: int) -> Any:
    every = [seed for noted in run.noted for seed in noted["seeds"]]
    mine = run.noted[rank]["seeds"]
    return any(every.count(seed) > 1 for seed in mine) and {"seeds": mine}


def _summands(run: Run, rank: int) -> bool:
    """Whether the second drop got all positions."""
    return max(run.noted[rank]["outer"]) > 1


def _range(run: Run, rank: int) -> Any:
    mine = run.noted[rank]["seeds"]
    fits = all(run.trial.seed <= seed < run.trial.seed + 1000 for seed in mine)
    return not fits and {"seeds": mine}


def _four(run: Run, rank: int) -> Any:
    calls = run.job.calls[rank]
    called = [call.operation for call in calls]
    large = sorted(one.operation[:10] for one in calls if one.bytes > run.trial.gain)
    wanted = ["all_gather"] * 2 + ["reduce_sca"] * 2
    is_right = large == wanted and len(calls) <= 5
    return not is_right and {"called": ", ".join(called) or "nothing"}


def _norm_of_all(run: Run, rank: int) -> bool:
    """Whether a number for each position of all ranks is kept, as a norm does."""
    B, S = run.trial.sizes["B"], run.trial.sizes["S"]
    return any(shape in ([B, S], [S], [B * S]) for shape in run.noted[rank]["kept"])


block.demands("norm-of-all", _norm_of_all)
block.demands("drops-summands", _summands)
block.demands("same-seeds", _seeds)
block.demands("seeds-outside", _range)
block.demands("other-calls", _four)


# ── merge and ring_attention ─────────────────────────────────────────────────────────────────


@judged("merge", lab="09", called="(m, l, o)")
def merge(draw: random.Random) -> Iterator[Trial]:
    """`merge(one, other)`: the triple (m, l, o) of the keys of both."""
    for like, size, hidden in (
        ("small scores", 1, 1),
        ("large scores", 1_000, 1),
        ("parts without keys", 1, 0),
    ):
        q = _numbers(draw, 2, 1, 4, 3)
        q[..., 2] = [-4, 4, 0, 0]  # all scores of the first query are negative
        q *= size
        keys = [(_numbers(draw, 2, 1, 3, 3), _numbers(draw, 2, 1, 3, 3)) for _ in range(2)]
        for k, _ in keys:
            k[..., 2] = 2
        sees = [np.full((4, 3), True) for _ in range(2)]
        if not hidden:
            sees[0][0], sees[1][1], sees[0][2], sees[1][2] = False, False, False, False
        one, other = (
            layers.partial(q, k, v, mask) for (k, v), mask in zip(keys, sees, strict=True)
        )
        k, v = (np.concatenate(some, -2) for some in zip(*keys, strict=True))
        right = layers.partial(q, k, v, np.concatenate(sees, -1))
        given = [tuple(tuple(map(_tensor, triple)) for triple in (one, other))]
        yield Trial(0, given=given, right=[tuple(map(_tensor, right))], like=like)


def _attended(answer: Any, *given: Any) -> Noted:
    """The attention; or, without anything given, on GPUs the share of messages that is hidden."""
    if given:
        return Noted(answer(*make(list(given[:3])), make(given[3])), {})
    return _on_gpus(answer, (1, 16, 4096, 128), (1, 16, 4096, 128), (1, 16, 4096, 128), None)


def _on_gpus(answer: Any, *given: Any) -> Noted:
    """The share of the communication that is hidden; given: shapes, and what is none."""
    import torch
    import torch.distributed as dist

    with virtual.device("H200", values=False) as cuda:
        own = [
            torch.randn(one, device="cuda", dtype=torch.bfloat16) if isinstance(one, tuple) else one
            for one in given
        ]
        cuda.synchronize()
        dist.barrier()
        answer(*own)
        trace, races = virtual.trace(), [str(one).splitlines()[0] for one in virtual.races()]
    spent = trace.breakdown().of(dist.get_rank())
    return Noted(None, {"share": spent.overlapped / max(1, spent.communication), "races": races})


def _raced(run: Run, rank: int) -> Any:
    races = run.noted[rank].get("races")
    return bool(races) and {"race": races[0]}


def _shown(run: Run, rank: int) -> Any:
    noted = run.noted[rank]
    share, least = noted.get("share", 1.0), noted.get("least", HIDDEN)
    return share < least and {"share": percent(share), "least": percent(least)}


@judged("ring_attention", lab="09", play=_attended, called="the attention")
def ring_attention(draw: random.Random) -> Iterator[Trial]:
    """`ring_attention(q_BHsE, k_BHsE, v_BHsE, places)`: attention to the keys of all ranks."""
    for n, how in ((2, "all seen"), (3, "all seen"), (4, "causal"), (3, "zigzag")):
        s = 4 if how == "zigzag" else 2
        S, E = n * s, 3
        q, k, v = (_numbers(draw, 1, 2, S, E) for _ in range(3))
        if how == "zigzag":
            q[..., 2], k[..., 2] = 50, -50  # all scores are far below zero
        places = np.arange(S).reshape(n, s)
        if how == "zigzag":
            pieces = np.arange(S).reshape(2 * n, s // 2)
            places = np.array([[*pieces[r], *pieces[-1 - r]] for r in range(n)])
        at = np.arange(S)
        sees = np.full((S, S), True) if how == "all seen" else at[:, None] >= at
        whole = layers.attention(q, k, v, sees)
        said = None if how == "all seen" else [_tensor(one, "int64") for one in places]
        given = [(*(_tensor(one[:, :, mine]) for one in (q, k, v)), said) for mine in places]
        right = [_tensor(whole[:, :, mine]) for mine in places]
        facts = {"kv": 2 * 2 * s * E * 8}
        yield Trial(n, given=given, right=right, facts=facts, like=f"{how}, {n} ranks")
    yield Trial(4, given=[()] * 4, right=[...] * 4, like="four virtual GPUs")


def _separate(run: Run, rank: int) -> bool:
    """Whether ranks wait for each other on GPUs, where they did not on the CPU."""
    return "kv" not in run.trial.facts and any(one.kind == "stuck" for one in run.job.failures)


def _other_way(run: Run, rank: int) -> Any:
    if "kv" not in run.trial.facts:
        return False
    to = run.sent_to(rank)
    following = (rank + 1) % run.nproc
    return bool(run.collectives(rank) or to != [following]) and {
        "called": ", ".join(dict.fromkeys(run.operations(rank))) or "nothing",
        "to": ", ".join(map(str, to)) or "nobody",
    }


def _more_bytes(run: Run, rank: int) -> Any:
    if "kv" not in run.trial.facts:
        return False
    sent, asked = run.sent_bytes(rank), (run.nproc - 1) * run.trial.kv
    return sent != asked and {"sent": sent, "asked": asked}


ring_attention.fails("separate-messages", _separate)
ring_attention.demands("no-ring", _other_way)
ring_attention.demands("other-bytes", _more_bytes)
ring_attention.demands("race", _raced)
ring_attention.demands("not-hidden", _shown)


# ── gather_and_multiply ──────────────────────────────────────────────────────────────────────


def _own_rows_first(x: Any, w: Any, pieces: int) -> None:
    """The right order, with one product a piece; the products are left where they are."""
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    coming = []
    for piece in x.chunk(pieces):
        parts = [torch.empty_like(piece) for _ in range(n)]
        coming.append((parts, dist.all_gather(parts, piece, async_op=True)))
    x @ w.T
    for parts, handle in coming:
        handle.wait()
        torch.cat(parts[:rank] + parts[rank + 1 :]) @ w.T


def _multiplied(answer: Any, x: Any, w: Any, pieces: int) -> Noted:
    """The product; or, without x, on GPUs the share of the all-gathers that is hidden, and what
    it should be at least."""
    if x is not None:
        return Noted(answer(make(x), make(w), pieces), {})
    own, most = (
        _on_gpus(one, (8192, 8192), (3072, 8192), pieces) for one in (answer, _own_rows_first)
    )
    return Noted(own.end, {**own.noted, "least": AS_MUCH * most.noted["share"]})


@judged("gather_and_multiply", lab="09", play=_multiplied, called="the product")
def gather_and_multiply(draw: random.Random) -> Iterator[Trial]:
    """`gather_and_multiply(x_sD, w_fD, pieces)`: a product that does not wait for all rows."""
    for n, s, pieces in ((2, 4, 2), (3, 6, 4), (4, 3, 1)):
        x, weights = _numbers(draw, n * s, 3), [_numbers(draw, 4, 3) for _ in range(n)]
        right = [_tensor(x @ w.T) for w in weights]
        given = [(_tensor(_part(x, n, r)), _tensor(w), pieces) for r, w in enumerate(weights)]
        most = -(-s // pieces)  # chunk(4) of 6 rows: 3 pieces of 2
        rows = [min(most, s - at) for at in range(0, s, most)]
        like = f"{s} rows a rank, pieces={pieces}"
        yield Trial(n, given=given, right=right, facts={"rows": rows}, like=like)
    yield Trial(4, given=[(None, None, 4)] * 4, right=[...] * 4, like="four virtual GPUs")


def _gathers(run: Run, rank: int) -> Any:
    gathers = [one for one in run.calls(rank) if one.operation.startswith("all_gather")]
    wanted, made = run.trial.facts.get("rows"), [one.bytes / 24 for one in gathers]
    return wanted not in (None, made) and {
        "calls": len(gathers),
        "rows": " and ".join(f"{one:g}" for one in made),
        "wanted": " and ".join(map(str, wanted)),
    }


gather_and_multiply.demands("race", _raced)
gather_and_multiply.demands("other-pieces", _gathers)
gather_and_multiply.demands("not-hidden", _shown)
