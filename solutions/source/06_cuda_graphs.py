# %% [markdown] id="title"
# # 06 · CUDA graphs
#
# **Two sittings, 70 and 90 minutes · needs: a CPU** (the same cells use a GPU where there is one)
#
# A small model keeps a large GPU waiting for the host: each kernel is launched by itself, and launching takes longer than
# computing. A CUDA graph holds launches that are recorded once and then made all at once. Afterwards you can
#
# - say from a trace whether a step is bound by launches, and predict what a graph gains,
# - capture a forward pass or a whole training step, so that it computes what the plain one does,
# - say why something cannot be captured, or why its replay is wrong,
# - serve all batch sizes with a few graphs, and predict the memory they take.
#
# Lab 04 comes first: it has streams, events and the virtual GPU. No GPU is needed: where there is none, your code
# runs on the virtual GPU. Its values are real, its times come from a model. What the model cannot tell was recorded
# on an H200.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks that communicate, in the further notebook only
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
from itertools import pairwise

import lockstep
import torch
import torch.distributed as dist

print(lockstep.virtual.MACHINES["H200"])

# %% id="progress" tags=["unpublished"]
lockstep.progress("06")

# %% [markdown] id="machine-text"
# `on_gpu(program, …)` runs `program(cuda, …)` in a process that has the GPU, as in lab 04; `cuda` has the names of
# `torch.cuda`. On a real GPU the result comes from a run without a profiler, and the program runs once more for its
# timeline. With `values=False` the virtual GPU computes times only.

# %% id="on-gpu-rank" tags=["plumbing"]
import tempfile

from lockstep.base.provenance import Provenance


def _on_rank(program, args, values, traced):
    if not torch.cuda.is_available():
        with lockstep.virtual.device("H200", values=values) as cuda:
            return program(cuda, *args), lockstep.virtual.trace()
    name = Provenance("live", torch.cuda.get_device_name())
    if not traced:
        untraced = lockstep.Trace.from_slices([], stamp=name)
        return program(torch.cuda, *args), untraced
    program(torch.cuda, *args)  # the first call loads kernels
    torch.cuda.synchronize()
    result = program(torch.cuda, *args)
    with torch.profiler.profile() as profiler:
        program(torch.cuda, *args)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/rank0.json")
        return result, lockstep.Trace.load(folder, stamp=name)


ONE_RANK = {"nproc_per_node": 1, "init": False, "show": False}

# %% id="on-gpu" tags=["plumbing"]
from dataclasses import dataclass
from typing import Any


@dataclass
class Seen:
    result: Any
    trace: Any
    stamp = property(lambda self: self.trace.stamp)

    def timeline(self, title):
        return lockstep.Timeline(self.trace, title=title)

    def compare(self, prediction, value, unit=""):
        way = "computed" if self.stamp.kind == "simulated" else "measured"
        return lockstep.compare(prediction, **{way: value}, unit=unit)


def on_gpu(program, *args, values=True, traced=True):
    """Run program(cuda, *args) on this machine's GPU, or on a virtual H200."""
    job = lockstep.torchrun(_on_rank, program, args, values, traced, **ONE_RANK)
    return Seen(*job[0])


# %% [markdown] id="model-text"
# The model of this lab is simple: layers x + relu(x · w), each of three kernels. `seconds(cuda, step)` times a step:
# it takes the mean of thirty steps, from the first call until the device is done, and returns the median of three
# such means.


# %% id="model"
def make_weights(layers=24, width=512):
    scale = 0.5 / width**0.5
    weights = torch.randn(layers, width, width, device="cuda") * scale
    return list(weights.to(torch.bfloat16).unbind())


def forward(weights, x):
    for w in weights:
        x = x + torch.relu(x @ w)  # three kernels
    return x


def seconds(cuda, step, repeats=30):
    step()
    means = []
    for _ in range(3):
        cuda.synchronize()
        # time.perf_counter, or the virtual host's clock
        begin = lockstep.virtual.perf_counter()
        for _ in range(repeats):
            step()
        cuda.synchronize()
        means.append((lockstep.virtual.perf_counter() - begin) / repeats)
    return sorted(means)[1]


# %% [markdown] id="bound-text"
# ## 1 · Launches that take longer than kernels
#
# A serving engine generates one token at a time, in a *decode step*: a forward pass with one row for each sequence. Here
# are 8 sequences and 24 layers of width 512, each with a product (8 × 512) · (512 × 512), a relu and an addition. Each of these
# kernels takes the device 1 to 3 µs. How long each *launch* takes the host is in the line about the machine above;
# that of a product takes longer. All of them take longer than the kernels, so the device waits for the host.
#
# **Predict:** how many µs does a decode step take?

# %% id="bound-prediction" tags=["prediction"]
# your number, in µs
prediction = 24 * (11.7 + 2 * 6.6)  # each layer: a product, two more launches


# %% id="bound"
def eager(cuda, batch, width=512):
    weights = make_weights(width=width)
    x = torch.ones(batch, width, dtype=torch.bfloat16, device="cuda")
    return seconds(cuda, lambda: forward(weights, x)) * 1e6


timed = on_gpu(eager, 8, values=False)
timed.compare(prediction, timed.result, "µs")


# %% id="bound-timeline"
def one_step(cuda, batch=8):
    weights = make_weights()
    x = torch.ones(batch, 512, dtype=torch.bfloat16, device="cuda")
    cuda.synchronize()
    return forward(weights, x)


def one(cuda):
    one_step(cuda)
    cuda.synchronize()


plain = on_gpu(one, values=False)
plain.timeline("One step: the host calls, and the device waits for it")

# %% [markdown] id="signs-text"
# Zoom in: between two kernels the device's row is empty. There are three signs of a step that is **launch-bound**:
#
# 1. the device is idle between kernels while the next kernel is *not yet launched*;
# 2. the queue is empty: each kernel begins soon after its launch, instead of waiting for others;
# 3. the step takes as long with less work in it (you can try that in the further notebook).
#
# The first two can be counted in a trace.

