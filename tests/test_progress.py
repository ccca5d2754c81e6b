"""What a learner has done is stored, is still there later, and is shown by lab."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import lockstep
import pytest
from lockstep.__main__ import main
from lockstep.course.links import exercise_address
from lockstep.course.progress import LabExercises, Progress, record
from lockstep.course.syllabus import LABS, Lab

LIB = Path(lockstep.__file__).parents[1]
START = LabExercises("00", "Start here", ("average",))
COMMUNICATORS = LabExercises(
    "01",
    "Communicators",
    ("local_gpu", "meet", "barrier", "my_groups", "grid", "ring_of_gpus", "blocks"),
)
COURSE = (START, COMMUNICATORS)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data folder of the test's own, and a folder to be in."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("LOCKSTEP_PROGRESS", raising=False)
    (tmp_path / "labs").mkdir()
    monkeypatch.chdir(tmp_path / "labs")
    return tmp_path


def stored(home: Path) -> Path:
    return home / "data" / "lockstep" / "progress.jsonl"


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """What another Python process prints."""
    env = {**os.environ, "PYTHONPATH": str(LIB), "PYTHONIOENCODING": "utf-8", **environment}
    command = [sys.executable, *arguments]
    encoding = env["PYTHONIOENCODING"]
    return subprocess.run(command, env=env, capture_output=True, encoding=encoding, timeout=60)


def rows(progress: Progress) -> list[str]:
    """The rows of the labs, without what stands below them."""
    return [line for line in str(progress).splitlines() if "░" in line or "█" in line]


def html(progress: Progress) -> ElementTree.Element:
    return ElementTree.fromstring(progress._repr_mimebundle_()["text/html"])


def some_work() -> None:
    for lab, exercise, event in [
        ("00", "average", "tried"),
        ("00", "average", "passed"),
        ("00", "average", "tried"),  # what comes after a pass takes nothing away
        ("00", "average", "solution"),
        ("01", "local_gpu", "passed"),
        ("01", "meet", "solution"),
        ("01", "meet", "passed"),
        ("01", "barrier", "passed"),
        ("01", "my_groups", "tried"),
        ("01", "my_groups", "tried"),
        ("01", "grid", "tried"),
        ("01", "grid", "solution"),
        ("01", "forgotten", "passed"),  # the course has it no more
        ("01", "average", "passed"),  # nor one of this name in this lab
    ]:
        assert record(lab, exercise, event) == ""


# What is shown


def test_text(home):
    some_work()
    *labs, foot = str(Progress(COURSE)).replace(" ·\n", " · ").splitlines()
    assert labs == [
        "00 Start here     ██████████ 1 of 1   ✓ average",
        "01 Communicators  ████░░░░░░ 3 of 7   ✓ local_gpu ✓ meet (after the solution) ✓ barrier",
        f"{'':38}· my_groups (2 tries) · grid (1 try, solution shown)",
        f"{'':38}· ring_of_gpus · blocks",
    ]
    assert foot == f"4 of 8 exercises · stored in {stored(home)}"


def test_nothing_done_yet(home):
    assert rows(Progress(COURSE))[0] == "00 Start here     ░░░░░░░░░░ 0 of 1   · average"
    assert "0 of 8 exercises · stored in" in str(Progress(COURSE)).replace("\n", " ")
    assert not stored(home).exists()


def test_a_bar_is_full_only_when_all_is_done_and_empty_only_when_nothing_is():
    names = tuple(f"exercise_{number}" for number in range(30))
    record("05", names[0], "passed")
    (row,) = rows(Progress([LabExercises("05", "Long", names)]))
    assert "█░░░░░░░░░ 1 of 30 " in row
    for name in names[1:-1]:
        record("05", name, "passed")
    (row,) = rows(Progress([LabExercises("05", "Long", names)]))
    assert "█████████░ 29 of 30 " in row


def test_text_is_at_most_100_columns_wide_and_no_exercise_is_torn():
    names = tuple(f"exercise_{'x' * (number % 19)}" for number in range(40))
    record("05", names[7], "tried")
    record("05", names[7], "solution")
    course = [LabExercises("05", "A title that is much longer than titles should be", names), START]
    lines = str(Progress(course)).splitlines()
    labs = lines[: next(at for at, line in enumerate(lines) if line.startswith("0 of"))]
    assert max(map(len, labs)) <= 100
    assert len({line.index("·") for line in labs}) == 1  # all names stand in one column
    assert f"· {names[7]} (1 try, solution shown)" in "\n".join(labs)


def test_a_lab_without_exercises():
    text = str(Progress([LabExercises("02", "Reading", ())]))
    assert text.startswith("02 Reading  ░░░░░░░░░░ no exercises\n0 of 0 exercises")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_where_stdout_shows_no_blocks(home, encoding):
    some_work()
    code = (
        "from lockstep.course.progress import *\n"
        "names = 'local_gpu', 'meet', 'my_groups'\n"
        "print(Progress([LabExercises('01', 'Übung', names)]))"
    )
    shown = python("-c", code, PYTHONIOENCODING=encoding)
    title = "\\xdcbung" if encoding == "ascii" else "Übung"
    assert shown.stdout.splitlines()[0] == (
        f"01 {title}  ######.... 2 of 3   [x] local_gpu [x] meet (after the solution) "
        "[ ] my_groups (2 tries)"
    ), shown.stderr


def test_html_says_the_same_without_colours():
    some_work()
    labs = html(Progress(COURSE)).find("div[@role='list']")
    start, communicators = ["".join(row.itertext()) for row in labs]
    assert start == "00 Start here1 of 1✓ average"
    assert communicators == (
        "01 Communicators3 of 7✓ local_gpu ✓ meet (after the solution) ✓ barrier "
        "· my_groups (2 tries) · grid (1 try, solution shown) · ring_of_gpus · blocks"
    )
    spoken = [e.get("aria-label") for e in labs.iter() if e.get("role") == "img"]
    assert spoken[:3] == ["00 Start here: 1 of 1 done", "done", "01 Communicators: 3 of 7 done"]
    assert spoken[3:] == ["done"] * 3 + ["open"] * 4


def test_html_is_escaped():
    attack = "<script>alert('\"&')</script>"
    record("0", attack, "tried")
    shown = html(Progress([LabExercises("0", attack, (attack,))]))  # parses: all is well-formed
    assert not list(shown.iter("script"))
    said = "".join(shown.itertext())
    assert said.startswith(f"0 {attack}0 of 1· {attack} (1 try)")


# What is stored


def test_an_event_is_a_line_of_json(home):
    record("01", "ring_of_gpus", "passed")
    record("01", "blocks", "tried")
    first, second = map(json.loads, stored(home).read_text().splitlines())
    assert first.pop("at").endswith("+00:00")
    assert first == {"lab": "01", "exercise": "ring_of_gpus", "event": "passed"}
    assert (second["exercise"], second["event"]) == ("blocks", "tried")


def test_eight_processes_at_once_lose_nothing(home):
    code = (
        "import sys\n"
        "from lockstep.course.progress import record\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "for number in range(200):\n"
        "    why = record('01', f'{sys.argv[1]}-{number}', 'passed')\n"
        "    assert not why, why\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(number)],
            env={**os.environ, "PYTHONPATH": str(LIB)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    names = tuple(f"{process}-{number}" for process in range(8) for number in range(200))
    standing = Progress([LabExercises("01", "Communicators", names)]).now()
    assert (standing.labs[0].done, standing.broken_lines) == (1600, 0)


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b'{"lab": "01", "exercise": "ring_of_gpus", "event": "passed", "at": "20',
        b'{"lab": "01", "exercise": "ring_of_gpus"}',
        b'{"lab": "01", "exercise": ["ring_of_gpus"], "event": "passed"}',
        b'["01", "ring_of_gpus", "passed"]',
        b"7",
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_a_broken_line_is_left_out_and_counted(home, line):
    record("00", "average", "passed")
    with stored(home).open("ab") as file:
        file.write(line + b"\n\n")  # an empty line is nothing
    record("01", "ring_of_gpus", "passed")
    progress = Progress(COURSE)
    assert [lab.done for lab in progress.now().labs] == [1, 1]
    assert progress.now().broken_lines == 1
    assert "1 broken line in it is ignored" in str(progress)


def test_an_event_of_a_later_version_is_no_broken_line(home):
    record("00", "average", "reviewed")
    assert rows(Progress(COURSE))[0].endswith(" 0 of 1   · average")
    assert Progress(COURSE).now().broken_lines == 0


# What is not stored


@pytest.mark.parametrize("where", ["off", "solutions"])
def test_nothing_is_stored(home, monkeypatch, where):
    record("00", "average", "passed")
    before = stored(home).read_bytes()
    if where == "off":
        monkeypatch.setenv("LOCKSTEP_PROGRESS", "off")
    else:
        (home / "solutions").mkdir()
        monkeypatch.chdir(home / "solutions")
    assert record("01", "ring_of_gpus", "passed") == ""
    assert stored(home).read_bytes() == before
    assert [lab.done for lab in Progress(COURSE).now().labs] == [1, 0]
    assert "nothing more is stored: " in str(Progress(COURSE)).replace("\n", " ")


def test_a_folder_that_cannot_be_written(home):
    (home / "data").write_text("a file")
    said = record("00", "average", "passed")
    assert said.startswith("Your progress could not be stored: Not a directory: ")
    assert said.endswith(f"{home}/data/lockstep")
    shown = str(Progress(COURSE))
    assert "0 of 8 exercises" in shown
    assert "cannot be read: Not a directory: " in shown
    assert "cannot be read: Not a directory: " in "".join(html(Progress(COURSE)).itertext())


def in_its_place(what: str, path: Path) -> None:
    """Put something there that is no file of events."""
    path.parent.mkdir(parents=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        (path / "mine").mkdir(parents=True)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(path))  # an address has room for 107 bytes
    elif what == "loop":
        path.symlink_to(path)
    elif what == "large file":
        path.touch()
        os.truncate(path, 5_000_000_000)
    else:
        path.symlink_to(what)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("pipe", "This is not a file of Lockstep; move it away"),
        ("folder", "Is a directory"),
        ("socket", "No such device or address"),
        ("loop", "Too many levels of symbolic links"),
        ("large file", "This is larger than 10 MB; move it away"),
        ("/dev/zero", "This is not a file of Lockstep; move it away"),
        ("/dev/full", "This is not a file of Lockstep; move it away"),
    ],
)
def test_what_is_no_file_of_events_is_named_and_left_alone(home, what, why):
    in_its_place(what, stored(home))
    before = stored(home).lstat()
    # In a process of its own, for it may wait for ever.
    code = (
        "from lockstep.course.progress import *; print(record('00', 'average', 'passed')); print("
        + ("Progress([LabExercises('00', 'Start here', ('average',))]))")
    )
    said = python("-c", code).stdout
    assert f"Your progress could not be stored: {why}: {stored(home)}\n" in said
    assert "0 of 1   · average" in said and "cannot be read: " in said
    after = stored(home).lstat()
    assert (after.st_mode, after.st_ino, after.st_size) == (
        before.st_mode,
        before.st_ino,
        before.st_size,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_file_of_another_user_is_named_and_left_alone(home):
    record("00", "average", "passed")
    stored(home).chmod(0o600)
    before = stored(home).read_bytes()
    code = (
        "import os\n"
        "from lockstep.course.progress import *\n"
        "os.seteuid(12345)\n"
        "print(record('00', 'average', 'passed'), Progress([]), sep='\\n')"
    )
    said = python("-c", code).stdout
    assert f"could not be stored: Permission denied: {stored(home).parent}" in said
    assert "cannot be read: Permission denied: " in said
    assert stored(home).read_bytes() == before


def test_a_disk_that_fills_up_within_a_line(home):
    record("00", "average", "passed")
    code = (
        "import resource\n"
        "from lockstep.course.progress import record\n"
        "_, most = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({stored(home).stat().st_size + 20}, most))\n"
        "print(record('01', 'local_gpu', 'passed'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "print(record('01', 'meet', 'passed'))\n"
    )
    said = python("-c", code).stdout
    assert said == (
        f"Your progress could not be stored: No space left on device: {stored(home)}\n\n"
    )
    standing = Progress(COURSE).now()
    assert [one.name for lab in standing.labs for one in lab.exercises if one.passed] == [
        "average",
        "meet",
    ]
    assert standing.broken_lines == 1


def test_a_home_that_nobody_knows(home, monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as for a container's user
    monkeypatch.delenv("HOME")
    assert "could not determine the home directory" in record("00", "average", "passed")
    assert "could not determine the home directory" in str(Progress(COURSE)).replace("\n", " ")
    assert list(Path.cwd().iterdir()) == []


def test_a_folder_that_somebody_has_removed(home):
    Path.cwd().rmdir()
    assert record("00", "average", "passed") == ""
    assert Progress(COURSE).now().labs[0].done == 1


# In a notebook

ANSWER = """
def average(x):
    import torch.distributed as dist

    dist.all_reduce(x)
    return x / dist.get_world_size()
