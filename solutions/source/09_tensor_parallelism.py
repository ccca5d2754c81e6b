# %% [markdown] id="title"
# # 09 · Tensor, sequence and context parallelism
#
# **Two sittings, 90 and 90 minutes · needs: CPU** (the same cells use GPUs and NCCL where there are some; times on GPUs
# come from a virtual GPU where there are none)
#
# Here several ranks share the work of one layer. Afterwards you can
#
# - cut the two products of an MLP so that one all-reduce is enough in the forward pass and one in the backward,
# - compute a loss from logits that no rank ever has whole,
# - keep each activation on one rank only, with the same volume of communication,
# - compute attention over a sequence of which each rank has a part, causal too,
# - hide a layer's all-gather behind its own product, and recognise all of this in the record of PyTorch's DTensor.
#
# Do labs 03 (`all_reduce`, `all_gather`, `reduce_scatter`), 04 (overlap) and 08 (`autograd.Function`) first.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep
import torch
import torch.distributed as dist

on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}
print(lockstep.virtual.MACHINES["H200"])

# %% id="progress" tags=["unpublished"]
lockstep.progress("09")

# %% [markdown] id="names-text"
# The line above describes the virtual GPU of lab 04. The name of a tensor here ends with its dimensions: `x_BSD` has
# three. A small letter is this rank's part of a dimension: `x_BsD` has a part of the sequence.
#
# | letter | dimension | letter | dimension |
# | --- | --- | --- | --- |
# | B | batch | V | vocabulary |
# | S | sequence | T | tokens, B × S |
# | D | width of the model | H | heads of attention |
# | F | hidden width of an MLP | E | width of a head |
#
# The next cell (its code is folded) defines `kilobytes_sent(job)`, what rank 0 sends until a barrier if each
# collective is a ring (lab 03), and `on_gpus(program, …)`, which runs `program(cuda, …)` on two ranks (or `ranks=`)
# with one GPU each.

# %% id="measuring" tags=["plumbing"]
import tempfile
from dataclasses import dataclass
from typing import Any

from lockstep.base.provenance import Provenance


def kilobytes_sent(job):
    """What rank 0 sends before a barrier, if each collective is a ring."""
    total, n = 0, job.nproc
    for call in job.calls[0]:
        if call.operation == "barrier":
            break
        if call.operation == "all_reduce":
            total += 2 * (n - 1) / n * call.bytes
        elif call.operation.startswith(("reduce_scatter", "all_to_all")):
            total += (n - 1) / n * call.bytes
        elif call.operation.startswith("all_gather"):
            total += (n - 1) * call.bytes  # the bytes of this rank's part
        elif call.operation == "send":
            total += call.bytes
    return round(total / 1000, 6)


def _on_rank(program, args):
    if dist.get_backend() != "nccl":
        with lockstep.virtual.device("H200", values=False) as cuda:
            return program(cuda, *args), lockstep.virtual.trace()
    program(torch.cuda, *args)  # the first call loads kernels
    second = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(schedule=second) as profiler:
        for _ in range(2):
            result = program(torch.cuda, *args)
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

    def hidden(self):
        """Of rank 0's communication: µs, and the share that is hidden."""
        spent = self.trace.breakdown().of(0)
        total, hidden = spent.communication, spent.overlapped
        return total / 1e3, hidden / total if total else 0.0


def on_gpus(program, *args, ranks=2):
    """Run program(cuda, *args) on the GPUs of ranks; the result is rank 0's."""
    ways = {"nproc_per_node": ranks, "show": False}
    job = lockstep.torchrun(_on_rank, program, args, **ways)
    results, traces = zip(*job.results, strict=True)
    return Seen(results[0], lockstep.virtual.joined(traces))


# %% [markdown] id="columns-text"
# ## 1 · Columns and rows
#
# An MLP is two products with a function between them: *y* = relu(*x A*) *B*. `tensor_split` cuts *A* by **columns**, and
# *B* by **rows**; where the parts cannot be equal, the first ones are larger. (PyTorch keeps a weight transposed, as
# `w1_FD` and `w2_DF`: a column of *A* is a row of `w1_FD`.) Each rank gets the whole *x*, one part of *A*, and the
# matching part of *B*:


# %% id="columns"
def in_parts():
    """This rank's hidden numbers, and what it adds to y."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x_BD = torch.tensor([[1.0, 2.0]])
    w1_FD = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    w2_DF = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 0.0, -1.0]])
    h_Bf = torch.relu(x_BD @ w1_FD.tensor_split(n)[rank].T)
    y_BD = h_Bf @ w2_DF.tensor_split(n, dim=1)[rank].T
    return h_Bf.tolist(), y_BD.tolist()


job = lockstep.torchrun(in_parts, **on_ranks)
for rank, (hidden, mine) in enumerate(job.results):
    print(f"rank {rank}: hidden {hidden[0]}, its part of y {mine[0]}")

# %% [markdown] id="columns-explained"
# The hidden numbers are *some of* the whole layer's, complete: relu can be applied to each part. What ranks have of *y*
# are *summands*: the whole *y* = [8, 3] is their sum. So nothing is sent between the two products, and one all-reduce
# follows.
#
# In the backward pass *x* is the mirror image: each rank computes a summand of the gradient of *x*, so there is an
# all-reduce. The gradient of *y* is on all ranks already.
#
# **Predict:** *x* and *y* are 250 kB each. How many kB does a rank send in a forward and a backward pass?
# (An all-reduce of *s* bytes: 2(N − 1)/N · *s*.)

# %% id="mlp-prediction" tags=["prediction"]
# your number, in kB, or a formula with NPROC
prediction = 2 * 2 * (NPROC - 1) / NPROC * 250

# %% [markdown] id="mlp-text"
# ### Exercise 1: an MLP on several ranks
#
# Autograd has to be told about the all-reduces. An `autograd.Function` says in `forward` what it returns for its
# argument, and in `backward` the gradient of its argument for the gradient of its result.
#
# **Goal:** `Enter` stands where *x* enters the cut part, `Leave` where *y* leaves it. `mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D)`
# returns the whole relu(*x* w1ᵀ + b1) w2ᵀ + b2 on every rank. Each rank computes with its own part of F only: of `w1_FD`,
# `b1_F` and `w2_DF`, the gradient is zero outside of that part. The gradients of `x_BD` and of `b2_D` are those of the whole
# layer, on every rank. N need not divide F. There is one all-reduce in the forward pass and one in the backward, each of
# as many bytes as `x_BD` has.


# %% id="mlp"
import torch
import torch.distributed as dist


def part(whole, dim):
    """This rank's part of a weight."""
    return whole.tensor_split(dist.get_world_size(), dim)[dist.get_rank()]


def summed(x):
    """The sum over the ranks, as a new tensor."""
    x = x.clone()
    dist.all_reduce(x)
    return x


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        # BEGIN SOLUTION
        return x
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        # BEGIN SOLUTION
        return summed(grad)
        # END SOLUTION


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        # BEGIN SOLUTION
        return summed(y)
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        # BEGIN SOLUTION
        return grad
        # END SOLUTION


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    # BEGIN SOLUTION
    h_Bf = Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return Leave.apply(torch.relu(h_Bf) @ part(w2_DF, 1).T) + b2_D
    # END SOLUTION


# %% id="mlp-check"
lockstep.check("mlp", mlp)

# %% [markdown] id="whole-text"
# Now with *x* of 250 kB, beside the whole layer on each rank. (Of a weight a rank has the gradient of its part. The sum
# over ranks is the whole.)

# %% id="whole"
mlp = lockstep.carry_on("mlp", mlp)


def errors(dtype):
    """Of y and the gradients of x, w1, b1, w2 and b2, against the whole."""
    torch.manual_seed(0)
    shapes = (125, 500), (250, 500), (250,), (500, 250), (500,)
    given = [torch.randn(s, dtype=dtype).to(lockstep.device()) for s in shapes]
    found = []
    for cut in (True, False):
        own = [one.clone().requires_grad_() for one in given]
        x, w1, b1, w2, b2 = own
        y = mlp(*own) if cut else torch.relu(x @ w1.T + b1) @ w2.T + b2
        y.square().sum().backward()
        found.append([y.detach(), *(one.grad for one in own)])
    dist.barrier()  # the step is over
    for grad in found[0][2:5]:
        dist.all_reduce(grad)
    pairs = zip(*found, strict=True)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


# %% id="whole-run"
rows = []
for dtype in (torch.float32, torch.float64):
    job = lockstep.torchrun(errors, dtype, **on_ranks)
    few = 10 * torch.finfo(dtype).eps
    shown = (f"{error:.0e}" if error >= few else "< 10 eps" for error in job[0])
    rows.append([str(dtype), *shown])
columns = ["dtype", "y", "x", "w1", "b1", "w2", "b2"]
title = "Errors of the cut MLP: y, and gradients"
stamp = lockstep.live(job)
display(lockstep.table(title, columns, rows, stamp=stamp))
job = lockstep.torchrun(errors, torch.float32, **on_ranks)
lockstep.compare(predicted=prediction, measured=kilobytes_sent(job))

# %% [markdown] id="column-claim-text"
# ### Claim: "a layer that is cut by columns needs an all-reduce of its output"
#
# [A course on inference](https://jared-hpc.com/course/part-2-dense-at-hopper/lecture-04/) joins slices of the output by an
# all-reduce. The cell has one layer, cut by columns, completes the output in two ways, and compares. **Guess**.

# %% id="column-guess" tags=["guess"]
guess = "does not hold"


# %% id="column"
def completed():
    """Whether each way makes the whole output."""
    n, device = dist.get_world_size(), lockstep.device()
    x_BD = torch.arange(96.0, device=device).view(12, 8)
    w_FD = torch.arange(24.0 * n, device=device).view(3 * n, 8)
    mine_Bf = x_BD @ w_FD.chunk(n)[dist.get_rank()].T
    parts = [torch.empty_like(mine_Bf) for _ in range(n)]
    dist.all_gather(parts, mine_Bf)
    dist.all_reduce(mine_Bf)
    ways = {"all-reduce": mine_Bf, "all-gather": torch.cat(parts, dim=1)}
    return {way: torch.equal(y, x_BD @ w_FD.T) for way, y in ways.items()}


job = lockstep.torchrun(completed, **on_ranks)
said = [f"{way}: {'' if ok else 'not '}right" for way, ok in job[0].items()]
lockstep.claim(
    "A layer that is cut by columns needs an all-reduce of its output.",
    guess=guess,
    verdict="holds" if job[0]["all-reduce"] else "does not hold",
    because="; ".join(said),
    stamp=lockstep.live(job),
)

# %% [markdown] id="column-explained"
# An all-reduce adds up *different* columns. Parts of the output are put side by side, by an all-gather, or they stay
# where they are if the next layer is cut by rows. Its output, in turn, is made of summands.

# %% [markdown] id="heads-text"
# ## 2 · Heads, vocabulary, loss
#
# Attention computes each head by itself. So the weights of queries, keys and values are cut by columns, at the borders
# of heads, and the output's weight by rows: one all-reduce each way again. If there are fewer key-value heads than
# ranks, several ranks have a *copy* of one. Each copy gets another gradient, and their sum is the gradient.
#
# ### A bug to diagnose
#
# An **embedding** is cut by vocabulary: each rank has some rows of the table. Tokens of other ranks' rows count as
# zeros, and an all-reduce follows. The next cell is **broken on purpose**: it saves work where a rank has none
# of the tokens. Look in the report for the ranks that wait, and for those that do not.


