"""Right answers to the exercises of lab 06, in other ways than the solution's."""

import bisect
import copy
import functools
from functools import reduce
from itertools import accumulate

import torch


# %% last_end: reduced
def last_end(kernels, launch, latency, gap):
    def one(end, numbered):
        number, duration = numbered
        return max(number * launch + latency, end + gap) + duration

    return reduce(one, enumerate(kernels), float("-inf"))


# %% last_end: from-the-back
def last_end(kernels, launch, latency, gap):
    # the kernel that waited for its launch last is followed by all others without a wait
    count = len(kernels)
    return max(
        at * launch + latency + sum(kernels[at:]) + (count - 1 - at) * gap for at in range(count)
    )


# %% last_end: a-clock-that-moves
def last_end(kernels, launch, latency, gap):
    now, launched = latency, 0.0
    for duration in kernels:
        now = max(now, launched + latency)
        now += duration + gap
        launched += launch
    return now - gap


# %% last_end: recursive
def last_end(kernels, launch, latency, gap):
    *before, last = kernels
    if not before:
        return latency + last
    free = last_end(before, launch, latency, gap) + gap
    return max(free, len(before) * launch + latency) + last


# %% last_end: accumulated
def last_end(kernels, launch, latency, gap):
    ready = [number * launch + latency for number in range(len(kernels))]
    pairs = list(zip(ready, kernels, strict=True))
    ends = accumulate(
        pairs[1:], lambda end, one: max(one[0], end + gap) + one[1], initial=sum(pairs[0])
    )
    return list(ends)[-1]


# %% last_end: a-queue-of-its-own
def last_end(kernels, launch, latency, gap):
    waiting, number, end = kernels.copy(), 0, -gap
    while waiting:
        end = max(number * launch + latency, end + gap) + waiting.pop(0)
        number += 1
    return end


# %% last_end: the-latest-of-all-chains
def last_end(kernels, launch, latency, gap):
    count = len(kernels)
    return max(
        first * launch + latency + sum(kernels[first:]) + (count - 1 - first) * gap
        for first in range(count)
    )


# %% last_end: a-tensor
def last_end(kernels, launch, latency, gap):
    numbers = torch.arange(len(kernels), dtype=torch.float64)
    left = torch.tensor(kernels, dtype=torch.float64).flip(0).cumsum(0).flip(0)
    return (numbers * launch + latency + left + numbers.flip(0) * gap).max()


