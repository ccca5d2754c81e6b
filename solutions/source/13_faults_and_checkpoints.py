# %% [markdown] id="title"
# # 13 · Faults, checkpoints, elastic training
#
# **Two sittings, 90 and 90 minutes · needs: a CPU** (the same cells use GPUs where there are as many as ranks)
#
# A run of weeks on thousands of GPUs is interrupted every few hours. What does that cost, and how does it go on? Afterwards
# you can
#
# - say what the others notice when a rank dies, hangs or is late, and find the rank at fault in what is left,
# - write checkpoints that are whole or do not count, whoever is killed when,
# - write a training that may be killed at any line and ends with the same numbers,
# - compute how often to save, and what a run of weeks loses,
# - go on without those that are gone.
#
# Do labs 01 (stores) and 03 (collectives) first. Ranks that compute wrong, NCCL's part, asynchronous saving, checkpoints in a
# neighbour's memory and Slurm are in the further notebook.

# %% id="parameters" tags=["parameters"]
NPROC = 3  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import hashlib
import io
import json
import math
import os
import pickle
import random
import re
import signal
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from statistics import mean

import lockstep
import torch
import torch.distributed as dist
from torch import nn

on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
with_gloo = on_ranks | {"backend": "gloo"}
ms = lambda seconds: f"{seconds * 1e3:.0f} ms"

# %% id="progress" tags=["unpublished"]
lockstep.progress("13")

# %% [markdown] id="ends-text"
# ## 1 · How a rank's end looks to the others
#
# A rank may **die**: its process is gone, and the kernel closes its connections. It may **hang**: the process is there, and
# does not come to the next call. Or it is **slow**, and comes. In the cell below all ranks have done three all-reduces with gloo, in a group with a timeout
# of 3 s. Then rank 1 dies by SIGKILL, or hangs. The others call the fourth, and write down what they see in files, since a
# dead rank ends the job.
#
# **Predict:** after how many seconds does an exception come to those who wait for the rank that hangs?

# %% id="ends-prediction" tags=["prediction"]
# your number, in seconds
prediction = 3  # the timeout: nothing else tells who hangs from who is slow


# %% id="ends" tags=["varies"]
def last_all_reduce(how, folder):
    """Rank 1 ends in this way; the others write down what they see."""
    rank, x = dist.get_rank(), torch.ones(4)
    group = dist.new_group(timeout=timedelta(seconds=3))
    for _ in range(3):
        dist.all_reduce(x, group=group)
    if rank == 1:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.listdir(folder):  # busy elsewhere
            time.sleep(0.01)
        return
    began = time.perf_counter()
    try:
        dist.all_reduce(x, group=group)
    except RuntimeError as error:
        said = f"{time.perf_counter() - began:.1f} s: {error}"
        Path(folder, f"rank {rank}").write_text(said)


def seen_by_others(how):
    options, seen = with_gloo | {"may_fail": True}, {}
    first = lambda file: file.read_text().split(". ")[0]  # sentence
    while not seen:  # on a busy machine the job may end before they write
        with tempfile.TemporaryDirectory() as folder:
            job = lockstep.torchrun(last_all_reduce, how, folder, **options)
            files = sorted(Path(folder).iterdir())
            seen = {file.name: first(file) for file in files}
    return job, seen


ended = {how: seen_by_others(how) for how in ("dies", "hangs")}
for how, (_, seen) in ended.items():
    for rank, said in seen.items():
        print(f"rank 1 {how} · {rank} after {said}")
after = {}
for how, (_, seen) in ended.items():
    after[how] = min(float(said.split()[0]) for said in seen.values())
lockstep.compare(prediction, measured=after["hangs"], unit="s")

# %% [markdown] id="dies-text"
# The timeout of gloo's groups is 30 minutes if nothing is said, and that of NCCL's 10. Whoever is only slow is waited for up to then.
#
# ### Claim: "the others notice at once when a rank is killed"
#
# A common guess. **Guess**: within half a second?

# %% id="dies-guess" tags=["guess"]
guess = "holds"

# %% id="dies-claim" tags=["varies"]
job, seen = ended["dies"]
who = " and ".join(seen)
lockstep.claim(
    "The others notice at once when a rank is killed.",
    guess=guess,
    verdict="holds" if after["dies"] < 0.5 else "does not hold",
    because=f"{who} had an exception, first after {after['dies']:.1f} s",
    stamp=lockstep.live(job),
)

# %% [markdown] id="barrier-text"
# With gloo a rank hears of it from the kernel, if it talks to the dead one in this collective; others hear of it when those leave. NCCL's ranks write into
# each other's memory, and nothing there tells that nobody is left (see the further notebook).
#
# Neither message names the rank that is missing. `dist.monitored_barrier` does: with gloo each rank reports to rank 0.


# %% id="barrier" tags=["varies"]
def all_but_one_come(folder):
    if dist.get_rank() == 1:
        while not os.listdir(folder):
            time.sleep(0.01)
        return "was elsewhere"
    soon = {"timeout": timedelta(seconds=1), "wait_all_ranks": True}
    try:
        dist.monitored_barrier(**soon)
    except RuntimeError as error:
        Path(folder, "noticed").touch()
        return str(error).partition("\n")[0]


with tempfile.TemporaryDirectory() as folder:
    job = lockstep.torchrun(all_but_one_come, folder, **with_gloo)
for rank, said in enumerate(job.results):
    print(f"rank {rank}: {said}")

# %% [markdown] id="culprit-text"
# ### Exercise 1: who is at fault?
#
# After a hang there are the **flight recorders'** dumps: the last calls of each rank on a group, numbered in the order in which the rank called
# them. They are a ring: the oldest entries are lost, and where the others begin differs from rank to rank. A rank that did nothing wrong may be in the call that hangs, or, as launches do not wait, some calls
# further. The one at fault never came to a call that most have, or called something else under its number: another operation, or
# another number of bytes.
#
# **Goal:** `culprit(dumps)` returns a tuple `(rank, number, line)`. `dumps` is a dictionary, in any order: `dumps[rank]` is the list of a rank's entries, the oldest first; an entry is a dictionary with `seq` (the
# call's number), `op`, `bytes`, `state` and `line`. There are three ranks or more, and one is at fault. `number` is that of the first call in which
# it differs from most, `line` that of its own last entry up to this number.

# %% id="culprit"
from collections import Counter
from itertools import count


def culprit(dumps):
    # BEGIN SOLUTION
    called = {}
    for rank, entries in dumps.items():
        called[rank] = {one["seq"]: one for one in entries}
    # What is before a rank's oldest entry is lost, and tells nothing.
    for number in count(max(min(own) for own in called.values())):
        did = {}
        for rank, own in called.items():
            one = own.get(number)
            did[rank] = one and (one["op"], one["bytes"])
        usual, _ = Counter(did.values()).most_common(1)[0]
        for rank, one in did.items():
            if one != usual:
                line = called[rank][min(number, max(called[rank]))]["line"]
                return rank, number, line
    # END SOLUTION


# %% id="culprit-check"
lockstep.check("culprit", culprit)

# %% [markdown] id="dumps-text"
# Here are real dumps: of four H200s, which NCCL's watchdog wrote when the timeout came, and of ranks of yours. PyTorch's recorder is on where
# `TORCH_FR_BUFFER_SIZE` is set; the function that dumps it has no public name yet.

# %% id="entries" tags=["plumbing"]


def entries(dump):
    """A flight recorder's dump, in the form of the exercise."""
    found = []
    for one in dump["entries"]:
        numbers = sum(math.prod(size) for size in one["input_sizes"])
        outside = [
            frame
            for frame in one["frames"]
            if not re.search("(^|/)(torch|lockstep)/", frame["filename"])
        ]
        where = outside[0] if outside else {"filename": "?", "line": 0}
        entry = {
            "seq": one["collective_seq_id"],
            "op": one["profiling_name"].partition(":")[2],
            "bytes": 4 * numbers,  # all of them are float32 here
            "state": one["state"],
            "line": f"{Path(where['filename']).name}:{where['line']}",
        }
        found.append(entry)
    return found


