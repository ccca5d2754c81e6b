"""Traces: reading and analysing them beside Holistic Trace Analysis, and what recording costs.

    python tests/bench/trace.py [--ranks 8] [--events 300000] [--runs 3] [--hta CHECKOUT]
                                 [--only-reading] [--json FILE]

Each way reads the same files in a fresh Python process, one after the other. Memory is the peak of
the proportional set size (PSS) of that process and all its descendants, asked for ten times a
second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import report

sys.path.insert(0, str(Path(__file__).parents[1]))

READERS = {
    "lockstep": """
from lockstep.trace import Trace
trace = Trace.load(folder, cache=False)
loaded = time.perf_counter()
totals = trace.align().breakdown().totals
""",
    "HTA": """
import warnings; warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_dir=folder)
loaded = time.perf_counter()
times = trace.get_temporal_breakdown(visualize=False)
overlap = trace.get_comm_comp_overlap(visualize=False)
""",
}
SCRIPT = """
import json, sys, time
folder, began = sys.argv[1], time.perf_counter()
{reader}
print("\\nfigures:", json.dumps([loaded - began, time.perf_counter() - loaded]))
"""


def read(way: str, folder: Path, hta: Path | None = None) -> tuple[float, float, float, float]:
    """Seconds of loading, of analysing, of CPU time in all, and peak bytes. hta: a checkout of it
    that is used in place of the installed one."""
    script = SCRIPT.format(reader=READERS[way])
    paths = [Path(__file__).parents[2] / "lib", *([hta.resolve()] if hta else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    before = sum(os.times()[2:4])  # of children that have ended
    with tempfile.TemporaryFile("w+") as output:
        process = psutil.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, tree(process))
            time.sleep(0.1)
        output.seek(0)
        said = output.read()
    if process.returncode:
        raise SystemExit(f"{way} failed:\n{said}")
    load, analyse = json.loads(said.rpartition("figures:")[2])
    return load, analyse, sum(os.times()[2:4]) - before, peak


def tree(process: psutil.Process) -> int:
    """Bytes (PSS) of a process and its descendants now."""
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_full_info().pss
    except psutil.Error:
        pass  # it has just ended
    return total


STEPS = 60


def train(steps: int) -> list[float]:
    """Seconds of each step of a small DDP training."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    parts = [part for _ in range(6) for part in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*parts))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(256, 256)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return times[steps // 3 :]


def recording(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds a step of two gloo ranks, without and with the profiler, in turns."""
    from lockstep import torchrun

    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for trace in seconds:
            job = torchrun(train, STEPS, nproc_per_node=2, backend="gloo", show=False, trace=trace)
            seconds[trace].append(statistics.median(job.results[0]))
    return seconds[False], seconds[True]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events", type=int, default=300_000, help="of each rank")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--hta", type=Path, metavar="FOLDER", help="a checkout of HTA to compare with"
    )
    parser.add_argument(
        "--only-reading", action="store_true", help="leave out what recording costs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    from kineto_files import training

    circumstances = report.circumstances(os.getloadavg()[0])
    found = report.Report()
    runs: dict[str, list[tuple[float, float, float, float]]] = {way: [] for way in READERS}
    with tempfile.TemporaryDirectory() as folder:
        training(Path(folder), ranks=options.ranks, events=options.events)
        for _ in range(options.runs):
            for way, done in runs.items():
                done.append(read(way, Path(folder), options.hta))
    what = f"{options.ranks} ranks × {options.events:,} events"
    seconds, peaks = {}, {}
    for way, done in runs.items():
        found.row(f"{way}: load", "s", [one[0] for one in done])
        found.row(f"{way}: align and break down", "s", [one[1] for one in done])
        seconds[way] = found.row(f"{way}: {what}", "s", [one[0] + one[1] for one in done]).median
        found.row(f"{way}: CPU time", "s", [one[2] for one in done])
        peaks[way] = found.row(f"{way}: peak memory", "MB", [one[3] / 1e6 for one in done]).median
    faster = seconds["HTA"] / seconds["lockstep"]
    found.goal("at least 8 times as fast as HTA", f"{faster:.1f} times", faster >= 8)
    share = peaks["lockstep"] / peaks["HTA"]
    found.goal("at most a third of HTA's memory", f"{share:.2f} of it", share <= 1 / 3)
    if not options.only_reading:
        before, after = recording(options.runs)
        plain = found.row("step of two gloo ranks", "s", before)
        recorded = found.row("the same, recorded", "s", after)
        percent = 100 * (recorded.median / plain.median - 1)
        found.notes.append(f"recording costs these ranks {percent:.1f} % of a step")
    print(found)
    if options.json:
        found.write(options.json, circumstances)


if __name__ == "__main__":
    main()
