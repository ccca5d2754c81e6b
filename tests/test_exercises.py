"""Checks of exercises, hints, solutions and claims, as a learner meets them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import lockstep
import pytest
import torch
import torch.distributed as dist
from lockstep.course import exercises as checks
from lockstep.course import progress
from lockstep.course.links import exercise_address

ROOT = Path(__file__).parents[1]
MIME = "application/vnd.lockstep.check+json"
EXERCISES = {one.name: one for one in checks.exercises()}
ATTACK = "<script>alert('\"&')</script>"
HOSTILE = (ATTACK, f"two {ATTACK}", f"three {ATTACK}")  # hints


def html(shown) -> ElementTree.Element:
    """What a notebook draws, parsed: so it is well-formed, too."""
    return ElementTree.fromstring(f"<body>{shown._repr_mimebundle_()['text/html']}</body>")


def said(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A session in which nothing has been checked; exercises of a test go with it."""
    monkeypatch.setattr(checks, "_exercises", dict(checks._exercises))
    monkeypatch.setattr(checks, "_passed", {})
    monkeypatch.setattr(checks, "_hinted", {})
    monkeypatch.setattr(checks, "_tried", set())


@pytest.fixture
def tiny():
    """An exercise whose name, hints and mistake are hostile; the answer 1 passes."""

    @checks.exercise(f"tiny{ATTACK}", lab="99", hints=HOSTILE)
    def check(answer, draw):
        if answer != 1:
            raise checks.WrongAnswer("not-one", f"it is not one: {ATTACK}")

    return f"tiny{ATTACK}"


# Answers to `average`


