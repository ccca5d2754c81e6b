"""Rounds of messages: every algorithm ends with the sum, and costs what its formula says."""

import pytest
from lockstep.models import cost, rounds

NPROC = range(2, 9)
ONCE, BYTE = cost.Line(1.0, 0.0), cost.Line(0.0, 1.0)
FORMULAS = {
    "ring": cost.ring_all_reduce,
    "doubling": cost.recursive_doubling_all_reduce,
    "tree": cost.tree_all_reduce,
    "two-level": lambda n, s, line: cost.hierarchical_all_reduce(n, 2, s, line, line),
}
CASES = [
    (name, n) for name in FORMULAS for n in NPROC if name != "two-level" or (n > 2 and n % 2 == 0)
]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_every_rank_ends_with_the_sum_of_all(name: str, n: int) -> None:
    found = rounds.ALGORITHMS[name](n)
    *before, last = found.held()
    assert {bits for rank in last for bits in rank} == {found.complete}
    assert all({bits for rank in each for bits in rank} != {found.complete} for each in before)


@pytest.mark.parametrize(("name", "n"), CASES)
def test_rounds_and_bytes_are_those_of_the_formula(name: str, n: int) -> None:
    found = rounds.ALGORITHMS[name](n)
    assert len(found.rounds) == FORMULAS[name](n, 1.0, ONCE)
    largest = [max(len(one.chunks) for one in each) / found.chunks for each in found.rounds]
    assert sum(largest) == pytest.approx(FORMULAS[name](n, 1.0, BYTE))


@pytest.mark.parametrize(("name", "n"), CASES)
def test_a_rank_sends_and_receives_one_message_a_round_at_most(name: str, n: int) -> None:
    for messages in rounds.ALGORITHMS[name](n).rounds:
        assert len({one.source for one in messages}) == len(messages)
        assert len({one.to for one in messages}) == len(messages)


def test_two_levels_cross_between_nodes_with_the_same_place_only() -> None:
    found = rounds.two_level(8, nodes=4)
    for one in (one for each in found.rounds for one in each):
        assert one.source // 2 == one.to // 2 or one.source % 2 == one.to % 2
    for n, nodes in ((6, 4), (4, 4), (4, 1)):
        with pytest.raises(ValueError, match=f"{n} ranks on {nodes} nodes"):
            rounds.two_level(n, nodes)


def test_a_sum_with_the_same_numbers_twice_is_refused() -> None:
    twice = (rounds.Message(0, 1, (0,), True),)
    with pytest.raises(ValueError, match=r"round 2: .* twice"):
        rounds.Algorithm("broken", 2, 1, (twice, twice)).held()


def test_a_ring_sends_what_the_paper_says_and_a_tree_not_equally_much() -> None:
    assert rounds.ring(4).sent()[-1] == [1.5] * 4
    assert rounds.tree(4).sent()[-1] == [2.0, 1.0, 2.0, 1.0]
