"""Right answers to the exercises of lab 08 in other styles than the solution's."""

import torch
import torch.distributed as dist


def put_back(flat, group):
    pieces = flat.split([weight.numel() for weight in group])
    for weight, piece in zip(group, pieces, strict=True):
        weight.grad = piece.view_as(weight)


def done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


# %% average_gradients: one-call
def average_gradients(model, rows):
    weights = [one for one in model.parameters() if one.requires_grad]
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    count = grads[0].new_tensor([float(rows)])
    flat = torch.cat([*(rows * one.flatten() for one in grads), count])
    dist.all_reduce(flat)
    pieces = flat.split([w.numel() for w in weights] + [1])
    for weight, piece in zip(weights, pieces, strict=False):
        weight.grad = (piece / flat[-1]).view_as(weight)


# %% average_gradients: stays-none-where-nobody
def average_gradients(model, rows):
    weights = [one for one in model.parameters() if one.requires_grad]
    used = torch.tensor([float(w.grad is not None) for w in weights] + [float(rows)])
    dist.all_reduce(used)
    for weight, ranks in zip(weights, used.tolist(), strict=False):
        if ranks:
            total = torch.zeros_like(weight) if weight.grad is None else weight.grad * rows
            dist.all_reduce(total)
            weight.grad = total / used[-1].item()


# %% average_gradients: gathered
def average_gradients(model, rows):
    n, mine = dist.get_world_size(), torch.tensor([rows])
    counts = [torch.zeros_like(mine) for _ in range(n)]
    dist.all_gather(counts, mine)
    for weight in filter(lambda one: one.requires_grad, model.parameters()):
        own = torch.zeros_like(weight) if weight.grad is None else weight.grad
        every = [torch.empty_like(own) for _ in range(n)]
        dist.all_gather(every, own)
        total = sum(int(k) * one for k, one in zip(counts, every, strict=True))
        weight.grad = total / int(sum(counts))


# %% average_gradients: every-name
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for _, weight in model.named_parameters(remove_duplicate=False):
        if weight.requires_grad:  # averaged twice, a mean stays what it is
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad *= rows / total.item()
            dist.all_reduce(weight.grad)


# %% average_gradients: names
def average_gradients(model, rows):
    total = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(total)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if not weight.requires_grad:
                continue
            grad = weight.grad if weight.grad is not None else weight * 0
            work = dist.all_reduce(grad.mul_(rows), async_op=True)
            work.wait()
            weight.grad = grad.div_(total.item())


# %% average_gradients: objects
def average_gradients(model, rows):
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, (rows, [w.grad for w in model.parameters()]))
    total = sum(count for count, _ in every)
    for at, weight in enumerate(model.parameters()):
        parts = [count * grads[at] for count, grads in every if grads[at] is not None]
        if parts:
            weight.grad = sum(parts) / total


# %% average_gradients: reduced-and-sent
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for weight in model.parameters():
        if weight.requires_grad:
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            grad = grad * (rows / total.item())
            dist.reduce(grad, dst=0)
            dist.broadcast(grad, src=0)
            weight.grad = grad


# %% buckets: taken-from-the-end
def buckets(sizes, cap, first_cap):
    left, found = list(enumerate(sizes)), []
    while left:
        limit, bucket, size = cap if found else first_cap, [], 0
        while left and size < limit:
            number, more = left.pop()
            bucket.append(number)
            size += more
        found.append(bucket)
    return found


# %% buckets: recursive
def buckets(sizes, cap, first_cap):
    def fill(last, limit):
        if last < 0:
            return []
        size, number = 0, last
        while number >= 0 and size < limit:
            size += sizes[number]
            number -= 1
        return [list(range(last, number, -1)), *fill(number, cap)]

    return fill(len(sizes) - 1, first_cap)


# %% buckets: new-when-full
def buckets(sizes, cap, first_cap):
    found, full = [], True
    for number in range(len(sizes) - 1, -1, -1):
        if full:
            found.append([])
        found[-1].append(number)
        limit = first_cap if len(found) == 1 else cap
        full = sum(sizes[one] for one in found[-1]) >= limit
    return found


# %% buckets: limits-in-turn
def buckets(sizes, cap, first_cap):
    from itertools import chain, repeat

    limits, found = chain([first_cap], repeat(cap)), []
    numbers = iter(range(len(sizes))[::-1])
    for limit in limits:
        bucket = []
        for number in numbers:
            bucket.append(number)
            if sum(sizes[one] for one in bucket) >= limit:
                break
        if not bucket:
            return found
        found.append(bucket)


