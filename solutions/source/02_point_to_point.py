# %% [markdown] id="title"
# # 02 · Point-to-point
#
# **Two sittings, 70 and 60 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some)
#
# One rank sends, one receives: everything else in this course is made of that. Afterwards you can
#
# - say which calls make the host wait, under gloo and under NCCL, and why the two differ,
# - see from a report that ranks wait for each other's sends, and repair it in two ways,
# - say what the two sides of a message must agree on, and what happens if they do not,
# - measure latency and bandwidth, and predict a message's time from them.
#
# Lab 01 comes first: it says what ranks and groups are. Lab 10 makes a pipeline of these messages.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep

print(NPROC, "ranks, backend:", BACKEND)

# %% id="progress" tags=["unpublished"]
lockstep.progress("02")

# %% [markdown] id="calls-text"
# ## 1 · Who waits for whom
#
# | call | what it does |
# | --- | --- |
# | `send(x, dst)` | sends the tensor `x` to rank `dst` |
# | `recv(x, src)` | receives into `x`, a tensor that is there already; returns the sender's rank |
# | `isend(x, dst)`, `irecv(x, src)` | start doing that; return a handle with `wait()` |
# | `batch_isend_irecv([P2POp(isend, x, dst), …])` | begins several (a `P2POp` is a call that is described and not yet made); returns a list of handles |
#
# The first three rows take a `group` and a `tag`; in a batch each `P2POp` does. Wait once on each handle: under gloo
# a second `wait()` on a message never returns. The **host** is the Python process of a rank; a GPU works on its own
# queue, its *stream*. Here rank 0 sends one number to the last rank.

# %% id="first"
# %%torchrun -n {NPROC} --backend {BACKEND} --into job
import torch
import torch.distributed as dist

last = dist.get_world_size() - 1
x = torch.full((1,), 42.0, device=lockstep.device())
if dist.get_rank() == 0:
    dist.send(x, last)
elif dist.get_rank() == last:
    x.zero_()
    print("from rank", dist.recv(x, 0), "I have", x.item())

# %% [markdown] id="late-text"
# The other ranks did nothing: a message concerns two ranks. When is the sender done? A library can keep a copy and
# let the sender go on. gloo keeps none: the numbers go from the sender's tensor to the receiver's when both ranks are
# there. In the next cell rank 1 comes 0.2 seconds late. **Predict:** how many seconds does rank 0 spend in `send`,
# under gloo?

# %% id="late-prediction" tags=["prediction"]
prediction = 0.2

# %% id="late-machine" tags=["plumbing"]
import time

import torch
import torch.distributed as dist


def host_seconds(start, nbytes):
    """Seconds of rank 0 in `start(x, rank)`; rank 1 comes 0.2 s late."""
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    rank = dist.get_rank()
    for turn in range(2):  # the first turn makes the connections
        dist.barrier()
        if rank == 1 and turn == 1:
            time.sleep(0.2)
        begin = time.perf_counter()
        handle = start(x, rank)
        seconds = time.perf_counter() - begin
        if hasattr(handle, "wait"):
            handle.wait()
    return seconds


# %% id="late" tags=["varies"]
def send(x, rank):  # the name says what rank 0 does; rank 1 does the opposite
    return dist.recv(x, 0) if rank else dist.send(x, 1)


two_gloo = {"nproc_per_node": 2, "backend": "gloo", "show": False}
job = lockstep.torchrun(host_seconds, send, 4, **two_gloo)
lockstep.compare(predicted=prediction, measured=job[0], unit="s")

# %% [markdown] id="waits-text"
# Now all calls, in both directions. The column for NCCL is live where there are two GPUs, and recorded
# on two H200s elsewhere.


# %% id="waits"
def isend(x, rank):  # all names: what rank 0 does
    return dist.irecv(x, 0) if rank else dist.isend(x, 1)


def recv(x, rank):
    return dist.send(x, 0) if rank else dist.recv(x, 1)


def irecv(x, rank):
    return dist.isend(x, 0) if rank else dist.irecv(x, 1)


WAYS = {
    "send, 4 bytes": (send, 4),
    "send, 4 MB": (send, 4_000_000),
    "recv": (recv, 4),
    "isend": (isend, 4),
    "isend, then wait()": (lambda x, rank: isend(x, rank).wait(), 4),
    "irecv": (irecv, 4),
    "irecv, then wait()": (lambda x, rank: irecv(x, rank).wait(), 4),
}
print(*WAYS, sep="\n")


# %% id="waits-table" tags=["plumbing"]
def column(backend):
    job = lockstep.torchrun(
        lambda: {name: host_seconds(*way) for name, way in WAYS.items()},
        **{**two_gloo, "backend": backend},
    )
    says = {True: "waits for the other rank", False: "returns at once"}
    said = {name: says[seconds > 0.1] for name, seconds in job[0].items()}
    return said, lockstep.live(job)