# %% id="embedding"
def embed(tokens):
    rank = dist.get_rank()
    table_vD = torch.ones(10, 4)  # tokens from 10 * rank to 10 * rank + 9
    token_T = torch.tensor(tokens) - 10 * rank
    is_mine_T = (token_T >= 0) & (token_T < 10)
    if not is_mine_T.any():
        return torch.zeros(len(tokens), 4)
    x_TD = table_vD[token_T.clamp(0, 9)] * is_mine_T[:, None]
    dist.all_reduce(x_TD)
    return x_TD


options = {"nproc_per_node": NPROC, "backend": "gloo", "may_fail": True}
job = lockstep.torchrun(embed, [3, 7, 12], **options)

# %% [markdown] id="embedding-explained"
# Ranks 0 and 1 have tokens; the others return early, and never come to the all-reduce. With two ranks nothing fails:
# such a bug waits for a batch without a token of some rank.
#
# At the other end of the model, the **logits** have one number for each token and each word of the vocabulary: the
# product is cut by columns, and each rank has `logits_Tv`. The cross entropy of a token is
#
# log Σ exp(logit) − (logit of the target).
#
# Gathering the logits is not needed: the sum is a sum over ranks, and one rank has the target. As exp of a large number
# overflows, the largest logit *m* of *all* ranks is subtracted first: log Σ exp(logit − *m*) + *m* is the same.
#
# **Predict:** V is 1200. Either all logits are gathered, or three numbers a token are all-reduced: the maximum, the
# sum, and the target's logit. How many times as many bytes does a rank *pass to its calls* in the first case?
# (To an all-gather it passes its own part.)

# %% id="loss-prediction" tags=["prediction"]
# your number, or a formula with NPROC
prediction = 1200 / NPROC / 3

# %% [markdown] id="loss-text"
# ### Exercise 2: a loss on logits that no rank has whole
#
# **Goal:** `vocabulary_loss(logits_Tv, target_T, start)` returns the cross entropy of each token, `loss_T`, the same
# on all ranks. The rank's logits are those of words `start`, `start` + 1, …; ranks may have different numbers of words.
# The backward pass gives `logits_Tv` its gradient, (softmax − 1 at the target, − 0 elsewhere) · gradient of `loss_T`,
# without any call. A rank passes at most three numbers a token to its calls, together. No logit
# is too large: 10,000 must work. `logits_Tv` stays as it is.


# %% id="vocabulary_loss"
import torch
import torch.distributed as dist


class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        # BEGIN SOLUTION
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both_2T = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both_2T)
        sum_T, hit_T = both_2T
        ctx.save_for_backward(e_Tv / sum_T[:, None] - is_target_Tv.to(e_Tv))
        return m_T + sum_T.log() - hit_T
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad_T):
        # BEGIN SOLUTION
        (slope_Tv,) = ctx.saved_tensors
        return slope_Tv * grad_T[:, None], None, None
        # END SOLUTION


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% id="vocabulary_loss-check"
lockstep.check("vocabulary_loss", vocabulary_loss)

# %% id="loss"
vocabulary_loss = lockstep.carry_on("vocabulary_loss", vocabulary_loss)


def loss_of(gathers):
    """The errors of the loss and of the gradient, in float64."""
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    logits_TV = torch.randn(64, 1200, dtype=torch.float64).to(device)
    target_T = torch.randint(1200, (64,)).to(device)
    logits_Tv = logits_TV.tensor_split(n, 1)[rank].contiguous().requires_grad_()
    if gathers:
        parts = [torch.empty_like(logits_Tv) for _ in range(n)]
        dist.all_gather(parts, logits_Tv.detach())
        return None
    loss_T = vocabulary_loss(logits_Tv, target_T, rank * 1200 // n)
    loss_T.sum().backward()
    logits_TV.requires_grad_()
    cross_entropy = torch.nn.functional.cross_entropy
    whole_T = cross_entropy(logits_TV, target_T, reduction="none")
    whole_T.sum().backward()
    off = logits_Tv.grad - logits_TV.grad.tensor_split(n, 1)[rank]
    return float((loss_T - whole_T).abs().max()), float(off.abs().max())


# %% id="loss-run"
both = [lockstep.torchrun(loss_of, way, **on_ranks) for way in (True, False)]
passed = [sum(call.bytes for call in job.calls[0]) for job in both]
off, slope = both[1][0]
print(f"loss and gradient are right to 1e-12: {off < 1e-12} {slope < 1e-12}")
print(f"bytes passed to calls: {passed[0]:,} gathered, {passed[1]:,} not")
print(lockstep.live(both[1]))
lockstep.compare(predicted=prediction, measured=passed[0] / passed[1])

# %% [markdown] id="sequence-text"
# ## 3 · Sequence parallelism
#
# Between two cut blocks the activations, `x_BSD`, are on all ranks; each applies the same norm and the same dropout to
# them. Work and memory are spent N times. The remedy: an all-reduce is a reduce-scatter and an all-gather (lab 03).
# Put the norm between the two, where each rank has a part of the *sequence*:
#
# | | with all-reduces | with sequence parallelism |
# | --- | --- | --- |
# | before the block, forward | – (`Enter`) | all-gather |
# | after the block, forward | all-reduce (`Leave`) | reduce-scatter |
# | after the block, backward | – | all-gather |
# | before the block, backward | all-reduce | reduce-scatter |
#
# For the backward pass, a norm keeps its input, and dropout keeps which numbers it dropped, one byte each.
#
# **Predict:** `x_BSD` has 240,000 numbers of float32. How many kB do a norm and a dropout keep on each rank if each has a
# part of the sequence?

# %% id="kept-prediction" tags=["prediction"]
# your number, in kB, or a formula with NPROC
prediction = 240_000 * (4 + 1) / 1000 / NPROC


# %% id="kept"
def kept_by_norm_and_dropout(sequence):
    """kB kept for the backward pass, of tensors as large as x."""
    x_BSD = torch.randn(2, sequence, 1000, requires_grad=True)
    sizes = []

    def keep(tensor):
        sizes.append(tensor.nbytes if tensor.numel() == x_BSD.numel() else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        torch.nn.functional.layer_norm(x_BSD, (1000,))
        torch.native_dropout(x_BSD, 0.1, True)
    return sum(sizes) / 1000


one_rank = {"nproc_per_node": 1, "init": False, "show": False}
all_of_it, short = (
    lockstep.torchrun(kept_by_norm_and_dropout, length, **one_rank)
    for length in (120, 120 // NPROC)
)
print(f"whole sequence: {all_of_it[0]:,.0f} kB, a part: {short[0]:,.0f} kB")
print(lockstep.live(short))
lockstep.compare(predicted=prediction, measured=short[0])

# %% [markdown] id="block-text"
# Dropout needs care. Where all ranks have the *same* activations, they must drop the same numbers, or their copies
# differ from then on (the further notebook measures it). Where they have *different* ones (another part of F, another
# part of S), they must draw different random numbers, or the same pattern is dropped in each part.
#
# ### Exercise 3: a block cut by sequence
#
# **Goal:** `block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed)` gets this rank's part of the sequence and of the weights. It
# returns this rank's part of drop(drop(relu(norm(x) · gain · w1ᵀ)) · w2ᵀ). The norm works on the rank's own positions
# only. `Gather` and `Scatter` are the two new
# Functions; the ready-made `everybody` and `my_sum` make their calls. Forward and backward have two all-gathers and
# two reduce-scatters. The gradient of `gain_D` is that of *all* positions, on every rank; for that one all-reduce of D
# numbers is allowed. `drop(tensor, seed)` is called twice. Its seeds are integers from `seed` to `seed` + 999; no two of all
# ranks and both calls are equal.


# %% id="block"
import torch
import torch.distributed as dist


def everybody(x_BsD):
    """The parts of all ranks: x_BSD."""
    parts = [torch.empty_like(x_BsD) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x_BsD.contiguous())
    return torch.cat(parts, dim=1)


def my_sum(y_BSD):
    """This rank's part of the sum over ranks: y_BsD."""
    parts = y_BSD.chunk(dist.get_world_size(), dim=1)
    parts = [one.contiguous() for one in parts]
    y_BsD = torch.empty_like(parts[0])
    dist.reduce_scatter(y_BsD, parts)
    return y_BsD


def norm(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        # BEGIN SOLUTION
        return everybody(x_BsD)
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad_BSD):
        # BEGIN SOLUTION
        return my_sum(grad_BSD)
        # END SOLUTION


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        # BEGIN SOLUTION
        return my_sum(y_BSD)
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad_BsD):
        # BEGIN SOLUTION
        return everybody(grad_BsD)
        # END SOLUTION


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    # BEGIN SOLUTION
    seed += dist.get_rank()
    x_BsD = norm(x_BsD) * Enter.apply(gain_D)
    h_BSf = drop(torch.relu(Gather.apply(x_BsD) @ w1_fD.T), seed)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + dist.get_world_size())
    # END SOLUTION


# %% id="block-check"
lockstep.check("block", block)

# %% [markdown] id="free-text"
# ### Claim: "sequence parallelism adds no communication"
#
# [Korthikanti and others](https://arxiv.org/abs/2205.05198) say so in section 4.2.2, as a ring all-reduce is made of the
# two. The cell counts a forward and a backward pass with `Enter` and `Leave`, and with your block; then with your
# block gathered once more in the backward pass, as these authors do so as not to keep the gathered `x_BSD`. Let at most 1 %
# more be nothing. **Guess** for your block.

# %% id="free-guess" tags=["guess"]
guess = "holds"


# %% id="free"
block = lockstep.carry_on("block", block)
mlp = lockstep.carry_on("mlp")


def one_block(how):
    from torch.utils.checkpoint import checkpoint

    n, device = dist.get_world_size(), lockstep.device()
    sequence = 120 if how == "all-reduces" else 120 // n
    x = torch.randn(2, sequence, 1000, device=device, requires_grad=True)
    gain, b1 = torch.ones(1000, device=device), torch.zeros(24, device=device)
    w1, w2 = torch.randn(24, 1000).to(device), torch.randn(1000, 24).to(device)
    gain.requires_grad_(how == "sequence")
    keep = lambda x, seed: x
    if how == "all-reduces":
        y = mlp(x, w1, b1, w2, gain)
    elif how == "sequence":
        y = block(x, gain, w1, w2, keep, 0)
    else:
        how = {"use_reentrant": False, "early_stop": True}
        y = checkpoint(block, x, gain, w1, w2, keep, 0, **how)
    y.sum().backward()


# %% id="free-claim"
WAYS = "all-reduces", "sequence", "sequence, gathered again"
jobs = {way: lockstep.torchrun(one_block, way, **on_ranks) for way in WAYS}
sent = {way: kilobytes_sent(job) for way, job in jobs.items()}
times = {way: sent[way] / sent["all-reduces"] for way in WAYS[1:]}
lockstep.claim(
    "Sequence parallelism adds no communication.",
    guess=guess,
    verdict="holds" if times["sequence"] <= 1.01 else "does not hold",
    because=f"all-reduces: {sent['all-reduces']:,.0f} kB a rank; "
    + "; ".join(f"{way}: {one:.3f} times" for way, one in times.items()),
    stamp=lockstep.live(jobs["sequence"]),
)

# %% [markdown] id="free-explained"
# It is not free: gathering once more costs a quarter more. These authors hide that behind products (section 5).
#
# **Break.** The first sitting ends here. You have cut an MLP, a loss and a norm. In the second sitting attention itself
# is cut by sequence, and communication is hidden.

# %% [markdown] id="merge-text"
# ## 4 · Context parallelism
#
# A sequence of a million tokens does not fit one GPU even in attention, where every query needs every key. In **context
# parallelism** each rank has a part of the sequence: its queries stay, and keys and values travel.
#
# A rank that has seen some keys only has a *partial* softmax: for each query the maximum *m* of its scores, the sum *l*
# of exp(score − *m*), and the sum *o* of exp(score − *m*) · value. Two such triples, of different keys, can be merged,
# because exp(score − *m*) = exp(score − *m'*) · exp(*m'* − *m*). In the end *o*/*l* is attention.
#
# ### Exercise 4: merge partial softmaxes
#
# **Goal:** `merge(one, other)` gets two triples `(m, l, o)`, of shapes BHS, BHS and BHSE. It returns the triple of all keys
# of both. Where a query may see no key of a part, that part has *m* = −∞ and zeros; this may be true of both. Scores may
# be as large as 10,000. The arguments stay as they are.


# %% id="merge"
import torch


def merge(one, other):
    # BEGIN SOLUTION
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)  # −∞ − −∞ is no number
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o
    # END SOLUTION


