"""Lab 02, point-to-point: the trials of its exercises, and the signs of what goes wrong in them."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

from ...launch.calls import Call
from ..exercises import NotJudged
from ..judging import Run, Step, Tensor, Trial, judged, same
from ..judging.values import alike, make, see, show

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
_LARGE = {"int32": 2**30, "int64": 2**60}  # whole numbers that floats cannot hold


# ── What ranks are given ─────────────────────────────────────────────────────────────────────


def _tensors(
    draw: random.Random, count: int, dtype: str, shape: tuple[int, ...], *, strided: bool = False
) -> list[Tensor]:
    """So many tensors, all of whose numbers differ: eighths, or large whole numbers."""
    length = math.prod(shape)
    numbers: list[float] = draw.sample(range(-240, 241), count * length)
    if dtype in _LARGE:
        numbers = [_LARGE[dtype] + int(one) for one in numbers]
    else:
        scale = 2.0**100 if dtype == "bfloat16" else 1.0  # float16 has no such numbers
        numbers = [one / 8 * scale for one in numbers]
    return [
        Tensor.of(numbers[at * length : (at + 1) * length], dtype, shape, strided=strided)
        for at in range(count)
    ]


def _shapes(draw: random.Random) -> Iterator[tuple[str, tuple[int, ...]]]:
    """dtypes and shapes, each other than the one before."""
    while True:
        dtypes = draw.sample(("float32", "float64", "int64"), 3)
        yield from zip(dtypes, ((draw.randint(2, 5),), (2, draw.randint(2, 4)), ()), strict=True)


@contextlib.contextmanager
def _slow(operation: str, pauses: Sequence[float]) -> Iterator[None]:
    """On a rank: so many seconds pass before each next "send" or "recv" begins."""
    import time

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    if not pauses:
        yield
        return
    left = list(pauses)
    slowed = {"send": (torch.ops.c10d.send.default,), "recv": (torch.ops.c10d.recv_.default,)}

    class Slow(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            if func in slowed[operation] and left:
                time.sleep(left.pop(0))
            return func(*args, **(kwargs or {}))

    with Slow():
        yield


# ── What is read from a run ──────────────────────────────────────────────────────────────────


def _waits_in(run: Run, rank: int) -> str:
    """The operation in which a rank waits for ever: "send", "recv", or "" where it does not.

    Where a message was given up, or is for nobody, that is what everybody waits for.
    """
    calls = run.calls(rank)
    lost = any(call.forsaken or call.peer not in (None, *run.ranks) for call in run.all_calls)
    stuck = run.failure == "stuck" and not lost and calls and calls[-1].end is None
    return calls[-1].operation if stuck else ""


def _all_wait_in(operation: str) -> Callable[[Run, int], bool]:
    """Whether all ranks wait in this operation, and nobody has begun another kind."""
    return lambda run, rank: all(
        _waits_in(run, one) == operation and set(run.operations(one)) == {operation}
        for one in run.ranks
    )


def _not_there(run: Run, rank: int) -> Any:
    """A call that asks for a rank that is not there."""
    gone = [c for c in run.calls(rank) if c.peer is not None and c.peer not in run.ranks]
    return bool(gone) and {"call": gone[0], "last": run.nproc - 1}


def _to_itself(run: Run, rank: int) -> Any:
    own = [call for call in run.calls(rank) if call.peer == rank]
    refused = [f for f in run.job.failures if f.rank == rank and "same as the rank" in f.message]
    return bool(own or refused) and {"call": own[0] if own else "send"}


def _too_small(run: Run, rank: int) -> Any:
    """A message that is larger than the tensor into which this rank receives it."""
    sent: dict[Any, Call] = {(c.rank, c.peer, c.tag, c.number): c for c in run.all_calls
                             if c.operation == "send"}  # fmt: skip
    for call in run.receives(rank):
        there = sent.get((call.peer, rank, call.tag, call.number))
        if there is not None and there.bytes > call.bytes:
            return {"sent": there.bytes, "space": call.bytes, "peer": call.peer}
    return False


def _receives_nothing(run: Run, rank: int) -> bool:
    return not run.receives(rank) and not run.collectives(rank)


def _called(run: Run, rank: int) -> dict[str, str]:
    return {"calls": ", ".join(run.operations(rank)) or "nothing"}


def _collective(run: Run, rank: int) -> Any:
    return bool(run.collectives(rank)) and {"operation": run.collectives(rank)[0].operation}


def _one_each_way(run: Run, rank: int) -> Any:
    return sorted(run.operations(rank)) != ["recv", "send"] and _called(run, rank)


def _another_ranks(run: Run, rank: int) -> Any:
    """Whether a rank ended up with what a rank had that it was not to come from."""
    xs = [given[0] for given in run.trial.given]
    holder = next((one for one in run.ranks if one != rank and run.equals(rank, xs[one])), None)
    wanted = next(one for one in run.ranks if alike(run.right(rank), xs[one]))
    return holder is not None and {"holder": holder, "wanted": wanted}


def _own(trial: Trial) -> list[Any]:
    return [given[0] for given in trial.given]


def _zeros(trial: Trial) -> list[Any]:
    return [[0.0] * len(given[0].numbers) for given in trial.given]


# ── swap_in_turn, swap ───────────────────────────────────────────────────────────────────────


def _pairs(draw: random.Random, nproc: int) -> list[int]:
    """Each rank's partner: of six, two even ones, two odd ones, and a mixed pair."""
    even, odd = list(range(0, nproc, 2)), list(range(1, nproc, 2))
    draw.shuffle(even)
    draw.shuffle(odd)
    half = nproc // 4
    pairs = [(even[2 * at], even[2 * at + 1]) for at in range(half)]
    pairs += [(odd[2 * at], odd[2 * at + 1]) for at in range(half)]
    pairs += zip(even[2 * half :], odd[2 * half :], strict=True)
    partner = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
    return [partner[rank] for rank in range(nproc)]


