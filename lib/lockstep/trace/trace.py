"""A trace, and every question that it answers; each is answered by a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ..base.provenance import Provenance
from .analyses.allocations import allocations as _allocations
from .analyses.breakdown import breakdown as _breakdown
from .analyses.cause import Cause, cause
from .analyses.clock import align as _align
from .analyses.collectives import Collectives, collectives
from .analyses.critical import CriticalPath, critical_path
from .analyses.diff import diff as _diff
from .analyses.kernels import kernels as _kernels
from .analyses.launches import launches as _launches
from .analyses.rates import rates as _rates
from .analyses.replays import replays as _replays
from .analyses.roofline import roofline as _roofline
from .analyses.serving import serving as _serving
from .analyses.streams import streams as _streams
from .analyses.traffic import Traffic, traffic
from .analyses.tree_diff import tree_diff as _tree_diff
from .analyses.what_if import WhatIf, what_if
from .read import jobs
from .read.flight import flight as _flight
from .read.kineto.load import Source, load, load_runs
from .read.memory_snapshot import memory as _memory
from .slices import Slices, once
from .steps import steps as _steps
from .write.rows import to_pandas as _to_pandas

_aligned = once(_align)
Said = TypeVar("Said", bound=Collectives | CriticalPath | WhatIf)


class Trace(Slices):
    """The slices of every rank as one immutable table (see `Slices`), with a method per question.

    Methods that need one clock align the ranks by themselves, and end their notes with the
    certificate.
    """

    # ── Where it comes from; `from_slices` makes one by hand ─────────────────────────────────

    @classmethod
    def load(
        cls,
        source: Source,
        *,
        stamp: Provenance | None = None,
        cache: bool = True,
        processes: int | None = None,
    ) -> Trace:
        """Read the Kineto traces of N ranks: see `lockstep.trace.read.kineto.load`."""
        return cls.of_slices(load(source, stamp=stamp, cache=cache, processes=processes))

    @classmethod
    def runs(cls, source: Source, *, cache: bool = True) -> dict[str, Trace]:
        """The traces of several runs, or repeats of one: see `load_runs` there."""
        found = load_runs(source, cache=cache)
        return {name: cls.of_slices(run) for name, run in found.items()}

    @classmethod
    def of(cls, job: jobs.Job) -> Trace:
        """Read a job's profiles, or its call record: see `lockstep.trace.read.jobs`."""
        return cls.of_slices(jobs.slices_of(job))

    # ── Questions, each answered by the function of a module ─────────────────────────────────

    align = _align
    breakdown = _breakdown
    kernels = _kernels
    launches = _launches
    rates = _rates
    replays = _replays
    roofline = _roofline
    serving = _serving
    steps = _steps
    streams = _streams
    allocations = _allocations
    diff = _diff
    tree_diff = _tree_diff

    def collectives(self) -> Collectives:
        """Collectives across ranks, on one clock: see `lockstep.trace.analyses.collectives`."""
        return self._ask(collectives)

    def traffic(self, ranks_per_host: int | None = None) -> Traffic:
        """Imbalance of all-to-alls, what leaves hosts: see `lockstep.trace.analyses.traffic`."""
        return traffic(self, self.collectives(), ranks_per_host)

    def critical_path(self) -> CriticalPath:
        """Find the critical path, on one clock: see `lockstep.trace.analyses.critical`."""
        return self._ask(critical_path)

    def what_if(self, *kernels: str, times: int = 2) -> WhatIf:
        """Replay it with work faster, on one clock: see `lockstep.trace.analyses.what_if`."""
        return self._ask(partial(what_if, times=times), *kernels)

    def cause(self, *, skip: int = 0) -> Cause:
        """Name the most likely cause of slow steps: see `lockstep.trace.analyses.cause`."""
        return cause(self if self.has_one_clock else _aligned(self), skip=skip)

    def _ask(self, question: Callable[..., Said], *asked: str) -> Said:
        if self.has_one_clock:
            return question(self, *asked)
        answer = question(_aligned(self), *asked)
        return replace(answer, notes=(*answer.notes, str(_aligned(self).certificate)))

    # ── Questions to other records of a run ──────────────────────────────────────────────────

    memory = staticmethod(_memory)
    flight = staticmethod(_flight)

    # ── Other tools ──────────────────────────────────────────────────────────────────────────

    to_pandas = _to_pandas
