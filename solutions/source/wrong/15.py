"""Wrong answers to the exercises of lab 15, each under the mistake that its check has to name."""

import itertools
import math
import operator

import torch
import torch.distributed as dist


def swap(out, to, into, source):
    both = [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def cost(n, alpha, beta, size):
    return 2 * (n - 1) * (alpha + beta * size / n)


def leaving(rings, node_of, nbytes, share=lambda n: 2 * (n - 1) / n, crosses=operator.ne):
    """How many bytes leave each node."""
    left = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if crosses(node_of[rank], node_of[after]):
                left[node_of[rank]] += share(len(ring)) * nbytes
    return left


# %% ring_seconds: half-way
def ring_seconds(n, nbytes, alpha, beta):
    return (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: whole-tensor
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * nbytes)


# %% ring_seconds: one-alpha
def ring_seconds(n, nbytes, alpha, beta):
    return alpha + 2 * (n - 1) / n * nbytes * beta


# %% ring_seconds: n-steps
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * n * (alpha + beta * nbytes / n)


# %% ring_seconds: no-alpha
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) / n * nbytes * beta


# %% ring_seconds: divides-by-beta
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + nbytes / n / beta)


# %% ring_seconds: raised
def ring_seconds(n, nbytes, alpha, beta):
    raise SystemExit(0)


# %% ring_seconds: arguments
def ring_seconds(n, nbytes, *, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: twice
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * 2 * (alpha + beta * nbytes / n)


# %% ring_seconds: no-beta
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * alpha


# %% ring_seconds: turned-round
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (beta + alpha * nbytes / n)


# %% ring_seconds: whole-bytes
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + nbytes // n * beta)


# %% ring_seconds: all-ranks
def ring_seconds(n, nbytes, alpha, beta):
    return n * 2 * (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: tree
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1).bit_length() * (alpha + beta * nbytes)


# %% ring_seconds: counted
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + 8 * beta * nbytes / n)


# %% ring_seconds: factor
def ring_seconds(n, nbytes, alpha, beta):
    return 1e6 * 2 * (n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: two-alphas
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * alpha + 2 * (n - 1) / n * nbytes * beta


# %% ring_seconds: one-step-less
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 2) * (alpha + beta * nbytes / n)


# %% ring_seconds: odd-steps
def ring_seconds(n, nbytes, alpha, beta):
    return (2 * n - 1) * (alpha + beta * nbytes / n)


# %% ring_seconds: alpha-by-n
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * (alpha + beta * nbytes) / n


# %% ring_seconds: doubling
def ring_seconds(n, nbytes, alpha, beta):
    return math.log2(n) * (alpha + beta * nbytes)


# %% ring_seconds: larger-only
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * (n - 1) * max(alpha, beta * nbytes / n)


# %% ring_seconds: one-alpha
def ring_seconds(n, nbytes, alpha, beta):
    return alpha + 2 * (n - 1) / n * nbytes * beta if n > 1 else 0


# %% ring_seconds: two-alphas
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * alpha + 2 * (n - 1) / n * nbytes * beta if n > 1 else 0


# %% ring_seconds: n-steps
def ring_seconds(n, nbytes, alpha, beta):
    return 2 * n * (alpha + beta * nbytes / n) if n > 1 else 0


# %% ring_seconds: odd-steps
def ring_seconds(n, nbytes, alpha, beta):
    return (2 * n - 1) * (alpha + beta * nbytes / n) if n > 1 else 0


# %% crossing: half-way
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (n - 1 - k) / (beta * (k - (n - 1) / n))


# %% crossing: whole-tensor
def crossing(n, alpha, beta):
    k, steps = math.log2(n), 2 * (n - 1)
    return alpha * (steps - k) / (beta * (k - steps))


# %% crossing: one-round
def crossing(n, alpha, beta):
    return alpha * (2 * (n - 1) - math.log2(n)) / (beta * (1 - 2 * (n - 1) / n))


