"""Wrong answers to the exercises of lab 08, each under the mistake that its check has to name."""

import torch
import torch.distributed as dist


def gradients_of(group):
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in group]
    return torch.cat([grad.flatten() for grad in grads])


def put_back(flat, group):
    pieces = flat.split([weight.numel() for weight in group])
    for weight, piece in zip(group, pieces, strict=True):
        weight.grad = piece.view_as(weight)


def done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def everybodys(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return every


def filled(model):
    """Its parameters that have a gradient, zeros where none was computed."""
    chosen = [one for one in model.parameters() if one.requires_grad]
    for one in chosen:
        if one.grad is None:
            one.grad = torch.zeros_like(one)
    return chosen


# %% average_gradients: not-weighted
def average_gradients(model, rows):
    for weight in filled(model):
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


# %% average_gradients: not-weighted
def average_gradients(model, rows):
    for weight in filled(model):
        dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)


# %% average_gradients: not-divided
def average_gradients(model, rows):
    for weight in filled(model):
        dist.all_reduce(weight.grad)


# %% average_gradients: not-divided-by-rows
def average_gradients(model, rows):
    for weight in filled(model):
        weight.grad *= rows
        dist.all_reduce(weight.grad)


# %% average_gradients: skips-none
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad *= rows / total.item()
            dist.all_reduce(weight.grad)


# %% average_gradients: divided-by-users
def average_gradients(model, rows):
    for weight in model.parameters():
        if weight.requires_grad:
            has = torch.tensor(float(rows if weight.grad is not None else 0))
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad *= rows
            dist.all_reduce(has)
            dist.all_reduce(weight.grad)
            if has.item():
                weight.grad /= has.item()


# %% average_gradients: frozen-filled
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for weight in model.parameters():
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        grad *= rows / total.item()
        dist.all_reduce(grad)
        weight.grad = grad


# %% average_gradients: first-rank-only
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for weight in filled(model):
        weight.grad *= rows / total.item()
        if dist.get_rank() == 0:
            dist.reduce(weight.grad, dst=0)
        else:
            sent = weight.grad.clone()
            dist.reduce(sent, dst=0)


# %% average_gradients: averages-weights
@torch.no_grad()
def average_gradients(model, rows):
    for weight in model.parameters():
        dist.all_reduce(weight)
        weight /= dist.get_world_size()


# %% average_gradients: averages-weights
def average_gradients(model, rows):
    total = torch.tensor([rows])
    dist.all_reduce(total)
    for p in model.parameters():
        if not p.requires_grad:
            continue
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        grad = grad * rows / total.item()
        dist.all_reduce(grad)


# %% average_gradients: divided-by-ranks-too
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad *= rows / total
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


# %% average_gradients: one-rank-has-the-mean
def average_gradients(model, rows):
    total = torch.tensor(float(rows))
    dist.all_reduce(total)
    for weight in filled(model):
        weight.grad *= rows / total
        dist.reduce(weight.grad, 0)


# %% average_gradients: divided-by-own-rows
def average_gradients(model, rows):
    for weight in filled(model):
        dist.all_reduce(weight.grad)
        weight.grad /= max(1, rows)


