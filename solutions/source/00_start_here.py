# %% [markdown] id="title"
# # 00 · Start here
#
# **35 minutes · needs: a CPU** (the same cells use GPUs and NCCL where there are some)
#
# You will run one cell on several *ranks*, see what each of them did and when, collect a number from all of them,
# break something on purpose, and read the report. Afterwards you can
#
# - start N ranks from a cell and get their prints and values back,
# - say what a rank shares with its notebook and with other ranks (almost nothing),
# - find the rank and the line that a failure comes from.
#
# Press **Shift+Enter** in each cell, from top to bottom.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep

# %% id="progress" tags=["unpublished"]
lockstep.progress("00")

# %% [markdown] id="machine-text"
# ## This machine
#
# This cell says what is here, what is missing, and what to do about it. In a terminal, `lockstep doctor` says the
# same (in a checkout of the course: `.venv/bin/lockstep doctor`).

# %% id="machine" tags=["unpublished"]
lockstep.doctor()

# %% [markdown] id="first-text"
# ## A first cell of ranks
#
# The first line says how many ranks there are, and which *backend* carries their messages: **gloo** between CPUs,
# **NCCL** between NVIDIA GPUs; `auto` chooses what fits this machine. The rest runs in every rank: the same program,
# at the same time, in processes that know only their number.

# %% id="first"
# %%torchrun --nproc-per-node {NPROC} --backend {BACKEND}
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
print("everybody prints this line, so you see it once")

# %% [markdown] id="first-explained"
# What you see is *live*: the last line under the cell says on what. Equal lines of several ranks
# are folded into one, with the ranks named at the left. The variables `RANK` and `WORLD_SIZE` are
# those that `torchrun` sets: any script written for it runs here unchanged.

# %% [markdown] id="memory-text"
# ## What is a rank?
#
# A rank is a process, with a memory of its own. **Predict before you run:** the cell below adds its
# rank's number to `counter`, on every rank. What will `counter` be *in this notebook* afterwards? (Write
# your number in place of `None`. It is for you alone. What answers the question stays hidden until there is one,
# or until you go on without.)

# %% id="memory-prediction" tags=["prediction"]
counter = 100
prediction = 100

# %% id="memory"
# %%torchrun -n {NPROC} --backend {BACKEND}
import torch.distributed as dist

counter += dist.get_rank()
counter

# %% id="memory-measured"
lockstep.compare(predicted=prediction, measured=counter)

# %% [markdown] id="memory-explained"
# Each rank got its own *copy* of `counter`, because the cell uses that name. Functions, classes, imports and small
# values of the notebook travel to the ranks in this way; nothing travels back but what a rank prints and the value of
# its last expression. Ranks share no variable with the notebook, and none with each other. To learn anything from
# another rank, a rank must *communicate*.

# %% [markdown] id="reduce-text"
# ## Four lines that communicate
#
# `all_reduce` is a **collective**: a call that all ranks make, each with its own data. It adds up a tensor over all
# ranks and leaves the sum on each of them. Rank r starts with the number r + 1, on its GPU or, without one, on the
# CPU: `lockstep.device()`. **Predict:** what does every rank hold afterwards?

# %% id="reduce-prediction" tags=["prediction"]
prediction = NPROC * (NPROC + 1) / 2

# %% id="reduce"
# %%torchrun -n {NPROC} --backend {BACKEND} --into job
import torch
import torch.distributed as dist

x = torch.ones(1, device=lockstep.device()) * (dist.get_rank() + 1)
dist.all_reduce(x)
x.item()

# %% id="reduce-measured"
lockstep.compare(predicted=prediction, measured=job[0])

# %% [markdown] id="job-text"
# `--into job` kept the whole run in a variable: `job[0]` is the value of rank 0, `job.output(1)` is what rank 1
# printed, and `job.calls` lists every rank's calls of the communication library.

# %% id="job"
for call in job.calls[0]:
    print(call, "·", call.bytes, "bytes")

# %% [markdown] id="waiting-text"
# ## Who waits for whom?
#
# One rank is late. **Predict:** rank 0 sleeps for 0.3 seconds before the `all_reduce`. How long, in
# seconds, will the *other* ranks spend inside their `all_reduce`? Then look at the strip under the
# cell: one lane for each rank, one bar for each call.

# %% id="waiting-prediction" tags=["prediction"]
prediction = 0.3

# %% id="waiting"
# %%torchrun -n {NPROC} --backend gloo --into late_job
import time

