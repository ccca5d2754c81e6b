# %% [markdown] id="title"
# # 03 · Collectives
#
# **150–180 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some; what NCCL
# does on 2 and 4 H200s is recorded)
#
# A *collective* is a call that all ranks of a group make together. Training is made of five or six of
# them. Afterwards you can
#
# - say for each collective who holds what before and after,
# - build an all-reduce out of messages in three ways, and on two levels, and count what each sends,
# - predict from two numbers, α and β, which way is fastest at which size, and measure it,
# - read algorithm and bus bandwidth off a sweep, and test what people say about NCCL's choice,
# - say what a gradient all-reduce of a 7 B model should take, and what that number leaves out,
# - name the rank that skipped a call, and untangle two groups.
#
# Labs 00 to 02 come first: sends, receives and what a message costs are taken from there.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook: a power of two
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep

# %% [markdown] id="one-text"
# ## 1 · Who holds what
#
# Every rank starts with other numbers, so that each number says whose it was: with four ranks, rank 0
# holds 10 11 12 13, rank 1 holds 20 21 22 23, and so on. Three collectives, each on a copy of them:
#
# | call | what it does |
# | --- | --- |
# | `broadcast(x, src=0)` | the root's tensor, to all |
# | `reduce(x, dst=0)` | the sum over all ranks, to the root |
# | `all_reduce(x)` | the sum over all ranks, to all |
#
# **Guess** first about a sentence that the same cell tests: "`reduce` changes the tensor of the root, and
# leaves the others alone" (`"holds"`, `"does not hold"`, or `"depends"` on the rank).
# **Predict**, too: after the `all_reduce`, what is the first number that *rank 1* holds?

# %% id="reduce-guess" tags=["guess"]
guess = "does not hold"

# %% id="one-prediction" tags=["prediction"]
prediction = 10 * NPROC * (NPROC + 1) / 2  # 10 + 20 + 30 + …

# %% id="one"
# %%torchrun -n {NPROC} --backend {BACKEND} --into job
import torch
import torch.distributed as dist

rank, n = dist.get_rank(), dist.get_world_size()
x = 10 * (rank + 1) + torch.arange(n, device=lockstep.device())
copies = {name: x.clone() for name in ("broadcast", "reduce", "all_reduce")}
dist.broadcast(copies["broadcast"], src=0)
dist.reduce(copies["reduce"], dst=0)
dist.all_reduce(copies["all_reduce"])
{name: (x.tolist(), after.tolist()) for name, after in copies.items()}

# %% id="one-measured"
lockstep.compare(predicted=prediction, measured=job[1]["all_reduce"][1][0])


# %% id="one-figure"
def picture(job):
    """Who held what, from a job whose ranks return {name: (before, after)}."""
    return lockstep.buffers(
        {name: tuple(zip(*(rank[name] for rank in job.results), strict=True)) for name in job[0]},
        stamp=lockstep.live(job),
    )


picture(job)

# %% [markdown] id="one-explained"
# A row is a rank, a box is a number, and it keeps the colour and the pattern of the rank that had it
# before. What has a thick frame was computed on the way.
#
# ### Claim: "`reduce` changes the tensor of the root, and leaves the others alone"
#
# That is how it is drawn in most textbooks. If it holds, you may go on using `x` on the other ranks.

# %% id="reduce-claim"
others = range(1, NPROC)
changed = [rank for rank in others if job[rank]["reduce"][0] != job[rank]["reduce"][1]]
lockstep.claim(
    "reduce changes the tensor of the root, and leaves the others alone.",
    guess=guess,
    verdict={0: "holds", len(others): "does not hold"}.get(len(changed), "depends"),
    because=f"of {len(others)} ranks that are not the root, {len(changed)} hold other numbers now",
    stamp=lockstep.live(job),
)

# %% [markdown] id="reduce-explained"
# gloo writes partial sums into the tensors of all ranks, and what is left there is one of them. The
# documentation promises a result on the root, and nothing about the others. **What changes under
# NCCL:** another backend may leave something else there, so the claim's verdict is computed anew
# wherever this lab runs. A program that relies on it works until it is moved.
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
# **Predict:** which number is the *last* that rank 0 holds after the `all_to_all_single`?

# %% id="pieces-prediction" tags=["prediction"]
prediction = 10 * NPROC  # rank 0 gets everybody's first number, and the last rank's is that

# %% id="gather"
# %%torchrun -n {NPROC} --backend {BACKEND} --into gather_job
import torch
import torch.distributed as dist

rank, n = dist.get_rank(), dist.get_world_size()
row = 10 * (rank + 1) + torch.arange(n, device=lockstep.device())
piece, root = row[:1], rank == 0
scattered, gathered, everything = row.new_zeros(1), row.new_zeros(n), row.new_zeros(n)
dist.scatter(scattered, list(row.chunk(n)) if root else None, src=0)
dist.gather(piece, list(gathered.chunk(n)) if root else None, dst=0)
dist.all_gather(list(everything.chunk(n)), piece)
{
    "scatter": (row.tolist() if root else [], scattered.tolist()),
    "gather": (piece.tolist(), gathered.tolist() if root else []),
    "all_gather": (piece.tolist(), everything.tolist()),
}

# %% id="gather-figure"
picture(gather_job)

# %% id="exchange"
# %%torchrun -n {NPROC} --backend {BACKEND} --into exchange_job
import torch
import torch.distributed as dist

rank, n = dist.get_rank(), dist.get_world_size()
row = 10 * (rank + 1) + torch.arange(n, device=lockstep.device())
reduced, exchanged, same = row.new_zeros(1), row.new_zeros(n), row.clone()
dist.reduce_scatter(reduced, list(row.chunk(n)))
dist.all_to_all_single(exchanged, row)
dist.barrier()
{
    "reduce_scatter": (row.tolist(), reduced.tolist()),
    "all_to_all_single": (row.tolist(), exchanged.tolist()),
    "barrier": (row.tolist(), same.tolist()),
}

# %% id="exchange-figure"
picture(exchange_job)

# %% id="exchange-measured"
lockstep.compare(predicted=prediction, measured=exchange_job[0]["all_to_all_single"][1][-1])

