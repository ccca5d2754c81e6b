"""One Kineto file: from its events to columns, with every repair counted."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...slices import COLUMNS, DEVICE_KINDS, NONE, Collective, Column, Kind, Lane, TraceError
from . import kinds
from .text import Decoders, Text, decode

SAVED = tuple(column for column in COLUMNS if column not in ("rank", "stream"))  # lanes have these
LONGEST_NAME = 10_000  # characters
_DAY = 86_400 * 10**9  # ns; no profile lasts as long
_EXACT = 2.0**43  # µs; below, a float tells thousandths apart
_FRACTION = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d+[.eE]')
_BAD = np.iinfo(np.int64).min
_UINT_NONE = 2**32 - 1  # how Kineto writes stream -1

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Mask = NDArray[np.bool_]


class Args(msgspec.Struct, gc=False):
    """What is kept of an event's args. The rest is read again when it is asked for."""

    external: Integer = msgspec.field(name="External id", default=NONE)
    correlation: Integer = NONE
    stream: Integer = NONE
    device: Integer = NONE
    old_external: Integer = msgspec.field(name="external id", default=NONE)
    collective: str = msgspec.field(name="Collective name", default="")
    elements_in: Integer = msgspec.field(name="In msg nelems", default=NONE)
    elements_out: Integer = msgspec.field(name="Out msg nelems", default=NONE)
    dtype: str = ""
    group: str = msgspec.field(name="Process Group Name", default="")
    ranks: str | list[Integer] = msgspec.field(name="Process Group Ranks", default="")
    size: Integer = msgspec.field(name="Group size", default=NONE)
    sequence: Integer = msgspec.field(name="Seq", default=NONE)
    source: Integer = msgspec.field(name="Src Rank", default=NONE)
    destination: Integer = msgspec.field(name="Dst Rank", default=NONE)
    label: str = msgspec.field(name="name", default="")  # of a thread or process
    bytes_in: Integer = msgspec.field(name="lockstep bytes in", default=NONE)
    bytes_out: Integer = msgspec.field(name="lockstep bytes out", default=NONE)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


class Event(_Event, gc=False):
    """An event whose times, in microseconds, fit into floats."""

    ts: float = math.nan
    dur: float = math.nan


