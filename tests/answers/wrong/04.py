"""Wrong answers to the exercises of lab 04, written without sight of its checks; see judge.py."""

import functools
import math
import statistics
import time
from collections import deque

import lockstep
import torch
import torch.distributed as dist


# %% timed: warm-up-only-if-repeats-above-one
# Skips the warm-up when repeats is 1 ("there is nothing to average"), so the only counted call is the first one,
# which the goal says must not count.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    if repeats > 1:
        work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: last-event-before-the-last-call
# Records the last event at the beginning of the last turn of the loop, so only repeats - 1 calls lie between the
# events, but it divides by repeats: 2 % too little for 50 calls, 25 % for 4.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for i in range(repeats):
        if i == repeats - 1:
            last.record()
        work()
    cuda.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: waits-for-each-call
# Reads each call's pair of events right after it, so the host waits between the calls, which the goal forbids.
def timed(cuda, work, repeats):
    work()
    total = 0.0
    for _ in range(repeats):
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        total += first.elapsed_time(last)
    return total / repeats


# %% timed: microseconds
# Returns µs (the notebook's cells multiply by 1e3), but the goal says milliseconds.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / repeats * 1e3


# %% timed: always-ten-calls
# Ignores `repeats` and averages over ten calls; the mean has to be over `repeats` calls (it shows where calls differ).
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    for _ in range(3):
        work()
    first.record()
    for _ in range(10):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 10


# %% timed: warm-up-is-one-of-the-repeats
# Makes `repeats` calls in all, and averages over the repeats - 1 that follow the warm-up: not the mean over `repeats`
# calls, and a division by zero for repeats = 1.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    for call in range(repeats):
        if call == 1:
            first.record()
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / (repeats - 1)


# %% timed: host-clock
# Takes the time with the host's clock around the loop (after a synchronize, so the number is nearly right); the goal
# demands events and no clock of the host.
def timed(cuda, work, repeats):
    work()
    cuda.synchronize()
    begin = lockstep.virtual.perf_counter()
    for _ in range(repeats):
        work()
    cuda.synchronize()
    return (lockstep.virtual.perf_counter() - begin) * 1e3 / repeats


# %% timed: median-of-the-calls
# The median over the calls instead of the mean: differs as soon as some of the calls take longer than others.
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
    return statistics.median(first.elapsed_time(last) for first, last in pairs)


# %% timed: events-on-the-default-stream
# Records both events in the default stream. If another stream is current, work() runs there, and the events measure
# nothing of it.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record(cuda.default_stream())
    for _ in range(repeats):
        work()
    last.record(cuda.default_stream())
    cuda.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: rounded-to-two-digits
# Rounds to hundredths of a millisecond: a work of some µs comes out as 0.0 or 0.01, much more than 5 % off.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(repeats):
        work()
    last.record()
    last.synchronize()
    return round(first.elapsed_time(last) / repeats, 2)


# %% timed: same-two-events-each-time
# Records the same two events anew around each call and reads them at the end: only the last call is measured, which
# is no mean over `repeats` calls.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    for _ in range(repeats):
        first.record()
        work()
        last.record()
    last.synchronize()
    return first.elapsed_time(last)


# %% ordered: side-streams-wait-for-the-default-stream
# Orders everything against cuda.default_stream() instead of the current one: where another stream is current, the
# side streams begin before x.mul_(10) is done, a race.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(cuda.default_stream())
    right.wait_stream(cuda.default_stream())
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: host-waits-for-the-sides
# Joins the streams with event.synchronize(): no race, but the host waits, which the goal forbids.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    ready = cuda.current_stream().record_event()
    done = []
    for side, op, number, out in ((left, torch.mul, 2, a), (right, torch.add, 3, b)):
        ready.wait(side)
        with cuda.stream(side):
            op(x, number, out=out)
            done.append(side.record_event())
    for event in done:
        event.synchronize()
    return a + b


# %% ordered: fork-and-join-one-after-the-other
# Forks and joins `left` completely before it forks `right` from the current stream, which waits for left by then: the
# two never run at the same time.
def ordered(cuda, x, left, right):
    current = cuda.current_stream()
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(current)
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    current.wait_stream(left)
    right.wait_stream(current)
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    current.wait_stream(right)
    return a + b


# %% ordered: not-in-place
# x = x * 10 makes a new tensor; the caller's x is not multiplied, though the goal says in place.
def ordered(cuda, x, left, right):
    x = x * 10
    a, b = torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(cuda.current_stream())
    right.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: sum-on-left
# The sum is made on `left` (which waits for right), and the current stream waits for it: the right number without a
# race, but the goal wants the sum made on the current stream.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b, total = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(cuda.current_stream())
    right.wait_stream(cuda.current_stream())
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
        left.wait_stream(right)
        torch.add(a, b, out=total)
    cuda.current_stream().wait_stream(left)
    return total


# %% ordered: event-before-the-product
# The event that the side streams wait for is recorded before x.mul_(10): nothing orders the product and their reads.
def ordered(cuda, x, left, right):
    a, b = torch.empty_like(x), torch.empty_like(x)
    ready = cuda.current_stream().record_event()
    x.mul_(10)
    ready.wait(left)
    ready.wait(right)
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: done-event-before-the-work
# For `right` the done event is recorded at the beginning of the with block, before x + 3 is launched: the current
# stream waits for a mark that comes too early, so the sum races with x + 3.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(cuda.current_stream())
    right.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
        left_done = left.record_event()
    with cuda.stream(right):
        right_done = right.record_event()
        torch.add(x, 3, out=b)
    left_done.wait()
    right_done.wait()
    return a + b


