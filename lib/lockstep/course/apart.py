"""A call in a process of its own, which may be killed at any line of the answer."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OURS = (str(Path(__file__).parents[1]), "<frozen", sysconfig.get_path("purelib"))
_PYTHONS = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class Apart:
    """How it ended: "returned", "raised" or "killed". value: what it returned, or the exception's
    text. lines: how many lines of the answer began; 0 where it was killed."""

    how: str
    value: Any = None
    lines: int = 0


def killed_at(number: int) -> Callable[[int], None]:
    """Return what ends its process where the line of this number begins."""

    def end(line: int) -> None:
        if line == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return end


def apart(
    call: Callable[[], Any],
    *,
    each_line: Callable[[int], object] = lambda _: None,
    libraries: bool = False,
    room: int = 0,
    kills: bool = False,
) -> Apart:
    """Fork, call, and wait for the end of it; what the call returns has to be picklable.

    each_line: called where a line of the answer begins, with its number, counted from 1; it may
    end the process (`killed_at`). libraries: lines of Python's own modules count, too. room: the
    bytes of the largest file that may be written, as on a disk that is nearly full: a write past
    it raises OSError, or is the process's end if `kills`, when all that fits has been written.
    """
    lines = 0
    left_out = _OURS if libraries else (*_OURS, _PYTHONS)

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "call":
            return None if frame.f_code.co_filename.startswith(left_out) else trace
        if event == "line":
            lines += 1
            each_line(lines)
        return trace

    def limited() -> tuple[str, Any]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if kills:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if room:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        sys.settrace(trace)
        try:
            return "returned", call()
        except Exception as error:
            return "raised", f"{type(error).__name__}: {error}"
        finally:
            sys.settrace(None)

    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            ended = limited()
            with os.fdopen(writing, "wb") as report:
                pickle.dump((*ended, lines), report)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return Apart(*pickle.loads(said)) if said else Apart("killed")
