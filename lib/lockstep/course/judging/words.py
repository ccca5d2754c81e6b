"""The words of a lab: each exercise's hints and the sentence of each mistake, and what is said of
each prediction, from `labs/labNN.toml`.

What may go wrong in every exercise is said in `words.toml` here, and of sums over ranks in
`labs/sums.toml`, unless the exercise says it itself.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_GENERAL = Path(__file__).with_suffix(".toml")
PREDICTIONS = "predictions"  # the table that is no exercise's
_LABS = Path(__file__).parents[1] / "labs"
_SUMS = _LABS / "sums.toml"


@dataclass(frozen=True)
class Words:
    """hints: three, each giving away more. sentences: by mistake. usual: the three to expect."""

    hints: tuple[str, str, str]
    sentences: dict[str, str]
    usual: tuple[str, ...] = ()

    def require(self, mistake: str) -> None:
        """Raise ValueError where there is no sentence for a mistake."""
        if self._sentence(mistake) is None:
            raise ValueError(f"there is no sentence for {mistake!r}")

    def is_special(self, mistake: str) -> bool:
        """Whether there is a sentence for a mistake that not every exercise may have."""
        return self._sentence(mistake) is not None and mistake not in _read(_GENERAL)

    def say(self, mistake: str, known: dict[str, Any]) -> str:
        sentence = self._sentence(mistake)
        assert sentence is not None, mistake
        lines = [line.strip() for line in sentence.splitlines()]
        if "contrast" in known and "{contrast}" not in sentence:
            lines[0] += "{contrast}"
        return "\n".join(lines).format_map(known).strip()

    def _sentence(self, mistake: str) -> str | None:
        return (_read(_GENERAL) | _read(_SUMS) | self.sentences).get(mistake)


def of(lab: str, exercise: str) -> Words:
    table = _read(_LABS / f"lab{lab}.toml")[exercise]
    first, second, third = table["hints"]
    usual = tuple(table.get("usual", ()))
    return Words((first, second, third), table.get("mistakes", {}), usual)


def predictions(lab: str) -> dict[str, str]:
    """Return what whoever gives the lab says of each prediction, a sentence by the id of its cell.

    None are there for a lab without words.
    """
    path = _LABS / f"lab{lab}.toml"
    found: dict[str, str] = _read(path).get(PREDICTIONS, {}) if path.exists() else {}
    return found


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
