"""Wrong answers to the exercises of lab 10, written without sight of its checks; see judge.py."""

import collections
import itertools
import threading
import time
import weakref
from collections import deque
from functools import partial

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


def tag_of(step):
    return int(step[1:])


# %% most_kept: leading-forwards
# Counts the forwards before the first backward. That is the most in GPipe and 1F1B, but an order may fill up later
# (F0 B0 F1 F2 B1 B2 keeps 2, this says 1).
def most_kept(steps):
    return len(list(itertools.takewhile(lambda step: step[0] == "F", steps)))


# %% most_kept: last-digit-only
# Takes the last character for the number, so that microbatches 1 and 11 are the same one: wrong as soon as two kept
# microbatches end in the same digit (GPipe with more than 10).
def most_kept(steps):
    kept, most = set(), 0
    for step in steps:
        if step[0] == "F":
            kept.add(step[-1])
        else:
            kept.discard(step[-1])
        most = max(most, len(kept))
    return most


# %% most_kept: empty-raises
# max() of nothing: without steps the goal says that nothing is kept (0), this raises ValueError.
def most_kept(steps):
    now, seen = 0, []
    for step in steps:
        now += 1 if step.startswith("F") else -1
        seen.append(now)
    return max(seen)


# %% most_kept: starts-at-one
# The record begins with 1 ("a stage keeps at least one"): without steps it says 1 and not 0.
def most_kept(steps):
    now, most = 0, 1
    for step in steps:
        now += 1 if step[0] == "F" else -1
        most = max(most, now)
    return most


# %% most_kept: highest-numbers
# Highest forward minus highest backward: right if backwards come in the microbatches' order, wrong in others (F0 F1 B1 F2 F3 B0 B2 B3
# keeps 3, this says 2), and if numbers do not begin with 0.
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


# %% most_kept: forwards-in-the-longest-span
# For each microbatch counts the forwards from its F to its B, and takes the most. Those need not be kept at the same
# time: F0 F1 B1 F2 B2 B0 keeps 2, this says 3. (Right where backwards come first in, first out.)
def most_kept(steps):
    most = 0
    for at, step in enumerate(steps):
        if step[0] != "F":
            continue
        until = steps.index("B" + step[1:], at) if "B" + step[1:] in steps else len(steps)
        most = max(most, sum(other[0] == "F" for other in steps[at:until]))
    return most


# %% most_kept: longest-run-of-forwards
# The longest run of F's without a B between: forgets what was there before the run (F0 F1 B0 F2 F3 ... keeps 3).
def most_kept(steps):
    runs = (
        list(run) for way, run in itertools.groupby(steps, key=lambda step: step[0]) if way == "F"
    )
    return max((len(run) for run in runs), default=0)


# %% most_kept: all-microbatches
# The number of microbatches: what GPipe keeps, but not what 1F1B keeps.
def most_kept(steps):
    return len({step[1:] for step in steps})


# %% most_kept: counter-of-eight-bits
# Adds up in int8: from 128 kept microbatches on the counter turns negative (GPipe with 200 microbatches keeps 200).
def most_kept(steps):
    changes = np.array([1 if step[0] == "F" else -1 for step in steps], dtype=np.int8)
    return int(max(np.cumsum(changes, dtype=np.int8), default=0))


# %% most_kept: best-leaks-between-calls
# The record is a mutable default argument, so that it lives on: after one order that keeps 8, every later one says 8
# at least.
def most_kept(steps, best=[0]):  # noqa: B006
    kept = set()
    for step in steps:
        number = int(step[1:])
        if step[0] == "F":
            kept.add(number)
        else:
            kept.remove(number)
        best[0] = max(best[0], len(kept))
    return best[0]


# %% most_kept: freed-one-step-late
# Frees a microbatch only after the step that follows its B. The goal: until its B is done. F0 B0 F1 B1 keeps 1, this
# says 2.
def most_kept(steps):
    kept, free, most = set(), None, 0
    for step in steps:
        if step[0] == "F":
            kept.add(step[1:])
        most = max(most, len(kept))
        kept.discard(free)
        free = step[1:] if step[0] == "B" else None
    return most


# %% most_kept: looks-after-pairs-only
# Looks at the count after every second step (as if steps came in pairs), so that a peak after an odd number of steps is
# missed: F0 F1 F2 B0 B1 B2 keeps 3, this says 2.
def most_kept(steps):
    most = now = 0
    for at, step in enumerate(steps, 1):
        now += 1 if step[0] == "F" else -1
        if at % 2 == 0:
            most = max(most, now)
    return most


# %% most_kept: a-queue-that-frees-its-front
# What is done leaves when all that came before it is done, too: right only where the first backward comes first.
def most_kept(steps):
    queue, done, most = deque(), set(), 0
    for step in steps:
        if step[0] == "F":
            queue.append(step[1:])
        else:
            done.add(step[1:])
            while queue and queue[0] in done:
                queue.popleft()
        most = max(most, len(queue))
    return most


# %% one_f_one_b: one-forward-too-many
# Begins with stages - stage forwards and *then* takes F and B in turn: one more than there are stages after it, so each
# stage keeps p - s + 1.
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: last-slice-from-minus-zero
# The backwards that are left are `backwards[-warm:]`; on the last stage warm is 0, and [-0:] is the whole list, so it does
# every backward twice.
def one_f_one_b(stage, stages, microbatches):
    forwards = [f"F{number}" for number in range(microbatches)]
    backwards = [f"B{number}" for number in range(microbatches)]
    warm = min(stages - stage - 1, microbatches)
    turns = [one for pair in zip(forwards[warm:], backwards) for one in pair]
    return forwards[:warm] + turns + backwards[-warm:]


# %% one_f_one_b: more-forwards-than-microbatches
# Does not limit the first forwards to the microbatches: with fewer microbatches than stages there are forwards of
# microbatches that do not exist.
def one_f_one_b(stage, stages, microbatches):
    warm = stages - stage - 1
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(max(0, microbatches - warm), microbatches)]


# %% one_f_one_b: backwards-from-a-negative-number
# Limits the first forwards, but counts the last backwards from the unlimited number: with fewer microbatches than
# stages there are B-1, B-2, ...
def one_f_one_b(stage, stages, microbatches):
    warm = stages - stage - 1
    steps = [f"F{number}" for number in range(min(warm, microbatches))]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: for-four-stages
# Writes 3 for the last stage: right for 4 stages only.
def one_f_one_b(stage, stages, microbatches):
    warm = max(0, min(3 - stage, microbatches))
    steps, backward = [f"F{number}" for number in range(warm)], 0
    for forward in range(warm, microbatches):
        steps += [f"F{forward}", f"B{backward}"]
        backward += 1
    return steps + [f"B{number}" for number in range(backward, microbatches)]


# %% one_f_one_b: backward-before-forward
# After the first forwards (as many as stages after it) takes a *backward* and a forward in turn. The text: one forward,
# one backward. On the last stage B0 comes before F0, and nobody ever goes on.
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage - 1, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"B{number}", f"F{warm + number}"]
    return steps + [f"B{number}" for number in range(microbatches - warm, microbatches)]


# %% one_f_one_b: last-backwards-reversed
# Does the backwards that are left newest first, as autograd would. Gradients come in the microbatches' order from the next
# stage, so stages wait, and messages go to the wrong microbatch.
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage - 1, microbatches)
    steps = [f"F{number}" for number in range(warm)]
    for number in range(microbatches - warm):
        steps += [f"F{warm + number}", f"B{number}"]
    return steps + [f"B{number}" for number in reversed(range(microbatches - warm, microbatches))]


# %% one_f_one_b: gpipe-if-few
# Falls back to GPipe if there are fewer microbatches than stages. There late stages still have fewer stages after them than
# there are microbatches, and should take turns; the last one would keep all in place of 1.
def one_f_one_b(stage, stages, microbatches):
    if microbatches < stages:
        return [f"F{n}" for n in range(microbatches)] + [f"B{n}" for n in range(microbatches)]
    warm = stages - stage - 1
    steps = [f"F{n}" for n in range(warm)]
    for n in range(microbatches - warm):
        steps += [f"F{warm + n}", f"B{n}"]
    return steps + [f"B{n}" for n in range(microbatches - warm, microbatches)]


