"""Right answers to the exercises of lab 15, in other ways than the solution's."""

import math
from collections import defaultdict
from fractions import Fraction
from itertools import accumulate

import torch
import torch.distributed as dist


# %% ring_seconds: loop
def ring_seconds(n, nbytes, alpha, beta):
    return sum(alpha + beta * nbytes / n for _ in range(2 * (n - 1)))


# %% ring_seconds: two-halves
def ring_seconds(n, nbytes, alpha, beta):
    half = (n - 1) * alpha + (n - 1) / n * nbytes * beta
    return half + half


# %% ring_seconds: tensor
def ring_seconds(n, nbytes, alpha, beta):
    steps = torch.full((2 * n - 2,), alpha, dtype=torch.float64)
    return (steps + beta * nbytes / n).sum()


# %% ring_seconds: fractions
def ring_seconds(n, nbytes, alpha, beta):
    chunk = Fraction(nbytes, n)
    return float(2 * (n - 1) * (Fraction(alpha) + Fraction(beta) * chunk))


# %% ring_seconds: accumulated
def ring_seconds(n, nbytes, alpha, beta):
    steps = accumulate([alpha + nbytes / n * beta] * (2 * (n - 1)), initial=0)
    return list(steps)[-1]


# %% tree_all_reduce: heap
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < n]
    for child in children:
        got = torch.empty_like(x)
        dist.recv(got, child)
        x += got
    if rank:
        dist.send(x, (rank - 1) // 2)
        dist.recv(x, (rank - 1) // 2)
    for child in children:
        dist.send(x, child)


# %% tree_all_reduce: recursive
def tree_all_reduce(x):
    rank = dist.get_rank()

    def over(first, last):
        if last - first < 2:
            return
        middle = (first + last + 1) // 2
        over(first, middle) if rank < middle else over(middle, last)
        if rank == middle:
            dist.send(x, first)
            dist.recv(x, first)
        elif rank == first:
            got = torch.empty_like(x)
            dist.recv(got, middle)
            x.add_(got)

    def down(first, last):
        if last - first < 2:
            return
        middle = (first + last + 1) // 2
        if rank == first:
            dist.send(x, middle)
        elif rank == middle:
            dist.recv(x, first)
        down(first, middle) if rank < middle else down(middle, last)

    def up(first, last):
        if last - first < 2:
            return
        middle = (first + last + 1) // 2
        up(first, middle) if rank < middle else up(middle, last)
        if rank == middle:
            dist.send(x, first)
        elif rank == first:
            got = torch.empty_like(x)
            dist.recv(got, middle)
            x.add_(got)

    up(0, dist.get_world_size())
    down(0, dist.get_world_size())


# %% tree_all_reduce: root-last
def tree_all_reduce(x):
    n = dist.get_world_size()
    place, got = n - 1 - dist.get_rank(), torch.empty_like(x)  # the last rank is the root
    steps = [2**k for k in range(10) if 2**k < n]
    for d in steps:
        if place % (2 * d) == d:
            dist.send(tensor=x, dst=n - 1 - (place - d))
            break
        if place + d < n:
            dist.recv(tensor=got, src=n - 1 - (place + d))
            x.add_(got)
    for d in steps[::-1]:
        if place % (2 * d) == d:
            dist.recv(x, src=n - 1 - (place - d))
        elif place % (2 * d) == 0 and place + d < n:
            dist.send(x, dst=n - 1 - (place + d))


# %% tree_all_reduce: isend
def tree_all_reduce(x):
    rank, n, d = dist.get_rank(), dist.get_world_size(), 1
    parent, children = None, []
    while d < n and parent is None:
        if rank & d:
            parent = rank - d
        elif rank + d < n:
            children.append(rank + d)
        d <<= 1
    for child in children:
        got = torch.empty_like(x)
        dist.irecv(got, child).wait()
        x.add_(got)
    if parent is not None:
        dist.isend(x, parent).wait()
        dist.recv(x, parent)
    for work in [dist.isend(x, child) for child in reversed(children)]:
        work.wait()


# %% tree_all_reduce: returns-too
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, levels = x.clone(), (n - 1).bit_length()
    for level in range(levels):
        d = 2**level
        if rank % (2 * d) == d:
            dist.send(total, rank - d)
        elif not rank % (2 * d) and rank + d <= n - 1:
            got = torch.zeros_like(total)
            dist.recv(got, rank + d)
            total = total + got
    for level in range(levels - 1, -1, -1):
        d = 2**level
        if not rank % (2 * d) and rank + d < n:
            dist.send(total, rank + d)
        elif rank % (2 * d) == d:
            dist.recv(total, rank - d)
    x.copy_(total)
    return x


# %% hierarchical_all_reduce: tensor-variants
def hierarchical_all_reduce(x, inside, across):
    part = x.new_zeros(len(x) // inside.size())
    dist.reduce_scatter_tensor(part, x, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(x, part, group=inside)


# %% hierarchical_all_reduce: all-reduce-inside
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    mine = x.chunk(inside.size())[inside.rank()].clone()
    dist.all_reduce(mine, group=across)
    dist.all_gather(list(x.chunk(inside.size())), mine, group=inside)


# %% hierarchical_all_reduce: gather-across
def hierarchical_all_reduce(x, inside, across):
    parts = list(x.clone().chunk(dist.get_world_size(inside)))
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, dist.ReduceOp.SUM, inside)
    everybody = [torch.empty_like(mine) for _ in range(dist.get_world_size(across))]
    dist.all_gather(everybody, mine, across)
    dist.all_gather(parts, sum(everybody), inside)
    x.copy_(torch.cat(parts))


# %% hierarchical_all_reduce: async
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.view(inside.size(), -1).unbind(0))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside, async_op=True).wait()
    dist.all_reduce(part, group=across, async_op=True).wait()
    dist.all_gather(chunks, part, group=inside, async_op=True).wait()
    return x


# %% hierarchical_all_reduce: reduce-and-broadcast
def hierarchical_all_reduce(x, inside, across):
    size = x.numel() // dist.get_world_size(inside)
    start = dist.get_rank(inside) * size
    part = torch.empty(size, dtype=x.dtype)
    dist.reduce_scatter(part, [one.contiguous() for one in x.split(size)], group=inside)
    root = dist.get_global_rank(across, 0)
    dist.reduce(part, root, group=across) if False else dist.all_reduce(part, group=across)
    x[start : start + size] = part
    for member in range(dist.get_world_size(inside)):
        view = x[member * size : (member + 1) * size]
        dist.broadcast(view, dist.get_global_rank(inside, member), group=inside)


# %% crossing: by-halving
def crossing(n, alpha, beta):
    def doubling_ahead(s):
        return math.log2(n) * (alpha + beta * s) < 2 * (n - 1) * (alpha + beta * s / n)

    low, high = 0.0, 1e18
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if doubling_ahead(middle) else (low, middle)
    return high


# %% crossing: fractions
def crossing(n, alpha, beta):
    rounds = n.bit_length() - 1
    more_alphas = Fraction(alpha) * (2 * n - 2 - rounds)
    more_bytes = Fraction(beta) * (rounds - Fraction(2 * n - 2, n))
    return float(more_alphas / more_bytes)


# %% crossing: by-two-points
def crossing(n, alpha, beta):
    def late(s):
        return 2 * (n - 1) * (alpha + beta * s / n) - math.log2(n) * (alpha + beta * s)

    start, end = late(0), late(alpha / beta)
    return alpha / beta * start / (start - end)


# %% crossing: tensor
def crossing(n, alpha, beta):
    left = torch.tensor([[1.0, -math.log2(n) * beta], [1.0, -2 * (n - 1) / n * beta]]).double()
    right = torch.tensor([math.log2(n) * alpha, 2 * (n - 1) * alpha]).double()
    return torch.linalg.solve(left, right)[1]


# %% crossing: one-fraction
def crossing(n, alpha, beta):
    k = math.log(n, 2)
    return n * alpha * (2 * n - 2 - k) / (beta * (n * k - 2 * n + 2))


# %% node_traffic: counter
def node_traffic(rings, node_of, nbytes):
    leaving: dict[int, Fraction] = defaultdict(Fraction)
    for ring in rings:
        for at in range(len(ring)):
            sender, receiver = node_of[ring[at]], node_of[ring[(at + 1) % len(ring)]]
            if sender != receiver:
                leaving[sender] += Fraction(2 * (len(ring) - 1) * nbytes, len(ring))
    return float(max(leaving.values(), default=0))


# %% node_traffic: entering
def node_traffic(rings, node_of, nbytes):
    # In a ring as many hops enter a node as leave it.
    entering = dict.fromkeys(node_of.values(), 0.0)
    for ring in rings:
        for at, rank in enumerate(ring):
            if node_of[ring[at - 1]] != node_of[rank]:
                entering[node_of[rank]] += 2 * nbytes * (1 - 1 / len(ring))
    return max(entering.values())


# %% node_traffic: by-node
def node_traffic(rings, node_of, nbytes):
    def leaving(node):
        return sum(
            2 * (len(ring) - 1) / len(ring) * nbytes
            for ring in rings
            for rank, after in zip(ring, ring[1:] + ring[:1], strict=True)
            if node_of[rank] == node != node_of[after]
        )

    return max(leaving(node) for node in set(node_of.values()))


# %% node_traffic: step-by-step
def node_traffic(rings, node_of, nbytes):
    leaving = dict.fromkeys(node_of.values(), 0.0)
    for ring in rings:
        for _ in range(2 * (len(ring) - 1)):
            for at in range(-1, len(ring) - 1):
                if node_of[ring[at]] != node_of[ring[at + 1]]:
                    node = node_of[ring[at]]
                    leaving[node] += nbytes / len(ring)
    return max(leaving.values())


# %% node_traffic: tensor
def node_traffic(rings, node_of, nbytes):
    names = sorted(set(node_of.values()))
    leaving = torch.zeros(len(names), dtype=torch.float64)
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after]:
                leaving[names.index(node_of[rank])] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return leaving.max()