"""


@pytest.fixture
def cells(run, home):
    """Cells of a kernel that stores in the test's own folder."""
    run(
        f"import os\nos.environ['XDG_DATA_HOME'] = {str(home / 'data')!r}\n"
        "os.environ['LOCKSTEP_PROGRESS'] = ''\nimport lockstep"
    )
    yield run
    run("os.environ['LOCKSTEP_PROGRESS'] = 'off'\ndel os.environ['XDG_DATA_HOME']\n%reset -f")


def test_a_picture_follows_later_checks_of_its_notebook(cells, home):
    shown = cells("lockstep.progress('00')")
    ((name, picture),) = shown.displays.items()
    assert "0 of 1   · average" in picture["text/plain"]
    passed = cells(ANSWER + "lockstep.check('average', average)")
    assert "PASS" in passed.shown
    assert "1 of 1   ✓ average" in passed.displays[name]["text/plain"]
    assert "00 Start here: 1 of 1 done" in passed.displays[name]["text/html"]
    assert stored(home).read_text().count('"passed"') == 1


def test_that_of_one_lab_links_to_its_next_exercise():
    def onward(progress: Progress) -> list[tuple[str | None, str]]:
        return [(link.text, link.attrib["href"]) for link in html(progress).iter("a")]

    lab = LabExercises("01", "Communicators", ("shrink", "local_gpu"), frozenset({"shrink"}))
    progress = Progress([lab])
    core = exercise_address("01", "local_gpu")
    assert core.startswith("#cell-id=")
    assert onward(progress) == [("next exercise: local_gpu →", core)]
    assert "0 of 1 exercises · next exercise: local_gpu" in str(progress)
    record("01", "local_gpu", "passed")
    further = "01_communicators_further.ipynb"
    assert onward(progress) == [("further exercise: shrink →", further)]
    record("01", "shrink", "passed")
    assert onward(progress) == [("next lab: 02 →", "02_point_to_point.ipynb")]
    assert onward(Progress(COURSE)) == [] and "next" not in str(Progress(COURSE))


