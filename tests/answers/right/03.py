"""Right answers to the exercises of lab 03, written without sight of its checks; see judge.py."""

import functools
import itertools
import math
import operator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed import (
    P2POp,
    ReduceOp,
    all_reduce,
    batch_isend_irecv,
    get_rank,
    get_world_size,
    irecv,
    isend,
)

def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% global_mean: sum-and-count-in-float64
# The pair of sum and count in float64; the division is a tensor's, so nobody has values means NaN.


def global_mean(values):
    pair = torch.zeros(2, dtype=torch.float64, device=values.device)
    pair[0], pair[1] = values.detach().sum(dtype=torch.float64), values.numel()
    dist.all_reduce(pair)
    total, count = pair
    return float(total / count)


# %% global_mean: gathers-the-pairs
# all_gather of everybody's pair, added up by Python with math.fsum.


def global_mean(values):
    mine = torch.tensor(
        [math.fsum(values.tolist()), len(values)], dtype=torch.float64, device=values.device
    )
    pairs = [torch.empty_like(mine) for _ in range(get_world_size())]
    dist.all_gather(pairs, mine)
    totals, counts = zip(*(pair.tolist() for pair in pairs))
    return math.fsum(totals) / sum(counts) if any(counts) else math.nan


# %% global_mean: one-complex-number
# Sum and count are the real and the imaginary part of a complex128; a handle, waited for.


def global_mean(values):
    both = torch.complex(
        values.detach().sum(dtype=torch.float64),
        torch.tensor(values.numel(), dtype=torch.float64, device=values.device),
    ).reshape(1)
    work = all_reduce(both, op=ReduceOp.SUM, async_op=True)
    work.wait()
    return (both.real / both.imag).item()


# %% global_mean: functional-collective
# The functional all_reduce, which returns a new tensor; the sum and the count are a matrix product (einsum) of the
# values with a column of ones and themselves.


def global_mean(values):
    wide = values.detach().double()
    pair = torch.stack([torch.einsum("i->", wide), torch.einsum("i->", torch.ones_like(wide))])
    pair = funcol.wait_tensor(funcol.all_reduce(pair, "sum", dist.group.WORLD))
    return pair[0].div(pair[1]).item()


# %% global_mean: rows-of-an-own-matrix
# Each rank writes its pair into its own row of a zero matrix; the sum of the matrices is everybody's table.


def global_mean(values):
    table = torch.zeros(dist.get_world_size(), 2, dtype=torch.float64, device=values.device)
    table[dist.get_rank()] = torch.tensor([values.sum(dtype=torch.float64).item(), values.numel()])
    dist.all_reduce(table, group=dist.group.WORLD)
    total, count = table.sum(dim=0).tolist()
    return total / count if count else float("nan")


# %% global_mean: all-to-all
# all_to_all_single: each rank sends its pair to each rank, and adds up the rows that come.


def global_mean(values):
    n = dist.get_world_size()
    pair = values.new_tensor([0.0, values.numel()], dtype=torch.float64)
    pair[0] = functools.reduce(operator.add, values.tolist(), 0.0)
    came = torch.empty(n, 2, dtype=torch.float64, device=values.device)
    dist.all_to_all_single(came, pair.repeat(n, 1))
    total, count = came.sum(0)
    return (total / count).item()


# %% global_mean: average-of-both
# The mean of the sums over the mean of the counts.


def global_mean(values):
    both = torch.tensor(
        [values.double().sum(), values.numel()], dtype=torch.float64, device=values.device
    )
    dist.all_reduce(both, op=dist.ReduceOp.AVG)
    total, count = both.tolist()
    return total / count


# %% global_mean: counts-by-ones
# A row of values and a row of ones, summed over both.


def global_mean(values):
    rows = torch.stack([values, torch.ones_like(values)]).sum(dim=1, dtype=torch.float64)
    everybody = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, rows)
    total, count = torch.stack(everybody).sum(0)
    return float(total / count)


# %% two_step_all_reduce: lists-of-views
# The usual way: the list of chunks is both what is scattered and what is gathered into.


def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks, part)


