"""Right answers to the exercises of lab 05, written without sight of its checks; see judge.py."""

# Right answers for lab 05 (05_torch_compile.ipynb and 05_torch_compile_further.ipynb).
import copy
import functools
import itertools
import operator
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

ops = torch.ops._c10d_functional


# ============================================================================ traffic


# %% traffic: sets
# The plain way: sets of names.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    results = {result for _, result in operations}
    outside = {name for inputs, _ in operations for name in inputs} - results
    return size * alone, size * (len(outside) + len(kept))


# %% traffic: recursion-over-operations
# Peels off the last operation; carries the set of names that somebody still needs from outside.
def traffic(operations, kept, size):
    def go(left, needed):
        if not left:
            return 0, len(needed)
        *before, (inputs, result) = left
        inputs = frozenset(inputs)
        alone, outside = go(before, (needed - {result}) | inputs)
        return alone + len(inputs) + 1, outside

    alone, outside = go(list(operations), frozenset())
    return alone * size, (outside + len(kept)) * size


# %% traffic: incidence-matrix-of-numpy
# A boolean matrix operations × tensors; a column's `any` says whether one kernel touches the tensor at all.
def traffic(operations, kept, size):
    names = sorted({name for inputs, result in operations for name in (*inputs, result)})
    column = {name: at for at, name in enumerate(names)}
    reads = np.zeros((len(operations), len(names)), dtype=bool)
    writes = np.zeros_like(reads)
    for row, (inputs, result) in enumerate(operations):
        reads[row, [column[name] for name in inputs]] = True
        writes[row, column[result]] = True
    alone = np.count_nonzero(reads) + np.count_nonzero(writes)
    outside = np.count_nonzero(reads.any(0) & ~writes.any(0))
    return int(alone) * size, (int(outside) + len(kept)) * size


# %% traffic: machine-with-registers
# Runs the fused kernel on a pretend machine that loads what it does not hold, and stores at the end. Returns a named
# tuple, which is a tuple of two ints.
class Moved(NamedTuple):
    alone: int
    fused: int


class Machine:
    def __init__(self, size):
        self.size, self.registers, self.bytes = size, set(), 0

    def load(self, name):
        if name not in self.registers:
            self.registers.add(name)
            self.bytes += self.size

    def store(self, name):
        assert name in self.registers
        self.bytes += self.size


def traffic(operations, kept, size):
    alone, fused = 0, Machine(size)
    for inputs, result in operations:
        single = Machine(size)
        for name in inputs:
            single.load(name)
            fused.load(name)
        single.registers.add(result)
        fused.registers.add(result)
        single.store(result)
        alone += single.bytes
    for name in kept:
        fused.store(name)
    return Moved(alone, fused.bytes)


# %% traffic: counters-and-reduce
# dict.fromkeys as an ordered set, a Counter of uses, functools.reduce to add up.
def traffic(operations, kept, size):
    each = [list(dict.fromkeys(inputs)) for inputs, _ in operations]
    uses = Counter(itertools.chain.from_iterable(each))
    alone = functools.reduce(operator.add, map(len, each), len(each))
    for _, result in operations:
        uses.pop(result, None)
    return operator.mul(alone, size), operator.mul(len(uses) + len(kept), size)


# %% traffic: by-adding-size
# Never multiplies: adds `size` for each read and each write, in one pass with two running sums.
def traffic(operations, kept, size):
    alone = fused = 0
    known = []
    for inputs, result in operations:
        for at, name in enumerate(inputs):
            if name in inputs[:at]:
                continue
            alone += size
            if name not in known:
                known.append(name)
                fused += size
        alone += size
        known.append(result)
    for _ in kept:
        fused += size
    return alone, fused


# ============================================================================ adjust


# %% adjust: where
# torch.where and a count that stays a tensor.
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: cond
# torch.cond: one of two functions runs; the number of positive entries by count_nonzero.
def adjust(x):
    chosen = torch.cond(x.sum() > 0, lambda x: x * 0.5, lambda x: x * 4.0, (x,))
    return chosen + torch.count_nonzero(x > 0)


# %% adjust: power-of-two
# ldexp shifts the exponent by -1 or by 2; nothing is computed twice.
def adjust(x):
    exponent = 2 - 3 * (x.sum() > 0).to(torch.int32)
    return torch.ldexp(x, exponent) + x.gt(0).sum()


