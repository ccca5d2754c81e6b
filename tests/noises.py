"""Step times as noise makes them: of recordings, and of forms that nobody fitted the gate to.

A noise takes a generator and a number of steps, and returns factors around 1. `pair` makes both
sides of a comparison: (baseline, new).
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from lockstep.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "traces"
PROGRAMS = sorted(one.name for one in DATA.iterdir() if any(one.glob("*.json.gz")))

Rng = np.random.Generator
Steps = np.ndarray[Any, Any]
Noise = Callable[[Rng, int], Steps]
Pair = Callable[[Rng], tuple[Steps, Steps]]


@cache
def recorded_noise() -> Steps:
    """How far recorded steps lie from their program's mean, as shares of it."""
    off: list[float] = []
    for name in PROGRAMS:
        spent = Trace.load(DATA / name).breakdown(skip=1).steps
        of_step: dict[int | None, list[int]] = {}
        for one in spent:
            of_step.setdefault(one.step, []).append(one.length)
        longest = np.array([max(every) for every in of_step.values()], float)
        n = len(longest)
        if n < 2:  # one step says nothing of noise
            continue
        off += (((longest / longest.mean()) - 1) * np.sqrt(n / (n - 1))).tolist()
    return np.array(off)


def recorded(rng: Rng, steps: int) -> Steps:
    return 1 + rng.choice(recorded_noise(), steps)


def normal(rng: Rng, steps: int, deviation: float = 0.03) -> Steps:
    return rng.normal(1, deviation, steps)


def heavy_tails(rng: Rng, steps: int) -> Steps:
    return np.maximum(1 + 0.02 * rng.standard_t(3, steps), 0.5)


def two_modes(rng: Rng, steps: int) -> Steps:
    return 1 + 0.1 * (rng.random(steps) < 0.5) + rng.normal(0, 0.003, steps)


def spikes(rng: Rng, steps: int) -> Steps:
    return normal(rng, steps, 0.01) * np.where(
        rng.random(steps) < 0.1, rng.uniform(1.5, 5, steps), 1
    )


def skewed(rng: Rng, steps: int) -> Steps:
    return 0.9 + rng.exponential(0.1, steps)


def coarse_timer(rng: Rng, steps: int) -> Steps:
    return np.round(20 * normal(rng, steps, 0.02)) / 20


def alike(rng: Rng, steps: int, r: float = 0.6, deviation: float = 0.03) -> Steps:
    """Each step is like the last one: their correlation is r."""
    value, found = rng.normal(0, deviation), []
    for fresh in rng.normal(0, deviation * np.sqrt(1 - r * r), steps):
        value = r * value + fresh
        found.append(1 + value)
    return np.array(found)


def states(rng: Rng, steps: int, stay: int = 10) -> Steps:
    """Two states, 10 % apart, that stay for so many steps on average."""
    changes = rng.random(steps) < 1 / stay
    state = (rng.integers(2) + np.cumsum(changes)) % 2
    return 1 + 0.1 * state + rng.normal(0, 0.01, steps)


def of_repeats(rng: Rng, repeats: int) -> Steps:
    """Medians of runs of 20 steps, where each run has an offset of its own."""
    runs = [np.median(recorded(rng, 20)) for _ in range(repeats)]
    return np.array(runs) * normal(rng, repeats, 0.01)


def pair(noise: Noise, before: int = 30, after: int | None = None, times: float = 1.0) -> Pair:
    """Return what draws both sides; `times`: how much longer the new steps are."""
    return lambda rng: (noise(rng, before), noise(rng, after or before) * times)


def halves(noise: Noise, steps: int) -> Pair:
    """Both sides are parts of one run."""

    def drawn(rng: Rng) -> tuple[Steps, Steps]:
        both = noise(rng, 2 * steps)
        return both[:steps], both[steps:]

    return drawn


