"""Trials: an answer on ranks that know what they are given, and not what is right."""

from __future__ import annotations

import inspect
import os
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import cloudpickle

from ...base.formatting import ranks_count
from ...calls.record import POINT_TO_POINT, Call
from ...launch import CannotSend, Job, torchrun
from .. import exercises
from ..exercises import NotJudged
from .catalogue import Answer
from .values import Difference, Tensor, alike, difference, differences, make, see, tensors_in

_PATIENCE = 5.0  # seconds for a trial, which takes 0.1 s mostly; a deadlock is found long before
_PACKAGE = Path(__file__).parents[2]
_SLOW = 10  # an empty trial that takes this part of the patience: the machine is too busy

Play = Callable[..., Any]


@dataclass(frozen=True)
class Trial:
    """One call of an answer on `nproc` ranks; `nproc` 0: one call without any process group.

    given: for each rank, the arguments; tensors as `Tensor`. right: for each rank, what it must
    end up with; `...` where only demands judge that. facts: what signs and sentences want to know
    besides, such as a chunk's length. init: False where the answer makes the process group. like:
    what tells its world from others, where the number of ranks does not: "2 nodes of 3 ranks".
    patience: seconds that it may take. smaller: gives the trials that are a step smaller, of which
    the smallest that fails is told where no sign explains it.
    """

    nproc: int
    given: Sequence[tuple[Any, ...]]
    right: Sequence[Any]
    facts: dict[str, Any] = field(default_factory=dict)
    init: bool = True
    like: str = ""
    patience: float = _PATIENCE
    smaller: Callable[[], Iterable[Trial]] = tuple

    @property
    def traits(self) -> tuple[str, ...]:
        """Say what it is like: where one trial goes wrong and another does not, they may
        say why."""
        given = [one for args in self.given for one in _tensors(args)]
        dtypes = dict.fromkeys(one.dtype for one in given)
        ranks = ranks_count(self.nproc) if self.nproc else ""
        return (self.like or ranks, " and ".join(dtypes))

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
    the clock of the call record. kept: what was returned, as it was after all trials on these
    ranks; None where nobody looked.
    """

    returned: Any
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    passed: tuple[Any, ...]
    shared: tuple[int, ...]
    began: float
    ended: float
    kept: Any = None


@dataclass
class Run:
    """The outcome of a trial.

    record: for each rank, what the answer asked of process groups; where the ranks failed, what
    was asked at all. steps: for each rank, its calls of the answer; empty where the ranks failed.
    ends: what each rank ended up with, to be compared with what is right. noted: what a play saw on
    each rank besides (`Noted`), for demands. borrowed: the exercises whose solutions the answer
    asked for. failure: "", "raised", "died", "stuck" or "endless".
    """

    trial: Trial
    job: Job
    record: list[list[Call]]
    steps: list[list[Step]] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    noted: list[Any] = field(default_factory=list)
    borrowed: set[str] = field(default_factory=set)
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
        """Return how what a rank ended up with differs from what is right."""
        right = self.right(rank)
        return None if right is ... else difference(self.got(rank), right)

    @property
    def wrong(self) -> list[int]:
        """The ranks that ended up with something else than what is right."""
        return [rank for rank in self.ranks if self.difference(rank) is not None]

    def differences(self, rank: int) -> list[Difference]:
        """All numbers (and texts) that are wrong on a rank, where nothing else is."""
        return list(differences(self.got(rank), self.right(rank)))

    def equals(self, rank: int, guess: Any) -> bool:
        """Whether a rank ended up with these numbers, in whatever holds them."""
        return alike(self.got(rank), guess)

    # ── The record ───────────────────────────────────────────────────────────────────────────

    def calls(self, rank: int) -> list[Call]:
        return self.record[rank]

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


class WrongArguments(TypeError):
    """The answer cannot be called with so many arguments, by their places."""


class Watched:
    """The answer, on a rank: calling it takes down what became of its arguments."""

    def __init__(self, answer: Callable[..., Any]):
        self._answer = answer
        self._returned: list[Any] = []
        self.steps: list[Step] = []

    def through(self, wrap: Callable[[Any], Any]) -> None:
        """Call `wrap(answer)` in place of the answer: what torch.compile makes of it, say, which
        should have nothing of the watching in it."""
        self._answer = wrap(self._answer)

    def __call__(self, *args: Any) -> Any:
        if callable(self._answer) and not takes(self._answer, *args):
            raise WrongArguments(len(args))
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
        self._returned.append(returned)
        return returned

    def look_again(self) -> None:
        """Take down what the results hold by now."""
        both = zip(self.steps, self._returned, strict=True)
        self.steps[:] = [replace(step, kept=see(returned)) for step, returned in both]


def takes(function: Any, *args: Any) -> bool:
    """Whether this can be called with these arguments, as far as its signature says."""
    if not callable(function):
        return False
    try:
        # A decorator may give the function that it wraps fewer arguments, or more.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # what is written in C may have none
        return True
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _home(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _call_once(answer: Watched, *args: Any) -> None:
    answer(*make(args))


def call_after(answer: Watched, *given: Any) -> None:
    """A play: the last of what a rank is given is a function that is called before the answer."""
    *args, first = given
    first()
    answer(*make(args))


@dataclass(frozen=True)
class Noted:
    """The result of a play that saw more than what the rank ended up with."""

    end: Any
    noted: Any


Seen = tuple[list[Step], Any, Any, set[str]]


class PlayFailed(Exception):
    """A play failed by itself, while the answer was not at work."""


def _watch(watched: Watched, play: Play, given: Sequence[tuple[Any, ...]]) -> Seen:
    """Return what was seen of the answer on this rank, what the play says it ended up with and what
    it noted besides, and of which exercises the course's answers were asked for."""
    try:
        end = play(watched, *given[int(os.environ["RANK"])])
    except RuntimeError:  # most often what another rank's end leads to
        raise
    except Exception as error:
        if _of_the_answer(error) or _on_purpose(error):
            raise
        raise PlayFailed(f"{type(error).__name__}: {error}") from error
    noted = end.noted if isinstance(end, Noted) else None
    end = end.end if isinstance(end, Noted) else end
    return watched.steps, see(end), see(noted), exercises.shown()


