"""Right answers to the exercises of lab 06, written without sight of its checks; see judge.py."""

import bisect
import contextlib
import copy
import functools
import itertools
from collections import namedtuple
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist


# %% last_end: loop
# A loop that treats "no kernel before" as an end at minus infinity.
def last_end(kernels, launch, latency, gap):
    end = float("-inf")
    for i, duration in enumerate(kernels):
        end = max(i * launch + latency, end + gap) + duration
    return end


# %% last_end: latest-of-all-chains
# Closed form: the last end is the longest chain "kernel j begins as soon as its launch allows, and from there on one
# kernel follows the other".
def last_end(kernels, launch, latency, gap):
    n = len(kernels)
    return max(j * launch + latency + sum(kernels[j:]) + (n - 1 - j) * gap for j in range(n))


# %% last_end: reduce-over-pairs
# functools.reduce over (launch, duration) pairs; the first kernel is the initial value.
def last_end(kernels, launch, latency, gap):
    durations = iter(kernels)
    first = latency + next(durations)
    launches = itertools.count(launch + latency, launch)
    follow = lambda end, pair: max(pair[0], end + gap) + pair[1]
    return functools.reduce(follow, zip(launches, durations), first)


# %% last_end: max-plus-matrices
# Each kernel is a 2 x 2 matrix over (max, +), and the state is the vector (time of the launch, end of the last kernel).
def last_end(kernels, launch, latency, gap):
    minus = -np.inf
    state = np.array([0.0, minus])
    for duration in kernels:
        step = np.array([[launch, minus], [latency + duration, gap + duration]])
        state = (step + state[None, :]).max(axis=1)
    return float(state[1])


# %% last_end: tensors-cumsum
# Vectorized in float64: subtract what the kernels before take, a running maximum of the rest, add it again.
def last_end(kernels, launch, latency, gap):
    d = torch.as_tensor(list(kernels), dtype=torch.float64)
    i = torch.arange(len(d), dtype=torch.float64)
    before = d.cumsum(0) - d + i * gap  # what has to pass before kernel i, if none waits
    starts = (i * launch + latency - before).cummax(0).values + before
    return (starts[-1] + d[-1]).item()


# %% last_end: exact-and-by-halves
# Exact fractions; a stretch of kernels is (time it takes, earliest end from its launches), and stretches are joined
# by halves, recursively.
def last_end(kernels, launch, latency, gap):
    launch, latency, gap = map(Fraction, (launch, latency, gap))

    def stretch(first, stop):
        if stop - first == 1:
            duration = Fraction(kernels[first])
            return duration, first * launch + latency + duration
        middle = (first + stop) // 2
        a, a_end = stretch(first, middle)
        b, b_end = stretch(middle, stop)
        return a + gap + b, max(a_end + gap + b, b_end)

    return float(stretch(0, len(kernels))[1])


# %% captured: side-stream-warm-up
# As PyTorch's notes do it: three warm-up calls on a side stream, then copy, replay, clone.
def captured(cuda, work, x):
    static = x.clone()
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            work(static)
    cuda.current_stream().wait_stream(side)
    static.copy_(x)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: callable-class
# A class with __call__; the result is a new empty tensor that the output is copied into.
class _Captured:
    def __init__(self, cuda, work, x):
        self.input = torch.empty_like(x)
        self.graph = cuda.CUDAGraph()
        work(x.clone())
        with cuda.graph(self.graph):
            self.output = work(self.input)

    def __call__(self, new):
        self.input.copy_(new)
        self.graph.replay()
        return torch.empty_like(self.output).copy_(self.output)


def captured(cuda, work, x):
    return _Captured(cuda, work, x)


# %% captured: begin-and-end-by-hand
# capture_begin and capture_end on an own stream instead of `with cuda.graph`.
def captured(cuda, work, x):
    own, static, g = cuda.Stream(), x.clone(), cuda.CUDAGraph()
    own.wait_stream(cuda.current_stream())
    with cuda.stream(own):
        work(x.clone())
        cuda.synchronize()
        g.capture_begin()
        try:
            y = work(static)
        finally:
            g.capture_end()
    cuda.current_stream().wait_stream(own)

    def run(new):
        static.copy_(new)
        g.replay()
        return torch.clone(y)

    return run


