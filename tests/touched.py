"""`make check`: the tests that a change touches, nearest first, until its time is over.

`python tests/touched.py [--until TIME] [-n FILES]`, at the checkout's root. The change is what
differs from the place where this branch left main, with what is not committed yet. A test file is
touched where it is named like a changed file, or imports it, straight or through others.
(pytest-testmon sees what tests run in their own process only, and ours start others; pytest-picked
knows of no imports.)
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from imports import Arrows, imported, imports, module

SECONDS = 60.0  # for tests, unless --until is given
MOST_FILES = 24  # for pytest to import in each worker; further ones would have no time left
# Tests that a change touches without an import: files, and what to run.
BESIDES = (
    ("tests/conftest.py", "tests/test_*.py"),
    ("tests/kernel.py", "tests/test_*.py"),  # through the fixtures of conftest.py
    ("data/*", "tests/test_recordings.py"),
    ("tests/programs/*", "tests/test_families.py"),
    ("lib/lockstep/timeline/browser/*", "tests/test_timeline.py"),
    ("lib/lockstep/figures/browser/*", "tests/test_interactive.py"),
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
    """What to run, in this order → how many imports away the nearest changed file is.

    Files that changed, or are named like a changed module, come first, then those named after its
    folders, then what is fewest imports away; of these, what starts no processes and is short.
    """
    present = {file for file in changes if (root / file).exists()}
    texts, found = _read(root)
    tests = [file for file in fnmatch.filter(texts, "tests/test_*.py") if file not in ONLY_BESIDES]
    far = _distances(present, texts, found)
    likeness = {test: min((_likeness(test, file) for file in present), default=9) for test in tests}
    chosen = {file: far.get(file, 0) for file in tests if file in far or likeness[file] == 0}
    for pattern, wanted in BESIDES:
        for file in fnmatch.filter(present, pattern):
            one = wanted.format(stem=Path(file).stem)
            chosen |= dict.fromkeys(fnmatch.filter(tests, one) or [one], 0)

    def place(file: str) -> tuple[object, ...]:
        text = texts.get(file, "torchrun")  # a test of a file that executes notebooks
        slow = STARTS_PROCESSES.search(text) is not None
        return likeness.get(file, 9), chosen[file], slow, text.count("\n"), file

    return {file: chosen[file] for file in sorted(chosen, key=place)}


def _likeness(test: str, file: str) -> int:
    """Return 0 where a test is this file or named like it, 1 where it is named like its folder, 2
    where like that folder's, and so on; 8 where its name begins with one of them, else 9.

    `test_trace_streams.py` is named like `lockstep/trace/analyses/streams.py`: the module's name
    ends its own, and what stands before is a folder's.
    """
    if test == file:
        return 0
    name = Path(test).stem.removeprefix("test_")
    *folders, stem = Path(file).with_suffix("").parts
    names = [*folders[1:], *([] if stem == "__init__" else [stem])]  # folders[0] is lib
    if file.startswith("lib/") and file.endswith(".py"):
        for distance, own in enumerate(names[:0:-1]):
            before = name.removesuffix(own).removesuffix("_")
            if name.endswith(own) and (not before or before in names):
                return distance
        if name.partition("_")[0] in names:
            return 8
    return 9


@functools.cache
def _read(root: Path) -> tuple[dict[str, str], Arrows]:
    """The package's and the tests' files: their texts, and what they import."""
    paths = [*(root / "lib").rglob("*.py"), *(root / "tests").glob("*.py")]
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in paths}
    return texts, _imports_of_all(texts)


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


def _imports_of_all(texts: dict[str, str]) -> Arrows:
    """What each file of the packages and of the tests imports.

    `lockstep.torchrun` leads to the room that has it. Through the head of the package, which
    imports every room, no way leads: by it each test would be touched by each change. Cells are
    strings: there a name of ours counts like one in the code.
    """
    modules = {
        Path(file).stem
        if file.startswith("tests/")
        else module(file, "").removeprefix(".lib."): file
        for file in texts
    }
    head = "lib/lockstep/__init__.py"
    offered = {
        f"lockstep.{name.rpartition('.')[2]}": modules.get(name) or modules[name.rpartition(".")[0]]
        for name in _names(head, texts[head])
        if name.startswith("lockstep.")
    }
    found: Arrows = {head: set()}
    for file in texts.keys() - {head}:
        targets = {
            modules.get(name) or offered.get(name) or modules.get(name.rpartition(".")[0])
            for name in _names(file, texts[file]) - {"lockstep"}
        }
        found[file] = {target for target in targets if target}
    return found


def _names(file: str, text: str) -> set[str]:
    """The full names of what a file imports, and of what the cells of a test speak of."""
    package = list(Path(file).parts[1:-1])
    names = {name for node in imports(ast.parse(text)) for name in imported(node, package)}
    if file.startswith("tests/"):
        names |= set(re.findall(r"\blockstep\.\w+", text))
        if re.search(r"%torchrun\b", text):
            names.add("lockstep.magic")
    return names


def main(root: Path, until: float, workers: int) -> int:
    changes = changed(root)
    wanted = touched(changes, root)
    print(f"changed files: {len(changes)}; tests that they touch, the nearest first:", flush=True)
    for one, distance in wanted.items():
        print(f"  {one}" + (f", {distance} imports away" if distance > 1 else ""), flush=True)
    first, later = [*wanted][:MOST_FILES], [*wanted][MOST_FILES:]
    os.environ["CHECK_UNTIL"] = str(until)
    in_order = ["--no-loadscope-reorder", "-n", str(workers)]
    quick = ["-m", "not (long or gpu or slurm or hub)"]
    options = ["-q", "-r", "fE", "-p", "time_over", *quick, *in_order]
    status = pytest.main([*options, *first]) if first else 0
    print(f"touched, but left to make test as others are nearer: {', '.join(later) or 'none'}")
    print("left to make test, as nothing touches it: the rest")
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--until", type=float, help="when the time is over, in seconds since 1970")
    parser.add_argument("-n", type=int, default=4, help="files to test at a time")
    options = parser.parse_args()
    until = time.time() + SECONDS if options.until is None else options.until
    sys.exit(main(Path.cwd(), until, options.n))
