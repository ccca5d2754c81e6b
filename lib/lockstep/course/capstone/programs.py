"""The programs: `labs/step.py` is slow in eight ways, `solutions/step.py` is the mended one.

Both have the same functions, and differ only in those that `FAULTS` names, so a program with some
of the faults is the mended one with these functions of the slow one in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from ...base.paths import LABS, SOLUTIONS

SLOW, MENDED = LABS / "step.py", SOLUTIONS / "step.py"

# By fault: the definitions of the slow one that have it.
FAULTS = {
    "popular experts on one rank": ("owners",),
    "compiled again for each number of rows": ("compiled",),
    "the host waits for each split": ("on_host",),
    "experts one after the other": ("experts",),
    "nothing runs while rows travel": ("Exchange", "moe"),
    "copies that the host waits for": ("batches",),
    "an all-reduce a parameter": ("average",),
    "weights updated one by one": ("update",),
}


def with_faults(faults: Iterable[str]) -> str:
    """Return the mended program's text with these faults put back. Raises KeyError."""
    code = MENDED.read_text(encoding="utf-8")
    slow = _definitions(SLOW.read_text(encoding="utf-8"))
    for fault in faults:
        mended = _definitions(code)
        for name in FAULTS[fault]:
            if name in mended:
                code = code.replace(mended[name], slow[name])
            else:  # a helper of the slow one
                code = code.replace("def on_host(", f"{slow[name]}\n\n\ndef on_host(")
    return code


def is_the_courses(path: Path) -> bool:
    """Whether nothing in a program is a learner's own: each function is the slow one's, or the
    mended one's."""
    ours = [_definitions(one.read_text(encoding="utf-8")).items() for one in (SLOW, MENDED)]
    return _definitions(path.read_text(encoding="utf-8")).items() <= (ours[0] | ours[1])


def _definitions(code: str) -> dict[str, str]:
    """The text of each function and class of a program, by its name."""
    lines = code.splitlines()
    return {
        one.name: "\n".join(lines[one.lineno - 1 : one.end_lineno])
        for one in ast.parse(code).body
        if isinstance(one, ast.FunctionDef | ast.ClassDef)
    }


def copy(to: str = "step.py") -> Path:
    """Write the slow program into this folder, for you to change, unless it is there already."""
    path = Path(to).resolve()
    if not path.exists():
        path.write_text(SLOW.read_text(encoding="utf-8"), encoding="utf-8")
    return path
