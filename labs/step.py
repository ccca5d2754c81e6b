"""Training steps of a small mixture-of-experts model on N ranks: right, and slow.

The experts are cut over the ranks, everything else is on all of them (data
parallelism). Capital letters are whole dimensions: T this rank's tokens,
P numbers of a token in the input, D width, F hidden width, E experts, C classes,
S tokens of a sequence. R: the rows that this rank's e experts get.
"""

import os

import lockstep
import torch
import torch.distributed as dist
import torch.nn.functional as nn

LARGE = os.environ.get("CAPSTONE_SIZE") == "large"
S, P, C, E, LAYERS = 64, 64, 16, 12, 2
T, D, F = (4096, 512, 1024) if LARGE else (1024, 128, 256)
RATE, MOMENTUM = 0.05, 0.9


# Model ────────────────────────────────────────────────────────────────────────


def owners(n):
    """The rank of each expert, E numbers; each rank has E / n experts."""
    return [expert // (E // n) for expert in range(E)]


def parameters(device):
    """All weights, by name; of the experts, only those of this rank."""
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = [e for e, owner in enumerate(owners(n)) if owner == rank]
    shapes = {"in_PD": (P, D), "out_DC": (D, C)}
    for layer in range(LAYERS):
        shapes[f"{layer}.qkv_D3D"] = (D, 3 * D)
        shapes[f"{layer}.router_DE"] = (D, E)
        shapes[f"{layer}.shared1_DF"] = (D, F)
        shapes[f"{layer}.shared2_FD"] = (F, D)
        shapes[f"{layer}.expert1_EDF"] = (E, D, F)
        shapes[f"{layer}.expert2_EFD"] = (E, F, D)
    weights = {}
    for name, shape in shapes.items():
        weight = torch.randn(shape) / shape[-2] ** 0.5
        weight = weight[mine] if "expert" in name else weight
        weights[name] = weight.to(device).requires_grad_()
    return weights


def attention(x_TD, qkv_D3D):
    """Each token sees those before it in its sequence."""
    parts = (x_TD @ qkv_D3D).view(-1, 1, S, 3 * D).chunk(3, -1)
    return nn.scaled_dot_product_attention(*parts, is_causal=True).view(-1, D)


def feed_forward(x_RD, w1_DF, w2_FD):
    return torch.relu(x_RD @ w1_DF) @ w2_FD


def compiled(function):
    """What torch.compile makes of it (the virtual GPU knows no compiler)."""
    if lockstep.virtual.is_on():
        return function
    backend = "inductor" if torch.cuda.is_available() else "eager"
    return torch.compile(function, dynamic=False, backend=backend)


# Experts ──────────────────────────────────────────────────────────────────────


class Exchange(torch.autograd.Function):
    """Rows to other ranks, and theirs to this one; send, receive: rows by rank."""

    @staticmethod
    def forward(ctx, x_TD, send, receive):
        ctx.splits = send, receive
        rows_RD = x_TD.new_empty(sum(receive), x_TD.shape[1])
        dist.all_to_all_single(rows_RD, x_TD, receive, send)
        return rows_RD

    @staticmethod
    def backward(ctx, grad_RD):
        send, receive = ctx.splits
        grad_TD = grad_RD.new_empty(sum(send), grad_RD.shape[1])
        dist.all_to_all_single(grad_TD, grad_RD.contiguous(), send, receive)
        return grad_TD, None, None


def on_host(counts_ne, got_ne):
    """Both tables of rows as lists: for each rank, a number for each expert."""
    n, e = counts_ne.shape
    return [
        [[table[rank, i].item() for i in range(e)] for rank in range(n)]
        for table in (counts_ne, got_ne)
    ]


def experts(rows_RD, got_ne, most, w1_eDF, w2_eFD, run):
    """Each row through its expert; of each rank's rows those of expert 0 first.

    got_ne: the rows by rank and expert. most: the rows of the fullest expert.
    """
    n, e = got_ne.shape
    expert_R = (
        torch.arange(e, device=rows_RD.device)
        .repeat(n)
        .repeat_interleave(got_ne.view(-1), output_size=len(rows_RD))
    )
    y_RD = torch.zeros_like(rows_RD)
    for i in range(e):
        mine = (expert_R == i).nonzero()[:, 0]
        y_RD = y_RD.index_copy(0, mine, run(rows_RD[mine], w1_eDF[i], w2_eFD[i]))
    return y_RD


def routed(x_TD, router_DE, place_E):
    """The gate of each token, the place of its expert in the order of the ranks,
    and how many tokens each place has: T, T and E numbers.

    The first experts are the popular ones; in real routers some always are.
    """
    fewer_E = torch.arange(E, device=x_TD.device) / 6
    gate_T, expert_T = (x_TD @ router_DE - fewer_E).softmax(1).max(1)
    place_T = place_E[expert_T]
    one_T = torch.ones_like(place_T)
    return gate_T, place_T, place_T.new_zeros(E).index_add(0, place_T, one_T)


def moe(x_TD, w, place_E, run):
    """The shared expert of each token, and the one that the router gives it."""
    gate_T, place_T, count_E = routed(x_TD, w["router_DE"], place_E)

    # Dispatch: the tokens in the order of places, to the ranks of these.
    counts_ne = count_E.view(dist.get_world_size(), -1)
    got_ne = torch.empty_like(counts_ne)
    dist.all_to_all_single(got_ne, counts_ne)
    to, of = on_host(counts_ne, got_ne)
    send, receive = [sum(one) for one in to], [sum(one) for one in of]
    order_T = place_T.argsort(stable=True)
    rows_RD = Exchange.apply(x_TD[order_T], send, receive)

    most = max(map(sum, zip(*of, strict=True)))
    y_RD = experts(rows_RD, got_ne, most, w["expert1_EDF"], w["expert2_EFD"], run)

    # Combine: the rows go back to where they came from, and into their order.
    back_TD = Exchange.apply(y_RD, receive, send)
    y_TD = torch.zeros_like(x_TD).index_copy(0, order_T, back_TD)
    shared_TD = feed_forward(x_TD, w["shared1_DF"], w["shared2_FD"])
    return shared_TD + gate_T[:, None] * y_TD


# Step ─────────────────────────────────────────────────────────────────────────


def sample(number):
    """This rank's tokens of a step, and their classes, in the host's memory."""
    draw = torch.Generator().manual_seed(1000 * number + dist.get_rank())
    x_TP = torch.randn(T, P, generator=draw)
    return x_TP, x_TP.abs().argmax(1).remainder(C)


def batches(device, samples):
    """The samples of all steps, on the device."""
    for one in samples:
        yield [part.to(device) for part in one]


def loss_of(w, x_TP, class_T, place_E, run):
    x_TD = x_TP @ w["in_PD"]
    for layer in range(LAYERS):
        own = {k[2:]: v for k, v in w.items() if k.startswith(f"{layer}.")}
        x_TD = x_TD + attention(nn.layer_norm(x_TD, (D,)), own["qkv_D3D"])
        x_TD = x_TD + moe(nn.layer_norm(x_TD, (D,)), own, place_E, run)
    return nn.cross_entropy(nn.layer_norm(x_TD, (D,)) @ w["out_DC"], class_T)


def average(w):
    """The gradient of the mean loss of all ranks, in place."""
    for name, weight in w.items():
        if "expert" not in name:  # an expert has had the rows of all ranks
            dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


def update(w, velocity):
    """Gradient descent with momentum. velocity: one tensor a weight."""
    with torch.no_grad():
        for weight, v in zip(w.values(), velocity, strict=True):
            v.mul_(MOMENTUM)
            v.add_(weight.grad)
            weight.sub_(RATE * v)
            weight.grad = None


def train(device, steps=6, first=0):
    """The mean loss of all ranks in each step. first: the number of its sample."""
    samples = [sample(number) for number in range(first, first + steps)]
    w = parameters(device)
    velocity = [torch.zeros_like(weight) for weight in w.values()]
    place_E = torch.tensor(owners(dist.get_world_size())).argsort(stable=True)
    place_E = place_E.argsort().to(device)
    run, losses, source = compiled(feed_forward), [], batches(device, samples)
    for number in range(steps):
        with lockstep.step(number):
            loss = loss_of(w, *next(source), place_E, run)
            loss.backward()
            average(w)
            update(w, velocity)
            losses.append(loss.detach())
    total = torch.stack(losses)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


if __name__ == "__main__":
    dist.init_process_group()
    print(train(lockstep.device()))
    dist.destroy_process_group()
