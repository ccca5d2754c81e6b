"""Wrong answers to the exercises of lab 14, written by who wrote its checks; see judge.py."""

import torch
import torch.distributed as dist


class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.send, ctx.receive = send, receive
        result = rows.new_zeros(sum(receive), rows.size(1))
        dist.all_to_all_single(result, rows.contiguous(), receive, send)
        return result

    @staticmethod
    def backward(ctx, grad):
        result = grad.new_zeros(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(result, grad.contiguous(), ctx.send, ctx.receive)
        return result, None, None


def routed(expert_T, capacity, world, local):
    lists = [torch.where(expert_T == e)[0][:capacity] for e in range(world * local)]
    mine = torch.tensor([len(one) for one in lists]).reshape(world, local)
    theirs = torch.zeros_like(mine)
    dist.all_to_all_single(theirs, mine)
    return torch.cat(lists), mine, theirs


# %% by_expert: only-the-order
def by_expert(expert_T, E, capacity):
    order = torch.argsort(expert_T, stable=True)
    return order


# %% by_expert: descending
def by_expert(expert_T, E, capacity):
    order = torch.argsort(expert_T, stable=True, descending=True)
    return order[:capacity], torch.bincount(expert_T, minlength=E).clamp(max=capacity)


# %% by_expert: first-of-the-sorted
def by_expert(expert_T, E, capacity):
    order = torch.argsort(expert_T, stable=True)
    return order[: capacity * E], torch.bincount(expert_T, minlength=E).clamp(max=capacity)


# %% by_expert: one-too-many
def by_expert(expert_T, E, capacity):
    lists = [torch.where(expert_T == e)[0][: capacity + 1] for e in range(E)]
    return torch.cat(lists), torch.tensor([len(one) for one in lists])


# %% by_expert: experts-instead
def by_expert(expert_T, E, capacity):
    counts = torch.bincount(expert_T, minlength=E).clamp(max=capacity)
    return torch.arange(E).repeat_interleave(counts), counts


# %% exchange: without-splits
def exchange(rows_RD, send, receive):
    out = torch.empty(sum(receive), rows_RD.shape[1])
    dist.all_to_all_single(out, rows_RD)
    return out


# %% exchange: no-function
def exchange(rows_RD, send, receive):
    out = rows_RD.new_empty(sum(receive), rows_RD.shape[1])
    dist.all_to_all_single(out, rows_RD.detach(), receive, send)
    return out


# %% exchange: does-not-wait
class NoWait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.splits = send, receive
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows, receive, send, async_op=True)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.splits
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad, send, receive)
        return out, None, None


def exchange(rows_RD, send, receive):
    return NoWait.apply(rows_RD, send, receive)


# %% exchange: all-gathers
def exchange(rows_RD, send, receive):
    n, rank = dist.get_world_size(), dist.get_rank()
    everybody = [None] * n
    dist.all_gather_object(everybody, (rows_RD.detach(), send))
    parts = []
    for rows, splits in everybody:
        parts.append(rows.split(splits)[rank])
    return torch.cat(parts)


# %% exchange: gradient-of-ones
class Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.like = rows
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows, receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        return torch.ones_like(ctx.like), None, None


def exchange(rows_RD, send, receive):
    return Ones.apply(rows_RD, send, receive)


# %% moe: forgets-to-send-back
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    y = torch.zeros_like(x_TD)
    for e in range(len(w1_eDF)):
        mine = torch.where(expert_T == e)[0][:capacity]
        y[mine] = torch.relu(x_TD[mine] @ w1_eDF[e]) @ w2_eFD[e]
    return y * gate_T[:, None]


# %% moe: no-relu
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    y = torch.einsum("rd,rdf,rfe->re", rows, w1_eDF[labels], w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: gate-detached-rows
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order].detach(), mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: adds-x
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return x_TD + gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: labels-by-rank
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat_interleave(theirs.sum(0))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% place: heaviest-together
def place(rows_E, n):
    order = sorted(range(len(rows_E)), key=lambda e: -rows_E[e])
    owners = [0] * len(rows_E)
    for at, e in enumerate(order):
        owners[e] = at // (len(rows_E) // n)
    return owners


# %% place: snake
def place(rows_E, n):
    order = sorted(range(len(rows_E)), key=lambda e: -rows_E[e])
    owners = [0] * len(rows_E)
    for at, e in enumerate(order):
        turn, rank = divmod(at, n)
        owners[e] = n - 1 - rank if turn % 2 else rank
    return owners


# %% place: groups-instead
def place(rows_E, n):
    ranks = [[] for _ in range(n)]
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        free = [one for one in ranks if len(one) < len(rows_E) // n]
        min(free, key=lambda one: sum(rows_E[i] for i in one)).append(e)
    return ranks


# %% place: as-they-come
def place(rows_E, n):
    owners, load, count = [], [0] * n, [0] * n
    for rows in rows_E:
        free = [r for r in range(n) if count[r] < len(rows_E) // n]
        rank = min(free, key=lambda r: load[r])
        owners.append(rank)
        load[rank] += rows
        count[rank] += 1
    return owners


# %% grouped: loop
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    y = torch.zeros_like(rows_RD)
    for e in range(len(w1_eDF)):
        y[local_R == e] = torch.relu(rows_RD[local_R == e] @ w1_eDF[e]) @ w2_eFD[e]
    return y


# %% grouped: relu-last
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    parts = [rows_RD[local_R == e] for e in range(len(w1_eDF))]
    x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    y = torch.relu(x @ w1_eDF @ w2_eFD)
    out = torch.zeros_like(rows_RD)
    for e, part in enumerate(parts):
        out[local_R == e] = y[e, : len(part)]
    return out


# %% grouped: sorted-result
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    parts = [rows_RD[local_R == e] for e in range(len(w1_eDF))]
    x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    y = torch.relu(x @ w1_eDF) @ w2_eFD
    return torch.cat([y[e, : len(part)] for e, part in enumerate(parts)])


# %% grouped: three-dimensions
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    parts = [rows_RD[local_R == e] for e in range(len(w1_eDF))]
    x = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    return torch.relu(x @ w1_eDF) @ w2_eFD


# %% grouped: ignores-local
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    x = rows_RD.new_zeros(e * most, D)
    x[: len(rows_RD)] = rows_RD
    y = torch.relu(x.view(e, most, D) @ w1_eDF) @ w2_eFD
    return y.view(e * most, D)[: len(rows_RD)]
