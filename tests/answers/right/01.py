"""Right answers to the exercises of lab 01, written without sight of its checks; see judge.py."""

import collections
import contextlib
import functools
import io
import itertools
import json
import math
import operator
import pickle
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from operator import itemgetter

# %% local_gpu: itemgetter-closure
# A composition of functions in place of a def.


def compose(outer, inner):
    return lambda value: outer(inner(value))


local_gpu = compose(int, operator.itemgetter("LOCAL_RANK"))


# %% local_gpu: by-torch-device
# Makes a device out of the text "cuda:2" (which needs no GPU) and asks it for its index.


def local_gpu(env):
    return torch.device("cuda:" + env["LOCAL_RANK"]).index


# %% local_gpu: parsed-as-json
# The text is a JSON number; a match statement takes it out of the dict.


def local_gpu(env):
    match dict(env):
        case {"LOCAL_RANK": text}:
            return json.loads(text)
    raise KeyError("LOCAL_RANK")


# %% local_gpu: place-in-a-list-of-gpus
# Lists this node's GPUs and takes the one at the rank's place among the node's ranks.


def local_gpu(env):
    gpus = list(range(int(env["LOCAL_WORLD_SIZE"])))
    return gpus[int(env["LOCAL_RANK"], base=10)]


# %% local_gpu: digit-by-digit
# Reads the decimal number by Horner's rule, with functools.reduce.

local_gpu = lambda env: functools.reduce(
    lambda n, d: 10 * n + ord(d) - ord("0"), env["LOCAL_RANK"], 0
)


# %% local_gpu: helper-class
# A callable object with the variables as attributes.


class Place:
    def __init__(self, env):
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            setattr(self, name.lower(), int(env[name]))

    @property
    def gpu(self):
        return self.local_rank


def local_gpu(env):
    return Place(env).gpu


# %% local_gpu: parsed-as-json
# A number's text is JSON.


def local_gpu(env):
    return json.loads(env["LOCAL_RANK"])


# %% local_gpu: zero-where-it-is-not-set
# A program that was started by hand has no such variable, and one GPU is enough for it.


def local_gpu(env):
    return int(env.get("LOCAL_RANK", "0"), base=10)


# %% meet: wait-then-map
# One wait for all keys, then a map over get; bytes in, bytes decoded by operator.methodcaller.


def meet(store, rank, world_size, address):
    keys = list(map("where/is/{}".format, range(world_size)))
    store.set(keys[rank], address.encode())
    store.wait(keys)
    return list(map(operator.methodcaller("decode"), map(store.get, keys)))


# %% meet: rank-zero-makes-the-list
# Rank 0 collects and publishes one JSON list; everybody else reads that.


def meet(store, rank, world_size, address):
    if rank != 0:
        store.set(f"from {rank}", address)
    else:
        everybody = [address]
        for other in range(1, world_size):
            everybody.append(store.get(f"from {other}").decode("utf-8"))
        store.set("everybody", json.dumps(everybody))
    return json.loads(store.get("everybody"))


# %% meet: growing-list-down-a-chain
# Each rank reads its predecessor's list, adds itself and publishes it; all read the last one. Recursion-free, pickled
# and kept as bytes.


def meet(store, rank, world_size, address):
    known = pickle.loads(store.get(f"list/{rank - 1}")) if rank else []
    store.set(f"list/{rank}", pickle.dumps([*known, address]))
    return pickle.loads(store.get(f"list/{world_size - 1}"))


# %% meet: from-my-neighbour-on
# Reads in the order of the ring, from the next rank on, and puts each into its place; its own address isn't read back.


def meet(store, rank, world_size, address):
    store.set(f"address-of-{rank}", address)
    found = [None] * world_size
    found[rank] = address
    for step in range(1, world_size):
        other = (rank + step) % world_size
        found[other] = str(store.get(f"address-of-{other}"), encoding="utf-8")
    return found


# %% meet: polling-with-check
# Looks again and again which keys are there, and reads each as soon as it is; sorted by rank in the end.