# %% one_f_one_b: stages-limited-to-microbatches
# Limits the number of *stages* to the microbatches and not the number of first forwards: with fewer microbatches than stages
# early stages begin with too few forwards, so that they wait longer (right otherwise).
def one_f_one_b(stage, stages, microbatches):
    warm = max(0, min(stages, microbatches) - stage - 1)
    steps = [f"F{n}" for n in range(warm)]
    for n in range(microbatches - warm):
        steps += [f"F{warm + n}", f"B{n}"]
    return steps + [f"B{n}" for n in range(microbatches - warm, microbatches)]


# %% one_f_one_b: backward-of-the-newest
# In turn F and B of the *same*, newest microbatch; the first ones come last. Each B comes after its F, but a stage before
# the last cannot have that gradient yet: it waits for a whole way there and back each time.
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage - 1, microbatches)
    steps = [f"F{n}" for n in range(warm)]
    for n in range(warm, microbatches):
        steps += [f"F{n}", f"B{n}"]
    return steps + [f"B{n}" for n in range(warm)]


# %% one_f_one_b: gpipe-in-groups
# GPipe with groups of as many microbatches as there are stages, one group after the other: keeps only p, but fills and drains
# the pipeline once for each group, and every stage keeps p.
def one_f_one_b(stage, stages, microbatches):
    steps = []
    for first in range(0, microbatches, stages):
        group = range(first, min(first + stages, microbatches))
        steps += [f"F{n}" for n in group] + [f"B{n}" for n in group]
    return steps


# %% one_f_one_b: generator
# Yields the steps. The goal: it *returns the list* of steps, as gpipe does; a generator has no len() and is empty the second
# time.
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage - 1, microbatches)
    yield from (f"F{n}" for n in range(warm))
    for n in range(microbatches - warm):
        yield f"F{warm + n}"
        yield f"B{n}"
    yield from (f"B{n}" for n in range(microbatches - warm, microbatches))


# %% run_stage: waits-at-the-next-step
# isend, but the handle is waited for before the next step begins: that is a blocking send again, and 1F1B hangs.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handle = None
    for step in order:
        if handle is not None:
            handle.wait()
            handle = None
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            handle = dist.isend(y, rank + by)
    if handle is not None:
        handle.wait()


# %% run_stage: handles-dropped
# Never waits: handles are dropped at once. Memory is low, but a handle must live until wait(), sends nobody has waited
# for are more than six, and something may be unfinished when it returns.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            dist.isend(y, rank + by)


# %% run_stage: last-sends-not-waited-for
# Waits for old sends while the schedule runs, but not for the last four when it is over: unfinished when it returns.
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
        if 0 <= rank + by <= last:
            pending.append(dist.isend(y, rank + by))
            while len(pending) > 4:
                pending.popleft().wait()


# %% run_stage: last-send-waited-for-twice
# Waits for what is left, and then for the last handle once more "to be sure": under gloo a second wait() on a send never
# returns.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending, handle = deque(), None
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            handle = dist.isend(y, rank + by)
            pending.append(handle)
            if len(pending) > 3:
                pending.popleft().wait()
    while pending:
        pending.popleft().wait()
    if handle is not None:
        handle.wait()


# %% run_stage: seven-pending
# Off by one: waits if there are more than six *before* it starts another, so that seven are under way when the next step begins.
# The goal: at most six.
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
            if len(pending) > 6:
                pending.popleft().wait()
            pending.append(dist.isend(y, rank + by))
        del y
    while pending:
        pending.popleft().wait()


# %% run_stage: asks-is-completed
# Drops a handle when is_completed() says so. Under gloo that of a send stays False until wait(): all handles and all tensors
# are kept until the end.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending = []
    for step in order:
        pending = [handle for handle in pending if not handle.is_completed()]
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            pending.append(dist.isend(y, rank + by))
    for handle in pending:
        handle.wait()


# %% run_stage: results-kept-in-a-dict
# Waits for all sends in time, but has every result in a dict "so that it lives until it is sent", and never removes one:
# far more than six tensors that nobody needs are alive.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    results, pending = {}, deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        results[step] = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            pending.append(dist.isend(results[step], rank + by))
            if len(pending) > 2:
                pending.popleft().wait()
    for handle in pending:
        handle.wait()


# %% run_stage: one-buffer-for-all
# Receives everything into one tensor. A stage keeps what a forward was given until its backward, so that the next message
# overwrites activations that are still needed: the weight's gradient is wrong (unless all microbatches are equal).
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    buffer, pending = torch.empty_like(inputs[0]), deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by <= last:
            dist.recv(buffer, rank - by)
            x = buffer
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            pending.append(dist.isend(y, rank + by))
            if len(pending) > 2:
                pending.popleft().wait()
    for handle in pending:
        handle.wait()


# %% run_stage: gradient-of-ones-in-float32
# The last stage's gradient has the right shape, but the default type. Messages have the *type* of the inputs: with float64 or
# bfloat16 microbatches the last stage sends float32 numbers, which the stage before reads as another type.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    pending = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones(inputs[0].shape)
        if 0 <= rank - by <= last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            pending.append(dist.isend(y, rank + by))
            if len(pending) > 2:
                pending.popleft().wait()
    for handle in pending:
        handle.wait()


# %% run_stage: barrier-at-the-end
# All right until the barrier "so that nobody leaves early". The goal: one message for each step and neighbour, no other calls.
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
        if 0 <= rank + by <= last:
            pending.append(dist.isend(y, rank + by))
            if len(pending) > 2:
                pending.popleft().wait()
    while pending:
        pending.popleft().wait()
    dist.barrier()


# %% run_stage: as-many-pending-as-ranks
# Lets as many sends be under way as there are ranks ("the depth of the pipeline"): fine on the 4 ranks of this notebook, with 8 there are up to
# eight that nobody has waited for.
def run_stage(order, stage, inputs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pending = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[0])
        if 0 <= rank - by < ranks:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by < ranks:
            pending.append(dist.isend(y, rank + by))
            while len(pending) > ranks:
                pending.popleft().wait()
    while pending:
        pending.popleft().wait()


# %% run_stage: waits-when-the-gradient-is-back
# An activation's send is over when its gradient comes back, so its handle is waited for then: fine in 1F1B on few stages.
# Under GPipe all forwards come first, and there are as many sends that nobody has waited for as microbatches.
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    forward, backward = {}, None
    for step in order:
        number = int(step[1:])
        if step[0] == "F":
            x = inputs[number]
            if rank > 0:
                x = torch.empty_like(inputs[0])
                dist.recv(x, rank - 1)
            y = stage.forward(number, x)
            if rank < last:
                forward[number] = dist.isend(y, rank + 1)
        else:
            grad = torch.ones_like(inputs[0])
            if rank < last:
                dist.recv(grad, rank + 1)
                forward.pop(number).wait()
            dx = stage.backward(number, grad)
            if rank > 0:
                if backward is not None:
                    backward.wait()
                backward = dist.isend(dx, rank - 1)
    if backward is not None:
        backward.wait()


# %% train_step: only-the-number-is-a-mean
# The loss that is returned is the mean, but backward runs on each microbatch's own loss: gradients are those of the sum, as many
# times too large as there are microbatches.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target)
            total += y.item()
        kept.append((x, y))
    for x, y in kept:
        if rank < last:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total / len(inputs)


# %% train_step: mean-over-ranks
# Divides by the number of ranks in place of microbatches: the same with 4 microbatches on 4 ranks, as in this notebook, and wrong
# otherwise.
def train_step(layer, inputs, targets):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    kept, total = [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < ranks - 1:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / ranks
            total += y.item()
        kept.append((x, y))
    for x, y in kept:
        if rank < ranks - 1:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: irecv-without-wait
# Receives by irecv and goes on at once: the layer computes with whatever is in the new tensor. It waits at the end only.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, handles, total = [], [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.zeros_like(inputs[0])
            handles.append(dist.irecv(x, rank - 1))
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            handles.append(dist.isend(y.detach(), rank + 1))
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.item()
        kept.append((x, y))
    for x, y in kept:
        grad = None
        if rank < last:
            grad = torch.zeros_like(inputs[0])
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            handles.append(dist.isend(x.grad, rank - 1))
    for handle in handles:
        handle.wait()
    return total


# %% train_step: zero-grad-for-each-microbatch
# Clears the gradients before each backward, as one does before each *step*: only the last microbatch's part is left.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.item()
        kept.append((x, y))
    for x, y in kept:
        layer.zero_grad()
        grad = None
        if rank < last:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: a-rank-alone-sends
# Asks for the first rank, else for the last, else for the middle: a rank alone is taken for a first one, sends to a rank 1 that
# does not exist, and never computes a loss.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for number in range(len(inputs)):
        if rank == 0:
            x = inputs[number]
            y = layer(x)
            dist.send(y.detach(), 1)
        elif rank == last:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            y = mse_loss(layer(x.requires_grad_()), targets[number]) / len(inputs)
            total += y.item()
        else:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            y = layer(x.requires_grad_())
            dist.send(y.detach(), rank + 1)
        kept.append((x, y))
    for x, y in kept:
        if rank == 0:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, 1)
            y.backward(grad)
        elif rank == last:
            y.backward()
            dist.send(x.grad, rank - 1)
        else:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
            y.backward(grad)
            dist.send(x.grad, rank - 1)
    return total if rank == last else None


