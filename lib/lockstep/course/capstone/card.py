"""`lockstep.capstone.run("step.py")`: the program on ranks, judged, with its card."""

from __future__ import annotations

import runpy
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import virtual
from ...base.formatting import percent
from ...base.provenance import Provenance
from ...figures.table import Table, table
from ...launch import Job, gpu_count, torchrun
from ...trace import Trace
from ...trace.analyses.headline import headline
from ...trace.analyses.wording import Answer
from ...trace.gate import Gate, gate
from ...trace.joins import launch_of, on_device
from ...trace.steps import steps_by_rank
from ...virtual.model import H200, MACHINES, Machine
from ..progress import record, recorded
from . import mllog, reference
from .overlap import Overlap, hidden, overlap
from .programs import MENDED, is_the_courses

CLOSE = 1e-4  # largest relative difference of a loss that another order of sums explains
STEPS = 3
WARM_UP = 4  # steps on a real GPU, before those that count
REPEATS = 5  # of each program: fewer, and the gate says nothing
TIMES = 20  # as slow as an H200
# The tensors are small, so that a CPU can compute them. On a GPU whose products, memory and links
# are slower, they take as long as large ones do on an H200; its host and latencies are an H200's.
MACHINE = replace(
    H200,
    name=f"H200 at 1/{TIMES} of its rates",
    flops={dtype: rate / TIMES for dtype, rate in H200.flops.items()},
    sms=32,
    channels=6,  # the part of the SMs that a collective takes of an H200
    **{
        one: getattr(H200, one) / TIMES
        for one in (
            "vector",
            "memory",
            "link",
            "l2",
            "written",
            "cached",
            "kept",
            "pinned",
            "pageable",
        )
    },
)


@dataclass(frozen=True)
class Card(Answer):
    """The measures of a program. Times are milliseconds of a step, without the first one.

    losses: mean loss of each step; off: their largest relative difference from the reference.
    calls, megabytes: of a rank's step: what it passed to calls. exposed: of the ranks' time, the
    share of communication that no computation hides; hidden: of the communication, the share that
    is; achieved: of what can be hidden, the share that is (see `overlap`). best: of the course's
    mended program; own: of the learner's right programs so far, None where there is none, or the
    program is the course's. bound: by products and links, None on GPUs of which nothing is known;
    least: by what this program's operations need of each other. said: the headline.
    """

    program: str
    losses: tuple[float, ...]
    off: float
    calls: float
    megabytes: float
    exposed: float
    hidden: float
    achieved: float
    step: float
    best: float
    own: float | None
    bound: float | None
    least: float
    said: tuple[str, ...]
    stamp: Provenance
    trace: Trace = field(repr=False, compare=False)

    @property
    def right(self) -> bool:
        return self.off < CLOSE

    def _tables(self) -> Sequence[Table]:
        losses = "as the reference's" if self.right else f"WRONG, by {percent(self.off, 2)}"
        bound = "–" if self.bound is None else f"{self.bound:.2f} ms"
        rows = [
            ("losses", losses),
            ("calls of a rank", f"{self.calls:.0f}"),
            ("passed to them", f"{self.megabytes:.2f} MB"),
            ("communication, exposed", f"{percent(self.exposed, 1)} of the step"),
            ("of what can be hidden", f"{percent(self.achieved)} is hidden"),
            ("step", f"{self.step:.2f} ms"),
            ("the course's step", f"{self.best:.2f} ms"),
            *([("your best so far", f"{self.own:.2f} ms")] if self.own else []),
            ("bound by its dependencies", f"{self.least:.2f} ms"),
            ("bound by products and links", bound),
        ]
        columns = ("of a step", "")
        return [table(f"capstone: {self.program}", columns, rows, stamp=self.stamp)]

    def _first(self) -> Sequence[str]:
        return self.said


