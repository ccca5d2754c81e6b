"""Wrong answers to the exercises of lab 09, each under the mistake that its check has to name."""

from typing import Any

import torch
import torch.distributed as dist


def part(whole, dim):
    return whole.tensor_split(dist.get_world_size(), dim)[dist.get_rank()]


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def function(forward, backward):
    """An autograd.Function of one tensor."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad)

    return Made.apply


def same(x):
    return x.view_as(x)


def own_words(logits_Tv, target_T, start):
    """Which of this rank's logits are the targets', and each token's maximum over all ranks."""
    is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
    m_T = logits_Tv.detach().amax(1)
    dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
    return is_target_Tv, m_T


class WithSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, loss_T, slope_Tv):
        ctx.save_for_backward(slope_Tv)
        return loss_T.clone()

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def with_slope(loss_T, slope_Tv, logits_Tv):
    """The loss, whose gradient in the logits is the slope."""
    return WithSlope.apply(logits_Tv, loss_T.detach(), slope_Tv.detach())


def everybody(x_BsD):
    parts = [torch.empty_like(x_BsD) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x_BsD.contiguous())
    return torch.cat(parts, dim=1)


def my_sum(y_BSD):
    parts = [one.contiguous() for one in y_BSD.chunk(dist.get_world_size(), dim=1)]
    y_BsD = torch.empty_like(parts[0])
    dist.reduce_scatter(y_BsD, parts)
    return y_BsD


def my_rows(y_BSD):
    return y_BSD.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()


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


# %% mlp: bias-n-times
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T + b2_D)


# %% mlp: output-not-summed
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter = function(same, summed)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return h_Bf @ part(w2_DF, 1).T + b2_D


# %% mlp: gradient-not-summed
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    leave = function(summed, same)
    h_Bf = torch.relu(x_BD @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: summed-twice
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, summed)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: summed-twice
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    leave = function(summed, summed)
    h_Bf = torch.relu(x_BD @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: mean
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    n = dist.get_world_size()
    enter, leave = function(same, summed), function(lambda y: summed(y) / n, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: whole-layer
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    return torch.relu(x_BD @ w1_FD.T + b1_F) @ w2_DF.T + b2_D


# %% mlp: only-own-calls
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    with torch.no_grad():
        h_Bf = torch.relu(x_BD @ part(w1_FD, 0).T + part(b1_F, 0))
        y_BD = summed(h_Bf @ part(w2_DF, 1).T)
    return y_BD + b2_D


# %% mlp: equal-parts
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, n, F = dist.get_rank(), dist.get_world_size(), len(b1_F)
    own = slice(F * rank // n, F * (rank + 1) // n)
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ w1_FD[own].T + b1_F[own])
    return leave(h_Bf @ w2_DF[:, own].T) + b2_D


# %% mlp: equal-parts
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, n, F = dist.get_rank(), dist.get_world_size(), len(b1_F)
    own = slice(F // n * rank, F if rank == n - 1 else F // n * (rank + 1))
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ w1_FD[own].T + b1_F[own])
    return leave(h_Bf @ w2_DF[:, own].T) + b2_D


# %% mlp: other-calls
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    half = h_Bf.shape[1] // 2
    w2_Df = part(w2_DF, 1)
    y_BD = leave(h_Bf[:, :half] @ w2_Df[:, :half].T)
    return y_BD + leave(h_Bf[:, half:] @ w2_Df[:, half:].T) + b2_D


# %% mlp: functions-swapped
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(summed, same), function(same, summed)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: share-of-the-bias
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T + b2_D / dist.get_world_size())


# %% mlp: bias-of-one-rank
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    y_BD = h_Bf @ part(w2_DF, 1).T
    return leave(y_BD + b2_D if dist.get_rank() == 0 else y_BD)


# %% mlp: bias-summed-in-backward
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + enter(b2_D)


# %% mlp: width-cut
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_BF = leave(part(enter(x_BD), 1) @ part(w1_FD, 1).T) + b1_F
    return torch.relu(h_BF) @ w2_DF.T + b2_D


# %% mlp: no-relu
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: relu-after-the-sum
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return torch.relu(leave(h_Bf @ part(w2_DF, 1).T) + b2_D)


# %% mlp: relu-after-the-sum
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0)
    return torch.relu(leave(h_Bf @ part(w2_DF, 1).T)) + b2_D


