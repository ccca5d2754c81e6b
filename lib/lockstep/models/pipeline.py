"""Pipelines: when each step of a schedule runs, and what a rank keeps meanwhile.

A schedule has a list of steps for each rank, which it takes in this order. "F3" is the forward of
microbatch 3 and "B3" its backward. Where the backward is split (Qi et al. 2023, "Zero bubble
pipeline parallelism"), "B3" has the gradient of the input only and "W3" that of the weights.
Where a rank has several chunks of the model (Narayanan et al. 2021, "Efficient large-scale language
model training on GPU clusters using Megatron-LM"), "F3.1" is the forward of its chunk 1: of p
ranks, chunk c of rank r is stage c·p + r of the whole.

Not modelled: links that several messages share, and the time that a send takes from its rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_STEP = re.compile(r"(?P<way>[FBW])(?P<number>\d+)(?:\.(?P<chunk>\d+))?", re.ASCII)


class Standstill(ValueError):
    """A schedule that cannot go on; `waits`: for each rank that is not done, its step."""

    def __init__(self, waits: dict[int, str]):
        said = ", ".join(f"rank {rank} for {step}" for rank, step in waits.items())
        super().__init__(f"no rank can take its next step: {said}")
        self.waits = waits


@dataclass(frozen=True)
class Step:
    """way: "F", "B" or "W". number: of the microbatch. chunk: of its rank's chunks."""

    way: str
    number: int
    chunk: int = 0

    @classmethod
    def of(cls, text: str) -> Step:
        """Raises ValueError for what is no step."""
        found = _STEP.fullmatch(text)
        if found is None:
            raise ValueError(
                f'{text!r} is not a step; steps are such as "F0", "B12", "W3" and "F0.1"'
            )
        return cls(found["way"], int(found["number"]), int(found["chunk"] or 0))


@dataclass(frozen=True)
class Box:
    """One step of one rank, from `start` to `end`."""

    rank: int
    step: str
    start: float
    end: float


@dataclass(frozen=True)
class Plan:
    """The times at which the steps of `ranks` ranks run."""

    ranks: int
    boxes: tuple[Box, ...]

    @property
    def length(self) -> float:
        """From the first step's start to the last one's end."""
        return max((box.end for box in self.boxes), default=0.0)

    @property
    def idle(self) -> float:
        """The share of all ranks' time in which they have nothing to do: the bubble."""
        busy = sum(box.end - box.start for box in self.boxes)
        return 1 - busy / (self.ranks * self.length) if self.boxes else 0.0


def simulate(
    orders: Sequence[Sequence[str]],
    *,
    chunks: int = 1,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 1.0,
    weights: float | Sequence[float] = 1.0,
    message: float = 0.0,
) -> Plan:
    """Each rank's steps in its order, each as soon as it can run.

    A forward needs that of the stage before, a backward its own forward and the backward of the
    stage behind, a weight step its own backward. forward, backward, weights: how long a step takes,
    in any unit, on all ranks or on each. message: how long after a step its result is on another
    rank.

    Raises ValueError for what is no step and for a number of durations that is not that of ranks,
    and Standstill where ranks wait for ever.
    """
    ranks = len(orders)
    ways = {"F": forward, "B": backward, "W": weights}
    seconds = {way: _on_each(duration, ranks) for way, duration in ways.items()}
    todo = [[(text, Step.of(text)) for text in order] for order in orders]
    ends: dict[tuple[str, int, int], float] = {}  # of way, microbatch and stage
    free, boxes = [0.0] * ranks, list[Box]()
    while any(todo):
        before = len(boxes)
        for rank, steps in enumerate(todo):
            while steps:
                text, step = steps[0]
                stage = step.chunk * ranks + rank
                needs = _needs(step, stage, ranks * chunks)
                if any(need not in ends for need in needs):
                    break
                ready = [ends[need] + (message if need[2] != stage else 0.0) for need in needs]
                start = max([free[rank], *ready])
                free[rank] = ends[step.way, step.number, stage] = start + seconds[step.way][rank]
                boxes.append(Box(rank, text, start, free[rank]))
                steps.pop(0)
        if len(boxes) == before:
            raise Standstill({rank: steps[0][0] for rank, steps in enumerate(todo) if steps})
    return Plan(ranks, tuple(boxes))


def _on_each(duration: float | Sequence[float], ranks: int) -> Sequence[float]:
    if not isinstance(duration, Sequence):
        return [duration] * ranks
    if len(duration) != ranks:
        raise ValueError(f"{len(duration)} durations for {ranks} ranks: give one, or one for each")
    return duration


def _needs(step: Step, stage: int, stages: int) -> list[tuple[str, int, int]]:
    """Return what must have ended before a step."""
    if step.way == "F":
        return [("F", step.number, stage - 1)] if stage else []
    if step.way == "W":
        return [("B", step.number, stage)]
    behind = [("B", step.number, stage + 1)] if stage + 1 < stages else []
    return [("F", step.number, stage), *behind]


def kept(order: Sequence[str]) -> int:
    """The most forwards of one rank whose activations it keeps at once.

    From a forward's begin until the end of its backward, or of its weight step if it has one.
    Raises ValueError for what is no step.
    """
    steps = [Step.of(text) for text in order]
    last = {(step.number, step.chunk): step.way for step in steps}
    alive = most = 0
    for step in steps:
        if step.way == "F":
            alive += 1
            most = max(most, alive)
        elif last[step.number, step.chunk] == step.way:
            alive -= 1
    return most


def _gpipe(stage: int, stages: int, microbatches: int) -> list[str]:
    return [f"{way}{number}" for way in "FB" for number in range(microbatches)]


def _one_f_one_b(stage: int, stages: int, microbatches: int) -> list[str]:
    first = min(stages - 1 - stage, microbatches)
    turns = [step for at in range(first, microbatches) for step in (f"F{at}", f"B{at - first}")]
    last = range(microbatches - first, microbatches)
    return [*(f"F{at}" for at in range(first)), *turns, *(f"B{at}" for at in last)]


# The orders of one rank, of its number, the number of ranks and of microbatches: GPipe (Huang and
# others, 2019), and 1F1B (PipeDream-Flush; Narayanan and others, 2021).
SCHEDULES: Mapping[str, Callable[[int, int, int], Sequence[str]]] = {
    "GPipe": _gpipe,
    "1F1B": _one_f_one_b,
}
