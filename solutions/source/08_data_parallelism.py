# %% [markdown] id="title"
# # 08 · Data parallelism
#
# **Two sittings, 90 and 85 minutes · needs: CPU** (the same cells use GPUs and NCCL where there are some; times on GPUs
# come from a virtual GPU where there are none)
#
# In data parallelism each rank works on its own part of the batch. Afterwards you can
#
# - say when the mean over ranks is the gradient of the whole batch, and when it is not,
# - group gradients into buckets, and predict what that saves,
# - write a small DDP that communicates while the backward pass runs,
# - compute how many bytes a parameter takes in each stage of ZeRO, and shard a layer by hand,
# - recognise in the record what `DistributedDataParallel` (DDP) and `fully_shard` (FSDP2) call.
#
# Do labs 03 (`all_reduce`, `all_gather`, `reduce_scatter`) and 04 (streams and overlap) first.

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

# %% id="progress" tags=["unpublished"]
lockstep.progress("08")

# %% [markdown] id="machine-text"
# The line above describes the virtual GPU of lab 04, which stands in where there is no GPU. The next cell (its code is
# folded) defines `on_gpus(program, …)`: it runs `program(cuda, …)` on two ranks with one GPU each, and returns
# their timelines.

# %% id="on-gpus" tags=["plumbing"]
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lockstep.base.provenance import Provenance


def _on_rank(program, args, values):
    if dist.get_backend() != "nccl":
        with lockstep.virtual.device("H200", values=values) as cuda:
            return program(cuda, *args), lockstep.virtual.trace()
    program(torch.cuda, *args)  # the first call loads kernels
    result = program(torch.cuda, *args)  # not profiled, as profiling takes time
    second = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
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
        """Rank 0's collectives: µs, µs of it exposed, the share hidden."""
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
# Each rank computes the gradient for *its part* of the batch, and then the ranks average. The goal is the gradient
# that one process would compute for all rows together.
#
# Take a model with a single weight *w*, and as the loss the mean of *x·w* over the rows. Its gradient is the mean of
# *x*. All rows of rank *r* are 10(*r* + 1). Rank 0 has **three** rows of 10; every other rank has one row: rank 1 a
# 20, rank 2 a 30, and so on. The cell prints each rank's gradient, and their mean.
#
# **Predict:** which gradient would one process compute for all rows?

# %% id="whole-prediction" tags=["prediction"]
# your number, or a formula with NPROC
prediction = (3 * 10 + sum(10 * (r + 1) for r in range(1, NPROC))) / (NPROC + 2)


# %% id="whole"
def gradient_of(x):
    """The gradient of this rank's rows, and the mean over ranks."""
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
rows, one_rank = torch.tensor(rows)[:, None], on_ranks | {"nproc_per_node": 1}
whole = lockstep.torchrun(gradient_of, rows, **one_rank)
print("gradients of the parts:", *(own for own, _ in parts.results))
print("their mean:", parts[0][1])
lockstep.compare(predicted=prediction, measured=round(whole[0][0], 4))

# %% [markdown] id="whole-explained"
# The mean over ranks gives rank 0's three rows the weight of one. It equals the gradient of the whole batch only if
#
# - all parts have the same number of rows, or each rank's gradient is weighted by its rows,
# - the loss is a *mean* over rows,
# - all ranks start with the same parameters and buffers.
#
# Real models add four complications. A **frozen** parameter (`requires_grad` is False) has no gradient. A **tied**
# parameter has two names and one gradient; `model.parameters()` lists it once. A parameter that this rank's rows did
# not use has `None` in `.grad`, while another rank may have numbers there. And a rank may have **no rows** at all.
#
# ### Exercise 1: average gradients
#
# **Goal:** `average_gradients(model, rows)` is called on all ranks after the backward pass. On each rank `.grad` is the
# gradient of the mean over its own `rows` rows (or `None`). Afterwards `.grad` is on every rank the gradient of the mean
# over the rows of *all* ranks, for every parameter that some rank used; a `None` counts as zeros. Frozen parameters
# keep `None`. Where no rank used a parameter, `None` and zeros are both right. At least one rank has rows. Use any
# collectives.


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
# Many introductions explain DDP this way; PyTorch's
# [documentation of DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
# names exceptions. The cell runs DDP in four cases, each time beside one process that has the same rows. **Guess**
# (`"holds"`, `"does not hold"`, or `"depends"`: true in some of the cases).

# %% id="batch-guess" tags=["guess"]
guess = "depends"


# %% id="batch"
def gradients(case):
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    norm = "BatchNorm" in case
    middle = torch.nn.BatchNorm1d(8) if norm else torch.nn.Tanh()
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


# %% id="batch-claim"
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
# It holds for a mean and equal parts. With a sum, DDP divides by the number of ranks where one process does not.
# BatchNorm computes its statistics from the rows that it sees, which are one rank's own (`SyncBatchNorm` uses those of
# all ranks). The third condition is DDP's own work: when you wrap a model, DDP broadcasts
# parameters and buffers from rank 0.

# %% [markdown] id="small-text"
# ## 2 · Buckets
#
# A model with 60 weights has 60 gradients. Each could have an all-reduce of its own, or several could travel together
# in one: a **bucket**. An all-reduce of *s* bytes takes α + β*s* (lab 03). For two virtual H200s, α is 11.5 µs and 1/β is
# 320 GB/s.
#
# **Predict:** how many µs do 60 all-reduces of 262,144 bytes take, one after the other? (On paper, too: four of
# 3,932,160 bytes.)

# %% id="small-prediction" tags=["prediction"]
# your number, in µs
prediction = 60 * (11.5 + 262_144 / 320e9 * 1e6)


# %% id="small"
def many(cuda, count):
    """µs for 60 gradients together, in so many all-reduces."""
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
# Few calls are better than many, and one call would be best if nothing else were going on. But the backward pass
# produces gradients one after the other, and a bucket can only be sent when it is complete (section 3). So DDP fills
# buckets in the order in which gradients become ready, and closes a bucket when it has enough bytes. The backward pass
# runs from the model's end to its beginning: the *last* parameter's gradient is ready first.
#
# The first bucket may be smaller than the others: nothing can be sent before it is complete.
# (DDP's limits are 1 MiB for the first bucket and 25 MiB for the others; `bucket_cap_mb=` sets one limit for all.)
#
# ### Exercise 2: fill the buckets
#
# **Goal:** `buckets(sizes, cap, first_cap)` gets the bytes of each parameter, in the order of `model.parameters()`.
# It returns a list of buckets, the first to be sent first. Each bucket is a list of parameter numbers (0 is the first
# of `sizes`), in the order in which their gradients become ready. A bucket is closed as soon as it has `cap` bytes or
# more; the first bucket, as soon as it has `first_cap` or more. The last bucket has what is left. No bucket is empty.


# %% id="buckets"
def buckets(sizes, cap, first_cap):
    # BEGIN SOLUTION
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
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
# Does PyTorch's DDP do the same? Its calls are in the record. The model below has six weights of 8,192, 24,576, 49,152,
# 81,920, 122,880 and 172,032 bytes; `bucket_cap_mb=0.1` closes every bucket, the first one too, at 104,857 bytes.
#
# **Predict:** how many all-reduces does a step have? (Apply `buckets`, on paper or by a call.)

# %% id="ddp-prediction" tags=["prediction"]
prediction = 4  # [5], [4], [3, 2], [1, 0]


# %% id="ddp"
def steps_of_ddp():
    """The times at which three steps begin."""
    import time

    torch.manual_seed(0)
    widths = [32 * number for number in range(1, 8)]
    layers = [torch.nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    model, began = DistributedDataParallel(model, bucket_cap_mb=0.1), []
    for _ in range(3):
        began.append(time.perf_counter())
        model(torch.randn(4, 32, device=lockstep.device())).sum().backward()
    return began


ddp_job = lockstep.torchrun(steps_of_ddp, **on_ranks)
reduced = [[] for _ in range(4)]  # before the first step, and in each of three
for call in ddp_job.calls[0]:
    step = sum(call.start > begin for begin in ddp_job[0])
    if call.operation == "all_reduce":
        reduced[step].append(call.bytes)

# %% id="ddp-compared"
rows = [[step, ", ".join(map(str, reduced[step]))] for step in (1, 2, 3)]
columns = ["step", "all-reduces, bytes of each"]
stamp = lockstep.live(ddp_job)
display(lockstep.table("The calls of DDP", columns, rows, stamp=stamp))
sizes = [8_192, 24_576, 49_152, 81_920, 122_880, 172_032]
buckets = lockstep.carry_on("buckets", buckets)
found = buckets(sizes, 104_857, 104_857)
ours = [sum(sizes[number] for number in bucket) for bucket in found]
print("the buckets of exercise 2:", ours == reduced[3] and "the same", ours)
lockstep.compare(predicted=prediction, measured=len(reduced[3]))

# %% [markdown] id="ddp-explained"
# From the second step on, DDP's buckets are those of your function. The first step has a single bucket, because DDP does
# not know yet in which order gradients become ready. It records that order, and rebuilds its buckets.

# %% [markdown] id="hook-text"
# ## 3 · Overlap
#
# A gradient is ready long before the backward pass ends. A **hook** is a function that PyTorch calls at
# that moment:


# %% id="hook-shown"
def with_hooks():
    names, layers = {}, [torch.nn.Linear(2, 2) for _ in range(2)]
    model = torch.nn.Sequential(*layers)

    def ready(weight):  # weight.grad is complete now
        print("ready:", names[weight], "· its shape", tuple(weight.grad.shape))

    for name, weight in model.named_parameters():
        names[weight] = name
        weight.register_post_accumulate_grad_hook(ready)
    model(torch.ones(1, 2)).sum().backward()
    print("the backward pass is over")


lockstep.torchrun(with_hooks, nproc_per_node=1, init=False).ok

# %% [markdown] id="replicate-text"
# So a hook can start an all-reduce with `async_op=True`, which returns a handle. The backward pass goes on, and after it
# the program waits for all handles. (On a GPU the all-reduce runs on a stream of its own, lab 04.)
#
# All ranks must start the same calls in the same order (lab 03). But gradients may become ready in another order on
# another rank, and a parameter that this rank's rows did not use calls no hook at all. The remedy: start a bucket when
# it is complete *and* all buckets before it have been started. What is missing after the backward pass counts as zeros.
#
# ### Exercise 3: your own DDP
#
# **Goal:** `replicate(model, groups)` gets a list of buckets, each a list of parameters. Fill in its three functions:
#
# - `start()` starts every bucket that is complete and whose turn it is, with *one* all-reduce of exactly the bucket's bytes;
# - `ready(weight)` is the hook of each parameter;
# - `finish()` is called after each backward pass. It starts the buckets that are left, waits for all, and puts the
#   *mean* over the ranks into each `.grad`. Then everything is ready for the next step.
#
# Buckets start in the order of `groups`, each as early as that allows, and the program waits in `finish` only. The check
# uses a virtual GPU, too, where two thirds of the all-reduces can be hidden; at least 95 % of that must be.


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
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]  # gradients of each bucket
    started = []  # a flat tensor and a handle for each bucket, in order

    def start():
        # BEGIN SOLUTION
        while len(started) < len(groups) and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))
        # END SOLUTION

    def ready(weight):
        # BEGIN SOLUTION
        missing[bucket_of[weight]] -= 1
        start()
        # END SOLUTION

    def finish():
        # BEGIN SOLUTION
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in zip(groups, started, strict=True):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]
        # END SOLUTION

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% id="replicate-check"
lockstep.check("replicate", replicate)

