# %% [markdown] id="title"
# # 11 · Compiled graphs across ranks
#
# **Two sittings, 75 and 90 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some; else graphs run on virtual GPUs,
# and four H200s are recorded)
#
# Serving engines compile a model and replay it as CUDA graphs, with collectives inside. Nothing in a graph asks other
# ranks whether they replay the same. Afterwards you can
#
# - say which collectives Dynamo keeps in a graph, and take a line that breaks it out of one,
# - capture a tensor-parallel step on every rank, for several batch sizes,
# - read the report of ranks that have replayed different graphs,
# - let ranks agree on the graph that they replay, by one small collective,
# - choose the sizes to capture, and say where DDP cuts a compiled model.
#
# Do labs 05 (compiled graphs), 06 (CUDA graphs) and 09 (tensor parallelism) first. No compiler is needed.
# What `mode="reduce-overhead"` captures, NCCL's rules for graphs, where Inductor puts a collective's wait, and what a cold
# start costs, is in the further notebook.
#
# The folded cell below defines `on_gpus(program, …)`: it runs `program(cuda, …)` on the ranks of this notebook, with one
# GPU each, real or virtual (lab 06), and `cuda` has the names of `torch.cuda`. `microseconds(cuda, step)` times a step.
# The backend `keep(graphs)` is for `torch.compile`: it puts each graph into a list and runs it as it is.

# %% id="parameters" tags=["parameters"]
NPROC = 2  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep
import torch
import torch.distributed as dist

on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
print(lockstep.virtual.MACHINES["H200"])

# %% id="progress" tags=["unpublished"]
lockstep.progress("11")

# %% id="measuring" tags=["plumbing"]
from dataclasses import dataclass
from typing import Any

from lockstep.base.provenance import Provenance


def _on_rank(program, args, values):
    if dist.get_backend() == "nccl":
        stamp = Provenance("live", torch.cuda.get_device_name())
        return program(torch.cuda, *args), stamp
    with lockstep.virtual.device("H200", values=values) as cuda:
        return program(cuda, *args), lockstep.virtual.trace().stamp


@dataclass
class Seen:
    results: list[Any]  # by rank
    stamp: Any

    def compare(self, prediction, value, unit=""):
        way = "computed" if self.stamp.kind == "simulated" else "measured"
        return lockstep.compare(prediction, **{way: value}, unit=unit)


def on_gpus(program, *args, values=True):
    """Run program(cuda, *args) on all ranks; values=False: only for times."""
    job = lockstep.torchrun(_on_rank, program, args, values, **on_ranks)
    results, stamps = zip(*job.results, strict=True)
    return Seen(list(results), stamps[0])


def microseconds(cuda, step, repeats=10):
    """Of a step, from the first call until the device is done."""
    step()
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    for _ in range(repeats):
        step()
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) / repeats * 1e6


def keep(graphs):
    """A backend that keeps the names of each graph's calls."""

    def backend(module, inputs):
        calls = [n for n in module.graph.nodes if n.op.startswith("call")]
        graphs.append([getattr(n.target, "__name__", n.target) for n in calls])
        return module

    return backend


# %% [markdown] id="seen-text"
# ## 1 · What Dynamo sees of a collective
#
# In lab 05 `dist.all_reduce(y)` became three nodes of one graph: a start, a wait, and a copy into `y`. Dynamo can do so
# because there is a **functional** form: an operation that returns a new tensor. There is one for all_reduce,
# all_gather, reduce_scatter and all_to_all. Where a call has none, where it returns a handle
# (`async_op=True`), or where Python needs a number, the graph ends, and the call is left to Python.
#
# **Predict:** each of the ten lines below stands between `y = x * 2` and `return y + 1`. How many of them break the
# graph?

# %% id="seen-prediction" tags=["prediction"]
prediction = 6  # the handle, broadcast, barrier, send, batch_isend_irecv, item

# %% id="lines"
LINES = [
    "dist.all_reduce(y)",
    "dist.all_reduce(y, async_op=True).wait()",
    "dist.all_gather_into_tensor(many, y)",
    "dist.reduce_scatter_tensor(y, many)",
    "dist.all_to_all_single(many.clone(), many)",
    "dist.broadcast(y, 0)",
    "dist.barrier()",
    "dist.send(y, 1) if rank == 0 else dist.recv(y, 0) if rank == 1 else 0",
    "[one.wait() for one in dist.batch_isend_irecv(around(y, many))]",
    "y.sum().item()",
]


def around(y, many):
    """y to the next rank, and another one from the rank before."""
    rank, n = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, y, (rank + 1) % n)
    return [send, dist.P2POp(dist.irecv, many[:4], (rank - 1) % n)]


# %% id="seen"
def graphs_of(lines):
    """The calls in each graph that Dynamo makes with each line."""
    torch._logging.set_logs(dynamo=40)  # errors only
    found, n = {}, dist.get_world_size()
    x = torch.ones(4, device=lockstep.device())
    for line in lines:
        torch.compiler.reset()
        code = f"def f(x, many, rank):\n y = x * 2\n {line}\n return y + 1"
        names = globals() | {"around": around}
        exec(code, names)
        found[line] = []
        f = torch.compile(names["f"], backend=keep(found[line]))
        f(x, torch.ones(4 * n, device=x.device), dist.get_rank())
        dist.barrier()
    return found


seen_job = lockstep.torchrun(graphs_of, LINES, **on_ranks)

# %% id="seen-measured"
kept = []
for line, graphs in seen_job[0].items():
    inner = [name for graph in graphs for name in graph]
    kept.append([line, len(graphs), " ".join(inner[1:-1]) or "–"])
columns = ["line", "graphs", "what the graphs have of it"]
title, stamp = "Ten lines, compiled", lockstep.live(seen_job)
display(lockstep.table(title, columns, kept, stamp=stamp))
breaks = sum(row[1] != 1 for row in kept)  # 0: all of it stays Python
lockstep.compare(predicted=prediction, measured=breaks)

# %% [markdown] id="seen-explained"
# A line that breaks the graph still runs, in Python, between two graphs: the results are right. `copy_` is the price of
# a call that writes into its argument. With `all_reduce(y, "sum", group)` of `_functional_collectives`, a module in
# `torch.distributed`, it falls away: that one returns the sum.
#
# ### Claim: "a collective breaks the graph"
#
# A common guess. **Guess**, for those of the lines above that have a collective.

# %% id="breaks-guess" tags=["guess"]
guess = "depends"

# %% id="breaks-claim"
ok = {}
for line, count, _ in kept:
    name = line.removeprefix("dist.").split("(")[0]
    if name.startswith(("all_", "reduce_", "broadcast", "barrier")):
        name += ", async_op=True" if "async" in line else ""
        ok[name] = count > 1
lockstep.claim(
    "A collective breaks the graph.",
    guess=guess,
    verdict="holds" if all(ok.values()) else "depends",
    because="break it: " + "; ".join(name for name in ok if ok[name]),
    stamp=lockstep.live(seen_job),
)

# %% [markdown] id="returns-text"
# ### Claim: "the output of a cut layer is `dist.all_reduce(y)`"
#
# A common guess, often found in sketches of such layers: `y = dist.all_reduce(y)`. **Guess** whether a compiled
# layer that is written so returns the sum.

# %% id="returns-guess" tags=["guess"]
guess = "does not hold"


# %% id="returns-claim"
def returned():
    """What a compiled line returns, and what is in y then."""
    y = torch.ones(2, device=lockstep.device())
    f = torch.compile(lambda y: dist.all_reduce(y), backend="eager")
    return f(y), y.tolist()


job = lockstep.torchrun(returned, **on_ranks)
value, after = job[0]
lockstep.claim(
    "The output of a cut layer is dist.all_reduce(y).",
    guess=guess,
    verdict="does not hold" if value is None else "holds",
    because=f"it returned {value}; y itself was {after}",
    stamp=lockstep.live(job),
)

# %% [markdown] id="scaled-text"
# ### Exercise 1: a step in one graph
#
# Before numbers are rounded to few bits, they are scaled: by the largest absolute value of the *whole* tensor, of which
# each rank has a part. This function asks Python:
#
# ```python
# def scaled(x):
#     largest = x.abs().max()
#     dist.all_reduce(largest, op=dist.ReduceOp.MAX)
#     if largest.item() > 0:
#         return x / largest.item()
#     return x.clone()
# ```
#
# **Goal:** `scaled(x)` returns the same, in a new tensor, and compiled it is a single graph with the collective in
# it, without a graph break, for whatever values come. `x` is not changed.

# %% id="scaled"
import torch
import torch.distributed as dist


def scaled(x):
    # BEGIN SOLUTION
    largest = x.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return torch.where(largest > 0, x / largest, x)
    # END SOLUTION


# %% id="scaled-check"
lockstep.check("scaled", scaled)

# %% [markdown] id="global-text"
# ### Claim: "each rank compiles a graph of its own"
#
# A common guess. In the cell below rank 0 alone takes a branch. **Guess** whether the ranks' graphs differ.

# %% id="global-guess" tags=["guess"]
guess = "holds"


# %% id="global-claim"
def own_graph():
    graphs = []

    @torch.compile(backend=keep(graphs))
    def step(x):
        if dist.get_rank() == 0:
            x = torch.relu(x)
        dist.all_reduce(x)
        return x

    step(torch.ones(2, device=lockstep.device()))
    return graphs


