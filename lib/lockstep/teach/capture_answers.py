"""Write down each answer in a learner's kernel, as it is handed to its check, or as it stands.

Nothing is judged here, and nothing that is said here is believed: a learner's code may do what it
likes in this process. What leaves it is an answer, packed, which `grading` gives to ranks and never
opens. So whoever changes this module in a kernel can only hand in another answer.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from IPython import get_ipython

from ..course.exercises import NOT_JUDGED, CheckOutcome, exercises, hand_answers_to
from ..launch import payload

_MOST = 8 << 20  # bytes of an answer


class _AnswerCapture:
    """Writes the answers to one lab's exercises into a folder, each into a file of its own."""

    def __init__(self, folder: Path, lab: str):
        self._folder = folder
        self._names = {one.name for one in exercises() if one.lab == lab}
        self._checked: set[str] = set()
        self._seen: dict[str, Any] = {}

    def on_check(self, name: str, answer: Any) -> CheckOutcome:
        if name in self._names:
            self._checked.add(name)
            self._write(name, answer)
        return CheckOutcome(name, NOT_JUDGED, "recorded: it is judged outside this notebook")

    def before_cell(self, info: Any) -> None:
        """Note the first line of the cell that runs now, for the report of one that never ends."""
        line = next(iter(str(info.raw_cell).strip().splitlines()), "")
        (self._folder / "at").write_text(line[:200], encoding="utf-8", errors="replace")

    def after_cell(self, _: Any) -> None:
        """Write the answers that this cell has defined and that no check was given yet."""
        found = get_ipython().user_ns
        for name in self._names & found.keys() - self._checked:
            if found[name] is not self._seen.get(name):
                self._seen[name] = found[name]
                self._write(name, found[name])

    def _write(self, name: str, answer: Any) -> None:
        said: dict[str, Any] = {"kind": type(answer).__name__, "callable": callable(answer)}
        content = b""
        try:
            file, said["sizes"] = payload.write(answer, most=_MOST)
            with file:
                content = os.pread(file.fileno(), file.tell(), 0)
        except Exception as error:
            said["problem"] = f"{type(error).__name__}: {error}"[:500]
        except BaseException as error:  # what the launcher raises is no Exception
            said["problem"] = str(error)[:500]
        head = json.dumps(said).encode() + b"\n"
        partial = self._folder / f"{name}.part"
        partial.write_bytes(head + content)
        os.replace(partial, self._folder / f"{name}.answer")


def begin(lab: str) -> None:
    """Capture this lab's answers from now on; the first cell of the notebook calls it."""
    capture = _AnswerCapture(Path(os.environ["SANDBOX_OUT"]), lab)
    hand_answers_to(capture.on_check)
    shell = get_ipython()
    shell.events.register("pre_run_cell", capture.before_cell)
    shell.events.register("post_run_cell", capture.after_cell)
    # Nobody looks at pictures here, and to draw them takes long.
    shown = shell.display_formatter
    shown.active_types = ["text/plain"]
    shown.ipython_display_formatter.enabled = shown.mimebundle_formatter.enabled = False
