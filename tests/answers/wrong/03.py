"""Wrong answers to the exercises of lab 03, written without sight of its checks; see judge.py."""

import math

import torch
import torch.distributed as dist
import numpy as np

def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% global_mean: mean-of-means
# Averages the ranks' means: right only where all ranks have equally many values.


def global_mean(values):
    mean = values.mean() if values.numel() else torch.zeros((), device=values.device)
    total = mean.clone().double()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).item()


# %% global_mean: mean-times-count
# Gets the sum back as mean times count. Without values the mean is NaN, and NaN times 0 is NaN: one empty rank spoils
# the result for all.


def global_mean(values):
    count = values.numel()
    pair = torch.tensor(
        [values.double().mean() * count, count], dtype=torch.float64, device=values.device
    )
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: two-calls
# Sum and count in a collective call each: the right mean, by two calls and not "exactly one".


def global_mean(values):
    total = values.double().sum()
    count = torch.tensor(float(values.numel()), dtype=torch.float64, device=values.device)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


# %% global_mean: returns-a-tensor
# Right value, but a tensor with no dimension and not a Python float.


def global_mean(values):
    pair = torch.tensor(
        [values.double().sum(), values.numel()], dtype=torch.float64, device=values.device
    )
    dist.all_reduce(pair)
    return pair[0] / pair[1]


# %% global_mean: running-sum-in-place
# Takes the sum as the end of a running sum, written over `values` (`cumsum_`): "values stays what it is" is broken where
# there are two or more.


def global_mean(values):
    count = values.numel()
    total = float(values.cumsum_(0)[-1]) if count else 0.0
    pair = torch.tensor([total, count], dtype=torch.float64, device=values.device)
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: reduce-to-rank-zero
# `reduce` to rank 0, and all return the quotient: the others have partial sums, "on every rank" fails (gloo leaves sums
# in them that look plausible).


def global_mean(values):
    pair = torch.tensor(
        [values.double().sum(), values.numel()], dtype=torch.float64, device=values.device
    )
    dist.reduce(pair, dst=0)
    return (pair[0] / pair[1]).item()


# %% global_mean: no-values-no-call
# A rank without values returns at once and skips the call: the others wait for it (and it returns 0.0).


def global_mean(values):
    if values.numel() == 0:
        return 0.0
    pair = torch.tensor(
        [values.double().sum(), values.numel()], dtype=torch.float64, device=values.device
    )
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: sum-cut-to-whole-numbers
# Puts the sum beside the count into an int64 tensor, which cuts off what is behind the point. Right for losses that
# are whole numbers.


def global_mean(values):
    pair = torch.tensor(
        [int(values.sum()), values.numel()], dtype=torch.int64, device=values.device
    )
    dist.all_reduce(pair)
    return pair[0].item() / pair[1].item()


# %% global_mean: forgotten-wait
# `async_op=True`, and the pair is read without wait(): it may be this rank's own mean still.


def global_mean(values):
    pair = torch.tensor(
        [values.double().sum(), values.numel()], dtype=torch.float64, device=values.device
    )
    dist.all_reduce(pair, async_op=True)
    return (pair[0] / pair[1]).item()


# %% global_mean: none-counts-as-one
# `max(1, count)`, to be safe from dividing by zero: a rank with no values counts as if it had one value of 0. Right
# while every rank has some.


def global_mean(values):
    count = max(1, values.numel())
    pair = torch.tensor([values.double().sum(), count], dtype=torch.float64, device=values.device)
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: zeros-not-counted
# Counts with `count_nonzero`: a loss of exactly 0 is a value, too, and isn't counted here.


def global_mean(values):
    count = values.count_nonzero()
    pair = torch.stack([values.double().sum(), count.double()])
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: one-rank-divides-by-its-own-count
# Sends only the sum, and takes "ranks times my count" for the count of all: right where all have equally many, and an
# error or another mean on every rank where they do not.


def global_mean(values):
    total = values.double().sum()
    dist.all_reduce(total)
    return total.item() / max(1, values.numel() * dist.get_world_size())