job = lockstep.torchrun(own_graph, **on_ranks)
for rank, (calls,) in enumerate(job.results):
    print(f"rank {rank}:", *calls)
same = all(one == job[0] for one in job.results)
lockstep.claim(
    "Each rank compiles a graph of its own.",
    guess=guess,
    verdict="does not hold" if same else "holds",
    because=f"rank 0's has {len(job[0][0])} calls, rank 1's {len(job[1][0])}",
    stamp=lockstep.live(job),
)

# %% [markdown] id="ways-text"
# ## 2 · A decode step, three ways
#
# A decode step of a tensor-parallel model, with one row for each sequence: 16 layers, of which each rank has a part of
# the hidden numbers (lab 09). A layer has two products, a relu, an all-reduce and an addition. A launch takes the host
# 11.7 µs for a product, 6.6 µs for the relu or the addition, and 10.3 µs for the all-reduce. All take the device less
# than that, but for the all-reduce, which takes it 10.4 µs; a product takes it about 1.9 µs, the other kernels 1.1 µs.
#
# **Predict:** how many times as fast as the eager step is a replay of it as a graph?

# %% id="ways-prediction" tags=["prediction"]
# your number: host's time / device's time, of a layer
prediction = (2 * 11.7 + 2 * 6.6 + 10.3) / (2 * 1.9 + 2 * 1.1 + 10.4)


# %% id="ways-model"
def make_layers(width=512, layers=16):
    """This rank's part of each layer's two weights."""
    part = width // dist.get_world_size()
    some = {"dtype": torch.bfloat16, "device": "cuda"}
    first = torch.randn(layers, width, part, **some) / width
    second = torch.randn(layers, part, width, **some) / width
    return list(zip(first.unbind(), second.unbind(), strict=True))


def decode(layers, x):
    for first, second in layers:
        y = torch.relu(x @ first) @ second
        dist.all_reduce(y)
        x = x + y
    return x


# %% id="ways"
def two_ways(cuda):
    layers = make_layers()
    x = torch.ones(8, 512, dtype=torch.bfloat16, device="cuda")
    plain = microseconds(cuda, lambda: decode(layers, x))
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        decode(layers, x)
    took = plain, microseconds(cuda, g.replay)
    g.reset()  # a group cannot be destroyed while its graph is alive
    return took


seen = on_gpus(two_ways, values=False)
eager_us, graph_us = seen.results[0]
rows = [["eager", f"{eager_us:.0f}"], ["graph", f"{graph_us:.0f}"]]
title = f"A decode step, {NPROC} ranks"
display(lockstep.table(title, ["how", "µs"], rows, stamp=seen.stamp))
seen.compare(prediction, eager_us / graph_us, "times")

# %% [markdown] id="ways-explained"
# As a graph, a step is as long as its kernels, and most of that is the all-reduce: short messages cost their latency.
# Compiled by Inductor, the step would have fewer kernels, and each is still launched by the host.
#
# Here are three recordings of four H200s: 16 blocks with two products and an all-reduce each, eager, compiled in the
# default mode, and as a graph on each rank. "ms" is a step that nobody profiles; the other columns are counted in a
# trace of three steps, on rank 0.

# %% id="recorded"
from lockstep.trace import Kind

timed = lockstep.recorded("traces/overhead.json")
recorded, rows = {}, []
for how in ("eager", "compiled", "graph"):
    name = f"tensor-parallel-{how}"
    trace = lockstep.Trace.load(lockstep.recorded(f"traces/{name}")).align()
    calls = trace.launches().calls[0]
    nccl = [one for one in trace if one.kind == Kind.COMMUNICATION]
    sent = sum(one.rank == 0 for one in nccl)
    spent = trace.breakdown().of(0)
    took = timed.content[name]["step_seconds"]
    recorded[how] = {"step": took, "launches": calls.calls / 3, "spent": spent}
    row = how, calls.calls / 3, calls.launched / 3, sent / 3, took * 1e3
    rows.append([row[0], *(f"{one:.0f}" for one in row[1:4]), f"{row[4]:.2f}"])
columns = ["how", "launching calls", "kernels", "of NCCL", "ms"]
title = "A step on 4 H200s, rank 0"
lockstep.table(title, columns, rows, stamp=timed.stamp)

# %% [markdown] id="faster-text"
# ### Claim: "compiled, a step with collectives is faster"
#
# A common guess. **Guess**, of the two rows "eager" and "compiled", without a graph: faster by 5 % or more?

# %% id="faster-guess" tags=["guess"]
guess = "does not hold"

# %% id="faster-claim"
plain, compiled = recorded["eager"]["step"], recorded["compiled"]["step"]
lockstep.claim(
    "Compiled, a step with collectives is faster.",
    guess=guess,
    verdict="holds" if compiled < 0.95 * plain else "does not hold",
    because=f"{plain * 1e3:.2f} ms eager, {compiled * 1e3:.2f} ms compiled",
    stamp=timed.stamp,
)

# %% [markdown] id="removed-text"
# ### Claim: "a graph removes the cost of launching wholly"
#
# A common guess; one call launches everything. Between kernels the device may still wait: for the host (host-bound),
# or for the kernel before (dependency: from the end of one to the start of the next). **Guess:** do both together
# come to less than 5 % of the graph's step?

# %% id="removed-guess" tags=["guess"]
guess = "does not hold"

# %% id="removed-claim"
spent = recorded["graph"]["spent"]
host, after = spent.host_bound / spent.length, spent.dependency / spent.length
lockstep.claim(
    "A graph removes the cost of launching wholly.",
    guess=guess,
    verdict="holds" if host + after < 0.05 else "does not hold",
    because=f"{recorded['graph']['launches']:.0f} launch a step; waiting for "
    f"it takes {100 * host:.0f} %, gaps between kernels {100 * after:.0f} %",
    stamp=timed.stamp,
)

# %% [markdown] id="capture_sizes-text"
# ### Exercise 2: capture it on every rank
#
# A capture runs nothing, so it needs no other rank. But its **warm-up** runs the step: on all ranks, or the collective in it
# hangs; and with the same sizes in the same order, or shapes do not match. The first collective of a group may also set the
# group up, which does not belong into a graph.
#
# **Goal:** `capture_sizes(cuda, step, width, sizes)` captures `step(x)` for inputs of each of `sizes` rows (float32,
# `width` columns), all in one pool, largest first, and returns `run(x, size)`. For `x` of at most `size` rows that replays
# the graph of `size` and returns the first rows of its result, as many as `x` has, in a new tensor. `step` has an
# all-reduce in it and treats each row by itself. The first call of `step` sets something up that cannot be captured.
# **Each rank gets `sizes` in another order.**

# %% id="capture_sizes"
import torch


def capture_sizes(cuda, step, width, sizes):
    # BEGIN SOLUTION
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):  # the same on all ranks
        step(static[:size])  # warm-up
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run
    # END SOLUTION


# %% id="capture_sizes-check"
lockstep.check("capture_sizes", capture_sizes)

# %% [markdown] id="break"
# **Break.** The first sitting ends here. Each rank can compile and capture its steps. What comes next: what happens if
# they do not do the same, how they agree, which sizes to capture, and training. To go on from here in a new kernel, run
# only the lab's first cells, down to the one that defines `keep`.

# %% [markdown] id="parted-text"
# ## 3 · Ranks that part
#
# ### Claim: "all ranks replay the same graph, so collectives align by themselves"
#
# A common guess. In section 1 the graphs of two ranks differed, nothing said so, and their collectives still matched. A
# collective is matched by its place in the order of calls, also in a replay. In the next cell rank 1
# has captured two all-reduces in the other order; `x` is 1 and `y` is 10 on each rank. The same was recorded on two
# H200s, and that is the verdict. **Guess** whether each tensor becomes its own sum, or an error is raised.

# %% id="parted-guess" tags=["guess"]
guess = "does not hold"


# %% id="parted-claim"
def other_order(cuda):
    x, y = (torch.full((4,), one, device="cuda") for one in (1.0, 10.0))
    dist.all_reduce(torch.zeros(4, device="cuda"))  # warm-up
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        for one in (y, x) if dist.get_rank() == 1 else (x, y):
            dist.all_reduce(one)
    g.replay()
    found = x[0].item(), y[0].item()
    g.reset()
    return found


print("here, x and y by rank:", *on_gpus(other_order).results)
recording = lockstep.recorded("graphs/ranks-h200-x2.json")
case = "rank 1 has captured another order"
done = recording.content["cases"][case][0]["marks"][0]
lockstep.claim(
    "All ranks replay the same graph, so collectives align by themselves.",
    guess=guess,
    verdict="holds" if (done["x"], done["y"]) == (2, 20) else "does not hold",
    because=f"on 2 ranks, without an error: x = {done['x']:g} and "
    f"y = {done['y']:g}; 2 and 20 would be right",
    stamp=recording.stamp,
)

# %% [markdown] id="shapes-text"
# Nothing was reported, and a model would go on with wrong numbers.
#
# ### A bug to diagnose
#
# In serving, the number of rows differs from step to step. If each rank picks the graph that fits its *own* rows, they
# part: here rank 1 has three rows and the others five, and graphs are captured for 4 and 8. The cell is **broken on
# purpose**. Look in the report for what each rank passed.


