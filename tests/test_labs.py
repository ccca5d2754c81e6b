"""The notebooks: they come from their sources, they run, and they show what is published.

That the solutions show what an execution shows is tested by nbval, see solutions/conftest.py.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import lockstep
import nbformat
import pytest
from lockstep import checks, execute
from lockstep.labs import LABS, build

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "solutions" / "source").glob("*.py"))
ids = [source.stem for source in SOURCES]


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
    cells = [cell for cell in nbformat.reads(stored, 4).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_what_a_solution_shows_is_what_nbval_compares(source):
    stored = nbformat.read(ROOT / "solutions" / f"{source.stem}.ipynb", 4)
    assert [c.source for c in stored.cells] == [c.source for c in build.solution(source).cells]
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    compared = [cell for cell in cells if "nbval-check-output" in tags(cell)]
    assert [cell.id for cell in cells if text(cell)] == [cell.id for cell in compared]
    assert len(compared) >= len(cells) / 2
    assert all(cell.execution_count for cell in cells)  # without it nbval does not compare
    checks = [cell for cell in cells if "lockstep.check(" in cell.source]
    assert checks and all(text(cell).startswith("PASS") for cell in checks)


LAZY = "done = display('begun', display_id=True); print(1); done.update('ended', raw=False)"
SHOWN = {  # by id: code, stored text, and whether that is right
    "same": ("print('a\\nb')\n6 * 7", ["a\nb\n", "42"], True),
    "other-print": ("print('a\\nb')\n6 * 7", ["a\nc\n", "42"], False),
    "other-value": ("print('a\\nb')\n6 * 7", ["a\nb\n", "43"], False),
    "nothing-stored": ("6 * 7", [], False),
    "not-shown": ("None", ["None"], False),
    "updated": (LAZY, ["1\n", "'ended'"], True),
    "as-begun": (LAZY, ["1\n", "'begun'"], False),
    "html": ("display({'text/html': '1', 'text/plain': '2'}, raw=True)", ["2"], True),
    "varies": ("import os\nos.getpid()", [], True),
    "folder": ("import pathlib\npathlib.Path.cwd().name", ["'solutions'"], True),
    "raises": ("raise ValueError('my ' + 'reason')", [], False),
    "after": ("6 * 7", ["42"], True),
}


def test_nbval_compares_what_is_stored_with_what_is_shown(tmp_path):
    folder = tmp_path / "solutions"
    folder.mkdir()
    shutil.copy(ROOT / "solutions" / "conftest.py", folder)
    notebook = nbformat.v4.new_notebook()
    for identity, (code, stored, _) in SHOWN.items():
        cell = nbformat.v4.new_code_cell(code, id=identity, execution_count=1)
        cell.metadata.tags = ["varies" if identity == "varies" else "nbval-check-output"]
        for shown in stored:
            if shown.endswith("\n"):
                cell.outputs.append(nbformat.v4.new_output("stream", text=shown))
            else:
                data = {"text/plain": shown, "image/png": "AAAA"}
                cell.outputs.append(nbformat.v4.new_output("display_data", data))
        notebook.cells.append(cell)
    nbformat.write(notebook, folder / "00_tiny.ipynb")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--color=no"]
    done = subprocess.run(
        [*command, "--nbval-current-env"], cwd=tmp_path, capture_output=True, text=True
    )
    verdicts = re.findall(r"^(PASSED|FAILED) .*::Cell (\d+)", done.stdout, re.MULTILINE)
    found = {list(SHOWN)[int(cell)]: verdict == "PASSED" for verdict, cell in verdicts}
    assert found == {identity: right for identity, (_, _, right) in SHOWN.items()}, done.stdout
    assert done.returncode == 1
    assert "my reason" in done.stdout


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_a_blank_lab_runs_to_its_end_with_other_parameters(source, tmp_path):
    path = ROOT / "labs" / f"{source.stem}.ipynb"
    done = execute.execute(path, tmp_path / "out.ipynb", {"NPROC": 2})
    assert done.problems == ()
    assert {check.verdict for check in done.checks} == {"NOT YET"}
    cells = [cell for cell in nbformat.read(done.executed, 4).cells if cell.cell_type == "code"]
    assert "2 ranks" in "".join(map(text, cells))


@pytest.mark.parametrize("exercise", checks.exercises(), ids=lambda exercise: exercise.name)
def test_each_wrong_answer_is_caught_by_its_own_hint(exercise):
    (source,) = [source for source in SOURCES if source.name.startswith(exercise.lab)]
    wrong = build.wrong_answers(source).get(exercise.name, {})
    assert len(wrong) >= build.FEWEST_WRONG_ANSWERS
    for mistake, code in wrong.items():
        namespace: dict = {"__name__": "__main__"}
        exec(code, namespace)
        outcome = lockstep.check(exercise.name, namespace[exercise.name])
        assert (outcome.verdict, outcome.mistake) == ("TRY AGAIN", mistake), str(outcome)


# ── What sources are refused, what is published ──────────────────────────────────────────────

TINY = """\
# %% id="start" tags=["parameters"]
NPROC = 2

