# %% [markdown] id="title"
# # 10 · Pipeline parallelism
#
# **Two sittings, 90 and 70 minutes · needs: a CPU** (one section uses GPUs and NCCL where there are some; the others
# stand in for GPU time, and say how)
#
# A model that is too large for one GPU is cut along its depth. Each rank has one part, and batches go
# from rank to rank by messages. Afterwards you can
#
# - predict how long ranks are idle, and how much they keep, under GPipe and under 1F1B,
# - write a stage that runs these schedules with real messages, without a deadlock,
# - train a real model over several ranks, with the same gradients as in one process,
# - take a backward apart into the half that others wait for, and the half that can come later.
#
# Two schedules that wait less, interleaved 1F1B and zero bubble, are in the further notebook.
#
# Lab 02 comes first: it has `isend`, `recv`, and deadlocks.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import time
import weakref

import lockstep
import torch
import torch.distributed as dist

print(NPROC, "ranks, backend:", BACKEND)

# %% id="progress" tags=["unpublished"]
lockstep.progress("10")

# %% [markdown] id="stage-text"
# The parts are called **stages**. The batch is cut as well, into **microbatches**. Each goes forward through all
# stages (a step **F**), and its gradient comes back from stage to stage (a step **B**). A stage keeps what a forward
# was given until the backward of the same microbatch: its **activations**.
#
# Our stage multiplies by a weight. `sleep` stands in for GPU time: four stages that compute on two CPU cores would
# disturb each other, four that sleep do not. So these runs use gloo everywhere.
#
# A **schedule** says in which order a stage takes its steps. GPipe's is the simplest: all forwards, then all
# backwards. (The two cells below `gpipe` only draw and measure; their code is folded.)


# %% id="stage"
class Stage:
    """y = w·x, so dx = w·dy and dw = Σ dy·x.

    `seconds`: how long a step of each way takes.
    """

    def __init__(self, weight, seconds):
        self.weight, self.seconds = weight, seconds
        self.grad, self.boxes = 0.0, []
        self.saved, self.most_saved = {}, 0  # activations
        self.made, self.most_made = [], 0  # what it returned and still lives

    def forward(self, number, x):
        self.saved[number] = x
        self.most_saved = max(self.most_saved, len(self.saved))
        return self._step(f"F{number}", x * self.weight)

    def backward(self, number, grad):
        self.grad += (grad * self.saved.pop(number)).sum().item()
        return self._step(f"B{number}", grad * self.weight)

    def _step(self, name, result):
        begin = time.perf_counter()
        time.sleep(self.seconds[name[0]])
        self.boxes.append((name, begin, time.perf_counter()))
        alive = [one for one in self.made if one() is not None]
        self.made = [*alive, weakref.ref(result)]
        self.most_made = max(self.most_made, len(self.made))
        return result


# %% id="gpipe"
def gpipe(stage, stages, microbatches):
    forwards = [f"F{number}" for number in range(microbatches)]
    backwards = [f"B{number}" for number in range(microbatches)]
    return forwards + backwards


print(*gpipe(0, 4, 3))

# %% id="drawing" tags=["plumbing"]
from lockstep.trace import Kind, Slice

WAYS = {"forward": "F", "backward": "B", "weight gradients": "W"}


kept = lockstep.pipeline.kept  # the most that an order keeps at once


def timeline(slices, stamp, title):
    ways = {one.name[0] for one in slices}
    groups = {name: way + r"\d.*" for name, way in WAYS.items() if way in ways}
    trace = lockstep.Trace.from_slices(slices, stamp=stamp)
    return lockstep.Timeline(trace, title=title, groups=groups)


def plan(schedule, ranks, microbatches, **how):
    """When all steps run, by the model."""
    orders = [schedule(rank, ranks, microbatches) for rank in range(ranks)]
    return lockstep.pipeline.simulate(orders, **how)


def drawn(plan, title):
    slices = [
        Slice(one.rank, "stage", one.step, round(one.start * 1e6),
              round((one.end - one.start) * 1e6), Kind.COMPUTE)
        for one in plan.boxes
    ]  # fmt: skip
    how = "a unit of time is drawn as 1 ms, messages take none"
    stamp = lockstep.simulated(how)
    return timeline(slices, stamp, title)


