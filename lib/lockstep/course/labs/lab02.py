"""Lab 02, point-to-point: its exercises and their checks."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...launch import Job, JobFailed
from ..exercises import Deadlock, WrongAnswer, close, exercise, operations, trial

_REPLY = 0.004  # seconds by which every reply comes late, so that the machine's noise is small
_LATE = 0.15  # by which the first message comes late, and one in the middle


def _stuck(job: Job, rank: int) -> str:
    """The operation in which a rank waits for ever: "send", "recv", or "" where it does not."""
    calls = job.calls[rank]
    return calls[-1].operation if calls and calls[-1].end is None else ""


def _check_waited(job: Job) -> None:
    """Raise WrongAnswer where a rank did not wait for the end of a message."""
    for rank, calls in enumerate(job.calls):
        for call in calls:
            if call.end is None:
                raise WrongAnswer(
                    "no-wait",
                    f"rank {rank} never waited for its {call}. Until wait() has returned, the "
                    "tensor belongs to the message: it may not be read, changed or given away.",
                )


# ── swap_in_turn, swap ───────────────────────────────────────────────────────────────────────


def _swap_on_rank(swap: Any, partner: dict[int, int], values: list[list[float]]) -> Any:
    """What the swap returned (None if no tensor), what is in x afterwards, whether they are one."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    x = torch.tensor(values[rank])
    got = swap(x, partner[rank])
    if not isinstance(got, torch.Tensor):
        return None, x.tolist(), False
    return got.tolist(), x.tolist(), got.data_ptr() == x.data_ptr()


def _pairs(draw: random.Random) -> dict[int, int]:
    """Six ranks in pairs: one of two even ranks, one of two odd ones, one mixed."""
    even, odd = [0, 2, 4], [1, 3, 5]
    draw.shuffle(even)
    draw.shuffle(odd)
    pairs = [(even[0], even[1]), (odd[0], odd[1]), (even[2], odd[2])]
    return {a: b for pair in pairs for a, b in (pair, pair[::-1])}


def _values(draw: random.Random, nproc: int) -> list[list[float]]:
    more = draw.randint(2, 5)
    return [
        [rank + 1.0, *(float(draw.randint(1, 99)) for _ in range(more))] for rank in range(nproc)
    ]


def _check_swapped(job: Job, partner: dict[int, int], values: list[list[float]]) -> None:
    for rank, (got, x, same) in enumerate(job.results):
        other = partner[rank]
        if got is None:
            raise WrongAnswer("wrong", f"on rank {rank} it did not return a tensor.")
        if not job.calls[rank]:
            raise WrongAnswer("nothing-sent", f"rank {rank} called nothing: nothing was sent.")
        if same or not close(x, values[rank]):
            raise WrongAnswer(
                "same-buffer",
                f"on rank {rank} the message was received into x itself, which is what has to be "
                "sent: one of the two gets lost, sooner or later. Receive into a tensor of its "
                "own, such as torch.empty_like(x).",
            )
        if not close(got, values[other]):
            raise WrongAnswer(
                "wrong", f"rank {rank} got {got} from rank {other}, whose x is {values[other]}."
            )
        calls = Counter(operations(job, rank))
        if calls != {"send": 1, "recv": 1}:
            raise WrongAnswer(
                "too-much", f"one send and one recv are enough; rank {rank} called {dict(calls)}."
            )


