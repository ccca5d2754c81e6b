"""Right answers to the exercises of lab 02, in other ways than the solution's."""

import statistics
import time
from collections import deque
from itertools import pairwise

import lockstep
import torch
import torch.distributed as dist
from torch.distributed import P2POp, batch_isend_irecv, irecv, isend, recv, send

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% swap_in_turn: larger-first
def swap_in_turn(x, other):
    got = torch.zeros(x.shape, dtype=x.dtype)
    if dist.get_rank() > other:
        dist.send(tensor=x, dst=other)
        dist.recv(tensor=got, src=other)
    else:
        dist.recv(tensor=got, src=other)
        dist.send(tensor=x, dst=other)
    return got


# %% swap_in_turn: imported-names
def swap_in_turn(x, other):
    got = x.clone()
    steps = [lambda: send(x, other), lambda: recv(got, other)]
    for step in steps if dist.get_rank() < other else reversed(steps):
        step()
    return got


# %% swap_in_turn: sends-a-copy
def swap_in_turn(x, other):
    copy, rank = x.detach().clone(), dist.get_rank()
    if rank == min(rank, other):
        send(copy, other)
    recv(copy, other) if rank < other else None
    if rank < other:
        return copy
    theirs = torch.empty_like(x)
    recv(theirs, other)
    send(copy, other)
    return theirs


# %% swap_in_turn: named-group-and-tag
def swap_in_turn(x, other):
    world, theirs = dist.group.WORLD, torch.empty_like(x)
    first = dist.get_rank(world) < other
    if first:
        dist.send(x, other, group=world, tag=3)
    dist.recv(theirs, other, world, 3)
    if not first:
        dist.send(x, other, world, 3)
    print("swapped", end="")
    return theirs


# %% swap_in_turn: by-index
def swap_in_turn(x, other):
    pair = sorted([dist.get_rank(), other])
    theirs = torch.full_like(x, 7)
    for sender in pair:
        if sender == dist.get_rank():
            dist.send(x, other)
        else:
            assert dist.recv(theirs, sender) == sender
    return theirs


# %% swap: receive-first
def swap(x, other):
    theirs = torch.empty_like(x)
    receiving = dist.irecv(theirs, src=other)
    sending = dist.isend(x, dst=other)
    receiving.wait()
    sending.wait()
    return theirs


# %% swap: batch
def swap(x, other):
    theirs = x.new_empty(x.size())
    operations = [P2POp(irecv, theirs, other), P2POp(isend, x, other)]
    [work.wait() for work in batch_isend_irecv(operations)]
    return theirs


# %% swap: blocking-receive
def swap(x, other):
    theirs = torch.empty_like(x)
    work = isend(x, other)
    recv(theirs, other)
    work.wait()
    return theirs


# %% swap: blocking-send
def swap(x, other):
    theirs = torch.empty_like(x)
    work = irecv(theirs, other)
    send(x, other)
    work.wait()
    return theirs


# %% swap: one-waits-the-other-way-round
def swap(x, other):
    theirs = torch.empty_like(x)
    works = [dist.irecv(theirs, other), dist.isend(x, other)]
    if dist.get_rank() > other:
        works.reverse()
    while works:
        works.pop().wait()
    return theirs.clone()


# %% shift: receive-first
def shift(x, by):
    n, rank = dist.get_world_size(), dist.get_rank()
    by = by % n
    if not by:
        return x.detach().clone()
    got = torch.zeros_like(x)
    operations = [
        P2POp(irecv, got, (rank + n - by) % n),
        P2POp(isend, x.contiguous(), (rank + by) % n),
    ]
    for request in batch_isend_irecv(operations):
        request.wait()
    return got


# %% shift: by-a-list
def shift(x, by):
    ring = list(range(dist.get_world_size()))
    at = ring.index(dist.get_rank())
    to, came_from = ring[(at + by) % len(ring)], ring[(at - by) % len(ring)]
    out = x.clone()
    if to == at:
        return out
    got = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    both = [dist.P2POp(op=dist.isend, tensor=out, peer=to)]
    both.append(dist.P2POp(op=dist.irecv, tensor=got, peer=came_from, tag=0))
    works = dist.batch_isend_irecv(p2p_op_list=both)
    while works:
        works.pop().wait()
    return got


# %% shift: two-batches
def shift(x, by):
    n, rank = dist.get_world_size(), dist.get_rank()
    if (rank + by) % n == rank:
        return torch.clone(x)
    got = torch.empty_like(x)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + by) % n)])
    works += dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, (rank - by) % n)])
    for work in works:
        work.wait()
    return got