def _swaps(draw: random.Random) -> Iterator[Trial]:
    shapes = _shapes(draw)
    for nproc in (6, 6, draw.choice((2, 10))):
        partner = _pairs(draw, nproc)
        xs = _tensors(draw, nproc, *next(shapes))
        yield Trial(
            nproc,
            given=list(zip(xs, partner, strict=True)),
            right=[xs[other] for other in partner],
            facts={"partner": partner},
        )


@judged("swap_in_turn", lab="02")
def swap_in_turn(draw: random.Random) -> Iterator[Trial]:
    """`swap_in_turn(x, other)`: the other rank's x, by one blocking send and one blocking recv."""
    yield from _swaps(draw)


@judged("swap", lab="02")
def swap(draw: random.Random) -> Iterator[Trial]:
    """`swap(x, other)`: the other rank's x; both sides start both messages before they wait."""
    yield from _swaps(draw)


def _both_in(run: Run, rank: int) -> Any:
    """Whether a rank and its partner wait in the same operation, and began nothing else."""
    other = run.trial.partner[rank]
    same_way = {*run.operations(rank), *run.operations(other)} == {_waits_in(run, rank)}
    waiting = _waits_in(run, rank) == _waits_in(run, other) != ""
    return waiting and same_way and {"other": other, "operation": _waits_in(run, rank)}


def _some_both_in(run: Run, rank: int) -> Any:
    """Whether that is so of this pair, while another one got through."""
    through = [one for one in run.ranks if not _waits_in(run, one) and len(run.calls(one)) == 2]
    if not through:
        return False
    found = _both_in(run, rank)
    return found and {**found, "first": through[0], "second": run.trial.partner[through[0]]}


def _overlap(run: Run, rank: int) -> Any:
    """The two messages of a rank, if it began the second before the first was over."""
    first, second = run.calls(rank)
    at_once = first.end is None or first.end > second.start
    return at_once and {"first": first.operation, "second": second.operation}


def _no_overlap(run: Run, rank: int) -> Any:
    first, second = run.operations(rank)
    return not _overlap(run, rank) and {"first": first, "second": second}


for _one in (swap_in_turn, swap):
    _one.fails("to-itself", _to_itself)
    _one.fails("too-small", _too_small)
    _one.gives("own-x", _own)
    _one.gives("nothing-arrived", _zeros)
    _one.shows("receives-nothing", _receives_nothing)
    _one.shows("another-ranks", _another_ranks)
    _one.demands("uses-a-collective", _collective)
    _one.demands("too-much", _one_each_way)
swap_in_turn.fails("both-send", _all_wait_in("send"))
swap_in_turn.fails("both-receive", _all_wait_in("recv"))
swap_in_turn.fails("by-one-number", _some_both_in)
swap_in_turn.demands("at-once", _overlap)
swap.fails("waits-too-early", _both_in)
swap.demands("in-turn", _no_overlap)


# ── shift ────────────────────────────────────────────────────────────────────────────────────


@judged("shift", lab="02")
def shift(draw: random.Random) -> Iterator[Trial]:
    """`shift(x, by)`: the x of the rank `by` places before this one, in the ring of all ranks."""
    shapes = _shapes(draw)
    for n in draw.sample((3, 5), 1) + draw.sample((2, 4, 6), 1):
        steps = [1, -1, draw.randint(1, n - 1) + n, -draw.randint(1, n - 1) - n, 0]
        for by in (*steps, n * draw.choice((1, 2)), -n, draw.randint(2, n)):
            xs = _tensors(draw, n, *next(shapes))
            yield Trial(
                n,
                given=[(x, by) for x in xs],
                right=[xs[(rank - by) % n] for rank in range(n)],
                facts={"by": by},
            )


def _shifted(by: Callable[[int, int], int]) -> Callable[[Trial], list[Any]]:
    """A guess: the x of the rank `by(by, n)` places before."""
    return lambda trial: [
        trial.given[(rank - by(trial.by, trial.nproc)) % trial.nproc][0]
        for rank in range(trial.nproc)
    ]


def _same_peer(run: Run, rank: int) -> Any:
    """Whether a rank sends to the one from which it receives, and they are two different ones."""
    sent, asked = (
        {call.peer for call in run.calls(rank) if call.operation == way} for way in ("send", "recv")
    )
    both = run.failure == "stuck" and sent == asked and len(sent) == 1
    to, source = (rank + run.trial.by) % run.nproc, (rank - run.trial.by) % run.nproc
    return both and to != source and {"peer": sent.pop(), "to": to, "source": source}


def _needless(run: Run, rank: int) -> Any:
    return run.trial.by % run.nproc == 0 and bool(run.calls(rank)) and _called(run, rank)


def _more_than_one_each_way(run: Run, rank: int) -> Any:
    return run.trial.by % run.nproc != 0 and _one_each_way(run, rank)


def _not_batched(run: Run, rank: int) -> Any:
    alone = [call for call in run.calls(rank) if not call.batched]
    return bool(alone) and {"call": alone[0]}


