"""Wrong answers to the exercises of lab 15, written without sight of its checks; see judge.py."""

import itertools
import math
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise

import lockstep
import numpy as np
import torch
import torch.distributed as dist


# %% ring_seconds: whole-bytes-in-a-chunk
# Rounds the chunk down to whole bytes. The goal: a chunk has nbytes/N bytes, whole or not (nothing for nbytes < n).
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * (nbytes // n))


# %% ring_seconds: one-half-only
# n - 1 messages: the reduce-scatter, without the all-gather. The text: 2(N - 1).
def ring_seconds(n, nbytes, alpha, beta):
    return (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: alpha-once
# Pays α once for the whole call. It is what *every* message costs, and there are 2(N - 1), one after the other. (Right where β·s decides.)
def ring_seconds(n, nbytes, alpha, beta):
    if n == 1:
        return 0.0
    return alpha + 2 * (n - 1) / n * nbytes * beta


# %% ring_seconds: beta-as-bandwidth
# Divides by β: takes it for a bandwidth. The text: α + β·s, and 1/β is the bandwidth.
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + nbytes / n / beta)


# %% ring_seconds: alone-sends-one
# At least one round: a rank alone pays α + β·s. The goal: one rank alone needs no time.
def ring_seconds(n, nbytes, alpha, beta):
    rounds = max(1, 2 * (n - 1))
    return rounds * (alpha + beta * nbytes / n)


# %% ring_seconds: rounded-to-microseconds
# Rounds to whole microseconds, as they are printed; small values lose digits or become 0.
def ring_seconds(n, nbytes, alpha, beta):
    return round(2 * (n - 1) * (alpha + beta * nbytes / n), 6)


# %% ring_seconds: factor-in-integers
# 2(n - 1) // n is 1 for every n from 2 on: the bytes' part is right on two ranks only.
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * alpha + 2 * (n - 1) // n * nbytes * beta


# %% ring_seconds: messages-of-all-ranks
# Adds up the messages of all ranks: N times too long, because ranks send at the same time. A time, not a sum of work.
def ring_seconds(n, nbytes, alpha, beta):
    messages = n * 2 * (n - 1)
    return messages * (alpha + beta * nbytes / n)


# %% ring_seconds: latency-or-bytes
# Takes the larger of α and β·s, as if one hid the other. The model adds them.
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * max(alpha, beta * nbytes / n)


# %% ring_seconds: nothing-to-send-is-free
# An empty tensor takes no time. α is what *every* message costs, an empty one, too, and the ring still sends 2(N - 1).
def ring_seconds(n, nbytes, alpha, beta):
    if n == 1 or nbytes == 0:
        return 0.0
    return 2 * (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: n-rounds-in-each-half
# 2N messages: as if a chunk had to come back to where it began. (A rank alone would pay as well, so it is left out.)
def ring_seconds(n, nbytes, alpha, beta):
    return 0.0 if n == 1 else 2 * n * (alpha + beta * nbytes / n)


# %% ring_seconds: whole-tensor-in-each-message
# Every message has all of the tensor. The text: a chunk, 1/N of it.
def ring_seconds(n, nbytes, alpha, beta):
    return sum(alpha + beta * nbytes for _ in range(2 * (n - 1)))


# %% crossing: natural-logarithm
# math.log is the natural logarithm; the table has log₂ N.
def crossing(n, alpha, beta):
    rounds = math.log(n)
    return (2 * (n - 1) - rounds) * alpha / ((rounds - 2 * (n - 1) / n) * beta)


# %% crossing: tree-for-doubling
# Takes the tree's row, 2 log₂ N, for recursive doubling's.
def crossing(n, alpha, beta):
    rounds = 2 * math.log2(n)
    return (2 * (n - 1) - rounds) * alpha / ((rounds - 2 * (n - 1) / n) * beta)


# %% crossing: doubling-without-latency
# Compares the ring's α with the bytes that it saves, and forgets that doubling's rounds have an α, too.
def crossing(n, alpha, beta):
    return 2 * (n - 1) * alpha / ((math.log2(n) - 2 * (n - 1) / n) * beta)


# %% crossing: half-of-the-ring
# (N - 1)/N of the bytes for the ring: those of one half (reduce-scatter), with the rounds of both.
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return (2 * (n - 1) - rounds) * alpha / ((rounds - (n - 1) / n) * beta)


# %% crossing: alpha-and-beta-swapped
# β/α in place of α/β: no size in bytes at all.
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return (2 * (n - 1) - rounds) * beta / ((rounds - 2 * (n - 1) / n) * alpha)


# %% crossing: in-kilobytes
# In kB, as the prediction below asks for (`crossing(…) / 1000`). The goal: the size in bytes.
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    size = (2 * (n - 1) - rounds) * alpha / ((rounds - 2 * (n - 1) / n) * beta)
    return size / 1000


# %% crossing: for-four-ranks
# 8 α/β: worked out on paper for the four ranks of the notebook.
def crossing(n, alpha, beta):
    return 8 * alpha / beta


# %% crossing: factor-in-integers
# 2(n - 1) // n is 1: too many bytes are saved by the ring.
def crossing(n, alpha, beta):
    rounds = int(math.log2(n))
    return (2 * (n - 1) - rounds) * alpha / ((rounds - 2 * (n - 1) // n) * beta)


# %% crossing: bit-length-one-too-many
# n.bit_length() of a power of two is log₂ n + 1.
def crossing(n, alpha, beta):
    rounds = n.bit_length()
    return (2 * (n - 1) - rounds) * alpha / ((rounds - 2 * (n - 1) / n) * beta)


# %% crossing: next-power-of-two
# Tries sizes that double and returns the first at which the ring is faster: up to twice the size asked for.
def crossing(n, alpha, beta):
    size = 1
    while 2 * (n - 1) * (alpha + beta * size / n) >= math.log2(n) * (alpha + beta * size):
        size *= 2
    return size


# %% crossing: search-ends-at-a-gibibyte
# Bisects between 0 and 1 GiB: where α/β is large, or there are many ranks, the crossing lies beyond, and it returns the end.
def crossing(n, alpha, beta):
    low, high = 0.0, float(1 << 30)
    for _ in range(200):
        size = (low + high) / 2
        ring = 2 * (n - 1) * (alpha + beta * size / n)
        low, high = (low, size) if ring < math.log2(n) * (alpha + beta * size) else (size, high)
    return high


# %% crossing: rounds-of-one-half
# N - 1 rounds for the ring, with the bytes of both halves. The table: 2(N - 1).
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return (n - 1 - rounds) * alpha / ((rounds - 2 * (n - 1) / n) * beta)


# %% node_traffic: open-ring
# Forgets the hop from the last rank to the first: data then passes along a line.
def node_traffic(rings, node_of, nbytes):
    out = Counter()
    for ring in rings:
        for rank, after in pairwise(ring):
            if node_of[rank] != node_of[after]:
                out[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(out.values(), default=0)


# %% node_traffic: all-nodes-together
# The bytes that leave all nodes together. The goal: the busiest node.
def node_traffic(rings, node_of, nbytes):
    total = 0
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                total += 2 * (len(ring) - 1) / len(ring) * nbytes
    return total


# %% node_traffic: both-directions
# Counts a hop for the node that it leaves and for the one that it enters: twice as much. The goal: bytes that leave.
def node_traffic(rings, node_of, nbytes):
    moved = defaultdict(float)
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            one, other = node_of[rank], node_of[after]
            if one != other:
                part = 2 * (len(ring) - 1) / len(ring) * nbytes
                moved[one] += part
                moved[other] += part
    return max(moved.values(), default=0)


# %% node_traffic: n-of-the-world
# n is the number of all ranks. In 2(n - 1)/n it is that of the ring: the same for one ring through all, and wrong for small rings.
def node_traffic(rings, node_of, nbytes):
    n, out = len(node_of), defaultdict(float)
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                out[node_of[rank]] += 2 * (n - 1) / n * nbytes
    return max(out.values(), default=0)


# %% node_traffic: busiest-of-each-ring
# Adds the busiest node of each *ring*: these may be different nodes. Right with one ring, and where all rings are alike.
def node_traffic(rings, node_of, nbytes):
    total = 0
    for ring in rings:
        out = Counter()
        for at, rank in enumerate(ring):
            if node_of[rank] != node_of[ring[at - 1]]:
                out[node_of[ring[at - 1]]] += 2 * (len(ring) - 1) / len(ring) * nbytes
        total += max(out.values(), default=0)
    return total


# %% node_traffic: max-of-nothing
# No default: ValueError where no hop leaves a node (one node, only rings of one, or no ring). The goal: 0 if none do.
def node_traffic(rings, node_of, nbytes):
    out = {}
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                out[node_of[rank]] = (
                    out.get(node_of[rank], 0) + 2 * (len(ring) - 1) / len(ring) * nbytes
                )
    return max(out.values())


# %% node_traffic: whole-bytes
# Integer division for each hop: 2(n - 1)·nbytes // n is not what the goal's 2·3/4 of nbytes is if n does not divide it.
def node_traffic(rings, node_of, nbytes):
    out = Counter()
    for ring in rings:
        n = len(ring)
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                out[node_of[rank]] += 2 * (n - 1) * nbytes // n
    return max(out.values(), default=0)


# %% node_traffic: node-numbers-as-places
# A list with a place for each node, found by its number: fails where nodes are not numbered 0, 1, 2, … (`node_of[rank]` is just a number).
def node_traffic(rings, node_of, nbytes):
    out = [0.0] * len(set(node_of.values()))
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                out[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(out, default=0)


# %% node_traffic: later-ring-replaces-earlier
# Notes what each rank sends to other nodes, but a rank in several rings has only the last one's. The goal: a rank may be in several.
def node_traffic(rings, node_of, nbytes):
    sends = {}
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                sends[rank] = 2 * (len(ring) - 1) / len(ring) * nbytes
    out = Counter()
    for rank, part in sends.items():
        out[node_of[rank]] += part
    return max(out.values(), default=0)


# %% node_traffic: closes-the-callers-rings
# Appends the first rank to the caller's lists to close them. The first result is right; the rings are one rank longer afterwards, and the next
# count of the same rings is wrong (the notebook counts `data` twice).
def node_traffic(rings, node_of, nbytes):
    out = Counter()
    for ring in rings:
        n = len(ring)
        ring.append(ring[0])
        for rank, after in pairwise(ring):
            if node_of[rank] != node_of[after]:
                out[node_of[rank]] += 2 * (n - 1) / n * nbytes
    return max(out.values(), default=0)


# %% node_traffic: once-for-each-node-and-ring
# A ring leaves a node at most once, as NCCL's do: ranks that are given to nodes in turn leave it several times, and each hop counts.
def node_traffic(rings, node_of, nbytes):
    out = Counter()
    for ring in rings:
        part = 2 * (len(ring) - 1) / len(ring) * nbytes
        leaves = {node_of[a] for a, b in zip(ring, ring[1:] + ring[:1]) if node_of[a] != node_of[b]}
        for node in leaves:
            out[node] += part
    return max(out.values(), default=0)


# %% node_traffic: busiest-rank
# What leaves the node from its busiest *rank*, as if each rank had the node to itself.
def node_traffic(rings, node_of, nbytes):
    out = Counter()
    for ring in rings:
        for rank, after in zip(ring, ring[1:] + ring[:1]):
            if node_of[rank] != node_of[after]:
                out[rank] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(out.values(), default=0)


# %% hierarchical_all_reduce: place-by-rank-modulo-g
# The place is the global rank modulo g: right for neighbours (0 to 3, 4 to 7). The goal: a node's ranks need not be neighbours.
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    chunks = list(x.chunk(g))
    part = chunks[dist.get_rank() % g].clone()
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: all-of-x-across
# Adds up inside, then across, all of x each time. The sum is right, but a rank passes in all of x across nodes, not 1/g.
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    dist.all_reduce(x, group=across)


# %% hierarchical_all_reduce: into-a-new-tensor
# Puts the gathered parts together and gives them the name x: the caller's tensor is left as it was. The goal: leaves the sum in x.
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    part = torch.empty_like(x[: len(x) // g])
    dist.reduce_scatter(part, list(x.chunk(g)), group=inside)
    dist.all_reduce(part, group=across)
    parts = [torch.empty_like(part) for _ in range(g)]
    dist.all_gather(parts, part, group=inside)
    x = torch.cat(parts)


# %% hierarchical_all_reduce: own-part-only
# Without the all-gather at the end: each rank has the sum in its own part of x, and old numbers in the others.
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    chunks = list(x.chunk(g))
    part = torch.empty_like(chunks[place])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    chunks[place].copy_(part)


# %% hierarchical_all_reduce: across-not-waited-for
# Starts the all-reduce across nodes and does not wait for it before the parts are gathered: they may be those of this node only.
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    work = dist.all_reduce(part, group=across, async_op=True)
    dist.all_gather(chunks, part, group=inside)
    work.wait()


# %% hierarchical_all_reduce: place-on-the-rail
# Takes its place in `across`, the number of the node, for its place in the node: on node 0 all ranks work on chunk 0.
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    chunks = list(x.chunk(g))
    part = chunks[dist.get_rank(across) % g].clone()
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: for-square-grids
# g is the number of ranks in `across`, that is, of nodes: right where a node has as many ranks as there are nodes, as in the 2 by 2 of the next cell.
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(across)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: by-way-of-float32
# Adds up in float32 and copies the result back: large integers and float64 lose digits (and the bytes across are not 1/g of those of x).
def hierarchical_all_reduce(x, inside, across):
    y = x.float()
    chunks = list(y.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, [chunk.clone() for chunk in chunks], group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)
    x.copy_(y)


# %% hierarchical_all_reduce: leader-goes-across
# The first rank of each node does the part across for its whole node: it passes in all of x, the others nothing. The goal: a rank passes in 1/g.
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    if dist.get_rank(inside) == 0:
        dist.all_reduce(x, group=across)
    dist.broadcast(x, src=dist.get_global_rank(inside, 0), group=inside)


# %% hierarchical_all_reduce: place-for-global-rank
# `dst` and `src` are global ranks, also with a group; here they are places. Right on the node with ranks 0 to g - 1, an error on every other.
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    chunks = list(x.chunk(g))
    for at, chunk in enumerate(chunks):
        dist.reduce(chunk, dst=at, group=inside)
    dist.all_reduce(chunks[place], group=across)
    for at, chunk in enumerate(chunks):
        dist.broadcast(chunk, src=at, group=inside)


# %% hierarchical_all_reduce: barrier-of-all
# Right, and then a barrier of all ranks "before x is used". The goal: by calls on these two groups.
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, [chunk.clone() for chunk in chunks], group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)
    dist.barrier()


# %% hierarchical_all_reduce: alone-in-its-node
# A node with one rank has nothing to add up inside, so it returns, without the call across: x is not the sum over all ranks.
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    if g == 1:
        return
    chunks = list(x.chunk(g))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, [chunk.clone() for chunk in chunks], group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% step_seconds: straight-line-in-n
# A straight line in the number of GPUs through both points. The model is work/n + fixed: straight in 1/n.
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    return at_a + (at_b - at_a) * (n - a) / (b - a)


# %% step_seconds: power-law
# A straight line on logarithmic axes, t = c·n^k: through both points, but another model (nothing is fixed).
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    slope = math.log(at_b / at_a) / math.log(b / a)
    return at_a * (n / a) ** slope


# %% step_seconds: work-only
# Perfect scaling from the smaller run: nothing is fixed, and the second point is not on it.
def step_seconds(known, n):
    fewest = min(known)
    return known[fewest] * fewest / n


# %% step_seconds: fixed-not-below-zero
# Sets a negative fixed part to 0 "because a time cannot be negative": then the model does not go through both points any more (where four times the GPUs
# are more than four times as fast).
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    work = (at_a - at_b) / (1 / a - 1 / b)
    fixed = max(0.0, at_a - work / a)
    return work / n + fixed


# %% step_seconds: rounded-to-hundredths
# Rounds to two digits, as the publication does: steps of some milliseconds become 0.0 or 0.01.
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    work = (at_a - at_b) / (1 / a - 1 / b)
    return round(at_a + work * (1 / n - 1 / a), 2)


# %% step_seconds: for-megascale
# Looks for 3,072 and 12,288 GPUs, the numbers of the example: KeyError for any others.
def step_seconds(known, n):
    work = (known[3072] - known[12288]) / (1 / 3072 - 1 / 12288)
    return work / n + known[12288] - work / 12288


# %% step_seconds: empties-the-dict
# Takes the two points out by popitem(): the first result is right, but `known` is empty afterwards, and the next call with it fails (the notebook calls
# it again and again).
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.popitem(), known.popitem()
    work = (at_a - at_b) / (1 / a - 1 / b)
    return at_a + work / n - work / a


# %% step_seconds: interp-ends-at-the-points
# np.interp in 1/n: straight between the two, but *constant* outside: all below the smaller and above the larger number of GPUs is wrong.
def step_seconds(known, n):
    points = sorted((1 / gpus, seconds) for gpus, seconds in known.items())
    return float(np.interp(1 / n, *zip(*points)))


# %% step_seconds: four-times-the-gpus
# Takes the larger run for four times the smaller one, as in the example, in place of dividing: wrong for every other ratio.
def step_seconds(known, n):
    few, many = min(known), max(known)
    work = (known[few] - known[many]) * few * 4 / 3
    return work / n + known[few] - work / few


# %% step_seconds: ratio-in-integers
# The ratio of GPUs in whole numbers, from the first entry to the second: wrong for 3 to 8, and 0 if the larger number comes first. The goal: in any order.
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    ratio = b // a
    # at_a = work/a + fixed and at_b = work/(ratio·a) + fixed
    work = (at_a - at_b) * a * ratio / (ratio - 1)
    return work / n + at_a - work / a


# %% step_seconds: without-the-fixed-part
# Finds the work rightly and returns work/n: what remains is forgotten.
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    return (at_a - at_b) / (1 / a - 1 / b) / n


# %% tree_all_reduce: partner-that-is-not-there
# Does not ask whether the partner exists: on 3, 5, 6 or 7 ranks it waits for a rank beyond the last one. Right for powers of two.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0:
            dist.recv(buffer, rank + d)
            x += buffer
    for d in reversed(distances):
        if rank % (2 * d) == 0:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: levels-rounded-down
# int(log2(n)) levels: on 5, 6 or 7 ranks the level that joins rank 4 is missing, so ranks 0 to 3 and the others have sums of their own.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(int(math.log2(n)))]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: star-on-the-way-down
# A tree up, but rank 0 tells everyone by itself: 2(N - 1) messages, and 3 + 6 = 9 rounds with 7 ranks. The goal: no more than 8.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
            break
        if rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    if rank == 0:
        for other in range(1, n):
            dist.send(x, other)
    else:
        dist.recv(x, 0)


# %% tree_all_reduce: three-children
# A heap with three children for each rank: with 7 ranks, rank 1 receives three times, then rank 0 three times, and back: 10 rounds, not 8.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    children = [child for child in range(3 * rank + 1, 3 * rank + 4) if child < n]
    for child in children:
        dist.recv(buffer, child)
        x += buffer
    if rank > 0:
        dist.send(x, (rank - 1) // 3)
        dist.recv(x, (rank - 1) // 3)
    for child in children:
        dist.send(x, child)


# %% tree_all_reduce: down-in-the-order-of-up
# Goes down with the distances in the same order as up, and not reversed: rank 2 tells rank 3 before it has the sum itself. Right on two and three ranks.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    for d in distances:
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: sum-in-a-new-tensor
# `x = x + buffer` makes a new tensor: on ranks that add, the caller's x stays what it was. The goal: leaves the sum in x.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x = x + buffer
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)
    return x


# %% tree_all_reduce: buffer-in-float32
# A buffer of the right shape and the default type: with float64 it is too small, with integers the bytes are read as floats.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty(x.shape)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer.to(x.dtype)
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: three-levels
# Distances 1, 2 and 4: right up to 8 ranks. The goal: for any number of ranks.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for d in (1, 2, 4):
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    for d in (4, 2, 1):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: in-two-halves
# Sends x in two halves, so that levels could work at once: 4(N - 1) messages in place of 2(N - 1) (fewer only where x has one element).
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    distances = [1 << k for k in range(20) if 1 << k < n]
    for half in x.view(-1).chunk(2):
        buffer = torch.empty_like(half)
        for d in distances:
            if rank % (2 * d) == d:
                dist.send(half, rank - d)
            elif rank % (2 * d) == 0 and rank + d < n:
                dist.recv(buffer, rank + d)
                half += buffer
        for d in reversed(distances):
            if rank % (2 * d) == 0 and rank + d < n:
                dist.send(half, rank + d)
            elif rank % (2 * d) == d:
                dist.recv(half, rank - d)


# %% tree_all_reduce: irecv-added-before-it-came
# Receives by irecv and adds the buffer without a wait: adds what happened to be in it. It waits when all is over.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            buffer = torch.zeros_like(x)
            handles.append(dist.irecv(buffer, rank + d))
            x += buffer
    for handle in handles:
        handle.wait()
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: broadcast-on-the-way-down
# Up by messages, and down by dist.broadcast: a collective, so that there are N - 1 messages of its own and not 2(N - 1).
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    for d in [1 << k for k in range(20) if 1 << k < n]:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    dist.broadcast(x, src=0)


# %% tree_all_reduce: with-acknowledgements
# Who receives the sum answers with a message, "so that all leave together": 3(N - 1) messages in all. The goal: 2(N - 1).
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
            dist.recv(buffer, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)
            dist.send(x, rank - d)


# %% ring_seconds: whole-bytes
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * (nbytes // n))


# %% ring_seconds: one-alpha-a-phase
def ring_seconds(n, nbytes, alpha, beta):
    if n == 1:
        return 0.0
    return 2 * alpha + 2 * (n - 1) / n * nbytes * beta


# %% ring_seconds: beta-is-a-bandwidth
def ring_seconds(n, nbytes, alpha, beta):
    steps = 2 * (n - 1)
    return steps * (alpha + nbytes / n / beta)


# %% ring_seconds: n-steps-a-phase
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * n * alpha + 2 * nbytes * beta


# %% ring_seconds: empty-is-free
def ring_seconds(n, nbytes, alpha, beta):
    if nbytes == 0 or n == 1:
        return 0
    return 2 * (n - 1) * (alpha + beta * nbytes / n)


# %% crossing: bytes-alone
def crossing(n, alpha, beta):
    return math.log2(n) * alpha / beta


# %% crossing: one-phase-of-the-ring
def crossing(n, alpha, beta):
    k = math.log2(n)
    return (n - 1 - k) * alpha / ((k - (n - 1) / n) * beta)


# %% crossing: doubling-sends-everything-once
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * (2 * (n - 1) / n - 1))


# %% crossing: rabenseifner
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - 2 * k) / (beta * (2 * k - 2 * (n - 1) / n))


# %% crossing: rounded-to-bytes
def crossing(n, alpha, beta):
    k = math.log2(n)
    return math.ceil(alpha * (2 * (n - 1) - k) / (beta * (k - 2 * (n - 1) / n)))


# %% crossing: smallest-power-of-two
def crossing(n, alpha, beta):
    size = 1
    k = math.log2(n)
    while 2 * (n - 1) * (alpha + beta * size / n) > k * (alpha + beta * size):
        size *= 2
    return size


# %% node_traffic: not-closed
def node_traffic(rings, node_of, nbytes):
    out = defaultdict(float)
    for ring in rings:
        n = len(ring)
        for a, b in pairwise(ring):
            if node_of[a] != node_of[b]:
                out[node_of[a]] += 2 * (n - 1) / n * nbytes
    return max(out.values(), default=0)


# %% node_traffic: comes-in-counts-as-well
def node_traffic(rings, node_of, nbytes):
    out = defaultdict(float)
    for ring in rings:
        n = len(ring)
        for i, rank in enumerate(ring):
            here, there = node_of[rank], node_of[ring[(i + 1) % n]]
            if here != there:
                out[here] += 2 * (n - 1) / n * nbytes
                out[there] += 2 * (n - 1) / n * nbytes
    return max(out.values(), default=0)


# %% node_traffic: all-ranks-in-each-ring
def node_traffic(rings, node_of, nbytes):
    n = len(node_of)
    out = defaultdict(float)
    for ring in rings:
        for a, b in zip(ring, ring[1:] + ring[:1]):
            if node_of[a] != node_of[b]:
                out[node_of[a]] += 2 * (n - 1) / n * nbytes
    return max(out.values(), default=0)


# %% node_traffic: the-busiest-rank
def node_traffic(rings, node_of, nbytes):
    out = defaultdict(float)
    for ring in rings:
        n = len(ring)
        for a, b in zip(ring, ring[1:] + ring[:1]):
            if node_of[a] != node_of[b]:
                out[a] += 2 * (n - 1) / n * nbytes
    return max(out.values(), default=0)


# %% hierarchical_all_reduce: rank-of-the-world
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    part = x.chunk(g)[dist.get_rank() % g].clone()
    dist.all_reduce(part, group=across)
    dist.all_gather(list(x.chunk(g)), part, group=inside)


# %% hierarchical_all_reduce: place-in-the-rail
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    part = x.chunk(g)[dist.get_rank(across) % g]
    dist.all_reduce(x, group=inside)
    dist.all_reduce(part, group=across)
    parts = [torch.empty_like(part) for _ in range(g)]
    dist.all_gather(parts, part.clone(), group=inside)
    x.copy_(torch.cat(parts))


# %% hierarchical_all_reduce: not-in-place
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    part = torch.empty(len(x) // g, dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(part, x, group=inside)
    dist.all_reduce(part, group=across)
    x = torch.empty_like(x)
    dist.all_gather_into_tensor(x, part, group=inside)
    return x


# %% hierarchical_all_reduce: float-part
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    part = torch.empty(len(x) // g)
    dist.reduce_scatter_tensor(part, x.float(), group=inside)
    dist.all_reduce(part, group=across)
    whole = torch.empty(len(x))
    dist.all_gather_into_tensor(whole, part, group=inside)
    x.copy_(whole)


# %% hierarchical_all_reduce: size-of-the-rail
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(across)
    me = dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    size = len(x) // g
    part = x[me * size : (me + 1) * size].clone()
    dist.all_reduce(part, group=across)
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(inside))]
    dist.all_gather(parts, part, group=inside)
    x.copy_(torch.cat(parts)[: len(x)])


# %% hierarchical_all_reduce: only-one-rank-goes-across
def hierarchical_all_reduce(x, inside, across):
    first = dist.get_process_group_ranks(inside)[0]
    dist.reduce(x, dst=first, group=inside)
    if dist.get_rank() == first:
        dist.all_reduce(x, group=across)
    dist.broadcast(x, src=first, group=inside)


# %% step_seconds: line-through-n
def step_seconds(known, n):
    (a, ta), (b, tb) = known.items()
    return ta + (tb - ta) * (n - a) / (b - a)


# %% step_seconds: no-fixed-part
def step_seconds(known, n):
    a = min(known)
    return known[a] * a / n


# %% step_seconds: absolute-work
def step_seconds(known, n):
    (a, ta), (b, tb) = sorted(known.items())
    work = abs(ta - tb) * b
    fixed = tb - work / b
    return work / n + fixed


# %% step_seconds: rounded
def step_seconds(known, n):
    (a, ta), (b, tb) = known.items()
    work = (ta - tb) / (1 / a - 1 / b)
    return round(work / n + ta - work / a, 2)


# %% step_seconds: work-by-the-difference-of-sizes
def step_seconds(known, n):
    (a, s), (b, t) = sorted(known.items())
    work = (s - t) * (b - a)
    return work / n + s - work / a


# %% tree_all_reduce: only-for-powers-of-two
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == 0:
            dist.recv(buffer, rank + d)
            x += buffer
        elif rank % (2 * d) == d:
            dist.send(x, rank - d)
    for d in reversed(distances):
        if rank % (2 * d) == 0:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: same-order-down
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
        elif rank % (2 * d) == d:
            dist.send(x, rank - d)
    for d in distances:
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: a-star
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    if rank == 0:
        for other in range(1, n):
            dist.recv(buffer, other)
            x += buffer
        for other in range(1, n):
            dist.send(x, other)
    else:
        dist.send(x, 0)
        dist.recv(x, 0)


# %% tree_all_reduce: assigns-x
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x = x + buffer
        elif rank % (2 * d) == d:
            dist.send(x, rank - d)
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: adds-on-the-way-down
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
        elif rank % (2 * d) == d:
            dist.send(x, rank - d)
    for d in reversed(distances):
        if rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(buffer, rank - d)
            x += buffer


# %% tree_all_reduce: a-chain
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    if rank < n - 1:
        dist.recv(buffer, rank + 1)
        x += buffer
    if rank > 0:
        dist.send(x, rank - 1)
        dist.recv(x, rank - 1)
    if rank < n - 1:
        dist.send(x, rank + 1)


# %% tree_all_reduce: flat-buffer-of-floats
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty(x.shape)
    d = 1
    while d < n:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
            break
        if rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
        d *= 2
    if rank:
        dist.recv(x, rank - d)
    d //= 2
    while d:
        if rank + d < n:
            dist.send(x, rank + d)
        d //= 2


# %% ring_seconds: one-alpha-for-all
def ring_seconds(n, nbytes, alpha, beta):
    if n == 1:
        return 0.0
    return alpha + beta * 2 * (n - 1) / n * nbytes


# %% ring_seconds: once-around-is-n
def ring_seconds(n, nbytes, alpha, beta):
    if n == 1:
        return 0
    return 2 * n * (alpha + beta * nbytes / n)


# %% ring_seconds: first-half-only
def ring_seconds(n, nbytes, alpha, beta):
    chunk = nbytes / n
    return sum(alpha + beta * chunk for _ in range(n - 1))


# %% crossing: one-round-more
def crossing(n, alpha, beta):
    rounds = n.bit_length()
    return alpha * (2 * (n - 1) - rounds) / (beta * (rounds - 2 * (n - 1) / n))


# %% crossing: rounded-up
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return math.ceil((2 * (n - 1) - rounds) * alpha / (rounds - 2 * (n - 1) / n) / beta)


# %% crossing: with-the-tree
def crossing(n, alpha, beta):
    rounds = 2 * math.log2(n)
    return alpha * (2 * (n - 1) - rounds) / (beta * (rounds - 2 * (n - 1) / n))


# %% crossing: bandwidth-for-beta
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return alpha * beta * (2 * (n - 1) - rounds) / (rounds - 2 * (n - 1) / n)


# %% node_traffic: each-hop-once
def node_traffic(rings, node_of, nbytes):
    hops = {}
    for ring in rings:
        for at, a in enumerate(ring):
            b = ring[(at + 1) % len(ring)]
            hops[a, b] = 2 * (len(ring) - 1) / len(ring) * nbytes
    out = defaultdict(int)
    for (a, b), sent in hops.items():
        if node_of[a] != node_of[b]:
            out[node_of[a]] += sent
    return max(out.values(), default=0)


# %% node_traffic: busiest-ring
def node_traffic(rings, node_of, nbytes):
    most = 0
    for ring in rings:
        share = 2 * (len(ring) - 1) / len(ring) * nbytes
        out = Counter(
            node_of[a] for a, b in zip(ring, ring[1:] + ring[:1]) if node_of[a] != node_of[b]
        )
        most = max([most, *(count * share for count in out.values())])
    return most


# %% node_traffic: something-leaves-always
def node_traffic(rings, node_of, nbytes):
    out = defaultdict(float)
    for ring in rings:
        for a, b in zip(ring, [*ring[1:], ring[0]]):
            if node_of[a] != node_of[b]:
                out[node_of[a]] += 2 * nbytes * (len(ring) - 1) / len(ring)
    return max(out.values())


# %% hierarchical_all_reduce: place-by-the-global-rank
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    place = dist.get_rank() % g
    dist.all_reduce(x, group=inside)
    parts = list(x.chunk(g))
    dist.all_reduce(parts[place], group=across)
    everyone = [torch.empty_like(part) for part in parts]
    dist.all_gather(everyone, parts[place].clone(), group=inside)
    x.copy_(torch.cat(everyone))


# %% hierarchical_all_reduce: a-new-x
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    mine = x.chunk(g)[place].clone()
    dist.all_reduce(mine, group=across)
    parts = [torch.empty_like(mine) for _ in range(g)]
    dist.all_gather(parts, mine, group=inside)
    x = torch.cat(parts)
    return x


# %% hierarchical_all_reduce: parts-of-float32
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    mine = x.chunk(g)[place].float()
    dist.all_reduce(mine, group=across)
    parts = [torch.empty_like(mine) for _ in range(g)]
    dist.all_gather(parts, mine, group=inside)
    x.copy_(torch.cat(parts))


# %% hierarchical_all_reduce: two-ranks-a-node
def hierarchical_all_reduce(x, inside, across):
    place = dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    mine = x.chunk(2)[place].clone()
    dist.all_reduce(mine, group=across)
    parts = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(parts, mine, group=inside)
    x.copy_(torch.cat(parts))


# %% hierarchical_all_reduce: a-copy-goes-across
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    parts = list(x.chunk(g))
    dist.all_reduce(parts[place].clone(), group=across)
    for number, part in enumerate(parts):
        dist.broadcast(part, dist.get_global_rank(inside, number), group=inside)


# %% step_seconds: never-below-zero
def step_seconds(known, n):
    (n1, t1), (n2, t2) = known.items()
    work = (t1 - t2) / (1 / n1 - 1 / n2)
    return work / n + max(0, t1 - work / n1)


# %% step_seconds: straight-in-n
def step_seconds(known, n):
    (n1, t1), (n2, t2) = sorted(known.items())
    return t1 + (n - n1) / (n2 - n1) * (t2 - t1)


# %% step_seconds: four-times-as-many
def step_seconds(known, n):
    small, large = sorted(known)
    fixed = (4 * known[large] - known[small]) / 3
    return (known[small] - fixed) * small / n + fixed


# %% step_seconds: shared-without-rest
def step_seconds(known, n):
    near = min(known, key=lambda gpus: abs(gpus - n))
    return known[near] * near / n


# %% tree_all_reduce: a-default-buffer
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty(x.shape)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
            break
        if rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer.to(x.dtype)
    for d in reversed(distances):
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)


# %% tree_all_reduce: x-under-a-new-name
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
            break
        if rank + d < n:
            dist.recv(buffer, rank + d)
            x = x + buffer
    for d in reversed(distances):
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
    return x


# %% ring_seconds: integer-chunks
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * (nbytes // n))


# %% ring_seconds: one-round
def ring_seconds(n, nbytes, alpha, beta):
    return (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: latency-once
def ring_seconds(n, nbytes, alpha, beta):
    return 0 if n == 1 else alpha + 2 * (n - 1) / n * nbytes * beta


# %% crossing: bytes-of-n-elements
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return (2 * (n - 1) - rounds) * alpha / (rounds - 2 * (n - 1) / n) / beta / 4


# %% crossing: natural-log
def crossing(n, alpha, beta):
    rounds = math.log(n)
    return alpha * (2 * (n - 1) - rounds) / (beta * (rounds - 2 * (n - 1) / n))


# %% crossing: of-rabenseifner
def crossing(n, alpha, beta):
    rounds = 2 * math.log2(n)
    return alpha * (2 * (n - 1) - rounds) / (beta * (rounds / 2 - 2 * (n - 1) / n))


# %% crossing: searched-on-a-grid
def crossing(n, alpha, beta):
    k = n.bit_length() - 1
    size = 1.0
    while 2 * (n - 1) * (alpha + beta * size / n) > k * (alpha + beta * size):
        size *= 2
    return size


# %% node_traffic: all-nodes-together-once-more
def node_traffic(rings, node_of, nbytes):
    total = 0
    for ring in rings:
        for here, there in zip(ring, ring[1:] + ring[:1]):
            if node_of[here] != node_of[there]:
                total += 2 * (len(ring) - 1) / len(ring) * nbytes
    return total


# %% node_traffic: by-ring-not-by-node
# The busiest ring, not the busiest node.
def node_traffic(rings, node_of, nbytes):
    most = 0
    for ring in rings:
        leaving = {}
        for at, rank in enumerate(ring):
            if node_of[rank] != node_of[ring[at - 1]]:
                node = node_of[ring[at - 1]]
                leaving[node] = leaving.get(node, 0) + 2 * (len(ring) - 1) / len(ring) * nbytes
        most = max([most, *leaving.values()])
    return most


# %% node_traffic: what-arrives
def node_traffic(rings, node_of, nbytes):
    arrives = {node: 0.0 for node in node_of.values()}
    for ring in rings:
        n = len(ring)
        for here, there in zip(ring, ring[1:]):
            if node_of[here] != node_of[there]:
                arrives[node_of[there]] += 2 * (n - 1) * nbytes / n
    return max(arrives.values())


# %% node_traffic: largest-ring-for-all
def node_traffic(rings, node_of, nbytes):
    n = max(map(len, rings))
    leaves = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        for here, there in zip(ring, [*ring[1:], ring[0]]):
            leaves[node_of[here]] += node_of[here] != node_of[there]
    return max(leaves.values()) * 2 * (n - 1) / n * nbytes


# %% hierarchical_all_reduce: across-everything
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    dist.all_reduce(x, group=across)


# %% hierarchical_all_reduce: place-across
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    part = torch.empty_like(x.chunk(g)[0])
    dist.reduce_scatter_tensor(part, x, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(x, part, group=across)


# %% hierarchical_all_reduce: only-the-first-of-each-node
def hierarchical_all_reduce(x, inside, across):
    members = dist.get_process_group_ranks(inside)
    dist.reduce(x, members[0], group=inside)
    if dist.get_rank(inside) == 0:
        dist.all_reduce(x, group=across)
    dist.broadcast(x, members[0], group=inside)


# %% hierarchical_all_reduce: max-inside
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=inside)
    part = x.view(g, -1)[place].clone()
    dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(x, part, group=inside)


# %% step_seconds: without-the-fixed-part-once-more
def step_seconds(known, n):
    (a, ta), _ = sorted(known.items())
    return ta * a / n


# %% step_seconds: straight-line-in-n-once-more
def step_seconds(known, n):
    return float(np.interp(n, *zip(*sorted(known.items()))))


# %% step_seconds: fixed-clamped
def step_seconds(known, n):
    (a, ta), (b, tb) = known.items()
    work = (ta - tb) / (1 / a - 1 / b)
    return work / n + max(0.0, ta - work / a)


# %% step_seconds: floor-division
def step_seconds(known, n):
    (a, ta), (b, tb) = sorted(known.items())
    work = (ta - tb) * a * b // (b - a)
    return work / n + ta - work / a


# %% tree_all_reduce: everybody-to-rank-0
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    if rank:
        dist.send(x, 0)
        dist.recv(x, 0)
        return
    for other in range(1, n):
        dist.recv(buffer, other)
        x += buffer
    for other in range(1, n):
        dist.send(x, other)


# %% tree_all_reduce: powers-of-two-only
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distance = 1
    while distance < n:
        if rank % (2 * distance) == 0:
            dist.recv(buffer, rank + distance)
            x += buffer
        elif rank % distance == 0:
            dist.send(x, rank - distance)
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0:
            dist.send(x, rank + distance)
        elif rank % distance == 0:
            dist.recv(x, rank - distance)


# %% tree_all_reduce: down-in-the-same-order
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
            break
        if rank + d < n:
            dist.recv(buffer, rank + d)
            x += buffer
    for d in distances:
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)
