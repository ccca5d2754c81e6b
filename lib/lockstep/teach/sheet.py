"""A run sheet for who gives a lab: sections with minutes, what to say, the usual mistakes.

`lockstep sheet NN`. All of it is taken from the published solution and the lab's words, so it
cannot differ from the lab. The minutes follow one rule, `RULE`, and are no measurement; what
the syllabus, the README and the labs' titles announce is what it gives.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..base import paths
from ..base.refused import Refused
from ..course.exercises import Exercise, exercises
from ..course.judging import words
from ..course.links import FURTHER
from ..course.syllabus import LABS, Lab

RULE = (
    "180 words a minute, and ten lines of code that the lab has not shown before; half a minute to "
    "run a cell, half a minute for a picture, and one for 20 lines of what a cell shows; hidden "
    "code that shows nothing takes none; a prediction 2, a guess 1; an exercise, with its check "
    "and a second try, 5, and one and a half for each line of its solution that is new"
)
Cell = dict[str, Any]  # of a notebook
_WORDS = 180  # a minute: slowly, for those who read a foreign language
_EXERCISE = 5.0  # minutes: to understand the goal, to check, to mend
_LINE = 1.5  # minutes, for each new line that an exercise wants
_READ = 0.1  # minutes, for each new line of code to read
_RUN = 0.5  # minutes, to run a cell, and to look at a picture
_SHOWN = 0.05  # minutes, for each line that a cell shows
_SITTING = 90  # minutes: who needs longer comes twice
_ROUND = 5  # minutes: what is announced is a multiple of it
_SAID = re.compile(r"\w")  # a table's bars say nothing
_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ASKS = re.compile(r"\*\*Predict[^*]*\*\*[:,]?\s*(?P<question>.+?)(?=\n\n|\Z)", re.DOTALL)
_FAILED = re.compile(r"· failed$", re.MULTILINE)  # the stamp of a job
# What cells ask, by their tag, and how the result begins: a comparison, and a claim.
ASKS = {"prediction": "predicted ", "guess": "“"}
_CLAIMED = re.compile(r"“[^”]+”")
_COMMENT = re.compile(r"\s#\s(?P<why>.+)$", re.MULTILINE)
_VALUE = re.compile(r"^(?:prediction|guess) = (?P<value>.+)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"\{(\w+)[^}]*\}")
_SILENT = re.compile(r"\{(?:contrast|report)\}")


@dataclass(frozen=True)
class Ask:
    """A prediction, or a guess: what is asked, what the solution says, why, and what came out."""

    cell: str
    question: str
    answer: str
    why: str
    measured: str


@dataclass
class Section:
    """A `## ` of a lab. minutes: by the rule. broken: cells that fail on purpose. further: it is
    in the notebook that goes further."""

    title: str
    minutes: float = 0.0
    asks: list[Ask] = field(default_factory=list)
    exercises: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    has_break: bool = False  # at its end
    further: bool = False


class NoSheet(Refused):
    """There is no such lab, or no published solution of it."""


def sheet(number: str) -> str:
    """Return the run sheet of a lab, as Markdown. Raises NoSheet."""
    number = number.zfill(2)
    lab = next((one for one in LABS if one.number == number), None)
    if lab is None:
        raise NoSheet(f"there is no lab {number}; there are: {', '.join(x.number for x in LABS)}")
    return "\n".join(_as_markdown(lab, published(lab)))


def published(lab: Lab) -> list[Section]:
    """Return the sections of a lab from its notebooks. Raises NoSheet where one is missing."""
    return sections(lab, _cells(paths.SOLUTIONS, lab), _cells(paths.LABS, lab))


def announced(minutes: float) -> int:
    """Return what is announced for so many minutes: the next multiple of five."""
    return _ROUND * math.ceil(minutes / _ROUND)


def sittings(found: list[Section]) -> list[float]:
    """Return the minutes of a lab, what goes further left out: of the time before its break and of
    the time after it where one sitting would be too long."""
    core = [one for one in found if not one.further]
    after = next((at for at, one in enumerate(core, 1) if one.has_break), 0)
    parts = [sum(one.minutes for one in part) for part in (core[:after], core[after:])]
    return parts if after and sum(parts) > _SITTING else [sum(parts)]


def _cells(folder: Path, lab: Lab) -> list[Cell]:
    """Return the cells of a lab, then those that only the notebook that goes further has."""
    path = folder / f"{lab.number}_{lab.name}.ipynb"
    further = path.with_name(f"{path.stem}{FURTHER}.ipynb")
    found: dict[str, Cell] = {}
    try:
        for one in [path, further] if further.exists() else [path]:
            cells = json.loads(one.read_text(encoding="utf-8"))["cells"]
            for cell in cells:
                found.setdefault(cell["id"], cell)
    except OSError as error:
        raise NoSheet(f"{path}: {error.strerror}") from None
    return list(found.values())


def sections(lab: Lab, cells: list[Cell], blanks: list[Cell]) -> list[Section]:
    """Return the sections of a lab; the first is what stands above all headings.

    cells: of the executed solution. blanks: of the lab that learners get.
    """
    said = words.predictions(lab.number)
    names = {one.name for one in exercises() if one.lab == lab.number}
    given = {one["id"]: _lines(one) for one in blanks if one["id"] in names}
    seen: set[str] = set()  # lines of code
    found = [Section("Start")]
    question = ""
    for at, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # A cell may hold the end of one section and the beginning of the next.
            starts = [0, *(one.start() for one in _HEADING.finditer(source)), len(source)]
            for start, end in pairwise(starts):
                part = source[start:end]
                if at and part.startswith("# "):  # a second title
                    found.append(Section("Going further", further=True))
                if heading := _HEADING.match(part):
                    found.append(Section(heading["title"], further=found[-1].further))
                found[-1].minutes += sum(map(_count, part.splitlines())) / _WORDS
                found[-1].has_break |= "**Break.**" in part
            question = source
            continue
        here, tags = found[-1], cell["metadata"].get("tags", [])
        here.minutes += _minutes(cell, given, seen)
        seen |= _lines(cell)
        if cell["id"] in given:
            here.exercises.append(cell["id"])
        if any(_FAILED.search(text) for text in _texts(cell)):
            here.broken.append(cell["id"])
        if ASKS.keys() & set(tags):
            here.asks.append(_ask(cell, said.get(cell["id"], ""), question, cells[at + 1 :]))
    return found


def _count(line: str) -> int:
    """Count the words of a line as shown; a line of links alone has none, for nobody reads it."""
    here = [word for word in _LINK.sub("", line).split() if _SAID.search(word)]
    shown = [word for word in _LINK.sub(r"\1", line).split() if _SAID.search(word)]
    return len(shown) if len(here) > 1 or len(shown) == len(here) else 0


def _minutes(cell: Cell, given: dict[str, set[str]], seen: set[str]) -> float:
    """Return the minutes for a cell of code.

    given: the lines that learners find in the cells of exercises; seen: what the cells before
    have, so that it can be copied.
    """
    source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
    if cell["id"] in given:
        return _EXERCISE + _LINE * len(_lines(cell) - given[cell["id"]] - seen)
    if "lockstep.check(" in source or "lockstep.progress(" in source:
        return 0.0
    if ASKS.keys() & set(tags):
        return 2.0 if "prediction" in tags else 1.0
    if "plumbing" in tags:
        return _RUN + _looked_at(cell) if cell["outputs"] else 0.0
    return _RUN + _READ * len(_lines(cell) - seen) + _looked_at(cell)


def _looked_at(cell: Cell) -> float:
    """Return the minutes for what a cell shows."""
    minutes = 0.0
    for output, text in zip(cell["outputs"], _texts(cell), strict=True):
        minutes += _SHOWN * len(text.splitlines()) + _RUN * ("image/png" in output.get("data", {}))
    return minutes


def _texts(cell: Cell) -> list[str]:
    """Return each output of a cell as the text that it is, or has for those who see no picture."""
    return [
        "".join(one.get("text") or one.get("data", {}).get("text/plain", ""))
        for one in cell["outputs"]
    ]


def _lines(cell: Cell) -> set[str]:
    """Return a cell's lines of code, without those that are comments alone."""
    lines = (line.strip() for line in "".join(cell["source"]).splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def _ask(cell: Cell, why: str, text: str, later: list[Cell]) -> Ask:
    """Return what a cell asks for; why: what its author says of a prediction."""
    source, name = "".join(cell["source"]), cell["id"]
    value = _VALUE.search(source)
    said = value["value"] if value else source
    answer = _flat(_COMMENT.sub("", said))
    if "guess" in cell["metadata"]["tags"]:
        measured = _measured("guess", later)
        claim, comment = _CLAIMED.search(measured), _COMMENT.search(said)
        question = f"does it hold? {claim[0]}" if claim else "does the sentence hold?"
        return Ask(name, question, answer, comment["why"] if comment else "", measured)
    asked = [one["question"] for one in _ASKS.finditer(text)] or text.split("\n\n")[-1:]
    return Ask(name, _flat(asked[-1]), answer, why, _measured("prediction", later))


def _measured(asked: str, later: list[Cell]) -> str:
    """Return what came of a prediction (or a guess) when the solution was executed."""
    for cell in later:
        if cell["cell_type"] != "code":
            continue
        tags = cell["metadata"].get("tags", [])
        if asked in tags:  # the next one
            break
        shown = [one for one in _texts(cell) if one.startswith(ASKS[asked])]
        if not shown:
            continue
        varies = "differs from run to run; the published run: " if "varies" in tags else ""
        return varies + _flat(shown[-1])
    return ""


def _flat(text: str) -> str:
    return " ".join(_LINK.sub(r"\1", text).split())


# ── As text ──────────────────────────────────────────────────────────────────────────────────


def _as_markdown(lab: Lab, found: list[Section]) -> Iterator[str]:
    yield f"# Run sheet: {lab.number} · {lab.title}"
    yield ""
    by_rule = " + ".join(f"{minutes:.0f}" for minutes in sittings(found))
    yield f"Announced: {lab.minutes} minutes. By the rule: {by_rule} minutes."
    yield f"The rule: {RULE}. Nobody measured it."
    yield ""
    yield "| from | minutes | section | contains |"
    yield "| --- | --- | --- | --- |"
    at = 0.0
    for one in found:
        begins = "" if one.further else f"{int(at) // 60}:{int(at) % 60:02d}"
        yield f"| {begins} | {one.minutes:.0f} | {one.title.replace('|', '·')} | {_contents(one)} |"
        at = at if one.further else at + one.minutes
    for one in found:
        yield from _section(lab, one)


def _contents(one: Section) -> str:
    counts = (
        (len(one.asks), "to predict or guess"),
        (len(one.exercises), "exercise" if len(one.exercises) == 1 else "exercises"),
        (len(one.broken), "broken on purpose"),
    )
    parts = [f"{count} {what}" for count, what in counts if count]
    return ", ".join([*parts, *(["the break"] if one.has_break else [])])


def _section(lab: Lab, one: Section) -> Iterator[str]:
    if not (one.asks or one.exercises or one.broken):
        return
    yield f"\n## {one.title}\n"
    for ask in one.asks:
        yield f"- **Ask** (`{ask.cell}`): {ask.question}"
        yield f"  - Say: `{ask.answer}`. {ask.why}".rstrip()
        if ask.measured:
            yield f"  - Result: {ask.measured}"
    for cell in one.broken:
        yield (
            f"- **Broken on purpose** (`{cell}`): let learners read the report before you "
            "explain it."
        )
    course = {each.name: each for each in exercises() if each.lab == lab.number}
    for name in one.exercises:
        yield from _mistakes(course[name])


def _mistakes(exercise: Exercise) -> Iterator[str]:
    yield f"- **Exercise** `{exercise.name}`. First hint: {_flat(exercise.hints[0])}"
    said = words.of(exercise.lab, exercise.name)
    yield from _told("Usual mistakes, by the lab's author", said.usual, said.sentences)
    others = [mistake for mistake in said.sentences if mistake not in said.usual]
    yield from _told("Others", others, said.sentences)


def _told(title: str, mistakes: Sequence[str], sentences: dict[str, str]) -> Iterator[str]:
    yield f"  - {title}:"
    for mistake in mistakes:
        sentence = _FIELD.sub(r"⟨\1⟩", _SILENT.sub("", sentences[mistake]))
        yield f"    - {mistake}: “{_flat(sentence)}”"