# %% mlp: parts-do-not-match
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    f = len(part(w1_FD, 0))
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + b1_F[:f])
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: parts-do-not-match
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    rank, n = dist.get_rank(), dist.get_world_size()
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    w2_Df = w2_DF.tensor_split(n, 1)[(rank + 1) % n]
    f = min(h_Bf.shape[-1], w2_Df.shape[-1])
    return leave(h_Bf[..., :f] @ w2_Df[:, :f].T) + b2_D


# %% mlp: parts-do-not-match
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ w2_DF[:, : h_Bf.shape[-1]].T) + b2_D


# %% mlp: mean
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    n = dist.get_world_size()
    enter, leave = function(same, summed), function(lambda y: summed(y) / n, lambda grad: grad / n)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: mean-of-gradients
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    n = dist.get_world_size()
    enter, leave = function(same, lambda grad: summed(grad) / n), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: hidden-numbers-gathered
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    def together(h_Bf):
        sizes = [len(one) for one in b1_F.tensor_split(dist.get_world_size())]
        every = [h_Bf.new_zeros(len(h_Bf), max(sizes)) for _ in sizes]
        padded = torch.cat([h_Bf, h_Bf.new_zeros(len(h_Bf), max(sizes) - h_Bf.shape[1])], 1)
        dist.all_gather(every, padded)
        return torch.cat([one[:, :f] for one, f in zip(every, sizes, strict=True)], 1)

    enter = function(same, summed)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return function(together, lambda grad: part(grad, 1))(h_Bf) @ w2_DF.T + b2_D


# %% mlp: one-rank-has-the-sum
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    def to_first(y_BD):
        y_BD = y_BD.clone()
        dist.reduce(y_BD, 0)
        return y_BD

    enter, leave = function(same, summed), function(to_first, same)
    h_Bf = torch.relu(enter(x_BD) @ part(w1_FD, 0).T + part(b1_F, 0))
    return leave(h_Bf @ part(w2_DF, 1).T) + b2_D


# %% mlp: equal-parts
def mlp(x_BD, w1_FD, b1_F, w2_DF, b2_D):
    rank, f = dist.get_rank(), len(b1_F) // dist.get_world_size()
    own = slice(f * rank, f * (rank + 1))
    enter, leave = function(same, summed), function(summed, same)
    h_Bf = torch.relu(enter(x_BD) @ w1_FD[own].T + b1_F[own])
    return leave(h_Bf @ w2_DF[:, own].T) + b2_D