# %% id="hang"
culprit = lockstep.carry_on("culprit", culprit)
recording = lockstep.recorded("traces/hang")
files = {int(f.name[-1]): f.read_bytes() for f in recording.path.iterdir()}
dumps = {rank: entries(pickle.loads(file)) for rank, file in files.items()}
print("rank {}, call {}, {}".format(*culprit(dumps)), recording.stamp, sep="\n")


# %% id="hang-live" tags=["plumbing", "varies"]
def never_comes(folder):
    """Rank 1 is busy elsewhere from the fifth all-reduce on."""
    rank, x = dist.get_rank(), torch.ones(4)
    group = dist.new_group(timeout=timedelta(seconds=1))
    for _ in range(4):
        dist.all_reduce(x, group=group)
    try:
        while rank == 1 and not os.listdir(folder):
            time.sleep(0.01)
        if rank != 1:
            dist.all_reduce(x, group=group)
    except RuntimeError:
        Path(folder, f"rank {rank}").touch()
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    return dump and pickle.loads(dump())


some = with_gloo | {"nproc_per_node": max(3, NPROC)}
recorder = {"TORCH_FR_BUFFER_SIZE": "2000"}
with tempfile.TemporaryDirectory() as folder:
    job = lockstep.torchrun(never_comes, folder, env=recorder, **some)
if all(job.results):
    dumps = {rank: entries(one) for rank, one in enumerate(job.results)}
    found = "rank {}, call {}, {}".format(*culprit(dumps))
else:
    found = "this PyTorch has no dumps of gloo's calls"
print(found, lockstep.live(job), sep="\n")

# %% [markdown] id="commit-text"
# ## 2 · A checkpoint is whole, or it does not count
#
# Whatever ends a job, it goes on from what is on the disk. A checkpoint of N ranks has N parts, and each rank writes its own. A
# writer may be killed when half of its file is written, or find the disk full; and whoever reads later cannot ask it.
#
# The cell below writes a part over the one before, as `torch.save(state, "latest.pt")` does, and the writer is killed when it has written
# 50,000 of 80,000 bytes: a limit on the size of files does that.
#
# **Predict:** how many bytes of the older checkpoint, of 80,000, can be read afterwards?

# %% id="overwritten-prediction" tags=["prediction"]
prediction = 0  # to open a file for writing empties it


# %% id="overwritten"
def written_until_killed(path):
    import resource

    path.write_bytes(b"old!" * 20_000)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    path.write_bytes(b"new!" * 20_000)


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "latest.pt")
    one = {"nproc_per_node": 1, "init": False, "show": False}
    job = lockstep.torchrun(written_until_killed, path, may_fail=True, **one)
    left = path.read_bytes()
print(f"{len(left):,} bytes are left, {left.count(b'new'):,} times 'new'")
lockstep.compare(prediction, measured=4 * left.count(b"old!"), unit="bytes")

# %% [markdown] id="replace-text"
# Opening a file for writing empties it, before the first byte is written: nothing of the old checkpoint is left.
#
# ### Claim: "a file that is renamed is always there, old or new"
#
# Linux's manual of [rename](https://man7.org/linux/man-pages/man2/rename.2.html) says that the new name, if it exists, "will be atomically replaced, so that there
# is no point at which another process attempting to access newpath will find it missing". Python calls it `os.replace`. In the cell below one rank
# replaces a file 500 times while another reads it. **Guess**: is what it reads always whole?

# %% id="replace-guess" tags=["guess"]
guess = "holds"


# %% id="replace-claim"
def replaced(folder):
    """How many reads found nothing, a part, and a whole file."""
    path, size, found = Path(folder, "latest"), 100_000, Counter()
    if int(os.environ["RANK"]) == 0:
        for number in range(500):
            new = path.with_suffix(".new")
            new.write_bytes(bytes([number % 256]) * size)
            os.replace(new, path)
        Path(folder, "over").touch()
    while int(os.environ["RANK"]) == 1 and not Path(folder, "over").exists():
        if not found and not path.exists():
            continue  # before the first one
        try:
            read = path.read_bytes()
        except FileNotFoundError:
            found["missing"] += 1
        else:
            whole = len(read) == size and len(set(read)) == 1
            found["whole" if whole else "broken"] += 1
    return found


with tempfile.TemporaryDirectory() as folder:
    two = {"nproc_per_node": 2, "init": False, "show": False}
    job = lockstep.torchrun(replaced, folder, **two)
missing, broken = (job[1][what] for what in ("missing", "broken"))
lockstep.claim(
    "A file that is renamed is always there, old or new.",
    guess=guess,
    verdict="does not hold" if missing or broken else "holds",
    because=f"{missing} reads found no file, and {broken} a broken one",
    stamp=lockstep.live(job),
)

# %% [markdown] id="Checkpoints-text"
# (A machine that loses its power is another matter: there `os.fsync` has to have been called for the file and its folder.)
#
# ### Exercise 2: whole, or it does not count
#
# **Goal:** `Checkpoints(folder)` keeps the parts of checkpoints in a folder that is there, and that each rank opens for itself. `commit(step, rank, ranks, part)` keeps the bytes
# `part` of `rank`, one of `ranks`. `latest_complete()` returns a tuple of the highest step of which all parts are there, and the list of its parts, by rank; or
# None, if there is none. A writer may be killed at any line. It may find the disk full: then `commit` raises. In both cases nothing that was whole is lost, and
# the part does not count. After a restart the step may be committed again: by the same number of ranks, then with the same bytes, or by another one, and parts of the one number do not count for
# the other. (If a step is whole by both, either may be returned.) Old checkpoints may stay. Ranks commit in any order, and nobody talks to anybody.

# %% id="Checkpoints"
import os
import re
from pathlib import Path


class Checkpoints:
    def __init__(self, folder):
        self.folder = Path(folder)

    def commit(self, step, rank, ranks, part):
        # BEGIN SOLUTION
        name = self.folder / f"{step}-{rank}-of-{ranks}"
        name.with_suffix(".new").write_bytes(part)
        os.replace(name.with_suffix(".new"), name)
        # END SOLUTION

    def latest_complete(self):
        # BEGIN SOLUTION
        there = {}
        for file in self.folder.iterdir():
            if match := re.fullmatch(r"(\d+)-(\d+)-of-(\d+)", file.name):
                step, rank, ranks = map(int, match.groups())
                there.setdefault((step, ranks), {})[rank] = file
        whole = [key for key, parts in there.items() if len(parts) == key[1]]
        if not whole:
            return None
        step, ranks = max(whole)
        parts = there[step, ranks]
        return step, [parts[rank].read_bytes() for rank in range(ranks)]
        # END SOLUTION


# %% id="Checkpoints-check"
lockstep.check("Checkpoints", Checkpoints)

# %% [markdown] id="dcp-text"
# `torch.distributed.checkpoint` does the same for tensors that are spread over ranks, and writes a file `.metadata` last, which says where each piece of each
# tensor is: a checkpoint without it is none. So other numbers of ranks can load it. In the cell below four ranks save a weight of
# 1,024 × 1,024 numbers of 4 bytes, of which each has a quarter of the rows.
#
# **Predict:** how many MiB has each rank's file?

# %% id="dcp-prediction" tags=["prediction"]
prediction = 1024 * 1024 * 4 / 4 / (1 << 20)


# %% id="dcp"
def spread(weight, dim):
    """The weight as a tensor of all ranks, each with a part of this dim."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(lockstep.device().type, (dist.get_world_size(),))
    return distribute_tensor(weight, mesh, [Shard(dim)])


def numbers():
    return torch.arange(1024 * 1024.0, device=lockstep.device()).view(1024, -1)


def save(folder):
    import torch.distributed.checkpoint as dcp

    state = {"weight": spread(numbers(), 0), "step": 7}
    dcp.save(state, checkpoint_id=folder)


def load(folder):
    """With parts of columns: this rank's shape, and whether all is right."""
    import torch.distributed.checkpoint as dcp

    state = {"weight": spread(torch.zeros_like(numbers()), 1), "step": 0}
    dcp.load(state, checkpoint_id=folder)
    whole = state["weight"].full_tensor()
    right = torch.equal(whole, numbers()) and state["step"] == 7
    return tuple(state["weight"].to_local().shape), right