# %% train_step: last-rank-goes-backwards-through-the-batch
# The last rank does its backwards newest first, the others oldest first: messages have no number, so each gradient meets the graph
# of another microbatch. No error, and wrong gradients (right with one microbatch, and on one rank).
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.item()
        kept.append((x, y))
    if rank == last:
        kept.reverse()
    for x, y in kept:
        grad = None
        if rank < last:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: whole-batch-in-one-message
# Puts the microbatches together and sends the batch at once: the same gradients, but one message a neighbour and way in all, and of
# another shape. The goal: one for each microbatch, with the shape of inputs[0].
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x = torch.cat(list(inputs))
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = layer(x)
    total = None
    if rank < last:
        dist.send(y.detach(), rank + 1)
        grad = torch.empty_like(y)
        dist.recv(grad, rank + 1)
        y.backward(grad)
    else:
        loss = mse_loss(y, torch.cat(list(targets)))
        loss.backward()
        total = loss.item()
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return total


# %% train_step: receives-float32
# New tensors of the right shape and the default type (and on the CPU). The goal: messages have the shape *and type* of inputs[0]; with
# float64 only half of the bytes has room.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    shape = inputs[0].shape
    kept, total = [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty(shape)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.item()
        kept.append((x, y))
    for x, y in kept:
        grad = None
        if rank < last:
            grad = torch.empty(shape)
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: loss-to-all-by-broadcast
# Tells all ranks the loss by a broadcast. The goal: one message for each microbatch, way and neighbour (and only the last rank
# returns it); this is a collective more.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], torch.zeros((), dtype=inputs[0].dtype, device=inputs[0].device)
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.detach()
        kept.append((x, y))
    for x, y in kept:
        grad = None
        if rank < last:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    dist.broadcast(total, src=last)
    return total.item()


# %% train_step: one-buffer-for-all-activations
# All microbatches are received into the same memory, while autograd still needs what the earlier ones left there: the first layer's
# weights get gradients with the last microbatch's input. (Bit for bit right with one microbatch, and on one rank.)
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    buffer = torch.empty_like(inputs[0])
    kept, total = [], 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            dist.recv(buffer, rank - 1)
            x = buffer.detach().requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.item()
        kept.append((x, y))
    for x, y in kept:
        grad = None
        if rank < last:
            grad = torch.empty_like(inputs[0])
            dist.recv(grad, rank + 1)
        y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: receives-into-a-target
# A message has the shape and type of inputs[0]; that of a target may be another one.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(target)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: gradient-ignored
# The gradient comes back, and y.sum().backward() does not take it.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.sum().backward()
        else:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: sum-of-squares
# reduction="sum": the loss of a microbatch is no mean over its numbers.
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < last:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target, reduction="sum") / len(inputs)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: averaged-over-ranks
# As in data parallelism: an all-reduce of gradients, and a division by the ranks.
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= n
    return total


# %% split_backward: graph-gone
# Forgets retain_graph=True: afterwards the graph is gone, and the function that is called later raises an error.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad)

    def later():
        for weight, one in zip(weights, torch.autograd.grad(y, weights, grad)):
            weight.grad = one if weight.grad is None else weight.grad + one

    return of_x, later


# %% split_backward: later-does-everything
# The second half is an ordinary y.backward(grad): it computes the gradient of x once more, and adds it to x.grad.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    return of_x, lambda: y.backward(grad)


# %% split_backward: overwrites
# Puts the gradients into .grad in place of adding them: what earlier microbatches left there is lost.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for weight, one in zip(weights, torch.autograd.grad(y, weights, grad)):
            weight.grad = one

    return of_x, later


# %% split_backward: asks-for-x-again
# The later call asks for x and the weights and throws the first away: .grad is right, but it computes that of x once more, and the goal
# forbids that.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        _, *found = torch.autograd.grad(y, [x, *weights], grad)
        for weight, one in zip(weights, found):
            weight.grad = one if weight.grad is None else weight.grad + one

    return of_x, later


# %% split_backward: all-computed-at-once
# Computes everything at once and only *adds* later: all numbers are right at the right time, but the stage before waits for the
# weights' gradients, too. The goal: only that function computes them.
def split_backward(y, x, weights, grad):
    of_x, *found = torch.autograd.grad(y, [x, *weights], grad)

    def later():
        for weight, one in zip(weights, found):
            weight.grad = one if weight.grad is None else weight.grad + one

    return of_x, later


# %% split_backward: ones-for-grad
# The weights' half takes ones for the gradient of y: the right thing for a sum, and what the last stage has, but not `grad`.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        torch.autograd.backward(y, torch.ones_like(y), inputs=weights)

    return of_x, later


# %% split_backward: graph-gone-after-the-first-weight
# One call for each weight, none of which keeps the graph: right with one weight, an error at the second one.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for weight in weights:
            (one,) = torch.autograd.grad(y, weight, grad)
            weight.grad = one if weight.grad is None else weight.grad + one

    return of_x, later


# %% split_backward: nothing-to-add-to
# `+=` on .grad, which is None before the first backward: TypeError for new weights.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for weight, one in zip(weights, torch.autograd.grad(y, weights, grad)):
            weight.grad += one

    return of_x, later


# %% split_backward: tuple-for-x
# torch.autograd.grad returns a tuple, and the tuple is handed on: the goal says the gradient of x.
def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad(y, x, grad, retain_graph=True)
    return of_x, lambda: torch.autograd.backward(y, grad, inputs=weights)


# %% split_backward: all-into-the-last-weight
# Closures in a loop see the loop's variable as it is *later*: every one of them works for the last weight, which gets its own gradient
# as often as there are weights; the others get none. Right with one weight.
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    jobs = []
    for weight in weights:
        jobs.append(lambda: torch.autograd.backward(y, grad, inputs=[weight], retain_graph=True))  # noqa: B023

    def later():
        for job in jobs:
            job()

    return of_x, later


# %% split_backward: adds-to-what-was-there-before
# Notes .grad at the time of the *split*, and later writes note + gradient. What other microbatches have added in between is lost, and
# that is the order of a zero-bubble schedule.
def split_backward(y, x, weights, grad):
    before = [None if weight.grad is None else weight.grad.clone() for weight in weights]
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        found = torch.autograd.grad(y, weights, grad)
        for weight, old, one in zip(weights, before, found):
            weight.grad = one if old is None else old + one

    return of_x, later


# %% interleaved: more-first-forwards-than-there-are
# Does not limit the first forwards to all there are, and takes the last backwards from `total - warm`, which is negative for one group:
# the slice begins near the end, and backwards are missing (only early ranks, and only with microbatches == ranks).
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{number}.{chunk}" for number, chunk in places]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in places]
    warm, total = (chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places)
    turns = [one for pair in zip(forwards[warm:], backwards) for one in pair]
    return forwards[:warm] + turns + backwards[total - warm :]


# %% interleaved: last-slice-from-minus-zero
# The last backwards are `backwards[-warm:]`. With one chunk the last rank has warm = 0, and [-0:] is all of them: it does each backward
# twice. (Right with two chunks or more.)
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{number}.{chunk}" for number, chunk in places]
    backwards = [f"B{number}.{chunks - 1 - chunk}" for number, chunk in places]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    turns = [one for pair in zip(forwards[warm:], backwards) for one in pair]
    return forwards[:warm] + turns + backwards[-warm:]


# %% interleaved: backwards-from-chunk-zero
# Backwards in the order of the forwards, from chunk 0: that of chunk 0 needs that of the last chunk first, and all wait for ever (unless
# there is one chunk).
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{number}.{chunk}" for number, chunk in places]
    backwards = [f"B{number}.{chunk}" for number, chunk in places]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    turns = [one for pair in zip(forwards[warm:], backwards) for one in pair]
    return forwards[:warm] + turns + backwards[len(places) - warm :]


