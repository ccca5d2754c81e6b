"""Step times of lab 05's comparison, and those of a bare script that does the same, by turns.

The bare one is a process of its own that knows nothing of ranks: it takes the models, compiles
them, and has a clock. Prints how far the two are apart, and how far the bare one from itself.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from lockstep import torchrun
from lockstep.compiled import variables
from lockstep.record.compile import ON_CPU, SIZES, by_model, models

MODES = ("eager", "default", "reduce-overhead")


def sizes():
    return SIZES if torch.cuda.is_available() else ON_CPU


def bare() -> dict[str, float]:
    """Median seconds of a step by "model, mode"."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    found = {}
    for mode in MODES:
        for name, (make, shape) in models(sizes()).items():
            torch.manual_seed(0)
            dtype = getattr(torch, sizes().dtype)
            model = make().to(device, dtype)
            x = torch.randn(shape, device=device, dtype=dtype)
            if mode != "eager":
                model = torch.compile(model, mode=mode, dynamic=False)
            times = []
            with torch.no_grad():
                for _ in range(15):
                    model(x)
                for _ in range(15):
                    wait()
                    begin = time.perf_counter()
                    for _ in range(10):
                        model(x)
                    wait()
                    times.append((time.perf_counter() - begin) / 10)
            found[f"{name}, {mode}"] = statistics.median(times)
            torch.compiler.reset()
    return found


def on_a_rank() -> dict[str, float]:
    rows = {mode: by_model(sizes(), mode) for mode in MODES}
    return {f"{name}, {mode}": one["seconds"] for mode in rows for name, one in rows[mode].items()}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lockstep-compile-") as folder:
        caches = variables(Path(folder))
        ways = {
            "bare": lambda: json.loads(
                subprocess.run(
                    [sys.executable, __file__, "--bare"],
                    env=os.environ | caches,
                    stdout=subprocess.PIPE,
                    check=True,
                ).stdout
            ),
            "rank": lambda: torchrun(
                on_a_rank, nproc_per_node=1, init=False, env=caches, show=False
            )[0],
        }
        runs = [ways[way]() for way in ("bare", "rank", "bare")]
    print(f"{'model, mode':<28}{'bare µs':>9}{'rank µs':>9}{'bare µs':>9}  rank/bare  bare/bare")
    for name in runs[0]:
        first, rank, last = (1e6 * run[name] for run in runs)
        apart = rank / statistics.mean((first, last))
        print(f"{name:<28}{first:9.1f}{rank:9.1f}{last:9.1f}{apart:11.3f}{last / first:11.3f}")


if __name__ == "__main__":
    if "--bare" in sys.argv:
        print(json.dumps(bare()))
    else:
        main()
