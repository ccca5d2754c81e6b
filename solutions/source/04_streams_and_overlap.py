# %% [markdown] id="title"
# # 04 · Streams, events, overlap
#
# **Two sittings, 85 and 90 minutes · needs: a CPU** (the same cells use a GPU where there is one)
#
# A GPU works while the program goes on, and can do several things at once if it is asked to and if nothing stands in
# the way. Afterwards you can
#
# - time what a GPU does, and say which lines of a program wait for it,
# - put work onto two streams, order it by events, and find the race where an event is missing,
# - hide communication and copies behind computation, say how much is hidden, and predict it.
#
# Lab 03 comes first: it has the collectives. No GPU is needed. Where there is none, `lockstep` has a
# **virtual GPU**: your code is ordinary PyTorch, its values are real, its times come from a model.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook; this lab's programs take one or two
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import time

import lockstep
import torch
import torch.distributed as dist

print(lockstep.virtual.MACHINES["H200"])

# %% id="progress" tags=["unpublished"]
lockstep.progress("04")

# %% [markdown] id="machine-text"
# That is the virtual machine: an H200 described by a few constants. It leaves out most effects of caches, the cost of
# a first call, a clock that drops under load, and everything that other programs do. So every time below is stamped
# *simulated*: it is an estimate that follows from these constants. On a machine with a GPU it is *live*.
#
# `on_gpu(program, …)` runs `program(cuda, …)` in a process that has the GPU. There, `cuda` offers the names of
# `torch.cuda`; it is what `lockstep.cuda()` returns in your own ranks. With `ranks=2` it runs on two, each with a GPU
# of its own, and their collectives are real. With `values=False` the virtual GPU computes times only, so tensors may
# be large. (The next two cells define `on_gpu`; their code is folded.)

# %% id="on-gpu-rank" tags=["plumbing"]
import tempfile

from lockstep.base.provenance import Provenance


def _on_rank(program, args, values):
    many = dist.is_initialized()
    if not torch.cuda.is_available() or (many and dist.get_backend() != "nccl"):
        with lockstep.virtual.device("H200", values=values) as cuda:
            result, trace = program(cuda, *args), lockstep.virtual.trace()
            return result, trace, [str(one) for one in lockstep.virtual.races()]
    program(torch.cuda, *args)  # the first call loads kernels
    result = program(torch.cuda, *args)  # no profiler: it takes time, too
    second = torch.profiler.schedule(wait=0, warmup=1, active=1)
    with torch.profiler.profile(schedule=second) as profiler:
        program(torch.cuda, *args)
        if many:
            dist.barrier()  # all begin together, whatever each profiler took
        torch.cuda.synchronize()
        profiler.step()
        program(torch.cuda, *args)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        rank = dist.get_rank() if many else 0
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
        stamp = Provenance("live", torch.cuda.get_device_name())
        return result, lockstep.Trace.load(folder, stamp=stamp), None


# %% id="on-gpu" tags=["plumbing"]
from dataclasses import dataclass
from typing import Any


@dataclass
class Seen:
    result: Any
    trace: Any
    races: list | None  # in words; None where nobody looked for them
    stamp = property(lambda self: self.trace.stamp)

    def timeline(self, title):
        return lockstep.Timeline(self.trace, title=title)

    def compare(self, prediction, value, unit=""):
        way = "computed" if self.stamp.kind == "simulated" else "measured"
        return lockstep.compare(prediction, **{way: value}, unit=unit)


def on_gpu(program, *args, values=True, ranks=1):
    """Run program(cuda, *args) on each rank's GPU; the result is rank 0's."""
    ways = {"nproc_per_node": ranks, "init": ranks > 1, "show": False}
    job = lockstep.torchrun(_on_rank, program, args, values, **ways)
    results, traces, races = zip(*job.results, strict=True)
    return Seen(results[0], lockstep.virtual.joined(traces), races[0])


# %% [markdown] id="async-text"
# ## 1 · The host runs ahead
#
# The host is the CPU, with your Python; the GPU is the **device**. A line of a program is often timed with the host's
# clock, read before the line and after it.
#
# ### Claim: "reading the clock after the call waits for the GPU"
#
# A common guess is that `time.time()` or `perf_counter()` *synchronises*: when the clock is read, the GPU has done
# what the call asked for. **Guess:** does it hold? The test comes after the first product.

# %% id="clock-guess" tags=["guess"]
guess = "does not hold"

# %% [markdown] id="launch-text"
# A call such as `a @ b` only **launches** a kernel: it puts it into a queue, and returns. The host goes on. The
# device works through the queue at its own pace. `torch.cuda.synchronize()` makes the host wait until the queue is
# empty.
#
# Here a program multiplies two matrices of 8192 × 8192 in bfloat16: 2 · 8192³ floating-point operations. It reads the
# host's clock before the call, after the call, and after `synchronize`. **Predict:** how many µs does the clock show
# for the call alone? (The line about the machine, above, has what you need.)

# %% id="async-prediction" tags=["prediction"]
# your number, in µs
prediction = 11.7  # the host launches a product in that time, of any size


# %% id="async-program"
def product(cuda):
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    cuda.synchronize()
    # time.perf_counter; on a virtual GPU its host's clock
    clock = lockstep.virtual.perf_counter
    begin = clock()
    a @ a
    called = clock()
    cuda.synchronize()
    return [(one - begin) * 1e6 for one in (called, clock())]


# %% id="async"
clocked = on_gpu(product, values=False)
called, done = clocked.result
display(clocked.compare(prediction, called, "µs"))
flops = 2 * 8192**3
rows = []
for when, us in ("the call returns", called), ("the product is done", done):
    rows.append([when, f"{us:.1f} µs", f"{flops / us / 1e6:,.0f} TFLOP/s"])
columns = ["when", "after", "that would be"]
lockstep.table("A clock around a product", columns, rows, stamp=clocked.stamp)

# %% id="async-timeline"
clocked.timeline("One product: the host calls, the device works")

# %% [markdown] id="clock-text"
# The first row of the table is a common mistake: no GPU reaches that many FLOP/s. The host's clock measured the
# launch. Is that so for every size? The next cell launches products of three sizes, and reads the clock. If reading
# waits, it shows at least the time that the device works.


# %% id="clock-claim"
def sizes(cuda):
    found = {}
    for n in (2048, 4096, 8192):
        a = torch.randn(n, n, dtype=torch.bfloat16, device="cuda")
        cuda.synchronize()
        begin = lockstep.virtual.perf_counter()
        a @ a
        called = lockstep.virtual.perf_counter() - begin
        cuda.synchronize()
        found[n] = called * 1e6, (lockstep.virtual.perf_counter() - begin) * 1e6
    return found


seen = on_gpu(sizes, values=False)
ok = [called > 0.9 * done for called, done in seen.result.values()]
said = [f"{n}: {c:.1f} of {d:.1f} µs" for n, (c, d) in seen.result.items()]
lockstep.claim(
    "Reading the host's clock after a call waits for the GPU.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=seen.stamp,
)

# %% [markdown] id="waits-text"
# Some lines do wait, because they need a value: the host cannot print what is not computed yet. Each line below runs
# right after the launch of a kernel that takes 2,000,000 cycles, about 1 ms. A line that waits takes that long; the
# others take a few µs. **Predict:** how many of these seven lines wait?
#
# `x.sum()` · `x.sum().item()` · `x.shape` · `if x[0, 0] > 0:` · `x.cpu()` · `x.nonzero()` · `x.to(torch.float16)`

