"""Wrong answers to the exercises of lab 12, written without sight of its checks; see judge.py."""

import bisect
import itertools
import math
import os
import random
from itertools import combinations

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def choices(n):
    for size in range(n + 1):
        yield from combinations(range(n), size)


# %% peak: backward-alone
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    kept = 16 * layers * tokens * width
    return (3 * weights + kept + 3 * tokens * vocabulary) * size + (64 << 20)


# %% peak: optimizer-alone
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    return 5 * weights * size + (64 << 20)


# %% peak: both-summits-added
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return (backward + 2 * weights) * size + (64 << 20)


# %% peak: first-step
# AdamW's numbers are made in the first optimizer's step: they are not there in its backward pass.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: gradients-from-the-step-before
# As if zero_grad() had kept them (set_to_none=False).
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 4 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: head-tied-to-the-embedding
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: one-tensor-of-logits
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: two-tensors-of-logits
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 2 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: logits-of-each-layer
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + layers * (16 * tokens * width + 3 * tokens * vocabulary)
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: no-workspace
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size


# %% peak: workspace-times-size
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return (max(backward, 5 * weights) + (64 << 20)) * size


# %% peak: workspace-in-kib
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 10)


# %% peak: workspace-in-the-backward-alone
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward * size + (64 << 20), 5 * weights * size)


# %% peak: one-block-keeps
# Counts a block's 16 widths once, as if they were given back before the next block.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: one-block-has-weights
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: optimizer-updates-in-turn
# Without the tensor of each weight that updating all of them at once needs.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 4 * weights) * size + (64 << 20)


# %% peak: one-number-of-adamw
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 2 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 4 * weights) * size + (64 << 20)


# %% peak: adamw-in-float32
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    kept = 16 * layers * tokens * width + 3 * tokens * vocabulary
    backward = weights * (size + 8) + kept * size
    return max(backward, weights * (3 * size + 8)) + (64 << 20)


# %% peak: logits-in-float32
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = (3 * weights + 16 * layers * tokens * width) * size + 3 * tokens * vocabulary * 4
    return max(backward, 5 * weights * size) + (64 << 20)


# %% peak: always-two-bytes
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * 2 + (64 << 20)


# %% peak: in-gb
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return (max(backward, 5 * weights) * size + (64 << 20)) / 1e9


# %% peak: the-lower-summit
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return min(backward, 5 * weights) * size + (64 << 20)


# %% peak: attention-keeps-its-scores
# 16 heads and sequences of 1,024 tokens: what a text-book's attention would keep.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    kept = layers * (16 * tokens * width + 2 * 16 * tokens * 1024)
    return max(3 * weights + kept + 3 * tokens * vocabulary, 5 * weights) * size + (64 << 20)


# %% peak: twelve-widths
# Forgets the gelu's 4.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 12 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: an-addition-keeps-its-inputs
# 20 widths: both additions, two inputs each.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 20 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: eight-squares
# Up and down are four times as wide, but only one of them is counted so.
def peak(layers, width, vocabulary, tokens, size):
    weights = 9 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return max(backward, 5 * weights) * size + (64 << 20)


# %% peak: the-larger-by-weights-alone
# Decides by the parameters which summit is the higher one: more than a billion, the optimizer's.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    backward = 3 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary
    return (5 * weights if weights > 1e9 else backward) * size + (64 << 20)


# %% peak: gradients-with-the-activations
# All gradients beside all activations, which the backward pass gives back one by one.
def peak(layers, width, vocabulary, tokens, size):
    weights = 12 * layers * width**2 + 2 * vocabulary * width
    return (5 * weights + 16 * layers * tokens * width + 3 * tokens * vocabulary) * size + (
        64 << 20
    )


# %% rounded: power-of-two
def rounded(nbytes):
    return 1 << (nbytes - 1).bit_length()