# %% buckets: order-of-parameters
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in range(len(sizes)):
        bucket.append(number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return [*found, bucket] if bucket else found


# %% buckets: reversed-afterwards
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in range(len(sizes)):
        bucket.append(number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return [one[::-1] for one in ([*found, bucket] if bucket else found)][::-1]


# %% buckets: ascending-inside
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.insert(0, number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return [*found, bucket] if bucket else found


# %% buckets: never-above
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        if bucket and size + sizes[number] > (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
        bucket.append(number)
        size += sizes[number]
    return [*found, bucket] if bucket else found


# %% buckets: only-above
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.append(number)
        size += sizes[number]
        if size > (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return [*found, bucket] if bucket else found


# %% buckets: one-cap
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.append(number)
        size += sizes[number]
        if size >= cap:
            found.append(bucket)
            bucket, size = [], 0
    return [*found, bucket] if bucket else found


# %% buckets: first-cap-for-all
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.append(number)
        size += sizes[number]
        if size >= first_cap:
            found.append(bucket)
            bucket, size = [], 0
    return [*found, bucket] if bucket else found


# %% buckets: last-lost
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.append(number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return found


# %% buckets: empty-bucket
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.append(number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket, size = [], 0
    return [*found, bucket]


# %% buckets: sizes-not-numbers
def buckets(sizes, cap, first_cap):
    found, bucket = [], []
    for size in reversed(sizes):
        bucket.append(size)
        if sum(bucket) >= (cap if found else first_cap):
            found.append(bucket)
            bucket = []
    return [*found, bucket] if bucket else found


# %% buckets: never-emptied
def buckets(sizes, cap, first_cap):
    found, bucket, size = [], [], 0
    for number in reversed(range(len(sizes))):
        bucket.append(number)
        size += sizes[number]
        if size >= (cap if found else first_cap):
            found.append(bucket)
            bucket = []
    return [*found, bucket] if bucket else found


# %% replicate: not-divided
def replicate(model, groups):
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

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
        for group, (flat, handle) in zip(groups, started, strict=True):
            handle.wait()
            put_back(flat, group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: after-the-backward
def replicate(model, groups):
    def finish():
        started = []
        for group in groups:
            flat = gradients_of(group)
            started.append((group, flat, dist.all_reduce(flat, async_op=True)))
        for group, flat, handle in started:
            handle.wait()
            put_back(flat / dist.get_world_size(), group)

    return finish


# %% replicate: late-bucket
def replicate(model, groups):
    bucket_of = {w: at for at, group in enumerate(groups) for w in group}
    missing = [len(group) for group in groups]
    started = []

    def start():
        at = len(started)
        if at < len(groups) and missing[at] == 0:
            flat = gradients_of(groups[at])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        while len(started) < len(groups):
            start()
        for group, (flat, handle) in zip(groups, started, strict=True):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: not-hidden
def replicate(model, groups):
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 0:
            group = groups[len(started)]
            flat = gradients_of(group)
            dist.all_reduce(flat)
            started.append(flat)

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, flat in zip(groups, started, strict=True):
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: other-bytes
def replicate(model, groups):
    handles = []
    every = [weight for group in groups for weight in group]

    def ready(weight):
        while len(handles) < len(every) and id(every[len(handles)]) in there:
            handles.append(dist.all_reduce(every[len(handles)].grad, async_op=True))

    there = set()

    def note(weight):
        there.add(id(weight))
        ready(weight)

    def finish():
        for weight in every:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            there.add(id(weight))
        ready(None)
        for weight, handle in zip(every, handles, strict=True):
            handle.wait()
            weight.grad /= dist.get_world_size()
        handles.clear()
        there.clear()

    for weight in every:
        weight.register_post_accumulate_grad_hook(note)
    return finish


# %% replicate: own-order
def replicate(model, groups):
    missing, started = [len(group) for group in groups], {}
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

    def start(at):
        flat = gradients_of(groups[at])
        started[at] = flat, dist.all_reduce(flat, async_op=True)

    def ready(weight):
        at = bucket_of[weight]
        missing[at] -= 1
        if missing[at] == 0:
            start(at)

    def finish():
        for at in range(len(groups)):
            if at not in started:
                start(at)
        for at, (flat, handle) in started.items():
            handle.wait()
            put_back(flat / dist.get_world_size(), groups[at])
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: own-order
def replicate(model, groups):
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        while len(started) < len(groups) and missing[len(started)] <= 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish():
        for group, (flat, handle) in zip(groups, started, strict=False):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: first-step-only
def replicate(model, groups):
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

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
        for group, (flat, handle) in zip(groups, started, strict=True):
            if not handle.is_completed():
                handle.wait()
            put_back(flat / dist.get_world_size(), group)

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: not-put-back
def replicate(model, groups):
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

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
        for flat, handle in started:
            handle.wait()
            flat /= dist.get_world_size()
        started.clear()
        missing[:] = [len(group) for group in groups]

    for weight in bucket_of:
        weight.register_post_accumulate_grad_hook(ready)
    return finish


# %% replicate: started-too-early
def replicate(model, groups):
    missing, started = [len(group) for group in groups], []
    bucket_of = {weight: at for at, group in enumerate(groups) for weight in group}

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 1:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))
            if missing[len(started) - 1]:
                break

    def ready(weight):
        missing[bucket_of[weight]] -= 1
        start()

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


# %% replicate: divided-twice
def replicate(model, groups):
    n = dist.get_world_size()

    def finish():
        for group in groups:
            flat = gradients_of(group) / n
            dist.all_reduce(flat)
            put_back(flat / n, group)

    return finish


# %% replicate: last-bucket-lost
def replicate(model, groups):
    missing, started = [len(g) for g in groups], []
    where = {w: i for i, g in enumerate(groups) for w in g}

    def hook(w):
        missing[where[w]] -= 1
        while len(started) < len(groups) - 1 and missing[len(started)] == 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish():
        for group, (flat, handle) in zip(groups, started, strict=False):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()
        missing[:] = [len(g) for g in groups]

    for w in where:
        w.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: first-step-only
def replicate(model, groups):
    missing, started = [len(g) for g in groups], []
    where = {w: i for i, g in enumerate(groups) for w in g}

    def start():
        while len(started) < len(groups) and missing[len(started)] <= 0:
            flat = gradients_of(groups[len(started)])
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    def hook(w):
        missing[where[w]] -= 1
        start()

    def finish():
        missing[:] = [0] * len(groups)
        start()
        for group, (flat, handle) in zip(groups, started, strict=True):
            handle.wait()
            put_back(flat / dist.get_world_size(), group)
        started.clear()

    for w in where:
        w.register_post_accumulate_grad_hook(hook)
    return finish


# %% replicate: own-gradients
def replicate(model, groups):
    def finish():
        for w in model.parameters():
            if w.grad is None:
                w.grad = torch.zeros_like(w)

    return finish


# %% bytes_per_rank: nothing-divided
def bytes_per_rank(parameters, ranks, stage):
    return 16 * parameters


# %% bytes_per_rank: all-divided
def bytes_per_rank(parameters, ranks, stage):
    return 16 * parameters / ranks


# %% bytes_per_rank: all-divided
def bytes_per_rank(parameters, ranks, stage):
    return 16 * parameters / ranks if stage else 16 * parameters


# %% bytes_per_rank: one-stage-late
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 12]
    for part in range(stage - 1):
        whole[2 - part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: weights-first
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 12]
    for part in range(stage):
        whole[part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: no-master-weights
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 8]
    for part in range(stage):
        whole[2 - part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: all-in-float32
def bytes_per_rank(parameters, ranks, stage):
    whole = [4, 4, 8]
    for part in range(stage):
        whole[2 - part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: gradients-in-float32
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 4, 12]
    for part in range(stage):
        whole[2 - part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: this-stage-only
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 12]
    if stage:
        whole[3 - stage] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: a-parameter
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 12]
    for part in range(stage):
        whole[2 - part] /= ranks
    return sum(whole)


# %% bytes_per_rank: all-ranks
def bytes_per_rank(parameters, ranks, stage):
    whole = [2 * ranks, 2 * ranks, 12 * ranks]
    for part in range(stage):
        whole[2 - part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: no-master-weights
def bytes_per_rank(parameters, ranks, stage):
    return 12 * parameters if stage == 0 else 12 * parameters / ranks


# %% bytes_per_rank: gradients-stay
def bytes_per_rank(parameters, ranks, stage):
    w = 2 / ranks if stage == 3 else 2
    o = 12 / ranks if stage >= 1 else 12
    return (w + 2 + o) * parameters


# %% bytes_per_rank: one-stage-early
def bytes_per_rank(parameters, ranks, stage):
    sizes = [12, 2, 2]
    return parameters * sum(x / ranks if i <= stage else x for i, x in enumerate(sizes))


# %% bytes_per_rank: rounded
def bytes_per_rank(parameters, ranks, stage):
    w = 2 // ranks if stage >= 3 else 2
    g = 2 // ranks if stage >= 2 else 2
    o = 12 // ranks if stage >= 1 else 12
    return (w + g + o) * parameters


# %% bytes_per_rank: no-gradients
def bytes_per_rank(parameters, ranks, stage):
    weights = 2 / ranks if stage == 3 else 2
    optimizer = 12 / ranks if stage else 12
    return parameters * (weights + optimizer)


# %% bytes_per_rank: numbers
def bytes_per_rank(parameters, ranks, stage):
    whole = [1, 1, 3]
    for part in range(stage):
        whole[2 - part] /= ranks
    return parameters * sum(whole)


# %% bytes_per_rank: all-but-one
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 12]
    for part in range(stage):
        whole[2 - part] *= 1 - 1 / ranks
    return parameters * sum(whole)


# %% bytes_per_rank: gathered-too
def bytes_per_rank(parameters, ranks, stage):
    whole = [2, 2, 12]
    for part in range(stage):
        whole[2 - part] /= ranks
    return parameters * (sum(whole) + 2 * (stage == 3))


# %% sharded_linear: not-divided
class NotDivided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(dist.get_world_size())))
        return grad @ torch.cat(everybodys(shard)), part


def sharded_linear(x, shard):
    return NotDivided.apply(x, shard)


# %% sharded_linear: keeps-the-whole
class KeepsWhole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        whole = torch.cat(everybodys(shard))
        ctx.save_for_backward(x, whole)
        return x @ whole.T

    @staticmethod
    def backward(ctx, grad):
        x, whole = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(whole.chunk(n)[0])
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        return grad @ whole, part / n


def sharded_linear(x, shard):
    return KeepsWhole.apply(x, shard)


# %% sharded_linear: keeps-the-whole
class KeepsBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.whole = torch.cat(everybodys(shard))
        ctx.save_for_backward(x, shard)
        return x @ ctx.whole.T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        return grad @ torch.cat(everybodys(shard)), part / n


def sharded_linear(x, shard):
    return KeepsBoth.apply(x, shard)


# %% sharded_linear: own-gradient
class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        part = (grad.T @ x).chunk(dist.get_world_size())[dist.get_rank()]
        return grad @ torch.cat(everybodys(shard)), part


def sharded_linear(x, shard):
    return OwnGradient.apply(x, shard)


# %% sharded_linear: other-calls
class AllReduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, whole = dist.get_world_size(), grad.T @ x
        dist.all_reduce(whole)
        part = whole.chunk(n)[dist.get_rank()] / n
        return grad @ torch.cat(everybodys(shard)), part


def sharded_linear(x, shard):
    return AllReduced.apply(x, shard)


# %% sharded_linear: no-gradient-of-x
class NoGradientOfX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        everybodys(shard)
        return None, part / n


def sharded_linear(x, shard):
    return NoGradientOfX.apply(x, shard)


# %% sharded_linear: x-averaged
class XAveraged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        return grad @ torch.cat(everybodys(shard)) / n, part / n


def sharded_linear(x, shard):
    return XAveraged.apply(x, shard)


# %% sharded_linear: own-shard-only
class OwnShard(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, rank = dist.get_world_size(), dist.get_rank()
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(n)))
        return grad.chunk(n, dim=1)[rank] @ shard, part / n


def sharded_linear(x, shard):
    return OwnShard.apply(x, shard)


# %% sharded_linear: by-columns
class ByColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.stack(everybodys(shard), dim=1).flatten(0, 1).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(shard)
        pieces = [one.contiguous() for one in (grad.T @ x).unflatten(0, (-1, n)).unbind(1)]
        dist.reduce_scatter(part, pieces)
        return grad @ torch.stack(everybodys(shard), dim=1).flatten(0, 1), part / n


def sharded_linear(x, shard):
    return ByColumns.apply(x, shard)


# %% sharded_linear: no-history
def sharded_linear(x, shard):
    return x @ torch.cat(everybodys(shard.detach())).T


# %% sharded_linear: wrong-piece
class WrongPiece(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, g):
        x, shard = ctx.saved_tensors
        n = dist.get_world_size()
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((g.T @ x).chunk(n))[::-1])
        return g @ torch.cat(everybodys(shard)), part / n


def sharded_linear(x, shard):
    return WrongPiece.apply(x, shard)


# %% sharded_linear: own-gradient
class OwnShare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        n, whole = dist.get_world_size(), torch.cat(everybodys(shard))
        return grad @ whole, (grad.T @ x).chunk(n)[dist.get_rank()] / n


def sharded_linear(x, shard):
    return OwnShare.apply(x, shard)


# %% sharded_linear: other-ranks-piece
class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        pieces = list((grad.T @ x).chunk(dist.get_world_size()))
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, pieces[1:] + pieces[:1])
        return grad @ torch.cat(everybodys(shard)), part / len(pieces)


