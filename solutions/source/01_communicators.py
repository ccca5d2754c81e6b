# %% [markdown] id="title"
# # 01 · Communicators
#
# **Two sittings, 55 and 70 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some)
#
# Before a rank can send a single byte, the ranks must find each other, count each other, and agree on who belongs
# together. That agreement is a *communicator*; PyTorch calls it a *process group*. Afterwards you can
#
# - say what each variable of `torchrun` is for, and send every rank to its own GPU on any cluster,
# - make ranks meet by hand, and so know what `init_process_group` waits for when it hangs,
# - say what each backend can do on each device, because you asked it,
# - cut a world into data, tensor and pipeline parallel groups, and translate ranks between them,
# - explain the hang that `new_group` can cause.
#
# There is a break in the middle. The further notebook has five more sections.
#
# Lab 00 comes first: it shows the cells, the strips under them, and the checks.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep

# %% id="progress" tags=["unpublished"]
lockstep.progress("01")

# %% [markdown] id="who-text"
# ## 1 · Who is who
#
# | word | what it is | its number |
# | --- | --- | --- |
# | process | what the operating system runs | its PID |
# | node | one machine | node rank: `GROUP_RANK` |
# | world | all processes of a job | `WORLD_SIZE` says how many |
# | rank | a process's number in the world | `RANK`: 0 to `WORLD_SIZE` - 1 |
# | local rank | its number on its node | `LOCAL_RANK`: 0 to `LOCAL_WORLD_SIZE` - 1 |
# | process group | ranks that communicate with each other; the *default group* has all | a *group rank* for each member |
#
# (The *group* in `GROUP_RANK` is the ranks of one node. It is not a process group.)
#
# The same as a drawing, for two nodes of two ranks. The rendezvous and the store come in section 2.

# %% id="parts" tags=["plumbing"]
lockstep.interactive.parts(nodes=2, per_node=2)

# %% [markdown] id="told-text"
# A rank is told all of this by environment variables before its first line runs. The cell below
# prints the table's five, on every rank. All ranks are on one node here. (In other cells the default
# group is there already: `%%torchrun` has called `init_process_group`. With `--no-init` it does not,
# and ranks know nothing but their variables.)
#
# **Predict:** how many of the five have *a different value on each rank*?

# %% id="who-prediction" tags=["prediction"]
prediction = 2  # RANK; and LOCAL_RANK, as there is one node

# %% id="who"
# %%torchrun -n {NPROC} --no-init --into job
import os

names = ["RANK", "LOCAL_RANK", "GROUP_RANK"]
for name in [*names, "WORLD_SIZE", "LOCAL_WORLD_SIZE"]:
    print(f"{name}={os.environ[name]}")

# %% id="who-measured"
columns = []  # of each rank: its variables
for rank in range(NPROC):
    lines = job.output(rank).splitlines()
    columns.append(dict(line.split("=") for line in lines))
values = {name: {column[name] for column in columns} for name in columns[0]}
differing = [name for name in values if len(values[name]) == NPROC]
print(*differing)
lockstep.compare(predicted=prediction, measured=len(differing))

# %% [markdown] id="nodes-text"
# On one node `RANK` and `LOCAL_RANK` are the same, and a program that mixes them up works, until it runs on two
# nodes. The next table was written by the ranks of two `torchrun` agents with four ranks each. (Both ran on one host.
# The variables do not know that.)

# %% id="nodes"
nodes = lockstep.recorded("launch/two-nodes.json")
names = ["RANK", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"]
lockstep.table(
    "Two nodes of four ranks",
    ["variable", *(f"rank {r['RANK']}" for r in nodes.content)],
    [[name, *(r[name] for r in nodes.content)] for name in names],
    stamp=nodes.stamp,
)

# %% [markdown] id="local-gpu-text"
# ### Exercise 1: every rank to its own GPU
#
# **Goal:** `local_gpu(env)` gets a rank's variables (a dict of strings, as `os.environ` is) and returns the index of
# the GPU that this rank should use, an int. There is a GPU for each rank, on any number of nodes, with any number of
# GPUs in each; nodes may have different numbers.


# %% id="local_gpu"
def local_gpu(env):
    # BEGIN SOLUTION
    return int(env["LOCAL_RANK"])
    # END SOLUTION


# %% id="local_gpu-check"
lockstep.check("local_gpu", local_gpu)

# %% [markdown] id="store-text"
# ## 2 · Ranks that find each other
#
# A new process knows its number and one address, `MASTER_ADDR:MASTER_PORT`. At that address is a **store**: a
# dictionary that one process keeps and all can reach. It has only a few calls:
#
# | call | what it does |
# | --- | --- |
# | `set(key, value)` | writes; the value is kept as bytes |
# | `get(key)` | reads, and *waits* until somebody has written the key |
# | `wait([key, …])` | waits until all these keys are there, and returns nothing |
# | `add(key, n)` | adds to a counter and returns the new count; one rank at a time |
# | `check([key, …])` | says at once whether the keys are there |
#
# `TCPStore(host, port, is_master=False)` connects to a store that another process keeps.
#
# **Predict:** rank 0 writes a key 0.3 seconds after the start, and rank 1 asks for it at once. After
# how many seconds does `get` return on rank 1?

# %% id="store-prediction" tags=["prediction"]
prediction = 0.3

# %% id="store" tags=["varies"]
# %%torchrun -n 2 --no-init --into store_job
import os
import time

import torch.distributed as dist

host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(host, port, is_master=False)
begin = time.perf_counter()
if os.environ["RANK"] == "0":
    time.sleep(0.3)
    store.set("greeting", "hello")
print(store.get("greeting"))
round(time.perf_counter() - begin, 4)

# %% id="store-measured" tags=["varies"]
lockstep.compare(predicted=prediction, measured=store_job[1], unit="s")

# %% [markdown] id="meet-text"
# A store turns "who is there?" into waiting for keys. That meeting is called **rendezvous**.
#
# ### Exercise 2: rendezvous by hand
#
# **Goal:** `meet(store, rank, world_size, address)` publishes this rank's address, a string, and returns the
# addresses of all ranks: a list of strings, in the order of ranks, on every rank. The ranks arrive at different
# times, in any order. Each calls it once, and nobody else uses the store.


# %% id="meet"
def meet(store, rank, world_size, address):
    # BEGIN SOLUTION
    store.set(f"address/{rank}", address)
    keys = [f"address/{other}" for other in range(world_size)]
    return [store.get(key).decode() for key in keys]
    # END SOLUTION


# %% id="meet-check"
lockstep.check("meet", meet)

# %% [markdown] id="barrier-text"
# ### Exercise 3: a barrier
#
# A **barrier** lets no rank out before all are in.
#
# **Goal:** `store_barrier(store, name, world_size)` returns on every rank, and on none before `world_size` ranks have
# called it. It is called repeatedly on the same store, each time with a new name. Each rank makes only a few calls of
# the store, ten at most.


# %% id="store_barrier"
def store_barrier(store, name, world_size):
    # BEGIN SOLUTION
    if store.add(f"{name}/count", 1) == world_size:
        store.set(f"{name}/open", "")
    store.wait([f"{name}/open"])
    # END SOLUTION


# %% id="store_barrier-check"
lockstep.check("store_barrier", store_barrier)

# %% [markdown] id="init-text"
# ### What `init_process_group` does
#
# It meets through a store, too, and then makes connections. gloo, which carries messages between CPUs, connects each
# pair of ranks; so every rank publishes where it can be reached. The next cell gives it a store of ours and checks
# whether there are more keys afterwards.

# %% id="init"
# %%torchrun -n {NPROC} --no-init
import os

import torch.distributed as dist

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(host, port, is_master=False)
before = store.num_keys()
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
dist.barrier()
print("keys have been added:", store.num_keys() > before)
print("the group's size is", dist.get_world_size())

# %% [markdown] id="init-hang-text"
# Ranks that do not come are waited for, and the store says nothing about it. The next cell is **broken on purpose**:
# four ranks are there, and each asks for a world of *five*. The report's first sentence puts the two numbers side by
# side; below it stands the call in which all four wait.

# %% id="init-hang"
# %%torchrun -n 4 --no-init --may-fail
import os

import torch.distributed as dist

host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(host, port, is_master=False)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=store, rank=rank, world_size=5)

