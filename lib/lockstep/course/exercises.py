"""Exercises as a learner meets them: `check("name", answer)`, hints, solutions.

A check never raises, and what is wrong it calls by its name. How it comes to its verdict is the
business of `judging`: its `@judged(...)` registers an exercise here, as a function of the answer
and of a source of random numbers, which raises `WrongAnswer`, `NotJudged`, or nothing. `hint`,
`solution` and `carry_on` are for those who are stuck.
"""

from __future__ import annotations

import difflib
import html
import json
import linecache
import random
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..base.paths import SOLUTIONS
from ..base.style import DONE, ERROR, GREY
from .progress import ExerciseStanding, LabExercises, Progress, link, record, way_on

PASS, TRY_AGAIN, NOT_YET, NOT_JUDGED = "PASS", "TRY AGAIN", "NOT YET", "NOT JUDGED"
MIME = "application/vnd.lockstep.check+json"
_WRAP = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
_BLANK = "the blank is still there"
_SOLUTION = "The whole solution: "
_LATER = "The solution is offered once you have checked an answer of your own."

Check = Callable[[Any, random.Random], None]


class WrongAnswer(Exception):
    """An answer that is wrong in a way that the check recognises: `hint` names the mistake.

    `mistake` is a short name for it, which a lab's wrong answers (solutions/source/wrong) use.
    """

    def __init__(self, mistake: str, hint: str):
        super().__init__(hint)
        self.mistake = mistake
        self.hint = hint


class NotJudged(Exception):
    """There is no verdict, whatever the answer is: the message says why."""


@dataclass(frozen=True)
class Exercise:
    """name: also of the function or variable that the learner fills in, and of its cell.
    lab: "01". hints: three, each giving away more; the last says the way without the code.
    further: it is no part of the lab's core."""

    name: str
    lab: str
    hints: tuple[str, str, str]
    check: Check = field(repr=False)
    further: bool = False


_exercises: dict[str, Exercise] = {}
_passed: dict[str, Any] = {}  # by exercise: the answer that passed last
_given: dict[str, Any] = {}  # by exercise: the course's answer, handed out or in another
_hinted: dict[str, int] = {}  # by exercise: the hints shown in this kernel
_tried: set[str] = set()  # exercises with an answer that failed: their solution is offered
_recipient: Callable[[str, Any], CheckOutcome] | None = None  # of answers that are not judged here


def exercise(
    name: str, *, lab: str, hints: tuple[str, str, str], further: bool = False
) -> Callable[[Check], Check]:
    """Register an exercise and its check. Raises ValueError for a name that is taken."""

    def register(function: Check) -> Check:
        if name in _exercises:
            raise ValueError(f"two exercises are called {name!r}")
        _exercises[name] = Exercise(name, lab, hints, function, further)
        return function

    return register


def exercises() -> tuple[Exercise, ...]:
    """Return all exercises of the course, in order."""
    return tuple(_exercises.values())