# %% id="merge-check"
lockstep.check("merge", merge)

# %% [markdown] id="ring-text"
# In **ring attention** ([Liu and others, 2023](https://arxiv.org/abs/2310.01889)) keys and values go round: in each of N
# rounds a rank computes with the keys that it has, while it passes them on to the next rank. In a *causal* model a
# position sees itself and what is before it.
#
# **Predict:** keys are 240 kB on each rank, values as much. How many kB does a rank send?

# %% id="ring-prediction" tags=["prediction"]
# your number, in kB, or a formula with NPROC
prediction = (NPROC - 1) * 2 * 240

# %% [markdown] id="ring-goal"
# ### Exercise 5: ring attention
#
# **Goal:** `ring_attention(q_BHsE, k_BHsE, v_BHsE, places)` returns the attention of this rank's queries to the keys of all
# ranks. If `places` is `None`, every position sees all. Otherwise `places[r]` is a tensor with the positions in the sequence
# that rank *r* has, and the attention is causal. `partial`, `merge`, `seen` and `pass_on` are there. A rank sends its keys and
# values N − 1 times, always to the next rank. A round's messages travel while its `partial` computes: on four virtual
# GPUs at least 80 % of them are hidden. All ranks have equally many positions.


# %% id="ring_attention"
import torch
import torch.distributed as dist


