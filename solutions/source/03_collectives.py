# %% [markdown] id="title"
# # 03 · Collectives
#
# **Two sittings, 90 and 35 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some; what NCCL
# does on 4 H200s is recorded)
#
# A *collective* is a call that all ranks of a group make together. Training is made of five or six of
# them. Afterwards you can
#
# - say for each collective who holds what before and after,
# - use handles,
# - build an all-reduce out of messages in two ways, and count what each sends,
# - say when to bundle calls, and what that saves,
# - name the rank that skipped a call, and untangle two groups.
#
# Objects have a section in the further notebook. Labs 00 to 02 come first: sends, receives and what a message costs
# are taken from there. What collectives cost on many GPUs is lab 15.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep

# %% id="progress" tags=["unpublished"]
lockstep.progress("03")

# %% [markdown] id="one-text"
# ## 1 · Who holds what
#
# Every rank starts with different numbers, so that each number says whose it was: with four ranks, rank 0 holds 10 11
# 12 13, rank 1 holds 20 21 22 23, and so on. Three collectives, each on a copy of them. In some calls one rank has a
# special role: the *root*, named by `src` or `dst`:
#
# | call | what it does |
# | --- | --- |
# | `broadcast(x, src=0)` | the root's tensor, to all |
# | `reduce(x, dst=0)` | the sum over all ranks, to the root |
# | `all_reduce(x)` | the sum over all ranks, to all |
#
# **Guess** first about a sentence that this run will test: "`reduce` changes the tensor of the root, and leaves the
# others alone" (`"holds"`, `"does not hold"`, or `"depends"`: true in some of the tested cases, here for some ranks,
# and false in others). **Predict**, too: after the `all_reduce`, what is the first number that *rank 1* holds?

# %% id="reduce-guess" tags=["guess"]
guess = "does not hold"

# %% id="one-prediction" tags=["prediction"]
prediction = 10 * NPROC * (NPROC + 1) / 2  # 10 + 20 + 30 + …


# %% id="one-picture" tags=["plumbing"]
def picture(job):
    """Who held what, from a job whose ranks return {name: (before, after)}."""
    held = {}
    for name in job[0]:
        before = tuple(rank[name][0] for rank in job.results)
        after = tuple(rank[name][1] for rank in job.results)
        held[name] = (before, after)
    return lockstep.buffers(held, stamp=lockstep.live(job))


on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}

# %% id="one"
import torch
import torch.distributed as dist


def three():
    rank, n = dist.get_rank(), dist.get_world_size()
    # Four at least: of two numbers gloo leaves no partial sum on two ranks.
    x = 10 * (rank + 1) + torch.arange(max(n, 4), device=lockstep.device())
    copies = {name: x.clone() for name in ("broadcast", "reduce", "all_reduce")}
    dist.broadcast(copies["broadcast"], src=0)
    dist.reduce(copies["reduce"], dst=0)
    dist.all_reduce(copies["all_reduce"])
    before = x.tolist()
    return {name: (before, after.tolist()) for name, after in copies.items()}


one_job = lockstep.torchrun(three, **on_ranks)
display(picture(one_job))
lockstep.compare(predicted=prediction, measured=one_job[1]["all_reduce"][1][0])

# %% [markdown] id="one-explained"
# A row is a rank and a box is a number, which keeps the colour and the pattern of the rank that had it before. A
# thick frame marks what was computed on the way.
#
# ### Claim: "`reduce` changes the tensor of the root, and leaves the others alone"
#
# That is how it is drawn in most textbooks. If it holds, you may go on using `x` on the other ranks.

# %% id="reduce-claim"
changed = []  # of each rank but the root, whether it holds other numbers now
for rank in range(1, NPROC):
    before, after = one_job[rank]["reduce"]
    changed.append(before != after)
some = "depends" if any(changed) else "holds"
lockstep.claim(
    "reduce changes the tensor of the root, and leaves the others alone.",
    guess=guess,
    verdict="does not hold" if all(changed) else some,
    because=f"of the ranks that are not the root, {sum(changed)} of "
    f"{len(changed)} hold other numbers now",
    stamp=lockstep.live(one_job),
)

# %% [markdown] id="reduce-explained"
# The documentation promises a result on the root, and nothing about the others. gloo writes partial sums into the
# tensors of all ranks: each number left there is a sum over some or all of the ranks. **What changes under NCCL:** it
# may leave the others as they were, so the claim's verdict is computed wherever this lab runs, and the stamp says
# under what. A program that relies on it works until it runs elsewhere.
#
# ### Pieces
#
# The next six move pieces. `parts` is a list of tensors, one for each rank.
#
# | call | what it does |
# | --- | --- |
# | `scatter(part, parts, src=0)` | the root's list, one piece to each rank |
# | `gather(part, parts, dst=0)` | a piece of each rank, to the root |
# | `all_gather(parts, part)` | a piece of each rank, to all |
# | `reduce_scatter(part, parts)` | piece *r* summed over all ranks, to rank *r* |
# | `all_to_all_single(y, x)` | piece *j* of rank *i* becomes piece *i* of rank *j* |
# | `barrier()` | nobody leaves before all have come |
#
# **Predict:** what is the *last* number that rank 0 holds after the `all_to_all_single`?

# %% id="pieces-prediction" tags=["prediction"]
prediction = 10 * NPROC  # rank 0 gets the first number of each rank


