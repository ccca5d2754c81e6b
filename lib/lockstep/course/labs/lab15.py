"""Lab 15, what communication costs at scale: trials of its exercises, and signs of mistakes."""

from __future__ import annotations

import math
import operator
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...base.formatting import ranks_count, ranks_text
from ...calls.record import POINT_TO_POINT
from ...models import cost
from ..judging import Number, Numbers, Run, Tensor, Trial, judged, numbers_in
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
        if n == 2:  # a message costs alpha, an empty one, too
            nbytes = 0
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
    """Return how often α, and β for how many bytes, are in the times, if nothing else is."""
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


# ── crossing ─────────────────────────────────────────────────────────────────────────────────


@judged("crossing", lab="15")
def crossing(draw: random.Random) -> Iterator[Trial]:
    """`crossing(n, alpha, beta)`: from how many bytes on a ring beats recursive doubling."""
    for n in (8, 16, *(1 << draw.randint(5, 12) for _ in range(3))):
        line = cost.Line(draw.uniform(1, 90) * 1e-6, draw.uniform(1, 90) * 1e-11)
        if n == 16:  # far out
            line = cost.Line(draw.uniform(1, 9) * 1e-3, draw.uniform(1, 9) * 1e-12)
        ring, doubling = cost.ring_all_reduce, cost.recursive_doubling_all_reduce
        yield Trial(
            0,
            given=[(n, line.alpha, line.beta)],
            right=[Number(cost.crossover(ring, doubling, n, line))],
            facts={"n": n, "alpha": line.alpha, "beta": line.beta},
            like=ranks_count(n),
        )


def _crossed(
    rounds: Callable[[int], float],
    sent: Callable[[int], float],
    other_rounds: Callable[[int], float] = math.log2,
    other_sent: Callable[[int], float] = math.log2,
) -> Callable[[Trial], list[float]]:
    """A guess: where two lines cross, each of so many rounds, and of so many times the bytes."""

    def on_rank(t: Trial) -> list[float]:
        slope = t.beta * (other_sent(t.n) - sent(t.n))
        return [t.alpha * (rounds(t.n) - other_rounds(t.n)) / slope]

    return on_rank


def _steps(n: int) -> float:
    return 2 * (n - 1)


def _sent(n: int) -> float:
    return 2 * (n - 1) / n


_right = _crossed(_steps, _sent)
for _mistake, _guesses in {
    "half-way": [_crossed(lambda n: n - 1, lambda n: (n - 1) / n)],
    "whole-tensor": [_crossed(_steps, _steps)],
    "chunked-doubling": [_crossed(_steps, _sent, math.log2, lambda n: math.log2(n) / n)],
    "one-round": [
        _crossed(_steps, _sent, lambda n: 1, lambda n: 1),
        _crossed(_steps, _sent, math.log2, lambda n: 1),
    ],
    "natural-log": [_crossed(_steps, _sent, math.log, math.log)],
    "one-alpha": [
        _crossed(lambda n: 1, _sent, lambda n: 1, math.log2),
        _crossed(lambda n: 1, _sent),
        _crossed(_steps, _sent, lambda n: 1, math.log2),
    ],
    "no-bytes-of-the-ring": [_crossed(_steps, lambda n: 0)],
    "sign": [lambda t: [-_right(t)[0]]],
    "turned-round": [
        lambda t: [_right(t)[0] * (t.beta / t.alpha) ** 2],
        lambda t: [1 / _right(t)[0]],
    ],
    "a-chunk": [lambda t: [_right(t)[0] / t.n]],
    "n-steps": [_crossed(lambda n: 2 * n, lambda n: 2)],
    "kilobytes": [lambda t: [_right(t)[0] / 1000], lambda t: [_right(t)[0] / 1024]],
}.items():
    crossing.gives(_mistake, *_guesses)


# ── node_traffic ─────────────────────────────────────────────────────────────────────────────


