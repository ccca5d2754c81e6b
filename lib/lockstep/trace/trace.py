"""A trace, and every question that it answers; each is answered by a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.provenance import Provenance
from .analyses.allocations import Allocations, allocations
from .analyses.breakdown import Breakdown, breakdown
from .analyses.cause import Cause, cause
from .analyses.clock import align
from .analyses.collectives import Collectives, collectives
from .analyses.critical import CriticalPath, critical_path
from .analyses.diff import Diff, diff
from .analyses.kernels import Kernels, kernels
from .analyses.launches import Launches, launches
from .analyses.rates import Rates, rates
from .analyses.serving import Serving, serving
from .analyses.streams import US, Streams, streams
from .analyses.traffic import Traffic, traffic
from .read import jobs
from .read.flight import Hang, flight
from .read.kineto.load import Source, load, load_runs
from .read.memory_snapshot import Memory, memory
from .slices import Slices, once
from .steps import Step, steps
from .write.frames import to_pandas, to_polars

_aligned = once(align)


def _on_one_clock(trace: Slices) -> Slices:
    return trace if trace.has_one_clock else _aligned(trace)


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
    def runs(
        cls,
        source: Source,
        *,
        stamp: Provenance | None = None,
        cache: bool = True,
        processes: int | None = None,
    ) -> dict[str, Trace]:
        """The traces of several runs, or repeats of one: see `load_runs` there."""
        found = load_runs(source, stamp=stamp, cache=cache, processes=processes)
        return {name: cls.of_slices(run) for name, run in found.items()}

    @classmethod
    def of(cls, job: jobs.Job) -> Trace:
        """Read a job's profiles, or its call record: see `lockstep.trace.read.jobs`."""
        return cls.of_slices(jobs.of(job))

    # ── Questions ────────────────────────────────────────────────────────────────────────────

    def align(self) -> Trace:
        """One clock for all ranks, with a certificate: see `lockstep.trace.analyses.clock`."""
        return align(self)

    def steps(self) -> tuple[Step, ...]:
        """The steps of every rank: see `lockstep.trace.steps`."""
        return steps(self)

    def breakdown(self, *, skip: int = 0) -> Breakdown:
        """Split up each rank's time: see `lockstep.trace.analyses.breakdown`."""
        return breakdown(self, skip=skip)

    def collectives(self) -> Collectives:
        """Collectives across ranks, on one clock: see `lockstep.trace.analyses.collectives`."""
        answer = collectives(_on_one_clock(self))
        return replace(answer, notes=(*answer.notes, *self._moved(answer.trace)))

    def traffic(self, ranks_per_host: int | None = None) -> Traffic:
        """Imbalance of all-to-alls, what leaves hosts: see `lockstep.trace.analyses.traffic`."""
        return traffic(self, self.collectives(), ranks_per_host)

    def launches(self) -> Launches:
        """Launch latency and queue depth: see `lockstep.trace.analyses.launches`."""
        return launches(self)

    def kernels(self, top: int = 10) -> Kernels:
        """Split up the GPU's time: see `lockstep.trace.analyses.kernels`."""
        return kernels(self, top)

    def rates(self) -> Rates:
        """Return the rates of kernels and copies, by shapes: see
        `lockstep.trace.analyses.rates`."""
        return rates(self)

    def serving(self, *, skip: int = 0) -> Serving:
        """Return the cost of a server's passes, by phase: see `lockstep.trace.analyses.serving`."""
        return serving(self, skip=skip)

    def streams(
        self, *, short: int = 10 * US, call: int = 50 * US, late: int = 100 * US
    ) -> Streams:
        """Each stream by itself, and what stands out: see `lockstep.trace.analyses.streams`."""
        return streams(self, short=short, call=call, late=late)

    def allocations(self) -> Allocations:
        """Memory by the profiler's own events: see `lockstep.trace.analyses.allocations`."""
        return allocations(self)

    def critical_path(self) -> CriticalPath:
        """Find the critical path, on one clock: see `lockstep.trace.analyses.critical`."""
        aligned = _on_one_clock(self)
        answer = critical_path(aligned)
        return replace(answer, notes=(*answer.notes, *self._moved(aligned)))

    def cause(self, *, skip: int = 0) -> Cause:
        """Name the most likely cause of slow steps: see `lockstep.trace.analyses.cause`."""
        return cause(_on_one_clock(self), skip=skip)

    def _moved(self, aligned: Slices) -> list[str]:
        return [] if aligned is self else [str(aligned.certificate)]

    def diff(self, after: Trace) -> Diff:
        """Compare with a later trace: see `lockstep.trace.analyses.diff`."""
        return diff(self, after)

    # ── Questions to other records of a run ──────────────────────────────────────────────────

    @staticmethod
    def memory(
        snapshot: str | Path | Mapping[str, Any],
        *,
        device: int | None = None,
        stamp: Provenance | None = None,
    ) -> Memory:
        """A GPU's memory, by a snapshot: see `lockstep.trace.read.memory_snapshot`."""
        return memory(snapshot, device=device, stamp=stamp)

    @staticmethod
    def flight(folder: str | Path, *, stamp: Provenance | None = None) -> Hang:
        """Diagnose a hang by the ranks' flight recorders: see `lockstep.trace.read.flight`."""
        return flight(folder, stamp=stamp)

    # ── Other tools ──────────────────────────────────────────────────────────────────────────

    def to_pandas(self) -> Any:
        """A pandas DataFrame: see `lockstep.trace.write.frames`."""
        return to_pandas(self)

    def to_polars(self) -> Any:
        """A polars DataFrame: see `lockstep.trace.write.frames`."""
        return to_polars(self)
