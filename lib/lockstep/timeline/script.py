"""The timeline's JavaScript as one text."""

from pathlib import Path

from ..figures import widget

BROWSER, OF_FIGURES = Path(__file__).with_name("browser"), widget.BROWSER
SHARED = ("colours",)  # with figures
# In this order, so that each imports only from those before it. Last comes notebook or page.
FILES = (
    *("words", "rows", "scene", "nodes", "lines", "view", "search", "details"),
    *("selection", "report", "export", "axis", "marks", "draw", "theme", "keyboard", "pointer"),
    "timeline",
)


def script(start: str) -> str:
    """All files, in one scope. start: the file that begins it, "notebook" or "page"."""
    return widget.joined(OF_FIGURES, SHARED) + "\n" + widget.joined(BROWSER, (*FILES, start))
