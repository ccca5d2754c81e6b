"""Wrong answers to the exercises of lab 09 besides those of solutions/source; see judge.py."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def part(whole, dim):
    return whole.tensor_split(dist.get_world_size(), dim)[dist.get_rank()]


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y)

    @staticmethod
    def backward(ctx, grad):
        return grad


def everybody(x_BsD):
    parts = [torch.empty_like(x_BsD) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x_BsD.contiguous())
    return torch.cat(parts, dim=1)


def my_sum(y_BSD):
    parts = y_BSD.chunk(dist.get_world_size(), dim=1)
    parts = [one.contiguous() for one in parts]
    y_BsD = torch.empty_like(parts[0])
    dist.reduce_scatter(y_BsD, parts)
    return y_BsD


def norm(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        return everybody(x_BsD)

    @staticmethod
    def backward(ctx, grad_BSD):
        return my_sum(grad_BSD)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        return my_sum(y_BSD)

    @staticmethod
    def backward(ctx, grad_BsD):
        return everybody(grad_BsD)


def partial(q, k, v, sees):
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
    if places is not None:
        return places[dist.get_rank()][:, None] >= places[owner]


def pass_on(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    coming, both = [torch.empty_like(one) for one in tensors], []
    for one, other in zip(tensors, coming, strict=True):
        both.append(dist.P2POp(dist.isend, one, (rank + 1) % n))
        both.append(dist.P2POp(dist.irecv, other, (rank - 1) % n))
    return coming, dist.batch_isend_irecv(both)


def start(piece):
    parts = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    return parts, dist.all_gather(parts, piece, async_op=True)


# %% mlp: x-goes-in-directly
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(x_BD @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: sums-where-x-enters
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: leave-sums-both-ways
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: both-all-reduces-in-leave
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(x_BD @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: second-bias-before-the-sum
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T + b2_D)


# %% mlp: a-share-of-the-second-bias
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    y_BD = h_Bf @ part(w2_DF, 1).T + b2_D / dist.get_world_size()
    return Leave.apply(y_BD)


# %% mlp: second-bias-on-rank-0
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    y_BD = h_Bf @ part(w2_DF, 1).T
    if dist.get_rank() == 0:
        y_BD = y_BD + b2_D
    return Leave.apply(y_BD)


# %% mlp: cuts-the-width-instead
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_BF = Leave.apply(part(Enter.apply(x_BD), 1) @ part(w1_FD, 1).T) + b1_F
    return torch.relu(h_BF) @ w2_DF.T + b2_D


# %% mlp: relu-after-the-sum
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return torch.relu(Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D)


# %% mlp: no-relu
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: first-numbers-of-b1
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    w1_fD = part(w1_FD, 0)
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1_fD.T + b1_F[: len(w1_fD)])
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: drops-the-remainder
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    f = len(w1_FD) // dist.get_world_size()
    mine = slice(dist.get_rank() * f, (dist.get_rank() + 1) * f)
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1_FD[mine].T + b1_F[mine])
    return Leave.apply(h_Bf @ w2_DF[:, mine].T) + b2_D


# %% mlp: chunk
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    n, rank = dist.get_world_size(), dist.get_rank()
    w1, b1, w2 = w1_FD.chunk(n)[rank], b1_F.chunk(n)[rank], w2_DF.chunk(n, 1)[rank]
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1.T + b1)
    return Leave.apply(h_Bf @ w2.T) + b2_D


# %% mlp: mean-for-sum
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y) / dist.get_world_size()

    @staticmethod
    def backward(ctx, grad):
        return grad / dist.get_world_size()


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: mean-of-the-gradients
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return summed(grad) / dist.get_world_size()


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: weights-enter-too
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    w1, b1, w2 = Enter.apply(w1_FD), Enter.apply(b1_F), Enter.apply(w2_DF)
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1, 0).T + part(b1, 0))
    return Leave.apply(h_Bf @ part(w2, 1).T) + b2_D


# %% mlp: second-bias-enters-too
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + Enter.apply(b2_D)


# %% mlp: gathers-the-hidden-numbers
class Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        every = [torch.empty_like(h) for _ in range(dist.get_world_size())]
        dist.all_gather(every, h)
        return torch.cat(every, -1)

    @staticmethod
    def backward(ctx, grad):
        return part(grad, -1)


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Together.apply(h_Bf) @ w2_DF.T + b2_D


# %% mlp: gathers-the-summands
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        every = [torch.empty_like(y) for _ in range(dist.get_world_size())]
        dist.all_gather(every, y)
        return sum(every)

    @staticmethod
    def backward(ctx, grad):
        return grad


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: reduce-to-rank-0
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.reduce(y, 0)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: next-ranks-second-weight
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    n, rank = dist.get_world_size(), dist.get_rank()
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    w2_Df = w2_DF.tensor_split(n, 1)[(rank + 1) % n]
    f = min(h_Bf.shape[-1], w2_Df.shape[-1])
    return Leave.apply(h_Bf[..., :f] @ w2_Df[:, :f].T) + b2_D


# %% mlp: ranks-without-a-part-leave
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    w1_fD = part(w1_FD, 0)
    if len(w1_fD) == 0:
        return torch.zeros_like(x_BD) + b2_D
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1_fD.T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: float32-sums
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    y_BD = torch.zeros(*x_BD.shape[:-1], len(w2_DF))
    y_BD += h_Bf @ part(w2_DF, 1).T
    return Leave.apply(y_BD) + b2_D


# %% mlp: result-cut-off-from-autograd
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    y_BD = (h_Bf @ part(w2_DF, 1).T).detach()
    dist.all_reduce(y_BD)
    return y_BD + b2_D


# %% mlp: handle-left-alone
class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.all_reduce(y, async_op=True)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = torch.relu(Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% vocabulary_loss: own-maximum
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, target_logit_T = e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)
        dist.all_reduce(sum_T)
        dist.all_reduce(target_logit_T)
        ctx.save_for_backward(e_Tv / sum_T[:, None], is_target_Tv)
        return sum_T.log() + m_T - target_logit_T

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: overflows
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        e_Tv = logits_Tv.exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: maximum-not-added-back
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, target_logit_T = e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)
        dist.all_reduce(sum_T)
        dist.all_reduce(target_logit_T)
        ctx.save_for_backward(e_Tv / sum_T[:, None], is_target_Tv)
        return sum_T.log() - target_logit_T

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: sums-the-maxima
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, target_logit_T = e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)
        dist.all_reduce(sum_T)
        dist.all_reduce(target_logit_T)
        ctx.save_for_backward(e_Tv / sum_T[:, None], is_target_Tv)
        return sum_T.log() + m_T - target_logit_T

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: one-maximum-for-all-tokens
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m = logits_Tv.max().clone()
        dist.all_reduce(m, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: target-of-own-words-only
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T = e_Tv.sum(1)
        dist.all_reduce(sum_T)
        ctx.save_for_backward(e_Tv / sum_T[:, None], is_target_Tv)
        return sum_T.log() + m_T - (logits_Tv * is_target_Tv).sum(1)

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: every-rank-subtracts-the-maximum
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1) - m_T])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: clamped-targets
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        index_T = (target_T - start).clamp(0, logits_Tv.shape[1] - 1)
        both = torch.stack([e_Tv.sum(1), logits_Tv.gather(1, index_T[:, None])[:, 0]])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: equal-parts-only
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        start = dist.get_rank() * logits_Tv.shape[1]
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: incoming-gradient-ignored
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return p_Tv - is_target_Tv.to(p_Tv.dtype), None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: softmax-of-own-words
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        both = torch.stack(
            [(logits_Tv - m_T[:, None]).exp().sum(1), (logits_Tv * is_target_Tv).sum(1)]
        )
        dist.all_reduce(both)
        ctx.save_for_backward(logits_Tv, is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        logits_Tv, is_target_Tv = ctx.saved_tensors
        p_Tv = logits_Tv.softmax(1)
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: target-without-its-minus-one
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None])
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        (p_Tv,) = ctx.saved_tensors
        return p_Tv * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: minus-one-at-wrapped-places
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], (target_T - start) % logits_Tv.shape[1])
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, place_T = ctx.saved_tensors
        out_Tv = p_Tv.clone()
        out_Tv[torch.arange(len(place_T)), place_T] -= 1
        return out_Tv * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: backward-sums-over-ranks
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        grad_T = summed(grad_T)
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: sums-again-in-the-backward-pass
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        both = torch.stack(
            [(logits_Tv - m_T[:, None]).exp().sum(1), (logits_Tv * is_target_Tv).sum(1)]
        )
        dist.all_reduce(both)
        ctx.save_for_backward(logits_Tv, m_T, is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        logits_Tv, m_T, is_target_Tv = ctx.saved_tensors
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        p_Tv = e_Tv / summed(e_Tv.sum(1))[:, None]
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: shifts-the-logits-in-place
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        logits_Tv -= m_T[:, None]
        e_Tv = logits_Tv.exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: float32-buffers
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        both = torch.zeros(2, len(target_T), device=logits_Tv.device)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both[0], both[1] = e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: mean-of-the-tokens
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return (both[0].log() + m_T - both[1]).mean()

    @staticmethod
    def backward(ctx, grad):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad / len(p_Tv), None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: log-before-the-sum
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        lse_T = logits_Tv.logsumexp(1)
        both = torch.stack([lse_T, (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward((logits_Tv - both[0][:, None]).exp(), is_target_Tv)
        return both[0] - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: gathers-the-logits
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        T, v = logits_Tv.shape
        last = torch.tensor(start + v)
        dist.all_reduce(last, op=dist.ReduceOp.MAX)
        whole_TV = logits_Tv.new_zeros(T, int(last))
        whole_TV[:, start : start + v] = logits_Tv
        dist.all_reduce(whole_TV)
        p_TV = whole_TV.softmax(1)
        p_TV[torch.arange(T), target_T] -= 1
        ctx.save_for_backward(p_TV[:, start : start + v])
        return F.cross_entropy(whole_TV, target_T, reduction="none")

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: sums-once-more
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        shifted_Tv = logits_Tv - m_T[:, None]
        lse_T = summed(shifted_Tv.exp().sum(1)).log()
        p_Tv = shifted_Tv.exp() / summed(shifted_Tv.exp().sum(1))[:, None]
        target_logit_T = summed((shifted_Tv * is_target_Tv).sum(1))
        ctx.save_for_backward(p_Tv, is_target_Tv)
        return lse_T - target_logit_T

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: call-only-with-a-target
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T = e_Tv.sum(1)
        dist.all_reduce(sum_T)
        target_logit_T = torch.zeros_like(sum_T)
        if is_target_Tv.any():
            target_logit_T = (logits_Tv * is_target_Tv).sum(1)
            dist.all_reduce(target_logit_T)
        ctx.save_for_backward(e_Tv / sum_T[:, None], is_target_Tv)
        return sum_T.log() + m_T - target_logit_T

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: no-waiting
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, target_logit_T = e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)
        dist.all_reduce(target_logit_T, async_op=True)
        dist.all_reduce(sum_T)
        ctx.save_for_backward(e_Tv / sum_T[:, None], is_target_Tv)
        return sum_T.log() + m_T - target_logit_T

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        return (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: autograd-through-own-sums
def vocabulary_loss(logits_Tv, target_T, start):
    word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
    is_target_Tv = word_v == target_T[:, None]
    m_T = logits_Tv.detach().amax(1)
    dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
    sum_T = Leave.apply((logits_Tv - m_T[:, None]).exp().sum(1))
    target_logit_T = (logits_Tv * is_target_Tv).sum(1)
    others_T = summed(target_logit_T.detach()) - target_logit_T.detach()
    return sum_T.log().detach() + m_T - target_logit_T - others_T


# %% vocabulary_loss: token-mean-in-backward
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both)
        ctx.save_for_backward(e_Tv / both[0][:, None], is_target_Tv)
        return both[0].log() + m_T - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        p_Tv, is_target_Tv = ctx.saved_tensors
        slope_Tv = (p_Tv - is_target_Tv.to(p_Tv.dtype)) * grad_T[:, None]
        return slope_Tv / len(grad_T), None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% block: gain-of-own-positions
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * gain_D) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: same-seed-everywhere
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed) @ w2_Df.T), seed)


# %% block: two-seeds-for-all
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed) @ w2_Df.T), seed + 1)


# %% block: one-seed-a-rank
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed + rank) @ w2_Df.T), seed + rank)


# %% block: neighbours-share-a-seed
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed + rank) @ w2_Df.T), seed + rank + 1)


# %% block: seeds-for-two-ranks
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed + rank) @ w2_Df.T), seed + 2 + rank)


# %% block: seeds-too-far
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed + rank) @ w2_Df.T), seed + rank + 1000)


# %% block: seed-times-rank
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    own = seed * (dist.get_rank() + 1)
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, own) @ w2_Df.T), own + 1)


# %% block: second-seed-the-same-for-all
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n = dist.get_rank(), dist.get_world_size()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(drop(h_BSf, seed + rank) @ w2_Df.T), seed + n)


# %% block: gather-takes-its-own-slice-back
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        return everybody(x_BsD)

    @staticmethod
    def backward(ctx, grad_BSD):
        return grad_BSD.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: scatter-pads-with-zeros
class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        return my_sum(y_BSD)

    @staticmethod
    def backward(ctx, grad_BsD):
        parts = [torch.zeros_like(grad_BsD) for _ in range(dist.get_world_size())]
        parts[dist.get_rank()] = grad_BsD
        return torch.cat(parts, dim=1)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: all-reduces-and-cuts
class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        return summed(y_BSD).chunk(dist.get_world_size(), dim=1)[dist.get_rank()]

    @staticmethod
    def backward(ctx, grad_BsD):
        return everybody(grad_BsD)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: mean-in-the-gather
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        return everybody(x_BsD)

    @staticmethod
    def backward(ctx, grad_BSD):
        return my_sum(grad_BSD) / dist.get_world_size()


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: backwards-swapped
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        return everybody(x_BsD)

    @staticmethod
    def backward(ctx, grad_BSD):
        return everybody(grad_BSD)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        return my_sum(y_BSD)

    @staticmethod
    def backward(ctx, grad_BsD):
        return my_sum(grad_BsD)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: drops-summands
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BSD = drop(h_BSf, seed + 2 * rank) @ w2_Df.T
    return Scatter.apply(drop(y_BSD, seed + 2 * rank + 1))


# %% block: gain-inside-the-norm
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD * Enter.apply(gain_D))) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: enter-around-the-product
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(Enter.apply(norm(x_BsD) * gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: enter-after-the-gather
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    x_BSD = Enter.apply(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)))
    y_BsD = Scatter.apply(drop(torch.relu(x_BSD @ w1_fD.T), seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: weights-enter-too
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ Enter.apply(w1_fD).T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ Enter.apply(w2_Df).T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: gathers-along-the-batch
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        parts = [torch.empty_like(x_BsD) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x_BsD.contiguous())
        return torch.cat(parts).view(len(x_BsD), -1, x_BsD.shape[2])

    @staticmethod
    def backward(ctx, grad_BSD):
        return my_sum(grad_BSD)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: float32-parts
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        parts = [torch.empty(x_BsD.shape) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x_BsD.float().contiguous())
        return torch.cat(parts, dim=1).to(x_BsD.dtype)

    @staticmethod
    def backward(ctx, grad_BSD):
        return my_sum(grad_BSD)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: gathers-before-the-norm-as-well
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n = dist.get_rank(), dist.get_world_size()
    x_BSD = norm(Gather.apply(x_BsD))
    x_BsD = x_BSD.chunk(n, dim=1)[rank] * Enter.apply(gain_D)
    h_BSf = torch.relu(Gather.apply(x_BsD) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: no-first-drop
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    h_BSf = torch.relu(Gather.apply(norm(x_BsD) * Enter.apply(gain_D)) @ w1_fD.T)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + dist.get_rank())


# %% block: only-own-positions
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    h_Bsf = torch.relu(norm(x_BsD) * Enter.apply(gain_D) @ w1_fD.T)
    y_BsD = Leave.apply(drop(h_Bsf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% block: norm-without-gradient
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank = dist.get_rank()
    size_Bs1 = x_BsD.detach().square().mean(-1, keepdim=True).sqrt()
    h_BSf = torch.relu(Gather.apply(x_BsD / size_Bs1 * Enter.apply(gain_D)) @ w1_fD.T)
    y_BsD = Scatter.apply(drop(h_BSf, seed + 2 * rank) @ w2_Df.T)
    return drop(y_BsD, seed + 2 * rank + 1)


# %% merge: nan-where-both-are-empty
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    a, b = (one[0] - m).exp(), (other[0] - m).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: without-a-shift
def merge(one, other):
    a, b = one[0].exp(), other[0].exp()
    l, o = a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]
    m = torch.maximum(one[0], other[0])
    scale = torch.where(m.isinf(), torch.zeros_like(m), (-m).exp())
    return m, scale * l, scale[..., None] * o


# %% merge: smaller-maximum
def merge(one, other):
    m = torch.minimum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: plain-sums
def merge(one, other):
    return torch.maximum(one[0], other[0]), one[1] + other[1], one[2] + other[2]


# %% merge: o-not-scaled
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    l = (one[0] - shift).exp() * one[1] + (other[0] - shift).exp() * other[1]
    return m, l, one[2] + other[2]


# %% merge: scaled-the-other-way
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    a = torch.where(one[0].isinf(), 0, (m - one[0]).exp())
    b = torch.where(other[0].isinf(), 0, (m - other[0]).exp())
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: divides-already
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    l = a * one[1] + b * other[1]
    o = a[..., None] * one[2] + b[..., None] * other[2]
    return m, l, o / l.clamp(min=1e-9)[..., None]


# %% merge: in-place
def merge(one, other):
    (m1, l1, o1), (m2, l2, o2) = one, other
    m = torch.maximum(m1, m2)
    shift = torch.where(m.isinf(), 0, m)
    a, b = (m1 - shift).exp(), (m2 - shift).exp()
    l1 *= a
    l1 += b * l2
    o1 *= a[..., None]
    o1 += b[..., None] * o2
    return m, l1, o1


# %% merge: maximum-in-place
def merge(one, other):
    m1, m2 = one[0].clone(), other[0]
    m = one[0]
    m.copy_(torch.maximum(m1, m2))
    shift = torch.where(m.isinf(), 0, m)
    a, b = (m1 - shift).exp(), (m2 - shift).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: no-axis-for-o
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a * one[2] + b * other[2]


# %% merge: axis-at-the-wrong-end
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a.unsqueeze(2) * one[2] + b.unsqueeze(2) * other[2]


# %% merge: forgets-to-shift-the-second
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a = (one[0] - shift).exp()
    return m, a * one[1] + other[1], a[..., None] * one[2] + other[2]


# %% merge: nothing-is-infinite
def merge(one, other):
    m = torch.nan_to_num(torch.maximum(one[0], other[0]))
    a, b = (one[0] - m).exp(), (other[0] - m).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: minus-ten-thousand
def merge(one, other):
    m1, m2 = one[0].clamp(min=-1e4), other[0].clamp(min=-1e4)
    m = torch.maximum(m1, m2)
    a, b = (m1 - m).exp(), (m2 - m).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: shift-at-least-zero
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = m.clamp(min=0)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: one-maximum-for-all-queries
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    top = m.max()
    shift = torch.where(top.isinf(), 0, top)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    m = torch.where(m.isinf(), m, shift)
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: empty-anywhere-takes-the-other
def merge(one, other):
    if one[0].isinf().any():
        return other
    if other[0].isinf().any():
        return one
    m = torch.maximum(one[0], other[0])
    a, b = (one[0] - m).exp(), (other[0] - m).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: sum-of-maxima
def merge(one, other):
    m = one[0] + other[0]
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: log-sum-instead-of-the-maximum
def merge(one, other):
    m = torch.logaddexp(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: float32
def merge(one, other):
    one, other = [t.float() for t in one], [t.float() for t in other]
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: softmax-of-maxima
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    both = torch.stack([one[0], other[0]])
    a, b = torch.where(m.isinf(), torch.zeros_like(both), both.softmax(0))
    return m, a * one[1] + b * other[1], a[..., None] * one[2] + b[..., None] * other[2]


# %% merge: o-l-m
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    a, b = (one[0] - shift).exp(), (other[0] - shift).exp()
    return a[..., None] * one[2] + b[..., None] * other[2], a * one[1] + b * other[1], m


# %% ring_attention: owner-the-other-way
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, (rank + turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: passes-on-in-the-last-round
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        for handle in handles:
            handle.wait()
        kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: not-divided
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2]


# %% ring_attention: does-not-wait
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: waits-for-the-first-handle
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            handles[0].wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: waits-before-the-partial
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: sends-after-the-partial
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv = (k_BHsE, v_BHsE)
    total = partial(q_BHsE, *kv, seen(places, rank))
    for turn in range(1, n):
        kv, handles = pass_on(kv)
        for handle in handles:
            handle.wait()
        total = merge(total, partial(q_BHsE, *kv, seen(places, (rank - turn) % n)))
    return total[2] / total[1][..., None]


# %% ring_attention: masks-as-if-its-own
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, rank))
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: never-causal
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    n = dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, None)
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: always-its-own-keys
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on((k_BHsE, v_BHsE))
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: plain-parts-only
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n, s = dist.get_rank(), dist.get_world_size(), q_BHsE.shape[2]
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        owner = (rank - turn) % n
        if places is None or owner < rank:
            total = (
                merge(total, partial(q_BHsE, *kv, None)) if total else partial(q_BHsE, *kv, None)
            )
        elif owner == rank:
            total = partial(q_BHsE, *kv, torch.ones(s, s, dtype=torch.bool).tril())
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: skips-the-round
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv = (k_BHsE, v_BHsE)
    total = partial(q_BHsE, *kv, seen(places, rank))
    for turn in range(1, n):
        sees = seen(places, (rank - turn) % n)
        if sees is not None and not sees.any():
            continue
        kv, handles = pass_on(kv)
        for handle in handles:
            handle.wait()
        total = merge(total, partial(q_BHsE, *kv, sees))
    return total[2] / total[1][..., None]


# %% ring_attention: mean-of-rounds
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, out = (k_BHsE, v_BHsE), 0
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        m, l, o = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        out = out + o / l.clamp(min=1e-9)[..., None] / n
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return out


# %% ring_attention: adds-up-triples
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, l_all, o_all = (k_BHsE, v_BHsE), 0, 0
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        m, l, o = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        l_all, o_all = l_all + l, o_all + o
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return o_all / l_all[..., None]


# %% ring_attention: gathers-all-keys
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    ks, vs = ([torch.empty_like(one) for _ in range(n)] for one in (k_BHsE, v_BHsE))
    dist.all_gather(ks, k_BHsE.contiguous())
    dist.all_gather(vs, v_BHsE.contiguous())
    total = partial(q_BHsE, ks[rank], vs[rank], seen(places, rank))
    for owner in range(n):
        if owner != rank:
            total = merge(total, partial(q_BHsE, ks[owner], vs[owner], seen(places, owner)))
    return total[2] / total[1][..., None]


# %% ring_attention: everybody-receives-first
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            coming = [torch.empty_like(one) for one in kv]
            for one in coming:
                dist.recv(one, (rank - 1) % n)
            for one in kv:
                dist.send(one, (rank + 1) % n)
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: into-the-same-buffer
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    k, v, total = k_BHsE.clone(), v_BHsE.clone(), None
    for turn in range(n):
        now = partial(q_BHsE, k, v, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            works = [dist.irecv(one, (rank - 1) % n) for one in (k, v)]
            works += [dist.isend(one, (rank + 1) % n) for one in (k, v)]
            for work in works:
                work.wait()
    return total[2] / total[1][..., None]


# %% ring_attention: values-stay
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    k, total = [k_BHsE], None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(k)
        now = partial(q_BHsE, k[0], v_BHsE, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            k = coming
    return total[2] / total[1][..., None]


# %% ring_attention: to-the-rank-before
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, both = [torch.empty_like(one) for one in kv], []
            for one, other in zip(kv, coming):
                both.append(dist.P2POp(dist.isend, one, (rank - 1) % n))
                both.append(dist.P2POp(dist.irecv, other, (rank + 1) % n))
            handles = dist.batch_isend_irecv(both)
        now = partial(q_BHsE, *kv, seen(places, (rank + turn) % n))
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: starts-at-zero
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    zeros = torch.zeros_like(q_BHsE[..., 0])
    kv, total = (k_BHsE, v_BHsE), (zeros, zeros, torch.zeros_like(q_BHsE))
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        total = merge(total, partial(q_BHsE, *kv, seen(places, (rank - turn) % n)))
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: one-round-short
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n - 1):
        coming, handles = pass_on(kv)
        now = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = merge(total, now) if total else now
        for handle in handles:
            handle.wait()
        kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: counts-its-own-twice
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        total = merge(total, partial(q_BHsE, *kv, seen(places, (rank - turn) % n)))
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: only-what-is-before
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv, total = (k_BHsE, v_BHsE), None
    for turn in range(n):
        if turn < n - 1:
            coming, handles = pass_on(kv)
        owner = (rank - turn) % n
        sees = None if places is None else places[rank][:, None] > places[owner]
        now = partial(q_BHsE, *kv, sees)
        total = merge(total, now) if total else now
        if turn < n - 1:
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1].clamp(min=1e-9)[..., None]


# %% ring_attention: keys-are-sent-to-everybody
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for step in range(1, n):
        k, v, ops = torch.empty_like(k_BHsE), torch.empty_like(v_BHsE), []
        for mine, coming in ((k_BHsE, k), (v_BHsE, v)):
            ops.append(dist.P2POp(dist.isend, mine, (rank + step) % n))
            ops.append(dist.P2POp(dist.irecv, coming, (rank - step) % n))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        total = merge(total, partial(q_BHsE, k, v, seen(places, (rank - step) % n)))
    return total[2] / total[1][..., None]


# %% ring_attention: sends-outside-a-batch
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    both = torch.stack([k_BHsE, v_BHsE])
    triples = []
    for turn in range(n):
        if turn < n - 1:
            nxt = torch.empty_like(both)
            sending = dist.isend(both, (rank + 1) % n)
            receiving = dist.irecv(nxt, (rank - 1) % n)
        triples.append(partial(q_BHsE, both[0], both[1], seen(places, (rank + n - turn) % n)))
        if turn < n - 1:
            sending.wait()
            receiving.wait()
            both = nxt
    m, l, o = triples[0]
    for triple in triples[1:]:
        m, l, o = merge((m, l, o), triple)
    return o / l[..., None]


# %% gather_and_multiply: waits-for-everything-first
def gather_and_multiply(x_sD, w_fD, pieces):
    n = dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    for parts, handle in started:
        handle.wait()
    for parts, handle in started:
        for r in range(n):
            products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: own-rows-then-all-waits
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for _, handle in started:
        handle.wait()
    for parts, _ in started:
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: one-piece-after-the-other
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    products[rank].append(x_sD @ w_fD.T)
    for piece in x_sD.chunk(pieces):
        parts, handle = start(piece)
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: rank-after-rank
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    out = [None] * n
    out[rank] = x_sD @ w_fD.T
    for r in range(n):
        if r != rank:
            for _, handle in started:
                handle.wait()
            out[r] = torch.cat([parts[r] for parts, _ in started]) @ w_fD.T
    return torch.cat(out)


# %% gather_and_multiply: own-rows-with-the-others
def gather_and_multiply(x_sD, w_fD, pieces):
    n = dist.get_world_size()
    products = [[] for _ in range(n)]
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for r in range(n):
            products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: own-rows-last
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    products[rank].append(x_sD @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: pieces-in-the-order-they-come
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x_sD.chunk(pieces)
    started = [start(piece) for piece in chunks]
    own = [piece @ w_fD.T for piece in chunks]
    products = []
    for i, (parts, handle) in enumerate(started):
        handle.wait()
        products += [own[i] if r == rank else parts[r] @ w_fD.T for r in range(n)]
    return torch.cat(products)


# %% gather_and_multiply: own-rows-at-the-top
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    own = x_sD @ w_fD.T
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([own] + [product for some in products for product in some])


# %% gather_and_multiply: own-rows-twice
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: without-its-own-rows
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: one-gather-for-all
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, handle = start(x_sD)
    own = x_sD @ w_fD.T
    handle.wait()
    return torch.cat([own if r == rank else parts[r] @ w_fD.T for r in range(n)])


# %% gather_and_multiply: split-by-size
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.split(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: other-pieces
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.tensor_split(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: equal-pieces-only
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    size = len(x_sD) // pieces
    started = [start(x_sD[i * size : (i + 1) * size]) for i in range(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: no-waiting
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, _ in started:
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: waits-for-the-last-piece-only
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    started[-1][1].wait()
    for parts, _ in started:
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: not-transposed
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(w_fD @ x_sD.T)
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(w_fD @ parts[r].T)
    return torch.cat([product for some in products for product in some], dim=1)


# %% gather_and_multiply: gathers-products
def gather_and_multiply(x_sD, w_fD, pieces):
    n = dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece @ w_fD.T) for piece in x_sD.chunk(pieces)]
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            products[r].append(parts[r])
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: one-buffer-for-all-pieces
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    chunks = x_sD.chunk(pieces)
    buffers = [torch.empty_like(chunks[0]) for _ in range(n)]
    started = []
    for piece in chunks:
        parts = [one[: len(piece)] for one in buffers]
        started.append((parts, dist.all_gather(parts, piece, async_op=True)))
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: synchronous-gathers
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    products[rank].append(x_sD @ w_fD.T)
    for piece in x_sD.chunk(pieces):
        parts = [torch.empty_like(piece) for _ in range(n)]
        dist.all_gather(parts, piece)
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: own-product-before-the-gathers
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    products[rank].append(x_sD @ w_fD.T)
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                products[r].append(parts[r] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: float32-result
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    s = len(x_sD)
    y = torch.empty(n * s, len(w_fD), device=x_sD.device)
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    y[rank * s : (rank + 1) * s] = x_sD @ w_fD.T
    at = 0
    for parts, handle in started:
        handle.wait()
        for r in range(n):
            if r != rank:
                y[r * s + at : r * s + at + len(parts[r])] = parts[r] @ w_fD.T
        at += len(parts[0])
    return y


# %% gather_and_multiply: other-ranks-by-number-of-turn
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    started = [start(piece) for piece in x_sD.chunk(pieces)]
    products[0].append(x_sD @ w_fD.T)
    for parts, handle in started:
        handle.wait()
        for turn in range(1, n):
            products[turn].append(parts[(rank + turn) % n] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: cuts-columns
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    y = x_sD.new_zeros(n, len(x_sD), len(w_fD))
    columns = w_fD.chunk(pieces, dim=1)
    pieces_of_x = [piece.contiguous() for piece in x_sD.chunk(pieces, dim=1)]
    started = [start(piece) for piece in pieces_of_x]
    y[rank] = x_sD @ w_fD.T
    for (parts, handle), w in zip(started, columns):
        handle.wait()
        for r in range(n):
            if r != rank:
                y[r] += parts[r] @ w.T
    return y.flatten(0, 1)


# %% mlp: gradient-of-x-of-this-rank-only-in-the-last-call
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad.clone())
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y)

    @staticmethod
    def backward(ctx, grad):
        return grad


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    h_Bf = Enter.apply(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return Leave.apply(torch.relu(h_Bf) @ part(w2_DF, 1).T) + b2_D


# %% mlp: rounds-the-part-up
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y)

    @staticmethod
    def backward(ctx, grad):
        return grad


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    each = -(-len(b1_F) // dist.get_world_size())
    begin = min(each * dist.get_rank(), len(b1_F) - each)
    mine = slice(begin, begin + each)
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1_FD[mine].T + b1_F[mine])
    return Leave.apply(h_Bf @ w2_DF[:, mine].T) + b2_D


# %% mlp: every-other-row
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return summed(y)

    @staticmethod
    def backward(ctx, grad):
        return grad


def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    h_Bf = torch.relu(Enter.apply(x_BD) @ w1_FD[mine].T + b1_F[mine])
    return Leave.apply(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% vocabulary_loss: target-compared-with-columns
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both_2T = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both_2T)
        sum_T, hit_T = both_2T
        ctx.save_for_backward(e_Tv / sum_T[:, None] - is_target_Tv.to(e_Tv))
        return m_T + sum_T.log() - hit_T

    @staticmethod
    def backward(ctx, grad_T):
        (slope_Tv,) = ctx.saved_tensors
        return slope_Tv * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: minimum-for-maximum
class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        word_v = start + torch.arange(logits_Tv.shape[1]).to(logits_Tv.device)
        is_target_Tv = word_v == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MIN)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both_2T = torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)])
        dist.all_reduce(both_2T)
        sum_T, hit_T = both_2T
        ctx.save_for_backward(e_Tv / sum_T[:, None] - is_target_Tv.to(e_Tv))
        return m_T + sum_T.log() - hit_T

    @staticmethod
    def backward(ctx, grad_T):
        (slope_Tv,) = ctx.saved_tensors
        return slope_Tv * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return VocabularyLoss.apply(logits_Tv, target_T, start)


# %% block: gain-of-the-mean-position
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_BsD):
        return everybody(x_BsD)

    @staticmethod
    def backward(ctx, grad_BSD):
        return my_sum(grad_BSD)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        return my_sum(y_BSD)

    @staticmethod
    def backward(ctx, grad_BsD):
        return everybody(grad_BsD)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    seed += dist.get_rank()
    x_BsD = norm(x_BsD) * Enter.apply(gain_D)
    h_BSf = drop(torch.relu(Gather.apply(x_BsD) @ w1_fD.T), seed)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + dist.get_world_size())


# %% block: drops-before-the-relu-and-after-the-gain
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
        return everybody(x_BsD)

    @staticmethod
    def backward(ctx, grad_BSD):
        return my_sum(grad_BSD)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y_BSD):
        return my_sum(y_BSD)

    @staticmethod
    def backward(ctx, grad_BsD):
        return everybody(grad_BsD)


def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    seed += dist.get_rank()
    x_BsD = drop(norm(x_BsD) * Enter.apply(gain_D), seed)
    h_BSf = torch.relu(Gather.apply(x_BsD) @ w1_fD.T)
    return drop(Scatter.apply(h_BSf @ w2_Df.T), seed + dist.get_world_size())


# %% merge: mean-of-both
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    l = first * one[1] + second * other[1]
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, l / 2, o / 2


# %% merge: m-zero-where-nothing-was-seen
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    m = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - m).exp(), (other[0] - m).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: powers-of-two
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp2(), (other[0] - shift).exp2()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% ring_attention: divides-each-round
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n, total = dist.get_rank(), dist.get_world_size(), None
    for turn in range(n):
        coming, handles = (k_BHsE, v_BHsE), []
        if turn < n - 1:
            coming, handles = pass_on([k_BHsE, v_BHsE])
        m, l, o = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        mine = m, l, o / l.clamp(min=1e-30)[..., None]
        total = mine if total is None else merge(total, mine)
        for handle in handles:
            handle.wait()
        k_BHsE, v_BHsE = coming
    return total[2]


# %% ring_attention: waits-after-the-next-partial
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n, total = dist.get_rank(), dist.get_world_size(), None
    every = []
    for turn in range(n):
        coming, handles = (k_BHsE, v_BHsE), []
        if turn < n - 1:
            coming, handles = pass_on([k_BHsE, v_BHsE])
        every += handles
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = mine if total is None else merge(total, mine)
        k_BHsE, v_BHsE = coming
    for handle in every:
        handle.wait()
    return total[2] / total[1][..., None]


# %% ring_attention: sends-only-if-the-next-one-will-see-it
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n, total = dist.get_rank(), dist.get_world_size(), None
    rounds = n if places is None else rank + 1
    for turn in range(rounds):
        coming, handles = (k_BHsE, v_BHsE), []
        if turn < rounds - 1:
            coming, handles = pass_on([k_BHsE, v_BHsE])
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = mine if total is None else merge(total, mine)
        for handle in handles:
            handle.wait()
        k_BHsE, v_BHsE = coming
    return total[2] / total[1][..., None]


# %% gather_and_multiply: waits-in-reverse
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in reversed(coming):
        handle.wait()
        for other in range(n):
            if other != rank:
                products[other].insert(0, parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: pieces-of-the-weight
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, handle = start(x_sD)
    own = torch.cat([x_sD @ w.T for w in w_fD.chunk(pieces)], 1)
    handle.wait()
    return torch.cat([own if r == rank else parts[r] @ w_fD.T for r in range(n)])


# %% gather_and_multiply: one-piece-ahead
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    chunks = x_sD.chunk(pieces)
    for chunk in chunks:
        parts, handle = start(chunk)
        products[rank].append(chunk @ w_fD.T)
        handle.wait()
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])
