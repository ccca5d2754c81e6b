"""A summary of the traces of N ranks, as text: a headline, then each question in its own
section."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.formatting import counted, milliseconds
from . import Trace, TraceError
from .analyses.headline import headline
from .read.kineto.load import Source

Section = tuple[str, str]  # title, text


def load(source: Source, run: str | None = None) -> Trace:
    """The traces of one run: of the only one there, or of this one (see `Trace.runs`).

    Raises TraceError, with the names of the runs, where it is not clear which is meant.
    """
    if run is None:
        try:
            return Trace.load(source)
        except TraceError:
            try:
                runs = Trace.runs(source)
            except TraceError:
                runs = {}
            if len(runs) < 2:
                raise
            raise TraceError(
                f"these are {len(runs)} runs: {_named(runs)}: choose one with --run NAME"
            ) from None
    runs = Trace.runs(source)
    if run not in runs:
        raise TraceError(f"there is no run {run}; there are: {_named(runs)}")
    return runs[run]


def summarise(
    source: Source,
    skip: int = 0,
    *,
    run: str | None = None,
    more: bool = False,
    before: Source | None = None,
) -> tuple[Trace, list[Section], dict[str, Any]]:
    """Load traces, put them on one clock, and answer every question that they can answer.

    Returns the trace, the answers as text, and as they are, by title: a TraceError for none.

    skip: how many steps of each rank to leave out. run: which, of several. more: answer what is
    asked less often, too, for which the files are read again. before: an earlier trace of the
    program, to say what has changed since. The first section is the headline,
    under the stamp of all. Where the clocks cannot be aligned a section says why, and questions
    across ranks stay open. Raises TraceError where nothing can be read.
    """
    trace = load(source, run)
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
    if more:
        questions |= {
            "What if": trace.what_if,
            "Server": lambda: trace.serving(skip=skip),
            "Streams and outliers": trace.streams,
            "Replays of graphs": trace.replays,
            "Kernels by shape": lambda: trace.kernels().by_shape(),
            "Rates": trace.rates,
            "Roofline": trace.roofline,
            "Memory": trace.allocations,
            "Traffic": trace.traffic,
        }
    if before is not None:
        earlier = load(before)
        questions |= {
            "Changes in work": lambda: earlier.diff(trace),
            "Changes in operators": lambda: earlier.tree_diff(trace),
        }
    sections = [
        ("What was read", "\n".join([_size(trace), *trace.notes])),
        ("Clock", clock),
    ]
    found: dict[str, Any] = {}
    for title, ask in questions.items():
        try:
            found[title] = ask()
            sections.append((title, _without_stamp(str(found[title]), trace)))
        except TraceError as error:
            found[title] = error
            open_ = "not aligned, see above" if clock.endswith(str(error)) else str(error)
            sections.append((title, f"no answer: {open_}"))
    met = found["Collectives"]
    said = headline(trace, str(met) if isinstance(met, TraceError) else met, skip)
    return trace, [(str(trace.provenance), "\n".join(said)), *sections], found


def _named(runs: dict[str, Trace]) -> str:
    return ", ".join(name or "." for name in list(runs)[:12])


def _without_stamp(text: str, trace: Trace) -> str:
    """The first section has it."""
    return "\n".join(line for line in text.splitlines() if line != str(trace.provenance))


def _size(trace: Trace) -> str:
    first, last = trace.span
    ranks, length = counted(len(trace.ranks), "rank"), milliseconds(last - first)
    return f"{len(trace):,} slices of {ranks} in {len(trace.lanes)} lanes, {length} ms"
