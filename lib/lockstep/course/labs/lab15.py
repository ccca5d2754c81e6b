"""Lab 15, what communication costs at scale: trials of its exercises, and signs of mistakes."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...launch.calls import POINT_TO_POINT
from ...models import cost
from ...words import ranks_count, ranks_text
from ..judging import Number, Numbers, Run, Tensor, Trial, judged, numbers_in
from .sums import (
    WIDE,
    add_signs_of_sums,
    added_twice,
    all_wait,
    incomplete,
    mixed,
    one_rank_only,
    only_copies,
    only_messages,
    ranks_in,
    sums,
    whole,
)

_MOST_ROUNDS = 8  # of a tree of 7 ranks, as its goal says


# ── ring_seconds ─────────────────────────────────────────────────────────────────────────────


_LINES = 3  # pairs of α and β for each number of ranks: two tell of what a time is made


def _prices(answer: Any, n: int, nbytes: int, lines: list[tuple[float, float]]) -> list[Any]:
    return [answer(n, nbytes, alpha, beta) for alpha, beta in lines]


@judged("ring_seconds", lab="15", play=_prices)
def ring_seconds(draw: random.Random) -> Iterator[Trial]:
    """`ring_seconds(n, nbytes, alpha, beta)`: what the α–β model says of a ring all-reduce."""
    for n in (*draw.sample(range(3, 65), 3), 2, 1):
        nbytes = n * draw.randint(20, 200) + draw.randrange(n)  # few: each byte is seen
        if n > 1:
            nbytes += nbytes % n == 0
        lines = [
            cost.Line(draw.uniform(1, 50) * 1e-6, draw.uniform(1, 40) * 1e-8) for _ in range(_LINES)
        ]
        yield Trial(
            0,
            given=[(n, nbytes, [(line.alpha, line.beta) for line in lines])],
            right=[[Number(cost.ring_all_reduce(n, nbytes, line)) for line in lines]],
            facts={"n": n, "nbytes": nbytes, "lines": lines},
            like=ranks_count(n),
        )


Formula = Callable[[int, float, float, float], float]


def _seconds(formula: Formula) -> Callable[[Trial], list[list[float]]]:
    """A guess: this of N, the number of bytes, α and β."""
    return lambda t: [[formula(t.n, t.nbytes, line.alpha, line.beta) for line in t.lines]]


def _counted(run: Run, rank: int) -> Any:
    """How often α, and β for how many bytes, are in the times, if they are made of nothing else."""
    (first, second, third), got = run.trial.lines, numbers_in(run.got(rank))
    determinant = first.alpha * second.beta - second.alpha * first.beta
    alphas = (got[0] * second.beta - got[1] * first.beta) / determinant
    paid = (first.alpha * got[1] - second.alpha * got[0]) / determinant
    if not math.isclose(alphas * third.alpha + paid * third.beta, got[2], rel_tol=1e-6):
        return False
    steps, needed = 2 * (run.trial.n - 1), 2 * (run.trial.n - 1) * run.trial.nbytes / run.trial.n
    if steps and math.isclose(alphas * needed, paid * steps, rel_tol=1e-6):
        return False  # both as often as the other: that is a factor
    said = {"alphas": alphas, "paid": paid, "needed": needed}
    return {"steps": steps} | {name: f"{one:,.6g}" for name, one in said.items()}


for _mistake, _guess in {
    "half-way": _seconds(lambda n, s, a, b: (n - 1) * (a + b * s / n)),
    "twice": _seconds(lambda n, s, a, b: 4 * (n - 1) * (a + b * s / n)),
    "whole-tensor": _seconds(lambda n, s, a, b: 2 * (n - 1) * (a + b * s)),
    "one-alpha": _seconds(lambda n, s, a, b: a + 2 * (n - 1) / n * b * s),
    "two-alphas": _seconds(lambda n, s, a, b: 2 * a + 2 * (n - 1) / n * b * s),
    "no-alpha": _seconds(lambda n, s, a, b: 2 * (n - 1) / n * b * s),
    "no-beta": _seconds(lambda n, s, a, b: 2 * (n - 1) * a),
    "n-steps": _seconds(lambda n, s, a, b: 2 * n * (a + b * s / n)),
    "one-step-less": _seconds(lambda n, s, a, b: 2 * (n - 2) * (a + b * s / n)),
    "odd-steps": _seconds(lambda n, s, a, b: (2 * n - 1) * (a + b * s / n)),
    "divides-by-beta": _seconds(lambda n, s, a, b: 2 * (n - 1) * (a + s / n / b)),
    "turned-round": _seconds(lambda n, s, a, b: 2 * (n - 1) * (b + a * s / n)),
    "alpha-by-n": _seconds(lambda n, s, a, b: 2 * (n - 1) * (a + b * s) / n),
    "whole-bytes": _seconds(lambda n, s, a, b: 2 * (n - 1) * (a + b * (s // n))),
    "all-ranks": _seconds(lambda n, s, a, b: n * 2 * (n - 1) * (a + b * s / n)),
    "doubling": _seconds(lambda n, s, a, b: math.log2(n) * (a + b * s)),
    "tree": _seconds(lambda n, s, a, b: 2 * math.ceil(math.log2(n)) * (a + b * s)),
}.items():
    ring_seconds.gives(_mistake, _guess)
ring_seconds.shows("counted", _counted)


# ── tree_all_reduce ──────────────────────────────────────────────────────────────────────────


@judged("tree_all_reduce", lab="15", in_place=0)
def tree(draw: random.Random) -> Iterator[Trial]:
    """`tree_all_reduce(x)`: the sum in place, by a tree to one rank and back; for any N."""
    wide = draw.sample(WIDE, 2)
    yield from whole(draw, (4, "float32"), (7, wide[0]), (draw.choice((9, 10)), wide[1]))


def _rounds(run: Run) -> int:
    """After how many rounds all is done, if a rank can be in one message at a time."""
    waiting = [
        [call for call in run.calls(rank) if call.operation in POINT_TO_POINT] for rank in run.ranks
    ]
    clock = [0] * run.nproc
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(waiting):
            if not calls or calls[0].operation != "send" or calls[0].peer is None:
                continue
            peer = calls[0].peer
            other = waiting[peer]
            if other and (other[0].operation, other[0].peer) == ("recv", rank):
                clock[rank] = clock[peer] = max(clock[rank], clock[peer]) + 1
                del calls[0], other[0]
                moved = True
    return max(clock)


def _missing_subtree(run: Run, rank: int) -> Any:
    """Whether a rank talks to one beyond the last, where N is no power of two."""
    beyond = [c.peer for c in run.calls(rank) if c.peer is not None and c.peer >= run.nproc]
    return bool(beyond) and run.nproc & (run.nproc - 1) > 0 and {"peer": beyond[0]}


def _only_up(run: Run, rank: int) -> Any:
    return incomplete(run, rank) and one_rank_only(run, rank)


def _too_many_messages(run: Run, rank: int) -> Any:
    messages, enough = sum(len(run.sends(one)) for one in run.ranks), 2 * (run.nproc - 1)
    return messages > enough and {"messages": messages, "enough": enough}


def _too_many_rounds_for_a_tree(run: Run, rank: int) -> Any:
    """As the goal says; with two children a rank, too, it can be done in so many."""
    rounds = _rounds(run)
    return run.nproc == 7 and rounds > _MOST_ROUNDS and {"rounds": rounds, "tree": _MOST_ROUNDS}


def _star(run: Run, rank: int) -> Any:
    """Whether a rank receives from all the others, or sends to all."""
    receives = Counter(call.peer for call in run.receives(rank))
    every = max(len(receives), len(run.sent_to(rank))) == run.nproc - 1
    return every and _too_many_rounds_for_a_tree(run, rank)


def _not_down(run: Run, rank: int) -> Any:
    """Whether some ranks have the sum, and the others a part of it."""
    correct = sorted(set(run.ranks) - set(run.wrong))
    return (
        bool(correct)
        and incomplete(run, rank)
        and {
            "holders": ranks_text(correct),
            "have": "has" if len(correct) == 1 else "have",
        }
    )


tree.fails("power-of-two-only", _missing_subtree)
tree.fails("all-wait", all_wait)
tree.shows("only-up", _only_up)
tree.shows("adds-coming-down", added_twice)
tree.shows("only-copies", only_copies)
add_signs_of_sums(tree)
tree.shows("too-many-messages", _too_many_messages)
tree.shows("not-down", _not_down)
tree.demands("uses-a-collective", only_messages)
tree.demands("too-many-messages", _too_many_messages)
tree.demands("star", _star)
tree.demands("too-many-rounds", _too_many_rounds_for_a_tree)


# ── hierarchical_all_reduce ──────────────────────────────────────────────────────────────────


def _on_two_levels(answer: Any, x: Tensor, nodes: list[list[int]], rails: list[list[int]]) -> None:
    import torch.distributed as dist

    from ..judging.values import make

    made = {tuple(ranks): dist.new_group(ranks) for ranks in [*nodes, *rails]}
    rank = dist.get_rank()
    inside = next(made[tuple(ranks)] for ranks in nodes if rank in ranks)
    across = next(made[tuple(ranks)] for ranks in rails if rank in ranks)
    answer(make(x), inside, across)


@judged("hierarchical_all_reduce", lab="15", play=_on_two_levels, in_place=0)
def hierarchical(draw: random.Random) -> Iterator[Trial]:
    """`hierarchical_all_reduce(x, inside, across)`: the sum, few bytes between nodes."""
    grids = [(2, 3), (3, 2)]
    draw.shuffle(grids)
    dtypes = ("float64", *draw.sample(WIDE, 2))
    parts = (6, draw.randint(1, 3), draw.randint(1, 3))  # 6: swapped groups fit, too
    for (count, local), dtype, part in zip([grids[0], *grids], dtypes, parts, strict=True):
        nproc = count * local
        ranks = draw.sample(range(nproc), nproc)
        nodes = [sorted(ranks[at : at + local]) for at in range(0, nproc, local)]
        rails = [list(rail) for rail in zip(*nodes, strict=True)]
        trial = sums(draw, nproc, dtype, local * part, part=part, count=count, local=local)
        node = [next(one for one in nodes if rank in one) for rank in range(nproc)]
        rail = [next(one for one in rails if rank in one) for rank in range(nproc)]
        yield Trial(
            nproc,
            given=[(*given, nodes, rails) for given in trial.given],
            right=trial.right,
            facts={**trial.facts, "node": node, "rail": [sorted(one) for one in rail]},
            like=f"{count} nodes of {local} ranks",
        )


def _own_part(trial: Trial, rank: int, place: int) -> bool:
    return bool(place // trial.part == trial.node[rank].index(rank))


def _across(run: Run, rank: int) -> list[Any]:
    rail = run.trial.rail[rank]
    return [call for call in run.calls(rank) if sorted(call.group.ranks) == rail]


def _across_bytes(run: Run, rank: int) -> int:
    return sum(call.bytes for call in _across(run, rank))


def _whole_world(run: Run, rank: int) -> Any:
    world = [call for call in run.calls(rank) if len(call.group.ranks) == run.nproc]
    return bool(world) and {"call": world[0]}


def _too_much_across(run: Run, rank: int) -> Any:
    sent, enough = _across_bytes(run, rank), run.trial.size // run.trial.local
    return sent > enough and {"sent": sent, "enough": enough}


def _leaders_only(run: Run, rank: int) -> Any:
    """Whether one rank of each node did all that was done between nodes."""
    node = run.trial.node[rank]
    busy = [one for one in node if _across(run, one)]
    return busy == [rank] and _too_much_across(run, rank)


def _part_only(run: Run, rank: int) -> Any:
    """Whether a rank has the sum in some parts of x, and that of its node in the others."""
    numbers: Numbers = run.trial.numbers
    made = [numbers.made_of(got, at) for at, got in enumerate(run.got(rank).numbers)]
    everybody, node = list(run.ranks), sorted(run.trial.node[rank])
    members = [ranks_in((one[0] - at, dict(one[1]))) if one else [] for at, one in enumerate(made)]
    once = all(one and max(one[1].values()) == 1 for one in made)
    return once and members.count(everybody) > 0 and all(m in (everybody, node) for m in members)


hierarchical.fails("all-of-it-across", _too_much_across)
hierarchical.gives("only-inside", mixed(lambda trial, rank, r, p: r in trial.node[rank]))
hierarchical.gives("only-across", mixed(lambda trial, rank, r, p: r in trial.rail[rank]))
hierarchical.gives(
    "counted-twice",
    mixed(lambda trial, rank, r, p: trial.local),
    mixed(lambda trial, rank, r, p: trial.count),
)
hierarchical.gives(
    "no-gather",
    mixed(lambda trial, rank, r, p: r == rank or _own_part(trial, rank, p)),
    mixed(lambda trial, rank, r, p: _own_part(trial, rank, p)),
)
hierarchical.gives(
    "nothing-across",
    mixed(
        lambda trial, rank, r, p: r == rank or (r in trial.node[rank] and _own_part(trial, rank, p))
    ),
)
hierarchical.gives(
    "mean-of-groups",
    mixed(lambda trial, rank, r, p: 1 / trial.local),
    mixed(lambda trial, rank, r, p: 1 / trial.count),
)
add_signs_of_sums(hierarchical)
hierarchical.shows("part-only", _part_only)
hierarchical.shows("whole-world", _whole_world)
hierarchical.shows("all-of-it-across", _too_much_across)
hierarchical.demands("whole-world", _whole_world)
hierarchical.demands("leaders-only", _leaders_only)
hierarchical.demands("all-of-it-across", _too_much_across)
