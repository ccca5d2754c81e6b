"""Wrong answers to the exercises of lab 01, written without sight of its checks; see judge.py."""

import json
import math
import os
import pickle
import tempfile
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import itertools

# %% local_gpu: rank-modulo-local-world-size
# RANK % LOCAL_WORLD_SIZE: right only where all nodes have the same number of GPUs. With nodes of 3 and 4, rank 3
# (local rank 0) gets GPU 3.


def local_gpu(env):
    return int(env["RANK"]) % int(env["LOCAL_WORLD_SIZE"])


# %% local_gpu: a-string
# The value of the variable as it is, a string: the goal wants an int.


def local_gpu(env):
    return env["LOCAL_RANK"]


# %% local_gpu: global-rank
# RANK: right on the first node only; the second node has no GPU with that index.


def local_gpu(env):
    return int(env["RANK"])


# %% local_gpu: four-gpus-in-each-node
# The table's two nodes had four ranks each; the 4 is copied from there.


def local_gpu(env):
    return int(env["RANK"]) % 4


# %% local_gpu: ranks-before-this-node
# Subtracts GROUP_RANK * LOCAL_WORLD_SIZE, as if all earlier nodes were as large as this one. With nodes of 2 and 4
# the second node's first rank gets -2.


def local_gpu(env):
    before = int(env["GROUP_RANK"]) * int(env["LOCAL_WORLD_SIZE"])
    return int(env["RANK"]) - before


# %% local_gpu: from-os-environ
# Ignores the dict that it gets and looks at this process's own variables: right only when env is os.environ.


def local_gpu(env):
    return int(os.environ.get("LOCAL_RANK", 0))


# %% local_gpu: last-digit
# Takes the last character: right up to local rank 9; a node may have any number of GPUs.


def local_gpu(env):
    return int(env["LOCAL_RANK"][-1])


# %% local_gpu: zero-is-false
# Means "RANK where there is no LOCAL_RANK", but 0 is false: the first rank of each later node gets its RANK.


def local_gpu(env):
    return int(env["LOCAL_RANK"]) or int(env["RANK"])


# %% local_gpu: counted-from-one
# Counts the node's GPUs backwards, and from 1 instead of 0: local rank 0 gets the index LOCAL_WORLD_SIZE, which no
# GPU has.


def local_gpu(env):
    return int(env["LOCAL_WORLD_SIZE"]) - int(env["LOCAL_RANK"])


# %% local_gpu: ranks-dealt-like-cards
# Thinks that ranks go round the nodes in turn (0 to node 0, 1 to node 1, ...): right on one node only.


def local_gpu(env):
    nodes = int(env["WORLD_SIZE"]) // int(env["LOCAL_WORLD_SIZE"])
    return int(env["RANK"]) // nodes


# %% local_gpu: eight-at-most
# "No machine has more than eight": two ranks share a GPU where a node has 16.


def local_gpu(env):
    return int(env["LOCAL_RANK"]) % 8


# %% local_gpu: remembers-the-first-answer
# Keeps its first answer, since "a rank never moves": asked about another rank's variables, it still gives the first.

remembered = []


def local_gpu(env):
    if not remembered:
        remembered.append(int(env["LOCAL_RANK"]))
    return remembered[0]


# %% local_gpu: name-of-the-device
# What `.to()` would take, where the goal asks for the index.


def local_gpu(env):
    return f"cuda:{env['LOCAL_RANK']}"


# %% local_gpu: quotient-for-remainder
# divmod's first number is the node, where nodes are alike.


def local_gpu(env):
    gpu, node = divmod(int(env["RANK"]), int(env["LOCAL_WORLD_SIZE"]))
    return gpu


# %% local_gpu: one-character
# The number of a character: no number has two of them on nodes of up to ten GPUs.


def local_gpu(env):
    return ord(env["LOCAL_RANK"]) - ord("0")


# %% local_gpu: from-the-end-of-the-world
# Counts from the last rank: an index on the last node only.


def local_gpu(env):
    return int(env["WORLD_SIZE"]) - 1 - int(env["RANK"])


# %% meet: bytes
# get returns bytes, and so does this: the goal wants a list of strings.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{r}") for r in range(world_size)]


# %% meet: in-order-of-arrival
# Each rank draws a number from a counter and writes there: the list is in the order of arrival, not of ranks.


def meet(store, rank, world_size, address):
    place = store.add("arrived", 1) - 1
    store.set(f"address/{place}", address)
    return [store.get(f"address/{p}").decode() for p in range(world_size)]


# %% meet: reads-others-before-it-publishes
# Collects the others' addresses first and publishes its own afterwards: all ranks wait for each other for ever
# (right for a world of one).


def meet(store, rank, world_size, address):
    found = {rank: address}
    for r in range(world_size):
        if r != rank:
            found[r] = store.get(f"address/{r}").decode()
    store.set(f"address/{rank}", address)
    return [found[r] for r in range(world_size)]


# %% meet: only-those-already-there
# `check` doesn't wait: ranks that come later are missing from the lists of those who came early.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    there = [f"address/{r}" for r in range(world_size) if store.check([f"address/{r}"])]
    return [store.get(key).decode() for key in there]


# %% meet: keys-sorted-as-strings
# Sorts the keys, as strings: "address/10" comes before "address/2". Right up to ten ranks.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    keys = sorted(f"address/{r}" for r in range(world_size))
    store.wait(keys)
    return [store.get(key).decode() for key in keys]


# %% meet: one-list-read-and-written-back
# All ranks keep one JSON dict under one key: read it, add mine, write it back. Two ranks that come at the same time
# overwrite each other's entry, and then all wait for ever (a lost update; right if they come one after the other).


