"""Step times of lab 05's comparison, and those of a bare script that does the same, by turns.

The bare one is a process of its own that knows nothing of ranks: it takes the models, compiles
them, and has a clock. `python tests/bench/compiled.py 5` gives each five turns; prints the medians
of both, how far they are apart, and how far the bare one is from itself. On a machine that others
use the quickest turns say more: how far those are apart stands beside it.
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
from lockstep.compiled import CPU_ALONE, require, variables
from lockstep.record.compile import ON_CPU, SIZES, by_model, models

MODES = ("eager", "default", "reduce-overhead")


def sizes():
    return SIZES if torch.cuda.is_available() else ON_CPU


def bare() -> dict[str, float]:
    """Median seconds of a step by "model, mode"."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    require()
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
    require()
    rows = {mode: by_model(sizes(), mode) for mode in MODES}
    return {f"{name}, {mode}": one["seconds"] for mode in rows for name, one in rows[mode].items()}


def main(turns: int) -> None:
    with tempfile.TemporaryDirectory(prefix="lockstep-compile-") as folder:
        caches = variables(Path(folder)) | CPU_ALONE
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
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(turns):
            for way, run in ways.items():
                runs[way].append(run())
                print(way, json.dumps(runs[way][-1]), flush=True)
    heads = "rank/bare  of the quickest  bare, least to most"
    print(f"{'model, mode':<28}{'bare µs':>9}{'rank µs':>9}  {heads}")
    for name in runs["bare"][0]:
        bare, rank = ([1e6 * run[name] for run in runs[way]] for way in ("bare", "rank"))
        middle, other = statistics.median(bare), statistics.median(rank)
        apart = f"{min(bare):.1f} to {max(bare):.1f}"
        quickest = min(rank) / min(bare)
        ratios = f"{other / middle:11.3f}{quickest:17.3f}"
        print(f"{name:<28}{middle:9.1f}{other:9.1f}{ratios}  {apart}")


if __name__ == "__main__":
    if "--bare" in sys.argv:
        print(json.dumps(bare()))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
