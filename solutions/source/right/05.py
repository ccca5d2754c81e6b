"""Right answers to the exercises of lab 05, in other ways than the solution's."""

import functools
from collections import namedtuple

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask


# %% traffic: sets-as-it-goes
def traffic(operations, kept, size):
    eager, made, read = 0, [], []
    for inputs, output in operations:
        eager += size * (len({*inputs}) + 1)
        read += [name for name in inputs if name not in made]
        made.append(output)
    return eager, size * (len({*read}) + len(kept))


# %% traffic: list-of-two
def traffic(operations, kept, size):
    made = [output for _, output in operations]
    eager = sum(size * len(set(inputs)) + size for inputs, _ in operations)
    outside = {name for inputs, _ in operations for name in inputs if name not in made}
    return (eager, size * len(outside) + size * len(set(kept)))


# %% traffic: union-of-sets
def traffic(operations, kept, size):
    produced = {output for _, output in operations}
    outside = set().union(*(inputs for inputs, _ in operations)) - produced
    apart = [size * (len(frozenset(inputs)) + 1) for inputs, _ in operations]
    return sum(apart), size * (len(outside) + len(kept))


# %% traffic: a-class
class Traffic:
    def __call__(self, operations, kept, size):
        made = dict.fromkeys(output for _, output in operations)
        read = dict.fromkeys(name for inputs, _ in operations for name in inputs)
        outside = [name for name in read if name not in made]
        eager = sum(len(dict.fromkeys(inputs)) + 1 for inputs, _ in operations)
        return eager * size, (len(outside) + len(kept)) * size


traffic = Traffic()


# %% traffic: a-named-tuple
Bytes = namedtuple("Bytes", "apart fused")


def traffic(operations, kept, size):
    made = {output for _, output in operations}
    outside = {name for inputs, _ in operations for name in inputs} - made
    apart = size * sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return Bytes(apart, size * (len(outside) + len(kept)))


# %% adjust: cond
def adjust(x):
    half, four = lambda x: x / 2, lambda x: x * 4
    return torch.cond(x.sum() > 0, half, four, (x,)) + (x > 0).sum()


# %% adjust: by-a-mask
def adjust(x):
    positive = (x.sum() > 0).to(x.dtype)
    return positive * x / 2 + (1 - positive) * x * 4 + (x > 0).sum()


# %% adjust: by-a-factor
def adjust(x):
    factor = torch.where(x.sum() > 0, 0.5, 4.0)
    return x * factor + torch.count_nonzero(x > 0)


# %% adjust: by-an-index
def adjust(x):
    both = torch.stack([x * 4, x / 2])
    chosen = both.index_select(0, (x.sum() > 0).long().reshape(1))
    return chosen[0] + (x > 0).float().sum()


# %% adjust: lerp
def adjust(x):
    a, b = x / 2, x * 4
    return a.where(x.sum() > 0, b).add((x > 0).sum())


# %% adjust: by-a-bool-as-number
def adjust(x):
    return x * (4 - 3.5 * (x.sum() > 0)) + x.gt(0).sum()


# %% adjust: a-class
class Adjust:
    def __call__(self, x):
        return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum()


adjust = Adjust()


# %% adjust: a-partial-without-gradients
@torch.no_grad()
def by_factors(half, four, x):
    return torch.where(x.sum() > 0, x * half, x * four) + (x > 0).sum()


adjust = functools.partial(by_factors, 0.5, 4)


# %% adjust: compiled-already
@torch.compile
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum()


# %% Warmup: a-tensor-made-anew
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = torch.tensor(0)

    def forward(self, x):
        self.n = self.n + 1
        return x * torch.minimum(self.n, torch.tensor(8)) / 8


# %% Warmup: counted-outside
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    @torch.compiler.disable
    def weight(self):
        self.n += 1
        return torch.tensor(min(self.n, 8) / 8)

    def forward(self, x):
        return x * self.weight()


# %% Warmup: a-number-from-outside
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    @torch.compiler.disable
    def weight(self):
        self.n += 1
        return min(self.n, 8) / 8

    def forward(self, x):
        return x * self.weight()


# %% Warmup: the-weight-itself
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.zeros(1, dtype=torch.float64)

    def forward(self, x):
        self.gain = (self.gain + 1 / 8).clamp_max(1)
        return (x * self.gain).to(x.dtype)


# %% Warmup: where
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.nn.Parameter(torch.zeros((), dtype=torch.int32), requires_grad=False)

    def forward(self, x):
        self.calls.add_(1)
        return torch.where(self.calls < 8, x * self.calls / 8, x)


# %% Warmup: a-hook
def counts(module, _):
    module.calls.add_(1)