def meet(store, rank, world_size, address):
    known = json.loads(store.get("all")) if store.check(["all"]) else {}
    known[str(rank)] = address
    store.set("all", json.dumps(known))
    while len(known) < world_size:
        time.sleep(0.01)
        known = json.loads(store.get("all"))
    return [known[str(r)] for r in range(world_size)]


# %% meet: joined-by-commas
# Rank 0 collects all and publishes them joined by commas: an address is any string, and one with a comma in it
# comes out as two.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    if rank == 0:
        found = [store.get(f"address/{r}").decode() for r in range(world_size)]
        store.set("addresses", ",".join(found))
    return store.get("addresses").decode().split(",")


# %% meet: waits-half-a-second-at-most
# Gives the others half a second and raises if one is later. The ranks arrive at different times.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    keys = [f"address/{r}" for r in range(world_size)]
    store.wait(keys, timedelta(seconds=0.5))
    return [store.get(key).decode() for key in keys]


# %% meet: tidies-up-too-early
# Deletes its own key as soon as it has the list itself: a slower rank that has not read it yet waits for ever.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    found = [store.get(f"address/{r}").decode() for r in range(world_size)]
    store.delete_key(f"address/{rank}")
    return found


# %% meet: the-others-only
# Leaves out this rank's own address; the goal wants those of all ranks.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{r}").decode() for r in range(world_size) if r != rank]


# %% meet: list-on-rank-zero-only
# Rank 0 collects the list and all the others, having published, return nothing useful: not "on every rank".


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    if rank > 0:
        return [address]
    return [store.get(f"address/{r}").decode() for r in range(world_size)]


# %% meet: own-address-first
# This rank's address, then those of the others.


def meet(store, rank, world_size, address):
    store.set(str(rank), address)
    others = [other for other in range(world_size) if other != rank]
    return [address] + [store.get(str(other)).decode() for other in others]


# %% meet: counted-from-one
# The ranks read are 1 to N, and nobody is rank N: all wait for ever.


def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{other}").decode() for other in range(1, world_size + 1)]


# %% meet: waits-for-its-own-key
# The wait is for the key that this rank has just written; of the others it takes what is there.


def meet(store, rank, world_size, address):
    store.set(f"{rank}", address)
    store.wait([f"{rank}"])
    found = []
    for other in range(world_size):
        key = f"{other}"
        found.append(store.get(key).decode() if store.check([key]) else "")
    return found


# %% meet: host-without-port
# Only what stands before the colon.


def meet(store, rank, world_size, address):
    store.set(f"host{rank}", address.split(":")[0])
    return [store.get(f"host{r}").decode() for r in range(world_size)]


# %% store_barrier: asks-again-and-again
# Polls the counter until it's full. Right, but a rank that waits for a late one makes hundreds of calls: ten at most
# are allowed.


def store_barrier(store, name, world_size):
    store.add(f"count/{name}", 1)
    while store.add(f"count/{name}", 0) < world_size:
        time.sleep(0.001)


# %% store_barrier: one-flag-for-all-barriers
# The counter has the name in its key, the flag has not: after the first barrier it's there, and every later barrier
# lets everybody through.


def store_barrier(store, name, world_size):
    if store.add(f"count/{name}", 1) == world_size:
        store.set("open", "yes")
    store.wait(["open"])


# %% store_barrier: opens-one-too-early
# Compares the new count with world_size - 1, as if counting began at 0: opens before the last rank has come (and a
# world of one waits for ever).


def store_barrier(store, name, world_size):
    if store.add(f"count/{name}", 1) == world_size - 1:
        store.set(f"open/{name}", "yes")
    store.get(f"open/{name}")


# %% store_barrier: waits-for-the-counter-key
# Counts under the name and then waits for the same key, which is there since the first rank's add: nobody waits.


def store_barrier(store, name, world_size):
    store.add(name, 1)
    store.wait([name])


# %% store_barrier: waits-for-the-next-only
# The n-th to come waits for the next one only (the last for the first): with three or more the first is let out when
# the second comes.


def store_barrier(store, name, world_size):
    place = store.add(f"count/{name}", 1) - 1
    store.set(f"came/{name}/{place}", "yes")
    store.get(f"came/{name}/{(place + 1) % world_size}")


# %% store_barrier: a-get-for-each-rank
# Everybody asks for everybody's key, one get for each: world_size + 2 calls, more than ten from nine ranks on.


def store_barrier(store, name, world_size):
    place = store.add(f"count/{name}", 1)
    store.set(f"came/{name}/{place}", "yes")
    for other in range(1, world_size + 1):
        store.get(f"came/{name}/{other}")


# %% store_barrier: one-counter-modulo-world-size
# One counter for all barriers; each multiple of world_size opens. Right as long as all barriers on the store have the
# same world_size and the earlier count was a multiple of it: after a barrier of 2 one of 3 hangs or opens early.


def store_barrier(store, name, world_size):
    if store.add("count", 1) % world_size == 0:
        store.set(f"open/{name}", "yes")
    store.get(f"open/{name}")


# %% store_barrier: only-the-last-two-meet
# The rank that comes last opens; only the first to come waits for it. Those in between return at once: right for
# two ranks.


def store_barrier(store, name, world_size):
    place = store.add(f"count/{name}", 1)
    if place == world_size:
        store.set(f"open/{name}", "yes")
    if place == 1:
        store.get(f"open/{name}")


# %% store_barrier: shuts-the-door-behind-itself
# Whoever gets out deletes the flag, "so that the store stays small": a rank whose get comes after that waits for ever.


def store_barrier(store, name, world_size):
    if store.add(f"count/{name}", 1) == world_size:
        store.set(f"open/{name}", "yes")
    store.get(f"open/{name}")
    store.delete_key(f"open/{name}")


# %% store_barrier: gives-up-after-eight-looks
# Keeps to the ten calls by looking eight times only, with a pause between, and then returns whether all are in or not.


