"""A program's names for a process group: those that its own frames have for it, now, or none.

It looks and runs nothing of the program: only what is exactly a list, a dict or a string counts as
one, and an object's attributes are read from its `__dict__` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from sys import gettrace
from types import FrameType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

from ..failures import is_library

# What PyTorch calls the argument; as a name it says nothing.
_SAY_NOTHING = frozenset({"group", "pg", "process_group"})
# Before Python 3.13 to look at a function's variables writes to the dict that these return.
_KEEPS_A_DICT = sys.version_info < (3, 13)
_SEE_IT = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"})
_MOST = 1000  # names of a frame, elements of a list that are looked at
_LONGEST = 60  # characters


def name_of(value: Any, frame: FrameType | None = None) -> str:
    """Return the program's name for `value` from a frame on, or below this call: "pair",
    "groups[0]", or "".

    The innermost of the program's own frames that has a name for it counts, and in that frame a
    variable before what is in one; of several the one that came first.
    """
    frame = frame or frame_here()
    while frame is not None:
        if not is_library(frame.f_code.co_filename) and (name := _in_frame(frame, value)):
            return name if len(name) <= _LONGEST else ""
        frame = frame.f_back
    return ""


def frame_here() -> FrameType | None:
    """The caller's frame; sys._getframe() would tell the program's audit hooks."""
    try:
        raise LookupError
    except LookupError as error:
        assert error.__traceback__ is not None
        return error.__traceback__.tb_frame.f_back


def _in_frame(frame: FrameType, value: Any) -> str:
    if not frame.f_code.co_flags & CO_OPTIMIZED:  # a module's
        return _named(frame.f_locals, value)
    if found := _among_locals(frame, value):
        return found
    variables = frame.f_globals
    if type(variables) is not dict:
        return ""
    return _named({name: variables.get(name) for name in frame.f_code.co_names}, value)


def _among_locals(frame: FrameType, value: Any) -> str:
    if not _KEEPS_A_DICT:
        return _named(dict(frame.f_locals), value)
    code = frame.f_code
    if gettrace() is not None or frame.f_trace is not None or not _SEE_IT.isdisjoint(code.co_names):
        return ""  # the dict is in use
    kept = frame.f_locals
    found = _named(kept, value)
    # The frame keeps it, and a tensor in it would outlive its function's `del`.
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        kept.pop(name, None)
    return found


def _named(variables: Mapping[str, Any], value: Any) -> str:
    if type(variables) is not dict:
        return ""
    there = [(name, one) for name, one in list(variables.items())[:_MOST] if _is_name(name)]
    for name, one in there:
        if one is value and name not in _SAY_NOTHING:
            return name
    for name, one in there:
        for way, part in _parts(one):
            if part is value:
                return f"{name}{way}"
    return ""


def _is_name(name: Any) -> bool:
    return _is_attribute(name) and not name.startswith("_")


def _is_attribute(name: Any) -> bool:
    return type(name) is str and name.isidentifier()


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    """Return what a variable holds, one level down, and how a program writes that."""
    kind = type(holder)
    if kind in (list, tuple):
        yield from ((f"[{at}]", one) for at, one in enumerate(holder[:_MOST]))
    elif kind is dict:
        pairs = list(holder.items())[:_MOST]
        yield from ((f"[{key!r}]", one) for key, one in pairs if type(key) in (str, int))
    elif not issubclass(kind, (type, ModuleType, FunctionType)):
        pairs = list(_attributes(holder).items())[:_MOST]
        yield from ((f".{key}", one) for key, one in pairs if _is_attribute(key))


def _attributes(holder: Any) -> dict[Any, Any]:
    """An object's own `__dict__`; a property of that name is the program's, and is not asked."""
    for kind in _bases(type(holder)):
        found = _names(kind).get("__dict__")
        if found is not None:
            held = found.__get__(holder) if type(found) is GetSetDescriptorType else None
            return held if type(held) is dict else {}
    return {}


# As `type` itself answers, whatever a metaclass would say.
_bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_names: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
