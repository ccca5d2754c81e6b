"""Execute and judge what learners have handed in, where it harms nothing: `lockstep report`."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..base.formatting import in_one_line
from ..course.exercises import NOT_JUDGED, PASS, exercises
from . import grading, run_notebook, sandbox, submissions
from .sandbox import Ended, Limits
from .submissions import Submission

Run = Callable[..., Ended]  # `sandbox.run` with limits, walls and when to stop
NO_ANSWER = "NO ANSWER"
_LONGEST = 300  # characters of what is quoted of a learner's cell
_OUTSIDE = ("Read-only file system", "Permission denied", "Operation not permitted")
_NETWORK = ("Network is unreachable", "Name or service not known", "name resolution", "gaierror")


@dataclass(frozen=True)
class Judgement:
    """The verdict on an exercise: PASS, TRY AGAIN, NOT YET, NOT JUDGED or NO ANSWER.

    mistake: its name; hint: what the check said. borrowed: the course's own answer is in it.
    """

    exercise: str
    verdict: str
    mistake: str = ""
    hint: str = ""
    borrowed: bool = False
    further: bool = False

    @property
    def counts(self) -> bool:
        return self.verdict == PASS and not self.borrowed

    @property
    def reason(self) -> str:
        """Why it does not count, where that can be said."""
        if self.verdict == PASS and self.borrowed:
            return "not counted: the course's own answer is in it"
        return self.hint


@dataclass(frozen=True)
class Graded:
    """A notebook, executed and judged. events: what went wrong in it, for its teacher. seconds: of
    both."""

    learner: str
    lab: str
    file: str
    verdicts: tuple[Judgement, ...]
    events: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def score(self) -> int:
        """The number of exercises of the core that passed."""
        return sum(one.counts for one in self.verdicts if not one.further)

    @property
    def is_judged(self) -> bool:
        """True if the course has a verdict on all that it has."""
        judged = all(one.verdict != NOT_JUDGED for one in self.verdicts)
        return bool(self.verdicts) and judged

    @property
    def most(self) -> int:
        return sum(not one.further for one in self.verdicts)


def grade_folder(
    folder: Path,
    labs: Sequence[str],
    limits: Limits,
    walls: bool,
    at_once: int,
    progress: bool = False,
) -> Iterator[Graded]:
    """Execute and judge all notebooks of these labs (none: all) below a folder, `at_once` at a
    time; in order, as they are done.

    Of those that have the same code only the first is executed. progress: show a bar on stderr.
    Raises OSError where that is no folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    wanted = {number.zfill(2) for number in labs}
    found = [one for one in submissions.find(folder) if not wanted or one.lab in wanted]
    stop = threading.Event()
    run = partial(sandbox.run, limits=limits, walls=walls, stop=stop)
    running: dict[tuple[str, str], Future[Graded]] = {}
    first = {one.executes: one for one in reversed(found)}
    bar = tqdm(total=len(first), desc="executing", unit="notebook", disable=not progress)
    with bar, ThreadPoolExecutor(at_once) as pool:
        try:
            for one in found:
                if first[one.executes] is one:
                    running[one.executes] = pool.submit(_grade, one, run, limits, stop)
                    running[one.executes].add_done_callback(lambda _: bar.update())
            for one in found:
                yield _as_of(one, running[one.executes].result())
        finally:  # with Ctrl-C, what runs need not end
            stop.set()
            pool.shutdown(cancel_futures=True)


def _as_of(one: Submission, graded: Graded) -> Graded:
    """Return what was found about one with the same code, as found about `one`."""
    if (graded.learner, graded.file) == (one.learner, one.path.name):
        return graded
    same = f"not executed again: it has the code of {graded.learner}, {graded.file}"
    notes = (*one.notes, same)
    return replace(graded, learner=one.learner, file=one.path.name, notes=notes, seconds=0.0)


def _grade(one: Submission, run: Run, limits: Limits, stop: threading.Event) -> Graded:
    began = time.monotonic()
    verdicts: dict[str, Judgement] = {}
    events = [one.problem] if one.problem else []
    course = [exercise for exercise in exercises() if exercise.lab == one.lab]
    try:
        if not one.problem:
            packed = _execute(one, run, limits, events)
            verdicts = _judge(packed, run, limits, stop, events)
    except OSError as error:  # nothing can be started
        events.append(f"it could not be executed: {error}")
    return Graded(
        one.learner,
        one.lab,
        one.path.name,
        tuple(
            replace(verdicts.get(each.name, Judgement(each.name, NO_ANSWER)), further=each.further)
            for each in course
        ),
        tuple(map(in_one_line, events)),
        one.notes,
        time.monotonic() - began,
    )