def meet(store, rank, world_size, address):
    store.set(f"a{rank}", address)
    missing, found = set(range(world_size)), {}
    while missing:
        for other in sorted(missing):
            if store.check([f"a{other}"]):
                found[other] = store.get(f"a{other}").decode()
        missing -= found.keys()
        time.sleep(0.005 if missing else 0)
    return [found[other] for other in sorted(found)]


# %% meet: guest-book
# The ranks enter a book in the order of their arrival, each with its rank and address; the book is then sorted by rank.


def meet(store, rank, world_size, address):
    line = store.add("lines in the book", 1)
    store.set(f"line {line}", json.dumps([rank, address]))
    lines = [json.loads(store.get(f"line {n + 1}")) for n in range(world_size)]
    return [who for _, who in sorted(lines)]


# %% meet: keys-with-leading-zeros
# Names of equal length, waited for together, then read.


def meet(store, rank, world_size, address):
    keys = [f"{other:05d}" for other in range(world_size)]
    store.set(keys[rank], address.encode())
    store.wait(keys)
    return [bytes.decode(store.get(key)) for key in keys]


# %% meet: last-one-says-so
# A counter says who is the last; the others wait for its word, and then read.


def meet(store, rank, world_size, address):
    store.set(f"at/{rank}", address)
    if store.add("arrived", 1) == world_size:
        store.set("complete", "")
    store.wait(["complete"])
    found = {}
    for other in reversed(range(world_size)):
        found[other] = store.get(f"at/{other}").decode()
    return [found[other] for other in sorted(found)]


# %% store_barrier: last-one-opens
# A counter and a flag; four calls at most.


def store_barrier(store, name, world_size):
    arrived = store.add("arrived/" + name, 1)
    if arrived == world_size:
        store.set("open/" + name, b"")
    store.wait(["open/" + name])


# %% store_barrier: ticket-of-the-last
# Everyone draws a ticket, publishes it, and waits for the ticket that the last one draws.


def store_barrier(store, name, world_size):
    ticket = "ticket {} of {}".format
    store.set(ticket(store.add(f"tickets of {name}", 1), name), "drawn")
    store.get(ticket(world_size, name))


# %% store_barrier: one-wait-for-all-keys
# Everyone publishes a numbered key, and waits for all numbers in one call.


def store_barrier(store, name, world_size):
    keys = [f"{n}:{name}" for n in range(world_size)]
    mine = keys[store.add("n:" + name, 1) - 1]
    store.set(mine, mine)
    store.wait(keys)


# %% store_barrier: door-held-for-the-one-before
# Opened backwards: the last to come opens for the one before, who opens for the one before that, and so on.


def store_barrier(store, name, world_size):
    place = store.add(f"places/{name}", 1)
    if place < world_size:
        store.get(f"go-{place}/{name}")
    if place > 1:
        store.set(f"go-{place - 1}/{name}", "go")


# %% store_barrier: countdown-object
# A helper class counts down from the world's size, by adding -1 to a counter that begins at 0.


class Countdown:
    def __init__(self, store, name):
        self.store, self.name = store, name

    def __enter__(self):
        return self.store.add(f"countdown/{self.name}", -1)

    def __exit__(self, *error):
        self.store.get(f"lift-off/{self.name}")


def store_barrier(store, name, world_size):
    with Countdown(store, name) as count:
        if world_size + count == 0:
            store.set(f"lift-off/{name}", "0")


# %% store_barrier: two-phases
# In at the first counter, whose last rank opens; out at a second one, which returns only when all have seen the flag.


def store_barrier(store, name, world_size):
    for phase in ("in", "out"):
        enter = functools.partial(store.add, f"{phase}:count:{name}")
        flag = f"{phase}:flag:{name}"
        {True: store.set, False: lambda key, value: None}[enter(1) >= world_size](flag, "1")
        store.get(flag)


# %% store_barrier: waits-for-the-last-count
# Each leaves a key with its count; the last count's is waited for.


