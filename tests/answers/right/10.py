"""Right answers to the exercises of lab 10, written without sight of its checks; see judge.py."""

import collections
import functools
import heapq
import itertools
import math
import operator
from collections import Counter, defaultdict, deque
from functools import partial, reduce

import lockstep
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def in_groups(ranks, chunks, microbatches):
    """(microbatch, chunk), in the order of the forwards."""
    return [
        (first + number, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for number in range(ranks)
    ]


# %% most_kept: accumulate
# Running sum with itertools.accumulate; `initial=0` makes the case without steps right.
def most_kept(steps):
    return max(itertools.accumulate(({"F": 1, "B": -1}[step[0]] for step in steps), initial=0))


# %% most_kept: numpy-cumsum
# NumPy: cumulative sum of +1 and -1 in 64 bits, with a zero in front.
def most_kept(steps):
    ways = np.array([step[:1] for step in steps], dtype="U1")
    changes = np.where(ways == "F", 1, -1).astype(np.int64)
    return int(np.concatenate([[0], np.cumsum(changes)]).max())


# %% most_kept: set-in-a-class
# An object that has the set of those that are kept, and remembers the largest size.
class _Shelf:
    def __init__(self):
        self.on_it, self.record = set(), 0

    def take(self, step):
        way, number = step[:1], int(step[1:])
        (self.on_it.add if way == "F" else self.on_it.discard)(number)
        self.record = max(self.record, len(self.on_it))
        return self


def most_kept(steps):
    return reduce(_Shelf.take, steps, _Shelf()).record


# %% most_kept: intervals
# For each microbatch the places of its F and its B; then for each place how many intervals contain it (quadratic, no running state).
def most_kept(steps):
    begin = {step[1:]: at for at, step in enumerate(steps) if step[0] == "F"}
    end = {step[1:]: at for at, step in enumerate(steps) if step[0] == "B"}
    spans = [(at, end.get(number, len(steps))) for number, at in begin.items()]
    return max((sum(a <= at <= b for a, b in spans) for at in range(len(steps))), default=0)


# %% most_kept: divide-and-conquer
# Recursion over halves: each returns (net change, highest level); they combine as in a parallel scan. Depth is log2 of the steps.
def most_kept(steps):
    def both(low, high):
        if high - low == 0:
            return 0, 0
        if high - low == 1:
            return (1, 1) if steps[low].startswith("F") else (-1, 0)
        middle = (low + high) // 2
        (net, top), (other_net, other_top) = both(low, middle), both(middle, high)
        return net + other_net, max(top, net + other_top)

    return both(0, len(steps))[1]


# %% most_kept: torch-matrix
# A lower triangular matrix of ones, applied to the vector of changes: a prefix sum as a product of tensors.
most_kept = lambda steps: int(  # noqa: E731
    max(
        [0.0]
        + (
            torch.ones(len(steps), len(steps), dtype=torch.float64).tril()
            @ torch.tensor([1.0 if s[0] == "F" else -1.0 for s in steps], dtype=torch.float64)
        ).tolist()
    )
)


# %% one_f_one_b: two-counters
# No phases: a state machine. A forward as long as fewer are kept than p - s, else a backward.
def one_f_one_b(stage, stages, microbatches):
    steps, f, b = [], 0, 0
    while b < microbatches:
        if f < microbatches and f - b < stages - stage:
            steps.append(f"F{f}")
            f += 1
        else:
            steps.append(f"B{b}")
            b += 1
    return steps


# %% one_f_one_b: zip-longest
# Pads the backwards at the front, and lets zip_longest do all three phases at once.
def one_f_one_b(stage, stages, microbatches):
    late = [None] * min(stages - stage - 1, microbatches)
    forwards = (f"F{n}" for n in range(microbatches))
    backwards = itertools.chain(late, (f"B{n}" for n in range(microbatches)))
    both = itertools.zip_longest(forwards, backwards)
    return [step for step in itertools.chain.from_iterable(both) if step is not None]


# %% one_f_one_b: sorted-by-time
# Gives each step the time at which it would run in a pipeline without limits, and sorts: F n at 2n, B n at 2(n + p - s - 1) + 1.
def one_f_one_b(stage, stages, microbatches):
    after = stages - 1 - stage
    timed = [(2 * n, f"F{n}") for n in range(microbatches)]
    timed += [(2 * (n + after) + 1, f"B{n}") for n in range(microbatches)]
    return [step for _, step in sorted(timed, key=operator.itemgetter(0))]


# %% one_f_one_b: heap-merge
# The same idea by heapq.merge of two streams that are each in order.
def one_f_one_b(stage, stages, microbatches):
    ahead = stages - stage
    forwards = (((n, 0), f"F{n}") for n in range(microbatches))
    backwards = (((n + ahead - 1, 1), f"B{n}") for n in range(microbatches))
    return [step for _, step in heapq.merge(forwards, backwards)]


# %% one_f_one_b: recursion-over-stages
# The last stage takes turns; every other one is the next stage's list, with with one more forward before each backward, if there is one.
def one_f_one_b(stage, stages, microbatches):
    if stage == stages - 1:
        return [f"{way}{n}" for n in range(microbatches) for way in "FB"]
    behind = one_f_one_b(stage + 1, stages, microbatches)
    before, steps = collections.Counter(), []
    for step in behind:  # how many forwards the next stage has done before each backward
        before[step[0]] += 1
        if step[0] == "B":
            done = sum(one[0] == "F" for one in steps)
            want = min(microbatches, before["F"] + 1)
            steps += [f"F{n}" for n in range(done, want)] + [step]
    return steps


# %% one_f_one_b: slices-and-list-insert
# Begins with all forwards and inserts each backward at its place, counted from the front (from the end where forwards have run out).
def one_f_one_b(stage, stages, microbatches):
    steps = list(map("F{}".format, range(microbatches)))
    for n in range(microbatches):
        steps.insert(min(stages - stage + 2 * n, len(steps)), f"B{n}")
    return steps


# %% run_stage: one-handle-a-way
# One pending send for each direction, in a dict; waited for just before the next one in that direction begins.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending = {}
    for step in order:
        number, by = int(step[1:]), 1 if step[0] == "F" else -1
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, src=rank - by)
        else:
            x = inputs[number] if by == 1 else torch.ones_like(inputs[0])
        y = (stage.forward if by == 1 else stage.backward)(number, x)
        del x
        if 0 <= rank + by <= last:
            if by in pending:
                pending.pop(by).wait()
            pending[by] = dist.isend(y, dst=rank + by)
        del y
    while pending:
        pending.popitem()[1].wait()


