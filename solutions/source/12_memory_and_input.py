# %% [markdown] id="title"
# # 12 · Memory and input
#
# **Two sittings, 75 and 85 minutes · needs: a CPU** (the same cells use a GPU where there is one; else a virtual H200,
# and an H200 is recorded)
#
# A step that does not fit into the GPU's memory does not run, and a GPU that waits for data does nothing. Both can be
# computed before anything is started. Afterwards you can
#
# - predict a training step's peak from the model's shapes, within 5 %,
# - say why memory runs out while much of it is free, and choose sizes that are used again,
# - choose the blocks to recompute for a budget,
# - keep weights on the host, and fetch each while the one before is in use,
# - give each rank and each worker its own samples.
#
# Do lab 04 (streams, copies) first, and lab 08 for what a step of training has. Resuming in the middle of an epoch,
# recomputing by operator, offloading in FSDP2 and symmetric memory are in the further notebook.

# %% id="parameters" tags=["parameters"]
NPROC = 2  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep
import torch
from torch import nn
from torch.nn import functional as F

GB = 1e9
on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
ms = lambda seconds: f"{seconds * 1e3:.0f} ms"
gb = lambda nbytes: f"{nbytes / GB:.2f} GB"
print(lockstep.virtual.MACHINES["H200"])

# %% id="progress" tags=["unpublished"]
lockstep.progress("12")

# %% [markdown] id="machine-text"
# `on_gpu(program, …)` runs `program(cuda, …)` in a process of its own, with this machine's GPU or a virtual one; `cuda`
# has the names of `torch.cuda`. The virtual GPU's memory is given out as PyTorch does it on a real one; with
# `values=False`, as mostly here, no numbers are computed, so tensors may be as large as on an H200.

# %% id="on-gpu-rank" tags=["plumbing"]
import tempfile

from lockstep.base.provenance import Provenance


def _on_rank(program, args, values, traced):
    if not torch.cuda.is_available():
        with lockstep.virtual.device("H200", values=values) as cuda:
            return program(cuda, *args), lockstep.virtual.trace()
    name = Provenance("live", torch.cuda.get_device_name())
    result = program(torch.cuda, *args)
    if not traced:
        return result, lockstep.Trace.from_slices([], stamp=name)
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

    def compare(self, prediction, value, unit=""):
        way = "computed" if self.stamp.kind == "simulated" else "measured"
        return lockstep.compare(prediction, **{way: value}, unit=unit)


def on_gpu(program, *args, values=False, traced=False):
    """Run program(cuda, *args) on this machine's GPU, or on a virtual H200."""
    job = lockstep.torchrun(_on_rank, program, args, values, traced, **ONE_RANK)
    return Seen(*job[0])


# %% [markdown] id="model-text"
# The model of this lab is a transformer as everybody writes it. A name's suffix has its dimensions: batch b, length t,
# width D. `shape` is (layers, width, heads, vocabulary).


