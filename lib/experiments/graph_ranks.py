"""CUDA graphs with NCCL's kernels in them: what ranks do that replay together, or do not.

Each case is a job of PyTorch's own torchrun: Lockstep itself would end some of them, and say why. A
rank writes down when it has come how far. One that has come to its end stays until all have, or
until `LIMIT` seconds are over. One that has not leaves then, and its stack says where it waited.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from .experiment import Experiment, Result, by_torchrun, device_name, join_nccl

LATE = 0.3  # seconds that rank 1 comes late to a replay
TIME_OUT = 3  # seconds, of the process group: its watchdog then ends a rank that waits
LIMIT = 10  # seconds, from the case's begin
ENVIRONMENT = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}  # the watchdog waits for its dump, else
END = "came to its end"
Values = dict[str, Any]


class Notes:
    """Notes of a rank in files of its own, line by line: it may never come to its end."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, rank = Path(folder), dist.get_rank()
        self._file = self.folder / f"rank{rank}.jsonl"
        self._began = time.perf_counter()
        stack = os.open(self.folder / f"rank{rank}.stack", os.O_WRONLY | os.O_CREAT)
        faulthandler.dump_traceback_later(LIMIT, file=stack, exit=True)

    def mark(self, what: str, **more: Any) -> None:
        seconds = time.perf_counter() - self._began
        with self._file.open("a") as file:
            file.write(json.dumps({"what": what, "seconds": seconds, **more}) + "\n")

    def stay(self, ranks: int) -> None:
        """Stay until all have come to their end: one that leaves early would change the others'."""
        self.mark(END)
        while sum(END in file.read_text() for file in self.folder.glob("*.jsonl")) < ranks:
            time.sleep(0.1)


def graph_of(work: Callable[[], None]) -> Any:
    """Return a graph of it, captured after a call on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def together(notes: Notes) -> None:
    """All capture the same; rank 1 replays late."""
    x = torch.full((1024,), 1.0 + dist.get_rank(), device="cuda")

    def work() -> None:
        for _ in range(4):
            dist.all_reduce(x)
            x.div_(dist.get_world_size())

    graph = graph_of(work)
    graph.replay()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        time.sleep(LATE)
    notes.mark("before the replay")
    graph.replay()
    notes.mark("replay() has returned")
    torch.cuda.synchronize()
    notes.mark("synchronised", x=x[0].item())
    del graph


def one_more(notes: Notes, captured: bool) -> None:
    """Rank 1 has an all-reduce more than the others."""
    x = torch.ones(1024, device="cuda")

    def work() -> None:
        for _ in range(4 + (dist.get_rank() == 1)):
            dist.all_reduce(x)

    if captured:
        graph_of(work).replay()
    else:
        work()
    notes.mark("launched")
    torch.cuda.synchronize()
    notes.mark("synchronised", x=x[0].item())


def swapped(notes: Notes) -> None:
    """Rank 1 has captured its two all-reduces in the other order."""
    x, y = torch.full((1024,), 1.0, device="cuda"), torch.full((1024,), 10.0, device="cuda")
    both = [y, x] if dist.get_rank() == 1 else [x, y]

    def work() -> None:
        for one in both:
            dist.all_reduce(one)

    graph_of(work).replay()
    torch.cuda.synchronize()
    notes.mark("synchronised", x=x[0].item(), y=y[0].item())


def half(notes: Notes) -> None:
    """Rank 1 reduces half as much as the others."""
    x = torch.full((1 << 20,), 1.0, device="cuda")
    part = x[: len(x) // 2] if dist.get_rank() == 1 else x
    graph_of(lambda: dist.all_reduce(part)).replay()
    notes.mark("launched")
    torch.cuda.synchronize()
    notes.mark("synchronised", first=x[0].item(), last=x[-1].item())


def destroyed(notes: Notes, graph: str) -> None:
    """The process group goes while the graph is there, or after it."""
    x = torch.ones(1024, device="cuda")
    held = graph_of(lambda: dist.all_reduce(x))
    held.replay()
    torch.cuda.synchronize()
    if graph == "reset":
        held.reset()
    elif graph == "deleted":
        del held
        gc.collect()
    notes.mark("before destroy_process_group")
    dist.destroy_process_group()
    notes.mark("destroyed")


CASES: dict[str, tuple[Callable[..., None], Values]] = {
    "rank 1 has one more, eager": (one_more, {"captured": False}),
    "rank 1 has one more, captured": (one_more, {"captured": True}),
    "process group destroyed, graph alive": (destroyed, {"graph": "alive"}),
    "process group destroyed, graph reset": (destroyed, {"graph": "reset"}),
    "process group destroyed, graph deleted": (destroyed, {"graph": "deleted"}),
    "rank 1 has captured another order": (swapped, {}),
    "rank 1 has captured half of the elements": (half, {}),
    "rank 1 replays late": (together, {}),
}


def on_rank(folder: str, name: str) -> None:
    """Run on each rank of torchrun."""
    join_nccl(timeout=timedelta(seconds=TIME_OUT))
    dist.all_reduce(torch.ones(8, device="cuda"))
    torch.cuda.synchronize()
    ranks, notes = dist.get_world_size(), Notes(folder)
    case, more = CASES[name]
    case(notes, **more)
    notes.stay(ranks)
    os._exit(0)


def waits_in(stacks: str) -> list[str]:
    """Return the functions in which the thread of `on_rank` stood, the innermost first."""
    mine = [one for one in stacks.split("\n\n") if " in on_rank" in one]
    return re.findall(r"line \d+ in (\S+)", mine[0])[:4] if mine else []


def outcome(name: str, nproc: int) -> list[Values]:
    """Return how far each rank came, and in which calls it waited at the limit.

    One that has neither come to its end nor waited then was ended before, by the watchdog.
    """
    with tempfile.TemporaryDirectory() as folder:
        by_torchrun(__name__, folder, name, nproc=nproc, environment=ENVIRONMENT, may_fail=True)
        ranks = []
        for rank in range(nproc):
            marks = [json.loads(line) for line in _lines(folder, f"rank{rank}.jsonl")]
            stack = waits_in("\n".join(_lines(folder, f"rank{rank}.stack")))
            ranks.append({"marks": marks, "waits_in": stack})
    return ranks


def _lines(folder: str, file: str) -> list[str]:
    path = Path(folder, file)
    return path.read_text().splitlines() if path.exists() else []


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    file = f"graphs/ranks-{device_name(machine)}-x{nproc}.json"
    what = f"CUDA graphs with NCCL in them on {nproc} ranks: who waits for whom, and where"
    cases: Values = {}
    for name in CASES:
        cases[name] = outcome(name, nproc)
        content = {"late": LATE, "time_out": TIME_OUT, "limit": LIMIT, "cases": dict(cases)}
        yield Result(file, what, content, ENVIRONMENT)


EXPERIMENT = Experiment(
    "graph-ranks",
    "CUDA graphs with NCCL in them: ranks that replay together, or not; who waits where",
    minutes=2,
    run=run,
    least=2,
    writes={
        "graphs/ranks-*.json": ("late", "time_out", "limit", "cases"),
    },
)


if __name__ == "__main__":  # a rank
    on_rank(*sys.argv[1:])