@exercise(
    "swap_in_turn",
    lab="02",
    hints=(
        "A send returns once the other side receives. So in each pair one must send while the "
        "other receives. How can both know which of the two they are, without asking?",
        "Both know two numbers: their own rank and the other's. The smaller of the two is the same "
        "on both sides. Whether a number is even is not enough: partners may both be even.",
        "Make an empty tensor like x. If this rank's number is smaller than the other's: send x, "
        "then receive into the new tensor. Otherwise first receive, then send. Return the new one.",
    ),
)
def swap_in_turn(answer: Any, draw: random.Random) -> None:
    """`swap_in_turn(x, other)`: the other rank's x, by one blocking send and one blocking recv."""
    partner = _pairs(draw)
    values = _values(draw, len(partner))
    try:
        job = trial(_swap_on_rank, answer, partner, values, nproc=len(partner))
    except Deadlock as deadlock:
        where = {rank: _stuck(deadlock.job, rank) for rank in partner}
        pair = next((rank for rank in partner if where[rank]), 0)
        who = f"ranks {min(pair, partner[pair])} and {max(pair, partner[pair])}"
        if set(where.values()) == {"send"}:
            raise WrongAnswer(
                "both-send",
                f"{who} both wait in send, and so does everybody else: nobody receives. One rank "
                "of each pair has to receive first.",
            ) from None
        if set(where.values()) == {"recv"}:
            raise WrongAnswer(
                "both-receive",
                f"{who} both wait in recv, and so does everybody else: nobody sends. One rank of "
                "each pair has to send first.",
            ) from None
        if all(where[rank] == where[partner[rank]] for rank in partner):
            raise WrongAnswer(
                "by-parity",
                f"{who} both wait in {where[pair]}, while a pair of an even and an odd rank got "
                "through: who begins was decided by one rank's number alone. Compare the two.",
            ) from None
        raise
    _check_swapped(job, partner, values)


@exercise(
    "swap",
    lab="02",
    hints=(
        "If no rank waits before it has both offered its own message and asked for the other's, "
        "then nobody needs a turn. Which calls return before the message is through?",
        "isend and irecv return a handle at once. Start both, then wait for both. The tensors must "
        "be two different ones.",
        "Make an empty tensor like x. Start dist.isend of x and dist.irecv into the new tensor, "
        "both with the other rank, and keep the two handles. Call wait() on each. Return the new "
        "tensor. (dist.batch_isend_irecv of two P2POps does it as well.)",
    ),
)
def swap(answer: Any, draw: random.Random) -> None:
    """`swap(x, other)`: the other rank's x; both sides start both messages before they wait."""
    partner = _pairs(draw)
    values = _values(draw, len(partner))
    try:
        job = trial(_swap_on_rank, answer, partner, values, nproc=len(partner))
    except Deadlock as deadlock:
        if {_stuck(deadlock.job, rank) for rank in partner} == {"send"}:
            raise WrongAnswer(
                "waits-too-early",
                "all ranks wait for the end of a send, and nobody has asked for the message that "
                "the other side sends. Start both, and only then wait.",
            ) from None
        raise
    _check_waited(job)
    _check_swapped(job, partner, values)
    for rank, calls in enumerate(job.calls):
        first, second = calls
        if first.end is not None and first.end < second.start:
            raise WrongAnswer(
                "in-turn",
                f"rank {rank} began its {second.operation} when its {first.operation} was over: "
                "the two directions of the wire were used one after the other. Start both before "
                "you wait for either.",
            )


# ── shift ────────────────────────────────────────────────────────────────────────────────────


def _shift_on_rank(shift: Any, steps: list[int], values: list[list[float]]) -> Any:
    """What each shift returned, and how many calls this rank had made before it."""
    import torch
    import torch.distributed as dist

    answers = []
    for by in steps:
        x = torch.tensor(values[dist.get_rank()])
        got = shift(x, by)
        answers.append(got.tolist() if isinstance(got, torch.Tensor) else None)
    return answers


