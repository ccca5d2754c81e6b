"""The text of cells: where tracebacks, inspect and torch.compile find the lines of their code."""

from __future__ import annotations

import linecache

from ..base.machine import is_cell


def remember(filename: str, source: str) -> None:
    """Let everybody in this process find these lines under this name."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)


def cell_source(filename: str) -> str | None:
    """The text of a cell of this process, None where the name is not one of a cell."""
    if is_cell(filename):
        entry = linecache.cache.get(filename)
        if entry is not None and len(entry) == 4:
            return "".join(entry[2])
    return None


def knows(filename: str) -> bool:
    return filename in linecache.cache
