"""What answers a prediction stays hidden in JupyterLab until there is a prediction."""

from __future__ import annotations

import re
import secrets
from typing import Any

from IPython.display import display

from ..base.machine import in_notebook

_ASKS = re.compile(r"^(prediction|guess)\s*=", re.MULTILINE)
# Also where a lab's own function compares: seen.compare(prediction, …).
_ANSWERS = re.compile(r"\bcompare\(\s*(?:predicted=)?(prediction)\b|\bguess=(guess)\b")
_FARTHEST = 6  # cells between a question and its answer
# All other outputs of the cell, but errors. Where nothing else is shown, there is nothing to hide.
# A page that does not trust the notebook takes no style from it, and so hides nothing either.
_STYLE = """<style>
.lockstep-spoiler { display: block !important }
.jp-OutputArea:has(.lockstep-spoiler:not([open])) > .jp-OutputArea-child\
:not(:has(.lockstep-spoiler, [data-mime-type="application/vnd.jupyter.stderr"])) { display: none }
.jp-OutputArea:not(:has(> .jp-OutputArea-child ~ .jp-OutputArea-child)) .lockstep-spoiler {
    display: none !important
}
.lockstep-spoiler > summary { cursor: pointer }
</style>"""


# Who goes on without has done so after the page was loaded anew, too. It comes after the fold.
_KEPT = """<script>{{
    const spoiler = document.currentScript.previousElementSibling;
    spoiler.open = "{key}" in localStorage;
    spoiler.ontoggle = () => localStorage[spoiler.open ? "setItem" : "removeItem"]("{key}", "");
}}</script>"""


class Spoiler:
    """Hides what cells show between a question and its answer, while the question has none.

    It goes by names: a cell that sets `prediction` or `guess` to None asks, and the next cell that
    compares it with something, or passes it to a claim, answers. Only the page hides: kernel and
    notebook have all outputs, and a notebook that another program executes is the same but for a
    line.
    """

    def __init__(self, shell: Any):
        self._shell = shell
        self._asked: dict[str, int] = {}  # names without an answer: how many cells ago

    def before(self, cell: Any) -> None:
        """Show what hides the outputs that follow, where they would tell."""
        code = str(cell.raw_cell)
        unsaid = [name for name in _answered(code) or self._asked if self._is_open(name)]
        if _ASKS.search(code) or "lockstep.check(" in code or not unsaid:
            return
        said = f"Your {unsaid[0]} first: write it above, as {unsaid[0]} = …, and run both cells."
        summary = f"<summary>{said} Or go on without.</summary>"
        hidden = 'class="lockstep-spoiler" style="display:none"'
        fold = f"<details {hidden}>{summary}What came out:</details>"
        kept = _KEPT.format(key=f"lockstep-spoiler-{secrets.token_hex(8)}")
        display({"text/plain": said, "text/html": _STYLE + fold + kept}, raw=True)

    def after(self, result: Any) -> None:
        """Take note of a question, and of its answer."""
        code = str(result.info.raw_cell)
        if asks := _ASKS.search(code):
            self._asked[asks[1]] = 0
            return
        ago = {name: cells + 1 for name, cells in self._asked.items()}
        over = _answered(code)
        self._asked = {n: c for n, c in ago.items() if n not in over and c < _FARTHEST}

    def _is_open(self, name: str) -> bool:
        return bool(name) and self._shell.user_ns.get(name, 0) is None


def _answered(code: str) -> list[str]:
    """Return the names that a cell answers, "prediction" or "guess"."""
    return [found[1] or found[2] for found in _ANSWERS.finditer(code)]


def watch(shell: Any) -> None:
    """Hide answers in this notebook from now on."""
    if in_notebook() and not hasattr(shell, "lockstep_spoiler"):
        shell.lockstep_spoiler = spoiler = Spoiler(shell)
        shell.events.register("pre_run_cell", spoiler.before)
        shell.events.register("post_run_cell", spoiler.after)