def store_barrier(store, name, world_size):
    store.set(f"{name}/{store.add(name + '/count', 1)}", "")
    store.wait([f"{name}/{world_size}"])


# %% store_barrier: hand-in-hand-backwards
# Who came k-th waits for the (k + 1)-th, and then lets the (k - 1)-th go.


def store_barrier(store, name, world_size):
    place = store.add(f"{name}.places", 1)
    if place < world_size:
        store.get(f"{name}.free.{place}")
    if place > 1:
        store.set(f"{name}.free.{place - 1}", "go")


# %% axis_groups: swapaxes
# Exchanges two axes of the NumPy grid: the groups come in another order, which is free.


def axis_groups(sizes, axis):
    ranks = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    return ranks.swapaxes(tuple(sizes).index(axis), -1).reshape(-1, sizes[axis]).tolist()


# %% axis_groups: strides
# No grid at all: only the step between neighbours on the axis and the size of a block, from plain integers.


def axis_groups(sizes, axis):
    names = list(sizes)
    step = math.prod(sizes[name] for name in names[names.index(axis) + 1 :])
    block, world = step * sizes[axis], math.prod(sizes.values())
    firsts = (start + inside for start in range(0, world, block) for inside in range(step))
    return [[*range(first, first + block, step)] for first in firsts]


# %% axis_groups: same-place-on-all-others
# Counts through all places with itertools.product, and puts the ranks together whose other places are the same.


def axis_groups(sizes, axis):
    lines = collections.defaultdict(list)
    for rank, place in enumerate(itertools.product(*map(range, sizes.values()))):
        where = dict(zip(sizes, place, strict=True))
        del where[axis]
        lines[frozenset(where.items())].append(rank)
    return list(lines.values())


# %% axis_groups: recursion-over-axes
# The groups of one block, shifted for each block of the first axis; at the wanted axis, a column of the blocks below.


def axis_groups(sizes, axis):
    (name, size), *rest = sizes.items()
    below = math.prod(n for _, n in rest)
    if name == axis:
        return [[first + below * i for i in range(size)] for first in range(below)]
    inner = axis_groups(dict(rest), axis)
    return [[below * i + rank for rank in line] for i in range(size) for line in inner]


# %% axis_groups: torch-unflatten-and-unbind
# A torch tensor with as many axes as the grid; one axis moved to the front, and zipped.


def axis_groups(sizes, axis):
    grid = torch.arange(math.prod(sizes.values())).unflatten(0, list(sizes.values()))
    columns = [part.flatten().tolist() for part in grid.unbind(list(sizes).index(axis))]
    return list(map(list, zip(*columns, strict=True)))


# %% axis_groups: sort-and-groupby
# Sorts ranks by what is left of them without their place on the axis, and cuts where that changes. Groups from last to
# first.


def axis_groups(sizes, axis):
    names = list(sizes)
    step = math.prod([sizes[n] for n in names[names.index(axis) + 1 :]])
    rest = lambda rank: divmod(rank, step * sizes[axis])[0] * step + rank % step
    ranks = sorted(range(math.prod(sizes.values())), key=lambda rank: (-rest(rank), rank))
    return [list(line) for _, line in itertools.groupby(ranks, key=rest)]


# %% axis_groups: by-the-other-coordinates
# Ranks that agree in all places but one.


def axis_groups(sizes, axis):
    at = list(sizes).index(axis)
    groups = {}
    for rank, place in enumerate(np.ndindex(*sizes.values())):
        groups.setdefault(place[:at] + place[at + 1 :], []).append(rank)
    return list(groups.values())


# %% axis_groups: three-dimensions-are-enough
# Whatever comes before, the axis, whatever comes after.


def axis_groups(sizes, axis):
    lengths = list(sizes.values())
    at = list(sizes).index(axis)
    grid = np.arange(math.prod(lengths)).reshape(math.prod(lengths[:at]), lengths[at], -1)
    return [column.tolist() for block in grid for column in block.T]


# %% make_groups: list-then-index
# Makes all, and then looks for the list that has this rank in it.


