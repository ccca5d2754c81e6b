"""Wrong answers to the exercises of lab 02, written without sight of its checks; see judge.py."""

import datetime
import math
import statistics
import time

import lockstep
import torch
import torch.distributed as dist
import pickle
import struct
import numpy as np

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% swap_in_turn: both-send-first
# The obvious order, send and then receive, on both ranks: under gloo both wait in `send` for ever.


def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    dist.send(x, other)
    dist.recv(theirs, other)
    return theirs


# %% swap_in_turn: even-ranks-first
# Even ranks send first, odd ones receive first. "Any two of them may be partners": for 0 and 2 (or 1 and 3) both do
# the same, and hang. Right for neighbours only.


def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() % 2 == 0:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: partner-is-rank-xor-one
# Ignores `other` and takes the neighbour `rank ^ 1`: right only where the pairs are (0, 1), (2, 3), ...


def swap_in_turn(x, other):
    partner = dist.get_rank() ^ 1
    theirs = torch.empty_like(x)
    if dist.get_rank() < partner:
        dist.send(x, partner)
        dist.recv(theirs, partner)
    else:
        dist.recv(theirs, partner)
        dist.send(x, partner)
    return theirs


# %% swap_in_turn: lower-half-first
# The lower half of the world sends first. Right for pairs across the halves (so always on 2 ranks), and a deadlock
# where both partners are in the same half.


def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < dist.get_world_size() // 2:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: higher-rank-overwrites-x
# The rank that receives first keeps a copy to send and receives into `x` itself, which it returns: the value is right,
# but on the higher rank `x` is changed, and the result isn't a new tensor.


def swap_in_turn(x, other):
    if dist.get_rank() < other:
        theirs = torch.empty_like(x)
        dist.send(x, other)
        dist.recv(theirs, other)
        return theirs
    keep = x.clone()
    dist.recv(x, other)
    dist.send(keep, other)
    return x


# %% swap_in_turn: default-dtype-buffer
# `torch.zeros(x.shape)` is float32 whatever x is: other types come out as wrong numbers (or kill the process where an
# element has eight bytes).


def swap_in_turn(x, other):
    theirs = torch.zeros(x.shape, device=x.device)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: travels-as-float32
# Sends `x.float()` and converts back: int64 above 2**24 and float64 lose digits. Right for float32, small integers.


def swap_in_turn(x, other):
    out = x.float()
    into = torch.empty_like(out)
    if dist.get_rank() < other:
        dist.send(out, other)
        dist.recv(into, other)
    else:
        dist.recv(into, other)
        dist.send(out, other)
    return into.to(x.dtype)


# %% swap_in_turn: two-halves
# Sends x in two halves, by turns: the right value, but two sends and two receives ("one of each") as soon as x has
# more than one number.


def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    for mine, into in zip(x.view(-1).chunk(2), theirs.view(-1).chunk(2)):
        if dist.get_rank() < other:
            dist.send(mine, other)
            dist.recv(into, other)
        else:
            dist.recv(into, other)
            dist.send(mine, other)
    return theirs


# %% swap_in_turn: barrier-between
# A barrier between the two turns "to be safe": a third call, and one that waits for ranks outside of the pair ("only
# send and recv, one of each").


def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
    else:
        dist.recv(theirs, other)
    dist.barrier()
    if dist.get_rank() < other:
        dist.recv(theirs, other)
    else:
        dist.send(x, other)
    return theirs


# %% swap_in_turn: one-buffer-for-all-calls
# Keeps its receive buffer in a dictionary by shape: the second call overwrites what the first returned, so it's no
# new tensor.

_buffers = {}


def swap_in_turn(x, other):
    key = (tuple(x.shape), x.dtype)
    if key not in _buffers:
        _buffers[key] = torch.empty_like(x)
    theirs = _buffers[key]
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: returns-a-flat-tensor
# Receives into a tensor of one dimension with as many elements: the bytes are right, the shape of the partner's x is
# lost. Right for one dimension only.


def swap_in_turn(x, other):
    theirs = x.new_empty(x.numel())
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: sends-back-what-came
# The second one answers with the tensor that it has just received.


def swap_in_turn(x, other):
    y = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(y, other)
    else:
        dist.recv(y, other)
        dist.send(y, other)
    return y


# %% swap_in_turn: one-way-only
# The lower rank sends, the higher one receives, and that is all.


def swap_in_turn(x, other):
    y = x.clone()
    if dist.get_rank() < other:
        dist.send(x, other)
    else:
        dist.recv(y, other)
    return y


# %% swap_in_turn: as-many-as-rows
# The buffer has as many numbers as x has rows.


def swap_in_turn(x, other):
    y = torch.empty(len(x), dtype=x.dtype, device=x.device)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(y, other)
    else:
        dist.recv(y, other)
        dist.send(x, other)
    return y