def sharded_linear(x, shard):
    return Turned.apply(x, shard)


# %% sharded_linear: x-reduced
class ReducesX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        ranks = dist.get_world_size()
        of_x = grad @ torch.cat(everybodys(shard))
        dist.all_reduce(of_x)
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(ranks)))
        return of_x, part / ranks


def sharded_linear(x, shard):
    return ReducesX.apply(x, shard)


# %% sharded_linear: x-reduced
class AveragesX(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ torch.cat(everybodys(shard)).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        ranks = dist.get_world_size()
        of_x = grad @ torch.cat(everybodys(shard))
        dist.all_reduce(of_x)
        part = torch.empty_like(shard)
        dist.reduce_scatter(part, list((grad.T @ x).chunk(ranks)))
        return of_x / ranks, part / ranks


def sharded_linear(x, shard):
    return AveragesX.apply(x, shard)


# %% top_k: no-residual
def top_k(state, bucket):
    gradient, n = bucket.buffer(), dist.get_world_size()
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(gradient[places]), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: residual-of-all
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    state["residuals"][bucket.index()] = gradient
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(gradient[places]), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: residual-of-this-step
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual, own = state["residuals"].get(bucket.index()), gradient.clone()
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    own[places] = 0
    state["residuals"][bucket.index()] = own
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(gradient[places]), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: residual-of-the-mean
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(gradient[places]), everybodys(places), strict=True):
        mean[where] += sent / n
    state["residuals"][bucket.index()] = gradient - mean
    return done(mean)


