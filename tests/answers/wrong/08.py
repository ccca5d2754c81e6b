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
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    out = torch.zeros_like(g)
    for v, p in zip(vs, ps):
        out[p] += v / n
    return done(out)


# %% average_gradients: mean-over-ranks
def average_gradients(model, rows):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


# %% average_gradients: skips-what-has-no-gradient
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= rows / total
            dist.all_reduce(p.grad)


# %% average_gradients: frozen-ones-too
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad *= rows / total
        dist.all_reduce(p.grad)


# %% average_gradients: sum-of-the-means
def average_gradients(model, rows):
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)


# %% average_gradients: weighted-but-not-divided
def average_gradients(model, rows):
    for p in model.parameters():
        if p.requires_grad:
            g = torch.zeros_like(p) if p.grad is None else p.grad * rows
            dist.all_reduce(g)
            p.grad = g


# %% average_gradients: only-ranks-that-used-it
def average_gradients(model, rows):
    for p in model.parameters():
        if p.requires_grad:
            used = torch.tensor(0.0 if p.grad is None else float(rows))
            g = torch.zeros_like(p) if p.grad is None else p.grad * rows
            dist.all_reduce(used)
            dist.all_reduce(g)
            p.grad = g / used.clamp(min=1)


# %% average_gradients: result-not-put-back
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            g = torch.zeros_like(p) if p.grad is None else p.grad
            g = g * rows / total
            dist.all_reduce(g)


# %% average_gradients: on-rank-0-only
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad * (rows / total)
            dist.reduce(p.grad, 0)


# %% buckets: never-over-the-cap
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in reversed(range(len(sizes))):
        limit = cap if out else first_cap
        if cur and n + sizes[i] > limit:
            out.append(cur)
            cur, n = [], 0
        cur.append(i)
        n += sizes[i]
    return out + [cur] if cur else out


# %% buckets: from-the-front
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i, size in enumerate(sizes):
        cur.append(i)
        n += size
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    return out + [cur] if cur else out


