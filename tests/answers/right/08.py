"""Right answers to the exercises of lab 08 besides those of solutions/source; see judge.py."""

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


# %% average_gradients: sums-then-divides
@torch.no_grad()
def average_gradients(model, rows):
    n = torch.tensor(rows)
    dist.all_reduce(n)
    for p in model.parameters():
        if p.requires_grad:
            g = p.new_zeros(p.shape) if p.grad is None else p.grad * rows
            dist.all_reduce(g, op=dist.ReduceOp.SUM)
            p.grad = g / n


# %% buckets: pops
def buckets(sizes, cap, first_cap):
    todo, out = list(range(len(sizes))), []
    while todo:
        limit = first_cap if not out else cap
        out.append([todo.pop()])
        while todo and sum(sizes[i] for i in out[-1]) < limit:
            out[-1].append(todo.pop())
    return out


# %% replicate: next-bucket
def replicate(model, groups):
    n = dist.get_world_size()
    ready, handles = set(), []

    def go(force=False):
        while len(handles) < len(groups):
            group = groups[len(handles)]
            if not force and any(w not in ready for w in group):
                break
            flat = gradients_of(group)
            flat /= n
            handles.append((flat, dist.all_reduce(flat, async_op=True)))

    def hook(w):
        ready.add(w)
        go()

    def finish():
        go(force=True)
        for (flat, handle), group in zip(handles, groups):
            handle.wait()
            put_back(flat, group)
        handles.clear()
        ready.clear()

    for w in model.parameters():
        w.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: copies-back-into-grad
def replicate(model, groups):
    todo = [set(group) for group in groups]
    started = []

    def start_all():
        while len(started) < len(groups) and not todo[len(started)]:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def make_hook(i):
        def hook(w):
            todo[i].discard(w)
            start_all()

        return hook

    def finish():
        for one in todo:
            one.clear()
        start_all()
        for i, (flat, work) in enumerate(started):
            work.wait()
            at = 0
            for w in groups[i]:
                new = flat[at : at + w.numel()].reshape(w.shape) / dist.get_world_size()
                w.grad = new if w.grad is None else w.grad.copy_(new)
                at += w.numel()
            todo[i] = set(groups[i])
        started.clear()

    for i, group in enumerate(groups):
        for w in group:
            w.register_post_accumulate_grad_hook(make_hook(i))
    return finish


# %% bytes_per_rank: lists
def bytes_per_rank(parameters, ranks, stage):
    per = [12, 2, 2]
    return sum(b * parameters / (ranks if i < stage else 1) for i, b in enumerate(per))


# %% sharded_linear: gathers-after-the-scatter
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        y = x.mm(gathered(shard).t())
        ctx.save_for_backward(x, shard)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        grad_x = grad.mm(gathered(shard))
        out = shard.new_zeros(shard.shape)
        pieces = [p.clone() for p in grad.t().mm(x).split(shard.shape[0])]
        dist.reduce_scatter(out, pieces, op=dist.ReduceOp.SUM)
        return grad_x, out.div(dist.get_world_size())


def sharded_linear(x, shard):
    return Late.apply(x, shard)


# %% sharded_linear: divides-first
class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x.clone(), shard)
        return torch.nn.functional.linear(x, gathered(shard))

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        whole = gathered(shard)
        of_whole = torch.matmul(grad.transpose(0, 1), x) / n
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(of_whole.split(len(shard))))
        return torch.matmul(grad, whole), mine


def sharded_linear(x, shard):
    return First.apply(x, shard)


