"""Whether two streams make independent products faster: one stream and two by turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from lockstep.base.machine import Machine
from lockstep.launch import torchrun

from .experiment import Experiment, Result, device_name

SHAPES = {  # of lab 04: rows, inner dimension, columns
    "large": (4096, 4096, 4096),
    "uneven": (1536, 4096, 3072),
    "small": (256, 256, 256),
}
PROCESSES, TURNS = 9, 41


def gains(cuda: Any, turns: int = TURNS) -> dict[str, float]:
    """Return how many times as fast eight products are on two streams as on one, by shape.

    The median of turns, each of which times both, one directly after the other.
    """
    streams, found = [cuda.Stream(), cuda.Stream()], {}
    for name, (m, k, n) in SHAPES.items():
        a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(k, n, dtype=torch.bfloat16, device="cuda")

        def seconds(first: Any, second: Any, a: Any = a, b: Any = b) -> float:
            cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(4):
                for stream in (first, second):
                    with cuda.stream(stream):
                        a @ b
            cuda.synchronize()
            return time.perf_counter() - begun

        one, two = (streams[0], streams[0]), (streams[0], streams[1])
        for both in (one, two, one, two):  # not counted: first calls, and a clock that rises
            seconds(*both)
        found[name] = statistics.median(seconds(*one) / seconds(*two) for _ in range(turns))
    return found


def run(machine: Machine, _: int) -> Iterator[Result]:
    """Yield the gains of several processes, by shape."""
    each = []
    for _ in range(PROCESSES):
        job = torchrun(gains, torch.cuda, nproc_per_node=1, init=False, show=False)
        each.append(job[0])
    content = {"turns": TURNS, "gains": {name: [one[name] for one in each] for name in SHAPES}}
    what = f"eight products on one stream and on two, by turns, in {PROCESSES} processes"
    yield Result(f"streams/{device_name(machine)}.json", what, content)


EXPERIMENT = Experiment(
    "two-streams",
    "how much faster independent products are on two streams",
    minutes=2,
    run=run,
    ranks=1,
    least=1,
    most=1,
    writes={"streams/*.json": ("gains", "turns")},
)
