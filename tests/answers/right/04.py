"""Right answers to the exercises of lab 04, written without sight of its checks; see judge.py."""

import contextlib
import functools
import heapq
import itertools
from collections import deque
from fractions import Fraction
from itertools import cycle, pairwise

import numpy as np
import torch
import torch.distributed as dist
import math
from contextlib import ExitStack


# %% timed: stream-records-and-deque
# Records by stream.record_event(event), and runs the calls in a deque of length 0 instead of a for loop.
def timed(cuda, work, repeats):
    stream = cuda.current_stream()
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    work()
    stream.record_event(first)
    deque((work() for _ in range(repeats)), maxlen=0)
    stream.record_event(last)
    last.synchronize()
    return first.elapsed_time(last) / repeats


# %% timed: context-manager
# A small stopwatch class, used with `with`; it waits for its last event only when it is read.
class _Stopwatch:
    def __init__(self, cuda):
        self.marks = [cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)]

    def __enter__(self):
        self.marks[0].record()
        return self

    def __exit__(self, *_):
        self.marks[1].record()

    @property
    def milliseconds(self):
        self.marks[1].synchronize()
        return self.marks[0].elapsed_time(self.marks[1])


def timed(cuda, work, repeats):
    for _ in range(2):
        work()
    with _Stopwatch(cuda) as watch:
        for _ in range(repeats):
            work()
    return watch.milliseconds / repeats


