"""Wrong answers to the exercises of lab 10, each under the mistake that its check has to name."""

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def pipelined(
    layer,
    inputs,
    targets,
    share=1.0,  # of each microbatch's loss that is differentiated
    before=lambda: None,  # what is called before each backward
    back=lambda x, y: x.grad,  # what is sent back
    order=iter,  # in which backwards come
    into=torch.empty_like,  # where a rank receives
):
    """A training step; returns each microbatch's loss on the last rank, and nothing elsewhere."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, losses = [], []
    for x in inputs:
        if rank > 0:
            x = into(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        y.retain_grad()
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for number, (x, y) in order(list(enumerate(kept))):
        before()
        if rank == last:
            loss = mse_loss(y, targets[number])
            (loss * share).backward()
            losses.append(loss.item())
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(back(x, y), rank - 1)
    return losses


# %% most_kept: all-forwards
def most_kept(steps):
    return len([step for step in steps if step.startswith("F")])


# %% most_kept: before-the-first
def most_kept(steps):
    count = 0
    for step in steps:
        if step[0] == "B":
            break
        count += 1
    return count


# %% most_kept: at-the-end
def most_kept(steps):
    now = 0
    for step in steps:
        if step[0] == "F":
            now += 1
        else:
            now -= 1
    return now


# %% most_kept: longest-run
def most_kept(steps):
    most = row = 0
    for step in steps:
        row = row + 1 if step[0] == "F" else 0
        most = max(most, row)
    return most


# %% most_kept: after-backwards
def most_kept(steps):
    now = most = 0
    for step in steps:
        if step[0] == "F":
            now += 1
        else:
            now -= 1
            most = max(most, now)
    return most


# %% most_kept: all-steps
def most_kept(steps):
    return len(set(steps))


# %% most_kept: largest-number
def most_kept(steps):
    return max((int(step[1:]) for step in steps), default=0)


# %% most_kept: last-numbers
def most_kept(steps):
    forward = backward = -1
    most = 0
    for step in steps:
        if step[0] == "F":
            forward = int(step[1:])
        else:
            backward = int(step[1:])
        most = max(most, forward - backward)
    return most


# %% most_kept: last-numbers
def most_kept(steps):
    forward = backward = -1
    most = 0
    for step in steps:
        if step[0] == "F":
            forward = max(forward, int(step[1:]))
        else:
            backward = max(backward, int(step[1:]))
        most = max(most, forward - backward)
    return most


# %% most_kept: freed-late
def most_kept(steps):
    kept, done, most = set(), None, 0
    for step in steps:
        if step[0] == "F":
            kept.add(step[1:])
        most = max(most, len(kept))
        kept.discard(done)
        done = step[1:] if step[0] == "B" else None
    return most


# %% most_kept: one-more
def most_kept(steps):
    now, most = 0, 0
    for step in steps:
        now += 1 if step[0] == "F" else -1
        most = max(most, now)
    return most + 1 if steps else 0


# %% most_kept: one-more
def most_kept(steps):
    kept, most = set(), 0
    for step in steps:
        kept.add(step)
        most = max(most, len([one for one in kept if one[0] == "F"]))
        if step[0] == "B":
            kept.discard("F" + step[1:])
    return most + 1


# %% most_kept: one-digit
def most_kept(steps):
    kept, most = set(), 0
    for step in steps:
        (kept.add if step[0] == "F" else kept.discard)(step[1])
        most = max(most, len(kept))
    return most


# %% most_kept: one-digit
def most_kept(steps):
    kept, most = set(), 0
    for step in steps:
        (kept.add if step[0] == "F" else kept.discard)(step[-1])
        most = max(most, len(kept))
    return most


# %% most_kept: front-only
def most_kept(steps):
    kept, done, most = [], set(), 0
    for step in steps:
        if step[0] == "F":
            kept.append(step[1:])
        else:
            done.add(step[1:])
        while kept and kept[0] in done:
            kept.pop(0)
        most = max(most, len(kept))
    return most


# %% most_kept: front-only
def most_kept(steps):
    kept, most = [], 0
    for step in steps:
        if step[0] == "F":
            kept.append(step[1:])
        elif kept and kept[0] == step[1:]:
            kept.pop(0)
        most = max(most, len(kept))
    return most


# %% most_kept: longest-stay
def most_kept(steps):
    place = {step: at for at, step in enumerate(steps)}
    stays = (place["B" + step[1:]] - at for step, at in place.items() if step[0] == "F")
    return max(stays, default=0)


# %% one_f_one_b: same-everywhere
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - 1, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: same-everywhere
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: same-everywhere
def one_f_one_b(stage, stages, microbatches):
    return [f"{way}{number}" for number in range(microbatches) for way in "FB"]


# %% one_f_one_b: same-everywhere
def one_f_one_b(stage, stages, microbatches):
    steps = ["F0"]
    for number in range(1, microbatches):
        steps += [f"F{number}", f"B{number - 1}"]
    return [*steps, f"B{microbatches - 1}"]


# %% one_f_one_b: all-then-all
def one_f_one_b(stage, stages, microbatches):
    forwards = [f"F{number}" for number in range(microbatches)]
    return forwards + [f"B{number}" for number in range(microbatches)]


# %% one_f_one_b: wrong-end
def one_f_one_b(stage, stages, microbatches):
    warm = min(stage, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: incomplete
def one_f_one_b(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps


# %% one_f_one_b: wrong-warm-up
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: last-first
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{microbatches - 1 - number}" for number in range(warm)]


# %% one_f_one_b: type
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    s = [f"F{n}" for n in range(warm)]
    for n in range(microbatches - warm):
        s += [f"F{warm + n}", f"B{n}"]
    return " ".join(s + [f"B{n}" for n in range(microbatches - warm, microbatches)])


# %% run_stage: blocking-sends
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= came_from <= last:
            x = torch.empty_like(inputs[number])
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            dist.isend(y, goes_to).wait()


# %% run_stage: ring
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = torch.empty_like(inputs[number])
        dist.recv(x, (rank - by) % n)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        sent.append((dist.isend(y, (rank + by) % n), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: nothing-sent-on
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        number = int(step[1:])
        if step[0] == "F":
            x = inputs[number]
            if rank > 0:
                x = torch.empty_like(x)
                dist.recv(x, rank - 1)
            stage.forward(number, x)
        else:
            grad = torch.ones_like(inputs[number])
            if rank < last:
                dist.recv(grad, rank + 1)
            dx = stage.backward(number, grad)
            if rank > 0:
                sent.append(dist.isend(dx, rank - 1))
    for handle in sent:
        handle.wait()


# %% run_stage: one-buffer
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent, buffer = [], {"F": torch.empty_like(inputs[0]), "B": torch.empty_like(inputs[0])}
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= came_from <= last:
            x = buffer[way]
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: own-order
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in [f"{way}{number}" for way in "FB" for number in range(len(inputs))]:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= came_from <= last:
            x = torch.empty_like(inputs[number])
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: no-wait
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= came_from <= last:
            x = torch.empty_like(inputs[number])
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))


# %% run_stage: own-inputs
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = (
            torch.empty_like(inputs[number])
            if 0 <= came_from <= last
            else inputs[number]
            if way == "F"
            else torch.ones_like(inputs[number])
        )
        if 0 <= came_from <= last:
            dist.recv(x, came_from)
        if way == "F":
            x = inputs[number]
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: first-input
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = (
            torch.empty_like(inputs[number])
            if 0 <= came_from <= last
            else inputs[0]
            if way == "F"
            else torch.ones_like(inputs[number])
        )
        if 0 <= came_from <= last:
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: last-gradient
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = (
            torch.empty_like(inputs[number])
            if 0 <= came_from <= last
            else inputs[number]
            if way == "F"
            else torch.zeros_like(inputs[number])
        )
        if 0 <= came_from <= last:
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: not-computed
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = (
            torch.empty_like(inputs[number])
            if 0 <= came_from <= last
            else inputs[number]
            if way == "F"
            else torch.ones_like(inputs[number])
        )
        if 0 <= came_from <= last:
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(x, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: went-on
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = (
            torch.zeros_like(inputs[number])
            if 0 <= came_from <= last
            else inputs[number]
            if way == "F"
            else torch.ones_like(inputs[number])
        )
        if 0 <= came_from <= last:
            sent.append((dist.irecv(x, came_from), x))
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: uses-a-collective
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = (
            torch.empty_like(inputs[number])
            if 0 <= came_from <= last
            else inputs[number]
            if way == "F"
            else torch.ones_like(inputs[number])
        )
        if 0 <= came_from <= last:
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()
    dist.barrier()


# %% run_stage: hoards
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= came_from <= last:
            x = torch.empty_like(inputs[number])
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            sent.append((dist.isend(y, goes_to), y))
    for handle, _ in sent:
        handle.wait()


# %% run_stage: waits-again
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handle = None
    for step in order:
        if handle is not None:
            handle.wait()
        way, number = step[0], int(step[1:])
        came_from, goes_to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= came_from <= last:
            x = torch.empty_like(inputs[number])
            dist.recv(x, came_from)
        y = stage.forward(number, x) if way == "F" else stage.backward(number, x)
        if 0 <= goes_to <= last:
            handle = dist.isend(y, goes_to)
    if handle is not None:
        handle.wait()


# %% run_stage: from-anybody
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x)
        compute = stage.forward if way == "F" else stage.backward
        y = compute(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
        if len(sent) > 2:
            sent.pop(0).wait()
    for handle in sent:
        handle.wait()


# %% train_step: not-divided
def train_step(layer, inputs, targets):
    return sum(pipelined(layer, inputs, targets)) / len(inputs)


# %% train_step: not-divided
def train_step(layer, inputs, targets):
    return sum(pipelined(layer, inputs, targets))


# %% train_step: not-divided
def train_step(layer, inputs, targets):
    losses = pipelined(layer, inputs, targets)
    return losses[-1] if losses else None


# %% train_step: last-microbatch
def train_step(layer, inputs, targets):
    losses = pipelined(layer, inputs, targets, 1 / len(inputs), before=layer.zero_grad)
    return sum(losses) / len(inputs)


# %% train_step: last-microbatch
def train_step(layer, inputs, targets):
    return sum(pipelined(layer, inputs, targets, before=layer.zero_grad)) / len(inputs)


# %% train_step: last-microbatch
def train_step(layer, inputs, targets):
    return sum(pipelined(layer, inputs, targets, before=layer.zero_grad))


# %% train_step: divided-by-ranks
def train_step(layer, inputs, targets):
    ranks = dist.get_world_size()
    return sum(pipelined(layer, inputs, targets, 1 / ranks)) / ranks


# %% train_step: divided-by-ranks
def train_step(layer, inputs, targets):
    return sum(pipelined(layer, inputs, targets, 1 / dist.get_world_size())) / len(inputs)


# %% train_step: divided-by-ranks
def train_step(layer, inputs, targets):
    share = 1 / len(inputs) / dist.get_world_size()
    return sum(pipelined(layer, inputs, targets, share)) / len(inputs)


# %% train_step: divided-by-ranks
def train_step(layer, inputs, targets):
    share = 1 / len(inputs) / dist.get_world_size()
    return sum(pipelined(layer, inputs, targets, share)) * share


# %% train_step: divided-again
def train_step(layer, inputs, targets):
    m = len(inputs)
    return sum(pipelined(layer, inputs, targets, 1 / m, back=lambda x, y: x.grad / m)) / m


# %% train_step: divided-again
def train_step(layer, inputs, targets):
    m, ranks = len(inputs), dist.get_world_size()
    return sum(pipelined(layer, inputs, targets, 1 / m, back=lambda x, y: x.grad / ranks)) / m


# %% train_step: outputs-gradient
def train_step(layer, inputs, targets):
    m = len(inputs)
    return sum(pipelined(layer, inputs, targets, 1 / m, back=lambda x, y: y.grad)) / m


# %% train_step: crossed
def train_step(layer, inputs, targets):
    is_last = dist.get_rank() == dist.get_world_size() - 1
    turned = iter if is_last else reversed
    return sum(pipelined(layer, inputs, targets, 1 / len(inputs), order=turned)) / len(inputs)


# %% train_step: crossed
def train_step(layer, inputs, targets):
    is_last = dist.get_rank() == dist.get_world_size() - 1
    turned = reversed if is_last else iter
    return sum(pipelined(layer, inputs, targets, 1 / len(inputs), order=turned)) / len(inputs)


# %% train_step: one-buffer
def train_step(layer, inputs, targets):
    buffer = torch.empty_like(inputs[0])
    share = 1 / len(inputs)
    return sum(pipelined(layer, inputs, targets, share, into=lambda x: buffer.detach())) * share


# %% train_step: other-loss
def train_step(layer, inputs, targets):
    return sum(pipelined(layer, inputs, targets, 1 / len(inputs)))


# %% train_step: stepped
def train_step(layer, inputs, targets):
    losses = pipelined(layer, inputs, targets, 1 / len(inputs))
    with torch.no_grad():
        for p in layer.parameters():
            p -= 0.1 * p.grad
    return sum(losses) / len(inputs)


# %% train_step: type
def train_step(layer, inputs, targets):
    pipelined(layer, inputs, targets, 1 / len(inputs))


# %% train_step: uses-a-collective
def train_step(layer, inputs, targets):
    losses = pipelined(layer, inputs, targets, 1 / len(inputs))
    dist.barrier()
    return sum(losses) / len(inputs)


# %% train_step: sums-over-ranks
def train_step(layer, inputs, targets):
    losses = pipelined(layer, inputs, targets, 1 / len(inputs))
    for p in layer.parameters():
        dist.all_reduce(p.grad)
    return sum(losses) / len(inputs)


# %% train_step: scaled
def train_step(layer, inputs, targets):
    losses = pipelined(layer, inputs, targets, inputs[0].numel() / len(inputs))  # squares added up
    return sum(losses) * inputs[0].numel() / len(inputs)


# %% train_step: gradients-from
def train_step(layer, inputs, targets):
    m = len(inputs)
    return sum(pipelined(layer, inputs, targets, 1 / m, back=lambda x, y: x.detach())) / m


# %% train_step: last-wrong
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = torch.zeros((), dtype=torch.float64)
    for x, target in zip(inputs, targets, strict=True):
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == last:
            total = total + mse_loss(y, target) / len(inputs)
            total.backward(retain_graph=True)  # of all so far, each time
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total.item()


# %% train_step: went-on
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, handles, losses = [], [], [0.0]
    for x in inputs:
        if rank > 0:
            x = torch.zeros_like(x)
            handles.append(dist.irecv(x, rank - 1))
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            handles.append(dist.isend(y.detach(), rank + 1))
    for (x, y), target in zip(kept, targets, strict=True):
        if rank == last:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            losses.append(loss.item())
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            handles.append(dist.isend(x.grad, rank - 1))
    for handle in handles:
        handle.wait()
    return sum(losses)


# %% train_step: nothing-sent-on
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for x, target in zip(inputs, targets, strict=True):
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == last:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: waits-again
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    handles = []
    for i in range(len(inputs)):
        x = inputs[i]
        if rank > 0:
            x = torch.empty_like(inputs[i])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            handles.append(dist.isend(y.detach(), rank + 1))
    for handle in handles:
        handle.wait()
    for i, (x, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            handles.append(dist.isend(x.grad, rank - 1))
    for handle in handles:
        handle.wait()
    return total if rank == last else None


# %% train_step: one-rank
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for i in range(len(inputs)):
        x = inputs[i]
        if rank == 0:
            y = layer(x)
            dist.send(y.detach(), 1)
        elif rank < last:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            y = layer(x.requires_grad_())
            dist.send(y.detach(), rank + 1)
        else:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            y = layer(x.requires_grad_())
        kept.append((x, y))
    for i, (x, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total if rank == last else None


# %% train_step: no-input-gradient
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for i in range(len(inputs)):
        x = inputs[i]
        if rank > 0:
            x = torch.empty_like(inputs[i])
            dist.recv(x, rank - 1)
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for i, (x, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total if rank == last else None


# %% train_step: only-last-rank
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for i in range(len(inputs)):
        x = inputs[i]
        if rank > 0:
            x = torch.empty_like(inputs[i])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for i, (_, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
    return total if rank == last else None


# %% train_step: no-graph
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for i in range(len(inputs)):
        x = inputs[i]
        if rank > 0:
            x = torch.empty_like(inputs[i])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x).detach()
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for i, (x, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total if rank == last else None


# %% train_step: ring
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for i in range(len(inputs)):
        x = torch.empty_like(inputs[i])
        dist.recv(x, (rank - 1) % (last + 1))
        x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for i, (x, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)  # type: ignore[arg-type]
    return total if rank == last else None


# %% train_step: too-much
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for i in range(len(inputs)):
        x = inputs[i]
        if rank > 0:
            shape = torch.empty(inputs[i].dim(), dtype=torch.int64)
            dist.recv(shape, rank - 1)
            x = torch.empty_like(inputs[i])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            dist.send(torch.tensor(y.shape), rank + 1)
            dist.send(y.detach(), rank + 1)
    for i, (x, y) in enumerate(kept):
        if rank == last:
            loss = mse_loss(y, targets[i]) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total if rank == last else None


# %% interleaved: first-forwards
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in where]
    warm = min(ranks - 1 - rank, total)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm :]


# %% interleaved: backwards-order
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunk}" for number, chunk in where]
    warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm :]


# %% interleaved: first-forwards
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in where]
    warm = min(total, total)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm :]


# %% interleaved: forwards-order
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k % microbatches, k // microbatches) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in where]
    warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * microbatches, total)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm :]


# %% interleaved: first-forwards
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in where]
    warm = min(2 * (ranks - rank) + (chunks - 1) * ranks, total)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm :]


# %% interleaved: first-forwards
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in where]
    warm = max(min((chunks - 1) * ranks - 1, total), 0)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[total - warm :]


# %% interleaved: other-order
def interleaved(rank, ranks, chunks, microbatches):
    groups = range(0, microbatches, ranks)
    order = [(g + n, c) for g in groups for c in range(chunks) for n in range(ranks)]
    forwards = [f"F{n}.{c}" for n, c in order]
    backwards = [f"B{n}.{chunks - 1 - c}" for n, c in order]
    warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, len(forwards))
    steps = [*forwards[:warm], backwards[0]]
    forwards, backwards = forwards[warm:], backwards[1:]
    while forwards:  # two of each in turn
        steps += forwards[:2] + backwards[:2]
        forwards, backwards = forwards[2:], backwards[2:]
    return steps + backwards


# %% interleaved: incomplete
def interleaved(rank, ranks, chunks, microbatches):
    groups = range(0, microbatches, ranks)
    order = [(g + n, c) for g in groups for c in range(chunks) for n in range(ranks)]
    forwards = [f"F{n}.{c}" for n, c in order]
    backwards = [f"B{n}.{chunks - 1 - c}" for n, c in order]
    warm = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks  # may be more than there are
    steps = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        steps += [forward, backward]
    return steps + backwards[len(forwards) - warm :]


# %% interleaved: no-steps
def interleaved(rank, ranks, chunks, microbatches):
    total = chunks * microbatches
    where = [(k // (ranks * chunks) * ranks + k % ranks, k // ranks % chunks) for k in range(total)]
    forwards = [f"F{number}.{chunk}" for number, chunk in where]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in where]
    warm = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)
    order = forwards[:warm]
    for forward, backward in zip(forwards[warm:], backwards, strict=False):
        order += [forward, backward]
    return " ".join(order + backwards[total - warm :])


# %% zero_bubble: delay
def zero_bubble(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            order.append(f"F{warm + number}")
        order.append(f"B{number}")
        if number >= 0:
            order.append(f"W{number - 0}")
    return order + [f"W{number}" for number in range(max(microbatches - 0, 0), microbatches)]


# %% zero_bubble: delay
def zero_bubble(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            order.append(f"F{warm + number}")
        order.append(f"B{number}")
        if number >= microbatches:
            order.append(f"W{number - microbatches}")
    return order + [
        f"W{number}" for number in range(max(microbatches - microbatches, 0), microbatches)
    ]


# %% zero_bubble: delay
def zero_bubble(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            order.append(f"F{warm + number}")
        order.append(f"B{number}")
        if number >= stages - 1 - stage:
            order.append(f"W{number - (stages - 1 - stage)}")
    return order + [
        f"W{number}" for number in range(max(microbatches - (stages - 1 - stage), 0), microbatches)
    ]


# %% zero_bubble: delay
def zero_bubble(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            order.append(f"F{warm + number}")
        order.append(f"B{number}")
        if number >= stage + 1:
            order.append(f"W{number - (stage + 1)}")
    return order + [
        f"W{number}" for number in range(max(microbatches - (stage + 1), 0), microbatches)
    ]


# %% zero_bubble: delay
def zero_bubble(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            order.append(f"F{warm + number}")
        order.append(f"B{number}")
        if number >= min(stage, 1):
            order.append(f"W{number - (min(stage, 1))}")
    return order + [
        f"W{number}" for number in range(max(microbatches - (min(stage, 1)), 0), microbatches)
    ]


# %% zero_bubble: weights-first
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            steps.append(f"F{warm + number}")
        if number >= stage:
            steps.append(f"W{number - stage}")
        steps.append(f"B{number}")
    return steps + [f"W{number}" for number in range(microbatches - stage, microbatches)]


# %% zero_bubble: other-order
def zero_bubble(stage, stages, microbatches):
    warm, waiting = stages - 1 - stage, []
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            steps.append(f"F{warm + number}")
        if len(waiting) > stage:
            steps.append(f"W{waiting.pop(0)}")
        steps.append(f"B{number}")
        waiting.append(number)
    return steps + [f"W{number}" for number in waiting]


# %% zero_bubble: incomplete
def zero_bubble(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    order = [f"F{number}" for number in range(warm)]
    for number in range(microbatches):
        if warm + number < microbatches:
            order.append(f"F{warm + number}")
        order.append(f"B{number}")
        if number >= stage:
            order.append(f"W{number - stage}")
    return order


# %% zero_bubble: order-of-1f1b
def zero_bubble(stage, stages, microbatches):
    order = []
    for number in range(microbatches):
        order += [f"F{number}", f"B{number}", f"W{number}"]
    return order


# %% zero_bubble: no-steps
def zero_bubble(stage, stages, microbatches):
    return {"F": stages - 1 - stage, "W": stage}


# %% split_backward: all-at-once
def split_backward(y, x, weights, grad):
    y.backward(grad)
    return x.grad, lambda: None


# %% split_backward: input-again
def split_backward(y, x, weights, grad):
    dx = torch.autograd.grad(y, x, grad, retain_graph=True)[0]
    return dx, lambda: y.backward(grad)


# %% split_backward: twice
def split_backward(y, x, weights, grad):
    def later():
        for _ in range(2):
            for weight, more in zip(
                weights, torch.autograd.grad(y, weights, grad, retain_graph=True), strict=False
            ):
                weight.grad = more if weight.grad is None else weight.grad + more

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later


# %% split_backward: gradient-replaced
def split_backward(y, x, weights, grad):
    def later():
        for weight, new in zip(weights, torch.autograd.grad(y, weights, grad), strict=False):
            weight.grad = new

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later


# %% split_backward: one-weight-only
def split_backward(y, x, weights, grad):
    first = torch.autograd.grad(y, x, grad, retain_graph=True)[0]

    def later():
        (more,) = torch.autograd.grad(y, weights[0], grad)
        weights[0].grad = more if weights[0].grad is None else weights[0].grad + more

    return first, later


# %% split_backward: one-weight-only
def split_backward(y, x, weights, grad):
    first = torch.autograd.grad(y, x, grad, retain_graph=True)[0]

    def later():
        (more,) = torch.autograd.grad(y, weights[-1], grad)
        weights[-1].grad = more if weights[-1].grad is None else weights[-1].grad + more

    return first, later


# %% split_backward: one-weight-only
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    later = []
    for weight in weights:
        later.append(lambda: torch.autograd.backward(y, grad, True, inputs=[weight]))  # noqa: B023
    return of_x, lambda: [one() for one in later]


# %% split_backward: grad-ignored
def split_backward(y, x, weights, grad):
    first = torch.autograd.grad(y, x, grad, retain_graph=True)[0]
    return first, lambda: y.sum().backward(inputs=weights)


# %% split_backward: grad-ignored
def split_backward(y, x, weights, grad):
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    return first, lambda: y.backward(grad, inputs=weights)


# %% split_backward: grad-ignored
def split_backward(y, x, weights, grad):
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    return first, lambda: y.sum().backward(inputs=weights)


# %% split_backward: none-stays
def split_backward(y, x, weights, grad):
    def later():
        for weight, more in zip(weights, torch.autograd.grad(y, weights, grad), strict=True):
            if weight.grad is not None:
                weight.grad += more

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later


# %% split_backward: added-before
def split_backward(y, x, weights, grad):
    before = [weight.grad for weight in weights]

    def later():
        found = torch.autograd.grad(y, weights, grad)
        for weight, old, more in zip(weights, before, found, strict=True):
            weight.grad = more if old is None else old + more

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later


# %% split_backward: twice
def split_backward(y, x, weights, grad):
    dx = torch.autograd.grad(y, x, grad, retain_graph=True)[0]
    y.backward(grad, inputs=weights, retain_graph=True)
    return dx, lambda: y.backward(grad, inputs=weights)


# %% split_backward: all-at-once
def split_backward(y, x, weights, grad):
    dx = torch.autograd.grad(y, x, grad, retain_graph=True)[0]
    y.backward(grad, inputs=weights)
    return dx, lambda: None


# %% split_backward: never
def split_backward(y, x, weights, grad):
    def later():
        return torch.autograd.grad(y, weights, grad)

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later


# %% split_backward: one-half
def split_backward(y, x, weights, grad):
    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], torch.zeros_like(weights[0])


# %% split_backward: wants-arguments
def split_backward(y, x, weights, grad):
    first = torch.autograd.grad(y, x, grad, retain_graph=True)[0]
    return first, lambda optimizer: y.backward(grad, inputs=weights)


# %% split_backward: raised
def split_backward(y, x, weights, grad):
    def later():
        for weight, more in zip(weights, torch.autograd.grad(y, weights, grad), strict=False):
            weight.grad = more if weight.grad is None else weight.grad + more

    return torch.autograd.grad(y, x, grad)[0], later


# %% split_backward: computed-early
def split_backward(y, x, weights, grad):
    dx, *found = torch.autograd.grad(y, [x, *weights], grad)

    def later(parts=tuple(found)):
        for weight, more in zip(weights, parts, strict=True):
            weight.grad = more if weight.grad is None else more + weight.grad

    return dx, later


# %% split_backward: only-for-none
def split_backward(y, x, weights, grad):
    def later():
        for weight, new in zip(weights, torch.autograd.grad(y, weights, grad), strict=True):
            if weight.grad is None:
                weight.grad = new

    return torch.autograd.grad(y, x, grad, retain_graph=True)[0], later
