"""Right answers to the exercises of lab 15, written without sight of its checks; see judge.py."""

import functools
import itertools
import math
import operator
from collections import Counter, defaultdict, deque
from fractions import Fraction
from functools import partial, reduce

import lockstep
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


# %% ring_seconds: formula
# The formula, with the factor n - 1 in front: 0 for one rank by itself.
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: sum-over-steps
# Plays the steps: two halves of n - 1 steps, and a message's time as a function of its own.
def ring_seconds(n, nbytes, alpha, beta):
    def message(size):
        return alpha + beta * size

    return math.fsum(message(nbytes / n) for half in ("reduce", "gather") for step in range(1, n))


# %% ring_seconds: exact-fractions
# Exact rational arithmetic; one rounding at the very end.
def ring_seconds(n, nbytes, alpha, beta):
    a, b, size = (Fraction(value) for value in (alpha, beta, nbytes))
    return float((2 * n - 2) * a + Fraction(2 * n - 2, n) * size * b)


# %% ring_seconds: by-the-library
# The course's own cost model, which the notebook uses in the charts.
def ring_seconds(n, nbytes, alpha, beta):
    line = lockstep.cost.Line(alpha=alpha, beta=beta)
    return lockstep.cost.ring_all_reduce(n, nbytes, line)


# %% ring_seconds: dot-product
# A dot product of (messages, bytes) with (α, β), in NumPy.
def ring_seconds(n, nbytes, alpha, beta):
    messages = 2 * (n - 1)
    return float(np.dot([messages, messages * (nbytes / n)], [alpha, beta]))


