"""Programs of lab 06 whose time on a GPU is compared with the virtual one's.

`PROGRAMS`: name → function(cuda) → step, of which the time counts once all is warm. On a machine
with a GPU `python tests/programs_06.py` prints both; data/virtual/graphs-h200.json has an H200's.
No constant of the virtual GPU was set by them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from lockstep import virtual
from lockstep.virtual import perf_counter
from torch import nn

Step = Callable[[], Any]


def layers(count: int, width: int) -> list[torch.Tensor]:
    """Return `count` weights of width × width, bfloat16."""
    scale = 0.5 / width**0.5
    return [
        torch.randn(width, width, device="cuda").mul_(scale).to(torch.bfloat16)
        for _ in range(count)
    ]


def forward(weights: Sequence[torch.Tensor], x_BD: torch.Tensor) -> torch.Tensor:
    for w_DD in weights:
        x_BD = x_BD + torch.relu(x_BD @ w_DD)
    return x_BD


def training(cuda: Any, depth: int, width: int, batch: int) -> Step:
    """Return a step of SGD with momentum on a small MLP, bfloat16."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts).to("cuda").to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x_BD, y_BD = (torch.zeros(batch, width, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x_BD), y_BD).backward()
        optimizer.step()

    return step


def captured(cuda: Any, step: Step) -> tuple[Any, Any]:
    """Return (graph, what the step returned), after two calls on a side stream."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            step()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        made = step()
    return graph, made


def serve(
    graph: Any, x_BD: torch.Tensor, out_BD: torch.Tensor, new_BD: torch.Tensor
) -> torch.Tensor:
    """Return what a replay makes of a new input."""
    x_BD.copy_(new_BD)
    graph.replay()
    return out_BD.clone()


def _forward(cuda: Any, depth: int, width: int, batch: int, graph: bool) -> Step:
    weights = layers(depth, width)
    x_BD = torch.zeros(batch, width, dtype=torch.bfloat16, device="cuda")
    step = partial(forward, weights, x_BD)
    return captured(cuda, step)[0].replay if graph else step


def _training(cuda: Any, depth: int, width: int, batch: int, graph: bool) -> Step:
    step = training(cuda, depth, width, batch)
    return captured(cuda, step)[0].replay if graph else step


def _chain(cuda: Any, graph: bool) -> Step:
    """100 kernels that do next to nothing."""
    x = torch.zeros(8, device="cuda")

    def step() -> None:
        for _ in range(100):
            x.add_(1)

    return captured(cuda, step)[0].replay if graph else step


def _served(cuda: Any) -> Step:
    weights = layers(24, 512)
    x_BD = torch.zeros(8, 512, dtype=torch.bfloat16, device="cuda")
    graph, out_BD = captured(cuda, partial(forward, weights, x_BD))
    return partial(serve, graph, x_BD, out_BD, torch.ones_like(x_BD))


PROGRAMS: dict[str, Callable[[Any], Step]] = {
    "100 tiny kernels, eager": partial(_chain, graph=False),
    "100 tiny kernels, replayed": partial(_chain, graph=True),
    "24 layers of 512, 8 rows, eager": partial(_forward, depth=24, width=512, batch=8, graph=False),
    "24 layers of 512, 8 rows, replayed": partial(
        _forward, depth=24, width=512, batch=8, graph=True
    ),
    "24 layers of 512, 8 rows, served": _served,
    "24 layers of 2048, 1024 rows, eager": partial(
        _forward, depth=24, width=2048, batch=1024, graph=False
    ),
    "24 layers of 2048, 1024 rows, replayed": partial(
        _forward, depth=24, width=2048, batch=1024, graph=True
    ),
    "24 layers of 8192, 4096 rows, replayed": partial(
        _forward, depth=24, width=8192, batch=4096, graph=True
    ),
    "training, 8 layers of 512, 64 rows, eager": partial(
        _training, depth=8, width=512, batch=64, graph=False
    ),
    "training, 8 layers of 512, 64 rows, replayed": partial(
        _training, depth=8, width=512, batch=64, graph=True
    ),
}


def step_time(cuda: Any, name: str, repeats: int = 20) -> float:
    """Return the µs of a step, the median of seven batches."""
    step, found = PROGRAMS[name](cuda), []
    for _ in range(8):
        cuda.synchronize()
        began = perf_counter()
        for _ in range(repeats):
            step()
        cuda.synchronize()
        found.append((perf_counter() - began) / repeats * 1e6)
    return statistics.median(found[1:])  # the first is a warm-up


def simulated() -> dict[str, float]:
    """µs a step of each on a virtual H200."""
    found = {}
    for name in PROGRAMS:
        with virtual.device("H200", values=False) as cuda:
            found[name] = step_time(cuda, name, repeats=3)
    return found


def main() -> None:
    """All that is measured first: the virtual GPU registers an accelerator for the process."""
    measured = {}
    for name in PROGRAMS if torch.cuda.is_available() else ():
        measured[name] = step_time(torch.cuda, name)
    for name, us in simulated().items():
        row = {"program": name, "simulated_us": us, "measured_us": measured.get(name)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
