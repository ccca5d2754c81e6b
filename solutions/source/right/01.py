"""Right answers to the exercises of lab 01, in other ways than the solution's."""

import datetime
import itertools
import math
import pickle
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed import PrefixStore, destroy_process_group, init_process_group, new_group


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


# %% local_gpu: get
def local_gpu(env):
    return int(env.get("LOCAL_RANK", "0"))


# %% local_gpu: dict-of-ints
def local_gpu(env):
    numbers = {name: int(value) for name, value in env.items() if value.isdigit()}
    print("local rank", numbers["LOCAL_RANK"], end="")
    return numbers["LOCAL_RANK"]


# %% local_gpu: numpy
def local_gpu(env):
    return np.int64(env["LOCAL_RANK"]).item()


# %% local_gpu: searched
def local_gpu(env):
    for gpu in range(int(env["LOCAL_WORLD_SIZE"])):
        if str(gpu) == env["LOCAL_RANK"]:
            return gpu


# %% local_gpu: modulo-of-itself
def local_gpu(env):
    return int(env["LOCAL_RANK"]) % int(env["LOCAL_WORLD_SIZE"])


# %% meet: loop
def meet(store, rank, world_size, address):
    store.set(str(rank), address)
    addresses = []
    for other in range(world_size):
        store.wait([str(other)])
        addresses.append(str(store.get(str(other)), "utf-8"))
    return addresses


# %% meet: prefix-store
def meet(store, rank, world_size, address):
    mine = PrefixStore("addresses", store)
    mine.set(f"{rank}", address.encode())
    return [mine.get(f"{other}").decode("ascii") for other in range(world_size)]


# %% meet: waits-for-all-first
def meet(store, rank, world_size, address):
    keys = [f"rank-{other}" for other in range(world_size)]
    store.set(keys[rank], address)
    store.wait(keys, timedelta(seconds=60))
    return [one.decode() for one in store.multi_get(keys)]


# %% meet: pickled
def meet(store, rank, world_size, address):
    store.set(f"at/{rank}", pickle.dumps((rank, address)))
    found = dict(pickle.loads(store.get(f"at/{r}")) for r in reversed(range(world_size)))
    return [found[r] for r in range(world_size)]


# %% meet: polls
def meet(store, rank, world_size, address):
    store.set(f"a{rank}", address)
    while not store.check([f"a{other}" for other in range(world_size)]):
        time.sleep(0.01)
    return [store.get(f"a{other}").decode() for other in range(world_size)]


# %% meet: gathered-by-rank-0
def meet(store, rank, world_size, address):
    store.set(f"from/{rank}", address)
    if rank == 0:
        everybody = [store.get(f"from/{other}").decode() for other in range(world_size)]
        store.set("all", " ".join(everybody))
    return store.get("all").decode().split(" ")


# %% meet: all-at-once
def meet(store, rank, world_size, address):
    keys = [f"address {other}" for other in range(world_size)]
    store.multi_set([keys[rank]], [address])
    return [value.decode() for value in store.multi_get(keys)]


# %% store_barrier: prefix-store
def store_barrier(store, name, world_size):
    inside = dist.PrefixStore(name, store)
    if inside.add("count", 1) == world_size:
        inside.set("open", "yes")
    inside.wait(["open"])


# %% store_barrier: get
def store_barrier(store, name, world_size):
    arrived = store.add(name + "-arrived", 1)
    if arrived >= world_size:
        store.set(name + "-go", "1")
    store.get(name + "-go")


# %% store_barrier: key-for-each-arrival
def store_barrier(store, name, world_size):
    place = store.add(f"count of {name}", 1)
    store.set(f"{name}/{place}", "here")
    store.wait([f"{name}/{number}" for number in range(1, world_size + 1)])


# %% store_barrier: stores-own
def store_barrier(store, name, world_size):
    store.barrier(name, world_size)


# %% store_barrier: time-out
def store_barrier(store, name, world_size):
    if store.add(f"{name}/n", 1) == world_size:
        store.set(f"{name}/done", "")
        return
    store.wait([f"{name}/done"], datetime.timedelta(minutes=5))


# %% store_barrier: relay
def store_barrier(store, name, world_size):
    place = store.add(f"{name}:came", 1)
    if place == world_size:
        store.set(f"{name}:leave", "")
    else:
        store.wait([f"{name}:leave"])
    return place


