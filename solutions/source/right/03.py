"""Right answers to the exercises of lab 03, in other ways than the solution's."""

from itertools import accumulate

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp, irecv, isend


# %% global_mean: all-gather
def global_mean(values):
    mine = torch.stack([values.sum().double(), torch.tensor(values.numel()).double()])
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, mine)
    total, count = torch.stack(everybody).sum(0).tolist()
    return total / count


# %% global_mean: all-to-all
def global_mean(values):
    n = dist.get_world_size()
    mine = torch.tensor([[values.sum().item(), values.numel()]] * n, dtype=torch.float64)
    got = torch.empty_like(mine)
    dist.all_to_all_single(output=got, input=mine)
    return (got[:, 0].sum() / got[:, 1].sum()).item()


# %% global_mean: async
def global_mean(values):
    both = torch.zeros(2, dtype=values.dtype)
    both[0], both[1] = values.sum(), values.shape[0]
    work = dist.all_reduce(both, op=dist.ReduceOp.SUM, async_op=True)
    work.wait()
    return float(both[0]) / float(both[1])


# %% global_mean: averaged-both
def global_mean(values):
    both = torch.tensor([float(sum(values.tolist())), float(len(values))])
    dist.all_reduce(both, ReduceOp.AVG)
    total, count = both.tolist()
    return total / count


# %% global_mean: all-gather-into-tensor
def global_mean(values):
    mine = torch.tensor([values.sum(), values.numel()], dtype=torch.float64)
    table = torch.empty(dist.get_world_size() * 2, dtype=torch.float64)
    dist.all_gather_into_tensor(table, mine)
    print("table", table, end="")
    return (table[0::2].sum() / table[1::2].sum()).item()


# %% two_step_all_reduce: tensor-variants
def two_step_all_reduce(x):
    part = x.new_empty(len(x) // dist.get_world_size())
    dist.reduce_scatter_tensor(part, x)
    dist.all_gather_into_tensor(x, part)


# %% two_step_all_reduce: own-slices
def two_step_all_reduce(x):
    n = dist.get_world_size()
    size = x.numel() // n
    parts = [x[i * size : (i + 1) * size].clone() for i in range(n)]
    mine = torch.zeros(size, dtype=x.dtype)
    dist.reduce_scatter(output=mine, input_list=parts, op=dist.ReduceOp.SUM)
    dist.all_gather(tensor_list=parts, tensor=mine)
    x.copy_(torch.cat(parts))
    return x


# %% two_step_all_reduce: async
def two_step_all_reduce(x):
    views = list(torch.tensor_split(x, dist.get_world_size()))
    mine = torch.empty_like(views[0])
    dist.reduce_scatter(mine, views, async_op=True).wait()
    dist.all_gather(views, mine, async_op=True).wait()


# %% two_step_all_reduce: in-own-part
def two_step_all_reduce(x):
    table = x.view(dist.get_world_size(), -1)
    mine = table[dist.get_rank()].clone()
    dist.reduce_scatter(mine, list(table.unbind()))
    dist.all_gather(list(table.unbind()), mine)


# %% two_step_all_reduce: group-named
def two_step_all_reduce(x):
    world = dist.group.WORLD
    chunks = list(x.split(len(x) // world.size()))
    part = chunks[world.rank()].clone()
    dist.reduce_scatter(part, chunks, group=world)
    dist.all_gather(chunks, part, group=world)
    return None


# %% ring_all_reduce: imported-names
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(x.chunk(n))
    for step in range(2 * (n - 1)):
        there = torch.empty_like(chunks[0])
        works = [isend(chunks[(rank - step) % n], (rank + 1) % n), irecv(there, (rank - 1) % n)]
        for work in reversed(works):
            work.wait()
        into = chunks[(rank - step - 1) % n]
        into.copy_(into + there if step < n - 1 else there)


# %% ring_all_reduce: parity
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    table = x.view(n, -1)
    buffer = torch.empty_like(table[0])

    def pass_on(out):
        if rank % 2:
            dist.recv(buffer, left)
            dist.send(out, right)
        elif rank == n - 1:
            request = dist.isend(out, right)
            dist.recv(buffer, left)
            request.wait()
        else:
            dist.send(out, right)
            dist.recv(buffer, left)

    for step in range(n - 1):
        pass_on(table[(rank - step) % n].clone())
        table[(rank - step - 1) % n] += buffer
    for step in range(n - 1):
        pass_on(table[(rank - step + 1) % n].clone())
        table[(rank - step) % n] = buffer


# %% ring_all_reduce: batch
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = [piece.clone() for piece in torch.tensor_split(x, n)]
    for step in range(2 * n - 2):
        at, to = (rank - step) % n, (rank - step - 1) % n
        got = torch.zeros_like(pieces[to])
        ops = [
            dist.P2POp(op=dist.irecv, tensor=got, peer=(rank + n - 1) % n),
            dist.P2POp(op=dist.isend, tensor=pieces[at], peer=(rank + 1) % n),
        ]
        [work.wait() for work in dist.batch_isend_irecv(ops)]
        pieces[to] = pieces[to] + got if step < n - 1 else got
    x.copy_(torch.cat(pieces))
    return x


# %% ring_all_reduce: other-start
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks, buffer = x.chunk(n), torch.empty_like(x.chunk(n)[0])
    for step in range(1, n):  # so that rank r ends with chunk r
        work = dist.isend(tensor=chunks[(rank - step) % n], dst=(rank + 1) % n)
        dist.recv(tensor=buffer, src=(rank - 1) % n)
        work.wait()
        chunks[(rank - step - 1) % n].add_(buffer)
    for step in range(n - 1):
        work = dist.isend(chunks[(rank - step) % n], (rank + 1) % n, tag=7)
        dist.recv(chunks[(rank - step - 1) % n], (rank - 1) % n, tag=7)
        work.wait()


# %% ring_all_reduce: handles-at-the-end
def ring_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    size, sent = x.numel() // n, []
    buffer = torch.empty(size, dtype=x.dtype)
    for step in range(2 * (n - 1)):
        start, to = (rank - step) % n * size, (rank - step - 1) % n * size
        copy = x[start : start + size].clone()
        sent.append((dist.isend(copy, dst=(rank + 1) % n), copy))
        dist.recv(buffer)
        x[to : to + size] = buffer + (x[to : to + size] if step < n - 1 else 0)
    for work, _ in sent:
        work.wait()


# %% doubling_all_reduce: isend-irecv
def doubling_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    for k in range(n.bit_length() - 1):
        other = rank ^ (1 << k)
        theirs = torch.zeros_like(x)
        wait_for = dist.irecv(theirs, src=other), dist.isend(x.clone(), dst=other)
        for one in wait_for:
            one.wait()
        x += theirs


# %% doubling_all_reduce: blocking-in-turn
def doubling_all_reduce(x):
    rank, buffer, distance = dist.get_rank(), torch.empty_like(x), 1
    while distance < dist.get_world_size():
        other = rank - distance if rank // distance % 2 else rank + distance
        if rank < other:
            dist.send(x, other)
            dist.recv(buffer, other)
        else:
            dist.recv(buffer, other)
            dist.send(x, other)
        x.add_(buffer)
        distance = distance * 2


# %% doubling_all_reduce: from-far-to-near
def doubling_all_reduce(x):
    distance = dist.get_world_size() // 2
    while distance:
        other = dist.get_rank() ^ distance
        got = torch.empty_like(x)
        send = dist.isend(x, other)
        dist.irecv(got, other).wait()
        send.wait()
        x.copy_(torch.add(x, got))
        distance //= 2
    return x


# %% doubling_all_reduce: recursive
def doubling_all_reduce(x, distance=1):
    if distance >= dist.get_world_size():
        return
    other, got = dist.get_rank() ^ distance, torch.empty(x.shape, dtype=x.dtype)
    batch = dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, got, other), dist.P2POp(dist.isend, x, other)]
    )
    for work in batch:
        work.wait()
    x.add_(got)
    doubling_all_reduce(x, 2 * distance)


