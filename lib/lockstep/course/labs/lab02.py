"""Lab 02, point-to-point: the trials of its exercises, and the signs of what goes wrong in them."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...calls.record import Call
from ..exercises import NotJudged
from ..judging import Noted, Run, Step, Tensor, Trial, call_after, judged
from ..judging.values import alike, make, see, show
from .messages import collective, slow, tensors, too_small, waits_in

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}


# ── What ranks are given ─────────────────────────────────────────────────────────────────────


def _shapes(draw: random.Random) -> Iterator[tuple[str, tuple[int, ...]]]:
    """dtypes and shapes, each other than the one before."""
    while True:
        dtypes = draw.sample(("float32", "float64", "int64"), 3)
        yield from zip(dtypes, ((draw.randint(2, 5),), (2, draw.randint(2, 4)), ()), strict=True)


# ── What is read from a run ──────────────────────────────────────────────────────────────────


def _all_wait_in(operation: str) -> Callable[[Run, int], bool]:
    """Whether all ranks wait in this operation, and nobody has begun another kind."""
    return lambda run, rank: all(
        waits_in(run, one) == operation and set(run.operations(one)) == {operation}
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


def _receives_nothing(run: Run, rank: int) -> bool:
    return not run.receives(rank) and not run.collectives(rank)


def _called(run: Run, rank: int) -> dict[str, str]:
    return {"calls": ", ".join(run.operations(rank)) or "nothing"}


def _one_each_way(run: Run, rank: int) -> Any:
    return sorted(run.operations(rank)) != ["recv", "send"] and _called(run, rank)


def _sent_back(run: Run, rank: int) -> Any:
    """Whether a rank got its own x back, and its partner got what it should."""
    partner = run.trial.partner[rank]
    return run.equals(rank, run.trial.given[rank][0]) and partner not in run.wrong and {
        "other": partner,
    }  # fmt: skip


def _another_ranks(run: Run, rank: int) -> Any:
    """Whether a rank ended up with what a rank had that it was not to come from."""
    xs = [given[0] for given in run.trial.given]
    holder = next((one for one in run.ranks if one != rank and run.equals(rank, xs[one])), None)
    wanted = next(one for one in run.ranks if alike(run.right(rank), xs[one]))
    return holder is not None and {"holder": holder, "wanted": wanted}


# ── swap_in_turn, swap ───────────────────────────────────────────────────────────────────────


def _pairs(draw: random.Random, nproc: int) -> list[int]:
    """Each rank's partner: of six, two even ones, two odd ones, and a mixed pair. Of more than
    two, some pair lies in one half of the ranks."""
    even, odd = list(range(0, nproc, 2)), list(range(1, nproc, 2))
    half = nproc // 4
    while True:
        draw.shuffle(even)
        draw.shuffle(odd)
        pairs = [(even[2 * at], even[2 * at + 1]) for at in range(half)]
        pairs += [(odd[2 * at], odd[2 * at + 1]) for at in range(half)]
        pairs += zip(even[2 * half :], odd[2 * half :], strict=True)
        if nproc == 2 or any(2 * max(pair) < nproc or 2 * min(pair) >= nproc for pair in pairs):
            partner = {a: b for pair in pairs for a, b in (pair, pair[::-1])}
            return [partner[rank] for rank in range(nproc)]


_LATE = 0.06  # seconds


def _comes() -> None: ...


def _comes_late() -> None:
    time.sleep(_LATE)


def _swaps(draw: random.Random) -> Iterator[Trial]:
    one, another, third = itertools.islice(_shapes(draw), 3)
    nprocs = (6, 6, 6, draw.choice((2, 10)))  # two alike: whoever keeps a buffer uses it again
    for nproc, kind in zip(nprocs, (one, one, another, third), strict=True):
        partner = _pairs(draw, nproc)
        xs = tensors(draw, nproc, *kind)
        yield Trial(
            nproc,
            given=[
                (x, other, _comes_late if kind is another and rank < other else _comes)
                for rank, (x, other) in enumerate(zip(xs, partner, strict=True))
            ],
            right=[xs[other] for other in partner],
            facts={"partner": partner},
        )


@judged("swap_in_turn", lab="02", play=call_after)
def swap_in_turn(draw: random.Random) -> Iterator[Trial]:
    """`swap_in_turn(x, other)`: the other rank's x, by one blocking send and one blocking recv."""
    yield from _swaps(draw)