# %% id="shapes" tags=["varies"]
def own_choice(cuda):
    x = torch.ones(8, 64, device="cuda")
    graphs = {}
    for size in (8, 4):
        dist.all_reduce(x[:size])  # warm-up
        graphs[size] = cuda.CUDAGraph()
        with cuda.graph(graphs[size]):
            dist.all_reduce(x[:size])
    rows = 3 if dist.get_rank() == 1 else 5
    graphs[4 if rows <= 4 else 8].replay()
    cuda.synchronize()


options = on_ranks | {"timeout": 20, "may_fail": True}
print(lockstep.torchrun(_on_rank, own_choice, (), True, **options))

# %% [markdown] id="shapes-explained"
# The line "The ranks disagree" has it: the third all-reduce is that of the replay, and rank 1 passed four rows where
# rank 0 passed eight. gloo checks sizes, so one rank is ended; the other one only lost its connection.
#
# **What changes under NCCL:** nobody compares sizes. On two H200s this cell ended only at the time limit that it sets:
# rank 0 waited on the GPU for rows that nobody sends. A replay calls nothing of `torch.distributed`, so PyTorch's own
# timeout does not see it either; what Lockstep reports of replays is in the further notebook. What was recorded on two H200s, where rank 1 had captured half of the elements, and
# where it replays 0.3 s late:

# %% id="fates" tags=["plumbing"]
recording = lockstep.recorded("graphs/ranks-h200-x2.json")
cases, fates = recording.content["cases"], []
for case in ("rank 1 has captured half of the elements", "rank 1 replays late"):
    for rank, one in enumerate(cases[case]):
        done = {mark["what"]: mark for mark in one["marks"]}["synchronised"]
        names = [name for name in ("first", "last", "x") if name in done]
        said = ", ".join(f"{name} = {done[name]:g}" for name in names)
        fates.append([case, rank, said])
columns = ["case", "rank", "elements after the replay"]
title = "Replays on two H200s; no error was raised"
lockstep.table(title, columns, fates, stamp=recording.stamp)

# %% [markdown] id="late-text"
# In the first case all elements should be 2: the last ones were never added up. In the second both ranks have the same:
# a rank that is late makes the others wait, on the device. Rank 1 began its replay 0.3 s after rank 0. On rank 0 `replay()`
# only launches, and `synchronize()` waits for the device.
#
# **Predict:** how many ms after the start of its replay does `synchronize()` return on rank 0?

# %% id="late-prediction" tags=["prediction"]
# your number, in ms
prediction = 300  # the all-reduce of its graph waits for rank 1

# %% id="late"
marks = cases["rank 1 replays late"][0]["marks"]
at = {one["what"]: 1e3 * one["seconds"] for one in marks}
begin = at["before the replay"]
print(f"replay() took {at['replay() has returned'] - begin:.1f} ms")
lockstep.compare(prediction, measured=at["synchronised"] - begin, unit="ms")

# %% [markdown] id="apart-text"
# So a late rank shows where the host next waits for the device, which may be many lines later.
#
# ### Claim: "captures need no agreement between ranks"
#
# A common guess. In the cell below the ranks capture one after the other, with a barrier in between. **Guess** whether
# the replays then give the right result.

# %% id="apart-guess" tags=["guess"]
guess = "holds"


# %% id="apart-claim"
def one_by_one(cuda):
    x = torch.ones(4, device="cuda")
    dist.all_reduce(x)  # warm-up: x is the number of ranks
    cuda.synchronize()
    g = cuda.CUDAGraph()
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            with cuda.graph(g):
                dist.all_reduce(x)
    g.replay()
    found = x[0].item()
    g.reset()
    return found


seen = on_gpus(one_by_one)
lockstep.claim(
    "Captures need no agreement between ranks.",
    guess=guess,
    verdict="holds" if seen.results[0] == NPROC**2 else "does not hold",
    because=f"x is {seen.results[0]:g}; {NPROC**2} is right",
    stamp=seen.stamp,
)

# %% [markdown] id="replay_together-text"
# ### Exercise 3: agree before each step
#
# So *which* graph to replay must be the same on all ranks, and in the same order. Before each step the ranks
# agree, by one small collective outside of the graph. A rank without any rows has to replay, too: others wait
# in the graph's collectives.
#
# **Goal:** `replay_together(run, x, sizes)` returns what `run(x, size)` returns, your function of exercise 2, where `size` is
# the same on all ranks: the smallest of `sizes` that fits the rows of *every* rank. `x` may have any number of
# rows, 0 too, and some size fits. Each call makes one collective, of 8 bytes at most, and calls `run` once. `sizes` are in any
# order, on each rank in another one. The collective's tensor is on the device of `x`.

# %% id="replay_together"
import torch
import torch.distributed as dist


def replay_together(run, x, sizes):
    # BEGIN SOLUTION
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return run(x, min(size for size in sizes if size >= most.item()))
    # END SOLUTION


# %% id="replay_together-check"
lockstep.check("replay_together", replay_together)

# %% [markdown] id="serve-text"
# Now both of your functions together, in a loop in which ranks would have parted: rank r has (7r + 3·step) mod 9 rows.

# %% id="serve"
capture_sizes = lockstep.carry_on("capture_sizes")
replay_together = lockstep.carry_on("replay_together", replay_together)


def serve(cuda, steps=4):
    def step(x):
        y = x * 2
        dist.all_reduce(y)
        return y

    took, run = [], capture_sizes(cuda, step, 4, [2, 4, 8])
    noted = lambda x, size: took.append(size) or run(x, size)
    rows = [(7 * dist.get_rank() + 3 * at) % 9 for at in range(steps)]
    for many in rows:
        replay_together(noted, torch.ones(many, 4, device="cuda"), [2, 4, 8])
    return rows, took


served = on_gpus(serve)
for rank, (rows, sizes) in enumerate(served.results):
    print(f"rank {rank}: rows {rows}, graphs {sizes}")
print(served.stamp)

# %% [markdown] id="ladder-text"
# ## 4 · A ladder of sizes
#
# Each captured size takes time at the start, and memory: of the device for its kernels, even in one pool. Each missing
# size is paid for in **padding**: rows that are computed and thrown away.
#
# An engine has graphs for 8, 16 and 32 rows. The next steps have 3, 9, 10, 10, 17 and 30 rows. **Predict:** how many
# rows are computed in these six steps?

# %% id="padding-prediction" tags=["prediction"]
# your number
prediction = 8 + 16 + 16 + 16 + 32 + 32

# %% id="padding"
STEPS = [3, 9, 10, 10, 17, 30]


def computed(rows, sizes):
    """Rows that graphs of these sizes compute for steps of so many rows."""
    return sum(min(size for size in sizes if size >= one) for one in rows)


lockstep.compare(prediction, computed=computed(STEPS, [8, 16, 32]))

# %% [markdown] id="dynamic-text"
# ### Claim: "a graph is unsuited to batch sizes that change"
#
# Shapes in a graph are fixed, so people say this. With one graph for each power of 4, a batch is padded to less than four
# times its rows. Recorded on an H200, one GPU: steps of 24 layers, eager and replayed, with 1, 4, 16, … rows, of three
# widths. **Guess:** is a replay with four times the rows slower than the eager step with as few as there are (holds),
# never (does not hold), or sometimes (depends)?

# %% id="dynamic-guess" tags=["guess"]
guess = "depends"

# %% id="dynamic-claim"
h200 = lockstep.recorded("graphs/h200.json")
steps = h200.content["steps"]
timed_steps = {(one["width"], one["batch"]): one for one in steps}
slower, said = [], []
for (width, rows), one in timed_steps.items():
    if padded := timed_steps.get((width, 4 * rows)):
        took = one["eager_us"], padded["replay_us"]
        slower.append(took[1] > took[0])
        pair = f"{took[0]:.0f} and {took[1]:.0f}"
        said.append(f"width {width}, {rows} rows: {pair}")
some = "depends" if any(slower) else "does not hold"
lockstep.claim(
    "A graph is unsuited to batch sizes that change.",
    guess=guess,
    verdict="holds" if all(slower) else some,
    because="µs, eager and padded fourfold: " + "; ".join(said),
    stamp=h200.stamp,
)

# %% [markdown] id="dynamic-explained"
# As long as launches bound the step, even fourfold padding is cheap; where kernels do, a graph gains nothing and
# padding costs what it looks like. So engines capture small batches, in closer steps, and run large ones eagerly.
#
# ### Exercise 4: choose the sizes
#
# **Goal:** `ladder(rows, count)` returns a list of at most `count` sizes, in rising order. `rows` lists the rows of many
# steps, each at least 1. Each step runs in the smallest size that fits, and there is one for each. Of all such
# lists yours is one for which the fewest rows are computed. There are up to 60 different numbers in `rows`, so trying
# all subsets takes too long.


# %% id="ladder"
def ladder(rows, count):
    # BEGIN SOLUTION
    def cost(low, size):  # of the rows above `low`, in graphs of `size`
        return size * sum(low < one <= size for one in rows)

    best = {0: (0, [])}  # by the largest size: rows computed, and the sizes
    for _ in range(count):
        best |= {
            size: min(
                (best[low][0] + cost(low, size), [*best[low][1], size])
                for low in best
                if low < size
            )
            for size in set(rows)
        }
    return best[max(rows)][1]
    # END SOLUTION


# %% id="ladder-check"
lockstep.check("ladder", ladder)