gloo, stamp = column("gloo")
if lockstep.gpu_count() >= 2:
    nccl, nccl_stamp = column("nccl")
else:
    recording = lockstep.recorded("backends/waits-nccl.json")
    nccl, nccl_stamp = recording.content, recording.stamp
lockstep.table(
    "What the host does, when the other rank comes late",
    ["call of rank 0", "gloo (live)", f"NCCL ({nccl_stamp.kind})"],
    [[name, gloo[name], nccl[name]] for name in WAYS],
    stamp=[stamp, nccl_stamp],
)

# %% [markdown] id="waits-explained"
# Under gloo a send is a **rendezvous**: it ends when the receiver has arrived, whatever the size. `isend` puts this
# wait off until `wait()`.
#
# **What changes under NCCL.** Every call only queues work on the GPU's stream, and `wait()` makes the *stream* wait,
# not the host. The waiting still happens, on the GPU, where you do not see it. (The first message between two ranks
# is different: it makes their connection, for which both must be there.) A group that is made with its GPU
# (`device_id`), as Lockstep's are, has one queue for messages and collectives, in the order of the calls. (In your
# own script PyTorch prints a warning about that.)

# %% [markdown] id="deadlock-text"
# ### A deadlock of sends
#
# Two ranks swap a tensor. Both send first and then receive, which is the obvious way to write it. The cell is
# **broken on purpose**. Look in the report for the call that each rank is in.

# %% id="deadlock"
# %%torchrun -n 2 --backend gloo --may-fail
import torch
import torch.distributed as dist

mine = torch.full((1,), float(dist.get_rank()))
theirs = torch.empty(1)
other = 1 - dist.get_rank()
dist.send(mine, other)
dist.recv(theirs, other)

# %% [markdown] id="buffered-text"
# Each rank is in its `send`, which ends when the other is in its `recv`. That is the next line, which neither
# reaches.
#
# ### Claim: "a small message is buffered, so that swap hangs only for large ones"
#
# Users of MPI say this ([Gropp's tutorial](http://www-unix.mcs.anl.gov/mpi/tutorial/gropp/node87.html): "Send works
# for small enough messages"): most MPI libraries send small messages at once (*eager*) and meet only for large
# ones, so a program like the one above may run for years, until a tensor grows. Test it with several sizes:
# under gloo here, and under NCCL, live where there are two GPUs and recorded on two H200s elsewhere. The
# ranks first swap once by turns, because under NCCL a pair's first message makes the connection, for which
# both must come. **Guess** first.

# %% id="buffered-guess" tags=["guess"]
guess = "depends"


# %% id="buffered"
def send_first(nbytes):
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    shape, device = (2, nbytes), lockstep.device()
    mine, theirs = torch.zeros(shape, dtype=torch.uint8, device=device)
    for sender in (0, 1):  # by turns: after it, the two are connected
        if rank == sender:
            dist.send(mine, other)
        else:
            dist.recv(theirs, other)
    dist.send(mine, other)  # and now both send first
    dist.recv(theirs, other)
    theirs[-1].item()  # waits for a GPU, too


# %% id="buffered-sends" tags=["plumbing"]
options = {"nproc_per_node": 2, "may_fail": True, "show": False, "timeout": 10}
SMALL = {"4 B": 4, "4 kB": 4_000, "4 MB": 4_000_000}
LARGE = {f"{size} MB": size * 10**6 for size in (16, 64, 256)}


def hangs(backend, sizes):
    """By size whether it hangs, and the stamp."""
    found = {}
    for name, size in sizes.items():
        job = lockstep.torchrun(send_first, size, backend=backend, **options)
        found[name] = not job.ok
    return found, lockstep.live(job)


gloo_sends, gloo_sends_stamp = hangs("gloo", SMALL)
if lockstep.gpu_count() >= 2:
    nccl_sends, nccl_sends_stamp = hangs("nccl", SMALL | LARGE)
else:
    recording = lockstep.recorded("backends/mutual-send-nccl.json")
    nccl_sends_stamp, later = recording.stamp, recording.content
    later = {one["bytes"]: one["hangs"] for one in later if one["connected"]}
    nccl_sends = {name: later[size] for name, size in (SMALL | LARGE).items()}

# %% id="buffered-claim" tags=["plumbing"]
ok = [not hung["4 B"] for hung in (gloo_sends, nccl_sends)]
said = []
for backend, hung in {"gloo": gloo_sends, "NCCL": nccl_sends}.items():
    for way, so in {"goes through": False, "hangs": True}.items():
        sizes = ", ".join(size for size in hung if hung[size] == so)
        said += [f"{backend}, {way}: {sizes}"] if sizes else []