# %% timed: divide-and-conquer
# Calls work by halves, recursively, so that deep recursion never happens; the device is waited for at the end.
def timed(cuda, work, repeats):
    def call(times):
        if times == 1:
            work()
        elif times > 1:
            call(times // 2)
            call(times - times // 2)

    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    call(3)
    begin.record()
    call(repeats)
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end) / repeats


# %% timed: polls-at-the-end
# Polls last.query() after everything has been launched, instead of synchronize; ten warm-up calls.
def timed(cuda, work, repeats):
    for _ in range(10):
        work()
    (first := cuda.Event(enable_timing=True)).record()
    left = repeats
    while left:
        work()
        left -= 1
    (last := cuda.Event(enable_timing=True)).record()
    while not last.query():
        pass
    return first.elapsed_time(last) * (1 / repeats)


# %% timed: two-halves-weighted
# Three marks: adds up what the first half and the second half of the calls took, and divides exactly.
def timed(cuda, work, repeats):
    marks = [cuda.Event(enable_timing=True, blocking=True) for _ in range(3)]
    half = repeats // 2
    work()
    marks[0].record()
    for count, mark in ((half, marks[1]), (repeats - half, marks[2])):
        for _ in itertools.repeat(None, count):
            work()
        mark.record()
    marks[-1].synchronize()
    total = sum(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
    return float(Fraction(total) / repeats)


# %% timed: one-loop-with-index
# Warm-up and counted calls share one loop from -2 to repeats; the events are recorded by index.
def timed(cuda, work, repeats):
    at = {0: cuda.Event(enable_timing=True), repeats: cuda.Event(enable_timing=True)}
    for i in range(-2, repeats + 1):
        if i in at:
            at[i].record()
        if i < repeats:
            work()
    at[repeats].synchronize()
    return at[0].elapsed_time(at[repeats]) / repeats


# %% ordered: events-and-out
# Plain events, and results in memory of the current stream (out=).
def ordered(cuda, x, left, right):
    x.mul_(10)
    a, b = torch.empty_like(x), torch.empty_like(x)
    ready = cuda.current_stream().record_event()
    left.wait_event(ready)
    right.wait_event(ready)
    with cuda.stream(left):
        torch.mul(x, 2, out=a)
    with cuda.stream(right):
        torch.add(x, 3, out=b)
    left.record_event().wait()
    right.record_event().wait()
    return a + b


# %% ordered: lambdas-and-record-stream
# A loop over (stream, lambda); results are made on the side streams, and record_stream protects their memory.
def ordered(cuda, x, left, right):
    here = cuda.current_stream()
    x *= 10
    parts = []
    for side, compute in ((left, lambda: x * 2), (right, lambda: x + 3)):
        side.wait_stream(here)
        with cuda.stream(side):
            parts.append(compute())
    for side, part in zip((left, right), parts):
        here.wait_stream(side)
        part.record_stream(here)
    return torch.add(*parts)


# %% ordered: context-manager-right-first
# A generator-based context manager that forks and keeps the done event; `right` is launched before `left`.
@contextlib.contextmanager
def _branch(cuda, side, ready, done):
    ready.wait(side)
    with cuda.stream(side):
        yield
        done.record()


def ordered(cuda, x, left, right):
    ends = [cuda.Event(), cuda.Event()]
    torch.mul(x, 10, out=x)
    doubled, raised = torch.empty_like(x), torch.empty_like(x)
    ready = cuda.Event()
    ready.record()
    with _branch(cuda, right, ready, ends[1]):
        torch.add(x, 3, out=raised)
    with _branch(cuda, left, ready, ends[0]):
        torch.mul(x, 2, out=doubled)
    for end in ends:
        end.wait()
    return doubled.add_(raised)


# %% ordered: set-stream-and-back
# Switches with set_stream and always back to the stream that was current (try/finally).
def ordered(cuda, x, left, right):
    current = cuda.current_stream()
    x.mul_(10)
    ready = current.record_event()
    a, b = x.new_empty(x.shape), x.new_empty(x.shape)
    try:
        for side, op, number, out in ((left, torch.mul, 2, a), (right, torch.add, 3, b)):
            cuda.set_stream(side)
            ready.wait()
            op(x, number, out=out)
    finally:
        cuda.set_stream(current)
    done_left, done_right = left.record_event(), right.record_event()
    done_left.wait(current)
    done_right.wait(current)
    return b + a


# %% ordered: copy-then-in-place
# Each side stream copies x into a buffer of the current stream's and works on it in place.
def ordered(cuda, x, left, right):
    x.copy_(x * 10)
    buffers = {left: torch.empty_like(x), right: torch.empty_like(x)}
    for side in buffers:
        side.wait_stream(cuda.current_stream())
    with cuda.stream(left):
        buffers[left].copy_(x).mul_(2)
    with cuda.stream(right):
        buffers[right].copy_(x).add_(3)
    for side in buffers:
        cuda.current_stream().wait_stream(side)
    return sum(buffers.values(), start=torch.zeros_like(x))


# %% ordered: stacked-buffer
# Both results are rows of one tensor; the sum is a reduction over them, in x's dtype.
def ordered(cuda, x, left, right):
    rows = torch.empty((2, *x.shape), dtype=x.dtype, device=x.device)
    x.mul_(10)
    ready = cuda.current_stream().record_event()
    jobs = [
        (left, functools.partial(torch.mul, x, 2, out=rows[0])),
        (right, functools.partial(torch.add, x, 3, out=rows[1])),
    ]
    done = []
    for side, job in jobs:
        with cuda.StreamContext(side):
            ready.wait()
            job()
            done.append(side.record_event())
    any(event.wait() for event in done)
    return rows.sum(0, dtype=x.dtype)


# %% collective_on_side: default-argument-keeps-x
# Shortest form: side waits, an event after the collective, and a lambda that also keeps x alive.
def collective_on_side(cuda, side, collective, x):
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        collective(x)
        done = side.record_event()
    return lambda keep=x: done.wait()


# %% collective_on_side: work-class
# A class like PyTorch's Work; the bound method `wait` is returned, and its object keeps x.
class _Work:
    def __init__(self, cuda, side, collective, x):
        self.cuda, self.tensors, self.done = cuda, [x], cuda.Event()
        ready = cuda.Event()
        ready.record()
        ready.wait(side)
        with cuda.stream(side):
            collective(x)
            self.done.record(side)

    def wait(self):
        self.cuda.current_stream().wait_event(self.done)


def collective_on_side(cuda, side, collective, x):
    return _Work(cuda, side, collective, x).wait


# %% collective_on_side: partial
# functools.partial of a helper; x goes with it, so that its memory is not given away.
def _join(cuda, event, tensor):
    event.wait(cuda.current_stream())


def collective_on_side(cuda, side, collective, x):
    ready = cuda.current_stream().record_event()
    with cuda.stream(side):
        ready.wait()
        collective(x)
    return functools.partial(_join, cuda, side.record_event(), x)


# %% collective_on_side: set-stream-and-record-stream
# set_stream with try/finally; record_stream says that x's memory is used on side, too.
def collective_on_side(cuda, side, collective, x):
    before = cuda.current_stream()
    side.wait_event(before.record_event())
    cuda.set_stream(side)
    try:
        collective(x)
        mark = side.record_event()
    finally:
        cuda.set_stream(before)
    x.record_stream(side)

    def wait():
        mark.wait()

    return wait


# %% collective_on_side: generator
# A generator launches at its first `next`, and at each further one makes the then current stream wait.
def collective_on_side(cuda, side, collective, x):
    def life():
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            collective(x)
        done = side.record_event()
        while True:
            yield x
            cuda.current_stream().wait_event(done)

    running = life()
    next(running)

    def wait():
        next(running)

    return wait


# %% collective_on_side: exit-stack
# The side stream is entered by an ExitStack; wait() lists its event in a dict with what has to stay alive.
def collective_on_side(cuda, side, collective, x):
    state = {"x": x, "ready": cuda.Event(), "done": cuda.Event()}
    state["ready"].record(cuda.current_stream())
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda.stream(side))
        state["ready"].wait()
        stack.callback(state["done"].record, side)
        collective(x)

    def wait():
        state["done"].wait()

    return wait


# %% bucket_size: plain-simulation
# Plays the rules, layer by layer, for each size.
def bucket_size(layers, compute, alpha, beta):
    best, earliest = 1, float("inf")
    for size in range(1, layers + 1):
        clock = free = waiting = 0
        for layer in range(layers):
            clock = (layer + 1) * compute
            waiting += 1
            if waiting == size or layer == layers - 1:
                free = max(clock, free) + alpha + waiting * beta
                waiting = 0
        if free < earliest:
            best, earliest = size, free
    return best


# %% bucket_size: largest-ready-plus-rest
# Closed form per size: the end is the largest of "bucket k is ready" plus all messages from k on.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        buckets = -(-layers // size)
        return max(
            min((k + 1) * size, layers) * compute
            + (buckets - k) * alpha
            + (layers - k * size) * beta
            for k in range(buckets)
        )

    return min(range(1, layers + 1), key=end)


# %% bucket_size: recursion-exact
# A recursion over the layers that are left, with exact fractions.
def bucket_size(layers, compute, alpha, beta):
    c, a, b = Fraction(compute), Fraction(alpha), Fraction(beta)

    def end(size, left, done=Fraction(0)):
        if not left:
            return done
        some = min(size, left)
        ready = (layers - left + some) * c
        return end(size, left - some, max(ready, done) + a + some * b)

    if layers > 500:  # a loop where recursion would be too deep

        def end(size, left, done=Fraction(0)):
            while left:
                some = min(size, left)
                left -= some
                done = max((layers - left) * c, done) + a + some * b
            return done

    return min(range(1, layers + 1), key=lambda size: end(size, layers))


# %% bucket_size: accumulate
# itertools.accumulate over (ready, layers) of the buckets of torch.arange(...).split.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        buckets = torch.arange(1, layers + 1).split(size)
        pairs = ((int(b[-1]) * compute, len(b)) for b in buckets)
        step = lambda done, pair: max(done, pair[0]) + alpha + pair[1] * beta
        *_, last = itertools.accumulate(pairs, step, initial=0)
        return last

    ends = {size: end(size) for size in range(1, layers + 1)}
    return min(ends, key=ends.get)


# %% bucket_size: numpy-all-sizes
# All sizes and buckets at once in numpy: row = size, column = bucket; what does not exist is -inf.
def bucket_size(layers, compute, alpha, beta):
    size = np.arange(1, layers + 1)[:, None]
    k = np.arange(layers)[None, :]
    buckets = -(-layers // size)
    ready = np.minimum((k + 1) * size, layers) * float(compute)
    rest = (buckets - k) * float(alpha) + (layers - k * size) * float(beta)
    ends = np.where(k < buckets, ready + rest, -np.inf).max(axis=1)
    return int(ends.argmin()) + 1


# %% bucket_size: event-queue-largest-of-ties
# A queue of events (heapq): buckets become ready, the link sends one at a time; of equal sizes the largest is taken.
def bucket_size(layers, compute, alpha, beta):
    def end(size):
        queue = []
        for begin in range(0, layers, size):
            stop = min(begin + size, layers)
            heapq.heappush(queue, (stop, stop - begin))
        free = 0
        while queue:
            stop, some = heapq.heappop(queue)
            free = max(free, stop * compute) + (alpha + some * beta)
        return free

    return min(range(layers, 0, -1), key=end)


# %% prefetch: two-buffers
# Two buffers in turn; a list of events for "copied" and one for "free".
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:2]]
    side.wait_stream(current)
    copied, free, results = [], [], []

    def copy(i):
        with cuda.stream(side):
            if i >= 2:
                free[i - 2].wait()
            buffers[i % 2].copy_(batches[i], non_blocking=True)
            copied.append(side.record_event())

    for i in range(len(batches)):
        if i == 0:
            copy(0)
        if i + 1 < len(batches):
            copy(i + 1)
        copied[i].wait()
        results.append(step(buffers[i % 2]))
        free.append(current.record_event())
    return results


