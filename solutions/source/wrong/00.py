"""Wrong answers to the exercises of lab 00, each under the mistake that its check has to name."""

import os

import torch
import torch.distributed as dist


# %% average: returns-none
def average(x):
    return dist.all_reduce(x)


# %% average: sum-not-mean
def average(x):
    dist.all_reduce(x)
    return x


# %% average: nothing-sent
def average(x):
    return x


# %% average: not-on-all
def average(x):
    dist.reduce(x, dst=0)
    return x / dist.get_world_size()


# %% average: fixed-number
def average(x):
    dist.all_reduce(x)
    return x / 4


# %% average: several-collectives
def average(x):
    dist.reduce(x, dst=0)
    dist.broadcast(x, src=0)
    return x / dist.get_world_size()


# %% average: own-share
def average(x):
    y = x.clone()
    dist.all_reduce(y)
    return x / dist.get_world_size()


# %% average: divided-twice
def average(x):
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x / dist.get_world_size()


# %% average: divided-by-rank
def average(x):
    dist.all_reduce(x)
    return x / (dist.get_rank() + 1)


# %% average: not-the-sum
def average(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x / dist.get_world_size()


# %% average: mean-of-elements
def average(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.stack(parts).mean()


# %% average: whole-numbers
def average(x):
    dist.all_reduce(x)
    return x // dist.get_world_size()


# %% average: first-only
def average(x):
    dist.broadcast(x, src=0)
    return x


# %% average: one-off
def average(x):
    dist.all_reduce(x)
    return x / (dist.get_world_size() - 1)


# %% average: own-numbers
def average(x):
    total = x.clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    return x


# %% average: no-wait
def average(x):
    dist.all_reduce(x, async_op=True)
    return x / dist.get_world_size()


# %% average: type
def average(x):
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return work


# %% average: not-a-collective
def average(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    total, part = x.clone(), torch.empty_like(x)
    for other in range(1, n):
        if rank == 0:
            dist.recv(part, other)
            total += part
        elif rank == other:
            dist.send(x, 0)
    for other in range(1, n):
        if rank == 0:
            dist.send(total, other)
        elif rank == other:
            dist.recv(total, 0)
    return total / n


# %% average: fixed-number
def average(x):
    dist.all_reduce(x)
    return x / 2


# %% average: fixed-number
def average(x):
    dist.all_reduce(x)
    return x / 3


# %% average: fixed-number
def average(x):
    dist.all_reduce(x)
    return x / 5


# %% average: fixed-number
def average(x):
    dist.all_reduce(x)
    return x / 8


# %% average: fixed-number
def average(x):
    dist.all_reduce(x)
    return x / 16


# %% average: one-off
def average(x):
    dist.all_reduce(x)
    return x / (dist.get_world_size() + 1)


# %% average: not-the-sum
def average(x):
    dist.all_reduce(x, op=dist.ReduceOp.MIN)
    return x / dist.get_world_size()


# %% average: not-the-sum
def average(x):
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
    return x / dist.get_world_size()


# %% average: not-the-sum
def average(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


# %% average: mean-of-elements
def average(x):
    dist.all_reduce(x)
    return torch.full_like(x, x.mean().item() / dist.get_world_size())


# %% average: one-node-only
def average(x):
    dist.all_reduce(x)
    return x / int(os.environ["LOCAL_WORLD_SIZE"])


# %% average: middle-of-ranks
def average(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.stack(parts).median(dim=0).values


# %% average: middle-of-ranks
def average(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    stack = torch.stack(parts)
    return (stack.amax(0) + stack.amin(0)) / 2


# %% average: whole-numbers
def average(x):
    dist.all_reduce(x)
    return x.long() / dist.get_world_size()


# %% average: whole-numbers
def average(x):
    whole = x.long()
    dist.all_reduce(whole)
    return whole / dist.get_world_size()


# %% average: one-rank-divides
def average(x):
    dist.all_reduce(x)
    return x / dist.get_world_size() if dist.get_rank() == 0 else x
