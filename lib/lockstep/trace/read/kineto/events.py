"""The events of a Kineto file, decoded: strictly and fast, or by hand, with exact times."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import numpy as np

from ...slices import NONE, Column
from .text import Decoders

BAD_TIME = np.iinfo(np.int64).min
_EXACT = 2.0**43  # µs; below, a float tells thousandths apart
_FRACTION = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d+[.eE]')

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Args(msgspec.Struct, gc=False):
    """The part of an event's args that is kept. The rest is read again when it is asked for."""

    external: Integer = msgspec.field(name="External id", default=NONE)
    correlation: Integer = NONE
    stream: Integer = NONE
    device: Integer = NONE
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


NO_ARGS = Args()


def nanoseconds(values: list[Any], batch: bytes) -> Column | None:
    """int64 nanoseconds of microseconds, exact; BAD_TIME for what is no time. None where these are
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
    exact[~good] = BAD_TIME
    return exact


def _exactly(value: Any) -> int:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return int(BAD_TIME)
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if not number.is_finite() or number.adjusted() >= 16:
        return int(BAD_TIME)
    return int((number * 1000).to_integral_value())


def _by_hand(value: Any) -> ExactEvent | None:
    """An event from what the strict decoder refuses, with what can be used of it."""
    if not isinstance(value, dict):
        return None
    event = ExactEvent(args=Args())
    for key in ("ph", "cat", "name"):
        setattr(event, key, _without_halves(value.get(key, "")))
    for key in ("pid", "tid"):
        place = value.get(key)
        setattr(event, key, place if type(place) is int else _without_halves(place))
    event.ts, event.dur = as_decimal(value.get("ts")), as_decimal(value.get("dur"))
    args = value.get("args")
    for name, key in _ARGS.items():
        said = args.get(key) if isinstance(args, dict) else None
        if name == "ranks" and isinstance(said, list):
            said = json.dumps(said, default=str)
        if isinstance(getattr(NO_ARGS, name), int):
            said = as_decimal(said)
            if said is not None and abs(said) < 2**63:
                setattr(event.args, name, int(said))
        elif isinstance(said, str):
            setattr(event.args, name, _without_halves(said))
    return event


def as_decimal(value: Any) -> Decimal | None:
    """A number, however it is written; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except ArithmeticError:
        return None
    return number if number.is_finite() and number.adjusted() < 19 else None


def _without_halves(value: Any) -> str:
    """Text without halves of characters, which could not be written anywhere."""
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def args_of_raw(raw: Any) -> dict[str, Any]:
    """All args of an event that was decoded as `RAW`."""
    if isinstance(raw, msgspec.Raw):
        try:
            raw = json.loads(bytes(raw).decode(errors="replace"), strict=False)
        except RecursionError:
            return {}
    args = raw.get("args") if isinstance(raw, dict) else None
    return args if isinstance(args, dict) else {}


def as_integer(value: Any) -> int | None:
    """A whole number, however it is written; None for what is none."""
    number = as_decimal(value)
    return None if number is None else int(number)


def as_text(value: Any) -> str:
    """Text that can be written anywhere; "" for what is neither text nor a number."""
    return _without_halves(value).strip('"') if isinstance(value, str | int) else ""


_ARGS = {one.name: one.encode_name for one in msgspec.structs.fields(Args)}
FLOATS = Decoders(msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Event), _by_hand)
DECIMALS = Decoders(
    msgspec.json.Decoder(list[ExactEvent]), msgspec.json.Decoder(ExactEvent), _by_hand
)
RAW = Decoders(
    msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(msgspec.Raw), lambda value: value
)
