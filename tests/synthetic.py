"""Random programs on random streams and ranks, with known answers.

A program runs on true time: every rank computes for random times, and meets the others in
collectives that nobody leaves before the last has come. `skew` then shows it as the ranks' own
clocks would. All times are int64 nanoseconds; `rng` is a numpy Generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from lockstep.trace import Collective, Kind, Slice, Trace

MS, US = 1_000_000, 1_000


@dataclass(frozen=True)
class Clock:
    """Ahead of true time by offset (ns), and by drift (ppm) of the time since `EPOCH`."""

    offset: int = 0
    drift: float = 0.0

    def shows(self, time: np.ndarray) -> np.ndarray:
        gained = np.rint(self.drift * 1e-6 * (time - EPOCH)).astype(np.int64)
        return time + self.offset + gained


EPOCH = 1_790_000_000_000_000_000  # when programs begin


@dataclass(frozen=True)
class Met:
    """One collective, as it truly was: what each rank waited, and the time of transfer."""

    operation: str
    ranks: tuple[int, ...]
    start: Mapping[int, int]
    end: Mapping[int, int]
    last: int
    transfer: int

    def waited(self, rank: int) -> int:
        return self.start[self.last] - self.start[rank]


def clocks(
    rng: np.random.Generator, ranks: Sequence[int], *, offset: int = 5 * MS, drift: float = 50.0
) -> dict[int, Clock]:
    """A random clock for each rank, at most `offset` ns and `drift` ppm off."""
    return {
        rank: Clock(int(rng.integers(-offset, offset + 1)), float(rng.uniform(-drift, drift)))
        for rank in ranks
    }


def skew(trace: Trace, clocks: Mapping[int, Clock]) -> Trace:
    """The trace as the ranks' clocks show it. Durations stay, rows keep their order."""
    start = trace.start.copy()
    for rank, clock in clocks.items():
        rows = trace.rank == rank
        start[rows] = clock.shows(trace.start[rows])
    # What a file says of its rank makes this a measured trace, with clocks to doubt.
    return trace.derive({"start": start}, about={rank: {"rank": rank} for rank in trace.ranks})


def program(
    rng: np.random.Generator,
    *,
    groups: Sequence[Sequence[int]] = (range(4),),
    collectives: int = 40,
    operations: Sequence[str] = ("all_reduce", "all_gather", "reduce_scatter", "barrier"),
    compute: tuple[int, int] = (20 * US, 3 * MS),
    transfer: tuple[int, int] = (20 * US, 400 * US),
    lateness: tuple[int, int] = (1 * US, 7 * US),
    overlap: float = 0.3,
    sequence: bool = True,
    known: bool = True,
    apart: bool = False,
) -> tuple[Trace, list[Met]]:
    """A program of `collectives` rounds; in each, every group that has its turn meets once.

    groups: global ranks; they may overlap, as in a grid. compute, transfer: between which a
    kernel and a transfer last. lateness: between which a rank leaves after the transfer's end.
    overlap: probability that a rank goes on computing beside the collective. sequence, known:
    whether the trace says the sequence number and the group. apart: each group has a stream of its
    own, as each communicator of PyTorch has.

    Each rank has two streams, or more, and a thread; each kernel has its operator and its launch.
    """
    ranks = sorted({rank for group in groups for rank in group})
    free = dict.fromkeys(ranks, EPOCH)  # when a rank can go on
    correlation = 0
    slices: list[Slice] = []
    met: list[Met] = []

    def kernel(rank: int, stream: int, start: int, duration: int, **what: object) -> None:
        nonlocal correlation
        correlation += 1
        slices.append(
            Slice(
                rank, f"stream {stream}", start=start, duration=duration, stream=stream,
                correlation=correlation, **what,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        before = start - int(rng.integers(6 * US, 12 * US))
        launch = "cudaLaunchKernel"
        slices.append(
            Slice(rank, "thread 1", launch, before, 4 * US, Kind.LAUNCH, correlation=correlation)
        )

    for turn in range(collectives):
        for number, members in enumerate(groups):
            members = tuple(members)
            operation = str(rng.choice(list(operations)))
            size = 0 if operation == "barrier" else int(rng.integers(1, 9)) << 16
            come = {}
            for rank in members:
                busy = int(np.exp(rng.uniform(*np.log(compute))))
                kernel(rank, 7, free[rank], busy, name="gemm", kind=Kind.COMPUTE)
                come[rank] = free[rank] + busy + int(rng.integers(1, 2 * US))
            last = max(come, key=lambda rank: come[rank])
            takes = int(rng.integers(*transfer))
            ends = {r: come[last] + takes + int(rng.integers(*lateness)) for r in members}
            what = Collective(
                operation,
                group=f"group {number}" if known else "",
                ranks=members if known else (),
                bytes_in=size,
                bytes_out=size,
                evidence="metadata" if known else "name",
            )
            for rank in members:
                kernel(
                    rank, 20 + apart * number, come[rank], ends[rank] - come[rank],
                    name=f"nccl {operation}",
                    kind=Kind.COMMUNICATION, collective=what, sequence=turn if sequence else -1,
                )  # fmt: skip
                free[rank] = ends[rank] + int(rng.integers(1, 5 * US))
                if rng.random() < overlap:
                    beside = int(rng.integers(1, ends[rank] - come[rank] + 1))
                    kernel(rank, 7, come[rank], beside, name="norm", kind=Kind.COMPUTE)
            met.append(Met(operation, members, come, ends, last, ends[last] - come[last]))
    return Trace.from_slices(slices), met


def grid(rows: int, columns: int) -> list[tuple[int, ...]]:
    """The groups of a grid of ranks: its rows (tensor parallel), then its columns (data)."""
    across = [tuple(range(row * columns, (row + 1) * columns)) for row in range(rows)]
    down = [tuple(range(column, rows * columns, columns)) for column in range(columns)]
    return across + down