# %% top_k: signed
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    values, places = gradient.topk(max(1, int(state["share"] * len(gradient))))
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: absolute-values
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    values, places = gradient.abs().topk(max(1, int(state["share"] * len(gradient))))
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: not-divided
def top_k(state, bucket):
    gradient = bucket.buffer().clone()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    total = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        total[where] += sent
    return done(total)


# %% top_k: last-rank-wins
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        mean[where] = sent / n
    return done(mean)


# %% top_k: own-places
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    dist.all_reduce(values)
    mean = torch.zeros_like(gradient)
    mean[places] = values / n
    return done(mean)


# %% top_k: sends-it-all
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    sent = torch.zeros_like(gradient)
    sent[places] = gradient[places]
    state["residuals"][bucket.index()] = gradient - sent
    dist.all_reduce(sent)
    return done(sent / n)


# %% top_k: changes-the-buffer
def top_k(state, bucket):
    gradient, n = bucket.buffer(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    values = gradient[places]
    left = gradient.clone()
    left[places] = 0
    state["residuals"][bucket.index()] = left
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: old-length
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    if bucket.index() in state["residuals"]:
        gradient += state["residuals"][bucket.index()]
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: one-residual
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get("all")
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(max(1, int(state["share"] * len(gradient)))).indices
    values = gradient[places]
    gradient[places] = 0
    state["residuals"]["all"] = gradient
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(values), everybodys(places), strict=True):
        mean[where] += sent / n
    return done(mean)