# %% global_mean: mean-over-ranks-that-have-some
# The mean of means of the ranks that have values: each of them counts the same.


def global_mean(values):
    some = len(values) > 0
    pair = torch.tensor([values.mean().item() if some else 0.0, float(some)], dtype=torch.float64)
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: in-half-precision
# Sum and count travel as float16, which has three digits.


def global_mean(values):
    pair = torch.tensor([values.sum().item(), len(values)], dtype=torch.float16)
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% global_mean: own-count-for-all
# As many values on each rank as here.


def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return (total / (len(values) * dist.get_world_size())).item()


# %% global_mean: median-of-all
# Another middle.


def global_mean(values):
    n = dist.get_world_size()
    parts = [torch.full((1000,), float("nan"), dtype=values.dtype) for _ in range(n)]
    mine = torch.full((1000,), float("nan"), dtype=values.dtype)
    mine[: len(values)] = values
    dist.all_gather(parts, mine)
    return torch.cat(parts).nanmedian().item()


# %% global_mean: gathers-a-hundred-places
def global_mean(values):
    n = dist.get_world_size()
    mine = torch.full((100,), float("nan"), dtype=values.dtype)
    mine[: len(values)] = values[:100]
    every = torch.empty(n * 100, dtype=values.dtype)
    dist.all_gather_into_tensor(every, mine)
    return every[~every.isnan()].mean().item()


# %% two_step_all_reduce: returns-the-sum
# Gathers into new tensors and returns them as one: x itself isn't changed ("leaves the sum ... in x").


def two_step_all_reduce(x):
    n = dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    parts = [torch.empty_like(part) for _ in range(n)]
    dist.all_gather(parts, part)
    return torch.cat(parts)


# %% two_step_all_reduce: own-chunk-not-written
# Gathers into new tensors and writes back those of the other ranks, "as my own is there already": it's in `part`, and
# x's own chunk keeps this rank's numbers.


def two_step_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    parts = [torch.empty_like(part) for _ in range(n)]
    dist.all_gather(parts, part)
    for other in range(n):
        if other != rank:
            chunks[other].copy_(parts[other])


# %% two_step_all_reduce: default-dtype-part
# `torch.empty(len(x) // n)` is float32: "any dtype" fails for all others.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.empty(len(x) // n, device=x.device)
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks, part)


# %% two_step_all_reduce: one-reduce-for-each-rank
# The first step is a `reduce` to each rank in turn: right sum, but N calls in place of one reduce_scatter.


def two_step_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    for root in range(n):
        piece = chunks[root].clone()
        dist.reduce(piece, dst=root)
        if root == rank:
            part = piece
    dist.all_gather(chunks, part)


# %% two_step_all_reduce: own-chunk-first
# Believes that the first tensor of the list is this rank's: the list for all_gather begins at its own chunk. Only
# rank 0 has all in the right places (and every rank, where the chunks are alike).


def two_step_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks[rank:] + chunks[:rank], part)


# %% two_step_all_reduce: all-to-all-and-add
# Exchanges the chunks by all_to_all_single and adds them up itself: right sum and as many bytes, but there's no
# reduce_scatter.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    came = torch.empty_like(x)
    dist.all_to_all_single(came, x)
    part = came.view(n, -1).sum(0).to(x.dtype)
    dist.all_gather(list(x.chunk(n)), part)


# %% two_step_all_reduce: average
# Divides its part by the number of ranks, as for gradients: the mean and not the sum.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    part = (part / n).to(x.dtype)
    dist.all_gather(chunks, part)


# %% two_step_all_reduce: by-way-of-float64
# Reduces and gathers a float64 copy: more bytes than x's own (for most types), and int64 above 2**53 is wrong.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    wide = x.double()
    chunks = list(wide.chunk(n))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks, part)
    x.copy_(wide)


# %% two_step_all_reduce: gathers-before-wait
# reduce_scatter with `async_op=True`; its wait() comes after the all_gather has begun, so `part` is read while it
# belongs to the backend.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.zeros_like(chunks[0])
    first = dist.reduce_scatter(part, chunks, async_op=True)
    second = dist.all_gather(chunks, part, async_op=True)
    first.wait()
    second.wait()


