"""Make a lab's two notebooks of its source: `make notebooks`, `make notebooks LABS="02 03"`.

`labs/NN_topic.ipynb` has blanks and no outputs; `solutions/NN_topic.ipynb` is complete, with the
outputs of an execution. Stored outputs are text and pictures: HTML has times in it and would differ
at each execution. What text they show is compared with a new execution by the tests, but for cells
tagged `varies`, where it differs from run to run; cells tagged `unpublished`, which show the
reader's own machine, keep nothing. nbval, which compares all that a cell shows, is told by its own
tag to leave these alone, and those whose HTML is not stored. What goes further is folded, and so is
the code of plumbing. Links to sections and other labs are made here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..course import links
from ..course.syllabus import LABS
from .fast_nbformat import NotebookClient, nbformat
from .rules import verify
from .screenshots import NoBrowser, add_screenshots
from .source import SourceError, blank, complete, core, goes_further, read, tags

_STORED = ("text/plain", "image/png")
_IGNORED = "nbval-ignore-output"  # a tag of nbval's
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def lab(source: Path) -> Any:
    """Return the notebook that learners get: blanks, no outputs."""
    return _notebook(source, blank, "labs")


def solution(source: Path) -> Any:
    """Return the complete notebook, not yet executed."""
    return _notebook(source, complete, "solutions")


def execute(notebook: Any, folder: Path) -> Any:
    """Run a notebook in `folder`; returns it as it may be published."""
    NotebookClient(
        notebook,
        timeout=300,
        coalesce_streams=True,  # else a slow print is in two pieces
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    add_screenshots(notebook)
    return published(notebook)


def published(notebook: Any) -> Any:
    """Return an executed notebook without what differs from one execution to the next.

    Where that is a part of what a cell shows, its tag has `pytest --nbval` compare nothing.
    """
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            if _differs(cell) and _IGNORED not in tags(cell):
                cell.metadata["tags"] = [*tags(cell), _IGNORED]
            kept = [] if "unpublished" in tags(cell) else cell.outputs
            cell.outputs = [_publishable(output) for output in kept]
    notebook.metadata = nbformat.from_dict(_METADATA)
    return notebook


def write(notebook: Any, path: Path) -> None:
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _notebook(source: Path, form: Callable[[Any], str], folder: str) -> Any:
    cells = read(source)
    texts = _texts(source, cells, folder)
    notebook = nbformat.v4.new_notebook(metadata=_METADATA)
    for cell in cells:
        if cell.cell_type == "code":
            new = nbformat.v4.new_code_cell(form(cell))
        else:
            new = nbformat.v4.new_markdown_cell(texts[cell.id])
        new.id, new.metadata = cell.id, {**cell.metadata, **_folding(cell)}
        notebook.cells.append(new)
    return notebook


def _texts(source: Path, cells: list[Any], folder: str) -> dict[str, str]:
    """Return the Markdown cells by id, with links to other labs, and below the title to sections.

    The line of links to the labs before and after stands below the title, and where the core ends.
    """
    texts = {cell.id: cell.source for cell in cells if cell.cell_type == "markdown"}
    titles = links.sections(texts)
    lab = next((one for one in LABS if f"{one.number}_{one.name}" == source.stem), None)
    if lab is None or not texts:  # a test's
        return texts
    texts = {name: links.linked(text, lab) for name, text in texts.items()}
    first = next(iter(texts))
    last = [first, *(cell.id for cell in core(cells) if cell.id in texts)][-1]
    around = links.neighbours(lab, folder)
    texts[first] += f"\n\n{links.table_of_contents(titles)}\n\n{around}"
    if last != first:
        texts[last] += f"\n\n{around}"
    return texts


def _folding(cell: Any) -> dict[str, Any]:
    """Return the metadata by which JupyterLab shows a part of a cell only after a click."""
    if goes_further(cell):
        return {"jp-MarkdownHeadingCollapsed": True}
    return {"jupyter": {"source_hidden": True}} if "plumbing" in tags(cell) else {}


def _differs(cell: Any) -> bool:
    """Return whether a cell shows more than is stored of it, or something else the next time."""
    kinds = {kind for output in cell.outputs for kind in output.get("data", ())}
    return not kinds <= {*_STORED} or not {"varies", "unpublished"}.isdisjoint(tags(cell))


def _publishable(output: Any) -> Any:
    if "data" in output:
        kept = {kind: output["data"][kind] for kind in _STORED if kind in output["data"]}
        output["data"] = nbformat.from_dict(kept)
    output.pop("transient", None)
    return output


def main(root: Path, numbers: Sequence[str] = ()) -> None:
    """Write both notebooks of these labs below `root`, or of all, executing the solutions.

    Raises SourceError, before anything is written, for an unknown lab and a broken source.
    """
    known = {one.number: root / f"solutions/source/{one.number}_{one.name}.py" for one in LABS}
    for number in numbers:
        if number not in known:
            raise SourceError(f"there is no lab {number}; there are: {', '.join(known)}")
    chosen = [known[number] for number in numbers or known]
    for source in chosen:
        if not source.exists():
            raise SourceError(f"a lab of the syllabus has no source: {source} is missing")
        verify(source)
    for source in chosen:
        name = f"{source.stem}.ipynb"
        write(lab(source), root / "labs" / name)
        write(execute(solution(source), root / "solutions"), root / "solutions" / name)
        print(f"wrote labs/{name} and solutions/{name}", flush=True)


if __name__ == "__main__":
    try:
        main(Path.cwd(), sys.argv[1:])
    except (SourceError, NoBrowser) as error:
        sys.exit(f"make notebooks: {error}")
