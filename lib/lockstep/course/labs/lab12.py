"""Lab 12, memory and input: the trials of its exercises, and the signs of mistakes.

What a step keeps is asked of the virtual GPU, on which copies are seen, too, as in lab 04.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from ... import virtual
from ...base.formatting import percent
from ..judging import Noted, Number, Run, Trial, judged
from .lab04 import host_waits, raced, torch_cuda, with_copies

_MIB, _GIB = 1 << 20, 1 << 30

# ── peak ─────────────────────────────────────────────────────────────────────────────────────

_NEAR = 0.05  # of the bytes, in which a prediction may be wrong
# What the lab's text leads to is off by at most so much in these trials, so that only answers
# between the two need a model that is trained (tests/test_virtual_training_memory.py).
_SURELY, _PERHAPS = 0.025, 0.08


def _summit(layers: int, width: int, vocabulary: int, tokens: int, size: int) -> int:
    """The bytes that the lab's text leads to."""
    parameters = 12 * layers * width**2 + 2 * vocabulary * width
    kept = 16 * layers * tokens * width + 3 * tokens * vocabulary
    return size * max(3 * parameters + kept, 5 * parameters) + 64 * _MIB


def measured_peak(layers: int, width: int, vocabulary: int, tokens: int, size: int) -> int:
    """The peak of the second step of such a model on the virtual GPU, with cuBLAS's workspace."""
    import torch
    from torch import nn
    from torch.nn import functional

    def linear(a: int, b: int) -> Any:
        return nn.Linear(a, b, bias=False)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = linear(width, 3 * width), linear(width, width)
            self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.norms[0](x)).view(1, tokens, 3, width // 64, 64)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    with virtual.device("H200", values=False) as cuda:
        with torch.device("cuda"):
            blocks = [Block() for _ in range(layers)]
            ends = nn.Embedding(vocabulary, width), nn.LayerNorm(width), linear(width, vocabulary)
            model = nn.Sequential(ends[0], *blocks, *ends[1:])
            model = model.to({2: torch.bfloat16, 4: torch.float32}[size])
            ids = torch.zeros(1, tokens, dtype=torch.int64)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return int(cuda.max_memory_allocated()) + 64 * _MIB


def _predicted(answer: Any, *config: int) -> Any:
    got, right = answer(*config), _summit(*config)
    if not isinstance(got, int | float):
        return got
    off = abs(got / right - 1)
    if _SURELY < off < _PERHAPS:
        off = abs(got / measured_peak(*config) - 1)
    return right if off <= _NEAR else int(got)


def peaks(draw: random.Random) -> Iterator[Trial]:
    """`peak(layers, width, vocabulary, tokens, size)`: the most bytes of a training step."""
    for like, *config in (
        ("many tokens", draw.randint(10, 14), 1024, 1024, 32_768, 2),
        ("a large vocabulary", 2, 1024, draw.randint(100, 120) * 1024, 8192, 2),
        ("few tokens", draw.randint(3, 5), 4096, 32_000, 256, 4),
        ("few tokens, of 2 bytes", draw.randint(3, 5), 8192, 8192, 512, 2),
        ("numbers of 4 bytes", draw.randint(8, 12), 1536, 8192, 6000, 4),
        ("a large model and many tokens", 8, 8192, 8192, draw.randint(19, 21) * 1024, 2),
        ("a small model", draw.randint(3, 5), 1024, 8192, 1024, 2),
    ):
        yield Trial(0, given=[tuple(config)], right=[_summit(*config)], like=like)


judged("peak", lab="12", play=_predicted)(peaks)


# ── rounded ──────────────────────────────────────────────────────────────────────────────────


def _rounded(answer: Any, sizes: list[int]) -> Noted:
    got = [answer(nbytes) for nbytes in sizes]
    whole = all(map(_is_whole, got))
    pairs = [(nbytes, int(out)) for nbytes, out in zip(sizes, got, strict=True)] if whole else []
    noted = {
        "less": [pair for pair in pairs if pair[1] < pair[0]],
        "more": [(n, out) for n, out in pairs if 4 * out > 5 * n and out > n + -n % 512],
        "different": len({out for nbytes, out in pairs if _MIB <= nbytes <= _GIB}),
    }
    odd = [one for one in got if not _is_whole(one)]
    return Noted(odd[0] if odd else "whole numbers", noted)


def _is_whole(one: Any) -> bool:
    return hasattr(one, "__index__") and not isinstance(one, bool)


@judged("rounded", lab="12", play=_rounded)
def rounded(draw: random.Random) -> Iterator[Trial]:
    """`rounded(nbytes)`: sizes that come again, at most a quarter larger."""
    small = [*range(1, 600), *(draw.randint(600, _MIB) for _ in range(300))]
    edges = [(1 << bit) + by for bit in range(20, 31) for by in (-1, 0, 1)]
    steps = [round(_MIB * 1.004**step) for step in range(1740)]
    large = [*edges, *steps, *(int(_MIB * 2 ** draw.uniform(0, 10)) for _ in range(2000))]
    larger = [_GIB + 1, *(draw.randint(_GIB, 80 * _GIB) for _ in range(20))]
    for like, sizes in (
        ("1 MiB to 1 GiB", [one for one in large if one <= _GIB]),
        ("less than 1 MiB", small),
        ("more than 1 GiB", larger),
    ):
        yield Trial(0, given=[(sizes,)], right=["whole numbers"], like=like)


def _first(what: str) -> Any:
    def sign(run: Run, rank: int) -> Any:
        found = run.noted[rank][what]
        return bool(found) and {"asked": f"{found[0][0]:,}", "made": f"{found[0][1]:,}"}

    return sign


rounded.demands("less", _first("less"))
rounded.demands("more", _first("more"))
rounded.demands("too-many", lambda run, rank: run.noted[rank]["different"] > 41 and run.noted[rank])


# ── recomputed ───────────────────────────────────────────────────────────────────────────────


def _least(kept: Sequence[int], seconds: Sequence[float], budget: int) -> float:
    """The least time in which the others fit into the budget."""
    blocks = range(len(kept))
    return min(
        sum(seconds[i] for i in some)
        for count in range(len(kept) + 1)
        for some in combinations(blocks, count)
        if sum(kept) - sum(kept[i] for i in some) <= budget
    )


def _chosen(answer: Any, kept: list[int], seconds: list[float], budget: int) -> Noted:
    some = answer(list(kept), list(seconds), budget)
    plain = isinstance(some, list) and all(_is_whole(i) and 0 <= i < len(kept) for i in some)
    if not plain:
        return Noted(some, {})
    left = sum(kept[i] for i in range(len(kept)) if i not in some)
    took = sum(seconds[i] for i in set(some)) if left <= budget else math.inf
    return Noted(took, {"some": some, "left": left, "budget": budget})


@judged("recomputed", lab="12", play=_chosen, called="seconds of its choice: ")
def recomputed(draw: random.Random) -> Iterator[Trial]:
    """`recomputed(kept, seconds, budget)`: the blocks to recompute, in the least time."""
    for like, kept, seconds, budget in (
        ("equal blocks", [8] * 5, [2.0] * 5, 24),
        ("a block that just fits", [6, 5, 5], [4.0, 2.5, 2.5], 10),
        ("all of them fit", [3, 4, 5], [1.0, 1.0, 1.0], 12),
        ("a block of one byte too many", [(1 << 24) + 1], [1.0], 1 << 24),
        ("two blocks of one byte too many", [199, 199], [0.25, 0.5], 397),
        ("two cheap ones and a dear one", [5, 5, 10], [0.25, 0.25, 4.0], 10),
        ("two that just fit a large budget", [1001, 1000, 5], [3.0, 3.5, 0.25], 2001),
        ("times below a second", [4, 4, 4, 4], [0.75, 0.5, 0.25, 0.875], 12),
        ("no budget at all", [3, 4, 5], [1.0, 2.0, 3.0], 0),
        ("the best for its time is too large", [10, 9, 9], [6.0, 5.0, 5.0], 10),
        ("large bytes", [draw.randint(1, 40) << 26 for _ in range(9)],
         [draw.randint(1, 30) / 8 for _ in range(9)], 60 << 26),
        ("many blocks", [draw.randint(5, 60) for _ in range(12)],
         [draw.randint(5, 60) / 4 for _ in range(12)], draw.randint(120, 260)),
        ("many blocks", [draw.randint(1, 9) for _ in range(13)],
         [draw.randint(1, 9) / 2 for _ in range(13)], draw.randint(10, 40)),
    ):  # fmt: skip
        yield Trial(
            0, given=[(kept, seconds, budget)], right=[Number(_least(kept, seconds, budget))],
            patience=30.0, like=like if len(kept) > 3 else f"{like}, kept {kept}",
        )  # fmt: skip


recomputed.shows("does-not-fit", lambda run, rank: run.got(rank) == math.inf and run.noted[rank])
recomputed.demands(
    "unsorted",
    lambda run, rank: (
        run.noted[rank]["some"] != sorted(set(run.noted[rank]["some"])) and run.noted[rank]
    ),
)


# ── offloaded ────────────────────────────────────────────────────────────────────────────────

_NUMBERS = 4096  # of a weight, as of a batch in lab 04
_PLACES = 3  # on the device, at most
_HIDDEN = 0.95  # of the copies' time, without the first


def _offloaded(answer: Any, values: list[float], dtype: str, elsewhere: bool) -> Noted:
    import torch

    def call(cuda: Any, on_host: list[Any], use: Any, side: Any) -> Any:
        x = torch.full((), 1.0, device="cuda")
        return answer(
            cuda, on_host, lambda x, w: x / 2 + use(w), lambda x, w: x / 2 - use(w), x, side
        )

    return with_copies(call, values, dtype, elsewhere)


@judged("offloaded", lab="12", play=_offloaded)
def offloaded(draw: random.Random) -> Iterator[Trial]:
    """`offloaded(cuda, on_host, forward, backward, x, side)`: weights fetched one ahead."""
    for count, dtype, elsewhere in (
        (4, "float32", False),
        (2, "float32", False),
        (draw.choice((5, 7)), "int32", True),
    ):
        values = [one / 8 for one in draw.sample(range(8, 800, 8), count)]
        x = 1.0
        for value in values:
            x = x / 2 + (_NUMBERS * value + 3 + value)
        for value in reversed(values):
            x = x / 2 - (_NUMBERS * value + 3 + value)
        where = " and another stream than the default one as the current one" * elsewhere
        yield Trial(
            0, given=[(values, dtype, elsewhere)], right=[Number(x)],
            like=f"{count} weights of {dtype}{where}",
        )  # fmt: skip


def _shown(run: Run, rank: int) -> Any:
    share = run.noted[rank]["hidden"]
    return share < _HIDDEN and {"share": percent(share)}


def _copied_again(run: Run, rank: int) -> Any:
    copies, weights = run.noted[rank]["copies"], len(run.trial.given[0][0])
    return copies >= 2 * weights and {"copies": copies, "weights": weights}


offloaded.shows("no-free", raced(second="`side`", kind="write"))
offloaded.shows("given-back", raced(kind="given back"))
offloaded.shows("no-full", raced(first="`side`"))
offloaded.fails("torch-cuda", torch_cuda)
offloaded.demands("race", raced())
offloaded.demands(
    "converted",
    lambda run, rank: (
        bool(run.noted[rank]["converted"]) and {"dtype": run.noted[rank]["converted"][0]}
    ),
)
offloaded.demands("host-waits", host_waits)
offloaded.demands("pageable", lambda run, rank: run.noted[rank]["busy"])
offloaded.demands("not-copied", lambda run, rank: not run.noted[rank]["copies"])
offloaded.demands("elsewhere", lambda run, rank: run.noted[rank]["elsewhere"])
offloaded.demands("not-on-side", lambda run, rank: run.noted[rank]["beside"])
offloaded.demands("copied-again", _copied_again)
offloaded.demands("not-hidden", _shown)
offloaded.demands(
    "too-much-memory",
    lambda run, rank: run.noted[rank]["held"] > _PLACES and run.noted[rank],
)


# ── Shard ────────────────────────────────────────────────────────────────────────────────────


def _read(answer: Any, samples: list[int], workers: int) -> Noted:
    """What the rank's loader gives in two epochs.

    As in a cluster whose nodes have one rank each, and workers that know no process group.
    """
    import torch.distributed as dist
    from torch.utils.data import DataLoader, IterableDataset

    os.environ["LOCAL_RANK"] = "0"
    dataset = answer(list(samples))
    if not isinstance(dataset, IterableDataset):
        return Noted(None, {"epochs": [], "is": type(dataset).__name__})
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=workers,
        worker_init_fn=lambda _: dist.distributed_c10d._update_default_pg(None),
    )  # fmt: skip
    try:
        epochs = [list(loader) for _ in range(2)]
    except Exception as error:  # the answer's own, in a worker or here
        last = [line for line in str(error).splitlines() if line.strip()][-1]
        return Noted(None, {"epochs": [], "raised": last if workers else repr(error)})
    odd = [repr(one)[:60] for epoch in epochs for one in epoch if not isinstance(one, int)]
    return Noted(None, {"epochs": epochs, "odd": "".join(odd[:1])})