def make_groups(groups):
    made = list(map(dist.new_group, groups))
    return made[next(i for i, ranks in enumerate(groups) if dist.get_rank() in ranks)]


# %% make_groups: by-enumeration
# The library's own: new_subgroups_by_enumeration calls new_group for each list, on every rank.


def make_groups(groups):
    return dist.new_subgroups_by_enumeration(groups)[0]


# %% make_groups: table-of-ranks
# A dict from each rank to its group; the groups are made from the last to the first, on every rank alike.


def make_groups(groups):
    group_of = {}
    for ranks in reversed(groups):
        group_of |= dict.fromkeys(ranks, dist.new_group(ranks=ranks))
    return group_of[dist.get_rank()]


# %% make_groups: recursion
# Makes the first, then the rest by recursion, and chooses on the way back.


def make_groups(groups):
    if not groups:
        return None
    head, *tail = groups
    group, later = dist.new_group(head), make_groups(tail)
    return group if dist.get_rank() in head else later


# %% make_groups: asks-each-group
# Asks each group for this rank's place, which is -1 for those who aren't members.


def make_groups(groups):
    made = [dist.new_group(ranks, group_desc=f"number {i}") for i, ranks in enumerate(groups)]
    (mine,) = filter(lambda group: dist.get_rank(group) != -1, made)
    return mine


# %% make_groups: not-a-non-member
# new_group gives a marker to those who aren't members; a helper object keeps whatever is not that marker.


class Mine:
    group = None

    def take(self, group):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            self.group = group


def make_groups(groups):
    mine = Mine()
    for ranks in sorted(groups):
        mine.take(dist.new_group(tuple(ranks)))
    return mine.group


# %% make_groups: all-by-a-comprehension
# All are made, and then one is chosen by asking which rank this is in it.


def make_groups(groups):
    made = [dist.new_group(ranks, backend=dist.get_backend()) for ranks in groups]
    [mine] = [group for ranks, group in zip(groups, made, strict=True) if dist.get_rank() in ranks]
    return mine


# %% make_groups: sorted-in-the-same-way
# Another order, which is the same on all ranks.


def make_groups(groups):
    mine = None
    for ranks in sorted(groups, key=max, reverse=True):
        group = dist.new_group(ranks=tuple(ranks))
        mine = group if dist.get_rank() in ranks else mine
    return mine


# %% from_first: group-src
# Says the place in the group; x is changed, and nothing is returned.


def from_first(x, group):
    dist.broadcast(x, group_src=0, group=group)


# %% from_first: global-rank-into-a-copy
# Translates place 0 to a global rank; x stays as it was, a copy is returned.


def from_first(x, group):
    received = x.clone()
    dist.broadcast(received, src=dist.get_global_rank(group, 0), group=group)
    return received


# %% from_first: first-of-the-list-async
# The first of the group's list of ranks; an async call, and a handle that is waited for.


def from_first(x, group):
    first, *_ = dist.get_process_group_ranks(group)
    handle = dist.broadcast(x, first, group, async_op=True)
    handle.wait()
    return x


# %% from_first: by-partial
# Builds the call by functools.partial, and makes it in a with statement's end.


def from_first(x, group):
    call = functools.partial(dist.broadcast, group=group, group_src=0)
    with contextlib.ExitStack() as stack:
        stack.callback(call, x)
    return x


# %% from_first: first-fills-a-new-tensor
# Everybody makes a new tensor; only the first member copies its x into it before the broadcast; then back into x.


def from_first(x, group):
    box = torch.zeros_like(x)
    if dist.get_rank(group) == 0:
        box.copy_(x)
    source = {place: who for place, who in enumerate(dist.get_process_group_ranks(group))}[0]
    dist.broadcast(box, src=source, group=group)
    x.copy_(box)


# %% from_first: functional
# The functional broadcast, whose source is a place in the group; x stays as it was.


def from_first(x, group):
    return funcol.wait_tensor(funcol.broadcast(x, 0, group))


# %% from_first: nothing-for-one
# A group of one member has nobody to send to.


