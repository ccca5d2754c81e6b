"""Execute a learner's notebook to its end, in a sandbox, whatever its cells raise.

Its folder has learner.ipynb. As the cells run, `capture_answers` leaves their answers in the folder
of the sandbox; when the notebook has ended, how.json there says how it went.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..author import execute
from ..author.fast_nbformat import nbformat

NOTEBOOK = "learner.ipynb"
_MOST_ERRORS = 20
_FIRST = (
    "from lockstep.teach import capture_answers as _answers\n_answers.begin({lab!r})\ndel _answers"
)


def main(lab: str) -> None:
    home, out = Path.cwd(), Path(os.environ["SANDBOX_OUT"])
    try:
        notebook = nbformat.read(home / NOTEBOOK, 4)
    except Exception as error:
        _write_how(
            out, {"problems": [f"it is not a notebook: {type(error).__name__}"], "errors": []}
        )
        return
    first = nbformat.v4.new_code_cell(_FIRST.format(lab=lab))
    notebook.cells.insert(0, first)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata["tags"] = [*(tags if isinstance(tags, list) else []), "raises-exception"]
    begun, ended = home / "notebook.ipynb", Path(os.environ["TMPDIR"]) / "executed.ipynb"
    nbformat.write(notebook, begun)
    done = execute.execute(begun, ended, {}, weigh=False)
    problems = [one for one in done.problems if one != "no check was run"]
    _write_how(
        out, {"problems": problems[:_MOST_ERRORS], "errors": _errors(nbformat.read(ended, 4))}
    )


def _errors(notebook: Any) -> list[dict[str, str]]:
    """Return for each error the cell that raised it, its first line, the error and its message."""
    return [
        {
            "cell": str(cell.get("id", ""))[:64],
            "line": next(iter(cell.source.strip().splitlines()), "")[:100],
            "error": str(output.get("ename"))[:100],
            "message": str(output.get("evalue"))[:300],
        }
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "error"
    ][:_MOST_ERRORS]


def _write_how(out: Path, how: dict[str, Any]) -> None:
    (out / "how.json").write_text(json.dumps(how), encoding="utf-8")