# %% ordered: waits-inside-the-with-block
# Calls done.wait() inside of `with cuda.stream(side)`: the current stream is the side stream there, which waits for
# itself; the stream that makes the sum waits for nobody.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    ready = cuda.current_stream().record_event()
    with cuda.stream(left):
        ready.wait()
        torch.mul(x, 2, out=a)
        left.record_event().wait()
    with cuda.stream(right):
        ready.wait()
        torch.add(x, 3, out=b)
        right.record_event().wait()
    return a + b


# %% ordered: streams-swapped
# x + 3 runs on `left` and x * 2 on `right`; the sum is the same, but the goal says which stream computes what.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    left.wait_stream(cuda.current_stream())
    right.wait_stream(cuda.current_stream())
    with cuda.stream(right):
        torch.mul(x, 2, out=a)
    with cuda.stream(left):
        torch.add(x, 3, out=b)
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: all-on-the-current-stream
# Computes x * 2 + (x + 3) on the current stream, with only the waits of the pattern: the right number, but nothing is
# computed on `left` and `right`.
def ordered(cuda, x, left, right):
    x.mul_(10)
    left.wait_stream(cuda.current_stream())
    right.wait_stream(cuda.current_stream())
    total = x * 2 + (x + 3)
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return total


# %% ordered: second-half-on-the-current-stream
# Only x * 2 goes to a side stream; x + 3 stays on the current stream, "which is free anyway". The goal wants it on
# stream `right`.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a = torch.empty_like(x)
    left.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    b = x + 3
    cuda.current_stream().wait_stream(left)
    return a + b


# %% ordered: returns-to-the-default-stream
# Switches with set_stream and "back" to the default stream: where another stream was current, the sum is made on the
# wrong stream, without an order, and the caller's current stream has changed.
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    ready = cuda.current_stream().record_event()
    cuda.set_stream(left)
    ready.wait()
    torch.mul(x, 2, out=a)
    cuda.set_stream(right)
    ready.wait()
    torch.add(x, 3, out=b)
    cuda.set_stream(cuda.default_stream())
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% collective_on_side: waits-for-all-of-side
# wait() is wait_stream(side) at the time of the call: it also waits for collectives that side was given later, and
# the goal says this collective only.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)

    def wait(x=x):
        cuda.current_stream().wait_stream(side)

    return wait


# %% collective_on_side: stream-of-the-launch-waits
# wait() makes the stream wait that was current at the launch; the goal says the one that is current when wait() is
# called.
def collective_on_side(cuda, side, collective, x):
    current = cuda.current_stream()
    side.wait_stream(current)
    with cuda.stream(side):
        collective(x)
        done = side.record_event()

    def wait(x=x):
        current.wait_event(done)

    return wait


# %% collective_on_side: side-waits-for-itself
# Calls wait_stream(cuda.current_stream()) inside of the with block, where the current stream is `side` itself: the
# collective is not ordered after the work that made x.
def collective_on_side(cuda, side, collective, x):
    with cuda.stream(side):
        side.wait_stream(cuda.current_stream())
        collective(x)
        done = side.record_event()

    def wait(x=x):
        done.wait()

    return wait


# %% collective_on_side: done-before-the-collective
# The event is recorded on side before the collective is launched: wait() orders nothing that matters.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        done = side.record_event()
        collective(x)

    def wait(x=x):
        done.wait()

    return wait


# %% collective_on_side: wait-blocks-the-host
# wait() is event.synchronize(), gloo's way: the host waits, and the goal says that it never does.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        done = side.record_event()

    def wait(x=x):
        done.synchronize()

    return wait


# %% collective_on_side: event-on-the-wrong-stream
# The done event is recorded after the with block by cuda.current_stream(), so it is a mark in the launching stream
# and not in side: wait() does not wait for the collective.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    done = cuda.current_stream().record_event()

    def wait(x=x):
        cuda.current_stream().wait_event(done)

    return wait


# %% collective_on_side: one-event-for-all-calls
# Reuses one event per side stream: a second collective records it anew, so the wait() of the first one then waits
# for the later collective, too.
_done_events = {}


def collective_on_side(cuda, side, collective, x):
    key = id(side)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        if key not in _done_events:
            _done_events[key] = side, cuda.Event()
        done = _done_events[key][1]
        done.record(side)

    def wait(x=x):
        done.wait()

    return wait


# %% collective_on_side: launched-by-wait
# Only prepares everything, and launches the collective when wait() is called: values are right, but nothing runs
# beside the current stream between launch and wait().
def collective_on_side(cuda, side, collective, x):
    ready, done = cuda.current_stream().record_event(), []

    def wait():
        if not done:
            ready.wait(side)
            with cuda.stream(side):
                collective(x)
                done.append(side.record_event())
        done[0].wait()

    return wait


# %% collective_on_side: wait-works-once
# The handle is "used up" by the first wait(): a second call, from another stream, returns without ordering that
# stream. By the goal each call makes the then current stream wait.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        pending = [(side.record_event(), x)]

    def wait():
        if pending:
            done, _ = pending.pop()
            done.wait()

    return wait


# %% collective_on_side: side-stays-current
# Uses set_stream(side) and never sets it back: what the caller launches afterwards goes to side, behind the
# collective, so the current stream does not work on.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    cuda.set_stream(side)
    collective(x)
    done = side.record_event()

    def wait(x=x):
        done.wait()

    return wait


# %% collective_on_side: current-waits-for-side-first
# To be safe the current stream first waits for whatever side has: with an earlier collective on side, the current
# stream stands still between launch and wait().
def collective_on_side(cuda, side, collective, x):
    current = cuda.current_stream()
    current.wait_stream(side)
    side.wait_stream(current)
    with cuda.stream(side):
        collective(x)
        done = side.record_event()

    def wait(x=x):
        done.wait()

    return wait


