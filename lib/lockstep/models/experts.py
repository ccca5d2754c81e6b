"""A layer of experts that are cut over ranks: what each computes and sends, and what is dropped.

The forward pass: rows go to their experts' ranks, are computed there, and go back. Each of the
exchanges, and so the layer, takes as long as its slowest rank.

Not modelled: the router, the counts that are sent first, and that what an expert gets is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cost import Line

PLACINGS = ("in order", "in turn")


def popularity(experts: int, steepness: float) -> list[float]:
    """Return the share of the tokens that each expert gets, the most popular one first: they fall
    as 1/place^steepness (0: all alike)."""
    weights = [place**-steepness for place in range(1, experts + 1)]
    return [one / sum(weights) for one in weights]


@dataclass(frozen=True)
class Experts:
    """rows: that each rank's experts get. sent: those of a rank's own that leave it, there or back.
    dropped: the share of all tokens."""

    rows: tuple[float, ...]
    sent: tuple[float, ...]
    dropped: float

    def exchange(self, row: float, line: Line) -> float:
        """Seconds until all rows, of so many bytes, are there: each rank has a message for each
        other, and what it sends or gets, whichever is more, passes its link."""
        ranks = len(self.rows)
        got = (rows * (ranks - 1) / ranks for rows in self.rows)
        most = max(max(both) for both in zip(self.sent, got, strict=True))
        return (ranks - 1) * line.alpha + most * row * line.beta


def experts(
    tokens: int, shares: Sequence[float], capacity: float, ranks: int, placing: str
) -> Experts:
    """Place experts on ranks, equally many on each.

    tokens: of each rank. shares: of each expert, the most popular first. capacity: the most that an
    expert takes of a rank's tokens, divided by an even share. placing: "in order", the first ones
    on rank 0; or "in turn", there and back, so that each rank has popular and other ones.
    """
    kept = [min(share, capacity / len(shares)) * tokens for share in shares]
    own = [0.0] * ranks  # the rows that each rank's experts get of one rank
    for place, one in enumerate(kept):
        lap, at = divmod(place, ranks)
        turn = at if lap % 2 == 0 else ranks - 1 - at
        own[turn if placing == "in turn" else place * ranks // len(kept)] += one
    everything = sum(kept)
    sent = tuple(everything - mine for mine in own)
    rows = tuple(mine * ranks for mine in own)
    return Experts(rows, sent, max(0.0, 1 - everything / tokens))
