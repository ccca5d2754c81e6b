"""Lab 15, what communication costs at scale: trials of its exercises, and signs of mistakes."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from ...base.formatting import ranks_count, ranks_text
from ...calls.record import POINT_TO_POINT
from ...models import cost
from ..judging import Number, Numbers, Run, Tensor, Trial, judged, numbers_in
from ..judging.values import make, show
from .messages import too_small
from .sums import (
    WIDE,
    add_signs_of_sums,
    added_twice,
    all_wait,
    incomplete,
    one_rank_only,
    only_copies,
    only_messages,
    ranks_in,
    sums,
    whole,
)

_MOST_ROUNDS = 8  # of a tree of 7 ranks, as its goal says


# ── ring_seconds ─────────────────────────────────────────────────────────────────────────────


Lines = list[tuple[float, float]]  # pairs of α and β; two of three tell of what a result is made


def _lines(draw: random.Random) -> Lines:
    # Mostly α decides, and once β does.
    return [(draw.uniform(1, 50) * a, draw.uniform(1, 40) * 1e-8) for a in (1e-6, 1e-6, 1e-9)]


def _prices(answer: Any, n: int, nbytes: int, lines: Lines) -> list[Any]:
    return [answer(n, nbytes, *line) for line in lines]


@judged("ring_seconds", lab="15", play=_prices)
def ring_seconds(draw: random.Random) -> Iterator[Trial]:
    """`ring_seconds(n, nbytes, alpha, beta)`: what the α–β model says of a ring all-reduce."""
    for n in (draw.randint(3, 9), *draw.sample(range(10, 65), 2), 2, 1):
        nbytes = n * draw.randint(20, 200) + draw.randrange(n)  # few: each byte is seen
        if n > 1:
            nbytes += nbytes % n == 0
        if n == 2:  # a message costs alpha, an empty one, too
            nbytes = 0
        lines = _lines(draw)
        right = [cost.ring_all_reduce(n, nbytes, cost.Line(*line)) for line in lines]
        yield Trial(
            0,
            given=[(n, nbytes, lines)],
            right=[[Number(one) for one in right]],
            facts={"n": n, "nbytes": nbytes, "lines": lines},
            like=ranks_count(n),
        )


def _counted(run: Run, rank: int) -> Any:
    """Return how often α, and β for how many bytes, are in the times, if nothing else is."""
    (first, second, third), got = run.trial.lines, numbers_in(run.got(rank))
    determinant = first[0] * second[1] - second[0] * first[1]
    alphas = (got[0] * second[1] - got[1] * first[1]) / determinant
    paid = (first[0] * got[1] - second[0] * got[0]) / determinant
    if not math.isclose(alphas * third[0] + paid * third[1], got[2], rel_tol=1e-6):
        return False
    steps, needed = 2 * (run.trial.n - 1), 2 * (run.trial.n - 1) * run.trial.nbytes / run.trial.n
    if needed and math.isclose(alphas * needed, paid * steps, rel_tol=1e-6):
        return False  # both as often as the other: that is a factor
    said = {"alphas": alphas, "paid": paid, "needed": needed}
    return {"steps": steps} | {name: f"{round(one, 6) + 0.0:,.6g}" for name, one in said.items()}


ring_seconds.shows("counted", _counted)


# ── crossing ─────────────────────────────────────────────────────────────────────────────────


def _crossings(answer: Any, n: int, lines: Lines) -> list[Any]:
    return [answer(n, *line) for line in lines]


@judged("crossing", lab="15", play=_crossings)
def crossing(draw: random.Random) -> Iterator[Trial]:
    """`crossing(n, alpha, beta)`: from how many bytes on a ring beats recursive doubling."""
    for n in (8, 16, *(1 << draw.randint(5, 12) for _ in range(2)), 4):
        few = draw.uniform(5, 9) * 1e-8, draw.uniform(2, 5) * 1e-8  # some bytes: rounding shows
        far = draw.uniform(1, 9) * 1e-3, draw.uniform(1, 9) * 1e-12
        lines = [*_lines(draw)[:1], few, far]
        ring, doubling = cost.ring_all_reduce, cost.recursive_doubling_all_reduce
        right = [cost.crossover(ring, doubling, n, cost.Line(*line)) for line in lines]
        yield Trial(
            0,
            given=[(n, lines)],
            right=[[Number(one) for one in right]],
            facts={"n": n, "lines": lines},
            like=ranks_count(n),
        )


def _times_alpha_by_beta(run: Run, rank: int) -> Any:
    """By which number of N alone α/β was multiplied."""
    n, units = run.trial.n, [alpha / beta for alpha, beta in run.trial.lines]
    times, right = (
        [one / unit for one, unit in zip(numbers_in(all_), units, strict=True)]
        for all_ in (run.got(rank), run.right(rank))
    )
    if not all(math.isclose(one, times[0], rel_tol=1e-6) for one in times):
        return False
    said = {
        "times": times[0],
        "right_times": right[0],
        "sent": 2 * (n - 1) / n,
        "log": math.log2(n),
    }
    return {"steps": 2 * (n - 1)} | {name: f"{one:.4g}" for name, one in said.items()}


def _not_by_alpha_and_beta(run: Run, rank: int) -> Any:
    """The first pair of α and β for which it is wrong."""
    pairs = zip(numbers_in(run.got(rank)), numbers_in(run.right(rank)), strict=True)
    both = zip(run.trial.lines, pairs, strict=True)
    line, (got, right) = next(one for one in both if not math.isclose(*one[1], rel_tol=1e-5))
    said = {"alpha": line[0], "beta": line[1], "one": got, "other": right}
    return {name: f"{number:.6g}" for name, number in said.items()}


crossing.shows("times-alpha-by-beta", _times_alpha_by_beta)
crossing.shows("not-by-alpha-and-beta", _not_by_alpha_and_beta)


# ── node_traffic ─────────────────────────────────────────────────────────────────────────────


@judged("node_traffic", lab="15")
def node_traffic(draw: random.Random) -> Iterator[Trial]:
    """`node_traffic(rings, node_of, nbytes)`: bytes that leave the busiest node."""
    few: tuple[tuple[str, list[list[int]], tuple[int, ...]], ...] = (
        ("two nodes", [[0, 1, 2, 3]], (0, 0, 1, 1)),
        ("nodes in turn", [[0, 1, 2, 3]], (0, 1, 0, 1)),
        ("another order than that of ranks", [[3, 0, 2, 1]], (1, 1, 0, 0)),
        # The hop from the last to the first makes a node the busiest.
        ("three nodes", [[0, 1, 2, 3, 4]], (1, 1, 0, 2, 0)),
        ("two rings", [[0, 1, 2], [3, 4]], (0, 1, 1, 0, 2)),
        ("two rings, whose busiest nodes are others", [[0, 1, 2, 3], [4, 5, 6, 7]],
         (0, 1, 0, 2, 1, 0, 1, 2)),
        ("a rank in two rings", [[0, 1], [0, 2]], (0, 1, 1)),
        ("the same ring twice", [[0, 1, 2, 3]] * 2, (5, 4, 5, 6)),
        ("two rings of two ranks", [[0, 1], [1, 0]], (0, 1)),
        ("rings inside of nodes", [[0, 1], [2], [3, 4]], (0, 0, 0, 8, 8)),
        ("no rings", [], (0, 1)),
    )  # fmt: skip
    for like, rings, nodes in few:
        yield _placed(draw, like, rings, dict(enumerate(nodes)))
    for _ in range(2):
        ranks = draw.sample(range(100, 140), 16)
        node_of = {rank: draw.randrange(7, 11) for rank in ranks}
        rings = [draw.sample(ranks, draw.randint(2, 9)) for _ in range(5)]
        yield _placed(draw, "five rings", [*rings, ranks[:1]], node_of)


def _placed(
    draw: random.Random, like: str, rings: list[list[int]], node_of: dict[int, int]
) -> Trial:
    nbytes = 60 * draw.randint(20, 90) + 1  # which no number of ranks divides
    left = dict.fromkeys(node_of.values(), 0.0)
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after]:
                left[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    given = rings, node_of, nbytes
    facts = {"asked": ", ".join(map(show, given))}
    return Trial(0, given=[given], right=[Number(max(left.values()))], facts=facts, like=like)


def _taken_for_a_list(run: Run, rank: int) -> bool:
    """Whether NumPy was asked for an element of the dict."""
    return any("array is 0-dimensional" in failure.message for failure in run.job.failures)


node_traffic.fails("taken-for-a-list", _taken_for_a_list)


# ── hierarchical_all_reduce ──────────────────────────────────────────────────────────────────


def _on_two_levels(answer: Any, x: Tensor, nodes: list[list[int]], rails: list[list[int]]) -> None:
    import torch.distributed as dist

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
    dtypes = ("float64", *draw.sample(WIDE, 2), "float64")
    # 6: swapped groups fit, too, and half of x is more than one of the three parts.
    parts = (6, draw.randint(1, 3), draw.randint(1, 3), 3)
    for (count, local), dtype, part in zip([(2, 3), *grids, (3, 1)], dtypes, parts, strict=True):
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
            like=f"{count} nodes of {ranks_count(local)}",
        )


def _across(run: Run, rank: int) -> list[Any]:
    rail = run.trial.rail[rank]
    return [call for call in run.calls(rank) if sorted(call.group.ranks) == rail]


def _across_bytes(run: Run, rank: int) -> int:
    return sum(call.bytes for call in _across(run, rank))


def _whole_world(run: Run, rank: int) -> Any:
    world = [call for call in run.calls(rank) if len(call.group.ranks) == run.nproc]
    return run.trial.local > 1 and bool(world) and {"call": world[0]}


def _too_much_across(run: Run, rank: int) -> Any:
    sent, enough = _across_bytes(run, rank), run.trial.size // run.trial.local
    # How many bytes it was says nothing of other numbers of ranks.
    return sent > enough and {"sent": sent, "enough": enough, "contrast": ""}


def _other_parts(run: Run, rank: int) -> Any:
    """Whether x was cut into fewer parts than a node has ranks."""
    size, sent = run.trial.size, _across_bytes(run, rank)
    cut = 0 < sent < size and size % sent == 0
    return cut and _too_much_across(run, rank) and {"parts": size // sent, "contrast": ""}


def _swapped(run: Run, rank: int) -> Any:
    """Whether x was cut across nodes, and inside its parts were added up, if it came to that."""
    across = {call.operation.split("_tensor")[0] for call in _across(run, rank)}
    node = sorted(run.trial.node[rank])
    inside = {c.operation for c in run.calls(rank) if sorted(c.group.ranks) == node}
    cut = any(one.startswith("reduce_scatter") for one in across)
    added = "all_reduce" in inside or (run.failure and not inside)
    return cut and added and _too_much_across(run, rank)


def _leaders_only(run: Run, rank: int) -> Any:
    """Whether one rank of each node did all that was done between nodes."""
    node = run.trial.node[rank]
    busy = [one for one in node if _across(run, one)]
    return busy == [rank] and _too_much_across(run, rank)


def _added(run: Run, rank: int) -> list[list[int]]:
    """Of each number of x which ranks' are added up in it; none where one is not such a sum."""
    numbers: Numbers = run.trial.numbers
    made = [numbers.made_of(got, at) for at, got in enumerate(run.got(rank).numbers)]
    if not all(one and max(one[1].values()) == 1 for one in made):
        return []
    return [ranks_in((one[0] - at, dict(one[1]))) for at, one in enumerate(made) if one]


