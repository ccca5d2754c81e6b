"""Lab 06, CUDA graphs: the trials of its exercises, and the signs of what goes wrong.

Answers run on the virtual GPU, whatever the machine has: there a graph can be looked into.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import virtual
from ...trace import Kind, Slice
from ..judging import Noted, Number, Run, Tensor, Trial, judged, same, takes
from ..judging.values import make
from .lab04 import torch_cuda

_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
_MOST_CALLS = 12  # of a warm-up, some more than anyone makes
_LAUNCHES = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaGraphLaunch")


def _calls(slices: Sequence[Slice], begin: float, end: float) -> list[str]:
    """Return the host's calls of CUDA between two seconds of its clock."""
    return [
        one.name
        for one in slices
        if one.kind == Kind.LAUNCH and begin * 1e9 - 1 <= one.start < end * 1e9 - 1
    ]


def _counted(calls: Sequence[str]) -> dict[str, Any]:
    return {
        "waits": [one for one in calls if one in _WAITS],
        "launches": sum(one in _LAUNCHES for one in calls),
        "graphs": calls.count("cudaGraphLaunch"),
    }


def _host_waits(run: Run, rank: int) -> Any:
    waits = run.noted[rank]["waits"]
    return bool(waits) and {"call": waits[0]}


def _races() -> list[str]:
    return [str(one).splitlines()[0] for one in virtual.races()]


def _race(run: Run, rank: int) -> Any:
    races = run.noted[rank]["races"]
    return bool(races) and {"race": races[0]}


def in_capture(run: Run, rank: int) -> Any:
    """The answer raised because something may not be captured."""
    said = [one.message for one in run.job.failures]
    return any("during capture" in one or "during CUDA graph capture" in one for one in said)


def on_host(tensor: Any) -> Any:
    return tensor.detach().cpu() if hasattr(tensor, "detach") else tensor


# ── last_end ─────────────────────────────────────────────────────────────────────────────────

Times = tuple[list[float], float, float, float]  # kernels; launch, latency, gap


def _end(times: Times) -> float:
    kernels, launch, latency, gap = times
    end = -gap
    for number, duration in enumerate(kernels):
        end = max(number * launch + latency, end + gap) + duration
    return end


@judged("last_end", lab="06")
def last_end(draw: random.Random) -> Iterator[Trial]:
    """`last_end(kernels, launch, latency, gap)`: when the last kernel ends, µs."""

    def some(count: int, low: int, high: int) -> list[float]:
        return [draw.randint(4 * low, 4 * high) / 4 for _ in range(count)]

    launch, latency = draw.randint(24, 36) / 4, draw.randint(40, 48) / 4
    gap = draw.randint(2, 6) / 4
    while True:  # neither launches nor kernels alone say when it ends
        behind = [*some(4, 1, 3), draw.randint(60, 90), *some(draw.randint(12, 16), 1, 3)]
        bounds = (len(behind) - 1) * launch + behind[-1], sum(behind) + (len(behind) - 1) * gap
        if _end((behind, launch, latency, gap)) > latency + max(bounds) + 1:
            break
    tight = [launch - gap * draw.choice((0.25, 0.5, 0.75)) for _ in range(5)]
    plans: list[tuple[str, Times]] = [
        ("short kernels", (some(draw.randint(6, 9), 1, 3), launch, latency, gap)),
        ("long kernels", (some(draw.randint(4, 6), 20, 40), launch, latency, gap)),
        ("one long kernel among short ones", (behind, launch, latency, gap)),
        ("kernels that end just before the next launch arrives", (tight, launch, latency, gap)),
        ("a gap longer than the latency", (some(3, 1, 3), 0.0, 2.0, 5.0)),
        ("one kernel", (some(1, 5, 9), launch, latency, gap)),
    ]
    for like, times in plans:
        yield _launched(like, times)


