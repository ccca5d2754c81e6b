"""Exercises whose answers are judged by signs, and the one order in which that is done."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NoReturn

from ...base.formatting import ranks_text
from ...base.paths import SOLUTIONS
from ...calls.record import ANY_SOURCE, POINT_TO_POINT
from .. import exercises
from ..exercises import NotJudged, WrongAnswer
from . import words
from .catalogue import Answer, answers
from .numbers import Numbers
from .running import (
    Known,
    Play,
    Run,
    Trial,
    WrongArguments,
    contains_solution,
    explaining,
    run_together,
    runs,
)
from .values import Difference, alike, kind, narrowed, same, show, show_both, told

Found = bool | dict[str, Any]
Sign = Callable[[Run, int], Found]
Guess = Callable[[Trial], Sequence[Any] | None]
Trials = Callable[[random.Random], Iterable[Trial]]
_FAILURES = {"stuck": "deadlock"}  # others go by their own names
_MOST_PRINTED = 200  # characters of a rank's last line
_MOST_STEPS = 12  # from a trial that fails to smaller ones
_MOST_SMALLER = 100  # that are tried in a step
# By which part of a number the digits that were lost may change it, where it has so many bits left:
# in a type of 16 bits, and in float32.
_NEAR = {11: 0.01, 24: 2**-23}


class Judged:
    """An exercise: its trials, and the signs of its mistakes; see the package's text.

    in_place: the argument, by number, that must hold the result; None where it is returned.
    may_change: others that the goal lets an answer change. called: what sentences call the
    result. silent: an answer may be right without any call.
    """

    def __init__(
        self,
        name: str,
        lab: str,
        trials: Trials,
        play: Play | None,
        in_place: int | None,
        may_change: tuple[int, ...],
        called: str,
        silent: bool,
    ):
        self.name, self.words, self._lab = name, words.of(lab, name), lab
        self._trials, self._play, self._in_place = trials, play, in_place
        self._may_change = (in_place, *may_change)
        self._called, self._silent = called, silent
        self._guesses: dict[str, tuple[Guess, ...]] = {}
        self._shows: dict[str, Sign] = {}
        self._fails: dict[str, Sign] = {}
        self._demands: dict[str, Sign] = {}
        self._drawn: Any = None  # from where the last trials were drawn
        self._known: Known = {}  # what the course's wrong answers did in these

    # ── What a lab declares ──────────────────────────────────────────────────────────────────

    def gives(self, mistake: str, *guesses: Guess) -> None:
        """A mistake by which the ranks end up with `guess(trial)`, for one of these guesses: one
        value for each of them, `...` where the mistake leaves it open."""
        self._declare(self._guesses, mistake, guesses)

    def shows(self, mistake: str, sign: Sign) -> None:
        """A mistake that shows on every rank whose result is wrong."""
        self._declare(self._shows, mistake, sign)

    def fails(self, mistake: str, sign: Sign) -> None:
        """A mistake by which the ranks raised, died or wait for ever; it shows on one of them."""
        self._declare(self._fails, mistake, sign)

    def demands(self, mistake: str, sign: Sign) -> None:
        """Declare what the goal rules out although the result is right; it shows on one rank."""
        self._declare(self._demands, mistake, sign)

    def _declare(self, signs: dict[str, Any], mistake: str, sign: Any) -> None:
        if mistake in signs:
            raise ValueError(f"{self.name} has a sign {mistake!r} already")
        self.words.require(mistake)
        signs[mistake] = sign

    # ── Judging ──────────────────────────────────────────────────────────────────────────────

    def check(self, answer: Any, draw: random.Random) -> None:
        """Raise WrongAnswer for the first mistake that is found, and what `runs` raises.

        Raises NotJudged where a trial or a sign fails itself, which is no fault of the answer.
        """
        if not callable(answer):
            raise self._wrong("no-function", name=self.name, got=kind(answer))
        answer = _uncompiled(answer)
        if self._drawn != draw.getstate():
            self._drawn, self._known = draw.getstate(), {}
        trials = _sure(lambda: list(self._trials(draw)))
        found: list[Run] = []
        for run in runs(answer, self._play, trials):
            if run.failure and run.job.failures[0].type_name.endswith(WrongArguments.__name__):
                raise self._not_callable_so(answer, run)
            self._look(run)
            found.append(run)
        _sure(lambda: self._tell(answer, found))
        if any(self.name in run.borrowed for run in found) or contains_solution(answer, self.name):
            exercises.borrowed(self.name, answer)

    def _not_callable_so(self, answer: Any, run: Run) -> WrongAnswer:
        """It takes other arguments than the goal says; that stands above the trials."""
        goal = (inspect.getdoc(self._trials) or "").partition("`")[2].partition("`")[0]
        return self._wrong(
            "arguments",
            name=self.name,
            written=f"{self.name}{inspect.signature(answer, follow_wrapped=False)}",
            goal=goal or self.name,
            count=run.job.failures[0].message.rpartition(" ")[2],
        )

    def _look(self, run: Run) -> None:
        run.ends = [self._end(run, rank) for rank in run.ranks] if not run.failure else []

    def _tell(self, answer: Any, found: list[Run]) -> None:
        """The last of the runs may have failed: what those before it show is told first."""
        done = [run for run in found if not run.failure]
        self._tell_handles(done)
        self._tell_results(answer, done)
        if len(done) < len(found):
            self._tell_failure(found[-1], done)
        for mistake, sign in self._demands.items():
            for run in found:
                for rank in run.ranks:
                    self._tell_if(sign(run, rank), mistake, run, rank)

    def _end(self, run: Run, rank: int) -> Any:
        """Return what is judged of a rank: what its play says, else of each call of the answer the
        argument that must hold the result, or what was returned."""
        if run.ends[rank] is not None:
            return run.ends[rank]
        at = self._in_place
        ends = [step.returned if at is None else step.after[at] for step in run.steps[rank]]
        return ends[0] if len(ends) == 1 else ends

    def _tell_failure(self, run: Run, done: list[Run]) -> NoReturn:
        contrast = _contrast([run], done)
        again = next((call for call in run.all_calls if call.again), None)
        if again and run.failure == "stuck":
            raise self._wrong("waits-again", run, again.rank)
        for mistake, sign in self._fails.items():
            for rank in run.ranks:
                self._tell_if(sign(run, rank), mistake, run, rank, contrast=contrast)
        first = run.job.failures[0]
        rank = max(0, first.rank)
        if forsaken := next((call for call in run.all_calls if call.forsaken), None):
            raise self._wrong("no-wait", run, forsaken.rank, call=forsaken, report=run.job.report)
        printed = run.job.output(rank).strip().splitlines()
        last = f" Last it printed: {printed[-1][:_MOST_PRINTED]}" if printed else ""
        said: dict[str, Any] = {
            "raised": first.message.partition("\n")[0].rstrip(".:"),  # the report has all
            "last": last,
            "contrast": contrast,
        }
        for call in run.all_calls:
            if call.operation in POINT_TO_POINT and call.peer not in (ANY_SOURCE, *run.ranks):
                said |= {"call": call, "last_rank": run.nproc - 1}
                raise self._wrong("no-such-rank", run, call.rank, **said)
            if call.operation in POINT_TO_POINT and call.peer == call.rank:
                raise self._wrong("to-itself", run, call.rank, **said, call=call)
        raise self._wrong(_FAILURES.get(run.failure, run.failure), run, rank, **said)

    def _tell_handles(self, found: list[Run]) -> None:
        for run in found:
            for call in run.all_calls:
                if not call.waited:
                    raise self._wrong("no-wait", run, call.rank, call=call, report="")

    def _tell_results(self, answer: Any, found: list[Run]) -> None:
        wrong = [(run, rank) for run in found for rank in run.wrong]
        if not wrong:
            self._tell_changed(found)
            return
        contrast = _contrast([run for run in found if run.wrong], [r for r in found if not r.wrong])
        run, rank = wrong[0]
        alone = self._silent or all(one.trial.nproc < 2 for one in found)
        if not alone and not any(call for one in found for call in one.all_calls):
            raise self._wrong("nothing-sent", run, rank)
        if self._in_place is not None:
            self._tell_untouched(found, run, rank)
        for mistake, guesses in self._guesses.items():
            if any(_explains(guess, found) for guess in guesses):
                raise self._wrong(mistake, run, rank, contrast=contrast)
        if known := explaining(self._known_wrong(), self._play, found, self._end, self._known):
            raise self._wrong(known.name, run, rank, contrast=contrast)
        self._tell_changed(found)
        if _all_values(wrong):
            self._tell_untouched_here(wrong)
            for mistake, sign in self._shows.items():
                signs = [sign(one, at) for one, at in wrong]
                if all(signs):
                    self._tell_if(signs[0], mistake, *wrong[0], contrast=contrast)
        if smallest := self._smallest(answer, run):
            wrong, contrast = [(smallest, rank)], ""
        for run, rank in wrong:
            difference = run.difference(rank)
            assert difference is not None
            if difference.kind != "value":
                got, right = told(difference)
                said = {"place": self._called + difference.place, "contrast": contrast}
                raise self._wrong(difference.kind, run, rank, got=got, right=right, **said)
        self._tell_value(wrong, contrast)

    def _smallest(self, answer: Any, run: Run) -> Run | None:
        """Return the run of the smallest trial below this one in which the answer is wrong, too."""
        found = None
        for _ in range(_MOST_STEPS):
            trials = list(islice((found or run).trial.smaller(), _MOST_SMALLER))
            tried = run_together(answer, self._play, trials) if trials else []
            for one in tried:
                self._look(one)
            below = next((one for one in tried if one.wrong), None)
            if below is None:
                break
            found = below
        return found

    def _known_wrong(self) -> list[Answer]:
        """The course's wrong answers of which no sign is declared: what they give says it all."""
        signs = {*self._guesses, *self._shows, *self._fails, *self._demands}
        every = answers(SOLUTIONS / "source", "wrong", self._lab).get(self.name, [])
        return [one for one in every if self.words.is_special(one.name) and one.name not in signs]

    def _tell_untouched(self, found: list[Run], run: Run, rank: int) -> None:
        """An argument that should hold the result is on all ranks what it was."""
        at = self._in_place
        assert at is not None
        steps = [step for one in found for steps in one.steps for step in steps]
        if not steps or any(not same(step.after[at], step.before[at]) for step in steps):
            return
        each = [(one, r) for one in found for r in one.ranks]
        if all(alike(one.returned(r), one.right(r)) for one, r in each):
            raise self._wrong("not-in-place", run, rank)
        if all(alike(one.steps[r][0].passed[at], one.right(r)) for one, r in each):
            raise self._wrong("rebound", run, rank)
        raise self._wrong("untouched", run, rank)

    def _tell_untouched_here(self, wrong: list[tuple[Run, int]]) -> None:
        """An argument that should hold the result is what it was on each rank that is wrong, and
        others are right."""
        at, (run, rank) = self._in_place, wrong[0]
        right = sorted(set(run.ranks) - set(run.wrong))
        steps = [step for one, r in wrong for step in one.steps[r]]
        if at is not None and right and all(same(s.after[at], s.before[at]) for s in steps):
            raise self._wrong(
                "untouched-here",
                run,
                rank,
                others=ranks_text(right),
                have="has" if len(right) == 1 else "have",
            )

    def _tell_changed(self, found: list[Run]) -> None:
        """An argument that should stay what it is does not, or an earlier result."""
        for run in found:
            for rank in run.ranks:
                for step in run.steps[rank]:
                    if step.kept is not None and not same(step.kept, step.returned):
                        got, had = show(step.kept), show(step.returned)
                        raise self._wrong("overwritten", run, rank, got=got, had=had)
                    for at, (before, left) in enumerate(zip(step.before, step.passed, strict=True)):
                        if at not in self._may_change and not same(left, before):
                            got, had = show(left), show(before)
                            raise self._wrong("changed", run, rank, at=at + 1, got=got, had=had)

    def _tell_value(self, wrong: list[tuple[Run, int]], contrast: str) -> NoReturn:
        """No sign explains what was seen: say it, where it can be said best of what it is made."""
        every = [(run, rank, one) for run, rank in wrong for one in run.differences(rank)]
        said: dict[str, Any] = {"contrast": contrast}
        mistake, origins = "value", [_origin(run, one) for run, _, one in every]
        at = next((at for at, origin in enumerate(origins) if origin), 0)
        if factor := _factor([one for _, _, one in every]):
            mistake, said["factor"], at = "factor", show(factor), 0
        elif all(_near(run, one) for run, _, one in every):
            mistake, at = "digits", 0
        run, rank, difference = every[at]
        difference = narrowed(difference)
        said["got"], said["right"] = show_both(difference.got, difference.right)
        if difference.kind != "value":  # within what a play has put together
            mistake = difference.kind
            said["got"], said["right"] = told(difference)
        said |= {"place": self._called + difference.place}
        said |= {"origin": origins[at] and f": {origins[at]}"}
        raise self._wrong(mistake, run, rank, **said)

    def _tell_if(self, said: Found, mistake: str, run: Run, rank: int, **more: Any) -> None:
        if said:
            raise self._wrong(mistake, run, rank, **more | (said if isinstance(said, dict) else {}))

    def _wrong(
        self, mistake: str, run: Run | None = None, rank: int = 0, **more: Any
    ) -> WrongAnswer:
        known: dict[str, Any] = {"called": self._called}
        if run is not None:
            known |= run.trial.facts
            known |= {"rank": rank, "nproc": run.nproc, "where": _where(run, rank)}
            known["report"] = run.job.report
            if run.ends:
                known["got"], known["right"] = show_both(run.got(rank), run.right(rank))
                # Some answers take no argument, and some are called in processes of their own.
                if before := run.steps[rank] and run.steps[rank][0].before:
                    known["had"] = show(before[self._in_place or 0])
        return WrongAnswer(mistake, self.words.say(mistake, known | more))