@exercise(
    "shift",
    lab="02",
    hints=(
        "Draw the ranks as a ring. To whom does this rank give, and from whom does it get? And "
        "what if that is the rank itself?",
        "It gives to (rank + by) % n and gets from (rank - by) % n. If by is a multiple of n there "
        "is nothing to send.",
        "With n the world size: if by % n is 0, return a copy of x. Otherwise make an empty tensor "
        "like x and two P2POps: dist.isend of x to (rank + by) % n, and dist.irecv into the new "
        "one from (rank - by) % n. Wait for every handle that dist.batch_isend_irecv returns; "
        "return the new tensor.",
    ),
)
def shift(answer: Any, draw: random.Random) -> None:
    """`shift(x, by)`: the x of the rank `by` places before this one, in the ring of all ranks."""
    nproc = draw.choice((4, 5))
    steps = [1, -draw.choice((1, 2)), draw.choice((2, 3)), nproc + 1, nproc * draw.choice((0, 1))]
    if nproc == 4:
        steps[2] = 3  # by 2 of 4 both ways are the same
        steps[1] = -1
    values = _values(draw, nproc)
    try:
        job = trial(_shift_on_rank, answer, steps, values, nproc=nproc)
    except Deadlock as deadlock:
        if {_stuck(deadlock.job, rank) for rank in range(nproc)} == {"send"}:
            raise WrongAnswer(
                "sends-first",
                "every rank sends to the next and waits until that one receives; that one waits "
                "for the next, and so on around the ring. Start both messages before you wait.",
            ) from None
        raise
    except JobFailed as failed:
        for rank, calls in enumerate(failed.job.calls):
            own = [call for call in calls if call.peer == rank]
            if own:
                raise WrongAnswer(
                    "to-itself",
                    f"rank {rank} called {own[0]}: gloo has no connection from a rank to itself. "
                    f"Where by is a multiple of {nproc}, return a copy without a message.",
                ) from None
        said = str(failed)
        if any(word in said for word in ("out of range", "nvalid", "not part of", "not in group")):
            raise WrongAnswer(
                "no-wrap",
                f"a rank that is not there was asked for. In a ring of {nproc} the rank after "
                f"{nproc - 1} is 0, and the one before 0 is {nproc - 1}: take everything modulo "
                f"{nproc}.",
            ) from None
        raise
    _check_waited(job)
    for at, by in enumerate(steps):
        for rank, answers in enumerate(job.results):
            got, right = answers[at], values[(rank - by) % nproc]
            if got is None:
                raise WrongAnswer("wrong", f"on rank {rank} it did not return a tensor.")
            if close(got, right):
                continue
            if close(got, values[(rank + by) % nproc]):
                raise WrongAnswer(
                    "other-way",
                    f"shift by {by} gave rank {rank} of {nproc} what rank {(rank + by) % nproc} "
                    f"had, and it should be what rank {(rank - by) % nproc} had: it turned the "
                    "ring the other way.",
                )
            raise WrongAnswer(
                "wrong",
                f"shift by {by} gave rank {rank} of {nproc} {got}; rank {(rank - by) % nproc}, "
                f"{by} places before it, has {right}.",
            )
    wanted = {"send": len(steps) - 1, "recv": len(steps) - 1}
    for rank in range(nproc):
        called = Counter(operations(job, rank))
        if called != wanted:
            raise WrongAnswer(
                "many-hops",
                f"for shifts by {', '.join(map(str, steps))} rank {rank} called {dict(called)}. "
                "Any two ranks can talk directly: one send and one recv for each shift.",
            )


# ── transfer ─────────────────────────────────────────────────────────────────────────────────


