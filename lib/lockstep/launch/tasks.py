"""Packs what ranks are to do: a call of a function, a cell, or a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import cell as cells
from . import payload
from .cell import Cell
from .errors import CannotSend, LaunchError, ScriptNotFound, refusal
from .nodes.base import Task
from .outcome import Plan


def function_task(
    plan: Plan, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Task:
    content = {"kind": "function", "function": function, "args": args, "kwargs": kwargs}
    parts = {"the function": function}
    parts |= {f"argument {i}": value for i, value in enumerate(args)} | kwargs
    return _pack(content, plan, parts, vars(sys.modules["__main__"]))


def cell_task(plan: Plan, cell: Cell, values: dict[str, Any], namespace: dict[str, Any]) -> Task:
    content = {"kind": "cell", "source": cell.source, "filename": cell.filename, "values": values}
    return _pack(content, plan, values, namespace)


def program_task(plan: Plan, command: Sequence[str]) -> Task:
    program, *arguments = command
    if program == "-m":
        if not arguments:
            raise LaunchError("-m needs the name of a module: torchrun -m package.module")
        content = {"kind": "module", "module": arguments[0], "arguments": arguments[1:]}
    else:
        script = Path(program)
        if not script.is_file():
            raise ScriptNotFound(f"there is no script {program!r} in {os.getcwd()}")
        content = {"kind": "script", "script": os.path.abspath(script), "argv": list(command)}
    task = _pack(content, plan, {}, None)
    task.may_leave = True
    return task


def _pack(
    content: dict[str, Any],
    plan: Plan,
    parts: Mapping[str, Any],
    namespace: dict[str, Any] | None,
) -> Task:
    """Pickle a task; where that fails, say which of its parts is to blame."""
    content["trace"] = None if plan.profiles is None else str(plan.profiles)
    try:
        file, sizes = payload.write(content, namespace, cells.MOST_BYTES)
    except CannotSend:
        cells.blame(parts)
    except OSError as error:
        raise refusal(error) from error
    return Task(file, sizes, plan.backend)
