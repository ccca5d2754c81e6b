# %% [markdown] id="title"
# # 14 · Capstone: a mixture-of-experts step, made fast
#
# **Two sittings, 70 and 75 minutes · needs: CPU** (the same cells use NCCL on GPUs; without four GPUs, virtual ones give
# the times), and in the end as long as you like: you make a program of your own fast
#
# A model is trained here whose experts are cut over the ranks. Its program is right, and slow in eight ways, all of
# which earlier labs have taught. Afterwards you can
#
# - send each token to its expert and back, with gradients, a capacity, and ranks that get none,
# - say what expert parallelism sends, and what a popular expert costs the others,
# - compute all experts of a rank in one product,
# - find what makes a training step slow, mend it, and prove that the change counts.
#
# Do labs 03 (`all_to_all`), 04 (overlap), 07 (traces), 08 (`autograd.Function`) and 12 (input) first.

# %% id="parameters" tags=["parameters"]
NPROC = 4  # ranks in this notebook, 2 at least
BACKEND = "auto"  # NCCL where there is a GPU for each rank, else gloo

# %% id="load"
# %load_ext lockstep
import lockstep
import torch
import torch.distributed as dist

on_ranks = {"nproc_per_node": NPROC, "backend": BACKEND, "show": False}

# %% id="progress" tags=["unpublished"]
lockstep.progress("14")

# %% [markdown] id="names-text"
# As in lab 09, the name of a tensor ends with its dimensions. A small letter is this rank's part:
#
# | letter | dimension | letter | dimension |
# | --- | --- | --- | --- |
# | T | tokens of this rank | E | experts of all ranks |
# | D | width of the model | e | experts of this rank |
# | F | hidden width of an expert | R | rows that this rank's experts get |

# %% [markdown] id="experts-text"
# ## 1 · Tokens to their experts
#
# In a **mixture of experts** (MoE) a layer has E small MLPs, the *experts*, and a *router*: a product that gives each
# token a score for each expert. Here the best one gets the token (*top-1*), and the layer's result is *gate* · expert(*x*),
# where *gate* is the expert's softmax of the scores. So a token needs the work of one expert, however many there are.
#
# In **expert parallelism** each rank has E/N of the experts: rank 0 the first ones, rank 1 the next ones, and so on. The
# rest of the model is on all ranks, as in lab 08, each with tokens of its own. A token's row has to travel to its
# expert's rank (*dispatch*), and the result back (*combine*). Each rank sends every other rank another number of
# rows. That is `all_to_all_single` with unequal splits:


# %% id="unequal"
def unequal():
    """Each rank sends one row to rank 0, two to rank 1, and so on."""
    rank, n, device = dist.get_rank(), dist.get_world_size(), lockstep.device()
    send = [peer + 1 for peer in range(n)]
    receive = [rank + 1] * n
    rows = torch.full((sum(send), 1), float(rank), device=device)
    came = torch.empty(sum(receive), 1, device=device)
    dist.all_to_all_single(came, rows, receive, send)
    return came[:, 0].tolist()


job = lockstep.torchrun(unequal, **on_ranks)
for rank, came in enumerate(job.results[:2]):
    print(f"rank {rank} got rows of ranks {came}")

# %% [markdown] id="unequal-explained"
# Rows arrive in the order of the ranks that sent them. The lists are Python's, so the *host* has to know how many rows
# come. Only the senders know: they tell by an all-to-all of counts first.
#
# To send rows, a rank needs them in the order of their experts. And it may have to **drop** some: if an expert takes
# at most `capacity` tokens of each rank, memory is known beforehand. A dropped token skips the layer: its result is 0.
#
# ### Exercise 1: in the order of experts
#
# **Goal:** `by_expert(expert_T, E, capacity)` returns `order_R` and `counts_E`, both int64. Of each expert the first
# `capacity` tokens are kept. `order_R` has the numbers of the kept tokens: those of expert 0 first, and of each expert in the
# tokens' order. `counts_E` says how many each expert has; an expert may have none.