# %% ring_seconds: recursion-by-doubling-backs
# Two halves, each recursive in the steps that are left, as a closure; one rank alone is the end of the recursion already.
def ring_seconds(n, nbytes, alpha, beta, *, left=None):
    if left is None:
        left = 2 * n - 2
    if left == 0:
        return 0.0
    if left % 2 == 0:
        return 2 * ring_seconds(n, nbytes, alpha, beta, left=left // 2)
    return (alpha + nbytes * beta / n) + ring_seconds(n, nbytes, alpha, beta, left=left - 1)


# %% crossing: solved-on-paper
# α(2(n - 1) - log₂ n) is what the ring pays more, β(log₂ n - 2(n - 1)/n) what it saves a byte.
def crossing(n, alpha, beta):
    rounds = math.log2(n)
    return alpha * (2 * (n - 1) - rounds) / (beta * (rounds - 2 * (n - 1) / n))


# %% crossing: by-the-library
# lockstep.cost.crossover of two formulas, as the notebook uses it for trees below.
def crossing(n, alpha, beta):
    cost = lockstep.cost
    line = cost.Line(alpha, beta)
    return cost.crossover(cost.ring_all_reduce, cost.recursive_doubling_all_reduce, n, line)


# %% crossing: bisection-without-an-end
# Doubles the upper end until the ring is faster there, then bisects until the two ends are neighbouring floats.
def crossing(n, alpha, beta):
    def ring_is_faster(size):
        ring = 2 * (n - 1) * (alpha + beta * size / n)
        return ring < (n.bit_length() - 1) * (alpha + beta * size)

    low, high = 0.0, 1.0
    while not ring_is_faster(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if ring_is_faster(middle):
            high = middle
        else:
            low = middle
    return high


# %% crossing: exact-fractions
# Exact, with log₂ n counted by halving.
def crossing(n, alpha, beta):
    rounds = sum(1 for _ in itertools.takewhile(lambda at: n >> at > 1, itertools.count()))
    more = 2 * (n - 1) - rounds
    saved = rounds - Fraction(2 * (n - 1), n)
    return float(Fraction(alpha) / Fraction(beta) * more / saved)


# %% crossing: linear-equations
# Two lines t = a + b·s as a system of linear equations in s and t, each in units of α and α/β so that the numbers are tame; np.linalg.solve.
def crossing(n, alpha, beta):
    rounds, steps = int(math.log2(n)), 2 * (n - 1)
    # t - bytes·s = rounds, for both algorithms
    matrix = [[-steps / n, 1.0], [-float(rounds), 1.0]]
    size, _ = np.linalg.solve(matrix, [float(steps), float(rounds)])
    return float(size) * alpha / beta


# %% crossing: secant-through-two-sizes
# Evaluates the difference of both times for two sizes; it is straight, so the line through these two says where it is 0.
def crossing(n, alpha, beta):
    def ahead(size):
        """By how many seconds doubling is ahead."""
        ring = 2 * (n - 1) * (alpha + beta * (size / n))
        return ring - math.log2(n) * (alpha + beta * size)

    other = n * alpha / beta
    at_0, at_other = ahead(0.0), ahead(other)
    return other * at_0 / (at_0 - at_other)


# %% node_traffic: counter
# A Counter by node, and a rotated copy of each ring for the next ranks.
def node_traffic(rings, node_of, nbytes):
    leaves = Counter()
    for ring in rings:
        share = 2 * (len(ring) - 1) * nbytes / max(len(ring), 1)
        for rank, after in zip(ring, [*ring[1:], *ring[:1]], strict=True):
            if node_of[rank] != node_of[after]:
                leaves[node_of[rank]] += share
    return max(leaves.values(), default=0)


# %% node_traffic: what-comes-in
# Counts what *enters* each node: a ring enters a node as often as it leaves it, so the busiest node has the same number.
def node_traffic(rings, node_of, nbytes):
    enters = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        for at in range(len(ring)):
            here, before = node_of[ring[at]], node_of[ring[at - 1]]
            enters[here] += (here != before) * 2 * (len(ring) - 1) / len(ring) * nbytes
    return max([0, *enters.values()])


# %% node_traffic: numpy-matrix-of-nodes
# A matrix of bytes from node to node; its diagonal stays inside. np.add.at and a sum over rows.
def node_traffic(rings, node_of, nbytes):
    nodes = {node: at for at, node in enumerate(sorted(set(node_of.values())))}
    moved = np.zeros((len(nodes) + 1, len(nodes) + 1))
    for ring in rings:
        if len(ring) > 1:
            places = np.array([nodes[node_of[rank]] for rank in ring])
            np.add.at(moved, (places, np.roll(places, -1)), 2 * (1 - 1 / len(ring)) * nbytes)
    np.fill_diagonal(moved, 0)
    return float(moved.sum(axis=1).max())


# %% node_traffic: torch-einsum
# One-hot rows for the nodes, einsum over hops, in float64.
def node_traffic(rings, node_of, nbytes):
    nodes = list(dict.fromkeys(node_of.values()))
    out = torch.zeros(len(nodes) + 1, dtype=torch.float64)
    for ring in filter(lambda one: len(one) >= 2, rings):
        at = torch.tensor([nodes.index(node_of[rank]) for rank in ring])
        here = torch.nn.functional.one_hot(at, len(nodes) + 1).double()
        apart = (at != at.roll(-1)).double()
        weight = 2 * (len(ring) - 1) / len(ring) * nbytes
        out += weight * torch.einsum("hn,h->n", here, apart)
    return out.max().item()


# %% node_traffic: exact-and-functional
# Fractions, and one pass for each node over all hops of all rings; no dict of sums.
def node_traffic(rings, node_of, nbytes):
    def hops(ring):
        return zip(ring, itertools.islice(itertools.cycle(ring), 1, None))

    def leaves(node):
        return sum(
            Fraction(2 * (len(ring) - 1), len(ring)) * Fraction(nbytes)
            for ring in rings
            for a, b in hops(ring)
            if node_of[a] == node != node_of[b]
        )

    return float(max(map(leaves, set(node_of.values())), default=0))


# %% node_traffic: sorted-and-grouped
# A flat list of (node, bytes), sorted and grouped with itertools.groupby.
def node_traffic(rings, node_of, nbytes):
    sent = [
        (node_of[ring[at - 1]], nbytes * 2 * (len(ring) - 1) / len(ring))
        for ring in rings
        for at in range(len(ring))
        if node_of[ring[at - 1]] != node_of[ring[at]]
    ]
    sent.sort(key=operator.itemgetter(0))
    groups = itertools.groupby(sent, key=operator.itemgetter(0))
    return max((math.fsum(part for _, part in group) for _, group in groups), default=0.0)


# %% hierarchical_all_reduce: three-collectives
# reduce_scatter inside, all_reduce across, all_gather inside, with lists of views.
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: tensor-collectives-with-handles
# The calls that take one tensor, asynchronous, each waited for before the next one needs its result.
def hierarchical_all_reduce(x, inside, across):
    part = x.new_empty(x.numel() // dist.get_world_size(inside))
    dist.reduce_scatter_tensor(part, x, group=inside, async_op=True).wait()
    dist.all_reduce(part, op=dist.ReduceOp.SUM, group=across, async_op=True).wait()
    dist.all_gather_into_tensor(x, part, group=inside, async_op=True).wait()


# %% hierarchical_all_reduce: all-to-all-and-local-sums
# Inside an all-to-all, and each rank adds up what it got; across an all-gather of the parts (each rank passes in 1/g) and a sum of its own.
def hierarchical_all_reduce(x, inside, across):
    g, nodes = dist.get_world_size(inside), dist.get_world_size(across)
    pieces = torch.empty_like(x)
    dist.all_to_all_single(pieces, x, group=inside)
    part = pieces.view(g, -1).sum(0, dtype=x.dtype)
    everywhere = [torch.empty_like(part) for _ in range(nodes)]
    dist.all_gather(everywhere, part, group=across)
    total = torch.stack(everywhere).sum(0, dtype=x.dtype)
    dist.all_gather(list(x.chunk(g)), total, group=inside)


# %% hierarchical_all_reduce: reduce-and-broadcast-by-place
# Inside one reduce for each place and one broadcast from each; roots are global ranks, from get_global_rank. More calls, the same bytes across.
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    roots = [dist.get_global_rank(inside, at) for at in range(g)]
    pieces = dict(zip(roots, x.chunk(g)))
    for root, piece in pieces.items():
        dist.reduce(piece, dst=root, group=inside)
    dist.all_reduce(pieces[roots[place]], group=across)
    for work in [
        dist.broadcast(piece, src=root, group=inside, async_op=True)
        for root, piece in pieces.items()
    ]:
        work.wait()


# %% hierarchical_all_reduce: messages-inside
# Inside by messages: everyone sends each other rank of its node that one's piece, in one batch, and in a second batch the result to all.
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    pieces = x.chunk(g)
    others = {at: dist.get_global_rank(inside, at) for at in range(g) if at != place}

    def exchange(out, into):
        ops = []
        for at, peer in others.items():
            ops.append(dist.P2POp(dist.isend, out[at], peer, group=inside))
            ops.append(dist.P2POp(dist.irecv, into[at], peer, group=inside))
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()

    got = {at: torch.empty_like(pieces[place]) for at in others}
    exchange(pieces, got)
    mine = pieces[place]
    for one in got.values():
        mine += one
    dist.all_reduce(mine, group=across)
    exchange(dict.fromkeys(others, mine), pieces)


# %% hierarchical_all_reduce: functional-collectives
# Functional collectives (they return new tensors), put together and copied into x at the end.
def hierarchical_all_reduce(x, inside, across):
    part = funcol.reduce_scatter_tensor(x, "sum", scatter_dim=0, group=inside)
    part = funcol.all_reduce(funcol.wait_tensor(part), "sum", group=across)
    whole = funcol.all_gather_tensor(funcol.wait_tensor(part), gather_dim=0, group=inside)
    x.copy_(funcol.wait_tensor(whole))


# %% step_seconds: solved-on-paper
# work and fixed from the two equations; the order of the entries does not matter.
def step_seconds(known, n):
    (a, at_a), (b, at_b) = known.items()
    work = (at_a - at_b) / (1 / a - 1 / b)
    return work / n + at_a - work / a


# %% step_seconds: linear-equations
# np.linalg.solve for (work, fixed).
def step_seconds(known, n):
    gpus = np.array(list(known.keys()), dtype=float)
    work, fixed = np.linalg.solve(np.stack([1 / gpus, np.ones(2)], axis=1), list(known.values()))
    return float(work / n + fixed)


# %% step_seconds: polynomial-in-one-over-n
# The model is straight in 1/n: a polynomial of degree 1 through both points, with a scale that keeps it well conditioned.
def step_seconds(known, n):
    scale = min(known)
    line = np.polynomial.Polynomial.fit([scale / one for one in known], list(known.values()), deg=1)
    return float(line(scale / n))


# %% step_seconds: lagrange
# Interpolation by weights: in x = 1/n each known time counts by its distance from the other one.
def step_seconds(known, n):
    def weight(one, other):
        return (1 / n - 1 / other) / (1 / one - 1 / other)

    one, other = known
    return known[one] * weight(one, other) + known[other] * weight(other, one)


# %% step_seconds: exact-fractions
# Exact rational numbers, from the larger run outwards: the second largest and so on do not matter.
def step_seconds(known, n):
    (few, slow), (many, fast) = sorted((Fraction(k), Fraction(v)) for k, v in known.items())
    work = (slow - fast) * few * many / (many - few)
    return float(fast + work * (1 / Fraction(n) - 1 / many))


# %% step_seconds: cramers-rule-with-a-closure
# 2 by 2 determinants, and a closure t(n).
def step_seconds(known, n):
    def model():
        a, b = sorted(known, reverse=True)
        determinant = 1 / a - 1 / b
        work = (known[a] - known[b]) / determinant
        fixed = (known[b] / a - known[a] / b) / determinant
        return lambda gpus: fixed + work / gpus

    return model()(n)


# %% tree_all_reduce: binomial
# Pairs, fours, eights, … into rank 0, and the same way back.
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
        elif rank % (2 * d) == d:
            dist.recv(x, rank - d)


# %% tree_all_reduce: far-partners-first
# The largest distance first: the upper half adds to the lower half, then the upper half of that, and so on. Another tree, as flat.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer, d = torch.empty_like(x), 1
    while d < n:
        d *= 2
    d //= 2
    undo = []
    while d >= 1:
        if rank < 2 * d:
            if rank >= d:
                dist.send(x, rank - d)
                undo.append(partial(dist.recv, x, rank - d))
            elif rank + d < n:
                dist.recv(buffer, rank + d)
                x.add_(buffer)
                undo.append(partial(dist.send, x, rank + d))
        d //= 2
    while undo:
        undo.pop()()


# %% tree_all_reduce: heap
# The tree of a heap: rank r has the children 2r + 1 and 2r + 2. With 7 ranks exactly 8 rounds.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parent = (rank - 1) // 2 if rank else None
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
    for child in children:
        theirs = torch.empty_like(x)
        dist.recv(theirs, child)
        x += theirs
    if parent is not None:
        dist.send(x, parent)
        dist.recv(x, parent)
    for child in children:
        dist.send(x, child)


# %% tree_all_reduce: recursive-halves
# Recursion over ranges of ranks: each half sums into its first rank, the second half's first into the first one's; on the way out the sum goes back.
def tree_all_reduce(x):
    rank = dist.get_rank()

    def level(low, high):
        if high - low == 1:
            return
        middle = (low + high + 1) // 2
        level(*((low, middle) if rank < middle else (middle, high)))
        if rank == middle:
            dist.send(x, low)
        elif rank == low:
            theirs = torch.empty_like(x)
            dist.recv(theirs, middle)
            x.copy_(x + theirs)

    def back(low, high):
        if high - low == 1:
            return
        middle = (low + high + 1) // 2
        if rank == low:
            dist.send(x, middle)
        elif rank == middle:
            dist.recv(x, low)
        back(*((low, middle) if rank < middle else (middle, high)))

    level(0, dist.get_world_size())
    back(0, dist.get_world_size())


# %% tree_all_reduce: hand-over-to-a-power-of-two
# Ranks above the largest power of two hand their x over first, and get the result last; between there is a tree for a power of two.
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = 1 << (n.bit_length() - 1)
    if rank >= whole:
        dist.send(x, rank - whole)
        dist.recv(x, rank - whole)
        return
    guest = rank + whole if rank + whole < n else None
    buffer = torch.empty_like(x)
    if guest is not None:
        dist.recv(buffer, guest)
        x += buffer
    bit, parent, children = 1, None, []
    while bit < whole:
        if rank & bit:
            parent = rank ^ bit
            break
        children.append(rank | bit)
        bit <<= 1
    for child in children:
        dist.recv(buffer, child)
        x += buffer
    if parent is not None:
        dist.send(x, parent)
        dist.recv(x, parent)
    for child in reversed(children):
        dist.send(x, child)
    if guest is not None:
        dist.send(x, guest)


# %% tree_all_reduce: last-rank-is-the-root-with-handles
# The last rank is the root: places are counted from the end. Messages by isend, irecv and batch_isend_irecv (one in a list), all waited for.
def tree_all_reduce(x):
    n = dist.get_world_size()
    place = n - 1 - dist.get_rank()

    def message(operation, tensor, other):
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, n - 1 - other)]):
            work.wait()

    lowest = place & -place if place else 1 << n.bit_length()
    steps = [1 << k for k in range(n.bit_length()) if 1 << k < lowest and place + (1 << k) < n]
    for step in steps:
        theirs = x.new_empty(x.shape)
        message(dist.irecv, theirs, place + step)
        torch.add(x, theirs, out=x)
    if place:
        message(dist.isend, x, place - lowest)
        dist.irecv(x, n - 1 - (place - lowest)).wait()
    handles = [dist.isend(x, n - 1 - (place + step)) for step in reversed(steps)]
    for handle in handles:
        handle.wait()


