"""Does PyTorch's torchrun get a job going again, a rank of which was killed?

A plain script: ten all-reduces, after the seventh of which rank 1 kills itself, in the first
attempt only. torchrun may start it anew once. It does so with the store that it has itself, which
still has the addresses of the dead; and with a new one for each attempt, if a variable says so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from .experiment import Experiment, Result, device_name, end
from .faults import WORDS, text_of

CALLS, AFTER, CULPRIT = 10, 7, 1  # which rank, after how many calls of how many
LIMIT = 40.0  # seconds for a job
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def reducing(folder: str, backend: str) -> None:
    """Make the calls, and write down each that has come to its end."""
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(Path(folder, f"attempt{attempt}-rank{rank}"), "w", buffering=1) as file:
        try:
            _reduce(backend, rank, attempt, lambda: file.write("call\n"))
        except Exception as error:
            words = f"{type(error).__name__}: {str(error)[:WORDS]}"
            file.write(json.dumps(words) + "\n")
            raise


def _reduce(backend: str, rank: int, attempt: int, note: Any) -> None:
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)
    for done in range(1, CALLS + 1):
        dist.all_reduce(torch.ones(4, device=device))
        if backend == "nccl":
            torch.cuda.synchronize()
        note()
        if (rank, attempt, done) == (CULPRIT, 0, AFTER):
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


# ── Beside the ranks ─────────────────────────────────────────────────────────────────────────


def job(backend: str, environment: dict[str, str], nproc: int, limit: float = LIMIT) -> Any:
    """Run the script, and return how torchrun ended, and how far each rank came in each attempt."""
    with tempfile.TemporaryDirectory(prefix="lockstep-restart-") as name:
        said = Path(name, "said")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={nproc}", "--max-restarts=1", "-m", __name__, name, backend]
        variables = {key: value for key, value in os.environ.items() if key not in OWN_STORE}
        variables |= {"OMP_NUM_THREADS": "1", **environment}
        began = time.monotonic()
        with open(said, "wb") as file:
            agent = subprocess.Popen(command, env=variables, stdout=file, stderr=file)
        try:
            code = agent.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            took = time.monotonic() - began
            attempts = [_attempt(Path(name), number, nproc) for number in (0, 1)]
            text = text_of(said, frames=False)
            end(agent)
    return {
        "backend": backend,
        "environment": environment,
        "exit code": code,
        "seconds": took if code is not None else None,
        "attempts": [one for one in attempts if one],
        "said": text,
    }


def _attempt(folder: Path, number: int, nproc: int) -> list[dict[str, Any]]:
    """Return how many calls each rank has made, and what it was told, if anything."""
    rows = []
    for rank in range(nproc):
        file = folder / f"attempt{number}-rank{rank}"
        if file.exists():
            lines = file.read_text(errors="replace").splitlines()
            told = [json.loads(line) for line in lines if line != "call"]
            rows.append({"rank": rank, "calls": lines.count("call"), "told": "".join(told)})
    return rows


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    content: dict[str, Any] = {
        "world_size": nproc,
        "unit": "seconds of the whole job; null: not at its end within the limit",
        "limit": LIMIT,
        "calls": CALLS,
        "killed_after": AFTER,
        "jobs": [],
    }
    file = f"faults/restart-{device_name(machine)}-x{nproc}.json"
    what = f"torchrun starts {nproc} ranks anew after one was killed: with its own store, a new one"
    for backend in ["nccl", "gloo"] if machine.gpus else ["gloo"]:
        for environment in ({}, OWN_STORE):
            content["jobs"].append(job(backend, environment, nproc))
            yield Result(file, what, content)


EXPERIMENT = Experiment(
    "restart",
    "whether PyTorch's torchrun gets a job going again, a rank of which was killed",
    minutes=2,
    run=run,
    least=2,
    ranks=2,
    gpus=False,
    writes={
        "faults/restart-*.json": (
            *("world_size", "unit", "limit", "calls", "killed_after", "jobs"),
        )
    },
)


if __name__ == "__main__":  # a rank
    reducing(*sys.argv[1:])