def _transfer_on_rank(transfer: Any, cases: list[tuple[str, list[int], int, int]]) -> Any:
    """For each case: type, shape and values that came back, or what came back instead."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    answers: list[tuple[str, list[int], list[float]]] = []
    for dtype, shape, src, dst in cases:
        got = transfer(sample(dtype, shape) if rank == src else None, src, dst)
        if rank != dst:
            continue
        if not isinstance(got, torch.Tensor):
            answers.append((type(got).__name__, [], []))
            continue
        name = str(got.dtype).removeprefix("torch.")
        answers.append((name, list(got.shape), got.double().flatten().tolist()))
    return answers


def sample(dtype: str, shape: Sequence[int]) -> Any:
    """A tensor whose last two dimensions are swapped, so that it is not contiguous."""
    import torch

    whole = torch.arange(1, 1 + _product(shape)).to(getattr(torch, dtype))
    if len(shape) < 2:
        return whole.reshape(list(shape))
    return whole.reshape(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def _product(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


@exercise(
    "transfer",
    lab="02",
    hints=(
        "The receiver has to bring a tensor of the right size and type, and it knows neither. What "
        "could be sent first whose size and type both sides know beforehand?",
        "A header: a tensor of int64 whose length never changes, with the place of the dtype in "
        "KINDS, the number of dimensions, and the dimensions. And a message has to be contiguous.",
        "The sender makes a header of, say, ten int64: KINDS.index(x.dtype), x.dim(), then the "
        "shape, the rest zeros. It sends the header, then x.contiguous(). The receiver receives "
        "ten int64, makes torch.empty of that shape and dtype, receives into it and returns it. "
        "All other ranks do nothing.",
    ),
)
def transfer(answer: Any, draw: random.Random) -> None:
    """`transfer(x, src, dst)`: any tensor from one rank to another that knows nothing of it."""
    nproc = 3
    kinds = draw.sample(["float64", "float16", "int64", "int32"], 3)
    shapes = [[draw.randint(5, 9)], [2, draw.randint(3, 4)], [2, draw.randint(3, 5), 3]]
    cases = [("float32", shapes[0]), *zip(kinds, [shapes[1], shapes[2], []], strict=True)]
    placed: list[tuple[str, list[int], int, int]] = []
    for dtype, shape in cases:
        src, dst = draw.sample(range(nproc), 2)
        placed.append((dtype, shape, src, dst))
    try:
        job = trial(_transfer_on_rank, answer, placed, nproc=nproc)
    except Deadlock:
        raise
    except JobFailed as failed:
        said = str(failed)
        if "contiguous" in said:
            raise WrongAnswer(
                "not-contiguous",
                "a transposed tensor was to be sent, whose elements do not lie one behind the "
                "other: send and recv take contiguous tensors only. x.contiguous() makes one.",
            ) from None
        if "sends" in said and "receives into" in said:
            raise WrongAnswer(
                "wrong-size", f"the receiver's tensor was too small: {said.splitlines()[0]}"
            ) from None
        raise
    _check_waited(job)
    answers = [list(got) for got in job.results]
    for dtype, shape, src, dst in placed:
        name, got_shape, got = answers[dst].pop(0)
        what = f"the {dtype} tensor of shape {shape} from rank {src}"
        values = sample(dtype, shape).double().flatten().tolist()
        if name == "NoneType":
            raise WrongAnswer("wrong", f"on rank {dst} it returned nothing; it should be {what}.")
        if name != dtype:
            raise WrongAnswer(
                "fixed-dtype",
                f"{what} arrived on rank {dst} as {name}. A message is bytes; their type has to "
                "be sent along.",
            )
        if got_shape != shape:
            raise WrongAnswer(
                "flat",
                f"{what} arrived on rank {dst} with shape {got_shape}: the shape has to be sent "
                "along.",
            )
        if not close(got, values):
            raise WrongAnswer("wrong", f"{what} arrived as {got}; it is {values}.")
    for rank, calls in enumerate(job.calls):
        if any(call.operation == "send" and call.dtype == "uint8" for call in calls):
            raise WrongAnswer(
                "pickled",
                f"rank {rank} sent pickled objects: all right, but every tensor was copied, packed "
                "and unpacked on the host, from a GPU too, and what was unpacked may run code. "
                "Send a small header and then the tensor itself.",
            )
    sends = [call for calls in job.calls for call in calls if call.operation == "send"]
    if len(sends) > 3 * len(placed):
        raise WrongAnswer(
            "too-much",
            f"{len(sends)} messages for {len(placed)} tensors: each costs a latency. A header and "
            "the data are two.",
        )


# ── one_way ──────────────────────────────────────────────────────────────────────────────────


def _one_way_on_rank(one_way: Any, nbytes: int, repeats: int, late: int) -> Any:
    """What it measured, with rank 1 slow: at the first message, and at one in the middle."""
    import torch.distributed as dist

    received = 0

    def slow(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal received
            out = original(*args, **kwargs)
            if dist.get_rank() == 1:
                time.sleep(_LATE if received in (0, late) else _REPLY)
            received += 1
            return out

        return call

    dist.recv = slow(dist.recv)
    return one_way(nbytes, repeats)


@exercise(
    "one_way",
    lab="02",
    hints=(
        "Two ranks' clocks need not agree, so a message is timed by one clock: there and back. "
        "What else is in that time the first time, and now and then?",
        "One round trip before the clock runs; then each round trip timed by itself on rank 0; the "
        "median of them; and a round trip is two messages.",
        "Make a tensor of nbytes bytes. Both ranks loop repeats + 1 times: rank 0 notes the time, "
        "sends to 1, receives from 1, notes the time; rank 1 receives from 0 and sends to 0. "
        "Leave out the first time. On rank 0 return the median of the others divided by 2.",
    ),
)
def one_way(answer: Any, draw: random.Random) -> None:
    """`one_way(nbytes, repeats)`: seconds of one message between ranks 0 and 1, by ping-pong."""
    nbytes, repeats = 4 * draw.randint(200, 900), draw.randint(6, 9)
    late = draw.randint(2, repeats - 1)
    job = trial(_one_way_on_rank, answer, nbytes, repeats, late, nproc=2)
    _check_waited(job)
    got, calls = job.results[0], job.calls[0]
    if not isinstance(got, (int, float)):
        raise WrongAnswer("wrong", f"on rank 0 it returned {got!r}, not a number of seconds.")
    if any(call.bytes != nbytes for call in calls):
        raise WrongAnswer(
            "wrong-bytes",
            f"a message should have {nbytes} bytes, and rank 0 sent {calls[0].bytes}: a float32 "
            "has 4 bytes, an int8 or uint8 has one.",
        )
    sends = [call for call in calls if call.operation == "send"]
    receives = [call for call in calls if call.operation == "recv"]
    if len(sends) != len(receives):
        raise WrongAnswer(
            "one-sided",
            f"rank 0 sent {len(sends)} messages and got {len(receives)} back. When a send returns "
            "says only what this rank has done (under NCCL: next to nothing). A message is timed "
            "there and back, by one clock.",
        )
    if len(sends) != repeats + 1:
        raise WrongAnswer(
            "no-warm-up" if len(sends) == repeats else "wrong-count",
            f"for repeats={repeats} rank 0 made {len(sends)} round trips. It should be one more "
            "than repeats: the first one makes the connection and is not counted.",
        )
    trips = [(back.end or 0.0) - there.start for there, back in zip(sends, receives, strict=True)]
    counted = trips[1:]
    right = statistics.median(counted) / 2
    for mistake, value, hint in (
        ("round-trip", 2 * right, "that is the time there and back: one message is half of it."),
        (
            "mean",
            statistics.mean(counted) / 2,
            "one message was late on purpose, and the mean took it in. On a busy machine that "
            "happens all the time: the median does not mind.",
        ),
        (
            "first-counted",
            statistics.mean(trips) / 2,
            "the first round trip, which makes the connection, has been counted, and it took "
            f"{trips[0] / right / 2:.0f} times as long as the others.",
        ),
        ("total", sum(counted), "that is the time of all messages together."),
        ("total", sum(counted) / 2, "that is the time of all messages together."),
        ("total", sum(trips), "that is the time of all messages together."),
    ):
        if abs(got - value) < 0.1 * value and abs(got - right) > 0.1 * right:
            raise WrongAnswer(mistake, f"it returned {got:.4f} s: {hint}")
    if abs(got - right) > 0.2 * right:
        raise WrongAnswer(
            "wrong",
            f"it returned {got:.6f} s; the median of the {repeats} counted round trips, halved, is "
            f"{right:.6f} s.",
        )


# ── relay ────────────────────────────────────────────────────────────────────────────────────


def _relay_on_rank(relay: Any, values: list[float], chunks: int) -> list[float]:
    import torch
    import torch.distributed as dist

    x = torch.tensor(values) if dist.get_rank() == 0 else torch.zeros(len(values))
    relay(x, chunks)
    result: list[float] = x.tolist()
    return result


@exercise(
    "relay",
    lab="02",
    hints=(
        "While a rank receives the second piece, what could it do with the first one?",
        "x.chunk(chunks) gives pieces of x that share its memory. In one loop over them: receive "
        "the piece from the rank before, start to send it to the rank after.",
        "Keep an empty list of handles. For each piece of x.chunk(chunks): if this is not the "
        "first rank, dist.recv the piece from rank - 1; if it is not the last one, append "
        "dist.isend of the piece to rank + 1. After the loop wait for all handles.",
    ),
)
def relay(answer: Any, draw: random.Random) -> None:
    """`relay(x, chunks)`: x of rank 0 on all ranks, from neighbour to neighbour, in pieces."""
    nproc, chunks = draw.choice((3, 4)), draw.choice((4, 5))
    values = [float(draw.randint(1, 99)) for _ in range(chunks * draw.randint(50, 90))]
    job = trial(_relay_on_rank, answer, values, chunks, nproc=nproc)
    _check_waited(job)
    for rank, got in enumerate(job.results):
        if got != values:
            first = next(at for at, value in enumerate(values) if got[at] != value)
            raise WrongAnswer(
                "wrong",
                f"on rank {rank} element {first} of {len(values)} is {got[first]}, and rank 0 has "
                f"{values[first]} there.",
            )
    for rank, calls in enumerate(job.calls):
        far = [call for call in calls if call.peer is not None and abs(call.peer - rank) != 1]
        if far:
            raise WrongAnswer(
                "from-the-first",
                f"rank {rank} called {far[0]}: everything leaves through rank 0's one link, which "
                f"takes {nproc - 1} times as long. Each rank gives to its neighbour only.",
            )
        sends = [call for call in calls if call.operation == "send"]
        receives = [call for call in calls if call.operation == "recv"]
        wanted = chunks if rank < nproc - 1 else 0
        if len(sends) != wanted:
            raise WrongAnswer(
                "whole",
                f"rank {rank} sent {len(sends)} messages, where x was to travel in {chunks} "
                "pieces: the rank after it waits until all is there.",
            )
        ends = [call.end or 0.0 for call in receives]
        if sends and receives and sends[0].start > max(ends):
            raise WrongAnswer(
                "all-then-on",
                f"rank {rank} received all {chunks} pieces before it sent the first one on. Then "
                "pieces help nobody: at each moment one link works and the others are idle. Send "
                "a piece on as soon as it is there.",
            )


# ── one_f_one_b, run_stage ───────────────────────────────────────────────────────────────────


class Stage:
    """A stage of a pipeline that multiplies by its weight, and notes what is done with it."""

    def __init__(self, weight: float):
        self.weight, self.grad = weight, 0.0
        self.saved: dict[int, Any] = {}
        self.most_saved, self.shared = 0, -1
        self.done: list[str] = []

    def forward(self, number: int, x: Any) -> Any:
        if any(x.data_ptr() == other.data_ptr() for other in self.saved.values()):
            self.shared = number
        self.saved[number] = x
        self.most_saved = max(self.most_saved, len(self.saved))
        self.done.append(f"F{number}")
        return x * self.weight

    def backward(self, number: int, grad: Any) -> Any:
        x = self.saved.pop(number)
        self.grad += float((grad * x).sum())
        self.done.append(f"B{number}")
        return grad * self.weight


def right_order(stage: int, stages: int, microbatches: int) -> list[str]:
    """1F1B of one stage, as the field defines it (PipeDream-Flush; Narayanan and others, 2021)."""
    first = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(first)]
    for number in range(microbatches - first):
        order += [f"F{first + number}", f"B{number}"]
    return order + [f"B{number}" for number in range(microbatches - first, microbatches)]


def _all_f_all_b(microbatches: int) -> list[str]:
    return [f"{way}{number}" for way in "FB" for number in range(microbatches)]


def _follow(order: Sequence[str], stage: Stage, inputs: Any) -> None:
    """Run one stage's order: nobody waits for the end of a send before the last step."""
    import torch
    import torch.distributed as dist

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent: list[tuple[Any, Any]] = []  # handles, and the tensors, which must live as long
    for step in order:
        way, number = step[0], int(step[1:])
        is_end = rank == (0 if way == "F" else last)
        given = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if not is_end:
            given = torch.empty_like(inputs[number])
            dist.recv(given, rank - 1 if way == "F" else rank + 1)
        made = (stage.forward if way == "F" else stage.backward)(number, given)
        to = rank + 1 if way == "F" else rank - 1
        if 0 <= to <= last:
            sent.append((dist.isend(made, to), made))
    for work, _ in sent:
        work.wait()


