"""What `launch.py` runs inside of ranks.

A rank imports this module to find its functions, so nothing large may be imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

RANKS = 4
PATIENCE = 300  # seconds without a word after which something hangs
LINES = 100  # that each rank of the talkative cell prints


def reduce() -> list[float]:
    import torch
    import torch.distributed as dist

    x = torch.arange(4.0) + dist.get_rank()
    dist.all_reduce(x)
    return x.tolist()


def alternate(blocks: int, calls: int) -> tuple[list[float], list[float]]:
    """Microseconds a call, one value a block: with the record, and without it, by turns."""
    import torch
    import torch.distributed as dist
    from lockstep.launch.worker import hooks

    own = hooks._recorder
    x = torch.zeros(4)
    recorded: list[float] = []
    bare: list[float] = []
    for block in range(2 * blocks):
        hooks._recorder = None if block % 2 else own
        dist.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(x)
        seconds = time.perf_counter() - began
        (bare if block % 2 else recorded).append(seconds / calls * 1e6)
    hooks._recorder = own
    return recorded, bare


@contextlib.contextmanager
def waiting_ranks() -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """A cell whose ranks reduce and then wait, and a function that waits for their process ids.

    The ranks go on when the block is left.
    """
    with tempfile.TemporaryDirectory() as directory:
        gate = Path(directory, "gate")
        gate.touch()

        def pids() -> list[int]:
            end = time.monotonic() + PATIENCE
            while len(found := list(Path(directory).glob("rank-*"))) < RANKS:
                if time.monotonic() > end:
                    raise TimeoutError(f"only {len(found)} ranks came up")
                time.sleep(0.01)
            return [int(path.name.removeprefix("rank-")) for path in found]

        cell = f"""\
import fcntl, os, pathlib, torch, torch.distributed as dist
dist.all_reduce(torch.ones(4))
gate = open({str(gate)!r})
pathlib.Path({directory!r}, f"rank-{{os.getpid()}}").touch()
fcntl.flock(gate, fcntl.LOCK_SH)
"""
        with gate.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield cell, pids


def talkative_cell(number: int) -> str:
    """A cell whose ranks print many lines, and whose result belongs to this notebook alone."""
    return f"""\
%%torchrun -n {RANKS} --into job
import torch, torch.distributed as dist
x = torch.tensor([{number}, dist.get_rank()])
dist.all_reduce(x)
for line in range({LINES}):
    print("notebook {number} rank", dist.get_rank(), "line", line)
x.tolist()
"""


def check_of_talkative_cell(number: int) -> str:
    """Says which lines are lost, and which have come that the cell did not print."""
    return f"""\
assert job.results == [[{number * RANKS}, {sum(range(RANKS))}]] * {RANKS}, job.results
for rank in range({RANKS}):
    expected = [f"notebook {number} rank {{rank}} line {{line}}" for line in range({LINES})]
    came = job.output(rank).splitlines()
    strange = [line for line in came if line not in expected]
    if [line for line in came if line in expected] != expected:
        print("LOST or out of order on rank", rank)
    if strange:
        print("strange:", *strange)
"""
