"""Lab 03, collectives: the trials of its exercises, and the signs of what goes wrong in them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ...launch.calls import POINT_TO_POINT
from ...models import cost
from ...words import ranks_count, ranks_text
from ..judging import Judged, Number, Numbers, Run, Tensor, Trial, judged, numbers_in

_MOST_ROUNDS = 8  # of a tree of 7 ranks, as its goal says
_REDUCE_SCATTERS = ("reduce_scatter", "reduce_scatter_tensor")
_ALL_GATHERS = ("all_gather", "all_gather_into_tensor")
_WIDE = ("float64", "int64")  # dtypes that hold the numbers of many ranks, and are no default
_BYTES = {"float32": 4, "float64": 8, "int64": 8}


# ── Sums in place ────────────────────────────────────────────────────────────────────────────


def _sums(
    draw: random.Random,
    nproc: int,
    dtype: str,
    length: int,
    shape: tuple[int, ...] | None = None,
    **facts: Any,
) -> Trial:
    """An x of so many numbers on each rank, to be summed over all ranks in place."""
    numbers = Numbers.draw(draw, nproc, length, dtype)
    return Trial(
        nproc,
        given=[(numbers.tensor(numbers.of(rank), shape),) for rank in range(nproc)],
        right=[numbers.tensor(numbers.total, shape)] * nproc,
        facts={"numbers": numbers, "size": length * _BYTES[dtype], **facts},
    )


def _chunked(draw: random.Random) -> Iterator[Trial]:
    """An x of as many equal chunks as there are ranks. First what people try by themselves; then
    what they may have built upon without a thought: the dtype, and the number of ranks."""
    wide = draw.sample(_WIDE, 2)
    for nproc, dtype in ((4, "float32"), (4, wide[0]), (draw.choice((3, 5)), wide[1])):
        part = draw.randint(2, 4)
        yield _sums(draw, nproc, dtype, nproc * part, part=part)


Times = Callable[[Trial, int, int, int], float]


def _mixed(times: Times) -> Callable[[Trial], list[list[float]]]:
    """A guess: on each rank the sum in which the number of rank r at place p counts
    `times(trial, rank, r, p)` times."""

    def on_rank(trial: Trial, rank: int) -> list[float]:
        numbers: Numbers = trial.numbers
        return numbers.mix(lambda r, p: times(trial, rank, r, p))

    return lambda trial: [on_rank(trial, rank) for rank in range(trial.nproc)]


def _picked(pick: Callable[[list[float]], float]) -> Callable[[Trial], list[list[float]]]:
    """A guess: at each place one of the ranks' numbers."""

    def everywhere(trial: Trial) -> list[list[float]]:
        columns = zip(*(trial.numbers.of(rank) for rank in range(trial.nproc)), strict=True)
        return [[pick(list(column)) for column in columns]] * trial.nproc

    return everywhere


def _add_signs_of_sums(one: Judged) -> None:
    """What comes out where not everything was added up, or not once."""
    one.gives("without-own", _mixed(lambda trial, rank, r, p: r != rank))
    one.gives(
        "own-twice",
        _mixed(lambda trial, rank, r, p: 1 + (r == rank)),
        _mixed(lambda trial, rank, r, p: trial.nproc + (r == rank)),
    )
    one.gives("mean", _mixed(lambda trial, rank, r, p: 1 / trial.nproc))
    one.gives("times-ranks", _mixed(lambda trial, rank, r, p: trial.nproc))
    one.gives(
        "neighbour-only",
        _mixed(lambda trial, rank, r, p: r == (rank - 1) % trial.nproc),
        _mixed(lambda trial, rank, r, p: r == (rank + 1) % trial.nproc),
    )
    one.gives("first-only", _mixed(lambda trial, rank, r, p: r == 0))
    one.gives("not-a-sum", _picked(max), _picked(min), _picked(math.prod))
    one.shows("wrong-places", _wrong_places)
    one.shows("one-rank-only", _one_rank_only)


def _one_rank_only(run: Run, rank: int) -> Any:
    """Whether a single rank has the sum."""
    correct = sorted(set(run.ranks) - set(run.wrong))
    return len(correct) == 1 and {"holder": correct[0]}