# %% buckets: more-than-the-cap
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in reversed(range(len(sizes))):
        cur.append(i)
        n += sizes[i]
        if n > (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    return out + [cur] if cur else out


# %% buckets: first-cap-for-all
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in reversed(range(len(sizes))):
        cur.append(i)
        n += sizes[i]
        if n >= first_cap:
            out.append(cur)
            cur, n = [], 0
    return out + [cur] if cur else out


# %% buckets: loses-the-rest
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in reversed(range(len(sizes))):
        cur.append(i)
        n += sizes[i]
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    return out


# %% buckets: empty-one-at-the-end
def buckets(sizes, cap, first_cap):
    out, n = [[]], 0
    for i in reversed(range(len(sizes))):
        out[-1].append(i)
        n += sizes[i]
        if n >= (cap if len(out) > 1 else first_cap):
            out.append([])
            n = 0
    return out


# %% buckets: ascending-within
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in reversed(range(len(sizes))):
        cur.insert(0, i)
        n += sizes[i]
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur, n = [], 0
    return out + [cur] if cur else out


# %% buckets: bytes-not-reset
def buckets(sizes, cap, first_cap):
    out, cur, n = [], [], 0
    for i in reversed(range(len(sizes))):
        cur.append(i)
        n += sizes[i]
        if n >= (cap if out else first_cap):
            out.append(cur)
            cur = []
    return out + [cur] if cur else out


# %% replicate: not-ready-for-the-next-step
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in zip(groups, started):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: sum-for-mean
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        while len(started) < len(groups) and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in zip(groups, started):
            handle.wait()
            put_back(flat, group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: waits-in-the-hook
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        while len(started) < len(groups) and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            dist.all_reduce(flat)
            started.append(flat)

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, flat in zip(groups, started):
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: forgets-what-is-left
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        while len(started) < len(groups) and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        for group, (flat, handle) in zip(groups, started):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: all-in-finish
def replicate(model, groups):
    def finish():
        started = []
        for group in groups:
            flat = gradients_of(group)
            started.append((flat, dist.all_reduce(flat, async_op=True)))
        for group, (flat, handle) in zip(groups, started):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)

    return finish


# %% replicate: one-call-for-each-parameter
def replicate(model, groups):
    started = []

    def ready(weight):
        started.append(dist.all_reduce(weight.grad, async_op=True))

    def finish():
        for handle in started:
            handle.wait()
        started.clear()
        for group in groups:
            for weight in group:
                if weight.grad is not None:
                    weight.grad /= dist.get_world_size()

    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% bytes_per_rank: float32-gradients
def bytes_per_rank(parameters, ranks, stage):
    kept = [2, 4, 12]
    return sum(b * parameters / (ranks if 2 - i < stage else 1) for i, b in enumerate(kept))


# %% bytes_per_rank: stages-turned-round
def bytes_per_rank(parameters, ranks, stage):
    weights = 2 * parameters / (ranks if stage >= 1 else 1)
    grads = 2 * parameters / (ranks if stage >= 2 else 1)
    rest = 12 * parameters / (ranks if stage >= 3 else 1)
    return weights + grads + rest


# %% bytes_per_rank: without-master-weights
def bytes_per_rank(parameters, ranks, stage):
    part = parameters / ranks
    return [12 * parameters, 4 * parameters + 8 * part, 2 * parameters + 10 * part, 12 * part][
        stage
    ]


# %% bytes_per_rank: one-stage-late
def bytes_per_rank(parameters, ranks, stage):
    weights = 2 * parameters / (ranks if stage > 3 else 1)
    grads = 2 * parameters / (ranks if stage > 2 else 1)
    rest = 12 * parameters / (ranks if stage > 1 else 1)
    return weights + grads + rest


# %% bytes_per_rank: all-ranks-together
def bytes_per_rank(parameters, ranks, stage):
    weights = 2 * parameters * (1 if stage >= 3 else ranks)
    grads = 2 * parameters * (1 if stage >= 2 else ranks)
    rest = 12 * parameters * (1 if stage >= 1 else ranks)
    return weights + grads + rest


# %% bytes_per_rank: all-float32
def bytes_per_rank(parameters, ranks, stage):
    part = parameters / ranks
    return [16 * parameters, 8 * parameters + 8 * part, 4 * parameters + 12 * part, 16 * part][
        stage
    ]


# %% bytes_per_rank: everything-over-ranks
def bytes_per_rank(parameters, ranks, stage):
    return 16 * parameters / ranks if stage else 16 * parameters


# %% sharded_linear: sum-for-mean
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((g.T @ x).chunk(dist.get_world_size())))
        return g @ gathered(shard), part


def sharded_linear(x, shard):
    return Sum.apply(x, shard)


# %% sharded_linear: keeps-the-whole
class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        whole = gathered(shard)
        ctx.save_for_backward(x, whole)
        return x @ whole.T

    @staticmethod
    def backward(ctx, g):
        x, whole = ctx.saved_tensors
        n = dist.get_world_size()
        pieces = list((g.T @ x).chunk(n))
        part = torch.empty_like(pieces[0])
        dist.reduce_scatter(part, pieces)
        return g @ whole, part / n


def sharded_linear(x, shard):
    return Keeps.apply(x, shard)


# %% sharded_linear: own-gradient-of-own-rows
class OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n, rank = dist.get_world_size(), dist.get_rank()
        return g @ gathered(shard), (g.T @ x).chunk(n)[rank] / n


def sharded_linear(x, shard):
    return OwnRows.apply(x, shard)


# %% sharded_linear: all-reduces-the-whole-gradient
class AllReduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n, rank = dist.get_world_size(), dist.get_rank()
        of_whole = g.T @ x
        dist.all_reduce(of_whole)
        return g @ gathered(shard), of_whole.chunk(n)[rank] / n


def sharded_linear(x, shard):
    return AllReduced.apply(x, shard)


# %% sharded_linear: mean-of-x-too
class MeanOfX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        g = g / n
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((g.T @ x).chunk(n)))
        return g @ gathered(shard), part


def sharded_linear(x, shard):
    return MeanOfX.apply(x, shard)


# %% sharded_linear: autograd-does-it
def sharded_linear(x, shard):
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard.detach())
    pieces[dist.get_rank()] = shard
    return x @ torch.cat(pieces).T


# %% sharded_linear: rotated-rows
class Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        pieces = list((g.T @ x).chunk(n))
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, pieces[1:] + pieces[:1])
        return g @ gathered(shard), part / n


def sharded_linear(x, shard):
    return Rotated.apply(x, shard)