def from_first(x, group):
    if dist.get_world_size(group) > 1:
        dist.broadcast(x, group_src=0, group=group)
    return x


# %% from_first: result-of-the-call
# The call works in place; that it returns None is no matter.


def from_first(x, group):
    return dist.broadcast(x, group=group, group_src=0)


# %% from_first: in-a-clone
# The argument stays as it is; the answer is another tensor.


def from_first(x, group):
    y = x.detach().clone()
    work = dist.broadcast(y, dist.get_global_rank(group, 0), group, async_op=True)
    work.wait()
    return y


# %% shrink: a-prefix-for-each-generation
# Names the backend as the old world had it.


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"generation-{generation}", store),
        world_size=len(alive),
        rank=alive.index(me),
    )


# %% shrink: nested-prefixes
# One prefix more for each generation: "next/next/..." is new each time.


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    for _ in range(generation):
        store = dist.PrefixStore("next", store)
    numbers = dict(zip(alive, itertools.count()))
    dist.destroy_process_group()
    dist.init_process_group(backend, store=store, rank=numbers[me], world_size=len(numbers))


# %% shrink: everybody-connected-before-it-returns
# Ends with a barrier of the new world, so that nobody ends that while another still connects.


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    if dist.is_initialized():
        dist.destroy_process_group(dist.group.WORLD)
    name = "-".join(map(str, [generation, "of", *alive]))
    rank = next(new for new, old in enumerate(alive) if old == me)
    own = dist.PrefixStore(name, store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=len(alive))
    dist.barrier()


# %% shrink: numpy-and-options
# The rank by NumPy, the call's options in a dict that a helper makes.


def new_world(store, me, alive, generation):
    (place,) = np.flatnonzero(np.asarray(alive) == me).tolist()
    own = dist.PrefixStore(f"{generation:06d}", dist.PrefixStore("shrunk", store))
    return {"store": own, "rank": place, "world_size": len(alive)}


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    options = new_world(store, me, alive, generation)
    dist.destroy_process_group()
    dist.init_process_group(backend=backend, **options)


# %% shrink: prefix-agreed-in-the-store
# The first of those alive writes a fresh name for the new world under a key of this generation; all others read it.


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    notice = f"notice of generation {generation}"
    if me == alive[0]:
        store.set(notice, f"world {generation} of {len(alive)}, since {time.time_ns()}")
    own = dist.PrefixStore(store.get(notice).decode(), store)
    dist.init_process_group(backend, store=own, rank=alive.index(me), world_size=len(alive))


# %% shrink: exit-stack-and-partial
# The two calls as closures: the new world's is prepared while the old one is there, and called at the end of `with`.


def shrink(store, me, alive, generation):
    meet = functools.partial(dist.init_process_group, dist.get_backend(), world_size=len(alive))
    with contextlib.ExitStack() as stack:
        own = dist.PrefixStore(f"after-shrinking-{generation}-times", store)
        stack.callback(meet, store=own, rank=[*alive].index(me))
        stack.callback(dist.destroy_process_group)


# %% shrink: prefix-with-the-members
# The new world's name says its generation and who is in it.


def shrink(store, me, alive, generation):
    place = {old: new for new, old in enumerate(alive)}
    name = f"{generation}:" + ",".join(str(one) for one in alive)
    settings = {"backend": dist.get_backend(), "world_size": len(place), "rank": place[me]}
    dist.destroy_process_group(dist.group.WORLD)
    dist.init_process_group(store=dist.PrefixStore(name, store), **settings)


# %% shrink: one-prefix-in-another
# A prefix for each generation so far.


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    for _ in range(generation):
        store = dist.PrefixStore("smaller", store)
    dist.destroy_process_group()
    dist.init_process_group(backend, store=store, rank=alive.index(me), world_size=len(alive))
    dist.barrier()


# %% StoreGroup: stack-and-reduce
# All parts in one stack, reduced over its first axis.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        (tensor,) = tensors
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(tensor))
        keys = [f"{self.calls}/{r}" for r in range(self.size())]
        parts = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(parts.amax(0) if biggest else parts.sum(0))
        return DoneWork()


