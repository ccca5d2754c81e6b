"""The tiles of a product on the SMs of a device, beside collectives that have some of these."""

from __future__ import annotations

import copy
import heapq
import math

_NOTHING = 1e-3  # ns
# A tile is so much of the SMs' part quicker that collectives have: 0.12 beside those that move
# data, and 0.33 beside those that wait, in `virtual/contention-h200-x2.json`.
SPARED = 0.15


class Tiles:
    """The tiles of a product, which an SM computes one after the other, in time of its own.

    A product has a block for each SM. A block begins with a tile of its own, and takes another one
    when it is done, until all are taken. One that finds no SM, as a collective has it, begins when
    the collective ends, or else after all others, and then its own tile comes last. No SM has
    blocks of both: a product's need all its shared memory.
    """

    def __init__(self, count: int, sms: int, work: float) -> None:
        self._sms, self._each = sms, work / math.ceil(count / sms)
        self._late = min(count, sms)  # blocks that have not begun
        self._left = count - self._late  # tiles that no block has yet
        self._held, self._now = 0, 0.0
        self._ends: list[tuple[float, int]] = []  # when so many SMs are done with their tile

    @property
    def share(self) -> float:
        """The share of the SMs that it has now."""
        return self._used / self._sms

    @property
    def _used(self) -> int:
        return sum(count for _, count in self._ends)

    @property
    def next_end(self) -> float:
        """ns until an SM is done with its tile."""
        return self._ends[0][0] - self._now

    def beside(self, share: float) -> bool:
        """From now on collectives have this share of the SMs; False if it is as before."""
        held, before = round(share * self._sms), self._held
        self._held = held
        self._begin()
        return held != before

    def advance(self, passed: float) -> None:
        until = self._now + passed
        while self._ends and self._ends[0][0] <= until + _NOTHING:
            self._now, count = heapq.heappop(self._ends)
            again = min(count, self._left)
            self._left -= again
            self._compute(again)
            if not self._ends:
                self._begin()
        self._now = until

    def rest(self) -> float:
        """ns until all is done, if it stays so."""
        ahead = copy.copy(self)
        ahead._ends = [*self._ends]
        while ahead._ends:
            ahead.advance(ahead.next_end)
        return ahead._now - self._now

    def _begin(self) -> None:
        count = min(self._late, self._sms - self._held - self._used)
        self._late -= count
        self._compute(count)

    def _compute(self, count: int) -> None:
        if count > 0:
            lasts = self._each * (1 - SPARED * self._held / self._sms)
            heapq.heappush(self._ends, (self._now + lasts, count))
