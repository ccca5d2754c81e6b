"""Wrong answers to the exercises of lab 05, written without sight of its checks; see judge.py."""

# Wrong answers for lab 05 (05_torch_compile.ipynb and 05_torch_compile_further.ipynb).
import functools
import itertools
import math
import random

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

ops = torch.ops._c10d_functional


# ============================================================================ traffic


# %% traffic: same-input-read-twice
# Counts every entry of the list of inputs, so x * x reads x twice; the goal says that it reads it once.
def traffic(operations, kept, size):
    alone = sum(len(inputs) + 1 for inputs, _ in operations)
    results = {result for _, result in operations}
    outside = {name for inputs, _ in operations for name in inputs} - results
    return alone * size, (len(outside) + len(kept)) * size


# %% traffic: only-neighbours-deduplicated
# groupby merges a name only with an equal name right beside it: (["x", "y", "x"], "a") is counted as three reads
# though the operation reads two tensors.
def traffic(operations, kept, size):
    alone = 0
    for inputs, _ in operations:
        alone += len(list(itertools.groupby(inputs))) + 1
    results = {result for _, result in operations}
    outside = {name for inputs, _ in operations for name in inputs} - results
    return alone * size, (len(outside) + len(kept)) * size


# %% traffic: fused-reads-for-each-operation
# The fused kernel reads an outside tensor again for each operation that uses it; one kernel reads it once and keeps
# it in a register.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    results = {result for _, result in operations}
    reads = sum(len(set(inputs) - results) for inputs, _ in operations)
    return alone * size, (reads + len(kept)) * size


# %% traffic: fused-writes-every-result
# The fused kernel writes all results; only those in `kept` have to leave it.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    results = {result for _, result in operations}
    outside = {name for inputs, _ in operations for name in inputs} - results
    return alone * size, (len(outside) + len(results)) * size


# %% traffic: fused-writes-the-last-only
# Ignores `kept` and writes one tensor, the last result: right for the text's swish, wrong if two or no results
# are needed later.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    results = {result for _, result in operations}
    outside = {name for inputs, _ in operations for name in inputs} - results
    return alone * size, (len(outside) + 1) * size


# %% traffic: kept-intermediate-is-read-back
# A kept result that a later operation takes is counted as a read as well, as if the kernel had to fetch it again
# from memory; in one kernel it is still in a register.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    in_registers = {result for _, result in operations} - set(kept)
    taken = {name for inputs, _ in operations for name in inputs}
    return alone * size, (len(taken - in_registers) + len(kept)) * size


# %% traffic: kept-intermediate-is-not-written
# Writes only kept results that no operation of the kernel takes; a kept result that is used inside as well must
# still be written, since it is needed later.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    taken = {name for inputs, _ in operations for name in inputs}
    results = {result for _, result in operations}
    writes = set(kept) - taken
    return alone * size, (len(taken - results) + len(writes)) * size


# %% traffic: a-register-lasts-for-one-operation
# A result is free only for the operation right after the one that made it; a result that is used later is counted
# as a read. Right for every chain, wrong for anything with a branch.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read, previous = set(), None
    for inputs, result in operations:
        read |= set(inputs) - {previous}
        previous = result
    return alone * size, (len(read) + len(kept)) * size


# %% traffic: inputs-of-the-first-operation-only
# Takes the first operation's inputs as the inputs of the kernel; a tensor from outside that comes in at a later
# operation (a bias, say) is forgotten.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    first = set(operations[0][0]) if operations else set()
    return alone * size, (len(first) + len(kept)) * size


# %% traffic: names-compared-as-substrings
# `name in results` tests a substring of a joined string, so the outside tensor "x" counts as computed if a result
# is called "x1" or "exp". Right as long as no name is part of another.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    results = " ".join(result for _, result in operations)
    outside = {name for inputs, _ in operations for name in inputs if name not in results}
    return alone * size, (len(outside) + len(kept)) * size


# %% traffic: reads-once-for-the-whole-list
# In the eager count, too, every tensor is read once in all; operations that run by themselves each read their own
# inputs from memory.
def traffic(operations, kept, size):
    taken = {name for inputs, _ in operations for name in inputs}
    results = {result for _, result in operations}
    alone = len(taken) + len(operations)
    return alone * size, (len(taken - results) + len(kept)) * size


# %% traffic: floats
# Converts to GiB and back: the numbers of bytes come as floats, where the goal asks for two ints.
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    results = {result for _, result in operations}
    outside = {name for inputs, _ in operations for name in inputs} - results
    gib = size / 2**30
    return alone * gib * 2**30, (len(outside) + len(kept)) * gib * 2**30


# ============================================================================ adjust