# %% id="model"
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x_btD):
        b, t, D = x_btD.shape
        parts = self.qkv(self.first(x_btD)).view(b, t, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btD = x_btD + self.out(seen.transpose(1, 2).reshape(b, t, D))
        return x_btD + self.down(F.gelu(self.up(self.second(x_btD))))


# %% id="transformer"
class Transformer(nn.Module):
    def __init__(self, layers, width, heads, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids_bt, call=lambda block, x: block(x)):
        x_btD = self.embedding(ids_bt)
        for block in self.blocks:
            x_btD = call(block, x_btD)
        return self.head(self.norm(x_btD))


def make(shape, dtype=torch.bfloat16):
    """A transformer on the GPU, and its optimizer."""
    with torch.device("cuda"):
        model = Transformer(*shape).to(dtype)
    return model, torch.optim.AdamW(model.parameters())


def loss_of(model, ids_bt, *call):
    logits = model(ids_bt, *call).flatten(0, 1)
    return F.cross_entropy(logits, ids_bt.flatten())


# %% [markdown] id="kept-text"
# ## 1 · Where memory goes
#
# In the cell below a model of 12 layers of width 768 takes two steps, with 8 sequences of 1,024 tokens out of 50,304.
# It has P = 162,240,000 parameters of 2 bytes (bfloat16), and AdamW keeps two numbers for each, of the same type.
# `zero_grad()` drops the gradients.
#
# **Predict:** how many GB are allocated after the second step?

# %% id="kept-prediction" tags=["prediction"]
# your number, in GB
prediction = 3 * 162_240_000 * 2 / 1e9  # the weights, and two numbers for each


# %% id="kept"
SHAPE, TOKENS = (12, 768, 12, 50304), (8, 1024)


def two_steps(cuda, shape, tokens):
    """Bytes after the forward pass, after the step, at most; the history."""
    cuda.memory._record_memory_history()
    model, optimizer = make(shape)
    ids_bt = torch.zeros(tokens, dtype=torch.int64, device="cuda")
    for _ in range(2):
        cuda.reset_peak_memory_stats()
        loss = loss_of(model, ids_bt)
        forward = cuda.memory_allocated()
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
    after, most = cuda.memory_allocated(), cuda.max_memory_allocated()
    return forward, after, most, cuda.memory._snapshot()


steps = on_gpu(two_steps, SHAPE, TOKENS)
forward, after, most, snapshot = steps.result
steps.compare(prediction, after / GB, "GB")

# %% [markdown] id="block-text"
# The rest is rounding: a block of the allocator is up to 1 MiB larger than the tensor in it. (On a real GPU libraries'
# workspaces come on top.)
#
# The forward pass keeps what the backward pass needs. A product needs its input, and so do a norm and a gelu.
# Attention needs q, k, v and its result (not the scores, which its kernel computes again). An addition needs nothing.
# A tensor that two operations need is kept once. Count for one `Block`: its input x_btD is the norm's; the result of the
# norm is the input of `qkv`; and so on to the input of `down`.
#
# **Predict:** how many numbers does a block keep for each token, divided by the width?

# %% id="block-prediction" tags=["prediction"]
# your number, in widths
prediction = 1 + 1 + 3 + 1 + 1 + 1 + 4 + 4

# %% id="block"
layers, width, _, vocabulary = SHAPE
tokens = TOKENS[0] * TOKENS[1]
logits = tokens * vocabulary * 2  # bytes, for the loss: see below
each = (forward - after - logits) / (layers * tokens * width * 2)
steps.compare(prediction, each, "widths")

# %% [markdown] id="history-text"
# (The last 0.2 are the inputs of the final norm and of the head, and attention's sums.)
#
# `torch.cuda.memory._record_memory_history()` has written down each allocation. Here is the history of the two steps:
# point at a band to see the line that allocated it. The mountain is the forward pass, and the other side of it the
# backward pass, which frees what a block has kept as soon as its gradients are there.

# %% id="history" tags=["varies"]
history = lockstep.Trace.memory(snapshot, stamp=steps.stamp)
history

# %% [markdown] id="peak-text"
# ### Exercise 1: a step's peak
#
# A step has two summits:
#
# - **When the backward pass begins**: weights and AdamW's two numbers for each; all that the blocks have kept; and three
#   tensors as large as the logits, tokens × vocabulary: the logarithms of the probabilities, and two gradients of the loss.
# - **In the optimizer's step**: weights, gradients, AdamW's two numbers for each, and one more tensor for each weight, as it
#   updates all of them at once.
#
# Beside both lie 64 MiB of workspaces on an H200: cuBLAS takes 32 at the first product of a thread, and the backward pass
# has a thread of its own. A block has 12 · width²
# parameters in its products (count them in the code above); embedding and head have one vector for each word. The norms'
# weights are too few to count.
#
# **Goal:** `peak(layers, width, vocabulary, tokens, size)` returns the bytes at the higher summit of a step that is not the
# first, within 5 %; `tokens` is batch times length, and `size` the bytes of a number.


# %% id="peak"
def peak(layers, width, vocabulary, tokens, size):
    # BEGIN SOLUTION
    parameters = 12 * layers * width**2 + 2 * vocabulary * width
    kept = 16 * layers * tokens * width + 3 * tokens * vocabulary
    return size * max(3 * parameters + kept, 5 * parameters) + (64 << 20)
    # END SOLUTION


# %% id="peak-check"
lockstep.check("peak", peak)

# %% [markdown] id="ten-text"
# Ten models were trained on an H200. The table has your prediction beside what `max_memory_allocated()` said.

# %% id="ten"
peak = lockstep.carry_on("peak", peak)
recording = lockstep.recorded("memory/h200.json")
ten, rows = [], []
for one in recording.content["models"]:
    shape = [one[name] for name in ("layers", "width", "vocabulary")]
    size = 4 if one["dtype"] == "float32" else 2
    backward = one["steps"][1]["peak until the backward's end"]
    update = one["steps"][1]["peak of the optimizer"]
    guessed = peak(*shape, one["batch"] * one["length"], size)
    ten.append({"backward": backward, "update": update})
    measured = max(backward, update)
    off = f"{100 * (guessed / measured - 1):+.1f}"
    sizes = f"{one['batch']} × {one['length']}", one["dtype"]
    row = *shape, *sizes, f"{guessed / GB:.2f}", f"{measured / GB:.2f}", off
    rows.append(row)
columns = ["layers", "width", "vocabulary", "tokens", "dtype"]
columns += ["predicted, GB", "measured, GB", "off by, %"]
lockstep.table("Ten peaks on an H200", columns, rows, stamp=recording.stamp)

# %% [markdown] id="backward-text"
# ### Claim: "the peak is in the backward pass"
#
# A common guess. **Guess**, for the ten models of the table.

# %% id="backward-guess" tags=["guess"]
guess = "depends"

# %% id="backward-claim"
earlier = sum(one["backward"] > one["update"] for one in ten)
lockstep.claim(
    "The peak is in the backward pass.",
    guess=guess,
    verdict="holds" if earlier == 10 else "depends",
    because=f"{earlier} of 10 have it there, the others in the optimizer",
    stamp=recording.stamp,
)

# %% [markdown] id="accumulate-text"
# ### Claim: "gradient accumulation needs no more memory"
#
# Often written so ("[peak memory is only one micro-batch](https://stevengong.co/notes/Gradient-Accumulation)"): one step with the
# gradients of two batches of 4 sequences, against a step with one batch of 4. **Guess** for their peaks.

# %% id="accumulate-guess" tags=["guess"]
guess = "does not hold"


# %% id="accumulate-claim"
def accumulated(cuda, batches):
    model, optimizer = make(SHAPE)
    ids_bt = torch.zeros(4, 1024, dtype=torch.int64, device="cuda")
    for _ in range(2):
        for _ in range(batches):
            loss_of(model, ids_bt).backward()
        optimizer.step()
        optimizer.zero_grad()
    return cuda.max_memory_allocated()


one, two = (on_gpu(accumulated, batches) for batches in (1, 2))
more = two.result - one.result
lockstep.claim(
    "Gradient accumulation needs no more memory.",
    guess=guess,
    verdict="holds" if more < 0.01 * one.result else "does not hold",
    because=f"at most {gb(one.result)} with one, {gb(two.result)} with two: "
    f"the second begins with all gradients there, {gb(2 * 162_240_000)}",
    stamp=two.stamp,
)

# %% [markdown] id="reserved-text"
# (Where the optimizer's summit is the higher one, as with few tokens, accumulating costs no memory.)
#
# ## 2 · The caching allocator
#
# `cudaMalloc` is slow, and `cudaFree` waits for the device. So PyTorch takes **segments** from the driver and keeps them. A
# tensor gets a block of a segment, in steps of 512 bytes. A request of at most 1 MiB comes from segments of 2 MiB, one
# below 10 MiB from segments of 20 MiB, and a larger one gets a segment of its own, in steps of 2 MiB. **Allocated** is
# what tensors have, **reserved** what segments have.
#
# **Predict:** a new process makes four tensors of 0.3, 5, 5 and 11 MiB. How many MiB are reserved?

# %% id="reserved-prediction" tags=["prediction"]
# your number, in MiB
prediction = 2 + 20 + 12  # the two of 5 MiB share a segment


# %% id="reserved"
def four(cuda):
    sizes = [int(mib * (1 << 20)) for mib in (0.3, 5, 5, 11)]
    held = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in sizes]
    return cuda.memory_reserved() >> 20, len(held)


seen = on_gpu(four)
seen.compare(prediction, seen.result[0])

# %% [markdown] id="full-text"
# A freed block is used again for a request of the same stream that fits: the smallest block that does, and what is left of it
# is split off. If none fits, a new segment is taken; if the driver has no memory left, all segments without a tensor go back to it first.
#
# ### A bug to diagnose
#
# The cell below takes ten sixteenths of the GPU's memory and lets go of them. Then it keeps one sixteenth, and asks for ten
# again, of the fifteen that are free. It is **broken on purpose**. Look in the error for what is free, and where.


# %% id="full" tags=["varies"]
def fifteen_free(cuda):
    part = cuda.mem_get_info()[0] // 16
    print(f"a sixteenth is {part >> 20} MiB")
    first = torch.empty(10 * part, dtype=torch.uint8, device="cuda")
    del first
    kept = torch.empty(part, dtype=torch.uint8, device="cuda")
    again = torch.empty(10 * part, dtype=torch.uint8, device="cuda")
    return len(kept), len(again)


options = ONE_RANK | {"may_fail": True}
print(lockstep.torchrun(_on_rank, fifteen_free, (), False, False, **options))

# %% [markdown] id="full-explained"
# "Reserved but unallocated" are nine sixteenths, in the segment of which `kept` has the beginning; the driver has six. No piece
# has ten, and the segment cannot go back: that is **fragmentation**. Had `kept` been made first, all would fit: make what
# stays before what comes and goes.
#
# ### Claim: "`del` frees GPU memory"
#
# Heard in every forum. In the cell below a tensor of 1 GiB has a view of ten numbers. **Guess** what becomes of allocated and
# reserved bytes after `del` of the tensor, and then of the view.

# %% id="del-guess" tags=["guess"]
guess = "depends"


# %% id="del-claim"
def deleted(cuda):
    said = lambda: (cuda.memory_allocated() >> 20, cuda.memory_reserved() >> 20)
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    view = x[:10]
    del x
    with_view = said()
    del view
    without = said()
    cuda.empty_cache()
    return with_view, without, said()