# %% StoreGroup: rank-zero-does-it-all
# Rank 0 reads everybody's tensor, reduces, and publishes the result; the others read one value.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        call, self.calls = self.calls, self.calls + 1
        tensor, result = tensors[0], f"result of {call}"
        if self.rank() > 0:
            self.store.set(f"{call} from {self.rank()}", pickle.dumps(tensor))
        else:
            for r in range(1, self.size()):
                other = pickle.loads(self.store.get(f"{call} from {r}"))
                if opts.reduceOp == dist.ReduceOp.MAX:
                    torch.maximum(tensor, other, out=tensor)
                else:
                    torch.add(tensor, other, out=tensor)
            self.store.set(result, pickle.dumps(tensor))
        if self.rank() > 0:
            tensor.copy_(pickle.loads(self.store.get(result)))
        return DoneWork()


# %% StoreGroup: down-a-chain
# Each rank reads what its predecessor has so far, takes its own part into it and passes it on; the last rank's is the result.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        tensor = tensors[0]
        key = "call {} up to {}".format
        self.calls += 1
        so_far = tensor.clone()
        if self.rank():
            before = pickle.loads(self.store.get(key(self.calls, self.rank() - 1)))
            take = torch.maximum if opts.reduceOp == dist.ReduceOp.MAX else torch.add
            so_far = take(before, so_far)
        self.store.set(key(self.calls, self.rank()), pickle.dumps(so_far))
        tensor.copy_(pickle.loads(self.store.get(key(self.calls, self.size() - 1))))
        return DoneWork()


# %% StoreGroup: by-torch-save-and-fold
# Serialised by torch.save into memory; a table of operations; functools.reduce over a generator; copies under no_grad.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def published(self, key, value):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        self.store.set(key, buffer.getvalue())

    def read(self, key):
        return torch.load(io.BytesIO(self.store.get(key)))

    def allreduce(self, tensors, opts):
        ways = [(dist.ReduceOp.SUM, torch.add), (dist.ReduceOp.MAX, torch.maximum)]
        way = next(way for op, way in ways if opts.reduceOp == op)
        prefix = f"allreduce-{self.calls}-by-"
        self.calls += 1
        self.published(prefix + str(self.rank()), tensors[0].detach().clone())
        everybody = (self.read(prefix + str(r)) for r in range(self.size()))
        with torch.no_grad():
            tensors[0].copy_(functools.reduce(way, everybody))
        return DoneWork()


# %% StoreGroup: a-share-for-each-rank
# Reduce-scatter and all-gather: each rank reduces one share of the elements for all, and publishes it.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        tensor, rank, size = tensors[0], self.rank(), self.size()
        self.calls += 1
        shares = tensor.reshape(-1).tensor_split(size)
        for to, share in enumerate(shares):
            self.store.set(f"{self.calls}/{rank}/to/{to}", pickle.dumps(share.clone()))
        mine = pickle.loads(self.store.get(f"{self.calls}/0/to/{rank}"))
        for source in range(1, size):
            other = pickle.loads(self.store.get(f"{self.calls}/{source}/to/{rank}"))
            biggest = opts.reduceOp == dist.ReduceOp.MAX
            mine = torch.maximum(mine, other) if biggest else mine + other
        self.store.set(f"{self.calls}/done/{rank}", pickle.dumps(mine))
        keys = [f"{self.calls}/done/{r}" for r in range(size)]
        done = torch.cat([pickle.loads(self.store.get(key)) for key in keys])
        tensor.copy_(done.view(tensor.shape))
        return DoneWork()


