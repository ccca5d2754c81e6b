"""Our JavaScript as one text: notebooks and pages cannot load a folder of modules."""

import re
from collections.abc import Iterable
from pathlib import Path

_BETWEEN_FILES = re.compile(r"^import [^;]*;\n|^export (?!default)", re.MULTILINE)


def joined(folder: Path, files: Iterable[str]) -> str:
    """These files in one scope, in an order in which each imports only from those before it."""
    texts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in files]
    return "\n".join(_BETWEEN_FILES.sub("", text) for text in texts)