# %% two_step_all_reduce: gathers-all-of-x
# Writes its part into x and gathers all of x from everybody, to take one chunk of each: the right sum, but N times the
# bytes of "one all_gather of a part".


def two_step_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    chunks[rank].copy_(part)
    everything = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(everything, x)
    for other in range(n):
        chunks[other].copy_(everything[other].chunk(n)[other])


# %% two_step_all_reduce: every-nth-element
# Scatters by every N-th element (x[0::n] to rank 0, ...) but gathers into chunks that lie together: the sums are at
# other places. Right where all elements are equal.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    combs = [x[start::n].contiguous() for start in range(n)]
    part = torch.empty_like(combs[0])
    dist.reduce_scatter(part, combs)
    dist.all_gather(list(x.chunk(n)), part)


# %% two_step_all_reduce: two-halves
# Each step in two calls, for the first and the second half of every chunk: right sum, but the goal says one
# reduce_scatter and one all_gather.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    rows = x.view(n, -1)
    middle = rows.shape[1] // 2
    for columns in (rows[:, :middle], rows[:, middle:]):
        pieces = [row.contiguous() for row in columns]
        part = torch.empty_like(pieces[0])
        dist.reduce_scatter(part, pieces)
        dist.all_gather(pieces, part)
        for row, piece in zip(columns, pieces):
            row.copy_(piece)


# %% two_step_all_reduce: four-ranks
# The number of ranks is the notebook's.


def two_step_all_reduce(x):
    parts = list(x.chunk(4))
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts)
    dist.all_gather(parts, mine)


# %% two_step_all_reduce: as-long-as-there-are-ranks
# A part has as many numbers as there are ranks, in place of the other way round.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    mine = x.new_empty(n)
    dist.reduce_scatter(mine, list(x.split(n)))
    dist.all_gather(list(x.split(n)), mine)


# %% two_step_all_reduce: own-part-once-more
# The rank's own numbers are added to a sum that has them.


def two_step_all_reduce(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = list(x.chunk(n))
    mine = torch.zeros_like(parts[rank])
    dist.reduce_scatter(mine, [part.clone() for part in parts])
    mine += parts[rank]
    dist.all_gather(parts, mine)


# %% two_step_all_reduce: largest
# The operation is the maximum.


def two_step_all_reduce(x):
    parts = list(x.chunk(dist.get_world_size()))
    mine = torch.zeros_like(parts[0])
    dist.reduce_scatter(mine, parts, op=dist.ReduceOp.MAX)
    dist.all_gather(parts, mine)


# %% ring_all_reduce: second-half-one-off
# In the second half it begins with the chunk that it sent last (rank + 2) in place of the one that it completed
# (rank + 1): a partial sum goes round.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank + 2 - step) % n], right, chunks[(rank + 1 - step) % n], left)


# %% ring_all_reduce: one-step-too-many
# The second half has n steps in place of n - 1: the sum is right (the last step brings what is there already), but each
# rank sends a chunk more than predicted.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    if n > 1:
        for step in range(n):
            swap(chunks[(rank + 1 - step) % n], right, buffer, left)
            chunks[(rank - step) % n].copy_(buffer)


# %% ring_all_reduce: to-the-left
# A correct ring the other way round: rank r sends to r - 1, the goal says to r + 1 only. The same on two ranks.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank + step) % n], left, buffer, right)
        chunks[(rank + step + 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank - 1 + step) % n], left, chunks[(rank + step) % n], right)


# %% ring_all_reduce: sends-never-waited
# Keeps the handles of its sends and never waits for one, receives with wait(): "it waits for every message that it starts". Mostly right in value.


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    sends = []
    for step in range(n - 1):
        sends.append(dist.isend(chunks[(rank - step) % n], right))
        dist.irecv(buffer, left).wait()
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        sends.append(dist.isend(chunks[(rank + 1 - step) % n], right))
        dist.irecv(chunks[(rank - step) % n], left).wait()