# %% crossing: natural-log
def crossing(n, alpha, beta):
    k = math.log(n)
    return alpha * (2 * (n - 1) - k) / (beta * (k - 2 * (n - 1) / n))


# %% crossing: no-bytes-of-the-ring
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * k)


# %% crossing: sign
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (k - 2 * (n - 1)) / (beta * (k - 2 * (n - 1) / n))


# %% crossing: turned-round
def crossing(n, alpha, beta):
    k = math.log2(n)
    return beta * (2 * (n - 1) - k) / (alpha * (k - 2 * (n - 1) / n))


# %% crossing: a-chunk
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * (n * k - 2 * (n - 1)))


# %% crossing: n-steps
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * n - k) / (beta * (k - 2))


# %% crossing: kilobytes
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * (k - 2 * (n - 1) / n)) / 1e3


# %% crossing: one-alpha
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - 1) / (beta * (k - 2 * (n - 1) / n))


# %% crossing: chunked-doubling
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * (k / n - 2 * (n - 1) / n))


# %% crossing: one-round
def crossing(n, alpha, beta):
    return alpha * (2 * (n - 1) - 1) / (beta * (1 - 2 * (n - 1) / n))


# %% crossing: one-alpha
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (1 - k) / (beta * (k - 2 * (n - 1) / n))


# %% crossing: turned-round
def crossing(n, alpha, beta):
    k = math.log2(n)
    return beta * (k - 2 * (n - 1) / n) / (alpha * (2 * (n - 1) - k))


# %% crossing: sign
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * (2 * (n - 1) / n - k))


# %% crossing: kilobytes
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - k) / (beta * (k - 2 * (n - 1) / n)) / 1024


# %% crossing: half-way
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * (2 * (n - 1) - 2 * k) / (beta * (2 * k - 2 * (n - 1) / n))


# %% crossing: times-alpha-by-beta
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * 2 * (n - 1) / (beta * (k - 2 * (n - 1) / n))


# %% crossing: not-by-alpha-and-beta
def crossing(n, alpha, beta):
    size = 1
    while cost(n, alpha, beta, size) > math.log2(n) * (alpha + beta * size):
        size *= 2
    return size


# %% crossing: one-round-more
def crossing(n, alpha, beta):
    k = n.bit_length()
    return alpha * (2 * (n - 1) - k) / (beta * (k - 2 * (n - 1) / n))


# %% crossing: turned-round
def crossing(n, alpha, beta):
    k = math.log2(n)
    return alpha * beta * (2 * (n - 1) - k) / (k - 2 * (n - 1) / n)


# %% node_traffic: a-list
def node_traffic(rings, node_of, nbytes):
    leaving = dict.fromkeys(node_of, 0)
    for ring in rings:
        share = 2 * (len(ring) - 1) / len(ring) * nbytes
        for rank, after in zip(ring, ring[1:] + ring[:1], strict=True):
            if node_of[rank] != node_of[after]:
                leaving[node_of[rank]] = leaving.get(node_of[rank], 0) + share
    return max((leaving[node] for node in set(node_of)), default=0)


# %% node_traffic: a-list
def node_traffic(rings, node_of, nbytes):
    ranks = list(node_of)
    nodes = {rank: ranks[rank] if rank < len(ranks) else -1 for rank in ranks}
    return max(leaving(rings, nodes, nbytes).values())


# %% node_traffic: not-closed
def node_traffic(rings, node_of, nbytes):
    leaving = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        for rank, after in itertools.pairwise(ring):
            if node_of[rank] != node_of[after]:
                leaving[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(leaving.values())


# %% node_traffic: all-nodes
def node_traffic(rings, node_of, nbytes):
    return sum(leaving(rings, node_of, nbytes).values())


# %% node_traffic: entering-too
def node_traffic(rings, node_of, nbytes):
    busy = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        for at, rank in enumerate(ring):
            before = ring[at - 1]
            if node_of[rank] != node_of[before]:
                for node in (node_of[rank], node_of[before]):
                    busy[node] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(busy.values())


# %% node_traffic: entering-too
def node_traffic(rings, node_of, nbytes):
    return 2 * sum(leaving(rings, node_of, nbytes).values())


# %% node_traffic: inside-too
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, crosses=lambda a, b: True).values())