# %% [markdown] id="uses-text"
# Read `all_to_all_single` as a matrix with a row for each rank: it is transposed. Where you meet
# them:
#
# | in training | collective |
# | --- | --- |
# | the same weights at the start | broadcast |
# | gradients of data parallelism (DDP) | all_reduce |
# | sharded weights and gradients (FSDP, ZeRO) | all_gather, reduce_scatter |
# | activations of tensor parallelism | all_reduce, or all_gather and reduce_scatter |
# | tokens to their experts and back | all_to_all |
# | checkpoints, logging | gather, barrier |
#
# (The newest PyTorch calls the variants with one large tensor `all_gather_single` and
# `reduce_scatter_single`, before that `all_gather_into_tensor` and `reduce_scatter_tensor`. This
# course uses the lists, which every version has.)
#
# ### Claim: "averaging, `ReduceOp.AVG`, needs NCCL"
#
# [PyTorch's documentation](https://docs.pytorch.org/docs/stable/distributed.html) of `ReduceOp` says so:
# "`AVG` is only available with the `NCCL` backend". Rank *r* holds *r* + 1, once as float32 and once as int64. **Guess:**
# does `AVG` work under gloo?

# %% id="avg-guess" tags=["guess"]
guess = "depends"


# %% id="ops"
def try_operations(name):
    """What all_reduce with this operation gives, or its error, for float32 and for int64."""
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
runs = {n: lockstep.torchrun(try_operations, n, backend="gloo", show=False) for n in names}

# %% id="ops-table"
lockstep.table(
    "all_reduce of 1, 2, 3 and 4, by operation",
    ["op", "float32", "int64"],
    [[name, *job[0]] for name, job in runs.items()],
    stamp=lockstep.live(runs["AVG"]),
)

# %% id="avg-claim"
works = {
    kind: gave == "2.5" for kind, gave in zip(("float32", "int64"), runs["AVG"][0], strict=True)
}
lockstep.claim(
    "ReduceOp.AVG needs NCCL.",
    guess=guess,
    verdict="does not hold"
    if all(works.values())
    else "depends"
    if any(works.values())
    else "holds",
    because="under gloo it works with: " + (", ".join(k for k in works if works[k]) or "nothing"),
    stamp=lockstep.live(runs["AVG"]),
)

# %% [markdown] id="global-mean-text"
# gloo has `AVG` for floats by now, and refuses integers, because the mean of whole numbers need not be
# one. **What changes under NCCL:** integers have `AVG` there, too; their sum is divided, and the rest is
# dropped. Whether an average over *ranks* is what you want is another question. (NCCL has one more,
# `PREMUL_SUM`, which multiplies on the way; gloo raises for it.)
#
# ### Exercise 1: the mean of all values
#
# **Goal:** `global_mean(values)` gets a tensor with this rank's losses, and the ranks have
# *different numbers* of them, as on the last batch of an epoch; a rank may have none. It returns the
# mean over the values of all ranks, on every rank, as a Python float, by exactly one collective call.
# `values` stays what it is.

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
# ## 2 · Handles and objects
#
# With `async_op=True` a call returns a `Work` at once, and the tensor belongs to the backend until
# `wait()` has returned: do not read it, do not write it, do not free it. Below the last rank comes
# 0.4 seconds late, and rank 0 asks its handle twice.

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
#
# ### Objects and their price
#
# `all_gather_object`, `broadcast_object_list` and their like take any Python object. They pickle it
# into bytes, send those as a tensor, and unpickle them on the other side. A receiver must bring a tensor
# that is long enough (lab 02), and does not know how long the other ranks' pickles are. **Predict:** how
# many operations on the process group does *one* `all_gather_object` make on each rank?

# %% id="object-prediction" tags=["prediction"]
prediction = 2


# %% id="object"
def gather_both(count):
    """Seconds to gather a list of floats as an object, and the same numbers as a tensor."""
    import time

    import torch
    import torch.distributed as dist

    n = dist.get_world_size()
    x = torch.rand(count, device=lockstep.device())
    listed, parts = x.tolist(), [torch.empty_like(x) for _ in range(n)]
    for _ in range(2):  # the second time counts: then all is connected
        times = [time.perf_counter()]
        dist.all_gather_object([None] * n, listed)
        times.append(time.perf_counter())
        dist.all_gather(parts, x)
        parts[-1][-1].item()  # so that a GPU has it, too
        times.append(time.perf_counter())
    return times[1] - times[0], times[2] - times[1]


object_job = lockstep.torchrun(
    gather_both, 100_000, nproc_per_node=NPROC, backend=BACKEND, show=False
)

# %% id="object-measured"
*pickled, plain = object_job.calls[0][-3:]
print(*(f"{call.operation} of {call.dtype}{list(call.shapes[0])}" for call in pickled), sep="\n")
lockstep.compare(predicted=prediction, measured=len(pickled))

# %% [markdown] id="object-explained"
# The first tells everybody how long each pickle is, so that all can make room for the longest; the
# second sends them. A pickle has one byte for each float that says what follows, and then its eight
# bytes, since Python's floats are float64. **Predict:** how many *times as many bytes* does a rank put
# in as for the `all_gather` of the same 100,000 numbers in a float32 tensor? And does the time grow as
# much?

# %% id="price-prediction" tags=["prediction"]
prediction = (1 + 8) / 4

# %% id="price" tags=["varies"]
as_object, as_tensor = (max(took) for took in zip(*object_job.results, strict=True))
print(f"time: {as_object / as_tensor:.1f} times, with the pickling, copying and unpickling")
lockstep.compare(predicted=prediction, measured=pickled[-1].bytes / plain.bytes, unit="times")

# %% id="price-table"
lockstep.table(
    "100,000 numbers from each rank to all: bytes that a rank puts in",
    ["as", "bytes", "a number"],
    [
        [
            "list of floats, pickled",
            f"{pickled[-1].bytes:,}",
            f"{pickled[-1].bytes / 1e5:.0f} bytes",
        ],
        ["float32 tensor", f"{plain.bytes:,}", f"{plain.bytes / 1e5:.0f} bytes"],
    ],
    stamp=lockstep.live(object_job),
)

# %% [markdown] id="danger-text"
# Objects are for a configuration at the start, not for numbers in a loop. And they have a danger. A
# pickle is not data, it is a small program: it says which function the receiver is to call with which
# arguments. Rank 0 sends one that asks for `print`. **Predict:** on how many ranks does it run?

# %% id="danger-prediction" tags=["prediction"]
prediction = NPROC - 1

# %% id="danger"
# %%torchrun -n {NPROC} --backend {BACKEND} --into job
import torch.distributed as dist


class Parcel:
    def __reduce__(self):
        return print, ("the sender chose this line, and this rank has run it",)