# %% StoreGroup: up-a-tree
# A recursive tree: the first rank of each range reads its two halves' results; everybody reads the root's.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def reduced(self, call, first, end, tensor, take):
        """The result over ranks first to end - 1, on rank `first`."""
        if end - first == 1:
            return tensor.clone() if first == self.rank() else None
        middle = (first + end) // 2
        low = self.reduced(call, first, middle, tensor, take)
        high = self.reduced(call, middle, end, tensor, take)
        key = f"{call}/{middle}:{end}"
        if self.rank() == middle:
            self.store.set(key, pickle.dumps(high))
        if self.rank() == first:
            return take(low, pickle.loads(self.store.get(key)))

    def allreduce(self, tensors, opts):
        call, self.calls = self.calls, self.calls + 1
        take = torch.maximum if opts.reduceOp == dist.ReduceOp.MAX else torch.add
        root = self.reduced(call, 0, self.size(), tensors[0], take)
        if self.rank() == 0:
            self.store.set(f"{call}/all", pickle.dumps(root))
        tensors[0].copy_(pickle.loads(self.store.get(f"{call}/all")))
        return DoneWork()


# %% StoreGroup: combined-one-by-one
# A function of two tensors, over the parts in the order of ranks.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        call, self.calls = self.calls, self.calls + 1
        combine = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}[opts.reduceOp.op]
        self.store.set(f"call {call} rank {self.rank()}", pickle.dumps(tensors[0].detach()))
        parts = (pickle.loads(self.store.get(f"call {call} rank {r}")) for r in range(self.size()))
        tensors[0].copy_(functools.reduce(combine, parts))
        return DoneWork()


# %% StoreGroup: rank-zero-computes
# One rank reads all parts and writes one result, which all read.