# %% id="gather"
def pieces():
    rank, n = dist.get_rank(), dist.get_world_size()
    row = 10 * (rank + 1) + torch.arange(n, device=lockstep.device())
    piece, root = row[:1], rank == 0
    scattered = row.new_zeros(1)
    gathered, everything = row.new_zeros(n), row.new_zeros(n)
    dist.scatter(scattered, list(row.chunk(n)) if root else None, src=0)
    dist.gather(piece, list(gathered.chunk(n)) if root else None, dst=0)
    dist.all_gather(list(everything.chunk(n)), piece)
    return {
        "scatter": (row.tolist() if root else [], scattered.tolist()),
        "gather": (piece.tolist(), gathered.tolist() if root else []),
        "all_gather": (piece.tolist(), everything.tolist()),
    }


picture(lockstep.torchrun(pieces, **on_ranks))


# %% id="exchange"
def exchange():
    rank, n = dist.get_rank(), dist.get_world_size()
    row = 10 * (rank + 1) + torch.arange(n, device=lockstep.device())
    reduced, exchanged, same = row.new_zeros(1), row.new_zeros(n), row.clone()
    dist.reduce_scatter(reduced, list(row.chunk(n)))
    dist.all_to_all_single(exchanged, row)
    dist.barrier()
    return {
        "reduce_scatter": (row.tolist(), reduced.tolist()),
        "all_to_all_single": (row.tolist(), exchanged.tolist()),
        "barrier": (row.tolist(), same.tolist()),
    }


exchange_job = lockstep.torchrun(exchange, **on_ranks)
display(picture(exchange_job))
_, exchanged = exchange_job[0]["all_to_all_single"]
lockstep.compare(predicted=prediction, measured=exchanged[-1])

# %% [markdown] id="uses-text"
# Read `all_to_all_single` as a matrix with a row for each rank: it is transposed. Where you meet
# them:
#
# | in training | collective |
# | --- | --- |
# | the same weights at the start | broadcast |
# | gradients of data parallelism (DDP) | all_reduce |
# | weights and gradients of which each rank keeps a part (FSDP) | all_gather, reduce_scatter |
# | activations of tensor parallelism | all_reduce, or all_gather and reduce_scatter |
# | tokens to the ranks that have their part of the model, and back | all_to_all |
# | checkpoints, logging | gather, barrier |
#
# DDP (distributed data parallel) keeps the whole model on each rank, and adds up gradients. FSDP (fully sharded
# data parallel) keeps a part of each weight on each rank: it gathers a layer's weights before it uses them, and
# leaves each rank its part of the summed gradient.
#
# ### Exercise 1: the mean of all values
#
# **Goal:** `global_mean(values)` gets this rank's losses, a tensor of floats with one dimension. The ranks
# have *different numbers* of them, as on the last batch of an epoch; a rank may have none, but not all. It
# returns the mean over the values of all ranks, on every rank, as a Python float, by exactly one
# collective call. `values` stays what it is.

# %% id="global_mean"
import torch
import torch.distributed as dist


def global_mean(values):
    # BEGIN SOLUTION
    both = torch.tensor([values.sum(), len(values)], device=values.device)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    # END SOLUTION


# %% id="global_mean-check"
lockstep.check("global_mean", global_mean)

# %% [markdown] id="async-text"
# ## 2 · Handles
#
# With `async_op=True` a call returns a `Work` at once, and the tensor belongs to the backend until `wait()` has
# returned: do not read it, do not write it, do not free it. Below, the last rank is 0.4 seconds late, and rank 0 asks
# its handle twice.

# %% id="async"
# %%torchrun -n {NPROC} --backend gloo
import time

import torch
import torch.distributed as dist

x = torch.ones(1)
dist.barrier()
if dist.get_rank() == dist.get_world_size() - 1:
    time.sleep(0.4)
work = dist.all_reduce(x, async_op=True)
if dist.get_rank() == 0:
    print("complete, right after the call:", work.is_completed())
work.wait()
if dist.get_rank() == 0:
    print("complete, after wait():", work.is_completed(), "with", x.item())

# %% [markdown] id="async-explained"
# Between the two lines rank 0 could have computed something. That is what lab 04 is about. **What
# changes under NCCL:** `wait()` returns to Python at once, and makes the *GPU's stream* wait; so
# there `is_completed()` may well be false after it. This cell asks for gloo.

# %% [markdown] id="bytes-text"
# ## 3 · What an all-reduce sends
#
# Look at the pictures again. What `reduce_scatter` leaves is what `all_gather` begins with.
#
# ### Exercise 2: two steps
#
# **Goal:** `two_step_all_reduce(x)` leaves the sum over all ranks in `x`, on every rank, by one `reduce_scatter` of
# x's bytes and one `all_gather` of a part. `x` has one dimension, its length is a multiple of the number of ranks,
# and any dtype. `x.chunk(n)` gives views: writing into them writes into `x`.

# %% id="two_step_all_reduce"
import torch
import torch.distributed as dist


def two_step_all_reduce(x):
    # BEGIN SOLUTION
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks, part)
    # END SOLUTION


# %% id="two_step_all_reduce-check"
lockstep.check("two_step_all_reduce", two_step_all_reduce)