# %% ring_all_reduce: adds-in-the-second-half
# Adds what comes in the second half, too, where complete chunks come: too large everywhere but in one chunk.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(2 * (n - 1)):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)


# %% ring_all_reduce: all-gather-for-the-second-half
# The first half is a ring, the second a collective: right sum, but the goal says "by messages alone".


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    complete = chunks[(rank + 1) % n].clone()
    # Rank r has chunk r + 1: the list begins with chunk 1.
    dist.all_gather(list(chunks[1:]) + [chunks[0]], complete)


# %% ring_all_reduce: works-on-a-copy
# Cuts a clone of x into chunks and returns the sum: x has its old numbers.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    result = x.clone()
    chunks = result.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)
    return result


# %% ring_all_reduce: whole-tensor-goes-round
# Sends all of x round the ring, n - 1 times, and adds each rank's: right sum, right neighbour, but (N - 1) times x from
# each rank (on two ranks that is as many bytes as predicted).


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    going, coming = x.clone(), torch.empty_like(x)
    for _ in range(n - 1):
        swap(going, right, coming, left)
        x += coming
        going, coming = coming, going


# %% ring_all_reduce: default-dtype-buffer
# The buffer is `torch.empty(len(x) // n)`, float32 always: what comes of another dtype is read as float32.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty(len(x) // n, device=x.device)
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer.to(x.dtype))
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)


# %% ring_all_reduce: both-directions
# Half of every chunk goes round to the right, half to the left, to use both directions of the links. Sum and bytes are
# right, but rank r also sends to r - 1.


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = x.view(n, -1)
    middle = rows.shape[1] // 2
    ways = [(rows[:, :middle], 1), (rows[:, middle:], -1)]
    buffers = [torch.empty_like(half[0]) for half, _ in ways]

    def exchange(first, adds):
        for step in range(n - 1):
            works = []
            for (half, sign), buffer in zip(ways, buffers):
                out = half[(rank + sign * (first - step)) % n]
                works += dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, out, (rank + sign) % n),
                        dist.P2POp(dist.irecv, buffer, (rank - sign) % n),
                    ]
                )
            for work in works:
                work.wait()
            for (half, sign), buffer in zip(ways, buffers):
                into = half[(rank + sign * (first - step - 1)) % n]
                into.copy_(into + buffer if adds else buffer)

    exchange(0, True)
    exchange(1, False)


# %% ring_all_reduce: chain-and-once-more-round
# The whole sum so far goes from rank 0 along the chain to the last rank, then on to rank 0 and along the chain again: to
# r + 1 only, and the sum is right, but ranks 0 to N - 3 send 2 times x, more than 2 (N - 1) / N. Enough for two ranks.


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    if n == 1:
        return
    buffer = torch.empty_like(x)
    if rank > 0:
        dist.recv(buffer, left)
        x += buffer
    dist.send(x, right)
    if rank < n - 1:
        dist.recv(x, left)
    if rank < n - 2:
        dist.send(x, right)


# %% ring_all_reduce: passes-on-only-what-came
# What came is passed on as it is: the sum of it with one's own stays here.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    out = chunks[rank].clone()
    for step in range(n - 1):
        came = torch.empty_like(out)
        swap(out, right, came, left)
        chunks[(rank - 1 - step) % n].add_(came)
        out = came
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)


# %% ring_all_reduce: the-next-chunk-each-step
# The index grows with the steps where it should fall.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank + step) % n], right, buffer, left)
        chunks[(rank + step - 1) % n] += buffer
    for step in range(n - 1):
        swap(chunks[(rank + step + 1) % n], right, chunks[(rank + step) % n], left)


# %% ring_all_reduce: parts-of-n
# `split` takes the length of a part and not how many there are to be.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.split(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank - step + 1) % n], right, chunks[(rank - step) % n], left)


# %% doubling_all_reduce: exclusive-or-with-k
# Flips with k = 1, 2, 3, ... in place of 1, 2, 4, ...: right for 2 and 4 ranks, wrong from 8 on.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(1, n.bit_length()):
        swap(x, rank ^ k, buffer, rank ^ k)
        x += buffer