# %% id="signs"
from lockstep.trace import Kind


def kernels_of_step(trace):
    """(start, end) in µs of each kernel after the first wait of the host."""
    calls = [one.end for one in trace if one.name == "cudaDeviceSynchronize"]
    kernels = [one for one in trace if one.kind == Kind.COMPUTE]
    after = [one for one in kernels if one.start > min(calls)]
    return sorted((one.start / 1e3, one.end / 1e3) for one in after)


kernels = kernels_of_step(plain.trace)
durations = [end - start for start, end in kernels]
# of a step without the profiler, which slows the host down
computes = sum(durations) / timed.result
queue = plain.trace.launches().queue(0)
depth, waits = queue.depth[0], queue.stretches
rows = [
    ["the device computes, of the step's time", f"{100 * computes:.0f} %"],
    ["kernels in the queue, median", depth],
    ["times that the device waited for a launch, set-up included", waits],
]
columns = ["sign", "found"]
lockstep.table("Is it launch-bound?", columns, rows, stamp=plain.stamp)

# %% [markdown] id="last_end-text"
# ### Exercise 1: when is the device done?
#
# A model of such a step has the kernels' durations and three numbers. The host begins launch number *i* (0, 1, 2 …) at
# *i* · `launch`. Its kernel begins as soon as `latency` has passed since then *and* `gap` has passed since the end of
# the kernel before it, if there is one. It does not wait for anything else.
#
# **Goal:** `last_end(kernels, launch, latency, gap)` returns when the last kernel ends; `kernels` lists the kernels'
# durations in order, at least one. All times are in µs, from the start of the first launch.


# %% id="last_end"
def last_end(kernels, launch, latency, gap):
    # BEGIN SOLUTION
    end = -gap  # so that the first waits for nothing before it
    for number, duration in enumerate(kernels):
        # after each turn, `end` is when this kernel ends
        end = max(number * launch + latency, end + gap) + duration
    return end
    # END SOLUTION


# %% id="last_end-check"
lockstep.check("last_end", last_end)

# %% [markdown] id="last_end-use"
# This function predicts the gain of a graph. The virtual H200's numbers were fitted to recordings. Launched one by one,
# a launch takes (11.7 + 2 · 6.6) / 3 = 8.3 µs on average, `latency` is 9.0 µs and `gap` 1.15 µs. A graph is launched
# once for all of its kernels: `launch` is 0, `latency` 6.0 µs and `gap` 0.18 µs on average.

# %% id="last_end-run"
last_end = lockstep.carry_on("last_end", last_end)
rows = [
    ["the kernels alone", f"{sum(durations):.0f}"],
    ["launched one by one", f"{last_end(durations, 8.3, 9.0, 1.15):.0f}"],
    ["as a graph", f"{last_end(durations, 0, 6.0, 0.18):.0f}"],
]
stamp = lockstep.simulated("last_end")
lockstep.table("72 kernels, by the model", ["how", "µs"], rows, stamp=stamp)

# %% [markdown] id="capture-text"
# ## 2 · Capture and replay
#
# A graph is **captured**: inside `with cuda.graph(g):` your launches are recorded and nothing runs. `g.replay()` then
# gives all of them to the current stream in one call. Here `x` is 2, `x.mul_(3)` is captured, and the graph is replayed
# twice. **Predict:** what is `x` then?

# %% id="capture-prediction" tags=["prediction"]
prediction = 2 * 3 * 3  # capturing runs nothing; each replay multiplies once


# %% id="capture"
def first_graph(cuda):
    x = torch.full((8,), 2.0, device="cuda")
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        x.mul_(3)
    captured = x[0].item()
    g.replay()
    g.replay()
    return captured, x[0].item()


seen = on_gpu(first_graph, traced=False)
print("after the capture:", seen.result[0])
seen.compare(prediction, seen.result[1])

# %% [markdown] id="addresses-text"
# A graph knows kernels and **addresses**, but nothing about your variables. Here `y = x * 10` is captured while `x` is a
# tensor of 1s. Then the name `x` is given to a *new* tensor of 2s, and the graph is replayed. This is **broken on
# purpose**. **Predict:** what is `y`?

# %% id="addresses-prediction" tags=["prediction"]
prediction = 10  # the graph reads the old tensor, which is still there


# %% id="addresses"
def new_input(cuda):
    x = old = torch.ones(8, device="cuda")
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = x * 10
    x = torch.full((8,), 2.0, device="cuda")  # new: the graph does not know it
    g.replay()
    stale = y[0].item()
    old.copy_(x)  # into the memory that the graph reads
    g.replay()
    return stale, y[0].item()


seen = on_gpu(new_input, traced=False)
display(seen.compare(prediction, seen.result[0]))
print("copied into the old tensor:", seen.result[1])

# %% [markdown] id="outputs-text"
# So inputs are **static**: tensors that stay where they are, into which each new input is copied. The same holds for
# outputs: each replay writes `y` into the same memory, over what was there. Copy out whatever you want to keep.
#
# Where is `y` stored? Whatever a capture allocates comes from a **private pool** of the graph: memory that nobody
# else gets while the graph exists, so that its addresses stay valid. `cuda.empty_cache()` does not release it.
# PyTorch's [notes on CUDA graphs](https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) have the rules.
#
# **Warm-up.** Whatever a step does only in its first call must happen before the capture: creating buffers, choosing
# algorithms, loading kernels. So call it at least once before, on a *side stream*: on a GPU, what autograd and
# libraries set up in a first call may be bound to the stream of that call. (The virtual GPU cannot detect this, so
# the checks do not ask for a side stream, and short cells below do without.)
#
# ### Exercise 2: a graph that others can use
#
# **Goal:** `captured(cuda, work, x)` captures `work` once and returns a function `run`. `run(new)` returns the tensor
# that `work(new)` would return, with a copy in, one replay and a copy out: at most three launches. `new` has the shape
# and type of `x`. What `run` has returned never changes, whatever runs later; `x` and `new` are not changed. The host
# never waits in `run`. The first call of `work` sets something up that cannot be captured.