# ── What a learner calls ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check: verdict is PASS, TRY AGAIN, NOT YET or NOT JUDGED.

    mistake: its name, "" if there is none.
    seed: `check(name, answer, seed=...)` tries the same ranks, sizes and numbers again.
    onward: after a pass, what of the lab is done and what comes next, as HTML.
    """

    exercise: str
    verdict: str
    hint: str = ""
    mistake: str = ""
    hints: tuple[str, ...] = field(default=(), repr=False)
    seed: int = 0
    note: str = ""
    onward: str = field(default="", repr=False)

    def __str__(self) -> str:
        repeat = f" (seed {self.seed})" if self.verdict == TRY_AGAIN else ""
        lines = [f"{self.verdict} · {self.exercise}{repeat}", self.hint, self.note]
        if self.hints:
            lines.append(f"stuck? lockstep.hint({self.exercise!r})")
        return "\n".join(line for line in lines if line)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        sign, colour = {
            PASS: ("✓", DONE),
            TRY_AGAIN: ("✗", ERROR),
            NOT_YET: ("…", GREY),
            NOT_JUDGED: ("…", GREY),
        }[self.verdict]
        repeat = f" (seed {self.seed})" if self.verdict == TRY_AGAIN else ""
        first, *report = self.hint.split("\n", 1)  # a hint is one line, what ranks did is more
        said = [f"<div>{_as_html(text)}</div>" for text in (first, self.note) if text]
        if report:
            said.insert(1, f'<pre style="{_WRAP}">{html.escape(report[0])}</pre>')
        box = (
            f'<div role="status" style="border-left:4px solid {colour};padding:2px 10px">'
            f"<b>{sign} {self.verdict}</b> · {html.escape(self.exercise)}{repeat}{self.onward}"
            f"{''.join(said)}{self._help()}</div>"
        )
        told = {"exercise": self.exercise, "verdict": self.verdict, "mistake": self.mistake}
        return {"text/plain": str(self), "text/html": box, MIME: told}

    def _help(self) -> str:
        """Return the hints: each is seen once the one before it is open, and last the solution."""
        call = html.escape(_offered(self.exercise))
        inner = f"<div>{f'{_SOLUTION}<code>{call}</code>' if call else _LATER}</div>"
        for number, text in reversed([*enumerate(self.hints, 1)]):
            inner = (
                f"<details><summary>Hint {number} of {len(self.hints)}</summary>"
                f'<div style="padding:2px 0 6px 16px">{_as_html(text)}</div>{inner}</details>'
            )
        return inner if self.hints else ""


def check(name: str, answer: Any, *, seed: int | None = None) -> CheckOutcome:
    """Check the answer to an exercise. Never raises; the outcome draws itself.

    A function that still raises NotImplementedError, or None, is NOT YET answered. Ranks, sizes
    and numbers are drawn anew at each call; an outcome's `seed` repeats them.
    """
    if _recipient is not None:
        return _recipient(name, answer)
    if name not in _exercises:
        return CheckOutcome(name, NOT_YET, _unknown(name))
    one = _exercises[name]
    seed = secrets.randbelow(10_000) if seed is None else seed
    verdict, hint, mistake = _judge(one, answer, seed)
    if verdict == PASS:
        _passed[name] = answer
        if name in _given and answer is _given[name]:
            note = "this is the course's answer, or asks it: it is not counted as yours"
        else:
            note = record(one.lab, name, "passed")
        return CheckOutcome(name, PASS, seed=seed, note=note, onward=_onward(one))
    note = record(one.lab, name, "tried") if verdict == TRY_AGAIN else ""
    if verdict == TRY_AGAIN:
        _tried.add(name)
    return CheckOutcome(name, verdict, hint, mistake, one.hints, seed, note)


def hand_answers_to(recipient: Callable[[str, Any], CheckOutcome]) -> None:
    """Have `check` give each exercise's name and answer to this function, which returns the
    outcome to show, and judge nothing in this process."""
    global _recipient
    _recipient = recipient


def _onward(one: Exercise) -> str:
    """Say how much of the lab's core is done, with a link to the first open exercise behind this
    one, or where there is none to the next lab."""
    lab = [other for other in _exercises.values() if other.lab == one.lab]
    core = [other.name for other in lab if not other.further]
    done = {name for name, answer in _passed.items() if answer is not _given.get(name)}
    stored = Progress([LabExercises(one.lab, "", tuple(other.name for other in lab))]).now()
    if not stored.off:
        done |= {standing.name for standing in stored.labs[0].exercises if standing.passed}
    said = f" · {sum(name in done for name in core)} of {len(core)}" if core else ""
    at = lab.index(one)
    ahead = [other for other in lab[at + 1 :] + lab[:at] if other.name not in done]
    words, address = way_on(
        one.lab, [ExerciseStanding(other.name, further=other.further) for other in ahead]
    )
    if address:
        said += f" · {link(words, address)}"
    return said


def _offered(name: str) -> str:
    """Return the call that shows the solution, "" before anything was tried."""
    return f"{name} = lockstep.solution({name!r})" if name in _tried else ""


def _judge(one: Exercise, answer: Any, seed: int) -> tuple[str, str, str]:
    """Return the verdict, the hint and the mistake."""
    if answer is None:
        return NOT_YET, _BLANK, ""
    try:
        one.check(answer, random.Random(seed))
    except WrongAnswer as wrong:
        return TRY_AGAIN, wrong.hint, wrong.mistake
    except NotImplementedError:
        return NOT_YET, _BLANK, ""
    except NotJudged as reason:
        return NOT_JUDGED, str(reason), ""
    except Exception as error:
        return NOT_JUDGED, f"the check itself failed ({type(error).__name__}: {error})", ""
    return PASS, "", ""


@dataclass(frozen=True)
class Hint:
    """One hint, as text and in a notebook."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": f"<div>{_as_html(self.text)}</div>"}