# %% [markdown] id="pieces-text"
# ## 5 · Training: where a compiled model is cut
#
# DDP sends gradients in buckets while the backward pass goes on. In a single compiled backward graph, all gradients would
# be there only at its end. So Dynamo cuts a model in DDP into **pieces**. It goes through the layers from the last one to
# the first and adds up the bytes of their weights. A piece ends as soon as it has `bucket_cap_mb` or more; the first
# piece that it makes, with the last layer, ends at 1 MiB already, or at `bucket_cap_mb` if that is less.
#
# **Predict:** eight layers have 1 MiB each, and `bucket_cap_mb=4`. How many pieces are there?

# %% id="pieces-prediction" tags=["prediction"]
prediction = 3  # the last layer; four more; the first three


# %% id="pieces-run"
from functools import partial

from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Sequential):
    def forward(self, x):  # its own frame: PyTorch's are not captured alone
        return super().forward(x)


def cut(widths, cap):
    """The calls in each piece of a model with these widths."""
    torch._logging.set_logs(dynamo=40)
    linear = partial(torch.nn.Linear, bias=False, device=lockstep.device())
    net, graphs = Net(*map(linear, widths, widths[1:])), []
    model = DistributedDataParallel(net, bucket_cap_mb=cap)
    f = torch.compile(model, backend=keep(graphs))
    x = torch.ones(2, widths[0], device=lockstep.device())
    f(x).sum().backward()
    return graphs


cut_job = lockstep.torchrun(cut, [512] * 9, 4, **on_ranks)
print("layers in each piece:", *map(len, cut_job[0]))
lockstep.compare(predicted=prediction, measured=len(cut_job[0]))

# %% [markdown] id="pieces-goal"
# ### Exercise 5: count the pieces
#
# **Goal:** `pieces(layers, cap)` returns a list of the number of layers in each piece, in the order of the model. `layers`
# lists the bytes of the weights of each layer, in the order of the model; there is at least one. `cap` is
# `bucket_cap_mb` in bytes. Every layer has weights.


# %% id="pieces"
def pieces(layers, cap):
    # BEGIN SOLUTION
    found, limit = [[]], min(cap, 1 << 20)
    for size in reversed(layers):
        if sum(found[-1]) >= limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]
    # END SOLUTION


# %% id="pieces-check"
lockstep.check("pieces", pieces)

# %% id="pieces-compare"
# your function beside Dynamo, on six layers of different sizes
from itertools import pairwise

pieces = lockstep.carry_on("pieces", pieces)
WIDTHS = [1024, 256, 1024, 256, 512, 64, 1024]
bytes_of = [4 * a * b for a, b in pairwise(WIDTHS)]
for cap in (1, 2):
    job = lockstep.torchrun(cut, WIDTHS, cap, **on_ranks)
    by_dynamo = [len(one) for one in job[0]]
    yours = pieces(bytes_of, cap << 20)
    print(f"{cap} MiB: yours {yours}, Dynamo's {by_dynamo}")

# %% [markdown] id="inside-text"
# ### Claim: "the all-reduces of a compiled model in DDP stay outside of its graphs"
#
# A common guess; others say that computation and communication become one plan. **Guess**, for the three pieces of the
# prediction above.

# %% id="inside-guess" tags=["guess"]
guess = "holds"

# %% id="inside-claim"
names = [str(name) for piece in cut_job[0] for name in piece]
reduces = sum("reduce" in name for name in names)
lockstep.claim(
    "The all-reduces of a compiled model in DDP stay outside of its graphs.",
    guess=guess,
    verdict="does not hold" if reduces else "holds",
    because=f"of {len(names)} calls in the pieces {reduces} reduce something",
    stamp=lockstep.live(cut_job),
)

# %% [markdown] id="shards-text"
# DDP's own hooks send the buckets, between the pieces of the backward pass. FSDP2 (lab 08) gathers a block's weights before the
# block runs, also from a hook, so people compile each block by itself.
#
# ### Claim: "compiled block by block, a sharded model has a graph for each block"
#
# **Guess**, for four equal blocks.

# %% id="shards-guess" tags=["guess"]
guess = "does not hold"


# %% id="sharded"
from torch.distributed.fsdp import fully_shard


class Block(torch.nn.Linear):
    def forward(self, x):
        return torch.relu(super().forward(x)) + x


def sharded(blocks=4):
    graphs, device = [], lockstep.device()
    backend = keep(graphs)  # the same for all blocks
    model = torch.nn.Sequential(*(Block(16, 16) for _ in range(blocks)))
    for block in model.to(device):
        block.compile(backend=backend)
        fully_shard(block)
    fully_shard(model)(torch.ones(2, 16, device=device)).sum().backward()
    return graphs


# %% id="shards-claim"
job = lockstep.torchrun(sharded, **on_ranks)
lockstep.claim(
    "Compiled block by block, a sharded model has a graph for each block.",
    guess=guess,
    verdict="holds" if len(job[0]) == 4 else "does not hold",
    because=f"{len(job[0])} graphs for 4 blocks",
    stamp=lockstep.live(job),
)

# %% [markdown] id="recap"
# ## Recap
#
# - Collectives with a functional form stay in the graph, as a start and a wait. Handles, messages and numbers break it.
# - Each rank compiles and captures for itself. Nothing compares the graphs.
# - A graph makes a launch-bound step as short as its kernels; compiling alone did not help the recorded one.
# - Replays are matched by their order. Ranks that choose for themselves end with an error, a hang, or wrong numbers.
# - One small all-reduce before each step lets ranks agree on a size, and padding does the rest.
# - In DDP, Dynamo cuts the model at about the buckets, and collectives stay outside of the graphs.
#
# The second block of four has another graph than the first only because its input needs a gradient.

# %% [markdown] id="further"
# # 11 · Compiled graphs across ranks: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.

# %% [markdown] id="recompiles-text"
# ## One rank compiles, all wait
#
# About 10 minutes; a CPU is enough.
#
# A function is compiled for the shapes that it gets, and compiled again for others. In the cell below rank 1 gets nine rows
# in its third step, and eight in the others; rank 0 always gets eight. All ranks add up one number in each step.
#
# **Predict:** in how many of its four steps does *rank 0* need more than 50 ms?

# %% id="recompiles-prediction" tags=["prediction"]
prediction = 2  # its own first step; the third, in which rank 1 compiles


# %% id="recompiles"
def four_steps(rows):
    """Milliseconds of each step, and how many graphs this rank has."""
    import time

    from torch._dynamo.utils import counters

    @torch.compile(backend="aot_eager", dynamic=False)
    def step(x):
        for _ in range(8):
            x = torch.relu(x @ x.T @ x)
        total = x.sum()
        dist.all_reduce(total)
        return total

    took, device = [], lockstep.device()
    for many in rows if dist.get_rank() == 1 else [8] * len(rows):
        x = torch.ones(many, 16, device=device)
        begin = time.perf_counter()
        step(x).item()
        took.append((time.perf_counter() - begin) * 1e3)
    return took, counters["stats"]["unique_graphs"]


# %% id="recompiles-run"
recompiled_job = lockstep.torchrun(four_steps, [8, 8, 9, 8], **on_ranks)
slow = [sum(one > 50 for one in took) for took, _ in recompiled_job.results]
for rank, (_, graphs) in enumerate(recompiled_job.results):
    print(f"rank {rank}: {graphs} graphs, {slow[rank]} steps over 50 ms")
lockstep.compare(predicted=prediction, measured=slow[0])

# %% id="recompiles-table" tags=["varies"]
rows = []
for rank, (took, _) in enumerate(recompiled_job.results):
    rows.append([rank, *(f"{one:.0f}" for one in took)])
columns = ["rank", *(f"step {at}, ms" for at in range(1, 5))]
lockstep.table("Four steps", columns, rows, stamp=lockstep.live(recompiled_job))

# %% [markdown] id="recompiles-explained"
# Rank 0 compiled nothing in its third step. It waited in the all-reduce, and a profile of rank 0 alone would call that slow
# communication. (`TORCH_LOGS=recompiles` says on the rank that compiles which guard failed.) The fourth step is quick: the
# graph for eight rows is still there.

# %% [markdown] id="trees-text"
# ## Graphs that the compiler captures
#
# About 10 minutes; a CPU is enough, as all of it was recorded on two H200s.
#
# `torch.compile(f, mode="reduce-overhead")` captures what Inductor has made of `f`, with its collectives, and keeps the
# graphs as CUDA graph trees (lab 06). For each shape the first call is a warm-up, which replays nothing. The second call
# captures a graph and replays it; each later call is a replay.
#
# In the recording two ranks call this function with 4, 5, 6, 7 and 8 elements, one size after the other, and do so three
# times:
#
# ```python
# @torch.compile(mode="reduce-overhead", dynamic=True)
# def f(x):
#     y = x * 2
#     dist.all_reduce(y)
#     return y + 1
# ```
#
# With `dynamic=True` Inductor's code is for any size. The shapes in a graph are fixed all the same.
#
# **Predict:** how many of the 15 calls replay a graph?

# %% id="trees-prediction" tags=["prediction"]
prediction = 15 - 5  # all but the first call of each size

# %% id="trees"
trees = lockstep.recorded("graphs/reduce-overhead-h200-x2.json")
tried = trees.content["cases"]
in_sizes = tried["five sizes, marked dynamic"]
lockstep.compare(prediction, measured=in_sizes[0]["replays"])