def mean(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


def by_reduce_and_broadcast(x):
    dist.reduce(x, 0)
    dist.broadcast(x, 0)
    return x / dist.get_world_size()


def one_too_many(x):
    return mean(x) + 1


def blank(*_):
    raise NotImplementedError


def broken(*_):
    raise LookupError("my own mistake")


# What becomes of an answer


@pytest.mark.parametrize(
    ("name", "answer", "verdict", "mistake", "hint"),
    [
        ("no such exercise", mean, "NOT YET", "", "local_gpu"),  # it names those there are
        ("no such exercise", None, "NOT YET", "", "average"),
        ("average", None, "NOT YET", "", "blank"),
        ("average", blank, "NOT YET", "", "blank"),
        ("local_gpu", blank, "NOT YET", "", "blank"),  # this one runs in the notebook
        ("average", broken, "TRY AGAIN", "raised", "LookupError: my own mistake"),
        ("local_gpu", broken, "TRY AGAIN", "raised", "LookupError: my own mistake"),
        ("average", by_reduce_and_broadcast, "TRY AGAIN", "several-collectives", "broadcast"),
        ("average", mean, "PASS", "", ""),
    ],
)
def test_verdict(name, answer, verdict, mistake, hint):
    outcome = lockstep.check(name, answer)
    assert (outcome.verdict, outcome.mistake) == (verdict, mistake), str(outcome)
    assert hint in outcome.hint
    assert outcome._repr_mimebundle_()[MIME] == {
        "exercise": name,
        "verdict": verdict,
        "mistake": mistake,
    }


@pytest.mark.parametrize("name", EXERCISES)
def test_no_answer_and_one_of_the_wrong_type(name):
    assert lockstep.check(name, None).verdict == "NOT YET"
    wrong = lockstep.check(name, 5)
    assert wrong.verdict == "TRY AGAIN" and wrong.hint, str(wrong)


def test_a_wrong_answer_gets_one_hint_and_the_way_to_repeat_it():
    outcome = lockstep.check("average", one_too_many)
    first, hint, stuck = str(outcome).splitlines()
    assert (hint, stuck) == (outcome.hint, "stuck? lockstep.hint('average')")
    (seed,) = map(int, re.findall(r"^TRY AGAIN · average \(seed (\d+)\)$", first))
    assert f"(seed {seed})" in said(html(outcome))
    assert lockstep.check("average", one_too_many, seed=seed) == outcome  # its hint has numbers
    assert lockstep.check("average", one_too_many, seed=seed + 1).hint != outcome.hint


def test_each_check_tries_other_ranks_and_numbers(tmp_path):
    notes = tmp_path / "notes"

    def noting(x):
        with notes.open("a") as file:  # ranks come in any order
            file.write(f"{dist.get_world_size()} {dist.get_rank()} {x.tolist()}\n")
        return mean(x)

    def tried(seed=None) -> tuple[str, ...]:
        notes.write_text("")
        assert lockstep.check("average", noting, seed=seed).verdict == "PASS"
        return tuple(sorted(notes.read_text().splitlines()))

    assert len({line.split()[0] for line in tried()}) > 1  # no fixed world size passes
    assert len({tried() for _ in range(3)}) > 1
    assert tried(7) == tried(7) != tried(8)


def test_a_deadlock_is_found_explained_and_cleared_away(run):
    """`run` says that it took seconds, and that no process is left."""
    answer = """
        import lockstep, torch.distributed as dist
        def average(x):
            if dist.get_rank() == 1:
                dist.all_reduce(x)
            return x
        lockstep.check("average", average)
    """
    shown = run(dedent(answer))
    ((_, bundle),) = shown.displays.items()
    assert bundle[MIME]["mistake"] == "deadlock", shown.error
    assert "TRY AGAIN" in shown.shown
    assert "it never ends" in shown.shown
    assert "Rank 1 waits in all_reduce #0" in shown.shown


def test_html_of_an_outcome(tiny):
    wrong = lockstep.check(tiny, 2)
    shown = html(wrong)
    assert not list(shown.iter("script"))
    assert f"it is not one: {ATTACK}" in said(shown)
    assert said(html(lockstep.check(tiny, 1))) == f"✓ PASS · {tiny} · 1 of 1"


def test_hints_lie_in_each_other_and_the_solution_behind_them_after_a_try(tiny):
    def opened_one_after_the_other(outcome) -> list[str]:
        """The summary of each hint, what is seen when it is open, and what lies behind all."""
        seen, inside = [], html(outcome)
        while (hint := next((one for one in inside.iter("details")), None)) is not None:
            summary, text, inside = hint
            seen.append(f"{said(summary)}: {said(text)}")
        return [*seen, said(inside)]

    hints = [f"Hint {number} of 3: {text}" for number, text in enumerate(HOSTILE, 1)]
    later = "The solution is offered once you have checked an answer of your own."
    offered = f"The whole solution: {tiny} = lockstep.solution({tiny!r})"
    assert opened_one_after_the_other(lockstep.check(tiny, None)) == [*hints, later]
    assert opened_one_after_the_other(lockstep.check(tiny, 2)) == [*hints, offered]
    assert opened_one_after_the_other(lockstep.check(tiny, None)) == [*hints, offered]


def test_a_pass_says_what_is_done_and_leads_to_the_next_open_exercise(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name, further in ("one", False), ("two", False), ("three", False), ("more", True):
        checks.exercise(name, lab="99", hints=("1", "2", "3"), further=further)(lambda *_: None)
    monkeypatch.setattr(progress, "exercise_address", lambda lab, name: f"#{lab}-{name}")

    def card(name: str) -> tuple[str, list[str]]:
        shown = html(lockstep.check(name, 1))
        return said(shown), [link.attrib["href"] for link in shown.iter("a")]

    assert card("two") == ("✓ PASS · two · 1 of 3 · next exercise: three →", ["#99-three"])
    assert card("three") == ("✓ PASS · three · 2 of 3 · next exercise: one →", ["#99-one"])
    assert card("one") == ("✓ PASS · one · 3 of 3 · further exercise: more →", ["#99-more"])
    assert card("more") == ("✓ PASS · more · 3 of 3", [])
    # In another kernel, what was stored counts, too.
    monkeypatch.setattr(checks, "_passed", {})
    assert card("one")[0].startswith("✓ PASS · one · 1 of 3")  # LOCKSTEP_PROGRESS is off
    monkeypatch.delenv("LOCKSTEP_PROGRESS")
    card("two")
    monkeypatch.setattr(checks, "_passed", {})
    assert card("one")[0].startswith("✓ PASS · one · 2 of 3")


def test_after_the_last_exercise_comes_the_next_lab():
    shown = html(lockstep.check("average", mean))
    assert said(shown) == "✓ PASS · average · 1 of 1 · next lab: 01 →"
    assert [link.attrib["href"] for link in shown.iter("a")] == ["01_communicators.ipynb"]


def test_what_is_the_course_s_is_not_counted():
    lockstep.solution("average")
    outcome = lockstep.check("average", checks._given["average"])
    assert said(html(outcome)).startswith("✓ PASS · average · 0 of 1")


def test_the_next_exercise_is_addressed_by_its_heading():
    assert exercise_address("01", "meet") == "#cell-id=meet-text"
    assert exercise_address("01", "nowhere") == exercise_address("99", "meet") == ""


# Help


@pytest.mark.parametrize("name", EXERCISES)
def test_every_exercise_has_three_hints(name):
    hints = EXERCISES[name].hints
    assert len(hints) == len(set(hints)) == 3
    assert all(hint.strip() for hint in hints)
    assert lockstep.check(name, None).hints == hints


def test_hints_go_on_to_the_last_which_names_the_solution():
    hints = EXERCISES["average"].hints
    first, second, third, again = (str(lockstep.hint("average")) for _ in range(4))
    assert (first, second) == (f"hint 1 of 3: {hints[0]}", f"hint 2 of 3: {hints[1]}")
    assert third.startswith(f"hint 3 of 3: {hints[2]}\n")
    assert third.endswith("The solution is offered once you have checked an answer of your own.")
    assert again == third
    lockstep.check("average", 5)
    assert str(lockstep.hint("average")).endswith("average = lockstep.solution('average')")
    assert str(lockstep.hint("meet")).startswith("hint 1 of 3")  # each exercise counts its own


def test_a_hint_of_a_level_and_of_an_unknown_exercise():
    assert str(lockstep.hint("average", 2)).startswith("hint 2 of 3")
    assert str(lockstep.hint("average", 9)) == str(lockstep.hint("average", 3))
    assert str(lockstep.hint("average", 0)) == str(lockstep.hint("average", 1))
    assert str(lockstep.hint("average")).startswith("hint 1 of 3")  # looking ahead is not walking
    assert "average, " in str(lockstep.hint("no such exercise"))


def test_the_name_that_was_meant():
    assert str(lockstep.check("avrage", None)).endswith("'avrage'; did you mean 'average'?")


def test_what_stands_in_backticks_is_code():
    hints = ("call `wait()`", "two", "three")

    @checks.exercise("ticks", lab="99", hints=hints)
    def check(*_):
        raise checks.WrongAnswer("late", "call `wait()` on `work`, not `<x>`")

    outcome = html(lockstep.check("ticks", 1))
    assert [one.text for one in outcome.iter("code")][:4] == ["wait()", "work", "<x>", "wait()"]
    assert [one.text for one in html(lockstep.hint("ticks")).iter("code")] == ["wait()"]
    assert "`" not in said(outcome)


def test_html_of_a_hint(tiny):
    assert said(html(lockstep.hint(tiny))) == f"hint 1 of 3: {ATTACK}"


def first_of_its_lab(name: str) -> bool:
    return name == next(one.name for one in EXERCISES.values() if one.lab == EXERCISES[name].lab)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_solution_shows_its_cell(name, capsys):
    paths = (ROOT / "solutions").glob(f"{EXERCISES[name].lab}_*.ipynb")
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    cells = {cell["id"]: cell for notebook in notebooks for cell in notebook["cells"]}
    lockstep.solution(name)
    assert capsys.readouterr().out == "".join(cells[name]["source"]) + "\n"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if first_of_its_lab(n) else pytest.mark.long) for n in EXERCISES],
)
def test_a_solution_passes(name):
    """Each is checked in its notebook, too, which test_notebooks.py executes."""
    outcome = lockstep.check(name, lockstep.solution(name))
    assert outcome.verdict == "PASS", str(outcome)


