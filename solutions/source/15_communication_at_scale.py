# %% [markdown] id="title"
# # 15 · What communication costs at scale
#
# **Two sittings, 55 and 75 minutes · needs: a CPU** (your ranks count and measure; GPUs are recorded, thousands of them
# published by others)
#
# Lab 03 built collectives and counted what they send. Here they get a price. Afterwards you can
#
# - say what two numbers, α and β, tell of a collective, and what they leave out,
# - choose between ring, doubling and trees, by size and by ranks,
# - count the bytes that leave a node for a given order of ranks,
# - build an all-reduce on two levels, and say when it pays,
# - predict what published runs on 3,072 to 12,288 GPUs measured, and say where the model is wrong.
#
# The further notebook has NCCL's protocols, what NCCL picks, and 24,576 GPUs. Labs 02 and 03 come first.
# Every figure says where it comes from: *live* from your ranks, *recorded* on
# 2 or 4 H200s of one host, *simulated* by a model, or *published* by others. Nobody here has measured 8
# GPUs, or two nodes.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks of the live sweep; it takes 4 at least, and a power of two
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep

RANKS = max(4, 1 << (NPROC.bit_length() - 1))  # 4 at least, a power of two
print(f"{NPROC} ranks asked for, {RANKS} in the live sweep; backend: {BACKEND}")

# %% id="progress" tags=["unpublished"]
lockstep.progress("15")

# %% [markdown] id="price-text"
# ## 1 · Two numbers, and what they miss
#
# A message of *s* bytes takes α + β·*s*: α is what every message costs, 1/β is the bandwidth. Your ring
# of lab 03 sends 2(N − 1) messages, one after the other, each of a chunk: 1/N of the tensor.
#
# ### Exercise 1: the ring's price
#
# **Goal:** `ring_seconds(n, nbytes, alpha, beta)` is what the α–β model says of a ring all-reduce of
# `nbytes` on `n` ranks, in seconds. Only messages cost something; an empty one costs α. A chunk has
# nbytes/N bytes, whole or not; one rank alone needs no time.


# %% id="ring_seconds"
def ring_seconds(n, nbytes, alpha, beta):
    # BEGIN SOLUTION
    return 2 * (n - 1) * (alpha + beta * nbytes / n)
    # END SOLUTION


# %% id="ring_seconds-check"
lockstep.check("ring_seconds", ring_seconds)

# %% [markdown] id="line-text"
# On *2* H200s each sent to the other one at the same time, over many sizes, by PyTorch's
# `batch_isend_irecv` (recorded). The next cell puts a line through these times. Its 1/β is how many bytes a GPU
# *sends* in a second, while it receives as many; what stands after ± is the standard error. **Predict** with this
# line, by your formula: how many *milli*seconds does an all-reduce of 1 GiB (2³⁰ bytes) take on *4* GPUs?

# %% id="line"
two = lockstep.recorded("sweeps/h200-x2.json")
rows = two.content["sweeps"]["ring_shift"]
sizes, times = ([row[name] for row in rows] for name in ("bytes", "seconds"))
nvlink = lockstep.cost.fit(sizes, times)
print(nvlink, two.stamp, sep="\n")

# %% id="four-prediction" tags=["prediction"]
# your number, or how it comes from nvlink.alpha and nvlink.beta
prediction = 1000 * 2 * 3 * (nvlink.alpha + nvlink.beta * 2**30 / 4)

# %% id="four-measured"
four = lockstep.recorded("sweeps/h200-x4-ring.json")
four_rows = four.content["sweeps"]["all_reduce"]
print(four.stamp)
took = 1000 * four_rows[-1]["seconds"]
lockstep.compare(predicted=prediction, measured=took, unit="ms")

# %% id="both-ends" tags=["plumbing"]
names = "bytes", "seconds", "lower_quartile", "upper_quartile"
points = [tuple(row[name] for name in names) for row in four_rows]
curve = [256 * 2 ** (at / 2) for at in range(45)]
model = [(s, lockstep.cost.ring_all_reduce(4, s, nvlink)) for s in curve]
lockstep.chart(
    {"ring on 4": points},
    models={"ring on 4": model},
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of a ring all-reduce on 4 H200s over its size, recorded, and "
    "the formula with α and β of 2 H200s: together for large messages; for "
    "small ones the formula is ten times too slow.",
    stamp=[four.stamp, lockstep.simulated(f"α–β model, {nvlink}")],
)

# %% [markdown] id="three-text"
# (Both axes are logarithmic, because sizes and times span many powers of ten; the same factor is the same distance
# everywhere.) The large end holds on 4 GPUs, the small end does not. α was fitted on *calls* of PyTorch, and one
# all-reduce is one call and not six. So take three numbers: a *launch* for each call, α for each round, β for each
# byte on a link. A ring has 2 rounds on 2 GPUs and 6 on 4. Up to 1 MB all took about the same: 16 to 17 µs on 2 GPUs,
# and 16 to 17 on 4.
#
# In this fit 1/β is called **bus bandwidth**: the bytes that each GPU must send, in an all-reduce 2(N − 1)/N of the
# tensor, by the seconds that they add. The next cell prints it beside the two other numbers. It means the same as 1/β
# of the line above, 338 GB/s, but comes from other calls: all-reduces on 2 and 4 GPUs in place of messages.
#
# **Predict:** which α a round does a fit of these three numbers find, in whole µs?

# %% id="three-prediction" tags=["prediction"]
prediction = 0  # four rounds more took no more time

# %% id="three"
sweeps = {}
for n in (2, 4):
    file = lockstep.recorded(f"sweeps/h200-x{n}-ring.json")
    runs = file.content["sweeps"]["all_reduce"]
    sweeps[n] = [row["bytes"] for row in runs], [row["seconds"] for row in runs]
three = lockstep.cost.fit_collective("all_reduce", sweeps)
print(three)
lockstep.compare(predicted=prediction, computed=round(three.alpha * 1e6))

# %% id="three-table" tags=["plumbing"]
seconds = {row["bytes"]: row["seconds"] for row in runs}  # on 4, the last ones
table = []
for size in (1 << 10, 1 << 20, 1 << 24, 1 << 25, 1 << 30):
    took = seconds[size]
    models = lockstep.cost.ring_all_reduce(4, size, nvlink), three(4, size)
    ratios = [f"{model / took:.2f} times" for model in models]
    table.append([f"{size:,} bytes", f"{took * 1e6:,.1f} µs", *ratios])
lockstep.table(
    "Ring all-reduce on 4 H200s: the model's time by the recorded one",
    ["size", "recorded", "α and β", "launch, α and β"],
    table,
    stamp=[four.stamp, lockstep.simulated("α–β model, two numbers and three")],
)