# %% vocabulary_loss: no-maximum
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        e_Tv = logits_Tv.exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(e_Tv / both[0, :, None] - is_target_Tv.to(e_Tv))
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: own-maximum
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(e_Tv / both[0, :, None] - is_target_Tv.to(e_Tv))
        return m_T + both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: own-sum
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, hit_T = e_Tv.sum(1), summed((logits_Tv * is_target_Tv).sum(1))
        ctx.save_for_backward(e_Tv / sum_T[:, None] - is_target_Tv.to(e_Tv))
        return m_T + sum_T.log() - hit_T

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: target-of-one-rank
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, hit_T = summed(e_Tv.sum(1)), (logits_Tv * is_target_Tv).sum(1)
        ctx.save_for_backward(e_Tv / sum_T[:, None] - is_target_Tv.to(e_Tv))
        return m_T + sum_T.log() - hit_T

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: target-everywhere
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        place_T = (target_T - start).clamp(0, logits_Tv.shape[1] - 1)
        at = torch.arange(len(target_T)), place_T
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        sum_T, hit_T = summed(e_Tv.sum(1)), summed(logits_Tv[at])
        slope_Tv = e_Tv / sum_T[:, None]
        slope_Tv[at] -= 1
        ctx.save_for_backward(slope_Tv)
        return m_T + sum_T.log() - hit_T

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: maximum-not-added
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(e_Tv / both[0, :, None] - is_target_Tv.to(e_Tv))
        return both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: forgets-grad
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(e_Tv / both[0, :, None] - is_target_Tv.to(e_Tv))
        return m_T + both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: no-target-in-backward
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(e_Tv / both[0, :, None])
        return m_T + both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: softmax-of-own
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(logits_Tv.softmax(1) - is_target_Tv.to(e_Tv))
        return m_T + both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: calls-in-backward
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        is_target_Tv = start + torch.arange(logits_Tv.shape[1]) == target_T[:, None]
        m_T = logits_Tv.amax(1)
        dist.all_reduce(m_T, op=dist.ReduceOp.MAX)
        e_Tv = (logits_Tv - m_T[:, None]).exp()
        both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]))
        ctx.save_for_backward(e_Tv, is_target_Tv)
        return m_T + both[0].log() - both[1]

    @staticmethod
    def backward(ctx, grad_T):
        e_Tv, is_target_Tv = ctx.saved_tensors
        slope_Tv = e_Tv / summed(e_Tv.sum(1))[:, None] - is_target_Tv.to(e_Tv)
        return slope_Tv * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: passes-more
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits_Tv, target_T, start):
        own, n = logits_Tv.shape[1], dist.get_world_size()
        sizes = [torch.tensor([0]) for _ in range(n)]
        dist.all_gather(sizes, torch.tensor([own]))
        most = int(max(sizes))
        padded = torch.full((len(target_T), most), float("-inf")).to(logits_Tv)
        padded[:, :own] = logits_Tv
        parts = [torch.empty_like(padded) for _ in range(n)]
        dist.all_gather(parts, padded)
        cut = [one[:, : int(size)] for one, size in zip(parts, sizes, strict=True)]
        logits_TV = torch.cat(cut, dim=1)
        one_TV = torch.nn.functional.one_hot(target_T, logits_TV.shape[1])
        slope = (logits_TV.softmax(1) - one_TV)[:, start : start + own]
        ctx.save_for_backward(slope)
        return torch.nn.functional.cross_entropy(logits_TV, target_T, reduction="none")

    @staticmethod
    def backward(ctx, grad_T):
        return ctx.saved_tensors[0] * grad_T[:, None], None, None


def vocabulary_loss(logits_Tv, target_T, start):
    return Loss.apply(logits_Tv, target_T, start)


# %% vocabulary_loss: maxima-summed
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    m_T = summed(logits_Tv.detach().amax(1))
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = e_Tv / both[0][:, None] - 1 * is_target_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: one-maximum-for-all-tokens
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    m_T = torch.full_like(m_T, m_T.max())
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = e_Tv / both[0][:, None] - 1 * is_target_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: maximum-of-every-rank
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1) - m_T]).detach())
    slope_Tv = e_Tv / both[0][:, None] - 1 * is_target_Tv
    return with_slope(both[0].log() - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: target-everywhere
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    index_T = (target_T - start).clamp(0, logits_Tv.shape[1] - 1)
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), logits_Tv.gather(1, index_T[:, None])[:, 0]]).detach())
    slope_Tv = e_Tv / both[0][:, None] - 1 * is_target_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: own-start
def vocabulary_loss(logits_Tv, target_T, start):
    start = dist.get_rank() * logits_Tv.shape[1]
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = e_Tv / both[0][:, None] - 1 * is_target_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: one-everywhere
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    index_T = (target_T - start) % logits_Tv.shape[1]
    wrapped_Tv = torch.nn.functional.one_hot(index_T, logits_Tv.shape[1])
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = e_Tv / both[0][:, None] - wrapped_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: one-everywhere
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    index_T = (target_T - start).clamp(0, logits_Tv.shape[1] - 1)
    clamped_Tv = torch.nn.functional.one_hot(index_T, logits_Tv.shape[1])
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = e_Tv / both[0][:, None] - clamped_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: gradient-summed
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = e_Tv / both[0][:, None] - 1 * is_target_Tv
    return function(same, summed)(with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv))


