"""A learner's prediction beside the measurement, and a sentence beside what was measured."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..stamps import Stamp

_CLOSE = 0.25  # relative difference up to which a prediction of a measured quantity is good


@dataclass(frozen=True)
class Comparison:
    """A prediction and what was measured; unit "" for counts and values, which must be exact."""

    predicted: float | None
    measured: float
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Words for the difference: how a person would say it."""
        if self.predicted is None:
            return "no prediction yet: write a number first, it is worth it"
        if not self.unit:
            return "as predicted" if self.predicted == self.measured else "not as predicted"
        if not self.predicted or not self.measured:
            return "as predicted" if self.predicted == self.measured else "not as predicted"
        ratio = self.measured / self.predicted
        if abs(ratio - 1) <= _CLOSE:
            return f"as predicted, within {_CLOSE:.0%}"
        return f"{ratio:.2g} times the prediction"

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        predicted = "—" if self.predicted is None else f"{self.predicted:g}{unit}"
        return f"predicted {predicted} · measured {self.measured:.4g}{unit} · {self.verdict}"

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": f"<div>{html.escape(str(self))}</div>"}


def compare(predicted: float | None, measured: float, unit: str = "") -> Comparison:
    """Put a prediction beside what was measured.

    unit: of a quantity that is measured with scatter ("s", "GB/s"); "" for what must be exact.
    """
    return Comparison(predicted, measured, unit)


VERDICTS = ("holds", "does not hold", "depends")


@dataclass(frozen=True)
class Claim:
    """A sentence that people say, what the learner thought of it, and what was measured."""

    sentence: str
    guess: str | None
    verdict: str
    because: str
    stamps: tuple[Stamp, ...]

    def _lines(self) -> list[tuple[str, str]]:
        said = "nothing yet: guess first, it is worth it" if self.guess is None else self.guess
        return [("you said", said), ("measured", self.verdict), ("because", self.because)] + [
            (stamp.kind, stamp.source) for stamp in self.stamps
        ]

    def __str__(self) -> str:
        return "\n".join(
            [f"“{self.sentence}”", *(f"{name:<8} · {text}" for name, text in self._lines())]
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        rows = "".join(
            f"<tr><th scope='row' style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self._lines()
        )
        quoted = f"<div><i>“{html.escape(self.sentence)}”</i></div><table>{rows}</table>"
        return {"text/plain": str(self), "text/html": quoted}


def claim(
    sentence: str, *, guess: str | None, verdict: str, because: str, stamp: Stamp | Sequence[Stamp]
) -> Claim:
    """Put a learner's guess about a sentence beside what a measurement said.

    guess (None: none yet) and verdict: "holds", "does not hold" or "depends". because: the
    numbers that say so. stamp: where they come from, one or several.
    Raises ValueError for another word.
    """
    for word in (guess, verdict):
        if word is not None and word not in VERDICTS:
            raise ValueError(f"{word!r} is none of: {', '.join(VERDICTS)}")
    stamps = (stamp,) if isinstance(stamp, Stamp) else tuple(stamp)
    return Claim(sentence, guess, verdict, because, stamps)