def store_barrier(store, name, world_size):
    count = store.add(f"count/{name}", 1)
    for _ in range(8):
        if count >= world_size:
            break
        time.sleep(0.05)
        count = store.add(f"count/{name}", 0)


# %% store_barrier: world-of-one
# The first to come waits, a later one opens if it's the last. In a world of one rank the first is the last,
# and waits for ever: it doesn't return "on every rank".


def store_barrier(store, name, world_size):
    place = store.add(f"count/{name}", 1)
    if place > 1 and place == world_size:
        store.set(f"open/{name}", "yes")
    store.wait([f"open/{name}"])


# %% store_barrier: keys-of-two-names-collide
# Counts under `name` and opens by `name + "1"`: the flag of the barrier "1" is the counter of the barrier "11", which
# so starts at 1 and opens one rank too early (the same with "step" and "step1").


def store_barrier(store, name, world_size):
    if store.add(name, 1) == world_size:
        store.set(name + "1", "1")
    store.get(name + "1")


# %% store_barrier: counter-set-to-zero-first
# Each rank starts the counter anew: who comes later takes back what the others have counted.


def store_barrier(store, name, world_size):
    store.set(name, "0")
    if store.add(name, 1) == world_size:
        store.set(name + "/open", "yes")
    store.wait([name + "/open"])


# %% store_barrier: places-from-zero
# Counts begin at 1, and the keys that are waited for at 0.


def store_barrier(store, name, world_size):
    count = store.add(name, 1)
    store.set(f"{name}/{count}", "here")
    store.wait([f"{name}/{place}" for place in range(world_size)])


# %% store_barrier: sleeps-a-second
# Nobody waits for anybody: a second must be enough.


def store_barrier(store, name, world_size):
    store.add(name, 1)
    time.sleep(0.5)


# %% store_barrier: anybody-opens
# `<=` for `==`: the first to come opens the barrier.


def store_barrier(store, name, world_size):
    if store.add(f"{name}:count", 1) <= world_size:
        store.set(f"{name}:go", "1")
    store.get(f"{name}:go")


# %% store_barrier: last-one-tidies-up-and-leaves
def store_barrier(store, name, world_size):
    if store.add(f"{name}/count", 1) == world_size:
        store.set(f"{name}/open", "")
        store.delete_key(f"{name}/count")
        store.delete_key(f"{name}/open")
        return
    store.wait([f"{name}/open"])


# %% store_barrier: opens-before-it-sets-back
def store_barrier(store, name, world_size):
    if store.add("count", 1) == world_size:
        store.set(f"{name}/open", "")
        store.set("count", "0")
    store.wait([f"{name}/open"])


# %% axis_groups: first-axis-fastest
# Counts with the first axis fastest (NumPy's order="F"); the goal has the last one fastest.


def axis_groups(sizes, axis):
    shape = list(sizes.values())
    ranks = np.arange(math.prod(shape)).reshape(shape, order="F")
    at = list(sizes).index(axis)
    return np.moveaxis(ranks, at, -1).reshape(-1, sizes[axis]).tolist()


# %% axis_groups: dp-pp-tp-only
# Takes the three axes of the text by name, absent ones as 1: any number of axes with any names (and in any order) are
# allowed.


def axis_groups(sizes, axis):
    names = ["dp", "pp", "tp"]
    shape = [sizes.get(name, 1) for name in names]
    ranks = np.arange(math.prod(shape)).reshape(shape)
    at = names.index(axis)
    return np.moveaxis(ranks, at, -1).reshape(-1, shape[at]).tolist()


# %% axis_groups: axes-sorted-by-name
# Sorts the axes' names "to be safe": the same as the dict's order for dp, pp, tp (alphabetical), wrong for
# {"tp": 2, "dp": 3}, where dp is the fastest.


def axis_groups(sizes, axis):
    names = sorted(sizes)
    shape = [sizes[name] for name in names]
    ranks = np.arange(math.prod(shape)).reshape(shape)
    return np.moveaxis(ranks, names.index(axis), -1).reshape(-1, sizes[axis]).tolist()


# %% axis_groups: group-of-rank-zero-only
# Only the group with rank 0 in it, where all groups along the axis are wanted.


def axis_groups(sizes, axis):
    ranks = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    line = np.moveaxis(ranks, list(sizes).index(axis), -1).reshape(-1, sizes[axis])[0]
    return [line.tolist()]


# %% axis_groups: list-of-arrays
# list() turns only the outer array into a list: a list of NumPy arrays, not a list of lists.


def axis_groups(sizes, axis):
    ranks = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    return list(np.moveaxis(ranks, list(sizes).index(axis), -1).reshape(-1, sizes[axis]))


# %% axis_groups: starts-of-blocks-only
# Steps from block to block, but forgets the starts inside a block: right along the last axis only; else most ranks are
# in no group.


def axis_groups(sizes, axis):
    names, shape = list(sizes), list(sizes.values())
    step = math.prod(shape[names.index(axis) + 1 :])
    block = step * sizes[axis]
    return [list(range(start, start + block, step)) for start in range(0, math.prod(shape), block)]


# %% axis_groups: same-place-on-the-axis
# Puts together the ranks that have the *same* place on the axis; they should differ in that, and have the same place
# on all others.


def axis_groups(sizes, axis):
    ranks = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    planes = np.moveaxis(ranks, list(sizes).index(axis), 0).reshape(sizes[axis], -1)
    return planes.tolist()


# %% axis_groups: order-of-a-set
# Collects each group in a set and makes a list of it, trusting that small ints come out sorted. They often do, but
# list({3, 7, 11}) is [3, 11, 7]: not from low to high for {"dp": 3, "tp": 4} along dp.


def axis_groups(sizes, axis):
    shape = list(sizes.values())
    at = list(sizes).index(axis)
    lines = {}
    for rank, place in enumerate(np.ndindex(*shape)):
        lines.setdefault(place[:at] + place[at + 1 :], set()).add(rank)
    return [list(line) for line in lines.values()]