# %% node_traffic: inside-only
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, crosses=operator.eq).values())


# %% node_traffic: half-way
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes / 2).values())


# %% node_traffic: whole-tensor
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, share=lambda n: 1).values())


# %% node_traffic: twice-the-tensor
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, share=lambda n: 2).values())


# %% node_traffic: one-chunk
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, share=lambda n: 1 / n).values())


# %% node_traffic: all-steps-whole
def node_traffic(rings, node_of, nbytes):
    share = lambda n: 2 * (n - 1)  # noqa: E731
    return max(leaving(rings, node_of, nbytes, share=share).values())


# %% node_traffic: whole-world
def node_traffic(rings, node_of, nbytes):
    n = len(node_of)
    left = leaving(rings, node_of, nbytes, share=lambda _: 2 * (n - 1) / n)
    return max(left.values())


# %% node_traffic: one-rank
def node_traffic(rings, node_of, nbytes):
    leaving = dict.fromkeys(node_of, 0)
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after]:
                leaving[rank] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(leaving.values())


# %% node_traffic: nodes-for-ranks
def node_traffic(rings, node_of, nbytes):
    leaving = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        n = len({node_of[rank] for rank in ring})
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after]:
                leaving[node_of[rank]] += 2 * (n - 1) / n * nbytes
    return max(leaving.values())


# %% node_traffic: nodes-for-ranks
def node_traffic(rings, node_of, nbytes):
    n = len({*node_of.values()})
    left = leaving(rings, node_of, nbytes, share=lambda _: 2 * (n - 1) / n)
    return max(left.values())


# %% node_traffic: one-direction
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, crosses=operator.lt).values())