# %% [markdown] id="init-hang-explained"
# Without Lockstep's report it would have waited for half an hour, gloo's time limit. When a job hangs at its start,
# look here first: did a node not come up, is `WORLD_SIZE` too large, does `MASTER_ADDR` mean another machine on each
# node, does a firewall stand between them?

# %% [markdown] id="backends-text"
# ## 3 · Backends
#
# PyTorch says what an `all_reduce` is; a **backend** carries it out: gloo for CPUs, NCCL for NVIDIA GPUs. Which
# operations work depends on the backend *and* on where the tensor is. Tables in documentation become outdated; you
# can find out instead: try each operation on two ranks, and note what raises. A common guess is that gloo has the basic
# collectives only, and not what large models need: averaging (`AVG`), `reduce_scatter`, `all_to_all`, and messages in
# batches (`batch_isend_irecv`).
#
# The next two cells, whose code is hidden, hold the questions. The third puts them to gloo, here, and shows the
# answers beside those recorded on GPUs.


# %% id="operations" tags=["plumbing"]
def operations(device, rank, size):
    """Ways to call c10d, by name, for every rank of a group of two."""
    import torch
    import torch.distributed as dist

    float8 = torch.float8_e4m3fn
    one = lambda kind=torch.float32: torch.ones(4, device=device, dtype=kind)
    many = lambda: [one() for _ in range(size)]
    ways = dist.isend, dist.irecv
    pair = lambda: [dist.P2POp(way, one(), 1 - rank) for way in ways]
    batch = lambda: [work.wait() for work in dist.batch_isend_irecv(pair())]
    send = lambda: dist.recv(one(), 0) if rank else dist.send(one(), 1)
    uneven = lambda: [torch.ones(r + 1, device=device) for r in range(size)]
    return {
        "send and recv": send,
        "batch_isend_irecv": batch,
        "broadcast": lambda: dist.broadcast(one(), 0),
        "broadcast, float8": lambda: dist.broadcast(one(float8), 0),
        "reduce": lambda: dist.reduce(one(), 0),
        "all_reduce": lambda: dist.all_reduce(one()),
        "all_reduce, AVG": lambda: dist.all_reduce(one(), op=dist.ReduceOp.AVG),
        "gather": lambda: dist.gather(one(), None if rank else many()),
        "all_gather": lambda: dist.all_gather(many(), one()),
        "all_gather, uneven": lambda: dist.all_gather(uneven(), uneven()[rank]),
        "scatter": lambda: dist.scatter(one(), None if rank else many()),
        "reduce_scatter": lambda: dist.reduce_scatter(one(), many()),
        "all_to_all": lambda: dist.all_to_all(many(), many()),
        "barrier": lambda: dist.barrier(),
        "monitored_barrier": lambda: dist.monitored_barrier(),
    }


# %% id="probe" tags=["plumbing"]
def attempt(name, device):
    """Try one operation: "yes", or the type of its error on this rank."""
    import torch
    import torch.distributed as dist

    try:
        operations(device, dist.get_rank(), dist.get_world_size())[name]()
        if device == "cuda":
            torch.cuda.synchronize()
        return "yes"
    except Exception as error:
        return type(error).__name__