# %% captured: partial
# functools.partial over a helper with all that it needs; the static tensor is made by new_empty.
def _replay(static, g, y, new):
    static.copy_(new)
    g.replay()
    return y.detach().clone()


def captured(cuda, work, x):
    for _ in range(2):
        work(x.clone())
    static = x.new_empty(x.shape)
    g = cuda.CUDAGraph()
    with cuda.graph(g, stream=cuda.Stream()):
        y = work(static)
    return functools.partial(_replay, static, g, y)


# %% captured: generator
# A generator that is sent an input and yields a copy of the output.
def captured(cuda, work, x):
    def life():
        static, g = x.clone(), cuda.CUDAGraph()
        work(static.clone())
        with cuda.graph(g):
            y = work(static)
        new = yield
        while True:
            static.copy_(new)
            g.replay()
            new = yield y.clone()

    running = life()
    next(running)
    return running.send


# %% captured: make-graphed-callables
# torch.cuda.make_graphed_callables does the warm-up, the capture, the copy in and the replay; only the copy out is
# added.
def captured(cuda, work, x):
    work(x.clone())
    graphed = cuda.make_graphed_callables(lambda given: work(given), (x.clone(),))
    return lambda new: graphed(new).detach().clone()


# %% graphed_training: clones-and-copy-back
# Keeps clones of the parameters, warms up on a side stream, and copies them back in place before the capture.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            whole()
    cuda.current_stream().wait_stream(side)
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    optimizer.zero_grad(set_to_none=True)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: state-dict-after-the-capture
# A deep copy of the state dict, loaded (which copies in place) after the capture; gradients are zeroed, not dropped.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    batch = {"x": x.clone(), "y": y.clone()}
    before = copy.deepcopy(model.state_dict())

    def whole():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(batch["x"]), batch["y"])
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    whole()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()
    model.load_state_dict(before)
    batch["gradients"] = [p.grad for p in model.parameters()]  # the graph writes into them

    def step(x, y):
        batch["x"].copy_(x)
        batch["y"].copy_(y)
        g.replay()
        return loss.clone()

    return step


# %% graphed_training: learning-rate-zero-for-the-warm-up
# The warm-up runs with a learning rate of 0, which is set back before the capture; so nothing has to be restored.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = torch.clone(x), torch.clone(y)

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    @contextlib.contextmanager
    def standing_still():
        rates = [group["lr"] for group in optimizer.param_groups]
        try:
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            yield
        finally:
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate

    with standing_still():
        whole()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.clone()

    return step


# %% graphed_training: one-flat-vector
# All parameters of the optimizer's groups and of the model are kept in one flat vector per dtype, and copied back
# from its pieces.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    params = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    params.update((id(p), p) for p in model.parameters())
    kinds = {}
    for p in params.values():
        kinds.setdefault(p.dtype, []).append(p)
    flat = {kind: torch.cat([p.detach().reshape(-1) for p in some]) for kind, some in kinds.items()}
    static = [x.clone(), y.clone()]

    def whole():
        optimizer.zero_grad()
        (loss := loss_of(model(static[0]), static[1])).backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for kind, some in kinds.items():
            for p, old in zip(some, flat[kind].split([p.numel() for p in some])):
                p.copy_(old.view_as(p))
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(*batch):
        for place, new in zip(static, batch):
            place.copy_(new)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: callable-class
# A class whose objects are the step; the parameters are restored both before the capture and after it
# (harmless: a capture runs nothing).
class _Step:
    def __init__(self, cuda, model, optimizer, loss_of, x, y):
        self.model, self.optimizer, self.loss_of = model, optimizer, loss_of
        self.x, self.y = torch.empty_like(x).copy_(x), torch.empty_like(y).copy_(y)
        params = list(model.parameters())
        kept = [p.detach().clone() for p in params]
        restore = torch.no_grad()(lambda: [p.copy_(old) for p, old in zip(params, kept)])
        self.whole()
        restore()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.whole()
        restore()

    def whole(self):
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def __call__(self, x, y):
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return torch.empty_like(self.loss).copy_(self.loss)


def graphed_training(cuda, model, optimizer, loss_of, x, y):
    return _Step(cuda, model, optimizer, loss_of, x, y)


