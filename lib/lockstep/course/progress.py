"""Keep which exercises a learner has done: a file of events, and its picture by lab.

The file lies in the user's own data folder, one JSON line an event, so that it outlives kernels
and notebooks, and several of them write to it at once. LOCKSTEP_PROGRESS=off stores nothing.
"""

from __future__ import annotations

import errno
import html as escaping
import json
import os
import stat
import sys
import textwrap
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from ..base.formatting import in_one_line
from ..base.machine import in_notebook
from ..base.style import DONE
from .links import exercise_address, next_lab

_MOST_BYTES = 10_000_000  # a hundred thousand events: no learner has as many
_COLUMNS = 100
_BAR = 10  # characters
_TITLE = 30  # characters; a longer title is cut


def record(lab: str, exercise: str, event: str) -> str:
    """Store what became of a check: "passed", "tried" or "solution" (it was shown); of the
    capstone's program the milliseconds of its step.

    Never raises. Returns "", or a sentence that says why it could not be stored. Displays of
    progress in this notebook follow.
    """
    try:
        if _off():
            return ""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"lab": lab, "exercise": exercise, "event": event, "at": at}
        _append(_file(), json.dumps(line).encode() + b"\n")
        for progress, display in _displays:
            display.update(progress._repr_mimebundle_(), raw=True)
    except Exception as error:
        return f"Your progress could not be stored: {_why(error)}"
    return ""


def recorded(lab: str, exercise: str) -> list[str]:
    """The events of an exercise, in the order in which they were stored; none while nothing is to
    be stored, or where the file cannot be read."""
    try:
        with open(_file(), "rb", opener=_regular) as stored:
            found = map(_event, [] if _off() else stored.read(_MOST_BYTES).split(b"\n"))
            return [one[2] for one in found if one and one[:2] == (lab, exercise)]
    except (OSError, RuntimeError):
        return []


def _off() -> str:
    """Return why nothing is to be stored, or ""."""
    if os.environ.get("LOCKSTEP_PROGRESS", "").lower() == "off":
        return "LOCKSTEP_PROGRESS is off"
    try:
        folder = Path.cwd().name
    except OSError:  # somebody has removed it
        return ""
    # The published solutions are no learner's work.
    return "this folder is called solutions" if folder == "solutions" else ""


def _why(error: Exception) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {_shown(error.filename)}" if error.filename else error.strerror


def _shown(path: str | Path) -> str:
    return in_one_line(os.fsencode(path).decode(errors="replace"))


def _file() -> Path:
    return platformdirs.user_data_path("lockstep") / "progress.jsonl"