def test_outside_of_a_notebook_it_is_printed_and_stays(home):
    code = """
        from lockstep.course.progress import *
        get_ipython().run_cell("Progress([LabExercises('00', 'Start here', ('average',))])")
        record('00', 'average', 'passed')
    """
    shown = python("-m", "IPython", "-c", dedent(code), IPYTHONDIR=str(home / "ipython"))
    assert shown.stdout.count("░░░░░░░░░░ 0 of 1   · average") == 1, shown.stderr
    assert "✓" not in shown.stdout
    assert "1 of 1" in str(Progress([START]))


# By lab, and as a command


@pytest.fixture
def two_labs(monkeypatch):
    labs = (LABS[0], Lab("99", "end", "The end", "15", "cpu"))
    for module in "lockstep.course.syllabus", "lockstep.__main__":
        monkeypatch.setattr(f"{module}.LABS", labs)


def test_what_goes_further_is_named_and_not_counted(home):
    lab = LabExercises("01", "Communicators", ("meet", "shrink"), frozenset({"shrink"}))
    record("01", "shrink", "passed")
    progress = Progress([lab])
    assert "0 of 1" in str(progress) and "✓ shrink (further)" in str(progress)
    record("01", "meet", "passed")
    assert progress.now().labs[0].share == "1 of 1"
    assert "1 of 1 exercises" in str(progress)