# %% graphed_training: closure-as-optimizers-have-it
# optimizer.step(closure) does the forward and backward pass, and its return value is the loss.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    sx, sy = x.clone(), y.clone()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model(sx), sy)
        loss.backward()
        return loss

    optimizer.step(closure)
    for name, p in model.named_parameters():
        p.detach().copy_(before[name])
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = optimizer.step(closure).detach()

    def step(x, y):
        sx.copy_(x)
        sy.copy_(y)
        g.replay()
        return loss.clone()

    return step


# %% clipped: two-wheres
# Each branch on values becomes a torch.where.
def clipped(x, limit):
    norm = x.norm()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: scale-in-float64
# The scale is computed in float64, as the original does it with Python's numbers, and rounded like its scalar.
def clipped(x, limit):
    norm = x.norm().double()
    scale = torch.where(norm > limit, limit / norm, torch.ones_like(norm))
    x = x * scale.to(x.dtype)
    small = torch.logical_not(x.abs() > 0.5)
    return x.masked_fill(small, 0.0).sum()


# %% clipped: index-add-into-two-bins
# Adds each element to one of two bins, small or large, and returns the second.
def clipped(x, limit):
    norm = torch.linalg.vector_norm(x)
    scaled = x * torch.where(norm.gt(limit), limit / norm, 1.0)
    bins = torch.zeros(2, dtype=x.dtype, device=x.device)
    return bins.index_add_(0, scaled.abs().gt(0.5).long(), scaled)[1]


# %% clipped: nansum
# What is small becomes NaN, and nansum leaves it out, as the original leaves out what is not larger than 0.5.
def clipped(x, limit):
    norm = x.norm(p=2)
    x = torch.where(norm > limit, x.mul(limit / norm), x)
    return torch.nansum(torch.where(x.abs() > 0.5, x, float("nan")))


# %% clipped: both-branches-stacked
# Computes both branches of the `if` as rows, and picks one by an index that is a tensor.
def clipped(x, limit):
    norm = x.norm()
    rows = torch.stack([x, x * (limit / norm)])
    sums = torch.where(rows.abs() > 0.5, rows, torch.zeros_like(rows)).sum(dim=1)
    return sums.gather(0, (norm > limit).long().reshape(1)).squeeze(0)


# %% clipped: fmin-and-einsum
# The scale is fmin(limit / norm, 1), written into a buffer of its own; positive and negative parts are added apart
# and joined by an einsum.
def clipped(x, limit):
    norm = x.norm()
    scale = torch.where(norm > limit, torch.fmin(limit / norm, torch.ones_like(norm)), 1.0)
    x = torch.mul(x, scale)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    parts = torch.stack([torch.where(x > 0.5, x, zero), torch.where(x < -0.5, x, zero)])
    return torch.einsum("si->", parts)


# %% by_size: sorted-and-bisect
# A sorted list and bisect_left; each graph has a static input of its own.
def by_size(cuda, work, width, sizes):
    pool, order, graphs = cuda.graph_pool_handle(), sorted(sizes), {}
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work(torch.zeros(order[-1], width, device="cuda"))
    cuda.current_stream().wait_stream(side)
    for size in reversed(order):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        g, static, y = graphs[order[bisect.bisect_left(order, rows)]]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: one-static-input-for-all
# All graphs read the first rows of one static input, captured in the order given; outputs are cloned whole.
def by_size(cuda, work, width, sizes):
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static.clone())
    pool = cuda.graph_pool_handle()

    def capture(size):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static[:size])
        return size, g, y

    graphs = [capture(size) for size in sizes]

    def run(x):
        rows = len(x)
        _, g, y = min((one for one in graphs if one[0] >= rows), key=lambda one: one[0])
        static.narrow(0, 0, rows).copy_(x)
        g.replay()
        return y.narrow(0, 0, rows).clone()

    return run


# %% by_size: pool-of-the-first-graph
# The first graph's own pool is handed on to the others; namedtuples in a sorted list; a new result by new_empty.
_Sized = namedtuple("_Sized", "size graph input output")


def by_size(cuda, work, width, sizes):
    made = []
    for size in sorted(set(sizes), reverse=True):
        given = torch.ones(size, width, device="cuda")
        work(given.clone())
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=made[0].graph.pool() if made else None):
            output = work(given)
        made.append(_Sized(size, g, given, output))
    made.reverse()

    def run(x):
        one = next(one for one in made if one.size >= x.shape[0])
        one.input[: x.shape[0]] = x
        one.graph.replay()
        part = one.output[: x.shape[0]]
        return part.new_empty(part.shape).copy_(part)

    return run


