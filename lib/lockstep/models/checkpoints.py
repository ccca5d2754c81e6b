"""How often to save: what a run takes that fails at random, by the interval between checkpoints."""

from __future__ import annotations

import math


def expected_time(interval: float, save: float, mtbf: float) -> float:
    """Return the expected seconds of a useful second of a run that saves after each `interval`
    useful seconds, for `save` seconds, and is interrupted on average each `mtbf` seconds, whatever
    happened before; what follows an interruption costs the same with all intervals.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps"
    (2006), equation 13 with a restart of no time.
    """
    return mtbf * math.expm1((interval + save) / mtbf) / interval


def best_interval(save: float, mtbf: float) -> float:
    """Return the interval, in seconds, of which `expected_time` is least, to 12 digits: where its
    derivative is 0, and (interval / mtbf - 1) · e^(interval / mtbf) = -e^(-save / mtbf)."""
    low, high = 0.0, 1.0  # in units of mtbf
    for _ in range(60):
        middle = (low + high) / 2
        if (middle - 1) * math.exp(middle) < -math.exp(-save / mtbf):
            low = middle
        else:
            high = middle
    return high * mtbf