# %% rounded: multiple-of-512
def rounded(nbytes):
    return -(-nbytes // 512) * 512


# %% rounded: unchanged
def rounded(nbytes):
    return nbytes


# %% rounded: multiple-of-2-mib
def rounded(nbytes):
    return -(-nbytes // (2 << 20)) * (2 << 20)


# %% rounded: down
def rounded(nbytes):
    step = max(512, 1 << max(0, nbytes.bit_length() - 3))
    return max(512, nbytes // step * step)


# %% rounded: to-the-nearest
def rounded(nbytes):
    step = max(1, 1 << max(0, nbytes.bit_length() - 3))
    return max(1, (nbytes + step // 2) // step * step)


# %% rounded: eight-to-an-octave
def rounded(nbytes):
    step = 1 << max(0, (nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step


# %% rounded: two-to-an-octave
# The step is a quarter of the next power of two, where it should be one of the power below.
def rounded(nbytes):
    step = max(512, (1 << (nbytes - 1).bit_length()) // 4)
    return -(-nbytes // step) * step


# %% rounded: three-to-an-octave
# The cube root of 2 is 1.26.
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    return math.ceil(2 ** (math.ceil(3 * math.log2(nbytes)) / 3))


# %% rounded: five-to-an-octave
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    return math.ceil(2 ** (math.ceil(5 * math.log2(nbytes)) / 5))


# %% rounded: forty-two
# Each 18.5 % more than the one before; with 1 MiB itself that makes 42 up to 1 GiB.
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    size = 1 << 20
    while size < nbytes:
        size = math.ceil(size * 1.185)
    return size


# %% rounded: a-quarter-more
def rounded(nbytes):
    return max(nbytes, nbytes * 5 // 4)


# %% rounded: power-of-two-but-a-quarter-at-most
def rounded(nbytes):
    return min(1 << (nbytes - 1).bit_length(), max(nbytes * 5 // 4, -(-nbytes // 512) * 512))


# %% rounded: a-float
def rounded(nbytes):
    step = max(512.0, 2.0 ** (math.floor(math.log2(nbytes)) - 2))
    return math.ceil(nbytes / step) * step


# %% rounded: at-least-1-mib
def rounded(nbytes):
    nbytes = max(nbytes, 1 << 20)
    step = 1 << (nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


# %% rounded: powers-of-two-below-1-mib
def rounded(nbytes):
    if nbytes < 1 << 20:
        return 1 << (nbytes - 1).bit_length()
    step = 1 << (nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


# %% rounded: fails-for-a-byte
def rounded(nbytes):
    step = 1 << (nbytes.bit_length() - 3)  # a negative shift below 4 bytes
    return -(-nbytes // step) * step


# %% rounded: nothing-above-1-gib
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    sizes = [(quarter << power) // 4 for power in range(20, 30) for quarter in (4, 5, 6, 7)]
    sizes.append(1 << 30)
    return sizes[bisect.bisect_left(sizes, nbytes)]


# %% rounded: 1-gib-at-most
def rounded(nbytes):
    step = max(512, 1 << max(0, nbytes.bit_length() - 3))
    return min(1 << 30, -(-nbytes // step) * step)


# %% rounded: in-mib
def rounded(nbytes):
    mib = max(1, -(-nbytes // (1 << 20)))
    step = max(1, 1 << max(0, mib.bit_length() - 3))
    return -(-mib // step) * step


# %% rounded: quarters-in-whole-mib
# Steps of whole MiB: from 1 MiB on that is 100 % more, 60 % at 2.5.
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    step = max(1 << 20, 1 << (nbytes.bit_length() - 3))
    return -(-nbytes // step) * step


# %% rounded: equal-steps
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    step = ((1 << 30) - (1 << 20)) // 40
    return (1 << 20) + -(-(nbytes - (1 << 20)) // step) * step


# %% rounded: a-power-of-two-goes-further
# A power of two is taken to the half above it.
def rounded(nbytes):
    if nbytes < 1 << 20:
        return -(-nbytes // 512) * 512
    if nbytes & (nbytes - 1) == 0:
        return nbytes * 3 // 2
    step = 1 << (nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


# %% rounded: decimal
# Rounds to two digits: 10, 11, 12 ... 99, 90 for each power of ten.
def rounded(nbytes):
    digit = 10 ** max(0, len(str(nbytes)) - 2)
    return -(-nbytes // digit) * digit


# %% rounded: first-come
# Remembers what it has given: but requests that get smaller bit by bit each add another one.
def rounded(nbytes):
    given = rounded.__dict__.setdefault("given", [])
    for size in given:
        if nbytes <= size <= nbytes * 5 // 4:
            return size
    if nbytes >= 1 << 20:
        given.append(nbytes * 5 // 4)
        return given[-1]
    return nbytes


# %% recomputed: most-bytes-for-its-time
def recomputed(kept, seconds, budget):
    chosen, left = [], sum(kept)
    for i in sorted(range(len(kept)), key=lambda i: -kept[i] / max(seconds[i], 1e-12)):
        if left <= budget:
            break
        chosen.append(i)
        left -= kept[i]
    return sorted(chosen)


# %% recomputed: largest-first
def recomputed(kept, seconds, budget):
    chosen, left = [], sum(kept)
    for i in sorted(range(len(kept)), key=lambda i: -kept[i]):
        if left > budget:
            chosen.append(i)
            left -= kept[i]
    return sorted(chosen)


# %% recomputed: cheapest-first
def recomputed(kept, seconds, budget):
    chosen, left = [], sum(kept)
    for i in sorted(range(len(kept)), key=lambda i: seconds[i]):
        if left > budget:
            chosen.append(i)
            left -= kept[i]
    return sorted(chosen)


# %% recomputed: from-the-first-block-on
def recomputed(kept, seconds, budget):
    first = 0
    while sum(kept[first:]) > budget:
        first += 1
    return list(range(first))


# %% recomputed: those-that-are-kept
def recomputed(kept, seconds, budget):
    n = len(kept)
    fits = [c for c in choices(n) if sum(kept[i] for i in c) <= budget]
    return list(max(fits, key=lambda c: sum(seconds[i] for i in c)))


# %% recomputed: less-than-the-budget
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) < budget]
    if not fits:
        return list(range(n))
    return list(min(fits, key=lambda c: sum(seconds[i] for i in c)))


# %% recomputed: fewest-blocks
# Among the choices with the fewest blocks the fastest one: stops at the first size that fits.
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    for size in range(n + 1):
        fits = [
            c for c in combinations(range(n), size) if total - sum(kept[i] for i in c) <= budget
        ]
        if fits:
            return list(min(fits, key=lambda c: sum(seconds[i] for i in c)))


# %% recomputed: the-fullest-budget
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    freed = lambda c: (sum(kept[i] for i in c), sum(seconds[i] for i in c))
    return list(min(fits, key=freed))


# %% recomputed: in-order-of-time
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    best = min(fits, key=lambda c: sum(seconds[i] for i in c))
    return sorted(best, key=lambda i: seconds[i])


# %% recomputed: yes-or-no-for-each
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    best = min(fits, key=lambda c: sum(seconds[i] for i in c))
    return [i in best for i in range(n)]


# %% recomputed: from-one
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    best = min(fits, key=lambda c: sum(seconds[i] for i in c))
    return [i + 1 for i in best]


# %% recomputed: a-set
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [set(c) for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    return min(fits, key=lambda c: sum(seconds[i] for i in c))


# %% recomputed: at-least-one
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    best, least = list(range(n)), math.inf
    for size in range(1, n + 1):
        for c in combinations(range(n), size):
            time = sum(seconds[i] for i in c)
            if total - sum(kept[i] for i in c) <= budget and time < least:
                best, least = list(c), time
    return best


# %% recomputed: never-all
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    best, least = [], math.inf
    for size in range(n):
        for c in combinations(range(n), size):
            time = sum(seconds[i] for i in c)
            if total - sum(kept[i] for i in c) <= budget and time < least:
                best, least = list(c), time
    return best


# %% recomputed: the-budget-is-freed
# Takes the budget for what has to be freed.
def recomputed(kept, seconds, budget):
    fits = [c for c in choices(len(kept)) if sum(kept[i] for i in c) >= budget]
    fits.append(tuple(range(len(kept))))
    return list(min(fits, key=lambda c: sum(seconds[i] for i in c)))


# %% recomputed: the-recomputed-fit
# The chosen ones keep at most the budget, in place of the others.
def recomputed(kept, seconds, budget):
    fits = [c for c in choices(len(kept)) if c and sum(kept[i] for i in c) <= budget]
    return list(min(fits, key=lambda c: sum(seconds[i] for i in c), default=()))


# %% recomputed: rounded-in-a-table
# A table of 100 steps up to the budget; what a block keeps is rounded down.
def recomputed(kept, seconds, budget):
    step = max(1, budget // 100)
    room = budget // step
    best = {0: (0.0, ())}  # steps in use: seconds saved, blocks kept
    for i, (size, time) in enumerate(zip(kept, seconds, strict=True)):
        for used, (saved, blocks) in list(best.items()):
            now = used + size // step
            if now <= room and saved + time > best.get(now, (-1.0,))[0]:
                best[now] = (saved + time, (*blocks, i))
    stays = max(best.values())[1]
    return [i for i in range(len(kept)) if i not in stays]


# %% recomputed: rounded-up-in-a-table
# A table of 50 steps up to the budget; what a block keeps is rounded up: misses choices.
def recomputed(kept, seconds, budget):
    step = max(1, budget // 50)
    room = budget // step
    best = {0: (0.0, ())}
    for i, (size, time) in enumerate(zip(kept, seconds, strict=True)):
        for used, (saved, blocks) in list(best.items()):
            now = used + -(-size // step)
            if now <= room and saved + time > best.get(now, (-1.0,))[0]:
                best[now] = (saved + time, (*blocks, i))
    stays = max(best.values())[1]
    return [i for i in range(len(kept)) if i not in stays]


# %% recomputed: empties-its-argument
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    best = min(fits, key=lambda c: sum(seconds[i] for i in c))
    for i in best:
        kept[i] = 0
    return list(best)


# %% recomputed: greedy-without-the-needless
# Most bytes for its time first, and then those are let go that are not needed after all.
def recomputed(kept, seconds, budget):
    chosen, left = [], sum(kept)
    for i in sorted(range(len(kept)), key=lambda i: -kept[i] / max(seconds[i], 1e-12)):
        if left <= budget:
            break
        chosen.append(i)
        left -= kept[i]
    for i in sorted(chosen, key=lambda i: -seconds[i]):
        if left + kept[i] <= budget:
            chosen.remove(i)
            left += kept[i]
    return sorted(chosen)


# %% recomputed: neighbours-only
# Only runs of blocks one after the other.
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    runs = [range(a, b) for a in range(n + 1) for b in range(a, n + 1)]
    fits = [run for run in runs if total - sum(kept[i] for i in run) <= budget]
    return list(min(fits, key=lambda run: sum(seconds[i] for i in run)))


# %% recomputed: zero-is-nothing
# `if not least` takes the best time so far for none where it is 0.
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    best, least = list(range(n)), None
    for c in choices(n):
        time = sum(seconds[i] for i in c)
        if total - sum(kept[i] for i in c) <= budget and (not least or time < least):
            best, least = list(c), time
    return best


# %% recomputed: whole-seconds
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    return list(min(fits, key=lambda c: sum(int(seconds[i]) for i in c)))


# %% recomputed: half-of-the-blocks-at-most
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    halves = [c for c in choices(n) if len(c) <= n // 2]
    fits = [c for c in halves if total - sum(kept[i] for i in c) <= budget]
    return list(min(fits, key=lambda c: sum(seconds[i] for i in c), default=range(n)))


# %% recomputed: by-the-slowest
# The longest of the times in place of their sum.
def recomputed(kept, seconds, budget):
    n, total = len(kept), sum(kept)
    fits = [c for c in choices(n) if total - sum(kept[i] for i in c) <= budget]
    return list(min(fits, key=lambda c: max((seconds[i] for i in c), default=0)))


# %% recomputed: bytes-in-float32
# From 16 MiB on a float32 does not have every whole number.
def recomputed(kept, seconds, budget):
    n = len(kept)
    again = (torch.arange(2**n)[:, None] >> torch.arange(n)) & 1
    stays = (1 - again).float() @ torch.tensor(kept, dtype=torch.float32)
    takes = again.double() @ torch.tensor(seconds, dtype=torch.float64)
    takes[stays > torch.tensor(budget, dtype=torch.float32)] = math.inf
    return again[takes.argmin()].nonzero().flatten().tolist()


# %% recomputed: bytes-in-int32
# Sums of more than 2 GiB go round.
def recomputed(kept, seconds, budget):
    n = len(kept)
    again = ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(np.int32)
    stays = (1 - again) @ np.array(kept, dtype=np.int64).astype(np.int32)
    takes = np.where(stays <= budget, again @ np.asarray(seconds, dtype=np.float64), np.inf)
    return np.flatnonzero(again[takes.argmin()]).tolist()


# %% offloaded: never-waits-for-a-copy
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    fetch(0)
    for i in range(n):
        if i + 1 < n:
            fetch(i + 1)
        x = forward(x, places[i % 2])
    for i in reversed(range(n)):
        if i:
            fetch(i - 1)
        x = backward(x, places[i % 2])
    return x


# %% offloaded: never-waits-for-a-use
# A place is written to while the product before still reads it.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    side.wait_stream(now)

    def fetch(i):
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: first-copy-does-not-wait
# What had the places' memory before may still be in use on the current stream.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
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
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
        used[i % 2] = now.record_event()
    return x


# %% offloaded: waits-for-unrecorded-events
# To wait for an event that nobody has recorded is not to wait: the first copies race.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    ready, used = ([cuda.Event() for _ in range(2)] for _ in range(2))

    def fetch(i):
        side.wait_event(used[i % 2])
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        ready[i % 2].record(side)

    fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready[i % 2])
        if k + 1 < len(order) and order[k + 1] != i:
            fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
        used[i % 2].record(now)
    return x


# %% offloaded: last-one-copied-twice
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(k):
        side.wait_stream(now)
        with cuda.stream(side):
            places[k % 2].copy_(on_host[order[k]], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k in range(2 * n):
        now.wait_event(ready)
        if k + 1 < 2 * n:
            ready = fetch(k + 1)
        x = (forward if k < n else backward)(x, places[k % 2])
    return x


# %% offloaded: blocking-copies
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i])
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: device-synchronized-at-first
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    cuda.synchronize()  # so that nobody uses the places' memory

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: host-waits-for-each-copy
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        ready.synchronize()
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: host-waits-at-the-end
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    now.synchronize()  # before the places' memory is given back
    return x


# %% offloaded: copies-on-the-current-stream
def offloaded(cuda, on_host, forward, backward, x, side):
    place = torch.empty_like(on_host[0], device="cuda")
    for weight in on_host:
        x = forward(x, place.copy_(weight, non_blocking=True))
    for i in reversed(range(len(on_host))):
        if i < len(on_host) - 1:
            place.copy_(on_host[i], non_blocking=True)
        x = backward(x, place)
    return x


# %% offloaded: copied-when-needed
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    for k, i in enumerate(order):
        if k != n:
            side.wait_stream(now)
            with cuda.stream(side):
                places[i % 2].copy_(on_host[i], non_blocking=True)
            now.wait_stream(side)
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: waits-for-the-next-copy
# Waits for all of the side stream, where the next weight's copy has been put already.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)

    fetch(0)
    for k, i in enumerate(order):
        if k + 1 < len(order) and order[k + 1] != i:
            fetch(order[k + 1])
        now.wait_stream(side)
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: fetched-after-the-use
# The copy waits for all of the current stream, where the product has been put already.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        x = (forward if k < n else backward)(x, places[i % 2])
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
    return x


# %% offloaded: all-on-the-device
def offloaded(cuda, on_host, forward, backward, x, side):
    now = cuda.current_stream()
    places = [torch.empty_like(weight, device="cuda") for weight in on_host]
    side.wait_stream(now)
    ready = []
    for place, weight in zip(places, on_host, strict=True):
        with cuda.stream(side):
            place.copy_(weight, non_blocking=True)
        ready.append(side.record_event())
    for place, event in zip(places, ready, strict=True):
        now.wait_event(event)
        x = forward(x, place)
    for place in reversed(places):
        x = backward(x, place)
    return x


# %% offloaded: backward-in-forward-order
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(k):
        side.wait_stream(now)
        with cuda.stream(side):
            places[k % 2].copy_(on_host[order[k]], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k in range(2 * n):
        now.wait_event(ready)
        if k + 1 < 2 * n:
            ready = fetch(k + 1)
        x = (forward if k < n else backward)(x, places[k % 2])
    return x


# %% offloaded: computes-on-the-side
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    side.wait_stream(now)
    with cuda.stream(side):
        for k, i in enumerate(order):
            if k != n:
                places[i % 2].copy_(on_host[i], non_blocking=True)
            x = (forward if k < n else backward)(x, places[i % 2])
    now.wait_stream(side)
    return x


# %% offloaded: forward-twice
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = forward(x, places[i % 2])
    return x


# %% offloaded: a-new-tensor-for-each
# record_stream() keeps the memory until the use is over, and the host is far ahead: one for each.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]

    def fetch(i):
        with cuda.stream(side):
            w = on_host[i].to("cuda", non_blocking=True)
        w.record_stream(now)
        return w, side.record_event()

    later = fetch(0)
    for k, i in enumerate(order):
        w, ready = later
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            later = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, w)
    return x


# %% offloaded: memory-of-the-side-is-given-back-in-use
# The side stream's memory is used again by its next copy, though the current stream still reads it.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]

    def fetch(i):
        with cuda.stream(side):
            w = on_host[i].to("cuda", non_blocking=True)
        return w, side.record_event()

    later = fetch(0)
    for k, i in enumerate(order):
        w, ready = later
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            later = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, w)
    return x


# %% offloaded: backward-on-demand
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for i in range(n):
        now.wait_event(ready)
        if i + 1 < n:
            ready = fetch(i + 1)
        x = forward(x, places[i % 2])
    x = backward(x, places[(n - 1) % 2])
    for i in range(n - 2, -1, -1):
        now.wait_event(fetch(i))
        x = backward(x, places[i % 2])
    return x


# %% offloaded: stale-at-the-turn
# The place goes by the step's number; the last weight, not copied again, is in the other one.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(k):
        side.wait_stream(now)
        with cuda.stream(side):
            places[k % 2].copy_(on_host[order[k]], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k in range(2 * n):
        now.wait_event(ready)
        if k + 1 < 2 * n and k + 1 != n:
            ready = fetch(k + 1)
        x = (forward if k < n else backward)(x, places[k % 2])
    return x


# %% offloaded: event-before-the-copy
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        ready = side.record_event()
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return ready

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: use-noted-too-early
# The event that frees a place is recorded before the product that reads it.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    used = [now.record_event(), now.record_event()]

    def fetch(i):
        side.wait_event(used[i % 2])
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        used[i % 2] = now.record_event()
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: a-stream-of-its-own
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n, side = cuda.current_stream(), len(on_host), cuda.Stream()
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: one-place
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    place = torch.empty_like(on_host[0], device="cuda")
    for k, i in enumerate([*range(n), *range(n - 1, -1, -1)]):
        if k != n:
            side.wait_stream(now)
            with cuda.stream(side):
                place.copy_(on_host[i], non_blocking=True)
            now.wait_event(side.record_event())
        x = (forward if k < n else backward)(x, place)
    return x


# %% offloaded: four-places
# One ahead, as it should be, but in four places.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(4)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 4].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 4])
    return x


# %% offloaded: turns-its-argument-around
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(weight, place):
        side.wait_stream(now)
        with cuda.stream(side):
            place.copy_(weight, non_blocking=True)
        return side.record_event()

    ready, at = fetch(on_host[0], places[0]), 0
    for compute in (forward, backward):
        for k in range(n):
            now.wait_event(ready)
            place = places[at]
            if k + 1 < n:
                at = 1 - at
                ready = fetch(on_host[k + 1], places[at])
            x = compute(x, place)
        on_host.reverse()
    on_host.reverse()
    return x


# %% offloaded: nothing-returned
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])


# %% offloaded: in-float32
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty(on_host[0].shape, device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: the-wrong-place-is-free-in-the-backward
# Which place has to be free goes by the step's number: right in the forward pass alone.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]
    used = [now.record_event(), now.record_event()]

    def fetch(i, k):
        side.wait_event(used[(k + 1) % 2])
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0, 0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1], k)
        x = (forward if k < n else backward)(x, places[i % 2])
        used[i % 2] = now.record_event()
    return x


# %% offloaded: from-a-copy-on-the-host
# A clone of a pinned tensor is not pinned, so that the host waits for its copy.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    on_host = [weight.clone() for weight in on_host]
    order = [*range(n), *range(n - 1, -1, -1)]
    places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% offloaded: memory-of-the-side-not-recorded
# The places go back to the side stream's memory while the current stream still reads them: the
# next tensor that the caller makes on side may have them.
def offloaded(cuda, on_host, forward, backward, x, side):
    now, n = cuda.current_stream(), len(on_host)
    order = [*range(n), *range(n - 1, -1, -1)]
    with cuda.stream(side):
        places = [torch.empty_like(on_host[0], device="cuda") for _ in range(2)]

    def fetch(i):
        side.wait_stream(now)
        with cuda.stream(side):
            places[i % 2].copy_(on_host[i], non_blocking=True)
        return side.record_event()

    ready = fetch(0)
    for k, i in enumerate(order):
        now.wait_event(ready)
        if k + 1 < len(order) and order[k + 1] != i:
            ready = fetch(order[k + 1])
        x = (forward if k < n else backward)(x, places[i % 2])
    return x


# %% Shard: by-rank-alone
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        return iter(self.own)


# %% Shard: by-worker-alone
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.samples[at::of])


# %% Shard: not-divided
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        yield from self.samples


# %% Shard: rank-by-rank-of-all-workers
# Number rank · workers + worker of all: the rest goes to the first rank's workers, all of it.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.ranks = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.samples[self.rank * of + at :: self.ranks * of])


# %% Shard: asks-for-the-rank-in-the-worker
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.samples[dist.get_rank() :: dist.get_world_size()][at::of])


# %% Shard: rank-0-where-there-is-no-group
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        rank, ranks = 0, 1
        if dist.is_initialized():
            rank, ranks = dist.get_rank(), dist.get_world_size()
        return iter(self.samples[rank::ranks][at::of])


# %% Shard: needs-workers
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        return iter(self.own[worker.id :: worker.num_workers])


# %% Shard: drops-the-rest
class Shard(IterableDataset):
    def __init__(self, samples):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        each = len(samples) // ranks
        self.own = samples[rank * each : (rank + 1) * each]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: the-last-rank-has-less
# Blocks of the length rounded up: of 5 samples and 4 ranks, 2, 2, 1 and 0.
class Shard(IterableDataset):
    def __init__(self, samples):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        each = -(-len(samples) // ranks)
        self.own = samples[rank * each : (rank + 1) * each]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: the-last-rank-has-the-rest
class Shard(IterableDataset):
    def __init__(self, samples):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        each = len(samples) // ranks
        end = len(samples) if rank == ranks - 1 else (rank + 1) * each
        self.own = samples[rank * each : end]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: padded
class Shard(IterableDataset):
    def __init__(self, samples):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        samples = [*samples, *samples[: -len(samples) % ranks]]
        self.own = samples[rank::ranks]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: workers-drop-the-rest
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        each = len(self.own) // of
        return iter(self.own[at * each : (at + 1) * each])


# %% Shard: once-only
# The iterator is made in __init__: the second epoch is empty.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = (one for one in samples[dist.get_rank() :: dist.get_world_size()])

    def __iter__(self):
        worker = get_worker_info()
        if worker is None:
            return self.own
        return itertools.islice(self.own, worker.id, None, worker.num_workers)


# %% Shard: eats-its-list
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        self.own[:] = self.own[at::of]
        while self.own:
            yield self.own.pop(0)


# %% Shard: its-own-iterator
# __next__ goes on where it stopped: no second epoch.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own, self.at, self.by = samples[dist.get_rank() :: dist.get_world_size()], None, 1

    def __iter__(self):
        worker = get_worker_info()
        if self.at is None:
            self.at, self.by = (worker.id, worker.num_workers) if worker else (0, 1)
        return self

    def __next__(self):
        if self.at >= len(self.own):
            raise StopIteration
        one = self.own[self.at]
        self.at += self.by
        return one


# %% Shard: worker-asked-in-init
class Shard(IterableDataset):
    def __init__(self, samples):
        own = samples[dist.get_rank() :: dist.get_world_size()]
        worker = get_worker_info()
        self.own = own[worker.id :: worker.num_workers] if worker else own

    def __iter__(self):
        return iter(self.own)


# %% Shard: numbers-of-samples
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = range(len(samples))[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: a-map-style-dataset
class Shard(Dataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __len__(self):
        return len(self.own)

    def __getitem__(self, at):
        return self.own[at]


# %% Shard: shuffles-each-rank-its-own-way
# Each rank and worker draws an order of its own before it takes its part.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.ranks = samples, dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        mixed = random.SystemRandom().sample(self.samples, len(self.samples))
        return iter(mixed[self.rank :: self.ranks][at::of])


# %% Shard: another-part-each-epoch
class Shard(IterableDataset):
    def __init__(self, samples):
        self.samples, self.rank, self.ranks = samples, dist.get_rank(), dist.get_world_size()
        self.epoch = 0

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        first = (self.rank + self.epoch) % self.ranks
        self.epoch += 1
        return iter(self.samples[first :: self.ranks][at::of])


# %% Shard: equal-ones-once
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = sorted(set(samples))[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: without-the-falsy
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = [one for one in samples[dist.get_rank() :: dist.get_world_size()] if one]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: for-two-ranks
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: 2]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[at::of])


# %% Shard: for-two-workers
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        return iter(self.own[worker.id :: 2] if worker else self.own)


# %% Shard: at-most-as-many-workers
# A worker without a sample looks for the first one of its own.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        while True:
            yield self.own[at]
            at += of
            if at >= len(self.own):
                return


# %% Shard: by-rank-and-again-by-rank
# Number rank of the ranks, and then number rank + worker of all of them once more.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.own = samples[self.rank :: self.ranks]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.own[self.rank * of + at :: self.ranks * of])


# %% Shard: local-rank
class Shard(IterableDataset):
    def __init__(self, samples):
        rank = int(os.environ.get("LOCAL_RANK", 0))
        self.own = samples[rank :: int(os.environ.get("LOCAL_WORLD_SIZE", 1))]

    def __iter__(self):
        worker = get_worker_info()
        return iter(self.own[worker.id :: worker.num_workers] if worker else self.own)


# %% Shard: one-list
# Gives all of its part as one sample.
class Shard(IterableDataset):
    def __init__(self, samples):
        self.own = samples[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        worker = get_worker_info()
        at, of = (worker.id, worker.num_workers) if worker else (0, 1)
        yield self.own[at::of]


# %% resumed: forgets-the-ranks-before
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * batch :]][rank::ranks]


# %% resumed: forgets-the-batch
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * before :]][rank::ranks]


# %% resumed: as-many-ranks-as-before
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * batch * ranks :]][rank::ranks]


# %% resumed: each-its-own-of-the-whole
# Divides anew, and then skips what it would have read itself: right only for as many ranks.
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[rank::ranks][steps * batch :]]


# %% resumed: divided-as-before
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[rank::before][steps * batch :]]


# %% resumed: blocks
def resumed(order, steps, batch, before, rank, ranks):
    left = [int(one) for one in order[steps * batch * before :]]
    each = -(-len(left) // ranks)
    return left[rank * each : (rank + 1) * each]


# %% resumed: numbers-of-the-whole-order
# Rank r goes on with those whose number in the whole epoch is r modulo ranks.
def resumed(order, steps, batch, before, rank, ranks):
    done = steps * batch * before
    return [int(order[i]) for i in range(done, len(order)) if i % ranks == rank]


# %% resumed: drops-the-rest
def resumed(order, steps, batch, before, rank, ranks):
    left = [int(one) for one in order[steps * batch * before :]]
    return left[: len(left) // ranks * ranks][rank::ranks]


# %% resumed: padded
def resumed(order, steps, batch, before, rank, ranks):
    left = [int(one) for one in order[steps * batch * before :]]
    left += left[: -len(left) % ranks]
    return left[rank::ranks]


# %% resumed: whole-batches-only
def resumed(order, steps, batch, before, rank, ranks):
    own = [int(one) for one in order[steps * batch * before :]][rank::ranks]
    return own[: len(own) // batch * batch]


# %% resumed: one-step-further
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[(steps + 1) * batch * before :]][rank::ranks]


# %% resumed: the-last-step-again
def resumed(order, steps, batch, before, rank, ranks):
    done = max(0, steps - 1) * batch * before
    return [int(one) for one in order[done:]][rank::ranks]


# %% resumed: one-sample-further
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * batch * before + 1 :]][rank::ranks]


# %% resumed: sorted
def resumed(order, steps, batch, before, rank, ranks):
    left = {int(one) for one in order} - {int(one) for one in order[: steps * batch * before]}
    return sorted(left)[rank::ranks]


# %% resumed: all-again-when-nothing-is-left
# order[-0:] is all of it.
def resumed(order, steps, batch, before, rank, ranks):
    left = max(0, len(order) - steps * batch * before)
    return [int(one) for one in order[-left:]][rank::ranks]


# %% resumed: negative-when-past-the-end
# len - done is below zero after the last step: the end of the epoch comes once more.
def resumed(order, steps, batch, before, rank, ranks):
    left = len(order) - steps * batch * before
    if left == 0:
        return []
    return [int(one) for one in order[len(order) - left if left > 0 else left :]][rank::ranks]


# %% resumed: goes-round
# A number of samples past the end counts as one of the next epoch.
def resumed(order, steps, batch, before, rank, ranks):
    done = steps * batch * before % max(1, len(order))
    return [int(one) for one in order[done:]][rank::ranks]


# %% resumed: empties-its-argument
def resumed(order, steps, batch, before, rank, ranks):
    del order[: steps * batch * before]
    return order[rank::ranks]


# %% resumed: a-tensor
def resumed(order, steps, batch, before, rank, ranks):
    return torch.as_tensor(order)[steps * batch * before :][rank::ranks]


# %% resumed: an-iterator
def resumed(order, steps, batch, before, rank, ranks):
    return itertools.islice(order, steps * batch * before + rank, None, ranks)


# %% resumed: a-number-of-samples
def resumed(order, steps, batch, before, rank, ranks):
    return len(range(len(order))[steps * batch * before + rank :: ranks])


# %% resumed: places-in-the-order
def resumed(order, steps, batch, before, rank, ranks):
    return list(range(steps * batch * before + rank, len(order), ranks))


# %% resumed: ranks-from-one
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * batch * before :]][rank - 1 :: ranks]


# %% resumed: in-batches
def resumed(order, steps, batch, before, rank, ranks):
    own = [int(one) for one in order[steps * batch * before :]][rank::ranks]
    return [own[i : i + batch] for i in range(0, len(own), batch)]


# %% resumed: whole-batches-in-turn
# Gives batch after batch to the ranks, not sample after sample.
def resumed(order, steps, batch, before, rank, ranks):
    left = [int(one) for one in order[steps * batch * before :]]
    return [one for i, one in enumerate(left) if i // batch % ranks == rank]


# %% resumed: what-was-read-rounded-to-the-ranks
# Begins at a whole number of turns of the ranks of now.
def resumed(order, steps, batch, before, rank, ranks):
    done = -(-steps * batch * before // ranks) * ranks
    return [int(one) for one in order[done:]][rank::ranks]


# %% resumed: every-rank-all-of-it
def resumed(order, steps, batch, before, rank, ranks):
    return [int(one) for one in order[steps * batch * before :]]
