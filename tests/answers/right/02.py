"""Right answers to the exercises of lab 02, written without sight of its checks; see judge.py."""

import collections
import contextlib
import functools
import itertools
import json
import operator
import statistics
import struct
import time

import lockstep
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import (
    P2POp,
    batch_isend_irecv,
    get_rank,
    get_world_size,
    irecv,
    isend,
    recv,
    send,
)

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64]


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% swap_in_turn: sorted-calls
# The two calls are made as partials in a list, which the higher rank turns round; the loop makes them.


def swap_in_turn(x, other):
    theirs = torch.empty_like(x)
    turns = [functools.partial(dist.send, x, other), functools.partial(dist.recv, theirs, other)]
    for call in turns if dist.get_rank() < other else reversed(turns):
        call()
    return theirs


# %% swap_in_turn: higher-first-by-keywords
# The higher rank sends first; all arguments by keyword, the group named, functions imported by their own names.


def swap_in_turn(x, other):
    out, into = x.clone(), x.new_zeros(x.shape)
    me = get_rank(dist.group.WORLD)
    if max(me, other) == me:
        send(tensor=out, dst=other, group=dist.group.WORLD)
        recv(tensor=into, src=other, group=dist.group.WORLD)
    else:
        recv(tensor=into, src=other, group=dist.group.WORLD)
        send(tensor=out, dst=other, group=dist.group.WORLD)
    return into


# %% swap_in_turn: as-bytes
# What travels is a flat uint8 view of the numbers; the receiver views its own bytes as the type and shape of x.


def swap_in_turn(x, other):
    flat = x.detach().contiguous().reshape(-1)
    theirs = torch.empty_like(flat)
    out, into = flat.view(torch.uint8), theirs.view(torch.uint8)
    if dist.get_rank() < other:
        dist.send(out, other)
        dist.recv(into, other)
    else:
        dist.recv(into, other)
        dist.send(out, other)
    return theirs.view(x.shape)


# %% swap_in_turn: callable-object
# A class whose instance is the answer; two methods, and a choice between them by comparing ranks.


class _Swapper:
    def talk(self, x, other):
        dist.send(x, dst=other)
        return self.listen(x, other)

    def listen(self, x, other):
        theirs = torch.zeros_like(x)
        assert dist.recv(theirs, src=other) == other
        return theirs

    def listen_first(self, x, other):
        theirs = self.listen(x, other)
        dist.send(x, dst=other)
        return theirs

    def __call__(self, x, other):
        return (self.listen_first, self.talk)[dist.get_rank() < other](x, other)


swap_in_turn = _Swapper()


# %% swap_in_turn: generator
# A generator makes one call at each step and is run to its end; the lower rank's begins with the send.


def swap_in_turn(x, other):
    def sends():
        dist.send(x, other)
        yield

    def receives(into):
        dist.recv(into, other)
        yield into

    into = torch.full_like(x, 0)
    steps = (sends(), receives(into)) if dist.get_rank() < other else (receives(into), sends())
    came = [one for one in itertools.chain(*steps) if one is not None]
    return came[0]


# %% swap_in_turn: one-expression
# A lambda with a tuple of which it takes an element: Python evaluates a tuple from left to right.

swap_in_turn = lambda x, other, empty=torch.empty_like: (  # noqa: E731
    (lambda y: (dist.send(x, other), dist.recv(y, other), y)[-1])
    if dist.get_rank() - other < 0
    else (lambda y: (dist.recv(y, other), dist.send(x, other), y)[-1])
)(empty(x))


# %% swap_in_turn: a-loop-over-senders
# First the one with the smaller number sends, then the other.


def swap_in_turn(x, other):
    came = torch.full_like(x, 0)
    for sender in sorted([dist.get_rank(), other]):
        if sender == other:
            dist.recv(came, sender)
        else:
            dist.send(x, other)
    return came


# %% swap_in_turn: higher-rank-first
# The higher of two sends first; keyword arguments.


def swap_in_turn(x, other):
    result = x.new_empty(x.shape)
    calls = [lambda: dist.send(x, dst=other), lambda: dist.recv(result, src=other)]
    if other > dist.get_rank():
        calls.reverse()
    for call in calls:
        call()
    return result


# %% swap: batch
# batch_isend_irecv with a comprehension over the two directions.


def swap(x, other):
    theirs = torch.empty_like(x)
    pairs = {dist.isend: x, dist.irecv: theirs}
    works = dist.batch_isend_irecv(
        [dist.P2POp(call, tensor, other) for call, tensor in pairs.items()]
    )
    for work in works:
        work.wait()
    return theirs