# %% axis_groups: two-axes-only
# Neighbours along the last axis, else every (world // size)-th rank, as if the axis were the first: right for one or
# two axes, and wrong along a middle one.


def axis_groups(sizes, axis):
    world, size = math.prod(sizes.values()), sizes[axis]
    if axis == list(sizes)[-1]:
        return [list(range(first, first + size)) for first in range(0, world, size)]
    step = world // size
    return [list(range(first, world, step)) for first in range(step)]


# %% axis_groups: no-groups-of-one
# Leaves out groups with one member, "which have nobody to talk to": along an axis of size 1 the result is empty, and
# not all groups.


def axis_groups(sizes, axis):
    ranks = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(ranks, list(sizes).index(axis), -1).reshape(-1, sizes[axis])
    return [line for line in lines.tolist() if len(line) > 1]


# %% axis_groups: once-for-each-rank
# For each rank the group that it's in: every group comes as often as it has members.


def axis_groups(sizes, axis):
    shape = list(sizes.values())
    at = list(sizes).index(axis)
    ranks = np.arange(math.prod(shape)).reshape(shape)
    groups = []
    for place in np.ndindex(*shape):
        groups.append(ranks[(*place[:at], slice(None), *place[at + 1 :])].tolist())
    return groups


# %% axis_groups: takes-the-axis-out-of-the-grid
# The list is right, but `pop` takes the axis out of the caller's dict: asked a second time for the same grid it raises
# or gives groups of a smaller grid, and the course's next cell, {axis: axis_groups(sizes, axis) for axis in sizes},
# fails.


def axis_groups(sizes, axis):
    shape, at = list(sizes.values()), list(sizes).index(axis)
    size = sizes.pop(axis)
    ranks = np.arange(math.prod(shape)).reshape(shape)
    rows = np.moveaxis(ranks, at, -1).reshape(math.prod(sizes.values()), size)
    return rows.tolist()


# %% axis_groups: no-end-to-a-stride
# From each start below the stride to the end of the world: right only for the first axis.


def axis_groups(sizes, axis):
    names = list(sizes)
    after = names[names.index(axis) + 1 :]
    stride = math.prod(sizes[name] for name in after)
    world = math.prod(sizes.values())
    return [list(range(start, world, stride)) for start in range(stride)]


# %% axis_groups: axis-to-the-front
# The axis is moved to the front, and a row is then a place on it.


def axis_groups(sizes, axis):
    grid = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    moved = np.moveaxis(grid, list(sizes).index(axis), 0)
    return moved.reshape(-1, sizes[axis]).tolist()


# %% axis_groups: own-length-in-the-stride
# The stride counts the axis itself, too.


def axis_groups(sizes, axis):
    values = list(sizes.values())
    at = list(sizes).index(axis)
    stride, length = math.prod(values[at:]), values[at]
    world = math.prod(values)
    groups = []
    for start in range(world // length):
        groups.append([(start + stride * place) % world for place in range(length)])
    return groups


# %% make_groups: members-only
# Each rank makes only the group that it's in. Under gloo that goes well for the moment; every rank has to make every
# group (under NCCL it hangs, and the numbers of later groups don't fit where the ranks have made different numbers).


def make_groups(groups):
    for ranks in groups:
        if dist.get_rank() in ranks:
            return dist.new_group(ranks)


# %% make_groups: leaves-the-loop-when-found
# Returns as soon as it has its own group: ranks in an early group never call new_group for the later ones.


def make_groups(groups):
    for ranks in groups:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            return group


# %% make_groups: own-group-first
# Every rank makes every group, but its own first: the order differs between ranks, and so does each group's number.


def make_groups(groups):
    rank = dist.get_rank()
    in_my_order = sorted(groups, key=lambda ranks: rank not in ranks)
    made = [dist.new_group(ranks) for ranks in in_my_order]
    return made[0]


# %% make_groups: the-last-one-made
# Returns the last group for everybody; those who are not in it get "no member".


def make_groups(groups):
    group = None
    for ranks in groups:
        group = dist.new_group(ranks)
    return group


# %% make_groups: place-by-remainder
# Takes the group at rank % number of groups: right for [[0, 2], [1, 3]], wrong for [[0, 1], [2, 3]].


def make_groups(groups):
    made = [dist.new_group(ranks) for ranks in groups]
    return made[dist.get_rank() % len(made)]


# %% make_groups: members-make-it-again
# Makes all groups to see which one is this rank's, and the own one once more to return it: there is an extra call of
# new_group between the others, at another place on different ranks, so groups' numbers don't fit.


def make_groups(groups):
    mine = None
    for ranks in groups:
        if dist.get_rank(dist.new_group(ranks)) >= 0:
            mine = dist.new_group(ranks)
    return mine


# %% make_groups: local-rank
# Looks for LOCAL_RANK in the lists: the same as the rank on one node; on the second node it returns a group that this
# rank isn't in.


def make_groups(groups):
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks)
        if int(os.environ["LOCAL_RANK"]) in ranks:
            mine = group
    return mine


# %% make_groups: nothing-for-a-lone-rank
# Makes no group of one member: a rank that is alone in its list gets None in place of its group.


def make_groups(groups):
    mine = None
    for ranks in groups:
        if len(ranks) < 2:
            continue
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine


# %% make_groups: neighbours-of-one-size
# new_subgroups cuts the world into blocks of neighbours, all as large as the first list: the lists may be of different
# sizes, and their ranks need not be neighbours.


def make_groups(groups):
    mine, _ = dist.new_subgroups(group_size=len(groups[0]))
    return mine


# %% make_groups: first-member-left-out
# get_rank(group) is -1 for strangers and 0 for the first member; `> 0` leaves out the first member, who gets None.