def partial(q, k, v, sees):
    """The triple (m, l, o) for these keys; sees: which ones, or None."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if sees is not None:
        scores = scores.masked_fill(~sees, float("-inf"))
    m = scores.amax(-1)
    p = (scores - torch.where(m.isinf(), 0, m)[..., None]).exp()
    return m, p.sum(-1), p @ v


def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


def seen(places, owner):
    """Which of the owner's keys this rank's queries see; None: all."""
    if places is not None:
        return places[dist.get_rank()][:, None] >= places[owner]


def pass_on(tensors):
    """Start to send these to the next rank: what will come, and handles."""
    rank, n = dist.get_rank(), dist.get_world_size()
    coming, both = [torch.empty_like(one) for one in tensors], []
    for one, other in zip(tensors, coming, strict=True):
        both.append(dist.P2POp(dist.isend, one, (rank + 1) % n))
        both.append(dist.P2POp(dist.irecv, other, (rank - 1) % n))
    return coming, dist.batch_isend_irecv(both)


def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    # BEGIN SOLUTION
    rank, n, total = dist.get_rank(), dist.get_world_size(), None
    for turn in range(n):
        coming, handles = (k_BHsE, v_BHsE), []
        if turn < n - 1:
            coming, handles = pass_on([k_BHsE, v_BHsE])
        sees = seen(places, (rank - turn) % n)
        mine = partial(q_BHsE, k_BHsE, v_BHsE, sees)
        total = mine if total is None else merge(total, mine)
        for handle in handles:
            handle.wait()
        k_BHsE, v_BHsE = coming
    return total[2] / total[1][..., None]
    # END SOLUTION


# %% id="ring_attention-check"
lockstep.check("ring_attention", ring_attention)

# %% id="ring"
ring_attention = lockstep.carry_on("ring_attention", ring_attention)


def zigzag(S, n):
    """Positions for each rank: of 2n pieces, one from each end."""
    pieces = torch.arange(S).chunk(2 * n)
    return [torch.cat([pieces[r], pieces[-1 - r]]) for r in range(n)]


def with_all_keys(how, E=50):
    """The largest error against attention over the whole, in float32."""
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    S = 600 * n  # 240 kB of keys on each rank
    q, k, v = (torch.randn(1, 2, S, E).to(device) for _ in range(3))
    places = zigzag(S, n) if how == "zigzag" else torch.arange(S).chunk(n)
    places = [one.to(device) for one in places]
    mine = [one[:, :, places[rank]].contiguous() for one in (q, k, v)]
    got = ring_attention(*mine, None if how == "not causal" else places)
    attend = torch.nn.functional.scaled_dot_product_attention
    whole = attend(q, k, v, is_causal=how != "not causal")
    return float((got - whole[:, :, places[rank]]).abs().max())


# %% id="ring-run"
jobs, rows = {}, []
for how in ("not causal", "causal", "zigzag"):
    jobs[how] = job = lockstep.torchrun(with_all_keys, how, **on_ranks)
    rows.append([how, max(job.results) < 1e-5, f"{kilobytes_sent(job):,.0f}"])
columns, stamp = ["parts", "error below 1e-5", "kB sent"], lockstep.live(job)
title = "Ring attention against the whole, float32"
display(lockstep.table(title, columns, rows, stamp=stamp))
lockstep.compare(predicted=prediction, measured=kilobytes_sent(jobs["causal"]))

# %% [markdown] id="zigzag-text"
# A causal mask leaves work out, but not evenly. With *plain* parts rank *r* has the *r*-th part of the sequence: it sees
# half of the pairs of its own part, all of the parts before, and nothing of the parts after. In the first round each
# rank has its own keys. In every later round some rank has a whole part to compute with, and the ring waits for it.
#
# **Predict:** eight ranks, plain parts. A whole part takes 1, half of it ½, messages nothing. In what percentage of the
# time does a rank compute, on average?

# %% id="busy-prediction" tags=["prediction"]
# your number, in %
prediction = 100 * (8 / 2 + 7 * 8 / 2) / (8 * (1 / 2 + 7))

# %% id="busy"
published = lockstep.published("ring-flash-attention")
reached = published.values["percent_of_eight_times_one"]
plain = reached["8 H800s, forward"]["plain"]
lockstep.compare(predicted=prediction, published=plain, unit="%")

# %% [markdown] id="zigzag-goal"
# This is what the ring of [ring-flash-attention](https://github.com/zhuzilin/ring-flash-attention), a program for GPUs,
# reached on eight H800s, where 100 % is eight times what one of them does alone.
#
# **Zigzag** parts mend it: of 2N pieces, rank *r* has the *r*-th from the beginning and the *r*-th from the end. The
# program needs other `places`, nothing else.
#
# ### Claim: "zigzag parts are better balanced"
#
# [ring-flash-attention](https://github.com/zhuzilin/ring-flash-attention) says so, and has times of both on two kinds of
# GPUs, forward alone and with the backward pass. **Guess:** do zigzag parts reach more in all four cases?

# %% id="zigzag-guess" tags=["guess"]
guess = "holds"

# %% id="zigzag-claim"
ok = [one["zigzag"] > one["plain"] for one in reached.values()]
said = [f"{k}: {v['plain']} and {v['zigzag']} %" for k, v in reached.items()]
lockstep.claim(
    "Zigzag parts are better balanced.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="plain and zigzag parts reach, " + "; ".join(said),
    stamp=published.stamp,
)

# %% id="zigzag-dials"
lockstep.interactive.ring_attention(ranks=8)

# %% [markdown] id="zigzag-explained"
# Choose other `parts` and other ranks, and see who waits for whom. Zigzag parts give each rank half of the pairs in every
# round.
#
# **All keys at once** (an all-gather) is simpler, sends as much as the ring, and needs memory for all keys. **Ulysses**
# ([Jacobs and others, 2023](https://arxiv.org/abs/2309.14509)) exchanges the roles: an all-to-all gives each rank the whole
# sequence for *some heads*, and another one brings the result back. The further notebook counts the bytes of both.

# %% [markdown] id="pieces-text"
# ## 5 · Hiding it
#
# Before a layer that is cut by columns stands an all-gather of *x*, and its product needs all rows. So the two
# cannot overlap, as they are. But a rank has its *own* rows from the start, and can multiply them while others'
# travel. And if the rows travel in pieces, a product can begin when its piece is there.
#
# **Predict:** four ranks. A rank's own product takes 617 µs; its all-gather takes 1269 µs and is one piece.
# What percentage of the all-gather can the own product hide?

# %% id="own-prediction" tags=["prediction"]
# your number, in %
prediction = 100 * 617 / 1269

# %% [markdown] id="gather_and_multiply-text"
# ### Exercise 6: a product that does not wait
#
# **Goal:** `gather_and_multiply(x_sD, w_fD, pieces)` returns `x_SD @ w_fD.T` for the rows of all ranks, in the order of the
# ranks. It starts one all-gather for each of `x_sD.chunk(pieces)`; `start` does so, and returns a list with a tensor for each
# rank, and a handle. No product waits for a row that it does not need. On four virtual GPUs, with four pieces, at
# least 95 % is hidden of what can be.


# %% id="gather_and_multiply"
import torch
import torch.distributed as dist


def start(piece):
    """Gather this piece of all ranks: a tensor for each, and a handle."""
    parts = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    return parts, dist.all_gather(parts, piece, async_op=True)


def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]  # of each rank's rows, in order
    # BEGIN SOLUTION
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in coming:
        handle.wait()
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    # END SOLUTION
    return torch.cat([product for some in products for product in some])


# %% id="gather_and_multiply-check"
lockstep.check("gather_and_multiply", gather_and_multiply)

# %% id="pieces"
name = "gather_and_multiply"
gather_and_multiply = lockstep.carry_on(name, gather_and_multiply)


def layer(cuda, pieces):
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    x_sD = torch.randn(8192, 8192, **shape)
    w_fD = torch.randn(3072, 8192, **shape)
    cuda.synchronize()
    dist.barrier()
    if pieces:
        gather_and_multiply(x_sD, w_fD, pieces)
    else:  # first the rows, then the product
        parts = [torch.empty_like(x_sD) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x_sD)
        torch.cat(parts) @ w_fD.T
    cuda.synchronize()


# %% id="pieces-run"
PIECES, rows = (0, 1, 2, 4, 8), []
runs = {pieces: on_gpus(layer, pieces, ranks=4) for pieces in PIECES}
for pieces, seen in runs.items():
    total, share = seen.hidden()
    how = pieces or "gathered first"
    rows.append([how, f"{total:,.0f}", f"{100 * share:.0f} %"])
columns, stamp = ["pieces", "all-gathers, µs", "hidden"], runs[1].stamp
display(lockstep.table("A layer on four GPUs", columns, rows, stamp=stamp))
display(runs[1].compare(prediction, 100 * runs[1].hidden()[1], "%"))
title = "Gathered first; then in four pieces"
lockstep.Timeline(runs[4].trace, before=runs[0].trace, title=title)

# %% [markdown] id="async-text"
# More pieces cost more: each has its own α, small products use the GPU less well, and a collective that wants to begin
# waits until a product gives it room on the SMs.
#
# ### Claim: "async tensor parallelism is faster"
#
# [PyTorch's
# authors](https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487)
# report gains for this technique: `fused_all_gather_matmul` moves pieces by copy engines, which take no SMs, and
# `fused_matmul_reduce_scatter` is its mirror image. Recorded on two H200s: both, called one at a time, and launched
# ahead, as in a long step. **Guess:** is fused faster in all four cases?

# %% id="async-guess" tags=["guess"]
guess = "depends"

# %% id="async-claim"
recording = lockstep.recorded("overlap/async-tp-h200-x2.json")
PAIRS = {"all-gather": "all-gather, then product",
         "reduce-scatter": "product, then reduce-scatter"}  # fmt: skip
hidden = {}  # the time gained, as a part of the collective's own
for how, key in (("called", "seconds"), ("launched ahead", "seconds_ahead")):
    seconds = recording.content[key]
    for collective, apart in PAIRS.items():
        fused = "fused " + apart.replace(", then", " and")
        gain = seconds[apart] - seconds[fused]
        hidden[f"{collective}, {how}"] = gain / seconds[collective]
ok = [share > 0 for share in hidden.values()]
said = [f"{case} {100 * part:.0f} %" for case, part in hidden.items()]
lockstep.claim(
    "Async tensor parallelism is faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="hidden: " + "; ".join(said),
    stamp=recording.stamp,
)

# %% [markdown] id="async-explained"
# A fused operation is many small launches. Called alone, the device waits for the host between them; the
# reduce-scatter is so short that this costs as much as the whole of it (−93 %). Launched ahead, two thirds of the
# all-gather are hidden, and little of the reduce-scatter, as splitting the product costs something, too.

# %% [markdown] id="dtensor-text"
# ## 6 · DTensor
#
# PyTorch describes such layers as **placements**: a `DTensor` is on each rank of a `DeviceMesh` a `Shard(dim)` (a part), a
# `Replicate()` (a copy), or a `Partial()` (a summand). `parallelize_module` puts the calls where placements
# do not fit. Your block in a plan of three lines: `SequenceParallel` takes and gives `Shard(1)`, a part of the sequence;
# the other two say what they are given or give.


# %% id="dtensor"
def cut_by_torch(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, parallel

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan = {
        "norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "down": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallel.parallelize_module(model, mesh, plan)


# %% id="torch-block"
def torch_block(x_BSD, weights):
    """y, the gradients of x, gain and two weights, and how these lie."""
    from collections import OrderedDict

    norm, relu = torch.nn.RMSNorm(64, eps=0.0), torch.nn.ReLU()
    up, down = torch.nn.Linear(64, 240, False), torch.nn.Linear(240, 64, False)
    layers = OrderedDict(norm=norm, up=up, relu=relu, down=down)
    model, device = torch.nn.Sequential(layers), lockstep.device()
    for own, one in zip(model.parameters(), weights, strict=True):
        own.data = one
    model = cut_by_torch(model.to(device))
    x_BsD = x_BSD.chunk(dist.get_world_size(), 1)[dist.get_rank()].to(device)
    x_BsD = x_BsD.clone().requires_grad_()
    dist.barrier()  # what follows is the step
    y_BsD = model(x_BsD)
    y_BsD.square().sum().backward()
    dist.barrier()
    grads, found = [one.grad for one in model.parameters()], [y_BsD, x_BsD.grad]
    for grad in grads:  # summands are added up, so that they can be compared
        partial = grad.placements[0].is_partial()
        found.append(grad.full_tensor() if partial else grad.to_local())
    placed = [str(grad.placements[0]) for grad in grads]
    return [one.detach().cpu() + 0 for one in found], placed


# %% id="our-block"
block = lockstep.carry_on("block")


def our_block(x_BSD, weights):
    rank, n = dist.get_rank(), dist.get_world_size()
    gain_D, w1_FD, w2_DF = weights
    x_BsD, w2_Df = x_BSD.chunk(n, 1)[rank], w2_DF.chunk(n, 1)[rank]
    cut = x_BsD, gain_D, w1_FD.chunk(n)[rank], w2_Df
    own = [one.to(lockstep.device()).clone().requires_grad_() for one in cut]
    dist.barrier()
    y_BsD = block(*own, lambda x, seed: x, 0)
    y_BsD.square().sum().backward()
    dist.barrier()
    return [one.detach().cpu() for one in (y_BsD, *(x.grad for x in own))]


def step_of(job):
    """The calls between the two barriers."""
    names = [call.operation for call in job.calls[0]]
    first = names.index("barrier")
    return job.calls[0][first + 1 : names.index("barrier", first + 1)]


# %% [markdown] id="dtensor-claim-text"
# ### Claim: "DTensor makes the large calls that one would write by hand"
#
# [PyTorch's tutorial](https://github.com/pytorch/tutorials/blob/main/intermediate_source/TP_tutorial.rst) says that they
# happen automatically. Which ones, in which order, and of how many bytes? Large is more than 1 kB. **Guess**.

# %% id="dtensor-guess" tags=["guess"]
guess = "holds"

# %% id="dtensor-run"
shapes = (2, 120, 64), (64,), (240, 64), (64, 240)
x_BSD, *weights = (torch.randn(shape) for shape in shapes)
torchs = lockstep.torchrun(torch_block, x_BSD, weights, **on_ranks)
ours = lockstep.torchrun(our_block, x_BSD, weights, **on_ranks)
rows = []
for name, job in (("DTensor", torchs), ("yours", ours)):
    rows += [[name, call.operation, f"{call.bytes:,}"] for call in step_of(job)]
columns, stamp = ["whose", "call", "bytes"], lockstep.live(torchs)
title = "A forward and a backward pass"
display(lockstep.table(title, columns, rows, stamp=stamp))
pairs = zip(ours[0], torchs[0][0], strict=True)
same = [bool((a - b).norm() < 1e-5 * a.norm()) for a, b in pairs]
print("y, and gradients of x, gain, w1, w2: the same", *same)
print("gradients of gain, w1, w2 are placed as", *torchs[0][1])

# %% id="dtensor-claim"
jobs = {"DTensor": torchs, "you": ours}
calls = {who: [c for c in step_of(jobs[who]) if c.bytes > 1000] for who in jobs}
kinds = [[(c.operation[:10], c.bytes) for c in some] for some in calls.values()]
lockstep.claim(
    "DTensor makes the large calls that one would write by hand.",
    guess=guess,
    verdict="holds" if kinds[0] == kinds[1] else "does not hold",
    because="; ".join(
        f"{who}: {', '.join(f'{kind} {size:,} B' for kind, size in some)}"
        for who, some in zip(calls, kinds, strict=True)
    ),
    stamp=lockstep.live(torchs),
)

# %% [markdown] id="dtensor-explained"
# The four large calls are yours. Only the gain's gradient differs: DTensor leaves it as it is, a
# `Partial`, each rank's summand. It is added up when somebody needs the whole, as the optimizer does.

# %% [markdown] id="recap"
# ## Recap
#
# - Columns, then rows: one all-reduce forward and one backward. Parts are put side by side, summands are added up.
# - What all ranks have and each uses for its part has the sum over ranks as its gradient.
# - A loss needs three numbers a token of each rank, not the logits.
# - Sequence parallelism sends as much, and keeps an N-th of what lies between blocks.
# - Ring attention merges partial softmaxes; causal masks want zigzag parts.
# - An all-gather hides behind its own product if own rows come first and the others in pieces, but not too many.
#
# **What is still slow:** each block waits for its ranks four times. Between hosts that is too much; there the model is cut
# along its depth (lab 10).

# %% [markdown] id="further"
# # 09 · Tensor, sequence and context parallelism: going further
#
# Choose: each section stands on its own and says how long it takes. Run the cells above the first heading before it.
# Where a section uses an answer of the lab's, it takes the course's; to use yours, copy its cell and its check here.

# %% [markdown] id="heads-further-text"
# ## Heads that the ranks do not divide
#
# About 10 minutes; a CPU is enough.
#
# ### Claim: "the number of ranks must divide the number of heads"
#
# [vLLM](https://github.com/vllm-project/vllm/issues/414) refuses other numbers. The cell has 2N + 1 query heads and one
# key-value head. The first rank has three query heads, each other rank two, and all have a copy of the
# key-value head. Does it compute what one process does? **Guess**.

# %% id="heads-guess" tags=["guess"]
guess = "does not hold"


# %% id="heads"
def attention(heads):
    """The largest error, and the heads of this rank."""
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    S, D, E = 6, 16, 4
    x_SD = torch.randn(S, D).to(device)
    wq_HED, wo_HED = (torch.randn(heads, E, D).to(device) for _ in range(2))
    wk_ED, wv_ED = (torch.randn(E, D).to(device) for _ in range(2))

    def output(wq_hED, wo_hED):
        q_hSE = torch.einsum("sd,hed->hse", x_SD, wq_hED)
        p_hSS = (q_hSE @ (x_SD @ wk_ED.T).T / E**0.5).softmax(-1)
        return torch.einsum("hse,hed->sd", p_hSS @ (x_SD @ wv_ED.T), wo_hED)

    mine = wq_HED.tensor_split(n)[rank], wo_HED.tensor_split(n)[rank]
    y_SD, whole_SD = output(*mine), output(wq_HED, wo_HED)
    dist.all_reduce(y_SD)
    return float((y_SD - whole_SD).abs().max()), len(mine[0])


# %% id="heads-claim"
job = lockstep.torchrun(attention, 2 * NPROC + 1, **on_ranks)
same = all(error < 1e-4 for error, _ in job.results)
heads = [own for _, own in job.results]
most = max(heads) * NPROC / sum(heads)
lockstep.claim(
    "The number of ranks must divide the number of heads.",
    guess=guess,
    verdict="does not hold" if same else "holds",
    because=f"{', '.join(map(str, heads))} heads give the "
    f"{'right' if same else 'wrong'} output; the busiest rank computes "
    f"{most:.2f} times the mean",
    stamp=lockstep.live(job),
)

# %% [markdown] id="heads-further-explained"
# It is right, but all wait for the rank that has most. Programs refuse it for that, and because equal shapes are simpler.
#
# All ranks have a copy of the key-value head. Each computes with it for its own query heads only, so that each copy gets
# another gradient. The cell shows, in float64, how far a rank's own gradient of the keys' weight is from that of one
# process, and how far the sum over the ranks.


# %% id="copies"
def gradient_of_a_copy():
    """The errors of this rank's gradient and of the sum over ranks."""
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    S, H, D, E = 6, 2 * n, 16, 4
    shapes = (S, D), (H, E, D), (E, D), (E, D), (S, H, E)
    given = [torch.randn(s, dtype=torch.float64).to(device) for s in shapes]
    x_SD, wq_HED, wk_ED, wv_ED, weight_SHE = given

    def gradient(heads):
        """The keys' gradient by these query heads."""
        wk = wk_ED.clone().requires_grad_()
        q_hSE = torch.einsum("sd,hed->hse", x_SD, wq_HED[heads])
        p_hSS = (q_hSE @ (x_SD @ wk.T).T / E**0.5).softmax(-1)
        y_ShE = (p_hSS @ (x_SD @ wv_ED.T)).transpose(0, 1)
        (y_ShE * weight_SHE[:, heads]).sum().backward()
        return wk.grad

    whole, own = gradient(slice(H)), gradient(slice(2 * rank, 2 * rank + 2))
    off = float((own - whole).norm() / whole.norm())
    dist.all_reduce(own)
    return off, float((own - whole).norm() / whole.norm())


