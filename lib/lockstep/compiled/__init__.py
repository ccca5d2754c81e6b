"""What torch.compile makes of a function: looked at on a rank, drawn in the notebook."""

from .look import Compiled, Kernel, Node, look
from .view import View, view
from .workshop import CPU_ALONE, CannotCompile, Findings, found, require, variables, workshop

__all__ = [
    "CPU_ALONE",
    "CannotCompile",
    "Compiled",
    "Findings",
    "Kernel",
    "Node",
    "View",
    "found",
    "look",
    "require",
    "variables",
    "view",
    "workshop",
]
