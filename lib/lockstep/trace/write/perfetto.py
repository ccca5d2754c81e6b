"""One trace file of all ranks that Perfetto (and chrome://tracing) shows, nothing dropped.

Perfetto drops slices of one track that overlap without one enclosing the other; they go to tracks
of their own here. It tells processes and arrows apart by number; ranks recorded on several hosts
may share these, so they are numbered anew.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ..analyses.allocations import allocations
from ..analyses.launches import launches
from ..joins import launch_of, on_device
from ..shapes import inputs_in
from ..slices import NONE, Column, Kind, Slices, TraceError

_AT_ONCE = 10_000  # events written at once


def export(trace: Slices, file: str | os.PathLike[str]) -> Path:
    """Write a trace in Chrome's JSON format, packed if the name ends in .gz; returns the path.

    A rank becomes a process, a lane a thread, with more threads where slices overlap. Times start
    at 0 and are exact to the nanosecond. Arrows lead from launches to what they launched, unless
    that seems to begin before them. Operators have the shapes of their inputs. Counters are
    tracks of what is queued for a rank's GPU, of its memory (where the profiler recorded that), and
    of how many bytes a second its copies move. For shapes, memory and copies the files are read
    again; without files these lack. Raises TraceError for an empty trace, and where the files have
    changed or are gone.
    """
    path = Path(file)
    first, _ = trace.span
    head = _json({"stamp": str(trace.stamp or ""), "clock": str(trace.certificate or "")})
    part = path.with_name(path.name + ".part")  # a reader never finds half a file
    try:
        with (
            gzip.open(part, "wb", 1) if path.suffix == ".gz" else part.open("wb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace") as out,
        ):
            events = chain(_events(trace, first, _shapes(trace)), _counters(trace, first))
            out.write(f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n')
            out.write(next(events))
            while some := list(islice(events, _AT_ONCE)):
                out.write(",\n" + ",\n".join(some))
            out.write("\n]}\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def tracks(starts: Column, ends: Column) -> Column:
    """For slices in order of start, the longer first: the number of the track of each.

    On one track any two slices are apart, or one encloses the other. A slice goes to the first
    track where that is so.
    """
    number = np.zeros(len(starts), np.int64)
    if np.all(np.maximum.accumulate(ends)[:-1] <= starts[1:]):
        return number
    within: list[list[int]] = []  # for each track the ends of what is open, outermost first
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        for track, open_ends in enumerate(within):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if not open_ends or end <= open_ends[-1]:
                open_ends.append(end)
                number[at] = track
                break
        else:
            number[at] = len(within)
            within.append([end])
    return number


def _shapes(trace: Slices) -> dict[int, str]:
    """Row → what is added to an operator's args, as JSON."""
    found = {}
    for row, args in trace.args_of(trace.where(Kind.OPERATOR)):
        inputs = inputs_in(args)
        if inputs is not None and (tensors := [one for one in inputs if one.shape or one.tensors]):
            said = {"shapes": " ".join(map(str, tensors))}
            said["types"] = " ".join(one.type for one in tensors)
            found[row] = f',"args":{_json(said)}'
    return found


def _counters(trace: Slices, first: int) -> Iterator[str]:
    """Counter tracks, one value at each change."""

    def track(rank: int, name: str, times: Column, values: Column, unit: str) -> Iterator[str]:
        kept = np.append(True, values[1:] != values[:-1]) if len(values) else np.empty(0, bool)
        for at, value in zip((times[kept] - first).tolist(), values[kept].tolist(), strict=True):
            at = max(at, 0)
            yield (
                f'{{"ph":"C","pid":{rank},"ts":{at // 1000}.{at % 1000:03},'
                f'"name":{_json(name)},"args":{{{_json(unit)}:{value}}}}}'
            )

    with suppress(TraceError):  # nothing is known of its GPUs
        for rank, (times, depth) in launches(trace).depths.items():
            yield from track(rank, "queued for the GPU", times, depth, "kernels and copies")
    with suppress(TraceError):  # no memory events
        for (rank, device), (times, size) in allocations(trace).curves.items():
            where = "host" if device == NONE else f"GPU {device}"
            yield from track(rank, f"memory of the {where}", times, size, "bytes allocated")
    for rank, times, speed in _copy_speeds(trace):
        yield from track(rank, "copies", times, speed, "GB/s")


