"""A rank's standard streams, and the files that its program has left open."""

from __future__ import annotations

import _io  # its classes, unlike io's, can be asked for at no cost
import contextlib
import gc
import io
import os
import sys
from typing import Any


def redirect(output: int, stdout: int | None, stderr: int | None) -> None:
    """Send stdout and stderr of this process to `output`, and what C++ prints as well.

    stdout, stderr: where they go instead of `output`.
    """
    os.dup2(output if stdout is None else stdout, 1)
    os.dup2(output if stderr is None else stderr, 2)
    for descriptor in (output, stdout, stderr):
        if descriptor is not None:
            os.close(descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for name in ("stdin", "stdout", "stderr"):
        stream = _unbuffered(name)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _unbuffered(name: str) -> io.TextIOWrapper:
    """A standard stream as torchrun's `python -u` makes it, with the encoding of this Python's."""
    encoding, errors = (
        (own.encoding, own.errors)
        if isinstance(own := getattr(sys, f"__{name}__"), io.TextIOWrapper)
        else ("utf-8", "strict")
    )
    number = ("stdin", "stdout", "stderr").index(name)
    raw = io.FileIO(number, "w" if number else "r", closefd=False)
    raw.name = f"<{name}>"
    buffer: Any = raw if number else io.BufferedReader(raw)
    stream = io.TextIOWrapper(buffer, encoding, errors, "\n", write_through=bool(number))
    stream.mode = raw.mode[0]  # type: ignore[misc]
    return stream


def open_files() -> list[Any]:
    """List the open files that may have something to lose, which unbuffered ones have not.

    The garbage collector knows of what this process has made, not of what its parent had.
    """
    streams = [getattr(sys, name, None) for name in ("stdin", "stdout", "stderr")]
    stay = {id(part) for s in streams for part in (s, getattr(s, "buffer", None))}
    return [
        thing
        for thing, kind in [(thing, type(thing)) for thing in gc.get_objects()]
        if issubclass(kind, _io._IOBase) and not issubclass(kind, _io._RawIOBase)
        if id(thing) not in stay
    ]


def close_files(files: list[Any]) -> None:
    """Close them, from the outside in: a text in a compressed file in a file."""

    def layer(file: Any) -> int:
        if isinstance(file, _io._TextIOBase):
            return 0
        return 2 if isinstance(file, (io.BufferedWriter, io.BufferedRandom)) else 1

    for file in sorted(files, key=layer):
        with contextlib.suppress(Exception):  # its other end may be gone
            file.close()
    flush()


def flush() -> Exception | None:
    """Flush stdout and stderr; returns what of that fails, by which Python's end fails, too."""
    failed = None
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception as error:
            failed = error
    return failed
