"""Check a lab's source against the rules that it must keep to, beyond its format.

Every exercise has its check and wrong answers, and the other way round; a number that is asked for
is never in the lab, and below its question is a cell that takes it; no text speaks of a reading, as
learners have none; a lab has no more cells and exercises than fit; and each section (`## `) can be
started on its own: what its cells read is bound by cells before them in the section, or by the
lab's first cells, those above all sections. A section that cannot do without another one says so to
the learner, below its heading: "Goes on from section 4". An exercise's answer is there in every
section, `lockstep.carry_on("name")`. A name that other cells read means one thing in a notebook, as
learners go back and run one cell of those that they have run."""

from __future__ import annotations

import ast
import builtins
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..course.exercises import exercises
from ..course.judging.catalogue import SourceError, answers
from ..launch.cell import names_of
from .source import ASKED, asked, blank, complete, is_exercise, notebooks, read, tags

FEWEST_WRONG_ANSWERS = 3
MOST_CELLS, MOST_EXERCISES = 80, 6  # of a lab's core
_LONG = 40  # cells: a longer core has a break
_QUESTIONS = {"Predict": "prediction", "Guess": "guess"}
_ASKS = re.compile(r"\*\*(Predict|Guess)\b")
_READING = re.compile(r"\bthe reading\b", re.IGNORECASE)
_HEADING = re.compile(r"^## (?P<title>.*)$", re.MULTILINE)
_TITLE = re.compile(r"^# ", re.MULTILINE)
_BREAK = re.compile(r"^\*\*Break\.\*\*", re.MULTILINE)
_GOES_ON = re.compile(r"\bgoes on from section (?P<number>\d+)", re.IGNORECASE)
_ALWAYS_THERE = {*dir(builtins), "display", "get_ipython"}


def verify(source: Path) -> None:
    """Raise SourceError for the first rule that a source breaks."""
    cells = read(source)
    if not any("parameters" in tags(cell) for cell in cells):
        raise SourceError(f"{source.name}: no cell is tagged parameters")
    _verify_blanks(source, cells)
    _verify_exercises(source, cells)
    _verify_length(source, cells)
    _verify_texts(source, cells)
    _verify_sections(source, cells)
    for notebook in notebooks(source).values():
        _verify_names(source, notebook)


def _verify_blanks(source: Path, cells: list[Any]) -> None:
    """Raise SourceError for a lab that says what it asks for."""
    for cell in cells:
        if (name := asked(cell)) is None:
            continue
        for said in re.findall(r"# (.+)", blank(cell)):
            if not said.startswith(ASKED[name]):
                raise SourceError(
                    f"{source.name}, cell {cell.id}: the lab would say {said!r}; a comment above "
                    f"a value begins with: {ASKED[name]}"
                )


def _verify_exercises(source: Path, cells: list[Any]) -> None:
    number = source.name[:2]
    registered = [one.name for one in exercises() if one.lab == number]
    wrong = answers(source.parent, "wrong", number)
    found = []
    for at, cell in enumerate(cells):
        if not is_exercise(cell):
            continue
        where = f"{source.name}, exercise {cell.id}"
        if cell.id not in registered:
            raise SourceError(f"{where}: lab {number} registers no check of that name")
        if not any(f'lockstep.check("{cell.id}"' in later.source for later in cells[at + 1 :]):
            raise SourceError(f"{where}: no later cell checks it")
        if len({one.name for one in wrong.get(cell.id, [])}) < FEWEST_WRONG_ANSWERS:
            raise SourceError(
                f"{where}: it needs {FEWEST_WRONG_ANSWERS} answers or more in wrong/{number}.py"
            )
        found.append(cell.id)
    if found != registered:
        raise SourceError(f"{source.name} has exercises {found}, its checks are {registered}")
    for kind in ("wrong", "right"):
        for name in answers(source.parent, kind, number).keys() - set(registered):
            raise SourceError(f"{kind}/{number}.py: {name} is no exercise of {source.name}")


def _verify_texts(source: Path, cells: list[Any]) -> None:
    texts = [at for at, cell in enumerate(cells) if cell.cell_type == "markdown"]
    for at, end in pairwise([*texts, len(cells)]):
        text, where = cells[at].source, f"{source.name}, text {cells[at].id}"
        taken = {asked(cell) for cell in cells[at + 1 : end]}
        for word in _ASKS.findall(text):
            if _QUESTIONS[word] not in taken:
                raise SourceError(
                    f"{where}: it asks for a {_QUESTIONS[word]}, but no cell below takes it"
                )
        if _READING.search(text):
            raise SourceError(
                f'{where}: learners have no reading; name a source, or write "people"'
            )