def run(
    program: str | Path = "step.py",
    *,
    nproc: int = 4,
    steps: int = STEPS,
    log: str | Path | None = None,
) -> Card:
    """Run a program of the capstone: on GPUs where each rank has one, else on virtual ones.

    program: a file with `train(device, steps, first)`. log: a file to write the run into, as
    MLPerf's log lines (see `mllog`). Raises FileNotFoundError where there is no program, JobFailed
    as `torchrun` does, and OSError.
    """
    path = _there(program)
    job, trace = _played(path, nproc, steps)
    losses = job.results[0].losses
    right = _reference(nproc, steps, _on_gpus(nproc))
    off = max(abs(one / other - 1) for one, other in zip(losses, right, strict=True))
    if log:
        mllog.write(log, path.name, losses, trace, off < CLOSE)
    step = _milliseconds(trace)
    spent = trace.breakdown(skip=1).totals
    communication = sum(one.communication for one in spent)
    calls = [call for calls in job.calls for call in calls if call.operation != "barrier"]
    each = nproc * (steps + (WARM_UP if _on_gpus(nproc) else 0))
    could = _overlap(job, trace)
    return Card(
        program=path.name,
        losses=tuple(losses),
        off=off,
        calls=len(calls) / each,
        megabytes=sum(call.bytes for call in calls) / each / 1e6,
        exposed=sum(one.exposed for one in spent) / sum(one.length for one in spent),
        hidden=sum(one.overlapped for one in spent) / max(communication, 1),
        achieved=could.share,
        step=step,
        best=step if path == MENDED else _best(nproc, steps),
        own=None if is_the_courses(path) else _own(step if off < CLOSE else inf, nproc, trace),
        bound=_bound(nproc, trace),
        least=could.least / (steps - 1) / 1e6,
        said=headline(trace, trace.collectives(), skip=1),
        stamp=trace.provenance,
        trace=trace,
    )


def _there(program: str | Path) -> Path:
    path = Path(program).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no {program}; lockstep.capstone.copy() makes one")
    return path


_kept: dict[tuple[str, int, int, int], tuple[Job, Trace]] = {}  # by text, ranks, steps, first


def _played(path: Path, nproc: int, steps: int, first: int = 0) -> tuple[Job, Trace]:
    """Run a program. A virtual GPU takes as long each time: what the course's own did is kept."""
    if _on_gpus(nproc) or not is_the_courses(path):
        return _play(path, nproc, steps, first)
    key = path.read_text(encoding="utf-8"), nproc, steps, first
    if key not in _kept:
        _kept[key] = _play(path, nproc, steps, first)
    return _kept[key]


def _play(path: Path, nproc: int, steps: int, first: int) -> tuple[Job, Trace]:
    ways: dict[str, Any] = {"nproc_per_node": nproc, "show": False}
    if _on_gpus(nproc):
        ways["env"] = {"CAPSTONE_SIZE": "large"}
    job = torchrun(_train, str(path), steps, first, **ways)
    return job, virtual.joined(one.trace for one in job.results)


def _on_gpus(nproc: int) -> bool:
    """Whether each rank has a GPU; the program then takes its large size."""
    return gpu_count() >= nproc


class _Run(NamedTuple):
    """A rank's results. needs: of the launches of `observed`, or of `trace` if it is None.
    To observe what is needed makes the host slow, so that on GPUs this is a run of its own."""

    losses: list[float]
    trace: Trace
    needs: Mapping[int, set[int]]
    observed: Trace | None = None


def _train(path: str, steps: int, first: int) -> _Run:
    """On a rank: run the program."""
    import torch
    import torch.distributed as dist

    if dist.get_backend() != "nccl":
        with virtual.device(MACHINE):
            losses = runpy.run_path(path)["train"](virtual.gpu(), steps, first)
            return _Run(losses, virtual.trace(), virtual.needs())
    from .needs import Observed, by_launch

    device = torch.device("cuda", torch.cuda.current_device())
    train = runpy.run_path(path)["train"]
    train(device, WARM_UP, first)  # loads kernels, and compiles
    losses, trace = _profiled(lambda: train(device, steps, first))
    # What a compiled function launches, nobody but itself sees.
    with torch.compiler.set_stance("force_eager"), Observed() as seen:
        _, observed = _profiled(lambda: train(device, steps, first))
    return _Run(losses, trace, by_launch(observed, seen.needs), observed)


def _profiled(train: Callable[[], list[float]]) -> tuple[list[float], Trace]:
    import tempfile

    import torch
    import torch.distributed as dist

    with torch.profiler.profile() as profiler:
        losses = train()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")
        stamp = Provenance("live", torch.cuda.get_device_name())
        return losses, Trace.load(folder, stamp=stamp, cache=False)


def _overlap(job: Job, trace: Trace) -> Overlap:
    """Return what all steps but the first hide, and could hide."""
    needs = {rank: one.needs for rank, one in enumerate(job.results)}
    if job.results[0].observed is None:
        return overlap(_after_first(trace), needs)
    could = overlap(_after_first(virtual.joined(one.observed for one in job.results)), needs)
    return replace(could, hidden=hidden(_after_first(trace)))