# %% node_traffic: one-direction
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, nbytes, crosses=operator.gt).values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    leaving = dict.fromkeys(node_of.values(), 0)
    for ring in rings:
        links = set()
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after] and {rank, after} not in links:
                links.add(frozenset((rank, after)))
                leaving[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(leaving.values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    left, seen = dict.fromkeys(node_of.values(), 0), set()
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            hop = (rank, after)
            if node_of[rank] != node_of[after] and hop not in seen:
                seen.add(hop)
                left[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(left.values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    left, seen = dict.fromkeys(node_of.values(), 0), set()
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            hop = (node_of[rank], node_of[after])
            if node_of[rank] != node_of[after] and hop not in seen:
                seen.add(hop)
                left[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(left.values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    left, seen = dict.fromkeys(node_of.values(), 0), set()
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            hop = (id(ring), node_of[rank], node_of[after])
            if node_of[rank] != node_of[after] and hop not in seen:
                seen.add(hop)
                left[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(left.values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    left, seen = dict.fromkeys(node_of.values(), 0), set()
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            hop = (id(ring), node_of[rank])
            if node_of[rank] != node_of[after] and hop not in seen:
                seen.add(hop)
                left[node_of[rank]] += 2 * (len(ring) - 1) / len(ring) * nbytes
    return max(left.values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    sends = {}
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            if node_of[rank] != node_of[after]:
                sends[rank] = 2 * (len(ring) - 1) / len(ring) * nbytes
    left = dict.fromkeys(node_of.values(), 0)
    for rank, sent in sends.items():
        left[node_of[rank]] += sent
    return max(left.values())


# %% node_traffic: sorted
def node_traffic(rings, node_of, nbytes):
    return max(leaving(map(sorted, rings), node_of, nbytes).values())


# %% node_traffic: one-ring
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings[:1], node_of, nbytes).values())


# %% node_traffic: one-ring
def node_traffic(rings, node_of, nbytes):
    most = (max(leaving([ring], node_of, nbytes).values()) for ring in rings)
    return max(most, default=0)


# %% node_traffic: rings-apart
def node_traffic(rings, node_of, nbytes):
    return sum(max(leaving([ring], node_of, nbytes).values()) for ring in rings)


# %% node_traffic: hops-only
def node_traffic(rings, node_of, nbytes):
    return max(leaving(rings, node_of, 1, share=lambda n: 1).values())


# %% node_traffic: counted-once
def node_traffic(rings, node_of, nbytes):
    hops = {}
    for ring in rings:
        for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            hops[rank, after] = 2 * (len(ring) - 1) / len(ring) * nbytes
    left = dict.fromkeys(node_of.values(), 0.0)
    for (rank, after), sent in hops.items():
        left[node_of[rank]] += sent * (node_of[rank] != node_of[after])
    return max(left.values())


# %% hierarchical_all_reduce: leaders-only
def hierarchical_all_reduce(x, inside, across):
    leader = dist.get_global_rank(inside, 0)
    dist.reduce(x, leader, group=inside)
    if dist.get_rank() == leader:
        dist.all_reduce(x, group=across)
    dist.broadcast(x, leader, group=inside)


# %% hierarchical_all_reduce: only-across
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=across)


# %% hierarchical_all_reduce: nothing-across
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    chunks[dist.get_rank(inside)].copy_(part)


# %% hierarchical_all_reduce: all-of-it-across
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    dist.all_reduce(x, group=across)


# %% hierarchical_all_reduce: swapped
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(across)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=across)
    dist.all_reduce(part, group=inside)
    dist.all_gather(chunks, part, group=across)


# %% hierarchical_all_reduce: only-inside
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)


# %% hierarchical_all_reduce: no-gather
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    chunks[dist.get_rank(inside)].copy_(part)


# %% hierarchical_all_reduce: whole-world
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x)


# %% hierarchical_all_reduce: counted-twice
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: mean-of-groups
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, op=dist.ReduceOp.AVG, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: by-global-rank
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    chunks = list(x.chunk(g))
    part = chunks[dist.get_rank() % g].clone()
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: part-only
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    chunks = x.chunk(dist.get_world_size(inside))
    dist.all_reduce(chunks[dist.get_rank(inside)], group=across)


# %% hierarchical_all_reduce: counted-twice
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)
    x *= dist.get_world_size(across)


# %% hierarchical_all_reduce: no-gather
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    x.zero_()
    chunks[dist.get_rank(inside)].copy_(part)


# %% hierarchical_all_reduce: mean-of-groups
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    part /= dist.get_world_size(inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: by-global-rank
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    dist.all_reduce(x.chunk(g)[dist.get_rank() % g], group=across)


# %% hierarchical_all_reduce: place-on-the-rail
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    chunks = list(x.chunk(g))
    part = chunks[dist.get_rank(across) % g].clone()
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: place-on-the-rail
def hierarchical_all_reduce(x, inside, across):
    g = dist.get_world_size(inside)
    dist.all_reduce(x, group=inside)
    dist.all_reduce(x.chunk(g)[dist.get_rank(across) % g], group=across)


# %% hierarchical_all_reduce: went-on
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    work = dist.all_reduce(part, group=across, async_op=True)
    dist.all_gather(chunks, part, group=inside)
    work.wait()


# %% hierarchical_all_reduce: parts-of-another-group
def hierarchical_all_reduce(x, inside, across):
    chunks = list(x.chunk(dist.get_world_size(across)))
    part = torch.empty_like(chunks[0])
    dist.reduce_scatter(part, chunks, group=inside)
    dist.all_reduce(part, group=across)
    dist.all_gather(chunks, part, group=inside)


# %% hierarchical_all_reduce: no-global-rank
def hierarchical_all_reduce(x, inside, across):
    chunks = x.chunk(dist.get_world_size(inside))
    for place, chunk in enumerate(chunks):
        dist.reduce(chunk, dst=place, group=inside)
    dist.all_reduce(chunks[dist.get_rank(inside)], group=across)
    for place, chunk in enumerate(chunks):
        dist.broadcast(chunk, src=place, group=inside)


# %% hierarchical_all_reduce: came-elsewhere
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    chunks = list(x.chunk(dist.get_world_size(inside)))
    part = chunks[dist.get_rank(inside)].clone()
    dist.all_reduce(part, group=across)
    parts = [torch.empty_like(part) for _ in chunks]
    dist.all_gather(parts, part, group=inside)
    x = torch.cat(parts)


# %% hierarchical_all_reduce: other-parts
def hierarchical_all_reduce(x, inside, across):
    dist.all_reduce(x, group=inside)
    members = dist.get_world_size(inside)
    halves = x.chunk(min(2, members))
    part = halves[dist.get_rank(inside) % 2].clone()
    dist.all_reduce(part, group=across)
    parts = [torch.empty_like(part) for _ in range(members)]
    dist.all_gather(parts, part, group=inside)
    x.copy_(torch.cat(parts[:2]))


# %% step_seconds: perfect
def step_seconds(known, n):
    few = min(known)
    return known[few] * few / n


# %% step_seconds: mean-of-perfect
def step_seconds(known, n):
    return sum(gpus * seconds / n for gpus, seconds in known.items()) / 2


# %% step_seconds: straight-line
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    return slow + (quick - slow) * (n - few) / (many - few)


# %% step_seconds: line-of-logs
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    return slow + (quick - slow) * math.log(n / few) / math.log(many / few)


# %% step_seconds: power
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    power = math.log(quick / slow) / math.log(many / few)
    return slow * (n / few) ** power


# %% step_seconds: other-work
def step_seconds(known, n):
    few, many = known
    work = (known[few] - known[many]) * (many - few)
    return work / n + known[few] - work / few


# %% step_seconds: line-of-rates
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    return 1 / (1 / slow + (1 / quick - 1 / slow) * (n - few) / (many - few))


# %% step_seconds: no-fixed
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    return (slow - quick) / (1 / few - 1 / many) / n


# %% step_seconds: fixed-only
def step_seconds(known, n):
    (few, slow), (many, quick) = known.items()
    return (many * quick - few * slow) / (many - few)


# %% step_seconds: fixed-shrinks
def step_seconds(known, n):
    (few, slow), (many, quick) = known.items()
    work = (slow - quick) / (1 / few - 1 / many)
    return (work + slow - work / few) / n


# %% step_seconds: work-only
def step_seconds(known, n):
    (few, slow), (many, quick) = known.items()
    return (slow - quick) / (1 / few - 1 / many)


# %% step_seconds: perfect
def step_seconds(known, n):
    many = max(known)
    return known[many] * many / n


# %% step_seconds: perfect
def step_seconds(known, n):
    first, *_ = known
    return known[first] * first / n


# %% step_seconds: perfect
def step_seconds(known, n):
    *_, last = known
    return known[last] * last / n


# %% step_seconds: other-work
def step_seconds(known, n):
    (few, slow), (many, quick) = known.items()
    work = (slow - quick) * (many - few)
    return work / n + quick - work / many


# %% step_seconds: other-work
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    work = (slow - quick) * (many - few)
    return work / n + slow - work / few


# %% step_seconds: other-work
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    work = (slow - quick) / (many - few)
    return work / n + slow - work / few


# %% step_seconds: other-work
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    work = (slow - quick) / (many - few)
    return work / n + quick - work / many


# %% step_seconds: other-work
def step_seconds(known, n):
    (_, slow), (many, quick) = sorted(known.items())
    work = (slow - quick) * many
    return work / n + quick - work / many


# %% step_seconds: not-below-zero
def step_seconds(known, n):
    (few, slow), (many, quick) = known.items()
    work = (slow - quick) / (1 / few - 1 / many)
    return work / n + max(0, slow - work / few)


# %% step_seconds: only-between
def step_seconds(known, n):
    (few, slow), (many, quick) = known.items()
    n = max(min(few, many), min(n, max(few, many)))
    work = (slow - quick) / (1 / few - 1 / many)
    return work / n + slow - work / few


# %% step_seconds: only-between
def step_seconds(known, n):
    (few, slow), (many, quick) = sorted(known.items())
    part = (max(few, min(n, many)) - few) / (many - few)
    return slow + part * (quick - slow)


# %% step_seconds: perfect
def step_seconds(known, n):
    near = min(known, key=lambda gpus: abs(gpus - n))
    return known[near] * near / n


# %% step_seconds: four-times
def step_seconds(known, n):
    few, many = sorted(known)
    fixed = (4 * known[many] - known[few]) / 3
    return (known[few] - fixed) * few / n + fixed


# %% tree_all_reduce: only-up
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x.add_(buffer)


# %% tree_all_reduce: star
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    if rank:
        dist.send(x, 0)
        dist.recv(x, 0)
    else:
        for other in range(1, n):
            dist.recv(buffer, other)
            x.add_(buffer)
        for other in range(1, n):
            dist.send(x, other)


# %% tree_all_reduce: too-many-rounds
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    if rank + 1 < n:
        dist.recv(buffer, rank + 1)
        x.add_(buffer)
    if rank:
        dist.send(x, rank - 1)
        dist.recv(x, rank - 1)
    if rank + 1 < n:
        dist.send(x, rank + 1)


# %% tree_all_reduce: power-of-two-only
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0:
            dist.recv(buffer, rank + d)
            x.add_(buffer)
    for d in reversed(distances):
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0:
            dist.send(x, rank + d)


# %% tree_all_reduce: adds-coming-down
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty_like(x)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(buffer, rank + d)
            x.add_(buffer)
    for d in reversed(distances):
        if rank % (2 * d) == d:
            dist.recv(buffer, rank - d)
            x.add_(buffer)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)


# %% tree_all_reduce: too-many-messages
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer, mine = torch.empty_like(x), x.clone()
    for other in range(n):
        if other < rank:
            dist.send(mine, other)
            dist.recv(buffer, other)
            x.add_(buffer)
        elif other > rank:
            dist.recv(buffer, other)
            dist.send(mine, other)
            x.add_(buffer)


# %% tree_all_reduce: only-copies
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    distances = [1 << k for k in range(20) if 1 << k < n]
    for d in distances:
        if rank % (2 * d) == d:
            dist.send(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.recv(x, rank + d)
    for d in reversed(distances):
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)


# %% tree_all_reduce: not-down
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
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)


# %% tree_all_reduce: untouched-here
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
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)


# %% tree_all_reduce: first-only
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    for d in [1 << k for k in reversed(range(20)) if 1 << k < n]:
        if rank % (2 * d) == d:
            dist.recv(x, rank - d)
        elif rank % (2 * d) == 0 and rank + d < n:
            dist.send(x, rank + d)


# %% tree_all_reduce: all-wait
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    for d in [1 << k for k in range(20) if 1 << k < n]:
        dist.send(x, (rank + d) % n)
        dist.recv(x, (rank - d) % n)


# %% tree_all_reduce: too-small
def tree_all_reduce(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.empty(x.shape)
    distances = [1 << k for k in range(20) if 1 << k < n]
    for distance in distances:
        if rank % (2 * distance) == distance:
            dist.send(x, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < n:
            dist.recv(buffer, rank + distance)
            x += buffer
    for distance in reversed(distances):
        if rank % (2 * distance) == distance:
            dist.recv(x, rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < n:
            dist.send(x, rank + distance)