# %% prefetch: three-buffers-in-a-deque
# Three places that go round in a deque, each with the event after which it may be written; two copies ahead.
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    empty, full, results = deque(), deque(), []
    for batch in batches[:3]:
        place = torch.empty(batch.shape, dtype=batch.dtype, device="cuda")
        empty.append((place, current.record_event()))
    rest = iter(batches)

    def load():
        for batch in itertools.islice(rest, 1):
            place, free = empty.popleft()
            side.wait_event(free)
            with cuda.stream(side):
                place.copy_(batch, non_blocking=True)
            full.append((place, side.record_event()))

    for _ in range(2):
        load()
    while full:
        load()
        place, ready = full.popleft()
        current.wait_event(ready)
        results.append(step(place))
        empty.append((place, current.record_event()))
    return results


# %% prefetch: generator-loader
# A generator yields each batch on the device, one copy ahead, and frees its place when it is asked for the next one.
def prefetch(cuda, batches, step, side):
    def loader():
        here = cuda.current_stream()
        places = [torch.empty_like(batch, device="cuda", pin_memory=False) for batch in batches[:2]]
        free = [here.record_event() for _ in places]

        def fetch(batch, i):
            free[i % 2].wait(side)
            with cuda.stream(side):
                places[i % 2].copy_(batch, non_blocking=True)
                return side.record_event()

        ready = None
        for i, batch in enumerate(batches):
            mine = ready or fetch(batch, i)
            ready = fetch(batches[i + 1], i + 1) if i + 1 < len(batches) else None
            mine.wait(here)
            yield places[i % 2]
            free[i % 2] = here.record_event()

    return [step(batch) for batch in loader()]