lockstep.claim(
    "A small message is buffered, so a mutual send hangs only for large ones.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=[gloo_sends_stamp, nccl_sends_stamp],
)

# %% [markdown] id="swap-in-turn-text"
# Under gloo the mistake shows at once. Under NCCL it may show late. On the recorded GPUs messages of up to 64 MB went
# into NCCL's buffers, and 256 MB hung: both hosts had made their two calls, and the GPUs waited for each other.
# Nothing promises how much fits. (As a pair's *first* messages, 4 bytes hung, too.) There are two repairs.
#
# ### Exercise 1: take turns
#
# **Goal:** `swap_in_turn(x, other)` runs on many ranks at once. Ranks are in pairs, any two of them may be partners,
# and `other` is the rank of the partner. It returns the partner's `x`, in a new tensor, and leaves `x` as it is. On
# all ranks `x` has the same shape and dtype. Only `send` and `recv`, one of each, one after the other.

# %% id="swap_in_turn"
import torch
import torch.distributed as dist


def swap_in_turn(x, other):
    # BEGIN SOLUTION
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs
    # END SOLUTION


# %% id="swap_in_turn-check"
lockstep.check("swap_in_turn", swap_in_turn)

# %% [markdown] id="swap-text"
# Taking turns works for pairs. But a link carries both directions at the same time, and half of it was idle.
#
# ### Exercise 2: both at once
#
# **Goal:** `swap(x, other)` does the same with one message each way, and both ranks start both messages before they
# wait for either.

# %% id="swap"
import torch
import torch.distributed as dist


def swap(x, other):
    # BEGIN SOLUTION
    theirs = torch.empty_like(x)
    handles = [dist.isend(x, other), dist.irecv(theirs, other)]
    for handle in handles:
        handle.wait()
    return theirs
    # END SOLUTION


# %% id="swap-check"
lockstep.check("swap", swap)

# %% [markdown] id="shift-text"
# ### Exercise 3: a ring
#
# With more than two ranks the same mistake hangs around a whole ring. A shift along a ring is one of
# the two steps of which lab 03 makes an all-reduce.
#
# **Goal:** `shift(x, by)` runs on all ranks and returns the `x` of the rank `by` places before this
# one, around the ring: with 4 ranks and `by=1` rank 0 gets that of rank 3. `by` may be 0, negative,
# or larger than the world. One message out and one in, by `batch_isend_irecv`, and `x` stays as it is;
# where a rank would get its own `x`, a copy and no message (gloo has no connection from a rank to
# itself).

# %% id="shift"
import torch
import torch.distributed as dist


def shift(x, by):
    # BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, theirs, (rank - by) % n),
    ]
    for handle in dist.batch_isend_irecv(both):
        handle.wait()
    return theirs
    # END SOLUTION


# %% id="shift-check"
lockstep.check("shift", shift)

# %% [markdown] id="batch-text"
# **What changes under NCCL.** `batch_isend_irecv` becomes *one* piece of work on the GPU (NCCL's group call), so that
# sends and receives really run at the same time. Separate `isend` and `irecv` calls on one communicator are queued
# one after the other. In a swap it is then dangerous if both ranks use the *same* order: both GPUs work on their
# send, and the receives that would let these end wait behind them. [NCCL's
# documentation](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html) says to "merge calls that
# need to progress concurrently to avoid deadlocks". So for swaps on GPUs, batch. (PyTorch has a rule for that: where
# a batch is the first call of its group, all ranks of the group must take part.)

# %% [markdown] id="must-match-text"
# ## 2 · What must match
#
# Both sides call, and something must decide which `recv` gets which `send`. A `recv` takes messages of its own group,
# from the sender that it names, with its own tag (0 if none is said). Of these it takes the first that has not been
# taken yet. Other messages wait.
#
# You can try that in the further notebook.
#
# Then comes the content. A message is bytes: it carries neither a type nor a shape, and gloo writes the bytes to the
# start of the receiver's memory. Rank 0 sends four float32: 0, 1, 2, 3. Rank 1 receives into *six* float32, all of
# them -1 before. **Predict:** what is then in the last one?

# %% id="match-prediction" tags=["prediction"]
prediction = -1

# %% id="match"
import torch
import torch.distributed as dist


def send_into(dtype, shape):
    """Rank 0 sends float32 0, 1, 2, 3; rank 1 receives into a tensor of -1."""
    if dist.get_rank() == 0:
        dist.send(torch.arange(4.0), 1)
        return None
    x = torch.full(shape, -1, dtype=getattr(torch, dtype))
    dist.recv(x, 0)
    return x.tolist()