seen = on_gpu(deleted)
with_view, gone, emptied = seen.result
lockstep.claim(
    "`del` frees GPU memory.",
    guess=guess,
    verdict="depends" if with_view[0] and not gone[0] else "does not hold",
    because=f"MiB allocated and reserved: {with_view} while the view lives, "
    f"then {gone}; {emptied} after empty_cache(), for other programs",
    stamp=seen.stamp,
)

# %% [markdown] id="returns-text"
# ### Claim: "the allocator never gives memory back"
#
# A common guess, from what nvidia-smi shows. The cell below lets go of six tenths of the memory in one tensor and asks for
# seven tenths. **Guess** whether that works, without `empty_cache()`.

# %% id="returns-guess" tags=["guess"]
guess = "does not hold"


# %% id="returns-claim"
def larger(cuda):
    part = cuda.mem_get_info()[0] // 10
    for parts in (6, 7):
        x = torch.empty(parts * part, dtype=torch.uint8, device="cuda")
        reserved = cuda.memory_reserved() / part
        del x
    return reserved


seen = on_gpu(larger)
lockstep.claim(
    "The allocator never gives memory back.",
    guess=guess,
    verdict="does not hold" if seen.result < 13 else "holds",
    because=f"{seen.result:.1f} tenths are reserved in the end, and not 13",
    stamp=seen.stamp,
)

# %% [markdown] id="rounded-text"
# ### Exercise 2: sizes that are used again
#
# A cache of keys grows with each token: 118 tensors one after the other, each 3 % larger than the one before, two of them
# alive at a time. No free block ever fits, so each request calls `cudaMalloc`. Those who serve models round
# requests up, so that one size comes again and again. That costs memory, so not too far.
#
# **Goal:** `rounded(nbytes)` returns the bytes to ask for in place of `nbytes`: a whole number, at least `nbytes`, and at
# most 25 % more (up to the next multiple of 512 is always allowed), whatever the size. From 1 MiB to 1 GiB (1 << 20 to
# 1 << 30, both included) there are at most 41 different results, though there are a billion requests; below and above
# there may be any number. The least request is 1 byte.


# %% id="rounded"
def rounded(nbytes):
    # BEGIN SOLUTION
    power = 1 << (nbytes - 1).bit_length()  # of 2, from nbytes on
    step = max(1, power // 8)  # a quarter of the one below
    return -(-nbytes // step) * step
    # END SOLUTION


# %% id="rounded-check"
lockstep.check("rounded", rounded)

# %% [markdown] id="growing-text"
# Here is your function. Below it are the same 118 requests on an H200 that had 12 GiB for them, and 400 requests of mixed sizes, of which
# the last 60 live, under five settings of `PYTORCH_ALLOC_CONF` (older versions: `PYTORCH_CUDA_ALLOC_CONF`).
# `roundup_power2_divisions:4` is PyTorch's own rounding; `max_split_size_mb:64` splits no larger block;
# `garbage_collection_threshold:0.6` gives old free segments back when 60 % of the memory is in use.

# %% id="growing"
rounded = lockstep.carry_on("rounded", rounded)


def growing(cuda, sizes):
    """How often the driver was asked for a segment."""
    cuda.memory._record_memory_history()
    kept = []
    for nbytes in sizes:
        kept.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda"))
        del kept[:-2]
    events, *_ = cuda.memory._snapshot()["device_traces"]  # of GPU 0, the first
    return sum(one["action"] == "segment_alloc" for one in events)


sizes = [64 << 20]
while int(sizes[-1] * 1.03) // 512 * 512 < 2048 << 20:
    sizes.append(int(sizes[-1] * 1.03) // 512 * 512)
as_asked = on_gpu(growing, sizes)
with_yours = on_gpu(growing, [rounded(nbytes) for nbytes in sizes])
rows = [["as asked", as_asked.result], ["with yours", with_yours.result]]
columns = [f"{len(sizes)} requests", "calls of the driver"]
lockstep.table("Growing by 3 %", columns, rows, stamp=with_yours.stamp)

# %% id="settings"
recording = lockstep.recorded("memory/h200.json")
over_by, rows = {}, []
for one in recording.content["sequences"]:
    over = one["reserved"] / one["allocated"] - 1
    over_by[one["sizes"], one["setting"]] = over
    row = [one["sizes"], one["setting"], one["num_device_alloc"]]
    row += [f"{one['seconds'] * 1e3:.0f}", f"{one['reserved'] / GB:.1f}"]
    rows.append([*row, f"{100 * over:.0f}"])
columns = ["sizes", "setting", "driver calls", "ms", "reserved, GB", "over, %"]
title = "Growing by 3 %, and 60 alive of 400 mixed sizes; an H200"
lockstep.table(title, columns, rows, stamp=recording.stamp)

# %% [markdown] id="expandable-text"
# "Over" is what is reserved at most beyond what is allocated at most, rounding included. For the growing sizes rounding halves the calls, and
# the time, but what is reserved still grows to the limit. Segments that are **expandable** grow at their end instead: the
# driver maps more memory behind them. A tensor still needs one piece there: where a gap is too small, the segment grows.
#
# ### Claim: "`expandable_segments` ends fragmentation"
#
# NVIDIA's [Megatron Bridge](https://docs.nvidia.com/nemo/megatron-bridge/nightly/skills/perf-techniques/memory-tuning/SKILL.html) says
# that it "fixes fragmentation-induced OOM with zero performance cost". **Guess** for both sequences: less than 5 % over?

# %% id="expandable-guess" tags=["guess"]
guess = "depends"

# %% id="expandable-claim"
setting, said = "expandable_segments:True", []
small = [name for name in ("growing", "mixed") if over_by[name, setting] < 0.05]
for name in ("growing", "mixed"):
    less, more = (100 * over_by[name, how] for how in (setting, "default"))
    said.append(f"{name}: {less:.0f} % over, {more:.0f} without")
lockstep.claim(
    "`expandable_segments` ends fragmentation.",
    guess=guess,
    verdict={0: "does not hold", 1: "depends", 2: "holds"}[len(small)],
    because="; ".join(said),
    stamp=recording.stamp,
)

# %% [markdown] id="break"
# **Break.** The first sitting ends here. You know what a step needs, and what the allocator makes of it. What comes next: to
# need less, by computing again or by the host's memory, and the way of the data to the GPU. To go on from here in a new
# kernel, run only the lab's first cells, down to the one that defines `Transformer`.

# %% [markdown] id="recompute-text"
# ## 3 · Recomputing
#
# `torch.utils.checkpoint.checkpoint(block, x)` runs the block without keeping anything but x, and runs it once more in the
# backward pass. (`use_reentrant=False` is the way that PyTorch recommends.) The cell below trains the model of section 1, 12 layers of width 768 with 8,192 tokens in bfloat16, with every
# block recomputed. A block that is not keeps 16 widths for each token, and the summit is where the backward pass begins.
#
# **Predict:** how many GB lower is it?

# %% id="recompute-prediction" tags=["prediction"]
# your number, in GB
prediction = 15 * 12 * 8192 * 768 * 2 / 1e9  # each block keeps its input only


# %% id="recompute"
from functools import partial

from torch.utils.checkpoint import checkpoint


def trained(cuda, recompute):
    model, optimizer = make((12, 768, 12, 50304))
    ids_bt = torch.zeros(8, 1024, dtype=torch.int64, device="cuda")
    again = partial(checkpoint, use_reentrant=False)
    call = again if recompute else lambda block, x: block(x)
    for _ in range(2):
        loss_of(model, ids_bt, call).backward()
        optimizer.step()
        optimizer.zero_grad()
    return cuda.max_memory_allocated()


plain, again = (on_gpu(trained, recompute) for recompute in (False, True))
rows = [["kept", gb(plain.result)], ["recomputed", gb(again.result)]]
display(lockstep.table("Peaks", ["blocks", "peak"], rows, stamp=again.stamp))
again.compare(prediction, (plain.result - again.result) / GB, "GB")

# %% [markdown] id="third-text"
# ### Claim: "recomputing all blocks costs a third"
#
# A common guess: a backward pass takes twice as long as a forward pass, and one more forward pass makes four of three. It was
# recorded on an H200 with 24 layers of width 1,024. **Guess**: between 28 and 38 % longer?

# %% id="third-guess" tags=["guess"]
guess = "holds"

# %% id="third-claim"
recording = lockstep.recorded("memory/h200.json")
ways = {one["recompute"]: one for one in recording.content["recomputing"]}
rows = []
for how in ("none", "every second", "all"):
    one = ways[how]
    summit = one["steps"][1]["peak until the backward's end"] / GB
    rows.append([how, f"{one['seconds'] * 1e3:.1f}", f"{summit:.2f}"])
title = "A step of 24 layers on an H200"
columns = ["recomputed", "ms", "peak, GB"]
display(lockstep.table(title, columns, rows, stamp=recording.stamp))
longer = ways["all"]["seconds"] / ways["none"]["seconds"] - 1
lockstep.claim(
    "Recomputing all blocks costs a third.",
    guess=guess,
    verdict="holds" if 0.28 <= longer <= 0.38 else "does not hold",
    because=f"the step takes {100 * longer:.0f} % longer",
    stamp=recording.stamp,
)

# %% [markdown] id="recomputed-text"
# ### Exercise 3: choose the blocks
#
# It is a little less than a third, as the head, the loss and the optimizer are not computed again.
#
# Blocks differ: one with many experts keeps much, one with long attention takes long. Recompute those that free the
# most for their time? Not always.
#
# **Goal:** `recomputed(kept, seconds, budget)` returns the sorted list of the numbers (from 0) of the blocks to recompute: the
# others together keep at most `budget` bytes, and no other choice takes less time. `kept[i]` are the bytes that block i keeps
# if it is not recomputed, a whole number, and `seconds[i]` what it takes to compute it once more. There are at most 14 blocks. Where
# two choices take the same time, either is right.

# %% id="recomputed"
from itertools import combinations


def recomputed(kept, seconds, budget):
    # BEGIN SOLUTION
    blocks = range(len(kept))
    fits = [
        some
        for count in range(len(kept) + 1)
        for some in combinations(blocks, count)
        if sum(kept) - sum(kept[i] for i in some) <= budget
    ]
    return list(min(fits, key=lambda some: sum(seconds[i] for i in some)))
    # END SOLUTION


# %% id="recomputed-check"
lockstep.check("recomputed", recomputed)

# %% [markdown] id="random-text"
# What is computed again has to come out the same. With dropout it must draw the same random numbers: `checkpoint` puts the
# generator back, unless `preserve_rng_state=False` saves that time. The cell is **broken on purpose** in the third line that it prints: look at the
# gradients.

# %% id="random"
torch.manual_seed(0)
layer = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1))
x = torch.randn(8, 64)
losses, gradients = {}, {}
for how, keep in (("plain", None), ("same numbers", True), ("others", False)):
    torch.manual_seed(1)
    layer.zero_grad()
    options = {"use_reentrant": False, "preserve_rng_state": keep}
    y = layer(x) if keep is None else checkpoint(layer, x, **options)
    losses[how] = y.sum()
    losses[how].backward()
    gradients[how] = layer[0].weight.grad.clone()
for how, gradient in gradients.items():
    equal = torch.equal(gradient, gradients["plain"])
    said = "as they should be" if equal else "WRONG"
    print(f"{how:>12}: loss {losses[how].item():.4f}, gradients {said}")

# %% [markdown] id="hidden-text"
# ## 4 · Weights on the host
#
# Weights can lie in pinned memory of the host, and be fetched one block ahead, on a side stream, while the block before
# computes. A copy is hidden if computing a block takes at least as long. An H200's copies come with 55 GB/s. The recording
# has blocks of one product: weights of 8,192 × 8,192 numbers in bfloat16, and x with `rows` rows, computed with
# 660 TFLOP/s, as such products reach there; a product takes 2 · rows · 8,192² operations.
#
# **Predict:** from how many rows on is the copy hidden?

# %% id="hidden-prediction" tags=["prediction"]
# your number: rows for which the product takes as long as the copy
prediction = (2 * 8192**2 / 55e9) * 660e12 / (2 * 8192**2)

# %% id="hidden"
from itertools import pairwise

recording = lockstep.recorded("memory/h200.json")
fetched, rows = recording.content["prefetching"], []
ways = ("resident", "copies_alone", "on_demand", "ahead")
for one in fetched:
    rows.append([one["rows"], *(f"{one[way] * 1e3:.1f}" for way in ways)])
columns = ["rows", "weights there", "copies alone", "when needed", "ahead"]
title = "Twelve products on an H200, ms"
display(lockstep.table(title, columns, rows, stamp=recording.stamp))
for low, high in pairwise(fetched):  # where both take as long
    a, b = (one["resident"] - one["copies_alone"] for one in (low, high))
    if a < 0 <= b:
        crossing = low["rows"] + (high["rows"] - low["rows"]) * -a / (b - a)
lockstep.compare(prediction, measured=crossing, unit="rows")

# %% [markdown] id="offloaded-text"
# ### Exercise 4: fetch weights ahead
#
# A backward pass uses the weights in reverse order, so that the last one is used twice in a row. Lab 04's prefetcher had the
# same two questions: when may a buffer be read, and when may it be written to again?
#
# **Goal:** `offloaded(cuda, on_host, forward, backward, x, side)` computes `x = forward(x, w)` with each weight in turn, then
# `x = backward(x, w)` with each in reverse order, and returns x. `on_host` are two or more pinned tensors of one shape and dtype; `w` is a
# copy of one on the device. Copies run on `side`, all else on the current stream, and each weight is copied while the one
# before it is used: after the first one, 95 % of the copies' time is hidden. The last weight is copied once; no other
# one that is still in its place need be copied again. At most three places of the device's memory hold weights, the host
# does not wait, and nothing races.
#
# (Two places are made for you: weight i can always lie in place i % 2. A new tensor may get memory that an older one has just given up, and
# that the current stream still uses.)

# %% id="offloaded"
import torch


def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    # BEGIN SOLUTION
    free = [now.record_event()] * 2  # when a place may be written to

    def fetch(i):
        free[i % 2].wait(side)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    fetch(0)
    for step, i in enumerate(order):
        now.wait_stream(side)  # weight i is there
        if step + 1 < 2 * n and order[step + 1] != i:
            fetch(order[step + 1])
        x = (forward if step < n else backward)(x, places[i % 2])
        free[i % 2] = now.record_event()
    return x
    # END SOLUTION


# %% id="offloaded-check"
lockstep.check("offloaded", offloaded)

# %% id="offloaded-run"
offloaded = lockstep.carry_on("offloaded", offloaded)


def four_blocks(cuda, ahead, rows=16_384, width=8192):
    some = {"dtype": torch.bfloat16}
    on_host = torch.empty(4, width, width, **some, pin_memory=True).unbind()
    x = torch.empty(rows, width, **some, device="cuda")
    cuda.synchronize()
    product = lambda x, w: x @ w
    if ahead:
        return len(offloaded(cuda, on_host, product, product, x, cuda.Stream()))
    for weight in (*on_host, *on_host[::-1]):
        x = x @ weight.to("cuda", non_blocking=True)
    return len(x)


plain, ahead = (on_gpu(four_blocks, way, traced=True) for way in (False, True))
title = "Four blocks, there and back: copied when needed, then one ahead"
lockstep.Timeline(ahead.trace, before=plain.trace, title=title)

# %% [markdown] id="workers-text"
# Beside the products lie the copies; only the first one is waited for, and the turn in the middle needs none.
#
# ## 5 · Input
#
# A `DataLoader` with `num_workers=0` loads a batch while the GPU waits. With n workers, n processes load in advance. In the cell
# below a batch takes 240 ms to load, and a step 80 ms (both are waiting here, as for storage and for a GPU), and all ranks add up four
# numbers in each of 10 steps.
#
# **Predict:** how many times as fast is it with 3 workers a rank as with none?

# %% id="workers-prediction" tags=["prediction"]
prediction = (240 + 80) / max(240 / 3, 80)


# %% id="workers" tags=["varies"]
def loaded(workers):
    """Milliseconds from one batch to the next."""
    import time
    import warnings

    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset

    class Batches(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, at):
            time.sleep(0.240)
            return torch.ones(4)

    warnings.filterwarnings("ignore", "This DataLoader")  # more than cores
    came = []
    for batch in DataLoader(Batches(), batch_size=None, num_workers=workers):
        came.append(time.perf_counter())
        time.sleep(0.080)
        dist.all_reduce(batch.to(lockstep.device()))
    return (came[-1] - came[0]) / (len(came) - 1) * 1e3


fed = {n: lockstep.torchrun(loaded, n, **on_ranks) for n in (0, 1, 2, 3, 4)}
lockstep.compare(prediction, measured=fed[0][0] / fed[3][0], unit="times")

# %% [markdown] id="starved-text"
# Here are both jobs, first without workers, then with three. Only the all-reduces are drawn: what is between them is the step, and
# the wait for a batch. The calls are the same in both; only the gaps between them tell.

# %% id="starved" tags=["varies"]
for workers in (0, 3):
    display(fed[workers])

# %% [markdown] id="four-text"
# ### Claim: "four workers a GPU"
#
# A rule of thumb ([one of many](https://www.abhik.ai/concepts/pytorch/num-workers) who give it). **Guess**, for the loop above: is it the least number with which a step takes its 80 ms
# (a quarter more is allowed)?

# %% id="four-guess" tags=["guess"]
guess = "does not hold"

# %% id="four-claim" tags=["varies"]
apart = {n: job[0] for n, job in fed.items()}
rows = [[n, f"{ms:.0f}"] for n, ms in apart.items()]
stamp = lockstep.live(fed[0])
display(lockstep.table("A step", ["workers", "ms"], rows, stamp=stamp))
enough = min((n for n in apart if apart[n] < 100), default="more than 4")
lockstep.claim(
    "Four workers a GPU.",
    guess=guess,
    verdict="holds" if enough == 4 else "does not hold",
    because=f"{enough} are enough: time to load / time of a step",
    stamp=stamp,
)

# %% [markdown] id="Shard-text"
# ### Exercise 5: everybody their own samples
#
# A `Dataset` with a length and indices is divided by a sampler. An `IterableDataset` is copied into every worker of every rank, and each copy
# runs its own `__iter__`: whoever forgets that trains on each sample ranks × workers times.
#
# **Goal:** `Shard(samples)` is an `IterableDataset`. All ranks and all their workers together give each of `samples`, a list, exactly
# once an epoch, however many there are (equal values count as separate samples), and how many two ranks get differs by at most one, whatever
# the number of workers (every rank has as many). It works without workers, too, and a second epoch gives each rank the same again.
# (`torch.utils.data.get_worker_info()` has `id` and `num_workers`, and is None in the rank itself. A worker has a copy of the
# object, but it need not have a process group: ask for the rank in `__init__`.)

# %% id="Shard"
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


class Shard(IterableDataset):
    def __init__(self, samples):
        # BEGIN SOLUTION
        self.mine = samples[dist.get_rank() :: dist.get_world_size()]
        # END SOLUTION

    def __iter__(self):
        # BEGIN SOLUTION
        me = get_worker_info()
        return iter(self.mine[me.id :: me.num_workers] if me else self.mine)
        # END SOLUTION


# %% id="Shard-check"
lockstep.check("Shard", Shard)

# %% [markdown] id="recap"
# ## Recap
#
# - A step's memory follows from shapes: three numbers for each parameter stay, 16 widths for each token and block, three times the
#   logits. The peak is where the backward pass begins, or in the optimizer.
# - The allocator keeps segments, and splits them. What stays and lies in a large segment keeps all of it.
# - Recomputing frees 15 of 16 widths, and takes a forward pass more. Random numbers have to be the same.
# - Copies from pinned memory are hidden where computing takes at least as long: that is a number of rows.
# - Workers needed: time to load / time of a step. An iterable dataset is divided by rank, then by worker.
#
# What a step needs is now known before it runs.

# %% [markdown] id="further"
# # 12 · Memory and input: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.

# %% [markdown] id="empty-text"
# ## Emptying the cache
#
# About 5 minutes; a CPU is enough.
#
# ### Claim: "`empty_cache()` after each step helps training"
#
# Advised in many places: "in a typical training loop, you can call `torch.cuda.empty_cache()` periodically to prevent the cache from growing too
# large" ([one of them](https://www.codegenes.net/blog/pytorch-collectgarbage)). The cell trains a small model for four steps, with and
# without. **Guess**: does it need less memory at most, reserved by PyTorch?

# %% id="empty-guess" tags=["guess"]
guess = "does not hold"


# %% id="empty-claim"
def emptied(cuda, empties):
    """Bytes reserved at most, and calls of the driver in the last step."""
    model, optimizer = make((4, 1024, 16, 32_000))
    ids_bt = torch.zeros(4, 1024, dtype=torch.int64, device="cuda")
    for _ in range(4):
        cuda.memory._record_memory_history(enabled=None)
        cuda.memory._record_memory_history()
        loss_of(model, ids_bt).backward()
        optimizer.step()
        optimizer.zero_grad()
        if empties:
            cuda.empty_cache()
    events, *_ = cuda.memory._snapshot()["device_traces"]  # of GPU 0, the first
    calls = sum(one["action"].startswith("segment") for one in events)
    return cuda.max_memory_reserved(), calls


plain, empty = (on_gpu(emptied, empties) for empties in (False, True))
(most, calls), (other, others) = plain.result, empty.result
lockstep.claim(
    "`empty_cache()` after each step helps training.",
    guess=guess,
    verdict="holds" if other < 0.95 * most else "does not hold",
    because=f"at most {gb(most)} are reserved without it, {gb(other)} with it; "
    f"a step asks the driver {calls} and {others} times",
    stamp=empty.stamp,
)

# %% [markdown] id="empty-explained"
# The next step needs the same again. PyTorch's [documentation](https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html) says that it "doesn't
# increase the amount of GPU memory available for PyTorch". It helps where another process on this GPU needs the memory, or once between two phases of
# quite different sizes.

# %% [markdown] id="resumed-text"
# ## Resuming in the middle of an epoch
#
# About 10 minutes; a CPU is enough.
#
# A job was started with 8 ranks, died, and goes on with 6. The order of an epoch follows from its number, so everybody can
# compute it again: `torch.randperm(count, generator=torch.Generator().manual_seed(epoch))`. Rank r of n takes every n-th sample of
# that order, from number r on. After a number of steps all ranks together have read its beginning.
#
# **Goal:** `resumed(order, steps, batch, before, rank, ranks)` returns the list of samples of `order`, a list, that are left for `rank` of `ranks`, after
# `before` ranks have taken `steps` steps of `batch` samples each. What is left is divided in the same way: rank r takes every
# `ranks`-th, from number r on. No sample is lost or comes twice; at the end of an epoch ranks may have one more or less.


# %% id="resumed"
def resumed(order, steps, batch, before, rank, ranks):
    # BEGIN SOLUTION
    left = order[steps * batch * before :]
    return left[rank::ranks]
    # END SOLUTION


# %% id="resumed-check"
lockstep.check("resumed", resumed)

# %% [markdown] id="padding-text"
# ## What DistributedSampler gives
#
# About 10 minutes; a CPU is enough.
#
# `torch.utils.data.DistributedSampler` divides a data set that has a length. All ranks get as many samples: if the number of ranks does
# not divide the length, some come again at the end (or with `drop_last=True` some never).
#
# **Predict:** the ranks of this notebook have 11 samples. How many are given out in an epoch, all ranks together?

# %% id="padding-prediction" tags=["prediction"]
prediction = NPROC * -(-11 // NPROC)  # 12 with 2 ranks


# %% id="padding"
def epochs(numbers):
    """This rank's samples in some epochs; None: without set_epoch."""
    from torch.utils.data import DistributedSampler

    sampler, found = DistributedSampler(range(11)), []
    for number in numbers:
        if number is not None:
            sampler.set_epoch(number)
        found.append(list(sampler))
    return found


sampled = lockstep.torchrun(epochs, [None, None, 0, 1], **on_ranks)
for rank, (first, *_) in enumerate(sampled.results):
    print(f"rank {rank}: {first}")
given = sum(len(first) for first, *_ in sampled.results)
lockstep.compare(predicted=prediction, measured=given)

# %% [markdown] id="shuffles-text"
# ### Claim: "without `set_epoch()` the same ordering will always be used"
#
# [PyTorch's documentation](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler) warns so.
# `shuffle=True` is the default. **Guess**.

# %% id="shuffles-guess" tags=["guess"]
guess = "holds"

# %% id="shuffles-claim"
first, second, zero, one = sampled[0]
lockstep.claim(
    "Without `set_epoch()` the same ordering will always be used.",
    guess=guess,
    verdict="holds" if first == second and zero != one else "does not hold",
    because="two epochs have the same order; with set_epoch() another one",
    stamp=lockstep.live(sampled),
)

# %% [markdown] id="pinned-text"
# ## Pinned memory
#
# About 5 minutes; recorded.
#
# ### Claim: "copies from pinned memory are faster"
#
# "Host to GPU copies are much faster when they originate from pinned (page-locked) memory", says
# PyTorch's [documentation](https://docs.pytorch.org/docs/stable/data.html#memory-pinning). The recording has a copy to the GPU, alone and on a stream beside 20 products. **Guess**, for the copy alone, whatever its
# size: is it shorter from pinned memory?

# %% id="pinned-guess" tags=["guess"]
guess = "holds"

# %% id="pinned-claim"
recording = lockstep.recorded("memory/h200.json")
rows, faster = [], []
copies = recording.content["copies"]
for pageable, pinned in zip(copies[::2], copies[1::2], strict=True):
    alone = [one["to the GPU"] for one in (pageable, pinned)]
    beside = [one["both"] for one in (pageable, pinned)]
    faster.append(alone[0] / alone[1])
    times = (f"{one * 1e3:.2f}" for one in alone + beside)
    rows.append([f"{pinned['bytes'] / (1 << 20):g}", *times])
columns = ["MiB", "pageable, ms", "pinned, ms"]
columns += ["pageable, beside products", "pinned, beside products"]
title, stamp = "A copy to an H200", recording.stamp
display(lockstep.table(title, columns, rows, stamp=stamp))
lockstep.claim(
    "Copies from pinned memory are faster.",
    guess=guess,
    verdict="holds" if min(faster) > 1.05 else "depends",
    because=f"{min(faster):.1f} to {max(faster):.1f} times as fast",
    stamp=stamp,
)

# %% [markdown] id="pinned-explained"
# Here the products are launched first. A small copy is hidden behind them either way: pinning gains nothing. A large one from ordinary
# memory takes longer than they do. (If such a copy is called first, it also holds up the host, which then launches the
# products late: 60 ms for 256 MiB, where the copy takes 37 and the products 32.)

# %% [markdown] id="selective-text"
# ## Recomputing by operator
#
# About 10 minutes; a CPU is enough.
#
# A selective policy keeps the results of some operators and computes the others again: products take long and elementwise
# operations do not. `create_selective_checkpoint_contexts([operators])` gives the contexts. In a block there are four products (qkv,
# out, up, down); with them the block's input is kept. Attention's kernel is not in the list.
#
# **Predict:** how many widths does a block keep for each token (16 without recomputing)?

# %% id="tokens-prediction" tags=["prediction"]
prediction = 1 + 3 + 1 + 4 + 1  # the input; results of qkv, out, up, down


# %% id="selective"
from functools import partial

from torch.utils import checkpoint as recompute

aten = torch.ops.aten
PRODUCTS = [aten.mm.default, aten.addmm.default]


def kept_by_block(cuda, layers):
    """Bytes that so many blocks keep until the backward pass."""
    block = lambda: Block(1024, 16).to("cuda", torch.bfloat16)
    blocks = [block() for _ in range(layers)]
    x_btD = torch.zeros(8, 1024, 1024, dtype=torch.bfloat16, device="cuda")
    x_btD.requires_grad_()
    contexts = recompute.create_selective_checkpoint_contexts
    context = partial(contexts, PRODUCTS)
    options = {"use_reentrant": False, "context_fn": context}
    before = cuda.memory_allocated()
    for one in blocks:
        x_btD = recompute.checkpoint(one, x_btD, **options)
    return cuda.memory_allocated() - before


few, many = (on_gpu(kept_by_block, layers) for layers in (2, 6))
each = (many.result - few.result) / 4 / (8 * 1024 * 1024 * 2)
many.compare(prediction, each, "widths")

# %% [markdown] id="products-text"
# ### Claim: "keeping the products makes recomputing nearly free"
#
# [Korthikanti and others (2022)](https://arxiv.org/abs/2205.05198) say that choosing what is recomputed (in their model it is attention), with sequence parallelism,
# reduces "execution time overhead from activation recomputation by over 90%". PyTorch's policy by operator was recorded on an H200, for a model of 24 layers. **Guess**: is a step that
# keeps the products faster than one that recomputes everything?

# %% id="products-guess" tags=["guess"]
guess = "does not hold"

# %% id="products-claim"
recording = lockstep.recorded("memory/h200.json")
ways = {one["recompute"]: one for one in recording.content["recomputing"]}
hows = ("all but products", "all", "none")
some, every, none = (ways[how]["seconds"] for how in hows)
lockstep.claim(
    "Keeping the products makes recomputing nearly free.",
    guess=guess,
    verdict="holds" if some < every else "does not hold",
    because=f"a step takes {ms(some)} with them kept, {ms(every)} with all "
    f"recomputed, {ms(none)} without recomputing",
    stamp=recording.stamp,
)

# %% [markdown] id="products-explained"
# The policy is Python that runs for each operation, twice: on this model the host cannot launch fast enough. Under `torch.compile` the
# choice is made once, when the graph is made.

# %% [markdown] id="host-text"
# ## Saved tensors on the host
#
# About 5 minutes; recorded.
#
# ### Claim: "what is saved on the host costs less than what is computed again"
#
# [Transformer Engine](https://nvidia.github.io/TransformerEngine/features/other_optimizations/cpu_offloading/cpu_offloading.html) says of its own offloading that activations are stored "instead of being recalculated, making it
# faster when CPU-GPU bandwidth is sufficient". PyTorch has a simpler one: `torch.autograd.graph.save_on_cpu(pin_memory=True)` sends all that a forward
# pass keeps to the host. **Guess**, for a model of 24 layers on an H200.

# %% id="host-guess" tags=["guess"]
guess = "does not hold"

# %% id="host-claim"
recording = lockstep.recorded("memory/h200.json")
ways = {one["recompute"]: one for one in recording.content["recomputing"]}
hows = ("saved on the host", "all", "none")
there, again, none = (ways[how]["seconds"] for how in hows)
lockstep.claim(
    "What is saved on the host costs less than what is computed again.",
    guess=guess,
    verdict="holds" if there < again else "does not hold",
    because=f"{ms(there)} a step; {ms(again)} recomputed, {ms(none)} plain",
    stamp=recording.stamp,
)

# %% [markdown] id="host-explained"
# These hooks copy on the current stream, one tensor after the other, so nothing is hidden; Transformer Engine's are asynchronous, and were not measured here.

# %% [markdown] id="fsdp-text"
# ## FSDP2 with its parameters on the host
#
# About 5 minutes; recorded.
#
# `fully_shard(module, offload_policy=CPUOffloadPolicy())` keeps parameters, gradients and the optimizer's state on the host, fetches each
# block's weights, and runs the optimizer on the CPU.
#
# ### Claim: "CPU offload makes room on the GPU"
#
# By [its description](https://github.com/pytorch/pytorch/blob/main/torch/distributed/fsdp/_fully_shard/_fsdp_api.py) the policy "offloads parameters, gradients, and optimizer states to CPU". It was recorded
# with one rank on an H200. **Guess** whether the peak is at least 10 % lower.

# %% id="fsdp-guess" tags=["guess"]
guess = "holds"

# %% id="fsdp-claim"
recording = lockstep.recorded("memory/h200.json")
here, there = recording.content["sharded"]
lockstep.claim(
    "CPU offload makes room on the GPU.",
    guess=guess,
    verdict="holds" if there["peak"] < 0.9 * here["peak"] else "does not hold",
    because=f"at most {gb(here['peak'])} without, {gb(there['peak'])} with it; "
    f"a step takes {ms(here['seconds'])} and {ms(there['seconds'])}",
    stamp=recording.stamp,
)

# %% [markdown] id="fetching-text"
# ## Weights fetched ahead: by hand, and by FSDP2
#
# About 10 minutes; recorded on an H200.
#
# Eight weights of 8,192 × 8,192 numbers of 2 bytes are on the host, pinned. A pass goes forward through all products and back again, as `offloaded` does: it fetches
# each weight when it is needed, or one ahead on a stream of its own. The last weight serves twice, so there are 15 fetches. FSDP2 does the same with
# `CPUOffloadPolicy()`, one block a product; for some rows its weights are frozen, as those by hand are. With 4,096 rows a product takes 0.6 ms. Copies come with 55 GB/s.
#
# **Predict:** how many ms does a pass of 4,096 rows take, fetched ahead?

# %% id="fetching-prediction" tags=["prediction"]
# your number, in ms
prediction = 15 * 8192**2 * 2 / 55e9 * 1e3  # a copy takes longer than a product

# %% id="fetching"
fetched = lockstep.recorded("memory/fetching-h200.json")
passes = fetched.content["ways"]
rows = []
for way, some in passes.items():
    times = (f"{one['seconds'] * 1e3:.1f}" for one in some)
    rows.append([way, *times, f"{some[0]['peak'] / GB:.2f}"])
columns = ["weights", *(f"{one['rows']:,} rows, ms" for one in some)]
columns.append("peak of the first, GB")
title = "Forward and back through eight products"
display(lockstep.table(title, columns, rows, stamp=fetched.stamp))
took = passes["ahead"][0]["seconds"] * 1e3
lockstep.compare(prediction, measured=took, unit="ms")

# %% [markdown] id="overlaps-text"
# ### Claim: "pinning memory allows for the copies to overlap with compute"
#
# So says the [description](https://github.com/pytorch/pytorch/blob/main/torch/distributed/fsdp/_fully_shard/_fsdp_api.py) of `CPUOffloadPolicy`, which pins if nothing is said. By hand they do overlap, from some rows on.
# **Guess**, for FSDP2 with frozen weights, one rank and 32,768 rows, told to prefetch: is more than half of the copies' time hidden?

# %% id="overlaps-guess" tags=["guess"]
guess = "holds"


# %% id="overlaps-claim"
def hidden(way):
    """Of the copies' time, with most rows."""
    seconds = {way: some[-1]["seconds"] for way, some in passes.items()}
    least, most = seconds["resident"], seconds["when needed"]
    return max(0, (most - seconds[way]) / (most - least))


by_hand, by_fsdp = hidden("ahead"), hidden("FSDP2, prefetching")
lockstep.claim(
    "Pinning memory allows for the copies to overlap with compute.",
    guess=guess,
    verdict="holds" if min(by_hand, by_fsdp) > 0.5 else "depends",
    because=f"of it {by_hand:.0%} is hidden by hand, {by_fsdp:.0%} by FSDP2",
    stamp=fetched.stamp,
)

# %% [markdown] id="overlaps-explained"
# Pinned memory is needed and not enough: somebody must also start the copy early, on another stream, and with memory to put it. Only a trace tells whether that happened.

# %% [markdown] id="pool-text"
# ## A pool of its own
#
# About 10 minutes; recorded on two H200s.
#
# `torch.cuda.MemPool()` has segments of its own, and what is allocated under `torch.cuda.use_mem_pool(pool)` comes from them. The recording makes 200 large tensors one after the other, of
# which four are there at a time, and after each a tensor of 3 MiB that stays. Then the large ones go, and `empty_cache()` is called. What stays keeps every segment in which it lies; in a pool it lies in the pool's
# segments of 20 MiB only.
#
# **Predict:** how many MiB stay reserved with the pool?

# %% id="pool-prediction" tags=["prediction"]
# your number, in MiB
prediction = -(-200 // 6) * 20  # six tensors of 3 MiB fit into a segment

# %% id="pool"
recording = lockstep.recorded("memory/pools-h200-x2.json")
rows = []
for one in recording.content["staying"]:
    where = "in a pool" if one["pool"] else "beside them"
    names = "allocated", "reserved", "reserved at most"
    rows.append([where, *(f"{one[name] / (1 << 20):.0f}" for name in names)])
columns = ["what stays", "allocated, MiB", "reserved, MiB", "at most, MiB"]
title = "After the large tensors have gone"
display(lockstep.table(title, columns, rows, stamp=recording.stamp))
lockstep.compare(prediction, measured=one["reserved"] / (1 << 20), unit="MiB")

# %% [markdown] id="registered-text"
# A pool can also have another allocator. With NCCL's (`backend.mem_allocator`) and `backend.register_mem_pool(pool)` NCCL knows the memory, and may read and write it without a copy into
# buffers of its own; with `symm=True` it knows it on all ranks as symmetric memory.
#
# ### Claim: "registered buffers accelerate collectives"
#
# NCCL's [manual](https://docs.nvidia.com/deeplearning/nccl/archives/nccl_2205/user-guide/docs/usage/bufferreg.html) says of registration that it "can accelerate collectives and greatly reduce the resource usage". **Guess**, for all-reduces of two
# H200s without multicast: is each at least 5 % faster?

# %% id="registered-guess" tags=["guess"]
guess = "depends"

# %% id="registered-claim"
recording = lockstep.recorded("memory/pools-h200-x2.json")
known, rows, ratios = recording.content["nccl"], [], []
for plain, *others in zip(*known.values(), strict=True):
    times = (f"{one['seconds'] * 1e6:.1f}" for one in (plain, *others))
    rows.append([f"{plain['bytes']:,}", *times])
    ratios += [plain["seconds"] / one["seconds"] for one in others]
columns = ["bytes", *(f"{how}, µs" for how in known)]
title = "All-reduces by NCCL, by what it knows of the memory"
stamp = recording.stamp
display(lockstep.table(title, columns, rows, stamp=stamp))
faster = sum(one > 1.05 for one in ratios)
lockstep.claim(
    "Registered buffers accelerate collectives.",
    guess=guess,
    verdict="holds" if faster == len(ratios) else "depends",
    because=f"{faster} of {len(ratios)} are faster; {min(ratios):.2f} to "
    f"{max(ratios):.2f} times as fast",
    stamp=stamp,
)

# %% [markdown] id="registered-explained"
# Registration alone gains nothing on these two. Symmetric memory makes small messages faster, and the largest slower. Where multicast is on, measure again.

# %% [markdown] id="symmetric-text"
# ## Memory that all GPUs see
#
# About 10 minutes; recorded on two H200s.
#
# Symmetric memory is allocated on all ranks at once, and each may read the others' over NVLink. A **one-shot** all-reduce is one kernel
# in which each rank reads all the others' numbers and adds them up: no ring, one latency, but each rank reads n − 1 times the message.
#
# ### Claim: "nothing is faster than NCCL for an all-reduce"
#
# A common guess: NCCL's primitives are "[performance optimized for NVIDIA GPUs](https://anaconda.org/rapidsai/nccl)". **Guess**, for messages from 256 bytes to 1 MiB, in a CUDA graph.

# %% id="symmetric-guess" tags=["guess"]
guess = "does not hold"

# %% id="symmetric-claim"
recording = lockstep.recorded("memory/symmetric-h200-x2.json")
sums, rows = recording.content["sums"], []
for one in sums:
    times = (f"{one[how] * 1e6:.1f}" for how in ("nccl", "one shot"))
    rows.append([f"{one['bytes']:,}", *times])
columns = ["bytes", "NCCL, µs", "one-shot, µs"]
title, stamp = "All-reduces of two H200s", recording.stamp
display(lockstep.table(title, columns, rows, stamp=stamp))
faster = [one for one in sums if one["one shot"] < one["nccl"] and one["right"]]
lockstep.claim(
    "Nothing is faster than NCCL for an all-reduce.",
    guess=guess,
    verdict="does not hold" if faster else "holds",
    because=f"one-shot is faster for {len(faster)} of {len(sums)} sizes",
    stamp=stamp,
)

# %% [markdown] id="peers-text"
# ### Claim: "a copy between two GPUs is as fast as NVLink"
#
# A common guess. An H200's data sheet gives 900 GB/s for both directions, so 450 for one. **Guess** for 1 GiB: at least 80 % of it?

# %% id="peers-guess" tags=["guess"]
guess = "holds"

# %% id="peers-claim"
recording = lockstep.recorded("memory/symmetric-h200-x2.json")
peers, rows = recording.content["peers"], []
for one in peers:
    rate = one["bytes"] / one["seconds"] / GB
    took = f"{one['seconds'] * 1e6:.1f}"
    rows.append([f"{one['bytes']:,}", took, f"{rate:.0f}"])
columns = ["bytes", "µs", "GB/s"]
title = "Copies from one H200 to another"
display(lockstep.table(title, columns, rows, stamp=recording.stamp))
lockstep.claim(
    "A copy between two GPUs is as fast as NVLink.",
    guess=guess,
    verdict="holds" if rate > 0.8 * 450 else "does not hold",
    because=f"{rate:.0f} GB/s for the largest, of 450 in one direction",
    stamp=recording.stamp,
)

# %% [markdown] id="recorded-text"
# ## The same on an H200
#
# About 5 minutes; recorded.
#
# PyTorch's own history of two steps was recorded on an H200 with the smallest of the ten models: 4 layers of width 512, a vocabulary of
# 8,192 and 4 × 512 tokens in bfloat16. At the peak there are activations: 16 widths for each token and block, and the logarithms of the
# probabilities, tokens × vocabulary.
#
# **Predict:** how many MB are they?

# %% id="recorded-prediction" tags=["prediction"]
# your number, in MB
prediction = (16 * 4 * 2048 * 512 + 2048 * 8192) * 2 / 1e6

# %% id="recorded"
recording = lockstep.recorded("memory/snapshot-h200.pickle.gz")
history = lockstep.Trace.memory(recording.path, stamp=recording.stamp)
display(history)
kinds = {kind: nbytes / 1e6 for kind, nbytes in history.by_kind().items()}
lockstep.compare(prediction, measured=kinds["activations"], unit="MB")

# %% [markdown] id="recorded-explained"
# The optimizer's part is exactly two numbers for each parameter. What is unknown are two workspaces of cuBLAS, of 32 MiB each: one for the
# forward pass, and one for the backward pass, which runs in a thread of its own. That is also why what the backward pass
# allocates has no Python line. Zoom into its slope, and look at the order in which activations go.
