"""Wrong answers to the exercises of lab 01, each under the mistake that its check has to name."""

import datetime
import math
import os
import pickle
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class PartsGroup(dist.ProcessGroup):
    """A group that can give each rank's tensor to all, through the store."""

    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def parts(self, x):
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(x))
        return [pickle.loads(self.store.get(f"{self.calls}/{r}")) for r in range(self.size())]

    def reduced(self, x, opts):
        parts = torch.stack(self.parts(x))
        return parts.amax(0) if opts.reduceOp == dist.ReduceOp.MAX else parts.sum(0)


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


# %% local_gpu: nodes-alike
def local_gpu(env):
    return int(env["RANK"]) % int(env["LOCAL_WORLD_SIZE"])


# %% local_gpu: always-the-same
def local_gpu(env):
    return int(os.environ["LOCAL_RANK"])


# %% local_gpu: modulo-nodes
def local_gpu(env):
    return int(env["RANK"]) % int(env["GROUP_WORLD_SIZE"])


# %% local_gpu: node-by-division
def local_gpu(env):
    return int(env["RANK"]) // int(env["LOCAL_WORLD_SIZE"])


# %% local_gpu: from-one
def local_gpu(env):
    return int(env["LOCAL_RANK"]) + 1


# %% local_gpu: how-many
def local_gpu(env):
    return int(env["LOCAL_WORLD_SIZE"])


# %% local_gpu: type
def local_gpu(env):
    return "cuda:" + env["LOCAL_RANK"]


# %% local_gpu: up-to-a-number
def local_gpu(env):
    return int(env["LOCAL_RANK"]) % 8


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


# %% meet: without-own
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    others = [other for other in range(world_size) if other != rank]
    return [store.get(f"address/{other}").decode() for other in others]


# %% meet: text-of-bytes
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [str(store.get(f"address/{other}")) for other in range(world_size)]


# %% meet: shape
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{other}").decode() for other in range(1, world_size)]


# %% meet: type
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    if rank == 0:
        return [store.get(f"address/{other}").decode() for other in range(world_size)]


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
    while int(store.get(f"{name}/count")) < world_size:
        time.sleep(0.05)


# %% store_barrier: deadlock
def store_barrier(store, name, world_size):
    if store.add(f"{name}/count", 1) > world_size:
        store.set(f"{name}/open", "")
    store.wait([f"{name}/open"])


# %% store_barrier: key-is-there
def store_barrier(store, name, world_size):
    if store.add(name, 1) == world_size:
        store.set(name, "open")
    store.wait([name])


# %% store_barrier: deleted-early
def store_barrier(store, name, world_size):
    if store.add(f"{name}/count", 1) == world_size:
        store.set(f"{name}/open", "")
        store.delete_key(f"{name}/open")
    else:
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


# %% axis_groups: always-first
def axis_groups(sizes, axis):
    n = math.prod(sizes.values())
    count = n // sizes[axis]
    return [list(range(first, n, count)) for first in range(count)]


# %% axis_groups: names-in-order
def axis_groups(sizes, axis):
    sizes = dict(sorted(sizes.items()))
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return lines.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: same-length
def axis_groups(sizes, axis):
    shape = list(sizes.values())
    grid = np.arange(math.prod(shape)).reshape(shape)
    lines = np.moveaxis(grid, shape.index(sizes[axis]), -1)
    return lines.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: flat
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    return np.moveaxis(grid, list(sizes).index(axis), -1).flatten().tolist()


# %% axis_groups: unsorted
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return lines.reshape(-1, sizes[axis])[:, ::-1].tolist()


# %% axis_groups: other-groups
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.swapaxes(grid, list(sizes).index(axis), 0)
    return lines.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: not-transposed
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), 0)
    return lines.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: array
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return lines.reshape(-1, sizes[axis])


# %% axis_groups: type
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return (line.tolist() for line in lines.reshape(-1, sizes[axis]))


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


# %% make_groups: none-alone
def make_groups(groups):
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks) if len(ranks) > 1 else None
        mine = group if dist.get_rank() in ranks else mine
    return mine


# %% make_groups: everybody
def make_groups(groups):
    for _ in groups:
        group = dist.new_group()
    return group


# %% make_groups: nothing-returned
def make_groups(groups):
    for ranks in groups:
        dist.new_group(ranks)


