"""Traces of programs of others: some steps of a script that knows nothing of it.

`python -m experiments.foreign FOLDER NAME RANKS SCRIPT ARGUMENTS...` runs it by torchrun, and
writes `traces/NAME` into the folder: the steps that its optimizer takes, but the first ones.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import sys
import tempfile
from pathlib import Path

import torch
from lockstep.base import machine as machines
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import manifest
from .experiment import Result, by_torchrun

SKIPPED, RECORDED = 4, 2  # steps


def profiled(folder: str, script: str, *arguments: str) -> None:
    """Run the script on a rank of torchrun; write its trace into `folder`."""
    rank = os.environ["RANK"]
    profiler = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED, repeat=1),
        on_trace_ready=lambda it: it.export_chrome_trace(f"{folder}/rank{rank}.json"),
    )
    register_optimizer_step_post_hook(lambda *_: profiler.step())
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with profiler:
        runpy.run_path(script, run_name="__main__")


def main(folder: str, name: str, ranks: str, script: str, *arguments: str) -> None:
    """Record the script on so many ranks."""
    with tempfile.TemporaryDirectory() as traces:
        by_torchrun("experiments.foreign", traces, script, *arguments, nproc=int(ranks))
        files = sorted(Path(traces).iterdir())
        content = {f"{file.name}.gz": json.loads(file.read_bytes()) for file in files}
    called = shlex.join([Path(script).name, *arguments])
    result = Result(f"traces/{name}", f"{RECORDED} steps of {called}", content)
    command = f"python -m experiments.foreign data {name} {ranks} {called}"
    entry = manifest.entry(
        result, "foreign", int(ranks), machines.probe(), command, dict(os.environ)
    )
    manifest.write(Path(folder), [result], [entry])


if __name__ == "__main__":
    if "RANK" in os.environ:
        profiled(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