# %% [markdown] id="ring-text"
# ### The ring
#
# Now without collectives. Put the ranks in a ring: each sends only to the next one and receives only from the
# previous one. Cut `x` into N chunks. In the first half partial sums go round and grow, until each rank has one
# complete chunk. In the second half the complete chunks go round.
#
# Follow one chunk, the first, on four ranks. Rank 0 sends its own to rank 1, which adds its own to it
# and sends the sum to rank 2; rank 2 adds and sends to rank 3; rank 3 adds and has the sum of all four,
# after three steps. Then the complete chunk goes from rank 3 to 0, from 0 to 1, from 1 to 2: three steps
# more. The second chunk does the same, but starts at rank 1, the third at rank 2, the fourth at rank 3,
# all at the same time.
#
# So each rank is busy in each step. Copy this table onto paper, and fill in what is missing:
#
# | | rank 0 | rank 1 | rank 2 | rank 3 |
# | --- | --- | --- | --- | --- |
# | step 1: sends chunk | 0 | 1 | 2 | 3 |
# | step 1: adds what comes to its chunk | 3 | 0 | 1 | 2 |
# | step 2: sends chunk | 3 | 0 | 1 | 2 |
# | step 2: adds what comes to its chunk | … | … | … | … |
# | step 3: sends chunk | … | … | … | … |
# | after step 3 it has the sum in chunk | … | … | … | … |
#
# Your tool is an exchange that starts both messages before it waits for either; lab 02 says why:

# %% id="swap"
# %%torchrun -n {NPROC} --backend {BACKEND}
import torch
import torch.distributed as dist


def swap(out, to, into, source):
    """Send `out` to a rank, and receive `into` from another, at once."""
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


rank, n = dist.get_rank(), dist.get_world_size()
x, y = torch.full((2, 1), float(rank), device=lockstep.device())
swap(x, (rank + 1) % n, y, (rank - 1) % n)
y.item()

# %% [markdown] id="ring-predict-text"
# **Predict:** a rank's `x` has 1,200 kB, and there are as many ranks as in this notebook. How many kB
# does *each rank* send in the whole ring all-reduce? Count steps and chunks on paper.

# %% id="ring-prediction" tags=["prediction"]
prediction = 2 * (NPROC - 1) * 1200 / NPROC  # 2(N - 1) steps, each 1/N of it

# %% [markdown] id="ring-exercise-text"
# ### Exercise 3: a ring all-reduce
#
# **Goal:** `ring_all_reduce(x)` leaves the sum in `x` on all ranks, by messages alone. Rank *r* sends to *r* + 1
# only, and no rank sends more than the bytes that you predicted (the check counts them). It waits for every message
# that it starts. `x` has one dimension, its length is a multiple of N, any N, and any dtype. Your table says which
# chunk.

# %% id="ring_all_reduce"
import torch
import torch.distributed as dist


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    # BEGIN SOLUTION
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):  # after it, `to` is the sum of step + 2 ranks
        out, to = (rank - step) % n, (rank - step - 1) % n
        swap(chunks[out], right, buffer, left)
        chunks[to].add_(buffer)
    for step in range(n - 1):  # after it, step + 2 chunks are complete here
        out, to = (rank + 1 - step) % n, (rank - step) % n
        swap(chunks[out], right, chunks[to], left)
    # END SOLUTION


# %% id="ring_all_reduce-check"
lockstep.check("ring_all_reduce", ring_all_reduce)

# %% id="ring-carry"
ring = lockstep.carry_on("ring_all_reduce", ring_all_reduce)


