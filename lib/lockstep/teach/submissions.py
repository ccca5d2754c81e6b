"""Learners' notebooks in a folder: whose each is, and of which lab.

A learner is a name in the folder: `ada.ipynb`, or `ada/…/01_communicators.ipynb`, as in the folders
of nbgrader (`submitted/ada/lab01/`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.formatting import in_one_line
from ..base.paths import LABS as BLANK
from ..base.paths import SOLUTIONS
from ..course.exercises import exercises
from ..course.syllabus import LABS

_MOST_BYTES = 20_000_000
_LONGEST = 300  # characters of what is quoted of a page
_NUMBER = re.compile(r"(?<!\d)(\d\d)_")
_DOUBTS = {  # what a learner's code has no need of, and somebody who looks for a way round has
    r"lockstep\.(course|launch|teach)|from lockstep import (course|launch)": "course internals",
    r"_getframe|inspect\.(stack|currentframe)|gc\.get_": "the frames or objects of other code",
    r"\bctypes\b|/proc/": "other processes' memory",
    r"lockstep\.check\s*=|setattr\(\s*lockstep": "lockstep itself",
    r"progress\.jsonl|LOCKSTEP_PROGRESS": "the progress file",
    r"lockstep\.solution\(": "lockstep.solution",
}


class BadSubmission(ValueError):
    """A file that cannot be run; the message says why."""


@dataclass(frozen=True)
class Submission:
    """learner: a name of the folder. lab: "01", "" where it is not known. notebook: its text, ""
    where `problem` says why there is none. code: all that it executes; two with the same do the
    same. notes: what a teacher should look at."""

    learner: str
    path: Path
    lab: str
    notebook: str = field(default="", repr=False)
    code: str = field(default="", repr=False)
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def executes(self) -> tuple[str, str]:
        """The key that two notebooks share if executing one of them is enough."""
        return self.lab, self.code or str(self.path)


def find(folder: Path) -> Iterator[Submission]:
    """Yield all notebooks below `folder`, by learner and name. Links are not followed."""
    for path in sorted(folder.rglob("*.ipynb")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if hidden or not path.is_file() or path.is_symlink():
            continue
        if any(parent.is_symlink() for parent in path.parents if folder in parent.parents):
            continue
        learner = inside.parts[0] if len(inside.parts) > 1 else path.stem
        yield _read(learner, path)


def _read(learner: str, path: Path) -> Submission:
    lab = ""
    try:
        cells, text, code = _cells(path)
        lab = _lab(path, cells)
        if not lab:
            raise BadSubmission("it has no exercise of the course")
    except BadSubmission as error:
        return Submission(learner, path, lab, problem=str(error))
    notes = *_notes(lab, cells), *_card(text)
    return Submission(learner, path, lab, text, code, notes=notes)


def _cells(path: Path) -> tuple[dict[str, str], str, str]:
    """Return the code of each cell by its id, the file's text, and all that it executes.

    Raises BadSubmission.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadSubmission(f"it is larger than {_MOST_BYTES // 10**6} MB")
        text = path.read_text(encoding="utf-8")
        content: Any = json.loads(text)
        found, executed = {}, []
        for at, cell in enumerate(content["cells"]):
            if cell["cell_type"] == "code":
                source = cell["source"]
                source = source if isinstance(source, str) else "".join(source)
                found[str(cell.get("id", at))] = source
                executed.append((source, cell.get("metadata", {}).get("tags")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, BadSubmission):
            raise
        raise BadSubmission(f"it is not a notebook ({type(error).__name__})") from None
    return found, text, repr(executed)


def _lab(path: Path, cells: dict[str, str]) -> str:
    """Return the lab by a notebook's exercises; by its name where two labs have as many of them."""
    named = _NUMBER.search(path.name)
    counts = {lab.number: 0 for lab in LABS}
    for one in exercises():
        defined = re.compile(rf"^(def |class )?{one.name}\b", re.MULTILINE)
        counts[one.lab] += one.name in cells or any(map(defined.search, cells.values()))
    most = max(counts.values())
    best = [number for number, count in counts.items() if count == most]
    if not most:
        return ""
    return named[1] if named and named[1] in best else best[0]


def _notes(lab: str, cells: dict[str, str]) -> Iterator[str]:
    blank, solved = _published(BLANK, lab), _published(SOLUTIONS, lab)
    own = "\n".join(code for code in cells.values() if code not in blank.values())
    for pattern, what in _DOUBTS.items():
        if re.search(pattern, own):
            yield f"its code touches {what}"
    copies = [
        one.name
        for one in exercises()
        if one.lab == lab and _same(cells.get(one.name, ""), solved.get(one.name, ""))
    ]
    if copies:
        yield f"identical to the published solution: {', '.join(copies)}"
    yield from _page(cells.get("page", ""))


def _page(cell: str) -> Iterator[str]:
    """Yield what a learner wrote into the capstone's page, a dictionary of texts."""
    try:
        found = [one for one in ast.walk(ast.parse(cell)) if isinstance(one, ast.Dict)]
        written = ast.literal_eval(found[0]) if found else {}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for name, text in written.items():
        if text:
            yield f"{name}: “{in_one_line(text)[:_LONGEST]}”"


def _card(notebook: str) -> Iterator[str]:
    """Yield the rows of the capstone's card as a learner's notebook was saved with it: what stands
    below the line in the output of the cell `yours`."""
    try:
        mine = [cell for cell in json.loads(notebook)["cells"] if cell.get("id") == "yours"]
        data = [one.get("data", {}) for cell in mine for one in cell["outputs"]]
        said = ["".join(one.get("text/plain", "")) for one in data]
    except (KeyError, TypeError, AttributeError):
        return
    for card in said:
        rows = card.rpartition("──")[2].splitlines()
        if line := "; ".join(" ".join(row.split()) for row in rows if row.strip()):
            yield f"card, as saved: “{in_one_line(line)[: 2 * _LONGEST]}”"


def _published(folder: Path, lab: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in folder.glob(f"{lab}_*.ipynb"):
        found |= _cells(path)[0]
    return found


def _same(mine: str, theirs: str) -> bool:
    """Return whether two programs differ in nothing but comments and layout."""
    try:
        return bool(theirs) and ast.dump(ast.parse(mine)) == ast.dump(ast.parse(theirs))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
