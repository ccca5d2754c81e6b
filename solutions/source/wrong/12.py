"""Wrong answers to the exercises of lab 12, each under the mistake that its check has to name."""

from itertools import combinations

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

WORKSPACE = 64 << 20


def parameters_of(layers, width, vocabulary):
    return 12 * layers * width**2 + 2 * vocabulary * width


def kept_by(layers, width, vocabulary, tokens):
    return 16 * layers * tokens * width + 3 * tokens * vocabulary


# %% peak: no-optimizer
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * max(parameters + kept, 3 * parameters) + WORKSPACE


# %% peak: one-state
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * max(2 * parameters + kept, 4 * parameters) + WORKSPACE


# %% peak: states-of-4-bytes
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    states = 8 * parameters
    begins = size * (parameters + kept) + states
    updates = size * 3 * parameters + states
    return max(begins, updates) + WORKSPACE


# %% peak: sum-of-both
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * (5 * parameters + kept) + WORKSPACE


# %% peak: sum-of-both
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * (4 * parameters + kept) + WORKSPACE


# %% peak: backward-only
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * (3 * parameters + kept) + WORKSPACE


# %% peak: optimizer-only
def peak(layers, width, vocabulary, tokens, size):
    return size * 5 * parameters_of(layers, width, vocabulary) + WORKSPACE


# %% peak: no-temporary
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * max(3 * parameters + kept, 4 * parameters) + WORKSPACE


# %% peak: no-logits
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = 16 * layers * tokens * width
    return size * max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% peak: logits-once
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = 16 * layers * tokens * width + tokens * vocabulary
    return size * max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% peak: one-layer
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = 16 * tokens * width + 3 * tokens * vocabulary
    return size * max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% peak: no-vocabulary
def peak(layers, width, vocabulary, tokens, size):
    parameters = 12 * layers * width**2
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% peak: tied
def peak(layers, width, vocabulary, tokens, size):
    parameters = 12 * layers * width**2 + vocabulary * width
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% peak: no-size
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% peak: no-workspace
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens)
    return size * max(3 * parameters + kept, 5 * parameters)


# %% peak: scores
def peak(layers, width, vocabulary, tokens, size):
    parameters = parameters_of(layers, width, vocabulary)
    kept = kept_by(layers, width, vocabulary, tokens) + layers * tokens**2 * width // 64
    return size * max(3 * parameters + kept, 5 * parameters) + WORKSPACE


# %% rounded: more
def rounded(nbytes):
    return 1 << (nbytes - 1).bit_length()


