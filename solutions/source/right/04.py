"""Right answers to the exercises of lab 04, in other ways than the solution's."""

from collections import deque
from itertools import cycle, pairwise

import torch


# %% timed: marks-in-a-row
def timed(cuda, work, repeats):
    marks = [cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for _ in range(3):
        work()
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    marks[-1].synchronize()
    each = [one.elapsed_time(other) for one, other in pairwise(marks)]
    return sum(each) / len(each)


# %% timed: waits-after-the-warm-up
def timed(cuda, work, repeats):
    stream = cuda.current_stream()
    work()
    cuda.synchronize()
    first = stream.record_event(cuda.Event(enable_timing=True))
    for _ in range(repeats):
        work()
    last = stream.record_event(cuda.Event(enable_timing=True))
    stream.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: asks-until-done
def timed(cuda, work, repeats):
    first, last = (cuda.Event(True) for _ in range(2))
    work()
    work()
    first.record(cuda.current_stream())
    for _ in range(repeats):
        work()
    last.record()
    while not last.query():
        pass
    return first.elapsed_time(last) / repeats


# %% timed: as-a-tensor
def timed(cuda, work, repeats):
    work()
    pairs = []
    for _ in range(repeats):
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        pairs.append((first, last))
    cuda.synchronize()
    times = [first.elapsed_time(last) for first, last in pairs]
    return torch.tensor(times).mean().item()


# %% ordered: by-events
def ordered(cuda, x, left, right):
    x.mul_(10)
    ready = cuda.Event()
    ready.record()
    left.wait_event(ready)
    right.wait_event(ready)
    with cuda.stream(left):
        a = x * 2
        a_done = left.record_event()
    with cuda.stream(right):
        b = x + 3
        b_done = right.record_event()
    a_done.wait()
    b_done.wait()
    return a + b


# %% ordered: one-waits-for-both
def ordered(cuda, x, left, right):
    x *= 10
    now = cuda.current_stream()
    for stream in (left, right):
        stream.wait_stream(now)
    with cuda.stream(right):
        b = torch.add(x, 3)
    with cuda.stream(left):
        a = torch.mul(x, 2)
    left.wait_stream(right)
    now.wait_stream(left)
    return torch.add(a, b)


# %% ordered: stream-as-a-context
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.copy_(x * 10)
    halves = []
    for stream, work in ((left, lambda: x + x), (right, lambda: x + 3)):
        stream.wait_stream(now)
        with stream:
            halves.append(work())
    now.wait_stream(left)
    now.wait_stream(right)
    return halves[0].add_(halves[1])


# %% ordered: buffers-made-before
def ordered(cuda, x, left, right):
    a, b = torch.empty(x.shape, device="cuda"), torch.empty(x.shape, device="cuda")
    x.mul_(10)
    event = cuda.current_stream().record_event()
    with cuda.stream(left):
        left.wait_event(event)
        torch.mul(x, 2, out=a)
    with cuda.stream(right):
        right.wait_event(event)
        torch.add(x, 3, out=b)
    cuda.current_stream().wait_event(left.record_event())
    cuda.current_stream().wait_event(right.record_event())
    return a + b


# %% ordered: recorded-for-streams
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    x.record_stream(left)
    x.record_stream(right)
    with cuda.stream(left):
        a = 2 * x
    with cuda.stream(right):
        b = 3 + x
    a.record_stream(now)
    b.record_stream(now)
    now.wait_stream(left)
    now.wait_stream(right)
    return b + a


# %% collective_on_side: wait-stream-before
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    done = side.record_event()
    return lambda: cuda.current_stream().wait_event(done)


# %% collective_on_side: event-wait-itself
def collective_on_side(cuda, side, collective, x):
    ready, done = cuda.Event(), cuda.Event()
    ready.record()
    side.wait_event(ready)
    with side:
        collective(x)
    done.record(side)
    return done.wait


# %% collective_on_side: a-class
def collective_on_side(cuda, side, collective, x):
    class Work:
        def __init__(self):
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                collective(x)
                self.event = cuda.Event(enable_timing=True)
                self.event.record()

        def __call__(self):
            self.event.wait()
            return True

    return Work()


# %% collective_on_side: recorded
def collective_on_side(cuda, side, collective, x):
    x.record_stream(side)
    before = cuda.current_stream()
    with cuda.stream(side):
        side.wait_stream(before)
        collective(x)
    event = side.record_event()

    def wait(stream=None):
        event.wait(stream or cuda.current_stream())

    return wait


# %% collective_on_side: set-stream
def collective_on_side(cuda, side, collective, x):
    before = cuda.current_stream()
    event = before.record_event()
    cuda.set_stream(side)
    event.wait()
    collective(x)
    done = side.record_event()
    cuda.set_stream(before)
    return lambda: done.wait()


# %% prefetch: by-two-queues
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    free = deque((torch.empty_like(b, device="cuda"), now.record_event()) for b in batches[:2])
    full: deque = deque()

    def load(batch):
        buffer, event = free.popleft()
        side.wait_event(event)
        with cuda.stream(side):
            buffer.copy_(batch, non_blocking=True)
        full.append((buffer, side.record_event()))

    results, waiting = [], iter(batches)
    load(next(waiting))
    while full:
        buffer, event = full.popleft()
        following = next(waiting, None)
        if following is not None:
            load(following)
        event.wait()
        results.append(step(buffer))
        free.append((buffer, now.record_event()))
    return results


# %% prefetch: three-buffers
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(3)]
    used = [None] * 3
    out = []
    for number, batch in enumerate(batches):
        place = number % 3
        if used[place] is None:
            side.wait_stream(now) if number == 0 else None
        else:
            side.wait_event(used[place])
        with cuda.stream(side):
            buffers[place].copy_(batch, non_blocking=True)
        now.wait_event(side.record_event())
        out.append(step(buffers[place]))
        used[place] = now.record_event()
    return out