# %% [markdown] id="break-text"
# **Break.** The first sitting ends here. You have written a DDP. In the second sitting you see what it hides, break it, and
# then keep less than the whole model on each rank.

# %% [markdown] id="last-text"
# ## 4 · What is hidden
#
# Now your DDP runs on GPUs: twelve layers of 4096 × 4096 in bfloat16, 33.5 MB each. The first bucket has one layer, the others
# have three, four and four. The last bucket cannot be hidden: it is complete when the backward pass is over.
#
# **Predict:** how many µs does its all-reduce take? (α = 11.5 µs, 320 GB/s.)

# %% id="last-prediction" tags=["prediction"]
# your number, in µs
prediction = 11.5 + 4 * 4096 * 4096 * 2 / 320e9 * 1e6


# %% id="overlap"
replicate = lockstep.carry_on("replicate")


def in_order(weights):
    """One weight in the first bucket, from the end of the model on."""
    last_first = weights[::-1]
    return [last_first[a:b] for a, b in pairwise([0, 1, 4, 8, 12])]


def overlapped_step(cuda, how):
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [torch.nn.Linear(4096, 4096, False, **shape) for _ in range(12)]
    model = torch.nn.Sequential(*layers)
    weights = [layer.weight for layer in layers]
    groups = in_order(weights)
    if how == "wrong order":
        groups = groups[::-1]
    finish = how != "at the end" and replicate(model, groups)
    x = torch.randn(4096, 4096, **shape)
    cuda.synchronize()
    dist.barrier()  # both ranks have their models
    model(x).square().mean().backward()
    if not finish:
        for weight in weights[::-1]:
            dist.all_reduce(weight.grad)
    else:
        finish()
    cuda.synchronize()


# %% id="overlap-run"
runs = {}
for how in ("at the end", "in hooks", "wrong order"):
    runs[how] = on_gpus(overlapped_step, how)
in_hooks = runs["in hooks"]
rows = [[how, *one.row()] for how, one in runs.items()]
columns = ["all-reduces", "together, µs", "of it exposed", "hidden"]
title = "The gradients of 12 layers, by the trace"
display(lockstep.table(title, columns, rows, stamp=in_hooks.stamp))
last = [one for one in in_hooks.trace if one.rank == 0 and one.collective][-1]
in_hooks.compare(prediction, last.duration / 1e3, "µs")

# %% id="overlap-timeline"
title = "Before: one by one at the end; after: buckets in hooks"
one_by_one = runs["at the end"].trace
display(lockstep.Timeline(in_hooks.trace, before=one_by_one, title=title))
title = "Buckets in the wrong order: nothing can start"
lockstep.Timeline(runs["wrong order"].trace, title=title)

# %% [markdown] id="overlap-explained"
# In hooks, all but the last bucket runs beside the backward pass, and some of the last one beside the divisions of the
# other buckets. In the wrong order the first bucket is the one that is complete last. All others wait for it, and
# nothing but these divisions hides anything. That is why DDP records the order.

# %% [markdown] id="accumulate-text"
# ## 5 · Steps that differ
#
# If a batch is too large for the memory, its gradients are added up over several **microbatches** before the optimizer
# steps. DDP communicates in *each* backward pass. Inside `with model.no_sync():` it does not; the gradients add up on
# each rank.
#
# **Predict:** a DDP model has four buckets. How many all-reduces do four microbatches make if the first three run
# inside `no_sync()`?

# %% id="accumulate-prediction" tags=["prediction"]
prediction = 4  # those of the last microbatch


# %% id="accumulate"
def accumulate(careful):
    from contextlib import nullcontext

    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    model = DistributedDataParallel(model, bucket_cap_mb=0.01)
    x = torch.ones(4, 64, device=lockstep.device())
    for _ in range(2):  # then DDP has its four buckets
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
print(lockstep.live(both[1]))
lockstep.compare(predicted=prediction, measured=careful)

# %% [markdown] id="accumulate-claim-text"
# ### Claim: "without no_sync, accumulating costs as many times the communication as there are microbatches"
#
# [Hugging Face's guide](https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization) warns of
# communication in every backward pass. **Guess:** is it four times as many all-reduces in the cell above?

# %% id="accumulate-guess" tags=["guess"]
guess = "holds"

# %% id="accumulate-claim"
lockstep.claim(
    "Without no_sync, N microbatches cost N times the communication.",
    guess=guess,
    verdict="holds" if plain == 4 * careful else "does not hold",
    because=f"4 microbatches: {plain} all-reduces, with no_sync {careful}",
    stamp=lockstep.live(both[0]),
)

# %% [markdown] id="unused-text"
# ### A bug to diagnose
#
# The next cell is **broken on purpose**: the model has a branch, and rank 1's rows do not use it. Look in the report
# for two things: in which call do the other ranks wait, and what does rank 1 raise?


# %% id="unused"
class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.sometimes = (torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, use):
        x = self.always(x)
        return self.sometimes(x) if use else x


def with_a_branch():
    model = DistributedDataParallel(Branch().to(lockstep.device()))
    x = torch.ones(2, 4, device=lockstep.device())
    for _ in range(3):
        model(x, dist.get_rank() != 1).sum().backward()


options = {"nproc_per_node": NPROC, "backend": "gloo", "may_fail": True}
job = lockstep.torchrun(with_a_branch, **options)

# %% [markdown] id="unused-explained"
# Rank 1 calls no hook for the branch, so its bucket is never complete, and it does not start the all-reduce that
# the others wait in. Its own backward pass ends without a word. DDP notices when the next forward begins, and names
# the parameters by their numbers. A program with one step would not have been told.
#
# DDP has two switches for this. `find_unused_parameters=True` searches the graph after each forward, and counts
# unused parameters as ready. `static_graph=True` is a promise: every step uses the same parameters. Your
# `replicate` needs neither, as it sends zeros; but it cannot leave `.grad` as `None` where nobody used a parameter.
#
# **What changes under NCCL:** the host does not wait in an all-reduce, so the others notice later, where they
# read a result or synchronize.

# %% [markdown] id="weighs-text"
# ## 6 · What a parameter weighs
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
    master.grad = low.weight.grad.float()  # only while the optimizer steps
    optimizer.step()
    state = optimizer.state[master]
    moments = [state["exp_avg"], state["exp_avg_sq"]]
    kept = [low.weight, low.weight.grad, master, *moments]
    return sum(one.nbytes for one in kept) / master.numel()


job = lockstep.torchrun(bytes_of_a_step, **on_ranks | {"nproc_per_node": 1})
lockstep.compare(predicted=prediction, measured=job[0])

# %% [markdown] id="zero-text"
# N ranks keep all of it N times. **ZeRO** ([Rajbhandari and others, 2020](https://arxiv.org/abs/1910.02054)) gives each
# rank an N-th part of some of it. There are three stages; stage 0 is DDP:
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
# **Goal:** `bytes_per_rank(parameters, ranks, stage)` returns how many bytes one rank keeps of weights, gradients, master
# weights and moments, as above. `parameters` is a multiple of `ranks`.


# %% id="bytes_per_rank"
def bytes_per_rank(parameters, ranks, stage):
    # BEGIN SOLUTION
    optimizer = 12 / ranks if stage >= 1 else 12
    gradient = 2 / ranks if stage >= 2 else 2
    weight = 2 / ranks if stage >= 3 else 2
    return parameters * (weight + gradient + optimizer)
    # END SOLUTION


# %% id="bytes_per_rank-check"
lockstep.check("bytes_per_rank", bytes_per_rank)

# %% [markdown] id="play-text"
# Turn the sliders below. They show what `bytes_per_rank` computes, for three choices of dtypes: mixed precision as above;
# all in float32 (4 bytes of a weight, 4 of its gradient, 8 of its moments: 16 again); all in bfloat16, where small updates are
# lost. A GPU has 80 GB (H100) or 141 GB (H200), and activations need a part of that. Find the fewest ranks on which 70 billion
# parameters fit in 80 GB.

# %% id="play"
bytes_per_rank = lockstep.carry_on("bytes_per_rank", bytes_per_rank)
for stage in range(4):
    kept = [bytes_per_rank(7_000_000_000, n, stage) / 1e9 for n in (1, 8, 64)]
    print(f"stage {stage}, GB on 1, 8 and 64 ranks:", *map(round, kept))
lockstep.interactive.sharding(parameters=7e9, ranks=8)

# %% [markdown] id="shard-text"
# ## 7 · Sharding by hand
#
# In stage 3 a rank has only a part of a layer's weight, its **shard**:
#
# 1. Forward: an all-gather collects all ranks' shards;
# 2. the layer computes with the whole weight, and drops it.
# 3. Backward: the whole weight is needed again, so there is another all-gather.
# 4. A reduce-scatter leaves each rank its part of the sum of all ranks' gradients.
# 5. The optimizer changes the shard.
#
# **Predict:** a model has 1,200 kB of weights, and gradients as large. Under DDP a rank sends 2(N − 1)/N of that, by
# one all-reduce (lab 03). How many kB does each of `NPROC` ranks send in a step if the model is sharded?

