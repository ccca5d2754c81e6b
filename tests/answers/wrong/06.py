"""Wrong answers to the exercises of lab 06, written without sight of its checks; see judge.py."""

import bisect
import copy
import functools
import math

import lockstep
import torch
import torch.distributed as dist


# %% last_end: gap-before-the-first-kernel
# Starts with "the end of the kernel before" at 0, so the first kernel cannot begin before `gap`; there is no kernel
# before it. It shows where gap > latency.
def last_end(kernels, launch, latency, gap):
    end = 0
    for i, duration in enumerate(kernels):
        end = max(i * launch + latency, end + gap) + duration
    return end


# %% last_end: latency-from-the-end-of-the-launch
# Counts latency from the end of the launch, (i + 1) · launch; the text counts it from its beginning, i · launch.
def last_end(kernels, launch, latency, gap):
    end = -math.inf
    for i, duration in enumerate(kernels):
        end = max((i + 1) * launch + latency, end + gap) + duration
    return end


# %% last_end: gap-always-added
# Adds the gap to every start, also where the kernel waits for its launch: the gap only counts from the end of the
# kernel before.
def last_end(kernels, launch, latency, gap):
    end = -math.inf
    for i, duration in enumerate(kernels):
        start = max(i * launch + latency, end)
        end = start + (gap if i else 0) + duration
    return end


# %% last_end: latency-only-once
# Gives only the first kernel the latency; the text says that each kernel begins at the earliest `latency` after its
# launch.
def last_end(kernels, launch, latency, gap):
    end = latency + kernels[0]
    for i, duration in enumerate(kernels[1:], 1):
        end = max(i * launch, end + gap) + duration
    return end


# %% last_end: larger-of-two-bounds
# Takes the larger of "all bound by launches" and "all bound by kernels". Right where all kernels are alike, wrong
# where a long kernel makes the queue grow in the middle.
def last_end(kernels, launch, latency, gap):
    n = len(kernels)
    host = (n - 1) * launch + latency + kernels[-1]
    device = latency + sum(kernels) + (n - 1) * gap
    return max(host, device)


# %% last_end: start-of-the-last-kernel
# Returns when the last kernel begins, not when it ends.
def last_end(kernels, launch, latency, gap):
    start, end = 0, -math.inf
    for i, duration in enumerate(kernels):
        start = max(i * launch + latency, end + gap)
        end = start + duration
    return start


# %% last_end: from-the-first-kernel-on
# Counts from the start of the first kernel; the times are to be from the start of the first launch, `latency` earlier.
def last_end(kernels, launch, latency, gap):
    end = -math.inf
    for i, duration in enumerate(kernels):
        end = max(i * launch + latency, end + gap) + duration
    return end - latency


# %% last_end: launch-index-shifted
# Treats the first kernel apart and enumerates the others from 0 again: the second launch begins at 0, too, and each
# later one a launch too early.
def last_end(kernels, launch, latency, gap):
    end = latency + kernels[0]
    for i, duration in enumerate(kernels[1:]):
        end = max(i * launch + latency, end + gap) + duration
    return end


# %% last_end: a-graph-has-no-gaps
# A shortcut for a graph (launch == 0) that forgets the gaps between its kernels.
def last_end(kernels, launch, latency, gap):
    if launch == 0:
        return latency + sum(kernels)
    end = -math.inf
    for i, duration in enumerate(kernels):
        end = max(i * launch + latency, end + gap) + duration
    return end


# %% last_end: whole-microseconds
# Rounds each kernel's end to whole µs, which adds up over many small kernels of 1.3 µs.
def last_end(kernels, launch, latency, gap):
    end = -math.inf
    for i, duration in enumerate(kernels):
        end = round(max(i * launch + latency, end + gap) + duration)
    return end


# %% last_end: host-waits-for-latency
# Lets launch i begin after i · (launch + latency), as if the host waited until a kernel has begun; it begins at
# i · launch.
def last_end(kernels, launch, latency, gap):
    end = -math.inf
    for i, duration in enumerate(kernels):
        end = max(i * (launch + latency) + latency, end + gap) + duration
    return end


# %% last_end: needs-two-kernels
# Unpacks the first two kernels to begin with, so a list with one kernel ("at least one") fails.
def last_end(kernels, launch, latency, gap):
    first, second, *others = kernels
    end = latency + first
    end = max(launch + latency, end + gap) + second
    for i, duration in enumerate(others, 2):
        end = max(i * launch + latency, end + gap) + duration
    return end


# %% captured: contiguous-is-no-copy
# y.contiguous() of a contiguous tensor is y itself: what run returns is the static output, which the next run
# overwrites.
def captured(cuda, work, x):
    static = x.clone()
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work(static)
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return y.contiguous()

    return run


# %% captured: x-is-the-static-input
# Captures with x itself, so each run copies its input into the caller's x, which must not be changed.
def captured(cuda, work, x):
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work(x)
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(x)

    def run(new):
        x.copy_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: no-warm-up
# Captures the first call of work, which by the goal sets something up that cannot be captured.
def captured(cuda, work, x):
    static = x.clone()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: captures-in-each-run
# Captures a new graph in each run and replays it: the right numbers, but work is not captured once, and a capture
# makes the host wait.
def captured(cuda, work, x):
    work(x.clone())

    def run(new):
        static = new.clone()
        g = cuda.CUDAGraph()
        with cuda.graph(g):
            y = work(static)
        g.replay()
        return y.clone()

    return run