# %% id="waits-prediction" tags=["prediction"]
prediction = 4  # item, if, cpu, nonzero: its shape depends on values


# %% id="waits"
def waiting(cuda):
    lines = {
        "x.sum()": lambda x: x.sum(),
        "x.sum().item()": lambda x: x.sum().item(),
        "x.shape": lambda x: x.shape,
        "if x[0, 0] > 0:": lambda x: bool(x[0, 0] > 0),
        "x.cpu()": lambda x: x.cpu(),
        "x.nonzero()": lambda x: x.nonzero(),
        "x.to(torch.float16)": lambda x: x.to(torch.float16),
    }
    x, found = torch.ones(64, 64, device="cuda"), []
    for text, line in lines.items():
        cuda.synchronize()
        cuda._sleep(2_000_000)  # a kernel that takes 2,000,000 cycles
        begin = lockstep.virtual.perf_counter()
        line(x)
        found.append((text, (lockstep.virtual.perf_counter() - begin) * 1e6))
    return found


seen = on_gpu(waiting)
rows = []
for op, us in seen.result:
    rows.append([op, f"{us:.1f}", "waits" if us > 500 else ""])
columns = ["line", "host, µs", ""]
display(lockstep.table("Which lines wait", columns, rows, stamp=seen.stamp))
seen.compare(prediction, sum(us > 500 for _, us in seen.result))

# %% [markdown] id="events-text"
# `nonzero` waits, too: the size of its result depends on values. In a training loop each such line stops the host,
# and then the device runs out of queued work. (`loss.item()` in each step is the most common example.)
#
# **Events** time the device without the host's clock. `event.record()` puts a mark into the queue. When the device
# reaches the mark, it notes its own time. `first.elapsed_time(last)` gives milliseconds; both events need
# `enable_timing=True`, and must have been reached.


# %% id="events"
def with_events(cuda):
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    a @ a  # warm-up, see below
    first.record()
    a @ a
    last.record()
    last.synchronize()  # the host waits until the device has come here
    return first.elapsed_time(last) * 1e3


seen = on_gpu(with_events, values=False)
ideal = 2 * 4096**3 / 790e6
rows = [["4096 × 4096, bfloat16", f"{seen.result:.1f}", f"{ideal:.1f}"]]
columns = ["product", "by events, µs", "its operations at 790 TFLOP/s, µs"]
lockstep.table("Timed by events", columns, rows, stamp=seen.stamp)

# %% [markdown] id="timed-text"
# The first call is slow on a real GPU: kernels are loaded, memory is allocated, algorithms are chosen. So timing
# begins with a **warm-up**, a call that is not counted. (The virtual GPU has no such cost; the check of this exercise
# adds one.)
#
# ### Exercise 1: a timer
#
# **Goal:** `timed(cuda, work, repeats)` returns how many milliseconds of device time one call of `work()` takes: the
# mean over `repeats` calls (1 or more), after at least one that does not count, to within 5 %. `work` launches on the
# current stream. The times come from events, not from a clock of the host, and the host does not wait between the
# calls.

# %% id="timed"
import torch


def timed(cuda, work, repeats):
    # BEGIN SOLUTION
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()  # so many calls are in the queue, and the device works on them
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / repeats
    # END SOLUTION


# %% id="timed-check"
lockstep.check("timed", timed)

# %% [markdown] id="small-text"
# Events note when the device *reaches* them, and a device without work waits. A product of 512 × 512 takes it 3 µs.
# **Predict:** how many µs does `timed` report? (How long does the host take to launch the next one?)

# %% id="small-prediction" tags=["prediction"]
# your number, in µs
prediction = 11.7  # the device waits for each launch

# %% id="small"
from lockstep.trace import Kind

timed = lockstep.carry_on("timed", timed)


def small(cuda):
    a = torch.randn(512, 512, dtype=torch.bfloat16, device="cuda")
    return timed(cuda, lambda: a @ a, 50) * 1e3


seen = on_gpu(small, values=False)
kernels = [one for one in seen.trace if one.kind == Kind.COMPUTE]
print(f"one kernel, by the trace: {kernels[-1].duration / 1e3:.1f} µs")
seen.compare(prediction, seen.result, "µs")

# %% [markdown] id="small-explained"
# So events measure the device's *time*, work and waiting alike. They measure the work only where the queue never runs
# empty: kernels that take longer than their launches, or launches that were queued in advance (behind a `_sleep`, as
# in section 6). What a step of such small kernels costs, and how to launch it at once, is the topic of lab 06.

# %% [markdown] id="streams-text"
# ## 2 · Two streams
#
# A queue of the device is a **stream**. Work in one stream runs in order. Work in two streams may run at the same
# time. Whatever you launch goes to the *current* stream; at first that is the default stream. `with
# cuda.stream(side):` makes `side` the current one. A collective with `async_op=True` goes to a stream that belongs to
# the process group. `handle.wait()` then means: whatever is launched from here on begins after it.
#
# Most training steps contain this pattern: an operation OP1, a collective, and an operation OP2, one after the other,
# although OP2 does not need what is communicated. Here two ranks reduce 320 MB. OP1 is a product of 8192³, OP2 eight
# of 4096³: by the constants above each takes about 1.4 ms. One constant is not in the line about the machine: links
# carry 320 GB/s. Between two ranks an all-reduce sends each byte once: 1.0 ms. (`alone` is the all-reduce without
# products.)


# %% id="streams-programs"
def step(cuda, waits_at_once):
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    # 320 MB of them
    gradients = torch.zeros(160_000_000, dtype=torch.bfloat16, device="cuda")
    dist.all_reduce(gradients)  # the first one connects the ranks
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    a @ a  # OP1
    handle = dist.all_reduce(gradients, async_op=True)
    if waits_at_once:
        handle.wait()
    for _ in range(8):
        b @ b  # OP2
    handle.wait()
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) * 1e3


# %% id="streams-alone"
def alone(cuda):
    gradients = torch.zeros(160_000_000, dtype=torch.bfloat16, device="cuda")
    dist.all_reduce(gradients)
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    dist.all_reduce(gradients)
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) * 1e3


# %% [markdown] id="streams-predict-text"
# With `waits_at_once` OP2 begins after the collective. Without it the collective, on its own stream, may run beside
# OP2. It begins after OP1: the process group makes it wait for what was launched before. A collective is a kernel,
# too. On the virtual GPU it takes 24 of the 132 SMs (the GPU's processors) while it runs, and OP2 has the others.
# **Predict:** what does the collective still cost when the two run side by side: by how many µs is the step longer
# than OP1 and OP2 alone?

# %% id="streams-prediction" tags=["prediction"]
# your number, in µs
prediction = 1000 * 24 / 132  # for 1 ms OP2 lacks 24 of the 132 SMs

# %% id="streams"
before = on_gpu(step, True, values=False, ranks=2)
after = on_gpu(step, False, values=False, ranks=2)
communication = on_gpu(alone, values=False, ranks=2).result
products = before.result - communication
display(after.compare(prediction, (after.result - products) * 1e3, "µs"))
title = "OP1, collective, OP2; then OP2 beside it"
lockstep.Timeline(after.trace, before=before.trace, title=title)

# %% [markdown] id="hidden-text"
# How good is that? What counts is the **hidden share**: the part of the communication time that costs nothing. With T
# for times,
#
# $$\text{hidden} = \frac{T_{\text{in turn}} - T_{\text{overlapped}}}{T_{\text{communication}}}$$
#
# 1 means that communication is free, 0 that nothing was gained, and below 0 the overlap did harm. By its share of
# SMs alone OP2 would lose 24/132 = 18 % of the collective's time, and 82 % would be hidden. It loses more, here as on an
# H200. A product is cut into tiles, of which an SM computes a whole one at a time. The tiles of SMs that are taken come last,
# when most others have nothing more to do: each of these short products takes about half as long again. The further notebook has
# recordings.


