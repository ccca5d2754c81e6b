"""One Kineto file: from its events to columns, with every repair counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....base.formatting import counted, milliseconds
from ...slices import (
    COLUMNS,
    DEVICE_KINDS,
    NONE,
    Collective,
    Column,
    Kind,
    Lane,
    Numbering,
    TraceError,
)
from . import kinds
from .about import about_file
from .communications import find_communications
from .events import BAD_TIME, DECIMALS, FLOATS, as_decimal
from .lanes import add_lanes
from .rows import Rows, gather
from .text import Text, decode

SAVED = tuple(column for column in COLUMNS if column not in ("rank", "stream"))  # lanes have these
LONGEST_NAME = 10_000  # characters
_DAY = 86_400 * 10**9  # ns; no profile lasts as long
_SLOW_CALL = 10**6  # ns; calls that launch take microseconds
_UINT_NONE = 2**32 - 1  # how Kineto writes stream -1

Mask = NDArray[np.bool_]


@dataclass
class File:
    """The content of one file, rows sorted by lane, start and longest first; lanes have no rank
    yet.

    columns: those of a trace but rank and stream. about: see `load`. notes: repairs.
    """

    columns: dict[str, Column]
    names: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    known: list[Collective] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read(path: Path) -> File:
    """Read one file. Raises TraceError where it cannot be read, is no trace or has no slices."""
    text = Text(path, FLOATS)
    rows = Rows()
    number = 0
    for batch, found in text.events():
        if not gather(rows, found, number, batch):
            text.decoders = DECIMALS
            gather(rows, decode(batch, DECIMALS), number, batch)
        number += len(found)
    notes = [*text.damage]
    damage = list(notes)
    if rows.unreadable:
        many = counted(len(rows.unreadable), "event")
        notes.append(f"{many} cannot be read, the first is no. {rows.unreadable[0]:,}")
    if rows.phaseless:
        many = counted(rows.phaseless, "event")
        what = """without a phase ("ph") that Chrome's format has, or half a slice (B, E)"""
        notes.append(f"{many} {what}: left out")
    if not rows.pieces:
        because = ": did the run reach a step that its profiler's schedule records?"
        if notes:
            because = f" ({'; '.join(notes)})"
        raise TraceError(f"{path} has no slices among its {counted(number, 'event')}{because}")
    file = _finish(rows, path, text.about, notes)
    return replace(file, about=file.about | ({"damage": damage} if damage else {}))


def _finish(rows: Rows, path: Path, says: dict[str, Any], notes: list[str]) -> File:
    columns = rows.columns()
    names, places = list(rows.names), list(rows.places)
    categories = list(rows.categories)
    columns["kind"] = _kinds(columns, categories, names)
    familiar = np.array([kinds.is_known(one) for one in categories], bool)
    spans = familiar[columns["category"]] & (columns["kind"] == Kind.OTHER)
    keep = _usable(columns, places, spans, notes)
    columns = {column: values[keep] for column, values in columns.items()}
    if not len(columns["start"]):
        because = f" ({'; '.join(notes)})" if notes else ""
        raise TraceError(f"{path} has no slices of threads or streams{because}")
    for column in ("external", "correlation"):  # Kineto writes 0 where there is none
        columns[column][columns[column] <= 0] = NONE
    base = _base(says, int(np.median(columns["start"])), notes)
    columns["start"] += base
    lanes = add_lanes(columns, places, rows.labels)
    order = np.lexsort((-columns["duration"], columns["start"], columns["lane"]))
    columns = {column: values[order] for column, values in columns.items()}
    if many := int((again := _given_again(columns)).sum()):
        notes.append(f"{counted(many, 'slice')} given twice, with the same time and ids: left out")
        columns = {column: values[~again] for column, values in columns.items()}
    calls = columns["duration"][columns["kind"] == Kind.LAUNCH]
    if len(calls) and (median := float(np.median(calls))) > _SLOW_CALL:
        notes.append(
            f"half of its calls that launch work take {milliseconds(median)} ms: are its times "
            "nanoseconds? They are taken for microseconds, as PyTorch's profiler writes them"
        )
    about = about_file(says, path, columns, notes) | {"base": base}
    about |= _unread(columns["category"], categories, notes)
    known = find_communications(columns, names, list(rows.said), about, notes)
    columns["name"], names = _used(columns["name"], names, notes)
    columns = {column: columns[column].astype(COLUMNS[column], copy=False) for column in SAVED}
    return File(columns, names, lanes, known, about, notes)


