"""Imports of the package run one way: each room knows only what is below it, and no files import
each other, be it for their types only.

`python tests/test_house.py [FOLDER]` prints the rooms, the arrows between them, those that point
up, and the circles. An import inside of a function is an arrow like any other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import packages_distributions
from pathlib import Path

import lockstep
import pytest
from imports import Arrows, arrows
from lockstep.author.source import read

LIBRARY = Path(__file__).parents[1] / "lib" / "lockstep"

# A room is a folder or a file that the package's folder lists. From the ground up; a line is a
# floor: its rooms do not know each other, and may know all that is below.
FLOORS = """
base  models
figures  calls
launch  trace
timeline  virtual
course
author  magic.py
teach  __init__.py
__main__.py
"""
MOST_ARROWS = 58


def floors(text: str = FLOORS) -> dict[str, int]:
    """Room → its floor, from 0."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {room: number for number, rooms in enumerate(lines) for room in rooms}


def room_of(file: str) -> str:
    return file.split("/")[0]


def upward(found: Arrows, rooms: dict[str, int]) -> list[str]:
    """Each import that breaks the table, in a sentence."""
    said = []
    for file, targets in found.items():
        room = room_of(file)
        if room not in rooms:
            said.append(f"{file} is in no room: name it, or its folder, in the table FLOORS")
            continue
        for target in sorted(targets):
            other = room_of(target)
            if other == room or other not in rooms or rooms[other] < rooms[room]:
                continue
            where = "above" if rooms[other] > rooms[room] else "beside"
            said.append(
                f"{file} imports {target}, but {other} is {where} {room}: move what both need to a "
                "floor below, or hand it over as an argument"
            )
    return said


def circles(found: Arrows) -> list[list[str]]:
    """Files that import each other, round about or straight (strongly connected components)."""
    reach = {file: _reachable(found, file) for file in found}
    tied = {file: frozenset(b for b in reach[file] if file in reach[b]) for file in found}
    return sorted(sorted(circle) for circle in set(tied.values()) if circle)


def _reachable(found: Arrows, file: str) -> set[str]:
    seen: set[str] = set()
    ahead = [*found[file]]
    while ahead:
        if (one := ahead.pop()) not in seen:
            seen.add(one)
            ahead += found[one]
    return seen


def between(found: Arrows) -> Arrows:
    """Room → the rooms that it knows."""
    rooms: Arrows = defaultdict(set)
    for file, targets in found.items():
        rooms[room_of(file)] |= {room_of(target) for target in targets} - {room_of(file)}
    return rooms


# ── Tests ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def found() -> Arrows:
    return arrows(LIBRARY)


def test_imports_run_downwards(found: Arrows) -> None:
    assert upward(found, floors()) == []


def test_no_files_import_each_other(found: Arrows) -> None:
    assert circles(found) == []


def test_there_are_few_arrows(found: Arrows) -> None:
    assert sum(map(len, between(found).values())) <= MOST_ARROWS