# %% make_groups: first-one
def make_groups(groups):
    made = [dist.new_group(ranks) for ranks in groups]
    return made[0]


# %% make_groups: ranks-only
def make_groups(groups):
    for ranks in groups:
        dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = ranks
    return mine


# %% make_groups: type
def make_groups(groups):
    made = [dist.new_group(ranks) for ranks in groups]
    return made[dist.get_rank() % len(made)]


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


# %% from_first: wrong-sender
def from_first(x, group):
    last = dist.get_process_group_ranks(group)[-1]
    dist.broadcast(x, src=last, group=group)
    return x


# %% from_first: no-wait
def from_first(x, group):
    first = dist.get_global_rank(group, 0)
    dist.broadcast(x, src=first, group=group, async_op=True)
    return x


# %% from_first: some-do-not-call
def from_first(x, group):
    if dist.get_rank(group) == 0:
        dist.broadcast(x, src=dist.get_rank(), group=group)
    return x


# %% from_first: own-x
def from_first(x, group):
    y = x.clone()
    dist.broadcast(y, src=dist.get_global_rank(group, 0), group=group)
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


# %% shrink: other-backend
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore(str(generation), store)
    dist.init_process_group("gloo", store=own, rank=alive.index(me), world_size=len(alive))


# %% shrink: old-world
def shrink(store, me, alive, generation):
    dist.new_group(alive)


# %% shrink: other-number
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    fresh = dist.PrefixStore(f"generation-{generation}", store)
    dist.init_process_group(
        "gloo", store=fresh, rank=sorted(alive).index(me), world_size=len(alive)
    )


# %% shrink: do-not-meet
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    fresh = dist.PrefixStore(f"rank-{me}", store)
    dist.init_process_group("gloo", store=fresh, rank=alive.index(me), world_size=len(alive))


# %% shrink: no-new-world
def shrink(store, me, alive, generation):
    dist.destroy_process_group()


# %% shrink: goes-by-variables
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    dist.init_process_group("gloo")


# %% make_groups: destroyed
def make_groups(groups):
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    dist.destroy_process_group(mine)
    return mine


# %% from_first: global-rank-as-place
def from_first(x, group):
    dist.broadcast(x, group_src=dist.get_global_rank(group, 0), group=group)
    return x


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 2


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 3


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 4


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 5


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 6


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 7


# %% local_gpu: fixed-number
def local_gpu(env):
    return int(env["RANK"]) % 16


# %% local_gpu: nodes-alike
def local_gpu(env):
    return int(env["RANK"]) - int(env["GROUP_RANK"]) * int(env["LOCAL_WORLD_SIZE"])


# %% local_gpu: always-the-same
def local_gpu(env):
    return 0


# %% local_gpu: always-the-same
def local_gpu(env):
    return 1


# %% local_gpu: string
def local_gpu(env):
    return env["RANK"]


# %% local_gpu: up-to-a-number
def local_gpu(env):
    return int(env["LOCAL_RANK"][-1])


# %% local_gpu: up-to-a-number
def local_gpu(env):
    return int(env["LOCAL_RANK"]) % 16


# %% local_gpu: up-to-a-number
def local_gpu(env):
    return min(int(env["LOCAL_RANK"]), 7)


# %% local_gpu: zero-is-false
def local_gpu(env):
    return int(env["LOCAL_RANK"]) or int(env["RANK"])


# %% local_gpu: from-one
def local_gpu(env):
    return int(env["LOCAL_WORLD_SIZE"]) - int(env["LOCAL_RANK"])


# %% local_gpu: other-gpus
def local_gpu(env):
    return int(env["WORLD_SIZE"]) - 1 - int(env["RANK"])


# %% meet: order-of-names
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    keys = sorted(f"address/{other}" for other in range(world_size))
    return [store.get(key).decode() for key in keys]


# %% meet: own-first
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    others = [other for other in range(world_size) if other != rank]
    return [address, *(store.get(f"address/{other}").decode() for other in others)]


# %% meet: own-first
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    from_here = [(rank + step) % world_size for step in range(world_size)]
    return [store.get(f"address/{other}").decode() for other in from_here]


# %% meet: joined
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    if rank == 0:
        found = [store.get(f"address/{other}").decode() for other in range(world_size)]
        store.set("all", ",".join(found))
    return store.get("all").decode().split(",")


