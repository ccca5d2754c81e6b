"""Lab 04, streams and overlap: the trials of its exercises, and the signs of what goes wrong.

Answers run on the virtual GPU, whatever the machine has: there a race always shows. Most of its
kernels take 100 µs here, so that small tensors are enough to see what runs beside what.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ... import virtual
from ...base.formatting import percent
from ...trace import Kind, Slice
from ..judging import Noted, Run, Tensor, Trial, judged, takes
from ..judging.values import make

_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
_ASKS = ("cudaEventQuery", "cudaStreamQuery")
_ASKS_TO_WAIT = 10  # so often nobody asks who goes on whatever the answer is
# What PyTorch says without a GPU: built for the CPU, and for CUDA; and of torch.Event, torch.Stream
# and torch.accelerator, which take the CPU then.
_NO_GPU = re.compile(
    "dummy base class|not compiled with CUDA|requires CUDA|not linked with|no NVIDIA driver"
    r"|[Bb]ackend doesn't support|device type \w+ does not match"
)
_NEAR = 0.05  # of a time, in which an answer may be wrong
_HIDDEN = 0.8  # of the copies' time, at least
_BATCH = 4096  # elements of a batch, float32
_MOST_BATCHES = 3  # on the device
_BEFORE = 4  # tensors of a batch's size that the current stream still works with
_EARLIER = ("given back: full on", "given back: amax on")  # what it does with them


def slow_machine() -> Any:
    """An H200 on which launches cost next to nothing, and every kernel and copy takes long."""
    h200 = virtual.MACHINES["H200"]
    return replace(
        h200, name="slow H200", dispatch=200.0, launch=200.0, latency=500.0, gap=100.0,
        kernel=100_000.0, pinned=5.5e7, pageable=5.5e7,
    )  # fmt: skip


def races_seen() -> list[dict[str, Any]]:
    return [
        {"kind": one.kind, "said": str(one).splitlines()[0], "streams": list(one.streams)}
        for one in virtual.races()
    ]


def calls_that_wait(slices: Sequence[Slice], begin: float, end: float) -> list[str]:
    """The calls by which the host waited between two seconds of its clock."""
    calls = [
        one.name
        for one in slices
        if one.kind == Kind.LAUNCH and begin * 1e9 - 1 <= one.start < end * 1e9 - 1
    ]
    asks = [name for name in calls if name in _ASKS]
    return [name for name in calls if name in _WAITS] or asks[_ASKS_TO_WAIT:]


def raced(
    *, second: str = "", first: str = "", kind: str = "", said: tuple[str, ...] = ("",)
) -> Callable[[Run, int], Any]:
    """A race of the answer. first, second: what the stream's name in the report has; said: any
    of it stands in the report."""

    def sign(run: Run, rank: int) -> Any:
        for race in run.noted[rank]["races"]:
            one, other = race["streams"]
            told = any(words in race["said"] for words in said)
            if told and first in one and second in other and kind in race["kind"]:
                return {"race": race["said"]}
        return False

    return sign


def torch_cuda(run: Run, rank: int) -> bool:
    """Whether the answer asked PyTorch for a GPU, and not `cuda`."""
    return any(_NO_GPU.search(one.message) for one in run.job.failures)


def host_waits(run: Run, rank: int) -> Any:
    waits = run.noted[rank]["waits"]
    return bool(waits) and {"call": waits[0]}


def overlap(some: Sequence[Slice], others: Sequence[Slice]) -> int:
    """ns of `some` during which one of `others` runs; those of one list run one by one."""
    return sum(
        max(0, min(one.end, other.end) - max(one.start, other.start))
        for one in some
        for other in others
    )


# ── timed ────────────────────────────────────────────────────────────────────────────────────


_VARIES = (0.3, 0.3, 2.4)  # times the mean that three calls of a piece of work take


def _timed(
    answer: Any, each: float, repeats: int, varies: tuple[float, ...], elsewhere: bool
) -> Noted:
    """A piece of work whose first call takes longer, and whose others differ; ms."""
    calls = 0
    with virtual.device("H200") as cuda:
        current = cuda.Stream() if elsewhere else cuda.current_stream()

        def work() -> None:
            nonlocal calls
            calls += 1
            times = 8 if calls == 1 else varies[calls % len(varies)]
            cuda._sleep(int(times * each * 1.98e6))

        with cuda.stream(current):
            got = answer(cuda, work, repeats)
        names = [one.name for one in virtual.trace()]
    number = isinstance(got, int | float)
    end = each if number and abs(got / each - 1) <= _NEAR else float(got) if number else got
    launches = [at for at, name in enumerate(names) if name == "cudaLaunchKernel"]
    begun = "cudaEventRecord" in names[: launches[0]] if launches else False
    between = [names[a:b] for a, b in pairwise(launches[-repeats:])]
    noted = {
        "calls": calls,
        "records": names.count("cudaEventRecord"),
        "too_early": begun,
        "waits": sum(any(one in (*_WAITS, *_ASKS) for one in some) for some in between),
    }
    return Noted(end, noted)


@judged("timed", lab="04", play=_timed)
def timed(draw: random.Random) -> Iterator[Trial]:
    """`timed(cuda, work, repeats)`: milliseconds of the device that one call takes."""
    equal = (1.0,)
    for repeats, each, varies in (
        # Any so many calls one after the other have the same mean.
        (draw.choice((9, 12)), draw.randint(40, 80) / 100, _VARIES),
        (draw.choice((3, 6)), draw.randint(40, 80) / 100, _VARIES),
        (1, draw.randint(40, 80) / 100, equal),
        (40, draw.choice((54, 64)) / 1000, equal),  # far from any hundredth of a millisecond
    ):
        elsewhere = ", on another stream than the default one" if repeats == 1 else ""
        yield Trial(
            0,
            given=[(each, repeats, varies, bool(elsewhere))],
            right=[each],
            facts={"each": each, "repeats": repeats},
            like=f"work of {each} ms and {repeats} repeat{'s' * (repeats > 1)}{elsewhere}",
        )


def _times(
    factor: float | Callable[[Trial], float], near: float = 2 * _NEAR
) -> Callable[[Run, int], Any]:
    """Whether what came out is nearly so many times what is right; 0: next to nothing of it."""

    def sign(run: Run, rank: int) -> Any:
        times = factor(run.trial) if callable(factor) else factor
        got, right = run.got(rank), run.right(rank)
        return type(got) is float and abs(got - right * times) <= near * right * (abs(times) or 1)

    return sign


def _always(run: Run, rank: int) -> Any:
    return run.noted[rank]


timed.shows("host-clock", lambda run, rank: run.noted[rank]["records"] < 2)
timed.shows("seconds", _times(1e-3))
timed.shows("nothing-between", _times(0, 0.2))
timed.shows("waits-each-turn", lambda run, rank: run.noted[rank]["waits"] and run.noted[rank])
timed.shows("not-divided", _times(lambda t: t.repeats))
timed.shows("divided-by-one-more", _times(lambda t: t.repeats / (t.repeats + 1), _NEAR / 2))
timed.shows("microseconds", _times(1e3))
timed.shows("reversed", _times(-1))
timed.shows("counts-warm-up", lambda run, rank: run.noted[rank]["too_early"])
timed.shows(
    "one-call", lambda run, rank: _times(min(_VARIES))(run, rank) or _times(max(_VARIES))(run, rank)
)
timed.shows("otherwise", _always)
timed.fails(
    "not-reached",
    lambda run, rank: any("must be completed" in one.message for one in run.job.failures),
)
timed.fails("torch-cuda", torch_cuda)
timed.demands("no-events", lambda run, rank: run.noted[rank]["records"] < 2)
timed.demands("waits-each-turn", lambda run, rank: run.noted[rank]["waits"] and run.noted[rank])
timed.demands(
    "few-calls", lambda run, rank: run.noted[rank]["calls"] <= run.trial.repeats and run.noted[rank]
)


# ── ordered ──────────────────────────────────────────────────────────────────────────────────


def _ordered(answer: Any, x: Tensor, elsewhere: bool) -> Noted:
    with virtual.device(slow_machine()) as cuda:
        left = cuda.Stream()  # the report takes their names from these lines
        right = cuda.Stream()
        other = cuda.Stream()
        given = make(x).to("cuda")
        cuda.synchronize()
        begin = virtual.perf_counter()
        current = other if elsewhere else cuda.current_stream()
        with cuda.stream(current):
            got = answer(cuda, given, left, right)
        end = virtual.perf_counter()
        races = races_seen()
        cuda.synchronize()
        slices = list(virtual.trace())
        found = [got.cpu() if hasattr(got, "cpu") else got, given.cpu()]
    kernels = [one for one in slices if one.kind == Kind.COMPUTE]
    work = [one for one in slices if one.kind in (Kind.COMPUTE, Kind.COPY)]
    lanes = {
        name: [one for one in work if one.stream == stream.number]
        for name, stream in (("left", left), ("right", right))
    }
    noted = {
        "races": races,
        "waits": calls_that_wait(slices, begin, end),
        "idle": [name for name, lane in lanes.items() if not lane],
        "elsewhere": bool(kernels)
        and max(kernels, key=lambda one: one.start).stream != current.number,
        "beside": overlap(*lanes.values()),
        "names": [sorted({one.name for one in lane}) for lane in lanes.values()],
    }
    return Noted(found, noted)


@judged("ordered", lab="04", play=_ordered)
def ordered(draw: random.Random) -> Iterator[Trial]:
    """`ordered(cuda, x, left, right)`: two streams between work on the current one."""
    for elsewhere in (False, True):
        numbers = [one / 8 for one in draw.sample(range(-200, 200), 6)]
        where = "another stream than the default one" if elsewhere else "the default stream"
        yield Trial(
            0,
            given=[(Tensor.of(numbers), elsewhere)],
            right=[
                [Tensor.of(30 * one + 3 for one in numbers), Tensor.of(10 * one for one in numbers)]
            ],
            like=f"{where} as the current one",
        )


def _between_left_and_right(run: Run, rank: int) -> Any:
    one, other = "`left`", "`right`"
    return raced(first=one, second=other)(run, rank) or raced(first=other, second=one)(run, rank)


def _idle_stream(run: Run, rank: int) -> Any:
    idle = run.noted[rank]["idle"]
    return bool(idle) and {"stream": idle[0]}


def _swapped(run: Run, rank: int) -> bool:
    """x * 2 may be written as a sum, and so a sum on `left` alone says nothing."""
    on_left, on_right = run.noted[rank]["names"]
    adds, multiplies = (
        [part in " ".join(on) for on in (on_left, on_right)] for part in ("add", "mul")
    )
    return adds == [True, False] and multiplies == [False, True]


ordered.shows("between-left-and-right", _between_left_and_right)
ordered.shows("no-wait-before-left", raced(second="`left`"))
ordered.shows("no-wait-before-right", raced(second="`right`"))
ordered.shows("no-wait-after-left", raced(first="`left`"))
ordered.shows("no-wait-after-right", raced(first="`right`"))
ordered.fails("torch-cuda", torch_cuda)
ordered.demands("race", raced())
ordered.demands("host-waits", host_waits)
ordered.demands("stream-not-used", _idle_stream)
ordered.demands("swapped", _swapped)
ordered.demands("sum-elsewhere", lambda run, rank: run.noted[rank]["elsewhere"])
ordered.demands("not-beside", lambda run, rank: run.noted[rank]["beside"] < 50_000)


# ── collective_on_side ───────────────────────────────────────────────────────────────────────


def _on_side(answer: Any, x: Tensor, another: Tensor, elsewhere: bool) -> Noted:
    """Two collectives, and one wait between them; by names of kernels it is seen what waited."""
    launched = []
    with virtual.device(slow_machine()) as cuda:
        side = cuda.Stream()
        later = cuda.Stream()
        first, second = make(x).to("cuda"), make(another).to("cuda")
        third = make(x).to("cuda")
        current = cuda.Stream() if elsewhere else cuda.current_stream()
        cuda.synchronize()

        def collective(tensor: Any) -> None:
            launched.append(cuda.current_stream().number == side.number)
            for _ in range(2):  # after each turn, so many times two
                tensor.mul_(2)

        begin = virtual.perf_counter()
        with cuda.stream(current):
            first.add_(1)
            wait = answer(cuda, side, collective, first)
            at_once = bool(launched)
            second.div_(2)
            wait_second = answer(cuda, side, collective, second)
            third.abs_()
        waits = (wait, wait_second)
        found: list[Any] = [None, None]
        if all(map(takes, waits)):
            with cuda.stream(later if elsewhere else current):
                wait()
                y = first.neg()
                wait_second()
                z = second.square()
            with cuda.stream(cuda.Stream()):  # a second call, for another stream
                wait()
                again = first.exp()
            end, races = virtual.perf_counter(), races_seen()
            cuda.synchronize()
            del again
            found = [y.cpu(), z.cpu()]
        else:
            end, races = virtual.perf_counter(), []
        slices = list(virtual.trace())
    at = {one.name: one for one in slices if one.kind == Kind.COMPUTE}
    ends = [one.end for one in slices if one.kind == Kind.COMPUTE and one.name == "mul_"]
    noted = {
        "races": races,
        "waits": calls_that_wait(slices, begin, end),
        "launched": launched,
        "at_once": at_once,
        "blocks": len(ends) == 4 and max(at["div_"].start, at["abs_"].start) >= ends[1],
        "waits_for_all": len(ends) == 4 and "neg" in at and at["neg"].start >= ends[3],
    }
    return Noted(found, noted)


@judged("collective_on_side", lab="04", play=_on_side)
def collective_on_side(draw: random.Random) -> Iterator[Trial]:
    """`collective_on_side(cuda, side, collective, x)`: NCCL's two events, and a function `wait`."""
    for elsewhere in (False, True):
        x, y = ([one / 4 for one in draw.sample(range(1, 200), 4)] for _ in range(2))
        how = "another stream than the one of the launch" if elsewhere else "the same stream"
        yield Trial(
            0,
            given=[(Tensor.of(x), Tensor.of(y), elsewhere)],
            right=[
                [
                    Tensor.of(-4 * (one + 1) for one in x),
                    Tensor.of((2 * one) ** 2 for one in y),
                ]
            ],
            facts={"elsewhere": elsewhere},
            like=f"wait() on {how}",
        )


