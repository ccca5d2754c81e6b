"""Locks on files and folders: whoever uses one holds a lock on it, and others leave it there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_held(path: Path) -> bool:
    """Return whether somebody holds a lock on a file or folder; True where that cannot be known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