# %% vocabulary_loss: logs-summed
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, _ = own_words(logits_Tv, target_T, start)
    logs_T = logits_Tv.logsumexp(1)
    both = summed(torch.stack([logs_T, (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = (logits_Tv - both[0][:, None]).exp() - 1 * is_target_Tv
    return with_slope(both[0] - both[1], slope_Tv, logits_Tv)


# %% vocabulary_loss: no-softmax-in-backward
def vocabulary_loss(logits_Tv, target_T, start):
    is_target_Tv, m_T = own_words(logits_Tv, target_T, start)
    e_Tv = (logits_Tv - m_T[:, None]).exp()
    both = summed(torch.stack([e_Tv.sum(1), (logits_Tv * is_target_Tv).sum(1)]).detach())
    slope_Tv = -1.0 * is_target_Tv
    return with_slope(both[0].log() + m_T - both[1], slope_Tv, logits_Tv)


# %% block: gain-not-summed
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n = dist.get_rank(), dist.get_world_size()
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    h_BSf = drop(torch.relu(gather(norm(x_BsD) * gain_D) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: gain-summed-twice
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(enter(gain_D))
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: own-rows-of-the-gradient
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_rows), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: own-rows-of-the-output
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_rows, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: zeros-elsewhere
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)

    def padded(grad_BsD):
        zeros = torch.zeros_like(grad_BsD)
        return torch.cat([grad_BsD if r == rank else zeros for r in range(n)], dim=1)

    gather, scatter = function(everybody, my_sum), function(my_sum, padded)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: drops-once
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, enter = dist.get_rank(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return scatter(h_BSf @ w2_Df.T)


# %% block: drops-once
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, enter = dist.get_rank(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = torch.relu(gather(x_BsD) @ w1_fD.T)
    return drop(scatter(h_BSf @ w2_Df.T), seed + rank)


# %% block: mean
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather = function(everybody, my_sum)
    scatter = function(lambda y: my_sum(y) / n, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: no-relu
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(gather(x_BsD) @ w1_fD.T, seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: norm-of-all
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BSD = norm(gather(x_BsD)) * enter(gain_D)
    h_BSf = drop(torch.relu(x_BSD @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: same-seeds
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    enter = function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed)
    return drop(scatter(h_BSf @ w2_Df.T), seed + 1)


# %% block: same-seeds
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, enter = dist.get_rank(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + rank + 1)


# %% block: seeds-outside
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, enter = dist.get_rank(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + 1000 * rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + 1000 * rank + 1)


# %% block: other-calls
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather = function(everybody, lambda grad: my_rows(summed(grad)))
    scatter = function(lambda y: my_rows(summed(y)), everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: mean
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = (
        function(everybody, lambda grad: my_sum(grad) / n),
        function(my_sum, everybody),
    )
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: gain-before-the-norm
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD * enter(gain_D))
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: enters-too-much
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = enter(norm(x_BsD) * gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: enters-too-much
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = enter(norm(x_BsD)) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: enters-too-much
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(enter(x_BsD)) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: enters-too-much
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(enter(gather(x_BsD)) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: weights-summed
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ enter(w1_fD).T), seed + rank)
    return drop(scatter(h_BSf @ enter(w2_Df).T), seed + n + rank)


# %% block: batch-for-sequence
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)

    def rows(x_BsD):
        parts = [torch.empty_like(x_BsD) for _ in range(n)]
        dist.all_gather(parts, x_BsD.contiguous())
        return torch.cat(parts).view(len(x_BsD), -1, x_BsD.shape[2])

    gather, scatter = function(rows, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: norm-without-gradient
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = x_BsD / (x_BsD / norm(x_BsD)).detach() * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: own-positions-only
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = same, function(summed, same)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return drop(scatter(h_BSf @ w2_Df.T), seed + n + rank)


# %% block: drops-summands
def block(x_BsD, gain_D, w1_fD, w2_Df, drop, seed):
    rank, n, enter = dist.get_rank(), dist.get_world_size(), function(same, summed)
    gather, scatter = function(everybody, my_sum), function(my_sum, everybody)
    x_BsD = norm(x_BsD) * enter(gain_D)
    h_BSf = drop(torch.relu(gather(x_BsD) @ w1_fD.T), seed + rank)
    return scatter(drop(h_BSf @ w2_Df.T, seed + n + rank))


# %% merge: not-rescaled
def merge(one, other):
    return torch.maximum(one[0], other[0]), one[1] + other[1], one[2] + other[2]


# %% merge: output-not-rescaled
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    return m, first * one[1] + second * other[1], one[2] + other[2]


# %% merge: not-a-number
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    first, second = (one[0] - m).exp(), (other[0] - m).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: normalised
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    total = first * one[1] + second * other[1]
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, total, o / total[..., None]


# %% merge: overflows
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    first, second = one[0].exp(), other[0].exp()
    scale = torch.where(m.isinf(), 0, m).exp()
    total = (first * one[1] + second * other[1]) / scale
    o = (first[..., None] * one[2] + second[..., None] * other[2]) / scale[..., None]
    return m, total, o


# %% merge: first-maximum
def merge(one, other):
    m = one[0]
    second = (other[0] - m).exp()
    return m, one[1] + second * other[1], one[2] + second[..., None] * other[2]


# %% merge: not-the-maximum
def merge(one, other):
    m = torch.minimum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: not-the-maximum
def merge(one, other):
    m = one[0] + other[0]
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: not-the-maximum
def merge(one, other):
    m = torch.logaddexp(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: scaled-the-other-way
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    first, second = (
        torch.where(one[0].isinf(), 0, (m - one[0]).exp()),
        torch.where(other[0].isinf(), 0, (m - other[0]).exp()),
    )
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: normalised
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = torch.where(m.isinf(), 0, m)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    total = first * one[1] + second * other[1]
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, total, o / total.clamp(min=1e-9)[..., None]


# %% merge: one-not-rescaled
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    first = (one[0] - torch.where(m.isinf(), 0, m)).exp()
    return m, first * one[1] + other[1], first[..., None] * one[2] + other[2]


# %% merge: one-not-rescaled
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    second = (other[0] - torch.where(m.isinf(), 0, m)).exp()
    return m, one[1] + second * other[1], one[2] + second[..., None] * other[2]


# %% merge: shift-of-zero
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    shift = m.clamp(min=0)
    first, second = (one[0] - shift).exp(), (other[0] - shift).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: one-maximum-for-all
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    first, second = (one[0] - m.max()).exp(), (other[0] - m.max()).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return torch.where(m.isinf(), m, m.max()), first * one[1] + second * other[1], o


# %% merge: all-queries-alike
def merge(one, other):
    if one[0].isinf().any():
        return other
    if other[0].isinf().any():
        return one
    m = torch.maximum(one[0], other[0])
    first, second = (one[0] - m).exp(), (other[0] - m).exp()
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% merge: weights-of-a-softmax
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    weights = torch.stack([one[0], other[0]]).softmax(0)
    first, second = torch.where(m.isinf(), 0, weights)
    o = first[..., None] * one[2] + second[..., None] * other[2]
    return m, first * one[1] + second * other[1], o


# %% ring_attention: nothing-sent
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, dist.get_rank()))
    return total[2] / total[1][..., None]


# %% ring_attention: without-the-last
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total: Any = None
    for turn in range(n - 1):
        coming, handles = pass_on([k_BHsE, v_BHsE])
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        for handle in handles:
            handle.wait()
        k_BHsE, v_BHsE = coming
    return total[2] / total[1][..., None]


# %% ring_attention: last-round-only
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    for turn in range(n):
        _, total, o = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        if turn < n - 1:
            coming, handles = pass_on([k_BHsE, v_BHsE])
            for handle in handles:
                handle.wait()
            k_BHsE, v_BHsE = coming
    return o / total[..., None]


# %% ring_attention: own-keys-again
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for turn in range(1, n):
        _, handles = pass_on([k_BHsE, v_BHsE])
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = merge_parts(total, mine)
        for handle in handles:
            handle.wait()
    return total[2] / total[1][..., None]


# %% ring_attention: not-divided
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for turn in range(1, n):
        (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
        for handle in handles:
            handle.wait()
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = merge_parts(total, mine)
    return total[2]


# %% ring_attention: average
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    mean = 0
    for turn in range(n):
        _, total, o = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        mean = mean + o / total[..., None] / n
        if turn < n - 1:
            (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
            for handle in handles:
                handle.wait()
    return mean


# %% ring_attention: not-causal
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    n = dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, None)
    for _ in range(1, n):
        (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
        for handle in handles:
            handle.wait()
        total = merge_parts(total, partial(q_BHsE, k_BHsE, v_BHsE, None))
    return total[2] / total[1][..., None]


# %% ring_attention: own-places
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for _ in range(1, n):
        (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
        for handle in handles:
            handle.wait()
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
        total = merge_parts(total, mine)
    return total[2] / total[1][..., None]


# %% ring_attention: wrong-owner
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for turn in range(1, n):
        (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
        for handle in handles:
            handle.wait()
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank + turn) % n))
        total = merge_parts(total, mine)
    return total[2] / total[1][..., None]


# %% ring_attention: not-hidden
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, rank))
    for turn in range(1, n):
        (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
        for handle in handles:
            handle.wait()
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = merge_parts(total, mine)
    return total[2] / total[1][..., None]


# %% ring_attention: not-hidden
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total: Any = None
    for turn in range(n):
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        if turn < n - 1:
            (k_BHsE, v_BHsE), handles = pass_on([k_BHsE, v_BHsE])
            for handle in handles:
                handle.wait()
        total = mine if total is None else merge_parts(total, mine)
    return total[2] / total[1][..., None]


# %% ring_attention: separate-messages
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total: Any = None
    for turn in range(n):
        got, works = [torch.empty_like(k_BHsE), torch.empty_like(v_BHsE)], []
        if turn < n - 1:
            works = [dist.isend(one, (rank + 1) % n) for one in (k_BHsE, v_BHsE)]
            works += [dist.irecv(one, (rank - 1) % n) for one in got]
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        for work in works:
            work.wait()
        k_BHsE, v_BHsE = got
    return total[2] / total[1][..., None]


# %% ring_attention: no-ring
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    n, parts = dist.get_world_size(), []
    for one in (k_BHsE, v_BHsE):
        every = [torch.empty_like(one) for _ in range(n)]
        dist.all_gather(every, one)
        parts.append(torch.cat(every, dim=2))
    sees = None if places is None else seen([*places, torch.cat(list(places))], -1)
    _, total, o = partial(q_BHsE, *parts, sees)
    return o / total[..., None]


# %% ring_attention: other-bytes
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    total: Any = None
    for turn in range(n):
        coming, handles = pass_on([k_BHsE, v_BHsE])
        mine = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        for handle in handles:
            handle.wait()
        k_BHsE, v_BHsE = coming
    return total[2] / total[1][..., None]


# %% ring_attention: own-keys-sent-again
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = None
    for turn in range(n):
        mine = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        if turn < n - 1:
            coming, handles = pass_on((k_BHsE, v_BHsE))
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: values-not-sent
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = None
    for turn in range(n):
        mine = partial(q_BHsE, kv[0], v_BHsE, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: order-of-ranks
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = None
    s = q_BHsE.shape[2]
    plain = torch.arange(n * s).chunk(n)
    for turn in range(n):
        mine = partial(q_BHsE, *kv, seen(None if places is None else plain, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: average
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = 0
    for turn in range(n):
        _, below, o = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = total + o / below.clamp(min=1e-9)[..., None] / n
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total


# %% ring_attention: own-maxima
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = 0
    for turn in range(n):
        _, below, o = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = total + torch.cat([o, below[..., None]], -1)
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total[..., :-1] / total[..., -1:]


# %% ring_attention: own-keys-twice
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = partial(q_BHsE, k_BHsE, v_BHsE, seen(places, dist.get_rank()))
    for turn in range(n):
        mine = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% ring_attention: without-itself
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = None
    for turn in range(n):
        mine = partial(q_BHsE, *kv, places and places[rank][:, None] > places[(rank - turn) % n])
        total = mine if total is None else merge_parts(total, mine)
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1].clamp(min=1e-9)[..., None]


# %% ring_attention: maximum-from-zero
def ring_attention(q_BHsE, k_BHsE, v_BHsE, places):
    rank, n = dist.get_rank(), dist.get_world_size()
    kv: Any = k_BHsE, v_BHsE
    total: Any = [torch.zeros_like(one) for one in partial(q_BHsE, k_BHsE, v_BHsE, None)]
    for turn in range(n):
        mine = partial(q_BHsE, *kv, seen(places, (rank - turn) % n))
        total = mine if total is None else merge_parts(total, mine)
        if turn < n - 1:
            coming, handles = pass_on(kv)
            for handle in handles:
                handle.wait()
            kv = coming
    return total[2] / total[1][..., None]


# %% gather_and_multiply: own-rows-everywhere
def gather_and_multiply(x_sD, w_fD, pieces):
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    for _, handle in coming:
        handle.wait()
    return torch.cat([x_sD @ w_fD.T] * dist.get_world_size())


# %% gather_and_multiply: order-of-arrival
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products = [x_sD @ w_fD.T]
    for parts, handle in coming:
        handle.wait()
        for other in range(n):
            if other != rank:
                products.append(parts[other] @ w_fD.T)
    return torch.cat(products)


# %% gather_and_multiply: order-of-arrival
def gather_and_multiply(x_sD, w_fD, pieces):
    products = []
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        products += [one @ w_fD.T for one in parts]
    return torch.cat(products)


# %% gather_and_multiply: own-twice
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for parts, handle in coming:
        handle.wait()
        for other in range(n):
            products[other].append(parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: pieces-turned
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    while coming:
        parts, handle = coming.pop()
        handle.wait()
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: other-pieces
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products: list[Any] = [None] * n
    parts, handle = start(x_sD)
    products[rank] = x_sD @ w_fD.T
    handle.wait()
    for other in range(n):
        if other != rank:
            products[other] = parts[other] @ w_fD.T
    return torch.cat(products)


# %% gather_and_multiply: not-hidden
def gather_and_multiply(x_sD, w_fD, pieces):
    n = dist.get_world_size()
    products = [[] for _ in range(n)]
    for piece in x_sD.chunk(pieces):
        parts, handle = start(piece)
        handle.wait()
        for other in range(n):
            products[other].append(parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: not-hidden
def gather_and_multiply(x_sD, w_fD, pieces):
    n = dist.get_world_size()
    products = [[] for _ in range(n)]
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for other in range(n):
            products[other].append(parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: not-hidden
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products = [[] for _ in range(n)]
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products[rank].append(x_sD @ w_fD.T)
    for _, handle in coming:
        handle.wait()
    for parts, _ in coming:
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    return torch.cat([product for some in products for product in some])


# %% gather_and_multiply: own-rows-first
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    coming = [start(piece) for piece in x_sD.chunk(pieces)]
    products: list[list[Any]] = [[] for _ in range(n)]
    for parts, handle in coming:
        handle.wait()
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    return torch.cat([x_sD @ w_fD.T, *(one for some in products for one in some)])


# %% gather_and_multiply: own-rows-first
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products: list[list[Any]] = [[] for _ in range(n)]
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for turn in range(n):
            products[turn].append(parts[(rank + turn) % n] @ w_fD.T)
    return torch.cat([one for some in products for one in some])


# %% gather_and_multiply: without-own-rows
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    products: list[list[Any]] = [[] for _ in range(n)]
    for parts, handle in [start(piece) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    return torch.cat([one for some in products for one in some])


# %% gather_and_multiply: products-gathered
def gather_and_multiply(x_sD, w_fD, pieces):
    products: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    for parts, handle in [start(piece @ w_fD.T) for piece in x_sD.chunk(pieces)]:
        handle.wait()
        for other, product in enumerate(parts):
            products[other].append(product)
    return torch.cat([one for some in products for one in some])


# %% gather_and_multiply: one-buffer
def gather_and_multiply(x_sD, w_fD, pieces):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x_sD.chunk(pieces)
    buffers = [torch.empty_like(chunks[0]) for _ in range(n)]
    coming = []
    for piece in chunks:
        parts = [one[: len(piece)] for one in buffers]
        dist.all_gather(parts, piece)
        coming.append(parts)
    products: list[list[Any]] = [[] for _ in range(n)]
    products[rank].append(x_sD @ w_fD.T)
    for parts in coming:
        for other in range(n):
            if other != rank:
                products[other].append(parts[other] @ w_fD.T)
    return torch.cat([one for some in products for one in some])