# %% [markdown] id="own-graph-text"
# So a collective can be in such a graph, and each size has its own: choose sizes and pad, as in section 4 of the lab.
#
# ### Claim: "reduce-overhead is as fast as a graph of one's own"
#
# A common guess: both launch one graph. The decode step of the lab's section 2 was recorded on two ranks in several ways;
# "graph" is a capture of the eager step, as there. **Guess:** is a step with reduce-overhead at most 5 % longer than that?

# %% id="own-graph-guess" tags=["guess"]
guess = "does not hold"

# %% id="own-graph-claim"
us = {how: 1e6 * took for how, took in trees.content["medians"].items()}
rows = [[how, f"{us[how]:.0f}", f"{us[how] / us['graph']:.2f}"] for how in us]
columns = ["how", "µs", "times the graph's"]
title = "A decode step on two H200s"
display(lockstep.table(title, columns, rows, stamp=trees.stamp))
hows = ("reduce-overhead", "graph", "graph of compiled")
mode, own, compiled = (us[how] for how in hows)
lockstep.claim(
    "reduce-overhead is as fast as a graph of one's own.",
    guess=guess,
    verdict="holds" if mode <= 1.05 * own else "does not hold",
    because=f"{mode:.0f} and {own:.0f} µs; {compiled:.0f} if compiled first",
    stamp=trees.stamp,
)

# %% [markdown] id="own-graph-explained"
# Most of the difference comes with Inductor's kernels; the recording does not say why they take longer here. The rest is
# what a call adds to a replay: checks, and copies of inputs to where the graph reads them. That is small beside what
# launching costs: the collectives alone, launched one by one, take longer than the whole step as a graph.

# %% [markdown] id="refused-text"
# ## What the compiler does not capture, and what it overwrites
#
# About 15 minutes; a CPU is enough, as all of it was recorded on two H200s.
#
# With `mode="reduce-overhead"` PyTorch captures a compiled function in its second call, and replays the graph from then
# on. Here are two such functions. `reduced` makes a new tensor, and `in_place` puts the sum into its argument:
#
# ```python
# def reduced(x):
#     y = x * 2
#     dist.all_reduce(y)
#     return y + 1
#
# def in_place(x):
#     dist.all_reduce(x)
#     return x + 1
# ```
#
# A graph writes only to the addresses that it was captured with, and the caller of `in_place` brings another tensor in each
# call. So this function cannot be captured.
#
# ### Claim: "what reduce-overhead cannot capture, it refuses loudly"
#
# A common guess. **Guess**, for PyTorch's default settings: does a call of `in_place` raise an error?

# %% id="refused-guess" tags=["guess"]
guess = "does not hold"

# %% id="refused-claim"
trees = lockstep.recorded("graphs/reduce-overhead-h200-x2.json")
tried = trees.content["cases"]
name = "its input is reduced in place"
default, strict = tried[name][0], tried[f"strict: {name}"][0]
said = default["said"] or "no error"
refused = strict["said"].partition(". ")[0] or "no error"
lockstep.claim(
    "What reduce-overhead cannot capture, it refuses loudly.",
    guess=guess,
    verdict="holds" if default["said"] else "does not hold",
    because=f"{len(default['values'])} calls, {default['replays']} replays, "
    f"{said}; with cudagraph_or_error: {refused}",
    stamp=trees.stamp,
)

# %% [markdown] id="refused-explained"
# All six results were right, and none came from a graph. The log may have a warning; logs were not recorded. PyTorch also
# counts such skips: in `torch._dynamo.utils`, as `counters["inductor"]["cudagraph_skips"]`. It raises an error if
# `triton.cudagraph_or_error` is set in `torch._inductor.config`. These are internal names.
#
# ### Claim: "while one rank compiles anew, the others may replay"
#
# Some expect a hang, or wrong numbers. In the recording `reduced` is called six times, with ones. Before its fifth call
# rank 1 throws away its compiled code and its graphs (`torch.compiler.reset()`); rank 0 goes on with its replays.
# **Guess** whether all results are right.

# %% id="anew-guess" tags=["guess"]
guess = "holds"

# %% id="anew-claim"
anew = tried["rank 1 compiles anew while the others replay"]
sums = {value for one in anew for value in one["values"]}
right = 2 * trees.content["world_size"] + 1
replays = " and ".join(str(one["replays"]) for one in anew)
lockstep.claim(
    "While one rank compiles anew, the others may replay.",
    guess=guess,
    verdict="holds" if sums == {right} else "does not hold",
    because=f"replays by rank: {replays}; the results are "
    + ", ".join(f"{value:g}" for value in sums),
    stamp=trees.stamp,
)

# %% [markdown] id="kept-text"
# Rank 1's warm-up calls the collective that is in rank 0's graph, so the order holds. Rank 0 waits, on the device.
#
# ### What the next call overwrites
#
# An output of a replay lies in the memory of its graph, and the next replay writes there. PyTorch takes each call of a
# compiled function for a new step, unless a backward pass is still to come, and keeps outputs for one step. Where a step
# has several calls, say where it starts: `torch.compiler` has `cudagraph_mark_step_begin()` for this.
#
# `reduced` makes 2 + 2 + 1 = 5 of ones on two ranks. It has been called four times with them. Then comes
#
# ```python
# kept = reduced(x)
# reduced(x + 1)
# ```
#
# **Predict:** what is `kept[0]` now?

# %% id="kept-prediction" tags=["prediction"]
# your number
prediction = 4 + 4 + 1  # the result of reduced(x + 1), where x + 1 is 2

# %% id="kept"
read = tried["an output is read after the next call"][0]
copied = tried["an output is copied before the next call"][0]
print(f"with kept = reduced(x).clone(): {copied['values'][0]:g}")
print("errors:", read["said"] or "none")
lockstep.compare(prediction, measured=read["values"][0])

# %% [markdown] id="kept-explained"
# A wrong number, and no error. PyTorch's documentation of
# [CUDA graph trees](https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html) shows an error for such a
# line, after a function's *first* two calls. PyTorch marks outputs of a warm-up or a capture as overwritten, but not those
# of a replay. So clone what you keep, and do not rely on the error.
#
# Below is all that was recorded, each case in a job of its own; the first one is `reduced`, the second one `in_place`.
# "first element" is that of the results. "strict" is with `cudagraph_or_error`. One of the captures is empty: it keeps the
# graphs' memory alive.

# %% id="tried"
rows = []
for case, ranks in tried.items():
    if isinstance(ranks, str):  # no rank has returned anything
        rows.append([case, ranks, *"––––"])
        continue
    counts = []
    for key in ("replays", "captures", "skips"):
        by_rank = dict.fromkeys(str(one[key]) for one in ranks)
        counts.append(" and ".join(by_rank))
    values = dict.fromkeys(f"{value:g}" for value in ranks[0]["values"])
    result = ranks[0]["said"].partition(":")[0] or ", ".join(values)
    seconds = max(one["seconds"] for one in ranks)
    rows.append([case, result, *counts, f"{seconds:.0f}"])
columns = ["case", "first element", "replays", "captures", "skips", "s"]
title = "reduce-overhead on two H200s"
lockstep.table(title, columns, rows, stamp=trees.stamp)

# %% [markdown] id="tried-explained"
# - A line that breaks the graph makes two graphs of one function. The broadcast between them is left to Python.
# - Five sizes without `dynamic=True` have one replay less. Dynamo compiles for the first size alone, and then for any, so the
#   first size warms up twice.
# - A tensor on the host, as a factor: the strict job captured it, with right results, and needed most of the time that it
#   had. The other job was still running when its time was over. It has the same program, and nobody has seen what it would
#   have done.

# %% [markdown] id="rules-text"
# ## NCCL's rules for graphs
#
# About 15 minutes; a CPU is enough, as all of it was recorded on two H200s.
#
# Each row below is a job of its own: a capture with collectives of 4 KiB in it, and its replays. "In the other order" means that
# rank 1 makes two calls the other way round. NCCL's guide has
# [a page about graphs](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/cudagraph.html), which says what it
# supports.

# %% id="rules"
rules = lockstep.recorded("graphs/rules-h200-x2.json")


def short(text):
    """The first line, without what stands before CUDA's own words."""
    return text.partition("\n")[0].rpartition("CUDA error: ")[2]


def told(one):
    """What came out of a job on each rank, in a few words."""
    if "ranks" in one:
        for values in one["ranks"]:
            said = [f"{k} = {short(str(v))}" for k, v in values.items()]
            yield ", ".join(said).replace(".0", "")
        return
    for failed in one["failed"]["ranks"].values():
        said = short(failed["message"])
        yield f"{failed['kind']} in {failed['in']}: {said}"


rows = []
for name, one in rules.content["rules"].items():
    if not one["environment"]:  # the others are timed, below
        rows.append([name, *told(one), f"{one['seconds']:.0f}"])
columns = ["what", "rank 0", "rank 1", "s"]
lockstep.table("In a capture", columns, rows, stamp=rules.stamp)