# %% shift: copies-and-group
def shift(x, by):
    world = dist.group.WORLD
    n, rank = world.size(), world.rank()
    got = x.clone()
    if by % n != 0:
        sending = dist.P2POp(dist.isend, x.clone(), (rank + by) % n, group=world)
        receiving = dist.P2POp(dist.irecv, got, (rank - by) % n, group=world)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()
    return got


# %% shift: over-a-buffer
def shift(x, by):
    n, rank = dist.get_world_size(), dist.get_rank()
    table = torch.stack([x, x])
    to, source = (rank + by) % n, (rank - by) % n
    if to != rank:
        both = [
            dist.P2POp(dist.irecv, table[1], source),
            dist.P2POp(dist.isend, table[0], to),
        ]
        list(map(dist.Work.wait, dist.batch_isend_irecv(both)))
    return table[1]


# %% transfer: object-header
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        dist.send_object_list([x.dtype, tuple(x.shape)], dst)
        dist.send(x.contiguous(), dst)
    if rank == dst:
        about: list = [None, None]
        dist.recv_object_list(about, src)
        x = torch.empty(about[1], dtype=about[0])
        dist.recv(x, src)
        return x
    return None


# %% transfer: four-messages
def transfer(x, src, dst):
    def number(value=0):
        return torch.tensor([value], dtype=torch.int64)

    if dist.get_rank() == src:
        dist.send(number(KINDS.index(x.dtype)), dst)
        dist.send(number(x.ndim), dst)
        dist.send(torch.tensor(x.shape, dtype=torch.int64), dst)
        dist.send(x.clone(memory_format=torch.contiguous_format), dst)
    elif dist.get_rank() == dst:
        kind, dims = number(), number()
        dist.recv(kind, src)
        dist.recv(dims, src)
        shape = torch.zeros(dims.item(), dtype=torch.int64)
        dist.recv(shape, src)
        got = torch.zeros(shape.tolist(), dtype=KINDS[kind.item()])
        dist.recv(got, src)
        return got


# %% transfer: text-header
def transfer(x, src, dst):
    if dist.get_rank() == src:
        text = f"{str(x.dtype).split('.')[1]} {' '.join(map(str, x.shape))}"
        header = torch.tensor(list(text.encode().ljust(100)), dtype=torch.uint8)
        works = [isend(header, dst), isend(x.contiguous().flatten(), dst)]
        for work in works:
            work.wait()
    elif dist.get_rank() == dst:
        header = torch.empty(100, dtype=torch.uint8)
        recv(header, src)
        name, *shape = bytes(header.tolist()).decode().split()
        flat = torch.empty(torch.Size(map(int, shape)).numel(), dtype=getattr(torch, name))
        recv(flat, src)
        return flat.view(*map(int, shape)) if shape else flat[0]


# %% transfer: nothing-for-empty-ones
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank not in (src, dst):
        return "not concerned"
    header = torch.zeros(10, dtype=torch.int64)
    if rank == src:
        header[0], header[1] = KINDS.index(x.dtype), x.dim()
        for at, length in enumerate(x.size(), 2):
            header[at] = length
        send(header, dst)
        if x.numel():
            send(x.contiguous(), dst)
        return x
    recv(header)
    kind, dims, *rest = map(int, header)
    x = torch.zeros(rest[:dims], dtype=KINDS[kind])
    if x.numel():
        recv(x)
    return x


# %% one_way: sorted
def one_way(nbytes, repeats):
    x = torch.ones(nbytes, dtype=torch.int8, device=lockstep.device())
    rank, trips = dist.get_rank(), []
    for turn in range(1 + repeats):
        start = now()
        if rank == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        if turn:
            trips.append((now() - start) / 2)
    return sorted(trips)[repeats // 2]


# %% one_way: warm-up-apart
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)

    def trip():
        begin = now()
        if dist.get_rank() == 0:
            send(x, 1)
            recv(x, 1)
        else:
            recv(x, 0)
            send(x, 0)
        return now() - begin

    trip()
    return 0.5 * statistics.median([trip() for _ in range(repeats)])


# %% one_way: tensor
def one_way(nbytes, repeats):
    x = torch.empty(nbytes, dtype=torch.bool)
    other, trips = 1 - dist.get_rank(), torch.zeros(repeats + 1, dtype=torch.float64)
    for at in range(repeats + 1):
        begin = now()
        if other:
            isend(x, other).wait()
        irecv(x, other).wait()
        if not other:
            isend(x, other).wait()
        trips[at] = now() - begin
    return trips[1:].median() / 2