# %% interleaved: one-kept-too-many
# One more forward before the first backward: as fast, but rank r keeps one more than the goal allows (where there are enough microbatches).
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1, len(places))
    steps = [f"F{number}.{chunk}" for number, chunk in places[:warm]]
    for at in range(len(places)):
        if warm + at < len(places):
            steps.append("F{}.{}".format(*places[warm + at]))
        number, chunk = places[at]
        steps.append(f"B{number}.{chunks - 1 - chunk}")
    return steps


# %% interleaved: one-first-forward-too-few
# One forward fewer before the first backward, as if the first of the turns were among them. Others could do with that; the last rank has
# its first backward before its own forward, and nothing ever goes on.
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    warm = max(0, min((chunks - 1) * ranks + 2 * (ranks - 1 - rank) - 1, len(places)))
    steps = [f"F{number}.{chunk}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            steps.append("F{}.{}".format(*places[warm + at]))
        steps.append(f"B{number}.{chunks - 1 - chunk}")
    return steps


# %% interleaved: all-microbatches-through-a-chunk
# No groups: all microbatches through chunk 0, then all through chunk 1. Right for microbatches == ranks; with more the first backward comes
# long after, so more than allowed would have to be kept, and with these first forwards all wait for ever.
def interleaved(rank, ranks, chunks, microbatches):
    places = [(number, chunk) for chunk in range(chunks) for number in range(microbatches)]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    steps = [f"F{number}.{chunk}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            steps.append("F{}.{}".format(*places[warm + at]))
        steps.append(f"B{number}.{chunks - 1 - chunk}")
    return steps


# %% interleaved: for-two-chunks
# The backward's chunk is `1 - chunk`, the other one of two: with three chunks there is a chunk -1.
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    steps = [f"F{number}.{chunk}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            steps.append("F{}.{}".format(*places[warm + at]))
        steps.append(f"B{number}.{1 - chunk if chunks > 1 else 0}")
    return steps


# %% interleaved: for-four-ranks
# The 10 and the 4 of the text's example, (v - 1)·4 + 2(3 - r): with another number of ranks too many are kept, or all wait for ever.
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    warm = max(0, min((chunks - 1) * 4 + 2 * (3 - rank), len(places)))
    steps = [f"F{number}.{chunk}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            steps.append("F{}.{}".format(*places[warm + at]))
        steps.append(f"B{number}.{chunks - 1 - chunk}")
    return steps


# %% interleaved: all-forwards-first
# Interleaved GPipe: all forwards, then all backwards. It takes as long as the goal says, but keeps everything.
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{number}.{chunk}" for number, chunk in places]
    return forwards + [f"B{number}.{chunks - 1 - chunk}" for number, chunk in places]


# %% interleaved: chunk-before-number
# Writes the chunk first: F1.3 for microbatch 3 on chunk 1. The text: F3.1.
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    steps = [f"F{chunk}.{number}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            steps.append("F{1}.{0}".format(*places[warm + at]))
        steps.append(f"B{chunks - 1 - chunk}.{number}")
    return steps


# %% interleaved: groups-of-chunks
# Groups of as many microbatches as there are *chunks*: right where a rank has as many chunks as there are ranks, slower or for ever waiting
# otherwise.
def interleaved(rank, ranks, chunks, microbatches):
    places = [
        (number, chunk)
        for first in range(0, microbatches, chunks)
        for chunk in range(chunks)
        for number in range(first, min(first + chunks, microbatches))
    ]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    steps = [f"F{number}.{chunk}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            steps.append("F{}.{}".format(*places[warm + at]))
        steps.append(f"B{number}.{chunks - 1 - chunk}")
    return steps


# %% interleaved: stage-for-chunk
# Writes the stage of the whole, chunk·p + rank, after the dot. The text: the chunk of this rank. (Right on rank 0's chunk 0, and on one rank.)
def interleaved(rank, ranks, chunks, microbatches):
    places = in_groups(ranks, chunks, microbatches)
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(places))
    steps = [f"F{number}.{chunk * ranks + rank}" for number, chunk in places[:warm]]
    for at, (number, chunk) in enumerate(places):
        if warm + at < len(places):
            after, its = places[warm + at]
            steps.append(f"F{after}.{its * ranks + rank}")
        steps.append(f"B{number}.{(chunks - 1 - chunk) * ranks + rank}")
    return steps


# %% zero_bubble: weights-at-once
# W right after its B on every stage: that is 1F1B with the backward in two boxes. It keeps less, but takes p - 1 units longer.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps = [f"F{n}" for n in range(warm)]
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps += [f"B{n}", f"W{n}"]
    return steps


# %% zero_bubble: weights-at-the-end
# All W after all else ("nobody waits for them"): every stage keeps all microbatches, not p.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps = [f"F{n}" for n in range(warm)]
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
    return steps + [f"W{n}" for n in range(microbatches)]


# %% zero_bubble: delay-from-the-wrong-end
# Puts W off by p - 1 - s backwards in place of s: stage 0 does it late, the last stage at once. Stage 0 keeps more than p.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        waiting.append(n)
        if len(waiting) > stages - 1 - stage:
            steps.append(f"W{waiting.popleft()}")
    return steps + [f"W{n}" for n in waiting]


# %% zero_bubble: one-backward-later
# Puts W off by s + 1 backwards: one off. As fast, but each stage keeps p + 1 (where there are enough microbatches).
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        waiting.append(n)
        if len(waiting) > stage + 1:
            steps.append(f"W{waiting.popleft()}")
    return steps + [f"W{n}" for n in waiting]


# %% zero_bubble: one-backward-earlier
# Puts W off by s - 1 backwards: keeps less than allowed, but a gradient leaves one unit later, and the batch takes a unit longer.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, done = [f"F{n}" for n in range(warm)], 0
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        if n >= max(stage - 1, 0):
            steps.append(f"W{done}")
            done += 1
    return steps + [f"W{n}" for n in range(done, microbatches)]


# %% zero_bubble: delay-of-three-at-most
# The delay is min(s, 3), as on the four stages of the text: from five stages on the batch takes longer.
def zero_bubble(stage, stages, microbatches):
    warm, delay = stages - stage - 1, min(stage, 3)
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        waiting.append(n)
        if len(waiting) > delay:
            steps.append(f"W{waiting.popleft()}")
    return steps + [f"W{n}" for n in waiting]


# %% zero_bubble: no-weights-between-the-last-backwards
# After the last forward all backwards first and then what is left of W. The text: these W fill the wait between the last backwards. From
# three stages on the batch takes longer.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches - warm):
        steps += [f"F{warm + n}", f"B{n}"]
        waiting.append(n)
        if len(waiting) > stage:
            steps.append(f"W{waiting.popleft()}")
    steps += [f"B{n}" for n in range(microbatches - warm, microbatches)]
    waiting.extend(range(microbatches - warm, microbatches))
    return steps + [f"W{n}" for n in waiting]


# %% zero_bubble: all-weights-before-the-last-backwards
# Does all W that wait before the last backwards begin, so that the stages before wait for these: from three stages on the batch takes longer.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches - warm):
        steps += [f"F{warm + n}", f"B{n}"]
        waiting.append(n)
        if len(waiting) > stage:
            steps.append(f"W{waiting.popleft()}")
    steps += [f"W{n}" for n in waiting]
    for n in range(microbatches - warm, microbatches):
        steps += [f"B{n}", f"W{n}"]
    return steps


# %% zero_bubble: last-weights-forgotten
# W that are still put off when the last backward is done never come: on stage s the last s microbatches have no W. (Time and memory look fine.)
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps = [f"F{n}" for n in range(warm)]
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        if n >= stage:
            steps.append(f"W{n - stage}")
    return steps


# %% zero_bubble: same-filling-on-all-stages
# Every stage begins with p - 1 forwards ("each may keep p"): memory is right, but late stages do forwards while the first gradient is
# waited for.
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        waiting.append(n)
        if warm + n < microbatches:
            steps.append(f"W{waiting.popleft()}")
    return steps + [f"W{n}" for n in waiting]


# %% zero_bubble: weights-before-the-backward
# In the turns F, W, B: when W is about to free one, the next forward has begun already. As fast, but p + 1 are kept at once.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        if len(waiting) > stage:
            steps.append(f"W{waiting.popleft()}")
        steps.append(f"B{n}")
        waiting.append(n)
    return steps + [f"W{n}" for n in waiting]


# %% zero_bubble: weights-in-pairs
# Collects W and does two at a time, which saves calls: one more is kept than allowed, and a gradient waits for two W.
def zero_bubble(stage, stages, microbatches):
    warm = stages - stage - 1
    steps, waiting = [f"F{n}" for n in range(warm)], deque()
    for n in range(microbatches):
        if warm + n < microbatches:
            steps.append(f"F{warm + n}")
        steps.append(f"B{n}")
        waiting.append(n)
        if len(waiting) > stage + 1:
            steps += [f"W{waiting.popleft()}", f"W{waiting.popleft()}"]
    return steps + [f"W{n}" for n in waiting]


# %% most_kept: first-run-of-forwards
def most_kept(steps):
    count = 0
    for step in steps:
        if step[0] == "B":
            break
        count += 1
    return count


# %% most_kept: a-backward-frees-at-its-begin-and-counts-after
def most_kept(steps):
    kept = most = 0
    for step in steps:
        kept += 1 if step[0] == "F" else -1
        if step[0] == "B":
            most = max(most, kept)
    return most


# %% most_kept: the-number-of-microbatches
def most_kept(steps):
    return max(int(step[1:]) for step in steps) + 1 if steps else 0


# %% most_kept: longest-distance-between-f-and-b
def most_kept(steps):
    begin, most = {}, 0
    for at, step in enumerate(steps):
        if step[0] == "F":
            begin[step[1:]] = at
        else:
            most = max(most, (at - begin[step[1:]] + 1) // 2)
    return most


# %% most_kept: first-digit-only
def most_kept(steps):
    kept, most = set(), 0
    for step in steps:
        if step[0] == "F":
            kept.add(step[1])
        else:
            kept.discard(step[1])
        most = max(most, len(kept))
    return most


# %% most_kept: freed-only-at-the-front
def most_kept(steps):
    queue, most = [], 0
    for step in steps:
        if step[0] == "F":
            queue.append(step[1:])
        elif queue and queue[0] == step[1:]:
            queue.pop(0)
        most = max(most, len(queue))
    return most


# %% one_f_one_b: one-warm-up-more
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage, microbatches)
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches - warm):
        steps += [f"F{i + warm}", f"B{i}"]
    return steps + [f"B{i}" for i in range(microbatches - warm, microbatches)]


# %% one_f_one_b: warm-by-the-stages-before
def one_f_one_b(stage, stages, microbatches):
    warm = min(stage, microbatches)
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches - warm):
        steps += [f"F{i + warm}", f"B{i}"]
    return steps + [f"B{i}" for i in range(microbatches - warm, microbatches)]


# %% one_f_one_b: the-rest-backwards-from-the-last
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches - warm):
        steps += [f"F{i + warm}", f"B{i}"]
    return steps + [f"B{i}" for i in reversed(range(microbatches - warm, microbatches))]


# %% one_f_one_b: no-bound-for-few-microbatches
def one_f_one_b(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{i}" for i in range(warm)]
    for i in range(warm, microbatches):
        steps += [f"F{i}", f"B{i - warm}"]
    return steps + [f"B{i}" for i in range(microbatches - warm, microbatches)]


# %% one_f_one_b: backward-first-in-each-pair
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - 1 - stage, microbatches)
    steps = [f"F{i}" for i in range(warm)]
    back = 0
    for i in range(warm, microbatches):
        if back < i:
            steps.append(f"B{back}")
            back += 1
        steps.append(f"F{i}")
    return steps + [f"B{i}" for i in range(back, microbatches)]


# %% one_f_one_b: the-remaining-backwards-forgotten
def one_f_one_b(stage, stages, microbatches):
    warm = min(stages - stage - 1, microbatches)
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches - warm):
        steps.append(f"F{warm + i}")
        steps.append(f"B{i}")
    return steps


# %% run_stage: all-handles-at-the-end
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    handles = []
    for step in order:
        number = int(step[1:])
        forward = step.startswith("F")
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if forward and rank == 0:
            x = inputs[number]
        elif not forward and rank == n - 1:
            x = torch.ones_like(inputs[0])
        else:
            x = torch.empty_like(inputs[0])
            dist.recv(x, source)
        y = stage.forward(number, x) if forward else stage.backward(number, x)
        if 0 <= target < n:
            handles.append(dist.isend(y, target))
    for handle in handles:
        handle.wait()


# %% run_stage: a-handle-a-step-waits-right-away
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if 0 <= source < n:
            x = torch.empty_like(inputs[0])
            dist.irecv(x, source).wait()
        else:
            x = inputs[number] if forward else torch.ones_like(inputs[number])
        y = (stage.forward if forward else stage.backward)(number, x)
        if 0 <= target < n:
            dist.isend(y, target).wait()


# %% run_stage: handles-dropped-without-wait
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    handle = None
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if 0 <= source < n:
            x = torch.empty_like(inputs[0])
            dist.recv(x, source)
        else:
            x = inputs[number] if forward else torch.ones_like(inputs[number])
        y = (stage.forward if forward else stage.backward)(number, x)
        if 0 <= target < n:
            handle = dist.isend(y, target)
    if handle:
        handle.wait()


# %% run_stage: sends-the-input-on
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    sent = []
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        x = inputs[number] if forward else torch.ones_like(inputs[number])
        if 0 <= source < n:
            x = torch.empty_like(x)
            dist.recv(x, source)
        if forward:
            stage.forward(number, x)
        else:
            stage.backward(number, x)
        if 0 <= target < n:
            sent.append(dist.isend(x, target))
        if len(sent) > 2:
            sent.pop(0).wait()
    while sent:
        sent.pop(0).wait()


# %% run_stage: keeps-what-came-in-a-list
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    sent, came = [], []
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        x = inputs[number] if forward else torch.ones_like(inputs[number])
        if 0 <= source < n:
            x = torch.empty_like(x)
            dist.recv(x, source)
        came.append(x)
        y = (stage.forward if forward else stage.backward)(number, x)
        if 0 <= target < n:
            sent.append(dist.isend(y, target))
        if len(sent) > 2:
            sent.pop(0).wait()
    while sent:
        sent.pop(0).wait()


# %% run_stage: last-gradient-is-the-output
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    sent, outputs = [], {}
    for step in order:
        number, forward = int(step[1:]), step[0] == "F"
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        if 0 <= source < n:
            x = torch.empty_like(inputs[0])
            dist.recv(x, source)
        else:
            x = inputs[number] if forward else outputs.pop(number)
        y = (stage.forward if forward else stage.backward)(number, x)
        if forward and rank == n - 1:
            outputs[number] = y
        if 0 <= target < n:
            sent.append(dist.isend(y, target))
        if len(sent) > 2:
            sent.pop(0).wait()
    while sent:
        sent.pop(0).wait()


# %% run_stage: backwards-send-nothing
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    work = None
    for step in order:
        way, i = step[0], int(step[1:])
        if way == "F":
            x = inputs[i]
            if rank:
                x = torch.empty_like(inputs[0])
                dist.recv(x, rank - 1)
            y = stage.forward(i, x)
            if rank < last:
                if work:
                    work.wait()
                work = dist.isend(y, rank + 1)
        else:
            g = torch.ones_like(inputs[0])
            if rank < last:
                dist.recv(g, rank + 1)
            stage.backward(i, g)
    if work:
        work.wait()


# %% train_step: loss-not-divided
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total / len(inputs)


# %% train_step: mean-of-gradients-by-parameters-again
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    for parameter in layer.parameters():
        parameter.grad /= len(inputs)
    return total


# %% train_step: the-last-loss
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    loss = None
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target)
            (loss / len(inputs)).backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return loss.item() if loss is not None else None