# %% meet: cut-short
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address.split(":")[0])
    return [store.get(f"address/{other}").decode() for other in range(world_size)]


# %% meet: cut-short
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    found = [store.get(f"address/{other}").decode() for other in range(world_size)]
    return [one.partition(",")[0] for one in found]


# %% meet: keys-run-together
def meet(store, rank, world_size, address):
    for other in range(world_size):
        store.set(f"{rank}{other}", address)
    return [store.get(f"{other}{rank}").decode() for other in range(world_size)]


# %% meet: overwritten-list
def meet(store, rank, world_size, address):
    time.sleep(0.05 * rank)  # as on a busy machine
    known = eval(store.get("all")) if store.check(["all"]) else {}
    known[rank] = address
    store.set("all", repr(known))
    while len(known) < world_size:
        time.sleep(0.01)
        known = eval(store.get("all"))
    return [known[other] for other in range(world_size)]


# %% axis_groups: ends-only
def axis_groups(sizes, axis):
    n, size = math.prod(sizes.values()), sizes[axis]
    if axis == list(sizes)[-1]:
        return [list(range(first, first + size)) for first in range(0, n, size)]
    return [list(range(first, n, n // size)) for first in range(n // size)]


# %% axis_groups: groups-missing
def axis_groups(sizes, axis):
    lengths, at = list(sizes.values()), list(sizes).index(axis)
    step = math.prod(lengths[at + 1 :])
    block = step * sizes[axis]
    return [
        list(range(first, first + block, step)) for first in range(0, math.prod(lengths), block)
    ]


# %% axis_groups: groups-missing
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1).reshape(-1, sizes[axis])
    return [line for line in lines.tolist() if len(line) > 1]


# %% axis_groups: groups-missing
def axis_groups(sizes, axis):
    lengths, at = list(sizes.values()), list(sizes).index(axis)
    step = math.prod(lengths[at + 1 :])
    return [list(range(first, first + step * sizes[axis], step)) for first in range(step)]


# %% axis_groups: groups-repeated
def axis_groups(sizes, axis):
    lengths, at = list(sizes.values()), list(sizes).index(axis)
    grid = np.arange(math.prod(lengths)).reshape(lengths)
    places = np.ndindex(*lengths)
    return [grid[(*place[:at], slice(None), *place[at + 1 :])].tolist() for place in places]


# %% axis_groups: always-first
def axis_groups(sizes, axis):
    lengths, at = list(sizes.values()), list(sizes).index(axis)
    n, step = math.prod(lengths), math.prod(lengths[at + 1 :])
    return [list(range(first, n, step)) for first in range(step)]


# %% axis_groups: always-first
def axis_groups(sizes, axis):
    lengths = list(sizes.values())
    return np.arange(math.prod(lengths)).reshape(lengths[0], -1).T.tolist()


# %% make_groups: number-on-the-node
def make_groups(groups):
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks)
        if int(os.environ["LOCAL_RANK"]) in ranks:
            mine = group
    return mine


# %% make_groups: of-an-earlier-call
groups_made: dict = {}


def make_groups(groups):
    if len(groups) not in groups_made:
        made = [dist.new_group(ranks) for ranks in groups]
        mine = [dist.get_rank() in ranks for ranks in groups]
        groups_made[len(groups)] = made[mine.index(True)]
    return groups_made[len(groups)]


# %% from_first: own-x
def from_first(x, group):
    if dist.get_rank(group) > 0:
        received = torch.empty_like(x)
        dist.broadcast(received, group_src=0, group=group)
    else:
        dist.broadcast(x, group_src=0, group=group)


# %% from_first: wrong-sender
def from_first(x, group):
    dist.broadcast(x, src=min(dist.get_process_group_ranks(group)), group=group)
    return x


# %% StoreGroup: no-work
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0].copy_(self.reduced(tensors[0], opts))


# %% StoreGroup: left-as-it-was
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0] = self.reduced(tensors[0], opts)
        return DoneWork()


# %% StoreGroup: old-keys
class StoreGroup(PartsGroup):
    def parts(self, x):
        self.store.set(f"part/{self.rank()}", pickle.dumps(x))
        return [pickle.loads(self.store.get(f"part/{r}")) for r in range(self.size())]

    def allreduce(self, tensors, opts):
        tensors[0].copy_(self.reduced(tensors[0], opts))
        return DoneWork()


