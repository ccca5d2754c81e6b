"""Inspect what torch.compile makes of a function, on a rank, and draw it in the notebook."""

from .compile_session import (
    CPU_ALONE,
    CannotCompile,
    Findings,
    compile_session,
    compiler_runs,
    counted,
    found,
    require,
    variables,
)
from .inspection import Compiled, look
from .view import View, view

__all__ = [
    "CPU_ALONE",
    "CannotCompile",
    "Compiled",
    "Findings",
    "View",
    "compile_session",
    "compiler_runs",
    "counted",
    "found",
    "look",
    "require",
    "variables",
    "view",
]