# %% train_step: loss-is-the-sum
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    losses = []
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target)
            (loss / len(inputs)).backward()
            losses.append(loss.item())
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return sum(losses)


# %% train_step: the-outputs-gradient-sent-back
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            y.retain_grad()
            total += loss.item()
        if rank > 0:
            grad = x.grad if rank < n - 1 else (2 / x.numel()) * (y - target).detach()
            dist.send(grad, rank - 1)
    return total


# %% train_step: zeroes-grad-each-microbatch
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        layer.zero_grad()
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            loss = mse_loss(y, target) / len(inputs)
            loss.backward()
            total += loss.item()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: all-microbatches-in-one
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    x, target = torch.cat(inputs), torch.cat(targets)
    if rank > 0:
        x = torch.empty_like(x)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = layer(x)
    loss = None
    if rank < n - 1:
        dist.send(y.detach(), rank + 1)
        grad = torch.empty_like(y)
        dist.recv(grad, rank + 1)
        y.backward(grad)
    else:
        loss = mse_loss(y, target)
        loss.backward()
        loss = loss.item()
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return loss


# %% train_step: ones-for-the-gradient-that-came
def train_step(layer, inputs, targets):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    kept, total = [], 0.0
    for x in inputs:
        if rank:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < last:
            dist.send(y.detach(), rank + 1)
    for (x, y), t in zip(kept, targets):
        if rank == last:
            loss = mse_loss(y, t) / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            g = torch.empty_like(y)
            dist.recv(g, rank + 1)
            y.backward(torch.ones_like(y))
        if rank:
            dist.send(x.grad, rank - 1)
    return total