# %% by_size: table-by-rows
# A table from each number of rows to its graph, made once; graphs are objects of a small class.
class _Graph:
    def __init__(self, cuda, work, shape, pool):
        self.given = torch.zeros(shape, device="cuda")
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph, pool=pool):
            self.made = work(self.given)

    def __call__(self, x):
        self.given[: len(x)].copy_(x)
        self.graph.replay()
        return self.made.detach()[: len(x)].clone()


def by_size(cuda, work, width, sizes):
    work(torch.randn(min(sizes), width, device="cuda"))
    pool, table = cuda.graph_pool_handle(), []
    for size in sorted(sizes):
        if size >= len(table):
            table += [_Graph(cuda, work, (size, width), pool)] * (size + 1 - len(table))
    return lambda x: table[len(x)](x)


# %% by_size: clears-the-padding
# Sets the padding to zero in each run (not needed, since rows are independent) by torch.cat into the static input.
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    statics = {size: torch.zeros(size, width, device="cuda") for size in sizes}
    work(statics[max(sizes)].clone())
    graphs, outputs = {}, {}
    for size, static in statics.items():
        graphs[size] = cuda.CUDAGraph()
        with cuda.graph(graphs[size], pool=pool):
            outputs[size] = work(static)

    def run(x):
        rows = x.size(0)
        fits = min(filter(rows.__le__, statics))
        padding = torch.zeros(fits - rows, width, device="cuda")
        torch.cat([x, padding], out=statics[fits])
        graphs[fits].replay()
        return torch.cat([outputs[fits][:rows]])

    return run


# %% by_size: chain-of-closures
# Each graph's function hands a batch that does not fit to the next larger one; a recursion captures largest first,
# by capture_begin and capture_end.
def by_size(cuda, work, width, sizes):
    pool, own = cuda.graph_pool_handle(), cuda.Stream()
    own.wait_stream(cuda.current_stream())

    def capture(ascending):
        if not ascending:
            return None
        size, *others = ascending
        larger = capture(others)
        g = cuda.CUDAGraph()
        with cuda.stream(own):
            static = torch.zeros(size, width, device="cuda")
            work(static.clone())
            cuda.synchronize()
            g.capture_begin(pool=pool)
            y = work(static)
            g.capture_end()

        def run(x):
            if len(x) > size:
                return larger(x)
            static[: len(x)].copy_(x)
            g.replay()
            return y[: len(x)].clone()

        return run

    run = capture(sorted(sizes))
    cuda.current_stream().wait_stream(own)
    return run


# %% last_end: the-slowest-chain
def last_end(kernels, launch, latency, gap):
    ends = []
    for first in range(len(kernels)):
        rest = kernels[first:]
        begin = first * launch + latency
        ends.append(begin + sum(rest) + gap * (len(rest) - 1))
    return max(ends)


# %% last_end: recursive
def last_end(kernels, launch, latency, gap):
    *before, kernel = kernels
    ready = len(before) * launch + latency
    if before:
        ready = max(ready, last_end(before, launch, latency, gap) + gap)
    return ready + kernel


# %% captured: a-class
class Captured:
    def __init__(self, cuda, work, x):
        self.input = x.detach().clone()
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(3):
                work(self.input)
        cuda.current_stream().wait_stream(side)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.output = work(self.input)

    def __call__(self, new):
        self.input.copy_(new)
        self.graph.replay()
        return torch.empty_like(self.output).copy_(self.output)


def captured(cuda, work, x):
    return Captured(cuda, work, x)


# %% captured: by-capture-begin
def captured(cuda, work, x):
    kept = {"in": torch.zeros_like(x).copy_(x)}
    work(kept["in"])
    cuda.synchronize()
    g = cuda.CUDAGraph()
    with cuda.graph(g, stream=cuda.Stream()):
        kept["out"] = work(kept["in"])

    def run(new):
        kept["in"].copy_(new, non_blocking=True)
        g.replay()
        return kept["out"].clone()

    return run


# %% graphed_training: warm-up-by-gradients-only
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    batch = [x.clone(), y.clone()]

    def backward():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(batch[0]), batch[1])
        loss.backward()
        return loss.detach()

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            backward()
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = backward()
        optimizer.step()

    def step(*new):
        for static, tensor in zip(batch, new):
            static.copy_(tensor)
        g.replay()
        return loss.clone()

    return step