# %% run_stage: one-queue-of-four
# One deque for both directions: the oldest is waited for as soon as there are more than four.
def run_stage(order, stage, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    under_way = deque()
    for step in order:
        forward, number = step.startswith("F"), int(step[1:])
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if source in range(ranks):
            given = torch.empty_like(inputs[0])
            dist.recv(given, source)
        elif forward:
            given = inputs[number]
        else:
            given = torch.ones_like(inputs[0])
        result = stage.forward(number, given) if forward else stage.backward(number, given)
        given = None
        if target in range(ranks):
            under_way.append(dist.isend(result, target))
        result = None
        while len(under_way) > 4:
            under_way.popleft().wait()
    while under_way:
        under_way.popleft().wait()


# %% run_stage: irecv-and-mailboxes
# A small class for each neighbour; receives by irecv + wait, and keeps at most two sends under way to that neighbour.
class _Neighbour:
    def __init__(self, peer, like):
        self.peer, self.like, self.out = peer, like, []

    def get(self):
        box = torch.empty_like(self.like)
        dist.irecv(box, self.peer).wait()
        return box

    def put(self, tensor):
        if len(self.out) == 2:
            self.out.pop(0).wait()
        self.out.append(dist.isend(tensor, self.peer))

    def close(self):
        while self.out:
            self.out.pop(0).wait()


def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    before = _Neighbour(rank - 1, inputs[0]) if rank > 0 else None
    after = _Neighbour(rank + 1, inputs[0]) if rank < last else None

    def forward(number):
        y = stage.forward(number, before.get() if before else inputs[number])
        if after:
            after.put(y)

    def backward(number):
        y = stage.backward(number, after.get() if after else torch.ones_like(inputs[0]))
        if before:
            before.put(y)

    for step in order:
        {"F": forward, "B": backward}[step[0]](int(step[1:]))
    for neighbour in (before, after):
        if neighbour:
            neighbour.close()


# %% run_stage: batches-of-one
# batch_isend_irecv for every message, alone in its list; handles in a dict by way.
def run_stage(order, stage, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ways = {"F": (stage.forward, rank - 1, rank + 1), "B": (stage.backward, rank + 1, rank - 1)}
    handles = defaultdict(list)

    def finish(way, leave):
        while len(handles[way]) > leave:
            handles[way].pop(0).wait()

    def start(operation, tensor, peer):
        return dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)])

    def take(way, number):
        compute, source, target = ways[way]
        if 0 <= source < ranks:
            x = torch.empty_like(inputs[0])
            for work in start(dist.irecv, x, source):
                work.wait()
        else:
            x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        y = compute(number, x)
        if 0 <= target < ranks:
            finish(way, 1)
            handles[way] += start(dist.isend, y, target)

    for step in order:
        take(step[0], int(step[1:]))
    for way in "FB":
        finish(way, 0)


# %% run_stage: generator-of-sends
# Two coroutines do the sending, one for each direction; each waits for its last send when it gets the next tensor, and when it is closed.
def _sender(peer):
    handle = None
    try:
        while True:
            tensor = yield
            if handle is not None:
                handle.wait()
                handle = None
            if tensor is not None:
                handle = dist.isend(tensor, peer)
            tensor = None
    except GeneratorExit:
        if handle is not None:
            handle.wait()
        raise


def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    senders = {by: _sender(rank + by) for by in (1, -1) if 0 <= rank + by <= last}
    for each in senders.values():
        next(each)
    for step in order:
        by, number = {"F": 1, "B": -1}[step[0]], int(step[1:])
        x = inputs[number] if by > 0 else inputs[0].new_ones(inputs[0].shape)
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = stage.forward(number, x) if by > 0 else stage.backward(number, x)
        if by in senders:
            senders[by].send(y)
    for each in senders.values():
        each.close()


# %% run_stage: receives-one-step-ahead
# Starts the receive for the next step before it computes this one (only one ahead), so that the message travels meanwhile. Sends: one a way.
def run_stage(order, stage, inputs):
    rank, last, steps = dist.get_rank(), dist.get_world_size() - 1, list(order)
    sending = {"F": None, "B": None}

    def begin(step):
        """(tensor, handle or None) of what a step needs."""
        source = rank - 1 if step[0] == "F" else rank + 1
        if 0 <= source <= last:
            x = torch.empty_like(inputs[0])
            return x, dist.irecv(x, source)
        return (inputs[int(step[1:])] if step[0] == "F" else torch.ones_like(inputs[0])), None

    coming = begin(steps[0]) if steps else None
    for at, step in enumerate(steps):
        x, handle = coming
        if handle is not None:
            handle.wait()
        coming = handle = None
        if at + 1 < len(steps):
            coming = begin(steps[at + 1])
        way, number = step[0], int(step[1:])
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        x = None
        target = rank + 1 if way == "F" else rank - 1
        if 0 <= target <= last:
            if sending[way] is not None:
                sending[way].wait()
            sending[way] = dist.isend(y, target)
        y = None
    for handle in filter(None, sending.values()):
        handle.wait()


# %% run_stage: six-open-sends
# Six sends are open when a step begins, as the goal allows; the seventh begins before one of them is waited for.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        del x
        if 0 <= rank + by <= last:
            pending.append(dist.isend(y, rank + by))
            if len(pending) > 6:
                pending.popleft().wait()
        del y
    while pending:
        pending.popleft().wait()


# %% run_stage: threads
# Each blocking send in a thread of its own; before the next one goes the same way, the one before it has ended.
def run_stage(order, stage, inputs):
    import threading

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    threads = {}
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            if way in threads:
                threads.pop(way).join()
            threads[way] = threading.Thread(target=dist.send, args=(y, rank + by))
            threads[way].start()
    for thread in threads.values():
        thread.join()


# %% train_step: one-microbatch-after-the-other
# The slowest schedule there is: each microbatch goes forward through all ranks and back before the next one begins.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for x, target in zip(inputs, targets, strict=True):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == last:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            dist.send(y.detach().contiguous(), rank + 1)
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad.contiguous(), rank - 1)
    return total if rank == last else None