def test_the_picture_shows_who_knows_whom(found: Arrows) -> None:
    """What it draws is so, and what it does not draw follows from what it draws."""
    text = (LIBRARY.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn: Arrows = defaultdict(set)
    for below, above in re.findall(r"^ *(\w+) --> (\w+)", text, re.MULTILINE):
        drawn[above].add(below)
    rooms = {room.removesuffix(".py"): known for room, known in between(found).items()}
    rooms = {
        room.strip("_"): {one.removesuffix(".py").strip("_") for one in known}
        for room, known in rooms.items()
    }
    assert [room for room, below in drawn.items() if below - rooms[room]] == []
    drawn |= {room: set() for room in rooms if room not in drawn}
    assert [room for room in rooms if rooms[room] - _reachable(drawn, room)] == []


def _name(room: str) -> str:
    return room.removesuffix(".py").strip("_")


def test_every_room_of_the_table_exists() -> None:
    assert [room for room in floors() if not (LIBRARY / room).exists()] == []


@pytest.mark.parametrize(
    ("source", "targets"),
    [
        ("from . import ground", {"low/ground.py"}),
        ("from .ground import thing", {"low/ground.py"}),
        ("from .. import high", {"high.py"}),
        ("import house.high", {"high.py"}),
        ("from house.low import ground, thing", {"low/ground.py", "low/__init__.py"}),
        ("def f():\n    if x:\n        from ..high import thing", {"high.py"}),
        ("if TYPE_CHECKING:\n    from ..high import thing", {"high.py"}),
        ("import json, highway", set()),
    ],
)
def test_what_counts_as_an_arrow(source: str, targets: set[str], tmp_path: Path) -> None:
    library = _written(tmp_path, {"low/here.py": source})
    assert arrows(library)["low/here.py"] == targets


def test_a_broken_house_is_described(tmp_path: Path) -> None:
    library = _written(
        tmp_path,
        {
            "low/here.py": "def lazily():\n    from .. import high",
            "high.py": "from .low.here import lazily\nfrom . import beside",
            "beside.py": "",
            "lost.py": "",
        },
    )
    found = arrows(library)
    said = upward(found, floors("low\nhigh.py  beside.py\n__init__.py"))
    assert [one.partition(":")[0] for one in said] == [
        "high.py imports beside.py, but beside.py is beside high.py",
        "lost.py is in no room",
        "low/here.py imports high.py, but high.py is above low",
    ]
    assert circles(found) == [["high.py", "low/here.py"]]


def _written(folder: Path, files: dict[str, str]) -> Path:
    library = folder / "house"
    usual = ("__init__.py", "high.py", "low/__init__.py", "low/ground.py")
    for file, text in {**dict.fromkeys(usual, ""), **files}.items():
        path = library / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return library


def main(library: Path) -> None:
    found = arrows(library)
    rooms = between(found)
    print(f"{len(found)} files, {sum(map(len, found.values()))} arrows between them")
    print(f"{len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows between them")
    for room, targets in sorted(rooms.items()):
        print(f"  {room}: {', '.join(sorted(targets)) or 'knows nobody'}")
    print(f"arrows that break the table: {len(broken := upward(found, floors()))}")
    for one in broken:
        print(f"  {one}")
    print(f"circles: {len(tied := circles(found))}")
    for circle in tied:
        print(f"  {len(circle)} files: {', '.join(circle)}")


def test_who_knows_whom_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(_written(tmp_path, {"high.py": "from .low import ground\n"}))
    said = capsys.readouterr().out
    assert "4 files, 1 arrows between them" in said and "circles: 0" in said


# What learners' environments do not have: `make labs` installs the extra `labs` alone.
BLOCKED = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
import lockstep
for module in pkgutil.walk_packages(lockstep.__path__, "lockstep."):
    if not module.name.startswith(("lockstep.author.", "lockstep.__main__")):
        importlib.import_module(module.name)
from lockstep.author import execute
"""


def test_learners_need_nothing_that_only_tests_install() -> None:
    project = tomllib.loads((LIBRARY.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    only_tests = {re.split(r"[^\w-]", line)[0] for line in extras["test"] + extras["bench"]}
    blocked = [
        module
        for module, packages in packages_distributions().items()
        if only_tests & set(packages)
    ]
    assert {"jupytext", "papermill", "pytest"} <= set(blocked)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *blocked], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


# ── Labs ─────────────────────────────────────────────────────────────────────────────────────

SOURCES = Path(__file__).parents[1] / "solutions" / "source"
WIDEST = 80  # characters of code, which a small screen shows without cutting it


@pytest.mark.parametrize("source", sorted(SOURCES.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_code_of_labs_is_narrow(source: Path) -> None:
    cells = [cell for cell in read(source) if cell.cell_type == "code"]
    wide = [
        f"{c.id}: {line}" for c in cells for line in c.source.splitlines() if len(line) > WIDEST
    ]
    assert wide == []


def test_dir_of_the_package_is_what_is_public():
    found = dir(lockstep)
    assert sorted(found) == sorted(lockstep.__all__)
    sources = (LIBRARY.parents[1] / "solutions" / "source").glob("[0-9][0-9]_*.py")
    used = {
        name for path in sources for name in re.findall(r"\blockstep\.(\w+)\(", path.read_text())
    }
    assert "torchrun" in used and used - set(found) == set()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY)
