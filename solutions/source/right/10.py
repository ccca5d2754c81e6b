"""Right answers to the exercises of lab 10, in other ways than the solution's."""

from collections import deque
from itertools import accumulate, chain

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import P2POp, irecv, isend, recv
from torch.nn.functional import mse_loss


# %% most_kept: a-set
def most_kept(steps):
    waiting, most = set(), 0
    for step in steps:
        if step[0] == "F":
            waiting.add(step[1:])
        else:
            waiting.remove(step[1:])
        most = max(most, len(waiting))
    return most


# %% most_kept: accumulate
def most_kept(steps):
    return max(accumulate(1 if step[0] == "F" else -1 for step in steps), default=0)


# %% most_kept: a-tensor
def most_kept(steps):
    ways = torch.tensor([1 if step[0] == "F" else -1 for step in steps] or [0])
    return ways.cumsum(0).max()


# %% most_kept: of-numpy
def most_kept(steps):
    counts = np.cumsum([0, *(1 if step.startswith("F") else -1 for step in steps)])
    return counts.max()


# %% most_kept: each-beginning
def most_kept(steps):
    return max(
        sum(s[0] == "F" for s in steps[:at]) - sum(s[0] == "B" for s in steps[:at])
        for at in range(len(steps) + 1)
    )


# %% most_kept: recursive
def most_kept(steps):
    if not steps:
        return 0
    head, *rest = steps
    return max(0, (1 if head[0] == "F" else -1) + most_kept(rest))


# %% most_kept: by-places
def most_kept(steps):
    places = {step: at for at, step in enumerate(steps)}
    spans = [(places[f], places["B" + f[1:]]) for f in steps if f[0] == "F"]
    return max((sum(a <= at < b for a, b in spans) for at in range(len(steps))), default=0)


# %% one_f_one_b: tuple
def one_f_one_b(stage, stages, microbatches):
    behind = min(stages - stage - 1, microbatches)
    turns = [(f"F{i}", f"B{i - behind}") for i in range(behind, microbatches)]
    first = tuple(f"F{i}" for i in range(behind))
    last = tuple(f"B{i}" for i in range(microbatches - behind, microbatches))
    return first + tuple(step for pair in turns for step in pair) + last


# %% one_f_one_b: by-a-queue
def one_f_one_b(stage, stages, microbatches):
    forwards = deque(range(microbatches))
    alive: deque = deque()
    steps = []
    while forwards or alive:
        if forwards and len(alive) < stages - stage:
            alive.append(forwards.popleft())
            steps.append("F" + str(alive[-1]))
        else:
            steps.append("B" + str(alive.popleft()))
    return steps


# %% one_f_one_b: sorted
def one_f_one_b(stage, stages, microbatches):
    behind = stages - 1 - stage
    at = {f"F{i}": (i, 0) for i in range(microbatches)}
    at |= {f"B{i}": (min(i + behind, microbatches), 1 + i) for i in range(microbatches)}
    return sorted(at, key=lambda step: at[step])


# %% one_f_one_b: yields
def one_f_one_b(stage, stages, microbatches):
    def steps():
        warm = stages - 1 - stage
        for number in range(microbatches + warm):
            if number < microbatches:
                yield f"F{number}"
            if number >= warm:
                yield f"B{number - warm}"

    return list(steps())


# %% one_f_one_b: recursive
def one_f_one_b(stage, stages, microbatches, done=0, back=0):
    if back == microbatches:
        return []
    if done < microbatches and done - back < stages - stage:
        return [f"F{done}", *one_f_one_b(stage, stages, microbatches, done + 1, back)]
    return [f"B{back}", *one_f_one_b(stage, stages, microbatches, done, back + 1)]


