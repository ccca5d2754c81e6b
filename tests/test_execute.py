"""`lockstep run`: what it refuses, what it measures, and which notebooks it does not believe."""

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lockstep
import nbformat
import psutil
import pytest
from lockstep.__main__ import main
from lockstep.author import execute
from lockstep.course.exercises import MIME

LIBRARY = str(Path(lockstep.__file__).parents[1])


def check(verdict: str, mistake: str = "") -> str:
    """A cell that shows the outcome of a check."""
    data = {MIME: {"exercise": "average", "verdict": verdict, "mistake": mistake}}
    return f"# lockstep.check()\ndisplay({data}, raw=True)"


GOOD = {
    "parameters": 'NPROC = 4  # ranks\nSHAPE = (2, 3)\nNAME = "auto"\nSIZE = 0.5\nANY = None',
    "check": check("PASS"),
}


@pytest.fixture
def write(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Writes a notebook with these cells, by id, into a checkout that has nothing else."""
    root = tmp_path / "a {checkout}"
    for folder in ("labs", "solutions", "old", "temporary"):
        (root / folder).mkdir(parents=True)
    monkeypatch.chdir(root)
    monkeypatch.setattr(tempfile, "tempdir", str(root / "temporary"))

    def write(name: str, tags: dict[str, str] | None = None, **cells: str) -> Path:
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        for identity, code in cells.items():
            cell = nbformat.v4.new_code_cell(code, id=identity)
            cell.metadata.tags = [{"parameters": identity, **(tags or {})}.get(identity, identity)]
            notebook.cells.append(cell)
        nbformat.write(notebook, root / name)
        return root / name

    return write


def left_in_temporary() -> list[str]:
    return sorted(path.name for path in Path("temporary").rglob("*") if path.is_file())


# What it refuses, before anything runs


def test_notebooks_are_found_in_the_folder_above_it_or_in_the_course(write):
    mine = write("labs/00_good.ipynb", **GOOD)
    write("labs/00_good.newer.ipynb", **GOOD)  # beside a learner's, by `lockstep labs --newer`
    assert execute.find("labs", [], Path.cwd() / "old") == [mine]
    (found,) = execute.find("solutions", ["0"], Path.cwd())
    assert found == Path(execute.__file__).parents[3] / "solutions" / "00_start_here.ipynb"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("labs 7", "/labs has no lab 7; it has 00, 02"),
        ("labs xx", "/labs has no lab xx; it has 00, 02"),
        ("solutions 77", "/solutions has no lab 77; it has 00, 01"),  # the course's own
        ("labs -p NPROC 8", "-p needs NAME=VALUE, such as NPROC=8, not 'NPROC'"),
        (
            "labs -p NPROC=2 -p nproc=8",
            "labs/00_good.ipynb has no parameter nproc; it has NPROC=4, SHAPE=(2, 3), "
            'NAME="auto", SIZE=0.5, ANY=None',
        ),
        ("labs -p NPROC=2", "labs/02_bare.ipynb has no parameter NPROC; it has none"),
        (
            "labs 0 -p NPROC=four",
            "labs/00_good.ipynb, where NPROC=4: 'four' is of type str: pass a value of type int",
        ),
        ("labs -p NPROC=True 0", "True is of type bool: pass a value of type int"),
        ("labs -p NPROC=2.0 0", "2.0 is of type float: pass a value of type int"),
        ("labs -p NAME=2 0", "2 is of type int: pass a value of type str in quotes of its own"),
        ("labs -p SHAPE=[1,2] 0", "[1, 2] is of type list: pass a value of type tuple"),
        ("labs 0 --fast", "unrecognized arguments: --fast"),
        ("labs --keep images/../labs", "--keep images/../labs would overwrite the notebooks"),
        ("labs --keep labs/00_good.ipynb", "--keep labs/00_good.ipynb: File exists: name another"),
        (
            "solutions 0 --keep labs",
            "--keep labs would overwrite 00_good.ipynb there: name another",
        ),
        ("labs --keep labs --force", "--keep labs would overwrite the notebooks"),
    ],
)
def test_bad_input_is_refused_with_what_and_where(write, capsys, arguments, said):
    write("labs/00_good.ipynb", **GOOD)
    write("labs/02_bare.ipynb", check=check("PASS"))
    if arguments.startswith("solutions 0"):
        write("solutions/00_good.ipynb", **GOOD)
    before = [path.read_bytes() for path in sorted(Path("labs").iterdir())]
    try:
        assert main(["run", *arguments.split()]) == 2
    except SystemExit as stopped:  # by argparse
        assert stopped.code == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert [path.read_bytes() for path in sorted(Path("labs").iterdir())] == before


def test_a_file_that_is_no_notebook_is_refused(write, capsys):
    Path("labs/00_good.ipynb").write_text("{")
    assert main(["run", "labs", "-p", "NPROC=2"]) == 2
    assert "labs/00_good.ipynb is not a notebook" in capsys.readouterr().err


def test_the_folder_is_found_from_below_and_notebooks_by_number(write, monkeypatch):
    paths = [write(f"labs/{number}_x.ipynb", **GOOD) for number in ("00", "01", "10")]
    below = Path("labs/images")
    below.mkdir()
    assert execute.find("labs", [], below) == paths
    assert execute.find("labs", ["10", "0", "00"], below) == [paths[0], paths[2]]


def test_values_are_python_literals_or_else_strings(write):
    good = write("labs/00_good.ipynb", **GOOD)
    found = execute.parse(["NPROC=8", "NAME=gloo", "SIZE=2", "ANY=[1, 'a']", "NPROC=2"])
    assert found == {"NPROC": 2, "NAME": "gloo", "SIZE": 2, "ANY": [1, "a"]}
    execute.refuse_misfits(found, [good])
    assert execute.parse(["ANY=a=b"]) == {"ANY": "a=b"}


# Running


def test_a_notebook_runs_in_its_folder_with_its_parameters_and_leaves_nothing(write, capsys):
    write(
        "labs/00_good.ipynb",
        **GOOD,
        where="""
            import os
            from pathlib import Path
            assert (NPROC, SHAPE, NAME, SIZE) == (2, (2, 2), 'a "b" {c}', 0.5)
            assert Path.cwd().name == "labs"
            assert os.environ["LOCKSTEP_PROGRESS"] == "off"
        """,
        expected="1 / 0",
        tags={"expected": "raises-exception"},
        after=check("NOT YET"),
    )
    assert (
        main(["run", "labs", "-p", "NPROC=2", "-p", "SHAPE=(2, 2)", "00", "-p", 'NAME=a "b" {c}'])
        == 0
    )
    shown = capsys.readouterr()
    heading, row = shown.out.splitlines()
    assert heading.split() == ["notebook", "seconds", "peak", "memory", "checks", "state"]
    assert row.startswith("labs/00_good.ipynb ")
    assert row.endswith(" MB  1 of 2 passed, 1 not yet  ok")
    assert shown.err == ""
    assert list(Path("temporary").iterdir()) == []
    assert os.environ.get("LOCKSTEP_PROGRESS") is None


@pytest.mark.parametrize(
    ("title", "found"), [("x: going further", []), ("x", ["no check was run"])]
)
def test_only_what_goes_further_may_have_no_check(title, found):
    run = nbformat.v4.new_code_cell("1", id="run", execution_count=1)
    cells = [nbformat.v4.new_markdown_cell(f"# {title}\n\nText.", id="title"), run]
    assert execute.audit(nbformat.v4.new_notebook(cells=cells)) == found


def test_what_fails_is_named_and_kept_and_the_others_run(write, capsys):
    coloured = "raise ValueError('\\x1b[31mred\\x1b[0m\\nmore')"
    write("labs/00_raises.ipynb", check=check("PASS"), boom=coloured, after="1")
    write("labs/01_wrong.ipynb", check=check("TRY AGAIN", "sum-not-mean"))
    write("labs/02_unchecked.ipynb", one="1")
    write("labs/03_good.ipynb", check=check("NOT YET"))
    assert main(["run", "labs"]) == 1
    text = capsys.readouterr().out
    table, *problems = text.split("\n\n")
    assert [row.split()[-1] for row in table.splitlines()[1:]] == ["failed"] * 3 + ["ok"]
    said = [problem.splitlines() for problem in problems]
    assert [lines[0] for lines in said] == [
        "labs/00_raises.ipynb failed:",
        "labs/01_wrong.ipynb failed:",
        "labs/02_unchecked.ipynb failed:",
    ]
    assert [lines[1] for lines in said] == [
        "  cell boom: ValueError: red",
        "  check average: TRY AGAIN, sum-not-mean",
        "  no check was run",
    ]
    for lines in said:
        assert len(lines) == 3
        kept = nbformat.read(lines[2].removeprefix("  executed notebook: "), 4)
        assert kept.cells[0].execution_count == 1
    assert left_in_temporary() == ["00_raises.ipynb", "01_wrong.ipynb", "02_unchecked.ipynb"]


def test_a_solution_that_does_not_pass_fails(write, capsys):
    write("solutions/00_open.ipynb", check=check("PASS"), second=check("NOT YET"))
    assert main(["run", "solutions", "--json", "--keep", "kept/here"]) == 1
    [told] = json.loads(capsys.readouterr().out)
    assert told.pop("seconds") > 0
    assert 2e7 < told.pop("peak_memory_bytes") < 2e9
    assert told == {
        "notebook": "solutions/00_open.ipynb",
        "checks": [
            {"exercise": "average", "verdict": "PASS", "mistake": ""},
            {"exercise": "average", "verdict": "NOT YET", "mistake": ""},
        ],
        "state": "failed",
        "problems": ["check average: NOT YET"],
        "executed": str(Path("kept/here/00_open.ipynb").resolve()),
    }
    assert Path(told["executed"]).exists()
    assert list(Path("temporary").iterdir()) == []


def test_an_executed_notebook_overwrites_another_only_where_that_is_wanted(write, capsys):
    write("labs/00_good.ipynb", **GOOD)
    old = write("old/00_good.ipynb", mine="1")
    unread = old.read_bytes()
    assert main(["run", "labs", "--keep", "old"]) == 2
    assert "--keep old would overwrite 00_good.ipynb there" in capsys.readouterr().err
    assert old.read_bytes() == unread
    assert main(["run", "labs", "--keep", "old", "--force"]) == 0
    assert nbformat.read(old, 4).cells[0].id == "parameters"


def test_a_cell_that_prints_for_ever_is_ended_and_named(write, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "_MOST_OUTPUT", 300_000)
    path = write(
        "labs/00_flood.ipynb",
        much="print('x' * 100_000)",
        flood="while True: print('y' * 1000)",
        tags={"flood": "raises-exception"},
        after="1",
    )
    done = execute.execute(path, tmp_path / "out.ipynb", {})
    assert done.problems == ("cell flood: ended, because it printed more than 0.3 MB",)
    much, flood, after = nbformat.read(tmp_path / "out.ipynb", 4).cells
    assert len(much.outputs[0].text) == 100_001
    printed = "".join(output.text for output in flood.outputs)
    assert printed.startswith("yyy") and len(printed) == 300_000 - 100_001
    assert after.execution_count is None


def test_processes_that_left_their_session_end_with_their_notebook(write, tmp_path):
    path = write(
        "labs/00_leaves.ipynb",
        child="import subprocess\nown = subprocess.Popen(['sleep', '600'], start_new_session=True)",
        orphan="told = subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null & echo $!'], "
        "stdout=subprocess.PIPE)",
        tell="print(own.pid, int(told.stdout))",
        check=check("PASS"),
    )
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        done = execute.execute(path, tmp_path / "out.ipynb", {})
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert done.problems == ()
    tell = nbformat.read(tmp_path / "out.ipynb", 4).cells[2]
    left = [int(pid) for pid in tell.outputs[0].text.split() if psutil.pid_exists(int(pid))]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_kernel_that_dies_is_a_failure_that_names_the_cell(write, tmp_path):
    path = write("labs/00_dies.ipynb", check=check("PASS"), dies="import os; os.abort()", after="1")
    done = execute.execute(path, tmp_path / "out.ipynb", {})
    assert done.problems == ("cell dies: DeadKernelError: Kernel died",)
    assert done.score == "1 passed"


def test_a_cell_that_never_ends_is_a_failure(write, tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "_PATIENCE", 1)
    path = write("labs/00_hangs.ipynb", hangs="import threading\nthreading.Event().wait()")
    done = execute.execute(path, tmp_path / "out.ipynb", {})
    [problem] = done.problems
    assert problem.startswith("cell hangs: CellTimeoutError: A cell timed out")
    assert problem.endswith("after 1 seconds.")


def test_the_peak_of_memory_is_that_of_the_kernel_and_its_children(write, tmp_path, monkeypatch):
    seen, gate = 150e6, tmp_path / "gate"
    os.mkfifo(gate)
    hold = f"held = b'x' * {seen:.0f}; open({str(gate)!r}).read()"
    path = write(
        "labs/00_child.ipynb",
        child=f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {hold!r}])",
        check=check("PASS"),
    )
    real = execute.memory

    def release_once_seen(pid: int) -> int:
        total = real(pid)
        if total > seen and gate.exists():
            gate.write_text("go on")
            gate.unlink()
        return total

    monkeypatch.setattr(execute, "memory", release_once_seen)
    done = execute.execute(path, tmp_path / "out.ipynb", {})
    assert done.problems == ()
    assert seen < done.peak_memory < 2 * seen


@pytest.mark.parametrize(
    ("when", "number"), [("running", signal.SIGINT), ("starting", signal.SIGTERM)]
)
def test_ctrl_c_ends_it_and_leaves_nothing(write, tmp_path, when, number):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    wait = f"""
import os, subprocess, sys, threading
child = subprocess.Popen(["sleep", "600"])
script = "setsid sleep 600 >/dev/null & echo $!"
orphan = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE).stdout
with open({str(gate)!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}} {{int(orphan)}}")
threading.Event().wait()
"""
    write("labs/00_waits.ipynb", wait=wait if when == "running" else "1")
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text(wait if when == "starting" else "")
    command = subprocess.Popen(
        [sys.executable, "-m", "lockstep", "run", "labs"],
        env={
            **os.environ,
            "PYTHONPATH": LIBRARY,
            "TMPDIR": str(Path("temporary").resolve()),
            "IPYTHONDIR": str(tmp_path / "ipython"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    processes = [psutil.Process(int(pid)) for pid in gate.read_text().split()]
    command.send_signal(number)
    try:
        out, err = command.communicate(timeout=30)
        left = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    assert left == []
    assert command.returncode == 130
    assert err == "lockstep run: interrupted\n"
    assert out == ""
    assert left_in_temporary() == []


# Which notebooks it does not believe


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook as `lockstep run` leaves it."""
    folder = tmp_path_factory.mktemp("audit")
    notebook = nbformat.v4.new_notebook()
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "3", "language": "python"}
    cells = {
        "load": "get_ipython().register_magic_function(print, 'cell', 'torchrun')",
        "ranks": "\n%%torchrun -n 2\n1",
        "check": check("PASS"),
        "blank": " ",
    }
    for identity, code in cells.items():
        notebook.cells.append(nbformat.v4.new_code_cell(code, id=identity))
    nbformat.write(notebook, folder / "in.ipynb")
    done = execute.execute(folder / "in.ipynb", folder / "out.ipynb", {})
    assert done.problems == ()
    return nbformat.read(folder / "out.ipynb", 4)


def without_time(cells):
    for identity in ("load", "ranks"):  # the first is an assignment, which may be as fast
        times = cells[identity].metadata.execution
        times["iopub.status.busy"] = "2026-01-01T12:00:00.999500Z"
        times["iopub.status.idle"] = "2026-01-01T12:00:01.000400Z"
    del cells["check"].metadata["execution"]


def without_execution(cells):
    cells["load"].execution_count = None
    cells["blank"].execution_count = None


def without_checks(cells):
    cells["check"].outputs = []


@pytest.mark.parametrize(
    ("spoil", "doubts"),
    [
        (lambda cells: None, []),
        (
            without_time,
            [
                "cell ranks took 0.0009 s: its ranks cannot have run",
                "cell check took 0 s: its ranks cannot have run",
            ],
        ),
        (without_execution, ["cell load was not executed"]),
        (without_checks, ["no check was run"]),
    ],
)
def test_a_notebook_that_only_seems_to_have_run_is_doubted(executed, spoil, doubts):
    notebook = copy.deepcopy(executed)
    spoil({cell.id: cell for cell in notebook.cells})
    assert execute.audit(notebook) == doubts
