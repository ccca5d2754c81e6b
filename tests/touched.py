"""`make check`: the tests that a change touches, nearest first, for as long as its time lasts.

`python tests/touched.py [SECONDS]`, at the checkout's root. The change is what differs from the
place where this branch left main, with what is not committed yet. A test file is touched where it
imports a changed file, straight or through others. (pytest-testmon sees what tests run in their own
process only, and ours start others; pytest-picked knows of no imports.)
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from imports import Arrows, arrows, imported, imports, module

SECONDS = 55.0  # no test starts later: style and types take up to 20 s, and 90 are the most
# Tests that a change touches without an import: files, and what to run.
BESIDES = (
    ("tests/conftest.py", "tests/test_*.py"),
    ("tests/kernel.py", "tests/test_*.py"),  # through the fixtures of conftest.py
    ("data/*", "tests/test_recordings.py"),
    ("tests/programs/*", "tests/test_families.py"),
    ("lib/lockstep/timeline/browser/*", "tests/test_timeline.py"),
    ("lib/lockstep/figures/interactive/browser/*", "tests/test_play.py"),
    ("lib/lockstep/course/labs/*", "tests/test_labs.py"),
    ("labs/*", "tests/test_labs.py"),
    ("labs/*.ipynb", "tests/test_browser.py::test_a_blank_lab_shows_what_it_holds[{stem}]"),
    ("solutions/*", "tests/test_labs.py"),
    (
        "solutions/*.ipynb",
        "tests/test_notebooks.py::test_a_solution_shows_what_is_published[{stem}]",
    ),
)
ONLY_BESIDES = ("tests/test_browser.py", "tests/test_notebooks.py")  # they execute notebooks
STARTS_PROCESSES = re.compile(r"torchrun|subprocess|chromium|kernel: Kernel")


def changed(root: Path) -> set[str]:
    """The files that differ from main's, also new ones, as paths from the root."""

    def git(*words: str) -> list[str]:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[:-1]

    if not git("rev-parse", "HEAD"):
        sys.exit("make check asks git what has changed, but this is no clone of git: make test")
    left_main = git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main")
    listed = git("diff", "--name-only", "--no-renames", *(left_main or ["HEAD"]))
    return {*listed, *git("ls-files", "--others", "--exclude-standard")}


def touched(changes: Iterable[str], root: Path) -> dict[str, int]:
    """What to run, in this order → how many imports away the nearest changed file is."""
    present = {file for file in changes if (root / file).exists()}
    texts, found = _read(root)
    tests = [file for file in fnmatch.filter(texts, "tests/test_*.py") if file not in ONLY_BESIDES]
    far = _distances(present, texts, found)
    chosen = {file: far[file] for file in tests if file in far}
    for pattern, wanted in BESIDES:
        for file in fnmatch.filter(present, pattern):
            one = wanted.format(stem=Path(file).stem)
            chosen |= dict.fromkeys(fnmatch.filter(tests, one) or [one], 0)
    slow = {file for file in chosen if STARTS_PROCESSES.search(texts.get(file, "torchrun"))}
    order = sorted(chosen, key=lambda file: (chosen[file], file in slow, file))
    return {file: chosen[file] for file in order}


@functools.cache
def _read(root: Path) -> tuple[dict[str, str], Arrows]:
    """The package's and the tests' files: their texts, and what they import."""
    paths = [*(root / "lib" / "lockstep").rglob("*.py"), *(root / "tests").glob("*.py")]
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in paths}
    return texts, _imports_of_all(root, texts)


def _distances(changes: set[str], texts: dict[str, str], found: Arrows) -> dict[str, int]:
    """File → imports between it and a changed one. Who speaks of a file, as "x.js", reads it."""
    far: dict[str, int] = {}
    others = [file for file in changes if not file.endswith(".py")]
    readers = {one for one, text in texts.items() if any(Path(f).name in text for f in others)}
    at, distance = changes | readers, 0
    while at:
        far.update(dict.fromkeys(at, distance))
        at = {file for file, targets in found.items() if targets & at and file not in far}
        distance += 1
    return far


def _imports_of_all(root: Path, texts: dict[str, str]) -> Arrows:
    """What each file of the package and of the tests imports.

    `lockstep.torchrun` in a test leads to the room that has it. Through the head of the package,
    which imports every room, no way leads: by it each test would be touched by each change. Cells
    are strings: there a name of ours counts like one in the code.
    """
    library = "lib/lockstep/"
    found = {
        library + file: {library + target for target in targets}
        for file, targets in arrows(root / library).items()
    }
    modules = {module(file.removeprefix(library), "lockstep"): file for file in found}
    modules |= {Path(file).stem: file for file in texts if file.startswith("tests/")}
    head = ast.parse(texts[library + "__init__.py"])
    offered = {
        f"lockstep.{name.rpartition('.')[2]}": modules.get(name) or modules[name.rpartition(".")[0]]
        for node in imports(head)
        for name in imported(node, ["lockstep"])
        if name.startswith("lockstep.")
    }
    found[library + "__init__.py"] = set()
    for file, text in texts.items():
        if file.startswith("tests/"):
            names = {name for node in imports(ast.parse(text)) for name in imported(node, [])}
            names |= set(re.findall(r"\blockstep\.\w+", text))
            if re.search(r"%torchrun\b", text):
                names.add("lockstep.magic")
            targets = {
                modules.get(name) or offered.get(name) or modules.get(name.rpartition(".")[0])
                for name in names - {"lockstep"}
            }
            found[file] = {target for target in targets if target}
    return found


class TimeOver:
    """A plugin of pytest: no test starts after the time is over."""

    def __init__(self, seconds: float):
        self.end = time.monotonic() + seconds
        self.left: dict[str, int] = {}  # test file → tests not run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() > self.end:
            file = item.nodeid.partition("::")[0]
            self.left[file] = self.left.get(file, 0) + 1
            pytest.skip("the time of make check is over: left to make test")


def main(root: Path, seconds: float) -> int:
    changes = changed(root)
    wanted = touched(changes, root)
    print(f"changed files: {len(changes)}; tests that they touch, the nearest first:", flush=True)
    for one, distance in wanted.items():
        print(f"  {one}" + (f", {distance} imports away" if distance > 1 else ""), flush=True)
    time_over = TimeOver(seconds)
    status = pytest.main(["-q", "-r", "fE", *wanted], plugins=[time_over]) if wanted else 0
    left = ", ".join(f"{file} ({count})" for file, count in time_over.left.items())
    print(f"touched, but left to make test when {seconds:g} s were over: {left or 'none'}")
    print("left to make test, as nothing touches it: the rest")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path.cwd(), float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
