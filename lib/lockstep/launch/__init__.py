"""Ranks from a notebook cell: started in milliseconds, watched, explained, and gone."""

from .cluster.allocation import cluster
from .cluster.slurm import Slurm
from .errors import CannotSend, LaunchError, RankError, ResultNotSent
from .job import Job, JobFailed, JobInterrupted
from .logs import Logs
from .nodes.remote import Nodes
from .reserve import reserve
from .run import World, gpu_count, torchrun

__all__ = [
    "CannotSend",
    "Job",
    "JobFailed",
    "JobInterrupted",
    "LaunchError",
    "Logs",
    "Nodes",
    "RankError",
    "ResultNotSent",
    "Slurm",
    "World",
    "cluster",
    "gpu_count",
    "reserve",
    "torchrun",
]