# %% id="average"
# BEGIN SOLUTION
average = 1
# END SOLUTION
# BEGIN WRONG two
# average = 2
# END WRONG
# BEGIN WRONG three
# average = 3
# END WRONG
# BEGIN WRONG four
# average = 4
# END WRONG

# %% id="average-check"
lockstep.check("average", average)
"""
WRONG = "# BEGIN WRONG four\n# average = 4\n# END WRONG\n"
REFUSED = {  # what is replaced in TINY, by what, and what the error says
    "no id": (' id="start"', "", "NPROC = 2.*needs an id"),
    "an id twice": ('id="average-check"', 'id="start"', "the id 'start' is used twice"),
    "markers": ("# END SOLUTION\n", "", "4 BEGIN markers and 3 END markers"),
    "no parameters": (' tags=["parameters"]', "", "no cell is tagged parameters"),
    "no check registered": ('id="average"', 'id="mean"', "exercise mean: lab 00 registers no"),
    "never checked": ('lockstep.check("average", average)', "1", "average: no later cell checks"),
    "two wrong answers": (WRONG, "", "average: it needs 3 wrong answers or more"),
    "an exercise lacks": (
        "# END SOLUTION",
        "# BLANK\n# average = None\n# END SOLUTION",
        r"has exercises \[\], its checks are \['average'\]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_breaks_a_rule_is_refused(case, tmp_path):
    old, new, says = REFUSED[case]
    source = tmp_path / "00_tiny.py"
    source.write_text(TINY)
    build.verify(source)
    source.write_text(TINY.replace(old, new))
    with pytest.raises(build.SourceError, match=f"00_tiny.py.*{says}"):
        build.verify(source)


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_sources_break_no_rule(source):
    build.verify(source)


def test_what_is_published():
    rich = {"text/html": "<b>4</b>", "text/plain": "4", "image/png": "AAAA", "text/latex": "4"}
    display = nbformat.v4.new_output("display_data", rich)
    picture = nbformat.v4.new_output("display_data", {"text/html": "<b>", "image/png": "AAAA"})
    stream = nbformat.v4.new_output("stream", text="5\n")
    shown = {  # by id: tags, outputs
        "rich": (["mine"], [display]),
        "picture": ([], [picture]),
        "stream": ([], [stream]),
        "silent": ([], []),
        "varies": (["varies"], [stream, display]),
    }
    notebook = nbformat.v4.new_notebook()
    for identity, (named, outputs) in shown.items():
        metadata = {"tags": named, "execution": {"iopub.status.idle": "now"}, "papermill": {}}
        notebook.cells.append(
            nbformat.v4.new_code_cell("1", id=identity, metadata=metadata, outputs=outputs)
        )
    notebook.cells[0].outputs[0]["transient"] = {"display_id": "1"}
    cells = {cell.id: cell for cell in build.published(notebook).cells}
    assert {identity: tags(cell) for identity, cell in cells.items()} == {
        "rich": ["mine", "nbval-check-output"],
        "picture": [],
        "stream": ["nbval-check-output"],
        "silent": [],
        "varies": ["varies"],
    }
    assert [output.data for output in cells["rich"].outputs + cells["picture"].outputs] == [
        {"text/plain": "4", "image/png": "AAAA"},
        {"image/png": "AAAA"},
    ]
    assert cells["stream"].outputs == [stream] and cells["varies"].outputs == []
    assert all(set(cell.metadata) == {"tags"} for cell in cells.values())
    nbformat.validate(notebook)


def test_a_check_never_raises():
    assert lockstep.check("average", None).verdict == "NOT YET"
    assert lockstep.check("average", 5).verdict == "TRY AGAIN"
    assert lockstep.check("no such exercise", None).verdict == "NOT YET"
