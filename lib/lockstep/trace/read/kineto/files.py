"""Which files a trace is read from, how large they are, and whether they have changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from ...slices import TraceError

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
State = tuple[int, int]  # bytes, and the time of the last change in ns
_LARGE = 8 << 20  # bytes of text that are worth a process, and the cache
_PACKED = 15  # bytes of text in a byte of gz, about


def find(source: Paths) -> tuple[list[Path], bool]:
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


def state_of(path: Path) -> State:
    """What changes when a file does."""
    try:
        state = path.stat()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    if path.is_dir():
        raise TraceError(f"{path} is a folder: load it by itself, or name the files in it")
    return state.st_size, state.st_mtime_ns


def text_size(path: Path) -> int:
    """Bytes of a file's text, about."""
    return state_of(path)[0] * (_PACKED if path.suffix == ".gz" else 1)


def is_large(path: Path) -> bool:
    """Whether a file is worth a process of its own, and a place in the cache."""
    return text_size(path) >= _LARGE
