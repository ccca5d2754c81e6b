"""`lockstep preflight`: what it takes for a difference, and what for noise."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from lockstep.__main__ import main
from lockstep.course.exercises import MIME
from lockstep.teach import preflight
from lockstep.teach.preflight import LabDifference


def notebook(text: str, *tags: str) -> dict:
    output = {"output_type": "execute_result", "data": {"text/plain": text}}
    cell = {"cell_type": "code", "id": "a", "metadata": {"tags": list(tags)}, "outputs": [output]}
    return {"cells": [cell]}


def measured(value: str, unit: str = " ms", way: str = "measured") -> str:
    return f"predicted 2{unit} · {way} {value}{unit} · 3 times the prediction"


def claim(verdict: str) -> str:
    return (
        f"“It is so.”\nyou said · holds\nmeasured · {verdict}\nbecause  · of 3\nlive     · 4 ranks"
    )


@pytest.mark.parametrize(
    ("published", "here", "found"),
    [
        (measured("4"), [measured("4.9")], []),
        (measured("4"), [measured("3.1")], []),
        (measured("4"), [measured("5.1")], [LabDifference("a", "figure", "4 ms", "5.1 ms")]),
        (measured("4"), [measured("2.9")], [LabDifference("a", "figure", "4 ms", "2.9 ms")]),
        (measured("-4"), [measured("-4.1")], []),
        (measured("1,234"), [measured("1,300")], []),
        (measured("4"), [measured("6"), measured("4.5"), measured("9")], []),  # noise here
        (
            measured("4"),
            [measured("6"), measured("5.5")],
            [LabDifference("a", "figure", "4 ms", "5.5 to 6 ms")],
        ),
        (measured("4", way="computed"), [measured("9", way="computed")], []),
        (claim("holds"), [claim("holds")], []),
        (
            claim("holds"),
            [claim("holds"), claim("depends")],
            [LabDifference("a", "claim", "holds", "“It is so.” depends")],
        ),
        ("1\nlive · 4 ranks · gloo", ["2\nlive · 8 ranks · nccl"], []),
    ],
)
def test_what_varies_is_compared_by_what_it_says(published, here, found):
    runs = [notebook(text) for text in here]
    assert list(preflight.differences(notebook(published, "varies"), runs)) == found


@pytest.mark.parametrize(
    ("published", "here", "found"),
    [
        ("1\nlive · 4 ranks · gloo", "1\nlive · 4 ranks · nccl", []),
        ("1\n2", "1\n3", [LabDifference("a", "text", "2", "3")]),
        ("1\n2", "1", [LabDifference("a", "text", "2", "(nothing)")]),
        (
            measured("4", ""),
            measured("4.1", ""),
            [LabDifference("a", "text", measured("4", ""), measured("4.1", ""))],
        ),
        ("1", "note: this machine has 1 GPU\n1\nlive · 4 ranks · gloo", []),
        ("1", "note: this machine has 1 GPU\n2", [LabDifference("a", "text", "1", "2")]),
        (measured("4", "", "computed"), measured("4", ""), []),
        (
            measured("4", "", "computed"),
            measured("5", ""),
            [LabDifference("a", "text", measured("4", "", "computed"), measured("5", ""))],
        ),
        (claim("depends").replace("measured", "computed"), claim("depends"), []),
        (claim("depends"), claim("depends").replace("measured", "measured and computed"), []),
    ],
)
def test_other_text_is_the_same_but_for_where_and_how_it_came_about(published, here, found):
    assert list(preflight.differences(notebook(published), [notebook(here)])) == found


def test_what_shows_the_readers_machine_is_not_compared():
    assert list(preflight.differences(notebook("1", "unpublished"), [notebook("2")])) == []


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one small solution, whose published output says 1."""
    (tmp_path / "solutions").mkdir()
    monkeypatch.setattr(preflight, "MATERIAL", tmp_path)

    def write(code: str) -> None:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        cell = nbformat.v4.new_code_cell(code, id="a")
        cell.outputs = [nbformat.v4.new_output("stream", text="1\n")]
        verdict = {"exercise": "average", "verdict": "PASS", "mistake": ""}
        check = f"display({ {MIME: verdict} }, raw=True)"
        book.cells = [
            cell,
            nbformat.v4.new_code_cell(check, id="b", metadata={"tags": ["unpublished"]}),
        ]
        nbformat.write(book, tmp_path / "solutions" / "00_small.ipynb")

    return write


def test_the_command_runs_and_compares(course, capsys):
    course("print(2)")
    assert main(["preflight", "0", "--repeats", "2", "--json"]) == 0
    (flight,) = json.loads(capsys.readouterr().out)
    assert len(flight["runs"]) == 2
    assert flight["differences"] == [{"cell": "a", "kind": "text", "published": "1", "here": "2"}]


def test_a_lab_that_fails_is_a_failure(course, capsys):
    course("print(1)\nraise ValueError('no GPU')")
    assert main(["preflight"]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert "ValueError: no GPU" in said
    assert main(["preflight", "77"]) == 2
    assert "no lab 77" in capsys.readouterr().err


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Commands of Slurm's; salloc runs a program of ours in the place of the one it is given."""
    for name in ("scancel", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(preflight.__file__).parents[2]))

    def write(program: str) -> Path:
        (tmp_path / "salloc").write_text(f"#!{sys.executable}\n{program}")
        for name in ("scancel", "squeue", "salloc"):
            (tmp_path / name).chmod(0o755)
        return tmp_path / "asked"

    return write


def test_a_node_of_the_queue_runs_it_and_its_answer_is_told_here(course, queue, tmp_path, capsys):
    course("print(2)")
    program = f"""
import os, sys
from pathlib import Path
from lockstep.teach import preflight
Path({str(tmp_path / "asked")!r}).write_text(repr(sys.argv))
os.environ["SLURMD_NODENAME"] = "n7"
preflight.MATERIAL = Path({str(tmp_path)!r})
print("what a kernel prints")
preflight._on_node("1", "0")
"""
    asked = queue(program)
    assert main(["preflight", "0", "--on", "slurm", "--json"]) == 0
    (flight,) = json.loads(capsys.readouterr().out)
    assert flight["where"] == "n7"
    assert flight["differences"] == [{"cell": "a", "kind": "text", "published": "1", "here": "2"}]
    job, _, step = asked.read_text().partition("'srun'")
    assert "'--nodes=2'" in job and "'--nodes=1'" in step
    assert main(["preflight", "0", "--on", "slurm"]) == 0
    assert "executed on n7, by Slurm" in capsys.readouterr().out
    assert main(["preflight", "77", "--on", "slurm"]) == 2  # and nobody was asked for a node
    assert "no lab 77" in capsys.readouterr().err


def test_a_job_that_ends_before_it_has_answered_is_named(course, queue, capsys):
    course("print(1)")
    queue("raise SystemExit(3)")
    assert main(["preflight", "0", "--on", "slurm"]) == 2
    assert "the job on the cluster ended with 3" in capsys.readouterr().err