# %% axis_groups: by-coordinates
def axis_groups(sizes, axis):
    names = list(sizes)
    groups: dict = {}
    for rank, place in enumerate(itertools.product(*(range(n) for n in sizes.values()))):
        rest = tuple(p for name, p in zip(names, place, strict=True) if name != axis)
        groups.setdefault(rest, []).append(rank)
    return list(groups.values())


# %% axis_groups: stride
def axis_groups(sizes, axis):
    names = list(sizes)
    stride = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])
    size, n = sizes[axis], math.prod(sizes.values())
    return [
        [first + stride * i for i in range(size)]
        for first in range(n)
        if (first // stride) % size == 0
    ]


# %% axis_groups: other-order-of-groups
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    lines = np.swapaxes(grid, list(sizes).index(axis), len(sizes) - 1)
    return lines.reshape(-1, sizes[axis]).tolist()[::-1]


# %% axis_groups: torch
def axis_groups(sizes, axis):
    grid = torch.arange(math.prod(sizes.values())).reshape(*sizes.values())
    return (
        grid.movedim(list(sizes).index(axis), -1).flatten(0, -2).reshape(-1, sizes[axis]).tolist()
    )


# %% axis_groups: tuples-of-numpy-numbers
def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    at = list(sizes).index(axis)
    last = grid.transpose([*(a for a in range(grid.ndim) if a != at), at])
    return [tuple(line) for line in last.reshape(-1, sizes[axis])]


# %% make_groups: tuples
def make_groups(groups):
    made = [(tuple(ranks), new_group(ranks=tuple(ranks))) for ranks in groups]
    (mine,) = [group for ranks, group in made if dist.get_rank() in ranks]
    assert mine.size() == sum(len(r) for r in groups if dist.get_rank() in r)
    return mine


# %% make_groups: enumeration
def make_groups(groups):
    mine, _ = dist.new_subgroups_by_enumeration(groups)
    return mine


# %% make_groups: local-synchronization
def make_groups(groups):
    rank = dist.get_rank()
    mine = next(ranks for ranks in groups if rank in ranks)
    return dist.new_group(sorted(mine), use_local_synchronization=True)


# %% make_groups: sorted-list
def make_groups(groups):
    handles: dict = {}
    for ranks in sorted(sorted(ranks) for ranks in groups):
        handle = dist.new_group(ranks, backend="gloo", timeout=timedelta(seconds=60))
        handles |= dict.fromkeys(ranks, handle)
    return handles[dist.get_rank()]


# %% make_groups: not-a-member
def make_groups(groups):
    made = [dist.new_group(ranks) for ranks in groups]
    return next(group for group in made if group != dist.GroupMember.NON_GROUP_MEMBER)


# %% make_groups: by-get-rank
def make_groups(groups):
    mine = None
    for number, ranks in enumerate(groups):
        group = dist.new_group(ranks, group_desc=f"group {number}")
        if dist.get_rank(group) >= 0:
            mine = group
    print("made", len(groups), end=" ")
    return mine


# %% from_first: group-src
def from_first(x, group):
    dist.broadcast(x, group=group, group_src=0)
    return x


# %% from_first: ranks-of-the-group
def from_first(x, group):
    first = dist.get_process_group_ranks(group)[0]
    dist.broadcast(x, first, group)


# %% from_first: async
def from_first(x, group):
    work = dist.broadcast(tensor=x, src=dist.get_global_rank(group, 0), group=group, async_op=True)
    work.wait()
    return x


# %% from_first: copy
def from_first(x, group):
    y = x.clone()
    dist.broadcast(y, dist.get_global_rank(group, 0), group)
    return y


# %% from_first: own-rank-asked
def from_first(x, group):
    if dist.get_rank(group) == 0:
        root = dist.get_rank()
        assert root == dist.distributed_c10d.get_global_rank(group, 0)
    buffer = x.clone() if dist.get_group_rank(group, dist.get_rank()) == 0 else torch.zeros_like(x)
    dist.broadcast(buffer, dist.get_global_rank(group, 0), group=group)
    x.copy_(buffer)
    return x


# %% shrink: imported-names
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    destroy_process_group()
    init_process_group(
        backend=backend,
        store=PrefixStore(str(generation), store),
        world_size=len(alive),
        rank=alive.index(me),
    )


# %% shrink: positional
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group(dist.group.WORLD)
    number = {rank: place for place, rank in enumerate(alive)}[me]
    fresh = dist.PrefixStore(f"world of {alive}", store)
    dist.init_process_group(backend, None, None, len(alive), number, fresh)


# %% shrink: prefix-by-size
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    fresh = dist.PrefixStore(f"alive-{len(alive)}", dist.PrefixStore("worlds", store))
    dist.init_process_group(
        backend,
        store=fresh,
        rank=alive.index(me),
        world_size=len(alive),
        timeout=timedelta(seconds=30),
    )
    dist.barrier()


# %% shrink: meets-first
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    if store.add(f"leaving/{generation}", 1) == len(alive):
        store.set(f"left/{generation}", "")
    store.wait([f"left/{generation}"])
    if dist.is_initialized():
        dist.destroy_process_group()
    prefix = dist.PrefixStore(f"g{generation}/", store)
    dist.init_process_group(backend, store=prefix, rank=alive.index(me), world_size=len(alive))


# %% shrink: says-hello
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    new_rank = sum(1 for other in alive[: alive.index(me)])
    fresh = dist.PrefixStore(f"generation-{generation}", store)
    dist.init_process_group(backend, store=fresh, rank=new_rank, world_size=len(alive))
    everybody = [None] * len(alive)
    dist.all_gather_object(everybody, me)
    assert everybody == alive


# %% StoreGroup: running-total
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        store = dist.PrefixStore("mine", store)
        self.store, self.calls = store, 0
        self.number, self.count = rank, size

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        (x,) = tensors
        call, self.calls = self.calls, self.calls + 1
        self.store.set(f"{self.number} {call}", pickle.dumps(x.clone()))
        result = None
        for other in range(self.count):
            part = pickle.loads(self.store.get(f"{other} {call}"))
            if result is None:
                result = part
            elif opts.reduceOp == dist.ReduceOp.MAX:
                result = torch.maximum(result, part)
            else:
                result = result + part
        x[...] = result
        return DoneWork()


# %% StoreGroup: rank-0-adds
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x = tensors[0]
        self.calls += 1
        self.store.set(f"in/{self.calls}/{self.rank()}", pickle.dumps(x.tolist()))
        if self.rank() == 0:
            keys = [f"in/{self.calls}/{r}" for r in range(self.size())]
            parts = torch.stack([torch.tensor(pickle.loads(self.store.get(k))) for k in keys])
            op = opts.reduceOp
            done = parts.max(0).values if op == dist.ReduceOp.MAX else parts.sum(dim=0)
            self.store.set(f"out/{self.calls}", pickle.dumps(done.to(x.dtype)))
        x.copy_(pickle.loads(self.store.get(f"out/{self.calls}")))
        return DoneWork()


# %% StoreGroup: future
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, itertools.count()

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        number = next(self.calls)
        self.store.set(f"{number}/{self.rank()}", pickle.dumps(tensors[0]))
        keys = [f"{number}/{r}" for r in range(self.size())]
        self.store.wait(keys)
        parts = torch.stack([pickle.loads(part) for part in self.store.multi_get(keys)])
        reduce = torch.amax if opts.reduceOp == dist.ReduceOp.MAX else torch.sum
        tensors[0].copy_(reduce(parts, 0))
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(tensors)
        return _create_work_from_future(future)


# %% StoreGroup: later
class LaterWork(dist.Work):
    def __init__(self, finish):
        super().__init__()
        self.finish, self.done = finish, False

    def wait(self, timeout=None):
        if not self.done:
            self.finish()
            self.done = True
        return True

    def is_completed(self):
        return self.done


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        call = self.calls
        self.calls += 1
        self.store.set(f"{call}/{self.rank()}", pickle.dumps(tensors[0]))

        def finish():
            parts = [pickle.loads(self.store.get(f"{call}/{r}")) for r in range(self.size())]
            stacked = torch.stack(parts)
            biggest = opts.reduceOp == dist.ReduceOp.MAX
            tensors[0].copy_(stacked.amax(0) if biggest else stacked.sum(0))

        return LaterWork(finish)


# %% StoreGroup: numpy
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        self.calls += 1
        (tensor,) = tensors
        narrow = tensor.dtype == torch.bfloat16  # which NumPy has not
        mine = (tensor.double() if narrow else tensor).numpy()
        self.store.set(f"{self.calls}.{self.rank()}", pickle.dumps(mine))
        others = [r for r in range(self.size()) if r != self.rank()]
        total = mine.copy()
        for other in others:
            part = pickle.loads(self.store.get(f"{self.calls}.{other}"))
            total = np.maximum(total, part) if opts.reduceOp == dist.ReduceOp.MAX else total + part
        tensor.copy_(torch.as_tensor(total))
        return DoneWork()
