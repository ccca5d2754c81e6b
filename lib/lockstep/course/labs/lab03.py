"""Lab 03, collectives: its exercises and their checks."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

from ...launch import Job, JobFailed
from ...launch.calls import POINT_TO_POINT, Call
from ...models import cost
from ..exercises import Deadlock, WrongAnswer, close, exercise, operations, trial

_FLOAT = 4  # bytes of a number in these checks
_REDUCE_SCATTERS = ("reduce_scatter", "reduce_scatter_tensor")
_ALL_GATHERS = ("all_gather", "all_gather_into_tensor")


def _numbers(draw: random.Random, nproc: int, length: int) -> list[list[float]]:
    """For each rank `length` whole numbers, all different, so that each says whose it was."""
    drawn = draw.sample(range(1, 1000), nproc * length)
    return [[float(one) for one in drawn[rank::nproc]] for rank in range(nproc)]


def _total(values: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*values, strict=True)]


def _in_place_on_rank(answer: Any, values: list[list[float]]) -> tuple[list[float], Any]:
    """What x holds after answer(x), and what the answer returned."""
    import torch
    import torch.distributed as dist

    x = torch.tensor(values[dist.get_rank()])
    returned = answer(x)
    return x.tolist(), returned.tolist() if isinstance(returned, torch.Tensor) else None


def _expect_in_place(job: Job, values: list[list[float]]) -> None:
    """Raise WrongAnswer where the sum was returned, and x is what it was."""
    total = _total(values)
    for rank, (x, returned) in enumerate(job.results):
        if close(x, values[rank]) and returned is not None and close(returned, total):
            raise WrongAnswer(
                "not-in-place",
                f"it returned the right sum, but x on rank {rank} is what it was. all_reduce "
                "changes x itself, and so should this: write into x.",
            )


def _sends(job: Job, rank: int) -> list[Call]:
    return [call for call in job.calls[rank] if call.operation == "send"]


def _expect_messages(job: Job) -> None:
    """Raise WrongAnswer for ranks that did not send at all, or called a collective."""
    for rank, calls in enumerate(job.calls):
        others = [call.operation for call in calls if call.operation not in POINT_TO_POINT]
        if others:
            raise WrongAnswer(
                "uses-a-collective",
                f"rank {rank} called {others[0]}: here only sends and receives are allowed, "
                "because a collective is what is being built.",
            )
    if not any(job.calls):
        raise WrongAnswer("nothing-sent", "no rank has sent anything.")


# ── global_mean ──────────────────────────────────────────────────────────────────────────────


def _mean_on_rank(answer: Any, values: list[list[float]]) -> float:
    import torch
    import torch.distributed as dist

    return float(answer(torch.tensor(values[dist.get_rank()])))


@exercise(
    "global_mean",
    lab="03",
    hints=(
        "Ranks have different numbers of values, so a mean of means gives a value on a small rank "
        "more weight. Which two numbers of each rank are enough for the true mean?",
        "The sum over all ranks, divided by the count over all ranks. Both are sums over ranks, "
        "and a tensor can have two elements.",
        "Make a tensor of two elements: the sum of the rank's values, and how many there are. One "
        "all_reduce adds both up. Then divide the first by the second.",
    ),
)
def global_mean(answer: Any, draw: random.Random) -> None:
    """`global_mean(values)`: the mean of all ranks' values, by exactly one all_reduce."""
    nproc = draw.choice((3, 4))
    counts = draw.sample(range(2, 9), nproc)
    values = [[float(draw.randint(1, 9) + 20 * rank) for _ in range(counts[rank])]
              for rank in range(nproc)]  # fmt: skip
    job = trial(_mean_on_rank, answer, values, nproc=nproc)
    everything = [one for part in values for one in part]
    right = sum(everything) / len(everything)
    means = [sum(part) / len(part) for part in values]
    for rank, got in enumerate(job.results):
        called = operations(job, rank)
        where = f"rank {rank} of {nproc}, with {counts} values a rank, got {got:g}"
        if not called:
            raise WrongAnswer(
                "nothing-sent", f"{where}: it called nothing, so it cannot know of the others."
            )
        if close(got, sum(means) / nproc):
            raise WrongAnswer(
                "mean-of-means",
                f"{where}: the mean of the ranks' means. Over all values it is {right:g}. A rank "
                "with few values must not count as much as one with many.",
            )
        if close(got, sum(everything) / nproc):
            raise WrongAnswer(
                "divides-by-ranks",
                f"{where}: the sum of all values, divided by the number of ranks. How many values "
                "there are is another number, and no rank knows it alone.",
            )
        if not close(got, right):
            raise WrongAnswer("wrong", f"{where}; the mean of all values is {right:g}.")
        if called != ["all_reduce"]:
            raise WrongAnswer(
                "too-many-calls",
                f"the mean is right, but it took {', '.join(called)}. Each call waits for the "
                "slowest rank anew. One all_reduce of two numbers is enough.",
            )