# %% id="copies-run"
job = lockstep.torchrun(gradient_of_a_copy, **on_ranks)
rows = [
    [rank, f"{100 * own:.0f} %", "< 10⁻¹²" if total < 1e-12 else total]
    for rank, (own, total) in enumerate(job.results)
]
columns = ["rank", "its own gradient is off by", "the sum is off by"]
title = "A key-value head of which each rank has a copy"
lockstep.table(title, columns, rows, stamp=lockstep.live(job))

# %% [markdown] id="copies-explained"
# So copies need an all-reduce of their gradient, as `gain_D` of exercise 3 does. Without it each rank updates its copy in
# another way, and they are no copies any more after the first step.

# %% [markdown] id="doubles-text"
# ## The exercises in float64
#
# About 10 minutes; a CPU is enough. Are small errors those of float32, or mistakes? In float64 a mistake stays as large as
# it is, and rounding shrinks to 16 digits. The cells compare block, ring and product with the whole, forward, and the
# block's gradients, too.


# %% id="doubles"
def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64).to(lockstep.device())


def off_by(ours, whole):
    return float((ours - whole).norm() / whole.norm())


def block_errors(block):
    """Of y and the gradients of x, gain, w1 and w2."""
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = numbers(2, 4 * n, 32), numbers(32), numbers(8 * n, 32)
    whole = [one.requires_grad_() for one in (*whole, numbers(32, 8 * n))]
    x, gain, w1, w2 = whole
    size = x.square().mean(-1, keepdim=True).sqrt()
    y = torch.relu((x / size * gain) @ w1.T) @ w2.T
    y.square().sum().backward()
    part = lambda one, dim: one if dim is None else one.chunk(n, dim)[rank]
    dims = 1, None, 0, 1
    pairs = list(zip(whole, dims, strict=True))
    own = [part(one.detach(), dim).clone() for one, dim in pairs]
    own = [one.requires_grad_() for one in own]
    ours = block(*own, lambda x, seed: x, 0)
    ours.square().sum().backward()
    found = [off_by(ours, part(y, 1))]
    for mine, (one, dim) in zip(own, pairs, strict=True):
        found.append(off_by(mine.grad, part(one.grad, dim)))
    return found


# %% id="doubles-others"
def ring_errors(ring_attention):
    """All keys seen, causal, and causal with zigzag parts."""
    torch.manual_seed(0)
    rank, n, found = dist.get_rank(), dist.get_world_size(), []
    q, k, v = numbers(3, 1, 2, 8 * n, 16)
    pieces = torch.arange(8 * n).to(q.device).chunk(2 * n)
    plain = [torch.cat([pieces[2 * r], pieces[2 * r + 1]]) for r in range(n)]
    zigzag = [torch.cat([pieces[r], pieces[-1 - r]]) for r in range(n)]
    attend = torch.nn.functional.scaled_dot_product_attention
    for places, is_causal in ((plain, False), (plain, True), (zigzag, True)):
        own = [one[:, :, places[rank]].contiguous() for one in (q, k, v)]
        ours = ring_attention(*own, places if is_causal else None)
        whole = attend(q, k, v, is_causal=is_causal)
        found.append(off_by(ours, whole[:, :, places[rank]]))
    return found


def product_errors(gather_and_multiply):
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    x_SD, w_FD = numbers(6 * n, 32), numbers(8 * n, 32)
    w_fD = w_FD.chunk(n)[rank]
    ours = gather_and_multiply(x_SD.chunk(n)[rank].contiguous(), w_fD, 4)
    return [off_by(ours, x_SD @ w_fD.T)]


# %% id="doubles-run"
ERRORS = {
    "block": (block_errors, "y, gradients of x, gain, w1, w2"),
    "ring_attention": (ring_errors, "all keys, causal, zigzag"),
    "gather_and_multiply": (product_errors, "the product"),
}
rows = []
for name, (compare, what) in ERRORS.items():
    answer = lockstep.carry_on(name)
    job = lockstep.torchrun(compare, answer, **on_ranks)
    most = [max(every) for every in zip(*job.results, strict=True)]
    said = ["< 10⁻¹⁴" if one < 1e-14 else f"{one:.0e}" for one in most]
    rows.append([name, what, ", ".join(said)])
columns = ["exercise", "errors of", "largest on any rank"]
title = "Relative errors against the whole, in float64"
lockstep.table(title, columns, rows, stamp=lockstep.live(job))

# %% [markdown] id="drift-text"
# ## Dropout, each rank by itself
#
# About 5 minutes; a CPU is enough. With tensor parallelism alone, all ranks have the same activations between two
# blocks, and have to drop the same numbers.
#
# **Predict:** each rank draws its own random numbers all the same, and each number is dropped with probability
# ½. What percentage of the numbers is equal on all ranks afterwards?

# %% id="drift-prediction" tags=["prediction"]
# your number, in %, or a formula with NPROC
prediction = 100 * 2 * 0.5**NPROC  # dropped by all, or by none


# %% id="drift"
def drop(x, seed):
    """Drop half of the numbers, by random numbers of this seed."""
    generator = torch.Generator(x.device).manual_seed(seed)
    random = torch.rand(x.shape, generator=generator, device=x.device)
    return x * (random < 0.5) * 2


def dropped():
    x = drop(torch.ones(100_000, device=lockstep.device()), dist.get_rank())
    least, most = x.clone(), x.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return 100 * float((least == most).float().mean())


job = lockstep.torchrun(dropped, **on_ranks)
print(lockstep.live(job))
lockstep.compare(predicted=prediction, measured=job[0], unit="%")

# %% [markdown] id="ulysses-text"
# ## All-to-all over heads
#
# About 20 minutes; a CPU is enough. In **Ulysses** an all-to-all gives each rank the whole sequence for *some heads*, and
# another one brings the result back. In an all-to-all a rank keeps its own part of *s* bytes, and sends (N − 1)/N · *s*.
#
# **Predict:** on each of four ranks queries, keys and values are 16.384 kB each. How many kB does a rank send?

# %% id="ulysses-prediction" tags=["prediction"]
# your number, in kB
prediction = 4 * 3 / 4 * 16.384  # queries, keys, values, and the result


# %% id="ulysses"
ring_attention = lockstep.carry_on("ring_attention")


def gathered(x_HsE):
    """All positions of all heads."""
    parts = [torch.empty_like(x_HsE) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x_HsE)
    return torch.cat(parts, dim=1)


def to_heads(x_HsE):
    """All positions of this rank's heads, from this rank's of all heads."""
    x_HsE, n = x_HsE.contiguous(), dist.get_world_size()
    if len(x_HsE) < n:  # too few heads: everybody gets all of them
        return gathered(x_HsE)
    got = torch.empty_like(x_HsE)
    dist.all_to_all_single(got, x_HsE)
    return torch.cat(got.chunk(n), dim=1)


def to_positions(y_hSE):
    """All heads of this rank's positions."""
    n = dist.get_world_size()
    y = torch.cat(y_hSE.chunk(n, dim=1)).contiguous()
    got = torch.empty_like(y)
    dist.all_to_all_single(got, y)
    return got


# %% id="ulysses-attention"
def long_attention(way, heads):
    """The largest error."""
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    q, k, v = (torch.randn(h, 128, 16).to(device) for h in (8, heads, heads))
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend(q, *kv):
        return attention(q, *(one.expand(len(q), -1, -1) for one in kv))

    whole = attend(q, k, v)
    q_HsE, k_HsE, v_HsE = (x.chunk(n, 1)[rank].contiguous() for x in (q, k, v))
    if way == "ring":
        ours = ring_attention(q_HsE[None], k_HsE[None], v_HsE[None], None)[0]
    elif way == "all keys":
        ours = attend(q_HsE, gathered(k_HsE), gathered(v_HsE))
    else:
        parts = to_heads(q_HsE), to_heads(k_HsE), to_heads(v_HsE)
        ours = to_positions(attend(*parts))
    return float((ours - whole.chunk(n, 1)[rank]).abs().max())


# %% [markdown] id="all-keys-text"
# ### Claim: "a ring sends as much as an all-gather of all keys"
#
# The abstract of [TASP](https://arxiv.org/html/2509.26541v1) calls what the ring does an all-gather by a ring. The cell
# has four ranks and eight query heads; keys and values have eight heads, too, or one for all. **Guess**.

# %% id="all-keys-guess" tags=["guess"]
guess = "holds"

# %% id="all-keys"
on_four, sent, errors = on_ranks | {"nproc_per_node": 4}, {}, {}


def count(way):
    for heads in (8, 1):
        job = lockstep.torchrun(long_attention, way, heads, **on_four)
        sent[way, heads] = kilobytes_sent(job)
        errors[way, heads] = max(job.results)
    return lockstep.live(job)


count("ring")
stamp = count("all keys")
ring, gather = ((sent[way, 8], sent[way, 1]) for way in ("ring", "all keys"))
lockstep.claim(
    "A ring sends as much as an all-gather of all keys.",
    guess=guess,
    verdict="holds" if ring == gather else "does not hold",
    because=f"kB that a rank sends: ring {ring}, all-gather {gather}",
    stamp=stamp,
)

# %% [markdown] id="ulysses-claim-text"
# ### Claim: "Ulysses sends less than the ring"
#
# The abstract of [its paper](https://arxiv.org/abs/2309.14509) says that its volume stays constant where sequence and ranks
# grow together, while that of other methods grows. Where there is one head of keys and values, each rank sends its part of it
# to all. **Guess:** does Ulysses send less in both cases?

# %% id="ulysses-guess" tags=["guess"]
guess = "depends"

# %% id="ulysses-run"
sent_stamp, rows = count("Ulysses"), []
for way in ("ring", "all keys", "Ulysses"):
    off = max(errors[way, 8], errors[way, 1])
    rows.append([way, off < 1e-5, sent[way, 8], sent[way, 1]])
columns = ["", "error below 1e-5", "8 heads of keys", "1 head"]
display(lockstep.table("kB that a rank sends", columns, rows, stamp=sent_stamp))
lockstep.compare(predicted=prediction, measured=sent["Ulysses", 8])

# %% id="ulysses-claim"
ok = [sent["Ulysses", heads] < sent["ring", heads] for heads in (8, 1)]
said = [
    f"{heads} key-value head{'s' * (heads > 1)}: Ulysses "
    f"{sent['Ulysses', heads]:,.0f} kB, ring {sent['ring', heads]:,.0f} kB"
    for heads in (8, 1)
]
lockstep.claim(
    "Ulysses sends less than the ring.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=sent_stamp,
)

# %% [markdown] id="ulysses-explained"
# With *x* for the bytes of the queries of a rank, Ulysses sends (N − 1)/N · *x* for each of queries, keys, values and
# results; the ring and the all-gather send (N − 1) · *x* for keys and for values, less if they have fewer heads. Ulysses
# cannot have more ranks than heads. The ring's messages can be hidden: they travel while a rank computes.

# %% [markdown] id="hides-text"
# ## A ring behind its products
#
# About 15 minutes; the time of GPUs is a virtual GPU's where there are none.
#
# In each round a rank has two products, of its queries with the keys and values that it has, while `batch_isend_irecv`
# sends these on. A message takes an H200 about 10.4 µs, and its bytes travel at 320 GB/s.
#
# **Predict:** each rank has 4,096 positions of 16 heads of width 128, in bfloat16. How many µs does a round's message, keys
# *and* values, take?

