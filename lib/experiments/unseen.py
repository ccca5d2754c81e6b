"""Programs that were written down before anybody had timed them: a fair test of simulated times.

The virtual GPU's constants come from other programs than labs 04's and 06's, but its model grew
while deviations on those were looked at. These stood here, with the model, before any of them ran
on a GPU. Whoever changes the model after they were recorded must write new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lockstep.base.machine import Machine
from lockstep.base.provenance import recorded
from torch import nn
from torch.nn import functional

from .experiment import Experiment, Result, gpu_name
from .virtual import (
    BF16,
    MB,
    TIMES,
    Make,
    Program,
    Step,
    captured,
    measured,
    products,
    quicker,
    random,
    table,
    training,
)


def feed_forward(cuda: Any, rows: int, width: int, layers: int) -> Step:
    """A transformer's feed-forward blocks: layer norm, wide product, GELU, product, addition."""
    norm = nn.LayerNorm(width, device="cuda", dtype=BF16)
    up, down = random(width, 4 * width) * 0.02, random(4 * width, width) * 0.02
    given = random(rows, width)

    def step() -> None:
        x = given
        with torch.no_grad():
            for _ in range(layers):
                x = x + functional.gelu(norm(x) @ up) @ down

    return step


def attention(cuda: Any, heads: int, length: int, width: int) -> Step:
    """Scores, softmax and values, in products of a batch."""
    q, k, v = (random(heads, length, width) for _ in range(3))
    return lambda: torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.1, -1), v)


def classifier(cuda: Any, rows: int, width: int, classes: int) -> Step:
    """A training step with an embedding, two layers and a cross entropy."""
    model = nn.Sequential(
        nn.Embedding(1000, width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes)
    ).to(device="cuda", dtype=BF16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    words = torch.zeros(rows, dtype=torch.int64, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(words), words).backward()
        optimizer.step()

    return step


def accumulated(cuda: Any, micro: int, rows: int, width: int) -> Step:
    """So many backward passes for one step of the optimizer."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to("cuda", BF16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x = random(rows, width)

    def step() -> None:
        for _ in range(micro):
            (model(x).sum() / micro).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def results_out(cuda: Any, streams: int) -> Step:
    """Four products, each result of 8 MiB copied to the host; on a stream of its own, if two."""
    a = random(2048, 2048)
    there = [torch.empty(2048, 2048, dtype=BF16).pin_memory() for _ in range(4)]
    side = cuda.Stream() if streams == 2 else cuda.current_stream()

    def step() -> None:
        kept = []
        for one in there:
            kept.append(torch.mm(a, a))
            side.wait_stream(cuda.current_stream())
            with cuda.stream(side):
                one.copy_(kept[-1], non_blocking=True)
        cuda.current_stream().wait_stream(side)

    return step


def root_mean_square(cuda: Any, rows: int, width: int) -> Step:
    """Six RMS norms by hand, each of five small operations."""
    given = random(rows, width)

    def step() -> None:
        x = given
        for _ in range(6):
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    return step


def averaged(cuda: Any, tensors: int, elements: int) -> Step:
    """Averages of the parameters, one tensor after the other."""
    mean, now = ([random(elements) for _ in range(tensors)] for _ in range(2))

    def step() -> None:
        for old, new in zip(mean, now, strict=True):
            old.mul_(0.99).add_(new, alpha=0.01)

    return step


def _both(name: str, make: Make) -> dict[str, Program]:
    return {
        f"{name}, eager": Program(make),
        f"{name}, captured": Program(partial(captured, make=make)),
    }


def _with(make: Callable[..., Step], **arguments: Any) -> Make:
    return partial(make, **arguments)


PROGRAMS: dict[str, Program] = {
    **_both(
        "12 feed-forward blocks of 768, 4 rows", _with(feed_forward, rows=4, width=768, layers=12)
    ),
    **_both(
        "4 feed-forward blocks of 2560, 2048 rows",
        _with(feed_forward, rows=2048, width=2560, layers=4),
    ),
    **_both("attention, 16 heads, 1024 long", _with(attention, heads=16, length=1024, width=64)),
    "attention, 4 heads, 8192 long": Program(_with(attention, heads=4, length=8192, width=128)),
    **_both(
        "a classifier's training step, 512 rows",
        _with(classifier, rows=512, width=640, classes=1000),
    ),
    "four micro-batches, one step": Program(_with(accumulated, micro=4, rows=256, width=1280)),
    **_both(
        "six layers of 1536, Adam",
        _with(training, batch=320, layers=6, width=1536, dtype=BF16, adam=True),
    ),
    "results copied out, one stream": Program(_with(results_out, streams=1), values=True),
    "results copied out, two streams": Program(_with(results_out, streams=2), values=True),
    **_both("six RMS norms, 16 rows", _with(root_mean_square, rows=16, width=1024)),
    "six RMS norms, 16384 rows": Program(_with(root_mean_square, rows=16384, width=4096)),
    **_both("48 tensors averaged", _with(averaged, tensors=48, elements=MB // 4)),
    "nine products on three streams": Program(
        _with(products, m=768, k=3072, n=1280, streams=3, count=9)
    ),
}


def run(machine: Machine, _: int) -> list[Result]:
    first = measured(PROGRAMS)
    again = measured(PROGRAMS)
    content = {"times": TIMES, "programs": first, "programs_again": again}
    what = f"step times of {len(PROGRAMS)} programs that were written before any was timed"
    return [Result(f"virtual/unseen-{gpu_name(machine)}.json", what, content)]


EXPERIMENT = Experiment(
    "virtual-unseen",
    "step times of programs that the virtual GPU's model was not made with",
    minutes=1,
    run=run,
    most=1,
    ranks=1,
    writes={"virtual/unseen-*.json": ("times", "programs", "programs_again")},
)


if __name__ == "__main__":
    print(table(quicker(recorded("virtual/unseen-h200.json").content), PROGRAMS))
