"""Wrong answers to the exercises of lab 03, each under the mistake that its check has to name."""

import math

import torch
import torch.distributed as dist


def swap(out, to, into, source):
    both = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


# %% global_mean: mean-of-means
def global_mean(values):
    mean = values.mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()


# %% global_mean: divides-by-ranks
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


# %% global_mean: too-many-calls
def global_mean(values):
    total, count = values.sum(), torch.tensor(float(len(values)))
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()


# %% global_mean: nothing-sent
def global_mean(values):
    return values.mean().item()


# %% global_mean: empty-rank-skips
def global_mean(values):
    if len(values) == 0:
        return 0.0
    both = torch.tensor([values.sum(), len(values)])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% global_mean: whole-numbers
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)]).long()
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% global_mean: not-all-ranks
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)])
    dist.reduce(both, 0)
    return (both[0] / both[1]).item()


# %% global_mean: divides-by-own
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / max(1, len(values))


# %% global_mean: type
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)])
    dist.all_reduce(both)
    return both[0] / both[1]


# %% global_mean: changed
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)])
    dist.all_reduce(both)
    values /= both[1]
    return (both[0] / both[1]).item()


# %% global_mean: own-twice
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)])
    everybody = both.clone()
    dist.all_reduce(everybody)
    total, count = (both + everybody).tolist()
    return total / count


# %% global_mean: upside-down
def global_mean(values):
    both = torch.tensor([len(values), values.sum()])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% global_mean: largest-only
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)])
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return (both[0] / both[1]).item()


# %% global_mean: lengths-differ
def global_mean(values):
    everybody = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, values)
    return torch.cat(everybody).mean().item()


# %% global_mean: no-number
def global_mean(values):
    both = torch.tensor([values.mean() * len(values), len(values)])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% global_mean: digits
def global_mean(values):
    both = torch.tensor([values.sum(), len(values)], dtype=torch.bfloat16)
    dist.all_reduce(both)
    return both[0].item() / both[1].item()


# %% global_mean: not-divided
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item()


# %% two_step_all_reduce: untouched
def two_step_all_reduce(x):
    n = dist.get_world_size()
    part = torch.empty_like(x[: len(x) // n])
    dist.reduce_scatter(part, list(x.chunk(n)))
    done = [torch.empty_like(part) for _ in range(n)]
    dist.all_gather(done, part)
    x = torch.cat(done)


# %% two_step_all_reduce: too-much-in-a-step
def two_step_all_reduce(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    copies = [x.clone() for _ in range(n)]
    total = torch.empty_like(x)
    dist.reduce_scatter(total, copies)
    dist.all_gather(list(x.chunk(n)), total.chunk(n)[rank].contiguous())


# %% two_step_all_reduce: no-gather
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    chunks[dist.get_rank()].copy_(part)


# %% two_step_all_reduce: not-in-place
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    done = [torch.empty_like(part) for _ in chunks]
    dist.all_gather(done, part)
    return torch.cat(done)


# %% two_step_all_reduce: gathers-first
def two_step_all_reduce(x):
    all_x = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(all_x, x)
    x.copy_(torch.stack(all_x).sum(0))


# %% two_step_all_reduce: all-reduce
def two_step_all_reduce(x):
    dist.all_reduce(x)


# %% two_step_all_reduce: wrong-places
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks[::-1], part)


# %% two_step_all_reduce: gathers-old
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks, x.chunk(len(chunks))[dist.get_rank()].clone())


# %% two_step_all_reduce: turned-round
def two_step_all_reduce(x):
    rank, chunks = dist.get_rank(), list(x.chunk(dist.get_world_size()))
    everybody = [torch.empty_like(chunk) for chunk in chunks]
    dist.all_gather(everybody, chunks[rank])
    dist.reduce_scatter(chunks[rank], everybody)


# %% two_step_all_reduce: not-a-sum
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, op=dist.ReduceOp.MIN)
    dist.all_gather(chunks, part)


# %% two_step_all_reduce: mean
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    dist.all_gather(chunks, part)
    x /= dist.get_world_size()


# %% two_step_all_reduce: times-ranks
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    for _ in range(2):
        dist.reduce_scatter(part, chunks)
        dist.all_gather(chunks, part)


# %% ring_all_reduce: half-way
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)


# %% ring_all_reduce: whole-tensor
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    going, coming = x.clone(), torch.empty_like(x)
    for _ in range(n - 1):
        swap(going, right, coming, left)
        x.add_(coming)
        going, coming = coming, going


