"""Checks of exercises: they never raise, and what is wrong they call by its name.

A lab's module registers a check with `@exercise("name")`; the check calls the learner's answer,
mostly on ranks, and raises `WrongAnswer` with a hint for each mistake that it recognises.
`check("name", answer)` in the notebook runs it and shows PASS, TRY AGAIN or NOT YET.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .launch import JobFailed

PASS, TRY_AGAIN, NOT_YET = "PASS", "TRY AGAIN", "NOT YET"


class WrongAnswer(Exception):
    """An answer that is wrong in a way that the check recognises: `hint` names the mistake.

    `mistake` is a short name for it, which tests and the wrong answers in a lab's source use.
    """

    def __init__(self, mistake: str, hint: str):
        super().__init__(hint)
        self.mistake = mistake
        self.hint = hint


@dataclass(frozen=True)
class Outcome:
    """What became of a check: verdict is PASS, TRY AGAIN or NOT YET; mistake is "" if none."""

    exercise: str
    verdict: str
    hint: str = ""
    mistake: str = ""

    def __str__(self) -> str:
        return f"{self.verdict} · {self.exercise}" + (f"\n{self.hint}" if self.hint else "")

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        sign, colour = {
            PASS: ("✓", "#009E73"),
            TRY_AGAIN: ("✗", "#D55E00"),
            NOT_YET: ("…", "#666666"),
        }[self.verdict]
        hint = f"<div>{html.escape(self.hint)}</div>" if self.hint else ""
        box = (
            f'<div style="border-left:4px solid {colour};padding:2px 10px">'
            f"<b>{sign} {self.verdict}</b> · {html.escape(self.exercise)}{hint}</div>"
        )
        return {"text/plain": str(self), "text/html": box}


Check = Callable[[Any], None]
_checks: dict[str, Check] = {}


def exercise(name: str) -> Callable[[Check], Check]:
    """Register the check of the exercise `name`."""

    def register(function: Check) -> Check:
        _checks[name] = function
        return function

    return register


def check(name: str, answer: Any) -> Outcome:
    """Check the answer to an exercise. Never raises; the outcome draws itself.

    A function that still raises NotImplementedError is NOT YET answered.
    """
    if name not in _checks:
        known = ", ".join(sorted(_checks))
        return Outcome(name, NOT_YET, f"there is no exercise {name!r}; there are: {known}")
    try:
        _checks[name](answer)
    except WrongAnswer as wrong:
        return Outcome(name, TRY_AGAIN, wrong.hint, wrong.mistake)
    except NotImplementedError:
        return Outcome(name, NOT_YET, "the blank is still there")
    except JobFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, NotImplementedError):
            return Outcome(name, NOT_YET, "the blank is still there")
        return Outcome(name, TRY_AGAIN, f"the ranks failed:\n{failed}", "failed")
    except Exception as error:
        return Outcome(name, TRY_AGAIN, f"{type(error).__name__}: {error}", "raised")
    return Outcome(name, PASS)
