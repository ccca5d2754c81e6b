"""Imports of the package run one way: each room knows only what is below it.

`python tests/test_house.py [FOLDER]` prints the rooms, the arrows between them and inside of those
that are drawn as one, those that point up, and the knots. An import inside of a function is an
arrow like any other; one that only the type checker sees is none.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from imports import Arrows, arrows
from lockstep.author.source import read

LIBRARY = Path(__file__).parents[1] / "lib" / "lockstep"

# What the package's folder lists are its rooms, but these are drawn, and counted, as one. Inside of
# them, too, imports run one way: FLOORS has their parts apart.
DRAWN_AS_ONE = {
    "ground": ("words.py", "machine.py", "material.py", "looks.py", "stamps.py"),
    "top": ("summary.py", "gate.py", "magic.py", "__init__.py", "record", "__main__.py"),
}
MOST_ARROWS = 50  # between rooms, and between the parts of one
# From the ground up. A line is a floor: its rooms do not know each other, and may know all that is
# below. A room is a folder or a file of the package, named by its path; the longest name counts.
FLOORS = """
words.py  machine.py  material.py  looks.py
stamps.py
models
figures/picture.py  figures/table.py
figures
launch/interrupts.py
launch/channel.py  launch/sources.py  launch/output.py  launch/calls.py  launch/errors.py
launch/logs.py  launch/processes.py  launch/memory.py  launch/payload.py
launch/cell.py  launch/options.py  launch/place.py
launch/explain
launch/view.py
launch/live.py
launch/job.py
launch/inside
launch/engines
launch/nodes
launch/cluster
launch
trace/slices.py  trace/intervals.py
trace/joins.py  trace/steps.py  trace/guess.py  trace/shapes.py
trace/device.py  trace/unseen.py  trace/matching.py
trace/read  trace/ask
trace/write
trace
timeline  virtual
play/widget.py
play/cards.py
play
summary.py  gate.py
compiled
course/syllabus.py  course/predict.py  course/progress.py  course/source.py
course/links.py
course/exercises.py
course/judging
course/labs
course
magic.py
__init__.py
record
teach/submissions.py  teach/sandbox.py  teach/taking.py  teach/execution.py  teach/judge.py
teach/enter.py  teach/leftovers.py  teach/sheet.py  teach/preflight.py
teach/replay.py  teach/demo.py
teach/report.py
teach
__main__.py
"""
# Rooms whose files may be tied into knots.
KNOTTED: set[str] = set()


def floors(text: str = FLOORS) -> dict[str, int]:
    """Room → its floor, from 0."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {room: number for number, rooms in enumerate(lines) for room in rooms}


def room_of(file: str, rooms: dict[str, int]) -> str | None:
    """The room that a file is in, None for a file that is in none."""
    names = (file, *(parent.as_posix() for parent in Path(file).parents))
    return next((name for name in names if name in rooms), None)


def upward(found: Arrows, rooms: dict[str, int]) -> list[str]:
    """Each import that breaks the table, in a sentence."""
    said = []
    for file, targets in found.items():
        room = room_of(file, rooms)
        if room is None:
            said.append(f"{file} is in no room: name it, or its folder, in the table FLOORS")
            continue
        for target in sorted(targets):
            other = room_of(target, rooms)
            if other is None or other == room or rooms[other] < rooms[room]:
                continue
            where = "above" if rooms[other] > rooms[room] else "beside"
            said.append(
                f"{file} imports {target}, but {other} is {where} {room}: move what both need to a "
                "floor below, or hand it over as an argument"
            )
    return said


def knots(found: Arrows) -> list[list[str]]:
    """Files that import each other, round about or straight (strongly connected components)."""
    reach = {file: _reachable(found, file) for file in found}
    tied = {file: frozenset(b for b in reach[file] if file in reach[b]) for file in found}
    return sorted(sorted(knot) for knot in set(tied.values()) if knot)


def _reachable(found: Arrows, file: str) -> set[str]:
    seen: set[str] = set()
    ahead = [*found[file]]
    while ahead:
        if (one := ahead.pop()) not in seen:
            seen.add(one)
            ahead += found[one]
    return seen


def between(found: Arrows) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The arrows between the rooms, and those between the parts of rooms that are drawn as one."""
    drawn = {part: room for room, parts in DRAWN_AS_ONE.items() for part in parts}
    rooms: dict[str, set[str]] = defaultdict(set)
    inside: dict[str, set[str]] = defaultdict(set)
    for file, targets in found.items():
        part = file.split("/")[0]
        room = drawn.get(part, part)
        rooms[room] |= set()
        for other in {target.split("/")[0] for target in targets} - {part}:
            if room == (there := drawn.get(other, other)):
                inside[part].add(other)
            else:
                rooms[room].add(there)
    return rooms, inside


# ── Tests ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def found() -> Arrows:
    return arrows(LIBRARY)


def test_imports_run_downwards(found: Arrows) -> None:
    assert upward(found, floors()) == []


def test_no_files_import_each_other(found: Arrows) -> None:
    tied = knots(found)
    assert [knot for knot in tied if {file.split("/")[0] for file in knot} - KNOTTED] == []


def test_there_are_few_arrows(found: Arrows) -> None:
    known = [targets for kind in between(found) for targets in kind.values()]
    assert sum(map(len, known)) <= MOST_ARROWS


def test_the_picture_shows_who_knows_whom(found: Arrows) -> None:
    """What it draws is so, and what it does not draw follows from what it draws."""
    text = (LIBRARY.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn: Arrows = defaultdict(set)
    for below, above in re.findall(r"^ *(\w+) --> (\w+)", text, re.MULTILINE):
        drawn[above].add(below)
    rooms, _ = between(found)
    assert {room for room in rooms if not rooms[room]} == {"ground", "models"}  # know nobody
    assert [room for room, below in drawn.items() if below - rooms[room]] == []
    drawn |= {room: set() for room in rooms if room not in drawn}
    assert [room for room in rooms if rooms[room] - _reachable(drawn, room)] == []


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
        ("if TYPE_CHECKING:\n    from ..high import thing", set()),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from .. import high", {"high.py"}),
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
    assert knots(found) == [["high.py", "low/here.py"]]


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
    rooms, inside = between(found)
    tied = knots(found)
    places = {knot[0].split("/")[0] for knot in tied if len({f.split("/")[0] for f in knot}) == 1}
    across = [(a, b) for a, targets in rooms.items() for b in targets if a in rooms[b] and a < b]
    print(f"{len(found)} files, {sum(map(len, found.values()))} arrows between them")
    print(f"{len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows between them")
    for room, targets in sorted(rooms.items()):
        print(f"  {room}: {', '.join(sorted(targets)) or 'knows nobody'}")
    print(f"{sum(map(len, inside.values()))} arrows inside of rooms that are drawn as one")
    for part, targets in sorted(inside.items()):
        print(f"  {part}: {', '.join(sorted(targets))}")
    print(f"pairs of rooms that know each other: {across or 'none'}")
    print(f"arrows that break the table: {len(broken := upward(found, floors()))}")
    for one in broken:
        print(f"  {one}")
    print(f"knots: {len(tied)}, inside of {', '.join(sorted(places)) or 'no room'}")
    for knot in tied:
        print(f"  {len(knot)} files: {', '.join(knot)}")


def test_who_knows_whom_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(_written(tmp_path, {"high.py": "from .low import ground\n"}))
    said = capsys.readouterr().out
    assert "4 files, 1 arrows between them" in said and "knots: 0" in said


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


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY)
