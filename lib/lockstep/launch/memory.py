"""Who was ended because memory was used up: what the kernel counts, and how much there was.

A container's and a Slurm job's processes are in a control group that may have a limit. Where it is
reached the kernel ends one of them with SIGKILL, which looks like anybody's, but it counts that:
https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events) and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.oom_control).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..words import binary

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # bytes; version 1 writes about 2^63 where there is none
_FIRST = 500  # thousandths of all memory by which a process counts as larger than it is


class Toll:
    """Tells, after processes of this one's control group were killed, for which the kernel did it
    because memory was used up.
    """

    def __init__(self) -> None:
        self._explained = killed()

    def explains(self) -> str:
        """What there was of memory, of one more process that was killed; "" where the kernel has
        counted none, so that somebody else did it.

        Each that the kernel has counted explains one.
        """
        if killed() <= self._explained:
            return ""
        self._explained += 1
        least = limit()
        if least is None:
            return f"the memory of this host, {binary(_all())}, was used up"
        return f"this job, or container, may use {binary(least)} of memory, and has used them up"


def killed() -> int:
    """How many processes the kernel has ended so far because memory was used up: of our control
    group, or, where that is not counted, of this host; 0 where nothing counts them.
    """
    for folder in _groups():
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                return int(_table(folder / name).get("oom_kill", 0))
    with contextlib.suppress(OSError, ValueError):
        return int(_table(Path("/proc/vmstat")).get("oom_kill", 0))
    return 0


def limit() -> int | None:
    """Bytes that our control group and those around it may use; None for all that there is."""
    found = []
    for folder in _groups():
        with contextlib.suppress(OSError, ValueError):
            found.append(int((folder / "memory.max").read_text()))  # "max" is none
        with contextlib.suppress(OSError, LookupError, ValueError):
            found.append(int(_table(folder / "memory.stat")["hierarchical_memory_limit"]))
    return min((one for one in found if one < _NO_LIMIT), default=None)


def protect_others() -> None:
    """Where memory is used up have the kernel end this process, and what it starts, before the
    notebook's or an agent's, which can then say what happened.
    """
    with contextlib.suppress(OSError, ValueError):
        file = Path("/proc/self/oom_score_adj")
        file.write_text(str(max(_FIRST, int(file.read_text()))))


def _groups() -> Iterator[Path]:
    """The folder of the control group that limits our memory, and of those around it; innermost
    first. In a container a group may be named as the host names it, whose folder is not there.
    """
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    groups = {
        name: group
        for _, names, group in (line.split(":", 2) for line in lines)
        for name in names.split(",")
    }
    root = _ROOT / "memory" if "memory" in groups else _ROOT  # version 1, or 2
    group = groups.get("memory", groups.get("", ""))
    parts = [] if ".." in group else list(filter(None, group.split("/")))
    for depth in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:depth])


def _table(file: Path) -> dict[str, str]:
    """Of lines with a name and a number each."""
    pairs = (line.split(maxsplit=1) for line in file.read_text().splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _all() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