# %% id="hides-prediction" tags=["prediction"]
# your number, in µs
prediction = 10.4 + 2 * 16 * 4096 * 128 * 2 / 320e3


# %% id="hides"
def go_round(cuda, positions):
    """N rounds of products, while keys and values travel."""
    rank, n = dist.get_rank(), dist.get_world_size()
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(16, positions, 128, **shape) for _ in range(3))
    kv, p = torch.stack([k, v]), torch.empty(16, positions, positions, **shape)
    cuda.synchronize()
    dist.barrier()
    for turn in range(n):
        coming, handles = torch.empty_like(kv), []
        if turn < n - 1:
            there = dist.P2POp(dist.isend, kv, (rank + 1) % n)
            back = dist.P2POp(dist.irecv, coming, (rank - 1) % n)
            handles = dist.batch_isend_irecv([there, back])
        torch.bmm(q, kv[0].transpose(1, 2), out=p)
        torch.bmm(p, kv[1])
        for handle in handles:
            handle.wait()
        kv = coming
    cuda.synchronize()


# %% id="hides-run"
POSITIONS = 512, 1024, 2048, 4096, 16_384
rings = {positions: on_gpus(go_round, positions) for positions in POSITIONS}
rows = []
for positions, seen in rings.items():
    total, share = seen.hidden()
    rows.append([f"{positions:,}", f"{total:,.0f}", f"{100 * share:.0f} %"])
columns, stamp = ["positions", "message, µs", "hidden"], seen.stamp
title = "A ring of two ranks, 16 heads of width 128"
display(lockstep.table(title, columns, rows, stamp=stamp))
rings[4096].compare(prediction, rings[4096].hidden()[0], "µs")

# %% id="hides-timeline"
title = "4,096 positions on each of two ranks"
lockstep.Timeline(rings[4096].trace, title=title)

# %% [markdown] id="hides-claim-text"
# ### Claim: "ring attention hides all communication"
#
# The abstract of [its paper](https://arxiv.org/abs/2310.01889) speaks of *fully* overlapping it. The cell has rings of two and
# of four ranks, once with 512 positions on each rank, once with 16,384. **Guess:** is at least 95 % hidden in all four?

# %% id="hides-guess" tags=["guess"]
guess = "depends"

# %% id="hides-claim"
share = {(2, n): rings[n].hidden()[1] for n in (512, 16_384)}
for n in (512, 16_384):
    share[4, n] = on_gpus(go_round, n, ranks=4).hidden()[1]
ok = [one >= 0.95 for one in share.values()]
lockstep.claim(
    "Ring attention hides all communication.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(
        f"{ranks} ranks, {n:,} positions each: {100 * x:.0f} % hidden"
        for (ranks, n), x in share.items()
    ),
    stamp=rings[512].stamp,
)

# %% [markdown] id="hides-explained"
# Products grow with the square of the positions, messages only in proportion. The paper gives the same condition: a
# rank needs so many positions that a round's products take longer than its messages. The number of ranks does not
# matter for that. A last piece stays: the first message is under way before the host has launched the first product.

# %% [markdown] id="recorded-pieces-text"
# ## Pieces on two H200s
#
# About 15 minutes; it is recorded. An MLP of width D with 4D hidden numbers, and a causal attention, 8,192 rows in
# bfloat16: in front stands an all-gather of the rows, behind it a reduce-scatter. Cut in pieces, the rows of one piece
# travel while the products of the piece before run.
#
# Of the MLP of width 8,192, the products alone take 6.9 ms, and products and both collectives, one after the other, 7.4 ms.
# In two pieces, half of the all-gather comes before all products, and half of the reduce-scatter after them.
#
# **Predict:** how many ms does it take in two pieces, if all the rest is hidden, and hiding is free?

# %% id="recorded-pieces-prediction" tags=["prediction"]
# your number, in ms
prediction = 6.9 + (7.4 - 6.9) / 2

# %% id="recorded-pieces"
recorded = lockstep.recorded("tensor-parallel/h200-x2.json")
rows, took = [], {}
for one in recorded.content["layers"]:
    micros = {int(n): 1e6 * s for n, s in one["seconds"].items()}
    took[one["layer"], one["width"]] = micros
    alone = 1e6 * one["products"]["1"], 1e6 * one["collectives"]
    shown = (f"{x:,.0f}" for x in (*micros.values(), *alone))
    rows.append([one["layer"], one["width"], *shown])
columns = ["layer", "width", "serial", "2 pieces", "4", "8"]
columns += ["products alone", "collectives alone"]
title = "Layers on two H200s, forward, µs"
display(lockstep.table(title, columns, rows, stamp=recorded.stamp))
measured = took["MLP", 8192][2] / 1e3
lockstep.compare(predicted=prediction, measured=measured, unit="ms")

# %% [markdown] id="recorded-pieces-why"
# In nine of these ten layers no pieces are faster than serial, and in the tenth they gain little. Why? The next table
# follows the widest MLP: what its collectives take on the rank that does not wait, what of them nothing hides, and the
# products of all pieces alone.

# %% id="recorded-pieces-seen"
recorded = lockstep.recorded("tensor-parallel/h200-x2.json")
layers = recorded.content["layers"]
(widest,) = (o for o in layers if o["layer"] == "MLP" and o["width"] == 8192)
rows = []
for n, seen in widest["seen"].items():
    micros = [seen["transfer_us"], seen["exposed_us"]]
    micros += [1e6 * widest[kind][n] for kind in ("products", "seconds")]
    rows.append([n, *(f"{one:,.0f}" for one in micros)])
columns = ["pieces", "transfers", "exposed", "products alone", "all of it"]
title = "The MLP of width 8,192 on two H200s, µs"
display(lockstep.table(title, columns, rows, stamp=recorded.stamp))
serial, in_pieces = (
    lockstep.Trace.load(lockstep.recorded(f"traces/tensor-parallel/{how}"))
    for how in ("serial", "in-pieces")
)
title = "The MLP of width 8,192; before: serial; after: four pieces"
lockstep.Timeline(in_pieces, before=serial, title=title)

# %% [markdown] id="recorded-pieces-explained"
# The timeline says why. In four pieces, all four all-gathers are over before the first product begins: the program starts
# them all before it, and the host needs longer to launch one than the GPU to transfer it. Only reduce-scatters run beside
# products, all but the last. Whatever is hidden is paid for elsewhere: transfers take longer in pieces, as each has its
# own α, and many products of few rows take longer than two of many. (The 8,561 µs are an outlier: products and
# collectives together took less.) In narrower layers the host alone decides: up to a width of 2,048 each further piece
# costs 150 to 370 µs, whatever the width. And there is little to gain: the wider the layer, the smaller the collectives'
# part in it.
#
# Exercise 6's product, of 8,192 rows a rank and 3,072 columns, was recorded as well, beside PyTorch's fused one:

# %% id="recorded-products"
recorded = lockstep.recorded("tensor-parallel/h200-x2.json")
products = {one["how"]: one for one in recorded.content["products"]}
first = products["gathered first"]["seconds"]
whole = products["all-gather alone"]["seconds"]
rows = []
for how, one in products.items():
    gained = (first - one["seconds"]) / whole
    said = "–" if "alone" in how else f"{gained:.0%}"
    rows.append([how, f"{1e6 * one['seconds']:,.0f}", said])
columns = ["how", "µs", "gained, of the all-gather"]
title = "A product of the rows of two H200s"
lockstep.table(title, columns, rows, stamp=recorded.stamp)

# %% [markdown] id="recorded-products-explained"
# Own rows first gain, with *one* piece most: there is one all-gather as before, and half of the product needs nothing of
# it. More pieces cost more launches and smaller products than they hide. PyTorch's fused product gains most; its copies
# need no SMs. With four ranks a rank's own rows are only a quarter of the product, so that pieces matter more there: that
# is the case of exercise 6, on virtual GPUs.

# %% [markdown] id="backward-text"
# ## The way back through attention
#
# About 15 minutes; a CPU is enough.
#
# The backward pass of attention needs no softmax of its own: with *o* and, for each query, *L* = log Σ exp(score), all
# probabilities can be computed again, exp(score − *L*). In the ring, a rank's keys get gradients from the queries of
# *all* ranks. So keys and values go round once more, and the sums of their gradients travel *with them*. After N − 1
# rounds keys and values have been everywhere; their gradients make one more hop, and are home.
#
# **Predict:** keys are 240 kB on each rank, values as much. How many kB does a rank send in a forward *and* a backward
# pass?

# %% id="backward-prediction" tags=["prediction"]
# your number, in kB, or a formula with NPROC
prediction = 2 * 240 * ((NPROC - 1) + (NPROC - 1) + NPROC)


# %% id="backward"
def hop(*tensors):
    """Send these to the next rank; returns what comes from the one before."""
    rank, n = dist.get_rank(), dist.get_world_size()
    coming, both = [torch.empty_like(one) for one in tensors], []
    for one, other in zip(tensors, coming, strict=True):
        both.append(dist.P2POp(dist.isend, one.contiguous(), (rank + 1) % n))
        both.append(dist.P2POp(dist.irecv, other, (rank - 1) % n))
    for handle in dist.batch_isend_irecv(both):
        handle.wait()
    return coming


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        n, kv = dist.get_world_size(), (k, v)
        o, total = 0, q.new_tensor(float("-inf"))
        for turn in range(n):
            scores = q @ kv[0].mT / q.shape[-1] ** 0.5
            seen = scores.logsumexp(-1, keepdim=True)
            both = torch.logaddexp(total, seen)
            now = (scores - both).exp() @ kv[1]  # is divided by l already
            o, total = o * (total - both).exp() + now, both
            kv = hop(*kv) if turn < n - 1 else kv
        ctx.save_for_backward(q, k, v, o, total)
        return o

    @staticmethod
    def backward(ctx, grad_o):
        q, k, v, o, total = ctx.saved_tensors
        scale, n = q.shape[-1] ** -0.5, dist.get_world_size()
        own = (grad_o * o).sum(-1, keepdim=True)
        dq, dk, dv = (torch.zeros_like(one) for one in (q, k, v))
        for turn in range(n):
            p = (q @ k.mT * scale - total).exp()
            ds = p * (grad_o @ v.mT - own) * scale
            dq, dk, dv = dq + ds @ k, dk + ds.mT @ q, dv + p.mT @ grad_o
            if turn < n - 1:
                k, v = hop(k, v)
            dk, dv = hop(dk, dv)
        return dq, dk, dv


# %% [markdown] id="backward-ulysses-text"
# In **Ulysses**, the next section's subject, an all-to-all gives each rank all positions of some heads, and another one
# brings the result back. The backward pass of an all-to-all is the all-to-all back. So autograd needs one Function.


# %% id="backward-ulysses"
class Turn(torch.autograd.Function):
    """An all-to-all: heads and positions exchange their roles."""

    @staticmethod
    def forward(ctx, x, cut, whole):
        ctx.dims, n = (cut, whole), dist.get_world_size()
        given = torch.cat([one.flatten() for one in x.chunk(n, cut)])
        got = torch.empty_like(given)
        dist.all_to_all_single(got, given)
        shape = x.chunk(n, cut)[0].shape
        return torch.cat([one.view(shape) for one in got.chunk(n)], whole)

    @staticmethod
    def backward(ctx, grad):
        return Turn.apply(grad, *reversed(ctx.dims)), None, None


