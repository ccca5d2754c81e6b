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
_AS_IT_IS = re.compile(r"(```[\s\S]*?```|`[^`\n]*`|^#.*$)", re.MULTILINE)  # code, headings


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
    """Return the address of the heading above an exercise in its lab; "" where the lab has it not.

    In what goes further it is the section's heading: the others may be folded away.
    """
    headed, folding = name, ""
    for path in LABS.glob(f"{number}_*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["id"] == name:
                return address(folding or headed)
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown" and _HEADING.search(text):
                headed = cell["id"]
                folding = headed if text.startswith("## Further: ") else folding
    return ""


def next_lab(number: str) -> str:
    """Return the file of the lab after this one; "" where there is none."""
    for lab, after in pairwise(SYLLABUS):
        if lab.number == number:
            return file_name(after)
    return ""


def linked(text: str, lab: Lab) -> str:
    """Make links of the other labs that a lab's Markdown names, and of `solutions/`."""
    files = {one.number: file_name(one) for one in SYLLABUS if one != lab}

    def link(found: re.Match[str]) -> str:
        file = files.get(found["number"])
        return f"[{found[0]}]({file})" if file else found[0]

    parts = _AS_IT_IS.split(text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            parts[at] = _OTHER_LAB.sub(link, part)
        elif part == "`solutions/`":
            parts[at] = f"[{part}](../solutions/{file_name(lab)})"
    return "".join(parts)


def table_of_contents(titles: Sequence[tuple[str, str]]) -> str:
    """Return a line with a link to each section, and another with those that go further, if any."""
    lines: dict[str, list[str]] = {"Sections": [], "Further": []}
    for title, cell in titles:
        further = title.startswith("Further: ")
        shown = title.removeprefix("Further: ").replace("[", "").replace("]", "")
        lines["Further" if further else "Sections"].append(f"[{shown}]({address(cell)})")
    return "\n\n".join(f"**{name}:** {' · '.join(links)}" for name, links in lines.items() if links)


def neighbours(lab: Lab, folder: str) -> str:
    """Return a line with links to the labs before and after this one, and to its other form.

    folder: "labs" or "solutions", which the notebook is in.
    """
    at = SYLLABUS.index(lab)
    other, called = ("solutions", "solution") if folder == "labs" else ("labs", "the blank lab")
    links = [f"[{called}](../{other}/{file_name(lab)})"]
    if at > 0:
        before = SYLLABUS[at - 1]
        links.insert(0, f"← [{before.number} · {before.title}]({file_name(before)})")
    if at + 1 < len(SYLLABUS):
        after = SYLLABUS[at + 1]
        links.append(f"**[{after.number} · {after.title}]({file_name(after)}) →**")
    return " | ".join(links)