# %% [markdown] id="own-text"
# The two rates, 338 ± 13 GB/s of messages and 318 ± 7 of all-reduces, differ by little more than their standard
# errors. DDP sends gradients in buckets of up to 25 MiB, between the lines of 16.8 and 33.6 MB in the table: there the
# model with two numbers takes about twice as long as the recording, the one with three differs by a few per cent.
#
# Does a round really cost nothing? A GPU works on one call while PyTorch prepares the next. Whatever takes less time
# than that preparation stays invisible. A CUDA graph removes PyTorch: calls are captured once, and the GPU runs them
# again without the host.
#
# ### Claim: "a small NCCL all-reduce takes about 20 µs"
#
# Such numbers are measured in a loop of `dist.all_reduce`, and called NCCL's latency. On 2 H200s the same calls
# were recorded both ways. Let it hold if NCCL alone takes at least 80 % of that time, up to 16 kB. **Guess** first.

# %% id="own-guess" tags=["guess"]
guess = "does not hold"

# %% id="own-claim"
protocols = lockstep.recorded("protocols/h200-x2.json")
sweeps = protocols.content["sweeps"]
called = {row["bytes"]: row["seconds"] for row in sweeps["all_reduce"]}
captured = {row["bytes"]: row["seconds"] for row in sweeps["captured"]}
small = [size for size in called if size <= 1 << 14]
within = [captured[size] >= 0.8 * called[size] for size in small]
otherwise = "depends" if any(within) else "does not hold"
alone, graph = ([by[size] * 1e6 for size in small] for by in (called, captured))
lockstep.claim(
    "A small NCCL all-reduce takes about 20 µs.",
    guess=guess,
    verdict="holds" if all(within) else otherwise,
    because=f"called one by one {min(alone):.0f} to {max(alone):.0f} µs each, "
    f"out of a CUDA graph {min(graph):.0f} to {max(graph):.0f} µs",
    stamp=protocols.stamp,
)

# %% [markdown] id="own-explained"
# So there are two prices of a small call: the host's, and NCCL's own. Which one you pay depends on
# which is larger. (This recording was made on another host than the one above, with another launch time:
# its stamp says 32 cores. Launch belongs to the host, β to the links.)

# %% [markdown] id="fewer-rounds"
# ## 2 · Fewer rounds
#
# Rounds matter for small messages, bytes for large ones. This is what has to happen one after the other:
#
# | all-reduce on N ranks | rounds | sent in them, as a multiple of *s* |
# | --- | --- | --- |
# | ring | 2(N − 1) | 2(N − 1)/N |
# | recursive doubling | log₂ N | log₂ N |
# | Rabenseifner | 2 log₂ N | 2(N − 1)/N |
# | tree | 2 log₂ N | 2 log₂ N |
# | double binary tree, pipelined | 2 log₂ N | 2 |
#
# **Rabenseifner's algorithm** sends half of `x` to a partner, then a quarter to another one, then an eighth, and
# the same backwards: few rounds *and* few bytes, but the partners are far apart. The **tree** adds up
# from pairs to one rank, and passes the sum back down.
#
# In such a tree most ranks wait most of the time, and all of `x` is in every message. NCCL's **double binary tree**
# repairs both ("Ring or tree", in the further notebook, says how). The last row of the table shows what is left.
#
# ### Exercise 2: where two lines cross
#
# **Goal:** `crossing(n, alpha, beta)` is the size in bytes (not rounded) from which a ring all-reduce is faster than
# recursive doubling, by the α–β model and the table above. `n` is a power of two, 4 or more.

# %% id="crossing"
import math


def crossing(n, alpha, beta):
    # BEGIN SOLUTION
    rounds = math.log2(n)
    more_rounds = 2 * (n - 1) - rounds  # in the ring
    more_bytes = rounds - 2 * (n - 1) / n  # in doubling, as a multiple of s
    # There α·more_rounds = β·s·more_bytes.
    return alpha * more_rounds / (beta * more_bytes)
    # END SOLUTION


# %% id="crossing-check"
lockstep.check("crossing", crossing)

# %% [markdown] id="live-text"
# Now live, on `RANKS` ranks of your own. First come their α and β, from a *shift*: all send to the next one at the
# same time, as in a step of a ring. (The first cell only measures: click to see how. Ring and doubling are those of
# lab 03; the tree is an exercise in the further notebook.) **Predict** from this α and β: from how many *kilobytes*
# should a ring be faster than recursive doubling, on these ranks?

# %% id="sweep" tags=["plumbing"]
import torch
import torch.distributed as dist


def sweep(functions, sizes, repeats=9):
    """Of each function (bytes, median seconds, quartiles), by slowest rank."""
    import time

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
            quarters = torch.tensor([0.5, 0.25, 0.75])
            times = slowest.cpu().quantile(quarters).tolist()
            found[name].append((size, *times))
    return found