# %% run_stage: by-ways
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    works: deque = deque()

    def pass_on(result, to):
        if 0 <= to < n:
            works.append(isend(result, to))
        if len(works) > 2:
            works.popleft().wait()

    def forward(number):
        x = inputs[number]
        if rank:
            x = torch.zeros_like(x)
            recv(x, rank - 1)
        pass_on(stage.forward(number, x), rank + 1)

    def backward(number):
        grad = torch.ones_like(inputs[0])
        if rank + 1 < n:
            recv(grad, rank + 1)
        pass_on(stage.backward(number, grad), rank - 1)

    for step in order:
        {"F": forward, "B": backward}[step[:1]](int(step[1:]))
    for work in works:
        work.wait()


# %% run_stage: tags
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent: dict = {}
    for step in order:
        number = int(step.strip("FB"))
        forward = step.startswith("F")
        x = inputs[number].clone() if forward else torch.ones(inputs[0].shape).to(inputs[0])
        if rank != (0 if forward else last):
            dist.irecv(x, rank + (-1 if forward else 1), tag=number).wait()
        y = (stage.forward if forward else stage.backward)(number, x)
        if rank != (last if forward else 0):
            if old := sent.pop(forward, None):
                old.wait()
            sent[forward] = dist.isend(y, rank + (1 if forward else -1), tag=number)
    while sent:
        sent.popitem()[1].wait()


# %% run_stage: batches-and-copies
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    works: dict = {"F": [], "B": []}
    for step in order:
        way, number = step[0], int(step[1:])
        peer_in, peer_out = (rank - 1, rank + 1)[:: 1 if way == "F" else -1]
        if peer_in in range(last + 1):
            x = torch.empty_like(inputs[number])
            for work in dist.batch_isend_irecv([P2POp(irecv, x, peer_in)]):
                work.wait()
        else:
            x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        out = getattr(stage, {"F": "forward", "B": "backward"}[way])(number, x)
        if peer_out in range(last + 1):
            for work in works[way]:
                work.wait()
            works[way] = dist.batch_isend_irecv([P2POp(isend, out.clone(), peer_out)])
    for work in works["F"] + works["B"]:
        work.wait()


# %% run_stage: two-slots
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    slots: list = [[None, None], [None, None]]  # two buffers each way, used in turn
    handles: list = [[None, None], [None, None]]
    for step in list(order):
        way, number = step[0], int(step[1:])
        at, turn = "FB".index(way), number % 2
        source, to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        if 0 <= source <= last:
            x = inputs[number].new_empty(inputs[number].shape)
            dist.recv(x, src=source)
        else:
            x = inputs[number] if way == "F" else inputs[number].new_ones(inputs[number].shape)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= to <= last:
            if handles[at][turn] is not None:
                handles[at][turn].wait()
                slots[at][turn].copy_(y)
            else:
                slots[at][turn] = y.clone()
            handles[at][turn] = dist.isend(slots[at][turn], dst=to)
    for pair in handles:
        for handle in pair:
            if handle is not None:
                handle.wait()


# %% run_stage: waits-where-the-other-way-comes
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    before = rank - 1 if rank > 0 else None
    after = rank + 1 if rank < n - 1 else None
    handles: list = []
    for step in order:
        if step[0] == "F":
            source, target, run, first = before, after, stage.forward, inputs[int(step[1:])]
        else:
            source, target, run = after, before, stage.backward
            first = inputs[int(step[1:])] * 0 + 1
        if source is not None:
            first = torch.empty_like(first)
            assert dist.recv(first, source) == source
        result = run(int(step[1:]), first)
        if target is not None:
            if len(handles) == 4:
                handles.pop(0).wait()
            handles.append(dist.isend(result, target))
    _ = [handle.wait() for handle in handles]


