"""Asks Slurm to take a job, what has become of it, and to end it.

By Slurm's own commands, whose words are passed on. submitit would send a pickled function and read
its state from `sacct`, which a cluster without accounting does not have; here a job only starts
agents, and `scontrol` knows it everywhere.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ...base.formatting import counted, printable
from ..errors import LaunchError

_PATIENCE = 30.0  # seconds for an answer of the controller
_ENDED = {
    "BOOT_FAIL": "a node did not come up",
    "CANCELLED": "it was cancelled (scancel)",
    "COMPLETED": "it has ended",
    "DEADLINE": "its deadline has passed",
    "FAILED": "it has failed",
    "NODE_FAIL": "a node of it has failed",
    "OUT_OF_MEMORY": "it used more memory than it was allowed",
    "PREEMPTED": "it was preempted by a job of higher priority",
    "TIMEOUT": "it reached its time limit",
}
# https://slurm.schedmd.com/job_reason_codes.html
_WAITS = {
    "None": "the scheduler has not considered it yet",
    "Priority": "jobs of higher priority come first",
    "Resources": "the resources that it asks for are not free",
    "PartitionConfig": "it asks for something that the partition does not allow",
    "PartitionTimeLimit": "it asks for more time than the partition allows: ask for less",
    "PartitionNodeLimit": "it asks for more nodes than the partition has, or some are down",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
}


@dataclass(frozen=True)
class JobStatus:
    """A job as Slurm describes it. state: its word for it; "" where the controller does not answer
    (reason has its words), "GONE" for a job that it does not know any more."""

    state: str
    reason: str = ""
    nodes: str = ""

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING")

    @property
    def is_over(self) -> bool:
        return self.state == "GONE" or self.state in _ENDED

    def __str__(self) -> str:
        if not self.state:
            return f"Slurm's controller does not answer: {self.reason}"
        if self.state == "GONE":
            return "Slurm no longer knows it"
        if self.state == "CONFIGURING":
            return "its nodes are being prepared"
        if self.waits:
            why = _WAITS.get(self.reason)
            return f"waits: {why} ({self.reason})" if why else f"waits: {self.reason}"
        return f"{_ENDED.get(self.state, 'it is there')} ({self.state})"


def submit(options: Sequence[str], script: str) -> str:
    """Put a script in the queue; returns the job's number.

    Raises LaunchError with Slurm's words where it takes no such job.
    """
    command = ["sbatch", "--parsable", *options]
    done = _call(command, script, _own())
    if done.returncode:
        said = _words(done.stderr)
        asked = " ".join(options)
        if "partition" in said:
            said += _there_are(_there("%R"))
        elif "gpus" in asked or "--gres" in asked:  # of which it says only "node configuration"
            of_nodes = Counter(
                dict(line.split(maxsplit=1) for line in _there("%N %G", "--Node")).values()
            )
            del of_nodes["(null)"]
            said += _there_are(f"{gpus} on {counted(n, 'node')}" for gpus, n in of_nodes.items())
        raise LaunchError(f"Slurm rejected the job: {said}\n({shlex.join(command)})")
    number, _, _ = done.stdout.strip().partition(";")  # behind it a cluster's name, of several
    return number


def _there(what: str, *options: str) -> list[str]:
    """Return what `sinfo` writes, by line."""
    found = _call(["sinfo", "--noheader", f"--format={what}", *options]).stdout
    return [printable(line) for line in found.splitlines()]


def _there_are(names: Iterable[str]) -> str:
    return f". There are: {', '.join(sorted(set(names))) or 'none'}"


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a command of Slurm's that stays; it has its own output to be read, and our errors.

    Raises LaunchError where there is no Slurm.
    """
    _require(command[0])
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_own(), text=True
    )


def _own() -> dict[str, str]:
    """The environment without the variables of a job that we are in, which would be options of the
    new one's."""
    return {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith("SLURM_")}


def job_status(job: str) -> JobStatus:
    """Ask Slurm for a job, by its number."""
    done = _call(["scontrol", "show", "job", "--oneliner", job])
    if done.returncode:
        said = _words(done.stderr)
        return JobStatus("GONE") if "Invalid job id" in said else JobStatus("", said)
    found = dict(re.findall(r"(?<!\S)(\w+)=(\S*)", done.stdout))
    nodes = found.get("NodeList", "").replace("(null)", "")
    return JobStatus(found.get("JobState", ""), found.get("Reason", ""), printable(nodes))


def ended_job_status(name: str) -> JobStatus:
    """Return the same of a job that has ended a moment ago, by its name."""
    jobs = _call(["squeue", "--noheader", "--states=all", "--name", name, "--format=%A"])
    return job_status(found[-1]) if (found := jobs.stdout.split()) else JobStatus("GONE")


def cancel(name: str) -> str:
    """End the jobs of this name; returns what Slurm says against it, mostly ""."""
    done = _call(["scancel", "--name", name])
    return _words(done.stderr) if done.returncode else ""


def addresses(*options: str) -> list[str]:
    """Return the addresses of the cluster's nodes, as Slurm reaches them."""
    return list(dict.fromkeys(_call(["sinfo", "-h", "-N", "-o", "%o", *options]).stdout.split()))


# In the background of a shell that ends at once, so that it is nobody's child here. What a shell
# puts there has no standard input, so it gets it by another number.
_GUARD = """
exec 3<&0
{{
    read -r answered; cat > /dev/null
    for second in 1 2 3 4 5 6 7 8; do
        timeout 20 scancel --state=PENDING --name {name}
        left=$(timeout 20 squeue --noheader --name {name}) &&
            [ -z "$left" ] && [ -n "$answered" ] && exit
        sleep 0.3; [ $second = 1 ] || sleep 1
    done
    timeout 20 scancel --name {name}
}} <&3 3<&- &
"""


def guard(name: str) -> IO[bytes]:
    """Start a process that ends the jobs of this name when what is returned here closes, and so
    when this process is gone, however that ended. A job that runs has a moment to end by itself.

    Write a line when Slurm has taken or refused the job; before that, it may come a moment later.
    """
    process = subprocess.Popen(
        ["sh", "-c", _GUARD.format(name=name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the notebook
    )
    assert process.stdin is not None
    process.wait()
    return process.stdin


def _call(
    command: Sequence[str], given: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    _require(command[0])
    try:
        return subprocess.run(
            command,
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired as late:
        heard = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else ""
        said = f"no answer within {_PATIENCE:g} s\n{heard}"
        return subprocess.CompletedProcess(command, 1, "", said)


def _require(command: str) -> None:
    if shutil.which(command) is None:
        raise LaunchError(
            f"there is no Slurm here: the command {command} is missing. Start Jupyter on a "
            "login node of the cluster, or in a job"
        )


def _words(said: str) -> str:
    """Return what a command of Slurm complains of, in one line."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in said.splitlines()]
    return "; ".join(dict.fromkeys(printable(line).strip() for line in lines if line.strip()))