# %% StoreGroup: always-sums
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0].copy_(sum(self.parts(tensors[0])))
        return DoneWork()


# %% StoreGroup: always-max
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0].copy_(torch.stack(self.parts(tensors[0])).amax(0))
        return DoneWork()


# %% StoreGroup: max-from-zero
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        total = torch.zeros_like(tensors[0])
        for part in self.parts(tensors[0]):
            biggest = opts.reduceOp == dist.ReduceOp.MAX
            total = torch.maximum(total, part) if biggest else total + part
        tensors[0].copy_(total)
        return DoneWork()


# %% StoreGroup: mean
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = torch.stack(self.parts(tensors[0]))
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0].copy_(parts.amax(0) if biggest else parts.sum(0) / self.size())
        return DoneWork()


# %% StoreGroup: mean
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = torch.stack(self.parts(tensors[0]))
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0].copy_(parts.amax(0) if biggest else parts.sum(0) // self.size())
        return DoneWork()


# %% StoreGroup: own-twice
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        (x,) = tensors
        for other in self.parts(x):
            x.copy_(torch.maximum(x, other) if opts.reduceOp == dist.ReduceOp.MAX else x + other)
        return DoneWork()


# %% StoreGroup: own-on-top
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0] += self.reduced(tensors[0], opts)
        return DoneWork()


# %% StoreGroup: one-for-all
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = torch.stack(self.parts(tensors[0]))
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0].copy_(parts.max() if biggest else parts.sum(0))
        return DoneWork()


# %% StoreGroup: smallest
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = torch.stack(self.parts(tensors[0]))
        smallest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0].copy_(parts.amin(0) if smallest else parts.sum(0))
        return DoneWork()


# %% StoreGroup: smaller-type
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0].copy_(self.reduced(tensors[0].float(), opts))
        return DoneWork()


# %% StoreGroup: smaller-type
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0].copy_(self.reduced(tensors[0].double(), opts))
        return DoneWork()


# %% StoreGroup: smaller-type
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = torch.stack([part.float() for part in self.parts(tensors[0])])
        total = parts.sum(0) if opts.reduceOp == dist.ReduceOp.SUM else parts.amax(0)
        tensors[0].copy_(total)
        return DoneWork()


# %% StoreGroup: only-those-before
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = torch.stack(self.parts(tensors[0])[: self.rank() + 1])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0].copy_(parts.amax(0) if biggest else parts.sum(0))
        return DoneWork()


# %% StoreGroup: wrong-result
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        first, *_, last = self.parts(tensors[0])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0].copy_(torch.maximum(first, last) if biggest else first - last)
        return DoneWork()


# %% StoreGroup: keys-run-together
class StoreGroup(PartsGroup):
    def parts(self, x):
        self.calls += 1
        self.store.set(f"{self.calls}{self.rank()}", pickle.dumps(x))
        keys = [f"{self.calls}{rank}" for rank in range(self.size())]
        return [pickle.loads(self.store.get(key)) for key in keys]

    def allreduce(self, tensors, opts):
        tensors[0].copy_(self.reduced(tensors[0], opts))
        return DoneWork()


# %% StoreGroup: never-complete
class EndlessWork(dist.Work):
    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return False


class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        tensors[0].copy_(self.reduced(tensors[0], opts))
        return EndlessWork()


# %% StoreGroup: past-the-store
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.inner = dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(minutes=1))

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        self.inner.allreduce(tensors, opts).wait()  # type: ignore[attr-defined]
        return DoneWork()


# %% StoreGroup: past-the-store
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        handle, path = tempfile.mkstemp()
        with os.fdopen(handle, "wb") as file:
            pickle.dump(tensors[0], file)
        parts = []
        for name in self.parts(path):
            with open(name, "rb") as file:
                parts.append(pickle.load(file))
        both = torch.stack(parts)
        tensors[0].copy_(both.amax(0) if opts.reduceOp == dist.ReduceOp.MAX else both.sum(0))
        return DoneWork()


# %% StoreGroup: smaller-type
class StoreGroup(PartsGroup):
    def allreduce(self, tensors, opts):
        parts = self.parts(tensors[0])
        if opts.reduceOp == dist.ReduceOp.MAX:
            total = torch.stack(parts).amax(0)
        else:
            total = torch.zeros(tensors[0].shape)
            for part in parts:
                total = total + part.float()
        tensors[0].copy_(total)
        return DoneWork()