# %% id="fit" tags=["varies"]
def shift(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    sending = dist.P2POp(dist.isend, x, (rank + 1) % n)
    receiving = dist.P2POp(dist.irecv, torch.empty_like(x), (rank - 1) % n)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()


# From 1 kB; a call on GPUs costs so much that β needs more than 16 MB to show.
on_gpus = BACKEND != "gloo" and lockstep.gpu_count() >= RANKS
largest = 28 if on_gpus else 24  # 256 MB, or 16 MB
SIZES = [1 << power for power in range(10, largest + 1, 2)]
ranks = {"nproc_per_node": RANKS, "backend": BACKEND, "show": False}
fit_job = lockstep.torchrun(sweep, {"shift": shift}, SIZES, **ranks)
points = fit_job[0]["shift"]
line = lockstep.cost.fit([p[0] for p in points], [p[1] for p in points])
print(line, lockstep.live(fit_job), sep="\n")

# %% id="cross-prediction" tags=["prediction"]
# your number, or crossing(…) / 1000
prediction = crossing(RANKS, line.alpha, line.beta) / 1000

# %% id="algorithms" tags=["varies"]
all_reduces = {
    "ring": lockstep.carry_on("ring_all_reduce"),
    "doubling": lockstep.carry_on("doubling_all_reduce"),
    "tree": lockstep.carry_on("tree_all_reduce"),
}
measured_job = lockstep.torchrun(sweep, all_reduces, SIZES, **ranks)
ring_cost = lockstep.cost.ring_all_reduce
doubling_cost = lockstep.cost.recursive_doubling_all_reduce
tree_cost = lockstep.cost.tree_all_reduce
formulas = {"ring": ring_cost, "doubling": doubling_cost, "tree": tree_cost}
curve = [SIZES[0] * 4 ** (at / 8) for at in range(8 * len(SIZES) - 7)]
models = {}
for name, formula in formulas.items():
    models[name] = [(size, formula(RANKS, size, line)) for size in curve]
model = lockstep.simulated(f"α–β model, {line}")
lockstep.chart(
    measured_job[0],
    models=models,
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of an all-reduce over its size on these ranks: measured with "
    "quartiles for ring, recursive doubling and tree, and in the same colour "
    "what the α–β model says of each.",
    stamp=[lockstep.live(measured_job), model],
)

# %% id="cross-measured" tags=["varies"]
from itertools import pairwise
from math import exp, log


def measured_crossing(ring, doubling):
    """Bytes from which on a ring is faster, between two sizes; None if none."""
    both = zip(ring, doubling, strict=True)
    ratios = [(a[0], log(a[1] / b[1])) for a, b in both]
    for (size, before), (other, after) in pairwise(ratios):
        if before > 0 >= after:
            part = before / (before - after)
            return exp(log(size) + part * log(other / size))
    return None


curves = measured_job[0]
crossed = measured_crossing(curves["ring"], curves["doubling"])
if crossed is None:
    print("on these ranks a ring never became the faster one, or always was")
    shown = lockstep.live(measured_job)
else:
    kilobytes = crossed / 1000
    shown = lockstep.compare(prediction, measured=kilobytes, unit="kB")
shown

# %% [markdown] id="cross-explained"
# Look where the measured points leave the model's dashed line. The model knows only messages. It does not know that
# all ranks may share two cores and one memory, so that an idle rank makes the others faster, nor that adding up takes
# time. Where measurement and model differ by a factor, the model lacks something that costs time.
#
# And on 1,024 GPUs, each alone in its node, with a network card? (Section 4 puts eight into one node, with eight
# rings: then most steps are short.) Take 50 GB/s a card ([Llama 3](https://arxiv.org/abs/2407.21783), section 3.3.1:
# 400 Gbit/s), and 14 µs a step (NCCL's own
# [source](https://github.com/NVIDIA/nccl/blob/5067397c2676d5aed50042fc39e5c8ee96eb0027/src/graph/tuning.cc) takes
# that much for a step over the network, ring or tree, in Simple, its protocol for large messages). **Predict:** from
# how many *gigabytes* would a ring through them be faster than the double binary tree?

# %% id="thousand-prediction" tags=["prediction"]
prediction = (
    # 2·1023·(α + β·s/1024) = 2·10·α + 2·β·s, so (2046 - 20)·α = β·s·2/1024
    (2046 - 20) * 14e-6 * 50 * 1024 / 2
)

# %% id="thousand"
network = lockstep.cost.Line(alpha=14e-6, beta=1 / 50e9)
tree_cost = lockstep.cost.double_tree_all_reduce
size = lockstep.cost.crossover(ring_cost, tree_cost, 1024, network)
print(lockstep.simulated("α–β model, published: 14 µs a step, 50 GB/s a card"))
lockstep.compare(predicted=prediction, computed=size / 1e9, unit="GB")

# %% [markdown] id="thousand-explained"
# No GPU holds that much: an H200 has 141 GB. The ring saves 1/N of the bytes and pays 2(N − 1) times α. Of these two,
# by this model and with each GPU alone in its node, a thousand GPUs should use trees for anything they can hold.
# (Rabenseifner's line in the table beats both; that its partners are far apart is not in the model.) NCCL's model has
# more in it: by the same source it takes 8 % or more off a tree's bandwidth, and for all but the smallest messages
# over several nodes it multiplies a ring's latency by 1.4 (1.9 on GPUs before A100).
#
# **Break.** The first sitting ends here. You know now what the price of a call is made of, and what each algorithm
# pays. Next come where the bytes go, and thousands of GPUs. Each section starts on its own.

# %% [markdown] id="topology-text"
# ## 3 · Which bytes leave the node
#
# So far all ranks were equally near each other, which is not so in practice. The GPUs of a **node** are connected by
# NVLink. In large clusters each has a network card for the other nodes; cards at the same place in every node often
# share a switch, a **rail**. The bandwidth of a card is the bottleneck:
#
# | | GB/s from one GPU | |
# | --- | --- | --- |
# | NVLink, H200 | 338 | the line of messages in section 1: what one GPU sends while it receives as much |
# | NVLink, H800 | 160 | [DeepSeek-V3](https://arxiv.org/abs/2412.19437), section 3.2.2 |
# | network card | 50 | the same section; also [Llama 3](https://arxiv.org/abs/2407.21783), 3.3.1 |
#
# A ring all-reduce sends 2(n − 1)/n of its bytes over *each* of its hops, from a rank to the next one,
# and from the last to the first. Hops between nodes go over the cards.
#
# ### Exercise 3: bytes that leave a node
#
# **Goal:** `node_traffic(rings, node_of, nbytes)`. `rings` is a list of rings, each a list of ranks in the order in
# which they pass data on; a rank may be in several. Each ring does *one* all-reduce of `nbytes`. `node_of` is a dict:
# `node_of[rank]` is the number of the rank's node. The result: how many bytes leave the busiest node, 0 if none do. A
# ring of one rank sends nothing. (An example: ring 0 → 1 → 2 → 3 → 0, two ranks a node. Of node 0's ranks only rank 1
# sends to another node: 2·3/4 of nbytes.)


# %% id="node_traffic"
def node_traffic(rings, node_of, nbytes):
    # BEGIN SOLUTION
    leaving = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        n = len(ring)
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after]:
                leaving[node_of[rank]] += 2 * (n - 1) / n * nbytes
    return max(leaving.values())
    # END SOLUTION


# %% id="node_traffic-check"
lockstep.check("node_traffic", node_traffic)

# %% [markdown] id="order-text"
# Eight ranks on two nodes, one ring 0 → 1 → … → 7 → 0. **Predict:** if ranks are assigned to the nodes in turn (0, 2,
# 4, 6 on one and 1, 3, 5, 7 on the other), how many *times* as many bytes leave a node as with 0 to 3 on one and 4 to
# 7 on the other?

# %% id="order-prediction" tags=["prediction"]
prediction = 4  # all four ranks of a node send out of it, not only the last

# %% id="order"
import torch

