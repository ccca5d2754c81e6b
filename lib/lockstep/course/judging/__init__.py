"""The judging of answers: trials on ranks, one observed result each, and signs that read it.

A lab's module declares an exercise as a generator of trials; a trial says what each rank is given
and, computed from all of it in one process, what each rank must end up with:

    @judged("global_mean", lab="03")
    def global_mean(draw):
        for nproc in draw.sample((2, 3, 4, 5), 2):
            yield Trial(nproc, given=[(Tensor.of(mine),) for mine in values], right=[mean] * nproc)

The mistakes that people make have names, and sentences with {placeholders} in `labs/labNN.toml`.
Most show in the result, and are named by the course's wrong answers (`catalogue`): those of the
exercise that have such a sentence run on the trials of an answer that is wrong, and the first by
which all ranks of all trials end up with exactly the same has made the same mistake. The others
are told by *signs*, small functions of plain data:

- `gives(name, f)`: `f(trial)` is what every rank would end up with by this mistake, where no
  program can be run to see it. `...` for a rank leaves open what it has.
- `shows(name, f)`: `f(run, rank)` must hold of every rank whose result is wrong, in every trial.
- `fails(name, f)`: `f(run, rank)` of a trial whose ranks raised, died or wait for ever.
- `demands(name, f)`: `f(run, rank)` is true where a right result came about in a way that the
  goal rules out. What the goal does not say is not demanded.

A function returns False, True, or a dict of what its sentence needs besides the usual words: rank,
nproc, got, right, had. The first rank of which it holds is the one that the sentence speaks of.
All answers are judged in one order, and the first that is found is told: still blank; raised, died
or hung; a handle that nobody waited for; inputs changed or rebound; what `gives`, wrong answers
and `shows` explain, each in their order, so the more specific first; a wrong type, dtype, shape or
value, in general words that are true of every answer; what the goal demands besides.
Trials stand from the plain to the unusual: one that fails is told only if those before it went
right, and then {contrast} says in what they differ. Where general words tell, they tell the
smallest wrong trial, of those that `Trial.smaller` gives. A trial or a sign that fails itself
gives no verdict.

What is judged comes from the trial's ranks as plain data (`values`), rebuilt from numbers and
shapes, and from the record of calls: never from patched functions, source text or what was
printed. Ranks know what they are given, and not what is right. Time judges nothing: an answer
that does not end is tried again beside an empty one, and a machine on which that is slow, too,
gives no verdict.
"""

from .judge import Judged, judged
from .numbers import Numbers
from .running import Noted, Run, Step, Trial, call_after, takes
from .values import Number, Other, Tensor, numbers_in, same

__all__ = [
    "Judged",
    "Noted",
    "Number",
    "Numbers",
    "Other",
    "Run",
    "Step",
    "Tensor",
    "Trial",
    "call_after",
    "judged",
    "numbers_in",
    "same",
    "takes",
]