def reduce_by(all_reduce, nbytes):
    """Run one all-reduce of our own on a tensor of ones; what it gives."""
    x = torch.ones(nbytes // 4, device=lockstep.device())
    all_reduce(x)
    return x[0].item(), x[-1].item()


def bytes_sent(job):
    """Bytes that each rank sent, from the record of its calls."""
    sends = [[c for c in calls if c.operation == "send"] for calls in job.calls]
    return [sum(call.bytes for call in calls) for calls in sends]


here = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
ours = lockstep.torchrun(reduce_by, ring, 1_200_000, **here)
print("bytes sent, by rank:", *bytes_sent(ours))
lockstep.compare(predicted=prediction, measured=max(bytes_sent(ours)) / 1000)

# %% [markdown] id="ring-steps-text"
# The rest of the table: in step 2 they add to chunks 2, 3, 0 and 1, and send these in step 3; then they have
# the sums in chunks 1, 2, 3 and 0.
#
# Play it: press *step*, or the arrow keys. A row is a rank, a column is a chunk. A small square is a rank
# whose numbers are in the sum; a thick frame has those of all. Choose other algorithms, too: the sentence
# below says how many rounds each has, and how much the busiest rank sends. With four ranks doubling has the
# fewest rounds, and the ring the fewest bytes.
#
# Below it are the messages of *your* function, from the record of its calls. A record does not say what
# is in a message, so there you see whose numbers *may* have arrived.

# %% id="ring-steps"
display(lockstep.interactive.collective("ring", ranks=4, nbytes=1_200_000))
lockstep.interactive.collective(ours, title="Your ring, by the record of calls")

# %% [markdown] id="rounds-text"
# ## 4 · Fewer rounds
#
# The ring sends few bytes in *many* rounds: 2(N − 1), each of which pays a message's latency. For a small tensor
# there is hardly any other cost. Two ways with fewer rounds:
#
# - **Recursive doubling:** in round *k* each rank exchanges *everything it has* with a partner 2^*k*
#   away, and adds. After one round pairs agree, after two fours, after three eights.
# - **Tree:** pairs reduce into one of the two, those into one of four, up to rank 0; and back down. That
#   is an exercise of lab 15.
#
# **Predict:** with 8 ranks, how many messages does each rank send in recursive doubling?

# %% id="doubling-prediction" tags=["prediction"]
prediction = 3  # distances 1, 2 and 4

# %% [markdown] id="doubling-text"
# ### Exercise 4: recursive doubling
#
# **Goal:** `doubling_all_reduce(x)` leaves the sum in `x` on all ranks, by messages alone; each rank sends exactly as
# often as you predicted, log₂ N times. N is a power of two; `x` has any shape and dtype. (`^`, exclusive or, flips a
# bit: `5 ^ 4` is 1, and `1 ^ 4` is 5.)

# %% id="doubling_all_reduce"
import torch
import torch.distributed as dist


def swap(out, to, into, source):
    sends = dist.P2POp(dist.isend, out, to)
    receives = dist.P2POp(dist.irecv, into, source)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    # BEGIN SOLUTION
    distance = 1
    while distance < n:  # after it, x is the sum of 2 · distance ranks
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x.add_(buffer)
        distance *= 2
    # END SOLUTION


# %% id="doubling_all_reduce-check"
lockstep.check("doubling_all_reduce", doubling_all_reduce)

# %% id="doubling-measured"
doubling = lockstep.carry_on("doubling_all_reduce", doubling_all_reduce)
on_8 = {"nproc_per_node": 8, "backend": "gloo", "show": False}
job = lockstep.torchrun(lambda: doubling(torch.ones(16_000)), **on_8)
sends = [[c for c in calls if c.operation == "send"] for calls in job.calls]
print("bytes sent, by rank:", *(sum(c.bytes for c in calls) for calls in sends))
lockstep.compare(predicted=prediction, measured=max(map(len, sends)))

# %% [markdown] id="fewer-explained"
# The ring with 8 ranks sends 14 messages from each. Here it is 3, and each of them is all of `x`: few
# rounds against few bytes. Which is faster depends on the size, and on what a message costs: lab 15.
#
# **Break.** The first sitting ends here. You have built what backends do inside. What follows stands on its own: how
# large calls should be, and what goes wrong when ranks do not agree.

# %% [markdown] id="grain-text0"
# ## 5 · Granularity
#
# A model has hundreds of parameters, most of them small. On 4 H200s `all_reduce` was recorded over many
# sizes. Both axes are logarithmic: the same factor is the same distance.

# %% id="grain-recorded" tags=["plumbing"]
recording = lockstep.recorded("sweeps/h200-x4.json")
rows = recording.content["sweeps"]["all_reduce"]
columns = ("bytes", "seconds", "lower_quartile", "upper_quartile")
points = [tuple(row[name] for name in columns) for row in rows]
lockstep.chart(
    {"all_reduce": points},
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of an all-reduce on 4 H200s over its size: the same up to a "
    "megabyte; then the time rises, in the end as the size does.",
    stamp=recording.stamp,
)

# %% [markdown] id="grain-ask"
# **Predict** from the chart: a thousand all-reduces of 1 kB, one after the other, take how many *times* as
# long as one of 1 MB?

# %% id="grain-prediction" tags=["prediction"]
prediction = 1000  # the chart has the same time for both sizes

# %% id="grain-computed"
seconds = {row["bytes"]: row["seconds"] for row in rows}
print(recording.stamp)
times = 1000 * seconds[1 << 10] / seconds[1 << 20]
lockstep.compare(predicted=prediction, computed=times, unit="times")

# %% [markdown] id="flat-text"
# Up to a megabyte an all-reduce costs no more than the call itself. So bundle small tensors: one call instead of
# many.
#
# ### Exercise 5: one call for all
#
# **Goal:** `flat_all_reduce(tensors)` gets a list of tensors of one dtype and several shapes (some
# may be empty, single numbers, or transposed views), and leaves in each of them the sum over all
# ranks, by exactly one call of their size. DDP does the same with gradients: it calls a list of
# tensors that travel together a *bucket*.

# %% id="flat_all_reduce"
import torch
import torch.distributed as dist


def flat_all_reduce(tensors):
    # BEGIN SOLUTION
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))
    # END SOLUTION


# %% id="flat_all_reduce-check"
lockstep.check("flat_all_reduce", flat_all_reduce)

# %% [markdown] id="skip-text"
# ## 6 · A rank that skips, groups that cross
#
# A collective carries no name and no number. Within a group calls match by their order: each rank's first call meets
# the first of all others, the second the second, and so on. What the program means by a call, such as the step of its
# loop, plays no role.
#
# **What changes under NCCL:** the ranks that wait do so in a kernel, and their programs go on. NCCL reports what it
# does if you ask before the ranks start: `NCCL_DEBUG=WARN` prints its version, and its own reason beside an error;
# `NCCL_DEBUG=INFO` prints how each communicator was made (its GPUs, its rings and trees, the network that it uses).
# With `NCCL_DEBUG_SUBSYS=COLL` added it prints each call in place of that.
#
# The next cell is **broken on purpose**: rank 1 skips step 1 of three (0, 1, 2), for example because it had no data.
# Write on paper which calls each rank makes, and in which order. **Predict:** in which step will the other ranks
# hang?