# %% id="measuring" tags=["plumbing"]
def train(run, schedule, microbatches, seconds, make=Stage):
    """On each rank: a stage's steps, and what it says of itself afterwards."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = make(2.0, seconds)
    inputs = [torch.ones(4) for _ in range(microbatches)]
    dist.barrier()  # all begin together
    run(schedule(rank, ranks, microbatches), stage, inputs)
    kept = {"saved": stage.most_saved, "made": stage.most_made}
    return {"boxes": stage.boxes, "grad": stage.grad, **kept}


def idle_share(job):
    boxes = [box for stage in job.results for box in stage["boxes"]]
    span = max(end for _, _, end in boxes) - min(begin for _, begin, _ in boxes)
    return 1 - sum(end - begin for _, begin, end in boxes) / (job.nproc * span)


def best_of_three(*how):
    """The run that waits least: other programs disturb them all."""
    options = {"nproc_per_node": NPROC, "backend": "gloo", "show": False}
    jobs = [lockstep.torchrun(train, *how, **options) for _ in range(3)]
    return min(jobs, key=idle_share)


def live_timeline(job, title):
    """What each stage computed, and nothing where it waited."""
    slices = []
    for rank, stage in enumerate(job.results):
        for name, begin, end in stage["boxes"]:
            at, length = round(begin * 1e9), round((end - begin) * 1e9)
            slices.append(Slice(rank, "stage", name, at, length, Kind.COMPUTE))
    return timeline(slices, lockstep.live(job), title)


# %% [markdown] id="bubble-text"
# ## 1 · The bubble
#
# When does each step run? A forward needs the forward of the stage before it. A backward needs its own forward, and
# the backward of the next stage. `lockstep.pipeline.simulate` is a model that plays a schedule: each step takes one
# unit of time, and messages take none.
#
# A stage that waits is idle; the idle share of all stages' time is the **bubble**. Count, for 4 stages and 8
# microbatches: the last stage begins when the first microbatch has gone through the stages before it, and stage 0
# ends when the last gradient has come back through all of them. **Predict:** what share of the time is a stage idle?

# %% id="bubble-prediction" tags=["prediction"]
# your number, between 0 and 1
prediction = 3 / (8 + 3)  # 8 + 3 units each way, and 3 of these idle

# %% id="bubble"
four_stages = plan(gpipe, 4, 8)
lockstep.compare(predicted=prediction, computed=four_stages.idle)

# %% id="gpipe-timeline"
drawn(four_stages, "GPipe, 4 stages, 8 microbatches")

# %% [markdown] id="bubble-explained"
# With *p* stages and *m* microbatches, forwards take *m* + *p* − 1 units from the first to the last, and *m* of them
# are work on each stage. Backwards take as long. So the bubble is $(p - 1) / (m + p - 1)$ (`lockstep.cost.bubble`).
#
# More microbatches make it smaller. That costs memory; how much can be read off a stage's order.
#
# ### Exercise 1: what an order keeps
#
# **Goal:** `most_kept(steps)` returns the largest number of microbatches that a stage keeps at one time if it takes
# these steps. A microbatch is kept from its F until its B is done: `["F0", "F1", "B0", "B1"]` keeps 2, `["F0", "B0",
# "F1", "B1"]` keeps 1. The order may be any in which each B comes after its own F; without steps nothing is kept.


# %% id="most_kept"
def most_kept(steps):
    # BEGIN SOLUTION
    now = most = 0
    for step in steps:  # after it, `now` microbatches wait for their backward
        now += 1 if step[0] == "F" else -1
        most = max(most, now)
    return most
    # END SOLUTION


# %% id="most_kept-check"
lockstep.check("most_kept", most_kept)

# %% id="kept-gpipe"
most_kept = lockstep.carry_on("most_kept", most_kept)
rows = []
for m in (4, 8, 16, 32):
    idle = f"{100 * lockstep.cost.bubble(4, m):.1f} %"
    rows.append([m, idle, most_kept(gpipe(0, 4, m))])
lockstep.table(
    "GPipe with 4 stages",
    ["microbatches", "idle", "activations kept at once, stage 0"],
    rows,
    stamp=lockstep.simulated("equal steps, messages take no time"),
)

# %% [markdown] id="one-text"
# ## 2 · One forward, one backward
#
# Before its first backward every stage keeps *all* microbatches. That is not needed. The last stage can do B0 right
# after F0. The stage before it gets that gradient one step later; meanwhile it does one more forward. And so on: each
# stage begins with as many forwards as there are stages after it. Then it takes one forward and one backward in turn,
# and ends with the backwards that are left. That is **1F1B**.
#
# **Predict:** with 4 stages and 8 microbatches, how many microbatches does stage 0 keep at most?

# %% id="kept-prediction" tags=["prediction"]
prediction = 4  # F0 to F2 for the three stages behind it, and F3 before B0

# %% [markdown] id="one_f_one_b-text"
# ### Exercise 2: the schedule
#
# **Goal:** `one_f_one_b(stage, stages, microbatches)` returns the list of steps of one stage, as `gpipe`
# does. There may be fewer microbatches than stages.


# %% id="one_f_one_b"
def one_f_one_b(stage, stages, microbatches):
    # BEGIN SOLUTION
    warm = min(stages - 1 - stage, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        # after each turn, `warm` microbatches wait for their backward
        steps += [f"F{warm + number}", f"B{number}"]
    left = range(microbatches - warm, microbatches)
    return steps + [f"B{number}" for number in left]
    # END SOLUTION


# %% id="one_f_one_b-check"
lockstep.check("one_f_one_b", one_f_one_b)

# %% id="one_f_one_b-timeline"
one_f_one_b = lockstep.carry_on("one_f_one_b", one_f_one_b)
drawn(plan(one_f_one_b, 4, 8), "1F1B, 4 stages, 8 microbatches")

# %% id="kept-measured"
lockstep.compare(predicted=prediction, computed=kept(one_f_one_b(0, 4, 8)))

# %% id="kept-dials"
schedules = {"1F1B": one_f_one_b, "GPipe": gpipe}
lockstep.interactive.pipeline(schedules, stages=4, microbatches=8)

# %% [markdown] id="kept-explained"
# Turn the sliders. With more microbatches the bubble is smaller in both schedules; what a stage keeps grows in GPipe
# only. Stage *s* of *p* keeps at most *p* − *s* microbatches, however many there are in the batch. So one can have
# many microbatches, a small bubble, *and* little memory.
#
# ### What a microbatch weighs
#
# Autograd keeps what the backward needs: mostly the inputs of products. A block has two layers, from *h* numbers a
# row to 4*h* and back, with a ReLU between them. `torch.utils.checkpoint` keeps only a block's input, and
# computes the rest again in the backward. **Predict:** how many times as many bytes are kept without it? (The result
# of the ReLU is the second layer's input, and is kept once. Weights do not count.)

# %% id="weighs-prediction" tags=["prediction"]
prediction = 5  # h for the block's input, 4h for the ReLU's result; h

# %% id="weighs"
from torch.nn import Linear, ReLU, Sequential
from torch.utils.checkpoint import checkpoint

h, rows = 64, 32
wide = 4 * h
parts = [(Linear(h, wide), ReLU(), Linear(wide, h)) for _ in range(6)]
blocks = [Sequential(*each) for each in parts]


def bytes_kept(run):
    kept = {}  # by place in memory: what is kept twice takes memory once

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = torch.randn(rows, h, requires_grad=True)
        for block in blocks:
            y = run(block, y)
    for weight in (w for block in blocks for w in block.parameters()):
        kept.pop(weight.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def recomputed(block, x):
    return checkpoint(block, x, use_reentrant=False)


plainly = bytes_kept(lambda block, x: block(x))
less = bytes_kept(recomputed)
print(f"six blocks keep {plainly:,} B, with recomputation {less:,} B")
lockstep.compare(predicted=prediction, measured=plainly / less)

# %% [markdown] id="unequal-text"
# Recomputation costs a second forward. Where a backward takes as long as two forwards, a microbatch takes 4 units in
# place of 3. In a Transformer each layer keeps about *sbh*(34 + 5*as*/*h*) bytes of a microbatch in 16 bits, for *s*
# tokens, *b* sequences, width *h* and *a* heads, if nothing is recomputed ([Korthikanti and
# others](https://arxiv.org/abs/2205.05198), section 4.1). For one sequence of 2,048 tokens, *h* = 12,288 and *a* = 96
# that is 2.9 GB a layer; stage *s* keeps it *p* − *s* times. A layer's input alone has 50 MB.

# %% [markdown] id="on-ranks"
# ## 3 · On ranks
#
# Each rank is a stage and runs this program, which uses the most obvious calls. The gradient of the last stage's
# output is 1 everywhere: as if the loss were the sum of the outputs.
#
# Until now a backward took as long as a forward. Mostly it takes about twice as long, because it computes
# two gradients: of the input, and of the weights. So here a forward sleeps for 20 ms and a backward for
# 40 ms. **Predict:** what share of the time will the ranks be idle now, with 8 microbatches on `NPROC`
# ranks?

# %% id="gpipe-run-prediction" tags=["prediction"]
# your number, or a formula with NPROC
prediction = (NPROC - 1) / (8 + NPROC - 1)  # F + B, in both, cancels


# %% id="blocking"
def blocking_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1  # to the next stage, or to the one before
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        compute = stage.forward if way == "F" else stage.backward
        y = compute(number, x)
        if 0 <= rank + by <= last:
            dist.send(y, rank + by)


# %% id="gpipe-run" tags=["varies"]
STEP = {"F": 0.02, "B": 0.04}
gpipe_job = best_of_three(blocking_stage, gpipe, 8, STEP)
share = idle_share(gpipe_job)
lockstep.compare(predicted=prediction, measured=share, unit="of the time")

# %% id="gpipe-live" tags=["varies"]
live_timeline(gpipe_job, f"GPipe on {NPROC} ranks")

# %% [markdown] id="bug-text"
# A stage waits for *p* − 1 forwards and *p* − 1 backwards, and works on *m* of each: their length does not matter if
# all stages are alike. Measured, stages are idle somewhat longer: messages take time, too, and so does waking up from
# a sleep.
#
# ### A bug to diagnose
#
# Now the 1F1B schedule with the same program. It is **broken on purpose**. Look in the report at the last
# two ranks for the call in which each of them waits. Which call would it make next? That is in
# `blocking_stage`.

# %% id="bug"
one_f_one_b = lockstep.carry_on("one_f_one_b")
options = {"nproc_per_node": NPROC, "backend": "gloo", "may_fail": True}
job = lockstep.torchrun(train, blocking_stage, one_f_one_b, 8, STEP, **options)

# %% [markdown] id="bug-explained"
# One stage sends an activation forward, the next one a gradient back, to each other. Each would receive right
# afterwards, but neither gets that far: it is the deadlock of lab 02. Under GPipe the two directions never
# meet.
#
# The way out is `isend`. But it has a price: a handle holds its tensor as long as the handle itself lives, and it
# must live until `wait()`. (Under gloo `is_completed()` of a send stays False until then, however long ago the
# message has arrived.) Wait for each handle once, and drop it: under gloo a second `wait()` on the same send never
# returns. In the next cell rank 0 starts 16 sends, and keeps nothing but the handles. When rank 1 has received all
# 16, rank 0 counts the tensors that are still alive; then it waits for ten handles, drops these, and counts again.


# %% id="alive"
def alive():
    if dist.get_rank() == 1:
        for _ in range(16):
            dist.recv(torch.empty(4), 0)
        dist.barrier()
        return None
    handles, seen = [], []
    for _ in range(16):
        x = torch.ones(4)
        seen.append(weakref.ref(x))  # does not keep x alive
        handles.append(dist.isend(x, 1))
    del x
    dist.barrier()  # here rank 1 has them all
    counts = [sum(one() is not None for one in seen)]
    for handle in handles[:10]:
        handle.wait()
    del handles[:10], handle  # the loop's variable is a handle, too
    return [*counts, sum(one() is not None for one in seen)]


job = lockstep.torchrun(alive, nproc_per_node=2, backend="gloo", show=False)
print(job[0][0], "tensors alive before any wait,")
print(job[0][1], "when 10 handles had been waited for and dropped")
print(lockstep.live(job))

# %% [markdown] id="run_stage-text"
# So a stage that keeps all its handles until the end keeps all that it ever sent, too: with 16 microbatches a middle
# stage would keep 16 activations and 16 gradients, and 1F1B would save nothing.
#
# ### Exercise 3: a stage that does not hang, and keeps little
#
# **Goal:** `run_stage(order, stage, inputs)` runs one stage's steps, as `blocking_stage` does, for GPipe's order and
# for 1F1B's. `stage.forward(i, x)` and `stage.backward(i, grad)` compute; `inputs` has the first stage's
# microbatches, and all messages have their shape and type. The last stage's gradient is ones. There are 2 to 8
# stages. There is one message for each step and neighbour, and no other communication. Each handle is waited for once
# before `run_stage` returns. However many microbatches there are: when a step begins, at most **six** tensors are
# still alive that were received or returned and are no longer needed (the stage itself keeps what its backward
# needs), and at most six sends have begun that nobody has waited for.

# %% id="run_stage"
import torch
import torch.distributed as dist


def run_stage(order, stage, inputs):
    # BEGIN SOLUTION
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = {}  # by way: the handle of the last message, which holds its tensor
    for step in order:
        # after each step, at most one message each way is not waited for
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        compute = stage.forward if way == "F" else stage.backward
        y = compute(number, x)
        if 0 <= rank + by <= last:
            if way in sent:
                sent[way].wait()
            sent[way] = dist.isend(y, rank + by)
    for handle in sent.values():
        handle.wait()
    # END SOLUTION


# %% id="run_stage-check"
lockstep.check("run_stage", run_stage)

# %% id="run_stage-run"
run_stage = lockstep.carry_on("run_stage", run_stage)
on_ranks = {"nproc_per_node": NPROC, "backend": "gloo", "show": False}
one_job = lockstep.torchrun(train, run_stage, one_f_one_b, 16, STEP, **on_ranks)
rows = []
for rank, stage in enumerate(one_job.results):
    rows.append([f"stage {rank}", stage["grad"], stage["saved"]])
columns = ["", "gradient", "activations kept at most"]
stamp = lockstep.live(one_job)
lockstep.table("1F1B, 16 microbatches", columns, rows, stamp=stamp)

# %% id="one-live" tags=["varies"]
made = [stage["made"] for stage in one_job.results]
print(*made, "returned tensors alive at most, on stage 0 and after")
print("(a stage that kept all its handles would have 16 for each neighbour)")
live_timeline(one_job, f"1F1B on {NPROC} ranks")

# %% [markdown] id="faster-text"
# **What changes under NCCL.** A send returns to the host at once, and the waiting is on the GPU. Sends and receives
# that need each other must be in *one* group call (lab 02). So Megatron-LM has calls such as
# [`send_forward_recv_backward`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/pipeline_parallel/p2p_communication.py),
# and the 1F1B of `torch.distributed.pipelining` gives such pairs to `batch_isend_irecv` as one list.
#
# ### Claim: "1F1B makes the pipeline faster than GPipe"
#
# A common guess: 1F1B came later, and Megatron-LM and PyTorch have it. Compare the bubbles: by the model, and
# as measured, with `run_stage` for both. **Guess** first.

# %% id="faster-guess" tags=["guess"]
guess = "does not hold"

# %% id="faster-claim" tags=["varies"]
schedules = {"GPipe": gpipe, "1F1B": one_f_one_b}
computed, measured = {}, {"GPipe": 1.0, "1F1B": 1.0}
for _ in range(3):  # in turn, the best of three: other programs disturb both
    for name, each in schedules.items():
        job = lockstep.torchrun(train, run_stage, each, 8, STEP, **on_ranks)
        measured[name] = min(measured[name], idle_share(job))
        computed[name] = plan(each, NPROC, 8, backward=2).idle
gains = [idle["GPipe"] - idle["1F1B"] for idle in (computed, measured)]
faster = sum(gain > 0.05 for gain in gains)  # by the model, and as measured
said = [f"{n}: idle {100 * computed[n]:.1f} % computed" for n in schedules]
said += [f"{n}: idle {100 * measured[n]:.1f} % measured" for n in schedules]
lockstep.claim(
    "1F1B makes the pipeline faster than GPipe.",
    guess=guess,
    verdict=["does not hold", "depends", "holds"][faster],
    because="; ".join(said),
    stamp=[lockstep.simulated("B is as long as two F"), lockstep.live(job)],
)

# %% [markdown] id="faster-explained"
# Both fill and drain the same pipeline, so with the same microbatches both wait as long, if messages take no time. If
# they do, 1F1B waits *longer*: in its alternating part a stage waits for a message and its answer; GPipe sends ahead.
# (By the model, with 4 stages, 8 microbatches, a backward of two forwards and a message of half a forward, GPipe is
# idle for 33 %, 1F1B for 41 %.) What 1F1B saves is memory, and *that* can be spent on more microbatches.
#
# **Break.** The first sitting ends here. You have two schedules, and a stage that runs them with real messages. What
# follows: a real model, and a backward in two halves. The next section starts on its own.

# %% [markdown] id="real-model"
# ## 4 · A real model
#
# Now each rank has real layers, and autograd. Autograd does not cross a message: a received tensor has numbers but no
# history. So each rank has a graph of its own, from what it received to what it sends on. You have to connect the two
# ends by hand. Here is how, in one process, where `detach` plays the message:

# %% id="two-graphs"
import torch

first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
y = first(torch.ones(3))  # the graph of rank 0
# what rank 1 receives: numbers, which want a gradient
x = y.detach().requires_grad_()
second(x).sum().backward()  # the graph of rank 1 ends at x …
print("x.grad is there:", x.grad is not None)
print("the first layer's gradient:", first.weight.grad is not None)
# … and goes on at y, with the gradient that comes back as a message
y.backward(x.grad)
print("after y.backward(x.grad):", first.weight.grad is not None)

# %% [markdown] id="train_step-text"
# ### Exercise 4: a training step
#
# **Goal:** `train_step(layer, inputs, targets)` runs on all ranks; `layer` is this rank's part of the model. `inputs`
# and `targets` are lists of microbatches, the same on all ranks: the first rank uses the inputs, the last one the
# targets, and all messages have the shape and type of `inputs[0]`. The batch's loss is the mean of
# `torch.nn.functional.mse_loss(y, target)` over the microbatches. Afterwards the parameters have the gradients of
# that loss in `.grad`, which was None before, and the last rank returns the loss, a number; what the others return
# does not matter. One message for each microbatch, way and neighbour; any schedule will do. No optimizer here. A rank
# alone is the first and the last at once.

# %% id="train_step"
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def train_step(layer, inputs, targets):
    # BEGIN SOLUTION
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for x in inputs:  # after it, one more microbatch is kept with its graph
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for number, (x, y) in enumerate(kept):  # after it, one more is in .grad
        if rank == last:
            loss = mse_loss(y, targets[number]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total if rank == last else None
    # END SOLUTION


# %% id="train_step-check"
lockstep.check("train_step", train_step)

# %% [markdown] id="fit-text"
# Does it train as one process does? Eight layers, cut into `NPROC` parts; three steps of SGD with 4
# microbatches of 8 rows. Beside it one process with all eight layers, and the same four microbatches, one
# after the other.
#
# Every number of the pipeline comes from the same operations on the same numbers, in the same order (if your
# backwards go in the microbatches' order); only the place is another one. **Predict:** how large is the largest
# difference of any gradient, after the third step?

# %% id="same-prediction" tags=["prediction"]
prediction = 0.0


# %% id="fit"
def part(rank, ranks, layers=8, width=32):
    """The layers of a rank, each with its own seed: a cut changes no number."""
    chosen = []
    for number in range(rank * layers // ranks, (rank + 1) * layers // ranks):
        torch.manual_seed(number)
        chosen += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*chosen).to(lockstep.device())


def fit(step, rank, ranks, microbatches=4):
    layer = part(rank, ranks)
    torch.manual_seed(99)
    # inputs and targets, 32 rows each
    batch = torch.randn(2, 32, 32).to(lockstep.device())
    inputs, targets = ([*half.chunk(microbatches)] for half in batch)
    optimizer, losses = torch.optim.SGD(layer.parameters(), lr=0.5), []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(step(layer, inputs, targets))
        optimizer.step()
    return losses, [one.grad.cpu().numpy() for one in layer.parameters()]


# %% id="same"
def one_process(model, inputs, targets):
    total = 0.0
    for x, target in zip(inputs, targets, strict=True):
        loss = mse_loss(model(x), target) / len(inputs)
        loss.backward()
        total += loss.item()
    return total


def pipelined(step):
    return fit(step, dist.get_rank(), dist.get_world_size())


def difference(job, other):
    """The largest difference of any gradient's element from one process's."""
    grads = [grad for _, part in job.results for grad in part]
    pairs = zip(grads, other[0][1], strict=True)
    return float(max(abs(one - same).max() for one, same in pairs))


train_step = lockstep.carry_on("train_step", train_step)
how = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
job = lockstep.torchrun(pipelined, train_step, **how)
# where the ranks were: a GPU rounds otherwise than a CPU
how |= {"nproc_per_node": 1, "backend": job.backend}
alone = lockstep.torchrun(fit, one_process, 0, 1, **how)
print("losses on the last rank:", *(f"{loss:.6f}" for loss in job[-1][0]))
print("losses in one process:  ", *(f"{loss:.6f}" for loss in alone[0][0]))
lockstep.compare(predicted=prediction, measured=difference(job, alone))

# %% [markdown] id="consistent-text"
# ### Claim: "gradient updates are consistent regardless of the number of partitions"
#
# That is what [the GPipe paper](https://arxiv.org/abs/1811.06965) says in its introduction: a pipeline is
# only another way to compute the same. The cell tests 1, 2 and 4 parts. It compares their gradients with those of one
# process twice: with the same four microbatches, and with all 32 rows in one batch. Float32 sums in another order may
# differ by some units of $2^{-24}$ of the largest term, so we call a difference below $10^{-6}$ rounding.
# **Guess** first.

# %% id="consistent-guess" tags=["guess"]
guess = "holds"

# %% id="consistent-claim" tags=["varies"]
found, on_gloo = {}, {"backend": "gloo", "show": False}
alone, whole = (
    lockstep.torchrun(fit, one_process, 0, 1, m, nproc_per_node=1, **on_gloo)
    for m in (4, 1)  # microbatches
)
for n in (1, 2, 4):
    job = lockstep.torchrun(pipelined, train_step, nproc_per_node=n, **on_gloo)
    found[n] = difference(job, alone), difference(job, whole)
rounding = [max(pair) < 1e-6 for pair in found.values()]
otherwise = "depends" if any(rounding) else "does not hold"
lockstep.claim(
    "Gradient updates are consistent regardless of the number of partitions.",
    guess=guess,
    verdict="holds" if all(rounding) else otherwise,
    because="largest differences: "
    + "; ".join(
        f"parts: {n}, same microbatches {same:.1g}, whole batch {other:.1g}"
        for n, (same, other) in found.items()
    ),
    stamp=lockstep.live(job),
)

# %% [markdown] id="consistent-explained"
# The cut changes nothing, bit for bit (with the backwards in order). Microbatches change the order of sums: that is
# rounding. (What does depend on the microbatches is a layer that looks at its whole batch, such as BatchNorm. The
# paper says so, too.)

# %% [markdown] id="halves"
# ## 5 · A backward in two halves
#
# Back to the bubble. The backward of a layer computes two gradients. The stage before it waits for that of
# its *input*. Nobody waits for that of its *weights*: the optimizer needs it at the end of the step. So a
# stage could send the first as soon as it is there, and do the second where it would wait. Schedules
# with (nearly) no bubble do that; one is shown in the further notebook. They need a backward that comes in two halves.
# How does autograd do that?
#
# `torch.autograd.grad(y, x, grad)` returns the gradient of `x` alone, where `grad` is that of `y`. It puts
# nothing into any `.grad`, and afterwards the graph is gone, unless it is told `retain_graph=True`:

# %% id="grad-shown"
import torch

weight = torch.tensor(3.0, requires_grad=True)
x = torch.tensor(2.0, requires_grad=True)
y, grad = weight * x, torch.tensor(10.0)
(of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
print("of x:", of_x.item(), "· in weight.grad:", weight.grad)
(of_weight,) = torch.autograd.grad(y, weight, grad)
print("of the weight, later:", of_weight.item())

# %% [markdown] id="split_backward-text"
# ### Exercise 5: two halves
#
# **Goal:** `split_backward(y, x, weights, grad)`: `y` was computed from `x` and the list `weights`, and
# `grad` is the gradient of `y`. It returns two things: the gradient of `x`, and a function without
# arguments. Only that function, when it is called, computes the weights' gradients, and not that of `x` once
# more; it *adds* them to what is in `.grad`, which may be None. It is called once.

# %% id="split_backward"
import torch


def split_backward(y, x, weights, grad):
    # BEGIN SOLUTION
    def later():
        found = torch.autograd.grad(y, weights, grad)
        # after each turn, one more weight has its gradient
        for weight, more in zip(weights, found, strict=True):
            weight.grad = more if weight.grad is None else weight.grad + more

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later
    # END SOLUTION


# %% id="split_backward-check"
lockstep.check("split_backward", split_backward)

# %% [markdown] id="halves-explained"
# What it costs: `later` goes through the stage's graph a second time, from `y` on (once, if one call asks for all
# weights). With one linear layer nothing is done twice: one matrix product for `x`, another for the weight. With many
# layers the gradients *between* them are computed twice. PyTorch's schedules avoid that:
# `torch/distributed/pipelining/_backward.py` keeps the gradients at which the way to a weight leaves the way to the
# input.

# %% [markdown] id="recap"
# ## Recap
#
# - A pipeline of *p* equal stages and *m* microbatches is idle for $(p - 1) / (m + p - 1)$ of its time,
#   under GPipe as under 1F1B, if messages take no time. GPipe keeps *m* microbatches; in 1F1B stage *s* keeps *p* − *s*.
# - 1F1B sends in both directions at once: blocking sends deadlock. `isend` does not, and under gloo a tensor
#   lives as long as its handle: wait for old sends while the schedule runs.
# - Autograd does not cross a message: `requires_grad_()` on what is received, `y.backward(grad)` with what
#   comes back. The gradients are those of one process.
# - A backward has two halves. Stages wait for the input's gradient only; that of the weights can come later,
#   and fill the bubble.
#
# **What is still slow:** the bubble, which is as large in 1F1B as in GPipe: two schedules in the further notebook
# have less. And stages that are not equally long: the slowest one sets the pace, and all others wait for it in each
# step.

# %% [markdown] id="further"
# # 10 · Pipeline parallelism: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="unequal-start"
# ## Stages that are not equal
#
# About 5 minutes; a CPU is enough, and 1F1B (section 2 of the lab).
#
# So far all stages took equally long. The last one has the output layer and the loss. Let it take two units
# each way, and the others one. **Predict:** how many units do 8 microbatches take under 1F1B, on 4 stages? (22, if
# all took one.)

# %% id="unequal-prediction" tags=["prediction"]
prediction = 3 + 8 * (2 + 2) + 3  # to the last stage, its work, and back

# %% id="unequal"
one_f_one_b = lockstep.carry_on("one_f_one_b")
each = [1, 1, 1, 2]
unequal = plan(one_f_one_b, 4, 8, forward=each, backward=each)
lockstep.compare(predicted=prediction, computed=unequal.length)

# %% id="unequal-timeline"
drawn(unequal, "1F1B, the last stage takes twice as long")

# %% [markdown] id="unequal-explained"
# The slow stage is never idle between its first step and its last; the others wait for it. Equal stages are
# worth more than a better schedule: measure layers before you cut between them.

# %% [markdown] id="chunks-text"
# ## Several chunks a rank
#
# About 40 minutes; a CPU is enough. An exercise: interleaved 1F1B, a schedule from Megatron-LM that makes the bubble
# smaller; and what it costs in messages.
#
# A microbatch must pass all ranks before the last one can begin, and that takes *p* − 1 *steps of a rank*. So make
# these steps shorter: **interleaved 1F1B** ([Narayanan et al. 2021, section 2.2](https://arxiv.org/abs/2104.04473))
# cuts the model into *v* times as many stages, and gives each rank *v* **chunks** of it. Of *p* ranks, chunk *c* of
# rank *r* is stage $c \cdot p + r$: a microbatch goes around all ranks *v* times. `F3.1` is the forward of microbatch
# 3 on this rank's chunk 1.
#
# A rank has as much work as before, now in *v* times as many steps, each 1/*v* as long. It still waits for
# *p* − 1 steps forward, and *p* − 1 back. **Predict** the bubble of 4 ranks with 2 chunks each and 8
# microbatches.

# %% id="chunks-prediction" tags=["prediction"]
# your number, between 0 and 1
prediction = 3 / (2 * 8 + 3)

# %% id="chunks-computed"
bubble = lockstep.cost.bubble(4, 8, chunks=2)
lockstep.compare(predicted=prediction, computed=bubble)

# %% [markdown] id="interleaved-text"
# The order. Microbatches go in groups of *p*: the first *p* through chunk 0, then through chunk 1, and so
# on; then the next *p*. So nobody waits: with 4 ranks, F0.1 is ready on rank 0 just when it has done F0.0
# to F3.0. `in_groups` below is that order, for the forwards. Backwards go in the same groups, from the
# last chunk to chunk 0.
#
# How many forwards before the first backward? That one is B0 of chunk *v* − 1. Its forward comes after
# $(v - 1)\,p$ others. From there microbatch 0 has $p - 1 - r$ ranks to go, and its gradient the same way
# back: $2(p - 1 - r)$ steps, in which rank *r* can do as many forwards. So $(v - 1)\,p + 2(p - 1 - r)$ to
# fill the pipeline (of 4 ranks with 2 chunks: 10 on rank 0, 4 on rank 3); then a forward and a backward in
# turn, then the backwards that are left.
#
# ### Exercise: interleaved
#
# **Goal:** `interleaved(rank, ranks, chunks, microbatches)` returns the list of steps of one rank. `microbatches` is
# a multiple of `ranks`. With all ranks' lists together, and by the model: nothing waits for ever, all is done after
# $2vm + 2(p - 1)$ units, and rank *r* keeps no more than $(v - 1)\,p + 2(p - 1 - r) + 1$ forwards at once whose
# backward is still to come. Every order that does this is right.


# %% id="interleaved"
def in_groups(ranks, chunks, microbatches):
    """(microbatch, chunk), in the order of the forwards."""
    return [
        (first + number, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for number in range(ranks)
    ]


def interleaved(rank, ranks, chunks, microbatches):
    # BEGIN SOLUTION
    order = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{number}.{chunk}" for number, chunk in order]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in order]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(order))
    steps = forwards[:warm]
    for k in range(len(order) - warm):
        # after each turn, `warm` forwards wait for their backward
        steps += [forwards[warm + k], backwards[k]]
    return steps + backwards[len(order) - warm :]
    # END SOLUTION


# %% id="interleaved-check"
lockstep.check("interleaved", interleaved)

# %% id="interleaved-timeline"
interleaved = lockstep.carry_on("interleaved", interleaved)


def two_chunks(rank, ranks, microbatches):
    return interleaved(rank, ranks, 2, microbatches)


title = "Interleaved 1F1B, 4 ranks with 2 chunks, 8 microbatches"
drawn(plan(two_chunks, 4, 8, chunks=2), title)

# %% [markdown] id="messages-text"
# Now on ranks, beside 1F1B, with half as long steps. The program is like that of exercise 3, with chunks. It waits
# for its sends at the end only, so that every order runs which the model can play; a tag says for which stage a
# message is, because two ranks may now have several for each other. (gloo has tags. Under NCCL the schedule itself
# has to bring the calls of both sides into the same order.)
#
# With *p* stages a microbatch crosses from one stage to the next *p* − 1 times, forward and back.
# **Predict:** with `NPROC` ranks of *2 chunks each* and 2 · `NPROC` microbatches, how many messages are sent
# by all ranks together?

# %% id="count-prediction" tags=["prediction"]
# your number, or a formula with NPROC
prediction = 2 * (2 * NPROC - 1) * 2 * NPROC  # ways · crossings · microbatches


# %% id="run-steps"
def run_steps(order, stage, inputs, chunks=1):
    rank, ranks, sent = dist.get_rank(), dist.get_world_size(), []
    for text in order:
        step = lockstep.pipeline.Step.of(text)  # way, number and chunk
        here = step.chunk * ranks + rank  # this stage
        by = 1 if step.way == "F" else -1  # to the next one, or the one before
        back = int(by < 0)  # tags: twice the receiver's stage, 1 more if back
        x = inputs[step.number] if by == 1 else torch.ones_like(inputs[0])
        if 0 <= here - by < chunks * ranks:
            x = torch.empty_like(x)
            dist.recv(x, (rank - by) % ranks, tag=2 * here + back)
        y = (stage.backward if back else stage.forward)(text[1:], x)
        if 0 <= here + by < chunks * ranks:
            tag = 2 * (here + by) + back
            sent.append(dist.isend(y, (rank + by) % ranks, tag=tag))
    for handle in sent:  # after it, one more send is over
        handle.wait()


# %% id="count"
def run_two_chunks(order, stage, inputs):
    run_steps(order, stage, inputs, chunks=2)


def sends(job):
    operations = [call.operation for calls in job.calls for call in calls]
    return operations.count("send")


long, short = {"F": 0.04, "B": 0.04}, {"F": 0.02, "B": 0.02}
one_f_one_b, m = lockstep.carry_on("one_f_one_b"), 2 * NPROC
plain = best_of_three(run_steps, one_f_one_b, m, long)
chunked = best_of_three(run_two_chunks, two_chunks, m, short)
print("1F1B:", sends(plain), "messages")
lockstep.compare(predicted=prediction, measured=sends(chunked))

# %% id="chunks-measured" tags=["varies"]
rows = []
for name, chunks, job in ("1F1B", 1, plain), ("2 chunks a rank", 2, chunked):
    bubble = f"{100 * lockstep.cost.bubble(NPROC, m, chunks):.1f} %"
    most = max(stage["saved"] for stage in job.results)
    idle = f"{100 * idle_share(job):.1f} %"
    rows.append([name, bubble, idle, sends(job), most])
columns = ["schedule", "idle by the formula", "idle, measured"]
columns += ["messages", "kept at most"]
stamp = lockstep.live(chunked)
lockstep.table(f"{NPROC} ranks, {m} microbatches", columns, rows, stamp=stamp)

# %% [markdown] id="price-text"
# By the formula about half the bubble, for more than twice the messages: each microbatch crosses $vp - 1$ times, not
# $p - 1$. Measured, the gain is smaller: each message adds the time to wake up, and there are more than twice as
# many. And more is kept (of chunks half as large). Whether it pays depends on what a
# message costs. In the next table a message arrives some part of a *chunk's* step later, by the model. It has the
# interleaved schedule twice: with two forwards for each rank after this one before the first backward, as above, and
# with only *one*, $(v - 1)\,p + (p - 1 - r)$ in all. Without messages that would be as fast, and would keep less.


# %% id="price"
def filling(each):
    """Two chunks a rank, and so many first forwards for each rank after it."""

    def schedule(rank, ranks, microbatches):
        steps = two_chunks(rank, ranks, microbatches)
        forwards = [one for one in steps if one[0] == "F"]
        backwards = [one for one in steps if one[0] == "B"]
        warm = ranks + each * (ranks - 1 - rank)  # (v - 1)·p, and `each` adds
        turns = zip(forwards[warm:], backwards, strict=False)
        turns = [one for pair in turns for one in pair]
        return forwards[:warm] + turns + backwards[-warm:]

    return schedule


times, twice = (0, 0.25, 0.5, 1), {"forward": 2, "backward": 2}
schedules = {
    "1F1B, steps twice as long": (one_f_one_b, twice),
    "interleaved, two forwards each": (filling(2), {"chunks": 2}),
    "interleaved, one forward each": (filling(1), {"chunks": 2}),
}
rows = []
for name, (schedule, how) in schedules.items():
    plans = [plan(schedule, 4, 8, message=time, **how) for time in times]
    rows.append([name, *(one.length for one in plans)])
columns = ["a message takes", *times]
title = "Time of a batch, in steps of a chunk"
stamp = lockstep.simulated("4 ranks, 8 microbatches; F as long as B")
lockstep.table(title, columns, rows, stamp=stamp)

# %% [markdown] id="price-explained"
# So the second forward for each rank gives a message time to travel. With it interleaving pays in all columns;
# without it, only where messages are short. (The model leaves out that messages share links, and that sending takes a
# rank's own time: more messages cost more than here.)

# %% [markdown] id="zero-text"
# ## No bubble, or nearly
#
# About 35 minutes; a CPU is enough. An exercise: ZB-H1, a zero-bubble schedule; and a sentence of its paper, tested.
#
# A backward has two halves: the gradient of the stage's *input*, for which the stage before it waits, and
# that of its *weights*, for which nobody waits until the optimizer's step. [Qi et al.
# 2023](https://arxiv.org/abs/2401.10241), "Zero bubble pipeline parallelism", make two steps of it: **B** for
# the input, **W** for the weights. Where a stage would wait, it can now do a W. Their schedule **ZB-H1**:
#
# - F and B in 1F1B's order. B is shorter now, so gradients come back earlier.
# - A W needs what its forward and its B had, so a microbatch is kept until its W. In 1F1B stage *s* keeps
#   *p* − *s* microbatches, stage 0 the most, *p*. So every stage may keep *p*: stage *s* puts each W off,
#   until *s* more backwards have been done.
# - What is left of W fills the wait between the last backwards.
#
# Count with F, B and W of one unit each: a batch is 3*m* units of work a stage, and [section
# 2.3](https://arxiv.org/abs/2401.10241) says that $(p - 1)(F + B - W)$ are idle. **Predict** the bubble for 4
# stages and 8 microbatches.

# %% id="zero-prediction" tags=["prediction"]
# your number, between 0 and 1
prediction = 3 / (3 * 8 + 3)

# %% id="zero-computed"
lockstep.compare(predicted=prediction, computed=lockstep.cost.zero_bubble(4, 8))

# %% [markdown] id="zero_bubble-text"
# ### Exercise: zero bubble
#
# **Goal:** `zero_bubble(stage, stages, microbatches)` returns the steps F, B and W of one stage, each once
# for every microbatch; there are at least as many microbatches as stages. With all stages' lists
# together, and by the model: all is done after $3m + p - 1$ units, and no stage keeps more than *p*
# microbatches at once. Every order that does this is right.

# %% id="zero_bubble"
import lockstep


def zero_bubble(stage, stages, microbatches):
    # BEGIN SOLUTION
    warm = min(stages - 1 - stage, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            steps.append(f"F{warm + number}")
        steps.append(f"B{number}")
        if number >= stage:  # from here on, `stage` weight steps are put off
            steps.append(f"W{number - stage}")
    left = range(microbatches - stage, microbatches)
    return steps + [f"W{number}" for number in left]
    # END SOLUTION


# %% id="zero_bubble-check"
lockstep.check("zero_bubble", zero_bubble)

# %% id="zero_bubble-timeline"
zero_bubble = lockstep.carry_on("zero_bubble", zero_bubble)
drawn(plan(zero_bubble, 4, 8), "ZB-H1, 4 stages, 8 microbatches")

# %% [markdown] id="third-text"
# ### Claim: "the bubble size is reduced to a third of 1F1B's size"
#
# So says section 2.1 of [that paper](https://arxiv.org/abs/2401.10241) of ZB-H1, at the same largest memory
# of a stage. Idle *time* is meant: of a stage, in units, where F, B and W are equally long, and 1F1B's
# backward is B and W together. **Guess** for 2 to 8 stages, then compare by the model.

# %% id="third-guess" tags=["guess"]
guess = "holds"

# %% id="third-claim"
one_f_one_b = lockstep.carry_on("one_f_one_b")
ratios, memory = {}, []
for p, n in ((2, 4), (4, 8), (8, 16)):
    split, full = plan(zero_bubble, p, n), plan(one_f_one_b, p, n, backward=2)
    ratios[p] = split.idle * split.length / (full.idle * full.length)
    most = max(kept(zero_bubble(s, p, n)) for s in range(p))
    memory.append(most <= max(kept(one_f_one_b(s, p, n)) for s in range(p)))
thirds = [abs(ratio - 1 / 3) < 0.01 for ratio in ratios.values()]
otherwise = "depends" if any(thirds) else "does not hold"
said = [f"{p} stages: {r:.2f} of 1F1B's idle time" for p, r in ratios.items()]
said.append(f"memory no larger: {'always' if all(memory) else 'not always'}")
lockstep.claim(
    "ZB-H1 reduces the bubble to a third of 1F1B's, with no more memory.",
    guess=guess,
    verdict="holds" if all(thirds + memory) else otherwise,
    because="; ".join(said),
    stamp=lockstep.simulated("F, B and W of one unit each, messages take none"),
)


# %% id="split-stage"
class SplitStage(Stage):
    """Its backward has the input's gradient only, and `weights` the rest."""

    def backward(self, number, grad):
        self.saved[number] = self.saved[number], grad  # the weights need both
        return self._step(f"B{number}", grad * self.weight)

    def weights(self, number):
        x, grad = self.saved.pop(number)
        self.grad += (grad * x).sum().item()
        self._step(f"W{number}", grad)