@judged("swap", lab="02", play=call_after)
def swap(draw: random.Random) -> Iterator[Trial]:
    """`swap(x, other)`: the other rank's x; both sides start both messages before they wait."""
    yield from _swaps(draw)


def _both_in(run: Run, rank: int) -> Any:
    """Whether a rank and its partner wait in the same operation, and began nothing else."""
    other = run.trial.partner[rank]
    same_way = {*run.operations(rank), *run.operations(other)} == {waits_in(run, rank)}
    waiting = waits_in(run, rank) == waits_in(run, other) != ""
    return waiting and same_way and {"other": other, "operation": waits_in(run, rank)}


def _some_both_in(run: Run, rank: int) -> Any:
    """Whether that is so of this pair, while another one got through."""
    through = [one for one in run.ranks if not waits_in(run, one) and len(run.calls(one)) == 2]
    if not through:
        return False
    found = _both_in(run, rank)
    return found and {**found, "first": through[0], "second": run.trial.partner[through[0]]}


def _tags_differ(run: Run, rank: int) -> Any:
    """Whether a rank sends with one tag, and its partner asks for another one."""
    other = run.trial.partner[rank]
    sent = {call.tag for call in run.sends(rank) if call.peer == other}
    asked = {call.tag for call in run.receives(other) if call.peer == rank}
    differ = run.failure == "stuck" and len(sent) == len(asked) == 1 and sent != asked
    return differ and {"other": other, "tag": sent.pop(), "asked": asked.pop()}


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
    _one.fails("too-small", too_small)
    _one.shows("receives-nothing", _receives_nothing)
    _one.shows("sent-back", _sent_back)
    _one.shows("another-ranks", _another_ranks)
    _one.demands("uses-a-collective", collective)
    _one.demands("too-much", _one_each_way)
swap_in_turn.fails("both-send", _all_wait_in("send"))
swap_in_turn.fails("both-receive", _all_wait_in("recv"))
swap_in_turn.fails("by-one-number", _some_both_in)
swap_in_turn.demands("at-once", _overlap)


def _one_was_late(run: Run, rank: int) -> bool:
    """Whether a rank or its partner waited for the other to come: told to be late, or kept from the
    processor for a while."""
    began = [run.calls(one) for one in (rank, run.trial.partner[rank])]
    return all(began) and abs(began[0][0].start - began[1][0].start) > _LATE / 6


def _gave_up(run: Run, rank: int) -> bool:
    """Whether a message was given up where some rank's partner came late."""
    closed = any("Connection closed by peer" in one.message for one in run.job.failures)
    return closed and any(_one_was_late(run, one) for one in run.ranks)


swap.fails("gives-up", _gave_up)
swap.shows("gives-up", _one_was_late)
swap.fails("tags-differ", _tags_differ)
swap.fails("waits-too-early", _both_in)
swap.demands("in-turn", _no_overlap)


# ── shift ────────────────────────────────────────────────────────────────────────────────────


@judged("shift", lab="02")
def shift(draw: random.Random) -> Iterator[Trial]:
    """`shift(x, by)`: the x of the rank `by` places before this one, in the ring of all ranks."""
    # Two alike, one after the other: whoever keeps a buffer uses it again.
    shapes = itertools.cycle(one for one in itertools.islice(_shapes(draw), 3) for _ in range(2))
    for n in draw.sample((3, 5), 1) + draw.sample((2, 4, 6), 1):
        steps = [1, -1, draw.randint(1, n - 1) + n, -draw.randint(1, n - 1) - n, 0]
        opposite = draw.randint(2, n) if n % 2 else n // 2  # of an even ring: one peer for both
        for by in (*steps, n * draw.choice((1, 2)), -n, opposite):
            xs = tensors(draw, n, *next(shapes))
            yield Trial(
                n,
                given=[(x, by) for x in xs],
                right=[xs[(rank - by) % n] for rank in range(n)],
                facts={"by": by},
            )


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