def _not_a_copy(run: Run, rank: int) -> bool:
    return any(step.shared for step in run.steps[rank])


shift.fails("to-itself", _to_itself)
shift.fails("no-wrap", _not_there)
shift.fails("too-small", _too_small)
shift.fails("same-peer", _same_peer)
shift.fails("sends-first", _all_wait_in("send"))
shift.fails("receives-first", _all_wait_in("recv"))
shift.gives("other-way", _shifted(lambda by, n: -by))
shift.gives("by-not-used", _shifted(lambda by, n: 1), _shifted(lambda by, n: 1 if by % n else 0))
shift.gives("sign-lost", _shifted(lambda by, n: abs(by)))
shift.gives("own-x", _own)
shift.gives(
    "nothing-arrived",
    _zeros,
    lambda trial: _zeros(trial) if trial.by % trial.nproc else _own(trial),
)
shift.shows("receives-nothing", _receives_nothing)
shift.shows("another-ranks", _another_ranks)
shift.demands("uses-a-collective", _collective)
shift.demands("needless-message", _needless)
shift.demands("many-hops", _more_than_one_each_way)
shift.demands("not-batched", _not_batched)
shift.demands("not-a-copy", _not_a_copy)


# ── transfer ─────────────────────────────────────────────────────────────────────────────────


def _to_dst(answer: Any, x: Any, src: int, dst: int) -> Any:
    """What the answer returned on the rank that asked for it; "" on all others."""
    import torch.distributed as dist

    got = answer(make(x), src, dst)
    return got if dist.get_rank() == dst else ""


@judged("transfer", lab="02", play=_to_dst)
def transfer(draw: random.Random) -> Iterator[Trial]:
    """`transfer(x, src, dst)`: any tensor from one rank to another that knows nothing of it."""
    shapes: list[tuple[int, ...]] = [
        (draw.randint(5, 9),),
        (draw.randint(2, 4), 5),
        (2, draw.randint(3, 5), 3),
        (),
        (1, 2, draw.randint(1, 3), 1, 3),
        (2, 1, 3, 2, 1, 2, 2, draw.randint(1, 2)),
        (2 * draw.randint(1025, 2000) + 1, 0),  # a size that few bits do not hold
        (1, 1, draw.randint(2, 4)),
    ]
    kinds = draw.sample(sorted(_BYTES), len(_BYTES))
    strided = draw.randrange(2)
    # As many trials as ranks: so each receives once, and may receive from anybody.
    ends = [(nproc, dst) for nproc in draw.choice(((2, 6), (3, 5))) for dst in range(nproc)]
    for at, (shape, (nproc, dst)) in enumerate(zip(shapes, ends, strict=True)):
        dtype = kinds[at % len(kinds)]
        # Of fewer sizes above 1, flatten() of a strided tensor is no copy: more than is asked here.
        may_be_strided = sum(one > 1 for one in shape) > 1
        (x,) = _tensors(draw, 1, dtype, shape, strided=may_be_strided and at % 2 == strided)
        src = draw.choice([rank for rank in range(nproc) if rank != dst])
        size = _BYTES[dtype] * math.prod(shape)
        yield Trial(
            nproc,
            given=[(x if rank == src else None, src, dst) for rank in range(nproc)],
            right=[x if rank == dst else "" for rank in range(nproc)],
            facts={"src": src, "dst": dst, "size": size, "x": x},
        )


def _not_contiguous(run: Run, rank: int) -> bool:
    return any(f.rank == rank and "contiguous" in f.message for f in run.job.failures)


def _outsider_waits(run: Run, rank: int) -> Any:
    outside = rank not in (run.trial.src, run.trial.dst)
    return outside and bool(_waits_in(run, rank)) and {"call": run.calls(rank)[-1]}


def _outsider_called(run: Run, rank: int) -> Any:
    outside = rank not in (run.trial.src, run.trial.dst)
    return outside and bool(run.calls(rank)) and _called(run, rank)


def _through_floats(run: Run, rank: int) -> bool:
    """Whether whole numbers were rounded as float32 or float64 are."""
    right = run.right(rank).numbers
    rounded = [
        [int(*struct.unpack(code, struct.pack(code, one))) for one in right] for code in "fd"
    ]
    return type(right[0]) is int and list(run.got(rank).numbers) in rounded


def _in_another_order(run: Run, rank: int) -> bool:
    return sorted(run.got(rank).numbers) == sorted(run.right(rank).numbers)


def _has_data(run: Run, rank: int) -> bool:
    """Whether a message from `src` to `dst` has the data's bytes; there may be none to send."""
    size, dst = run.trial.size, run.trial.dst
    return not size or any(c.bytes == size and c.peer == dst for c in run.sends(rank))


def _packed(run: Run, rank: int) -> Any:
    packed = [c for c in run.sends(rank) if c.dtype == "uint8" and c.bytes > run.trial.size]
    return bool(packed) and not _has_data(run, rank) and {"sent": packed[0].bytes}


def _converted(run: Run, rank: int) -> Any:
    sent = ", ".join(f"{call.bytes} of {call.dtype}" for call in run.sends(rank))
    return rank == run.trial.src and not _has_data(run, rank) and {"sent": sent or "none at all"}


def _many_messages(run: Run, rank: int) -> Any:
    return len(run.sends(rank)) > 5 and {"count": len(run.sends(rank))}