# %% id="hidden"
share = 100 * (before.result - after.result) / communication
rows = [["one after the other", f"{before.result:.2f}", "0 %"]]
rows.append(["beside each other", f"{after.result:.2f}", f"{share:.0f} %"])
title = f"A collective of {communication:.2f} ms"
lockstep.table(title, ["how", "step, ms", "hidden"], rows, stamp=after.stamp)

# %% [markdown] id="race-text"
# ## 3 · Events, and what happens without one
#
# Streams do not wait for each other unless you say so. This program fills `y` with 1, and a second stream doubles it.
# The default stream then computes the mean. It is **broken on purpose**: nothing orders the last two. (`_sleep` keeps
# the side stream busy first, so that it is late on every machine.) **Predict:** what mean comes out?

# %% id="race-prediction" tags=["prediction"]
prediction = 1  # the mean reads what is there: y, not doubled yet


# %% id="race"
def race(cuda, repaired=False):
    side = cuda.Stream()
    y = torch.ones(1000, device="cuda")
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        cuda._sleep(2_000_000)
        y.mul_(2)
        done = side.record_event()
    if repaired:
        done.wait()  # the current stream waits for it; the host does not
    mean = y.mean()
    cuda.synchronize()
    return mean.item()


broken = on_gpu(race)
broken.compare(prediction, broken.result)

# %% id="race-report"
hint = "on a real GPU: run it as a script, with TORCH_CUDA_SANITIZER=1"
print(*(broken.races or [hint]), sep="\n")

# %% id="race-timeline"
broken.timeline("A race: the mean begins before the doubling has ended")

# %% [markdown] id="race-explained"
# No error, no warning: a wrong number. On a GPU it may be right for months, as long as the writer happens to be early
# enough. The virtual GPU always *reports* a race, with both lines, both streams, and what is missing. It also runs
# unordered work in the wrong order where it still can: if the first of the two was over before the second was
# launched, the number is right here, too. (A real GPU has a tool that reports races, PyTorch's [CUDA
# sanitizer](https://docs.pytorch.org/docs/stable/cuda._sanitizer.html). It does not track memory that passes from one
# tensor to another, the topic of section 5.)
#
# The repair is one event: recorded in the stream that writes, waited for in the stream that reads.

# %% id="race-repaired"
repaired = on_gpu(race, True)
print("mean:", repaired.result, "·", *(repaired.races or ["no races"]))

# %% [markdown] id="ordered-text"
# Four calls do all of this:
#
# | call | what it does |
# | --- | --- |
# | `event = stream.record_event()` | a mark in `stream`, after everything it has been given so far |
# | `event.wait(stream)` | whatever `stream` is given from now on begins after the mark; without `stream`: the current one |
# | `a.wait_stream(b)` | both in one: `a` waits for everything that `b` has been given so far |
# | `event.synchronize()` | the *host* waits |
#
# ### Exercise 2: three streams in order
#
# **Goal:** `ordered(cuda, x, left, right)` multiplies `x` by 10 in place, on the current stream. Then it
# computes `x * 2` on stream `left` and `x + 3` on stream `right`, at the same time, and returns their sum, made on
# the current stream. No races; and the host must not wait.

# %% id="ordered"
import torch


def ordered(cuda, x, left, right):
    # BEGIN SOLUTION
    now = cuda.current_stream()
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)  # of this stream
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    now.wait_stream(left)
    now.wait_stream(right)
    return a + b
    # END SOLUTION


# %% id="ordered-check"
lockstep.check("ordered", ordered)

# %% [markdown] id="break"
# **Break.** The first sitting ends here. You can time a GPU, use two streams, and order them by events. The second
# sitting uses that: what NCCL does with streams, memory and streams, communication in buckets, and copies. Section 4
# needs only the first cells, down to the heading of section 1.
#
# ## 4 · What NCCL does with streams
#
# With `async_op=True`, PyTorch's NCCL process group does four things around each collective. They are in
# [`ProcessGroupNCCL.cpp`](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp),
# in `collective` and `synchronizeStream`:
#
# 1. an event is recorded on the *current* stream, and NCCL's stream waits for it: so the input is ready;
# 2. the kernel is launched on NCCL's stream;
# 3. an event is recorded there, after it;
# 4. `work.wait()`, when you call it, makes the *then current* stream wait for that event.
#
# So `wait()` under NCCL blocks a stream and not the host. (With `async_op=False`, current versions launch on the
# current stream itself, and need no event.) Under gloo there are no streams: `wait()` blocks the host. In this cell
# rank 1 sends 0.2 s late, and rank 0 notes how long `irecv(…).wait()` blocks it. **Predict:** how many seconds, under
# gloo?

# %% id="wait-prediction" tags=["prediction"]
# your number, in s
prediction = 0.2


# %% id="wait" tags=["varies"]
def late():
    x = torch.zeros(4)
    dist.barrier()
    begin = time.perf_counter()
    if dist.get_rank() == 1:
        time.sleep(0.2)
        dist.send(x, 0)
        return None
    dist.irecv(x, 1).wait()
    return time.perf_counter() - begin


job = lockstep.torchrun(late, nproc_per_node=2, backend="gloo", show=False)
display(lockstep.compare(prediction, measured=job[0], unit="s"))
recording = lockstep.recorded("backends/waits-nccl.json")
rows = [
    ["gloo", f"{job[0]:.2f} s", str(lockstep.live(job))],
    ["NCCL", recording.content["irecv, then wait()"], str(recording.stamp)],
]
columns = ["backend", "irecv, then wait(): the host", "where"]
stamps = [lockstep.live(job), recording.stamp]
lockstep.table("The sender comes 0.2 s late", columns, rows, stamp=stamps)

# %% [markdown] id="collective_on_side-text"
# ### Exercise 3: rebuild it
#
# **Goal:** `collective_on_side(cuda, side, collective, x)` does what NCCL's process group does: it launches
# `collective(x)` on the stream `side`, after all that the current stream has been given so far. It returns a function
# `wait`. Each call of `wait()` (there may be several) makes the stream that is current *at that time* wait for this
# collective only, and not for others that `side` is given later. The host never waits, and between launch and `wait()`
# the current stream works on.
#
# (`collective` is any function that launches kernels on the current stream, such as `dist.all_reduce`. The check uses
# one that multiplies by 4: the sum over four ranks that all have the same values.)

# %% id="collective_on_side"
import torch


def collective_on_side(cuda, side, collective, x):
    # BEGIN SOLUTION
    ready = cuda.current_stream().record_event()
    ready.wait(side)  # x is ready before it is communicated
    with cuda.stream(side):
        collective(x)
        done = side.record_event()
    kept = [x]  # until then nobody else gets its memory

    def wait():
        done.wait(cuda.current_stream())
        kept.clear()

    return wait
    # END SOLUTION


# %% id="collective_on_side-check"
lockstep.check("collective_on_side", collective_on_side)

# %% id="collective-timeline"
collective_on_side = lockstep.carry_on("collective_on_side", collective_on_side)


def beside_product(cuda, ours):
    side = cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    x = torch.ones(8_000_000, device="cuda")
    if ours:
        wait = collective_on_side(cuda, side, dist.all_reduce, x)
    else:
        wait = dist.all_reduce(x, async_op=True).wait
    a @ a
    wait()
    return x.mean().item()