# %% id="captured"
import torch


def captured(cuda, work, x):
    # BEGIN SOLUTION
    static = x.clone()  # the graph's own input
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work(static)  # what happens in the first call only happens here
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return out.clone()

    return run
    # END SOLUTION


# %% id="captured-check"
lockstep.check("captured", captured)

# %% [markdown] id="gain-text"
# Now the decode step of section 1, captured by your function, and beside it a bare loop of `g.replay()`. A replay
# costs the host one launch. Your model of exercise 1 has said how long the 72 kernels take as a graph. In a
# loop, each replay is launched while the one before it runs, which hides `latency`. **Predict:** how many times as fast
# as the eager step is a bare replay?

# %% id="gain-prediction" tags=["prediction"]
# your number: eager time / replay time
prediction = 599 / (139 - 6.0)


# %% id="gain"
captured = lockstep.carry_on("captured", captured)


def ways(cuda, batch=8, width=512):
    weights = make_weights(width=width)
    x = torch.ones(batch, width, dtype=torch.bfloat16, device="cuda")
    run = captured(cuda, lambda new: forward(weights, new), x)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        forward(weights, x)
    steps = {
        "eager": lambda: forward(weights, x),
        "captured": lambda: run(x),
        "bare": g.replay,
    }
    return {name: seconds(cuda, step) * 1e6 for name, step in steps.items()}


seen = on_gpu(ways, values=False)
took = seen.result
gain = {name: took["eager"] / us for name, us in took.items()}
rows = [[name, f"{took[name]:.0f}", f"{gain[name]:.2f}"] for name in took]
columns = ["how", "µs", "times as fast"]
display(lockstep.table("A decode step", columns, rows, stamp=seen.stamp))
seen.compare(prediction, gain["bare"], "times")


# %% id="gain-timeline"
def replayed(cuda):
    weights = make_weights()
    x = torch.ones(8, 512, dtype=torch.bfloat16, device="cuda")
    run = captured(cuda, lambda new: forward(weights, new), x)
    cuda.synchronize()
    run(x)
    cuda.synchronize()


after = on_gpu(replayed, values=False)
title = "Warm-up and capture, then one replay: a copy, the graph, a copy"
after.timeline(title)

# %% [markdown] id="break"
# **Break.** The first sitting ends here. You can recognise a launch-bound step, and make a graph of it that computes
# the same. What comes next: whole training steps, what cannot be captured, and many batch sizes. To go on from here in
# a new kernel, run only the lab's first cells, down to the one that defines `forward`.

# %% [markdown] id="training-text"
# ## 3 · A whole training step
#
# Forward, backward and optimizer can be one graph. Two things are easy to miss.
#
# **The warm-up trains.** Its calls are real steps. And **numbers are baked in**: a Python number that was passed to a
# kernel stays as it was. Here SGD is captured with a learning rate of 0.1. One step is replayed; then the program sets
# `lr` to 0 and replays another. **Predict:** what is the change that the second step makes to `w`, divided by that of
# the first?

# %% id="baked-prediction" tags=["prediction"]
prediction = 1  # the kernels of the graph have 0.1 in them


# %% id="baked"
def baked(cuda):
    w = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    optimizer = torch.optim.SGD([w], lr=0.1)

    def step():
        optimizer.zero_grad()
        w.sum().backward()  # its gradient is 1 everywhere
        optimizer.step()

    step()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        step()
    changes = []
    for lr in (0.1, 0.0):
        optimizer.param_groups[0]["lr"] = lr
        before = w[0].item()
        g.replay()
        changes.append(before - w[0].item())
    return changes


seen = on_gpu(baked, traced=False)
seen.compare(prediction, round(seen.result[1] / seen.result[0], 3))

# %% [markdown] id="baked-explained"
# What is to change from replay to replay must be in a tensor on the device: for example `Adam(lr=torch.tensor(…,
# device="cuda"), capturable=True)`. A tensor on the CPU is read during the capture, and its number is baked
# in like any other. Without `capturable=True`, `Adam.step` refuses to be captured.
#
# ### Exercise 3: a training step
#
# **Goal:** `graphed_training(cuda, model, optimizer, loss_of, x, y)` captures a step: gradients to zero, `loss =
# loss_of(model(x), y)`, backward, `optimizer.step()`. It returns `step(x, y)`, which does one step on a new batch by
# one replay, and returns the loss that was computed in it, in a tensor of its own. Capturing must **not train**: when
# `graphed_training` returns, the model's parameters have the values they had before. `optimizer` is SGD without
# momentum, so there is no other state. In `step`, the host does not wait, and there are at most four launches.

# %% id="graphed_training"
import torch


def graphed_training(cuda, model, optimizer, loss_of, x, y):
    # BEGIN SOLUTION
    x_static, y_static = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def work():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x_static), y_static)
        loss.backward()
        optimizer.step()
        return loss

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            work()
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before, strict=True):
            p.copy_(old)  # into the same memory, which the graph knows

    def step(x, y):
        x_static.copy_(x)
        y_static.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step
    # END SOLUTION


# %% id="graphed_training-check"
lockstep.check("graphed_training", graphed_training)

# %% [markdown] id="breaks-text"
# ## 4 · What breaks a capture
#
# While a stream is captured, nothing runs on it. So the host cannot wait for a value, nor for the shape of a result,
# and nothing can be copied between the device and ordinary (not pinned) memory. Work on other streams must be joined to
# the stream of the capture. Random numbers are drawn on the device. **Predict:** how many of the ten lines below fail,
# each captured by itself?

# %% id="breaks-prediction" tags=["prediction"]
prediction = 6  # item, if, the mask, cpu, synchronize, the stream not joined


# %% id="breaks-list"
def unjoined(x, cuda):
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        x.add_(1)  # and nothing waits for it


