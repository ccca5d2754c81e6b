"""Right answers to the exercises of lab 09 in other styles than the solution's."""

from typing import Any

import torch
import torch.distributed as dist


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def norm(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


def partial(q, k, v, sees):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if sees is not None:
        scores = scores.masked_fill(~sees, float("-inf"))
    m = scores.amax(-1)
    p = (scores - torch.where(m.isinf(), 0, m)[..., None]).exp()
    return m, p.sum(-1), p @ v


def merge_parts(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        dist.all_reduce(y)
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        n, batch = dist.get_world_size(), x_BsD.shape[0]
        every = x_BsD.new_empty(n * batch, *x_BsD.shape[1:])
        dist.all_gather_into_tensor(every, x_BsD.contiguous())
        return every.unflatten(0, (n, batch)).transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx, grad_BSD):
        n = dist.get_world_size()
        parts = grad_BSD.unflatten(1, (n, -1)).transpose(0, 1).flatten(0, 1)
        mine = torch.empty_like(parts[: len(grad_BSD)])
        dist.reduce_scatter_tensor(mine, parts.contiguous())
        return mine


class Scatter(torch.autograd.Function):
    forward = staticmethod(lambda ctx, y_BSD: Gather.backward(ctx, y_BSD))
    backward = staticmethod(lambda ctx, grad_BsD: Gather.forward(ctx, grad_BsD))


# %% mlp: in-place
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, n = dist.get_rank(), dist.get_world_size()
    w1_fD, b1_f = w1_FD.tensor_split(n)[rank], b1_F.tensor_split(n)[rank]
    h_Bf = torch.relu(torch.nn.functional.linear(Enter.apply(x_BD), w1_fD, b1_f))
    y_BD = torch.nn.functional.linear(h_Bf, w2_DF.tensor_split(n, 1)[rank])
    return Leave.apply(y_BD) + b2_D


# %% mlp: own-borders
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, n = dist.get_rank(), dist.get_world_size()
    size, more = divmod(len(b1_F), n)
    at = rank * size + min(rank, more)
    own = slice(at, at + size + (rank < more))
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1_FD[own].T + b1_F[own])
    return b2_D + Leave.apply(h_Bf @ w2_DF[:, own].T)


# %% mlp: masked
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, n = dist.get_rank(), dist.get_world_size()
    F = torch.arange(len(b1_F))
    mine_F = torch.isin(F, F.tensor_split(n)[rank]).to(x_BD)
    h_BF = torch.relu(Enter.apply(x_BD) @ w1_FD.T + b1_F) * mine_F
    return Leave.apply(h_BF @ w2_DF.T) + b2_D


# %% mlp: one-function
class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, b1, w2):
        h = torch.relu(x @ w1.T + b1)
        ctx.save_for_backward(x, w1, w2, h)
        return summed(h @ w2.T)

    @staticmethod
    def backward(ctx, grad):
        x, w1, w2, h = ctx.saved_tensors
        slope = grad @ w2 * (h > 0)
        return summed(slope @ w1), slope.T @ x, slope.sum(0), grad.T @ h


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, n = dist.get_rank(), dist.get_world_size()
    w1, b1 = w1_FD.tensor_split(n)[rank], b1_F.tensor_split(n)[rank]
    return Whole.apply(x_BD, w1, b1, w2_DF.tensor_split(n, 1)[rank]) + b2_D


# %% vocabulary_loss: three-calls
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start):
        largest = logits.max(dim=1).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        shifted = logits - largest.unsqueeze(1)
        place = target - start
        other = (place < 0) | (place >= logits.shape[1])
        place = place.masked_fill(other, 0)
        hit = shifted.gather(1, place[:, None]).squeeze(1).masked_fill(other, 0.0)
        dist.all_reduce(hit)
        e = shifted.exp()
        total = e.sum(1)
        dist.all_reduce(total)
        ctx.save_for_backward(e / total[:, None], place, other)
        return total.log() - hit

    @staticmethod
    def backward(ctx, grad):
        p, place, other = ctx.saved_tensors
        p = p.clone()
        p[torch.arange(len(place)), place] -= (~other).to(p)
        return p * grad[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: logsumexp
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start):
        own = logits.logsumexp(1)
        m = own.clone()
        dist.all_reduce(m, op=dist.ReduceOp.MAX)
        word = start + torch.arange(logits.shape[1])
        hot = (word == target[:, None]).to(logits)
        both = torch.cat([(own - m).exp(), (logits * hot).sum(1)])
        dist.all_reduce(both)
        total, hit = both.chunk(2)
        whole = m + total.log()
        ctx.save_for_backward((logits - whole[:, None]).exp() - hot)
        return whole - hit

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: by-autograd
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def vocabulary_loss(logits_Tv, target_T, start):
    m_T = logits_Tv.detach().amax(1)
    dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
    word_v = start + torch.arange(logits_Tv.shape[1])
    hot_Tv = word_v == target_T[:, None]
    shifted_Tv = logits_Tv - m_T[:, None]
    hit_T = torch.where(hot_Tv, shifted_Tv, 0).sum(1)
    both = Sum.apply(torch.stack([shifted_Tv.exp().sum(1), hit_T]))
    return both[0].log() - both[1]