def _after_first(trace: Trace) -> Trace:
    """Return the work that all steps but the first have launched."""
    rows = on_device(trace)
    span = {rank: (mine[1].start, mine[-1].end) for rank, mine in steps_by_rank(trace).items()}
    first, last = np.array([span[rank] for rank in trace.rank[rows].tolist()]).T
    called = trace.start[launch_of(trace, rows)]
    return trace.select(rows[(first <= called) & (called < last)])


def _milliseconds(trace: Trace) -> float:
    """A step of the slowest rank: the median, without the first."""
    by_number: dict[int, list[int]] = defaultdict(list)
    for one in trace.steps():
        by_number[one.number].append(one.end - one.start)
    lengths = [max(each) for number, each in by_number.items() if number > 0]
    return statistics.median(lengths) / 1e6


def _own(step: float, nproc: int, trace: Trace) -> float | None:
    """The learner's shortest right step so far, with this one, on machines of this kind."""
    machine = trace.provenance.source if _on_gpus(nproc) else MACHINE.name
    kind = f"capstone, {nproc} ranks, {machine}"  # the machine decides the program's size

    def kept() -> float:
        found = [one for one in recorded("14", kind) if one.replace(".", "", 1).isdecimal()]
        return min(map(float, found), default=inf)

    if step < kept():
        record("14", kind, f"{step:.4f}")
    return None if kept() == inf else kept()


@cache
def _best(nproc: int, steps: int) -> float:
    return _milliseconds(_played(MENDED, nproc, steps)[1])


@cache
def _reference(nproc: int, steps: int, large: bool) -> list[float]:
    alone: dict[str, Any] = {"nproc_per_node": 1, "init": False, "show": False}
    if not large:  # on a busy machine, threads wait for each other longer than they compute
        alone["env"] = {"OMP_NUM_THREADS": "1"}
    found: list[float] = torchrun(reference.losses, steps, nproc, large, **alone).results[0]
    return found


def _bound(nproc: int, trace: Trace) -> float | None:
    if not _on_gpus(nproc):
        return bound(MACHINE, nproc)
    known = [one for name, one in MACHINES.items() if name in trace.provenance.source]
    return bound(known[0], nproc, large=True) if known else None


def bound(machine: Machine, nproc: int, *, large: bool = False) -> float:
    """Milliseconds below which no step of this size can be: products at the machine's best
    rate, or what must leave a rank at its link's, whichever takes longer.

    Products: three times those of the forward pass. What must leave: each token's row, there and
    back, twice, as far as it goes to other ranks; and the gradients of what all ranks have.
    """
    S, P, C, E, layers = 64, 64, 16, 12, 2
    T, D, F = (4096, 512, 1024) if large else (1024, 128, 256)
    layer = 3 * D * D + D * E + 4 * D * F + 2 * S * D  # shared and routed expert, attention
    products = 3 * 2 * T * (P * D + D * C + layers * layer)
    weights = P * D + D * C + layers * (3 * D * D + D * E + 2 * D * F)
    away = (nproc - 1) / nproc
    sent = 4 * away * (layers * 4 * T * D + 2 * weights)
    return 1e3 * max(products / machine.flops["float32"], sent / machine.link)


# ── Whether a change counts ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Change:
    """Two programs, each run several times, and the gate's word on them both ways.

    loss: the gate from the one before to the one after; gain: the other way round, so that its
    step time has grown where the change made steps shorter.
    """

    loss: Gate
    gain: Gate

    @property
    def counts(self) -> bool:
        """Steps are shorter beyond noise."""
        return self.gain.of("step time").grew

    def __str__(self) -> str:
        before, after = (f"{one / 1e6:.2f} ms" for one in self.loss.of("step time").medians)
        said = "the change counts" if self.counts else "the change does not count"
        grew = [one.name for one in self.loss.measures if one.grew]
        odds = f"chance by noise: {self.gain.of('step time').odds}"
        lines = [f"{said}: a step took {before}, and takes {after} ({odds})"]
        lines += [f"what grew: {', '.join(grew)}"] if grew else []
        return "\n".join([*lines, *map(str, self.loss.stamps[:1])])

    def __repr__(self) -> str:
        return str(self)


def change(before: str | Path, after: str | Path, *, nproc: int = 4, steps: int = STEPS) -> Change:
    """Run both programs `REPEATS` times by turns, each time on other samples, and ask the gate.

    Raises as `run` does.
    """
    runs: list[list[Trace]] = [[], []]
    for repeat in range(REPEATS):
        for program, found in zip((before, after), runs, strict=True):
            found.append(_played(_there(program), nproc, steps, steps * repeat)[1])
    return Change(gate(*runs, skip=1), gate(*reversed(runs), skip=1))