# %% captured: two-outputs-in-turn
# Copies into two prepared outputs in turn; a result changes when run is called for the second time after it, and
# what was returned must never change.
def captured(cuda, work, x):
    static = x.clone()
    work(static.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)
    outputs = [torch.empty_like(y), torch.empty_like(y)]

    def run(new):
        static.copy_(new)
        g.replay()
        outputs.reverse()
        return outputs[0].copy_(y)

    return run


# %% captured: host-waits-in-run
# run synchronizes before it returns ("so that the result is there"); the host must never wait in run.
def captured(cuda, work, x):
    static = x.clone()
    work(static.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        result = y.clone()
        cuda.current_stream().synchronize()
        return result

    return run


# %% captured: same-tensor-is-not-copied-again
# Skips the copy in if `new` is the same tensor as last time, although its values may have changed since.
def captured(cuda, work, x):
    static = x.clone()
    work(static.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)
    last = None

    def run(new):
        nonlocal last
        if new is not last:
            static.copy_(new)
            last = new
        g.replay()
        return y.clone()

    return run


# %% captured: clone-inside-the-graph
# Captures the clone together with work: it is then a static tensor like any other, and each run returns the same
# memory.
def captured(cuda, work, x):
    static = x.clone()
    work(static.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static).clone()

    def run(new):
        static.copy_(new)
        g.replay()
        return y

    return run


# %% captured: static-input-is-float32
# Makes the static input with torch.zeros(x.shape), which is float32: for bfloat16 or integers work computes something
# else than work(new).
def captured(cuda, work, x):
    static = torch.zeros(x.shape, device="cuda")
    static.copy_(x)
    work(static.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: four-launches
# Fills the result with zeros before it copies into it: a copy, a replay, a fill and a copy are four launches, one
# more than allowed.
def captured(cuda, work, x):
    static = x.clone()
    work(static.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        result = torch.zeros_like(y)
        result.copy_(y)
        return result

    return run


# %% captured: clone-of-the-input-is-captured
# Makes the static input inside of the capture, so the graph begins with a copy from x: each replay overwrites what
# run has copied in, and run(new) always returns work(x).
def captured(cuda, work, x):
    work(x.clone())
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        static = x.clone()
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: replayed-on-a-stream-of-its-own
# Runs everything on a stream of its own that neither waits for the caller's stream nor is waited for: `new` may not
# be ready, nor the result when the caller reads it.
def captured(cuda, work, x):
    static = x.clone()
    work(static.clone())
    own = cuda.Stream()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        with cuda.stream(own):
            static.copy_(new)
            g.replay()
            return y.clone()

    return run


# %% graphed_training: warm-up-trains
# The warm-up steps are real steps, and nothing is restored: the parameters have changed when the function returns.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        whole()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: state-dict-is-no-copy
# Keeps model.state_dict() without cloning it: it refers to the parameters themselves, so loading it after the warm-up
# restores nothing.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    before = dict(model.state_dict())
    whole()
    model.load_state_dict(before)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: parameters-moved-after-the-capture
# Restores by p.data = old after the capture: the parameters then lie elsewhere, and replays train the memory that
# they had before, not the model.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()
    for p, old in zip(model.parameters(), before):
        p.data = old

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: loss-is-the-static-tensor
# Returns loss.detach(), which shares the graph's memory: the next step overwrites it, so it's not a tensor of its own.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach()

    return step


# %% graphed_training: gradients-add-up
# Sets the gradients to zero once before the capture (set_to_none=False) and not in it: each replay adds to the
# gradients of the steps before.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    optimizer.zero_grad(set_to_none=False)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: targets-are-not-copied
# Copies only x into its static tensor; each step uses the targets of the capture.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static = [x.clone(), y.clone()]
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static[0]), static[1])
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static[0].copy_(x)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: learning-rate-zero-is-baked-in
# Sets lr = 0 so that the warm-up does not train, but sets it back only after the capture: the 0 is baked into the
# graph, and no step trains.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    rates = [group["lr"] for group in optimizer.param_groups]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    for group in optimizer.param_groups:
        group["lr"] = 0.0
    whole()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: undone-by-adding-the-gradient
# Undoes the warm-up's step by p += lr · grad: because of rounding (and of any weight decay) the parameters do not
# have the values that they had before.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=group["lr"])
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: only-the-first-group-restored
# Keeps and restores optimizer.param_groups[0]["params"] only: with a second group of parameters the warm-up has
# trained those.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    params = optimizer.param_groups[0]["params"]
    before = [p.detach().clone() for p in params]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for p, old in zip(params, before):
            p.copy_(old)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: loss-of-the-step-before
# Copies the loss out before the replay: step returns the loss of the previous step (and garbage the first time).
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        result = loss.detach().clone()
        g.replay()
        return result

    return step


# %% graphed_training: optimizer-outside-the-graph
# Captures forward and backward only, and calls optimizer.step() after each replay: the right parameters, but the
# step is not one replay, and the optimizer's launches come on top.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()

    def passes():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        return loss

    passes()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = passes()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        optimizer.step()
        return loss.detach().clone()

    return step


# %% graphed_training: replayed-once-at-the-end
# Restores the parameters, captures, and then replays once "because a capture runs nothing": that replay trains, so
# the parameters have changed when the function returns.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    static_x, static_y = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def whole():
        optimizer.zero_grad()
        loss = loss_of(model(static_x), static_y)
        loss.backward()
        optimizer.step()
        return loss

    whole()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = whole()
    g.replay()

    def step(x, y):
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% clipped: mask-of-the-unscaled-x
# Compares the x before scaling with 0.5; the original masks what has been scaled.
def clipped(x, limit):
    norm = x.norm()
    scaled = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x.abs() > 0.5, scaled, 0).sum()


