"""One small interface: ranks of one host, as whoever judges them sees them."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Protocol, Self

import msgspec

from ...calls.record import Reader
from ..logs import Logs
from ..outcome import Plan
from ..payload import Parcel
from ..place import Place
from ..replies import Done, Reply


def levels() -> dict[str, str]:
    """Return what has to be the same on all hosts of a job, as it is on this one."""
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
    """The surroundings in which ranks come up. environment: added to that of their host."""

    environment: Mapping[str, str]
    directory: str
    path: Sequence[str]  # of modules
    logs: Logs | None = None  # which of their streams go into files
    log_folder: Path | None = None


class Printed(Protocol):
    """Takes a rank's output."""

    def feed(self, data: bytes) -> None: ...


State = Literal["coming", "ready", "running", "done", "failed", "dead"]


class RankReport(msgspec.Struct, eq=False):
    """All that is known of a rank, but its record and its result.

    state: "ready" is one in reserve. reply: what it said of its job; sizes: of the parts of its
    result. ended: when it answered or died, in seconds on the clock of its calls. code: how its
    process ended. peak: bytes of memory, where known. stack: as faulthandler wrote it. starved:
    what there was of memory, where the kernel ended it for that. is_stopped: by SIGSTOP or a
    debugger, when it was looked at.
    """

    rank: int
    state: State = "coming"
    reply: Reply | None = None
    sizes: list[int] = msgspec.field(default_factory=list)
    ended: float | None = None
    code: int | None = None
    peak: int = 0
    stack: str = ""
    starved: str = ""
    is_stopped: bool = False


class RankState(RankReport, kw_only=True, eq=False):
    """One rank as its node knows it; whoever judges ranks reads this and writes nothing."""

    reader: Reader
    parcel: Parcel | None = None

    @classmethod
    def empty(cls, rank: int) -> Self:
        return cls(rank=rank, reader=Reader.empty(rank))

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "dead")

    @property
    def result(self) -> Done:
        """Return its reply of a job that it has done."""
        assert isinstance(self.reply, Done)
        return self.reply

    def come_up(self) -> None:
        """Note that its process has started, or another one after it has failed."""
        self.state, self.reply, self.ended, self.code = "coming", None, None, None

    def begin(self, state: State = "coming") -> None:
        """Forget the job before: another begins."""
        self.state, self.ended, self.peak = state, None, 0
        self.forget_job()

    def answer(self, reply: Reply, parcel: Parcel | None = None) -> None:
        """Note what it says of its job."""
        self.state = "done" if reply.ok else "failed"
        self.reply, self.ended, self.parcel = reply, reply.at, parcel
        self.sizes = reply.sizes if isinstance(reply, Done) else []
        self.peak = reply.peak if isinstance(reply, Done) else 0

    def die(self, at: float) -> None:
        """Note that it has ended without a word."""
        self.state, self.reply, self.ended = "dead", None, at

    def exit(self, code: int, peak: int) -> None:
        """Note how its process has ended, which may come after its answer."""
        self.code, self.peak = code, peak

    def forget_job(self) -> None:
        """Let go of what its job gave."""
        self.reply, self.parcel = None, None

    def report(self) -> dict[str, Any]:
        """Return its `RankReport` as plain values, for a notebook on another host."""
        known = {name: getattr(self, name) for name in RankReport.__struct_fields__}
        return {name: msgspec.to_builtins(value) for name, value in known.items()}

    def update(self, report: dict[str, Any], result: Any, ahead: float) -> None:
        """Take what `report` has returned on another host.

        result: the memory of its result, None for none. ahead: of that host's clock, in seconds.
        Raises ValueError (msgspec.ValidationError) for what no agent would say.
        """
        news = msgspec.convert(report, RankReport)
        if news.ended is not None:
            news.ended -= ahead
        if news.reply is not None:
            news.reply.at -= ahead
        if result is not None:
            self.parcel = Parcel(result, news.sizes)
        for name in RankReport.__struct_fields__:
            setattr(self, name, getattr(news, name))


class Hosts:
    """Hosts that are there for ranks, or can be had."""

    count: int
    are_here: ClassVar[bool] = False  # this host alone
    each_has: ClassVar[str]  # whose GPUs `count_gpus` counts: "this machine has"
    no_gpu: ClassVar[str] = "no GPU that PyTorch can use"
    if_interrupted: ClassVar[str] = "Interrupted before it started."  # while it waits for them

    @property
    def is_lost(self) -> bool:
        """True where they can run no ranks any more."""
        return False

    def count_gpus(self) -> int:
        """Return how many GPUs each has, at least. Raises LaunchError where nobody can know."""
        raise NotImplementedError

    def count_cores(self) -> int:
        """Return the same of cores."""
        raise NotImplementedError

    def allocate(self, ranks_per_node: int = 1) -> Hosts:
        """Return hosts that are there until they are closed; these, if they are there already."""
        return self

    @contextmanager
    def lease(self, ranks_per_node: int, show: bool) -> Iterator[Hosts]:
        """Have hosts for one job. show: tell the learner what is waited for."""
        yield self

    def where(self, each: Sequence[int]) -> str:
        """Say which ranks are where, for the learner; mostly empty. each: ranks of each host."""
        return ""

    def take(self, plan: Plan, setting: Setting) -> Sequence[Node]:
        """Return the nodes of hosts that are there, for one set of ranks, until that is ended.

        Raises LaunchError where they are lost or busy, or have fewer GPUs than ranks need.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give them back."""


class Node(Protocol):
    """The ranks of one host. All it hears comes in through the selector, in the caller's thread."""

    restarts: bool  # whether ranks that fail may come back by themselves
    has_given_up: bool  # nobody brings them up again
    note: str  # on how they came up, for the learner; mostly empty
    notes: list[str]  # on the job that runs

    @property
    def ranks(self) -> Sequence[RankState]:
        """Its ranks, once it has started them."""

    @property
    def name(self) -> str:
        """The host's name; "" for this one."""

    @property
    def why_ended(self) -> str:
        """Says what became of the process that watches over the ranks; "" while it lives."""

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

    def refresh(self) -> None:
        """Find out what each rank does now: output, records, stacks."""

    def processor_time(self) -> tuple[int, ...] | None:
        """Return what its unfinished ranks have used, in clock ticks; None while one runs."""

    def others_live(self) -> bool:
        """Return whether processes of the job live that the ranks have started."""

    def forget_task(self) -> None:
        """Let go of what the last task gave."""

    def ask_to_leave(self) -> None:
        """Begin what `leave` waits for: ranks may wait for those of another node to leave."""

    def leave(self) -> None:
        """Have ranks that have done their jobs leave as Python does, for a few seconds."""

    def detach(self) -> None:
        """End ranks that have done their last job; the next job waits for that."""

    def ask_to_end(self, gracefully: bool) -> None:
        """Begin what `end` waits for."""

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        """End its ranks and whatever they started, in bounded time.

        gracefully: who handles SIGTERM may end by itself before. meanwhile: called now and then.
        Returns a sentence for each process that could not be ended, and for what was lost.
        """