# %% top_k: largest-with-sign
def top_k(state, bucket):
    g, n, old = (
        bucket.buffer().clone(),
        dist.get_world_size(),
        state["residuals"].get(bucket.index()),
    )
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    values, places = g.topk(k)
    state["residuals"][bucket.index()] = g.index_fill(0, places, 0)
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)) / n)


# %% top_k: sends-absolute-values
def top_k(state, bucket):
    g, n, old = (
        bucket.buffer().clone(),
        dist.get_world_size(),
        state["residuals"].get(bucket.index()),
    )
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    values, places = g.abs().topk(k)
    state["residuals"][bucket.index()] = g.index_fill(0, places, 0)
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)) / n)


# %% top_k: one-residual-for-all-buckets
def top_k(state, bucket):
    g, n, old = bucket.buffer().clone(), dist.get_world_size(), state["residuals"].get("kept")
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    values = g[places]
    state["residuals"]["kept"] = g.index_fill(0, places, 0)
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)) / n)


# %% top_k: last-rank-wins
def top_k(state, bucket):
    g, n, old = (
        bucket.buffer().clone(),
        dist.get_world_size(),
        state["residuals"].get(bucket.index()),
    )
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    values = g[places]
    state["residuals"][bucket.index()] = g.index_fill(0, places, 0)
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    out = torch.zeros_like(g)
    for v, p in zip(vs, ps):
        out[p] = v / n
    return done(out)


# %% top_k: all-reduces-zeros
def top_k(state, bucket):
    g, n, old = (
        bucket.buffer().clone(),
        dist.get_world_size(),
        state["residuals"].get(bucket.index()),
    )
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    out = torch.zeros_like(g)
    out[places] = g[places]
    state["residuals"][bucket.index()] = g - out
    dist.all_reduce(out)
    return done(out / n)


# %% top_k: takes-out-of-the-buffer
def top_k(state, bucket):
    g, n, old = bucket.buffer(), dist.get_world_size(), state["residuals"].get(bucket.index())
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    values = g[places]
    g[places] = 0
    state["residuals"][bucket.index()] = g.clone()
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)) / n)


# %% top_k: whole-gradient-as-residual
def top_k(state, bucket):
    g, n, old = (
        bucket.buffer().clone(),
        dist.get_world_size(),
        state["residuals"].get(bucket.index()),
    )
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    values = g[places]
    state["residuals"][bucket.index()] = g
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)) / n)


# %% top_k: none-where-the-share-is-small
def top_k(state, bucket):
    g, n, old = (
        bucket.buffer().clone(),
        dist.get_world_size(),
        state["residuals"].get(bucket.index()),
    )
    if old is not None and len(old) == len(g):
        g += old
    k = int(state["share"] * len(g))
    places = g.abs().topk(k).indices
    values = g[places]
    state["residuals"][bucket.index()] = g.index_fill(0, places, 0)
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)) / n)


# %% replicate: the-last-listed-weight-stands-for-its-bucket
def replicate(model, groups):
    sent = {}

    def send(at):
        if at not in sent:
            flat = gradients_of(groups[at])
            sent[at] = flat, dist.all_reduce(flat, async_op=True)

    for at, group in enumerate(groups):
        group[-1].register_post_accumulate_grad_hook(lambda weight, at=at: send(at))

    def finish():
        for at, group in enumerate(groups):
            send(at)
            flat, handle = sent[at]
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        sent.clear()

    return finish


# %% bytes_per_rank: numbers-not-bytes
def bytes_per_rank(parameters, ranks, stage):
    part = parameters // ranks
    return sum(part if stage > 2 - i else parameters for i in range(3)) + 2 * (
        part if stage else parameters
    )


# %% bytes_per_rank: no-gradients
def bytes_per_rank(parameters, ranks, stage):
    part = parameters // ranks
    weights = 2 * (part if stage == 3 else parameters)
    return weights + 12 * (part if stage else parameters)


# %% bytes_per_rank: part-of-ranks-less-one
def bytes_per_rank(parameters, ranks, stage):
    share = (ranks - 1) / ranks
    cut = [0, 12, 14, 16][stage]
    return (16 - cut) * parameters + cut * parameters * share


