"""Wrong answers to the exercises of lab 11, each under the mistake that its check has to name."""

import collections

import torch
import torch.distributed as dist

MIB = 1 << 20


# %% scaled: breaks
def scaled(x):
    largest = x.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    if largest.item() > 0:
        return x / largest.item()
    return x.clone()


# %% scaled: breaks
def scaled(x):
    largest = x.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, async_op=True).wait()
    return torch.where(largest > 0, x / largest, x)


# %% scaled: own-largest
def scaled(x):
    largest = x.abs().max()
    return torch.where(largest > 0, x / largest, x)


# %% scaled: no-absolute
def scaled(x):
    largest = x.max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return torch.where(largest > 0, x / largest, x)


# %% scaled: zeros
def scaled(x):
    largest = x.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return x / largest


# %% scaled: summed
def scaled(x):
    largest = x.abs().max()
    dist.all_reduce(largest)
    return torch.where(largest > 0, x / largest, x)


# %% scaled: shifted
def scaled(x):
    largest = x.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return x / (largest + 1e-3)


# %% scaled: nothing-captured
@torch.compiler.disable
def scaled(x):
    largest = x.abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return torch.where(largest > 0, x / largest, x)


# %% scaled: recompiles
calls = 0


def scaled(x):
    global calls
    calls += 1
    largest = x.abs().max() if calls > 1 else x.abs().amax()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return torch.where(largest > 0, x / largest, x)


# %% capture_sizes: own-order
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sizes:
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: no-warm-up
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: own-order
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    for size in sizes:
        step(static[:size])
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: does-not-fit
def capture_sizes(cuda, step, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        static = torch.zeros(size, width, device="cuda")
        step(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, static, step(static)

    def run(x, size):
        g, static, out = graphs[size]
        static.copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: shape
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out.clone()

    return run


# %% capture_sizes: overwritten
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)]

    return run


# %% capture_sizes: stale-input
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: captures-again
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool = cuda.graph_pool_handle()
    step(static)

    def run(x, size):
        static[: len(x)].copy_(x)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: no-graph
def capture_sizes(cuda, step, width, sizes):
    step(torch.zeros(max(sizes), width, device="cuda"))
    return lambda x, size: step(x)


