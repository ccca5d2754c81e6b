"""A learner's copies of the labs, and what opens them: `lockstep labs`."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from browser import serving
from lockstep.__main__ import main
from lockstep.course import copies
from lockstep.course.syllabus import LABS

ROOT = Path(__file__).parents[1]
FIRST = f"labs/{LABS[0].number}_{LABS[0].name}.ipynb"
SECOND = f"labs/{LABS[1].number}_{LABS[1].name}.ipynb"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course whose notebooks a test may change."""
    course = tmp_path / "course"
    for name in ("labs", "solutions"):
        shutil.copytree(ROOT / name, course / name, ignore=shutil.ignore_patterns("source"))
    monkeypatch.setattr(copies, "MATERIAL", course)
    return course


def held(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.ipynb")
        if path.is_file()
    }


def change(path: Path, by: str = "the course") -> None:
    """As a run in JupyterLab does: the notebook stays one."""
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] += [f"\nchanged by {by}"]
    path.write_text(json.dumps(notebook))


def test_labs_and_solutions_are_copied_once(course: Path, tmp_path: Path) -> None:
    mine = tmp_path / "my" / "labs of mine"
    first = copies.copy(mine)
    assert held(mine) == held(course) and len(held(mine)) > 2 * len(LABS)
    assert str(first) == f"copied {len(LABS)} labs to {mine}, for you to edit"
    count = len(held(mine))
    assert (
        str(copies.copy(mine)) == f"nothing to copy: {mine} has {count} notebooks, 0 with your work"
    )