box = [Parcel() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(box, src=0)

# %% id="danger-measured"
ran = [rank for rank in range(NPROC) if "chose this line" in job.output(rank)]
lockstep.compare(predicted=prediction, measured=len(ran))

# %% [markdown] id="danger-explained"
# Nobody called anything: receiving was enough. `print` is harmless, `os.system` would not have
# been. So whoever can send to your ranks can run programs in them. Inside of one job that is your own code; it is
# not with a checkpoint from elsewhere (`torch.load` has `weights_only=True` for this reason) nor on
# a port that others can reach. Tensors cannot do that.

# %% [markdown] id="bytes-text"
# ## 3 · What an all-reduce sends
#
# Look at the pictures again. What `reduce_scatter` leaves is what `all_gather` begins with.
#
# ### Exercise 2: two steps
#
# **Goal:** `two_step_all_reduce(x)` leaves the sum over all ranks in `x`, on every rank, by one
# `reduce_scatter` of x's bytes and one `all_gather` of a part. `x` has one dimension, its length is a
# multiple of the number of ranks. `x.chunk(n)` gives views: who writes into them writes into `x`.

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
# Now without collectives. Put the ranks in a ring: each sends to the next one only, and receives from
# the one before. Cut `x` into N chunks. In the first half partial sums go round and grow, until each
# rank has one complete chunk. In the second half the complete chunks go round.
#
# Follow one chunk, the first, on four ranks. Rank 0 sends its own to rank 1, which adds its own to it
# and sends the sum to rank 2; rank 2 adds and sends to rank 3; rank 3 adds and has the sum of all four,
# after three steps. Then the complete chunk goes from rank 3 to 0, from 0 to 1, from 1 to 2: three steps
# more. The second chunk does the same, but starts at rank 1, the third at rank 2, the fourth at rank 3,
# all at the same time.
#
# The tool is an exchange in which both sides are started before anybody waits; lab 02 says why:

# %% id="swap"
# %%torchrun -n {NPROC} --backend {BACKEND}
import torch
import torch.distributed as dist


def swap(out, to, into, source):
    """Send `out` to one rank, and receive `into` from another, at the same time."""
    both = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


rank, n = dist.get_rank(), dist.get_world_size()
x, y = torch.full((2, 1), float(rank), device=lockstep.device())
swap(x, (rank + 1) % n, y, (rank - 1) % n)
y.item()

# %% [markdown] id="ring-predict-text"
# **Predict:** a rank's `x` has 1,000 kB, and there are as many ranks as in this notebook. How many kB
# does *each rank* send in the whole ring all-reduce? Count steps and chunks on paper.

# %% id="ring-prediction" tags=["prediction"]
prediction = 2 * (NPROC - 1) * 1000 / NPROC  # 2(N - 1) steps, in each a chunk of 1/N

# %% [markdown] id="ring-exercise-text"
# ### Exercise 3: a ring all-reduce
#
# **Goal:** `ring_all_reduce(x)` leaves the sum in `x` on all ranks, by messages alone. Rank *r* sends
# to *r* + 1 only, and no rank sends more than the bytes that you predicted (the check counts them).
# Every message that is begun is waited for. `x` has one dimension, its length is a multiple of N, any
# N. Draw four ranks and four chunks first, and follow one chunk.

# %% id="ring_all_reduce"
import torch
import torch.distributed as dist


def swap(out, to, into, source):
    both = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    # BEGIN SOLUTION
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):  # after it, chunk rank - step - 1 is the sum of step + 2 ranks
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):  # after it, step + 2 chunks are complete here
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)
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
    return [sum(c.bytes for c in calls if c.operation == "send") for calls in job.calls]


job = lockstep.torchrun(
    reduce_by, ring, 1_000_000, nproc_per_node=NPROC, backend=BACKEND, show=False
)
print("bytes sent, by rank:", *bytes_sent(job))
lockstep.compare(predicted=prediction, measured=max(bytes_sent(job)) / 1000)

# %% [markdown] id="ring-steps-text"
# What four ranks held after each step, with one number a chunk. Rank 0 starts with 1s, rank 1 with
# 10s, rank 2 with 100s, rank 3 with 1000s, so that the digits of a sum say whose numbers are in it. A
# number that moved keeps its colour; a thick frame is a new sum, or one that several ranks have.

# %% id="ring-steps"
from itertools import pairwise