# %% train_step: messages-as-autograd-functions
# Send and receive are autograd Functions whose backward receives and sends the gradient: then each rank just calls backward() on what its
# forward ended with (a loss, or a dummy number).
class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, like, peer):
        ctx.peer = peer
        x = torch.empty_like(like)
        dist.recv(x, peer)
        return x

    @staticmethod
    def backward(ctx, grad):
        dist.send(grad.contiguous(), ctx.peer)
        return None, None, None


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, like, peer):
        ctx.peer, ctx.like = peer, like
        dist.send(y.detach().contiguous(), peer)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx, grad):
        of_y = torch.empty_like(ctx.like)
        dist.recv(of_y, ctx.peer)
        return of_y, None, None


def train_step(layer, inputs, targets):
    rank, last, like = dist.get_rank(), dist.get_world_size() - 1, inputs[0]
    anchor = torch.zeros((), device=like.device, requires_grad=True)
    ends = []
    for x, target in zip(inputs, targets, strict=True):
        y = layer(_Receive.apply(anchor, like, rank - 1) if rank > 0 else x)
        if rank < last:
            ends.append(_Send.apply(y, like, rank + 1))
        else:
            ends.append(mse_loss(y, target) / len(inputs))
    for end in ends:
        end.backward()
    return sum(end.item() for end in ends) if rank == last else None


# %% train_step: one-f-one-b-with-handles
# 1F1B with isend: p - s forwards at most are kept, and each direction has one send under way.
def train_step(layer, inputs, targets):
    rank, ranks, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    kept, pending, losses = deque(), {}, []

    def send(tensor, by):
        if by in pending:
            pending.pop(by).wait()
        pending[by] = dist.isend(tensor.contiguous(), rank + by)

    def receive(by):
        tensor = torch.empty_like(inputs[0])
        dist.recv(tensor, rank + by)
        return tensor

    def forward(number):
        x = inputs[number] if rank == 0 else receive(-1).requires_grad_()
        y = layer(x)
        if rank == ranks - 1:
            y = mse_loss(y, targets[number]).div(m)
            losses.append(float(y))
        else:
            send(y.detach(), 1)
        kept.append((x, y))

    def backward():
        x, y = kept.popleft()
        y.backward(None if rank == ranks - 1 else receive(1))
        if rank > 0:
            send(x.grad, -1)

    for number in range(m):
        forward(number)
        if len(kept) == ranks - rank:
            backward()
    while kept:
        backward()
    for handle in pending.values():
        handle.wait()
    if rank == ranks - 1:
        return math.fsum(losses)


# %% train_step: autograd-grad-and-adding-by-hand
# GPipe; torch.autograd.grad in place of backward(), and the parameters' gradients are added to .grad by hand.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weights = [one for one in layer.parameters() if one.requires_grad]
    graphs = []
    for x, target in zip(inputs, targets, strict=True):
        if rank:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == last:
            y = mse_loss(y, target)
        else:
            dist.send(y.detach().contiguous(), rank + 1)
        graphs.append((x, y))
    for x, y in graphs:
        grad = torch.full_like(y, 1 / len(inputs))
        if rank != last:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
        ends = [*weights, x] if rank else weights
        found = torch.autograd.grad(y, ends, grad, allow_unused=True)
        for weight, one in zip(weights, found):
            if one is not None:
                weight.grad = one if weight.grad is None else weight.grad + one
        if rank:
            dist.send(found[-1].contiguous(), rank - 1)
    if rank == last:
        return torch.stack([y.detach() for _, y in graphs]).mean().item()
    return None


# %% train_step: hook-sends-the-gradient
# The gradient of what was received is sent from a hook on that tensor, in the middle of backward(). Messages by batch_isend_irecv, one in
# each list. Here backwards go newest first on all ranks.
def train_step(layer, inputs, targets):
    rank, last, m = dist.get_rank(), dist.get_world_size() - 1, len(inputs)

    def now(operation, tensor, peer):
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
            work.wait()
        return tensor

    def back(grad):
        now(dist.isend, grad.contiguous(), rank - 1)  # returns None: the gradient stays

    def forward(number):
        x = inputs[number]
        if rank > 0:
            x = now(dist.irecv, torch.empty_like(inputs[0]), rank - 1).requires_grad_()
            x.register_hook(back)
        y = layer(x)
        if rank == last:
            return mse_loss(y, targets[number]) / m
        now(dist.isend, y.detach().contiguous(), rank + 1)
        return y

    ends = [forward(number) for number in range(m)]
    for y in reversed(ends):
        if rank == last:
            y.backward()
        else:
            y.backward(now(dist.irecv, torch.empty_like(inputs[0]), rank + 1))
    if rank == last:
        return float(sum(end.detach().double() for end in ends))


# %% train_step: recursion-keeps-the-activations
# GPipe by recursion: the call stack keeps the graphs, so that backwards come in the opposite order on every rank. Sends are isends, all of
# them waited for at the end.
def train_step(layer, inputs, targets):
    rank, last, sent = dist.get_rank(), dist.get_world_size() - 1, []

    def receive(peer):
        tensor = torch.empty_like(inputs[0])
        dist.irecv(tensor, peer).wait()
        return tensor

    def go(number):
        """The sum of the losses from this microbatch on."""
        if number == len(inputs):
            return 0.0
        x = receive(rank - 1).requires_grad_() if rank > 0 else inputs[number]
        y, loss = layer(x), 0.0
        if rank < last:
            sent.append(dist.isend(y.detach().contiguous(), rank + 1))
            loss = go(number + 1)
            torch.autograd.backward([y], [receive(rank + 1)])
        else:
            one = mse_loss(y, targets[number], reduction="mean")
            loss = one.item() + go(number + 1)
            torch.autograd.backward([one], [torch.full_like(one, 1 / len(inputs))])
        if rank > 0:
            sent.append(dist.isend(x.grad.contiguous(), rank - 1))
        return loss

    loss = go(0)
    while sent:
        sent.pop(0).wait()
    return loss / len(inputs) if rank == last else None


