"""From a lab's one source to its two notebooks.

`solutions/source/NN_topic.py` (py:percent) is the only place where a lab is edited. From it come
`labs/NN_topic.ipynb`, with blanks and no outputs, and `solutions/NN_topic.ipynb`, complete, with
the outputs of an execution. In a source, an exercise stands between markers, its wrong answers
right behind it:

    # BEGIN SOLUTION
    dist.all_reduce(x)
    # END SOLUTION
    # BEGIN WRONG forgets-the-others
    # return x
    # END WRONG

The blank is a `raise NotImplementedError`, or what stands commented behind `# BLANK` at the end
of the solution (`# prediction = None`). A solution without `# BLANK` is an exercise: its cell's id
is the exercise's name, its check is registered, and it has at least three wrong answers.

Every cell has an id of its own in its header (`# %% id="first-ranks"`), so that the notebooks are
the same bytes whenever the source is. Stored outputs are text and pictures: HTML has times in it
and would differ at each execution. Cells tagged `varies` keep no output; all others that show
text are tagged for nbval, which compares that text with a new execution.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import jupytext  # type: ignore[import-untyped]
import nbformat
from nbclient import NotebookClient

from .. import checks
from . import LABS

FEWEST_WRONG_ANSWERS = 3
COMPARED = "nbval-check-output"
BLANK = "raise NotImplementedError  # your code"
_SOLUTION = re.compile(
    r"^(?P<indent> *)# BEGIN SOLUTION\n(?P<body>.*?)(^ *# BLANK\n(?P<blank>.*?))?"
    r"^ *# END SOLUTION\n?",
    re.DOTALL | re.MULTILINE,
)
_WRONG = re.compile(
    r"^ *# BEGIN WRONG (?P<name>[\w-]+)\n(?P<body>.*?)^ *# END WRONG\n?", re.DOTALL | re.MULTILINE
)
_STORED = ("text/plain", "image/png")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class SourceError(ValueError):
    """A lab's source breaks a rule of its format; the message says which cell and what."""


def read(source: Path) -> list[Any]:
    """The cells of a source, with their ids set. Raises SourceError."""
    cells = jupytext.read(source, fmt="py:percent").cells
    seen: set[str] = set()
    for cell in cells:
        identity = cell.metadata.pop("id", None)
        where = f"{source.name}, cell {cell.source.splitlines()[:1]}"
        if identity is None or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identity):
            raise SourceError(f'{where}: its header needs an id, such as # %% id="first-ranks"')
        if identity in seen:
            raise SourceError(f"{where}: the id {identity!r} is used twice")
        seen.add(identity)
        cell.id = identity
        begun, ended = cell.source.count("# BEGIN "), cell.source.count("# END ")
        if begun != ended:
            raise SourceError(f"{where}: {begun} BEGIN markers and {ended} END markers")
    return list(cells)


def verify(source: Path) -> None:
    """Raises SourceError for an exercise with no check, too few wrong answers, or the like."""
    cells = read(source)
    number = source.name[:2]
    registered = [one.name for one in checks.exercises() if one.lab == number]
    wrong = wrong_answers(source)
    if not any("parameters" in cell.metadata.get("tags", []) for cell in cells):
        raise SourceError(f"{source.name}: no cell is tagged parameters")
    found = []
    for at, cell in enumerate(cells):
        parts = list(_SOLUTION.finditer(cell.source))
        if cell.cell_type != "code" or all(part["blank"] is not None for part in parts):
            continue
        where = f"{source.name}, exercise {cell.id}"
        if cell.id not in registered:
            raise SourceError(f"{where}: lab {number} registers no check of that name")
        if not any(f'lockstep.check("{cell.id}"' in later.source for later in cells[at + 1 :]):
            raise SourceError(f"{where}: no later cell checks it")
        if len(wrong.get(cell.id, {})) < FEWEST_WRONG_ANSWERS:
            raise SourceError(f"{where}: it needs {FEWEST_WRONG_ANSWERS} wrong answers or more")
        found.append(cell.id)
    if found != registered:
        raise SourceError(f"{source.name} has exercises {found}, its checks are {registered}")


def lab(source: Path) -> Any:
    """The notebook that learners get: blanks, no outputs."""
    return _notebook(source, _blank)


def solution(source: Path) -> Any:
    """The complete notebook, not yet executed."""
    return _notebook(source, _solved)


def wrong_answers(source: Path) -> dict[str, dict[str, str]]:
    """For each exercise cell's id, the cell's code with each of its wrong answers in place."""
    found: dict[str, dict[str, str]] = {}
    for cell in read(source):
        for wrong in _WRONG.finditer(cell.source):
            body = _uncommented(wrong["body"])
            code = _SOLUTION.sub(
                lambda m, body=body: textwrap.indent(body, m["indent"]),  # type: ignore[misc]
                _WRONG.sub("", cell.source),
            )
            found.setdefault(cell.id, {})[wrong["name"]] = code
    return found


def execute(notebook: Any, folder: Path) -> Any:
    """Run a notebook in `folder`; returns it as it may be published."""
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return published(notebook)


def published(notebook: Any) -> Any:
    """An executed notebook without what differs from one execution to the next."""
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            tags = cell.metadata.get("tags", [])
            cell.outputs = [] if "varies" in tags else [_publishable(o) for o in cell.outputs]
            if any("text" in o or "text/plain" in o.get("data", {}) for o in cell.outputs):
                cell.metadata["tags"] = [*tags, COMPARED]
    notebook.metadata = nbformat.from_dict(_METADATA)
    return notebook


def write(notebook: Any, path: Path) -> None:
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _notebook(source: Path, form: Any) -> Any:
    notebook = nbformat.v4.new_notebook(metadata=_METADATA)
    for cell in read(source):
        if cell.cell_type == "code":
            new = nbformat.v4.new_code_cell(form(cell.source))
        else:
            new = nbformat.v4.new_markdown_cell(cell.source)
        new.id, new.metadata = cell.id, cell.metadata
        notebook.cells.append(new)
    return notebook


def _blank(code: str) -> str:
    def blank(match: re.Match[str]) -> str:
        text = f"{BLANK}\n" if match["blank"] is None else _uncommented(match["blank"])
        return textwrap.indent(text, match["indent"])

    return _SOLUTION.sub(blank, _WRONG.sub("", code)).rstrip()


def _uncommented(lines: str) -> str:
    return re.sub(r"^ *# ?", "", lines, flags=re.MULTILINE)


def _solved(code: str) -> str:
    return _SOLUTION.sub(lambda m: m["body"], _WRONG.sub("", code)).rstrip()


def _publishable(output: Any) -> Any:
    if "data" in output:
        kept = {kind: output["data"][kind] for kind in _STORED if kind in output["data"]}
        output["data"] = nbformat.from_dict(kept)
    output.pop("transient", None)
    return output


def main(root: Path) -> None:
    """Write both notebooks of every lab below `root`, executing the solutions."""
    for one in LABS:
        source = root / "solutions" / "source" / f"{one.number}_{one.name}.py"
        verify(source)
        name = source.with_suffix(".ipynb").name
        write(lab(source), root / "labs" / name)
        write(execute(solution(source), root / "solutions"), root / "solutions" / name)
        print(f"{source.stem}: labs/{name} and solutions/{name}")


if __name__ == "__main__":
    main(Path.cwd())
