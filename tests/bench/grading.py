"""Time `lockstep report` of a class: `grading.py [--learners 30] [--labs 10] [--json FILE]`.

Each learner of each lab has answered nine exercises in ten, each by one of the answers that the
course keeps, right and wrong; so some have the same code as others, as in a class that works in
pairs. Everything is judged, or it is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from lockstep.course import exercises
from lockstep.course.judging.catalogue import answers
from report import Report, circumstances

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "solutions" / "source", ROOT / "tests" / "answers")
GOAL = 20 * 60  # s, for 30 learners of ten labs on 8 cores


def code_of(lab: str) -> dict[str, list[str]]:
    """Every kept answer to a lab's exercises, by exercise, without its file's other answers."""
    found: dict[str, list[str]] = {}
    for folder in SOURCES:
        for kind in ("right", "wrong"):
            for exercise, kept in answers(folder, kind, lab).items():
                found.setdefault(exercise, []).extend(one.code for one in kept)
    return found


def hand_in(folder: Path, learners: int, labs: list[str]) -> None:
    """Write a folder for each learner, with an answered notebook of each of these labs."""
    for lab in labs:
        number = lab.partition("_")[0]
        kept = code_of(number)
        for learner in range(learners):
            chance = random.Random(f"{lab} {learner}")
            notebook = nbformat.read(ROOT / "labs" / f"{lab}.ipynb", 4)
            answered = []
            for cell in notebook.cells:
                for one in exercises.exercises():
                    asks = one.lab == number and f'lockstep.check("{one.name}"' in cell.source
                    if cell.cell_type == "code" and asks and chance.random() < 0.9:
                        answer = chance.choice(kept[one.name]).strip()
                        answered.append(nbformat.v4.new_code_cell(answer))
                answered.append(cell)
            notebook.cells = answered
            own = folder / f"learner{learner:02}"
            own.mkdir(exist_ok=True)
            nbformat.write(notebook, own / f"{lab}.ipynb")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=30)
    parser.add_argument("--labs", type=int, default=10, help="the first so many")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--without-walls", action="store_true")
    asked = parser.parse_args()
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    names = sorted(path.stem for path in (ROOT / "labs").glob("??_*.ipynb"))
    labs = [name for name in names if not name.endswith("_further")][: asked.labs]
    found = Report()
    with tempfile.TemporaryDirectory() as kept:
        (folder := Path(kept) / "in").mkdir()
        hand_in(folder, asked.learners, labs)
        command = [sys.executable, "-m", "lockstep", "report", str(folder), "--to", f"{kept}/out"]
        command += ["--without-walls"] if asked.without_walls else []
        began = time.perf_counter()
        code = subprocess.run(command, stdout=sys.stderr).returncode
        seconds = time.perf_counter() - began
        judged = json.loads((Path(kept) / "out" / "report.json").read_text())["notebooks"]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    count = asked.learners * len(labs)
    of = f"{count} notebooks of {len(labs)} labs"
    found.row(f"{of}, {cores} cores: until all are judged", "s", [seconds])
    found.row("CPU time of a notebook", "s", [(used.ru_utime + used.ru_stime) / count])
    if code or len(judged) != count:
        found.errors.append(f"exit code {code}, {len(judged)} of {count} notebooks judged")
    if (asked.learners, len(labs)) == (30, 10):
        found.goal(
            "30 learners of 10 labs within 20 min", f"{seconds / 60:.1f} min", seconds <= GOAL
        )
    print(found)
    if asked.json:
        found.write(asked.json, circumstances(load))
    return len(found.errors)


if __name__ == "__main__":
    sys.exit(main())