def ring_states():
    """What this rank holds at the start, and after each step of a ring with one number a chunk."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.full((n,), 10.0**rank)  # a digit for each rank
    chunks, came, states = x.chunk(n), torch.zeros(1), [x.tolist()]
    for step in range(2 * (n - 1)):
        swap(chunks[(rank - step) % n], (rank + 1) % n, came, (rank - 1) % n)
        place = chunks[(rank - step - 1) % n]
        place.copy_(came + place if step < n - 1 else came)
        states.append(x.tolist())
    return states


steps_job = lockstep.torchrun(ring_states, nproc_per_node=4, backend="gloo", show=False)
states = list(zip(*steps_job.results, strict=True))
lockstep.buffers(
    {f"step {at}": pair for at, pair in enumerate(pairwise(states), 1)},
    stamp=lockstep.live(steps_job),
)

# %% [markdown] id="twice-text"
# ### Claim: "an all-reduce moves twice its data"
#
# People turn the time of an all-reduce into a bandwidth by that rule: 2 × bytes / seconds. Your ring
# can say how often a rank sends its data, on 2, 4 and 8 ranks. **Guess** first.

# %% id="twice-guess" tags=["guess"]
guess = "depends"

# %% id="twice-claim"
jobs = {
    n: lockstep.torchrun(reduce_by, ring, 64_000, nproc_per_node=n, backend="gloo", show=False)
    for n in (2, 4, 8)
}
times = {n: max(bytes_sent(job)) / 64_000 for n, job in jobs.items()}
twice = [abs(sent - 2) < 0.02 for sent in times.values()]
lockstep.claim(
    "An all-reduce moves twice its data.",
    guess=guess,
    verdict="holds"
    if all(twice)
    else "depends"
    if len(set(times.values())) > 1
    else "does not hold",
    because=", ".join(f"{n} ranks: {sent:g} times" for n, sent in times.items()),
    stamp=lockstep.live(jobs[8]),
)

# %% [markdown] id="twice-explained"
# It is 2(N − 1)/N, and twice only where N is large. (No algorithm in which ranks only send to each
# other can do with less.)
#
# ## 4 · Fewer rounds
#
# The ring sends few bytes in *many* rounds: 2(N − 1), and in each of them a message's latency is
# paid. For a small tensor that is all there is to pay. Two ways with fewer rounds:
#
# - **Recursive doubling:** in round *k* each rank exchanges *everything it has* with a partner 2^*k*
#   away, and adds. After one round pairs agree, after two fours, after three eights.
# - **Tree:** pairs reduce into one of the two, those into one of four, up to rank 0; and back down.
#
# **Predict:** with 8 ranks, how many messages does each rank send in recursive doubling?

# %% id="doubling-prediction" tags=["prediction"]
prediction = 3  # distances 1, 2 and 4

# %% [markdown] id="doubling-text"
# ### Exercise 4: recursive doubling
#
# **Goal:** `doubling_all_reduce(x)` leaves the sum in `x` on all ranks, by messages alone; each rank
# sends exactly as often as you predicted. N is a power of two. (`^`, exclusive or, turns a bit over:
# `5 ^ 4` is 1, and `1 ^ 4` is 5.)

# %% id="doubling_all_reduce"
import torch
import torch.distributed as dist


def swap(out, to, into, source):
    both = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(both):
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
job = lockstep.torchrun(
    lambda: doubling(torch.ones(16_000)), nproc_per_node=8, backend="gloo", show=False
)
sends = [[call for call in calls if call.operation == "send"] for calls in job.calls]
print("bytes sent, by rank:", *(sum(call.bytes for call in rank) for rank in sends))
lockstep.compare(predicted=prediction, measured=max(map(len, sends)))

# %% [markdown] id="tree-text"
# The ring with 8 ranks sends 14 messages from each. Here it is fewer, and each of them is all of `x`.
#
# ### Exercise 5: a tree
#
# **Goal:** `tree_all_reduce(x)` leaves the sum in `x` on all ranks, for *any* number of ranks, with
# 2(N − 1) messages in all. If a rank can be in one message at a time, no more than 8 rounds with 7
# ranks. `dist.send` and `dist.recv` are enough: in a tree nobody sends and receives at once.

# %% id="tree_all_reduce"
import torch
import torch.distributed as dist


def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    # BEGIN SOLUTION
    for d in distances:  # up: after it, every 2d-th rank has the sum of the 2d from itself on
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x.add_(buffer)
    for d in reversed(distances):  # down: after it, every d-th rank has the sum of all
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
    # END SOLUTION


# %% id="tree_all_reduce-check"
lockstep.check("tree_all_reduce", tree_all_reduce)

# %% [markdown] id="timelines-text"
# Both on the same four ranks, 8 MB, from the record of their calls: first the tree, then the ring,
# with a barrier before each. A long `recv` is a rank that waits for something to arrive.

# %% id="timelines" tags=["varies"]
tree = lockstep.carry_on("tree_all_reduce", tree_all_reduce)
ring = lockstep.carry_on("ring_all_reduce")


def both(first, second):
    for all_reduce in (first, second):
        dist.barrier()
        all_reduce(torch.ones(2_000_000))


timeline_job = lockstep.torchrun(both, tree, ring, nproc_per_node=4, backend="gloo", show=False)
lockstep.Timeline(lockstep.Trace.of(timeline_job), title="a tree, then a ring")

# %% [markdown] id="hierarchy-text"
# In the tree most ranks wait most of the time, and all of `x` is in every message. In the ring
# everybody sends all the time.
#
# ### Exercise 6: two levels
#
# GPUs of one node talk over NVLink, nodes over a network that is seven to nine times slower (section 8
# has the numbers). Ranks lie in a grid, a row for each node. `inside` is the group of this rank's node, `across` the group of the
# ranks with the same place in every node.
#
# **Goal:** `hierarchical_all_reduce(x, inside, across)` leaves the sum over all ranks in `x`, by calls
# on these two groups. Into those on `across` each rank puts only x's bytes divided by the ranks of a
# node. `x` has one dimension, its length is a multiple of that number. A node's ranks need not be
# neighbours.

# %% id="hierarchical_all_reduce"
import torch
import torch.distributed as dist


def hierarchical_all_reduce(x, inside, across):
    # BEGIN SOLUTION
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)
    # END SOLUTION


# %% id="hierarchical_all_reduce-check"
lockstep.check("hierarchical_all_reduce", hierarchical_all_reduce)

# %% [markdown] id="grid-text"
# On this notebook's ranks, as two nodes of N/2 each. **Predict:** `x` has 1,000 kB. How many kB does
# *each rank* put into its call across nodes?

# %% id="grid-prediction" tags=["prediction"]
prediction = 1000 / (NPROC // 2)  # a node has NPROC // 2 ranks, and each sends its part

# %% id="grid"
two_levels = lockstep.carry_on("hierarchical_all_reduce", hierarchical_all_reduce)


def on_a_grid(all_reduce):
    rank, half = dist.get_rank(), dist.get_world_size() // 2
    nodes = [dist.new_group(range(at * half, (at + 1) * half)) for at in range(2)]
    rails = [dist.new_group([at, at + half]) for at in range(half)]
    x = torch.ones(250_000, device=lockstep.device())
    all_reduce(x, nodes[rank // half], rails[rank % half])
    return x[0].item(), x[-1].item()


job = lockstep.torchrun(on_a_grid, two_levels, nproc_per_node=NPROC, backend=BACKEND, show=False)
for call in job.calls[0]:
    print(f"{call.operation:<15} in {list(call.group.ranks)} with {call.bytes:,} bytes")
across = [c for c in job.calls[0] if list(c.group.ranks) == [0, NPROC // 2]]
lockstep.compare(predicted=prediction, measured=across[-1].bytes / 1000)

# %% [markdown] id="cost-text"
# ## 5 · What it should cost
#
# Lab 02 fitted α and β: a message of *s* bytes takes α + β·*s*. Here the line is fitted on a
# *shift*: all ranks send to the next one at the same time, as in a step of your ring.


# %% id="sweep"
def sweep(functions, sizes, repeats=9):
    """For each function [(bytes, median seconds, quartiles)], of the slowest rank each time."""
    import time

    import torch
    import torch.distributed as dist

    device, found = lockstep.device(), {name: [] for name in functions}
    done = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for size in sizes:
        x = torch.zeros(size // 4, device=device)
        for name, function in functions.items():
            seconds = torch.zeros(repeats + 2)
            for at in range(len(seconds)):
                dist.barrier()
                done()
                begin = time.perf_counter()
                function(x)
                done()
                seconds[at] = time.perf_counter() - begin
            slowest = seconds[2:].to(device)  # without two to warm up
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            low, middle, high = slowest.cpu().quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
            found[name].append((size, middle, low, high))
    return found


# %% id="fit" tags=["varies"]
import torch
import torch.distributed as dist


def shift(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    sending = dist.P2POp(dist.isend, x, (rank + 1) % n)
    receiving = dist.P2POp(dist.irecv, torch.empty_like(x), (rank - 1) % n)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()


on_gpus = BACKEND != "gloo" and lockstep.gpu_count() >= NPROC
SIZES = [1 << power for power in range(10, 31 if on_gpus else 25, 2)]  # 1 kB to 16 MB, or 1 GB
fit_job = lockstep.torchrun(
    sweep, {"shift": shift}, SIZES, nproc_per_node=NPROC, backend=BACKEND, show=False
)
points = fit_job[0]["shift"]
line = lockstep.cost.fit([p[0] for p in points], [p[1] for p in points])
print(f"{line} · {lockstep.live(fit_job)}")

# %% [markdown] id="ring-seconds-text"
# ### Exercise 7: the ring's price
#
# **Goal:** `ring_seconds(n, nbytes, alpha, beta)` is what the α–β model says of your ring
# all-reduce of `nbytes` on `n` ranks, in seconds. Only messages cost something, and steps come one
# after the other. A chunk has nbytes/N bytes, whole or not; one rank alone needs no time.


# %% id="ring_seconds"
def ring_seconds(n, nbytes, alpha, beta):
    # BEGIN SOLUTION
    return 2 * (n - 1) * (alpha + beta * nbytes / n)
    # END SOLUTION


# %% id="ring_seconds-check"
lockstep.check("ring_seconds", ring_seconds)

# %% [markdown] id="cross-text"
# `lockstep.cost` has this formula and those of the others, each with its source:
# `recursive_doubling_all_reduce` is log₂ N (α + β·s), `tree_all_reduce` twice that. Ring and
# doubling are two straight lines in *s*. Where do they cross?
#
# **Predict** from α and β above (on paper, or with `ring_seconds`): from how many *kilobytes* on is
# the ring faster than recursive doubling, on this notebook's ranks?

# %% id="cross-prediction" tags=["prediction"]
prediction = 4000

# %% id="algorithms" tags=["varies"]
all_reduces = {
    name: lockstep.carry_on(f"{name}_all_reduce") for name in ("ring", "doubling", "tree")
}
all_reduces["the backend's"] = dist.all_reduce
measured_job = lockstep.torchrun(
    sweep, all_reduces, SIZES, nproc_per_node=NPROC, backend=BACKEND, show=False
)
formulas = {
    "ring": lockstep.cost.ring_all_reduce,
    "doubling": lockstep.cost.recursive_doubling_all_reduce,
    "tree": lockstep.cost.tree_all_reduce,
}
try:
    size = lockstep.cost.crossover(formulas["ring"], formulas["doubling"], NPROC, line)
    print(f"by the model, ring and doubling cross at {size / 1e3:,.0f} kB")
except ValueError as never:  # two ranks
    print(never)

# %% id="algorithms-chart" tags=["varies"]
curve = [SIZES[0] * 4 ** (at / 8) for at in range(8 * len(SIZES) - 7)]
lockstep.chart(
    measured_job[0],
    models={name: [(s, f(NPROC, s, line)) for s in curve] for name, f in formulas.items()},
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of an all-reduce over its size: measured with quartiles for ring, recursive "
    "doubling, tree and the backend's own, and what the α–β model says of the first three.",
    stamp=[lockstep.live(measured_job), lockstep.simulated(f"α–β model, {line}")],
)

# %% id="cross-measured" tags=["varies"]
import math
from itertools import pairwise


def crossing(one, other):
    """The size from which on `one` is faster to the end of the sweep, in kB; None: it is not."""
    ahead = [(a[0], math.log(a[1] / b[1])) for a, b in zip(one, other, strict=True)]
    for (small, before), (large, after) in reversed(list(pairwise(ahead))):
        if before > 0 >= after:
            return small * (large / small) ** (before / (before - after)) / 1e3
    return None


found = crossing(measured_job[0]["ring"], measured_job[0]["doubling"])
if found is None:
    print("in this sweep the ring does not overtake recursive doubling")
else:
    print(lockstep.compare(predicted=prediction, measured=found, unit="kB"))

# %% id="model-off" tags=["varies"]
print("measured / model", *(f"{size / 1000:>7,.0f} kB" for size in SIZES))
for name, formula in formulas.items():
    ratios = [row[1] / formula(NPROC, row[0], line) for row in measured_job[0][name]]
    print(f"{name:<16}", *(f"{ratio:>10.2f}" for ratio in ratios))

# %% [markdown] id="cross-explained"
# See how far two numbers carry. The model knows of messages only: not that all ranks may share two
# cores and one memory, so that a rank with nothing to do makes the others faster, nor that adding up
# takes time. Where measured and model are a factor apart, something that costs time is not in it.
#
# A ring has few bytes, doubling few rounds. **Rabenseifner's** all-reduce has both: each rank exchanges
# *half* of `x` with a partner and adds, then a quarter with another one, then an eighth, until it has one
# complete part; then the same backwards. That is 2 log₂ N rounds and 2(N − 1)/N of the bytes
# (`lockstep.cost.rabenseifner_all_reduce`). By this model it never takes longer than the ring, where N
# is a power of two. But its partners are far apart, and a ring's are neighbours: the model takes all
# pairs of ranks as equally near.
#
# ## 6 · Two bandwidths, and NCCL
#
# (Goes on from section 5, whose sweep it uses.)
#
# - **Algorithm bandwidth:** bytes / seconds. It says how long *you* wait.
# - **Bus bandwidth:** algorithm bandwidth × 2(N − 1)/N for an all-reduce, × (N − 1)/N for all-gather,
#   reduce-scatter and all-to-all. It says what a link carried, and can be compared with the hardware.
#
# The bytes are those of a rank's larger tensor: what all-gather puts out, what reduce-scatter takes in.
# The factors count what must be sent
# [if ranks only send to each other](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
# Where NVLink's switch adds up by itself (NVLS), links carry less than the factor says, and the number
# can lie above what a link can do. In these recordings NVLS was off.
#
# On 4 H200s an all-reduce of 1 GiB took 4.56 ms (recorded). NVLink can carry 450 GB/s from each
# GPU, and as much to it. **Predict:** what was the *bus* bandwidth, in GB/s?

# %% id="bus-prediction" tags=["prediction"]
prediction = 1.5 * 2**30 / 4.56e-3 / 1e9  # 2 · 3 / 4 = 1.5

# %% id="bus-recorded"
recording = lockstep.recorded("sweeps/h200-x4.json")
last = recording.content["sweeps"]["all_reduce"][-1]
bandwidth = lockstep.cost.bus_bandwidth("all_reduce", 4, last["bytes"], last["seconds"])
lockstep.compare(predicted=prediction, computed=bandwidth / 1e9, unit="GB/s")


# %% id="bus-chart"
def bus_curve(operation, n, sweep):
    """Bus bandwidth over size, with quartiles (a longer time is a lower bandwidth)."""
    rate = lambda row, key: lockstep.cost.bus_bandwidth(operation, n, row["bytes"], row[key])
    keys = ("seconds", "upper_quartile", "lower_quartile")
    return [(row["bytes"], *(rate(row, key) for key in keys)) for row in sweep]


names = "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"
lockstep.chart(
    {name: bus_curve(name, 4, recording.content["sweeps"][name]) for name in names},
    x="size (bytes)",
    y="bus bandwidth (bytes/s)",
    alt="Bus bandwidth over size on 4 H200s for five collectives: up to about a megabyte all rise "
    "with the size, because the time stays the same; then they level off.",
    stamp=recording.stamp,
)

# %% [markdown] id="bus-explained"
# Up to 1 MB all curves rise in parallel: the time stays the same, 17 µs, and that is what PyTorch
# needs to *launch* a call, not NCCL's α. Below that size no algorithm matters, and what helps is
# fewer calls.
#
# ### Claim: "bus bandwidth is the same on any number of GPUs"
#
# NVIDIA's nccl-tests
# ([doc/PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), "Bus
# bandwidth") compares it with the hardware "independently of the number of ranks used". Take it within
# 25 %, for 1 GiB on 2 and on 4 GPUs. **Guess** first.

# %% id="bus-guess" tags=["guess"]
guess = "holds"

# %% id="bus-claim"
last_rows = {
    n: {
        name: lockstep.recorded(f"sweeps/h200-x{n}.json").content["sweeps"][name][-1]
        for name in names
    }
    for n in (2, 4)
}
ratios = {"bus": [], "algorithm": []}
for name in names:
    rate = {n: rows[name]["bytes"] / rows[name]["seconds"] for n, rows in last_rows.items()}
    factor = {n: lockstep.cost.bus_factor(name, n) for n in last_rows}
    ratios["algorithm"].append(rate[4] / rate[2])
    ratios["bus"].append(rate[4] * factor[4] / (rate[2] * factor[2]))
within = [abs(ratio - 1) <= 0.25 for ratio in ratios["bus"]]
lockstep.claim(
    "Bus bandwidth is the same on any number of GPUs, within 25 %.",
    guess=guess,
    verdict="holds" if all(within) else "depends" if any(within) else "does not hold",
    because="4 GPUs by 2, five collectives: "
    + "; ".join(f"{min(r):.2f} to {max(r):.2f} ({kind})" for kind, r in ratios.items()),
    stamp=recording.stamp,
)

# %% [markdown] id="largest-text"
# ### What does this machine reach?
#
# The next cell finds the largest bus bandwidth in a sweep of `dist.all_reduce`, and times a bare
# loop of calls at the same size in the same job. On GPUs the two should agree within 5 %. On a few
# busy cores they do not: in the sweep, ranks meet before each call.


# %% id="largest"
def largest(sizes):
    """The sweep's best (bytes, seconds), and seconds a call of a bare loop at that size."""
    import time

    import torch
    import torch.distributed as dist

    rows = sweep({"all_reduce": dist.all_reduce}, sizes)["all_reduce"]
    size, seconds, *_ = min(rows, key=lambda row: row[1] / row[0])
    x = torch.zeros(size // 4, device=lockstep.device())
    done = torch.cuda.synchronize if x.is_cuda else lambda: None
    dist.barrier()
    done()
    begin = time.perf_counter()
    for _ in range(20):
        dist.all_reduce(x)
    done()
    return size, seconds, (time.perf_counter() - begin) / 20


largest_job = lockstep.torchrun(
    largest, SIZES[4:], nproc_per_node=NPROC, backend=BACKEND, show=False
)

# %% id="largest-shown" tags=["varies"]
size, swept, _ = largest_job[0]
looped = max(job[2] for job in largest_job.results)
for name, seconds in ("sweep", swept), ("bare loop", looped):
    rate = lockstep.cost.bus_bandwidth("all_reduce", NPROC, size, seconds)
    print(f"{name:<10} {rate / 1e9:8.2f} GB/s bus bandwidth at {size / 1e6:,.1f} MB")
print(f"a call took {looped / swept:.2f} times as long in the loop · {lockstep.live(largest_job)}")

# %% [markdown] id="nccl-text"
# ### Claim: "for large messages, the double binary tree is chosen"
#
# A rule that is passed on goes by size: a tree for small messages, a ring for middle ones, from 1 MB on
# the double binary tree. NCCL can be forced (`NCCL_ALGO=Ring`, `NCCL_ALGO=Tree`), and left to
# choose. All three were recorded on 2 and on 4 H200s, with NVLink multicast off, so that NVLS was no
# choice: it is ring against tree. **Guess**, then see which forced curve its own choice lies on.

# %% id="nccl-guess" tags=["guess"]
guess = "does not hold"

# %% id="nccl-recordings"
import contextlib

suffixes = {"NCCL's choice": "", "ring": "-ring", "tree": "-tree"}
recorded = {}
for n in (2, 4, 8):  # as many GPUs as somebody has recorded
    with contextlib.suppress(FileNotFoundError):
        files = {how: f"sweeps/h200-x{n}{suffix}.json" for how, suffix in suffixes.items()}
        recorded[n] = {how: lockstep.recorded(file) for how, file in files.items()}
print("recorded on", ", ".join(map(str, recorded)), "GPUs")

# %% id="nccl-chart"
n = max(recorded)  # or another of them
lockstep.chart(
    {
        how: bus_curve("all_reduce", n, one.content["sweeps"]["all_reduce"][8:])
        for how, one in recorded[n].items()
    },
    x="size (bytes)",
    y="bus bandwidth (bytes/s)",
    alt=f"Bus bandwidth of all_reduce over size on {n} H200s: ring forced, tree forced, and what NCCL "
    "chose by itself, which lies on one of the two.",
    stamp=recorded[n]["NCCL's choice"].stamp,
    log="x",
)

# %% id="nccl-claim"
near = {"ring": [], "tree": []}
for n, ways in recorded.items():
    seconds = {
        how: {row["bytes"]: row["seconds"] for row in one.content["sweeps"]["all_reduce"]}
        for how, one in ways.items()
    }
    for size, took in seconds["NCCL's choice"].items():
        off = {how: abs(seconds[how][size] / took - 1) for how in near}
        if size >= 1 << 20 and max(off.values()) > 0.05:  # where the two can be told apart
            near[min(off, key=off.get)].append((n, size))
lockstep.claim(
    "For large messages, from 1 MB on, the double binary tree is chosen.",
    guess=guess,
    verdict="does not hold" if not near["tree"] else "depends" if near["ring"] else "holds",
    because="NCCL's time lies on the ring's at "
    + f"{len(near['ring'])} sizes from 1 MB on and on the tree's at {len(near['tree'])}, "
    + f"of {', '.join(map(str, recorded))} GPUs (where the two differ by more than 5 %)",
    stamp=[ways["NCCL's choice"].stamp for ways in recorded.values()],
)

# %% [markdown] id="nccl-explained"
# The model says why: for large messages bytes count, and a ring sends the fewest; a tree saves
# rounds, which count when messages are small *or ranks are many*, as between hundreds of nodes.
# Inside of one host there are few. On 2 GPUs a "tree" sends no more bytes than a ring, so look
# there, too: `n = 2` in the chart.
#
# NCCL chooses two more things. One is the **protocol**, how a GPU knows that data has come. *Simple*
# sends large pieces and then a signal: most bandwidth, most latency. *LL* sends 4 bytes of data with 4
# bytes of flag: least latency, at most half of the bandwidth. *LL128* has 120 bytes of data in 128. The
# other is **NVLS**: NVLink's switch adds up, and each GPU sends and receives its data about once.
#
# ## 7 · Granularity
#
# A model has hundreds of parameters, most of them small. **Predict:** a thousand all-reduces of 1
# kB, one after the other: how many *times* as long as one of 1 MB? (Section 5 has both sizes.)

# %% id="grain-prediction" tags=["prediction"]
prediction = 100


# %% id="grain"
def many_or_one(count):
    """Seconds for as many all-reduces of 1 kB, for one of all of them, and for them coalesced."""
    import time

    import torch
    import torch.distributed as dist

    def coalesced():
        with dist.distributed_c10d._coalescing_manager():
            [dist.all_reduce(piece) for piece in pieces]

    x = torch.zeros(count * 256, device=lockstep.device())
    pieces, times = list(x.chunk(count)), [0.0]
    one, many = lambda: dist.all_reduce(x), lambda: [dist.all_reduce(piece) for piece in pieces]
    for way in (one, coalesced, many, coalesced, one):  # the first two are to warm up
        begin = time.perf_counter()
        way()
        x[0].item()  # so that a GPU is done, too
        times.append(time.perf_counter() - begin)
    return dict(zip(("many", "coalesced", "one"), times[3:], strict=True))


grain_job = lockstep.torchrun(many_or_one, 1000, nproc_per_node=NPROC, backend=BACKEND, show=False)

# %% id="grain-measured" tags=["varies"]
slowest = {name: max(one[name] for one in grain_job.results) for name in grain_job[0]}
for name, seconds in slowest.items():
    print(f"{name:<10} {1000 * seconds:10.1f} ms")
lockstep.compare(predicted=prediction, measured=slowest["many"] / slowest["one"], unit="times")

# %% [markdown] id="grain-text"
# `_coalescing_manager` collects the calls inside of it and passes them on as one; the underscore
# says that it may change. Under gloo it works for all_reduce. (With `device=` it asks the backend
# itself to collect, and gloo cannot.)
#
# ### Claim: "one call for many layers saves start-up time *and* bytes"
#
# People recommend to bundle, and name both as gains. **Guess**; the record of calls knows the bytes.

# %% id="grain-guess" tags=["guess"]
guess = "depends"

# %% id="grain-claim"
_, _, *many, _, single = grain_job.calls[0]
before = sum(call.bytes for call in many)
saves = {"time": slowest["one"] < slowest["many"] / 2, "bytes": single.bytes < before}
lockstep.claim(
    "One call for many layers saves start-up time and bytes.",
    guess=guess,
    verdict={2: "holds", 1: "depends", 0: "does not hold"}[sum(saves.values())],
    because=f"less than half of the time: {'yes' if saves['time'] else 'no'}; fewer bytes: "
    f"{'yes' if saves['bytes'] else 'no'} ({before:,} in {len(many):,} calls, {single.bytes:,} in one)",
    stamp=lockstep.live(grain_job),
)

# %% [markdown] id="flat-text"
# Bytes are saved where gradients are *added up over several steps* before they are sent: fewer
# all-reduces of the same size. Bundling layers saves α only.
#
# ### Exercise 8: one call for all
#
# **Goal:** `flat_all_reduce(tensors)` gets a list of tensors of one dtype and several shapes (some
# may be empty, single numbers, or transposed views), and leaves in each of them the sum over all
# ranks, by exactly one call of their size. That is what DDP does with a bucket.

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

# %% [markdown] id="big-text"
# ## 8 · From two numbers to a thousand GPUs
#
# Fit α and β on *2* H200s (the recorded shift between neighbours), and put them into the ring's
# formula for *4*. **Predict** by it: how many *milli*seconds does an all-reduce of 1 GiB (2³⁰ bytes)
# take on 4 GPUs?

# %% id="big-line"
two = lockstep.recorded("sweeps/h200-x2.json")
rows = two.content["sweeps"]["ring_shift"]
nvlink = lockstep.cost.fit([row["bytes"] for row in rows], [row["seconds"] for row in rows])
print(nvlink, two.stamp, sep="\n")

# %% id="big-prediction" tags=["prediction"]
# your number, or how it comes from nvlink.alpha and nvlink.beta
prediction = 1000 * 2 * 3 * (nvlink.alpha + nvlink.beta * 2**30 / 4)

# %% id="big-fit"
recording = lockstep.recorded("sweeps/h200-x4.json")
last = recording.content["sweeps"]["all_reduce"][-1]
model = lockstep.cost.ring_all_reduce(4, last["bytes"], nvlink)
print(f"the model is off by {abs(model / last['seconds'] - 1):.1%} · {recording.stamp}")
lockstep.compare(predicted=prediction, measured=1000 * last["seconds"], unit="ms")

# %% id="big-chart"
rows = recording.content["sweeps"]["all_reduce"]
times = [(r["bytes"], r["seconds"], r["lower_quartile"], r["upper_quartile"]) for r in rows]
curve = [256 * 2 ** (at / 2) for at in range(45)]
lockstep.chart(
    {
        "recorded on 4": times,
    },
    models={"recorded on 4": [(s, lockstep.cost.ring_all_reduce(4, s, nvlink)) for s in curve]},
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of an all-reduce on 4 H200s over its size, recorded, and the ring's formula with α "
    "and β of 2 H200s: close together for large messages, several times too slow for small ones.",
    stamp=[recording.stamp, lockstep.simulated(f"α–β model, {nvlink}")],
)

# %% [markdown] id="big-explained"
# The β end carries over. The α end does not: its α is PyTorch's launch of a *call*, and NCCL's ring
# is one call, not six. For gradients it matters, too: DDP sends them in buckets of 25 MB, and at 16.8 MB
# the model says 2.5 times what was recorded. At 1 GiB it is 1.08 times.
#
# Now the gradients of a model with 7 billion parameters in bf16: 14 GB. On 8 GPUs of one host, with
# the NVLink line; and on 1,024 GPUs, 128 hosts of 8, where each GPU has a network card of its own.
# For that nobody here has a measurement: it is *assumed* to carry 50 GB/s (400 Gbit/s) with an α of
# 10 µs.
#
# **Predict:** on 1,024 GPUs, how many times as long as on 8 does the *two-level* all-reduce take?

# %% id="seven-prediction" tags=["prediction"]
prediction = (
    2  # NVLink as on 8; the network has 1/8 of the bytes at about 1/7 of NVLink's bandwidth
)

# %% id="seven"
network = lockstep.cost.Line(alpha=10e-6, beta=1 / 50e9)
gradients = 7e9 * 2


def flat_rings(nbytes, n=1024, cards=8):
    """Rings through all GPUs, one for each card of a node: each link carries its share of rings."""
    slowest = max(network.beta / cards, nvlink.beta)
    return 2 * (n - 1) * (network.alpha + slowest * nbytes / n)


ways = {
    "8 GPUs, ring over NVLink": lambda s: lockstep.cost.ring_all_reduce(8, s, nvlink),
    "1,024 GPUs, flat rings": flat_rings,
    "1,024 GPUs, two levels": lambda s: lockstep.cost.hierarchical_all_reduce(
        1024, 128, s, nvlink, network
    ),
}
lockstep.table(
    "All-reduce, milliseconds by the model",
    ["on", "14 GB", "1 MB"],
    [[name, *(f"{1000 * way(s):.2f}" for s in (gradients, 1e6))] for name, way in ways.items()],
    stamp=lockstep.simulated(f"α–β model; NVLink: {nvlink}; network assumed: {network}"),
)

# %% id="seven-compared"
eight, _, levels = (way(gradients) for way in ways.values())
lockstep.compare(predicted=prediction, computed=levels / eight, unit="times")

# %% [markdown] id="seven-explained"
# That is a model's answer. It leaves out: links that several nodes share, ranks that come late
# (with a thousand there is always one), switches that add up by themselves, trees between nodes,
# and that the all-reduce hides behind the backward pass. What it is good for: it says where the time
# goes. NCCL's rings enter and leave each node once, and there is one for each network card. So a flat
# ring need not be slower for many bytes. What it pays is 2·1023 times α, 20 ms here, and that decides
# for small messages. Two levels have far fewer rounds; but here their three parts come one after the
# other, so that one kind of link is always idle.
#
# ## 9 · A rank that skips, groups that cross
#
# The next cell is **broken on purpose**: rank 1 leaves out step 1 of three (0, 1, 2), say because
# it had no data. **Predict:** in which step will the others be found?

# %% id="skip-prediction" tags=["prediction"]
prediction = 2

# %% id="skip"
# %%torchrun -n {NPROC} --backend gloo --may-fail --into job
import torch
import torch.distributed as dist

for step in range(3):
    loss = torch.full((1,), float(step))
    no_data = dist.get_rank() == 1 and step == 1
    if not no_data:
        dist.all_reduce(loss)
        print("step", step, "sum", loss.item())

# %% id="skip-measured"
stuck = next(call for call in job.calls[0] if call.end is None)
lockstep.compare(predicted=prediction, measured=stuck.number)

# %% [markdown] id="skip-explained"
# They hang in the call *after* the one that was skipped. Look at what was printed in step 1: the
# sum of the others' step 1 and rank 1's step 2. Collectives match by their order in the group, so a
# skipped call first gives wrong numbers, and only then a hang. Had the others left out one of their
# later calls, nothing would have hung, and nobody would have noticed. A rank without data calls with
# zeros. (They hang because rank 1's process is kept until all are done. Once it has ended, gloo raises
# "Connection closed by peer" in the others, within a second.)
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
# A deadlock with every call correct on its own. **Predict:** the same, but each call with
# `async_op=True`, and the waiting at the end. How many of the ranks finish under gloo?

# %% id="crossed-prediction" tags=["prediction"]
prediction = NPROC

# %% id="uncrossed"
# %%torchrun -n {NPROC} --backend gloo --may-fail --into job
import torch
import torch.distributed as dist

everybody = range(dist.get_world_size())
gradients, metrics = dist.new_group(everybody), dist.new_group(everybody)
order = (gradients, metrics) if dist.get_rank() == 0 else (metrics, gradients)
handles = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for group in order]
for handle in handles:
    handle.wait()