# %% train_step: one-forward-one-backward
def train_step(layer, inputs, targets):
    rank, ranks, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    kept: deque = deque()
    handles: list = []
    losses = []

    def forward(i):
        x = inputs[i].clone()
        if rank:
            dist.recv(x, rank - 1)
            x.requires_grad = True
        y = layer(x)
        if rank + 1 < ranks:
            handles.append(dist.isend(y.detach(), rank + 1))
        else:
            y = mse_loss(y, targets[i])
            losses.append(y.item())
        kept.append((x, y))

    def backward():
        x, y = kept.popleft()
        grad = torch.tensor(1 / m, dtype=y.dtype)
        if rank + 1 < ranks:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
        torch.autograd.backward(y, grad)
        if rank:
            handles.append(dist.isend(x.grad, rank - 1))

    warm = min(ranks - 1 - rank, m)
    for i in range(warm):
        forward(i)
    for i in range(warm, m):
        forward(i)
        backward()
    while kept:
        backward()
    for handle in handles:
        handle.wait()
    return sum(losses) / m if losses else None


# %% train_step: by-autograd-grad
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    weights, xs, ys = list(layer.parameters()), [], []
    for x in inputs:
        x = x.detach().clone()
        if rank > 0:
            dist.recv(x, rank - 1)
        x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach().clone(), rank + 1)
        xs.append(x)
        ys.append(y)
    loss = torch.zeros((), dtype=inputs[0].dtype)
    for i in range(len(inputs)):
        if rank == last:
            out = mse_loss(ys[i], targets[i]) / len(inputs)
            loss = loss + out.detach()
            found = torch.autograd.grad(out, [xs[i], *weights])
        else:
            grad = torch.empty_like(ys[i])
            dist.recv(grad, rank + 1)
            found = torch.autograd.grad(ys[i], [xs[i], *weights], grad)
        if rank > 0:
            dist.send(found[0], rank - 1)
        for weight, more in zip(weights, found[1:], strict=True):
            weight.grad = more if weight.grad is None else weight.grad + more
    return loss


# %% train_step: last-first
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept = []
    for x in inputs:
        if rank > 0:
            x = torch.zeros(x.shape, dtype=x.dtype)
            dist.irecv(x, rank - 1).wait()
        x = x.clone().requires_grad_(True)
        kept.append((x, layer(x)))
        if rank < last:
            dist.isend(kept[-1][1].detach(), rank + 1).wait()
    total = 0.0
    for target in reversed(targets):
        x, y = kept.pop()
        if rank == last:
            loss = ((y - target) ** 2).mean()
            (loss / len(inputs)).backward()
            total += float(loss) / len(inputs)
        else:
            grad = torch.zeros_like(y)
            dist.irecv(grad, rank + 1).wait()
            (y * grad).sum().backward()
        if rank > 0:
            dist.isend(x.grad, rank - 1).wait()
    return total


# %% train_step: scaled-at-the-end
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for x in inputs:
        if rank:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        kept.append((x, layer(x)))
        if rank < last:
            dist.send(kept[-1][1].data, rank + 1)
    for (x, y), target in zip(kept, targets, strict=True):
        if rank < last:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target)
            loss.backward()
            total += loss.item()
        if rank:
            dist.send(x.grad, rank - 1)
    for weight in layer.parameters():
        weight.grad /= len(inputs)
    return total / len(inputs)


# %% train_step: one-loss
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    xs, ys = [], []
    for x in inputs:
        if rank > 0:
            x = x.new_empty(x.shape)
            dist.recv(x, src=rank - 1)
            x.requires_grad_()
        xs.append(x)
        ys.append(layer(x))
        if rank < last:
            with torch.no_grad():
                dist.send(ys[-1] * 1, dst=rank + 1)
    if rank == last:
        loss = torch.stack([mse_loss(y, t) for y, t in zip(ys, targets, strict=True)]).mean()
        loss.backward()
    for x, y in zip(xs, ys, strict=True):
        if rank < last:
            grad = y.new_empty(y.shape)
            dist.recv(grad, src=rank + 1)
            y.backward(gradient=grad)
        if rank > 0:
            dist.send(x.grad, dst=rank - 1)
    return loss if rank == last else 0.0