def _not_all_ranks(run: Run, rank: int) -> Any:
    """Whether some rank has the mean."""
    correct = sorted(set(run.ranks) - set(run.wrong))
    return bool(correct) and {"holder": correct[0]}


def _wrong_places(run: Run, rank: int) -> bool:
    return sorted(numbers_in(run.got(rank))) == sorted(run.trial.numbers.total)


def _made(run: Run, rank: int) -> list[tuple[int, dict[int, int]] | None]:
    """Of each wrong number its place, and how often each rank's is in it, where that is known."""
    numbers: Numbers = run.trial.numbers
    found = [(one.at, numbers.made_of(one.got, one.at)) for one in run.differences(rank)]
    return [made and (made[0] - at, dict(made[1])) for at, made in found]


def _added_twice(run: Run, rank: int) -> bool:
    """Whether all ranks are in each wrong number, and some of them more than once."""
    return all(one and min(one[1].values()) >= 1 < max(one[1].values()) for one in _made(run, rank))


def _incomplete(run: Run, rank: int) -> bool:
    """Whether in each wrong number some rank's is missing, and none is there twice."""
    return all(one and one[0] == 0 and max(one[1].values()) == 1 for one in _made(run, rank))


def _only_copies(run: Run, rank: int) -> bool:
    """Whether no wrong number has been added to anything."""
    return all(one and sum(one[1].values()) == 1 for one in _made(run, rank))


def _added_to_itself(run: Run, rank: int) -> Any:
    """Whether in each wrong number there is one rank's alone, and more than once."""
    made = _made(run, rank)
    alone = all(one and len(_in(one)) == 1 and max(one[1].values()) > 1 for one in made)
    return alone and made[0] is not None and {"holder": _in(made[0])[0]}


def _in(made: tuple[int, dict[int, int]]) -> list[int]:
    return sorted(rank for rank, times in made[1].items() if times)


def _only_messages(run: Run, rank: int) -> Any:
    """A collective that is being built must not be used for it."""
    used = run.collectives(rank)
    return bool(used) and {"operation": used[0].operation}


# ── global_mean ──────────────────────────────────────────────────────────────────────────────


@judged("global_mean", lab="03")
def global_mean(draw: random.Random) -> Iterator[Trial]:
    """`global_mean(values)`: the mean of all ranks' values, by exactly one collective."""
    for nproc, dtype in zip(draw.sample((2, 3, 4, 5), 2), ("float32", "float64"), strict=True):
        counts = draw.sample(range(2, 9), nproc)
        yield _values(draw, counts, dtype)
        counts[draw.randrange(nproc)] = 0
        yield _values(draw, counts, dtype)


def _values(draw: random.Random, counts: list[int], dtype: str) -> Trial:
    values = [
        [draw.choice((-1, 3)) * draw.randint(1, 99) / 8 + 50 * rank + 20 for _ in range(count)]
        for rank, count in enumerate(counts)
    ]
    everything = [one for mine in values for one in mine]
    return Trial(
        len(counts),
        given=[(Tensor.of(mine, dtype),) for mine in values],
        right=[sum(everything) / len(everything)] * len(counts),
        facts={"values": values, "counts": counts},
    )


def _everywhere(number: Callable[[list[list[float]]], float]) -> Callable[[Trial], list[float]]:
    """A guess: on every rank the same number, computed from all values."""
    return lambda trial: [number(trial.values)] * trial.nproc


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _all(values: list[list[float]]) -> list[float]:
    return [one for mine in values for one in mine]


def _by_own_count(factor: Callable[[Trial], int]) -> Callable[[Trial], list[Any]]:
    """A guess: the whole sum by each rank's own count times this; anything where it has none."""

    def on_ranks(trial: Trial) -> list[Any]:
        total = sum(_all(trial.values))
        return [total / (len(mine) * factor(trial)) if mine else ... for mine in trial.values]

    return on_ranks


def _once_more(trial: Trial) -> list[float]:
    """A guess: each rank's own sum and count are added to those of all."""
    everything = _all(trial.values)
    return [_mean([*everything, *mine]) for mine in trial.values]