# %% id="volume-prediction" tags=["prediction"]
prediction = 3 * (NPROC - 1) / NPROC * 1200  # two all-gathers, a reduce-scatter

# %% [markdown] id="sharded-text"
# Autograd would keep the whole weight from the forward to the backward. So the layer is an `autograd.Function`, which
# says itself what to keep: `ctx.save_for_backward`. `forward` gets what `apply` is given. `backward` gets the gradient
# of the result, and returns a gradient for each argument of `apply`. If *y = x·Wᵀ* and *g* is the gradient of *y*, then
# the gradient of *x* is *g·W*, and that of *W* is *gᵀ·x*. `dist.reduce_scatter(part, pieces)` takes a list with a
# piece for each rank.
#
# ### Exercise 5: a sharded layer
#
# **Goal:** `sharded_linear(x, shard)` returns `x @ whole.T`, where the rows of `whole` are the shards of all ranks, in
# the order of the ranks. The backward pass gives `x` its gradient, and `shard` its part of the *mean* over the
# ranks' gradients of `whole`. Forward and backward together call two all-gathers and one reduce-scatter. Between
# forward and backward nothing as large as `whole` is kept. `x` has two dimensions.


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
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        # BEGIN SOLUTION
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
# Does it train as DDP does? Three layers, 1,200 kB of weights, three steps of SGD: once with your layer, once with your
# own DDP, with the same initial weights and rows. Only the order in which ranks are summed may differ.

# %% id="same"
sharded_linear = lockstep.carry_on("sharded_linear", sharded_linear)
replicate = lockstep.carry_on("replicate")