def probe(backend, device):
    """Try all, each on fresh ranks: after an error a group may be broken."""
    answers = {}
    options = {"nproc_per_node": 2, "backend": backend}
    options |= {"show": False, "may_fail": True}
    for name in operations(device, 0, 2):
        job = lockstep.torchrun(attempt, name, device, **options)
        failed = "hangs" if job.verdict else "process ends"
        said = job.results if job.ok else [failed]
        answers[name] = next((one for one in said if one != "yes"), "yes")
    return answers, job


# %% id="probe-table"
gloo, probe_job = probe("gloo", "cpu")
recording = lockstep.recorded("backends/nccl-h200.json")
columns = {"gloo · cpu (live)": gloo}
for name, answers in recording.content.items():
    columns[f"{name} (recorded)"] = answers
lockstep.table(
    "What works, what raises, what hangs (2 ranks)",
    ["operation", *columns],
    [[name, *(column[name] for column in columns.values())] for name in gloo],
    stamp=[lockstep.live(probe_job), recording.stamp],
)

# %% [markdown] id="probe-explained"
# Look at the four names first. gloo on the CPU has them all, and nearly everything else. With
# tensors on a GPU gloo has the plain collectives, but no all-to-all; and a send did not even raise: it ended the
# process, which no `except` can catch. NCCL has nothing for tensors on the CPU (its barrier needs none). Backend and
# device must fit, which is why `init_process_group("cpu:gloo,cuda:nccl")` exists: one group, a backend for each
# device.
#
# The recorded columns come from the same questions, asked where there were GPUs. On a machine that has
# two, `python -m experiments backends` asks them anew.
#
# **Break.** The first sitting ends here. Ranks can find each other now, and you know what carries their messages. What comes next is
# about groups *inside* a world. It starts on its own: run the first two code cells of this lab, then go
# on here.

# %% [markdown] id="context-text"
# ## 4 · Contexts: groups of the same ranks
#
# A collective call has no name that the other ranks could see. Two of them are told apart by their group, and within
# a group by their order. (Messages from one rank to another also have a sender and, under gloo, a tag: lab 02.) MPI
# calls this the *context* of a communicator.
#
# With `async_op=True` a call returns a handle at once; `handle.wait()` waits for it to end. So a rank can start two
# all-reduces before the first has ended. On both ranks `x` holds 1 and `y` holds 10. Rank 0 starts the all-reduce of
# `x` first, rank 1 that of `y`, both in the *same* group. **Predict:** what does rank 0 hold in `x` when both have
# ended?

# %% id="context-prediction" tags=["prediction"]
prediction = 11  # rank 0's first call meets rank 1's first: 1 + 10

# %% id="context-one"
# %%torchrun -n 2 --backend {BACKEND} --into context_job
import torch
import torch.distributed as dist

x = torch.tensor([1.0], device=lockstep.device())
y = torch.tensor([10.0], device=lockstep.device())
first, second = (x, y) if dist.get_rank() == 0 else (y, x)
handles = [dist.all_reduce(t, async_op=True) for t in (first, second)]
for handle in handles:
    handle.wait()
x.item(), y.item()

# %% id="context-measured"
lockstep.compare(predicted=prediction, measured=context_job[0][0])

# %% [markdown] id="context-two-text"
# No error, and both results are wrong: `x` should be 2 and `y` 20. The first call of one rank met the
# first call of the other. Sizes and types were the same, so nothing could notice. Now each tensor has
# a group of its own; the two groups have the same members:

# %% id="context-two"
# %%torchrun -n 2 --backend gloo
import torch
import torch.distributed as dist

x, y = torch.tensor([1.0]), torch.tensor([10.0])
group_x, group_y = dist.new_group([0, 1]), dist.new_group([0, 1])
pairs = [(x, group_x), (y, group_y)]
if dist.get_rank() == 1:
    pairs.reverse()
handles = [dist.all_reduce(t, group=group, async_op=True) for t, group in pairs]
for handle in handles:
    handle.wait()
x.item(), y.item()

# %% [markdown] id="context-nccl"
# **What changes under NCCL.** In one group collectives match by order there, too. But two groups that
# are used in different orders on two ranks can hang. PyTorch's documentation of `new_group` asks for "a
# globally consistent execution order of collectives across ranks", over all groups together. So this
# cell asks for gloo.

# %% [markdown] id="new-group-section"
# ## 5 · `new_group`
#
# `new_group([0, 1])` makes a group of ranks 0 and 1. Under NCCL its communicator is made in one of two ways. Its
# ranks meet, as they do at the start; or the default group's communicator is **split**: all of *its* ranks say which
# part they go to, and their connections are reused. PyTorch splits if each rank was tied to its GPU at the start, by
# `init_process_group(device_id=torch.device("cuda", local_rank))`.
#
# ### Claim: "`new_group` hangs unless every rank calls it"
#
# [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html) of `new_group` asks
# that "all processes in the main group" enter it, those who are not in the new group as well. What
# happens if only the members do? gloo is asked here, NCCL's answer is a recorded one. **Guess:**
# `"holds"`, `"does not hold"`, or `"depends"` on the backend?

# %% id="new-group-guess" tags=["guess"]
guess = "depends"

# %% id="new-group-members"
# %%torchrun -n 4 --backend gloo --may-fail --into members_job
import torch
import torch.distributed as dist

x = torch.ones(1, device=lockstep.device())
if dist.get_rank() < 2:  # only the members
    pair = dist.new_group([0, 1])
    dist.all_reduce(x, group=pair)
x.item()

# %% [markdown] id="new-group-nccl-text"
# Under gloo it ended well. And NCCL? The next cell, whose code is hidden, runs the same program on four
# GPUs when they are here. Otherwise it shows what four GPUs have said.


# %% id="new-group-nccl" tags=["plumbing"]
def only_members():
    import torch
    import torch.distributed as dist

    x = torch.ones(1, device=lockstep.device())
    if dist.get_rank() < 2:
        pair = dist.new_group([0, 1])
        dist.all_reduce(x, group=pair)


