"""The list of experiments; running them and writing down what they found."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from lockstep.base import machine as machines
from lockstep.base.machine import Machine
from lockstep.figures.table import Table
from tqdm import tqdm

from . import (
    ahead_of_time,
    backends,
    capstone,
    claims,
    cold_start,
    compile,
    contention,
    course,
    data_parallel,
    decode_step,
    elastic,
    faults,
    foreign,
    graph_rules,
    kills,
    known,
    launching,
    manifest,
    memory,
    overlap,
    recording,
    reduce_overhead,
    reserve,
    restart,
    sweeps,
    tensor_parallel,
    two_nodes,
    unchanged,
)
from .experiment import CannotRecord, Experiment, Result

DATA = Path(__file__).parents[2] / "data"
EXPERIMENTS = (
    two_nodes.EXPERIMENT,
    backends.EXPERIMENT,
    launching.EXPERIMENT,
    reserve.EXPERIMENT,
    recording.EXPERIMENT,
    faults.EXPERIMENT,
    restart.EXPERIMENT,
    elastic.EXPERIMENT,
    sweeps.EXPERIMENT,
    compile.EXPERIMENT,
    claims.EXPERIMENT,
    overlap.EXPERIMENT,
    contention.EXPERIMENT,
    data_parallel.EXPERIMENT,
    tensor_parallel.EXPERIMENT,
    reduce_overhead.EXPERIMENT,
    decode_step.EXPERIMENT,
    graph_rules.EXPERIMENT,
    cold_start.EXPERIMENT,
    ahead_of_time.EXPERIMENT,
    memory.EXPERIMENT,
    foreign.EXPERIMENT,
    unchanged.EXPERIMENT,
    known.EXPERIMENT,
    course.EXPERIMENT,
    capstone.EXPERIMENT,
    kills.EXPERIMENT,
)


@dataclass(frozen=True)
class Recorded:
    """An experiment that has been recorded."""

    experiment: Experiment
    results: tuple[Result, ...]
    seconds: float

    def __str__(self) -> str:
        files = ", ".join(result.file for result in self.results)
        return f"{self.experiment.name}: {files} in {self.seconds:.0f} s"


def find(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names; of one that has parts "course/02" is one of them.

    Raises CannotRecord for an unknown one.
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    found = []
    for name in names:
        whole, _, part = name.partition("/")
        if whole not in known:
            raise CannotRecord(f"there is no experiment {name!r}; there are: {', '.join(known)}")
        experiment = known[whole]
        if part:
            if experiment.part is None:
                raise CannotRecord(f"{whole} has no parts, and so no {part!r}: record {whole}")
            experiment = replace(experiment, run=partial(experiment.part, part))
        found.append(experiment)
    return found


def record(
    experiments: Sequence[Experiment], nproc: int | None, folder: Path | None, command: str
) -> Iterator[Recorded]:
    """Run one experiment after the other and write each result as it comes.

    nproc: ranks, None for each one's own number. folder: where to write, None for the checkout's
    `data/`. command: what was typed, for the manifest.
    Raises CannotRecord before anything runs where the machine lacks what one of them needs.
    """
    folder = _checked(folder)
    machine = machines.probe()
    ranks = [experiment.ranks_on(machine, nproc) for experiment in experiments]
    for experiment, count in zip(experiments, ranks, strict=True):
        yield _record(experiment, machine, count, folder, command)


def _checked(folder: Path | None) -> Path:
    if folder is None and not DATA.is_dir():
        raise CannotRecord("this Lockstep is no checkout, so it has no data/: say --to FOLDER")
    folder = folder or DATA
    if folder.exists() and not folder.is_dir():
        raise CannotRecord(f"--to {folder} is a file: name a folder")
    manifest.read(folder)  # one that cannot be read is to be known before and not after
    return folder


def _record(
    experiment: Experiment, machine: Machine, count: int, folder: Path, command: str
) -> Recorded:
    began = time.perf_counter()
    environment = dict(os.environ)
    results: dict[str, Result] = {}
    found = experiment.run(machine, count)
    parts = [found] if isinstance(found, Sequence) else ([one] for one in found)
    # disable=None: only a terminal shows it.
    for part in tqdm(parts, desc=experiment.name, unit="result", leave=False, disable=None):
        entries = [
            manifest.entry(result, experiment.name, count, machine, command, environment)
            for result in part
        ]
        manifest.write(folder, part, entries)
        results |= {result.file: result for result in part}
    return Recorded(experiment, tuple(results.values()), time.perf_counter() - began)


def adopt(other: Path, folder: Path | None) -> list[str]:
    """Take in what was recorded elsewhere; returns the names. Raises CannotRecord."""
    return manifest.adopt(_checked(folder), other)


def listing(folder: Path | None) -> str:
    """List the experiments: what each needs, how long it takes, when it was last recorded."""
    entries = manifest.read(folder or DATA)
    rows = []
    for one in EXPERIMENTS:
        mine = [entry for entry in entries if entry["experiment"] == one.name]
        last = max(mine, key=lambda entry: entry["date"], default=None)
        when = f"{last['date']} on {last['machine']}" if last else "never"
        rows.append((one.name, one.needs, one.minutes, when, one.what))
    columns = ("name", "needs", "minutes", "last recorded", "what")
    return "\n".join(Table("experiments", columns, rows, stamp=None).lines())
