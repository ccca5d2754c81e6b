# %% [markdown] id="title"
# # 08 · Data parallelism
#
# **Two sittings, 85 and 85 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some; times of
# GPUs are a virtual GPU's where there are none)
#
# Each rank has the whole model and a part of the batch, or a part of both. Afterwards you can
#
# - say when the mean over ranks is the gradient of the whole batch, and when it is not,
# - put gradients into buckets, and predict what that saves,
# - write a DDP of your own that communicates while the backward pass goes on,
# - say how many bytes a parameter takes under each stage of ZeRO, and shard a layer by hand,
# - read in the record what `DistributedDataParallel` (DDP) and `fully_shard` (FSDP2) call,
# - compress gradients, and say when that pays.
#
# Lab 03 comes first: it has `all_reduce`, `all_gather` and `reduce_scatter`. Lab 04 has streams and overlap.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
print(lockstep.virtual.MACHINES["H200"])

# %% [markdown] id="machine-text"
# That line is the virtual GPU of lab 04, which plays GPUs where there are none. The next cell, whose code is folded,
# defines `on_gpus(program, …)`: it runs `program(cuda, …)` on two ranks with a GPU each, and keeps their
# timelines.

# %% id="on-gpus" tags=["plumbing"]
import tempfile
from dataclasses import dataclass
from typing import Any

from lockstep.base.provenance import Provenance


def _on_rank(program, args, values):
    if dist.get_backend() != "nccl":
        with lockstep.virtual.device("H200", values=values) as cuda:
            return program(cuda, *args), lockstep.virtual.trace()
    program(torch.cuda, *args)  # the first call loads kernels
    result = program(torch.cuda, *args)  # no profiler: it takes time, too
    second = torch.profiler.schedule(wait=0, warmup=1, active=1)
    with torch.profiler.profile(schedule=second) as profiler:
        for _ in range(2):
            program(torch.cuda, *args)
            dist.barrier()
            torch.cuda.synchronize()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")
        stamp = Provenance("live", torch.cuda.get_device_name())
        return result, lockstep.Trace.load(folder, stamp=stamp)


@dataclass
class Seen:
    result: Any
    trace: Any
    stamp = property(lambda self: self.trace.stamp)

    def compare(self, prediction, value, unit=""):
        way = "computed" if self.stamp.kind == "simulated" else "measured"
        return lockstep.compare(prediction, **{way: value}, unit=unit)

    def row(self):
        """Of rank 0, µs: all-reduces, those of them that nothing hides."""
        spent = self.trace.breakdown().of(0)
        total, hidden = spent.communication / 1e3, spent.overlapped / 1e3
        share = f"{100 * hidden / total:.0f} %" if total else "–"
        return [f"{total:,.0f}", f"{total - hidden:,.0f}", share]


def on_gpus(program, *args, values=False):
    """Run program(cuda, *args) on two ranks' GPUs; the result is rank 0's."""
    ways = {"nproc_per_node": 2, "show": False}
    job = lockstep.torchrun(_on_rank, program, args, values, **ways)
    results, traces = zip(*job.results, strict=True)
    return Seen(results[0], lockstep.virtual.joined(traces))


# %% [markdown] id="whole-text"
# ## 1 · The gradient of the whole batch
#
# In data parallelism each rank computes the gradient of *its part* of the batch, and the ranks average. The aim is
# the gradient that one process would have for all rows together.
#
# Here is a model with a single weight *w*, and a loss that is the mean of *x·w* over the rows. So the gradient is the
# mean of the *x*. Rank *r* has rows of 10(*r* + 1): rank 0 has **three** rows of 10, rank 1 has one row of 20, rank 2
# one of 30, and so on. The cell prints each rank's gradient, and their mean.
#
# **Predict:** which gradient would one process have for all rows?

# %% id="whole-prediction" tags=["prediction"]
# your number, or a formula with NPROC
prediction = (3 * 10 + sum(10 * (r + 1) for r in range(1, NPROC))) / (NPROC + 2)


# %% id="whole"
def gradient_of(x):
    """The gradient of a rank's rows, and the mean over ranks."""
    w = torch.zeros(1, requires_grad=True, device=lockstep.device())
    (x.to(w.device) * w).mean().backward()
    own = w.grad.item()
    dist.all_reduce(w.grad)
    return own, w.grad.item() / dist.get_world_size()


def of_a_part():
    rank = dist.get_rank()
    return gradient_of(torch.full((1 if rank else 3, 1), 10.0 * (rank + 1)))


parts = lockstep.torchrun(of_a_part, **on_ranks)
rows = [10.0] * 3 + [10.0 * (rank + 1) for rank in range(1, NPROC)]
whole = lockstep.torchrun(
    gradient_of, torch.tensor(rows)[:, None], nproc_per_node=1, show=False
)
print("gradients of the parts:", *(own for own, _ in parts.results))
print("their mean:", parts[0][1])
lockstep.compare(predicted=prediction, measured=round(whole[0][0], 4))

# %% [markdown] id="whole-explained"
# The mean over ranks counts rank 0's three rows as one. It is the gradient of the whole batch only if
#
# - all parts have equally many rows, or each rank's gradient is weighted by its rows,
# - the loss is a *mean* over rows,
# - parameters and buffers are the same on all ranks to begin with.
#
# Four things make it harder than a loop with `all_reduce`. A **frozen** parameter (`requires_grad` is False) has no
# gradient, and needs none. A **tied** parameter has two names and one gradient; `model.parameters()` gives it once. A
# parameter that this rank's rows did not use has `None` in `.grad`, while another rank has numbers there. And a rank
# may have **no rows** at all.
#
# ### Exercise 1: average gradients
#
# **Goal:** `average_gradients(model, rows)` is called on all ranks after the backward pass. Each rank's `.grad` is the
# gradient of the mean over its own `rows` rows. Afterwards each parameter that some rank used has in `.grad`, on every
# rank, the gradient of the mean over all rows of all ranks; a `None` counts as zeros. At least one rank has rows.
# Frozen parameters keep `None`; where no rank used a parameter, `None` and zeros are both right. The function
# communicates by any collectives.