# %% two_step_all_reduce: single-tensor-calls
# reduce_scatter_tensor and all_gather_into_tensor, the forms of both calls with one tensor for all chunks.


def two_step_all_reduce(x):
    part = x.new_empty(x.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, x)
    dist.all_gather_into_tensor(x, part)


# %% two_step_all_reduce: functional-collectives
# Functional collectives, composed, and a copy into x in the end; returns x as well.


def two_step_all_reduce(x):
    world = dist.group.WORLD
    part = funcol.reduce_scatter_tensor(x, "sum", 0, world)
    whole = funcol.all_gather_tensor(part, 0, world)
    return x.copy_(whole)


# %% two_step_all_reduce: handles-by-keyword
# Both calls with handles, each waited for before the next use; all by keyword.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    inputs = [chunk.clone() for chunk in x.chunk(n)]
    part = torch.zeros_like(inputs[0])
    dist.reduce_scatter(output=part, input_list=inputs, op=dist.ReduceOp.SUM, async_op=True).wait()
    dist.all_gather(tensor_list=inputs, tensor=part, async_op=True).wait()
    torch.cat(inputs, out=x)


# %% two_step_all_reduce: every-nth-element-both-ways
# The parts aren't chunks but combs: x[r::n] belongs to rank r, in both steps.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    combs = [x[start::n].contiguous() for start in range(n)]
    part = torch.empty_like(combs[0])
    dist.reduce_scatter(part, combs)
    dist.all_gather(combs, part)
    x.view(-1, n).copy_(torch.stack(combs, dim=1))


# %% two_step_all_reduce: gathers-bytes-into-rows
# The second step gathers the bytes of the parts into byte views of x's rows.