# %% swap: receive-first-wait-backwards
# irecv is begun first, and the waits come in the opposite order of the beginnings.


def swap(x, other):
    theirs = x.new_empty(x.shape)
    receiving = irecv(theirs, src=other)
    sending = isend(x, dst=other)
    sending.wait()
    receiving.wait()
    return theirs


# %% swap: exit-stack
# The waits are callbacks of a contextlib.ExitStack, which runs them when the block is left, the last one first.


def swap(x, other):
    theirs = torch.zeros_like(x)
    with contextlib.ExitStack() as stack:
        stack.callback(dist.isend(x, other).wait)
        stack.callback(dist.irecv(theirs, other).wait)
    return theirs


# %% swap: bytes-of-a-copy
# Sends the bytes of a copy of x, receives into bytes, and gives them their type and shape afterwards.


def swap(x, other):
    out = x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    into = torch.empty_like(out)
    handles = [dist.isend(out, other), dist.irecv(into, other)]
    while handles:
        handles.pop().wait()
    return into.view(x.dtype).reshape(x.shape)


# %% swap: map-and-methodcaller
# Functional style: the calls are mapped over the tensors, the waits over the handles (`all` needs every one of them,
# and the list makes it eager).


def swap(x, other):
    tensors = (x, torch.empty_like(x))
    handles = list(map(lambda call, tensor: call(tensor, other), (dist.isend, dist.irecv), tensors))
    list(map(operator.methodcaller("wait"), handles))
    return tensors[1]


# %% swap: order-differs-by-rank
# A batch whose list is turned round on the higher rank (the order in a batch doesn't matter), with keywords and the
# group named in each P2POp.


def swap(x, other):
    theirs = torch.empty_like(x)
    ops = [
        P2POp(op=dist.isend, tensor=x, peer=other, group=dist.group.WORLD),
        P2POp(op=dist.irecv, tensor=theirs, peer=other, group=dist.group.WORLD),
    ]
    order = 1 if get_rank() < other else -1
    for work in batch_isend_irecv(ops[::order]):
        work.wait()
    return theirs


# %% swap: blocking-receive-while-the-send-is-open
# A send is begun; the receive is a call that begins and waits; then the send is waited for.


def swap(x, other):
    y = torch.empty_like(x)
    sending = dist.isend(x, other)
    dist.recv(y, other)
    sending.wait()
    return y


# %% swap: both-described-as-pairs
# A batch, its operations from a list of pairs, receive first.


def swap(x, other):
    y = torch.zeros_like(x)
    ops = [dist.P2POp(way, t, other) for way, t in ((dist.irecv, y), (dist.isend, x))]
    all(work.wait() for work in dist.batch_isend_irecv(ops))
    return y


# %% shift: modulo
# The receive is first in the batch, and the case of its own x is seen from the peer's number.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    source, to = (rank - by) % n, (rank + by) % n
    came = torch.empty_like(x)
    if source == rank:
        return came.copy_(x)
    ops = [dist.P2POp(dist.irecv, came, source), dist.P2POp(dist.isend, x, to)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return came


# %% shift: deque-rotate
# A deque of all ranks is rotated by `by`: what stands at this rank's place is the source, and where this rank stands
# is the target.


def shift(x, by):
    rank = get_rank()
    ranks = collections.deque(range(get_world_size()))
    ranks.rotate(by)
    if ranks[rank] == rank:
        return x.detach().clone()
    came = torch.zeros_like(x)
    works = batch_isend_irecv([P2POp(isend, x, ranks.index(rank)), P2POp(irecv, came, ranks[rank])])
    [work.wait() for work in works]
    return came


# %% shift: torch-roll
# The table of sources is a rolled arange; argsort inverts it into the table of targets.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    sources = torch.arange(n).roll(by % n)
    targets = sources.argsort()
    source, target = int(sources[rank]), int(targets[rank])
    result = x.clone()
    if source != rank:
        ops = [dist.P2POp(dist.isend, x, target), dist.P2POp(dist.irecv, result, source)]
        for work in reversed(dist.batch_isend_irecv(ops)):
            work.wait()
    return result


# %% shift: recursion-and-bytes
# Calls itself with `by` brought into 0 .. n - 1 by divmod; sends the bytes of x.


def shift(x, by):
    n = dist.get_world_size()
    turns, places = divmod(by, n)
    if turns:
        return shift(x, places)
    if not places:
        return x.clone()
    rank = dist.get_rank()
    out = x.detach().contiguous().reshape(-1)
    came = torch.empty_like(out)
    ops = [
        dist.P2POp(dist.isend, out.view(torch.uint8), (rank + places) % n),
        dist.P2POp(dist.irecv, came.view(torch.uint8), rank - places + (n if rank < places else 0)),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return came.view(x.shape)


# %% shift: permutation-matrix
# numpy: row r of a rolled identity matrix has its one in the column of r's source, and its column r in the row of r's
# target.


def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    matrix = np.roll(np.eye(n, dtype=int), by % n, axis=0)  # row r was row r - by
    numbers = np.arange(n)
    source = int(np.einsum("j,j->", matrix[rank], numbers))
    target = int(np.einsum("i,i->", matrix[:, rank], numbers))
    if source == rank:
        return torch.clone(x)
    came = torch.empty_like(x)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, target), dist.P2POp(dist.irecv, came, source)]
    ):
        work.wait()
    return came