# %% prefetch: buffers-of-side
# The buffers belong to side's memory; record_stream protects them from being given away while the steps still read.
def prefetch(cuda, batches, step, side):
    current, results = cuda.current_stream(), []
    side.wait_stream(current)
    with cuda.stream(side):
        buffers = [torch.empty(b.shape, dtype=b.dtype, device="cuda") for b in batches[:3]]
    count = len(buffers)
    for buffer in buffers:
        buffer.record_stream(current)
    read = [cuda.Event() for _ in batches]
    there = [cuda.Event() for _ in batches]

    def launch(i):
        if i >= len(batches):
            return
        if i >= count:
            side.wait_event(read[i - count])
        with cuda.stream(side):
            buffers[i % count].copy_(batches[i], non_blocking=True)
            there[i].record()

    launch(0)
    for i in range(len(batches)):
        launch(i + 1)
        there[i].wait()
        results.append(step(buffers[i % count]))
        read[i].record()
    return results


# %% prefetch: slots-as-objects
# A class of a slot (buffer, filled, emptied); zip pairs each batch with the next one.
class _Slot:
    def __init__(self, cuda, like):
        self.cuda = cuda
        self.data = torch.empty(like.shape, dtype=like.dtype, device="cuda")
        self.filled, self.emptied = cuda.Event(), cuda.Event()
        self.emptied.record()

    def fill(self, side, batch):
        side.wait_event(self.emptied)
        with self.cuda.stream(side):
            self.data.copy_(batch, non_blocking=True)
            self.filled.record()

    def use(self, step):
        self.filled.wait()
        result = step(self.data)
        self.emptied.record()
        return result


