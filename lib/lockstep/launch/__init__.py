"""Ranks from a notebook cell: started in milliseconds, watched, explained, and gone."""

from .engines import LaunchError
from .job import Job, JobFailed, JobInterrupted, ResultNotSent
from .payload import CannotSend
from .run import World, torchrun

__all__ = [
    "CannotSend",
    "Job",
    "JobFailed",
    "JobInterrupted",
    "LaunchError",
    "ResultNotSent",
    "World",
    "torchrun",
]