gloo_2 = {"nproc_per_node": 2, "backend": "gloo"}
gloo_2 |= {"show": False, "may_fail": True}
job = lockstep.torchrun(send_into, "float32", [6], **gloo_2)
lockstep.compare(predicted=prediction, measured=job[1][-1])

# %% id="match-table"
CASES = ["float32", [2, 2]], ["int32", [4]], ["float64", [2]]
CASES += ["float32", [6]], ["float32", [3]]
rows = []
for dtype, shape in CASES:
    job = lockstep.torchrun(send_into, dtype, shape, **gloo_2)
    why = job.report.splitlines()[0].split(". ")[0] if not job.ok else ""
    became = job[1] if job.ok else f"the receiver's process ends: {why}"
    rows.append([f"{dtype}{shape}", became])
lockstep.table(
    "float32[4] with 0, 1, 2, 3 is received into",
    ["tensor", "result"],
    rows,
    stamp=lockstep.live(job),
)

# %% [markdown] id="match-explained"
# gloo compares no shape and no type. In memory the float32 1.0 is the four bytes `0x3F800000`, which as an int32 is
# 1065353216. Two float32 become one float64, and if the tensor is too large, its rest keeps what was there. None of
# these raises an error. Only a tensor that is too *small* is noticed, and then the process ends, which no `except`
# can catch.
#
# **What changes under NCCL.** Its documentation asks for the same count and type on both sides and
# promises nothing otherwise. And PyTorch says that NCCL does not support `tag`: there, order alone
# decides. A program that must run on both cannot rely on tags.
#
# One more rule. `isend` returns before the message has left. Rank 0 sends a 1, and *before* it waits it
# writes a 2 into the tensor; rank 1 comes late. **Predict:** what does rank 1 get, under gloo?

# %% id="reuse-prediction" tags=["prediction"]
prediction = 2

# %% id="reuse"
# %%torchrun -n 2 --backend gloo --into reuse_job
import time

import torch
import torch.distributed as dist

x = torch.ones(1)
if dist.get_rank() == 0:
    handle = dist.isend(x, 1)
    x.fill_(2)
    handle.wait()
else:
    time.sleep(0.2)  # late
    dist.recv(x, 0)
x.item()

# %% id="reuse-measured"
lockstep.compare(predicted=prediction, measured=reuse_job[1])

# %% [markdown] id="reuse-explained"
# Nothing was copied: gloo reads the tensor when the receiver arrives, so it is 2 here. Nothing promises that. Until
# `wait()` has returned, the tensor belongs to the message.
#
# **Break.** The first sitting ends here. You know who waits for whom, and what must match. What follows is what a message costs. The
# next section starts on its own.

# %% [markdown] id="cost-text"
# ## 3 · What a message costs
#
# The simplest model has two numbers. A message of *n* bytes takes
#
# $$t(n) = \alpha + \beta n$$
#
# α, the **latency**, is what even an empty message costs; 1/β is the **bandwidth**. You need a clock to
# measure it, and two ranks' clocks may differ. So a message goes there and back, and one clock
# times both.
#
# ### Exercise 4: ping-pong
#
# **Goal:** `one_way(nbytes, repeats)` runs on two ranks, with a tensor of `nbytes` bytes on `lockstep.device()`. It
# makes one round trip that does not count (it makes the connection), then `repeats` round trips, each timed by
# itself. On rank 0 it returns the seconds that *one* message takes: the median, because a busy machine makes some of
# them late. (On rank 1 it may return anything.) Take every time with `now()`: it returns the time when everything
# queued is done, also on a GPU.

# %% id="one_way"
import statistics
import time

import lockstep
import torch
import torch.distributed as dist


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    # BEGIN SOLUTION
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    trips = []
    for _ in range(repeats + 1):  # after it, one more round trip is timed
        begin = now()
        for sender in (0, 1):
            if dist.get_rank() == sender:
                dist.send(x, 1 - sender)
            else:
                dist.recv(x, sender)
        trips.append(now() - begin)
    return statistics.median(trips[1:]) / 2
    # END SOLUTION


# %% id="one_way-check"
lockstep.check("one_way", one_way)

# %% [markdown] id="two-points-text"
# Two sizes are enough for the two numbers. A message of 4 bytes takes α, nearly; one of 4 MiB (2²² bytes)
# takes α and 2²² β. Measure both.


# %% id="two-points" tags=["varies"]
def sweep(one_way, sizes):
    return [one_way(size, 50) for size in sizes]


one_way = lockstep.carry_on("one_way", one_way)
two = {"nproc_per_node": 2, "backend": BACKEND, "show": False}
job = lockstep.torchrun(sweep, one_way, [4, 2**22], **two)
small, large = job[0]
print(f"4 bytes: {1e6 * small:,.0f} µs · 2²² bytes: {1e6 * large:,.0f} µs")
print(lockstep.live(job))

