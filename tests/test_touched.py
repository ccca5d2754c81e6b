"""What `make check` runs, on small checkouts and on this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from touched import changed, touched

ROOT = Path(__file__).parents[1]
FILES = {
    "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['lib']\n",
    "lib/lockstep/__init__.py": "from .high import top\nfrom .low import ground\nown = 3\n",
    "lib/lockstep/low.py": "ground = 1\nPAGE = 'page.js'\n",
    "lib/lockstep/high.py": "from .low import ground\ntop = ground + 1\n",
    "lib/lockstep/page.js": "",
    "lib/experiments/__init__.py": "",
    "lib/experiments/far.py": "from lockstep import top\n",
    "tests/test_high.py": "import lockstep\n\ndef test_it():\n    assert lockstep.top == 2\n",
    "tests/test_low.py": "from lockstep import low\n\ndef test_it():\n    assert low.ground == 1\n",
    "tests/test_distant.py": "import experiments.far\n",
    "tests/test_other.py": "from lockstep import own\n\ndef test_it():\n    assert own == 3\n",
}


def git(folder: Path, *words: str) -> None:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run(["git", *me, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    git(tmp_path, "init", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    return tmp_path


def check(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "tests" / "touched.py"), "-n", "0", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_what_differs_from_main(checkout: Path) -> None:
    assert changed(checkout) == set()
    git(checkout, "switch", "-c", "mine")
    (checkout / "lib/lockstep/low.py").write_text("ground = 3\n")
    git(checkout, "commit", "-am", "on my branch")
    git(checkout, "mv", "tests/test_other.py", "tests/test_moved.py")
    (checkout / "new.txt").write_text("")
    moved = {"tests/test_other.py", "tests/test_moved.py"}
    assert changed(checkout) == {"lib/lockstep/low.py", "new.txt", *moved}


def test_the_nearest_come_first(checkout: Path) -> None:
    low = {"tests/test_low.py": 1, "tests/test_high.py": 2, "tests/test_distant.py": 3}
    assert list(touched({"lib/lockstep/low.py"}, checkout).items()) == list(low.items())
    high = {"tests/test_high.py": 1, "tests/test_distant.py": 2}
    assert touched({"lib/lockstep/high.py"}, checkout) == high
    assert touched({"lib/lockstep/page.js"}, checkout) == low  # low.py reads it
    assert touched({"tests/test_other.py"}, checkout) == {"tests/test_other.py": 0}
    assert touched({"tests/test_gone.py", "new.txt"}, checkout) == {}


def test_tests_run_and_fail(checkout: Path) -> None:
    (checkout / "lib/lockstep/high.py").write_text("top = 2\n")
    status, said = check(checkout)
    assert status == 0, said
    assert "1 passed" in said
    (checkout / "lib/lockstep/low.py").write_text("ground = 0\n")
    status, said = check(checkout)
    assert status == 1, said
    assert "1 failed, 1 passed" in said


def test_when_the_time_is_over_the_rest_is_named(checkout: Path) -> None:
    (checkout / "lib/lockstep/low.py").write_text("ground = 0\n")
    status, said = check(checkout, "--until", "0")
    assert status == 0, said
    assert "the time was over: tests/test_low.py (1), tests/test_high.py (1)" in said


def test_a_test_is_cut_when_the_time_is_over_and_that_is_no_failure(checkout: Path) -> None:
    (checkout / "lib/lockstep/low.py").write_text("ground = 1\npage = 1\n")
    (checkout / "tests/test_low.py").write_text(
        "import os, time, pytest\n"
        "@pytest.fixture\n"
        "def late():\n    yield\n    raise ValueError('its test did not end')\n"
        "def test_quick():\n    os.environ['CHECK_UNTIL'] = str(time.time() + 0.5)\n"
        "@pytest.mark.timeout(120)\n"
        "def test_slow(late):\n    time.sleep(60)\n"
    )
    status, said = check(checkout, "-n", "1")
    assert status == 0, said
    assert "1 passed, 2 skipped" in said
    assert "the time was over: tests/test_low.py (1), tests/test_high.py (1)" in said
    assert "ValueError" not in said


def test_without_git_it_says_so(tmp_path: Path) -> None:
    status, said = check(tmp_path)
    assert status == 1
    assert "no clone of git: make test" in said


@pytest.mark.parametrize(
    ("file", "test", "distance"),
    [
        ("lib/lockstep/models/cost.py", "tests/test_cost.py", 1),
        ("lib/lockstep/timeline/browser/draw.js", "tests/test_timeline.py", 0),
        ("lib/lockstep/launch/ranks.py", "tests/test_programs.py", 1),
        ("lib/lockstep/magic.py", "tests/test_launch.py", 1),  # it has cells
        ("lib/lockstep/course/labs/lab01.py", "tests/test_labs.py", 0),
        ("solutions/source/01_communicators.py", "tests/test_labs.py", 0),
        ("solutions/01_communicators.ipynb", "tests/test_labs.py", 0),
        ("data/manifest.json", "tests/test_recordings.py", 0),
        ("Makefile", "tests/test_environment.py", 0),
    ],
)
def test_what_files_of_ours_touch(file: str, test: str, distance: int) -> None:
    assert touched({file}, ROOT)[test] == distance


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("lockstep/base/formatting.py", ["formatting"]),
        ("lockstep/trace/analyses/streams.py", ["trace_streams", "trace_serving"]),  # of its room
        ("lockstep/launch/ranks.py", ["launch", "launch_view", "programs"]),  # which imports it
        ("lockstep/virtual/graphs.py", ["virtual_graphs", "virtual"]),
        ("lockstep/virtual/__init__.py", ["virtual"]),
        ("lockstep/figures/interactive/player.py", ["interactive"]),
    ],
)
def test_what_is_named_like_a_module_comes_first(file: str, tests: list[str]) -> None:
    order = [*touched({f"lib/{file}"}, ROOT)]
    assert order[: len(tests)] == [f"tests/test_{name}.py" for name in tests]
    changed_test = "tests/test_leaving.py"
    assert changed_test in [*touched({f"lib/{file}", changed_test}, ROOT)][:2]


def test_notebooks_are_executed_only_when_they_change() -> None:
    def executing(file: str) -> list[str]:
        files = ("test_browser.py", "test_notebooks.py")
        return [one for one in touched({file}, ROOT) if any(file in one for file in files)]

    assert executing("tests/browser.py") == executing("lib/lockstep/__init__.py") == []
    for folder in ("labs", "solutions"):
        (one,) = executing(f"{folder}/00_start_here.ipynb")
        assert one.endswith("[00_start_here]")
