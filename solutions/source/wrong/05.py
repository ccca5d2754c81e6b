"""Wrong answers to the exercises of lab 05, each under the mistake that its check has to name."""

import itertools
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional


# %% traffic: no-writes
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return sum(len(set(inputs)) for inputs, _ in operations) * size, len(read) * size


# %% traffic: no-writes
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return sum(len(set(inputs)) for inputs, _ in operations) * size, (len(read) + len(kept)) * size


# %% traffic: no-writes
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return sum(len(set(inputs)) + 1 for inputs, _ in operations) * size, len(read) * size


# %% traffic: last-only
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return sum(len(set(inputs)) + 1 for inputs, _ in operations) * size, (len(read) + 1) * size


# %% traffic: last-written-too
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    made = {result for _, result in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    written = {*kept, operations[-1][1]}
    return each * size, (len(read) + len(written)) * size


# %% traffic: last-written-too
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    made = {result for _, result in operations}
    used = {name for inputs, _ in operations for name in inputs}
    written = (made - used) | set(kept)
    return each * size, (len(used - made) + len(written)) * size


# %% traffic: between-written
def traffic(operations, kept, size):
    eager = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    names = {name for inputs, output in operations for name in (*inputs, output)}
    return eager * size, len(names) * size


# %% traffic: read-again
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return sum(len(inputs) + 1 for inputs, _ in operations) * size, (len(read) + len(kept)) * size


# %% traffic: read-again
def traffic(operations, kept, size):
    each = 0
    for inputs, _ in operations:
        each += 2 + sum(one != other for one, other in pairwise(inputs))
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return each * size, (len(read) + len(kept)) * size


# %% traffic: read-by-each
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = [name for inputs, _ in operations for name in set(inputs) if name not in made]
    apart = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return apart * size, (len(read) + len(kept)) * size


# %% traffic: nothing-saved
def traffic(operations, kept, size):
    eager = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return eager * size, eager * size


# %% traffic: not-bytes
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return sum(len(set(inputs)) + 1 for inputs, _ in operations), len(read) + len(kept)


# %% traffic: swapped
def traffic(operations, kept, size):
    made = {output for _, output in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    eager = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return (len(read) + len(kept)) * size, eager * size


# %% traffic: kept-not-written
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    made = {result for _, result in operations}
    used = {name for inputs, _ in operations for name in inputs}
    return each * size, (len(used - made) + len(set(kept) - used)) * size


# %% traffic: kept-read
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    inside = {result for _, result in operations} - set(kept)
    used = {name for inputs, _ in operations for name in inputs}
    return each * size, (len(used - inside) + len(kept)) * size


# %% traffic: kept-read
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    made = {result for _, result in operations}
    used = {name for inputs, _ in operations for name in inputs}
    return each * size, (len(used - made) + 2 * len(kept)) * size


# %% traffic: short-lived
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read, last = set(), None
    for inputs, result in operations:
        read |= set(inputs) - {last}
        last = result
    return each * size, (len(read) + len(kept)) * size


# %% traffic: short-lived
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    reads, last = 0, None
    for inputs, result in operations:
        reads += len(set(inputs) - {last})
        last = result
    return each * size, (reads + len(kept)) * size


# %% traffic: first-only
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return each * size, (len(set(operations[0][0])) + len(kept)) * size


# %% traffic: read-once-apart
def traffic(operations, kept, size):
    made = {result for _, result in operations}
    used = {name for inputs, _ in operations for name in inputs}
    apart = len(used) + len(operations)
    return apart * size, (len(used - made) + len(kept)) * size


# %% traffic: read-once-apart
def traffic(operations, kept, size):
    made = {result for _, result in operations}
    read = {name for inputs, _ in operations for name in inputs} - made
    return (len(read) + len(operations)) * size, (len(read) + len(kept)) * size


# %% traffic: between-read
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read = {name for inputs, _ in operations for name in inputs}
    return each * size, (len(read) + len(kept)) * size


# %% traffic: between-read
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read = sum(len(set(inputs)) for inputs, _ in operations)
    return each * size, (read + len(kept)) * size


# %% traffic: between-read
def traffic(operations, kept, size):
    read = sum(len(inputs) for inputs, _ in operations)
    return (read + len(operations)) * size, (read + len(kept)) * size


# %% traffic: between-read
def traffic(operations, kept, size):
    eager = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read = {name for inputs, _ in operations for name in inputs} - set(kept)
    return eager * size, (len(read) + len(kept)) * size


# %% traffic: unread-written
def traffic(operations, kept, size):
    eager = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read = {name for inputs, _ in operations for name in inputs}
    made = {output for _, output in operations}
    return eager * size, (len(read - made) + len(made - read)) * size


# %% adjust: breaks
def adjust(x):
    chosen = x / 2 if x.sum() > 0 else x * 4
    return chosen + (x > 0).sum()


# %% adjust: left-out
@torch.compiler.disable
def positives(x):
    return (x > 0).sum()


def adjust(x):
    count = positives(x)
    return torch.where(x.sum() > 0, x / 2, x * 4) + count


# %% adjust: left-out
def adjust(x):
    result = torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum()
    print("done")
    return result


# %% adjust: one-branch
def adjust(x):
    return x / 2 + (x > 0).sum()


# %% adjust: one-branch
def adjust(x):
    return x * 4 + (x > 0).sum()


# %% adjust: no-count
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4)


# %% adjust: zero-counted
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x >= 0).sum()