# %% buckets: tuples
def buckets(sizes, cap, first_cap):
    found: tuple = ()
    bucket: tuple = ()
    for number in sorted(range(len(sizes)), reverse=True):
        bucket += (number,)
        if sum(map(sizes.__getitem__, bucket)) >= (cap, first_cap)[not found]:
            found, bucket = (*found, bucket), ()
    return [list(one) for one in (*found, bucket) if one]


# %% buckets: deque
def buckets(sizes, cap, first_cap):
    from collections import deque

    waiting, found, size = deque(), [], 0
    for at, more in enumerate(reversed(sizes), 1):
        waiting.append(len(sizes) - at)
        size += more
        if size >= (first_cap if found == [] else cap) or at == len(sizes):
            found.append([waiting.popleft() for _ in range(len(waiting))])
            size = 0
    return found


# %% replicate: class
class Replicated:
    def __init__(self, groups):
        self.groups, self.ready, self.started = groups, set(), []
        for group in groups:
            for weight in group:
                weight.register_post_accumulate_grad_hook(self.note)

    def note(self, weight):
        self.ready.add(weight)
        self.start()

    def start(self):
        while len(self.started) < len(self.groups):
            group = self.groups[len(self.started)]
            if not self.ready.issuperset(group):
                return
            grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in group]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def __call__(self):
        self.ready.update(weight for group in self.groups for weight in group)
        self.start()
        for group, (flat, work) in zip(self.groups, self.started, strict=True):
            work.wait()
            put_back(flat / dist.get_world_size(), group)
        self.ready, self.started = set(), []


def replicate(model, groups):
    return Replicated(groups)


# %% replicate: average-operation
def replicate(model, groups):
    left, started = [set(map(id, group)) for group in groups], []
    n = dist.get_world_size()

    def send():
        for group in groups[len(started) :]:
            if left[len(started)]:
                break
            grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in group]
            flat = torch.cat([one.flatten() for one in grads]) / n
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def hook(weight):
        for one in left:
            one.discard(id(weight))
        send()

    def finish():
        for one in left:
            one.clear()
        send()
        for group, (flat, work) in zip(groups, started, strict=True):
            work.wait()
            put_back(flat, group)
        started.clear()
        left[:] = [set(map(id, group)) for group in groups]

    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: flat-buffers
def replicate(model, groups):
    flats = [torch.cat([torch.zeros_like(w).flatten() for w in group]) for group in groups]
    views = {}
    for at, (group, flat) in enumerate(zip(groups, flats, strict=True)):
        for weight, view in zip(group, flat.split([w.numel() for w in group]), strict=True):
            views[weight] = at, view
    seen, works = set(), []

    def send():
        while len(works) < len(groups) and seen.issuperset(groups[len(works)]):
            works.append(dist.all_reduce(flats[len(works)], async_op=True))

    def hook(weight):
        views[weight][1].copy_(weight.grad.flatten())
        seen.add(weight)
        send()

    def finish():
        for weight in views:
            if weight not in seen:
                views[weight][1].zero_()
                seen.add(weight)
        send()
        for at, work in enumerate(works):
            work.wait()
            put_back(flats[at] / dist.get_world_size(), groups[at])
        works.clear()
        seen.clear()

    for weight in views:
        weight.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: copies-into-gradients
def replicate(model, groups):
    n, at, waiting, works = dist.get_world_size(), 0, set(), []

    def launch(force):
        nonlocal at
        while at < len(groups) and (force or all(id(w) in waiting for w in groups[at])):
            for weight in groups[at]:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
            flat = torch._utils._flatten_dense_tensors([w.grad for w in groups[at]])
            works.append((groups[at], flat, dist.all_reduce(flat, async_op=True)))
            at += 1

    def hook(weight):
        waiting.add(id(weight))
        launch(False)

    def finish():
        nonlocal at
        launch(True)
        for group, flat, work in works:
            work.wait()
            flat.mul_(1 / n)
            grads = [w.grad for w in group]
            every = torch._utils._unflatten_dense_tensors(flat, grads)
            for grad, new in zip(grads, every, strict=True):
                grad.copy_(new)
        works.clear()
        waiting.clear()
        at = 0

    [w.register_post_accumulate_grad_hook(hook) for group in groups for w in group]
    return finish


