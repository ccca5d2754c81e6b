"""Right answers to the exercises of lab 12, written without sight of its checks; see judge.py."""

import bisect
import functools
import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass
from itertools import accumulate, combinations, compress, islice, pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info


def share():
    """The worker's number, and how many there are; the rank itself is the only one."""
    worker = get_worker_info()
    return (worker.id, worker.num_workers) if worker else (0, 1)


# %% peak: two-summits
def peak(layers, width, vocabulary, tokens, size):
    weights = layers * 12 * width * width + 2 * vocabulary * width
    at_backward = 3 * weights + layers * 16 * tokens * width + 3 * tokens * vocabulary
    at_update = (1 + 1 + 2 + 1) * weights
    return size * max(at_backward, at_update) + 64 * 1024 * 1024


# %% peak: what-lies-on-top-of-three
# Both have weights and AdamW's numbers: the question is which of the two others is more.
def peak(layers, width, vocabulary, tokens, size):
    weights = width * (12 * layers * width + 2 * vocabulary)
    activations = tokens * (16 * layers * width + 3 * vocabulary)
    return (3 * weights + max(activations, 2 * weights)) * size + 2**26


# %% peak: meta-device
# Has PyTorch count the weights, the norms' too.
def peak(layers, width, vocabulary, tokens, size):
    with torch.device("meta"):
        linear = functools.partial(nn.Linear, bias=False)
        block = [linear(width, 3 * width), linear(width, width), nn.LayerNorm(width)]
        block += [linear(width, 4 * width), linear(4 * width, width), nn.LayerNorm(width)]
        ends = [nn.Embedding(vocabulary, width), nn.LayerNorm(width), linear(width, vocabulary)]
    count = lambda modules: sum(p.numel() for m in modules for p in m.parameters())
    weights = layers * count(block) + count(ends)
    kept = layers * tokens * sum([1, 1, 3, 1, 1, 1, 4, 4]) * width
    return max(3 * weights + kept + 3 * tokens * vocabulary, 5 * weights) * size + (64 << 20)


# %% peak: as-matrices
def peak(layers, width, vocabulary, tokens, size):
    things = np.array(
        [
            12 * layers * width**2 + 2 * vocabulary * width,
            16 * layers * tokens * width,
            tokens * vocabulary,
        ],
        dtype=np.int64,
    )
    summits = np.array([[3, 1, 3], [5, 0, 0]]) @ things
    return int(summits.max()) * size + (64 << 20)


# %% peak: a-step-played-through
# Allocates and frees in the order of a step, and looks for the highest of all sums.
def peak(layers, width, vocabulary, tokens, size):
    block = 12 * width * width
    logits = tokens * vocabulary
    every = layers * block + 2 * vocabulary * width
    changes = [3 * every]
    changes += [16 * tokens * width] * layers  # the forward pass
    changes += [3 * logits, -2 * logits, -logits + vocabulary * width]
    changes += [block - 16 * tokens * width] * layers  # gradients come, and what was kept goes
    changes += [vocabulary * width, every, -2 * every]
    return max(accumulate(changes)) * size + (64 << 20)


