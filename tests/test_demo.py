"""`lockstep demo`: a notebook to show, with times of this machine or with recordings."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from lockstep.base.paths import SOLUTIONS
from lockstep.course.exercises import MIME
from lockstep.teach import demo, replay
from nbclient import NotebookClient
from traitlets.config import Config


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one small solution."""
    (tmp_path / "solutions").mkdir()
    monkeypatch.setattr(demo, "MATERIAL", tmp_path)

    def write(*cells: str) -> None:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        book.cells = [nbformat.v4.new_code_cell(code, id=f"c{at}") for at, code in enumerate(cells)]
        check = {MIME: {"exercise": "average", "verdict": "PASS", "mistake": ""}}
        book.cells.append(nbformat.v4.new_code_cell(f"display({check}, raw=True)", id="check"))
        nbformat.write(book, tmp_path / "solutions" / "00_small.ipynb")

    return write


def test_cells_that_take_a_while_say_so(course, tmp_path):
    course("import time; time.sleep(1.2)", "print('quick')")
    shown = json.loads(demo.prepare("0", False, tmp_path / "demo").read_text())
    assert [cell["id"] for cell in shown["cells"]] == ["c0-time", "c0", "c1", "check"]
    assert shown["cells"][0]["source"] == "*takes about 1 s on this machine*"
    assert not any(cell.get("outputs") for cell in shown["cells"])


def test_what_does_not_run_here_is_not_shown(course, tmp_path):
    course("raise ValueError('no cluster')")
    with pytest.raises(demo.CannotShow, match="no cluster"):
        demo.prepare("0", False, tmp_path / "demo")


def test_a_recording_runs_nothing_and_shows_all_with_a_stamp(tmp_path, monkeypatch):
    path = demo.prepare("00", True, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(demo.__file__).parents[2]))
    monkeypatch.setenv("LOCKSTEP_REPLAY", str(SOLUTIONS / path.name))
    notebook = nbformat.read(path, 4)
    # Not TCP: another process may take the port before the kernel does.
    kernel = {"transport": "ipc", "ip": str(tmp_path / "kernel")}
    NotebookClient(notebook, timeout=60, config=Config(KernelManager=kernel)).execute()
    published = json.loads((SOLUTIONS / path.name).read_text())
    shown = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    for cell in published["cells"]:
        if cell["cell_type"] != "code":
            continue
        outputs = shown[cell["id"]].outputs
        said = "".join(
            "".join(one.get("text") or one.data.get("text/plain", "")) for one in outputs
        )
        for output in cell["outputs"]:
            text = "".join(output.get("text") or output["data"].get("text/plain", ""))
            assert re.sub(r"^live +·", "recorded ·", text, flags=re.M).strip() in said
        assert replay.STAMP in said
        assert not re.search(r"^live +·", said, re.MULTILINE)


def test_jupyterlab_shows_it_alone_and_large(tmp_path):
    path = demo.prepare("00", True, tmp_path)
    found = demo.jupyterlab(path, ["--port", "8899"], {})
    assert found is not None
    command, variables = found
    assert f"--LabApp.default_url=/doc/tree/solutions/{path.name}" in command
    assert command[-2:] == ["--port", "8899"]
    settings = Path(variables["JUPYTERLAB_SETTINGS_DIR"])
    sizes = json.loads(next(settings.rglob("themes.jupyterlab-settings")).read_text())["overrides"]
    assert sizes["code-font-size"] == sizes["content-font-size1"] == "20px"
    assert "ui-font-size1" in sizes  # tables
    cells = json.loads(next(settings.rglob("tracker.jupyterlab-settings")).read_text())
    assert cells["codeCellConfig"]["lineWrap"]
    assert sum("LabApp.default_url" in word for word in command) == 1
