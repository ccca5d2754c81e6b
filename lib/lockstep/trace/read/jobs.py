"""Traces of jobs: from the profiles of their ranks, and from their call record."""

from __future__ import annotations

import platform
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ...base.formatting import counted
from ...base.provenance import Provenance, live
from ...calls.record import ANY_SOURCE, Call
from ..slices import NONE, Collective, Kind, Slice, Slices, TraceError
from .kineto import kinds
from .kineto.load import load


class Job(Protocol):
    """The part of a job that a trace needs; the launcher's has it."""

    @property
    def ok(self) -> bool: ...
    @property
    def profiles(self) -> Path | None: ...
    @property
    def device(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def calls(self) -> list[list[Call]]: ...
    @property
    def stamp(self) -> Provenance: ...


def slices_of(job: Job) -> Slices:
    """Return what a job did, on its host's clock.

    From the profiles of its ranks if it ran with `trace`, with the groups, sizes and peers of its
    call record where it used gloo, whose profiles lack them; else its c10d calls alone.
    A failed job has its call record only. Raises TraceError where there is neither.
    """
    if job.ok and job.profiles is not None:
        # The cache would keep what goes with the job.
        trace = load(job.profiles, stamp=live(job), cache=False)
        if job.device not in ("", "CPU") and not any(lane.on_device for lane in trace.lanes):
            why = "the profiler saw nothing of the GPU; --env KINETO_LOG_LEVEL=2 shows its messages"
            trace = trace.derive(notes=(*trace.notes, why))
        if job.nodes == 1:  # PyTorch 2.11 writes no host down where no GPU was at work
            host = platform.node()
            trace = trace.derive(
                about={rank: {"host": host, **says} for rank, says in trace.about.items()}
            )
        return _with_calls(trace, job.calls)
    if not any(job.calls):
        raise TraceError(
            "this job has neither profiles nor calls: run it with --trace (trace=True), or let its "
            "ranks communicate"
        )
    slices = [_slice(call) for calls in job.calls for call in calls if not call.group.is_internal]
    unfinished = sum(call.end is None for calls in job.calls for call in calls)
    notes = (
        [f"{counted(unfinished, 'call')} never ended: drawn until the last event"]
        if unfinished
        else []
    )
    return Slices.from_slices(_ended(slices), stamp=live(job), notes=notes)


def _slice(call: Call) -> Slice:
    """A call that never ended has the duration NONE here."""
    start = round(call.start * 1e9)
    return Slice(
        rank=call.rank,
        lane="calls",
        name=call.operation,
        start=start,
        duration=NONE if call.end is None else round(call.end * 1e9) - start,
        kind=Kind.COMMUNICATION,
        collective=_collective(call),
        sequence=call.number,
    )


def _ended(slices: list[Slice]) -> list[Slice]:
    last = max(max(one.start, one.end) for one in slices)
    return [
        replace(one, duration=last - one.start) if one.duration == NONE else one for one in slices
    ]


def _family(call: Call) -> str:
    """Return what gloo's slices, and our Collective, call an operation of the record."""
    return kinds.operation(call.operation) or call.operation


def _collective(call: Call) -> Collective:
    return Collective(
        operation=_family(call),
        group=call.group.name,
        ranks=call.group.ranks,
        bytes_in=call.bytes,
        dtype=call.dtype,
        peer=NONE if call.peer in (None, ANY_SOURCE) else call.peer,
        evidence="call record",
    )


def _with_calls(trace: Slices, calls: list[list[Call]]) -> Slices:
    """Give communications on the CPU what the call record knows of them.

    The n-th slice of an operation on a rank is the n-th such call there, if there are as many.
    """
    known = list(trace.known)
    column = trace.collective.copy()
    sequence = trace.sequence.copy()
    notes = list(trace.notes)
    for rank, own in enumerate(calls):
        recorded: defaultdict[str, list[Call]] = defaultdict(list)
        for call in own:
            recorded[_family(call)].append(call)
        rows = trace.where(Kind.COMMUNICATION, rank=rank)
        rows = rows[trace.stream[rows] == NONE]
        seen: defaultdict[str, list[int]] = defaultdict(list)
        for row in rows[np.argsort(trace.start[rows], kind="stable")].tolist():
            what = trace.known[column[row]] if column[row] != NONE else Collective()
            seen[what.operation].append(row)
        for operation, slices in seen.items():
            if len(slices) != len(recorded[operation]):
                notes.append(
                    f"rank {rank}: {len(slices)} slices of {operation or 'unknown operations'}, "
                    f"but {len(recorded[operation])} calls: their groups and sizes stay unknown"
                )
                continue
            for row, call in zip(slices, recorded[operation], strict=True):
                column[row] = len(known)
                sequence[row] = call.number
                known.append(_collective(call))
    return trace.derive(
        {"collective": column, "sequence": sequence}, known=tuple(known), notes=tuple(notes)
    )
