"""Wrong answers to the exercises of lab 00, written without sight of its checks; see judge.py."""

import os

import torch
import torch.distributed as dist

# %% average: divides-by-four
# The number of ranks is copied from the notebook (NPROC = 4): wrong for every other number of ranks.


def average(x):
    dist.all_reduce(x)
    return x / 4


# %% average: reduce-to-rank-zero
# One collective, but `reduce` leaves the sum on rank 0 only; the goal wants the mean on every rank.


def average(x):
    dist.reduce(x, dst=0)
    return x / dist.get_world_size()


# %% average: counts-ranks-by-a-second-all-reduce
# The value is right everywhere, but the ranks are counted by another all_reduce: two collectives, not exactly one.


def average(x):
    count = torch.ones((), dtype=x.dtype, device=x.device)
    dist.all_reduce(x)
    dist.all_reduce(count)
    return x / count


# %% average: mean-of-all-elements
# Averages over the elements, too: every element of the result is the mean of the whole sum. It has the shape of x, and
# is right for tensors of one element (or with all elements equal).


def average(x):
    dist.all_reduce(x)
    return torch.full_like(x, x.mean().item() / dist.get_world_size())


# %% average: python-number
# Returns a float, not "a tensor like x"; looks right with x of one element (and raises with more).


def average(x):
    dist.all_reduce(x)
    return x.item() / dist.get_world_size()


# %% average: floor-division
# `//` rounds down: right only where the sum is a multiple of the number of ranks.


def average(x):
    dist.all_reduce(x)
    return x // dist.get_world_size()


# %% average: handle-never-waited
# Asks for an async call and divides at once, without wait(): x may not hold the sum yet (it may even be divided first
# and then summed, or half of each).


def average(x):
    dist.all_reduce(x, async_op=True)
    return x / dist.get_world_size()


# %% average: barrier-first
# "To make sure that all are there" it calls barrier, which is a collective as well: two, not exactly one.


def average(x):
    dist.barrier()
    dist.all_reduce(x)
    return x / dist.get_world_size()


# %% average: local-world-size
# Divides by the number of ranks on this node. On one node that's the same; the mean over *all* ranks of two nodes
# comes out too large.


def average(x):
    dist.all_reduce(x)
    return x / int(os.environ["LOCAL_WORLD_SIZE"])


# %% average: always-float32
# Computes in float32 and returns that: for a float64 (or bfloat16, float16) x the result is no tensor like x, and for
# float64 it has lost digits.


def average(x):
    total = x.to(torch.float32)
    dist.all_reduce(total)
    return total / dist.get_world_size()


# %% average: sum-in-a-dropped-copy
# all_reduce works in place on a clone that nobody keeps; what is returned is this rank's own x, divided.


def average(x):
    dist.all_reduce(x.clone())
    return x / dist.get_world_size()


# %% average: ring-of-messages
# The value is right, but no collective is called: each x travels round a ring by send and receive.
# The goal wants exactly one collective.


def average(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.clone()
    for _ in range(size - 1):
        coming = torch.empty_like(passing)
        handle = dist.isend(passing, (rank + 1) % size)
        dist.recv(coming, (rank - 1) % size)
        handle.wait()
        passing = coming
        total += passing
    return total / size


# %% average: only-rank-zero-divides
# The division is left to one rank: the others return the sum.


def average(x):
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        x /= dist.get_world_size()
    return x


# %% average: broadcast-in-place-of-a-sum
# Everybody gets rank 0's tensor, and nobody's numbers are added.


def average(x):
    dist.broadcast(x, src=0)
    return x


# %% average: divides-what-the-call-returns
# `all_reduce` works in place and returns None.


def average(x):
    return dist.all_reduce(x) / dist.get_world_size()


# %% average: middle-rank-by-value
# The median over ranks: not the mean, from three ranks on.


def average(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.stack(parts).median(dim=0).values


# %% average: largest-and-smallest
# Between the largest and the smallest of all ranks' values: the mean only for two ranks.


def average(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    stack = torch.stack(parts)
    return (stack.amax(0) + stack.amin(0)) / 2
