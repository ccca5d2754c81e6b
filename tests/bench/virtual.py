"""What a virtual step costs this process: `python tests/bench/virtual.py`.

A training step and a chain of small operations, of about 1,000 operations each.
"""

from __future__ import annotations

import time

import torch
from lockstep import virtual
from torch import nn


def chain() -> None:
    x = torch.ones(16, 16, device="cuda")
    for _ in range(250):
        x = (x @ x).relu().mul(0.05) + 1


def main() -> None:
    torch.set_num_threads(1)  # as ranks that share the cores do
    with virtual.device() as cuda:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(110))).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        x = torch.randn(8, 64, device="cuda")

        def step() -> None:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        for name, run in (("chain", chain), ("training step", step)):
            for _ in range(5):
                before = len(virtual.trace())
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                cuda.synchronize()
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                count = (len(virtual.trace()) - before) // 3
                each = f"{1e6 * cpu / count:.0f} µs of CPU time each"
                print(f"{name}: {count} operations, {wall:.3f} s, {cpu:.3f} s CPU, {each}")


if __name__ == "__main__":
    main()
