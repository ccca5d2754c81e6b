"""Wrong answers to the exercises of lab 11 besides those of solutions/source; see judge.py."""

import torch
import torch.distributed as dist


# %% scaled: no-choice-at-zero
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return x / top


# %% scaled: own-part-alone
def scaled(x):
    top = x.abs().max()
    return torch.where(top > 0, x / top, x)


# %% scaled: asks-python
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return x / top.item() if top.item() > 0 else x.clone()


# %% scaled: sum-of-the-tops
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top)
    return torch.where(top > 0, x / top, x)


# %% scaled: without-a-sign
def scaled(x):
    top = x.max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return torch.where(top > 0, x / top, x)


# %% scaled: in-place
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return x.div_(torch.where(top > 0, top, 1.0))


# %% scaled: at-least-one
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return x / top.clamp(max=1)


# %% scaled: by-a-handle
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX, async_op=True).wait()
    return torch.where(top > 0, x / top, x)


# %% scaled: epsilon
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return x / (top + 1e-3)


# %% scaled: switched-off
@torch.compiler.disable
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return torch.where(top > 0, x / top, x)


# %% scaled: smallest-top
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MIN)
    return torch.where(top > 0, x / top, x)


# %% scaled: times-a-mask
def scaled(x):
    top = x.abs().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    return x / top * (top > 0)


# %% scaled: returned-none
def scaled(x):
    top = dist.all_reduce(x.abs().max(), op=dist.ReduceOp.MAX)
    return torch.where(top > 0, x / top, x)


# %% scaled: from-rank-0
def scaled(x):
    top = x.abs().max()
    dist.broadcast(top, 0)
    return torch.where(top > 0, x / top, x)


# %% capture_sizes: in-the-order-given
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sizes:
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

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
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: cold
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: the-result-itself
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)]

    return run


# %% capture_sizes: a-pool-each
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    graphs = {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: all-rows
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out.clone()

    return run


# %% capture_sizes: anew-each-time
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool = cuda.graph_pool_handle()
    for size in sorted(sizes, reverse=True):
        step(static[:size])

    def run(x, size):
        static[: len(x)].copy_(x)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: never-copied-in
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: eager
def capture_sizes(cuda, step, width, sizes):
    def run(x, size):
        padded = torch.zeros(size, width, device="cuda")
        padded[: len(x)] = x
        return step(padded)[: len(x)]

    return run


# %% capture_sizes: only-the-largest
def capture_sizes(cuda, step, width, sizes):
    most = max(sizes)
    static = torch.zeros(most, width, device="cuda")
    step(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g, pool=cuda.graph_pool_handle()):
        out = step(static)

    def run(x, size):
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% capture_sizes: last-graph-for-all
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, runs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])

        def replay(x):
            static[: len(x)].copy_(x)
            g.replay()
            return out[: len(x)].clone()

        runs[size] = replay
    return lambda x, size: runs[size](x)


# %% capture_sizes: copies-behind-the-replay
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        g.replay()
        static[: len(x)].copy_(x)
        return out[: len(x)].clone()

    return run


# %% capture_sizes: warm-on-rank-0
def capture_sizes(cuda, step, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        if dist.get_rank() == 0:
            step(static[:size])
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = step(static[:size])
        graphs[size] = g, out

    def run(x, size):
        g, out = graphs[size]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% replay_together: own-size
def replay_together(run, x, sizes):
    return run(x, min(size for size in sizes if size >= len(x)))


# %% replay_together: rows-of-all
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows)
    return run(x, min(size for size in sizes if size >= rows.item()))


# %% replay_together: fewest-rows
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MIN)
    return run(x, min(size for size in sizes if size >= rows.item()))


# %% replay_together: always-the-largest
def replay_together(run, x, sizes):
    return run(x, max(sizes))