class ExactEvent(_Event, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None


_NO_ARGS = Args()


@dataclass
class File:
    """What one file says, rows sorted by lane, start and longest first; lanes have no rank yet.

    columns: those of a trace but rank and stream. about: see `kineto.load`. notes: repairs.
    """

    columns: dict[str, Column]
    names: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    known: list[Collective] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Numbering(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = number = len(self)
        return number


@dataclass
class _Gathered:
    """Rows as they come, and what their numbers stand for."""

    pieces: dict[str, list[Column]] = field(default_factory=lambda: defaultdict(list))
    names: _Numbering = field(default_factory=_Numbering)
    categories: _Numbering = field(default_factory=_Numbering)
    places: _Numbering = field(default_factory=_Numbering)  # (pid, tid)
    said: _Numbering = field(default_factory=_Numbering)  # what args say of a collective
    labels: dict[Any, str] = field(default_factory=dict)
    halves: list[tuple[int, int, Any]] = field(default_factory=list)  # B and E: ts, origin, event
    unreadable: list[int] = field(default_factory=list)

    def add(self, events: Sequence[Any], start: Column, duration: Column, origin: Column) -> None:
        args = [one.args or _NO_ARGS for one in events]
        external = np.array([one.external for one in args], np.int64)
        if np.any(external == NONE):
            old = np.array([one.old_external for one in args], np.int64)
            external = np.where(external == NONE, old, external)
        said = [
            self.said[
                one.collective,
                one.dtype,
                one.elements_in,
                one.elements_out,
                one.bytes_in,
                one.bytes_out,
                one.group.strip('"'),
                one.ranks if isinstance(one.ranks, str) else str(one.ranks),
                one.size,
                one.source,
                one.destination,
            ]
            if one.collective
            else NONE
            for one in args
        ]
        columns = {
            "start": start,
            "duration": duration,
            "origin": origin.astype(np.int32),
            "name": np.array([self.names[one.name] for one in events], np.int32),
            "category": np.array([self.categories[one.cat] for one in events], np.int32),
            "place": np.array([self.places[one.pid, one.tid] for one in events], np.int32),
            "external": external,
            "correlation": np.array([one.correlation for one in args], np.int64),
            "stream": np.array([one.stream for one in args], np.int64),
            "device": np.array([one.device for one in args], np.int64),
            "sequence": np.array([one.sequence for one in args], np.int64),
            "said": np.array(said, np.int32),
        }
        for column, values in columns.items():
            self.pieces[column].append(values)

    def rows(self) -> dict[str, Column]:
        """All columns; the pieces are given up one by one, so that memory is not needed twice."""
        return {column: np.concatenate(self.pieces.pop(column)) for column in [*self.pieces]}


def read(path: Path) -> File:
    """Read one file. Raises TraceError where it cannot be read, is no trace or has no slices."""
    text = Text(path, _FLOATS)
    rows = _Gathered()
    number = 0
    for batch, found in text.events():
        if not _gather(rows, found, number, batch):
            text.decoders = _DECIMALS
            _gather(rows, decode(batch, _DECIMALS), number, batch)
        number += len(found)
    notes = [*text.damage]
    if rows.unreadable:
        many = _count(len(rows.unreadable), "event")
        notes.append(f"{many} cannot be read, the first is no. {rows.unreadable[0]:,}")
    _join_halves(rows, notes)
    if not rows.pieces:
        damage = f" ({'; '.join(notes)})" if notes else ""
        raise TraceError(f"{path} has no slices among its {_count(number, 'event')}{damage}")
    return _finish(rows, path, text.about, notes)


def args_of(path: Path, origin: int) -> dict[str, Any]:
    """The args of event no. `origin`, read from the file now."""
    number = 0
    for _, found in Text(path, _RAW).events():
        if origin < number + len(found):
            return _args(found[origin - number])
        number += len(found)
    raise TraceError(f"{path} has no event no. {origin:,} any more: load it again")


def save(file: File, folder: Path) -> None:
    """Write a file's table into a folder."""
    for column, values in file.columns.items():
        np.save(folder / f"{column}.npy", values)
    rest = {"names": file.names, "lanes": file.lanes, "known": file.known}
    rest |= {"about": file.about, "notes": file.notes}
    (folder / "rest.json").write_bytes(msgspec.json.encode(rest))


def saved(folder: Path) -> File:
    """What `save` wrote; columns are read from the disk when they are looked at.

    Raises OSError or ValueError where it is not whole.
    """
    rest = msgspec.json.decode((folder / "rest.json").read_bytes(), type=_Rest)
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in SAVED}
    if len({len(values) for values in columns.values()}) != 1:
        raise ValueError(f"{folder} has columns of different lengths")
    for column, things in (("name", rest.names), ("lane", rest.lanes), ("collective", rest.known)):
        if not NONE <= columns[column].min() <= columns[column].max() < len(things):
            raise ValueError(f"{folder} has a {column} that there is not")
    return File(columns, **{name: getattr(rest, name) for name in rest.__struct_fields__})


# ── Events to rows ───────────────────────────────────────────────────────────────────────────


def _gather(rows: _Gathered, events: Sequence[Any], number: int, batch: bytes) -> bool:
    """Add the rows of these events, the first of which has this number. False, and nothing is
    added, where floats cannot hold their times."""
    at = [index for index, one in enumerate(events) if one is not None and one.ph == "X"]
    slices = [events[index] for index in at]
    others = [(index, one) for index, one in enumerate(events) if one is None or one.ph != "X"]
    halves = [(index, one) for index, one in others if one is not None and one.ph in ("B", "E")]
    start = _nanoseconds([one.ts for one in slices], batch)
    duration = _nanoseconds([one.dur for one in slices], batch)
    turns = _nanoseconds([one.ts for _, one in halves], batch)
    if start is None or duration is None or turns is None:
        return False
    if slices:
        _look_into_operators(slices, at, batch)
        rows.add(slices, start, duration, number + np.array(at))
    for turn, (index, one) in zip(turns.tolist(), halves, strict=True):
        rows.halves.append((turn, number + index, one))
    for index, one in others:
        if one is None:
            rows.unreadable.append(number + index)
        elif one.ph == "M":
            _label(rows, one)
    return True


def _label(rows: _Gathered, one: Any) -> None:
    name = one.args.label if one.args else ""
    if one.name == "process_name":
        rows.labels.setdefault(one.pid, name)
    elif one.name == "thread_name":
        # Kineto may name a thread twice, the second time after its process.
        rows.labels.setdefault((one.pid, one.tid), name)


def _look_into_operators(slices: list[Any], at: list[int], batch: bytes) -> None:
    """Collectives whose facts stand in the recorded inputs: those of gloo, and, before PyTorch
    2.3, of `record_param_comms`."""
    if b'"gloo:' not in batch and b'"record_param_comms"' not in batch:
        return
    unknown = [
        place
        for place, one in enumerate(slices)
        if (one.name == "record_param_comms" and not (one.args and one.args.collective))
    ]
    if b'"gloo:' in batch:
        unknown += [
            place
            for place, one in enumerate(slices)
            if kinds.kind(one.cat, one.name) is Kind.COMMUNICATION
        ]
    raw = decode(batch, _RAW) if unknown else []
    for place in unknown:
        one = slices[place]
        inputs = _args(raw[at[place]])
        size, dtype = kinds.bytes_of_inputs(inputs)
        what = one.name
        if what == "record_param_comms":
            words = [word for word in inputs.get("Concrete Inputs", []) if isinstance(word, str)]
            what = next((word for word in words if kinds.operation(word)), "")
        one.args = one.args or Args()
        one.args.collective = what
        one.args.dtype = dtype
        one.args.bytes_in = size
        if kinds.operation(what) in ("all_reduce", "broadcast"):
            one.args.bytes_out = size


def _nanoseconds(values: list[Any], batch: bytes) -> Column | None:
    """int64 nanoseconds of microseconds, exact; _BAD for what is no time. None where these are
    floats that have lost their thousandths."""
    if set(map(type, values)) - {float}:
        return np.array([_exactly(value) for value in values], np.int64)
    floats = np.array(values, np.float64)
    if np.any(np.abs(floats) >= _EXACT) and _FRACTION.search(batch):
        return None
    good = np.abs(floats) < 2.0**53
    floats[~good] = 0
    # Apart, the two are exact; times 1000 at once is wrong for some at 4.45e12 µs.
    whole = np.floor(floats)
    exact = whole.astype(np.int64) * 1000 + np.rint((floats - whole) * 1000).astype(np.int64)
    exact[~good] = _BAD
    return exact


def _exactly(value: Any) -> int:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return int(_BAD)
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if not number.is_finite() or number.adjusted() >= 16:
        return int(_BAD)
    return int((number * 1000).to_integral_value())


def _by_hand(value: Any) -> ExactEvent | None:
    """An event from what the strict decoder refuses, with what can be used of it."""
    if not isinstance(value, dict):
        return None
    event = ExactEvent(args=Args())
    for key in ("ph", "cat", "name"):
        setattr(event, key, _clean(value.get(key, "")))
    for key in ("pid", "tid"):
        place = value.get(key)
        setattr(event, key, place if type(place) is int else _clean(place))
    event.ts, event.dur = _decimal(value.get("ts")), _decimal(value.get("dur"))
    args = value.get("args")
    for name, key in _ARGS.items():
        said = args.get(key) if isinstance(args, dict) else None
        if name == "ranks" and isinstance(said, list):
            said = json.dumps(said, default=str)
        if isinstance(getattr(_NO_ARGS, name), int):
            said = _decimal(said)
            if said is not None and abs(said) < 2**63:
                setattr(event.args, name, int(said))
        elif isinstance(said, str):
            setattr(event.args, name, _clean(said))
    return event


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except ArithmeticError:
        return None
    return number if number.is_finite() and number.adjusted() < 19 else None


def _clean(value: Any) -> str:
    """Text without halves of characters, which could not be written anywhere."""
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _args(raw: Any) -> dict[str, Any]:
    if isinstance(raw, msgspec.Raw):
        raw = json.loads(bytes(raw).decode(errors="replace"), strict=False)
    args = raw.get("args") if isinstance(raw, dict) else None
    return args if isinstance(args, dict) else {}


def _join_halves(rows: _Gathered, notes: list[str]) -> None:
    """Make slices of events that begin (B) and end (E) apart."""
    open_now: dict[Any, list[tuple[int, int, Any]]] = defaultdict(list)
    whole = []
    lost = 0
    for half in sorted(rows.halves, key=lambda half: half[0]):
        stack = open_now[half[2].pid, half[2].tid]
        if half[2].ph == "B":
            stack.append(half)
        elif stack:
            whole.append((*stack.pop(), half[0]))
        else:
            lost += 1
    lost += sum(map(len, open_now.values()))
    if lost:
        notes.append(f"{_count(lost, 'event')} of begin or end without the other half left out")
    if whole:
        start = np.array([one[0] for one in whole], np.int64)
        end = np.array([one[3] for one in whole], np.int64)
        rows.add([one[2] for one in whole], start, end - start, np.array([one[1] for one in whole]))


# ── Rows to a table ──────────────────────────────────────────────────────────────────────────


def _finish(rows: _Gathered, path: Path, says: dict[str, Any], notes: list[str]) -> File:
    columns = rows.rows()
    names, places = list(rows.names), list(rows.places)
    columns["kind"] = _kinds(columns, list(rows.categories), names)
    keep = _usable(columns, places, notes)
    columns = {column: values[keep] for column, values in columns.items()}
    if not len(columns["start"]):
        because = f" ({'; '.join(notes)})" if notes else ""
        raise TraceError(f"{path} has no slices of threads or streams{because}")
    for column in ("external", "correlation"):  # Kineto writes 0 where there is none
        columns[column][columns[column] <= 0] = NONE
    base = _base(says, int(np.median(columns["start"])), notes)
    columns["start"] += base
    lanes = _lanes(columns, places, rows.labels)
    order = np.lexsort((-columns["duration"], columns["start"], columns["lane"]))
    columns = {column: values[order] for column, values in columns.items()}
    about = _about(says, path, columns)
    known = _communications(columns, names, list(rows.said), about, notes)
    columns["name"], names = _used(columns["name"], names, notes)
    columns = {column: columns[column].astype(COLUMNS[column], copy=False) for column in SAVED}
    return File(columns, names, lanes, known, about, notes)


def _kinds(columns: dict[str, Column], categories: list[str], names: list[str]) -> Column:
    """By category and name, which are looked at once a pair."""
    pair = columns["category"].astype(np.int64) * len(names) + columns["name"]
    pairs, row = np.unique(pair, return_inverse=True)
    found = [kinds.kind(categories[one // len(names)], names[one % len(names)]) for one in pairs]
    return np.array(found, np.uint8)[row]


def _usable(columns: dict[str, Column], places: list[Any], notes: list[str]) -> Mask:
    """Which rows are slices of threads and streams with a time that can be; says what is not."""
    is_place = np.array([isinstance(p, int) and isinstance(t, int) for p, t in places], bool)
    keep = is_place[columns["place"]]  # the profiler's own spans are no work of a thread
    start, duration = columns["start"], columns["duration"]

    def leave_out(which: Mask, why: str) -> None:
        nonlocal keep
        if many := int((keep & which).sum()):
            notes.append(f"{_count(many, 'slice')} {why}: left out")
            keep = keep & ~which

    leave_out((start == _BAD) | (duration == _BAD), "without a start or duration that is a number")
    leave_out(duration < 0, "of negative duration")
    leave_out(start < 0, "at a negative time")
    leave_out(duration > _DAY, "of more than a day")
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
        which = f"{_count(many, 'slice')} of the GPU without a stream"
        notes.append(f"{which}: their row's number (tid) taken for it")
    leave_out(nowhere & (row < 0), "of the GPU without a stream")
    stream[nowhere] = row[nowhere]
    annotated = (columns["kind"] == Kind.GPU_ANNOTATION) & (stream < 0)
    stream[annotated] = row[annotated]
    if len(large := np.unique(stream[stream >= 2**31])):
        notes.append(f"{_count(len(large), 'stream')} with a number above 2^31: numbered anew")
        anew = stream >= 2**31
        stream[anew] = 2**31 - 1 - np.searchsorted(large, stream[anew])
    return keep


def _base(says: dict[str, Any], middle: int, notes: list[str]) -> int:
    """Nanoseconds to be added to every start."""
    said = _decimal(says.get("baseTimeNanoseconds"))
    base = 0 if said is None else int(said)
    if base and middle > 10**18:  # since the epoch already: the base is no part of these times
        notes.append(
            "times are since the epoch although the file gives a base: the base is ignored"
        )
        return 0
    return base


def _lanes(columns: dict[str, Column], places: list[Any], labels: dict[Any, str]) -> list[Lane]:
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
                    thread=name or f"thread {thread}",
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
    return f"thread {plain or thread}"


def _used(column: Column, names: list[str], notes: list[str]) -> tuple[Column, list[str]]:
    """Only the names that rows have, cut where they are endless."""
    used, column = np.unique(column, return_inverse=True)
    numbering = _Numbering()
    too_long = 0
    place = []
    for one in used:
        name = names[one]
        if len(name) > LONGEST_NAME:
            too_long += 1
            name = f"{name[:LONGEST_NAME]}…"
        place.append(numbering[name])
    if too_long:
        notes.append(f"{_count(too_long, 'name')} of more than {LONGEST_NAME:,} characters cut")
    return np.array(place, np.int32)[column], list(numbering)


def _about(says: dict[str, Any], path: Path, columns: dict[str, Column]) -> dict[str, Any]:
    job = says.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    devices = says.get("deviceProperties")
    devices = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    lacks = {"rank", "world_size"} - {key for key in job if _whole(job[key]) is not None}
    mine = columns["device"][columns["device"] >= 0]
    number = int(np.bincount(mine).argmax()) if len(mine) and mine.max() < 1024 else 0
    gpu = next((one for one in devices if one.get("id") == number), devices[0] if devices else {})
    first, last = int(columns["start"].min()), int((columns["start"] + columns["duration"]).max())
    date = datetime.fromtimestamp(first / 1e9, UTC).date().isoformat() if first > 10**18 else ""
    groups = job.get("pg_config")
    about = {
        "file": path.name,
        "rank": None if "rank" in lacks else _whole(job["rank"]),
        "world_size": None if "world_size" in lacks else _whole(job["world_size"]),
        "backend": _word(job.get("backend")),
        "groups": _groups(groups if isinstance(groups, list) else []),
        "gpu": _word(gpu.get("name")),
        "torch": _word(next((says[key] for key in _TORCH if key in says), "")),
        "cuda": _version(says.get("cuda_runtime_version")),
        "hip": _version(says.get("hip_runtime_version")),
        "nccl": _word(job.get("nccl_version")),
        "host": _word(says.get("host_name")),
        "date": date,
        "first": first,
        "last": last,
    }
    return {key: value for key, value in about.items() if value not in ("", [])}


def _groups(config: list[Any]) -> list[dict[str, Any]]:
    """name, description, size and ranks ([] where they are cut short) of each process group."""
    found = []
    for one in config:
        if isinstance(one, dict):
            size = _whole(one.get("pg_size"))
            ranks = _ranks(one.get("ranks"), NONE if size is None else size)
            found.append(
                {
                    "name": _word(one.get("pg_name")),
                    "description": _word(one.get("pg_desc")),
                    "size": size,
                    "ranks": list(ranks),
                }
            )
    return found


# ── Communication ────────────────────────────────────────────────────────────────────────────


def _communications(
    columns: dict[str, Column],
    names: list[str],
    said: list[Any],
    about: dict[str, Any],
    notes: list[str],
) -> list[Collective]:
    """Tells communication from computation among kernels (changes "kind"), and adds the column
    "collective". See `kinds` for the evidence."""
    kind, says, name = columns["kind"], columns["said"], columns["name"]
    on_gpu = kind == Kind.COMPUTE
    on_cpu = kind == Kind.COMMUNICATION
    named = np.array([kinds.is_communication(one) for one in names], bool)[name] & on_gpu
    recorder = _recorders(columns, names, on_gpu)
    records = np.array([kinds.records_collective(one) for one in names], bool)
    linked = recorder >= 0
    by_recorder = np.zeros(len(kind), bool)
    by_recorder[linked] = records[name[recorder[linked]]] | named[linked]
    by_itself = (on_gpu & (says >= 0)) | on_cpu
    by_recorder &= ~by_itself
    communicates = by_itself | by_recorder | named
    kind[communicates] = Kind.COMMUNICATION
    rows = np.flatnonzero(communicates)
    sequence = columns["sequence"]
    silent = linked & (sequence < 0)
    sequence[silent] = sequence[recorder[silent]]
    sequence[~communicates] = NONE  # of an operator: it names the same collective a second time
    number, collective = _Numbering(), np.full(len(kind), NONE, np.int32)
    annotated = _annotated(columns, names, rows)
    keys = np.stack(
        (
            np.where(by_itself, says, np.where(linked, says[recorder], NONE))[rows],
            np.where(by_itself, 0, np.where(by_recorder, 1, 2))[rows],
            name[rows],
            np.where(linked, name[recorder], NONE)[rows],
            annotated,
        )
    )
    distinct, row = np.unique(keys, axis=1, return_inverse=True)
    groups = {one["name"]: one for one in about.get("groups", [])}
    numbers = []
    for fact, evidence, own, operator, annotation in distinct.T:
        words = said[fact] if fact >= 0 else None
        operation = kinds.operation(words[0]) if words else ""
        if not operation and operator >= 0 and evidence == 1:
            operation = kinds.operation(names[operator])
        operation = operation or kinds.operation_of_kernel(names[own])
        if not operation and annotation >= 0:
            operation = kinds.operation(names[annotation])
        how = ("metadata", "external id", "name")[evidence]
        numbers.append(number[_collective(operation, words, how, groups, about)])
    collective[rows] = np.array(numbers, np.int32)[row.ravel()] if len(rows) else NONE
    columns["collective"] = collective
    known = list(number)
    about["communication"] = _evidence(known, columns, rows, on_gpu)
    short = {one.group for one in known if one.group and not one.ranks}
    if short:
        which = ", ".join(sorted(short)[:5])
        notes.append(f"the ranks of process groups are not (or not all) given: {which}")
    return known


def _recorders(columns: dict[str, Column], names: list[str], kernels: Mask) -> Column:
    """For each kernel the row of the operator that launched it and may say what it communicates;
    NONE for none. By the kernel's external id, or else by that of its launch."""
    kind, external = columns["kind"], columns["external"].copy()
    launches = np.flatnonzero((kind == Kind.LAUNCH) & (columns["correlation"] > 0))
    lacking = np.flatnonzero(kernels & (external < 0) & (columns["correlation"] > 0))
    if len(launches) and len(lacking):
        launch = _look_up(columns["correlation"], launches, columns["correlation"][lacking])
        external[lacking] = np.where(launch >= 0, external[launch], NONE)
    may = np.array([kinds.records_collective(one) or "c10d" in one for one in names], bool)
    operators = may[columns["name"]] & np.isin(kind, (Kind.OPERATOR, Kind.ANNOTATION))
    operators &= external > 0
    found = np.full(len(kind), NONE, np.int64)
    rows = np.flatnonzero(kernels & (external > 0))
    if len(rows) and operators.any():
        found[rows] = _look_up(external, np.flatnonzero(operators), external[rows])
    return found


def _look_up(column: Column, rows: Column, values: Column) -> Column:
    """For each value the one of these rows whose column has it, NONE where there is none."""
    rows = rows[np.argsort(column[rows], kind="stable")]
    at = np.minimum(np.searchsorted(column[rows], values), len(rows) - 1)
    return np.where(column[rows[at]] == values, rows[at], NONE)


def _annotated(columns: dict[str, Column], names: list[str], rows: Column) -> Column:
    """For each of these rows the name of the annotation nccl:… that the GPU saw around it."""
    nccl = np.array([one.startswith("nccl:") for one in names], bool)
    marks = np.flatnonzero(nccl[columns["name"]] & (columns["kind"] == Kind.GPU_ANNOTATION))
    found = np.full(len(rows), NONE, np.int64)
    if not len(marks) or not len(rows):
        return found
    # Rows are in the order of lanes and starts, so the last mark before a kernel is the one around
    # it; or the next, if both last equally long.
    end = columns["start"] + columns["duration"]
    before = np.searchsorted(marks, rows) - 1
    for candidate in (before + 1, before):
        mark = marks[np.clip(candidate, 0, len(marks) - 1)]
        around = (columns["lane"][mark] == columns["lane"][rows]) & (end[rows] <= end[mark])
        around &= columns["start"][mark] <= columns["start"][rows]
        found = np.where(around, columns["name"][mark], found)
    return found


def _collective(
    operation: str,
    words: Any,
    evidence: str,
    groups: dict[str, dict[str, Any]],
    about: dict[str, Any],
) -> Collective:
    if not words:
        words = ("", "", NONE, NONE, NONE, NONE, "", "", NONE, NONE, NONE)
    _, dtype, elements_in, elements_out, bytes_in, bytes_out, group, text, size, source, to = words
    if not group and len(groups) == 1:  # there is no other that it could be
        group = next(iter(groups))
    ranks = _ranks(text, size) or tuple(groups.get(group, {}).get("ranks", ()))
    if not ranks and size == about.get("world_size"):
        ranks = tuple(range(size))
    peer = {"send": to, "recv": source}.get(operation, NONE)
    return Collective(
        operation=operation,
        group=group,
        ranks=ranks,
        bytes_in=bytes_in if bytes_in >= 0 else kinds.bytes_of(elements_in, dtype),
        bytes_out=bytes_out if bytes_out >= 0 else kinds.bytes_of(elements_out, dtype),
        dtype=dtype,
        peer=max(peer, NONE),
        evidence=evidence,
    )


def _evidence(
    known: list[Collective], columns: dict[str, Column], rows: Column, on_gpu: Mask
) -> dict[str, int]:
    """How many communication slices there are, by evidence, and how many without an operation."""
    which = columns["collective"][rows]
    times = columns["duration"][rows]
    by_name = np.array([one.evidence == "name" for one in known] or [False], bool)[which]
    unknown = np.array([not one.operation for one in known] or [False], bool)[which]
    return {
        "slices": len(rows),
        "kernels": int(on_gpu[rows].sum()),
        "by_name": int(by_name.sum()),
        "unknown": int(unknown.sum()),
        "time": int(times.sum()),
        "time_by_name": int(times[by_name].sum()),
        "time_unknown": int(times[unknown].sum()),
    }


def _ranks(text: Any, size: int) -> tuple[int, ...]:
    """Ranks of a group as Kineto writes them; () where they are cut short ("[0, 1, ..., 7]").

    Cut short and ascending, they are still known if there is but one way to fill the gap.
    """
    text = json.dumps(text, default=str) if isinstance(text, list) else str(text or "")
    ranks = tuple(int(one) for one in re.findall(r"\d{1,9}", text))
    if "..." not in text:
        return ranks if size < 0 or len(ranks) == size else ()
    if len(ranks) > 1 and ranks == tuple(sorted(ranks)) and ranks[-1] - ranks[0] == size - 1:
        return tuple(range(ranks[0], ranks[-1] + 1))
    return ()


def _whole(value: Any) -> int | None:
    number = _decimal(value)
    return None if number is None else int(number)


def _word(value: Any) -> str:
    return _clean(value).strip('"') if isinstance(value, str | int) else ""


def _version(value: Any) -> str:
    """12040 → 12.4, as CUDA numbers its versions; words stay."""
    if isinstance(value, int) and 1000 <= value < 100_000:
        return f"{value // 1000}.{value % 1000 // 10}"
    return _word(value)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class _Rest(msgspec.Struct):
    names: list[str]
    lanes: list[Lane]
    known: list[Collective]
    about: dict[str, Any]
    notes: list[str]


_ARGS = {one.name: one.encode_name for one in msgspec.structs.fields(Args)}
_TORCH = ("torch_version", "pytorch_version", "PyTorch version", "torch")
_FLOATS = Decoders(msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Event), _by_hand)
_DECIMALS = Decoders(
    msgspec.json.Decoder(list[ExactEvent]), msgspec.json.Decoder(ExactEvent), _by_hand
)
_RAW = Decoders(
    msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(msgspec.Raw), lambda value: value
)
