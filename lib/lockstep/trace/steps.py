"""The steps of every rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .slices import NONE, Column, Kind, Slices, once

_NUMBER = re.compile(r"step\s*[#:=_-]?\s*(\d{1,9})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Step:
    """One step of one rank: [start, end) in nanoseconds, from the CPU-side annotation.

    name: the annotation's, "" where there is none. batch: of a server's step, what it worked on.
    """

    rank: int
    number: int
    start: int
    end: int
    name: str = ""

    @property
    def batch(self) -> Batch | None:
        return batch_in(self.name)


@dataclass(frozen=True)
class Batch:
    """The batch of one pass of an inference server, as its annotation says.

    phase: "prefill", "decode", or "mixed". requests: all of them. tokens: that go into the pass,
    NONE where it does not say.
    """

    phase: str
    requests: int
    tokens: int = NONE


def batch_in(name: str) -> Batch | None:
    """Return what the annotation of a server's step says, None for other steps.

    vLLM: "execute_context_C(TOKENS)_generation_G(TOKENS)", or with more in it
    "execute_TOKENS_context_C(sq…)_generation_G(sq…)". SGLang: "step[EXTEND bs=B toks=T]",
    "step[DECODE bs=B]". ATOM: "prefill[bs=B tok=T]", "decode[bs=B …]".
    """
    name = name[:1000]
    if found := _VLLM.match(name):
        context, generation = int(found["context"]), int(found["generation"])
        phase = "mixed" if context and generation else "prefill" if context else "decode"
        said = found["all"], found["new"], found["old"]
        tokens = NONE
        if said[0]:
            tokens = int(said[0])
        elif said[1] and said[2]:
            tokens = int(said[1]) + int(said[2])
        return Batch(phase, context + generation, tokens)
    if found := _SGLANG.match(name):
        phase = _PHASES.get(found["mode"].lower(), found["mode"].lower())
        # A decoding pass takes one token of each request, unless it drafts; then it does not say.
        return Batch(phase, int(found["requests"]), int(found["tokens"] or NONE))
    return None


_VLLM = re.compile(
    r"execute_((?P<all>\d+)_)?context_(?P<context>\d+)(\((?P<new>\d+)?[^)]*\))?"
    r"_generation_(?P<generation>\d+)(\((?P<old>\d+)?[^)]*\))?"
)
_SGLANG = re.compile(
    r"(step\[)?(?P<mode>[A-Za-z_]+)[ \[]bs=(?P<requests>\d+)(\s+tok?s?=(?P<tokens>\d+))?"
)
_PHASES = {"extend": "prefill"}


@once
def steps(trace: Slices) -> tuple[Step, ...]:
    """The steps of every rank, by rank and time, from the annotations on the CPU.

    Start and end are the annotation's own, except that an annotation which reaches into the next
    one ends where that begins. Of annotations inside each other the outermost counts, of several
    threads the one with the most, and where the profiler has numbered the steps itself
    (`ProfilerStep#N`) nothing else does. The number is the one in the name ("step 3"), or else the
    step's place, from 0. The GPU's copies of the annotations are never used: they begin with the
    first kernel, not with the step.

    A rank without such annotations has one step, from its first start to its last end, whose
    number is NONE; a rank without slices has none.
    """
    rows = np.flatnonzero(trace.kind == Kind.STEP)
    rows = rows[trace.stream[rows] == NONE]
    return tuple(
        step
        for rank in trace.ranks
        for step in _of_rank(trace, rank, rows[trace.rank[rows] == rank])
    )


def steps_by_rank(trace: Slices) -> dict[int, list[Step]]:
    """The same by rank, of ranks that have slices."""
    found: dict[int, list[Step]] = {}
    for step in steps(trace):
        found.setdefault(step.rank, []).append(step)
    return found


def _of_rank(trace: Slices, rank: int, rows: Column) -> list[Step]:
    if not len(rows):
        return _whole(trace, rank)
    names = {int(name): trace.names[name] for name in np.unique(trace.name[rows])}
    profilers = [name for name, text in names.items() if text.startswith("ProfilerStep")]
    if profilers:
        rows = rows[np.isin(trace.name[rows], profilers)]
    rows = rows[trace.lane[rows] == np.bincount(trace.lane[rows]).argmax()]
    start = trace.start[rows]
    end = start + trace.duration[rows]
    before = np.concatenate(([start[0]], np.maximum.accumulate(end)[:-1]))
    outermost = (start >= before) | (end > before)
    rows, start, end = rows[outermost], start[outermost], end[outermost]
    end = np.minimum(end, np.concatenate((start[1:], end[-1:])))
    found = [_NUMBER.search(names[int(name)][:1000]) for name in trace.name[rows]]
    numbers = [int(one[1]) if one else place for place, one in enumerate(found)]
    return [
        Step(rank, number, int(start[place]), int(end[place]), names[int(trace.name[row])])
        for place, (number, row) in enumerate(zip(numbers, rows, strict=True))
    ]


def _whole(trace: Slices, rank: int) -> list[Step]:
    rows = trace.where(rank=rank)
    if not len(rows):
        return []
    start, end = trace.start[rows], trace.end[rows]
    return [Step(rank, NONE, int(start.min()), int(end.max()))]
