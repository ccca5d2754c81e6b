"""Wrong answers to the exercises of lab 04, each under the mistake that its check has to name."""

import time
from itertools import pairwise

import lockstep
import torch


# %% timed: host-clock
def timed(cuda, work, repeats):
    work()
    cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begin) / repeats * 1e3


# %% timed: counts-warm-up
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    cuda.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: counts-warm-up
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    first.record()
    for _ in range(repeats + 1):
        work()
    last.record()
    cuda.synchronize()
    return first.elapsed_time(last) / (repeats + 1)


# %% timed: not-divided
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    cuda.synchronize()
    return first.elapsed_time(last)


# %% timed: divided-by-one-more
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    cuda.synchronize()
    return first.elapsed_time(last) / (repeats + 1)


# %% timed: seconds
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    cuda.synchronize()
    return first.elapsed_time(last) / repeats / 1000


# %% timed: microseconds
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    cuda.synchronize()
    return first.elapsed_time(last) / repeats * 1000


# %% timed: reversed
def timed(cuda, work, repeats):
    work()
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    last.synchronize()
    return last.elapsed_time(first) / repeats


# %% timed: not-reached
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    return first.elapsed_time(last) / repeats


# %% timed: one-call
def timed(cuda, work, repeats):
    work()
    marks = [cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for mark in marks[:-1]:
        mark.record()
        work()
    marks[-1].record()
    cuda.synchronize()
    return min(one.elapsed_time(other) for one, other in pairwise(marks))


# %% timed: waits-each-turn
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
        cuda.synchronize()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: waits-each-turn
def timed(cuda, work, repeats):
    work()
    total = 0
    for _ in range(repeats):
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        while not last.query():
            pass
        total += first.elapsed_time(last)
    return total / repeats


# %% timed: few-calls
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(3):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 3


# %% timed: no-events
def timed(cuda, work, repeats):
    work()
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    for _ in range(repeats):
        work()
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) / repeats * 1e3


# %% timed: torch-cuda
def timed(cuda, work, repeats):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: type
def timed(cuda, work, repeats):
    for _ in range(repeats):
        work()


# %% timed: nothing-between
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    first.record()
    last.record()
    work()
    cuda.synchronize()
    return first.elapsed_time(last)


# %% timed: calls-left-out
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for number in range(repeats):
        if number == repeats - 1:
            last.record()
        work()
    cuda.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: calls-left-out
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    for number in range(repeats):
        if number == 1:
            first.record()
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / (repeats - 1)


# %% timed: rounded
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    last.synchronize()
    return round(first.elapsed_time(last) / repeats, 2)


# %% timed: otherwise
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(10):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 10


# %% timed: torch-cuda
def timed(cuda, work, repeats):
    work()
    a, b = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    a.record()
    for _ in range(repeats):
        work()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) / repeats