SNIPPETS = {
    "x.sum()": lambda x, cuda: x.sum(),
    "x.sum().item()": lambda x, cuda: x.sum().item(),
    "if x.sum() > 0: …": lambda x, cuda: x * 2 if x.sum() > 0 else x,
    "if x.shape[0] > 4: …": lambda x, cuda: x * 2 if x.shape[0] > 4 else x,
    "x[x > 0]": lambda x, cuda: x[x > 0],
    "torch.where(x > 0, x, 0)": lambda x, cuda: torch.where(x > 0, x, 0),
    "torch.randn(8, device=…)": lambda x, cuda: torch.randn(8, device="cuda"),
    "x.cpu()": lambda x, cuda: x.cpu(),
    "cuda.synchronize()": lambda x, cuda: cuda.synchronize(),
    "a side stream, not joined": unjoined,
}


# %% id="breaks"
def try_to_capture(cuda, name):
    x = torch.ones(8, device="cuda")
    if SNIPPETS[name] is not unjoined:  # that one would leave its stream behind
        SNIPPETS[name](x, cuda)  # warm-up
    try:
        with cuda.graph(cuda.CUDAGraph()):
            SNIPPETS[name](x, cuda)
    except RuntimeError as error:
        first = error.__context__ or error  # not what it led to
        said = str(first).splitlines()[0].removeprefix("CUDA error: ")
        return said.split(". ")[0]  # what follows is advice
    return ""


found = {name: on_gpu(try_to_capture, name, traced=False) for name in SNIPPETS}
rows = [[name, seen.result or "captured"] for name, seen in found.items()]
columns, stamp = ["line", "what came of it"], found["x.sum()"].stamp
display(lockstep.table("Ten lines, captured", columns, rows, stamp=stamp))
failed = sum(bool(seen.result) for seen in found.values())
found["x.sum()"].compare(prediction, failed)

# %% [markdown] id="breaks-explained"
# A mask fails because its result's *shape* depends on values. The result of `torch.where` always has the same shape.
# Random numbers work, and each replay draws new ones. An `if` on a shape can be captured: the graph contains the
# branch that was taken during the capture.
#
# It is worse if the capture succeeds and the replay is wrong. Python runs during the capture only: in a replay it does
# not count, print or decide ("A counter in Python, and a list of outputs", in the further notebook).
#
# ### Exercise 4: make it capturable
#
# This function cannot be captured:
#
# ```python
# def clipped(x, limit):
#     norm = x.norm().item()                # waits
#     if norm > limit:                      # a branch on a value
#         x = x * (limit / norm)
#     large = x[x.abs() > 0.5]              # a shape that depends on values
#     return large.sum()
# ```
#
# **Goal:** `clipped(x, limit)` can be captured, and each replay computes the same as this function for the values that
# `x` has then. The result is a tensor with one number. `limit` is a positive Python number that does not change. `x` is
# float32 and has one dimension; it is not all zeros, and must not be changed.

# %% id="clipped"
import torch


def clipped(x, limit):
    # BEGIN SOLUTION
    scale = torch.clamp(limit / x.norm(), max=1.0)  # 1 where nothing is clipped
    x = x * scale
    return torch.where(x.abs() > 0.5, x, 0.0).sum()
    # END SOLUTION


# %% id="clipped-check"
lockstep.check("clipped", clipped)

# %% [markdown] id="by_size-text"
# ## 5 · One graph for each batch size
#
# Shapes are fixed in a graph. A serving engine's batch size changes from step to step, as requests come and go. It
# captures graphs for a few sizes, and **pads**: a batch of 9 runs in the graph for 16, and 7 rows are discarded
# ([`enable_padding`](https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/DecodeCudaGraphConfig.html) in
# TensorRT-LLM).
#
# Is that expensive? As long as a step is bound by launches or by reading weights, more rows cost next to nothing.
# What costs is **memory**: each graph keeps what it needs, whether it runs or not.
#
# A step of width 2048 keeps three tensors of *rows* × 2048 bfloat16 numbers at a time: the layer's input, the product
# and its relu. (The sum takes the product's place.) For 4096 rows each of them has 16 MiB. The allocator takes memory
# from the device in pieces:
#
# | tensor | comes from |
# | --- | --- |
# | 10 MiB or more | a piece of its own size |
# | more than 1 MiB | a piece of 20 MiB, with others if they fit |
# | 1 MiB or less | a piece of 2 MiB, with others if they fit |
#
# Nine graphs are captured, for 4096, 2048, …, 16 rows. **Predict:** how many MiB do they take, if each has its own
# pool? (Count the pieces for three tensors of 16 MiB, of 8, 4, 2, 1, and for the four smallest graphs. A real GPU takes
# 34 MiB more, once: 32 for cuBLAS, 2 for the random numbers' seed.)

# %% id="memory-prediction" tags=["prediction"]
# your number, in MiB
prediction = 48 + 40 + 20 + 20 + 4 + 4 * 2  # 3 of 8 MiB, or of 1: two pieces


# %% id="memory"
def graphs(cuda, sizes, shared):
    weights = make_weights(width=2048)
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    inputs = [torch.ones(rows, 2048, **options) for rows in sizes]
    forward(weights, inputs[0])
    cuda.synchronize()
    cuda.empty_cache()
    before, taken, kept = cuda.memory_reserved(), [], []
    pool = cuda.graph_pool_handle() if shared else None
    for x in inputs:
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            kept.append((g, forward(weights, x)))
        cuda.empty_cache()
        taken.append((cuda.memory_reserved() - before) / (1 << 20))
    return taken


LARGEST_FIRST = [4096 >> power for power in range(9)]
memory_seen = on_gpu(graphs, LARGEST_FIRST, False, values=False, traced=False)
own = memory_seen.result
memory_seen.compare(prediction, own[-1], "MiB")

# %% [markdown] id="shared-text"
# ### Claim: "each graph that is captured takes more memory"
#
# Graphs that never run at the same time can share a pool: `cuda.graph(g, pool=…)`. Then a graph reuses the memory of
# those before it for its intermediate results. Three ways: own pools; one pool for all, captured from the largest to
# the smallest; one pool, from the smallest to the largest. **Guess**: does each further graph take more, in all of
# them?