def _no_number(run: Run, rank: int) -> bool:
    """Whether a mean over no values has spoilt the result."""
    return 0 in run.trial.counts and math.isnan(run.got(rank))


def _skipped(run: Run, rank: int) -> bool:
    """Whether a rank without values called nothing while others wait."""
    return run.failure == "stuck" and not run.trial.counts[rank] and not run.calls(rank)


def _lengths_differ(run: Run, rank: int) -> Any:
    """Whether the ranks put tensors of different lengths into one call."""
    first = [run.calls(one)[0] for one in run.ranks if run.calls(one)]
    lengths = [call.shapes[0] for call in first if call.shapes]
    return len(set(lengths)) > 1 and {"operation": first[0].operation}


global_mean.fails("empty-rank-skips", _skipped)
global_mean.fails("lengths-differ", _lengths_differ)
global_mean.gives(
    "mean-of-means",
    _everywhere(lambda v: _mean([_mean(mine) for mine in v])),
    _everywhere(lambda v: _mean([_mean(mine) if mine else 0.0 for mine in v])),
    _everywhere(lambda v: _mean([_mean(mine) for mine in v if mine])),
)
global_mean.gives("divides-by-ranks", _everywhere(lambda v: sum(_all(v)) / len(v)))
global_mean.gives("not-divided", _everywhere(lambda v: sum(_all(v))))
global_mean.gives("own-mean", lambda trial: [_mean(mine) for mine in trial.values])
global_mean.gives(
    "divides-by-own", _by_own_count(lambda trial: 1), _by_own_count(lambda trial: trial.nproc)
)
global_mean.gives("own-twice", _once_more)
global_mean.gives("upside-down", _everywhere(lambda v: len(_all(v)) / sum(_all(v))))
global_mean.gives(
    "largest-only",
    _everywhere(lambda v: max(map(sum, v)) / max(map(len, v))),
    _everywhere(lambda v: max(map(_mean, filter(None, v)))),
    _everywhere(lambda v: max(_all(v))),
)
global_mean.gives(
    "whole-numbers",
    _everywhere(lambda v: sum(int(sum(mine)) for mine in v) / len(_all(v))),
    _everywhere(lambda v: sum(map(int, _all(v))) / len(_all(v))),
)
global_mean.shows("no-number", _no_number)
global_mean.shows("not-all-ranks", _not_all_ranks)
global_mean.demands(
    "not-a-collective",
    lambda run, rank: any(call.operation in POINT_TO_POINT for call in run.calls(rank)),
)
global_mean.demands(
    "too-many-calls",
    lambda run, rank: len(run.calls(rank)) > 1 and {"called": ", ".join(run.operations(rank))},
)


# ── two_step_all_reduce ──────────────────────────────────────────────────────────────────────


@judged("two_step_all_reduce", lab="03", in_place=0)
def two_step(draw: random.Random) -> Iterator[Trial]:
    """`two_step_all_reduce(x)`: the sum in place, by one reduce_scatter and one all_gather."""
    yield from _chunked(draw)


def _called(run: Run, rank: int) -> dict[str, str]:
    return {"called": ", ".join(run.operations(rank)) or "nothing"}


def _all_reduced(run: Run, rank: int) -> Any:
    called = run.operations(rank)
    return any(one.startswith("all_reduce") for one in called) and _called(run, rank)


def _gathered_first(run: Run, rank: int) -> bool:
    return bool(run.calls(rank)) and all(one in _ALL_GATHERS for one in run.operations(rank))


def _turned_round(run: Run, rank: int) -> Any:
    """Whether the parts were gathered before they were sums."""
    called = run.operations(rank)
    turned = len(called) > 1 and called[0] in _ALL_GATHERS and called[-1] in _REDUCE_SCATTERS
    return turned and _called(run, rank)


def _not_the_two(run: Run, rank: int) -> Any:
    called = run.operations(rank)
    right = len(called) == 2 and called[0] in _REDUCE_SCATTERS and called[1] in _ALL_GATHERS
    return not right and _called(run, rank)