def prefetch(cuda, batches, step, side):
    if not batches:
        return []
    slots = itertools.cycle([_Slot(cuda, batches[0]), _Slot(cuda, batches[0])])
    slot, results = next(slots), []
    slot.fill(side, batches[0])
    for following in [*batches[1:], None]:
        coming = next(slots)
        if following is not None:
            coming.fill(side, following)
        results.append(slot.use(step))
        slot = coming
    return results


# %% prefetch: one-block-recursive
# One block of two rows as the places; the batches are walked by halves, recursively, and the events lie in a list.
def prefetch(cuda, batches, step, side):
    if not batches:
        return []
    current = cuda.current_stream()
    block = torch.empty((2, *batches[0].shape), dtype=batches[0].dtype, device="cuda")
    free = [current.record_event()] * 2
    there = [None] * 2

    def fetch(i):
        if i < len(batches):
            free[i % 2].wait(side)
            with cuda.stream(side):
                block[i % 2].copy_(batches[i], non_blocking=True)
                there[i % 2] = side.record_event()

    def run(first, stop):
        if stop - first > 1:
            middle = (first + stop) // 2
            return run(first, middle) + run(middle, stop)
        fetch(first + 1)
        there[first % 2].wait(current)
        result = step(block[first % 2])
        free[first % 2] = current.record_event()
        return [result]

    fetch(0)
    return run(0, len(batches))