# %% id="shared-guess" tags=["guess"]
guess = "depends"

# %% id="shared-claim"
ways = {
    "own pools": (LARGEST_FIRST, False),
    "one pool, largest first": (LARGEST_FIRST, True),
    "one pool, smallest first": (LARGEST_FIRST[::-1], True),
}
options = {"values": False, "traced": False}
runs = {name: on_gpu(graphs, *how, **options) for name, how in ways.items()}
taken = {name: run.result for name, run in runs.items()}
ok = [b > a for one in taken.values() for a, b in pairwise(one)]
lockstep.claim(
    "Each graph that is captured takes more memory.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(
        f"{name}: {one[0]:.0f} MiB after the first, {one[-1]:.0f} after all"
        for name, one in taken.items()
    ),
    stamp=memory_seen.stamp,
)

# %% [markdown] id="shared-explained"
# Largest first, the later graphs fit into memory that the first one has left; only tensors of 1 MiB or less come from
# other pieces. Smallest first, each graph needs larger pieces than those before it have left.
#
# In a shared pool, intermediate results are overwritten by whichever graph runs next. So graphs of one pool must not
# run at the same time. Nor is an output safe because somebody keeps the tensor: clone it before another graph of the
# pool is replayed ("An output that is overwritten", in the further notebook).
#
# ### Exercise 5: all batch sizes
#
# **Goal:** `by_size(cuda, work, width, sizes)` captures `work` for inputs of `sizes` rows (float32, `width` columns),
# all in one pool, and returns `run(x)`. For `x` with at most `max(sizes)` rows it replays the smallest graph that fits
# and returns what `work(x)` would: as many rows as `x` has, in a tensor of its own. `work` treats each row by itself,
# and returns a tensor of that many rows. `sizes` are in any order. The first call of `work` sets something up that
# cannot be captured.

# %% id="by_size"
import torch


def by_size(cuda, work, width, sizes):
    # BEGIN SOLUTION
    # all graphs read its first rows
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static)  # warm-up
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = work(static[:size])
        graphs[size] = g, out

    def run(x):
        rows = len(x)
        g, out = graphs[min(size for size in sizes if size >= rows)]
        static[:rows].copy_(x)
        g.replay()
        return out[:rows].clone()

    return run
    # END SOLUTION


# %% id="by_size-check"
lockstep.check("by_size", by_size)

# %% [markdown] id="recap"
# ## Recap
#
# - A step is launch-bound if the device waits for launches: gaps between kernels, an empty queue, no gain from less work.
# - A capture records kernels and addresses, and runs nothing. Inputs are copied in, outputs copied out.
# - The memory of a capture comes from a pool. Graphs of one pool must not run at the same time.
# - Lines that wait, results whose shape depends on values, and streams that are not joined cannot be captured. What
#   Python does is captured once: branches, counters, numbers.
# - A training step can be one graph. Its warm-up trains, and its learning rate is baked in.
# - A few batch sizes and padding serve all batches. Where kernels are long, a graph gains nothing: the further
#   notebook has an H200's steps of many sizes.
#
# **Graphs that PyTorch makes for you.** `torch.compile(model, mode="reduce-overhead")` (lab 05) does all of this by
# itself. It copies inputs into static tensors, warms up, and captures a graph for each compiled function and each shape.
# The graphs share one pool, and PyTorch keeps the orders in which they have run as a *tree*
# ([CUDA graph trees](https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html)). The price is the one
# you have seen: the next step overwrites the outputs of the last one, so clone what you keep. PyTorch can raise an error
# if you read an output that was overwritten; after a replay it did not (lab 11, further). `torch.compiler.cudagraph_mark_step_begin()` marks where a new step begins:
# from there on, the outputs of the step before may be overwritten.
#
# **Graphs that change.** CUDA can set the parameters of a kernel in a graph that is ready
# (`cudaGraphExecKernelNodeSetParams`), or update the graph from another capture of the same structure
# (`cudaGraphExecUpdate`). PyTorch's `CUDAGraph` has no method for either; it only hands out CUDA's own handle
# (`raw_cuda_graph_exec()`). With PyTorch alone, what changes must be *in* the static tensors.
#
# **What comes next:** you looked at one GPU's timeline. With many ranks, who waits for whom? Lab 07 asks traces.

# %% [markdown] id="further"
# # 06 · CUDA graphs: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.

# %% [markdown] id="overwritten-text"
# ## An output that is overwritten
#
# About 10 minutes; a CPU is enough. A graph's output may lie where another graph of the same pool, captured *before* it,
# keeps an intermediate result. The cell captures `first`, which computes `x * 2 + 3` and needs memory for `x * 2` on
# the way, then `second` with `z = x * 100`, in one pool; `x` is 1. Then it replays `first`, `second` and
# `first`. **Predict:** what is `z` after these three?

# %% id="overwritten-prediction" tags=["prediction"]
prediction = 2  # z lies where `first` puts x * 2


# %% id="overwritten"
def overwritten(cuda):
    x = torch.ones(8, device="cuda")
    pool = cuda.graph_pool_handle()
    first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(first, pool=pool):
        y = x * 2 + 3
    with cuda.graph(second, pool=pool):
        z = x * 100
    found = []
    for g in (first, second, first):
        g.replay()
        found.append((y[0].item(), z[0].item()))
    # of a real GPU nobody reports it
    is_virtual = lockstep.virtual.is_on()
    return found, str(lockstep.virtual.races()) if is_virtual else "no report"


seen = on_gpu(overwritten, traced=False)
found, report = seen.result
print("y and z after each replay:", *found)
print(report)
seen.compare(prediction, found[-1][1])

# %% [markdown] id="overwritten-explained"
# So there are two ways to share a pool. Replay its graphs in the order in which they were captured, as PyTorch's notes
# ask, and be done with all outputs before the next round begins; or copy out what a replay has computed before another
# graph runs.

