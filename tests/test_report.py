"""`lockstep report`: notebooks that are honest, that cheat, and that do harm."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import lockstep
import nbformat
import psutil
import pytest
from lockstep.__main__ import main
from lockstep.base.paths import SOLUTIONS
from lockstep.teach import report, sandbox, submissions, tables
from lockstep.teach.report import Graded, Judgement
from lockstep.teach.sandbox import Limits

pytestmark = pytest.mark.timeout(400)  # sandboxes that start PyTorch, one after the other
WALLS = pytest.mark.skipif(bool(sandbox.why_not()), reason=sandbox.why_not())
SUM = """
import torch.distributed as dist
def average(x):
    dist.all_reduce(x)
    return x
"""
RIGHT = SUM.replace("return x", "return x / dist.get_world_size()")
ALONE = "def average(x):\n    return x"
CHECK = 'lockstep.check("average", average)'


@pytest.fixture
def hand_in(tmp_path) -> Callable[..., None]:
    """Puts a notebook with these cells into a learner's folder."""

    def write(learner: str, *cells: str, name: str = "00_start_here.ipynb") -> None:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        notebook.cells = [nbformat.v4.new_code_cell(one) for one in ("import lockstep", *cells)]
        (tmp_path / "in" / learner).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, tmp_path / "in" / learner / name)

    return write


def graded(tmp_path: Path, seconds: float = 60, walls: bool = True) -> dict[str, Graded]:
    """By learner."""
    limits = Limits(seconds=seconds)
    return {
        one.learner: one
        for one in report.grade_folder(tmp_path / "in", [], limits, walls, at_once=2)
    }


@WALLS
def test_answers_are_judged_whatever_a_notebook_says_of_them(hand_in, tmp_path):
    hand_in("wrong", SUM, CHECK)
    hand_in("broken, no check", "1 / 0", RIGHT, "def f(:")
    hand_in("solution", 'average = lockstep.solution("average")')
    hand_in("number", "average = 3")
    found = graded(tmp_path)
    verdicts = {name: one.verdicts[0] for name, one in found.items()}
    assert {name: (one.verdict, one.mistake) for name, one in verdicts.items()} == {
        "wrong": ("TRY AGAIN", "sum-not-mean"),
        "broken, no check": ("PASS", ""),
        "solution": ("PASS", ""),
        "number": ("TRY AGAIN", "no-function"),
    }
    assert [name for name, one in found.items() if one.score] == ["broken, no check"]
    assert verdicts["solution"].borrowed
    zero, syntax = found["broken, no check"].events
    assert zero == "a cell raised: “ZeroDivisionError: division by zero”, in “1 / 0”"
    assert "SyntaxError" in syntax
    assert found["wrong"].events == ()


@WALLS
def test_nothing_is_drawn_that_nobody_looks_at(hand_in, tmp_path):
    picture = "import os\nclass Picture:\n    def _repr_html_(self): os._exit(1)\n"
    bundle = picture.replace("html_(self)", "mimebundle_(self, **_)")
    hand_in("ada", picture + "Picture()", bundle + "Picture()", "display(Picture())", RIGHT, CHECK)
    (ada,) = graded(tmp_path).values()
    assert (ada.score, ada.events) == (1, ())