def _append(path: Path, line: bytes) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "ab+", buffering=0, opener=_regular) as file:
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            line = b"\n" + line  # a full disk has cut the last one short
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _regular(path: str, flags: int) -> int:
    """Open a file that is one: a pipe in its place would keep us waiting, a device never ends."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    about = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(about.st_mode):
        problem = "This is not a file of Lockstep; move it away"
    elif about.st_size > _MOST_BYTES:
        problem = f"This is larger than {_MOST_BYTES // 10**6} MB; move it away"
    if problem:
        os.close(descriptor)
        raise OSError(errno.EINVAL, problem, path)
    return descriptor


# ── What the file says ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LabExercises:
    """A lab as the course has it, its exercises in their order."""

    number: str  # "00"
    title: str
    exercises: tuple[str, ...]
    further: frozenset[str] = frozenset()  # exercises that are no part of a lab's core


@dataclass(frozen=True)
class ExerciseStanding:
    """The state of an exercise. What came after its first pass does not count."""

    name: str
    passed: bool = False
    tries: int = 0  # that failed
    solution: bool = False  # whether it was shown
    further: bool = False

    @property
    def note(self) -> str:
        """The words for what the sign before its name does not say."""
        further = "further" if self.further else ""
        if self.passed:
            said = [further, "after the solution" if self.solution else ""]
        else:
            tries = "1 try" if self.tries == 1 else f"{self.tries} tries" if self.tries else ""
            said = [further, tries, "solution shown" if self.solution else ""]
        return ", ".join(filter(None, said))


@dataclass(frozen=True)
class LabStanding:
    """The state of a lab."""

    number: str
    title: str
    exercises: tuple[ExerciseStanding, ...]

    @property
    def count(self) -> int:
        """The exercises of its core; what goes further counts neither here nor in `done`."""
        return sum(not exercise.further for exercise in self.exercises)

    @property
    def done(self) -> int:
        return sum(exercise.passed and not exercise.further for exercise in self.exercises)

    @property
    def share(self) -> str:
        """In words: "3 of 6"."""
        return f"{self.done} of {self.count}" if self.count else "no exercises"


@dataclass(frozen=True)
class Standing:
    """The state of all labs at one moment."""

    labs: tuple[LabStanding, ...]
    stored_in: str
    broken_lines: int
    problem: str  # why nothing could be read, or ""
    off: str  # why nothing is stored from now on, or ""


def way_on(lab: str, ahead: Sequence[ExerciseStanding]) -> tuple[str, str]:
    """Return the words for what comes next in a lab, and its address: the first of these open
    exercises, one of the core if there is any; where there is none, the next lab.

    The address is "" where there is no such notebook.
    """
    if not ahead:
        file = next_lab(lab)
        return f"next lab: {file[:2]}", file
    one = min(ahead, key=lambda exercise: exercise.further)
    called = "further exercise" if one.further else "next exercise"
    return f"{called}: {one.name}", exercise_address(lab, one.name)


def link(words: str, address: str) -> str:
    """Return a link onward as HTML."""
    return f'<a href="{_escape(address)}">{_escape(words)} →</a>'


class Progress:
    """The exercises of a course, done and open. Reads the file whenever it is drawn.

    That of one lab says what comes next there. In a notebook it follows later checks of the same
    kernel.
    """

    def __init__(self, course: Sequence[LabExercises]):
        self._course = tuple(course)

    def now(self) -> Standing:
        """Read the file as it is at this moment. Never raises."""
        path, lines, problem = "", [], ""
        try:
            file = _file()
            path = _shown(file)
            with open(file, "rb", opener=_regular) as stored:
                lines = stored.read(_MOST_BYTES).split(b"\n")
        except FileNotFoundError:  # nothing yet
            pass
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
            problem = _why(error)
        events = [_event(line) for line in lines if line.strip()]
        exercises = _standings(event for event in events if event is not None)
        labs = (
            LabStanding(
                lab.number,
                lab.title,
                tuple(
                    replace(
                        exercises.get((lab.number, name), ExerciseStanding(name)),
                        further=name in lab.further,
                    )
                    for name in lab.exercises
                ),
            )
            for lab in self._course
        )
        return Standing(tuple(labs), path, events.count(None), problem, _off())

    def as_dict(self) -> dict[str, Any]:
        """Return what `now()` gives, for JSON."""
        return asdict(self.now())

    def __str__(self) -> str:
        """Return the text for stdout, in ASCII where that can show no more."""
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        try:
            "█░✓·".encode(encoding)
            plain = False
        except UnicodeEncodeError:
            plain = True
        return _text(self.now(), plain).encode(encoding, "backslashreplace").decode(encoding)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        standing = self.now()
        return {"text/plain": _text(standing), "text/html": _html(standing)}

    def _ipython_display_(self) -> None:
        if not in_notebook():
            raise NotImplementedError  # IPython then draws it as it draws all else
        from IPython.display import display

        handle = display(self._repr_mimebundle_(), raw=True, display_id=True)
        _displays.append((self, handle))


# Under the cells of this notebook. A cell that ran again has left a dead one: few are kept.
_displays: deque[tuple[Progress, Any]] = deque(maxlen=8)


def _event(line: bytes) -> tuple[str, str, str] | None:
    """Return the lab, the exercise and the event of a line; None if it is broken."""
    try:
        fields = json.loads(line)
        found = fields["lab"], fields["exercise"], fields["event"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if all(isinstance(field, str) for field in found) else None


def _standings(
    events: Iterable[tuple[str, str, str]],
) -> dict[tuple[str, str], ExerciseStanding]:
    """Return the state of each exercise that has events, by lab and exercise."""
    found: dict[tuple[str, str], ExerciseStanding] = {}
    for lab, name, event in events:
        one = found.get((lab, name), ExerciseStanding(name))
        if one.passed:
            continue
        if event == "passed":
            one = replace(one, passed=True)
        elif event == "tried":
            one = replace(one, tries=one.tries + 1)
        elif event == "solution":
            one = replace(one, solution=True)
        found[lab, name] = one
    return found


# ── How it is drawn ──────────────────────────────────────────────────────────────────────────


def _text(standing: Standing, plain: bool = False) -> str:
    full, empty, passed, still = ("#", ".", "[x]", "[ ]") if plain else ("█", "░", "✓", "·")
    titles = [textwrap.shorten(lab.title, _TITLE, placeholder=" ...") for lab in standing.labs]
    title_width = max(map(len, titles), default=0)
    share_width = max((len(lab.share) for lab in standing.labs), default=0)
    rows = []
    for lab, title in zip(standing.labs, titles, strict=True):
        # Full only when all is done, and empty only when nothing is.
        filled = max(lab.done * _BAR // lab.count, 1) if lab.done else 0
        head = (
            f"{lab.number} {title:<{title_width}}  {full * filled}{empty * (_BAR - filled)} "
            f"{lab.share:<{share_width}}   "
        )
        items = [
            f"{passed if one.passed else still} {one.name}" + (f" ({one.note})" if one.note else "")
            for one in lab.exercises
        ]
        for at, names in enumerate(_wrapped(items, " ", _COLUMNS - len(head)) or [""]):
            rows.append(((head if at == 0 else " " * len(head)) + names).rstrip())
    words, address = _ahead(standing)
    total, *rest = _foot(standing)
    foot = [total, words, *rest] if address else [total, *rest]
    return "\n".join(rows + _wrapped(foot, " - " if plain else " · ", _COLUMNS))


def _wrapped(items: list[str], between: str, width: int) -> list[str]:
    """Return lines that end between two items only; an item longer than that has its own."""
    flow = between.join(item.replace(" ", "\xa0") for item in items)
    lines = textwrap.wrap(flow, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _ahead(standing: Standing) -> tuple[str, str]:
    """Return the words and the address of what comes next, "" but for one lab alone: a link to an
    exercise leads on in its own notebook."""
    if len(standing.labs) != 1:
        return "", ""
    [lab] = standing.labs
    return way_on(lab.number, [one for one in lab.exercises if not one.passed])


def _foot(standing: Standing) -> list[str]:
    """Return the total, and where it is stored."""
    done = sum(lab.done for lab in standing.labs)
    count = sum(lab.count for lab in standing.labs)
    said = [f"{done} of {count} exercises"]
    if standing.problem:
        said.append(f"cannot be read: {standing.problem}")
    else:
        said.append(f"stored in {standing.stored_in}")
    if standing.broken_lines == 1:
        said.append("1 broken line in it is ignored")
    elif standing.broken_lines:
        said.append(f"{standing.broken_lines} broken lines in it are ignored")
    if standing.off:
        said.append(f"nothing more is stored: {standing.off}")
    return said


# Texts have the colour of the page around them, so that it reads in every theme.
_LINE = "rgba(127,127,127,.5)"


def _html(standing: Standing) -> str:
    rows = "".join(_row(lab) for lab in standing.labs)
    words, address = _ahead(standing)
    onward = f"<div>{link(words, address)}</div>" if address else ""
    foot = " · ".join(_escape(part) for part in _foot(standing))
    return (
        f'<div class="lockstep-progress" style="color:inherit;line-height:1.45">'
        f'<div role="list" aria-label="Progress by lab">{rows}</div>{onward}'
        f'<div style="font-size:12px;margin-top:4px;overflow-wrap:anywhere">{foot}</div>'
        "</div>"
    )


def _row(lab: LabStanding) -> str:
    """Return title, bar and names beside each other; below each other where there is no room."""
    percent = 100 * lab.done // lab.count if lab.count else 0
    name = f"{_escape(lab.number)} {_escape(lab.title)}"
    bar = (
        f'<span role="img" aria-label="{name}: {_escape(lab.share)} done" style="display:'
        "inline-block;width:80px;height:9px;border-radius:2px;margin-right:8px;"
        f'border:1px solid {_LINE};background:rgba(127,127,127,.12)">'
        f'<span style="display:block;width:{percent}%;height:100%;background:{DONE}"></span>'
        "</span>"
    )
    items = " ".join(_item(exercise) for exercise in lab.exercises)
    return (
        '<div role="listitem" style="display:flex;flex-wrap:wrap;column-gap:12px;padding:2px 0;'
        f'border-bottom:1px solid {_LINE}">'
        f'<div style="flex:0 1 14em;font-weight:600">{name}</div>'
        f'<div style="flex:0 0 auto;min-width:12em">{bar}{_escape(lab.share)}</div>'
        f'<div style="flex:1 1 18em">{items}</div></div>'
    )


def _item(exercise: ExerciseStanding) -> str:
    sign, spoken = ("✓", "done") if exercise.passed else ("·", "open")
    note = f" <span>({_escape(exercise.note)})</span>" if exercise.note else ""
    return (
        '<span style="display:inline-block;margin-right:10px">'
        f'<span role="img" aria-label="{spoken}">{sign}</span> '
        f"{_escape(exercise.name)}{note}</span>"
    )


def _escape(text: str) -> str:
    return escaping.escape(text)