# %% split_backward: later-does-all
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        y.backward(grad)

    return of_x, later


# %% split_backward: once-for-each-weight-without-the-gradient
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        y.sum().backward(inputs=list(weights))

    return of_x, later


# %% split_backward: only-where-grad-is-there
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for weight, one in zip(weights, torch.autograd.grad(y, weights, grad)):
            if weight.grad is not None:
                weight.grad += one

    return of_x, later


# %% split_backward: accumulates-in-the-closure
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    before = [weight.grad for weight in weights]

    def later():
        grads = torch.autograd.grad(y, weights, grad)
        for weight, old, new in zip(weights, before, grads):
            weight.grad = new if old is None else old + new

    return of_x, later


# %% interleaved: warm-not-bounded
def interleaved(rank, ranks, chunks, microbatches):
    forwards = in_groups(ranks, chunks, microbatches)
    backwards = [(m, chunks - 1 - c) for m, c in forwards]
    warm = (chunks - 1) * ranks + 2 * (ranks - 1 - rank)
    f = [f"F{m}.{c}" for m, c in forwards]
    b = [f"B{m}.{c}" for m, c in backwards]
    steps = f[:warm]
    for one, other in zip(f[warm:], b):
        steps += [one, other]
    return steps + b[-warm:]


# %% interleaved: all-of-a-chunk-first
def interleaved(rank, ranks, chunks, microbatches):
    f = [f"F{m}.{c}" for c in range(chunks) for m in range(microbatches)]
    b = [f"B{m}.{c}" for c in reversed(range(chunks)) for m in range(microbatches)]
    warm = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(f))
    steps = f[:warm]
    for one, other in zip(f[warm:], b):
        steps += [one, other]
    return steps + b[len(f) - warm :]


# %% interleaved: one-chunk-after-the-other-as-1f1b
def interleaved(rank, ranks, chunks, microbatches):
    steps = []
    for chunk in range(chunks):
        warm = min(ranks - 1 - rank, microbatches)
        steps += [f"F{m}.{chunk}" for m in range(warm)]
        for m in range(microbatches - warm):
            steps += [f"F{m + warm}.{chunk}", f"B{m}.{chunk}"]
        steps += [f"B{m}.{chunk}" for m in range(microbatches - warm, microbatches)]
    return steps


# %% zero_bubble: w-right-after-b
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches):
        if i + warm < microbatches:
            steps.append(f"F{i + warm}")
        steps += [f"B{i}", f"W{i}"]
    return steps


# %% zero_bubble: all-w-at-the-end
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches):
        if i + warm < microbatches:
            steps.append(f"F{i + warm}")
        steps.append(f"B{i}")
    return steps + [f"W{i}" for i in range(microbatches)]


# %% zero_bubble: put-off-by-the-stages-after
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{i}" for i in range(warm)]
    done = 0
    for i in range(microbatches):
        if i + warm < microbatches:
            steps.append(f"F{i + warm}")
        steps.append(f"B{i}")
        if i >= warm:
            steps.append(f"W{done}")
            done += 1
    return steps + [f"W{i}" for i in range(done, microbatches)]


# %% zero_bubble: w-before-the-b
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps = [f"F{i}" for i in range(warm)]
    for i in range(microbatches):
        if i + warm < microbatches:
            steps.append(f"F{i + warm}")
        if i >= stage:
            steps.append(f"W{i - stage}")
        steps.append(f"B{i}")
    return steps + [f"W{i}" for i in range(microbatches - stage, microbatches)]


# %% zero_bubble: a-w-is-missing
def zero_bubble(stage, stages, microbatches):
    warm = stages - 1 - stage
    steps, w = [f"F{i}" for i in range(warm)], 0
    for i in range(microbatches):
        if i + warm < microbatches:
            steps.append(f"F{i + warm}")
        steps.append(f"B{i}")
        if i >= stage:
            steps.append(f"W{w}")
            w += 1
    return steps + [f"W{i}" for i in range(w, microbatches - 1)]


# %% most_kept: nothing-of-nothing
def most_kept(steps):
    changes = (1 if step.startswith("F") else -1 for step in steps)
    return max(itertools.accumulate(changes))


# %% most_kept: newest-minus-oldest
def most_kept(steps):
    most, newest, done = 0, -1, -1
    for step in steps:
        if step[0] == "F":
            newest = max(newest, int(step[1:]))
        else:
            done = max(done, int(step[1:]))
        most = max(most, newest - done)
    return most


# %% most_kept: until-the-first-backward
def most_kept(steps):
    return next((at for at, step in enumerate(steps) if step[0] == "B"), len(steps))


# %% most_kept: after-each-pair
def most_kept(steps):
    kept, most = 0, 0
    for at, step in enumerate(steps):
        kept += 1 if "F" in step else -1
        if at + 1 < len(steps) and steps[at + 1][0] == "B":
            continue  # it is done right away
        most = max(most, kept)
    return most


# %% one_f_one_b: newest-backward-first
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - 1 - stage, microbatches)
    steps, open_ones = [f"F{i}" for i in range(ahead)], list(range(ahead))
    for i in range(ahead, microbatches):
        open_ones.append(i)
        steps += [f"F{i}", f"B{open_ones.pop()}"]
    return steps + [f"B{i}" for i in reversed(open_ones)]


# %% one_f_one_b: as-many-as-stages-before
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stage, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, microbatches):
        steps += [f"F{i}", f"B{i - ahead}"]
    return steps + [f"B{i}" for i in range(microbatches - ahead, microbatches)]


# %% one_f_one_b: one-backward-is-left
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - stage - 1, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches - ahead):
        steps.append(f"F{i + ahead}")
        steps.append(f"B{i}")
    for i in range(microbatches - ahead + 1, microbatches):
        steps.append(f"B{i}")
    return steps


# %% one_f_one_b: all-stages-fill-alike
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - 1, microbatches)
    forwards = [f"F{i}" for i in range(microbatches)]
    backwards = [f"B{i}" for i in range(microbatches)]
    steps = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards):
        steps += [forward, backward]
    return steps + backwards[microbatches - ahead :]


# %% run_stage: eight-in-flight
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
        while len(sent) > 8:
            sent.popleft().wait()
    for handle in sent:
        handle.wait()


# %% run_stage: a-barrier-at-the-end
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
        if len(sent) > 2:
            sent.popleft().wait()
    while sent:
        sent.popleft().wait()
    dist.barrier()


# %% run_stage: drops-what-is-completed
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = []
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
        sent = [handle for handle in sent if not handle.is_completed()]
    for handle in sent:
        handle.wait()


# %% run_stage: outputs-by-number
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent, outputs = deque(), {}
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        outputs[step] = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(outputs[step], rank + by))
        if len(sent) > 2:
            sent.popleft().wait()
    while sent:
        sent.popleft().wait()


# %% train_step: no-rank-alone
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank == 0:
            y = layer(x)
            dist.send(y.detach(), 1)
            grad = torch.empty_like(y)
            dist.recv(grad, 1)
            y.backward(grad)
            continue
        x = torch.empty_like(inputs[0])
        dist.recv(x, rank - 1)
        x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target) / m
            loss.backward()
            total += loss.item()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        dist.send(x.grad, rank - 1)
    return total


# %% train_step: the-last-loss-alone
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target)
            (loss / len(inputs)).backward()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return loss.item() if rank == n - 1 else None


# %% train_step: the-last-rank-goes-backwards
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    xs, ys, sent, total = [], [], [], 0.0
    for x in inputs:
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            sent.append(dist.isend(y.detach(), rank + 1))
        xs.append(x)
        ys.append(y)
    numbers = range(m) if rank < n - 1 else reversed(range(m))
    for i in numbers:
        if rank == n - 1:
            loss = mse_loss(ys[i], targets[i]) / m
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(ys[i])
            dist.recv(grad, rank + 1)
            ys[i].backward(grad)
        if rank > 0:
            sent.append(dist.isend(xs[i].grad, rank - 1))
    for handle in sent:
        handle.wait()
    return total