# %% vocabulary_loss: minimum-of-negative
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start):
        low = (-logits).amin(1)
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        e = (logits + low[:, None]).exp()
        hot = torch.zeros_like(logits)
        for token, word in enumerate(target.tolist()):
            if 0 <= word - start < logits.shape[1]:
                hot[token, word - start] = 1
        total, hit = summed(e.sum(1)), summed((logits * hot).sum(1))
        ctx.slope = e / total[:, None] - hot
        return total.log() - low - hit

    @staticmethod
    def backward(ctx, grad):
        return ctx.slope * grad.unsqueeze(1), None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% block: into-tensor
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    seeds = [seed + 2 * dist.get_rank() + call for call in range(2)]
    x_BSD = Gather.apply(norm(x_BsD) * Enter.apply(gain_D))
    h_BSf = drop(torch.relu(x_BSD @ w1_fD.T), seeds[0])
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seeds[1])


# %% block: gain-after-the-gather
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    x_BSD = Gather.apply(norm(x_BsD)) * Enter.apply(gain_D)
    h_BSf = drop(torch.relu(x_BSD @ w1_fD.T), seed + rank)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + 500 + rank)


# %% block: gain-in-the-weight
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    w_fD = w1_fD * Enter.apply(gain_D)
    h_BSf = drop((Gather.apply(norm(x_BsD)) @ w_fD.T).relu(), seed + 999 - rank)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + rank)


# %% block: hook-for-the-gain
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n = dist.get_rank(), dist.get_world_size()
    own_D = gain_D * 1
    own_D.register_hook(summed)
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * own_D) @ w1_fD.T)
    h_BSf = drop(h_BSf, seed + rank)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + rank + n)


# %% merge: where
def merge(one, other):
    (m1, l1, o1), (m2, l2, o2) = one, other
    m = torch.where(m1 > m2, m1, m2)
    a = torch.where(m1 == float("-inf"), 0, (m1 - m).exp())
    b = torch.where(m2 == float("-inf"), 0, (m2 - m).exp())
    o = a.unsqueeze(-1) * o1 + b.unsqueeze(-1) * o2
    return m, a * l1 + b * l2, o


# %% merge: stacked
def merge(one, other):
    m, sums, o = (torch.stack(pair) for pair in zip(one, other, strict=True))
    most = m.amax(0)
    factor = (m - most).exp().nan_to_num(0)
    return most, (factor * sums).sum(0), (factor[..., None] * o).sum(0)


# %% merge: clamped
def merge(one, other):
    m = torch.max(one[0], other[0])
    low = torch.finfo(m.dtype).min
    a, b = ((x[0].clamp(min=low) - m.clamp(min=low)).exp() for x in (one, other))
    o = torch.einsum("bhs,bhse->bhse", a, one[2]) + b[..., None] * other[2]
    return m, a * one[1] + b * other[1], o


# %% merge: larger-first
def merge(one, other):
    swap = other[0] > one[0]
    m = torch.where(swap, other[0], one[0])
    d = torch.where(swap, one[0], other[0]) - m
    factor = torch.where(m.isinf(), 1, d.exp())

    def pick(a, b):
        return torch.where(swap.view(*swap.shape, *[1] * (a.dim() - 3)), a, b)

    total = pick(other[1], one[1]) + factor * pick(one[1], other[1])
    o = pick(other[2], one[2]) + factor[..., None] * pick(one[2], other[2])
    return m, total, o


# %% ring_attention: one-message
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv = torch.stack([k_BHsE, v_BHsE])
    total: Any = None
    for owner in [(rank - turn) % n for turn in range(n)]:
        works = []
        if owner != (rank + 1) % n:
            coming = torch.empty_like(kv)
            sends = dist.P2POp(dist.isend, kv, (rank + 1) % n)
            receives = dist.P2POp(dist.irecv, coming, (rank - 1) % n)
            works = dist.batch_isend_irecv([sends, receives])
        sees = None if places is None else places[rank][:, None] >= places[owner]
        mine = partial(q_BHsE, *kv, sees)
        total = mine if total is None else merge_parts(total, mine)
        for work in works:
            work.wait()
        if works:
            kv = coming
    return total[2] / total[1].unsqueeze(-1)


# %% ring_attention: merged-at-the-end
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    after, before, triples = (rank + 1) % n, (rank - 1) % n, []
    for turn in range(n):
        got = torch.empty_like(k_BHsE), torch.empty_like(v_BHsE)
        if turn < n - 1:
            ops = [dist.P2POp(dist.irecv, one, before) for one in got]
            ops += [dist.P2POp(dist.isend, one, after) for one in (k_BHsE, v_BHsE)]
            works = dist.batch_isend_irecv(ops)
        sees = None if places is None else places[rank][:, None] >= places[(rank - turn) % n]
        triples.append(partial(q_BHsE, k_BHsE, v_BHsE, sees))
        if turn < n - 1:
            for work in works:
                work.wait()
            k_BHsE, v_BHsE = got
    m = torch.stack([one[0] for one in triples]).amax(0)
    weights = [(one[0] - m).exp() for one in triples]
    total = sum(w * one[1] for w, one in zip(weights, triples, strict=True))
    o = sum(w[..., None] * one[2] for w, one in zip(weights, triples, strict=True))
    return o / total[..., None]