# %% split_backward: partial-of-backward
# functools.partial of torch.autograd.backward with `inputs`: that computes and adds for these only.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    return of_x, partial(torch.autograd.backward, y, grad, inputs=list(weights))


# %% split_backward: callable-object
# A class whose object is the function; it forgets the graph after the call. Adds by hand.
class _Later:
    def __init__(self, *given):
        self.given = given

    def __call__(self):
        y, weights, grad = self.given
        for weight, one in zip(weights, torch.autograd.grad(y, weights, grad), strict=True):
            if weight.grad is None:
                weight.grad = one
            else:
                weight.grad += one
        self.given = None


def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad([y], [x], [grad], retain_graph=True)[0]
    return of_x, _Later(y, weights, grad)


# %% split_backward: one-weight-at-a-time
# The weights one after the other, each in a call of its own; all but the last keep the graph. (Slower for deep graphs, but right.)
def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad(y, x, grad_outputs=grad, retain_graph=True)[0]

    def later():
        todo = list(weights)
        while todo:
            weight = todo.pop()
            y.backward(grad, inputs=[weight], retain_graph=bool(todo))

    return of_x, later


# %% split_backward: scalar-product
# Makes a number of y and grad first, (y * grad).sum(), and differentiates that: a gradient times a vector without grad_outputs.
def split_backward(y, x, weights, grad):
    number = (y * grad.detach()).sum()
    of_x = torch.autograd.grad(number, [x], retain_graph=True)[0]
    return of_x, lambda: number.backward(inputs=list(weights))


# %% split_backward: gradient-edge
# Goes by the edge of y in the graph, and adds under no_grad with add_ in place, in the gradient's own type.
def split_backward(y, x, weights, grad):
    edge = torch.autograd.graph.get_gradient_edge(y)
    (of_x,) = torch.autograd.grad(edge, (x,), (grad,), retain_graph=True)

    @torch.no_grad()
    def later():
        found = torch.autograd.grad(edge, tuple(weights), (grad,))
        for weight, one in zip(weights, found):
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            weight.grad.add_(one)

    return of_x, later


# %% split_backward: generator-in-two-halves
# One generator with a yield between the halves: the first next() is the gradient of x, the second one runs the rest.
def split_backward(y, x, weights, grad):
    def halves():
        yield torch.autograd.grad(y, x, grad, retain_graph=True)[0]
        torch.autograd.backward((y,), (grad,), inputs=tuple(weights))

    both = halves()
    of_x = next(both)

    def later():
        next(both, None)

    return of_x, later


# %% interleaved: slices
# Forwards and backwards as lists, cut where the turns begin.
def interleaved(rank, ranks, chunks, microbatches):
    places = [
        (first + number, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for number in range(ranks)
    ]
    forwards = [f"F{number}.{chunk}" for number, chunk in places]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in places]
    warm = min(len(places), (chunks - 1) * ranks + 2 * (ranks - 1 - rank))
    turns = itertools.chain.from_iterable(zip(forwards[warm:], backwards))
    return [*forwards[:warm], *turns, *backwards[len(places) - warm :]]


# %% interleaved: one-first-forward-for-each-rank-after
# Fills with one forward for each rank after this one only: the text says that without messages this is as fast and keeps less, and every order
# that does it is right.
def interleaved(rank, ranks, chunks, microbatches):
    total, ahead = chunks * microbatches, (chunks - 1) * ranks + ranks - 1 - rank
    steps = []
    for at in range(total + ahead):
        for way, index in (("F", at), ("B", at - ahead)):
            if 0 <= index < total:
                group, inside = divmod(index, chunks * ranks)
                chunk, number = divmod(inside, ranks)
                chunk = chunk if way == "F" else chunks - 1 - chunk
                steps.append(f"{way}{group * ranks + number}.{chunk}")
    return steps


# %% interleaved: sorted-by-key
# Every step gets a time from its place in the order, forwards at whole numbers, backwards half a unit after the forward that they follow.
def interleaved(rank, ranks, chunks, microbatches):
    warm, timed = (chunks - 1) * ranks + 2 * (ranks - 1 - rank), {}
    for number, chunk in itertools.product(range(microbatches), range(chunks)):
        group, inside = divmod(number, ranks)
        start = group * ranks * chunks + inside
        timed[f"F{number}.{chunk}"] = start + chunk * ranks
        timed[f"B{number}.{chunk}"] = start + (chunks - 1 - chunk) * ranks + warm + 0.5
    return sorted(timed, key=timed.get)