# %% bytes_per_rank: a-gathered-weight-more
def bytes_per_rank(parameters, ranks, stage):
    cut = [0, 12, 14, 16][stage]
    kept = (16 - cut) * parameters + cut * parameters // ranks
    return kept + 2 * parameters if stage == 3 else kept


# %% replicate: divides-twice
def replicate(model, groups):
    n = dist.get_world_size()
    left = [len(group) for group in groups]
    works = []

    def start():
        while len(works) < len(groups) and left[len(works)] == 0:
            flat = gradients_of(groups[len(works)]) / n
            works.append((flat, dist.all_reduce(flat, async_op=True)))

    def hook(weight):
        for at, group in enumerate(groups):
            if any(w is weight for w in group):
                left[at] -= 1
        start()

    def finish():
        left[:] = [0] * len(groups)
        start()
        for (flat, work), group in zip(works, groups):
            work.wait()
            put_back(flat / n, group)
        works.clear()
        left[:] = [len(group) for group in groups]

    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: counters-left-where-they-were
def replicate(model, groups):
    n = dist.get_world_size()
    left = [len(group) for group in groups]
    works = []

    def start(everything=False):
        while len(works) < len(groups) and (everything or left[len(works)] <= 0):
            flat = gradients_of(groups[len(works)])
            works.append((flat, dist.all_reduce(flat, async_op=True)))

    def hook_of(at):
        def hook(weight):
            left[at] -= 1
            start()

        return hook

    def finish():
        start(everything=True)
        for (flat, work), group in zip(works, groups):
            work.wait()
            put_back(flat / n, group)
        works.clear()

    for at, group in enumerate(groups):
        for weight in group:
            weight.register_post_accumulate_grad_hook(hook_of(at))
    return finish


# %% sharded_linear: gradient-of-x-averaged-over-ranks
class OfXReduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        of_x = grad @ gathered(shard)
        dist.all_reduce(of_x)
        return of_x / n, part / n


def sharded_linear(x, shard):
    return OfXReduced.apply(x, shard)


# %% top_k: sum-for-mean
def top_k(state, bucket):
    g, n = bucket.buffer().clone(), dist.get_world_size()
    old = state["residuals"].get(bucket.index())
    if old is not None and old.shape == g.shape:
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    values = g[places]
    state["residuals"][bucket.index()] = g.index_fill(0, places, 0)
    vs, ps = (
        [torch.empty_like(values) for _ in range(n)],
        [torch.empty_like(places) for _ in range(n)],
    )
    dist.all_gather(vs, values)
    dist.all_gather(ps, places)
    return done(torch.zeros_like(g).index_add(0, torch.cat(ps), torch.cat(vs)))


# %% top_k: places-of-rank-0-for-all
def top_k(state, bucket):
    g, n = bucket.buffer().clone(), dist.get_world_size()
    old = state["residuals"].get(bucket.index())
    if old is not None and old.shape == g.shape:
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k).indices
    dist.broadcast(places, 0)
    values = g[places]
    state["residuals"][bucket.index()] = g.index_fill(0, places, 0)
    dist.all_reduce(values)
    return done(torch.zeros_like(g).index_copy(0, places, values) / n)


# %% average_gradients: rows-of-rank-0-for-all
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    first = torch.tensor(float(rows))
    dist.broadcast(first, 0)
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= first / total
            dist.all_reduce(p.grad)


# %% average_gradients: average-operation-of-weighted
def average_gradients(model, rows):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= rows
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size() * max(rows, 1)


# %% average_gradients: only-if-everybody-has-it
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if not p.requires_grad:
            continue
        there = torch.tensor(float(p.grad is not None))
        dist.all_reduce(there, op=dist.ReduceOp.MIN)
        if there:
            p.grad *= rows / total.item()
            dist.all_reduce(p.grad)


# %% buckets: cap-is-a-number-of-parameters
def buckets(sizes, cap, first_cap):
    order = list(range(len(sizes)))[::-1]
    found, limit = [], first_cap
    while order:
        found.append(order[:limit])
        order, limit = order[limit:], cap
    return found


# %% buckets: the-first-cap-until-it-is-exceeded-by-all
def buckets(sizes, cap, first_cap):
    found, total, bucket = [], 0, []
    for i in reversed(range(len(sizes))):
        bucket.append(i)
        total += sizes[i]
        if total >= first_cap + cap * len(found):
            found.append(bucket)
            bucket = []
    return found + ([bucket] if bucket else [])


