"""What `launch.py` found: rows of samples, goals, and how they are shown."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import statistics
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from lockstep.base import machine

PACKAGES = (
    "torch",
    "ipykernel",
    "jupyter_client",
    "accelerate",
    "ipyparallel",
    "HolisticTraceAnalysis",
    "lockstep",
)


@dataclass
class Row:
    """One line of the table."""

    name: str
    unit: str
    samples: list[float]
    torchrun: float | None = None  # torchrun's median for the same job
    floor: float | None = None  # the median of the least that its ranks cost, in the same run

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


@dataclass
class Goal:
    text: str
    measured: str
    met: bool


@dataclass
class Report:
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def row(self, name: str, unit: str, samples: list[float]) -> Row:
        self.rows.append(Row(name, unit, samples))
        return self.rows[-1]

    def goal(self, text: str, measured: str, met: bool) -> None:
        self.goals.append(Goal(text, measured, met))

    def beside(self, part: str, samples: dict[str, list[float]], floor: str) -> dict[str, Row]:
        """One row a way, in seconds, each with its ratios to torchrun, where that ran, and to the
        floor: how many times torchrun's seconds depends on the machine, as both do."""
        rows = {name: self.row(f"{part}: {name}", "s", s) for name, s in samples.items()}
        for row in rows.values():
            row.torchrun = rows["torchrun"].median if "torchrun" in rows else None
            row.floor = rows[floor].median
        return rows

    def __str__(self) -> str:
        """The table, which goals were met, and what else there is to say."""
        goals = [f"{'met    ' if g.met else 'NOT met'}  {g.text}: {g.measured}" for g in self.goals]
        errors = [f"ERROR {error}" for error in self.errors]
        return "\n".join([table(self.rows), "", *goals, *self.notes, *errors])

    def write(self, path: Path, about: dict[str, Any]) -> None:
        """Write what was found, with its circumstances, as JSON."""
        rows = [dataclasses.asdict(row) | {"median": row.median} for row in self.rows]
        found = about | dataclasses.asdict(self) | {"rows": rows}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def text(value: float, unit: str) -> str:
    """Three digits in a unit that fits."""
    if unit == "s" and value < 1:
        value, unit = value * 1000, "ms"
    digits = max(0, 2 - len(str(int(value))) + 1)
    return f"{value:.{digits}f} {unit}"


def table(rows: list[Row]) -> str:
    lines: list[tuple[str, ...]] = [
        ("", "median", "min", "max", "n", "torchrun ÷ it", "it ÷ floor")
    ]
    for row in rows:
        ratio = f"{row.torchrun / row.median:.3g}" if row.torchrun else ""
        values = [text(value, row.unit) for value in (row.median, min(row.samples))]
        worst = text(max(row.samples), row.unit)
        over = f"{row.median / row.floor:.3g}" if row.floor else ""
        lines.append((row.name, *values, worst, str(len(row.samples)), ratio, over))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = f"{{:<{widths[0]}}}" + "".join(f"  {{:>{width}}}" for width in widths[1:])
    return "\n".join(form.format(*line).rstrip() for line in lines)


def circumstances(load: float) -> dict[str, Any]:
    here = machine.probe()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.split(":")[1].strip() for line in info.splitlines() if "model name" in line]
    versions = {"python": here.python}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([f"tests/bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "machine": {
            "platform": here.platform,
            "cpu": models[0] if models else None,
            "cores": here.cores,
            "memory_bytes": here.memory_total,
            "load_at_start": load,
        },
        "versions": versions,
    }