def make_groups(groups):
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks)
        if dist.get_rank(group) > 0:
            mine = group
    return mine


# %% make_groups: kept-by-number-of-groups
# Keeps what it made, to make no group twice, but under the *number* of groups: the second call, for another axis with
# as many groups, gets the groups of the first.

made_before = {}


def make_groups(groups):
    if len(groups) not in made_before:
        made = [dist.new_group(ranks) for ranks in groups]
        places = [dist.get_rank() in ranks for ranks in groups]
        made_before[len(groups)] = made[places.index(True)]
    return made_before[len(groups)]


# %% make_groups: others-give-an-empty-list
# Every rank makes as many calls, but those who are no members name no ranks.


def make_groups(groups):
    rank, mine = dist.get_rank(), None
    for ranks in groups:
        made = dist.new_group(ranks if rank in ranks else [])
        if rank in ranks:
            mine = made
    return mine


# %% make_groups: an-order-of-its-own
# Each rank goes through the groups in an order that depends on its number.


def make_groups(groups):
    rank, made = dist.get_rank(), {}
    turned = groups[rank % len(groups) :] + groups[: rank % len(groups)]
    for ranks in turned:
        made[tuple(ranks)] = dist.new_group(ranks)
    return next(group for ranks, group in made.items() if rank in ranks)


# %% make_groups: the-first-member-makes-it
# Only one member of each group calls `new_group`, as if the others were told.


def make_groups(groups):
    rank = dist.get_rank()
    for ranks in groups:
        if rank == ranks[0]:
            group = dist.new_group(ranks)
    dist.barrier()
    return group if any(rank == ranks[0] for ranks in groups) else dist.group.WORLD


# %% from_first: source-zero
# src=0 is rank 0 of the world, who isn't in every group: the other groups raise.


def from_first(x, group):
    dist.broadcast(x, src=0, group=group)
    return x


# %% from_first: smallest-rank
# The smallest global rank is the first member only where the group's ranks are sorted; with
# new_group([2, 0], sort_ranks=False) place 0 is rank 2.


def from_first(x, group):
    dist.broadcast(x, src=min(dist.get_process_group_ranks(group)), group=group)
    return x


# %% from_first: group-forgotten
# The source is right, but the broadcast is in the default group: with several groups the ranks disagree on the
# source, or get the x of another group.


def from_first(x, group):
    dist.broadcast(x, src=dist.get_global_rank(group, 0))
    return x


# %% from_first: global-number-as-group-src
# Translates to a global rank and gives that as group_src, a place in the group: right where the group begins with
# rank 0.


def from_first(x, group):
    dist.broadcast(x, group_src=dist.get_global_rank(group, 0), group=group)
    return x


# %% from_first: received-in-a-dropped-copy
# The broadcast fills a clone, and x is returned: nobody but the first member has the first member's x.


def from_first(x, group):
    received = x.clone()
    dist.broadcast(received, group_src=0, group=group)
    return x


# %% from_first: handle-never-waited
# An async broadcast, and nobody waits for its handle: x may still hold the old numbers when it's returned.


def from_first(x, group):
    dist.broadcast(x, group_src=0, group=group, async_op=True)
    return x


# %% from_first: all-gather
# The right value by another call: all_gather, of which each member takes the first part. The goal wants exactly one
# broadcast and no other call.


def from_first(x, group):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return parts[0]


# %% from_first: barrier-afterwards
# The broadcast is right, but a barrier follows "so that all have it": another call.


def from_first(x, group):
    dist.broadcast(x, group_src=0, group=group)
    dist.barrier(group=group)
    return x


# %% from_first: in-float32
# Sends a float32 copy and returns that: not the first member's x if that was float64 or int64 (another type, and
# 2**24 + 1 comes out as 2**24).


def from_first(x, group):
    received = x.to(torch.float32)
    dist.broadcast(received, group_src=0, group=group)
    return received


# %% from_first: shape-first
# Broadcasts the shape and then the tensor: two broadcasts, where exactly one is allowed.


def from_first(x, group):
    first = dist.get_global_rank(group, 0)
    shape = torch.tensor([*x.shape, 0], device=x.device)
    dist.broadcast(shape, src=first, group=group)
    x = x.reshape(shape[:-1].tolist())
    dist.broadcast(x, src=first, group=group)
    return x


# %% from_first: neighbours-only
# Global rank minus place in the group: the first member only where the group's ranks are neighbours. In the group of
# ranks 0 and 2, rank 2 computes 1.


def from_first(x, group):
    first = dist.get_rank() - dist.get_rank(group)
    dist.broadcast(x, src=first, group=group)
    return x


# %% from_first: last-member
# The sender is the last of the group's members.


def from_first(x, group):
    dist.broadcast(x, src=dist.get_process_group_ranks(group)[-1], group=group)
    return x


# %% from_first: only-the-first-calls
# A broadcast is called by its sender alone, as if it were a send.


def from_first(x, group):
    if dist.get_rank(group) == 0:
        dist.broadcast(x, src=dist.get_rank(), group=group)
    return x


# %% from_first: sum-with-zeros
# An all-reduce to which all but the first give zeros: right numbers by another call.


def from_first(x, group):
    if dist.get_rank(group) != 0:
        x.zero_()
    dist.all_reduce(x, group=group)
    return x


# %% shrink: number-from-the-start
# Goes on with the number from the start as the rank: the new world is numbered from 0 without gaps (me may even be
# beyond its size).


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore(f"shrunk/{generation}", store)
    dist.init_process_group("gloo", store=own, rank=me, world_size=len(alive))


# %% shrink: no-prefix
# Meets in the store as it is, under the keys of the first world, which are still there.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    rank = alive.index(me)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(alive))