# %% top_k: one-tensor
def top_k(state, bucket):
    n, mine = dist.get_world_size(), state["residuals"]
    g = bucket.buffer().clone()
    old = mine.get(bucket.index())
    if old is not None and old.shape == g.shape:
        g = g + old
    k = max(1, int(state["share"] * g.numel()))
    _, places = g.abs().sort(descending=True)
    places = places[:k]
    sparse = torch.zeros_like(g)
    sparse[places] = g[places]
    mine[bucket.index()] = g - sparse
    values = [torch.empty(k) for _ in range(n)]
    where = [torch.empty(k, dtype=torch.long) for _ in range(n)]
    dist.all_gather(values, g[places])
    dist.all_gather(where, places)
    out = torch.zeros_like(g).index_add(0, torch.cat(where), torch.cat(values))
    return done(out / n)


# %% average_gradients: one-flat-sum-in-doubles
def average_gradients(model, rows):
    weights = [p for p in model.parameters() if p.requires_grad]
    count = torch.tensor([rows], dtype=torch.float64)
    if rows:
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() * rows
            for p in weights
        ]
    else:
        parts = [torch.zeros(p.numel(), dtype=torch.float64) for p in weights]
    flat = torch.cat([count, *parts])
    dist.all_reduce(flat)
    flat /= flat[0].clone()
    at = 1
    for p in weights:
        p.grad = flat[at : at + p.numel()].view_as(p).to(p.dtype)
        at += p.numel()


# %% average_gradients: gathers-and-adds
def average_gradients(model, rows):
    n = dist.get_world_size()
    every = [None] * n
    mine = [None if p.grad is None else p.grad * rows for p in model.parameters()]
    dist.all_gather_object(every, (rows, mine))
    total = sum(r for r, _ in every)
    for i, p in enumerate(model.parameters()):
        found = [grads[i] for r, grads in every if r and grads[i] is not None]
        if p.requires_grad and found:
            p.grad = torch.stack(found).sum(0) / total
        elif p.requires_grad:
            p.grad = None


# %% average_gradients: to-rank-0-and-back
def average_gradients(model, rows):
    share = torch.tensor(float(rows))
    dist.all_reduce(share)
    share = rows / share.item()
    for _, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p.data)
        if rows == 0:
            p.grad.zero_()
        p.grad.mul_(share)
        dist.reduce(p.grad, dst=0)
        dist.broadcast(p.grad, src=0)


# %% buckets: recursive
def buckets(sizes, cap, first_cap):
    def rest(end, limit):
        if end == 0:
            return []
        total, at = 0, end
        while at > 0 and total < limit:
            at -= 1
            total += sizes[at]
            if total >= limit:
                break
        return [list(range(end - 1, at - 1, -1))] + rest(at, cap)

    return rest(len(sizes), first_cap)


# %% buckets: generator
def buckets(sizes, cap, first_cap):
    def each():
        limit, room, bucket = first_cap, 0, []
        for number, size in sorted(enumerate(sizes), reverse=True):
            bucket.append(number)
            room += size
            if room >= limit:
                yield bucket
                limit, room, bucket = cap, 0, []
        if bucket:
            yield bucket

    return list(each())


# %% buckets: counts-down
def buckets(sizes, cap, first_cap):
    out, i = [], len(sizes) - 1
    while i >= 0:
        bucket, left = [], cap if out else first_cap
        while i >= 0:
            bucket += [i]
            left -= sizes[i]
            i -= 1
            if left <= 0:
                break
        out += [bucket]
    return out


# %% replicate: as-given-with-a-sum-of-counters
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
        for at in range(len(groups)):
            missing[at] = 0
        start()
        for at, (flat, handle) in enumerate(started):
            handle.wait()
            flat.div_(dist.get_world_size())
            put_back(flat, groups[at])
        del started[:]
        missing[:] = map(len, groups)

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: class-with-average-at-the-end
class Replica:
    def __init__(self, groups):
        self.groups, self.n = groups, dist.get_world_size()
        self.begin()
        for at, group in enumerate(groups):
            for w in group:
                w.register_post_accumulate_grad_hook(lambda w, at=at: self.ready(w, at))

    def begin(self):
        self.open = [{id(w) for w in group} for group in self.groups]
        self.flats, self.works = [], []

    def ready(self, w, at):
        self.open[at] -= {id(w)}
        self.start()

    def start(self):
        for at in range(len(self.flats), len(self.groups)):
            if self.open[at]:
                return
            self.flats.append(gradients_of(self.groups[at]))
            self.works.append(dist.all_reduce(self.flats[-1], async_op=True))

    def finish(self):
        self.open = [set() for _ in self.groups]
        self.start()
        for work in self.works:
            work.wait()
        for flat, group in zip(self.flats, self.groups):
            put_back(flat.mul(1 / self.n), group)
        self.begin()