# %% id="average_gradients"
import torch
import torch.distributed as dist


def average_gradients(model, rows):
    # BEGIN SOLUTION
    device = next(model.parameters()).device
    total = torch.tensor(float(rows), device=device)
    dist.all_reduce(total)
    for weight in model.parameters():
        if weight.requires_grad:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad *= rows / total.item()
            dist.all_reduce(weight.grad)
    # END SOLUTION


# %% id="average_gradients-check"
lockstep.check("average_gradients", average_gradients)

# %% [markdown] id="batch-claim-text"
# ### Claim: "DDP gives the gradients of one process with the larger batch"
#
# So most introductions explain it; PyTorch's
# [documentation of DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
# names an exception. Here is DDP in four cases. In all of them the ranks have 6 · `NPROC` rows together, and one process
# has the same rows. **Guess** first (`"holds"`, `"does not hold"`, or `"depends"`: true in some of the tested cases).

# %% id="batch-guess" tags=["guess"]
guess = "depends"


# %% id="batch"
def gradients(case):
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    middle = "BatchNorm" in case and torch.nn.BatchNorm1d(8) or torch.nn.Tanh()
    layers = torch.nn.Linear(4, 8), middle, torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers).to(device)
    rows = torch.randn(6 * NPROC, 4).to(device)
    if n > 1:
        model = DistributedDataParallel(model)
        sizes = [6] * n
        if "unequal" in case:
            sizes[0], sizes[-1] = 9, 3
        rows = rows.split(sizes)[rank]
    y = model(rows).square()
    (y.sum() if "sum" in case else y.mean()).backward()
    return torch.cat([w.grad.flatten().cpu() for w in model.parameters()])

cases = "mean", "sum", "mean, unequal parts", "mean, with BatchNorm"
off = {}
for case in cases:
    ddp = lockstep.torchrun(gradients, case, **on_ranks)
    one = lockstep.torchrun(gradients, case, **on_ranks | {"nproc_per_node": 1})
    off[case] = float((ddp[0] - one[0]).norm() / one[0].norm())
ok = [part < 1e-5 for part in off.values()]
lockstep.claim(
    "DDP gives the gradients of one process with the larger batch.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(
        f"{case}: {'the same' if same else f'off by {100 * off[case]:.0f} %'}"
        for case, same in zip(cases, ok, strict=True)
    ),
    stamp=lockstep.live(ddp),
)

# %% [markdown] id="batch-explained"
# It holds for a mean and equal parts. With a sum each rank's gradient is divided by the number of ranks once too
# often. BatchNorm computes its statistics over the rows that it sees, and those are a rank's own (`SyncBatchNorm`, in
# the further notebook, computes them over all ranks). DDP itself makes the third condition true: when it is built it
# broadcasts parameters and buffers from rank 0.
#
# ## 2 · Buckets
#
# A model with 60 layers has 60 weights and as many gradients. Each could have an all-reduce of its own, or several
# could travel together in one: a **bucket**. An all-reduce of *s* bytes takes α + β*s* (lab 03). Between two virtual
# H200s α is 11.5 µs, and 1/β is 320 GB/s.
#
# **Predict:** how many µs do 60 all-reduces of 262,144 bytes take, one after the other? And on paper: four of
# 3,932,160 bytes each?

# %% id="small-prediction" tags=["prediction"]
# your number, in µs
prediction = 60 * (11.5 + 262_144 / 320e9 * 1e6)


# %% id="small"
def many(cuda, count):
    """µs of so many all-reduces, of 60 gradients together."""
    gradients = torch.zeros(60 * 65_536, device="cuda")
    dist.all_reduce(gradients)  # the first one connects the ranks
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    for part in gradients.chunk(count):
        dist.all_reduce(part)
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) * 1e6


took = {count: on_gpus(many, count) for count in (60, 4, 1)}
rows = []
for count, seen in took.items():
    computed = count * 11.5 + 60 * 262_144 / 320e9 * 1e6
    rows.append([count, f"{seen.result:,.0f}", f"{computed:,.0f}"])
columns = ["all-reduces", "µs", "by α and β"]
stamp = took[60].stamp
display(lockstep.table("60 gradients, 15.7 MB", columns, rows, stamp=stamp))
took[60].compare(prediction, took[60].result, "µs")

# %% [markdown] id="buckets-text"
# So few calls are better than many, and one would be best, if nothing else went on. But the backward pass makes
# gradients one after the other, and a bucket can only be sent when it is complete (section 3). So DDP fills buckets in
# the order in which gradients get ready, and closes one when it has enough bytes. The backward pass goes through the
# model from its end to its beginning: the *last* parameter's gradient is ready first.
#
# The first bucket may be smaller than the others. Until it is complete nothing can be sent at all, so the sooner it
# is, the better. (DDP's limits: 1 MiB for the first, 25 MiB for the others, or `bucket_cap_mb=` for all.)
#
# ### Exercise 2: fill the buckets
#
# **Goal:** `buckets(sizes, cap, first_cap)` gets the bytes of each parameter, in the order of `model.parameters()`.
# It returns a list of buckets in the order in which they can be sent, each a list of the parameters' numbers, in the
# order in which their gradients are ready. A bucket is closed as soon as it has `cap` bytes or more, the first one as
# soon as it has `first_cap` or more; the last one has what is left. So no bucket is empty, and a large parameter may
# exceed a cap.


