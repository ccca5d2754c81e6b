"""What torch.compile makes of a function: looked at on a rank, drawn in the notebook."""

from .look import Compiled, Kernel, Node, look
from .view import View, view
from .workshop import CPU_ALONE, CannotCompile, found, require, variables, workshop

__all__ = [
    "CPU_ALONE",
    "CannotCompile",
    "Compiled",
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