@judged("Shard", lab="12", play=_read)
def Shard(draw: random.Random) -> Iterator[Trial]:
    """`Shard(samples)`: each sample once, on one rank and in one of its workers."""
    for nproc, workers, count in (
        (2, 0, 8),
        (2, 2, 8),
        (2, 3, 10),
        (3, 2, draw.choice((13, 14, 17))),
        (3, 0, 11),
        (3, 3, 4),
    ):
        samples = draw.sample(range(1, 1000), count)
        if count > 8:
            samples[:4] = [0, *samples[1:3], samples[1]]  # two are equal, and one is 0
        each = f"{workers} workers each" if workers else "no workers"
        yield Trial(
            nproc, given=[(samples, workers)] * nproc, right=[...] * nproc,
            facts={"samples": samples, "workers": workers}, patience=30.0,
            like=f"{nproc} ranks, {each}, {count} samples",
        )  # fmt: skip


def _epoch(run: Run) -> list[list[int]]:
    """What each rank read in its first epoch."""
    return [noted["epochs"][0] for noted in run.noted]


def _all(run: Run) -> Counter[int]:
    """How often each sample was read in the first epoch."""
    return Counter(one for some in _epoch(run) for one in some)


def _times(run: Run, rank: int) -> Any:
    """A sample that was read more often than it is there."""
    there, read = Counter(run.trial.samples), _all(run)
    over = {one: read[one] // there[one] for one in there if read[one] > there[one]}
    most = max(over, key=lambda one: over[one], default=None)
    return most is not None and {
        "where": run.trial.like,
        "times": read[most],
        "sample": most,
        "copies": run.nproc * max(1, run.trial.workers),
    }


def _everything(run: Run, rank: int) -> Any:
    """Each worker of each rank read all of it."""
    copies = run.nproc * max(1, run.trial.workers)
    there = Counter(run.trial.samples)
    each = all(_all(run)[one] == copies * there[one] for one in there)
    return run.trial.workers > 1 and each and _times(run, rank)


def _every_rank_all(run: Run, rank: int) -> Any:
    """Each rank read each sample once."""
    all_of_it = all(sorted(some) == sorted(run.trial.samples) for some in _epoch(run))
    return all_of_it and _times(run, rank)


def _every_worker_all(run: Run, rank: int) -> Any:
    """Each worker of a rank read what the rank should have read."""
    there, workers = Counter(run.trial.samples), run.trial.workers
    if workers < 2:
        return False
    each = all(one % workers == 0 for some in _epoch(run) for one in Counter(some).values())
    whole = all(_all(run)[one] == workers * there[one] for one in there)
    return each and whole and _times(run, rank)


def _lost(run: Run, rank: int) -> Any:
    lost = sorted((Counter(run.trial.samples) - _all(run)).elements())
    return bool(lost) and {"where": run.trial.like, "lost": len(lost), "first": lost[0]}


def _other(run: Run, rank: int) -> Any:
    read = _all(run).keys() - {*run.trial.samples}
    return bool(read) and {"where": run.trial.like, "other": min(read)}


def _uneven(run: Run, rank: int) -> Any:
    counts = [len(some) for some in _epoch(run)]
    return max(counts) - min(counts) > 1 and {
        "where": run.trial.like, "counts": ", ".join(map(str, counts)),
    }  # fmt: skip


def _second(run: Run, rank: int) -> Any:
    first, second = run.noted[rank]["epochs"]
    return sorted(first) != sorted(second) and {
        "where": run.trial.like, "first": len(first), "second": len(second),
    }  # fmt: skip


Shard.demands("map-style", lambda run, rank: "is" in run.noted[rank])
Shard.demands("in-the-loader", lambda run, rank: "raised" in run.noted[rank] and run.noted[rank])
Shard.demands("not-one-by-one", lambda run, rank: run.noted[rank].get("odd") and run.noted[rank])
Shard.demands("second-epoch", _second)
Shard.demands("other", _other)
Shard.demands("everything", _everything)
Shard.demands("every-worker-all", _every_worker_all)
Shard.demands("every-rank-all", _every_rank_all)
Shard.demands("twice", _times)
Shard.demands("lost", _lost)
Shard.demands("uneven", _uneven)


# ── resumed ──────────────────────────────────────────────────────────────────────────────────


@judged("resumed", lab="12", further=True)
def resumed(draw: random.Random) -> Iterator[Trial]:
    """`resumed(order, steps, batch, before, rank, ranks)`: a rank's samples of what is left."""
    for like, count, steps, batch, before, ranks in (
        ("nothing was read", 12, 0, 2, 2, 3),
        ("the same number of ranks", 24, 3, 2, 2, 2),
        ("fewer ranks than before", 24, 2, 2, 4, 3),
        ("more ranks, and numbers that nothing divides", draw.choice((29, 31, 37)), 3, 2, 2, 5),
        ("one sample left", 13, 2, 2, 3, 2),
        ("all was read", 9, 3, 2, 2, 2),
        ("many samples", 500, draw.randint(5, 20), 3, 5, 7),
    ):
        order = draw.sample(range(10 * count), count)
        left = order[steps * batch * before :]
        for rank in sorted({0, ranks - 1}):
            yield Trial(
                0, given=[(list(order), steps, batch, before, rank, ranks)],
                right=[left[rank::ranks]], like=like,
            )  # fmt: skip