# %% id="skip-prediction" tags=["prediction"]
prediction = 2

# %% id="skip"
# %%torchrun -n {NPROC} --backend gloo --may-fail --into skip_job
import torch
import torch.distributed as dist

for step in range(3):
    loss = torch.full((1,), float(step))
    no_data = dist.get_rank() == 1 and step == 1
    if not no_data:
        dist.all_reduce(loss)
        print("step", step, "sum", loss.item())

# %% id="skip-measured"
stuck = next(call for call in skip_job.calls[0] if call.end is None)
lockstep.compare(predicted=prediction, measured=stuck.number)

# %% [markdown] id="skip-explained"
# They hang in the call *after* the one that was skipped. Look at what was printed in step 1: the sum of the others'
# step 1 and rank 1's step 2. So a skipped call first gives wrong numbers, and only then a hang. Had the others left
# out one of their later calls, nothing would have hung, and nobody would have noticed. A rank without data should
# make the call with zeros. (They hang because rank 1's process is kept until all are done. Once a process has ended,
# so have its connections, and gloo raises an error in the others.)
#
# The next one is **broken on purpose**, too: two groups with the same members, one for gradients
# and one for metrics, used in two orders.

# %% id="crossed"
# %%torchrun -n {NPROC} --backend gloo --may-fail
import torch
import torch.distributed as dist

everybody = range(dist.get_world_size())
gradients, metrics = dist.new_group(everybody), dist.new_group(everybody)
order = (gradients, metrics) if dist.get_rank() == 0 else (metrics, gradients)
for group in order:
    dist.all_reduce(torch.ones(1), group=group)

# %% [markdown] id="crossed-text"
# This is a deadlock although every call is correct on its own: a rank makes its second call when the first has ended,
# and the first waits for another rank's second call. With `async_op=True` a rank starts both before it waits for
# either. And gloo has threads of its own, which work on several calls at once.
#
# **Predict:** the same, but each call with `async_op=True`, and the waiting at the end. How many of the
# ranks finish under gloo?

# %% id="crossed-prediction" tags=["prediction"]
prediction = NPROC

# %% id="uncrossed"
# %%torchrun -n {NPROC} --backend gloo --may-fail --into mended
import torch
import torch.distributed as dist

everybody = range(dist.get_world_size())
gradients, metrics = dist.new_group(everybody), dist.new_group(everybody)
order = (gradients, metrics) if dist.get_rank() == 0 else (metrics, gradients)
handles = []
for group in order:
    x = torch.ones(1)
    handles.append(dist.all_reduce(x, group=group, async_op=True))
for handle in handles:
    handle.wait()
print("finished")

# %% id="uncrossed-measured"
finished = [rank for rank in range(NPROC) if "finished" in mended.output(rank)]
lockstep.compare(predicted=prediction, measured=len(finished))

# %% [markdown] id="uncrossed-text"
# **What changes under NCCL:** handles do not help. Each group has a stream of its own there, but whether the GPU runs
# both groups' calls at the same time is not promised. NCCL's rule is that the order in which the host starts them
# agrees on all ranks, over all groups. So the repair that works everywhere is *one order on all ranks*: here all
# would use `gradients` first, and then `metrics`.

# %% [markdown] id="recap"
# ## Recap
#
# - `reduce_scatter`, then `all_gather`, is an all-reduce: each rank sends 2(N − 1)/N of its bytes, and where
#   ranks only send to each other no way needs fewer.
# - A ring has 2(N − 1) rounds, doubling log₂ N for more bytes: small messages want few rounds, large
#   ones few bytes.
# - Bundling saves the cost of calls, never bytes. An average over ranks is not an average over samples.
# - Calls match by order. A skipped call first gives wrong numbers, and a hang later.
#
# **What is slow here, and comes next:** while the bytes travelled, every rank waited, and computed
# nothing. On a GPU the two can go on at the same time: streams, and overlap, are lab 04.

# %% [markdown] id="further"
# # 03 · Collectives: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="twice-text"
# ## How often an all-reduce sends its data
#
# About 5 minutes; a CPU is enough. It counts what your ring sends.
#
# ### Claim: "an all-reduce moves twice its data"
#
# The [ZeRO paper](https://arxiv.org/abs/1910.02054) counts so (section 7.1): an all-reduce of Ψ elements moves 2Ψ. Your
# ring can say how many times over a rank sends its data, on 2, 4 and 8 ranks. **Guess** first.

# %% id="twice-guess" tags=["guess"]
guess = "does not hold"

# %% id="twice-claim"
import torch

ring = lockstep.carry_on("ring_all_reduce")
times, ok = [], []
for n in (2, 4, 8):
    options = {"nproc_per_node": n, "backend": "gloo", "show": False}
    job = lockstep.torchrun(lambda: ring(torch.ones(16_000)), **options)
    sends = [[c for c in calls if c.operation == "send"] for calls in job.calls]
    sent = max(sum(c.bytes for c in calls) for calls in sends) / 64_000
    times.append(f"{n} ranks: {sent:g} times")
    ok.append(abs(sent - 2) < 0.02)
lockstep.claim(
    "An all-reduce moves twice its data.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because=", ".join(times),
    stamp=lockstep.live(job),
)

# %% [markdown] id="twice-explained"
# It is 2(N − 1)/N, and twice only where N is large. (No algorithm in which ranks only send to each
# other can do with less.)