# %% [markdown] id="less-text"
# ## The third sign of a launch-bound step
#
# About 5 minutes; a CPU is enough.
#
# ### Claim: "a smaller batch makes a step faster"
#
# Many people expect it. **Guess:** does it hold, if each batch has a quarter of the rows of the one before? (Faster
# means here: by 10 % or more.)

# %% id="less-guess" tags=["guess"]
guess = "depends"


# %% id="less-claim"
def by_batch(cuda):
    weights, found = make_weights(width=2048), {}
    for batch in (4096, 1024, 256, 64, 16):
        x = torch.ones(batch, 2048, dtype=torch.bfloat16, device="cuda")
        found[batch] = seconds(cuda, lambda x=x: forward(weights, x)) * 1e6
    return found


seen = on_gpu(by_batch, values=False)
took = seen.result
ok = [after < 0.9 * before for before, after in pairwise(took.values())]
lockstep.claim(
    "A smaller batch makes a step faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(f"{n} rows: {us:,.0f} µs" for n, us in took.items()),
    stamp=seen.stamp,
)

# %% [markdown] id="python-text"
# ## A counter in Python, and a list of outputs
#
# About 10 minutes; a CPU is enough. Python runs during the capture only. Here a counter is
# raised in Python, and a tensor by a kernel; warm-up once, capture, then five replays. **Predict:** what is the
# Python counter at the end?

# %% id="python-prediction" tags=["prediction"]
prediction = 2  # one warm-up, one capture; replays run no Python


# %% id="python"
def counted(cuda):
    calls, x = [], torch.zeros(8, device="cuda")

    def work():
        calls.append(1)
        x.add_(1)

    work()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        work()
    for _ in range(5):
        g.replay()
    return len(calls), x[0].item()


seen = on_gpu(counted, traced=False)
print("the tensor has counted to", seen.result[1])
seen.compare(prediction, seen.result[0])

# %% [markdown] id="python-explained"
# The tensor has counted the warm-up and five replays; the capture ran nothing.
#
# And outputs? A graph computes `x + 1`. It is replayed for x = 0, 1, 2; each time `y` goes into one list, and a copy
# of `y` into another. What will be in the two lists?


# %% id="outputs"
def outputs(cuda):
    x = torch.zeros(8, device="cuda")
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = x + 1
    kept, copied = [], []
    for value in range(3):
        x.fill_(value)
        g.replay()
        kept.append(y)
        copied.append(y.clone())
    return [one[0].item() for one in kept], [one[0].item() for one in copied]


seen = on_gpu(outputs, traced=False)
print("kept:", *seen.result[0], "· copied:", *seen.result[1])

# %% [markdown] id="outputs-explained"
# All entries of the first list are one and the same tensor, which the last replay has overwritten.

# %% [markdown] id="pool-text"
# ## Memory while a graph is captured
#
# About 5 minutes; a CPU is enough. That a captured graph may make no new memory allocations is a common guess.
#
# ### Claim: "memory cannot be allocated while a graph is captured"
#
# **Guess**, then the cell captures a step that makes 72 tensors, and asks the allocator.

# %% id="pool-guess" tags=["guess"]
guess = "does not hold"


# %% id="pool-claim"
def allocating(cuda):
    weights = make_weights()
    x = torch.ones(64, 512, dtype=torch.bfloat16, device="cuda")
    forward(weights, x)
    cuda.synchronize()
    cuda.empty_cache()
    before = cuda.memory_reserved()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = forward(weights, x)
    g.replay()
    cuda.empty_cache()  # what is left belongs to the graph
    same = bool(torch.equal(y, forward(weights, x)))
    return (cuda.memory_reserved() - before) >> 20, same


seen = on_gpu(allocating, traced=False)
taken, same = seen.result
lockstep.claim(
    "Memory cannot be allocated while a graph is captured.",
    guess=guess,
    verdict="does not hold" if taken > 0 and same else "holds",
    because=f"the capture took {taken} MiB, and the replay is right",
    stamp=seen.stamp,
)

# %% [markdown] id="pool-explained"
# It is true that `cudaMalloc` itself cannot be captured: it is not stream work. PyTorch's allocator asks for memory
# beside the capture, before the line that needs it returns, and puts it into the graph's pool. A library that calls
# `cudaMalloc` by itself breaks the capture. (Of the 36 MiB on a GPU, 34 are taken once, as in the lab's section 5.)

# %% [markdown] id="same-text"
# ## The same bits
#
# About 5 minutes; a CPU is enough.
#
# ### Claim: "a replay computes, bit for bit, what the plain step computes"
#
# **Guess**, then 24 layers, three inputs. On a virtual GPU both ways call the same CPU kernels, which says nothing
# about a real GPU: its verdict was recorded.

# %% id="same-guess" tags=["guess"]
guess = "holds"


# %% id="same-claim"
def same_bits(cuda):
    weights = make_weights()
    inputs = [torch.randn(8, 512, device="cuda").bfloat16() for _ in range(3)]
    static = inputs[0].clone()
    forward(weights, static)  # warm-up
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = forward(weights, static)
    same = []
    for x in inputs:
        static.copy_(x)
        g.replay()
        same.append(bool(torch.equal(y, forward(weights, x))))
    return same


seen = on_gpu(same_bits, traced=False)
ok = seen.result
lockstep.claim(
    "A replay computes, bit for bit, what the plain step computes.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because=f"{sum(ok)} of {len(ok)} inputs give the same bits",
    stamp=seen.stamp,
)

# %% [markdown] id="gains-text"
# ## What graphs gain on an H200
#
# About 5 minutes; all of it is recorded: steps of 24 layers x + relu(x · w), of three widths, by batch, eager and
# replayed; and two training steps of eight layers.
#
# ### Claim: "CUDA graphs make a step faster"
#
# **Guess**: by 5 % or more, for all of these models and batches (holds), some (depends), or none (does not hold)?