# %% id="buckets"
def buckets(sizes, cap, first_cap):
    # BEGIN SOLUTION
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        # before it, all later parameters are in `found` or in `bucket`
        bucket.append(number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return found + [bucket] if bucket else found
    # END SOLUTION


# %% id="buckets-check"
lockstep.check("buckets", buckets)

# %% [markdown] id="ddp-text"
# Does PyTorch's DDP do so? Its calls are in the record. This model has six weights. Their bytes are 8,192, 24,576,
# 49,152, 81,920, 122,880 and 172,032, and `bucket_cap_mb=0.1` closes a bucket, the first one, too, at 104,857 bytes.
#
# **Predict:** how many all-reduces does a step have? (`buckets`, on paper or by a call.)

# %% id="ddp-prediction" tags=["prediction"]
prediction = 4  # [5], [4], [3, 2], [1, 0]


# %% id="ddp"
def steps_of_ddp():
    """Seconds at which each of three steps begins."""
    import time

    torch.manual_seed(0)
    widths = [32 * number for number in range(1, 8)]
    layers = [
        torch.nn.Linear(*pair, bias=False)
        for pair in zip(widths, widths[1:], strict=False)
    ]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    model, began = DistributedDataParallel(model, bucket_cap_mb=0.1), []
    for _ in range(3):
        began.append(time.perf_counter())
        model(torch.randn(4, 32, device=lockstep.device())).sum().backward()
    return began


job = lockstep.torchrun(steps_of_ddp, **on_ranks)
reduced = [[] for _ in range(4)]  # before the first step, and in each of three
for call in job.calls[0]:
    step = sum(call.start > begin for begin in job[0])
    if call.operation == "all_reduce":
        reduced[step].append(call.bytes)

# %% id="ddp-compared"
rows = [[step, ", ".join(map(str, reduced[step]))] for step in (1, 2, 3)]
columns = ["step", "all-reduces, bytes of each"]
stamp = lockstep.live(job)
display(lockstep.table("The calls of DDP", columns, rows, stamp=stamp))
sizes = [8_192, 24_576, 49_152, 81_920, 122_880, 172_032]
buckets = lockstep.carry_on("buckets", buckets)
ours = [
    sum(sizes[number] for number in bucket)
    for bucket in buckets(sizes, 104_857, 104_857)
]
print("the buckets of exercise 2:", ours == reduced[3] and "the same", ours)
lockstep.compare(predicted=prediction, measured=len(reduced[3]))

# %% [markdown] id="ddp-explained"
# From the second step on they are the buckets of your function. In the first step there is a single bucket: DDP does
# not know yet in which order gradients get ready. It takes the order down, and makes the buckets anew. (The further
# notebook has a model for which that is not the reverse order of `parameters()`.)
#
# ## 3 · Overlap
#
# A gradient is ready long before the backward pass is over. PyTorch calls a function at that moment, if it is asked
# to:

# %% id="hook-shown"
def with_hooks():
    names, layers = {}, [torch.nn.Linear(2, 2) for _ in range(2)]
    model = torch.nn.Sequential(*layers)

    def ready(weight):  # weight.grad is complete now
        print("ready:", names[weight], "· gradient", weight.grad.flatten()[0])

    for name, weight in model.named_parameters():
        names[weight] = name
        weight.register_post_accumulate_grad_hook(ready)
    model(torch.ones(1, 2)).sum().backward()
    print("the backward pass is over")


lockstep.torchrun(with_hooks, nproc_per_node=1, init=False).ok

# %% [markdown] id="replicate-text"
# So a hook can start an all-reduce with `async_op=True`, which returns a handle. The backward pass goes on; after it
# one waits for all handles. (On a GPU the all-reduce runs on a stream of its own, lab 04.)
#
# All ranks must start the same calls in the same order (lab 03). But gradients may get ready in another order on
# another rank, and a parameter that this rank's rows did not use calls no hook at all. So a bucket is started when it
# is complete *and* all buckets before it have been started. What is missing after the backward pass counts as zeros.
#
# ### Exercise 3: your own DDP
#
# **Goal:** `replicate(model, groups)`; `groups` is a list of buckets, each a list of parameters, all of one dtype. It
# registers hooks, and returns a function `finish()`, which is called after each backward pass. When it returns, each
# parameter has in `.grad` the mean over the ranks' gradients. Each bucket is one all-reduce of exactly its bytes. They
# start in the order of `groups`, each as early as that allows; the program waits for them in `finish` only. It works
# for any number of steps. On a GPU at least 95 % as much of the all-reduces runs beside the backward pass as with the
# course's own answer; the check uses the virtual one.


# %% id="replicate"
import torch
import torch.distributed as dist


def gradients_of(group):
    """A bucket: the gradients of its parameters, as one flat tensor."""
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in group]
    return torch.cat([grad.flatten() for grad in grads])


def put_back(flat, group):
    pieces = flat.split([weight.numel() for weight in group])
    for weight, piece in zip(group, pieces, strict=True):
        weight.grad = piece.view_as(weight)


