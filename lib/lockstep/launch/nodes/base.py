"""One small interface: ranks of one host, as whoever judges them sees them."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from ...calls.record import Reader
from ..logs import Logs
from ..payload import Parcel
from ..place import Place


def levels() -> dict[str, str]:
    """What has to be the same on all hosts of a job, as it is on this one."""
    found = {"Python": ".".join(map(str, sys.version_info[:2]))}
    for name in ("lockstep", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "of no known version"
    return found


@dataclass
class Task:
    """One job for a set of ranks: its packed content and how the ranks are to treat it.

    Use as a context manager, which lets go of the content.
    """

    content: BinaryIO
    sizes: list[int]  # of its parts
    backend: str | None  # of the default group that the ranks make first; None: they make none
    may_leave: bool = False  # a script may end its process by itself
    last: bool = True  # no other job will come, so the ranks leave when they have done it
    number: int = 1  # of the job among those of these ranks

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *_: object) -> None:
        self.content.close()


@dataclass(frozen=True)
class Setting:
    """What ranks find when they come up. The environment is added to that of their host."""

    environment: Mapping[str, str]
    directory: str
    path: Sequence[str]  # of modules
    logs: Logs | None = None  # which of their streams go into files
    log_folder: Path | None = None


class Printed(Protocol):
    """Where a rank's output goes."""

    def feed(self, data: bytes) -> None: ...


@dataclass
class RankState:
    """One rank as its node knows it; whoever judges ranks reads this and writes nothing.

    state: "coming", "ready" (one in reserve), "running", "done", "failed", "dead". reply: what it
    said of its job. code: how its process ended. peak: bytes of memory, where known. stack: as
    faulthandler wrote it. starved: what there was of memory, where the kernel ended it for that.
    is_stopped: by SIGSTOP or a debugger, when it was looked at.
    """

    rank: int
    reader: Reader
    state: str = "coming"
    reply: dict[str, Any] = field(default_factory=dict)
    parcel: Parcel | None = None
    code: int | None = None
    peak: int = 0
    stack: str = ""
    starved: str = ""
    is_stopped: bool = False

    @classmethod
    def empty(cls, rank: int) -> Self:
        return cls(rank, Reader.empty(rank))

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "dead")


class Node(Protocol):
    """The ranks of one host. All it hears comes in through the selector, in the caller's thread."""

    ranks: list[RankState]
    restarts: bool  # whether ranks that fail may come back by themselves
    has_given_up: bool  # nobody brings them up again
    note: str  # on how they came up, for the learner; mostly empty
    notes: list[str]  # on the job that runs

    @property
    def name(self) -> str:
        """Of the host; "" for this one."""

    @property
    def fate(self) -> str:
        """What became of the process that watches over the ranks; "" while it lives."""

    def start(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> Place:
        """Start its ranks; returns the place with the master that was found.

        Registers in `selector` what it waits for, with a function to call when that is readable.
        Raises LaunchError, or OSError, where nothing can be started.
        """

    def begin(self, task: Task, outputs: Mapping[int, Printed]) -> None:
        """Give each of its ranks a task, and those that come up later."""

    def poll(self) -> None:
        """Read what no selector tells of."""

    def drain(self) -> None:
        """Read all that its ranks have printed so far."""

    def look(self) -> None:
        """Find out what each rank does now: output, records, stacks."""

    def processor_time(self) -> tuple[int, ...] | None:
        """What its unfinished ranks have used, in clock ticks; None while one of them runs."""

    def others_live(self) -> bool:
        """Whether processes of the job live that are no ranks: what these have started."""

    def forget_task(self) -> None:
        """Let go of what the last task gave."""

    def ask_to_leave(self) -> None:
        """Begin what `leave` waits for: ranks may wait for those of another node to leave."""

    def leave(self) -> None:
        """Have ranks that have done their jobs leave as Python does, for a few seconds."""

    def ask_to_end(self, gracefully: bool) -> None:
        """Begin what `end` waits for."""

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        """End its ranks and whatever they started, in bounded time.

        gracefully: who handles SIGTERM may end by itself before. meanwhile: called now and then.
        Returns a sentence for each process that could not be ended, and for what was lost.
        """