def _uncompiled(answer: Any) -> Any:
    """Return what torch.compile was given: what it made of that cannot travel. One that
    torch.compiler has disabled stays so."""
    while not hasattr(answer, "_torchdynamo_disable"):
        inside = getattr(answer, "_torchdynamo_orig_callable", getattr(answer, "_orig_mod", answer))
        if inside is answer:
            break
        answer = inside
    return answer


def _sure(what: Callable[[], Any]) -> Any:
    """Do what only an error of the check's own can make fail."""
    try:
        return what()
    except (WrongAnswer, NotJudged):
        raise
    except Exception as error:
        text = f"the check itself failed ({type(error).__name__}: {error}), not your answer"
        raise NotJudged(text) from error


def _all_values(wrong: list[tuple[Run, int]]) -> bool:
    """Whether types, dtypes and shapes are right, and numbers alone are wrong."""
    differences = [run.difference(rank) for run, rank in wrong]
    return all(one and one.kind == "value" for one in differences)


def _explains(guess: Guess, found: list[Run]) -> bool:
    """Whether all ranks of all trials ended up with what is guessed."""
    return all(
        (ends := guess(run.trial)) is not None
        and all(end is ... or alike(run.got(rank), end) for rank, end in enumerate(ends))
        for run in found
    )


def _contrast(wrong: list[Run], right: list[Run]) -> str:
    """In what a trial that went right differs from all that did not: a sentence, or "". Where
    demands alone judge, nothing is right."""
    known = [run.trial.traits for run in right if any(one is not ... for one in run.trial.right)]
    parts = []
    for at, theirs in enumerate(zip(*known, strict=True)):
        others = {run.trial.traits[at] for run in wrong}
        if not others & set(theirs):
            parts.append(theirs[0])
    said = " and ".join(part for part in parts if part)
    return f" With {said} it was right." if said else ""