def trained(sharded):
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    sizes = (240, 650), (240, 240), (360, 240)
    weights = [(torch.randn(a, b) / b**0.5).to(device) for a, b in sizes]
    rows = torch.randn(8 * n, 650).to(device).chunk(n)[rank]
    model = torch.nn.ParameterList(
        one.chunk(n)[rank].clone() if sharded else one for one in weights
    )
    if not sharded:
        finish = replicate(model, [list(model)[::-1]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        y = rows
        for weight in model:
            y = sharded_linear(y, weight) if sharded else y @ weight.T
            y = torch.tanh(y)
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
    """Between the shards of all ranks and the whole weights of DDP."""
    pairs = [
        (shard, weight.chunk(len(shards))[rank])
        for rank, mine in enumerate(shards)
        for shard, weight in zip(mine, whole, strict=True)
    ]
    return max(float((one - other).abs().max()) for one, other in pairs)


ours, ddp = (lockstep.torchrun(trained, way, **on_ranks) for way in (1, 0))
off = largest_difference(ours.results, ddp[0])
print("no weight differs by 1e-6:", off < 1e-6)
sent = [kilobytes_sent(job.calls[0], NPROC) / 3 for job in (ours, ddp)]
print(f"kB a rank sends in a step: sharded {sent[0]:,.0f}, DDP {sent[1]:,.0f}")
print(lockstep.live(ours))
lockstep.compare(predicted=prediction, measured=round(sent[0], 6))

# %% [markdown] id="fsdp-text"
# ### FSDP2
#
# PyTorch's `fully_shard(module)` does this to any module: it shards the parameters that no inner module has
# sharded before, gathers them before the forward and again before the backward, and reduce-scatters their gradients.
# So you call it from the inside out: first for each block, then for the model.
#
# The next cell does so with eight layers, in three ways: the root only, so that the whole model is gathered at once;
# block by block; and block by block with `reshard_after_forward=False`, where a block stays gathered until its
# backward. PyTorch's `FSDPMemTracker` notes the largest number of bytes alive.


# %% id="fsdp"
def sharded_by_torch(ways):
    """The peak in bytes of a step, for each way; a barrier follows each."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.fsdp import fully_shard

    peaks, device = {}, lockstep.device()
    for way in ways:
        layers = [torch.nn.Linear(240, 240, bias=False) for _ in range(8)]
        model = torch.nn.Sequential(*layers).to(device)
        keep = {"reshard_after_forward": way != "gathered until its backward"}
        for block in model if way != "one root" else ():
            fully_shard(block, **keep)
        fully_shard(model, **keep)
        tracker = FSDPMemTracker(model)
        tracker.track_inputs((torch.ones(4, 240, device=device),))
        with tracker:
            model(torch.ones(4, 240, device=device)).sum().backward()
        peaks[way] = tracker.get_tracker_snapshot("peak")[device]["Total"]
        dist.barrier()
    return peaks


WAYS = "one root", "block by block", "gathered until its backward"
fsdp_job = lockstep.torchrun(sharded_by_torch, WAYS, **on_ranks)

# %% id="fsdp-calls"
calls_of, now = {way: [] for way in fsdp_job[0]}, iter(fsdp_job[0])
way = next(now)
for call in fsdp_job.calls[0]:
    if call.operation == "barrier":
        way = next(now, None)
    elif call.operation.startswith(("all_gather", "reduce_scatter")):
        calls_of[way].append(call)
rows, model_kB = [], 8 * 240 * 240 * 4 / 1000
for way, calls in calls_of.items():
    short = ["G" if c.operation[0] == "a" else "S" for c in calls]
    sent = f"{kilobytes_sent(calls, NPROC):,.0f}"
    peak = f"{fsdp_job[0][way] / 1e6:.0f}"
    rows.append([way, "".join(short), sent, peak])
columns = ["gathered", "calls (G: all-gather, S: reduce-scatter)"]
columns += ["kB sent a rank", "MB alive at most"]
title = f"fully_shard: a step of a model of {model_kB:,.0f} kB"
lockstep.table(title, columns, rows, stamp=lockstep.live(fsdp_job))

# %% [markdown] id="fsdp-claim-text"
# Block by block, the calls are those of your layer: two all-gathers and one reduce-scatter for each block. In the
# backward FSDP2 gathers one block ahead, so two G stand before the first S.
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
    because="; ".join(f"{way}: {x:.2f} times" for way, x in times.items()),
    stamp=lockstep.live(fsdp_job),
)

# %% [markdown] id="reshard-claim-text"
# ### Claim: "reshard_after_forward=False saves all-gathers, and costs memory"
#
# So says the [documentation of fully_shard](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# **Guess**, for the last two ways of the table.

# %% id="reshard-guess" tags=["guess"]
guess = "holds"

# %% id="reshard-claim"
gathers = {
    way: sum(call.operation.startswith("all_gather") for call in calls)
    for way, calls in calls_of.items()
}
block, kept = WAYS[1:]
ok = [gathers[kept] < gathers[block], fsdp_job[0][kept] > fsdp_job[0][block]]
said = [f"{w}: {gathers[w]} all-gathers" for w in (block, kept)]
said += [f"{w}: {fsdp_job[0][w] / 1e6:.1f} MB" for w in (block, kept)]
lockstep.claim(
    "reshard_after_forward=False saves all-gathers, and costs memory.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=lockstep.live(fsdp_job),
)

# %% [markdown] id="prefetch-text"
# What does gathering cost in *time*? That needs GPUs. The next cell runs a forward pass by hand on two, with eight
# layers of 4096 × 4096 in bfloat16. Each block is gathered when it is needed, or one block ahead, while the block
# before it computes, or all eight at the start.


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


prefetched = {ahead: on_gpus(forward, ahead) for ahead in (0, 1, 8)}
rows = [[n, *one.row(), f"{one.result:,.0f}"] for n, one in prefetched.items()]
columns = ["blocks ahead", "all-gathers, µs", "exposed", "hidden", "peak, MB"]
stamp = prefetched[1].stamp
lockstep.table("Eight blocks gathered by hand", columns, rows, stamp=stamp)

# %% id="prefetch-timeline"
title = "Before: each block when needed; after: one block ahead"
lockstep.Timeline(prefetched[1].trace, before=prefetched[0].trace, title=title)

# %% [markdown] id="prefetch-explained"
# One block ahead is enough: only the first all-gather is exposed, for the memory of one more block. Further ahead
# nothing is gained, and the memory grows to that of the whole model. On a GPU, FSDP2 gathers one block ahead by
# default: in the forward because its host runs ahead of the device, in the backward by an explicit order.
#
# The picture shows what FSDP2's switches do to both: recorded steps on two H200s, of eight layers of 12,288 × 12,288 in
# bfloat16. To the right a step needs more memory; above, more of its communication is exposed. One root needs nearly as
# much as DDP, and hides nothing. Block by block has half of DDP's memory; what is kept until its backward, or gathered
# further ahead, exposes less and needs more.

# %% id="fsdp-picture"
recorded = lockstep.recorded("data-parallel/h200-x2.json")
weights, points = 8 * 12_288**2 * 2, {}
for step in recorded.content["wide"]:
    how = step["how"]
    if how == "DDP" or how.startswith("FSDP2"):
        own = 2 * weights if how == "DDP" else weights / 2  # buckets; shards
        alive = step["peak_bytes"] - step["start_bytes"] + own
        name = how.removeprefix("FSDP2, ")
        points[name] = [(alive, step["exposed_us"] / 1e6)]
said = []
for how, [(x, y)] in points.items():
    said.append(f"{how} {x / 1e9:.1f} GB, {1e3 * y:.1f} ms")
lockstep.chart(
    points,
    x="alive at most (bytes)",
    y="exposed in a step (seconds)",
    alt="Peak memory and exposed communication: " + "; ".join(said) + ".",
    stamp=recorded.stamp,
    log=False,
)

# %% [markdown] id="recap"
# ## Recap
#
# - The mean over ranks is the gradient of the whole batch if parts are equal, the loss is a mean, and no layer looks at
#   more than one row.
# - DDP puts gradients into buckets in the order in which they become ready, and starts a bucket's all-reduce in a hook.
#   The last bucket cannot be hidden. A rank that does not use a parameter makes all others wait, unless DDP was told.
# - With Adam and mixed precision a parameter takes 16 bytes; the stages of ZeRO divide 12, 14 or 16 of them by the ranks.
# - A sharded layer is gathered twice, and its gradient is reduce-scattered once: 3(N − 1)/N of the model, against
#   2(N − 1)/N. Gathered one block ahead, all-gathers are hidden, for the memory of one block.
#
# **What is still slow:** each rank computes all of a layer. If a single layer is too large for that, or the batch too
# small to be divided, the layer itself must be cut: tensor parallelism. The further notebook sends fewer bytes, by
# compressing gradients.

# %% [markdown] id="further"
# # 08 · Data parallelism: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="compression-text"
# ## Compression
#
# About 55 minutes; a CPU is enough. An exercise: Top-K with error feedback, as a hook of DDP.
#
# Most numbers of a gradient are small. **Top-K** sends only the largest, say one in a hundred, as values and their
# places. What it leaves out is not lost if the rank keeps it and adds it to the next step's gradient: this is the
# **residual**, or *error feedback*. The places differ from rank to rank, so no all-reduce can add the values up: each
# rank sends its values (4 bytes each) and places (8 bytes each) to all others, by all-gathers.
#
# With `model.register_comm_hook(state, hook)` you replace what DDP does with a bucket. It calls `hook(state, bucket)`
# for each complete bucket: `bucket.buffer()` is a flat tensor with the gradients, `bucket.index()` the bucket's
# number. The hook returns a `torch.futures.Future`, whose result takes the buffer's place. This hook does what DDP does
# without one:


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
# The first pair is the first step's only bucket. Then DDP rebuilt its buckets, and bucket 0 has another length: a
# residual of the first step does not fit it, and is dropped.
#
# ### Exercise: Top-K with error feedback
#
# **Goal:** `top_k(state, bucket)` is such a hook. `state` is a dict: `state["share"]` is the part that is sent, and
# `state["residuals"]` is an empty dict at first, in which the hook may keep what it likes. For each bucket: add the
# residual, if there is one of this length. Of a bucket of *P* numbers, send the int(share · *P*) that are largest in
# absolute value, but at least one, and keep the others as the residual. The result is the sum of what all ranks sent,
# divided by the number of ranks. No rank gives more than 12 bytes to its calls for each number that it sends, and the
# buffer is not changed. `done(tensor)` makes the future.


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
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    all_values = [torch.empty_like(values) for _ in range(n)]
    all_places = [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    mean = torch.zeros_like(gradient)
    for values, places in zip(all_values, all_places, strict=True):
        mean[places] += values / n
    return done(mean)
    # END SOLUTION


# %% id="top_k-check"
lockstep.check("top_k", top_k)

# %% [markdown] id="learns-text"
# Which hook still learns? A small network learns a function of 32 numbers, in 150 steps of SGD: with DDP as it is, with
# Top-K of a hundredth of the gradient, with the same without a residual, and with two hooks of PyTorch. One of these
# sends float16; the other is [PowerSGD](https://arxiv.org/abs/1905.13727), which sends two thin matrices whose product
# is close to the gradient.
#
# ### Claim: "almost all of the gradient exchange is redundant"
#
# The abstract of [Deep Gradient Compression](https://arxiv.org/abs/1712.01887) says so of 99.9 %, and names what it
# adds to Top-K so that nothing is lost. Here 99 % are left out. Let a hook learn as well if its loss at the end
# is at most 1.5 times that of plain DDP. **Guess:** does Top-K learn as well, with a residual and without?

# %% id="learns-guess" tags=["guess"]
guess = "depends"


# %% id="learned"
def learned(model, rank, n, device):
    """The loss after 150 steps."""
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


# %% id="learns"
def train(hook):
    from torch.distributed.algorithms import ddp_comm_hooks as hooks

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
        model.register_comm_hook(None, hooks.default_hooks.fp16_compress_hook)
    elif hook == "PowerSGD":
        power = hooks.powerSGD_hook
        state = power.PowerSGDState(None, 1, start_powerSGD_iter=2)
        model.register_comm_hook(state, power.powerSGD_hook)
    return learned(model, rank, n, device)


# %% id="learns-jobs"
top_k = lockstep.carry_on("top_k", top_k)
hooks = "none", "Top-K", "Top-K, no residual", "float16", "PowerSGD"
hook_jobs = {hook: lockstep.torchrun(train, hook, **on_ranks) for hook in hooks}

# %% id="learns-claim"
loss = {hook: job[0] for hook, job in hook_jobs.items()}
rows = []
for hook, job in hook_jobs.items():
    kB = sum(c.bytes for c in job.calls[0]) / 150e3
    rows.append([hook, f"{loss[hook]:.2f}", f"{kB:.1f}"])
stamp = lockstep.live(hook_jobs["none"])
columns = ["hook", "loss at the end", "kB given to calls, each step"]
display(lockstep.table("150 steps of SGD", columns, rows, stamp=stamp))
times = {hook: loss[hook] / loss["none"] for hook in hooks[1:3]}
ok = [one <= 1.5 for one in times.values()]
said = [f"{hook}: {x:.1f} times the loss" for hook, x in times.items()]
lockstep.claim(
    "Almost all of the gradient exchange is redundant.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=stamp,
)

# %% [markdown] id="pays-text"
# With the residual every number is sent sooner or later. Without it the small ones never are, and the weights that need
# them do not learn. (PowerSGD keeps a residual, too.)
#
# ### When does it pay?
#
# Compression saves bytes and costs time, and nothing hides that time: the bucket is complete, and cannot be sent yet.
# Take a bucket of 25 MB (6,250,000 float32) on 8 ranks, and links of 25 GB/s, as between nodes. An all-reduce sends
# 2 · 7/8 of the bucket. Top-K of a hundredth sends 7 times 12 bytes for each of 62,500 numbers. (α is small beside both.)
#
# **Predict:** how many µs may compressing and unpacking take at most, if Top-K is to be faster?

# %% id="pays-prediction" tags=["prediction"]
# your number, in µs
prediction = (2 * 7 / 8 * 25e6 - 7 * 12 * 62_500) / 25e9 * 1e6


# %% id="pays"
def travel(bandwidth, ranks=8, places=6_250_000):
    """µs that a bucket is under way, by rings of this bandwidth."""
    line = lockstep.cost.Line(alpha=0, beta=1 / bandwidth)
    reduced = {
        "nothing": 4 * places,
        "bfloat16": 2 * places,
        "PowerSGD, rank 1": 4 * (places / 1000 + 1000),
    }
    took = {
        how: 1e6 * lockstep.cost.ring_all_reduce(ranks, nbytes, line)
        for how, nbytes in reduced.items()
    }
    sent = ranks * 12 * places / 100  # of all ranks
    took["Top-K"] = 1e6 * lockstep.cost.ring_all_gather(ranks, sent, line)
    return took


between = travel(25e9)
saved = between["nothing"] - between["Top-K"]
print(lockstep.simulated("rings of 8 ranks by α and β"))
lockstep.compare(predicted=prediction, computed=saved, unit="µs")

# %% [markdown] id="faster-text"
# ### Claim: "compressing gradients makes training faster"
#
# The abstract of
# [PowerSGD](https://papers.nips.cc/paper_files/paper/2019/hash/d9fbed9da256e344c1fa46bb46c34c5f-Abstract.html) claims
# consistent wall-clock speedups, and that no other compressor it tried had them. An H200 was timed while it compressed a
# bucket of 25 MB, and unpacked one, without sending anything. Beside that stands the time to travel, over links of 320
# GB/s, as within a node, of 25 GB/s between nodes, and of 1 GB/s of an ordinary network. In the last column DDP takes a
# whole step with each hook on two H200s: 24 layers of 2048 × 2048 in float32. **Guess** for the three hooks, three links
# and the step.

# %% id="faster-guess" tags=["guess"]
guess = "depends"

# %% id="faster-claim"
one_gpu = lockstep.recorded("data-parallel/h200-x1.json")
hook_took = {"nothing": 0.0}
for one in one_gpu.content["compressed"]:
    if one["megabytes"] == 25:
        hook_took[one["how"]] = 1e6 * one["seconds"]
links = [travel(bandwidth) for bandwidth in (320e9, 25e9, 1e9)]
two_gpus = lockstep.recorded("data-parallel/h200-x2.json")
steps = {one["how"]: one["seconds"] for one in two_gpus.content["hooked"]}
steps["bfloat16"] = steps["float16"]  # as many bytes
hook_total, hook_rows = {}, []
for how, time in hook_took.items():
    hook_total[how] = [link[how] + time for link in links]
    each = [f"{one:,.0f}" for one in hook_total[how]]
    hook_total[how].append(1e6 * steps[how])
    hook_rows.append([how, f"{time:,.0f}", *each, f"{1e3 * steps[how]:.1f}"])
hook_columns = ["compressed by", "compressing, µs", "with 320 GB/s"]
hook_columns += ["25 GB/s", "1 GB/s", "a step, ms"]

# %% id="faster-verdict"
stamp = [one_gpu.stamp, lockstep.simulated("rings of 8 ranks by α and β")]
stamp.append(two_gpus.stamp)
title = "A bucket of 25 MB"
display(lockstep.table(title, hook_columns, hook_rows, stamp=stamp))
plain, ok, said = hook_total.pop("nothing"), [], []
for how, times in hook_total.items():
    pays = [one < other for one, other in zip(times, plain, strict=True)]
    step = "faster" if pays[3] else "slower"
    said.append(f"{how}: faster on {sum(pays[:3])} of 3 links, a step {step}")
    ok += pays
lockstep.claim(
    "Compressing gradients makes training faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=stamp,
)

# %% [markdown] id="faster-explained"
# To find the largest numbers takes several passes over the bucket. Within a node an all-reduce takes less time than that;
# over a slow network there is much to save. And what is hidden behind the backward pass need not become faster at all:
# in the step on two H200s all but 5 % of the all-reduces were hidden before, so that there was hardly anything to gain. The
# compression itself is not hidden: it runs between the products of the backward pass, 13 buckets long. (The step has PyTorch's
# float16 hook in the row of bfloat16: as many bytes.)

# %% [markdown] id="order-text"
# ## The order of the buckets
#
# About 10 minutes; a CPU is enough.
#
# ### Claim: "DDP reduces gradients in the reverse order of model.parameters()"
#
# PyTorch's [note on DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html) says that buckets follow roughly the
# reverse order of `Model.parameters()`, as DDP expects gradients to become ready in that order. The model below
# has three weights, of 64, 128 and 192 bytes, each a bucket of its own, and can use them in any order. **Guess** for the
# orders 0, 1, 2 and 2, 0, 1.

# %% id="order-guess" tags=["guess"]
guess = "depends"


# %% id="order-model"
class Listed(torch.nn.Module):
    """Weights of 64, 128 and 192 bytes, used in any order."""

    def __init__(self, order):
        super().__init__()
        weights = [torch.nn.Parameter(torch.ones(n, 16)) for n in (1, 2, 3)]
        self.weights, self.order = torch.nn.ParameterList(weights), order

    def forward(self, x):
        for number in self.order:
            x = torch.tanh(x * self.weights[number].sum(0))
        return x


def order_of_ddp(order):
    model = Listed(order).to(lockstep.device())
    model = DistributedDataParallel(model, bucket_cap_mb=1e-6)
    for _ in range(3):
        model(torch.ones(4, 16, device=lockstep.device())).sum().backward()


# %% id="order-claim"
found = {}
for order in ((0, 1, 2), (2, 0, 1)):
    job = lockstep.torchrun(order_of_ddp, order, **on_ranks)
    calls = [c for c in job.calls[0] if c.operation == "all_reduce"]
    found[order] = [call.bytes // 64 - 1 for call in calls[-3:]]
ok = [reduced == [2, 1, 0] for reduced in found.values()]
lockstep.claim(
    "DDP reduces gradients in the reverse order of model.parameters().",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(
        f"used in the order {list(order)}, reduced in the order {reduced}"
        for order, reduced in found.items()
    ),
    stamp=lockstep.live(job),
)

# %% [markdown] id="order-explained"
# DDP starts with the reverse order, and from the second step on takes the order in which gradients became ready in the
# first step. The two agree only where the model uses its parameters in the order in which it lists them.

# %% [markdown] id="larger-text"
# ## How large should a bucket be?
#
# About 15 minutes; a CPU is enough.
#
# ### Claim: "larger buckets are faster"
#
# [An issue of PyTorch](https://github.com/pytorch/pytorch/issues/118421) calls DDP's 25 MB very small, and proposes 100
# MB or more; one of its authors warns that too large can be almost as bad. The cell runs a backward pass on two GPUs,
# with `replicate` and buckets of 1, 4, 12 and 48 layers: first with 48 layers of 512 × 512, then with 48 of 4096 × 4096.
# **Guess:** is the step with the largest buckets the fastest one in both cases?

# %% id="larger-guess" tags=["guess"]
guess = "depends"


# %% id="larger"
replicate = lockstep.carry_on("replicate")


def step_in_buckets(cuda, width, each):
    """µs for a backward pass of 48 layers, so many of them in a bucket."""
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [torch.nn.Linear(width, width, False, **shape) for _ in range(48)]
    weights = [layer.weight for layer in layers[::-1]]
    groups = [weights[at : at + each] for at in range(0, 48, each)]
    model = torch.nn.Sequential(*layers)
    finish = replicate(model, groups)
    y = model(torch.randn(4096, width, **shape))
    cuda.synchronize()
    dist.barrier()
    begin = lockstep.virtual.perf_counter()
    y.square().mean().backward()
    finish()
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) * 1e6


EACH, swept = (1, 4, 12, 48), {}
for width in (512, 4096):
    swept[width] = {n: on_gpus(step_in_buckets, width, n) for n in EACH}

# %% id="larger-claim"
rows = []
for width, runs in swept.items():
    rows.append([f"{width}²", *(f"{one.result:,.0f}" for one in runs.values())])
columns = ["layers", *(f"{each} in a bucket" for each in EACH)]
stamp = swept[512][1].stamp
display(lockstep.table("A backward pass, µs", columns, rows, stamp=stamp))
best = {w: min(EACH, key=lambda n: runs[n].result) for w, runs in swept.items()}
ok = [each == max(EACH) for each in best.values()]
lockstep.claim(
    "Larger buckets are faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(f"{w}²: {n} layers in a bucket" for w, n in best.items()),
    stamp=stamp,
)

# %% [markdown] id="larger-explained"
# One bucket for the whole model hides nothing: it is complete when the backward pass is over. Many small buckets
# cost α each, and a copy in and out. So the best size is between, where an all-reduce takes much longer than α and
# much less than the backward pass.

# %% [markdown] id="worth-text"
# ### What hiding is worth
#
# Recorded on H200s: a step of 24 layers of 4096 × 4096 in bfloat16, 805 MB of gradients. On two of them it takes 12.7 ms
# without communication, and 15.5 ms with an all-reduce for each gradient after the backward pass. With buckets of 1, 4, 4,
# 4, 4, 4 and 3 layers, reduced in hooks as you do it, the profiler saw other kernels beside the all-reduces for 95 % of
# their time.
#
# **Predict:** how many ms does the step with these buckets take?

# %% id="worth-prediction" tags=["prediction"]
# your number, in ms
prediction = 12.7 + (1 - 0.95) * (15.5 - 12.7)

# %% id="worth"
recorded, took, hidden = {}, {}, {}
for n in (2, 4):
    recorded[n] = lockstep.recorded(f"data-parallel/h200-x{n}.json")
    for step in recorded[n].content["steps"][:8]:
        how, exposed = step["how"], step["exposed_us"]
        took[how, n] = 1e3 * step["seconds"]
        whole = max(step["communication_us"], 1)
        hidden[how, n] = f"{1 - exposed / whole:.0%}" if exposed else "–"
rows = []
for how in dict.fromkeys(how for how, _ in took):
    both = [(f"{took[how, n]:.1f}", hidden[how, n]) for n in recorded]
    rows.append([how, *both[0], *both[1]])
columns = ["step", "two: ms", "hidden, by the trace", "four: ms", "hidden"]
title = "A step of 24 layers on two H200s, and on four"
stamp = [one.stamp for one in recorded.values()]
display(lockstep.table(title, columns, rows, stamp=stamp))
measured = took["own buckets", 2]
lockstep.compare(predicted=prediction, measured=measured, unit="ms")

# %% id="worth-timeline"
ours, ddp = (
    lockstep.Trace.load(lockstep.recorded(f"traces/data-parallel/{how}"))
    for how in ("own-buckets", "ddp")
)
title = "Two steps on two H200s; before: DDP; after: own buckets in hooks"
lockstep.Timeline(ours.align(), before=ddp.align(), title=title)

# %% [markdown] id="worth-explained"
# What the timeline calls hidden is not free. NCCL's kernels take SMs and memory bandwidth from the products beside them, so
# those take longer; and to pack the buckets and divide them, 805 MB are read and written twice. So hiding 95 % gained
# a third of the time that the all-reduces take. DDP starts one all-reduce for each layer here, because a weight is
# larger than its 25 MB. The time of a step decides, and not the share that is hidden. On four GPUs each rank sends 1.5
# times as much as on two, and these steps take 3 to 7 % longer.

# %% [markdown] id="switches-text"
# ## A branch that not every rank uses
#
# About 10 minutes; a CPU is enough. In section 5 of the lab, rank 1 did not use a branch of the model, and DDP hung.
#
# ### Claim: "find_unused_parameters=True lets DDP train such a model"
#
# [DDP's documentation](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
# says that parameters which receive no gradient count as ready, and that `static_graph=True` allows for them, too. The
# cell takes three steps with each switch, and compares the gradients with the mean over ranks by hand. Beside it stands
# what the switches cost a model without a branch, whose step is recorded on H200s. **Guess** for both.

# %% id="switches-guess" tags=["guess"]
guess = "holds"


# %% id="switches"
class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.sometimes = (torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, use):
        x = self.always(x)
        return self.sometimes(x) if use else x


def gradients_with(how):
    """All gradients after three steps; by hand if no switch is named."""
    torch.manual_seed(0)
    model, n = TwoLayers().to(lockstep.device()), dist.get_world_size()
    wrapped = DistributedDataParallel(model, **{how: True}) if how else model
    x = torch.ones(2, 4, device=lockstep.device())
    for _ in range(3):
        wrapped(x, dist.get_rank() != 1).sum().backward()
    weights = list(model.parameters())
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    flat = torch.cat([grad.flatten() for grad in grads])
    if not how:
        dist.all_reduce(flat)
        flat /= n
    return flat.cpu()


# %% id="switches-claim"
by_hand, is_right = lockstep.torchrun(gradients_with, "", **on_ranks)[0], {}
rows = []
for name in ("find_unused_parameters", "static_graph"):
    job = lockstep.torchrun(gradients_with, name, **on_ranks)
    calls = [c for c in job.calls[0] if c.operation == "all_reduce"]
    is_right[name] = all(torch.allclose(one, by_hand) for one in job.results)
    rows.append([name, ", ".join(str(call.bytes) for call in calls)])
columns = ["switch", "all-reduces in three steps, bytes"]
switch_stamp = lockstep.live(job)
title = "A branch that rank 1 does not use"
display(lockstep.table(title, columns, rows, stamp=switch_stamp))
rows = []
files = [f"data-parallel/h200-x{n}.json" for n in (1, 2)]
costs = [lockstep.recorded(file) for file in files]
alone, pair = ({o["how"]: o for o in c.content["steps"]} for c in costs)
for how in ("DDP", "DDP, find_unused_parameters", "DDP, static_graph"):
    calls = f"{pair[how]['collectives']:.0f}"
    times = alone[how]["host_seconds"], pair[how]["seconds"]
    rows.append([how, calls, *(f"{1e3 * one:.1f}" for one in times)])
columns = ["step of 24 layers", "all-reduces"]
columns += ["host on one H200, ms", "until all is done on two, ms"]
stamps = [one.stamp for one in costs]
display(lockstep.table("What they cost", columns, rows, stamp=stamps))

# %% id="switches-verdict"
said = [f"{how}: {'right' if is_right[how] else 'wrong'}" for how in is_right]
lockstep.claim(
    "find_unused_parameters and static_graph allow for an unused branch.",
    guess=guess,
    verdict="holds" if all(is_right.values()) else "depends",
    because="gradients by " + "; ".join(said),
    stamp=switch_stamp,
)

# %% [markdown] id="switches-explained"
# With `find_unused_parameters`, each step has a second, small all-reduce, in which the ranks tell each other which
# parameters they used; and the search goes through the whole graph. `static_graph` needs that only in the first step. On
# H200s the search takes the host about 2 ms for 24 layers, and `static_graph` nothing. While the GPU is busy for longer
# than the host, as here, a step hardly takes longer; a model of many small layers would.

# %% [markdown] id="view-text"
# ## Gradients inside buckets
#
# About 15 minutes; a CPU is enough. DDP copies each gradient into a bucket and the result back, so it keeps all gradients
# twice. With `gradient_as_bucket_view=True`, `.grad` is a view of the bucket.
#
# ### Claim: "gradient_as_bucket_view saves as much memory as the gradients take"
#
# So says the [documentation of
# DDP](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html), of peak memory. A
# hook notes where each bucket lies, and the cell adds up the gradients that lie outside of all buckets. Beside it stands
# a recorded step of 24 layers on an H200, which begins with `zero_grad()`: what it needs at its peak beyond what was
# alive when it began. **Guess** for both.

# %% id="view-guess" tags=["guess"]
guess = "depends"


# %% id="view"
def outside_of_buckets(view):
    """Bytes of gradients outside of buckets, and of all gradients."""
    layers = [torch.nn.Linear(64, 64) for _ in range(8)]
    model, memory = torch.nn.Sequential(*layers).to(lockstep.device()), set()
    how = {"bucket_cap_mb": 0.05, "gradient_as_bucket_view": view}
    model = DistributedDataParallel(model, **how)

    def hook(state, bucket):
        memory.add(bucket.buffer().untyped_storage().data_ptr())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    for _ in range(3):
        model.zero_grad(set_to_none=not view)
        model(torch.ones(4, 64, device=lockstep.device())).sum().backward()
    grads = [weight.grad for weight in model.parameters()]
    places = {grad: grad.untyped_storage().data_ptr() for grad in grads}
    own = sum(grad.nbytes for grad in grads if places[grad] not in memory)
    return own, sum(grad.nbytes for grad in grads)


# %% id="view-claim"
jobs = [lockstep.torchrun(outside_of_buckets, v, **on_ranks) for v in (0, 1)]
(own, every), (with_view, _) = jobs[0][0], jobs[1][0]
recorded = lockstep.recorded("data-parallel/h200-x1.json")
steps, more = recorded.content["steps"], {}
for step in steps:
    more[step["how"]] = step["peak_bytes"] - step["start_bytes"]
without, with_it = more["DDP"], more["DDP, gradient_as_bucket_view"]
gradients = 24 * 4096 * 4096 * 2
ok = [own - with_view == every, without - with_it > 0.9 * gradients]
lockstep.claim(
    "gradient_as_bucket_view saves as much memory as the gradients take.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because=f"{own:,} B of {every:,} B are outside of buckets without it, "
    f"{with_view:,} B with it; a step with {gradients / 1e6:.0f} MB of "
    f"gradients needs {without / 1e6:,.0f} MB more without it, "
    f"{with_it / 1e6:,.0f} MB with it",
    stamp=[lockstep.live(jobs[1]), recorded.stamp],
)

# %% [markdown] id="view-explained"
# After a step there is one copy of the gradients less. The recorded step begins with `zero_grad()`, which sets `.grad` to
# `None`. Its peak is at the start of the backward pass, when there are no gradients yet, but all activations and the
# buckets: the option changes nothing there.
#
# **Predict:** how many bytes more are alive at that peak with DDP than without it?

# %% id="peak-prediction" tags=["prediction"]
# your number, in bytes
prediction = 24 * 4096 * 4096 * 2  # the buckets: all gradients once

# %% id="peak"
recorded = lockstep.recorded("data-parallel/h200-x1.json")
steps = {step["how"]: step for step in recorded.content["steps"]}
rows = []
for how in ("after the backward", "DDP"):
    kinds = "start_bytes", "after_forward_bytes", "peak_bytes"
    rows.append([how, *(f"{steps[how][kind]:,}" for kind in kinds)])
columns = ["step", "at its start, B", "after the forward, B", "at most, B"]
title = "Bytes alive in a step of 24 layers on one H200"
display(lockstep.table(title, columns, rows, stamp=recorded.stamp))
peaks = [steps[how]["peak_bytes"] for how in ("DDP", "after the backward")]
lockstep.compare(predicted=prediction, measured=peaks[0] - peaks[1], unit="B")

# %% [markdown] id="peak-explained"
# It is one copy of the gradients to the byte: the buckets. They are alive from DDP's first step to its last, so the
# difference stands at the start already, beside the weights. Of the gradients themselves a step needs a second copy only
# after that peak, when activations have been freed as fast as gradients came.

# %% [markdown] id="host-text"
# ## When the GPU waits for the host
#
# About 15 minutes; a CPU is enough. One H200 was timed, with one rank: nothing is sent, and what is left is what DDP and
# FSDP2 themselves take. The step has 24 layers of 4096 × 4096. Its kernels keep the GPU busy for 13 ms, and the host
# launches them in 3 ms, without waiting ([lab 04](04_streams_and_overlap.ipynb)).
#
# `fully_shard` runs Python before and after the forward and the backward of each block: about 1.3 ms for each block.
#
# **Predict:** how many ms does a step take if each of the 24 layers is a block?

# %% id="host-prediction" tags=["prediction"]
# your number, in ms
prediction = max(13, 3 + 24 * 1.3)

# %% id="host"
recorded = lockstep.recorded("data-parallel/h200-x1.json")
shown = ["no communication", "DDP", "FSDP2, one root", "FSDP2, block by block"]
shown.append("FSDP2, four layers a block")
rows, took = [], {}
for step in recorded.content["steps"]:
    if step["how"] in shown:
        took[step["how"]] = 1e3 * step["seconds"]
        times = 1e3 * step["host_seconds"], 1e3 * step["seconds"]
        rows.append([step["how"], *(f"{time:.1f}" for time in times)])
columns = ["step", "host launches, ms", "until all is done, ms"]
stamp, title = recorded.stamp, "A step of 24 layers on one H200"
display(lockstep.table(title, columns, rows, stamp=stamp))
measured = took["FSDP2, block by block"]
lockstep.compare(predicted=prediction, measured=measured, unit="ms")

# %% [markdown] id="host-explained"
# Host and GPU work side by side, and the slower one decides. Sharded as a whole, the model runs that Python only once, and
# the GPU stays busy. Block by block it waits for the host most of the time. Where does the host's time go? The next cell
# counts the calls of the CUDA driver, and the functions of Python that took most of the step, without what they call.
# (Python's profiler takes time itself.)

# %% id="host-calls"
recorded = lockstep.recorded("data-parallel/h200-x1.json")
steps = {step["how"]: step for step in recorded.content["steps"]}
rows = []
for how in ("no communication", "FSDP2, block by block"):
    driver, python = (steps[how][kind] for kind in ("driver", "python"))
    calls = sum(one["calls"] for one in driver.values())
    spent = sum(one["us"] for name, one in driver.items() if "Sync" not in name)
    rows.append([how, f"{calls:.0f}", f"{spent / 1e3:.1f}"])
columns = ["step", "calls of the driver, at least", "ms in them"]
title = "The eight most costly kinds of calls (without synchronizing)"
display(lockstep.table(title, columns, rows, stamp=recorded.stamp))
rows = [
    [name.split(":")[1], int(one["calls"]), f"{one['us'] / 1e3:.1f}"]
    for name, one in steps["FSDP2, block by block"]["python"].items()
    if "0x" not in name  # an address differs in each process
]
columns = ["function", "calls", "ms of its own"]
title = "FSDP2 block by block: where the host is"
display(lockstep.table(title, columns, rows, stamp=recorded.stamp))

# %% id="host-timeline"
fsdp2 = lockstep.Trace.load(lockstep.recorded("traces/data-parallel/fsdp2"))
title = "FSDP2 block by block: two steps on two H200s, 24 layers of 4096²"
lockstep.Timeline(fsdp2, title=title)

# %% [markdown] id="host-calls-explained"
# No single function is to blame. For each of 24 blocks FSDP2 copies shards into one tensor for the all-gather and out of
# it, packs gradients, records and awaits events for its streams, and names ranges for profilers, in forward and backward.
# The driver itself takes a small part of that; the rest is Python and the dispatcher. With two ranks each collective's
# launch is added, and each rank waits for the slower host: on the timeline, rank 0's collectives wait for rank 1 in the
# first step, and rank 1's for rank 0 in the second. Both GPUs are mostly idle.
#
# Larger blocks mend that, such as whole transformer blocks: the Python stays the same, and the GPU has more to do. With
# four layers a block the GPU is kept busy again. The picture at the end of the lab's section 7 has layers nine times as
# large, for which the host is never late.

# %% [markdown] id="one-text"
# ## ZeRO stage 1 by PyTorch
#
# About 5 minutes; a CPU is enough. `ZeroRedundancyOptimizer` gives each parameter to one rank, which alone keeps its
# moments, updates it, and sends it to all.
#
# ### Claim: "each rank keeps one part in N of the optimizer's states"
#
# So says its [documentation](https://docs.pytorch.org/docs/stable/distributed.optim.html), "approximately".
# **Guess** for two models: 24 equal layers, and an embedding in front of them that is 32 times as large as a layer.
# (Approximately is taken as at most a tenth more, on every rank.)

# %% id="one-guess" tags=["guess"]
guess = "depends"


# %% id="one"
def bytes_of_states(sizes):
    """Bytes of Adam's moments on this rank, and of all of them together."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    device = lockstep.device()
    weights = [torch.nn.Parameter(torch.ones(n, device=device)) for n in sizes]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.Adam, lr=0.1)
    optimizer.step()
    states = [state["exp_avg"] for state in optimizer.optim.state.values()]
    return 2 * sum(one.nbytes for one in states), 2 * 4 * sum(sizes)


# %% id="one-claim"
layers = [1000] * 24
models = {"equal layers": layers, "a large embedding": [32_000, *layers]}
share = {}
for name, sizes in models.items():
    job = lockstep.torchrun(bytes_of_states, sizes, **on_ranks)
    share[name] = max(own for own, _ in job.results) / job[0][1]
ok = [one <= 1.1 / NPROC for one in share.values()]
said = [f"{name}: {100 * x:.0f} % on one rank" for name, x in share.items()]
lockstep.claim(
    "Each rank keeps one part in N of the optimizer's states.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=lockstep.live(job),
)

# %% [markdown] id="one-explained"
# A parameter is never divided, so the largest one decides. FSDP2 divides each parameter by its rows.

# %% [markdown] id="join-text"
# ## Unequal numbers of batches
#
# About 5 minutes; a CPU is enough. If rank 0 has a batch more than the others, its last all-reduce waits for ever. Inside
# `with model.join():` a rank that is done goes on taking part with zeros, until all are.
#
# **Predict:** all ranks have two batches, and rank 0 has a third one. Each rank's own gradient of a batch is 1. What is
# the gradient on rank 0 after its third batch?

# %% id="join-prediction" tags=["prediction"]
# your number, or a formula with NPROC
prediction = 1 / NPROC  # the others send zeros, and the sum is divided by all


# %% id="join"
def with_join():
    """The gradient after each batch."""
    shape = {"device": lockstep.device(), "dtype": torch.float64}
    model = torch.nn.Linear(1, 1, bias=False, **shape)
    model, found = DistributedDataParallel(model), []
    with model.join():
        for _ in range(3 if dist.get_rank() == 0 else 2):
            model.zero_grad()
            model(torch.ones(1, 1, **shape)).sum().backward()
            found.append(model.module.weight.grad.item())
    return found


job = lockstep.torchrun(with_join, **on_ranks)
print("rank 0:", job[0], "· rank 1:", job[1])
print(lockstep.live(job))
lockstep.compare(predicted=prediction, measured=job[0][-1])

# %% [markdown] id="join-explained"
# So the last batch counts less. `join(divide_by_initial_world_size=False)` divides by the ranks that still have
# batches.

# %% [markdown] id="local-text"
# ## Local SGD
#
# About 5 minutes; a CPU is enough. Instead of gradients at each step, ranks may average their *parameters* every now and
# then, and take steps of their own between.
#
# ### Claim: "local SGD learns as well with far less communication"
#
# [Stich](https://arxiv.org/abs/1805.09767) proves it for convex losses, with up to √T times fewer averages in T steps.
# Here a small network is trained in 160 steps with the parameters averaged every 1, 2, 8 or 40 steps. Let it learn as
# well if its loss is at most 1.5 times that of averaging at each step. **Guess**.

# %% id="local-guess" tags=["guess"]
guess = "depends"


# %% id="local"
def locally(every):
    """The loss after 160 steps that average every so many."""
    torch.manual_seed(0)
    device, rank, n = lockstep.device(), dist.get_rank(), dist.get_world_size()
    layers = torch.nn.Linear(32, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
    model = torch.nn.Sequential(*layers).to(device)
    rows = torch.randn(64 * n, 32).to(device)
    target = torch.sin(rows @ torch.ones(32, 1, device=device) / 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, 161):
        off = model(rows.chunk(n)[rank]) - target.chunk(n)[rank]
        optimizer.zero_grad()
        off.square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for weight in model.parameters() if number % every == 0 else ():
                dist.all_reduce(weight)
                weight /= n
    with torch.no_grad():
        return float((model(rows) - target).square().mean())


# %% id="local-claim"
jobs = {n: lockstep.torchrun(locally, n, **on_ranks) for n in (1, 2, 8, 40)}
loss = {every: job[0] / jobs[1][0] for every, job in jobs.items()}
ok = [loss[every] <= 1.5 for every in (2, 8, 40)]
said = []
for n, job in jobs.items():
    kB = sum(call.bytes for call in job.calls[0]) / 1e3
    when = f"every {n} steps" if n > 1 else "each step"
    said.append(f"{when}: {kB:,.0f} kB, {loss[n]:.1f} times the loss")
lockstep.claim(
    "Local SGD learns as well with far less communication.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=lockstep.live(jobs[1]),
)

# %% [markdown] id="local-explained"
# Between two averages each rank follows its own rows alone: the more steps in between, the further the ranks drift apart.

# %% [markdown] id="hybrid-text"
# ## Sharding within a host, copies between hosts
#
# About 10 minutes; a CPU is enough, with four ranks. **Hybrid sharding** (HSDP) shards a model over the ranks of one host,
# and every host has a copy. In FSDP2 you ask for it by a mesh of two dimensions: `fully_shard(module, mesh=mesh)`.
#
# ### Claim: "hybrid sharding sends between hosts a G-th part of what plain data parallelism sends"
#
# [Section 3.2.2 of the FSDP paper](https://arxiv.org/abs/2304.11277) computes so for hosts of G ranks. The cell has two
# groups of two ranks in place of hosts. What goes between them is an all-reduce of each shard's gradient; DDP
# would send all gradients by all-reduces. **Guess**.

# %% id="hybrid-guess" tags=["guess"]
guess = "holds"


# %% id="hybrid"
def hybrid():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = torch.device(lockstep.device()).type
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("hosts", "ranks"))
    layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(8)]
    model = torch.nn.Sequential(*layers).to(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(4, 256, device=device)).sum().backward()


