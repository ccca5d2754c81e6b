"""Pickles that PyTorch wrote: a pickle is a program, so only plain values are let in."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from ...base.machine import is_cell
from ..slices import TraceError


class _Plain(pickle.Unpickler):
    """Dicts, lists, tuples, sets, text, bytes, numbers, booleans and None; nothing by name."""

    def __init__(self, file: gzip.GzipFile | BufferedReader, name: str):
        super().__init__(file)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        raise TraceError(
            f"{self._name} wants to load {f'{module}.{name}'[:200]!r}: loading that could run any "
            "program. PyTorch writes snapshots and flight-recorder dumps of plain values only, so "
            "this file is something else"
        )


def line_outside_torch(frames: Iterable[Mapping[str, Any]] | None) -> tuple[str, str]:
    """("train.py:40", function) of the innermost Python line that is not PyTorch's; ("cell:4", …)
    of one in a notebook; ("", "") of none."""
    for frame in frames or ():
        file = str(frame["filename"]).replace("\\", "/")
        outside = "/torch/" not in file and not file.startswith("torch/")
        if outside and file.endswith((".py", ">")):
            name = "cell" if is_cell(file) else file.rsplit("/", 1)[-1]
            return f"{name}:{frame['line']}", str(frame["name"])
    return "", ""


def read_plain(path: Path) -> Any:
    """Read a pickle file (packed, if its name ends in .gz) that holds plain values only.

    Raises TraceError for anything else, and for a file that is cut off or no pickle.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _Plain(file, path.name).load()
    except TraceError:
        raise
    except OSError as error:
        raise TraceError(f"{path.name} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a broken pickle raises nearly anything
        raise TraceError(
            f"{path.name} is not a pickle, or is cut off: "
            f"{str(error)[:200] or type(error).__name__}"
        ) from None
