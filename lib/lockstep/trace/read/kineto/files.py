"""Which files a trace is read from, how large they are, and whether they have changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from ...slices import TraceError

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
State = tuple[int, int]  # bytes, and the time of the last change in ns
_LARGE = 8 << 20  # bytes of text that are worth a process, and the cache
_PACKED = 15  # bytes of text in a byte of gz, about


def find(source: Paths, notes: list[str]) -> tuple[list[Path], bool]:
    """The files, and whether they were found in a folder rather than named."""
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_dir():
            return [path], False
        return _in_folder(path, notes), True
    paths = [Path(one) for one in source]
    if not paths:
        raise TraceError("no trace to load: the list of paths is empty")
    return paths, False


def _in_folder(folder: Path, notes: list[str]) -> list[Path]:
    try:
        named = sorted(one for one in folder.iterdir() if one.name.endswith((".json", ".json.gz")))
    except OSError as error:
        raise TraceError(f"{folder} cannot be read: {error.strerror or error}") from None
    paths = []
    left_out = []
    for one in named:
        try:
            state_of(one)
            paths.append(one)
        except TraceError as error:
            left_out.append(str(error))
    if not paths:
        some = "; ".join(left_out) or "no file there ends with .json or .json.gz"
        inside = sorted(one.name for one in folder.iterdir() if one.is_dir())
        where = f"; load one of the folders in it ({', '.join(inside[:6])})" if inside else ""
        raise TraceError(f"there is no trace in {folder}: {some}{where}")
    notes += [f"left out: {why}" for why in left_out]
    return paths


def state_of(path: Path) -> State:
    """Return what changes when a file does. Raises TraceError for what is no file that can be
    read."""
    try:
        state = path.stat()
    except OSError as error:
        why = error.strerror or str(error)
        if path.is_symlink():
            why = f"it is a link to {os.readlink(path)}, which leads to no file ({why})"
        raise TraceError(f"{path} cannot be read: {why}") from error
    if stat.S_ISDIR(state.st_mode):
        raise TraceError(f"{path} is a folder: load it by itself, or name the files in it")
    if not stat.S_ISREG(state.st_mode):
        raise TraceError(f"{path} is a pipe or a device, not a file: write it to a file first")
    return state.st_size, state.st_mtime_ns


def text_size(path: Path) -> int:
    """Bytes of a file's text, about."""
    return state_of(path)[0] * (_PACKED if path.suffix == ".gz" else 1)


def is_large(path: Path) -> bool:
    """Whether a file is worth a process of its own, and a place in the cache."""
    return text_size(path) >= _LARGE