def _factor(wrong: list[Difference]) -> float | None:
    """By which all wrong numbers are too large, where that is one number and can be said."""
    pairs = [(one.got, one.right) for one in wrong]
    if len(pairs) < 2 or not all(_finite(got) and _finite(right) and right for got, right in pairs):
        return None
    first = float(pairs[0][0] / pairs[0][1])
    same = all(math.isclose(got / right, first, rel_tol=1e-6) for got, right in pairs)
    told = first and not math.isclose(first, 1, rel_tol=1e-5)  # else digits were lost
    return first if same and told and len({right for _, right in pairs}) > 1 else None


def _near(run: Run, wrong: Difference) -> bool:
    """Whether a number is nearly right, or too large for a small type."""
    got, right = wrong.got, wrong.right
    if not run.trial.nproc or type(got) not in (int, float) or type(right) not in (int, float):
        return False  # without ranks there are no tensors that travel, and no types of theirs
    if math.isinf(got):
        return True
    # A sum in which a small part is missing is near, too, and has as many digits as any.
    left = 0 if "numbers" not in run.trial.facts else _bits(got)
    off = abs(got - right)
    return any(left <= bits and off <= near * abs(right) for bits, near in _NEAR.items())


def _bits(value: float) -> int:
    """Count the binary digits of a number, from the first 1 to the last."""
    whole = abs(float(value).as_integer_ratio()[0])
    return whole.bit_length() - (whole & -whole).bit_length() + 1 if whole else 0


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _where(run: Run, rank: int) -> str:
    if run.trial.nproc:
        return f"on rank {rank} of {run.nproc}"
    return "for " + (run.trial.like or ", ".join(map(show, run.trial.given[0])))


def _origin(run: Run, difference: Difference) -> str:
    numbers = run.trial.facts.get("numbers")
    if not isinstance(numbers, Numbers) or type(difference.got) not in (int, float):
        return ""
    return numbers.origin(difference.got, difference.at)


def judged(
    name: str,
    *,
    lab: str,
    play: Play | None = None,
    in_place: int | None = None,
    may_change: tuple[int, ...] = (),
    called: str = "",
    silent: bool = False,
    further: bool = False,
) -> Callable[[Trials], Judged]:
    """Register an exercise above its trials, a generator that draws them.

    play: `play(answer, *given)` on each rank, where an answer is not simply called with what the
    rank is given: it calls `answer`, once or several times, and may return what counts as the
    result. further: it is no part of the lab's core. Everything else as for `Judged`.
    """

    def register(trials: Trials) -> Judged:
        result = "the result" if in_place is None else "x"
        one = Judged(name, lab, trials, play, in_place, may_change, called or result, silent)
        exercises.exercise(name, lab=lab, hints=one.words.hints, further=further)(one.check)
        return one

    return register
