"""How often the gate errs, as a table: `python tests/bench/gate.py` writes `data/GATE.md`.

    gate.py [--pairs 300] [--to FILE]

The same pairs as in `tests/test_gate.py`: synthetic ones with the noise of recorded steps, and
recorded ones. About a minute on 2 cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]

from lockstep import gate  # noqa: E402
from test_gate import DATA, NOISE, RECORDED, SYNTHETIC, draw, grown, run_of  # noqa: E402

AGAIN = 10_000  # how much larger the other side's seed is
HEAD = f"""\
# How often `lockstep gate` errs

Written by `python tests/bench/gate.py`. The noise of synthetic runs is drawn from that of the
recorded programs on 4 H200s: how far their {len(NOISE)} steps lie from their program's mean
(root mean square {np.sqrt(np.mean(NOISE**2)):.1%}). Runs have 30 steps, where nothing else is said.
The gate may fail in 1 of 100 pairs of equal programs.
"""


def drifting(seed: int, steps: int = 30, alike: float = 0.6) -> Iterable[float]:
    rng, value = np.random.default_rng(seed), 0.0
    for _ in range(steps):
        value = alike * value + rng.normal(0, 0.02)
        yield 1 + value


def normal(seed: int, steps: int = 3) -> Iterable[float]:
    return list(np.random.default_rng(seed).normal(1, 0.03, steps))


Draw = Callable[[int], Iterable[float]]
RATES: dict[str, tuple[Draw, float]] = {
    "equal": (draw, 1.0),
    "equal, 3 steps of normal noise": (normal, 1.0),
    "equal, neighbours alike (r = 0.6)": (lambda seed: list(drifting(seed)), 1.0),
    "2 % slower": (draw, 1.02),
    "3 % slower": (draw, 1.03),
    "5 % slower": (draw, 1.05),
    "10 % slower": (draw, 1.1),
}


def failures(noise: Draw, factor: float, pairs: int) -> int:
    """Count the pairs, of so many, of which the gate says that steps or communication grew."""
    found = 0
    for seed in range(pairs):
        before, after = (np.array(list(noise(one))) for one in (seed, seed + AGAIN))
        found += not gate(run_of(before), run_of(after * factor)).passed
    return found


def table(columns: list[str], rows: Iterable[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(one)} |" for one in lines)


def named(measures: set[str]) -> str:
    return ", ".join(sorted(measures)) or "nothing"


def synthetic() -> Iterable[list[str]]:
    for name, (change, expected) in SYNTHETIC.items():
        for seed in (3, 4):
            before = run_of(draw(seed), ranks=change.get("ranks", 2))
            found = grown(gate(before, run_of(draw(seed + 50), **change)))
            verdict = "right" if found == expected else "WRONG"
            yield [name, str(seed), named(expected), named(found), verdict]


def recorded() -> Iterable[list[str]]:
    for (before, after), expected in RECORDED.items():
        found = grown(gate(DATA / before, DATA / after))
        verdict = "right" if found == expected else "WRONG"
        yield [before, after, named(expected), named(found), verdict]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=300, help="of each program")
    parser.add_argument("--to", type=Path, default=ROOT / "data" / "GATE.md", metavar="FILE")
    asked = parser.parse_args()
    pairs = asked.pairs
    rates = ([name, f"{failures(*one, pairs)} of {pairs}"] for name, one in RATES.items())
    parts = [
        HEAD,
        table(["program", "the gate fails in"], rates),
        "\n## Twenty synthetic pairs\n",
        table(["change", "seed", "grew in truth", "the gate says", ""], synthetic()),
        "\n## Six recorded pairs\n",
        table(["baseline", "new", "expected", "the gate says", ""], recorded()),
    ]
    text = "\n".join(parts) + "\n"
    asked.to.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