# %% train_step: shared-by-the-ranks
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target) / m
            total += loss.item()
            (loss / n).backward()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: reduces-the-gradients
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target) / m
            total += loss.item()
            loss.backward()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    for p in layer.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n
    return total


# %% split_backward: later-without-the-gradient
def split_backward(y, x, weights, grad):
    of_x = torch.autograd.grad(y, x, grad, retain_graph=True)[0]
    return of_x, lambda: y.sum().backward(inputs=weights)


# %% split_backward: there-must-be-a-grad
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        with torch.no_grad():
            for w, g in zip(weights, torch.autograd.grad(y, weights, grad)):
                w.grad += g

    return of_x, later


# %% interleaved: one-more-ahead
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{m}.{c}" for m, c in order]
    backwards = [f"B{m}.{chunks - 1 - c}" for m, c in order]
    ahead = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1, len(forwards))
    steps = forwards[:ahead]
    for f, b in zip(forwards[ahead:], backwards):
        steps += [f, b]
    return steps + backwards[len(forwards) - ahead :]


# %% interleaved: backwards-not-in-groups
def interleaved(rank, ranks, chunks, microbatches):
    forwards = [f"F{m}.{c}" for m, c in in_groups(ranks, chunks, microbatches)]
    backwards = [f"B{m}.{c}" for m in range(microbatches) for c in reversed(range(chunks))]
    ahead = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(forwards))
    steps = forwards[:ahead]
    for f, b in zip(forwards[ahead:], backwards):
        steps += [f, b]
    return steps + backwards[len(forwards) - ahead :]


# %% interleaved: chunk-before-microbatch
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{c}.{m}" for m, c in order]
    backwards = [f"B{chunks - 1 - c}.{m}" for m, c in order]
    ahead = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), len(forwards))
    steps = forwards[:ahead]
    for f, b in zip(forwards[ahead:], backwards):
        steps += [f, b]
    return steps + backwards[len(forwards) - ahead :]


# %% zero_bubble: one-later-than-that
def zero_bubble(stage, stages, microbatches):
    ahead, late = stages - stage - 1, stage + 1
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            steps.append(f"F{ahead + i}")
        steps.append(f"B{i}")
        if i >= late:
            steps.append(f"W{i - late}")
    return steps + [f"W{i}" for i in range(microbatches - late, microbatches)]


# %% zero_bubble: put-off-by-stages-behind
def zero_bubble(stage, stages, microbatches):
    ahead = late = stages - stage - 1
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            steps.append(f"F{ahead + i}")
        steps.append(f"B{i}")
        if i >= late:
            steps.append(f"W{i - late}")
    return steps + [f"W{i}" for i in range(microbatches - late, microbatches)]


# %% most_kept: longest-stay
def most_kept(steps):
    place = {step: at for at, step in enumerate(steps)}
    return max((place["B" + one[1:]] - at for one, at in place.items() if one[0] == "F"), default=0)


# %% most_kept: a-set-of-first-digits
def most_kept(steps):
    kept, most = set(), 0
    for step in steps:
        if step[0] == "F":
            kept.add(step[1])
        else:
            kept.discard(step[1])
        most = max(most, len(kept))
    return most


# %% one_f_one_b: of-four-stages
def one_f_one_b(stage, stages, microbatches):
    ahead = min(3 - stage, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches - ahead):
        steps += [f"F{ahead + i}", f"B{i}"]
    return steps + [f"B{i}" for i in range(microbatches - ahead, microbatches)]


# %% one_f_one_b: backward-of-the-newest-in-turn
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - stage - 1, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, microbatches):
        steps += [f"F{i}", f"B{i}"]
    return steps + [f"B{i}" for i in range(ahead)]


# %% run_stage: ones-of-four-numbers
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones(4)
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
        if len(sent) > 2:
            sent.popleft().wait()
    while sent:
        sent.popleft().wait()


# %% run_stage: from-whoever-sends
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sent = deque()
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            sent.append(dist.isend(y, rank + by))
        if len(sent) > 2:
            sent.popleft().wait()
    while sent:
        sent.popleft().wait()


# %% run_stage: the-last-handle-alone
def run_stage(order, stage, inputs):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    handle = None
    for step in order:
        way, number = step[0], int(step[1:])
        by = 1 if way == "F" else -1
        x = inputs[number] if way == "F" else torch.ones_like(inputs[number])
        if 0 <= rank - by <= last:
            x = torch.empty_like(x)
            dist.recv(x, rank - by)
        y = (stage.forward if way == "F" else stage.backward)(number, x)
        if 0 <= rank + by <= last:
            handle = dist.isend(y, rank + by)
    if handle is not None:
        handle.wait()


# %% train_step: sums-of-squares
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target, reduction="sum") / len(inputs)
            loss.backward()
            total += loss.item()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total


# %% train_step: mean-of-the-mean
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target) / m
            loss.backward()
            total += loss.item()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    for p in layer.parameters():
        p.grad /= m
    return total


# %% train_step: returned-by-the-first
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    total = 0.0
    for x, target in zip(inputs, targets):
        if rank > 0:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank == n - 1:
            loss = mse_loss(y, target) / m
            loss.backward()
            total += loss.item()
        else:
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    if rank == 0:
        return total


# %% train_step: received-into-one-tensor
def train_step(layer, inputs, targets):
    rank, n, m = dist.get_rank(), dist.get_world_size(), len(inputs)
    buffer, xs, ys, sent, total = torch.empty_like(inputs[0]), [], [], [], 0.0
    for x in inputs:
        if rank > 0:
            dist.recv(buffer, rank - 1)
            x = buffer.detach().requires_grad_()
        xs.append(x)
        ys.append(layer(x))
        if rank < n - 1:
            sent.append(dist.isend(ys[-1].detach(), rank + 1))
    for x, y, target in zip(xs, ys, targets):
        if rank == n - 1:
            loss = mse_loss(y, target) / m
            loss.backward()
            total += loss.item()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            sent.append(dist.isend(x.grad, rank - 1))
    for handle in sent:
        handle.wait()
    return total


# %% split_backward: only-where-there-is-none
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for w, g in zip(weights, torch.autograd.grad(y, weights, grad)):
            if w.grad is None:
                w.grad = g

    return of_x, later


# %% split_backward: graph-is-gone
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad)

    def later():
        torch.autograd.backward(y, grad, inputs=weights)

    return of_x, later


# %% interleaved: filled-from-the-other-end
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{m}.{c}" for m, c in order]
    backwards = [f"B{m}.{chunks - 1 - c}" for m, c in order]
    ahead = min((chunks - 1) * ranks + 2 * rank, len(forwards))
    steps = forwards[:ahead]
    for f, b in zip(forwards[ahead:], backwards):
        steps += [f, b]
    return steps + backwards[len(forwards) - ahead :]


# %% interleaved: of-two-chunks
def interleaved(rank, ranks, chunks, microbatches):
    order = in_groups(ranks, chunks, microbatches)
    forwards = [f"F{m}.{c}" for m, c in order]
    backwards = [f"B{m}.{1 - c}" for m, c in order]
    ahead = min(ranks + 2 * (ranks - 1 - rank), len(forwards))
    steps = forwards[:ahead]
    for f, b in zip(forwards[ahead:], backwards):
        steps += [f, b]
    return steps + backwards[len(forwards) - ahead :]


# %% zero_bubble: one-forward-too-many
def zero_bubble(stage, stages, microbatches):
    ahead = stages - stage
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            steps.append(f"F{ahead + i}")
        steps.append(f"B{i}")
        if i >= stage:
            steps.append(f"W{i - stage}")
    return steps + [f"W{i}" for i in range(microbatches - stage, microbatches)]


# %% zero_bubble: weights-before-their-backward
def zero_bubble(stage, stages, microbatches):
    ahead = stages - stage - 1
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            steps.append(f"F{ahead + i}")
        if i >= stage:
            steps.append(f"W{i - stage}")
        steps.append(f"B{i}")
    return steps + [f"W{i}" for i in range(microbatches - stage, microbatches)]


# %% most_kept: length-of-the-first-run
# The forwards before the first backward.
def most_kept(steps):
    kept = 0
    for step in steps:
        if step.startswith("B"):
            break
        kept += 1
    return kept


# %% most_kept: at-the-end-of-pairs
def most_kept(steps):
    return max(
        (sum(1 if s[0] == "F" else -1 for s in steps[: at + 2]) for at in range(0, len(steps), 2)),
        default=0,
    )


