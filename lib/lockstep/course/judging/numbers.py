"""Numbers whose sums tell of what they are made.

Rank r's number at place p is m(p) · B^e(r): m differs from place to place, e from rank to rank. A
sum of such numbers, in which no rank counts B times or more, is a number in base B whose digits
say how often each rank is in it. So an answer that adds up the wrong numbers can be told which.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .values import Tensor

_PRIMES = (
    11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103,
    107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181, 191, 193, 197, 199,
)  # fmt: skip
_EXACT = {"float32": 24, "float64": 53, "int32": 31, "int64": 53}  # bits of whole numbers
_LARGEST_BASE = 64


@dataclass(frozen=True)
class Numbers:
    """The numbers that ranks hold: `length` each, fractions and negative ones if the dtype has
    them."""

    dtype: str
    nproc: int
    base: int
    exponents: tuple[int, ...]
    multipliers: tuple[float, ...]

    @classmethod
    def draw(cls, draw: random.Random, nproc: int, length: int, dtype: str) -> Numbers:
        most = 2 ** _EXACT[dtype] / 2 / _PRIMES[-1]
        base = min(_LARGEST_BASE, int(most ** (1 / nproc)))
        unit = 0.125 if dtype.startswith("float") else 1
        primes: list[int] = []
        while len(primes) < length:
            primes += draw.sample(_PRIMES, min(len(_PRIMES), length - len(primes)))
        multipliers = tuple(draw.choice((-1, 1)) * unit * prime for prime in primes)
        return cls(dtype, nproc, base, tuple(draw.sample(range(nproc), nproc)), multipliers)

    @property
    def length(self) -> int:
        return len(self.multipliers)

    def of(self, rank: int) -> list[float]:
        return [m * self.base ** self.exponents[rank] for m in self.multipliers]

    def mix(self, times: Callable[[int, int], float]) -> list[float]:
        """The sum in which rank r's number at place p counts `times(r, p)` times."""
        return [
            sum(
                times(rank, at) * one * self.base ** self.exponents[rank]
                for rank in range(self.nproc)
            )
            for at, one in enumerate(self.multipliers)
        ]

    @property
    def total(self) -> list[float]:
        return self.mix(lambda rank, at: 1)

    def tensor(self, numbers: list[float], shape: tuple[int, ...] | None = None) -> Tensor:
        return Tensor.of(numbers, self.dtype, shape)

    def made_of(self, number: float, at: int) -> tuple[int, Mapping[int, int]] | None:
        """Return of which place's numbers a sum is made, and how often each rank's is in it; None
        where that cannot be said for certain."""
        if self.base <= 2 * self.nproc:  # a digit might have run over
            return None
        for place in (at, *(one for one in range(self.length) if one != at)):
            whole, rest = divmod(number, self.multipliers[place])
            if rest or whole < 0:
                continue
            times: dict[int, int] = {}
            for rank in sorted(range(self.nproc), key=lambda rank: self.exponents[rank]):
                whole, times[rank] = divmod(int(whole), self.base)
            if not whole and max(times.values()) <= self.nproc:
                return place, times
        return None

    def origin(self, number: float, at: int) -> str:
        """Say of what a wrong sum is made; "" where that cannot be said for certain."""
        found = self.made_of(number, at)
        if found is None:
            return ""
        place, times = found
        there = "" if place == at else f", at place {place}"
        counted = [rank for rank in range(self.nproc) if times[rank]]
        if not counted:
            return "nobody's number is in it"
        if len(set(times.values())) == 1:
            return f"it is the sum{there}" + (f", {times[0]} times" if times[0] > 1 else "")
        if len(counted) == 1 and times[counted[0]] == 1:
            return f"it is what rank {counted[0]} had{there}, and nothing was added to it"
        parts = [_rank(rank, times[rank]) for rank in counted]
        missing = [f"rank {rank}'s" for rank in range(self.nproc) if not times[rank]]
        lacking = f"; not in it: {', '.join(missing)}" if missing else ""
        return f"it is made of {' + '.join(parts)}{there}{lacking}"


def _rank(rank: int, times: int) -> str:
    often = {1: "", 2: " twice"}.get(times, f" {times} times")
    return f"rank {rank}'s{often}"