def _elsewhere(run: Run, rank: int) -> bool:
    return not all(run.noted[rank]["launched"])


def _only_elsewhere(run: Run, rank: int) -> Any:
    """Whether another stream than the one of the launch did not wait."""
    return run.trial.elsewhere and raced(first="`side`", second="`later`")(run, rank)


collective_on_side.shows("never-launched", lambda run, rank: not run.noted[rank]["launched"])
collective_on_side.shows("launched-late", lambda run, rank: not run.noted[rank]["at_once"])
collective_on_side.shows("not-on-side", _elsewhere)
collective_on_side.shows("given-back", raced(kind="given back"))
collective_on_side.shows("no-event-before", raced(second="`side`"))
collective_on_side.shows("stream-of-the-launch", _only_elsewhere)
collective_on_side.shows("no-event-after", raced(first="`side`"))
collective_on_side.fails("torch-cuda", torch_cuda)
collective_on_side.demands("waits-once", raced(first="`side`", said=("exp on",)))
collective_on_side.demands("race", raced())
collective_on_side.demands("not-called", lambda run, rank: not run.noted[rank]["launched"])
collective_on_side.demands("launched-late", lambda run, rank: not run.noted[rank]["at_once"])
collective_on_side.demands("not-on-side", _elsewhere)
collective_on_side.demands("host-waits", host_waits)
collective_on_side.demands("blocks-at-once", lambda run, rank: run.noted[rank]["blocks"])
collective_on_side.demands("waits-for-all", lambda run, rank: run.noted[rank]["waits_for_all"])