@judged("node_traffic", lab="15")
def node_traffic(draw: random.Random) -> Iterator[Trial]:
    """`node_traffic(rings, node_of, nbytes)`: bytes that leave the busiest node."""
    eight = [list(range(8))]
    yield _placed(draw, eight, {rank: rank // 4 for rank in range(8)}, "one ring on two nodes")
    yield _placed(draw, eight, {rank: rank % 2 for rank in range(8)}, "one ring, nodes in turn")
    nodes = {3: 0, 2: 0, 0: 1, 1: 1}
    yield _placed(draw, [[3, 0, 2, 1]], nodes, "one ring, not in the order of ranks")
    # Here the hop from the last to the first makes a node the busiest.
    nodes = dict(enumerate((1, 1, 0, 2, 0)))
    yield _placed(draw, [list(range(5))], nodes, "one ring on three nodes")
    # And here two rings have different busiest nodes.
    ranks = draw.sample(range(20), 8)
    nodes = dict(zip(ranks, (0, 1, 0, 2, 1, 0, 1, 2), strict=True))
    yield _placed(draw, [ranks[:4], ranks[4:]], nodes, "two rings on three nodes")
    ranks = draw.sample(range(12), 12)
    nodes = dict(zip(ranks, [7] * 6 + [8] * 2 + [9] * 4, strict=True))
    rings = [draw.sample(ranks, 5), draw.sample(ranks, 7), [ranks[0]], draw.sample(ranks, 3)]
    yield _placed(draw, rings, nodes, "several rings")
    rings = [ranks[:6], ranks[6:8], ranks[8:]]  # each inside of its node
    yield _placed(draw, rings, nodes, "rings inside of nodes")
    # The busiest node sends to a higher number and to a lower one, and over one hop twice.
    a, b, c, d = draw.sample(range(50), 4)
    nodes = {a: 5, b: 4, c: 5, d: 6}
    yield _placed(draw, [[a, b, c, d]] * 2, nodes, "the same ring twice")
    yield _placed(draw, [[a, d], [d, a]], nodes, "two rings of two ranks")
    ranks = draw.sample(range(100, 140), 16)
    nodes = {rank: draw.randrange(4) for rank in ranks}
    rings = [draw.sample(ranks, draw.randint(2, 9)) for _ in range(5)]
    yield _placed(draw, rings, nodes, "several rings")


def _placed(
    draw: random.Random, rings: list[list[int]], node_of: dict[int, int], like: str
) -> Trial:
    nbytes = draw.randint(1000, 9000)
    facts = {"rings": rings, "node_of": node_of, "nbytes": nbytes}
    trial = Trial(0, given=[(rings, node_of, nbytes)], right=[0], facts=facts, like=like)
    return replace(trial, right=[Number(max(_leaving(trial).values(), default=0))])


def _hops(ring: list[int]) -> list[tuple[int, int]]:
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def _leaving(
    trial: Trial,
    hops: Callable[[list[int]], list[tuple[int, int]]] = _hops,
    share: Callable[[Trial, int], float] = lambda trial, n: 2 * (n - 1) / n,
    crosses: Callable[[int, int], bool] = operator.ne,
    once: Callable[[Trial, int, int, int], Any] | None = None,
    ranks_of: Callable[[Trial, list[int]], int] = lambda trial, ring: len(ring),
) -> dict[int, float]:
    """Bytes that leave each node; by other hops, another share of the bytes, another sign of a
    crossing, or another N. once: of hops that are the same to it, by the ring's number and the two
    ranks, one is counted."""
    found: dict[int, float] = defaultdict(float)
    seen = set()
    for number, ring in enumerate(trial.rings):
        for rank, after in hops(ring):
            if not crosses(trial.node_of[rank], trial.node_of[after]):
                continue
            hop = once and once(trial, number, rank, after)
            if once is None or hop not in seen:
                found[trial.node_of[rank]] += trial.nbytes * share(trial, ranks_of(trial, ring))
            seen.add(hop)
    return found


def _busiest(**changed: Any) -> Callable[[Trial], list[float]]:
    return lambda trial: [max(_leaving(trial, **changed).values(), default=0)]


def _of_keys(trial: Trial) -> list[float]:
    """A guess: the keys of `node_of` are taken for the nodes."""
    found = [left for node, left in _leaving(trial).items() if node in trial.node_of]
    return [max(found, default=0)]


def _by_place(trial: Trial) -> Trial:
    """Return a trial in which the keys of `node_of`, by their places, are taken for nodes."""
    nodes = dict.fromkeys(trial.node_of, -1) | dict(enumerate(trial.node_of))
    return replace(trial, facts={**trial.facts, "node_of": nodes})


def _entering_too(trial: Trial) -> list[float]:
    leave = _leaving(trial)
    enter = _leaving(trial, hops=lambda ring: [(b, a) for a, b in _hops(ring)])
    return [max((leave[node] + enter[node] for node in {*leave, *enter}), default=0)]


def _busiest_rank(trial: Trial) -> list[float]:
    """A guess: the bytes that leave their node from one rank alone."""
    found: dict[int, float] = defaultdict(float)
    for ring in trial.rings:
        for rank, after in _hops(ring):
            if trial.node_of[rank] != trial.node_of[after]:
                found[rank] += 2 * (len(ring) - 1) / len(ring) * trial.nbytes
    return [max(found.values(), default=0)]


def _of_rings(pick: Callable[[list[float]], float]) -> Callable[[Trial], list[float]]:
    """A guess: each ring's busiest node alone, and of these one, or their sum."""

    def on_rank(trial: Trial) -> list[float]:
        alone = [Trial(0, [()], [0], {**trial.facts, "rings": [ring]}) for ring in trial.rings]
        return [pick([max(_leaving(one).values(), default=0) for one in alone])]

    return on_rank


for _mistake, _guesses in {
    "a-list": [_of_keys, lambda t: [max(_leaving(_by_place(t)).values(), default=0)]],
    "not-closed": [_busiest(hops=lambda ring: _hops(ring)[:-1])],
    "all-nodes": [lambda t: [sum(_leaving(t).values())]],
    "entering-too": [_entering_too, lambda t: [2 * sum(_leaving(t).values())]],
    "inside-too": [_busiest(crosses=lambda one, other: True)],
    "inside-only": [_busiest(crosses=operator.eq)],
    "half-way": [_busiest(share=lambda t, n: (n - 1) / n)],
    "whole-tensor": [_busiest(share=lambda t, n: 1)],
    "twice-the-tensor": [_busiest(share=lambda t, n: 2)],
    "all-steps-whole": [_busiest(share=lambda t, n: 2 * (n - 1))],
    "one-chunk": [_busiest(share=lambda t, n: 1 / n)],
    "whole-world": [
        _busiest(share=lambda t, n: 2 * (len(t.node_of) - 1) / len(t.node_of)),
    ],
    "one-rank": [_busiest_rank],
    "nodes-for-ranks": [
        _busiest(ranks_of=lambda t, ring: len({t.node_of[rank] for rank in ring})),
        _busiest(ranks_of=lambda t, ring: len({*t.node_of.values()})),
    ],
    "one-direction": [_busiest(crosses=operator.lt), _busiest(crosses=operator.gt)],
    "counted-once": [
        _busiest(once=lambda t, number, *hop: hop),
        _busiest(once=lambda t, number, *hop: frozenset(hop)),
        _busiest(once=lambda t, number, *hop: (number, frozenset(hop))),
        _busiest(once=lambda t, number, *hop: tuple(t.node_of[rank] for rank in hop)),
        _busiest(once=lambda t, number, *hop: (number, *(t.node_of[rank] for rank in hop))),
    ],
    "sorted": [_busiest(hops=lambda ring: _hops(sorted(ring)))],
    "one-ring": [_of_rings(lambda each: each[0]), _of_rings(max)],
    "rings-apart": [_of_rings(sum)],
    "hops-only": [
        lambda t: [max(_leaving(t, share=lambda t, n: 1).values(), default=0) / t.nbytes],
    ],
}.items():
    node_traffic.gives(_mistake, *_guesses)


def _taken_for_a_list(run: Run, rank: int) -> bool:
    """Whether NumPy was asked for an element of the dict."""
    return any("array is 0-dimensional" in failure.message for failure in run.job.failures)


node_traffic.fails("a-list", _taken_for_a_list)


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


def _part_only(run: Run, rank: int) -> Any:
    """Whether a rank has the sum in some parts of x, and that of its node in the others."""
    numbers: Numbers = run.trial.numbers
    made = [numbers.made_of(got, at) for at, got in enumerate(run.got(rank).numbers)]
    everybody, node = list(run.ranks), sorted(run.trial.node[rank])
    members = [ranks_in((one[0] - at, dict(one[1]))) if one else [] for at, one in enumerate(made)]
    once = all(one and max(one[1].values()) == 1 for one in made)
    return once and members.count(everybody) > 0 and all(m in (everybody, node) for m in members)


hierarchical.fails("swapped", _swapped)
hierarchical.fails("all-of-it-across", _too_much_across)
add_signs_of_sums(hierarchical)
hierarchical.shows("part-only", _part_only)
hierarchical.shows("whole-world", _whole_world)
hierarchical.shows("swapped", _swapped)
hierarchical.shows("all-of-it-across", _too_much_across)
hierarchical.demands("whole-world", _whole_world)
hierarchical.demands("leaders-only", _leaders_only)
hierarchical.demands("swapped", _swapped)
hierarchical.demands("all-of-it-across", _too_much_across)


# ── step_seconds ─────────────────────────────────────────────────────────────────────────────


@judged("step_seconds", lab="15")
def step_seconds(draw: random.Random) -> Iterator[Trial]:
    """`step_seconds(known, n)`: a step on n GPUs, from those on two other numbers of GPUs."""
    for at in range(4):
        few, many = draw.randint(2, 90) * 64, draw.randint(100, 300) * 64
        work, fixed = draw.uniform(1, 9) * 1e4, draw.uniform(0.5, 4)
        if at == 1:  # as where more GPUs have more memory for caches
            fixed = -draw.uniform(0.2, 0.4) * work / (2 * many)
        n = (draw.randint(few + 1, many - 1), 2 * many, few // 2, few)[at]
        known = {few: work / few + fixed, many: work / many + fixed}
        if at % 2:  # whichever comes first
            known = dict(reversed(known.items()))
        yield Trial(
            0,
            given=[(known, n)],
            right=[Number(work / n + fixed)],
            facts={"known": known, "n": n, "work": work, "fixed": fixed},
            like=f"{few:,} and {many:,} GPUs known, and {n:,} asked",
        )


def _known(trial: Trial) -> tuple[tuple[int, float], tuple[int, float]]:
    """Return what is known of the smaller, and of the larger number of GPUs."""
    smaller, larger = sorted(trial.known.items())
    return smaller, larger


def _line(
    of_n: Callable[[float], float], of_t: Callable[[float], float], back: Callable[[float], float]
) -> Callable[[Trial], list[float]]:
    """A guess: a straight line through both, in these measures of n and of t."""

    def on_rank(trial: Trial) -> list[float]:
        (few, slow), (many, quick) = _known(trial)
        part = (of_n(trial.n) - of_n(few)) / (of_n(many) - of_n(few))
        return [back(of_t(slow) + part * (of_t(quick) - of_t(slow)))]

    return on_rank


def _perfect(pick: int) -> Callable[[Trial], list[float]]:
    return lambda t: [_known(t)[pick][0] * _known(t)[pick][1] / t.n]


def _first_known(pick: int) -> Callable[[Trial], list[float]]:
    return lambda t: [list(t.known)[pick] * list(t.known.values())[pick] / t.n]


def _other_work(how: Callable[[float, float], float], at: int) -> Callable[[Trial], list[float]]:
    """A guess: work from the difference of the numbers of GPUs, and not from that of their
    inverses; the fixed part from one of both known times, in either order."""

    def guess(t: Trial) -> list[float]:
        known = [*_known(t), *t.known.items()]
        (few, slow), (many, quick) = _known(t)
        work = how(slow - quick, many - few)
        gpus, seconds = known[at]
        return [work / t.n + seconds - work / gpus]

    return guess


def _same(value: float) -> float:
    return value


for _mistake, _guesses in {
    "perfect": [_perfect(0), _perfect(1), _first_known(0), _first_known(1)],
    "mean-of-perfect": [lambda t: [(_perfect(0)(t)[0] + _perfect(1)(t)[0]) / 2]],
    "straight-line": [_line(_same, _same, _same)],
    "line-of-logs": [_line(math.log, _same, _same)],
    "power": [_line(math.log, math.log, math.exp)],
    "line-of-rates": [_line(_same, lambda t: 1 / t, lambda r: 1 / r)],
    "no-fixed": [lambda t: [t.work / t.n]],
    "fixed-only": [lambda t: [t.fixed]],
    "fixed-shrinks": [lambda t: [(t.work + t.fixed) / t.n]],
    "work-only": [lambda t: [t.work]],
    "other-work": [
        _other_work(how, at) for how in (operator.mul, operator.truediv) for at in range(4)
    ],
}.items():
    step_seconds.gives(_mistake, *_guesses)


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