print("finished")

# %% id="uncrossed-measured"
finished = [rank for rank in range(NPROC) if "finished" in job.output(rank)]
lockstep.compare(predicted=prediction, measured=len(finished))

# %% [markdown] id="uncrossed-text"
# gloo has threads that work on both groups at once. **What changes under NCCL:** handles do not
# help. Each group has a stream of its own there, but whether the GPU runs both groups' calls at the same
# time is not promised. NCCL's rule is that the order in which the host starts them agrees on all ranks,
# over all groups. So the repair that holds everywhere is *one order on all ranks*:

# %% id="one-order"
# %%torchrun -n {NPROC} --backend {BACKEND}
import torch
import torch.distributed as dist

everybody = range(dist.get_world_size())
gradients, metrics = dist.new_group(everybody), dist.new_group(everybody)
for group in (gradients, metrics):
    dist.all_reduce(torch.ones(1, device=lockstep.device()), group=group)
print("finished")

# %% [markdown] id="nccl-changes"
# ## What changes under NCCL
#
# | here, with gloo | with NCCL |
# | --- | --- |
# | a call returns when it is complete | when it is queued; using the result waits |
# | α is what threads and sockets cost | α is the launch of a kernel, and PyTorch's part of it is most |
# | you picked the algorithm | NCCL picks it, and the protocol: ring, trees, NVLink's switches |
# | objects travel as bytes of the CPU | through the GPU, pickled and copied there and back |
#
# ## Recap
#
# - `reduce_scatter`, then `all_gather`, is an all-reduce: 2(N − 1)/N of its bytes, and without help
#   from the switch no way sends fewer.
# - A ring pays α 2(N − 1) times, doubling log₂ N times for more bytes: small messages want few
#   rounds, large ones few bytes.
# - Bus bandwidth can be compared with links; algorithm bandwidth says how long you wait.
# - Bundling saves α, never bytes. An average over ranks is not an average over samples.
# - Objects cost more calls, more bytes and the pickling, and they run code.
# - Calls match by order. A skipped one makes wrong numbers first, and hangs later.
#
# **What is slow here, and comes next:** while the bytes travelled, every rank waited, and computed
# nothing. On a GPU the two can go on at the same time: streams, and overlap, are lab 04.

# %% id="progress" tags=["unpublished"]
lockstep.progress("03")
