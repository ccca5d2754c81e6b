"""The notebooks: they come from their sources, they run, and they show what is published."""

from pathlib import Path

import lockstep
import nbformat
import papermill
import pytest
from lockstep.labs import LABS, build

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "solutions" / "source").glob("*.py"))
ids = [source.stem for source in SOURCES]


def run(folder: str, source: Path, output: Path, **parameters):
    """Execute as CI and a learner without a screen do; returns the cells by id."""
    path = ROOT / folder / f"{source.stem}.ipynb"
    cwd = str(ROOT / folder)
    done = papermill.execute_notebook(
        path, output, parameters, cwd=cwd, progress_bar=False, kernel_name="python3"
    )
    return {cell.id: cell for cell in done.cells if "injected-parameters" not in tags(cell)}


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def text(cell) -> str:
    parts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "".join(parts)


def test_every_source_is_a_lab_and_every_lab_has_a_source():
    assert ids == [f"{lab.number}_{lab.name}" for lab in LABS]


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_lab_is_what_its_source_says(source):
    stored = (ROOT / "labs" / f"{source.stem}.ipynb").read_text(encoding="utf-8")
    assert nbformat.writes(build.lab(source)) + "\n" == stored, "run make notebooks"


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_solution_shows_what_an_execution_shows(source, tmp_path):
    stored = nbformat.read(ROOT / "solutions" / f"{source.stem}.ipynb", 4)
    done = run("solutions", source, tmp_path / "out.ipynb")
    assert [c.source for c in stored.cells] == [c.source for c in build.solution(source).cells]
    for cell in stored.cells:
        if cell.cell_type == "code" and "varies" not in tags(cell):
            assert text(done[cell.id]) == text(cell), f"cell {cell.id}: run make notebooks"
    checks = [cell for cell in stored.cells if ".check(" in cell.source]
    assert checks and all(text(cell).startswith("PASS") for cell in checks)


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_a_blank_lab_runs_to_its_end_with_other_parameters(source, tmp_path):
    done = run("labs", source, tmp_path / "out.ipynb", NPROC=2)
    checks = [cell for cell in done.values() if ".check(" in cell.source]
    assert checks and all(text(cell).startswith("NOT YET") for cell in checks)
    assert "2 ranks" in "".join(text(c) for c in done.values() if c.cell_type == "code")


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_each_wrong_answer_is_caught_by_its_own_hint(source):
    wrong = build.wrong_answers(source)
    assert wrong and all(len(answers) >= 3 for answers in wrong.values())
    for exercise, answers in wrong.items():
        for mistake, code in answers.items():
            namespace: dict = {"__name__": "__main__"}
            exec(code, namespace)
            outcome = lockstep.check(exercise, namespace[exercise])
            assert (outcome.verdict, outcome.mistake) == ("TRY AGAIN", mistake), str(outcome)


def test_a_source_without_cell_ids_is_refused(tmp_path):
    bad = tmp_path / "00_bad.py"
    bad.write_text("# %%\nx = 1\n")
    with pytest.raises(build.SourceError, match="needs an id"):
        build.lab(bad)


def test_a_check_never_raises():
    assert lockstep.check("average", None).verdict == "TRY AGAIN"
    assert lockstep.check("no such exercise", None).verdict == "NOT YET"
