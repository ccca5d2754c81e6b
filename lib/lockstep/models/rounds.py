"""All-reduces as rounds of messages: who sends which chunks to whom, and what each rank has then.

The messages of a round are all under way at once. The formulas of the same algorithms are in
`cost`, with the papers that they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """`chunks` of `source` go to `to`, which adds them to its own, or (adds=False) takes them."""

    source: int
    to: int
    chunks: tuple[int, ...]
    adds: bool


Rounds = tuple[tuple[Message, ...], ...]
Held = tuple[
    tuple[int, ...], ...
]  # for each rank and chunk, a bit for each rank that is in the sum


@dataclass(frozen=True)
class Algorithm:
    """An all-reduce of `ranks` ranks, whose data are cut into `chunks` equal parts.

    nodes: the ranks are on so many hosts, in order and equally many on each.
    """

    name: str
    ranks: int
    chunks: int
    rounds: Rounds
    nodes: int = 1

    @property
    def complete(self) -> int:
        """The bits of a sum over all ranks."""
        return (1 << self.ranks) - 1

    def held(self) -> list[Held]:
        """The numbers that ranks hold at the start and after each round.

        Raises ValueError where the numbers of a rank would be in a sum twice.
        """
        now = [[1 << rank] * self.chunks for rank in range(self.ranks)]
        states = [tuple(map(tuple, now))]
        for number, messages in enumerate(self.rounds, 1):
            before = states[-1]
            for one in messages:
                for chunk in one.chunks:
                    came, own = before[one.source][chunk], now[one.to][chunk]
                    if one.adds and came & own:
                        raise ValueError(f"round {number}: {one} adds some numbers twice")
                    now[one.to][chunk] = came | own if one.adds else came
            states.append(tuple(map(tuple, now)))
        return states

    def sent(self) -> list[list[float]]:
        """After each round, how many times its data each rank has sent; zeros at the start."""
        totals = [[0.0] * self.ranks]
        for messages in self.rounds:
            row = list(totals[-1])
            for one in messages:
                row[one.source] += len(one.chunks) / self.chunks
            totals.append(row)
        return totals


def ring(ranks: int) -> Algorithm:
    """Partial sums go round until each rank has one complete chunk, then those go round."""
    chunks = [(chunk,) for chunk in range(ranks)]
    rounds = [*_reduce_scatter(range(ranks), chunks), *_all_gather(range(ranks), chunks)]
    return Algorithm("ring", ranks, ranks, tuple(rounds))


def doubling(ranks: int) -> Algorithm:
    """All exchange all they have with a partner 1, 2, 4, … ranks away.

    Where there is no power of two, the ranks above the next lower one hand over their data before,
    and get the sum afterwards.
    """
    core = 1 << ranks.bit_length() - 1
    before = tuple(Message(core + r, r, (0,), True) for r in range(ranks - core))
    after = tuple(Message(r, core + r, (0,), False) for r in range(ranks - core))
    rounds = [
        tuple(Message(rank, rank ^ 1 << k, (0,), True) for rank in range(core))
        for k in range(core.bit_length() - 1)
    ]
    outside = ranks > core
    return Algorithm("doubling", ranks, 1, (*[before] * outside, *rounds, *[after] * outside))


def tree(ranks: int) -> Algorithm:
    """Half of those that are left send to the other half until rank 0 has the sum; then back."""
    up = [
        tuple(
            Message(rank, rank - (1 << k), (0,), True)
            for rank in range(ranks)
            if rank % (2 << k) == 1 << k
        )
        for k in range((ranks - 1).bit_length())
    ]
    down = [tuple(Message(one.to, one.source, (0,), False) for one in each) for each in up[::-1]]
    return Algorithm("tree", ranks, 1, (*up, *down))


def two_level(ranks: int, nodes: int = 2) -> Algorithm:
    """A ring's first half inside of each node, a ring of each part between nodes, the second half.

    Raises ValueError where the nodes would not have equally many ranks, two or more.
    """
    local = ranks // nodes
    if ranks % nodes or local < 2 or nodes < 2:
        raise ValueError(
            f"{ranks} ranks on {nodes} nodes: two levels need two nodes or more, and two ranks or "
            "more on each, equally many"
        )
    parts = [tuple(range(p * nodes, (p + 1) * nodes)) for p in range(local)]
    inside = [range(node * local, (node + 1) * local) for node in range(nodes)]
    between: list[Rounds] = []
    for place in range(local):  # it has part place + 1 by now
        own = [(chunk,) for chunk in parts[(place + 1) % local]]
        peers = range(place, ranks, local)
        between.append((*_reduce_scatter(peers, own), *_all_gather(peers, own)))
    rounds = [
        *_beside([_reduce_scatter(node, parts) for node in inside]),
        *_beside(between),
        *_beside([_all_gather(node, parts) for node in inside]),
    ]
    return Algorithm("two-level", ranks, ranks, tuple(rounds), nodes)


ALGORITHMS: dict[str, Callable[[int], Algorithm]] = {
    "ring": ring,
    "doubling": doubling,
    "tree": tree,
    "two-level": two_level,
}


def _reduce_scatter(members: Sequence[int], chunks: Sequence[tuple[int, ...]]) -> Rounds:
    """Around a ring; then member r has chunks r + 1."""
    n = len(members)
    return tuple(
        tuple(
            Message(members[r], members[(r + 1) % n], chunks[(r - step) % n], True)
            for r in range(n)
        )
        for step in range(n - 1)
    )


def _all_gather(members: Sequence[int], chunks: Sequence[tuple[int, ...]]) -> Rounds:
    """Around a ring, where member r has chunks r + 1."""
    n = len(members)
    return tuple(
        tuple(
            Message(members[r], members[(r + 1) % n], chunks[(r + 1 - step) % n], False)
            for r in range(n)
        )
        for step in range(n - 1)
    )


def _beside(groups: Sequence[Rounds]) -> Rounds:
    """Return what several groups do at the same time."""
    return tuple(
        tuple(one for messages in each for one in messages) for each in zip(*groups, strict=True)
    )