# %% [markdown] id="third-text"
# A model is useful if it predicts what has not been measured. **Predict**, from `small` and `large`: how many
# *micro*seconds does a message of 2¹⁸ bytes (256 KiB) take here? (It has a sixteenth of the bytes of the large one.
# Does it take a sixteenth of the time?)

# %% id="third-prediction" tags=["prediction"]
# your number, or how it comes from small and large
prediction = 1e6 * (small + (large - small) / 16)  # α, and a part of the rest

# %% id="third" tags=["varies"]
third = lockstep.torchrun(sweep, one_way, [2**18], **two)
lockstep.compare(predicted=prediction, measured=1e6 * third[0][0], unit="µs")

# %% [markdown] id="fit-text"
# More sizes show where the model is good. `lockstep.cost.fit` puts a line through measured points (least
# squares of the *relative* errors, so that small messages count as much as large ones).
#
# Another program may use a core while you measure, and then one point lies far above its neighbours. So beside your
# measurement stands one that was recorded on an idle machine, between two H200s that are connected by NVLink,
# NVIDIA's link between GPUs. Both axes are logarithmic. Dashed lines are the model.

# %% id="fit" tags=["varies"]
most = 15 if third.backend == "nccl" else 13  # 4 B to 16 MiB, and 256 on GPUs
SIZES = [4**power for power in range(1, most)]
job = lockstep.torchrun(sweep, one_way, SIZES, **two)
points = list(zip(SIZES, job[0], strict=True))
line = lockstep.cost.fit(SIZES, job[0])

fit_recording = lockstep.recorded("sweeps/h200-x4.json")
trips = fit_recording.content["sweeps"]["ping_pong"]  # a trip is two messages
nvlink_points = [(trip["bytes"], trip["seconds"] / 2) for trip in trips]
nvlink = lockstep.cost.fit(*zip(*nvlink_points, strict=True))
print("here:", line)
lockstep.chart(
    {"here": points, "two H200s": nvlink_points},
    models={
        "here": [(size, line(size)) for size in SIZES],
        "two H200s": [(size, nvlink(size)) for size, _ in nvlink_points],
    },
    x="message (bytes)",
    y="one way (seconds)",
    alt="A message's time over its size, here and on H200s: flat, then rising.",
    stamp=[lockstep.live(job), fit_recording.stamp],
)

# %% [markdown] id="nvlink-text"
# Flat on the left, where α decides; a slope on the right, where β does. This is the recorded line. (After ± stands
# the standard error: by about so much other points of the same scatter would have moved the number.)

# %% id="nvlink-fit"
print("two H200s:", nvlink)
print(fit_recording.stamp)

# %% [markdown] id="model-explained"
# Two numbers give the shape, and the order of magnitude at every size ("How well two numbers do", in the further
# notebook, looks at each size). And look at what α is on the GPUs: the time stays nearly the same up to 1 MB. Most
# likely it is PyTorch's and CUDA's launch of the call, on the host, and then a faster wire would change nothing
# there. (The recorded trips were timed fifty at a time, so their host could launch ahead. If your ranks are on GPUs,
# each trip waits for its launches: your α is larger.)
#
# ### A chain of links
#
# Four GPUs are in a row; a tensor of 64 MB is on the first, and each passes it on to its neighbour. In one piece, it
# takes three messages one after the other. Cut into *c* pieces, a rank can pass on the first piece while it receives
# the second: the last piece leaves after *c* messages and then has two more hops, $(c + 2)\,(\alpha + \beta n / c)$.
#
# Few pieces leave links idle; many pieces pay α many times. **Predict**, with NVLink's α and β: which of 1, 2, 4, 8,
# 16, 32 and 64 pieces is the fastest?

# %% id="pieces-prediction" tags=["prediction"]
prediction = 4


# %% id="pieces"
def relay_seconds(pieces, nbytes=64e6, ranks=4):
    return (ranks - 2 + pieces) * nvlink(nbytes / pieces)


COUNTS = (1, 2, 4, 8, 16, 32, 64)
lockstep.compare(predicted=prediction, computed=min(COUNTS, key=relay_seconds))

# %% [markdown] id="relay-text"
# (Where the slope is zero, $c = \sqrt{(p - 2)\,\beta n / \alpha}$.) NCCL itself moves large messages
# in pieces like that.
#
# ### Exercise 5: relay
#
# **Goal:** `relay(x, chunks)` runs on all ranks. `x` has one dimension, and the same length everywhere; rank 0's is the
# data, and afterwards all have it in `x`. Each rank sends to the next one only, in `chunks` pieces (`x.chunk` cuts a
# tensor into pieces that share its memory; the last one may be shorter). It passes a piece on before it waits for the
# next, and can receive that one while it is still sending. It makes no other calls.

