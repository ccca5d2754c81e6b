"""Kineto traces, as PyTorch's profiler writes them: the files of N ranks become one `Trace`.

Large files are read by processes of their own, `python -m lockstep.trace.kineto FOLDER FILE…`, so
that loading works in a notebook's kernel and in a script without a main guard, and leaves no memory
behind. They write columns into the cache, from where the trace is put together.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from ....stamps import Recording, Stamp
from ...slices import COLUMNS, NONE, Collective, Lane, Source, Trace, TraceError
from . import file as kineto_file
from .file import File
from .text import NotATrace

VERSION = 1  # of what is cached: raise it when the reader reads otherwise
CACHE_LIMIT = 2 * 10**9  # bytes
_LARGE = 8 << 20  # bytes of text that are worth a process, and the cache
_PACKED = 15  # bytes of text in a byte of gz, about


def load(
    source: Source,
    *,
    stamp: Stamp | None = None,
    cache: bool = True,
    processes: int | None = None,
) -> Trace:
    """Read the Kineto traces of N ranks, one file a rank, packed (gz) or not.

    source: a folder (all *.json and *.json.gz in it), a path, several paths, or a recording. stamp:
    where the trace comes from; what the files say of it, if not given. cache: keep the columns of
    large files in the user's cache folder, for as long as the file stays the same. processes: how
    many read at a time; as many as there are cores, if not given.

    Times are nanoseconds since the epoch where the files say so, exact to the nanosecond. What had
    to be repaired, left out or guessed stands in `notes`. `about[rank]` has what is known of
    "file", "world_size", "backend", "groups" (dicts of name, description, size, ranks), "gpu",
    "torch", "cuda" or "hip", "nccl", "host", "date", "first" and "last" (ns), and "communication":
    how many "slices", "kernels", how many were recognised "by_name" only or have an "unknown"
    operation, and their "time", "time_by_name", "time_unknown" (ns).

    Raises TraceError where a file cannot be read or has no slices, two files are of one rank, or
    the files are of different jobs.
    """
    if isinstance(source, Recording):
        stamp = stamp or source.stamp
        source = source.path
    paths, in_folder = _paths(source)
    notes: list[str] = []
    with _store(paths, cache) as store:
        found = _read(paths, store, processes or _cores(), in_folder, notes)
        paths, states, files = list(found), *map(list, zip(*found.values(), strict=True))
        ranks = _ranks(paths, files, notes)
        order = sorted(range(len(files)), key=lambda at: ranks[at])
        by_rank = {ranks[at]: files[at] for at in order}
        _check_job(by_rank, notes)
        for rank, file in by_rank.items():
            notes += [f"rank {rank} ({file.about['file']}): {note}" for note in file.notes]
        notes += _evidence(list(by_rank.values()))
        origins = {ranks[at]: (paths[at], states[at]) for at in order}
        about = {rank: _without_rank(file.about) for rank, file in by_rank.items()}
        return _merge(by_rank, stamp or _stamp(list(about.values())), notes, about, origins)


# ── Which files ──────────────────────────────────────────────────────────────────────────────


def _paths(source: Any) -> tuple[list[Path], bool]:
    """The files, and whether they were found in a folder rather than named."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_dir():
            return [path], False
        paths = sorted(
            one
            for one in path.iterdir()
            if one.name.endswith((".json", ".json.gz")) and one.is_file()
        )
        if not paths:
            raise TraceError(
                f"there is no trace in {path}: no file there ends with .json or .json.gz (folders "
                "inside of it are not searched)"
            )
        return paths, True
    paths = [Path(one) for one in source]
    if not paths:
        raise TraceError("no trace to load: the list of paths is empty")
    return paths, False


def _state(path: Path) -> tuple[int, int]:
    """What changes when a file does: (bytes, time of its last change in ns)."""
    try:
        state = path.stat()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    if path.is_dir():
        raise TraceError(f"{path} is a folder: load it by itself, or name the files in it")
    return state.st_size, state.st_mtime_ns


def _text_size(path: Path) -> int:
    return _state(path)[0] * (_PACKED if path.suffix == ".gz" else 1)


def _is_large(path: Path) -> bool:
    return _text_size(path) >= _LARGE


# ── Reading, here or in processes ────────────────────────────────────────────────────────────