def replicate(model, groups):
    # BEGIN SOLUTION
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 0:
            # before it, the buckets before this one have been started
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in zip(groups, started, strict=True):
            handle.wait()
            put_back(flat.div_(dist.get_world_size()), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish
    # END SOLUTION


# %% id="replicate-check"
lockstep.check("replicate", replicate)

# %% [markdown] id="last-text"
# Now on GPUs: twelve layers of 4096 × 4096 in bfloat16, 33.5 MB each. The first bucket has one layer, and the next
# ones three, four and four. What cannot be hidden is the last bucket: it is complete when the backward pass is over.
#
# **Predict:** how many µs does its all-reduce take? (α = 11.5 µs, 320 GB/s.)

# %% id="last-prediction" tags=["prediction"]
# your number, in µs
prediction = 11.5 + 4 * 4096 * 4096 * 2 / 320e9 * 1e6


# %% id="overlap"
def in_order(layers):
    """One layer in the first bucket, from the end of the model on."""
    last_first = layers[::-1]
    ends = 0, 1, 4, 8, 12
    return [last_first[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def step(cuda, how):
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [torch.nn.Linear(4096, 4096, False, **shape) for _ in range(12)]
    model, weights = torch.nn.Sequential(*layers), [one.weight for one in layers]
    groups = in_order(weights)
    if how == "wrong order":
        groups = groups[::-1]
    finish = how != "after" and replicate(model, groups)
    x = torch.randn(4096, 4096, **shape)
    cuda.synchronize()
    dist.barrier()  # the models are there, on both ranks
    model(x).square().mean().backward()
    if not finish:
        for weight in weights[::-1]:
            dist.all_reduce(weight.grad)
    else:
        finish()
    cuda.synchronize()


# %% id="overlap-run"
replicate = lockstep.carry_on("replicate", replicate)
runs = {how: on_gpus(step, how) for how in ("after", "in hooks", "wrong order")}
seen = runs["in hooks"]
rows = [[how, *one.row()] for how, one in runs.items()]
columns = ["all-reduces", "together, µs", "of it exposed", "hidden"]
title = "12 layers in 4 buckets, by the trace"
display(lockstep.table(title, columns, rows, stamp=seen.stamp))
last = [one for one in seen.trace if one.rank == 0 and one.collective][-1]
seen.compare(prediction, last.duration / 1e3, "µs")

# %% id="overlap-timeline"
title = "Gradients after the backward pass; then in hooks"
lockstep.Timeline(seen.trace, before=runs["after"].trace, title=title)

# %% id="wrong-order-timeline"
title = "Buckets in the wrong order: nothing can start"
lockstep.Timeline(runs["wrong order"].trace, title=title)

# %% [markdown] id="overlap-explained"
# In the wrong order the first bucket is the one that is complete last, so all others wait for it, and little is
# hidden. That is why DDP takes the order down. (What is hidden in that case ran beside the copies out of the buckets.)
#
# ### Accumulation
#
# If a batch is too large for the memory, its gradients are added up over several **microbatches** before the optimizer
# steps. DDP communicates in *each* backward pass. Inside of `with model.no_sync():` it does not; the gradients add up
# on each rank.
#
# **Predict:** a DDP model has four buckets, as above. How many all-reduces do four microbatches make if the first
# three run inside of `no_sync()`?

# %% id="accumulate-prediction" tags=["prediction"]
prediction = 4  # those of the last microbatch


# %% id="accumulate"
def accumulate(careful):
    from contextlib import nullcontext

    widths = 64, 64, 64, 64, 64
    layers = [torch.nn.Linear(a, a, bias=False) for a in widths[1:]]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    model = DistributedDataParallel(model, bucket_cap_mb=0.01)
    x = torch.ones(4, 64, device=lockstep.device())
    for _ in range(2):  # then DDP has made its buckets
        model(x).sum().backward()
    dist.barrier()
    for number in range(4):
        here = model.no_sync() if careful and number < 3 else nullcontext()
        with here:
            model(x).sum().backward()


def reduces_after_barrier(job):
    names = [call.operation for call in job.calls[0]]
    return names[names.index("barrier") :].count("all_reduce")


both = [lockstep.torchrun(accumulate, way, **on_ranks) for way in (False, True)]
plain, careful = map(reduces_after_barrier, both)
print("all-reduces without no_sync:", plain, "· with it:", careful)
print(lockstep.live(both[1]))
lockstep.compare(predicted=prediction, measured=careful)

# %% [markdown] id="unused-text"
# (The record is that of section 2: each call with its bytes.)
#
# ### A bug to diagnose
#
# The next cell is **broken on purpose**: the model has a branch, and rank 1's rows do not use it. Look in the report
# for two things: in which call do the other ranks wait, and what does rank 1 say that they wait for?

# %% id="unused"
class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.sometimes = (torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, use):
        x = self.always(x)
        return self.sometimes(x) if use else x


def with_a_branch(**how):
    torch.manual_seed(0)
    model = DistributedDataParallel(Branch().to(lockstep.device()), **how)
    x = torch.ones(2, 4, device=lockstep.device())
    for _ in range(3):
        model(x, dist.get_rank() != 1).sum().backward()
    return float(sum(w.grad.double().sum() for w in model.parameters()))


options = {"nproc_per_node": NPROC, "backend": "gloo", "may_fail": True}
job = lockstep.torchrun(with_a_branch, **options)

# %% [markdown] id="unused-explained"
# Rank 1's bucket is never complete, as no hook is called for the branch, so rank 1 does not start the all-reduce that
# the others wait in. Its own backward pass ends without a word. DDP notices when the next forward begins, and names
# the parameters by their numbers. In a program with one step nobody would have said so.
#
# DDP has two switches for it. `find_unused_parameters=True` goes through the graph after each forward, and takes
# unused parameters as ready. `static_graph=True` is a promise: the same parameters are used in every step. (What each
# costs is measured in the further notebook.) Your `replicate` needs neither, as it sends zeros; but it cannot leave
# `.grad` as `None` where nobody used a parameter.
#
# **Break.** The first sitting ends here. You have a DDP of your own, and know what PyTorch's calls. What follows keeps
# less on each rank, and sends less; sections 4 and 6 start on their own.
#
# ## 4 · What a parameter weighs
#
# DDP keeps everything on each rank. With mixed precision and Adam that is, for each parameter: a weight and a gradient
# in bfloat16, for the products; and in float32 a *master* weight, so that small updates are not lost, and the two
# moments of Adam.
#
# **Predict:** how many bytes is that for each parameter?

# %% id="weighs-prediction" tags=["prediction"]
prediction = 2 + 2 + 3 * 4

# %% id="weighs"
def bytes_of_a_step():
    low = torch.nn.Linear(256, 256, bias=False, dtype=torch.bfloat16)
    master = torch.nn.Parameter(low.weight.detach().float())
    optimizer = torch.optim.Adam([master])
    low(torch.ones(4, 256, dtype=torch.bfloat16)).sum().backward()
    master.grad = low.weight.grad.float()  # lives for the step only
    optimizer.step()
    state = optimizer.state[master]
    moments = [state["exp_avg"], state["exp_avg_sq"]]
    kept = [low.weight, low.weight.grad, master, *moments]
    return sum(one.nbytes for one in kept) / master.numel()


job = lockstep.torchrun(bytes_of_a_step, nproc_per_node=1, init=False, show=False)
lockstep.compare(predicted=prediction, measured=job[0])

# %% [markdown] id="zero-text"
# N ranks keep all of it N times. **ZeRO** ([Rajbhandari and others, 2020](https://arxiv.org/abs/1910.02054)) gives each
# rank an N-th part of some of it, and has four stages:
#
# | stage | each rank has all of | and a part of |
# | --- | --- | --- |
# | 0 (DDP) | everything | – |
# | 1 | weights, gradients | master weights, moments |
# | 2 | weights | gradients, master weights, moments |
# | 3 (FSDP) | – | everything |
#
# ### Exercise 4: bytes a rank
#
# **Goal:** `bytes_per_rank(parameters, ranks, stage)` returns how many bytes a rank keeps of weights, gradients, master
# weights and moments, as above. `parameters` is a multiple of `ranks`.


# %% id="bytes_per_rank"
def bytes_per_rank(parameters, ranks, stage):
    # BEGIN SOLUTION
    whole = [2, 2, 12]  # weights, gradients, what the optimizer has
    for part in range(stage):
        # after it, so many of the last ones are divided
        whole[2 - part] /= ranks
    return parameters * sum(whole)
    # END SOLUTION


# %% id="bytes_per_rank-check"
lockstep.check("bytes_per_rank", bytes_per_rank)

# %% [markdown] id="play-text"
# Change the numbers in the next cell: the parameters of a model, and which ranks to look at. A GPU has 80 GB (A100,
# H100) or 141 GB (H200), and activations want a part of it.

# %% id="play"
PARAMETERS, RANKS = 7_000_000_000, (1, 2, 4, 8, 16, 32, 64)
bytes_per_rank = lockstep.carry_on("bytes_per_rank", bytes_per_rank)
kept = {
    f"stage {stage}": [(n, bytes_per_rank(PARAMETERS, n, stage)) for n in RANKS]
    for stage in range(4)
}
for name, size in (("an H100", 80e9), ("an H200", 141e9)):
    kept[name] = [(n, size) for n in RANKS]
lockstep.chart(
    kept,
    x="ranks",
    y="each keeps (bytes)",
    alt="Bytes that a rank keeps of 7 billion parameters over the ranks: stage "
    "0 stays at 112 GB, stage 3 halves with each doubling.",
    stamp=lockstep.simulated("16 bytes a parameter, divided by stage"),
)

# %% [markdown] id="shard-text"
# ## 5 · Sharding by hand
#
# In stage 3 a rank has only a part of a layer's weight, its **shard**. A layer's life has five steps:
#
# 1. forward: an all-gather puts all ranks' shards together;
# 2. the layer computes with the whole weight, and drops it;
# 3. backward: the weight is needed again, and so is the all-gather;
# 4. the weight's gradient is computed, and a reduce-scatter leaves each rank its part of the sum over the ranks;
# 5. the optimizer changes the shard.
#
# **Predict:** a model has 1,200 kB of weights, and gradients as large. Under DDP a rank sends 2(N − 1)/N of that, by
# one all-reduce (lab 03). How many kB does each of `NPROC` ranks send in a step, if the model is sharded?

# %% id="volume-prediction" tags=["prediction"]
prediction = 3 * (NPROC - 1) / NPROC * 1200  # two all-gathers, a reduce-scatter

# %% [markdown] id="sharded-text"
# Autograd would keep the whole weight from the forward to the backward. So the layer is an `autograd.Function`, which says
# itself what is kept: `ctx.save_for_backward`. `forward` gets what `apply` is given; `backward` gets the gradient of
# the result, and returns one for each argument of `apply`. `dist.reduce_scatter(part,
# pieces)` takes a list with a piece for each rank.
#
# ### Exercise 5: a sharded layer
#
# **Goal:** `sharded_linear(x, shard)` returns `x @ whole.T`, where the rows of `whole` are the shards of all ranks, in
# the order of the ranks. The backward pass gives `x` its gradient, and gives `shard` its part of the *mean* over the
# ranks' gradients of `whole`. Forward and backward together are two all-gathers and one reduce-scatter; between
# forward and backward nothing that is as large as `whole` is kept. `x` has two dimensions.


# %% id="sharded_linear"
import torch
import torch.distributed as dist


def gathered(shard):
    """The whole weight: all ranks' shards, one below the other."""
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard)
    return torch.cat(pieces)


class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        # BEGIN SOLUTION
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, part = dist.get_world_size(), torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        return grad @ gathered(shard), part / n
        # END SOLUTION


def sharded_linear(x, shard):
    return ShardedLinear.apply(x, shard)


# %% id="sharded_linear-check"
lockstep.check("sharded_linear", sharded_linear)

# %% [markdown] id="same-text"
# Does it train as DDP does? Three layers, 1,200 kB of weights, three steps of SGD: once with your layer, once with
# DDP, from the same weights and on the same rows. The sums over ranks may be added up in another order; that is all.

# %% id="same"
sharded_linear = lockstep.carry_on("sharded_linear", sharded_linear)
replicate = lockstep.carry_on("replicate")


def trained(sharded):
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    weights = [torch.randn(400, 250) / 16, torch.randn(200, 400) / 20]
    weights = [one.to(device) for one in [*weights, torch.randn(600, 200) / 14]]
    rows = torch.randn(8 * n, 250).to(device).chunk(n)[rank]
    model = torch.nn.ParameterList(
        one.chunk(n)[rank].clone() if sharded else one for one in weights
    )
    if not sharded:
        finish = replicate(model, [list(model)[::-1]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        y = rows
        for weight in model:
            y = torch.tanh(sharded_linear(y, weight) if sharded else y @ weight.T)
        optimizer.zero_grad()
        y.square().mean().backward()
        if not sharded:
            finish()
        optimizer.step()
    return [one.detach().cpu() for one in model]


# %% id="same-run"
def kilobytes_sent(calls, n):
    """What a rank sends in these calls, if each is a ring (lab 03)."""
    total = 0
    for call in calls:
        if call.operation == "all_reduce":
            total += 2 * (n - 1) / n * call.bytes
        elif call.operation.startswith("reduce_scatter"):
            total += (n - 1) / n * call.bytes
        elif call.operation.startswith("all_gather"):
            total += (n - 1) * call.bytes  # the bytes of a shard
    return total / 1000


def largest_difference(shards, whole):
    """Of any weight: each rank's shards, and what one rank has of DDP."""
    off = 0.0
    for rank, mine in enumerate(shards):
        for shard, weight in zip(mine, whole, strict=True):
            part = weight.chunk(len(shards))[rank]
            off = max(off, float((shard - part).abs().max()))
    return off


ours, ddp = (lockstep.torchrun(trained, way, **on_ranks) for way in (True, False))
print("no weight differs by 1e-6:", largest_difference(ours.results, ddp[0]) < 1e-6)
sent = [kilobytes_sent(job.calls[0], NPROC) / 3 for job in (ours, ddp)]
print(f"kB a rank sends in a step: sharded {sent[0]:,.0f}, DDP {sent[1]:,.0f}")
print(lockstep.live(ours))
lockstep.compare(predicted=prediction, measured=round(sent[0], 6))

# %% [markdown] id="fsdp-text"
# ### FSDP2
#
# PyTorch's `fully_shard(module)` does this to a module of any kind: it shards its parameters, gathers them before the
# forward and again before the backward, and reduce-scatters the gradients. One call shards all parameters of the
# module that no inner module has sharded before. So it is called from the inside out:
#
#     for block in model:
#         fully_shard(block)
#     fully_shard(model)
#
# The next cell does so with eight layers, in three ways: one root only, so that all of the model is gathered at once;
# block by block; and block by block with `reshard_after_forward=False`, where a block stays gathered until its
# backward. A tool of PyTorch's own, `FSDPMemTracker`, notes how many bytes are alive at most.

# %% id="fsdp"
def sharded_by_torch(ways):
    """The peak in bytes of a step, for each way; a barrier follows each."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.fsdp import fully_shard

    peaks, device = {}, lockstep.device()
    for way in ways:
        layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(8)]
        model = torch.nn.Sequential(*layers).to(device)
        keep = {"reshard_after_forward": way != "gathered until its backward"}
        for block in model if way != "one root" else ():
            fully_shard(block, **keep)
        fully_shard(model, **keep)
        tracker = FSDPMemTracker(model)
        tracker.track_inputs((torch.ones(4, 256, device=device),))
        with tracker:
            model(torch.ones(4, 256, device=device)).sum().backward()
        peaks[way] = tracker.get_tracker_snapshot("peak")[device]["Total"]
        dist.barrier()
    return peaks


WAYS = "one root", "block by block", "gathered until its backward"
job = lockstep.torchrun(sharded_by_torch, WAYS, **on_ranks)

# %% id="fsdp-calls"
calls_of, now = {way: [] for way in job[0]}, iter(job[0])
way = next(now)
for call in job.calls[0]:
    if call.operation == "barrier":
        way = next(now, None)
    elif call.operation.startswith(("all_gather", "reduce_scatter")):
        calls_of[way].append(call)
rows, model_kB = [], 8 * 256 * 256 * 4 / 1000
for way, calls in calls_of.items():
    short = ["G" if c.operation[0] == "a" else "S" for c in calls]
    sent = f"{kilobytes_sent(calls, NPROC):,.0f}"
    peak = f"{job[0][way] / 1000:,.0f}"
    rows.append([way, "".join(short), sent, peak])
columns = ["gathered", "calls (G: all-gather, S: reduce-scatter)"]
columns += ["kB sent a rank", "kB alive at most"]
title = f"fully_shard: a step of a model of {model_kB:,.0f} kB"
lockstep.table(title, columns, rows, stamp=lockstep.live(job))

# %% [markdown] id="fsdp-claim-text"
# The calls are those of your layer: two all-gathers and one reduce-scatter for each block. In the backward FSDP
# gathers a block ahead, so two G stand before the first S.
#
# ### Claim: "sharding everything costs half as much communication again"
#
# [Section 7 of the ZeRO paper](https://arxiv.org/abs/1910.02054) computes it: at most 1.5 times the volume of plain data
# parallelism. **Guess:** does each of the three ways send 1.5 times what DDP would?

# %% id="volume-guess" tags=["guess"]
guess = "depends"

# %% id="fsdp-claim"
ddp = 2 * (NPROC - 1) / NPROC * model_kB
times = {w: kilobytes_sent(calls, NPROC) / ddp for w, calls in calls_of.items()}
ok = [abs(one - 1.5) < 0.01 for one in times.values()]
lockstep.claim(
    "Sharding everything costs half as much communication again.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(f"{way}: {one:.2f} times DDP's" for way, one in times.items()),
    stamp=lockstep.live(job),
)

# %% [markdown] id="prefetch-text"
# If a block stays gathered, its backward needs no second all-gather; but then all blocks are there at the end of the
# forward. What does the gathering cost in *time*? That needs a GPU. The next cell is a forward pass by hand, of eight
# layers of 4096 × 4096 in bfloat16 on two GPUs: each block is gathered when it is needed, or one block ahead, while the
# one before it computes.

# %% id="prefetch"
def forward(cuda, ahead):
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    shards = [torch.randn(2048, 4096, **shape) for _ in range(8)]
    x, n = torch.randn(4096, 4096, **shape), dist.get_world_size()

    def gather(number):
        """The block's weight, and a handle to wait for."""
        whole = torch.empty(4096, 4096, **shape)
        pieces, shard = list(whole.chunk(n)), shards[number]
        return whole, dist.all_gather(pieces, shard, async_op=True)

    cuda.synchronize()
    dist.barrier()
    coming = [gather(number) for number in range(ahead)]
    for number in range(8):
        if number + ahead < 8:
            coming.append(gather(number + ahead))
        whole, handle = coming.pop(0)
        handle.wait()
        x = x @ whole.T
    cuda.synchronize()
    return cuda.max_memory_allocated() / 1e6


runs = {ahead: on_gpus(forward, ahead) for ahead in (0, 1, 8)}
rows = [[n, *one.row(), f"{one.result:,.0f}"] for n, one in runs.items()]
columns = ["blocks ahead", "all-gathers, µs", "exposed", "hidden", "peak, MB"]
stamp = runs[1].stamp
lockstep.table("Eight blocks gathered by hand", columns, rows, stamp=stamp)

# %% id="prefetch-timeline"
title = "Each block gathered when needed; then one block ahead"
lockstep.Timeline(runs[1].trace, before=runs[0].trace, title=title)

# %% [markdown] id="prefetch-explained"
# One block ahead is enough: all but the first all-gather are hidden, for one block more in memory. Further ahead
# nothing is gained, and the memory grows to that of the whole model. FSDP2 gathers one block ahead by itself on a GPU:
# in the forward because its host runs ahead of the device, in the backward by an explicit order.
#
# ## 6 · Compression
#
# A gradient has many small numbers. **Top-K** sends only the largest, say the hundredth part, as values and their
# places. What it leaves out is not lost if the rank keeps it, and adds it to the next step's gradient: the
# **residual**, or *error feedback*. The places differ from rank to rank, so nothing can be added up on the way: each
# rank sends its values (4 bytes each) and places (8 bytes each) to all others, by all-gathers.
#
# DDP lets you replace what it does with a bucket: `model.register_comm_hook(state, hook)`. It calls `hook(state,
# bucket)` for each complete bucket: `bucket.buffer()` is a flat tensor with the gradients, `bucket.index()` the bucket's
# number. The hook returns a `torch.futures.Future`, whose result takes the buffer's place. This one does what DDP does
# without a hook:

# %% id="hook"
def plain_hook(state, bucket):
    n = dist.get_world_size()
    state.append((bucket.index(), bucket.buffer().numel()))
    work = dist.all_reduce(bucket.buffer() / n, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def hooked():
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    model, state = DistributedDataParallel(model, bucket_cap_mb=0.02), []
    model.register_comm_hook(state, plain_hook)
    for _ in range(2):
        model(torch.ones(4, 64, device=lockstep.device())).sum().backward()
    return state


print(*lockstep.torchrun(hooked, **on_ranks)[0])

# %% [markdown] id="top_k-text"
# The first pair is the first step's only bucket; then DDP made its buckets anew, and bucket 0 has another length. A
# residual of the first step does not fit it, and is dropped.
#
# ### Exercise 6: Top-K with error feedback
#
# **Goal:** `top_k(state, bucket)` is such a hook. `state` is a dict: `state["share"]` is the part that is sent, and
# `state["residuals"]` is an empty dict at first, in which the hook may keep what it likes. For each bucket: add the
# residual, if there is one of this length. Of a bucket of *P* numbers, send the int(share · *P*) that are largest in
# absolute value, one at least, and keep the others as the residual. The result is the sum of what all ranks sent,
# divided by the number of ranks. No rank sends more than 12 bytes for each number that it sends (to each other rank),
# and the buffer is not changed. `done(tensor)` makes the future.


# %% id="top_k"
import torch
import torch.distributed as dist


def done(tensor):
    """A future that has its result."""
    devices = [tensor.device] if tensor.is_cuda else None
    future = torch.futures.Future(devices=devices)
    future.set_result(tensor)
    return future


def top_k(state, bucket):
    # BEGIN SOLUTION
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    count = max(1, int(state["share"] * len(gradient)))
    places = gradient.abs().topk(count).indices
    values = gradient[places]
    mean = torch.zeros_like(gradient)
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    all_values = [torch.empty_like(values) for _ in range(n)]
    all_places = [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    for values, places in zip(all_values, all_places, strict=True):
        mean[places] += values / n
    return done(mean)
    # END SOLUTION


# %% id="top_k-check"
lockstep.check("top_k", top_k)

# %% [markdown] id="learns-text"
# Which hook still learns? A small network learns a function of 32 numbers, in 150 steps of SGD: with DDP as it is, with
# Top-K of a hundredth of the gradient, the same without a residual, and with two hooks of PyTorch: one that sends
# float16, and [PowerSGD](https://arxiv.org/abs/1905.13727), which sends two thin matrices whose product is near the
# gradient.
#
# ### Claim: "almost all of the gradient exchange is redundant"
#
# The abstract of [Deep Gradient Compression](https://arxiv.org/abs/1712.01887) says so of 99.9 %, and names what it
# adds to Top-K so that nothing is lost. Here 99 % are left out. We say that a hook learns as well if its loss at the end
# is at most 1.5 times plain DDP's. **Guess:** with a residual and without, does Top-K learn as well?

# %% id="learns-guess" tags=["guess"]
guess = "depends"


# %% id="learns"
def train(hook):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    torch.manual_seed(0)
    device, rank, n = lockstep.device(), dist.get_rank(), dist.get_world_size()
    layers = torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    state = {"share": 0.01, "residuals": {}}
    if hook == "Top-K":
        model.register_comm_hook(state, top_k)
    elif hook == "Top-K, no residual":
        forget = lambda state, bucket: top_k(state | {"residuals": {}}, bucket)
        model.register_comm_hook(state, forget)
    elif hook == "float16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "PowerSGD":
        state = power.PowerSGDState(None, 1, start_powerSGD_iter=2)
        model.register_comm_hook(state, power.powerSGD_hook)
    rows = torch.randn(64 * n, 32).to(device)
    target = torch.sin(rows @ torch.ones(32, 1, device=device) / 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(150):
        off = model(rows.chunk(n)[rank]) - target.chunk(n)[rank]
        optimizer.zero_grad()
        off.square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        return float((model.module(rows) - target).square().mean())

top_k = lockstep.carry_on("top_k", top_k)
hooks = "none", "Top-K", "Top-K, no residual", "float16", "PowerSGD"
jobs = {hook: lockstep.torchrun(train, hook, **on_ranks) for hook in hooks}

# %% id="learns-claim"
loss = {hook: job[0] for hook, job in jobs.items()}
rows = []
for hook, job in jobs.items():
    kB = sum(c.bytes for c in job.calls[0]) / 150e3
    rows.append([hook, f"{loss[hook]:.4f}", f"{kB:.1f}"])
stamp = lockstep.live(jobs["none"])
columns = ["hook", "loss at the end", "kB a rank sends in a step"]
display(lockstep.table("150 steps of SGD", columns, rows, stamp=stamp))
well = {hook: loss[hook] <= 1.5 * loss["none"] for hook in hooks[1:3]}
lockstep.claim(
    "Almost all of the gradient exchange is redundant.",
    guess=guess,
    verdict="holds" if all(well.values()) else "depends",
    because="; ".join(
        f"{hook}: {loss[hook] / loss['none']:.1f} times the loss of plain DDP"
        for hook in well
    ),
    stamp=stamp,
)

# %% [markdown] id="pays-text"
# With the residual every number is sent sooner or later; without it the small ones never are, and the weights that need
# them do not learn. (PowerSGD keeps a residual, too.)
#
# ### When does it pay?
#
# Compression saves bytes and costs time, which no all-reduce hides: the bucket is complete, and nobody can send it yet.
# Take a bucket of 25 MB (6,250,000 float32) on 8 ranks, and links of 25 GB/s, as between nodes. An all-reduce sends
# 2 · 7/8 of the bucket. Top-K of a hundredth sends 7 times 12 bytes for each of 62,500 numbers. (α is small beside both.)
#
# **Predict:** how many µs may compressing and unpacking take at most, if Top-K is to be faster?

# %% id="pays-prediction" tags=["prediction"]
# your number, in µs
prediction = (2 * 7 / 8 * 25e6 - 7 * 12 * 62_500) / 25e9 * 1e6


# %% id="pays"
def saved(bandwidth, ranks=8, places=6_250_000, share=0.01):
    """µs that Top-K saves of an all-reduce, by rings of this bandwidth."""
    line = lockstep.cost.Line(alpha=0, beta=1 / bandwidth)
    dense = lockstep.cost.ring_all_reduce(ranks, 4 * places, line)
    count = ranks * 12 * share * places  # of all ranks
    return 1e6 * (dense - lockstep.cost.ring_all_gather(ranks, count, line))


print(lockstep.simulated("rings by α and β"))
lockstep.compare(predicted=prediction, computed=saved(25e9), unit="µs")

# %% [markdown] id="recap"
# ## Recap
#
# - The mean over ranks is the gradient of the whole batch if parts are equal, the loss is a mean, and no layer looks at
#   its whole batch.
# - DDP puts gradients into buckets in the order in which they get ready, and starts a bucket's all-reduce in a hook. What
#   cannot be hidden is the last bucket. A rank that does not use a parameter must say so, or all others wait.
# - With Adam and mixed precision a parameter weighs 16 bytes; ZeRO divides 12, 14 or all 16 of them by the ranks.
# - A sharded layer is gathered twice and its gradient reduce-scattered once: 3(N − 1)/N of the model, against 2(N − 1)/N.
#   Gathered a block ahead, the all-gathers are hidden, for one block of memory.
# - Top-K needs a residual. Compression pays where links are slow.
#
# **What is still slow:** each rank computes all of a layer. If a single layer is too large for that, or the batch too
# small to be divided, the layer itself must be cut: tensor parallelism.

# %% id="progress" tags=["unpublished"]
lockstep.progress("08")