def replicate(model, groups):
    return Replica(groups).finish


# %% bytes_per_rank: table
def bytes_per_rank(parameters, ranks, stage):
    part = parameters // ranks
    return {
        0: 16 * parameters,
        1: 4 * parameters + 12 * part,
        2: 2 * parameters + 14 * part,
        3: 16 * part,
    }[stage]


# %% bytes_per_rank: running-total
def bytes_per_rank(parameters, ranks, stage):
    weights = gradients = 2 * parameters
    master, moments = 4 * parameters, 2 * 4 * parameters
    if stage >= 1:
        master, moments = master / ranks, moments / ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return int(weights + gradients + master + moments)


# %% bytes_per_rank: numbers-of-each
def bytes_per_rank(parameters, ranks, stage):
    cut = [stage > 2, stage > 1, stage > 0, stage > 0, stage > 0]
    numbers = [parameters / ranks if c else float(parameters) for c in cut]
    return sum(n * b for n, b in zip(numbers, [2, 2, 4, 4, 4]))


# %% sharded_linear: into-tensors
class IntoTensors(torch.autograd.Function):
    @staticmethod
    def whole(shard):
        out = shard.new_empty(dist.get_world_size() * shard.shape[0], shard.shape[1])
        dist.all_gather_into_tensor(out, shard.contiguous())
        return out

    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return torch.einsum("bi,oi->bo", x, IntoTensors.whole(shard))

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        of_whole = torch.einsum("bo,bi->oi", g, x).contiguous()
        mine = torch.zeros_like(shard)
        dist.reduce_scatter_tensor(mine, of_whole)
        return torch.einsum("bo,oi->bi", g, IntoTensors.whole(shard)), mine / dist.get_world_size()


def sharded_linear(x, shard):
    return IntoTensors.apply(x, shard)


# %% sharded_linear: two-functions
class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.x, ctx.shard = x.detach(), shard.detach()
        whole = gathered(ctx.shard)
        return ctx.x @ whole.T

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        n = dist.get_world_size()
        pieces = [one.T @ ctx.x / n for one in g.chunk(n, dim=1)]
        mine = torch.empty_like(pieces[0])
        work = dist.reduce_scatter(mine, pieces, async_op=True)
        gx = g @ gathered(ctx.shard)
        work.wait()
        return gx, mine


def sharded_linear(x, shard):
    return GatherRows.apply(x, shard)


# %% sharded_linear: skips-what-nobody-needs
class AsNeeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, shard)
        return torch.cat([x @ piece.T for piece in pieces], dim=1)

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n, rows = dist.get_world_size(), shard.shape[0]
        pieces = [torch.empty_like(shard) for _ in range(n)]
        dist.all_gather(pieces, shard)
        columns = g.split(rows, dim=1)
        gx = sum(c @ piece for c, piece in zip(columns, pieces))
        for piece, c in zip(pieces, columns):
            torch.mm(c.T, x, out=piece)
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, pieces)
        return gx, mine.div_(n)


def sharded_linear(x, shard):
    return AsNeeded.apply(x, shard)