# %% adjust: chosen-by-index
# Both are stacked, and the truth value is the index of one of them.
def adjust(x):
    both = torch.stack([x * 4.0, x / 2.0])
    index = (x.sum() > 0).long().reshape(1)
    return both.index_select(0, index).squeeze(0) + (x > 0).long().sum()


# %% adjust: factor
# A factor of no dimensions, 0.5 · 8 ** (not positive); the count is a dot product of the truth values with ones.
def adjust(x):
    other = torch.logical_not(x.sum() > 0).long()
    factor = torch.pow(8, other) * 0.5
    positive = (x > 0).flatten().long()
    return x * factor + torch.einsum("i,i->", positive, torch.ones_like(positive))


# %% adjust: parts-put-together
# Small functions put together by functools.partial and a closure: Dynamo follows them all into one graph.
def _scaled(x, factor):
    return x * factor


def _chooser(test, yes, no):
    def choose(x):
        return yes(x).where(test(x), no(x))

    return choose


_choose = _chooser(
    test=lambda x: torch.gt(torch.sum(x), 0),
    yes=functools.partial(torch.Tensor.div, other=2),
    no=functools.partial(_scaled, factor=4),
)


def adjust(x):
    return functools.reduce(torch.add, [_choose(x), x.sign().clamp(min=0).to(torch.int64).sum()])


# ============================================================================ Warmup


# %% Warmup: buffer
# The counter is a registered buffer that is changed in place.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: factor-that-saturates
# Keeps the factor itself in eighths, which are exact, as a plain attribute that is set anew in each call.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.tensor(0.0)

    def forward(self, x):
        self.factor = torch.minimum(self.factor + 0.125, torch.ones(()))
        return x * self.factor


# %% Warmup: queue-of-factors
# A queue of eight factors: each call takes the first one, and the last one stays for ever. No counter at all.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.arange(1, 9) / 8)

    def forward(self, x):
        factor = self.queue[0].clone()
        self.queue.copy_(torch.cat([self.queue[1:], self.queue[-1:]]))
        return x * factor


# %% Warmup: part-that-counts
# A part of its own counts, with a parameter that needs no gradient; the factor is looked up in a table.
class Count(torch.nn.Module):
    def __init__(self, most):
        super().__init__()
        self.most = most
        self.n = torch.nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)

    def forward(self):
        self.n.add_(1)
        return self.n.clamp(max=self.most)


class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = Count(8)
        self.register_buffer("table", torch.linspace(0, 1, 9))

    def forward(self, x):
        return x * self.table.index_select(0, self.count()).squeeze(0)


# %% Warmup: counted-in-a-hook
# A forward pre-hook counts; forward itself only computes.
def _one_more(module, args):
    module.calls.add_(1)


class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_forward_pre_hook(_one_more)

    def forward(self, x):
        return torch.mul(x, torch.clamp(self.calls, max=8.0).div(8.0))


# %% Warmup: flags-instead-of-a-number
# Eight flags, of which each call sets one more: their mean is min(n, 8) / 8.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("flags", torch.zeros(8, dtype=torch.bool))

    def forward(self, x):
        self.flags = torch.cat([torch.ones(1, dtype=torch.bool), self.flags[:-1]])
        return x * self.flags.sum() / self.flags.numel()


# ============================================================================ by_block


# %% by_block: the-recipe
# PyTorch's recipe, as the text gives it: block.compile() for each.
def by_block(model, backend):
    for block in model:
        block.compile(backend=backend)
    return model


# %% by_block: block-as-an-argument
# One compiled function that gets the block as an argument. The input of the first block is made to need a gradient
# if that of the others does, so that one graph holds for all also where gradients are recorded.
def _like_the_others(model, x):
    """x, as a leaf that needs a gradient where what the blocks return does."""
    if not torch.is_grad_enabled() or x.requires_grad:
        return x
    if not any(p.requires_grad for p in model.parameters()):
        return x
    return x.detach().requires_grad_()


def by_block(model, backend):
    @torch.compile(backend=backend)
    def step(block, x):
        return block(x)

    def run(x):
        x = _like_the_others(model, x)
        for block in model:
            x = step(block, x)
        return x

    return run


# %% by_block: weights-as-an-argument
# functional_call: one compiled function of a copy of the first block, of which only the code is used, and of the
# weights of the block whose turn it is.
def by_block(model, backend):
    skeleton = copy.deepcopy(model[0])

    @torch.compile(backend=backend)
    def step(weights, x):
        return torch.func.functional_call(skeleton, weights, (x,))

    def run(x):
        if torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters()):
            x = x if x.requires_grad else x.detach().requires_grad_()
        for block in model:
            weights = dict(block.named_parameters()) | dict(block.named_buffers())
            x = step(weights, x)
        return x

    return run