# %% ring_all_reduce: wrong-chunk
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].copy_(buffer)


# %% ring_all_reduce: only-copies
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left)
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)


# %% ring_all_reduce: second-half
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, chunks[(rank - step - 1) % n], left)


# %% ring_all_reduce: not-a-ring
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, buffer = x.clone(), torch.empty_like(x)
    for step in range(1, n):
        swap(mine, (rank + step) % n, buffer, (rank - step) % n)
        x.add_(buffer)


# %% ring_all_reduce: all-wait
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        dist.recv(buffer, left)
        dist.send(chunks[(rank - step) % n], right)
        chunks[(rank - step - 1) % n].add_(buffer)


# %% ring_all_reduce: other-way
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank - 1) % n, (rank + 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank + step) % n], right, buffer, left)
        chunks[(rank + step + 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank - 1 + step) % n], right, chunks[(rank + step) % n], left)


# %% ring_all_reduce: no-wait
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    handles = []
    for step in range(n - 1):
        handles.append(dist.isend(chunks[(rank - step) % n].clone(), right))
        dist.recv(buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        handles.append(dist.isend(chunks[(rank + 1 - step) % n].clone(), right))
        dist.recv(chunks[(rank - step) % n], left)


# %% ring_all_reduce: added-twice
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(2 * (n - 1)):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)


# %% ring_all_reduce: untouched
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    going = x.clone()
    for _ in range(n - 1):
        coming = torch.empty_like(x)
        swap(going, right, coming, left)
        x = x + coming
        going = coming


# %% ring_all_reduce: no-such-rank
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)  # views
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], (rank + 1) % n, buffer, rank - 1)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], (rank + 1) % n, chunks[(rank - step) % n], rank - 1)


# %% ring_all_reduce: stops-early
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], (rank + 1) % n, buffer, (rank - 1) % n)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 2):
        swap(
            chunks[(rank + 1 - step) % n], (rank + 1) % n, chunks[(rank - step) % n], (rank - 1) % n
        )


# %% ring_all_reduce: too-many-steps
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], (rank + 1) % n, buffer, (rank - 1) % n)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n):
        swap(chunks[(rank + 1 - step) % n], (rank + 1) % n, buffer, (rank - 1) % n)
        chunks[(rank - step) % n].copy_(buffer)


# %% doubling_all_reduce: without-own
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    mine, distance = x.clone(), 1
    while distance < n:
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x.add_(buffer)
        distance *= 2
    x.sub_(mine)


# %% doubling_all_reduce: uses-a-collective
def doubling_all_reduce(x):
    dist.all_reduce(x)


# %% doubling_all_reduce: one-sided
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 1
    while distance < n:
        partner = (rank + distance) % n
        swap(x, partner, buffer, partner)
        x.add_(buffer)
        distance *= 2


# %% doubling_all_reduce: too-many-rounds
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    mine = x.clone()
    for distance in range(1, n):
        swap(mine, rank ^ distance, buffer, rank ^ distance)
        x.add_(buffer)


# %% doubling_all_reduce: same-partner
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for _ in range(n.bit_length() - 1):
        swap(x, rank ^ 1, buffer, rank ^ 1)
        x.add_(buffer)


# %% doubling_all_reduce: not-added
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 1
    while distance < n:
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x.copy_(buffer)
        distance *= 2


# %% doubling_all_reduce: stops-early
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 1
    while distance < n // 2:
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x.add_(buffer)
        distance *= 2


# %% doubling_all_reduce: same-side
def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), 1
    buffer = torch.empty_like(x)
    while distance < dist.get_world_size():
        partner = rank ^ distance
        if rank % 2:
            dist.recv(buffer, partner)
            dist.send(x, partner)
        else:
            dist.send(x, partner)
            dist.recv(buffer, partner)
        x += buffer
        distance *= 2


# %% doubling_all_reduce: sends-the-start
def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), 1
    start, buffer = x.clone(), torch.empty_like(x)
    while distance < dist.get_world_size():
        swap(start, rank ^ distance, buffer, rank ^ distance)
        x += buffer
        distance *= 2


# %% doubling_all_reduce: added-to-itself
def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), 1
    buffer = torch.empty_like(x)
    while distance < dist.get_world_size():
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x += x
        distance *= 2


