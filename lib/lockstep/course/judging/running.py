"""Trials: an answer on ranks that know what they are given, and not what is right."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ...launch import Job, torchrun
from ...launch.calls import POINT_TO_POINT, Call
from ..exercises import NotJudged
from .values import Difference, alike, difference, make, see, tensors_in

_PATIENCE = 5.0  # seconds for one trial, which takes 0.1 s; a deadlock is found long before
_SLOW = 10  # an empty trial that takes this part of the patience: the machine is too busy

Play = Callable[..., Any]


@dataclass(frozen=True)
class Trial:
    """One call of an answer on `nproc` ranks; `nproc` 0: one call without any process group.

    given: for each rank, the arguments; tensors as `Tensor`. right: for each rank, what it must
    end up with. facts: what signs and sentences want to know besides, such as a chunk's length.
    init: False where the answer makes the process group. env: variables for the ranks.
    """

    nproc: int
    given: Sequence[tuple[Any, ...]]
    right: Sequence[Any]
    facts: dict[str, Any] = field(default_factory=dict)
    init: bool = True
    env: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__.get("facts", {}):
            raise AttributeError(f"a trial has no {name!r}")
        return self.facts[name]


@dataclass(frozen=True)
class Step:
    """One call of the answer on one rank, as plain data.

    returned: what it returned. before, after: the arguments, as the check itself holds them.
    passed: lists among them as the answer left them: it may have put other tensors into them.
    shared: the numbers of the arguments whose memory `returned` lies in. began, ended: seconds on
    the clock of the call record.
    """

    returned: Any
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    passed: tuple[Any, ...]
    shared: tuple[int, ...]
    began: float
    ended: float


@dataclass
class Run:
    """What became of a trial.

    record: for each rank, what the answer asked of process groups; where the ranks failed, what
    was asked at all. steps: for each rank, its calls of the answer; empty where the ranks failed.
    ends: what each rank ended up with, to be compared with what is right. failure: "", "raised",
    "died", "stuck" or "endless".
    """

    trial: Trial
    job: Job
    record: list[list[Call]]
    steps: list[list[Step]] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    failure: str = ""

    @property
    def nproc(self) -> int:
        return self.job.nproc

    @property
    def ranks(self) -> range:
        return range(self.nproc)

    def got(self, rank: int) -> Any:
        return self.ends[rank]

    def right(self, rank: int) -> Any:
        return self.trial.right[rank]

    def returned(self, rank: int) -> Any:
        return self.steps[rank][0].returned

    def difference(self, rank: int) -> Difference | None:
        """How what a rank ended up with differs from what is right."""
        return difference(self.got(rank), self.right(rank))

    @property
    def wrong(self) -> list[int]:
        """The ranks that ended up with something else than what is right."""
        return [rank for rank in self.ranks if self.difference(rank) is not None]

    def equals(self, rank: int, guess: Any) -> bool:
        """Whether a rank ended up with these numbers, in whatever holds them."""
        return alike(self.got(rank), guess)

    # ── The record ───────────────────────────────────────────────────────────────────────────

    def calls(self, rank: int) -> list[Call]:
        return self.record[rank]

    def setup(self, rank: int) -> list[Call]:
        """The calls by which the answer made or ended groups: `new_group([0, 1])`."""
        return (
            _within(self.job.setup[rank], self.steps[rank]) if self.steps else self.job.setup[rank]
        )

    def operations(self, rank: int) -> list[str]:
        return [call.operation for call in self.calls(rank)]

    def sends(self, rank: int) -> list[Call]:
        return [call for call in self.calls(rank) if call.operation == "send"]

    def receives(self, rank: int) -> list[Call]:
        return [call for call in self.calls(rank) if call.operation == "recv"]

    def collectives(self, rank: int) -> list[Call]:
        return [call for call in self.calls(rank) if call.operation not in POINT_TO_POINT]

    def sent_bytes(self, rank: int) -> int:
        return sum(call.bytes for call in self.sends(rank))

    def sent_to(self, rank: int) -> list[int]:
        return sorted({call.peer for call in self.sends(rank) if call.peer is not None})

    @property
    def all_calls(self) -> Iterator[Call]:
        return (call for calls in self.record for call in calls)


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


class Watched:
    """The answer, on a rank: calling it takes down what became of its arguments."""

    def __init__(self, answer: Callable[..., Any]):
        self._answer = answer
        self.steps: list[Step] = []

    def __call__(self, *args: Any) -> Any:
        held = tuple(list(one) if isinstance(one, list) else one for one in args)
        before, began = see(held), time.perf_counter()
        try:
            returned = self._answer(*args)
        except SystemExit as error:  # else the rank would seem to be done
            raise RuntimeError(f"the answer called sys.exit({error.code!r})") from error
        ended = time.perf_counter()
        homes = {_home(tensor) for tensor in tensors_in(returned) if tensor.numel()}
        shared = tuple(
            at for at, one in enumerate(held) if homes & {_home(t) for t in tensors_in(one)}
        )
        self.steps.append(Step(see(returned), before, see(held), see(args), shared, began, ended))
        return returned


def _home(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _call_once(answer: Watched, *args: Any) -> None:
    answer(*make(args))


def _on_rank(answer: Any, play: Play, given: Sequence[tuple[Any, ...]]) -> tuple[list[Step], Any]:
    """What was seen of the answer on this rank, and what the play says it ended up with."""
    watched = Watched(answer)
    end = play(watched, *given[int(os.environ["RANK"])])
    return watched.steps, see(end)


def _in_turn(
    answer: Any, play: Play, given: Sequence[Sequence[tuple[Any, ...]]]
) -> list[tuple[list[Step], Any]]:
    """Several trials on this rank."""
    return [_on_rank(answer, play, one) for one in given]


def _do_nothing(answer: Watched) -> None: ...


# ── In the notebook ──────────────────────────────────────────────────────────────────────────


def runs(answer: Any, play: Play | None, trials: Iterable[Trial]) -> Iterator[Run]:
    """Run trials; ends with one that fails.

    Those of one world size follow each other on the same ranks, which is quick. Where one of them
    fails, each gets fresh ranks. (What one leaves behind is a message that nobody waited for, and
    that is told before anything else.) Raises NotImplementedError where the answer is still blank,
    and NotJudged where the machine is too busy.
    """
    play = play or _call_once
    for (nproc, init), group in groupby(trials, lambda trial: (trial.nproc, trial.init)):
        alike = list(group)
        found = _together(answer, play, alike) if init or not nproc else []
        for run in found or (_alone(answer, play, trial) for trial in alike):
            yield run
            if run.failure:
                return


def _together(answer: Any, play: Play, trials: Sequence[Trial]) -> list[Run]:
    """Trials on the same ranks; none of them where they must be run alone."""
    given = [list(trial.given) for trial in trials]
    job = _start(_in_turn, answer, play, given, trials[0])
    if not job.ok:
        _require_an_answer(job)
        return []
    by_trial = zip(*job.results, strict=True)
    return [_observed(trial, job, ranks) for trial, ranks in zip(trials, by_trial, strict=True)]


def _alone(answer: Any, play: Play, trial: Trial) -> Run:
    """A trial on ranks of its own."""
    for _ in range(2):  # a machine may stall once
        job = _start(_on_rank, answer, play, list(trial.given), trial)
        if job.ok:
            return _observed(trial, job, job.results)
        first = job.failures[0]  # the cause comes first
        if first.kind != "timeout":
            break
        _require_a_free_machine(trial)
    _require_an_answer(job)
    return Run(trial, job, job.calls, failure="endless" if first.kind == "timeout" else first.kind)


def _observed(trial: Trial, job: Job, ranks: Sequence[tuple[list[Step], Any]]) -> Run:
    record = [_within(calls, steps) for calls, (steps, _) in zip(job.calls, ranks, strict=True)]
    return Run(trial, job, record, [steps for steps, _ in ranks], [end for _, end in ranks])


def _within(calls: Sequence[Call], steps: Sequence[Step]) -> list[Call]:
    """The calls that began while the answer was at work."""
    return [c for c in calls if any(step.began <= c.start <= step.ended for step in steps)]


def _start(function: Callable[..., Any], answer: Any, play: Play, given: Any, trial: Trial) -> Job:
    return torchrun(
        function,
        answer,
        play,
        given,
        nproc_per_node=trial.nproc or 1,
        backend="gloo",
        init=trial.init and trial.nproc > 0,
        env=trial.env,
        timeout=_PATIENCE,
        may_fail=True,
        show=False,
    )


def _require_an_answer(job: Job) -> None:
    """Raise NotImplementedError where a lab's blank is still there; PyTorch says more with it."""
    first = job.failures[0]
    if first.type_name == "NotImplementedError" and first.message == "NotImplementedError":
        raise NotImplementedError


def _require_a_free_machine(trial: Trial) -> None:
    """Raise NotJudged where ranks that do nothing take long, too."""
    job = _start(_on_rank, None, _do_nothing, [()] * max(1, trial.nproc), trial)
    if not job.ok or job.seconds > _PATIENCE / _SLOW:
        raise NotJudged("the machine was too busy; run the check again")
