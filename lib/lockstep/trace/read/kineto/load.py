"""The files of N ranks become one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ....base.formatting import printable
from ....base.provenance import Provenance, Recording
from ...slices import COLUMNS, NONE, Lane, Numbering, Slices
from .cache import open_store
from .file import SAVED, File
from .files import Paths, find
from .rank_files import RankFiles
from .ranks import check_job, ranks_of
from .runs import folders_in, together
from .workers import Found, read_all

Source: TypeAlias = "str | Path | Sequence[str | Path] | Recording"


def load(
    source: Source,
    *,
    stamp: Provenance | None = None,
    cache: bool = True,
    processes: int | None = None,
) -> Slices:
    """Read the Kineto traces of N ranks, one file a rank, packed (gz) or not.

    source: a folder (all *.json and *.json.gz in it), a path, several paths, or a recording. stamp:
    where the trace comes from; what the files say of it, if not given. cache: keep the columns of
    large files in the user's cache folder, for as long as the file stays the same. processes: how
    many read at a time; as many as this process may use cores (affinity, quota), if not given.

    Times are nanoseconds since the epoch where the files say so, exact to the nanosecond. What had
    to be repaired, left out or guessed stands in `notes`. `about[rank]` has what is known of
    "file", "world_size", "backend", "groups" (dicts of name, description, size, ranks), "gpu",
    "torch", "cuda" or "hip", "nccl", "host", "date", "first" and "last" (ns), "base" (ns that the
    file's times are since), "unread" (slices of categories that are not known here, by category),
    and "communication": how many "slices", "kernels", how many were recognised "by_name" only or
    have an "unknown" operation, and their "time", "time_by_name", "time_unknown" (ns).

    Raises TraceError where a file cannot be read or has no slices, two files are of one rank, or
    the files are of different jobs.
    """
    stamp, where = _of_recording(stamp, source)
    notes: list[str] = []
    paths, in_folder = find(where, notes)
    with open_store(paths, cache) as store:
        return _slices(read_all(paths, store, processes, in_folder, notes), stamp, notes)


def load_runs(source: Source, *, cache: bool = True) -> dict[str, Slices]:
    """Read files of several runs, or of repeats of one, and tell them apart: name → its trace.

    source: as for `load`; folders inside of a folder count, too. A folder that holds one run gives
    it its name, relative to the source ("" for the source itself); of several runs in one folder
    the n-th in time is called "#n", behind the folder's name. Files belong to one run if they
    overlap in time (see `runs.together`).

    Raises TraceError as `load` does, and where it is not clear what was recorded together.
    """
    stamp, where = _of_recording(None, source)
    found: dict[str, Slices] = {}
    for folder, inside in folders_in(where).items():
        notes: list[str] = []
        paths, in_folder = find(inside, notes)
        with open_store(paths, cache) as store:
            runs = together(read_all(paths, store, None, in_folder, notes))
            for number, run in enumerate(runs, start=1):
                name = f"{folder}#{number}" if len(runs) > 1 else folder
                found[name] = _slices(run, stamp, list(notes))
    return found


def _of_recording(stamp: Provenance | None, source: Source) -> tuple[Provenance | None, Paths]:
    if isinstance(source, Recording):
        return stamp or source.stamp, source.path
    return stamp, source


def _slices(found: list[Found], stamp: Provenance | None, notes: list[str]) -> Slices:
    """One run's files as one trace."""
    ranks = ranks_of([one.path for one in found], [one.file for one in found], notes)
    of_rank = dict(sorted(zip(ranks, found, strict=True), key=lambda one: one[0]))
    files = {rank: one.file for rank, one in of_rank.items()}
    check_job(files, notes)
    for rank, file in files.items():
        notes += [f"rank {rank} ({file.about['file']}): {note}" for note in file.notes]
    notes += _evidence(list(files.values()))
    about = {
        rank: {key: value for key, value in file.about.items() if key != "rank"}
        for rank, file in files.items()
    }
    return Slices(
        **_merge(files),
        stamp=stamp or _stamp(list(about.values())),
        notes=[printable(note) for note in notes],
        about=about,
        files=RankFiles({rank: (one.path, one.state) for rank, one in of_rank.items()}),
    )


def _merge(files: dict[int, File]) -> dict[str, Any]:
    """The columns, lanes, names and known collectives of all ranks, numbered alike."""
    rows = sum(len(file.columns["start"]) for file in files.values())
    columns = {column: np.empty(rows, COLUMNS[column]) for column in (*SAVED, "rank")}
    names, known = Numbering(), Numbering()
    lanes: list[Lane] = []
    begin = 0
    for rank, file in files.items():
        end = begin + len(file.columns["start"])
        new_name = np.array([names[one] for one in file.names], np.int32)
        new_known = [known[one] for one in file.known]
        columns["rank"][begin:end] = rank
        for column in SAVED:
            columns[column][begin:end] = file.columns.pop(column)  # no longer needed in memory
        columns["lane"][begin:end] += len(lanes)
        columns["name"][begin:end] = new_name[columns["name"][begin:end]]
        # The last place is for NONE, which is −1.
        renumbered = np.array([*new_known, NONE], np.int32)
        columns["collective"][begin:end] = renumbered[columns["collective"][begin:end]]
        lanes += [replace(lane, rank=rank) for lane in file.lanes]
        begin = end
    return {"columns": columns, "lanes": lanes, "names": list(names), "known": list(known)}


def _evidence(files: list[File]) -> list[str]:
    """Say which part of communication is less certain."""
    total: Counter[str] = Counter()
    for file in files:
        total.update(file.about["communication"])
    notes = []
    for key, what in (
        ("by_name", "recognised by name only"),
        ("unknown", "without a known operation"),
    ):
        if many := total[key]:
            share = 100 * many / total["slices"]
            of_time = 100 * total[f"time_{key}"] / max(total["time"], 1)
            notes.append(
                f"{many:,} of {total['slices']:,} communications ({share:.1f} %, {of_time:.1f} % "
                f"of their time) are {what}"
            )
    return notes


def _stamp(about: list[dict[str, Any]]) -> Provenance:
    gpus = Counter(one.get("gpu", "CPU") for one in about)
    parts = [" + ".join(f"{gpu} × {many}" for gpu, many in gpus.items())]
    versions = {one["torch"] for one in about if "torch" in one}
    parts += [f"PyTorch {version}" for version in sorted(versions)[:1]]
    parts += sorted({one["date"] for one in about if "date" in one})[:1]
    return Provenance("recorded", " · ".join(parts))