# %% doubling_all_reduce: fewer-than-rounds
def doubling_all_reduce(x):
    rank, buffer = dist.get_rank(), torch.empty_like(x)
    distances = [1 << k for k in range(dist.get_world_size().bit_length() - 1)]
    for distance in distances:
        if rank % (2 * distance) == distance:
            dist.send(x, rank - distance)
        elif rank % (2 * distance) == 0:
            dist.recv(buffer, rank + distance)
            x += buffer
    for distance in reversed(distances):
        if rank % (2 * distance) == distance:
            dist.recv(x, rank - distance)
        elif rank % (2 * distance) == 0:
            dist.send(x, rank + distance)


# %% flat_all_reduce: rebound
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for at, piece in enumerate(pieces):
        tensors[at] = piece.view_as(tensors[at])


# %% flat_all_reduce: gaps
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    start = 0
    for tensor in tensors:
        tensor.reshape(-1)[:] = flat[start : start + tensor.numel()]
        start += tensor.numel()


# %% flat_all_reduce: one-call-each
def flat_all_reduce(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)


# %% flat_all_reduce: not-in-place
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view_as(tensor) for tensor, piece in zip(tensors, pieces, strict=True)]


# %% flat_all_reduce: wrong-places
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in reversed(tensors)])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: padded
def flat_all_reduce(tensors, strict=True):
    most = max(tensor.numel() for tensor in tensors)
    table = torch.zeros(len(tensors), most, dtype=tensors[0].dtype)
    for row, tensor in zip(table, tensors, strict=True):
        row[: tensor.numel()] = tensor.flatten()
    dist.all_reduce(table)
    for row, tensor in zip(table, tensors, strict=True):
        tensor.copy_(row[: tensor.numel()].view_as(tensor))


# %% flat_all_reduce: left-out
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in list(zip(tensors, pieces, strict=True))[:-2]:
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: of-others
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor in tensors:
        tensor.copy_(flat[: tensor.numel()].view_as(tensor))


# %% flat_all_reduce: untouched
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor = piece.view_as(tensor)


# %% flat_all_reduce: own-twice
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor += piece.view_as(tensor)


# %% flat_all_reduce: untouched-here
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.reduce(flat, 0)
    if dist.get_rank() == 0:
        for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: equal-parts
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat.chunk(len(tensors)), strict=False):
        tensor.copy_(piece.view(tensor.shape))


# %% flat_all_reduce: transposed
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.view(-1) for tensor in tensors])
    dist.all_reduce(flat)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: stacked
def flat_all_reduce(tensors):
    flat = torch.stack([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, piece in zip(tensors, flat, strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% doubling_all_reduce: to-itself
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(n.bit_length() - 1):
        swap(x, rank ^ k, buffer, rank ^ k)
        x.add_(buffer)


# %% global_mean: empty-as-one
def global_mean(values):
    count = max(len(values), 1)
    both = torch.tensor([values.sum(), count], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% global_mean: zeros-left-out
def global_mean(values):
    both = torch.stack([values.double().sum(), values.count_nonzero().double()])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% two_step_all_reduce: second-too-early
def two_step_all_reduce(x):
    part = torch.zeros_like(x.chunk(dist.get_world_size())[0])
    works = [dist.reduce_scatter_tensor(part, x.clone(), async_op=True)]
    works.append(dist.all_gather_into_tensor(x, part, async_op=True))
    for work in works:
        work.wait()


# %% two_step_all_reduce: other-type
def two_step_all_reduce(x):
    y = x.float()
    part = torch.empty_like(y.chunk(dist.get_world_size())[0])
    dist.reduce_scatter_tensor(part, y)
    dist.all_gather_into_tensor(y, part)
    x.copy_(y)


# %% ring_all_reduce: too-small
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    buffer = torch.empty(len(chunks[0]))
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank - step + 1) % n], right, chunks[(rank - step) % n], left)


# %% doubling_all_reduce: too-small
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer, distance = torch.empty(x.shape), 1
    while distance < n:
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x += buffer
        distance *= 2


# %% doubling_all_reduce: changed-while-sent
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer, distance = torch.empty_like(x), 1
    while distance < n:
        sending = dist.isend(x, rank ^ distance)
        dist.recv(buffer, rank ^ distance)
        x += buffer
        sending.wait()
        distance *= 2


# %% flat_all_reduce: smaller-type
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).float()
    dist.all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


# %% flat_all_reduce: mean
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat = flat / dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


# %% global_mean: own-mean
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total.clone())
    return total.item() / len(values) if len(values) else math.nan


# %% global_mean: divides-by-own
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return total.item() / len(values) if len(values) else math.nan


