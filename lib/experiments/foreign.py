"""Traces of programs of others: two steps of a script that knows nothing of it.

`python -m experiments 'foreign/FOLDER/train.py --steps 9' -n 2` runs this script by torchrun. A
step ends where its optimizer has taken one; the first ones are left out.
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
from lockstep.base.machine import Machine
from torch.optim.optimizer import register_optimizer_step_post_hook

from .experiment import CannotRecord, Experiment, ExperimentFailed, Result, by_torchrun

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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a DDP model that is alive when Python ends aborts some ranks, without this too


def run(machine: Machine, nproc: int) -> list[Result]:
    """Raises CannotRecord: without a program there is nothing to record."""
    raise CannotRecord("foreign records a program of others: say 'foreign/SCRIPT ARGUMENTS...'")


def of_program(program: str, machine: Machine, nproc: int) -> list[Result]:
    """Record this script, with its arguments. Raises CannotRecord where there is none, and
    ExperimentFailed where it fails or takes too few steps."""
    name, *arguments = shlex.split(program)
    script = Path(name).resolve()
    if not script.is_file():
        raise CannotRecord(f"there is no script {name}")
    with tempfile.TemporaryDirectory() as folder:
        by_torchrun(__name__, folder, script, *arguments, nproc=nproc)
        files = sorted(Path(folder).iterdir())
        content = {f"{file.name}.gz": json.loads(file.read_bytes()) for file in files}
    if len(content) < nproc:
        steps = SKIPPED + RECORDED
        raise ExperimentFailed(f"{script.name} takes fewer than {steps} steps of an optimizer")
    what = f"{RECORDED} steps of {shlex.join([script.name, *arguments])}"
    return [Result(f"traces/foreign/{script.parent.name}-{script.stem}-x{nproc}", what, content)]


EXPERIMENT = Experiment(
    "foreign",
    "traces of a program of others: 'foreign/SCRIPT ARGUMENTS...'",
    minutes=1,
    run=run,
    gpus=False,
    part=of_program,
    writes={"traces/foreign/*": ("rank*.json.gz",)},
)


if __name__ == "__main__":  # a rank
    profiled(*sys.argv[1:])
