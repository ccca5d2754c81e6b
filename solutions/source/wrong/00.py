"""Wrong answers to the exercises of lab 00, each under the mistake that its check has to name."""

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
