"""What a command says where it cannot do what it was asked for: one sentence, and no traceback."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

# Why something was not written.
_INSTEAD = {
    errno.EISDIR: "it is a folder; name a file",
    errno.EEXIST: "it is a file; name a folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder; name another place",
    errno.ENOENT: "its folder does not exist; create it first",
    errno.EACCES: "you have no permission to write there; name another place",
    errno.ENOSPC: "the disk is full; free some space, or name another place",
}


class Refused(Exception):
    """What was asked for cannot be done; the message says why, and what to do."""


@contextmanager
def writing() -> Iterator[None]:
    """Raise Refused where something cannot be written inside."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            raise Refused(str(error)) from error
        why = _INSTEAD.get(error.errno or 0, error.strerror)
        raise Refused(f"{error.filename2 or error.filename} cannot be written: {why}") from error
