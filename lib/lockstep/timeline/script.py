"""The timeline's JavaScript as one text: notebooks and pages cannot load a folder of modules."""

import re
from pathlib import Path

BROWSER = Path(__file__).with_name("browser")
# In this order, so that each imports only from those before it. Last comes notebook or page.
FILES = (
    *("words", "rows", "colours", "scene", "nodes", "lines", "view", "search"),
    *("details", "selection", "axis", "marks", "draw", "theme", "keyboard", "pointer", "timeline"),
)
_BETWEEN_FILES = re.compile(r"^import [^;]*;\n|^export (?!default)", re.MULTILINE)


def script(start: str) -> str:
    """All files, in one scope. start: the file that begins it, "notebook" or "page"."""
    texts = [(BROWSER / f"{name}.js").read_text(encoding="utf-8") for name in (*FILES, start)]
    return "\n".join(_BETWEEN_FILES.sub("", text) for text in texts)