# %% ring_seconds: a-loop
def ring_seconds(n, nbytes, alpha, beta):
    seconds = 0.0
    for _ in ("reduce-scatter", "all-gather"):
        for _ in range(n - 1):
            seconds += alpha + beta * nbytes / n
    return seconds


# %% ring_seconds: two-terms
def ring_seconds(n, nbytes, alpha, beta):
    messages = 2 * n - 2
    return messages * alpha + beta * (messages / n) * nbytes


# %% crossing: bisection
def crossing(n, alpha, beta):
    def gain(size):
        ring = 2 * (n - 1) * (alpha + beta * size / n)
        return (n.bit_length() - 1) * (alpha + beta * size) - ring

    low, high = 0.0, 1.0
    while gain(high) < 0:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if gain(middle) < 0:
            low = middle
        else:
            high = middle
    return high


# %% crossing: rounds-and-bytes
def crossing(n, alpha, beta):
    rounds = 2 * (n - 1), math.log2(n)
    sent = 2 * (n - 1) / n, math.log2(n)
    return alpha / beta * (rounds[0] - rounds[1]) / (sent[1] - sent[0])


# %% node_traffic: list-of-nodes
def node_traffic(rings, node_of, nbytes):
    out = {node: 0.0 for node in node_of.values()}
    for ring in rings:
        nodes = [node_of[rank] for rank in ring]
        hop = 2 * nbytes * (len(ring) - 1) / len(ring)
        for at in range(len(nodes)):
            if nodes[at - 1] != nodes[at]:
                out[nodes[at - 1]] += hop
    return max(out.values(), default=0)