# %% step_seconds: solve
def step_seconds(known, n):
    left = torch.tensor([[1 / gpus, 1.0] for gpus in known], dtype=torch.float64)
    right = torch.tensor(list(known.values()), dtype=torch.float64)
    work, fixed = torch.linalg.solve(left, right)
    return work / n + fixed


# %% step_seconds: line-of-shares
def step_seconds(known, n):
    (a, slow), (b, quick) = known.items()
    part = (1 / n - 1 / a) / (1 / b - 1 / a)
    return slow + part * (quick - slow)


# %% step_seconds: fixed-first
def step_seconds(known, n):
    (a, slow), (b, quick) = sorted(known.items())
    fixed = (b * quick - a * slow) / (b - a)
    return fixed + (slow - fixed) * a / n


# %% step_seconds: fractions
def step_seconds(known, n):
    (a, s), (b, q) = ((Fraction(gpus), Fraction(took)) for gpus, took in known.items())
    work = (s - q) / (1 / a - 1 / b)
    return float(work / n + s - work / a)


# %% step_seconds: gpu-seconds
def step_seconds(known, n):
    # GPUs times seconds grow by fixed seconds for each GPU more.
    (a, slow), (b, quick) = known.items()
    return (a * slow + (b * quick - a * slow) * (n - a) / (b - a)) / n