@WALLS
def test_the_command_executes_equal_code_once_and_says_why_what_does_not_count(
    hand_in, tmp_path, capsys, monkeypatch
):
    executed: list[str] = []
    run = sandbox.run

    def counted(*arguments, **settings):
        executed.extend(name for name in settings.get("files", ()) if name.endswith(".ipynb"))
        return run(*arguments, **settings)

    monkeypatch.setattr(sandbox, "run", counted)
    monkeypatch.setattr(sandbox, "lacks", lambda: "")  # that takes seconds, and has its own test
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    hand_in("ada", RIGHT, CHECK)
    hand_in("bob", RIGHT, CHECK, name="mine.ipynb")  # its cells have other ids
    hand_in("cy", 'average = lockstep.solution("average")')
    hand_in("dan", "1 / 0", "def average(x): return x", "del average", "average = None")
    assert main(["report", str(tmp_path / "in"), "--to", str(tmp_path / "out")]) == 0
    assert len(executed) == 3
    told_out, bar = capsys.readouterr()
    assert "executing: 100%" in bar and "3/3" in bar
    rows = dict(re.findall(r"^(\w+) +00 +(\d of 1 +\S) ", told_out, re.MULTILINE))
    assert [" ".join(row.split()) for row in rows.values()] == [
        *("1 of 1 ✓", "1 of 1 ✓", "0 of 1 ⊘", "0 of 1 …")
    ]
    with open(tmp_path / "out" / "report.csv", newline="") as file:
        told = {row["learner"]: (row["passed"], row["reason"]) for row in csv.DictReader(file)}
    assert told == {
        "ada": ("1", ""),
        "bob": ("1", ""),
        "cy": ("0", "not counted: the course's own answer is in it"),
        "dan": ("0", "a cell raised: “ZeroDivisionError: division by zero”, in “1 / 0”"),
    }
    said = json.loads((tmp_path / "out" / "report.json").read_text())["notebooks"]
    assert {one["learner"]: one["notes"] for one in said}["bob"] == [
        "not executed again: it has the code of ada, 00_start_here.ipynb"
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "⊘ borrowed" in page and "✓ borrowed" not in page


FORGERY = """
import os
from lockstep.course import exercises, progress
lockstep.check = lambda *_: print("PASS")
exercises._judge = lambda *_: ("PASS", "", "")
os.environ.pop("LOCKSTEP_PROGRESS")
progress.record("00", "average", "passed")
for name in ("how.json", "verdict", "1"):
    with open(os.environ["SANDBOX_OUT"] + "/" + name, "w") as file:
        file.write('{"verdict": "PASS", "exercise": "average"}')
"""
ON_RANK = {
    # The rank sends a class of its own choice, whose opening would run code beside the check.
    "pickle": """
def average(x):
    from lockstep.course.judging import running
    class Evil:
        def __reduce__(self):
            return exec, ("import lockstep.course.exercises as e; e.Exercise.check = None",)
    running.see = lambda *_: Evil()
    return x
""",
    # The rank does what is asked only if it could write to the judge's memory.
    "write": """
def average(x):
    import os
    import torch.distributed as dist
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if b"grading.main" in open(f"/proc/{pid}/cmdline", "rb").read():
            try:
                os.listdir(f"/proc/{pid}/fd")
                os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
            except OSError:
                continue
            dist.all_reduce(x)
            return x / dist.get_world_size()
    return x
""",
    "kill": """
def average(x):
    import os, signal
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) not in (1, os.getpid()):
            os.kill(int(pid), signal.SIGKILL)
    return x
""",
}


@WALLS
def test_a_notebook_that_forges_does_not_pass(hand_in, tmp_path):
    hand_in("mallory", FORGERY, ALONE, CHECK)
    (one,) = graded(tmp_path).values()
    assert one.verdicts[0].verdict == "TRY AGAIN"
    assert one.notes == (
        "its code touches course internals",
        "its code touches lockstep itself",
        "its code touches the progress file",
    )


@WALLS
@pytest.mark.parametrize("how", ON_RANK)
def test_an_answer_that_reaches_for_its_check_does_not_pass(how, hand_in, tmp_path):
    # Who kills ends the notebook's own check, too; a check that the notebook has adds nothing else.
    hand_in("mallory", ON_RANK[how], *([CHECK] if how == "kill" else []))
    (one,) = graded(tmp_path).values()
    assert one.verdicts[0].verdict in ("TRY AGAIN", "NOT JUDGED")
    assert one.score == 0
    if how == "pickle":
        assert "not plain data" in one.verdicts[0].hint


@WALLS
def test_an_answer_that_ends_its_judge_costs_the_others_nothing(hand_in, tmp_path):
    published = nbformat.read(SOLUTIONS / "01_communicators.ipynb", 4)
    right = next(cell.source for cell in published.cells if cell.id == "store_barrier")
    kill = ON_RANK["kill"].replace("average(x)", "local_gpu(*_)").replace("return x", "return 0")
    hand_in("mallory", kill, right, name="01_communicators.ipynb")
    (one,) = graded(tmp_path).values()
    verdicts = {verdict.exercise: verdict.verdict for verdict in one.verdicts}
    assert verdicts["local_gpu"] == "NOT JUDGED"
    assert verdicts["store_barrier"] == "PASS"
    assert verdicts["meet"] == "NO ANSWER"
    assert one.events == ("the judge of its answer local_gpu: ended with signal 9",)


@WALLS
def test_harm_is_named_and_does_none(hand_in, tmp_path):
    target = tmp_path / "in" / "honest" / "00_start_here.ipynb"
    hand_in("honest", RIGHT)
    hand_in("hangs", RIGHT, CHECK, "import threading", "threading.Event().wait()")
    hand_in("floods", RIGHT, "for _ in range(70): print('x' * 1_000_000)")
    hand_in(
        "reaches",
        "open('/usr/written', 'w')",
        f"open({str(target)!r})",
        "import socket\nsocket.create_connection(('192.0.2.1', 80), 3)",
        RIGHT,
    )
    found = graded(tmp_path, seconds=60)
    assert {name: one.score for name, one in found.items()} == dict.fromkeys(found, 1)
    events = {name: " ".join(one.events) for name, one in found.items()}
    assert events["honest"] == ""
    assert events["hangs"] == (
        "did not end within 60 s, in the cell that begins with “threading.Event().wait()”"
    )
    assert "printed more than 50 MB" in events["floods"]
    assert "outside its folder: “OSError: [Errno 30] Read-only" in events["reaches"]
    assert "No such file" in events["reaches"]
    assert "tried to reach the network" in events["reaches"]
    assert target.exists()


# What needs no sandbox


def test_files_that_are_no_notebooks_are_named(hand_in, tmp_path):
    hand_in("fine", RIGHT)
    hand_in("nothing", "x = 1")
    hand_in("lab 03", "def ring_all_reduce(): ...", name="my work.ipynb")
    for learner, text in {"text": "hello", "list": "[]", "cells": '{"cells": [3]}'}.items():
        (tmp_path / "in" / f"{learner}.ipynb").write_text(text)
    (tmp_path / "in" / "deep.ipynb").write_text("[" * 100_000)
    (tmp_path / "in" / "link.ipynb").symlink_to("/etc/passwd")
    found = {one.learner: (one.lab, one.problem) for one in submissions.find(tmp_path / "in")}
    assert found.pop("fine") == ("00", "")
    assert found.pop("lab 03") == ("03", "")
    assert found.pop("nothing") == ("", "it has no exercise of the course")
    assert set(found) == {"text", "list", "cells", "deep"}
    assert all("not a notebook" in problem for _, problem in found.values())


def test_copies_of_the_solution_are_noted(hand_in, tmp_path):
    solved = SOLUTIONS / "00_start_here.ipynb"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "copy.ipynb").write_bytes(solved.read_bytes())
    (one,) = submissions.find(tmp_path / "in")
    assert one.notes == ("identical to the published solution: average",)


