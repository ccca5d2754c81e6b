"""Ctrl-C on each line of Lockstep's that a job runs through, one job for each line.

    python tests/each_line.py function|failure|World|reserve|trace|nodes [--every 1]

After each job another one must work, and no descriptor and no process may be left that was not
there before. Prints what is left, and on which line Ctrl-C came; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import lockstep
import psutil
from lockstep.launch.reserve import kept

LIBRARY = str(Path(lockstep.__file__).parent)
STUCK = 60.0  # seconds: a job that is not over then ends everything, with the stack
SETTLE = 3.0  # seconds for ranks in reserve to meet, and for processes to end

Line = tuple[str, int]


def add() -> float:
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return float(x)


def fail() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("no such shard")
    dist.barrier()


def in_world() -> None:
    with lockstep.World(2) as world:
        world.run(add)
        world.run(add)


def alone(**options: Any) -> None:
    lockstep.torchrun(add, nproc_per_node=2, show=False, **options)


@functools.cache
def agents() -> lockstep.Nodes:
    """Two hosts, both of them this one."""
    nodes = lockstep.Nodes(2)
    for _ in range(2):
        subprocess.Popen([sys.executable, "-m", *shlex.split(nodes.command)])
    return nodes.wait(show=False)


JOBS: dict[str, Callable[[], object]] = {
    "function": alone,
    "failure": lambda: lockstep.torchrun(fail, nproc_per_node=2, show=False, may_fail=True),
    "World": in_world,
    "reserve": lambda: lockstep.torchrun(add, nproc_per_node=2),
    "trace": lambda: alone(trace=True),
    "nodes": lambda: alone(on=agents()),
}


class Watched:
    """Runs a job and calls `at` with each line of Lockstep's before it is run."""

    def __init__(self, at: Callable[[Line], None]):
        self._at = at

    def run(self, job: Callable[[], object]) -> None:
        sys.settrace(self._enter)
        try:
            job()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(LIBRARY) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self._at((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def lines(job: Callable[[], object]) -> list[Line]:
    seen: dict[Line, None] = {}
    Watched(lambda line: seen.setdefault(line)).run(job)
    return sorted(seen)


def interrupt(job: Callable[[], object], where: Line) -> str:
    """Send Ctrl-C as `where` is reached for the first time; returns what is wrong with the end."""
    sent = False

    def at(line: Line) -> None:
        nonlocal sent
        if line == where and not sent:
            sent = True
            signal.raise_signal(signal.SIGINT)

    try:
        Watched(at).run(job)
    except KeyboardInterrupt:
        return ""
    except BaseException as error:
        return f"ended with {type(error).__name__}: {error}"
    return "went on as if nothing had been" if sent else ""


def here() -> tuple[int, int]:
    """Count the descriptors and child processes that there are."""
    return len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))


def settled(before: tuple[int, int]) -> tuple[int, int]:
    """The same, once there are no more than before, or after a while."""
    until = time.monotonic() + SETTLE
    while any(now > then for now, then in zip(here(), before, strict=True)):
        gc.collect()
        if time.monotonic() > until:
            break
    return here()


def wait_for_reserve() -> None:
    until = time.monotonic() + SETTLE
    while not kept.pids and time.monotonic() < until:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--every", type=int, default=1, help="take one line of as many")
    asked = parser.parse_args()
    job = JOBS[asked.job]
    if asked.job == "reserve":
        lockstep.reserve("between")
    report, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    for _ in range(2):
        job()
    reached, found = lines(job)[:: asked.every], 0
    wait_for_reserve()
    before = here()
    for where in reached:
        faulthandler.dump_traceback_later(STUCK, exit=True)
        said = [interrupt(job, where)]
        try:
            job()
        except Exception as error:
            said.append(f"the next job: {type(error).__name__}: {error}")
            agents.cache_clear()
        if asked.job == "reserve":
            wait_for_reserve()
        after = settled(before)
        said += [
            f"left {now - then} {what}"
            for what, now, then in zip(("descriptors", "processes"), after, before, strict=True)
            if now > then
        ]
        if any(said):
            found += 1
            file, line = where
            print(f"{file}:{line}: {', '.join(filter(None, said))}", file=report, flush=True)
            before = after
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(reached)} lines, {found} with something wrong", file=report)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