# %% timed: torch-cuda
def timed(cuda, work, repeats):
    work()
    a, b = (cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    for _ in range(repeats):
        work()
    b.record()
    torch.accelerator.synchronize()
    return a.elapsed_time(b) / repeats


# %% ordered: no-wait-before-left
def ordered(cuda, x, left, right):
    x.mul_(10)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    return a + b


# %% ordered: no-wait-before-right
def ordered(cuda, x, left, right):
    x.mul_(10)
    left.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: no-wait-after-left
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    return a + b


# %% ordered: no-wait-after-right
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    now.wait_stream(left)
    return a + b


# %% ordered: host-waits
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
        left_done = left.record_event()
    with cuda.stream(right):
        b = x + 3
        right_done = right.record_event()
    while not (left_done.query() and right_done.query()):
        pass
    return a + b


# %% ordered: new-tensors
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x = x * 10
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    now.wait_stream(left)
    now.wait_stream(right)
    return a + b


# %% ordered: between-left-and-right
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x.mul_(2)
    with cuda.stream(right):
        b = x.add_(3)
    now.wait_stream(left)
    now.wait_stream(right)
    return a + b


# %% ordered: stream-not-used
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    one, other = cuda.Stream(), cuda.Stream()
    one.wait_stream(now)
    other.wait_stream(now)
    with cuda.stream(one):
        a = x * 2
    with cuda.stream(other):
        b = x + 3
    now.wait_stream(one)
    now.wait_stream(other)
    return a + b


# %% ordered: swapped
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(right):
        torch.mul(x, 2, out=a)
    with cuda.stream(left):
        torch.add(x, 3, out=b)
    now.wait_stream(left)
    now.wait_stream(right)
    return a + b


# %% ordered: sum-elsewhere
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
        right.wait_stream(left)
        total = a + b
    now.wait_stream(right)
    return total


# %% ordered: not-beside
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
    right.wait_stream(left)
    with cuda.stream(right):
        b = x + 3
    now.wait_stream(right)
    return a + b


# %% ordered: race
def ordered(cuda, x, left, right):
    now = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(now)
    right.wait_stream(now)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    x.mul_(1)  # while the halves still read it
    now.wait_stream(left)
    now.wait_stream(right)
    return a + b


# %% ordered: value
def ordered(cuda, x, left, right):
    x.mul_(10)
    return x * 2 + x


# %% ordered: type
def ordered(cuda, x, left, right):
    x.mul_(10)


# %% ordered: torch-cuda
def ordered(cuda, x, left, right):
    now = torch.cuda.current_stream()
    x.mul_(10)
    for stream in (left, right):
        stream.wait_stream(now)
    with torch.cuda.stream(left):
        a = x * 2
    with torch.cuda.stream(right):
        b = x + 3
    for stream in (left, right):
        now.wait_stream(stream)
    return a + b


# %% ordered: torch-cuda
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = torch.accelerator.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    here.wait_stream(left)
    here.wait_stream(right)
    return a + b


# %% collective_on_side: never-launched
def collective_on_side(cuda, side, collective, x):
    def wait():
        cuda.current_stream().wait_stream(side)

    return wait


# %% collective_on_side: not-called
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        x.mul_(4)
        done = side.record_event()
    return lambda: done.wait(cuda.current_stream())


# %% collective_on_side: launched-late
def collective_on_side(cuda, side, collective, x):
    ready = cuda.current_stream().record_event()

    def wait():
        with cuda.stream(side):
            ready.wait()
            collective(x)
        cuda.current_stream().wait_stream(side)

    return wait


# %% collective_on_side: no-event-before
def collective_on_side(cuda, side, collective, x):
    with cuda.stream(side):
        collective(x)
        done = side.record_event()

    def wait():
        done.wait(cuda.current_stream())

    return wait


# %% collective_on_side: stream-of-the-launch
def collective_on_side(cuda, side, collective, x):
    current = cuda.current_stream()
    side.wait_stream(current)
    with cuda.stream(side):
        collective(x)
    done = side.record_event()
    return lambda: done.wait(current)


# %% collective_on_side: no-event-after
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    return lambda: None


# %% collective_on_side: type
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        return side.record_event()


# %% collective_on_side: not-on-side
def collective_on_side(cuda, side, collective, x):
    before = cuda.current_stream()
    collective(x)
    return lambda: cuda.current_stream().wait_stream(before)


# %% collective_on_side: not-on-side
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    collective(x)
    done = side.record_event()
    return lambda: done.wait(cuda.current_stream())


# %% collective_on_side: host-waits
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        done = side.record_event()
    return done.synchronize


# %% collective_on_side: blocks-at-once
def collective_on_side(cuda, side, collective, x):
    now = cuda.current_stream()
    side.wait_stream(now)
    with cuda.stream(side):
        collective(x)
        done = side.record_event()
    done.wait(now)
    return lambda: cuda.current_stream().wait_event(done)


# %% collective_on_side: waits-for-all
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    return lambda: cuda.current_stream().wait_stream(side)


# %% collective_on_side: race
def collective_on_side(cuda, side, collective, x):
    now = cuda.current_stream()
    side.wait_stream(now)
    with cuda.stream(side):
        collective(x)
        done = side.record_event()
    x.sum()  # a look at x, while the collective works on it
    return lambda: done.wait(cuda.current_stream())


# %% collective_on_side: given-back
def collective_on_side(cuda, side, collective, x):
    y = x.clone()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(y)
        done = side.record_event()
    return lambda: done.wait(cuda.current_stream())


# %% collective_on_side: into-a-copy
def collective_on_side(cuda, side, collective, x):
    y = x.clone()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(y)
        done = side.record_event()

    def wait():
        done.wait(cuda.current_stream())
        return y  # which keeps it

    return wait


# %% collective_on_side: torch-cuda
def collective_on_side(cuda, side, collective, x):
    with torch.cuda.stream(side):
        collective(x)
        done = side.record_event()
    return done.wait


# %% collective_on_side: waits-once
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        pending = [side.record_event()]

    def wait():
        if pending:
            pending.pop().wait()

    return wait


# %% collective_on_side: torch-cuda
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    done = torch.Event()
    with cuda.stream(side):
        collective(x)
        done.record(side)
    return lambda: done.wait(cuda.current_stream())


# %% prefetch: no-wait-at-first
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    used = [now.record_event() for _ in buffers]
    results = []
    for number, batch in enumerate(batches):
        place = number % 2
        with cuda.stream(side):
            if number > 1:
                used[place].wait()
            buffers[place].copy_(batch, non_blocking=True)
            full = side.record_event()
        full.wait()
        results.append(step(buffers[place]))
        used[place] = now.record_event()
    return results


# %% prefetch: no-full
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    results = []
    for number, batch in enumerate(batches):
        side.wait_stream(now)
        with cuda.stream(side):
            buffers[number % 2].copy_(batch, non_blocking=True)
        results.append(step(buffers[number % 2]))
    return results


# %% prefetch: no-free
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    results = []
    side.wait_stream(now)
    for number, batch in enumerate(batches):
        with cuda.stream(side):
            buffers[number % 2].copy_(batch, non_blocking=True)
            full = side.record_event()
        full.wait(now)
        results.append(step(buffers[number % 2]))
    return results


# %% prefetch: given-back
def prefetch(cuda, batches, step, side):
    now, results = cuda.current_stream(), []
    for batch in batches:
        with cuda.stream(side):
            here = batch.to("cuda", non_blocking=True)
            full = side.record_event()
        full.wait(now)
        results.append(step(here))
    return results


# %% prefetch: host-waits
def prefetch(cuda, batches, step, side):
    now, results = cuda.current_stream(), []
    with cuda.stream(side):
        following = batches[0].to("cuda", non_blocking=True)
    for number in range(len(batches)):
        side.synchronize()
        here = following
        results.append(step(here))
        if number + 1 < len(batches):
            with cuda.stream(side):
                following = batches[number + 1].to("cuda", non_blocking=True)
        here.record_stream(now)
    return results


# %% prefetch: pageable
def prefetch(cuda, batches, step, side):
    now = cuda.current_stream()
    buffers = [torch.empty_like(one, device="cuda") for one in batches[:2]]
    free = [now.record_event() for _ in buffers]
    results = []
    for number, batch in enumerate(batches):
        buffer = buffers[number % 2]
        free[number % 2].wait(side)
        with cuda.stream(side):
            buffer.copy_(batch.clone(), non_blocking=True)
            full = side.record_event()
        full.wait(now)
        results.append(step(buffer))
        free[number % 2] = now.record_event()
    return results


# %% prefetch: not-hidden
def prefetch(cuda, batches, step, side):
    return [step(batch.to("cuda", non_blocking=True)) for batch in batches]


# %% prefetch: not-copied
def prefetch(cuda, batches, step, side):
    return [step(batch) for batch in batches]


# %% prefetch: too-much-memory
def prefetch(cuda, batches, step, side):
    now, results = cuda.current_stream(), []
    for batch in batches:
        with cuda.stream(side):
            here = batch.to("cuda", non_blocking=True)
        now.wait_stream(side)
        here.record_stream(now)
        results.append(step(here))
    return results


# %% prefetch: race
def prefetch(cuda, batches, step, side):
    now, results = cuda.current_stream(), []
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    free = [now.record_event() for _ in buffers]
    for number, batch in enumerate(batches):
        buffer = buffers[number % 2]
        free[number % 2].wait(side)
        with cuda.stream(side):
            buffer.copy_(batch, non_blocking=True)
            full = side.record_event()
        full.wait(now)
        results.append(step(buffer.mul_(1)))  # in place, while side still looks at it
        free[number % 2] = now.record_event()
        with cuda.stream(side):
            buffer.sum()
    return results


# %% prefetch: shape
def prefetch(cuda, batches, step, side):
    here = batches[0].to("cuda", non_blocking=True)
    return [step(here)]


# %% prefetch: type
def prefetch(cuda, batches, step, side):
    for batch in batches:
        step(batch.to("cuda", non_blocking=True))


# %% bucket_size: each-layer
def bucket_size(layers, compute, alpha, beta):
    return 1


# %% bucket_size: all-layers
def bucket_size(layers, compute, alpha, beta):
    return layers


# %% bucket_size: last-as-full
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent, count = 0, -(-layers // size)
        for number in range(1, count + 1):
            sent = max(sent, number * size * compute) + alpha + size * beta
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: last-as-full
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            ready = min(begin + size, layers) * compute
            sent = max(sent, ready) + alpha + size * beta
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: last-as-full
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            many = min(size, layers - begin)
            sent = max(sent, (begin + size) * compute) + alpha + many * beta
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: in-turn
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        buckets = [min(size, layers - first) for first in range(0, layers, size)]
        return sum(max(many * compute, alpha + many * beta) for many in buckets)

    return min(range(1, layers + 1), key=end)


# %% bucket_size: returns-time
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            sent = max(sent, last * compute) + alpha + (last - begin) * beta
        return sent

    return min(end(size) for size in range(1, layers + 1))


# %% bucket_size: counts-buckets
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            sent = max(sent, last * compute) + alpha + (last - begin) * beta
        return sent

    return -(-layers // min(range(1, layers + 1), key=end))


# %% bucket_size: outside
def bucket_size(layers, compute, alpha, beta):
    return layers + 1


# %% bucket_size: too-late
def bucket_size(layers, compute, alpha, beta):
    return max(1, layers // 2)


# %% bucket_size: in-a-row
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = size * compute
        for begin in range(0, layers, size):
            sent += alpha + min(size, layers - begin) * beta
        return max(sent, layers * compute)

    return min(range(1, layers + 1), key=end)


# %% bucket_size: in-a-row
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = size * compute
        for begin in range(0, layers, size):
            sent += alpha + min(size, layers - begin) * beta
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: only-divisors
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for last in range(size, layers + 1, size):
            sent = max(sent, last * compute) + alpha + size * beta
        return sent

    sizes = [size for size in range(1, layers + 1) if layers % size == 0]
    return min(sizes, key=end)


# %% bucket_size: never-all
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            sent = max(sent, last * compute) + alpha + (last - begin) * beta
        return sent

    return min(range(1, layers), key=end)


# %% bucket_size: short-first
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent, computed, many = 0, 0, layers % size or size
        while computed < layers:
            computed += many
            sent = max(sent, computed * compute) + alpha + many * beta
            many = size
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: rest-left-out
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for last in range(size, layers + 1, size):
            sent = max(sent, last * compute) + alpha + size * beta
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: rest-left-out
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for last in range(size, layers + 1, size):
            sent = max(sent, last * compute) + alpha + size * beta
        return max(sent, layers * compute)

    return min(range(1, layers + 1), key=end)


# %% bucket_size: stops-early
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            sent = max(sent, last * compute) + alpha + (last - begin) * beta
        return sent

    size = 1
    while size < layers and end(size + 1) < end(size):
        size += 1
    return size


# %% bucket_size: rounded
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            sent = int(max(sent, last * compute) + alpha + (last - begin) * beta)
        return sent

    return min(range(1, layers + 1), key=end)


# %% bucket_size: rounded
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sent = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            sent = max(sent, last * compute) + alpha + (last - begin) * beta
        return int(sent)

    return min(range(1, layers + 1), key=end)


# %% prefetch: converted
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(one.shape, device="cuda") for one in batches[:2]]
    side.wait_stream(cuda.current_stream())
    results = []
    copied: dict = {}
    free: dict = {}

    def copy(at):
        if at >= 2:
            side.wait_event(free[at - 2])
        with cuda.stream(side):
            buffers[at % 2].copy_(batches[at], non_blocking=True)
            copied[at] = side.record_event()

    copy(0)
    for at in range(len(batches)):
        if at + 1 < len(batches):
            copy(at + 1)
        copied[at].wait()
        results.append(step(buffers[at % 2]))
        free[at] = cuda.current_stream().record_event()
    return results


# %% prefetch: torch-cuda
def prefetch(cuda, batches, step, side):
    results = []
    for batch in batches:
        with torch.cuda.stream(side):
            here = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        results.append(step(here))
    return results


# %% prefetch: steps-elsewhere
def prefetch(cuda, batches, step, side):
    with cuda.stream(side):
        return [step(batch.to("cuda", non_blocking=True)) for batch in batches]


# %% prefetch: torch-cuda
def prefetch(cuda, batches, step, side):
    side = torch.Stream()
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_stream(here)
    return [step(buffers[0])]
