"""What the traces of N ranks show, as text: a headline, then each question in its own section."""

from __future__ import annotations

from collections.abc import Callable

from .trace import Trace, TraceError
from .trace.ask.headline import headline
from .trace.read.kineto.load import Source
from .words import milliseconds

Section = tuple[str, str]  # title, text


def of(source: Source, skip: int = 0) -> tuple[Trace, list[Section]]:
    """Load traces, put them on one clock, and answer every question that they can answer.

    skip: how many steps of each rank to leave out. The first section is the headline, under the
    stamp of all. Where the clocks cannot be aligned a section says why, and questions across ranks
    stay open. Raises TraceError where nothing can be read.
    """
    trace = Trace.load(source)
    try:
        trace = trace.align()
        clock = str(trace.certificate)
    except TraceError as error:
        clock = f"not aligned: {error}"
    questions: dict[str, Callable[[], object]] = {
        "Likely cause": lambda: trace.cause(skip=skip),
        "Where the time went": lambda: trace.breakdown(skip=skip),
        "Collectives": trace.collectives,
        "Critical path": trace.critical_path,
        "Launches": trace.launches,
        "Kernels": trace.kernels,
    }
    sections = [
        ("What was read", "\n".join([_size(trace), *trace.notes])),
        ("Clock", clock),
    ]
    for title, ask in questions.items():
        try:
            sections.append((title, _without_stamp(str(ask()), trace)))
        except TraceError as error:
            open_ = "not aligned, see above" if clock.endswith(str(error)) else str(error)
            sections.append((title, f"no answer: {open_}"))
    try:
        said = headline(trace, trace.collectives(), skip)
    except TraceError as error:
        said = headline(trace, str(error), skip)
    return trace, [(str(trace.provenance), "\n".join(said)), *sections]


def _without_stamp(text: str, trace: Trace) -> str:
    """The first section has it."""
    return "\n".join(line for line in text.splitlines() if line != str(trace.provenance))


def _size(trace: Trace) -> str:
    ranks = "1 rank" if len(trace.ranks) == 1 else f"{len(trace.ranks)} ranks"
    first, last = trace.span
    lanes, length = len(trace.lanes), milliseconds(last - first)
    return f"{len(trace):,} slices of {ranks} in {lanes} lanes, {length} ms"
