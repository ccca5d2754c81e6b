"""Wrong answers to the exercises of lab 02, each under the mistake that its check has to name."""

import contextlib
import datetime
import statistics
import time

import lockstep
import torch
import torch.distributed as dist

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% swap_in_turn: both-send
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    dist.send(x, other)
    dist.recv(theirs, other)
    return theirs


# %% swap_in_turn: both-receive
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    dist.recv(theirs, other)
    dist.send(x, other)
    return theirs


# %% swap_in_turn: by-one-number
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() % 2 == 0:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: changed
def swap_in_turn(x, other):
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(x, other)
    else:
        dist.recv(x, other)
        dist.send(x, other)
    return x


# %% swap_in_turn: at-once
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    handles = [dist.isend(x, other), dist.irecv(theirs, other)]
    for handle in handles:
        handle.wait()
    return theirs


# %% swap_in_turn: own-x
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return x


# %% swap_in_turn: too-small
def swap_in_turn(x, other):
    theirs = torch.empty(len(x), dtype=x.dtype)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: receives-nothing
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
    else:
        dist.recv(theirs, other)
    return theirs


# %% swap_in_turn: another-ranks
def swap_in_turn(x, other):
    other = dist.get_rank() ^ 1
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap_in_turn: uses-a-collective
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
    else:
        dist.recv(theirs, other)
    dist.barrier()
    if dist.get_rank() < other:
        dist.recv(theirs, other)
    else:
        dist.send(x, other)
    return theirs


# %% swap_in_turn: type
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)


# %% swap: no-wait
def swap(x, other):
    theirs = torch.empty_like(x)
    handles = [dist.isend(x, other), dist.irecv(theirs, other)]
    handles[0].wait()
    return theirs


# %% swap: waits-too-early
def swap(x, other):
    theirs = torch.empty_like(x)
    dist.isend(x, other).wait()
    dist.irecv(theirs, other).wait()
    return theirs


# %% swap: changed
def swap(x, other):
    for handle in [dist.isend(x, other), dist.irecv(x, other)]:
        handle.wait()
    return x