# %% top_k: dense-loop
def top_k(state, bucket):
    n, left = dist.get_world_size(), state["residuals"]
    g = bucket.buffer().detach().clone()
    key = ("residual", bucket.index())
    if key in left and left[key].numel() == g.numel():
        g.add_(left[key])
    k = max(int(state["share"] * g.numel()), 1)
    places = torch.topk(g.abs(), k, sorted=False).indices.to(torch.int32)
    values = g[places.long()].contiguous()
    vs, ps = g.new_empty(n, k), places.new_empty(n, k)
    dist.all_gather(list(vs), values)
    dist.all_gather(list(ps), places)
    g[places.long()] = 0
    left[key] = g
    out = torch.zeros_like(g)
    for v, p in zip(vs, ps):
        out.scatter_add_(0, p.long(), v)
    return done(out.div_(n))


# %% top_k: by-length
def top_k(state, bucket):
    residuals = state["residuals"]
    buffer = bucket.buffer()
    key = bucket.index(), len(buffer)
    total = buffer + residuals.get(key, torch.zeros_like(buffer))
    k = max(1, int(state["share"] * len(total)))
    order = torch.argsort(total.abs(), descending=True)[:k]
    mask = torch.zeros_like(total, dtype=torch.bool)
    mask[order] = True
    residuals[key] = torch.where(mask, 0, total)
    packed = torch.stack([order.to(total.dtype), total[order]])
    if len(total) >= 2**24 or total.dtype != torch.float32:
        packed = packed.double()
    every = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
    dist.all_gather(every, packed)
    out = torch.zeros_like(buffer)
    for where, value in every:
        out.index_put_((where.long(),), value.to(out.dtype), accumulate=True)
    return done(out / dist.get_world_size())


# %% top_k: bincount
def top_k(state, bucket):
    n = dist.get_world_size()
    old = state["residuals"].pop(bucket.index(), None)
    g = (
        bucket.buffer().clone()
        if old is None or len(old) != len(bucket.buffer())
        else bucket.buffer() + old
    )
    k = int(state["share"] * len(g)) or 1
    where = g.abs().topk(k)[1]
    what = g.index_select(0, where)
    state["residuals"][bucket.index()] = g.index_fill(0, where, 0.0)
    all_where = torch.empty(n * k, dtype=where.dtype)
    all_what = torch.empty(n * k, dtype=g.dtype)
    dist.all_gather_into_tensor(all_where, where)
    dist.all_gather_into_tensor(all_what, what)
    return done(torch.bincount(all_where, all_what, minlength=len(g)).to(g.dtype) / n)


