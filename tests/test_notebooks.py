"""The notebooks run under papermill, which instructors and CI use, and show what is published."""

from pathlib import Path

import nbformat
import papermill
import pytest
from lockstep.course import build, execute
from test_labs import ROOT, ids, text


def executed(notebook: Path, folder: Path, **parameters):
    """By papermill."""
    return papermill.execute_notebook(
        notebook, folder / notebook.name, parameters, cwd=notebook.parent, progress_bar=False
    )


def shown(notebook) -> dict[str, str]:
    """Text by cell. Pictures depend on the versions of libraries, too."""
    return {cell.id: text(cell) for cell in notebook.cells if cell.cell_type == "code"}


@pytest.mark.parametrize("name", ids)
def test_a_solution_shows_what_is_published(name, tmp_path):
    path = ROOT / "solutions" / f"{name}.ipynb"
    done = executed(path, tmp_path)
    assert execute.audit(done) == []
    assert shown(build.published(done)) == shown(nbformat.read(path, 4))


@pytest.mark.long
@pytest.mark.parametrize("name", ids)
def test_a_blank_lab_runs_to_its_end_with_other_parameters(name, tmp_path):
    done = executed(ROOT / "labs" / f"{name}.ipynb", tmp_path, NPROC=3)
    assert execute.audit(done) == []
    assert {check.verdict for check in execute.checks(done)} == {"NOT YET"}
    assert "3 ranks" in "".join(shown(done).values())