# %% id="by_expert"
import torch


def by_expert(expert_T, E, capacity):
    # BEGIN SOLUTION
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=E)
    start_E = counts_E.cumsum(0) - counts_E
    place_T = torch.arange(len(order_T), device=order_T.device)
    place_T = place_T - start_E[expert_T[order_T]]
    return order_T[place_T < capacity], counts_E.clamp(max=capacity)
    # END SOLUTION


# %% id="by_expert-check"
lockstep.check("by_expert", by_expert)

# %% [markdown] id="bytes-text"
# **Predict:** a rank has 1,000 tokens of 125 numbers of float32, 500 kB, which go to all ranks alike. How many
# kB leave the rank for dispatch and combine, in the forward and the backward pass together?

# %% id="bytes-prediction" tags=["prediction"]
# your number, in kB, or a formula with NPROC
prediction = 2 * 2 * 500 * (NPROC - 1) / NPROC

# %% [markdown] id="exchange-text"
# ### Exercise 2: rows that travel, and their gradients
#
# **Goal:** `exchange(rows_RD, send, receive)` sends the first `send[0]` rows to rank 0, the next `send[1]` to rank 1, and so on. It
# returns what comes, `receive[r]` rows from rank *r*, those of rank 0 first. The gradient of each row goes back to the
# rank that sent it, and to the row's place. There is one `all_to_all_single` in each direction. A rank may send or get no
# rows at all.


# %% id="exchange"
import torch
import torch.distributed as dist


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_RD, send, receive):
        # BEGIN SOLUTION
        ctx.splits = send, receive
        came_RD = rows_RD.new_empty(sum(receive), rows_RD.shape[1])
        dist.all_to_all_single(came_RD, rows_RD, receive, send)
        return came_RD
        # END SOLUTION

    @staticmethod
    def backward(ctx, grad_RD):
        # BEGIN SOLUTION
        send, receive = ctx.splits
        back_RD = grad_RD.new_empty(sum(send), grad_RD.shape[1])
        dist.all_to_all_single(back_RD, grad_RD.contiguous(), send, receive)
        return back_RD, None, None
        # END SOLUTION


def exchange(rows_RD, send, receive):
    return Exchange.apply(rows_RD, send, receive)


# %% id="exchange-check"
lockstep.check("exchange", exchange)

# %% [markdown] id="sent-text"
# Now what it sends. Of what an all-to-all is given, a rank's own part stays at home.

# %% id="sent"
exchange = lockstep.carry_on("exchange", exchange)


def there_and_back():
    n = dist.get_world_size()
    even = [1000 // n] * n
    x = torch.randn(sum(even), 125, device=lockstep.device())
    rows = exchange(x.requires_grad_(), even, even)
    exchange(rows, even, even).sum().backward()


job = lockstep.torchrun(there_and_back, **on_ranks)
given = sum(call.bytes for call in job.calls[0]) / 1000
stays = NPROC * (1000 // NPROC) / 1000  # where N does not divide 1,000
print(lockstep.live(job))
left = round(given * (NPROC - 1) / NPROC / stays, 6)
lockstep.compare(predicted=prediction, measured=left)

# %% [markdown] id="layer-text"
# ## 2 · A layer of experts
#
# The rows that a rank's experts get stand in the order of the ranks that sent them, and of each rank in that of the
# experts. `arrivals` sends the counts and returns both lists for `exchange`, and for each row that comes the number of its
# expert *on this rank*.
#
# ### Exercise 3: the whole layer
#
# **Goal:** `moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD)` returns `y_TD`: for each kept token its gate times what its
# expert makes of its row, in the tokens' order, and zeros for dropped ones. The weights are those of this rank's
# experts, equally many on each rank. The gradients of `x_TD`, `gate_T` and both weights are those of one process with all tokens and all
# experts. A rank may get no row. `by_expert`, `exchange`, `arrivals` and `experts` are there.


# %% id="moe"
import torch
import torch.distributed as dist


def by_expert(expert_T, E, capacity):
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=E)
    start_E = counts_E.cumsum(0) - counts_E
    place_T = torch.arange(len(order_T), device=order_T.device)
    place_T = place_T - start_E[expert_T[order_T]]
    return order_T[place_T < capacity], counts_E.clamp(max=capacity)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows_RD, send, receive):
        ctx.splits = send, receive
        came_RD = rows_RD.new_empty(sum(receive), rows_RD.shape[1])
        dist.all_to_all_single(came_RD, rows_RD, receive, send)
        return came_RD

    @staticmethod
    def backward(ctx, grad_RD):
        send, receive = ctx.splits
        back_RD = grad_RD.new_empty(sum(send), grad_RD.shape[1])
        dist.all_to_all_single(back_RD, grad_RD.contiguous(), send, receive)
        return back_RD, None, None