# %% [markdown] id="rules-explained"
# - **A new group's first call** could be captured. The recording does not say whether its communicator was made there, or
#   before by `new_group()`. A warm-up is still right: it shows an error where it can be read.
# - **A barrier** cannot: PyTorch's makes the host wait.
# - **Messages** can, though Dynamo leaves them to Python.
# - A captured call has no end that one could ask for: `work.is_completed()` raises an error. A replay can be asked, by
#   an event behind it.
# - **Two groups in a graph** work. On two streams their order does not matter. On one stream it does: each GPU waits in
#   another group's collective, and the job ended at its time limit.
#
# ### Claim: "whether a call is captured must be the same on all ranks"
#
# [NCCL's guide](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/cudagraph.html) says that it "must be uniform
# over all ranks participating". In one of the recordings rank 1 calls a function eagerly, as it compiles anew, while rank 0
# replays its graph. **Guess**: does anything go wrong (holds)?

# %% id="uniform-guess" tags=["guess"]
guess = "does not hold"

# %% id="uniform-claim"
trees = lockstep.recorded("graphs/reduce-overhead-h200-x2.json")
mixed = trees.content["cases"]["rank 1 compiles anew while the others replay"]
sums = sorted({value for one in mixed for value in one["values"]})
counts = [one["replays"] for one in mixed]
lockstep.claim(
    "Whether a call is captured must be the same on all ranks.",
    guess=guess,
    verdict="holds" if sums != [5.0] else "does not hold",
    because=f"replays by rank: {counts}; results: {sums}, and 5 is right",
    stamp=trees.stamp,
)

# %% [markdown] id="uniform-explained"
# It went well in one job, on two GPUs of one host. The guide does not promise it, so do not build on it.
#
# ### Claim: "in a graph NCCL communicates faster"
#
# Some texts say so: in a graph NCCL could keep its buffers registered and its communication set up. The recording has an
# all-reduce of 32 MiB eagerly, in a graph, and eagerly again, with NCCL's registration of captured buffers
# (`NCCL_GRAPH_REGISTER`) and without it. **Guess**: by 5 % or more in either?

# %% id="registered-guess" tags=["guess"]
guess = "does not hold"

# %% id="registered-claim"
large = {
    name: one["ranks"][0]["us"]
    for name, one in rules.content["rules"].items()
    if name.startswith("32 MiB")
}
faster = [us["graph"] < 0.95 * us["eager"] for us in large.values()]
said = "; ".join(
    f"{name}: {us['eager']:.0f} µs eager, {us['graph']:.0f} in a graph"
    for name, us in large.items()
)
lockstep.claim(
    "In a graph NCCL communicates faster.",
    guess=guess,
    verdict="holds" if any(faster) else "does not hold",
    because=said,
    stamp=rules.stamp,
)

# %% [markdown] id="mixing-text"
# The page also says that replays and eager calls may be outstanding together, and that a variable,
# `NCCL_GRAPH_MIXING_SUPPORT=0`, turns the mechanism for this off. What it costs, for a graph of sixteen all-reduces:

# %% id="mixing"
rows = []
for name in ("eager between replays", "eager between replays, no mixing"):
    one = rules.content["rules"][name]
    setting = one["environment"]["NCCL_GRAPH_MIXING_SUPPORT"]
    us = one["ranks"][0]["us"].values()
    rows.append([setting, *(f"{each:.0f}" for each in us)])
columns = ["NCCL_GRAPH_MIXING_SUPPORT", *one["ranks"][0]["us"]]
title = "A replay on two H200s, µs"
lockstep.table(title, columns, rows, stamp=rules.stamp)

# %% [markdown] id="mixing-explained"
# Without it a replay takes half of the time, and one must see to it that nothing else of that group is under way. The job
# above had replays and eager calls on one stream, and was right with both settings.
#
# ### What is reported of ranks that part
#
# PyTorch counts a captured collective, and records neither it nor its replays, so Lockstep notes captures and replays. The
# table has what its report said, and how many seconds after the ranks had parted. Each job had 20 s.

# %% id="reports"
rows = []
for name, one in rules.content["parted"].items():
    verdict = one.get("failed", {}).get("verdict", "nothing: the job ended")
    said = verdict.partition("ranks may be stuck: ")[2] or verdict
    said = said.partition(" Collectives in a replay")[0]
    rows.append([name, f"{one['seconds']:.1f}", said])
columns = ["what", "s", "what was reported"]
title = "Parted ranks on two H200s"
lockstep.table(title, columns, rows, stamp=rules.stamp)

# %% [markdown] id="reports-explained"
# - Where ranks have been given different numbers of collectives and the shorter one has nothing more to do, the job is ended
#   after about four seconds.
# - "Replays once more": with rank 0's last barrier the numbers are equal, and that might be right. So it is only said at
#   the time limit.
# - Different sizes passed **without a word**. How many collectives a graph has is noted, and not their sizes; the lab's table
#   has what becomes of the numbers in such a job. That is why exercise 3 asks the ranks to agree.
# - A rank that has captured more graphs is not accused: the replays themselves agree.

# %% [markdown] id="dials-text"
# ## A ladder to play with
#
# About 5 minutes; a CPU is enough. Run your `ladder` of exercise 4 beside two simpler ways: the largest size and its halves, and
# sizes at equal distances. What a further graph takes of a pool, and how long a capture takes, is where it
# was on one H200, with 24 layers of width 512; turn both to what your model takes. A warm-up comes on top.

# %% id="dials"
ladder = lockstep.carry_on("ladder")
ways = lockstep.interactive.LADDERS | {"yours": ladder}
h200 = lockstep.recorded("graphs/h200.json")
pool = h200.content["memory"]["one pool, largest first"]
took = sorted(one["capture_seconds"] for one in pool)
grown = pool[-1]["device"] - pool[0]["device"]
lockstep.interactive.ladder(
    ways,
    graph=grown / (len(pool) - 1),
    capture=took[len(took) // 2],
    stamp=h200.stamp,
)

# %% [markdown] id="dials-explained"
# - With "mostly few" and few graphs, halves pad hardly more than the best list, and equal distances much more. With
#   "mostly nearly full" more halves save nothing: none lies between the largest size and its half.
# - Turn "a graph takes" up, with the budget as it is: fewer graphs, more padding.
# - Start-up is the number of graphs times a warm-up and a capture, on each rank at the same time.

# %% [markdown] id="order-text"
# ## Where does the compiler put the wait?
#
# About 10 minutes; a CPU is enough, without a compiler: products are library calls.
#
# A collective in the graph is a start and a wait, so the work between them could hide it. In `step` the products
# `x @ v @ v` need nothing of the all-reduce.
#
# ### Claim: "the compiler overlaps communication with computation"
#
# A common guess: it has the whole graph. **Guess** for Inductor as it is installed, without any switch: does a product stand
# between the start and the wait?

# %% id="order-guess" tags=["guess"]
guess = "does not hold"


# %% id="order"
def written(switches):
    """Products, starts and waits in Inductor's code for `step`, in order."""
    import re

    import torch.distributed._functional_collectives as functional
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    def step(x, w, v):
        group = dist.group.WORLD
        reduced = functional.all_reduce(x @ w, "sum", group)
        return reduced @ (x @ v @ v)

    device = lockstep.device()
    x, w, v = (torch.randn(64, 64, device=device) for _ in range(3))
    with config.patch(switches):
        _, (code, *_) = run_and_get_code(torch.compile(step), x, w, v)
    products = r"extern_kernels\.(mm)\("
    collectives = r"_functional\.(all_reduce|wait)_\w*\.default\("
    body = code.partition("def call")[2]
    found = re.findall(f"{products}|{collectives}", body)
    return [one or other for one, other in found]


def between(names):
    """How many products stand between the start and the wait."""
    start, wait = names.index("all_reduce"), names.index("wait")
    return names[start:wait].count("mm")


# %% id="order-claim"
ON = {"reorder_for_compute_comm_overlap": True}
PASSES = {f"{name}_passes": ["sink_waits", "raise_comms"] for name in ON}
WAYS = {"no switch": {}, "reorder": ON, "two passes": ON | PASSES}
found = {}
for how, switches in WAYS.items():
    order_job = lockstep.torchrun(written, switches, **on_ranks)
    found[how] = order_job[0]
hidden = {how: between(names) for how, names in found.items()}
columns = ["switches", "the code, in order", "products between"]
rows = [[how, " ".join(found[how]), hidden[how]] for how in found]
stamp = lockstep.live(order_job)
display(lockstep.table("What Inductor writes", columns, rows, stamp=stamp))
lockstep.claim(
    "The compiler overlaps communication with computation.",
    guess=guess,
    verdict="holds" if hidden["no switch"] else "does not hold",
    because=f"products between start and wait: {hidden['no switch']}; "
    f"with two passes {hidden['two passes']}",
    stamp=stamp,
)

# %% [markdown] id="order-explained"
# Without a switch the wait follows its start at once, so that nothing is hidden. `reorder_for_compute_comm_overlap` is the
# switch, and `…_passes` names what it does: `sink_waits` moves each wait down to where the result is needed, and
# `raise_comms` moves each start up. These are internal names, which change from version to version: look at the code
# that your version writes.

# %% [markdown] id="regional-text"
# ## Block by block, on ranks
#
# About 10 minutes; a CPU is enough.
#
# A model of equal blocks can be compiled as one function, or each block by itself ("regional compilation", lab 05). In the
# next cell a block is cut over the ranks, with an all-reduce in it, and the model has 24 of them.
#
# **Predict:** compiled block by block, without gradients, how many graphs does each rank make?

# %% id="regional-prediction" tags=["prediction"]
prediction = 1  # all blocks run the same code, and the input looks the same


# %% id="regional"
def first_and_later(by_block, blocks=24, width=64):
    """Graphs, their all-reduces, seconds of the first step, the result."""
    import time

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(width, width) / width)

        def forward(self, x):
            y = torch.relu(x @ self.w)
            dist.all_reduce(y)
            return x + y

    torch.manual_seed(dist.get_rank())
    graphs, device = [], lockstep.device()
    backend = keep(graphs)  # the same for all blocks
    model = torch.nn.ModuleList(Block() for _ in range(blocks)).to(device)

    def whole(x):
        for block in model:
            x = block(x)
        return x

    x = torch.ones(8, width, device=device)
    with torch.no_grad():
        plain = whole(x)
        f = whole if by_block else torch.compile(whole, backend=backend)
        for block in model if by_block else []:
            block.compile(backend=backend)
        begin = time.perf_counter()
        same = torch.equal(f(x), plain)
    reduces = [sum("all_reduce" in str(n) for n in one) for one in graphs]
    return len(graphs), sum(reduces), time.perf_counter() - begin, same