# %% by_block: sequential-of-compiled-blocks
# torch.compile(block) wraps each block; a first module of no weights makes the input like those of the others.
class AsLeaf(torch.nn.Module):
    def __init__(self, needed):
        super().__init__()
        self.needed = needed

    def forward(self, x):
        if torch.is_grad_enabled() and not x.requires_grad and self.needed():
            return x.detach().requires_grad_()
        return x


def by_block(model, backend):
    needed = lambda: any(p.requires_grad for p in model.parameters())
    compiled = (torch.compile(block, backend=backend) for block in model)
    return torch.nn.Sequential(AsLeaf(needed), *compiled)


# %% by_block: recursion
# A module that calls itself for the rest of the blocks; each level is entered outside of compiled code.
class Rest(torch.nn.Module):
    def __init__(self, blocks, step):
        super().__init__()
        self.block, self.step = blocks[0], step
        self.rest = Rest(blocks[1:], step) if len(blocks) > 1 else torch.nn.Identity()

    def forward(self, x):
        return self.rest(self.step(self.block, x))


def by_block(model, backend):
    rest = Rest(list(model), torch.compile(lambda block, x: block(x), backend=backend))

    def run(x):
        grads = torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters())
        return rest(x.detach().requires_grad_() if grads and not x.requires_grad else x)

    return run


# %% by_block: forward-replaced
# Each block's forward is replaced by its compiled self; the model stays the same object, with a pre-hook.
def by_block(model, backend):
    for block in model:
        block.forward = torch.compile(block.forward, backend=backend)

    def before(module, args):
        (x,) = args
        grads = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        return (x.detach().requires_grad_(),) if grads and not x.requires_grad else None

    model.register_forward_pre_hook(before)
    return model


# ============================================================================ beside


# %% beside: start-product-wait
# The two operations of the text, with the product between them.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    product = a @ b
    return ops.wait_tensor(y) + product


# %% beside: overloads-and-partial
# The operators' overloads by name, torch.matmul, and functools.partial.
def beside(x, a, b, group):
    start = functools.partial(ops.all_reduce.default, reduce_op="sum", group_name=group)
    pending = start(x)
    product = torch.matmul(a, b)
    return torch.add(product, ops.wait_tensor.default(pending))


# %% beside: copy-summed-in-place
# all_reduce_ in place, but on a copy of x; the product by einsum.
def beside(x, a, b, group):
    mine = x.clone(memory_format=torch.contiguous_format)
    pending = ops.all_reduce_(mine, "sum", group)
    product = torch.einsum("ik,kj->ij", a, b)
    return product + ops.wait_tensor(pending)


# %% beside: coalesced
# all_reduce_coalesced of a list of one tensor; the product by tensordot.
def beside(x, a, b, group):
    (pending,) = ops.all_reduce_coalesced([x], "sum", group)
    product = torch.tensordot(a, b, dims=1)
    return sum([ops.wait_tensor(pending), product])


# %% beside: handle-class
# A small class with start and wait, which Dynamo traces through.
class Pending:
    def __init__(self, x, group):
        self.y = ops.all_reduce(x, "sum", group)

    def wait(self):
        return ops.wait_tensor(self.y)


def beside(x, a, b, group):
    pending = Pending(x, group)
    product = operator.matmul(a, b)
    total = pending.wait()
    return total + product


# %% beside: closure-of-the-rest
# Starting returns a function that finishes; the product is computed as the argument of that call.
def _start(x, group):
    y = ops.all_reduce(x, "sum", group)
    return lambda meanwhile: meanwhile + ops.wait_tensor(y)


def beside(x, a, b, group):
    return _start(x, group)(a.matmul(b))


# ============================================================================ blocks_needed