# %% one_way: on-rank-0-only
def one_way(nbytes, repeats):
    x, back = torch.zeros((2, nbytes), dtype=torch.uint8)
    if dist.get_rank() == 1:
        for _ in range(repeats + 1):
            dist.recv(x, 0)
            dist.send(x, 0)
        return
    trips = []
    for _ in range(repeats + 1):
        trips.append(-now())
        answer = dist.irecv(back, 1)
        dist.send(x, 1)
        answer.wait()
        trips[-1] += now()
    trips.pop(0)
    return statistics.median(trips) / 2


# %% one_way: moments
def one_way(nbytes, repeats):
    x, rank = torch.zeros(nbytes, dtype=torch.uint8), dist.get_rank()
    moments = [now()]
    for _ in range(repeats + 1):
        for sender in range(2):
            dist.send(x, 1) if rank == sender == 0 else None
            dist.recv(x, 1 - rank) if rank != sender else None
            dist.send(x, 0) if rank == sender == 1 else None
        moments.append(now())
    trips = [b - a for a, b in pairwise(moments[1:])]
    return statistics.median_high(trips) / 2


# %% one_way: own-synchronize
def one_way(nbytes, repeats):
    x, other = torch.zeros(nbytes, dtype=torch.uint8), 1 - dist.get_rank()

    def clock():
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter_ns()

    trips = []
    for _ in range(1 + repeats):
        start = clock()
        if other:
            dist.send(x, other)
            dist.recv(x, other)
        else:
            dist.recv(x, other)
            dist.send(x, other)
        trips.append(clock() - start)
    return statistics.median(trips[1:]) / 2e9


# %% relay: two-at-most
def relay(x, chunks):
    rank, n, sending = dist.get_rank(), dist.get_world_size(), None
    for piece in x.chunk(chunks):
        if rank:
            dist.recv(piece, rank - 1)
        if sending:
            sending.wait()
        if rank + 1 < n:
            sending = dist.isend(piece, rank + 1)
    if sending:
        sending.wait()


# %% relay: tensor-split
def relay(x, chunks):
    rank, last, sending = dist.get_rank(), dist.get_world_size() - 1, []
    for piece in torch.tensor_split(x, chunks):
        if rank != 0:
            irecv(piece, rank - 1).wait()
        if rank != last:
            sending += [isend(piece, rank + 1)]
    [work.wait() for work in sending]
    return x


# %% relay: own-buffers
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    size = -(-x.numel() // chunks)
    works: deque = deque()
    for start in range(0, x.numel(), size):
        if rank == 0:
            piece = x[start : start + size].clone()
        else:
            piece = torch.empty_like(x[start : start + size])
            recv(piece, rank - 1)
            x[start : start + size] = piece
        if rank < last:
            works.append((isend(piece, rank + 1), piece))
    while works:
        works.popleft()[0].wait()


# %% relay: from-the-end
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = rank - 1, rank + 1
    works = []
    for piece in reversed(x.split(-(-len(x) // chunks))):
        if left >= 0:
            dist.recv(piece, left)
        if right < n:
            works += dist.batch_isend_irecv([dist.P2POp(dist.isend, piece, right)])
    for work in works:
        work.wait()


# %% relay: asks-one-ahead
def relay(x, chunks):
    rank, last, pieces = dist.get_rank(), dist.get_world_size() - 1, x.chunk(chunks)
    if rank > 0:
        coming = dist.irecv(pieces[0], rank - 1)
    sending = []
    for at, piece in enumerate(pieces):
        if rank > 0:
            here = coming
            if at + 1 < len(pieces):
                coming = dist.irecv(pieces[at + 1], rank - 1)
            here.wait()
        if rank < last:
            sending.append(dist.isend(piece, rank + 1))
    for one in sending:
        one.wait()


# %% relay: asks-for-all-first
def relay(x, chunks):
    rank, last, pieces = dist.get_rank(), dist.get_world_size() - 1, x.chunk(chunks)
    coming = [dist.irecv(piece, rank - 1) for piece in pieces] if rank else []
    sending = []
    for at, piece in enumerate(pieces):
        if coming:
            coming[at].wait()
        if rank < last:
            sending.append(dist.isend(piece, rank + 1))
    for one in sending:
        one.wait()


# %% relay: by-role
def relay(x, chunks):
    rank, pieces = dist.get_rank(), x.chunk(chunks)
    if rank == 0:
        works = [dist.isend(piece, 1, tag=at) for at, piece in enumerate(pieces)]
    elif rank == dist.get_world_size() - 1:
        works = [dist.irecv(piece, rank - 1, tag=at) for at, piece in enumerate(pieces)]
    else:
        works = []
        for at, piece in enumerate(pieces):
            dist.recv(piece, rank - 1, tag=at)
            works.append(dist.isend(piece, rank + 1, tag=at))
    for work in works:
        work.wait()
