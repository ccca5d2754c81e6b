"""All that is known of a job: what was asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..base.formatting import ranks_count
from ..base.provenance import Provenance
from ..calls.record import Call, Reader
from .errors import RankError
from .failures import Failure, format_failures
from .output import Output
from .payload import Parcel


@dataclass(frozen=True, eq=False)
class Plan:
    """A job that is to run, before it does.

    nproc: how many ranks. backend: of the default process group, None where the job makes its own.
    engine: what starts them. nodes: how many hosts. cell: the file name of the cell, for reports.
    sees_gpus: False where ranks are on the CPU because GPUs are too few.
    """

    nproc: int
    backend: str | None
    engine: str = "warm"
    each: tuple[int, ...] = (0,)  # ranks of each node
    cell: str = ""
    asides: tuple[str, ...] = ()  # notes for the learner
    profiles: Path | None = None  # the folder with one profile a rank, where one was asked for
    logs: Path | None = None  # the folder with stdout and stderr, where they were asked for
    sees_gpus: bool = True
    hidden: Set[int] = frozenset()  # ranks whose output and results are not shown
    folders: tuple[Any, ...] = field(default=(), repr=False)  # temporary: they go with the job

    @property
    def nodes(self) -> int:
        return len(self.each)


class End(NamedTuple):
    """The end of a rank. how: "done", "raised", "died", or "stopped" with its job. at: seconds on
    the clock of its calls.
    """

    how: str
    at: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """All that became of a job.

    state: "ok", "failed" or "interrupted"; "running" as long as it runs. device: what the ranks
    computed on. seconds: from the start to the last rank's answer. verdict: a sentence on what went
    wrong between the ranks, or "". ends: of each rank; none as long as it runs.
    """

    state: str = "running"
    device: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    verdict: str = ""
    failures: tuple[Failure, ...] = ()
    ends: tuple[End, ...] = ()
    outputs: tuple[Output, ...] = field(default=(), repr=False)
    shown: tuple[str | None, ...] = field(default=(), repr=False)
    readers: tuple[Reader, ...] = field(default=(), repr=False)
    parcels: tuple[Parcel | None, ...] = field(default=(), repr=False)
    unsent: Mapping[int, str] = field(default_factory=dict, repr=False)
    bound: tuple[str, ...] = field(default=(), repr=False)  # by cells, in a kept rank


@dataclass(frozen=True, repr=False, eq=False)
class JobData(Outcome, Plan):
    """One run of N ranks: what was asked for (`Plan`) and what became of it (`Outcome`)."""

    @property
    def ok(self) -> bool:
        """Return whether every rank finished without an error."""
        return self.state == "ok"

    @property
    def note(self) -> str:
        """Say what else a learner should know of it; "" for nothing."""
        return "; ".join((*self.asides, *self.notes))

    def output(self, rank: int) -> str:
        """Return what this rank printed, to stdout and stderr, in order."""
        return self.outputs[rank].text

    @cached_property
    def calls(self) -> list[list[Call]]:
        """For each rank, the operations on process groups that it called, in order."""
        return [reader.calls() for reader in self.readers]

    @cached_property
    def setup(self) -> list[list[Call]]:
        """For each rank, the calls that made or ended groups, in order: `new_group([0, 1])`."""
        return [reader.setup() for reader in self.readers]

    @property
    def cause(self) -> RankError | None:
        """Return what the first rank raised, where that is why the job failed."""
        first = self.failures[0] if self.failures else None  # the cause comes first
        if first is None or not first.type_name:
            return None
        return RankError(first.rank, first.type_name, first.message)

    @property
    def report(self) -> str:
        """Say what went wrong, for people; "" where nothing did."""
        return format_failures(self.failures, self.verdict, self.cell)

    @property
    def stamp(self) -> Provenance:
        """Name the source of what this job has measured: "live · 4 ranks · gloo · CPU"."""
        parts = [ranks_count(self.nproc)]
        if self.nodes > 1:
            parts[0] += f" on {self.nodes} nodes"
        if self.backend:
            parts.append(self.backend)
        parts.append(self.device or ("GPU" if self.backend == "nccl" else "CPU"))
        if self.engine != "warm":
            parts.append(f"started by {self.engine}")
        return Provenance("live", " · ".join(parts))

    def summary(self) -> str:
        """One line: how many ranks, on what, how it ended. The same in every run."""
        return f"{self.stamp} · {self.state}"
