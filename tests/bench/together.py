"""A class at once: N real kernels on this machine, each with ranks of its own.

    python tests/bench/together.py 30
    python tests/bench/together.py 10 --hub

The second has each kernel in a learner's own server of a JupyterHub, which `make test-hub` installs
(for root each learner is a user of the system). All run the same cell of 4 ranks at the same time:
first with everything to be started, then again, then with ranks that stay. Prints how long it took
until the last had its result, the memory of all with those ranks (PSS: a page that n processes
share counts once), and whether anybody saw another's ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager
from lockstep.author.execute import memory
from lockstep.base.formatting import binary

sys.path.insert(0, str(Path(__file__).parents[1]))
import hub

PATIENCE = 600
LOAD = "%load_ext lockstep\nimport lockstep"
CELL = """\
%%torchrun --nproc-per-node 4 --backend gloo --into job
import torch
import torch.distributed as dist

x = torch.full((1,), {mark}.0)
dist.all_reduce(x)
x.item()"""
STAY = """\
def add(number):
    import torch, torch.distributed as dist
    x = torch.full((1,), number)
    dist.all_reduce(x)
    return x.item()
world = lockstep.World(4)
stayed = world.run(add, {mark}.0)"""
TELL = "print('sums', {*job.results, *stayed.results}, 'of', len(job.results))"


class Kernel:
    """A kernel, and who asks it."""

    def __init__(self, number: int, folder: str):
        self.mark = number + 1
        place = os.path.join(folder, f"k{number}")
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=place)
        self.manager.start_kernel(env={**os.environ, "LOCKSTEP_PROGRESS": "off"})
        self.client = self.manager.client()
        self.client.start_channels()

    def ready(self) -> None:
        self.client.wait_for_ready(PATIENCE)

    def run(self, code: str) -> tuple[float, str]:
        """Seconds, and what was printed. Raises RuntimeError for a cell that failed."""
        printed: list[str] = []

        def hear(message: dict) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            if message["msg_type"] == "error":
                raise RuntimeError(f"kernel {self.mark}: {content['ename']}: {content['evalue']}")

        began = time.perf_counter()
        self.client.execute_interactive(code, timeout=PATIENCE, output_hook=hear)
        return time.perf_counter() - began, "".join(printed)

    def memory(self) -> int:
        return memory(self.manager.provisioner.pid)

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Visitor:
    """A kernel in a server of the hub."""

    def __init__(self, mark: int, learner: hub.Learner):
        self.mark, self.learner = mark, learner

    def run(self, code: str) -> tuple[float, str]:
        reply = self.learner.run(code)
        if reply.error:
            raise RuntimeError(f"kernel {self.mark}: {reply.error}")
        return reply.seconds, reply.text

    def memory(self) -> int:
        return sum(process.memory_full_info().pss for process in self.learner.processes())


@contextlib.contextmanager
def kernels(count: int, pool: ThreadPoolExecutor) -> Iterator[list[Kernel]]:
    with tempfile.TemporaryDirectory(prefix="ls-") as folder:
        learners = list(pool.map(lambda number: Kernel(number, folder), range(count)))
        try:
            list(pool.map(Kernel.ready, learners))
            yield learners
        finally:
            list(pool.map(Kernel.end, learners))


@contextlib.contextmanager
def visitors(count: int) -> Iterator[list[Visitor]]:
    names = [f"learner{number}" for number in range(count)]
    with hub.serving(names) as served:
        yield [Visitor(number + 1, one) for number, one in enumerate(served.come(names))]


@contextlib.contextmanager
def least_free(found: list[int]) -> Iterator[None]:
    """The least memory that the machine has meanwhile, whoever takes it."""
    over = threading.Event()

    def look() -> None:
        least = psutil.virtual_memory().available
        while not over.wait(0.1):
            least = min(least, psutil.virtual_memory().available)
        found.append(least)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def together(
    pool: ThreadPoolExecutor, learners: Sequence[Kernel | Visitor], what: str, code: str
) -> None:
    """All run a cell at once; prints how long they took."""
    began = time.perf_counter()
    took = list(pool.map(lambda one: one.run(code.replace("{mark}", str(one.mark)))[0], learners))
    print(
        f"{what}: all after {time.perf_counter() - began:.1f} s; "
        f"one takes {statistics.median(took):.1f} s, {min(took):.1f} to {max(took):.1f} s",
        flush=True,
    )


def main(count: int, on_hub: bool) -> int:
    print(f"{count} kernels, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    free = psutil.virtual_memory().available
    least: list[int] = []
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(count))
        stack.enter_context(least_free(least))
        learners: Sequence[Kernel | Visitor] = stack.enter_context(
            visitors(count) if on_hub else kernels(count, pool)
        )
        print(f"kernels: all ready after {time.perf_counter() - began:.1f} s", flush=True)
        together(pool, learners, "import lockstep", LOAD)
        together(pool, learners, "first cell of 4 ranks", CELL)
        together(pool, learners, "the same again", CELL)
        together(pool, learners, "and again", CELL)
        together(pool, learners, "4 ranks that stay", STAY)
        used = [one.memory() for one in learners]
        said = [one.run(TELL)[1].strip() for one in learners]
    what = "server, kernel" if on_hub else "kernel"
    print(
        f"memory: {binary(sum(used))} of all, {binary(int(statistics.median(used)))} a learner "
        f"({what}, warm parent, 4 ranks); at most {binary(free - least[0])} less were free"
    )
    own = [f"sums {{{4.0 * one.mark}}} of 4" for one in learners]
    strangers = sum(one != right for one, right in zip(said, own, strict=True))
    print(f"kernels that saw anything but their own 4 ranks: {strangers}")
    return int(strangers > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A class at once.")
    parser.add_argument("count", type=int, nargs="?", default=30)
    parser.add_argument("--hub", action="store_true", help="on a JupyterHub")
    given = parser.parse_args()
    if given.hub and (reason := hub.why_not()):
        sys.exit(reason)
    sys.exit(main(given.count, given.hub))