def hint(name: str, level: int | None = None) -> Hint:
    """Return the next hint for an exercise, or the one of a level from 1 (what to think of) to 3
    (the whole way, without the code). Never raises."""
    if name not in _exercises:
        return Hint(_unknown(name))
    hints = _exercises[name].hints
    if level is None:
        level = _hinted[name] = min(_hinted.get(name, 0) + 1, len(hints))
    level = min(max(level, 1), len(hints))
    text = f"hint {level} of {len(hints)}: {hints[level - 1]}"
    if level == len(hints):
        call = _offered(name)
        text += f"\n{_SOLUTION}{call}" if call else f"\n{_LATER}"
    return Hint(text)


def solution(name: str) -> Any:
    """Show the solution of an exercise and return it, so that you can go on with it.

    Raises KeyError for an unknown exercise and FileNotFoundError where the folder `solutions/`
    of the course is not there.
    """
    code, value = _reference(name)
    record(_exercises[name].lab, name, "solution")
    print(code)
    return value


def carry_on(name: str, answer: Any = ...) -> Any:
    """Return the learner's answer if it has passed its check, else the reference.

    Cells that build on an exercise use it, so that nobody who is stuck has to stop there. Without
    `answer`, as in a later section, it is the answer that passed last. Prints which one it
    returns.
    """
    if answer is ...:
        answer = _passed.get(name)
    if name in _given and answer is _given[name]:
        print(f"going on with the course's {name}")
        return answer
    if name in _passed and _passed[name] is answer:
        print(f"going on with your {name}")
        return answer
    print(f"no {name} of yours has passed its check in this kernel: going on with the reference")
    return _reference(name)[1]


def _reference(name: str) -> tuple[str, Any]:
    """Return the code of an exercise's cell in the solutions, and what it defines."""
    if name not in _exercises:
        raise KeyError(_unknown(name))
    number = _exercises[name].lab
    cells = [
        cell
        for path in SOLUTIONS.glob(f"{number}_*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
    if not cells:
        raise FileNotFoundError(f"there is no solution of lab {number} in {SOLUTIONS}")
    code = next("".join(cell["source"]) for cell in cells if cell["id"] == name)
    filename = solution_file(name)
    linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
    namespace: dict[str, Any] = {"__name__": "__main__"}  # it travels to ranks by value
    exec(compile(code, filename, "exec", dont_inherit=True), namespace)
    _given[name] = namespace[name]
    return code, namespace[name]


def solution_file(name: str) -> str:
    """Return the name under which the code of an exercise's solution is compiled."""
    return f"solution of {name}"


def shown() -> set[str]:
    """Return the exercises whose solutions were asked for in this process."""
    return set(_given)


def borrowed(name: str, answer: Any) -> None:
    """Note that this answer has the course's in it, and is not the learner's own."""
    _given[name] = answer


def _as_html(text: str) -> str:
    """Return a hint as HTML: what stands in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(str(name), _exercises, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(_exercises))}"
    return f"there is no exercise {name!r}; {hint}"
