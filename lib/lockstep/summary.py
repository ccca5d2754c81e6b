"""What the traces of N ranks show, as text: each question in a section of its own."""

from __future__ import annotations

from collections.abc import Callable

from .trace import Trace, TraceError
from .trace.read.kineto.load import Source
from .words import milliseconds

Section = tuple[str, str]  # title, text


def of(source: Source, skip: int = 0) -> tuple[Trace, list[Section]]:
    """Load traces, put them on one clock, and answer every question that they can answer.

    skip: how many steps of each rank to leave out. Where the clocks cannot be aligned the section
    says why, and questions across ranks stay open. Raises TraceError where nothing can be read.
    """
    trace = Trace.load(source)
    sections = [(str(trace.stamp or "Traces"), "\n".join([_size(trace), *trace.notes]))]
    try:
        trace = trace.align()
        sections.append(("Clock", str(trace.certificate)))
    except TraceError as error:
        sections.append(("Clock", f"not aligned: {error}"))
    questions: dict[str, Callable[[], object]] = {
        "Where the time went": lambda: trace.breakdown(skip=skip),
        "Collectives": trace.collectives,
        "Critical path": trace.critical_path,
        "Launches": trace.launches,
        "Kernels": trace.kernels,
    }
    for title, ask in questions.items():
        try:
            sections.append((title, str(ask())))
        except TraceError as error:
            sections.append((title, f"no answer: {error}"))
    return trace, sections


def _size(trace: Trace) -> str:
    ranks = "1 rank" if len(trace.ranks) == 1 else f"{len(trace.ranks)} ranks"
    first, last = trace.span
    lanes, length = len(trace.lanes), milliseconds(last - first)
    return f"{len(trace):,} slices of {ranks} in {lanes} lanes, {length} ms"