# %% id="gains-guess" tags=["guess"]
guess = "depends"

# %% id="gains-claim"
recording = lockstep.recorded("graphs/h200.json")
steps, stamp = recording.content["steps"], recording.stamp
gain = {}
for one in steps:
    gain[one["width"], one["batch"]] = one["eager_us"] / one["replay_us"]
widths, batches = ({key[place]: None for key in gain} for place in (0, 1))
rows = [[w, *(f"{gain[w, batch]:.2f}" for batch in batches)] for w in widths]
title = "Times as fast as eager, by width and by rows of the batch"
display(lockstep.table(title, ["width", *batches], rows, stamp=stamp))
trained = {
    f"training, width {one['width']}": one["eager_us"] / one["replay_us"]
    for one in recording.content["training"]
}
ok = [one > 1.05 for one in (*gain.values(), *trained.values())]
lockstep.claim(
    "CUDA graphs make a step faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because=f"{sum(ok)} of {len(ok)} gain 5 % or more: "
    f"from {min(gain.values()):.2f} to {max(gain.values()):.2f} times as fast; "
    + "; ".join(f"{name}: {one:.1f} times" for name, one in trained.items()),
    stamp=stamp,
)

# %% [markdown] id="gains-explained"
# With 512 columns and 8 rows the gain is larger than that of the virtual GPU in the lab's section 2: with 512 columns
# the recorded host took 12 to 17 µs a launch (the time of an eager step, divided by 72), the virtual one takes 8.3 µs.

# %% [markdown] id="memory-recorded-text"
# ## What graphs take and how steady they are, on an H200
#
# About 15 minutes; all of it is recorded. First the memory of the lab's section 5: the same model with 2048, …, 2, 1 rows.

# %% id="memory-recorded"
h200 = lockstep.recorded("graphs/h200.json")
rows = []
for name, some in h200.content["memory"].items():
    ends = some[0], some[-1]
    pools = [one["reserved"] >> 20 for one in ends]
    device = [one["device"] >> 20 for one in ends]
    rows.append([name, len(some), *pools, *device])
columns = ["how", "graphs", "pools: first graph", "all"]
columns += ["device: first graph", "all"]
lockstep.table("MiB of graphs of an H200", columns, rows, stamp=h200.stamp)

# %% [markdown] id="latency-text"
# By the rules of the lab's section 5 the first graph of 2048 rows needs two pieces of 20 MiB, and it took 34 MiB more:
# 32 are the workspace of cuBLAS, the library of the products
# ([PyTorch](https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/CublasHandlePool.cpp) takes that much on
# this kind of GPU, once for each stream, here while it captures), and 2 are a piece with two small tensors, from which
# all graphs read the seed and the offset of random numbers
# ([PyTorch](https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/CUDAGeneratorImpl.cpp) makes them with the
# first graph). The device's own numbers also have what lies outside of PyTorch's pools. Later graphs take little of
# that.
#
# ### Claim: "a graph makes the latency of a step steady"
#
# A user sees the slow steps, not the mean. The recording has steps of width 512, one row, each timed by itself: about
# 3000 on a quiet host, and what ran in 8 seconds on a busy one, where a second thread of the process runs Python all
# the time. `p99` is the time below which 99 of 100 steps stay. The limit is 1.2 times the quiet host's p50.
# **Guess**: does a replay's p99 stay below it on both hosts (holds), on one (depends), or on none (does not hold)?

# %% id="jitter-guess" tags=["guess"]
guess = "depends"

# %% [markdown] id="jitter-text"
# Only one thread of a process runs Python at a time: the one that has the interpreter's lock (GIL). A thread that
# launches or waits gives it up, and must then wait for its turn again: `sys.getswitchinterval()`, 5 ms, unless the
# other thread stops by itself. A replayed step has two such calls, `replay` and `synchronize`. **Predict:** how many
# ms is a replayed step's p50 on the busy host?

# %% id="jitter-prediction" tags=["prediction"]
# your number, in ms
prediction = 2 * 5

# %% id="jitter-claim"
times = lockstep.recorded("graphs/h200.json").content["latencies"]
parts, rows = ("p50", "p90", "p99"), []
for host, ways in times.items():
    for how, one in ways.items():
        shown = [f"{one[part]:,.0f}" for part in parts]
        if one["steps"] < 100:
            shown[-1] = "–"  # too few steps for a p99
        rows.append([host, how, one["steps"], *shown])
columns = ["host", "how", "steps", *(f"{part}, µs" for part in parts)]
title = "One step, from the call to its end"
display(lockstep.table(title, columns, rows, stamp=h200.stamp))
quiet, busy = times["quiet"]["replay"], times["busy"]["replay"]
display(lockstep.compare(prediction, measured=busy["p50"] / 1e3, unit="ms"))
ok, said = [], []
for host, ways in times.items():
    spread = ways["replay"]["p99"] / quiet["p50"]
    ok.append(spread <= 1.2)
    said.append(f"{host}: p99 is {spread:.3g} times the quiet p50")
lockstep.claim(
    "A graph makes the latency of a step steady.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=h200.stamp,
)

# %% [markdown] id="jitter-explained"
# On the quiet host a replay is steady, and an eager step is not: each of its launches is a chance to be late. On the
# busy host a replay waits for its turn twice, nearly always. Of the 55 eager steps half took at most 0.8 ms, and one in ten
# took more than a second: 72 launches are as many chances to lose the lock, and some steps lost none. The recording
# does not say why some steps lose it and others do not. So a graph made the steps alike, and their median worse: it
# does not free the host.

# %% [markdown] id="partial-text"
# ## A graph of a part
#
# About 5 minutes; a CPU is enough. Where one line of a step cannot be captured, the rest still can.
# `cuda.make_graphed_callables(module, (sample,))` returns a module whose forward *and* backward are graphs of their own; what
# is between such modules runs as it is written. Here a model has a line in its middle that looks at a value.


