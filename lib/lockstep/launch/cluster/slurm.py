"""Ranks on the nodes of a Slurm cluster: a job that starts an agent on each, and watches nothing.

The agents dial in at this process (`Nodes`), which learns from them what ranks do. Slurm is asked
only how long the job waits, and why an agent is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, ClassVar

from ...base.formatting import printable, ranks_text
from ..errors import LaunchError
from ..live import Notice
from ..nodes.base import Hosts
from ..nodes.remote import Nodes
from . import queue

_EVERY = 1.0  # seconds between two questions to the controller
_SETTLES = 5.0  # seconds for Slurm to notice that a job has ended
_COMING = 120.0  # seconds for the agents to dial in once the job runs: they import PyTorch
_MOST_LINES = 12  # of what the job itself has printed
_MOST_ADDRESSES = 20


@dataclass(frozen=True, kw_only=True)
class Slurm(Hosts):
    """Nodes of a Slurm cluster, for `torchrun(..., on=Slurm(...))` and `World(on=Slurm(...))`.

    A job is submitted that runs an agent on each node, as many ranks as are asked for below each;
    it ends with the ranks, the world or this process. The nodes need what this process has at the
    same places: home folder, Python environment, working directory.

    nodes: how many. partition, account, qos, memory (of each node): as sbatch takes them; "" for
    the cluster's own choice. time: the limit, in minutes or as "2:00:00". gpus_per_node,
    cpus_per_node: 0 cores for one for each rank. setup: lines of a shell that come first, such as
    "module load cuda". options: more of sbatch's, such as ["--constraint=h200"]. patience: seconds
    to wait in the queue; None for as long as it takes. address: of this host, as the nodes reach
    it; "" finds it.
    Raises LaunchError for values that make no sense.
    """

    nodes: int = 2
    partition: str = ""
    time: int | str = ""
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    memory: str = ""
    account: str = ""
    qos: str = ""
    setup: str = ""
    options: tuple[str, ...] = ()
    patience: float | None = None
    address: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(self.options))
        if self.nodes < 1:
            raise LaunchError(f"the number of nodes must be 1 or more, not {self.nodes}")

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.nodes

    each_has: ClassVar[str] = "by gpus_per_node= each node has"
    no_gpu: ClassVar[str] = "no GPU, as none is asked for"
    if_interrupted: ClassVar[str] = (
        "Interrupted before Slurm had started it; nothing of it is left in the queue."
    )

    def count_gpus(self) -> int:
        return self.gpus_per_node

    def count_cores(self) -> int:
        if not self.cpus_per_node:
            raise LaunchError(
                "nproc_per_node='cpu' means one rank for each core: set cpus_per_node, too"
            )
        return self.cpus_per_node

    def allocate(self, ranks_per_node: int = 1, *, show: bool = True) -> Allocation:
        """Submit a job, wait until its agents are here, and keep it until `close()`.

        Raises LaunchError where Slurm takes no such job, or it ends before.
        """
        return self._ready(Allocation(self, ranks_per_node), show)

    @staticmethod
    def _ready(allocation: Allocation, show: bool) -> Allocation:
        try:
            allocation.wait_in_queue(show)
        except BaseException:
            allocation.cancel()
            raise
        return allocation

    @contextlib.contextmanager
    def lease(self, ranks_per_node: int, show: bool) -> Iterator[Allocation]:
        """An allocation for one job of ours; what goes wrong with that cancels it."""
        allocation = self.allocate(ranks_per_node, show=show)
        try:
            yield allocation
        except BaseException:
            allocation.cancel()
            raise
        finally:
            allocation.close()

    @contextlib.contextmanager
    def program(self, words: Sequence[str], cores: int = 4) -> Iterator[IO[str]]:
        """Run a program on the first of the nodes, in a job of its own that has them all, so that
        it finds them by `lockstep.cluster()`; yields what it prints while it runs.

        cores: where the cluster's `cpus_per_node` says no number. What the program complains of,
        and what Slurm says of the job, goes where errors of this process go.
        Raises LaunchError where there is no Slurm, and at the end where it did not end with 0.
        """
        name = f"lockstep-{secrets.token_hex(8)}"
        cores = self.cpus_per_node or cores
        job = ["salloc", f"--job-name={name}", *self._wishes(cores)]
        step = ["srun", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}", "--cpu-bind=none"]
        shell = f"{self.setup}\nexec {shlex.join(words)}"
        guard = queue.guard(name)
        try:
            with queue.start([*job, *step, "sh", "-c", shell]) as process:
                try:
                    assert process.stdout is not None
                    guard.write(b"submitted\n")
                    guard.flush()
                    yield process.stdout
                except BaseException:
                    process.terminate()  # salloc ends its job
                    raise
        finally:
            guard.close()
        if process.returncode:
            seen = queue.ended_job_status(name)
            why = f": {seen}" if seen.is_over else ""
            if seen.state == "OUT_OF_MEMORY" and not self.memory:
                why += ". The cluster's default was too little: set memory=…"
            raise LaunchError(f"the job on the cluster ended with {process.returncode}{why}")

    def _wishes(self, ranks_per_node: int) -> list[str]:
        """Return what is asked for as options of sbatch."""
        said = {
            "partition": self.partition,
            "time": self.time,
            "gpus-per-node": self.gpus_per_node,
            "mem": self.memory,
            "account": self.account,
            "qos": self.qos,
            "cpus-per-task": self.cpus_per_node or ranks_per_node,
        }
        wishes = [f"--{name}={value}" for name, value in said.items() if value]
        return [f"--nodes={self.nodes}", "--ntasks-per-node=1", *wishes, *self.options]


class Allocation(Nodes):
    """Nodes that a Slurm job has, with an agent on each. Use as `Nodes`; close it when done."""

    _renewal = "Call allocate() to ask Slurm for another job."

    def __init__(self, asked: Slurm, ranks_per_node: int):
        super().__init__(asked.nodes, address=asked.address or _own_address(asked.partition))
        self._asked = asked
        self._name = f"lockstep-{secrets.token_hex(8)}"
        self._printed = self._path.with_suffix(".log")  # only we can open its folder
        self._seen = queue.JobStatus("PENDING", "None")
        self._over: queue.JobStatus | None = None
        self.job = ""
        self.waited = 0.0  # seconds in the queue
        self._guard: IO[bytes] | None = None
        try:
            self.job = self._submit(ranks_per_node)
        except BaseException:
            self.cancel()
            raise

    def _submit(self, ranks_per_node: int) -> str:
        """Have an agent started on each node; returns the job's number."""
        asked = self._asked
        self._guard = queue.guard(self._name)
        cores = asked.cpus_per_node or ranks_per_node
        start = f"srun --ntasks-per-node=1 --cpus-per-task={cores} --kill-on-bad-exit=0"
        script = f"#!/bin/bash\n{asked.setup}\nexec {start} {shlex.join(self._words)}\n"
        options = [
            f"--job-name={self._name}",
            f"--output={self._printed}",
            "--export=ALL",
            "--no-requeue",  # the notebook has told its story by then
            *asked._wishes(ranks_per_node),
        ]
        try:
            job = queue.submit(options, script)
        except LaunchError:
            self._tell_guard("refused")
            raise
        self._tell_guard("submitted")
        return job

    def _tell_guard(self, what: str) -> None:
        if self._guard is not None:
            with contextlib.suppress(OSError):  # somebody has ended it
                self._guard.write(f"{what}\n".encode())
                self._guard.flush()

    @property
    def _words(self) -> list[str]:
        """The agent's command."""
        return [sys.executable, "-m", "lockstep", "agent", str(self._path)]

    def wait_in_queue(self, show: bool = True) -> None:
        """Wait until the job runs and all its agents are here; say how it waits.

        Raises LaunchError where it ends before, or has waited for longer than asked.
        """
        began = time.monotonic()
        runs_since: float | None = None
        asked_at = began - _EVERY
        notice = Notice(show)
        while len(self._hosts) < self.count:
            now = time.monotonic()
            if now - asked_at >= _EVERY:
                asked_at, self._seen = now, queue.job_status(self.job)
            seen = self._seen
            if ended := self._has_ended():
                raise LaunchError(
                    f"{self._called} ended before its agents were here: {ended}.{self._tail()}"
                )
            if seen.state == "RUNNING" and runs_since is None:
                runs_since, self.waited = now, now - began
            notice.say(self._status(seen, now - began))
            patience = self._asked.patience
            if patience is not None and runs_since is None and now - began > patience:
                raise LaunchError(f"{self._called} did not start within {patience:g} s: {seen}")
            if runs_since is not None and now - runs_since > _COMING:
                raise LaunchError(
                    f"{len(self._hosts)} of {self.count} agents have connected to "
                    f"{self.address} within {_COMING:g} s. Can the nodes reach it? "
                    f"Slurm(address=…) sets another.{self._tail()}"
                )
            if self.admit(_EVERY / 5) and runs_since is None:
                runs_since, self.waited = now, now - began
        self.settle()
        notice.say(f"{self._called} waited {self.waited:.0f} s and runs on {', '.join(self.names)}")

    def _has_ended(self) -> str:
        """Return what has ended it before its agents were here; "" where nothing has."""
        return str(self._seen) if self._seen.is_over else ""

    def _status(self, seen: queue.JobStatus, seconds: float) -> str:
        if seen.state == "RUNNING":
            return f"{self._called}: {len(self._hosts)} of {self.count} agents are here"
        return f"{self._called} {seen} · {seconds:.0f} s"

    @property
    def _called(self) -> str:
        return f"Slurm's job {self.job}"

    def where(self, each: Sequence[int]) -> str:
        ends = list(itertools.accumulate(each))
        places = [
            f"{ranks_text(range(end - count, end))} on {name}"
            for end, count, name in zip(ends, each, self.names, strict=True)
        ]
        return f"{self._called}: {', '.join(places)}"

    @property
    def is_lost(self) -> bool:
        return self._over is not None or super().is_lost

    def why_lost(self) -> str:
        """Say what Slurm knows of it, asked for a moment: an agent goes before its job."""
        until = time.monotonic() + _SETTLES
        while self._over is None:
            seen = queue.job_status(self.job)
            if seen.is_over:
                self._over = seen
            elif not seen.state:
                return f" {seen}."
            elif time.monotonic() > until:
                return f" Slurm counts job {self.job} as {seen.state}.{self._tail()}"
            else:
                time.sleep(0.2)
        return f" {self._called}: {self._over}.{self._tail()}"

    def _tail(self) -> str:
        """Return what the job itself has printed at last, but for what agents say of themselves."""
        try:
            lines = self._printed.read_text(errors="replace").splitlines()
        except OSError:
            folder = self._printed.parent
            return (
                f" None of its output has arrived here: is {folder} on a file system that the "
                "nodes share?"
            )
        own = ("the agent on ", "the notebook has let go")
        said = [printable(line) for line in lines if line.strip() and not line.startswith(own)]
        return "".join(f"\n    {line}" for line in said[-_MOST_LINES:])

    def cancel(self) -> None:
        """End the job now, in the queue, too."""
        with contextlib.suppress(LaunchError):
            queue.cancel(self._name)
        self.close()

    def close(self) -> None:
        """Let go of the agents; with them the job ends."""
        super().close()
        if self._guard is not None:
            self._guard.close()


def _own_address(partition: str) -> str:
    """Return the address at which the cluster's nodes reach this host, as the routes to them say.

    Of several hosts that are asked, one is mostly not this one.
    """
    where = [f"--partition={partition}"] if partition else []
    found = ""
    for host in queue.addresses(*where)[:_MOST_ADDRESSES]:
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), datagrams as probe:
            probe.connect((host, 9))  # which sends nothing
            found = str(probe.getsockname()[0])
            if not found.startswith("127."):
                break
    return found or "127.0.0.1"