def _read(
    paths: list[Path], store: Path | None, processes: int, in_folder: bool, notes: list[str]
) -> dict[Path, tuple[tuple[int, int], File]]:
    """Each file with its state. What is no trace is left out, with a note, if it was merely found
    in a folder and there are others."""
    large = [path for path in paths if _is_large(path)] if store else []
    missing = [path for path in large if not _entry(store, path).exists()] if store else []
    errors: dict[str, list[str]] = {}
    if store and min(processes, len(missing)) > 1:
        errors = _in_processes(store, missing, min(processes, len(missing)))
    found = {}
    no_traces: list[NotATrace] = []
    for path in paths:
        state = _state(path)
        try:
            if str(path) in errors:
                kind, message = errors[str(path)]
                raise (NotATrace if kind == NotATrace.__name__ else TraceError)(message)
            found[path] = state, _one(path, state, store if path in large else None)
        except NotATrace as error:
            if not in_folder:
                raise
            no_traces.append(error)
    if not found:
        raise no_traces[0]
    notes += [f"left out: {error}" for error in no_traces]
    if missing and store:
        _prune(store, keep={_entry(store, path) for path in large})
    return found


def _one(path: Path, state: tuple[int, int], store: Path | None) -> File:
    """One file, from the store if it is there; else it is read and, where that works, stored."""
    if store is None:
        return kineto_file.read(path)
    entry = _entry(store, path)
    try:
        file = kineto_file.saved(entry)
        with contextlib.suppress(OSError):
            os.utime(entry)  # so that it is not the next to go
        return file
    except (OSError, ValueError, EOFError):  # not there, or damaged
        shutil.rmtree(entry, ignore_errors=True)
    file = kineto_file.read(path)
    if _state(path) != state:
        raise TraceError(f"{path} changed while it was read: load it again when it is complete")
    with contextlib.suppress(OSError):  # no space, or no right to write: it works without
        _keep(file, entry)
    return file


def _in_processes(store: Path, paths: list[Path], number: int) -> dict[str, list[str]]:
    """Read the files into the store, with so many processes. Gives kind and message of the errors,
    by path. A file that could be read but not stored is in neither."""
    shares: list[list[str]] = [[] for _ in range(number)]
    loads = [0] * number
    for path in sorted(paths, key=lambda one: -_text_size(one)):
        least = loads.index(min(loads))
        shares[least].append(str(path))
        loads[least] += _text_size(path)
    # The reader that runs here must be the one that runs there. Not "-m" with the notebook's folder
    # on the path: a file random.py in it would be imported.
    room = str(Path(__file__).parents[4])
    python_path = os.pathsep.join(filter(None, (room, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": python_path, "OPENBLAS_NUM_THREADS": "1"}
    workers: list[subprocess.Popen[str]] = []
    errors: dict[str, list[str]] = {}
    try:
        for share in shares:
            command = [sys.executable, "-P", "-m", __name__, str(store), *share]
            workers.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                )
            )
        for worker, share in zip(workers, shares, strict=True):
            said, _ = worker.communicate()
            if worker.returncode < 0:
                raise TraceError(
                    f"a process that was reading {', '.join(share)} was ended by signal "
                    f"{-worker.returncode}; if memory is short, load with processes=1"
                )
            if worker.returncode == 0:
                errors |= json.loads(said)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    return errors


def _main(store: str, *paths: str) -> None:
    errors = {}
    for name in paths:
        path = Path(name)
        try:
            _one(path, _state(path), Path(store))
        except TraceError as error:
            errors[name] = [type(error).__name__, str(error)]
    print(json.dumps(errors))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ── The cache: a folder a file ───────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _store(paths: list[Path], cache: bool) -> Iterator[Path | None]:
    """Where large files' columns are put: the cache, or else a folder that is removed. None where
    there are no large files."""
    if not any(_is_large(path) for path in paths):
        yield None
        return
    if cache:
        store = platformdirs.user_cache_path("lockstep") / "traces"
        try:
            store.mkdir(parents=True, exist_ok=True)
            Path(tempfile.mkdtemp(prefix=".", dir=store)).rmdir()
            yield store
            return
        except OSError:
            pass
    with tempfile.TemporaryDirectory(prefix="lockstep-trace-") as folder:
        yield Path(folder)


def _entry(store: Path, path: Path) -> Path:
    size, changed = _state(path)
    key = f"{VERSION}|{path.resolve()}|{size}|{changed}"
    return store / hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:32]


def _keep(file: File, entry: Path) -> None:
    """Complete or not at all: others may be reading and writing the same entry."""
    folder = Path(tempfile.mkdtemp(prefix=".", dir=entry.parent))
    try:
        kineto_file.save(file, folder)
        folder.rename(entry)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        if not entry.exists():
            raise