# %% id="relay"
import torch
import torch.distributed as dist


def relay(x, chunks):
    # BEGIN SOLUTION
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(chunks):  # after it, this one is here, and on its way
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < last:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()
    # END SOLUTION


# %% id="relay-check"
lockstep.check("relay", relay)

# %% id="relay-drawing" tags=["plumbing"]
from lockstep.trace import Kind, Slice


def arrivals(job):
    """Of each piece: from when both sides had begun until it was there."""
    all_calls = [call for calls in job.calls for call in calls]
    sends = [call for call in all_calls if call.operation == "send"]
    sent = {(c.rank, c.peer, c.tag, c.number): c for c in sends}
    slices, came = [], dict.fromkeys(range(job.nproc), 0)

    def draw(call, name, kind, begin, end):
        span = round(begin * 1e9), round((end - begin) * 1e9)
        slices.append(Slice(call.rank, "receives", name, *span, kind))

    for call in (one for one in all_calls if one.operation == "recv"):
        there = sent[call.peer, call.rank, call.tag, call.number]
        both = max(call.start, there.start)
        if both > call.start:
            draw(call, "waits", Kind.WAIT, call.start, both)
        piece = f"piece {came[call.rank]}"
        draw(call, piece, Kind.COMMUNICATION, both, call.end)
        came[call.rank] += 1
    pieces = sorted({one.name for one in slices} - {"waits"})[:4]  # 4 colours
    trace = lockstep.Trace.from_slices(slices, stamp=lockstep.live(job))
    return trace, {name: name for name in pieces}


# %% id="relay-run" tags=["varies"]
relay = lockstep.carry_on("relay", relay)
job = lockstep.torchrun(
    lambda: relay(torch.zeros(4_000_000), 4),
    nproc_per_node=4,
    backend="gloo",
    show=False,
)
trace, groups = arrivals(job)
lockstep.Timeline(trace, title="16 MB in four pieces", groups=groups)

# %% [markdown] id="relay-explained"
# The timeline is made from the record of the calls. A piece is drawn on the rank that receives it, from the
# time when both sides had begun until it was there; before that the receiver waits. Follow piece 0 from
# rank to rank: the last rank has it while the others still receive later ones. That is a **pipeline**;
# in lab 10 each rank has some layers of a model, and the pieces are parts of a batch. (This job uses gloo
# everywhere: under NCCL the record says when the host *queued* a call. What the GPU did when is in a trace,
# `%%torchrun --trace`.)

# %% [markdown] id="sum-text"
# ## 4 · What point-to-point is bad at
#
# Data-parallel ranks need the sum of everybody's gradient. With what you have so far, all send theirs to rank 0,
# which adds them up and sends the sum back to each. **Predict:** `x` has 1 MB (10⁶ bytes) on each of the ranks. How
# many MB go in and out of rank 0 together?

# %% id="sum-prediction" tags=["prediction"]
prediction = 2 * (NPROC - 1)

# %% id="sum"
# %%torchrun -n {NPROC} --backend {BACKEND} --into sum_job
import torch
import torch.distributed as dist

x = torch.ones(250_000, device=lockstep.device())
others = range(1, dist.get_world_size())
if dist.get_rank() == 0:
    part = torch.empty_like(x)
    for other in others:
        dist.recv(part, other)
        x += part
    for other in others:
        dist.send(x, other)
else:
    dist.send(x, 0)
    dist.recv(x, 0)
x[0].item()

# %% id="sum-measured"
megabytes = [sum(call.bytes for call in calls) / 1e6 for calls in sum_job.calls]
print(*megabytes, "MB through each rank")
lockstep.compare(predicted=prediction, measured=megabytes[0])

# %% [markdown] id="recap"
# ## Recap
#
# - A gloo send ends when its receiver has come, whatever its size; under NCCL the GPU waits instead of
#   the host. Mutual sends deadlock, under NCCL once they do not fit its buffers: take turns, or begin both
#   before waiting.
# - Group, sender, tag and then order decide which messages meet; NCCL has no tags. A message is bytes:
#   the wrong type or shape gives wrong numbers and no error.
# - Until `wait()` has returned, a tensor belongs to its message.
# - $\alpha + \beta n$ gives the shape of a message's time; cutting a message into pieces keeps all links
#   of a chain busy.
#
# **What is slow here, and comes next:** everything went through rank 0 while the links between the others were idle,
# and it gets worse with every rank. In lab 03 all ranks share that work: collectives.