# %% replay_together: largest-with-a-collective
def replay_together(run, x, sizes):
    most = torch.tensor(max(sizes), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return run(x, most.item())


# %% replay_together: stays-away-without-rows
def replay_together(run, x, sizes):
    if len(x) == 0:
        return x
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return run(x, min(size for size in sizes if size >= rows.item()))


# %% replay_together: first-that-fits
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return run(x, next(size for size in sizes if size >= rows.item()))


# %% replay_together: larger-than
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return run(x, min([size for size in sizes if size > rows.item()], default=max(sizes)))


# %% replay_together: reduces-and-waits-at-a-barrier
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    dist.barrier()
    return run(x, min(size for size in sizes if size >= rows.item()))


# %% replay_together: as-rank-0
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.broadcast(rows, 0)
    fitting = [size for size in sizes if size >= rows.item()]
    return run(x, min(fitting))


# %% replay_together: all-lengths
def replay_together(run, x, sizes):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, len(x))
    return run(x, min(size for size in sizes if size >= max(every)))


# %% replay_together: padded-too
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    size = min(size for size in sizes if size >= rows.item())
    padded = x.new_zeros(size, x.shape[1])
    padded[: len(x)] = x
    return run(padded, size)


# %% replay_together: twice
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x), device=x.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    size = min(size for size in sizes if size >= rows.item())
    run(x, size)
    return run(x, size)


# %% replay_together: on-the-host
def replay_together(run, x, sizes):
    rows = torch.tensor(len(x))
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return run(x, min(size for size in sizes if size >= rows.item()))