def _prune(store: Path, keep: set[Path]) -> None:
    """Remove what was not used for longest, until the cache is small enough."""
    entries = []
    for entry in store.iterdir():
        with contextlib.suppress(OSError):
            size = sum(one.stat().st_size for one in entry.iterdir())
            entries.append((entry.stat().st_mtime_ns, size, entry))
    total = sum(size for _, size, _ in entries)
    for _, size, entry in sorted(entries):
        if total <= CACHE_LIMIT:
            break
        if entry not in keep:
            shutil.rmtree(entry, ignore_errors=True)
            total -= size


# ── Which rank, which job ────────────────────────────────────────────────────────────────────


def _ranks(paths: list[Path], files: list[File], notes: list[str]) -> list[int]:
    """The rank of each file: what the file says; else its name; else its place among the names."""
    said = [file.about["rank"] for file in files]
    named = [_rank_in(path.name) for path in paths]
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
                f"{same} are both of rank {rank}: load one of them, or, if they are different "
                "steps, one after the other"
            )
    return known


def _rank_in(name: str) -> int | None:
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


def _check_job(files: dict[int, File], notes: list[str]) -> None:
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
    if missing := [rank for rank in range(world) if rank not in files]:
        some = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        which = f"ranks {some} are" if len(missing) > 1 else f"rank {some} is"
        notes.append(
            f"{which} missing: the job has {world} ranks, there are traces of {len(files)}"
        )
    latest = max(files, key=lambda rank: files[rank].about["first"])
    earliest = min(files, key=lambda rank: files[rank].about["last"])
    apart = files[latest].about["first"] - files[earliest].about["last"]
    if apart > 0:
        notes.append(
            f"rank {latest} begins {apart / 1e9:,.3f} s after rank {earliest} has ended: they were "
            "not recorded at the same time, or their clocks are that far apart"
        )


# ── One trace ────────────────────────────────────────────────────────────────────────────────


def _merge(
    files: dict[int, File],
    stamp: Stamp,
    notes: list[str],
    about: dict[int, dict[str, Any]],
    origins: dict[int, tuple[Path, tuple[int, int]]],
) -> Trace:
    rows = sum(len(file.columns["start"]) for file in files.values())
    columns = {column: np.empty(rows, COLUMNS[column]) for column in (*kineto_file.SAVED, "rank")}
    names: dict[str, int] = {}
    known: dict[Collective, int] = {}
    lanes: list[Lane] = []
    begin = 0
    for rank, file in files.items():
        end = begin + len(file.columns["start"])
        new_name = np.array([names.setdefault(one, len(names)) for one in file.names], np.int32)
        new_known = [known.setdefault(one, len(known)) for one in file.known]
        columns["rank"][begin:end] = rank
        for column in kineto_file.SAVED:
            columns[column][begin:end] = file.columns.pop(column)  # no longer needed in memory
        columns["lane"][begin:end] += len(lanes)
        columns["name"][begin:end] = new_name[columns["name"][begin:end]]
        # The last place is for NONE, which is −1.
        renumbered = np.array([*new_known, NONE], np.int32)
        columns["collective"][begin:end] = renumbered[columns["collective"][begin:end]]
        lanes += [replace(lane, rank=rank) for lane in file.lanes]
        begin = end

    def fetch(rank: int, origin: int) -> dict[str, Any]:
        path, state = origins[rank]
        if _state(path) != state:
            raise TraceError(f"{path} has changed since it was loaded: load it again")
        return kineto_file.args_of(path, origin)

    return Trace(
        columns,
        lanes=lanes,
        names=list(names),
        known=list(known),
        stamp=stamp,
        notes=notes,
        about=about,
        fetch=fetch,
    )


def _without_rank(about: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key != "rank"}


def _evidence(files: list[File]) -> list[str]:
    """What part of communication is less certain, in sentences."""
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


def _stamp(about: list[dict[str, Any]]) -> Stamp:
    gpus = Counter(one.get("gpu", "CPU") for one in about)
    parts = [" + ".join(f"{gpu} × {many}" for gpu, many in gpus.items())]
    versions = {one["torch"] for one in about if "torch" in one}
    parts += [f"PyTorch {version}" for version in sorted(versions)[:1]]
    parts += sorted({one["date"] for one in about if "date" in one})[:1]
    return Stamp("recorded", " · ".join(parts))


if __name__ == "__main__":
    _main(*sys.argv[1:])