if lockstep.gpu_count() >= 4:
    options = {"nproc_per_node": 4, "timeout": 30, "may_fail": True}
    on_gpus = lockstep.torchrun(only_members, **options)
    ended_well, stamp = on_gpus.ok, lockstep.live(on_gpus)
else:
    recording = lockstep.recorded("backends/new-group-nccl.json")
    ended_well, stamp = recording.content["ok"], recording.stamp
    print(recording.content["report"], stamp, sep="\n\n")

# %% id="new-group-claim"
outcomes = {"gloo": members_job.ok, "nccl": ended_well}
hung = [backend for backend, ok in outcomes.items() if not ok]
under = ", ".join(hung) or "neither"
lockstep.claim(
    "new_group hangs unless every rank calls it.",
    guess=guess,
    verdict={0: "does not hold", 1: "depends", 2: "holds"}[len(hung)],
    because=f"only ranks 0 and 1 called it; hung under: {under}",
    stamp=[lockstep.live(members_job), stamp],
)

# %% [markdown] id="new-group-text"
# gloo connects the members and nobody else. NCCL splits the new communicator off the default group's where
# ranks were tied to their GPUs, and a split takes all ranks of the old communicator.
#
# So under gloo the rule seems needless. The harm comes later, with the *next* group. PyTorch names groups
# by counting: the first that a rank makes is "1", the next "2". Two ranks that have counted differently
# look for each other under different names.
#
# The next cell is **broken on purpose**: rank 3 leaves out a group that it is not in. Look for the line in which the
# ranks wait, and for the call: the report numbers each rank's calls of `new_group` from `#0`.

# %% id="new-group-hang"
# %%torchrun -n 4 --backend gloo --may-fail
import torch.distributed as dist

if dist.get_rank() != 3:
    pair = dist.new_group([0, 1])  # rank 3 is no member: not its business
everybody = dist.new_group([0, 1, 2, 3])

# %% [markdown] id="new-group-explained"
# All four ranks hang in the *same* line, the second `new_group`, which is correct. Only the numbers differ: for ranks
# 0–2 it is call `#1`, for rank 3 it is call `#0`. The mistake is in the line before, on the rank that did not run it.
# A stack dump of the hanging ranks does not show that; the record of their calls does, and the report's first
# sentence comes from it.

# %% [markdown] id="several-groups"
# ## 6 · One rank, several groups
#
# Large models are trained with several kinds of parallelism at once. Ranks are laid out in a grid, with an axis for
# each kind: *dp* (data: copies of the model), *pp* (pipeline: parts of its depth), *tp* (tensor: parts of each
# layer). A rank is then in one group for each axis: along *tp* with the ranks that have the same *dp* and *pp* place
# as itself, and so on. Ranks are counted as in a NumPy array, where the last axis runs fastest: rank 0 is at (0, 0,
# 0), rank 1 at (0, 0, 1). So a *tp* group has neighbouring ranks, which can be on one node; it communicates most.
#
# **Predict:** in a grid of 2 *dp* × 2 *pp* × 2 *tp*, which *other* rank is in rank 5's *pp* group?

# %% id="grid-prediction" tags=["prediction"]
prediction = 7  # rank 5 is at (1, 0, 1); at (1, 1, 1) is 4 + 2 + 1

# %% [markdown] id="axis-groups-text"
# ### Exercise 4: the groups of an axis
#
# **Goal:** `axis_groups(sizes, axis)` gets the grid, such as `{"dp": 2, "pp": 3, "tp": 4}` (any number
# of axes, with any names, the last one fastest), and the name of an axis. It returns *all* groups
# along that axis: a list of lists of ranks, each from low to high, the groups in any order. An axis may
# have length 1; then each of its groups is one rank. For 2 *dp* × 3 *tp*:
#
#     axis_groups({"dp": 2, "tp": 3}, "tp")  →  [[0, 1, 2], [3, 4, 5]]
#     axis_groups({"dp": 2, "tp": 3}, "dp")  →  [[0, 3], [1, 4], [2, 5]]

# %% id="axis_groups"
import math

import numpy as np


def axis_groups(sizes, axis):
    # BEGIN SOLUTION
    grid = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
    lines = np.moveaxis(grid, list(sizes).index(axis), -1)
    return lines.reshape(-1, sizes[axis]).tolist()
    # END SOLUTION


# %% id="axis_groups-check"
lockstep.check("axis_groups", axis_groups)

# %% [markdown] id="make-groups-text"
# ### Exercise 5: make them
#
# **Goal:** `make_groups(groups)` runs on every rank. It gets a list of lists of ranks, the same on all
# ranks (every rank is in exactly one of the lists), makes the process groups, and returns the one that
# this rank is in. It must work under NCCL, too.

# %% id="make_groups"
import torch.distributed as dist


def make_groups(groups):
    # BEGIN SOLUTION
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    return mine
    # END SOLUTION


# %% id="make_groups-check"
lockstep.check("make_groups", make_groups)

# %% [markdown] id="grid-text"
# Now all three axes on eight ranks. `carry_on` takes your functions if they have passed their checks, and the
# course's if not, so that you can go on either way.

# %% id="grid-run"
sizes = {"dp": 2, "pp": 2, "tp": 2}
make = lockstep.carry_on("make_groups", make_groups)
lines = lockstep.carry_on("axis_groups", axis_groups)
plan = {axis: lines(sizes, axis) for axis in sizes}


def my_groups(plan):
    groups = {axis: make(lists) for axis, lists in plan.items()}
    members = dist.get_process_group_ranks
    return {axis: members(group) for axis, group in groups.items()}


by_hand = lockstep.torchrun(my_groups, plan, nproc_per_node=8, show=False)
lockstep.compare(predicted=prediction, measured=by_hand[5]["pp"][1])

# %% id="grid-figure"
lockstep.grid(sizes, rank=5, groups=by_hand[5], stamp=lockstep.live(by_hand))

