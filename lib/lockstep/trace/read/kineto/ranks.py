"""Which file is of which rank, and whether all are of one job."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ...slices import TraceError
from .file import File


def ranks_of(paths: list[Path], files: list[File], notes: list[str]) -> list[int]:
    """The rank of each file: what the file says; else its name; else its place among the names."""
    said = [file.about["rank"] for file in files]
    named = [named_rank(path.name) for path in paths]
    for path, rank, name in zip(paths, said, named, strict=True):
        if rank is not None and name is not None and rank != name:
            notes.append(f"{path.name} is named after rank {name}, but says it is of rank {rank}")
    ranks: list[int | None] = []
    for path, rank, name in zip(paths, said, named, strict=True):
        ranks.append(name if rank is None else rank)
        if rank is None and name is not None:
            notes.append(f"{path.name} does not say its rank: {name} by its name")
    silent = [at for at, rank in enumerate(ranks) if rank is None]
    numbers = _numbers_of([paths[at].name for at in silent])
    if numbers and not set(numbers) & set(ranks):
        why = "by the number in its name"
    else:
        free = (rank for rank in itertools.count() if rank not in ranks)
        numbers = [*itertools.islice(free, len(silent))]
        why = "by the order of names"
    by_name = sorted(silent, key=lambda at: _natural(paths[at].name))
    for at, rank in zip(silent if "number" in why else by_name, numbers, strict=True):
        ranks[at] = rank
        notes.append(f"{paths[at].name} does not say its rank: taken for rank {rank}, {why}")
    known = [rank for rank in ranks if rank is not None]
    for rank, many in Counter(known).items():
        if many > 1:
            same = " and ".join(
                str(path) for path, one in zip(paths, ranks, strict=True) if one == rank
            )
            raise TraceError(
                f"{same} are both of rank {rank}: load one of them; Trace.runs(…) (lockstep trace "
                "--run) tells different runs or steps apart"
            )
    return known


def named_rank(name: str) -> int | None:
    """The rank that a file's name tells."""
    found = re.search(r"rank[\s_.=-]*(\d{1,6})(?!\d)", name, re.IGNORECASE)
    return int(found[1]) if found else None


def _numbers_of(names: list[str]) -> list[int]:
    """A number of each name such that they count from 0 without a gap; [] if there is none."""
    if len(names) < 2:
        return []
    each = [[int(one) for one in re.findall(r"\d{1,6}", name)] for name in names]
    for at in range(min(map(len, each))):
        numbers = [one[at] for one in each]
        if sorted(numbers) == list(range(len(names))):
            return numbers
    return []


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def check_job(files: dict[int, File], notes: list[str]) -> None:
    """Raises TraceError where the files are of different jobs; notes what is missing."""
    sizes: dict[int, str] = {}
    for file in files.values():
        if (size := file.about["world_size"]) is not None:
            sizes.setdefault(size, file.about["file"])
    if len(sizes) > 1:
        each = " and ".join(f"{file} is of {size} ranks" for size, file in sorted(sizes.items()))
        raise TraceError(f"these traces are of different jobs: {each}")
    world = next(iter(sizes), max(files) + 1)
    beyond = [rank for rank in files if rank >= world]
    if beyond:
        raise TraceError(
            f"{files[beyond[0]].about['file']} says it is of rank {beyond[0]}, but its job has "
            f"{world} ranks: one of the two is wrong"
        )
    if missing := world - len(files):
        lacking = (rank for rank in range(world) if rank not in files)
        some = ", ".join(map(str, itertools.islice(lacking, 8))) + (", …" if missing > 8 else "")
        which = f"ranks {some} are" if missing > 1 else f"rank {some} is"
        notes.append(
            f"{which} missing: the job has {world:,} ranks, there are traces of {len(files)}"
        )
    latest = max(files, key=lambda rank: files[rank].about["first"])
    earliest = min(files, key=lambda rank: files[rank].about["last"])
    apart = files[latest].about["first"] - files[earliest].about["last"]
    if apart > 0:
        notes.append(
            f"rank {latest} begins {apart / 1e9:,.3f} s after rank {earliest} has ended: they were "
            "not recorded at the same time, or their clocks are that far apart"
        )