# %% doubling_all_reduce: always-three-rounds
# Three rounds, as with the 8 ranks of the prediction: with fewer ranks there's no such partner, with 16 the sum isn't
# complete.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(3):
        swap(x, rank ^ 2**k, buffer, rank ^ 2**k)
        x += buffer


# %% doubling_all_reduce: natural-logarithm
# `math.log(n)` has base e: int(math.log(8)) is 2, and a round is missing (also with 2 and 4 ranks).


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(int(math.log(n))):
        swap(x, rank ^ 2**k, buffer, rank ^ 2**k)
        x += buffer


# %% doubling_all_reduce: adds-before-send-is-done
# Begins both, waits for the receive, adds into x, and waits for the send only then: x belongs to the send until its
# wait(), and the partner may get the new numbers.


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        partner = rank ^ 2**k
        sending = dist.isend(x, partner)
        dist.irecv(buffer, partner).wait()
        x += buffer
        sending.wait()


# %% doubling_all_reduce: not-in-place
# `x = x + buffer` makes a new tensor each round; the caller's x is left as it was.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        swap(x, rank ^ 2**k, buffer, rank ^ 2**k)
        x = x + buffer
    return x


# %% doubling_all_reduce: adds-up-in-float64
# Sends and adds a float64 copy, "to be exact", and copies back: int64 above 2**53 comes out wrong.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = x.double()
    buffer = torch.empty_like(total)
    for k in range(n.bit_length() - 1):
        swap(total, rank ^ 2**k, buffer, rank ^ 2**k)
        total += buffer
    x.copy_(total)


# %% doubling_all_reduce: everybody-with-everybody
# Exchanges its own x with each of the n - 1 others: right sum, but n - 1 messages and not log2(n). The same on two.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    own = x.clone()
    for k in range(1, n):
        swap(own, rank ^ k, buffer, rank ^ k)
        x += buffer


# %% doubling_all_reduce: tree
# Pairs reduce into one of the two, up to rank 0, and back down: right sum, but the ranks send different numbers of
# messages (rank 0 log2(n); its last child one up and maybe some down).


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 1
    while distance < n:
        if rank % (2 * distance) == distance:
            dist.send(x, rank - distance)
        elif rank % (2 * distance) == 0:
            dist.recv(buffer, rank + distance)
            x += buffer
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0:
            dist.send(x, rank + distance)
        elif rank % (2 * distance) == distance:
            dist.recv(x, rank - distance)


# %% doubling_all_reduce: two-messages-a-round
# Each round sends x in two halves (of the flat x): right sum, but twice as many sends as predicted (where x has two
# numbers or more).


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        for out, into in zip(x.view(-1).chunk(2), buffer.view(-1).chunk(2)):
            swap(out, rank ^ 2**k, into, rank ^ 2**k)
        x += buffer


# %% doubling_all_reduce: one-round-too-many
# The loop goes to `k <= log2(n)`: the last round doubles the distance once more, and with the partner taken modulo n
# it would be the rank itself; here the distance starts over at 1, so that everything is counted twice.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    if n == 1:
        return
    rounds = n.bit_length() - 1
    for k in range(rounds + 1):
        partner = rank ^ 2 ** (k % rounds)
        swap(x, partner, buffer, partner)
        x += buffer


# %% doubling_all_reduce: partner-by-plus
# The partner is `(rank + 2**k) % n` for sending and receiving: two ranks are each other's partner only where the
# distance is half the ring. Right for 2 ranks; a hang from 4 on.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        partner = (rank + 2**k) % n
        swap(x, partner, buffer, partner)
        x += buffer


# %% doubling_all_reduce: mean-of-each-pair
# Takes the mean of the pair in every round, as for gradients: in the end the mean of all, and not the sum.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        swap(x, rank ^ 2**k, buffer, rank ^ 2**k)
        x.copy_((x + buffer) / 2)


# %% doubling_all_reduce: two-further-each-time
# Distances 1, 3, 5 in place of 1, 2, 4.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 1
    while distance < n:
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x += buffer
        distance += 2