# %% collective_on_side: after-the-default-stream
# side waits for the default stream instead of the current one: with another stream current, the collective may start
# before its input is ready.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.default_stream())
    with cuda.stream(side):
        collective(x)
        done = side.record_event()

    def wait(x=x):
        done.wait()

    return wait


# %% bucket_size: square-root-formula
# A formula from a continuous model, sqrt(layers · alpha / beta): it does not know `compute` nor the last, smaller
# bucket, so it is often not the best size.
def bucket_size(layers, compute, alpha, beta):
    best = round(math.sqrt(layers * alpha / beta)) if beta else layers
    return max(1, min(layers, best))


# %% bucket_size: only-divisors
# Tries only sizes that divide `layers`; the last bucket may have fewer, so every size from 1 to layers is allowed.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for last in range(size, layers + 1, size):
            done = max(done, last * compute) + alpha + size * beta
        return done

    return min((size for size in range(1, layers + 1) if layers % size == 0), key=end)


# %% bucket_size: never-all-layers
# range(1, layers) leaves out the one bucket with all layers, which is the best if alpha is large (and finds nothing
# for one layer but the default).
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for begin in range(0, layers, size):
            some = min(size, layers - begin)
            done = max(done, (begin + some) * compute) + alpha + some * beta
        return done

    return min(range(1, layers), key=end, default=1)


# %% bucket_size: last-message-at-full-price
# Charges alpha + m·beta for the last bucket even if it has fewer than m layers.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for begin in range(0, layers, size):
            ready = min(begin + size, layers) * compute
            done = max(done, ready) + alpha + size * beta
        return done

    return min(range(1, layers + 1), key=end)


# %% bucket_size: remainder-comes-first
# Puts the smaller bucket at the beginning; the goal says that the last one may have fewer.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        sizes = [size] * (layers // size)
        if layers % size:
            sizes.insert(0, layers % size)
        computed = done = 0
        for some in sizes:
            computed += some * compute
            done = max(done, computed) + alpha + some * beta
        return done

    return min(range(1, layers + 1), key=end)


# %% bucket_size: messages-do-not-queue
# Each message starts as soon as its last layer is computed, without waiting for the previous message: only the last
# one seems to count, and small buckets look free.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        ends = []
        for begin in range(0, layers, size):
            some = min(size, layers - begin)
            ends.append((begin + some) * compute + alpha + some * beta)
        return max(ends)

    return min(range(1, layers + 1), key=end)


# %% bucket_size: remainder-is-never-sent
# layers // size buckets: with a remainder the last layers are never sent, so sizes that do not divide `layers` look
# too good.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for bucket in range(1, layers // size + 1):
            done = max(done, bucket * size * compute) + alpha + size * beta
        return max(done, layers * compute)

    return min(range(1, layers + 1), key=end)


