"""Make a lab's notebooks of its source: `make notebooks`, `make notebooks LABS="02 03"`.

`make texts` writes them anew where only texts have changed: it executes nothing, and keeps the
outputs.

`labs/NN_topic.ipynb` has blanks and no outputs; `solutions/NN_topic.ipynb` is complete, with the
outputs of an execution. Where a lab goes further, `NN_topic_further.ipynb` stands beside each.
Stored outputs are text and pictures: HTML has times in it and would differ at each execution. What
text they show is compared with a new execution by the tests, but for cells tagged `varies`, where
it differs from run to run; cells tagged `unpublished`, which show the reader's own machine, keep
nothing. nbval, which compares all that a cell shows, is told by its own tag to leave these alone,
and those whose HTML is not stored. The code of plumbing is folded. Links to sections and other labs
are made here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..course import links
from ..course.judging.catalogue import SourceError
from ..course.syllabus import LABS, Lab
from .fast_nbformat import NotebookClient, nbformat
from .rules import verify
from .screenshots import NoBrowser, add_screenshots
from .source import blank, complete, notebooks, tags

_STORED = ("text/plain", "image/png")
_IGNORED = "nbval-ignore-output"  # a tag of nbval's
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def labs(source: Path) -> dict[str, Any]:
    """Return the notebooks that learners get, by name: blanks, no outputs."""
    return _notebooks(source, blank, "labs")


def solutions(source: Path) -> dict[str, Any]:
    """Return the complete notebooks by name, not yet executed."""
    return _notebooks(source, complete, "solutions")


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


def with_outputs_of(path: Path, notebook: Any) -> Any:
    """Return a solution with the outputs of a published one, whose texts and order of cells may be
    others. Raises SourceError where the code is not the same."""
    shown = {cell.id: cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code, 1):
        was = shown.get(cell.id)
        if was is None or was.source != cell.source:
            raise SourceError(f"{path.name}, cell {cell.id}: its code is new; use make notebooks")
        cell.update(was, execution_count=count)
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
    return notebook


def write(notebook: Any, path: Path) -> None:
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _notebooks(source: Path, form: Callable[[Any], str], folder: str) -> dict[str, Any]:
    lab = next((one for one in LABS if f"{one.number}_{one.name}" == source.stem), None)
    found = notebooks(source)
    return {
        name: _notebook(cells, form, _texts(lab, cells, folder, name, [*found]) if lab else {})
        for name, cells in found.items()
    }


def _notebook(cells: list[Any], form: Callable[[Any], str], texts: Mapping[str, str]) -> Any:
    notebook = nbformat.v4.new_notebook(metadata=_METADATA)
    for cell in cells:
        if cell.cell_type == "code":
            new = nbformat.v4.new_code_cell(form(cell))
        else:
            new = nbformat.v4.new_markdown_cell(texts.get(cell.id, cell.source))
        folded = {"jupyter": {"source_hidden": True}} if "plumbing" in tags(cell) else {}
        new.id, new.metadata = cell.id, {**cell.metadata, **folded}
        notebook.cells.append(new)
    return notebook


def _texts(
    lab: Lab, cells: list[Any], folder: str, name: str, names: Sequence[str]
) -> dict[str, str]:
    """Return the Markdown cells by id, with links: to other labs where they are named, to the
    sections below the title, and to the notebooks beside this one there and at the end.

    name: of this notebook. names: of all that the lab has.
    """
    texts = {cell.id: cell.source for cell in cells if cell.cell_type == "markdown"}
    contents = links.table_of_contents(links.sections(texts))
    around = links.neighbours(lab, folder, name, names)
    texts = {key: links.linked(text, lab, name) for key, text in texts.items()}
    first, *_, last = texts
    texts[first] += f"\n\n{contents}\n\n{around}"
    texts[last] += f"\n\n{around}"
    return texts


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


def main(root: Path, numbers: Sequence[str] = (), *, texts: bool = False) -> None:
    """Write all notebooks of these labs below `root`, or of all, executing the solutions; with
    texts, those whose code is as published, with the outputs that they have.

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
        blanks = labs(source)
        for stem, notebook in solutions(source).items():
            name = f"{stem}.ipynb"
            path = root / "solutions" / name
            done = with_outputs_of(path, notebook) if texts else execute(notebook, path.parent)
            write(blanks[stem], root / "labs" / name)
            write(done, path)
            print(f"wrote labs/{name} and solutions/{name}", flush=True)


if __name__ == "__main__":
    chosen = [one for one in sys.argv[1:] if one != "--texts"]
    try:
        main(Path.cwd(), chosen, texts="--texts" in sys.argv)
    except (SourceError, NoBrowser) as error:
        sys.exit(f"make notebooks: {error}")
