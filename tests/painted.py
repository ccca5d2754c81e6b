"""What time went to, painted: an oracle for the breakdown of Kineto files that shares no code with
the library. It reads JSON by itself and colours every nanosecond of each step; stretches in which
nothing begins or ends are coloured in one stroke.

`python tests/painted.py FILE …` compares the two on files of others, and says where they differ.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

NAMED = re.compile(
    r"^(void )?(\(anonymous namespace\)::|\w+::)*(nccl\w*(Kernel|Func)|cross_device_reduce"
    r"|(one|two)_shot_all_reduce|allreduce_fusion_kernel|multimem_all_reduce)"
    r"|\bep::inter(node)::|\bep::intra(node)::"
)
COLOURS = ("compute", "communication", "overlapped", "copies", "host_bound", "dependency", "other")


def events_of(path: Path) -> dict[str, Any]:
    packed = path.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    found = json.loads(text.decode(errors="replace"), strict=False, parse_float=Fraction)
    return found if isinstance(found, dict) else {"traceEvents": found}


def communicates(event: dict[str, Any]) -> bool:
    """Tell by an event's own metadata, or by its name, whether it communicates."""
    return "Collective name" in event.get("args", {}) or bool(NAMED.search(event["name"]))


def painted(
    path: Path, talks: Callable[[dict[str, Any]], bool] = communicates
) -> list[dict[str, int]]:
    """For each step of a file with a GPU: "length", and nanoseconds of each of `COLOURS`."""
    work, calls, spans = [], dict[int, Any](), []
    first: dict[int, int | None] = defaultdict(
        lambda: None
    )  # correlation → when the first that it launched began
    for one in events_of(path)["traceEvents"]:
        category, args = one.get("cat", "").lower(), one.get("args") or {}
        if one.get("ph") != "X" or not isinstance(one.get("pid"), int) or "dur" not in one:
            continue
        start = int(Fraction(one["ts"]) * 1000)
        end = start + int(Fraction(one["dur"]) * 1000)
        spans.append((start, end, one["name"], category, one["tid"]))
        number = int(args.get("correlation") or 0)
        if category in ("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"):
            colour = (
                "copies" if category != "kernel" else "communication" if talks(one) else "compute"
            )
            if end > start:
                work.append((start, end, colour, number))
                begun = first[number]
                if number and (begun is None or start < begun):
                    first[number] = start
        elif category in ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime"):
            before = calls.get(number)
            if number and (before is None or start < before[0]):
                calls[number] = (start, end)
    return [_paint(work, calls, first, *bounds) for bounds in _steps(spans, work, calls)]


def _steps(spans: list[Any], work: list[Any], calls: dict[int, Any]) -> Iterator[tuple[int, int]]:
    annotated = [
        (start, end, thread)
        for start, end, name, category, thread in spans
        if category in ("user_annotation", "operator")
        and re.fullmatch(r"ProfilerStep\s*#\s*\d+", name)
    ]
    if annotated:
        threads = [thread for _, _, thread in annotated]
        main = max(dict.fromkeys(threads), key=threads.count)
        marks = sorted((start, end) for start, end, thread in annotated if thread == main)
    else:
        marks = [(min(span[0] for span in spans), max(span[1] for span in spans))]
    last = marks[-1][1]
    begun = [end for start, end, _, n in work if calls.get(n, (start,))[0] < last]
    ends = [start for start, _ in marks[1:]] + [max([last, *begun])]
    yield from zip([start for start, _ in marks], ends, strict=True)


def _paint(
    work: list[Any], calls: dict[int, Any], first: dict[int, Any], begin: int, end: int
) -> dict[str, int]:
    times = {
        begin,
        end,
        *(t for one in work for t in one[:2]),
        *(t for c in calls.values() for t in c),
    }
    cuts = np.array(sorted(times), np.int64)
    canvas = {
        colour: np.zeros(len(cuts), bool) for colour in ("compute", "communication", "copies")
    }
    for start, stop, colour, _ in work:
        canvas[colour][np.searchsorted(cuts, start) : np.searchsorted(cuts, stop)] = True
    busy = np.logical_or.reduce([*canvas.values()])
    # An idle cell belongs to what ends it: to the host until that was launched.
    launched: dict[int, list[int]] = defaultdict(list)
    for start, _, _, number in work:
        if number in calls:
            # What a call launched after its first is ready at once.
            ready = calls[number][1] if start == first[number] else -(10**30)
            launched[start].append(ready)
    idle = {colour: np.zeros(len(cuts), bool) for colour in ("host_bound", "dependency", "other")}
    next_start = None
    for at in range(len(cuts) - 1, -1, -1):
        if busy[at]:
            next_start = int(cuts[at])
        elif next_start is None or next_start not in launched:
            idle["other"][at] = True
        else:
            ready = min(launched[next_start])
            idle["host_bound" if cuts[at] < ready else "dependency"][at] = True
    length = np.diff(cuts, append=cuts[-1])
    inside = (cuts >= begin) & (cuts < end)
    compute, talk = canvas["compute"], canvas["communication"]
    cells = {
        "compute": compute,
        "communication": talk,
        "overlapped": compute & talk,
        "copies": canvas["copies"] & ~compute & ~talk,
        **idle,
    }
    spent = {colour: int(length[inside & cells[colour]].sum()) for colour in COLOURS}
    return {"length": end - begin, **spent}


def differences(path: Path, talks: Callable[[dict[str, Any]], bool] = communicates) -> list[str]:
    """Say where the library says something else than the paint, in words."""
    from lockstep.trace import Trace

    steps = Trace.load(path, cache=False).breakdown().steps
    wanted = painted(path, talks)
    if len(steps) != len(wanted):
        return [f"{len(steps)} steps, and not {len(wanted)}"]
    return [
        f"step {at}: {colour} is {getattr(one, colour)}, and not {value}"
        for at, (one, right) in enumerate(zip(steps, wanted, strict=True))
        for colour, value in right.items()
        if getattr(one, colour) != value
    ]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            wrong = differences(Path(name))
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        print("exact" if not wrong else "\n    ".join(["DIFFERENT", *wrong[:6]]), name, flush=True)