# %% node_traffic: sum-for-a-node
def node_traffic(rings, node_of, nbytes):
    def leaving(node):
        return sum(
            2 * (len(ring) - 1) / len(ring) * nbytes
            for ring in rings
            for a, b in zip(ring, [*ring[1:], ring[0]])
            if node_of[a] == node != node_of[b]
        )

    return max(map(leaving, set(node_of.values())), default=0)


# %% hierarchical_all_reduce: reduce-to-each
def hierarchical_all_reduce(x, inside, across):
    members = dist.get_process_group_ranks(inside)
    parts = list(x.chunk(len(members)))
    for rank, part in zip(members, parts):
        dist.reduce(part, dst=rank, group=inside)
    dist.all_reduce(parts[dist.get_rank(inside)], group=across)
    for rank, part in zip(members, parts):
        dist.broadcast(part, src=rank, group=inside)


# %% hierarchical_all_reduce: all-reduce-then-a-part
def hierarchical_all_reduce(x, inside, across):
    g, me = dist.get_world_size(inside), dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    grid = x.view(g, -1)
    dist.all_reduce(grid[me], group=across)
    rows = [torch.empty_like(row) for row in grid]
    dist.all_gather(rows, grid[me], group=inside)
    x.copy_(torch.cat(rows))


# %% step_seconds: numpy-solve
def step_seconds(known, n):
    sizes = np.array(list(known), dtype=float)
    matrix = np.stack([1 / sizes, np.ones(2)], axis=1)
    work, fixed = np.linalg.solve(matrix, np.array(list(known.values())))
    return float(work / n + fixed)