def _verify_length(source: Path, cells: list[Any]) -> None:
    inside = notebooks(source)[source.stem]
    exercises_inside = [cell.id for cell in inside if is_exercise(cell)]
    for one in exercises():
        if one.lab == source.name[:2] and one.further == (one.name in exercises_inside):
            raise SourceError(
                f"{source.name}, exercise {one.name}: its check says further={one.further}, "
                f"but it stands {'in' if one.further else 'below'} the lab itself"
            )
    for what, count, most in (
        ("cells", len(inside), MOST_CELLS),
        ("exercises", len(exercises_inside), MOST_EXERCISES),
    ):
        if count > most:
            raise SourceError(
                f"{source.name}: its core has {count} {what}, and the limit is {most}: cut, "
                "or move what goes further below a second title, after the recap"
            )
    breaks = [
        cell.id for cell in inside if cell.cell_type == "markdown" and _BREAK.search(cell.source)
    ]
    if len(inside) > _LONG and len(breaks) != 1:
        raise SourceError(
            f"{source.name}: a core of {len(inside)} cells needs one line that begins with "
            f'"**Break.**", near its middle; this one has {len(breaks)}'
        )
    for at, cell in enumerate(cells):
        where = f"{source.name}, text {cell.id}"
        if cell.cell_type != "markdown":
            continue
        if at not in (0, len(inside)) and _TITLE.search(cell.source):
            raise SourceError(f"{where}: a title must be the first line of a notebook")
        if at >= len(inside) and _GOES_ON.search(cell.source):
            raise SourceError(f"{where}: the further notebook stands on its own")


# ── Sections ─────────────────────────────────────────────────────────────────────────────────


def _verify_sections(source: Path, cells: list[Any]) -> None:
    bound: set[str] = set(_ALWAYS_THERE)
    head: set[str] | None = None  # what the first cells bind
    title, after = "", {}  # after: what is bound at the end of each section with a number
    for cell in cells:
        if cell.cell_type == "code":
            where = f"{source.name}, cell {cell.id}"
            bound = _bound_after(cell, bound, where, title)
            continue
        headings = list(_HEADING.finditer(cell.source))
        if not headings:
            continue
        if head is None:
            head = bound
        after[title.split()[0] if title else ""] = bound
        title = headings[-1]["title"]
        onward = _GOES_ON.search(cell.source, headings[-1].end())
        if onward and onward["number"] not in after:
            raise SourceError(f"{source.name}, section {title}: {onward[0]}, which is not before")
        bound = after[onward["number"]] if onward else head


def _bound_after(cell: Any, bound: set[str], where: str, title: str) -> set[str]:
    """Return what is bound after a cell, if `bound` is before.

    Raises SourceError for a name that it reads and that is not bound.
    """
    reads, binds, kept = _names(cell)
    for name in sorted(reads - bound):
        raise SourceError(
            f"{where}: reads {name}, which its section ({title or 'the first cells'}) does not "
            'bind before; import or define it there, or say below the heading "Goes on from '
            'section N"'
        )
    for name in ASKED:
        if name in binds and asked(cell) != name:
            raise SourceError(f'{where}: a cell that sets {name} needs tags=["{name}"]')
    return bound | kept.keys()


def _names(cell: Any) -> tuple[set[str], set[str], dict[str, str]]:
    """Return the names that a cell reads before it binds them, those that it binds, and what it
    leaves to later cells: by name, the statement that binds it last."""
    magic, code = "", complete(cell)
    if code.startswith("%%"):
        magic, _, code = code.partition("\n")
    reads = {*re.findall(r"\{(\w+)\}", magic), *re.findall(r"--world (\w+)", magic)}
    binds: dict[str, str] = {}
    for statement in ast.parse(re.sub(r"^[%!].*$", "", code, flags=re.MULTILINE)).body:
        read, bind = names_of(statement)
        if not isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
            read -= bind  # a loop's variable, a function's own name
        reads |= read - binds.keys()
        binds |= dict.fromkeys(bind, ast.unparse(statement))
    # The names of ranks end with them; those of a World stay there.
    kept = {} if magic and "--world" not in magic else binds
    return reads, {*binds}, kept | dict.fromkeys(re.findall(r"--into (\w+)", magic), code)


def _verify_names(source: Path, cells: list[Any]) -> None:
    """Raise SourceError for a name that two cells bind to different things and another reads."""
    code = {cell.id: _names(cell) for cell in cells if cell.cell_type == "code"}
    read = {name for reads, *_ in code.values() for name in reads} - {*ASKED}
    first: dict[str, tuple[str, str]] = {}
    for cell, (_, _, kept) in code.items():
        for name in sorted(kept.keys() & read):
            other, statement = first.setdefault(name, (cell, kept[name]))
            if statement != kept[name] and "carry_on(" not in kept[name]:
                raise SourceError(
                    f"{source.name}, cell {cell}: binds {name}, as cell {other} does, and other "
                    "cells read it: whoever goes back to those gets the wrong one; choose "
                    "another name"
                )