# %% timed: marks-between-all-calls
def timed(cuda, work, repeats):
    for _ in range(2):
        work()
    marks = [cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    cuda.current_stream().synchronize()
    return sum(a.elapsed_time(b) for a, b in pairwise(marks)) / repeats


# %% timed: warm-up-of-as-many-calls
def timed(cuda, work, repeats):
    def batch():
        begin = cuda.current_stream().record_event(cuda.Event(enable_timing=True))
        for _ in range(repeats):
            work()
        end = cuda.current_stream().record_event(cuda.Event(enable_timing=True))
        return begin, end

    batch()
    begin, end = batch()
    while not end.query():
        pass
    return begin.elapsed_time(end) / repeats


# %% ordered: into-memory-of-the-current-stream
def ordered(cuda, x, left, right):
    here = cuda.current_stream()
    doubled, more = torch.empty_like(x), torch.empty_like(x)
    torch.mul(x, 10, out=x)
    go = here.record_event()
    ends = []
    for stream, op, number, out in (
        (left, torch.mul, 2, doubled),
        (right, torch.add, 3, more),
    ):
        with cuda.stream(stream):
            go.wait()
            op(x, number, out=out)
            ends.append(stream.record_event())
    for end in ends:
        here.wait_event(end)
    return doubled.add_(more)


# %% ordered: set-stream-by-hand
def ordered(cuda, x, left, right):
    here = cuda.current_stream()
    x *= 10
    ready = cuda.Event()
    ready.record(here)

    def on(stream, f):
        cuda.set_stream(stream)
        ready.wait(stream)
        y = f(x)
        y.record_stream(here)
        cuda.set_stream(here)
        return y

    b = on(right, lambda t: t + 3)
    a = on(left, lambda t: 2 * t)
    here.wait_stream(right)
    here.wait_stream(left)
    return torch.add(a, b)


# %% collective_on_side: bound-method
def collective_on_side(cuda, side, collective, x):
    done = cuda.Event()
    cuda.current_stream().record_event().wait(side)
    with cuda.stream(side):
        collective(x)
        done.record(side)
    return done.wait


# %% collective_on_side: a-callable-object
class Waiter:
    def __init__(self, cuda, event, kept):
        self.cuda, self.event, self.kept = cuda, event, kept

    def __call__(self):
        self.cuda.current_stream().wait_event(self.event)


def collective_on_side(cuda, side, collective, x):
    here = cuda.current_stream()
    cuda.set_stream(side)
    try:
        side.wait_stream(here)
        collective(x)
        return Waiter(cuda, side.record_event(), x)
    finally:
        cuda.set_stream(here)


# %% bucket_size: largest-of-the-best
def bucket_size(layers, compute, alpha, beta):
    def done(m):
        end, ready, left = 0.0, 0.0, layers
        while left:
            size = min(m, left)
            ready += compute * size
            end = max(end, ready) + alpha + beta * size
            left -= size
        return end

    return min(range(layers, 0, -1), key=done)


# %% bucket_size: recursive-on-whole-buckets
def bucket_size(layers, compute, alpha, beta):
    def end(n, m):
        if n == 0:
            return 0
        last = n % m or m
        return max(end(n - last, m), n * compute) + alpha + last * beta

    times = {m: end(layers, m) for m in range(1, layers + 1)}
    return sorted(times, key=times.get)[0]


# %% prefetch: three-buffers-in-a-ring
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    ring = cycle([torch.empty_like(batches[0], device="cuda") for _ in range(3)])
    free = deque([here.record_event()] * 3)
    fetched = deque()

    def fetch(batch):
        buffer = next(ring)
        with cuda.stream(side):
            free.popleft().wait()
            buffer.copy_(batch, non_blocking=True)
            fetched.append((buffer, side.record_event()))

    results = []
    todo = iter(batches)
    fetch(next(todo))
    for batch in todo:
        fetch(batch)
        buffer, ready = fetched.popleft()
        ready.wait()
        results.append(step(buffer))
        free.append(here.record_event())
    buffer, ready = fetched.popleft()
    ready.wait()
    return [*results, step(buffer)]


# %% prefetch: one-tensor-of-two-rows
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    shape = (2, *batches[0].shape)
    both = torch.empty(shape, dtype=batches[0].dtype, device="cuda")
    side.wait_stream(here)

    def fetch(i):
        with cuda.stream(side):
            both[i % 2].copy_(batches[i], non_blocking=True)
            return side.record_event()

    results = []
    ready = fetch(0)
    for i in range(len(batches)):
        ready.wait()
        before = here.record_event()
        results.append(step(both[i % 2]))
        if i + 1 < len(batches):
            before.wait(side)
            ready = fetch(i + 1)
    return results


# %% ordered: clone-and-add
# x * 2 as a copy to which x is added.
def ordered(cuda, x, left, right):
    here = cuda.current_stream()
    x.mul_(10)
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(left):
        a = x.clone()
        a += x
    with cuda.stream(right):
        b = x.clone()
        b += 3
    here.wait_stream(left)
    here.wait_stream(right)
    return a + b


# %% ordered: clone-and-add-itself
def ordered(cuda, x, left, right):
    x.mul_(10)
    here = cuda.current_stream()
    left.wait_stream(here)
    right.wait_stream(here)
    with cuda.stream(left):
        a = x.clone()
        a += x
    with cuda.stream(right):
        b = x + 3
    here.wait_stream(left)
    here.wait_stream(right)
    return a + b


# %% timed: events-between-all-calls
def timed(cuda, work, repeats):
    work()
    events = [cuda.Event(enable_timing=True)]
    events[0].record()
    for _ in range(repeats):
        work()
        events.append(cuda.Event(enable_timing=True))
        events[-1].record()
    events[-1].synchronize()
    return sum(a.elapsed_time(b) for a, b in pairwise(events)) / repeats


# %% timed: warm-up-waited-for
def timed(cuda, work, repeats):
    marks = {name: cuda.Event(enable_timing=True) for name in ("begin", "end")}
    work()
    cuda.synchronize()
    marks["begin"].record(cuda.current_stream())
    [work() for _ in range(repeats)]
    marks["end"].record(cuda.current_stream())
    cuda.synchronize()
    return marks["begin"].elapsed_time(marks["end"]) * (1 / repeats)


# %% ordered: events-only
def ordered(cuda, x, left, right):
    x *= 10
    ready = cuda.Event()
    ready.record()
    made = []
    for stream, half in (left, lambda: 2 * x), (right, lambda: 3 + x):
        stream.wait_event(ready)
        with cuda.stream(stream):
            result = half()
            done = cuda.Event()
            done.record()
        made.append((result, done))
    for _, done in made:
        cuda.current_stream().wait_event(done)
    return sum((result for result, _ in made[1:]), made[0][0])


# %% ordered: half-in-place-of-a-sum
def ordered(cuda, x, left, right):
    main = cuda.current_stream()
    x.mul_(10)
    start = main.record_event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda.stream(left))
        start.wait()
        doubled = x.mul(2)
        left_done = left.record_event()
    with cuda.stream(right):
        start.wait(right)
        more = x.add(3)
        right_done = right.record_event()
    left_done.wait(main)
    right_done.wait(main)
    doubled.record_stream(main)
    more.record_stream(main)
    return torch.add(doubled, more)