def two_step_all_reduce(x):
    n = dist.get_world_size()
    rows = x.view(n, len(x) // n)
    part = torch.empty_like(rows[0])
    dist.reduce_scatter(part, [*rows])
    dist.all_gather([row.view(torch.uint8) for row in rows.unbind()], part.view(torch.uint8))


# %% two_step_all_reduce: in-one-tensor
# The calls that take one tensor in place of a list.


def two_step_all_reduce(x):
    part = x.new_zeros(x.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(part, x.clone())
    dist.all_gather_into_tensor(x, part)


# %% two_step_all_reduce: with-handles
# Both calls with a handle, each waited for at once.


def two_step_all_reduce(x):
    views = [*x.tensor_split(dist.get_world_size())]
    mine = views[dist.get_rank()].clone()
    dist.reduce_scatter(mine, views, async_op=True).wait()
    dist.all_gather(views, mine, async_op=True).wait()
    return x


# %% ring_all_reduce: as-in-the-table
# The table's convention; in the second half complete chunks are received right where they belong.


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
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)


# %% ring_all_reduce: ends-with-its-own-chunk
# Another convention: a rank begins with chunk rank - 1 and completes its own chunk; one loop for both halves, separate
# isend and irecv.


def ring_all_reduce(x):
    rank, n = get_rank(), get_world_size()
    rows = x.view(n, -1) if x.numel() else x.new_empty(n, 0)
    came = torch.empty_like(rows[0])
    for step in range(1, 2 * n - 1):
        into = rows[(rank - step - 1) % n]
        handles = [irecv(came, (rank + n - 1) % n), isend(rows[(rank - step) % n], (rank + 1) % n)]
        for handle in handles:
            handle.wait()
        into.copy_(into + came if step < n else came)


# %% ring_all_reduce: partial-sums-apart
# The partial sum that goes round is kept in a tensor of its own (x isn't written in the first half); slices in place
# of chunks; recursion for the second half.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    size = len(x) // n
    piece = lambda number: x[number % n * size : (number % n + 1) * size]  # noqa: E731
    running = piece(rank).clone()
    for step in range(1, n):
        came = torch.empty_like(running)
        swap(running, (rank + 1) % n, came, (rank - 1) % n)
        running = came + piece(rank - step)
    piece(rank + 1).copy_(running)

    def spread(step):
        if step < n - 1:
            swap(piece(rank + 1 - step), (rank + 1) % n, piece(rank - step), (rank - 1) % n)
            spread(step + 1)

    spread(0)


# %% ring_all_reduce: blocking-and-one-starts
# send and recv without handles: rank 0 sends first, all others receive first, so that there's no circle of waits. Slow
# (nothing is at the same time), but right.


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    came = torch.empty_like(chunks[0])
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        if rank == 0:
            dist.send(out, 1)
            dist.recv(came, n - 1)
        else:
            dist.recv(came, rank - 1)
            dist.send(out, (rank + 1) % n)
        torch.add(into, came, out=into) if step < n - 1 else into.copy_(came)


# %% ring_all_reduce: generator-of-chunk-numbers
# Generators say which chunk goes and which comes; the receive is first in the batch; bytes travel.


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()

    def walk(first):
        numbers = [(first - step) % n for step in range(n)]
        yield from itertools.pairwise(numbers)

    chunks = list(torch.tensor_split(x, n))
    came = torch.empty_like(chunks[0])
    as_bytes = operator.methodcaller("view", torch.uint8)
    ways = [(pair, torch.Tensor.add_) for pair in walk(rank)]
    ways += [(pair, torch.Tensor.copy_) for pair in walk(rank + 1)]
    for (going, coming), put in ways:
        ops = [
            P2POp(irecv, as_bytes(came), (rank - 1) % n),
            P2POp(isend, as_bytes(chunks[going]), (rank + 1) % n),
        ]
        for work in batch_isend_irecv(ops):
            work.wait()
        put(chunks[coming], came)


# %% ring_all_reduce: smaller-pieces
# Two rings one after the other, each for half of every chunk: more and smaller messages, the same bytes, the same
# neighbour; a helper class with the state.


class _Ring:
    def __init__(self):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()

    def exchange(self, out, into):
        handles = [
            dist.isend(out, (self.rank + 1) % self.n),
            dist.irecv(into, (self.rank - 1) % self.n),
        ]
        while handles:
            handles.pop().wait()

    def reduce(self, columns):
        for step in range(self.n - 1):
            came = torch.empty_like(columns[0])
            self.exchange(columns[self.rank - step], came)
            columns[self.rank - step - 1] += came
        for step in range(self.n - 1):
            come = torch.empty_like(columns[0])
            self.exchange(columns[(self.rank + 1 - step) % self.n], come)
            columns[self.rank - step].copy_(come)


def ring_all_reduce(x):
    ring = _Ring()
    table = x.view(ring.n, len(x) // ring.n)
    for columns in table.tensor_split(2, dim=1):
        if columns.numel():
            ring.reduce(columns)


# %% ring_all_reduce: one-index-that-falls
# One index goes down through both halves.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    mine = rank
    for step in range(2 * (n - 1)):
        came = torch.empty_like(chunks[mine])
        swap(chunks[mine], right, came, left)
        mine = (mine - 1) % n
        if step < n - 1:
            chunks[mine].add_(came)
        else:
            chunks[mine].copy_(came)


# %% ring_all_reduce: own-messages
# Messages without a batch; a matrix with a row for each chunk.


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = x.view(n, -1)
    came = torch.empty_like(rows[0])
    for step in range(n - 1):
        out = dist.isend(rows[(rank - step) % n], (rank + 1) % n)
        dist.irecv(came, (rank - 1) % n).wait()
        out.wait()
        rows[(rank - step - 1) % n] += came
    for step in range(1, n):
        out = dist.isend(rows[(rank - step + 2) % n], (rank + 1) % n)
        dist.irecv(rows[(rank - step + 1) % n], (rank - 1) % n).wait()
        out.wait()


# %% doubling_all_reduce: distance-doubles
# A while loop over the distance, with the notebook's swap.


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
        partner = rank ^ distance
        swap(x, partner, buffer, partner)
        x += buffer
        distance <<= 1


# %% doubling_all_reduce: farthest-first
# The distances in the opposite order, n / 2 first: the sum is the same. isend and irecv, both waited for before the
# addition.


def doubling_all_reduce(x):
    rank, distance = get_rank(), get_world_size() // 2
    came = torch.zeros_like(x)
    while distance:
        handles = [irecv(came, rank ^ distance), isend(x, rank ^ distance)]
        for handle in handles:
            handle.wait()
        x.add_(came)
        distance //= 2


# %% doubling_all_reduce: recursion
# All-reduces among ranks of the lower bits by calling itself, then one exchange over the highest bit.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank = dist.get_rank()

    def among(size):
        if size == 1:
            return x
        among(size // 2)
        came = torch.empty_like(x)
        swap(out=x, to=rank ^ size // 2, into=came, source=rank ^ size // 2)
        return x.add_(came)

    among(dist.get_world_size())


# %% doubling_all_reduce: turns
# Blocking send and recv, by turns: of two partners the lower one sends first. One send each a round.


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(x)
    for partner in (rank ^ 2**k for k in range(n.bit_length() - 1)):
        if rank < partner:
            dist.send(x, partner)
            dist.recv(came, partner)
        else:
            dist.recv(came, partner)
            dist.send(x, partner)
        torch.add(x, came, out=x)


# %% doubling_all_reduce: reduce-over-partners
# functools.reduce over the partners; the sum so far is a new tensor each round, and is copied into x once in the end.


def doubling_all_reduce(x):
    def round_with(total, partner):
        came = torch.empty_like(total)
        ops = [P2POp(dist.isend, total, partner), P2POp(dist.irecv, came, partner)]
        for work in batch_isend_irecv(ops):
            work.wait()
        return total + came

    partners = [dist.get_rank() ^ (1 << k) for k in range(int(math.log2(dist.get_world_size())))]
    x.copy_(functools.reduce(round_with, partners, x))


# %% doubling_all_reduce: snapshot-and-blocks
# Finds the partner without exclusive or: in a block of 2d ranks the lower half's partner is d above, the upper half's
# d below. Sends a snapshot's bytes.


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    for d in itertools.takewhile(lambda d: d < n, (2**k for k in itertools.count())):
        partner = rank + d if rank % (2 * d) < d else rank - d
        snapshot = x.detach().clone().reshape(-1)
        came = torch.empty_like(snapshot)
        ops = [
            dist.P2POp(dist.irecv, came.view(torch.uint8), partner),
            dist.P2POp(dist.isend, snapshot.view(torch.uint8), partner),
        ]
        for work in reversed(dist.batch_isend_irecv(ops)):
            work.wait()
        x += came.view(x.shape)


# %% doubling_all_reduce: far-ones-first
# The largest distance first.


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), dist.get_world_size() // 2
    while distance:
        buffer = torch.empty_like(x)
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x += buffer
        distance //= 2


# %% doubling_all_reduce: partner-in-the-other-half
# The partner in the other half of a block, by division.


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    half = 1
    while half < n:
        partner = rank + half if rank // half % 2 == 0 else rank - half
        works = [dist.isend(x, partner), dist.irecv(buffer, partner)]
        for work in works:
            work.wait()
        torch.add(x, buffer, out=x)
        half += half


# %% flat_all_reduce: cat-and-split
# One concatenation, one call, and the pieces copied back in their shapes.


def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: views-of-one-buffer
# Makes the buffer first, and shaped views of it with itertools.accumulate; copies in and out by assignment to [...].


def flat_all_reduce(tensors):
    ends = [0, *itertools.accumulate(map(torch.numel, tensors))]
    buffer = tensors[0].new_empty(ends[-1])
    views = [
        buffer[a:b].view(tensor.shape) for (a, b), tensor in zip(itertools.pairwise(ends), tensors)
    ]
    for view, tensor in zip(views, tensors):
        view[...] = tensor
    dist.all_reduce(buffer)
    for tensor, view in zip(tensors, views):
        tensor[...] = view


# %% flat_all_reduce: pytorchs-own-flatten
# PyTorch's private helpers that DDP used: _flatten_dense_tensors and _unflatten_dense_tensors.


def flat_all_reduce(tensors):
    flat = torch._utils._flatten_dense_tensors(tuple(tensors))
    dist.all_reduce(flat)
    for tensor, total in zip(tensors, torch._utils._unflatten_dense_tensors(flat, tuple(tensors))):
        tensor.copy_(total)


# %% flat_all_reduce: functional-and-backwards
# The functional all_reduce; packs and unpacks from the last tensor to the first, taking pieces off the end.


def flat_all_reduce(tensors):
    total = funcol.all_reduce(
        torch.cat([tensor.flatten() for tensor in reversed(tensors)]), "sum", dist.group.WORLD
    )
    total = funcol.wait_tensor(total)
    for tensor in tensors:
        rest = total.numel() - tensor.numel()
        total, piece = total[:rest], total[rest:]
        tensor.copy_(piece.reshape(tensor.shape))


# %% flat_all_reduce: transposed-order-and-handle
# Packs each tensor from its last dimension to its first (permuted, the same way on both sides); a handle that is waited
# for before anything is read.


def flat_all_reduce(tensors):
    turned = [
        tensor.permute(*reversed(range(tensor.dim()))) if tensor.dim() else tensor
        for tensor in tensors
    ]
    flat = torch.hstack([view.reshape(-1) for view in turned])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM, async_op=True).wait()
    iterator = iter(flat.split([view.numel() for view in turned]))
    for view in turned:
        view.copy_(next(iterator).reshape(view.shape))


# %% flat_all_reduce: masks
# masked_select and masked_scatter_ with masks that are true everywhere pack and unpack the numbers in logical order.


def flat_all_reduce(tensors):
    flat = torch.cat(
        [
            torch.masked_select(tensor, torch.ones_like(tensor, dtype=torch.bool))
            for tensor in tensors
        ]
    )
    all_reduce(tensor=flat)
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel()
        tensor.masked_scatter_(torch.ones_like(tensor, dtype=torch.bool), flat[begin:end])
        begin = end


# %% flat_all_reduce: filled-in-place
# A bucket of the right size, filled and emptied by slices.


def flat_all_reduce(tensors):
    sizes = [t.numel() for t in tensors]
    bucket = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=tensors[0].device)
    parts = bucket.split(sizes)
    for part, t in zip(parts, tensors, strict=True):
        part.view(t.shape).copy_(t)
    dist.all_reduce(bucket)
    for part, t in zip(parts, tensors, strict=True):
        t.copy_(part.view(t.shape))


# %% flat_all_reduce: zeroed-then-added
# Each is set to zero, and its part is added.


def flat_all_reduce(tensors):
    flat = torch.hstack([t.ravel() for t in tensors])
    work = dist.all_reduce(flat, async_op=True)
    work.wait()
    start = 0
    for t in tensors:
        end = start + t.numel()
        t.zero_().add_(flat[start:end].unflatten(0, t.shape) if t.dim() else flat[start])
        start = end


# %% global_mean: sums-of-values-and-ones
def global_mean(values):
    table = torch.stack([values, torch.ones_like(values)]).to(torch.float64)
    sums = table.sum(dim=1)
    all_reduce(sums)
    return torch.div(*sums).item()


# %% two_step_all_reduce: gathered-then-copied
def two_step_all_reduce(x):
    n = get_world_size()
    outputs = list(torch.zeros_like(x).split(len(x) // n))
    part = torch.zeros_like(outputs[0])
    works = [dist.reduce_scatter(part, list(x.chunk(n)), async_op=True)]
    works.pop().wait()
    works.append(dist.all_gather(outputs, part, async_op=True))
    works.pop().wait()
    x.copy_(torch.cat(outputs))


# %% ring_all_reduce: pairs-of-chunk-numbers
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    coming = torch.empty_like(chunks[0])
    order = [(rank - k) % n for k in range(2 * n - 1)]
    for k, (out, into) in enumerate(itertools.pairwise(order)):
        handles = [dist.isend(chunks[out], (rank + 1) % n), dist.irecv(coming, (rank - 1) % n)]
        for handle in handles:
            handle.wait()
        if k < n - 1:
            chunks[into].add_(coming)
        else:
            chunks[into].copy_(coming)


# %% ring_all_reduce: first-half-starts-one-back
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.view(n, -1)

    def turn(out, into):
        ops = [P2POp(irecv, into, (rank + n - 1) % n), P2POp(isend, out, (rank + 1) % n)]
        for work in batch_isend_irecv(ops):
            work.wait()

    for k in range(1, n):
        other = torch.empty_like(pieces[0])
        turn(pieces[(rank - k) % n], other)
        pieces[(rank - k - 1) % n].add_(other)
    for k in range(n - 1):
        turn(pieces[(rank - k) % n], pieces[(rank - k - 1) % n])


# %% ring_all_reduce: carried-sum
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = list(x.chunk(n))
    carried = chunks[rank].clone()
    for step in range(1, n):
        came = torch.empty_like(carried)
        swap(carried, right, came, left)
        carried = came + chunks[(rank - step) % n]
    done = (rank + 1) % n
    chunks[done].copy_(carried)
    for _ in range(1, n):
        came = torch.empty_like(carried)
        swap(carried, right, came, left)
        carried, done = came, (done - 1) % n
        chunks[done].copy_(carried)


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% doubling_all_reduce: round-the-ring
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    distance = 1
    while distance < n:
        came = torch.empty_like(x)
        swap(x, (rank + distance) % n, came, (rank - distance) % n)
        x.add_(came)
        distance <<= 1


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% flat_all_reduce: filled-by-offsets
def flat_all_reduce(tensors):
    ends = list(itertools.accumulate((t.numel() for t in tensors), initial=0))
    flat = torch.empty(ends[-1], dtype=tensors[0].dtype, device=tensors[0].device)
    for t, begin, end in zip(tensors, ends, ends[1:], strict=False):
        flat[begin:end] = t.reshape(-1)
    dist.all_reduce(flat)
    for t, begin, end in zip(tensors, ends, ends[1:], strict=False):
        t[...] = flat[begin:end].reshape(t.shape)


# %% flat_all_reduce: zeroed-and-added
def flat_all_reduce(tensors):
    flat = torch.concat(tuple(map(torch.flatten, tensors)))
    all_reduce(flat)
    used = 0
    for t in tensors:
        t.zero_()
        t += flat[used : used + t.numel()].view(t.shape)
        used += t.numel()


# %% doubling_all_reduce: two-tensors-in-turn
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    for bit in (1 << k for k in range(n.bit_length() - 1)):
        came = torch.empty_like(total)
        swap(total, rank ^ bit, came, rank ^ bit)
        total = total + came
    x.copy_(total)


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


# %% global_mean: complex-number
def global_mean(values):
    both = torch.tensor([values.double().sum().item(), float(values.numel())], dtype=torch.float64)
    dist.all_reduce(both, async_op=True).wait()
    total, count = both.tolist()
    return total / count


# %% two_step_all_reduce: stacked-rows
def two_step_all_reduce(x):
    n = dist.get_world_size()
    rows = x.view(n, -1)
    part = rows.new_zeros(rows.shape[1])
    dist.reduce_scatter(part, [row.clone() for row in rows])
    dist.all_gather([*rows.unbind()], part)


# %% ring_all_reduce: other-chunk-first
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = x.view(n, -1)
    for step in range(2 * n - 2):
        out, into = (rank - step - 1) % n, (rank - step - 2) % n
        buffer = torch.empty_like(rows[into])
        swap(rows[out].clone(), (rank + 1) % n, buffer, (rank - 1) % n)
        rows[into] = rows[into] + buffer if step < n - 1 else buffer


# %% doubling_all_reduce: far-partners-first
def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), dist.get_world_size() // 2
    while distance:
        theirs = torch.zeros_like(x)
        swap(x, rank ^ distance, theirs, rank ^ distance)
        x.add_(theirs)
        distance //= 2


# %% flat_all_reduce: offsets-by-accumulate
def flat_all_reduce(tensors):
    ends = [0, *itertools.accumulate(t.numel() for t in tensors)]
    flat = torch.empty(ends[-1], dtype=tensors[0].dtype, device=tensors[0].device)
    parts = [flat[a:b].view(t.shape) for t, (a, b) in zip(tensors, itertools.pairwise(ends))]
    torch._foreach_copy_(parts, tensors)
    dist.all_reduce(flat)
    torch._foreach_copy_(tensors, parts)
