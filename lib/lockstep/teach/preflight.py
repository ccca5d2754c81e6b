"""Execute every lab on the machine on which it will be given, before class: `lockstep preflight`.

The complete notebooks run as they are. What they show is compared with what is published: texts
that must be the same anywhere, verdicts of claims, and quantities, which may scatter. A quantity
differs where all runs here lie further from the published one than what the course calls close.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..author import execute
from ..author.execute import Execution
from ..base.paths import MATERIAL
from ..figures.table import Table
from ..launch import Slurm

_MARK = "lockstep-preflight"  # begins a line that is meant for who asked; kernels print, too
NOISE = 0.25  # of a quantity: a prediction as near as that is called right
_QUANTITY = re.compile(
    r"^predicted .+? · measured (?P<value>\S+)(?P<unit>(?: [^·]+)?) · ", re.MULTILINE
)
_CLAIM = re.compile(
    r"^“(?P<said>.+)”$[\s\S]*?^(?:measured|computed|measured and computed) · (?P<verdict>.+)$",
    re.MULTILINE,
)
# Lines that say where a cell ran, and words in others that say how it came to its numbers.
_WHERE = re.compile(r"(live|recorded|simulated|published|note:) ")
_WAY = re.compile(r"(^|· )(measured and computed|measured|computed)(?= )")


@dataclass(frozen=True)
class LabDifference:
    """A place where a notebook says something else here. kind: "figure", "claim" or "text".

    published, here: as text, with units.
    """

    cell: str
    kind: str
    published: str
    here: str

    def __str__(self) -> str:
        return f"{self.kind} in cell {self.cell}: {self.here}; published: {self.published}"


@dataclass(frozen=True)
class LabResult:
    """A lab's runs, and in what they differ from what is published. where: the node that a queue
    gave for them; "" for this machine."""

    runs: tuple[Execution, ...]
    differences: tuple[LabDifference, ...]
    where: str = ""

    @property
    def problems(self) -> list[str]:
        return [problem for one in self.runs for problem in one.problems]

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": [one.as_dict() for one in self.runs],
            "differences": [asdict(one) for one in self.differences],
            "where": self.where,
        }


def run_labs(
    numbers: Sequence[str], repeats: int = 1, progress: bool = False
) -> Iterator[LabResult]:
    """Execute the solutions of these labs (none: all), one after the other.

    Raises execute.BadInput for a lab that there is not, KeyboardInterrupt.
    """
    for path in execute.find(execute.SOLUTIONS, numbers, MATERIAL):
        published = json.loads(path.read_text(encoding="utf-8"))
        runs, shown = [], []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
                (one,) = execute.run([path], {}, Path(folder), progress=progress)
                runs.append(one)
                if not one.problems and one.executed is not None:
                    shown.append(json.loads(one.executed.read_text(encoding="utf-8")))
        different = tuple(differences(published, shown)) if shown else ()
        yield LabResult(tuple(runs), different, os.environ.get("SLURMD_NODENAME", ""))


def run_labs_on(cluster: Slurm, numbers: Sequence[str], repeats: int = 1) -> Iterator[LabResult]:
    """Do the same on nodes that Slurm gives, in one job for all; yields each lab when it is done.

    Raises as `run_labs`; LaunchError where there is no such node, or its job ends before.
    """
    execute.find(execute.SOLUTIONS, numbers, MATERIAL)  # before anybody waits in a queue
    words = [sys.executable, "-m", "lockstep.teach.preflight", str(repeats), *numbers]
    with cluster.program(words) as printed:
        for line in printed:
            mark, _, packed = line.partition(" ")
            if mark == _MARK:
                yield pickle.loads(base64.b64decode(packed))


def _on_node(repeats: str, *numbers: str) -> None:
    """Print a line for each lab, on the node, for `run_labs_on`, which has started this."""
    for result in run_labs(numbers, int(repeats)):
        print(_MARK, base64.b64encode(pickle.dumps(result)).decode(), flush=True)


def differences(
    published: dict[str, Any], shown: Sequence[dict[str, Any]]
) -> Iterator[LabDifference]:
    """Yield in what executions of a notebook differ from its published one."""
    outputs = [_texts(one) for one in shown]
    for cell in published["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] != "code" or "unpublished" in tags:
            continue
        name, text = cell["id"], _text(cell)
        here = [one.get(name, "") for one in outputs]
        yield from _quantities(name, text, here)
        yield from _claims(name, text, here)
        if "varies" not in tags:
            for other in here:
                if pair := _first_difference(text, other):
                    yield LabDifference(name, "text", *pair)
                    break


def _quantities(cell: str, published: str, here: Sequence[str]) -> Iterator[LabDifference]:
    found = [list(_QUANTITY.finditer(text)) for text in here]
    for at, one in enumerate(_QUANTITY.finditer(published)):
        unit, value = one["unit"], _number(one["value"])
        values = [_number(mine[at]["value"]) for mine in found if at < len(mine)]
        if not values or not unit:  # without a unit it is exact, and compared as text
            continue
        least, most = min(values), max(values)
        low, high = sorted((value * (1 - NOISE), value * (1 + NOISE)))
        if most < low or least > high:
            span = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            yield LabDifference(cell, "figure", f"{value:g}{unit}", f"{span}{unit}")


def _number(shown: str) -> float:
    """Return 1234.0 for "1,234", as `formatting.number` writes it."""
    return float(shown.replace(",", ""))


def _claims(cell: str, published: str, here: Sequence[str]) -> Iterator[LabDifference]:
    for one in _CLAIM.finditer(published):
        for text in here:
            verdicts = {mine["said"]: mine["verdict"] for mine in _CLAIM.finditer(text)}
            mine = verdicts.get(one["said"], one["verdict"])
            if mine != one["verdict"]:
                said = f"“{one['said']}”"
                yield LabDifference(cell, "claim", one["verdict"], f"{said} {mine}")
                break


def _texts(notebook: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: _text(one) for one in notebook["cells"] if one["cell_type"] == "code"}


def _text(cell: dict[str, Any]) -> str:
    """Return what a cell shows, as text, in whatever pieces it came."""
    return "\n".join(
        "".join(output.get("text") or output.get("data", {}).get("text/plain", "")).rstrip("\n")
        for output in cell["outputs"]
    )


def _first_difference(published: str, here: str) -> tuple[str, str] | None:
    """Return the first line of both that is not the same; None where all that differs is the place,
    or what was measured in one and computed in the other."""
    lines = (
        [one for one in text.splitlines() if not _WHERE.match(one)] for text in (published, here)
    )
    for theirs, mine in zip_longest(*lines, fillvalue="(nothing)"):
        if _WAY.sub("", theirs) != _WAY.sub("", mine):
            return theirs.strip(), mine.strip()
    return None


def table(results: Sequence[LabResult]) -> str:
    """Return a row for each lab, and under them what to look at."""
    rows = []
    for one in results:
        seconds = [run.seconds for run in one.runs]
        span = f"{min(seconds):.0f}"
        span += f" to {max(seconds):.0f}" if len(seconds) > 1 else ""
        peak = f"{max(run.peak_memory for run in one.runs) / 1e6:.0f} MB"
        state = "FAILED" if one.problems else "ok"
        different = str(len(one.differences)) if one.differences else "–"
        rows.append((one.runs[0].notebook, span, peak, one.runs[0].score, different, state))
    columns = ("notebook", "seconds", "peak memory", "checks", "different", "state")
    lines = Table("preflight", columns, rows, stamp=None).lines()
    for one in results:
        said = [*one.problems, *map(str, one.differences)]
        lines += ["", f"{one.runs[0].notebook}:", *(f"  {line}" for line in said)] if said else []
    if nodes := ", ".join(dict.fromkeys(one.where for one in results if one.where)):
        lines.insert(0, f"executed on {nodes}, by Slurm")
    return "\n".join(lines)


if __name__ == "__main__":
    from . import preflight  # whose results can be unpickled elsewhere

    preflight._on_node(*sys.argv[1:])