# %% shrink: one-prefix-for-all-generations
# "new" is a fresh prefix at the first shrinking only; the second one meets under the keys of the first.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore("new", store)
    rank = alive.index(me)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: two-prefixes-in-turn
# Takes turns between two prefixes: the third shrinking meets under the keys of the first.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore(("odd", "even")[generation % 2], store)
    rank = alive.index(me)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: sorted
# Ranks in the order of size: the same where `alive` happens to be sorted; the goal wants the list's order.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore(f"shrunk/{generation}", store)
    rank = sorted(alive).index(me)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: in-order-of-arrival
# Draws its new rank from a counter in the store: exactly those members, but in the order in which they come.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore(f"shrunk/{generation}", store)
    rank = own.add("arrived", 1) - 1
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: todays-rank-for-me
# Looks for the rank in the *old* world, not for `me`, in `alive`, which has the numbers of the very start: the same at
# the first shrinking only.


def shrink(store, me, alive, generation):
    rank = alive.index(dist.get_rank())
    dist.destroy_process_group()
    own = dist.PrefixStore(f"shrunk/{generation}", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: old-world-not-ended
# Forgets destroy_process_group: init_process_group raises, since there is a default group.


def shrink(store, me, alive, generation):
    own = dist.PrefixStore(f"shrunk/{generation}", store)
    rank = alive.index(me)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: new-group-in-the-old-world
# Makes a group of those who are left, inside the old world: the default group stays as large as it was (and at the
# second shrinking the numbers of the start aren't its ranks).


def shrink(store, me, alive, generation):
    dist.barrier(group=dist.new_group(alive, use_local_synchronization=True))


# %% shrink: barrier-of-the-old-world
# Waits at a barrier of the old world before it ends it: those who have left never come.


def shrink(store, me, alive, generation):
    dist.barrier()
    dist.destroy_process_group()
    own = dist.PrefixStore(f"shrunk/{generation}", store)
    rank = alive.index(me)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: meets-by-variables
# Changes RANK and WORLD_SIZE and lets init_process_group meet by the variables: at MASTER_ADDR, and so under the same
# keys each time, not in the store that has survived.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    os.environ["RANK"] = str(alive.index(me))
    os.environ["WORLD_SIZE"] = str(len(alive))
    dist.init_process_group("gloo")


# %% shrink: the-last-one-needs-no-world
# If one rank is left, it ends the old world and makes no new one: afterwards there is no default group, where the goal
# wants one with exactly that member.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    if len(alive) > 1:
        own = dist.PrefixStore(f"shrunk/{generation}", store)
        rank = alive.index(me)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=len(alive))


# %% shrink: asks-for-the-backend-too-late
# The old world has been ended when its backend is asked for.


def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    own = dist.PrefixStore(f"generation{generation}", store)
    dist.init_process_group(
        dist.get_backend(), store=own, rank=alive.index(me), world_size=len(alive)
    )


# %% shrink: one-fewer-each-time
# As many as before, less one, whoever has left.


def shrink(store, me, alive, generation):
    backend, size = dist.get_backend(), dist.get_world_size() - 1
    dist.destroy_process_group()
    own = dist.PrefixStore(str(generation), store)
    dist.init_process_group(backend, store=own, rank=alive.index(me), world_size=size)


# %% shrink: prefix-of-each-rank
# Each rank meets under its own prefix, so nobody meets.


def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    own = dist.PrefixStore(f"{generation}/{me}", store)
    dist.init_process_group(backend, store=own, rank=alive.index(me), world_size=len(alive))


# %% StoreGroup: same-keys-in-each-call
# The keys have no number of the call in them: the second call may read what others wrote in the first.


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
        self.store.set(f"part/{self.rank()}", pickle.dumps(tensor))
        parts = [pickle.loads(self.store.get(f"part/{r}")) for r in range(self.size())]
        both = torch.stack(parts)
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(both.amax(0) if biggest else both.sum(0))
        return DoneWork()


# %% StoreGroup: asks-for-max-by-is
# `is` compares objects, and opts.reduceOp is another one than dist.ReduceOp.MAX: it's never true, and the maximum is
# a sum.


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
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp is dist.ReduceOp.MAX
        tensor.copy_(both.amax(0) if biggest else both.sum(0))
        return DoneWork()


# %% StoreGroup: result-put-into-the-list
# Puts a new tensor into the list in place of writing into the caller's tensor, which keeps its own numbers.


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
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(tensors[0]))
        keys = [f"{self.calls}/{r}" for r in range(self.size())]
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensors[0] = both.amax(0) if biggest else both.sum(0)
        return DoneWork()


# %% StoreGroup: own-part-twice
# Starts with the tensor as it is and adds all parts, this rank's own as well: its numbers count twice in the sum
# (not in the maximum).


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
        for r in range(self.size()):
            part = pickle.loads(self.store.get(f"{self.calls}/{r}"))
            if opts.reduceOp == dist.ReduceOp.MAX:
                tensor.copy_(torch.maximum(tensor, part))
            else:
                tensor.add_(part)
        return DoneWork()


# %% StoreGroup: maximum-starts-at-zero
# Starts from zeros, which is right for the sum; the maximum of negative numbers comes out as 0.


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
        result = torch.zeros_like(tensor)
        for r in range(self.size()):
            part = pickle.loads(self.store.get(f"{self.calls}/{r}"))
            if opts.reduceOp == dist.ReduceOp.MAX:
                result = torch.maximum(result, part)
            else:
                result = result + part
        tensor.copy_(result)
        return DoneWork()


# %% StoreGroup: adds-in-float32
# Reduces in float32 and copies back: large int64 and all digits of float64 beyond the seventh are lost.


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
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(tensor.float()))
        keys = [f"{self.calls}/{r}" for r in range(self.size())]
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(both.amax(0) if biggest else both.sum(0))
        return DoneWork()


