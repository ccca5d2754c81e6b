"""The answers that the course keeps beside a lab's source: wrong ones, and unusual right ones.

`solutions/source/wrong/NN.py` has wrong answers, `right/NN.py` right ones in another style than the
solution's. Each is the exercise's whole function (or class, or variable) under its exercise and its
name, which for a wrong answer is the mistake; several may have made the same one. What stands above
the first is there for all:

    # %% average: returns-none
    def average(x):
        return dist.all_reduce(x)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

_HEADER = re.compile(r"# %% (?P<exercise>\w+): (?P<name>[\w-]+)")


class SourceError(ValueError):
    """A lab's source breaks a rule of its format; the message says where and what."""


@dataclass(frozen=True)
class Answer:
    """A program that defines an exercise's answer; it does not run before somebody asks for it."""

    exercise: str
    name: str
    code: str
    file: str

    def value(self) -> Any:
        namespace: dict[str, Any] = {"__name__": "__main__"}  # it travels to ranks by value
        exec(compile(self.code, self.file, "exec", dont_inherit=True), namespace)
        return namespace[self.exercise]


def answers(sources: Path, kind: str, lab: str) -> dict[str, list[Answer]]:
    """Return a lab's "wrong" or "right" answers in this folder, by exercise; none where the lab has
    no file of that kind.

    Raises SourceError.
    """
    path = sources / kind / f"{lab}.py"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    starts = [at for at, line in enumerate(lines) if line.startswith("# %%")]
    found: dict[str, list[Answer]] = {}
    for start, end in pairwise([*starts, len(lines)]):
        where = f"{kind}/{path.name}, line {start + 1}"
        header = _HEADER.fullmatch(lines[start])
        if header is None:
            raise SourceError(f"{where}: a header is # %% exercise: name, not {lines[start]}")
        exercise, name = header["exercise"], header["name"]
        # Empty lines for the answers between, so that errors name the file's own lines.
        code = lines[: starts[0]] + [""] * (start - starts[0]) + lines[start:end]
        if not any(re.match(rf"(def |class )?{exercise}\b", line) for line in lines[start:end]):
            raise SourceError(f"{where}: what follows does not define {exercise}")
        one = Answer(exercise, name, "\n".join(code) + "\n", f"{kind}/{path.name}")
        found.setdefault(exercise, []).append(one)
    return found
