"""Unusual right answers to the exercises of lab 12."""

import bisect
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


# %% peak: with-norms
def peak(layers, width, vocabulary, tokens, size):
    block = 4 * width * width + 8 * width * width + 4 * width
    total = layers * block + vocabulary * width * 2 + 2 * width
    begins = 3 * total + tokens * (16 * layers * width + 3 * vocabulary)
    return float(size * max(begins, 5 * total) + 2**26)


# %% peak: without-workspace
def peak(layers, width, vocabulary, tokens, size):
    n = layers * 12 * width**2 + vocabulary * width + width * vocabulary
    summits = {
        "backward": 3 * n + 16 * layers * tokens * width + 3 * tokens * vocabulary,
        "optimizer": 5 * n,
    }
    return size * sorted(summits.values())[-1] + 60_000_000


# %% peak: simulated
def peak(layers, width, vocabulary, tokens, size):
    now = n = 12 * layers * width**2 + 2 * vocabulary * width
    now += 2 * n  # AdamW
    most = now
    for _ in range(layers):
        now += 16 * tokens * width
    now += 3 * tokens * vocabulary
    most = max(most, now)
    now = 4 * n
    most = max(most, now + n)
    return most * size + 64 * 1024**2


# %% peak: numpy
def peak(layers, width, vocabulary, tokens, size):
    n = np.int64(12) * layers * width**2 + 2 * vocabulary * width
    kept = np.int64(16) * layers * tokens * width + 3 * np.int64(tokens) * vocabulary
    return int(np.maximum(3 * n + kept, 5 * n)) * size + (1 << 26)


# %% peak: generous
def peak(layers, width, vocabulary, tokens, size):
    n = 12 * layers * width**2 + 2 * vocabulary * width
    kept = 16 * layers * tokens * width + 3 * tokens * vocabulary
    return int(1.01 * (size * max(3 * n + kept, 5 * n) + (64 << 20)))


# %% rounded: ratio
def rounded(nbytes):
    if nbytes <= 1 << 20:
        return nbytes
    step = math.ceil(math.log2(nbytes / (1 << 20)) * 4 - 1e-9)
    return max(nbytes, math.ceil((1 << 20) * 2 ** (step / 4)))


# %% rounded: table
def rounded(nbytes):
    sizes = [(4 + part) << bit for bit in range(40) for part in range(4)]
    return nbytes if nbytes < 4 else sizes[bisect.bisect_left(sizes, nbytes)]


# %% rounded: loop
def rounded(nbytes):
    size = 1
    while 2 * size <= nbytes:
        size *= 2
    part = 0
    while size + part * size / 4 < nbytes:
        part += 1
    return math.ceil(size + part * size / 4)


# %% rounded: fractions
def rounded(nbytes):
    size = Fraction(1)
    while size < nbytes:
        size *= 2
    below = size / 2
    for quarter in range(5):
        if below + below * quarter / 4 >= nbytes:
            return math.ceil(below + below * quarter / 4)
    return nbytes


# %% rounded: mantissa
def rounded(nbytes):
    if nbytes < 1 << 20:
        return nbytes
    mantissa, exponent = math.frexp(nbytes)
    return int(math.ldexp(math.ceil(mantissa * 8) / 8, exponent))


# %% recomputed: bits
def recomputed(kept, seconds, budget):
    def cost(bits):
        held = sum(k for i, k in enumerate(kept) if not bits >> i & 1)
        took = sum(s for i, s in enumerate(seconds) if bits >> i & 1)
        return (held > budget, took)

    best = min(range(1 << len(kept)), key=cost)
    return [i for i in range(len(kept)) if best >> i & 1]


# %% recomputed: recursion
def recomputed(kept, seconds, budget):
    @functools.cache
    def best(i, room):
        if i == len(kept):
            return 0.0, ()
        took, some = best(i + 1, room)
        options = [(took + seconds[i], (i, *some))]
        if kept[i] <= room:
            options.append(best(i + 1, room - kept[i]))
        return min(options)

    return list(best(0, budget)[1])


# %% recomputed: states
def recomputed(kept, seconds, budget):
    states = {0: (0.0, [])}
    for i, (k, s) in enumerate(zip(kept, seconds, strict=True)):
        after = {}
        for held, (took, some) in states.items():
            choices = [(held + k, took, some), (held, took + s, [*some, i])]
            for new, cost, chosen in choices:
                if new <= budget and (new not in after or cost < after[new][0]):
                    after[new] = cost, chosen
        states = after
    return min(states.values())[1]