# %% replicate: generator
def replicate(model, groups):
    counts = {}

    def sender():
        started = []
        for group in groups:
            while not all(counts.get(id(weight)) for weight in group):
                yield None
            parts = [(torch.zeros_like(w) if w.grad is None else w.grad).view(-1) for w in group]
            flat = torch.cat(parts)
            started.append((group, flat, dist.all_reduce(flat, async_op=True)))
        yield started

    now = [sender(), None]

    def go_on(weight):
        counts[id(weight)] = True
        now[1] = next(now[0])

    def finish():
        for group in groups:
            for weight in group:
                counts[id(weight)] = True
        started = now[1] or next(now[0])
        for group, flat, work in started:
            work.wait()
            put_back(flat / dist.get_world_size(), group)
        counts.clear()
        now[:] = [sender(), None]

    for group in groups:
        for weight in group:
            weight.register_post_accumulate_grad_hook(go_on)
    return finish


# %% bytes_per_rank: table
def bytes_per_rank(parameters, ranks, stage):
    whole, divided = ((16, 0), (4, 12), (2, 14), (0, 16))[stage]
    return parameters * whole + parameters * divided // ranks


# %% bytes_per_rank: conditions
def bytes_per_rank(parameters, ranks, stage):
    optimizer = 12 * parameters / (ranks if stage >= 1 else 1)
    gradients = 2 * parameters / (ranks if stage >= 2 else 1)
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + optimizer


# %% bytes_per_rank: whole-number
def bytes_per_rank(parameters, ranks, stage):
    share = parameters // ranks
    sizes = [parameters] * (3 - stage) + [share] * stage
    return sum(each * size for each, size in zip((2, 2, 12), sizes, strict=True))


# %% bytes_per_rank: fractions
def bytes_per_rank(parameters, ranks, stage):
    from fractions import Fraction

    part = {0: Fraction(1), 1: Fraction(1, ranks)}
    weights = 2 * part[stage > 2] + 2 * part[stage > 1] + 12 * part[stage > 0]
    return int(parameters * weights)


# %% bytes_per_rank: match
def bytes_per_rank(parameters, ranks, stage):
    match stage:
        case 0:
            return 16 * parameters
        case 1:
            return (4 + 12 / ranks) * parameters
        case 2:
            return (2 + 14 / ranks) * parameters
        case _:
            return 16 / ranks * parameters


# %% bytes_per_rank: saved
def bytes_per_rank(parameters, ranks, stage):
    without = (0, 12, 14, 16)[stage] * (1 - 1 / ranks)
    return (16 - without) * parameters


# %% sharded_linear: into-tensors
class IntoTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return torch.nn.functional.linear(x, IntoTensors.whole(shard))

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        grad_x = grad @ IntoTensors.whole(shard)
        part = torch.empty_like(shard)
        dist.reduce_scatter_tensor(part, grad.T @ x)
        return grad_x, part.div_(dist.get_world_size())

    @staticmethod
    def whole(shard):
        n = dist.get_world_size()
        made = shard.new_empty(n * shard.shape[0], shard.shape[1])
        dist.all_gather_into_tensor(made, shard)
        return made


def sharded_linear(x, shard):
    return IntoTensors.apply(x, shard)


# %% sharded_linear: keeps-on-ctx
class OnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.x, ctx.shard = x.detach(), shard.detach()
        whole = gather(shard)
        return torch.einsum("bi,oi->bo", x, whole)

    @staticmethod
    def backward(ctx, grad):
        n = dist.get_world_size()
        of_whole = torch.einsum("bo,bi->oi", grad, ctx.x) / n
        part = torch.empty_like(ctx.shard)
        dist.reduce_scatter(part, [one.contiguous() for one in of_whole.chunk(n)])
        return torch.einsum("bo,oi->bi", grad, gather(ctx.shard)), part


def gather(shard):
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard.detach().contiguous())
    return torch.cat(pieces)


def sharded_linear(x, shard):
    return OnContext.apply(x, shard)


# %% sharded_linear: checkpoint
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard):
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, shard)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, grad):
        n = dist.get_world_size()
        part = torch.empty_like(grad.chunk(n)[0])
        dist.reduce_scatter(part, list(grad.contiguous().chunk(n)))
        return part / n


def sharded_linear(x, shard):
    from torch.utils.checkpoint import checkpoint

    def layer(x, shard):
        return x @ Gather.apply(shard).T

    return checkpoint(layer, x, shard, use_reentrant=False)