def exchange(rows_RD, send, receive):
    return Exchange.apply(rows_RD, send, receive)


def arrivals(counts_E):
    """Rows to each rank, rows from each, and the expert of each that comes."""
    counts_ne = counts_E.view(dist.get_world_size(), -1)
    got_ne = torch.empty_like(counts_ne)
    dist.all_to_all_single(got_ne, counts_ne)
    e = torch.arange(got_ne.shape[1], device=got_ne.device)
    local_R = e.repeat(len(got_ne)).repeat_interleave(got_ne.view(-1))
    return counts_ne.sum(1).tolist(), got_ne.sum(1).tolist(), local_R


def experts(rows_RD, local_R, w1_eDF, w2_eFD):
    """Each row through its expert, one expert after the other."""
    y_RD = torch.zeros_like(rows_RD)
    for i, (w1_DF, w2_FD) in enumerate(zip(w1_eDF, w2_eFD, strict=True)):
        mine = (local_R == i).nonzero()[:, 0]
        made = torch.relu(rows_RD[mine] @ w1_DF) @ w2_FD
        y_RD = y_RD.index_copy(0, mine, made)
    return y_RD


def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    # BEGIN SOLUTION
    E = dist.get_world_size() * len(w1_eDF)
    order_R, counts_E = by_expert(expert_T, E, capacity)
    send, receive, local_R = arrivals(counts_E)
    rows_RD = exchange(x_TD[order_R], send, receive)
    y_RD = experts(rows_RD, local_R, w1_eDF, w2_eFD)
    back_RD = exchange(y_RD, receive, send)
    y_TD = torch.zeros_like(x_TD).index_copy(0, order_R, back_RD)
    return gate_T[:, None] * y_TD
    # END SOLUTION


# %% id="moe-check"
lockstep.check("moe", moe)

# %% [markdown] id="alike-text"
# With the same weights and tokens, any number of ranks should give the same as one. A tenth of what an expert expects
# is its capacity here, so that most tokens are dropped: each rank drops its own, so that *which* tokens are dropped does
# depend on how many ranks there are.

# %% id="alike"
moe = lockstep.carry_on("moe", moe)