some = {"backend": BACKEND, "show": False}
with tempfile.TemporaryDirectory() as folder:
    saved = lockstep.torchrun(save, folder, nproc_per_node=4, **some)
    sizes = [file.stat().st_size for file in Path(folder).glob("*.distcp")]
    loaded = {}
    for n in (2, 3):
        loaded[n] = lockstep.torchrun(load, folder, nproc_per_node=n, **some)
lockstep.compare(prediction, measured=max(sizes) / (1 << 20), unit="MiB")

# %% [markdown] id="reshard-text"
# ### Claim: "a checkpoint of four ranks can be loaded by two or three"
#
# PyTorch's [documentation](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) says: "It handles load-time resharding which enables saving in one cluster
# topology and loading into another." The cell above loads it as parts of *columns*, by 2 and by 3 ranks. **Guess**: is each number in its place?

# %% id="reshard-guess" tags=["guess"]
guess = "holds"

# %% id="reshard-claim"
ways = []
for n, job in loaded.items():
    shapes = " and ".join({str(list(shape)): 0 for shape, _ in job.results})
    ways.append(f"{n} ranks got {shapes}")
right = all(one for job in loaded.values() for _, one in job.results)
lockstep.claim(
    "A checkpoint of four ranks can be loaded by two or three.",
    guess=guess,
    verdict="holds" if right else "does not hold",
    because=f"{'; '.join(ways)}: {'all' if right else 'not all'} are right",
    stamp=lockstep.live(loaded[3]),
)

# %% [markdown] id="break"
# **Break.** The first sitting ends here. You know what others see of a rank's end, and have checkpoints that count only when they are whole. What comes next: to go on from
# them, what that costs in weeks, and going on without them. To go on from here in a new kernel, run the lab's first two code cells, the one that defines your `Checkpoints`, and its check.

# %% [markdown] id="restart-text"
# ## 3 · Start again
#
# Goes on from section 2.
#
# `torchrun --max-restarts 3` starts a job again when a rank fails: its agent ends all ranks, and starts all of them again, with
# `TORCHELASTIC_RESTART_COUNT` raised by one. In Lockstep that is `engine="torchrun", max_restarts=3`. In the cell below rank 1 dies when seven of ten steps
# are done, the first time. There are no checkpoints. (It takes half a minute: everything is started twice.)
#
# **Predict:** how many steps does rank 0 finish, both times together?

# %% id="restart-prediction" tags=["prediction"]
prediction = 7 + 10  # it begins from nothing


# %% id="restart" tags=["varies"]
def ten_steps(folder):
    rank, notes = dist.get_rank(), Path(folder, str(dist.get_rank()))
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(10):
        x = torch.ones(4, device=lockstep.device())
        dist.all_reduce(x)
        x.sum().item()  # with NCCL only this waits
        with notes.open("a") as file:
            file.write(f"{os.getpid()} finished step {step}\n")
        dist.barrier()  # so that nobody dies before all have noted it
        if first and rank == 1 and step == 6:
            os.kill(os.getpid(), signal.SIGKILL)


elastic = on_ranks | {"engine": "torchrun", "max_restarts": 1}
with tempfile.TemporaryDirectory() as folder:
    job = lockstep.torchrun(ten_steps, folder, **elastic)
    notes = [Path(folder, str(r)).read_text().split("\n") for r in range(NPROC)]
for rank, lines in enumerate(notes):
    processes = list(dict.fromkeys(line.split()[0] for line in lines if line))
    print(f"rank {rank}: processes {' and '.join(processes)}")
lockstep.compare(prediction, measured=len(notes[0]) - 1)

# %% [markdown] id="train-text"
# Every rank is a new process, rank 0 too, which had done nothing wrong.
#
# ### Exercise 3: killed at any line
#
# Here is a training with all that trainings have: weights, an optimizer with a memory, a schedule, and random numbers, for batches and dropout.


