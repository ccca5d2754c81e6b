"""Which of many files were recorded together: the runs, or the repeats of one, in a folder."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from ...slices import TraceError
from .files import Paths, find
from .ranks import named_rank
from .workers import Found


def folders_in(source: Paths) -> dict[str, Paths]:
    """Name → files or folder: the folder itself, "", where it has traces, and all folders below."""
    if not isinstance(source, str | os.PathLike) or not Path(source).is_dir():
        return {"": source}
    root = Path(source)
    found: dict[str, Paths] = {}
    for folder, inside, names in os.walk(root):
        inside.sort()
        if any(name.endswith((".json", ".json.gz")) for name in names):
            where = Path(folder).relative_to(root)
            found["" if where == Path() else str(where)] = Path(folder)
    if not found:
        find(source, [])  # says why there is none
    return found


def together(found: list[Found]) -> list[list[Found]]:
    """The files by run, in order of time; each run has a rank once.

    Files belong together whose times overlap. Where every rank has as many files, but that gives
    another number of runs (the clocks of hosts may be far apart), the n-th files of all ranks do.
    Raises TraceError where a rank would be in a run twice.
    """
    in_time = sorted(found, key=lambda one: int(one.file.about["first"]))
    runs: list[list[Found]] = []
    last = None
    for one in in_time:
        if last is None or one.file.about["first"] >= last:
            runs.append([])
            last = one.file.about["last"]
        runs[-1].append(one)
        last = max(last, one.file.about["last"])
    of_rank: dict[int | None, list[Found]] = defaultdict(list)
    for one in in_time:
        of_rank[_rank(one)].append(one)
    counts = {len(files) for files in of_rank.values()}
    if None not in of_rank and len(counts) == 1 and len(runs) != max(counts):
        return [list(run) for run in zip(*of_rank.values(), strict=True)]
    if twice := next((run for run in runs if not _once(run)), None):
        some = ", ".join(one.path.name for one in twice[:6])
        raise TraceError(
            f"it is not clear which files were recorded together ({some}): some are of one "
            "rank and overlap in time. Put each run into a folder of its own"
        )
    return runs


def _once(run: list[Found]) -> bool:
    ranks = [rank for one in run if (rank := _rank(one)) is not None]
    return len(ranks) == len(set(ranks))


def _rank(one: Found) -> int | None:
    said = one.file.about["rank"]
    return named_rank(one.path.name) if said is None else int(said)