# %% swap: in-turn
def swap(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% swap: to-itself
def swap(x, other):
    theirs = torch.empty_like(x)
    rank = dist.get_rank()
    sending, receiving = dist.isend(x, rank), dist.irecv(theirs, rank)
    sending.wait()
    receiving.wait()
    return theirs


# %% swap: too-much
def swap(x, other):
    ins = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    works = [dist.isend(x, one) for one in range(dist.get_world_size()) if one != dist.get_rank()]
    for one in range(dist.get_world_size()):
        if one != dist.get_rank():
            dist.recv(ins[one], one)
    for work in works:
        work.wait()
    return ins[other]


# %% swap: dtype
def swap(x, other):
    theirs = torch.zeros(x.shape)
    sending, receiving = dist.isend(x.float(), other), dist.irecv(theirs, other)
    sending.wait()
    receiving.wait()
    return theirs


# %% shift: other-way
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    sending = dist.isend(x, (rank - by) % n)
    dist.recv(theirs, (rank + by) % n)
    sending.wait()
    return theirs


# %% shift: sends-first
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    dist.send(x, (rank + by) % n)
    dist.recv(theirs, (rank - by) % n)
    return theirs


# %% shift: to-itself
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    theirs = torch.empty_like(x)
    sending = dist.isend(x, (rank + by) % n)
    dist.recv(theirs, (rank - by) % n)
    sending.wait()
    return theirs


# %% shift: no-wrap
def shift(x, by):
    rank = dist.get_rank()
    theirs = torch.empty_like(x)
    sending = dist.isend(x, rank + by)
    dist.recv(theirs, rank - by)
    sending.wait()
    return theirs


# %% shift: no-wait
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    _sending = dist.isend(x, (rank + by) % n)
    dist.recv(theirs, (rank - by) % n)
    return theirs


# %% shift: many-hops
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    for _ in range(by % n):
        theirs = torch.empty_like(x)
        sending = dist.isend(x, (rank + 1) % n)
        dist.recv(theirs, (rank - 1) % n)
        sending.wait()
        x = theirs
    return x.clone()


# %% shift: not-batched
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    sending, receiving = dist.isend(x, (rank + by) % n), dist.irecv(theirs, (rank - by) % n)
    sending.wait()
    receiving.wait()
    return theirs


# %% shift: not-a-copy
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, theirs, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


# %% shift: changed
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    both = [
        dist.P2POp(dist.isend, x.clone(), (rank + by) % n),
        dist.P2POp(dist.irecv, x, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return x.clone()


# %% shift: by-not-used
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + 1) % n),
        dist.P2POp(dist.irecv, theirs, (rank - 1) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


# %% shift: sign-lost
def shift(x, by):
    by = abs(by)
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, theirs, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


# %% shift: same-peer
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, theirs, (rank + by) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


# %% shift: uses-a-collective
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    everybody = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(everybody, x)
    return everybody[(rank - by) % n]


# %% shift: own-x
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    theirs = x.clone()
    if by % n:
        both = [
            dist.P2POp(dist.isend, x, (rank + by) % n),
            dist.P2POp(dist.irecv, torch.empty_like(x), (rank - by) % n),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
    return theirs


# %% transfer: dtype
def transfer(x, src, dst):
    header = torch.zeros(9, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x.float().contiguous(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        dim, *shape = header.tolist()
        x = torch.empty(shape[:dim])
        dist.recv(x, src)
        return x


# %% transfer: shape
def transfer(x, src, dst):
    header = torch.zeros(2, dtype=torch.int64)
    if dist.get_rank() == src:
        header[:] = torch.tensor([KINDS.index(x.dtype), x.numel()])
        dist.send(header, dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        x = torch.empty(int(header[1]), dtype=KINDS[header[0]])
        dist.recv(x, src)
        return x


# %% transfer: not-contiguous
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x, dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        x = torch.empty(shape[:dim], dtype=KINDS[kind])
        dist.recv(x, src)
        return x


# %% transfer: pickled
def transfer(x, src, dst):
    parts = [x]
    if dist.get_rank() == src:
        dist.send_object_list(parts, dst)
    elif dist.get_rank() == dst:
        dist.recv_object_list(parts, src)
        return parts[0]


# %% transfer: uses-a-collective
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
    dist.broadcast(header, src)
    kind, dim, *shape = header.tolist()
    got = x.contiguous() if dist.get_rank() == src else torch.empty(shape[:dim], dtype=KINDS[kind])
    dist.broadcast(got, src)
    if dist.get_rank() == dst:
        return got


# %% transfer: through-floats
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x.contiguous().double(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=torch.float64)
        dist.recv(got, src)
        return got.to(KINDS[kind])


# %% transfer: outsider-waits
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x.contiguous(), dst)
    else:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=KINDS[kind])
        dist.recv(got, src)
        return got


# %% transfer: wrong-places
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x.permute(*reversed(range(x.dim()))).contiguous() if x.dim() > 1 else x, dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=KINDS[kind])
        dist.recv(got, src)
        return got


# %% transfer: too-much
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        for element in x.flatten():
            dist.send(element.reshape(1), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=KINDS[kind])
        flat = got.view(-1)
        for i in range(flat.numel()):
            dist.recv(flat[i : i + 1], src)
        return got


# %% transfer: as-bytes
def transfer(x, src, dst):
    about = torch.full((9,), -1, dtype=torch.int32)
    if dist.get_rank() == src:
        about[: x.dim()] = torch.tensor(list(x.shape), dtype=torch.int32)
        about[8] = KINDS.index(x.dtype)
        dist.send(about, dst)
        dist.send(x.contiguous().reshape(-1).view(torch.uint8), dst)
    elif dist.get_rank() == dst:
        dist.recv(about, src)
        *shape, kind = about.tolist()
        shape = [length for length in shape if length >= 0]
        got = torch.zeros(shape, dtype=KINDS[kind])
        raw = torch.empty(got.numel() * got.element_size(), dtype=torch.uint8)
        dist.recv(raw, src)
        return raw.view(got.dtype).reshape(shape)


# %% transfer: too-small
def transfer(x, src, dst):
    if dist.get_rank() == src:
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        got = torch.empty(1)
        dist.recv(got, src)
        return got


# %% transfer: no-wait
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        _work = dist.isend(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=KINDS[kind])
        dist.recv(got, src)
        return got


# %% transfer: type
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(x.contiguous(), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=KINDS[kind])
        dist.recv(got, src)


# %% one_way: round-trip
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for rank in (0, 1):
            dist.send(x, 1 - rank) if dist.get_rank() == rank else dist.recv(x, rank)
        trips.append(now() - begin)
    return statistics.median(trips[1:])


# %% one_way: mean
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for rank in (0, 1):
            dist.send(x, 1 - rank) if dist.get_rank() == rank else dist.recv(x, rank)
        trips.append(now() - begin)
    return statistics.mean(trips[1:]) / 2


# %% one_way: mean-there-and-back
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for rank in (0, 1):
            dist.send(x, 1 - rank) if dist.get_rank() == rank else dist.recv(x, rank)
        trips.append(now() - begin)
    return sum(trips) / len(trips)


# %% one_way: no-warm-up
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    begin = now()
    for _ in range(repeats):
        for rank in (0, 1):
            dist.send(x, 1 - rank) if dist.get_rank() == rank else dist.recv(x, rank)
    return (now() - begin) / repeats / 2


# %% one_way: wrong-bytes
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for rank in (0, 1):
            dist.send(x, 1 - rank) if dist.get_rank() == rank else dist.recv(x, rank)
        trips.append(now() - begin)
    return statistics.median(trips[1:]) / 2


# %% one_way: one-sided
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        dist.recv(x, 0) if dist.get_rank() else dist.send(x, 1)
        trips.append(now() - begin)
    return statistics.median(trips[1:])


# %% one_way: minimum
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    return min(trips[1:]) / 2


# %% one_way: first-counted
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    return statistics.median(trips) / 2


# %% one_way: not-sorted
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    trips = trips[1:]
    return trips[len(trips) // 2] / 2


# %% one_way: other-unit
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    return 1000000.0 * statistics.median(trips[1:]) / 2


# %% one_way: wrong-count
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 2):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    return statistics.median(trips[2:]) / 2


# %% one_way: both-send
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    other = 1 - dist.get_rank()
    for _ in range(repeats + 1):
        begin = now()
        dist.send(x, other)
        dist.recv(x, other)
        trips.append(now() - begin)
    return statistics.median(trips[1:]) / 2


# %% one_way: too-short
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            trips.append(now() - begin)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
            trips.append(0)
    return statistics.median(trips[1:])


# %% relay: whole
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        dist.recv(x, rank - 1)
    if rank < last:
        dist.send(x, rank + 1)


# %% relay: all-then-on
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        for piece in x.chunk(chunks):
            dist.recv(piece, rank - 1)
    if rank < last:
        for piece in x.chunk(chunks):
            dist.send(piece, rank + 1)


# %% relay: from-the-first
def relay(x, chunks):
    for piece in x.chunk(chunks):
        if dist.get_rank() > 0:
            dist.recv(piece, 0)
        else:
            for other in range(1, dist.get_world_size()):
                dist.send(piece, other)


# %% relay: no-wait
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < last:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles[:-1]:
        handle.wait()


# %% relay: uses-a-collective
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < last:
            dist.send(piece, rank + 1)
        dist.barrier()


# %% relay: remainder
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    n = x.numel() // chunks
    for i in range(chunks):
        piece = x[i * n : (i + 1) * n]
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < last:
            dist.send(piece, rank + 1)


# %% relay: ring
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for piece in x.chunk(chunks):
        if rank > 0:
            dist.recv(piece, rank - 1)
        handles.append(dist.isend(piece, (rank + 1) % n))
    for handle in handles:
        handle.wait()


# %% relay: asks-before-passing
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles, pieces = [], x.chunk(chunks)
    for number, piece in enumerate(pieces):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if number > 0 and rank < last:
            handles.append(dist.isend(pieces[number - 1], rank + 1))
    if rank < last:
        handles.append(dist.isend(pieces[-1], rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: misplaced
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    buffer = None
    handles = []
    for piece in x.chunk(chunks):
        if buffer is None:
            buffer = torch.empty_like(piece)
        room = buffer[: piece.numel()]
        if rank > 0:
            dist.recv(room, rank - 1)
            piece.copy_(room)
        else:
            room.copy_(piece)
        if rank < last:
            handles.append(dist.isend(room, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: untouched-here
def relay(x, chunks):
    rank = dist.get_rank()
    for piece in x.chunk(chunks):
        if rank == 0:
            dist.send(piece, 1)
        elif rank == 1:
            dist.recv(piece, 0)


# %% relay: other-way
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(chunks):
        if rank < last:
            dist.recv(piece, rank + 1)
        if rank > 0:
            handles.append(dist.isend(piece, rank - 1))
    for handle in handles:
        handle.wait()


# %% relay: untouched
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    out = []
    handles = []
    for piece in x.chunk(chunks):
        if rank > 0:
            piece = torch.empty_like(piece)
            dist.recv(piece, rank - 1)
        out.append(piece)
        if rank < last:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()
    x = torch.cat(out)


# %% relay: other-pieces
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(4):
        if rank > 0:
            dist.recv(piece, rank - 1)
        if rank < last:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: blocking
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    for piece in x.chunk(chunks):
        if rank:
            dist.recv(piece, src=rank - 1)
        if rank + 1 < n:
            dist.send(piece, dst=rank + 1)


# %% one_way: own-clock
def one_way(nbytes, repeats):
    x, other = torch.zeros(nbytes, dtype=torch.uint8), 1 - dist.get_rank()
    trips = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        if other:
            dist.send(x, other)
            dist.recv(x, other)
        else:
            dist.recv(x, other)
            dist.send(x, other)
        trips.append(time.perf_counter() - begin)
    return statistics.median(trips[1:]) / 2


# %% swap: tags-differ
def swap(x, other):
    theirs, rank = torch.empty_like(x), dist.get_rank()
    sending = dist.isend(x, other, tag=rank)
    receiving = dist.irecv(theirs, other, tag=rank)
    sending.wait()
    receiving.wait()
    return theirs


# %% swap_in_turn: overwritten
buffers_of_swap: dict = {}


def swap_in_turn(x, other):
    theirs = buffers_of_swap.setdefault((x.shape, x.dtype), torch.empty_like(x))
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(x, other)
    return theirs


# %% shift: overwritten
buffers_of_shift: dict = {}


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if by % n == 0:
        return x.clone()
    got = buffers_of_shift.setdefault((x.shape, x.dtype), torch.empty_like(x))
    there = dist.P2POp(dist.isend, x, (rank + by) % n)
    here = dist.P2POp(dist.irecv, got, (rank - by) % n)
    for work in dist.batch_isend_irecv([there, here]):
        work.wait()
    return got


# %% shift: nothing-arrived
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    theirs = torch.zeros_like(x)
    into = theirs.clone()
    if by % n == 0:
        return x.clone()
    receiving = dist.irecv(into, (rank - by) % n)
    dist.send(x, (rank + by) % n)
    receiving.wait()
    return theirs


# %% shift: nothing-arrived
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    theirs = torch.zeros_like(x)
    if by % n:
        receiving = dist.irecv(theirs.clone(), (rank - by) % n)
        dist.send(x, (rank + by) % n)
        receiving.wait()
    return theirs


# %% swap_in_turn: sent-back
def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(theirs, other)
    return theirs


# %% swap: sent-back
def swap(x, other):
    theirs = torch.empty_like(x)
    into = torch.empty_like(x) if dist.get_rank() < other else theirs
    for handle in [dist.isend(x, other), dist.irecv(into, other)]:
        handle.wait()
    return theirs if into is theirs else x.clone()


# %% swap: gives-up
def swap(x, other):
    theirs = torch.zeros_like(x)
    for handle in [dist.isend(x, other), dist.irecv(theirs, other)]:
        with contextlib.suppress(RuntimeError):
            handle.wait(datetime.timedelta(milliseconds=20))
    return theirs


# %% shift: at-most-once-around
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    by = max(-n, min(by, n))
    if by % n == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + by) % n),
        dist.P2POp(dist.irecv, theirs, (rank - by) % n),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


# %% shift: same-buffer
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    theirs = x.clone()
    if by % n:
        both = [
            dist.P2POp(dist.irecv, theirs, (rank - by) % n),
            dist.P2POp(dist.isend, theirs, (rank + by) % n),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
    return theirs


# %% shift: fixed-number
def shift(x, by):
    rank = dist.get_rank()
    if by % 4 == 0:
        return x.clone()
    theirs = torch.empty_like(x)
    both = [
        dist.P2POp(dist.isend, x, (rank + by) % 4),
        dist.P2POp(dist.irecv, theirs, (rank - by) % 4),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return theirs


# %% one_way: divided-again
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    return statistics.median(trips[1:]) / (2 * repeats)


# %% one_way: both-at-once
def one_way(nbytes, repeats):
    x, y = torch.zeros((2, nbytes), dtype=torch.uint8)
    trips, other = [], 1 - dist.get_rank()
    for _ in range(repeats + 1):
        begin = now()
        handles = [dist.isend(x, other), dist.irecv(y, other)]
        for handle in handles:
            handle.wait()
        trips.append(now() - begin)
    return statistics.median(trips[1:]) / 2


# %% one_way: own-clock
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    return statistics.median(trips[1:]) / 2


# %% transfer: gaps
def transfer(x, src, dst):
    header = torch.zeros(10, dtype=torch.int64)
    if dist.get_rank() == src:
        about = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header[: len(about)] = torch.tensor(about)
        dist.send(header, dst)
        dist.send(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()), dst)
    elif dist.get_rank() == dst:
        dist.recv(header, src)
        kind, dim, *shape = header.tolist()
        got = torch.empty(shape[:dim], dtype=KINDS[kind])
        dist.recv(got, src)
        return got


# %% relay: before-it-came
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(chunks):
        if rank > 0:
            handles.append(dist.irecv(piece, rank - 1))
        if rank < last:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: before-it-came
def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(chunks):
        if rank < last:
            handles.append(dist.isend(piece.clone(), rank + 1))
        if rank > 0:
            dist.recv(piece, rank - 1)
    for handle in handles:
        handle.wait()


# %% swap_in_turn: nothing-arrived
def swap_in_turn(x, other):
    theirs = torch.zeros_like(x)
    if dist.get_rank() < other:
        dist.send(x, other)
        dist.recv(theirs.clone(), other)
    else:
        dist.recv(theirs.clone(), other)
        dist.send(x, other)
    return theirs


# %% swap: nothing-arrived
def swap(x, other):
    theirs = torch.zeros_like(x)
    sending, receiving = dist.isend(x, other), dist.irecv(theirs.clone(), other)
    sending.wait()
    receiving.wait()
    return theirs


# %% swap: own-x
def swap(x, other):
    theirs = torch.empty_like(x)
    for handle in [dist.isend(x, other), dist.irecv(theirs, other)]:
        handle.wait()
    return x


# %% one_way: not-the-median
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        begin = now()
        for sender in (0, 1):
            dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        trips.append(now() - begin)
    faster = sorted(trips[1:])[: repeats // 2 + 1]
    return statistics.mean(faster) / 2
