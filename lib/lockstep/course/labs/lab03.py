"""Lab 03, collectives: the trials of its exercises, and the signs of what goes wrong in them."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...calls.record import POINT_TO_POINT
from ..judging import Noted, Numbers, Run, Tensor, Trial, judged, numbers_in
from ..judging.values import make
from .messages import slow, too_small, watched, writes
from .sums import (
    BYTES,
    WIDE,
    add_signs_of_sums,
    added_to_itself,
    added_twice,
    all_wait,
    one_rank_only,
    only_copies,
    only_messages,
    other_type,
    sums,
    whole,
)

# The coalesced ones are what functional collectives call.
_REDUCE_SCATTERS = (
    "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
)  # fmt: skip
_ALL_GATHERS = (
    "all_gather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced",
)  # fmt: skip
_LATE = 0.05  # seconds


def _chunked(draw: random.Random) -> Iterator[Trial]:
    """An x of as many equal chunks as there are ranks. First what people try by themselves; then
    what they may have built upon without a thought: the dtype, and the number of ranks."""
    wide = draw.sample(WIDE, 2)
    for nproc, dtype in ((4, "float32"), (4, wide[0]), (draw.choice((3, 5)), wide[1])):
        part = draw.randint(2, 4) if nproc == 4 else draw.randint(5, 7)  # four chunks are too few
        yield sums(draw, nproc, dtype, nproc * part, part=part)


def _not_all_ranks(run: Run, rank: int) -> Any:
    """Whether some rank has the mean."""
    correct = sorted(set(run.ranks) - set(run.wrong))
    return bool(correct) and {"holder": correct[0]}


# ── global_mean ──────────────────────────────────────────────────────────────────────────────


@judged("global_mean", lab="03")
def global_mean(draw: random.Random) -> Iterator[Trial]:
    """`global_mean(values)`: the mean of all ranks' values, by exactly one collective."""
    for nproc, dtype in zip(draw.sample((2, 3, 4, 5), 2), ("float32", "float64"), strict=True):
        counts = draw.sample(range(2, 9), nproc)
        yield _values(draw, counts, dtype)
        counts[0], counts[-1] = draw.randint(250, 300), 0
        yield _values(draw, draw.sample(counts, nproc), dtype)


def _values(draw: random.Random, counts: list[int], dtype: str) -> Trial:
    values = [
        [draw.choice((-1, 3)) * draw.randint(1, 99) / 8 + 50 * rank + at for at in range(count)]
        for rank, count in enumerate(counts)
    ]
    next(filter(None, values))[0] = 0.0  # what looks for values by their not being 0 misses it
    everything = [one for mine in values for one in mine]
    return Trial(
        len(counts),
        given=[(Tensor.of(mine, dtype),) for mine in values],
        right=[sum(everything) / len(everything)] * len(counts),
        facts={
            "values": values,
            "counts": [*counts],
            "total": f"{sum(everything):.8g}",
            "count": len(everything),
        },
    )


def _no_number(run: Run, rank: int) -> bool:
    """Whether a mean over no values has spoilt the result."""
    return 0 in run.trial.counts and math.isnan(run.got(rank))


def _skipped(run: Run, rank: int) -> bool:
    """Whether a rank without values called nothing while others wait."""
    return run.failure == "stuck" and not run.trial.counts[rank] and not run.calls(rank)


def _lengths_differ(run: Run, rank: int) -> Any:
    """Whether the ranks put tensors of different lengths into one call."""
    first = [next((c for c in run.calls(one) if c.shapes), None) for one in run.ranks]
    calls = [call for call in first if call]
    return len({call.shapes[0] for call in calls}) > 1 and {"operation": calls[0].operation}