def _kinds(columns: dict[str, Column], categories: list[str], names: list[str]) -> Column:
    """By category and name, which are looked at once a pair."""
    pair = columns["category"].astype(np.int64) * len(names) + columns["name"]
    pairs, row = np.unique(pair, return_inverse=True)
    found = [kinds.kind(categories[one // len(names)], names[one % len(names)]) for one in pairs]
    return np.array(found, np.uint8)[row]


def _unread(column: Column, categories: list[str], notes: list[str]) -> dict[str, Any]:
    """ "unread": category → number of slices, of categories that nobody here knows."""
    many = np.bincount(column, minlength=len(categories)).tolist()
    unread = {
        one or "none": count
        for one, count in zip(categories, many, strict=True)
        if count and not kinds.is_known(one)
    }
    if not unread:
        return {}
    which = ", ".join(list(unread)[:5])
    notes.append(
        f"{counted(sum(unread.values()), 'slice')} of unknown categories ({which}): they are "
        "not counted"
    )
    return {"unread": unread}


def _usable(columns: dict[str, Column], places: list[Any], spans: Mask, notes: list[str]) -> Mask:
    """Which rows are slices of threads and streams with a time that can be; says what is not.

    spans: rows that are no work, as of the profiler itself, which may stand nowhere.
    """
    is_place = np.array([isinstance(p, int) and isinstance(t, int) for p, t in places], bool)
    keep = np.ones(len(columns["place"]), bool)
    start, duration = columns["start"], columns["duration"]

    def leave_out(which: Mask, why: str) -> None:
        nonlocal keep
        if many := int((keep & which).sum()):
            notes.append(f"{counted(many, 'slice')} {why}: left out")
            keep = keep & ~which

    nowhere = ~is_place[columns["place"]]
    keep &= ~(nowhere & spans)
    leave_out(nowhere, "whose process and thread are not both numbers")
    leave_out(
        (start == BAD_TIME) | (duration == BAD_TIME), "without a start or duration that is a number"
    )
    leave_out(duration < 0, "with a negative duration")
    leave_out(start < 0, "at a negative time")
    leave_out(duration > _DAY, "longer than a day")
    if keep.any():
        middle = int(np.median(start[keep]))
        leave_out(np.abs(start - middle) > _DAY, "more than a day away from the others")
    on_device = np.isin(columns["kind"], DEVICE_KINDS)
    on_device &= columns["kind"] != Kind.COMMUNICATION  # of gloo, so far
    stream = columns["stream"]
    stream[stream == _UINT_NONE] = NONE
    thread = np.array([t if isinstance(t, int) and abs(t) < 2**62 else NONE for _, t in places])
    row = thread[columns["place"]]
    nowhere = on_device & (stream < 0)
    if many := int((keep & nowhere & (row >= 0)).sum()):
        which = f"{counted(many, 'slice')} of the GPU without a stream"
        notes.append(f"{which}: their row's number (tid) taken for it")
    leave_out(nowhere & (row < 0), "of the GPU without a stream")
    stream[nowhere] = row[nowhere]
    annotated = (columns["kind"] == Kind.GPU_ANNOTATION) & (stream < 0)
    stream[annotated] = row[annotated]
    if len(large := np.unique(stream[stream >= 2**31])):
        notes.append(f"{counted(len(large), 'stream')} with a number above 2^31: renumbered")
        anew = stream >= 2**31
        stream[anew] = 2**31 - 1 - np.searchsorted(large, stream[anew])
    return keep


def _given_again(columns: dict[str, Column]) -> Mask:
    """Which rows, in order of lane and time, repeat another in all that tells events apart.

    Without ids two calls of one function may look alike: such rows count only if others repeat.
    """
    time = np.stack([columns[name] for name in ("lane", "start", "duration")])
    like_next = (time[:, 1:] == time[:, :-1]).all(axis=0)
    near = np.flatnonzero(np.r_[like_next, False] | np.r_[False, like_next])
    again = np.zeros(len(columns["lane"]), bool)
    ids = np.stack([columns[name][near] for name in ("correlation", "external")])
    what = [columns[name][near] for name in ("lane", "start", "duration", "name", "kind")]
    _, first = np.unique(np.vstack([*what, ids]), axis=1, return_index=True)
    again[near] = True
    again[near[first]] = False
    return again if (again[near] & (ids != NONE).any(axis=0)).any() else np.zeros_like(again)


def _base(says: dict[str, Any], middle: int, notes: list[str]) -> int:
    """Nanoseconds to be added to every start."""
    said = as_decimal(says.get("baseTimeNanoseconds"))
    base = 0 if said is None else int(said)
    if base and middle > 10**18:  # since the epoch already: the base is no part of these times
        notes.append(
            "times are since the epoch although the file gives a base: the base is ignored"
        )
        return 0
    return base


def _used(column: Column, names: list[str], notes: list[str]) -> tuple[Column, list[str]]:
    """Only the names that rows have, cut where they are endless."""
    used, column = np.unique(column, return_inverse=True)
    numbering = Numbering()
    too_long = 0
    place = []
    for one in used:
        name = names[one]
        if len(name) > LONGEST_NAME:
            too_long += 1
            name = f"{name[:LONGEST_NAME]}…"
        place.append(numbering[name])
    if too_long:
        notes.append(f"{counted(too_long, 'name')} of more than {LONGEST_NAME:,} characters cut")
    return np.array(place, np.int32)[column], list(numbering)