# %% [markdown] id="grain-live"
# ## Bundling, measured here
#
# Many small calls, one large call, and calls that PyTorch collects, on your ranks; and what it is said to save. About
# 5 minutes; a CPU is enough. (Bundling saves no bytes. Those are saved where gradients are *added up over several
# steps* before they are sent.)
#
# Each way is timed once, and ranks may share a few cores: nothing is as clean as on the chart of section
# 5. The third way: `_coalescing_manager` collects the calls inside of it and passes them on as one; the
# underscore says that it may change. Under gloo it works for all_reduce. (With `device=` it asks the backend itself to
# collect, and gloo cannot.)


# %% id="grain" tags=["plumbing"]
def many_or_one(count):
    """Seconds for many all-reduces of 1 kB, for them coalesced, for one."""
    import time

    import torch
    import torch.distributed as dist

    def coalesced():
        with dist.distributed_c10d._coalescing_manager():
            many()

    def many():
        for piece in pieces:
            dist.all_reduce(piece)

    def one():
        dist.all_reduce(x)

    x = torch.zeros(count * 256, device=lockstep.device())
    pieces, times = list(x.chunk(count)), [0.0]
    for way in (one, coalesced, many, coalesced, one):  # two are to warm up
        begin = time.perf_counter()
        way()
        x[0].item()  # so that a GPU is done, too
        times.append(time.perf_counter() - begin)
    return dict(zip(("many", "coalesced", "one"), times[3:], strict=True))


ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
grain_job = lockstep.torchrun(many_or_one, 1000, **ranks)

# %% id="grain-measured" tags=["varies"]
results = grain_job.results
slowest = {name: max(one[name] for one in results) for name in results[0]}
for name, took in slowest.items():
    times = f"{took / slowest['one']:6.1f} times one" if name != "one" else ""
    print(f"{name:<10} {1000 * took:10.1f} ms {times}")
print(lockstep.live(grain_job))

# %% [markdown] id="grain-claim-text"
# ### Claim: "one call for many layers saves start-up time *and* bytes"
#
# Bundling is recommended, and a common guess is that it gains both. **Guess**; the record of calls knows the bytes.

# %% id="grain-guess" tags=["guess"]
guess = "does not hold"

# %% id="grain-claim"
# two to warm up, many, coalesced, one
_, _, *many, _, single = grain_job.calls[0]
before, after = sum(call.bytes for call in many), single.bytes
faster, fewer = slowest["one"] < slowest["many"] / 2, after < before
lockstep.claim(
    "One call for many layers saves start-up time and bytes.",
    guess=guess,
    verdict="holds" if faster and fewer else "does not hold",
    because=f"less than half of the time: {'yes' if faster else 'no'}; "
    f"fewer bytes: {'yes' if fewer else 'no'} "
    f"({before:,} in {len(many):,} calls, {after:,} in one)",
    stamp=lockstep.live(grain_job),
)

# %% [markdown] id="objects-text"
# ## Objects and their price
#
# What it costs to send Python objects, and what it risks. About 10 minutes; a CPU is enough.
#
# `all_gather_object`, `broadcast_object_list` and similar calls take any Python object. They pickle it into bytes,
# send those as a tensor, and unpickle them on the other side. A receiver must provide a tensor that is long enough
# (lab 02), and does not know how long the other ranks' pickles are. **Predict:** how many operations on the process
# group does *one* `all_gather_object` make on each rank?

# %% id="object-prediction" tags=["prediction"]
prediction = 2

# %% id="object"
import torch.distributed as dist


def gather_lists(count):
    dist.all_gather_object([None] * dist.get_world_size(), [0.5] * count)


object_job = lockstep.torchrun(
    gather_lists, 100_000, nproc_per_node=NPROC, backend=BACKEND, show=False
)
calls = object_job.calls[0]
for call in calls:
    print(f"{call.operation} of {call.dtype}{list(call.shapes[0])}")
print(lockstep.live(object_job))
lockstep.compare(predicted=prediction, measured=len(calls))

# %% [markdown] id="danger-text"
# The first tells everybody how long each pickle is, so that all can make room for the longest; the
# second sends them: 9 bytes for each float here, one that says what follows and eight for a float64. A
# float32 tensor needs 4, and one call.
#
# Objects are for a configuration at the start, not for numbers in a loop. And they have a danger. A
# pickle is not data, it is a small program: it says which function the receiver is to call with which
# arguments. Rank 0 sends one that asks for `print`. **Predict:** on how many ranks does it run?

# %% id="danger-prediction" tags=["prediction"]
prediction = NPROC - 1

# %% id="danger"
# %%torchrun -n {NPROC} --backend {BACKEND} --into apart
import torch.distributed as dist


class Parcel:
    def __reduce__(self):
        return print, ("the sender chose this line, and this rank has run it",)