def test_the_solution_of_an_unknown_exercise():
    with pytest.raises(KeyError, match=r"there is no exercise .*no such.*average, "):
        lockstep.solution("no such")


def test_going_on_with_what_has_passed_or_with_the_reference(capsys):
    def answer() -> Callable:
        return lambda x: mean(x)

    mine, not_checked = answer(), answer()
    lockstep.check("average", mine)
    assert lockstep.carry_on("average", mine) is mine
    assert capsys.readouterr().out == "going on with your average\n"
    lockstep.check("average", one_too_many)
    for stuck in (not_checked, one_too_many, None):
        reference = lockstep.carry_on("average", stuck)
        assert "going on with the reference" in capsys.readouterr().out
        assert reference is not stuck
    assert lockstep.check("average", reference).verdict == "PASS"


def test_going_on_in_another_section_with_what_has_passed_last(capsys):
    reference = lockstep.carry_on("average")
    assert "going on with the reference" in capsys.readouterr().out
    assert lockstep.check("average", reference).verdict == "PASS"
    lockstep.check("average", mean)
    lockstep.check("average", one_too_many)
    assert lockstep.carry_on("average") is mean
    assert capsys.readouterr().out == "going on with your average\n"


def test_two_exercises_of_one_name():
    with pytest.raises(ValueError, match="two exercises are called 'average'"):

        @checks.exercise("average", lab="99", hints=("one", "two", "three"))
        def check(answer, draw): ...

    assert [one for one in checks.exercises() if one.name == "average"] == [EXERCISES["average"]]


# Claims


MODEL = lockstep.simulated("a model")