# %% interleaved: fills-less
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{n}.{c}" for n, c in where]
    backwards = [f"B{n}.{chunks - 1 - c}" for n, c in where]
    warm = min((chunks - 1) * ranks + ranks - 1 - rank, total)
    steps = forwards[:warm]
    for k in range(total - warm):
        steps += [forwards[warm + k], backwards[k]]
    return steps + backwards[total - warm :]


# %% interleaved: tuple-by-groups
def interleaved(rank, ranks, chunks, microbatches):
    forwards, backwards = [], []
    for first in range(0, microbatches, ranks):
        group = range(first, first + ranks)
        forwards += [f"F{n}.{c}" for c in range(chunks) for n in group]
        backwards += [f"B{n}.{c}" for c in reversed(range(chunks)) for n in group]
    warm = (chunks - 1) * ranks + 2 * (ranks - rank) - 2
    steps = []
    while backwards:
        if forwards:
            steps.append(forwards.pop(0))
        if len(steps) > warm or not forwards:
            steps.append(backwards.pop(0))
    return tuple(steps)


# %% interleaved: round-and-round
def interleaved(rank, ranks, chunks, microbatches):
    def rounds(way, order):
        for begin in range(microbatches // ranks):
            for chunk in order:
                yield from (f"{way}{begin * ranks + n}.{chunk}" for n in range(ranks))

    forwards = deque(rounds("F", range(chunks)))
    backwards = deque(rounds("B", range(chunks - 1, -1, -1)))
    steps, ahead = [], 0
    most = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1
    while backwards:
        if forwards and ahead < most:
            steps.append(forwards.popleft())
            ahead += 1
        else:
            steps.append(backwards.popleft())
            ahead -= 1
    return steps


# %% interleaved: sorted-by-time
def interleaved(rank, ranks, chunks, microbatches):
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), chunks * microbatches)
    steps = []
    for n in range(microbatches):
        group, place = divmod(n, ranks)
        for c in range(chunks):
            k = (group * chunks + c) * ranks + place
            steps.append((2 * k, f"F{n}.{c}"))
            steps.append((2 * (k + warm) + 1, f"B{n}.{chunks - 1 - c}"))
    return [step for _, step in sorted(steps)]


# %% interleaved: a-class-of-strings
def interleaved(rank, ranks, chunks, microbatches):
    class Step(str):
        __slots__ = ()

    forwards, backwards = [], []
    for first in range(0, microbatches, ranks):
        group = range(first, first + ranks)
        forwards += [f"F{n}.{c}" for c in range(chunks) for n in group]
        backwards += [f"B{n}.{c}" for c in reversed(range(chunks)) for n in group]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(forwards))
    pairs = zip(forwards[warm:], backwards, strict=False)
    order = [*forwards[:warm], *chain.from_iterable(pairs), *backwards[len(forwards) - warm :]]
    return [Step(one) for one in order]