# %% interleaved: state-machine-with-a-limit
# Never counts a first phase: a forward as long as no more than the limit would be kept, else a backward.
def interleaved(rank, ranks, chunks, microbatches):
    limit = (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1

    def places():
        for first in range(0, microbatches, ranks):
            yield from itertools.product(range(chunks), range(first, first + ranks))

    forwards = deque(f"F{number}.{chunk}" for chunk, number in places())
    backwards = deque(f"B{number}.{chunks - 1 - chunk}" for chunk, number in places())
    steps, kept = [], 0
    while backwards:
        forward = bool(forwards) and kept < limit
        steps.append((forwards if forward else backwards).popleft())
        kept += 1 if forward else -1
    return steps


# %% interleaved: numpy-order
# Orders as NumPy arrays: reshape and transpose make the groups, flip the backwards' chunks; then both are merged by argsort.
def interleaved(rank, ranks, chunks, microbatches):
    number = np.arange(microbatches).reshape(-1, 1, ranks).repeat(chunks, axis=1)
    chunk = np.broadcast_to(np.arange(chunks)[None, :, None], number.shape)
    forwards = [f"F{n}.{c}" for n, c in zip(number.ravel(), chunk.ravel())]
    backwards = [f"B{n}.{c}" for n, c in zip(number.ravel(), chunk[:, ::-1].ravel())]
    at = np.arange(len(forwards))
    late = (chunks - 1) * ranks + 2 * (ranks - 1 - rank)
    times = np.concatenate([2 * at, 2 * (at + late) + 1])
    both = forwards + backwards
    return [both[index] for index in np.argsort(times, kind="stable")]


# %% interleaved: recursive-turns
# An iterator for each way, and zip_longest with the backwards shifted by the first forwards; strings come from a class with __str__.
class _Place(collections.namedtuple("_Place", "way number chunk")):
    def __str__(self):
        return f"{self.way}{self.number}.{self.chunk}"


def interleaved(rank, ranks, chunks, microbatches):
    groups = [range(first, first + ranks) for first in range(0, microbatches, ranks)]
    forwards = [_Place("F", n, c) for group in groups for c in range(chunks) for n in group]
    backwards = [
        _Place("B", n, c) for group in groups for c in reversed(range(chunks)) for n in group
    ]
    late = min(len(forwards), (chunks - 1) * ranks + 2 * (ranks - 1 - rank))
    pairs = itertools.zip_longest(forwards, [None] * late + backwards)
    return [str(one) for pair in pairs for one in pair if one]


# %% zero_bubble: queue-of-weights
# 1F1B with a deque of W that wait: the oldest is done when more than s wait.
def zero_bubble(stage, stages, microbatches):
    warm, waiting = stages - stage - 1, deque()
    steps = [f"F{n}" for n in range(warm)]
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        waiting.append(f"W{n}")
        if len(waiting) > stage:
            steps.append(waiting.popleft())
    return steps + list(waiting)


# %% zero_bubble: newest-weights-first
# A stack in place of the queue: the W that is done is the newest one. Any W may be done that has had its B; as many are kept.
def zero_bubble(stage, stages, microbatches):
    warm, stack = stages - stage - 1, []
    steps = list(map("F{}".format, range(warm)))
    for n in range(microbatches):
        steps += [f"F{warm + n}"] * (warm + n < microbatches) + [f"B{n}"]
        stack.append(n)
        steps += [f"W{stack.pop()}"] if len(stack) > stage else []
    return steps + [f"W{n}" for n in reversed(stack)]


# %% zero_bubble: sorted-by-time
# Each step has a time: F at 3n, B at 3(n + the stages after it) + 1, W after the backward n + s. Sorting does the rest.
def zero_bubble(stage, stages, microbatches):
    after, timed = stages - 1 - stage, []
    for n in range(microbatches):
        timed += [(3 * n, f"F{n}"), (3 * (n + after) + 1, f"B{n}")]
        timed.append((3 * (n + after + stage) + 2, f"W{n}"))
    return [step for _, step in sorted(timed)]


# %% zero_bubble: weights-before-the-next-forward
# Another order of the turns: W, F, B. Before each turn the W that is due, when more than s have been put off.
def zero_bubble(stage, stages, microbatches):
    after = stages - stage - 1

    def turns():
        yield from (("F", n) for n in range(after))
        for n in range(microbatches):
            if n > stage:
                yield "W", n - stage - 1
            if n + after < microbatches:
                yield "F", n + after
            yield "B", n
        yield from (("W", n) for n in range(max(0, microbatches - stage - 1), microbatches))

    return [way + str(n) for way, n in turns()]


# %% zero_bubble: own-weights-at-the-end
# After the last forward each B is followed by its *own* W at once, and what was put off earlier comes last: another right order.
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps, turns = [f"F{n}" for n in range(warm)], microbatches - warm
    for n in range(turns):
        steps.extend([f"F{warm + n}", f"B{n}"])
        if n >= stage:
            steps.append(f"W{n - stage}")
    for n in range(turns, microbatches):
        steps.extend([f"B{n}", f"W{n}"])
    done = set(steps)
    return steps + [w for w in (f"W{n}" for n in range(microbatches)) if w not in done]


# %% zero_bubble: searched-with-the-model
# Builds all stages' lists for several ways to put W off, lets the model play them, and takes the first that keeps what the goal asks for.
def zero_bubble(stage, stages, microbatches):
    def order(s, delay):
        first = stages - 1 - s
        steps = [f"F{n}" for n in range(first)]
        for n in range(microbatches + delay):
            steps += [f"F{n + first}"] if n + first < microbatches else []
            steps += [f"B{n}"] if n < microbatches else []
            steps += [f"W{n - delay}"] if n >= delay else []
        return steps

    def right(orders):
        length = lockstep.pipeline.simulate(orders).length
        most = max(map(lockstep.pipeline.kept, orders))
        return length <= 3 * microbatches + stages - 1 and most <= stages

    for delay_of in (lambda s: 0, lambda s: s // 2, lambda s: s, lambda s: s + 1):
        orders = [order(s, delay_of(s)) for s in range(stages)]
        if right(orders):
            return orders[stage]
    raise AssertionError("nothing found")


# %% most_kept: a-set
def most_kept(steps):
    alive, most = set(), 0
    for step in steps:
        if step.startswith("F"):
            alive.add(step[1:])
            most = max(most, len(alive))
        else:
            alive.discard(step[1:])
    return most


# %% most_kept: accumulate-of-ones
def most_kept(steps):
    from itertools import accumulate

    return max(accumulate((1 if s[0] == "F" else -1 for s in steps), initial=0))


# %% one_f_one_b: by-what-is-kept
def one_f_one_b(stage, stages, microbatches):
    steps, forward, backward = [], 0, 0
    while backward < microbatches:
        if forward < microbatches and forward - backward < stages - stage:
            steps.append(f"F{forward}")
            forward += 1
        else:
            steps.append(f"B{backward}")
            backward += 1
    return steps


# %% one_f_one_b: deques
def one_f_one_b(stage, stages, microbatches):
    from collections import deque

    forwards = deque(f"F{i}" for i in range(microbatches))
    backwards = deque(f"B{i}" for i in range(microbatches))
    steps = []
    for _ in range(stages - stage - 1):
        if forwards:
            steps.append(forwards.popleft())
    while backwards:
        if forwards:
            steps.append(forwards.popleft())
        steps.append(backwards.popleft())
    return steps


# %% run_stage: one-handle-a-neighbour
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    open_sends = {}
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if 0 <= source < n:
            x = torch.empty_like(inputs[0])
            dist.recv(x, source)
        elif forward:
            x = inputs[number]
        else:
            x = torch.ones_like(inputs[0])
        y = (stage.forward if forward else stage.backward)(number, x)
        del x
        if 0 <= target < n:
            if target in open_sends:
                open_sends.pop(target).wait()
            open_sends[target] = dist.isend(y, target)
        del y
    for handle in open_sends.values():
        handle.wait()


# %% run_stage: two-functions
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending = []

    def get(peer):
        x = torch.empty_like(inputs[0])
        dist.irecv(x, src=peer).wait()
        return x

    def put(y, peer):
        while len(pending) >= 2:
            pending.pop(0).wait()
        pending.append(dist.isend(y, dst=peer))

    for step in order:
        i = int(step[1:])
        if step[0] == "F":
            y = stage.forward(i, inputs[i] if rank == 0 else get(rank - 1))
            if rank != last:
                put(y, rank + 1)
        else:
            grad = torch.ones_like(inputs[i]) if rank == last else get(rank + 1)
            dx = stage.backward(i, grad)
            if rank != 0:
                put(dx, rank - 1)
    while pending:
        pending.pop().wait()


# %% run_stage: receives-posted-for-all-before
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    came, sent = {}, []
    for step in order:
        source = rank - 1 if step[0] == "F" else rank + 1
        if 0 <= source < n:
            x = torch.empty_like(inputs[0])
            came[step] = x, dist.irecv(x, source)
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        if step in came:
            x, handle = came.pop(step)
            handle.wait()
        else:
            x = inputs[number] if forward else torch.ones_like(inputs[number])
        y = (stage.forward if forward else stage.backward)(number, x)
        target = rank + 1 if forward else rank - 1
        if 0 <= target < n:
            sent.append(dist.isend(y, target))
        if len(sent) > 3:
            sent.pop(0).wait()
    for handle in sent:
        handle.wait()


# %% train_step: gpipe-with-isend
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles, kept, total = [], [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_(True)
        y = layer(x)
        if rank < n - 1:
            handles.append(dist.isend(y.detach(), rank + 1))
        else:
            y = mse_loss(y, target) / len(inputs)
            total += float(y)
        kept.append((x, y))
    for x, y in kept:
        if rank < n - 1:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            torch.autograd.backward(y, grad)
        else:
            y.backward()
        if rank > 0:
            handles.append(dist.isend(x.grad, rank - 1))
    for handle in handles:
        handle.wait()
    return total


# %% train_step: autograd-grad
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    weights = [w for w in layer.parameters() if w.requires_grad]
    losses = []
    for i in range(len(inputs)):
        if rank == 0:
            x = inputs[i].detach().clone().requires_grad_()
        else:
            x = torch.zeros_like(inputs[0]).requires_grad_()
            with torch.no_grad():
                dist.recv(x, rank - 1)
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, targets[i])
            losses.append(loss.item())
            of_x, *grads = torch.autograd.grad(loss / len(inputs), [x, *weights])
        else:
            dist.send(y.detach().contiguous(), rank + 1)
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
            of_x, *grads = torch.autograd.grad(y, [x, *weights], grad)
        if rank > 0:
            dist.send(of_x.contiguous(), rank - 1)
        for weight, one in zip(weights, grads):
            weight.grad = one if weight.grad is None else weight.grad + one
    return sum(losses) / len(losses) if losses else None


# %% split_backward: backward-inputs
def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad([y], [x], [grad], retain_graph=True)[0]
    return of_x, lambda: y.backward(grad, inputs=weights)


# %% split_backward: a-class
def split_backward(y, x, weights, grad):
    class Later:
        def __call__(self):
            grads = torch.autograd.grad(y, weights, grad_outputs=grad)
            with torch.no_grad():
                for weight, one in zip(weights, grads, strict=True):
                    if weight.grad is None:
                        weight.grad = torch.zeros_like(weight)
                    weight.grad.add_(one)

    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    return of_x, Later()


# %% interleaved: while-something-is-left
def interleaved(rank, ranks, chunks, microbatches):
    forwards = in_groups(ranks, chunks, microbatches)
    backwards = [(m, chunks - 1 - c) for m, c in forwards]
    most = (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1
    steps, f, b = [], 0, 0
    while b < len(backwards):
        if f < len(forwards) and f - b < most:
            steps.append("F{}.{}".format(*forwards[f]))
            f += 1
        else:
            steps.append("B{}.{}".format(*backwards[b]))
            b += 1
    return steps


# %% interleaved: strided-slices
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    total = len(order)
    warm = min(total, (chunks - 1) * ranks + 2 * (ranks - rank - 1))
    result = [""] * (2 * total)
    f = [f"F{m}.{c}" for m, c in order]
    b = [f"B{m}.{chunks - 1 - c}" for m, c in order]
    result[:warm] = f[:warm]
    result[warm : 2 * total - warm : 2] = f[warm:]
    result[warm + 1 : 2 * total - warm : 2] = b[: total - warm]
    result[2 * total - warm :] = b[total - warm :]
    return result


# %% zero_bubble: by-counts
def zero_bubble(stage, stages, microbatches):
    steps, f, b, w = [], 0, 0, 0
    while w < microbatches:
        if f < microbatches and f - b < stages - stage:
            steps.append(f"F{f}")
            f += 1
        elif (
            b < microbatches
            and b - w <= stage
            and (b - w < stage or f == microbatches or f - w <= stages)
        ):
            steps.append(f"B{b}")
            b += 1
            if b - w > stage:
                steps.append(f"W{w}")
                w += 1
        else:
            steps.append(f"W{w}")
            w += 1
    return steps


# %% zero_bubble: offset-lists
def zero_bubble(stage, stages, microbatches):
    warm, steps = stages - 1 - stage, []
    for at in range(-warm, microbatches + stage):
        if at + warm < microbatches:
            steps.append(f"F{at + warm}")
        if 0 <= at < microbatches:
            steps.append(f"B{at}")
        if 0 <= at - stage < microbatches:
            steps.append(f"W{at - stage}")
    return steps


# %% most_kept: a-set-of-numbers
def most_kept(steps):
    kept, sizes = set(), [0]
    for step in steps:
        (kept.add if step[0] == "F" else kept.remove)(step[1:])
        sizes.append(len(kept))
    return max(sizes)


# %% most_kept: accumulated
def most_kept(steps):
    changes = ({"F": 1, "B": -1}[way] for way, *_ in steps)
    return max(itertools.accumulate(changes, initial=0))


# %% most_kept: counts-before-each-place
def most_kept(steps):
    ways = "".join(step[0] for step in steps)
    return max(ways[:at].count("F") - ways[:at].count("B") for at in range(len(ways) + 1))


# %% one_f_one_b: from-two-iterators
def one_f_one_b(stage, stages, microbatches):
    forwards = (f"F{i}" for i in range(microbatches))
    backwards = (f"B{i}" for i in range(microbatches))
    steps = list(itertools.islice(forwards, stages - stage - 1))
    for forward in forwards:
        steps += [forward, next(backwards)]
    return [*steps, *backwards]


# %% run_stage: the-last-handle-of-each-way
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = {}
    for step in order:
        way, number = step[0], int(step[1:])
        source, goal = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        if 0 <= source < n:
            x = torch.empty_like(inputs[number])
            dist.irecv(x, source).wait()
        elif way == "F":
            x = inputs[number]
        else:
            x = torch.ones_like(inputs[number])
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if way in handles:
            handles.pop(way).wait()
        if 0 <= goal < n:
            handles[way] = dist.isend(y, goal)
        del x, y
    for handle in handles.values():
        handle.wait()


# %% run_stage: a-window-of-five
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending = []

    def received(source, other):
        if not 0 <= source <= last:
            return other
        x = torch.empty_like(inputs[0])
        dist.recv(x, src=source)
        return x

    def send(y, target):
        nonlocal pending
        if 0 <= target <= last:
            pending.append(dist.isend(y, dst=target))
        for handle in pending[:-5]:
            handle.wait()
        pending = pending[-5:]

    for step in order:
        i = int(step[1:])
        if step[0] == "F":
            send(stage.forward(i, received(rank - 1, inputs[i])), rank + 1)
        else:
            ones = torch.ones_like(inputs[i])
            send(stage.backward(i, received(rank + 1, ones)), rank - 1)
    while pending:
        pending.pop(0).wait()


# %% train_step: one-microbatch-at-a-time
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_(True)
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += float(loss)
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            torch.autograd.backward(y, grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: divides-at-the-end
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    pairs, handles, losses = deque(), [], []
    for i in range(m):
        if rank == 0:
            x = inputs[i]
        else:
            x = torch.zeros_like(inputs[0])
            dist.irecv(x, rank - 1).wait()
            x = x.requires_grad_()
        y = layer(x)
        if rank + 1 < n:
            handles.append(dist.isend(y.detach().contiguous(), rank + 1))
        pairs.append((x, y))
    for target in targets:
        x, y = pairs.popleft()
        if rank + 1 < n:
            grad = torch.zeros_like(y)
            dist.recv(grad, rank + 1)
            y.backward(gradient=grad)
        else:
            losses.append(mse_loss(y, target))
            losses[-1].backward()
        if rank > 0:
            handles.append(dist.isend(x.grad.contiguous(), rank - 1))
    for handle in handles:
        handle.wait()
    for p in layer.parameters():
        p.grad.div_(m)
    if losses:
        return torch.stack(losses).mean().item()


# %% train_step: newest-first
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stack, sends = [], []
    for given, target in zip(inputs, targets, strict=True):
        x = given
        if rank:
            x = torch.empty_like(given)
            dist.recv(x, rank - 1)
            x.requires_grad = True
        y = layer(x)
        if rank == last:
            y = mse_loss(y, target) / len(targets)
        else:
            sends.append(dist.isend(y.detach().clone(), rank + 1))
        stack.append((x, y))
    loss = sum(y.item() for _, y in stack) if rank == last else None
    while stack:
        x, y = stack.pop()
        grad = None
        if rank != last:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank:
            sends.append(dist.isend(x.grad, rank - 1))
    for one in sends:
        one.wait()
    return loss


# %% split_backward: backward-with-inputs
def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad(outputs=[y], inputs=[x], grad_outputs=[grad], retain_graph=True)[0]

    def later():
        torch.autograd.backward([y], [grad], inputs=list(weights))

    return of_x, later


# %% split_backward: weight-by-weight
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for w in weights:
            (own,) = torch.autograd.grad(y, w, grad, retain_graph=True)
            if w.grad is None:
                w.grad = torch.zeros_like(w)
            w.grad.add_(own)

    return of_x, later


# %% split_backward: a-partial
def _add(y, weights, grad):
    for w, own in zip(weights, torch.autograd.grad(y, weights, grad)):
        w.grad = own if w.grad is None else w.grad + own


def split_backward(y, x, weights, grad):
    return *torch.autograd.grad(y, x, grad, retain_graph=True), partial(_add, y, weights, grad)


# %% interleaved: two-iterators
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    forwards = (f"F{m}.{c}" for m, c in order)
    backwards = (f"B{m}.{chunks - c - 1}" for m, c in order)
    ahead = (chunks - 1) * ranks + 2 * (ranks - rank - 1)
    steps = list(itertools.islice(forwards, ahead))
    for forward in forwards:
        steps += [forward, next(backwards)]
    return steps + list(backwards)


# %% interleaved: a-place-for-each
def interleaved(rank, ranks, chunks, microbatches):
    ahead = (chunks - 1) * ranks + 2 * (ranks - 1 - rank)
    places = []
    for m in range(microbatches):
        group, inside = divmod(m, ranks)
        for c in range(chunks):
            at = (group * chunks + c) * ranks + inside
            back = (group * chunks + chunks - 1 - c) * ranks + inside
            places += [(2 * at, f"F{m}.{c}"), (2 * (back + ahead) + 1, f"B{m}.{c}")]
    return [step for _, step in sorted(places)]


# %% interleaved: by-counting
def interleaved(rank, ranks, chunks, microbatches):
    total, steps, f, b = chunks * microbatches, [], 0, 0
    limit = (chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1

    def name(way, k):
        group, rest = divmod(k, ranks * chunks)
        chunk, inside = divmod(rest, ranks)
        chunk = chunk if way == "F" else chunks - 1 - chunk
        return f"{way}{group * ranks + inside}.{chunk}"

    while b < total:
        if f < total and f - b < limit:
            steps.append(name("F", f))
            f += 1
        else:
            steps.append(name("B", b))
            b += 1
    return steps


# %% zero_bubble: a-queue-of-weights
def zero_bubble(stage, stages, microbatches):
    steps, waiting, forwards = [], deque(), iter(range(microbatches))
    for i in itertools.islice(forwards, stages - 1 - stage):
        steps.append(f"F{i}")
    for i in range(microbatches):
        steps += [f"F{number}" for number in itertools.islice(forwards, 1)]
        steps.append(f"B{i}")
        waiting.append(i)
        if len(waiting) > stage:
            steps.append(f"W{waiting.popleft()}")
    return steps + [f"W{i}" for i in waiting]


# %% zero_bubble: inserted-into-the-list
def zero_bubble(stage, stages, microbatches):
    ahead = stages - 1 - stage
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        steps += [f"F{i + ahead}"] * (i + ahead < microbatches) + [f"B{i}"]
    for i in range(microbatches):
        place = steps.index(f"B{i + stage}") + 1 if i + stage < microbatches else len(steps)
        steps.insert(place, f"W{i}")
    return steps


# %% zero_bubble: sorted-by-keys
def zero_bubble(stage, stages, microbatches):
    ahead, numbers = stages - 1 - stage, range(microbatches)
    keyed = [(3 * i, f"F{i}") for i in numbers]
    keyed += [(3 * (i + ahead) + 1, f"B{i}") for i in numbers]
    keyed += [(3 * (i + ahead + stage) + 2, f"W{i}") for i in numbers]
    return [step for _, step in sorted(keyed)]


# %% interleaved: fills-for-one-way
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{m}.{c}" for m, c in order]
    backwards = [f"B{m}.{chunks - 1 - c}" for m, c in order]
    ahead = min((chunks - 1) * ranks + (ranks - 1 - rank), len(forwards))
    steps = forwards[:ahead]
    for f, b in zip(forwards[ahead:], backwards):
        steps += [f, b]
    return steps + backwards[len(forwards) - ahead :]


# %% run_stage: waits-before-it-receives
def run_stage(order, stage, inputs):
    rank, n, pending = dist.get_rank(), dist.get_world_size(), deque(maxlen=5)
    neighbours = {"F": (rank - 1, rank + 1), "B": (rank + 1, rank - 1)}
    for way, *digits in order:
        number = int("".join(digits))
        source, target = neighbours[way]
        if len(pending) == 5:
            pending.popleft().wait()
        if source in range(n):
            given = torch.empty_like(inputs[0])
            dist.recv(given, source)
        else:
            given = {"F": inputs[number], "B": torch.ones_like(inputs[number])}[way]
        result = {"F": stage.forward, "B": stage.backward}[way](number, given)
        if target in range(n):
            pending.append(dist.isend(result, target))
    for handle in pending:
        handle.wait()


# %% train_step: gradients-by-autograd-grad
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    parameters, losses = list(layer.parameters()), []
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for x, target in zip(inputs, targets):
        if rank:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y, grad = layer(x), None
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
        else:
            y = mse_loss(y, target) / m
            losses.append(y.item())
        wanted = parameters + [x] * bool(rank)
        grads = torch.autograd.grad(y, wanted, grad)
        for p, own in zip(parameters, grads):
            p.grad += own
        if rank:
            dist.send(grads[-1], rank - 1)
    return sum(losses)


# %% split_backward: in-a-class
def split_backward(y, x, weights, grad):
    class Later:
        def __call__(self):
            grads = torch.autograd.grad([y], list(weights), [grad])
            with torch.no_grad():
                for w, own in zip(weights, grads):
                    if w.grad is not None:
                        w.grad.add_(own)
                    else:
                        w.grad = own.clone()

    return torch.autograd.grad(y, [x], [grad], retain_graph=True)[0], Later()


# %% most_kept: lengths-of-a-set
def most_kept(steps):
    kept, sizes = frozenset(), [0]
    for kind, *number in steps:
        number = "".join(number)
        kept = kept | {number} if kind == "F" else kept - {number}
        sizes.append(len(kept))
    return max(sizes)


# %% one_f_one_b: two-iterators
def one_f_one_b(stage, stages, microbatches):
    forwards = iter([f"F{i}" for i in range(microbatches)])
    backwards = iter([f"B{i}" for i in range(microbatches)])
    steps = list(itertools.islice(forwards, stages - stage - 1))
    for step in forwards:
        steps += [step, next(backwards)]
    return [*steps, *backwards]


# %% run_stage: deque-with-a-limit
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    under_way = collections.deque()

    def send(tensor, to):
        under_way.append((dist.isend(tensor, to), tensor))

    for kind, *digits in order:
        while len(under_way) > 3:
            under_way.popleft()[0].wait()
        number = int("".join(digits))
        came = inputs[number] if kind == "F" else torch.ones_like(inputs[0])
        source = rank - 1 if kind == "F" else rank + 1
        if 0 <= source <= last:
            came = torch.empty_like(inputs[0])
            dist.recv(came, source)
        made = (stage.forward if kind == "F" else stage.backward)(number, came)
        del came
        to = rank + 1 if kind == "F" else rank - 1
        if 0 <= to <= last:
            send(made, to)
        del made
    while under_way:
        under_way.popleft()[0].wait()


# %% train_step: one-microbatch-at-a-time-once-more
def train_step(layer, inputs, targets):
    rank, last, m = dist.get_rank(), dist.get_world_size() - 1, len(inputs)
    losses = []
    for x, target in zip(inputs, targets):
        x = x.detach().clone().requires_grad_(rank > 0)
        if rank > 0:
            with torch.no_grad():
                dist.recv(x, rank - 1)
        y = layer(x)
        if rank == last:
            losses.append(mse_loss(y, target))
            (losses[-1] / m).backward()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
            torch.autograd.backward(y, grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return sum(one.item() for one in losses) / m if losses else None


# %% split_backward: backward-with-inputs-once-more
def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad([y], [x], [grad], retain_graph=True)[0]
    return of_x, lambda: torch.autograd.backward([y], [grad], inputs=list(weights))


# %% interleaved: by-index
def interleaved(rank, ranks, chunks, microbatches):
    total = microbatches * chunks
    warm = min(total, (chunks - 1) * ranks + 2 * (ranks - 1 - rank))

    def name(kind, k):
        group, inside = divmod(k, ranks * chunks)
        chunk, number = divmod(inside, ranks)
        return f"{kind}{group * ranks + number}.{chunk if kind == 'F' else chunks - 1 - chunk}"

    steps = []
    for k in range(total + warm):
        if k < total:
            steps.append(name("F", k))
        if k >= warm:
            steps.append(name("B", k - warm))
    return steps
