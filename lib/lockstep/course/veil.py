"""What answers a prediction stays hidden in JupyterLab until there is a prediction."""

from __future__ import annotations

import re
from typing import Any

from IPython.display import display

from ..base.machine import in_notebook

_ASKS = re.compile(r"^(prediction|guess)\s*=", re.MULTILINE)
_ANSWERS = {"lockstep.compare(": "prediction", "lockstep.claim(": "guess"}
_FARTHEST = 6  # cells between a question and its answer
# All other outputs of the cell, but errors. Where nothing else is shown, there is nothing to hide.
# A page that does not trust the notebook takes no style from it, and so shows no veil either.
_STYLE = """<style>
.lockstep-veil { display: block !important }
.jp-OutputArea:has(.lockstep-veil:not([open])) > .jp-OutputArea-child\
:not(:has(.lockstep-veil, [data-mime-type="application/vnd.jupyter.stderr"])) { display: none }
.jp-OutputArea:not(:has(> .jp-OutputArea-child ~ .jp-OutputArea-child)) .lockstep-veil {
    display: none !important
}
.lockstep-veil > summary { cursor: pointer }
</style>"""


class Veil:
    """Hides what cells show between a question and its answer, while the question has none.

    It goes by names: a cell that sets `prediction` or `guess` to None asks, and the next cell that
    calls lockstep.compare or lockstep.claim answers. Only the page hides: kernel and notebook have
    all outputs, and a notebook that another program executes is the same but for a line.
    """

    def __init__(self, shell: Any):
        self._shell = shell
        self._asked = ""  # the name that has no value yet
        self._cells = 0  # since then

    def before(self, cell: Any) -> None:
        """Show what hides the outputs that follow, where they would tell."""
        code = str(cell.raw_cell)
        names = [name for call, name in _ANSWERS.items() if call in code] or [self._asked]
        if _ASKS.search(code) or "lockstep.check(" in code or not any(map(self._is_open, names)):
            return
        said = f"Your {names[0]} first: write it above, as {names[0]} = …, and run both cells."
        summary = f"<summary>{said} Or go on without.</summary>"
        fold = (
            f'<details class="lockstep-veil" style="display:none">{summary}What came out:</details>'
        )
        display({"text/plain": said, "text/html": _STYLE + fold}, raw=True)

    def after(self, result: Any) -> None:
        """Take note of a question, and of its answer."""
        code = str(result.info.raw_cell)
        if asks := _ASKS.search(code):
            self._asked, self._cells = asks[1], 0
            return
        self._cells += 1
        if self._cells >= _FARTHEST or any(call in code for call in _ANSWERS):
            self._asked = ""

    def _is_open(self, name: str) -> bool:
        return bool(name) and self._shell.user_ns.get(name, 0) is None


def watch(shell: Any) -> None:
    """Hide answers in this notebook from now on."""
    if in_notebook() and not hasattr(shell, "lockstep_veil"):
        shell.lockstep_veil = veil = Veil(shell)
        shell.events.register("pre_run_cell", veil.before)
        shell.events.register("post_run_cell", veil.after)
