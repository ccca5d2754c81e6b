"""The recursion limit counts a program's own frames, and not ours below them."""

from __future__ import annotations

import sys
import traceback
from types import FrameType

_set, _get = sys.setrecursionlimit, sys.getrecursionlimit
_hidden = 0


def hide_frames(below: FrameType, called: bool) -> None:
    """See to it that the program that begins now can go as deep as one that Python runs itself.

    below: the frame from which it is run. called: it is a function, which a script would call.
    """
    global _hidden
    limit = _get() - _hidden
    _hidden = sum(1 for _ in traceback.walk_stack(below)) + (0 if called else 3)
    _set(limit + _hidden)
    sys.setrecursionlimit, sys.getrecursionlimit = setrecursionlimit, getrecursionlimit


def setrecursionlimit(limit: int, /) -> None:
    _set(limit + _hidden if limit > 0 else limit)


def getrecursionlimit() -> int:
    return _get() - _hidden


for _function in (setrecursionlimit, getrecursionlimit):
    _original = getattr(sys, _function.__name__)
    _function.__doc__, _function.__module__ = _original.__doc__, "sys"
