"""Lab 11, compiled graphs across ranks: the trials of its exercises, and the signs of mistakes.

What Dynamo captures is counted as in lab 05, and graphs are replayed on virtual GPUs as in lab 06;
their collectives are gloo's.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import virtual
from ...trace import Kind
from ..judging import Noted, Run, Tensor, Trial, judged, same, takes
from ..judging.values import make
from .lab04 import torch_cuda
from .lab05 import Graphs
from .lab06 import on_host

_PATIENCE = 60.0  # seconds: the first compilation of a process loads much
_WIDTH = 3

# ── scaled ───────────────────────────────────────────────────────────────────────────────────


def _compiled(answer: Any, batches: Sequence[Tensor]) -> Noted:
    import torch

    graphs = Graphs.fresh()
    answer.through(lambda f: torch.compile(f, backend=graphs, dynamic=False))
    values = [answer(make(x)) for x in batches]
    return Noted(values, {"graphs": len(graphs.graphs), "breaks": graphs.breaks})


@judged("scaled", lab="11", play=_compiled, silent=True)
def scaled(draw: random.Random) -> Iterator[Trial]:
    """`scaled(x)`: x by the largest absolute value on any rank, in one graph."""
    for nproc, shape, dtype in ((2, (4,), "float32"), (3, (2, 3), "float64")):
        count = 4 if nproc == 2 else 6
        given: list[list[Tensor]] = [[] for _ in range(nproc)]
        right: list[list[Tensor]] = [[] for _ in range(nproc)]
        for kind in ("some", "zeros", "one has zeros", "some"):
            parts = [[draw.randint(-63, 63) / 4 for _ in range(count)] for _ in range(nproc)]
            largest = draw.randrange(nproc)
            parts[largest][draw.randrange(count)] = -32.0  # a power of 2, by which all divide
            if kind == "zeros":
                parts = [[0.0] * count for _ in parts]
            elif kind == "one has zeros":
                parts[(largest + 1) % nproc] = [0.0] * count
            by = 32.0 if kind != "zeros" else 1.0
            for rank, part in enumerate(parts):
                given[rank].append(Tensor.of(part, dtype, shape))
                right[rank].append(Tensor.of([one / by for one in part], dtype, shape))
        yield Trial(
            nproc, given=[(one,) for one in given], right=right, patience=_PATIENCE,
            like=f"{nproc} ranks",
        )  # fmt: skip


scaled.demands("nothing-captured", lambda run, rank: not run.noted[rank]["graphs"])
scaled.demands("breaks", lambda run, rank: run.noted[rank]["breaks"] > 0 and run.noted[rank])
scaled.demands("recompiles", lambda run, rank: run.noted[rank]["graphs"] > 1 and run.noted[rank])


# ── capture_sizes ────────────────────────────────────────────────────────────────────────────


def _captured(answer: Any, sizes: list[int], inputs: list[tuple[Tensor, int]]) -> Noted:
    import torch
    import torch.distributed as dist

    from ...virtual.streams import active

    held: list[Any] = []  # so that nothing else comes to lie where the graphs read
    factor = None
    with virtual.device("H200") as cuda:

        def step(x: Any) -> Any:
            nonlocal factor
            held.append(x)
            if factor is None:  # a copy from the host, which no graph can have
                factor = torch.tensor([3.0]).to("cuda")
            y = x * factor
            dist.all_reduce(y)
            return y + 1

        run = answer(cuda, step, _WIDTH, list(sizes))
        cuda.synchronize()
        pools = sum(count > 0 for count in active().allocator.users.values())
        built, begin = len(held), virtual.perf_counter()
        replayable = takes(run, None, 1)
        got: list[Any] = []
        at_once: list[Any] = []
        for x, size in inputs if replayable else ():
            got.append(run(make(x).to("cuda"), size))
            at_once.append(on_host(got[-1]))
        end = virtual.perf_counter()
        found = [*map(on_host, got)] if replayable else None
        launches = [
            one.name
            for one in virtual.trace()
            if begin * 1e9 - 1 <= one.start < end * 1e9 - 1 and one.name == "cudaGraphLaunch"
        ]
    noted = {
        "at_once": at_once,
        "captured": [len(x) for x in held[:built]],
        "again": len(held) - built,
        "pools": pools,
        "graphs": len(launches),
        "steps": len(inputs),
    }
    return Noted(found, noted)


@judged("capture_sizes", lab="11", play=_captured)
def capture_sizes(draw: random.Random) -> Iterator[Trial]:
    """`capture_sizes(cuda, step, width, sizes)`: a graph for each size, on all ranks."""
    for nproc, sizes, steps in (
        (2, [2, 4, 8], [(8, 8), (3, 4), (4, 8), (1, 2), (2, 2)]),
        (3, [5, 1, 16], [(16, 16), (1, 1), (4, 5), (3, 16), (5, 5)]),
    ):
        rows = [
            [
                [float(draw.randint(-20, 20)) for _ in range(_WIDTH * many)]
                for many, _ in steps
            ]
            for _ in range(nproc)
        ]  # fmt: skip
        right = [
            Tensor.of([3 * sum(column) + 1 for column in zip(*some, strict=True)],
                      "float32", (many, _WIDTH))
            for (many, _), some in zip(steps, zip(*rows, strict=True), strict=True)
        ]  # fmt: skip
        given = []
        for rank in range(nproc):
            inputs = [
                (Tensor.of(one, "float32", (many, _WIDTH)), size)
                for one, (many, size) in zip(rows[rank], steps, strict=True)
            ]
            given.append((sizes[rank:] + sizes[:rank], inputs))
        yield Trial(nproc, given=given, right=[right] * nproc, patience=30.0)


def _overwritten(run: Run, rank: int) -> Any:
    return same(run.noted[rank]["at_once"], run.right(rank))


def _in_order(run: Run, rank: int) -> Any:
    """The sizes in the order in which they were first captured or warmed up."""
    order = list(dict.fromkeys(run.noted[rank]["captured"]))
    return order != sorted(order, reverse=True) and {"order": ", ".join(map(str, order))}


def _left_out(run: Run, rank: int) -> Any:
    """The sizes for which nothing was captured."""
    missing = set(run.trial.given[rank][0]) - set(run.noted[rank]["captured"])
    return bool(missing) and {"missing": ", ".join(map(str, sorted(missing)))}


def _failed(*words: str) -> Any:
    return lambda run, rank: any(
        word in one.message for one in run.job.failures for word in words
    )  # fmt: skip


capture_sizes.shows("overwritten", _overwritten)
capture_sizes.shows("no-replay", lambda run, rank: not run.noted[rank]["graphs"])
capture_sizes.fails("no-warm-up", _failed("during capture", "during CUDA graph capture"))
capture_sizes.fails("torch-cuda", torch_cuda)
capture_sizes.fails("does-not-fit", _failed("must match the size", "must match the existing size"))
capture_sizes.fails("own-order", lambda run, rank: "The ranks disagree" in str(run.job))
capture_sizes.demands("no-graph", lambda run, rank: not run.noted[rank]["graphs"])
capture_sizes.demands("captures-again", lambda run, rank: run.noted[rank]["again"] > 0)
capture_sizes.demands(
    "several-replays",
    lambda run, rank: run.noted[rank]["graphs"] != run.noted[rank]["steps"] and run.noted[rank],
)
capture_sizes.demands(
    "several-pools", lambda run, rank: run.noted[rank]["pools"] != 1 and run.noted[rank]
)
capture_sizes.demands("not-all-sizes", _left_out)
capture_sizes.demands("smallest-first", _in_order)


# ── replay_together ──────────────────────────────────────────────────────────────────────────


def _replayed(answer: Any, steps: list[Tensor], sizes: list[int], on_gpu: bool) -> Noted:
    """Steps of one rank; `run` takes down what it is called with. On a virtual GPU, which need not
    know all that an answer calls, only the collectives of its own are looked for."""
    took: list[Any] = []

    def run(x: Any, size: int) -> Any:
        took.append(size)
        return x * 2 + 1

    if not on_gpu:
        return Noted([answer(run, make(x), list(sizes)) for x in steps], {"took": took})
    with virtual.device("H200"):
        with contextlib.suppress(Exception):
            for x in steps:
                answer(run, make(x).to("cuda"), list(sizes))
        reduced = any(one.kind == Kind.COMMUNICATION for one in virtual.trace())
    return Noted([], {"took": took, "reduced": reduced})


@judged("replay_together", lab="11", play=_replayed)
def replay_together(draw: random.Random) -> Iterator[Trial]:
    """`replay_together(run, x, sizes)`: all ranks run the size that fits the rows of every rank."""
    for nproc, sizes, steps, on_gpu in (
        (2, [2, 4, 8], [(3, 4), (1, 7), (8, 2), (2, 1)], False),
        (3, [16, 1, 5], [(1, 5, 2), (6, 0, 1), (0, 0, 1), (3, 2, 16)], False),
        (3, [3, 24, 6], [(0, 0, 0), (2, 3, 1), (4, 4, 5), (9, 0, 24)], False),
        (2, [2, 4, 8], [(3, 8), (4, 1)], True),
    ):
        given, right = [], []
        for rank in range(nproc):
            some = []
            for rows in steps:
                numbers = [float(draw.randint(-20, 20)) for _ in range(_WIDTH * rows[rank])]
                some.append(Tensor.of(numbers, "float32", (rows[rank], _WIDTH)))
            given.append((some, sizes[rank:] + sizes[:rank], on_gpu))
            right.append(
                [Tensor.of([2 * one + 1 for one in x.numbers], x.dtype, x.shape) for x in some]
            )
        fits = [min(size for size in sizes if size >= max(rows)) for rows in steps]
        yield Trial(
            nproc, given=given, right=[[]] * nproc if on_gpu else right, patience=30.0,
            facts={"fits": fits, "rows": steps, "on_gpu": on_gpu},
            like=f"{nproc} ranks and rows {steps[1]}",
        )  # fmt: skip


def _idle(run: Run, rank: int) -> bool:
    """Whether ranks wait for each other in a trial in which some have no rows."""
    stuck = any(one.kind == "stuck" for one in run.job.failures)
    return stuck and any(0 in rows for rows in run.trial.rows)


def _calls_run(run: Run, rank: int) -> Any:
    times = len(run.noted[rank]["took"])
    return times != len(run.trial.fits) and {"times": times, "steps": len(run.trial.fits)}


def _sizes(run: Run, own: bool) -> Any:
    """The first step of which ranks ran different sizes, or all ran one that is not the best."""
    for at, fits in enumerate(run.trial.fits):
        took = [noted["took"][at] for noted in run.noted]
        if any(one != fits for one in took) and (len(set(took)) > 1) == own:
            return {
                "rows": ", ".join(map(str, run.trial.rows[at])),
                "took": ", ".join(map(str, took)),
                "fits": fits,
            }
    return False


def _asked(run: Run, rank: int) -> Any:
    calls, steps = run.calls(rank), len(run.trial.fits)
    large = max((call.bytes for call in calls), default=0)
    wrong = len(calls) != steps or large > 8
    return wrong and {"calls": len(calls), "steps": steps, "large": large}


replay_together.fails("idle-rank-returns", _idle)
replay_together.fails("no-size-fits", _failed("empty sequence", "empty iterable"))


def _on_cpu(sign: Callable[[Run, int], Any]) -> Callable[[Run, int], Any]:
    return lambda run, rank: not run.trial.on_gpu and sign(run, rank)


def _by_the_host(run: Run, rank: int) -> bool:
    """All ranks agreed, and no collective of the GPU was there."""
    agreed = [noted["took"] == run.trial.fits and not noted.get("reduced") for noted in run.noted]
    return run.trial.on_gpu and all(agreed)


replay_together.demands("not-once", _on_cpu(_calls_run))
replay_together.demands("parted", _on_cpu(lambda run, rank: _sizes(run, own=True)))
replay_together.demands("other-size", _on_cpu(lambda run, rank: _sizes(run, own=False)))
replay_together.demands("more-calls", _on_cpu(_asked))
replay_together.demands("on-the-host", _by_the_host)


# ── ladder ───────────────────────────────────────────────────────────────────────────────────


def _computed(rows: Sequence[int], sizes: Sequence[int]) -> int:
    """The rows that these sizes compute; 0 where one of `rows` fits into none."""
    if max(rows) > max(sizes, default=0):
        return 0
    return sum(min(size for size in sizes if size >= one) for one in rows)


def _least(rows: Sequence[int], count: int) -> int:
    """The fewest rows that `count` sizes compute."""
    sizes = [0, *sorted(set(rows))]
    best: list[float] = [0.0] + [float("inf")] * (len(sizes) - 1)
    for _ in range(count):
        best = [
            min(
                [best[at]]
                + [best[low] + sizes[at] * sum(sizes[low] < one <= sizes[at] for one in rows)
                   for low in range(at)]
            )
            for at in range(len(sizes))
        ]  # fmt: skip
    return int(best[-1])


def _chosen(answer: Any, rows: list[int], count: int) -> Noted:
    sizes = answer(list(rows), count)
    is_list = isinstance(sizes, list) and all(isinstance(one, int) for one in sizes)
    noted = {"sizes": sizes if is_list else None, "count": len(sizes) if is_list else 0}
    return Noted(_computed(rows, sizes) if is_list else sizes, noted)


@judged("ladder", lab="11", play=_chosen, called="rows computed: ")
def ladder(draw: random.Random) -> Iterator[Trial]:
    """`ladder(rows, count)`: the sizes for which the fewest rows are computed."""
    for rows, count in (
        ([3, 9, 10, 10, 17, 30], 3),
        ([draw.randint(1, 9)] * 4, 2),
        ([*range(1, 11)], 3),
        ([1] * 20 + [7] * draw.randint(1, 3) + [8] * 9 + [64], 3),
        ([draw.choice((1, 2, 3, 20, 21, 22, 40)) for _ in range(40)] + [40], 4),
        ([*range(5, 65), *(draw.randint(1, 64) for _ in range(200))], 8),
    ):
        draw.shuffle(rows)
        few = f"{len(set(rows))} different numbers" if len(rows) > 10 else f"rows {rows}"
        yield Trial(
            0, given=[(rows, count)], right=[_least(rows, count)], facts={"count": count},
            patience=30.0, like=f"{few} and count = {count}",
        )  # fmt: skip


def _too_many(run: Run, rank: int) -> Any:
    return run.noted[rank]["count"] > run.trial.count and {"made": run.noted[rank]["count"]}


ladder.shows("too-many", _too_many)
ladder.shows("does-not-fit", lambda run, rank: run.got(rank) == 0)
ladder.demands("too-many", _too_many)
ladder.demands(
    "unsorted",
    lambda run, rank: (
        run.noted[rank]["sizes"] != sorted(set(run.noted[rank]["sizes"])) and run.noted[rank]
    ),
)


# ── pieces ───────────────────────────────────────────────────────────────────────────────────

_MIB = 1 << 20


@judged("pieces", lab="11")
def pieces(draw: random.Random) -> Iterator[Trial]:
    """`pieces(layers, cap)`: the number of layers in each piece that DDP cuts a model into."""
    mixed = [draw.choice((_MIB // 8, _MIB // 2, _MIB, 3 * _MIB // 2)) for _ in range(12)]
    for like, layers, cap in (
        ("equal layers", [_MIB] * 8, 2 * _MIB),
        ("equal layers", [_MIB + 2048] * 8, 25 * _MIB),
        ("layers that do not add up to the limit", [3 * _MIB // 4] * 9, 2 * _MIB),
        ("a limit below 1 MiB", [_MIB // 4] * 7, _MIB // 2),
        ("small layers first, large ones last", [1000, 2000, _MIB, 3 * _MIB], 2 * _MIB),
        ("layers of many sizes", mixed, 3 * _MIB),
        ("layers just below 1 MiB", [1_000_000] * draw.randint(5, 9), 2_000_000),
        ("one layer", [4096], _MIB),
        ("layers of many sizes", [draw.randint(1, 2 * _MIB) for _ in range(20)], 4 * _MIB),
    ):
        yield Trial(0, given=[(layers, cap)], right=[_pieces(layers, cap)], like=like)


def _pieces(layers: Sequence[int], cap: int) -> list[int]:
    found, held = [0], 0
    for size in reversed(layers):
        if held >= (cap if len(found) > 1 else min(cap, _MIB)):
            found.append(0)
            held = 0
        found[-1] += 1
        held += size
    return found[::-1]