# %% interleaved: megatrons
def interleaved(rank, ranks, chunks, microbatches):
    table = [
        (first + n, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for n in range(ranks)
    ]
    total = len(table)
    warm = min((ranks - rank - 1) * 2 + (chunks - 1) * ranks, total)
    if microbatches == ranks:
        warm = min(warm, total)
    order = []
    for k in range(total + warm):
        if k < total:
            number, chunk = table[k]
            order.append(f"F{number}.{chunk}")
        if k >= warm:
            number, chunk = table[k - warm]
            order.append(f"B{number}.{chunks - chunk - 1}")
    return order


# %% zero_bubble: from-1f1b
def zero_bubble(stage, stages, microbatches):
    steps, late = [], []
    for k in range(microbatches + stages - 1 - stage):
        if k < microbatches:
            steps.append(f"F{k}")
        if k >= stages - 1 - stage:
            number = k - (stages - 1 - stage)
            steps.append(f"B{number}")
            late.append(f"W{number}")
            if len(late) > stage:
                steps.append(late.pop(0))
    return tuple(steps + late)


# %% zero_bubble: by-counting
def zero_bubble(stage, stages, microbatches):
    done, steps = dict.fromkeys("FBW", 0), []

    def take(way):
        steps.append(f"{way}{done[way]}")
        done[way] += 1

    while done["W"] < microbatches:
        if done["F"] < microbatches and done["F"] - done["B"] < stages - stage:
            take("F")
        elif done["B"] < microbatches:
            take("B")
            if done["B"] - done["W"] > stage:
                take("W")
        else:
            take("W")
    return steps


# %% zero_bubble: by-a-place
def zero_bubble(stage, stages, microbatches):
    ahead = stages - 1 - stage
    places = []
    for n in range(microbatches):
        places.append((3 * n, f"F{n}"))
        places.append((3 * (n + ahead) + 1, f"B{n}"))
        places.append((3 * (n + ahead + stage) + 2, f"W{n}"))
    return [step for _, step in sorted(places)]


# %% zero_bubble: with-chunk-0
def zero_bubble(stage, stages, microbatches):
    ahead, steps = stages - 1 - stage, [f"F{n}.0" for n in range(stages - 1 - stage)]
    for n in range(microbatches):
        if n + ahead < microbatches:
            steps.append(f"F{n + ahead}.0")
        steps.append(f"B{n}.0")
        if n >= stage:
            steps.append(f"W{n - stage}.0")
    for n in range(microbatches - stage, microbatches):
        steps.append(f"W{n}.0")
    return steps


# %% zero_bubble: inserts
def zero_bubble(stage, stages, microbatches):
    ahead = stages - 1 - stage
    order = ["F" + str(n) for n in range(microbatches)]
    for n in range(microbatches):
        forward = "F" + str(min(n + ahead, microbatches - 1))
        before = "B" + str(n - 1)
        after = max(order.index(forward), order.index(before) if n else 0)
        order.insert(after + 1, "B" + str(n))
    for n in range(microbatches):
        if n + stage < microbatches:
            order.insert(order.index("B" + str(n + stage)) + 1, "W" + str(n))
        else:
            order.append("W" + str(n))
    return order


# %% split_backward: backward-inputs
def split_backward(y, x, weights, grad):
    y.backward(grad, inputs=[x], retain_graph=True)
    return x.grad, lambda: y.backward(grad, inputs=weights)


# %% split_backward: a-list
def split_backward(y, x, weights, grad):
    (dx,) = torch.autograd.grad([y], [x], [grad], retain_graph=True)

    class Later:
        def __call__(self):
            torch.autograd.backward([y], [grad], inputs=list(weights))

    return [dx, Later()]


# %% split_backward: by-a-sum
def split_backward(y, x, weights, grad):
    total = (y * grad).sum()
    dx = torch.autograd.grad(total, x, retain_graph=True)[0]

    def later():
        with torch.no_grad():
            for weight, more in zip(weights, torch.autograd.grad(total, weights), strict=True):
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                weight.grad += more

    return dx, later


# %% split_backward: onto-a-leaf
def split_backward(y, x, weights, grad):
    x.grad = None
    torch.autograd.backward(y, grad_tensors=grad, retain_graph=True, inputs=x)

    def later():
        for weight in weights:
            y.backward(gradient=grad, retain_graph=True, inputs=[weight])

    return x.grad.clone(), later


# %% split_backward: a-generator-of-one
def split_backward(y, x, weights, grad):
    def second():
        for weight in weights:
            (more,) = torch.autograd.grad(y, weight, grad, retain_graph=True)
            weight.grad = more + (0 if weight.grad is None else weight.grad)
        return None

    first = torch.autograd.grad(outputs=y, inputs=x, grad_outputs=grad, retain_graph=True)
    return first[0].detach(), second
