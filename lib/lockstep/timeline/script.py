"""The timeline's JavaScript as one text."""

from pathlib import Path

from ..figures.scripts import joined

BROWSER = Path(__file__).with_name("browser")
# In this order, so that each imports only from those before it. Last comes notebook or page.
FILES = (
    *("words", "rows", "colours", "scene", "nodes", "lines", "view", "search", "details"),
    *("selection", "report", "export", "axis", "marks", "draw", "theme", "keyboard", "pointer"),
    "timeline",
)


def script(start: str) -> str:
    """All files, in one scope. start: the file that begins it, "notebook" or "page"."""
    return joined(BROWSER, (*FILES, start))