# %% ring_attention: skips-unseen-keys
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total: Any = None
    for turn in range(n):
        works, owner = [], (rank - turn) % n
        coming = torch.empty_like(k_BHsE), torch.empty_like(v_BHsE)
        if turn != n - 1:
            ops = [dist.P2POp(dist.isend, x, (rank + 1) % n) for x in (k_BHsE, v_BHsE)]
            ops += [dist.P2POp(dist.irecv, x, (rank - 1) % n) for x in coming]
            works = dist.batch_isend_irecv(ops)
        sees = None
        if places is not None:
            sees = places[rank][:, None] >= places[owner]
        if sees is None or sees.any():
            mine = partial(q_BHsE, k_BHsE, v_BHsE, sees)
            total = mine if total is None else merge_parts(total, mine)
        for work in works:
            work.wait()
        k_BHsE, v_BHsE = coming
    return total[2] / total[1][..., None]


# %% ring_attention: normalised-parts
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    lse, out = torch.full(q_BHsE.shape[:-1], float("-inf")).to(q_BHsE), 0.0
    for turn in range(n):
        owner = (rank - turn) % n
        if turn < n - 1:
            got = [torch.empty_like(k_BHsE), torch.empty_like(v_BHsE)]
            ops = []
            for mine, other in zip((k_BHsE, v_BHsE), got, strict=True):
                ops.append(dist.P2POp(dist.irecv, other, (rank - 1) % n))
                ops.append(dist.P2POp(dist.isend, mine, (rank + 1) % n))
            works = dist.batch_isend_irecv(ops)
        scores = torch.einsum("bhse,bhte->bhst", q_BHsE, k_BHsE) / q_BHsE.shape[-1] ** 0.5
        if places is not None:
            hidden = places[rank][:, None] < places[owner][None, :]
            scores = scores.masked_fill(hidden, float("-inf"))
        own = scores.logsumexp(-1)
        both = torch.logaddexp(lse, own)
        weights = (scores - both[..., None]).exp()
        out = out * (lse - both).exp()[..., None] + weights @ v_BHsE
        lse = both
        if turn < n - 1:
            for work in works:
                work.wait()
            k_BHsE, v_BHsE = got
    return out


# %% gather_and_multiply: into-one-tensor
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    y = x_sD.new_empty(n, len(x_sD), len(w_fD))
    coming = []
    for piece in x_sD.chunk(pieces):
        every = [torch.empty_like(piece) for _ in range(n)]
        coming.append((every, dist.all_gather(every, piece, async_op=True)))
    torch.mm(x_sD, w_fD.T, out=y[rank])
    at = 0
    for every, work in coming:
        work.wait()
        end = at + len(every[0])
        for other in range(n):
            if other != rank:
                torch.mm(every[other], w_fD.T, out=y[other, at:end])
        at = end
    return y.flatten(0, 1)


# %% gather_and_multiply: all-gather-into-tensor
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    coming = []
    for piece in x_sD.chunk(pieces):
        every = piece.new_empty(n * len(piece), piece.shape[1])
        coming.append((every, dist.all_gather_into_tensor(every, piece, async_op=True)))
    own = x_sD @ w_fD.T
    others: list[Any] = []
    for every, work in coming:
        work.wait()
        parts = every.chunk(n)
        others.append([p @ w_fD.T if r != rank else None for r, p in enumerate(parts)])
    rows = [torch.cat([p[r] for p in others]) if r != rank else own for r in range(n)]
    return torch.cat(rows)


# %% gather_and_multiply: own-pieces-first
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x_sD.chunk(pieces)
    works, gathered = [], []
    for piece in chunks:
        gathered.append([torch.empty_like(piece) for _ in range(n)])
        works.append(dist.all_gather(gathered[-1], piece, async_op=True))
    found = {(rank, at): piece @ w_fD.T for at, piece in enumerate(chunks)}
    for at, work in enumerate(works):
        work.wait()
        for other in range(n):
            if (other, at) not in found:
                found[other, at] = gathered[at][other] @ w_fD.T
    return torch.cat([found[key] for key in sorted(found)])


# %% gather_and_multiply: one-product-a-piece
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    coming = []
    for piece in x_sD.chunk(pieces):
        every = [torch.empty_like(piece) for _ in range(n)]
        coming.append((every, dist.all_gather(every, piece, async_op=True)))
    rows = [[] for _ in range(n)]
    rows[rank] = [x_sD @ w_fD.T]
    others = [other for other in range(n) if other != rank]
    for every, work in coming:
        work.wait()
        product = torch.cat([every[other] for other in others]) @ w_fD.T
        for other, one in zip(others, product.chunk(len(others)), strict=True):
            rows[other].append(one)
    return torch.cat([one for some in rows for one in some])
