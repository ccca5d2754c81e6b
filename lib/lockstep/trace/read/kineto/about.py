"""The facts that a file states about itself: its job, its groups, its GPU, its versions."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...slices import NONE, Column
from .events import as_decimal, as_integer, as_text

MOST_RANKS = 1 << 20  # no job has more; what says so is damaged
_TORCH = ("torch_version", "pytorch_version", "PyTorch version", "torch")


def about_file(
    says: dict[str, Any], path: Path, columns: dict[str, Column], notes: list[str]
) -> dict[str, Any]:
    job = says.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    devices = says.get("deviceProperties")
    devices = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
    rank, world = (_whole(job.get(key), notes, key) for key in ("rank", "world_size"))
    mine = columns["device"][columns["device"] >= 0]
    number = int(np.bincount(mine).argmax()) if len(mine) and mine.max() < 1024 else 0
    gpu = next((one for one in devices if one.get("id") == number), devices[0] if devices else {})
    first, last = int(columns["start"].min()), int((columns["start"] + columns["duration"]).max())
    date = datetime.fromtimestamp(first / 1e9, UTC).date().isoformat() if first > 10**18 else ""
    groups = job.get("pg_config")
    about = {
        "file": path.name,
        "rank": rank,
        "world_size": world or None,
        "backend": as_text(job.get("backend")),
        "groups": _groups(groups if isinstance(groups, list) else []),
        "gpu": as_text(gpu.get("name")),
        "torch": as_text(next((says[key] for key in _TORCH if key in says), "")),
        "cuda": _version(says.get("cuda_runtime_version")),
        "hip": _version(says.get("hip_runtime_version")),
        "nccl": as_text(job.get("nccl_version")),
        "host": as_text(says.get("host_name")),
        "date": date,
        "first": first,
        "last": last,
    }
    return {key: value for key, value in about.items() if value not in ("", [])}


def _whole(value: Any, notes: list[str], what: str) -> int | None:
    """A number of ranks, None where none is given or none can be meant."""
    if value is None:
        return None
    number = as_decimal(value)
    if number is None or number != int(number) or not 0 <= number < MOST_RANKS:
        notes.append(f"its {what} is {str(value)[:40]}, which cannot be: ignored")
        return None
    return int(number)


def _groups(config: list[Any]) -> list[dict[str, Any]]:
    """name, description, size and ranks ([] where they are cut short) of each process group."""
    found = []
    for one in config:
        if isinstance(one, dict):
            size = as_integer(one.get("pg_size"))
            ranks = ranks_in(one.get("ranks"), NONE if size is None else size)
            found.append(
                {
                    "name": as_text(one.get("pg_name")),
                    "description": as_text(one.get("pg_desc")),
                    "size": size,
                    "ranks": list(ranks),
                }
            )
    return found


def ranks_in(text: Any, size: int) -> tuple[int, ...]:
    """Ranks of a group as Kineto writes them; () where they are cut short ("[0, 1, ..., 7]").

    Cut short and ascending, they are still known if there is but one way to fill the gap.
    """
    text = json.dumps(text, default=str) if isinstance(text, list) else str(text or "")
    ranks = tuple(int(one) for one in re.findall(r"\d{1,9}", text))
    if "..." not in text:
        return ranks if size < 0 or len(ranks) == size else ()
    ascending = len(ranks) > 1 and ranks == tuple(sorted(ranks)) and size < MOST_RANKS
    if ascending and ranks[-1] - ranks[0] == size - 1:
        return tuple(range(ranks[0], ranks[-1] + 1))
    return ()


def _version(value: Any) -> str:
    """12040 → 12.4, as CUDA numbers its versions; words stay."""
    if isinstance(value, int) and 1000 <= value < 100_000:
        return f"{value // 1000}.{value % 1000 // 10}"
    return as_text(value)
