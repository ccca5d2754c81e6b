"""The notebooks run under papermill, which instructors and CI use, and show what is published."""

import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from lockstep.author import build, execute
from test_labs import ROOT, names, tags, text
from traitlets.config import Config

pytestmark = pytest.mark.timeout(600)  # on two busy cores, lab 05 compiles for minutes


def executed(notebook: Path, folder: Path, **parameters):
    """By papermill, which writes the whole notebook after each cell unless told not to."""
    # Not TCP: another process may take the port before the kernel does.
    kernel = {"transport": "ipc", "ip": str(folder / "kernel")}
    return papermill.execute_notebook(
        notebook,
        folder / notebook.name,
        parameters,
        request_save_on_cell_execute=False,
        cwd=notebook.parent,
        progress_bar=False,
        config=Config(KernelManager=kernel),
    )


def shown(notebook) -> dict[str, str]:
    """Text by cell; of a cell whose text varies, only whether there is some. Pictures depend on
    the versions of libraries, too."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {c.id: "some" * bool(text(c)) if "varies" in tags(c) else text(c) for c in cells}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.more] if name.endswith("_further") else [])
        for name in names
    ],
)
def test_a_solution_shows_what_is_published(name, tmp_path):
    path = ROOT / "solutions" / f"{name}.ipynb"
    done = executed(path, tmp_path)
    assert execute.audit(done) == []
    published, stored = build.published(done), nbformat.read(path, 4)
    now, then = shown(published), shown(stored)
    differ = [one for one in then | now if now.get(one) != then.get(one)]
    for one in differ:  # of all cells at once pytest shows next to nothing
        assert now.get(one, "").splitlines() == then.get(one, "").splitlines(), one
    assert differ == []
    assert [tags(cell) for cell in published.cells] == [tags(cell) for cell in stored.cells]


@pytest.mark.long
@pytest.mark.parametrize("nproc", [2, 3, 8])
@pytest.mark.parametrize(("folder", "verdict"), [("labs", "NOT YET"), ("solutions", "PASS")])
@pytest.mark.parametrize("name", names)
def test_it_runs_on_other_numbers_of_ranks(name, folder, verdict, nproc, tmp_path):
    done = executed(ROOT / folder / f"{name}.ipynb", tmp_path, NPROC=nproc)
    assert execute.audit(done) == []
    has_checks = any("lockstep.check(" in cell.source for cell in done.cells)
    verdicts = {check.verdict for check in execute.checks(done)}
    assert verdicts == ({verdict} if has_checks else set())
    cells = [cell for cell in done.cells if cell.cell_type == "code"]
    sets = {"parameters", "injected-parameters"}
    if any("NPROC" in cell.source for cell in cells if not sets & set(tags(cell))):
        assert f"{nproc} ranks" in "".join(map(text, cells))


@pytest.mark.long
@pytest.mark.parametrize("name", names)
def test_a_solution_passes_under_nbval(name):
    """In nbval's strict mode, which compares all that a cell shows unless its tag forbids that."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval"]
    notebook = ROOT / "solutions" / f"{name}.ipynb"
    done = subprocess.run([*command, notebook], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout
