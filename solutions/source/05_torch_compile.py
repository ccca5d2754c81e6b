# %% [markdown] id="title"
# # 05 · torch.compile modes
#
# **Two sittings, 60 and 65 minutes · needs: a CPU and a C++ compiler** (what modes do on a GPU is recorded)
#
# `torch.compile` turns a Python function into graphs, and graphs into kernels. It can make a model ten times as fast,
# or a little slower, and compiling can take longer than a minute: you will see a recording of each. Afterwards you can
#
# - say what Dynamo, AOTAutograd and Inductor each make of a function,
# - compute how many bytes fusion saves, and say where it stops,
# - say what each mode switches on, and when that pays,
# - find graph breaks and repair them, and end a storm of recompilations,
# - compile one block of a model instead of all of them, and know what that costs,
# - put a collective into a graph, with work beside it.
#
# Lab 00 comes first: it shows the cells, the strips under them, and the checks.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in the cells that communicate
BACKEND = "gloo"  # all is compiled for the CPU, also where there are GPUs

# %% id="load"
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the ranks of this notebook see no GPU
# %load_ext lockstep
import lockstep
from lockstep.course.compiled import compile_session, found, variables, view

compiler = compile_session()  # one rank that stays, with an empty cache

# %% id="progress" tags=["unpublished"]
lockstep.progress("05")

# %% [markdown] id="load-explained"
# The first compilation can take a minute on a slow machine. So the cells of `%%torchrun --world compiler` share one
# process. Its cache is a temporary folder that is removed when the notebook ends; only one precompiled header stays.
#
# **Without a C++ compiler** (`lockstep doctor` says whether you have one) such a cell says so, and the cell below it
# continues with a recording from another machine. Sections 4 to 7 need no compiler.

# %% [markdown] id="compiled-text"
# ## 1 · What is compiled
#
# | stage | gets | makes of it |
# | --- | --- | --- |
# | **Dynamo** | the bytecode of your function | a graph of the PyTorch calls in it |
# | **AOTAutograd** | that graph | the *joint graph*: forward and backward in elementary operations |
# | **Inductor** | its two halves | kernels: C++ for a CPU, Triton for a GPU |
#
# A matrix product calls a kernel of a library. Everything around it goes into as few kernels as Inductor can make. On a
# CPU a single kernel can hold elementwise operations, a mean over each row, what is computed from that mean, and sums
# over all rows or over all numbers. Below, `x` needs no gradient; `w` and `b` do.
#
# **Predict:** how many kernels does a CPU run in the forward and the backward pass together, those of the library
# included?

# %% id="look-prediction" tags=["prediction"]
prediction = 4  # the product, and all else; backward: all else, w's product

# %% id="look"
# %%torchrun --world compiler --may-fail --into job
import torch
from lockstep.course.compiled import look


def f(x, w, b):
    h = x @ w + b
    h = torch.relu(h)
    mean = h.mean(-1, keepdim=True)
    centred = h - mean
    gate = torch.sigmoid(h)
    y = centred * gate
    return y.sum()


torch.manual_seed(0)
x, w = torch.randn(64, 32), torch.randn(32, 48, requires_grad=True)
b = torch.randn(48, requires_grad=True)
look(f, x, w, b)

# %% id="look-measured"
from lockstep.course.compiled import Compiled

seen, look_stamp = found(job, "code")
seen = seen if isinstance(seen, Compiled) else Compiled.of(seen)
lockstep.compare(predicted=prediction, measured=len(seen.kernels))

# %% [markdown] id="view-text"
# Select a line, a node or a kernel below with the mouse or the arrow keys, and everything that belongs to it is
# marked. Look for three things: which kernels come from the line with `relu`; which nodes the backward pass computes
# *again*; and the code of a kernel, which you can open below the lists.

# %% id="view"
view(seen, stamp=look_stamp)

# %% [markdown] id="view-explained"
# The line with `relu` ends up in two kernels. The backward pass needs its result, and recomputing that from `mm` is
# cheaper than keeping it in memory: the *partitioner* cuts the joint graph where little has to be saved.
#
# `matmul` has become `aten.mm`: AOTAutograd expresses PyTorch's many operations in terms of fewer, simpler ones.
# Nodes such as `permute` and `alias` appear in no kernel: they only view the same memory differently.
#
# On a GPU the first two stages are the same, and Inductor writes Triton. The function that was recorded is longer: it
# also divides by a standard deviation and multiplies by `gain_F`. The blocks of a GPU's kernel do not wait for each
# other, so a sum over many rows takes two kernels: one computes partial sums, and the next one adds them. There are
# three such sums, one in the forward pass and two in the backward pass:

# %% id="gpu-code" tags=["plumbing"]
recording = lockstep.recorded("compile/h200.json")
view(Compiled.of(recording.content["code"]), stamp=recording.stamp)

# %% [markdown] id="fusion-text"
# ## 2 · Fusion counted
#
# Elementwise operations do almost no arithmetic: their time goes into reading and writing memory. In eager mode each
# operation reads its inputs and writes its result. In one kernel, intermediate results stay in registers.
#
# Take `relu(x * sigmoid(x) + 1)`, and count in tensors of the size of `x`:
#
# | operation | reads | writes |
# | --- | --- | --- |
# | `sigmoid(x)` | 1 | 1 |
# | `x * s` | 2 | 1 |
# | `p + 1` | 1 | 1 |
# | `relu(q)` | 1 | 1 |
#
# **Predict:** in eager mode this moves 9 tensors. How many does a single kernel move?
#
# The cell below compiles that function, `swish`, and three more. `x` is always a square matrix:
#
# ```python
# def swish(x):
#     return torch.relu(x * torch.sigmoid(x) + 1)
#
# def softmax(x):
#     e = torch.exp(x - x.amax(-1, keepdim=True))
#     return e / e.sum(-1, keepdim=True)
#
# def between(x):
#     return torch.sigmoid(torch.relu(x) @ x.T) * 2
#
# def views(x):
#     y = (x.T * 2).reshape(-1)
#     return y.view(x.shape[1], -1).T + x
# ```

# %% id="fusion-prediction" tags=["prediction"]
prediction = 2  # x is read once, the result written once

# %% id="fusion"
# %%torchrun --world compiler --may-fail --into fusion_job
import torch
from lockstep.course.compiled import Findings, look
from lockstep.course.compiled.models import FUSION

x = torch.randn(256, 256)
result = {}
for function in FUSION:
    looked = look(function, x)
    result[function.__name__] = {
        "kernels": [kernel.language for kernel in looked.kernels],
        "moved": looked.moved[0],
        "square_bytes": x.nbytes,
    }
Findings(result, kernels="kernels", moved="bytes moved")

# %% id="fusion-measured"
fused, stamp = found(fusion_job, "fusion")
moved, lines = {}, []
for name, one in fused.items():
    moved[name] = one["moved"] / one["square_bytes"]
    kernels = one["kernels"]
    library = kernels.count("library")
    lines.append([name, len(kernels), library, f"{moved[name]:.3g}"])
print(lockstep.compare(predicted=prediction, measured=moved["swish"]))
lockstep.table(
    "What Inductor made of four functions",
    ["function", "kernels", "of which the library's", "squares moved"],
    lines,
    stamp=stamp,
)

# %% [markdown] id="fusion-explained"
# - **Reductions** over rows fuse with what comes before and after them. (Each buffer of a kernel is counted once: a row
#   that is read three times stays in a cache. On a GPU, Inductor splits a reduction over very long rows into several
#   kernels.)
# - **Products** stop fusion. `between` has three kernels: `relu`, the library's product, and the rest. They move 2, 3
#   and 2 squares. What follows a product is its *epilogue*: a product that Inductor generates itself, from a template,
#   can absorb it. Only the two max-autotune modes try that.
# - **Views** between elementwise operations cost nothing.
#
# ### Exercise 1: bytes
#
# **Goal:** `traffic(operations, kept, size)` returns two ints: the bytes that the operations move when each runs by
# itself, and the bytes that a single kernel moves if it does all of them. `operations` is a list of pairs, such as
# `[(["x", "y"], "a"), (["a"], "b")]`: the names of the inputs, and the name of the result, which no other result has.
# `kept` lists the names of the results that are needed later, each once. Every tensor has `size` bytes. An operation
# that takes the same tensor twice, such as `x * x`, reads it once.


# %% id="traffic"
def traffic(operations, kept, size):
    # BEGIN SOLUTION
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    apart = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return apart * size, (len(read) + len(kept)) * size
    # END SOLUTION


# %% id="traffic-check"
lockstep.check("traffic", traffic)

# %% [markdown] id="modes-text"
# ## 3 · The modes
#
# `torch.compile(model, mode=…)` has four common modes. A mode is a short list of options, and PyTorch can print it:

# %% id="modes"
# %%torchrun -n 1 --no-init
import torch

names = (
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
)
for name in names:
    print(f"{name:<27}", *torch._inductor.list_mode_options(name))

# %% [markdown] id="modes-explained"
# - `triton.cudagraphs` records what the compiled code launches as a **CUDA graph**, which the host launches
#   with one call. It helps where the host is too slow to launch small kernels in time.
# - `max_autotune` also generates products from templates, in many tilings, and measures which kernel is fastest, these
#   or the library's.
# - `coordinate_descent_tuning` changes one block size at a time for as long as the kernel gets faster. This applies
#   to the kernels that Inductor generates; templates and library kernels stay as they are.
#
# You will time a forward pass without gradients of three models: **dense**, large MLP blocks that spend their time in
# products; **small**, narrow blocks for few tokens; **experts**, a mixture of experts in which each token uses two. The
# models that were recorded on a GPU are large, the live ones fit a laptop.
#
# The cell takes the modes in turns: a batch of steps in one, then a batch in the next. A computer's speed changes
# from one minute to the next, so numbers from different minutes cannot be compared. On a CPU there is no CUDA graph,
# so default and reduce-overhead call the same kernels: the difference between these two rows is noise, and shows how
# far you can trust the rest of the table. (max-autotune tries C++ templates there, for the products of the experts.)
#
# "compile s" is the time of the first call; the recording subtracts that of a later one. Live, it is shorter for the
# modes that come later: they find kernels in the cache. The recording has it with empty caches, and as "warm s" in a
# process that finds them filled; "MB held" is the memory that PyTorch has taken from the GPU.
#
# ### Claim: "torch.compile makes a model about 30 % faster"
#
# A common guess; "about 30 %" means here 1.2 to 1.4 times as fast. **Guess** whether it holds for the three models on
# an H200, each in four modes.

# %% id="gains-guess" tags=["guess"]
guess = "does not hold"

# %% id="gains" tags=["varies"]
# %%torchrun --world compiler --may-fail --into gains_job
from functools import partial

import torch
from lockstep.course.compiled import Findings, require
from lockstep.course.compiled.models import Sizes, by_turns, made, seconds

require()
sizes = Sizes(
    dense=(128, 128, 1),
    small=(4, 32, 2),
    experts=(64, 32, 4),
    dtype="float32",
)
took = {}
for name in ("dense", "small", "experts"):
    model, x = made(sizes, name)
    ways, first = {"eager": partial(model, x)}, {}
    with torch.no_grad():
        for mode in ("default", "reduce-overhead", "max-autotune"):
            ways[mode] = partial(torch.compile(model, mode=mode), x)
            first[mode] = {"compile_seconds": seconds(ways[mode])}
        for mode, one in by_turns(ways).items():
            took.setdefault(mode, {})[name] = one | first.get(mode, {})
Findings(took, seconds="a step", compile_seconds="first call")


# %% id="gains-table" tags=["plumbing", "varies"]
def rows(modes):
    """A row for each model and mode: how its steps compare with eager ones."""
    say = lambda value, form: form.format(value) if value else "–"
    for model, plain in modes["eager"].items():
        for mode in (name for name in modes if model in modes[name]):
            one = modes[mode][model]
            compiling = one.get("cold_seconds", one.get("compile_seconds"))
            saved = max(0, plain["seconds"] - one["seconds"])
            low, high = one["lower_quartile"], one["upper_quartile"]
            launches = one.get("launches", 0) + one.get("graph_launches", 0)
            yield [f"{model}, {mode}", f"{1e6 * one['seconds']:,.0f}"] + [
                f"{1e6 * low:,.0f}–{1e6 * high:,.0f}",
                f"{plain['seconds'] / one['seconds']:.2f}",
                say(compiling, "{:.1f}"),
                say(one.get("warm_seconds"), "{:.1f}"),
                say(compiling and saved and compiling / saved, "{:,.0f}"),
                say(one.get("kernels"), "{}"),
                say(launches, "{}"),
                say(one.get("reserved_bytes", 0) / 1e6, "{:,.0f}"),
            ]


COLUMNS = ["model, mode", "step µs", "quartiles", "times as fast", "compile s"]
COLUMNS += ["warm s", "pays after steps", "kernels", "launches", "MB held"]


def shown(title, modes, stamp):
    """Only the columns of which something is known: a CPU has no launches."""
    lines = list(rows(modes))
    columns = range(len(COLUMNS))
    known = [i for i in columns if any(line[i] != "–" for line in lines)]
    heads, *cells = ([line[i] for i in known] for line in [COLUMNS, *lines])
    return lockstep.table(title, heads, cells, stamp=stamp)


here, stamp = found(gains_job, "modes")
shown("Models and modes", here, stamp)

# %% [markdown] id="launches-text"
# Now the recording of an H200. Its small model, twelve blocks for 16 tokens, is bound by the host: the GPU waits for
# launches, and each of them takes the host about equally long. In eager mode a step launches 60 kernels. Compiled in
# the default mode it launches 49: the 24 products of the library, and 25 that Inductor has written.
#
# **Predict:** how many times as fast as eager is the small model in the default mode?

# %% id="launches-prediction" tags=["prediction"]
prediction = 60 / 49  # time goes with the number of launches

# %% id="launches-measured"
recording = lockstep.recorded("compile/h200.json")
modes = recording.content["modes"]


def gain(steps):
    """How many times as fast as eager steps those of the default mode are."""
    return steps["eager"]["seconds"] / steps["default"]["seconds"]


here = {mode: models["small"] for mode, models in modes.items()}
others = [round(gain(steps), 2) for steps in recording.content["processes"]]
print(lockstep.compare(predicted=prediction, measured=gain(here), unit="times"))
print("in three more processes:", *others)

# %% id="gains-recorded" tags=["plumbing"]
gains = {
    f"{model}, {mode}": modes["eager"][model]["seconds"] / one["seconds"]
    for mode, models in modes.items()
    for model, one in models.items()
    if mode != "eager"
}
shown("Models and modes on an H200", modes, recording.stamp)

# %% id="gains-claim"
near = [name for name, gain in gains.items() if 1.2 <= gain <= 1.4]
least, most = min(gains, key=gains.get), max(gains, key=gains.get)
count = f"{len(near)} of {len(gains)}"
lockstep.claim(
    "torch.compile makes a model about 30 % faster.",
    guess=guess,
    verdict={0: "does not hold", len(gains): "holds"}.get(len(near), "depends"),
    because=f"{count} are 1.2 to 1.4 times as fast as eager; "
    f"least {gains[least]:.2f} ({least}), most {gains[most]:.2f} ({most})",
    stamp=recording.stamp,
)

# %% [markdown] id="gains-explained"
# The launches explain the direction; the size of the gain varies from process to process, as the cost of a launch
# does. In a mode with a CUDA graph the host launches two things, one of which is the graph with all 49 kernels in it:
# the step is 8 times as fast.
#
# Ask before you compile: *what is the time spent on?* Products run in library kernels either way, unless templates win:
# only what surrounds them can become faster. A CUDA graph can remove the cost of launches. Memory traffic shrinks by
# what you computed in section 2. *How many steps will there be?* "pays after steps" is compile time divided by what a
# step saves. (Millions of steps, as for *dense*, mean that nothing was saved but noise.)

# %% [markdown] id="break-text"
# **Break.** The first sitting ends here. What comes next: functions that do *not* become one graph.

# %% [markdown] id="breaks-text"
# ## 4 · Graph breaks
#
# Dynamo runs your function with tensors that have shapes and no numbers. Where Python needs an actual number, Dynamo
# cannot go on: it ends the graph, lets Python run that step, and starts another graph after it. That is a **graph
# break**. The result is correct, but nothing fuses across the break.
#
# `torch._dynamo.explain(f)(x)` says how many breaks there are and why. **Predict:** how many graphs does the function
# below become, for the one `x` that it gets?

# %% id="break-prediction" tags=["prediction"]
prediction = 3  # up to the if; from there to int(); from there to the end

# %% id="break-explain"
# %%torchrun -n 1 --no-init --into break_job
import torch

torch._logging.set_logs(dynamo=40)  # errors only


def f(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    count = int((y > 0).sum())
    return y * count


said = torch._dynamo.explain(f)(torch.ones(3))
for reason in said.break_reasons:
    print(reason.user_stack[-1].line, "·", reason.reason.splitlines()[0])
said.graph_count

# %% id="break-measured"
lockstep.compare(predicted=prediction, measured=break_job[0])

# %% [markdown] id="fullgraph-text"
# Each line names a break: a line of the function, and Dynamo's reason. (`generic_jump` is a branch on a tensor's value.)
#
# `fullgraph=True` turns a break into an error. The next cell is **broken on purpose**. Look in the report for the line
# of the function, and for what it advises.

# %% id="fullgraph" tags=["varies"]
# %%torchrun -n 1 --no-init --may-fail
import torch


def f(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


torch.compile(f, fullgraph=True, backend="eager")(torch.ones(3))

# %% [markdown] id="repair-text"
# `backend="eager"` stops after Dynamo and runs the graphs as they are: a quick way to look for breaks.
# `TORCH_LOGS=graph_breaks` prints each break and where it is.
#
# | what breaks | repair |
# | --- | --- |
# | `if` on a tensor's value | `torch.where(c, a, b)`: both are computed, one is taken; `torch.cond(c, f, g, (x,))`: one runs |
# | `.item()`, `int(t)`, `float(t)` | keep the tensor; or set `torch._dynamo.config.capture_scalar_outputs = True` |
# | `print`, logging | leave it out of the compiled part |
# | a library that Dynamo cannot follow | `@torch.compiler.disable` on the function that calls it: one break, at a place you chose |

# %% id="where-demo"
# %%torchrun -n 1 --no-init
import torch

x = torch.tensor([1.0, -2.0, 3.0])
print(torch.where(x.sum() > 0, x * 2, -x))
print(torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,)))

# %% [markdown] id="adjust-text"
# ### Exercise 2: without a break
#
# **Goal:** `adjust(x)` returns `x / 2` if the sum of `x` is positive, and `x * 4` if not; to each number it adds how
# many entries of `x` are positive. `x` has floating-point numbers. Compiled, `adjust` is *one* graph for all values of
# a given shape, without changing any setting of PyTorch. This is the straightforward version, which breaks:
#
# ```python
# def adjust(x):
#     chosen = x / 2 if x.sum() > 0 else x * 4
#     return chosen + int((x > 0).sum())
# ```

# %% id="adjust"
import torch


def adjust(x):
    # BEGIN SOLUTION
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + (x > 0).sum()
    # END SOLUTION


# %% id="adjust-check"
lockstep.check("adjust", adjust)

# %% [markdown] id="recompile-text"
# ## 5 · Recompiles
#
# A graph is valid only under the assumptions made when it was captured: types, shapes, values of Python numbers.
# Dynamo stores these as **guards** and checks them before each call. If one fails, it compiles again. How it treats
# shapes is up to you:
#
# | what you ask for | what happens |
# | --- | --- |
# | nothing | the first shape is taken as fixed; a dimension whose size changes is *dynamic* from then on: any size will do |
# | `dynamic=False` | every shape is fixed |
# | `dynamic=True` | every dimension is dynamic from the start |
# | `mark_dynamic(x, 0)` | dimension 0 of `x` is dynamic from the start |
# | `mark_unbacked(x, 0)` | nothing is assumed about the size of dimension 0; a branch on it breaks the graph |
#
# Except with `mark_unbacked`, each of the sizes 0 and 1 gets a graph of its own.
#
# Batches of 2, 3, 4, 5, 6 and 7 rows come one after the other. **Predict:** how many graphs are made if you ask for
# nothing?

# %% id="recompile-prediction" tags=["prediction"]
prediction = 2  # one for 2 rows, and a dynamic one when 3 come

# %% id="recompile"
# %%torchrun -n 1 --no-init --into recompile_job
import torch
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.utils import counters


def graphs(sizes, mark=None, **how):
    torch.compiler.reset()
    counters.clear()
    f = torch.compile(lambda x: x * 2 + 1, backend="eager", **how)
    for x in (torch.ones(size, 4) for size in sizes):
        if mark:
            mark(x, 0)
        f(x)
    return counters["stats"]["unique_graphs"]


{
    "nothing": graphs(range(2, 8)),
    "dynamic=False": graphs(range(2, 8), dynamic=False),
    "dynamic=True": graphs(range(2, 8), dynamic=True),
    "mark_dynamic": graphs(range(2, 8), torch._dynamo.mark_dynamic),
    "mark_unbacked, and a batch of 1": graphs(range(1, 8), mark_unbacked),
}

# %% id="recompile-measured"
for way, count in recompile_job[0].items():
    print(f"{way:<32}{count}")
lockstep.compare(predicted=prediction, measured=recompile_job[0]["nothing"])

# %% [markdown] id="storm-explained"
# A dynamic graph serves all sizes, but may be slower than one that knows them. Recompilations call after call are a
# **storm**, which ends at a limit: after `torch._dynamo.config.recompile_limit` graphs of a function, 8 by default,
# anything new runs eagerly, and only a warning in the log says so. With `fullgraph=True` the limit is an error.
#
# The compiler writes what it does into named logs. `recompiles` lists every guard that failed. For a script, set
# `TORCH_LOGS=recompiles` in its environment (`TORCH_LOGS=help` lists all logs); in a process that has already
# imported torch, call `set_logs`. Below, the shape is the same in each call: look for what differs.

# %% id="logs"
# %%torchrun -n 1 --no-init
import logging

import torch

torch._logging.set_logs(recompiles=True)
for handler in logging.getLogger("torch._dynamo").handlers:  # the message alone
    handler.setFormatter(logging.Formatter("%(message)s"))


class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * min(self.calls, 8) / 8


warmup = torch.compile(Warmup(), backend="eager")
for _ in range(2):
    warmup(torch.ones(3))

# %% [markdown] id="warmup-text"
# The guard was `self.calls == 0`: an integer attribute of a module is assumed to be fixed. This one changes at each
# call, so there is one graph for every call, up to the limit.
#
# ### Exercise 3: end the storm
#
# **Goal:** `Warmup()` makes a module like the one above: its call number `n`, counted from 1, returns `x * min(n, 8)
# / 8`. Compiled, it becomes at least one graph and at most four, however often it is called, without changing any
# setting of PyTorch. The number of rows of `x` changes from call to call, too. Each module counts its own calls.

# %% id="Warmup"
import torch


class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # BEGIN SOLUTION
        self.register_buffer("calls", torch.zeros(()))
        # END SOLUTION

    def forward(self, x):
        # BEGIN SOLUTION
        self.calls += 1
        # self.calls is an input of the graph: no guard asks for its number
        return x * self.calls.clamp(max=8) / 8
        # END SOLUTION


# %% id="Warmup-check"
lockstep.check("Warmup", Warmup)

# %% [markdown] id="blocks-text"
# ## 6 · Compile time
#
# A large model repeats the same block. Compiled as one graph, every block is traced and lowered again. (Its kernels
# have the same code as those of the first block, and identical code is compiled only once.) **Regional compilation**
# calls `block.compile()` for each block instead. Only the first block is then compiled: Dynamo reuses its code for the
# others, since weights are inputs of the graph and not part of it ([PyTorch's
# recipe](https://docs.pytorch.org/tutorials/recipes/regional_compilation.html)). The price: nothing fuses from one
# block into the next, and guards are checked for each block.
#
# ### Exercise 4: block by block
#
# **Goal:** `by_block(model, backend)` gets a `torch.nn.Sequential` of three or more blocks, which differ only in their
# weights. It returns something that is called like `model` and gives the same, with the same gradients. After the first
# call, `backend` has compiled *one* graph, that of one whole block, and every block has run it.

# %% id="by_block"
import torch


def by_block(model, backend):
    # BEGIN SOLUTION
    for block in model:
        block.compile(backend=backend)
    return model  # its first block is compiled when it is called
    # END SOLUTION


# %% id="by_block-check"
lockstep.check("by_block", by_block)

# %% [markdown] id="ranks-text"
# ## 7 · Many ranks
#
# Each rank compiles for itself; as always, the collectives of all ranks must match. Dynamo knows the collectives: in the
# graph, `dist.all_reduce(x)` becomes functions whose results are new tensors.
#
# **Predict:** how many graphs does each rank make of the function below?

# %% id="ranks-prediction" tags=["prediction"]
prediction = 1  # a collective is no graph break

# %% id="ranks"
# %%torchrun -n {NPROC} --backend {BACKEND} --into ranks_job
import torch
import torch.distributed as dist

names = []


def backend(module, inputs):
    nodes = [n for n in module.graph.nodes if n.op.startswith("call")]
    names.append([getattr(n.target, "__name__", n.target) for n in nodes])
    return module


@torch.compile(backend=backend)
def f(x, a):
    y = x * 2
    dist.all_reduce(y)
    return y + a @ a


f(torch.ones(2, 2), torch.ones(2, 2))
names

# %% id="ranks-measured"
print(*ranks_job[0][0])
same = all(names == ranks_job[0] for names in ranks_job.results)
print("the same on all ranks:", same)
lockstep.compare(predicted=prediction, measured=len(ranks_job[0]))

# %% [markdown] id="beside-text"
# The collective has become three nodes: one that starts it (`all_reduce`), one that waits (`wait_tensor`), and one
# that copies the result into `y`. Dynamo puts the wait directly after the start, so nothing happens in between.
# Inductor can move it if you ask ("The compiler moves collectives", in the further notebook). You can also write it
# yourself, with two operations:
#
# ```python
# ops = torch.ops._c10d_functional
# y = ops.all_reduce(x, "sum", group)  # group: the name of a process group
# total = ops.wait_tensor(y)
# ```
#
# ### Exercise 5: a product meanwhile
#
# **Goal:** `beside(x, a, b, group)` returns the sum of `x` over the ranks of a process group, whose name is `group`,
# plus this rank's own `a @ b`. Compiled, it is one graph, in which the sum starts, then the product is computed, and
# then comes the only wait. `x` is not changed.

# %% id="beside"
import torch


def beside(x, a, b, group):
    # BEGIN SOLUTION
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = a @ b
    return ops.wait_tensor(started) + product
    # END SOLUTION


# %% id="beside-check"
lockstep.check("beside", beside)

# %% [markdown] id="recap"
# **What changes under NCCL:** the graph is the same. The wait makes the GPU's stream wait and not the host, and a
# CUDA graph captures the collective along with the kernels.

# %% [markdown] id="recap-text"
# ## Recap
#
# - Dynamo captures, AOTAutograd adds the backward pass, Inductor writes kernels.
# - A fused kernel reads what it does not compute itself, and writes what is needed later. Products stop fusion.
# - A mode is a list of options. What it gains depends on where the time goes.
# - A graph break happens where Python needs a number. `fullgraph=True` finds it.
# - A guard that fails triggers another compilation, up to a limit. Equal blocks can share one graph.
# - A collective in a graph is a start and a wait, and what happens between them is up to you.
#
# **Going further:** the further notebook has more; each of its sections stands on its own.

# %% [markdown] id="further"
# # 05 · torch.compile modes: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="always-text"
# ## More claims about modes and gains
#
# About 10 minutes; one rank, and a recording of an H200. Section 3 of the lab asks whether three models become about
# 30 % faster. Here are more statements about modes, and about the same rows.
#
# ### Claim: "the default mode uses CUDA graphs"
#
# A common guess. **Guess** the verdict; the cell asks PyTorch for the options of each mode.

# %% id="modes-guess" tags=["guess"]
guess = "does not hold"

# %% id="modes-ask"
# %%torchrun -n 1 --no-init --into modes_job
import torch

names = (
    "default",
    "reduce-overhead",
    "max-autotune-no-cudagraphs",
    "max-autotune",
)
options = torch._inductor.list_mode_options
[name for name in names if options(name).get("triton.cudagraphs")]

# %% id="modes-claim"
lockstep.claim(
    "The default mode uses CUDA graphs.",
    guess=guess,
    verdict="holds" if "default" in modes_job[0] else "does not hold",
    because="modes with triton.cudagraphs: " + ", ".join(modes_job[0]),
    stamp=lockstep.live(modes_job),
)

# %% [markdown] id="always-claim-text"
# ### Claim: "torch.compile always helps"
#
# **Guess** whether each of the recorded rows (dense, small and experts, each in four modes) is faster than eager: three
# quarters of its batches took less time than three quarters of the eager ones.

# %% id="always-guess" tags=["guess"]
guess = "depends"

# %% id="always-recorded" tags=["plumbing"]
recording = lockstep.recorded("compile/h200.json")
modes = recording.content["modes"]
gains = {
    f"{model}, {mode}": modes["eager"][model]["seconds"] / one["seconds"]
    for mode, models in modes.items()
    for model, one in models.items()
    if mode != "eager"
}

# %% id="always-claim"
eager = modes["eager"]
faster = {
    f"{model}, {mode}": one["upper_quartile"] < eager[model]["lower_quartile"]
    for mode, models in modes.items()
    for model, one in models.items()
    if mode != "eager"
}
not_faster = [f"{row} {gains[row]:.2f}" for row in faster if not faster[row]]
verdicts = {0: "holds", len(faster): "does not hold"}
lockstep.claim(
    "torch.compile always helps.",
    guess=guess,
    verdict=verdicts.get(len(not_faster), "depends"),
    because="not faster than eager code beyond the quartiles: "
    + ("; ".join(not_faster) or "none")
    + "; compile time is not counted",
    stamp=recording.stamp,
)

# %% [markdown] id="always-explained"
# *experts, default* is about six times as fast, though the 29 launches of an eager step account for only a part of
# its 1.7 ms: some eager kernels must be slow. Which ones, a table like this cannot tell; a trace can (lab 07).

# %% [markdown] id="dense-text"
# ### Claim: "a model whose time is that of large products gains less than 10 %"
#
# A common guess. **Guess** the verdict; the cell looks at the dense model, in all modes.

# %% id="dense-guess" tags=["guess"]
guess = "holds"

# %% id="dense-claim"
dense = {name: gain for name, gain in gains.items() if name.startswith("dense")}
small = [gain for gain in dense.values() if gain < 1.1]
verdicts = {0: "does not hold", len(dense): "holds"}
lockstep.claim(
    "A model whose time is that of large products gains less than 10 %.",
    guess=guess,
    verdict=verdicts.get(len(small), "depends"),
    because="times as fast as eager: "
    + "; ".join(f"{name} {gain:.2f}" for name, gain in dense.items()),
    stamp=recording.stamp,
)

# %% [markdown] id="limit-text"
# ## The limit
#
# About 5 minutes; one rank, no compiler. In section 5 a storm of recompilations ended at a limit.
#
# ### Claim: "when the limit is reached, PyTorch stops with an error"
#
# `torch._dynamo.config.recompile_limit` is 8 for each function. **Guess**: with `dynamic=False` and no other setting,
# batches of 2 to 13 rows arrive: twelve sizes.

# %% id="limit-guess" tags=["guess"]
guess = "does not hold"

# %% id="limit"
# %%torchrun -n 1 --no-init --into limit_job
import torch
from torch._dynamo.utils import counters

torch._logging.set_logs(dynamo=40)  # errors only: here is no warning
f = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
right = [bool((f(torch.ones(size, 4)) == 3).all()) for size in range(2, 14)]
graphs = counters["stats"]["unique_graphs"]
{"right": sum(right), "of": len(right), "graphs": graphs}

# %% id="limit-claim"
right, of = limit_job[0]["right"], limit_job[0]["of"]
lockstep.claim(
    "When the limit is reached, PyTorch stops with an error.",
    guess=guess,
    verdict="holds" if right < of else "does not hold",
    because=f"{right} of {of} calls came back with the right numbers; "
    f"{limit_job[0]['graphs']} graphs were made",
    stamp=lockstep.live(limit_job),
)

# %% [markdown] id="limit-explained"
# For a server that is worse than an error: a warning in a log (left out above), and then two kinds of batches. The
# eight sizes that were compiled first stay compiled; every other size runs eagerly, without the gain. Two settings
# raise errors instead: `torch._dynamo.config.error_on_recompile = True` at the first recompilation, and
# `fullgraph=True` at the limit.

# %% [markdown] id="grow-text"
# ## How compile time grows
#
# About 15 minutes, of which the compiler may take some; one rank and a compiler. Equal blocks are compiled as one
# graph and block by block: up to six here, up to 48 on an H200. Part of a graph's cost is paid once, and part for
# each block that is traced and lowered. Two numbers give you both parts, and the third number.
#
# One thing is easy to get wrong: `model.compile()` of a `Sequential` compiles *each block by itself*, since Dynamo does
# not capture the frames of PyTorch's own modules. `torch.compile(model)` gives it a frame to start from. The table also
# says how many calls a graph has (a block has five).

# %% id="grow" tags=["varies"]
# %%torchrun --world compiler --may-fail --into grow_job
from lockstep.course.compiled import Findings, require
from lockstep.course.compiled.models import blocks

require()
Findings(
    blocks((1, 6)),
    blocks="blocks",
    flat_seconds="as one graph",
    regional_seconds="block by block",
)


# %% id="grow-table" tags=["varies"]
def rows(took):
    for one in took:
        seconds = [one[f"{way}_seconds"] for way in ("flat", "regional")]
        calls = [one[f"{way}_calls"] for way in ("flat", "regional")]
        yield [one["blocks"], *(f"{taken:.2f}" for taken in seconds), *calls]


COLUMNS = ["blocks", "as one graph, s", "block by block, s"]
COLUMNS += ["calls in the one graph", "in a block's"]
took, stamp = found(grow_job, "blocks")
title = "Compiling equal blocks"
lockstep.table(title, COLUMNS, list(rows(took)), stamp=stamp)

# %% [markdown] id="grow-predict-text"
# On the H200 one block took 1.04 s and six took 1.79 s, as one graph. **Predict:** how many seconds did 48 take?

# %% id="grow-prediction" tags=["prediction"]
each = (1.79 - 1.04) / 5
prediction = 1.04 + 47 * each

# %% id="grow-measured"
recording = lockstep.recorded("compile/h200.json")
recorded_took = recording.content["blocks"]
flat = {one["blocks"]: one["flat_seconds"] for one in recorded_took}
regional = {one["blocks"]: one["regional_seconds"] for one in recorded_took}
lockstep.compare(predicted=prediction, measured=flat[48], unit="s")

# %% id="grow-recorded" tags=["plumbing"]
title = "The same on an H200"
lockstep.table(title, COLUMNS, list(rows(recorded_took)), stamp=recording.stamp)

# %% [markdown] id="grow-claim-text"
# ### Claim: "compile time grows in proportion to the number of layers"
#
# **Guess**, of the same rows: in proportion, 48 blocks would take 48 times as long as one.

# %% id="grow-guess" tags=["guess"]
guess = "does not hold"

# %% id="grow-claim"
most = max(flat)
times = flat[most] / flat[1]
by_block = regional[most] / regional[1]
lockstep.claim(
    "Compile time grows in proportion to the number of layers.",
    guess=guess,
    verdict="holds" if times > most / 2 else "does not hold",
    because=f"as one graph, {most} blocks took {times:.1f} times as long as "
    f"one; block by block {by_block:.1f} times",
    stamp=recording.stamp,
)

# %% [markdown] id="regional-claim-text"
# ### Claim: "regional compilation shortens the first compilation"
#
# [PyTorch's recipe](https://docs.pytorch.org/tutorials/recipes/regional_compilation.html) says so. **Guess:** for all
# numbers of blocks from six on?

# %% id="regional-guess" tags=["guess"]
guess = "holds"

# %% id="regional-claim"
saved = {n: flat[n] - regional[n] for n in flat if n > 1}
shorter = [n for n in saved if saved[n] > 0.1 * flat[n]]
verdicts = {0: "does not hold", len(saved): "holds"}
lockstep.claim(
    "Regional compilation shortens the first compilation.",
    guess=guess,
    verdict=verdicts.get(len(shorter), "depends"),
    because="; ".join(f"{n} blocks: {saved[n]:.1f} s less" for n in saved),
    stamp=recording.stamp,
)

# %% [markdown] id="grow-explained"
# Compile time grows with the layers, but not in proportion to them: some costs are paid once for each graph, and
# kernels with identical code are written and compiled once. Tracing and lowering are paid for every block. Block by
# block, all of it is paid for one block only: that saves less than a second with six small blocks, and more than nine
# of ten seconds with 48. Time it on your own model, with as many blocks as it has.

# %% [markdown] id="alone-text"
# ## One rank compiles alone
#
# About 15 minutes; needs two ranks. Each rank checks its guards by itself. You will see one rank compile while the
# other waits for it in a collective, and what it looks like when the two graphs do not agree.
#
# Rank 0 gets a new shape in its second call, rank 1 does not. The backend takes half a second for each
# graph, as a real one might take a minute. **Predict:** how many seconds does rank 1 wait in its second
# `all_reduce`?

# %% id="alone-prediction" tags=["prediction"]
prediction = 0.5

# %% id="alone" tags=["varies"]
# %%torchrun -n 2 --backend gloo --into alone_job
import time

import torch
import torch.distributed as dist


def slow_backend(module, inputs):
    time.sleep(0.5)
    return module


@torch.compile(backend=slow_backend, dynamic=False)
def step(x):
    return x.sum() * 2


for size in (4, 5 if dist.get_rank() == 0 else 4):
    total = step(torch.ones(size))
    begin = time.perf_counter()
    dist.all_reduce(total)
    waited = time.perf_counter() - begin
waited

# %% id="alone-measured" tags=["varies"]
lockstep.compare(predicted=prediction, measured=alone_job[1], unit="s")

# %% [markdown] id="disagree-text"
# A minute of compiling is a minute of waiting for all others. The next cell is **broken on purpose**: rank 0 is not
# done in time. `--timeout 4` makes the launcher end everything four seconds after the ranks have started. Look in the
# report for where each rank is.

# %% id="late"
# %%torchrun -n 2 --backend gloo --timeout 4 --may-fail
import time

import torch
import torch.distributed as dist

graphs = []


def slow_backend(module, inputs):
    graphs.append(module)
    if len(graphs) > 1:
        time.sleep(600)
    return module


step = torch.compile(lambda x: x.sum() * 2, backend=slow_backend, dynamic=False)
step(torch.ones(4))
dist.all_reduce(step(torch.ones(5 if dist.get_rank() == 0 else 4)))

# %% [markdown] id="late-explained"
# Without the launcher's report, a time-out shows less: where the *group's* time-out ends the waiting (`timeout=` of
# `init_process_group`), the error is raised in the `all_reduce` of rank 1, where nothing is wrong. In a job of
# many ranks, look first for those that have not come to the collective, and ask what they do.
#
# It is worse if the graphs have different collectives. The next cell is **broken on purpose**: a Python number that
# differs between ranks decides what the graph contains. Look in the report for where each rank is.

# %% id="disagree"
# %%torchrun -n 2 --backend gloo --may-fail
import torch
import torch.distributed as dist


@torch.compile(backend="eager")
def step(x, seen):
    if seen > 100:  # decided while the graph is made
        dist.all_reduce(x)
    return x * 2


step(torch.ones(3), 100 + dist.get_rank())
dist.barrier()

# %% [markdown] id="disagree-explained"
# The `if` tests a Python number, so there is no graph break and no warning: one graph has the collective and the
# other does not. Whatever ranks base such decisions on must be the same on all of them.

# %% [markdown] id="cache-text"
# ## A second process that starts warm
#
# About 10 minutes; one rank and a compiler. Graphs, generated code and tuning results are kept in a folder
# (`TORCHINDUCTOR_CACHE_DIR`). A second process that finds it only has to trace and look things up. Where processes
# share no folder, `torch.compiler.save_cache_artifacts()` packs the cache's contents into bytes, and
# `load_cache_artifacts(…)` reads them.
#
# ### Claim: "compiled once, a later process need not compile again"
#
# **Guess**. Three processes compile the same model: the first with an empty folder, the second with another empty
# folder and the bytes of the first, the third with the first one's folder. All three run the C++ compiler
# through a script that counts its runs.

# %% id="cache-guess" tags=["guess"]
guess = "depends"


# %% id="cache"
def first_call(artifacts, folder):
    """What the first call of a compiled model takes, and all artifacts."""
    import time

    import torch
    from lockstep.course.compiled import compiler_runs, require
    from lockstep.course.compiled.models import stack, warm_up
    from torch._dynamo.utils import counters

    require()
    warm_up()
    if artifacts:
        torch.compiler.load_cache_artifacts(artifacts)
    torch.manual_seed(0)
    model, x = torch.compile(stack(1, 40, 2)), torch.ones(8, 40)
    counters.clear()
    runs, began = compiler_runs(folder), time.perf_counter()
    with torch.no_grad():
        model(x)
    took = {"seconds": time.perf_counter() - began}
    took["runs"] = compiler_runs(folder) - runs
    took["hits"] = counters["inductor"]["fxgraph_cache_hit"]
    took["hits"] += counters["aot_autograd"]["autograd_cache_hit"]
    artifacts, _ = torch.compiler.save_cache_artifacts()
    return took, artifacts


# %% id="cache-run" tags=["varies"]
import tempfile
from pathlib import Path

from lockstep.course.compiled import counted


def process(folder, artifacts=None):
    """A new process that has its caches in this folder."""
    return lockstep.torchrun(
        first_call,
        artifacts,
        folder.parent,
        nproc_per_node=1,
        init=False,
        show=False,
        env=variables(folder) | counted(folder.parent),
        may_fail=True,
    )


ways = {}
with tempfile.TemporaryDirectory(prefix="lockstep-compile-") as parent:
    first, other = Path(parent, "first"), Path(parent, "other")
    cache_job = process(first)
    if cache_job.ok:
        ways["an empty folder"], artifacts = cache_job[0]
        # what the first process has compiled is in artifacts, and in first
        ways["bytes of the first"], _ = process(other, artifacts)[0]
        ways["the first one's folder"], _ = process(first)[0]
cache_rows = []
for way, one in ways.items():
    cache_rows.append([way, f"{one['seconds']:.2f}", one["runs"], one["hits"]])
columns = ["it begins with", "seconds", "compiler runs", "found in a cache"]
title = "The first call in three processes"
lockstep.table(title, columns, cache_rows, stamp=lockstep.live(cache_job))

# %% id="cache-claim"
runs, said = [one["runs"] for one in ways.values()], "nothing was compiled here"
if ways:
    said = f"runs of the C++ compiler: {runs[0]} in the first process; "
    said += f"{runs[1]} with its bytes, {runs[2]} with its folder"
verdicts = {0: "holds", 1: "depends", 2: "does not hold"}
lockstep.claim(
    "Compiled once, a later process need not compile again.",
    guess=guess,
    verdict=verdicts[sum(count > 0 for count in runs[1:])],
    because=said,
    stamp=lockstep.live(cache_job),
)

# %% [markdown] id="cache-explained"
# Both later processes had cache hits, but that alone says little: the bytes contain the graphs and the generated C++,
# but not what the C++ compiler made of it, and the compiler is what takes the time. The folder contains that as well.
# (On a GPU the bytes contain what Triton has compiled, too: [PyTorch's
# recipe](https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_tutorial.html).) Tracing happens in every
# process. To avoid tracing, and Python with it, `torch.export` and **AOTInductor** build a library that a C++ program
# can load; its graph is fixed.

# %% [markdown] id="overlap-text"
# ## The compiler moves collectives
#
# About 15 minutes; two ranks, no compiler. In exercise 5 you put a product between the start of a sum and its wait.
# Inductor's scheduler can do the same, by two passes: `raise_comms` (starts go up) and `sink_waits` (waits go down).
# The list of passes is `torch._inductor.config.reorder_for_compute_comm_overlap_passes`.
#
# ### Claim: "Inductor leaves collectives in the order in which they stand"
#
# A common guess. **Guess** the verdict. The function below has two gathers, each with its wait directly behind it, and
# then a product that needs neither. Each printed line is one version of the code that Inductor generates.

# %% id="overlap-guess" tags=["guess"]
guess = "does not hold"

# %% id="overlap-world"
pair = lockstep.World(2, backend="gloo")  # one cell compiles, the next one runs

# %% id="overlap"
# %%torchrun --world pair --into overlap_job
import re

import torch
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

ops, group = torch.ops._c10d_functional, dist.group.WORLD.group_name
given = torch.ones(1 << 20), torch.ones(1 << 20), torch.ones(1024, 1024)


def step(x, y, a):
    x = ops.wait_tensor(ops.all_gather_into_tensor(x, 2, group))
    y = ops.wait_tensor(ops.all_gather_into_tensor(y, 2, group))
    return x, y, a @ a


def order(f, passes):
    name = "reorder_for_compute_comm_overlap"
    with config.patch({name: True, f"{name}_passes": passes}):
        _, (code,) = run_and_get_code(f, *given)
    call = r"(all_gather|wait_tensor|mm)(?:_into_tensor)?(?:\.default)?\("
    return re.findall(call, code)


plain, moved = torch.compile(step), torch.compile(lambda x, y, a: step(x, y, a))
two = ["raise_comms", "sink_waits"]
orders = {"no pass": order(plain, []), "two passes": order(moved, two)}
plain(*given)  # the second order() has made PyTorch forget it: compile it again
orders

# %% id="overlap-claim"
written = ["all_gather", "wait_tensor", "all_gather", "wait_tensor", "mm"]
places = []
for passes, calls in overlap_job[0].items():
    print(f"{passes:<12}", *calls)
    places.append(f"{calls.index('mm') + 1} ({passes})")
left = all(calls == written for calls in overlap_job[0].values())
lockstep.claim(
    "Inductor leaves collectives in the order in which they stand.",
    guess=guess,
    verdict="holds" if left else "does not hold",
    because="the product comes as number " + ", ".join(places),
    stamp=lockstep.live(overlap_job),
)

# %% [markdown] id="overlap-trace-text"
# Even with no pass, both gathers start before the first wait; the two passes put the product in between. Now both
# versions run, one after the other, and are traced. In the second, the product lies beside the gathers. (On
# a CPU both compete for the same cores; what the overlap is worth on a GPU depends on the links and on who gets the
# SMs.) There is one more setting, `bucket_all_gathers_fx = "all"`, which makes *one* gather of both.

# %% id="overlap-trace" tags=["varies"]
# %%torchrun --world pair --trace --into job
for name, f in {"no pass": plain, "two passes": moved}.items():
    dist.barrier()
    with torch.profiler.record_function(name):
        f(*given)

# %% id="overlap-close"
pair.close()  # ends its two ranks: each holds a compiler in memory

# %% [markdown] id="ddp-text"
# ## DDP's graphs
#
# About 10 minutes; two ranks. DDP sends gradients in buckets while the backward pass goes on. In one compiled
# backward graph nothing could be sent before its end. So Dynamo cuts the graph into parts of about a bucket.
#
# Four linear layers of 512 × 512 without bias have 1 MB of gradients each. Gradients come from the last layer to
# the first. Dynamo cuts after the first 1 MB, so that sending begins early, and then after every `bucket_cap_mb`.
# **Predict:** how many graphs are there with `bucket_cap_mb=2`?

# %% id="ddp-prediction" tags=["prediction"]
prediction = 3  # the last layer; two more; the first one

# %% id="ddp"
# %%torchrun -n 2 --backend gloo --into ddp_job
import torch
from torch.nn.parallel import DistributedDataParallel

torch._logging.set_logs(dynamo=40)  # errors only


class Net(torch.nn.Sequential):
    def forward(self, x):  # its own frame: PyTorch's are not captured alone
        return super().forward(x)


def graphs(bucket_cap_mb):
    torch.compiler.reset()
    sizes = []
    count = lambda graph: sum(n.op.startswith("call") for n in graph.nodes)
    backend = lambda module, inputs: sizes.append(count(module.graph)) or module
    layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(4)]
    model = DistributedDataParallel(Net(*layers), bucket_cap_mb=bucket_cap_mb)
    torch.compile(model, backend=backend)(torch.ones(2, 512)).sum().backward()
    return sizes


{cap: graphs(cap) for cap in (1, 2, 25)}

# %% id="ddp-measured"
for cap, sizes in ddp_job[0].items():
    print(f"{cap:>5} MB: {len(sizes)} graphs, with {sizes} calls")
lockstep.compare(predicted=prediction, measured=len(ddp_job[0][2]))

# %% [markdown] id="ddp-explained"
# These are graph breaks that you want: after each part's backward pass its gradients can travel, as soon as their
# bucket is full. The two are not always the same: DDP's own first bucket has 1 MB only if you do not set
# `bucket_cap_mb`, and as much as that if you do. `torch._dynamo.config.optimize_ddp` turns the cuts on and off.

# %% [markdown] id="whole-text"
# ## An operator kept whole
#
# About 5 minutes; one rank, no compiler. Some code must not be taken apart: a kernel of your own, or a library that
# Dynamo cannot follow. `torch.library.custom_op` turns it into an operator, a single node of the graph. There are no
# numbers during tracing, so it needs a **fake**: a function that gives only the shape and type of the result.
#
# The function below sorts with Python's `sorted`. **Predict:** how many graphs are there with the operator?

# %% id="whole-prediction" tags=["prediction"]
prediction = 1

# %% id="whole"
# %%torchrun -n 1 --no-init --into whole_job
import torch
from torch._dynamo.utils import counters


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sorted(x.tolist()))


name = "lab05::by_operator"
by_operator = torch.library.custom_op(name, by_hand, mutates_args=())
by_operator.register_fake(lambda x: torch.empty_like(x))


def graphs(inner):
    torch.compiler.reset()
    counters.clear()
    f = torch.compile(lambda x: inner(x * 2) + 1, backend="eager")
    assert f(torch.tensor([3.0, 1.0])).tolist() == [3.0, 7.0]
    return counters["stats"]["unique_graphs"]


graphs(torch.compiler.disable(by_hand)), graphs(by_operator)

# %% id="whole-measured"
print("with a function that is left out:", whole_job[0][0])
lockstep.compare(predicted=prediction, measured=whole_job[0][1])

# %% [markdown] id="flex-text"
# ## The mask as a function
#
# About 25 minutes; one rank, no compiler. `scaled_dot_product_attention` chooses among kernels that were written
# beforehand; a mask that they do not know is a tensor of length × length. FlexAttention takes the mask as a
# *function*, compiles it into the kernel, and skips **blocks** (128 × 128 by default) in which every pair is masked
# out. So the savings of a mask are counted in blocks, not in pairs.
#
# ### Exercise: blocks
#
# **Goal:** `blocks_needed(mask, length, block)` returns the number of blocks of `block` × `block` pairs in which at
# least one pair counts, that is, `mask(q, k)` is true. `length` is a multiple of `block`; `q` and `k` go from 0 to
# `length` - 1.