# %% shift: cycle-helper-class
# A class that walks around the ring with itertools; a copy of x is sent, and the waits are in a `with` block's end.


class _Ring:
    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def at(self, places):
        onwards = itertools.cycle(range(self.size))
        return next(itertools.islice(onwards, self.rank + places % self.size, None))


def shift(x, by):
    ring = _Ring()
    came, out = torch.empty_like(x), x.clone()
    if ring.at(by) == ring.rank:
        return out
    with contextlib.ExitStack() as stack:
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, out, ring.at(by)), dist.P2POp(dist.irecv, came, ring.at(-by))]
        ):
            stack.callback(work.wait)
    return came


# %% shift: distance-first
# How far it is from 0 to N - 1; nothing to do at 0.


def shift(x, by):
    n, rank = dist.get_world_size(), dist.get_rank()
    by %= n
    result = x.clone()
    if by:
        send = dist.P2POp(dist.isend, x, rank + by if rank + by < n else rank + by - n)
        receive = dist.P2POp(dist.irecv, result, rank - by if rank >= by else rank - by + n)
        [work.wait() for work in dist.batch_isend_irecv([receive, send])]
    return result


# %% shift: a-rotated-list
# The ring as a deque that is turned.


def shift(x, by):
    ring = collections.deque(range(dist.get_world_size()))
    rank = dist.get_rank()
    ring.rotate(by)
    source = ring[rank]
    ring.rotate(-2 * by)
    target = ring[rank]
    if source == rank:
        return torch.clone(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    ops = [dist.P2POp(dist.isend, x.contiguous(), target), dist.P2POp(dist.irecv, y, source)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y


# %% one_way: two-calls-in-an-order
# The calls of both ranks are one tuple, which rank 1 turns round; a closure makes a trip and returns its time.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    rank = dist.get_rank()
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    calls = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)

    def trip():
        begin = now()
        for call in calls:
            call(x, 1 - rank)
        return now() - begin

    trip()
    seconds = [trip() for _ in range(repeats)]
    if rank == 0:
        return statistics.median(seconds) / 2


# %% one_way: stamps-and-differences
# One list of stamps, of which each is the end of a trip and the begin of the next; numpy's diff and median.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.empty(nbytes, dtype=torch.int8, device=lockstep.device())
    stamps = []
    for _ in range(repeats + 1):
        if get_rank() == 0:
            send(x, 1)
            recv(x, 1)
        else:
            recv(x, 0)
            send(x, 0)
        stamps.append(now())
    return float(np.median(np.diff(stamps))) / 2


# %% one_way: handles-and-own-median
# isend and irecv with handles, and the median by hand: the mean of the two in the middle (which are one if odd). The
# warm-up has a begin and no end, so now() is called an odd number of times.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.ones(nbytes, dtype=torch.bool, device=lockstep.device())
    rank, times = dist.get_rank(), []
    for number in range(-1, repeats):
        begin = now()
        if rank == 0:
            dist.isend(x, 1).wait()
            dist.irecv(x, 1).wait()
        else:
            dist.irecv(x, 0).wait()
            dist.isend(x, 0).wait()
        if number >= 0:
            times.append(now() - begin)
    times.sort()
    low, high = times[(repeats - 1) // 2], times[repeats // 2]
    return (low + high) / 4 if rank == 0 else None


# %% one_way: only-rank-0-has-a-clock
# Rank 1 is an echo that takes no times; rank 0 halves each trip before it takes the median.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros([nbytes], device=lockstep.device(), dtype=torch.uint8)
    if dist.get_rank() == 1:
        for _ in range(1 + repeats):
            dist.recv(x, src=0)
            dist.send(x, dst=0)
        return None

    def there_and_back():
        dist.send(x, dst=1)
        dist.recv(x, src=1)

    there_and_back()
    halves = []
    for _ in range(repeats):
        begin = now()
        there_and_back()
        halves.append((now() - begin) / 2)
    return statistics.median(halves)


# %% one_way: generator-and-quantile
# A generator yields the times of all trips, islice drops the first; the median is torch's 0.5 quantile in float64,
# which takes the mean of the two in the middle.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    def trips(peer):
        x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
        ball = [functools.partial(dist.send, x, peer), functools.partial(dist.recv, x, peer)]
        if peer == 0:
            ball.reverse()
        while True:
            begin = now()
            ball[0]()
            ball[1]()
            yield now() - begin

    seconds = list(itertools.islice(trips(1 - dist.get_rank()), 1, repeats + 1))
    return torch.tensor(seconds, dtype=torch.float64).quantile(0.5).item() / 2


# %% one_way: batches-of-one
# Each message is a batch of one P2POp; the times are kept in an array, with the warm-up's as NaN, and nanmedian (of
# numpy, the true median) skips it.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    rank = dist.get_rank()
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, x, 1 - rank)]
    times = np.full(repeats + 1, np.nan)
    for turn in range(repeats + 1):
        begin = now()
        for op in ops if rank == 0 else ops[::-1]:
            (work,) = dist.batch_isend_irecv([op])
            work.wait()
        end = now()
        if turn > 0:
            times[turn] = end - begin
    return float(np.nanmedian(times)) * 0.5 if rank == 0 else None