# %% swap: waits-for-send-before-receive
# isend with its wait() at once, then irecv: that's the mutual send again, and hangs under gloo.


def swap(x, other):
    theirs = torch.empty_like(x)
    dist.isend(x, other).wait()
    dist.irecv(theirs, other).wait()
    return theirs


# %% swap: send-never-waited
# Waits for the receive only (and keeps the send's handle, so that it isn't dropped). x still belongs to the message when
# the caller gets control back: if the caller then writes x, the partner may get the new numbers.

_under_way = []


def swap(x, other):
    theirs = torch.empty_like(x)
    _under_way.append(dist.isend(x, other))
    dist.irecv(theirs, other).wait()
    return theirs


# %% swap: receive-never-waited
# Waits for the send only, and returns a buffer that may not be filled yet.


def swap(x, other):
    theirs = torch.zeros_like(x)
    sending = dist.isend(x, other)
    dist.irecv(theirs, other)
    sending.wait()
    return theirs


# %% swap: receives-into-x
# Sends a copy and receives into x itself: right value returned, but x isn't left as it is, and the result isn't new.


def swap(x, other):
    handles = [dist.isend(x.clone(), other), dist.irecv(x, other)]
    for handle in handles:
        handle.wait()
    return x


# %% swap: turns-with-handles
# The lower rank sends and waits, then receives; the higher rank the other way round. Right value, no deadlock, but
# nobody starts both before it waits: half of the link is idle.