global_mean.fails("empty-rank-skips", _skipped)
global_mean.fails("lengths-differ", _lengths_differ)
global_mean.shows("no-number", _no_number)
global_mean.shows("not-all-ranks", _not_all_ranks)
global_mean.demands(
    "not-a-collective",
    lambda run, rank: any(call.operation in POINT_TO_POINT for call in run.calls(rank)),
)
global_mean.demands(
    "too-many-calls",
    lambda run, rank: len(run.calls(rank)) > 1 and {"called": ", ".join(run.operations(rank))},
)


# ── two_step_all_reduce ──────────────────────────────────────────────────────────────────────


def _one_late(answer: Any, x: Tensor, late: int) -> None:
    """One rank comes late, so that no call is over on the others before they go on."""
    import torch.distributed as dist

    held = make(x)
    if dist.get_rank() == late:
        time.sleep(_LATE)
    answer(held)


@judged("two_step_all_reduce", lab="03", play=_one_late, in_place=0)
def two_step(draw: random.Random) -> Iterator[Trial]:
    """`two_step_all_reduce(x)`: the sum in place, by one reduce_scatter and one all_gather."""
    for trial in _chunked(draw):
        late = draw.randrange(trial.nproc)
        yield replace(trial, given=[(*given, late) for given in trial.given])


def _called(run: Run, rank: int) -> dict[str, str]:
    return {"called": ", ".join(run.operations(rank)) or "nothing"}


def _all_reduced(run: Run, rank: int) -> Any:
    called = run.operations(rank)
    return any(one.startswith("all_reduce") for one in called) and _called(run, rank)


def _gathered_first(run: Run, rank: int) -> bool:
    return bool(run.calls(rank)) and all(one in _ALL_GATHERS for one in run.operations(rank))


def _turned_round(run: Run, rank: int) -> Any:
    """Whether the parts were gathered before they were sums."""
    called = run.operations(rank)
    turned = len(called) > 1 and called[0] in _ALL_GATHERS and called[-1] in _REDUCE_SCATTERS
    return turned and _called(run, rank)


def _not_the_two(run: Run, rank: int) -> Any:
    called = run.operations(rank)
    right = len(called) == 2 and called[0] in _REDUCE_SCATTERS and called[1] in _ALL_GATHERS
    return not right and _called(run, rank)