# %% clipped: always-scaled
# Scales by limit / norm without asking whether norm > limit: a short x is made longer.
def clipped(x, limit):
    x = x * (limit / x.norm())
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: scales-x-in-place
# mul_ changes the caller's x, which must not be changed (and the next replay finds another x).
def clipped(x, limit):
    norm = x.norm()
    x.mul_(torch.where(norm > limit, limit / norm, 1.0))
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: only-positive-ones
# Masks by x > 0.5 and forgets abs(): large negative elements are left out.
def clipped(x, limit):
    norm = x.norm()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x > 0.5, x, 0).sum()


# %% clipped: half-counts-as-large
# >= in place of >: elements of exactly 0.5 (or -0.5) are added, and the original leaves them out.
def clipped(x, limit):
    norm = x.norm()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x.abs() >= 0.5, x, 0).sum()


# %% clipped: largest-element-as-the-norm
# Uses the largest magnitude as the norm (torch's norm() is the root of the sum of squares): scales too seldom and too
# little. Right only if a single element is not zero.
def clipped(x, limit):
    norm = x.abs().amax()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: clamps-each-element
# Clips each element to [-limit, limit] in place of the norm.
def clipped(x, limit):
    x = x.clamp(-limit, limit)
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: square-root-forgotten
# "norm" is the sum of squares without its root, in the comparison and in the quotient.
def clipped(x, limit):
    norm = x.square().sum()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: sum-of-magnitudes
# Adds up the absolute values of the large elements; the original adds them with their signs.
def clipped(x, limit):
    norm = x.norm()
    size = torch.where(norm > limit, x * (limit / norm), x).abs()
    return torch.where(size > 0.5, size, 0).sum()


# %% clipped: mask-before-the-norm
# Leaves out the small elements first and takes the norm of what is left: another norm, and another scale.
def clipped(x, limit):
    large = torch.where(x.abs() > 0.5, x, 0)
    norm = large.norm()
    return torch.where(norm > limit, large * (limit / norm), large).sum()


# %% clipped: at-most-sixteen-large-ones
# Takes a fixed number of the largest magnitudes (topk), "so that the shape is fixed": if more than 16 elements are
# large, the rest is missing.
def clipped(x, limit):
    norm = x.norm()
    x = torch.where(norm > limit, x * (limit / norm), x)
    size, place = x.abs().topk(min(16, x.numel()))
    return torch.where(size > 0.5, x[place], 0).sum()


# %% by_size: view-of-the-static-output
# Returns y[:rows], a view into the graph's memory: not a tensor of its own, the next run changes it.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        g, static, y = graphs[min(size for size in graphs if size >= rows)]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows]

    return run


# %% by_size: first-in-the-given-order
# Takes the first size of the list that is large enough; `sizes` are in any order, so that need not be the smallest.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sizes:
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        g, static, y = graphs[next(size for size in sizes if size >= rows)]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: a-pool-for-each
# Makes the pool handle inside of the loop: each graph has a pool of its own, and the goal wants all in one.
def by_size(cuda, work, width, sizes):
    graphs = {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        pool = cuda.graph_pool_handle()
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        g, static, y = graphs[min(size for size in graphs if size >= rows)]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: exact-fit-goes-to-the-next-graph
# Looks for size > rows (and falls back on the largest): the values are right, but a batch that fits exactly runs in
# the next larger graph, not in the smallest that fits.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        fits = min((size for size in graphs if size > rows), default=max(graphs))
        g, static, y = graphs[fits]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: always-the-largest
# Captures all graphs and pads every batch to max(sizes): right values from the wrong graph.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        static[:rows].copy_(x)  # those of the loop's last turn
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: result-is-like-the-input
# Makes the result like x (float32, `width` columns): work may return another width or dtype, since only its number of
# rows is given.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        g, static, y = graphs[min(size for size in graphs if size >= rows)]
        static[:rows].copy_(x)
        g.replay()
        result = torch.empty_like(x)
        result.copy_(y[:rows])
        return result

    return run


# %% by_size: captured-when-first-needed
# Captures the graph of a size only when run needs it; by the goal by_size captures work for all sizes.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))

    def run(x):
        rows = x.shape[0]
        fits = min(size for size in sizes if size >= rows)
        if fits not in graphs:
            static, g = torch.zeros(fits, width, device="cuda"), cuda.CUDAGraph()
            with cuda.graph(g, pool=pool):
                y = work(static)
            graphs[fits] = g, static, y
        g, static, y = graphs[fits]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: eager-if-no-graph-fits-exactly
# Replays a graph only for exactly its size, and calls work(x) for all other batches, in place of padding.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        if x.shape[0] not in graphs:
            return work(x)
        g, static, y = graphs[x.shape[0]]
        static.copy_(x)
        g.replay()
        return y.clone()

    return run


# %% by_size: nearest-size
# Takes the size that is nearest to the number of rows: if that is a smaller one, the batch does not fit into it.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        g, static, y = graphs[min(graphs, key=lambda size: abs(size - rows))]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% by_size: in-pieces-of-smaller-graphs
# Cuts a batch into pieces that fill smaller graphs (9 rows: 8 + 1) and joins the results: right values by several
# replays, in place of one replay of the smallest graph that fits.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        results = []
        while True:
            filled = max((size for size in graphs if size <= x.shape[0]), default=min(graphs))
            piece, x = x[:filled], x[filled:]
            g, static, y = graphs[filled]
            static[: piece.shape[0]].copy_(piece)
            g.replay()
            results.append(y[: piece.shape[0]].clone())
            if not x.shape[0]:
                return torch.cat(results)

    return run


# %% by_size: closures-share-the-last-graph
# Makes a function per size in a loop; all of them look up the loop's variables when they are called, and so use the
# graph that was captured last, the smallest one: larger batches fail.
def by_size(cuda, work, width, sizes):
    pool, runs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)

        def replay(x):
            static[: x.shape[0]].copy_(x)
            g.replay()
            return y[: x.shape[0]].clone()

        runs[size] = replay

    def run(x):
        return runs[min(size for size in runs if size >= x.shape[0])](x)

    return run