def _launched(like: str, times: Times) -> Trial:
    kernels, launch, latency, gap = times

    def smaller() -> Iterator[Trial]:
        for at in range(len(kernels)) if len(kernels) > 1 else ():
            few = kernels[:at] + kernels[at + 1 :]
            asked = f"kernels {few}, launch {launch}, latency {latency} and gap {gap}"
            yield _launched(asked, (few, launch, latency, gap))

    return Trial(0, [times], [Number(_end(times))], like=like, smaller=smaller)


# ── captured ─────────────────────────────────────────────────────────────────────────────────


def _captured(answer: Any, first: Tensor, others: list[Tensor], in_one: bool) -> Noted:
    """in_one: whether all inputs come in one tensor, whose values change."""
    import torch

    calls, factor, reads = 0, None, None
    with virtual.device("H200") as cuda:

        def work(x: Any) -> Any:
            nonlocal calls, factor, reads
            calls, reads = calls + 1, x.detach()
            if factor is None:  # a copy from the host, which no graph can have
                factor = torch.tensor([3.0], dtype=x.dtype).to("cuda")
            return x * factor + 1

        x, news = make(first).to("cuda"), [make(one).to("cuda") for one in others]
        run = answer(cuda, work, x)
        cuda.synchronize()
        # Held here, what the graph reads stays what it is, whatever the answer lets go.
        built, static, begin = calls, reads, virtual.perf_counter()
        held, got = torch.empty_like(news[0]), []
        for at, new in enumerate(news if takes(run, x) else ()):
            got.append(run(held.copy_(new) if in_one else new))
            if in_one:
                news[at] = held.clone()
        end = virtual.perf_counter()
        results = [*map(on_host, got)] if takes(run, x) else None
        found = [results, on_host(x), [*map(on_host, news)]]
        made, static = _calls(list(virtual.trace()), begin, end), on_host(static)
        races = _races()
    noted = {**_counted(made), "steps": len(news), "again": calls - built, "static": static}
    noted["races"] = races
    noted["launches"] -= 2 * in_one * len(news)
    return Noted(found, noted)


def _like(tensor: Tensor, numbers: Sequence[float]) -> Tensor:
    return Tensor.of(numbers, tensor.dtype, tensor.shape)


def _worked(tensor: Tensor) -> Tensor:
    return _like(tensor, [3 * one + 1 for one in tensor.numbers])


@judged("captured", lab="06", play=_captured)
def captured(draw: random.Random) -> Iterator[Trial]:
    """`captured(cuda, work, x)`: a function that copies in, replays, copies out."""
    for dtype, shape in (("float32", (4,)), ("float64", (2, 3)), ("float32", (1, 5))):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        first, *others = (
            Tensor.of([one / 4 for one in draw.sample(range(-99, 99), count)], dtype, shape)
            for _ in range(4)
        )
        yield Trial(
            0,
            given=[(first, others, dtype == "float64")],
            right=[[[*map(_worked, others)], first, others]],
            facts={"first": first, "others": others},
            like=f"x of {dtype} and shape {list(shape)}",
        )


def _changed_x(run: Run, rank: int) -> Any:
    return not same(run.got(rank)[1], run.trial.first)


def _never_copied_in(run: Run, rank: int) -> Any:
    """All results are what the graph makes of its input, and none of `others` is in that."""
    static, results = run.noted[rank]["static"], run.got(rank)[0]
    if not isinstance(static, Tensor) or any(same(static, one) for one in run.trial.others):
        return False
    return all(same(one, _worked(static)) for one in results)


def _same_result(run: Run, rank: int) -> Any:
    """All results are one, though the last of `others` is where the graph reads."""
    first, *more = run.got(rank)[0]
    return all(same(one, first) for one in more) and same(
        run.noted[rank]["static"], run.trial.others[-1]
    )