# %% step_seconds: a-line-over-one-by-n
def step_seconds(known, n):
    (a, ta), (b, tb) = known.items()
    share = (1 / n - 1 / b) / (1 / a - 1 / b)
    return tb + share * (ta - tb)


# %% tree_all_reduce: recursion
def tree_all_reduce(x):
    rank = dist.get_rank()
    buffer = torch.empty_like(x)

    def up(ranks):
        half = (len(ranks) + 1) // 2
        if len(ranks) == 1:
            return
        low, high = ranks[:half], ranks[half:]
        up(low if rank in low else high)
        if rank == low[0]:
            dist.recv(buffer, high[0])
            x.add_(buffer)
        elif rank == high[0]:
            dist.send(x, low[0])

    def down(ranks):
        if len(ranks) == 1:
            return
        half = (len(ranks) + 1) // 2
        low, high = ranks[:half], ranks[half:]
        if rank == low[0]:
            dist.send(x, high[0])
        elif rank == high[0]:
            dist.recv(x, low[0])
        down(low if rank in low else high)

    everyone = list(range(dist.get_world_size()))
    up(everyone)
    down(everyone)


# %% tree_all_reduce: parent-and-children
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    low = rank & -rank if rank else 1 << 20
    children = [rank + (1 << k) for k in range(20) if 1 << k < low and rank + (1 << k) < n]
    buffer = torch.empty_like(x)
    for child in children:
        dist.recv(buffer, child)
        x += buffer
    if rank:
        dist.send(x, rank - low)
        dist.recv(x, rank - low)
    for child in reversed(children):
        dist.send(x, child)