# %% StoreGroup: no-tensor-without-axes
# `tensor[:] = ...` raises for a tensor without axes, such as torch.tensor(1.0): any shape is wanted.


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
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor[:] = both.amax(0) if biggest else both.sum(0)
        return DoneWork()


# %% StoreGroup: numbers-run-together
# The key is the call's number and the rank without anything between: call 1 of rank 10 and call 11 of rank 0 are both
# "110". Wrong from eleven ranks on, in the eleventh call.


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
        self.store.set(f"{self.calls}{self.rank()}", pickle.dumps(tensor))
        keys = [f"{self.calls}{r}" for r in range(self.size())]
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(both.amax(0) if biggest else both.sum(0))
        return DoneWork()


# %% StoreGroup: two-sets-of-keys
# Takes turns between two sets of keys, to keep the store small: from the third call on a rank may read what another one
# wrote two calls before.


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
        self.calls = (self.calls + 1) % 2
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(tensor))
        keys = [f"{self.calls}/{r}" for r in range(self.size())]
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(both.amax(0) if biggest else both.sum(0))
        return DoneWork()


# %% StoreGroup: by-way-of-numpy
# Goes by NumPy, which has no bfloat16: tensor.numpy() raises for it. Any type is wanted.


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
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(tensor.numpy()))
        keys = [f"{self.calls}/{r}" for r in range(self.size())]
        parts = [pickle.loads(self.store.get(key)) for key in keys]
        both = np.stack(parts)
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(torch.as_tensor(both.max(0) if biggest else both.sum(0)))
        return DoneWork()


# %% StoreGroup: new-memory-under-the-tensor
# `tensor.data = ...` gives the tensor new memory in place of writing into its own: dist.all_reduce(x[2:]) or
# dist.all_reduce(x.view(-1)) leaves x as it was.


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
        both = torch.stack([pickle.loads(self.store.get(key)) for key in keys])
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.data = (both.amax(0) if biggest else both.sum(0)).to(tensor.dtype)
        return DoneWork()


# %% StoreGroup: by-way-of-files
# Writes the tensor into a file and only the file's name into the store: the data don't go through the store, and ranks
# on another node can't read them.


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
        handle, path = tempfile.mkstemp()
        with os.fdopen(handle, "wb") as file:
            pickle.dump(tensor, file)
        self.store.set(f"{self.calls}/{self.rank()}", path.encode())
        parts = []
        for r in range(self.size()):
            with open(self.store.get(f"{self.calls}/{r}").decode(), "rb") as file:
                parts.append(pickle.load(file))
        both = torch.stack(parts)
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        tensor.copy_(both.amax(0) if biggest else both.sum(0))
        return DoneWork()


# %% StoreGroup: running-sum-to-the-last
# Each rank adds its tensor to the running result of the rank before: only the last has all.


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
        x, rank = tensors[0], self.rank()
        self.calls += 1
        if rank > 0:
            before = pickle.loads(self.store.get(f"{self.calls}/{rank - 1}"))
            if opts.reduceOp == dist.ReduceOp.MAX:
                torch.maximum(x, before, out=x)
            else:
                x += before
        self.store.set(f"{self.calls}/{rank}", pickle.dumps(x))
        return DoneWork()


# %% StoreGroup: pythons-max
# `max` of a list of tensors compares whole tensors.


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
        self.store.set(f"{self.calls}-{self.rank()}", pickle.dumps(tensors[0]))
        parts = [pickle.loads(self.store.get(f"{self.calls}-{r}")) for r in range(self.size())]
        combine = max if opts.reduceOp == dist.ReduceOp.MAX else sum
        tensors[0].copy_(combine(parts))
        return DoneWork()


# %% StoreGroup: keys-by-shape
# A key is named after the tensor's shape: a second call of that shape reads the first call's tensors.


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
        x = tensors[0]
        shape = "x".join(map(str, x.shape))
        self.store.set(f"{shape}/{self.rank()}", pickle.dumps(x))
        parts = [pickle.loads(self.store.get(f"{shape}/{r}")) for r in range(self.size())]
        stack = torch.stack(parts)
        x.copy_(stack.amax(0) if opts.reduceOp == dist.ReduceOp.MAX else stack.sum(0))
        return DoneWork()


# %% StoreGroup: smallest-and-largest-mixed-up
# The other operation is taken for the minimum.


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
        self.store.set(f"{self.calls}-{self.rank()}", pickle.dumps(tensors[0]))
        parts = [pickle.loads(self.store.get(f"{self.calls}-{r}")) for r in range(self.size())]
        total = parts[0]
        for part in parts[1:]:
            total = (
                total + part if opts.reduceOp == dist.ReduceOp.SUM else torch.minimum(total, part)
            )
        tensors[0].copy_(total)
        return DoneWork()


# %% meet: own-address-last
# All others first, then this rank's own: not in the order of ranks.
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    others = [r for r in range(world_size) if r != rank]
    return [*(store.get(f"address/{r}").decode() for r in others), address]


# %% store_barrier: waits-for-the-next-one
# Each waits for the one who comes after it, and no longer.
def store_barrier(store, name, world_size):
    number = store.add(f"{name}/count", 1)
    store.set(f"{name}/{number}", "here")
    store.wait([f"{name}/{min(number + 1, world_size)}"])


# %% axis_groups: nothing-along-an-axis-of-one
# An axis of length 1 has groups of one rank each.
def axis_groups(sizes, axis):
    if sizes[axis] == 1:
        return []
    shape = tuple(sizes.values())
    grid = np.arange(math.prod(shape)).reshape(shape)
    at = list(sizes).index(axis)
    return np.moveaxis(grid, at, -1).reshape(-1, sizes[axis]).tolist()


