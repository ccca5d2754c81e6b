"""What torch.compile makes of a function: looked at on a rank, drawn in the notebook."""

from .compile_session import (
    CPU_ALONE,
    CannotCompile,
    Findings,
    compile_session,
    found,
    require,
    variables,
)
from .inspection import Compiled, Kernel, Node, look
from .view import View, view

__all__ = [
    "CPU_ALONE",
    "CannotCompile",
    "Compiled",
    "Findings",
    "Kernel",
    "Node",
    "View",
    "compile_session",
    "found",
    "look",
    "require",
    "variables",
    "view",
]
