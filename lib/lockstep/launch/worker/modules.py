"""The user's modules in a rank that stays: those whose files change are reloaded, in place.

Fresh ranks import anew; ranks of a World would go on with what they imported once. Functions and
classes are changed where they are (by the same code as IPython's %autoreload), so that names that
cells have imported from a module see the change, too.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import itertools
import linecache
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any, TypeAlias

_Stamp: TypeAlias = tuple[int, int]  # when a file was written, in nanoseconds, and its size
_CLOCKS = 20_000_000  # nanoseconds by which a file's time may lag behind the clock

# What nobody edits beside a running kernel: Python, installed packages, Lockstep itself.
_FOLDERS = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[2]))
_INSTALLED = tuple(os.path.join(folder, "") for folder in _FOLDERS)

_NAMESPACE: Any = vars(types.ModuleType)["__dict__"]  # whatever else a class makes of __dict__


class Modules:
    """Remembers what a rank has imported from files of the user's own, and how these were then."""

    def __init__(self) -> None:
        self._last = next(reversed(sys.modules))
        self._stamps: dict[str, _Stamp | None] = {}  # by name; None: not known what was imported
        self._old_objects: dict[Any, Any] = {}  # what reloading has to change, for superreload

    def note(self, since: int) -> None:
        """Take down what has been imported since the last call, which was at `since` (time_ns)."""
        # New ones stand at the end. Looking at all of them would cost a rank that was just forked
        # milliseconds: each name that is touched makes a page its own.
        for name in list(
            itertools.takewhile(lambda name: name != self._last, reversed(sys.modules))
        ):
            path = _own_file(name)
            if path and (stamp := _stamp(path)):
                # A file written meanwhile may be older or newer than what was imported from it.
                self._stamps[name] = stamp if stamp[0] < since - _CLOCKS else None
        self._last = next(reversed(sys.modules))

    def reload(self) -> str:
        """Reload what has changed on disk; returns a sentence on it, "" if nothing has."""
        changed = {}
        for name, before in self._stamps.items():
            path = _own_file(name)
            if path and (stamp := _stamp(path)) and stamp != before:
                changed[name] = stamp
        if not changed:
            return ""
        # Only now: it takes some tenths of a second to import.
        from IPython.extensions.autoreload import superreload

        linecache.checkcache()
        done, notes = [], []
        for name in _imported_first(list(changed)):
            self._stamps[name] = changed[name]
            try:
                superreload(sys.modules[name], old_objects=self._old_objects)
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
                notes.append(f"{name} keeps its old state, because reloading it raised {raised}")
            else:
                done.append(name)
        if done:
            notes.insert(0, f"reloaded: {', '.join(done)}")
        return "; ".join(notes)


def _own_file(name: str) -> str:
    """The source file of a module of the user's own, "" for others."""
    path = _file(name)
    if not path.endswith(".py") or _installed(path):
        return ""
    generated = _installed(_file(name.partition(".")[0]))  # as Inductor makes modules
    return "" if generated else path


def _file(name: str) -> str:
    """A module's `__file__`, "" where it has none.

    Runs no code of the program's: anything may stand in `sys.modules`, lazy modules load when they
    are asked for an attribute, and others raise.
    """
    module = sys.modules.get(name)
    if type(name) is not str or not issubclass(type(module), types.ModuleType):
        return ""
    path = _NAMESPACE.__get__(module).get("__file__")
    return path if type(path) is str else ""


def _installed(path: str) -> bool:
    return "site-packages" in path or "dist-packages" in path or path.startswith(_INSTALLED)


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:  # it is no more: what was imported stays
        return None
    return status.st_mtime_ns, status.st_size


def _imported_first(names: list[str]) -> list[str]:
    """The modules, those first that others of them import."""
    graph = {name: _imports(name) & set(names) - {name} for name in names}
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError:
        return names


def _imports(name: str) -> set[str]:
    """Return what a module's file imports; may name functions, too."""
    module = sys.modules[name]
    package = getattr(module, "__package__", None) or ""
    try:
        tree = ast.parse(Path(module.__file__ or "").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found