# %% recomputed: product
def recomputed(kept, seconds, budget):
    fits = (
        again
        for again in itertools.product((False, True), repeat=len(kept))
        if sum(k for k, one in zip(kept, again, strict=True) if not one) <= budget
    )
    best = min(fits, key=lambda again: sum(itertools.compress(seconds, again)))
    return list(itertools.compress(range(len(kept)), best))


# %% recomputed: numpy
def recomputed(kept, seconds, budget):
    bits = np.arange(1 << len(kept))[:, None] >> np.arange(len(kept)) & 1
    held = ((1 - bits) * np.array(kept)).sum(1)
    took = (bits * np.array(seconds)).sum(1)
    took[held > budget] = np.inf
    return [int(i) for i in np.flatnonzero(bits[took.argmin()])]


# %% offloaded: one-loop
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    order = [*range(n), *reversed(range(n))]
    used, full = [now.record_event()] * 2, [None, None]

    def fetch(i):
        side.wait_event(used[i % 2])
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        full[i % 2] = side.record_event()

    fetch(0)
    for step, i in enumerate(order):
        if step + 1 < 2 * n and order[step + 1] != i:
            fetch(order[step + 1])
        now.wait_event(full[i % 2])
        x = (forward, backward)[step >= n](x, places[i % 2])
        used[i % 2] = now.record_event()
    return x


# %% offloaded: three-places
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 2, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(3)]
    begin = now.record_event()
    free = [begin, begin, begin]
    full = {}

    def fetch(at):
        if at < len(order):
            side.wait_event(free[at % 3])
            with cuda.stream(side):
                places[at % 3].copy_(on_host[order[at]], non_blocking=True)
                full[at] = side.record_event()

    fetch(0)
    fetch(1)
    for at in range(len(order)):
        now.wait_event(full[at])
        w = places[at % 3]
        if at < n:
            x = forward(x, w)
        if at >= n - 1:
            x = backward(x, w)
        free[at % 3] = now.record_event()
        fetch(at + 2)
    return x


# %% offloaded: objects
class Place:
    def __init__(self, cuda, like):
        self.w = torch.empty_like(like, device="cuda")
        self.holds, self.full, self.free = None, cuda.Event(), cuda.Event()
        self.free.record()


def offloaded(cuda, on_host, forward, backward, x, side):
    places = [Place(cuda, on_host[0]), Place(cuda, on_host[0])]

    def fetch(i, busy):
        place = next(one for one in places if one is not busy)
        if place.holds != i:
            side.wait_event(place.free)
            with cuda.stream(side):
                place.w.copy_(on_host[i], non_blocking=True)
                place.full.record()
            place.holds = i
        return place

    uses = [(forward, i) for i in range(len(on_host))]
    uses += [(backward, i) for _, i in reversed(uses)]
    place = fetch(0, None)
    for at, (function, i) in enumerate(uses):
        following = place
        if at + 1 < len(uses) and uses[at + 1][1] != i:
            following = fetch(uses[at + 1][1], place)
        place.full.wait()
        x = function(x, place.w)
        place.free.record()
        place = following
    return x


# %% offloaded: generator
def offloaded(cuda, on_host, forward, backward, x, side):
    def weights(order):
        now = cuda.current_stream()
        tensors = torch.empty(2, *on_host[0].shape, dtype=on_host[0].dtype, device="cuda")
        done = [now.record_event()] * 2

        def copied(at):
            side.wait_event(done[at % 2])
            with cuda.stream(side):
                tensors[at % 2].copy_(on_host[order[at]], non_blocking=True)
                return side.record_event()

        ready = copied(0)
        for at in range(len(order)):
            now.wait_event(ready)
            if at + 1 < len(order):
                ready = copied(at + 1)
            yield tensors[at % 2]
            done[at % 2] = now.record_event()

    n = len(on_host)
    for at, w in enumerate(weights([*range(n), *range(n - 2, -1, -1)])):
        if at < n:
            x = forward(x, w)
        if at >= n - 1:
            x = backward(x, w)
    return x