# %% adjust: nothing-captured
@torch.compiler.disable
def adjust(x):
    chosen = x / 2 if x.sum() > 0 else x * 4
    return chosen + (x > 0).sum()


# %% adjust: other-branch
def adjust(x):
    return torch.where(x.sum() > 0, x * 4, x / 2) + (x > 0).sum()


# %% adjust: zero-sum
def adjust(x):
    return torch.where(x.sum() < 0, x * 4, x / 2) + (x > 0).sum()


# %% adjust: place-by-place
def adjust(x):
    return torch.where(x > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: counted-by-itself
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0)


# %% adjust: sum-for-count
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + x.clamp(min=0).sum()


# %% adjust: dtype
def adjust(x):
    return (torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum()).float()


# %% adjust: counted-in-rows
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum(-1, keepdim=True)


# %% adjust: counted-in-rows
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum(0)


# %% adjust: narrow-count
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum(dtype=torch.uint8)


# %% adjust: narrow-count
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum(dtype=torch.int8)


# %% adjust: cut-sum
def adjust(x):
    return torch.where(x.long().sum() > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: summed-in-rows
def adjust(x):
    return torch.where(x.sum(0) > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: summed-in-rows
def adjust(x):
    return torch.where(x.sum(-1, keepdim=True) > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: negatives-counted
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + torch.count_nonzero(x)


# %% adjust: negatives-counted
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + x.numel()


# %% adjust: sum-of-zero
def adjust(x):
    return x * (2.25 - 1.75 * x.sum().sign()) + (x > 0).sum()


# %% Warmup: storm
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * min(self.calls, 8) / 8


# %% Warmup: storm
class Warmup(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        factor = self.calls.clamp(max=8) / 8
        return torch.stack([row * factor for row in x])


# %% Warmup: stuck
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x):
        calls = self.calls + 1
        return x * calls.clamp(max=8) / 8


# %% Warmup: shared-count
class Warmup(torch.nn.Module):
    calls = torch.zeros(())

    def forward(self, x):
        self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: beyond
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x):
        self.calls += 1
        return x * self.calls / 8


# %% Warmup: from-zero
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x):
        scaled = x * self.calls.clamp(max=8) / 8
        self.calls += 1
        return scaled


# %% Warmup: from-zero
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x):
        scaled = x * self.calls.clamp(1, 8) / 8
        self.calls += 1
        return scaled


# %% Warmup: no-warmup
class Warmup(torch.nn.Module):
    def forward(self, x):
        return x * 1


# %% Warmup: nothing-captured
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    @torch.compiler.disable
    def forward(self, x):
        self.calls += 1
        return x * min(self.calls, 8) / 8


# %% Warmup: shape
def Warmup():
    return None


# %% Warmup: dtype
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, x):
        self.calls += 1
        return (x * self.calls.clamp(max=8) / 8).to(torch.float16)


