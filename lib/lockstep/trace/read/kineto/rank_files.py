"""The parts of a file beside the columns, read again when somebody asks for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ...slices import Column, TraceError
from .events import RAW, args_of_raw, as_decimal
from .files import State, state_of
from .text import Text


class RankFiles:
    """The files of ranks, as they were when they were read."""

    def __init__(self, of_rank: Mapping[int, tuple[Path, State]]):
        self._of_rank = of_rank

    def args(self, rank: int, origins: Column) -> Iterator[dict[str, Any]]:
        """The args of these events (numbers, ascending) of a rank; its file is read once."""
        wanted = iter(origins.tolist())
        origin = next(wanted, None)
        number = 0
        for _, events in self._events(rank):
            while origin is not None and origin < number + len(events):
                yield args_of_raw(events[origin - number])
                origin = next(wanted, None)
            if origin is None:
                return
            number += len(events)
        if origin is not None:
            raise TraceError(f"{self._path(rank)} no longer has event no. {origin:,}")

    def moments(self, rank: int, name: str) -> list[tuple[int, dict[str, Any]]]:
        """(time in ns as the file has it, args) of the instants of this name in a rank's file."""
        mark = json.dumps(name).encode()
        found: list[tuple[int, dict[str, Any]]] = []
        for text, events in self._events(rank):
            if mark in text:
                for raw in events:
                    if isinstance(raw, msgspec.Raw) and mark in bytes(raw):
                        event = _parsed(raw)
                        if event.get("ph") in ("i", "I") and event.get("name") == name:
                            args = event.get("args")
                            found.append((_time(event), args if isinstance(args, dict) else {}))
        return found

    def _path(self, rank: int) -> Path:
        return self._of_rank[rank][0]

    def _events(self, rank: int) -> Iterator[tuple[bytes, list[Any]]]:
        path, state = self._of_rank[rank]
        if state_of(path) != state:
            raise TraceError(f"{path} has changed since it was loaded: load it again")
        yield from Text(path, RAW).events()


def _parsed(raw: Any) -> dict[str, Any]:
    """An event with exact times; {} for what cannot be read."""
    if isinstance(raw, msgspec.Raw):
        try:
            raw = json.loads(bytes(raw).decode(errors="replace"), strict=False, parse_float=Decimal)
        except (ValueError, RecursionError):
            return {}
    return raw if isinstance(raw, dict) else {}


def _time(event: dict[str, Any]) -> int:
    """Nanoseconds as the file has them, 0 where it has none."""
    return int((as_decimal(event.get("ts")) or Decimal(0)) * 1000)