def _part_only(run: Run, rank: int) -> Any:
    """Whether a rank has the sum in some parts of x, and that of its node in the others."""
    everybody, node = list(run.ranks), sorted(run.trial.node[rank])
    added = _added(run, rank)
    return everybody in added and all(one in (everybody, node) for one in added)


def _only_inside(run: Run, rank: int) -> bool:
    """Whether a rank has the sum of its node."""
    added = _added(run, rank)
    return bool(added) and all(one == sorted(run.trial.node[rank]) for one in added)


def _came_elsewhere(run: Run, rank: int) -> Any:
    """Whether nothing of what was done across nodes is in x."""
    calls = _across(run, rank)
    return bool(calls) and _only_inside(run, rank) and {"call": calls[0]}


def _went_on(run: Run, rank: int) -> Any:
    """A call that had not ended when its rank made the next one."""
    pairs = [pair for at in run.ranks for pair in pairwise(run.calls(at))]
    early = [one for one, after in pairs if one.end is None or one.end > after.start]
    return bool(early) and {"call": early[0], "whose": early[0].rank}


def _raised(words: str) -> Callable[[Run, int], bool]:
    return lambda run, rank: words in run.job.failures[0].message


hierarchical.fails("swapped", _swapped)
hierarchical.fails("parts-of-another-group", _raised("tensor list size"))
hierarchical.fails("no-global-rank", _raised("is not part of group"))
hierarchical.fails("other-parts", _other_parts)
hierarchical.fails("all-of-it-across", _too_much_across)
add_signs_of_sums(hierarchical)
hierarchical.shows("went-on", _went_on)
hierarchical.shows("came-elsewhere", _came_elsewhere)
hierarchical.shows("only-inside", _only_inside)
hierarchical.shows("part-only", _part_only)
hierarchical.shows("whole-world", _whole_world)
hierarchical.shows("swapped", _swapped)
hierarchical.shows("other-parts", _other_parts)
hierarchical.shows("all-of-it-across", _too_much_across)
hierarchical.demands("whole-world", _whole_world)
hierarchical.demands("leaders-only", _leaders_only)
hierarchical.demands("swapped", _swapped)
hierarchical.demands("other-parts", _other_parts)
hierarchical.demands("all-of-it-across", _too_much_across)


