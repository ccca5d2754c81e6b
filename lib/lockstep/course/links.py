"""Links in and between notebooks: the same in a checkout and in a learner's copies of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

from ..base.paths import LABS
from .syllabus import LABS as SYLLABUS
from .syllabus import Lab

_HEADING = re.compile(r"^(?P<level>#{2,4}) (?P<title>.+)$", re.MULTILINE)
_OTHER_LAB = re.compile(r"\b[Ll]ab (?P<number>\d\d)\b(?![^\[\n]*\]\()")  # but in a link's text
_FURTHER_ONE = re.compile(r"(?<=the )further notebook\b")
_AS_IT_IS = re.compile(r"(```[\s\S]*?```|`[^`\n]*`|^#.*$)", re.MULTILINE)  # code, headings


FURTHER = "_further"  # ends the name of the notebook that goes further than its lab


def file_name(lab: Lab) -> str:
    return f"{lab.number}_{lab.name}.ipynb"


def address(cell: str) -> str:
    """Return a cell's address in its notebook. JupyterLab knows it; that of a heading it takes for
    another one where there is more in it than ASCII."""
    return f"#cell-id={cell}"


def sections(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headings `## ` of Markdown cells, in order, each with its cell's id."""
    return [
        (found["title"], cell)
        for cell, text in texts.items()
        for found in _HEADING.finditer(text)
        if len(found["level"]) == 2
    ]


@cache
def exercise_address(number: str, name: str) -> str:
    """Return the address of the heading above an exercise; "" where its lab has it not.

    Where the exercise is in the notebook that goes further it is that notebook's: JupyterLab goes
    to no cell of a notebook that it has to open first.
    """
    headed = name
    for path in sorted(LABS.glob(f"{number}_*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["id"] == name:
                return path.name if path.stem.endswith(FURTHER) else address(headed)
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown" and _HEADING.search(text):
                headed = cell["id"]
    return ""


def next_lab(number: str) -> str:
    """Return the file of the lab after this one; "" where there is none."""
    files = {lab.number: file_name(after) for lab, after in pairwise(SYLLABUS)}
    return files.get(number, "")


def linked(text: str, lab: Lab, name: str) -> str:
    """Make links of the notebooks that a notebook's Markdown names, and of `solutions/`.

    name: this notebook's, without a suffix.
    """
    files = {one.number: file_name(one) for one in SYLLABUS if one != lab}

    def link(found: re.Match[str]) -> str:
        file = files.get(found["number"])
        return f"[{found[0]}]({file})" if file else found[0]

    parts = _AS_IT_IS.split(text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            further = f"[\\g<0>]({lab.number}_{lab.name}{FURTHER}.ipynb)"
            parts[at] = _FURTHER_ONE.sub(further, _OTHER_LAB.sub(link, part))
        elif part == "`solutions/`":
            parts[at] = f"[{part}](../solutions/{name}.ipynb)"
    return "".join(parts)


def table_of_contents(titles: Sequence[tuple[str, str]]) -> str:
    """Return a line with a link to each section."""
    shown = [(title.replace("[", "").replace("]", ""), cell) for title, cell in titles]
    return f"**Sections:** {' · '.join(f'[{title}]({address(cell)})' for title, cell in shown)}"


def neighbours(lab: Lab, folder: str, name: str, names: Sequence[str]) -> str:
    """Return a line with links to a notebook's other form, to the lab's other notebook, if there is
    one, and to the labs before and after.

    folder: "labs" or "solutions", which the notebook is in. name: its own, without a suffix.
    names: of all that the lab has.
    """
    at = SYLLABUS.index(lab)
    other, called = ("solutions", "solution") if folder == "labs" else ("labs", "the blank lab")
    links = [f"[{called}](../{other}/{name}.ipynb)"]
    for one in names:
        if one != name:
            goes = "going further" if one.endswith(FURTHER) else f"lab {lab.number}"
            links.append(f"[{goes}]({one}.ipynb)")
    if at > 0:
        before = SYLLABUS[at - 1]
        links.insert(0, f"← [{before.number} · {before.title}]({file_name(before)})")
    if at + 1 < len(SYLLABUS):
        after = SYLLABUS[at + 1]
        links.append(f"**[{after.number} · {after.title}]({file_name(after)}) →**")
    return " | ".join(links)