# %% one_way: each-trip-in-a-function
# A function for a trip, called once before, and half of the median of its times.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.empty(nbytes, dtype=torch.uint8, device=lockstep.device())
    first = dist.get_rank() == 0

    def trip():
        start = now()
        if first:
            dist.send(x, 1)
        dist.recv(x, 1 - dist.get_rank())
        if not first:
            dist.send(x, 0)
        return now() - start

    trip()
    return 0.5 * statistics.median([trip() for _ in range(repeats)])


# %% one_way: two-tensors
# One goes there, another comes back; the median by numbers in order.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    out = torch.ones(nbytes, dtype=torch.uint8, device=lockstep.device())
    back = torch.ones_like(out)
    halves = []
    for turn in range(1 + repeats):
        if dist.get_rank() == 1:
            dist.recv(back, 0)
            dist.send(back, 0)
            continue
        begin = now()
        dist.send(out, 1)
        dist.recv(back, 1)
        end = now()
        if turn > 0:
            halves.append((end - begin) / 2)
    if dist.get_rank() == 0:
        halves = sorted(halves)
        return (halves[(repeats - 1) // 2] + halves[repeats // 2]) / 2


# %% one_way: upper-median
# The element in the middle of the sorted times: of an even number the upper one, as torch.median gives the lower one.


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    times = []
    for turn in range(repeats + 1):
        begin = now()
        if dist.get_rank() == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
        seconds = now() - begin
        if turn:
            times.append(seconds)
    return sorted(times)[len(times) // 2] / 2 if dist.get_rank() == 0 else None


# %% relay: recv-then-isend
# A blocking recv for each piece, an isend that is waited for in the end.


def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handles = []
    for piece in x.chunk(chunks):
        if rank != 0:
            dist.recv(piece, rank - 1)
        if rank != last:
            handles.append(dist.isend(piece, rank + 1))
    for handle in handles:
        handle.wait()


# %% relay: all-receives-first
# Begins all receives before the loop; each piece is passed on as soon as its own receive has been waited for.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.chunk(chunks)
    coming = [dist.irecv(piece, rank - 1) for piece in pieces] if rank else [None] * len(pieces)
    going = []
    for piece, handle in zip(pieces, coming):
        if handle:
            handle.wait()
        if rank + 1 < n:
            going.append(dist.isend(piece, rank + 1))
    while going:
        going.pop(0).wait()


# %% relay: one-send-under-way
# At most one send is under way: the last one is waited for after the next piece has come and before that is sent.
# tensor_split makes exactly `chunks` pieces, whatever the length.


def relay(x, chunks):
    rank, n = get_rank(), get_world_size()
    sending = None
    for piece in torch.tensor_split(x, chunks):
        if rank > 0:
            irecv(piece, src=rank - 1).wait()
        if sending is not None:
            sending.wait()
        if rank < n - 1:
            sending = isend(piece, dst=rank + 1)
    if sending is not None:
        sending.wait()


# %% relay: last-piece-first
# The pieces go in the opposite order, the same on all ranks; waits in an ExitStack.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    with contextlib.ExitStack() as sends:
        for piece in reversed(x.chunk(chunks)):
            if rank:
                dist.recv(tensor=piece, src=rank - 1)
            if rank < n - 1:
                sends.callback(dist.isend(tensor=piece, dst=rank + 1).wait)


# %% relay: recursion
# Handles the first piece, then itself with the rest, then waits for its own send: the waits come when the recursion
# returns.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()

    def pass_on(pieces):
        if not pieces:
            return
        first, *rest = pieces
        if rank > 0:
            dist.recv(first, rank - 1)
        handle = dist.isend(first, rank + 1) if rank < n - 1 else None
        pass_on(rest)
        if handle is not None:
            handle.wait()

    pass_on(list(x.chunk(chunks)))


# %% relay: double-buffered-receive
# Begins the receive of the next piece before it waits for the present one, by batches of one operation, so that send
# and receive are always under way together.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = list(x.chunk(chunks))

    def begin(call, number, peer):
        if 0 <= peer < n and number < len(pieces):
            return dist.batch_isend_irecv([dist.P2POp(call, pieces[number], peer)])
        return []

    following, sends = begin(dist.irecv, 0, rank - 1), []
    for number in range(len(pieces)):
        present, following = following, begin(dist.irecv, number + 1, rank - 1)
        for work in present:
            work.wait()
        sends += begin(dist.isend, number, rank + 1)
    for work in sends:
        work.wait()


# %% relay: all-receives-begun-at-the-start
# Every piece is asked for at once, and passed on when it is there.


def relay(x, chunks):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pieces = torch.chunk(x, chunks)
    incoming = (
        [dist.irecv(piece, rank - 1) for piece in pieces] if rank > 0 else [None] * len(pieces)
    )
    outgoing = []
    for piece, receiving in zip(pieces, incoming, strict=True):
        if receiving is not None:
            receiving.wait()
        if rank < last:
            outgoing.append(dist.isend(piece, rank + 1))
    while outgoing:
        outgoing.pop(0).wait()


# %% relay: one-send-open-at-a-time
# The send of a piece is waited for when the next piece has come.


def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    sending = None
    for piece in x.chunk(chunks):
        if rank != 0:
            dist.irecv(piece, src=rank - 1).wait()
        if sending is not None:
            sending.wait()
        if rank != n - 1:
            sending = dist.isend(piece, dst=rank + 1)
    if sending is not None:
        sending.wait()


# %% transfer: one-header
# The usual way: a header of ten int64, then the data.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    if rank == src:
        header = [KINDS.index(x.dtype), x.dim(), *x.shape]
        header += [0] * (10 - len(header))
        dist.send(torch.tensor(header, device=device), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        header = torch.empty(10, dtype=torch.int64, device=device)
        dist.recv(header, src)
        kind, dims, *sizes = header.tolist()
        came = torch.empty(sizes[:dims], dtype=KINDS[kind], device=device)
        dist.recv(came, src)
        return came


# %% transfer: header-as-json
# The header is JSON in 512 bytes, padded with blanks; the data travels as a flat tensor.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    if rank == src:
        said = (
            json.dumps({"dtype": str(x.dtype).split(".")[1], "shape": list(x.shape)})
            .encode()
            .ljust(512)
        )
        dist.send(torch.tensor(list(said), dtype=torch.uint8, device=device), dst)
        dist.send(x.detach().contiguous().reshape(-1), dst)
        return None
    if rank != dst:
        return None
    said = torch.empty(512, dtype=torch.uint8, device=device)
    dist.recv(said, src)
    about = json.loads(bytes(said.tolist()))
    came = torch.empty(about["shape"], dtype=getattr(torch, about["dtype"]), device=device)
    dist.recv(came.reshape(-1), src)
    return came


# %% transfer: three-messages
# The type and the number of dimensions, then the shape in a message of just that length (none for a single number),
# then the data, flat.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank not in (src, dst):
        return None
    device = lockstep.device()
    about = torch.zeros(2, dtype=torch.int32, device=device)
    if rank == src:
        about[0], about[1] = KINDS.index(x.dtype), x.ndim
        dist.send(about, dst)
        if x.ndim:
            dist.send(torch.tensor(x.shape, dtype=torch.int64, device=device), dst)
        dist.send(x.flatten().contiguous(), dst)
        return x
    dist.recv(about, src)
    shape = torch.zeros(int(about[1]), dtype=torch.int64, device=device)
    if shape.numel():
        dist.recv(shape, src)
    shape = torch.Size(shape.tolist())
    came = torch.empty(shape.numel(), dtype=KINDS[int(about[0])], device=device)
    dist.recv(came, src)
    return came.reshape(shape)


# %% transfer: marked-with-minus-one
# The places of the shape that aren't used hold -1, so that no number of dimensions is needed; handles, all waited for.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    me, device = get_rank(), lockstep.device()
    header = torch.full((9,), -1, dtype=torch.int64, device=device)
    if me == src:
        header[0] = [kind == x.dtype for kind in KINDS].index(True)
        header[1 : 1 + x.dim()] = torch.tensor(x.shape, dtype=torch.int64)
        data = torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x)
        for work in [isend(header, dst), isend(data, dst)]:
            work.wait()
    elif me == dst:
        irecv(header, src).wait()
        shape = header[1:]
        shape = tuple(shape[shape >= 0].tolist())
        came = torch.zeros(shape, dtype=KINDS[int(header[0])], device=device)
        irecv(came, src).wait()
        return came


# %% transfer: description-as-object
# The description, which may be anything, goes as an object (two messages: how long, and the pickle); the data itself as
# a tensor.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        dist.send_object_list([x.dtype, tuple(x.shape)], dst=dst, device=lockstep.device())
        dist.send(x.contiguous(), dst)
    if rank == dst:
        about = [None, None]
        dist.recv_object_list(about, src=src, device=lockstep.device())
        kind, shape = about
        came = (
            torch.empty(*shape, dtype=kind, device=lockstep.device())
            if shape
            else torch.empty((), dtype=kind)
        )
        came = came.to(lockstep.device())
        dist.recv(came, src)
        return came


# %% transfer: packed-by-struct
# The header is packed with struct and travels as bytes; the mirror-image functions `tell` and `hear` live in a class.

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


class _Label:
    layout = struct.Struct("<bb8q")

    def tell(self, x, dst):
        sizes = tuple(x.shape) + (0,) * (8 - x.dim())
        packed = bytearray(self.layout.pack(KINDS.index(x.dtype), x.dim(), *sizes))
        dist.send(torch.frombuffer(packed, dtype=torch.uint8).to(lockstep.device()), dst)

    def hear(self, src):
        packed = torch.empty(self.layout.size, dtype=torch.uint8, device=lockstep.device())
        dist.recv(packed, src)
        kind, dims, *sizes = self.layout.unpack(packed.cpu().numpy().tobytes())
        return torch.empty(sizes[:dims], dtype=KINDS[kind], device=lockstep.device())


def transfer(x, src, dst):
    label, rank = _Label(), dist.get_rank()
    if src == rank:
        label.tell(x, dst)
        dist.send(x.contiguous(), dst)
    elif dst == rank:
        came = label.hear(src)
        dist.recv(came, src)
        return came


# %% transfer: number-of-axes-first
# Three messages: type and number of axes, the sizes, the numbers.


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    here, rank = lockstep.device(), dist.get_rank()
    if rank == src:
        dist.send(torch.tensor([KINDS.index(x.dtype), x.dim()], device=here), dst)
        dist.send(torch.tensor([*x.shape, 0], dtype=torch.int64, device=here), dst)
        dist.send(x.contiguous(), dst)
        return None
    if rank != dst:
        return None
    about = torch.zeros(2, dtype=torch.int64, device=here)
    dist.recv(about, src)
    kind, axes = about.tolist()
    sizes = torch.zeros(axes + 1, dtype=torch.int64, device=here)
    dist.recv(sizes, src)
    result = torch.zeros(sizes[:-1].tolist(), dtype=KINDS[kind], device=here)
    dist.recv(result, src)
    return result


# %% transfer: sizes-until-minus-one
# One header; -1 stands behind the last size; the numbers travel flat.


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


def transfer(x, src, dst):
    rank, device = dist.get_rank(), lockstep.device()
    header = torch.full((10,), -1, dtype=torch.int64, device=device)
    if rank == src:
        header[: x.dim()] = torch.tensor(x.shape, dtype=torch.int64, device=device)
        header[9] = KINDS.index(x.dtype)
        dist.send(header, dst)
        dist.send(x.flatten().clone(), dst)
    elif rank == dst:
        dist.recv(header, src)
        *sizes, kind = header.tolist()
        sizes = sizes[: sizes.index(-1)]
        flat = torch.empty(torch.Size(sizes).numel(), dtype=KINDS[kind], device=device)
        dist.recv(flat, src)
        return flat.reshape(sizes)


# %% swap_in_turn: send-between-two-ifs
def swap_in_turn(x, other):
    theirs = x.new_empty(x.shape)
    first = min(dist.get_rank(), other)
    if first == other:
        recv(theirs, other)
    send(x, other)
    if first != other:
        recv(theirs, other)
    return theirs


# %% shift: divmod-first
def shift(x, by):
    size, rank = get_world_size(), get_rank()
    _, places = divmod(by, size)
    if not places:
        return torch.empty_like(x).copy_(x)
    into = torch.empty_like(x)
    works = batch_isend_irecv(
        [
            P2POp(isend, x, (rank + places) % size),
            P2POp(irecv, into, rank - places + size * (rank < places)),
        ]
    )
    [work.wait() for work in works]
    return into


# %% shift: from-a-zero-tensor
def shift(x, by):
    rank, n = dist.get_rank(), dist.get_world_size()
    if (rank + by - rank) % n == 0:
        return x + torch.zeros_like(x)
    y = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    peers = {dist.isend: (x, (n + rank + by % n) % n), dist.irecv: (y, (n + rank - by % n) % n)}
    for work in dist.batch_isend_irecv([dist.P2POp(op, *args) for op, args in peers.items()]):
        work.wait()
    return y


# %% one_way: sorted-by-hand
def one_way(nbytes, repeats):
    x = torch.empty(nbytes, dtype=torch.int8, device=lockstep.device())
    other, first = 1 - dist.get_rank(), dist.get_rank() == 0

    def trip():
        begin = now()
        for sends in (first, not first):
            (dist.send if sends else dist.recv)(x, other)
        return (now() - begin) / 2

    trip()
    times = sorted(trip() for _ in range(repeats))
    middle = repeats // 2
    return times[middle] if repeats % 2 else (times[middle - 1] + times[middle]) / 2


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% one_way: marks-and-numpy
def one_way(nbytes, repeats):
    x = torch.ones(nbytes, dtype=torch.bool, device=lockstep.device())
    marks = []
    for _ in range(repeats + 1):
        if dist.get_rank() == 0:
            marks.append(now())
            dist.send(x, 1)
            dist.recv(x, 1)
            marks.append(now())
        else:
            dist.recv(x, 0)
            dist.send(x, 0)
    if dist.get_rank() == 0:
        pairs = np.array(marks).reshape(-1, 2)[1:]
        return float(np.median(pairs[:, 1] - pairs[:, 0])) * 0.5
    return None


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% one_way: by-handles
def one_way(nbytes, repeats):
    x = torch.zeros(nbytes, dtype=torch.uint8, device=lockstep.device())
    calls = (dist.isend, dist.irecv) if dist.get_rank() == 0 else (dist.irecv, dist.isend)
    times = []
    while len(times) <= repeats:
        begin = now()
        for call in calls:
            call(x, 1 - dist.get_rank()).wait()
        times.append(now() - begin)
    del times[0]
    return statistics.median(half / 2 for half in times)


def now():
    if lockstep.device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# %% relay: three-kinds-of-ranks
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.chunk(chunks)
    if n == 1:
        return
    if rank == 0:
        handles = [dist.isend(piece, 1) for piece in pieces]
    elif rank == n - 1:
        handles = []
        for piece in pieces:
            dist.irecv(piece, n - 2).wait()
    else:

        def passed_on(piece):
            dist.recv(piece, rank - 1)
            return dist.isend(piece, rank + 1)

        handles = list(map(passed_on, pieces))
    for handle in handles:
        handle.wait()


# %% transfer: length-before-shape
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        for told in (KINDS.index(x.dtype), x.dim()):
            dist.send(torch.tensor(told), dst)
        if x.dim():
            dist.send(torch.tensor(list(x.shape)), dst)
        dist.send(x.contiguous(), dst)
    if rank == dst:
        told = torch.zeros((), dtype=torch.int64)
        dist.recv(told, src)
        kind = KINDS[told]
        dist.recv(told, src)
        shape = torch.zeros(int(told), dtype=torch.int64)
        if told > 0:
            dist.recv(shape, src)
        y = torch.empty(tuple(shape.tolist()), dtype=kind)
        dist.recv(y, src)
        return y


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


# %% transfer: json-of-fixed-width
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        told = json.dumps([str(x.dtype), *x.shape]).ljust(400).encode()
        handles = [dist.isend(torch.tensor(list(told), dtype=torch.uint8), dst)]
        handles[0].wait()
        dist.isend(x.clone(memory_format=torch.contiguous_format), dst).wait()
        return x
    if rank != dst:
        return None
    told = torch.empty(400, dtype=torch.uint8)
    dist.recv(told, src)
    kind, *shape = json.loads(bytes(told.tolist()))
    y = torch.zeros(shape, dtype=getattr(torch, kind.removeprefix("torch.")))
    dist.recv(y, src)
    return y


# %% transfer: flat-data-reshaped
def transfer(x, src, dst):
    if dist.get_rank() == src:
        head = [KINDS.index(x.dtype), x.ndim, *x.shape] + [0] * (8 - x.ndim)
        dist.send(torch.tensor(head), dst)
        dist.send(x.flatten().contiguous(), dst)
    elif dist.get_rank() == dst:
        head = torch.empty(10, dtype=torch.long)
        dist.recv(head, src)
        kind, ndim, *shape = head.tolist()
        data = torch.empty(torch.Size(shape[:ndim]).numel(), dtype=KINDS[kind])
        dist.recv(data, src)
        return data.reshape(shape[:ndim])


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


# %% shift: keywords
def shift(x, by):
    n = dist.get_world_size()
    to, source = ((dist.get_rank() + sign * by) % n for sign in (1, -1))
    if to == dist.get_rank():
        return x.detach().clone()
    got = torch.zeros_like(x)
    ops = [
        dist.P2POp(op=dist.irecv, tensor=got, peer=source, group=dist.group.WORLD),
        dist.P2POp(op=dist.isend, tensor=x, peer=to, group=dist.group.WORLD),
    ]
    for work in dist.batch_isend_irecv(p2p_op_list=ops):
        work.wait()
    return got


# %% transfer: header-as-text
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank == src:
        text = repr((KINDS.index(x.dtype), *x.shape)).encode()
        dist.send(torch.tensor([len(text)]), dst)
        dist.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), dst)
        dist.send(x.contiguous(), dst)
    elif rank == dst:
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, src)
        text = torch.zeros(int(length), dtype=torch.uint8)
        dist.recv(text, src)
        kind, *shape = (int(one) for one in bytes(text.tolist()).decode()[1:-1].split(",") if one)
        y = torch.empty(shape, dtype=KINDS[kind])
        dist.recv(y, src)
        return y


KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS += [torch.int32, torch.int64]


# %% swap_in_turn: calls-in-a-list-turned-round
def swap_in_turn(x, other):
    theirs = x.new_empty(x.shape)
    calls = [functools.partial(dist.send, x, other), functools.partial(dist.recv, theirs, other)]
    for call in calls if dist.get_rank() < other else calls[::-1]:
        call()
    return theirs


# %% swap: comprehension-of-handles
def swap(x, other):
    mine, theirs = x.detach().clone(), torch.full_like(x, 7)
    started = {"in": dist.irecv(theirs, src=other, tag=0), "out": dist.isend(mine, dst=other, tag=0)}
    all(one.wait() is not False for one in started.values())
    return theirs


# %% shift: indexed-ring
def shift(x, by):
    n = dist.get_world_size()
    ring = [(dist.get_rank() + at) % n for at in range(n)]
    to, source = ring[by % n], ring[-by % n]
    if to == dist.get_rank():
        return torch.clone(x)
    theirs = torch.empty_like(x)
    pair = (dist.P2POp(dist.irecv, theirs, source), dist.P2POp(dist.isend, x, to))
    list(map(dist.Work.wait, dist.batch_isend_irecv(list(pair))))
    return theirs


# %% one_way: quantiles
def one_way(nbytes, repeats):
    x = torch.empty(nbytes, dtype=torch.int8, device=lockstep.device())
    first, second = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
    marks = []
    for _ in range(repeats + 1):
        marks.append(now())
        first(x, 1 - dist.get_rank())
        second(x, 1 - dist.get_rank())
        marks.append(now())
    trips = [(marks[at + 1] - marks[at]) / 2 for at in range(2, len(marks), 2)]
    return statistics.median(trips)