# %% [markdown] id="mesh-text"
# `DeviceMesh` does the same in a line: it makes *all* groups of each axis, as your two functions do.
# FSDP and tensor-parallel layers take a mesh, and `mesh.get_group("pp")` is this rank's group.
#
# **Predict:** how many times does *each rank* call `new_group` for this mesh, under gloo?

# %% id="mesh-prediction" tags=["prediction"]
prediction = 12  # 4 groups along each of 3 axes

# %% id="mesh"
# %%torchrun -n 8 --backend gloo --into mesh_job
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

axes = ("dp", "pp", "tp")
mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=axes)
members = dist.get_process_group_ranks
groups = {axis: members(mesh.get_group(axis)) for axis in axes}
if dist.get_rank() == 5:
    print(mesh)
    print("rank 5 is at", mesh.get_coordinate())
same = groups == by_hand[dist.get_rank()]
same

# %% id="mesh-measured"
operations_of_5 = [call.operation for call in mesh_job.setup[5]]
made = [name for name in operations_of_5 if name.startswith("new_group")]
print(*made[:4], "…")
lockstep.compare(predicted=prediction, measured=len(made))

# %% [markdown] id="mesh-explained"
# Four groups along each of three axes, made by every rank, although a rank is in only three of them.
#
# **What changes under NCCL:** where ranks have been tied to their GPUs (`device_id`), `DeviceMesh` calls
# `split_group` instead, once for each axis: three calls, each of which makes all groups of its axis.
#
# ### Two ways to count
#
# A member of a group has two numbers: its *global* rank, and its place in the group.
# `dist.get_group_rank(group, global_rank)` and `dist.get_global_rank(group, group_rank)` translate.
# Here the upper half of the ranks is a group: those from `NPROC // 2` on. **Predict:** what is the
# *global* rank of its member 0?

# %% id="half-prediction" tags=["prediction"]
prediction = NPROC // 2

# %% id="half"
# %%torchrun -n {NPROC} --backend {BACKEND} --into half_job
import torch
import torch.distributed as dist

