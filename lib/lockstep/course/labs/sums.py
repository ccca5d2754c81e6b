"""Sums over ranks in place: trials that several labs have, and the signs of a sum gone wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..judging import Judged, Numbers, Run, Trial, numbers_in

WIDE = ("float64", "int64")  # dtypes that hold the numbers of many ranks, and are no default
BYTES = {"float32": 4, "float64": 8, "int64": 8}
Times = Callable[[Trial, int, int, int], float]


def sums(
    draw: random.Random,
    nproc: int,
    dtype: str,
    length: int,
    shape: tuple[int, ...] | None = None,
    **facts: Any,
) -> Trial:
    """An x of so many numbers on each rank, to be summed over all ranks in place."""
    numbers = Numbers.draw(draw, nproc, length, dtype)
    if dtype == "int64":  # a float64 has no room for all digits of the sums
        bits = 56 - max(abs(int(one)) for one in numbers.total).bit_length()
        numbers = replace(
            numbers, multipliers=tuple((2**bits + 1) * one for one in numbers.multipliers)
        )
    return Trial(
        nproc,
        given=[(numbers.tensor(numbers.of(rank), shape),) for rank in range(nproc)],
        right=[numbers.tensor(numbers.total, shape)] * nproc,
        facts={"numbers": numbers, "size": length * BYTES[dtype], **facts},
    )


def mixed(times: Times) -> Callable[[Trial], list[list[float]]]:
    """A guess: on each rank the sum in which the number of rank r at place p counts
    `times(trial, rank, r, p)` times."""

    def on_rank(trial: Trial, rank: int) -> list[float]:
        numbers: Numbers = trial.numbers
        return numbers.mix(lambda r, p: times(trial, rank, r, p))

    return lambda trial: [on_rank(trial, rank) for rank in range(trial.nproc)]


def picked(pick: Callable[[list[float]], float]) -> Callable[[Trial], list[list[float]]]:
    """A guess: at each place one of the ranks' numbers."""

    def everywhere(trial: Trial) -> list[list[float]]:
        columns = zip(*(trial.numbers.of(rank) for rank in range(trial.nproc)), strict=True)
        return [[pick(list(column)) for column in columns]] * trial.nproc

    return everywhere


def _mean(whole_part: Callable[[float], int]) -> Callable[[Trial], list[list[float]]]:
    """A guess: the sum by the number of ranks, of which integers keep the whole part."""

    def everywhere(trial: Trial) -> list[list[float]]:
        cut = whole_part if trial.numbers.dtype == "int64" else float
        return [[float(cut(one / trial.nproc)) for one in trial.numbers.total]] * trial.nproc

    return everywhere


def add_signs_of_sums(one: Judged) -> None:
    """Add the signs of sums in which not everything was added up, or not once."""
    one.gives("without-own", mixed(lambda trial, rank, r, p: r != rank))
    one.gives(
        "own-twice",
        mixed(lambda trial, rank, r, p: 1 + (r == rank)),
        mixed(lambda trial, rank, r, p: trial.nproc + (r == rank)),
    )
    one.gives("mean", _mean(int), _mean(math.floor))
    one.gives("times-ranks", mixed(lambda trial, rank, r, p: trial.nproc))
    one.gives(
        "neighbour-only",
        mixed(lambda trial, rank, r, p: r == (rank - 1) % trial.nproc),
        mixed(lambda trial, rank, r, p: r == (rank + 1) % trial.nproc),
    )
    one.gives("first-only", mixed(lambda trial, rank, r, p: r == 0))
    one.gives("not-a-sum", picked(max), picked(min), picked(math.prod))
    one.shows("wrong-places", wrong_places)
    one.shows("one-rank-only", one_rank_only)


def other_type(run: Run, rank: int) -> Any:
    """Whether a rank's first call was of another type of numbers than x."""
    call = next(iter(run.calls(rank)), None)
    own = run.trial.numbers.dtype
    return (
        call is not None and call.dtype != own and {"call": call, "dtype": call.dtype, "own": own}
    )


def one_rank_only(run: Run, rank: int) -> Any:
    """Whether a single rank has the sum."""
    correct = sorted(set(run.ranks) - set(run.wrong))
    return len(correct) == 1 and {"holder": correct[0]}


def wrong_places(run: Run, rank: int) -> bool:
    return sorted(numbers_in(run.got(rank))) == sorted(run.trial.numbers.total)


def makings(run: Run, rank: int) -> list[tuple[int, dict[int, int]] | None]:
    """Return each wrong number's place, and how often each rank's is in it, where that is known."""
    numbers: Numbers = run.trial.numbers
    found = [(one.at, numbers.made_of(one.got, one.at)) for one in run.differences(rank)]
    return [made and (made[0] - at, dict(made[1])) for at, made in found]


def added_twice(run: Run, rank: int) -> bool:
    """Whether all ranks are in each wrong number, and some of them more than once."""
    return all(
        one and min(one[1].values()) >= 1 < max(one[1].values()) for one in makings(run, rank)
    )


def incomplete(run: Run, rank: int) -> bool:
    """Whether in each wrong number some rank's is missing, and none is there twice."""
    return all(one and one[0] == 0 and max(one[1].values()) == 1 for one in makings(run, rank))


def only_copies(run: Run, rank: int) -> bool:
    """Whether no wrong number has been added to anything."""
    return all(one and sum(one[1].values()) == 1 for one in makings(run, rank))


def added_to_itself(run: Run, rank: int) -> Any:
    """Whether in each wrong number there is one rank's alone, and more than once."""
    made = makings(run, rank)
    alone = all(one and len(ranks_in(one)) == 1 and max(one[1].values()) > 1 for one in made)
    return alone and made[0] is not None and {"holder": ranks_in(made[0])[0]}


def ranks_in(made: tuple[int, dict[int, int]]) -> list[int]:
    return sorted(rank for rank, times in made[1].items() if times)


def only_messages(run: Run, rank: int) -> Any:
    """A collective that is being built must not be used for it."""
    used = run.collectives(rank)
    return bool(used) and {"operation": used[0].operation}


def whole(draw: random.Random, *worlds: tuple[int, str]) -> Iterator[Trial]:
    """For each of these world sizes and dtypes an x that travels as a whole, one of them 2-D."""
    two_d = draw.randrange(1, len(worlds))
    for at, (nproc, dtype) in enumerate(worlds):
        length = draw.randint(2, 5)
        if at == two_d:
            yield sums(draw, nproc, dtype, 2 * length, (length, 2))
        else:
            yield sums(draw, nproc, dtype, length)


def all_wait(run: Run, rank: int) -> Any:
    """Whether all ranks wait in the same operation, for ranks that are there."""
    last = [run.calls(one)[-1] for one in run.ranks if run.calls(one)]
    same = len(last) == run.nproc and len({call.operation for call in last}) == 1
    waiting = same and all(call.end is None and not call.forsaken for call in last)
    waiting = waiting and all(call.peer in run.ranks for call in last)
    alone = all(call.end is not None for one in run.ranks for call in run.calls(one)[:-1])
    return run.failure == "stuck" and waiting and alone and {"operation": last[0].operation}
