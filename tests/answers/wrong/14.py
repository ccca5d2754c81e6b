"""Wrong answers to the exercises of lab 14, written by who wrote its checks; see judge.py.

The last ones were written from the blank lab, and its checks once accepted them.
"""

import numpy as np
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


# %% by_expert: place-in-all
def by_expert(expert_T, E, capacity):
    order = torch.argsort(expert_T, stable=True)
    place = torch.arange(len(order))
    return order[place < capacity], torch.bincount(expert_T, minlength=E).clamp(max=capacity)


# %% by_expert: capacity-not-reached
def by_expert(expert_T, E, capacity):
    lists = [torch.where(expert_T == e)[0][: capacity - 1] for e in range(E)]
    return torch.cat(lists), torch.tensor([len(one) for one in lists])


# %% by_expert: unique
def by_expert(expert_T, E, capacity):
    values, counts = torch.unique(expert_T, return_counts=True)
    lists = [torch.where(expert_T == e)[0][:capacity] for e in values]
    return torch.cat(lists), counts.clamp(max=capacity)


# %% by_expert: counts-of-int32
def by_expert(expert_T, E, capacity):
    lists = [torch.where(expert_T == e)[0][:capacity] for e in range(E)]
    return torch.cat(lists), torch.tensor([len(one) for one in lists], dtype=torch.int32)


# %% by_expert: counted-in-floats
def by_expert(expert_T, E, capacity):
    counts, order = torch.zeros(E), []
    for e in range(E):
        for token in range(len(expert_T)):
            if expert_T[token] == e and counts[e] < capacity:
                counts[e] += 1
                order.append(token)
    return torch.tensor(order), counts


# %% by_expert: inverse
def by_expert(expert_T, E, capacity):
    lists = [torch.where(expert_T == e)[0][:capacity] for e in range(E)]
    return torch.cat(lists).argsort(), torch.tensor([len(one) for one in lists])


# %% by_expert: turned-round
def by_expert(expert_T, E, capacity):
    lists = [torch.where(expert_T == e)[0][:capacity] for e in reversed(range(E))]
    return torch.cat(lists), torch.tensor([len(one) for one in reversed(lists)])


# %% exchange: even-splits
class Even(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        n = dist.get_world_size()
        ctx.even = [len(rows) // n] * n
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows, ctx.even, ctx.even)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous(), ctx.even, ctx.even)
        return out, None, None


def exchange(rows_RD, send, receive):
    return Even.apply(rows_RD, send, receive)


# %% exchange: reduced-gradient
class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.splits = send, receive
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows, receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.splits
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, receive)
        whole = out.sum()
        dist.all_reduce(whole)
        return out, None, None


def exchange(rows_RD, send, receive):
    return Reduced.apply(rows_RD, send, receive)


# %% exchange: messages
class Messages(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.splits = send, receive
        return Messages.travel(rows, send, receive)

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.splits
        return Messages.travel(grad.contiguous(), receive, send), None, None

    @staticmethod
    def travel(rows, send, receive):
        rank, works = dist.get_rank(), []
        out = rows.new_empty(sum(receive), rows.shape[1])
        for peer, (ours, theirs) in enumerate(
            zip(rows.split(send), out.split(receive), strict=True)
        ):
            if peer == rank:
                theirs.copy_(ours)
            else:
                if len(ours):
                    works.append(dist.isend(ours, peer))
                if len(theirs):
                    works.append(dist.irecv(theirs, peer))
        for work in works:
            work.wait()
        return out


def exchange(rows_RD, send, receive):
    return Messages.apply(rows_RD, send, receive)


# %% exchange: twice-the-gradient
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        return Swap.forward(ctx, rows, send, receive)

    @staticmethod
    def backward(ctx, grad):
        return 2 * Swap.backward(ctx, grad)[0], None, None


def exchange(rows_RD, send, receive):
    return Twice.apply(rows_RD, send, receive)


# %% exchange: nothing-sent
def exchange(rows_RD, send, receive):
    return rows_RD.new_zeros(sum(receive), rows_RD.shape[1])


# %% exchange: splits-of-forward
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.splits = send, receive
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(out, rows, receive, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.splits
        out = grad.new_empty(sum(receive), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), receive, send)
        return out, None, None


def exchange(rows_RD, send, receive):
    return Same.apply(rows_RD, send, receive)


# %% exchange: list-instead
def exchange(rows_RD, send, receive):
    return list(Swap.apply(rows_RD, send, receive).split(receive))


# %% moe: gates-made-one
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    return layer(x_TD, gate_T / gate_T.sum(), expert_T, capacity, w1_eDF, w2_eFD)


def layer(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: gate-twice
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    return gate_T[:, None] * layer(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD)


def layer(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: gelu
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.nn.functional.gelu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: capacity-of-all-ranks
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    """An expert takes so many tokens of all ranks together, those of rank 0 first."""
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    seen = torch.nn.functional.one_hot(labels, local).cumsum(0)
    y = y * (seen.gather(1, labels[:, None]) <= capacity)
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: averaged-weights
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    """As data parallelism would: the gradient of an expert, divided by the ranks."""
    world, local = dist.get_world_size(), len(w1_eDF)
    for weight in (w1_eDF, w2_eFD):
        weight.register_hook(lambda grad: grad / world)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, theirs.sum(1).tolist(), mine.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: back-the-way-it-came
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    world, local = dist.get_world_size(), len(w1_eDF)
    order, mine, theirs = routed(expert_T, capacity, world, local)
    rows = Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())
    labels = torch.arange(local).repeat(world).repeat_interleave(theirs.view(-1))
    h = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[labels]))
    y = torch.einsum("rf,rfd->rd", h, w2_eFD[labels])
    back = Swap.apply(y, mine.sum(1).tolist(), theirs.sum(1).tolist())
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order, back)