# %% doubling_all_reduce: neighbours-left-out
# The distances start at 2.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 2
    while distance < n:
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x += buffer
        distance *= 2


# %% doubling_all_reduce: lower-half-adds
# Of a pair only the lower rank adds; the other one keeps what it has.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        partner = rank ^ (1 << k)
        swap(x, partner, buffer, partner)
        if rank < partner:
            x += buffer


# %% flat_all_reduce: writes-into-a-reshaped-copy
# Copies the sums back by `tensor.reshape(-1)`, which is a copy where the tensor is a transposed view: those keep their
# old numbers. All contiguous tensors are right.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.reshape(-1).copy_(piece)


# %% flat_all_reduce: new-tensors-in-the-list
# Puts views of the sum into the list: the list has the sums, the tensors that the caller (or a model) holds do not.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    begin = 0
    for number, tensor in enumerate(tensors):
        tensors[number] = flat[begin : begin + tensor.numel()].view(tensor.shape)
        begin += tensor.numel()


# %% flat_all_reduce: one-call-each
# The right sums, by a call for each tensor (those that aren't contiguous by a copy): not "exactly one call".


def flat_all_reduce(tensors):
    for tensor in tensors:
        whole = tensor.contiguous()
        dist.all_reduce(whole)
        if whole is not tensor:
            tensor.copy_(whole)


# %% flat_all_reduce: padded-to-the-longest
# Pads every tensor to the longest one and stacks them: one call, right sums, but the call is larger than the tensors
# ("of their size") unless all are equally long.


def flat_all_reduce(tensors):
    longest = max(tensor.numel() for tensor in tensors)
    table = tensors[0].new_zeros(len(tensors), longest)
    for row, tensor in zip(table, tensors):
        row[: tensor.numel()] = tensor.reshape(-1)
    dist.all_reduce(table)
    for row, tensor in zip(table, tensors):
        tensor.copy_(row[: tensor.numel()].view(tensor.shape))


# %% flat_all_reduce: empty-takes-a-place
# Counts at least one number for each tensor, so that nothing is empty: with every empty tensor the call has a number
# more than the tensors have.


def flat_all_reduce(tensors):
    sizes = [max(1, tensor.numel()) for tensor in tensors]
    flat = tensors[0].new_zeros(sum(sizes))
    for room, tensor in zip(flat.split(sizes), tensors):
        room[: tensor.numel()] = tensor.reshape(-1)
    dist.all_reduce(flat)
    for room, tensor in zip(flat.split(sizes), tensors):
        tensor.copy_(room[: tensor.numel()].view(tensor.shape))


# %% flat_all_reduce: single-numbers-apart
# Single numbers (no dimension) can't be concatenated, so they go in a call of their own: two calls where there are
# some.


def flat_all_reduce(tensors):
    singles = [tensor for tensor in tensors if tensor.dim() == 0]
    others = [tensor for tensor in tensors if tensor.dim()]
    if singles:
        flat = torch.stack(singles)
        dist.all_reduce(flat)
        for tensor, value in zip(singles, flat):
            tensor.copy_(value)
    if others:
        flat = torch.cat([tensor.reshape(-1) for tensor in others])
        dist.all_reduce(flat)
        for tensor, piece in zip(others, flat.split([tensor.numel() for tensor in others])):
            tensor.copy_(piece.view(tensor.shape))


# %% flat_all_reduce: bucket-is-float32
# The bucket is float32 whatever the tensors are: wrong digits for float64 and large int64, and a call of another size.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1).float() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view(tensor.shape))


# %% flat_all_reduce: average-as-ddp
# Divides by the number of ranks, as DDP does with gradients; the goal says the sum.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat = (flat / dist.get_world_size()).to(flat.dtype)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view(tensor.shape))


# %% flat_all_reduce: copies-before-wait
# Begins the call with `async_op=True`, copies the pieces back, and waits at the end: the bucket is read while it
# belongs to the backend.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    work = dist.all_reduce(flat, async_op=True)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view(tensor.shape))
    work.wait()


# %% flat_all_reduce: packed-by-size-unpacked-by-place
# Packs the tensors in the order of their sizes, and unpacks in the order of the list: right only where the list is
# sorted by size already.