# %% by_size: next-power-of-two
# Rounds the number of rows up to a power of two and looks for that size; `sizes` can be any numbers, such as 3, 6, 12.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        static, g = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            y = work(static)
        graphs[size] = g, static, y

    def run(x):
        rows = x.shape[0]
        padded = max(min(graphs), 1 << max(rows - 1, 0).bit_length())
        g, static, y = graphs[padded]
        static[:rows].copy_(x)
        g.replay()
        return y[:rows].clone()

    return run


# %% last_end: latency-at-every-kernel
def last_end(kernels, launch, latency, gap):
    end = 0
    for i, kernel in enumerate(kernels):
        end = max(i * launch, end + gap) + latency + kernel
    return end


# %% last_end: launch-returns-first
def last_end(kernels, launch, latency, gap):
    end = -gap
    for i, kernel in enumerate(kernels, 1):
        end = max(i * launch + latency, end + gap) + kernel
    return end


# %% last_end: launch-waits-for-the-device
def last_end(kernels, launch, latency, gap):
    host, end = 0, None
    for kernel in kernels:
        begin = host + latency
        if end is not None:
            begin = max(begin, end + gap)
        end = begin + kernel
        host = max(host + launch, begin)
    return end


# %% last_end: gap-after-the-last
def last_end(kernels, launch, latency, gap):
    free = 0
    for i, kernel in enumerate(kernels):
        begin = max(i * launch + latency, free)
        free = begin + kernel + gap
    return free


# %% last_end: begins-of-the-last
def last_end(kernels, launch, latency, gap):
    free = begin = 0
    for i, kernel in enumerate(kernels):
        begin = max(i * launch + latency, free)
        free = begin + kernel + gap
    return begin


# %% last_end: no-queue
def last_end(kernels, launch, latency, gap):
    return (len(kernels) - 1) * launch + latency + kernels[-1]


# %% last_end: gap-only-when-busy
def last_end(kernels, launch, latency, gap):
    end = 0
    for i, kernel in enumerate(kernels):
        arrived = i * launch + latency
        begin = end + gap if arrived < end else arrived
        end = begin + kernel
    return end


# %% last_end: bottleneck
def last_end(kernels, launch, latency, gap):
    host = launch * (len(kernels) - 1)
    device = sum(kernels) + gap * (len(kernels) - 1)
    return latency + max(host + kernels[-1], device)


# %% last_end: latency-once-then-launches
def last_end(kernels, launch, latency, gap):
    end = latency + kernels[0]
    for kernel in kernels[1:]:
        end += max(launch, gap) + kernel
    return end


# %% captured: static-input-is-x
def captured(cuda, work, x):
    work(x)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(x)

    def run(new):
        x.copy_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: output-not-cloned
def captured(cuda, work, x):
    static = torch.empty_like(x).copy_(x)
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return y

    return run


# %% captured: one-copy-for-all
def captured(cuda, work, x):
    static = x.clone()
    out = torch.empty_like(work(static))
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out.copy_(work(static))

    def run(new):
        static.copy_(new)
        g.replay()
        return out

    return run


# %% captured: copies-after-the-replay
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        g.replay()
        static.copy_(new)
        return y.clone()

    return run


# %% captured: rebinds-static
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static = new.clone()
        g.replay()
        return y.clone()

    return run


# %% captured: no-graph
def captured(cuda, work, x):
    work(x)

    def run(new):
        return work(new)

    return run


# %% captured: synchronizes
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    cuda.synchronize()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        cuda.synchronize()
        return y.clone()

    return run


# %% captured: replays-never
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.copy_(new)
        return y.clone()

    return run


# %% captured: clears-the-input-first
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = work(static)

    def run(new):
        static.zero_()
        static.add_(new)
        g.replay()
        return y.clone()

    return run


# %% captured: filled-inside-the-capture
def captured(cuda, work, x):
    work(x)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        static = torch.empty_like(x)
        static.copy_(x)
        out = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return out.clone()

    return run


# %% graphed_training: warm-up-trains-again
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()

    def plain():
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    plain()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = plain()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: state-dict-without-clones
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    before = model.state_dict()

    def plain():
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    plain()
    model.load_state_dict(before)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = plain()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: no-zero-grad
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def plain():
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    plain()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = plain()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: zero-grad-outside-before-capture
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    optimizer.zero_grad(set_to_none=False)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: without-optimizer-step
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        optimizer.step()
        return loss.detach().clone()

    return step


