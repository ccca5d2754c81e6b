"""A lab as it is written.

`solutions/source/NN_topic.py` (py:percent) is the only place where a lab is edited. Every cell has
an id of its own in its header (`# %% id="first-ranks"`), so that the notebooks are the same bytes
whenever the source is. Lab and solution differ in two things. An exercise stands between markers;
in the lab it is a `raise NotImplementedError`:

    # BEGIN SOLUTION
    dist.all_reduce(x)
    # END SOLUTION

And a cell tagged `prediction` or `guess` ends with the solution's value, which in the lab is None.
A comment above it that begins with "your number" is what the lab says there; why the value is right
stands behind it, or within its brackets:

    # %% id="idle-prediction" tags=["prediction"]
    # your number, between 0 and 1
    prediction = 3 / 11  # three units of eleven

A second title (`# `), the first line of its cell, begins what goes further than the lab's core: it
is a notebook of its own, `NN_topic_further.ipynb`, with the code of the lab's first cells below its
title, except cells tagged `unpublished`. A cell tagged `plumbing` has its code hidden.

Its answers, wrong ones and right ones in another style, are `course.judging.catalogue`'s.
"""

from __future__ import annotations

import re
import textwrap
from itertools import takewhile
from pathlib import Path
from typing import Any

import jupytext  # type: ignore[import-untyped]

from ..course.judging.catalogue import SourceError
from ..course.links import FURTHER

_SOLUTION = re.compile(
    r"^(?P<indent> *)# BEGIN SOLUTION\n(?P<body>.*?)^ *# END SOLUTION\n?", re.DOTALL | re.MULTILINE
)
_BLANK = "raise NotImplementedError  # your code"
ASKED = {"prediction": "your number", "guess": '"holds", "does not hold" or "depends"'}
_VALUE = re.compile(  # further lines of a value are indented, or close a bracket
    r"^(?:# (?P<comment>.+)\n)?(?P<said>(?P<name>prediction|guess) = .+(?:\n[ )\]}].*)*)\Z",
    re.MULTILINE,
)


def read(source: Path) -> list[Any]:
    """Return the cells of a source, with their ids set. Raises SourceError."""
    cells = jupytext.read(source, fmt="py:percent").cells
    seen: set[str] = set()
    for cell in cells:
        identity = cell.metadata.pop("id", None)
        where = f"{source.name}, cell {cell.source.splitlines()[:1]}"
        if identity is None or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identity):
            raise SourceError(f'{where}: its header needs an id, such as # %% id="first-ranks"')
        if identity in seen:
            raise SourceError(f"{where}: the id {identity!r} is used twice")
        seen.add(identity)
        cell.id = identity
        begun, ended = cell.source.count("# BEGIN "), cell.source.count("# END ")
        if begun != ended:
            raise SourceError(f"{where}: {begun} BEGIN markers and {ended} END markers")
        name = asked(cell)
        value = _VALUE.search(cell.source)
        if name and (value is None or value["name"] != name):
            raise SourceError(
                f"{where}: a cell tagged {name} ends with the solution's value, {name} = …"
            )
    return list(cells)


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def asked(cell: Any) -> str | None:
    """Return what the learner says in this cell: "prediction", "guess" or None."""
    return next((name for name in ASKED if name in tags(cell)), None)


def notebooks(source: Path) -> dict[str, list[Any]]:
    """Return the cells of each notebook that a source makes, by the notebook's name: the lab, and
    what goes further, if it does. Raises SourceError."""
    cells = read(source)
    at = next((at for at, one in enumerate(cells) if at and _begins(one, "# ")), len(cells))
    lab, more = cells[:at], cells[at:]
    first = takewhile(lambda cell: not _begins(cell, "## "), lab)
    head = [cell for cell in first if cell.cell_type == "code" and "unpublished" not in tags(cell)]
    found = {source.stem: lab}
    return found | {f"{source.stem}{FURTHER}": [more[0], *head, *more[1:]]} if more else found


def _begins(cell: Any, heading: str) -> bool:
    return cell.cell_type == "markdown" and cell.source.startswith(heading)


def is_exercise(cell: Any) -> bool:
    return cell.cell_type == "code" and _SOLUTION.search(cell.source) is not None


def blank(cell: Any) -> str:
    """Return the cell's text in the lab."""
    text = _SOLUTION.sub(lambda m: textwrap.indent(f"{_BLANK}\n", m["indent"]), cell.source)
    name = asked(cell)
    if name is not None:
        text = _VALUE.sub(lambda m: f"{name} = None  # {m['comment'] or ASKED[name]}", text)
    return text.rstrip()


def complete(cell: Any) -> str:
    """Return the cell's text in the solution."""
    text = _SOLUTION.sub(lambda m: m["body"], cell.source)
    if asked(cell):
        text = _VALUE.sub(lambda m: m["said"], text)
    return text.rstrip()