ring = lockstep.carry_on("ring_all_reduce")
options = {"nproc_per_node": 8, "backend": "gloo", "show": False}
job = lockstep.torchrun(lambda: ring(torch.ones(80_000)), **options)
sends = [one for calls in job.calls for one in calls if one.operation == "send"]
places = {"blocks": [0, 0, 0, 0, 1, 1, 1, 1], "in turn": [0, 1] * 4}
left = {}
for name, nodes in places.items():
    node_of = dict(enumerate(nodes))
    out = [c for c in sends if node_of[c.rank] == 0 and node_of[c.peer] == 1]
    left[name] = sum(call.bytes for call in out)
    print(f"{name}: {left[name]:,} bytes leave node 0 in {len(out)} messages")
print(lockstep.live(job))
ratio = left["in turn"] / left["blocks"]
lockstep.compare(predicted=prediction, measured=ratio)

# %% [markdown] id="layout-text"
# NCCL finds out which GPUs are near, and orders the ring of *one* group by itself. It cannot choose who
# is *in* a group: that is the order of your axes (lab 01).
#
# ### Claim: "tensor parallelism belongs inside of a node"
#
# [Llama 3](https://arxiv.org/abs/2407.21783) (section 3.3.2) orders its axes [TP, CP, PP, DP]:
# tensor, context, pipeline and data parallelism, the innermost within a server. Take 8 GPUs on 2 nodes, TP 4 × DP 2. A step of a small model:
# 100 all-reduces of 32 MB of activations in each TP group, one of 1 GB of gradients in each DP group.
# It holds if fewer bytes leave a node with each TP group in one node than with each DP group in one.
# **Guess.**

# %% id="layout-guess" tags=["guess"]
guess = "holds"

