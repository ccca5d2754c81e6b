"""The cost of an inference server's passes: prefill, decode and mixed ones apart."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low

from ...base.formatting import milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..slices import NONE, Slices, TraceError
from ..steps import steps
from .breakdown import Spent, breakdown
from .wording import Answer


@dataclass(frozen=True, slots=True)
class Passes:
    """All passes of one phase on one rank. Times in nanoseconds, sums of all passes.

    phase: "prefill", "decode", "mixed". passes: how many. requests: of the median pass. tokens: of
    all passes, NONE where one does not say. length, compute, exposed, copies, idle: see `Spent`;
    idle is all of it. host_bound: of it. median: of the passes' lengths.
    """

    rank: int
    phase: str
    passes: int
    requests: int
    tokens: int
    length: int
    median: int
    compute: int
    exposed: int
    copies: int
    idle: int
    host_bound: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens * 1e9 / self.length if self.tokens != NONE and self.length else 0.0


@dataclass(frozen=True)
class Serving(Answer):
    """By rank and phase."""

    passes: tuple[Passes, ...]
    notes: tuple[str, ...]
    stamp: Provenance

    def _tables(self) -> list[Table]:
        heads = ["rank", "phase", "passes", "requests", "tokens", "tokens/s", "median", "length"]
        heads += ["compute", "exposed communication", "exposed copies", "idle", "host-bound"]
        passes = self._table(
            "passes of the server · ms",
            heads,
            [
                [
                    *(one.rank, one.phase, f"{one.passes:,}", f"{one.requests:,}"),
                    *(("not said", "") if one.tokens == NONE else _tokens(one)),
                    *(milliseconds(one.median), milliseconds(one.length)),
                    *(
                        percent(share / max(one.length, 1), 1)
                        for share in (one.compute, one.exposed, one.copies, one.idle)
                    ),
                    percent(one.host_bound / max(one.length, 1), 1),
                ]
                for one in self.passes
            ],
        )
        return [passes]


def _tokens(one: Passes) -> tuple[str, str]:
    return f"{one.tokens:,}", f"{one.tokens_per_second:,.0f}"


def serving(trace: Slices, *, skip: int = 0) -> Serving:
    """Return the cost of passes, by the annotations of vLLM, SGLang and ATOM: see
    `lockstep.trace.steps`.

    A pass lasts until the next begins, as steps do in `breakdown`: what the server does between
    passes counts to the pass before. Tokens are those that go in: a decoding pass that drafts none
    takes one a request. Raises TraceError where no step is such a pass, and as `breakdown` does.
    """
    batch = {(one.rank, one.number): one.batch for one in steps(trace)}
    if not any(batch.values()):
        raise TraceError("no step of these traces is a pass of vLLM, SGLang or ATOM")
    found = breakdown(trace, skip=skip)
    of: dict[tuple[int, str], list[tuple[Spent, int, int]]] = {}
    for spent in found.steps:
        what = batch[spent.rank, spent.step or 0]
        if what is not None:
            own = of.setdefault((spent.rank, what.phase), [])
            own.append((spent, what.requests, what.tokens))
    passes = []
    for (rank, phase), every in sorted(of.items()):
        tokens = [tokens for *_, tokens in every]
        sums = {
            name: sum(getattr(one, name) for one, *_ in every)
            for name in ("length", "compute", "exposed", "copies", "idle", "host_bound")
        }
        passes.append(
            Passes(
                rank,
                phase,
                passes=len(every),
                requests=median_low(requests for _, requests, _ in every),
                tokens=NONE if NONE in tokens else sum(tokens),
                median=median_low(one.length for one, *_ in every),
                **sums,
            )
        )
    return Serving(tuple(passes), found.notes, found.stamp)
