"""Wrong answers to the exercises of lab 14, each under the mistake that its check has to name."""

import torch
import torch.distributed as dist


def sorted_by(expert_T, E):
    """The tokens by expert, their places among those of their expert, and the counts."""
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=E)
    start_E = counts_E.cumsum(0) - counts_E
    return order_T, torch.arange(len(order_T)) - start_E[expert_T[order_T]], counts_E


def right_order(expert_T, E, capacity):
    order_T, place_T, counts_E = sorted_by(expert_T, E)
    return order_T[place_T < capacity], counts_E.clamp(max=capacity)


def function(forward, backward):
    """An autograd.Function of rows and two lists."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, send, receive):
            ctx.splits = send, receive
            return forward(rows, send, receive)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad.contiguous(), *ctx.splits), None, None

    return Made.apply


def sent(rows, send, receive):
    came = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(came, rows, receive, send)
    return came


def back(grad, send, receive):
    return sent(grad, receive, send)


def turned(rows, splits):
    """The parts in the opposite order."""
    return torch.cat(rows.split(splits)[::-1])


travel = function(sent, back)


def arrivals(counts_E):
    counts_ne = counts_E.view(dist.get_world_size(), -1)
    got_ne = torch.empty_like(counts_ne)
    dist.all_to_all_single(got_ne, counts_ne)
    local_R = torch.arange(got_ne.shape[1]).repeat(len(got_ne))
    local_R = local_R.repeat_interleave(got_ne.view(-1))
    return counts_ne.sum(1).tolist(), got_ne.sum(1).tolist(), local_R


def experts(rows_RD, local_R, w1_eDF, w2_eFD):
    y_RD = torch.zeros_like(rows_RD)
    for i in range(len(w1_eDF)):
        mine = (local_R == i).nonzero()[:, 0]
        made = torch.relu(rows_RD[mine] @ w1_eDF[i]) @ w2_eFD[i]
        y_RD = y_RD.index_copy(0, mine, made)
    return y_RD


def returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD):
    """The order of the kept tokens, and what comes back for them."""
    order_R, counts_E = right_order(expert_T, dist.get_world_size() * len(w1_eDF), capacity)
    send, receive, local_R = arrivals(counts_E)
    y_RD = experts(travel(x_TD[order_R], send, receive), local_R, w1_eDF, w2_eFD)
    return order_R, travel(y_RD, receive, send)


def placed(rows_E, n, order, best):
    """The owner of each expert; best(ranks with room, load, count)."""
    owners, load, count = [0] * len(rows_E), [0] * n, [0] * n
    for e in order:
        ranks = [r for r in range(n) if count[r] < len(rows_E) // n]
        rank = best(ranks, load, count)
        owners[e] = rank
        load[rank] += rows_E[e]
        count[rank] += 1
    return owners


def popular_first(rows_E):
    return sorted(range(len(rows_E)), key=lambda e: -rows_E[e])


def slots(local_R, e):
    seen_Re = torch.nn.functional.one_hot(local_R, e).cumsum(0)
    return seen_Re.gather(1, local_R[:, None])[:, 0] - 1


# %% by_expert: no-capacity
def by_expert(expert_T, E, capacity):
    order_T, _, counts_E = sorted_by(expert_T, E)
    return order_T, counts_E


# %% by_expert: counts-of-all
def by_expert(expert_T, E, capacity):
    order_T, place_T, counts_E = sorted_by(expert_T, E)
    return order_T[place_T < capacity], counts_E


# %% by_expert: last-ones
def by_expert(expert_T, E, capacity):
    order_T, place_T, counts_E = sorted_by(expert_T, E)
    left_T = counts_E[expert_T[order_T]] - place_T
    return order_T[left_T <= capacity], counts_E.clamp(max=capacity)


# %% by_expert: not-in-order
def by_expert(expert_T, E, capacity):
    order_R, counts_E = right_order(expert_T, E, capacity)
    return torch.cat([one.flip(0) for one in order_R.split(counts_E.tolist())]), counts_E


# %% by_expert: in-token-order
def by_expert(expert_T, E, capacity):
    order_R, counts_E = right_order(expert_T, E, capacity)
    return order_R.sort().values, counts_E


# %% by_expert: capacity-of-all
def by_expert(expert_T, E, capacity):
    first = expert_T[: capacity * E]
    return first.argsort(stable=True), torch.bincount(first, minlength=E)


# %% by_expert: missing-experts
def by_expert(expert_T, E, capacity):
    order_R, counts_E = right_order(expert_T, E, capacity)
    return order_R, counts_E[: int(expert_T.max()) + 1]


# %% by_expert: places-not-tokens
def by_expert(expert_T, E, capacity):
    _, place_T, counts_E = sorted_by(expert_T, E)
    return (place_T < capacity).nonzero()[:, 0], counts_E.clamp(max=capacity)


# %% exchange: splits-swapped
def exchange(rows, send, receive):
    came = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(came, rows, send, receive)
    return came


# %% exchange: splits-swapped
exchange = function(sent, sent)


# %% exchange: no-gradient
def exchange(rows, send, receive):
    return sent(rows.detach(), send, receive)


# %% exchange: averaged
exchange = function(sent, lambda grad, *splits: back(grad, *splits) / dist.get_world_size())

# %% exchange: own-gradient
exchange = function(sent, lambda grad, send, receive: grad.new_zeros(sum(send), grad.shape[1]))

# %% exchange: backwards
exchange = function(
    lambda rows, send, receive: turned(sent(rows, send, receive), receive),
    lambda grad, send, receive: back(turned(grad, receive[::-1]), send, receive),
)

# %% exchange: gradient-backwards
exchange = function(sent, lambda grad, send, receive: turned(back(grad, send, receive), send))


# %% exchange: other-calls
def forward(rows, send, receive):
    dist.barrier()
    n = torch.zeros(1)
    dist.all_reduce(n)
    return sent(rows, send, receive)


exchange = function(forward, back)


# %% moe: not-put-back
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD)
    lost = x_TD.new_zeros(len(x_TD) - len(order_R), x_TD.shape[1])
    return gate_T[:, None] * torch.cat([back_RD, lost])


# %% moe: no-gate
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD)
    return torch.zeros_like(x_TD).index_copy(0, order_R, back_RD)


# %% moe: gate-in-expert-order
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD)
    y_RD = gate_T[: len(order_R), None] * back_RD
    return torch.zeros_like(x_TD).index_copy(0, order_R, y_RD)


# %% moe: dropped-pass-through
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD)
    return x_TD.index_copy(0, order_R, gate_T[order_R, None] * back_RD)


# %% moe: no-capacity
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, len(x_TD), w1_eDF, w2_eFD)
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order_R, back_RD)


# %% moe: gate-without-gradient
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD)
    y_TD = torch.zeros_like(x_TD).index_copy(0, order_R, back_RD)
    return gate_T.detach()[:, None] * y_TD


# %% moe: order-of-ranks
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, counts_E = right_order(expert_T, dist.get_world_size() * len(w1_eDF), capacity)
    send, receive, local_R = arrivals(counts_E)
    rows_RD = travel(x_TD[order_R], send, receive)
    y_RD = experts(rows_RD, local_R.sort().values, w1_eDF, w2_eFD)
    back_RD = travel(y_RD, receive, send)
    return gate_T[:, None] * torch.zeros_like(x_TD).index_copy(0, order_R, back_RD)


# %% moe: gathered-not-put
def moe(x_TD, gate_T, expert_T, capacity, w1_eDF, w2_eFD):
    order_R, back_RD = returned(x_TD, expert_T, capacity, w1_eDF, w2_eFD)
    lost = x_TD.new_zeros(len(x_TD) - len(order_R), x_TD.shape[1])
    y_TD = torch.cat([back_RD, lost])
    rest = [t for t in range(len(x_TD)) if t not in order_R.tolist()]
    return gate_T[:, None] * y_TD[torch.cat([order_R, torch.tensor(rest, dtype=torch.int64)])]


# %% place: in-order
def place(rows_E, n):
    return [e // (len(rows_E) // n) for e in range(len(rows_E))]


# %% place: in-turn
def place(rows_E, n):
    return [e % n for e in range(len(rows_E))]


# %% place: in-turn
def place(rows_E, n):
    owners = [0] * len(rows_E)
    for at, e in enumerate(popular_first(rows_E)):
        owners[e] = at % n
    return owners


# %% place: no-room
def place(rows_E, n):
    owners, load = [0] * len(rows_E), [0] * n
    for e in popular_first(rows_E):
        owners[e] = min(range(n), key=lambda r: load[r])
        load[owners[e]] += rows_E[e]
    return owners


# %% place: least-first
def place(rows_E, n):
    def least(ranks, load, count):
        return min(ranks, key=lambda r: load[r])

    return placed(rows_E, n, popular_first(rows_E)[::-1], least)


# %% place: by-count
def place(rows_E, n):
    def fewest(ranks, load, count):
        return min(ranks, key=lambda r: (count[r], load[r]))

    return placed(rows_E, n, popular_first(rows_E), fewest)


# %% place: fullest
def place(rows_E, n):
    def most(ranks, load, count):
        return max(ranks, key=lambda r: load[r])

    return placed(rows_E, n, popular_first(rows_E), most)


# %% place: in-sorted-order
def place(rows_E, n):
    def least(ranks, load, count):
        return min(ranks, key=lambda r: load[r])

    order = popular_first(rows_E)
    owners = placed(rows_E, n, order, least)
    return [owners[e] for e in order]


# %% grouped: many-products
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    return experts(rows_RD, local_R, w1_eDF, w2_eFD)


# %% grouped: many-products
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    rows = zip(rows_RD, local_R.tolist(), strict=True)
    return torch.cat([torch.relu(x[None] @ w1_eDF[i]) @ w2_eFD[i] for x, i in rows])


# %% grouped: one-expert
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    return torch.relu(rows_RD @ w1_eDF[0]) @ w2_eFD[0]


# %% grouped: expert-order
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    order_R = local_R.argsort(stable=True)
    sorted_R = local_R[order_R]
    slot_R = sorted_R * most + slots(sorted_R, e)
    x_SD = rows_RD.new_zeros(e * most, D).index_copy(0, slot_R, rows_RD[order_R])
    y_eSD = torch.relu(x_SD.view(e, most, D) @ w1_eDF) @ w2_eFD
    return y_eSD.flatten(0, 1)[slot_R]


# %% grouped: same-slot
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    slot_R = local_R * most
    x_SD = rows_RD.new_zeros(e * most, D)
    for at, slot in enumerate(slot_R.tolist()):
        x_SD[slot] = rows_RD[at]
    y_eSD = torch.relu(x_SD.view(e, most, D) @ w1_eDF) @ w2_eFD
    return y_eSD.flatten(0, 1)[slot_R]


# %% grouped: no-relu
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    slot_R = local_R * most + slots(local_R, e)
    x_SD = rows_RD.new_zeros(e * most, D).index_copy(0, slot_R, rows_RD)
    return (x_SD.view(e, most, D) @ w1_eDF @ w2_eFD).flatten(0, 1)[slot_R]


# %% grouped: shifted
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    order_R = local_R.argsort(stable=True)
    x_SD = rows_RD.new_zeros(e * most, D)
    x_SD[: len(rows_RD)] = rows_RD[order_R]
    y_SD = (torch.relu(x_SD.view(e, most, D) @ w1_eDF) @ w2_eFD).flatten(0, 1)
    return torch.zeros_like(rows_RD).index_copy(0, order_R, y_SD[: len(rows_RD)])


# %% grouped: padding-returned
def grouped(rows_RD, local_R, most, w1_eDF, w2_eFD):
    e, D = w1_eDF.shape[:2]
    slot_R = local_R * most + slots(local_R, e)
    x_SD = rows_RD.new_zeros(e * most, D).index_copy(0, slot_R, rows_RD)
    return (torch.relu(x_SD.view(e, most, D) @ w1_eDF) @ w2_eFD).flatten(0, 1)
