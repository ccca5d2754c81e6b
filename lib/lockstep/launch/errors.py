"""What the launcher raises. In a notebook each shows its message alone: our frames say nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Job


class _ShownPlainly(BaseException):
    """IPython shows what `_render_traceback_` returns instead of the frames."""

    def _render_traceback_(self) -> list[str]:
        return [type(self).__name__, *str(self).splitlines()]


class LaunchError(_ShownPlainly, ValueError):
    """What was asked for cannot be started here; the message says why and what to do."""


class CannotSend(_ShownPlainly, TypeError):
    """A value that cannot leave its process; the message names it and says why."""


class ResultNotSent(_ShownPlainly, RuntimeError):
    """A rank's value could not leave its process; the message says which and why."""


class RankError(_ShownPlainly, RuntimeError):
    """What a rank raised, as text: the exception itself stays in the rank's process.

    rank; type_name: the name of the exception's class, such as "ZeroDivisionError".
    """

    def __init__(self, rank: int, type_name: str, text: str):
        super().__init__(text)
        self.rank, self.type_name = rank, type_name


class JobFailed(_ShownPlainly, RuntimeError):
    """A job that failed; `job` has everything that is known, the message is the report.

    `__cause__` is a RankError where an exception in a rank was the cause.
    """

    def __init__(self, job: Job):
        super().__init__(job.report)
        self.job = job


class JobInterrupted(_ShownPlainly, KeyboardInterrupt):
    """The learner pressed ■ (or Ctrl-C) while ranks ran; they are gone. `job` as in JobFailed."""

    def __init__(self, job: Job):
        super().__init__(job.report)
        self.job = job
