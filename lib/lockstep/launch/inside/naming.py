"""What a program calls a process group: names that its own frames have for it, now, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import CO_OPTIMIZED
from types import FrameType, FunctionType, ModuleType
from typing import Any

from ..explain.report import is_library

# What PyTorch calls the argument; as a name it says nothing.
_SAY_NOTHING = frozenset({"group", "pg", "process_group"})
_MOST = 1000  # names of a frame, elements of a list that are looked at
_LONGEST = 60  # characters


def name_of(value: Any) -> str:
    """What the program below this call names `value`: "pair", "self.group", "groups[0]", or "".

    The innermost of the program's own frames that has a name for it counts, and in that frame a
    variable before what is in one; of several the one that came first.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename) and (name := _in_frame(frame, value)):
            return name if len(name) <= _LONGEST else ""
        frame = frame.f_back
    return ""


def _in_frame(frame: FrameType, value: Any) -> str:
    if frame.f_code.co_flags & CO_OPTIMIZED:  # of a function
        found = _named(frame.f_locals, value)
        _forget(frame)
        if found:
            return found
        used = {name: frame.f_globals.get(name) for name in frame.f_code.co_names}
        return _named(used, value)
    return _named(frame.f_locals, value)


def _forget(frame: FrameType) -> None:
    """Before Python 3.13 a frame keeps the dict that it was asked for, and all that is in it: a
    tensor would outlive its function's `del`. A program that has asked itself keeps it."""
    kept = frame.f_locals
    if isinstance(kept, dict) and sys.getrefcount(kept) <= 3:  # the frame's, ours, the argument
        kept.clear()


def _named(variables: Mapping[str, Any], value: Any) -> str:
    names = [n for n in list(variables)[:_MOST] if n.isidentifier() and not n.startswith("_")]
    for name in names:
        if variables.get(name) is value and name not in _SAY_NOTHING:
            return name
    for name in names:
        for way, one in _parts(variables.get(name)):
            if one is value:
                return f"{name}{way}"
    return ""


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    """What a variable holds, one level down, and how a program writes that."""
    if type(holder) in (list, tuple):
        yield from ((f"[{at}]", one) for at, one in enumerate(holder[:_MOST]))
    elif type(holder) is dict:
        pairs = list(holder.items())[:_MOST]
        yield from ((f"[{key!r}]", one) for key, one in pairs if type(key) in (str, int))
    elif not isinstance(holder, (type, ModuleType, FunctionType)):
        try:
            held = object.__getattribute__(holder, "__dict__")  # runs no code of the program
        except AttributeError:
            return
        pairs = list(held.items())[:_MOST] if type(held) is dict else []
        yield from ((f".{key}", one) for key, one in pairs if str(key).isidentifier())