theirs, ours = (on_gpu(beside_product, ours, ranks=2) for ours in (False, True))
races = [len(seen.races or []) for seen in (theirs, ours)]
print("means:", theirs.result, ours.result, "· races:", *races)
title = "PyTorch's async_op=True, then yours"
lockstep.Timeline(ours.trace, before=theirs.trace, title=title)

# %% [markdown] id="memory-text"
# ## 5 · Memory and streams
#
# PyTorch gives out device memory from a cache. When the last reference to a tensor goes away, on the *host*, its
# memory goes back to the cache at once. The device may still have to use it. With one stream that is safe: whoever
# gets the memory next comes later in the same stream. With two streams it is not.
#
# Here `x` belongs to the default stream, and the side stream reads it, late. Then the program drops `x`, and makes a
# tensor of 5s. **Predict:** what mean does the side stream find, where `x` was 1?

# %% id="memory-prediction" tags=["prediction"]
prediction = 5  # the new tensor has that memory, and the read comes late


# %% id="memory"
def let_go(cuda, repair=""):
    side = cuda.Stream()
    x = torch.ones(1000, device="cuda")
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        cuda._sleep(2_000_000)
        mean = x.mean()
    if repair == "record_stream":
        x.record_stream(side)
    if repair == "wait_stream":
        cuda.current_stream().wait_stream(side)
    del x
    other = torch.full((1000,), 5.0, device="cuda")
    cuda.synchronize()
    return mean.item(), other.mean().item()


freed_early = on_gpu(let_go)
display(freed_early.compare(prediction, freed_early.result[0]))
print(*(freed_early.races or ["a real GPU has no report of this"]), sep="\n")

# %% [markdown] id="record-text"
# The report names a repair, `x.record_stream(side)`: "this memory is used on `side`, too". PyTorch's
# [documentation](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html) says: when the
# tensor is freed, its memory is not given to another one until everything queued on `side` by then is done.
#
# ### Claim: "a tensor that a second stream uses needs record_stream"
#
# [Runebook](https://runebook.dev/en/docs/pytorch/generated/torch.tensor.record_stream) calls it "crucial for ensuring
# memory safety". **Guess:** is there no other way? The cell runs the program twice more, each time with one line added
# before `del x`: first `x.record_stream(side)`, then `cuda.current_stream().wait_stream(side)` in its place.

# %% id="record-guess" tags=["guess"]
guess = "does not hold"

# %% id="record-claim"
repairs, said = {}, [f"mean with neither: {freed_early.result[0]:g}"]
for repair in ("record_stream", "wait_stream"):
    repairs[repair] = on_gpu(let_go, repair)
    said.append(f"with {repair}: {repairs[repair].result[0]:g}")
waited = repairs["wait_stream"]
safe = waited.result[0] == 1 and not waited.races
lockstep.claim(
    "A tensor that a second stream uses needs record_stream.",
    guess=guess,
    verdict="does not hold" if safe else "holds",
    because="; ".join(said),
    stamp=freed_early.stamp,
)

# %% [markdown] id="record-explained"
# With `wait_stream`, the stream to which `x` belongs waits before the host drops `x`: whoever gets the memory next
# comes later in that stream. But a stream that waits cannot work beside `side`.
#
# `record_stream` has a price, too: the host runs ahead, so memory that is still in use is not available for the next
# tensor, and more is allocated. The third way is to *keep* the tensor until a stream waits for an event that says
# that it is no longer used. That is what the NCCL process group does today: the handle keeps the tensors until
# `wait()`.
#
# The answers to exercises 2 and 3 have such memory, too: "The memory of your answers", in the further notebook, looks
# for it.
#
# ## 6 · How large should a message be?
#
# In a backward pass gradients come layer by layer. Each could be sent at once: then every layer pays the latency of a
# message, α. Or all at the end: then nothing is hidden. **Buckets** are in between: *m* layers in one message. Say
# each layer's backward takes *c*, and a message with *m* layers takes α + *m*β, on a stream of its own. A message
# starts when its last layer is computed and the previous message is done.
#
# Say a layer has 4 MiB of gradients. Between two virtual H200s that is β = 15 µs, and α is about 18 µs. **Predict**
# for 8 layers and *c* = 15 µs: after how many µs is everything done with two layers a bucket? (Make a small drawing:
# buckets are complete at 30, 60, 90, 120.)

# %% id="buckets-prediction" tags=["prediction"]
# your number, in µs
prediction = 30 + 4 * (18 + 2 * 15)  # a message takes 48 > 30: back to back

# %% [markdown] id="buckets-run-text"
# The GPUs run it, with real all-reduces between two ranks. Only the layers' backward is a stand-in: a `_sleep` that
# takes *c*. The folded cell measures α and β, with messages of one layer and of nine. (The first block in the
# timeline does not count: it lasts until the host has launched the rest.)

# %% id="sleep" tags=["plumbing"]
GRADIENT = 1 << 22  # bytes of a layer's


def between(cuda, work):
    """µs of the device for work(), by events; launches are ahead of it."""
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    cuda._sleep(4_000_000)
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e3


