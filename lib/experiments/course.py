"""Every lab and solution, executed on this machine: seconds, memory, checks, lab by lab.

`python -m experiments.course` writes the table in docs/instructors.md anew, of all recordings.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lockstep.base.machine import Machine
from lockstep.course.syllabus import LABS

from . import manifest
from .experiment import CannotRecord, Experiment, Result, device_name, end

FOLDER = "course"
LIMIT = 300.0  # seconds for a notebook
PAGE = Path(__file__).parents[2] / "docs" / "instructors.md"
ROW = (
    "notebook",
    "seconds",
    "peak_memory_bytes",
    "peak_gpu_memory_bytes",
    "checks",
    "passed",
    "state",
    "problems",
)
_KINDS = ("solutions", "labs")
_BEGIN, _END = "<!-- of data/course: -->\n", "<!-- to here -->\n"


def run(
    machine: Machine,
    nproc: int,
    kinds: Sequence[str] = _KINDS,
    numbers: Sequence[str] = (),
    where: Path | None = None,
    limit: float = LIMIT,
) -> Iterator[Result]:
    """Execute these labs (none: all) one after the other; a lab's rows after each of its notebooks.

    nproc: the notebooks' NPROC; 1 leaves them their own number. where: they are looked for there.
    limit: seconds for each. What goes wrong in a notebook stands in its row.
    Raises CannotRecord where there is no such lab.
    """
    try:
        from lockstep.author import execute
        from lockstep.course.exercises import PASS
    except ModuleNotFoundError as missing:
        raise CannotRecord(f"course needs {missing.name}: pip install 'lockstep[labs]'") from None
    parameters = {"NPROC": nproc} if nproc > 1 else {}
    labs: dict[str, list[Path]] = {}
    try:
        for kind in kinds:
            for notebook in execute.find(kind, numbers, where or Path.cwd()):
                labs.setdefault(notebook.stem, []).append(notebook)
    except execute.BadInput as error:
        raise CannotRecord(str(error)) from None
    with _gpu_memory() if machine.gpus else nullcontext(lambda: None) as gpu_memory:
        for name, notebooks in sorted(labs.items()):
            rows: list[dict[str, Any]] = []
            for done in execute.run(notebooks, parameters, limit=limit):
                passed = [one.exercise for one in done.checks if one.verdict == PASS]
                values = (
                    done.notebook,
                    round(done.seconds, 1),
                    done.peak_memory,
                    gpu_memory(),
                    len(done.checks),
                    len(passed),
                    done.state,
                    list(done.problems),
                )
                rows.append(dict(zip(ROW, values, strict=True)))
                said = f"{done.notebook}: {done.state}, {done.seconds:.0f} s, {done.score}"
                print("\n  ".join([said, *done.problems]), flush=True)
                yield Result(f"{_folder(machine, nproc)}/{name}.json", _what(nproc), rows)


@contextmanager
def _gpu_memory() -> Iterator[Callable[[], int | None]]:
    """Watch the GPUs that this process may use by nvidia-smi, five times a second. What is given
    returns the most bytes in use on any of them since it was last asked."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "200"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        ask += ["-i", visible]
    with NamedTemporaryFile() as said, open(said.name, encoding="ascii") as heard:
        try:
            watching = subprocess.Popen(ask, stdout=said, stderr=subprocess.DEVNULL)
        except OSError:
            yield lambda: None
            return
        try:
            # Of some GPUs it says "[N/A]".
            yield lambda: max(
                (int(one) << 20 for one in heard.read().split() if one.isdigit()), default=None
            )
        finally:
            end(watching)


def _folder(machine: Machine, nproc: int) -> str:
    ranks = f"-x{nproc}" if machine.gpus or nproc > 1 else ""
    return f"{FOLDER}/{device_name(machine)}{ranks}"


def _what(nproc: int) -> str:
    ranks = f"with NPROC={nproc}" if nproc > 1 else "with its own NPROC"
    return f"a lab's solution, and the lab, executed {ranks}: seconds, memory, checks"


# ── The table ────────────────────────────────────────────────────────────────────────────────