captured.shows("no-replay", lambda run, rank: not run.noted[rank]["graphs"])
captured.shows("race", _race)
captured.shows("changes-x", _changed_x)
captured.shows("changes-new", lambda run, rank: not same(run.got(rank)[2], run.trial.others))
captured.shows("stale-input", _never_copied_in)
captured.shows("same-result", _same_result)
captured.fails("no-warm-up", in_capture)
captured.fails("torch-cuda", torch_cuda)
captured.demands("no-graph", lambda run, rank: not run.noted[rank]["graphs"])
captured.demands("captures-again", lambda run, rank: run.noted[rank]["again"] > 0)
captured.demands("race", _race)
captured.demands("host-waits", _host_waits)
captured.demands(
    "many-launches",
    lambda run, rank: (
        run.noted[rank]["launches"] > 3 * run.noted[rank]["steps"] and run.noted[rank]
    ),
)


# ── graphed_training ─────────────────────────────────────────────────────────────────────────

Batch = tuple[list[list[float]], list[float]]


def _training(answer: Any, start: list[float], batches: list[Batch], rate: float) -> Noted:
    """A model of two weights, each in a group of its own; each of `batches` is a step, the first
    one the example, too."""
    import torch

    wide = torch.float64

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = (torch.tensor(one, dtype=wide) for one in start)
            self.left, self.right = map(torch.nn.Parameter, values)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :1] * self.left + x[:, 1:] * self.right

    def weights() -> list[float]:
        return [float(on_host(one.detach())) for one in (model.left, model.right)]

    def on_device(batch: Batch) -> list[Any]:
        x, y = (torch.tensor(one, dtype=wide) for one in batch)
        return [x.to("cuda"), y.reshape(-1, 1).to("cuda")]

    with virtual.device("H200") as cuda:
        model = Model().to("cuda")
        groups = [{"params": [one]} for one in (model.left, model.right)]
        optimizer = torch.optim.SGD(groups, lr=rate)
        given = [on_device(batch) for batch in batches]
        step = answer(cuda, model, optimizer, lambda out, y: (out - y).square().mean(), *given[0])
        before = weights()
        cuda.synchronize()
        begin, losses = virtual.perf_counter(), []
        for x, y in given[1:] if takes(step, *given[0]) else ():
            losses.append(step(x, y))
        end = virtual.perf_counter()
        cuda.synchronize()
        plain = [float(on_host(one)) if hasattr(one, "cpu") else one for one in losses]
        found = [plain if takes(step, *given[0]) else None, weights()]
        made, races = _calls(list(virtual.trace()), begin, end), _races()
    noted = {**_counted(made), "steps": len(losses), "before": before, "races": races}
    return Noted(found, noted)


def _descent(
    start: list[float], batches: Sequence[Batch], rate: float
) -> tuple[list[float], list[float], list[float]]:
    """(losses, weights at the end, the last gradient) of SGD on the mean squared error."""
    weights, losses, gradient = list(start), [], [0.0] * len(start)
    for xs, ys in batches:
        errors = [
            sum(w * one for w, one in zip(weights, x, strict=True)) - y
            for x, y in zip(xs, ys, strict=True)
        ]
        losses.append(sum(one * one for one in errors) / len(errors))
        gradient = [
            2 * sum(e * x[place] for e, x in zip(errors, xs, strict=True)) / len(errors)
            for place in range(len(weights))
        ]
        weights = [w - rate * g for w, g in zip(weights, gradient, strict=True)]
    return losses, weights, gradient


@judged("graphed_training", lab="06", play=_training)
def graphed_training(draw: random.Random) -> Iterator[Trial]:
    """`graphed_training(cuda, model, optimizer, loss_of, x, y)`: a step that is one graph."""
    for rows, scale in ((4, 1), (3, 2**-20 / 3)):  # what is lost beside a step does not come back

        def some(count: int) -> list[float]:
            return [one / 8 for one in draw.sample(range(-24, 24), count)]

        start, rate = [scale * one for one in some(2)], draw.choice((0.05, 0.1))
        batches = [([some(2) for _ in range(rows)], some(rows)) for _ in range(4)]
        losses, weights, _ = _descent(start, batches[1:], rate)
        yield Trial(
            0,
            given=[(start, batches, rate)],
            right=[[losses, weights]],
            facts={"start": start, "batches": batches, "rate": rate},
            like=f"batches of {rows} rows",
        )


