"""Who holds what: what is drawn and said is what the ranks held."""

import io

import pytest
from lockstep import simulated
from lockstep.figures.buffers import _owner, buffers
from PIL import Image

STAMP = simulated("a test")
SUM = ([[1, 2], [10, 20]], [[11, 22], [11, 22]])


def pixels(figure) -> bytes:
    return Image.open(io.BytesIO(figure._pictures["light"])).tobytes()


def test_the_words_say_what_each_rank_held_before_and_after():
    figure = buffers({"all_reduce": SUM}, stamp=STAMP)
    assert figure.alt == (
        "all_reduce: before, rank 0 holds 1 2, rank 1 10 20; after, ranks 0, 1 hold 11 22."
    )
    assert "simulated · a test" in repr(figure)


def test_who_holds_nothing_is_said():
    figure = buffers({"scatter": ([[1, 2, 3], None, []], [[1], [2], [3]])}, stamp=STAMP)
    assert "before, rank 0 holds 1 2 3, ranks 1, 2 nothing" in figure.alt


def test_the_picture_shows_the_numbers_and_not_the_name_alone():
    one = buffers({"x": SUM}, stamp=STAMP)
    other = buffers({"x": ([[1, 2], [10, 20]], [[11, 22], [11, 23]])}, stamp=STAMP)
    assert pixels(one) != pixels(other)
    assert pixels(one) == pixels(buffers({"x": SUM}, stamp=STAMP))


def test_a_number_belongs_to_the_one_rank_that_held_it_before():
    before = [[1, 2], [2, 3], None]
    assert [_owner(number, before) for number in (1, 2, 3, 4)] == [0, None, 1, None]


@pytest.mark.parametrize("panels", [{}, {"x": ([], [])}, {"x": ([[1]], [[1], [2]])}])
def test_what_cannot_be_drawn_is_refused(panels):
    with pytest.raises(ValueError):
        buffers(panels, stamp=STAMP)


def test_eight_ranks_and_nine_panels_are_drawn():
    before = [[10 * rank + place for place in range(2)] for rank in range(8)]
    figure = buffers({str(number): (before, before) for number in range(9)}, stamp=STAMP)
    assert len(figure._pictures["dark"]) > 10_000