def measured(cuda):
    """Cycles of `_sleep` in 1 µs; α and β of a layer's all-reduce, in µs."""
    some = [torch.zeros(n * GRADIENT // 4, device="cuda") for n in (1, 9)]
    dist.all_reduce(some[0])
    one, nine = (between(cuda, lambda x=x: dist.all_reduce(x)) for x in some)
    beta = (nine - one) / 8
    return 1e6 / between(cuda, lambda: cuda._sleep(1_000_000)), one - beta, beta


CYCLES, ALPHA, BETA = on_gpu(measured, values=False, ranks=2).result


# %% id="buckets"
def backward(cuda, layers, size, compute):
    """µs of a backward of so many layers, with so many of them in a bucket."""
    gradients = torch.zeros(layers * GRADIENT // 4, device="cuda")
    dist.all_reduce(gradients)

    def work():
        handles = []
        for bucket in gradients.split(size * GRADIENT // 4):
            for _ in range(bucket.nbytes // GRADIENT):
                cuda._sleep(int(CYCLES * compute))
            handles.append(dist.all_reduce(bucket, async_op=True))
        for handle in handles:
            handle.wait()

    return between(cuda, work)


seen = on_gpu(backward, 8, 2, 15, values=False, ranks=2)
display(seen.compare(prediction, seen.result, "µs"))
seen.timeline("8 layers, 2 in a bucket")

# %% [markdown] id="bucket_size-text"
# ### Exercise 4: the best bucket
#
# **Goal:** `bucket_size(layers, compute, alpha, beta)` returns how many layers to put into a bucket (the last one may
# have fewer), so that everything is done as early as possible by the rules above. Every size from 1 to `layers` may
# be the best.


# %% id="bucket_size"
def bucket_size(layers, compute, alpha, beta):
    # BEGIN SOLUTION
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            # then the messages of the first `last` layers are done
            sent = max(sent, last * compute) + alpha + (last - begin) * beta
        return sent

    return min(range(1, layers + 1), key=end)
    # END SOLUTION


# %% id="bucket_size-check"
lockstep.check("bucket_size", bucket_size)

# %% id="buckets-found"
bucket_size = lockstep.carry_on("bucket_size", bucket_size)
LAYERS, COMPUTE = 12, 15


def every_size(cuda):
    sizes = 1, *range(1, LAYERS + 1)  # 1 twice: the first is a warm-up
    return {size: backward(cuda, LAYERS, size, COMPUTE) for size in sizes}


seen = on_gpu(every_size, values=False, ranks=2)
best = min(seen.result, key=seen.result.get)
message = ALPHA + LAYERS * BETA  # one at the end, of which nothing is hidden
rows = [
    [size, f"{us:,.0f}", f"{100 * (seen.result[LAYERS] - us) / message:.0f} %"]
    for size, us in seen.result.items()
]
columns = ["layers a bucket", "all done, µs"]
columns += ["hidden, of one message at the end"]
title = f"{LAYERS} layers; α = {ALPHA:.1f} µs, β = {BETA:.1f} µs"
display(lockstep.table(title, columns, rows, stamp=seen.stamp))
seen.compare(bucket_size(LAYERS, COMPUTE, ALPHA, BETA), best)

# %% [markdown] id="breakdown-text"
# ### A real backward pass, judged by its trace
#
# Do not judge overlap by eye. A trace can be counted: how long the device communicates while nothing computes
# (*exposed*), and how long it does both. Here are 12 linear layers and their backward pass. First all gradients are
# reduced after it; then each is reduced as soon as it is there, in a hook. (DDP does so with buckets, and FSDP with
# blocks of layers.)


# %% id="breakdown"
def training(cuda, hooked):
    shape, how = (4096, 4096), {"device": "cuda", "dtype": torch.bfloat16}
    layers = [torch.nn.Linear(*shape, bias=False, **how) for _ in range(LAYERS)]
    model, x = torch.nn.Sequential(*layers), torch.randn(*shape, **how)
    handles = []

    def reduce(weight):
        handles.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in model.parameters() if hooked else ():
        weight.register_post_accumulate_grad_hook(reduce)
    cuda.synchronize()
    dist.barrier()  # the models are there, on both ranks
    model(x).square().mean().backward()
    for weight in () if hooked else model.parameters():
        reduce(weight)
    for handle in handles:
        handle.wait()
    cuda.synchronize()


# %% id="breakdown-table"
rows = []
for hooked in (False, True):
    seen = on_gpu(training, hooked, values=False, ranks=2)
    spent = seen.trace.breakdown().of(0)
    total, overlap = spent.communication / 1e3, spent.overlapped / 1e3
    us = [f"{total:,.0f}", f"{total - overlap:,.0f}"]
    how = "each gradient in its hook" if hooked else "all after the backward"
    rows.append([how, *us, f"{100 * overlap / total:.0f} %"])
columns = ["how", "all-reduces, µs", "of it exposed", "overlapped"]
lockstep.table("12 layers, by the trace", columns, rows, stamp=seen.stamp)

# %% [markdown] id="breakdown-explained"
# The gradient that comes last, that of the model's first layer, has nothing to hide behind: the backward pass is
# over. PyTorch's DDP makes buckets by size (`bucket_cap_mb`, 25 MiB by default), and its first one is small, so that
# communication starts early. Many small buckets overlap well, too, but there is more to hide: each pays α.

# %% [markdown] id="copies-text"
# ## 7 · Copies beside computation
#
# A training loop copies each batch to the GPU. A copy engine does that, without SMs, so the next batch can be copied
# while a step computes with this one: on another stream, and from **pinned** memory of the host. That stays at one
# place, so the engine can read it by itself; `DataLoader(pin_memory=True)` gives such batches. Ordinary memory is
# **pageable**: it is copied to a pinned buffer first, and that keeps the host busy.
#
# ### Claim: "with non_blocking=True the copy runs beside the program"
#
# [PyTorch's forum](https://discuss.pytorch.org/t/why-set-cuda-non-blocking-false-for-target-variables/16943) says so.
# **Guess**: is the host free during a copy of 64 MiB?

# %% id="pinned-guess" tags=["guess"]
guess = "depends"


# %% id="pinned-claim"
def copies(cuda):
    found = {}
    for name, pinned in {"pageable": False, "pinned": True}.items():
        there = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=pinned)
        cuda.synchronize()
        begin = lockstep.virtual.perf_counter()
        there.to("cuda", non_blocking=True)
        called = lockstep.virtual.perf_counter() - begin
        cuda.synchronize()
        found[name] = called, lockstep.virtual.perf_counter() - begin
    return found


seen = on_gpu(copies, values=False)
ok = [called < 0.1 * done for called, done in seen.result.values()]
said = [
    f"{n}: the host is busy for {c * 1e3:.2f} of {d * 1e3:.2f} ms"
    for n, (c, d) in seen.result.items()
]
lockstep.claim(
    "With non_blocking=True a copy runs beside the program.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=seen.stamp,
)

# %% [markdown] id="prefetch-text"
# ### Exercise 5: a prefetcher
#
# **Goal:** `prefetch(cuda, batches, step, side)` returns a list with `step(batch)` for each of one or more pinned
# tensors, which it copies to the device. Copies run on `side`, steps on the current stream, and while a step runs the
# next batch is copied: after the first one, at least 80 % of the copies' time is hidden. All batches lie in at most
# three places of the device's memory, and the host does not wait. No races: a step begins after its copy, and a copy
# writes only where nobody still works. That may be an earlier step, or the current stream with an older tensor, whose
# memory a new buffer has (section 5).
#
# (`step` launches kernels and returns a tensor. All batches have one shape and dtype;
# `torch.empty_like(batch, device="cuda")` makes a buffer for them.)

# %% id="prefetch"
import torch


def prefetch(cuda, batches, step, side):
    # BEGIN SOLUTION
    now = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    free, results = [now.record_event()] * 2, []
    for number, batch in enumerate(batches):
        free[number % 2].wait(side)  # the step that had this buffer is done
        with cuda.stream(side):
            buffers[number % 2].copy_(batch, non_blocking=True)
        now.wait_stream(side)
        results.append(step(buffers[number % 2]))
        free[number % 2] = now.record_event()  # then it may be written again
    return results
    # END SOLUTION


# %% id="prefetch-check"
lockstep.check("prefetch", prefetch)

# %% id="prefetch-run"
prefetch = lockstep.carry_on("prefetch", prefetch)


def train(cuda, prefetched):
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    batches = torch.empty(5, 64 << 20, dtype=torch.uint8, pin_memory=True)
    cuda.synchronize()
    if prefetched:
        prefetch(cuda, list(batches), lambda batch: a @ a, cuda.Stream())
    for batch in () if prefetched else batches:
        batch.to("cuda", non_blocking=True)
        a @ a
    cuda.synchronize()


plain, ahead = (on_gpu(train, way, values=False) for way in (False, True))
title = "Five batches: plain, then prefetched"
lockstep.Timeline(ahead.trace, before=plain.trace, title=title)

# %% [markdown] id="recap"
# Only the first copy is exposed. (On an H200 five such batches took 13.1 ms plain and 8.6 ms prefetched: recorded.)
# Were a step shorter than its copy, the copies would set the pace.
#
# ## Recap
#
# - A call launches, and returns. A clock on the host measures the launch; events measure the device's time, its
#   waiting for launches included. `item`, `cpu`, `nonzero` and an `if` on a value wait.
# - Streams run beside each other, and nothing orders them but events. A missing one is a race: a wrong
#   number, now and then. A repair is an event where it is written and a wait where it is read.
# - NCCL's `async_op=True` is two events around a kernel on another stream; its `wait()` blocks a stream, gloo's
#   blocks the host.
# - Memory goes back when the *host* lets go of it: `record_stream`, or keep the tensor.
# - Overlap hides work that needs other parts of the machine. A collective takes some SMs from the product beside it,
#   and that share of its time is not hidden.
# - Messages that are too small pay α too often; too large ones hide nothing. Compute with α and β, then measure.
# - From pinned memory, on a stream of its own, the next batch is copied while this one is computed.
#
# **What is still slow:** small kernels, bound by their launches. Two streams do not help them, as "Two products at
# once", in the further notebook, shows. CUDA graphs do.

# %% [markdown] id="further"
# # 04 · Streams, events, overlap: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="ordered-again-text"
# ## The memory of your answers
#
# About 5 minutes; a CPU is enough, and what section 5 teaches.
#
# Look again at your `ordered` of exercise 2. Where are `a` and `b` made, and who still reads them when it has returned?
# A tensor belongs to the stream on which it was made: the next one on *that* stream gets its memory. The cell calls
# `ordered` with ones, which gives 10 · 2 + (10 + 3) = 33, and then makes a tensor on each side stream.

# %% id="ordered-again"
ordered = lockstep.carry_on("ordered")


def ordered_again(cuda):
    left, right = cuda.Stream(), cuda.Stream()
    x = torch.ones(1000, device="cuda")
    cuda._sleep(2_000_000)
    total = ordered(cuda, x, left, right)
    for side in (left, right):
        with cuda.stream(side):
            torch.full((1000,), 9.0, device="cuda")
    return total.mean().item()


seen = on_gpu(ordered_again)
print("mean:", seen.result, "·", *(seen.races or ["no races"]))

# %% [markdown] id="ordered-again-explained"
# If `a` and `b` were made by `x * 2` and `x + 3` on the side streams, the sum races with the 9s: 18 comes out. The
# course's answer makes them before, on the current stream, and has the side streams write into them (`out=`);
# `a.record_stream(cuda.current_stream())` is the other way. The check of exercise 2 asks for neither. In exercise 3
# the same holds for `x`: the course's answer keeps it until `wait()`.

# %% [markdown] id="dials-text"
# ## The size of a bucket, on sliders
#
# The model of section 6 for other numbers: gradients of any size, ranks and links of any speed. About 5
# minutes; a CPU is enough. Section 6 comes first.
#
# The sliders begin with 1 GB of gradients on 8 ranks, a backward pass of 20 ms, and a link with the α of 17.7 µs and the
# 318 GB/s that lab 02 fitted to messages between two H200s; a bucket takes the time of a ring all-reduce.
#
# **Predict:** with *one* bucket of all gradients nothing can be sent before the backward pass is over. How
# many milliseconds come after it? (A ring sends 2(N − 1)/N of its bytes; α, paid in each of 2(N − 1) steps, is small
# beside that.)

# %% id="dials-prediction" tags=["prediction"]
prediction = 2 * 7 / 8 * 1e9 / 318e9 * 1000

# %% id="dials"
link = lockstep.cost.Line(alpha=17.7e-6, beta=1 / 318e9)
after = lockstep.cost.ring_all_reduce(8, 1e9, link)
print(lockstep.simulated("a ring all-reduce by α and β"))
lockstep.compare(predicted=prediction, computed=after * 1e3, unit="ms")
lockstep.interactive.overlap(line=link)

# %% [markdown] id="dials-explained"
# Make the bucket smaller, and less communication is left after the backward pass, until α outweighs the bytes of a
# bucket; the sentence below the sliders says where the minimum is. Then make the link ten times slower: the all-reduces
# take longer than the backward pass, and no size of bucket hides them.

# %% [markdown] id="backward-text"
# ## Ways to overlap, on two H200s
#
# About 5 minutes; recorded, so nothing is needed. In section 6 a hook communicates each gradient as soon as it is
# there. How good is that? The recording, with layers of 4096, has a hook for each gradient, and other
# ways: several layers in a message, fewer SMs for NCCL, a stream of high priority, DDP.

# %% id="backward-recorded"
recording = lockstep.recorded("overlap/backward-h200-x2.json")
ways, rows = {}, []
for way in recording.content["ways"]:
    name = [way["how"]]
    name += [f"{way['layers']} layers a message"] if "layers" in way else []
    for limit in ("max_ctas", "bucket_cap_mb"):
        name += [f"{limit} {way[limit]}"] if way.get(limit) else []
    name += ["high priority"] if way.get("high_priority") else []
    ways[", ".join(name)] = way
tried = {n: w for n, w in ways.items() if w["how"] in ("in hooks", "DDP")}
best = {
    "nothing sent": "no communication",
    "after": "after the backward",
    "a hook for each": next(iter(tried)),
    "the largest share": max(tried, key=lambda name: tried[name]["hidden"]),
    "the quickest step": min(tried, key=lambda name: tried[name]["seconds"]),
}
nothing, after = ways["no communication"], ways["after the backward"]
sending = after["seconds"] - nothing["seconds"]
for what, name in best.items():
    way = ways[name]
    gained = (after["seconds"] - way["seconds"]) / sending
    cells = [f"{way['seconds'] * 1e6:,.0f}"]
    for part in ("communication_us", "exposed_us"):
        cells.append(f"{way[part]:,.0f}" if part in way else "–")
    share = f"{100 * way['hidden']:.0f} %" if "hidden" in way else "–"
    rows.append([what, name, *cells, share, f"{100 * gained:.0f} %"])
columns = ["", "how", "step, µs", "all-reduces, by the trace"]
columns += ["of it exposed", "hidden", "gained"]
title = f"12 layers on two H200s, {len(tried)} ways to overlap"
lockstep.table(title, columns, rows, stamp=recording.stamp)

# %% [markdown] id="backward-explained"
# *Hidden* comes from the trace: the part of the all-reduces during which something computes. *Gained* comes from the
# step time: of the time that sending after the backward pass costs, the part that this way saves. By the trace, a hook
# for each gradient is nearly perfect, and nothing hides more. By the step time it saves less than a quarter. A product
# is slower beside an all-reduce, with which it shares SMs, memory and power (how much each of these costs was not
# measured); and the all-reduces take longer, too. (Their time in a trace includes the wait for the last rank.) The
# fastest step hides a smaller share. A trace shows what ran beside what; the step time shows what that was worth.

# %% [markdown] id="down-text"
# ## Copies to the host, and orders that you did not write
#
# About 10 minutes; a CPU is enough, and what sections 3 and 7 teach. In this direction the host is in danger.
# `x.cpu()`, `x.item()` and `print(x)` wait until the number is there. A copy to pinned memory with
# `non_blocking=True` does not wait, and the host may read what was there before. The next cell copies sevens into
# zeros. **Predict:** what does the host read right after the call, on the virtual GPU?

# %% id="down-prediction" tags=["prediction"]
prediction = 0  # the copy has only been launched


# %% id="down"
def down(cuda):
    x = torch.full((1 << 20,), 7.0, device="cuda")
    there = torch.zeros(1 << 20, pin_memory=True)
    there.copy_(x, non_blocking=True)
    early = there[0].item()
    cuda.synchronize()
    return early, there[0].item()


down_seen = on_gpu(down)
early, late = down_seen.result
down_seen.compare(prediction, early)

# %% id="down-races"
print("after synchronize():", late)
print(*(down_seen.races or ["no report: this was a GPU"]), sep="\n")

# %% [markdown] id="orders-unwritten"
# Two orders exist that no line of your program shows. **The default stream** is CUDA's *legacy* one. A stream that a
# CUDA program creates in the usual way waits for the default stream, and the default stream waits for it. PyTorch
# creates its streams *non-blocking*, so nothing orders a `torch.cuda.Stream()` and the default stream but your
# events. And **autograd** runs the backward of each operation on the stream on which its forward ran. It orders these
# streams by events of its own, and before `backward()` returns, the stream that called it waits for them.

# %% [markdown] id="sms-text"
# ## Two products at once
#
# About 15 minutes; a CPU is enough. Communication and products overlap because they want different things. What of
# two *products*? Each of the 132 SMs computes one tile of a product at a time. Here are three kinds of products:
#
# - **large**: 4096³, of which each has 512 tiles (128 × 256) and fills all SMs, several times over,
# - **uneven**: 1536 × 4096 times 4096 × 3072: 192 tiles (128 × 192), so 132 in a first wave and 60 in a second,
# - **small**: 256³, each of which is done before the host has launched the next one.
#
# A wave takes as long as its tiles, however few they are. So an uneven product takes two waves. The cell does
# eight products on one stream; then the same eight on two streams, four on each.
#
# ### Claim: "two streams make independent products faster"
#
# **Guess:** for which of the three kinds is it faster by 10 % or more? (All: holds; some: depends; none: does
# not hold.) **Predict** then for the uneven ones: how many % of speed can two streams gain at most, if the
# tiles of all eight fill the waves as far as they can? (50 would be: 1.5 times as fast. The number to compare with
# was recorded on an H200.)

# %% id="sms-guess" tags=["guess"]
guess = "does not hold"

# %% id="sms-prediction" tags=["prediction"]
# your number, in %
prediction = (16 / 12 - 1) * 100  # 8 · 2 waves; at best 8 · 192 / 132


# %% id="sms"
import statistics


def pairs(cuda):
    shapes = {
        "large": (4096, 4096, 4096),
        "uneven": (1536, 4096, 3072),
        "small": (256, 256, 256),
    }
    streams, found = [cuda.Stream(), cuda.Stream()], {}
    for name, (m, k, n) in shapes.items():
        a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(k, n, dtype=torch.bfloat16, device="cuda")
        for both in (streams, [streams[0]] * 2, streams):
            # the first round is not counted: a new stream asks for memory
            cuda.synchronize()
            begin = lockstep.virtual.perf_counter()
            for _ in range(4):
                for stream in both:
                    with cuda.stream(stream):
                        a @ b
            cuda.synchronize()
            took = lockstep.virtual.perf_counter() - begin
            found.setdefault(name, []).append(took * 1e6)
    return found


seen = on_gpu(pairs, values=False)
sms_recording = lockstep.recorded("streams/h200.json")
gains, rows = {}, []
for name, (_, one, two) in seen.result.items():
    processes = sms_recording.content["gains"][name]
    gains[name] = statistics.median(processes)
    low, high = min(processes), max(processes)
    recorded = f"{gains[name]:.2f} ({low:.2f} to {high:.2f})"
    rows.append([name, f"{one / two:.2f}", recorded])
stamps = [seen.stamp, sms_recording.stamp]
recorded = "H200 (recorded, nine processes)"
columns = ["products", f"here ({seen.stamp.kind})", recorded]
title = "So many times as fast on two streams"
display(lockstep.table(title, columns, rows, stamp=stamps))
lockstep.compare(prediction, measured=(gains["uneven"] - 1) * 100, unit="%")

# %% id="sms-claim"
ok = [gain > 1.1 for gain in gains.values()]
said = [f"{name}: {gain:.2f} times as fast" for name, gain in gains.items()]
lockstep.claim(
    "Two streams make independent products faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=sms_recording.stamp,
)

# %% [markdown] id="sms-explained"
# Large products fill the SMs, and nothing is left to share. Small ones are bound by launches: the device waits for
# the host, and two streams give the host more to do. Only work in between can gain: it leaves SMs idle, and takes
# long enough. Even there the gain was a small part of what the waves allow. (The model is strict: a product keeps its
# SMs until its last tile is done, and it has no power limit. So it cannot tell a gain of 3 % from none. The recording
# timed one stream and two in turns, because a GPU's clock changes while it works: an older recording, which timed
# them one after the other, had found 12 %.)

# %% [markdown] id="priority-text"
# ## Which stream goes first?
#
# About 5 minutes; a CPU is enough. Streams have priorities: `cuda.Stream(priority=-1)` goes before one with priority
# 0. What does that do if a kernel is already running?


# %% id="priority"
def urgent(cuda, priority):
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")
    plain, side = cuda.Stream(), cuda.Stream(priority=priority)
    for stream in plain, side:
        with cuda.stream(stream):
            a @ a  # a new stream asks for memory
    cuda.synchronize()
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    with cuda.stream(plain):
        for _ in range(8):
            a @ a
        first.record()
    with cuda.stream(side):
        a @ a
        last.record()
    cuda.synchronize()
    return first.elapsed_time(last)  # negative: the side's was done earlier


runs = {level: on_gpu(urgent, level, values=False) for level in (0, -1)}
rows = [[level, f"{-seen.result * 1e3:.0f}"] for level, seen in runs.items()]
columns = ["priority of the side stream"]
columns += ["its product is done so many µs before the other eight"]
title = "Eight products, and one on a side stream"
lockstep.table(title, columns, rows, stamp=runs[0].stamp)

# %% [markdown] id="priority-explained"
# Streams of one priority take turns: the side's product came after the first of the eight, and is the second to run.
# So it is early even with priority 0. A running kernel is not interrupted; but when SMs become free, the stream with
# the higher priority gets them first. With -1 the product need not wait for the running one to end, and starts a
# little earlier still. NCCL's process group can have such a stream:
# `ProcessGroupNCCL.Options(is_high_priority_stream=True)`.

# %% [markdown] id="experts-text"
# ## Experts on streams
#
# About 10 minutes; a CPU is enough. In a mixture of experts each expert has a few tokens of a batch, so its product
# is small: it leaves SMs idle, and takes the device about as long as a launch takes the host. Here are eight experts
# with 256 tokens each and weights of 4096 × 1024. How much do streams help?


# %% id="experts"
from contextlib import nullcontext


def experts(cuda, count):
    """µs for eight experts' products, on so many streams; 0: without `with`."""
    tokens = torch.randn(256, 4096, dtype=torch.bfloat16, device="cuda")
    weights = torch.randn(4096, 1024, dtype=torch.bfloat16, device="cuda")
    streams = [cuda.Stream() for _ in range(count)]
    for _ in range(2):  # the second round counts: a new stream asks for memory
        cuda.synchronize()
        begin = lockstep.virtual.perf_counter()
        for expert in range(8):
            here = nullcontext()
            if count:
                here = cuda.stream(streams[expert % count])
            with here:
                tokens @ weights
        cuda.synchronize()
        took = lockstep.virtual.perf_counter() - begin
    return took * 1e6


def batched(cuda, count):
    """The same as one product of a batch."""
    tokens = torch.randn(8, 256, 4096, dtype=torch.bfloat16, device="cuda")
    weights = torch.randn(8, 4096, 1024, dtype=torch.bfloat16, device="cuda")
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    torch.bmm(tokens, weights)
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) * 1e6


# %% id="experts-run"
runs = {"the current stream": on_gpu(experts, 0, values=False)}
for count in (1, 2, 4, 8):
    name = f"{count} stream{'s' * (count > 1)}"
    runs[name] = on_gpu(experts, count, values=False)
runs["one batched product"] = on_gpu(batched, 1, values=False)
recording = lockstep.recorded("virtual/steps-h200.json")
steps = recording.content["programs"]
rows = []
for name, seen in runs.items():
    # all but one are recorded
    measured = steps.get(f"eight experts, {name.removesuffix('ed product')}")
    us = f"{measured['seconds'] * 1e6:.0f}" if measured else "—"
    rows.append([name, f"{seen.result:.0f}", us])
columns = ["how", f"here, µs ({seen.stamp.kind})", "H200, µs (recorded)"]
stamps = [seen.stamp, recording.stamp]
lockstep.table("Eight experts", columns, rows, stamp=stamps)

# %% [markdown] id="experts-explained"
# It is the host again. It launches as fast as the device computes, so streams have nothing to gain; and each `with
# cuda.stream(…)` costs the host about as much as a launch, even with one stream. In the model, more streams change
# nothing; on the H200 each additional stream made it slower. One batched product needs one launch, and its tiles fill
# the waves by themselves. Launched from a CUDA graph, which launches all at once, streams could help where products
# differ in shape; where they do not, a batch is better.

# %% [markdown] id="ctas-text"
# ## How many SMs does the collective take?
#
# About 10 minutes; recorded on two and on four H200s, so nothing is needed. A collective's kernel has thread blocks, and each takes
# an SM from the products beside it. NCCL's limit for them is `max_ctas`, which a process group can be given:
#
#     options = dist.ProcessGroupNCCL.Options()
#     options.config.max_ctas = 16
#     group = dist.new_group(pg_options=options)
#
# Recorded were four products of 8192³ in bfloat16, and an all-reduce of 512 MB: each alone, one after the other, and
# both together.
#
# ### Claim: "the fewer SMs the collective takes, the more of it is hidden"
#
# With fewer SMs the collective takes less from the products, and lasts longer. **Guess**: is more hidden with each
# step down from 32 to 4?

# %% id="ctas-guess" tags=["guess"]
guess = "depends"

# %% id="ctas"
recordings = {n: lockstep.recorded(f"overlap/h200-x{n}.json") for n in (2, 4)}
of_gpus = {n: one.content["rows"] for n, one in recordings.items()}
plain = {n: [r for r in of_gpus[n] if not r["high_priority"]] for n in of_gpus}
TOGETHER = "together, all-reduce launched first"


def hidden(n, row, way=TOGETHER):
    """The share of the default's all-reduce that costs no time."""
    usual, took = plain[n][0]["seconds"], row["seconds"][way]
    return (usual["one after the other"] - took) / usual["all-reduce"]


rows, columns = [], ["max_ctas"]
for both in zip(*plain.values(), strict=True):
    cells = [both[0]["max_ctas"] or "default"]
    for n, row in zip(plain, both, strict=True):
        ms = [row["seconds"][way] * 1e3 for way in ("all-reduce", TOGETHER)]
        share = f"{100 * hidden(n, row):.0f} %"
        cells += [f"{ms[0]:.2f}", f"{ms[1]:.2f}", share]
    rows.append(cells)
for n in plain:
    columns += [f"{n} GPUs: all-reduce alone, ms"]
    columns += ["with products, ms", "hidden"]
ctas_stamps = [one.stamp for one in recordings.values()]
title = "Four products beside an all-reduce"
lockstep.table(title, columns, rows, stamp=ctas_stamps)

# %% id="ctas-claim"
from itertools import pairwise

ctas = lambda row: row["max_ctas"]
limited = {n: sorted(rows[1:], key=ctas) for n, rows in plain.items()}
shares = {n: [hidden(n, row) for row in rows] for n, rows in limited.items()}
ok = [few > many for some in shares.values() for few, many in pairwise(some)]
lockstep.claim(
    "The fewer SMs the collective takes, the more of it is hidden.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(
        f"{n} GPUs, max_ctas {[ctas(row) for row in limited[n]]}: "
        + ", ".join(f"{100 * one:.0f} %" for one in some)
        for n, some in shares.items()
    ),
    stamp=ctas_stamps,
)

# %% [markdown] id="orders-text"
# "Hidden" is relative to the default's all-reduce, which is 100 %. On these machines 16 thread blocks hid the most,
# more than the default. With fewer the products have more SMs, but the all-reduce takes much longer (with 4 even
# alone longer than the products), and that costs more. On four GPUs the all-reduce takes longer than on two, and more
# of it is hidden.
#
# ### In which order, in how many parts, how urgent?
#
# The same products and the same bytes, launched in other orders: after the first product, in four parts at once, or a
# part before each product. Each with a stream of the usual priority for NCCL, and with a high one
# (`is_high_priority_stream=True`).

# %% id="orders"
defaults, columns = [], ["launched"]
for n, rows in of_gpus.items():
    defaults += [(n, row) for row in rows if row["max_ctas"] is None]
    columns += [f"{n} GPUs, usual", f"{n} GPUs, high"]
rows = []
for way in of_gpus[2][0]["seconds"]:
    if way.startswith("together"):
        cells = [f"{100 * hidden(n, row, way):.0f} %" for n, row in defaults]
        rows.append([way.removeprefix("together, "), *cells])
title = "Hidden, of the all-reduce, by priority"
lockstep.table(title, columns, rows, stamp=ctas_stamps)

# %% [markdown] id="orders-explained"
# The whole all-reduce, launched first, was hidden best; parts did not help. A high priority gained little or nothing,
# and sometimes less was hidden with it. Measure it for your own step.

# %% [markdown] id="fused-text"
# ## A product that fetches its own operand
#
# About 5 minutes; recorded on two H200s. With tensor parallelism a product needs *all* rows, and each rank has a part
# of them: an all-gather, then the product. The product must wait for the rows, so the two cannot overlap. But a
# product can be split: while one part is computed, the next is fetched. PyTorch's
# `torch.ops.symm_mem.fused_all_gather_matmul` does so, from *symmetric memory*: memory of the peers that a rank can read by itself. The copies are those of copy engines, and
# take no SMs. (PyTorch's authors call it [async tensor
# parallelism](https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487).)
#
# The second row is the other way round: a product whose results are summed over the ranks, of which each keeps a
# part (a reduce-scatter). `fused_matmul_reduce_scatter` moves one part while the next is computed.
#
# The recorded product has 8192 × 8192 times 8192 × 2048 elements. Each was timed *as it is called*, and *launched ahead*:
# behind a kernel that keeps the device busy until the host has launched all, as in a long step or a CUDA graph. A
# negative share means that the fused operation is slower than the two one after the other. Is it worth it?

# %% id="fused"
recording = lockstep.recorded("overlap/async-tp-h200-x2.json")
COLLECTIVES = {
    "all-gather, then product": "all-gather",
    "product, then reduce-scatter": "reduce-scatter",
}
HOW = {"as it is called": "seconds", "launched ahead": "seconds_ahead"}
rows = []
for apart, collective in COLLECTIVES.items():
    for how, key in HOW.items():
        s = recording.content[key]
        fused = "fused " + apart.replace(", then", " and")
        us = [s[name] * 1e6 for name in (collective, apart, fused)]
        share = f"{100 * (us[1] - us[2]) / us[0]:.0f} %"
        rows.append([apart, how, *(f"{part:.0f}" for part in us), share])
columns = ["what", "how", "collective alone, µs"]
columns += ["one after the other", "fused", "hidden"]
title = "Async tensor parallelism on two H200s"
lockstep.table(title, columns, rows, stamp=recording.stamp)

# %% [markdown] id="fused-explained"
# It depends on the host. A fused operation consists of many small launches, copies and partial products. If they are
# called one at a time, as in a small program, the device waits for these launches, and most of the gain is lost.
# Launched ahead, two thirds of the all-gather are hidden, because no SM is taken from the product. A reduce-scatter
# is shorter here, so there is less to win, and splitting the product costs something, too. So measure such an
# operation in your own step.