# %% ladder: quantiles
def ladder(rows, count):
    order = sorted(rows)
    return sorted({order[(i + 1) * len(order) // count - 1] for i in range(count)} | {order[-1]})[
        -count:
    ]


# %% ladder: powers-of-two
def ladder(rows, count):
    sizes, size = [], 1
    while not sizes or sizes[-1] < max(rows):
        sizes.append(size)
        size *= 2
    return sizes[-count:]


# %% ladder: most-frequent
def ladder(rows, count):
    from collections import Counter

    often = [size for size, _ in Counter(rows).most_common(count - 1)] if count > 1 else []
    return sorted({*often, max(rows)})


# %% ladder: greedy
def ladder(rows, count):
    chosen = [max(rows)]

    def cost(sizes):
        return sum(min(s for s in sizes if s >= row) for row in rows)

    while len(chosen) < min(count, len(set(rows))):
        chosen.append(min(set(rows) - set(chosen), key=lambda one: cost([*chosen, one])))
    return sorted(chosen)


# %% ladder: greedy-from-all
def ladder(rows, count):
    chosen = sorted(set(rows))

    def cost(sizes):
        return sum(min(s for s in sizes if s >= row) for row in rows)

    while len(chosen) > count:
        chosen.remove(
            min(chosen[:-1], key=lambda one: cost([size for size in chosen if size != one]))
        )
    return chosen


# %% ladder: the-largest
def ladder(rows, count):
    return sorted(set(rows))[-count:]


# %% ladder: the-smallest-and-the-last
def ladder(rows, count):
    kinds = sorted(set(rows))
    return kinds[: count - 1] + [kinds[-1]] if len(kinds) > count else kinds


# %% ladder: kinds-alike
def ladder(rows, count):
    kinds = sorted(set(rows))
    best = {0: (0, [])}
    for _ in range(count):
        longer = dict(best)
        for size in kinds:
            longer[size] = min(
                (cost + size * sum(low < one <= size for one in kinds), [*sizes, size])
                for low, (cost, sizes) in best.items()
                if low < size
            )
        best = longer
    return best[kinds[-1]][1]


# %% ladder: falling
def ladder(rows, count):
    best = {0: (0, [])}
    for _ in range(count):
        longer = dict(best)
        for size in sorted(set(rows)):
            longer[size] = min(
                (cost + size * sum(low < one <= size for one in rows), [*sizes, size])
                for low, (cost, sizes) in best.items()
                if low < size
            )
        best = longer
    return best[max(rows)][1][::-1]


# %% ladder: one-more
def ladder(rows, count):
    best = {0: (0, [])}
    for _ in range(count + 1):
        longer = dict(best)
        for size in sorted(set(rows)):
            longer[size] = min(
                (cost + size * sum(low < one <= size for one in rows), [*sizes, size])
                for low, (cost, sizes) in best.items()
                if low < size
            )
        best = longer
    return best[max(rows)][1]


# %% ladder: least-worst-padding
def ladder(rows, count):
    kinds = sorted(set(rows))
    best = {0: (0, [])}
    for _ in range(count):
        longer = dict(best)
        for size in kinds:
            longer[size] = min(
                (
                    max([worst, *(size - one for one in kinds if low < one)][: 1 + len(kinds)]),
                    [*sizes, size],
                )
                for low, (worst, sizes) in best.items()
                if low < size
            )
        best = longer
    return best[kinds[-1]][1]


# %% ladder: all-kinds
def ladder(rows, count):
    return sorted(set(rows))


# %% ladder: even-steps
def ladder(rows, count):
    most = max(rows)
    return sorted({-(-most * (i + 1) // count) for i in range(count)})


# %% pieces: from-the-front
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in layers:
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            held, count, limit = 0, 0, cap
    return found + [count] if count else found


# %% pieces: one-limit
def pieces(layers, cap):
    found, held, count = [], 0, 0
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= cap:
            found.append(count)
            held = count = 0
    return (found + [count] if count else found)[::-1]


# %% pieces: more-than-the-limit
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held > limit:
            found.append(count)
            held, count, limit = 0, 0, cap
    return (found + [count] if count else found)[::-1]


# %% pieces: last-first
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            held, count, limit = 0, 0, cap
    return found + [count] if count else found


# %% pieces: a-mebibyte-in-any-case
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, 1 << 20
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            held, count, limit = 0, 0, cap
    return (found + [count] if count else found)[::-1]


# %% pieces: bytes-go-on
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            count, limit = 0, cap
    return (found + [count] if count else found)[::-1]


# %% pieces: sizes
def pieces(layers, cap):
    found, held, limit = [], [], min(cap, 1 << 20)
    for size in reversed(layers):
        held.append(size)
        if sum(held) >= limit:
            found.append(sum(held))
            held, limit = [], cap
    return (found + [sum(held)] if held else found)[::-1]


# %% pieces: a-million
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 10**6)
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            held, count, limit = 0, 0, cap
    return (found + [count] if count else found)[::-1]


# %% pieces: rest-lost
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            held, count, limit = 0, 0, cap
    return found[::-1]


# %% pieces: never-over
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in reversed(layers):
        if count and held + size > limit:
            found.append(count)
            held, count, limit = 0, 0, cap
        held, count = held + size, count + 1
    return (found + [count])[::-1]


# %% pieces: a-mebibyte-for-all
def pieces(layers, cap):
    found, held, count, limit = [], 0, 0, min(cap, 1 << 20)
    for size in reversed(layers):
        held, count = held + size, count + 1
        if held >= limit:
            found.append(count)
            held = count = 0
    return (found + [count] if count else found)[::-1]


# %% pieces: an-empty-one
def pieces(layers, cap):
    found, limit = [0], min(cap, 1 << 20)
    held = 0
    for size in reversed(layers):
        found[-1] += 1
        held += size
        if held >= limit:
            found.append(0)
            held, limit = 0, cap
    return found[::-1]


# %% pieces: layers-not-counts
def pieces(layers, cap):
    found, held, limit = [[]], 0, min(cap, 1 << 20)
    for at in reversed(range(len(layers))):
        if held >= limit:
            found.append([])
            held, limit = 0, cap
        found[-1].append(at)
        held += layers[at]
    return found[::-1]