# ── step_seconds ─────────────────────────────────────────────────────────────────────────────


@judged("step_seconds", lab="15")
def step_seconds(draw: random.Random) -> Iterator[Trial]:
    """`step_seconds(known, n)`: a step on n GPUs, from those on two other numbers of GPUs."""
    for like, *small in (
        ("more GPUs than known", 10, 20, 100, 1, 50),
        ("a number that is known", 4, 5, 40, 2, 4),
        ("fewer GPUs than known", 6, 15, 30, 4, 3),
        ("the larger number first", 8, 2, 32, 2, 4),
        ("a fixed part below 0", 10, 20, 100, -1, 50),
        ("less than a second of work", 2, 4, 0.75, 0.5, 8),
    ):
        yield _on_gpus(like, *small)
    for _ in range(3):
        few, many = draw.sample(range(64, 20_000, 64), 2)
        work, fixed = draw.uniform(1, 9) * 1e4, draw.uniform(0.5, 4)
        yield _on_gpus("thousands of GPUs", few, many, work, fixed, draw.randint(64, 30_000))


def _on_gpus(like: str, few: int, many: int, work: float, fixed: float, n: int) -> Trial:
    known = {few: work / few + fixed, many: work / many + fixed}
    facts = {"asked": f"{show(known)}, {n}", "work": f"{work:.6g}", "fixed": f"{fixed:.6g}"}
    return Trial(0, given=[(known, n)], right=[Number(work / n + fixed)], facts=facts, like=like)


# ── tree_all_reduce ──────────────────────────────────────────────────────────────────────────


@judged("tree_all_reduce", lab="15", in_place=0, further=True)
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
tree.fails("too-small", too_small)
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