# %% graphed_training: y-stays
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs = x.clone()
    loss_of(model(xs), y).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad()
        loss = loss_of(model(xs), y)
        loss.backward()
        optimizer.step()

    def step(x, y):
        xs.copy_(x)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: the-same-loss-tensor
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach()

    return step


# %% graphed_training: item
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad()
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return torch.tensor(loss.item())

    return step


# %% graphed_training: step-before-backward
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = loss_of(model(xs), ys)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: loss-after-the-step
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    loss_of(model(xs), ys).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad()
        loss_of(model(xs), ys).backward()
        optimizer.step()
        loss = loss_of(model(xs), ys)

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: a-copied-model
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    import copy

    twin = copy.deepcopy(model)
    xs, ys = x.clone(), y.clone()
    loss_of(twin(xs), ys).backward()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        optimizer.zero_grad()
        loss = loss_of(twin(xs), ys)
        loss.backward()
        optimizer.step()

    def step(x, y):
        xs.copy_(x)
        ys.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: replays-before-it-copies
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    xs, ys = x.clone(), y.clone()
    before = [p.detach().clone() for p in model.parameters()]

    def work():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(xs), ys)
        loss.backward()
        optimizer.step()
        return loss

    work()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)

    def step(x, y):
        g.replay()
        xs.copy_(x)
        ys.copy_(y)
        return loss.clone()

    return step


# %% clipped: never-scales
def clipped(x, limit):
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: scales-the-small
def clipped(x, limit):
    norm = x.norm()
    x = torch.where(norm > limit, x, x * (limit / norm))
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: without-abs
def clipped(x, limit):
    x = x * (limit / x.norm()).clamp(max=1)
    return torch.where(x > 0.5, x, 0).sum()


# %% clipped: sum-of-abs
def clipped(x, limit):
    x = (x * (limit / x.norm()).clamp(max=1)).abs()
    return torch.where(x > 0.5, x, 0).sum()


# %% clipped: counts
def clipped(x, limit):
    x = x * (limit / x.norm()).clamp(max=1)
    return (x.abs() > 0.5).sum()


# %% clipped: in-place
def clipped(x, limit):
    x.mul_((limit / x.norm()).clamp(max=1))
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: mask-of-the-unscaled
def clipped(x, limit):
    y = x * (limit / x.norm()).clamp(max=1)
    return torch.where(x.abs() > 0.5, y, 0).sum()


# %% clipped: largest-norm
def clipped(x, limit):
    x = x * (limit / x.abs().max()).clamp(max=1)
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: nonzero
def clipped(x, limit):
    x = x * (limit / x.norm()).clamp(max=1)
    return x[(x.abs() > 0.5).nonzero()].sum()


# %% clipped: squares
def clipped(x, limit):
    x = x * (limit / (x * x).sum()).clamp(max=1)
    return torch.where(x.abs() > 0.5, x, 0).sum()


# %% clipped: multiplied-mask-of-one-side
def clipped(x, limit):
    scale = torch.minimum(torch.ones(()), limit / x.norm())
    y = x * scale
    return (y * (y.abs() >= 0.5)).mean()


# %% by_size: closures-see-the-last
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    runs = {}
    for n in sorted(sizes, reverse=True):
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = work(static)

        def replay(x):
            static[: len(x)] = x
            g.replay()
            return out[: len(x)].clone()

        runs[n] = replay

    def run(x):
        fits = min(n for n in runs if n >= len(x))
        return runs[fits](x)

    return run


# %% by_size: largest-always
def by_size(cuda, work, width, sizes):
    n = max(sizes)
    static = torch.zeros(n, width, device="cuda")
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = work(static)

    def run(x):
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: bisect-right
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    sizes = sorted(sizes)
    graphs = []
    for n in sizes:
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = work(static)
        graphs.append((g, static, out))

    def run(x):
        i = min(bisect.bisect_right(sizes, len(x)), len(sizes) - 1)
        g, static, out = graphs[i]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: first-that-fits-unsorted
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    graphs = {}
    for n in sizes:
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            out = work(static)
        graphs[n] = (g, static, out)

    def run(x):
        for n, (g, static, out) in graphs.items():
            if n >= len(x):
                static[: len(x)].copy_(x)
                g.replay()
                return out[: len(x)].clone()

    return run


# %% by_size: whole-output
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    graphs = {}
    for n in sorted(sizes):
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[n] = g, static, work(static)

    def run(x):
        n = next(n for n in graphs if n >= len(x))
        g, static, out = graphs[n]
        static[: len(x)].copy_(x)
        g.replay()
        return out.clone()

    return run


# %% by_size: view-of-the-output
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    graphs = {}
    for n in sorted(sizes, reverse=True):
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[n] = g, static, work(static)

    def run(x):
        g, static, out = graphs[min(n for n in graphs if n >= len(x))]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)]

    return run