# %% sharded_linear: handles
class Handles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, shard, async_op=True).wait()
        return torch.cat([x @ piece.T for piece in pieces], dim=1)

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part, pieces = torch.empty_like(shard), [torch.empty_like(shard) for _ in range(n)]
        coming = dist.all_gather(pieces, shard, async_op=True)
        mine = [one.T @ x for one in grad.chunk(n, dim=1)]
        going = dist.reduce_scatter(part, mine, async_op=True)
        coming.wait()
        grad_x = sum(g @ w for g, w in zip(grad.chunk(n, dim=1), pieces, strict=True))
        going.wait()
        return grad_x, part / n


def sharded_linear(x, shard):
    return Handles.apply(x, shard)


# %% top_k: index-add
def top_k(state, bucket):
    gradient, n = bucket.buffer().detach().clone(), dist.get_world_size()
    residual = state["residuals"].pop(bucket.index(), torch.zeros(0))
    if residual.shape == gradient.shape:
        gradient.add_(residual)
    count = max(int(state["share"] * gradient.numel()), 1)
    _, places = torch.topk(gradient.abs(), count)
    values = gradient.gather(0, places)
    state["residuals"][bucket.index()] = gradient.scatter(0, places, 0.0)
    all_values, all_places = (one.new_empty(n * count) for one in (values, places))
    dist.all_gather(list(all_values.chunk(n)), values)
    dist.all_gather(list(all_places.chunk(n)), places)
    return done(torch.zeros_like(gradient).index_add_(0, all_places, all_values) / n)


# %% top_k: sorted
def top_k(state, bucket):
    n = dist.get_world_size()
    key = bucket.index(), bucket.buffer().numel()
    gradient = bucket.buffer() + state["residuals"].get(key, 0.0)
    count = max(1, int(state["share"] * len(gradient)))
    places = gradient.abs().argsort(descending=True)[:count]
    mask = torch.ones_like(gradient)
    mask[places] = 0
    state["residuals"][key] = gradient * mask
    every = [(torch.empty(count), torch.empty(count, dtype=torch.int64)) for _ in range(n)]
    dist.all_gather([values for values, _ in every], gradient[places])
    dist.all_gather([where for _, where in every], places)
    mean = torch.zeros_like(gradient)
    for values, where in every:
        mean.index_put_((where,), values / n, accumulate=True)
    return done(mean)


# %% top_k: int32-places
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and residual.numel() == gradient.numel():
        gradient += residual
    count = max(1, int(state["share"] * gradient.numel()))
    places = gradient.abs().topk(count, sorted=False).indices
    packed = torch.cat([gradient[places].view(torch.int32), places.int()])
    every = [torch.empty_like(packed) for _ in range(n)]
    dist.all_gather(every, packed)
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    mean = torch.zeros_like(gradient)
    for one in every:
        mean[one[count:].long()] += one[:count].view(torch.float32) / n
    return done(mean)


# %% top_k: async
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    count = max(1, int(state["share"] * len(gradient)))
    places = gradient.abs().topk(count).indices
    values = gradient[places]
    state["residuals"][bucket.index()] = gradient.index_fill(0, places, 0.0)
    all_values = [torch.empty_like(values) for _ in range(n)]
    all_places = [torch.empty_like(places) for _ in range(n)]
    works = [dist.all_gather(all_values, values, async_op=True)]
    works.append(dist.all_gather(all_places, places, async_op=True))
    for work in works:
        work.wait()
    mean = torch.zeros_like(gradient)
    for one, where in zip(all_values, all_places, strict=True):
        mean.scatter_add_(0, where, one / n)
    return done(mean)


# %% top_k: threshold
def top_k(state, bucket):
    keep = state.setdefault("mine", {})
    gradient, n = bucket.buffer() * 1, dist.get_world_size()
    old = keep.get(bucket.index())
    if old is not None and old.size() == gradient.size():
        gradient = gradient + old
    count = max(1, int(state["share"] * len(gradient)))
    threshold = gradient.abs().kthvalue(len(gradient) - count + 1).values
    places = (gradient.abs() >= threshold).nonzero()[:, 0]
    values = gradient[places].contiguous()
    keep[bucket.index()] = torch.where(gradient.abs() >= threshold, 0.0, gradient)
    some = [torch.empty_like(values) for _ in range(n)]
    there = [torch.empty_like(places) for _ in range(n)]
    dist.all_gather(there, places)
    dist.all_gather(some, values)
    total = torch.zeros_like(gradient)
    for one, where in zip(some, there, strict=True):
        total[where] += one
    return done(total / n)