def _copy_speeds(trace: Slices) -> Iterator[tuple[int, Column, Column]]:
    """(rank, times, GB/s of all copies that run from then on), of ranks whose copies say bytes."""
    found: dict[int, list[tuple[int, int, float]]] = {}
    for row, args in trace.args_of(trace.where(Kind.COPY)):
        size, took = args.get("bytes"), int(trace.duration[row])
        if isinstance(size, int) and took > 0:
            start = int(trace.start[row])
            found.setdefault(int(trace.rank[row]), []).append((start, start + took, size / took))
    for rank, copies in found.items():
        starts, ends, speed = (np.array(one) for one in zip(*copies, strict=True))
        times = np.concatenate((starts, ends))
        order = np.argsort(times, kind="stable")
        total = np.cumsum(np.concatenate((speed, -speed))[order]).round(3) + 0.0
        last = np.append(times[order][1:] > times[order][:-1], True)  # of several at one time
        yield rank, times[order][last], total[last]


def _events(trace: Slices, first: int, shapes: dict[int, str]) -> Iterator[str]:
    for rank in trace.ranks:
        yield _metadata("process_name", rank, 0, {"name": f"rank {rank}"})
        yield _metadata("process_sort_index", rank, 0, {"sort_index": rank})
    thread = np.zeros(len(trace), np.int64)
    made = max(trace.ranks)  # threads
    for at, lane in enumerate(trace.lanes):
        rows = trace.rows_of(at)
        track = tracks(trace.start[rows], trace.end[rows])
        thread[rows] = made + 1 + track
        for more in range(int(track.max(initial=0)) + 1):
            made += 1
            label = f"{lane.label} (overlapping {more})" if more else lane.label
            yield _metadata("thread_name", lane.rank, made, {"name": label})
            yield _metadata("thread_sort_index", lane.rank, made, {"sort_index": made})
    names = [_json(name) for name in trace.names]
    kinds = [_json(kind.label) for kind in Kind]
    details = [
        "",
        *(f',"args":{_json(_details(trace, at))}' for at in range(len(trace.known))),
    ]
    columns = (
        *np.divmod(trace.start - first, 1000),  # microseconds and what is left: exact, no float
        *np.divmod(trace.duration, 1000),
        trace.rank,
        thread,
        trace.name,
        trace.kind,
        trace.collective + 1,
        _arrows(trace),
    )
    for row, (start, ns, duration, more_ns, process, own, name, kind, known, arrow) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        flow = f',"bind_id":"{abs(arrow):#x}","{_FLOW[arrow > 0]}":true' if arrow else ""
        yield (
            f'{{"ph":"X","pid":{process},"tid":{own},"ts":{start}.{ns:03},'
            f'"dur":{duration}.{more_ns:03},"name":{names[name]},"cat":{kinds[kind]}'
            f"{details[known] or shapes.get(row, '')}{flow}}}"
        )


_FLOW = ("flow_in", "flow_out")


def _arrows(trace: Slices) -> Column:
    """For each row the number of its arrow, from 1: positive where it begins, negative at its ends.

    0: no arrow. They hang on the slices themselves: by time alone, Perfetto takes the innermost.
    """
    launched = on_device(trace)
    launch = launch_of(trace, launched)
    # What comes before its launch (clocks!) cannot be drawn; of equals the first in the file is.
    later = (trace.start[launched] > trace.start[launch]) | (
        (trace.start[launched] == trace.start[launch]) & (launched > launch)
    )
    drawn = (launch != NONE) & later
    launched, launch = launched[drawn], launch[drawn]
    arrow = np.zeros(len(trace), np.int64)
    arrow[launch] = launch + 1
    arrow[launched] = -(launch + 1)
    return arrow


def _details(trace: Slices, known: int) -> dict[str, Any]:
    what = trace.known[known]
    details = {
        "operation": what.operation or None,
        "process group": what.group or None,
        "ranks": str(list(what.ranks)) if what.ranks else None,
        "bytes in": None if what.bytes_in == NONE else what.bytes_in,
        "bytes out": None if what.bytes_out == NONE else what.bytes_out,
        "dtype": what.dtype or None,
        "peer": None if what.peer == NONE else what.peer,
        "evidence": what.evidence,
    }
    return {name: value for name, value in details.items() if value is not None}


def _metadata(name: str, rank: int, thread: int, args: dict[str, Any]) -> str:
    return _json({"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # Perfetto shows \u00b5 as it stands