class DoneWork(dist.Work):
    """The handle of a call that was complete when it returned."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        self.calls += 1
        key = f"{self.calls:08d}/"
        (x,) = tensors
        if self.rank():
            self.store.set(key + str(self.rank()), pickle.dumps(x))
        else:
            result = x.clone()
            for other in range(1, self.size()):
                part = pickle.loads(self.store.get(key + str(other)))
                result = (
                    torch.max(result, part) if opts.reduceOp == dist.ReduceOp.MAX else result + part
                )
            self.store.set(key + "result", pickle.dumps(result))
        x.copy_(pickle.loads(self.store.get(key + "result")))
        return DoneWork()


# %% local_gpu: found-among-the-items
def local_gpu(env):
    return next(int(value) for name, value in env.items() if name == "LOCAL_RANK")


# %% meet: looks-again-and-again
def meet(store, rank, world_size, address):
    store.set(str(rank), address)
    found = {}
    while len(found) < world_size:
        for r in range(world_size):
            if r not in found and store.check([str(r)]):
                found[r] = store.get(str(r)).decode()
        time.sleep(0.001)
    return [found[r] for r in range(world_size)]


# %% store_barrier: get-of-the-open-door
def store_barrier(store, name, world_size):
    count, door = f"barrier/{name}/count", f"barrier/{name}/door"
    if store.add(count, 1) < world_size:
        store.get(door)
    else:
        store.set(door, b"open")


# %% axis_groups: by-stride-and-remainder
def axis_groups(sizes, axis):
    names = list(sizes)
    total = math.prod(sizes.values())
    stride = math.prod([sizes[name] for name in names[names.index(axis) + 1 :]])
    groups = collections.defaultdict(list)
    for rank in range(total):
        groups[rank // (stride * sizes[axis]), rank % stride].append(rank)
    return [*groups.values()]


# %% axis_groups: coordinates-by-itertools
def axis_groups(sizes, axis):
    at = [*sizes].index(axis)
    places = itertools.product(*map(range, sizes.values()))
    groups = {}
    for rank, place in enumerate(places):
        others = place[:at] + place[at + 1 :]
        groups[others] = groups.get(others, []) + [rank]
    return list(reversed(groups.values()))


# %% shrink: those-before-me
def shrink(store, me, alive, generation):
    before = list(itertools.takewhile(lambda other: other != me, alive))
    options = {"rank": len(before), "world_size": len(alive)}
    options["store"] = dist.PrefixStore(f"world after {generation} losses", store)
    options["backend"] = dist.get_backend()
    dist.destroy_process_group()
    dist.init_process_group(**options)


# %% shrink: with-a-barrier-at-the-end
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    prefix = "-".join(map(str, [generation, *alive]))
    dist.init_process_group(
        backend, None, None, len(alive), alive.index(me), dist.PrefixStore(prefix, store)
    )
    dist.barrier()


# %% StoreGroup: folded-by-an-operator
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        combine = {True: torch.maximum, False: operator.add}
        combine = combine[opts.reduceOp == dist.ReduceOp.MAX]
        key = lambda rank: f"call {self.calls} of rank {rank}"
        self.store.set(key(self.rank()), pickle.dumps(tensors[0].clone()))
        parts = (pickle.loads(self.store.get(key(r))) for r in range(self.size()))
        tensors[0].copy_(functools.reduce(combine, parts))
        self.calls += 1
        return DoneWork()


class DoneWork(dist.Work):
    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


# %% StoreGroup: assigned-by-ellipsis
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        self.calls += 1
        ranks = [f"{self.calls}/{r}" for r in range(self.size())]
        self.store.set(ranks[self.rank()], pickle.dumps(tensors[0], protocol=5))
        everything = torch.stack([pickle.loads(self.store.get(rank)) for rank in ranks])
        if opts.reduceOp == dist.ReduceOp.MAX:
            tensors[0][...] = everything.max(dim=0).values
        else:
            tensors[0][...] = everything.sum(dim=0)
        return DoneWork()


class DoneWork(dist.Work):
    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


# %% StoreGroup: handed-from-rank-to-rank
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x, me, last = tensors[0], self.rank(), self.size() - 1
        self.calls += 1
        if me > 0:
            so_far = pickle.loads(self.store.get(f"{self.calls}/{me - 1}"))
            largest = opts.reduceOp == dist.ReduceOp.MAX
            x.copy_(torch.max(so_far, x) if largest else so_far + x)
        self.store.set(f"{self.calls}/{me}", pickle.dumps(x))
        x.copy_(pickle.loads(self.store.get(f"{self.calls}/{last}")))
        return DoneWork()


class DoneWork(dist.Work):
    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


# %% local_gpu: itemgetter
def local_gpu(env):
    rank, first = int(env["RANK"]), int(env["RANK"]) - int(env["LOCAL_RANK"])
    return [*range(first, first + int(env["LOCAL_WORLD_SIZE"]))].index(rank)


# %% meet: multi-get
def meet(store, rank, world_size, address):
    keys = [f"address of {one}" for one in range(world_size)]
    store.set(keys[rank], address.encode("utf-8"))
    return [str(one, "utf-8") for one in store.multi_get(keys)]


# %% store_barrier: a-key-each
def store_barrier(store, name, world_size):
    me = store.add(f"{name}: who", 1)
    store.set(f"{name}: here {me}", "")
    store.wait([f"{name}: here {one}" for one in range(1, world_size + 1)])


# %% axis_groups: by-stride
def axis_groups(sizes, axis):
    names, lengths = zip(*sizes.items())
    at = names.index(axis)
    stride = int(np.prod(lengths[at + 1 :], dtype=int))
    total = int(np.prod(lengths))
    firsts = (rank for rank in range(total) if rank // stride % lengths[at] == 0)
    return [[first + step * stride for step in range(lengths[at])] for first in firsts]


# %% make_groups: enumerated
def make_groups(groups):
    made = [dist.new_group(ranks=one) for one in groups]
    return made[[dist.get_rank() in one for one in groups].index(True)]


# %% from_first: translated
def from_first(x, group):
    y = x.contiguous().clone()
    dist.broadcast(y, src=dist.get_global_rank(group, 0), group=group)
    return y


# %% shrink: named-arguments
def shrink(store, me, alive, generation):
    of = {number: place for place, number in enumerate(alive)}
    name = dist.get_backend(dist.group.WORLD)
    dist.destroy_process_group(dist.group.WORLD)
    dist.init_process_group(
        backend=name,
        rank=of[me],
        world_size=len(of),
        store=dist.PrefixStore(f"generation {generation}/", store),
    )