# %% [markdown] id="further"
# # 02 · Point-to-point: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="transfer-text"
# ## A tensor that the receiver does not know
#
# About 25 minutes; a CPU is enough. The receiver must provide a tensor of the right size and type. But the last part
# of a batch may be shorter, and the next rank of a pipeline does not know.
#
# `send` does not take every tensor: its numbers must be contiguous in memory. Those of a transposed matrix, say, do
# not; `x.contiguous()` is a tensor whose numbers do, a copy where `x` is not.
#
# ### Exercise: transfer
#
# **Goal:** `transfer(x, src, dst)` runs on all ranks. On rank `src`, `x` is a tensor of any shape (up
# to 8 dimensions) with a type of `KINDS`; on all others it is None. On rank `dst` it returns that
# tensor: same values, shape and type. (What other ranks return does not matter.) The data itself travels
# as a tensor of its own type, in one message; at most four more may tell of it. Ranks other than `src` and
# `dst` call nothing.

# %% id="transfer"
import lockstep
import torch
import torch.distributed as dist

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    # BEGIN SOLUTION
    header = torch.zeros(10, dtype=torch.int64, device=lockstep.device())
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)  # the rest of it stays 0
        dist.send(header, dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        x = torch.empty(shape[:dim], dtype=KINDS[kind], device=header.device)
        dist.recv(x, src)
        return x
    # END SOLUTION


# %% id="transfer-check"
lockstep.check("transfer", transfer)

# %% [markdown] id="batch-order"
# ## The order in a batch
#
# About 5 minutes; a CPU is enough. A sentence of PyTorch's documentation, tested.
#
# ### Claim: "in a batch, the order of sends and receives does not matter"
#
# [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html) of `batch_isend_irecv`
# says that it "will not cause deadlocks", and that the order of sends against receives does not matter. (Two
# messages to the *same* rank still meet in the order of the list.) The test: two ranks swap 4 MB, both with the send first in
# the list, then both with the receive first, then one of each. **Guess** first.

# %% id="batch-guess" tags=["guess"]
guess = "holds"

# %% id="batch-claim"
import torch
import torch.distributed as dist


def swap_batched(first):
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.zeros((2, 1_000_000), device=lockstep.device()) + rank
    ops = [dist.P2POp(dist.isend, mine, other)]
    ops.append(dist.P2POp(dist.irecv, theirs, other))
    if first[rank] == "receive":
        ops.reverse()
    for handle in dist.batch_isend_irecv(ops):
        handle.wait()
    return theirs[-1].item()


options = {"nproc_per_node": 2, "backend": BACKEND, "timeout": 30}
options |= {"may_fail": True, "show": False}
came, ok = [], []
for first in ("send", "send"), ("receive", "receive"), ("send", "receive"):
    job = lockstep.torchrun(swap_batched, first, **options)
    ok.append(job.ok and list(job.results) == [1, 0])
    said = "right" if ok[-1] else "not right"
    came.append(f"{first[0]} and {first[1]} first: {said}")
lockstep.claim(
    "In a batch, the order of sends and receives does not matter.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(came),
    stamp=lockstep.live(job),
)

# %% [markdown] id="tags-text"
# ## Which message meets which `recv`
#
# About 10 minutes; a CPU is enough. Section 2 says: a `recv` takes messages of its own
# group, from the sender that it names, with its own tag; of these the one that was sent first and is not
# taken yet.
#
# Here rank 0 sends 10, 20, 30 and 40, with the tags 5, 7, 5 and 7. Rank 1 asks for tag 7, then twice for
# tag 5, then for tag 7 again. **Predict:** what does it receive the *third* time?

# %% id="tags-prediction" tags=["prediction"]
prediction = 30

# %% id="tags"
# %%torchrun -n 2 --backend gloo --into tags_job
import torch
import torch.distributed as dist

x, handles, got = torch.empty(1), [], []
if dist.get_rank() == 0:
    for value, tag in (10.0, 5), (20.0, 7), (30.0, 5), (40.0, 7):
        handles.append(dist.isend(torch.tensor([value]), 1, tag=tag))
else:
    for tag in (7, 5, 5, 7):
        dist.recv(x, 0, tag=tag)
        got.append(x.item())
for handle in handles:
    handle.wait()
got

# %% id="tags-measured"
lockstep.compare(predicted=prediction, measured=tags_job[1][2])

# %% [markdown] id="tags-explained"
# With tag 5 came 10 and 30, in this order. (The 40 had to be asked for, too: under gloo a send that nobody
# receives does not end.) NCCL has no tags: there, order alone decides.

# %% [markdown] id="model-further"
# ## How well two numbers do
#
# About 10 minutes; needs section 3's model. Here are the recorded messages between two H200s again, and the
# line through them.
#
# ### Claim: "latency plus bytes over bandwidth says what any message takes"
#
# [Hockney 1994](https://doi.org/10.1016/S0167-8191%2806%2980021-9) describes messages by these two numbers. Let it hold
# if every size of the recorded sweep comes out within 25 %. **Guess** first. (Beside it stands your own machine. It
# is no part of the verdict: other programs run on it, too.)

# %% id="model-guess" tags=["guess"]
guess = "holds"


# %% id="model-claim"
recording = lockstep.recorded("sweeps/h200-x4.json")
trips = recording.content["sweeps"]["ping_pong"]  # a trip is two messages
nvlink_points = [(trip["bytes"], trip["seconds"] / 2) for trip in trips]
nvlink = lockstep.cost.fit(*zip(*nvlink_points, strict=True))


def worst(line, points):
    """The largest relative miss of the line, and at which size."""
    return max((abs(line(size) / took - 1), size) for size, took in points)


miss, at = worst(nvlink, nvlink_points)
off = f"{100 * miss:.0f} %"
lockstep.claim(
    "Latency plus bytes over bandwidth says what a message takes, within 25 %.",
    guess=guess,
    verdict="holds" if miss <= 0.25 else "does not hold",
    because=f"two H200s: {off} off at {at:,} B, and less at other sizes",
    stamp=recording.stamp,
)

# %% id="model-here" tags=["varies"]
one_way = lockstep.carry_on("one_way")
SIZES = [4**power for power in range(1, 13)]  # 4 B to 16 MiB
job = lockstep.torchrun(
    lambda: [one_way(size, 50) for size in SIZES],
    nproc_per_node=2,
    backend=BACKEND,
    show=False,
)
line = lockstep.cost.fit(SIZES, job[0])
miss, at = worst(line, list(zip(SIZES, job[0], strict=True)))
print(f"here: {100 * miss:.0f} % off at {at:,} B")
print(lockstep.live(job))

# %% [markdown] id="message-dials-text"
# Try it: the next cell has sliders for the two numbers, over the points that were recorded. Turn α, and the
# flat part moves up and down. Turn 1/β, and the slope moves. Where do points stay off the line, wherever
# you put it?

# %% id="message-dials"
lockstep.interactive.cost(
    lockstep.interactive.MESSAGE,
    line=nvlink,
    ranks=None,
    measured={"two H200s": nvlink_points},
    stamp=recording.stamp,
)

# %% id="model-misses"
for size, took in nvlink_points[::2]:
    more = 100 * (nvlink(size) / took - 1)
    print(f"{size:>13,} B: the line says {more:+z.0f} %")

# %% [markdown] id="model-misses-text"
# The points are on the fitted line while the time is flat. Around 1 MB the line is too high, from 4 to 134 MB too
# low, and above too high again. A line has one slope, and the points have several: a library uses other methods for
# other sizes (buffers, pieces). No setting of the sliders changes that.

# %% [markdown] id="half-text"
# ## Half of the bandwidth
#
# About 10 minutes; needs section 3's model. From which size on does a link do at least half of what it can?
# Here are the recorded messages between two H200s again, and the line through them:

# %% id="half-fit"
recording = lockstep.recorded("sweeps/h200-x4.json")
trips = recording.content["sweeps"]["ping_pong"]  # a trip is two messages
sizes = [trip["bytes"] for trip in trips]
times = [trip["seconds"] / 2 for trip in trips]
fitted = lockstep.cost.fit(sizes, times)
print(fitted, recording.stamp, sep="\n")

# %% [markdown] id="half-ask"
# **Predict** from its α and β: at which size, in MB (10⁶ bytes), does a message reach *half* of the
# bandwidth 1/β, by the model? (Half of the bandwidth is twice the time βn.)

# %% id="half-prediction" tags=["prediction"]
prediction = fitted.alpha / fitted.beta / 1e6  # α + βn is 2βn if βn = α

# %% id="half"
rates = [size / took for size, took in zip(sizes, times, strict=True)]
half = max(rates) / 2
at = next(i for i, rate in enumerate(rates) if rate > half)
print(f"recorded: {max(rates) / 1e9:.0f} GB/s at most,", end=" ")
print(f"and half of it first at {sizes[at] / 1e6:.1f} MB")
by_model = fitted.alpha / fitted.beta / 1e6
lockstep.compare(predicted=prediction, computed=by_model, unit="MB")

# %% [markdown] id="half-explained"
# NVLink reached half of its bandwidth only at a larger size than α/β, for three reasons. Between the flat part and the
# slope the library uses other methods, and the line is off there. The sweep doubles its sizes. And the
# largest bandwidth that was recorded lies above the fit's 1/β, so half of it does, too.