# %% most_kept: raises-when-empty
def most_kept(steps):
    import itertools

    return max(itertools.accumulate(1 if s[0] == "F" else -1 for s in steps))


# %% one_f_one_b: one-forward-too-many-once-more
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - stage, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches - ahead):
        steps += [f"F{ahead + i}", f"B{i}"]
    return steps + [f"B{i}" for i in range(microbatches - ahead, microbatches)]


# %% one_f_one_b: backwards-last-in-first-out
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - stage - 1, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(ahead, microbatches):
        steps += [f"F{i}", f"B{i}"]
    return steps + [f"B{i}" for i in reversed(range(ahead))]


# %% one_f_one_b: by-stages-not-stage
def one_f_one_b(stage, stages, microbatches):
    ahead = min(stages - 1, microbatches)
    steps = [f"F{i}" for i in range(ahead)]
    for f, b in zip(range(ahead, microbatches), range(microbatches)):
        steps += [f"F{f}", f"B{b}"]
    return steps + [f"B{b}" for b in range(microbatches - ahead, microbatches)]


# %% run_stage: waits-for-the-send-at-once
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    like = inputs[0]
    for step in order:
        i = tag_of(step)
        if step[0] == "F":
            x = inputs[i]
            if rank:
                x = torch.empty_like(like)
                dist.recv(x, rank - 1)
            y = stage.forward(i, x)
            if rank < n - 1:
                dist.isend(y, rank + 1).wait()
        else:
            grad = torch.ones_like(like)
            if rank < n - 1:
                dist.recv(grad, rank + 1)
            back = stage.backward(i, grad)
            if rank:
                dist.isend(back, rank - 1).wait()


# %% run_stage: a-window-of-eight
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    like, pending = inputs[0], []
    for step in order:
        i = tag_of(step)
        while len(pending) > 8:
            pending.pop(0)[0].wait()
        if step[0] == "F":
            x = inputs[i] if rank == 0 else torch.empty_like(like)
            if rank:
                dist.recv(x, rank - 1)
            out, to = stage.forward(i, x), rank + 1
        else:
            grad = torch.ones_like(like)
            if rank < n - 1:
                dist.recv(grad, rank + 1)
            out, to = stage.backward(i, grad), rank - 1
        if 0 <= to < n:
            pending.append((dist.isend(out, to), out))
    for work, _ in pending:
        work.wait()


# %% run_stage: one-buffer-for-all-once-more
# Receives every activation into the same tensor.
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer, grads = torch.empty_like(inputs[0]), torch.ones_like(inputs[0])
    pending = []
    for step in order:
        i = tag_of(step)
        if step[0] == "F":
            if rank:
                dist.recv(buffer, rank - 1)
            out = stage.forward(i, buffer if rank else inputs[i])
            to = rank + 1
        else:
            if rank + 1 < n:
                dist.recv(grads, rank + 1)
            out, to = stage.backward(i, grads), rank - 1
        if 0 <= to < n:
            pending.append((dist.isend(out, to), out))
        if len(pending) > 4:
            pending.pop(0)[0].wait()
    while pending:
        pending.pop(0)[0].wait()


# %% run_stage: grads-of-the-last-passed-on
# The last stage's gradient is its output's.
def run_stage(order, stage, inputs):
    rank, n = dist.get_rank(), dist.get_world_size()
    pending = []
    for step in order:
        i = tag_of(step)
        if step[0] == "F":
            x = inputs[i] if rank == 0 else torch.empty_like(inputs[0])
            if rank:
                dist.recv(x, rank - 1)
            out, to = stage.forward(i, x), rank + 1
        else:
            grad = torch.full_like(inputs[0], 1 / len(inputs))
            if rank + 1 < n:
                dist.recv(grad, rank + 1)
            out, to = stage.backward(i, grad), rank - 1
        if 0 <= to < n:
            pending.append((dist.isend(out, to), out))
        if len(pending) > 4:
            pending.pop(0)[0].wait()
    while pending:
        pending.pop(0)[0].wait()


# %% train_step: loss-of-the-last-microbatch
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    kept, loss = [], None
    for x, target in zip(inputs, targets):
        if rank:
            x = torch.empty_like(inputs[0]).requires_grad_()
            dist.recv(x.data, rank - 1)
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
        else:
            loss = mse_loss(y, target) / len(inputs)
            y = loss
        kept.append((x, y))
    for x, y in kept:
        if rank < n - 1:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.backward()
        if rank:
            dist.send(x.grad, rank - 1)
    return loss.item() if loss is not None else None


# %% train_step: grad-without-accumulation
# .grad is set anew for each microbatch.
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    m, total, kept = len(inputs), 0.0, []
    for i in range(m):
        x = inputs[i]
        if rank:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        kept.append((x, y))
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
    parameters = list(layer.parameters())
    for i, (x, y) in enumerate(kept):
        if rank < n - 1:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
        else:
            loss = mse_loss(y, targets[i]) / m
            total += loss.item()
            (grad,) = torch.autograd.grad(loss, y, retain_graph=True)
        wanted = [x, *parameters] if rank else parameters
        grads = torch.autograd.grad(y, wanted, grad)
        if rank:
            dist.send(grads[0], rank - 1)
            grads = grads[1:]
        for p, g in zip(parameters, grads):
            p.grad = g
    return total


# %% train_step: loss-as-a-tensor-everywhere
# The loss goes to all ranks by one more message: a broadcast.
def train_step(layer, inputs, targets):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, kept = torch.zeros(1), []
    for x, target in zip(inputs, targets):
        if rank:
            x = torch.empty_like(inputs[0])
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = layer(x)
        if rank < n - 1:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / len(inputs)
            total += y.detach()
        kept.append((x, y))
    for x, y in kept:
        if rank < n - 1:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.backward()
        if rank:
            dist.send(x.grad, rank - 1)
    dist.broadcast(total, n - 1)
    return total.item()


# %% split_backward: grads-by-name-replaced
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        for w, g in zip(weights, torch.autograd.grad(y, weights, grad)):
            w.grad = g

    return of_x, later


# %% split_backward: eager-inside
# The weights' gradients are computed at once, and only added later.
def split_backward(y, x, weights, grad):
    of_x, *others = torch.autograd.grad(y, [x, *weights], grad)

    def later():
        for w, g in zip(weights, others):
            w.grad = g if w.grad is None else w.grad + g

    return of_x, later


# %% split_backward: late-bound-weight
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    todo = []
    for w in weights:
        todo.append(lambda: (w, torch.autograd.grad(y, w, grad, retain_graph=True)[0]))

    def later():
        for one in todo:
            w, g = one()
            w.grad = g.clone() if w.grad is None else w.grad + g

    return of_x, later


# %% split_backward: without-the-incoming-gradient
def split_backward(y, x, weights, grad):
    (of_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)

    def later():
        torch.autograd.backward(y.sum(), inputs=weights)

    return of_x, later


# %% interleaved: forwards-first
def interleaved(rank, ranks, chunks, microbatches):
    order = [
        (first + number, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for number in range(ranks)
    ]
    steps = [f"F{m}.{c}" for m, c in order]
    return steps + [f"B{m}.{chunks - 1 - c}" for m, c in order]


# %% interleaved: warm-up-of-the-last-rank
def interleaved(rank, ranks, chunks, microbatches):
    order = [
        (first + number, chunk)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for number in range(ranks)
    ]
    warm = min(len(order), (chunks - 1) * ranks + 2 * rank)
    f = [f"F{m}.{c}" for m, c in order]
    b = [f"B{m}.{chunks - 1 - c}" for m, c in order]
    steps = f[:warm]
    for one, two in zip(f[warm:], b):
        steps += [one, two]
    return steps + b[len(f) - warm :]


# %% zero_bubble: weights-all-at-the-end
def zero_bubble(stage, stages, microbatches):
    ahead = stages - stage - 1
    steps = [f"F{i}" for i in range(min(ahead, microbatches))]
    for i in range(ahead, microbatches):
        steps += [f"F{i}", f"B{i - ahead}"]
    steps += [f"B{i}" for i in range(microbatches - ahead, microbatches)]
    return steps + [f"W{i}" for i in range(microbatches)]


# %% zero_bubble: weight-right-after
def zero_bubble(stage, stages, microbatches):
    ahead = stages - stage - 1
    steps = [f"F{i}" for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            steps.append(f"F{ahead + i}")
        steps += [f"B{i}", f"W{i}"]
    return steps
