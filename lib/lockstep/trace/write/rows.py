"""Every answer as plain rows, for JSON, CSV and whoever compares runs; slices as a data frame."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..slices import Kind, Slices, TraceError

Row = dict[str, Any]


def rows_of(
    found: Mapping[str, Any], more: bool = False
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """({table: its rows}, {table: why there is no answer}).

    found, more: see `summary.summarise`. Rows are flat; times are nanoseconds, sizes bytes,
    bandwidths bytes per nanosecond; what is unknown is None, or −1 where the answer itself says so.
    """
    answers, refused = {}, {}
    for name, (title, rows) in _TABLES.items():
        if title not in found or (name in _ONLY_MORE and not more):
            continue
        try:
            if isinstance(found[title], TraceError):
                raise found[title]
            answers[name] = list(rows(found[title]))
        except TraceError as error:
            refused[name] = str(error)
    return answers, refused


def to_pandas(trace: Slices) -> Any:
    """A pandas DataFrame, names and kinds as categories. Raises ImportError without pandas."""
    import pandas as pd

    assert len(set(trace.names)) == len(trace.names), "names of a trace are distinct"
    columns: dict[str, Any] = trace.columns()
    columns["name"] = pd.Categorical.from_codes(columns["name"], list(trace.names))
    labels = [kind.label for kind in Kind]
    columns["kind"] = pd.Categorical.from_codes(columns["kind"], labels)
    return pd.DataFrame(columns)


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


def _breakdown(found: Any) -> Iterator[Row]:
    """Yield a row for each step, and one for all steps together under step None.

    lost: the share of the rank's launching calls, in the whole trace, whose kernels are missing.
    """
    for one in (*found.steps, *found.totals):
        more = {"length": one.length, "exposed": one.exposed, "lost": found.lost[one.rank]}
        yield asdict(one) | more


def _collectives(found: Any) -> Iterator[Row]:
    for one in found:
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


def _critical_path(path: Any) -> Iterator[Row]:
    for kind, name, count, ns in path.top(len(path.segments)):
        yield {"kind": kind, "name": name, "count": count, "time": ns}


def _plain(answers: Iterable[Any], *properties: str) -> Iterator[Row]:
    """Fields and these properties of frozen dataclasses."""
    for one in answers:
        row = asdict(one) | {name: getattr(one, name) for name in properties}
        yield {k: _known(v) if isinstance(v, float) else v for k, v in row.items()}


def _graph_nodes(found: Any) -> Iterator[Row]:
    for number, graph in enumerate(found.graphs):
        for row in _plain(graph.nodes):
            yield {"graph": number, "rank": graph.rank, "replays": graph.replays, **row}


def _exchanges(found: Any) -> Iterator[Row]:
    """One row a pair of ranks."""
    for one in found.exchanges:
        for source, row in zip(one.ranks, one.matrix.tolist(), strict=True):
            for to, size in zip(one.ranks, row, strict=True):
                yield {"group": one.group, "from": source, "to": to, "bytes": size}


def _kernels(found: Any) -> Iterator[Row]:
    for one in found.groups:
        row = asdict(one)
        row["streams"] = " ".join(map(str, row["streams"]))
        yield row | {f"rank_{rank}": time for rank, time in row.pop("by_rank").items()}


def _flat(answers: Iterable[Any]) -> Iterator[Row]:
    """Make three columns of median, 90th percentile and largest."""
    for one in answers:
        row: Row = {}
        for key, value in asdict(one).items():
            if isinstance(value, tuple):
                row |= {f"{key}_{what}": v for what, v in zip(_OF_THREE, value, strict=True)}
            else:
                row[key] = value
        yield row


_OF_THREE = ("median", "p90", "largest")


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


_OF_RATES = ("teraflops", "intensity", "bandwidth")
_ALL = 1 << 62  # groups of kernels, and not only the first
_ONLY_MORE = ("kernels_by_operator", "kernels_by_module")  # of what is always asked
# Table → the title of its question in `summary`, and the rows of an answer.
_TABLES: dict[str, tuple[str, Callable[[Any], Iterable[Row]]]] = {
    "breakdown": ("Where the time went", _breakdown),
    "collectives": ("Collectives", _collectives),
    "critical_path": ("Critical path", _critical_path),
    "launches": ("Launches", lambda found: _flat(found.calls)),
    "queues": ("Launches", lambda found: _flat(found.queues)),
    "kernels": ("Kernels", lambda found: _kernels(found.trace.kernels(_ALL))),
    "serving": ("Server", lambda found: _plain(found.passes, "tokens_per_second")),
    "what_if": ("What if", lambda found: _plain(found.gains)),
    "streams": ("Streams and outliers", lambda found: _plain(found.streams, "idle")),
    "outliers": ("Streams and outliers", lambda found: _plain(found.outliers)),
    "kernels_by_operator": ("Kernels", lambda found: _kernels(found.by_operator(_ALL))),
    "kernels_by_module": ("Kernels", lambda found: _kernels(found.by_module(_ALL))),
    "kernels_by_shape": ("Kernels by shape", lambda found: _kernels(found.by_shape(_ALL))),
    "graph_nodes": ("Replays of graphs", _graph_nodes),
    "rates": ("Rates", lambda found: _plain(found.operators, *_OF_RATES)),
    "roofline": ("Roofline", lambda found: _plain(found.operators, "lost", "share")),
    "copies": ("Rates", lambda found: _plain(found.copies, "bandwidth")),
    "memory": ("Memory", lambda found: _plain(found.usage, "growth")),
    "memory_by_step": ("Memory", lambda found: _plain(found.by_step)),
    "memory_by_operator": ("Memory", lambda found: _plain(found.operators)),
    "reach": ("Traffic", lambda found: _plain(found.reaches)),
    "all_to_alls": ("Traffic", _exchanges),
}
