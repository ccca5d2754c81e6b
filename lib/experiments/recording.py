"""What Lockstep's record of calls costs a program: the same one by torchrun and by Lockstep.

Both run at the same time and take turns, a few milliseconds each: from one start of a process to
the next a call may take half as long again, whoever has started it. Who waits for his turn has
nothing on the GPU: it would share its time with the other's work.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun
from torch import nn

from .experiment import Experiment, Result, by_torchrun, device_name, end

PAIRS = 5  # of processes
TURNS = 15  # of each pair
CALLS, STEPS = 200, 5  # of a turn
LONGEST = 120  # seconds that one waits for the other
Seconds = dict[str, list[float]]


class Turns:
    """Turns of two jobs: a file holds the number of the turn, which are one job's and the other's
    alternately. All ranks of a job take theirs together."""

    def __init__(self, file: str, own: int, x: torch.Tensor):
        self._file, self._next, self._x = Path(file), own, x

    def seconds(self, work: Callable[[], Any], times: int) -> list[float]:
        """Return the seconds of one of `times` calls, on average, in each turn but the first."""
        found = []
        for _ in range(TURNS + 1):
            self._wait()
            self._meet()
            began = time.perf_counter()
            for _ in range(times):
                work()
            if times == STEPS:
                _wait()
            found.append((time.perf_counter() - began) / times)
            self._meet()
            if dist.get_rank() == 0:
                self._file.write_text(str(self._next + 1))
            self._next += 2
        return found[1:]

    def _meet(self) -> None:
        dist.all_reduce(self._x)
        _wait()

    def _wait(self) -> None:
        until = time.monotonic() + LONGEST
        while self._file.read_text() != str(self._next):
            if time.monotonic() > until:
                raise TimeoutError("the other job does not take its turn")
            time.sleep(0.001)


def measured(file: str, own: int) -> Seconds:
    """Return the seconds of a call, as the host sees it, or of a step, by program and turn.

    To run on a rank that has no process group.
    """
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    small, large = (torch.ones(size, device=device) for size in (1, 1 << 18))
    turns = Turns(file, own, torch.ones(1, device=device))
    found = {
        "all_reduce of 4 B": turns.seconds(lambda: dist.all_reduce(small), CALLS),
        "all_reduce of 1 MB": turns.seconds(lambda: dist.all_reduce(large), CALLS),
    }
    if on_gpus:
        steps = {
            "DDP step, 24 layers of 512²": _ddp(_layers(24, 512, None, device)),
            "DDP step, 16 layers of 4096², bfloat16": _ddp(
                _layers(16, 4096, torch.bfloat16, device)
            ),
            "FSDP2 step, 24 layers of 1024²": _sharded(_layers(24, 1024, None, device)),
        }
        found["all_reduce of 4 B and synchronize"] = turns.seconds(lambda: _and_wait(small), CALLS)
        found |= {name: turns.seconds(_step(model), STEPS) for name, model in steps.items()}
    dist.destroy_process_group()
    return found


def _and_wait(x: torch.Tensor) -> None:
    dist.all_reduce(x)
    torch.cuda.synchronize()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _layers(count: int, width: int, dtype: Any, device: torch.device) -> nn.Module:
    layers = [nn.Linear(width, width, dtype=dtype, device=device) for _ in range(count)]
    return nn.Sequential(*layers)


def _ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)


def _sharded(model: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def _step(model: nn.Module) -> Callable[[], None]:
    """A forward and a backward pass."""
    weight = next(model.parameters())
    x = torch.ones(64, weight.shape[-1], dtype=weight.dtype, device=weight.device)
    return lambda: model(x).sum().backward()


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    """Yield the seconds of all pairs so far, of rank 0."""
    pairs: dict[str, list[Seconds]] = {"torchrun": [], "Lockstep": []}
    where = f"{device_name(machine)}-x{nproc}"
    what = f"the same calls and steps by torchrun and by Lockstep, by turns, on {nproc} ranks"
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory() as folder:
            turn, plain, own = (str(Path(folder, name)) for name in ("turn", "plain", "own"))
            Path(turn).write_text("0")
            module = [sys.executable, "-m", "experiments.recording"]
            job = subprocess.Popen([*module, turn, own, str(nproc)])
            try:
                by_torchrun("experiments.recording", turn, plain, nproc=nproc)
                job.wait(LONGEST)
            finally:
                end(job)
            for name, file in (("torchrun", plain), ("Lockstep", own)):
                pairs[name].append(json.loads(Path(file).read_text()))
        yield Result(f"recording/{where}.json", what, {"unit": "seconds, of rank 0", **pairs})


def compared(found: dict[str, list[Seconds]]) -> dict[str, tuple[float, float, float]]:
    """By program: the medians of torchrun and Lockstep, and the median of their ratios by turn."""
    rows = {}
    for name in found["torchrun"][0]:
        plain, own = (
            [s for pair in found[way] for s in pair[name]] for way in ("torchrun", "Lockstep")
        )
        ratios = [one / other for one, other in zip(own, plain, strict=True)]
        rows[name] = statistics.median(plain), statistics.median(own), statistics.median(ratios)
    return rows


EXPERIMENT = Experiment(
    "recording",
    "what the record of calls costs a program, beside torchrun",
    minutes=4,
    run=run,
    gpus=False,
    writes={"recording/*.json": ("unit", "torchrun", "Lockstep")},
)


def main(turn: str, file: str, nproc: str = "") -> None:
    """Run as a rank of torchrun, or start the ranks of Lockstep; write what rank 0 has found."""
    if nproc:
        job = torchrun(measured, turn, 1, nproc_per_node=int(nproc), init=False, show=False)
        Path(file).write_text(json.dumps(job[0]))
    else:
        found = measured(turn, 0)
        if os.environ["RANK"] == "0":
            Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