# %% Warmup: starts-again
class Warmup(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.uint8))

    def forward(self, x):
        self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: training-only
class Warmup(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: whole-eighths
class Warmup(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * (self.calls.clamp(max=8) // 8)


# %% by_block: one-large-graph
def by_block(model, backend):
    return torch.compile(model, backend=backend)


# %% by_block: a-graph-each
def by_block(model, backend):
    @torch.compile(backend=backend, dynamic=False)
    def run(x, at):
        return model[at](x)

    def all_of_it(x):
        for at in range(len(model)):
            x = run(x, at)
        return x

    return all_of_it


# %% by_block: parts
def by_block(model, backend):
    for block in model:
        for part in block.modules():
            if not list(part.children()):
                part.compile(backend=backend)
    return model


# %% by_block: one-block-only
def by_block(model, backend):
    model[0].compile(backend=backend)
    return model


# %% by_block: some-blocks
def by_block(model, backend):
    for block in list(model)[::2]:
        block.compile(backend=backend)
    return model


# %% by_block: not-compiled
def by_block(model, backend):
    return model


# %% by_block: type
def by_block(model, backend):
    for block in model:
        block.compile(backend=backend)


# %% by_block: same-block
def by_block(model, backend):
    parts = []
    for block in model:
        parts.append(torch.compile(lambda x: block(x), backend=backend))  # noqa: B023
    return torch.nn.Sequential(*map(_Module, parts))


class _Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


# %% by_block: same-block
def by_block(model, backend):
    first = torch.compile(model[0], backend=backend)

    def run(x):
        for _ in model:
            x = first(x)
        return x

    return run


# %% by_block: several-graphs
def by_block(model, backend):
    @torch.compile(backend=backend)
    def run(parameters, x):
        return torch.func.functional_call(model[0], parameters, (x,))

    def all_of_it(x):
        for block in model:
            x = run(dict(block.named_parameters()), x)
        return x

    return all_of_it


# %% beside: waits-at-once
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return total + a @ b


# %% beside: starts-late
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    product = a @ b
    return ops.wait_tensor(ops.all_reduce(x, "sum", group)) + product


# %% beside: not-reduced
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = a @ b
    ops.wait_tensor(started)
    return x + product


# %% beside: nothing-sent
def beside(x, a, b, group):
    return x + a @ b


# %% beside: breaks
def beside(x, a, b, group):
    total = x.clone()
    members = dist.distributed_c10d._resolve_process_group(group)
    work = dist.all_reduce(total, group=members, async_op=True)
    product = a @ b
    work.wait()
    return total + product


# %% beside: breaks
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = a @ b
    total = ops.wait_tensor(started) + product
    print("the sum is there:", total.shape)
    return total


# %% beside: product-summed
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(x + a @ b, "sum", group))


# %% beside: no-wait
def beside(x, a, b, group):
    started = torch.ops._c10d_functional.all_reduce(x, "sum", group)
    return started + a @ b


# %% beside: no-wait
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = a @ b
    ops.wait_tensor(x)
    return started + product


# %% beside: waits-again
def beside(x, a, b, group):
    started = functional.all_reduce(x, "sum", group)
    product = a @ b
    return functional.wait_tensor(started) + product


# %% beside: other-collective
def beside(x, a, b, group):
    every = functional.all_gather_tensor(x, 0, group)
    product = a @ b
    return every.unflatten(0, (-1, len(x))).sum(0) + product


# %% bound: no-terms
def bound(x, w, u):
    return u * (x.abs() @ w.abs())


# %% bound: cancels
def bound(x, w, u):
    return x.shape[1] * u * (x @ w).abs()


# %% bound: cancels
def bound(x, w, u):
    return x.shape[1] * u * (x @ w)


# %% bound: root-of-terms
def bound(x, w, u):
    return x.shape[1] ** 0.5 * u * (x.abs() @ w.abs())


# %% bound: other-count
def bound(x, w, u):
    return w.shape[1] * u * (x.abs() @ w.abs())


# %% bound: one-sided
def bound(x, w, u):
    return w.size(0) * u * (x.abs() @ w)


# %% bound: one-sided
def bound(x, w, u):
    return x.shape[1] * u * (x @ w.abs())


# %% bound: one-sided
def bound(x, w, u):
    return x.shape[1] * u * (x.abs() @ w).abs()


# %% bound: one-sided
def bound(x, w, u):
    return x.shape[1] * u * (x @ w.abs()).abs()


# %% bound: u-twice
def bound(x, w, u):
    return x.shape[1] * ((x * u).abs() @ (w * u).abs())


# %% bound: exact
def bound(x, w, u):
    part = x.shape[1] * u
    return part / (1 - part) * (x.abs() @ w.abs())


# %% bound: larger
def bound(x, w, u):
    return x.shape[1] * u * torch.outer(x.norm(dim=1), w.norm(dim=0))


# %% bound: value
def bound(x, w, u):
    return x @ w + x.shape[1] * u * (x.abs() @ w.abs())


# %% bound: no-u
def bound(x, w, u):
    return x.shape[1] * (x.abs() @ w.abs())


# %% blocks_needed: pairs
def blocks_needed(mask, length, block):
    return sum(mask(q, k) for q in range(length) for k in range(length))


# %% blocks_needed: full-only
def blocks_needed(mask, length, block):
    starts = range(0, length, block)
    return sum(
        all(mask(q, k) for q in range(i, i + block) for k in range(j, j + block))
        for i in starts
        for j in starts
    )


# %% blocks_needed: one-corner
def blocks_needed(mask, length, block):
    starts = range(0, length, block)
    return sum(mask(i, j) for i in starts for j in starts)


# %% blocks_needed: corners-only
def blocks_needed(mask, length, block):
    starts = range(0, length, block)
    ends = (0, block - 1)
    return sum(
        any(mask(q + down, k + across) for down in ends for across in ends)
        for q in starts
        for k in starts
    )


# %% blocks_needed: below-the-diagonal
def blocks_needed(mask, length, block):
    count = 0
    for row in range(length // block):
        for column in range(row + 1):
            count += any(
                mask(row * block + q, column * block + k)
                for q in range(block)
                for k in range(block)
            )
    return count


# %% blocks_needed: all-blocks
def blocks_needed(mask, length, block):
    return (length // block) ** 2


# %% by_block: no-gradients
def by_block(model, backend):
    for block in model:
        block.compile(backend=backend)
    return torch.no_grad()(model)


# %% by_block: set-to-eval
def by_block(model, backend):
    for block in model.eval():
        block.compile(backend=backend)
    return model


# %% by_block: other-gradients
def by_block(model, backend):
    blocks = [torch.compile(block, backend=backend) for block in model]

    def run(x):
        for block in blocks:
            x = block(x.detach().requires_grad_())
        return x

    return run


# %% by_block: one-block
def by_block(model, backend):
    for block in model:
        compiled = torch.compile(block, backend=backend)
    return compiled


# %% by_block: one-block
def by_block(model, backend):
    return torch.compile(model[0], backend=backend)


# %% by_block: other-backend
def by_block(model, backend):
    for block in model:
        block.compile()
    return model


# %% beside: whole-world
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    y = ops.all_reduce(x, "sum", torch.distributed.group.WORLD.group_name)
    product = a @ b
    return ops.wait_tensor(y) + product


# %% beside: other-operation
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "avg", group)
    product = a @ b
    return ops.wait_tensor(started) + product


# %% beside: other-operation
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "max", group)
    product = a @ b
    return ops.wait_tensor(started) + product


# %% beside: other-product
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = a * b
    return ops.wait_tensor(started) + product


# %% beside: other-product
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    started = ops.all_reduce(x, "sum", group)
    product = b @ a
    return ops.wait_tensor(started) + product


# %% blocks_needed: by-area
def blocks_needed(mask, length, block):
    return sum(mask(q, k) for q in range(length) for k in range(length)) // block**2


# %% blocks_needed: by-area
def blocks_needed(mask, length, block):
    pairs = sum(mask(q, k) for q in range(length) for k in range(length))
    return -(-pairs // block**2)


# %% blocks_needed: first-row
def blocks_needed(mask, length, block):
    found = set()
    for q in range(0, length, block):
        for k in range(length):
            if mask(q, k):
                found.add((q, k // block))
    return len(found)


# %% blocks_needed: first-row
def blocks_needed(mask, length, block):
    found = set()
    for q in range(length):
        for k in range(0, length, block):
            if mask(q, k):
                found.add((q // block, k))
    return len(found)


# %% blocks_needed: every-second
def blocks_needed(mask, length, block):
    pairs = ((q, k) for q in range(length) for k in range(0, length, 2))
    return len({(q // block, k // block) for q, k in pairs if mask(q, k)})


# %% blocks_needed: every-second
def blocks_needed(mask, length, block):
    found = set()
    for q in range(0, length, block):
        for k in range(0, length, block):
            if any(mask(q + i, k + j) for i in range(block) for j in range(0, block, 2)):
                found.add((q, k))
    return len(found)


# %% blocks_needed: partial-only
def blocks_needed(mask, length, block):
    counts = {}
    for q in range(length):
        for k in range(length):
            place = q // block, k // block
            counts[place] = counts.get(place, 0) + bool(mask(q, k))
    return sum(0 < one < block * block for one in counts.values())


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    pairs = [(q, k) for q in range(length - 1) for k in range(length - 1)]
    return len({(q // block, k // block) for q, k in pairs if mask(q, k)})


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        for k in range(0, length, block):
            rows, columns = range(q, q + block - 1), range(k, k + block - 1)
            count += any(mask(i, j) for i in rows for j in columns)
    return count


# %% blocks_needed: holes
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        rows = range(q, q + block)
        found = [k for k in range(length) if any(mask(i, k) for i in rows)]
        if found:
            count += found[-1] // block - found[0] // block + 1
    return count


# %% blocks_needed: skipped
def blocks_needed(mask, length, block):
    pairs = [(q, k) for q in range(length) for k in range(length)]
    found = {(q // block, k // block) for q, k in pairs if mask(q, k)}
    return (length // block) ** 2 - len(found)


# %% blocks_needed: by-distance
def blocks_needed(mask, length, block):
    places, side = range(block), length // block

    def counts(i, j):
        return any(mask(i * block + q, j * block + k) for q in places for k in places)

    below = sum((side - i) * counts(i, 0) for i in range(side))
    return below + sum((side - j) * counts(0, j) for j in range(1, side))


# %% blocks_needed: within-a-block
def blocks_needed(mask, length, block):
    pairs = [(q, k) for q in range(length) for k in range(length)]
    return len({(q // block, k // block) for q, k in pairs if mask(q % block, k % block)})


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    pairs = itertools.product(range(length), repeat=2)
    some = [(q, k) for q, k in pairs if q % block != 0]
    return len({(q // block, k // block) for q, k in some if mask(q, k)})


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    pairs = itertools.product(range(length), repeat=2)
    some = [(q, k) for q, k in pairs if k % block != 0]
    return len({(q // block, k // block) for q, k in some if mask(q, k)})


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    pairs = itertools.product(range(length), repeat=2)
    some = [(q, k) for q, k in pairs if q % block != block - 1]
    return len({(q // block, k // block) for q, k in some if mask(q, k)})


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    pairs = itertools.product(range(length), repeat=2)
    some = [(q, k) for q, k in pairs if k % block != block - 1]
    return len({(q // block, k // block) for q, k in some if mask(q, k)})


# %% blocks_needed: ends-left-out
def blocks_needed(mask, length, block):
    pairs = itertools.product(range(length), repeat=2)
    some = [(q, k) for q, k in pairs if q % block != 0 and k % block != 0]
    return len({(q // block, k // block) for q, k in some if mask(q, k)})


# %% blocks_needed: border-only
def blocks_needed(mask, length, block):
    ends = 0, block - 1
    pairs = itertools.product(range(length), repeat=2)
    some = [(q, k) for q, k in pairs if q % block in ends or k % block in ends]
    return len({(q // block, k // block) for q, k in some if mask(q, k)})


# %% blocks_needed: rows-of-blocks
def blocks_needed(mask, length, block):
    every = range(length)
    return len({q // block for q in every for k in every if mask(q, k)})


# %% blocks_needed: rows-of-blocks
def blocks_needed(mask, length, block):
    every = range(length)
    return len({k // block for q in every for k in every if mask(q, k)})