def _schedule_on_rank(schedule: Any, microbatches: int, weights: list[float]) -> Any:
    """The order that this stage was given, and, if every stage's can be followed, what came out."""
    import torch
    import torch.distributed as dist

    rank, stages = dist.get_rank(), dist.get_world_size()
    order = schedule(rank, stages, microbatches)
    everybody: list[Any] = [None] * stages
    dist.all_gather_object(everybody, order)
    wanted = set(_all_f_all_b(microbatches))
    if not all(_is_complete(one, wanted) and possible(one) for one in everybody):
        return order, None, 0
    stage = Stage(weights[rank])
    _follow(order, stage, [torch.full((2,), 1.0 + number) for number in range(microbatches)])
    return order, stage.grad, stage.most_saved


def _orders(schedule: Any, stages: int, microbatches: int) -> list[list[str]]:
    return [list(map(str, schedule(stage, stages, microbatches))) for stage in range(stages)]


def _is_complete(order: Any, wanted: set[str]) -> bool:
    listed = isinstance(order, (list, tuple)) and set(map(str, order)) == wanted
    return listed and len(order) == len(wanted)


def possible(order: Sequence[str]) -> bool:
    """Whether no backward comes before its own forward."""
    at = {step: place for place, step in enumerate(order)}
    return all(at[step] > at.get(f"F{step[1:]}", len(order)) for step in order if step[0] == "B")


