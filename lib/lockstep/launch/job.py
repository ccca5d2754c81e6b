"""What a job was and what became of it."""

from __future__ import annotations

import tempfile
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..stamps import Stamp
from ..words import ranks_count
from . import view
from .calls import Call, Reader
from .errors import JobFailed, RankError, ResultNotSent
from .explain.report import Failure, format_failures
from .live import is_drawn
from .output import Output
from .payload import Parcel


@dataclass
class Job:
    """One run of N ranks.

    nproc: how many ranks. backend: of the default process group, None where the job made its own.
    device: what the ranks computed on. engine: what started them. seconds: from the start to the
    last rank's answer. verdict: a sentence on what went wrong between the ranks, or "".
    """

    nproc: int
    backend: str | None
    engine: str = "warm"
    device: str = ""
    seconds: float = 0.0
    note: str = ""
    state: str = "running"  # then "ok", "failed" or "interrupted"
    verdict: str = ""
    failures: list[Failure] = field(default_factory=list)
    peak_memory: dict[int, int] = field(default_factory=dict)  # bytes, by rank, where known
    began: float = 0.0
    cell: str = ""
    outputs: list[Output] = field(default_factory=list, repr=False)
    shown: list[str | None] = field(default_factory=list, repr=False)
    readers: list[Reader] = field(default_factory=list, repr=False)
    parcels: list[Parcel | None] = field(default_factory=list, repr=False)
    unsent: dict[int, str] = field(default_factory=dict, repr=False)
    bound: list[str] = field(default_factory=list, repr=False)  # by cells, in a kept rank
    profiles: Path | None = None  # the folder with one profile a rank, where one was asked for
    logs: Path | None = None  # the folder with stdout and stderr, where they were asked for
    hidden: Set[int] = frozenset()  # ranks whose output and results are not shown
    _folders: list[Any] = field(default_factory=list, repr=False)  # temporary: go with the job

    @property
    def ok(self) -> bool:
        """Whether every rank finished without an error."""
        return self.state == "ok"

    @cached_property
    def results(self) -> list[Any]:
        """One value a rank: what the function returned, or the cell's last expression.

        Tensors are on the CPU. Raises ResultNotSent where a value could not leave its rank, and
        JobFailed where the job has failed.
        """
        if not self.ok:
            raise JobFailed(self)
        if self.unsent:
            rank, why = next(iter(self.unsent.items()))
            raise ResultNotSent(f"the result of rank {rank} is {why}")
        return [None if parcel is None else parcel.open() for parcel in self.parcels]

    def __getitem__(self, rank: int) -> Any:
        return self.results[rank]

    def __len__(self) -> int:
        return self.nproc

    def output(self, rank: int) -> str:
        """What this rank printed, to stdout and stderr, in order."""
        return self.outputs[rank].text

    @cached_property
    def calls(self) -> list[list[Call]]:
        """For each rank, the operations on process groups that it called, in order."""
        return [reader.calls() for reader in self.readers]

    @cached_property
    def setup(self) -> list[list[Call]]:
        """For each rank, the calls that made or ended groups, in order: `new_group([0, 1])`."""
        return [reader.setup() for reader in self.readers]

    def add_note(self, note: str) -> None:
        self.note = "; ".join(part for part in (self.note, note) if part)

    def temporary_folder(self) -> Path:
        """A new folder that goes with the job."""
        self._folders.append(tempfile.TemporaryDirectory(prefix="lockstep-"))
        return Path(self._folders[-1].name)

    @property
    def cause(self) -> RankError | None:
        """What the first rank raised, where that is why the job failed."""
        first = self.failures[0] if self.failures else None  # the cause comes first
        if first is None or not first.type_name:
            return None
        return RankError(first.rank, first.type_name, first.message)

    @property
    def report(self) -> str:
        """What went wrong, for people; "" where nothing did."""
        return format_failures(self.failures, self.verdict, self.cell)

    @property
    def stamp(self) -> Stamp:
        """Where what was measured in this job comes from: "live · 4 ranks · gloo · CPU"."""
        parts = [ranks_count(self.nproc)]
        if self.backend:
            parts.append(self.backend)
        parts.append(self.device or ("GPU" if self.backend == "nccl" else "CPU"))
        if self.engine != "warm":
            parts.append(f"started by {self.engine}")
        return Stamp("live", " · ".join(parts))

    def summary(self) -> str:
        """One line: how many ranks, on what, how it ended. The same in every run."""
        return f"{self.stamp} · {self.state}"

    def __str__(self) -> str:
        return view.text(self)

    def __repr__(self) -> str:
        return f"<Job: {self.summary()}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if is_drawn(self):  # `torchrun(f)` as the last line of a cell: once is enough
            return {"text/plain": repr(self)}
        return {"text/plain": view.text(self), "text/html": view.html(self)}