# %% bucket_size: number-of-buckets
# Finds the best size and returns how many buckets that makes, not how many layers are in one.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for begin in range(0, layers, size):
            some = min(size, layers - begin)
            done = max(done, (begin + some) * compute) + alpha + some * beta
        return done

    best = min(range(1, layers + 1), key=end)
    return -(-layers // best)


# %% bucket_size: whole-microseconds
# Cuts each end to whole µs before comparing: sizes that differ by less count as equal, and times given in ms or s
# all become 0.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for begin in range(0, layers, size):
            some = min(size, layers - begin)
            done = int(max(done, (begin + some) * compute) + alpha + some * beta)
        return done

    return min(range(1, layers + 1), key=end)


# %% bucket_size: stops-at-the-first-minimum
# Goes up from 1 as long as the end gets earlier: the end is not a smooth function of the size (the last bucket
# changes), so this can stop in a local minimum.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for begin in range(0, layers, size):
            some = min(size, layers - begin)
            done = max(done, (begin + some) * compute) + alpha + some * beta
        return done

    size = 1
    while size < layers and end(size + 1) < end(size):
        size += 1
    return size


# %% bucket_size: last-bucket-waits-for-missing-layers
# The last bucket is ready at bucket · size · compute, as if it were full: it waits for layers that do not exist.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for bucket in range(math.ceil(layers / size)):
            some = min(size, layers - bucket * size)
            done = max(done, (bucket + 1) * size * compute) + alpha + some * beta
        return done

    return min(range(1, layers + 1), key=end)


# %% bucket_size: latency-of-a-queued-message-is-free
# A message that follows directly on another pays no alpha ("its latency runs while the other is sent"); by the rules
# each message takes alpha + m·beta.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        done = 0
        for begin in range(0, layers, size):
            some = min(size, layers - begin)
            ready = (begin + some) * compute
            done = max(done, ready + alpha) + some * beta
        return done

    return min(range(1, layers + 1), key=end)


# %% prefetch: blocking-copy
# copy_ without non_blocking=True: from pinned memory, too, the host waits for each copy.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    side.wait_stream(cuda.current_stream())
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 2:
            side.wait_event(free[i - 2])
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i])
            copied[i] = side.record_event()

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        copied[i].wait()
        results.append(step(buffers[i % 2]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% prefetch: waits-for-one-step-too-early
# With three buffers copy i overwrites what step i - 3 reads, but waits for step i - 4: a copy that is quick enough
# writes where a step still reads.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:3]]
    side.wait_stream(cuda.current_stream())
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 4:
            side.wait_event(free[i - 4])
        with cuda.stream(side):
            buffers[i % 3].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    copy(0)
    copy(1)
    for i in range(len(batches)):
        copy(i + 2)
        copied[i].wait()
        results.append(step(buffers[i % 3]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% prefetch: no-wait-for-the-buffers-memory
# side does not wait for the current stream before the first copies: a new buffer may have the memory of an older
# tensor with which the current stream still works.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 2:
            side.wait_event(free[i - 2])
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        copied[i].wait()
        results.append(step(buffers[i % 2]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% prefetch: new-tensor-each-with-record-stream
# The usual idiom, batch.to("cuda", non_blocking=True) on side and record_stream: the host runs ahead, so no memory is
# free yet for the next one, and n batches lie in n places instead of at most three.
def prefetch(cuda, batches, step, side):
    def load(batch):
        with cuda.stream(side):
            there = batch.to("cuda", non_blocking=True)
            return there, side.record_event()

    results, coming = [], load(batches[0]) if batches else None
    for i in range(len(batches)):
        (here, ready), coming = coming, None
        if i + 1 < len(batches):
            coming = load(batches[i + 1])
        ready.wait()
        here.record_stream(cuda.current_stream())
        results.append(step(here))
    return results


# %% prefetch: four-places
# A ring of four buffers; otherwise right, but the goal allows at most three places.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:4]]
    side.wait_stream(cuda.current_stream())
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 4:
            side.wait_event(free[i - 4])
        with cuda.stream(side):
            buffers[i % 4].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    for i in range(3):
        copy(i)
    for i in range(len(batches)):
        copy(i + 3)
        copied[i].wait()
        results.append(step(buffers[i % 4]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% prefetch: copy-waits-for-the-running-step
# Launches step i and then lets side wait for the whole current stream before copy i + 1: no race, but each copy
# begins after the step beside which it should run, and nothing is hidden.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    results = []
    for i, batch in enumerate(batches):
        side.wait_stream(current)
        with cuda.stream(side):
            buffers[i % 2].copy_(batch, non_blocking=True)
            ready = side.record_event()
        ready.wait(current)
        results.append(step(buffers[i % 2]))
    return results


# %% prefetch: step-waits-for-the-next-copy
# The current stream waits for all of side, and copy i + 1 has been given to it by then: step i begins only when the
# next batch is there, so nothing is hidden.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    side.wait_stream(current)
    free, results = {}, []

    def copy(i):
        if i < len(batches):
            if i >= 2:
                side.wait_event(free[i - 2])
            with cuda.stream(side):
                buffers[i % 2].copy_(batches[i], non_blocking=True)

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        current.wait_stream(side)
        results.append(step(buffers[i % 2]))
        free[i] = current.record_event()
    return results


# %% prefetch: buffers-are-float32
# Makes buffers without dtype: a batch of uint8 or bfloat16 arrives as float32, so step gets something else than the
# batch.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(b.shape, device="cuda") for b in batches[:2]]
    side.wait_stream(cuda.current_stream())
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 2:
            side.wait_event(free[i - 2])
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        copied[i].wait()
        results.append(step(buffers[i % 2]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% prefetch: needs-two-batches
# Fills both buffers before the loop without asking whether there is a second batch: a list of one batch fails with
# an IndexError.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [
        torch.empty(batches[0].shape, dtype=batches[0].dtype, device="cuda") for _ in range(2)
    ]
    side.wait_stream(current)
    ready = []
    with cuda.stream(side):
        for i in range(2):
            buffers[i].copy_(batches[i], non_blocking=True)
            ready.append(side.record_event())
    results = []
    for i in range(len(batches)):
        ready[i].wait(current)
        results.append(step(buffers[i % 2]))
        if i + 2 < len(batches):
            side.wait_event(current.record_event())
            with cuda.stream(side):
                buffers[i % 2].copy_(batches[i + 2], non_blocking=True)
                ready.append(side.record_event())
    return results


# %% prefetch: ordered-with-the-default-stream
# Takes the default stream for the current one in all waits: where another stream is current, steps begin before
# their copies have ended, and copies write where steps still read.
def prefetch(cuda, batches, step, side):
    main = cuda.default_stream()
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    side.wait_stream(main)
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 2:
            side.wait_event(free[i - 2])
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        main.wait_event(copied[i])
        results.append(step(buffers[i % 2]))
        free[i] = main.record_event()
    return results


# %% prefetch: buffers-of-side-dropped-too-early
# The buffers belong to side, and nothing tells the allocator that the current stream reads them: when prefetch
# returns, their memory is free for the next tensor on side (the first buffer of a second call of prefetch, say), whose
# copy then writes where a step still reads.
def prefetch(cuda, batches, step, side):
    with cuda.stream(side):
        buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 2:
            side.wait_event(free[i - 2])
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        copied[i].wait()
        results.append(step(buffers[i % 2]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% prefetch: host-waits-for-a-free-buffer
# Before a buffer is used again the host waits (event.synchronize) until its step is done; the goal says that the host
# does not wait.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    side.wait_stream(cuda.current_stream())
    copied, free, results = {}, {}, []

    def copy(i):
        if i >= len(batches):
            return
        if i >= 2:
            free[i - 2].synchronize()
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied[i] = side.record_event()

    copy(0)
    for i in range(len(batches)):
        copy(i + 1)
        copied[i].wait()
        results.append(step(buffers[i % 2]))
        free[i] = cuda.current_stream().record_event()
    return results


# %% timed: sleep-behind-the-first-mark
def timed(cuda, work, repeats):
    work()
    begin = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    begin.record()
    cuda._sleep(1_000_000)  # so that the launches are ahead
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


# %% timed: in-microseconds
def timed(cuda, work, repeats):
    work()
    begin = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end) / repeats * 1000


# %% timed: warm-up-only-when-many
def timed(cuda, work, repeats):
    if repeats > 1:
        work()
    marks = [cuda.Event(enable_timing=True) for _ in range(2)]
    marks[0].record()
    for _ in range(repeats):
        work()
    marks[1].record()
    marks[1].synchronize()
    return marks[0].elapsed_time(marks[1]) / repeats


# %% timed: best-of-the-calls
def timed(cuda, work, repeats):
    work()
    times = []
    pairs = []
    for _ in range(repeats):
        a = cuda.Event(enable_timing=True)
        b = cuda.Event(enable_timing=True)
        a.record()
        work()
        b.record()
        pairs.append((a, b))
    cuda.synchronize()
    for a, b in pairs:
        times.append(a.elapsed_time(b))
    return min(times)


# %% timed: events-without-timing
def timed(cuda, work, repeats):
    work()
    begin, end = cuda.Event(), cuda.Event()
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


# %% timed: waits-by-item
def timed(cuda, work, repeats):
    work()
    total = 0.0
    for _ in range(repeats):
        a = cuda.Event(enable_timing=True)
        b = cuda.Event(enable_timing=True)
        a.record()
        work()
        b.record()
        while not b.query():
            pass
        total += a.elapsed_time(b)
    return total / repeats


# %% timed: work-on-a-side-stream
def timed(cuda, work, repeats):
    work()
    side = cuda.Stream()
    begin = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)
    with cuda.stream(side):
        begin.record()
    for _ in range(repeats):
        work()
    with cuda.stream(side):
        end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


# %% timed: fence-posts
def timed(cuda, work, repeats):
    marks = []
    for _ in range(repeats + 1):
        work()
        mark = cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)
    cuda.synchronize()
    return marks[0].elapsed_time(marks[-1]) / len(marks)


# %% timed: process-time
def timed(cuda, work, repeats):
    work()
    cuda.synchronize()
    begin = time.time()
    for _ in range(repeats):
        work()
    cuda.synchronize()
    return (time.time() - begin) * 1e3 / repeats


# %% ordered: times-ten-on-left
def ordered(cuda, x, left, right):
    left.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        x.mul_(10)
        a = x * 2
    right.wait_stream(cuda.current_stream())
    with cuda.stream(right):
        b = x + 3
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: events-recorded-too-early
def ordered(cuda, x, left, right):
    ready = cuda.current_stream().record_event()
    x.mul_(10)
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


# %% ordered: waits-of-the-side
def ordered(cuda, x, left, right):
    x.mul_(10)
    for side in (left, right):
        side.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
        a_done = left.record_event()
        b_done = right.record_event()
        a_done.wait()
        b_done.wait()
    return a + b


# %% ordered: right-takes-left
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    left.wait_stream(here)
    with cuda.stream(left):
        a = x * 2
    right.wait_stream(left)
    with cuda.stream(right):
        b = x + 3
    here.wait_stream(right)
    return a + b


# %% ordered: nested-with
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(left), cuda.stream(right):
        a = x * 2
        b = x + 3
    here.wait_stream(left)
    here.wait_stream(right)
    return a + b


# %% ordered: x-rebound
def ordered(cuda, x, left, right):
    x = x * 10
    here = cuda.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    here.wait_stream(left)
    here.wait_stream(right)
    return a + b


# %% ordered: sum-in-left
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(right):
        b = x + 3
    with cuda.stream(left):
        a = x * 2
        left.wait_stream(right)
        c = a + b
    here.wait_stream(left)
    return c


# %% ordered: query-loop
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    while not (left.query() and right.query()):
        pass
    return a + b


# %% ordered: on-the-streams-of-before
def ordered(cuda, x, left, right):
    x.mul_(10)
    left.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        a = x * 2
        right.wait_stream(cuda.current_stream())
    with cuda.stream(right):
        b = x + 3
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% ordered: streamcontext
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with torch.cuda.StreamContext(left):
        a = x * 2
    with torch.cuda.StreamContext(right):
        b = x + 3
    here.wait_stream(left)
    here.wait_stream(right)
    return a + b


# %% ordered: torch-event-record
def ordered(cuda, x, left, right):
    x.mul_(10)
    e = torch.Event()
    e.record(cuda.current_stream())
    left.wait_event(e)
    right.wait_event(e)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    cuda.current_stream().wait_stream(left)
    cuda.current_stream().wait_stream(right)
    return a + b


# %% collective_on_side: only-the-first-wait
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        done = [side.record_event()]

    def wait():
        if done:
            done.pop().wait()

    return wait


# %% collective_on_side: event-of-the-launching-stream
def collective_on_side(cuda, side, collective, x):
    done = cuda.Event()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    done.record()
    return lambda: done.wait()


# %% collective_on_side: one-event-both-ways
def collective_on_side(cuda, side, collective, x):
    event = cuda.Event()
    event.record()
    with cuda.stream(side):
        collective(x)
        event.record()
    return event.wait


# %% collective_on_side: wait-on-the-launcher
def collective_on_side(cuda, side, collective, x):
    here = cuda.current_stream()
    here.record_event().wait(side)
    with cuda.stream(side):
        collective(x)
    done = side.record_event()

    def wait():
        done.wait(here)

    return wait


# %% collective_on_side: event-at-wait-time
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    return lambda: cuda.current_stream().wait_event(side.record_event())


# %% collective_on_side: set-stream-and-stay
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    cuda.set_stream(side)
    collective(x)
    done = side.record_event()
    return done.wait


# %% collective_on_side: into-a-copy
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x.clone()
        collective(y)
        done = side.record_event()

    def wait():
        done.wait()
        return y

    return wait


# %% collective_on_side: stream-waits-for-itself
def collective_on_side(cuda, side, collective, x):
    with cuda.stream(side):
        cuda.current_stream().wait_stream(side)
        collective(x)
        done = side.record_event()
    return done.wait


# %% collective_on_side: waits-inside-the-wait-on-side
def collective_on_side(cuda, side, collective, x):
    ready = cuda.current_stream().record_event()
    with cuda.stream(side):
        ready.wait()
        collective(x)
        done = side.record_event()

    def wait():
        done.wait(side)

    return wait


# %% collective_on_side: without-with
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    collective(x)
    done = side.record_event()

    def wait():
        done.wait(cuda.current_stream())

    return wait


# %% collective_on_side: torch-event-device
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    done = torch.Event(device="cuda")
    with cuda.stream(side):
        collective(x)
        done.record()
    return lambda: cuda.current_stream().wait_event(done)


# %% bucket_size: every-message-full
def bucket_size(layers, compute, alpha, beta):
    best = None
    for m in range(1, layers + 1):
        free = 0
        for k in range(1, -(-layers // m) + 1):
            free = max(free, k * m * compute) + alpha + m * beta
        if best is None or free < best[0]:
            best = free, m
    return best[1]


# %% bucket_size: two-terms
def bucket_size(layers, compute, alpha, beta):
    def total(m):
        messages = -(-layers // m)
        rest = layers - (messages - 1) * m
        return layers * compute + alpha + rest * beta

    return min(range(1, layers + 1), key=total)


# %% bucket_size: square-root
def bucket_size(layers, compute, alpha, beta):
    m = round((layers * alpha / (compute + beta)) ** 0.5)
    return min(max(m, 1), layers)


# %% bucket_size: fits-behind-compute
def bucket_size(layers, compute, alpha, beta):
    for m in range(1, layers + 1):
        if alpha + m * beta <= m * compute:
            return m
    return layers


# %% bucket_size: only-divisors-again
def bucket_size(layers, compute, alpha, beta):
    def done(m):
        end = 0
        for first in range(0, layers, m):
            end = max(end, (first + m) * compute) + alpha + m * beta
        return end

    return min((m for m in range(1, layers + 1) if layers % m == 0), key=done)


# %% bucket_size: short-first-bucket
def bucket_size(layers, compute, alpha, beta):
    def done(m):
        rest = layers % m
        sizes = ([rest] if rest else []) + [m] * (layers // m)
        ready = end = 0
        for size in sizes:
            ready += size * compute
            end = max(ready, end) + alpha + size * beta
        return end

    return min(range(1, layers + 1), key=done)


# %% bucket_size: compute-waits-for-messages
def bucket_size(layers, compute, alpha, beta):
    def done(m):
        now, left = 0, layers
        while left > 0:
            size = min(m, left)
            now += size * compute + alpha + size * beta
            left -= size
        return now

    return min(range(1, layers + 1), key=done)


# %% bucket_size: all-messages-after-the-first
def bucket_size(layers, compute, alpha, beta):
    def done(m):
        end = m * compute
        for first in range(0, layers, m):
            end += alpha + min(m, layers - first) * beta
        return max(end, layers * compute)

    return min(range(1, layers + 1), key=done)


# %% bucket_size: time-and-not-size
def bucket_size(layers, compute, alpha, beta):
    times = []
    for m in range(1, layers + 1):
        end = ready = 0
        for first in range(0, layers, m):
            size = min(m, layers - first)
            ready += size * compute
            end = max(ready, end) + alpha + size * beta
        times.append(end)
    return min(times)


# %% bucket_size: stops-at-the-first-worse
def bucket_size(layers, compute, alpha, beta):
    def done(m):
        end = 0
        for last in [*range(m, layers, m), layers]:
            size = (last - 1) % m + 1
            end = max(end, last * compute) + alpha + size * beta
        return end

    m = 1
    while m < layers and done(m + 1) < done(m):
        m += 1
    return m


# %% bucket_size: message-at-the-first-layer
def bucket_size(layers, compute, alpha, beta):
    def when(size):
        done = 0
        for begin in range(0, layers, size):
            last = min(begin + size, layers)
            done = max(done, (begin + 1) * compute) + alpha + (last - begin) * beta
        return done

    return min(range(1, layers + 1), key=when)


# %% bucket_size: larger-of-two-sums
def bucket_size(layers, compute, alpha, beta):
    def when(size):
        n = -(-layers // size)
        return max(layers * compute, n * (alpha + size * beta)) + alpha + size * beta

    return min(range(1, layers + 1), key=when)


# %% prefetch: one-buffer
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffer = torch.empty_like(batches[0], device="cuda")
    results = []
    side.wait_stream(here)
    for batch in batches:
        with cuda.stream(side):
            buffer.copy_(batch, non_blocking=True)
        here.wait_stream(side)
        results.append(step(buffer))
        side.wait_stream(here)
    return results


# %% prefetch: no-wait-for-the-step-before
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_stream(here)
    results = []
    for i, batch in enumerate(batches):
        with cuda.stream(side):
            buffers[i % 2].copy_(batch, non_blocking=True)
            done = side.record_event()
        done.wait()
        results.append(step(buffers[i % 2]))
    return results


# %% prefetch: launched-too-late
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    results = []
    for i, batch in enumerate(batches):
        side.wait_stream(here)
        with cuda.stream(side):
            buffers[i % 2].copy_(batch, non_blocking=True)
        here.wait_stream(side)
        results.append(step(buffers[i % 2]))
    return results


# %% prefetch: blocking-to
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    waiting = deque()
    results = []
    with cuda.stream(side):
        waiting.append(batches[0].to("cuda"))
    for i in range(len(batches)):
        here.wait_stream(side)
        batch = waiting.popleft()
        if i + 1 < len(batches):
            with cuda.stream(side):
                waiting.append(batches[i + 1].to("cuda"))
        batch.record_stream(here)
        results.append(step(batch))
    return results


# %% prefetch: drops-the-last
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    used = [here.record_event(), here.record_event()]

    def fetch(i):
        used[i % 2].wait(side)
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)
        return side.record_event()

    results = []
    ready = fetch(0)
    for i in range(1, len(batches)):
        ready.wait()
        ready = fetch(i)
        results.append(step(buffers[(i - 1) % 2]))
        used[(i - 1) % 2] = here.record_event()
    return results


# %% prefetch: buffers-made-on-the-side
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    with cuda.stream(side):
        buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
        buffers[0].copy_(batches[0], non_blocking=True)
    results = []
    for i in range(len(batches)):
        here.wait_stream(side)
        if i + 1 < len(batches):
            with cuda.stream(side):
                buffers[(i + 1) % 2].copy_(batches[i + 1], non_blocking=True)
        results.append(step(buffers[i % 2]))
    return results


# %% prefetch: all-at-once
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    side.wait_stream(here)
    with cuda.stream(side):
        copies = []
        for batch in batches:
            copy = batch.to("cuda", non_blocking=True)
            copies.append((copy, side.record_event()))
    results = []
    for copy, done in copies:
        done.wait()
        copy.record_stream(here)
        results.append(step(copy))
    return results


# %% prefetch: steps-on-the-side-too
def prefetch(cuda, batches, step, side):
    results = []
    with cuda.stream(side):
        for batch in batches:
            results.append(step(batch.to("cuda", non_blocking=True)))
    cuda.current_stream().wait_stream(side)
    return results


# %% prefetch: host-waits-for-the-copy
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    free = [here.record_event() for _ in buffers]
    results, ready = [], []
    for i in range(len(batches) + 1):
        if i < len(batches):
            free[i % 2].wait(side)
            with cuda.stream(side):
                buffers[i % 2].copy_(batches[i], non_blocking=True)
                ready.append(side.record_event())
        if i:
            ready[i - 1].synchronize()
            results.append(step(buffers[(i - 1) % 2]))
            free[(i - 1) % 2] = here.record_event()
    return results


# %% prefetch: waits-for-the-newest-copy
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_stream(here)
    used = [None, None]
    results = []

    def copy(i):
        if used[i % 2]:
            side.wait_event(used[i % 2])
        with cuda.stream(side):
            buffers[i % 2].copy_(batches[i], non_blocking=True)

    copy(0)
    for i in range(len(batches)):
        if i + 1 < len(batches):
            copy(i + 1)
        here.wait_stream(side)
        results.append(step(buffers[i % 2]))
        used[i % 2] = here.record_event()
    return results


# %% prefetch: clones-are-pageable
def prefetch(cuda, batches, step, side):
    batches = [b.clone() for b in batches]
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    free = [here.record_event(), here.record_event()]
    results = []
    for i, batch in enumerate(batches):
        k = i % 2
        side.wait_event(free[k])
        with cuda.stream(side):
            buffers[k].copy_(batch, non_blocking=True)
        here.wait_event(side.record_event())
        results.append(step(buffers[k]))
        free[k] = here.record_event()
    return results


# %% timed: mean-of-three-calls
# Times three calls, whatever `repeats` is.
def timed(cuda, work, repeats):
    first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    work()
    first.record()
    for _ in range(3):
        work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 3


# %% timed: first-event-before-all-calls
def timed(cuda, work, repeats):
    a, b = (cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    for _ in range(repeats + 1):
        work()
    b.record()
    b.synchronize()
    return a.elapsed_time(b) / (repeats + 1)


# %% ordered: marks-in-the-wrong-stream
# Outside of `with`, record_event belongs to the current stream.
def ordered(cuda, x, left, right):
    x.mul_(10)
    ready = cuda.current_stream().record_event()
    ready.wait(left)
    ready.wait(right)
    with cuda.stream(left):
        a = x * 2
    left_done = cuda.current_stream().record_event()
    with cuda.stream(right):
        b = x + 3
    right_done = cuda.current_stream().record_event()
    left_done.wait()
    right_done.wait()
    return a + b


# %% prefetch: first-copies-wait-for-nobody
# The buffers' memory may still be in use by an older tensor of the current stream.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    used = [None, None]
    results = []

    def copy(i):
        with cuda.stream(side):
            if used[i % 2] is not None:
                side.wait_event(used[i % 2])
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            return side.record_event()

    copied = copy(0)
    for i in range(len(batches)):
        now = copied
        if i + 1 < len(batches):
            copied = copy(i + 1)
        current.wait_event(now)
        results.append(step(buffers[i % 2]))
        used[i % 2] = current.record_event()
    return results


# %% prefetch: two-batches-at-least
# Copies a second batch without asking whether there is one.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_stream(current)
    copied, used = [], []

    def copy(i):
        with cuda.stream(side):
            if i >= 2:
                side.wait_event(used[i - 2])
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied.append(side.record_event())

    copy(0)
    copy(1)
    results = []
    for i in range(len(batches)):
        current.wait_event(copied[i])
        results.append(step(buffers[i % 2]))
        used.append(current.record_event())
        if i + 2 < len(batches):
            copy(i + 2)
    return results


# %% prefetch: mark-before-the-step
# The mark that says "no longer used" is recorded before the step is launched.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    free = [current.record_event() for _ in buffers]

    def copy(i):
        with cuda.stream(side):
            side.wait_event(free[i % 2])
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            return side.record_event()

    results, copied = [], copy(0)
    for i in range(len(batches)):
        current.wait_event(copied)
        free[i % 2] = current.record_event()
        results.append(step(buffers[i % 2]))
        if i + 1 < len(batches):
            copied = copy(i + 1)
    return results


# %% bucket_size: alpha-once
# Each message pays alpha.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        free = alpha
        for first in range(0, layers, size):
            count = min(size, layers - first)
            free = max(free, (first + count) * compute) + count * beta
        return free

    return min(range(1, layers + 1), key=end)


# %% timed: two-events-a-call-summed-with-gaps
# The first event before the warm-up.
def timed(cuda, work, repeats):
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / (repeats + 1)


# %% timed: in-seconds
def timed(cuda, work, repeats):
    work()
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end) / repeats / 1000


# %% timed: last-call-only
# The start is recorded anew in each turn.
def timed(cuda, work, repeats):
    work()
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    for _ in range(repeats):
        begin.record()
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


# %% timed: integer-milliseconds
def timed(cuda, work, repeats):
    work()
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) // repeats


# %% ordered: left-waits-for-right
# Both halves are right, and one waits for the other.
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    right.wait_stream(here)
    with cuda.stream(right):
        b = x + 3
    left.wait_stream(right)
    with cuda.stream(left):
        a = x * 2
    here.wait_stream(left)
    return a + b


# %% ordered: waits-for-one-twice
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    for stream in (left, right):
        stream.wait_stream(here)
    with cuda.stream(left):
        a = x * 2
    with cuda.stream(right):
        b = x + 3
    for stream in (left, left):
        here.wait_stream(stream)
    return a + b


# %% ordered: x-times-ten-elsewhere
# A new tensor; x stays as it is.
def ordered(cuda, x, left, right):
    y = x * 10
    ready = cuda.current_stream().record_event()
    parts = []
    for stream, work in ((left, lambda: y * 2), (right, lambda: y + 3)):
        ready.wait(stream)
        with cuda.stream(stream):
            parts.append(work())
    for stream in (left, right):
        stream.record_event().wait()
    return parts[0] + parts[1]


# %% ordered: sum-on-the-left
def ordered(cuda, x, left, right):
    x *= 10
    ready = cuda.current_stream().record_event()
    ready.wait(left)
    ready.wait(right)
    with cuda.stream(right):
        b = x + 3
    with cuda.stream(left):
        a = x * 2
        left.wait_stream(right)
        total = a + b
    cuda.current_stream().wait_stream(left)
    return total


# %% collective_on_side: event-of-the-wrong-stream
# Marks the current stream after the launch: nothing of the collective is in it.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    done = cuda.current_stream().record_event()
    return lambda: done.wait()


# %% collective_on_side: waits-once
# The second wait() does nothing.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        marks = [side.record_event()]

    def wait():
        if marks:
            marks.pop().wait()

    return wait


# %% collective_on_side: stream-by-default-argument
# The stream that is current at the launch waits.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        done = side.record_event()

    def wait(stream=cuda.current_stream()):
        stream.wait_event(done)

    return wait


# %% collective_on_side: current-waits-at-once
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
    cuda.current_stream().wait_stream(side)
    return lambda: None


# %% bucket_size: square-root-once-more
# The balance of alpha and beta, without compute.
def bucket_size(layers, compute, alpha, beta):
    return max(1, min(layers, round(math.sqrt(layers * alpha / beta)) if beta else layers))


# %% bucket_size: local-minimum
# Stops at the first size that is no better than the one before.
def bucket_size(layers, compute, alpha, beta):
    def done(size):
        end = 0.0
        for first in range(0, layers, size):
            count = min(size, layers - first)
            end = max(end, (first + count) * compute) + alpha + beta * count
        return end

    size = 1
    while size < layers and done(size + 1) < done(size):
        size += 1
    return size


# %% bucket_size: communication-all-at-the-end
def bucket_size(layers, compute, alpha, beta):
    return min(
        range(1, layers + 1),
        key=lambda s: layers * compute + -(-layers // s) * alpha + beta * layers,
    )


# %% bucket_size: powers-of-two
def bucket_size(layers, compute, alpha, beta):
    def done(size):
        end = 0.0
        for first in range(0, layers, size):
            count = min(size, layers - first)
            end = max(end, (first + count) * compute) + alpha + beta * count
        return end

    return min([1 << k for k in range(layers.bit_length())], key=done)


# %% prefetch: one-buffer-late-wait
# Two buffers, but the copy waits for nobody.
def prefetch(cuda, batches, step, side):
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_stream(cuda.current_stream())
    results = []
    for number, batch in enumerate(batches):
        with cuda.stream(side):
            buffers[number % 2].copy_(batch, non_blocking=True)
            ready = side.record_event()
        ready.wait()
        results.append(step(buffers[number % 2]))
    return results


# %% prefetch: copies-all-first
# A buffer for each batch.
def prefetch(cuda, batches, step, side):
    side.wait_stream(cuda.current_stream())
    placed = []
    for batch in batches:
        with cuda.stream(side):
            placed.append((batch.to("cuda", non_blocking=True), side.record_event()))
    results = []
    for one, ready in placed:
        ready.wait()
        results.append(step(one))
    return results


# %% prefetch: next-copy-after-the-step
# The next copy is given to side after the step, and waits for it.
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    results = []
    for number, batch in enumerate(batches):
        side.wait_stream(here)
        with cuda.stream(side):
            buffers[number % 2].copy_(batch, non_blocking=True)
        here.wait_stream(side)
        results.append(step(buffers[number % 2]))
    return results


# %% prefetch: blocking-copies
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(3)]
    side.wait_stream(here)
    free, results = [None] * 3, []
    for number, batch in enumerate(batches):
        place = number % 3
        with cuda.stream(side):
            if free[place]:
                free[place].wait(side)
            buffers[place].copy_(batch)
            ready = side.record_event()
        ready.wait(here)
        results.append(step(buffers[place]))
        free[place] = here.record_event()
    return results


# %% prefetch: last-batch-twice
# The last one is never copied: min() holds it at the one before.
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_stream(here)
    free, ready, results = [None, None], [None, None], []

    def copy(number):
        with cuda.stream(side):
            if free[number % 2]:
                free[number % 2].wait(side)
            buffers[number % 2].copy_(batches[number], non_blocking=True)
            ready[number % 2] = side.record_event()

    copy(0)
    for number in range(len(batches)):
        if number + 2 < len(batches):
            copy(number + 1)
        ready[number % 2].wait(here)
        results.append(step(buffers[number % 2]))
        free[number % 2] = here.record_event()
    return results