box = [Parcel() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(box, src=0)

# %% id="danger-measured"
ran = [rank for rank in range(NPROC) if "chose this line" in apart.output(rank)]
lockstep.compare(predicted=prediction, measured=len(ran))

# %% [markdown] id="danger-explained"
# Nobody called it: receiving was enough. `print` is harmless, `os.system` would not have been. So whoever can send to
# your ranks can run programs in them. Inside of one job that is your own code; it is not with a checkpoint from
# elsewhere (`torch.load` has `weights_only=True` for this reason) nor on a port that others can reach. Tensors cannot
# do that.

# %% [markdown] id="further-averages"
# ## Averages
#
# What `ReduceOp.AVG` needs, and what each operation gives under gloo for floats and for whole numbers: a
# sentence of PyTorch's documentation, tested. About 10 minutes; a CPU is enough.

# %% [markdown] id="avg-text"
# ### Claim: "averaging, `ReduceOp.AVG`, needs NCCL"
#
# [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html) of `ReduceOp` says so:
# "`AVG` is only available with the `NCCL` backend". Rank *r* holds *r* + 1, once as float32 and once as int64. **Guess:**
# does `AVG` work under gloo?

# %% id="avg-guess" tags=["guess"]
guess = "depends"


# %% id="ops"
def try_operations(name):
    """What all_reduce with this operation gives: for float32, for int64."""
    import torch
    import torch.distributed as dist

    found = []
    for kind in (torch.float32, torch.int64):
        x = torch.full((1,), dist.get_rank() + 1, dtype=kind)
        try:
            dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
            found.append(f"{x.item():g}")
        except Exception as error:
            found.append(type(error).__name__)
    return found


names = "SUM", "PRODUCT", "MIN", "MAX", "BAND", "AVG"
gloo = {"backend": "gloo", "show": False}
runs = {name: lockstep.torchrun(try_operations, name, **gloo) for name in names}

# %% id="ops-table"
lockstep.table(
    "all_reduce of 1, 2, 3 and 4, by operation",
    ["op", "float32", "int64"],
    [[name, *job[0]] for name, job in runs.items()],
    stamp=lockstep.live(runs["AVG"]),
)

# %% id="avg-claim"
kinds = ["float32", "int64"]
gave = dict(zip(kinds, runs["AVG"][0], strict=True))
works = [kind for kind in kinds if gave[kind] == "2.5"]
some = "depends" if works else "holds"
lockstep.claim(
    "ReduceOp.AVG needs NCCL.",
    guess=guess,
    verdict="does not hold" if works == kinds else some,
    because="under gloo it works with: " + (", ".join(works) or "nothing"),
    stamp=lockstep.live(runs["AVG"]),
)

# %% [markdown] id="avg-explained"
# gloo has `AVG` for floats by now, and refuses integers, because the mean of whole numbers need not be
# one. **What changes under NCCL:** integers have `AVG` there, too; their sum is divided, and the rest is
# dropped. Whether an average over *ranks* is what you want is another question. (NCCL has one more,
# `PREMUL_SUM`, which multiplies on the way; gloo raises for it.)

# %% [markdown] id="nodes-text"
# ## Two nodes
#
# What changes when a collective crosses nodes: who is told what, which bytes take the slow way, and an
# all-reduce on two levels. About 25 minutes; a CPU is enough. Exercise 3 comes first.
#
# Where Slurm gives two nodes this section is live on them: inside of a job of two nodes, or where
# `lockstep cluster init` has written a profile and `lockstep cluster check` says that all is well.
# Elsewhere four ranks of your own machine play two nodes. What they send is the same, and is stamped so;
# who is where was recorded.
#
# `lockstep.cluster()` is what Slurm gives, or None. A `World` keeps its ranks, and so the job in Slurm's
# queue, until it is closed: the queue is waited for once. It has two ranks a node, whatever `NPROC` says,
# and gloo, as bytes are all that is counted.

# %% id="nodes-where" tags=["varies"]
import os

import torch
import torch.distributed as dist

cluster = lockstep.cluster(nodes=2)
per_node = 2
here = per_node if cluster else 2 * per_node  # ranks that each host starts
world = lockstep.World(here, backend="gloo", on=cluster)
names = "RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"
names += ("SLURMD_NODENAME",)


def told():
    return {name: os.environ.get(name, "") for name in names}


if cluster:
    seen = world.run(told)
    node_ranks = seen.results
else:
    seen = lockstep.recorded("launch/slurm-nodes.json")
    node_ranks = seen.content
rows = [[rank[name] for name in names] for rank in node_ranks]
lockstep.table("What each rank is told", names, rows, stamp=seen.stamp)

# %% [markdown] id="nodes-device-text"
# `RANK` counts through all nodes, `LOCAL_RANK` on each of them. `GROUP_RANK` is the node's number, and
# the last column its name, from Slurm.
#
# **Predict:** a program takes the GPU with the number `RANK`, and each of these nodes has one GPU for each
# of its ranks. Which is the first rank that finds no such GPU?

# %% id="nodes-device-prediction" tags=["prediction"]
prediction = 2  # on one node it worked for ranks 0 and 1

# %% id="nodes-device"
gpus = int(node_ranks[0]["LOCAL_WORLD_SIZE"])  # on each node
lacks = [int(one["RANK"]) for one in node_ranks if int(one["RANK"]) >= gpus]
lockstep.compare(predicted=prediction, measured=lacks[0])

# %% [markdown] id="nodes-flat-text"
# So a program that mixes up the two is right on every machine until it has two. `LOCAL_RANK` picks the
# GPU; `RANK` picks the data.
#
# ### Which bytes take the slow way
#
# Now your ring, over all four ranks: 0 → 1 → 2 → 3 → 0. Ranks 0 and 1 are on one node, 2 and 3 on the
# other. Inside of a node messages take NVLink or memory; between nodes they take a network that is
# several times as slow (lab 15 has numbers).
#
# **Predict:** `x` has 1,200 kB. How many kB does *node 0*, both of its ranks together, send to node 1?

# %% id="nodes-flat-prediction" tags=["prediction"]
prediction = 2 * 3 / 4 * 1200  # one hop leaves the node: 2(N - 1)/N of x

# %% id="nodes-flat"
ring = lockstep.carry_on("ring_all_reduce")


def reduce_ones(all_reduce):
    x = torch.ones(300_000)  # 1,200 kB
    all_reduce(x)
    return x.min().item(), x.max().item()


def crossing(job):
    """kB that each rank sends to the other node, from its record of calls."""
    kilobytes = [0.0] * len(job.calls)
    for rank, calls in enumerate(job.calls):
        for call in (one for one in calls if one.operation == "send"):
            if call.peer // per_node != rank // per_node:
                kilobytes[rank] += call.bytes / 1000
    return kilobytes


# %% id="nodes-flat-run"
flat = world.run(reduce_ones, ring)

# %% id="nodes-flat-count"
played = lockstep.simulated("four ranks of one host play two nodes: counted")
print("kB to the other node, by rank:", *crossing(flat))
print(lockstep.live(flat) if cluster else played)
lockstep.compare(predicted=prediction, measured=sum(crossing(flat)[:per_node]))

# %% [markdown] id="nodes-levels-text"
# One rank of each node sends all of it, and the other one's network card does nothing.
#
# ### Two levels
#
# An all-reduce that knows of nodes first adds up *inside*, then *across*, then spreads *inside*. On two
# nodes with two ranks each it is three exchanges. Let `x` be two halves.
#
# 1. Inside: a rank sends one half to its neighbour, and adds what comes to the other half. Rank 0 has the
#    node's sum of the first half then, rank 1 of the second.
# 2. Across: each exchanges its half with the rank at the same place on the other node, and adds.
# 3. Inside: neighbours exchange their complete halves.
#
# In general: a reduce-scatter inside, an all-reduce across, an all-gather inside; you build it for any
# number of ranks in lab 15.
#
# **Predict:** of the 1,200 kB, how many does the rank that sends *most* to the other node send there?

# %% id="nodes-levels-prediction" tags=["prediction"]
prediction = 1200 / 2  # its half, once


# %% id="nodes-levels"
def swap(out, peer, into):
    sending = dist.P2POp(dist.isend, out, peer)
    receiving = dist.P2POp(dist.irecv, into, peer)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()


def two_levels(x):
    rank = dist.get_rank()
    beside, opposite = rank ^ 1, rank ^ 2  # on this node, and on the other
    mine, other = x.chunk(2) if rank % 2 == 0 else reversed(x.chunk(2))
    buffer = torch.empty_like(mine)
    swap(other, beside, buffer)
    mine.add_(buffer)  # the sum over this node
    swap(mine, opposite, buffer)
    mine.add_(buffer)  # the sum over both
    swap(mine, beside, other)


levels = world.run(reduce_ones, two_levels)

# %% id="nodes-levels-count"
print("the sum is everywhere:", levels.results == [(4.0, 4.0)] * 4)
print("kB to the other node, by rank:", *crossing(levels))
print(lockstep.live(levels) if cluster else played)
lockstep.compare(predicted=prediction, measured=max(crossing(levels)))

# %% [markdown] id="nodes-claim-text"
# ### Claim: "an all-reduce on two levels sends fewer bytes between nodes than a ring"
#
# [ChipFoundryServices](https://www.chipfoundryservices.com/topic/collective-communication-hierarchical) says that two
# levels divide the traffic between nodes by the number of GPUs of a node. Count for M nodes of L ranks. In a ring of
# all ranks one hop leaves each node, with 2(ML − 1)/(ML) of `x`. On two levels each of the L ranks has 1/L of `x`, and
# the all-reduce across, on M ranks, sends 2(M − 1)/M of that: together 2(M − 1)/M of `x` leave a node. It holds if that
# is less by a tenth at least, here and on 64 such nodes; `depends` if only on one of the two. **Guess.**

# %% id="nodes-guess" tags=["guess"]
guess = "depends"

# %% id="nodes-claim"
world.close()  # and with it Slurm's job
sent = {2: (sum(crossing(flat)[:per_node]), sum(crossing(levels)[:per_node]))}
# By the text above:
sent[64] = tuple(1200 * 2 * (n - 1) / n for n in (64 * per_node, 64))
fewer = [two < 0.9 * one for one, two in sent.values()]
counted = [
    f"{nodes} nodes: {one:,.0f} kB by a ring, {two:,.0f} on two levels"
    for nodes, (one, two) in sent.items()
]
counts = lockstep.live(flat) if cluster else played
lockstep.claim(
    "An all-reduce on two levels sends fewer bytes between nodes than a ring.",
    guess=guess,
    verdict=("does not hold", "depends", "holds")[sum(fewer)],
    because=f"{per_node} ranks a node; " + "; ".join(counted),
    stamp=[counts, lockstep.simulated("64 nodes: the formula")],
)

# %% [markdown] id="nodes-explained"
# On many nodes both are close to twice `x`. What stays is who sends them: on two levels each rank of a
# node sends its part, over its own card, and in one ring a single rank sends all. (NCCL makes several
# rings, one for each card, so that all cards work there, too: lab 15.)
