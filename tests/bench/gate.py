"""How often the gate errs, as a table: `python tests/bench/gate.py` writes `data/GATE.md`.

    gate.py [--pairs 300] [--to FILE]

Pairs with the noises of `tests/noises.py` and with steps measured here, on a CPU that other
processes keep busy; and the pairs of `tests/test_gate.py`. About eight minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]

from lockstep import gate  # noqa: E402
from noises import DATA, EQUAL, REPEATS, SLOWER, Pair, Rng, Steps, recorded_noise  # noqa: E402
from test_gate import RECORDED, SYNTHETIC, draw, grown, run_of  # noqa: E402

HEAD = """\
# How often `lockstep gate` errs

Written by `python tests/bench/gate.py`. The gate may fail in 1 of 100 pairs of equal programs. It
fails a pair, passes it, or cannot tell. Runs have 30 steps, and a side is one run, where nothing
else is said. The noise of the recordings is how far {steps} steps of programs on 4 H200s lie from
their program's mean (root mean square {spread:.1%}); `tests/noises.py` has the other forms. Steps
of a busy CPU are a small network's training steps, measured while this was written, beside as many
processes as there are CPUs, which compute and sleep for random times; pairs are consecutive pieces.

What the gate cannot know shows here, too: a drift through both runs that is too small to be seen
in their noise, and a state of the machine that begins within a few steps of the new run, are taken
for growth more often than in 1 of 100 pairs. Fewer than 16 steps or 5 repeats a side tell nothing.
"""


# ── Steps of a busy CPU ──────────────────────────────────────────────────────────────────────


def compute_and_sleep(seed: int) -> None:
    chance = random.Random(seed)
    while True:
        time.sleep(chance.expovariate(2))
        end = time.monotonic() + chance.expovariate(2)
        while time.monotonic() < end:
            sum(range(1000))


@contextmanager
def busy() -> Iterator[None]:
    started = multiprocessing.get_context("spawn")
    seeds = range(os.cpu_count() or 1)
    others = [started.Process(target=compute_and_sleep, args=(seed,)) for seed in seeds]
    for one in others:
        one.start()
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.join()


def cpu_steps(count: int) -> Steps:
    """Return how many nanoseconds each of so many training steps took."""
    import torch

    torch.set_num_threads(1)
    layers = torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)
    model, inputs = torch.nn.Sequential(*layers), torch.randn(64, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times = [time.perf_counter_ns()]
    for _ in range(count):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter_ns())
    return np.diff(times).astype(float)


def pieces(measured: Steps, steps: int, times: float = 1.0) -> Pair:
    """Two consecutive pieces of what was measured, in units of its median."""

    def drawn(rng: Rng) -> tuple[Steps, Steps]:
        at = int(rng.integers(len(measured) - 2 * steps))
        both = measured[at : at + 2 * steps] / np.median(measured)
        return both[:steps], both[steps:] * times

    return drawn


# ── Tables ───────────────────────────────────────────────────────────────────────────────────


def row(name: str, drawn: Pair, pairs: int) -> list[str]:
    """Count how many of so many pairs the gate fails, passes, and cannot tell.

    Repeats are runs of three steps alike.
    """
    rng, found = np.random.default_rng(zlib.crc32(name.encode())), []
    for _ in range(pairs):
        sides = drawn(rng)
        runs = [
            [run_of([value] * 3) for value in side] if "repeats" in name else run_of(side)
            for side in sides
        ]
        found.append(gate(*runs).verdict)
    return [name, *(f"{found.count(one)}" for one in ("FAILED", "passed", "CANNOT TELL"))]


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


def recorded_pairs() -> Iterable[list[str]]:
    for before, after in RECORDED:
        found = gate(DATA / before, DATA / after)
        untold = {one.name for one in found.measures if one.untold}
        yield [before, after, named(grown(found)), named(untold)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=300, help="of each program")
    parser.add_argument("--to", type=Path, default=ROOT / "data" / "GATE.md", metavar="FILE")
    asked = parser.parse_args()
    with busy():
        measured = cpu_steps(1_000 + 60 * asked.pairs)
    equal, slower = dict(EQUAL), dict(SLOWER)
    equal |= {f"a busy CPU, {steps} steps": pieces(measured, steps) for steps in (30, 100, 300)}
    slower |= {
        f"{more} times as long, a busy CPU, 100 steps": pieces(measured, 100, more)
        for more in (1.5, 2.0)
    }
    columns = [f"of {asked.pairs} pairs it", "fails", "passes", "cannot tell"]
    off = recorded_noise()
    parts = [
        HEAD.format(steps=len(off), spread=np.sqrt(np.mean(off**2))),
        *(
            f"## {title}\n\n{table(columns, (row(*one, asked.pairs) for one in every.items()))}\n"
            for title, every in (
                ("Equal programs", equal),
                ("Slower programs", slower),
                ("Repeats, each of a step time of its own", REPEATS),
            )
        ),
        "## Twenty synthetic pairs\n",
        table(["change", "seed", "grew in truth", "the gate says", ""], synthetic()),
        "\n## Six recorded pairs, of three steps a side\n",
        table(["baseline", "new", "grew", "cannot be told"], recorded_pairs()),
    ]
    text = "\n".join(parts) + "\n"
    asked.to.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