# %% place: ties-to-the-last
def place(rows_E, n):
    load, room = [0] * n, [len(rows_E) // n] * n
    owners = [0] * len(rows_E)
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        rank = min((r for r in reversed(range(n)) if room[r]), key=lambda r: load[r])
        owners[e] = rank
        load[rank] += rows_E[e]
        room[rank] -= 1
    return owners


# %% place: loads-instead
def place(rows_E, n):
    load, room = [0] * n, [len(rows_E) // n] * n
    for rows in sorted(rows_E, reverse=True):
        rank = min((r for r in range(n) if room[r]), key=lambda r: load[r])
        load[rank] += rows
        room[rank] -= 1
    return load


# %% place: dictionary
def place(rows_E, n):
    load, room, owners = [0] * n, [len(rows_E) // n] * n, {}
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        rank = min((r for r in range(n) if room[r]), key=lambda r: load[r])
        owners[e] = rank
        load[rank] += rows_E[e]
        room[rank] -= 1
    return owners


# %% place: from-one
def place(rows_E, n):
    load, room = [0] * n, [len(rows_E) // n] * n
    owners = [0] * len(rows_E)
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        rank = min((r for r in range(n) if room[r]), key=lambda r: load[r])
        owners[e] = rank + 1
        load[rank] += rows_E[e]
        room[rank] -= 1
    return owners


# %% place: sorts-what-it-was-given
def place(rows_E, n):
    rows_E.sort(reverse=True)
    load, room, owners = [0] * n, [len(rows_E) // n] * n, []
    for rows in rows_E:
        rank = min((r for r in range(n) if room[r]), key=lambda r: load[r])
        owners.append(rank)
        load[rank] += rows
        room[rank] -= 1
    return owners


# %% place: room-for-one-more
def place(rows_E, n):
    load, count = [0] * n, [0] * n
    owners = [0] * len(rows_E)
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        free = [r for r in range(n) if count[r] <= len(rows_E) // n]
        rank = min(free, key=lambda r: load[r])
        owners[e] = rank
        load[rank] += rows_E[e]
        count[rank] += 1
    return owners


# %% grouped: reversed-weights
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    seen = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    slot = local_R * most + seen.gather(1, local_R[:, None])[:, 0] - 1
    x = rows_RD.new_zeros(e * most, D).index_copy(0, slot, rows_RD)
    y = torch.relu(x.view(e, most, D) @ w1_eDF.flip(0)) @ w2_eFD.flip(0)
    return y.flatten(0, 1)[slot]


# %% grouped: relu-of-the-rows
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    seen = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    slot = local_R * most + seen.gather(1, local_R[:, None])[:, 0] - 1
    x = rows_RD.new_zeros(e * most, D).index_copy(0, slot, torch.relu(rows_RD))
    return ((x.view(e, most, D) @ w1_eDF) @ w2_eFD).flatten(0, 1)[slot]


# %% grouped: a-product-for-nothing
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    seen = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    slot = local_R * most + seen.gather(1, local_R[:, None])[:, 0] - 1
    x = rows_RD.new_zeros(e * most, D).index_copy(0, slot, rows_RD).view(e, most, D)
    positive = (x @ w1_eDF) > 0
    return ((x @ w1_eDF * positive) @ w2_eFD).flatten(0, 1)[slot]


# %% grouped: last-slot-lost
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    seen = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    place = (seen.gather(1, local_R[:, None])[:, 0] - 1).clamp(max=most - 2)
    slot = local_R * most + place
    x = rows_RD.new_zeros(e * most, D).index_copy(0, slot, rows_RD)
    return (torch.relu(x.view(e, most, D) @ w1_eDF) @ w2_eFD).flatten(0, 1)[slot]


# %% grouped: in-place
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    seen = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    slot = local_R * most + seen.gather(1, local_R[:, None])[:, 0] - 1
    x = rows_RD.new_zeros(e * most, D).index_copy(0, slot, rows_RD)
    y = torch.relu(x.view(e, most, D) @ w1_eDF) @ w2_eFD
    rows_RD.copy_(y.flatten(0, 1)[slot])
    return rows_RD


# %% grouped: mean-of-experts
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    x = rows_RD.expand(len(w1_eDF), -1, -1)
    return (torch.relu(x @ w1_eDF) @ w2_eFD).mean(0)


# %% exchange: forgets-to-return
def exchange(rows_RD, send, receive):
    Swap.apply(rows_RD, send, receive)


# %% moe: forgets-to-return
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order, mine, theirs = routed(expert_T, capacity, dist.get_world_size(), len(w1_eDF))
    Swap.apply(x_TD[order], mine.sum(1).tolist(), theirs.sum(1).tolist())


# %% exchange: a-gradient-as-it-comes
class Exchange(Swap):
    @staticmethod
    def backward(ctx, grad):
        result = grad.new_empty(sum(ctx.send), grad.size(1))
        dist.all_to_all_single(result, grad, ctx.send, ctx.receive)
        return result, None, None


def exchange(rows_RD, send, receive):
    return Exchange.apply(rows_RD, send, receive)


# %% exchange: splits-of-the-class
class Exchange(Swap):
    @staticmethod
    def forward(ctx, rows, send, receive):
        Exchange.send, Exchange.receive = send, receive
        return Swap.forward(ctx, rows, send, receive)

    @staticmethod
    def backward(ctx, grad):
        ctx.send, ctx.receive = Exchange.send, Exchange.receive
        return Swap.backward(ctx, grad)


def exchange(rows_RD, send, receive):
    return Exchange.apply(rows_RD, send, receive)


# %% moe: own-experts-only-are-counted
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    counts = torch.bincount(expert_T, minlength=len(w1_eDF)).clamp(max=capacity)
    mine = counts.view(dist.get_world_size(), -1)
    lists = [torch.where(expert_T == e)[0][:capacity] for e in range(len(counts))]
    order, theirs = torch.cat(lists), torch.zeros_like(mine)
    dist.all_to_all_single(theirs, mine)
    send, receive = mine.sum(1).tolist(), theirs.sum(1).tolist()
    rows = Swap.apply(x_TD[order], send, receive)
    local = torch.arange(len(w1_eDF)).repeat(len(mine)).repeat_interleave(theirs.flatten())
    hidden = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[local]))
    made = Swap.apply(torch.einsum("rf,rfd->rd", hidden, w2_eFD[local]), receive, send)
    return torch.zeros_like(x_TD).index_copy(0, order, made * gate_T[order, None])


# %% grouped: filled-without-gradient
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    hot = torch.nn.functional.one_hot(local_R, len(w1_eDF))
    slot = ((hot.cumsum(0) - 1) * hot).sum(1)
    x = rows_RD.new_zeros(len(w1_eDF), most, rows_RD.shape[1])
    with torch.no_grad():
        x[local_R, slot] = rows_RD
    return (torch.relu(x @ w1_eDF) @ w2_eFD)[local_R, slot]


# %% grouped: by-numpy
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    rows, local = rows_RD.detach().numpy(), local_R.numpy()
    w1, w2 = w1_eDF.detach().numpy(), w2_eFD.detach().numpy()
    y = np.zeros_like(rows)
    for i in range(len(w1)):
        y[local == i] = np.maximum(rows[local == i] @ w1[i], 0) @ w2[i]
    return torch.from_numpy(y)
