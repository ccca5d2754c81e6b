"""A learner's prediction beside the measurement."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

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