def test_claim():
    claim = lockstep.claim(
        "Rings win.", guess="holds", verdict="depends", because="1 < 2", stamp=MODEL
    )
    assert str(claim).splitlines() == [
        "“Rings win.”",
        "you said · holds",
        "computed · depends",
        "because  · 1 < 2",
        "simulated · a model",
    ]
    assert claim._repr_mimebundle_()["text/plain"] == str(claim)
    rows = [[cell.text for cell in row] for row in html(claim).iter("tr")]
    assert rows == [
        ["you said", "holds ✗"],
        ["computed", "depends"],
        ["because", "1 < 2"],
        [*str(MODEL).split(" · ")],
    ]
    nothing_yet = lockstep.claim(
        "Rings win.", guess=None, verdict="holds", because="1 < 2", stamp=MODEL
    )
    assert "you said · nothing yet: guess first" in str(nothing_yet)


def test_html_of_a_claim_is_escaped():
    shown = html(
        lockstep.claim(ATTACK, guess="holds", verdict="holds", because=ATTACK, stamp=MODEL)
    )
    assert not list(shown.iter("script"))
    assert said(shown).count(ATTACK) == 2


@pytest.mark.parametrize("verdict", ["true", "", "Holds"])
def test_a_claim_with_another_verdict(verdict):
    with pytest.raises(ValueError, match="is none of: holds, does not hold, depends"):
        lockstep.claim("Rings win.", guess=None, verdict=verdict, because="", stamp=MODEL)


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("Holds", "holds"),
        (" does  not hold.", "does not hold"),
        ("doesn't hold", "does not hold"),
        ("perhaps", "perhaps, and the answers are: holds, does not hold, depends"),
        (True, "True, and the answers are: holds, does not hold, depends"),
        (["x" * 1000], f"['{'x' * 58}…, and the answers are: holds, does not hold, depends"),
    ],
)
def test_any_guess_gets_an_answer(guess, said):
    claim = lockstep.claim("Rings win.", guess=guess, verdict="holds", because="", stamp=MODEL)
    assert str(claim).splitlines()[1] == f"you said · {said}"


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        (4, "predicted 4 · measured 4 · as predicted"),
        ("4", "predicted 4 · measured 4 · as predicted"),
        (torch.tensor([4]), "predicted 4 · measured 4 · as predicted"),
        ("8/2", "predicted 4 · measured 4 · as predicted"),
        ("five", "predicted five · measured 4 · a prediction is one number, such as 4 or 0.5"),
        ([4, 4], "predicted [4, 4] · measured 4 · a prediction is one number, such as 4 or 0.5"),
        ("1/0", "predicted 1/0 · measured 4 · a prediction is one number, such as 4 or 0.5"),
        ("nan", "predicted nan · measured 4 · a prediction is one number, such as 4 or 0.5"),
    ],
)
def test_any_prediction_gets_an_answer(predicted, said):
    assert str(lockstep.compare(predicted, 4)) == said


@pytest.mark.parametrize("measured", [None, (1, 2), float("nan")])
def test_where_nothing_was_measured_the_cell_above_is_named(measured):
    compared = lockstep.compare(4, measured, "s")
    assert str(compared) == "predicted 4 s · nothing was measured: run the cell above"
    assert said(html(compared)) == str(compared)  # and no sign


def test_a_prediction_with_its_unit():
    compared = lockstep.compare("2 GB/s", 4.0, "GB/s")
    assert str(compared) == "predicted 2 GB/s · measured 4 GB/s · 2 times the prediction"


def test_what_a_formula_says_is_not_called_measured():
    assert str(lockstep.compare(2, published=3, unit="s")).startswith(
        "predicted 2 s · published 3 s"
    )
    said = lockstep.compare(3, computed=3)
    assert str(said) == "predicted 3 · computed 3 · as predicted"
    compare: Any = lockstep.compare
    for neither_or_both in {}, {"measured": 3, "computed": 3}:
        with pytest.raises(TypeError, match="exactly one of"):
            compare(3, **neither_or_both)


def test_the_courses_answer_passes_but_is_not_counted_as_the_learners(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LOCKSTEP_PROGRESS", raising=False)
    reference = lockstep.carry_on("local_gpu", None)
    outcome = lockstep.check("local_gpu", reference)
    assert outcome.verdict == "PASS" and "not counted" in outcome.note
    assert "✓ local_gpu" not in str(lockstep.progress("01"))

    def own(env):
        return int(env["LOCAL_RANK"])

    assert lockstep.check("local_gpu", own).note == ""
    assert "✓ local_gpu" in str(lockstep.progress("01"))