# %% id="layout-claim"
count = lockstep.carry_on("node_traffic")
tensor, data = [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]
# As NCCL would order them, where ranks are given to the nodes in turn.
sorted_by_node = [[0, 2, 1, 3], [4, 6, 5, 7]]
layouts = {
    "TP inside": ([rank // 4 for rank in range(8)], tensor),
    "DP inside": ([rank % 2 for rank in range(8)], sorted_by_node),
}
leaves = {}
for name, (places, rings) in layouts.items():
    node_of = dict(enumerate(places))
    leaves[name] = 100 * count(rings, node_of, 32e6) + count(data, node_of, 1e9)
fewer = leaves["TP inside"] < leaves["DP inside"]
said = [f"{n}: {out / 1e9:.1f} GB leave a node" for n, out in leaves.items()]
how = "bytes counted along rings; 100 × 32 MB in TP groups, 1 GB in DP groups"
lockstep.claim(
    "Tensor parallelism belongs inside of a node.",
    guess=guess,
    verdict="holds" if fewer else "does not hold",
    because=", ".join(said),
    stamp=lockstep.simulated(how),
)

# %% [markdown] id="hierarchy-text"
# This depends on the numbers, and with others it can be false: gradients ten times as large, or few activations.
# Count before you repeat it. (And the bytes of DP can travel while the backward pass goes on, as DDP sends them.
# Layers wait for those of TP.)

# %% [markdown] id="two-levels"
# ## 4 · Two levels
#
# Ranks lie in a grid, a row for each node. `inside` is the group of this rank's node, `across` the group
# of the ranks with the same place in every node: a rail. An all-reduce on **two levels** sends most
# bytes over NVLink, inside.
#
# ### Exercise 4: an all-reduce on two levels
#
# **Goal:** `hierarchical_all_reduce(x, inside, across)` leaves the sum over all ranks in `x`, by calls
# on these two groups. In calls on `across` a rank passes in 1/g of x, where g is the number of ranks of a node.
# `x` has one dimension and any dtype, its length is a multiple of g. A node's ranks need not be neighbours, so
# a rank's place in its node is `dist.get_rank(inside)`.

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
# On four ranks, as two nodes of two each: `x` has 1,000 kB. Look at what rank 0 passes in across nodes.

# %% id="grid"
name = "hierarchical_all_reduce"
two_levels = lockstep.carry_on(name, hierarchical_all_reduce)


def on_a_grid(all_reduce):
    rank = dist.get_rank()
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rails = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = torch.ones(250_000, device=lockstep.device())
    all_reduce(x, nodes[rank // 2], rails[rank % 2])
    return x[0].item(), x[-1].item()


options = {"nproc_per_node": 4, "backend": BACKEND, "show": False}
job = lockstep.torchrun(on_a_grid, two_levels, **options)
for call in job.calls[0]:
    members = list(call.group.ranks)
    print(f"{call.operation:<15} in {members} with {call.bytes:,} bytes")
print(lockstep.live(job))

# %% [markdown] id="pays-text"
# When does it pay? Take the gradients of 7 billion parameters in bf16, 14 GB; NVLink with 338 GB/s, and
# 3.4 µs a step (by NCCL's source, as the 14 µs of section 2); a card with 50 GB/s for each GPU, 14 µs a
# step. On 8 GPUs of one node a ring takes 2·7/8·14 GB / 338 GB/s = 72 ms.
#
# **Predict:** on 128 such nodes, how many *milli*seconds for the all-reduce between nodes alone, as a
# ring on each rail, of the part that a GPU has by then? (Take 1 for 127/128, and do not forget its 254 steps.)

# %% id="pays-prediction" tags=["prediction"]
prediction = 1000 * (
    2 * 127 * 14e-6 + 2 * 14e9 / 8 / 50e9  # 3.6 ms of α, and 70 ms of bytes
)

# %% id="pays" tags=["plumbing"]
link = lockstep.cost.Line(alpha=3.4e-6, beta=1 / 338e9)
network = lockstep.cost.Line(alpha=14e-6, beta=1 / 50e9)
bucket, gradients = 25e6, 14e9


def flat_rings(nbytes, n=1024, cards=8):
    """Rings through all GPUs, one for each card: each link has its share.

    Each ring enters and leaves a node once, so most of its steps stay inside.
    """
    between, steps = 2 * (n // cards - 1), 2 * (n - 1)
    rounds = between * network.alpha + (steps - between) * link.alpha
    return rounds + steps * max(network.beta / cards, link.beta) * nbytes / n


two_cost = lockstep.cost.hierarchical_all_reduce
ways = {
    "8 GPUs, ring": lambda s: lockstep.cost.ring_all_reduce(8, s, link),
    "1,024 GPUs, flat rings": flat_rings,
    "1,024 GPUs, two levels": lambda s: two_cost(1024, 128, s, link, network),
}
rows = []
for name, way in ways.items():
    rows.append([name, *(f"{1000 * way(s):.1f}" for s in (gradients, bucket))])
lockstep.table(
    "All-reduce, milliseconds by the model",
    ["on", "14 GB", "25 MB, a bucket of DDP"],
    rows,
    stamp=lockstep.simulated("NVLink 338 GB/s, 3.4 µs; a card 50 GB/s, 14 µs"),
)

# %% id="pays-compared"
between = lockstep.cost.ring_all_reduce(128, gradients / 8, network)
lockstep.compare(predicted=prediction, computed=1000 * between, unit="ms")

# %% [markdown] id="pays-explained"
# With many bytes the flat rings are *not* slower. NCCL's rings enter and leave each node once, one ring
# for each card, and all kinds of links work at once; on two levels they work one after the other. What
# flat rings pay is steps: 2·1023, of them 2·127 between nodes, as on two levels. The 1,792 others stay
# inside. Each is short, but together they take 6 ms, and that decides for a bucket. Trees between nodes
# pay 2·log₂ 128 steps.

# %% [markdown] id="thousands"
# ## 5 · Thousands of GPUs
#
# We have no recordings of that size, but others have published figures. Predict with the model, compare, and ask what
# is missing.
#
# ### Exercise 5: a step on more GPUs
#
# Now whole training steps. With the same batch on more GPUs, the work is shared and t falls as 1/n. But something
# remains: communication that nothing hides, launches, the pipeline's bubble. The simplest model is t(n) = work/n +
# fixed.
#
# **Goal:** `step_seconds(known, n)`. `known` is a dict with two entries, seconds of a step by number of
# GPUs, such as `{3072: 29.02, 12288: 8.57}`, in any order. The result: seconds on `n` GPUs, by the
# model through both. (The fixed part may come out below 0.)


# %% id="step_seconds"
def step_seconds(known, n):
    # BEGIN SOLUTION
    (few, slow), (many, quick) = known.items()
    # The fixed part is in both, and not in their difference.
    work = (slow - quick) / (1 / few - 1 / many)
    fixed = slow - work / few
    return work / n + fixed
    # END SOLUTION


# %% id="step_seconds-check"
lockstep.check("step_seconds", step_seconds)

# %% [markdown] id="megascale-text"
# [MegaScale](https://arxiv.org/abs/2402.15627) (section 6.1, table 2) trains a model of 175 billion
# parameters on 3,072 to 12,288 GPUs, always with batches of 6,144, once with Megatron-LM and once with
# its own system. Megatron-LM's step takes 29.02 s on 3,072 GPUs and 8.57 s on 12,288.
#
# **Predict:** how many seconds on 6,144?

# %% id="megascale-prediction" tags=["prediction"]
# your number, or step_seconds(…)
prediction = step_seconds({3072: 29.02, 12288: 8.57}, 6144)

# %% id="megascale"
megascale = lockstep.published("megascale")
seconds = megascale.values["iteration_seconds"]
steps = {name: dict(each) for name, each in seconds.items()}
print(megascale)
there = steps["Megatron-LM"][6144]
lockstep.compare(predicted=prediction, published=there, unit="s")

# %% id="megascale-chart" tags=["plumbing"]
predict = lockstep.carry_on("step_seconds", step_seconds)
curve = [3072 * 2 ** (at / 20) for at in range(41)]
ends, models = {}, {}
for name, each in steps.items():
    ends[name] = known = {n: each[n] for n in (3072, 12288)}
    models[name] = [(n, predict(known, n)) for n in curve]
model = lockstep.simulated("work/n + fixed, through the ends")
lockstep.chart(
    {name: list(each.items()) for name, each in steps.items()},
    models=models,
    x="GPUs",
    y="time of a step (seconds)",
    alt="Seconds of a training step over the number of GPUs, published for "
    "Megatron-LM and MegaScale, and through the ends of each what work/n + "
    "fixed says: the points in between lie on it.",
    stamp=[megascale.stamp, model],
)

# %% id="fixed"
for name, known in ends.items():
    fixed = predict(known, 1e12)  # no work is left
    print(f"{name}: on 12,288 GPUs {fixed:.2f} s of {known[12288]} s stay")
print(megascale.stamp)

# %% [markdown] id="fixed-explained"
# Two numbers of a whole training run, and the points in between come out within 5 %. The part that stays
# is what MegaScale attacked: it hides the communication of all three kinds of parallelism behind
# computation, and a third of Megatron-LM's fixed part is left. (Its work got shorter, too: it changed more
# than communication.) What is *in* the fixed part the model does
# not say: that takes a trace.
#
# ### Claim: "the more GPUs, the less each of them gets done"
#
# Three publications say what part of its peak speed each GPU reached. Two of them kept the batch; the third took
# larger models and larger batches. Let it hold if the share fell in all three. **Guess** first.

# %% id="more-guess" tags=["guess"]
guess = "depends"

# %% id="more-claim"
megatron = lockstep.published("megatron-2021")
llama = lockstep.published("llama-3")
shares = megascale.values["mfu"]["MegaScale"]
change = {
    "MegaScale, same batch": [part for _, part in shares],
    "Llama 3, same batch": llama.values["mfu"],
    "Megatron-LM, larger models and batches": [
        megatron.values[size]["of_peak"] for size in ("smallest", "largest")
    ],
}
falls = [after < before for before, after in change.values()]
otherwise = "depends" if any(falls) else "does not hold"
said = []
for name, (one, other) in change.items():
    said.append(f"{name}: {100 * one:.1f} % to {100 * other:.1f} %")
lockstep.claim(
    "The more GPUs, the less each of them gets done.",
    guess=guess,
    verdict="holds" if all(falls) else otherwise,
    because="; ".join(said),
    stamp=[one.stamp for one in (megascale, llama, megatron)],
)

# %% [markdown] id="faults-text"
# ### What the model leaves out
#
# - **All-to-all.** Each rank has a different part for each other rank: *n* − 1 messages of *x*/*n* bytes, and nothing
#   can be added up on the way. With more ranks the parts get smaller until α decides.
# - **Congestion.** α and β are those of an idle network. Where two flows share a cable, each gets half of it, and the
#   slowest part of a collective sets its time.
# - **Starting, and starting again.** All processes start, meet, load the model, and warm up before the first step.
#   And things break: on 16,384 GPUs, the training of Llama 3 was interrupted unexpectedly 419 times in 54 days
#   ([Llama 3](https://arxiv.org/abs/2407.21783), section 3.3.4). Say that each GPU breaks as often on 131,072 GPUs,
#   and that 15 minutes are lost each time. **Predict:** what share of the time is lost there?

# %% id="faults-prediction" tags=["prediction"]
# your number, between 0 and 1
prediction = 0.64  # one each 23 minutes, and 15 minutes are lost

# %% id="faults"
faults = lockstep.published("llama-3-faults")
known = faults.values
hours = 24 * known["days"] / known["unexpected"]
rows = []
for gpus in (1024, known["gpus"], 131072):
    between_faults = hours * known["gpus"] / gpus
    lost = f"{0.25 / between_faults:.1%}"
    rows.append([f"{gpus:,}", f"{between_faults:.2f} h", lost])
lockstep.table(
    "Interruptions, if each GPU breaks as often",
    ["GPUs", "between two", "lost, with 15 minutes each"],
    rows,
    stamp=[faults.stamp, lockstep.simulated("in proportion to the GPUs")],
)

# %% id="faults-compared"
lockstep.compare(predicted=prediction, computed=0.25 / between_faults)

# %% [markdown] id="recap"
# ## Recap
#
# - A call has a launch, rounds, and bytes. On a host the launch hides what is shorter than itself.
# - Ring: fewest bytes, 2(N − 1) rounds. Trees: 2 log₂ N rounds. The more GPUs, the larger the messages for which
#   rounds decide.
# - Count what leaves the busiest node. You choose who is in a group; NCCL chooses the order of its ring.
# - On two levels a GPU sends between nodes 1/(GPUs of a node) of the bytes. Flat rings over all cards do that,
#   too, with more α.
# - A step is work/n + fixed. With one batch the fixed part is a larger share on more GPUs; with larger
#   models and batches it need not be.
# - A model that is wrong by a factor is still useful if it leads to the right decision.

# %% [markdown] id="further"
# # 15 · What communication costs at scale: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.

# %% [markdown] id="further-tree"
# ## A tree
#
# An all-reduce by a tree of messages, for any number of ranks: one exercise, about 20 minutes. It needs
# sends and receives (lab 02).

# %% [markdown] id="tree-text"
# **Exercise: a tree**
#
# **Goal:** `tree_all_reduce(x)` leaves the sum in `x` (any shape and dtype) on all ranks, for *any* number
# of ranks, by messages alone, 2(N − 1) in all. If a rank can be in one message at a time, no more than 8 rounds with 7
# ranks. `dist.send` and `dist.recv` are enough: in a tree nobody sends and receives at once.

# %% id="tree_all_reduce"
import torch
import torch.distributed as dist


def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    # BEGIN SOLUTION
    for d in distances:  # up: after it, each 2d-th rank has the sum of 2d ranks
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x.add_(buffer)
    for d in reversed(distances):  # down: after it, each d-th rank has the sum
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
    # END SOLUTION


# %% id="tree_all_reduce-check"
lockstep.check("tree_all_reduce", tree_all_reduce)

# %% [markdown] id="protocols-text"
# ## Protocols
#
# How NCCL tells a GPU that data has come: three answers and their prices, recorded on 2 H200s, and whether
# NCCL picks the fastest. About 15 minutes; it needs what section 1 says about CUDA graphs.
#
# How does a GPU know that data has come? NCCL has three answers, its **protocols**
# ([`device.h`](https://github.com/NVIDIA/nccl/blob/5067397c2676d5aed50042fc39e5c8ee96eb0027/src/include/device.h)
# has their layouts):
#
# - **Simple:** a large piece, and when it has arrived, a signal. All bytes of the piece are data.
# - **LL**, low latency: 4 bytes of data and 4 bytes of flag, written together; no signal after them.
# - **LL128:** 120 bytes of data and 8 of flag in 128, where the hardware writes these at once.
#
# (**NVLS**, by which NVLink's switch adds up by itself, is no protocol but an algorithm, as ring and tree are. In our
# recordings it was off.)
#
# **Predict:** if the bytes on the link decide, how many *times* as long as Simple does LL take for 1 GiB?

# %% id="protocols-prediction" tags=["prediction"]
prediction = 8 / 4  # 8 bytes on the link for 4 of data

# %% id="protocols"
ends = {"Simple": "-simple", "LL128": "-ll128", "LL": "-ll"}
protocol_files, spent = {}, {}
for kind, end in [*ends.items(), ("NCCL's choice", "")]:
    protocol_files[kind] = lockstep.recorded(f"protocols/h200-x2{end}.json")
    rows = protocol_files[kind].content["sweeps"]["captured"]
    spent[kind] = {row["bytes"]: row["seconds"] for row in rows}
largest = {kind: seconds[1 << 30] for kind, seconds in spent.items()}
ll, ll128 = (largest[kind] / largest["Simple"] for kind in ("LL", "LL128"))
print(f"LL128: {ll128:.2f} times · {protocol_files['LL'].stamp}")
lockstep.compare(predicted=prediction, measured=ll, unit="times")

# %% id="protocols-chart" tags=["plumbing"]
lockstep.chart(
    {kind: list(seconds.items()) for kind, seconds in spent.items()},
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of an all-reduce by ring on 2 H200s over its size, out of a "
    "CUDA graph: LL is fastest up to 2 MB and slowest from 4 MB on; NCCL's "
    "choice goes with LL first and with Simple then.",
    stamp=[file.stamp for file in protocol_files.values()],
)

# %% [markdown] id="protocols-explained"
# LL128 comes out about as its bytes say, 128/120. LL is slower than twice: flags are not all that it costs.
# What LL gains is at the other end. NCCL knows these prices; they stand in its source, in µs: a base
# for each call, and a step over NVLink. On 2 GPUs a ring has 2 steps.
#
# **Predict** with the table: how many µs for a small all-reduce by Simple, on 2 GPUs?

# %% id="constants"
source = lockstep.published("nccl-tuning")
base, per_step = source.values["base"]["ring"], source.values["NVLink"]["ring"]
net = source.values["network"]["ring"]
protocols = "LL", "LL128", "Simple"
lockstep.table(
    "What NCCL assumes of a ring, in µs",
    ["protocol", "base", "a step over NVLink", "a step over the network"],
    [[kind, base[kind], per_step[kind], net[kind]] for kind in protocols],
    stamp=source.stamp,
)

# %% id="constants-prediction" tags=["prediction"]
prediction = 8.4 + 2 * 3.4

# %% id="constants-measured"
for kind in protocols:
    expected, smallest = base[kind] + 2 * per_step[kind], 1e6 * spent[kind][256]
    print(f"{kind:<6} expected {expected:5.1f} µs, recorded {smallest:5.1f} µs")
print(protocol_files["Simple"].stamp)
lockstep.compare(predicted=prediction, measured=smallest, unit="µs")

# %% [markdown] id="constants-explained"
# Right within a fifth. But by these numbers LL128 comes after Simple, and as recorded it comes before.
#
# ### Claim: "NCCL picks the fastest protocol"
#
# [NCCL Performance](https://the-dsvolk.github.io/ai-perf/ai-infra/nccl-perf.html) says that it "picks the best
# algorithm, protocol, and transport", so `NCCL_PROTO` is best left alone. Let it hold for a size if its choice is at
# most 10 % slower than the fastest of the three, as recorded above. **Guess:** at all sizes, at some (depends), or at
# none?

# %% id="picks-guess" tags=["guess"]
guess = "depends"

# %% id="picks-claim"
forced = [seconds for kind, seconds in spent.items() if kind != "NCCL's choice"]
lost = {
    size: seconds / min(one[size] for one in forced) - 1
    for size, seconds in spent["NCCL's choice"].items()
}
off = {size: part for size, part in lost.items() if part > 0.1}
lockstep.claim(
    "NCCL picks the fastest protocol.",
    guess=guess,
    verdict={0: "holds", len(lost): "does not hold"}.get(len(off), "depends"),
    because=f"of {len(lost)} sizes it is more than 10 % slower at {len(off)}"
    + "".join(f"; {size:,} bytes: {100 * x:.0f} %" for size, x in off.items()),
    stamp=[file.stamp for file in protocol_files.values()],
)

# %% [markdown] id="further-picks"
# ## Ring or tree
#
# Does NCCL choose the algorithm by a common rule of sizes? A claim, tested on recordings of 2 and 4 H200s. About
# 10 minutes; it needs section 2's table.
#
# In a plain tree most ranks wait most of the time, and all of `x` is in every message. NCCL mends both. It
# cuts `x` into small pieces, so that all levels work at once; and it has *two* trees, each for half of
# the pieces, in which the ranks without children in one have children in the other
# ([NCCL 2.4](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/),
# "Double binary trees").
#
# Such a double *binary* tree joins nodes. Inside of a node NCCL's tree is a chain: each GPU has one child, the
# next one ([`connect.cc`](https://github.com/NVIDIA/nccl/blob/master/src/graph/connect.cc)). A chain has
# 2(N − 1) steps, as a ring has, and sends all bytes over each of its links, up and down.

# %% [markdown] id="choice-text"
# ### Claim: "for large messages, the double binary tree is chosen"
#
# A common rule goes by size: a tree for small messages, a ring for middle ones, from 1 MB on the double
# binary tree. It does not say for how many GPUs. Here are 2 and 4 of one host, so the tree is a
# chain. NCCL can be forced (`NCCL_ALGO=Ring`, `NCCL_ALGO=Tree`), and left to choose. All three were
# recorded, with NVLink multicast off, so without NVLS. **Guess**, then see which forced curve its own choice
# lies on.

# %% id="choice-guess" tags=["guess"]
guess = "does not hold"

# %% id="choice" tags=["plumbing"]
suffixes = {"ring": "-ring", "tree": "-tree", "NCCL's choice": ""}
choice_files, picked = {}, {}
for n in (2, 4):
    for how, end in suffixes.items():
        choice_files[n, how] = lockstep.recorded(f"sweeps/h200-x{n}{end}.json")
        rows = choice_files[n, how].content["sweeps"]["all_reduce"]
        picked[n, how] = {row["bytes"]: row["seconds"] for row in rows}


def large(how):
    return [(size, t) for size, t in picked[4, how].items() if size >= 1 << 18]


lockstep.chart(
    {how: large(how) for how in suffixes},
    x="size (bytes)",
    y="time (seconds)",
    alt="Seconds of all_reduce over its size on 4 H200s: ring forced, tree "
    "forced, and what NCCL chose by itself, which lies on the ring.",
    stamp=choice_files[4, "ring"].stamp,
)

# %% id="choice-claim"
near, worse = {"ring": 0, "tree": 0}, []
for n in (2, 4):
    for size, chosen in picked[n, "NCCL's choice"].items():
        off = {how: abs(picked[n, how][size] / chosen - 1) for how in near}
        # where the two can be told apart
        if size >= 1 << 20 and max(off.values()) > 0.05:
            near[min(off, key=off.get)] += 1
            worse.append(chosen / min(picked[n, how][size] for how in near) - 1)
otherwise = "depends" if near["tree"] else "does not hold"
lockstep.claim(
    "From 1 MB on NCCL chooses the tree, here inside of one host.",
    guess=guess,
    verdict="holds" if not near["ring"] else otherwise,
    because=f"NCCL's time lies on the ring's at {near['ring']} sizes from 1 MB "
    f"on and on the tree's at {near['tree']}, of 2 and 4 GPUs; it is at most "
    f"{100 * max(worse):.0f} % above the faster of the two",
    stamp=[choice_files[n, "NCCL's choice"].stamp for n in (2, 4)],
)

# %% [markdown] id="further-bus"
# ## Two bandwidths
#
# What nccl-tests calls *algbw* and *busbw*, what each can be compared with, and a claim of its
# documentation, tested on 2 and 4 H200s. About 10 minutes; it needs lab 03's count of a ring's bytes.

# %% [markdown] id="bus-text"
# - **Algorithm bandwidth:** bytes / seconds. It says how long *you* wait.
# - **Bus bandwidth:** algorithm bandwidth × 2(N − 1)/N for an all-reduce, × (N − 1)/N for all-gather,
#   reduce-scatter and all-to-all. It says what a link must have carried.
#
# The bytes are those of a rank's larger tensor: what all-gather puts out, what reduce-scatter takes in.
# The factors count what must be sent
# [if ranks only send to each other](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
# Where NVLink's switch adds up by itself (NVLS), links carry less than the factor says, and the number
# can lie above what a link can do. In these recordings NVLS was off.
#
# On 4 H200s an all-reduce of 1 GiB took 4.56 ms (recorded). **Predict:** what was the *bus* bandwidth,
# in GB/s?

# %% id="bus-prediction" tags=["prediction"]
prediction = 1.5 * 2**30 / 4.56e-3 / 1e9  # 2 · 3 / 4 = 1.5

# %% id="bus-recorded"
four = lockstep.recorded("sweeps/h200-x4.json")
last = four.content["sweeps"]["all_reduce"][-1]
took = last["bytes"], last["seconds"]
bandwidth = lockstep.cost.bus_bandwidth("all_reduce", 4, *took)
print(four.stamp)
lockstep.compare(predicted=prediction, computed=bandwidth / 1e9, unit="GB/s")

# %% [markdown] id="bus-claim-text"
# ### Claim: "bus bandwidth is the same on any number of GPUs"
#
# NVIDIA's nccl-tests
# ([doc/PERFORMANCE.md](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), "Bus
# bandwidth") compares it with the hardware "independently of the number of ranks used". Take it within
# 25 %, for 1 GiB on 2 and on 4 GPUs. **Guess** first.

# %% id="bus-guess" tags=["guess"]
guess = "holds"

# %% id="bus-claim"
names = "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"
files = {n: lockstep.recorded(f"sweeps/h200-x{n}.json") for n in (2, 4)}
ratios = {"bus": [], "algorithm": []}
for name in names:
    last = {n: file.content["sweeps"][name][-1] for n, file in files.items()}
    rate = {n: row["bytes"] / row["seconds"] for n, row in last.items()}
    factor = {n: lockstep.cost.bus_factor(name, n) for n in files}
    ratios["algorithm"].append(rate[4] / rate[2])
    ratios["bus"].append(rate[4] * factor[4] / (rate[2] * factor[2]))
within = [abs(ratio - 1) <= 0.25 for ratio in ratios["bus"]]
otherwise = "depends" if any(within) else "does not hold"
said = [f"{min(r):.2f} to {max(r):.2f} ({kind})" for kind, r in ratios.items()]
lockstep.claim(
    "Bus bandwidth is the same on any number of GPUs, within 25 %.",
    guess=guess,
    verdict="holds" if all(within) else otherwise,
    because="4 GPUs by 2, five collectives: " + "; ".join(said),
    stamp=[file.stamp for file in files.values()],
)

# %% [markdown] id="trees-intro"
# ## Rings and trees on 24,576 GPUs
#
# What NVIDIA published of its double binary trees on Summit, and how far the model is off. About 10 minutes;
# it needs section 2's table.
#
# In 2019 NVIDIA compared NCCL's new double binary trees with rings on
# [Summit](https://github.com/olcf/hands-on-with-summit), 24,576 GPUs, by the time of a *small*
# all-reduce. **Predict** by rounds alone, all with the same α: how many *times* as long as the tree's
# does the ring's take? (The tree has 2·⌈log₂ N⌉ rounds; 2¹⁵ is 32,768.)

# %% id="trees-prediction" tags=["prediction"]
prediction = 2 * (24_576 - 1) / (2 * 15)

# %% id="trees"
trees = lockstep.published("nccl-2.4")
print(trees)
published = trees.values["ring_by_trees"]
lockstep.compare(predicted=prediction, published=published, unit="times")

# %% [markdown] id="trees-text"
# Nine times too much. What is wrong with the model? α is not the same for all. Most of a ring's hops stay
# inside of a node, where a step is short; Summit has 6 GPUs a node (27,648 on 4,608 nodes), so these are
# 4,096 nodes. And NCCL's source takes 5 µs for a tree's step over the network, and 2.7 for a
# ring's, in LL, its protocol for small messages. With these numbers of today (inside of a node a ring's
# step takes 1 µs, as long as posting a message to the network does):

# %% id="trees-refined"
source = lockstep.published("nccl-tuning")
v, gpus, nodes = source.values, 24_576, 4096
over_network = 2 * (nodes - 1)
inside = 2 * (gpus - 1) - over_network
step = {way: v["network"][way]["LL"] for way in ("ring", "tree")}
ring = v["base"]["ring"]["LL"] + inside * v["post"]
ring += over_network * step["ring"]
up = (6 - 1) * v["NVLink"]["tree"]["LL"] + 12 * step["tree"]  # 12 = log2(4096)
tree = v["base"]["tree"]["LL"] + 2 * up
ratio = f"{ring / tree:,.0f} times; published: {trees.values['ring_by_trees']}"
model = lockstep.simulated("steps × NCCL's constants")
lockstep.table(
    "A small all-reduce on 24,576 GPUs, in µs",
    ["algorithm", "steps over the network", "steps inside", "time"],
    [
        ["rings", f"{over_network:,}", f"{inside:,}", f"{ring:,.0f}"],
        ["double tree", 2 * 12, 2 * 5, f"{tree:,.0f}"],
        ["ratio", "", "", ratio],
    ],
    stamp=[model, source.stamp, trees.stamp],
)

# %% [markdown] id="trees-explained"
# Nearer, and still 2.6 times too much. It may be that rings were better, or trees worse, than today's
# constants say: they are not Summit's, and "up to 180x" was read off a curve that is not published as
# numbers. A model that is right within a factor of three got the decision right: trees.

# %% [markdown] id="further-llama"
# ## Llama 3, from 8,192 to 16,384 GPUs
#
# A published step priced from its configuration alone: which communication could not be shared among
# more GPUs, what it should cost, and what is missing. About 5 minutes; it needs section 5.

# %% [markdown] id="llama-text"
# [Llama 3](https://arxiv.org/abs/2407.21783) (table 4) trains 405 billion parameters with batches of
# 2,048 sequences of 8,192 tokens: on 8,192 GPUs at 430 TFLOP/s a GPU, and on 16,384. A GPU
# computes with 1/(8·16) of the parameters, tensor parallelism 8 × pipeline parallelism 16; fully sharded data
# parallelism (FSDP) keeps only a share of these on each. So per step it gathers them over the network, in 2
# bytes each, and reduce-scatters their gradients in 4 bytes (FP32, section 3.3.2), over a card of 50 GB/s. A
# step computes 6 × parameters × tokens.
#
# **Predict:** if nothing of this communication is hidden, and it takes as long on 16,384 GPUs while the
# computing takes half: how many TFLOP/s a GPU are left of 430?

# %% id="llama-prediction" tags=["prediction"]
prediction = 430 / (
    # s is a step on 8,192 GPUs, 11.6 s, and t its communication, 0.38 s:
    # 430 · (s/2) / ((s - t)/2 + t) = 430 / (1 + t/s)
    1 + (405e9 / 128 * (2 + 4) / 50e9) / (6 * 405e9 * 2048 / 430e12)
)

# %% id="llama"
llama = lockstep.published("llama-3")
v = llama.values
tokens = v["sequence"] * v["sequences_a_replica"][0] * v["data"][0]
gpus, speed = v["gpus"][0], v["teraflops_a_gpu"][0] * 1e12
step = 6 * v["parameters"] * tokens / (gpus * speed)
mine = v["parameters"] / (v["tensor"] * v["pipeline"])
talk = mine * (2 + 4) / (v["network_gbps"] / 8 * 1e9)
print(f"a step on {gpus:,} GPUs: {step:.1f} s, of it {talk:.2f} s for FSDP")
print(llama)
there = v["teraflops_a_gpu"][1]
lockstep.compare(predicted=prediction, published=there, unit="TFLOP/s")

# %% [markdown] id="llama-explained"
# The model explains less than half of what was lost, and FSDP is built to hide that communication. The
# paper names another cause: the smaller batch of each replica. That is half the microbatches, so the
# pipeline's bubble is a larger part of the step.