# %% ring_seconds: message-by-message
def ring_seconds(n, nbytes, alpha, beta):
    seconds = 0.0
    for _half in range(2):
        for _step in range(1, n):
            seconds += alpha + beta * nbytes / n
    return seconds


# %% ring_seconds: rounds-and-bytes
def ring_seconds(n, nbytes, alpha, beta):
    rounds = 2 * n - 2
    sent = rounds / n * nbytes
    return rounds * alpha + sent * beta


# %% ring_seconds: a-list-of-messages
def ring_seconds(n, nbytes, alpha, beta):
    chunks = [nbytes / n] * (2 * (n - 1))
    return math.fsum(alpha + beta * size for size in chunks)


# %% crossing: two-lines
def crossing(n, alpha, beta):
    log = math.log2(n)
    ring = 2 * (n - 1) * alpha, 2 * (n - 1) / n * beta
    doubling = log * alpha, log * beta
    return (ring[0] - doubling[0]) / (doubling[1] - ring[1])


# %% crossing: solved-by-numpy
def crossing(n, alpha, beta):
    rounds = np.log2(n)
    # t - slope * s = start, once for each; s in units of alpha / beta
    left = np.array([[1.0, -2 * (n - 1) / n], [1.0, -rounds]])
    _, s = np.linalg.solve(left, np.array([2.0 * (n - 1), rounds]))
    return float(s) * alpha / beta


# %% node_traffic: node-by-node
def node_traffic(rings, node_of, nbytes):
    def leaves(node):
        total = 0
        for ring in rings:
            share = 2 * (len(ring) - 1) / len(ring) * nbytes
            nexts = ring[1:] + ring[:1]
            total += share * sum(
                node_of[a] == node and node_of[b] != node for a, b in zip(ring, nexts)
            )
        return total

    return max(map(leaves, set(node_of.values())), default=0)


# %% node_traffic: the-rank-before
def node_traffic(rings, node_of, nbytes):
    out = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        for at in range(len(ring)):
            source, target = node_of[ring[at - 1]], node_of[ring[at]]
            if source != target:
                out[source] += nbytes * 2 * (len(ring) - 1) / len(ring)
    return max(out.values())


# %% node_traffic: exact-counts
def node_traffic(rings, node_of, nbytes):
    counts = defaultdict(Fraction)
    for ring in rings:
        nodes = deque(node_of[rank] for rank in ring)
        before = list(nodes)
        nodes.rotate(-1)
        for here, there in zip(before, nodes):
            counts[here] += (here != there) * Fraction(2 * (len(ring) - 1), len(ring))
    return float(max(counts.values(), default=0) * Fraction(nbytes))