def _of_another_world(run: Run, rank: int) -> Any:
    """The number of ranks, another than there are, modulo which all messages go."""
    ways = {"send": run.trial.by, "recv": -run.trial.by}
    ends = [(call.rank + ways[call.operation], call.peer) for call in run.all_calls
            if call.operation in ways]  # fmt: skip
    for number in range(2, 17):
        wraps = any(not 0 <= place < number for place, _ in ends)
        if number != run.nproc and wraps and all(peer == place % number for place, peer in ends):
            return {"number": number}
    return False


shift.fails("to-itself", _to_itself)
shift.fails("fixed-number", _of_another_world)
shift.fails("no-wrap", _not_there)
shift.fails("too-small", too_small)
shift.fails("same-peer", _same_peer)
shift.fails("sends-first", _all_wait_in("send"))
shift.fails("receives-first", _all_wait_in("recv"))


def _overwritten_while_sent(run: Run, rank: int) -> Any:
    """Whether what came from the right rank was what a third one had, here or on some rank: then
    what a rank sent may also have come around to it again."""
    source = (rank - run.trial.by) % run.nproc
    if [call.peer for call in run.receives(rank)] != [source]:
        return False
    around = any(_another_ranks(run, one) for one in run.ranks)
    if around and run.equals(rank, run.trial.given[rank][0]):
        return {"holder": rank, "wanted": source}
    return _another_ranks(run, rank)


shift.shows("receives-nothing", _receives_nothing)
shift.shows("same-buffer", _overwritten_while_sent)
shift.shows("another-ranks", _another_ranks)
shift.demands("uses-a-collective", collective)
shift.demands("needless-message", _needless)
shift.demands("many-hops", _more_than_one_each_way)
shift.demands("not-batched", _not_batched)
shift.demands("not-a-copy", _not_a_copy)


# ── one_way ──────────────────────────────────────────────────────────────────────────────────

_EARLY, _USUAL = 0.0005, 0.0023  # seconds by which replies come late
_OTHERS = (  # two ways for the others: the first, the one after the usual, the centre, the late
    (0.092, 0.0125, 0.016, (0.130,)),
    (0.076, 0.011, 0.0145, (0.084, 0.066)),
)
_NEAR = 0.15  # how much what it returned may differ from what the record says
_ALIKE = 0.15  # and from what a mistake would have made of it
_QUIET = 0.07  # of what a call must take: how much longer it may take on a quiet machine
_JUDGED = 3  # so many of the quietest calls are judged


def _names(function: Any, known: set[Any]) -> Iterator[str]:
    """The names that a function's code reads, and those of the functions that it calls by name; but
    for now(), which the lab gives."""
    codes = [getattr(function, "__code__", None)]
    cells = getattr(function, "__closure__", None) or ()
    called = [cell.cell_contents for cell in cells]
    for code in codes:  # which grows
        if code is not None and code not in known:
            known.add(code)
            yield from code.co_names
            codes += [one for one in code.co_consts if hasattr(one, "co_names")]
            called += [function.__globals__.get(name) for name in code.co_names if name != "now"]
    for one in called:
        if hasattr(one, "__code__") and one.__code__ not in known:
            yield from _names(one, known)


def _ping_pong(answer: Any, *asked: tuple[int, int, list[float]]) -> Noted:
    """The answer, until the machine was quiet in three calls, with rank 1's replies so late.

    Ends with 0.0 if rank 0 got numbers, else with what it got. Notes the names that it reads.
    """
    import time

    import torch
    import torch.distributed as dist

    ends, quiet = [], 0
    names: list[str] = []

    def read(function: Any) -> Any:
        names.extend(sorted(set(_names(function, set()))))
        return function

    answer.through(read)
    for nbytes, repeats, pauses in asked:
        began = time.perf_counter()
        with slow("send", pauses if dist.get_rank() == 1 else []):
            got = see(answer(nbytes, repeats))
        more = torch.tensor(time.perf_counter() - began - sum(pauses))
        if isinstance(got, Tensor) and len(got.numbers) == 1:
            (got,) = got.numbers
        ends.append(0.0 if type(got) in (int, float) or dist.get_rank() == 1 else got)
        dist.broadcast(more, 0)  # both go on, or neither
        quiet += more.item() < _QUIET * sum(pauses)
        if quiet == 3:
            break
    return Noted([next((end for end in ends if end != 0.0), 0.0)], names)


