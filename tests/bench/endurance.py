"""Thousands of fresh jobs and of runs on one kept World, in a storm of interrupts.

    python tests/bench/endurance.py [--jobs 2000] [--runs 5000] [--storm 0.1] [--seed 0]

Every run has an argument of its own, and its values, its output and its report must be of that
argument: a result of another run is counted as wrong. In `--storm` of the runs signals arrive at a
random moment: one to ten Ctrl-C within a millisecond, or a SIGALRM whose handler raises. Counted
are wrong results, errors that nobody asked for, stalls, and what is left: processes, descriptors,
temporary files, shared memory, memory of the kernel and of the warm parent. The exit status is 1
where there is any of it. PYTHONPATH says whose `lockstep` is tried.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lockstep
import psutil
from lockstep import Job, JobFailed, World, torchrun
from lockstep.launch.cell import Cell
from lockstep.launch.engines.supervised import forkserver
from lockstep.launch.options import Options

sys.path.insert(0, str(Path(__file__).parents[1]))
from kernel import shared_memory

RANKS = 2
LIMIT = 20.0  # seconds: the time limit of each job, which none should reach
STUCK = 120.0  # seconds: a run that is not over then ends everything, with the stack
_MARK = "LOCKSTEP_ENDURANCE"  # in the environment of every process that is started here

# Sends signals at the asked moment: "seconds count\n" on its stdin.
GUNNER = """\
import os, signal, sys, time
for line in sys.stdin:
    delay, count = line.split()
    time.sleep(float(delay))
    for _ in range(int(count)):
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.0001)
    print(flush=True)
"""


class Alarm(Exception):
    """What the learner's own signal handler raises."""


class Storm:
    """Signals at random moments of a run, and no signal outside of one. A context manager."""

    def __init__(self, random: random.Random):
        self._random = random
        self._armed = False
        self._typical = 0.1  # seconds that a run takes

    def __enter__(self) -> Storm:
        command = [sys.executable, "-S", "-c", GUNNER]
        self._gunner = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        signal.signal(signal.SIGINT, self._raise)
        signal.signal(signal.SIGALRM, self._raise)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._gunner.stdin.close()
        self._gunner.wait()
        self._gunner.stdout.close()

    @property
    def pid(self) -> int:
        return self._gunner.pid

    def _raise(self, number: int, _: Any) -> None:
        if self._armed:
            raise KeyboardInterrupt if number == signal.SIGINT else Alarm

    def run(self, action: Callable[[], Job], hit: bool) -> tuple[Job | None, BaseException | None]:
        """The job, or what came instead of it."""
        kind = self._random.choice(["interrupt", "several", "alarm"]) if hit else ""
        delay = self._random.uniform(0.001, 1.2 * self._typical)
        if kind in ("interrupt", "several"):
            count = 1 if kind == "interrupt" else self._random.randint(2, 10)
            self._gunner.stdin.write(f"{delay} {count}\n")
        elif kind == "alarm":
            signal.setitimer(signal.ITIMER_REAL, delay)
        began = time.perf_counter()
        result: tuple[Job | None, BaseException | None]
        try:
            try:
                self._armed = True
                result = action(), None
            except BaseException as error:
                self._armed = False
                result = None, error
            self._armed = False
        except (KeyboardInterrupt, Alarm) as error:  # it came between two lines of ours
            self._armed = False
            result = None, error
        if kind in ("interrupt", "several"):
            self._gunner.stdout.readline()  # all its signals have been sent
        elif kind == "alarm":
            signal.setitimer(signal.ITIMER_REAL, 0)
        elif not hit:
            self._typical += 0.05 * (time.perf_counter() - began - self._typical)
        return result


# ── What the ranks do ────────────────────────────────────────────────────────────────────────


