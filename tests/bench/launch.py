"""Time how ranks are launched, beside other launchers, in one run. `make bench` does.

    launch.py [PART ...] [--quick] [--alone] [--json FILE]

Goals are printed beside what was measured; a missed one is a finding, not an error. A wrong
result and a process that is left behind are errors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import inside
import psutil
import ways
from inside import RANKS
from lockstep import torchrun
from lockstep.launch.engines.supervised import forkserver
from report import Report, circumstances, text
from ways import DDP_STEP, REDUCE, Notebook

MARK = "LOCKSTEP_BENCH"  # in the environment of every process that is started here
FLOOR = "fork 4, init, all-reduce (floor)"
CALLED = "torchrun(function)"


@dataclass(frozen=True)
class Asked:
    """quick: each thing once or twice, to see that it runs. alone: without other launchers."""

    quick: bool
    alone: bool


# ── The parts ────────────────────────────────────────────────────────────────────────────────


def fresh(report: Report, asked: Asked) -> None:
    """Four fresh ranks make a gloo group, reduce four floats, and the values come back.

    The ways take turns, so that what else the machine does falls on all of them alike.
    """
    samples: dict[str, list[float]] = {}

    def add(name: str, seconds: float) -> None:
        samples.setdefault(name, []).append(seconds)

    with Notebook() as notebook, ways.forking_process() as forking:
        notebook.ready()
        notebook.run("%load_ext lockstep")
        notebook.time(REDUCE)  # it waits for the forkserver, which the part "first" times
        called()
        for _ in range(1 if asked.quick else 5):
            for _ in range(2 if asked.quick else 8):
                add("%%torchrun cell", notebook.time(REDUCE))
                add(CALLED, called())
                add("fork 4 and leave (bare floor)", ways.floor(forking, "fork"))
                add(FLOOR, ways.floor(forking, "reduce"))
            if asked.alone:
                continue
            add("torchrun", ways.torchrun(REDUCE))
            add("torch.multiprocessing.spawn", ways.spawn(REDUCE))
            with may_be_unable(report, "accelerate notebook_launcher"):
                add("accelerate notebook_launcher", ways.accelerate(REDUCE))
            with may_be_unable(report, "ipyparallel"):
                began = time.perf_counter()
                with ways.Engines() as engines:
                    engines.run(REDUCE)
                    add("ipyparallel, cluster start", time.perf_counter() - began)
                    for _ in range(4):
                        add("ipyparallel, warm engines", engines.run(REDUCE))
    rows = report.beside("fresh", samples, FLOOR)
    ours = rows["%%torchrun cell"]
    if ours.torchrun:
        ratio = ours.torchrun / ours.median
        report.goal("fresh: at least 50× as fast as torchrun", f"{ratio:.1f}×", ratio >= 50)
    for name in ("fork 4 and leave (bare floor)", FLOOR):
        ratio = ours.median / rows[name].median
        report.goal(f"fresh: at most 2× {name}", f"{ratio:.2f}×", ratio <= 2)

    ratio = rows[CALLED].median / rows[FLOOR].median
    report.goal(f"fresh: {CALLED} at most 1.3× {FLOOR}", f"{ratio:.2f}×", ratio <= 1.3)


def called() -> float:
    """Return the seconds that the same takes as a function, in this process."""
    began = time.perf_counter()
    job = torchrun(inside.reduce, nproc_per_node=RANKS, show=False)
    REDUCE.check([str(value) for value in job.results])
    return time.perf_counter() - began


def ddp(report: Report, asked: Asked) -> None:
    """The same with a tiny model in DDP and one step of SGD."""
    samples: dict[str, list[float]] = {"%%torchrun cell": [], FLOOR: []}
    with Notebook() as notebook, ways.forking_process() as forking:
        notebook.ready()
        notebook.run("%load_ext lockstep")
        notebook.time(DDP_STEP)
        for _ in range(1 if asked.quick else 3):
            for _ in range(2 if asked.quick else 8):
                samples["%%torchrun cell"].append(notebook.time(DDP_STEP))
                samples[FLOOR].append(ways.floor(forking, "reduce"))
            if not asked.alone:
                samples.setdefault("torchrun", []).append(ways.torchrun(DDP_STEP))
    ours = report.beside("ddp", samples, FLOOR)["%%torchrun cell"]
    if ours.torchrun:
        ratio = ours.torchrun / ours.median
        report.goal("ddp: at least 60× as fast as torchrun", f"{ratio:.1f}×", ratio >= 60)


def first(report: Report, asked: Asked) -> None:
    """The first job of a new kernel: %load_ext and the cell in direct succession."""
    samples = []
    for _ in range(1 if asked.quick else 5):
        with Notebook() as notebook:
            notebook.ready()
            began = time.perf_counter()
            notebook.send("%load_ext lockstep")
            shown = notebook.finish(notebook.send(REDUCE.cell))
            samples.append(time.perf_counter() - began)
            REDUCE.check_cell(shown)
    row = report.row("first: load_ext and cell in a new kernel", "s", samples)
    report.goal("first: at most 2.5 s", text(row.median, "s"), row.median <= 2.5)


def thousand(report: Report, asked: Asked) -> None:
    """Jobs in a row, by the function API: is there one that stalls?"""
    torchrun(inside.reduce, nproc_per_node=RANKS, show=False)  # warms up
    samples, slow_calls = [], []
    for _ in range(10 if asked.quick else 1000):
        began = time.perf_counter()
        job = torchrun(inside.reduce, nproc_per_node=RANKS, show=False)
        values = job.results
        samples.append(time.perf_counter() - began)
        REDUCE.check([str(value) for value in values])
        calls = [call for reader in job.readers for call in reader.log().values()]
        slow_calls.append(max(calls, key=lambda call: call.seconds))
    row = report.row(f"thousand: {len(samples)} jobs in a row", "s", samples)
    slowest = max(samples) / row.median
    for index, (seconds, call) in enumerate(zip(samples, slow_calls, strict=True)):
        if seconds > 10 * row.median:
            where = f"{text(call.seconds, 's')} in {call} of rank {call.rank}"
            report.notes.append(f"thousand: job {index} took {text(seconds, 's')}, {where}")
    report.goal("thousand: the slowest at most 10 medians", f"{slowest:.1f}×", slowest <= 10)


def memory(report: Report, asked: Asked) -> None:
    """Proportional set sizes: of what is idle, and of ranks in the middle of a job."""
    idle_parts: dict[str, list[float]] = {"kernel": [], "forkserver": []}
    ranks, added = [], []
    for _ in range(1 if asked.quick else 3):
        with Notebook() as notebook:
            notebook.ready()
            notebook.run("%load_ext lockstep")
            notebook.time(REDUCE)
            (warm,) = psutil.Process(notebook.pid).children()
            idle = [pss(notebook.pid), pss(warm.pid)]
            with inside.waiting_ranks() as (cell, pids):
                request = notebook.send(f"%%torchrun -n {RANKS}\n{cell}")
                sizes = [pss(pid) for pid in pids()]
                everything = pss(notebook.pid) + pss(warm.pid) + sum(sizes)
            notebook.finish(request)
        for samples, size in zip(idle_parts.values(), idle, strict=True):
            samples.append(size)
        ranks += sizes
        added.append((everything - sum(idle)) / RANKS)
    if others := sharing_torch():
        report.notes.append(f"memory: {others} other processes share PyTorch: alone it is more")
    for name, sizes in idle_parts.items():
        report.row(f"memory: idle {name}", "MB", sizes)
    both = [sum(sizes) for sizes in zip(*idle_parts.values(), strict=True)]
    total = report.row("memory: idle kernel + forkserver", "MB", both).median
    report.goal("memory: idle kernel + forkserver at most 350 MB", text(total, "MB"), total <= 350)
    report.row(f"memory: each of {RANKS} ranks", "MB", ranks)
    report.row("memory: added to the whole by a rank", "MB", added)
    rank = statistics.median(ranks)
    report.goal("memory: each rank at most 60 MB", text(rank, "MB"), rank <= 60)


def notebooks(report: Report, asked: Asked) -> None:
    """Many kernels that run a four-rank cell at the same time: right, complete, and gone."""
    count = 2 if asked.quick else 30
    with contextlib.ExitStack() as stack:
        kernels = [stack.enter_context(Notebook()) for _ in range(count)]
        for notebook in kernels:
            notebook.ready()
        for name in ("first cell, parents still cold", "second cell"):
            began = time.perf_counter()
            requests = []
            for number, notebook in enumerate(kernels):
                notebook.send("%load_ext lockstep")
                requests.append(notebook.send(inside.talkative_cell(number)))
            took = []
            for notebook, request in zip(kernels, requests, strict=True):
                notebook.finish(request)
                took.append(time.perf_counter() - began)
            report.row(f"notebooks: {count}, {name}: until all are done", "s", [max(took)])
            for number, notebook in enumerate(kernels):
                said = notebook.run(inside.check_of_talkative_cell(number)).strip()
                if "LOST" in said:
                    raise RuntimeError(f"notebook {number}: {said}")
                if said:
                    report.notes.append(f"notebooks: {number}, {name}: {said}")
    report.notes.append(f"notebooks: {count} had the right results and all their lines, twice")


def record(report: Report, asked: Asked) -> None:
    """Measure what the record of every call costs: small all-reduces with it and without it."""
    for ranks in (RANKS, 1):
        size = (2, 50) if asked.quick else (20, 500)  # blocks, calls in each
        job = torchrun(inside.alternate, *size, nproc_per_node=ranks, show=False)
        recorded, bare = job.results[0]
        with_it = report.row(f"record: all-reduce, {ranks} rank(s), recorded", "µs", recorded)
        without = report.row(f"record: all-reduce, {ranks} rank(s), not recorded", "µs", bare)
        cost = with_it.median - without.median
        report.notes.append(
            f"record: costs {cost:.0f} µs a call on {ranks} rank(s), {cost / without.median:.1%}"
        )
    plain = report.row(
        "record: all-reduce, 1 rank(s), PyTorch alone", "µs", ways.plain_reduces(*size)
    )
    cost = with_it.median - plain.median
    report.notes.append(f"record: costs {cost:.0f} µs a call at most, hooks included")


PARTS = {part.__name__: part for part in (fresh, ddp, first, thousand, memory, notebooks, record)}


# ── What surrounds them ──────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def may_be_unable(report: Report, name: str) -> Iterator[None]:
    """Another launcher that is not there, or fails, is told of and left out."""
    try:
        yield
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[-1]
        report.notes.append(f"{name} failed: {line}")


def pss(pid: int) -> float:
    """Memory of a process in MB, where a page that n processes share counts as 1/n."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"no Pss of process {pid}")


