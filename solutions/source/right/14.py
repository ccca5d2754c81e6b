"""Right answers to the exercises of lab 14 in other styles than the solution's."""

import torch
import torch.distributed as dist


class Travel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.send, ctx.receive = send, receive
        return travelled(rows, send, receive)

    @staticmethod
    def backward(ctx, grad):
        return travelled(grad.contiguous(), ctx.receive, ctx.send), None, None


def travelled(rows, send, receive):
    out = torch.empty(sum(receive), rows.shape[1], dtype=rows.dtype)
    work = dist.all_to_all_single(out, rows, receive, send, async_op=True)
    work.wait()
    return out


# %% by_expert: one-expert-after-the-other
def by_expert(expert_T, E, capacity):
    each = [(expert_T == e).nonzero().flatten()[:capacity] for e in range(E)]
    return torch.cat(each), torch.tensor([len(one) for one in each])


# %% by_expert: in-python
def by_expert(expert_T, E, capacity):
    order, counts = [], [0] * E
    for e in range(E):
        for t, one in enumerate(expert_T.tolist()):
            if one == e and counts[e] < capacity:
                order.append(t)
                counts[e] += 1
    return torch.tensor(order), torch.tensor(counts)


# %% by_expert: one-hot
def by_expert(expert_T, E, capacity):
    is_TE = torch.nn.functional.one_hot(expert_T, E)
    kept_TE = is_TE.bool() & (is_TE.cumsum(0) <= capacity)
    return kept_TE.T.nonzero()[:, 1], kept_TE.sum(0)


# %% by_expert: sort-with-values
def by_expert(expert_T, E, capacity):
    values, order = torch.sort(expert_T, stable=True)
    first = torch.searchsorted(values, torch.arange(E))
    kept = torch.arange(len(order)) - first[values] < capacity
    return order[kept], torch.bincount(values[kept], minlength=E)


# %% by_expert: as-a-list
def by_expert(expert_T, E, capacity):
    tokens = sorted(range(len(expert_T)), key=lambda t: (int(expert_T[t]), t))
    kept, counts = [], torch.zeros(E, dtype=torch.long)
    for t in tokens:
        if counts[expert_T[t]] < capacity:
            counts[expert_T[t]] += 1
            kept.append(t)
    return torch.as_tensor(kept), counts


# %% exchange: with-handles
exchange = Travel.apply


# %% exchange: splits-as-tuples
class ByTuples(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.splits = send, receive
        out = rows.new_empty(sum(receive), rows.shape[1])
        dist.all_to_all_single(
            out, rows.contiguous(), output_split_sizes=receive, input_split_sizes=send
        )
        return out

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.splits
        out = grad.new_zeros(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), list(send), list(receive))
        return out, None, None


def exchange(rows_RD, send, receive):
    return ByTuples.apply(rows_RD, tuple(send), tuple(receive))