def _near(some: Sequence[float], others: Sequence[float]) -> bool:
    return len(some) == len(others) and all(
        abs(one - other) <= 1e-9 * max(1.0, abs(other))
        for one, other in zip(some, others, strict=True)
    )


def _half_stale(run: Run, rank: int) -> Any:
    """The first loss is that of one half of the example. (Later the graph may read anything there:
    nobody holds that tensor, perhaps.)"""
    (x_old, y_old), (x, y) = run.trial.batches[:2]
    for name, mixed in (("y", (x, y_old)), ("x", (x_old, y))):
        losses, _, _ = _descent(run.trial.start, [mixed], run.trial.rate)
        if _near(run.got(rank)[0][:1], losses):
            return {"name": name}
    return False


def _accumulated(trial: Trial, calls: int) -> list[float]:
    """Weights after all steps, on gradients that add up since `calls` steps of a warm-up."""
    total = [0.0] * len(trial.start)
    weights: list[float] = []
    for steps in ([trial.batches[0]] * calls, trial.batches[1:]):
        weights = list(trial.start)  # after the warm-up they are restored
        for step in steps:
            gradient = _descent(weights, [step], trial.rate)[2]
            total = [sum(pair) for pair in zip(total, gradient, strict=True)]
            weights = [w - trial.rate * g for w, g in zip(weights, total, strict=True)]
    return weights


def _added_up(run: Run, rank: int) -> Any:
    """The weights are those of gradients that are never set to zero: in the steps, or since a
    warm-up of so many calls."""
    trial = run.trial
    return any(_near(run.got(rank)[1], _accumulated(trial, calls)) for calls in range(_MOST_CALLS))


graphed_training.shows("no-replay", lambda run, rank: not run.noted[rank]["graphs"])
graphed_training.shows("race", _race)
graphed_training.shows(
    "trained-by-warm-up",
    lambda run, rank: not _near(run.noted[rank]["before"], run.trial.start),
)
graphed_training.shows("rebound", lambda run, rank: _near(run.got(rank)[1], run.trial.start))
graphed_training.shows("half-stale", _half_stale)
graphed_training.shows("gradients-add-up", _added_up)
graphed_training.fails("waits-in-capture", in_capture)
graphed_training.fails("torch-cuda", torch_cuda)
graphed_training.demands(
    "nearly-restored", lambda run, rank: run.noted[rank]["before"] != run.trial.start
)
graphed_training.demands("no-graph", lambda run, rank: not run.noted[rank]["graphs"])
graphed_training.demands("race", _race)
graphed_training.demands("host-waits", _host_waits)
graphed_training.demands(
    "many-launches",
    lambda run, rank: (
        run.noted[rank]["launches"] > 4 * run.noted[rank]["steps"] and run.noted[rank]
    ),
)


# ── clipped ──────────────────────────────────────────────────────────────────────────────────


def _clipped(answer: Any, inputs: list[Tensor], limit: float) -> Noted:
    """Captured with the first input, replayed with all of them."""
    with virtual.device("H200") as cuda:
        x = make(inputs[0]).to("cuda")
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            answer(x, limit)
        cuda.current_stream().wait_stream(side)
        x.copy_(make(inputs[0]))
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            out = answer(x, limit)
        found, changed = [], False
        for one in inputs:
            x.copy_(make(one))
            graph.replay()
            changed = changed or x.cpu().tolist() != list(one.numbers)
            found.append(float(out.cpu()) if hasattr(out, "cpu") and out.numel() == 1 else out)
    return Noted(found, {"changed": changed})


