"""The capstone's programs give the losses of one plain process; the card and the gate say what a
fault costs."""

from __future__ import annotations

import ast
import json
import math
import runpy
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import lockstep
import pytest
from lockstep import capstone
from lockstep.base.paths import SOLUTIONS
from lockstep.course.capstone import card
from lockstep.trace import Trace
from mlperf_logging.compliance_checker.mlp_parser import parse_file
from test_gate import as_actions, example, pull_request

STEPS = 3


def train(path: str) -> Any:
    return runpy.run_path(path)["train"](lockstep.device(), STEPS)


@pytest.mark.parametrize(
    "program, nproc",
    [
        (capstone.SLOW, 3),
        (capstone.MENDED, 2),
        pytest.param(capstone.MENDED, 4, marks=pytest.mark.long),
    ],
    ids=lambda one: getattr(one, "stem", one),
)
def test_losses_are_those_of_one_plain_process_on_gloo(program: Path, nproc: int) -> None:
    job = lockstep.torchrun(train, str(program), nproc_per_node=nproc, backend="gloo", show=False)
    right = card._reference(nproc, STEPS, False)
    for found in job.results:
        assert found == pytest.approx(right, rel=card.CLOSE)
    assert right[0] > right[-1]  # it learns


def test_programs_differ_in_their_faults_only() -> None:
    slow, mended = (
        {
            getattr(one, "name", at): ast.dump(one)
            for at, one in enumerate(ast.parse(text).body)
            if at
        }
        for text in (capstone.SLOW.read_text(), capstone.MENDED.read_text())
    )
    names = [name for names in capstone.FAULTS.values() for name in names]
    assert [name for name in slow if isinstance(name, str) and slow[name] != mended.get(name)] == [
        name for name in slow if name in names
    ]
    assert {*mended} - {*slow} >= {"Start", "Wait"}


@pytest.mark.long  # lab 14 shows what each costs, and test_notebooks.py compares that
def test_every_fault_costs_time_on_virtual_gpus_but_the_one_that_they_do_not_have(
    tmp_path: Path,
) -> None:
    best = capstone.run(capstone.MENDED, steps=STEPS)
    assert best.right and best.bound and best.bound < best.step == best.best
    assert best.least and 0.5 * best.step < best.least < best.step
    assert best.achieved and 0.4 < best.achieved < 0.6
    for fault in capstone.FAULTS:
        program = tmp_path / "faulty.py"
        program.write_text(capstone.with_faults([fault]))
        found = capstone.run(program, steps=STEPS)
        assert found.right and found.least and found.least < found.step, fault
        # What nothing hides could be hidden as before.
        assert bool(found.achieved) == (fault != "nothing runs while rows travel"), fault
        if fault.startswith("compiled"):
            assert found.step == best.step
        else:
            assert found.step > 1.005 * best.step, fault


def test_only_what_the_courses_own_programs_did_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text(capstone.SLOW.read_text())

    def run(path: Path) -> Trace:
        return capstone.run(path, steps=2, nproc=2).trace

    assert run(program) is run(capstone.SLOW)
    program.write_text(program.read_text().replace("def update(", "def update(  # mine\n"))
    assert run(program) is not run(program)


def test_wrong_losses_are_told(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    alone = capstone.MENDED.read_text().replace("dist.all_reduce(flat)", "pass")
    program.write_text(alone)
    found = capstone.run(program, steps=STEPS, log=tmp_path / "run.log")
    assert not found.right and "WRONG" in str(found)
    lines, failed = parse_file(tmp_path / "run.log", ruleset="6.0.0")
    assert not failed and lines[-1].value["metadata"] == {"status": "aborted"}
    read = [one.value for one in lines if one.key == "train_loss"]
    assert tuple(one["value"] for one in read) == found.losses
    assert [one["metadata"]["step_num"] for one in read] == [0, 1, 2]
    times = [one.timestamp for one in lines]
    assert times == sorted(times)
    assert found.step == pytest.approx(
        statistics.median(b - a for a, b in pairwise(times[2:5])), rel=0.1
    )


def test_the_best_right_step_of_ones_own_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LOCKSTEP_PROGRESS")
    program, mended = tmp_path / "mine.py", capstone.MENDED.read_text()

    def run(code: str) -> capstone.Card:
        program.write_text(code)
        return capstone.run(program, steps=2, nproc=2)

    def of(step: float, nproc: int = 2) -> float | None:
        return card._own(step, nproc, Trace.from_slices([]))

    assert run(mended).own is None  # the course's
    assert run(mended.replace("dist.all_reduce(flat)", "pass")).own is None  # wrong
    mine = run(mended.replace("def update(", "def update(  # mine\n"))
    step = mine.step
    assert mine.own == round(step, 4) and "your best so far" in str(mine)
    assert of(step / 2) == of(step) == of(math.inf) == round(step / 2, 4)
    assert of(math.inf, nproc=3) is None
    (tmp_path / "lockstep" / "progress.jsonl").write_text("broken\n")
    assert of(math.inf) is None
    monkeypatch.setenv("LOCKSTEP_PROGRESS", "off")
    assert of(step) is None


def test_copies_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = capstone.copy()
    path.write_text("mine")
    assert capstone.copy() == path and path.read_text() == "mine"
    with pytest.raises(FileNotFoundError, match=r"capstone\.copy\(\)"):
        capstone.run("other.py")


@pytest.mark.long  # lab 14 shows one that counts
def test_a_change_counts_where_steps_are_shorter_beyond_noise(tmp_path: Path) -> None:
    program = tmp_path / "faulty.py"
    program.write_text(capstone.with_faults(["experts one after the other"]))
    found = capstone.change(program, capstone.MENDED, steps=2)
    assert found.counts and "the change counts" in str(found)
    assert not capstone.change(capstone.MENDED, program, steps=2).counts


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "change",
    ["wrong", *(pytest.param(one, marks=pytest.mark.long) for one in ("faster", "slower"))],
)
@pytest.mark.more
def test_the_labs_workflow_for_github_actions(tmp_path: Path, change: str) -> None:
    slow, mended = (
        capstone.with_faults(["experts one after the other"]),
        capstone.MENDED.read_text(),
    )
    before, after = {
        "faster": (slow, mended),
        "slower": (mended, slow),
        "wrong": (slow, mended.replace("dist.all_reduce(flat)", "pass")),
    }[change]
    work, environment = pull_request(tmp_path, "my_step.py", before, after)
    notebook = json.loads((SOLUTIONS / "14_capstone.ipynb").read_text(encoding="utf-8"))
    (text,) = ("".join(one["source"]) for one in notebook["cells"] if one["id"] == "gate-text")
    code, said, summary = as_actions(example(text), work, environment)
    assert code == (change != "faster"), said
    assert ("the change counts" in summary) == (change == "faster")
    assert ("what grew: step time" in summary) == (change == "slower")
    assert ("wrong losses" in said) == (change == "wrong")