# %% id="hybrid-claim"
job = lockstep.torchrun(hybrid, **on_ranks | {"nproc_per_node": 4})
kB, rows = {}, []
for call in job.calls[0]:
    kB.setdefault(call.operation, []).append(call.bytes / 1e3)
for operation, each in kB.items():
    rows.append([operation, len(each), f"{each[0]:,.0f}"])
stamp, columns = lockstep.live(job), ["operation", "calls", "kB of each"]
display(lockstep.table("A step of eight layers", columns, rows, stamp=stamp))
between, ddp = sum(kB["all_reduce"]), 8 * 256**2 * 4 / 1e3
lockstep.claim(
    "Hybrid sharding sends between hosts a G-th part of what DDP sends.",
    guess=guess,
    verdict="holds" if abs(2 * between / ddp - 1) < 0.01 else "does not hold",
    because=f"all-reduces of {between:,.0f} kB; with DDP {ddp:,.0f} kB; G is 2",
    stamp=stamp,
)

# %% [markdown] id="norm-text"
# ## BatchNorm over all ranks
#
# About 10 minutes; a CPU is enough. In section 1 of the lab, BatchNorm made DDP's gradients differ from those of one
# process, as each rank computes the mean and the variance of its own rows. `torch.nn.SyncBatchNorm` computes them over
# all ranks, on GPUs; the section ends with a recorded step of it. The cell does so by hand, with an `all_reduce` through
# which gradients flow: its backward is an all-reduce, too.
#
# **Predict:** a step of DDP has one all-reduce, for its only bucket. How many does it have with this layer in the model?