def _norm(numbers: Sequence[float]) -> float:
    return float(sum(one * one for one in numbers) ** 0.5)


def _scale(numbers: Sequence[float], limit: float) -> float:
    return min(limit / _norm(numbers), 1.0)


def _clip(
    numbers: Sequence[float], limit: float, *,
    large: Callable[[float], bool] = lambda one: abs(one) > 0.5, mask_first: bool = False,
) -> list[float]:  # fmt: skip
    """Return what is kept of the numbers; the sum of it is what is right."""
    by = _scale(numbers, limit)
    return [by * one for one in numbers if large(one if mask_first else by * one)]


@judged("clipped", lab="06", play=_clipped)
def clipped(draw: random.Random) -> Iterator[Trial]:
    """`clipped(x, limit)`: the same without a branch, a wait, or a shape that depends on values."""
    for count, times in ((8, 1), (5, 1), (8, 8)):  # the last with many that are large
        limit = draw.randint(8, 12) / 4
        inputs = [_drawn(draw, count, limit, large) * times for large in (True, False) * 2]
        limit *= times**0.5
        yield Trial(
            0,
            given=[([Tensor.of(one) for one in inputs], limit)],
            right=[[sum(_clip(one, limit)) for one in inputs]],
            facts={"inputs": inputs, "limit": limit},
            like=f"{count * times} numbers",
        )


def _drawn(draw: random.Random, count: int, limit: float, large: bool) -> list[float]:
    """Numbers whose norm is above the limit, or below, of which none is near a border; but one of
    those that are not scaled is just at it, and not above."""
    while True:
        span = 32 if large else 6
        drawn = [draw.choice([n for n in range(-span, span) if n]) / 8 for _ in range(count - 1)]
        numbers = [*drawn, 0.25 if large else 0.5]
        norm, scale = _norm(numbers), _scale(numbers, limit)
        near = any(
            abs(abs(s * one) - 0.5) < 0.02 for one in drawn for s in (scale, 1.0, limit / norm)
        )
        away = max(map(abs, numbers)) > 1.1 * limit if large else 0.3 * limit < norm < 0.9 * limit
        kept = [_clip(numbers, limit), _clip(numbers, limit, mask_first=True)]
        mixed = min(numbers) < -0.7 and 0 < len(kept[0]) < count
        masks = not large or len(kept[0]) != len(kept[1])
        kept.append(_clip(numbers, limit, large=lambda one: True))
        kept.append(_clip(numbers, limit, large=lambda one: abs(one) <= 0.5))
        kept.append([one * limit / norm for one in numbers if abs(one * limit / norm) > 0.5])
        apart = all(abs(sum(one)) > 0.1 for one in kept)  # sums of nearly 0 have no digits
        if away and mixed and masks and not near and apart:
            return numbers


clipped.shows("changes-x", lambda run, rank: run.noted[rank]["changed"])
clipped.fails("waits-in-capture", in_capture)
clipped.demands("changes-x-too", lambda run, rank: run.noted[rank]["changed"])


# ── by_size ──────────────────────────────────────────────────────────────────────────────────

_WIDTH = 3