# %% exchange: of-a-reversed-function
class There(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.back = receive, send
        return travelled(rows, send, receive)

    @staticmethod
    def backward(ctx, grad):
        return There.apply(grad.contiguous(), *ctx.back), None, None


def exchange(rows_RD, send, receive):
    return There.apply(rows_RD, send, receive)


# %% exchange: a-hook
def exchange(rows_RD, send, receive):
    came = travelled(rows_RD.detach(), send, receive).requires_grad_()

    class Joined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return came.detach()

        @staticmethod
        def backward(ctx, grad):
            return travelled(grad.contiguous(), receive, send)

    return Joined.apply(rows_RD)


# %% exchange: with-views
class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.shape, ctx.splits = rows.shape, (send, receive)
        return travelled(rows, send, receive).view(-1, rows.shape[1])

    @staticmethod
    def backward(ctx, grad):
        send, receive = ctx.splits
        return travelled(grad.contiguous(), receive, send).view(ctx.shape), None, None


def exchange(rows_RD, send, receive):
    return Viewed.apply(rows_RD, send, receive)


# %% moe: gathers-everything
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    n, e = dist.get_world_size(), len(w1_eDF)
    each = [(expert_T == one).nonzero()[:, 0][:capacity] for one in range(n * e)]
    order, counts = torch.cat(each), torch.tensor([len(one) for one in each])
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    send, receive = counts.view(n, e).sum(1).tolist(), got.view(n, e).sum(1).tolist()
    pieces = Travel.apply(x_TD[order], send, receive).split(got.tolist())
    made = [torch.relu(one @ w1_eDF[i % e]) @ w2_eFD[i % e] for i, one in enumerate(pieces)]
    back = Travel.apply(torch.cat(made), receive, send)
    return torch.zeros_like(x_TD).index_add(0, order, gate_T[order, None] * back)


# %% moe: by-rows
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    n, e = dist.get_world_size(), len(w1_eDF)
    is_TE = torch.nn.functional.one_hot(expert_T, n * e)
    kept_TE = is_TE.bool() & (is_TE.cumsum(0) <= capacity)
    order, counts = kept_TE.T.nonzero()[:, 1], kept_TE.sum(0).view(n, e)
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    which = torch.arange(e).repeat(n).repeat_interleave(got.flatten())
    rows = Travel.apply(x_TD[order], counts.sum(1).tolist(), got.sum(1).tolist())
    hidden = torch.relu(torch.einsum("rd,rdf->rf", rows, w1_eDF[which]))
    made = torch.einsum("rf,rfd->rd", hidden, w2_eFD[which])
    back = Travel.apply(made, got.sum(1).tolist(), counts.sum(1).tolist())
    y = torch.zeros_like(x_TD)
    y = torch.index_put(y, (order,), back)
    return y * gate_T.unsqueeze(1)


# %% moe: gate-travels
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    n, e = dist.get_world_size(), len(w1_eDF)
    each = [(expert_T == one).nonzero()[:, 0][:capacity] for one in range(n * e)]
    order, counts = torch.cat(each), torch.tensor([len(one) for one in each])
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    send, receive = counts.view(n, e).sum(1).tolist(), got.view(n, e).sum(1).tolist()
    both = torch.cat([x_TD, gate_T[:, None]], 1)
    rows = Travel.apply(both[order], send, receive)
    which = torch.arange(e).repeat(n).repeat_interleave(got)
    y = torch.zeros_like(rows[:, :-1])
    for i in range(e):
        here = (which == i).nonzero()[:, 0]
        made = torch.relu(rows[here, :-1] @ w1_eDF[i]) @ w2_eFD[i]
        y = y.index_copy(0, here, made * rows[here, -1:])
    back = Travel.apply(y, receive, send)
    return torch.zeros_like(x_TD).index_copy(0, order, back)


# %% moe: sorts-what-came
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    n, e = dist.get_world_size(), len(w1_eDF)
    each = [(expert_T == one).nonzero()[:, 0][:capacity] for one in range(n * e)]
    order, counts = torch.cat(each), torch.tensor([len(one) for one in each])
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    send, receive = counts.view(n, e).sum(1).tolist(), got.view(n, e).sum(1).tolist()
    rows = Travel.apply(x_TD[order], send, receive)
    which = torch.arange(e).repeat(n).repeat_interleave(got)
    by = which.argsort(stable=True)
    parts = rows[by].split(torch.bincount(which, minlength=e).tolist())
    made = [torch.relu(one @ w1_eDF[i]) @ w2_eFD[i] for i, one in enumerate(parts)]
    back = Travel.apply(torch.cat(made)[by.argsort()], receive, send)
    y = torch.zeros_like(x_TD).index_copy(0, order, back)
    return torch.einsum("t,td->td", gate_T, y)


# %% moe: appends-zeros
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    n, e = dist.get_world_size(), len(w1_eDF)
    each = [(expert_T == one).nonzero()[:, 0][:capacity] for one in range(n * e)]
    order, counts = torch.cat(each), torch.tensor([len(one) for one in each])
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    send, receive = counts.view(n, e).sum(1).tolist(), got.view(n, e).sum(1).tolist()
    pieces = Travel.apply(x_TD[order], send, receive).split(got.tolist())
    made = [torch.relu(one @ w1_eDF[i % e]) @ w2_eFD[i % e] for i, one in enumerate(pieces)]
    back = Travel.apply(torch.cat(made), receive, send)
    where = torch.full((len(x_TD),), len(order))
    where[order] = torch.arange(len(order))
    y = torch.cat([back, back.new_zeros(1, x_TD.shape[1])])[where]
    return gate_T[:, None] * y


# %% moe: gated-before
# The same, as relu lets a gate through that is above zero.
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    n, e = dist.get_world_size(), len(w1_eDF)
    each = [(expert_T == one).nonzero()[:, 0][:capacity] for one in range(n * e)]
    order, counts = torch.cat(each), torch.tensor([len(one) for one in each])
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts)
    send, receive = counts.view(n, e).sum(1).tolist(), got.view(n, e).sum(1).tolist()
    rows = Travel.apply((gate_T[:, None] * x_TD)[order], send, receive)
    made = [
        torch.relu(one @ w1_eDF[i % e]) @ w2_eFD[i % e]
        for i, one in enumerate(rows.split(got.tolist()))
    ]
    back = Travel.apply(torch.cat(made), receive, send)
    return torch.zeros_like(x_TD).index_copy(0, order, back)


