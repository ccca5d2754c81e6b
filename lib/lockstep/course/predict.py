"""A learner's prediction beside the measurement, and a sentence beside what was measured."""

from __future__ import annotations

import contextlib
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..base.formatting import in_one_line, number, percent
from ..base.provenance import Provenance, recorded, required
from ..figures.number_line import images, number_line

_LONGEST = 60  # characters of a wrong answer that are shown
RECORDING = "claims/h200.json"  # verdicts of a GPU, by sentence
_CLOSE = 0.25  # the part of what was measured by which a good prediction of it may be off


@dataclass(frozen=True)
class Comparison:
    """A prediction and what came out; unit "" for counts and values, which must be exact.

    predicted: a number, None where there is none yet, or what was typed and is no number.
    value: None where a cell that was to give it has not run, or gave no number.
    way: "measured", "computed" where a formula or a model says it, "published" where others do.
    """

    predicted: float | str | None
    value: float | None
    unit: str = ""
    way: str = "measured"

    @property
    def verdict(self) -> str:
        """Words for the difference: how a person would say it."""
        if self.value is None:
            return f"nothing was {self.way}: run the cell above"
        if self.predicted is None:
            return "no prediction yet: write a number first, it is worth it"
        if isinstance(self.predicted, str):
            return "a prediction is one number, such as 4 or 0.5"
        if not self.unit or not self.predicted or not self.value:
            return "as predicted" if self.predicted == self.value else "not as predicted"
        if abs(self.predicted - self.value) <= _CLOSE * abs(self.value):
            return f"as predicted, within {percent(_CLOSE)}"
        return f"{self.value / self.predicted:.2g} times the prediction"

    @property
    def is_answer(self) -> bool:
        """True if a number was predicted."""
        return isinstance(self.predicted, float)

    @property
    def sign(self) -> str:
        """✓ or ✗, "" where nothing was predicted."""
        if not self.is_answer or self.value is None:
            return ""
        return "✓" if self.verdict.startswith("as predicted") else "✗"

    @property
    def picture(self) -> dict[str, str]:
        """Both numbers on a line, by theme; {} where one is missing."""
        if not isinstance(self.predicted, float) or self.value is None:
            return {}
        near = (self.value * (1 - _CLOSE), self.value * (1 + _CLOSE)) if self.unit else None
        return number_line({"predicted": self.predicted, self.way: self.value}, self.unit, near)

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        predicted = "—" if self.predicted is None else self.predicted
        if isinstance(predicted, float):
            predicted = f"{self._digits(predicted)}{unit}"
        found = "" if self.value is None else f"{self.way} {self._digits(self.value)}{unit} · "
        return f"predicted {predicted} · {found}{self.verdict}"

    def _digits(self, value: float) -> str:
        """Return the number as text; what must be exact is shown so."""
        return number(value) if self.unit or value == round(value, 0) else f"{value:g}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        said = f"{self.sign} {self}".strip()
        image = images(self.picture, f"number line: {self}")
        return {"text/plain": str(self), "text/html": f"<div>{html.escape(said)}</div>{image}"}


def compare(
    predicted: Any,
    measured: Any = ...,
    unit: str = "",
    *,
    computed: Any = ...,
    published: Any = ...,
) -> Comparison:
    """Put a prediction beside what was measured, what a formula or a model gives, or what others
    published.

    predicted: what the learner wrote: a number, a tensor with one, or text that says one ("4",
    "1/3", "1e-3 s"); anything else gets a sentence, and never an exception. So does what was
    measured where it is no number, as the cell above has not run. unit: of a quantity
    that is measured with scatter ("s", "GB/s"); "" for what must be exact.
    Raises TypeError unless it gets one of measured, computed and published.
    """
    said = _number(predicted, unit)
    ways = {"measured": measured, "computed": computed, "published": published}
    given = [(way, value) for way, value in ways.items() if value is not ...]
    if len(given) != 1:
        raise TypeError("compare() takes exactly one of measured, computed and published")
    way, value = given[0]
    return Comparison(said, value if isinstance(_number(value, ""), float) else None, unit, way)