# %% relay: next-receive-first
def relay(x, chunks):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces, sent = list(x.chunk(chunks)), []
    arriving = [dist.irecv(piece, rank - 1) for piece in pieces] if rank else [None] * len(pieces)
    for piece, one in zip(pieces, arriving):
        if one is not None:
            one.wait()
        if rank + 1 < n:
            sent.append(dist.isend(piece, rank + 1))
    while sent:
        sent.pop().wait()


# %% transfer: text-of-the-shape
def transfer(x, src, dst):
    rank = dist.get_rank()
    if rank not in (src, dst):
        return None
    if rank == src:
        text = f"{x.dtype}|{','.join(map(str, x.shape))}".encode()
        dist.send(torch.tensor([len(text)]), dst)
        dist.send(torch.tensor(list(text), dtype=torch.uint8), dst)
        dist.send(x.contiguous().reshape(-1), dst)
        return x
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, src)
    text = torch.zeros(int(length), dtype=torch.uint8)
    dist.recv(text, src)
    name, _, sides = bytes(text.tolist()).decode().partition("|")
    kind = {str(one): one for one in KINDS}[name]
    shape = [int(side) for side in sides.split(",") if side]
    flat = torch.empty(torch.Size(shape).numel(), dtype=kind)
    dist.recv(flat, src)
    return flat.reshape(shape)