def test_work_is_never_written_again_and_what_is_newer_is_named(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    copies.copy(mine)
    change(mine / FIRST, by="the learner")
    work = (mine / FIRST).read_bytes()
    # The course has not changed.
    assert str(copies.copy(mine)).endswith(f"{len(held(mine))} notebooks, 1 with your work")
    change(course / FIRST)
    change(course / SECOND)
    today = (course / FIRST).read_bytes()
    said = str(copies.copy(mine))
    assert (mine / FIRST).read_bytes() == work
    assert (mine / SECOND).read_bytes() == (course / SECOND).read_bytes()  # nobody's work
    assert "updated 1 notebook that you had not changed" in said
    assert f"newer in the course, but yours has your work and was kept: {FIRST}" in said
    assert f"lockstep labs --newer {mine}" in said and SECOND not in said
    beside = mine / FIRST.replace(".ipynb", ".newer.ipynb")
    assert not beside.exists()
    assert str(copies.copy(mine, newer=True)) == f"new version, beside yours: {beside}"
    assert beside.read_bytes() == today and (mine / FIRST).read_bytes() == work
    for newer in (False, True):  # told and given
        assert str(copies.copy(mine, newer)).startswith("nothing to copy")


def test_what_lies_beside_is_kept_when_there_is_a_still_newer_one(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    copies.copy(mine)
    change(mine / FIRST, by="the learner")
    before = []
    for _ in range(2):
        change(course / FIRST)
        before.append((course / FIRST).read_bytes())
        copies.copy(mine, newer=True)
    names = (FIRST.replace(".ipynb", f".newer{n}.ipynb") for n in ("", "-2"))
    assert [(mine / name).read_bytes() for name in names] == before


@pytest.mark.parametrize("notes", ["", "{", "[1]"])
def test_without_its_notes_no_file_is_taken_for_untouched(
    course: Path, tmp_path: Path, notes: str
) -> None:
    mine = tmp_path / "mine"
    copies.copy(mine)
    (mine / ".lockstep.json").write_text(notes)
    change(course / FIRST)
    before = (mine / FIRST).read_bytes()
    assert FIRST in str(copies.copy(mine))
    assert (mine / FIRST).read_bytes() == before


def test_a_deleted_lab_comes_back_blank(course: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    copies.copy(mine)
    (mine / FIRST).unlink()
    assert str(copies.copy(mine)).startswith("copied 1 lab to")
    assert held(mine) == held(course)


def test_copies_are_the_learner_s_to_write_where_the_course_s_are_not(
    course: Path, tmp_path: Path
) -> None:
    (course / FIRST).chmod(0o444)
    copies.copy(tmp_path / "mine")
    assert (tmp_path / "mine" / FIRST).stat().st_mode & 0o200


@pytest.mark.parametrize("inside", ["", "labs", "solutions"])
def test_the_course_itself_is_no_place_for_copies(course: Path, inside: str) -> None:
    with pytest.raises(copies.CannotCopy, match="must stay blank"):
        copies.copy(course / inside)


def test_other_things_are_not_mixed_with_the_labs_unless_one_insists(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    copies.copy(tmp_path / "empty")
    (mine / "chapter.tex").write_text("mine")
    with pytest.raises(copies.CannotCopy, match="thesis has other files in it: name a new folder"):
        copies.copy(mine)
    assert [path.name for path in mine.iterdir()] == ["chapter.tex"]
    copies.copy(mine, force=True)
    assert (mine / FIRST).exists()
    copies.copy(mine)  # it is a folder of labs by now


@pytest.mark.parametrize(("typed", "copied"), [("y\n", True), ("\n", False)])
def test_on_a_terminal_it_asks_before_it_mixes(tmp_path: Path, typed: str, copied: bool) -> None:
    (tmp_path / "chapter.tex").write_text("mine")
    learner, terminal = pty.openpty()
    os.write(learner, typed.encode())
    done = lockstep("labs", str(tmp_path), "--copy-only", stdin=terminal)
    os.close(learner)
    os.close(terminal)
    assert "has other files in it. Copy the labs there? [y/N]" in done.stdout
    assert (done.returncode, (tmp_path / FIRST).exists()) == (0 if copied else 2, copied)


def test_a_folder_that_cannot_be_written_is_named(course: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(copies.CannotCopy, match=r"file.*: name another folder"):
        copies.copy(tmp_path / "file" / "mine")


# JupyterLab


def test_jupyterlab_opens_lab_00_without_its_question_for_news(tmp_path: Path) -> None:
    opened = copies.jupyterlab(tmp_path, ["--port", "8899"], {"JUPYTER_CONFIG_PATH": "/theirs"})
    assert opened is not None
    command, environment = opened
    assert f"--LabApp.default_url=/lab/tree/{FIRST}" in command
    assert f"--ServerApp.root_dir={tmp_path}" in command
    assert command[-2:] == ["--port", "8899"] and "--no-browser" not in command
    ours, theirs = environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert theirs == "/theirs"
    json.loads((Path(ours) / "labconfig" / "default_setting_overrides.json").read_text())


@pytest.mark.parametrize(
    ("environment", "remote"),
    [
        ({}, False),
        ({"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.1 22"}, True),
        ({"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.1 22", "DISPLAY": "localhost:10.0"}, False),
    ],
)
def test_over_ssh_no_browser_is_looked_for_here(
    tmp_path: Path, environment: dict[str, str], remote: bool
) -> None:
    opened = copies.jupyterlab(tmp_path, [], environment)
    assert opened is not None
    assert ("--no-browser" in opened[0]) == copies.is_remote(environment) == remote
    if remote:
        said = copies.how_to_reach({**environment, "USER": "ada"})
        assert "ssh -N -L 8888:localhost:8888 ada@10.0.0.1" in said


def lockstep(
    *arguments: str, module: str = "lockstep", **options
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
        text=True,
        **{"capture_output": True, **options},
    )


def test_the_command_copies_and_what_is_behind_two_hyphens_is_jupyterlab_s(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    done = lockstep("labs", str(mine), "--copy-only")
    assert (done.returncode, done.stderr) == (0, "")
    assert (mine / FIRST).exists()
    version = lockstep("labs", str(mine), "--", "--version")  # of JupyterLab, which then ends
    assert version.returncode == 0 and re.search(r"^\d+\.\d+\.\d+$", version.stdout, re.MULTILINE)
    refused = lockstep("labs", str(ROOT), "--copy-only")
    assert refused.returncode == 2
    assert refused.stderr.startswith("lockstep labs: ") and "must stay blank" in refused.stderr


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("docter", "there is no command docter: did you mean doctor?"),
        ("lab", "did you mean labs?"),
        ("traces", "did you mean trace?"),
        ("labs --copyonly", "did you mean --copy-only?"),
        ("labs --port 8899", "go behind --: lockstep labs -- --port 8899"),
        ("demo --port=8899 03", "go behind --: lockstep demo 03 -- --port=8899"),
        ("report", "required: FOLDER\n"),  # and no NN
        ("doctor --port", "unrecognized arguments: --port\n"),
        ("xyzzy", "there is no command xyzzy: there are labs, doctor, progress, clean"),
    ],
)
def test_a_wrong_word_is_answered_with_what_was_meant(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["", "help", "--help"])
def test_help_lists_the_commands_by_whom_they_are_for(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 0
    said = capsys.readouterr().out
    groups = re.findall(r"^for (\w+):\n((?:  .+\n)+)", said, re.MULTILINE)
    found = {who: re.findall(r"^  (\w+)", lines, re.MULTILINE) for who, lines in groups}
    assert list(found) == ["learners", "instructors", "developers"]
    assert found["learners"][:3] == ["labs", "doctor", "progress"]
    assert {"sheet", "preflight", "demo", "report"} == set(found["instructors"])
    assert "trace" in found["developers"]


@pytest.mark.parametrize("name", ["progress", "run", "report", "preflight"])
def test_help_of_a_command_calls_optional_what_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["help", name])
    said = capsys.readouterr().out
    assert f"usage: lockstep {name} " in said and re.search(
        r"^  NN +optional: ", said, re.MULTILINE
    )


@pytest.mark.parametrize(
    "typed",
    [
        "--help",
        "--version",
        "doctor",
        "doctor --json",
        "progress",
        "progress --json",
        "run --help",
        f"trace {ROOT / 'data' / 'traces' / 'slow-rank'}",
        f"gate {ROOT / 'data' / 'traces' / 'slow-rank'} {ROOT / 'data' / 'traces' / 'starved'}",
        "sheet 00",
        "clean",
        "labs mine --copy-only",
        "run labs 99",
    ],
)
def test_a_reader_that_goes_early_ends_no_command_in_a_traceback(
    typed: str, tmp_path: Path
) -> None:
    done = unread(*typed.split(), cwd=tmp_path)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    usual = {"run labs 99": 2, "--help": 0, "--version": 0, "run --help": 0}  # argparse looks away
    assert done.returncode == usual.get(typed, 141), done.stderr


def test_nor_does_the_list_of_experiments() -> None:
    done = unread(module="experiments")
    assert (done.returncode, done.stderr) == (141, "")


def unread(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """`lockstep … | head`: here nobody reads at all."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return lockstep(
            *arguments, capture_output=False, stdout=writing, stderr=subprocess.PIPE, **options
        )
    finally:
        os.close(writing)


# What is handed out


@pytest.mark.more
def test_a_wheel_and_a_source_archive_hold_the_course(tmp_path: Path) -> None:
    """Built from a copy of what is tracked; a second wheel, out of the archive, is the same."""
    tree = tmp_path / "tree"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tree / name)
    build = (
        "import sys; from setuptools import build_meta as b\n"
        "print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
    )

    def built(kind: str, where: Path) -> Path:
        done = subprocess.run(
            [sys.executable, "-c", build, kind, str(tmp_path)],
            cwd=where,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return tmp_path / done.stdout.splitlines()[-1]

    archive = built("sdist", tree)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    names = []
    for where in (tree, unpacked):
        with zipfile.ZipFile(built("wheel", where)) as wheel:
            names.append(set(wheel.namelist()))
            metadata = next(n for n in wheel.namelist() if n.endswith("/METADATA"))
            about = wheel.read(metadata).decode()
            wheel.extractall(tmp_path / "site")
    assert names[0] == names[1]
    assert any(name.endswith(".data/data/etc/ipython/startup/lockstep.py") for name in names[0])
    packed_files = {n.removeprefix("lockstep/packed/") for n in names[0] if "/packed/" in n}
    ours = re.compile(r"data/|(labs|solutions)/(\d\d_|step\.py)|solutions/source/wrong/")
    course = {n for n in tracked.split("\0") if ours.match(n)}
    assert course | {"labs/LICENSE"} == packed_files
    assert "\n# Lockstep\n" in about
    # And it is found there, with the checkout out of sight.
    code = (
        "import lockstep; from lockstep.course import copies; from pathlib import Path\n"
        "print(len(lockstep.recorded('launch/h200-x4.json').content) > 0)\n"
        "print(callable(lockstep.carry_on('average')))\n"
        "print(len(copies.copy(Path('mine')).new))\n"
        "from lockstep.author import execute\n"
        "print([path.name[:2] for path in execute.find('labs', [], Path.cwd() / 'mine')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path / "unpacked",
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[0::2][0] == "True", done.stderr
    there = sorted(path.name[:2] for path in (ROOT / "labs").glob("*.ipynb"))
    assert f"\n{2 * len(there)}\n{there}" in done.stdout


# Not beside the other tests of the browser: two at once disturb each other.
@pytest.mark.timeout(300)
@pytest.mark.more
def test_the_address_that_is_printed_opens_lab_00_asks_nothing_and_saving_it_is_no_work(
    course: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    solved = SECOND.replace("labs/", "solutions/")
    with serving(mine, as_learners=True) as browser, browser.open(FIRST, printed=True) as page:
        # Shown or not, the question whether one wants news comes seconds later.
        notification = "@jupyterlab/apputils-extension:notification"
        assert page.setting(notification, "fetchNews") == "false"
        assert page.setting(notification, "checkForUpdates") is False
        assert page.toasts() == []
        for name in (FIRST, solved):
            page.go_on_to(name)
            page.is_ready(name)
            page.tab.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
            assert (mine / name).read_bytes() != (course / name).read_bytes()
            change(course / name)
    assert copies.copy(mine).refreshed == [FIRST, solved]