# %% make_groups: place-by-division
# Ranks 0, 1, … need not be in the first list.
def make_groups(groups):
    made = [dist.new_group(ranks) for ranks in groups]
    return made[dist.get_rank() // len(groups[0])]


# %% meet: sorted-by-address
# The order of the addresses is not that of the ranks.
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return sorted(store.get(f"address/{r}").decode() for r in range(world_size))


# %% StoreGroup: through-numpy
# numpy has no bfloat16.
class StoreGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0

    def getBackendName(self):
        return "store"

    def allreduce(self, tensors, opts):
        x = tensors[0]
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(x.numpy()))
        keys = [f"{self.calls}/{r}" for r in range(self.size())]
        parts = np.stack([pickle.loads(self.store.get(key)) for key in keys])
        largest = opts.reduceOp == dist.ReduceOp.MAX
        x.copy_(torch.from_numpy(np.asarray(parts.max(0) if largest else parts.sum(0))))
        return DoneWork()


class DoneWork(dist.Work):
    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


# %% local_gpu: by-the-group-rank
# Every rank of a node gets the same GPU.
def local_gpu(env):
    return int(env["GROUP_RANK"])


# %% local_gpu: spread-over-nodes
# Ranks are taken to be dealt out node by node in turn.
def local_gpu(env):
    return int(env["RANK"]) // int(env["GROUP_WORLD_SIZE"])


# %% local_gpu: counted-down
def local_gpu(env):
    return int(env["LOCAL_WORLD_SIZE"]) - 1 - int(env["LOCAL_RANK"])


# %% meet: tuple-of-bytes
def meet(store, rank, world_size, address):
    store.set(f"address/{rank}", address)
    return [store.get(f"address/{r}") for r in range(world_size)]


# %% meet: rank-0-collects-too-soon
# Rank 0 publishes the whole list when it has come itself.
def meet(store, rank, world_size, address):
    import json

    store.set(str(rank), address)
    if rank == 0:
        found = [store.get(str(r)).decode() for r in range(world_size) if store.check([str(r)])]
        store.set("all", json.dumps(found))
    return json.loads(store.get("all"))


# %% meet: places-by-ticket
def meet(store, rank, world_size, address):
    ticket = store.add("tickets", 1) - 1
    store.set(f"at {ticket}", address)
    return [store.get(f"at {n}").decode() for n in range(world_size)]


# %% store_barrier: one-counter-for-all-names
def store_barrier(store, name, world_size):
    if store.add("arrived", 1) == world_size:
        store.set(name + "/open", "")
    store.wait([name + "/open"])


# %% store_barrier: last-rank-opens-by-number
# The key is written by whoever comes first.
def store_barrier(store, name, world_size):
    count = store.add(f"{name}-count", 1)
    if count <= 1:
        store.set(f"{name}-open", "")
    store.wait([f"{name}-open"])


# %% store_barrier: waits-for-a-neighbour
# Each waits for the one that came before it.
def store_barrier(store, name, world_size):
    me = store.add(name, 1)
    store.set(f"{name}.{me}", "")
    store.wait([f"{name}.{(me - 2) % world_size + 1}"])


# %% axis_groups: array-split
# Cuts all ranks into as many pieces as the axis is long.
def axis_groups(sizes, axis):
    ranks = np.arange(int(np.prod(list(sizes.values()))))
    return [part.tolist() for part in np.array_split(ranks, sizes[axis])]


# %% axis_groups: transposed-result
def axis_groups(sizes, axis):
    grid = np.arange(int(np.prod(list(sizes.values())))).reshape(*sizes.values())
    grid = np.moveaxis(grid, list(sizes).index(axis), 0)
    return grid.reshape(sizes[axis], -1).tolist()


# %% axis_groups: three-axes-written-out
def axis_groups(sizes, axis):
    at = list(sizes).index(axis)
    lengths = [*sizes.values(), 1, 1][:3]
    a, b, c = lengths
    number = lambda i, j, k: (i * b + j) * c + k
    every = [range(a), range(b), range(c)]
    others = [one for n, one in enumerate(every) if n != at]
    groups = []
    for p, q in itertools.product(*others):
        place = [p, q]
        groups.append([number(*[*place[:at], r, *place[at:]]) for r in range(sizes[axis])])
    return groups


# %% make_groups: own-by-comprehension
# Only the members of a group make it.
def make_groups(groups):
    me = dist.get_rank()
    return next(dist.new_group(one) for one in groups if me in one)


# %% make_groups: sorted-by-own-first
# Each rank makes its own group first.
def make_groups(groups):
    me = dist.get_rank()
    made = {}
    for one in sorted(groups, key=lambda group: me not in group):
        made[tuple(one)] = dist.new_group(one)
    return made[next(tuple(one) for one in groups if me in one)]


# %% make_groups: last-group-wins
def make_groups(groups):
    mine = None
    for one in groups:
        mine = dist.new_group(one)
    return mine


# %% from_first: place-of-the-smallest
# The smallest rank is taken for the first member.
def from_first(x, group):
    dist.broadcast(x, src=min(dist.get_process_group_ranks(group)))
    return x


# %% from_first: group-src-zero-of-the-world
def from_first(x, group):
    dist.broadcast(x, group_src=0)
    return x


# %% from_first: objects
def from_first(x, group):
    box = [x]
    dist.broadcast_object_list(box, group_src=0, group=group)
    return box[0]


# %% shrink: sorted-members
def shrink(store, me, alive, generation):
    backend = dist.get_backend()
    dist.destroy_process_group()
    place = sorted(alive).index(me)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"world{generation}", store),
        rank=place,
        world_size=len(alive),
    )


# %% shrink: prefix-by-size
# Worlds of one size would share keys; and "gloo" is written in.
def shrink(store, me, alive, generation):
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(f"{len(alive)}", store),
        rank=alive.index(me),
        world_size=len(alive),
    )


# %% shrink: new-group-only
def shrink(store, me, alive, generation):
    dist.new_group(alive)
