"""Wrong answers to the exercises of lab 01, each under the mistake that its check has to name."""

import math
import pickle

import numpy as np
import torch
import torch.distributed as dist


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


# %% local_gpu: global-rank
def local_gpu(env):
    return int(env["RANK"])


# %% local_gpu: string
def local_gpu(env):
    return env["LOCAL_RANK"]


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 8


# %% local_gpu: node-number
def local_gpu(env):
    return int(env["GROUP_RANK"])


# %% meet: one-key
def meet(store, rank, world_size, address):
    store.set("address", address)
    return [store.get("address").decode() for other in range(world_size)]


# %% meet: bytes
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{other}") for other in range(world_size)]


# %% meet: order-of-arrival
def meet(store, rank, world_size, address):
    place = store.add("arrived", 1)
    store.set(f"address/{place}", address)
    return [store.get(f"address/{other + 1}").decode() for other in range(world_size)]


# %% meet: does-not-wait
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    keys = [f"address/{other}" for other in range(world_size)]
    return [store.get(key).decode() for key in keys if store.check([key])]


# %% meet: deadlock
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{other + 1}").decode() for other in range(world_size)]


# %% store_barrier: does-not-hold
def store_barrier(store, name, world_size):
    store.add(f"{name}/count", 1)


# %% store_barrier: works-once
def store_barrier(store, name, world_size):
    if store.add("count", 1) == world_size:
        store.set("open", "")
    store.wait(["open"])


# %% store_barrier: busy
def store_barrier(store, name, world_size):
    store.add(f"{name}/count", 1)
    while store.add(f"{name}/count", 0) < world_size:
        pass


# %% store_barrier: deadlock
def store_barrier(store, name, world_size):
    if store.add(f"{name}/count", 1) > world_size:
        store.set(f"{name}/open", "")
    store.wait([f"{name}/open"])


# %% axis_groups: always-neighbours
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values()))
    return grid.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: first-axis-fastest
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()), order="F")
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return lines.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: other-axes
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), 0)
    return lines.reshape(sizes[axis], -1).tolist()


# %% axis_groups: one-group
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return lines.reshape(-1, sizes[axis])[:1].tolist()


# %% make_groups: only-own
def make_groups(groups):
    for ranks in groups:
        if dist.get_rank() in ranks:
            return dist.new_group(ranks)


# %% make_groups: own-first
def make_groups(groups):
    rank = dist.get_rank()
    ordered = sorted(groups, key=lambda ranks: rank not in ranks)
    made = [dist.new_group(ranks) for ranks in ordered]
    return made[0]


# %% make_groups: last-one
def make_groups(groups):
    for ranks in groups:
        group = dist.new_group(ranks)
    return group


# %% make_groups: list
def make_groups(groups):
    return [dist.new_group(ranks) for ranks in groups]


# %% make_groups: everybody
def make_groups(groups):
    for _ in groups:
        group = dist.new_group()
    return group


# %% from_first: group-rank-as-global
def from_first(x, group):
    dist.broadcast(x, src=0, group=group)
    return x


# %% from_first: everybody-sends
def from_first(x, group):
    dist.broadcast(x, src=dist.get_rank(), group=group)
    return x


# %% from_first: whole-world
def from_first(x, group):
    dist.broadcast(x, src=0)
    return x


# %% from_first: too-much
def from_first(x, group):
    parts = [x.clone() for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return parts[0]


# %% from_first: nothing-sent
def from_first(x, group):
    return x


# %% shrink: still-there
def shrink(store, me, alive, generation):
    fresh = dist.PrefixStore(f"generation-{generation}", store)
    dist.init_process_group("gloo", store=fresh, rank=alive.index(me), world_size=len(alive))


# %% shrink: old-number
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    fresh = dist.PrefixStore(f"generation-{generation}", store)
    dist.init_process_group("gloo", store=fresh, rank=me, world_size=len(alive))


# %% shrink: waits-for-the-dead
def shrink(store, me, alive, generation):
    size = dist.get_world_size()
    dist.destroy_process_group()
    fresh = dist.PrefixStore(f"generation-{generation}", store)
    dist.init_process_group("gloo", store=fresh, rank=alive.index(me), world_size=size)


# %% shrink: old-keys
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=alive.index(me), world_size=len(alive))


# %% shrink: old-world
def shrink(store, me, alive, generation):
    dist.new_group(alive)


# %% StoreGroup: no-work
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x = tensors[0]
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(x))
        parts = [pickle.loads(self.store.get(f"{self.calls}/{r}")) for r in range(self.size())]
        stacked = torch.stack(parts)
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        x.copy_(stacked.amax(0) if biggest else stacked.sum(0))


# %% StoreGroup: not-in-place
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x = tensors[0]
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(x))
        parts = [pickle.loads(self.store.get(f"{self.calls}/{r}")) for r in range(self.size())]
        tensors[0] = torch.stack(parts).sum(0)
        return DoneWork()


# %% StoreGroup: old-keys
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x = tensors[0]
        self.store.set(f"part/{self.rank()}", pickle.dumps(x))
        parts = [pickle.loads(self.store.get(f"part/{r}")) for r in range(self.size())]
        x.copy_(torch.stack(parts).sum(0))
        return DoneWork()


# %% StoreGroup: always-sums
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x = tensors[0]
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(x))
        parts = [pickle.loads(self.store.get(f"{self.calls}/{r}")) for r in range(self.size())]
        x.copy_(torch.stack(parts).sum(0))
        return DoneWork()