# %% hierarchical_all_reduce: scatter-and-gather-tensors
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    mine = torch.empty(x.numel() // g, dtype=x.dtype, device=x.device)
    dist.reduce_scatter(mine, list(x.chunk(g)), group=inside)
    dist.all_reduce(mine, group=across)
    dist.all_gather(list(x.chunk(g)), mine, group=inside)


# %% hierarchical_all_reduce: all-inside-a-view-across
def hierarchical_all_reduce(x, inside, across):
    g, place = dist.get_world_size(inside), dist.get_rank(inside)
    dist.all_reduce(x, group=inside)
    rows = x.view(g, -1)
    dist.all_reduce(rows[place], group=across)
    for number in range(g):
        dist.broadcast(rows[number], dist.get_process_group_ranks(inside)[number], group=inside)


# %% step_seconds: between-in-one-by-n
def step_seconds(known, n):
    (a, s), (b, t) = known.items()
    part = (1 / n - 1 / a) / (1 / b - 1 / a)
    return s + part * (t - s)


# %% step_seconds: solved
def step_seconds(known, n):
    gpus, seconds = zip(*known.items())
    left = [[1 / each, 1.0] for each in gpus]
    work, fixed = np.linalg.solve(np.array(left), np.array(seconds))
    return float(work / n + fixed)


# %% tree_all_reduce: a-heap
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
    for child in children:
        part = torch.empty_like(x)
        dist.recv(part, child)
        x.add_(part)
    if rank:
        parent = (rank - 1) // 2
        dist.send(x, parent)
        dist.recv(x, parent)
    for child in children:
        dist.send(x, child)


# %% tree_all_reduce: halves-of-a-range
def tree_all_reduce(x):
    rank = dist.get_rank()
    spans, low, high = [], 0, dist.get_world_size()
    while high - low > 1:
        middle = (low + high + 1) // 2
        spans.append((low, middle))
        low, high = (low, middle) if rank < middle else (middle, high)
    for low, middle in reversed(spans):
        if rank == middle:
            dist.send(x, low)
        elif rank == low:
            part = torch.zeros_like(x)
            dist.recv(part, middle)
            x += part
    for low, middle in spans:
        if rank == low:
            dist.send(x, middle)
        elif rank == middle:
            dist.recv(x, low)


# %% tree_all_reduce: lowest-bit
def tree_all_reduce(x):
    rank, n, buffer = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
    lowest = rank & -rank or 1 << (n - 1).bit_length()
    children = []
    bit = 1
    while bit < lowest:
        if rank + bit < n:
            children.append(rank + bit)
        bit *= 2
    for child in children:
        dist.recv(buffer, child)
        torch.add(x, buffer, out=x)
    if rank:
        dist.send(x, rank - lowest)
        dist.recv(x, rank - lowest)
    for child in reversed(children):
        dist.send(x, child)


# %% ring_seconds: summed-messages
def ring_seconds(n, nbytes, alpha, beta):
    return math.fsum(alpha + beta * nbytes / n for _ in range(2 * n - 2))


# %% crossing: solved
def crossing(n, alpha, beta):
    k = n.bit_length() - 1
    left = np.array([[1.0, -2 * (n - 1) / n * beta], [1.0, -k * beta]])
    right = np.array([2 * (n - 1) * alpha, k * alpha])
    return float(np.linalg.solve(left, right)[1])


# %% node_traffic: counter-of-fractions
def node_traffic(rings, node_of, nbytes):
    leaves = Counter()
    for ring in rings:
        share = Fraction(2 * (len(ring) - 1), len(ring))
        for at in range(len(ring)):
            a, b = node_of[ring[at - 1]], node_of[ring[at]]
            if a != b:
                leaves[a] += share * nbytes
    return float(max(leaves.values(), default=0))


# %% hierarchical_all_reduce: lists-of-views
def hierarchical_all_reduce(x, inside, across):
    parts = x.chunk(dist.get_world_size(inside))
    mine = torch.zeros_like(parts[0])
    dist.reduce_scatter(mine, [part.clone() for part in parts], group=inside)
    dist.all_reduce(mine, group=across)
    dist.all_gather(list(parts), mine, group=inside)


# %% step_seconds: polyfit
def step_seconds(known, n):
    counts, seconds = map(np.array, zip(*known.items()))
    work, fixed = np.polyfit(1 / counts, seconds, 1)
    return float(work / n + fixed)


# %% tree_all_reduce: recursive
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()

    def within(first, count):
        if count < 2:
            return
        half = (count + 1) // 2
        if rank < first + half:
            within(first, half)
        else:
            within(first + half, count - half)
        if rank == first + half:
            dist.send(x, first)
        elif rank == first:
            theirs = torch.empty_like(x)
            dist.recv(theirs, first + half)
            x.add_(theirs)

    def back(first, count):
        if count < 2:
            return
        half = (count + 1) // 2
        if rank == first:
            dist.send(x, first + half)
        elif rank == first + half:
            dist.recv(x, first)
        if rank < first + half:
            back(first, half)
        else:
            back(first + half, count - half)

    within(0, n)
    back(0, n)
