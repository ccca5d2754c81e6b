"""The timeline: what every rank did, drawn; as a widget, as a picture, as a page."""

from .offline import page
from .widget import Timeline

__all__ = ["Timeline", "page"]