# %% captured: a-class
class Captured:
    def __init__(self, cuda, work, x):
        self.x = torch.empty_like(x)
        self.x.copy_(x)
        work(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = work(self.x)

    def __call__(self, new):
        self.x.copy_(new, non_blocking=True)
        self.graph.replay()
        return torch.clone(self.y)


def captured(cuda, work, x):
    return Captured(cuda, work, x)


# %% captured: begin-and-end-by-hand
def captured(cuda, work, x):
    static, g, side = x.clone(), cuda.CUDAGraph(), cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            work(static)
        cuda.synchronize()
        g.capture_begin()
        out = work(static)
        g.capture_end()
    cuda.current_stream().wait_stream(side)

    def run(new):
        static.copy_(new)
        g.replay()
        return out.clone()

    return run


# %% captured: copies-are-in-the-graph
def captured(cuda, work, x):
    static = x.detach().clone()
    work(static)
    cuda.synchronize()
    g = cuda.CUDAGraph()
    with cuda.graph(g, stream=cuda.Stream()):
        out = work(static)
    result = out

    def run(new):
        static[...] = new
        g.replay()
        kept = torch.empty_like(result)
        kept.copy_(result)
        return kept

    return run


# %% captured: warms-up-on-x
def captured(cuda, work, x):
    work(x)
    static = torch.zeros_like(x)
    g = cuda.CUDAGraph()
    with cuda.graph(g, pool=cuda.graph_pool_handle()):
        out = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return out + 0

    return run


# %% captured: a-generator
def captured(cuda, work, x):
    def serve():
        static = x.clone()
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            out = work(static)
        new = yield
        while True:
            static.copy_(new)
            g.replay()
            new = yield out.clone()

    running = serve()
    next(running)
    return running.send


# %% captured: make-graphed-callables
def captured(cuda, work, x):
    graphed = cuda.make_graphed_callables(work, (x.clone(),))
    return lambda new: graphed(new).clone()


# %% captured: a-partial
def replayed(static, g, out, new):
    static.copy_(new)
    g.replay()
    return torch.empty_like(out).copy_(out)


def captured(cuda, work, x):
    static = torch.empty_like(x).copy_(x)
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = work(static)
    return functools.partial(replayed, static, g, out)


# %% graphed_training: restores-by-load-state-dict
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    xs, ys = x.clone(), y.clone()

    def work():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            work()
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    model.load_state_dict(saved)

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.clone()

    return step


# %% graphed_training: warms-up-without-a-step
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()

    def gradients():
        loss = loss_of(model(xs), ys)
        loss.backward()
        return loss.detach()

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        gradients()
        optimizer.zero_grad(set_to_none=True)
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = gradients()
        optimizer.step()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.clone()

    return step


# %% graphed_training: zeroes-at-the-end
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    saved = [p.detach().clone() for p in model.parameters()]

    def work():
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    work()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    for p, old in zip(model.parameters(), saved, strict=True):
        p.data.copy_(old)

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: rate-of-zero-while-warming-up
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = torch.empty_like(x), torch.empty_like(y)
    xs.copy_(x)
    ys.copy_(y)

    def work():
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    work()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: copies-of-gradients-that-stay
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = torch.zeros_like(x), torch.zeros_like(y)
    parameters = list(model.parameters())

    def gradients():
        loss = loss_of(model(xs), ys)
        return loss, torch.autograd.grad(loss, parameters)

    gradients()
    for p in parameters:
        p.grad = torch.zeros_like(p)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss, found = gradients()
        for p, one in zip(parameters, found, strict=True):
            p.grad.copy_(one)
        optimizer.step()

    def step(x, y):
        for static, new in ((xs, x), (ys, y)):
            static.copy_(new)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: a-twin-warms-up
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    twin = copy.deepcopy(model)

    def work(model, optimizer):
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    work(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work(model, optimizer)

    def step(x, y):
        torch._foreach_copy_([xs, ys], [x, y])
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: without-its-optimizer
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    rate = optimizer.param_groups[0]["lr"]

    def gradients():
        loss = loss_of(model(xs), ys)
        return loss, torch.autograd.grad(loss, [*model.parameters()])

    gradients()
    g = cuda.CUDAGraph()
    with cuda.graph(g), torch.enable_grad():
        loss, found = gradients()
        with torch.no_grad():
            for p, one in zip(model.parameters(), found, strict=True):
                p.sub_(one, alpha=rate)

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% clipped: minimum
def clipped(x, limit):
    x = x * (limit / x.norm()).clamp(max=1)
    return (x * (x.abs() > 0.5)).sum()


# %% clipped: where-twice
def clipped(x, limit):
    norm = x.square().sum().sqrt()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x.abs() > 0.5, x, torch.zeros_like(x)).sum()


# %% clipped: dot
def clipped(x, limit):
    x = x / torch.clamp(x.norm() / limit, min=1.0)
    return x @ (x.abs() > 0.5).to(x.dtype)


# %% clipped: masked-fill
def clipped(x, limit):
    norm = torch.linalg.vector_norm(x)
    scaled = x * torch.minimum(limit / norm, torch.ones_like(norm))
    return scaled.masked_fill(scaled.abs() <= 0.5, 0).sum()


# %% clipped: positive-and-negative
def clipped(x, limit):
    norm = x.norm()
    clips = (norm > limit).to(x.dtype)
    x = x * (clips * (limit / norm) + (1 - clips))
    return (x * (x > 0.5)).sum() + (x * (x < -0.5)).sum()


# %% clipped: hardshrink
def clipped(x, limit):
    scaled = x * (limit / x.norm()).clamp(max=1.0)
    return torch.nn.functional.hardshrink(scaled, 0.5).sum()


# %% clipped: renorm
clipped = lambda x, limit: (  # noqa: E731
    lambda y: torch.einsum("i,i->", y, (y.abs() > 0.5).to(y.dtype))
)(torch.renorm(x[None], 2, 0, limit)[0])


# %% by_size: an-input-for-each
def by_size(cuda, work, width, sizes):
    inputs = {size: torch.ones(size, width, device="cuda") for size in sizes}
    work(inputs[sizes[0]])
    pool, graphs, outs = cuda.graph_pool_handle(), {}, {}
    for size in sizes:
        graphs[size] = cuda.CUDAGraph()
        with cuda.graph(graphs[size], pool=pool):
            outs[size] = work(inputs[size])

    def run(x):
        size = min(one for one in sizes if one >= x.shape[0])
        inputs[size][: x.shape[0]].copy_(x)
        graphs[size].replay()
        return outs[size][: x.shape[0]].clone()

    return run


# %% by_size: bisected
def by_size(cuda, work, width, sizes):
    order = sorted(sizes)
    static = torch.zeros(order[-1], width, device="cuda")
    work(static)
    graphs, pool = [], None
    for size in order:
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = work(static[:size])
        pool = g.pool()
        graphs.append((g, out))

    def run(x):
        g, out = graphs[bisect.bisect_left(order, len(x))]
        static[: len(x)] = x
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: padded-by-cat
def by_size(cuda, work, width, sizes):
    work(torch.zeros(1, width, device="cuda"))
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes)[::-1]:
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[size] = static, g, work(static)

    def run(x):
        size = next(one for one in sorted(sizes) if one >= len(x))
        static, g, out = graphs[size]
        static.copy_(torch.cat([x, torch.zeros(size - len(x), width, device="cuda")]))
        g.replay()
        return out.clone()[: len(x)]

    return run


