"""`lockstep demo`: a notebook to show, with times of this machine or with recordings."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from lockstep.__main__ import main
from lockstep.base.paths import SOLUTIONS
from lockstep.course.exercises import MIME
from lockstep.teach import cleanup, demo, replay
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


def test_cells_that_take_a_while_say_so(course, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    course("import time; time.sleep(1.2)", "print('quick')")
    shown = json.loads(demo.prepare("0", False, tmp_path / "demo").read_text())
    assert [cell["id"] for cell in shown["cells"]] == ["c0-time", "c0", "c1", "check"]
    said = re.fullmatch(r"\*takes about (\d+) s on this machine\*", shown["cells"][0]["source"])
    assert said and int(said[1]) >= 1  # a busy machine takes longer
    assert not any(cell.get("outputs") for cell in shown["cells"])
    assert "3/3" in capsys.readouterr().err  # a bar, on a terminal


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


def test_answers_are_folded_and_the_folder_is_left_to_clean(tmp_path, monkeypatch):
    places = cleanup.Places((tmp_path,), tmp_path, tmp_path, tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    locks: list[int] = []

    def become(command, words, environment):  # JupyterLab, which would go on from here
        (folder,) = tmp_path.glob("lockstep-demo-*")
        os.utime(folder, (0, 0))
        assert cleanup.find(places) == []
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        locks.extend(int(one.name) for one in links if one.exists() and one.samefile(folder))
        raise SystemExit

    monkeypatch.setattr(os, "execve", become)
    with pytest.raises(SystemExit):
        main(["demo", "00", "--recorded"])
    assert len(locks) == 1 and os.get_inheritable(locks[0])
    (path,) = tmp_path.rglob("00_start_here.ipynb")
    cells = json.loads(path.read_text())["cells"]
    asked = [
        cell for cell in cells if {"prediction", "guess"} & set(cell["metadata"].get("tags", []))
    ]
    assert asked and all(cell["metadata"]["jupyter"]["source_hidden"] for cell in asked)
    os.close(locks[0])
    assert [one.what for one in cleanup.find(places) if one.kind == "folder"] == [
        str(path.parents[1])
    ]


def test_a_lab_that_is_not_there_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "99"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "has no lab 99; it has 00, " in said.err
    assert list(tmp_path.iterdir()) == []


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