# %% capture_sizes: several-pools
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    graphs = {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: smallest-first
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: late-copy
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        g, out = graphs[size]
        g.replay()
        static[: len(x)].copy_(x)
        return out[: len(x)].clone()

    return run


# %% capture_sizes: several-replays
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = g, step(static[:size])

    def run(x, size):
        static[: len(x)].copy_(x)
        for g, _ in graphs.values():
            g.replay()
        graphs[size][0].replay()
        return graphs[size][1][: len(x)].clone()

    return run


# %% scaled: breaks
@torch.compiler.disable
def agreed(largest):
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest


def scaled(x):
    largest = agreed(x.abs().max())
    return torch.where(largest > 0, x / largest, x)


# %% replay_together: parted
def replay_together(run, x, sizes):
    return run(x, min(size for size in sizes if size >= len(x)))


# %% replay_together: parted
def replay_together(run, x, sizes):
    most = torch.tensor(len(x), device=x.device)
    dist.reduce(most, 0, op=dist.ReduceOp.MAX)
    rows = int(most) if dist.get_rank() == 0 else len(x)
    return run(x, min(size for size in sizes if size >= rows))


# %% replay_together: idle-rank-returns
def replay_together(run, x, sizes):
    if len(x) == 0:
        return x
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return run(x, min(size for size in sizes if size >= most.item()))


# %% replay_together: not-once
def replay_together(run, x, sizes):
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if len(x) == 0:
        return x * 2 + 1
    return run(x, min(size for size in sizes if size >= most.item()))


# %% replay_together: other-size
def replay_together(run, x, sizes):
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return run(x, max(sizes))


# %% replay_together: other-size
def replay_together(run, x, sizes):
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return run(x, min((size for size in sizes if size > most.item()), default=max(sizes)))


# %% replay_together: no-size-fits
def replay_together(run, x, sizes):
    total = torch.tensor(len(x), device=x.device)
    dist.all_reduce(total)
    return run(x, min(size for size in sizes if size >= total.item()))


# %% replay_together: more-calls
def replay_together(run, x, sizes):
    rows = [0] * dist.get_world_size()
    dist.all_gather_object(rows, len(x))
    return run(x, min(size for size in sizes if size >= max(rows)))


# %% replay_together: more-calls
def replay_together(run, x, sizes):
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.barrier()
    return run(x, min(size for size in sizes if size >= most.item()))


# %% ladder: powers-of-two
def ladder(rows, count):
    size = 1
    while size < max(rows):
        size *= 2
    return [size >> at for at in range(count) if size >> at][::-1]


# %% ladder: equal-steps
def ladder(rows, count):
    return sorted({-(-max(rows) * at // count) for at in range(1, count + 1)})


# %% ladder: most-frequent
def ladder(rows, count):
    often = [size for size, _ in collections.Counter(rows).most_common()]
    return sorted({max(rows), *[size for size in often if size < max(rows)][: count - 1]})


# %% ladder: quantiles
def ladder(rows, count):
    ordered = sorted(rows)
    return sorted({ordered[-(-len(rows) * at // count) - 1] for at in range(1, count + 1)})


# %% ladder: greedy
def ladder(rows, count):
    def cost(sizes):
        return sum(min(size for size in sizes if size >= one) for one in rows)

    sizes = [max(rows)]
    while len(sizes) < min(count, len(set(rows))):
        sizes.append(min(set(rows) - set(sizes), key=lambda one: (cost([*sizes, one]), one)))
    return sorted(sizes)


# %% ladder: distinct-only
def ladder(rows, count):
    rows = set(rows)
    best = {0: (0, [])}
    for _ in range(count):
        longer = dict(best)
        for size in sorted(rows):
            longer[size] = min(
                (cost + size * sum(low < one <= size for one in rows), [*sizes, size])
                for low, (cost, sizes) in best.items()
                if low <= size
            )
        best = longer
    return sorted(set(best[max(rows)][1]))


# %% ladder: largest-only
def ladder(rows, count):
    return [max(rows)]


# %% ladder: does-not-fit
def ladder(rows, count):
    return sorted(set(rows))[:count]


# %% ladder: too-many
def ladder(rows, count):
    return sorted(set(rows))


# %% ladder: unsorted
def ladder(rows, count):
    best = {0: (0, [])}
    for _ in range(count):
        longer = dict(best)
        for size in sorted(set(rows)):
            longer[size] = min(
                (cost + size * sum(low < one <= size for one in rows), [*sizes, size])
                for low, (cost, sizes) in best.items()
                if low <= size
            )
        best = longer
    return sorted(set(best[max(rows)][1]), reverse=True)


# %% pieces: from-the-front
def pieces(layers, cap):
    found, limit = [[]], min(cap, MIB)
    for size in layers:
        if sum(found[-1]) >= limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in found]


# %% pieces: not-reversed
def pieces(layers, cap):
    found, limit = [[]], min(cap, MIB)
    for size in reversed(layers):
        if sum(found[-1]) >= limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in found]


# %% pieces: no-small-first
def pieces(layers, cap):
    found = [[]]
    for size in reversed(layers):
        if sum(found[-1]) >= cap:
            found.append([])
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]


# %% pieces: closes-before
def pieces(layers, cap):
    found, limit = [[]], min(cap, MIB)
    for size in reversed(layers):
        if found[-1] and sum(found[-1]) + size > limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]


# %% pieces: strictly-more
def pieces(layers, cap):
    found, limit = [[]], min(cap, MIB)
    for size in reversed(layers):
        if sum(found[-1]) > limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]


# %% pieces: always-1-mib
def pieces(layers, cap):
    found = [[]]
    for size in reversed(layers):
        if sum(found[-1]) >= min(cap, MIB):
            found.append([])
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]


# %% pieces: first-ignores-cap
def pieces(layers, cap):
    found, limit = [[]], MIB
    for size in reversed(layers):
        if sum(found[-1]) >= limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]


# %% pieces: by-total
def pieces(layers, cap):
    count = max(1, -(-sum(layers) // cap))
    each = -(-len(layers) // count)
    return [len(layers[at : at + each]) for at in range(0, len(layers), each)]


# %% pieces: decimal
def pieces(layers, cap):
    found, limit = [[]], min(cap, 1_000_000)
    for size in reversed(layers):
        if sum(found[-1]) >= limit:
            found.append([])
            limit = cap
        found[-1].append(size)
    return [len(piece) for piece in reversed(found)]


# %% pieces: adds-up
def pieces(layers, cap):
    found, held, limit = [0], 0, min(cap, MIB)
    for size in reversed(layers):
        if held >= limit:
            found.append(0)
            limit += cap
        found[-1] += 1
        held += size
    return found[::-1]
