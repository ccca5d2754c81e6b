"""The lanes of a file: its threads, and the streams of its GPUs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from ...slices import DEVICE_KINDS, NONE, Column, Kind, Lane


def add_lanes(columns: dict[str, Column], places: list[Any], labels: dict[Any, str]) -> list[Lane]:
    """Adds the column "lane", threads first, and gives the lanes (of rank 0)."""
    kind, stream, place = columns["kind"], columns["stream"], columns["place"]
    pid = np.array([p if isinstance(p, int) and abs(p) < 2**31 else NONE for p, _ in places])
    device = np.where(columns["device"] >= 0, columns["device"], pid[place])
    of_gpu = np.isin(kind, [*DEVICE_KINDS, Kind.GPU_ANNOTATION, Kind.WAIT])
    of_gpu &= (kind != Kind.COMMUNICATION) & ((stream >= 0) | (kind == Kind.WAIT))
    keys = np.zeros((len(kind), 3), np.int64)
    keys[:, 0] = of_gpu
    keys[:, 1] = np.where(of_gpu, device, place)
    keys[:, 2] = np.where(of_gpu, np.maximum(stream, NONE), 0)
    mixed = np.zeros(len(kind), np.int64)
    for at in range(3):  # one number a lane; much faster than unique rows
        values, number = np.unique(keys[:, at], return_inverse=True)
        mixed = mixed * len(values) + number
    _, first, row = np.unique(mixed, return_index=True, return_inverse=True)
    found = [tuple(int(one) for one in keys[at]) for at in first]
    many_devices = len({device for gpu, device, _ in found if gpu}) > 1
    many_processes = len({places[place][0] for gpu, place, _ in found if not gpu}) > 1
    lanes = []
    for gpu, where, number_of_stream in found:
        if gpu:
            label = f"stream {number_of_stream}" if number_of_stream >= 0 else "synchronisation"
            label = f"GPU {where} {label}" if many_devices else label
            lanes.append(Lane(0, label, number_of_stream, where))
        else:
            process, thread = places[where]
            name = labels.get((process, thread), "")
            lanes.append(
                Lane(
                    0,
                    _thread_label(process, thread, name),
                    process=labels.get(process, "") or f"process {process}",
                )
            )
    seen = Counter(lane.label for lane in lanes)
    for at, lane in enumerate(lanes):
        if seen[lane.label] > 1 and not lane.on_device:
            process, thread = places[found[at][1]]
            which = f"{process}:{thread}" if many_processes else thread
            lanes[at] = replace(lane, label=f"{lane.label} ({which})")
    main_first = sorted(
        range(len(lanes)),
        key=lambda at: (lanes[at].on_device, lanes[at].label != "thread main", found[at]),
    )
    position = np.empty(len(lanes), np.int32)
    position[main_first] = np.arange(len(lanes))
    columns["lane"] = position[row]
    return [lanes[at] for at in main_first]


def _thread_label(process: int, thread: int, name: str) -> str:
    if process == thread:
        return "thread main"
    named = re.fullmatch(r"thread -?\d+ \((.*)\)", name.strip())
    plain = named[1] if named else name.strip()
    return plain or f"thread {thread}"
