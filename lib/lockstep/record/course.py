"""Every lab and solution, executed on this machine: seconds, memory, checks, lab by lab."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..figures.table import Table
from ..machine import Machine
from .experiment import CannotRecord, Experiment, Result, gpu_name

FOLDER = "course"
_KINDS = ("solutions", "labs")


def _run(machine: Machine, nproc: int) -> Iterator[Result]:
    yield from run(machine, nproc)


def run(
    machine: Machine,
    nproc: int,
    kinds: Sequence[str] = _KINDS,
    numbers: Sequence[str] = (),
    where: Path | None = None,
) -> Iterator[Result]:
    """Execute these notebooks (none: all) one after the other; the table after each of them.

    nproc: the notebooks' NPROC; 1 leaves them their own number. where: they are looked for there.
    What goes wrong in a notebook stands in its row.
    """
    try:
        from ..course import execute
        from ..course.exercises import PASS
    except ModuleNotFoundError as missing:
        raise CannotRecord(f"course needs {missing.name}: pip install 'lockstep[labs]'") from None
    parameters = {"NPROC": nproc} if nproc > 1 else {}
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        for done in execute.run(execute.find(kind, numbers, where or Path.cwd()), parameters):
            passed = [one.exercise for one in done.checks if one.verdict == PASS]
            row = {
                "notebook": done.notebook,
                "seconds": round(done.seconds, 1),
                "peak_memory_bytes": done.peak_memory,
                "checks": len(done.checks),
                "passed": len(passed),
                "state": done.state,
                "problems": list(done.problems),
            }
            rows.append(row)
            print(
                f"{row['notebook']}: {done.state}, {done.seconds:.0f} s, {done.score}", flush=True
            )
            yield Result(_file(machine, nproc), _what(nproc), rows)


def _file(machine: Machine, nproc: int) -> str:
    if not machine.gpus:
        return f"{FOLDER}/cpu{'' if nproc == 1 else f'-x{nproc}'}.json"
    return f"{FOLDER}/{gpu_name(machine)}-x{nproc}.json"


def _what(nproc: int) -> str:
    ranks = f"with NPROC={nproc}" if nproc > 1 else "with their own NPROC"
    return f"every solution and lab executed {ranks}: seconds, memory, checks"


def table(folder: Path) -> Table:
    """Lab by machine, of all that was recorded below `folder`: the seconds, and what failed."""
    entries = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    mine = [entry for entry in entries if entry["file"].startswith(f"{FOLDER}/")]
    found: dict[str, dict[str, str]] = {}
    for entry in mine:
        for row in json.loads((folder / entry["file"]).read_text(encoding="utf-8")):
            found.setdefault(row["notebook"], {})[entry["file"]] = _cell(row)
    heads = [_head(entry) for entry in mine]
    rows = [
        (notebook, *(cells.get(entry["file"], "–") for entry in mine))
        for notebook, cells in sorted(found.items())
    ]
    return Table("the course, executed", ("notebook", *heads), rows, stamp=None)


def _head(entry: dict[str, Any]) -> str:
    ranks = f", NPROC={entry['ranks']}" if entry["ranks"] > 1 else ""
    versions = f"PyTorch {entry['versions']['torch']}"
    return f"{entry['machine']}{ranks}; {versions}; {entry['date']}"


def _cell(row: dict[str, Any]) -> str:
    memory = f"{row['peak_memory_bytes'] / 2**30:.1f} GiB"
    failed = "" if row["state"] == "ok" else f", {row['state']}"
    return f"{row['seconds']:.0f} s, {memory}, {row['passed']} of {row['checks']} checks{failed}"


EXPERIMENT = Experiment(
    name="course",
    what="every solution and lab executed: seconds, memory, checks, by machine",
    minutes=12,
    run=_run,
    gpus=False,
)
