"""A lab's solution for a class to look at: large type, one document, and how long each cell takes.

`lockstep demo NN`. The solution is executed here once, for the times; then it stands there without
outputs, to be run cell by cell. Cells that hold an answer to the class are folded. With --recorded
nothing runs: `replay` shows what is published.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..author import execute
from ..base.paths import MATERIAL
from ..course import copies
from .cleanup import DEMO
from .sheet import ASKS

_LONG = 1.0  # seconds: what is shorter needs no word
_SIZE = "20px"
_TABLES = "17px"  # what JupyterLab writes in the size of its menus: they grow, too
# Where JupyterLab has what its user has set; of sizes it asks nobody else.
_SETTINGS = {
    Path("@jupyterlab", "apputils-extension", "themes.jupyterlab-settings"): {
        "overrides": {
            "code-font-size": _SIZE,
            "content-font-size1": _SIZE,
            "ui-font-size1": _TABLES,
        }
    },
    Path("@jupyterlab", "notebook-extension", "tracker.jupyterlab-settings"): {
        "codeCellConfig": {"lineWrap": True}
    },
}
_RECORDED = (
    "> **Recorded.** Nothing of this runs: each cell shows what it showed when the solution was "
    "published, and is stamped so. Run the next cell first."
)


class CannotShow(Exception):
    """A solution that does not run here; the message says why."""


def prepare(number: str, recorded: bool, folder: Path) -> Path:
    """Write the notebook for the class into `folder`; returns its path.

    Raises execute.BadInput for a lab that there is not, CannotShow.
    """
    published, *_ = execute.find(execute.SOLUTIONS, [number], MATERIAL)
    notebook = json.loads(published.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if ASKS.keys() & set(cell["metadata"].get("tags", [])):
            cell["metadata"]["jupyter"] = {"source_hidden": True}
    if recorded:
        load = _markdown_cell("replay", f"%load_ext {__package__}.replay") | {"cell_type": "code"}
        first = [_markdown_cell("recorded", _RECORDED), load]
        notebook["cells"] = _without_outputs(first + notebook["cells"])
    else:
        notebook["cells"] = _timed(_without_outputs(notebook["cells"]), _measure(published))
    target = folder / execute.SOLUTIONS / published.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(notebook, indent=1), encoding="utf-8")
    return target


def _measure(published: Path) -> dict[str, float]:
    """Execute the solution; returns how many seconds each cell took on this machine."""
    print("running it once, to find out how long each cell takes here …", flush=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        bar = sys.stderr.isatty()
        (done,) = execute.run([published], {}, Path(folder), progress=bar)
        if done.problems or done.executed is None:
            raise CannotShow(f"{done.notebook} does not run here: {'; '.join(done.problems)}")
        executed = json.loads(done.executed.read_text(encoding="utf-8"))
    return {cell["id"]: execute.kernel_seconds(cell) for cell in executed["cells"]}


def _timed(cells: Sequence[dict[str, Any]], seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the cells, with a line above each that takes a while."""
    found = []
    for cell in cells:
        took = seconds[cell["id"]]
        if took >= _LONG:
            said = f"*takes about {took:.0f} s on this machine*"
            found.append(_markdown_cell(f"{cell['id'][:58]}-time", said))
        found.append(cell)
    return found


def _without_outputs(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    empty: dict[str, Any] = {"outputs": [], "execution_count": None}
    return [cell | empty if cell["cell_type"] == "code" else cell for cell in cells]


def _markdown_cell(name: str, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def jupyterlab(
    notebook: Path, options: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]] | None:
    """Return the command that shows it, alone and large, and its environment; None where there is
    no JupyterLab."""
    folder = notebook.parents[1]
    settings = folder / ".settings"
    for name, said in _SETTINGS.items():
        (settings / name).parent.mkdir(parents=True, exist_ok=True)
        (settings / name).write_text(json.dumps(said), encoding="utf-8")
    page = f"/doc/tree/{execute.SOLUTIONS}/{notebook.name}"
    opened = copies.jupyterlab(folder, options, environment, page)
    if opened is None:
        return None
    command, variables = opened
    variables["JUPYTERLAB_SETTINGS_DIR"] = str(settings)
    variables["LOCKSTEP_REPLAY"] = str(next((MATERIAL / execute.SOLUTIONS).glob(notebook.name)))
    variables["LOCKSTEP_PROGRESS"] = "off"
    return command, variables


def show(number: str, recorded: bool, options: Sequence[str]) -> bool:
    """Prepare a notebook and become JupyterLab; False where there is none. Raises as `prepare`.

    JupyterLab holds a lock on the notebook's folder, which `lockstep clean` finds afterwards.
    """
    folder = Path(tempfile.mkdtemp(prefix=DEMO))
    try:
        if copies.jupyterlab(folder, options, os.environ) is None:  # before what takes minutes
            shutil.rmtree(folder)
            return False
        opened = jupyterlab(prepare(number, recorded, folder), options, os.environ)
    except BaseException:
        shutil.rmtree(folder)
        raise
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.set_inheritable(lock, True)
    assert opened is not None
    command, variables = opened
    os.execve(command[0], command, variables)