def ulysses(q_HsE, k_HsE, v_HsE):
    parts = [Turn.apply(one, 0, 1) for one in (q_HsE, k_HsE, v_HsE)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return Turn.apply(attend(*parts), 1, 0)


def there_and_back(way):
    """The largest errors of o, and of the gradients of q, k and v."""
    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    shape = (3, 12, 50 * n, 50)  # 240 kB of keys on each rank, float64
    whole = torch.randn(shape, dtype=torch.float64).to(device).requires_grad_()
    mine = whole.detach().chunk(n, 2)[rank].clone().requires_grad_()
    o = Ring.apply(*mine) if way == "ring" else ulysses(*mine)
    attend = torch.nn.functional.scaled_dot_product_attention
    right = attend(*whole)
    weight = torch.randn_like(right)  # a loss that is no plain sum
    (o * weight.chunk(n, 1)[rank]).sum().backward()
    (right * weight).sum().backward()
    off = mine.grad - whole.grad.chunk(n, 2)[rank]
    errors = [o - right.chunk(n, 1)[rank], *off]
    return [float(one.abs().max()) for one in errors]


# %% id="backward-run"
jobs, rows = {}, []
for way in ("ring", "Ulysses"):
    jobs[way] = job = lockstep.torchrun(there_and_back, way, **on_ranks)
    ok = [max(errors) < 1e-12 for errors in zip(*job.results, strict=True)]
    said = ["yes" if one else "no" for one in ok]
    rows.append([way, *said, len(job.calls[0]), f"{kilobytes_sent(job):,.0f}"])
columns = ["way", "o", "q", "k", "v", "calls", "kB sent"]
title = "Error below 10⁻¹² against the whole, in float64: o, and gradients"
display(lockstep.table(title, columns, rows, stamp=lockstep.live(job)))
lockstep.compare(predicted=prediction, measured=kilobytes_sent(jobs["ring"]))

# %% [markdown] id="backward-explained"
# The ring sends (6N − 4) · 240 kB; Ulysses 8 · (N − 1)/N · 240, in eight all-to-alls. With four ranks that is 20 to 6. A
# round of the ring's backward pass has two and a half times the forward's products, so there is also more to hide it
# behind.

# %% [markdown] id="loss-parallel-text"
# ## PyTorch's loss on cut logits
#
# About 15 minutes; a CPU is enough. Inside of `loss_parallel()`, `cross_entropy` takes logits that are a DTensor cut by
# vocabulary, and the backward pass, too, has to run inside.
#
# **Predict:** for 64 tokens in float64, how many bytes does it pass to its calls, forward and backward together? (Yours
# passed three numbers a token.)

# %% id="loss-parallel-prediction" tags=["prediction"]
# your number, in bytes
prediction = 3 * 64 * 8


# %% id="loss-parallel"
vocabulary_loss = lockstep.carry_on("vocabulary_loss")


def loss_by(whose):
    """Whether the loss and the gradient are those of the whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    whole_TV = torch.randn(64, 300 * n, dtype=torch.float64).to(device)
    target_T = torch.randint(300 * n, (64,)).to(device)
    logits_Tv = whole_TV.chunk(n, 1)[rank].contiguous().requires_grad_()
    mesh = init_device_mesh(device.type, (n,))
    dist.barrier()
    if whose == "yours":
        loss = vocabulary_loss(logits_Tv, target_T, 300 * rank).mean()
        loss.backward()
    else:
        logits = DTensor.from_local(logits_Tv, mesh, [Shard(1)])
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(logits, target_T)
            loss.backward()
        loss = loss.to_local()
    dist.barrier()
    whole_TV.requires_grad_()
    right = torch.nn.functional.cross_entropy(whole_TV, target_T)
    right.backward()
    off = logits_Tv.grad - whole_TV.grad.chunk(n, 1)[rank]
    return float((loss - right).abs()) < 1e-12, float(off.abs().max()) < 1e-12


# %% id="loss-parallel-run"
rows, passed, loss_seen = [], {}, {}
for whose in ("loss_parallel", "yours"):
    loss_job = lockstep.torchrun(loss_by, whose, **on_ranks)
    names = [call.operation for call in loss_job.calls[0]]
    first = names.index("barrier")
    calls = loss_job.calls[0][first + 1 : names.index("barrier", first + 1)]
    passed[whose] = sum(call.bytes for call in calls)
    right = all(all(one) for one in loss_job.results)
    loss_seen[whose] = right, max(call.bytes for call in calls)
    said = "yes" if right else "no"
    rows.append([whose, said, len(calls), f"{passed[whose]:,}"])
columns = ["whose", "loss and gradient are right", "calls", "bytes"]
title = "A forward and a backward pass of the loss, 64 tokens"
display(lockstep.table(title, columns, rows, stamp=lockstep.live(loss_job)))
lockstep.compare(predicted=prediction, measured=passed["loss_parallel"])

# %% [markdown] id="gathers-text"
# ### Claim: "a loss on cut logits gathers none of them"
#
# PyTorch's [docstring](https://pytorch.org/docs/stable/_modules/torch/distributed/tensor/parallel/loss.html) calls the loss on
# logits that are cut by class an efficient one. The cell looks at the largest call of each way. **Guess:** is each smaller
# than a rank's own logits, and the loss right?

# %% id="gathers-guess" tags=["guess"]
guess = "holds"

# %% id="gathers-claim"
logits = 64 * 300 * 8  # bytes of a rank
ok = [right and most < logits for right, most in loss_seen.values()]
said = [f"{whose} {most} B" for whose, (_, most) in loss_seen.items()]
lockstep.claim(
    "A loss on cut logits gathers none of them.",
    guess=guess,
    verdict="holds" if all(ok) else "does not hold",
    because=f"a rank's logits: {logits:,} B; largest call: {', '.join(said)}",
    stamp=lockstep.live(loss_job),
)

# %% [markdown] id="loss-parallel-explained"
# It is the same: maximum, sum, and the target's logit. You send the last two in one call, PyTorch, which puts them
# together from the operations `log_softmax` and `nll_loss`, in two. No logit leaves its rank.

# %% [markdown] id="mesh-text"
# ## Two dimensions: a mesh of 2 × 2
#
# About 10 minutes; a CPU is enough for its four ranks. (Lab 08 has `fully_shard`.)
#
# A mesh has a name for each dimension. Ranks of one row share the work of a layer (`"tp"`); ranks of one column have the
# same part of the layer and other data (`"dp"`). `parallelize_module` comes first, and `fully_shard` cuts
# what it has left of each weight, along the other dimension. A gain that `SequenceParallel` gives a copy of to each rank
# of a row is cut by `fully_shard` only.
#
# **Predict:** the block has a gain of 64 numbers and two weights of 240 × 64. How many numbers does each of the four
# ranks keep?

# %% id="mesh-prediction" tags=["prediction"]
# your number
prediction = 2 * 240 * 64 / 4 + 64 / 2


# %% id="on-mesh"
def on_mesh(model, x_BSD, target_BSD):
    """Cut the model on 2 x 2 ranks: this rank's part of x and of the target."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, parallel

    device = x_BSD.device.type
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {
        "norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=Shard(1)),
        "down": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }
    parallel.parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    row, column = mesh.get_coordinate()
    both = x_BSD, target_BSD
    return [one.chunk(2)[row].chunk(2, 1)[column] for one in both]


# %% id="mesh"
def block_of(x_BSD, target_BSD, is_whole):
    """One step of SGD on the block: the new weights, and numbers kept."""
    from collections import OrderedDict

    torch.manual_seed(0)
    norm, relu = torch.nn.RMSNorm(64, eps=0.0), torch.nn.ReLU()
    up, down = torch.nn.Linear(64, 240, False), torch.nn.Linear(240, 64, False)
    layers = OrderedDict(norm=norm, up=up, relu=relu, down=down)
    model = torch.nn.Sequential(layers).double().to(lockstep.device())
    x, target = (one.to(lockstep.device()) for one in (x_BSD, target_BSD))
    if not is_whole:
        x, target = on_mesh(model, x, target)
    loss = torch.nn.functional.mse_loss(model(x), target)
    (loss if is_whole else loss / 2).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    if is_whole:
        return [one.detach().cpu() for one in model.parameters()]
    weights = [one.full_tensor().detach().cpu() for one in model.parameters()]
    return weights, sum(one.to_local().numel() for one in model.parameters())


# %% id="mesh-run"
x_BSD, target_BSD = torch.randn(2, 4, 12, 64, dtype=torch.float64)
alone = {"nproc_per_node": 1, "init": False, "show": False}
whole = lockstep.torchrun(block_of, x_BSD, target_BSD, True, **alone)[0]
on_four = on_ranks | {"nproc_per_node": 4}
job = lockstep.torchrun(block_of, x_BSD, target_BSD, False, **on_four)
ours, kept = job[0]
gaps = [float((a - b).abs().max()) for a, b in zip(ours, whole, strict=True)]
for name, error in zip(("gain", "up", "down"), gaps, strict=True):
    print(f"{name} after a step: {'the same' if error < 1e-12 else error}")
print(lockstep.live(job))
lockstep.compare(predicted=prediction, measured=kept)

# %% [markdown] id="mesh-explained"
# Each weight is cut twice. Look at `loss / 2`: each rank of a row has the mean loss of *its* positions, and the gradients of
# a row's ranks are added up. Those of a column need no factor, as `fully_shard` takes their mean. Without it, all
# weights of both columns would move twice as far.

# %% [markdown] id="nodes-text"
# ## Which cut goes where
#
# About 10 minutes; it is computed.
#
# ### Claim: "tensor parallelism inside a node, pipelines across nodes"
#
# [vLLM's documentation](https://docs.vllm.ai/en/v0.8.3/serving/distributed_serving.html) gives the GPUs of a node to tensor
# parallelism, and the nodes to the pipeline. The cell has two nodes of eight H200s, and a model of 64 layers with a
# width of 8,192 (12 · 8,192² weights a layer). A sequence has 4,096 tokens in bfloat16. A layer makes two ring all-reduces of
# `x_BSD` forward and two backward; a stage of the pipeline sends it once each way, and *m* sequences pass *p* stages
# in *m* + *p* − 1 turns (lab 10). α and β are those of lab 15: NVLink 3.4 µs and 338 GB/s, a network card 14 µs and 50 GB/s.
# A ring of all 16 has eight cards, so that NVLink limits its bytes; but each of its rounds waits for a hop over the network.
#
# **Predict:** with tensor parallelism inside and a pipeline of two nodes, each GPU has 32 layers. How many ms do its
# all-reduces take for one sequence?

# %% id="nodes-prediction" tags=["prediction"]
# your number, in ms, or a formula
prediction = 1e3 * 32 * 4 * 14 * (3.4e-6 + 4096 * 8192 * 2 / 8 / 338e9)

# %% id="nodes"
nvlink = lockstep.cost.Line(alpha=3.4e-6, beta=1 / 338e9)
network = lockstep.cost.Line(alpha=14e-6, beta=1 / 50e9)
all_of_them = lockstep.cost.Line(alpha=14e-6, beta=1 / 338e9)
LAYERS, TOKENS, WIDTH = 64, 4096, 8192
NBYTES = TOKENS * WIDTH * 2


def all_calls(ranks, line):
    """Seconds of a GPU's all-reduces for one sequence."""
    each = lockstep.cost.ring_all_reduce(ranks, NBYTES, line)
    return 4 * LAYERS * ranks / 16 * each


def step(sequences, ranks, line, hop):
    """Seconds for this many sequences: ranks of a layer, 16 / ranks stages."""
    stages = 16 // ranks
    products = 6 * LAYERS * 12 * WIDTH**2 * TOKENS / 16 / 790e12
    turn = products + all_calls(ranks, line) + 2 * (stages > 1) * hop(NBYTES)
    return (sequences + stages - 1) * turn


# %% id="nodes-guess" tags=["guess"]
guess = "depends"

# %% id="nodes-claim"
CUTS = {"TP inside, pipeline across": (8, nvlink, network),
        "pipeline inside, TP across": (2, network, nvlink),
        "TP over all": (16, all_of_them, nvlink)}  # fmt: skip
rows, best = [], {}
for sequences in (1, 16, 64, 1024):
    seconds = {name: step(sequences, *cut) for name, cut in CUTS.items()}
    best[sequences] = min(seconds, key=seconds.get)
    rows.append([f"{sequences:,}", *(f"{one:.2f}" for one in seconds.values())])
stamp, first = lockstep.simulated("α–β model"), next(iter(CUTS))
title = "Seconds for a step on two nodes of eight GPUs"
display(lockstep.table(title, ["sequences, m", *CUTS], rows, stamp=stamp))
inside = 1e3 * all_calls(8, nvlink)
display(lockstep.compare(predicted=prediction, computed=inside))
ok = [name == first for name in best.values()]
said = [f"m = {n:,}: {name}" for n, name in best.items()]
lockstep.claim(
    "Tensor parallelism inside a node, pipelines across nodes.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because=f"quickest of three: {'; '.join(said)}",
    stamp=stamp,
)

# %% [markdown] id="nodes-explained"
# For 16 and 64 sequences it holds. A single sequence leaves the stages of a pipeline idle in turn. And with very many,
# the idle turns of eight stages no longer count: then each GPU has 8 layers in place of 32, and an all-reduce of two
# ranks sends 1 · *s* bytes in place of 1.75 · *s*, so that even a link of a seventh of the bandwidth costs no more.

# %% [markdown] id="far-text"
# ## How far does it go?
#
# About 15 minutes; it is computed, from recordings on H200s and published figures.
#
# An MLP of width D with 4D hidden numbers, on T tokens, takes 16 · T · D² operations forward; its all-reduce has 2 · T · D
# bytes in bfloat16. An H200 does 790 · 10¹² operations a second, and its NVLink carries 320 · 10⁹ bytes.
#
# **Predict:** below which width D are two ranks slower than one? (Leave out α; T has no part in it.)

# %% id="far-prediction" tags=["prediction"]
# your number
prediction = 790e12 / (4 * 320e9)  # 8TD² / 790e12 saved, 2TD / 320e9 sent

# %% id="far"
sweeps = {n: lockstep.recorded(f"sweeps/h200-x{n}.json") for n in (2, 4)}
known = {}
for n, one in sweeps.items():
    points = one.content["sweeps"]["all_reduce"]
    known[n] = {point["bytes"]: point["seconds"] for point in points}
points = {n: (list(one), list(one.values())) for n, one in known.items()}
fitted = lockstep.cost.fit_collective("all_reduce", points)
h200 = lockstep.virtual.MACHINES["H200"]


def product(m, n, k):
    """Seconds of (m × k)·(k × n)."""
    return h200.multiply(m, n, k, "bfloat16")[0] / 1e9


# %% id="far-compare"
T = 65_536  # so many that α hardly counts


def mlp_seconds(D, n, T=T):
    products = product(T, 4 * D // n, D) + product(T, D, 4 * D // n)
    return products + (fitted(n, 2 * T * D) if n > 1 else 0)


widths = range(128, 2048, 128)
slow = [D for D in widths if mlp_seconds(D, 2) >= mlp_seconds(D, 1)]
lockstep.compare(predicted=prediction, computed=slow[-1], unit="numbers")

# %% [markdown] id="far-dials-text"
# The sliders below have two links: NVLink by the fit, with the recorded all-reduces where one has that size, and a network of
# 50 GB/s ([DeepSeek's](https://arxiv.org/abs/2412.19437)) with NCCL's 14 µs a step. Find a width and tokens at which four
# ranks are slower than two over the network, and faster over NVLink.

# %% id="far-dials"
wire = lockstep.published("deepseek-v3").values["network_GBps"]
per_step = lockstep.published("nccl-tuning").values["network"]["ring"]["Simple"]
line = lockstep.cost.Line(per_step / 1e6, 1 / (wire * 1e9))
links = {
    "NVLink": fitted,
    "network": lambda n, size: lockstep.cost.ring_all_reduce(n, size, line),
}
stamps = [sweeps[4].stamp, lockstep.published("deepseek-v3").stamp]
stamps.append(lockstep.published("nccl-tuning").stamp)
lockstep.interactive.layer(product, links, measured=known, stamp=stamps)

# %% [markdown] id="far-explained"
# Products fall with 1/N, the all-reduce grows with (N − 1)/N, so that doubling the ranks pays less each time. Tokens
# only matter where they are few: then α and the launches are what is left. It is the width that decides, against the ratio
# of a GPU's operations to a link's bytes.
#
# Is it so? An MLP with 8,192 rows was recorded on one, two and four H200s, with an all-gather before it and a
# reduce-scatter behind it, which send as much as the all-reduce.


# %% id="far-recorded"
def mlps(recorded):
    """By width: an MLP whole on one GPU, and cut."""
    found = [o for o in recorded.content["layers"] if o["layer"] == "MLP"]
    return {o["width"]: (o["whole"], o["seconds"]["1"]) for o in found}


files = {n: f"tensor-parallel/h200-x{n}.json" for n in (2, 4)}
recorded = {n: lockstep.recorded(file) for n, file in files.items()}
took = {n: mlps(one) for n, one in recorded.items()}
rows = []
for D, (whole, two) in took[2].items():
    real = whole, two, took[4][D][1]
    times = [f"{whole / two:.2f}", f"{took[4][D][0] / real[2]:.2f}"]
    model = [mlp_seconds(D, n, 8192) for n in (1, 2, 4)]
    times += [f"{model[0] / one:.2f}" for one in model[1:]]
    rows.append([D, *(f"{1e6 * one:,.0f}" for one in real), *times])
columns = ["width", "one", "two", "four", "times as fast: two", "four"]
columns += ["by the model: two", "four"]
title = "An MLP of 8,192 rows on H200s, µs"
stamp = [one.stamp for one in recorded.values()]
stamp.append(lockstep.simulated("products, then a fitted collective"))
lockstep.table(title, columns, rows, stamp=stamp)

# %% [markdown] id="far-recorded-explained"
# Two and four H200s are slower at widths of 512 and 1,024, and faster from 2,048 on; the model has the border lower. It
# counts products and bytes only: no launches, for which such narrow layers wait, and nothing between the products. So at
# 2,048 four GPUs gain no more than two, 1.4 times, where the model says 2. At 8,192 it is
# right within 4 %: four GPUs are 3.2 times as fast as one.

# %% [markdown] id="more-text"
# ## More ranks, a faster step?
#
# About 10 minutes; the time of GPUs is a virtual GPU's where there are none.
#
# ### Claim: "more ranks make a step faster"
#
# [An engineer](https://tilcodes.fly.dev/fast-furious-tensor-parallelism-gpu-heist-gone-wrong) expected four times the
# throughput of four H200s, and got less than that of one when serving a model; training, he says, is another matter. The
# cell has eight MLPs in a row, cut by columns and rows on one, two and four GPUs, once with 64 tokens of width 1,024,
# once with 8,192 of width 8,192. **Guess:** is each doubling of the ranks faster in both cases?

# %% id="more-guess" tags=["guess"]
guess = "depends"


# %% id="more"
def eight_layers(cuda, tokens, width):
    """Milliseconds on the device."""
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    n = dist.get_world_size()
    x_TD = torch.randn(tokens, width, **shape)
    w1_fD = torch.randn(4 * width // n, width, **shape)
    w2_Df = torch.randn(width, 4 * width // n, **shape)
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    dist.barrier()
    begin.record()
    for _ in range(8):
        x_TD = torch.relu(x_TD @ w1_fD.T) @ w2_Df.T
        if n > 1:
            dist.all_reduce(x_TD)
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end)


# %% id="more-claim"
spent, ok = {}, []
for tokens, width in ((64, 1024), (8192, 8192)):
    runs = [on_gpus(eight_layers, tokens, width, ranks=n) for n in (1, 2, 4)]
    spent[tokens, width] = times = [seen.result for seen in runs]
    ok.append(times[0] > times[1] > times[2])
said = [
    f"{tokens:,} tokens of width {width:,}: "
    + ", ".join(f"{one:.2f}" for one in times) + " ms on 1, 2, 4 ranks"
    for (tokens, width), times in spent.items()
]  # fmt: skip
lockstep.claim(
    "More ranks make a step faster.",
    guess=guess,
    verdict="holds" if all(ok) else "depends" if any(ok) else "does not hold",
    because="; ".join(said),
    stamp=runs[0].stamp,
)

# %% [markdown] id="more-explained"
# Large products are halved with each doubling, their all-reduce is not. Small products take hardly longer than
# their launches; there an all-reduce is one launch more, and α on top.

# %% [markdown] id="others-text"
# ## Programs of others
#
# About 10 minutes; it is recorded. [PyTorch's
# examples](https://github.com/pytorch/examples/tree/main/distributed/tensor_parallelism) have an MLP of two layers cut by
# columns and rows, once with tensor parallelism alone, once with sequence parallelism. In both, the input is no
# parameter and needs no gradient. A third program trains a small Llama on a 2 × 2 mesh: sequence parallelism in pairs
# of ranks, FSDP2 across the pairs. All ran unchanged, the first two on two GPUs, the third on four.
#
# **Predict:** how many collectives has a step of the MLP with sequence parallelism?

# %% id="others-prediction" tags=["prediction"]
prediction = 2 + 1  # gather and scatter; scatter's backward, a gather

# %% id="others"
from collections import Counter

PROGRAMS = {
    "tensor parallel": "tensor_parallel_example-x2",
    "sequence parallel": "sequence_parallel_example-x2",
    "2-D": "fsdp_tp_example-x4",
}
rows, stamps, totals = [], {}, {}
for name, program in PROGRAMS.items():
    folder = f"traces/foreign/tensor_parallelism-{program}"
    recorded = lockstep.recorded(folder)
    trace = lockstep.Trace.load(recorded)
    stamps[str(recorded.stamp)] = recorded.stamp
    found = [o.collective for o in trace if o.rank == 0 and o.collective]
    seen = Counter(one.operation for one in found)
    totals[name] = seen.total() / 2
    calls = ", ".join(f"{n / 2:g} {kind}" for kind, n in seen.items())
    spent = trace.breakdown().of(0)
    share = spent.compute / (spent.end - spent.start)
    rows.append([name, calls, f"{share:.1%}"])
columns = ["program", "calls of a step", "computes"]
title = "Three programs of others, of their time on rank 0"
stamp = list(stamps.values())
display(lockstep.table(title, columns, rows, stamp=stamp))
measured = totals["sequence parallel"]
lockstep.compare(predicted=prediction, measured=measured)

# %% [markdown] id="others-explained"
# The MLPs make section 3's calls, without the reduce-scatter that the gradient of x would need. (Tensor parallelism alone has
# one all-reduce for the same reason, the forward one.) Such small layers leave the GPUs idle: these programs teach the
# calls, not speed.