# %% bucket_size: folded
def bucket_size(layers, compute, alpha, beta):
    def done(size):
        ends = [*range(size, layers, size), layers]
        buckets = zip(ends, [ends[0], *(b - a for a, b in pairwise(ends))], strict=True)
        return functools.reduce(
            lambda free, one: max(free, one[0] * compute) + alpha + one[1] * beta, buckets, 0
        )

    return 1 + int(np.argmin([done(size) for size in range(1, layers + 1)]))


# %% prefetch: streams-that-wait-for-each-other
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    ahead, results = deque(), []
    buffers = cycle([torch.empty_like(batches[0], device="cuda") for _ in range(2)])

    def copy(batch):
        side.wait_stream(current)
        with cuda.stream(side):
            ahead.append(next(buffers).copy_(batch, non_blocking=True))

    copy(batches[0])
    for following in [*batches[1:], None]:
        current.wait_stream(side)
        if following is not None:
            copy(following)
        results.append(step(ahead.popleft()))
    return results


# %% prefetch: three-places-and-events
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()
    places = [torch.empty_like(batches[0], device="cuda") for _ in batches[:3]]
    idle = [current.record_event() for _ in places]
    copied = {}

    def start(number):
        if number < len(batches):
            place = number % len(places)
            idle[place].wait(side)
            with cuda.stream(side):
                places[place].copy_(batches[number], non_blocking=True)
                copied[number] = side.record_event()

    results = []
    start(0)
    for number in range(len(batches)):
        start(number + 1)
        copied.pop(number).wait()
        results.append(step(places[number % len(places)]))
        idle[number % len(places)] = current.record_event()
    return results


# %% prefetch: generator-of-batches-on-the-device
def prefetch(cuda, batches, step, side):
    current = cuda.current_stream()

    def on_device():
        pair = [(torch.empty_like(batches[0], device="cuda"), cuda.Event()) for _ in range(2)]
        for _, free in pair:
            free.record(current)
        coming = None
        for batch, (buffer, free) in zip(batches, cycle(pair)):
            side.wait_event(free)
            with cuda.stream(side):
                buffer.copy_(batch, non_blocking=True)
                there = cuda.Event()
                there.record(side)
            if coming:
                yield from used(*coming)
            coming = buffer, free, there
        yield from used(*coming)

    def used(buffer, free, there):
        current.wait_event(there)
        yield buffer
        free.record(current)

    return [step(buffer) for buffer in on_device()]


# %% timed: a-list-of-two-events
def timed(cuda, work, repeats):
    events = []
    for count in (1, repeats):
        for _ in range(count):
            work()
        events.append(cuda.Event(enable_timing=True))
        events[-1].record()
    events[-1].synchronize()
    return events[0].elapsed_time(events[1]) / repeats


