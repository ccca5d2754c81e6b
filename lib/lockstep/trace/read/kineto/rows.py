"""Rows of a table, gathered from the events of a file as they come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...slices import NONE, Column, Kind, Numbering
from . import kinds
from .events import NO_ARGS, RAW, Args, args_of_raw, nanoseconds
from .text import decode

# Of Chrome's trace format, without the B and E of slices in halves, which no version of Kineto
# writes: what else stands as "ph" cannot be read.
_PHASES = frozenset("XIiCbnesTpFtfPNODSRcVvMa(),")


class Said(NamedTuple):
    """The args of an event as they describe a communication; see `Args`."""

    collective: str = ""
    dtype: str = ""
    elements_in: int = NONE
    elements_out: int = NONE
    bytes_in: int = NONE
    bytes_out: int = NONE
    group: str = ""
    ranks: str = ""
    size: int = NONE
    source: int = NONE
    destination: int = NONE


def _said(args: Args) -> Said:
    facts = {name: getattr(args, name) for name in Said._fields}
    return Said(**facts | {"group": args.group.strip('"'), "ranks": str(args.ranks)})


@dataclass
class Rows:
    """Rows as they come, and what their numbers stand for."""

    pieces: dict[str, list[Column]] = field(default_factory=lambda: defaultdict(list))
    names: Numbering = field(default_factory=Numbering)
    categories: Numbering = field(default_factory=Numbering)
    places: Numbering = field(default_factory=Numbering)  # (pid, tid)
    said: Numbering = field(default_factory=Numbering)  # of Said
    labels: dict[Any, str] = field(default_factory=dict)
    unreadable: list[int] = field(default_factory=list)
    phaseless: int = 0

    def add(self, events: Sequence[Any], start: Column, duration: Column, origin: Column) -> None:
        args = [one.args or NO_ARGS for one in events]
        said = [self.said[_said(one)] if one.collective else NONE for one in args]
        columns = {
            "start": start,
            "duration": duration,
            "origin": origin.astype(np.int32),
            "name": np.array([self.names[one.name] for one in events], np.int32),
            "category": np.array([self.categories[one.cat] for one in events], np.int32),
            "place": np.array([self.places[one.pid, one.tid] for one in events], np.int32),
            "external": np.array([one.external for one in args], np.int64),
            "correlation": np.array([one.correlation for one in args], np.int64),
            "stream": np.array([one.stream for one in args], np.int64),
            "device": np.array([one.device for one in args], np.int64),
            "sequence": np.array([one.sequence for one in args], np.int64),
            "said": np.array(said, np.int32),
        }
        for column, values in columns.items():
            self.pieces[column].append(values)

    def columns(self) -> dict[str, Column]:
        """All columns; the pieces are given up one by one, so that memory is not needed twice."""
        return {column: np.concatenate(self.pieces.pop(column)) for column in [*self.pieces]}


def gather(rows: Rows, events: Sequence[Any], number: int, batch: bytes) -> bool:
    """Add the rows of these events, the first of which has this number. False, and nothing is
    added, where floats cannot hold their times."""
    at = [index for index, one in enumerate(events) if one is not None and one.ph == "X"]
    slices = [events[index] for index in at]
    others = [(index, one) for index, one in enumerate(events) if one is None or one.ph != "X"]
    start = nanoseconds([one.ts for one in slices], batch)
    duration = nanoseconds([one.dur for one in slices], batch)
    if start is None or duration is None:
        return False
    if slices:
        _look_into_operators(slices, at, batch)
        rows.add(slices, start, duration, number + np.array(at))
    for index, one in others:
        if one is None:
            rows.unreadable.append(number + index)
        elif one.ph == "M":
            _label(rows, one)
        elif one.ph not in _PHASES:
            rows.phaseless += 1
    return True


def _label(rows: Rows, one: Any) -> None:
    name = one.args.label if one.args else ""
    if one.name == "process_name":
        rows.labels.setdefault(one.pid, name)
    elif one.name == "thread_name":
        # Kineto may name a thread twice, the second time after its process.
        rows.labels.setdefault((one.pid, one.tid), name)


def _look_into_operators(slices: list[Any], at: list[int], batch: bytes) -> None:
    """Collectives whose facts stand in the recorded inputs: those of gloo, and, before PyTorch
    2.3, of `record_param_comms` and of the annotation nccl:… inside of it."""
    looks = [
        look
        for mark, look in (
            (b'"gloo:', lambda one: kinds.kind(one.cat, one.name) is Kind.COMMUNICATION),
            (b'"record_param_comms"', _is_silent_recorder),
            (b'"nccl:', _is_silent_annotation),
        )
        # Where PyTorch names collectives, its operators say all that annotations would.
        if mark in batch and not (mark == b'"nccl:' and b'"Collective name"' in batch)
    ]
    unknown = [place for place, one in enumerate(slices) if any(look(one) for look in looks)]
    raw = decode(batch, RAW) if unknown else []
    for place in unknown:
        one = slices[place]
        inputs = args_of_raw(raw[at[place]])
        size, dtype = kinds.bytes_of_inputs(inputs)
        what = one.name
        if what == "record_param_comms":
            words = inputs.get("Concrete Inputs")
            words = words if isinstance(words, list) else []
            named = (word for word in words if isinstance(word, str) and kinds.operation(word))
            what = next(named, "")
        one.args = one.args or Args()
        one.args.collective = what
        one.args.dtype = dtype
        one.args.bytes_in = size
        if kinds.operation(what) in ("all_reduce", "broadcast"):
            one.args.bytes_out = size


def _is_silent_recorder(one: Any) -> bool:
    return one.name == "record_param_comms" and not (one.args and one.args.collective)


def _is_silent_annotation(one: Any) -> bool:
    return (
        one.name.startswith("nccl:")
        and kinds.kind(one.cat, one.name) is Kind.ANNOTATION
        and not (one.args and one.args.collective)
    )