def test_all_labs_or_one(two_labs):
    start, end = lockstep.progress().now().labs
    assert (start.title, [one.name for one in start.exercises]) == ("Start here", ["average"])
    assert (end.title, end.exercises) == ("The end", ())
    assert lockstep.progress("99").now().labs == (end,)
    with pytest.raises(ValueError, match="no lab '1'; there are: 00, 99"):
        lockstep.progress("1")


def test_command_for_one_lab(two_labs, capsys):
    for arguments, numbers in ([], ["00", "99"]), (["00"], ["00"]), (["0"], ["00"]):
        assert main(["progress", *arguments]) == 0
        assert [line[:2] for line in capsys.readouterr().out.splitlines() if "░" in line] == numbers
    assert main(["progress", "7"]) == 2
    assert "lockstep progress: there is no lab '7'; there are: 00, 99" in capsys.readouterr().err


def test_command(home):
    record("00", "average", "passed")
    text = python("-m", "lockstep", "progress").stdout
    assert text == f"{lockstep.progress()}\n"
    assert "✓ average" in text


def test_command_as_json(home):
    record("00", "average", "tried")
    assert json.loads(python("-m", "lockstep", "progress", "00", "--json").stdout) == {
        "labs": [
            {
                "number": "00",
                "title": "Start here",
                "exercises": [
                    {
                        "name": "average",
                        "passed": False,
                        "tries": 1,
                        "solution": False,
                        "further": False,
                    }
                ],
            }
        ],
        "stored_in": str(stored(home)),
        "broken_lines": 0,
        "problem": "",
        "off": "",
    }


def test_command_with_an_unknown_lab():
    failed = python("-m", "lockstep", "progress", "99")
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert "'99'" in failed.stderr
    assert all(lab.number in failed.stderr for lab in LABS)