# %% rounded: more
def rounded(nbytes):
    return -(-nbytes // (2 << 20)) * (2 << 20)


# %% rounded: too-many
def rounded(nbytes):
    return -(-nbytes // 512) * 512


# %% rounded: too-many
def rounded(nbytes):
    return nbytes


# %% rounded: too-many
def rounded(nbytes):
    return nbytes + nbytes // 4


# %% rounded: too-many
def rounded(nbytes):
    step = max(1, (1 << (nbytes - 1).bit_length()) // 32)
    return -(-nbytes // step) * step


# %% rounded: less
def rounded(nbytes):
    step = max(1, (1 << (nbytes - 1).bit_length()) // 8)
    return nbytes // step * step


# %% rounded: less
def rounded(nbytes):
    step = max(1, (1 << (nbytes - 1).bit_length()) // 8)
    return round(nbytes / step) * step


# %% recomputed: greedy-ratio
def recomputed(kept, seconds, budget):
    left, some = sum(kept), []
    for i in sorted(range(len(kept)), key=lambda i: -kept[i] / seconds[i]):
        if left > budget:
            some.append(i)
            left -= kept[i]
    return sorted(some)


# %% recomputed: greedy-ratio
def recomputed(kept, seconds, budget):
    held, keeps = 0, set()
    for i in sorted(range(len(kept)), key=lambda i: -seconds[i] / kept[i]):
        if held + kept[i] <= budget:
            keeps.add(i)
            held += kept[i]
    return [i for i in range(len(kept)) if i not in keeps]


# %% recomputed: greedy-bytes
def recomputed(kept, seconds, budget):
    left, some = sum(kept), []
    for i in sorted(range(len(kept)), key=lambda i: -kept[i]):
        if left > budget:
            some.append(i)
            left -= kept[i]
    return sorted(some)


# %% recomputed: greedy-time
def recomputed(kept, seconds, budget):
    left, some = sum(kept), []
    for i in sorted(range(len(kept)), key=lambda i: seconds[i]):
        if left > budget:
            some.append(i)
            left -= kept[i]
    return sorted(some)


# %% recomputed: everything
def recomputed(kept, seconds, budget):
    return list(range(len(kept)))


# %% recomputed: in-order
def recomputed(kept, seconds, budget):
    some, left = [], sum(kept)
    while left > budget:
        left -= kept[len(some)]
        some.append(len(some))
    return some


# %% recomputed: every-second
def recomputed(kept, seconds, budget):
    for k in range(len(kept), 0, -1):
        some = list(range(0, len(kept), k))
        if sum(kept) - sum(kept[i] for i in some) <= budget:
            return some if sum(kept) > budget else []


# %% recomputed: fewest
def recomputed(kept, seconds, budget):
    blocks = range(len(kept))
    for count in range(len(kept) + 1):
        fits = [
            some
            for some in combinations(blocks, count)
            if sum(kept) - sum(kept[i] for i in some) <= budget
        ]
        if fits:
            return list(min(fits, key=lambda some: sum(seconds[i] for i in some)))


# %% recomputed: less-than-budget
def recomputed(kept, seconds, budget):
    blocks, best = range(len(kept)), list(range(len(kept)))
    for count in blocks:
        for some in combinations(blocks, count):
            fits = sum(kept) - sum(kept[i] for i in some) < budget
            if fits and sum(seconds[i] for i in some) < sum(seconds[i] for i in best):
                best = list(some)
    return best


# %% recomputed: does-not-fit
def recomputed(kept, seconds, budget):
    return []


# %% recomputed: does-not-fit
def recomputed(kept, seconds, budget):
    left, some = sum(kept), []
    for i in sorted(range(len(kept)), key=lambda i: seconds[i]):
        if left - kept[i] > budget:
            some.append(i)
            left -= kept[i]
    return sorted(some)


# %% recomputed: unsorted
def recomputed(kept, seconds, budget):
    blocks, best = range(len(kept)), list(range(len(kept)))
    for count in blocks:
        for some in combinations(blocks, count):
            fits = sum(kept) - sum(kept[i] for i in some) <= budget
            if fits and sum(seconds[i] for i in some) < sum(seconds[i] for i in best):
                best = list(some)
    return best[::-1]


# %% offloaded: no-full
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    free = [now.record_event()] * 2
    last = len(on_host) - 1

    def fetch(i):
        free[i % 2].wait(side)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    order = [*range(last + 1), *range(last, -1, -1)]
    fetch(0)
    for step, i in enumerate(order):
        if step + 1 < len(order) and order[step + 1] != i:
            fetch(order[step + 1])
        x = (forward if step <= last else backward)(x, places[i % 2])
        free[i % 2] = now.record_event()
    return x


# %% offloaded: no-free
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    side.wait_stream(now)
    last = len(on_host) - 1

    def fetch(i):
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    order = [*range(last + 1), *range(last, -1, -1)]
    fetch(0)
    for step, i in enumerate(order):
        now.wait_stream(side)
        if step + 1 < len(order) and order[step + 1] != i:
            fetch(order[step + 1])
        x = (forward if step <= last else backward)(x, places[i % 2])
    return x


# %% offloaded: not-hidden
def offloaded(cuda, on_host, forward, backward, x, side):
    now, w = cuda.current_stream(), None
    for function, weights in ((forward, on_host), (backward, on_host[::-1])):
        for weight in weights:
            if function is backward and weight is on_host[-1]:
                x = function(x, w)
                continue
            side.wait_stream(now)
            with cuda.stream(side):
                w = weight.to("cuda", non_blocking=True)
            now.wait_stream(side)
            w.record_stream(now)
            x = function(x, w)
    return x


# %% offloaded: not-hidden
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    free = [now.record_event()] * 2
    last = len(on_host) - 1

    def fetch(i):
        free[i % 2].wait(side)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    order = [*range(last + 1), *range(last, -1, -1)]
    fetch(0)
    for step, i in enumerate(order):
        if step + 1 < len(order) and order[step + 1] != i:
            fetch(order[step + 1])
        now.wait_stream(side)
        x = (forward if step <= last else backward)(x, places[i % 2])
        free[i % 2] = now.record_event()
    return x


# %% offloaded: copied-again
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    free = [now.record_event()] * 2
    order = [*on_host, *on_host[::-1]]

    def fetch(step):
        free[step % 2].wait(side)
        with cuda.stream(side):
            places[step % 2].copy_(order[step], non_blocking=True)

    fetch(0)
    for step in range(len(order)):
        now.wait_stream(side)
        if step + 1 < len(order):
            fetch(step + 1)
        x = (forward if step < len(on_host) else backward)(x, places[step % 2])
        free[step % 2] = now.record_event()
    return x


# %% offloaded: too-much-memory
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    places = [torch.empty_like(one, device="cuda") for one in on_host]
    side.wait_stream(now)
    ready = []
    for place, weight in zip(places, on_host, strict=True):
        with cuda.stream(side):
            place.copy_(weight, non_blocking=True)
        ready.append(side.record_event())
    for place, event in zip(places, ready, strict=True):
        event.wait(now)
        x = forward(x, place)
    for place in reversed(places):
        x = backward(x, place)
    return x


# %% offloaded: host-waits
def offloaded(cuda, on_host, forward, backward, x, side):
    place = torch.empty_like(on_host[0], device="cuda")
    cuda.synchronize()
    for function, weights in ((forward, on_host), (backward, on_host[::-1])):
        for weight in weights:
            with cuda.stream(side):
                place.copy_(weight, non_blocking=True)
            side.synchronize()
            x = function(x, place)
            cuda.synchronize()
    return x


# %% offloaded: not-on-side
def offloaded(cuda, on_host, forward, backward, x, side):
    now, own = cuda.current_stream(), cuda.Stream()
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    free = [now.record_event()] * 2
    last = len(on_host) - 1

    def fetch(i):
        free[i % 2].wait(own)
        with cuda.stream(own):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    order = [*range(last + 1), *range(last, -1, -1)]
    fetch(0)
    for step, i in enumerate(order):
        now.wait_stream(own)
        if step + 1 < len(order) and order[step + 1] != i:
            fetch(order[step + 1])
        x = (forward if step <= last else backward)(x, places[i % 2])
        free[i % 2] = now.record_event()
    return x


# %% offloaded: reverse
def offloaded(cuda, on_host, forward, backward, x, side):
    for function in (forward, backward):
        for weight in on_host:
            x = function(x, weight.to("cuda", non_blocking=True))
    return x


# %% offloaded: no-backward
def offloaded(cuda, on_host, forward, backward, x, side):
    for weight in on_host:
        x = forward(x, weight.to("cuda", non_blocking=True))
    return x


# %% offloaded: torch-cuda
def offloaded(cuda, on_host, forward, backward, x, side):
    now = torch.cuda.current_stream()
    for function, weights in ((forward, on_host), (backward, on_host[::-1])):
        for weight in weights:
            with torch.cuda.stream(side):
                place = weight.to("cuda", non_blocking=True)
            now.wait_stream(side)
            x = function(x, place)
    return x


# %% Shard: every-rank-all
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        me = get_worker_info()
        return iter(self.samples[me.id :: me.num_workers] if me else self.samples)


# %% Shard: every-worker-all
class Shard(IterableDataset):
    def __init__(self, samples):
        self.mine = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        return iter(self.mine)


# %% Shard: everything
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


# %% Shard: lost
class Shard(IterableDataset):
    def __init__(self, samples):
        each = len(samples) // dist.get_world_size()
        begin = dist.get_rank() * each
        self.mine = samples[begin : begin + each]

    def __iter__(self):
        me = get_worker_info()
        return iter(self.mine[me.id :: me.num_workers] if me else self.mine)


# %% Shard: lost
class Shard(IterableDataset):
    def __init__(self, samples):
        self.mine = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        me = get_worker_info()
        if me is None:
            return iter(self.mine)
        each = len(self.mine) // me.num_workers
        return iter(self.mine[me.id * each : (me.id + 1) * each])


# %% Shard: twice
class Shard(IterableDataset):
    def __init__(self, samples):
        n = dist.get_world_size()
        padded = samples + samples[: -len(samples) % n]
        self.mine = padded[dist.get_rank() :: n]

    def __iter__(self):
        me = get_worker_info()
        return iter(self.mine[me.id :: me.num_workers] if me else self.mine)


# %% Shard: uneven
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.n = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        me = get_worker_info()
        number, workers = (me.id, me.num_workers) if me else (0, 1)
        return iter(self.samples[self.rank * workers + number :: self.n * workers])


# %% Shard: uneven
class Shard(IterableDataset):
    def __init__(self, samples):
        each = -(-len(samples) // dist.get_world_size())
        begin = dist.get_rank() * each
        self.mine = samples[begin : begin + each]

    def __iter__(self):
        me = get_worker_info()
        return iter(self.mine[me.id :: me.num_workers] if me else self.mine)


# %% Shard: second-epoch
class Shard(IterableDataset):
    def __init__(self, samples):
        self.mine = iter(samples[dist.get_rank() :: dist.get_world_size()])

    def __iter__(self):
        me = get_worker_info()
        number, workers = (me.id, me.num_workers) if me else (0, 1)
        for at, one in enumerate(self.mine):
            if at % workers == number:
                yield one


# %% Shard: in-the-loader
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        mine = self.samples[dist.get_rank() :: dist.get_world_size()]
        me = get_worker_info()
        return iter(mine[me.id :: me.num_workers] if me else mine)


# %% Shard: not-one-by-one
class Shard(IterableDataset):
    def __init__(self, samples):
        self.mine = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        me = get_worker_info()
        yield self.mine[me.id :: me.num_workers] if me else self.mine


# %% Shard: map-style
class Shard:
    def __init__(self, samples):
        self.mine = samples[dist.get_rank() :: dist.get_world_size()]

    def __len__(self):
        return len(self.mine)

    def __getitem__(self, at):
        return self.mine[at]


# %% Shard: other
class Shard(IterableDataset):
    def __init__(self, samples):
        self.mine = range(dist.get_rank(), len(samples), dist.get_world_size())

    def __iter__(self):
        me = get_worker_info()
        return iter(self.mine[me.id :: me.num_workers] if me else self.mine)


# %% resumed: by-rank-first
def resumed(order, steps, batch, before, rank, ranks):
    return order[rank::ranks][steps * batch :]


# %% resumed: by-rank-first
def resumed(order, steps, batch, before, rank, ranks):
    return order[rank::ranks][steps * batch * before // ranks :]


# %% resumed: batch-left-out
def resumed(order, steps, batch, before, rank, ranks):
    return order[steps * before :][rank::ranks]


# %% resumed: one-rank
def resumed(order, steps, batch, before, rank, ranks):
    return order[steps * batch :][rank::ranks]


# %% resumed: padded
def resumed(order, steps, batch, before, rank, ranks):
    left = order[steps * batch * before :]
    left = left + left[: -len(left) % ranks]
    return left[rank::ranks]


# %% resumed: padded
def resumed(order, steps, batch, before, rank, ranks):
    left = order[steps * batch * before :]
    return left[: len(left) // ranks * ranks][rank::ranks]


# %% resumed: in-blocks
def resumed(order, steps, batch, before, rank, ranks):
    left = order[steps * batch * before :]
    each = -(-len(left) // ranks)
    return left[rank * each : (rank + 1) * each]


# %% resumed: from-the-start
def resumed(order, steps, batch, before, rank, ranks):
    return order[rank::ranks]