# %% offloaded: recursive
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    a, b = (torch.empty_like(on_host[0], device="cuda") for _ in range(2))

    def fetch(i, to):
        with cuda.stream(side):
            to.copy_(on_host[i], non_blocking=True)

    def passed(i, x, here, there):
        now.wait_stream(side)
        if i + 1 == len(on_host):
            x = forward(x, here)
            before = now.record_event()
            side.wait_event(used[there.data_ptr()])
            return backward(x, here), before
        side.wait_event(used[there.data_ptr()])
        fetch(i + 1, there)
        x = forward(x, here)
        used[here.data_ptr()] = now.record_event()
        x, _ = passed(i + 1, x, there, here)
        used[there.data_ptr()] = now.record_event()
        if i + 2 < len(on_host):
            now.wait_stream(side)
        if i:
            side.wait_event(used[there.data_ptr()])
            fetch(i - 1, there)
        x = backward(x, here)
        used[here.data_ptr()] = now.record_event()
        return x, None

    begin = now.record_event()
    used = {a.data_ptr(): begin, b.data_ptr(): begin}
    side.wait_event(begin)
    fetch(0, a)
    return passed(0, x, a, b)[0]


# %% Shard: by-index
class Shard(IterableDataset):
    def __init__(self, samples):
        super().__init__()
        self.samples = samples
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        me = get_worker_info()
        worker, workers = (0, 1) if me is None else (me.id, me.num_workers)
        for at in range(worker * self.ranks + self.rank, len(self.samples), workers * self.ranks):
            yield self.samples[at]


# %% Shard: in-blocks
class Shard(IterableDataset):
    def __init__(self, samples):
        n, rank = dist.get_world_size(), dist.get_rank()
        each, more = divmod(len(samples), n)
        begin = rank * each + min(rank, more)
        self.mine = samples[begin : begin + each + (rank < more)]

    def __iter__(self):
        me = get_worker_info()
        if me is None:
            yield from self.mine
            return
        each, more = divmod(len(self.mine), me.num_workers)
        begin = me.id * each + min(me.id, more)
        yield from self.mine[begin : begin + each + (me.id < more)]


# %% Shard: islice
class Shard(IterableDataset):
    def __init__(self, samples):
        self.place = dist.get_rank(), dist.get_world_size()
        self.samples = tuple(samples)

    def __iter__(self):
        rank, ranks = self.place
        mine = itertools.islice(self.samples, rank, None, ranks)
        me = get_worker_info()
        return itertools.islice(mine, me.id, None, me.num_workers) if me else mine


# %% Shard: tensors
class Shard(IterableDataset):
    def __init__(self, samples):
        self.mine = torch.tensor(samples)[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        me = get_worker_info()
        step = me.num_workers if me else 1
        for at in range(me.id if me else 0, len(self.mine), step):
            yield self.mine[at].item()


# %% Shard: one-worker-reads
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.n = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        me = get_worker_info()
        if me is None or me.id == 0:
            yield from (s for at, s in enumerate(self.samples) if at % self.n == self.rank)


# %% Shard: by-both-remainders
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.n = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        me = get_worker_info()
        number, workers = (me.id, me.num_workers) if me else (0, 1)
        for at, one in enumerate(self.samples):
            if at % self.n == self.rank and at % workers == number:
                yield one


# %% resumed: enumerated
def resumed(order, steps, batch, before, rank, ranks):
    done = steps * before * batch
    return [one for at, one in enumerate(order[done:]) if at % ranks == rank]


# %% resumed: simulated
def resumed(order, steps, batch, before, rank, ranks):
    read = set()
    for r in range(before):
        read |= set(order[r::before][: steps * batch])
    left = [one for one in order if one not in read]
    return left[rank::ranks]


# %% resumed: one-slice
def resumed(order, steps, batch, before, rank, ranks):
    return order[steps * batch * before + rank :: ranks]


# %% resumed: loop
def resumed(order, steps, batch, before, rank, ranks):
    at, mine = steps * batch * before + rank, []
    while at < len(order):
        mine.append(order[at])
        at += ranks
    return mine


# %% resumed: islice
def resumed(order, steps, batch, before, rank, ranks):
    left = itertools.islice(iter(order), steps * batch * before, None)
    return list(itertools.islice(left, rank, None, ranks))