# %% average_gradients: one-call-of-a-flat-row
def average_gradients(model, rows):
    weights = [p for p in model.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    flat = torch.cat([part.reshape(-1) * rows for part in parts] + [torch.tensor([float(rows)])])
    dist.all_reduce(flat)
    at = 0
    for p in weights:
        p.grad = (flat[at : at + p.numel()] / flat[-1]).reshape(p.shape)
        at += p.numel()


# %% average_gradients: broadcasts-from-each
def average_gradients(model, rows):
    everywhere = [None] * dist.get_world_size()
    mine = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    dist.all_gather_object(everywhere, (rows, mine))
    total = sum(n for n, _ in everywhere)
    for i, p in enumerate(model.parameters()):
        found = [grads[i] * (n / total) for n, grads in everywhere if grads[i] is not None]
        if found:
            p.grad = torch.stack(found).sum(0)


# %% buckets: while-true-with-slices
def buckets(sizes, cap, first_cap):
    order = list(range(len(sizes)))[::-1]
    found = []
    while order:
        limit = cap if found else first_cap
        k = 1
        while k < len(order) and sum(sizes[i] for i in order[:k]) < limit:
            k += 1
        found.append(order[:k])
        order = order[k:]
    return found


# %% buckets: accumulates
def buckets(sizes, cap, first_cap):
    import itertools

    result = []
    numbers = [*reversed(range(len(sizes)))]
    while numbers:
        sums = itertools.accumulate(sizes[n] for n in numbers)
        limit = first_cap if result == [] else cap
        end = next((i + 1 for i, s in enumerate(sums) if s >= limit), len(numbers))
        result += [numbers[:end]]
        del numbers[:end]
    return result


# %% bytes_per_rank: matches
def bytes_per_rank(parameters, ranks, stage):
    match stage:
        case 0:
            whole, parts = 16, 0
        case 1:
            whole, parts = 4, 12
        case 2:
            whole, parts = 2, 14
        case 3:
            whole, parts = 0, 16
        case _:
            raise ValueError(stage)
    return whole * parameters + parts * parameters // ranks


# %% bytes_per_rank: by-tensors
def bytes_per_rank(parameters, ranks, stage):
    share = parameters // ranks
    counts = [
        (torch.bfloat16, share if stage == 3 else parameters),
        (torch.bfloat16, share if stage > 1 else parameters),
        *[(torch.float32, share if stage else parameters)] * 3,
    ]
    return sum(torch.empty(0, dtype=dtype).element_size() * n for dtype, n in counts)


# %% replicate: queue-of-buckets
def replicate(model, groups):
    from collections import deque

    left = deque()
    seen = set()
    flying = []

    def refill():
        left.clear()
        left.extend(groups)
        seen.clear()
        flying.clear()

    def send():
        group = left.popleft()
        flat = gradients_of(group)
        flying.append((group, flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        seen.add(id(weight))
        while left and all(id(w) in seen for w in left[0]):
            send()

    def finish():
        while left:
            send()
        for group, flat, work in flying:
            work.wait()
            put_back(flat / dist.get_world_size(), group)
        refill()

    refill()
    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: hooks-that-know-their-bucket
def replicate(model, groups):
    n = dist.get_world_size()
    state = {"next": 0, "left": [len(g) for g in groups], "works": {}}

    def start_next():
        at = state["next"]
        flat = gradients_of(groups[at])
        state["works"][at] = flat, dist.all_reduce(flat, async_op=True)
        state["next"] = at + 1

    def hook_of(at):
        def hook(_):
            state["left"][at] -= 1
            while state["next"] < len(groups) and state["left"][state["next"]] == 0:
                start_next()

        return hook

    for at, group in enumerate(groups):
        hook = hook_of(at)
        for weight in group:
            weight.register_post_accumulate_grad_hook(hook)

    def finish():
        while state["next"] < len(groups):
            start_next()
        for at, (flat, work) in sorted(state["works"].items()):
            work.wait()
            flat.mul_(1 / n)
            put_back(flat, groups[at])
        state.update(next=0, left=[len(g) for g in groups], works={})

    return finish


# %% sharded_linear: handles
class WithHandles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return torch.nn.functional.linear(x, gathered(shard))

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        sent = [piece.contiguous() for piece in (grad.t().mm(x) / n).tensor_split(n)]
        part = torch.empty_like(shard)
        work = dist.reduce_scatter(part, sent, async_op=True)
        of_x = grad.mm(gathered(shard))
        work.wait()
        return of_x, part


def sharded_linear(x, shard):
    return WithHandles.apply(x, shard)


# %% top_k: masks-and-packs
def top_k(state, bucket):
    world = dist.get_world_size()
    whole = bucket.buffer().clone()
    left = state["residuals"].setdefault(bucket.index(), torch.zeros(0))
    if left.numel() == whole.numel():
        whole += left
    count = int(state["share"] * whole.numel()) or 1
    kept = whole.abs().topk(count)[1]
    numbers = whole[kept]
    state["residuals"][bucket.index()] = whole.index_copy(0, kept, torch.zeros_like(numbers))
    all_numbers = torch.empty(world * count)
    all_places = torch.empty(world * count, dtype=torch.int64)
    dist.all_gather_into_tensor(all_numbers, numbers)
    dist.all_gather_into_tensor(all_places, kept)
    result = torch.zeros_like(whole)
    result.put_(all_places, all_numbers, accumulate=True)
    return done(result / world)


# %% top_k: chained-handles
def top_k(state, bucket):
    n, kept = dist.get_world_size(), state["residuals"]
    grad = bucket.buffer() * 1.0
    key = f"{bucket.index()}/{grad.numel()}"
    grad = grad + kept[key] if key in kept else grad
    k = max(1, int(len(grad) * state["share"]))
    where = torch.sort(grad.abs(), descending=True, stable=True).indices[:k].int()
    what = grad[where.long()]
    wheres = [torch.empty_like(where) for _ in range(n)]
    whats = [torch.empty_like(what) for _ in range(n)]
    works = [
        dist.all_gather(wheres, where, async_op=True),
        dist.all_gather(whats, what, async_op=True),
    ]
    rest = grad.clone()
    rest[where.long()] = 0
    kept[key] = rest
    for work in works:
        work.wait()
    mean = torch.zeros_like(grad)
    for i, v in zip(wheres, whats):
        mean[i.long()] += v / n
    return done(mean)


# %% average_gradients: by-parameter-list-and-in-place
def average_gradients(model, rows):
    trained = [p for p in model.parameters() if p.requires_grad]
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, rows)
    for p in trained:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad.mul_(rows).div_(sum(counts))
    works = [dist.all_reduce(p.grad, async_op=True) for p in trained]
    for work in works:
        work.wait()


# %% average_gradients: rows-ride-along-with-each-gradient
def average_gradients(model, rows):
    with torch.no_grad():
        for p in model.parameters():
            if not p.requires_grad:
                continue
            own = torch.zeros_like(p) if p.grad is None else p.grad
            message = torch.cat([rows * own.flatten(), own.new_full((1,), rows)])
            dist.all_reduce(message)
            p.grad = (message[:-1] / message[-1]).reshape(p.shape)


# %% buckets: in-a-while-with-an-index
def buckets(sizes, cap, first_cap):
    i, result = len(sizes) - 1, []
    limit = first_cap
    while i >= 0:
        current, weight = [], 0
        while i >= 0 and weight < limit:
            current += [i]
            weight += sizes[i]
            i -= 1
        result.append(current)
        limit = cap
    return result


# %% buckets: groups-by-a-running-number
def buckets(sizes, cap, first_cap):
    import itertools

    state = {"bucket": 0, "bytes": 0}

    def which(i):
        own = state["bucket"]
        state["bytes"] += sizes[i]
        if state["bytes"] >= (cap if own else first_cap):
            state.update(bucket=own + 1, bytes=0)
        return own

    backwards = range(len(sizes) - 1, -1, -1)
    return [list(some) for _, some in itertools.groupby(backwards, which)]


# %% replicate: sets-of-what-is-missing
def replicate(model, groups):
    waiting_for = [set(group) for group in groups]
    works = []

    def start():
        for at in range(len(works), len(groups)):
            if waiting_for[at]:
                return
            flat = gradients_of(groups[at])
            works.append((dist.all_reduce(flat, async_op=True), flat))

    def ready(weight):
        for some in waiting_for:
            some.discard(weight)
        start()

    def finish():
        for some in waiting_for:
            some.clear()
        start()
        while works:
            work, flat = works.pop()
            work.wait()
            flat /= dist.get_world_size()
            put_back(flat, groups[len(works)])
        for some, group in zip(waiting_for, groups, strict=True):
            some.update(group)

    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: divides-before-it-sends
def replicate(model, groups):
    n = dist.get_world_size()
    done, sent = [0] * len(groups), []

    def start(everything=False):
        while len(sent) < len(groups):
            at = len(sent)
            if not everything and done[at] < len(groups[at]):
                break
            flat = gradients_of(groups[at]) / n
            sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        at = next(i for i, group in enumerate(groups) if any(w is weight for w in group))
        done[at] += 1
        start()

    def finish():
        nonlocal done
        start(True)
        for (flat, handle), group in zip(sent, groups, strict=True):
            handle.wait()
            put_back(flat, group)
        sent[:] = []
        done = [0] * len(groups)

    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% bytes_per_rank: shares-by-subtraction
def bytes_per_rank(parameters, ranks, stage):
    total = 16 * parameters
    divided = (0, 12, 14, 16)[stage] * parameters
    return total - divided + divided // ranks


# %% bytes_per_rank: dtypes
def bytes_per_rank(parameters, ranks, stage):
    low, full = torch.bfloat16.itemsize, torch.float32.itemsize
    kinds = [("weight", low, 3), ("gradient", low, 2), ("master", full, 1)]
    kinds += [("first moment", full, 1), ("second moment", full, 1)]
    return sum(
        size * (parameters / ranks if stage >= since else parameters) for _, size, since in kinds
    )


# %% sharded_linear: gathers-asynchronously-in-backward
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return torch.nn.functional.linear(x, gathered(shard))

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        gathering = dist.all_gather(pieces, shard, async_op=True)
        mean = grad.t().mm(x).div(dist.get_world_size())
        gathering.wait()
        to_x = torch.mm(grad, torch.cat(pieces, 0))
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(mean.split(shard.shape[0])))
        return to_x, mine


def sharded_linear(x, shard):
    return ShardedLinear.apply(x, shard)


# %% sharded_linear: average-of-pieces
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        whole = gathered(shard)
        ctx.save_for_backward(x, shard)
        ctx.rows = [shard.shape[0]] * dist.get_world_size()
        return torch.einsum("bi,oi->bo", x, whole)

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        pieces = [g.T @ x for g in grad.split(ctx.rows, dim=1)]
        out = torch.zeros_like(shard)
        dist.reduce_scatter(out, pieces, op=dist.ReduceOp.SUM)
        return grad @ gathered(shard), out * (1 / len(ctx.rows))


def sharded_linear(x, shard):
    return ShardedLinear.apply(x, shard)


# %% top_k: scatter-add-of-one-long-list
def top_k(state, bucket):
    n, flat = dist.get_world_size(), bucket.buffer()
    kept = state["residuals"].get(bucket.index(), None)
    total = flat + kept if kept is not None and kept.shape == flat.shape else flat.clone()
    k = max(int(state["share"] * total.numel()), 1)
    _, where = torch.topk(total.abs(), k, sorted=False)
    what = total.gather(0, where)
    state["residuals"][bucket.index()] = total.scatter(0, where, 0.0)
    wheres = [torch.empty_like(where) for _ in range(n)]
    whats = [torch.empty_like(what) for _ in range(n)]
    for handle in (
        dist.all_gather(wheres, where, async_op=True),
        dist.all_gather(whats, what, async_op=True),
    ):
        handle.wait()
    result = torch.zeros_like(flat).scatter_add_(0, torch.cat(wheres), torch.cat(whats))
    return done(result / n)


# %% top_k: residual-as-a-difference
def top_k(state, bucket):
    n = dist.get_world_size()
    g = bucket.buffer().detach().clone()
    old = state["residuals"].get((bucket.index(), g.numel()))
    if old is not None:
        g = g + old
    count = max(1, int(g.numel() * state["share"]))
    order = g.abs().argsort(descending=True)[:count]
    sent = torch.zeros_like(g)
    sent[order] = g[order]
    state["residuals"][bucket.index(), g.numel()] = g - sent
    values, places = g[order].contiguous(), order.contiguous()
    mean = torch.zeros_like(g)
    every_value = values.new_empty(n * count)
    every_place = places.new_empty(n * count)
    dist.all_gather_into_tensor(every_value, values)
    dist.all_gather_into_tensor(every_place, places)
    mean.index_put_((every_place,), every_value, accumulate=True)
    return done(mean.div_(n))


# %% average_gradients: the-tied-one-twice
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= rows / total.item()
            dist.all_reduce(p.grad)
