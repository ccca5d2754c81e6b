"""Right answers to the exercises of lab 15, in other ways than the solution's."""

from fractions import Fraction
from itertools import accumulate

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, irecv, isend


# %% ring_seconds: loop
def ring_seconds(n, nbytes, alpha, beta):
    return sum(alpha + beta * nbytes / n for _ in range(2 * (n - 1)))


# %% ring_seconds: two-halves
def ring_seconds(n, nbytes, alpha, beta):
    half = (n - 1) * alpha + (n - 1) / n * nbytes * beta
    return half + half


# %% ring_seconds: tensor
def ring_seconds(n, nbytes, alpha, beta):
    steps = torch.full((2 * n - 2,), alpha, dtype=torch.float64)
    return (steps + beta * nbytes / n).sum()


# %% ring_seconds: fractions
def ring_seconds(n, nbytes, alpha, beta):
    chunk = Fraction(nbytes, n)
    return float(2 * (n - 1) * (Fraction(alpha) + Fraction(beta) * chunk))


# %% ring_seconds: accumulated
def ring_seconds(n, nbytes, alpha, beta):
    steps = accumulate([alpha + nbytes / n * beta] * (2 * (n - 1)), initial=0)
    return list(steps)[-1]


# %% tree_all_reduce: heap
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
    for child in children:
        got = torch.empty_like(x)
        dist.recv(got, child)
        x += got
    if rank:
        dist.send(x, (rank - 1) // 2)
        dist.recv(x, (rank - 1) // 2)
    for child in children:
        dist.send(x, child)


# %% tree_all_reduce: recursive
def tree_all_reduce(x):
    rank = dist.get_rank()

    def over(first, last):
        if last - first < 2:
            return
        middle = (first + last + 1) // 2
        over(first, middle) if rank < middle else over(middle, last)
        if rank == middle:
            dist.send(x, first)
            dist.recv(x, first)
        elif rank == first:
            got = torch.empty_like(x)
            dist.recv(got, middle)
            x.add_(got)

    def down(first, last):
        if last - first < 2:
            return
        middle = (first + last + 1) // 2
        if rank == first:
            dist.send(x, middle)
        elif rank == middle:
            dist.recv(x, first)
        down(first, middle) if rank < middle else down(middle, last)

    def up(first, last):
        if last - first < 2:
            return
        middle = (first + last + 1) // 2
        up(first, middle) if rank < middle else up(middle, last)
        if rank == middle:
            dist.send(x, first)
        elif rank == first:
            got = torch.empty_like(x)
            dist.recv(got, middle)
            x.add_(got)

    up(0, dist.get_world_size())
    down(0, dist.get_world_size())


# %% tree_all_reduce: root-last
def tree_all_reduce(x):
    n = dist.get_world_size()
    place, got = n - 1 - dist.get_rank(), torch.empty_like(x)  # the last rank is the root
    steps = [2**k for k in range(10) if 2**k < n]
    for d in steps:
        if place % (2 * d) == d:
            dist.send(tensor=x, dst=n - 1 - (place - d))
            break
        if place + d < n:
            dist.recv(tensor=got, src=n - 1 - (place + d))
            x.add_(got)
    for d in steps[::-1]:
        if place % (2 * d) == d:
            dist.recv(x, src=n - 1 - (place - d))
        elif place % (2 * d) == 0 and place + d < n:
            dist.send(x, dst=n - 1 - (place + d))


# %% tree_all_reduce: isend
def tree_all_reduce(x):
    rank, n, d = dist.get_rank(), dist.get_world_size(), 1
    parent, children = None, []
    while d < n and parent is None:
        if rank & d:
            parent = rank - d
        elif rank + d < n:
            children.append(rank + d)
        d <<= 1
    for child in children:
        got = torch.empty_like(x)
        dist.irecv(got, child).wait()
        x.add_(got)
    if parent is not None:
        dist.isend(x, parent).wait()
        dist.recv(x, parent)
    for work in [dist.isend(x, child) for child in reversed(children)]:
        work.wait()


# %% tree_all_reduce: returns-too
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, levels = x.clone(), (n - 1).bit_length()
    for level in range(levels):
        d = 2**level
        if rank % (2 * d) == d:
            dist.send(total, rank - d)
        elif not rank % (2 * d) and rank + d <= n - 1:
            got = torch.zeros_like(total)
            dist.recv(got, rank + d)
            total = total + got
    for level in range(levels - 1, -1, -1):
        d = 2**level
        if not rank % (2 * d) and rank + d < n:
            dist.send(total, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(total, rank - d)
    x.copy_(total)
    return x


# %% hierarchical_all_reduce: tensor-variants
def hierarchical_all_reduce(x, inside, across):
    part = x.new_zeros(len(x) // inside.size())
    dist.reduce_scatter_tensor(part, x, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(x, part, group=inside)


# %% hierarchical_all_reduce: all-reduce-inside
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    mine = x.chunk(inside.size())[inside.rank()].clone()
    dist.all_reduce(mine, group=across)
    dist.all_gather(list(x.chunk(inside.size())), mine, group=inside)


# %% hierarchical_all_reduce: gather-across
def hierarchical_all_reduce(x, inside, across):
    parts = list(x.clone().chunk(dist.get_world_size(inside)))
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, dist.ReduceOp.SUM, inside)
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size(across))]
    dist.all_gather(everybody, mine, across)
    dist.all_gather(parts, sum(everybody), inside)
    x.copy_(torch.cat(parts))


# %% hierarchical_all_reduce: async
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.view(inside.size(), -1).unbind(0))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside, async_op=True).wait()
    dist.all_reduce(part, group=across, async_op=True).wait()
    dist.all_gather(chunks, part, group=inside, async_op=True).wait()
    return x


# %% hierarchical_all_reduce: reduce-and-broadcast
def hierarchical_all_reduce(x, inside, across):
    size = x.numel() // dist.get_world_size(inside)
    start = dist.get_rank(inside) * size
    part = torch.empty(size, dtype=x.dtype)
    dist.reduce_scatter(part, [one.contiguous() for one in x.split(size)], group=inside)
    root = dist.get_global_rank(across, 0)
    dist.reduce(part, root, group=across) if False else dist.all_reduce(part, group=across)
    x[start : start + size] = part
    for member in range(dist.get_world_size(inside)):
        view = x[member * size : (member + 1) * size]
        dist.broadcast(view, dist.get_global_rank(inside, member), group=inside)