# %% blocks_needed: set-of-blocks
# The set of the blocks in which pairs that count lie.
def blocks_needed(mask, length, block):
    at = range(length)
    return len({(q // block, k // block) for q in at for k in at if mask(q, k)})


# %% blocks_needed: any-with-product
# Asks each block until the first pair that counts.
def blocks_needed(mask, length, block):
    parts = [range(start, start + block) for start in range(0, length, block)]
    return sum(
        any(itertools.starmap(mask, itertools.product(*pair)))
        for pair in itertools.product(parts, repeat=2)
    )


# %% blocks_needed: numpy-table
# A table of all pairs, filled by calls with numbers, and reduced in blocks.
def blocks_needed(mask, length, block):
    n = length // block
    values = (bool(mask(q, k)) for q in range(length) for k in range(length))
    table = np.fromiter(values, dtype=bool, count=length * length)
    return int(table.reshape(n, block, n, block).any(axis=(1, 3)).sum())


# %% blocks_needed: bits-of-an-integer
# A row of blocks is an integer: each key that counts sets the bit of its block.
def blocks_needed(mask, length, block):
    count = 0
    for first in range(0, length, block):
        bits = 0
        for k in range(length):
            if any(mask(q, k) for q in range(first, first + block)):
                bits |= 1 << k // block
        count += bits.bit_count()
    return count


# %% blocks_needed: recursion-over-quarters
# Halves the longer side of a rectangle of blocks until it is one block.
def blocks_needed(mask, length, block):
    def count(q, rows, k, columns):
        if not rows or not columns:
            return 0
        if rows == columns == 1:
            pairs = ((q * block + i, k * block + j) for i in range(block) for j in range(block))
            return int(any(mask(*pair) for pair in pairs))
        if rows >= columns:
            half = rows // 2
            return count(q, half, k, columns) + count(q + half, rows - half, k, columns)
        half = columns // 2
        return count(q, rows, k, half) + count(q, rows, k + half, columns - half)

    n = length // block
    return count(0, n, 0, n)


# %% blocks_needed: unique-of-torch
# Numbers the block of every pair that counts, and counts the different numbers; goes over keys first.
def blocks_needed(mask, length, block):
    n = length // block
    numbers = [
        (q // block) * n + k // block
        for k, q in itertools.product(range(length), range(length))
        if mask(q, k)
    ]
    return torch.unique(torch.tensor(numbers, dtype=torch.int64)).numel()


# ============================================================================ bound


# %% bound: product-of-absolute-values
# |x·w| = |x|·|w|, so the sum is a product of matrices.
def bound(x, w, u):
    return x.shape[-1] * u * (x.abs() @ w.abs())


# %% bound: einsum
# The same sum by einsum, with K from the shape of w.
def bound(x, w, u):
    return torch.einsum("...ik,...kj->...ij", x.abs(), w.abs()) * (w.shape[-2] * u)


# %% bound: all-terms-side-by-side
# Makes all terms, takes their absolute values, and adds them up: the formula as it stands.
def bound(x, w, u):
    terms = x.unsqueeze(-1) * w.unsqueeze(-3)
    return terms.abs().sum(dim=-2) * terms.shape[-2] * u


# %% bound: float64-inside
# Computed in float64 and returned in the type of the product.
def bound(x, w, u):
    wide = torch.matmul(x.double().abs(), w.double().abs())
    return (wide * x.size(-1) * u).to(torch.result_type(x, w))


# %% bound: positive-and-negative-parts
# Splits both into positive and negative parts: none of the four products can cancel.
def bound(x, w, u):
    (xp, xn), (wp, wn) = ((t.clamp(min=0), (-t).clamp(min=0)) for t in (x, w))
    return x.shape[-1] * u * (xp @ wp + xp @ wn + xn @ wp + xn @ wn)


# %% bound: k-by-a-product-of-ones
# Counts the terms by a product of ones, and takes the absolute values as the larger of t and -t.
def bound(x, w, u):
    size = lambda t: torch.maximum(t, -t)
    terms = torch.ones_like(x) @ torch.ones_like(w)
    return terms * u * (size(x) @ size(w))


# %% traffic: walk-with-what-is-there
def traffic(operations, kept, size):
    inside, outside, moved = [], [], 0
    for inputs, result in operations:
        different = dict.fromkeys(inputs)
        moved += size * (len(different) + 1)
        outside += [n for n in different if n not in inside and n not in outside]
        inside.append(result)
    return moved, size * (len(outside) + len(kept))


# %% traffic: counter
def traffic(operations, kept, size):
    touched = Counter()
    for inputs, result in operations:
        touched.update({*inputs})
        touched[result] += 1
    sources = touched.keys() - {result for _, result in operations}
    return touched.total() * size, len([*sources, *kept]) * size


# %% adjust: by-a-factor
def adjust(x):
    positive = x.sum() > 0
    factor = positive * 0.5 + (~positive) * 4.0
    return x * factor.to(x.dtype) + torch.count_nonzero(x > 0)


# %% adjust: cond-with-the-whole-rest
def adjust(x):
    def halved(x):
        return x / 2 + (x > 0).sum()

    def enlarged(x):
        return x * 4 + (x > 0).sum()

    return torch.cond(x.sum() > 0, halved, enlarged, (x,))


# %% adjust: stacked-and-picked
def adjust(x):
    both = torch.stack([x * 4, x / 2])
    which = (x.sum() > 0).long().view(1)
    return both.index_select(0, which).squeeze(0) + x.gt(0).sum()


# %% Warmup: buffer-of-the-factor
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("eighths", torch.tensor(0), persistent=False)

    def forward(self, x):
        self.eighths.copy_(torch.minimum(self.eighths + 1, torch.tensor(8)))
        return x * self.eighths / 8


# %% Warmup: parameter-without-gradient
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x):
        self.factor.add_(0.125).clamp_(max=1.0)
        return self.factor * x


# %% by_block: list-of-compiled-blocks
def by_block(model, backend):
    blocks = [torch.compile(block, backend=backend) for block in model.children()]

    def run(x):
        for block in blocks:
            x = block(x)
        return x

    return run


# %% by_block: one-function-of-block-and-input
def by_block(model, backend):
    for name, block in list(model.named_children()):
        setattr(model, name, torch.compile(block, backend=backend))
    return model


# %% beside: other-order-of-lines
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = torch.matmul(a, b)
    return torch.add(product, ops.wait_tensor(started))


# %% beside: addmm-after
def beside(x, a, b, group):
    start = torch.ops._c10d_functional.all_reduce
    finish = torch.ops._c10d_functional.wait_tensor
    handle = start(x, reduce_op="sum", group_name=group)
    y = a.mm(b)
    return finish(handle).add(y)


# %% blocks_needed: by-strings-of-a-grid
def blocks_needed(mask, length, block):
    table = torch.tensor([[bool(mask(q, k)) for k in range(length)] for q in range(length)])
    n = length // block
    return int(table.view(n, block, n, block).any(3).any(1).sum())


# %% blocks_needed: for-else-breaks
def blocks_needed(mask, length, block):
    needed = 0
    for block_q in range(length // block):
        for block_k in range(length // block):
            for pair in range(block * block):
                q = block_q * block + pair // block
                k = block_k * block + pair % block
                if mask(q, k):
                    needed += 1
                    break
    return needed


# %% bound: einsum-again
def bound(x, w, u):
    return torch.einsum("ik,kj->ij", x.abs(), w.abs()) * (len(w) * u)


# %% bound: sum-of-outer-products
def bound(x, w, u):
    terms = [column.outer(row).abs() for column, row in zip(x.T, w)]
    return u * len(terms) * torch.stack(terms).sum(0)


# %% by_block: every-submodule
def by_block(model, backend):
    for module in model.modules():
        if module is not model:
            module.compile(backend=backend)
    return model


# %% traffic: one-pass
def traffic(operations, kept, size):
    separate, outside, inside = 0, [], []
    for reads, result in operations:
        separate += size
        for name in dict.fromkeys(reads):
            separate += size
            if name not in inside and name not in outside:
                outside.append(name)
        inside.append(result)
    return separate, size * len(outside + list(kept))


# %% traffic: from-sets-of-names
def traffic(operations, kept, size):
    inputs, results = zip(*((frozenset(i), r) for i, r in operations), strict=True)
    each = sum(map(len, inputs)) + len(results)
    read = frozenset().union(*inputs).difference(results)
    return each * size, (len(read) + len(kept)) * size


# %% traffic: a-counter-of-readers
def traffic(operations, kept, size):
    readers = Counter(name for reads, _ in operations for name in set(reads))
    separately = (readers.total() + len(operations)) * size
    for _, result in operations:
        readers.pop(result, None)
    return separately, (len(readers) + len(kept)) * size


# %% adjust: cond-with-methods
def adjust(x):
    halved, times_four = (lambda v: v.div(2)), (lambda v: v.mul(4))
    chosen = torch.cond(x.sum().gt(0), halved, times_four, (x,))
    return chosen.add(x.gt(0).sum())


# %% adjust: a-factor-of-two-parts
def adjust(x):
    positive = (x.sum() > 0).to(x.dtype)
    return x * (positive * 0.5 + (1 - positive) * 4) + torch.count_nonzero(x > 0)


# %% Warmup: keeps-the-factor
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.zeros(()))

    def forward(self, x):
        self.factor.add_(1 / 8).clamp_(max=1)
        return x * self.factor


# %% Warmup: a-frozen-parameter
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        zero = torch.zeros(1, dtype=torch.int64)
        self.calls = torch.nn.Parameter(zero, requires_grad=False)

    def forward(self, x):
        self.calls.copy_(self.calls + 1)
        return x * torch.where(self.calls < 8, self.calls, 8) / 8


# %% by_block: compiles-in-place
def by_block(model, backend):
    for block in model.children():
        block.compile(backend=backend, fullgraph=True)
    return lambda x: model(x)


# %% by_block: reduces-over-blocks
def by_block(model, backend):
    @torch.compile(backend=backend)
    def run(block, x):
        return block(x)

    return lambda x: functools.reduce(lambda h, block: run(block, h), model, x)


# %% by_block: a-sequential-of-compiled
def by_block(model, backend):
    blocks = [torch.compile(block, backend=backend) for block in model]
    return torch.nn.Sequential(*blocks)


# %% beside: methods-and-default
def beside(x, a, b, group):
    started = ops.all_reduce.default(x, "sum", group)
    product = a.matmul(b)
    return product.add(ops.wait_tensor.default(started))


# %% beside: an-einsum-meanwhile
def beside(x, a, b, group):
    pending = torch.ops._c10d_functional.all_reduce(x, "sum", group)
    product = torch.einsum("ik,kj->ij", a, b)
    return torch.add(torch.ops._c10d_functional.wait_tensor(pending), product)


# %% beside: product-added-in-place
def beside(x, a, b, group):
    total = ops.all_reduce(x, "sum", group)
    product = torch.mm(a, b)
    product += ops.wait_tensor(total)
    return product


# %% blocks_needed: numpy-reshaped
def blocks_needed(mask, length, block):
    sees = np.array([[bool(mask(q, k)) for k in range(length)] for q in range(length)])
    parts = sees.reshape(length // block, block, length // block, block)
    return int(parts.any(axis=(1, 3)).sum())


# %% blocks_needed: leaves-a-block-early
def blocks_needed(mask, length, block):
    def needed(row, column):
        for q in range(row, row + block):
            for k in range(column, column + block):
                if mask(q, k):
                    return 1
        return 0

    starts = range(0, length, block)
    return sum(itertools.starmap(needed, itertools.product(starts, repeat=2)))


# %% bound: an-einsum
def bound(x, w, u):
    return torch.einsum("ik,kj->ij", x.abs(), w.abs()).mul(w.shape[0]).mul(u)


# %% bound: term-by-term
def bound(x, w, u):
    total = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)
    for k in range(x.shape[1]):
        total += (x[:, k, None] * w[k]).abs()
    return total * (x.shape[1] * u)


# %% bound: all-terms-at-once
def bound(x, w, u):
    terms = x.unsqueeze(-1) * w.unsqueeze(0)
    return u * terms.size(1) * torch.linalg.vector_norm(terms, ord=1, dim=1)


# %% traffic: seen-names
def traffic(operations, kept, size):
    known, outside, eager = set(), set(), 0
    for inputs, output in operations:
        outside.update(one for one in inputs if one not in known)
        known.add(output)
        eager += len(frozenset(inputs)) + 1
    return size * eager, size * (len(outside) + len(kept))


# %% adjust: factor-from-a-comparison
def adjust(x):
    up = (x.sum() > 0).to(x.dtype)
    return x * (up * 0.5 + (1 - up) * 4) + torch.count_nonzero(x > 0)


# %% Warmup: parameter-without-gradient-once-more
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.share = torch.nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)

    def forward(self, x):
        self.share.copy_(torch.clamp(self.share + 0.125, max=1.0))
        return x * self.share


# %% beside: product-by-einsum
def beside(x, a, b, group):
    coming = ops.all_reduce.default(x, "sum", group)
    mine = torch.einsum("ij,jk->ik", a, b)
    return mine.add(ops.wait_tensor.default(coming))


# %% blocks_needed: set-of-blocks-once-more
def blocks_needed(mask, length, block):
    pairs = ((q, k) for q in range(length) for k in range(length))
    return len({(q // block, k // block) for q, k in pairs if mask(q, k)})


# %% bound: reduced-term-by-term
def bound(x, w, u):
    terms = (x[:, k : k + 1].abs() * w[k : k + 1].abs() for k in range(w.shape[0]))
    return functools.reduce(torch.add, terms) * (w.shape[0] * u)


# %% Warmup: counter-of-bfloat16
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.bfloat16))

    def forward(self, x):
        self.calls += 1
        return x * torch.clamp(self.calls, max=8) / 8