# %% by_size: a-pool-each
def by_size(cuda, work, width, sizes):
    graphs = {}
    for n in sorted(sizes):
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=cuda.graph_pool_handle()):
            graphs[n] = g, static, work(static)

    def run(x):
        g, static, out = graphs[min(n for n in graphs if n >= len(x))]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: warm-up-of-no-size
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    graphs = {}
    for n in sizes:
        static = torch.zeros(n, width, device="cuda")
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[n] = g, static, work(static)

    def run(x):
        g, static, out = graphs[min(n for n in graphs if n >= len(x))]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: one-static-of-the-largest-rebound
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static)
    graphs = {}
    for n in sizes:
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[n] = g, work(static[:n])

    def run(x):
        g, out = graphs[min(n for n in graphs if n >= len(x))]
        static[-len(x) :].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: strictly-larger
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    graphs = {}
    for n in sizes:
        static = torch.zeros(n, width, device="cuda")
        work(static)
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs[n] = g, static, work(static)

    def run(x):
        larger = [n for n in graphs if n > len(x)] or [max(graphs)]
        g, static, out = graphs[min(larger)]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: inputs-in-the-pool
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    work(torch.zeros(max(sizes), width, device="cuda"))
    graphs = {}
    for n in sorted(sizes, reverse=True):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            static = torch.zeros(n, width, device="cuda")
            out = work(static)
        graphs[n] = g, static, out

    def run(x):
        g, static, out = graphs[min(n for n in graphs if n >= len(x))]
        static[: len(x)].copy_(x)
        g.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: outputs-kept-no-more
def by_size(cuda, work, width, sizes):
    pool = cuda.graph_pool_handle()
    static = torch.zeros(max(sizes), width, device="cuda")
    result = torch.zeros(max(sizes), width, device="cuda")
    work(static)
    graphs = {}
    for n in sizes:
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            result[:n].copy_(work(static[:n]))
        graphs[n] = g

    def run(x):
        static[: len(x)].copy_(x)
        graphs[min(n for n in graphs if n >= len(x))].replay()
        return result[: len(x)]

    return run


# %% last_end: latency-after-both
def last_end(kernels, launch, latency, gap):
    end = None
    for i, kernel in enumerate(kernels):
        begin = i * launch
        if end is not None:
            begin = max(begin, end + gap)
        end = begin + latency + kernel
    return end


# %% last_end: gap-only-in-a-queue
def last_end(kernels, launch, latency, gap):
    end = float("-inf")
    for i, kernel in enumerate(kernels):
        ready = i * launch + latency
        begin = end + gap if ready < end else ready
        end = begin + kernel
    return end


# %% last_end: latency-from-the-launch-before-done
def last_end(kernels, launch, latency, gap):
    end = 0.0
    for number, kernel in enumerate(kernels, start=1):
        ready = number * launch + latency
        begin = ready if number == 1 else max(ready, end + gap)
        end = begin + kernel
    return end


# %% last_end: a-gap-after-the-last
def last_end(kernels, launch, latency, gap):
    free = 0
    for i, kernel in enumerate(kernels):
        free = max(i * launch + latency, free) + kernel + gap
    return free


# %% captured: clears-it-first
def captured(cuda, work, x):
    static = torch.empty_like(x)
    static.copy_(x)
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        result = work(static)

    def run(new):
        static.zero_()
        static.copy_(new)
        g.replay()
        return result.clone()

    return run


# %% captured: copies-on-another-stream
def captured(cuda, work, x):
    side = cuda.Stream()
    static = x.clone()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        work(static)
    cuda.current_stream().wait_stream(side)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        result = work(static)

    def run(new):
        with cuda.stream(side):
            static.copy_(new)
        g.replay()
        return result.clone()

    return run


# %% captured: detached-output
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        result = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        return result.detach()

    return run


# %% captured: waits-for-an-event
def captured(cuda, work, x):
    static, done = x.clone(), cuda.Event()
    work(static)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        result = work(static)

    def run(new):
        static.copy_(new)
        g.replay()
        mine = result.clone()
        done.record()
        done.synchronize()
        return mine

    return run


# %% graphed_training: back-by-vector-to-parameters
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    sx, sy = x.clone(), y.clone()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def work():
        optimizer.zero_grad()
        loss = loss_of(model(sx), sy)
        loss.backward()
        optimizer.step()
        return loss

    work()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    torch.nn.utils.vector_to_parameters(before, model.parameters())

    def step(x, y):
        sx.copy_(x)
        sy.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: saved-after-the-warm-up
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    sx, sy = x.clone(), y.clone()

    def work():
        optimizer.zero_grad()
        loss = loss_of(model(sx), sy)
        loss.backward()
        optimizer.step()
        return loss

    work()
    saved = [p.detach().clone() for p in model.parameters()]
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    with torch.no_grad():
        for p, old in zip(model.parameters(), saved):
            p.copy_(old)

    def step(x, y):
        sx.copy_(x)
        sy.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: targets-of-the-first-batch
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    sx = x.clone()
    saved = [p.detach().clone() for p in model.parameters()]

    def work():
        optimizer.zero_grad()
        loss = loss_of(model(sx), y)
        loss.backward()
        optimizer.step()
        return loss

    work()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    with torch.no_grad():
        for p, old in zip(model.parameters(), saved):
            p.copy_(old)

    def step(x, y):
        sx.copy_(x)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: cleared-before-the-capture
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    sx, sy = x.clone(), y.clone()
    saved = [p.detach().clone() for p in model.parameters()]

    def work():
        loss = loss_of(model(sx), sy)
        loss.backward()
        optimizer.step()
        return loss

    work()
    optimizer.zero_grad(set_to_none=False)
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    with torch.no_grad():
        for p, old in zip(model.parameters(), saved):
            p.copy_(old)

    def step(x, y):
        sx.copy_(x)
        sy.copy_(y)
        g.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: loss-only-detached
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    sx, sy = x.clone(), y.clone()
    saved = [p.detach().clone() for p in model.parameters()]

    def work():
        optimizer.zero_grad()
        loss = loss_of(model(sx), sy)
        loss.backward()
        optimizer.step()
        return loss

    work()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = work()
    with torch.no_grad():
        for p, old in zip(model.parameters(), saved):
            p.copy_(old)

    def step(x, y):
        sx.copy_(x)
        sy.copy_(y)
        g.replay()
        return loss.detach()

    return step