def _too_much_in_a_step(run: Run, rank: int) -> Any:
    for call, most in zip(run.calls(rank), (1, run.nproc), strict=False):
        if call.bytes * most > run.trial.size:
            return {"call": call, "bytes": call.bytes, "enough": run.trial.size // most}
    return False


def _second_too_early(run: Run, rank: int) -> Any:
    """Whether some rank began the second of the two calls before the first was over."""
    for one in run.ranks:
        first, *later = run.calls(one)
        if later and (first.end is None or first.end > later[0].start):
            return {"who": one, "first": first.operation, "second": later[0].operation}
    return False


two_step.shows("other-type", other_type)
two_step.shows("turned-round", _turned_round)
two_step.shows("second-too-early", _second_too_early)
add_signs_of_sums(two_step)
two_step.demands("all-reduce", _all_reduced)
two_step.demands("gathers-first", _gathered_first)
two_step.demands("other-calls", _not_the_two)
two_step.demands("too-much-in-a-step", _too_much_in_a_step)


# ── ring_all_reduce ──────────────────────────────────────────────────────────────────────────


def _half_seen(answer: Any, x: Tensor) -> Noted:
    """The answer; notes which chunk each message has, where it is one of x, and what x held when
    the first half was over."""
    import torch.distributed as dist

    held, n = make(x), dist.get_world_size()
    part = held.numel() // n
    chunks: list[int | None] = []
    half: list[Any] = []

    def look(sent: Any) -> None:
        if len(chunks) == n - 1:
            half.extend(held.tolist())
        at, own = sent.storage_offset() - held.storage_offset(), sent.numel() == part
        there = sent.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
        chunks.append(at // part if there and own else None)

    with watched("send", look):
        answer(held)
    return Noted(None, {"chunks": chunks, "half": half})


@judged("ring_all_reduce", lab="03", play=_half_seen, in_place=0)
def ring(draw: random.Random) -> Iterator[Trial]:
    """`ring_all_reduce(x)`: the sum in place, each rank sends 2(N - 1)/N of x to its neighbour."""
    yield from _chunked(draw)


def _complete_chunks(run: Run, rank: int) -> list[int]:
    part, got, right = run.trial.part, run.got(rank).numbers, run.right(rank).numbers
    cuts = [slice(at * part, (at + 1) * part) for at in range(run.nproc)]
    return [at for at, cut in enumerate(cuts) if got[cut] == right[cut]]


def _half_way(run: Run, rank: int) -> Any:
    complete, steps = _complete_chunks(run, rank), len(run.sends(rank))
    return len(complete) == 1 and steps < run.nproc and {"steps": steps, "chunk": complete[0]}


def _second_half(run: Run, rank: int) -> Any:
    """Whether a rank had one complete chunk after the first half, and sent another one first."""
    chunks, half, part = run.noted[rank]["chunks"], run.noted[rank]["half"], run.trial.part
    if len(chunks) < run.nproc or chunks[run.nproc - 1] is None:
        return False
    total = run.right(rank).numbers
    cuts = [slice(at * part, (at + 1) * part) for at in range(run.nproc)]
    complete = [at for at, cut in enumerate(cuts) if list(half[cut]) == list(total[cut])]
    began = chunks[run.nproc - 1]
    return len(complete) == 1 and began != complete[0] and {"has": complete[0], "began": began}


def _early(run: Run, rank: int) -> Any:
    """Whether the ranks send less often than a ring of chunks has steps."""
    steps, needed = len(run.sends(rank)), 2 * (run.nproc - 1)
    return 0 < steps < needed and {"steps": steps, "needed": needed}


def _wrong_chunk(run: Run, rank: int) -> Any:
    """Whether after all steps a chunk is not complete, or another is in its place."""
    if len(run.sends(rank)) != 2 * (run.nproc - 1):
        return False
    chunks = sorted(set(range(run.nproc)) - set(_complete_chunks(run, rank)))
    return {"steps": len(run.sends(rank)), "chunk": chunks[0]}


def _not_a_ring(run: Run, rank: int) -> Any:
    peers = run.sent_to(rank)
    return len(peers) > 1 and {"peers": peers}


def _the_other_way(run: Run, rank: int) -> Any:
    right = (rank + 1) % run.nproc
    peers = run.sent_to(rank)
    return peers not in ([], [right]) and {"peer": peers[0], "neighbour": right}


def _too_many_steps(run: Run, rank: int) -> Any:
    """Whether chunks were sent, but more often than needed."""
    steps, needed = len(run.sends(rank)), 2 * (run.nproc - 1)
    chunk = run.trial.size // run.nproc
    of_chunks = all(call.bytes == chunk for call in run.sends(rank))
    return of_chunks and steps > needed and {"steps": steps, "needed": needed}


def _more_than_needed(run: Run, rank: int) -> Any:
    sent, least = run.sent_bytes(rank), 2 * (run.nproc - 1) * run.trial.size // run.nproc
    return sent > least and {"sent": sent, "least": least}


ring.fails("too-small", too_small)
ring.fails("all-wait", all_wait)
ring.shows("other-type", other_type)
ring.shows("half-way", _half_way)
ring.shows("stops-early", _early)
ring.shows("second-half", _second_half)
ring.shows("only-copies", only_copies)
ring.shows("added-twice", added_twice)
add_signs_of_sums(ring)
ring.shows("too-many-steps", _too_many_steps)
ring.shows("wrong-chunk", _wrong_chunk)
ring.demands("uses-a-collective", only_messages)
ring.demands("not-a-ring", _not_a_ring)
ring.demands("other-way", _the_other_way)
ring.demands("too-many-steps", _too_many_steps)
ring.demands("whole-tensor", _more_than_needed)


# ── doubling_all_reduce ──────────────────────────────────────────────────────────────────────


def _late_receives(answer: Any, x: Tensor) -> Noted:
    """The answer, while odd ranks begin to receive late: what they are sent lies with the sender
    for so long. Notes of each message whether x is what it sends, and when x is written into."""
    import torch.distributed as dist

    held = make(x)
    of_x: list[bool] = []
    written: list[float] = []

    def look(sent: Any) -> None:
        of_x.append(sent.untyped_storage().data_ptr() == held.untyped_storage().data_ptr())

    late = [_LATE] * (dist.get_rank() % 2 * dist.get_world_size())
    with (
        watched("send", look),
        slow("recv", late),
        writes(held, lambda: written.append(time.perf_counter())),
    ):
        answer(held)
    return Noted(None, {"of_x": of_x, "written": written})


@judged("doubling_all_reduce", lab="03", play=_late_receives, in_place=0)
def doubling(draw: random.Random) -> Iterator[Trial]:
    """`doubling_all_reduce(x)`: the sum in place, in log2(N) rounds of exchange with a partner."""
    wide = draw.sample(WIDE, 2)
    yield from whole(draw, (4, "float32"), (4, wide[0]), (8, wide[1]))


def _rounds_of_doubling(nproc: int) -> int:
    return nproc.bit_length() - 1


def _one_sided(run: Run, rank: int) -> Any:
    """Whether a rank's first message goes to one whose first goes to another."""
    first = [run.sends(one)[0].peer if run.sends(one) else None for one in run.ranks]
    peer = first[rank]
    if peer is None or peer not in run.ranks or first[peer] in (None, rank):
        return False
    return {"peer": peer, "other": first[peer]}


def _same_partner(run: Run, rank: int) -> Any:
    peers = run.sent_to(rank)
    times = len(run.sends(rank))
    return len(peers) == 1 < times and {"times": times, "peer": peers[0]}


def _other_distances(run: Run, rank: int) -> Any:
    """Whether a rank exchanged with one that is not a power of two away."""
    peers = [call.peer for call in run.sends(rank) if call.peer in run.ranks]
    distances = [rank ^ peer for peer in peers if peer is not None]
    doubled = [1 << k for k in range(_rounds_of_doubling(run.nproc))]
    other = not {*distances} <= {*doubled}
    return other and {"peers": peers, "distances": distances, "doubled": doubled}


def _not_added(run: Run, rank: int) -> Any:
    numbers: Numbers = run.trial.numbers
    holder = next((r for r in run.ranks if run.equals(rank, numbers.of(r))), None)
    return holder is not None and {"holder": holder}


def _stops_early(run: Run, rank: int) -> Any:
    times, rounds = len(run.sends(rank)), _rounds_of_doubling(run.nproc)
    return 0 < times < rounds and {"times": times, "rounds": rounds}


def _too_many_rounds(run: Run, rank: int) -> Any:
    times, rounds = len(run.sends(rank)), _rounds_of_doubling(run.nproc)
    return times > rounds and {"times": times, "rounds": rounds}


def _same_side(run: Run, rank: int) -> Any:
    """Whether a rank and the one it waits for wait in the same operation for each other."""
    last = [run.calls(one)[-1] if run.calls(one) else None for one in run.ranks]
    own = last[rank]
    if own is None or own.peer is None or own.peer not in run.ranks or own.end is not None:
        return False
    other = last[own.peer]
    both = (
        run.failure == "stuck"
        and other is not None
        and (other.operation, other.peer) == (own.operation, rank)
    )
    return both and {"peer": own.peer, "operation": own.operation}


def _fewer_than_rounds(run: Run, rank: int) -> Any:
    times, rounds = len(run.sends(rank)), _rounds_of_doubling(run.nproc)
    return times < rounds and {"times": times, "rounds": rounds}


def _changed_while_sent(run: Run, rank: int) -> Any:
    """Whether some rank wrote into x before a message that sends it was over."""
    for one in run.ranks:
        seen = run.noted[one]
        for call, of_x in zip(run.sends(one), seen["of_x"], strict=False):
            end = math.inf if call.end is None else call.end
            if of_x and any(call.start < at < end for at in seen["written"]):
                return {"who": one, "call": call}
    return False


def _own_partner(run: Run, rank: int) -> Any:
    own = [call for call in run.calls(rank) if call.peer == rank]
    return bool(own) and {"call": own[0]}


doubling.fails("to-itself", _own_partner)
doubling.fails("one-sided", _one_sided)
doubling.fails("too-small", too_small)
doubling.fails("all-wait", all_wait)
doubling.fails("same-side", _same_side)
doubling.shows("other-type", other_type)
doubling.shows("changed-while-sent", _changed_while_sent)
doubling.shows("same-partner", _same_partner)
doubling.shows("other-distances", _other_distances)
doubling.shows("not-added", _not_added)
doubling.shows("added-to-itself", added_to_itself)
doubling.shows("stops-early", _stops_early)
doubling.shows("too-many-rounds", _too_many_rounds)
doubling.shows("added-twice", added_twice)
add_signs_of_sums(doubling)
doubling.demands("uses-a-collective", only_messages)
doubling.demands("too-many-rounds", _too_many_rounds)
doubling.demands("fewer-than-rounds", _fewer_than_rounds)
doubling.demands("changed-while-sent", _changed_while_sent)


# ── flat_all_reduce ──────────────────────────────────────────────────────────────────────────


def _written(answer: Any, tensors: list[Tensor], late: int) -> Noted:
    """The answer, with one rank late, so that no call is over on the others before they go on.
    Notes when it writes into the tensors."""
    import torch.distributed as dist

    held: list[Any] = make(tensors)
    written: list[float] = []
    with contextlib.ExitStack() as stack:
        for one in held:
            if one.numel():
                stack.enter_context(writes(one, lambda: written.append(time.perf_counter())))
        dist.barrier()
        if dist.get_rank() == late:
            time.sleep(6 * _LATE)  # the others write before, on a busy machine, too
        answer(held)
    return Noted(None, written)


@judged("flat_all_reduce", lab="03", play=_written, in_place=0, called="tensors")
def flat(draw: random.Random) -> Iterator[Trial]:
    """`flat_all_reduce(tensors)`: the sum of each tensor in place, by exactly one call."""
    dtypes = iter(("float32", draw.choice(WIDE), "float64", "int64"))
    for at, nproc in enumerate(draw.sample((2, 3, 4), 2)):
        a, b, c = draw.sample(range(2, 6), 3)
        shapes: list[tuple[int, ...]] = [(a, 2), (b,), (c, 1, 3), (), (0,), (b + c, 2)]
        draw.shuffle(shapes)
        yield _several(draw, nproc, next(dtypes), shapes, zeros=at == 1)
        yield _several(draw, nproc, next(dtypes), shapes[: draw.choice((1, 2, 4))])


def _several(
    draw: random.Random, nproc: int, dtype: str, shapes: list[tuple[int, ...]], zeros: bool = False
) -> Trial:
    """zeros: whether one tensor of one rank is all zero."""
    lengths = [math.prod(shape) for shape in shapes]
    numbers = Numbers.draw(draw, nproc, sum(lengths), dtype)
    own = [numbers.of(rank) for rank in range(nproc)]
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    if zeros:
        at = draw.choice([at for at, length in enumerate(lengths) if length])
        own[draw.randrange(nproc)][starts[at] : starts[at] + lengths[at]] = [0] * lengths[at]
    # One tensor alone has no gaps: what is said of a wrong result there would fit many mistakes.
    strided = next((at for at, shape in enumerate(shapes) if len(shape) == 2 and shapes[1:]), None)

    def cut(flat: list[float]) -> list[Tensor]:
        return [
            Tensor.of(flat[start : start + length], dtype, shape, strided=at == strided)
            for at, (start, length, shape) in enumerate(zip(starts, lengths, shapes, strict=True))
        ]

    late = draw.randrange(nproc)
    return Trial(
        nproc,
        given=[(cut(mine), late) for mine in own],
        right=[cut([sum(column) for column in zip(*own, strict=True)])] * nproc,
        facts={"numbers": numbers, "size": sum(lengths) * BYTES[dtype], "count": len(shapes)},
    )


def _several_calls(run: Run, rank: int) -> Any:
    calls = run.operations(rank)
    return len(calls) > 1 and {"calls": len(calls), "operations": ", ".join(calls)}


def _padded(run: Run, rank: int) -> Any:
    sent = sum(call.bytes for call in run.calls(rank))
    return sent > run.trial.size and {"sent": sent}


def _smaller_type(run: Run, rank: int) -> Any:
    sent, dtypes = sum(call.bytes for call in run.calls(rank)), {c.dtype for c in run.calls(rank)}
    smaller = sent < run.trial.size and run.trial.numbers.dtype not in dtypes
    return smaller and {"sent": sent, "dtype": ", ".join(dtypes)}


def _of_others(run: Run, rank: int) -> bool:
    """Whether all wrong numbers are sums, but of other places."""
    sums = set(numbers_in(run.right(rank)))
    return all(one.got in sums for one in run.differences(rank))


def _all_there(run: Run, rank: int) -> bool:
    return sorted(numbers_in(run.got(rank))) == sorted(numbers_in(run.right(rank)))


def _before_its_end(run: Run, rank: int) -> Any:
    """Whether some rank wrote into its tensors when it had begun a call, and the last rank not."""
    for calls in zip(*map(run.calls, run.ranks), strict=False):
        last = max(calls, key=lambda call: call.start)
        for call in calls:
            if any(call.start < at < last.start for at in run.noted[call.rank]):
                return {"who": call.rank, "call": call, "last": last.rank}
    return False


def _left_out(run: Run, rank: int) -> Any:
    """Whether some tensors are the sum, and the others what they were."""
    trios = list(zip(run.got(rank), run.right(rank), run.steps[rank][0].before[0], strict=True))
    left = [at for at, (got, right, _) in enumerate(trios) if got.numbers != right.numbers]
    return all(trios[at][0] == trios[at][2] for at in left) and {"number": left[0]}


def _gaps(run: Run, rank: int) -> Any:
    """Whether only the tensor with gaps is wrong."""
    pairs = list(zip(run.got(rank), run.right(rank), strict=True))
    wrong = [at for at, (got, right) in enumerate(pairs) if got.numbers != right.numbers]
    return all(pairs[at][1].strided for at in wrong) and {"number": wrong[0]}


def _said(*words: str) -> Callable[[Run, int], bool]:
    """Whether this rank raised an error that says one of these."""
    return lambda run, rank: any(
        failure.rank == rank and any(one in failure.message for one in words)
        for failure in run.job.failures
    )


flat.fails("equal-parts", _said("is invalid for input of size"))
flat.fails("transposed", _said("view size is not compatible"))
flat.fails("stacked", _said("stack expects each tensor to be equal size"))
flat.fails("lengths-differ", _lengths_differ)
flat.shows("before-its-end", _before_its_end)
flat.shows("one-call-each", _several_calls)
flat.shows("gaps", _gaps)
flat.shows("left-out", _left_out)
flat.shows("wrong-places", _all_there)
flat.shows("one-rank-only", one_rank_only)
flat.shows("of-others", _of_others)
flat.shows("smaller-type", _smaller_type)
flat.demands("one-call-each", _several_calls)
flat.demands("padded", _padded)
flat.demands("smaller-type", _smaller_type)