# %% buckets: last-merged-into-the-one-before
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for i in reversed(range(len(sizes))):
        bucket.append(i)
        size += sizes[i]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    if bucket and found:
        found[-1] += bucket
    elif bucket:
        found.append(bucket)
    return found


# %% replicate: starts-only-the-next-one
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        if len(started) < len(groups) and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        for at in range(len(groups)):
            missing[at] = 0
        start()
        for group, (flat, handle) in zip(groups, started, strict=False):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: packs-what-was-there-before-the-last-gradient
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 1:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        start()
        missing[bucket_of[weight]] -= 1

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in zip(groups, started, strict=True):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: waits-for-the-last-bucket-only
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        while len(started) < len(groups) and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in reversed(list(zip(groups, started, strict=True))):
            put_back(flat / dist.get_world_size(), group)
        started[-1][1].wait()
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% bytes_per_rank: moments-stay-in-stage-1
def bytes_per_rank(parameters, ranks, stage):
    part = parameters / ranks
    master = part if stage >= 1 else parameters
    moments = part if stage >= 2 else parameters
    gradient = part if stage >= 2 else parameters
    weight = part if stage >= 3 else parameters
    return 4 * master + 8 * moments + 2 * gradient + 2 * weight


# %% bytes_per_rank: stage-as-a-power
def bytes_per_rank(parameters, ranks, stage):
    return 16 * parameters / ranks**stage


# %% bytes_per_rank: float32-gradient-for-the-optimizer-too
def bytes_per_rank(parameters, ranks, stage):
    part = parameters / ranks
    size = 16 * (part if stage >= 1 else parameters)
    size += 2 * (part if stage >= 2 else parameters)
    return size + 2 * (part if stage >= 3 else parameters)


# %% sharded_linear: keeps-the-output
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        whole = gathered(shard)
        ctx.save_for_backward(x, shard)
        ctx.whole = whole.clone()
        return x @ whole.T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, part = dist.get_world_size(), torch.empty_like(shard)
        gathered(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        return grad @ ctx.whole, part / n


def sharded_linear(x, shard):
    return ShardedLinear.apply(x, shard)


# %% sharded_linear: own-rows-of-the-product
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, part = dist.get_world_size(), torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)), op=dist.ReduceOp.MAX)
        return grad @ gathered(shard), part / n


def sharded_linear(x, shard):
    return ShardedLinear.apply(x, shard)


# %% sharded_linear: interleaved-rows
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, shard)
        return x @ torch.stack(pieces, 1).flatten(0, 1).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, part = dist.get_world_size(), torch.empty_like(shard)
        pieces = [torch.empty_like(shard) for _ in range(n)]
        dist.all_gather(pieces, shard)
        whole = torch.stack(pieces, 1).flatten(0, 1)
        dist.reduce_scatter(part, [(grad.T @ x)[r::n].contiguous() for r in range(n)])
        return grad @ whole, part / n


def sharded_linear(x, shard):
    return ShardedLinear.apply(x, shard)


# %% top_k: residual-added-twice
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += 2 * residual
    count = max(1, int(state["share"] * len(gradient)))
    places = gradient.abs().topk(count).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    all_values = [torch.empty_like(values) for _ in range(n)]
    all_places = [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    mean = torch.zeros_like(gradient)
    for values, places in zip(all_values, all_places, strict=True):
        mean[places] += values / n
    return done(mean)


# %% top_k: mean-over-those-who-sent
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    count = max(1, int(state["share"] * len(gradient)))
    places = gradient.abs().topk(count).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    all_values = [torch.empty_like(values) for _ in range(n)]
    all_places = [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    total, how_many = torch.zeros_like(gradient), torch.zeros_like(gradient)
    for values, places in zip(all_values, all_places, strict=True):
        total[places] += values
        how_many[places] += 1
    return done(total / how_many.clamp(min=1))


# %% top_k: rounds-the-count-up
def top_k(state, bucket):
    import math

    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    count = math.ceil(state["share"] * len(gradient))
    places = gradient.abs().topk(count).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    all_values = [torch.empty_like(values) for _ in range(n)]
    all_places = [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    mean = torch.zeros_like(gradient)
    for values, places in zip(all_values, all_places, strict=True):
        mean[places] += values / n
    return done(mean)
