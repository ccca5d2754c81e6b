"""Scripts and modules, run as Python itself runs them."""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
from typing import Any


def run_script(script: str, argv: list[str], namespace: dict[str, Any]) -> None:
    """Run a script as `python script` does, in a `__main__` that stays for threads and atexit."""
    sys.argv[:] = argv
    sys.orig_argv[:] = [sys.executable, "-u", *argv]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    with io.open_code(script) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    namespace.update(
        __file__=script,
        __loader__=importlib.machinery.SourceFileLoader("__main__", script),
        __cached__=None,
    )
    exec(code, namespace)


def run_module(module: str, arguments: list[str]) -> None:
    """Run a module as `python -m module` does."""
    sys.argv[:] = [module, *arguments]
    sys.path.insert(0, os.getcwd())
    runpy._run_module_as_main(module)  # type: ignore[attr-defined]
