"""The cache of what was read from large files, in the user's cache folder: a folder a file."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import platformdirs

from ...slices import NONE, Collective, Lane
from .file import SAVED, File
from .files import is_large, state_of

VERSION = 6  # of what is cached: raise it when the reader reads otherwise
CACHE_LIMIT = 2 * 10**9  # bytes


@contextlib.contextmanager
def open_store(paths: list[Path], cache: bool) -> Iterator[Path | None]:
    """Open a place for large files' columns: the cache, or else a folder that is removed. None
    where there are no large files."""
    if not any(is_large(path) for path in paths):
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


def entry_of(store: Path, path: Path) -> Path:
    """The folder of a file; another one when the file has changed."""
    size, changed = state_of(path)
    key = f"{VERSION}|{path.resolve()}|{size}|{changed}"
    return store / hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:32]


def keep(file: File, entry: Path) -> None:
    """Put what was read there, complete or not at all: others may read and write the same entry."""
    folder = Path(tempfile.mkdtemp(prefix=".", dir=entry.parent))
    try:
        _save(file, folder)
        folder.rename(entry)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        if not entry.exists():
            raise


def prune(store: Path, spare: set[Path]) -> None:
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
        if entry not in spare:
            shutil.rmtree(entry, ignore_errors=True)
            total -= size


def _save(file: File, folder: Path) -> None:
    """Write a file's table into a folder."""
    for column, values in file.columns.items():
        np.save(folder / f"{column}.npy", values)
    rest = {"names": file.names, "lanes": file.lanes, "known": file.known}
    rest |= {"about": file.about, "notes": file.notes}
    (folder / "rest.json").write_bytes(msgspec.json.encode(rest))


def saved(folder: Path) -> File:
    """Return what `keep` wrote; columns are read from the disk when they are looked at.

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


class _Rest(msgspec.Struct):
    names: list[str]
    lanes: list[Lane]
    known: list[Collective]
    about: dict[str, Any]
    notes: list[str]