def table(folder: Path) -> str:
    """Return a table of lab by machine, in Markdown, of all that was recorded below `folder`."""
    machines: dict[str, list[dict[str, Any]]] = {}
    for one in manifest.read(folder):
        if one["file"].startswith(f"{FOLDER}/"):
            machines.setdefault(Path(one["file"]).parent.name, []).append(one)
    if not machines:
        return "Not recorded yet.\n"
    entries = list(machines.values())
    found = [_by_notebook(folder, some) for some in entries]
    names = sorted({_name(row) for rows in found for row in rows.values()})
    heads = [f"{_machine(one)}, {_ranks(one)}" for one, *_ in entries]
    lines = [f"| solution | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    for name in names:
        cells = [_cell(rows.get(f"solutions/{name}")) for rows in found]
        lines.append(f"| {name.removesuffix('.ipynb')} | {' | '.join(cells)} |")
    lines.append(f"| together | {' | '.join(_all(rows) for rows in found)} |")
    lines.append("")
    for head, some, rows in zip(heads, entries, found, strict=True):
        lines.append(f"- {head}: {_conditions(some)}. {_labs(rows)}")
    return "\n".join(lines) + "\n"


def _by_notebook(folder: Path, entries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    texts = [(folder / entry["file"]).read_text(encoding="utf-8") for entry in entries]
    return {row["notebook"]: row for text in texts for row in json.loads(text)}


def _name(row: Mapping[str, Any]) -> str:
    return str(row["notebook"]).partition("/")[2]


def _machine(entry: Mapping[str, Any]) -> str:
    machine: str = entry["machine"]
    return machine.removesuffix(f", {entry['hardware']['cores']} cores").replace(" of one host", "")


def _ranks(entry: Mapping[str, Any]) -> str:
    return f"NPROC={entry['ranks']}" if entry["ranks"] > 1 else "each lab's NPROC"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    gpu = row["peak_gpu_memory_bytes"]
    memory = f"{row['peak_memory_bytes'] / 1e9:.1f} GB"
    memory += f", GPU {gpu / 1e9:.1f} GB" if gpu is not None else ""
    failed = "" if row["state"] == "ok" else f"; **{row['state']}**"
    return f"{row['seconds']:.0f} s; {memory}; {row['passed']} of {row['checks']} checks{failed}"


def _all(rows: Mapping[str, Mapping[str, Any]]) -> str:
    solutions = [row for name, row in rows.items() if name.startswith("solutions/")]
    passed, checks = (sum(row[key] for row in solutions) for key in ("passed", "checks"))
    return f"{sum(row['seconds'] for row in solutions):.0f} s; {passed} of {checks} checks"


def _conditions(entries: Sequence[Mapping[str, Any]]) -> str:
    """Say the conditions; where not all labs had the same, which labs had which."""
    labs: dict[str, list[str]] = {}
    for entry in entries:
        labs.setdefault(_condition(entry), []).append(Path(entry["file"]).stem[:2])
    if len(labs) == 1:
        return next(iter(labs))
    return "; ".join(f"{', '.join(numbers)}: {said}" for said, numbers in labs.items())


def _condition(entry: Mapping[str, Any]) -> str:
    versions = entry["versions"]
    said = [entry["date"], f"{entry['hardware']['cores']} cores"]
    said += [f"PyTorch {versions['torch']}"]
    said += [f"NCCL {versions['nccl']}"] if versions["nccl"] else []
    said += [f"driver {versions['driver']}"] if versions["driver"] else []
    said += [f"{name}={value}" for name, value in (entry["conditions"] or {}).items()]
    return ", ".join(said)


def _labs(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Say which solutions were not run, and how the labs did as learners get them, unanswered."""
    numbers = {_name(row)[:2] for name, row in rows.items() if name.startswith("solutions/")}
    lacking = [lab.number for lab in LABS if lab.number not in numbers]
    first = f"Not run: {', '.join(lacking)}. " if lacking else ""
    labs = [row for name, row in rows.items() if name.startswith("labs/")]
    failed = [_name(row).removesuffix(".ipynb") for row in labs if row["state"] != "ok"]
    if not labs:
        return f"{first}The blank labs were not run."
    seconds = sum(row["seconds"] for row in labs)
    said = f"{first}The {len(labs)} blank labs take {seconds:.0f} s"
    return f"{said}; of them failed: {', '.join(failed)}." if failed else f"{said}, and none fails."


def quoted(readme: str) -> str:
    """Return what stands in the page between its marks. Raises ValueError where it has none."""
    found = re.search(re.escape(_BEGIN) + "(.*?)" + re.escape(_END), readme, re.DOTALL)
    if found is None:
        raise ValueError("the page has no marks for the table of data/course")
    return found[1]


def quote(readme: str, text: str) -> str:
    """Return the page with this table between its marks."""
    return readme.replace(_BEGIN + quoted(readme) + _END, _BEGIN + text + _END)


EXPERIMENT = Experiment(
    name="course",
    what="every solution and lab executed: seconds, memory, checks, by machine",
    minutes=12,
    run=run,
    gpus=False,
    part=lambda number, machine, nproc: run(machine, nproc, numbers=[number]),
    writes={f"{FOLDER}/*/*.json": ROW},
)


if __name__ == "__main__":
    PAGE.write_text(quote(PAGE.read_text(encoding="utf-8"), table(PAGE.parents[1] / "data")))