def swap(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.isend(x, other).wait()
        dist.irecv(theirs, other).wait()
    else:
        dist.irecv(theirs, other).wait()
        dist.isend(x, other).wait()
    return theirs


# %% swap: only-lower-rank-starts-both
# One side is right (both begun, then both waits), the other blocks in `recv` before it begins its send. It works under
# gloo, but "both ranks start both messages before they wait for either".


def swap(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        handles = [dist.isend(x, other), dist.irecv(theirs, other)]
        for handle in handles:
            handle.wait()
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap: default-dtype-buffer
# `torch.empty(x.shape)` is float32: int32, float16 and so on arrive as other numbers, 8-byte types kill the process.


def swap(x, other):
    theirs = torch.empty(x.shape, device=x.device)
    ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, theirs, other)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


# %% swap: by-all-gather
# A collective of all ranks, of which it takes the partner's row. Right value, but not "one message each way": everybody
# gets everything, and all ranks must call.


def swap(x, other):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    return everything[other]


# %% swap: partner-is-rank-xor-one
# Takes `rank ^ 1` for the partner and never looks at `other`: wrong for all pairs but (0, 1), (2, 3), ...


def swap(x, other):
    theirs = torch.empty_like(x)
    partner = dist.get_rank() ^ 1
    ops = [dist.P2POp(dist.isend, x, partner), dist.P2POp(dist.irecv, theirs, partner)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


# %% swap: two-halves
# All begun before any wait, but x goes in two pieces: two messages each way instead of one, where x has more than one
# number.


def swap(x, other):
    theirs = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, part, other) for part in x.view(-1).chunk(2)]
    ops += [dist.P2POp(dist.irecv, part, other) for part in theirs.view(-1).chunk(2)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


# %% swap: any-stops-after-the-first-wait
# `any(...)` over the waits stops at the first one that returns True: the receive, which is second, isn't waited for.


def swap(x, other):
    theirs = torch.zeros_like(x)
    handles = [dist.isend(x, other), dist.irecv(theirs, other)]
    any(handle.wait() for handle in handles)
    return theirs


# %% swap: gives-up-after-20-ms
# Waits at most 20 milliseconds for each message and swallows the error: where the partner comes late, the buffer is
# returned as it was. Right as long as both are in time.


def swap(x, other):
    theirs = torch.zeros_like(x)
    for handle in [dist.isend(x, other), dist.irecv(theirs, other)]:
        try:
            handle.wait(datetime.timedelta(milliseconds=20))
        except RuntimeError:
            pass
    return theirs


# %% swap: returns-what-it-sent
# Both messages are right, and the wrong tensor is returned.


def swap(x, other):
    y = x.clone()
    works = [dist.isend(x, other), dist.irecv(y, other)]
    for work in works:
        work.wait()
    return x


# %% swap: a-generator-that-nobody-runs
# The expression describes the waiting, and nothing goes through it.


def swap(x, other):
    y = torch.empty_like(x)
    works = (dist.irecv(y, other), dist.isend(x, other))
    (work.wait() for work in works)
    return y


# %% swap: two-sends
# The second line was copied from the first, and one word was forgotten.


def swap(x, other):
    y = torch.empty_like(x)
    first = dist.isend(x, other)
    second = dist.isend(y, other)
    first.wait()
    second.wait()
    return y


# %% shift: other-direction
# Sends to `rank - by` and receives from `rank + by`: rank 0 gets that of rank 1, not of rank 3. Right on two ranks.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank - by) % n),
        dist.P2POp(dist.irecv, result, (rank + by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: only-zero-is-own
# Tests `by == 0` for "gets its own x": for by = n or -n (or 2n) it sends to itself, which gloo cannot.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by == 0:
        return x.clone()
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, result, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: returns-x-itself
# Where a rank gets its own x it returns x, and not "a copy": who writes into the result changes x.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, result, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: world-of-four
# The 4 of the example in place of the world size.


def shift(x, by):
    rank = dist.get_rank()
    if by % 4 == 0:
        return x.clone()
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % 4),
        dist.P2POp(dist.irecv, result, (rank - by) % 4),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: one-place-at-a-time
# Shifts by one place `by % n` times: the right result, but several messages out and in where the goal wants one.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    here = x.clone()
    for _ in range(by % n):
        came = torch.empty_like(x)
        ops = [
            dist.P2POp(dist.isend, here, (rank + 1) % n),
            dist.P2POp(dist.irecv, came, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        here = came
    return here


# %% shift: without-batch
# Separate isend and irecv: right under gloo, but the goal says "by batch_isend_irecv" (under NCCL the two would be
# queued one after the other).


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    result = torch.empty_like(x)
    handles = [dist.isend(x, (rank + by) % n), dist.irecv(result, (rank - by) % n)]
    for handle in handles:
        handle.wait()
    return result


# %% shift: waits-for-the-last-handle
# Waits for the last handle of the batch only, as if the list ended together: under gloo the send (the first) is still
# under way, and x still belongs to it, when the function returns.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, result, (rank - by) % n),
    ]
    dist.batch_isend_irecv(ops)[-1].wait()
    return result


# %% shift: one-turn-at-most
# Adds or subtracts the world size once instead of taking the rest: right for -n <= by <= n, and no rank of the world
# for larger ones.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()

    def around(place):
        if place < 0:
            return place + n
        return place - n if place >= n else place

    if around(rank + by) == rank:
        return x.clone()
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, around(rank + by)),
        dist.P2POp(dist.irecv, result, around(rank - by)),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: forgets-the-sign
# Takes abs(by): a negative shift goes the same way as a positive one. Right for by >= 0 (and for n / 2).


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    by = abs(by) % n
    if by == 0:
        return x.clone()
    result = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, result, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: one-buffer-for-all-calls
# A buffer that is kept between calls: `shift(shift(x, 1), 1)` receives into the tensor that it is sending, so the
# second call changes its x, and earlier results change as well.

_kept = {}


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    result = _kept.setdefault((x.shape, x.dtype), torch.empty_like(x))
    ops = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, result, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: receives-into-x
# Sends a copy and receives into x: the result is right, but "x stays as it is" is broken (except where it gets its
# own).


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    out = x.clone()
    if by % n == 0:
        return out
    ops = [dist.P2POp(dist.isend, out, (rank + by) % n), dist.P2POp(dist.irecv, x, (rank - by) % n)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return x


# %% shift: left-is-right-means-own
# Takes "to and from the same rank" for "gets its own x". On two ranks with by = 1, or on four with by = 2, both
# neighbours are the same rank, and it isn't this one: it returns its own x.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    to, source = (rank + by) % n, (rank - by) % n
    if to == source:
        return x.clone()
    result = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, result, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return result


# %% shift: ranks-by-index
# Python's negative indices wrap once; those that are too large do not.


def shift(x, by):
    rank, ranks = dist.get_rank(), list(range(dist.get_world_size()))
    if by % len(ranks) == 0:
        return x.clone()
    to, source = ranks[rank + by - len(ranks)], ranks[rank - by]
    y = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y


# %% shift: one-buffer-both-ways
# A copy is sent and received into at the same time.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    y = x.clone()
    if by % n:
        ops = [
            dist.P2POp(dist.irecv, y, (rank - by) % n),
            dist.P2POp(dist.isend, y, (rank + by) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    return y


# %% shift: by-held-in-the-world
# What is larger than the world is taken for its largest number.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    by = max(-n, min(by, n))
    if by % n == 0:
        return x.clone()
    y = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, (rank + by) % n), dist.P2POp(dist.irecv, y, (rank - by) % n)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y


# %% one_way: not-halved
# Returns the time of the round trip, which is two messages.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return statistics.median(times) if dist.get_rank() == 0 else None


# %% one_way: mean
# The mean in place of the median: one late message moves it.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return statistics.mean(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: warm-up-is-counted
# Makes repeats + 1 round trips, but keeps the time of the first one as well: the trip that makes the connection isn't
# to count.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for _ in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - begin)
    return statistics.median(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: no-warm-up
# Only the `repeats` timed round trips, without the one before them that makes the connection.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for _ in range(repeats):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - begin)
    return statistics.median(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: all-trips-in-one-time
# One time around the whole loop, divided by the trips: that's a mean, and the trips aren't "each timed by itself".


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())

    def trip():
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)

    trip()
    begin = now()
    for _ in range(repeats):
        trip()
    seconds = now() - begin
    return seconds / (2 * repeats) if dist.get_rank() == 0 else None


# %% one_way: nbytes-over-four-floats
# `nbytes // 4` float32: that's `nbytes` bytes only for multiples of four (0 bytes for 1, 2 and 3).


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes // 4, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return statistics.median(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: clock-without-synchronize
# Takes the begin with `time.perf_counter()` and only the end with `now()`: "Take every time with now()" (on a GPU the
# begin would lie before what is still queued).


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return statistics.median(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: times-only-the-send
# Stops the clock after `send` and takes that for one way. The messages are all made, but no round trip is timed: when
# a send returns is not when the message is there (a library may buffer it).


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        if dist.get_rank() == 0:
            begin = now()
            dist.send(x, 1)
            seconds = now() - begin
            dist.recv(x, 1)
            if turn:
                times.append(seconds)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
    return statistics.median(times) if dist.get_rank() == 0 else None


# %% one_way: warm-up-is-one-of-the-repeats
# Makes `repeats` round trips in all and drops the first: only repeats - 1 are timed (and none with repeats = 1).


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for _ in range(repeats):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - begin)
    return statistics.median(times[1:]) / 2 if dist.get_rank() == 0 else None


# %% one_way: barrier-inside-the-time
# A barrier after the clock has started, so that both begin together: its messages are timed, too.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        dist.barrier()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return statistics.median(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: microseconds
# Returns microseconds, as the cells below print them; the goal wants seconds.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return 1e6 * statistics.median(times) / 2 if dist.get_rank() == 0 else None


# %% one_way: divided-by-the-repeats
# Each trip was timed by itself, and the median is divided by how many there were, too.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for _ in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - begin)
    return statistics.median(times[1:]) / 2 / repeats


# %% one_way: short-answer
# The answer is one byte, as if only the way there counted.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    short = torch.zeros(1, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(short, 1)
        else:
            dist.recv(x, 0)
            dist.send(short, 0)
        if turn:
            times.append((now() - begin) / 2)
    return statistics.median(times)


# %% one_way: list-of-times
# All times, and not their median.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        if turn:
            times.append((now() - begin) / 2)
    return times


# %% relay: last-sends-to-first
# Closes the ring: the last rank sends to rank 0, which doesn't receive; its send never ends.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        handles.append(dist.isend(piece, (rank + 1) % n))
    for handle in handles:
        handle.wait()


# %% relay: blocking-send
# `send` in place of `isend`: the data is right, but a rank can't receive the next piece "while it is still sending".


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            dist.send(piece, rank + 1)


# %% relay: store-and-forward
# Receives all pieces, and only then sends: nothing is passed on before the next piece is waited for, no pipeline.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.chunk(chunks)
    if rank > 0:
        for handle in [dist.irecv(piece, rank - 1) for piece in pieces]:
            handle.wait()
    if rank < n - 1:
        for handle in [dist.isend(piece, rank + 1) for piece in pieces]:
            handle.wait()


# %% relay: only-last-send-waited
# Waits for the last send only. Mostly the earlier ones are done by then, but until their own wait() has returned their
# pieces belong to the messages.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handle = None
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            handle = dist.isend(piece, rank + 1)
    if handle is not None:
        handle.wait()


# %% relay: split-in-place-of-chunk
# `x.split(chunks)` makes pieces of `chunks` rows each, not `chunks` pieces: right only where both numbers agree, as for
# 16 rows in 4 pieces.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for piece in x.split(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: receives-into-copies
# Clones the pieces "for safety": the data goes all the way along the chain, but x itself keeps its old numbers on all
# ranks but 0.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for piece in [part.clone() for part in x.chunk(chunks)]:
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: loses-the-rest
# Pieces of `len(x) // chunks`: where the length is no multiple of chunks, the last elements are never sent.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    size = len(x) // chunks
    handles = []
    for number in range(chunks):
        piece = x[number * size : (number + 1) * size]
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: chain-of-four
# "Four GPUs are in a row": the last rank is 3. With fewer ranks the last one sends to nobody, with more the others get
# nothing.


def relay(x, chunks):
    rank = dist.get_rank()
    handles = []
    for piece in x.chunk(chunks):
        if 0 < rank <= 3:
            dist.recv(piece, rank - 1)
        if rank < 3:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: barrier-at-the-end
# A barrier after all, so that "afterwards all have it": but "it makes no other calls".


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()
    dist.barrier()


# %% relay: passes-on-one-late
# Sends a piece only when the following one has come: right data, all asynchronous, but it waits for the next piece
# before it passes this one on, so each hop costs a piece more.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles, ready = [], []
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        ready.append(piece)
        if len(ready) > 1 and rank < n - 1:
            handles.append(dist.isend(ready[-2], rank + 1))
    if ready and rank < n - 1:
        handles.append(dist.isend(ready[-1], rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: one-buffer-for-all-pieces
# Receives every piece into the same buffer, sends that on and copies it into x. The next piece is received into the
# buffer while the last one may still be sent from there: later ranks can get a wrong piece.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.chunk(chunks)
    buffer = torch.empty_like(pieces[0])
    handles = []
    for piece in pieces:
        if rank > 0:
            there = buffer[: len(piece)]
            dist.recv(there, rank - 1)
            piece.copy_(there)
        else:
            there = piece
        if rank < n - 1:
            handles.append(dist.isend(there, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: star
# Rank 0 sends every piece to every rank itself. All have the data, but each rank is to send "to the next one only".


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for piece in x.chunk(chunks):
        if rank == 0:
            handles += [dist.isend(piece, to) for to in range(1, n)]
        else:
            dist.recv(piece, 0)
    for handle in handles:
        handle.wait()


# %% relay: sends-its-own-first
# The send stands before the receive: what a rank passes on is what it had itself.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    sends = []
    for piece in x.chunk(chunks):
        if rank < n - 1:
            sends.append(dist.isend(piece.clone(), rank + 1))
        if rank > 0:
            dist.recv(piece, rank - 1)
    for send in sends:
        send.wait()


# %% relay: passes-on-before-it-came
# The send starts while the piece is still being received.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    works = []
    for piece in x.chunk(chunks):
        if rank > 0:
            works.append(dist.irecv(piece, rank - 1))
        if rank < n - 1:
            works.append(dist.isend(piece, rank + 1))
    for work in works:
        work.wait()


# %% relay: first-piece-stays
# The loop that passes on starts at the second piece.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces, sends = x.chunk(chunks), []
    receives = [dist.irecv(piece, rank - 1) for piece in pieces] if rank else []
    for i in range(1, len(pieces)):
        if rank:
            receives[i].wait()
        if rank + 1 < n:
            sends.append(dist.isend(pieces[i], rank + 1))
    for work in [*receives[:1], *sends]:
        work.wait()


# %% relay: filled-from-the-end
# The receiver puts the first piece that comes into the last place.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces, sends = x.chunk(chunks), []
    for piece in pieces if rank == 0 else reversed(pieces):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            sends.append(dist.isend(piece, rank + 1))
    for send in sends:
        send.wait()


# %% transfer: not-contiguous
# Sends x as it is: a transposed matrix isn't contiguous, and `send` refuses it.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = [KINDS.index(x.dtype), x.dim(), *x.shape] + [0] * (8 - x.dim())
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(x, dst)
    elif rank == dst:
        header = torch.empty(10, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: shape-padded-with-zeros
# Pads the shape with zeros and drops all zeros on the other side: a shape that has a 0 in it, as (3, 0), comes out as
# another one (and (0,) as a single number).

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = [KINDS.index(x.dtype), *x.shape] + [0] * (8 - x.dim())
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        header = torch.empty(9, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        kind, *shape = header.tolist()
        result = torch.empty(
            [size for size in shape if size], dtype=KINDS[kind], device=lockstep.device()
        )
        dist.recv(result, src)
        return result


# %% transfer: shape-padded-with-ones
# Pads the shape with ones at its end and drops ones at the end: (5, 1) comes out as (5,), and (1,) as a single number.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = [KINDS.index(x.dtype), *x.shape] + [1] * (8 - x.dim())
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        header = torch.empty(9, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        kind, *shape = header.tolist()
        while shape and shape[-1] == 1:
            shape.pop()
        result = torch.empty(shape, dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: type-by-size
# Sends the size of an element and whether it's a float: float16 and bfloat16 have both the same, so a bfloat16 comes
# out as a float16. The other five types are right.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = [x.element_size(), int(x.is_floating_point()), x.dim(), *x.shape] + [0] * (
            8 - x.dim()
        )
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        header = torch.empty(11, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        size, floats, dims, *shape = header.tolist()
        for kind in KINDS:
            if kind.itemsize == size and kind.is_floating_point == bool(floats):
                break
        result = torch.empty(shape[:dims], dtype=kind, device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: travels-as-float64
# Everything travels as float64 and is converted back: int64 above 2**53 changes its value.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = [KINDS.index(x.dtype), x.dim(), *x.shape] + [0] * (8 - x.dim())
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(x.double().contiguous(), dst)
    elif rank == dst:
        header = torch.empty(10, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=torch.float64, device=lockstep.device())
        dist.recv(result, src)
        return result.to(KINDS[kind])


# %% transfer: sizes-in-int16
# The header is int16 "to save bytes": a dimension of 32768 or more doesn't fit ("any shape").

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = torch.tensor([KINDS.index(x.dtype), x.dim(), *x.shape] + [0] * (8 - x.dim()))
        dist.send(header.to(torch.int16).to(lockstep.device()), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        header = torch.empty(10, dtype=torch.int16, device=lockstep.device())
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: pickled
# `send_object_list` does it all: right result, but the data travels inside of a pickle, not "as a tensor".

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        dist.send_object_list([x.contiguous()], dst)
    elif rank == dst:
        box = [None]
        dist.recv_object_list(box, src)
        return box[0]


# %% transfer: header-by-broadcast
# The header goes by `broadcast`, so that all ranks must take part: "all other ranks call nothing" (on two ranks nobody
# sees it).

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    header = torch.zeros(10, dtype=torch.int64, device=lockstep.device())
    if rank == src:
        values = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(values)] = torch.tensor(values)
    dist.broadcast(header, src)
    if rank == src:
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: a-message-for-each-dimension
# The type, the number of dimensions and then each dimension in a message of its own: with three dimensions or more
# that's more than "at most four" beside the data.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        for value in [KINDS.index(x.dtype), x.dim(), *x.shape]:
            dist.send(torch.tensor([value], device=lockstep.device()), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:

        def number():
            value = torch.empty(1, dtype=torch.int64, device=lockstep.device())
            dist.recv(value, src)
            return int(value)

        kind, dims = number(), number()
        shape = [number() for _ in range(dims)]
        result = torch.empty(shape, dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: six-dimensions
# A header of eight numbers in all, two of which are the type and the number of dimensions: seven and eight dimensions
# don't fit.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    header = torch.zeros(8, dtype=torch.int64, device=lockstep.device())
    if rank == src:
        header[0], header[1] = KINDS.index(x.dtype), x.dim()
        for place, size in enumerate(x.shape[:6]):
            header[2 + place] = size
        dist.send(header, dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: order-of-memory
# Makes a transposed tensor sendable by taking its memory in order (`as_strided`), and not by `contiguous()`: the
# numbers of a transposed matrix come in another order. Contiguous tensors are right.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = [KINDS.index(x.dtype), x.dim(), *x.shape] + [0] * (8 - x.dim())
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(torch.as_strided(x, (x.numel(),), (1,)), dst)
    elif rank == dst:
        header = torch.empty(10, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: scalar-becomes-a-row
# `torch.atleast_1d` before it starts, so that there's always a dimension: a tensor with none, shape (), comes out as
# shape (1,).

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        x = torch.atleast_1d(x)
        header = [KINDS.index(x.dtype), x.dim(), *x.shape] + [0] * (8 - x.dim())
        dist.send(torch.tensor(header, device=lockstep.device()), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        header = torch.empty(10, dtype=torch.int64, device=lockstep.device())
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        result = torch.empty(shape[:dims], dtype=KINDS[kind], device=lockstep.device())
        dist.recv(result, src)
        return result


# %% transfer: sizes-in-one-byte-each
# A uint8 holds 0 to 255: larger sizes wrap.


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    head = torch.zeros(10, dtype=torch.uint8, device=device)
    if rank == src:
        head[0], head[1] = KINDS.index(x.dtype), x.dim()
        for i, size in enumerate(x.shape):
            head[2 + i] = size % 256
        dist.send(head, dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        dist.recv(head, src)
        kind, dims, *shape = head.tolist()
        y = torch.empty(shape[:dims], dtype=KINDS[kind], device=device)
        dist.recv(y, src)
        return y


# %% transfer: all-in-a-row
# The number of numbers and their type: the shape is not told.


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    head = torch.zeros(2, dtype=torch.int64, device=device)
    if rank == src:
        head[0], head[1] = x.numel(), KINDS.index(x.dtype)
        dist.send(head, dst)
        dist.send(x.reshape(-1), dst)
    elif rank == dst:
        dist.recv(head, src)
        y = torch.empty(int(head[0]), dtype=KINDS[int(head[1])], device=device)
        dist.recv(y, src)
        return y


# %% transfer: matrices-only
# A header for two sizes.


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    if rank == src:
        rows, columns = x.shape
        head = torch.tensor([KINDS.index(x.dtype), rows, columns], device=device)
        dist.send(head, dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        head = torch.zeros(3, dtype=torch.int64, device=device)
        dist.recv(head, src)
        kind, rows, columns = head.tolist()
        y = torch.empty((rows, columns), dtype=KINDS[kind], device=device)
        dist.recv(y, src)
        return y


# %% transfer: shape-turned-round
# Sizes come out in the opposite order.


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    if rank == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        dist.send(torch.tensor(about + [0] * (10 - len(about)), device=device), dst)
        dist.send(x.contiguous(), dst)
    if rank == dst:
        head = torch.zeros(10, dtype=torch.int64, device=device)
        dist.recv(head, src)
        head = head.tolist()
        kind, dims, sizes = head[0], head[1], head[2:]
        y = torch.empty(
            [sizes[dims - 1 - i] for i in range(dims)], dtype=KINDS[kind], device=device
        )
        dist.recv(y, src)
        return y


# %% transfer: sizes-in-float16
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.float16, device=lockstep.device())
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = [int(v) for v in header.tolist()]
        x = torch.empty(shape[:dim], dtype=KINDS[kind], device=header.device)
        dist.recv(x, src)
        return x


# %% swap: flat-buffer
# The numbers come, the shape does not.
def swap(x, other):
    theirs = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
    handles = [dist.irecv(theirs, other), dist.isend(x, other)]
    for handle in handles:
        handle.wait()
    return theirs


# %% shift: wrapped-once
# Adds or takes away the world's size once: not enough for a large `by`.
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    to, source = rank + by, rank - by
    to = to - n if to >= n else to + n if to < 0 else to
    source = source - n if source >= n else source + n if source < 0 else source
    if to == rank:
        return x.clone()
    y = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y


# %% one_way: quarter-as-many-floats
# The last one to three bytes are left out where nbytes is no multiple of 4.
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes // 4, dtype=torch.float32, device=lockstep.device())
    times = []
    for _ in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - begin)
    return statistics.median(times[1:]) / 2


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% swap_in_turn: barrier-between-the-turns
# "Only send and recv".
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    turns = [lambda: dist.send(x, other), lambda: dist.recv(theirs, other)]
    first, second = turns if dist.get_rank() < other else turns[::-1]
    first()
    dist.barrier()
    second()
    return theirs


# %% one_way: barrier-as-warm-up
# A barrier is no round trip of a message.
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    dist.barrier()
    times = []
    for _ in range(repeats):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - begin)
    return statistics.median(times) / 2


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% relay: sends-before-it-receives-on
# Waits for each send before it begins to receive the next piece.
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sending = None
    for piece in x.chunk(chunks):
        if sending is not None:
            sending.wait()
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < last:
            sending = dist.isend(piece, rank + 1)
    if sending is not None:
        sending.wait()


# %% swap_in_turn: halves-of-the-world
# The lower half sends first: a pair within one half hangs.
def swap_in_turn(x, other):
    theirs = torch.zeros_like(x)
    first = dist.get_rank() < dist.get_world_size() // 2
    for sending in (first, not first):
        if sending:
            dist.send(x, other)
        else:
            dist.recv(theirs, other)
    return theirs


# %% swap_in_turn: from-anybody
# Receives without a source, and takes what comes first.
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() > other:
        dist.recv(theirs, other)
        dist.send(x, other)
        theirs += 0 * x
    else:
        dist.send(x, other)
        theirs = x.clone()
        dist.recv(theirs.float(), other)
    return theirs


# %% swap_in_turn: through-numpy
# from_numpy() shares memory with x: both are the partner's.
def swap_in_turn(x, other):
    theirs = torch.from_numpy(np.asarray(x))
    mine = x.clone()
    if dist.get_rank() < other:
        dist.send(mine, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    return theirs


# %% swap: second-wait-in-a-finally-that-never-comes
# Returns within the loop over the handles: the second is not waited for.
def swap(x, other):
    theirs = torch.empty_like(x)
    for work in (dist.irecv(theirs, other), dist.isend(x, other)):
        work.wait()
        return theirs


# %% swap: all-but-the-last-element
# Sends views without the last row.
def swap(x, other):
    theirs = x.clone()
    ops = [dist.P2POp(dist.isend, x[:-1], other), dist.P2POp(dist.irecv, theirs[:-1], other)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


# %% swap: exchanged-by-a-collective
# all_gather in place of one message each way.
def swap(x, other):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return every[other]


# %% swap: a-sum-less-its-own
# One all_reduce of what lies at two places would do, but this adds up all pairs.
def swap(x, other):
    total = x.clone()
    dist.all_reduce(total)
    return total - x


# %% shift: step-by-step
# Goes round by one place `by` times: many messages.
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    here = x.clone()
    for _ in range(by % n):
        theirs = torch.empty_like(here)
        ops = [
            dist.P2POp(dist.isend, here, (rank + 1) % n),
            dist.P2POp(dist.irecv, theirs, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        here = theirs
    return here


# %% shift: fmod-keeps-the-sign
# math.fmod-like remainder: negative ranks.
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    by = int(np.fmod(by, n))
    if by == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    to, source = rank + by, rank - by
    ops = [
        dist.P2POp(dist.isend, x, to if to < n else to - n),
        dist.P2POp(dist.irecv, theirs, source if source >= 0 else source + n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


# %% shift: by-absolute-value
# The direction of a negative shift is lost.
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    by = abs(by) % n
    theirs = x.clone()
    if by:
        ops = [
            dist.P2POp(dist.isend, x, (rank + by) % n),
            dist.P2POp(dist.irecv, theirs, (rank - by) % n),
        ]
        [work.wait() for work in dist.batch_isend_irecv(ops)]
    return theirs


# %% one_way: half-of-the-median-of-sums
# Divides by the repeats, too, as if they had been timed together.
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    me = dist.get_rank()
    times = []
    for _ in range(repeats + 1):
        began = now()
        if me == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        times.append(now() - began)
    return statistics.median(times[1:]) / 2 / repeats


# %% one_way: floats-instead-of-bytes
# nbytes elements of four bytes each.
def one_way(nbytes, repeats):
    x = torch.ones(nbytes, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        began = now()
        if dist.get_rank():
            dist.recv(x, 0)
            dist.send(x, 0)
        else:
            dist.send(x, 1)
            dist.recv(x, 1)
        if turn:
            times.append((now() - began) / 2)
    return statistics.median(times)


# %% one_way: sorted-middle-of-the-first-half
# The "median" is a quarter's.
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())

    def trip():
        began = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        return now() - began

    trip()
    times = sorted(trip() for _ in range(repeats))
    return times[len(times) // 4] / 2


# %% relay: receives-all-then-passes-on
# No pipeline: each rank has everything before it sends anything.
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pieces = x.chunk(chunks)
    if rank > 0:
        for piece in pieces:
            dist.recv(piece, rank - 1)
    if rank < last:
        for work in [dist.isend(piece, rank + 1) for piece in pieces]:
            work.wait()


# %% relay: generator-never-consumed
# The sends stand in a generator that nobody runs.
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    for piece in x.chunk(chunks):
        if rank:
            dist.irecv(piece, rank - 1).wait()
        (dist.isend(piece, rank + 1).wait() for _ in range(1) if rank + 1 < n)


# %% relay: tensor-split
# tensor_split cuts other sizes on one rank than chunk does on the others.
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.tensor_split(chunks) if rank == 0 else x.chunk(chunks)
    works = []
    for piece in pieces:
        if rank:
            dist.recv(piece, rank - 1)
        if rank < n - 1:
            works.append(dist.isend(piece, rank + 1))
    for work in works:
        work.wait()


# %% transfer: half-as-float
# Every type travels as float32, and comes back as what it was.
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        head = torch.tensor([KINDS.index(x.dtype), x.dim(), *x.shape, *[0] * (8 - x.dim())])
        dist.send(head, dst)
        dist.send(x.contiguous().float(), dst)
    if rank == dst:
        head = torch.zeros(10, dtype=torch.int64)
        dist.recv(head, src)
        kind, dims, *shape = head.tolist()
        y = torch.empty(shape[:dims])
        dist.recv(y, src)
        return y.to(KINDS[kind])


# %% transfer: object-list
# send_object_list sends the whole tensor pickled.
def transfer(x, src, dst):
    if dist.get_rank() == src:
        dist.send_object_list([x], dst)
    elif dist.get_rank() == dst:
        got = [None]
        dist.recv_object_list(got, src)
        return got[0]


# %% transfer: strides-forgotten
# Sends the storage as it lies, and shapes it: a transposed tensor is scrambled.
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        about = pickle.dumps((tuple(x.shape), KINDS.index(x.dtype))).ljust(200, b"\0")
        dist.send(torch.frombuffer(bytearray(about), dtype=torch.uint8), dst)
        flat = x.as_strided((x.numel(),), (1,))
        dist.send(flat, dst)
    elif rank == dst:
        about = torch.empty(200, dtype=torch.uint8)
        dist.recv(about, src)
        shape, kind = pickle.loads(bytes(about.tolist()))
        y = torch.empty(shape, dtype=KINDS[kind])
        dist.recv(y.view(-1), src)
        return y


# %% transfer: sizes-in-a-byte
# A header of uint8: no side may be longer than 255.
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        header = struct.pack("10B", KINDS.index(x.dtype), x.dim(), *x.shape, *[0] * (8 - x.dim()))
        dist.send(torch.tensor(list(header), dtype=torch.uint8), dst)
        dist.send(x.contiguous(), dst)
    if rank == dst:
        header = torch.zeros(10, dtype=torch.uint8)
        dist.recv(header, src)
        kind, dims, *shape = header.tolist()
        y = torch.empty(shape[:dims], dtype=KINDS[kind])
        dist.recv(y, src)
        return y