NASTY = '<script>alert("x")</script>'


def test_what_a_page_says_is_noted(hand_in, tmp_path):
    hand_in("ada", RIGHT)
    path = tmp_path / "in" / "ada" / "00_start_here.ipynb"
    for page, said in (
        ('page = {"what": "one bucket\\n", "gain": "0.1 ms", "evidence": ""}', True),
        ("page = {", False),
        ("page = {print(1): 2}", False),
    ):
        notebook = nbformat.read(path, 4)
        notebook.cells = [nbformat.v4.new_code_cell(RIGHT), nbformat.v4.new_code_cell(page)]
        notebook.cells[1].id = "page"
        nbformat.write(notebook, path)
        (found,) = submissions.find(tmp_path / "in")
        quoted = [note for note in found.notes if "“" in note]
        assert [one.split(":")[0] for one in quoted] == (["what", "gain"] if said else [])


CARD = f"The host {NASTY}\nof a step\n─────  ────\nlosses  as the reference's\nstep  {NASTY}\n"


@pytest.mark.parametrize(
    "outputs, said",
    [
        ([{"data": {"text/plain": CARD}}], ["losses as the reference's; step " + NASTY]),
        ([{"data": {"text/plain": CARD.splitlines(True)}}, {"name": "stdout"}], ["losses"]),
        ([{"data": {"text/plain": "──" + "x" * 9999}}], ["x" * 600 + "”"]),
        ([{"data": {"text/plain": 5}}], []),
        ([{"data": 5}], []),
        (["x"], []),
        (5, []),
    ],
)
def test_the_card_stands_beside_the_page(outputs, said, hand_in, tmp_path):
    hand_in("ada", RIGHT)
    path = tmp_path / "in" / "ada" / "00_start_here.ipynb"
    notebook = json.loads(path.read_text())
    cell = notebook["cells"][-1]
    notebook["cells"].append(cell | {"id": "yours", "cell_type": "code", "outputs": outputs})
    path.write_text(json.dumps(notebook))
    (found,) = submissions.find(tmp_path / "in")
    notes = [note for note in found.notes if note.startswith("card")]
    assert len(notes) == len(said)
    assert all(f"“{words}" in note for words, note in zip(said, notes, strict=True))
    one = Graded("ada", "14", "x", (), (), found.notes)
    assert "<script" not in tables.page([one], "stamp")


