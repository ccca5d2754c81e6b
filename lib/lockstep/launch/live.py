"""The view of ranks while they run: a panel in a notebook, prefixed lines in a terminal."""

from __future__ import annotations

import html
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

from ..base.machine import in_notebook
from . import view
from .outcome import JobData
from .output import Output

_FIRST, _EVERY = 0.3, 0.15  # seconds: until a panel appears, and between its updates


_drawn: list[weakref.ref[JobData]] = []  # in the cell that runs now


def is_drawn(job: JobData) -> bool:
    """Return whether the cell that runs now shows this job already."""
    return any(job is drawn() for drawn in _drawn)


class Panel:
    """A display under the cell that follows the job; at its end it holds the final picture."""

    def __init__(self, picture: Callable[[Sequence[Output], float, str], JobData]) -> None:
        """picture: a running job, of what it has printed, the seconds so far and a suspicion."""
        self._picture = picture
        self._handle: Any = None
        self._next = time.perf_counter() + _FIRST

    def __call__(self, outputs: Sequence[Output], seconds: float, suspicion: str) -> None:
        now = time.perf_counter()
        if now >= self._next:
            job = self._picture(outputs, seconds, suspicion)
            self._next = now + max(_EVERY, 5 * self._draw(job))

    @contextmanager
    def waiting(self, job: JobData) -> Iterator[None]:
        """Say at once why nothing of this job is to be seen yet; an error takes that back."""
        self._draw(job)
        try:
            yield
        except BaseException:
            self._handle.update({"text/plain": ""}, raw=True)
            raise

    def end(self, job: JobData, report: bool) -> None:
        from IPython import get_ipython

        self._draw(job, report)
        events = get_ipython().events
        if _forget not in events.callbacks["pre_run_cell"]:
            events.register("pre_run_cell", _forget)
        _drawn.append(weakref.ref(job))

    def _draw(self, job: JobData, report: bool = True) -> float:
        """Returns how long it took, in seconds."""
        from IPython.display import display

        began = time.perf_counter()
        data = {"text/plain": view.text(job, report), "text/html": view.html(job, report)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
        return time.perf_counter() - began


def _forget(_: Any) -> None:
    _drawn.clear()


class Lines:
    """Whole lines to stdout, each with its rank, as they come."""

    def __init__(self, hidden: Set[int]) -> None:
        self._hidden = hidden
        self._said = ""

    def __call__(self, outputs: Sequence[Output], seconds: float, suspicion: str = "") -> None:
        if suspicion not in ("", self._said):
            self._said = suspicion
            print(suspicion, flush=True)
        for rank, output in enumerate(outputs):
            for line in () if rank in self._hidden else output.new_lines():
                print(f"rank {rank} │ {line}", flush=True)

    def end(self, job: JobData, report: bool) -> None:
        self(job.outputs, job.seconds)


class Silence:
    """Nothing until the end, and nothing then."""

    def __call__(self, outputs: Sequence[Output], seconds: float, suspicion: str) -> None:
        pass

    def end(self, job: JobData, report: bool) -> None:
        pass


class Notice:
    """One sentence that changes while a cell waits: under the cell, or in lines. The last stays."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._handle: Any = None
        self._said = ""

    def say(self, sentence: str) -> None:
        if not self._show or sentence == self._said:
            return
        if not in_notebook():
            # seconds alone are no news in a terminal
            if re.sub("[0-9]", "", sentence) != re.sub("[0-9]", "", self._said):
                print(sentence, flush=True)
        else:
            from IPython.display import display

            data = {"text/plain": sentence, "text/html": f"<div>{html.escape(sentence)}</div>"}
            if self._handle is None:
                self._handle = display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)
        self._said = sentence
