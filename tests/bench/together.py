"""A class at once: N real kernels on this machine, each with ranks of its own.

    python tests/bench/together.py 30

All kernels run the same cell of 4 ranks at the same time: first with everything to be started, then
again. Prints how long it took until the last had its result, the memory of all (PSS: a page that n
processes share counts once), and whether anybody saw another's ranks.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
from jupyter_client.manager import KernelManager
from lockstep.course.execute import memory
from lockstep.words import binary

PATIENCE = 600
LOAD = "%load_ext lockstep\nimport lockstep"
CELL = """\
%%torchrun --nproc-per-node 4 --backend gloo --into job
import torch
import torch.distributed as dist

x = torch.full((1,), {mark}.0)
dist.all_reduce(x)
x.item()"""
TELL = "print('sums', sorted(set(job.results)), 'of', len(job.results))"


class Learner:
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

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def together(pool: ThreadPoolExecutor, learners: list[Learner], what: str, code: str) -> None:
    """All run a cell at once; prints how long they took."""
    began = time.perf_counter()
    took = list(pool.map(lambda one: one.run(code.format(mark=one.mark))[0], learners))
    print(
        f"{what}: all after {time.perf_counter() - began:.1f} s; "
        f"one takes {statistics.median(took):.1f} s, {min(took):.1f} to {max(took):.1f} s",
        flush=True,
    )


def main(count: int) -> int:
    print(f"{count} kernels, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    with tempfile.TemporaryDirectory(prefix="ls-") as folder, ThreadPoolExecutor(count) as pool:
        free = psutil.virtual_memory().available
        began = time.perf_counter()
        learners = list(pool.map(lambda number: Learner(number, folder), range(count)))
        try:
            list(pool.map(Learner.ready, learners))
            print(f"kernels: all ready after {time.perf_counter() - began:.1f} s", flush=True)
            together(pool, learners, "import lockstep", LOAD)
            together(pool, learners, "first cell of 4 ranks", CELL)
            together(pool, learners, "the same again", CELL)
            together(pool, learners, "and again", CELL)
            used = [memory(one.manager.provisioner.pid) for one in learners]
            taken = free - psutil.virtual_memory().available
            print(
                f"memory: {binary(sum(used))} of all, {binary(int(statistics.median(used)))} a "
                f"kernel with its warm parent; the machine has {binary(taken)} less",
                flush=True,
            )
            strangers = 0
            for one in learners:
                said = one.run(TELL)[1].strip()
                strangers += said != f"sums [{4.0 * one.mark}] of 4"
            print(f"kernels that saw anything but their own 4 ranks: {strangers}")
        finally:
            list(pool.map(Learner.end, learners))
    return int(strangers > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
