"""Which of the course's answers `make test` tries.

A lab's checks, its sentences and its answers make the verdicts. While they are what they were when
tests/judge.py found all answers judged as meant, one is tried of every third exercise of the lab,
and the other exercises are left to `make test-long`. Otherwise all are tried.
"""

import hashlib
import json
import re
from pathlib import Path
from zlib import crc32

from lockstep.course.exercises import Exercise, exercises
from lockstep.course.judging.catalogue import Answer

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("verdicts.json")
_COURSE = ROOT / "lib" / "lockstep" / "course"


def fingerprint(lab: str) -> str:
    """Return the SHA-256 of all that judges a lab's answers, and of these."""
    folders = (_COURSE / "labs", _COURSE / "judging")
    checks = [path for folder in folders for path in folder.glob("*.*")]
    others = {path for path in checks if re.match(rf"lab(?!{lab})\d\d\.", path.name)}
    own = ROOT.glob(f"solutions/source/*/{lab}.py")
    files = sorted({_COURSE / "exercises.py", *checks, *own} - others)
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def recorded() -> dict[str, str]:
    """Return the fingerprints with which all answers were judged as meant, by lab."""
    known: dict[str, str] = json.loads(FILE.read_text())
    return known


def record(lab: str) -> None:
    """All answers of a lab were judged as meant just now."""
    known = {**recorded(), lab: fingerprint(lab)}
    FILE.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def are_known(lab: str) -> bool:
    """Return whether nothing has changed since all of a lab's answers were judged as meant."""
    return recorded().get(lab) == fingerprint(lab)


def rests(exercise: Exercise) -> bool:
    """Return whether an exercise's answers are left to `make test-long`."""
    of_lab = [one for one in exercises() if one.lab == exercise.lab]
    return are_known(exercise.lab) and of_lab.index(exercise) % 3 > 0


def tried(lab: str, exercise: str, every: list[Answer]) -> list[Answer]:
    """Return those of an exercise's answers that are to be tried."""
    if not are_known(lab) or not every:
        return every
    return [every[crc32(exercise.encode()) % len(every)]]