def _too_much_in_a_step(run: Run, rank: int) -> Any:
    for call, most in zip(run.calls(rank), (1, run.nproc), strict=False):
        if call.bytes * most > run.trial.size:
            return {"call": call, "bytes": call.bytes, "enough": run.trial.size // most}
    return False


two_step.gives(
    "no-gather",
    _mixed(lambda trial, rank, r, p: r == rank or p // trial.part == rank),
    _mixed(lambda trial, rank, r, p: p // trial.part == rank),
)
two_step.gives("gathers-old", _mixed(lambda trial, rank, r, p: p // trial.part == r))
two_step.shows("turned-round", _turned_round)
_add_signs_of_sums(two_step)
two_step.demands("all-reduce", _all_reduced)
two_step.demands("gathers-first", _gathered_first)
two_step.demands("other-calls", _not_the_two)
two_step.demands("too-much-in-a-step", _too_much_in_a_step)


# ── ring_all_reduce ──────────────────────────────────────────────────────────────────────────


@judged("ring_all_reduce", lab="03", in_place=0)
def ring(draw: random.Random) -> Iterator[Trial]:
    """`ring_all_reduce(x)`: the sum in place, each rank sends 2(N - 1)/N of x to its neighbour."""
    yield from _chunked(draw)


def _all_wait(run: Run, rank: int) -> Any:
    """Whether all ranks wait in the same operation, for ranks that are there."""
    last = [run.calls(one)[-1] for one in run.ranks if run.calls(one)]
    same = len(last) == run.nproc and len({call.operation for call in last}) == 1
    waiting = same and all(call.end is None and not call.forsaken for call in last)
    waiting = waiting and all(call.peer in run.ranks for call in last)
    alone = all(call.end is not None for one in run.ranks for call in run.calls(one)[:-1])
    return run.failure == "stuck" and waiting and alone and {"operation": last[0].operation}


def _complete_chunks(run: Run, rank: int) -> list[int]:
    part, got, right = run.trial.part, run.got(rank).numbers, run.right(rank).numbers
    cuts = [slice(at * part, (at + 1) * part) for at in range(run.nproc)]
    return [at for at, cut in enumerate(cuts) if got[cut] == right[cut]]


def _half_way(run: Run, rank: int) -> Any:
    complete, steps = _complete_chunks(run, rank), len(run.sends(rank))
    return len(complete) == 1 and steps < run.nproc and {"steps": steps, "chunk": complete[0]}


def _early(run: Run, rank: int) -> Any:
    """Whether the ranks send less often than a ring of chunks has steps."""
    steps, needed = len(run.sends(rank)), 2 * (run.nproc - 1)
    return 0 < steps < needed and {"steps": steps, "needed": needed}


def _wrong_chunk(run: Run, rank: int) -> Any:
    """Whether after all steps a chunk is not complete, or another is in its place."""
    if len(run.sends(rank)) != 2 * (run.nproc - 1):
        return False
    chunks = sorted(set(range(run.nproc)) - set(_complete_chunks(run, rank)))
    return {"steps": len(run.sends(rank)), "chunk": chunks[0]}


def _not_a_ring(run: Run, rank: int) -> Any:
    peers = run.sent_to(rank)
    return len(peers) > 1 and {"peers": peers}


def _the_other_way(run: Run, rank: int) -> Any:
    right = (rank + 1) % run.nproc
    peers = run.sent_to(rank)
    return peers not in ([], [right]) and {"peer": peers[0], "neighbour": right}


def _too_many_steps(run: Run, rank: int) -> Any:
    """Whether chunks were sent, but more often than needed."""
    steps, needed = len(run.sends(rank)), 2 * (run.nproc - 1)
    chunk = run.trial.size // run.nproc
    of_chunks = all(call.bytes == chunk for call in run.sends(rank))
    return of_chunks and steps > needed and {"steps": steps, "needed": needed}


def _more_than_needed(run: Run, rank: int) -> Any:
    sent, least = run.sent_bytes(rank), 2 * (run.nproc - 1) * run.trial.size // run.nproc
    return sent > least and {"sent": sent, "least": least}


ring.fails("all-wait", _all_wait)
ring.shows("half-way", _half_way)
ring.shows("stops-early", _early)
ring.shows("only-copies", _only_copies)
ring.shows("added-twice", _added_twice)
_add_signs_of_sums(ring)
ring.shows("too-many-steps", _too_many_steps)
ring.shows("wrong-chunk", _wrong_chunk)
ring.demands("uses-a-collective", _only_messages)
ring.demands("not-a-ring", _not_a_ring)
ring.demands("other-way", _the_other_way)
ring.demands("too-many-steps", _too_many_steps)
ring.demands("whole-tensor", _more_than_needed)


# ── doubling_all_reduce ──────────────────────────────────────────────────────────────────────


@judged("doubling_all_reduce", lab="03", in_place=0)
def doubling(draw: random.Random) -> Iterator[Trial]:
    """`doubling_all_reduce(x)`: the sum in place, in log2(N) rounds of exchange with a partner."""
    wide = draw.sample(_WIDE, 2)
    yield from _whole(draw, (4, "float32"), (4, wide[0]), (8, wide[1]))


def _whole(draw: random.Random, *worlds: tuple[int, str]) -> Iterator[Trial]:
    """For each of these world sizes and dtypes an x that travels as a whole, one of them 2-D."""
    two_d = draw.randrange(1, len(worlds))
    for at, (nproc, dtype) in enumerate(worlds):
        length = draw.randint(2, 5)
        if at == two_d:
            yield _sums(draw, nproc, dtype, 2 * length, (length, 2))
        else:
            yield _sums(draw, nproc, dtype, length)


def _rounds_of_doubling(nproc: int) -> int:
    return nproc.bit_length() - 1


def _one_sided(run: Run, rank: int) -> Any:
    """Whether a rank's first message goes to one whose first goes to another."""
    first = [run.sends(one)[0].peer if run.sends(one) else None for one in run.ranks]
    peer = first[rank]
    if peer is None or peer not in run.ranks or first[peer] in (None, rank):
        return False
    return {"peer": peer, "other": first[peer]}


def _same_partner(run: Run, rank: int) -> Any:
    peers = run.sent_to(rank)
    times = len(run.sends(rank))
    return len(peers) == 1 < times and {"times": times, "peer": peers[0]}


def _not_added(run: Run, rank: int) -> Any:
    numbers: Numbers = run.trial.numbers
    holder = next((r for r in run.ranks if run.equals(rank, numbers.of(r))), None)
    return holder is not None and {"holder": holder}


def _stops_early(run: Run, rank: int) -> Any:
    times, rounds = len(run.sends(rank)), _rounds_of_doubling(run.nproc)
    return 0 < times < rounds and {"times": times, "rounds": rounds}


def _too_many_rounds(run: Run, rank: int) -> Any:
    times, rounds = len(run.sends(rank)), _rounds_of_doubling(run.nproc)
    return times > rounds and {"times": times, "rounds": rounds}


def _same_side(run: Run, rank: int) -> Any:
    """Whether a rank and the one it waits for wait in the same operation for each other."""
    last = [run.calls(one)[-1] if run.calls(one) else None for one in run.ranks]
    own = last[rank]
    if own is None or own.peer is None or own.peer not in run.ranks or own.end is not None:
        return False
    other = last[own.peer]
    both = (
        run.failure == "stuck"
        and other is not None
        and (other.operation, other.peer) == (own.operation, rank)
    )
    return both and {"peer": own.peer, "operation": own.operation}


def _fewer_than_rounds(run: Run, rank: int) -> Any:
    times, rounds = len(run.sends(rank)), _rounds_of_doubling(run.nproc)
    return times < rounds and {"times": times, "rounds": rounds}


doubling.fails("one-sided", _one_sided)
doubling.fails("all-wait", _all_wait)
doubling.fails("same-side", _same_side)
doubling.gives("sends-the-start", _mixed(lambda trial, rank, r, p: (r ^ rank).bit_count() < 2))
doubling.shows("same-partner", _same_partner)
doubling.shows("not-added", _not_added)
doubling.shows("added-to-itself", _added_to_itself)
doubling.shows("stops-early", _stops_early)
doubling.shows("too-many-rounds", _too_many_rounds)
doubling.shows("added-twice", _added_twice)
_add_signs_of_sums(doubling)
doubling.demands("uses-a-collective", _only_messages)
doubling.demands("too-many-rounds", _too_many_rounds)
doubling.demands("fewer-than-rounds", _fewer_than_rounds)


# ── tree_all_reduce ──────────────────────────────────────────────────────────────────────────


@judged("tree_all_reduce", lab="03", in_place=0)
def tree(draw: random.Random) -> Iterator[Trial]:
    """`tree_all_reduce(x)`: the sum in place, by a tree to one rank and back; for any N."""
    wide = draw.sample(_WIDE, 2)
    yield from _whole(draw, (4, "float32"), (7, wide[0]), (draw.choice((9, 10)), wide[1]))


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
    return _incomplete(run, rank) and _one_rank_only(run, rank)


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
        and _incomplete(run, rank)
        and {
            "holders": ranks_text(correct),
            "have": "has" if len(correct) == 1 else "have",
        }
    )


tree.fails("power-of-two-only", _missing_subtree)
tree.fails("all-wait", _all_wait)
tree.shows("only-up", _only_up)
tree.shows("adds-coming-down", _added_twice)
tree.shows("only-copies", _only_copies)
_add_signs_of_sums(tree)
tree.shows("too-many-messages", _too_many_messages)
tree.shows("not-down", _not_down)
tree.demands("uses-a-collective", _only_messages)
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


@judged("hierarchical_all_reduce", lab="03", play=_on_two_levels, in_place=0)
def hierarchical(draw: random.Random) -> Iterator[Trial]:
    """`hierarchical_all_reduce(x, inside, across)`: the sum, few bytes between nodes."""
    grids = [(2, 3), (3, 2)]
    draw.shuffle(grids)
    dtypes = ("float64", *draw.sample(_WIDE, 2))
    parts = (6, draw.randint(1, 3), draw.randint(1, 3))  # 6: swapped groups fit, too
    for (count, local), dtype, part in zip([grids[0], *grids], dtypes, parts, strict=True):
        nproc = count * local
        ranks = draw.sample(range(nproc), nproc)
        nodes = [sorted(ranks[at : at + local]) for at in range(0, nproc, local)]
        rails = [list(rail) for rail in zip(*nodes, strict=True)]
        trial = _sums(draw, nproc, dtype, local * part, part=part, count=count, local=local)
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
    members = [_in((one[0] - at, dict(one[1]))) if one else [] for at, one in enumerate(made)]
    once = all(one and max(one[1].values()) == 1 for one in made)
    return once and members.count(everybody) > 0 and all(m in (everybody, node) for m in members)


hierarchical.fails("all-of-it-across", _too_much_across)
hierarchical.gives("only-inside", _mixed(lambda trial, rank, r, p: r in trial.node[rank]))
hierarchical.gives("only-across", _mixed(lambda trial, rank, r, p: r in trial.rail[rank]))
hierarchical.gives(
    "counted-twice",
    _mixed(lambda trial, rank, r, p: trial.local),
    _mixed(lambda trial, rank, r, p: trial.count),
)
hierarchical.gives(
    "no-gather",
    _mixed(lambda trial, rank, r, p: r == rank or _own_part(trial, rank, p)),
    _mixed(lambda trial, rank, r, p: _own_part(trial, rank, p)),
)
hierarchical.gives(
    "nothing-across",
    _mixed(
        lambda trial, rank, r, p: r == rank or (r in trial.node[rank] and _own_part(trial, rank, p))
    ),
)
hierarchical.gives(
    "mean-of-groups",
    _mixed(lambda trial, rank, r, p: 1 / trial.local),
    _mixed(lambda trial, rank, r, p: 1 / trial.count),
)
_add_signs_of_sums(hierarchical)
hierarchical.shows("part-only", _part_only)
hierarchical.shows("whole-world", _whole_world)
hierarchical.shows("all-of-it-across", _too_much_across)
hierarchical.demands("whole-world", _whole_world)
hierarchical.demands("leaders-only", _leaders_only)
hierarchical.demands("all-of-it-across", _too_much_across)


# ── ring_seconds ─────────────────────────────────────────────────────────────────────────────


_LINES = 3  # pairs of α and β for each number of ranks: two tell of what a time is made


def _prices(answer: Any, n: int, nbytes: int, lines: list[tuple[float, float]]) -> list[Any]:
    return [answer(n, nbytes, alpha, beta) for alpha, beta in lines]


@judged("ring_seconds", lab="03", play=_prices)
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


# ── flat_all_reduce ──────────────────────────────────────────────────────────────────────────


@judged("flat_all_reduce", lab="03", in_place=0, called="tensors")
def flat(draw: random.Random) -> Iterator[Trial]:
    """`flat_all_reduce(tensors)`: the sum of each tensor in place, by exactly one call."""
    dtypes = iter(("float32", draw.choice(_WIDE), "float64", "int64"))
    for nproc in draw.sample((2, 3, 4), 2):
        a, b, c = draw.sample(range(2, 6), 3)
        shapes: list[tuple[int, ...]] = [(a, 2), (b,), (c, 1, 3), (), (0,), (b + c, 2)]
        draw.shuffle(shapes)
        yield _several(draw, nproc, next(dtypes), shapes)
        yield _several(draw, nproc, next(dtypes), shapes[: draw.choice((1, 2, 4))])


def _several(draw: random.Random, nproc: int, dtype: str, shapes: list[tuple[int, ...]]) -> Trial:
    lengths = [math.prod(shape) for shape in shapes]
    numbers = Numbers.draw(draw, nproc, sum(lengths), dtype)
    # One tensor alone has no gaps: what is said of a wrong result there would fit many mistakes.
    strided = next((at for at, shape in enumerate(shapes) if len(shape) > 1 and shapes[1:]), None)

    def cut(flat: list[float]) -> list[Tensor]:
        starts = [sum(lengths[:at]) for at in range(len(lengths))]
        return [
            Tensor.of(flat[start : start + length], dtype, shape, strided=at == strided)
            for at, (start, length, shape) in enumerate(zip(starts, lengths, shapes, strict=True))
        ]

    return Trial(
        nproc,
        given=[(cut(numbers.of(rank)),) for rank in range(nproc)],
        right=[cut(numbers.total)] * nproc,
        facts={"numbers": numbers, "size": sum(lengths) * _BYTES[dtype], "count": len(shapes)},
    )


def _several_calls(run: Run, rank: int) -> Any:
    calls = run.operations(rank)
    return len(calls) > 1 and {"calls": len(calls), "operations": ", ".join(calls)}


def _padded(run: Run, rank: int) -> Any:
    sent = sum(call.bytes for call in run.calls(rank))
    return sent > run.trial.size and {"sent": sent}


def _of_others(run: Run, rank: int) -> Any:
    """Whether all wrong numbers are sums, but of other places."""
    made = _made(run, rank)
    return all(one and one[0] and set(one[1].values()) == {1} for one in made)


def _left_out(run: Run, rank: int) -> Any:
    """Whether some tensors are the sum, and the others what they were."""
    trios = list(zip(run.got(rank), run.right(rank), run.steps[rank][0].before[0], strict=True))
    left = [at for at, (got, right, _) in enumerate(trios) if got.numbers != right.numbers]
    return all(trios[at][0] == trios[at][2] for at in left) and {"number": left[0]}


def _gaps(run: Run, rank: int) -> Any:
    """Whether only the tensor with gaps is wrong."""
    pairs = list(zip(run.got(rank), run.right(rank), strict=True))
    wrong = [at for at, (got, right) in enumerate(pairs) if got.numbers != right.numbers]
    return all(pairs[at][1].strided for at in wrong) and {"number": wrong[0]}


flat.shows("one-call-each", _several_calls)
flat.shows("gaps", _gaps)
flat.shows("left-out", _left_out)
_add_signs_of_sums(flat)
flat.shows("of-others", _of_others)
flat.demands("one-call-each", _several_calls)
flat.demands("padded", _padded)
