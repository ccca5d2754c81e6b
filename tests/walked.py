"""The critical path and the common clock, checked against the JSON by other means.

`python tests/walked.py FILE … FOLDER …`: of each file it checks the path of the one rank in it, of
each folder the clocks of the ranks. It shares no code with the library: it reads the JSON by itself
and looks for every claim of the path among the events.

Of a path: its segments tile the time up to the end of the last device work; each is part of an
event of its name (or of none); and what a kernel waited for is the latest of what its stream did
before, the call that launched it, and what ended on other streams within 10 µs before.

Of clocks: the offset of each rank is the median difference of the ends of its collectives with
those of ranks whose offset is known, beginning at the lowest, until nothing changes.
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from statistics import median_low
from typing import Any

from painted import events_of

DEVICE = ("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "xpu_runtime")
AT_ONCE = 10_000  # ns
_NAMES = ("allreduce", "all_reduce", "allgather", "all_gather", "_allgather_base")
SYNCHRONISING = (
    *_NAMES,
    "reduce_scatter",
    "_reduce_scatter_base",
    "all_to_all",
    "all_to_allv",
    "barrier",
)


class Ran:
    """One event; ns."""

    def __init__(self, one: dict[str, Any]):
        self.name, self.category = one["name"], one.get("cat", "").lower()
        self.args = one.get("args") or {}
        self.start = int(Fraction(one["ts"]) * 1000)
        self.end = self.start + int(Fraction(one["dur"]) * 1000)
        self.lane = one.get("pid"), self.args.get("device"), self.args.get("stream", one["tid"])
        self.correlation = int(self.args.get("correlation") or 0)


def slices_of(path: Path) -> list[Ran]:
    return [
        Ran(one)
        for one in events_of(path)["traceEvents"]
        if one.get("ph") == "X" and isinstance(one.get("pid"), int) and "dur" in one
    ]


def wrong_in_path(path: Path) -> tuple[list[str], str]:
    """Say what the path claims and the JSON does not, in words; and the path in short."""
    from lockstep.trace import Trace

    trace = Trace.load(path, cache=False)
    found = trace.critical_path()
    ran = slices_of(path)
    work = [one for one in ran if one.category in DEVICE and one.end > one.start]
    shift = int(trace.start.min()) - min(one.start for one in ran)
    pieces = [
        (one.kind, one.name, one.start - shift, one.end - shift, one.lane) for one in found.segments
    ]
    wrong = []
    if any(a[3] != b[2] for a, b in itertools.pairwise(pieces)):
        wrong.append("its segments do not tile the time")
    if pieces[-1][3] != max(one.end for one in work):
        wrong.append("it does not end with the last work")
    named: dict[str, list[Ran]] = defaultdict(list)
    for one in ran:
        named[one.name].append(one)
    for same in named.values():
        same.sort(key=lambda one: one.start)
    for kind, name, start, end, lane in pieces:
        if name and not _holds(named[name], start, end) and kind != "launch":
            wrong.append(f"{kind} {name[:40]} on {lane} at {start} is in no event of that name")
    wrong += _wrong_links(pieces, work, ran)
    kinds = ", ".join(f"{ns / 1e6:.2f} {kind}" for kind, ns in found.by_kind.items())
    return wrong, f"{len(pieces):,} segments, ms: {kinds}"


def _holds(same: list[Ran], start: int, end: int) -> bool:
    """Say whether an event holds this stretch; of those that began before, nested ones are few."""
    at = bisect_right(same, start, key=lambda one: one.start)
    return any(one.end >= end for one in same[max(0, at - 2_000) : at])


def _wrong_links(pieces: list[Any], work: list[Ran], ran: list[Ran]) -> list[str]:
    lanes: dict[Any, list[int]] = defaultdict(list)
    for one in work:
        lanes[one.lane].append(one.end)
    for ends in lanes.values():
        ends.sort()
    calls: dict[int, Ran] = {}
    for one in ran:
        if one.category in CALLS and one.correlation:
            before = calls.get(one.correlation)
            if before is None or one.start < before.start:
                calls[one.correlation] = one
    at_start: dict[tuple[str, int], list[Ran]] = defaultdict(list)
    for one in work:
        at_start[one.name, one.start].append(one)

    def last(ends: list[int], time: int) -> int | None:
        at = bisect_right(ends, time)
        return ends[at - 1] if at else None

    wrong = []
    for before, (kind, name, start, _, lane) in itertools.pairwise(pieces):
        if kind not in ("compute", "transfer", "copy"):
            continue
        answers = []
        for one in at_start[name, start]:
            ready = [last(lanes[one.lane], start)]
            call = calls.get(one.correlation)
            if call is not None and call.start <= start:
                ready.append(call.end if call.end <= start else call.start)
            others = (last(ends, start) for other, ends in lanes.items() if other != one.lane)
            ready += [end for end in others if end is not None and end >= start - AT_ONCE]
            answers.append(max((end for end in ready if end is not None), default=None))
        reached = before[2] if before[0] in ("launch", "waiting") else before[3]
        if not answers:
            wrong.append(
                f"{kind} {name[:40]} at {start} on {lane} does not begin as its event does"
            )
        elif reached not in answers and before[3] not in answers:
            wrong.append(f"{kind} {name[:40]} at {start} waited until {answers}, not {reached}")
    return wrong


def wrong_clocks(folder: Path) -> tuple[list[str], str]:
    """Ranks whose offset is another one than by medians, in words; and the offsets in short."""
    from lockstep.trace import Trace

    aligned = Trace.load(folder, cache=False).align()
    said = aligned.certificate
    assert said is not None
    ends: dict[int, dict[Any, int]] = {}
    for path in sorted(folder.iterdir()):
        file = events_of(path)
        base = int(file.get("baseTimeNanoseconds", 0))
        rank = file["distributedInfo"]["rank"]
        count: Counter[Any] = Counter()
        own = ends.setdefault(rank, {})
        for one in sorted(slices_of(path), key=lambda one: one.start):
            what = one.args.get("Collective name", "")
            if one.category == "kernel" and what in SYNCHRONISING:
                key = one.args.get("Process Group Name"), what
                count[key] += 1
                own[*key, one.args.get("Seq", count[key])] = one.end + base
    offset = {min(ends): 0}
    for _ in range(len(ends)):
        for rank in ends:
            if rank not in offset:
                apart = [
                    ends[rank][key] - (ends[other][key] - offset[other])
                    for other in offset
                    for key in ends[rank].keys() & ends[other].keys()
                ]
                if apart:
                    offset[rank] = median_low(apart)
    wrong = [f"rank {rank} cannot be compared by medians" for rank in ends if rank not in offset]
    wrong += [
        f"rank {rank} is {said.offsets.get(rank)} ns ahead, and not {offset[rank]}"
        for rank in offset
        if abs(said.offsets.get(rank, 10**18) - offset[rank]) > max(5_000, said.resolution)
    ]
    short = ", ".join(f"{rank}: {ns:,} ({said.offsets.get(rank):,})" for rank, ns in offset.items())
    return wrong, f"{said.matches:,} collectives, ns ahead by medians (certified): {short}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        place = Path(name)
        try:
            wrong, short = wrong_clocks(place) if place.is_dir() else wrong_in_path(place)
        except Exception as error:
            wrong, short = [f"{type(error).__name__}: {error}"], ""
        print(
            "agrees" if not wrong else f"DIFFERS in {len(wrong)}",
            name,
            short,
            sep=" | ",
            flush=True,
        )
        for one in wrong[:3]:
            print("   ", one[:230], flush=True)