# %% id="regional-run"
regional_jobs = {
    "as one function": lockstep.torchrun(first_and_later, False, **on_ranks),
    "block by block": lockstep.torchrun(first_and_later, True, **on_ranks),
}
for how, job in regional_jobs.items():
    graphs, reduces, _, same = job[0]
    print(f"{how}: {graphs} graph(s), {reduces} all-reduce(s), {same = }")
lockstep.compare(prediction, measured=regional_jobs["block by block"][0][0])

# %% id="regional-seconds" tags=["varies"]
rows = []
for how, job in regional_jobs.items():
    rows.append([how, *(f"{one[2]:.2f}" for one in job.results)])
columns = ["compiled", *(f"rank {rank}, s" for rank in range(NPROC))]
title = "The first step of 24 blocks, traced only"
lockstep.table(title, columns, rows, stamp=lockstep.live(job))

# %% [markdown] id="regional-explained"
# One graph with one all-reduce serves all 24 blocks. That takes one backend for all: with a new `keep(graphs)` for each block
# Dynamo compiled the block anew each time, eight times, and ran the other sixteen eagerly. What is lost: nothing fuses across blocks, each block is a call of its
# own, and no pass can move a collective past a block's end. `reduce-overhead` would make a CUDA graph of each block, and the host
# would launch 24.

# %% [markdown] id="reducer-text"
# ## DDP and the compiler: three ways
#
# About 10 minutes; a CPU is enough.
#
# `torch._dynamo.config.optimize_ddp` says what Dynamo does with a model in DDP. `"ddp_optimizer"` cuts it at buckets, as in the
# lab; `"no_optimization"` leaves it whole; `"python_reducer"` leaves it whole too, and puts the place of DDP's
# reducer in C++ a hook of Python on each parameter, which could be compiled with the backward pass.
#
# **Predict:** the model has eight weights of 1 MiB, and `bucket_cap_mb=4`. How many all-reduces has a step with
# `"python_reducer"`, where nothing compiles the backward pass?

# %% id="reducer-prediction" tags=["prediction"]
prediction = 8  # one for each parameter: buckets are the C++ reducer's


# %% id="reducer"
def third_step(optimizer):
    """The number of graphs; the last step is behind the last barrier."""
    torch._logging.set_logs(dynamo=40)
    torch._dynamo.config.optimize_ddp = optimizer

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            linear = lambda: torch.nn.Linear(512, 512, bias=False)
            self.layers = torch.nn.ModuleList(linear() for _ in range(8))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    graphs, device = [], lockstep.device()
    in_ddp = torch.nn.parallel.DistributedDataParallel
    model = in_ddp(Net().to(device), bucket_cap_mb=4)
    compiled = torch.compile(model, backend=keep(graphs))
    for _ in range(3):
        dist.barrier()
        compiled(torch.ones(2, 512, device=device)).sum().backward()
    return len(graphs)


# %% id="reducer-run"
rows, reduces = [], {}
for optimizer in ("ddp_optimizer", "no_optimization", "python_reducer"):
    reducer_job = lockstep.torchrun(third_step, optimizer, **on_ranks)
    calls = reducer_job.calls[0]
    names = [call.operation for call in calls]
    last = max(at for at, name in enumerate(names) if name == "barrier")
    step = calls[last:]
    sent = [c.bytes >> 20 for c in step if c.operation == "all_reduce"]
    reduces[optimizer] = len(sent)
    rows.append([optimizer, reducer_job[0], " ".join(map(str, sent))])
columns = ["optimize_ddp", "graphs", "all-reduces of a step, MiB"]
stamp = lockstep.live(reducer_job)
display(lockstep.table("Eight layers of 1 MiB", columns, rows, stamp=stamp))
lockstep.compare(predicted=prediction, measured=reduces["python_reducer"])

# %% [markdown] id="reducer-explained"
# All three compute the same. With one graph the buckets are as before, but in a compiled backward pass all gradients would come
# at its end, and nothing would be hidden. Small all-reduces pay α each (lab 08).

# %% [markdown] id="cold-text"
# ## The cold start of many ranks
#
# About 15 minutes; needs a C++ compiler.
#
# Each rank traces and compiles by itself. Their caches are a folder (`TORCHINDUCTOR_CACHE_DIR`), which all ranks of a
# machine share if nobody gives each its own.
#
# ### Claim: "with one cache, N ranks compile once"
#
# A common guess. In the cell below all ranks compile one kernel at the same time with one folder for all, then another one
# with a folder for each. The runs of the C++ compiler are counted. **Guess** for the folder that they share.

# %% id="cold-guess" tags=["guess"]
guess = "holds"


# %% id="cold"
def first_calls(parent):
    """How often the C++ compiler ran, with one folder and with one each."""
    import os
    from pathlib import Path

    from lockstep.course.compiled import compiler_runs, require
    from lockstep.course.compiled.models import warm_up

    require()
    warm_up()
    counts = []
    for function in (torch.sin, torch.cos):  # a kernel for each folder
        dist.barrier()
        runs = compiler_runs(parent)
        dist.barrier()
        f = torch.compile(lambda x, function=function: function(x).softmax(-1))
        f(torch.ones(8, 40))
        dist.barrier()
        counts.append(compiler_runs(parent) - runs)
        own = Path(parent, f"rank{dist.get_rank()}")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own)
    return counts


# %% id="cold-claim"
import tempfile
from pathlib import Path

from lockstep.course.compiled import counted
from lockstep.course.compiled.compile_session import variables

with tempfile.TemporaryDirectory(prefix="lockstep-compile-") as name:
    folder = Path(name)
    own = variables(folder / "all") | counted(folder)
    options = on_ranks | {"env": own, "may_fail": True}
    cold_job = lockstep.torchrun(first_calls, folder, **options)
if not cold_job.ok:  # where there is no compiler
    said, verdict = "nothing was compiled here", "depends"
else:
    shared, apart = cold_job[0]
    said = f"runs of the compiler on {NPROC} ranks: {shared} with one "
    said += f"folder, {apart} with a folder each"
    verdict = "holds" if shared == 1 else "does not hold"
lockstep.claim(
    "With one cache, N ranks compile once.",
    guess=guess,
    verdict=verdict,
    because=said,
    stamp=lockstep.live(cold_job),
)

# %% [markdown] id="cold-explained"
# Files in the folder are locked while somebody makes them: the other ranks wait, and find them there. Tracing, and what
# Inductor does in Python, every rank does by itself all the same. On machines of a cluster the folder is shared only if it
# lies on a file system that all see.

# %% [markdown] id="cold-recorded-text"
# ### Eight ranks on a CPU, two on H200s
#
# Recorded: each start is a job of new processes that compile a step with two all-reduces. Alone on a CPU, a rank compiled it
# into three binary files. Then eight ranks started, with a folder each.
#
# **Predict:** how many binary files were there?

# %% id="binaries-prediction" tags=["prediction"]
prediction = 8 * 3

# %% id="binaries"
starts = {}
for name in ("cold-cpu-x8", "cold-h200-x2"):
    starts[name] = lockstep.recorded(f"compile/{name}.json")
each = starts["cold-cpu-x8"].content["starts"]["a folder each"]
lockstep.compare(prediction, measured=each["binaries"])

# %% id="cold-recorded"
rows = []
for one in starts.values():
    n = one.content["world_size"]
    for how, start in one.content["starts"].items():
        took = [rank["seconds"] for rank in start["ranks"]]
        hits = sum(rank["hits"] for rank in start["ranks"])
        found = f"{hits} of {len(took)}"
        row = [n, how, f"{max(took):.1f}", found, start["binaries"]]
        rows.append(row)
columns = ["ranks", "start", "first step, s", "found by", "binaries"]
stamps = [one.stamp for one in starts.values()]
lockstep.table("Cold starts", columns, rows, stamp=stamps)

# %% [markdown] id="cold-recorded-explained"
# "Found by" counts ranks that found Inductor's code in the cache. When all start at the same time none does: each rank traces, and
# writes its kernels in Python. Only the binaries are made once, and the others wait for them. So with one folder eight ranks
# needed a fifth more time than one; with a folder each, all eight ran the C++ compiler on two cores, which had other work,
# too. A second start finds everything, and traces and loads. The H200s' host has cores for all; there a folder each cost less.