def _execute(one: Submission, run: Run, limits: Limits, events: list[str]) -> dict[str, Any]:
    """Execute a notebook; returns its answers by exercise, packed. What happened goes to events."""
    program = f"from lockstep.teach import run_notebook; run_notebook.main({one.lab!r})"
    executed = run(["-c", program], files={run_notebook.NOTEBOOK: one.notebook})
    events += _events(executed, limits)
    names = [exercise.name for exercise in exercises() if exercise.lab == one.lab]
    return {name: answer for name in names if (answer := _answer(executed, name))}


def _judge(
    packed: dict[str, Any], run: Run, limits: Limits, stop: threading.Event, events: list[str]
) -> dict[str, Judgement]:
    """Judge answers. One that ends the judge has no verdict; the others get another judge."""
    verdicts: dict[str, Judgement] = {}
    while packed and not stop.is_set():
        program = "from lockstep.teach import grading; grading.main()"
        ended = run(["-P", "-c", program], files={grading.ANSWERS: json.dumps(packed)})
        for line in ended.said.splitlines():
            one = Judgement(**json.loads(line))
            verdicts[one.exercise] = one
            packed.pop(one.exercise, None)
        if packed:
            name = next(iter(packed))
            packed.pop(name)
            why = _ended(ended, limits)
            verdicts[name] = Judgement(name, NOT_JUDGED, hint=why)
            events.append(f"the judge of its answer {name}: {why}")
    return verdicts


def _answer(executed: Ended, name: str) -> dict[str, Any] | None:
    """Return an answer as `capture_answers` has left it, or what a learner has put there: only its
    form is sure. None where there is no such thing."""
    head, _, content = executed.files.get(f"{name}.answer", b"").partition(b"\n")
    try:
        said = json.loads(head)
        answer: dict[str, Any] = {
            "kind": in_one_line(said["kind"])[:100],
            "callable": bool(said["callable"]),
        }
        if "problem" in said:
            return answer | {"problem": in_one_line(said["problem"])[:_LONGEST]}
        sizes = [int(size) for size in said["sizes"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return answer | {"sizes": sizes, "content": base64.b64encode(content).decode()}


def _events(executed: Ended, limits: Limits) -> Iterator[str]:
    """Yield what a teacher should know of an execution; a learner's words are in quotes."""
    at = _quoted(executed.files.get("at", b"").decode(errors="replace"))
    if executed.how != "exit 0" or "how.json" not in executed.files:
        yield f"{_ended(executed, limits)}, in the cell that begins with {at}"
    try:
        how = json.loads(executed.files.get("how.json", b"{}"))
        problems = [str(one) for one in how.get("problems", [])]
        keys = ("line", "error", "message")
        errors = [{key: str(one[key]) for key in keys} for one in how["errors"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    yield from (one[:_LONGEST] for one in problems)
    for error in errors:
        if error["error"] == "NotImplementedError":
            continue  # a blank
        said = f"{error['error']}: {error['message']}"
        what = "raised"
        if any(word in said for word in _OUTSIDE):
            what = "tried to write (or read) outside its folder"
        elif any(word in said for word in _NETWORK):
            what = "tried to reach the network"
        yield f"a cell {what}: {_quoted(said)}, in {_quoted(error['line'])}"


def _ended(run: Ended, limits: Limits) -> str:
    said = {
        "time": f"did not end within {limits.seconds:g} s",
        "memory": f"needed more than {limits.memory / 1e9:.1f} GB of memory",
        "processes": f"started more than {limits.processes} processes",
        "disk": f"wrote more than {limits.disk / 1e9:.1f} GB of files",
        "stopped": "stopped its own sandbox",
        "exit 0": "ended too early",
    }
    return said.get(run.how, f"ended with {run.how}")


def _quoted(text: str) -> str:
    return f"“{in_one_line(text)[:_LONGEST]}”"
