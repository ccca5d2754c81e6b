"""Counts of what each kernel of a step of experts moved and computed, by the GPU's counters.

Nsight Compute (`ncu`) runs each kernel several times and reads counters; PyTorch's profiler runs
the same program and takes times. The step is that of `traces.experts` without other ranks: 8192
tokens go through one expert.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from lockstep.base.machine import Machine
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from .experiment import Experiment, ExperimentFailed, Result

TOKENS, WIDTH, EXPERTS = 8192, 1024, 4
PHASES = ("route", "dispatch", "expert", "combine")
METRICS = (
    "gpu__time_duration.sum",  # ns
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_bytes.sum",  # through the L2 cache
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.sum",
    "gpc__cycles_elapsed.avg.per_second",
)


def experts(device: str = "cuda") -> Callable[[], Any]:
    """One step, whose phases are named by `record_function`."""
    torch.manual_seed(0)
    kind: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    x_TD = torch.randn(TOKENS, WIDTH, **kind)
    router_DE = torch.randn(WIDTH, EXPERTS, **kind)
    up, down = nn.Linear(WIDTH, 4 * WIDTH, **kind), nn.Linear(4 * WIDTH, WIDTH, **kind)

    @torch.no_grad()
    def step() -> None:
        with record_function("route"):
            expert_T = (x_TD @ router_DE).argmax(1)
            order_T = expert_T.argsort()
            torch.bincount(expert_T, minlength=EXPERTS)
        with record_function("dispatch"):
            mine_TD = x_TD[order_T]
        with record_function("expert"):
            mine_TD = down(nn.functional.gelu(up(mine_TD)))
        with record_function("combine"):
            torch.empty_like(x_TD).index_copy_(0, order_T, mine_TD)

    return step


def under_ncu() -> None:
    """Run what ncu watches: one step, the rest is warm-up. `emit_nvtx` tells ncu of the ranges."""
    step = experts()
    with torch.autograd.profiler.emit_nvtx():
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        step()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def under_profiler(file: Path, steps: int = 30) -> None:
    """Leaves medians of each kernel's nanoseconds, in the order of a step, in `file`.

    Also the names of ranges that PyTorch's profiler has seen: those of `record_function` and, if it
    sees them, of NVTX.
    """
    step = experts()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            with torch.cuda.nvtx.range("by nvtx"):
                step()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profiler.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    kernels = sorted(
        (one for one in events if one.get("cat") == "kernel"), key=lambda one: one["ts"]
    )
    each, rest = divmod(len(kernels), steps)
    if rest:
        raise ExperimentFailed(f"{len(kernels)} kernels in {steps} equal steps")
    found = []
    for at in range(each):
        times = [round(1e3 * one["dur"]) for one in kernels[at::each]]
        found.append({"name": kernels[at]["name"], "median_ns": statistics.median(times)})
    ranges = {
        one["name"]
        for one in events
        if one.get("cat") in ("user_annotation", "gpu_user_annotation")
    }
    file.write_text(json.dumps({"kernels": found, "ranges": sorted(ranges)}))


def rows_of(text: str) -> list[dict[str, Any]]:
    """The kernels of ncu's `--csv --page raw`, in order: name, ranges, and each metric's value.

    The table's second line has units. Ranges are the names of `PHASES` in its columns of NVTX.
    """
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ExperimentFailed(f"ncu wrote no table; it said: {text[-600:]}")
    table = csv.DictReader(lines[first:])
    found = []
    for row in table:
        if not row["ID"] or not row.get("Kernel Name"):  # units, or no row of the table
            continue
        told = " ".join(value or "" for name, value in row.items() if name and "Push/Pop" in name)
        found.append(
            {
                "name": row["Kernel Name"],
                "ranges": [one for one in PHASES if re.search(rf"\b{one}\b", told)],
                "nvtx": told,
                **{name: float(row[name].replace(",", "")) for name in METRICS if row.get(name)},
            }
        )
    return found


def known(listed: Iterable[str]) -> list[str]:
    """Return those of METRICS that this ncu has for this GPU."""
    names = {line.split()[0] for line in listed if line.strip()}
    return [one for one in METRICS if one.split(".")[0] in names]


def run(_: Machine, nproc: int) -> list[Result]:
    ncu = shutil.which("ncu") or next(map(str, Path("/usr/local").glob("cuda*/bin/ncu")), None)
    if ncu is None:
        raise ExperimentFailed("there is no ncu here: install Nsight Compute")

    def ask(*arguments: str) -> str:
        said = subprocess.run([ncu, *arguments], capture_output=True, text=True, timeout=300)
        if said.returncode:
            raise ExperimentFailed(f"ncu ended with {said.returncode}: {said.stdout[-600:]}")
        return said.stdout

    metrics = known(ask("--query-metrics").splitlines())
    python = [sys.executable, "-m", __name__]
    how = ["--clock-control", "none", "--profile-from-start", "off", "--nvtx"]
    how += ["--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics)]
    counted: dict[str, Any] = defaultdict(list)
    for cache in ("all", "none"):  # emptied before each kernel, or as the kernel before left it
        counted[cache] = rows_of(ask(*how, "--cache-control", cache, *python))
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "timed.json")
        subprocess.run([*python, str(file)], check=True, timeout=300)
        timed = json.loads(file.read_text())
    version = ask("--version").strip().splitlines()[-1]
    content = {
        "ncu": version,
        "command": " ".join(["ncu", *how]),
        "caches_emptied": counted["all"],
        "caches_kept": counted["none"],
        "profiler": timed,
    }
    what = (
        "kernels of a step of experts on one GPU, by ncu's counters (with the caches emptied "
        "before each kernel, and kept), and medians of 30 steps by torch.profiler"
    )
    return [Result("traces/experts-counters.json", what, content)]


EXPERIMENT = Experiment(
    "counters",
    "what each kernel of a step of experts moved and computed, by ncu, for lab 07",
    minutes=1,
    run=run,
    most=1,
    ranks=1,
    writes={
        "traces/experts-counters.json": (
            "ncu",
            "command",
            "caches_emptied",
            "caches_kept",
            "profiler",
        ),
    },
)


if __name__ == "__main__":
    if sys.argv[1:]:
        under_profiler(Path(sys.argv[1]))
    else:
        under_ncu()