class Warmup(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_forward_pre_hook(counts)

    def forward(self, x):
        return x * (self.calls / 8).clamp(0, 1)


# %% Warmup: a-function-that-makes-one
class Counting(torch.nn.Module):
    def __init__(self, full):
        super().__init__()
        self.full = full
        self.calls = torch.zeros(())

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls.clip(max=self.full) / self.full


def Warmup():
    return Counting(8)


# %% by_block: torch-compile-each
def by_block(model, backend):
    parts = [torch.compile(block, backend=backend) for block in model]

    def run(x):
        for part in parts:
            x = part(x)
        return x

    return run


# %% by_block: another-sequence
def by_block(model, backend):
    for block in model.children():
        block.compile(backend=backend, dynamic=False)
    return torch.nn.Sequential(*model)


# %% by_block: replaced-in-place
def by_block(model, backend):
    for at, block in enumerate(model):
        model[at] = torch.compile(block, backend=backend, fullgraph=True)
    return model


# %% by_block: one-function
def by_block(model, backend):
    @torch.compile(backend=backend)
    def run(block, x):
        return block(x)

    def all_of_it(x):
        for block in model:
            x = run(block, x)
        return x

    return all_of_it


# %% by_block: closures
def by_block(model, backend):
    def bound_to(block):
        return torch.compile(lambda x: block(x), backend=backend)

    parts = [bound_to(block) for block in model]

    def run(x):
        for part in parts:
            x = part(x)
        return x

    return run


# %% by_block: the-class
def by_block(model, backend):
    for block in model:
        block.forward = torch.compile(block.forward, backend=backend)
    return model


# %% by_block: dynamic
def by_block(model, backend):
    compiled = functools.partial(torch.compile, backend=backend, dynamic=True)
    return functools.partial(functools.reduce, lambda x, f: f(x), [*map(compiled, model)])


# %% by_block: of-the-class-itself
def by_block(model, backend):
    kind = type(model[0])
    kind.forward = torch.compile(kind.forward, backend=backend)
    return model


# %% beside: mm
def beside(x, a, b, group):
    total = torch.ops._c10d_functional.all_reduce.default(x, "sum", group)
    product = torch.mm(a, b)
    return product + torch.ops._c10d_functional.wait_tensor.default(total)


# %% beside: matmul-method
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x.clone(), "sum", group)
    product = a.matmul(b)
    total = ops.wait_tensor(started)
    return torch.add(total, product)


# %% beside: named-above
ops = torch.ops._c10d_functional


def beside(x, a, b, group):
    started = ops.all_reduce(x, "sum", group)
    product = a @ b
    return ops.wait_tensor(started) + product


# %% beside: operators-named-above
start, wait = torch.ops._c10d_functional.all_reduce, torch.ops._c10d_functional.wait_tensor.default


def beside(x, a, b, group):
    started = start(x, "sum", group)
    product = torch.matmul(a, b)
    return wait(started).add(product)


# %% beside: a-partial
def summed_by(how, x, a, b, group):
    started = torch.ops._c10d_functional.all_reduce(x, how, group)
    product = torch.tensordot(a, b, 1)
    product += torch.ops._c10d_functional.wait_tensor(started)
    return product


beside = functools.partial(summed_by, "sum")


# %% beside: bmm
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = torch.bmm(a[None], b[None])[0]
    return ops.wait_tensor(started) + product


# %% beside: row-by-row
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = torch.stack([row @ b for row in a])
    return ops.wait_tensor(started) + product


# %% beside: by-broadcasting
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce_(x.clone(), "sum", group)
    product = (a[:, :, None] * b).sum(1)
    return ops.wait_tensor(started) + product


# %% beside: by-pythons-sum
def beside(x, a, b, group):
    started = torch.ops._c10d_functional.all_reduce(x, "sum", group)
    return sum((a @ b, torch.ops._c10d_functional.wait_tensor(started)))


# %% bound: einsum
def bound(x, w, u):
    return torch.einsum("ik,kj->ij", x.abs(), w.abs()) * (len(w) * u)


# %% bound: broadcast
def bound(x, w, u):
    terms = (x[:, :, None] * w[None]).abs()
    return terms.sum(1) * terms.shape[1] * u


# %% bound: norm
def bound(x, w, u):
    return len(w) * u * torch.linalg.vector_norm(x.unsqueeze(-1) * w, ord=1, dim=1)


# %% bound: loops
def bound(x, w, u):
    terms = x.size(-1)
    sums = [[sum(abs(p * q) for p, q in zip(r, c, strict=True)) for c in w.T] for r in x]
    return torch.stack([torch.stack(row) for row in sums]) * u * terms


# %% bound: an-outer-product-a-term
class bound:
    def __new__(cls, x, w, u):
        products = [torch.outer(a, b).abs_() for a, b in zip(x.T, w, strict=True)]
        return torch.stack(products).sum(0) * (len(products) * u)


# %% blocks_needed: set
def blocks_needed(mask, length, block):
    everywhere = range(length)
    return len({(q // block, k // block) for q in everywhere for k in everywhere if mask(q, k)})


# %% blocks_needed: loops
def blocks_needed(mask, length, block):
    needed = 0
    for i in range(0, length, block):
        for j in range(0, length, block):
            pairs = ((q, k) for q in range(i, i + block) for k in range(j, j + block))
            needed += any(mask(q, k) for q, k in pairs)
    return needed


# %% blocks_needed: any-of-a-block
def blocks_needed(mask, length, block):
    side = range(0, length, block)
    return sum(
        any(mask(q, k) for q in range(a, a + block) for k in range(b, b + block))
        for a in side
        for b in side
    )


# %% blocks_needed: numpy
def blocks_needed(mask, length, block):
    everywhere = range(length)
    table = np.array([[mask(q, k) for k in everywhere] for q in everywhere])
    return table.reshape(length // block, block, -1, block).any((1, 3)).sum()


# %% blocks_needed: create-block-mask
def blocks_needed(mask, length, block):
    everywhere = range(length)
    table = torch.tensor([[bool(mask(q, k)) for k in everywhere] for q in everywhere])
    made = create_block_mask(
        lambda _, __, q, k: table[q, k], None, None, length, length, "cpu", BLOCK_SIZE=block
    )
    return int(made.to_dense().sum())