# ── bucket_size ──────────────────────────────────────────────────────────────────────────────

Costs = tuple[int, float, float, float]  # layers; compute, alpha and beta in µs


def _end(costs: Costs, size: int, waits_as_full: bool = False, sent_as_full: bool = False) -> float:
    """Return when all is communicated, with so many layers in a bucket.

    By mistake the last one is computed, or sent, as if it had as many layers as the others.
    """
    layers, compute, alpha, beta = costs
    sent = 0.0
    for begin in range(0, layers, size):
        last = min(begin + size, layers)
        ready = (begin + size if waits_as_full else last) * compute
        sent = max(sent, ready) + alpha + (size if sent_as_full else last - begin) * beta
    return sent


def _in_turn(costs: Costs, size: int) -> float:
    """As if a message could be hidden only by the computation of one bucket."""
    layers, compute, alpha, beta = costs
    buckets = [min(size, layers - begin) for begin in range(0, layers, size)]
    return sum(max(many * compute, alpha + many * beta) for many in buckets)


def _in_a_row(costs: Costs, size: int) -> float:
    """As if each message followed directly on the one before."""
    layers, compute, alpha, beta = costs
    first = min(size, layers) * compute
    return max(first + -(-layers // size) * alpha + layers * beta, layers * compute)


def _whole(costs: Costs, size: int) -> int:
    """Cut to whole microseconds, bucket by bucket."""
    layers, compute, alpha, beta = costs
    sent = 0
    for begin in range(0, layers, size):
        last = min(begin + size, layers)
        sent = int(max(sent, last * compute) + alpha + (last - begin) * beta)
    return sent


Model = Callable[[Costs, int], float]
_MISTAKEN: list[Model] = [  # each is wrong in one of the trials, at least
    functools.partial(_end, waits_as_full=True),
    functools.partial(_end, sent_as_full=True),
    functools.partial(_end, waits_as_full=True, sent_as_full=True),
    _in_turn,
    _in_a_row,
    _whole,
    lambda costs, size: int(_end(costs, size)),
]
_COSTS = ((20, 150), (1, 500), (5, 120))  # from, to, µs: compute, alpha, beta


def _best(costs: Costs, end: Model = _end) -> int:
    return min(range(1, costs[0] + 1), key=lambda size: end(costs, size))


@judged("bucket_size", lab="04")
def bucket_size(draw: random.Random) -> Iterator[Trial]:
    """`bucket_size(layers, compute, alpha, beta)`: how many layers a message should have."""
    kinds: list[Callable[[int, Costs], bool]] = [
        lambda best, costs: 1 < best < costs[0] and costs[0] % best == 0,
        lambda best, costs: best == 1,
        lambda best, costs: best == costs[0],
        *[lambda best, costs: 1 < best < costs[0] and costs[0] % best != 0] * 12,
        *(lambda best, costs, model=model: _best(costs, model) != best for model in _MISTAKEN),
    ]
    for number, wanted in enumerate(kinds, 1):
        unit = 1 if number < len(kinds) - 1 else 16
        while True:
            layers = draw.randint(5, 16)
            compute, alpha, beta = (draw.randint(*one) / unit for one in _COSTS)
            costs = (layers, compute, alpha, beta)
            least, second, *_ = sorted(_end(costs, size) for size in range(1, layers + 1))
            if second > least * 1.005 and wanted(_best(costs), costs):
                break
        yield Trial(
            0,
            given=[costs],
            right=[_best(costs)],
            facts={"costs": costs, "layers": layers},
            like=f"{layers} layers, compute {compute:g}, alpha {alpha:g} and beta {beta:g}",
        )


def _too_late(run: Run, rank: int) -> Any:
    got, costs = run.got(rank), run.trial.costs
    if type(got) is not int or not 1 <= got <= costs[0]:
        return False
    return {"took": f"{_end(costs, got):.4g}", "least": f"{_end(costs, run.right(rank)):.4g}"}


def _outside(run: Run, rank: int) -> Any:
    got = run.got(rank)
    return type(got) is int and not 1 <= got <= run.trial.layers


bucket_size.shows("outside", _outside)
bucket_size.shows("too-late", _too_late)


# ── prefetch ─────────────────────────────────────────────────────────────────────────────────


def with_copies(
    call: Callable[[Any, list[Any], Any, Any], Any],
    values: Sequence[float],
    dtype: str,
    elsewhere: bool,
) -> Noted:
    """What `call(cuda, on_host, use, side)` returns, where new memory is what earlier work still
    writes and reads; and what was seen of its copies.

    on_host: a pinned tensor for each of `values`. use: launches kernels that read a tensor first
    and last, and gives its sum, 3 and one element. elsewhere: whether another stream than the
    default one is current.
    """
    import torch

    with virtual.device(slow_machine()) as cuda:
        side = cuda.Stream()
        current = cuda.Stream() if elsewhere else cuda.current_stream()
        kind = getattr(torch, dtype)
        on_host = [torch.full((_BATCH,), value, dtype=kind).pin_memory() for value in values]

        places, kinds = set(), set()  # of what was used: whose memory, and the dtypes

        def use(tensor: Any) -> Any:
            places.add(tensor.data_ptr())
            kinds.add(str(tensor.dtype).removeprefix("torch."))
            total = tensor.sum()
            for _ in range(3):  # after each turn, so many more
                total = total + 1
            return total + tensor[0]  # what comes too early is overwritten by now

        cuda.synchronize()
        with cuda.stream(current):
            earlier = [torch.full((_BATCH,), -1.0, device="cuda") for _ in range(_BEFORE)]
            for one in earlier:
                one.amax()
            del one, earlier  # on the host; the device has not begun with most of it
            begin = virtual.perf_counter()
            got = call(cuda, on_host, use, side)
            end = virtual.perf_counter()
        with cuda.stream(side):  # who comes next takes the memory that was given back
            later = [torch.full((_BATCH,), -1.0, device="cuda") for _ in range(_BEFORE)]
        races = races_seen()
        del later
        cuda.synchronize()
        slices = list(virtual.trace())
        several = got if isinstance(got, list | tuple) else [got]
        right_kind = all(hasattr(one, "cpu") and one.numel() == 1 for one in several)
        numbers = [float(one.cpu()) for one in several] if right_kind else None
    found = numbers if several is got or numbers is None else numbers[0]
    ran = [one for one in slices if one.stream >= 0 and one.start >= begin * 1e9]
    copies = [one for one in ran if one.name.startswith("copy host")]
    hideable = copies[1:]  # nothing can hide the first
    steps = [one for one in ran if one.kind == Kind.COMPUTE and one.stream != side.number]
    long = sum(one.duration for one in hideable)
    noted = {
        "races": races,
        "waits": calls_that_wait(slices, begin, end),
        "held": len(places),
        "converted": sorted(kinds - {dtype}),
        "copies": len(copies),
        "elsewhere": any(one.name == "sum" and one.stream != current.number for one in ran),
        "beside": any(one.stream != side.number for one in copies),
        "hidden": overlap(hideable, steps) / long if long else 0.0,
        "busy": (end - begin) * 1e9 > sum(one.duration for one in copies) / 2,
    }
    return Noted(found, noted)


def _prefetch(answer: Any, *given: Any) -> Noted:
    return with_copies(answer, *given)


@judged("prefetch", lab="04", play=_prefetch)
def prefetch(draw: random.Random) -> Iterator[Trial]:
    """`prefetch(cuda, batches, step, side)`: copies on one stream, steps on another."""
    for count, dtype, elsewhere in (
        (6, "float32", False),
        (1, "float32", False),
        (draw.randint(7, 9), "int32", True),
    ):
        values = [one / 8 for one in draw.sample(range(8, 800, 8), count)]
        where = " and another stream than the default one as the current one" * elsewhere
        yield Trial(
            0,
            given=[(values, dtype, elsewhere)],
            right=[[_BATCH * one + 3 + one for one in values]],
            like=f"{count} batch{'es' if count > 1 else ''} of {dtype}{where}",
        )


def _shown(run: Run, rank: int) -> Any:
    share = run.noted[rank]["hidden"]
    return len(run.right(rank)) > 1 and share < _HIDDEN and {"share": percent(share)}


def _too_much(run: Run, rank: int) -> Any:
    held = run.noted[rank]["held"]
    return held > _MOST_BATCHES and {"held": held, "batches": len(run.right(rank))}


prefetch.shows("no-free", raced(second="`side`", kind="write"))
prefetch.shows("no-wait-at-first", raced(kind="given back", said=_EARLIER))
prefetch.shows("given-back", raced(kind="given back"))
prefetch.shows("no-full", raced(first="`side`"))
prefetch.demands(
    "converted",
    lambda run, rank: (
        bool(run.noted[rank]["converted"]) and {"dtype": run.noted[rank]["converted"][0]}
    ),
)
prefetch.fails("torch-cuda", torch_cuda)
prefetch.demands("race", raced())
prefetch.demands("host-waits", host_waits)
prefetch.demands("pageable", lambda run, rank: run.noted[rank]["busy"])
prefetch.demands("not-copied", lambda run, rank: not run.noted[rank]["copies"])
prefetch.demands("steps-elsewhere", lambda run, rank: run.noted[rank]["elsewhere"])
prefetch.demands("not-hidden", _shown)
prefetch.demands("too-much-memory", _too_much)