transfer.fails("not-contiguous", _not_contiguous)
transfer.fails("too-small", _too_small)
transfer.fails("outsider-waits", _outsider_waits)
transfer.shows("through-floats", _through_floats)
transfer.shows("wrong-places", _in_another_order)
transfer.demands("uses-a-collective", _collective)
transfer.demands("outsider-called", _outsider_called)
transfer.demands("too-much", _many_messages)
transfer.demands("pickled", _packed)
transfer.demands("converted", _converted)


# ── one_way ──────────────────────────────────────────────────────────────────────────────────

_EARLY, _USUAL = 0.001, 0.003  # seconds by which replies come late
_NEXT, _CENTRE, _LATE = 0.02, 0.027, 0.034
_NEAR = 0.15  # how much what it returned may differ from what the record says
_ALIKE = 0.15  # and from what a mistake would have made of it
_QUIET = 0.2  # of what a call must take: how much longer it may take on a quiet machine


def _ping_pong(answer: Any, *asked: tuple[int, int, list[float]]) -> list[Any]:
    """The answer, until the machine was quiet in two calls, with rank 1's replies so late.

    Ends with 0.0 if rank 0 got numbers, else with what it got.
    """
    import time

    import torch
    import torch.distributed as dist

    ends, quiet = [], 0
    for nbytes, repeats, pauses in asked:
        began = time.perf_counter()
        with _slow("send", pauses if dist.get_rank() == 1 else []):
            got = see(answer(nbytes, repeats))
        more = torch.tensor(time.perf_counter() - began - sum(pauses))
        if isinstance(got, Tensor) and len(got.numbers) == 1:
            (got,) = got.numbers
        ends.append(0.0 if type(got) in (int, float) or dist.get_rank() == 1 else got)
        dist.broadcast(more, 0)  # both go on, or neither
        quiet += more.item() < _QUIET * sum(pauses)
        if quiet == 2:
            break
    return [next((end for end in ends if end != 0.0), 0.0)]


@judged("one_way", lab="02", play=_ping_pong)
def one_way(draw: random.Random) -> Iterator[Trial]:
    """`one_way(nbytes, repeats)`: seconds of one message between ranks 0 and 1, by ping-pong."""
    asked = [(2 * draw.randint(100, 900) + 1, *_late_replies(draw)) for _ in range(8)]
    yield Trial(2, given=[tuple(asked)] * 2, right=[[0.0]] * 2)


def _late_replies(draw: random.Random) -> tuple[int, list[float]]:
    """How many round trips to count, and how late each reply comes, such that the median is a usual
    one. With the first trip, which is late, it would not be, nor are the mean, the ends, and the
    one in the centre; and all these differ."""
    half = draw.choice((3, 4))
    others = [*[_USUAL] * (half - 1), _NEXT, *[_LATE] * (half - 2)]
    draw.shuffle(others)
    counted = [_EARLY, *others[: half - 1], _CENTRE, *others[half - 1 :], _EARLY]
    return len(counted), [_LATE, *counted]


def _each(run: Run, rank: int) -> Iterator[tuple[Step, list[Call], list[Call], int, int]]:
    """Of each call of the answer: what this rank sent and received in it, nbytes and repeats."""
    for step, (nbytes, repeats, _) in zip(run.steps[rank], run.trial.given[rank], strict=False):
        calls = [call for call in run.calls(rank) if step.began <= call.start <= step.ended]
        out = [call for call in calls if call.operation == "send"]
        back = [call for call in calls if call.operation == "recv"]
        yield step, out, back, nbytes, repeats


def _wrong_bytes(run: Run, rank: int) -> Any:
    for _, out, back, nbytes, _ in _each(run, rank):
        other = [call.bytes for call in out + back if call.bytes != nbytes]
        if other:
            return {"bytes": nbytes, "sent": other[0]}
    return False


def _one_sided(run: Run, rank: int) -> Any:
    for _, out, back, _, _ in _each(run, 0):
        if len(out) != len(back):
            return {"sent": len(out), "back": len(back)}
    return False


def _wrong_count(too_few: bool) -> Callable[[Run, int], Any]:
    """Whether some call made not one round trip more than it counts; too_few: just as many."""

    def sign(run: Run, rank: int) -> Any:
        for _, out, _, _, repeats in _each(run, 0):
            made = len(out)
            if made == repeats if too_few else made != repeats + 1:
                return {"repeats": repeats, "made": made}
        return False

    return sign


Statistic = Callable[[list[float]], float]  # of the round trips, the first one among them


def _one_way(trips: list[float]) -> float:
    return statistics.median(trips[1:]) / 2