world_size = dist.get_world_size()
upper = dist.new_group(range(world_size // 2, world_size))
if dist.get_rank() >= world_size // 2:
    x = torch.ones(1, device=lockstep.device())
    dist.all_reduce(x, group=upper)
    here = dist.get_rank(upper)
    print("global rank", dist.get_rank(), "is", here, "in a group of", int(x))
dist.get_global_rank(upper, 0) if dist.get_rank() == world_size - 1 else None

# %% id="half-measured"
lockstep.compare(predicted=prediction, measured=half_job[NPROC - 1])

# %% [markdown] id="from-first-text"
# **Trap:** `broadcast(x, src=…)`, `send(x, dst=…)` and their like take *global* ranks, even with
# `group=…`.
#
# ### Exercise 6: from the first member to all
#
# **Goal:** `from_first(x, group)` runs on every rank with the group that the rank is in. Afterwards
# every member has the `x` of its group's first member (place 0), by exactly one broadcast in that
# group and by no other call. (In `x` itself, or in a tensor that you return.)

# %% id="from_first"
import torch.distributed as dist


def from_first(x, group):
    # BEGIN SOLUTION
    dist.broadcast(x, src=dist.get_global_rank(group, 0), group=group)
    return x
    # END SOLUTION


# %% id="from_first-check"
lockstep.check("from_first", from_first)

# %% [markdown] id="recap"
# ## Recap
#
# - A rank is told who it is by variables; `LOCAL_RANK` picks its GPU.
# - Rendezvous is writing keys to a store and waiting for those of others. A hang at the start is
#   often a key that nobody writes.
# - What a backend can do depends on the device, and can be tried out.
# - In a group, collectives match by order and by nothing else. Another group is another context.
# - Every rank makes every group, in the same order. The hang comes later than the mistake.
# - `src` and `dst` are global ranks.
#
# **What comes next:** so far nothing was said about time. In lab 02 ranks send to each other directly, point to
# point, and you will measure what a message costs.

# %% [markdown] id="further"
# # 01 · Communicators: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="shrink-text"
# ## A smaller world
#
# When a rank dies, those who are left make a new world, with new numbers. Here you write that. About 20 minutes, one
# exercise; a CPU is enough.

# %% [markdown] id="shrink-calls"
# A group's members are fixed when it is made. When a rank dies, the others end the world and make a smaller one. Its
# ranks have new numbers, because ranks are numbered from 0 without gaps. Here ranks leave one by one, in good order.
#
# Two calls are needed. `dist.destroy_process_group()` ends the default group and all others; then
# `init_process_group` may be called again. `dist.PrefixStore("new", store)` is the same store with `new/`
# before every key, so two worlds that use one store do not read each other's keys:

# %% id="prefix"
# %%torchrun -n 2 --no-init
import os

import torch.distributed as dist

rank = int(os.environ["RANK"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(host, port, is_master=False)
for world in ("first", "second"):
    own = dist.PrefixStore(world, store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=2)
    dist.barrier()  # nobody ends this world while another still connects
    dist.destroy_process_group()
store.set("second/note", "kept")
print(dist.PrefixStore("second", store).get("note"))

# %% [markdown] id="shrink-goal"
# ### Exercise: a smaller world
#
# **Goal:** `shrink(store, me, alive, generation)` runs on each rank that is alive, while the old
# default group is still there. `me` is the number that the rank had at the very start, `alive` is
# the list of such numbers of those who are left, `generation` is 1 at the first shrinking, then 2,
# and so on. Afterwards the default group has exactly those members, in the order of `alive`, which need not
# be sorted, and the backend of the old one. Only the store has survived, with all the keys of earlier worlds
# in it: the new one must not meet under those.

# %% id="shrink"
import torch.distributed as dist


def shrink(store, me, alive, generation):
    # BEGIN SOLUTION
    backend = dist.get_backend()
    dist.destroy_process_group()
    fresh = dist.PrefixStore(f"generation-{generation}", store)
    rank, size = alive.index(me), len(alive)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=size)
    # END SOLUTION


# %% id="shrink-check"
lockstep.check("shrink", shrink)

# %% id="shrink-show"
shrink = lockstep.carry_on("shrink", shrink)

# %% id="shrink-run"
# %%torchrun -n 4 --no-init
import os

import torch
import torch.distributed as dist

me, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(host, port, is_master=False)
dist.init_process_group("gloo", store=store, rank=me, world_size=world_size)
dist.barrier()  # nobody ends this world while another still connects
if me != 1:  # rank 1 leaves
    shrink(store, me, [0, 2, 3], 1)
    x = torch.ones(1)
    dist.all_reduce(x)
    print("was", me, "and is now", dist.get_rank(), "of", dist.get_world_size())
    print("a sum of ones over the new world:", x.item())

# %% [markdown] id="shrink-explained"
# `dist.shrink_group` does this for NCCL without a new rendezvous. It, too, makes a new group, and it
# destroys the old one; if that was the default group, all others as well.

# %% [markdown] id="own-group-text"
# ## A process group of one's own
#
# What is the least that `dist.all_reduce` needs? You write a backend in Python and compare it with gloo.
# 30 minutes, one exercise; a CPU is enough.

# %% [markdown] id="own-goal"
# `dist.all_reduce` needs an object with a method `allreduce`, which gets a list with one tensor and options
# (`opts.reduceOp`), writes the result *into that tensor*, and returns a `Work`: a handle with `wait()` and
# `is_completed()`. You have all that is needed: a **store**, a dictionary that one process keeps and all can reach.
# `set(key, value)` writes bytes; `get(key)` waits until somebody has written them.
#
# ### Exercise: `StoreGroup`
#
# **Goal:** an `allreduce` that goes through the store alone, for the sum and for the maximum
# (`dist.ReduceOp.MAX`), called again and again, with tensors of any type and shape. It may finish
# before it returns; `DoneWork` is the handle of such a call. `self.rank()` and `self.size()` say which
# rank of how many this is. `pickle.dumps` turns a tensor into bytes,
# `pickle.loads` turns them back.

# %% id="StoreGroup"
import pickle

import torch
import torch.distributed as dist


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
        # BEGIN SOLUTION
        x = tensors[0]
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", pickle.dumps(x))
        keys = [f"{self.calls}/{rank}" for rank in range(self.size())]
        parts = [pickle.loads(self.store.get(key)) for key in keys]
        stacked = torch.stack(parts)
        biggest = opts.reduceOp == dist.ReduceOp.MAX
        x.copy_(stacked.amax(0) if biggest else stacked.sum(0))
        return DoneWork()
        # END SOLUTION


# %% id="StoreGroup-check"
lockstep.check("StoreGroup", StoreGroup)

# %% [markdown] id="own-text"
# Register it under a name, and `dist.all_reduce` uses it like any other. **Predict:** on 4 ranks, an
# all-reduce of 4 MB. Every rank writes its tensor into the store and reads all four. How many MB go
# in and out of the one process that keeps the store?
#
# (The code of the next two cells is hidden: a store that counts bytes, and the two all-reduces.)

# %% id="own-prediction" tags=["prediction"]
prediction = 4 * 4 + 4 * 4 * 4  # written by four; read by four, four each

# %% id="own-counting" tags=["plumbing"]
StoreGroup = lockstep.carry_on("StoreGroup", StoreGroup)


class Counting:
    """A store that counts the bytes that go through it."""

    def __init__(self, store):
        self.store, self.bytes = store, 0

    def set(self, key, data):
        self.bytes += len(data)
        self.store.set(key, data)

    def get(self, key):
        data = self.store.get(key)
        self.bytes += len(data)
        return data


# %% id="own" tags=["plumbing"]
def compare_groups(group_class, elements):
    """Bytes through the store, and seconds of an all-reduce, by either way."""
    import os
    import time

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False)
    counting = Counting(dist.PrefixStore("ours", store))
    make = lambda store, rank, size, timeout: group_class(counting, rank, size)
    dist.Backend.register_backend("ours", make, devices=["cpu"])
    seconds = {}
    for backend in ("ours", "gloo"):
        own = dist.PrefixStore(backend, store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size)
        dist.all_reduce(torch.ones(1))  # after it, all have connected
        x, begin = torch.ones(elements), time.perf_counter()
        dist.all_reduce(x)
        seconds[backend] = time.perf_counter() - begin
        assert x[-1] == size
        dist.destroy_process_group()
    return {"bytes": counting.bytes, **seconds}


# %% id="own-run"
bare = {"nproc_per_node": 4, "init": False, "show": False}
own_job = lockstep.torchrun(compare_groups, StoreGroup, 1_000_000, **bare)

# %% id="own-bytes"
megabytes = round(sum(rank["bytes"] for rank in own_job.results) / 1e6)
lockstep.compare(predicted=prediction, measured=megabytes)

# %% id="own-seconds" tags=["varies"]
slowest = {}
for name in ("ours", "gloo"):
    slowest[name] = max(rank[name] for rank in own_job.results)
for name, took in slowest.items():
    print(f"{name:<5} {1000 * took:8.1f} ms")
times = slowest["ours"] / slowest["gloo"]
print(f"the store takes {times:.0f} times as long · {lockstep.live(own_job)}")

# %% [markdown] id="own-explained"
# All data passes through one process, and the more ranks there are, the more. gloo's ranks send to
# each other: with 4 ranks, a good algorithm lets each send 6 MB in all.
#
# DDP would not yet run on your group. It also wants `broadcast` and `allgather`, and handles with
# `get_future()`. But you know now what a backend is: an object whose methods move bytes, plus a
# meeting beforehand.

# %% [markdown] id="waits-text"
# ## How long a group waits, and for whom
#
# Two common statements, tested. 10 minutes, no exercise; a CPU is enough, and what only GPUs can say is recorded.

# %% [markdown] id="timeout-text"
# ### Claim: "a process group waits half an hour before it gives up"
#
# [PyTorch 1.13](https://github.com/pytorch/pytorch/blob/v1.13.1/torch/distributed/distributed_c10d.py) said so of
# `init_process_group`: "Default value equals 30 minutes". Does it still hold? A group's options have the answer.
# **Guess** first: `"holds"`, `"does not hold"` or `"depends"`? (Without a GPU, NCCL's answer is a recorded one. The
# code that asks is hidden.)

# %% id="timeout-guess" tags=["guess"]
guess = "depends"


# %% id="timeout-claim" tags=["plumbing"]
def minutes_to_time_out():
    import torch.distributed as dist

    options = dist.group.WORLD._get_backend(lockstep.device()).options
    return options._timeout.total_seconds() / 60


gloo_job = lockstep.torchrun(minutes_to_time_out, backend="gloo", show=False)
if lockstep.gpu_count():
    one = {"nproc_per_node": 1, "backend": "nccl", "show": False}
    job = lockstep.torchrun(minutes_to_time_out, **one)
    minutes, stamp = {"nccl": job[0]}, lockstep.live(job)
else:
    recording = lockstep.recorded("backends/time-out-nccl.json")
    minutes, stamp = recording.content, recording.stamp
minutes = {"gloo": gloo_job[0], **minutes}
said = [f"{name}: {value:g} minutes" for name, value in minutes.items()]
lockstep.claim(
    "A process group waits half an hour before it gives up.",
    guess=guess,
    verdict="holds" if set(minutes.values()) == {30} else "depends",
    because=", ".join(said),
    stamp=[lockstep.live(gloo_job), stamp],
)

# %% [markdown] id="timeout-explained"
# In both it is `init_process_group(timeout=…)` that sets it. [PyTorch's
# documentation](https://docs.pytorch.org/docs/stable/distributed.html) of that call has both numbers: "10 minutes for
# NCCL and 30 minutes for other backends". A hang costs that time on every GPU of the job before anybody is told.

# %% [markdown] id="wait-text"
# ### Claim: "`wait()` on a handle makes the ranks meet"
#
# A common guess is that `wait()` on what an async call returned synchronises processes, as `barrier`
# does. Test it, on four ranks with gloo. One rank comes 0.3 seconds late, and rank 0 waits
# for its own handle, of an `all_reduce` and of a `broadcast` from rank 0. **Guess** about the sentence.

# %% id="wait-guess" tags=["guess"]
guess = "depends"

# %% id="wait" tags=["varies"]
import time

import torch
import torch.distributed as dist


def seconds(start, late):
    x = torch.ones(1)
    dist.barrier()
    if dist.get_rank() == late:
        time.sleep(0.3)
    begin = time.perf_counter()
    start(x, async_op=True).wait()
    return time.perf_counter() - begin


def waits():
    from_0 = lambda x, async_op: dist.broadcast(x, src=0, async_op=async_op)
    return [seconds(dist.all_reduce, 3), seconds(from_0, 1), seconds(from_0, 3)]


waited = lockstep.torchrun(waits, nproc_per_node=4, backend="gloo", show=False)
names = ["all_reduce, rank 3 late"]
names += ["broadcast, rank 1 late", "broadcast, rank 3 late"]
columns = ["", *(f"rank {rank}" for rank in range(4))]
rows = []
for at, name in enumerate(names):
    rows.append([name, *(f"{took[at]:.3f}" for took in waited.results)])
lockstep.table("Seconds in wait()", columns, rows, stamp=lockstep.live(waited))

# %% id="wait-claim"
met = [took > 0.15 for took in waited[0]]
said = []
for name, late in zip(names, met, strict=True):
    when = "after" if late else "before"
    said.append(f"{name}: wait() on rank 0 returned {when} it had come")
lockstep.claim(
    "wait() on a handle makes the ranks meet.",
    guess=guess,
    verdict="holds" if all(met) else "depends" if any(met) else "does not hold",
    because="; ".join(said),
    stamp=lockstep.live(waited),
)

# %% [markdown] id="wait-explained"
# A handle knows about *this rank's part*. Nobody can have a sum before all have given their number,
# so an `all_reduce` makes ranks meet. A broadcast goes down a tree. Of four ranks, gloo's root sends to
# ranks 1 and 2, and a gloo send waits for its receiver. Rank 3 gets it from rank 1: when rank 3 is late,
# rank 1 waits, and the root does not.
#
# **What changes under NCCL:** it is weaker still. There `wait()` makes the GPU's *stream* wait and
# returns to Python at once, for both.

# %% [markdown] id="promises-text"
# ## Four promises of the documentation
#
# Four statements of [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html), each tested. 20
# minutes, no exercise; a CPU is enough.

# %% [markdown] id="entered-text"
# ### Claim: "nobody leaves a barrier before all have entered it"
#
# So [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier) is
# described. Each of four ranks comes up to 20 ms late, 20 times, and notes when it enters and when it
# leaves (all processes of a host have one clock). **Guess:** does it hold?

# %% id="entered-guess" tags=["guess"]
guess = "holds"


# %% id="entered-claim"
def times():
    import random
    import time

    import torch.distributed as dist

    found = []
    for _ in range(20):
        time.sleep(random.random() / 50)
        entered = time.perf_counter()
        dist.barrier()
        found.append((entered, time.perf_counter()))
    return found


job = lockstep.torchrun(times, nproc_per_node=4, backend="gloo", show=False)
early = 0
for once in zip(*job.results, strict=True):
    entered, left = zip(*once, strict=True)
    early += min(left) < max(entered)
told = "of 20 barriers of four ranks one was left too early"
lockstep.claim(
    "Nobody leaves a barrier before all have entered it.",
    guess=guess,
    verdict={0: "holds", 20: "does not hold"}.get(early, "depends"),
    because=f"{told} {early} times",
    stamp=lockstep.live(job),
)

# %% [markdown] id="entered-explained"
# It says nothing of the GPU: under NCCL the kernels that were launched before may still run.
#
# ### Claim: "`monitored_barrier` names the ranks that did not come"
#
# When a job hangs, this is the first question.
# [`monitored_barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.monitored_barrier)
# is a barrier that asks it; only gloo has it. Rank 2 does not call it below. **Guess:** does it hold?

# %% id="monitored-guess" tags=["guess"]
guess = "holds"


# %% id="monitored-claim"
def without_rank_2():
    import time
    from datetime import timedelta

    import torch.distributed as dist

    try:
        second = timedelta(seconds=1)
        if dist.get_rank() == 2:
            time.sleep(2)  # somewhere else in the program
        else:
            dist.monitored_barrier(timeout=second, wait_all_ranks=True)
    except RuntimeError as error:
        return str(error)
    return ""


four = {"nproc_per_node": 4, "backend": "gloo", "show": False}
job = lockstep.torchrun(without_rank_2, **four)
lines = job[0].splitlines()
said = next((line for line in lines if "monitoredBarrier" in line), job[0])
named = [r for r in range(4) if f"Ranks {r} " in said or f"rank {r} " in said]
lockstep.claim(
    "monitored_barrier names the ranks that did not come.",
    guess=guess,
    verdict="holds" if named == [2] else "does not hold",
    because=f"rank 2 did not come; rank 0 was told of {named}",
    stamp=lockstep.live(job),
)

# %% [markdown] id="monitored-explained"
# Rank 0 asks each of the others in turn: so only rank 0 knows, and it is slow. Use it to find a bug, and
# not in each step.
#
# ### Claim: "`src` of a broadcast is a rank of the world, also in a group"
#
# [The documentation](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast) says
# "regardless of group argument". Ranks 2 and 3 make a group. Which number does its first member
# have as `src`: 2, as in the world, or 0, as in the group? **Guess:** does the sentence hold?

# %% id="source-guess" tags=["guess"]
guess = "holds"


# %% id="source-claim"
def from_first_of_two():
    import torch
    import torch.distributed as dist

    group, rank = dist.new_group([2, 3]), dist.get_rank()
    found = {}
    for source in (2, 0):
        x = torch.tensor([rank])
        try:
            if rank >= 2:
                dist.broadcast(x, src=source, group=group)
            found[source] = x.item()
        except ValueError as error:
            found[source] = type(error).__name__
    return found


four = {"nproc_per_node": 4, "backend": "gloo", "show": False}
job = lockstep.torchrun(from_first_of_two, **four)
world, inside = job[3][2], job[3][0]
who = "in the group of ranks 2 and 3, rank 3 has"
lockstep.claim(
    "src of a broadcast is a rank of the world, also in a group.",
    guess=guess,
    verdict="holds" if world == 2 and inside != 2 else "does not hold",
    because=f"{who} from src=2: {world}; from src=0: {inside}",
    stamp=lockstep.live(job),
)

# %% [markdown] id="source-explained"
# With `group_src=0` in place of `src` you say the place in the group.
#
# ### Claim: "with `use_local_synchronization=True`, only the members call `new_group`"
#
# [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html) says so of this
# argument of `new_group`: "non-member ranks don't need to call into API". The name of such a group is
# made from its members, and not by counting (section 5). **Guess** for gloo. The test: two of four ranks
# make such a group, and then all four make another one.

# %% id="local-guess" tags=["guess"]
guess = "holds"


# %% id="local-claim"
def members_then_all():
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    if dist.get_rank() < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(x, group=pair)
    dist.all_reduce(x, group=dist.new_group([0, 1, 2, 3]))
    return x.item()


options = {"nproc_per_node": 4, "backend": "gloo"}
options |= {"may_fail": True, "show": False}
job = lockstep.torchrun(members_then_all, **options)
# 2 from each of the pair, 1 from the others
right = job.ok and job.results == [6, 6, 6, 6]
sums = f"sums on the four ranks: {job.results}"
lockstep.claim(
    "With use_local_synchronization=True, only the members call new_group.",
    guess=guess,
    verdict="holds" if right else "does not hold",
    because=sums if job.ok else "the ranks hang",
    stamp=lockstep.live(job),
)

# %% [markdown] id="local-explained"
# **What changes under NCCL:** where a communicator is split off the default group's (as with
# `init_process_group(device_id=…)`),
# that split still takes all ranks. And groups that overlap must be made in one order everywhere.

# %% [markdown] id="mpi-text"
# ## MPI's words
#
# Most of these ideas, and of the names of collectives, are MPI's. A reader of papers needs both. 5 minutes.

# %% [markdown] id="mpi-table"
# | MPI | PyTorch | not quite the same |
# | --- | --- | --- |
# | communicator | `ProcessGroup` | |
# | `MPI_COMM_WORLD` | `dist.group.WORLD` | PyTorch can destroy and remake it |
# | group | the list of ranks given to `new_group` | |
# | context | the group's name, a prefix of its keys in the store | |
# | `MPI_Comm_split(color, key)` | `split_group`, under NCCL; else `new_group` for each group | there is no key: `new_group` sorts ranks, unless told `sort_ranks=False` |
# | request | `Work` | |
# | virtual topology (`MPI_Cart_create`) | `DeviceMesh` | |
# | `MPI_Comm_rank(comm)` | `dist.get_rank(group)` | |
# | `MPI_Group_translate_ranks` | `get_group_rank`, `get_global_rank` | |
# | `mpirun` | `torchrun` | `torchrun` starts one agent on each node |