def _number(said: Any, unit: str) -> float | str | None:
    """Return the number that somebody has written; their own words where that is none."""
    if said is None:
        return None
    with contextlib.suppress(Exception):  # whatever its float() raises
        if not isinstance(said, str):
            number = float(said)
        else:
            digits = said.strip().removesuffix(unit).replace("_", "").strip()
            number = float(Fraction(digits)) if "/" in digits else float(digits)
        if math.isfinite(number):
            return number
    return _typed(said)


VERDICTS = ("holds", "does not hold", "depends")


@dataclass(frozen=True)
class Claim:
    """A sentence that people say, what the learner thought of it, and what was measured."""

    sentence: str
    guess: str | None
    verdict: str
    because: str
    stamps: tuple[Provenance, ...]

    @property
    def way(self) -> str:
        """How the verdict came about: "measured", "computed" by a model or a formula, or both."""
        kinds = {stamp.kind for stamp in self.stamps}
        if "simulated" not in kinds:
            return "measured"
        return "computed" if kinds == {"simulated"} else "measured and computed"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The lines of a claim: what each is about, and what it says."""
        said = "nothing yet: guess first, it is worth it" if self.guess is None else self.guess
        if self.guess is not None and self.guess not in VERDICTS:
            said = f"{self.guess}, and the answers are: {', '.join(VERDICTS)}"
        return [("you said", said), (self.way, self.verdict), ("because", self.because)] + [
            (stamp.kind, stamp.source) for stamp in self.stamps
        ]

    @property
    def is_answer(self) -> bool:
        """True if the guess is one of the verdicts."""
        return self.guess in VERDICTS

    @property
    def sign(self) -> str:
        """✓ or ✗, "" where nothing was guessed."""
        if not self.is_answer:
            return ""
        return "✓" if self.guess == self.verdict else "✗"

    def __str__(self) -> str:
        return "\n".join(
            [f"“{self.sentence}”", *(f"{name:<8} · {text}" for name, text in self.rows)]
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        (about, said), *others = self.rows
        rows = "".join(
            f"<tr><th scope='row' style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left;overflow-wrap:anywhere'>{html.escape(text)}</td></tr>"
            for name, text in [(about, f"{said} {self.sign}".rstrip()), *others]
        )
        quoted = f"<div><i>“{html.escape(self.sentence)}”</i></div><table>{rows}</table>"
        return {"text/plain": str(self), "text/html": quoted}


def claim(
    sentence: str,
    *,
    guess: Any,
    verdict: str,
    because: str,
    stamp: Provenance | Sequence[Provenance],
) -> Claim:
    """Put a learner's guess about a sentence beside what a measurement said, or a model.

    verdict: "holds", "does not hold" or "depends". guess: one of these, None for none yet; another
    answer is shown with a sentence. because: the numbers that say so. stamp: where they come from,
    one or several. What a virtual GPU has computed stands beside the verdict of a real one, where
    that was recorded.
    Raises ValueError for another verdict.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"{verdict!r} is none of: {', '.join(VERDICTS)}")
    found = Claim(sentence, _word(guess), verdict, because, tuple(required(stamp, "the claim")))
    recording = recorded(RECORDING) if found.way == "computed" else None
    measured = recording.content["claims"].get(sentence) if recording else None
    if recording is None or measured is None:
        return found
    return replace(
        found,
        verdict=measured["verdict"],
        because=f"on a GPU: {measured['because']}. Computed: {because}, so it {verdict}",
        stamps=(recording.stamp, *found.stamps),
    )


def _word(guess: Any) -> str | None:
    """Return the verdict that was typed, in whatever case; else the guess as it was typed."""
    if guess is None:
        return None
    said = _typed(guess)
    word = " ".join(said.lower().replace("doesn't", "does not").split()).strip(".!")
    return word if word in VERDICTS else said


def _typed(said: Any) -> str:
    text = in_one_line(said if isinstance(said, str) else repr(said))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
