"""Requests of a rank's process to the kernel, for itself."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys

# "Show your stack". Not a signal that programs handle, or that ends them: what they have SIGQUIT
# for is theirs.
STACK_SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGQUIT)
_ASIDE = 1000  # the first descriptor that may be ours; programs have those below
_LARGER = 500  # thousandths of all memory by which a rank counts as larger than it is


def aside(descriptor: int) -> int:
    """Move a descriptor to where no program looks: theirs have the numbers that they would have
    under torchrun, and who closes all from 3 to 1000 closes none of ours.
    """
    with contextlib.suppress(OSError):  # so many may not be open
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ASIDE)
        os.close(descriptor)
        return moved
    return descriptor


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux)."""
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind (Linux)."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def end_before_others() -> None:
    """Have the kernel end this process, and what it starts, where memory is used up.

    The notebook or an agent lives on then, and can say what happened (Linux).
    """
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        least = max(_LARGER, int(file.read()))
        file.seek(0)
        file.write(str(least))


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
