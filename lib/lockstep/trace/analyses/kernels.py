"""The GPU's time by kernel, or by the step, phase, annotation, operator, shapes or
module that it was launched in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...base.formatting import cut, microseconds, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..intervals import covered
from ..joins import busy, by_thread, launch_of, launched_in, on_device
from ..shapes import shapes_of
from ..slices import NONE, Column, Kind, Numbering, Slices, TraceError
from ..steps import steps_by_rank
from ..unseen import refuse_unseen
from .wording import Answer, shortened

PHASES = ("forward and the rest", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """The GPUs' work under one name, or in one step, phase or annotation. Nanoseconds.

    name: in full. count: kernels, copies and memsets. total, mean, median: of their durations; the
    median is one that occurs, the lower of two. share: of the durations of all that the GPUs of
    the trace ran. by_rank: rank → total, 0 too, of those with a GPU. streams: those it ran on.
    """

    name: str
    count: int
    total: int
    mean: float
    median: int
    share: float
    by_rank: dict[int, int]
    streams: tuple[int, ...]


@dataclass(frozen=True)
class Kernels(Answer):
    """The groups with the largest totals, largest first.

    by: "name", "step", "phase", "annotation", "operator", "shape" or "module". groups: the top
    ones. count, total: of all that the GPUs ran, these or not; kernels that run at the same time
    are counted both. distinct: the number of groups there are. unattributed: nanoseconds of what
    could not be put in any group, as its launch is not in the trace or lies in no step or
    annotation.
    """

    by: str
    groups: tuple[KernelGroup, ...]
    distinct: int
    count: int
    total: int
    unattributed: int
    stamp: Provenance
    trace: Slices = field(repr=False, compare=False)

    def by_step(self) -> Kernels:
        """By the step that they were launched in, all steps of one number together."""
        return kernels(self.trace, max(1, len(self.trace)), by="step")

    def by_phase(self) -> Kernels:
        """By phase of the step: backward, optimizer, forward and the rest."""
        return kernels(self.trace, len(PHASES), by="phase")

    def by_annotation(self, top: int = 10) -> Kernels:
        """By the innermost annotation (record_function, NVTX) that they were launched in."""
        return kernels(self.trace, top, by="annotation")

    def by_operator(self, top: int = 10) -> Kernels:
        """By the innermost operator (aten::mm, an autograd node) that launched them."""
        return kernels(self.trace, top, by="operator")

    def by_shape(self, top: int = 10) -> Kernels:
        """By the innermost operator and the shapes of its inputs; reads the files again."""
        return kernels(self.trace, top, by="shape")

    def by_module(self, top: int = 10) -> Kernels:
        """By the innermost `nn.Module` that launched them (recorded under with_stack=True)."""
        return kernels(self.trace, top, by="module")

    @property
    def unattributed_share(self) -> float:
        return self.unattributed / self.total if self.total else 0.0

    def __str__(self) -> str:
        if not self.count:
            return "nothing ran on a GPU"
        return super().__str__()

    def _tables(self) -> list[Table]:
        what = "kernel" if self.by == "name" else self.by
        names = [group.name for group in self.groups]
        names = [cut(name, 72) for name in names] if self.by in _WHOLE else _displayed(names)
        groups = self._table(
            f"GPU time by {what}, {len(self.groups)} of {self.distinct} · ms, means and medians µs",
            [
                what,
                "count",
                "total",
                "share",
                "mean",
                "median",
                "least of a rank",
                "most of a rank",
                "streams",
            ],
            [
                [
                    *(name, f"{group.count:,}", milliseconds(group.total), percent(group.share, 1)),
                    *(microseconds(group.mean, 2), microseconds(group.median, 2)),
                    *(milliseconds(pick(group.by_rank.values())) for pick in (min, max)),
                    ", ".join(map(str, group.streams)),
                ]
                for name, group in zip(names, self.groups, strict=True)
            ],
        )
        return [groups]

    def _notes(self) -> list[str]:
        if self.by == "name":
            return []
        return [
            f"unattributed: {percent(self.unattributed_share, 1)} of {milliseconds(self.total)} ms"
        ]


def kernels(trace: Slices, top: int = 10, *, by: str = "name") -> Kernels:
    """Group what the GPUs ran (kernels, copies, memsets); return the `top` groups by total time.

    by: "name"; else where the call that launched it *started*, on its thread; a graph's replay is
    launched as a whole. "step": a step lasts until the next begins, the last until its end.
    "annotation", "operator", "module": the innermost; modules are the profiler's "nn.Module: …",
    in which autograd's threads never are. "phase": "backward" inside of one of
    autograd's nodes, "optimizer" inside of `Optimizer.…`, the forward pass and all else together.
    "shape": the innermost operator with the shapes of its inputs, for which the files are read
    again. What has no launch in the trace, or one outside of steps or annotations, is unattributed.

    Raises TraceError for another `by`, for "shape" where no shapes were recorded or the files are
    gone, for a top below 1, and for a trace without what the devices
    did (see `unseen`).
    """
    if by not in _KEYS:
        raise TraceError(f"by={by!r}: kernels are grouped by {', '.join(_KEYS)}")
    if top < 1:
        raise TraceError(f"top={top}: the number of groups to show must be 1 or more")
    refuse_unseen(trace)
    rows = on_device(trace)
    keys, names = _KEYS[by](trace, rows)
    groups, unattributed = _groups(trace, rows, keys, names)
    return Kernels(
        by,
        tuple(groups[:top]),
        distinct=len(groups),
        count=len(rows),
        total=int(trace.duration[rows].sum()),
        unattributed=unattributed,
        stamp=trace.provenance,
        trace=trace,
    )


_WHOLE = ("operator", "module", "shape")  # whose names are no signatures


def _displayed(names: Sequence[str]) -> list[str]:
    """Short names; names that look alike when short are numbered."""
    short = [shortened(name) for name in names]
    seen: dict[str, int] = {}
    shown = []
    for one in short:
        seen[one] = seen.get(one, 0) + 1
        shown.append(f"{one} [{seen[one]}]" if short.count(one) > 1 else one)
    return shown


def _groups(
    trace: Slices, rows: Column, keys: Column, names: Sequence[str]
) -> tuple[list[KernelGroup], int]:
    """All groups, the largest total first, and the time of the rows without a key."""
    durations = trace.duration[rows]
    all_time, lost = int(durations.sum()), int(durations[keys == NONE].sum())
    ranks = np.unique(trace.rank[rows])
    rows, durations, keys = rows[keys != NONE], durations[keys != NONE], keys[keys != NONE]
    order = np.lexsort((durations, keys))
    rows, durations, keys = rows[order], durations[order], keys[order]
    present, first, counts = np.unique(keys, return_index=True, return_counts=True)
    found = []
    for key, at, count in zip(present.tolist(), first.tolist(), counts.tolist(), strict=True):
        own = slice(at, at + count)
        totals = np.zeros(len(ranks), np.int64)
        np.add.at(totals, np.searchsorted(ranks, trace.rank[rows[own]]), durations[own])
        total = int(durations[own].sum())
        found.append(
            KernelGroup(
                names[key],
                count,
                total,
                mean=total / count,
                median=int(durations[at + (count - 1) // 2]),
                share=total / all_time if all_time else 0.0,
                by_rank=dict(zip(ranks.tolist(), totals.tolist(), strict=True)),
                streams=tuple(np.unique(trace.stream[rows[own]]).tolist()),
            )
        )
    return sorted(found, key=lambda group: (-group.total, group.name)), lost


def _by_step(trace: Slices, rows: Column) -> tuple[Column, Sequence[str]]:
    calls = launch_of(trace, rows)
    keys = np.full(len(rows), NONE, np.int64)
    for rank, own in steps_by_rank(trace).items():
        mine = np.flatnonzero((trace.rank[rows] == rank) & (calls != NONE))
        called = trace.start[calls[mine]]
        at = np.searchsorted([step.start for step in own], called, side="right") - 1
        # The number of a trace without steps is NONE, as is the key of what has none.
        numbers = np.array([step.number for step in own])
        keys[mine] = np.where((at >= 0) & (called < own[-1].end), numbers[at], NONE)
    present, keys_of = np.unique(keys[keys != NONE], return_inverse=True)
    keys[keys != NONE] = keys_of
    return keys, [f"step {number}" for number in present.tolist()]


def _by_innermost(trace: Slices, rows: Column, wanted: Column) -> tuple[Column, Sequence[str]]:
    """By the name of the innermost of the wanted slices around the launch."""
    around = launched_in(trace, rows, wanted)
    return np.where(around == NONE, NONE, trace.name[around]), trace.names


def _by_shape(trace: Slices, rows: Column) -> tuple[Column, Sequence[str]]:
    around = launched_in(trace, rows, trace.kind == Kind.OPERATOR)
    shapes = shapes_of(trace, np.unique(around[around != NONE]))
    numbers = Numbering()
    of_operator = {row: numbers[f"{trace.names[trace.name[row]]} {shapes[row]}"] for row in shapes}
    keys = np.array([of_operator.get(row, NONE) for row in around.tolist()], np.int64)
    return keys, list(numbers)


def _by_phase(trace: Slices, rows: Column) -> tuple[Column, Sequence[str]]:
    calls = launch_of(trace, rows)
    keys = np.where(calls == NONE, NONE, 0)
    sorts = [_starting(trace, start) for start in ("autograd::engine::", "Optimizer.")]
    for lane, mine in by_thread(trace, calls):
        notes = trace.rows_of(lane)
        called = trace.start[calls[mine]]
        for phase, named in enumerate(sorts, start=1):
            inside = busy(trace, notes.start + np.flatnonzero(named[trace.name[notes]]))
            keys[mine[covered(inside, called, called + 1) > 0]] = phase
    return keys, PHASES


def _starting(trace: Slices, start: str) -> Column:
    return np.array([name.startswith(start) for name in trace.names], bool)


_KEYS: dict[str, Callable[[Slices, Column], tuple[Column, Sequence[str]]]] = {
    "name": lambda trace, rows: (trace.name[rows], trace.names),
    "step": _by_step,
    "phase": _by_phase,
    "annotation": lambda trace, rows: _by_innermost(trace, rows, trace.kind == Kind.ANNOTATION),
    "operator": lambda trace, rows: _by_innermost(trace, rows, trace.kind == Kind.OPERATOR),
    "shape": _by_shape,
    "module": lambda trace, rows: _by_innermost(
        trace, rows, _starting(trace, "nn.Module: ")[trace.name] & (trace.kind == Kind.PYTHON)
    ),
}