# %% peak: in-blocks-of-512
# As the allocator gives them out: each rounded up.
def peak(layers, width, vocabulary, tokens, size):
    rounded_up = lambda numbers: -(-numbers * size // 512) * 512
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * layers
    shapes += [(vocabulary, width)] * 2
    weights = sum(rounded_up(math.prod(shape)) for shape in shapes)
    kept = [1, 1, 3, 1, 1, 1, 4, 4] * layers
    activations = sum(rounded_up(tokens * width * widths) for widths in kept)
    activations += 3 * rounded_up(tokens * vocabulary)
    return (64 << 20) + max(3 * weights + activations, 5 * weights)


# %% peak: dataclass
@dataclass(frozen=True)
class Step:
    layers: int
    width: int
    vocabulary: int
    tokens: int
    weights = property(
        lambda self: self.layers * 12 * self.width**2 + 2 * self.width * self.vocabulary
    )
    kept = property(lambda self: self.layers * 16 * self.width * self.tokens)
    logits = property(lambda self: self.vocabulary * self.tokens)

    def __iter__(self):
        yield 3 * self.weights + self.kept + 3 * self.logits
        yield self.weights + self.weights + 2 * self.weights + self.weights


def peak(layers, width, vocabulary, tokens, size):
    return max(Step(layers, width, vocabulary, tokens)) * size + (1 << 26)


# %% peak: layer-by-layer
def peak(layers, width, vocabulary, tokens, size):
    def summits(layers):
        if not layers:
            ends = 2 * vocabulary * width
            return 3 * ends + 3 * tokens * vocabulary, 5 * ends
        backward, update = summits(layers - 1)
        block = 12 * width**2
        return backward + 3 * block + 16 * tokens * width, update + 5 * block

    return max(summits(layers)) * size + (64 << 20)


# %% peak: a-float-in-gb-and-back
def peak(layers, width, vocabulary, tokens, size):
    billions = (12 * layers * width**2 + 2 * vocabulary * width) / 1e9
    more = tokens * (16 * layers * width + 3 * vocabulary) / 1e9
    highest = max(3.0 * billions + more, 5.0 * billions) * size + 0.067108864
    return highest * 1e9


# %% peak: decimal-workspace
# 64 MB and not MiB: less than 5 % of the workspace, so of the whole, too.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + 64e6


# %% peak: with-the-norms-and-the-ids
# All the small things, too: norms' weights, token numbers, norms' statistics in float32.
def peak(layers, width, vocabulary, tokens, size):
    norms = (2 * layers + 1) * 2 * width
    weights = 12 * layers * width**2 + 2 * vocabulary * width + norms
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    small = 8 * tokens + (2 * layers + 1) * 2 * 4 * tokens
    return max(backward * size + small, 5 * weights * size) + (64 << 20)


# %% rounded: quarters-of-the-power-below
def rounded(nbytes):
    step = max(512, 1 << max(0, (nbytes - 1).bit_length() - 3))
    return -(-nbytes // step) * step


# %% rounded: fourth-root-of-two
def rounded(nbytes):
    if nbytes < 1 << 20:
        return nbytes
    k = 0
    while (size := math.ceil((1 << 20) * 2 ** (k / 4))) < nbytes:
        k += 1
    return size


# %% rounded: a-quarter-more-each-time
# Rounded down each time, so that each is at most a quarter more: 33 up to 1 GiB.
def rounded(nbytes):
    size = 1
    while size < nbytes:
        size = max(size + 1, size * 5 // 4)
    return size


# %% rounded: unchanged-outside
# The goal asks for few sizes between 1 MiB and 1 GiB alone.
def rounded(nbytes):
    if not 1 << 20 <= nbytes <= 1 << 30:
        return nbytes
    power = nbytes.bit_length() - 1
    return next(size for i in range(4, 9) if (size := (i << power) // 4) >= nbytes)


# %% rounded: a-table
def rounded(nbytes):
    table = [(quarters << power) // 4 for power in range(20, 50) for quarters in (4, 5, 6, 7)]
    if nbytes < table[0]:
        return -(-nbytes // 512) * 512
    return table[bisect.bisect_left(table, nbytes)]


# %% rounded: always-to-the-next
# A size of the table goes to the one above it: still 25 % at most, and 41.
def rounded(nbytes):
    if nbytes < 1 << 20:
        return nbytes
    step = 1 << (nbytes.bit_length() - 3)
    return (nbytes // step + 1) * step


# %% rounded: leading-bits
# Keeps three bits, and adds one to the third where there was anything below.
def rounded(nbytes):
    if nbytes <= 512:
        return 512
    low = nbytes.bit_length() - 3
    top, rest = nbytes >> low, nbytes & ((1 << low) - 1)
    size = (top + bool(rest)) << low
    return -(-size // 512) * 512 if nbytes < 1 << 20 else size


# %% rounded: recursion
def rounded(nbytes):
    if nbytes <= 8:
        return nbytes
    return 2 * rounded((nbytes + 1) // 2)


# %% rounded: numpy-search
def rounded(nbytes):
    if nbytes > 1 << 32 or nbytes < 1 << 12:
        return -(-nbytes // 512) * 512
    edges = np.ceil(2.0 ** np.arange(12, 32.5, 0.25)).astype(np.int64)
    return int(edges[np.searchsorted(edges, nbytes, side="left")])


# %% rounded: half-an-octave-in-two
# 1, 1.25, 1.5, 1.75 by comparing, without a logarithm or a shift by a length.
def rounded(nbytes):
    if nbytes < 1 << 20:
        return (nbytes + 511) // 512 * 512
    base = 1 << 20
    while base * 2 < nbytes:
        base *= 2
    for size in (base, base * 5 // 4, base * 3 // 2, base * 7 // 4):
        if nbytes <= size:
            return size
    return base * 2


# %% recomputed: every-choice
def recomputed(kept, seconds, budget):
    blocks = range(len(kept))
    every = itertools.chain.from_iterable(combinations(blocks, n) for n in (*blocks, len(kept)))
    fits = (c for c in every if sum(kept) - sum(kept[i] for i in c) <= budget)
    return list(min(fits, key=lambda c: sum(seconds[i] for i in c)))


# %% recomputed: bits
def recomputed(kept, seconds, budget):
    best, least = 0, math.inf
    for mask in range(1 << len(kept)):
        chosen = [i for i in range(len(kept)) if mask >> i & 1]
        if sum(size for i, size in enumerate(kept) if not mask >> i & 1) > budget:
            continue
        if (time := sum(seconds[i] for i in chosen)) < least:
            best, least = mask, time
    return [i for i in range(len(kept)) if best >> i & 1]


# %% recomputed: numpy-for-all-at-once
def recomputed(kept, seconds, budget):
    n = len(kept)
    again = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    stays = (1 - again) @ np.asarray(kept, dtype=np.int64)
    takes = np.where(stays <= budget, again @ np.asarray(seconds, dtype=np.float64), np.inf)
    return np.flatnonzero(again[takes.argmin()]).tolist()


# %% recomputed: torch-product
def recomputed(kept, seconds, budget):
    if not (n := len(kept)):
        return []
    again = torch.cartesian_prod(*[torch.tensor([0, 1])] * n).reshape(-1, n)
    stays = ((1 - again) * torch.tensor(kept, dtype=torch.int64)).sum(1)
    takes = (again.double() * torch.tensor(seconds, dtype=torch.float64)).sum(1)
    takes[stays > budget] = math.inf
    return again[takes.argmin()].nonzero().flatten().tolist()


# %% recomputed: recursion-with-a-memory
def recomputed(kept, seconds, budget):
    @functools.cache
    def best(i, room):
        if i == len(kept):
            return 0, ()
        time, rest = best(i + 1, room)
        ways = [(time + seconds[i], (i, *rest))]
        if kept[i] <= room:
            ways.append(best(i + 1, room - kept[i]))
        return min(ways)

    return list(best(0, budget)[1])


# %% recomputed: knapsack-of-bytes
# Dynamic programming over the sums of bytes that can come about.
def recomputed(kept, seconds, budget):
    least = {0: (0, ())}
    for i, (size, time) in enumerate(zip(kept, seconds, strict=True)):
        now = {}
        for used, (took, again) in least.items():
            for option in ((used, (took + time, (*again, i))), (used + size, (took, again))):
                if option[0] <= budget and option[1] < now.get(option[0], (math.inf,)):
                    now[option[0]] = option[1]
        least = now
    return [*min(least.values())[1]]


# %% recomputed: branch-and-bound
def recomputed(kept, seconds, budget):
    best = [sum(seconds), list(range(len(kept)))]

    def visit(i, left, took, again):
        if took > best[0] or left - sum(kept[i:]) > budget:
            return
        if left <= budget:
            if took < best[0]:
                best[:] = took, again
            return
        visit(i + 1, left - kept[i], took + seconds[i], [*again, i])
        visit(i + 1, left, took, again)

    visit(0, sum(kept), 0, [])
    return best[1]


# %% recomputed: best-first
# A heap of choices by their time: the first one that fits is the fastest.
def recomputed(kept, seconds, budget):
    heap = [(0, (), sum(kept))]
    while heap:
        took, again, left = heapq.heappop(heap)
        if left <= budget:
            return list(again)
        for i in range(again[-1] + 1 if again else 0, len(kept)):
            heapq.heappush(heap, (took + seconds[i], (*again, i), left - kept[i]))


# %% recomputed: meets-in-the-middle
def recomputed(kept, seconds, budget):
    def half(blocks):
        for n in range(len(blocks) + 1):
            for again in combinations(blocks, n):
                stays = sum(kept[i] for i in blocks if i not in again)
                yield stays, sum(seconds[i] for i in again), again

    middle = len(kept) // 2
    first = sorted(half(range(middle)), key=lambda way: way[:2])
    lowest = list(accumulate(first, lambda a, b: a if a[1] <= b[1] else b))
    sizes = [stays for stays, _, _ in first]
    found = []
    for stays, took, again in half(range(middle, len(kept))):
        at = bisect.bisect_right(sizes, budget - stays)
        if at:
            found.append((took + lowest[at - 1][1], lowest[at - 1][2] + again))
    return list(min(found)[1])


# %% recomputed: only-the-undominated
# Keeps a choice only where none other is both smaller and faster.
def recomputed(kept, seconds, budget):
    ways = [(0, 0, [])]
    for i in range(len(kept)):
        both = [(stays + kept[i], took, again) for stays, took, again in ways]
        both += [(stays, took + seconds[i], [*again, i]) for stays, took, again in ways]
        ways, least = [], math.inf
        for way in sorted(both):
            if way[0] <= budget and way[1] < least:
                ways.append(way)
                least = way[1]
    return min(ways, key=lambda way: way[1])[2]


# %% recomputed: most-saved
# The other way round: keep what would take longest to compute.
def recomputed(kept, seconds, budget):
    every = itertools.product((False, True), repeat=len(kept))
    fits = (flags for flags in every if sum(compress(kept, flags)) <= budget)
    stays = max(fits, key=lambda flags: math.fsum(compress(seconds, flags)))
    return [i for i, is_kept in enumerate(stays) if not is_kept]


# %% offloaded: side-waits-for-the-whole-stream
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    work = [(forward, i) for i in range(n)] + [(backward, i) for i in reversed(range(n))]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    fetch(0)
    for (compute, i), later in itertools.zip_longest(work, work[1:]):
        now.wait_stream(side)
        if later is not None and later[1] != i:
            fetch(later[1])
        x = compute(x, places[i % 2])
    return x


# %% offloaded: events-for-each-place
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    there = [cuda.Event(), cuda.Event()]
    free = [cuda.Event(), cuda.Event()]
    for event in free:
        event.record(now)

    def fetch(i):
        free[i % 2].wait(side)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
            there[i % 2].record()

    fetch(0)
    for k, i in enumerate(order):
        there[i % 2].wait(now)
        if k + 1 < 2 * n and k + 1 != n:
            fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
        free[i % 2].record(now)
    return x


# %% offloaded: three-places-in-turn
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(3)]
    copies = [*range(n), *range(n - 2, -1, -1)]  # the weight of each copy
    uses = [*range(n), *range(n - 1, 2 * n - 1)]  # the copy for each use
    side.wait_stream(now)
    ready, used = {}, {}

    def fetch(c):
        if c - 3 in used:
            side.wait_event(used[c - 3])
        with cuda.stream(side):
            places[c % 3].copy_(on_host[copies[c]], non_blocking=True)
        ready[c] = side.record_event()

    fetch(0)
    for k, c in enumerate(uses):
        now.wait_event(ready[c])
        if c + 1 < len(copies) and c + 1 not in ready and k != n - 1:
            fetch(c + 1)
        x = (forward if k < n else backward)(x, places[c % 3])
        used[c] = now.record_event()
    return x


# %% offloaded: recursion
# There on the way down, and back on the way up.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, last = cuda.current_stream(), len(on_host) - 1
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    def visit(i, x, ready):
        now.wait_event(ready)
        later = fetch(i + 1) if i < last else None
        x = forward(x, places[i % 2])
        if i < last:
            x, ready = visit(i + 1, x, later)
            now.wait_event(ready)
        before = fetch(i - 1) if i else None
        return backward(x, places[i % 2]), before

    return visit(0, x, fetch(0))[0]


# %% offloaded: generator
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()

    def fetched(weights):
        pair = torch.empty((2, *on_host[0].shape), dtype=on_host[0].dtype, device="cuda")
        free = deque(pair)
        side.wait_stream(now)
        coming = None
        for weight in weights:
            side.wait_stream(now)
            place = free[0]
            free.rotate(1)
            with cuda.stream(side):
                place.copy_(weight, non_blocking=True)
            event = side.record_event()
            if coming is not None:
                yield coming[0]
            now.wait_event(event)
            coming = place, event
        yield coming[0]

    weights = fetched([*on_host, *on_host[-2::-1]])
    for _ in on_host:
        w = next(weights)
        x = forward(x, w)
    x = backward(x, w)
    for w in weights:
        x = backward(x, w)
    return x


# %% offloaded: a-class
class Ahead:
    def __init__(self, cuda, on_host, side):
        self.cuda, self.on_host, self.side = cuda, on_host, side
        self.now = cuda.current_stream()
        self.places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
        self.lies = [None, None]  # the weight in each place
        self.event = None

    def fetch(self, i):
        if self.lies[i % 2] == i and i == len(self.on_host) - 1:
            return
        self.lies[i % 2] = i
        self.side.wait_stream(self.now)
        with self.cuda.stream(self.side):
            self.places[i % 2].copy_(self.on_host[i], non_blocking=True)
        self.event = self.side.record_event()

    def use(self, compute, x, i, later):
        self.now.wait_event(self.event)
        if later is not None:
            self.fetch(later)
        return compute(x, self.places[i % 2])


def offloaded(cuda, on_host, forward, backward, x, side):
    ahead, n = Ahead(cuda, on_host, side), len(on_host)
    order = [*range(n), *range(n)[::-1]]
    ahead.fetch(0)
    for k, (i, later) in enumerate(pairwise([*order, None])):
        x = ahead.use(forward if k < n else backward, x, i, later)
    return x


# %% offloaded: two-are-still-there
# At the turn the one before the last is still in its place: it is not copied again either.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    lies, ready = {}, {}

    def fetch(i):
        if lies.get(i % 2) != i:
            side.wait_stream(now)
            with cuda.stream(side):
                places[i % 2].copy_(on_host[i], non_blocking=True)
            lies[i % 2], ready[i % 2] = i, side.record_event()

    fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready[i % 2])
        if k + 1 < 2 * n:
            fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: memory-of-the-side
# The places come from the side stream's memory, and record_stream() says who else uses them.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    with cuda.stream(side):
        places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    for place in places:
        place.record_stream(now)

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < 2 * n and k + 1 != n:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: waits-before-it-allocates
# Nothing comes between the wait and the allocation, so what used the memory is waited for.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    side.wait_stream(now)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    used = [None, None]

    def fetch(i):
        if used[i % 2] is not None:
            side.wait_event(used[i % 2])
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < 2 * n and k + 1 != n:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
        used[i % 2] = now.record_event()
    return x


# %% offloaded: two-passes
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    here, there = (torch.empty_like(on_host[0], device="cuda") for _ in range(2))

    def copied(weight, place):
        side.wait_stream(now)
        with cuda.stream(side):
            place.copy_(weight, non_blocking=True)
        event = cuda.Event()
        event.record(side)
        return event

    now.wait_event(copied(on_host[0], here))
    for weight in on_host[1:]:
        ready = copied(weight, there)
        x = forward(x, here)
        now.wait_event(ready)
        here, there = there, here
    x = forward(x, here)
    for weight in on_host[-2::-1]:
        ready = copied(weight, there)
        x = backward(x, here)
        now.wait_event(ready)
        here, there = there, here
    return backward(x, here)


# %% offloaded: folded
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    flat = torch.empty(2 * on_host[0].numel(), dtype=on_host[0].dtype, device="cuda")
    places = [half.view(on_host[0].shape) for half in flat.chunk(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    def one(state, step):
        x, ready = state
        compute, i, later = step
        now.wait_event(ready)
        ready = ready if later is None else fetch(later)
        return compute(x, places[i % 2]), ready

    steps = [(forward, i, i + 1) for i in range(n - 1)] + [(forward, n - 1, None)]
    steps += [(backward, i, i - 1) for i in range(n - 1, 0, -1)] + [(backward, 0, None)]
    return functools.reduce(one, steps, (x, fetch(0)))[0]


# %% Shard: sliced-twice
class Shard(IterableDataset):
    def __init__(self, samples):
        super().__init__()
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        at, of = share()
        return iter(self.own[at::of])


# %% Shard: every-n-th-of-all
# Number worker · ranks + rank of all of them: sample i is rank i % ranks's.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.ranks = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        at, of = share()
        return islice(self.samples, at * self.ranks + self.rank, None, of * self.ranks)


# %% Shard: blocks
class Shard(IterableDataset):
    def __init__(self, samples):
        rank, ranks, n = dist.get_rank(), dist.get_world_size(), len(samples)
        self.own = samples[rank * n // ranks : (rank + 1) * n // ranks]

    def __iter__(self):
        (at, of), n = share(), len(self.own)
        yield from self.own[at * n // of : (at + 1) * n // of]


# %% Shard: the-first-ranks-have-one-more
class Shard(IterableDataset):
    def __init__(self, samples):
        rank = dist.get_rank()
        each, more = divmod(len(samples), dist.get_world_size())
        start = rank * each + min(rank, more)
        self.own = tuple(samples[start : start + each + (rank < more)])

    def __iter__(self):
        at, of = share()
        return (one for i, one in enumerate(self.own) if i % of == at)


# %% Shard: numpy-array-split
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples
        every = np.arange(len(samples))
        self.numbers = np.array_split(every, dist.get_world_size())[dist.get_rank()]

    def __iter__(self):
        at, of = share()
        for i in np.array_split(self.numbers, of)[at].tolist():
            yield self.samples[i]


# %% Shard: backwards
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.ranks = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        at, of = share()
        return reversed(self.samples[self.rank :: self.ranks][at::of])


# %% Shard: there-and-back
# 0 1 2 2 1 0 0 1 2 ...: each turn gives each rank one, the last turn some of them.
class Shard(IterableDataset):
    def __init__(self, samples):
        ranks = range(dist.get_world_size())
        turn = itertools.cycle([*ranks, *reversed(ranks)])
        rank = dist.get_rank()
        self.own = [one for one, whose in zip(samples, turn, strict=False) if whose == rank]

    def __iter__(self):
        at, of = share()
        return islice(self.own, at, None, of)


# %% Shard: mixed-for-all-alike
class Shard(IterableDataset):
    def __init__(self, samples):
        mixed = random.Random(12).sample(samples, len(samples))
        self.own = mixed[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        at, of = share()
        yield from self.own[at::of]


# %% Shard: an-iterator-class
class Walk:
    def __init__(self, samples, at, by):
        self.samples, self.at, self.by = samples, at, by

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= len(self.samples):
            raise StopIteration
        one, self.at = self.samples[self.at], self.at + self.by
        return one


class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.ranks = list(samples), dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        at, of = share()
        return Walk(self.samples, self.rank + at * self.ranks, of * self.ranks)


# %% Shard: its-own-order-each-epoch
# The same samples of each worker in another order.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        at, of = share()
        part = self.own[at::of]
        random.shuffle(part)
        return iter(part)


# %% Shard: only-the-last-worker
# Whatever the number of workers: nobody says that each has some.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        at, of = share()
        return iter(self.own if at == of - 1 else [])


# %% Shard: the-last-rank-first
class Shard(IterableDataset):
    def __init__(self, samples):
        first = dist.get_world_size() - 1 - dist.get_rank()
        self.numbers = range(first, len(samples), dist.get_world_size())
        self.samples = samples

    def __iter__(self):
        at, of = share()
        return map(self.samples.__getitem__, self.numbers[at::of])


# %% resumed: a-slice
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * batch * before + rank :: ranks]]


# %% resumed: two-slices
def resumed(order, steps, batch, before, rank, ranks):
    left = list(map(int, order))[steps * batch * before :]
    return left[rank::ranks]


# %% resumed: islice
def resumed(order, steps, batch, before, rank, ranks):
    return list(map(int, islice(order, steps * batch * before + rank, None, ranks)))


# %% resumed: torch-index
def resumed(order, steps, batch, before, rank, ranks):
    order = torch.as_tensor(order)
    at = torch.arange(len(order)) - steps * batch * before
    return order[(at >= 0) & (at % ranks == rank)].tolist()


# %% resumed: numpy-padded-table
def resumed(order, steps, batch, before, rank, ranks):
    left = np.asarray(order)[steps * batch * before :]
    rows = -(-len(left) // ranks)
    table = np.full(rows * ranks, -1)
    table[: len(left)] = left
    own = table.reshape(rows, ranks)[:, rank]
    return own[own >= 0].tolist()


# %% resumed: played-through
# Every rank of before reads its batches; what nobody has read is divided.
def resumed(order, steps, batch, before, rank, ranks):
    order = [int(one) for one in order]
    readers = [iter(order[one::before]) for one in range(before)]
    read = set()
    for _ in range(steps):
        for reader in readers:
            read.update(islice(reader, batch))
    left = [one for one in order if one not in read]
    return [one for i, one in enumerate(left) if i % ranks == rank]


# %% resumed: dealt-out
def resumed(order, steps, batch, before, rank, ranks):
    hands = [[] for _ in range(ranks)]
    left = deque(int(one) for one in order)
    for _ in range(min(len(left), steps * batch * before)):
        left.popleft()
    for hand in itertools.cycle(hands):
        if not left:
            return hands[rank]
        hand.append(left.popleft())


# %% resumed: recursion
# An odd step is left out, and then half as many steps have batches twice as large.
def resumed(order, steps, batch, before, rank, ranks):
    if steps:
        order = order[steps % 2 * batch * before :]
        return resumed(order, steps // 2, batch * 2, before, rank, ranks)
    return [int(order[i]) for i in range(rank, len(order), ranks)]


# %% resumed: a-while-loop
def resumed(order, steps, batch, before, rank, ranks):
    at, own = steps * before * batch + rank, []
    while at < len(order):
        own.append(int(order[at]))
        at += ranks
    return own


# %% resumed: a-generator-of-turns
def resumed(order, steps, batch, before, rank, ranks):
    def turns():
        left = [int(one) for one in order[steps * batch * before :]]
        for start in range(0, len(left), ranks):
            yield left[start : start + ranks]

    return [turn[rank] for turn in turns() if rank < len(turn)]


# %% resumed: distributed-sampler
# The sampler pads what is left; what it has given too many is taken away again.
def resumed(order, steps, batch, before, rank, ranks):
    left = [int(one) for one in order[steps * batch * before :]]
    if not left:
        return []
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(len(left)), ranks, rank, shuffle=False)
    own = list(sampler)[: len(range(rank, len(left), ranks))]
    return [left[i] for i in own]