@judged("one_way", lab="02", play=_ping_pong)
def one_way(draw: random.Random) -> Iterator[Trial]:
    """`one_way(nbytes, repeats)`: seconds of one message between ranks 0 and 1, by ping-pong."""
    asked = [(2 * draw.randint(100, 900) + 1, *_late_replies(draw)) for _ in range(8)]
    yield Trial(2, given=[tuple(asked)] * 2, right=[[0.0]] * 2)


def _late_replies(draw: random.Random) -> tuple[int, list[float]]:
    """Draw how many round trips to count, and how late each reply comes, such that the median is a
    usual one, and all that the mistakes make of these round trips (_STATISTICS) differs by 20 %.
    The number is odd: of an even one some take the lower median, as PyTorch does."""
    first, after, centre, late = draw.choice(_OTHERS)
    usual = [_USUAL] * (len(late) + 1)
    others = [*usual, after, *late]
    draw.shuffle(others)
    counted = [_EARLY, *others[: len(usual)], centre, *others[len(usual) :], _EARLY]
    return len(counted), [first, *counted]


def _each(run: Run, rank: int) -> Iterator[tuple[Step, list[Call], list[Call], int, int]]:
    """Return, for each call of the answer, what this rank sent and received, nbytes and repeats."""
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
    "mean-there-and-back": (
        lambda trips: statistics.mean(trips),
        lambda trips: statistics.mean(trips[1:]),
    ),
    "minimum": (lambda trips: min(trips[1:]) / 2,),
    "maximum": (lambda trips: max(trips[1:]) / 2,),
    "not-sorted": (lambda trips: trips[1:][len(trips[1:]) // 2] / 2,),
    "divided-again": (lambda trips: _one_way(trips) / len(trips[1:]),),
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
    """Return what was returned and the round trips, where the two do not agree; [] unless that is
    so of most of the quietest calls, for a busy machine may take its time between the answer's
    clock and the record's.

    A call counts only if in it the median was clearly something else than all other statistics.
    """
    clear = []
    for (step, out, back, _, _), asked in zip(_each(run, 0), run.trial.given[0], strict=False):
        got = step.returned
        seconds = got.numbers[0] if isinstance(got, Tensor) else got
        trips = [
            max(there.end or 0.0, here.end or 0.0) - min(there.start, here.start)
            for there, here in zip(out, back, strict=True)
        ]
        others = [guess(trips) for guesses in _STATISTICS.values() for guess in guesses]
        if all(_miss(_one_way(trips), other) >= 1.5 * _NEAR for other in others):
            clear.append((step.ended - step.began - sum(asked[2]), seconds, trips))
    if not clear:
        raise NotJudged("the machine was too busy to measure on it; run the check again")
    quietest = sorted(clear, key=lambda one: one[0])[:_JUDGED]
    off = [
        (seconds, trips)
        for _, seconds, trips in quietest
        if not _miss(seconds, _one_way(trips)) <= _NEAR  # nor is NaN near
    ]
    return off if 2 * len(off) > len(quietest) else []


def _returned(mistake: str) -> Callable[[Run, int], Any]:
    """Whether this explains all that was returned, and twice as well as any other mistake does."""

    def sign(run: Run, rank: int) -> Any:
        off = _off(run) if rank == 0 else []
        if not off:
            return False
        misses = {
            name: min(max(_miss(got, guess(trips)) for got, trips in off) for guess in guesses)
            for name, guesses in _STATISTICS.items()
        }
        best, second, *_ = sorted(misses, key=misses.__getitem__)
        clear = misses[best] < min(_ALIKE, misses[second] / 2)
        return mistake == (best if clear else "not-the-median") and _said(*off[0])

    return sign


def _too_short(run: Run, rank: int) -> Any:
    """Whether all that was returned is clearly less than any round trip took."""
    off = _off(run) if rank == 0 else []
    short = bool(off) and all(got < 0.65 * min(trips) / 2 for got, trips in off)
    return short and {**_said(*off[0]), "least": f"{min(off[0][1]) / 2:.6f}"}


def _at_once(run: Run, rank: int) -> Any:
    """Whether rank 1 began to answer before it had the message."""
    pairs = [pair for _, out, back, _, _ in _each(run, 1) for pair in zip(out, back, strict=False)]
    return any(sent.start < (came.end or math.inf) for sent, came in pairs)


def _said(seconds: float, trips: list[float]) -> dict[str, Any]:
    return {
        "seconds": f"{seconds:.6f}",
        "median": f"{_one_way(trips):.6f}",
        "count": len(trips) - 1,
        "first": f"{trips[0] / statistics.median(trips[1:]):.0f}",
    }


_CLOCKS = {"perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time_ns"}
_AWAIT_A_GPU = {"synchronize", "elapsed_time", "item", "tolist", "cpu"}


def _own_clock(run: Run, rank: int) -> Any:
    """Whether it reads a clock itself, and nowhere waits for a GPU, as now() does."""
    names = set(run.noted[rank])
    clocks = sorted(names & _CLOCKS)
    return bool(clocks) and not names & _AWAIT_A_GPU and {"clock": clocks[0]}


one_way.fails("both-send", _all_wait_in("send"))
one_way.demands("uses-a-collective", collective)
one_way.demands("wrong-bytes", _wrong_bytes)
one_way.demands("one-sided", _one_sided)
one_way.demands("no-warm-up", _wrong_count(too_few=True))
one_way.demands("wrong-count", _wrong_count(too_few=False))
one_way.demands("both-at-once", _at_once)
for _mistake in _STATISTICS:
    one_way.demands(_mistake, _returned(_mistake))
one_way.demands("too-short", _too_short)
one_way.demands("not-the-median", _returned("not-the-median"))
one_way.demands("own-clock", _own_clock)


# ── relay ────────────────────────────────────────────────────────────────────────────────────


def _relayed(answer: Any, x: Tensor, chunks: int, slowed: str, pauses: list[float]) -> None:
    with slow(slowed, pauses):
        answer(make(x), chunks)


@judged("relay", lab="02", play=_relayed, in_place=0)
def relay(draw: random.Random) -> Iterator[Trial]:
    """`relay(x, chunks)`: x of rank 0 on all ranks, from neighbour to neighbour, in pieces."""
    sizes = 4, draw.choice((3, 5, 6)), draw.choice((2, 3))
    dtypes = draw.sample(("float32", "float64", "int64"), 3)
    for at, nproc in enumerate(sizes):
        chunks = draw.choice((3, 5, 7)) if at < 2 else 1
        part = draw.randint(4, 9)
        length = chunks * part - (draw.randint(1, part // 2) if at < 2 else 0)
        (x,) = tensors(draw, 1, dtypes[at], (length,))
        others = tensors(draw, nproc - 1, dtypes[at], (length,))
        late, paced = draw.randrange(2, 4), at > 0
        # Once a rank takes each piece late: a piece whose memory has been used again by then is
        # lost, and who sends it must not wait for that. Then the first rank sends at intervals:
        # who passes on at once does so before the next piece.
        slowed = ["send" if paced else "", *["recv" if r == late else "" for r in range(1, nproc)]]
        pauses = [0.002 if paced else 0.03] * chunks
        yield Trial(
            nproc,
            given=[
                (one, chunks, way, pauses if way else [])
                for one, way in zip([x, *others], slowed, strict=True)
            ],
            right=[x] * nproc,
            facts={"chunks": chunks, "length": length, "paced": paced, "late": late},
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


def _before_it_came(run: Run, rank: int) -> Any:
    """Whether all that is wrong is what earlier ranks, but not the first, had at the start."""
    wrong = run.differences(rank)
    starts = {holder: run.trial.given[holder][0].numbers for holder in range(1, rank)}
    holders = [
        next((holder for holder, x in starts.items() if one.got == x[one.at]), None)
        for one in wrong
    ]
    return None not in holders and {"holder": holders[0], "element": wrong[0].at}


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


def _waited_before_passing(run: Run, rank: int) -> list[bool]:
    """Say of each piece but the last whether this rank passed it on only after it had waited for
    the next one. A receive that has begun ahead makes nobody wait: of that its end counts."""
    sends, receives = run.sends(rank), run.receives(rank)
    if len(sends) != len(receives) or not run.trial.paced:
        return []
    return [
        sent.start > (_end(after) if _is_ahead(run, after) else after.start)
        for sent, after in zip(sends, receives[1:], strict=False)
    ]


def _end(call: Call) -> float:
    return math.inf if call.end is None else call.end


def _is_ahead(run: Run, receive: Call) -> bool:
    """Whether the rank did something else between a receive's start and its end."""
    others = [one for one in run.calls(receive.rank) if one is not receive]
    return any(receive.start < one.start < _end(receive) for one in others) or any(
        one.operation == "recv" and one.start < receive.start < _end(one) for one in others
    )


def _asks_before_passing(run: Run, rank: int) -> Any:
    waited = _waited_before_passing(run, rank)
    return bool(waited) and all(waited)


def _all_then_on(run: Run, rank: int) -> Any:
    """Whether this rank passed on nothing before it had all."""
    sends, receives = run.sends(rank), run.receives(rank)
    if not sends or len(receives) < 2 or not run.trial.paced:
        return False
    return sends[0].start > max(_end(one) for one in receives)


def _waits_for_its_sends(run: Run, rank: int) -> Any:
    """Whether the rank before the late one began no receive before its send was taken."""
    sends, receives = run.sends(rank), run.receives(rank)
    before_late = not run.trial.paced and rank == run.trial.late - 1
    if not before_late or len(sends) != len(receives):
        return False
    pairs = list(zip(sends, receives[1:], strict=False))
    return all(_end(sent) <= after.start for sent, after in pairs) and {"late": rank + 1}


relay.fails("too-small", too_small)
relay.fails("ring", _beyond_an_end)
relay.shows("other-way", _down)
relay.shows("remainder", _remainder)
relay.shows("misplaced", _misplaced)
relay.shows("before-it-came", _before_it_came)
relay.shows("wrong-element", _first_wrong)
relay.demands("uses-a-collective", collective)
relay.demands("from-the-first", _far)
relay.demands("whole", _pieces(whole=True))
relay.demands("other-pieces", _pieces(whole=False))
relay.demands("all-then-on", _all_then_on)
relay.demands("asks-before-passing", _asks_before_passing)
relay.demands("blocking", _waits_for_its_sends)


# ── transfer ─────────────────────────────────────────────────────────────────────────────────


def _to_dst(answer: Any, x: Any, src: int, dst: int) -> Any:
    """Return what the answer returned on the rank that asked for it; "" on all others."""
    import torch.distributed as dist

    got = answer(make(x), src, dst)
    return got if dist.get_rank() == dst else ""


@judged("transfer", lab="02", play=_to_dst, further=True)
def transfer(draw: random.Random) -> Iterator[Trial]:
    """`transfer(x, src, dst)`: any tensor from one rank to another that knows nothing of it."""
    shapes: list[tuple[int, ...]] = [
        (draw.randint(5, 9),),
        (draw.randint(2, 4), 5),
        (2, draw.randint(3, 5), 3),
        (),
        (1, 2, draw.randint(1, 3), 3, 1),
        (2, 1, 3, 2, 1, 2, 2, draw.randint(1, 2)),
        (2 * draw.randint(33_000, 40_000) + 1, 0),  # a size that 16 bits do not hold
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
        (x,) = tensors(draw, 1, dtype, shape, strided=may_be_strided and at % 2 == strided)
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
    return outside and bool(waits_in(run, rank)) and {"call": run.calls(rank)[-1]}


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


def _has_gaps(run: Run, rank: int) -> bool:
    return bool(run.trial.x.strided)


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


def _as_bytes(run: Run, rank: int) -> Any:
    """Whether the data went as a tensor of another type, of as many bytes."""
    size, dtype = run.trial.size, run.trial.x.dtype
    sent = [call.dtype for call in run.sends(rank) if call.bytes == size]
    return bool(size and sent) and dtype not in sent and {"sent": sent[-1], "dtype": dtype}


def _many_messages(run: Run, rank: int) -> Any:
    return len(run.sends(rank)) > 5 and {"count": len(run.sends(rank))}


transfer.fails("not-contiguous", _not_contiguous)
transfer.fails("too-small", too_small)
transfer.fails("outsider-waits", _outsider_waits)
transfer.shows("through-floats", _through_floats)
transfer.shows("gaps", _has_gaps)
transfer.shows("wrong-places", _in_another_order)
transfer.demands("uses-a-collective", collective)
transfer.demands("outsider-called", _outsider_called)
transfer.demands("too-much", _many_messages)
transfer.demands("pickled", _packed)
transfer.demands("converted", _converted)
transfer.demands("as-bytes", _as_bytes)