import torch
import torch.distributed as dist

if dist.get_rank() == 0:
    time.sleep(0.3)
dist.all_reduce(torch.ones(1))

# %% id="waiting-measured" tags=["varies"]
waited = late_job.calls[-1][0].seconds
lockstep.compare(predicted=prediction, measured=waited, unit="s")

# %% [markdown] id="waiting-explained"
# The sum needs every rank's number, so no rank has it before the last one arrives. Much of the time that programs
# seem to spend communicating is *waiting*, which the strip shows hatched. A large part of this course is about
# telling the two apart.
#
# **What changes under NCCL:** this cell asked for gloo, where a call returns when the sum is there. On GPUs a call
# returns as soon as it is queued, and the waiting moves to the GPU. The strip then shows when each call was queued;
# traces, in a later lab, show what the GPU did.

# %% [markdown] id="exercise-text"
# ## Exercise: the mean over all ranks
#
# **Goal:** `average(x)` returns the mean of `x` over all ranks, a tensor of x's shape and dtype, on every rank, with
# exactly one collective. (What happens to `x` itself does not matter.) The check tries it with other numbers of ranks
# than yours, and counts your calls.
#
# Write it in place of the line that raises, run the cell, then the check below it. The check names the mistake;
# `lockstep.hint("average")` gives a hint, and a stronger one each time.

# %% id="average"
import torch.distributed as dist


def average(x):
    # BEGIN SOLUTION
    dist.all_reduce(x)
    return x / dist.get_world_size()
    # END SOLUTION


# %% id="average-check"
lockstep.check("average", average)

# %% [markdown] id="failure-text"
# ## A failure, on purpose
#
# In the next cell rank 2 skips the collective that the others enter. What the others then see depends
# on its process. While it lives, they wait until the time limit of their group, which for gloo is half
# an hour. Once it has ended, gloo raises "Connection closed by peer" in them, within a second.
# This cell shows the first: rank 2 comes to the end of the cell, and its process stays until all are done.
# `--may-fail` lets the notebook go on after the failure.
#
# Look in the report for the ranks that wait, and for the one that they wait for.

# %% id="failure"
# %%torchrun -n 4 --backend gloo --may-fail
import torch
import torch.distributed as dist

x = torch.ones(1)
dist.all_reduce(x)
if dist.get_rank() != 2:
    dist.all_reduce(x)

# %% [markdown] id="failure-explained"
# How to read it: the first sentence is the cause. Then, for each group of ranks that stood in the same place, the
# call they were in (its number, the operation, the tensor, the group) and the line of *your* code, marked with an
# arrow. The report did not need a time limit: none of these ranks could go on, and Lockstep can tell. All four
# processes are gone; the next cell works.
#
# A mistake in Python reads the same way:

# %% id="error"
# %%torchrun -n 4 --backend gloo --may-fail
import torch.distributed as dist

shares = [10, 20, 30]
print("my share is", shares[dist.get_rank()])

# %% [markdown] id="world-text"
# ## Ranks that stay
#
# So far every cell had fresh ranks: nothing survived. A `World` keeps its ranks, and their
# variables, between cells. On GPUs, where starting a rank takes seconds, you will want that.

# %% id="world"
world = lockstep.World(nproc_per_node=2, backend=BACKEND)

# %% id="world-set"
# %%torchrun --world world
import torch.distributed as dist

mine = dist.get_rank() * 10

# %% id="world-get"
# %%torchrun --world world
mine + 1

# %% id="world-close"
world.close()

# %% [markdown] id="stuck-text"
# ## When you are stuck
#
# - `%torchrun --help` shows every flag. If you mistype one, the error suggests the right one.
# - The ■ button ends the ranks at once and shows where each of them was.
# - Restarting the kernel leaves no process behind, and none of your variables. Run the first two code cells again
#   before any other; then each section can be started on its own.
# - `lockstep.hint("…")`, with an exercise's name, has three hints. Once you have checked an answer of your own,
#   the third also says how to get the course's. Later cells go on with that one where yours does not pass.
# - The folder `solutions/` has this notebook complete, with its outputs.

# %% [markdown] id="seen"
# ## What you have seen
#
# A rank is a process with a number. Ranks share nothing and learn from each other only by
# communicating; an `all_reduce` ends when the last rank has come; and a rank that never comes can be
# found. **Next:** in lab 01 you will build the thing that made these ranks find each other, the
# *communicator*.