# %% ordered: one-with-inside-the-other
def ordered(cuda, x, left, right):
    here = cuda.current_stream()
    x.copy_(x * 10)
    with cuda.stream(left):
        left.wait_stream(here)
        with cuda.stream(right):
            right.wait_stream(here)
            more = x + 3
        twice = x + x
    here.wait_stream(right)
    here.wait_stream(left)
    twice += more
    return twice


# %% bucket_size: exact-fractions
def bucket_size(layers, compute, alpha, beta):
    compute, alpha, beta = map(Fraction, (compute, alpha, beta))
    ends = {}
    for size in range(1, layers + 1):
        sent = Fraction(0)
        for stop in itertools.chain(range(size, layers, size), [layers]):
            begun = (stop - 1) // size * size
            sent = max(sent, stop * compute) + alpha + (stop - begun) * beta
        ends[size] = sent
    return min(ends, key=ends.get)


# %% prefetch: two-batches-ahead
def prefetch(cuda, batches, step, side):
    current, count = cuda.current_stream(), len(batches)
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(min(3, count))]
    start = current.record_event()
    used, copied, results = {}, {}, []

    def copy(i):
        if i >= count:
            return
        side.wait_event(used[i - 3] if i >= 3 else start)
        with cuda.stream(side):
            buffers[i % 3].copy_(batches[i], non_blocking=True)
            copied[i] = cuda.Event()
            copied[i].record()

    copy(0)
    copy(1)
    for i in range(count):
        current.wait_event(copied[i])
        copy(i + 2)
        results += [step(buffers[i % 3])]
        used[i] = current.record_event()
    return results


# %% timed: events-between-all-calls-once-more
def timed(cuda, work, repeats):
    work()
    work()
    marks = []
    for number in range(repeats + 1):
        mark = cuda.Event(enable_timing=True)
        mark.record(cuda.current_stream())
        marks.append(mark)
        if number < repeats:
            work()
    marks[-1].synchronize()
    return math.fsum(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) / repeats


# %% ordered: exit-stack
def ordered(cuda, x, left, right):
    x.mul_(10)
    ready, halves = cuda.current_stream().record_event(), []
    for stream, factor, more in ((left, 2, 0), (right, 1, 3)):
        with ExitStack() as stack:
            stack.enter_context(cuda.stream(stream))
            ready.wait()
            halves.append(x * factor if not more else x + more)
            done = stream.record_event()
        done.wait()
    return halves[0] + halves[1]


# %% collective_on_side: class-with-call
class _Pending:
    def __init__(self, cuda, side, collective, x):
        self.cuda = cuda
        cuda.current_stream().record_event().wait(side)
        with cuda.stream(side):
            collective(x)
            self.done = cuda.current_stream().record_event()

    def __call__(self):
        self.cuda.current_stream().wait_event(self.done)


collective_on_side = _Pending


# %% bucket_size: sorted-pairs
def bucket_size(layers, compute, alpha, beta):
    ends = []
    for size in range(1, layers + 1):
        free, left, at = 0, layers, 0
        while left:
            count = min(size, left)
            left, at = left - count, at + count
            free = max(free, at * compute) + alpha + count * beta
        ends.append((free, size))
    return sorted(ends)[0][1]


# %% prefetch: generator-of-copies
def prefetch(cuda, batches, step, side):
    here = cuda.current_stream()
    buffers = [torch.empty_like(batches[0], device="cuda") for _ in range(2)]
    side.wait_event(here.record_event())
    used = {}

    def copies():
        for number, batch in enumerate(batches):
            place = buffers[number % 2]
            with cuda.stream(side):
                if number - 2 in used:
                    used[number - 2].wait()
                place.copy_(batch, non_blocking=True)
                ready = side.record_event()
            yield place, ready

    results, ahead = [], copies()
    coming = next(ahead)
    for number in range(len(batches)):
        (place, ready), coming = coming, next(ahead, None)
        ready.wait()
        results.append(step(place))
        used[number] = here.record_event()
    return results