def _by_size(answer: Any, sizes: list[int], inputs: list[Tensor]) -> Noted:
    import torch

    from ...virtual.streams import active

    calls, weights = 0, None
    with virtual.device("H200") as cuda:

        def work(x: Any) -> Any:
            nonlocal calls, weights
            calls += 1
            if weights is None:
                weights = torch.tensor(_WEIGHTS).to("cuda")
            return x @ weights + 1

        given = [make(one).to("cuda") for one in inputs]
        run = answer(cuda, work, _WIDTH, list(sizes))
        pools = sum(count > 0 for count in active().allocator.users.values())
        cuda.synchronize()
        built, begin = calls, virtual.perf_counter()
        kept, at_once = [], []
        for x in given if takes(run, given[0]) else ():
            kept.append(run(x))
            at_once.append(on_host(kept[-1]))
        end, after = virtual.perf_counter(), calls - built
        found = [*map(on_host, kept)] if takes(run, given[0]) else None
        slices = list(virtual.trace())
        made, races = _calls(slices, begin, end), _races()
    products = [
        int(one.name.split()[1].split("×")[0])
        for one in sorted(slices, key=lambda one: one.start)
        if one.stream >= 0 and one.name.startswith("mm ") and begin * 1e9 <= one.start
    ]
    right = [torch.equal(one, make(_served(x))) for one, x in zip(at_once, inputs, strict=False)
             if hasattr(one, "shape") and tuple(one.shape) == _served(x).shape]  # fmt: skip
    noted = {
        **_counted(made),
        "again": after,
        "pools": pools,
        "rows": products,
        "races": races,
        "right_at_once": len(right) == len(inputs) and all(right),
    }
    return Noted(found, noted)


_WEIGHTS = [[1.0, 2.0], [0.0, -1.0], [2.0, 3.0]]  # what comes out has another width


def _served(x: Tensor) -> Tensor:
    rows = [x.numbers[at : at + _WIDTH] for at in range(0, len(x.numbers), _WIDTH)]
    numbers = [
        sum(one * weights[column] for one, weights in zip(row, _WEIGHTS, strict=True)) + 1
        for row in rows
        for column in range(len(_WEIGHTS[0]))
    ]
    return Tensor.of(numbers, "float32", (len(rows), len(_WEIGHTS[0])))


@judged("by_size", lab="06", play=_by_size)
def by_size(draw: random.Random) -> Iterator[Trial]:
    """`by_size(cuda, work, width, sizes)`: a graph for each size, in one pool, and padding."""
    for sizes, rows in (
        ([2, 4, 8], [8, 3, 4, 1, 8, 2, 6]),
        ([5, 16, 1, 3], [16, 2, 1, 5, 4, 9, 3]),  # 9 is nearer to 5
    ):
        inputs = [
            Tensor.of(
                [float(draw.randint(-20, 20)) for _ in range(_WIDTH * count)],
                "float32",
                (count, _WIDTH),
            )
            for count in rows
        ]
        fits = [min(size for size in sizes if size >= count) for count in rows]
        yield Trial(
            0,
            given=[(sizes, inputs)],
            right=[[*map(_served, inputs)]],
            facts={"sizes": sizes, "rows": rows, "fits": fits},
            like=f"sizes {sizes}",
        )


def _other_size(run: Run, rank: int) -> Any:
    ran = run.noted[rank]["rows"]
    for rows, fits, took in zip(run.trial.rows, run.trial.fits, ran, strict=False):
        if fits != took:
            return {"rows": rows, "fits": fits, "took": took}
    return False


by_size.shows("no-replay", lambda run, rank: not run.noted[rank]["graphs"])
by_size.shows("race", _race)
by_size.shows("overwritten", lambda run, rank: run.noted[rank]["right_at_once"])
by_size.fails("no-warm-up", in_capture)
by_size.fails("torch-cuda", torch_cuda)
by_size.fails(
    "exact-sizes-only", lambda run, rank: any("KeyError" in str(one) for one in run.job.failures)
)
by_size.fails(
    "does-not-fit",
    lambda run, rank: any(
        "must match the size" in one.message or "must match the existing size" in one.message
        for one in run.job.failures
    ),
)
by_size.demands("race", _race)
by_size.demands("no-graph", lambda run, rank: not run.noted[rank]["graphs"])
by_size.demands("captures-again", lambda run, rank: run.noted[rank]["again"] > 0)
by_size.demands("other-size", _other_size)
by_size.demands(
    "several-pools", lambda run, rank: run.noted[rank]["pools"] != 1 and run.noted[rank]
)