@exercise(
    "one_f_one_b",
    lab="02",
    hints=(
        "The last stage can begin its first backward right after its first forward. How long does "
        "the stage before it have to wait for that gradient, and what can it do meanwhile?",
        "A stage first does as many forwards as there are stages behind it: the last one none, the "
        "one before it one. Then one forward, one backward, and so on; at the end the backwards "
        "that are left.",
        "warm = min(stages - 1 - stage, microbatches). First F0 to F(warm - 1). Then for each k "
        "from 0 while warm + k < microbatches: F(warm + k), then Bk. Then the backwards that are "
        "missing, in order.",
    ),
)
def one_f_one_b(answer: Any, draw: random.Random) -> None:
    """`one_f_one_b(stage, stages, microbatches)`: the order of one stage's work under 1F1B."""
    stages = draw.choice((3, 4))
    _check_schedule(answer, stages, draw.randint(stages + 1, 7), draw)
    _check_schedule(answer, 4, 2, draw)  # fewer microbatches than stages


def _check_schedule(answer: Any, stages: int, microbatches: int, draw: random.Random) -> None:
    weights = [float(draw.choice((2, 3, 5))) for _ in range(stages)]
    where = f"with {stages} stages and {microbatches} microbatches"
    right = [right_order(stage, stages, microbatches) for stage in range(stages)]
    backwards = right[::-1]
    try:
        job = trial(_schedule_on_rank, answer, microbatches, weights, nproc=stages)
    except Deadlock as deadlock:
        if trial(_orders, answer, stages, microbatches, nproc=1)[0] == backwards:
            raise WrongAnswer(
                "wrong-end",
                f"{where} the first stage has the order of the last one, and the other way round. "
                "Stage 0 then waits for its first gradient before the last stage has begun.",
            ) from None
        first = next((r for r in range(stages) if _stuck(deadlock.job, r)), 0)
        raise WrongAnswer(
            "deadlock",
            f"{where} the stages wait for each other for ever: rank {first} in "
            f"{deadlock.job.calls[first][-1]}. Some stage wants a gradient before it has done the "
            "forward that the gradient needs.",
        ) from None
    orders = [list(map(str, order or [])) for order, _, _ in job.results]
    if orders == right:
        return
    for stage, order in enumerate(orders):
        missing = sorted(set(right[stage]) - set(order))
        if missing or len(order) != len(right[stage]):
            raise WrongAnswer(
                "incomplete",
                f"{where}, stage {stage} has {len(order)} steps: {' '.join(order)}. Every stage "
                f"does {microbatches} forwards and {microbatches} backwards, each once"
                + (f"; {missing[0]} is not there." if missing else "."),
            )
        if not possible(order):
            raise WrongAnswer(
                "too-early",
                f"{where}, stage {stage} has a backward before its own forward: {' '.join(order)}.",
            )
    stage = next(at for at, order in enumerate(orders) if order != right[at])
    most = [most for _, _, most in job.results]
    if all(order == _all_f_all_b(microbatches) for order in orders):
        raise WrongAnswer(
            "all-then-all",
            f"that is GPipe: all forwards, then all backwards. So {where} every stage keeps "
            f"{microbatches} microbatches; the last one could do with 1.",
        )
    if all(order == orders[0] for order in orders):
        raise WrongAnswer(
            "same-everywhere",
            f"{where} every stage has the same order, and the last one keeps {most[-1]} "
            f"microbatches where 1 would do. What a stage does before its first backward depends "
            "on how many stages are behind it.",
        )
    leaving = [int(step[1:]) for step in orders[stage] if step[0] == "B"]
    if leaving != sorted(leaving):
        raise WrongAnswer(
            "last-first",
            f"{where}, stage {stage} does the backwards in the order {leaving}. The microbatch "
            "that came first leaves first; otherwise its activations stay the longest.",
        )
    raise WrongAnswer(
        "wrong-warm-up",
        f"{where}, stage {stage} does {' '.join(orders[stage])}. Behind it are "
        f"{stages - 1 - stage} stages, so it should be {' '.join(right[stage])}.",
    )