# %% id="norm-prediction" tags=["prediction"]
prediction = 1 + 2 + 2  # the bucket; mean and variance; the gradients of both


# %% id="norm"
class NormOverRanks(torch.nn.Module):
    def forward(self, x):
        from torch.distributed.nn.functional import all_reduce

        n = dist.get_world_size()
        mean = all_reduce(x.mean(0)) / n
        variance = all_reduce((x - mean).square().mean(0)) / n
        return (x - mean) / (variance + 1e-5).sqrt()


def normed(norm):
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    layers = torch.nn.Linear(4, 8), norm, torch.nn.Linear(8, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    rows = torch.randn(6 * NPROC, 4).to(device).chunk(n)[rank]
    dist.barrier()
    model(rows).square().mean().backward()
    return torch.cat([w.grad.flatten().cpu() for w in model.parameters()])


# %% id="norm-compared"
plain = torch.nn.BatchNorm1d(8, affine=False)
one = lockstep.torchrun(normed, plain, **on_ranks | {"nproc_per_node": 1})
for name, norm in {"BatchNorm": plain, "over ranks": NormOverRanks()}.items():
    job = lockstep.torchrun(normed, norm, **on_ranks)
    off = float((job[0] - one[0]).norm() / one[0].norm())
    print(f"{name}: off by {100 * off:.0f} %")
names = [call.operation for call in job.calls[0]]
print(lockstep.live(job))
step = names[names.index("barrier") :]
lockstep.compare(predicted=prediction, measured=step.count("all_reduce"))

# %% id="norm-recorded"
recorded = lockstep.recorded("data-parallel/h200-x2.json")
rows, plain = [], recorded.content["norm"][0]
each = plain["collectives"]["nccl:all_reduce"]  # the only one is listed twice
for one in recorded.content["norm"]:
    seen = one["collectives"]
    gathers = seen.get("nccl:_all_gather_base", 0) // each
    reduces = seen["nccl:all_reduce"] // each
    off = f"{one['off']:.0%}" if one["off"] > 1e-5 else "< 10⁻⁵"
    rows.append([one["how"], off, gathers, reduces])
columns = ["layer", "gradients off by", "all-gathers", "all-reduces"]
title = "DDP with a bucket on two H200s, against one process"
lockstep.table(title, columns, rows, stamp=recorded.stamp)

# %% [markdown] id="norm-explained"
# `SyncBatchNorm` gives one process's gradients, and is thriftier than the cell: in the forward pass it gathers mean,
# variance and number of rows in *one* call, so that ranks may have unequal parts; in the backward pass it reduces both
# sums in one.

# %% [markdown] id="mixed-text"
# ## Mixed precision in FSDP2
#
# About 10 minutes; a CPU is enough. `MixedPrecisionPolicy(param_dtype=…, reduce_dtype=…)` says in which dtype FSDP2
# gathers weights (and computes), and in which one it reduces gradients. The shards, and the optimizer's states, stay in
# float32.
#
# **Predict:** in full precision a rank sends three parts of equal size: two all-gathers and a reduce-scatter. Which part
# of these bytes does it send with bfloat16 for weights and float32 for gradients?

# %% id="mixed-prediction" tags=["prediction"]
# your number, between 0 and 1
prediction = (1 / 2 + 1 / 2 + 1) / 3


# %% id="mixed"
def mixed(param_dtype, reduce_dtype):
    """This rank's part of the gradients of a step."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    layers = [torch.nn.Linear(240, 240, bias=False) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    policy = MixedPrecisionPolicy(param_dtype, reduce_dtype)
    for block in [*model, model]:
        fully_shard(block, mp_policy=policy)
    rows = torch.randn(64 * dist.get_world_size(), 240)
    mine = rows.chunk(dist.get_world_size())[dist.get_rank()]
    model(mine.to(lockstep.device())).float().square().mean().backward()
    grads = [weight.grad.to_local().flatten() for weight in model.parameters()]
    return torch.cat(grads).cpu()


# %% id="mixed-compared"
low, full = torch.bfloat16, torch.float32
POLICIES = {
    "float32, float32": (full, full),
    "bfloat16, float32": (low, full),
    "bfloat16, bfloat16": (low, low),
}
jobs = {}
for name, dtypes in POLICIES.items():
    jobs[name] = lockstep.torchrun(mixed, *dtypes, **on_ranks)
rows, sent, right = [], {}, jobs["float32, float32"][0]
for name, job in jobs.items():
    sent[name] = sum(
        (NPROC if call.operation.startswith("all_gather") else 1) * call.bytes
        for call in job.calls[0]
        if call.operation.startswith(("all_gather", "reduce_scatter"))
    )
    off = float((job[0] - right).norm() / right.norm())
    rows.append([name, f"{sent[name] / 1e3:,.0f}", f"{100 * off:.1f} %"])
columns = ["weights, gradients", "kB of whole tensors", "gradients off by"]
stamp = lockstep.live(job)
display(lockstep.table("A step of four layers", columns, rows, stamp=stamp))
part = sent["bfloat16, float32"] / sent["float32, float32"]
lockstep.compare(predicted=prediction, measured=part, unit="of the bytes")

# %% [markdown] id="mixed-explained"
# Most digits are lost in the products with bfloat16 weights. Reducing in bfloat16 loses few more here, with a few ranks
# and gradients of similar size. The sum of many ranks, or of very unequal gradients, loses more: bfloat16 has 8 binary
# digits, and 256 + 1 is 256.

# %% [markdown] id="others-text"
# ## Programs of others
#
# About 10 minutes; a CPU is enough. Three programs that know nothing of this course were recorded on two GPUs, unchanged, two
# steps each: [PyTorch's DDP tutorial](https://github.com/pytorch/examples/tree/main/distributed/ddp-tutorial-series), its
# [FSDP2 example](https://github.com/pytorch/examples/blob/main/distributed/FSDP2/example.py), and
# [nanoGPT](https://github.com/karpathy/nanoGPT) with three layers and four microbatches, two on each rank.
#
# The FSDP2 example calls `fully_shard` for each of 10 transformer blocks and for the model. The root stays gathered after
# the forward pass, as its backward comes at once.
#
# **Predict:** how many all-gathers does a step of it have?

# %% id="others-prediction" tags=["prediction"]
prediction = 2 * 10 + 1  # each block forward and backward, the root once

# %% id="others"
from collections import Counter

PROGRAMS = {
    "DDP tutorial": "ddp-tutorial-series-multigpu_torchrun-x2",
    "nanoGPT": "nanoGPT-train-x2",
    "FSDP2 example": "FSDP2-example-x2",
}
rows, stamps = [], {}
for name, folder in PROGRAMS.items():
    recorded = lockstep.recorded(f"traces/foreign/{folder}")
    trace = lockstep.Trace.load(recorded)
    stamps[str(recorded.stamp)] = recorded.stamp
    found = [o.collective for o in trace if o.rank == 0 and o.collective]
    seen = Counter(one.operation for one in found)
    calls = ", ".join(f"{n / 2:g} {kind}" for kind, n in seen.items())
    spent = trace.breakdown().of(0)
    shares = spent.compute, spent.communication - spent.overlapped
    length = spent.end - spent.start
    rows.append([name, calls, *(f"{one / length:.0%}" for one in shares)])
columns = ["program", "calls of a step", "computes", "exposed communication"]
title = "Programs of others on two GPUs, of their time on rank 0"
stamp = list(stamps.values())
display(lockstep.table(title, columns, rows, stamp=stamp))
lockstep.compare(predicted=prediction, measured=seen["all_gather"] / 2)

# %% [markdown] id="others-explained"
# The calls are those of the lab. A step of nanoGPT reduces each bucket once, though a rank has two microbatches: it sets
# `require_backward_grad_sync`, as `no_sync` does. The FSDP2 example reduce-scatters 11 times, and its one all-reduce is
# that of `clip_grad_norm_`. All three models are small: GPUs hardly compute, and a collective mostly waits for the other
# rank's host.

# %% [markdown] id="paper-text"
# ## A design on paper
#
# About 15 minutes; a CPU is enough. An overview of PyTorch's distributed package that circulates without an address
# sketches a data-parallel trainer in C++. It says: fill buckets of 25 MB from the end of the
# model, and begin a new one *before* it would be larger; start a bucket when its counter says that it is complete; send
# the largest tenth of each gradient, with error feedback; and let a scheduler take the task with the least time per byte
# first. This section builds each in a few lines.
#
# **Its buckets**, for the six weights of section 2, beside DDP's:


# %% id="paper-buckets"
def never_above(sizes, cap):
    """A bucket is closed before it would have more than cap bytes."""
    found = [[]]
    for number in reversed(range(len(sizes))):
        if found[-1] and sum(found[-1]) + sizes[number] > cap:
            found.append([])
        found[-1].append(sizes[number])
    return found


def six_weights():
    widths = [32 * number for number in range(1, 8)]
    layers = [torch.nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]
    model = torch.nn.Sequential(*layers).to(lockstep.device())
    model = DistributedDataParallel(model, bucket_cap_mb=0.1)
    for _ in range(3):
        dist.barrier()
        model(torch.ones(4, 32, device=lockstep.device())).sum().backward()


job = lockstep.torchrun(six_weights, **on_ranks)
names = [call.operation for call in job.calls[0]]
last = len(names) - names[::-1].index("barrier")
sizes = [8_192, 24_576, 49_152, 81_920, 122_880, 172_032]
print("on paper:", [sum(bucket) for bucket in never_above(sizes, 104_857)])
print("DDP:     ", [call.bytes for call in job.calls[0][last:]])
print(lockstep.live(job))

# %% [markdown] id="paper-turn-text"
# The order holds, the rule does not: DDP closes a bucket *after* it has reached the limit, and its third one is larger
# than that. And by default DDP's first bucket is smaller (1 MiB), as nothing is sent before it is complete; on paper all
# have 25 MB.
#
# **No turn.** On paper each bucket starts by its own counter. The next cell is **broken on purpose**: on rank 1, gradients
# become ready in the other order. Look in the report for what the ranks call.


# %% id="paper-turn" tags=["varies"]
def without_a_turn():
    rank, n = dist.get_rank(), dist.get_world_size()
    buckets = {"head": torch.ones(8), "body": torch.ones(32)}
    order = ["body", "head"] if rank == 1 else ["head", "body"]
    for name in order:  # the order in which they are complete
        dist.all_reduce(buckets[name])
    return [float(one.mean()) / n for one in buckets.values()]


options = {"nproc_per_node": NPROC, "backend": "gloo", "may_fail": True}
job = lockstep.torchrun(without_a_turn, **options)

# %% [markdown] id="paper-share-text"
# Ranks reduce different buckets with each other. That is why a bucket waits for its turn in exercise 3, and in DDP. (On
# paper the hooks do not wait for the end, either: threads of their own write the result into `.grad`, at a time that the
# optimizer does not know.)
#
# **Its Top-K** keeps a tenth, and returns the values alone. Without their places nobody can add them up. With places, a
# number sent takes 4 + 8 bytes, and an all-gather sends each rank's to all others, N − 1 times; a ring all-reduce sends
# 2(N − 1)/N · 4 bytes for each number of the gradient.
#
# **Predict:** on how many ranks at least does this Top-K send *more* than an all-reduce of everything?

# %% id="paper-share-prediction" tags=["prediction"]
prediction = 7  # 0.1 · 12 · (N − 1) > 2(N − 1)/N · 4, so N > 6.67

# %% id="paper-share"
line, numbers, sent = lockstep.cost.Line(alpha=0, beta=1), 6_250_000, {}
for n in range(2, 17):
    whole = lockstep.cost.ring_all_reduce(n, 4 * numbers, line)
    tenth = lockstep.cost.ring_all_gather(n, n * 12 * numbers / 10, line)
    sent[n] = whole, tenth
rows = [[n, *(f"{one / 1e6:.0f}" for one in sent[n])] for n in (2, 4, 8, 16)]
columns = ["ranks", "all-reduce of all, MB", "a tenth by Top-K, MB"]
stamp = lockstep.simulated("bytes that a rank sends, by rings")
title = "A bucket of 25 MB: what a rank sends"
display(lockstep.table(title, columns, rows, stamp=stamp))
first = min(n for n, (whole, tenth) in sent.items() if tenth > whole)
lockstep.compare(predicted=prediction, computed=first, unit="ranks")

# %% [markdown] id="paper-order-text"
# The error feedback itself is right: it is that of the exercise above.
#
# **Its scheduler** takes what has the least *time per byte* first. By α and β that is always the *largest*, as it has
# most bytes for its α. But a bucket's time is not all that matters. The cell plays a backward pass in which four buckets
# become complete one after the other, the largest last, as an embedding at the model's beginning is: reduced as they
# come, and in the scheduler's order.
#
# ### Claim: "tasks with the least time per byte go first"
#
# So says the overview; no public text that we know does. **Guess:** does that order end earlier?

# %% id="paper-order-guess" tags=["guess"]
guess = "does not hold"


# %% id="paper-order"
LINK = lockstep.cost.Line(alpha=11.5e-6, beta=1 / 320e9)
# in ms when it is complete, its bytes
BUCKETS = [(1, 5e6), (2, 25e6), (3, 25e6), (4, 100e6)]


def ends(order):
    """ms until all are reduced, in order, none before it is complete."""
    now = 0.0
    for ready, nbytes in order:
        now = max(now, ready) + 1e3 * LINK(nbytes)
    return now


by_time_per_byte = sorted(BUCKETS, key=lambda one: LINK(one[1]) / one[1])
as_they_come, scheduled = ends(BUCKETS), ends(by_time_per_byte)
lockstep.claim(
    "Tasks with the least time per byte go first.",
    guess=guess,
    verdict="holds" if scheduled < as_they_come else "does not hold",
    because=f"all are reduced after {as_they_come:.2f} ms as they come, after "
    f"{scheduled:.2f} ms in the scheduler's order; the backward takes 4 ms",
    stamp=lockstep.simulated("α–β model, 11.5 µs and 320 GB/s"),
)

# %% [markdown] id="paper-explained"
# The scheduler's order waits for the largest bucket, which is complete last, while all others could travel: the wrong
# order of section 4. A scheduler that takes only what *is* complete would do, but on all ranks alike; the one on paper
# gives each task a thread of its own, and the threads of two ranks agree on no order. What holds: reverse order, error
# feedback, counters in hooks. What does not: buckets without a turn, values without places, nobody who waits before the
# optimizer, priority by time per byte.