def flat_all_reduce(tensors):
    packed = sorted(tensors, key=torch.numel)
    flat = torch.cat([tensor.reshape(-1) for tensor in packed])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view(tensor.shape))


# %% flat_all_reduce: leaves-out-zeros
# Leaves out tensors that are all zero, as zeros add nothing. Which ones these are differs between ranks, and then the
# buckets have different sizes or other tensors in the same place. Right where no tensor is zero on one rank only.


def flat_all_reduce(tensors):
    some = [tensor for tensor in tensors if tensor.any()]
    flat = torch.cat([tensor.reshape(-1) for tensor in some] or [tensors[0].new_zeros(0)])
    dist.all_reduce(flat)
    for tensor, piece in zip(some, flat.split([tensor.numel() for tensor in some])):
        tensor.copy_(piece.view(tensor.shape))


# %% flat_all_reduce: transposed-comes-back-in-memory-order
# For a view that isn't contiguous it packs the numbers in their logical order (`reshape`), but writes the sums in the
# order of its transposed: right for contiguous and for symmetric ones, permuted for other transposed matrices.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        there = tensor if tensor.is_contiguous() else tensor.mT
        there.copy_(piece.view(there.shape))


# %% flat_all_reduce: counted-by-the-first-size
# An offset moves on by a tensor's length and not by how many numbers it has.


def flat_all_reduce(tensors):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].reshape(t.shape))
        at += len(t) if t.dim() else 1


# %% flat_all_reduce: shapes-side-by-side
# The tensors are put together as they are.


def flat_all_reduce(tensors):
    flat = torch.cat(tensors)
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + len(t)])
        at += len(t)


# %% flat_all_reduce: view-of-any-tensor
# A transposed view has no flat view.


def flat_all_reduce(tensors):
    flat = torch.cat([t.view(-1) for t in tensors])
    dist.all_reduce(flat)
    for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        t.copy_(part.view(t.shape))


# %% flat_all_reduce: unpacked-from-the-end
# The parts are taken from the end of a list, and the tensors from its start.