# ── two_step_all_reduce ──────────────────────────────────────────────────────────────────────


@exercise(
    "two_step_all_reduce",
    lab="03",
    hints=(
        "After the first step every rank must have a part of the result that is finished. Which "
        "collective in the pictures ends like that?",
        "reduce_scatter gives rank r the sum of everybody's part r. Then each finished part has to "
        "get to all ranks, into its own place.",
        "Cut x into world-size chunks (they are views of x). reduce_scatter(part, chunks) into a "
        "new tensor like one chunk. all_gather(chunks, part) writes all parts back into x.",
    ),
)
def two_step_all_reduce(answer: Any, draw: random.Random) -> None:
    """`two_step_all_reduce(x)`: the sum in place, by one reduce_scatter and one all_gather."""
    nproc = draw.choice((3, 4))
    part = draw.randint(2, 4)
    values = _numbers(draw, nproc, nproc * part)
    total = _total(values)
    job = trial(_in_place_on_rank, answer, values, nproc=nproc)
    called = operations(job, 0)
    if any(operation.startswith("all_reduce") for operation in called):
        raise WrongAnswer(
            "all-reduce", f"it called {', '.join(called)}: all_reduce is what is being built."
        )
    if called and all(operation in _ALL_GATHERS for operation in called):
        raise WrongAnswer(
            "gathers-first",
            f"every rank got all {nproc} tensors and added them up by itself: {nproc} times the "
            "memory, and all ranks do the same sums. Let each rank add up one part only.",
        )
    _expect_in_place(job, values)
    for rank, (x, _) in enumerate(job.results):
        if close(x, total):
            continue
        right = [close(one, other) for one, other in zip(x, total, strict=True)]
        if right == [at // part == rank for at in range(nproc * part)]:
            raise WrongAnswer(
                "no-gather",
                f"on rank {rank} part {rank} is the sum and the others are what they were: every "
                "rank has finished one part, and nobody has given it to the others.",
            )
        if close(x, values[rank]):
            raise WrongAnswer(
                "not-copied-back", f"x on rank {rank} is what it was before: nothing wrote into it."
            )
        if sorted(x) == sorted(total):
            raise WrongAnswer(
                "wrong-places",
                f"rank {rank} has all sums, but not at the places where they belong.",
            )
        raise WrongAnswer("wrong", f"rank {rank} has {x}; the sum is {total}.")
    kinds = [operation in _REDUCE_SCATTERS for operation in called]
    if kinds != [True, False] or called[1] not in _ALL_GATHERS:
        raise WrongAnswer(
            "other-calls",
            f"the sum is right, but it took {', '.join(called)}: the goal is one reduce_scatter, "
            "then one all_gather.",
        )


# ── ring_all_reduce ──────────────────────────────────────────────────────────────────────────


@exercise(
    "ring_all_reduce",
    lab="03",
    hints=(
        "Follow one chunk. It starts somewhere, goes from rank to rank, and each adds its own. "
        "After how many steps is it complete, and where? Then it goes round once more.",
        "In step s of the first half, rank r sends chunk (r - s) mod N, and adds what arrives to "
        "chunk (r - s - 1) mod N. In the second half the complete chunks go on, and replace.",
        "First loop, s from 0 to N - 2: swap chunk r - s to the right against a buffer from the "
        "left, and add the buffer to chunk r - s - 1. Second loop, the same s: send chunk "
        "r + 1 - s, receive straight into chunk r - s. All numbers modulo N.",
    ),
)
def ring_all_reduce(answer: Any, draw: random.Random) -> None:
    """`ring_all_reduce(x)`: the sum in place, each rank sends 2(N - 1)/N of x to its neighbour."""
    nproc = draw.choice((3, 4))
    part = draw.randint(2, 4)
    values = _numbers(draw, nproc, nproc * part)
    total, size = _total(values), nproc * part * _FLOAT
    try:
        job = trial(_in_place_on_rank, answer, values, nproc=nproc)
    except Deadlock as stuck:
        raise WrongAnswer(
            "deadlock",
            f"with {nproc} ranks it never ends: in a ring everybody sends and everybody receives, "
            "and whoever finishes one before it starts the other waits for its neighbour, who "
            f"waits, too. Start both, then wait for both.\n{stuck.job.report}",
        ) from None
    _expect_messages(job)
    for rank in range(nproc):
        peers = sorted({call.peer for call in _sends(job, rank) if call.peer is not None})
        if len(peers) > 1:
            raise WrongAnswer(
                "not-a-ring",
                f"rank {rank} sent to ranks {peers}. In a ring it has one neighbour to send to, "
                "and one to receive from.",
            )
    _expect_in_place(job, values)
    for rank, (x, _) in enumerate(job.results):
        if close(x, total):
            continue
        chunks = [x[at * part : (at + 1) * part] for at in range(nproc)]
        sums = [total[at * part : (at + 1) * part] for at in range(nproc)]
        complete = [at for at in range(nproc) if close(chunks[at], sums[at])]
        if len(complete) == 1 and len(_sends(job, rank)) < nproc:
            raise WrongAnswer(
                "half-way",
                f"after {len(_sends(job, rank))} steps rank {rank} has the sum in chunk "
                f"{complete[0]} alone. That is the reduce-scatter; the complete chunks still have "
                "to go round.",
            )
        if set(x) <= {one for numbers in values for one in numbers}:
            raise WrongAnswer(
                "only-copies",
                f"all numbers on rank {rank} are ones that some rank had at the start. Either "
                "nothing was added, or sums were overwritten: in the second half a rank sends on "
                "the chunk that is complete, which is not the one it began with.",
            )
        wrong = next(at for at in range(nproc) if at not in complete)
        raise WrongAnswer(
            "wrong-chunk",
            f"on rank {rank} of {nproc} chunk {wrong} is {chunks[wrong]}, and the sum is "
            f"{sums[wrong]}. Write down for each step which chunk leaves rank 0 and which one "
            "arrives there; what is sent on must be what is complete.",
        )
    most = max(sum(call.bytes for call in _sends(job, rank)) for rank in range(nproc))
    least = 2 * (nproc - 1) * part * _FLOAT
    if most > least:
        raise WrongAnswer(
            "whole-tensor",
            f"the sum is right, but a rank sent {most} bytes of a tensor of {size}. In chunks it "
            f"is 2(N - 1)/N of it: {least}.",
        )


# ── doubling_all_reduce ──────────────────────────────────────────────────────────────────────


@exercise(
    "doubling_all_reduce",
    lab="03",
    hints=(
        "After the first round pairs have the same sum, after the second fours. Who has what a "
        "pair is missing, and how far away is that rank?",
        "The partner of rank r in round k is r with bit k turned over: r ^ (1 << k). So both see "
        "each other as the partner.",
        "For distance 1, 2, 4, … below N: the partner is rank ^ distance. Swap the whole x "
        "against a buffer, wait for both, then add the buffer to x.",
    ),
)
def doubling_all_reduce(answer: Any, draw: random.Random) -> None:
    """`doubling_all_reduce(x)`: the sum in place, in log2(N) rounds of exchange with a partner."""
    nproc = draw.choice((4, 8))
    rounds = nproc.bit_length() - 1
    values = _numbers(draw, nproc, draw.randint(2, 4))
    total = _total(values)
    try:
        job = trial(_in_place_on_rank, answer, values, nproc=nproc)
    except Deadlock as stuck:
        first = [next(iter(_sends(stuck.job, rank)), None) for rank in range(nproc)]
        peers = [None if call is None else call.peer for call in first]
        for rank, peer in enumerate(peers):
            if peer is not None and peers[peer] not in (None, rank):
                raise WrongAnswer(
                    "one-sided",
                    f"rank {rank} chose rank {peer} as its partner, and rank {peer} chose rank "
                    f"{peers[peer]}. In an exchange both must choose each other.\n"
                    f"{stuck.job.report}",
                ) from None
        raise
    _expect_messages(job)
    _expect_in_place(job, values)
    for rank, (x, _) in enumerate(job.results):
        sends = _sends(job, rank)
        if close(x, total):
            continue
        if len({call.peer for call in sends}) == 1 < len(sends):
            raise WrongAnswer(
                "same-partner",
                f"rank {rank} exchanged {len(sends)} times with rank {sends[0].peer}: after the "
                "first time it has nothing new to say. The distance has to double.",
            )
        if x in values:
            raise WrongAnswer(
                "not-added",
                f"rank {rank} has the numbers of rank {values.index(x)}: what arrived replaced "
                "what was there, and nothing was added.",
            )
        if len(sends) < rounds:
            raise WrongAnswer(
                "stops-early",
                f"rank {rank} took part in {len(sends)} of {rounds} rounds, which {nproc} ranks "
                "need: it has the sum of a part of the ranks.",
            )
        raise WrongAnswer("wrong", f"rank {rank} has {x}; the sum is {total}.")
    most = max(len(_sends(job, rank)) for rank in range(nproc))
    if most > rounds:
        raise WrongAnswer(
            "too-many-rounds",
            f"the sum is right, but a rank sent {most} times. What a partner sends is already the "
            f"sum of several ranks: {nproc} ranks need {rounds} rounds.",
        )


# ── tree_all_reduce ──────────────────────────────────────────────────────────────────────────


def _rounds(job: Job) -> int:
    """After how many rounds all is done, if a rank can be in one message at a time."""
    waiting = [[c for c in calls if c.operation in POINT_TO_POINT] for calls in job.calls]
    clock = [0] * job.nproc
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(waiting):
            if not calls or calls[0].operation != "send" or calls[0].peer is None:
                continue
            peer = calls[0].peer
            other = waiting[peer]
            if other and (other[0].operation, other[0].peer) == ("recv", rank):
                clock[rank] = clock[peer] = max(clock[rank], clock[peer]) + 1
                del calls[0], other[0]
                moved = True
    return max(clock)


@exercise(
    "tree_all_reduce",
    lab="03",
    hints=(
        "A knock-out tournament: in each round half of those who are left give what they have to "
        "the other half, and are out. Then the same backwards, with the result.",
        "At distance d (1, 2, 4, …) a rank that is an odd multiple of d sends to rank - d and is "
        "done; an even multiple receives from rank + d, if there is such a rank.",
        "Up: for d = 1, 2, 4, … below N, if rank % (2 * d) is d send x to rank - d, if it is 0 and "
        "rank + d < N receive into a buffer and add. Down: the same distances from the largest to "
        "the smallest, with send and receive turned round, and received straight into x.",
    ),
)
def tree_all_reduce(answer: Any, draw: random.Random) -> None:
    """`tree_all_reduce(x)`: the sum in place, by a tree to one rank and back; for any N."""
    nproc = draw.choice((6, 7))
    values = _numbers(draw, nproc, draw.randint(2, 4))
    total = _total(values)
    try:
        job = trial(_in_place_on_rank, answer, values, nproc=nproc)
    except JobFailed as failed:
        peers = {call.peer for calls in failed.job.calls for call in calls}
        if any(peer is not None and peer >= nproc for peer in peers) or _no_such_rank(failed):
            raise WrongAnswer(
                "power-of-two-only",
                f"with {nproc} ranks one of them looked for a rank that is not there. A subtree "
                "may be missing where N is not a power of two.",
            ) from None
        raise
    _expect_messages(job)
    _expect_in_place(job, values)
    correct = [rank for rank in range(nproc) if close(job[rank][0], total)]
    for rank in sorted(set(range(nproc)) - set(correct)):
        x = job[rank][0]
        if correct and all(one > other for one, other in zip(x, total, strict=True)):
            raise WrongAnswer(
                "adds-coming-down",
                f"rank {rank} has {x}, more than the sum {total}. What comes down the tree is the "
                "result: it replaces what a rank has.",
            )
        if len(correct) == 1:
            raise WrongAnswer(
                "only-up",
                f"rank {correct[0]} has the sum, and nobody else: that is a reduce. It has to come "
                "down the tree again.",
            )
        raise WrongAnswer("wrong", f"rank {rank} has {x}; the sum is {total}.")
    messages = sum(len(_sends(job, rank)) for rank in range(nproc))
    if messages > 2 * (nproc - 1):
        raise WrongAnswer(
            "too-many-messages",
            f"the sum is right, but there were {messages} messages. Up the tree each rank but one "
            f"sends once, and down each but one receives once: {2 * (nproc - 1)} in all.",
        )
    rounds, right = _rounds(job), 2 * math.ceil(math.log2(nproc))
    if rounds <= right + 2:  # two children a rank take one round more in each direction
        return
    received = Counter(
        call.rank for calls in job.calls for call in calls if call.operation == "recv"
    )
    busiest, most = received.most_common(1)[0]
    if most == nproc - 1:
        raise WrongAnswer(
            "star",
            f"the sum is right, but rank {busiest} received from {most} ranks, one after the "
            f"other: {rounds} rounds. A tree of {nproc} ranks needs {right}.",
        )
    raise WrongAnswer(
        "chain",
        f"the sum is right, but a message has to go through all ranks in a row: {rounds} rounds, "
        f"in each of which most ranks wait. A tree of {nproc} ranks needs {right}.",
    )


def _no_such_rank(failed: JobFailed) -> bool:
    said = str(failed).lower()
    return any(words in said for words in ("invalid", "out of range", "not part of", "bounds"))


# ── hierarchical_all_reduce ──────────────────────────────────────────────────────────────────


def _hierarchy_on_rank(
    answer: Any, nodes: list[list[int]], rails: list[list[int]], values: list[list[float]]
) -> tuple[list[float], Any]:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    made = {tuple(ranks): dist.new_group(ranks) for ranks in [*nodes, *rails]}
    inside = next(made[tuple(ranks)] for ranks in nodes if rank in ranks)
    across = next(made[tuple(ranks)] for ranks in rails if rank in ranks)
    x = torch.tensor(values[rank])
    returned = answer(x, inside, across)
    return x.tolist(), returned.tolist() if isinstance(returned, torch.Tensor) else None


@exercise(
    "hierarchical_all_reduce",
    lab="03",
    hints=(
        "The links between nodes are the slow ones. How much of x does one rank really have to "
        "send over them, if the ranks of a node share the work?",
        "Three steps: a reduce-scatter inside of the node, an all-reduce across nodes of what the "
        "rank then has, an all-gather inside of the node.",
        "Cut x into as many chunks as the inside group has ranks. reduce_scatter(part, chunks) in "
        "inside, all_reduce(part) in across, all_gather(chunks, part) in inside.",
    ),
)
def hierarchical_all_reduce(answer: Any, draw: random.Random) -> None:
    """`hierarchical_all_reduce(x, inside, across)`: the sum, few bytes between nodes."""
    count, local = draw.choice(((2, 2), (2, 3), (3, 2)))
    nproc = count * local
    nodes = [list(range(at * local, (at + 1) * local)) for at in range(count)]
    rails = [list(range(at, nproc, local)) for at in range(local)]
    values = _numbers(draw, nproc, local * draw.randint(2, 3))
    total, size = _total(values), len(values[0]) * _FLOAT
    job = trial(_hierarchy_on_rank, answer, nodes, rails, values, nproc=nproc)
    where = f"on {count} nodes of {local} ranks"
    for rank, calls in enumerate(job.calls):
        for call in calls:
            if len(call.group.ranks) == nproc:
                raise WrongAnswer(
                    "whole-world",
                    f"{where}, rank {rank} called {call}: of which bytes go between nodes it "
                    "knows nothing. Use the two groups.",
                )
    _expect_in_place(job, values)
    for rank, (x, _) in enumerate(job.results):
        node = nodes[rank // local]
        inner = _total([values[one] for one in node])
        if close(x, total):
            continue
        if not any(list(call.group.ranks) == rails[rank % local] for call in job.calls[rank]):
            raise WrongAnswer(
                "only-inside",
                f"{where}, rank {rank} never called anything in its across group: it cannot know "
                f"of the other nodes. {'Its x is the sum of its node.' if x == inner else ''}",
            )
        ratios = {round(one / other, 3) for one, other in zip(x, total, strict=True)}
        if ratios == {float(local)} or ratios == {float(count)}:
            raise WrongAnswer(
                "counted-twice",
                f"{where}, rank {rank} has {ratios.pop():g} times the sum: ranks that have the "
                "same already were added up again.",
            )
        part = len(x) // local
        right = [close(one, other) for one, other in zip(x, total, strict=True)]
        if right == [at // part == rank % local for at in range(len(x))]:
            raise WrongAnswer(
                "no-gather",
                f"{where}, rank {rank} has the sum in part {rank % local} alone: each rank of a "
                "node has another part, and they have not been put together.",
            )
        raise WrongAnswer("wrong", f"{where}, rank {rank} has {x}; the sum is {total}.")
    for rank, calls in enumerate(job.calls):
        between = [c for c in calls if list(c.group.ranks) == rails[rank % local]]
        if sum(call.bytes for call in between) > size // local:
            raise WrongAnswer(
                "all-of-it-across",
                f"{where} the sum is right, but rank {rank} put {between[0].bytes} bytes into the "
                f"call across nodes, and so did the others of its node: all the same ones. A part "
                f"of {size // local} bytes from each is enough.",
            )


# ── ring_seconds ─────────────────────────────────────────────────────────────────────────────


@exercise(
    "ring_seconds",
    lab="03",
    hints=(
        "You have written the ring: how many steps does it have, and how many bytes go in each?",
        "2(N - 1) steps, one after the other. Each is a message of nbytes/N, and a message of s "
        "bytes takes alpha + beta * s.",
        "Multiply the number of steps, 2 * (n - 1), by the time of one message, which is alpha "
        "plus beta times nbytes / n.",
    ),
)
def ring_seconds(answer: Any, draw: random.Random) -> None:
    """`ring_seconds(n, nbytes, alpha, beta)`: what the α–β model says of a ring all-reduce."""
    for _ in range(3):
        n, nbytes = draw.randint(3, 64), float(draw.randint(10, 1000) * 1024)
        alpha, beta = draw.uniform(1, 50) * 1e-6, draw.uniform(0.1, 4) * 1e-10
        right = cost.ring_all_reduce(n, nbytes, cost.Line(alpha, beta))
        got = answer(n, nbytes, alpha, beta)
        if not isinstance(got, int | float):
            raise WrongAnswer("wrong", f"it returned {got!r}, not a number of seconds.")
        if math.isclose(got, right, rel_tol=1e-6):
            continue
        mistakes = {  # what it may be instead, by mistake
            "half-way": (n - 1) * (alpha + beta * nbytes / n),
            "whole-tensor": 2 * (n - 1) * (alpha + beta * nbytes),
            "one-alpha": alpha + 2 * (n - 1) / n * beta * nbytes,
            "n-steps": 2 * n * (alpha + beta * nbytes / n),
        }
        hints = {
            "half-way": "a ring that only goes round once: N - 1 steps are the reduce-scatter. The "
            "all-gather takes as many.",
            "whole-tensor": "a ring that sends all of x in each step. A chunk is nbytes/N.",
            "one-alpha": "right in the bytes, but it pays alpha once. Each of the steps is a "
            "message, and each message pays it.",
            "n-steps": "two steps too many: a chunk that starts at a rank needs N - 1 steps to get "
            "to the last one, not N.",
        }
        for mistake, seconds in mistakes.items():
            if math.isclose(got, seconds, rel_tol=1e-6):
                raise WrongAnswer(
                    mistake, f"for {n} ranks and {nbytes:,.0f} bytes it is {hints[mistake]}"
                )
        raise WrongAnswer(
            "wrong",
            f"for n={n}, nbytes={nbytes:.0f}, alpha={alpha:.3g}, beta={beta:.3g} it gave "
            f"{got:.6g} s; the ring you wrote takes {right:.6g} s in that model.",
        )


# ── flat_all_reduce ──────────────────────────────────────────────────────────────────────────


def _flat_on_rank(
    answer: Any, shapes: list[tuple[int, ...]], values: list[list[float]]
) -> tuple[list[list[float]], list[list[float]]]:
    """What the tensors hold afterwards, and what was returned, if that was a list of tensors."""
    import torch
    import torch.distributed as dist

    numbers = torch.tensor(values[dist.get_rank()])
    parts = numbers.split([math.prod(shape) for shape in shapes])
    tensors = [part.clone().reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    returned = answer(tensors)
    listed = list(returned) if isinstance(returned, list | tuple) else []
    kept = [one.flatten().tolist() for one in listed if isinstance(one, torch.Tensor)]
    return [tensor.flatten().tolist() for tensor in tensors], kept


@exercise(
    "flat_all_reduce",
    lab="03",
    hints=(
        "One call takes one tensor. How do tensors of several shapes become one, and how does each "
        "get its numbers back?",
        "torch.cat of the flattened tensors makes one long one. After the all_reduce, split it at "
        "the same lengths, and copy_ each piece, in its shape, into its tensor.",
        "Flatten and cat all tensors. One all_reduce. Split by each tensor's numel(); for each "
        "tensor and piece, tensor.copy_(piece.view_as(tensor)).",
    ),
)
def flat_all_reduce(answer: Any, draw: random.Random) -> None:
    """`flat_all_reduce(tensors)`: the sum of each tensor in place, by exactly one call."""
    nproc = draw.choice((2, 3))
    lengths = draw.sample(range(2, 9), 3)
    shapes = [(lengths[0], 2), (lengths[1],), (lengths[2], 1, 3)]
    counts = [math.prod(shape) for shape in shapes]
    values = _numbers(draw, nproc, sum(counts))
    total = _total(values)
    sums = [total[sum(counts[:at]) : sum(counts[: at + 1])] for at in range(len(counts))]
    job = trial(_flat_on_rank, answer, shapes, values, nproc=nproc)
    size = sum(counts) * _FLOAT
    for rank, (tensors, returned) in enumerate(job.results):
        calls = job.calls[rank]
        if not calls:
            raise WrongAnswer("nothing-sent", f"rank {rank} called nothing.")
        if len(calls) > 1:
            raise WrongAnswer(
                "one-call-each",
                f"rank {rank} made {len(calls)} calls for {len(shapes)} tensors: each pays α, and "
                "each waits for the slowest rank. Make it one.",
            )
        if close(tensors, sums):
            if calls[0].bytes > size:
                raise WrongAnswer(
                    "padded",
                    f"the sums are right, but {calls[0].bytes} bytes were sent for {size}: tensors "
                    "of other sizes were filled up. Laid end to end they need no filling.",
                )
            continue
        mine = values[rank]
        if [one for tensor in tensors for one in tensor] == mine:
            right = "what it returned is right, but " if close(returned, sums) else ""
            raise WrongAnswer(
                "not-copied-back",
                f"{right}the tensors on rank {rank} hold what they held before: the sum is in a "
                "copy. It has to get back into them.",
            )
        if sorted(one for tensor in tensors for one in tensor) == sorted(total):
            raise WrongAnswer(
                "wrong-places",
                f"rank {rank} has all sums, but tensors have got those of others. Cut it up in the "
                "order in which it was put together.",
            )
        raise WrongAnswer("wrong", f"rank {rank} has {tensors}; the sums are {sums}.")