# %% id="partial"
def partial_capture(cuda, graphed):
    def half():
        layers = [torch.nn.Linear(64, 64) for _ in range(8)]
        return torch.nn.Sequential(*layers).to("cuda")

    torch.manual_seed(0)  # both runs look at the same value below
    first, second = half(), half()
    x = torch.ones(16, 64, device="cuda")
    if graphed:
        first = cuda.make_graphed_callables(first, (x,))
        sample = torch.ones_like(x, requires_grad=True)  # h needs a gradient
        second = cuda.make_graphed_callables(second, (sample,))

    def step():
        h = first(x)
        if h[0, 0].item() > 0:  # on a value: it cannot be captured
            h = h * 2
        second(h).square().mean().backward()

    return seconds(cuda, step) * 1e6


whole, parts = on_gpu(partial_capture, False), on_gpu(partial_capture, True)
rows = [["eager", f"{whole.result:.0f}"], ["two graphs", f"{parts.result:.0f}"]]
title = "Forward and backward, 16 layers"
lockstep.table(title, ["how", "µs"], rows, stamp=whole.stamp)

# %% [markdown] id="collectives-text"
# ## Graphs with collectives in them
#
# About 15 minutes; a CPU is enough. A collective is a kernel, too, so it can be captured. Each
# rank has a graph of its own, and nothing in a graph asks the others: all must replay the same collectives in the same
# order. On 4 H200s, 16 layers with an all-reduce each, eager and as a graph on each rank:

# %% id="collectives-recorded"
recording = lockstep.recorded("traces/overhead.json")
rows = []
for how in ("eager", "graph"):
    took = recording.content[f"tensor-parallel-{how}"]["step_seconds"]
    rows.append([how, f"{took * 1e6:,.0f}"])
title = "A step of 16 layers, 4 ranks"
lockstep.table(title, ["how", "µs"], rows, stamp=recording.stamp)

# %% [markdown] id="order-text"
# ### What if one rank has captured something else?
#
# The next cell runs on the ranks of this notebook: under NCCL where each has a GPU, else with a virtual GPU each, whose
# values gloo sums for real. On each rank `x` is 1 and `y` is 10. The graph reduces `x`, then `y`. Rank 1 has captured
# them in the other order: **broken on purpose**. **Predict:** what is `x` on rank 0 after a replay?

# %% id="order-prediction" tags=["prediction"]
prediction = NPROC - 1 + 10  # rank 1's first all-reduce is that of y


# %% id="order"
def swapped():
    cuda = lockstep.cuda(virtual=dist.get_backend() != "nccl")
    x = torch.full((1024,), 1.0, device="cuda")
    y = torch.full((1024,), 10.0, device="cuda")
    dist.all_reduce(torch.zeros(8, device="cuda"))  # warm-up
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        for one in (y, x) if dist.get_rank() == 1 else (x, y):
            dist.all_reduce(one)
    g.replay()
    cuda.synchronize()
    return x[0].item(), y[0].item()


RANKS = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
job = lockstep.torchrun(swapped, **RANKS)
display(lockstep.compare(prediction, measured=job[0][0]))
print("x and y by rank:", *job.results, "·", lockstep.live(job))

# %% [markdown] id="more-text"
# No error: collectives are matched by their order alone. In the next cell rank 1 has captured one all-reduce *more*.
# It is **broken on purpose**. Look at what the report says of rank 1, and at which line it waits.


# %% id="more" tags=["varies"]
def one_more():
    cuda = lockstep.cuda(virtual=dist.get_backend() != "nccl")
    x = torch.ones(1024, device="cuda")
    dist.all_reduce(x)  # warm-up
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        for _ in range(4 + (dist.get_rank() == 1)):
            dist.all_reduce(x)
    g.replay()
    cuda.synchronize()


print(lockstep.torchrun(one_more, **RANKS, timeout=20, may_fail=True))

# %% [markdown] id="more-explained"
# Rank 1 waits where it *synchronises*, not where the collective was written: that line ran long ago, in the capture.
# (On virtual GPUs the call that the report names is the one by which they agree on their times.) So a capture must
# not contain a branch on the rank.
#
# ### What NCCL does with it
#
# Recorded on two H200s, without Lockstep, which would end some of these jobs and say why. A process group is made, and
# a graph with all-reduces is captured and replayed. Each rank was given ten seconds.

# %% id="ranks-recorded"
recording = lockstep.recorded("graphs/ranks-h200-x2.json")


def fate(rank):
    """What became of a rank, in words; its last marks say what it found."""
    marks, waits_in = rank["marks"], rank["waits_in"]
    *_, last = [one for one in marks if one["what"] != "came to its end"]
    if waits_in and waits_in[0] != "stay":
        return f"waits in {waits_in[0]}, after {recording.content['limit']} s"
    names = [name for name in ("x", "y", "first", "last") if name in last]
    values = [f"{name} = {last[name]:g}" for name in names]
    return ", ".join([f"done at {last['seconds']:.2f} s", *values])


cases = recording.content["cases"]
rows = [[name, *map(fate, ranks)] for name, ranks in cases.items()]
columns = ["case", "rank 0", "rank 1"]
lockstep.table("Graphs on two ranks", columns, rows, stamp=recording.stamp)

# %% [markdown] id="collectives-explained"
# Row by row:
#
# - A rank with one collective more waits in `synchronize`, captured or not: no kernel of the other rank will come.
#   PyTorch's watchdog is not told of collectives that are captured (in
#   [`ProcessGroupNCCL.cpp`](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)
#   a work is enqueued for it only where nothing is being captured).
# - `destroy_process_group()` waits while a graph with NCCL's kernels is alive
#   ([pytorch/pytorch #115388](https://github.com/pytorch/pytorch/issues/115388)). So `g.reset()`, or `del g`, first.
# - Another order mixes up the tensors, half as many elements leave the rest wrong, and nothing reports it. (The last
#   element on rank 0 should be 2.)
# - A rank that replays late lets the others wait on the *device*: their `replay()` has returned long before.
