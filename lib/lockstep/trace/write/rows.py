"""Every answer as plain rows, for JSON, CSV and whoever compares runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..slices import TraceError

if TYPE_CHECKING:
    from ..analyses.kernels import Kernels
    from ..trace import Trace

Row = dict[str, Any]


def rows_of(
    trace: Trace, skip: int = 0, more: bool = False
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """({question: its rows}, {question: why it has no answer}); more: see `summary.summarise`.

    Rows are flat; times are nanoseconds, sizes bytes, bandwidths bytes per nanosecond; what is
    unknown is None, or −1 where the answer itself says so.
    """
    questions: dict[str, Callable[[], Iterator[Row]]] = {
        "breakdown": lambda: _breakdown(trace, skip),
        "collectives": lambda: _collectives(trace),
        "critical_path": lambda: _critical_path(trace),
        "launches": lambda: (_flat(asdict(one)) for one in trace.launches().calls),
        "queues": lambda: (_flat(asdict(one)) for one in trace.launches().queues),
        "kernels": lambda: _kernels(trace.kernels(max(1, len(trace.names)))),
    }
    if more:
        questions |= {
            "serving": lambda: _plain(trace.serving(skip=skip).passes, "tokens_per_second"),
            "what_if": lambda: _plain(trace.what_if().gains),
            "streams": lambda: _plain(trace.streams().streams, "idle"),
            "outliers": lambda: _plain(trace.streams().outliers),
            "kernels_by_operator": lambda: _kernels(trace.kernels().by_operator(len(trace))),
            "kernels_by_module": lambda: _kernels(trace.kernels().by_module(len(trace))),
            "kernels_by_shape": lambda: _kernels(trace.kernels().by_shape(len(trace))),
            "graph_nodes": lambda: _graph_nodes(trace),
            "rates": lambda: _plain(trace.rates().operators, *_OF_RATES),
            "roofline": lambda: _plain(trace.roofline().operators, "lost", "share"),
            "copies": lambda: _plain(trace.rates().copies, "bandwidth"),
            "memory": lambda: _plain(trace.allocations().usage, "growth"),
            "memory_by_step": lambda: _plain(trace.allocations().by_step),
            "memory_by_operator": lambda: _plain(trace.allocations().operators),
            "reach": lambda: _plain(trace.traffic().reaches),
            "all_to_alls": lambda: _exchanges(trace),
        }
    answers, refused = {}, {}
    for name, ask in questions.items():
        try:
            answers[name] = list(ask())
        except TraceError as error:
            refused[name] = str(error)
    return answers, refused


def write_csv(answers: dict[str, list[Row]], folder: Path) -> list[Path]:
    """One file a question that has rows."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in answers.items():
        if rows:
            paths.append(folder / f"{name}.csv")
            with paths[-1].open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    return paths


def _breakdown(trace: Trace, skip: int) -> Iterator[Row]:
    """Yield a row for each step, and one for all steps together under step None.

    lost: the share of the rank's launching calls, in the whole trace, whose kernels are missing.
    """
    found = trace.breakdown(skip=skip)
    for one in (*found.steps, *found.totals):
        more = {"length": one.length, "exposed": one.exposed, "lost": found.lost[one.rank]}
        yield asdict(one) | more


def _collectives(trace: Trace) -> Iterator[Row]:
    for one in trace.collectives():
        yield {
            "operation": one.operation,
            "group": one.group,
            "number": one.number,
            "ranks": " ".join(map(str, one.ranks)),
            "bytes": one.bytes,
            "start": min(one.start.values()),
            "end": max(one.end.values()),
            "waited": sum(one.waited.values()),
            "last": one.last,
            "transfer": one.transfer,
            "algorithm_bandwidth": _known(one.algorithm_bandwidth),
            "bus_bandwidth": _known(one.bus_bandwidth),
        }


def _critical_path(trace: Trace) -> Iterator[Row]:
    path = trace.critical_path()
    for kind, name, count, ns in path.top(len(path.segments)):
        yield {"kind": kind, "name": name, "count": count, "time": ns}


def _plain(answers: Iterable[Any], *properties: str) -> Iterator[Row]:
    """Fields and these properties of frozen dataclasses."""
    for one in answers:
        row = asdict(one) | {name: getattr(one, name) for name in properties}
        yield {k: _known(v) if isinstance(v, float) else v for k, v in row.items()}


def _graph_nodes(trace: Trace) -> Iterator[Row]:
    for number, graph in enumerate(trace.replays().graphs):
        for row in _plain(graph.nodes):
            yield {"graph": number, "rank": graph.rank, "replays": graph.replays, **row}


_OF_RATES = ("teraflops", "intensity", "bandwidth")


def _exchanges(trace: Trace) -> Iterator[Row]:
    """One row a pair of ranks."""
    for one in trace.traffic().exchanges:
        for source, row in zip(one.ranks, one.matrix.tolist(), strict=True):
            for to, size in zip(one.ranks, row, strict=True):
                yield {"group": one.group, "from": source, "to": to, "bytes": size}


def _kernels(found: Kernels) -> Iterator[Row]:
    for one in found.groups:
        row = asdict(one)
        row["streams"] = " ".join(map(str, row["streams"]))
        yield row | {f"rank_{rank}": time for rank, time in row.pop("by_rank").items()}


def _flat(row: Row) -> Row:
    """Make three columns of median, 90th percentile and largest."""
    found: Row = {}
    for key, value in row.items():
        if isinstance(value, tuple):
            found |= {f"{key}_{what}": v for what, v in zip(_OF_THREE, value, strict=True)}
        else:
            found[key] = value
    return found


_OF_THREE = ("median", "p90", "largest")


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
