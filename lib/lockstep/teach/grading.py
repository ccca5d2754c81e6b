"""Judge answers that a learner's notebook has left, in a sandbox of its own.

Its folder has answers.json. This process has the course's own checks and what is right; no line of
a learner's ever runs in it:

- an answer stays packed here, and is opened on ranks, which are other processes;
- what ranks send back is opened only if it is made of numbers, texts and the check's own records;
- the ranks, which run as the same user, can neither read nor write this process, nor open its files
  (PR_SET_DUMPABLE), so the verdicts, which go over a descriptor that only this process has, are its
  own.

What an answer does on its own rank it can lie about there: how many calls it made, say. What it
must have computed, it is not told.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from ..course import exercises
from ..course.exercises import NOT_JUDGED, NOT_YET, TRY_AGAIN
from ..course.judging import running, values
from ..launch import payload

ANSWERS = "answers.json"
_PLAIN_CLASSES = {
    (kind.__module__, kind.__qualname__)
    for kind in (
        *(complex, set, frozenset),
        *(running.Step, values.Tensor, values.Number, values.Other),
    )
}
_TRIES = 2  # where the machine is too busy


class PackedAnswer:
    """An answer that nobody opens here: it becomes itself where it arrives, on a rank."""

    def __init__(self, content: bytes, sizes: list[int]):
        self._content, self._sizes = content, sizes

    def __call__(self, *_: Any) -> Any:
        raise AssertionError("an answer can be called on ranks only")

    def __reduce__(self) -> Any:
        return _open_answer, (self._content, self._sizes)


def _open_answer(content: bytes, sizes: list[int]) -> Any:
    return payload.Parcel(bytearray(content), sizes).open()


class PlainUnpickler(payload.Unpickler):
    """Opens what is made of plain data and nothing else: a class of the ranks' choice would run
    their code here."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN_CLASSES:
            raise pickle.UnpicklingError(f"a rank sent {module}.{name}, which is not plain data")
        return super().find_class(module, name)


def main() -> None:
    says = int(os.environ.pop("SANDBOX_SAYS"))
    os.set_inheritable(says, False)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    payload.Parcel.unpickler = PlainUnpickler
    for name, packed in json.loads(Path(ANSWERS).read_text(encoding="utf-8")).items():
        os.write(says, json.dumps(_verdict(name, packed)).encode() + b"\n")


def _verdict(name: str, packed: dict[str, Any]) -> dict[str, Any]:
    """Check an answer; returns the fields of a `report.Judgement`."""
    said: dict[str, Any] = {"exercise": name, "mistake": "", "hint": "", "borrowed": False}
    if packed["kind"] == "NoneType":
        return said | {"verdict": NOT_YET}
    if "problem" in packed:
        return said | {"verdict": TRY_AGAIN, "hint": f"it cannot travel: {packed['problem']}"}
    if not packed["callable"]:
        hint = f"{name} is of type {packed['kind']}, and should be a function (or a class)."
        return said | {"verdict": TRY_AGAIN, "mistake": "no-function", "hint": hint}
    answer = PackedAnswer(base64.b64decode(packed["content"]), packed["sizes"])
    for _ in range(_TRIES):
        outcome = exercises.check(name, answer)
        if outcome.verdict != NOT_JUDGED:
            break
    first = next(iter(outcome.hint.splitlines()), "")
    said |= {"verdict": outcome.verdict, "mistake": outcome.mistake, "hint": first[:1000]}
    return said | {"borrowed": name in exercises.shown()}
