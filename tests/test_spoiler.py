"""Which cells are hidden until something is predicted: by what they show in a kernel.

How that looks is in test_browser.py.
"""

from collections.abc import Callable

import pytest
from kernel import Kernel, Reply

HIDDEN = "first: write it above"
COMPARE = "import lockstep\nlockstep.compare({}, 4)"
CLAIM = """import lockstep
lockstep.claim(
    "Rings win.", guess=guess, verdict="holds", because="", stamp=lockstep.simulated("x")
)"""


@pytest.fixture
def hidden(kernel: Kernel) -> Callable[..., list[bool]]:
    """Of each cell that is run, whether its outputs are hidden."""

    def execute(*cells: str) -> list[bool]:
        replies: list[Reply] = [kernel.execute(code) for code in cells]
        assert [reply.error for reply in replies] == [""] * len(cells)
        return [HIDDEN in reply.html for reply in replies]

    return execute


def test_cells_between_question_and_answer_are_hidden(hidden):
    asked = ["prediction = None  # your number", "1 + 1", "%%torchrun -n 2\n'seen'"]
    assert hidden(*asked, COMPARE.format("prediction"), "2") == [False, True, True, True, False]
    assert hidden(COMPARE.format("prediction")) == [True]  # once more, and still no number


def test_who_has_predicted_sees_all(hidden):
    assert hidden("prediction = 3", "1", COMPARE.format("prediction")) == [False] * 3
    assert hidden("prediction = None", "1", "prediction = 0", "1") == [False, True, False, False]


def test_a_guess_is_asked_for_as_a_number_is(hidden):
    assert hidden("guess = None", "1", CLAIM, "1") == [False, True, True, False]
    assert hidden("guess = 'holds'", "1", CLAIM) == [False] * 3


def test_a_lab_s_own_function_answers_and_what_follows_is_shown(hidden):
    own = "import lockstep\ndef beside(prediction):\n    return lockstep.compare(prediction, 4)"
    mine = "import types\nseen = types.SimpleNamespace(compare=lambda *both: both)"
    cells = ["prediction = None", "1", "seen.compare(prediction, 4)", "2"]
    assert hidden(own, mine, *cells) == [False, False, False, True, True, False]


def test_two_open_questions_hide_until_both_are_answered(hidden):
    compare = COMPARE.format("prediction")
    assert hidden("guess = None", "prediction = 3", compare, "1") == [False, False, False, True]
    assert hidden(CLAIM, "1") == [True, False]


def test_exercises_and_what_comes_much_later_are_not_hidden(hidden):
    check = "import lockstep\nlockstep.check('average', None)"
    assert hidden("prediction = None", check, *["1"] * 6) == [False, False, *[True] * 5, False]
