"""One trace file of all ranks that Perfetto (and chrome://tracing) shows, nothing dropped.

Perfetto drops slices of one track that overlap without one enclosing the other; they go to tracks
of their own here. It tells processes and flows apart by number; ranks recorded on several hosts may
share these, so they are numbered anew.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .joins import launch_of, on_device
from .table import NONE, Kind, Trace


def export(trace: Trace, file: str | os.PathLike[str]) -> Path:
    """Write a trace in Chrome's JSON format, packed if the name ends in .gz; returns the path.

    A rank becomes a process, a lane a thread, with more threads where slices overlap. Times start
    at 0. Arrows lead from launches to what they launched. Raises TraceError for an empty trace.
    """
    path = Path(file)
    first, _ = trace.span
    part = path.with_name(path.name + ".part")  # a reader never finds half a file
    try:
        with (
            (
                gzip.open(part, "wb", compresslevel=5) if path.suffix == ".gz" else part.open("wb")
            ) as raw,
            io.TextIOWrapper(raw, encoding="utf-8") as out,
        ):
            head = {"stamp": str(trace.stamp or ""), "clock": str(trace.certificate or "")}
            out.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(head)},"traceEvents":[\n')
            for number, event in enumerate(_events(trace, first)):
                out.write(",\n" if number else "")
                out.write(event)
            out.write("\n]}\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def tracks(starts: Any, ends: Any) -> Any:
    """For slices in order of start, the longer first: the number of the track of each.

    On one track any two slices are apart, or one encloses the other.
    """
    number = np.zeros(len(starts), np.int64)
    if len(starts) < 2 or np.all(np.maximum.accumulate(ends)[:-1] <= starts[1:]):
        return number
    open_slices: list[list[int]] = []  # for each track the ends of what is open, outermost first
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        for track, stack in enumerate(open_slices):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                number[at] = track
                break
        else:
            number[at] = len(open_slices)
            open_slices.append([end])
    return number


def _events(trace: Trace, first: int) -> Iterator[str]:
    names = [json.dumps(name) for name in trace.names]
    details = [_details(trace, known) for known in range(len(trace.known))]
    threads: defaultdict[int, int] = defaultdict(int)
    thread = np.zeros(len(trace), np.int64)
    for rank in trace.ranks:
        yield _metadata("process_name", rank, 0, name=f"rank {rank}")
        yield _metadata("process_sort_index", rank, 0, sort_index=rank)
    for at, lane in enumerate(trace.lanes):
        rows = trace.rows_of(at)
        track = tracks(trace.start[rows], trace.end[rows])
        base = threads[lane.rank]
        for more in range(int(track.max(initial=0)) + 1):
            label = lane.label if more == 0 else f"{lane.label} (overlapping {more})"
            yield _metadata("thread_name", lane.rank, base + more, name=label)
            yield _metadata("thread_sort_index", lane.rank, base + more, sort_index=base + more)
        thread[rows] = base + track
        threads[lane.rank] = base + int(track.max(initial=0)) + 1
    labels = {int(kind): json.dumps(kind.label) for kind in Kind}
    columns = zip(
        (trace.start - first).tolist(),
        trace.duration.tolist(),
        trace.rank.tolist(),
        thread.tolist(),
        trace.name.tolist(),
        trace.kind.tolist(),
        trace.collective.tolist(),
        strict=True,
    )
    for start, duration, rank, own, name, kind, known in columns:
        args = "" if known == NONE else f',"args":{details[known]}'
        yield (
            f'{{"ph":"X","pid":{rank},"tid":{own},"ts":{_micro(start)},"dur":{_micro(duration)},'
            f'"name":{names[name]},"cat":{labels[kind]}{args}}}'
        )
    yield from _arrows(trace, thread, first)


def _arrows(trace: Trace, thread: Any, first: int) -> Iterator[str]:
    launched = on_device(trace)
    launch = launch_of(trace, launched)
    joined = launch != NONE
    pairs = zip(launch[joined].tolist(), launched[joined].tolist(), strict=True)
    for number, pair in enumerate(pairs):
        for phase, at in zip("sf", pair, strict=True):
            start = _micro(int(trace.start[at]) - first)
            yield (
                f'{{"ph":"{phase}","bp":"e","id":{number},"cat":"launch","name":"launch",'
                f'"pid":{trace.rank[at]},"tid":{thread[at]},"ts":{start}}}'
            )


def _micro(nanoseconds: int) -> str:
    """Microseconds, exact, as JSON: 1234567 → 1234.567."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _details(trace: Trace, known: int) -> str:
    what = trace.known[known]
    args: dict[str, Any] = {"operation": what.operation, "evidence": what.evidence}
    if what.group:
        args["process group"] = what.group
    if what.ranks:
        args["ranks"] = str(list(what.ranks))
    if what.bytes_in != NONE:
        args["bytes in"] = what.bytes_in
    if what.bytes_out != NONE:
        args["bytes out"] = what.bytes_out
    return json.dumps(args)


def _metadata(name: str, rank: int, thread: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args})
