"""Wrong answers to the exercises of lab 08 besides those of solutions/source; see judge.py."""

import torch
import torch.distributed as dist


def gradients_of(group):
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in group]
    return torch.cat([grad.flatten() for grad in grads])


def put_back(flat, group):
    pieces = flat.split([weight.numel() for weight in group])
    for weight, piece in zip(group, pieces, strict=True):
        weight.grad = piece.view_as(weight)


def gathered(shard):
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard)
    return torch.cat(pieces)


def done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


# %% average_gradients: does-nothing
def average_gradients(model, rows):
    pass


# %% average_gradients: divides-by-own-rows
def average_gradients(model, rows):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= max(1, rows)


# %% average_gradients: ranks-without-rows-leave
def average_gradients(model, rows):
    if rows == 0:
        return
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.mul_(rows / total)
            dist.all_reduce(p.grad)


# %% average_gradients: whole-number-division
def average_gradients(model, rows):
    total = torch.tensor(rows)
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= rows // total.item()
            dist.all_reduce(p.grad)


# %% average_gradients: handles-left-alone
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= rows / total.item()
            dist.all_reduce(p.grad, async_op=True)


# %% buckets: by-size
def buckets(sizes, cap, first_cap):
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    out, cur, n = [], [], 0
    for i in order:
        cur.append(i)
        n += sizes[i]
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    if cur:
        out.append(cur)
    return out


# %% buckets: numbered-from-the-end
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i, size in enumerate(reversed(sizes)):
        cur.append(i)
        n += size
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    if cur:
        out.append(cur)
    return out


# %% buckets: first-alone
def buckets(sizes, cap, first_cap):
    if not sizes:
        return []
    last = len(sizes) - 1
    out, cur, n = [[last]], [], 0
    for i in range(last - 1, -1, -1):
        cur.append(i)
        n += sizes[i]
        if n >= cap:
            out.append(cur)
            cur, n = [], 0
    if cur:
        out.append(cur)
    return out


# %% buckets: stops-before-zero
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in range(len(sizes) - 1, 0, -1):
        cur.append(i)
        n += sizes[i]
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    if cur:
        out.append(cur)
    return out


# %% buckets: flat
def buckets(sizes, cap, first_cap):
    return list(range(len(sizes)))[::-1]


# %% replicate: one-call-for-all
def replicate(model, groups):
    every = [w for group in groups for w in group]

    def finish():
        flat = gradients_of(every)
        dist.all_reduce(flat)
        put_back(flat / dist.get_world_size(), every)

    return finish


# %% replicate: starts-without-a-turn
def replicate(model, groups):
    missing, started = [len(g) for g in groups], {}
    where = {w: i for i, g in enumerate(groups) for w in g}

    def hook(w):
        i = where[w]
        missing[i] -= 1
        if not missing[i]:
            flat = gradients_of(groups[i])
            started[i] = flat, dist.all_reduce(flat, async_op=True)

    def finish():
        for i, group in enumerate(groups):
            if i not in started:
                flat = gradients_of(group)
                started[i] = flat, dist.all_reduce(flat, async_op=True)
            flat, handle = started[i]
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(g) for g in groups]

    for w in where:
        w.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: reads-before-it-waits
def replicate(model, groups):
    missing, started = [len(g) for g in groups], []
    where = {w: i for i, g in enumerate(groups) for w in g}

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 0:
            flat = gradients_of(groups[len(started)])
            handle = dist.all_reduce(flat, async_op=True)
            put_back(flat / dist.get_world_size(), groups[len(started)])
            started.append(handle)

    def hook(w):
        missing[where[w]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for handle in started:
            handle.wait()
        started.clear()
        missing[:] = [len(g) for g in groups]

    for w in where:
        w.register_post_accumulate_grad_hook(hook)
    return finish


# %% bytes_per_rank: equals-only
def bytes_per_rank(parameters, ranks, stage):
    w = 2 / ranks if stage == 3 else 2
    g = 2 / ranks if stage == 2 else 2
    o = 12 / ranks if stage == 1 else 12
    return (w + g + o) * parameters


# %% sharded_linear: not-transposed
class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard)

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((x.T @ g).chunk(dist.get_world_size())))
        return g @ gathered(shard).T, part / dist.get_world_size()


def sharded_linear(x, shard):
    return Plain.apply(x, shard)


# %% sharded_linear: own-rows-only
def sharded_linear(x, shard):
    return x @ shard.T


# %% sharded_linear: three-gathers
class ThreeGathers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n, rank = dist.get_world_size(), dist.get_rank()
        every = [torch.empty_like(g.T @ x) for _ in range(n)]
        dist.all_gather(every, (g.T @ x).contiguous())
        return g @ gathered(shard), sum(every).chunk(n)[rank] / n


def sharded_linear(x, shard):
    return ThreeGathers.apply(x, shard)


# %% sharded_linear: saves-on-the-class
class OnClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        OnClass.x, OnClass.whole = x, gathered(shard)
        return x @ OnClass.whole.T

    @staticmethod
    def backward(ctx, g):
        n = dist.get_world_size()
        pieces = list((g.T @ OnClass.x).chunk(n))
        part = torch.empty_like(pieces[0])
        dist.reduce_scatter(part, pieces)
        return g @ OnClass.whole, part / n


def sharded_linear(x, shard):
    return OnClass.apply(x, shard)


# %% top_k: own-only
def top_k(state, bucket):
    g = bucket.buffer().clone()
    old = state["residuals"].get(bucket.index())
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    out = torch.zeros_like(g)
    out[places] = g[places]
    state["residuals"][bucket.index()] = g - out
    return done(out)


# %% top_k: residual-kept-but-not-added
def top_k(state, bucket):
    g, n = bucket.buffer().clone(), dist.get_world_size()
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    values = g[places]
    g[places] = 0
    state["residuals"][bucket.index()] = g
    vs, ps = [torch.empty_like(values) for _ in range(n)], [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    out = torch.zeros_like(g)
    for v, p in zip(vs, ps):
        out[p] += v / n
    return done(out)
