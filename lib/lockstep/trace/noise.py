"""Are values larger than noise explains? The test behind `gate`, which can say that it cannot tell.

Both sides are cut into equally many blocks, up to 8, of consecutive values, and a block counts by
its median: it bears outliers, and blocks are less alike than neighbours are. The chance that noise
makes the later blocks so much larger is the larger one of two:

- of all ways to deal the blocks out to the sides, the share in which the later side is at least as
  large as it is. It assumes no form of noise, and k blocks a side can never say less than one in
  (2k)! / k!². So the number of blocks bounds false alarms: with too few there is no verdict;
- Welch's test ("The generalization of Student's problem when several different population
  variances are involved", 1947), as one side may be noisier than the other.

Repeats are independent. Steps of one run are not: see `of_steps`.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from ..base.formatting import percent

Values = np.ndarray[Any, Any]

_BLOCKS = 8  # a side
_STEPS = 16  # a side: fewer cannot show how alike neighbours are
_APART = 1.5  # lengths over which steps are alike that a block has, so that the next is not like it
_FAR = 2 * 1.4826  # median deviations: two standard deviations of normal noise
_FITS = 6  # a slope is refined as often
_DRIFTS = 0.02  # how often steps without a drift seem to have one
_DRIFTED = 0.05  # how often what drifts, too little to be seen, is said to have grown
_MOVED = 0.01  # how often steps that change between the runs seem to change inside one
_SHUFFLES = 400
_PLACES = 200  # a side, at which a change is sought
_BY_TURNS = "run both by turns, in several repeats a side"
LEAST = 1e-3  # level: 8 blocks a side are one of 12,870 ways, for four measures


class Judgement(NamedTuple):
    """chance: how often noise does that; None where it cannot be told, and `untold` says why."""

    chance: float | None
    untold: str = ""


def of_runs(before: Values, after: Values, level: float) -> Judgement:
    """Judge independent values, one a repeat. An alarm is a chance below `level`."""
    found, needed = min(len(before), len(after)), _fewest(level)
    if found < needed:
        return Judgement(None, _too_few(before, after, "runs", needed))
    return Judgement(_chance(before, after, min(_BLOCKS, found)))


def of_steps(before: Values, after: Values, level: float) -> Judgement:
    """Judge consecutive steps of one run a side. An alarm is a chance below `level`.

    What lies outside of the middle half of both sides together counts as its nearest value: single
    steps, however long, decide nothing. Over how many steps neighbours are alike is (1 + r) /
    (1 − r), r being their autocorrelation; a block is 1.5 times as long. In the middle half r also
    has states that come and go, which look like outliers where they are rare in a side. Both sides
    are taken to have one straight drift, which goes on from one to the other. Nothing can be told
    where what grew may be that drift and noise, or changed inside a run, not between both; nor
    where steps certainly drift and nothing grew.
    """
    found = min(len(before), len(after))
    if found < _STEPS:
        return Judgement(None, _too_few(before, after, "steps", _STEPS))
    drift = _drift(before, after, level)
    if drift.seen and drift.explains:
        return Judgement(None, drift.said)
    sides = _middle_half(before, after)
    alike = _alike(*_limited(*(one - np.median(one) for one in (before, after))))
    length, needed = _APART * max(alike, _alike(*sides)), _fewest(level)
    if found < needed * length:
        return Judgement(
            None,
            f"cannot be told: neighbours are alike, and {found} steps make fewer than {needed} "
            f"blocks of {length:.0f}; record {math.ceil(needed * length)} steps a side, or repeats",
        )
    chance = _chance(*sides, min(_BLOCKS, int(found / length)))
    if drift.explains if chance < level else drift.seen:
        return Judgement(None, drift.said)
    if chance < level and (moved := _moved(*sides, int(_APART * alike))):
        return Judgement(None, moved)
    return Judgement(chance)


def _fewest(level: float) -> int:
    """How many blocks a side can be surer than `level`."""
    return next(k for k in range(1, _BLOCKS + 1) if math.comb(2 * k, k) * level > 1)


def _too_few(before: Values, after: Values, what: str, needed: int) -> str:
    advice = {"steps": " (lockstep.step or the profiler's schedule marks them), or repeats"}
    return (
        f"cannot be told with so few values: {len(before)} and {len(after)} {what}; record at "
        f"least {needed} {what} a side{advice.get(what, '')}"
    )


# ── The test ─────────────────────────────────────────────────────────────────────────────────


def _chance(before: Values, after: Values, blocks: int) -> float:
    sides = [_medians(side, blocks) for side in (before, after)]
    return max(_permuted(*sides), _welch(*sides))


def _middle_half(before: Values, after: Values) -> tuple[Values, Values]:
    """Winsorize both sides by the quartiles of both together, so that the deal stays fair."""
    low, high = np.quantile(np.concatenate((before, after)), (0.25, 0.75))
    return before.clip(low, high), after.clip(low, high)


def _medians(values: Values, blocks: int) -> Values:
    return np.array([np.median(one) for one in np.array_split(values, blocks)])


def _permuted(before: Values, after: Values) -> float:
    pooled = np.concatenate((before, after))
    pooled = pooled - pooled.mean()
    sums = pooled[_ways(len(after))].sum(axis=1)
    return float(np.mean(sums >= pooled[len(before) :].sum() - 1e-9 * np.ptp(pooled)))


@cache
def _ways(blocks: int) -> Values:
    """Return all choices of half of the blocks, one a row."""
    return np.array(list(combinations(range(2 * blocks), blocks)))


def _welch(before: Values, after: Values) -> float:
    squares = [side.var(ddof=1) / len(side) for side in (before, after)]
    more, square = float(after.mean() - before.mean()), sum(squares)
    if not square:
        return 0.0 if more > 0 else 1.0
    freedom = square**2 / sum(one**2 / (len(before) - 1) for one in squares)
    return _student_tail(more / math.sqrt(square), freedom)


def _student_tail(t: float, freedom: float) -> float:
    """P(T > t): with t = √ν·tan(a) the density becomes a power of the cosine."""
    angle = np.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, 4001)
    gamma = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    area = float(np.trapezoid(np.cos(angle) ** (freedom - 1), angle))
    return min(1.0, math.exp(gamma) / math.sqrt(math.pi) * area)


# ── What steps of one run have in common ─────────────────────────────────────────────────────


class _Drift(NamedTuple):
    """seen: steps certainly drift. explains: what grew can be the drift, and noise."""

    seen: bool
    explains: bool
    said: str


def _drift(before: Values, after: Values, level: float) -> _Drift:
    """Fit one slope to both sides, and ask how far it leads from one's middle to the other's.

    The drift that is most like growth is hard to tell from it: of 30 steps with normal noise of
    2.9 %, the likelihood ratio, the best test there is, finds 5 % more in 84 of 100 pairs if it may
    take 1 in 100 such drifts for growth, and in 95 if 5. Hence `_DRIFTED`.

    The fit is Huber's of modified residuals ("Robust Statistics", 1981, section 7.8).
    """
    sides, count = (before, after), len(before) + len(after)
    places = [np.arange(len(side)) - (len(side) - 1) / 2 for side in sides]
    spread = sum(float(at @ at) for at in places)
    slope, middles = 0.0, [float(np.median(side)) for side in sides]
    for _ in range(_FITS):
        fitted = [middle + slope * at for middle, at in zip(middles, places, strict=True)]
        rest = _limited(*(side - fit for side, fit in zip(sides, fitted, strict=True)))
        middles = [middle + float(one.mean()) for middle, one in zip(middles, rest, strict=True)]
        slope += sum(float(at @ one) for at, one in zip(places, rest, strict=True)) / spread
    alike = _alike(*rest)
    square = alike * sum(float(one @ one) for one in rest) / (count - 3) / _within(rest) ** 2
    if not square:
        return _Drift(False, False, "")
    way, error = slope * count / 2, math.sqrt(square / spread) * count / 2
    freedom = max(count / alike - 3, 2.0)
    seen = _student_tail(abs(way) / error, freedom) < _DRIFTS / 2
    wide = math.sqrt(square * (1 / len(before) + 1 / len(after)) + error**2)
    beyond = _student_tail((middles[1] - middles[0] - way) / wide, freedom)
    typical = float(np.median(before))
    by = f" (by about {percent(way / typical, 1, sign=True)} in each)" if typical else ""
    said = f"cannot be compared: inside the runs, too, it may drift{by}; {_BY_TURNS}"
    return _Drift(seen, beyond > (level if seen else _DRIFTED), said)


def _moved(before: Values, after: Values, length: int) -> str:
    """Say where steps certainly changed, if that is not between both sides; else return "".

    Where a program changed, steps change between the sides; where a machine's state did, anywhere.
    A change is placed by least squares. Where it lies between the sides, shuffling each side's
    blocks makes no difference: the best place fits no better than it does in shuffles (Kirch,
    "Block permutation principles for the change analysis of dependent data", 2007).
    """
    rng, rows = np.random.default_rng(0), []
    for side in (before, after):
        rows.append(np.tile(_medians(side, min(len(side) // length, _PLACES)), (_SHUFFLES, 1)))
        rows[-1][1:] = rng.permuted(rows[-1][1:], axis=1)
    both = np.hstack(rows)
    place = np.arange(1, both.shape[1])
    sums = (both - both[0].mean()).cumsum(axis=1)[:, :-1]
    fits = np.abs(sums) / np.sqrt(place * place[::-1])
    best = fits.max(axis=1)
    if np.mean(best >= best[0] * (1 - 1e-9)) > _MOVED:
        return ""
    where = "the baseline" if place[fits[0].argmax()] < rows[0].shape[1] else "the new run"
    return f"cannot be compared: it changed inside {where}, not only between both; {_BY_TURNS}"


def _limited(*sides: Values) -> list[Values]:
    """Move what lies far from 0 nearer to it, on both sides by the same limit."""
    limit = _FAR * float(np.median(np.abs(np.concatenate(sides)))) or math.inf
    return [one.clip(-limit, limit) for one in sides]


def _within(limited: list[Values]) -> float:
    """Return the share of values that were not moved."""
    size = np.abs(np.concatenate(limited))
    return float(np.mean(size < size.max())) or 1.0


def _alike(*sides: Values) -> float:
    """Return over how many steps neighbours are alike; at least 1.

    In short series the autocorrelation comes out too small by (1 + 3 r) / n (Kendall, "Note on bias
    in the estimation of autocorrelation", 1954).
    """
    off = [side - side.mean() for side in sides]
    square = sum(float(one @ one) for one in off)
    found = sum(float(one[1:] @ one[:-1]) for one in off) / square if square else 0.0
    steps = sum(map(len, sides)) / len(sides)
    r = min(max(found + (1 + 3 * found) / steps, 0.0), 0.99)
    return (1 + r) / (1 - r)
