"""A job as its user has it: all that is known of it, and its drawing."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from . import view
from .errors import ResultNotSent, ShownPlainly
from .live import is_drawn
from .outcome import JobData, Outcome, Plan


class Job(JobData):
    """One run of N ranks: what was asked for and how it went. It draws itself in a notebook."""

    @classmethod
    def from_outcome(cls, plan: Plan, outcome: Outcome) -> Job:
        return cls(**vars(plan), **vars(outcome))

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

    def __str__(self) -> str:
        return view.text(self)

    def __repr__(self) -> str:
        return f"<Job: {self.summary()}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        if is_drawn(self):  # `torchrun(f)` as the last line of a cell: once is enough
            return {"text/plain": repr(self)}
        return {"text/plain": view.text(self), "text/html": view.html(self)}


class JobFailed(ShownPlainly, RuntimeError):
    """Raised when a job failed: `job` has everything that is known, the message is the report.

    `__cause__` is a RankError where an exception in a rank was the cause.
    """

    def __init__(self, job: Job):
        super().__init__(job.report)
        self.job = job


class JobInterrupted(ShownPlainly, KeyboardInterrupt):
    """Raised when ■ (or Ctrl-C) has ended the ranks of a job; `job` is as in JobFailed."""

    def __init__(self, job: Job):
        super().__init__(job.report)
        self.job = job
