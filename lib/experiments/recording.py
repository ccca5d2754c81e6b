"""What Lockstep's record of calls costs a program: the same one by torchrun and by Lockstep.

They run at the same time and take turns, a few milliseconds each, on the same cores: from one start
of a process to the next a call may take half as long again, whoever has started it. In each round
the order is drawn anew: who goes after whom is worth a fifth on two cores. torchrun runs it twice;
what those two differ by is noise. Who waits for his turn has nothing on the GPU, where it would
share its time with the others' work, and runs nothing on the host.
"""

from __future__ import annotations

import json
import os
import random
import select
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

from .experiment import Experiment, ExperimentFailed, Result, by_torchrun, device_name, end, join

JOBS = ("torchrun", "torchrun again", "Lockstep")
DONE = "done"  # the pipe that says that a job has ended its turn
STARTS = 8  # of all jobs
TURNS = 16  # of each job and program
CALLS, STEPS = 200, 3  # of a turn
CORES = 4  # of a rank, where there are as many for each
LONGEST = 120  # seconds of a turn, with the start of all jobs
Seconds = dict[str, list[float]]


class Turns:
    """Turns of a job: each rank waits for a byte in the job's pipe, and rank 0 says when all are
    done."""

    def __init__(self, folder: str, job: int, number: int, x: torch.Tensor):
        self._number, self._x = number, x
        self._own = os.open(Path(folder, str(job)), os.O_RDWR)
        self._done = os.open(Path(folder, DONE), os.O_RDWR)

    def seconds(self, work: Callable[[], Any], times: int) -> list[float]:
        """Return the seconds of one of `times` calls, on average, in each turn but the first."""
        found = []
        for _ in range(self._number + 1):
            _read(self._own)
            self._meet()
            began = time.perf_counter()
            for _ in range(times):
                work()
            if times == STEPS:
                _wait()
            found.append((time.perf_counter() - began) / times)
            self._meet()
            if dist.get_rank() == 0:
                os.write(self._done, b".")
        return found[1:]

    def _meet(self) -> None:
        dist.all_reduce(self._x)
        _wait()


def _read(pipe: int) -> None:
    """Take a byte out of a pipe, when there is one."""
    if not select.select([pipe], [], [], LONGEST)[0]:
        raise ExperimentFailed("another job does not take its turn, or does not end it")
    os.read(pipe, 1)


def measured(folder: str, job: int, number: int) -> Seconds:
    """Return the seconds of a call, as the host sees it, or of a step, by program and turn, of
    which there are so many.

    To run on a rank that has no process group.
    """
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    _stay_on(rank * CORES, ranks * CORES)
    device = join()
    small, large = (torch.ones(size, device=device) for size in (1, 1 << 18))
    turns = Turns(folder, job, number, torch.ones(1, device=device))
    found = {
        "all_reduce of 4 B": turns.seconds(lambda: dist.all_reduce(small), CALLS),
        "all_reduce of 1 MB": turns.seconds(lambda: dist.all_reduce(large), CALLS // 4),
    }
    if device.type == "cuda":
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


def _stay_on(first: int, needed: int) -> None:
    """Keep this process, and all threads it starts, on `CORES` of its cores if it has enough."""
    if sys.platform == "linux" and len(cores := sorted(os.sched_getaffinity(0))) >= needed:
        os.sched_setaffinity(0, cores[first : first + CORES])


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
    """Yield the seconds of all starts so far, of rank 0."""
    found: dict[str, list[Seconds]] = {job: [] for job in JOBS}
    where = f"{device_name(machine)}-x{nproc}"
    what = f"the same calls and steps by torchrun and by Lockstep, by turns, on {nproc} ranks"
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as folder:
            seconds = by_turns(folder, nproc, TURNS, programs=6 if machine.gpus else 2)
        for job, of_job in zip(JOBS, seconds, strict=True):
            found[job].append(of_job)
        yield Result(f"recording/{where}.json", what, {"unit": "seconds, of rank 0", **found})


def by_turns(folder: str, nproc: int, turns: int, programs: int) -> list[Seconds]:
    """Start the jobs, and give each its turns of all programs; return what each has found.

    folder: an empty one. programs: of `measured`, 2 on the CPU and 6 on GPUs.
    """
    paths = [Path(folder, name) for name in (*map(str, range(len(JOBS))), DONE)]
    for path in paths:
        os.mkfifo(path)
    *pipes, done = (os.open(path, os.O_RDWR) for path in paths)
    module = [sys.executable, "-m", "experiments.recording", folder]
    jobs = [
        subprocess.Popen([*module, str(job), str(turns), str(nproc)]) for job in range(len(JOBS))
    ]
    try:
        for _ in range(programs * (turns + 1)):
            for pipe in random.sample(pipes, len(pipes)):
                os.write(pipe, bytes(nproc))
                _read(done)
        for process in jobs:
            process.wait(LONGEST)
    finally:
        for process in jobs:
            end(process)
        for pipe in (*pipes, done):
            os.close(pipe)
    return [json.loads(Path(folder, name).read_text()) for name in JOBS]


def compared(found: dict[str, list[Seconds]]) -> dict[str, tuple[float, float, float, float]]:
    """By program: the medians of torchrun and Lockstep, and by turn the medians of the ratios of
    Lockstep, and of torchrun again, to torchrun."""
    rows = {}
    for name in found[JOBS[0]][0]:
        plain, again, own = ([s for start in found[job] for s in start[name]] for job in JOBS)
        more, noise = (
            statistics.median(a / b for a, b in zip(other, plain, strict=True))
            for other in (own, again)
        )
        rows[name] = statistics.median(plain), statistics.median(own), more, noise
    return rows


EXPERIMENT = Experiment(
    "recording",
    "what the record of calls costs a program, beside torchrun",
    minutes=8,
    run=run,
    gpus=False,
    writes={"recording/*.json": ("unit", *JOBS)},
)


def main(folder: str, job: str, turns: str, nproc: str = "") -> None:
    """Start the ranks of a job, or run as one of torchrun's; write what rank 0 has found."""
    name, what = JOBS[int(job)], (folder, int(job), int(turns))
    if nproc and name != "Lockstep":
        by_torchrun("experiments.recording", *what, nproc=int(nproc))
    elif nproc:
        ran = torchrun(measured, *what, nproc_per_node=int(nproc), init=False, show=False)
        Path(folder, name).write_text(json.dumps(ran[0]))
    else:
        found = measured(*what)
        if os.environ["RANK"] == "0":
            Path(folder, name).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