def _run_on_rank(
    run_stage: Any, orders: list[list[str]], weights: list[float], values: list[list[float]]
) -> Any:
    import torch
    import torch.distributed as dist

    stage = Stage(weights[dist.get_rank()])
    run_stage(orders[dist.get_rank()], stage, [torch.tensor(one) for one in values])
    return stage.done, stage.grad, stage.shared


@exercise(
    "run_stage",
    lab="02",
    hints=(
        "Look at the report of the deadlock: two neighbours each wait for the end of a send. Which "
        "of them has to wait there, and which could go on and receive?",
        "Nobody needs to wait for a send at once. isend, keep the handle and the tensor, go on; "
        "after the last step wait for all handles.",
        "Go through the order. F: take inputs[i] on the first rank, else receive into a new "
        "tensor from rank - 1; stage.forward(i, x); if not on the last rank, isend the result to "
        "rank + 1. B: ones_like on the last rank, else receive from rank + 1; stage.backward(i, "
        "grad); if not on the first rank, isend to rank - 1. At the end wait for every handle.",
    ),
)
def run_stage(answer: Any, draw: random.Random) -> None:
    """`run_stage(order, stage, inputs)`: one stage of a pipeline, in any right order."""
    stages = draw.choice((3, 4))
    microbatches = draw.randint(stages, 6)
    weights = [float(draw.choice((2, 3, 5))) for _ in range(stages)]
    values = [[float(draw.randint(1, 9)) for _ in range(3)] for _ in range(microbatches)]
    for orders in (
        [_all_f_all_b(microbatches)] * stages,
        [right_order(stage, stages, microbatches) for stage in range(stages)],
    ):
        _check_run(answer, orders, weights, values)