def _of_the_answer(error: BaseException) -> bool:
    """Whether code that is neither the course's nor a library's was at work."""
    libraries = (str(_PACKAGE), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    frames = traceback.extract_tb(error.__traceback__)
    return any(not frame.filename.startswith(libraries) for frame in frames)


def _on_purpose(error: BaseException) -> bool:
    """Whether a play says by it what the answer did: its type is the course's own."""
    return type(error).__module__.partition(".")[0] == __name__.partition(".")[0]


def contains_solution(answer: Any, name: str) -> bool:
    """Whether the course's answer travels to the ranks with this one."""
    try:
        return exercises.solution_file(name).encode() in cloudpickle.dumps(answer)
    except Exception:  # it cannot travel at all
        return False


def _in_turn(answer: Any, play: Play, given: Sequence[Sequence[tuple[Any, ...]]]) -> list[Seen]:
    """Several trials on this rank. Where the answer is simply called, its results are looked at
    once more in the end: a later call may have changed them."""
    watched = [Watched(answer) for _ in given]
    seen = [_watch(own, play, one) for own, one in zip(watched, given, strict=True)]
    if play in (_call_once, call_after):
        for own in watched:
            own.look_again()
    return seen


def _each(programs: Sequence[Answer], play: Play, given: Any) -> list[list[Seen] | None]:
    """The trials on this rank for one program after another; None for one that fails."""
    found: list[list[Seen] | None] = []
    for program in programs:
        try:
            found.append(_in_turn(program.value(), play, given))
        except Exception:
            found.append(None)
    return found


def _do_nothing(answer: Watched) -> None: ...


# ── In the notebook ──────────────────────────────────────────────────────────────────────────


def runs(answer: Any, play: Play | None, trials: Iterable[Trial]) -> Iterator[Run]:
    """Run trials; ends with one that fails.

    Those of one world size follow each other on the same ranks, which is quick. Where one of them
    fails, each gets fresh ranks. (What one leaves behind is a message that nobody waited for, and
    that is told before anything else.) Raises NotImplementedError where the answer is still blank,
    and NotJudged where the machine is too busy.
    """
    for (nproc, init), group in groupby(trials, _world):
        alike = list(group)
        together = len(alike) > 1 and (init or not nproc)
        found = run_together(answer, play, alike) if together else []
        for run in found or (_alone(answer, play or _call_once, trial) for trial in alike):
            yield run
            if run.failure:
                return


def run_together(answer: Any, play: Play | None, trials: Sequence[Trial]) -> list[Run]:
    """Run trials of one world size on the same ranks; none of them where they must be run alone."""
    given = [list(trial.given) for trial in trials]
    job = _start(_in_turn, answer, play or _call_once, given, trials[0])
    if not job.ok:
        _require_an_answer(job)
        return []
    by_trial = zip(*job.results, strict=True)
    return [_observed(trial, job, ranks) for trial, ranks in zip(trials, by_trial, strict=True)]


# By program and trials, as numbers: what the program did in them, None where it failed.
Known = dict[tuple[Answer, tuple[int, ...]], list[Run] | None]


def explaining(
    programs: Sequence[Answer],
    play: Play | None,
    found: Sequence[Run],
    end: Callable[[Run, int], Any],
    known: Known,
) -> Answer | None:
    """Return the first of the programs by which all ranks of all these trials end up as they did,
    `end(run, rank)` being what is judged of a rank. What is not yet `known` is run, and added."""
    first = next(at for at, run in enumerate(found) if run.wrong)  # few pass it: no more are run
    others = (at for at in range(len(found)) if at != first)
    by_world = groupby(others, lambda at: _world(found[at].trial))
    left = list(programs)
    for numbers in ((first,), *(tuple(group) for _, group in by_world)):
        same_world = [found[at] for at in numbers]
        new = [program for program in left if (program, numbers) not in known]
        outcomes = _outcomes(new, play or _call_once, [one.trial for one in same_world])
        known |= zip(((program, numbers) for program in new), outcomes, strict=True)
        left = [
            program
            for program in left
            if (runs := known[program, numbers])
            and all(
                alike(one.got(rank), end(own, rank))
                for one, own in zip(same_world, runs, strict=True)
                for rank in one.ranks
            )
        ]
        if not left:
            return None
    return left[0]


def _outcomes(
    programs: Sequence[Answer], play: Play, trials: Sequence[Trial]
) -> list[list[Run] | None]:
    """These trials with each program; None for one that fails."""
    if not programs:
        return []
    given = [list(trial.given) for trial in trials]
    job = _start(_each, programs, play, given, trials[0])
    if not job.ok:
        if len(programs) < 2:
            return [None]
        return [_outcomes([program], play, trials)[0] for program in programs]
    found: list[list[Run] | None] = []
    for ranks in zip(*job.results, strict=True):
        done = None not in ranks
        by_trial = zip(*ranks, strict=True) if done else ()
        runs = [_observed(trial, job, seen) for trial, seen in zip(trials, by_trial, strict=done)]
        found.append(runs if done else None)
    return found


def _world(trial: Trial) -> tuple[int, bool]:
    return trial.nproc, trial.init


def _alone(answer: Any, play: Play, trial: Trial) -> Run:
    """A trial on ranks of its own."""
    for _ in range(2):  # a machine may stall once
        job = _start(_in_turn, answer, play, [list(trial.given)], trial)
        if job.ok:
            return _observed(trial, job, [seen for (seen,) in job.results])
        first = job.failures[0]  # the cause comes first
        if first.kind != "timeout":
            break
        _require_a_free_machine(trial)
    _require_an_answer(job)
    return Run(trial, job, job.calls, failure="endless" if first.kind == "timeout" else first.kind)


def _observed(trial: Trial, job: Job, ranks: Sequence[Seen]) -> Run:
    steps, ends, noted, borrowed = (list(one) for one in zip(*ranks, strict=True))
    record = [_within(calls, own) for calls, own in zip(job.calls, steps, strict=True)]
    return Run(trial, job, record, steps, ends, noted, set().union(*borrowed))


def _within(calls: Sequence[Call], steps: Sequence[Step]) -> list[Call]:
    """The calls that began while the answer was at work."""
    return [c for c in calls if any(step.began <= c.start <= step.ended for step in steps)]


def _start(function: Callable[..., Any], answer: Any, play: Play, given: Any, trial: Trial) -> Job:
    try:
        return torchrun(
            function,
            answer,
            play,
            given,
            nproc_per_node=trial.nproc or 1,
            backend="gloo",
            init=trial.init and trial.nproc > 0,
            timeout=trial.patience,
            may_fail=True,
            show=False,
        )
    except CannotSend as error:
        raise NotJudged(str(error)) from error


def _require_an_answer(job: Job) -> None:
    """Raise NotImplementedError where a lab's blank is still there (PyTorch says more with it), and
    NotJudged where the play has failed."""
    first = job.failures[0]
    if first.type_name == "NotImplementedError" and first.message == "NotImplementedError":
        raise NotImplementedError
    if first.type_name.endswith(PlayFailed.__name__):
        raise NotJudged(f"the check itself failed ({first.message}), not your answer")


def _require_a_free_machine(trial: Trial) -> None:
    """Raise NotJudged where ranks that do nothing take long, too."""
    job = _start(_in_turn, None, _do_nothing, [[()] * max(1, trial.nproc)], trial)
    if not job.ok or job.seconds > trial.patience / _SLOW:
        raise NotJudged("the machine was too busy; run the check again")
