"""The timeline: what every rank did, drawn; as a widget, as a picture, as a page."""

from .page import page
from .scene import Scene, scene
from .widget import Timeline

__all__ = ["Scene", "Timeline", "page", "scene"]