def _check_run(
    answer: Any, orders: list[list[str]], weights: list[float], values: list[list[float]]
) -> None:
    stages, microbatches = len(weights), len(values)
    try:
        job = trial(_run_on_rank, answer, orders, weights, values, nproc=stages)
    except Deadlock as deadlock:
        _blame_the_deadlock(deadlock, stages)
    product = 1.0
    for weight in weights:
        product *= weight
    total = sum(map(sum, values))
    for rank, (done, grad, shared) in enumerate(job.results):
        if done != orders[rank]:
            raise WrongAnswer(
                "own-order",
                f"rank {rank} was to do {' '.join(orders[rank])}, and did {' '.join(done)}.",
            )
        if shared >= 0:
            raise WrongAnswer(
                "one-buffer",
                f"rank {rank} received microbatch {shared} into the tensor of an earlier one, "
                "which the stage still needs for its backward: a new tensor for each message.",
            )
        right = total * product / weights[rank]
        if not close(grad, right):
            raise WrongAnswer(
                "wrong", f"the gradient of stage {rank}'s weight is {grad}; it should be {right}."
            )
    _check_waited(job)
    for rank in range(stages):
        neighbours = (rank > 0) + (rank < stages - 1)
        wanted = {"send": neighbours * microbatches, "recv": neighbours * microbatches}
        if Counter(operations(job, rank)) != wanted:
            raise WrongAnswer(
                "too-much",
                f"rank {rank} called {dict(Counter(operations(job, rank)))}, where {wanted} would "
                "do.",
            )


def _blame_the_deadlock(deadlock: Deadlock, stages: int) -> NoReturn:
    last = stages - 1
    for rank, calls in enumerate(deadlock.job.calls):
        if stages > 2 and any({rank, call.peer} == {0, last} for call in calls):
            raise WrongAnswer(
                "ring",
                f"rank {rank} called {calls[-1]}: a pipeline has two ends. The first stage takes "
                "its inputs from the list, and the last one starts the backward with ones.",
            ) from None
    stuck = {rank: _stuck(deadlock.job, rank) for rank in range(stages)}
    pairs = [rank for rank in range(last) if stuck[rank] == stuck[rank + 1] == "send"]
    if pairs:
        raise WrongAnswer(
            "blocking-sends",
            f"ranks {pairs[0]} and {pairs[0] + 1} both wait for the end of a send, the one of an "
            "activation, the other of a gradient, and neither comes to receive. Start a send, "
            "keep its handle, go on.",
        ) from None
    raise deadlock
