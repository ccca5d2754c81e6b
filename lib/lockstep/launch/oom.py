"""Processes that were ended because memory was used up: the kernel's count, and the limits.

A container's and a Slurm job's processes are in a control group that may have a limit. Where it is
reached the kernel ends one of them with SIGKILL, which looks like anybody's, but it counts that:
https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events) and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.oom_control).
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from ..base.formatting import binary
from ..base.machine import cgroup_levels

_NO_LIMIT = 1 << 60  # bytes; version 1 writes about 2^63 where there is none


class OomCounter:
    """Counts how many processes of this one's control group the kernel has killed for memory.

    The count begins when this is made; each kill in it explains the end of one process.
    """

    def __init__(self) -> None:
        self._explained = killed()

    def explains(self) -> str:
        """Say why one more process was killed: how much memory there was; "" where the kernel has
        counted no further kill, so that somebody else did it.
        """
        if killed() <= self._explained:
            return ""
        self._explained += 1
        least = limit()
        if least is None:
            return "the memory of this host was used up"
        return f"this job, or container, may use {binary(least)} of memory, and has used it up"


def killed(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has ended so far because memory was used up: of our
    control group, or, where that is not counted, of this host; 0 where nothing counts them.
    """
    own = [
        level / name
        for level in cgroup_levels(root, "memory")
        for name in ("memory.events", "memory.oom_control")
    ]
    for file in (*own, root / "proc/vmstat"):
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            return int(found[1]) if found else 0
    return 0


def limit(root: Path = Path("/")) -> int | None:
    """Return the bytes that our control group and those around it may use; None for no limit."""
    found = []
    for level in cgroup_levels(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # version 2 says "max" for none
                found.append(int((level / name).read_text()))
    return min((one for one in found if one < _NO_LIMIT), default=None)