# %% adjust: decided-for-each-number
# Chooses by the sign of each number and not by the sign of the sum.
def adjust(x):
    return torch.where(x > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: a-sum-of-zero-is-positive
# >= 0 halves x also where the sum is exactly 0; 0 is not positive, so the goal wants x * 4.
def adjust(x):
    return torch.where(x.sum() >= 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: zeros-counted
# Counts entries that are not negative: an entry of 0 is not positive.
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x >= 0).sum()


# %% adjust: counted-in-each-row
# Counts the positive entries of each row (last dimension). Right for one dimension; for a matrix the goal wants the
# number of positive entries of all of x at every place.
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum(-1, keepdim=True)


# %% adjust: a-setting-changed
# One graph, and the right numbers, but only since a setting of PyTorch was changed, which the goal forbids.
torch._dynamo.config.capture_scalar_outputs = True


def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + int((x > 0).sum())


# %% adjust: count-in-a-disabled-function
# torch.compiler.disable is a repair of the table, but it is itself a graph break: Dynamo makes two graphs, not one.
@torch.compiler.disable
def _positives(x):
    return (x > 0).sum()


def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + _positives(x)


# %% adjust: count-as-the-size-of-a-selection
# The length of x[x > 0] is a Python number that depends on the values: Dynamo breaks the graph at the selection.
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + x[x > 0].numel()


# %% adjust: sum-of-truncated-numbers
# Adds the numbers up as integers: a sum of 0.9, or of many fractions, becomes 0 and counts as not positive.
def adjust(x):
    return torch.where(x.sum(dtype=torch.int64) > 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: count-in-eight-bits
# The count is kept in uint8 and wraps: from 256 positive entries on it is too small.
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + (x > 0).sum(dtype=torch.uint8)


# %% adjust: half-of-the-repair
# The `if` is repaired and the int(...) is not: that is still a break, and so two graphs.
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + int((x > 0).sum())


# %% adjust: everything-in-float32
# Computes in float32 whatever x is: a float64 x loses half of its digits (and numbers above 3e38 become inf), so
# that the result is not x / 2 plus the number.
def adjust(x):
    y = x.float()
    return torch.where(y.sum() > 0, y / 2, y * 4) + (y > 0).sum()


# ============================================================================ Warmup


# %% Warmup: counted-from-zero
# The counter is increased after its use and clamped to 1..8: the first two calls both return x / 8, and every call
# from the second to the eighth is one behind.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        y = x * self.calls.clamp(1, 8) / 8
        self.calls += 1
        return y


# %% Warmup: one-counter-for-all-modules
# The tensor is a default argument, made once for the class and changed in place: all modules count together,
# though each has to count its own calls.
class Warmup(torch.nn.Module):
    def __init__(self, calls=torch.zeros((), dtype=torch.int64)):
        super().__init__()
        self.calls = calls

    def forward(self, x):
        self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: a-setting-changed
# Makes integer attributes of modules dynamic by a setting of Dynamo: few graphs and right numbers, but the goal says
# without changing any setting of PyTorch.
torch._dynamo.config.allow_unspec_int_on_nn_module = True


class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * min(self.calls, 8) / 8


# %% Warmup: integer-that-stops-at-eight
# The Python integer stops changing at 8, which ends the storm after eight graphs; the goal allows four.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if self.calls < 8:
            self.calls += 1
        return x * self.calls / 8


# %% Warmup: never-ends-growing
# The counter is a tensor, and min(n, 8) is forgotten: call 9 returns x * 9 / 8.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls / 8


# %% Warmup: counter-of-eight-bits
# An int8 counter wraps at call 128: min(-128, 8) makes the result negative. Twenty calls don't show it.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int8))

    def forward(self, x):
        self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: integer-division
# min(n, 8) // 8 is 0 up to call 7, and so is the result.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * (self.calls.clamp(max=8) // 8)


# %% Warmup: counts-in-training-only
# Calls in eval mode are not counted; the goal counts each call.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: table-of-twenty-calls
# The factors of twenty calls are a table and the counter wraps around at its end: call 21 returns x / 8 again.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(1, 21).clamp(max=8) / 8)
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        factor = self.table.index_select(0, self.at).squeeze(0)
        self.at = (self.at + 1) % 20
        return x * factor


# %% Warmup: row-by-row
# The Python loop over rows is unrolled, so a graph holds for one number of rows: every new number of rows makes a
# graph, more than four with five sizes.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        factor = self.calls.clamp(max=8) / 8
        return torch.stack([row * factor for row in x])


# %% Warmup: counter-in-a-list
# The integer moved from an attribute into a list: Dynamo guards on its value there as well, and makes a graph for
# every call up to the limit.
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = [0]

    def forward(self, x):
        self.calls[0] += 1
        return x * min(self.calls[0], 8) / 8


# ============================================================================ by_block


# %% by_block: the-whole-model
# One graph, but of all blocks together and not of one block: no block's code is reused.
def by_block(model, backend):
    return torch.compile(model, backend=backend)


# %% by_block: only-the-first-block
# The other blocks run eagerly: the graph was run once and not by every block.
def by_block(model, backend):
    first = torch.compile(model[0], backend=backend)
    return torch.nn.Sequential(first, *model[1:])


# %% by_block: the-first-block-n-times
# "Equal" blocks have different weights; running the first one's compiled code with its own weights each time gives
# something else than the model.
def by_block(model, backend):
    first = torch.compile(model[0], backend=backend)

    def run(x):
        for _ in model:
            x = first(x)
        return x

    return run


# %% by_block: another-backend-for-each-block
# Each block gets a backend object of its own, so that Dynamo cannot reuse the first one's code: as many graphs as
# blocks.
def by_block(model, backend):
    for block in model:
        block.compile(backend=lambda graph, inputs: backend(graph, inputs))
    return model


# %% by_block: reset-between-blocks
# torch.compiler.reset() before each block throws away the code that the next block should reuse: a graph for each.
def by_block(model, backend):
    def run(x):
        for block in model:
            torch.compiler.reset()
            x = torch.compile(block, backend=backend)(x)
        return x

    return run


# %% by_block: block-chosen-by-a-number
# The compiled function gets the number of the block, a Python integer that is guarded: every block makes a graph.
def by_block(model, backend):
    @torch.compile(backend=backend)
    def step(number, x):
        return model[number](x)

    def run(x):
        for number in range(len(model)):
            x = step(number, x)
        return x

    return run


# %% by_block: two-blocks-a-graph
# Compiles pairs of blocks: the graph is of two blocks, and an odd number of blocks needs a second graph.
def by_block(model, backend):
    @torch.compile(backend=backend)
    def step(blocks, x):
        for block in blocks:
            x = block(x)
        return x

    def run(x):
        blocks = list(model)
        for at in range(0, len(blocks), 2):
            x = step(blocks[at : at + 2], x)
        return x

    return run


# %% by_block: starts-at-the-second
# The first block is left as it is ("it has compiled already"): it runs eagerly and not the graph.
def by_block(model, backend):
    for block in model[1:]:
        block.compile(backend=backend)
    return model


# %% by_block: without-gradients
# torch.no_grad() avoids a second graph (only the first block's input needs no gradient), but the result has
# no gradient either, so it isn't what the model gives: a loss of it cannot be differentiated.
def by_block(model, backend):
    blocks = [torch.compile(block, backend=backend) for block in model]

    def run(x):
        with torch.no_grad():
            return functools.reduce(lambda y, block: block(y), blocks, x)

    return run


# %% by_block: warmed-up-with-another-shape
# Compiles ahead of time with a batch of one: the first real call has another shape, the guard fails, and there are
# two graphs after it.
def by_block(model, backend):
    for block in model:
        block.compile(backend=backend)
    weight = next(p for p in model.parameters() if p.dim() == 2)
    with torch.no_grad():
        model(torch.zeros(1, weight.shape[1], dtype=weight.dtype))
    return model


# %% by_block: layer-by-layer
# Compiles the layers inside of a block and not the block: graphs of single layers, one for each kind.
def by_block(model, backend):
    for block in model:
        for name, layer in list(block.named_children()):
            setattr(block, name, torch.compile(layer, backend=backend))
    return model


# %% by_block: switched-to-eval
# Switches the model to eval mode "since only the forward pass is compiled": blocks with a BatchNorm or a Dropout then
# give something else than the model, which was in training mode.
def by_block(model, backend):
    for block in model.eval():
        block.compile(backend=backend)
    return model


# ============================================================================ beside


# %% beside: waits-before-the-product
# The wait stands directly after the start: nothing happens in between.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    total = ops.wait_tensor(y)
    return total + a @ b


# %% beside: product-before-the-start
# The product is computed first, and then the sum starts: again nothing happens while it travels.
def beside(x, a, b, group):
    product = a @ b
    y = ops.all_reduce(x, "sum", group)
    return ops.wait_tensor(y) + product


# %% beside: sum-in-place
# all_reduce_ (with the underscore) writes the sum into x, which must not be changed.
def beside(x, a, b, group):
    y = ops.all_reduce_(x, "sum", group)
    product = a @ b
    return ops.wait_tensor(y) + product


# %% beside: functional-collective
# torch.distributed's functional all_reduce returns a tensor that waits when it is used, but only in eager mode: while
# a graph is made it puts the wait directly after the start, before the product.
def beside(x, a, b, group):
    y = funcol.all_reduce(x, "sum", group)
    product = a @ b
    return y + product


# %% beside: two-waits
# Waits a second time "to be sure"; the goal wants one wait only.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    product = a @ b
    total = ops.wait_tensor(y)
    return ops.wait_tensor(total) + product


# %% beside: no-wait
# Adds what all_reduce returned without waiting for it: the graph has no wait, and the numbers may not be there yet.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    return a @ b + y


# %% beside: waits-for-the-input
# Waits for x, of which no collective is pending, and then uses y, for which nobody has waited.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    product = a @ b
    ops.wait_tensor(x)
    return y + product


# %% beside: added-before-the-wait
# The addition already reads the unfinished sum; the wait comes after it, on a tensor of which nothing is pending.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    result = a @ b + y
    return ops.wait_tensor(result)


# %% beside: product-fused-behind-the-wait
# addmm computes product and addition in one operation, which needs the sum: the product comes after the wait.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    return torch.addmm(ops.wait_tensor(y), a, b)


# %% beside: product-summed-too
# Adds the product before the start, so that the products of all ranks are summed; the goal wants this rank's own.
def beside(x, a, b, group):
    product = a @ b
    y = ops.all_reduce(x + product, "sum", group)
    return ops.wait_tensor(y)


# %% beside: group-of-all-ranks
# Ignores `group` and sums over the default group: wrong as soon as the caller gives a smaller one.
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", dist.group.WORLD.group_name)
    product = a @ b
    return ops.wait_tensor(y) + product


# %% beside: work-handle
# dist.all_reduce(async_op=True) returns a Work, which Dynamo cannot put into a graph: it breaks, and the pieces
# (three graphs) hold neither the start nor the wait.
def beside(x, a, b, group):
    total = x.clone()
    pg = dist.distributed_c10d._resolve_process_group(group)
    work = dist.all_reduce(total, group=pg, async_op=True)
    product = a @ b
    work.wait()
    return total + product


# ============================================================================ blocks_needed


# %% blocks_needed: four-corners
# Looks at the four corners of each block only: a pair in the middle or at an edge is missed.
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        for k in range(0, length, block):
            last_q, last_k = q + block - 1, k + block - 1
            corners = [(q, k), (q, last_k), (last_q, k), (last_q, last_k)]
            count += any(mask(*pair) for pair in corners)
    return count


# %% blocks_needed: pairs-divided-by-the-size
# The number of pairs divided by the size of a block, rounded up: the smallest number of blocks that could hold the
# pairs, not the number of blocks that they lie in.
def blocks_needed(mask, length, block):
    pairs = sum(bool(mask(q, k)) for q in range(length) for k in range(length))
    return -(-pairs // block**2)


# %% blocks_needed: lower-triangle-only
# Takes for granted that no key comes after its query: right for every causal mask, wrong for others.
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        for k in range(0, q + 1, block):
            pairs = ((i, j) for i in range(q, q + block) for j in range(k, k + block))
            count += any(mask(i, j) for i, j in pairs)
    return count


# %% blocks_needed: full-blocks
# Counts the blocks in which all pairs count; a block is needed as soon as one does.
def blocks_needed(mask, length, block):
    n, count = length // block, 0
    for q in range(n):
        for k in range(n):
            count += all(
                mask(q * block + i, k * block + j) for i in range(block) for j in range(block)
            )
    return count


# %% blocks_needed: last-row-and-column-left-out
# range(block - 1) leaves out the last query and the last key of each block: a block in which only those
# count is missed (and with block = 1 all are).
def blocks_needed(mask, length, block):
    n, count = length // block, 0
    for q in range(n):
        for k in range(n):
            count += any(
                mask(q * block + i, k * block + j)
                for i in range(block - 1)
                for j in range(block - 1)
            )
    return count


# %% blocks_needed: skipped-blocks
# Counts the blocks that are skipped (what create_block_mask calls sparsity) and not those that are needed.
def blocks_needed(mask, length, block):
    n, count = length // block, 0
    for q in range(n):
        for k in range(n):
            count += not any(
                mask(q * block + i, k * block + j) for i in range(block) for j in range(block)
            )
    return count


# %% blocks_needed: from-first-to-last-of-a-row
# Takes the needed blocks of a row to be contiguous, from the first to the last one: a hole between them (a window
# and a few global tokens, say) is counted as needed.
def blocks_needed(mask, length, block):
    n, count = length // block, 0
    for q in range(n):
        rows = range(q * block, (q + 1) * block)
        needed = [k // block for k in range(length) if any(mask(i, k) for i in rows)]
        if needed:
            count += max(needed) - min(needed) + 1
    return count


# %% blocks_needed: by-distance-from-the-diagonal
# Looks at one block of each diagonal and takes the others to be like it: right for masks of q - k only (causal,
# window), wrong for documents or a prefix.
def blocks_needed(mask, length, block):
    def needed(q, k):
        return any(mask(q * block + i, k * block + j) for i in range(block) for j in range(block))

    n = length // block
    below = sum((n - d) * needed(d, 0) for d in range(n))
    above = sum((n - d) * needed(0, d) for d in range(1, n))
    return below + above


# %% blocks_needed: mask-of-tensors
# Calls the mask with tensors of all q and all k. The goal's q and k are numbers: a mask with `and`, such as the
# notebook's own, raises an error.
def blocks_needed(mask, length, block):
    at = torch.arange(length)
    table = mask(at[:, None], at[None, :]).expand(length, length)
    n = length // block
    return int(table.reshape(n, block, n, block).any(3).any(1).sum())


# %% blocks_needed: positions-within-the-block
# Gives the mask the position within the query's own block in place of q from 0 to length - 1 (and for k the same):
# all blocks look like the first one.
def blocks_needed(mask, length, block):
    needed = set()
    for q in range(length):
        for k in range(length):
            if mask(q % block, k % block):
                needed.add((q // block, k // block))
    return len(needed)


# %% blocks_needed: numbered-in-rows-of-eight
# Numbers the blocks with 8 to a row, as in the text's example: with more blocks to a row, two blocks get one number
# and are counted once.
def blocks_needed(mask, length, block):
    needed = set()
    for q in range(length):
        for k in range(length):
            if mask(q, k):
                needed.add(q // block * 8 + k // block)
    return len(needed)


# %% blocks_needed: random-sample-of-pairs
# Tries 64 random pairs of each block: fast, and a block in which few pairs count is missed.
def blocks_needed(mask, length, block):
    n, count, draw = length // block, 0, random.Random(0)
    for q in range(n):
        for k in range(n):
            tries = (
                (q * block + draw.randrange(block), k * block + draw.randrange(block))
                for _ in range(64)
            )
            count += any(mask(i, j) for i, j in tries)
    return count


# ============================================================================ bound


# %% bound: absolute-value-of-the-sum
# |Σ x·w| in place of Σ |x·w|: where terms of both signs cancel, the bound is far too small.
def bound(x, w, u):
    return x.shape[-1] * u * (x @ w).abs()


# %% bound: rows-as-terms
# K is taken from the rows of x, which is the number of sums and not the number of terms of one. Right for a
# square x.
def bound(x, w, u):
    return x.shape[0] * u * (x.abs() @ w.abs())


# %% bound: columns-as-terms
# K is taken from the columns of w. Right for a square w.
def bound(x, w, u):
    return w.shape[-1] * u * (x.abs() @ w.abs())


# %% bound: square-root-of-k
# The text's version for tests that should find small mistakes; the goal asks for K.
def bound(x, w, u):
    return x.shape[-1] ** 0.5 * u * (x.abs() @ w.abs())


# %% bound: one-rounding-less
# K numbers are added by K - 1 additions, so it takes K - 1; the goal's K is the number of terms.
def bound(x, w, u):
    return (x.shape[-1] - 1) * u * (x.abs() @ w.abs())


# %% bound: one-number-for-all
# Returns the largest bound; the goal wants a bound for each number of x @ w.
def bound(x, w, u):
    return (x.shape[-1] * u * (x.abs() @ w.abs())).max()


# %% bound: unit-of-the-type
# Takes u from the type of x: for a product in bfloat16 that is checked with float64 inputs, u is the caller's, and
# finfo.eps is twice as large anyway.
def bound(x, w, u):
    return x.shape[-1] * torch.finfo(x.dtype).eps * (x.abs() @ w.abs())


# %% bound: computed-in-half
# Computes the bound itself in float16: it overflows to inf from 65504 on, and has three digits.
def bound(x, w, u):
    x, w = x.half(), w.half()
    return (x.shape[-1] * u * (x.abs() @ w.abs())).double()


# %% bound: product-of-two-sums
# Σ|x| · Σ|w| in place of Σ |x·w|: all pairs of terms, not those that belong together.
def bound(x, w, u):
    return x.shape[-1] * u * x.abs().sum(-1, keepdim=True) * w.abs().sum(-2, keepdim=True)


# %% bound: u-as-digits
# Takes u for the number p of binary digits and computes 2**-u; u is that already.
def bound(x, w, u):
    return x.shape[-1] * 2.0**-u * (x.abs() @ w.abs())


# %% bound: only-one-absolute-value
# |x| · w: negative weights still cancel, and the bound may be negative. Right for weights that are not negative.
def bound(x, w, u):
    return x.shape[-1] * u * (x.abs() @ w)


# %% traffic: only-what-the-first-reads
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    fused = len(set(operations[0][0])) + len(kept)
    return alone * size, fused * size


# %% traffic: inputs-read-again
def traffic(operations, kept, size):
    made = {name for _, name in operations}
    alone = fused = 0
    for inputs, _ in operations:
        alone += len(set(inputs)) + 1
        fused += sum(1 for name in set(inputs) if name not in made)
    return alone * size, (fused + len(kept)) * size


# %% traffic: kept-is-read-too
def traffic(operations, kept, size):
    made, read, alone = set(), set(), 0
    for inputs, name in operations:
        read |= set(inputs) - made
        made.add(name)
        alone += len(set(inputs)) + 1
    return alone * size, (len(read) + 2 * len(kept)) * size


# %% traffic: writes-the-last-one-only
def traffic(operations, kept, size):
    results = [name for _, name in operations]
    outside = {i for inputs, _ in operations for i in inputs} - set(results)
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    return alone * size, (len(outside) + 1) * size


# %% traffic: duplicates-counted
def traffic(operations, kept, size):
    alone = sum(len(inputs) + 1 for inputs, _ in operations)
    names = {i for inputs, _ in operations for i in inputs}
    names -= {name for _, name in operations}
    return alone * size, (len(names) + len(kept)) * size


# %% traffic: tensors-and-not-bytes
def traffic(operations, kept, size):
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    names = {i for inputs, _ in operations for i in inputs}
    names -= {name for _, name in operations}
    return alone, len(names) + len(kept)


# %% traffic: what-is-read-later-is-written
def traffic(operations, kept, size):
    made = {name for _, name in operations}
    used = {i for inputs, _ in operations for i in inputs}
    alone = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    written = (made - used) | set(kept)
    return alone * size, (len(used - made) + len(written)) * size


# %% traffic: without-writes
def traffic(operations, kept, size):
    made = {name for _, name in operations}
    used = {i for inputs, _ in operations for i in inputs}
    alone = sum(len(set(inputs)) for inputs, _ in operations)
    return alone * size, len(used - made) * size


# %% traffic: reads-whatever-stands-on-the-left
def traffic(operations, kept, size):
    each = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    fused = len({one for inputs, _ in operations for one in inputs})
    return each * size, (fused + len(kept)) * size


# %% adjust: where-but-int
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + int((x > 0).sum())


# %% adjust: each-entry-by-its-sign
def adjust(x):
    chosen = torch.where(x > 0, x / 2, x * 4)
    return chosen + (x > 0).sum()


# %% adjust: counts-what-is-not-negative
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + (x >= 0).sum()


# %% adjust: count-of-the-chosen
def adjust(x):
    chosen = torch.cond(x.sum() > 0, lambda x: x / 2, lambda x: x * 4, (x,))
    return chosen + (chosen > 1).sum()


# %% adjust: zero-counts-as-positive
def adjust(x):
    chosen = torch.where(x.sum() >= 0, x / 2, x * 4)
    return chosen + (x > 0).sum()


# %% adjust: tolist
def adjust(x):
    positive = (x > 0).tolist()
    flat = torch.tensor(positive)
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + flat.sum()


# %% adjust: capture-scalars
def adjust(x):
    torch._dynamo.config.capture_scalar_outputs = True
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + (x > 0).sum().item()


# %% adjust: branches-swapped
def adjust(x):
    chosen = torch.where(x.sum() > 0, x * 4, x / 2)
    return chosen + (x > 0).sum()


# %% adjust: counts-rows
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + (x > 0).sum(-1, keepdim=True)


# %% adjust: left-out-of-the-graph
@torch.compiler.disable
def adjust(x):
    chosen = x / 2 if x.sum() > 0 else x * 4
    return chosen + int((x > 0).sum())


# %% adjust: printed
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    count = (x > 0).sum()
    print("positive:", count)
    return chosen + count


# %% adjust: breaks-the-graph-by-hand
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    torch._dynamo.graph_break()
    return chosen + (x > 0).sum()


# %% Warmup: counter-in-a-tensor-that-is-replaced
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.tensor(0)

    def forward(self, x):
        self.calls = self.calls + 1
        return x * min(int(self.calls), 8) / 8


# %% Warmup: counts-from-zero
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        y = x * self.calls.clamp(max=8) / 8
        self.calls += 1
        return y


# %% Warmup: one-counter-of-the-class
class Warmup(torch.nn.Module):
    calls = torch.zeros((), dtype=torch.int64)

    def forward(self, x):
        Warmup.calls.add_(1)
        return x * Warmup.calls.clamp(max=8) / 8


# %% Warmup: keeps-the-number-of-eight
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        if self.calls < 8:
            self.calls += 1
        return x * self.calls / 8


# %% Warmup: never-compiled
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    @torch.compiler.disable
    def forward(self, x):
        self.calls += 1
        return x * min(self.calls, 8) / 8


# %% Warmup: starts-again-after-eight
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        factor = torch.where(self.calls > 8, 1.0, self.calls / 8)
        self.calls.remainder_(16)
        return x * factor


# %% Warmup: a-counter-for-each-row
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = None

    def forward(self, x):
        if self.calls is None:
            self.calls = torch.zeros_like(x)
        self.calls = self.calls + 1
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: integer-division-again
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls.add_(1)
        return x * (self.calls.clamp(max=8) // 8)


# %% Warmup: mark-dynamic-only
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        torch._dynamo.maybe_mark_dynamic(x, 0)
        self.calls += 1
        return x * min(self.calls, 8) / 8


# %% by_block: whole-model
def by_block(model, backend):
    return torch.compile(model, backend=backend)


# %% by_block: only-the-first
def by_block(model, backend):
    model[0].compile(backend=backend)
    return model


# %% by_block: same-block-for-all
def by_block(model, backend):
    block = torch.compile(model[0], backend=backend)

    def call(x):
        for _ in model:
            x = block(x)
        return x

    return call


# %% by_block: default-backend
def by_block(model, backend):
    for block in model:
        block.compile()
    return model


# %% by_block: result-thrown-away
def by_block(model, backend):
    for block in model:
        torch.compile(block, backend=backend)
    return model


# %% by_block: last-left-out
def by_block(model, backend):
    for i in range(len(model) - 1):
        model[i].compile(backend=backend)
    return model


# %% by_block: without-gradients-again
def by_block(model, backend):
    for block in model:
        block.compile(backend=backend)

    def call(x):
        with torch.no_grad():
            return model(x)

    return call


# %% by_block: returns-the-compiled-block
def by_block(model, backend):
    compiled = None
    for block in model:
        compiled = torch.compile(block, backend=backend)
    return compiled


# %% by_block: cut-off-between-blocks
def by_block(model, backend):
    def run(x):
        for block in model:
            x = torch.compile(block, backend=backend, dynamic=True)(x.detach())
        return x

    return run


# %% beside: waits-at-once
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return total + a @ b


# %% beside: product-first
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    product = a @ b
    total = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return total + product


# %% beside: no-wait-again
def beside(x, a, b, group):
    total = torch.ops._c10d_functional.all_reduce(x, "sum", group)
    return total + a @ b


# %% beside: in-place
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce_(x, "sum", group)
    product = a @ b
    return ops.wait_tensor(total) + product


# %% beside: average
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce(x, "avg", group)
    product = a @ b
    return ops.wait_tensor(total) + product


# %% beside: sums-the-products-too
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce(x + a @ b, "sum", group)
    return ops.wait_tensor(total)


# %% beside: wait-of-the-input
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce(x, "sum", group)
    product = a @ b
    ops.wait_tensor(x)
    return total + product


# %% beside: elementwise-product
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce(x, "sum", group)
    product = a * b
    return ops.wait_tensor(total) + product


# %% beside: transposed
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce(x, "sum", group)
    product = b @ a
    return ops.wait_tensor(total) + product


# %% beside: work-handle-again
def beside(x, a, b, group):
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)
    product = a @ b
    work.wait()
    return y + product


# %% beside: waits-twice
def beside(x, a, b, group):
    ops = torch.ops._c10d_functional
    total = ops.all_reduce(x, "sum", group)
    product = a @ b
    ops.wait_tensor(total)
    return ops.wait_tensor(total) + product


# %% blocks_needed: corners
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        for k in range(0, length, block):
            rows, columns = (q, q + block - 1), (k, k + block - 1)
            count += any(mask(i, j) for i in rows for j in columns)
    return count


# %% blocks_needed: full-blocks-only
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        for k in range(0, length, block):
            pairs = (mask(q + i, k + j) for i in range(block) for j in range(block))
            count += all(pairs)
    return count


# %% blocks_needed: pairs-divided
def blocks_needed(mask, length, block):
    pairs = sum(bool(mask(q, k)) for q in range(length) for k in range(length))
    return math.ceil(pairs / block**2)


# %% blocks_needed: query-and-key-swapped
def blocks_needed(mask, length, block):
    seen = set()
    for q in range(length):
        for k in range(length):
            if mask(k, q) and k <= q:
                seen.add((q // block, k // block))
    return len(seen)


# %% blocks_needed: off-by-one-at-the-end
def blocks_needed(mask, length, block):
    seen = set()
    for q in range(length - 1):
        for k in range(length - 1):
            if mask(q, k):
                seen.add((q // block, k // block))
    return len(seen)


# %% blocks_needed: only-the-diagonals-of-blocks
def blocks_needed(mask, length, block):
    blocks = range(length // block)
    needed = 0
    for q in blocks:
        for k in blocks:
            if any(mask(q * block + i, k * block + i) for i in range(block)):
                needed += 1
    return needed


# %% blocks_needed: lower-triangle
def blocks_needed(mask, length, block):
    needed = 0
    for q in range(0, length, block):
        for k in range(0, q + 1, block):
            needed += any(mask(i, j) for i in range(q, q + block) for j in range(k, k + block))
    return needed


# %% blocks_needed: by-rows-of-blocks
def blocks_needed(mask, length, block):
    needed = 0
    for q in range(0, length, block):
        columns = {k for k in range(length) if mask(q, k)}
        needed += len({k // block for k in columns})
    return needed


# %% blocks_needed: from-first-to-last
def blocks_needed(mask, length, block):
    needed = 0
    for q in range(0, length, block):
        keys = [k for i in range(q, q + block) for k in range(length) if mask(i, k)]
        if keys:
            needed += max(keys) // block - min(keys) // block + 1
    return needed


# %% blocks_needed: border-of-each-block
def blocks_needed(mask, length, block):
    n = 0
    for a in range(0, length, block):
        for b in range(0, length, block):
            rows, columns = range(a, a + block), range(b, b + block)
            n += any(
                mask(q, k)
                for q in rows
                for k in columns
                if q in (rows[0], rows[-1]) or k in (columns[0], columns[-1])
            )
    return n


# %% blocks_needed: first-column-left-out
def blocks_needed(mask, length, block):
    n = 0
    for a in range(0, length, block):
        for b in range(0, length, block):
            n += any(mask(q, k) for q in range(a, a + block) for k in range(b + 1, b + block))
    return n


# %% bound: terms-of-the-wrong-side
def bound(x, w, u):
    return w.shape[1] * u * (x.abs() @ w.abs())


# %% bound: abs-of-the-sum
def bound(x, w, u):
    return x.shape[-1] * u * (x @ w).abs()


# %% bound: rows-counted
def bound(x, w, u):
    return x.shape[0] * u * (x.abs() @ w.abs())


# %% bound: numbers-counted
def bound(x, w, u):
    return x.numel() * u * (x.abs() @ w.abs())


# %% bound: root-of-the-terms
def bound(x, w, u):
    return x.shape[1] ** 0.5 * u * (x.abs() @ w.abs())


# %% bound: one-number-for-all-again
def bound(x, w, u):
    return x.shape[1] * u * (x.abs() @ w.abs()).max()


# %% bound: sums-apart
def bound(x, w, u):
    rows = x.abs().sum(1, keepdim=True)
    columns = w.abs().sum(0, keepdim=True)
    return x.shape[1] * u * rows * columns


# %% bound: additions-only
def bound(x, w, u):
    return (x.shape[1] - 1) * u * (x.abs() @ w.abs())


# %% bound: only-x-positive
def bound(x, w, u):
    return x.shape[1] * u * (x.abs() @ w)


# %% bound: terms-that-are-not-zero
def bound(x, w, u):
    products = (x[:, :, None] * w[None]).abs()
    return (products > 0).sum(1) * u * products.sum(1)


# %% traffic: inputs-of-the-first-alone
def traffic(operations, kept, size):
    alone = sum(len(set(reads)) + 1 for reads, _ in operations)
    first_reads, _ = operations[0]
    return alone * size, (len(set(first_reads)) + len(kept)) * size


# %% traffic: whatever-is-not-kept-is-read
def traffic(operations, kept, size):
    alone, needed = 0, set()
    for reads, _ in operations:
        alone += len(set(reads)) + 1
        needed |= set(reads)
    return size * alone, size * (len(needed - set(kept)) + len(kept))


# %% traffic: last-results-are-written
def traffic(operations, kept, size):
    reads = [name for inputs, _ in operations for name in inputs]
    results = {result for _, result in operations}
    separately = sum(len(set(inputs)) + 1 for inputs, _ in operations) * size
    sinks = results - set(reads)
    return separately, (len(set(reads) - results) + len(sinks)) * size


# %% traffic: kept-and-read-again-stays-inside
def traffic(operations, kept, size):
    moved, outside, made, used = 0, set(), set(), set()
    for inputs, result in operations:
        moved += size * (1 + len(set(inputs)))
        outside.update(name for name in inputs if name not in made)
        used.update(inputs)
        made.add(result)
    writes = [name for name in kept if name not in used]
    return moved, size * (len(outside) + len(writes))


# %% traffic: outside-read-by-each-operation
def traffic(operations, kept, size):
    results = [name for _, name in operations]
    separately = fused = 0
    for inputs, _ in operations:
        separately += size * (len(set(inputs)) + 1)
        for name in set(inputs):
            if name not in results:
                fused += size
    return separately, fused + size * len(kept)


# %% adjust: by-the-sign
def adjust(x):
    # the sign is 1 or -1: 2.25 - 1.75 = 0.5, and 2.25 + 1.75 = 4
    return x * (2.25 - 1.75 * torch.sign(x.sum())) + (x > 0).sum()


# %% adjust: switches-scalars-on
torch._dynamo.config.capture_scalar_outputs = True


def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + (x > 0).sum().item()


# %% adjust: length-of-a-selection
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + x[x > 0].numel()


# %% adjust: sum-of-each-column
def adjust(x):
    positive = x.sum(dim=0) > 0
    return torch.where(positive, x / 2, x * 4) + (x > 0).sum()


# %% adjust: counts-what-is-not-zero
def adjust(x):
    return torch.where(x.sum() > 0, x / 2, x * 4) + torch.count_nonzero(x)


# %% Warmup: counter-of-the-class
class Warmup(torch.nn.Module):
    calls = torch.zeros(())

    def __init__(self):
        super().__init__()

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls.clamp(max=8) / 8


# %% by_block: cut-between-blocks
def by_block(model, backend):
    for block in model:
        block.compile(backend=backend)

    def run(x):
        for block in model:
            x = block(x.detach())
        return x

    return run


# %% beside: mean-over-the-ranks
def beside(x, a, b, group):
    total = ops.all_reduce(x, "avg", group)
    product = a @ b
    return ops.wait_tensor(total) + product


# %% beside: waits-once-more
def beside(x, a, b, group):
    total = ops.all_reduce(x, "sum", group)
    product = a @ b
    ops.wait_tensor(total)
    return product + ops.wait_tensor(total)


# %% blocks_needed: takes-it-for-causal
def blocks_needed(mask, length, block):
    count = 0
    for row in range(length // block):
        for column in range(row + 1):
            count += any(
                mask(q, k)
                for q in range(row * block, (row + 1) * block)
                for k in range(column * block, (column + 1) * block)
            )
    return count


# %% blocks_needed: one-in-a-row
def blocks_needed(mask, length, block):
    count = 0
    for top in range(0, length, block):
        for left in range(0, length, block):
            pairs = itertools.product(range(top, top + block), range(left, left + block))
            if any(mask(q, k) for q, k in pairs):
                count += 1
                break
    return count


# %% blocks_needed: only-the-border
def blocks_needed(mask, length, block):
    def needed(top, left):
        bottom, right = top + block - 1, left + block - 1
        rows = any(mask(q, k) for q in (top, bottom) for k in range(left, right + 1))
        return rows or any(mask(q, k) for k in (left, right) for q in range(top, bottom + 1))

    starts = range(0, length, block)
    return sum(needed(top, left) for top in starts for left in starts)


# %% bound: as-the-largest-term
def bound(x, w, u):
    terms = (x[:, :, None] * w[None]).abs()
    k = x.shape[-1]
    return k * u * k * terms.amax(1)


# %% bound: only-x-is-positive
def bound(x, w, u):
    return x.shape[-1] * u * (x.abs() @ w).abs()


# %% traffic: reads-of-the-kept
# In the fused kernel what is kept is read, too.
def traffic(operations, kept, size):
    eager = sum(len(set(ins)) + 1 for ins, _ in operations)
    made = {out for _, out in operations}
    used = {name for ins, _ in operations for name in ins}
    return eager * size, (len(used - made) + len(kept) + len(used & set(kept))) * size


# %% traffic: inputs-per-operation
# An input that two operations take is read by both in the one kernel.
def traffic(operations, kept, size):
    made = {out for _, out in operations}
    eager = fused = 0
    for ins, _ in operations:
        eager += len({*ins}) + 1
        fused += len({*ins} - made)
    return eager * size, (fused + len(kept)) * size


# %% traffic: swapped-pair
def traffic(operations, kept, size):
    eager = sum(len(set(ins)) + 1 for ins, _ in operations)
    made = {out for _, out in operations}
    read = {name for ins, _ in operations for name in ins} - made
    return (len(read) + len(kept)) * size, eager * size


# %% adjust: mean-for-sum-with-where-of-rows
# The count is that of each row.
def adjust(x):
    chosen = torch.where(x.sum() > 0, x / 2, x * 4)
    return chosen + (x > 0).sum(-1, keepdim=True)


# %% adjust: greater-or-equal
def adjust(x):
    return torch.where(x.sum() >= 0, x / 2, x * 4) + (x > 0).sum()


# %% adjust: sign-arithmetic
# sign() is 0 where the sum is 0.
def adjust(x):
    s = torch.sign(x.sum())
    return x * (2.25 - 1.75 * s) + (x > 0).sum()


# %% Warmup: shared-by-the-class
class Warmup(torch.nn.Module):
    calls = torch.zeros(())

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls.clamp(max=8) / 8


# %% Warmup: reset-at-eight
class Warmup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros((), dtype=torch.int64)

    def forward(self, x):
        self.calls.copy_(self.calls % 8 + 1)
        return x * self.calls / 8


# %% by_block: deep-copy
# The gradients go to copies.
def by_block(model, backend):
    import copy

    other = copy.deepcopy(model)
    for block in other:
        block.compile(backend=backend)
    return other


# %% by_block: dynamo-disabled-loop
def by_block(model, backend):
    compiled = torch.compile(model[0], backend=backend)

    def run(x):
        for block in model:
            compiled.load_state_dict(block.state_dict(), strict=False)
            x = compiled(x)
        return x

    return run


# %% beside: product-before-the-start-once-more
def beside(x, a, b, group):
    own = a @ b
    total = ops.wait_tensor(ops.all_reduce(x, "sum", group))
    return total + own


# %% beside: average-once-more
def beside(x, a, b, group):
    y = ops.all_reduce(x, "avg", group)
    own = torch.mm(a, b)
    return ops.wait_tensor(y) + own


# %% beside: two-waits-once-more
def beside(x, a, b, group):
    y = ops.all_reduce(x, "sum", group)
    own = a @ b
    return ops.wait_tensor(ops.wait_tensor(y)) + own


# %% beside: in-place-on-x
def beside(x, a, b, group):
    y = ops.all_reduce_(x, "sum", group)
    own = a @ b
    return ops.wait_tensor(y) + own


# %% blocks_needed: first-row-only
def blocks_needed(mask, length, block):
    count = 0
    for q in range(0, length, block):
        for k in range(0, length, block):
            count += any(mask(q, k + j) for j in range(block))
    return count


# %% blocks_needed: every-other-pair
def blocks_needed(mask, length, block):
    n = length // block
    return sum(
        any(mask(q, k) for q in range(i * block, i * block + block)
            for k in range(j * block, j * block + block, 2))
        for i in range(n) for j in range(n)
    )


# %% blocks_needed: full-blocks-subtracted
def blocks_needed(mask, length, block):
    n, partial = length // block, 0
    for i in range(n):
        for j in range(n):
            pairs = [bool(mask(i * block + q, j * block + k)) for q in range(block) for k in range(block)]
            partial += any(pairs) and not all(pairs)
    return partial


# %% blocks_needed: rows-times-columns
def blocks_needed(mask, length, block):
    rows = {q // block for q in range(length) for k in range(length) if mask(q, k)}
    columns = {k // block for q in range(length) for k in range(length) if mask(q, k)}
    return len(rows) * len(columns)


# %% bound: terms-minus-one
def bound(x, w, u):
    return (x.shape[-1] - 1) * u * (x.abs() @ w.abs())


# %% bound: largest-of-all
def bound(x, w, u):
    return torch.full_like(x @ w, float(x.shape[1] * u * (x.abs() @ w.abs()).max()))


# %% bound: squares
def bound(x, w, u):
    return x.shape[1] * u * torch.sqrt((x**2) @ (w**2))


# %% bound: rows-of-x-for-terms
def bound(x, w, u):
    return len(x) * u * (x.abs() @ w.abs())