def louder(before: int, after: int) -> Pair:
    """One program on a quiet machine, and on one with ten times as much noise."""
    return lambda rng: (normal(rng, before, 0.005), normal(rng, after, 0.05))


def drifting(total: float, steps: int = 30) -> Pair:
    """A drift, by `total` from the first step of one run to the last of the other."""

    def drawn(rng: Rng) -> tuple[Steps, Steps]:
        both = np.linspace(1, 1 + total, 2 * steps) * recorded(rng, 2 * steps)
        return both[:steps], both[steps:]

    return drawn


def warm(steps: int = 30, times: float = 1.0) -> Pair:
    """The first step of either side takes ten times as long."""

    def drawn(rng: Rng) -> tuple[Steps, Steps]:
        sides = pair(recorded, steps, times=times)(rng)
        for side in sides:
            side[0] *= 10
        return sides

    return drawn


# Equal programs: steps of one run a side, 30 where nothing else is said.
EQUAL: dict[str, Pair] = {
    "noise of the recordings": pair(recorded),
    "the same, 16 steps": pair(recorded, 16),
    "the same, 100 steps": pair(recorded, 100),
    "the same, the first step ten times as long": warm(),
    "normal": pair(normal),
    "heavy tails (Student's t, 3 degrees of freedom)": pair(heavy_tails),
    "skewed (exponential)": pair(skewed),
    "two modes": pair(two_modes),
    "spikes in every tenth step": pair(spikes),
    "a timer of ticks of 5 %": pair(coarse_timer),
    "neighbours alike, r = 0.3": pair(partial(alike, r=0.3)),
    "neighbours alike, r = 0.6": pair(alike),
    "neighbours alike, r = 0.9": pair(partial(alike, r=0.9)),
    "neighbours alike, r = 0.9, 100 steps": pair(partial(alike, r=0.9), 100),
    "neighbours alike, r = 0.9, 5 steps": pair(partial(alike, r=0.9), 5),
    "30 quiet steps, 3 noisy ones": louder(30, 3),
    "30 quiet steps, 5 noisy ones": louder(30, 5),
    "30 quiet steps, 30 noisy ones": louder(30, 30),
    "two states of ten steps, 30 steps": pair(states),
    "two states of ten steps, 100 steps": pair(states, 100),
    "states of 100 steps through both, 30 steps": halves(partial(states, stay=100), 30),
    "states of 100 steps through both, 100 steps": halves(partial(states, stay=100), 100),
    "a drift by 4 % through both": drifting(0.04),
    "a drift by 10 % through both": drifting(0.1),
    "a drift by 20 % through both": drifting(0.2),
    "a drift by 30 % through both": drifting(0.3),
    "a drift by 20 % through both, 100 steps": drifting(0.2, 100),
}
SLOWER: dict[str, Pair] = {
    **{
        f"{share} % slower, {steps} steps": pair(recorded, steps, times=1 + share / 100)
        for share, steps in ((2, 30), (3, 30), (5, 16), (5, 20), (5, 30), (5, 60), (5, 100))
    },
    "10 % slower, 16 steps": pair(recorded, 16, times=1.1),
    "10 % slower, 30 steps": pair(recorded, times=1.1),
    "5 % slower, the first step ten times as long": warm(times=1.05),
    "5 % slower, heavy tails": pair(heavy_tails, times=1.05),
    "5 % slower, spikes": pair(spikes, times=1.05),
    "5 % slower, neighbours alike, r = 0.3": pair(partial(alike, r=0.3), times=1.05),
}
# Repeats, by their medians
REPEATS: dict[str, Pair] = {
    **{f"equal, {number} repeats": pair(of_repeats, number) for number in (3, 5, 7, 8, 16)},
    **{
        f"{share} % slower, {number} repeats": pair(of_repeats, number, times=1 + share / 100)
        for share, number in ((5, 5), (5, 6), (5, 7), (5, 8), (5, 10), (10, 7), (10, 8))
    },
}