# %% doubling_all_reduce: local-copy
def doubling_all_reduce(x):
    total = x.clone()
    for distance in (2**k for k in range(10)):
        if distance < dist.get_world_size():
            got = torch.empty_like(total)
            handle = dist.isend(total, dist.get_rank() ^ distance)
            dist.recv(got, dist.get_rank() ^ distance)
            handle.wait()
            total = total + got
    x[...] = total


# %% flat_all_reduce: loop-of-slices
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    work = dist.all_reduce(flat, async_op=True)
    work.wait()
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()


# %% flat_all_reduce: own-buffer
def flat_all_reduce(tensors):
    sizes = [tensor.numel() for tensor in tensors]
    ends = list(accumulate(sizes))
    bucket = torch.zeros(sum(sizes), dtype=tensors[0].dtype)
    for tensor, end in zip(tensors, ends, strict=True):
        bucket[end - tensor.numel() : end] = tensor.flatten()
    dist.all_reduce(bucket)
    for tensor, end in zip(tensors, ends, strict=True):
        tensor[...] = bucket[end - tensor.numel() : end].view(tensor.shape)
    return tensors


# %% flat_all_reduce: zeroed-and-added
def flat_all_reduce(tensors):
    flat = torch.cat(tuple(map(torch.Tensor.flatten, tensors)))
    dist.all_reduce(op=dist.ReduceOp.SUM, tensor=flat)
    for tensor, piece in zip(tensors, flat.split(list(map(torch.numel, tensors))), strict=True):
        tensor.zero_().add_(piece.view_as(tensor))


# %% flat_all_reduce: all-gather
def flat_all_reduce(tensors):
    flat = torch.cat([tensor.ravel() for tensor in tensors])
    everybody = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, flat)
    total = torch.stack(everybody).sum(0)
    for tensor in tensors:
        tensor.copy_(total[: tensor.numel()].view(tensor.shape))
        total = total[tensor.numel() :]


# %% flat_all_reduce: backwards
def flat_all_reduce(tensors):
    turned = list(reversed(tensors))
    flat = torch.cat([tensor.flatten() for tensor in turned])
    dist.all_reduce(flat)
    for tensor, piece in zip(turned, flat.split([t.numel() for t in turned]), strict=True):
        tensor.data.copy_(piece.reshape(tensor.size()))


# %% two_step_all_reduce: functional
def two_step_all_reduce(x):
    world = dist.distributed_c10d._get_default_group()
    part = functional.reduce_scatter_tensor(x, "sum", 0, world)
    x.copy_(functional.all_gather_tensor(part, 0, world))


# %% doubling_all_reduce: waits-for-a-copy-at-the-end
def doubling_all_reduce(x):
    rank, n, sending = dist.get_rank(), dist.get_world_size(), []
    for distance in [1 << k for k in range(20) if 1 << k < n]:
        buffer = torch.empty_like(x)
        sending.append(dist.isend(x.clone(), rank ^ distance, tag=distance))
        dist.recv(buffer, rank ^ distance, tag=distance)
        x.add_(buffer)
    for work in sending:
        work.wait()