# %% clipped: mask-of-the-unclipped
def clipped(x, limit):
    factor = torch.clamp(limit / x.norm(), max=1.0)
    return torch.where(x.abs() > 0.5, x * factor, 0).sum()


# %% clipped: only-large-positive-ones
def clipped(x, limit):
    x = x * torch.clamp(limit / x.norm(), max=1.0)
    return torch.where(x > 0.5, x, torch.zeros_like(x)).sum()


# %% clipped: scales-its-argument
def clipped(x, limit):
    x *= torch.clamp(limit / x.norm(), max=1.0)
    return (x * (x.abs() > 0.5)).sum()


# %% clipped: masked-select
def clipped(x, limit):
    norm = x.norm()
    x = torch.where(norm > limit, x * (limit / norm), x)
    return torch.masked_select(x, x.abs() > 0.5).sum()


# %% clipped: clamped-from-below
def clipped(x, limit):
    x = x * torch.clamp(limit / x.norm(), min=1.0)
    return torch.where(x.abs() > 0.5, x, 0.0).sum()


# %% by_size: bisect-to-the-right
def by_size(cuda, work, width, sizes):
    ordered, graphs, pool = sorted(sizes), [], cuda.graph_pool_handle()
    static = torch.zeros(ordered[-1], width, device="cuda")
    work(static)
    for size in ordered:
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            graphs.append((g, work(static[:size])))
    graphs.append(graphs[-1])

    def run(x):
        g, result = graphs[bisect.bisect_right(ordered, len(x))]
        static[: len(x)].copy_(x)
        g.replay()
        return result[: len(x)].clone()

    return run


# %% by_size: a-pool-in-each-round
def by_size(cuda, work, width, sizes):
    graphs = {}
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static)
    for size in sorted(sizes, reverse=True):
        pool = cuda.graph_pool_handle()
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            result = work(static[:size])
        graphs[size] = g, result

    def run(x):
        rows = x.shape[0]
        g, result = graphs[min(size for size in graphs if size >= rows)]
        static[:rows].copy_(x)
        g.replay()
        return result[:rows].clone()

    return run


# %% by_size: first-in-the-list-that-fits
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), []
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static)
    for size in sizes:
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            result = work(static[:size])
        graphs.append((size, g, result))

    def run(x):
        rows = len(x)
        g, result = next((g, result) for size, g, result in graphs if size >= rows)
        static[:rows] = x
        g.replay()
        return result[:rows].clone()

    return run


# %% by_size: cut-but-not-copied
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static)
    for size in sorted(sizes, reverse=True):
        graphs[size] = g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            g.result = work(static[:size])

    def run(x):
        rows = len(x)
        g = graphs[min(size for size in graphs if size >= rows)]
        static.narrow(0, 0, rows).copy_(x)
        g.replay()
        return g.result.narrow(0, 0, rows).contiguous()

    return run


# %% by_size: functions-of-the-last-graph
def by_size(cuda, work, width, sizes):
    pool, runs = cuda.graph_pool_handle(), {}
    static = torch.zeros(max(sizes), width, device="cuda")
    work(static)
    for size in sorted(sizes):
        g = cuda.CUDAGraph()
        with cuda.graph(g, pool=pool):
            result = work(static[:size])

        def run_one(x):
            static[: len(x)].copy_(x)
            g.replay()
            return result[: len(x)].clone()

        runs[size] = run_one

    def run(x):
        return runs[min(size for size in runs if size >= len(x))](x)

    return run


# %% last_end: latency-after-the-gap
# Latency is added behind the wait for the kernel before.
def last_end(kernels, launch, latency, gap):
    end = -gap
    for number, length in enumerate(kernels):
        end = max(number * launch, end + gap) + latency + length
    return end


# %% last_end: a-gap-before-the-first
def last_end(kernels, launch, latency, gap):
    end = 0
    for number, length in enumerate(kernels):
        end = max(number * launch + latency, end + gap) + length
    return end


# %% last_end: host-waits
# Launch i begins when launch i - 1 is over and its kernel has started.
def last_end(kernels, launch, latency, gap):
    begun = end = None
    for length in kernels:
        begun = 0 if begun is None else begun + max(launch, latency)
        start = begun + latency if end is None else max(begun + latency, end + gap)
        end = start + length
    return end


# %% last_end: longest-kernel-counts
def last_end(kernels, launch, latency, gap):
    n = len(kernels)
    return max(at * launch + latency + k for at, k in enumerate(kernels)) + gap * (n - 1) * 0


# %% captured: output-returned-by-name
# The clone is made once, when it is captured.
def captured(cuda, work, x):
    work(x.clone())
    static, graph = x.clone(), cuda.CUDAGraph()
    with cuda.graph(graph):
        out = work(static)
    kept = out.clone()

    def run(new):
        static.copy_(new)
        graph.replay()
        return kept.copy_(out)

    return run