def flat_all_reduce(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    at = flat.numel()
    for t in tensors:
        t.copy_(flat[at - t.numel() : at].view(t.shape))
        at -= t.numel()


# %% two_step_all_reduce: first-step-not-waited-for
# The second step may send a part that is not finished.
def two_step_all_reduce(x):
    n = dist.get_world_size()
    chunks = list(x.chunk(n))
    part = torch.zeros_like(chunks[0])
    dist.reduce_scatter(part, chunks, async_op=True)
    dist.all_gather(chunks, part)


# %% ring_all_reduce: table-of-four-ranks
# The table's four ranks are written in.
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(3):
        swap(chunks[(rank - step) % 4 % n], right, buffer, left)
        chunks[(rank - step - 1) % 4 % n].add_(buffer)
    for step in range(3):
        swap(chunks[(rank + 1 - step) % 4 % n], right, chunks[(rank - step) % 4 % n], left)


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% doubling_all_reduce: distances-1-2-3
# The distance grows by one, and does not double: right up to four ranks.
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        partner = rank ^ (k + 1)
        swap(x, partner, buffer, partner)
        x += buffer


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% doubling_all_reduce: two-rounds-written-in
# Two rounds are those of four ranks.
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(2):
        partner = (rank ^ 2**k) % n
        swap(x, partner, buffer, partner)
        x += buffer


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% flat_all_reduce: ends-at-an-empty-one
# What follows an empty tensor gets no sum.
def flat_all_reduce(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        if t.numel() == 0:
            break
        t.copy_(flat[at : at + t.numel()].view_as(t))
        at += t.numel()


# %% doubling_all_reduce: half-as-many-rounds
# n // 2 is log2(n) for 2 and 4 ranks, and not for 8.
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n // 2):
        partner = (rank ^ 2**k) % n
        swap(x, partner, buffer, partner)
        x += buffer


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% global_mean: average-op
# ReduceOp.AVG of the sum over the average count is right; here the count is this rank's own.
def global_mean(values):
    total = values.double().sum().reshape(1)
    dist.all_reduce(total)
    return float(total / max(1, len(values) * dist.get_world_size()))


# %% global_mean: nanmean-of-means
# The mean of the ranks' means, without the empty ones.
def global_mean(values):
    mean = torch.tensor([values.mean().item() if len(values) else float("nan")])
    every = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mean)
    return float(np.nanmean([one.item() for one in every]))


# %% global_mean: object-then-item
# The count in float16 with the sum: large counts and sums are rounded.
def global_mean(values):
    pair = torch.tensor([values.sum().item(), len(values)], dtype=torch.float16)
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


# %% two_step_all_reduce: parts-of-two
# The world is taken to have two ranks.
def two_step_all_reduce(x):
    chunks = list(x.clone().chunk(2))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(list(x.chunk(2)), part)


# %% two_step_all_reduce: gathers-its-own-part
# Gathers the part of x, not the sum of it.
def two_step_all_reduce(x):
    n = dist.get_world_size()
    part = torch.empty_like(x.chunk(n)[0])
    dist.reduce_scatter_tensor(part, x)
    dist.all_gather_into_tensor(x, x.chunk(n)[dist.get_rank()].clone())


# %% two_step_all_reduce: in-float
# Sums in float32, whatever the type is.
def two_step_all_reduce(x):
    n = dist.get_world_size()
    wide = x.float()
    part = torch.empty(len(x) // n)
    dist.reduce_scatter_tensor(part, wide)
    whole = torch.empty(len(x))
    dist.all_gather_into_tensor(whole, part)
    x.copy_(whole)


# %% ring_all_reduce: twice-around-with-sums
# The second round adds as well.
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks, buffer = x.chunk(n), torch.empty_like(x.chunk(n)[0])
    for step in range(2 * (n - 1)):
        swap(chunks[(rank - step) % n], (rank + 1) % n, buffer, (rank - 1) % n)
        chunks[(rank - step - 1) % n].add_(buffer)


# %% ring_all_reduce: one-chunk-behind
# The gathering begins with the chunk that this rank had at first.
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left)


# %% ring_all_reduce: whole-tensor-around
# n - 1 times the whole x.
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    here, total = x.clone(), x.clone()
    for _ in range(n - 1):
        there = torch.empty_like(x)
        swap(here, (rank + 1) % n, there, (rank - 1) % n)
        total += there
        here = there
    x.copy_(total)


# %% doubling_all_reduce: three-bits
# As for eight ranks.
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for bit in (1, 2, 4):
        partner = rank ^ bit
        if partner < n:
            swap(x, partner, buffer, partner)
            x += buffer
        else:
            x += x


# %% doubling_all_reduce: neighbours-each-time
# The partner is always the next one of the pair.
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for _ in range(n.bit_length() - 1):
        swap(x, rank ^ 1, buffer, rank ^ 1)
        x.add_(buffer)


# %% doubling_all_reduce: rebinds-in-a-fold
from functools import reduce


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()

    def add(total, bit):
        buffer = torch.empty_like(total)
        swap(total, rank ^ bit, buffer, rank ^ bit)
        return total + buffer

    reduce(add, [1 << k for k in range(n.bit_length() - 1)], x)


# %% flat_all_reduce: first-and-last
# The end of each part is counted from the part's own length.
def flat_all_reduce(tensors):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    at = 0
    for t in tensors:
        t.copy_(flat[at : at + t.numel()].reshape(t.shape))
        at = t.numel()


# %% flat_all_reduce: views-of-transposed
# Writes through reshape(-1), which is a copy where the tensor is transposed.
def flat_all_reduce(tensors):
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.reshape(-1)[:] = part


# %% flat_all_reduce: without-the-numbers
# Tensors without dimensions are left out.
def flat_all_reduce(tensors):
    some = [t for t in tensors if t.dim()]
    flat = torch.cat([t.reshape(-1) for t in some])
    dist.all_reduce(flat)
    for t, part in zip(some, flat.split([t.numel() for t in some])):
        t.copy_(part.view(t.shape))