# %% id="blocks_needed"
def blocks_needed(mask, length, block):
    # BEGIN SOLUTION
    everywhere = range(length)
    pairs = ((q, k) for q in everywhere for k in everywhere if mask(q, k))
    return len({(q // block, k // block) for q, k in pairs})
    # END SOLUTION


# %% id="blocks_needed-check"
lockstep.check("blocks_needed", blocks_needed)

# %% [markdown] id="flex-run-text"
# PyTorch builds such a table itself: `create_block_mask`. Each of 1024 tokens sees itself and the 128 before it, in
# blocks of 128. **Predict:** what percentage of the blocks is needed?

# %% id="flex-prediction" tags=["prediction"]
prediction = 100 * 15 / 64  # 8 on the diagonal and 7 below it, of 8 × 8

# %% id="flex-run"
# %%torchrun -n 1 --no-init --into flex_job
import torch
from torch.nn.attention.flex_attention import create_block_mask


def window(batch, head, q, k):
    return (k <= q) & (q - k <= 128)


how = {"device": "cpu", "BLOCK_SIZE": 128}
made = create_block_mask(window, None, None, 1024, 1024, **how)
100 - made.sparsity()

# %% id="flex-measured"
needed = lockstep.carry_on("blocks_needed", blocks_needed)
count = needed(lambda q, k: k <= q and q - k <= 128, 1024, 128)
print("blocks:", count, "of", 8 * 8)
lockstep.compare(predicted=prediction, measured=flex_job[0])

# %% [markdown] id="attention-text"
# The gain was recorded on a GPU: 32 heads, 8192 tokens, and a window that reaches 1024 tokens back. A mask can be
# given in three ways: as a flag (`is_causal=True`), as a tensor, or as a function. That decides which kernel runs:
# one that knows the flag may skip blocks, and one that gets a tensor has to read all of it.
#
# **Predict:** by FlexAttention, the time of a step with the window, divided by that with the causal mask. (Blocks of
# 128: the causal mask needs 1 in the first row of blocks, 2 in the second, 64 in the last. The window needs 9
# at most.)

# %% id="attention-prediction" tags=["prediction"]
prediction = (64 * 9 - 36) / (64 * 65 / 2)  # the first eight rows lack 36

# %% id="attention-measured"
recording = lockstep.recorded("compile/h200.json")
attention = recording.content["attention"]
window = attention["window, a function"]["seconds"]
causal = attention["causal, a function"]["seconds"]
times = window / causal
print(lockstep.compare(predicted=prediction, measured=times, unit="times"))


def who(one):
    """What computed it: an operator of PyTorch, or generated code."""
    prefix = "aten::_scaled_dot_product_"
    names = [name.removeprefix(prefix) for name in one["operators"]]
    return ", ".join(names) or "FlexAttention"


lines = []
for name, one in attention.items():
    ms, percent = 1e3 * one["seconds"], 100 * one["needed"]
    how = name.replace("a word", "a flag")
    lines.append([how, who(one), f"{ms:.2f}", f"{percent:.1f}"])
lockstep.table(
    "Attention on an H200",
    ["mask, given as", "computed by", "ms", "blocks needed, %"],
    lines,
    stamp=recording.stamp,
)

# %% [markdown] id="attention-claim-text"
# ### Claim: "FlexAttention leaves out what the mask leaves out"
#
# **Guess**. The time with the window is divided by that with the causal mask; so is the number of blocks.

# %% id="attention-guess" tags=["guess"]
guess = "holds"


# %% id="attention-claim"
def part(way, what):
    """What the window takes, as a part of what the causal mask takes."""
    window, causal = attention[f"window, {way}"], attention[f"causal, {way}"]
    return window[what] / causal[what]


blocks = part("a function", "needed")
by_function = part("a function", "seconds")
by_tensor = part("a tensor", "seconds")
nearer = abs(by_function - blocks) < abs(by_function - 1)
lockstep.claim(
    "FlexAttention leaves out what the mask leaves out.",
    guess=guess,
    verdict="holds" if nearer else "does not hold",
    because=f"window against causal: blocks {blocks:.2f}; time, mask given "
    f"as a function {by_function:.2f}, as a tensor {by_tensor:.2f}",
    stamp=recording.stamp,
)

# %% [markdown] id="attention-explained"
# Given as a tensor, both masks take equally long: nothing is skipped. Given as a function, the time falls nearly as
# much as the number of blocks. And where an existing kernel has a flag for the mask, that kernel may be the fastest:
# measure before you write a function.

# %% [markdown] id="right-text"
# ## What may change in the last bits
#
# About 20 minutes; one rank, and a compiler at the end. A compiled model may add in another order, and keep more
# digits between two operations. So its results differ in the last bits. How large a difference is still correct?
#
# A number with `p` binary digits is rounded by at most the part `u = 2**-p` of itself: 2**-24 for float32, 2**-8 for
# bfloat16, 2**-11 for the inputs of TF32. A sum of K products, in any order, then has an error of at most about
# `K · u · Σ|x·w|` if `K · u` is well below 1: each term passes through K roundings at most. (The bound is derived in N.
# Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3.)
#
# ### Exercise: a tolerance from the number of terms
#
# **Goal:** `bound(x, w, u)` returns for each number of `x @ w` the bound `K · u · Σ|x·w|`, where K is the number
# of terms of its sum.

# %% id="bound"
import torch


def bound(x, w, u):
    # BEGIN SOLUTION
    return x.shape[1] * u * (x.abs() @ w.abs())
    # END SOLUTION


# %% id="bound-check"
lockstep.check("bound", bound)

# %% [markdown] id="right-run-text"
# ### Claim: "the error is usually as large as the bound"
#
# A common guess. **Guess** the verdict; the cell computes the same product of 1024 terms in three precisions, and
# compares each with float64.

# %% id="right-guess" tags=["guess"]
guess = "does not hold"

# %% id="right-carry"
bound = lockstep.carry_on("bound", bound)

# %% id="right-run" tags=["varies"]
# %%torchrun -n 1 --no-init --into right_job
import torch

torch.manual_seed(0)
x = torch.randn(32, 1024, dtype=torch.float64)
w = torch.randn(1024, 32, dtype=torch.float64)
exact, parts = x @ w, {}
units = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
for name, u in units.items():
    narrow = getattr(torch, name)
    a, b = x.to(narrow), w.to(narrow)
    error = (a @ b).double() - a.double() @ b.double()
    parts[name] = float((error.abs() / bound(a.double(), b.double(), u)).max())
parts

# %% id="right-claim" tags=["varies"]
lockstep.claim(
    "The error is usually as large as the bound.",
    guess=guess,
    verdict="holds" if min(right_job[0].values()) > 0.5 else "does not hold",
    because="the largest error, as a part of the bound: "
    + ", ".join(f"{name} {part:.4f}" for name, part in right_job[0].items()),
    stamp=lockstep.live(right_job),
)

# %% id="right-recorded" tags=["plumbing"]
import math

recording = lockstep.recorded("compile/h200.json")
largest = "the largest error, as a part of the bound"
lockstep.table(
    f"A product of 1024 terms on an H200: {largest}",
    ["precision", "u", "part of the bound"],
    [
        [name, f"2^{math.log2(one['u']):.0f}", f"{one['part']:.4f}"]
        for name, one in recording.content["precision"].items()
    ],
    stamp=recording.stamp,
)

# %% [markdown] id="right-explained"
# Errors of both signs cancel, and narrow products are added up in wider numbers: the bound holds for bfloat16, too,
# where `K · u` is 4. So a test with this bound never rejects a correct kernel; a test that should find small mistakes
# uses the square root of K in place of K, and may reject a correct kernel now and then. What compiling may *not*
# change: shapes, and types.
#
# ### Claim: "with the same seed, compiled code draws the same random numbers"
#
# **Guess**; the cell drops half of a thousand ones, in eager code and compiled, twice from the same seed.

# %% id="random-guess" tags=["guess"]
guess = "does not hold"

# %% id="random"
# %%torchrun --world compiler --may-fail --into drawn
import torch
from lockstep.course.compiled import require
from torch._inductor import config

require()


def dropped(f):
    torch.manual_seed(0)
    return f(torch.ones(1000))


def drop(x):
    return torch.nn.functional.dropout(x, 0.5)


same = {}
for asked in (False, True):
    torch.compiler.reset()
    with config.patch(fallback_random=asked):
        compiled, eager = dropped(torch.compile(drop)), dropped(drop)
        same[asked] = float((compiled == eager).float().mean())
same

# %% id="random-claim"
same, said = drawn[0] if drawn.ok else {}, "nothing could be compiled here"
if same:
    said = f"the same as eager code: {100 * same[False]:.0f} % of the places; "
    said += f"with fallback_random: {100 * same[True]:.0f} %"
lockstep.claim(
    "With the same seed, compiled code draws the same random numbers.",
    guess=guess,
    verdict="holds" if same.get(False) == 1 else "does not hold",
    because=said,
    stamp=lockstep.live(drawn),
)

# %% [markdown] id="random-explained"
# Generated code computes each random number from a seed and its position, inside the kernel that needs it. To compare
# a compiled model with the eager one number by number, set `torch._inductor.config.fallback_random = True`: random
# numbers then come from the same operators that eager code calls, in kernels of their own.