_STATISTICS: dict[str, tuple[Statistic, ...]] = {
    "round-trip": (lambda trips: 2 * _one_way(trips),),
    "first-counted": (
        lambda trips: statistics.median(trips) / 2,
        lambda trips: statistics.median(trips[:-1]) / 2,
        lambda trips: statistics.mean(trips) / 2,
        lambda trips: sum(trips) / len(trips[1:]) / 2,
    ),
    "mean": (
        lambda trips: statistics.mean(trips[1:]) / 2,
        lambda trips: sum(trips[1:]) / len(trips) / 2,
    ),
    "minimum": (lambda trips: min(trips[1:]) / 2,),
    "maximum": (lambda trips: max(trips[1:]) / 2,),
    "not-sorted": (lambda trips: trips[1:][len(trips[1:]) // 2] / 2,),
    "total": (
        lambda trips: sum(trips[1:]),
        lambda trips: sum(trips[1:]) / 2,
        lambda trips: sum(trips),
        lambda trips: sum(trips) / 2,
    ),
    "other-unit": (lambda trips: 1e3 * _one_way(trips), lambda trips: 1e6 * _one_way(trips)),
}


def _miss(measured: float, other: float) -> float:
    return abs(measured - other) / other


def _off(run: Run) -> list[tuple[float, list[float]]]:
    """What was returned and the round trips, where the two do not agree; [] unless that is so of
    most calls, for the machine may take its time between the answer's clock and the record's.

    A call counts only if in it the median was clearly something else than all other statistics.
    """
    off, clear = [], 0
    for step, out, back, _, _ in _each(run, 0):
        got = step.returned
        seconds = got.numbers[0] if isinstance(got, Tensor) else got
        trips = [
            max(there.end or 0.0, here.end or 0.0) - min(there.start, here.start)
            for there, here in zip(out, back, strict=True)
        ]
        others = [guess(trips) for guesses in _STATISTICS.values() for guess in guesses]
        if any(_miss(_one_way(trips), other) < 1.5 * _NEAR for other in others):
            continue
        clear += 1
        if _miss(seconds, _one_way(trips)) > _NEAR:
            off.append((seconds, trips))
    if not clear:
        raise NotJudged("the machine was too busy to measure on it; run the check again")
    return off if 2 * len(off) > clear else []


def _returned(mistake: str) -> Callable[[Run, int], Any]:
    """Whether this explains best all that was returned and is not the median of the trips."""

    def sign(run: Run, rank: int) -> Any:
        off = _off(run) if rank == 0 else []
        misses = {
            name: min(
                statistics.median(_miss(got, guess(trips)) for got, trips in off)
                for guess in guesses
            )
            for name, guesses in _STATISTICS.items()
            if off
        }
        best = min(misses, key=misses.__getitem__, default="")
        told = best if misses and misses[best] < _ALIKE else "not-the-median"
        return bool(off) and told == mistake and _said(*off[0])

    return sign


def _said(seconds: float, trips: list[float]) -> dict[str, Any]:
    return {
        "seconds": f"{seconds:.6f}",
        "median": f"{_one_way(trips):.6f}",
        "count": len(trips) - 1,
        "first": f"{trips[0] / statistics.median(trips[1:]):.0f}",
    }


one_way.fails("both-send", _all_wait_in("send"))
one_way.demands("uses-a-collective", _collective)
one_way.demands("wrong-bytes", _wrong_bytes)
one_way.demands("one-sided", _one_sided)
one_way.demands("no-warm-up", _wrong_count(too_few=True))
one_way.demands("wrong-count", _wrong_count(too_few=False))
for _mistake in (*_STATISTICS, "not-the-median"):
    one_way.demands(_mistake, _returned(_mistake))


# ── relay ────────────────────────────────────────────────────────────────────────────────────


def _relayed(answer: Any, x: Tensor, chunks: int, pauses: list[float]) -> None:
    with _slow("recv", pauses):
        answer(make(x), chunks)


@judged("relay", lab="02", play=_relayed, in_place=0)
def relay(draw: random.Random) -> Iterator[Trial]:
    """`relay(x, chunks)`: x of rank 0 on all ranks, from neighbour to neighbour, in pieces."""
    sizes = [*draw.sample((2, 4), 1), *draw.sample((3, 5, 6), 1)]
    dtypes = draw.sample(("float32", "float64", "int64"), 3)
    for at, nproc in enumerate((sizes[0], sizes[1], sizes[1])):
        chunks = draw.choice((3, 5, 7)) if at < 2 else 1
        part = draw.randint(4, 9)
        length = chunks * part - (draw.randint(1, part // 2) if at < 2 else 0)
        (x,) = _tensors(draw, 1, dtypes[at], (length,))
        others = _tensors(draw, nproc - 1, dtypes[at], (length,))
        late = draw.randrange(1, nproc)
        pauses = [[0.002] * chunks if rank == late else [] for rank in range(nproc)]
        yield Trial(
            nproc,
            given=[(one, chunks, pauses[rank]) for rank, one in enumerate([x, *others])],
            right=[x] * nproc,
            facts={"chunks": chunks, "length": length},
        )


def _beyond_an_end(run: Run, rank: int) -> Any:
    """A receive of the first rank, or a message that the last one sends."""
    beyond = {0: run.receives(rank), run.nproc - 1: run.sends(rank)}.get(rank, [])
    return run.failure == "stuck" and bool(beyond) and {"call": beyond[0]}


def _down(run: Run, rank: int) -> Any:
    """A message to a lower rank, if there is one at all."""
    down = [c for c in run.all_calls if c.operation == "send" and (c.peer or 0) < c.rank]
    return bool(down) and {"sender": down[0].rank, "call": down[0]}


def _remainder(run: Run, rank: int) -> Any:
    """Whether only the end of x, which is left where pieces are cut too short, is wrong."""
    cut = run.trial.chunks * (run.trial.length // run.trial.chunks)
    got, right = run.got(rank).numbers, run.right(rank).numbers
    return cut < run.trial.length and got[:cut] == right[:cut] and {"cut": cut}


def _misplaced(run: Run, rank: int) -> Any:
    """Whether all is rank 0's, and some of it not where it belongs."""
    got, right = run.got(rank).numbers, run.right(rank).numbers
    at = next(at for at, pair in enumerate(zip(got, right, strict=True)) if pair[0] != pair[1])
    return set(got) <= set(right) and {"element": at, "other": right.index(got[at])}


def _first_wrong(run: Run, rank: int) -> Any:
    difference = run.difference(rank)
    return difference is not None and {
        "element": difference.at,
        "found": show(difference.got),
        "sent": show(difference.right),
    }


def _far(run: Run, rank: int) -> Any:
    far = [c for c in run.calls(rank) if c.peer is not None and abs(c.peer - rank) != 1]
    return bool(far) and {"call": far[0], "times": run.nproc - 1}


def _pieces(whole: bool) -> Callable[[Run, int], Any]:
    """Whether a rank sent another number of messages; whole: a single one."""

    def sign(run: Run, rank: int) -> Any:
        made, chunks = len(run.sends(rank)), run.trial.chunks
        wrong = rank < run.nproc - 1 and made != chunks
        return wrong and (made == 1 or not whole) and {"made": made}

    return sign


def _asks_before_passing(run: Run, rank: int) -> Any:
    """How many pieces this rank had asked for when it had passed on one less than those."""
    asked = passed = 0
    for call in run.calls(rank):
        asked += call.operation == "recv"
        passed += call.operation == "send"
        if asked > passed + 1 and run.sends(rank):
            return {"asked": asked, "passed": passed, "all": len(run.receives(rank))}
    return False


def _all_then_on(run: Run, rank: int) -> Any:
    """Whether this rank passed on nothing before it had asked for all."""
    calls = run.calls(rank)
    ways = [way for way, _ in groupby(call.operation for call in calls)]
    return ways == ["recv", "send"] and len(run.receives(rank)) > 1


relay.fails("too-small", _too_small)
relay.fails("ring", _beyond_an_end)
relay.shows("other-way", _down)
relay.shows("remainder", _remainder)
relay.shows("misplaced", _misplaced)
relay.shows("wrong-element", _first_wrong)
relay.demands("uses-a-collective", _collective)
relay.demands("from-the-first", _far)
relay.demands("whole", _pieces(whole=True))
relay.demands("other-pieces", _pieces(whole=False))
relay.demands("all-then-on", _all_then_on)
relay.demands("asks-before-passing", _asks_before_passing)


# ── one_f_one_b ──────────────────────────────────────────────────────────────────────────────


def _one_then_one(first: int, microbatches: int) -> list[str]:
    """A schedule with so many forwards before the first backward."""
    first = max(0, min(first, microbatches))
    order = [f"F{number}" for number in range(first)]
    for number in range(microbatches - first):
        order += [f"F{first + number}", f"B{number}"]
    return order + [f"B{number}" for number in range(microbatches - first, microbatches)]


def _right_order(stage: int, stages: int, microbatches: int) -> list[str]:
    """1F1B of one stage, as the field defines it (PipeDream-Flush; Narayanan and others, 2021)."""
    return _one_then_one(stages - 1 - stage, microbatches)


def _all_f_all_b(microbatches: int) -> list[str]:
    return [f"{way}{number}" for way in "FB" for number in range(microbatches)]


def _planned(answer: Any, stage: int, stages: int, microbatches: int) -> Any:
    """The steps, under a name: so that one that is not there is no matter of length."""
    steps = answer(stage, stages, microbatches)
    if isinstance(steps, list | tuple) and all(type(one) is str for one in steps):
        return {"steps": list(steps)}
    return steps


@judged("one_f_one_b", lab="02", play=_planned, silent=True)
def one_f_one_b(draw: random.Random) -> Iterator[Trial]:
    """`one_f_one_b(stage, stages, microbatches)`: the order of one stage's work under 1F1B."""
    few = draw.randint(5, 7)
    for stages, microbatches in ((4, 8), (3, draw.randint(11, 13)), (few, few - 3), (2, 1)):
        for stage in range(stages):
            yield Trial(
                0,
                given=[(stage, stages, microbatches)],
                right=[{"steps": _right_order(stage, stages, microbatches)}],
                facts={"stage": stage, "stages": stages, "microbatches": microbatches},
            )


def _order(order: Callable[[int, int, int], list[str]]) -> Callable[[Trial], list[Any]]:
    return lambda t: [{"steps": order(t.stage, t.stages, t.microbatches)}]


def _steps(run: Run) -> list[str]:
    return list(run.got(0)["steps"])


def _incomplete(run: Run, rank: int) -> Any:
    steps, wanted = _steps(run), _all_f_all_b(run.trial.microbatches)
    if sorted(steps) == sorted(wanted):
        return False
    missing = [one for one in wanted if one not in steps]
    other = [one for one in steps if one not in wanted]
    twice = [one for one in wanted if steps.count(one) > 1]
    why = (
        f"{missing[0]} is not there"
        if missing
        else f"there is no {other[0]}"
        if other
        else f"{twice[0]} is there {steps.count(twice[0])} times"
    )
    return {"count": len(steps), "enough": len(wanted), "why": why}


def _too_early(run: Run, rank: int) -> Any:
    """A backward before its own forward."""
    steps = _steps(run)
    early = [
        one for at, one in enumerate(steps) if one[0] == "B" and "F" + one[1:] not in steps[:at]
    ]
    return bool(early) and {"step": early[0], "forward": "F" + early[0][1:]}


def _not_first_in_first_out(run: Run, rank: int) -> Any:
    for way in "FB":
        numbers = [int(one[1:]) for one in _steps(run) if one[0] == way]
        if numbers != sorted(numbers):
            return {"way": way, "numbers": ", ".join(map(str, numbers))}
    return False


def _before_a_backward(steps: list[str]) -> int:
    return next(at for at, one in enumerate(steps) if one[0] == "B")


def _wrong_warm_up(run: Run, rank: int) -> Any:
    made, right = _before_a_backward(_steps(run)), _before_a_backward(run.right(0)["steps"])
    behind = run.trial.stages - 1 - run.trial.stage
    return made != right and {"made": made, "first": right, "behind": behind}


def _wrong_turn(run: Run, rank: int) -> Any:
    pairs = zip(_steps(run), run.right(0)["steps"], strict=True)
    at, (step, other) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    return {"at": at, "step": step, "other": other}


one_f_one_b.gives("all-then-all", _order(lambda stage, stages, m: _all_f_all_b(m)))
one_f_one_b.gives("wrong-end", _order(lambda stage, stages, m: _one_then_one(stage, m)))
one_f_one_b.gives(
    "same-everywhere",
    _order(lambda stage, stages, m: _one_then_one(stages - 1, m)),
    _order(lambda stage, stages, m: _one_then_one(stages, m)),
    _order(lambda stage, stages, m: _one_then_one(0, m)),
    _order(lambda stage, stages, m: _one_then_one(1, m)),
)
one_f_one_b.shows("incomplete", _incomplete)
one_f_one_b.shows("too-early", _too_early)
one_f_one_b.shows("last-first", _not_first_in_first_out)
one_f_one_b.shows("wrong-warm-up", _wrong_warm_up)
one_f_one_b.shows("wrong-turn", _wrong_turn)


# ── run_stage ────────────────────────────────────────────────────────────────────────────────


class Stage:
    """A stage of a pipeline that notes what it is given.

    A backward adds its number to what it passes on, so that no two gradients are the same.
    """

    def __init__(self, weight: float):
        self.weight = weight
        self.did: list[str] = []
        self.given: list[Any] = []
        self.kept: dict[str, Any] = {}

    def forward(self, number: int, x: Any) -> Any:
        self.kept[str(number)] = x
        self._note(f"F{number}", x)
        return x * self.weight

    def backward(self, number: int, grad: Any) -> Any:
        if str(number) in self.kept:  # as it is now: a later message may be put into it
            self.kept[str(number)] = self.kept[str(number)].clone()
        self._note(f"B{number}", grad)
        return grad * self.weight + int(number)

    def _note(self, step: str, given: Any) -> None:
        self.did.append(step)
        self.given.append(given.clone())


def _staged(
    answer: Any, order: list[str], weight: float, inputs: list[Tensor], pauses: list[float]
) -> dict[str, Any]:
    """What the stage did, what it was given, and what of that it had left for each backward."""
    stage = Stage(weight)
    with _slow("recv", pauses):
        answer(list(order), stage, make(inputs))
    return {"did": stage.did, "given": stage.given, "kept": list(stage.kept.values())}


@judged("run_stage", lab="02", play=_staged, silent=True)
def run_stage(draw: random.Random) -> Iterator[Trial]:
    """`run_stage(order, stage, inputs)`: one stage of a pipeline, in any right order."""
    for stages in draw.sample((2, 4), 1) + draw.sample((3, 5), 1):
        for microbatches, scheduled in ((draw.randint(stages, 6), False), (11, True)):
            yield _pipeline(draw, stages, microbatches, scheduled)


def _pipeline(draw: random.Random, stages: int, microbatches: int, one_by_one: bool) -> Trial:
    """All forwards, then all backwards, or 1F1B; one stage comes late to each of its messages."""
    shape = (3,) if one_by_one else (1, 2)
    dtype = "float64" if one_by_one else "float32"
    inputs = _tensors(draw, microbatches, dtype, shape)
    weights = [draw.choice((-3.0, -0.5, 0.5, 1.5, 2.0)) for _ in range(stages)]
    orders = [
        _right_order(rank, stages, microbatches) if one_by_one else _all_f_all_b(microbatches)
        for rank in range(stages)
    ]
    given: dict[tuple[int, str], Tensor] = {}  # by stage and step
    for number, x in enumerate(inputs):
        numbers = list(x.numbers)
        for rank in range(stages):
            given[rank, f"F{number}"] = Tensor.of(numbers, dtype, shape)
            numbers = [one * weights[rank] for one in numbers]
        grads = [1.0] * len(numbers)
        for rank in reversed(range(stages)):
            given[rank, f"B{number}"] = Tensor.of(grads, dtype, shape)
            grads = [one * weights[rank] + number for one in grads]
    right = [
        {
            "did": orders[rank],
            "given": [given[rank, step] for step in orders[rank]],
            "kept": [given[rank, f"F{number}"] for number in range(microbatches)],
        }
        for rank in range(stages)
    ]
    late = draw.randrange(stages)
    pauses = [[0.001] * microbatches if rank == late else [] for rank in range(stages)]
    return Trial(
        stages,
        given=[(orders[rank], weights[rank], inputs, pauses[rank]) for rank in range(stages)],
        right=right,
        facts={"microbatches": microbatches, "given_to": given},
    )


def _without_ends(run: Run, rank: int) -> Any:
    """Whether the first stage waits for an input, or it and the last one are made neighbours."""
    calls = run.calls(rank)
    asks = [c for c in calls[:1] if rank == 0 and c.operation == "recv"]
    around = [c for c in calls if run.nproc > 2 and {rank, c.peer} == {0, run.nproc - 1}]
    return run.failure == "stuck" and bool(asks or around) and {"call": (asks or around)[0]}


def _blocking_sends(run: Run, rank: int) -> Any:
    """Whether this rank and the next one both wait for the end of a send."""
    both = rank + 1 < run.nproc and _waits_in(run, rank) == _waits_in(run, rank + 1) == "send"
    return both and {"next": rank + 1}


def _neighbours_receive(run: Run, rank: int) -> Any:
    both = rank + 1 < run.nproc and _waits_in(run, rank) == _waits_in(run, rank + 1) == "recv"
    return both and {"next": rank + 1}


def _own_order(run: Run, rank: int) -> Any:
    did, right = run.got(rank)["did"], run.right(rank)["did"]
    return did != right and {"did": " ".join(did) or "nothing", "order": " ".join(right)}


def _overwritten(run: Run, rank: int) -> Any:
    """A microbatch that was given rightly to a forward, and was another one at its backward."""
    got, right = run.got(rank), run.right(rank)
    if not same(got["given"], right["given"]):
        return False
    wrong = [at for at, x in enumerate(right["kept"]) if not same(got["kept"][at], x)]
    return bool(wrong) and {"number": wrong[0]}


def _wrong_given(run: Run, rank: int) -> tuple[str, Any, Tensor]:
    """The first step to which this rank's stage was given something wrong, and the two."""
    got, right = run.got(rank), run.right(rank)
    for step, x, other in zip(right["did"], got["given"], right["given"], strict=True):
        if not same(x, other):
            return step, x, other
    raise ValueError("it was given all that is right")


def _last_gradient(run: Run, rank: int) -> Any:
    last = run.nproc - 1
    if last not in run.wrong or not _is_given(run, last, "B"):
        return False
    _, x, _ = _wrong_given(run, last)
    return {"last": last, "given": show(x)}


def _first_input(run: Run, rank: int) -> Any:
    if 0 not in run.wrong or not _is_given(run, 0, "F"):
        return False
    step, x, other = _wrong_given(run, 0)
    return {"number": step[1:], "given": show(x), "wanted": show(other)}


def _is_given(run: Run, rank: int, way: str) -> bool:
    """Whether the first wrong thing that was given to a rank's stage was for a step of this way."""
    return not same(run.got(rank)["given"], run.right(rank)["given"]) and (
        _wrong_given(run, rank)[0].startswith(way)
    )


def _another_microbatch(run: Run, rank: int) -> Any:
    step, x, _ = _wrong_given(run, rank)
    for other in _all_f_all_b(run.trial.microbatches):
        if other[0] == step[0] and same(x, run.trial.given_to[rank, other]):
            return {"step": step, "other": other}
    return False


def _own_inputs(run: Run, rank: int) -> Any:
    """Whether a stage that is not the first was given the first one's input."""
    step, x, _ = _wrong_given(run, rank)
    own = rank > 0 and step[0] == "F" and same(x, run.trial.given_to[0, step])
    return own and {"step": step, "number": step[1:]}


def _not_computed(run: Run, rank: int) -> Any:
    """Whether a stage was given what the pipeline's end began with, as if none were between."""
    step, x, _ = _wrong_given(run, rank)
    end = 0 if step[0] == "F" else run.nproc - 1
    return rank != end and same(x, run.trial.given_to[end, step]) and {"step": step, "end": end}


def _went_on(run: Run, rank: int) -> Any:
    """A receive that had not ended when this rank made its next call."""
    calls = run.calls(rank)
    early = [
        one
        for one, after in pairwise(calls)
        if one.operation == "recv" and (one.end is None or one.end > after.start)
    ]
    return bool(early) and {"call": early[0], "step": _wrong_given(run, rank)[0]}


def _given(run: Run, rank: int) -> Any:
    step, x, other = _wrong_given(run, rank)
    return {"step": step, "given": show(x), "wanted": show(other)}


def _where_given(sign: Callable[[Run, int], Any]) -> Callable[[Run, int], Any]:
    """Only of ranks whose stage was given something wrong, at the right steps."""
    return lambda run, rank: (
        run.got(rank)["did"] == run.right(rank)["did"]
        and not same(run.got(rank)["given"], run.right(rank)["given"])
        and sign(run, rank)
    )


def _other_messages(run: Run, rank: int) -> Any:
    neighbours = (rank > 0) + (rank < run.nproc - 1)
    each = neighbours * run.trial.microbatches
    wanted = ["recv"] * each + ["send"] * each
    called = {one: run.operations(rank).count(one) for one in run.operations(rank)}
    said = ", ".join(f"{times} {one}" for one, times in called.items()) or "nothing"
    return sorted(run.operations(rank)) != wanted and {"calls": said, "each": each}


run_stage.fails("ring", _without_ends)
run_stage.fails("too-small", _too_small)
run_stage.fails("blocking-sends", _blocking_sends)
run_stage.fails("both-receive", _neighbours_receive)
run_stage.shows("own-order", _own_order)
run_stage.shows("one-buffer", _overwritten)
run_stage.shows("last-gradient", _where_given(_last_gradient))
run_stage.shows("first-input", _where_given(_first_input))
run_stage.shows("another-microbatch", _where_given(_another_microbatch))
run_stage.shows("own-inputs", _where_given(_own_inputs))
run_stage.shows("not-computed", _where_given(_not_computed))
run_stage.shows("went-on", _where_given(_went_on))
run_stage.shows("given", _where_given(_given))
run_stage.demands("uses-a-collective", _collective)
run_stage.demands("too-much", _other_messages)