# %% captured: replay-then-copy
def captured(cuda, work, x):
    static = x.clone()
    work(static)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = work(static)

    def run(new):
        graph.replay()
        static.copy_(new)
        return out.clone()

    return run


# %% captured: warm-up-is-the-capture
def captured(cuda, work, x):
    static = torch.empty_like(x)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = work(static)

    def run(new):
        static.copy_(new)
        graph.replay()
        return out.clone()

    return run


# %% captured: host-waits-for-the-copy
def captured(cuda, work, x):
    static = x.detach().clone()
    work(static)
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        out = work(static)

    def run(new):
        static.copy_(new)
        graph.replay()
        result = out.clone()
        cuda.current_stream().synchronize()
        return result

    return run


# %% graphed_training: restored-by-reference
# state_dict() holds the parameters themselves.
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    before = model.state_dict()
    inputs, targets = x.clone(), y.clone()

    def one():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    one()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = one()
    model.load_state_dict(before)

    def step(x, y):
        inputs.copy_(x)
        targets.copy_(y)
        graph.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: targets-baked-in
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    saved = [p.detach().clone() for p in model.parameters()]
    inputs = x.clone()
    optimizer.zero_grad()
    loss_of(model(inputs), y).backward()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(inputs), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for p, old in zip(model.parameters(), saved):
            p.copy_(old)

    def step(x, y):
        inputs.copy_(x)
        graph.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: no-zero-grad-in-the-graph
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    saved = [p.detach().clone() for p in model.parameters()]
    inputs, targets = x.clone(), y.clone()
    loss_of(model(inputs), targets).backward()
    optimizer.zero_grad(set_to_none=False)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), saved)

    def step(x, y):
        inputs.copy_(x)
        targets.copy_(y)
        graph.replay()
        return loss.detach().clone()

    return step


# %% graphed_training: loss-before-the-replay
def graphed_training(cuda, model, optimizer, loss_of, x, y):
    saved = [p.detach().clone() for p in model.parameters()]
    inputs, targets = x.clone(), y.clone()
    loss_of(model(inputs), targets).backward()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for p, old in zip(model.parameters(), saved):
            p.copy_(old)

    def step(x, y):
        inputs.copy_(x)
        targets.copy_(y)
        result = loss.detach().clone()
        graph.replay()
        return result

    return step


# %% clipped: clamp-of-values
# clamp limits each number, not the norm.
def clipped(x, limit):
    y = x.clamp(-limit, limit)
    return torch.where(y.abs() > 0.5, y, torch.zeros_like(y)).sum()


# %% clipped: normalised-always
def clipped(x, limit):
    y = x * (limit / x.norm())
    return (y * (y.abs() > 0.5)).sum()


# %% clipped: mask-before-the-scale
def clipped(x, limit):
    y = x * torch.clamp(limit / x.norm(), max=1.0)
    return torch.where(x.abs() > 0.5, y, 0.0).sum()


# %% clipped: absolute-sum
def clipped(x, limit):
    y = x * torch.clamp(limit / torch.linalg.vector_norm(x), max=1.0)
    return torch.relu(y.abs() - 0.5).sum()


# %% by_size: next-larger-by-bisect-right
# For exactly as many rows as a graph has, the next larger one is taken.
def by_size(cuda, work, width, sizes):
    sizes, pool, graphs = sorted(sizes), cuda.graph_pool_handle(), {}
    work(torch.zeros(1, width, device="cuda"))
    for size in reversed(sizes):
        given, graph = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            out = work(given)
        graphs[size] = graph, given, out

    def run(x):
        at = min(bisect.bisect_right(sizes, len(x)), len(sizes) - 1)
        graph, given, out = graphs[sizes[at]]
        given[: len(x)].copy_(x)
        graph.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: in-the-given-order
# The first of `sizes` that fits, in whatever order they are.
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), []
    work(torch.zeros(max(sizes), width, device="cuda"))
    for size in sizes:
        given, graph = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            out = work(given)
        graphs.append((graph, given, out))

    def run(x):
        graph, given, out = next(one for one in graphs if one[1].shape[0] >= x.shape[0])
        given[: len(x)].copy_(x)
        graph.replay()
        return out[: len(x)].clone()

    return run


# %% by_size: narrowed-without-a-copy
def by_size(cuda, work, width, sizes):
    pool, graphs = cuda.graph_pool_handle(), {}
    work(torch.zeros(2, width, device="cuda"))
    for size in sorted(sizes, reverse=True):
        given, graph = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool):
            graphs[size] = graph, given, work(given)

    def run(x):
        graph, given, out = graphs[min(s for s in graphs if s >= len(x))]
        given.narrow(0, 0, len(x)).copy_(x)
        graph.replay()
        return out.narrow(0, 0, len(x))

    return run


# %% by_size: own-pools
def by_size(cuda, work, width, sizes):
    graphs = {}
    for size in sorted(sizes):
        given, graph = torch.zeros(size, width, device="cuda"), cuda.CUDAGraph()
        work(given)
        with cuda.graph(graph):
            out = work(given)
        graphs[size] = graph, given, out

    def run(x):
        graph, given, out = next(graphs[s] for s in graphs if s >= len(x))
        given[: len(x)] = x
        graph.replay()
        return out[: len(x)].clone()

    return run