# %% graphed_training: put-back-after-the-capture
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = torch.empty_like(x), torch.empty_like(y)
    static_x.copy_(x)
    static_y.copy_(y)
    saved = {k: v.clone() for k, v in model.state_dict().items()}

    def whole():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        whole()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()
    model.load_state_dict(saved)

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        with torch.no_grad():
            return loss + 0

    return step


# %% clipped: mask-as-a-factor
def clipped(x, limit):
    factor = torch.clamp(limit / torch.linalg.vector_norm(x), max=1.0)
    y = x * factor
    return (y * (y.abs() > 0.5)).sum()


# %% clipped: masked-fill
def clipped(x, limit):
    norm = x.square().sum().sqrt()
    y = torch.where(norm > limit, x * (limit / norm), x)
    return y.masked_fill(y.abs() <= 0.5, 0.0).sum()


# %% by_size: one-input-for-all
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    inputs = torch.zeros(max(sizes), width, device="cuda")
    work(inputs)
    graphs = []
    for n in sorted(set(sizes)):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = work(inputs[:n])
        graphs.append((n, g, out))

    def run(x):
        rows = x.shape[0]
        _, g, out = next(one for one in graphs if one[0] >= rows)
        inputs[:rows].copy_(x)
        g.replay()
        return out[:rows].clone()

    return run


# %% by_size: pool-of-the-first-graph-again
class Graph:
    def __init__(self, cuda, work, n, width, pool):
        self.n = n
        self.input = torch.zeros((n, width), device="cuda")
        work(self.input)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph, pool=pool):
            self.output = work(self.input)

    def __call__(self, x):
        self.input.narrow(0, 0, len(x)).copy_(x)
        self.graph.replay()
        return self.output.narrow(0, 0, len(x)).clone()


def by_size(cuda, work, width, sizes):
    graphs = []
    pool = None
    for n in sorted(sizes, reverse=True):
        graphs.append(Graph(cuda, work, n, width, pool))
        pool = graphs[0].graph.pool()

    def run(x):
        return min((g for g in graphs if g.n >= len(x)), key=lambda g: g.n)(x)

    return run


# %% last_end: folded
def last_end(kernels, launch, latency, gap):
    def after(end, one):
        i, kernel = one
        return max(i * launch + latency, end + gap) + kernel

    return functools.reduce(after, enumerate(kernels), float("-inf"))


# %% captured: all-on-a-side-stream
def captured(cuda, work, x):
    static = torch.empty_like(x).copy_(x)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            work(static)
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g, stream=side):
        result = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return torch.empty_like(result).copy_(result)

    return run


# %% captured: an-object
def captured(cuda, work, x):
    class Run:
        def __init__(self):
            self.given = x.detach().clone()
            work(self.given)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.result = work(self.given)

        def __call__(self, new):
            self.given[...] = new
            self.graph.replay()
            return self.result.clone()

    return Run()


# %% captured: begin-and-end
def captured(cuda, work, x):
    static = x + 0
    work(static)
    cuda.synchronize()
    g, side = cuda.CUDAGraph(), cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        g.capture_begin()
        result = work(static)
        g.capture_end()
    cuda.current_stream().wait_stream(side)

    def run(new):
        static.copy_(new)
        g.replay()
        return result + 0

    return run


# %% graphed_training: warm-up-with-a-rate-of-zero
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    given, wanted = x.clone(), y.clone()

    def work():
        optimizer.zero_grad()
        loss = loss_of(model(given), wanted)
        loss.backward()
        optimizer.step()
        return loss

    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    work()
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()

    def step(x, y):
        given.copy_(x)
        wanted.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: back-by-load-state-dict
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static = [x.clone(), y.clone()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model(static[0]), static[1]).backward()
            optimizer.step()
    cuda.current_stream().wait_stream(side)
    model.load_state_dict(state)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(static[0]), static[1])
        loss.backward()
        optimizer.step()

    def step(*batch):
        for mine, new in zip(static, batch):
            mine.copy_(new)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: foreach-copy
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    parameters = list(model.parameters())
    saved = [torch.clone(p.data) for p in parameters]
    sx, sy = torch.zeros_like(x), torch.zeros_like(y)
    sx.copy_(x), sy.copy_(y)

    def once():
        for p in parameters:
            p.grad = None
        loss = loss_of(model(sx), sy)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    once()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = once()
    with torch.no_grad():
        torch._foreach_copy_(parameters, saved)

    def step(x, y):
        sx.copy_(x, non_blocking=True)
        sy.copy_(y, non_blocking=True)
        g.replay()
        return torch.empty_like(loss).copy_(loss)

    return step