def work(number: int, kind: str) -> tuple[int, int, bytes]:
    """Reduces, prints and returns what only this number gives; "raises" raises it."""
    import torch
    import torch.distributed as dist

    print("number", number)
    if kind == "raises":
        raise ValueError(f"number {number}")
    x = torch.tensor([number + dist.get_rank()])
    dist.all_reduce(x)
    size = 2_000_000 if kind == "large" else 10
    return number, int(x), number.to_bytes(8, "little") * (size // 8)


CELL = """\
import torch, torch.distributed as dist
print("number", number)
x = torch.tensor([number + dist.get_rank()])
dist.all_reduce(x)
number, int(x), number.to_bytes(8, "little")
"""


def wrong(job: Job, number: int) -> str:
    """What of a finished job does not belong to `number`; "" where all does."""
    expected = RANKS * number + sum(range(RANKS))
    for rank, (its, total, filler) in enumerate(job.results):
        if (its, total) != (number, expected) or filler[:8] != number.to_bytes(8, "little"):
            return f"rank {rank} of run {number} gave {its}, {total}"
        if job.output(rank) != f"number {number}\n":
            return f"rank {rank} of run {number} printed {job.output(rank)[:100]!r}"
    return ""


# ── Many of them ─────────────────────────────────────────────────────────────────────────────


@dataclass
class Tally:
    """What became of many runs. In capitals what must not be."""

    name: str
    seconds: list[float] = field(default_factory=list)  # of the runs that no signal met
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, what: str, example: str = "") -> None:
        self.counts[what] += 1
        if what.isupper() and self.counts[what] <= 3:
            self.examples.append(f"{self.name}: {what}: {example}")

    def take(self, run: Run, job: Job | None, error: BaseException | None) -> None:
        if job is not None:
            self.note("ok")
            bad = "it raised, and its job is ok" if run.kind == "raises" else wrong(job, run.number)
            if bad:
                self.note("WRONG", bad)
        elif isinstance(error, KeyboardInterrupt | Alarm) and run.hit:
            self.note("met by a signal")
        elif isinstance(error, JobFailed) and "time limit" in error.job.verdict:
            self.note("STALL", f"run {run.number}: {error}")
        elif isinstance(error, JobFailed) and f"ValueError: number {run.number}\n" in f"{error}\n":
            self.note("raised" if run.kind == "raises" else "WRONG", str(error))
        else:
            self.note("ERROR", f"run {run.number}: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Run:
    number: int
    kind: str  # plain, large or raises
    hit: bool  # whether a signal is sent


def many(tally: Tally, runs: int, begin: Callable[[Run], Job], watch: Watch) -> None:
    for number in range(runs):
        hit = watch.draw.random() < watch.share
        run = Run(number, watch.draw.choices(["plain", "large", "raises"], [90, 5, 5])[0], hit)
        faulthandler.dump_traceback_later(STUCK, exit=True)
        began = time.perf_counter()
        job, error = watch.storm.run(partial(begin, run), hit)
        if not hit:
            tally.seconds.append(time.perf_counter() - began)
        tally.take(run, job, error)
        if hit or number % 100 == 99:
            watch.look(tally, f"after run {number}")
        if number % 500 == 499:
            print(f"{tally.name}: {number + 1} of {runs}", file=sys.stderr)
    faulthandler.cancel_dump_traceback_later()


@dataclass
class Watch:
    """Sees to what is there besides the runs."""

    storm: Storm
    draw: random.Random
    share: float  # of the runs that signals meet
    ranks: int = 0  # that may live between two runs
    known: set[psutil.Process] = field(default_factory=set)
    parent: psutil.Process | None = None

    def look(self, tally: Tally, when: str) -> None:
        """Note processes that should be gone, once each, and a warm parent that died."""
        gunner = self.storm.pid
        parents = [p for p in psutil.Process().children() if p.pid != gunner]
        if self.parent is not None and self.parent not in parents:
            tally.note("PARENT DIED", when)
        self.parent = parents[0] if parents else None
        ranks = [p for p in marked() if p not in parents and p.pid not in (gunner, os.getpid())]
        if len(ranks) > self.ranks:
            _, ranks = psutil.wait_procs(ranks, timeout=1)  # some may be about to end
        if len(ranks) > self.ranks:
            for process in set(ranks) - self.known:
                tally.note("PROCESS LEFT", f"{when}: {process}")
            self.known |= set(ranks)


def marked() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == os.environ[_MARK]:
                found.append(process)
    return found


def holdings() -> dict[str, float]:
    """What this process and its warm parent hold."""
    held: dict[str, float] = {}
    for name, process in {
        "kernel": psutil.Process(),
        "warm parent": psutil.Process(forkserver.pid),
    }.items():
        held[f"descriptors of the {name}"] = process.num_fds()
        held[f"MB of the {name}"] = process.memory_info().rss / 1e6
    held["temporary folders"] = len(list(Path(tempfile.gettempdir()).glob("lockstep-*")))
    held["files in /dev/shm"] = len(shared_memory(marked()))
    return held


def settled(before: dict[str, float], patience: float = 5) -> dict[str, float]:
    """What they hold once it is no more than before, or after so many seconds."""
    until = time.monotonic() + patience
    while grown(before, after := holdings()) and time.monotonic() < until:
        time.sleep(0.1)
    return after


def grown(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What there is more of; of memory each run has another amount."""
    return [name for name in before if "MB" not in name and after[name] > before[name]]


def fresh_jobs(count: int, watch: Watch) -> Tally:
    def begin(run: Run) -> Job:
        return torchrun(work, run.number, run.kind, nproc_per_node=RANKS, timeout=LIMIT, show=False)

    tally = Tally("fresh jobs")
    watch.ranks = 0
    many(tally, count, begin, watch)
    return tally


def kept_world(count: int, watch: Watch) -> Tally:
    world = World(RANKS, timeout=LIMIT)

    def begin(run: Run) -> Job:
        if run.kind == "plain" and run.number % 2:
            return world.run_cell(Cell(CELL, "cell-endurance"), {"number": run.number}, Options())
        return world.run(work, run.number, run.kind)

    tally = Tally("kept World")
    watch.ranks = RANKS
    many(tally, count, begin, watch)
    world.close()
    watch.ranks = 0
    watch.look(tally, "after close()")
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2000, help="fresh ones")
    parser.add_argument("--runs", type=int, default=5000, help="on a kept World")
    parser.add_argument("--storm", type=float, default=0.1, help="share of runs that signals meet")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what a World's runs show, to the end
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        os.environ |= {_MARK: folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        tempfile.tempdir = folder
        # What every later job finds is there: the warm parent, the modules, the caches.
        torchrun(work, 0, "large", nproc_per_node=RANKS, show=False)
        before = holdings()
        with Storm(draw) as storm:
            watch = Watch(storm, draw, options.storm)
            tallies = [fresh_jobs(options.jobs, watch), kept_world(options.runs, watch)]
        after = settled(before)
        for process in watch.known:
            with contextlib.suppress(psutil.Error):
                process.kill()
    return report(tallies, before, after)


def report(tallies: list[Tally], before: dict[str, float], after: dict[str, float]) -> int:
    lines = [f"lockstep of {Path(lockstep.__file__).parents[1]}"]
    for tally in tallies:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(tally.counts.items()))
        lines.append(f"{tally.name}: {counts}")
        if tally.seconds:
            median, slowest = statistics.median(tally.seconds), max(tally.seconds)
            lines.append(f"    median {median * 1000:.1f} ms, slowest {slowest:.2f} s")
        lines += tally.examples
    for name, held in before.items():
        lines.append(f"{name}: {held:.0f} before, {after[name]:.0f} after")
    print("\n".join(lines), file=sys.__stdout__)
    bad = any(what.isupper() for tally in tallies for what in tally.counts)
    return 1 if bad or grown(before, after) else 0


if __name__ == "__main__":
    sys.exit(main())