# %% place: with-a-heap
def place(rows_E, n):
    import heapq

    ranks, owners = [(0, rank) for rank in range(n)], [0] * len(rows_E)
    count = [0] * n
    for e in sorted(range(len(rows_E)), key=rows_E.__getitem__, reverse=True):
        load, rank = heapq.heappop(ranks)
        owners[e] = rank
        count[rank] += 1
        if count[rank] < len(rows_E) // n:
            heapq.heappush(ranks, (load + rows_E[e], rank))
    return owners


# %% place: by-lists
def place(rows_E, n):
    mine = [[] for _ in range(n)]
    for _, e in sorted(((rows, e) for e, rows in enumerate(rows_E)), reverse=True):
        free = [one for one in mine if len(one) < len(rows_E) // n]
        min(free, key=lambda one: sum(rows_E[other] for other in one)).append(e)
    return [next(r for r in range(n) if e in mine[r]) for e in range(len(rows_E))]


# %% place: infinite-load
def place(rows_E, n):
    load, count, owners = [0.0] * n, [0] * n, {}
    for e in sorted(range(len(rows_E)), key=lambda e: -rows_E[e]):
        rank = load.index(min(load))
        owners[e], count[rank] = rank, count[rank] + 1
        load[rank] = float("inf") if count[rank] == len(rows_E) // n else load[rank] + rows_E[e]
    return [owners[e] for e in range(len(rows_E))]


# %% place: with-torch
def place(rows_E, n):
    import torch

    rows, load = torch.tensor(rows_E, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    owners = torch.full((len(rows_E),), -1)
    for e in rows.argsort(descending=True):
        full = torch.bincount(owners[owners >= 0], minlength=n) >= len(rows_E) // n
        rank = torch.where(full, float("inf"), load).argmin()
        owners[e] = rank
        load[rank] += rows[e]
    return owners.tolist()


# %% place: recursive
def place(rows_E, n):
    def rest(left, load, room):
        if not left:
            return {}
        e, *others = left
        rank = min((load[r], r) for r in range(n) if room[r])[1]
        load[rank] += rows_E[e]
        room[rank] -= 1
        return {e: rank, **rest(others, load, room)}

    order = sorted(range(len(rows_E)), key=lambda e: rows_E[e], reverse=True)
    owners = rest(order, [0] * n, [len(rows_E) // n] * n)
    return [owners[e] for e in range(len(rows_E))]


# %% grouped: sorted
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    order = local_R.argsort(stable=True)
    counts = torch.bincount(local_R, minlength=e)
    first = counts.cumsum(0) - counts
    x = rows_RD.new_zeros(e, most, D)
    mine = local_R[order]
    place = torch.arange(len(order)) - first[mine]
    x[mine, place] = rows_RD[order]
    y = torch.bmm(torch.bmm(x, w1_eDF).relu(), w2_eFD)
    return y[mine, place][order.argsort()]


# %% grouped: padded-by-library
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    each = [(local_R == i).nonzero()[:, 0] for i in range(len(w1_eDF))]
    x = torch.stack(
        [torch.nn.functional.pad(rows_RD[one], (0, 0, 0, most - len(one))) for one in each]
    )
    y = torch.relu(x @ w1_eDF) @ w2_eFD
    made = torch.cat([y[i, : len(one)] for i, one in enumerate(each)])
    return torch.empty_like(made).index_copy(0, torch.cat(each), made)


# %% grouped: weights-of-each-row
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    hidden = torch.bmm(rows_RD[:, None], w1_eDF[local_R]).relu()
    return torch.bmm(hidden, w2_eFD[local_R])[:, 0]


# %% grouped: one-wide-product
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D, F = w1_eDF.shape
    is_Re = torch.nn.functional.one_hot(local_R, e).to(rows_RD.dtype)
    hidden = torch.relu(rows_RD @ w1_eDF.transpose(0, 1).reshape(D, e * F))
    hidden = hidden.view(-1, e, F) * is_Re[:, :, None]
    return hidden.reshape(-1, e * F) @ w2_eFD.reshape(e * F, -1)


# %% grouped: einsum
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    place = [int((local_R[:at] == one).sum()) for at, one in enumerate(local_R)]
    x = rows_RD.new_zeros(e, most, D)
    x[local_R, torch.tensor(place)] = rows_RD
    y = torch.einsum("esf,efd->esd", torch.einsum("esd,edf->esf", x, w1_eDF).relu(), w2_eFD)
    return y[local_R, torch.tensor(place)]