def sharing_torch() -> int:
    """Count the processes besides ours that have PyTorch's library mapped: they lower a PSS."""
    ours = {os.getpid(), *(process.pid for process in left_behind(patience=0))}
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            count += process.pid not in ours and "libtorch_cpu" in maps
    return count


def left_behind(patience: float) -> list[psutil.Process]:
    """The processes that were started here and still run after `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        running = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == os.environ[MARK]:
                    running.append(process)
        if not running or time.monotonic() > end:
            return running
        time.sleep(0.1)


def run_part(name: str, report: Report, asked: Asked) -> None:
    print(f"{name} …", file=sys.stderr, flush=True)
    try:
        PARTS[name](report, asked)
    except Exception:
        traceback.print_exc()
        report.errors.append(f"{name} failed, see above")
    forkserver.close()
    for process in left_behind(patience=5):
        with contextlib.suppress(psutil.Error):
            report.errors.append(f"{name} left behind {process.pid}: {process.cmdline()}")
            process.kill()
    for path in Path(tempfile.gettempdir()).glob("lockstep-*"):
        report.errors.append(f"{name} left behind {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; or all")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--alone", action="store_true", help="without the other launchers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")

    load, report = os.getloadavg()[0], Report()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as directory:
        # All temporary files lie in one place, and no process escapes us: see left_behind().
        os.environ |= {
            MARK: directory,
            "TMPDIR": directory,
            "IPYTHONDIR": directory,
            "JUPYTER_RUNTIME_DIR": directory,
            **ways.COMMON,
        }
        tempfile.tempdir = directory
        for name in options.parts or PARTS:
            run_part(name, report, Asked(options.quick, options.alone))

    about = circumstances(load)  # only now: it imports torch, and that would share memory
    cpu, cores = about["machine"]["cpu"], about["machine"]["cores"]
    print(f"\n{cpu}, {cores} cores · " + " · ".join(" ".join(i) for i in about["versions"].items()))
    print(f"\n{report}")
    if options.json:
        report.write(options.json, about)
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
