"""Times of the drawn programs, or of the sweeps, on this machine's GPU, as a JSON file.

    python tests/record_times.py fitted|kept|later|sweeps|more FILE [SECONDS]

Of each program: seconds of a step between two events, from an idle device (the median of 25, and
the quartiles), the host's seconds until the last launch, what the host takes just then to launch an
addition (hosts differ by a factor of two, also from one minute to the next), and of each kernel by
PyTorch's profiler its name and nanoseconds (the median of 5 steps). No program begins after so many
SECONDS; what failed is listed with its error.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from drawn_programs import FITTED, KEPT, LATER, Make, Step
from operator_sweeps import MORE, SWEEPS
from torch.profiler import ProfilerActivity, profile

HALVES = {"fitted": FITTED, "kept": KEPT, "later": LATER}
TIMES, PROFILED, LAUNCHES = 25, 5, 100
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def timed(step: Step) -> dict[str, float]:
    cuda = torch.cuda
    device, host = [], []
    first, last = (cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    last.record()  # an event's first record makes it, which takes long
    for _ in range(TIMES):
        cuda.synchronize()
        first.record()
        began = time.perf_counter()
        step()
        host.append(time.perf_counter() - began)
        last.record()
        cuda.synchronize()
        device.append(first.elapsed_time(last) / 1e3)
    lower, middle, upper = statistics.quantiles(device, n=4)
    return {
        "seconds": middle,
        "lower_quartile": lower,
        "upper_quartile": upper,
        "host_seconds": statistics.median(host),
    }


def launch_seconds() -> float:
    """The host's seconds for an addition, of many."""
    x = torch.zeros(1024, device="cuda")
    took = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1)
        took.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return statistics.median(took) / LAUNCHES


def kernels(step: Step) -> dict[str, Any]:
    """The kernels of a step, in the order of their starts, and the seconds of all."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    found = []
    for event in profiler.profiler.kineto_results.events():
        if "CUDA" in str(event.device_type()):
            found.append((event.start_ns(), event.name(), event.duration_ns()))
    found.sort()
    seconds = sum(nanoseconds for *_, nanoseconds in found) / 1e9 / PROFILED
    if len(found) % PROFILED:
        return {
            "kernel_seconds": seconds,
            "kernels": [(name, nanoseconds) for _, name, nanoseconds in found],
        }
    each = len(found) // PROFILED
    rounds = [found[at : at + each] for at in range(0, len(found), each)] if each else []
    return {
        "kernel_seconds": seconds,
        "kernels": [
            (some[0][1], round(statistics.median(one[2] for one in some)))
            for some in zip(*rounds, strict=True)
        ],
    }


def measured(make: Make) -> dict[str, Any]:
    step = make(torch.cuda)
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    gc.disable()
    try:
        before = launch_seconds()
        times = timed(step)
        launch = (before + launch_seconds()) / 2
        return {**times, "launch_seconds": launch, **kernels(step)}
    finally:
        gc.enable()


def main(which: str, file: str, limit: str = "300") -> None:
    began = time.perf_counter()
    names: dict[str, int] = {}
    if which in ("sweeps", "more"):
        every = list((SWEEPS if which == "sweeps" else MORE).items())
        random.Random(5).shuffle(every)  # so that a limit leaves out a bit of everything
    else:
        every = [(name, program.make) for name, program in HALVES[which].items()]
    torch.manual_seed(0)
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(200):
        x @ x
    measured(lambda cuda: partial(torch.mm, x, x))  # the profiler's first time is slow
    programs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for number, (name, make) in enumerate(every):
        if time.perf_counter() - began > float(limit):
            failed[name] = "no time was left"
            continue
        try:
            if number % 10 == 9 or which in HALVES:
                gc.collect()
                torch.cuda.empty_cache()  # raises after a program that has broken the device
            row = programs[name] = measured(make)
            row["kernels"] = [
                (names.setdefault(kernel[:120], len(names)), nanoseconds)
                for kernel, nanoseconds in row["kernels"]
            ]
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
        make = None  # type: ignore[assignment]
    content = {
        "machine": f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}",
        "times": TIMES,
        "took": time.perf_counter() - began,
        "kernel_names": list(names),
        "programs": programs,
        "failed": failed,
    }
    Path(file).write_text(json.dumps(content), encoding="utf-8")
    print(which, len(programs), "programs", f"{content['took']:.0f} s")
    for name, why in failed.items():
        if why != "no time was left":
            print("  failed:", name, why)
    print("  left out:", sum(why == "no time was left" for why in failed.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