# %% id="training"
class Training:
    def __init__(self):
        torch.manual_seed(0)
        parts = nn.Linear(4, 4), nn.Dropout(0.25), nn.Linear(4, 1)
        self.model = nn.Sequential(*parts)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.Adam(parameters, lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR
        self.scheduler = schedule(self.optimizer, step_size=3, gamma=0.5)

    def step(self):
        x = torch.randn(8, 4)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        if dist.is_initialized():
            for one in self.model.parameters():
                sums = one.grad.to(lockstep.device())
                dist.all_reduce(sums)
                one.grad.copy_(sums / dist.get_world_size())
        self.optimizer.step()
        self.scheduler.step()


# %% [markdown] id="train-goal"
# **Goal:** `train(run, saved, steps, every)` takes `steps` steps with `run`, a new `Training`, and commits a checkpoint after every `every`-th step, and after no other. Its process may be
# killed at any line. It is started again with a new `run`, goes on from the last checkpoint, and ends with exactly the numbers that it would have without the
# kills: weights, the optimizer's, the learning rate.
# `saved.commit(step, state)` has written a dictionary, under the number of steps that are done, when it returns; `saved.latest()` returns `(step, state)` of the last one, or None.
# (`torch.get_rng_state()` has where the random numbers are, and `torch.set_rng_state` sets it.)


# %% id="train"
import torch


def train(run, saved, steps, every):
    # BEGIN SOLUTION
    parts = run.model, run.optimizer, run.scheduler
    first = 0
    if (found := saved.latest()) is not None:
        first, state = found
        for part, its_state in zip(parts, state["parts"], strict=True):
            part.load_state_dict(its_state)
        torch.set_rng_state(state["random"])
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            states = [part.state_dict() for part in parts]
            random = torch.get_rng_state()
            saved.commit(step + 1, {"parts": states, "random": random})
    # END SOLUTION


# %% id="train-check"
lockstep.check("train", train)

# %% [markdown] id="train-run-text"
# Now both together, on ranks under torchrun's agent, with your `Checkpoints` and your `train`: twelve steps, saved after every third, and a rank is
# killed in the middle of step 5 (this, too, takes half a minute). A rank loads its own part, and all ranks the same step, as nobody writes while they start.

# %% id="train-run" tags=["varies"]
Checkpoints = lockstep.carry_on("Checkpoints", Checkpoints)
train = lockstep.carry_on("train", train)


class Saved:
    def __init__(self, folder):
        self.parts = Checkpoints(folder)
        self.me = dist.get_rank(), dist.get_world_size()

    def commit(self, step, state):
        torch.save(state, buffer := io.BytesIO())
        self.parts.commit(step, *self.me, buffer.getvalue())

    def latest(self):
        found = self.parts.latest_complete()
        if found is not None:
            step, parts = found
            own = io.BytesIO(parts[self.me[0]])
            return step, torch.load(own, weights_only=False)  # it is ours


def trained(folder, kills):
    run, taken = Training(), 0
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(dist.get_rank())
    plain_step = run.step

    def step():
        nonlocal taken
        taken += 1
        if kills and not again and taken == 5 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        plain_step()

    run.step = step
    train(run, Saved(folder), 12, 3)
    weights = torch.cat([one.flatten() for one in run.model.parameters()])
    return weights.tolist(), taken


jobs = {}
for kills in (False, True):
    engine = {"engine": "torchrun", "max_restarts": 1} if kills else {}
    with tempfile.TemporaryDirectory() as folder:
        options = on_ranks | engine
        jobs[kills] = lockstep.torchrun(trained, folder, kills, **options)
(plain, _), (killed, taken) = jobs[False][0], jobs[True][0]
same = "the same as" if plain == killed else "NOT the same as"
print(f"after 12 steps the {len(plain)} weights are {same} without the kill")
print(f"the second time it took {taken} steps")

# %% [markdown] id="kills-text"
# One kill proves little. The course's `Checkpoints` and `train` were killed a hundred times, one of three ranks at a random moment of a training of 200 steps, and started again each time:

# %% id="kills"
recording = lockstep.recorded("faults/kills-cpu-x3.json")
kills, ends = (recording.content[one] for one in ("kills", "ends"))
lost = sum(one["latest"] < one["before"] for one in kills)
half = sum(one["half_written"] > 0 for one in kills)
wrong = sum(not one["right"] for one in ends)
print(f"{len(kills)} kills, {half} of them while a part was written")
print(f"{lost} checkpoints lost; {len(ends)} runs ended, {wrong} of them wrong")
print(recording.stamp)

# %% [markdown] id="often-text"
# ## 4 · How often
#
# A failure loses what was done since the last checkpoint: half an interval on average. Saving seldom loses much at each failure,
# and saving often loses much by saving. With `mtbf` seconds between failures on average, and `save` seconds for a checkpoint, during which nothing else is done, an interval of
# τ useful seconds loses save/τ of the time by saving, and τ/(2 · mtbf) by failures. [Young (1974)](https://doi.org/10.1145/361147.361115) found the least sum:
# τ = √(2 · save · mtbf).
#
# The report on [Llama 3](https://arxiv.org/abs/2407.21783) (section 3.3.4) says what 16,384 GPUs met in 54 days: 419 unexpected interruptions.
#
# **Predict:** if a checkpoint takes 30 s, how many minutes of use are there from one to the next, by Young's formula?

# %% id="young-prediction" tags=["prediction"]
# your number, in minutes
prediction = (2 * 30 * 54 * 24 * 3600 / 419) ** 0.5 / 60

# %% id="young"
faults = lockstep.published("llama-3-faults")
mtbf = faults.values["days"] * 24 * 3600 / faults.values["unexpected"]
print(f"a failure each {mtbf / 3600:.2f} h · {faults.stamp}")
lockstep.compare(prediction, computed=(2 * 30 * mtbf) ** 0.5 / 60, unit="min")

# %% [markdown] id="share-text"
# What follows a failure takes time, too: to notice it, to start again, to load. **Goodput** is the useful part of all time. Here is a simulation of 54 days with
# random failures, 20 times: 30 s for a checkpoint, each 817 s of use, and 10 minutes to start again.
#
# **Predict:** which part of the time is lost, in percent?

# %% id="share-prediction" tags=["prediction"]
# your number, in percent: saving, what failures lose, restarts
prediction = 100 * (30 / 817 + 817 / 2 / 11135 + 600 / 11135)


# %% id="share"
def goodput(interval, save, mtbf, restart, days=54, seed=0):
    """Play days with random failures; the useful part of the time."""
    draw = random.Random(seed)
    clock = useful = 0.0
    failure = draw.expovariate(1 / mtbf)
    while clock < days * 24 * 3600:
        if clock + interval + save <= failure:
            clock += interval + save
            useful += interval
        else:  # what was done since the last checkpoint is lost
            clock = failure + restart
            failure = clock + draw.expovariate(1 / mtbf)
    return useful / clock


weeks = [goodput(817, 30, mtbf, 600, seed=seed) for seed in range(20)]
lockstep.compare(prediction, computed=100 - 100 * mean(weeks), unit="%")

# %% [markdown] id="interval-text"
# ### Exercise 4: the interval
#
# Young's formula is close as long as save and τ are short beside mtbf. In general, if failures come at random, a stretch of s seconds that must be done
# without one takes mtbf · (e^(s/mtbf) − 1) seconds on average, with all the attempts that fail
# ([Daly 2006](https://doi.org/10.1016/j.future.2004.11.016), whose equation also has the restarts). A stretch is here an interval and a checkpoint.
#
# **Goal:** `interval(save, mtbf)` returns τ, the useful seconds from one checkpoint to the next, with which the expected time of a useful second,
# mtbf · (e^((τ + save)/mtbf) − 1)/τ, is at most 0.5 % above the least there is. `save` is between a ten-thousandth of mtbf and mtbf.

# %% id="interval"
import math


def interval(save, mtbf):
    # BEGIN SOLUTION
    tried = [mtbf * 1.01**-k for k in range(2000)]
    return min(tried, key=lambda t: math.expm1((t + save) / mtbf) / t)
    # END SOLUTION


# %% id="interval-check"
lockstep.check("interval", interval)

# %% [markdown] id="optimal-text"
# ### Claim: "Young's interval is the best one"
#
# A common guess. **Guess**: does the run of Llama 3 take at most 0.5 % longer with it than with the best, and so does one whose checkpoint takes as
# long as half its time between failures?

# %% id="optimal-guess" tags=["guess"]
guess = "depends"

# %% id="optimal-claim"
interval = lockstep.carry_on("interval", interval)


def longer(save, mtbf):
    """By how many percent, with Young's interval in place of yours."""
    takes = lambda t: mtbf * math.expm1((t + save) / mtbf) / t
    young = (2 * save * mtbf) ** 0.5
    return 100 * (takes(young) / takes(interval(save, mtbf)) - 1)


short, long = longer(30, mtbf), longer(mtbf / 2, mtbf)
near = (short <= 0.5) + (long <= 0.5)
lockstep.claim(
    "Young's interval is the best one.",
    guess=guess,
    verdict=["does not hold", "depends", "holds"][near],
    because=f"{short:.2f} % longer with a checkpoint of 30 s, and "
    f"{long:.1f} % with one of half the time between failures",
    stamp=lockstep.simulated("failures at random, by Daly's formula"),
)

# %% [markdown] id="play-text"
# Here is the model to play with. The first slider is the number of GPUs: each fails by itself, so that a job of twice as many is interrupted twice as
# often. One GPU of that run was in an unexpected interruption each 5.8 years.

# %% id="play"
lockstep.interactive.checkpoints()

# %% [markdown] id="ninety-text"
# ### Claim: "higher than 90 % effective training time, with restarts of 10 minutes"
#
# The same report (section 3.3.4) says "higher than 90% effective training time" of its 54 days, with 419 unexpected interruptions and 47 planned ones; how long a restart took it does not say. **Guess**: can that be, if each
# takes 10 minutes to start again and a checkpoint takes 30 s? The best interval is taken.

# %% id="ninety-guess" tags=["guess"]
guess = "does not hold"

# %% id="ninety-claim"
best = interval(30, mtbf)
days = [goodput(best, 30, mtbf, 600, seed=seed) for seed in range(20)]
planned = (faults.values["interruptions"] - faults.values["unexpected"]) * 600
share = mean(days) - planned / (faults.values["days"] * 24 * 3600)
each = 0.1 * faults.values["days"] * 24 * 60 / faults.values["interruptions"]
lockstep.claim(
    "Higher than 90 % effective training time, with restarts of 10 minutes.",
    guess=guess,
    verdict="holds" if share > 0.9 else "does not hold",
    because=f"{100 * share:.1f} % in such a run; for 90 % an interruption may "
    f"cost {each:.0f} min in all. Theirs were quicker, in saving or starting",
    stamp=lockstep.simulated("54 days with random failures, 20 times"),
)

# %% [markdown] id="survivors-text"
# ## 5 · Go on without the dead
#
# A restart takes minutes. Those that are left have the weights, and can make a new group, if they agree who is left: they know only who answers in time. One may answer when others have
# given up waiting; then some would wait for it, and it for them. So one list must count for all, and the **store** can decide: `store.compare_set(key, "", value)` writes a value if the
# key is not there yet, and returns what is there afterwards, as bytes. Whoever comes second is told what the first one wrote.
#
# ### Exercise 5: who is left?
#
# **Goal:** `survivors(store, rank, ranks, patience)` is called on each rank that lives, of `ranks` that there were, and returns the sorted list of the ranks that go on: the same on each rank that
# calls it. Where all come in time, those are all of them, as soon as they are there. Dead ranks are not in the list: rank 0 may be one of them. Nobody waits for longer than `patience` seconds, from its own call on, for ranks that
# do not come. A rank that comes when the others have decided returns their list, in which it is not. The store has no other keys.

# %% id="survivors"
import json
import time


def survivors(store, rank, ranks, patience):
    # BEGIN SOLUTION
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while True:
        here = [r for r in range(ranks) if store.check([f"here {r}"])]
        if len(here) == ranks or time.monotonic() > until:
            break
        time.sleep(0.01)
    return json.loads(store.compare_set("members", "", json.dumps(here)))
    # END SOLUTION


# %% id="survivors-check"
lockstep.check("survivors", survivors)

# %% [markdown] id="again-text"
# In the cell below four ranks train, and two of them stop at the same time after a step. Those that are left call your function, make a new group through the same store, and go
# on. A step had 4 × 8 samples; with the same 8 samples a rank it has fewer, and its mean is noisier.
#
# Each result says who its rank is *then*: its number in the new group, and the numbers that the members had before. In the timeline all four
# ranks are in the first all-reduce, and the members in the second; the empty second between them is their patience.
#
# **Predict:** how many samples must each rank that is left take, for the same number a step?

# %% id="again-prediction" tags=["prediction"]
prediction = 4 * 8 / 2

# %% id="again"
survivors = lockstep.carry_on("survivors", survivors)


def go_on(dead, samples):
    """Four ranks take a step, then those that are left take another."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False)
    x = torch.full((1,), float(samples))
    whole = {"store": dist.PrefixStore("first", store), "world_size": ranks}
    dist.init_process_group("gloo", rank=rank, **whole)
    dist.all_reduce(x)
    first = int(x.item())
    if rank in dead:  # as good as dead: it waits until the others are done
        store.wait(["over"])
        return {"samples": first, "then": "dead"}
    left = survivors(dist.PrefixStore("who", store), rank, ranks, 1.0)
    dist.destroy_process_group()
    again = {"store": dist.PrefixStore("second", store)}
    again |= {"world_size": len(left), "rank": left.index(rank)}
    dist.init_process_group("gloo", **again)
    each = first // len(left)
    x.fill_(each)
    dist.all_reduce(x)
    store.set("over", "")
    then = f"rank {dist.get_rank()} of {left}"
    return {"samples": first, "then": then, "each": each, "all": int(x.item())}


some = {"backend": "gloo", "init": False, "show": False}
job = lockstep.torchrun(go_on, (1, 3), 8, nproc_per_node=4, **some)
for rank, one in enumerate(job.results):
    print(f"rank {rank} is {one['then']}")
display(job)
lockstep.compare(prediction, measured=job[0]["each"])

# %% [markdown] id="recap"
# ## Recap
#
# - A dead process shows at its connections, one that hangs by a timeout only. Dumps tell who is at fault: the first call in which one differs from most.
# - A checkpoint counts when its last part has its name. A file gets its name when all of it is written.
# - Going on needs weights, optimizer, schedule, random numbers, and the place in the data, all of the same moment.
# - Save each √(2 · save · mtbf) seconds, where both are short beside mtbf; what starting again costs is lost at each failure besides.
# - Those that are left go on when all of them have the same list: one write decides.
#
# What may fail will fail in a long run; now it costs minutes.

# %% [markdown] id="further"
# # 13 · Faults, checkpoints, elastic training: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.

# %% [markdown] id="wrong-text"
# ## Wrong, not dead
#
# About 30 minutes; a CPU is enough.
#
# A bit flips in memory or in an arithmetic unit, and no exception comes. In the cell below all replicas begin equal and average their gradients; after five of twenty steps
# a bit of one weight flips on rank 1.
#
# ### Claim: "averaging the gradients makes replicas equal again"
#
# A common guess: all get the same update. **Guess**.

# %% id="flip-guess" tags=["guess"]
guess = "does not hold"


# %% id="flip"
def replica(flips):
    """A weight after each of 20 steps, on this rank."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())  # each has its own data
    seen = []
    for step in range(20):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        sums = model.weight.grad.to(lockstep.device())
        dist.all_reduce(sums)
        model.weight.grad.copy_(sums / dist.get_world_size())
        optimizer.step()
        if flips and dist.get_rank() == 1 and step == 4:
            model.weight.data.view(torch.int32)[0, 0] ^= 1 << 24
        seen.append(model.weight[0, 0].item())
    return seen


flipped = lockstep.torchrun(replica, True, **on_ranks)
plain = lockstep.torchrun(replica, False, **on_ranks)
rows = [
    [f"after step {at + 1}", *(f"{one[at]:.4f}" for one in flipped.results)]
    for at in (3, 4, 5, 9, 19)
]
rows.append(["without the flip", *(f"{one[-1]:.4f}" for one in plain.results)])
columns = ["a weight", *(f"rank {rank}" for rank in range(NPROC))]
stamp = lockstep.live(flipped)
lockstep.table("A bit flips on rank 1 after step 5", columns, rows, stamp=stamp)

# %% id="flip-claim"
apart = [one[19] - flipped[0][19] for one in flipped.results]
lockstep.claim(
    "Averaging the gradients makes replicas equal again.",
    guess=guess,
    verdict="holds" if not any(apart) else "does not hold",
    because=f"after 15 steps more rank 1 is {abs(apart[1]):.2f} away, and the "
    "others, which had nothing wrong, are not where they would be",
    stamp=stamp,
)

# %% [markdown] id="wrong-ranks-text"
# All get the same update, so the distance stays; and the gradients of the wrong rank are in everybody's. Nothing but comparing the replicas shows it.
#
# ### Exercise: who is wrong?
#
# **Goal:** `wrong_ranks(x)` returns on every rank the sorted list of the ranks whose tensor x differs from that of most, in any bit: also in one that compares as equal, as
# the sign of a zero. More than half of the ranks have the same. x has any shape and dtype, and may not be contiguous; NaN is a number as others
# here: its bits count. A rank sends at most 1,000 bytes.

# %% id="wrong_ranks"
import hashlib
from collections import Counter

import torch
import torch.distributed as dist


def wrong_ranks(x):
    # BEGIN SOLUTION
    bits = x.cpu().flatten().view(torch.uint8).numpy().tobytes()
    sums = [None] * dist.get_world_size()
    dist.all_gather_object(sums, hashlib.sha256(bits).digest())
    ((usual, _),) = Counter(sums).most_common(1)
    return [rank for rank, one in enumerate(sums) if one != usual]
    # END SOLUTION


# %% id="wrong_ranks-check"
lockstep.check("wrong_ranks", wrong_ranks)

# %% [markdown] id="every-text"
# ### How often to compare
#
# That is section 4's question, with a comparison in place of a checkpoint. A step takes s seconds, a comparison c, and a bit flips each M steps. To compare each k
# steps costs c/(k · s) of the time. A flip is found at the next comparison, k/2 steps later on average; but nobody knows in which of the k steps it came, so *all* since the last
# good comparison are thrown away: k/M of the time. The sum is least at k = √(c · M/s). That is Young's formula without its 2: a crash is seen at once, and loses half an interval.
#
# In the cell below ranks take 384 good steps. They copy the weights after each good comparison, and go back to the copy after a bad one. Four bits flip.
#
# **Predict:** how many steps are thrown away with a comparison each 16 steps?

# %% id="every-prediction" tags=["prediction"]
prediction = 4 * 16  # each flip costs its whole interval

# %% id="every"
wrong_ranks = lockstep.carry_on("wrong_ranks", wrong_ranks)


def compared(k, flips=(37, 150, 222, 330)):
    """Steps from a flip to its end, steps thrown away, and seconds."""
    x = torch.zeros(100_000, device=lockstep.device())
    good, taken, done, late, spent = x.clone(), 0, 0, [], Counter()
    while done < 384:
        began = time.perf_counter()
        for _ in range(k):
            taken, gradient = taken + 1, torch.randn_like(x)
            dist.all_reduce(gradient)
            x -= 0.01 * gradient
            if taken in flips:
                flipped = taken
                if dist.get_rank() == 1:
                    x.view(torch.int32)[0] ^= 1 << 24
        compares = time.perf_counter()
        if wrong_ranks(x):
            x.copy_(good)
            late.append(taken - flipped)
        else:
            good, done = x.clone(), done + k
        spent["steps"] += compares - began
        spent["comparisons"] += time.perf_counter() - compares
    return mean(late), taken - done, taken, spent


# %% id="every-run" tags=["varies"]
most = with_gloo | {"nproc_per_node": max(3, NPROC)}  # most are right
rows, thrown = [], {}
for k in (4, 16, 64):
    job = lockstep.torchrun(compared, k, **most)
    late, thrown[k], taken, spent = job[0]
    s, c = spent["steps"] / taken, spent["comparisons"] / (taken / k)
    costs = [100 * c / (k * s), 100 * k / 96]  # a flip each 384/4 steps
    measured = 100 * (spent.total() / (384 * s) - 1)
    parts = [f"{one:.0f} %" for one in (*costs, sum(costs), measured)]
    rows.append([k, f"{late:.1f}", thrown[k], *parts])
columns = ["k", "found after", "thrown away", "comparing", "going back"]
columns += ["both", "measured"]
title = "A comparison each k steps: steps, and shares of the good steps' time"
display(lockstep.table(title, columns, rows, stamp=lockstep.live(job)))
print(f"c = {c / s:.1f} steps: best is k = {(96 * c / s) ** 0.5:.0f}")
lockstep.compare(prediction, measured=thrown[16])

# %% [markdown] id="nccl-text"
# ## What NCCL's ranks notice
#
# About 15 minutes; recorded on two H200s.
#
# A GPU that waits for another reads a flag in its memory, over and over: that the other's process is gone it cannot see. A thread of each rank, NCCL's **watchdog**, looks at
# how long each call has been under way, and logs those that take longer than the group's timeout. Here that was 10 s, and rank 1 was killed, raised an exception, or slept, before the fourth all-reduce.
#
# **Predict:** after how many seconds does rank 0's watchdog say so where rank 1 was *killed*?

# %% id="nccl-prediction" tags=["prediction"]
# your number, in seconds
prediction = 10  # nothing but the timeout tells it


# %% id="nccl"
def of_ending(content, ending):
    """The others, where no agent looks after the ranks."""
    for case in content["cases"]:
        plain = not case["environment"] and not case["then"]
        alone = case["starts"] == "no agent" and case["call"] == "all_reduce"
        if case["ending"] == ending and plain and alone:
            return case["peers"]


def by_watchdog(said):
    ran = re.search(r"ran for (\d+) milliseconds before timing out", said)
    return int(ran[1]) / 1000 if ran else None


on_gpus = lockstep.recorded("faults/h200-x2.json")
on_cpu = lockstep.recorded("faults/cpu-x4.json")
rows, caught, ends = [], {}, {}
for ending in ("is killed", "raises", "sleeps"):
    first = min(one["noticed"] for one in of_ending(on_cpu.content, ending))
    (peer,) = of_ending(on_gpus.content, ending)
    caught[ending], ends[ending] = by_watchdog(peer["said"]), peer["ended"]
    logged = f"{caught[ending]:.1f} s" if caught[ending] else "never"
    ended = f"{peer['ended']:.1f} s" if peer["ended"] else "not within 50 s"
    rows.append([ending, f"{first:.2f} s", logged, ended])
columns = ["rank 1", "gloo: exception", "NCCL: watchdog", "NCCL: process ends"]
title = "After how long others notice; the timeout is 10 s"
stamps = [on_gpus.stamp, on_cpu.stamp]
display(lockstep.table(title, columns, rows, stamp=stamps))
lockstep.compare(prediction, measured=caught["is killed"], unit="s")

# %% [markdown] id="watchdog-text"
# ### Claim: "after the timeout the process will crash"
#
# PyTorch's [documentation](https://docs.pytorch.org/docs/stable/distributed.html) says of a group's timeout that it is "the duration after which collectives will be aborted asynchronously and the process
# will crash". **Guess**: is the process gone within five times the timeout, 50 s?

# %% id="watchdog-guess" tags=["guess"]
guess = "does not hold"

# %% id="watchdog-claim"
gone = [one for one in ends.values() if one is not None]
lockstep.claim(
    "After the timeout the process will crash.",
    guess=guess,
    verdict="holds" if len(gone) == len(ends) else "does not hold",
    because=f"its watchdog had said so in {len(ends)} cases; in {len(gone)} of "
    "them the process ended within 50 s",
    stamp=on_gpus.stamp,
)

# %% [markdown] id="shrink-text"
# That is why agents matter: torchrun's ended rank 0 after 0.3 s, as it saw rank 1's process end. Without one, a program can let go of a group by itself: a call that is asynchronous is asked whether it is
# over, and after 2 s of patience the group is aborted and a new one made, or **shrunk**: `dist.shrink_group` makes a communicator without the ranks that it is given. Either way section 5's question is still there: who is left?

# %% id="shrink"
rows = []
for case in on_gpus.content["cases"]:
    if case["then"] and case["ending"] == "is killed":
        (peer,) = case["peers"]
        steps = peer.get("steps", {})
        for name, seconds in steps.items():
            rows.append([case["then"], name, f"{seconds:.2f} s"])
columns = ["rank 0 goes on by", "step", "takes"]
title = "After 2 s in vain; rank 1 was killed"
lockstep.table(title, columns, rows, stamp=on_gpus.stamp)

# %% [markdown] id="plain-restart-text"
# ## torchrun, as it is
#
# About 15 minutes; recorded.
#
# ### Claim: "worker failures are handled gracefully by restarting all workers"
#
# [torchrun's documentation](https://docs.pytorch.org/docs/stable/elastic/run.html) says so. Two ranks of gloo were started with `torchrun --standalone --max-restarts 1`, and rank 1 killed itself after seven of ten steps, the first time. **Guess**: does
# the job come to its end?
#
# (Lockstep's `engine="torchrun"` is PyTorch's agent with a store of its own for each attempt, so section 3 does not tell.)

# %% id="plain-restart-guess" tags=["guess"]
guess = "does not hold"

# %% id="plain-restart-claim"
recording = lockstep.recorded("faults/restart-cpu-x2.json")
rows, finished = [], {}
for job in recording.content["jobs"]:
    steps = [attempt[0]["calls"] for attempt in job["attempts"]]
    changed = " ".join(job["environment"]) or "nothing"
    finished[changed] = steps[-1] == 10
    counts = ", then ".join(str(one) for one in steps)
    rows.append([changed, counts, "yes" if finished[changed] else "no"])
columns = ["set in the environment", "steps of rank 0", "all of them"]
title = "torchrun --standalone --max-restarts 1, gloo"
display(lockstep.table(title, columns, rows, stamp=recording.stamp))
lockstep.claim(
    "Worker failures are handled gracefully by restarting all workers.",
    guess=guess,
    verdict="holds" if finished["nothing"] else "does not hold",
    because="both are started again and meet nobody: in the store, which is "
    "kept, they find the addresses of the dead",
    stamp=recording.stamp,
)

# %% [markdown] id="plain-restart-explained"
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` gives each attempt a store of its own. Such a thing is found by killing a rank on purpose, before a run that is to last for weeks.
#
# **What changes under NCCL:** it was recorded on two H200s with PyTorch 2.11. With the store that is kept, NCCL's ranks made no step after the restart, and said nothing; after 40 s the job was ended. With a store for each attempt the job came to its end in 11 s. gloo's came to its end with either.

# %% [markdown] id="elastic-text"
# ### Nodes come and go
#
# With `--nnodes 1:3` each node has an agent, and one to three of them may take part. An agent starts its ranks anew when one of them has *failed*, and counts that; and when it hears that another
# node wants to join, which it does not count. Three nodes with addresses of their own were started in turn, with `--max-restarts 3`; then the third one left (its agent got SIGTERM), came again, died
# (all its processes at once), and came again. What a rank sees of a node that goes is a closed connection.
#
# **Predict:** how many restarts has the first node's agent counted at the end?

# %% id="elastic-prediction" tags=["prediction"]
prediction = 2  # for leaving and for dying; who comes is no failure

# %% id="elastic"
recording = lockstep.recorded("faults/elastic-cpu-x3.json")
rows = []
for job in recording.content["jobs"]:
    changed = " ".join(job["environment"]) or "nothing"
    for row in job["rows"]:
        came = row["seconds"] is not None
        after = f"{row['seconds']:.0f} s" if came else "not in 75 s"
        counts = ", ".join(map(str, row["restarts"])) if came else "–"
        rows.append([changed, row["what"], after, counts])
columns = [
    "set in the environment",
    "what happens",
    "all ranks call",
    "restarts, by agent",
]
title = "torchrun --nnodes 1:3 --max-restarts 3, gloo"
display(lockstep.table(title, columns, rows, stamp=recording.stamp))
lockstep.compare(
    prediction,
    measured=recording.content["jobs"][-1]["rows"][-1]["restarts"][0],
)

# %% [markdown] id="elastic-explained"
# As it is, not even the second node gets in: it asks the new round's store for the address of rank 0, which rank 0 wrote in the first round only. With a store of its own for each attempt all goes on from the last step. Coming takes longer than it need: PyTorch is imported, and a rendezvous
# that has enough nodes waits for more, 5 seconds here and 30 if nobody says otherwise. An agent that hears of another's restart before its own rank has failed counts none: do not rely on the exact number.

# %% [markdown] id="manager-text"
# ## A manager of elastic training
#
# About 20 minutes; a CPU is enough.
#
# Many descriptions of elastic training have a manager of this kind: each node sends heartbeats from a thread of its own; training goes on while at least half of all nodes are
# healthy; each checkpoint is a file with epoch and step in its name; after an exception the training function calls itself again. Each of these is built here as it is described.
#
# ### Claim: "training may go on while at least half of the nodes are healthy"
#
# Often described so, with `healthy >= total / 2` in whole numbers. A network may be cut in two, so that each side sees the other as failed. **Guess**: is there never more than one side that
# goes on, for 2 to 8 nodes?

# %% id="half-guess" tags=["guess"]
guess = "does not hold"

# %% id="half-claim"
rows, both = [], 0
for total in range(2, 9):
    goes_on = lambda healthy, total=total: healthy >= total // 2
    cuts = [(n, total - n) for n in range(1, total // 2 + 1)]
    twice = [cut for cut in cuts if all(map(goes_on, cut))]
    most = [cut for cut in cuts if all(2 * n > total for n in cut)]
    both += len(twice)
    rows.append([total, len(cuts), twice or "none", most or "none"])
title = "Cuts of a network after which both sides go on"
columns = ["nodes", "cuts", "with at least half", "with more than half"]
counted = lockstep.simulated("all cuts in two, counted")
display(lockstep.table(title, columns, rows, stamp=counted))
lockstep.claim(
    "Training may go on while at least half of the nodes are healthy.",
    guess=guess,
    verdict="does not hold" if both else "holds",
    because=f"in {both} cases two halves train on, and each writes checkpoints",
    stamp=counted,
)

# %% [markdown] id="beats-text"
# Only *more* than half leaves one side at most.
#
# ### Claim: "a rank that sends heartbeats is at work"
#
# The thread that sends them is one of its own. In the cell below rank 1 hangs in its main thread, and the others watch its heartbeats for twenty of them. **Guess**: do they stop?

# %% id="beats-guess" tags=["guess"]
guess = "does not hold"


# %% id="beats-claim" tags=["varies"]
def heartbeats(folder):
    """How many heartbeats of rank 1 come after its last step."""
    import threading

    rank, notes = dist.get_rank(), Path(folder, "beats")

    def beat():
        while not Path(folder, "seen").exists():
            with notes.open("a") as file:
                file.write(".")
            time.sleep(0.01)

    if rank == 1:
        threading.Thread(target=beat, daemon=True).start()
    for _ in range(3):
        dist.all_reduce(torch.ones(4, device=lockstep.device()))
    if rank == 1:
        while not Path(folder, "seen").exists():  # it hangs
            time.sleep(0.01)
        return None
    before = notes.stat().st_size if notes.exists() else 0
    until = time.monotonic() + 10
    while rank == 0 and time.monotonic() < until:
        beats = notes.stat().st_size - before if notes.exists() else 0
        if beats >= 20:
            break
        time.sleep(0.01)
    if rank == 0:
        Path(folder, "seen").touch()
        return beats


with tempfile.TemporaryDirectory() as folder:
    beating = lockstep.torchrun(heartbeats, folder, **on_ranks)
lockstep.claim(
    "A rank that sends heartbeats is at work.",
    guess=guess,
    verdict="does not hold" if beating[0] >= 20 else "holds",
    because=f"{beating[0]} heartbeats came from a rank that does nothing more",
    stamp=lockstep.live(beating),
)

# %% [markdown] id="steps-text"
# What tells is progress: the number of the last step, or of the last collective. That is what flight recorders have.
#
# ### Claim: "the run goes on from the latest checkpoint"
#
# As described: `save` writes `checkpoint_{epoch}_{step}.pt` each hundred steps; `load` opens `latest_checkpoint.pt`; and after an exception the training function calls
# itself. In the cell below a run of 1,000 steps fails once in step 750. **Guess**: does it go on from step 700?

# %% id="latest-guess" tags=["guess"]
guess = "does not hold"


# %% id="latest-claim"
class Manager:
    """As described: names, intervals, and a training that calls itself."""

    def __init__(self, folder, fails_in):
        self.folder, self.fails_in, self.taken = Path(folder), fails_in, 0

    def save(self, step):
        (self.folder / f"checkpoint_0_{step}.pt").write_text(str(step))

    def load(self):
        latest = self.folder / "latest_checkpoint.pt"
        return int(latest.read_text()) if latest.exists() else 0

    def train(self, steps):
        try:
            for step in range(self.load(), steps):
                self.taken += 1
                if self.taken in self.fails_in:
                    raise ConnectionError("a rank is gone")
                if step % 100 == 0:
                    self.save(step)
        except ConnectionError:
            self.train(steps)


with tempfile.TemporaryDirectory() as folder:
    manager = Manager(folder, fails_in=[750])
    manager.train(1000)
    files = len(list(Path(folder).iterdir()))
lockstep.claim(
    "The run goes on from the latest checkpoint.",
    guess=guess,
    verdict="holds" if manager.taken <= 1050 else "does not hold",
    because=f"it took {manager.taken:,} steps: none of {files} files has the "
    "name that is looked for",
    stamp=lockstep.simulated("the manager as described, 1,000 steps"),
)

# %% [markdown] id="calls-itself-text"
# ### Claim: "it goes on after any number of failures"
#
# The same manager, in a run that fails in every step up to the 2,000th; each time it calls itself. **Guess**.

# %% id="calls-itself-guess" tags=["guess"]
guess = "does not hold"

# %% id="calls-itself-claim"
with tempfile.TemporaryDirectory() as folder:
    manager = Manager(folder, fails_in=range(1, 2001))
    try:
        manager.train(10)
        ended = "it ended well"
    except RecursionError as error:
        ended = f"after {manager.taken:,} failures: {error}"
lockstep.claim(
    "It goes on after any number of failures.",
    guess=guess,
    verdict="holds" if ended == "it ended well" else "does not hold",
    because=ended,
    stamp=lockstep.simulated("the manager as described, 2,000 failures"),
)

# %% [markdown] id="calls-itself-explained"
# A loop does the same without a stack that grows.

# %% [markdown] id="async-text"
# ## Saving while the training goes on
#
# About 5 minutes; a CPU is enough.
#
# `torch.distributed.checkpoint.async_save` returns a future; a thread writes while the next steps are taken. They change the weights that are being written.
#
# ### Claim: "an asynchronous checkpoint has the weights of the moment of the call"
#
# PyTorch's [documentation](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) says that the state is first copied to the CPU's memory. In the cell below weights that are there already are ones when
# `async_save` is called, and twos directly after. **Guess**: does the checkpoint have ones only?

# %% id="async-guess" tags=["guess"]
guess = "holds"


# %% id="async-claim" tags=["varies"]
def saved_meanwhile(folder):
    import torch.distributed.checkpoint as dcp

    weights = torch.ones(4_000_000)
    began = time.perf_counter()
    future = dcp.async_save({"weights": weights}, checkpoint_id=folder)
    returned = time.perf_counter() - began
    weights.fill_(2)
    future.result()
    whole = time.perf_counter() - began
    state = {"weights": torch.zeros_like(weights)}
    dcp.load(state, checkpoint_id=folder)
    return state["weights"].unique().tolist(), returned, whole


with tempfile.TemporaryDirectory() as folder:
    # Its thread needs a group of the CPU.
    meanwhile = lockstep.torchrun(saved_meanwhile, folder, **with_gloo)
found, returned, whole = meanwhile[0]
lockstep.claim(
    "An asynchronous checkpoint has the weights of the moment of the call.",
    guess=guess,
    verdict="holds" if found == [1.0] else "does not hold",
    because=f"it has {found}; the call took {ms(returned)} of {ms(whole)}",
    stamp=lockstep.live(meanwhile),
)

# %% [markdown] id="async-explained"
# The copy needs memory for the whole state, and the time of the copy is what the training waits. Before the next checkpoint the last one has to be done.

# %% [markdown] id="neighbour-text"
# ## A checkpoint in a neighbour's memory
#
# About 10 minutes; a CPU is enough.
#
# A disk that all share is slow. Each rank can keep its part in its own host's memory, and a copy with the next rank's: rank r sends to r + 1, the last to 0. What is lost
# when two of four die at once?
#
# **Predict:** of the six pairs of four ranks, with how many is a part lost?

# %% id="neighbour-prediction" tags=["prediction"]
prediction = 4  # a part is lost with a rank and the one after it


# %% id="neighbour"
def with_neighbour():
    """The numbers of the parts that this rank has in the end."""
    rank, n = dist.get_rank(), dist.get_world_size()
    own = torch.full((4,), rank, device=lockstep.device())
    other = torch.empty_like(own)
    ways = [
        dist.P2POp(dist.isend, own, (rank + 1) % n),
        dist.P2POp(dist.irecv, other, (rank - 1) % n),
    ]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    return {int(own[0]), int(other[0])}


from itertools import combinations

some = {"backend": BACKEND, "show": False}
copies = lockstep.torchrun(with_neighbour, nproc_per_node=4, **some)
lost = {}
for number in (1, 2):
    for dead in combinations(range(4), number):
        left = set()
        for rank in set(range(4)) - set(dead):
            left |= copies[rank]
        if len(left) < 4:
            lost[dead] = set(range(4)) - left
for dead, parts in lost.items():
    print(f"without ranks {dead}: part {parts} is lost")
pairs = sum(len(dead) == 2 for dead in lost)
lockstep.compare(prediction, measured=pairs)

# %% [markdown] id="neighbour-claim-text"
# ### Claim: "with a copy at a neighbour, no single failure loses a checkpoint"
#
# A common guess. **Guess**, for the ranks of the cell above.

# %% id="neighbour-guess" tags=["guess"]
guess = "holds"

# %% id="neighbour-claim"
single = [dead for dead in lost if len(dead) == 1]
lockstep.claim(
    "With a copy at a neighbour, no single failure loses a checkpoint.",
    guess=guess,
    verdict="does not hold" if single else "holds",
    because=f"of 4 ranks, {len(single)} lose a part when they die alone",
    stamp=lockstep.live(copies),
)

# %% [markdown] id="neighbour-explained"
# Ranks of one node die together: a neighbour has to be on another node.

# %% [markdown] id="spare-text"
# ## A rank in reserve
#
# About 10 minutes; a CPU is enough.
#
# Section 5 goes on with fewer ranks. A **spare** keeps their number, and with it the samples of a step and each rank's part of the model: it is started with the others, does nothing, and takes a dead one's
# place. In the cell below it is the fifth rank. The part of rank r is the number r, and the next rank has a copy of it. Rank 2 stops; the others ask your `survivors` who is there, and meet anew.
#
# **Predict:** which sum do the four parts have then?

# %% id="spare-prediction" tags=["prediction"]
prediction = 0 + 1 + 2 + 3  # the spare has part 2, from rank 3

# %% id="spare"
survivors = lockstep.carry_on("survivors")


def with_spare(dead, n=4):
    """Each rank's place then, its part, and the sum of all parts."""
    me = int(os.environ["RANK"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store, meet = dist.TCPStore(*address, is_master=False), {"world_size": n}
    part, copy = torch.tensor([me]), torch.tensor([-1])
    if me < n:
        meet["store"] = dist.PrefixStore("first", store)
        dist.init_process_group("gloo", rank=me, **meet)
        sending = dist.isend(part, (me + 1) % n)
        dist.recv(copy, (me - 1) % n)
        sending.wait()
        dist.destroy_process_group()
        if me == dead:
            store.wait(["over"])
            return "dead"
        store.set("a rank is missing", "")
    store.wait(["a rank is missing"])
    left = survivors(dist.PrefixStore("who", store), me, n + 1, 1.0)
    (gap,) = set(range(n)) - set(left)
    place = gap if me == n else me
    meet["store"] = dist.PrefixStore("second", store)
    dist.init_process_group("gloo", rank=place, **meet)
    if place == gap:
        dist.recv(part, (gap + 1) % n)
    if place == (gap + 1) % n:
        dist.send(copy, gap)
    whole = part.clone()
    dist.all_reduce(whole)
    store.set("over", "")
    return {"place": place, "part": part.item(), "sum": whole.item()}


# %% id="spare-run"
some = {"backend": "gloo", "init": False, "show": False}
job = lockstep.torchrun(with_spare, 2, nproc_per_node=5, **some)
display(job)
lockstep.compare(prediction, measured=job[0]["sum"])

# %% [markdown] id="spare-explained"
# Nobody starts anew, and nothing is read from a disk: a second of patience, two rendezvous and a part's way over the network. What it costs is a GPU that idles until then. To start again with a node less took torchrun's agents about 25 seconds after a death (above, "Nodes come and go").

# %% [markdown] id="warned-text"
# ## A warning before the end
#
# About 10 minutes; a CPU is enough.
#
# Most ends are announced: Slurm sends SIGTERM before a time limit, if it is asked to, and a node that is given back gets it, too. A handler may run between any two lines, so it only notes
# that it came; the loop saves and leaves at the end of its step. All ranks must leave after the *same* step: the
# signal comes to each at another moment, so they have to agree. This is all that a batch script needs, for a program that goes on from its newest checkpoint and makes a file `finished` when it is done:
#
# ```bash
# #!/bin/bash
# #SBATCH --nodes=2 --ntasks-per-node=1
# #SBATCH --requeue --open-mode=append --signal=TERM@120
# srun python train.py
# [ -e finished ] || scontrol requeue "$SLURM_JOB_ID"
# ```
#
# The ranks are warned 120 seconds before the limit (`--signal=B:TERM@120` would warn the script instead, which would have to pass it on). The job then stands in the queue again, under its number, and `SLURM_RESTART_COUNT` is one higher.
#
# In the cell below rank 0 gets the signal in its fifth step (from itself, here). An all-reduce of the notes, with MAX, tells all ranks after each step.
#
# **Predict:** how many steps has the last rank taken when it leaves?

# %% id="warned-prediction" tags=["prediction"]
prediction = 5  # the notes of step 5 reach all in step 5


# %% id="warned"
def until_warned():
    warned, rank = False, dist.get_rank()

    def note(*_):
        nonlocal warned
        warned = True

    before = signal.signal(signal.SIGTERM, note)
    for step in range(1, 11):
        if rank == 0 and step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        leave = torch.tensor([int(warned)], device=lockstep.device())
        dist.all_reduce(leave, dist.ReduceOp.MAX)
        if leave.item():
            break  # after saving
    signal.signal(signal.SIGTERM, before)
    return step


warned_job = lockstep.torchrun(until_warned, **on_ranks)
lockstep.compare(prediction, measured=max(warned_job.results))

# %% [markdown] id="warned-explained"
# An all-reduce a step is not free: real loops look each tenth step, or ask the store.

# %% [markdown] id="others-text"
# ## What others do
#
# About 5 minutes.
#
# - [torchft](https://github.com/meta-pytorch/torchft) keeps replicas of data parallelism apart: each is a group of its own, a lighthouse says at each step which of them
#   take part, and one that comes back gets the weights from a healthy one, over the network. That is the list of section 5 at each step.
# - [NVIDIA's resiliency extension](https://github.com/NVIDIA/nvidia-resiliency-ext) restarts ranks within their processes, finds stragglers, and keeps copies of checkpoints at neighbours.
# - [DLRover](https://github.com/intelligent-machine-learning/dlrover) keeps checkpoints in the agents' memory, so that they outlive the ranks.