def result_of(capacity):
    """What the layer makes of 240 tokens: their norm, and how many are 0."""
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.randn(240, 8, dtype=torch.float64)
    w1, w2 = torch.randn(2, 12, 8, 8, dtype=torch.float64)
    gate, expert = (x @ torch.randn(8, 12).double()).softmax(1).max(1)
    mine = slice(rank * 240 // n, (rank + 1) * 240 // n)
    own = [w.chunk(n)[rank] for w in (w1, w2)]
    parts = [one[mine] for one in (x, gate, expert)]
    to = [one.to(lockstep.device()) for one in (*parts, *own)]
    y = moe(*to[:3], capacity, *to[3:])
    both = torch.stack([y.square().sum(), (y == 0).all(1).sum()])
    dist.all_reduce(both)
    return both.tolist()


# %% id="alike-run"
found = []
for capacity in (240, 2):
    for n in (1, 2):
        ways = {**on_ranks, "nproc_per_node": n}
        job = lockstep.torchrun(result_of, capacity, **ways)
        norm, zeros = job[0]
        found.append([capacity, n, f"{norm:.6g}", f"{zeros:.0f}"])
names = ["capacity", "ranks", "norm of y, squared", "dropped"]
stamp = lockstep.live(job)
lockstep.table("240 tokens, 12 experts", names, found, stamp=stamp)

# %% [markdown] id="cost-claim-text"
# ### Claim: "outrageous numbers of parameters, but a constant computational cost"
#
# So says the summary of [Switch Transformers](https://arxiv.org/abs/2101.03961) of its kind of model. The cell counts the
# operations of the products of a forward and a backward pass with 2 and with 32 experts, the router's included, on one
# rank. Let 5 % more be constant. **Guess**.

# %% id="cost-guess" tags=["guess"]
guess = "holds"


# %% id="cost"
def operations(E):
    """Of a forward and a backward pass, and the parameters."""
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    x = torch.randn(512, 128, requires_grad=True)
    router = torch.randn(128, E, requires_grad=True)
    w1 = torch.randn(E, 128, 512, requires_grad=True)
    w2 = torch.randn(E, 512, 128, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        gate, expert = (x @ router).softmax(1).max(1)
        moe(x, gate, expert, 512, w1, w2).sum().backward()
    return counter.get_total_flops(), w1.numel() + w2.numel() + router.numel()


# %% id="cost-claim"
alone = {"nproc_per_node": 1, "backend": "gloo", "show": False}
job = lockstep.torchrun(lambda: [*map(operations, (2, 32))], **alone)
times = "{:.1f} times the parameters, {:.3f} times the operations"
(few, small), (many, large) = job[0]
lockstep.claim(
    "Outrageous numbers of parameters, but a constant computational cost.",
    guess=guess,
    verdict="holds" if many / few < 1.05 else "does not hold",
    because=times.format(large / small, many / few),
    stamp=lockstep.live(job),
)

# %% [markdown] id="cost-explained"
# Operations are not time: with more experts each product is smaller (section 4), and each rank waits for the fullest.
#
# **Break.** The first sitting ends here. You have a layer whose experts are cut over ranks. In the second sitting it is
# balanced and grouped, and then the whole training step is made fast.

# %% [markdown] id="load-text"
# ## 3 · Popular experts
#
# Each all-to-all ends when the slowest rank has come. In one layer that happens twice, before and after the experts. So
# the rank with the most rows decides how long the experts take.
#
# **Predict:** 1,200 tokens of all ranks go to 12 experts, three on each of four ranks. Experts 0, 1 and 2 get 600 of them, the
# other nine 600 together. How many times as long do the experts take as with an even share?

# %% id="load-prediction" tags=["prediction"]
# your number
prediction = 600 / (1200 / 4)

# %% id="load-measured"
rows_E = [300, 180, 120, 110, 90, 80, 75, 65, 60, 50, 40, 30]
by_rank = [sum(rows_E[3 * rank : 3 * rank + 3]) for rank in range(4)]
print("rows by rank:", by_rank)
share = sum(by_rank) / 4
lockstep.compare(predicted=prediction, computed=max(by_rank) / share)

# %% [markdown] id="place-text"
# A loss that punishes popular experts helps, and changes what is learnt. Another remedy changes nothing but time: *which*
# rank has an expert is free. Measure what the experts get, and place them so that each rank gets about as much.
#
# ### Exercise 4: place the experts
#
# **Goal:** `place(rows_E, n)` returns a list: for each expert its rank. Each rank has E/n experts. Take the experts from
# the most popular to the least; give each to the rank with the fewest rows so far that still has room, and of equal
# ones to the first. (All numbers in `rows_E` differ.)


# %% id="place"
def place(rows_E, n):
    # BEGIN SOLUTION
    owners, load = [0] * len(rows_E), [0] * n
    room = [len(rows_E) // n] * n
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        rank = min((r for r in range(n) if room[r]), key=lambda r: load[r])
        owners[e] = rank
        load[rank] += rows_E[e]
        room[rank] -= 1
    return owners
    # END SOLUTION


# %% id="place-check"
lockstep.check("place", place)

# %% id="placed"
place = lockstep.carry_on("place", place)
rows_E = [300, 180, 120, 110, 90, 80, 75, 65, 60, 50, 40, 30]
owners = place(rows_E, 4)
by_owner = [0] * 4
for owner, many_rows in zip(owners, rows_E, strict=True):
    by_owner[owner] += many_rows
print("the rank of each expert:", owners)
print("rows by rank:", by_owner)

# %% [markdown] id="play-text"
# Here is the model to play with: a layer's forward pass in one row for each rank. *Imbalance* makes the experts' popularity fall, *capacity
# factor* says how many tokens an expert takes, as a multiple of an even share. Set it to none, and show "in turn" beside "in
# order": dealing popular experts out costs nothing. Then find the factor below which the slowest rank gets
# quicker, and what is dropped for it.

# %% id="play"
lockstep.interactive.experts()

# %% [markdown] id="drop-claim-text"
# ### Claim: "even a balanced router drops tokens at a capacity factor of 1.25"
#
# A common guess. The even share of each rank's T tokens on E experts is T/E. The cell draws experts at random, all equally likely: no router is more balanced. **Guess**.

# %% id="drop-guess" tags=["guess"]
guess = "does not hold"

# %% id="drop"
from random import Random


def dropped(tokens, experts, factor):
    """The share of tokens that is dropped, of 100 draws."""
    draw, lost = Random(0), 0
    for _ in range(100):
        counts = [0] * experts
        for _ in range(tokens):
            counts[draw.randrange(experts)] += 1
        lost += sum(max(0, one - factor * tokens / experts) for one in counts)
    return lost / tokens / 100


shares = {T: dropped(T, 12, 1.25) for T in (120, 1200)}
said = [f"{T:,} tokens a rank: {share:.2%}" for T, share in shares.items()]
lockstep.claim(
    "Even a balanced router drops tokens at a capacity factor of 1.25.",
    guess=guess,
    verdict="holds" if all(shares.values()) else "depends",
    because="; ".join(said),
    stamp=lockstep.simulated("100 draws of equally likely experts"),
)

# %% [markdown] id="grouped-text"
# ## 4 · All experts in one product
#
# Small products waste a GPU twice: each needs a launch of its own, and fills few of its SMs (lab 04).
#
# **Predict:** a rank has three experts, each of two products. They work one after the other. How many products does it
# compute in a forward and a backward pass? (The input needs a gradient, too.)

# %% id="products-prediction" tags=["prediction"]
# your number
prediction = 3 * 2 * 3


# %% id="products"
def products(program):
    """How many products the forward and backward pass of 3 experts have."""
    from collections import Counter

    torch.manual_seed(0)
    rows = torch.randn(30, 8, requires_grad=True)
    w1, w2 = (torch.randn(3, 8, 8, requires_grad=True) for _ in range(2))
    local = torch.arange(30) % 3
    with torch.profiler.profile() as profiler:
        program(rows, local, w1, w2).sum().backward()
    names = Counter(event.name for event in profiler.events())
    return names["aten::mm"] + names["aten::bmm"]


def one_by_one(rows_RD, local_R, w1_eDF, w2_eFD):
    y_RD = torch.zeros_like(rows_RD)
    for i in range(len(w1_eDF)):
        mine = (local_R == i).nonzero()[:, 0]
        made = torch.relu(rows_RD[mine] @ w1_eDF[i]) @ w2_eFD[i]
        y_RD = y_RD.index_copy(0, mine, made)
    return y_RD


one_rank = {"nproc_per_node": 1, "init": False, "show": False}
job = lockstep.torchrun(products, one_by_one, **one_rank)
print(lockstep.live(job))
lockstep.compare(predicted=prediction, measured=job[0])

# %% [markdown] id="grouped-goal"
# `torch.bmm`, or `@` with a dimension more, computes several products of equal shapes at once. Experts have different
# numbers of rows; give each as many as the fullest has, some of them zeros. (GPUs also have *grouped* products, which need
# no zeros: `torch._grouped_mm`.)
#
# ### Exercise 5: two products for all experts
#
# **Goal:** `grouped(rows_RD, local_R, most, w1_eDF, w2_eFD)` returns what `one_by_one` does, with
# its gradients, and has two products in the forward pass. `local_R` is each row's expert, in any order. `most` is how many rows the fullest expert has. An expert may
# have none.


# %% id="grouped"
import torch


def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    # BEGIN SOLUTION
    e, D = w1_eDF.shape[:2]
    seen_Re = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    place_R = seen_Re.gather(1, local_R[:, None])[:, 0] - 1
    slot_R = local_R * most + place_R
    x_SD = rows_RD.new_zeros(e * most, D).index_copy(0, slot_R, rows_RD)
    y_eSD = torch.relu(x_SD.view(e, most, D) @ w1_eDF) @ w2_eFD
    return y_eSD.flatten(0, 1)[slot_R]
    # END SOLUTION


# %% id="grouped-check"
lockstep.check("grouped", grouped)

# %% id="both-ways"
grouped = lockstep.carry_on("grouped", grouped)


def together(rows_RD, local_R, w1_eDF, w2_eFD):
    return grouped(rows_RD, local_R, 10, w1_eDF, w2_eFD)


alone = {"nproc_per_node": 1, "init": False, "show": False}
counted = lockstep.torchrun(products, together, **alone)
print(f"{counted[0]} products")
print(lockstep.live(counted))

# %% [markdown] id="hunt-text"
# ## 5 · The hunt
#
# `lockstep.capstone.copy("my_step.py")` writes the program into this folder, for you to change: about 200 lines that read
# from top to bottom. Open it from the list of files on the left, and read it once.
#
# It trains a small transformer with two layers of twelve experts. Where there is a GPU for each of four ranks,
# `run` uses these. Else it uses four virtual ones, whose products, memory and links are a twentieth as fast as an H200's: so
# small tensors, which a CPU can compute, take as long as large ones do on an H200. The host is an H200's.

# %% id="first-card" tags=["varies"]
program = lockstep.capstone.copy("my_step.py")
first = lockstep.capstone.run(program)
first

# %% [markdown] id="card-explained"
# Above the card stand the three sentences of lab 07. The card says whether the losses are those of one plain process (to the
# digits that the order of sums leaves), what a rank's step calls and sends, how much of the communication nothing
# hides, and how long a step takes, beside the course's mended program and, once you have changed yours, your best so far.
#
# *What can be hidden:* the virtual GPU knows which operation reads what another has written. A communication can be
# hidden by what its rank computes, if neither needs the other; a millisecond of computing hides one of communication. The bound
# *by its dependencies* is a step in which all of that is hidden, and nothing waits for the host or for its turn on
# a stream: faster kernels lower it, better overlap brings the step closer to it. The last bound is what the products need
# at the machine's best rate, or the bytes on its links: no program can be faster, and none gets near with small tensors.
#
# **Predict:** read `on_host` and `moe`. How often does the host wait for a number from the GPU in a step?

# %% id="waits-prediction" tags=["prediction"]
# your number
prediction = 2 * 2 * 12

# %% id="waits"
slow = lockstep.capstone.run(lockstep.capstone.SLOW)
copies = [one for one in slow.trace if "device to host" in one.name]
of_rank = [one for one in copies if one.rank == 0]
per_step = len(of_rank) // len(slow.losses)
print(slow.stamp)
lockstep.compare(predicted=prediction, measured=per_step)

# %% [markdown] id="picture-text"
# A step of rank 0's GPU, of the slow program and of the course's. In the second one the rows travel on a stream of their own, while
# the shared expert computes, and most of the gaps are gone.

# %% id="picture"
mended = lockstep.capstone.run(lockstep.capstone.MENDED)


def one_step(card):
    """What rank 0's GPU does in step 2."""
    (step,) = [s for s in card.trace.steps() if (s.rank, s.number) == (0, 2)]
    on_gpu = [s for s in card.trace if s.rank == 0 and s.stream >= 0]
    inside = [s for s in on_gpu if step.start <= s.start < step.end]
    return lockstep.Trace.from_slices(inside, stamp=card.stamp)


title = "A step of rank 0's GPU: slow and mended"
lockstep.Timeline(one_step(mended), before=one_step(slow), title=title)

# %% [markdown] id="faults-text"
# Each of the eight faults is in one function. The cell takes the course's mended program, puts one fault back at a time, and
# says what it costs, what the headline names, and whether that finds the fault: without it the headline names something else.

# %% id="faults"
import tempfile
from pathlib import Path

LABS_OF = ["07", "05", "04", "06", "09", "12", "08", "06"]
holds_back = lambda card: card.said[0].partition(" hold")[0]
costs = [["none", "", f"{mended.step:.2f}", holds_back(mended), ""]]
with tempfile.TemporaryDirectory() as folder:
    faults = zip(lockstep.capstone.FAULTS.items(), LABS_OF, strict=True)
    for (fault, where), lab in faults:
        path = Path(folder) / "faulty.py"
        path.write_text(lockstep.capstone.with_faults([fault]))
        card = lockstep.capstone.run(path)
        name = f"{fault} ({where[-1]}, lab {lab})"
        added = f"+{100 * (card.step / mended.step - 1):.1f} %"
        named = holds_back(card)
        found = "yes" if named != holds_back(mended) else "no"
        costs.append([name, added, f"{card.step:.2f}", named, found])
titles = ["fault", "costs", "ms", "the headline names", "found"]
lockstep.table("One fault at a time", titles, costs, stamp=mended.stamp)

# %% [markdown] id="faults-explained"
# On virtual GPUs a recompilation costs nothing, as they know no compiler; on a GPU, `TORCH_LOGS=recompiles` tells of it (lab
# 05). And one fault of eight is rarely found by the headline: it names what the whole step spends its time with. To find the
# others, look at the card, at `card.trace.launches()`, `collectives()` and the timeline.
#
# **Your turn.** Mend `my_step.py` function by function, in the order that you think worth most, and run the next cell after each
# change. The losses must stay right.

# %% id="yours" tags=["varies"]
lockstep.capstone.run(program)

# %% [markdown] id="proof-text"
# A step's time differs with its samples. So a change is proved by the gate of lab 07: both programs run by turns, five times
# each on other samples, and the gate asks how often noise would do as much. The cell compares the slow program with the course's;
# put yours in its place.

# %% id="proof"
before, after = lockstep.capstone.SLOW, lockstep.capstone.MENDED
proof = lockstep.capstone.change(before, after)
proof

# %% [markdown] id="page-text"
# **Write it down.** A change that nobody can follow is lost. Whoever gives the course reads this page in `lockstep report`,
# beside your last card. (`run(program, log="run.log")` writes [MLPerf's log lines](https://github.com/mlcommons/logging), too.)

# %% id="page"
page = {
    "what": "",  # the functions that you changed, and how
    "evidence": "",  # what you saw in a card, a table or a timeline
    "gain": "",  # milliseconds of a step, and what the gate said
}

# %% [markdown] id="gate-text"
# In a repository of your own the gate can run at each change. This workflow for GitHub Actions (in
# `.github/workflows/gate.yml`) needs no GPU: on virtual ones a step takes as long on every machine. It fails where losses are
# wrong, or a step became slower beyond noise. The manual's page on the library has one for traces of real GPUs.
#
# ```yaml
# on: pull_request
# jobs:
#   gate:
#     runs-on: ubuntu-latest
#     steps:
#       - uses: actions/checkout@v4
#         with: { fetch-depth: 0 }
#       - run: pip install "lockstep @ git+https://github.com/YOU/lockstep"
#       - run: git show "origin/$GITHUB_BASE_REF:my_step.py" > before.py
#       - run: |
#           python - >> "$GITHUB_STEP_SUMMARY" <<END
#           import lockstep
#           assert lockstep.capstone.run("my_step.py").right, "wrong losses"
#           change = lockstep.capstone.change("before.py", "my_step.py")
#           print(change)
#           assert not change.loss.of("step time").grew, "a step became slower"
#           END
# ```

# %% [markdown] id="mended-text"
# `solutions/step.py` is the course's mended program. It differs from the slow one in the eight functions only. Each of them
# is a few lines: `owners` deals experts out in turn, there and back; `on_host` waits once; `experts` is your
# exercise 5; `moe` starts to send, computes the shared expert meanwhile, and does so in the backward pass, too; `batches` copies
# from pinned memory on a stream of its own while the step before runs; `average` sends one tensor; `update` updates all
# weights in three launches; `compiled` asks for one program for all sizes. Read its `moe`. Its card has both bounds:

# %% id="mended"
mended

# %% [markdown] id="on-gpus-text"
# The same programs in their large size were run by turns on two real H200s. There the host, and not the links, is what a
# step waits for, so times scatter, and the bounds are far away; what can be hidden is much less than a step. The lower
# rows are the mended program with one fault each, run once: one of them stands out of the scatter of the mended one's own
# times. The others cost something on virtual GPUs, whose host is quick; here, where the host is late anyway, one run does
# not tell that from scatter.

# %% id="on-gpus"
recording = lockstep.recorded("capstone/h200-x2.json")
ways = ["step", "least", "bound"]
programs = [one for turn in recording.content["turns"] for one in turn.items()]
rows = []
for name, one in [*programs, *recording.content["faults"].items()]:
    times = [f"{one[way]:.1f}" for way in ways]
    rows.append([name, *times, f"{100 * one['achieved']:.0f} %"])
titles = ["program", "step, ms", "by dependencies", "by products, links"]
titles += ["hidden, of what can be"]
lockstep.table("Two H200s, by turns", titles, rows, stamp=recording.stamp)

# %% [markdown] id="headline-claim-text"
# ### Claim: "the largest item of a profile is where to start"
#
# A common rule. Take it by its word: the headline's item is the one to start with. The cell takes the fault that costs
# most in the table, and asks whether the slow program's headline is about it: about the host. **Guess**.

# %% id="headline-guess" tags=["guess"]
guess = "holds"

# %% id="headline"
worst = max(costs[1:], key=lambda row: float(row[2]))[0]
lockstep.claim(
    "The largest item of a profile is where to start.",
    guess=guess,
    verdict="holds" if slow.said[0].startswith("The host") else "does not hold",
    because=f"costs most: {worst}; the slow program: {holds_back(slow)}",
    stamp=slow.stamp,
)

# %% [markdown] id="recap"
# ## Recap
#
# - A token travels to its expert and back: four times a row in a training step, less what stays at home.
# - The host must know how many rows come. It waits for that once a layer, or each number costs a wait.
# - The fullest rank decides. Which rank has which expert is free.
# - Experts of one rank are one product, if all get as many rows as the fullest.
# - A step is made fast one measured change at a time: same losses, a gate that says that the change counts, and a bound
#   that says when to stop.