# %% clipped: a-hard-shrink
def clipped(x, limit):
    factor = (limit / torch.linalg.vector_norm(x)).clamp(max=1)
    return torch.nn.functional.hardshrink(x * factor, 0.5).sum()


# %% clipped: divides-by-at-least-one
def clipped(x, limit):
    y = x / torch.clamp(x.square().sum().sqrt() / limit, min=1.0)
    return torch.dot(y, (y.abs() > 0.5).to(y.dtype))


# %% clipped: two-choices
def clipped(x, limit):
    norm = x.norm(p=2)
    y = torch.where(norm.gt(limit), x.mul(limit / norm), x)
    return y.masked_fill(y.abs().le(0.5), 0).sum()


# %% by_size: the-pool-of-the-first
def by_size(cuda, work, width, sizes):
    ladder = sorted(sizes)
    given = torch.empty(ladder[-1], width, device="cuda").fill_(0)
    work(given)
    graphs = [cuda.CUDAGraph() for _ in ladder]
    results = [None] * len(ladder)
    for at in reversed(range(len(ladder))):
        pool = None if at == len(ladder) - 1 else graphs[-1].pool()
        with cuda.graph(graphs[at], pool=pool):
            results[at] = work(given[: ladder[at]])

    def run(x):
        at = bisect.bisect_left(ladder, len(x))
        given[: len(x)] = x
        graphs[at].replay()
        return results[at][: len(x)].clone()

    return run


# %% by_size: functions-with-their-own-names
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    static = torch.zeros(max(sizes), width, device="cuda")
    for size in sizes:
        work(static[:size])

    def made(size):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            result = work(static[:size])

        def replay(x):
            static[: len(x)].copy_(x)
            g.replay()
            out = torch.empty_like(result[: len(x)])
            return out.copy_(result[: len(x)])

        return replay

    runs = [(size, made(size)) for size in sorted(sizes, reverse=True)]

    def run(x):
        for size, replay in reversed(runs):
            if len(x) <= size:
                return replay(x)

    return run


# %% last_end: accumulated
def last_end(kernels, launch, latency, gap):
    def following(end, numbered):
        number, length = numbered
        return max(number * launch + latency, end + gap) + length

    return functools.reduce(following, enumerate(kernels), latency - gap)


# %% last_end: from-each-start
def last_end(kernels, launch, latency, gap):
    behind = [*itertools.accumulate(reversed(kernels))][::-1]
    n = len(kernels)
    return max(i * launch + latency + behind[i] + gap * (n - 1 - i) for i in range(n))


# %% captured: warm-on-a-side-stream
def captured(cuda, work, x):
    static = torch.empty_like(x).copy_(x)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work(static)
        work(static)
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        result = work(static)
    return lambda new: (static.copy_(new), graph.replay(), result.clone())[2]


# %% graphed_training: deep-copied-state
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    import copy

    before = copy.deepcopy(model.state_dict())
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for p in model.parameters():
            p.grad.zero_()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
    model.load_state_dict(before)

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        graph.replay()
        return loss.detach().clone()

    return step


# %% clipped: product-with-the-mask
def clipped(x, limit):
    norm = (x * x).sum().sqrt()
    y = torch.where(norm > limit, x * (limit / norm), x)
    return (y * y.abs().gt(0.5).to(y.dtype)).sum()


# %% by_size: one-input-for-all-once-more
def by_size(cuda, work, width, sizes):
    whole = torch.zeros(max(sizes), width, device="cuda")
    work(whole)
    pool, made = cuda.graph_pool_handle(), []
    for size in sorted(sizes, reverse=True):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            out = work(whole[:size])
        made.insert(0, (size, graph, out))

    def run(x):
        rows = x.shape[0]
        whole[:rows].copy_(x)
        for size, graph, out in made:
            if size >= rows:
                graph.replay()
                return out[:rows].clone()

    return run