# %% [markdown] id="export-text"
# ## Exported for other ranks
#
# About 15 minutes; a CPU is enough.
#
# `torch.export` writes a graph into a file, which a server reads without the model's Python code. A functional collective is an
# operation of that graph, and names its group: "0" is the default group.
#
# ### Claim: "an exported program runs on any number of ranks"
#
# A common guess. Rank 0 of two exports an all-reduce and an all-gather; both are then run on two ranks and on three. **Guess**.

# %% id="export-guess" tags=["guess"]
guess = "depends"


# %% id="export"
def export(folder):
    import torch.distributed._functional_collectives as functional

    class Sum(torch.nn.Module):
        def forward(self, x):
            return functional.all_reduce(x, "sum", dist.group.WORLD)

    class All(torch.nn.Module):
        def forward(self, x):
            return functional.all_gather_tensor(x, 0, dist.group.WORLD)

    if dist.get_rank() == 0:
        x = torch.ones(4, device=lockstep.device())
        for name, model in (("all-reduce", Sum()), ("all-gather", All())):
            program = torch.export.export(model, (x,))
            torch.export.save(program, f"{folder}/{name}.pt2")
    dist.barrier()


def run_exported(folder, name):
    program = torch.export.load(f"{folder}/{name}.pt2").module()
    return program(torch.ones(4, device=lockstep.device())).tolist()


# %% id="export-claim"
import tempfile

ok, rows = {}, []
on_two = on_ranks | {"nproc_per_node": 2}
with tempfile.TemporaryDirectory() as folder:
    lockstep.torchrun(export, folder, **on_two)
    for name in ("all-reduce", "all-gather"):
        for ranks in (2, 3):
            options = on_two | {"nproc_per_node": ranks, "may_fail": True}
            given = folder, name
            export_job = lockstep.torchrun(run_exported, *given, **options)
            right = [1.0] * 4 * ranks
            if name == "all-reduce":
                right = [float(ranks)] * 4
            ok[name, ranks] = export_job.ok and export_job[0] == right
            got = f"{len(export_job[0])} numbers" if export_job.ok else ""
            said = got or export_job.failures[0].type_name
            rows.append([name, ranks, said])
columns = ["exported on 2 ranks", "run on", "rank 0 got"]
stamp = lockstep.live(export_job)
display(lockstep.table("Two programs in files", columns, rows, stamp=stamp))
right = [f"{name} on {ranks}" for (name, ranks), one in ok.items() if one]
lockstep.claim(
    "An exported program runs on any number of ranks.",
    guess=guess,
    verdict="holds" if all(ok.values()) else "depends",
    because="right: " + "; ".join(right),
    stamp=stamp,
)

# %% [markdown] id="export-explained"
# The sum does not depend on the number of ranks, so its graph runs on three. The result of an all-gather has the ranks in its
# shape, and the exported graph has that shape as a number.

# %% [markdown] id="ahead-text"
# ### Compiled ahead of time
#
# `torch._inductor.aoti_compile_and_package` makes binaries of an exported program, and puts them into a file with its
# weights. Recorded: each of two ranks has its half of an MLP, cut by columns and rows, with one all-reduce. Rank 0 compiled
# its own; both ranks loaded the file and ran a step, then gave it their own weights (`load_constants`) and ran it again.
#
# **Predict:** on how many of the two ranks was the first result right?

# %% id="ahead-prediction" tags=["prediction"]
prediction = 0  # the sum has rank 0's half twice, on both ranks

# %% id="ahead"
ahead = lockstep.recorded("compile/ahead-cpu-x2.json")
rows, first_right = [], 0
for number, one in enumerate(ahead.content["ranks"]):
    seconds, off = one["seconds"], list(one["off"].values())
    first_right += off[0] < 1e-5
    took = [f"{seconds[what]:.3f}" for what in ("load", "first step")]
    made = f"{seconds['compile']:.0f}" if number == 0 else "–"
    rows.append([number, made, *took, *(f"{x:.1g}" for x in off)])
columns = ["rank", "compiling, s", "loading, s", "first step, s"]
columns += ["off with the file's weights", "with its own"]
title = "One file for two ranks"
display(lockstep.table(title, columns, rows, stamp=ahead.stamp))
lockstep.compare(predicted=prediction, measured=first_right)

# %% [markdown] id="ahead-explained"
# The file stands for a program with the weights of the rank that made it. With its own weights each rank has the eager step's
# result to the last bit, and nobody but rank 0 has compiled.

# %% [markdown] id="one-run-text"
# ## A decode step in one run
#
# About 5 minutes; a CPU is enough, as it was recorded on two H200s.
#
# All ways of section 2, each time in one job, of Lockstep and of torchrun by turns, and the collectives alone: a bare loop that
# only launches its sixteen all-reduces.

# %% id="one-run"
decode_run = lockstep.recorded("graphs/decode-h200-x2.json")
launchers = decode_run.content["seconds"]
rows = []
for way in launchers["torchrun"]:
    jobs = (launchers[name][way] for name in ("lockstep", "torchrun"))
    rows.append([way, *(f"{1e6 * sum(took) / len(took):.0f}" for took in jobs)])
columns = ["how", "ranks of Lockstep, µs", "of torchrun, µs"]
title = "16 layers on two H200s"
lockstep.table(title, columns, rows, stamp=decode_run.stamp)

# %% [markdown] id="one-run-explained"
# The whole step as a graph is shorter than the loop that launches its collectives and computes nothing. The first two rows
# are the host's time, which differs by a fifth and more from job to job, whoever starts the ranks. So read the large
# differences only: compiled alone is no faster than eager, and a graph of what was compiled no faster than one of the
# eager step.

# %% [markdown] id="published-text"
# ## Somebody else's programs
#
# About 5 minutes; a CPU is enough, as they were recorded on two H200s.
#
# [nanoGPT](https://github.com/karpathy/nanoGPT) compiles its model and trains it in DDP.
# [gpt-fast](https://github.com/pytorch-labs/gpt-fast) cuts the layers of its model by columns and rows, and compiles a
# decode step with `mode="reduce-overhead"`: its all-reduces are captured into a CUDA graph on each rank. Both were run as
# published, nanoGPT on random tokens and gpt-fast on a small random model, by PyTorch's torchrun, by Lockstep's `torchrun()`,
# and by PyTorch's again. Times are taken out of what rank 0 printed:

# %% id="published"
from operator import ne

launchers = ["torchrun", "lockstep", "torchrun again"]
for name in ("nanogpt", "gpt-fast"):
    program = lockstep.recorded(f"launch/unchanged-{name}-h200-x2.json")
    first, *others = (program.content[who]["lines"] for who in launchers)
    unlike = [sum(map(ne, first, lines)) for lines in others]
    rows = [
        (who, count, "yes" if program.content[who]["ended"] else "no")
        for who, count in zip(launchers, ["", *unlike], strict=True)
    ]
    title = f"{name}: {len(first)} lines of rank 0"
    columns = ["run by", "lines unlike the first run's", "ended by itself"]
    display(lockstep.table(title, columns, rows, stamp=program.stamp))

# %% [markdown] id="published-explained"
# nanoGPT's losses differ in their last digit, between two runs by one launcher as much as between two launchers. gpt-fast
# draws the same tokens each time, and differs in its end. Under PyTorch's torchrun everything was printed in time, but both ranks
# were still there when the time limit of 100 seconds ended them. It leaves without destroying its process group, while graphs that
# hold NCCL's collectives are alive; whether that is the cause was not tested. Lockstep's ranks leave as soon as a program is done.

# %% [markdown] id="sentences-text"
# ## One text, sentence by sentence
#
# About 5 minutes. Explanations of how compiled graphs work on several GPUs agree on some sentences. This is where each is
# tested:
#
# | sentence, in short | tested in |
# | --- | --- |
# | a layer cut by columns needs an all-reduce | lab 09, section 1 |
# | its output is `dist.all_reduce(y)` | section 1, "the output of a cut layer is …" |
# | collectives are traced, as waits | section 1: as a start and a wait, and not all of them |
# | one global graph, with the communication of all ranks | section 1, "each rank compiles a graph of its own" |
# | a graph's part for one GPU has kernels and waits for communication | section 2: NCCL's kernels are in it, too |
# | in DDP, computation and communication are one plan | section 5, "the all-reduces … stay outside" |
# | Inductor makes CUDA graphs by itself | lab 05, "the default mode uses CUDA graphs" |
# | each rank captures for itself | section 3, "captures need no agreement" |
# | captures keep step by themselves | the same |
# | all replay the same graph, so collectives align by themselves | section 3 |
# | the host gives one order for everything; no overhead is left | section 2, "a graph removes the cost …" |
# | locked memory and lasting connections make NCCL faster in graphs | "In a graph NCCL communicates faster" above |
# | the compiled step is the fastest, end to end | section 2, "compiled, a step … is faster" |
# | a graph makes latency steady | lab 06, "a graph makes the latency of a step steady" |
# | order is deterministic, and so are results | lab 06, "a replay computes, bit for bit, …" |
# | memory of a capture is used again in each replay | lab 06, section 5; `kept` above |
# | unsuited to batch sizes that change | section 4 |
# | a branch that depends on data is hard to capture | section 1: `item()`; lab 06 |
#
# "Debugging is harder" is the only one without a test: nobody has said how it would be measured.
