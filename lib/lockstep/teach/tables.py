"""A report as files: a page, JSON, and tables that spreadsheets and gradebooks read.

What learners have written is data here: escaped in HTML, and in a table never the beginning of a
formula.
"""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..base.formatting import in_one_line
from ..base.style import DONE, ERROR, GREY
from ..course.exercises import NOT_JUDGED, NOT_YET, PASS, TRY_AGAIN
from ..figures.table import Table
from .report import NO_ANSWER, Graded, Judgement

_SIGNS = {PASS: "✓", TRY_AGAIN: "✗", NOT_YET: "…", NOT_JUDGED: "?", NO_ANSWER: "–"}
_BORROWED = "⊘"
_LEGEND = ", ".join(f"{sign} {word.lower()}" for word, sign in _SIGNS.items())
_LEGEND += f", {_BORROWED} not counted: the course's own answer"
_COLOURS = {PASS: DONE, TRY_AGAIN: ERROR}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body{margin:1.5em auto;max-width:80em;padding:0 1em;font:14px/1.5 system-ui,sans-serif}
table{border-collapse:collapse}th,td{border:1px solid #999;padding:2px 8px;text-align:left}
.scroll{overflow-x:auto}li{overflow-wrap:anywhere}
"""
# The columns of nbgrader's own CSV exporter (nbgrader/plugins/export.py), in its order.
_NBGRADER = (
    *("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"),
    *("raw_score", "late_submission_penalty", "score", "max_score"),
)


def text(found: Sequence[Graded], stamp: str) -> str:
    """Return a row for each notebook, for a terminal, and what happened below."""
    rows = [
        (one.learner, one.lab or "?", _share(one), _signs(one), f"{one.seconds:.0f}")
        for one in found
    ]
    columns = ("learner", "lab", "passed", "exercises", "seconds")
    lines = [*Table("report", columns, rows, stamp=None).lines(), "", _LEGEND, stamp]
    for one in found:
        if said := _said(one):
            head = in_one_line(f"{one.learner}, {one.file}:")
            lines += ["", head, *(f"  {in_one_line(line)}" for line in said)]
    return "\n".join(lines)


def _share(one: Graded) -> str:
    return f"{one.score} of {one.most}"


def _signs(one: Graded) -> str:
    return "".join(map(_sign, one.verdicts))


def _sign(verdict: Judgement) -> str:
    passes_in_vain = verdict.verdict == PASS and not verdict.counts
    return _BORROWED if passes_in_vain else _SIGNS[verdict.verdict]


def _said(one: Graded) -> list[str]:
    """Return what a teacher should know of a notebook besides its verdicts."""
    said = [*one.events, *one.notes]
    if names := ", ".join(verdict.exercise for verdict in one.verdicts if verdict.borrowed):
        said.append(f"not counted, because the course's own answer is in it: {names}")
    return said


def write(found: Sequence[Graded], folder: Path, stamp: str) -> list[Path]:
    """Write all tables; returns the files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    content = [{**asdict(one), "score": one.score, "most": one.most} for one in found]
    files = {
        "report.html": page(found, stamp),
        "report.json": json.dumps({"stamp": stamp, "notebooks": content}, indent=1) + "\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    tables = {
        "report.csv": _by_exercise(found),
        "grades.csv": _by_learner(found),
        "nbgrader.csv": _as_nbgrader(found),
    }
    for name, rows in tables.items():
        with open(folder / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([_plain(cell) for cell in row] for row in rows)
    return [folder / name for name in (*files, *tables)]


def _plain(cell: Any) -> Any:
    """Return a cell's value, as text that no spreadsheet takes for a formula if it is text."""
    if not isinstance(cell, str):
        return cell
    line = in_one_line(cell)
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def _by_exercise(found: Iterable[Graded]) -> Iterable[Sequence[Any]]:
    yield "learner", "lab", "exercise", "verdict", "passed", "mistake", "reason", "part", "file"
    for one in found:
        for v in one.verdicts:
            part = "further" if v.further else "core"
            reason = v.reason or ("" if v.counts else "; ".join(one.events))
            told = v.exercise, v.verdict, int(v.counts), v.mistake, reason, part
            yield one.learner, one.lab, *told, one.file


def best(found: Iterable[Graded]) -> dict[tuple[str, str], Graded]:
    """Return for each learner and lab the notebook with most passes, the last of equals."""
    chosen: dict[tuple[str, str], Graded] = {}
    for one in found:
        before = chosen.get((one.learner, one.lab))
        if one.lab and (before is None or one.score >= before.score):
            chosen[one.learner, one.lab] = one
    return chosen


def _by_learner(found: Sequence[Graded]) -> Iterable[Sequence[Any]]:
    """Yield a row for each learner, with a column for each lab: Moodle's import asks which is
    which."""
    scores = best(found)
    labs = {lab: one.most for (_, lab), one in sorted(scores.items(), key=lambda item: item[0][1])}
    yield "learner", *(f"lab {lab} (of {most})" for lab, most in labs.items())
    for learner in dict.fromkeys(one.learner for one in found):
        rows = [scores.get((learner, lab)) for lab in labs]
        yield learner, *(one.score if one else "" for one in rows)


def _as_nbgrader(found: Sequence[Graded]) -> Iterable[Sequence[Any]]:
    yield _NBGRADER
    for (learner, lab), one in best(found).items():
        row: dict[str, Any] = {"assignment": f"lab{lab}", "student_id": learner}
        row |= {"late_submission_penalty": 0.0, "max_score": float(one.most)}
        row |= {key: float(one.score) for key in ("raw_score", "score")}
        yield [row.get(column, "") for column in _NBGRADER]


# ── The page ─────────────────────────────────────────────────────────────────────────────────


def page(found: Sequence[Graded], stamp: str) -> str:
    """Return the report as one file of HTML that loads nothing else."""
    labs = sorted({one.lab for one in found if one.lab})
    tables = "".join(_table(lab, [one for one in found if one.lab == lab]) for lab in labs)
    events = "".join(_events(one) for one in found)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width"><title>Report</title>'
        f"<style>{_STYLE}</style></head><body><h1>Report</h1><p>{html.escape(stamp)}</p>"
        f"<p>{html.escape(_LEGEND)}. Point at a sign to read what the check said.</p>"
        f"{tables}{f'<h2>What to look at</h2>{events}' if events else ''}</body></html>\n"
    )


def _table(lab: str, found: Sequence[Graded]) -> str:
    names = [verdict.exercise for verdict in found[0].verdicts]
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{_shown(one.learner)}</th><td>{_share(one)}</td>'
        f"{''.join(map(_cell, one.verdicts))}</tr>"
        for one in found
    )
    return (
        f'<h2>Lab {html.escape(lab)}</h2><div class="scroll" tabindex="0"><table><thead><tr>'
        f'<th scope="col">learner</th><th scope="col">passed</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(verdict: Judgement) -> str:
    said = ": ".join(part for part in (verdict.verdict, verdict.mistake, verdict.reason) if part)
    sign = f"{_sign(verdict)} {'borrowed' if verdict.borrowed else verdict.mistake}".rstrip()
    colour = GREY if verdict.borrowed else _COLOURS.get(verdict.verdict, GREY)
    return f'<td style="color:{colour}" title="{_shown(said)}">{_shown(sign)}</td>'


def _events(one: Graded) -> str:
    lines = "".join(f"<li>{_shown(line)}</li>" for line in _said(one))
    return f"<h3>{_shown(one.learner)}, {_shown(one.file)}</h3><ul>{lines}</ul>" if lines else ""


def _shown(text: str) -> str:
    return html.escape(in_one_line(text))
