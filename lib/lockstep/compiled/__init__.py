"""What torch.compile makes of a function: looked at on a rank, drawn in the notebook."""

from .look import Compiled, Kernel, Node, look
from .view import View, view

__all__ = ["Compiled", "Kernel", "Node", "View", "look", "view"]