def test_what_learners_write_is_data_in_every_table(tmp_path):
    hint = f"=HYPERLINK({NASTY})\x1b[2J"
    verdicts = (Judgement("average", "TRY AGAIN", "<b>", hint),)
    one = Graded("=1+1" + NASTY, "00", NASTY, verdicts, (NASTY,), (NASTY,))
    tables.write([one], tmp_path, "stamp")
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "<b>" not in page
    assert "default-src 'none'" in page
    for name in ("report.csv", "grades.csv", "nbgrader.csv"):
        with open(tmp_path / name, newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell[:1] in "=+@" and cell] or name == "nothing"
        assert not any("\x1b" in cell for cell in cells)
    assert json.loads((tmp_path / "report.json").read_text())["notebooks"][0]["lab"] == "00"
    assert "\x1b" not in tables.text([one], "stamp")


def test_the_best_of_several_counts(tmp_path):
    def one(verdict: str) -> Graded:
        return Graded("ada", "00", "x.ipynb", (Judgement("average", verdict),))

    tables.write([one("TRY AGAIN"), one("PASS"), one("NOT YET")], tmp_path, "stamp")
    assert (tmp_path / "grades.csv").read_text().split() == [
        "learner,lab",
        "00",
        "(of",
        "1)",
        "ada,1",
    ]
    head, row = (tmp_path / "nbgrader.csv").read_text().splitlines()
    assert dict(zip(head.split(","), row.split(","), strict=True))["score"] == "1.0"


def test_bad_input_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sandbox, "lacks", lambda: "")  # that takes seconds, and has its own test
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "has no notebooks" in capsys.readouterr().err


def test_without_namespaces_it_says_what_is_weaker(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sandbox, "why_not", lambda: "unshare: Operation not permitted")
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "unshare: Operation not permitted" in said
    assert "can reach the network" in said
    assert "--without-walls" in said


def is_kernel(process):
    with contextlib.suppress(psutil.Error):  # it may have ended meanwhile
        return "ipykernel" in str(process.cmdline())
    return False


@WALLS
def test_ctrl_c_ends_what_runs(hand_in, tmp_path):
    hand_in("hangs", "open('/tmp/here', 'w')\nwhile True: pass", RIGHT)
    command = [sys.executable, "-m", "lockstep", "report", str(tmp_path / "in")]
    environment = {**os.environ, "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            me = psutil.Process(process.pid)
            while not any(map(is_kernel, me.children(recursive=True))):
                assert process.poll() is None
                time.sleep(0.05)  # nothing tells of it
            family = me.children(recursive=True)
        finally:
            process.send_signal(signal.SIGINT)
        assert "interrupted" in process.stderr.read()
        assert process.wait(20) == 130
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
    assert not (tmp_path / "lockstep-report").exists()