# %% top_k: smallest
def top_k(state, bucket):
    g, n = bucket.buffer().clone(), dist.get_world_size()
    old = state["residuals"].get(bucket.index())
    if old is not None and len(old) == len(g):
        g += old
    k = max(1, int(state["share"] * len(g)))
    places = g.abs().topk(k, largest=False).indices
    values = g[places]
    g[places] = 0
    state["residuals"][bucket.index()] = g
    vs, ps = everybodys(values), everybodys(places)
    out = torch.zeros_like(g)
    for v, p in zip(vs, ps, strict=True):
        out[p] += v / n
    return done(out)


# %% top_k: everything
def top_k(state, bucket):
    g = bucket.buffer().clone()
    dist.all_reduce(g)
    return done(g / dist.get_world_size())


# %% top_k: one-more
def top_k(state, bucket):
    import math

    g, n = bucket.buffer().clone(), dist.get_world_size()
    old = state["residuals"].get(bucket.index())
    if old is not None and len(old) == len(g):
        g += old
    k = math.ceil(state["share"] * len(g)) + 1
    places = g.abs().topk(k).indices
    values = g[places]
    g[places] = 0
    state["residuals"][bucket.index()] = g
    vs, ps = everybodys(values), everybodys(places)
    out = torch.zeros_like(g)
    for v, p in zip(vs, ps, strict=True):
        out[p] += v / n
    return done(out)


# %% top_k: none-of-a-small-bucket
def top_k(state, bucket):
    gradient, n = bucket.buffer().clone(), dist.get_world_size()
    residual = state["residuals"].get(bucket.index())
    if residual is not None and len(residual) == len(gradient):
        gradient += residual
    places = gradient.abs().topk(int(state["share"] * len(gradient))).indices
    mean = torch.zeros_like(gradient)
    for sent, where in zip(everybodys(gradient[places]), everybodys(places), strict=True):
        mean[where] += sent / n
    gradient[places] = 0
    state["residuals"][bucket.index()] = gradient
    return done(mean)


# %% top_k: rank-0s-places
def top_k(state, bucket):
    whole, ranks = bucket.buffer().clone(), dist.get_world_size()
    left = state["residuals"].get(bucket.index())
    if left is not None and len(left) == len(whole):
        whole += left
    places = whole.abs().topk(max(1, int(state["share"] * len(whole)))).indices
    dist.broadcast(places, 0)
    sent = whole[places]
    state["residuals"][bucket.index()] = whole.index_fill(0, places, 0)
    dist.all_reduce(sent)
    return done(torch.zeros_like(whole).index_copy(0, places, sent / ranks))
