"""Programs of streams and events, right ones and wrong ones, in plain torch.cuda style.

Each takes the module torch.cuda, or what has its names, and returns (what it computed, what is
right). data/virtual/races-h200.json has what PyTorch's CUDA sanitizer said of them on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lockstep import virtual

N = 4096
Numbers = tuple[float, float]
Program = Callable[[Any], Numbers]


@dataclass(frozen=True)
class Case:
    """kind: of the race that the virtual GPU must name, "" if there is none.

    lines: parts of the two lines that race. sanitizer: whether PyTorch's sanitizer can see it.
    """

    program: Program
    kind: str = ""
    lines: tuple[str, str] = ("", "")
    sanitizer: bool = True

    @property
    def name(self) -> str:
        return self.program.__name__


CASES: dict[str, Case] = {}


def right(program: Program) -> Program:
    CASES[program.__name__] = Case(program)
    return program


def wrong(kind: str, first: str, second: str, sanitizer: bool = True) -> Callable[..., Program]:
    def add(program: Program) -> Program:
        CASES[program.__name__] = Case(program, kind, (first, second), sanitizer)
        return program

    return add


def made(value: float) -> torch.Tensor:
    return torch.full((N,), value, device="cuda")


# ── Right ────────────────────────────────────────────────────────────────────────────────────


@right
def one_stream(cuda: Any) -> Numbers:
    x = made(2.0)
    x.mul_(3)
    return x.mean().item(), 6.0


@right
def wait_before_and_after(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x * 3
    cuda.current_stream().wait_stream(side)
    return y.mean().item(), 6.0


@right
def event_from_stream_to_stream(cuda: Any) -> Numbers:
    first, second, done = cuda.Stream(), cuda.Stream(), cuda.Event()
    with cuda.stream(first):
        x = made(2.0)
        x.mul_(3)
        done.record()
    with cuda.stream(second):
        done.wait()
        y = x + 1
        mean = y.mean()
    second.synchronize()
    return mean.item(), 7.0


@right
def host_waits_for_all(cuda: Any) -> Numbers:
    side = cuda.Stream()
    with cuda.stream(side):
        x = made(5.0)
    cuda.synchronize()
    return x.mean().item(), 5.0


@right
def host_waits_for_event(cuda: Any) -> Numbers:
    side, done = cuda.Stream(), cuda.Event()
    with cuda.stream(side):
        x = made(5.0)
        done.record(side)
    done.synchronize()
    return (x + 1).mean().item(), 6.0


@right
def fork_and_join(cuda: Any) -> Numbers:
    one, two = cuda.Stream(), cuda.Stream()
    x = made(1.0)
    for stream in (one, two):
        stream.wait_stream(cuda.current_stream())
    with cuda.stream(one):
        a = x + 1
    with cuda.stream(two):
        b = x + 2
    for stream in (one, two):
        cuda.current_stream().wait_stream(stream)
    return (a + b).mean().item(), 5.0


@right
def two_buffers(cuda: Any) -> Numbers:
    """A producer and a consumer, which gives each buffer back by an event."""
    producer = cuda.Stream()
    buffers = [made(0.0), made(0.0)]
    full, empty = [cuda.Event(), cuda.Event()], [cuda.Event(), cuda.Event()]
    total = made(0.0)
    producer.wait_stream(cuda.current_stream())
    for step in range(6):
        place = step % 2
        with cuda.stream(producer):
            empty[place].wait()
            buffers[place].fill_(step)
            full[place].record()
        full[place].wait()
        total.add_(buffers[place])
        empty[place].record()
    return total.mean().item(), 15.0


@right
def in_place_on_the_side(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(1.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        x.add_(1)
    cuda.current_stream().wait_stream(side)
    x.mul_(4)
    return x.mean().item(), 8.0


@right
def backward_on_the_side(cuda: Any) -> Numbers:
    side = cuda.Stream()
    w = made(3.0).requires_grad_()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        (w * w).sum().backward()
    cuda.current_stream().wait_stream(side)
    assert w.grad is not None
    return w.grad.mean().item(), 6.0


@right
def copied_back_and_waited_for(cuda: Any) -> Numbers:
    side, done = cuda.Stream(), cuda.Event()
    x = made(2.0)
    host = torch.zeros(N).pin_memory()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        host.copy_(x, non_blocking=True)
        done.record()
    done.synchronize()
    return host.mean().item(), 2.0


@right
def prefetched(cuda: Any) -> Numbers:
    side = cuda.Stream()
    host = torch.full((N,), 3.0).pin_memory()
    with cuda.stream(side):
        x = host.to("cuda", non_blocking=True)
    cuda.current_stream().wait_stream(side)
    x.record_stream(cuda.current_stream())
    return (x * 2).mean().item(), 6.0


@right
def two_halves(cuda: Any) -> Numbers:
    """Two streams write to one tensor, but not to the same of it."""
    one, two = cuda.Stream(), cuda.Stream()
    x = made(1.0)
    for stream in (one, two):
        stream.wait_stream(cuda.current_stream())
    with cuda.stream(one):
        x[: N // 2].add_(1)
    with cuda.stream(two):
        x[N // 2 :].add_(3)
    for stream in (one, two):
        cuda.current_stream().wait_stream(stream)
    return x.mean().item(), 3.0


@right
def both_only_read(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        a = x.mean()
    b = x.mean()
    side.synchronize()
    return a.item() + b.item(), 4.0


# ── Wrong ────────────────────────────────────────────────────────────────────────────────────


@wrong("read after write", "y = x * 3", "y.mean()")
def no_wait_after(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x * 3
    return y.mean().item(), 6.0


@wrong("read after write", "x.mul_(3)", "y = x + 1")
def no_wait_before(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    x.mul_(3)
    with cuda.stream(side):
        y = x + 1
    cuda.current_stream().wait_stream(side)
    return y.mean().item(), 7.0


@wrong("read after write", "x.mul_(3)", "x.mean()")
def event_recorded_too_early(cuda: Any) -> Numbers:
    side, done = cuda.Stream(), cuda.Event()
    with cuda.stream(side):
        x = made(2.0)
        done.record()
        x.mul_(3)
    done.wait()
    return x.mean().item(), 6.0


@wrong("read after write", "torch.full((N,)", "y = x + 1")
def the_wrong_stream_waits(cuda: Any) -> Numbers:
    first, second, done = cuda.Stream(), cuda.Stream(), cuda.Event()
    with cuda.stream(first):
        x = made(2.0)
        done.record()
    done.wait()  # the default stream, and not the second, waits
    with cuda.stream(second):
        y = x + 1
    cuda.current_stream().wait_stream(second)
    return y.mean().item(), 3.0


@wrong("read after write", "x.mul_(3)", "x.mean()")
def event_on_the_wrong_stream(cuda: Any) -> Numbers:
    side, done = cuda.Stream(), cuda.Event()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        x.mul_(3)
    done.record()  # on the default stream
    done.wait()
    return x.mean().item(), 6.0


@wrong("write after read", "a = x * 1", "x.zero_()")
def overwritten_while_read(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        a = x * 1
    x.zero_()
    side.synchronize()
    return a.mean().item(), 2.0


@wrong("write after write", "x.fill_(5)", "x.fill_(7)")
def both_write(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        x.fill_(5)
    x.fill_(7)
    cuda.synchronize()
    return x.mean().item(), 7.0


@wrong("read after write", "torch.full((N,)", "b.mean()")
def host_waits_for_the_wrong_stream(cuda: Any) -> Numbers:
    one, two = cuda.Stream(), cuda.Stream()
    with cuda.stream(one):
        a = made(1.0)
    with cuda.stream(two):
        b = made(3.0)
    one.synchronize()
    return b.mean().item() + a.mean().item(), 4.0


@wrong("read after write", "torch.full((N,)", "y = x + 1")
def waited_too_late(cuda: Any) -> Numbers:
    side = cuda.Stream()
    with cuda.stream(side):
        x = made(5.0)
    y = x + 1
    cuda.current_stream().wait_stream(side)
    return y.mean().item(), 6.0


@wrong("write after read", "total.add_(buffer)", "buffer.fill_(step)")
def buffer_not_given_back(cuda: Any) -> Numbers:
    producer, full = cuda.Stream(), cuda.Event()
    buffer, total = made(0.0), made(0.0)
    producer.wait_stream(cuda.current_stream())
    for step in range(4):
        with cuda.stream(producer):
            buffer.fill_(step)
            full.record()
        full.wait()
        total.add_(buffer)
    return total.mean().item(), 6.0


@wrong("write after write", "total.add_(1)", "total.add_(2)")
def two_streams_add(cuda: Any) -> Numbers:
    one, two = cuda.Stream(), cuda.Stream()
    total = made(0.0)
    for stream in (one, two):
        stream.wait_stream(cuda.current_stream())
    with cuda.stream(one):
        total.add_(1)
    with cuda.stream(two):
        total.add_(2)
    cuda.synchronize()
    return total.mean().item(), 3.0


@wrong("read after write", "b = x + 2", "a + b")
def one_of_two_joined(cuda: Any) -> Numbers:
    one, two = cuda.Stream(), cuda.Stream()
    x = made(1.0)
    for stream in (one, two):
        stream.wait_stream(cuda.current_stream())
    with cuda.stream(one):
        a = x + 1
    with cuda.stream(two):
        b = x + 2
    cuda.current_stream().wait_stream(one)
    return (a + b).mean().item(), 5.0


@wrong("write after read", "a = x * 1", "x[: N // 2].zero_()")
def part_overwritten_while_read(cuda: Any) -> Numbers:
    side = cuda.Stream()
    x = made(2.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        a = x * 1
    x[: N // 2].zero_()
    side.synchronize()
    return a.mean().item(), 2.0


@wrong("read after write", "w.grad.mul_(0.5)", "w - w.grad")
def gradient_scaled_elsewhere(cuda: Any) -> Numbers:
    side = cuda.Stream()
    w = made(3.0).requires_grad_()
    (w * w).sum().backward()
    assert w.grad is not None
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        w.grad.mul_(0.5)
    with torch.no_grad():
        new = w - w.grad
    return new.mean().item(), 0.0


# What the sanitizer does not look at: it forgets tensors that are freed, and the host's memory.


@wrong("memory given back", "total.add_(x)", "torch.full((N,)", sanitizer=False)
def no_record_stream(cuda: Any) -> Numbers:
    side = cuda.Stream()
    total = made(0.0)
    x = made(1.0)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        cuda._sleep(10_000_000)
        total.add_(x)
    del x  # its memory goes to the next tensor of the default stream
    y = made(9.0)
    cuda.synchronize()
    return total.mean().item() + y.mean().item(), 10.0


@wrong("host", "host.copy_(x, non_blocking=True)", "host.mean()", sanitizer=False)
def host_reads_too_early(cuda: Any) -> Numbers:
    x = made(2.0)
    host = torch.zeros(N).pin_memory()
    cuda.synchronize()
    cuda._sleep(10_000_000)
    host.copy_(x, non_blocking=True)
    return host.mean().item(), 2.0


@wrong("host", 'x = host.to("cuda", non_blocking=True)', "host.zero_()", sanitizer=False)
def host_writes_too_early(cuda: Any) -> Numbers:
    host = torch.full((N,), 3.0).pin_memory()
    cuda._sleep(10_000_000)
    x = host.to("cuda", non_blocking=True)
    host.zero_()
    return x.mean().item(), 3.0


# ── Verdicts ─────────────────────────────────────────────────────────────────────────────────


def verdict(case: Case) -> str:
    """Return the kinds of races that the virtual GPU reports of a program, or "none"."""
    with virtual.device() as cuda:
        case.program(cuda)
        kinds = sorted({race.kind for race in virtual.races()})
    return ", ".join(kinds) or "none"