# %% prefetch: load-ahead
def prefetch(cuda, batches, step, side):
    now, count = cuda.current_stream(), len(batches)
    with cuda.stream(side):
        buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    stepped = [cuda.Event(), cuda.Event()]
    copied = [cuda.Event(), cuda.Event()]

    def load(number):
        with cuda.stream(side):
            stepped[number % 2].wait()
            buffers[number % 2].copy_(batches[number], non_blocking=True)
            copied[number % 2].record()

    results = []
    load(0)
    for number in range(count):
        if number + 1 < count:
            load(number + 1)
        copied[number % 2].wait(now)
        results.append(step(buffers[number % 2]))
        stepped[number % 2].record(now)
    side.wait_stream(now)
    return results


# %% prefetch: one-storage
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    both = torch.empty((2, *batches[0].shape), dtype=batches[0].dtype, device="cuda")
    side.wait_stream(now)
    events: dict = {}
    results = []
    for number, batch in enumerate(batches):
        if number >= 2:
            side.wait_event(events[number - 2])
        with cuda.stream(side):
            both[number % 2].copy_(batch, non_blocking=True)
            done = side.record_event()
        now.wait_event(done)
        results.append(step(both[number % 2]))
        events[number] = now.record_event()
    return tuple(results)


# %% prefetch: cycled
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    start = now.record_event()
    pool = cycle([[torch.empty_like(batches[0], device="cuda"), start] for _ in range(2)])
    results = []
    for batch, slot in zip(batches, pool, strict=False):
        side.wait_event(slot[1])
        with cuda.stream(side):
            slot[0].copy_(batch, non_blocking=True)
        now.wait_stream(side)
        results += [step(slot[0])]
        slot[1] = now.record_event()
    return results


# %% bucket_size: all-times
def bucket_size(layers, compute, alpha, beta):
    ends = []
    for size in range(1, layers + 1):
        through, done = 0, 0
        while done < layers:
            count = min(size, layers - done)
            done += count
            through = max(through, done * compute) + alpha + count * beta
        ends.append((through, size))
    return min(ends)[1]


# %% bucket_size: recursive
def bucket_size(layers, compute, alpha, beta):
    def end(size, last):
        if last <= 0:
            return 0
        count = last % size or size
        return max(end(size, last - count), last * compute) + alpha + count * beta

    return min(range(1, layers + 1), key=lambda size: end(size, layers))


# %% bucket_size: by-the-longest-chain
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        ends = [*range(size, layers, size), layers]
        left = len(ends)
        return max(
            at * compute + (left - n) * alpha + (layers - n * size) * beta
            for n, at in enumerate(ends)
        )

    best, least = 0, float("inf")
    for size in range(1, layers + 1):
        if end(size) < least:
            best, least = size, end(size)
    return best


# %% bucket_size: a-tensor
def bucket_size(layers, compute, alpha, beta):
    ends = torch.zeros(layers, dtype=torch.float64)
    for size in range(1, layers + 1):
        for last in [*range(size, layers, size), layers]:
            count = last - (last - 1) // size * size
            ends[size - 1] = max(float(ends[size - 1]), last * compute) + alpha + count * beta
    return int(ends.argmin()) + 1


# %% bucket_size: step-by-step
def bucket_size(layers, compute, alpha, beta):
    best = float("inf"), 0
    for size in range(layers, 0, -1):
        clock = free = waiting = 0
        for layer in range(1, layers + 1):
            clock += compute
            waiting += 1
            if waiting == size or layer == layers:
                free = max(free, clock) + alpha + waiting * beta
                waiting = 0
        if free <= best[0]:
            best = free, size
    return best[1]


# %% ordered: copies-first
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x.clone()
        a += x
    with cuda.stream(right):
        b = x + 3
    now.wait_stream(left)
    now.wait_stream(right)
    result = a + b
    left.wait_stream(now)  # so that the memory of both is free again only after the sum
    right.wait_stream(now)
    return result