def run_three_ways(order, stage, inputs):
    """The program of exercise 3, with W steps, which need no message."""
    rank, last, sent = dist.get_rank(), dist.get_world_size() - 1, []
    for way, number in ((step[0], int(step[1:])) for step in order):
        if way == "W":
            stage.weights(number)
            continue
        by = 1 if way == "F" else -1
        x = inputs[number] if by == 1 else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        compute = stage.forward if by == 1 else stage.backward
        y = compute(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
    for handle in sent:  # after it, one more send is over
        handle.wait()


# %% id="zero-run" tags=["varies"]
third, joined = {"F": 0.02, "B": 0.02, "W": 0.02}, {"F": 0.02, "B": 0.04}
n = 2 * NPROC
full_job = best_of_three(run_three_ways, one_f_one_b, n, joined)
zero_job = best_of_three(run_three_ways, zero_bubble, n, third, SplitStage)
bubbles = lockstep.cost.bubble(NPROC, n), lockstep.cost.zero_bubble(NPROC, n)
measured = idle_share(full_job), idle_share(zero_job)
rows = [
    ["1F1B", f"{100 * bubbles[0]:.1f} %", f"{100 * measured[0]:.1f} %"],
    ["ZB-H1", f"{100 * bubbles[1]:.1f} %", f"{100 * measured[1]:.1f} %"],
]
columns = ["schedule", "idle by the formula", "idle, measured"]
stamp = lockstep.live(zero_job)
lockstep.table(f"{NPROC} ranks, {n} microbatches", columns, rows, stamp=stamp)

# %% id="zero-live" tags=["varies"]
live_timeline(zero_job, f"ZB-H1 on {NPROC} ranks")

# %% [markdown] id="zero-explained"
# Measured, both are idle for more than the formula says. Both send the same messages, which add about as much
# time to each; and of the shorter batch that is a larger part.

# %% [markdown] id="torch-text"
# ## PyTorch's own schedules
#
# About 10 minutes; a CPU is enough. `torch.distributed.pipelining` has these schedules as classes. Here they run,
# with gloo, on a stage that notes what is asked of it. The last cell compares their orders with those above.
#
# A stage takes `group=`, a process group, so that a pipeline can be one axis of several (lab 01). Without it
# its ranks are those of the default group, says its source,
# [`stage.py`](https://github.com/pytorch/pytorch/blob/main/torch/distributed/pipelining/stage.py).


# %% id="torch-run"
def run_torchs(pipelining, make, name, microbatches, chunks):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cpu, stages = torch.device("cpu"), []
    for place in range(rank, ranks * chunks, ranks):
        stages.append(make(torch.nn.Linear(4, 4), place, ranks * chunks, cpu))
    kind = getattr(pipelining, name)
    several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    mine, loss = stages if several else stages[0], torch.nn.functional.mse_loss
    schedule = kind(mine, microbatches, loss_fn=loss)
    batch = torch.randn(microbatches, 4)
    given = (batch,) if rank == 0 else ()
    schedule.step(*given, **({"target": batch} if rank == ranks - 1 else {}))


# %% id="torch-order"
def torchs_order(name, microbatches, chunks):
    """What one of PyTorch's schedules does on this rank, as a list of steps."""
    from torch.distributed import pipelining

    ranks, did = dist.get_world_size(), []

    class Noting(pipelining.PipelineStage):
        def note(self, way, number):
            chunk = self.stage_index // ranks
            did.append(f"{way}{number}" + (f".{chunk}" if chunks > 1 else ""))

        def forward_one_chunk(self, number, *args, **kwargs):
            self.note("F", number)
            return super().forward_one_chunk(number, *args, **kwargs)

        def backward_one_chunk(self, number, *args, **kwargs):
            self.note("B", number)
            return super().backward_one_chunk(number, *args, **kwargs)

        def backward_weight_one_chunk(self, number, *args, **kwargs):
            self.note("W", number)
            return super().backward_weight_one_chunk(number, *args, **kwargs)

    run_torchs(pipelining, Noting, name, microbatches, chunks)
    return did


# %% id="torch-compared"
interleaved = lockstep.carry_on("interleaved")
OURS = {
    "ScheduleGPipe": (gpipe, 1),
    "Schedule1F1B": (lockstep.carry_on("one_f_one_b"), 1),
    "ScheduleInterleaved1F1B": (lambda r, n, m: interleaved(r, n, 2, m), 2),
    "ScheduleInterleavedZeroBubble": (lockstep.carry_on("zero_bubble"), 1),
}
rows, options = [], {"nproc_per_node": 4, "backend": "gloo", "show": False}
for name, (ours, chunks) in OURS.items():
    job = lockstep.torchrun(torchs_order, name, 8, chunks, **options)
    same = [r for r in range(4) if list(job[r]) == list(ours(r, 4, 8))]
    where = "all 4 ranks" if len(same) == 4 else f"ranks {same}"
    rows.append([name, chunks, where])
columns = ["PyTorch's schedule", "chunks a rank", "the same order as here on"]
stamp = lockstep.live(job)
lockstep.table("4 ranks, 8 microbatches", columns, rows, stamp=stamp)

# %% [markdown] id="torch-explained"
# With one chunk a rank, PyTorch's `ScheduleInterleavedZeroBubble` has the order of ZB-H1. (Another right order may
# differ from PyTorch's.) There is more: `ScheduleZBVZeroBubble` gives a rank two chunks that lie like the two arms of
# a V (rank 0 has the first stage *and* the last; Qi et al., section 6), and `ScheduleDualPipeV` is a variant of
# DeepSeek's [DualPipe](https://github.com/deepseek-ai/DualPipe).