# %% global_mean: divides-by-own
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    own = len(values) * dist.get_world_size()
    return total.item() / own if own else math.nan


# %% global_mean: mean-of-means
def global_mean(values):
    mean = values.double().mean() if len(values) else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


# %% global_mean: divides-by-own
def global_mean(values):
    total = values.double().sum()
    dist.all_reduce(total)
    return total.item() / max(1, len(values) * dist.get_world_size())


# %% global_mean: mean-of-means
def global_mean(values):
    some = len(values) > 0
    mean = values.double().mean() if some else torch.zeros((), dtype=torch.float64)
    both = torch.stack([mean, torch.tensor(float(some), dtype=torch.float64)])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% global_mean: divides-by-own
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return (total / len(values)).item()


# %% global_mean: divides-by-own
def global_mean(values):
    total = values.sum()
    dist.all_reduce(total)
    return (total / (len(values) * dist.get_world_size())).item()


# %% global_mean: median
def global_mean(values):
    nothing = torch.full((1000 - len(values),), math.nan, dtype=values.dtype)
    mine = torch.cat([values, nothing])
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    return torch.cat(everybody).nanmedian().item()


# %% global_mean: largest-only
def global_mean(values):
    largest = values.mean() if len(values) else torch.full((), -math.inf, dtype=values.dtype)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


# %% global_mean: largest-only
def global_mean(values):
    largest = values.max() if len(values) else torch.full((), -math.inf, dtype=values.dtype)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


# %% global_mean: whole-numbers
def global_mean(values):
    both = torch.tensor([values.long().sum(), len(values)])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


# %% two_step_all_reduce: own-part-missing
def two_step_all_reduce(x):
    rank, chunks = dist.get_rank(), list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    done = [torch.empty_like(part) for _ in chunks]
    dist.all_gather(done, part)
    for other, chunk in enumerate(chunks):
        if other != rank:
            chunk.copy_(done[other])


# %% two_step_all_reduce: no-gather
def two_step_all_reduce(x):
    chunks = list(x.chunk(dist.get_world_size()))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks)
    x.zero_()
    chunks[dist.get_rank()].copy_(part)


# %% ring_all_reduce: passes-on-what-came
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = x.chunk(n)
    going = chunks[rank].clone()
    for step in range(n - 1):
        coming = torch.empty_like(going)
        swap(going, right, coming, left)
        chunks[(rank - step - 1) % n].add_(coming)
        going = coming
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)


# %% ring_all_reduce: other-type
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    wide = x.double()
    chunks = wide.chunk(n)
    buffer = torch.empty_like(chunks[0])
    for step in range(n - 1):
        swap(chunks[(rank - step) % n], right, buffer, left)
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        swap(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)
    x.copy_(wide)


# %% doubling_all_reduce: other-type
def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), 1
    total = x.double()
    buffer = torch.empty_like(total)
    while distance < dist.get_world_size():
        swap(total, rank ^ distance, buffer, rank ^ distance)
        total += buffer
        distance *= 2
    x.copy_(total)


# %% doubling_all_reduce: other-distances
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for distance in range(1, n, 2):
        swap(x, rank ^ distance, buffer, rank ^ distance)
        x += buffer


# %% doubling_all_reduce: other-distances
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for k in range(1, n.bit_length()):
        swap(x, rank ^ k, buffer, rank ^ k)
        x += buffer


# %% doubling_all_reduce: one-of-two-adds
def doubling_all_reduce(x):
    rank, distance = dist.get_rank(), 1
    buffer = torch.empty_like(x)
    while distance < dist.get_world_size():
        partner = rank ^ distance
        swap(x, partner, buffer, partner)
        if rank < partner:
            x += buffer
        distance *= 2


# %% flat_all_reduce: before-its-end
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    work = dist.all_reduce(flat, async_op=True)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))
    work.wait()


# %% flat_all_reduce: lengths-differ
def flat_all_reduce(tensors):
    some = [tensor for tensor in tensors if tensor.any()]
    flat = torch.cat([tensor.flatten() for tensor in some])
    dist.all_reduce(flat)
    for tensor, piece in zip(some, flat.split([t.numel() for t in some]), strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: mean
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat //= dist.get_world_size()
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: not-a-sum
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, op=dist.ReduceOp.MAX)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: not-a-sum
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, op=dist.ReduceOp.PRODUCT)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: first-only
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.broadcast(flat, src=0)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


# %% flat_all_reduce: one-rank-only
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.reduce(flat, dst=0)
    for tensor, piece in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))