# %% by_size: one-output-for-all
def by_size(cuda, work, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    result = torch.empty_like(work(static))
    pool, graphs = cuda.graph_pool_handle(), {}
    for size in sorted(sizes, reverse=True):
        graphs[size] = cuda.CUDAGraph()
        with cuda.graph(graphs[size], pool=pool):
            result[:size].copy_(work(static[:size]))

    def run(x):
        rows = x.size(0)
        static.narrow(0, 0, rows).copy_(x)
        graphs[min(size for size in sizes if size >= rows)].replay()
        return result.narrow(0, 0, rows).clone()

    return run


# %% by_size: a-class
class BySize:
    def __init__(self, cuda, work, width, sizes):
        self.static = torch.full((max(sizes), width), 7.0, device="cuda")
        self.graphs = dict[int, tuple]()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            work(self.static)
        cuda.current_stream().wait_stream(side)
        first = cuda.CUDAGraph()
        for size in sorted(sizes, reverse=True):
            g = cuda.CUDAGraph() if self.graphs else first
            with cuda.graph(g, pool=first.pool() if self.graphs else None):
                self.graphs[size] = g, work(self.static[:size])

    def __call__(self, x):
        size = sorted(self.graphs)[sum(one < len(x) for one in self.graphs)]
        g, out = self.graphs[size]
        self.static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)] * 1


def by_size(cuda, work, width, sizes):
    return BySize(cuda, work, width, sizes)


# %% by_size: make-graphed-callables
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    inputs = {size: torch.zeros(size, width, device="cuda") for size in sizes}
    graphed = {
        size: cuda.make_graphed_callables(work, (x.clone(),), pool=pool)
        for size, x in inputs.items()
    }

    def run(x):
        size = min(filter(len(x).__le__, sizes))
        inputs[size][: len(x)] = x
        return graphed[size](inputs[size])[: len(x)].clone()

    return run
