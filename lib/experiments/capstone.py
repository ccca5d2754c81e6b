"""The capstone's programs on GPUs: their cards, by turns, and the mended one with each fault alone.

Beside them a trace of the mended program, and of each of its operations those whose results it
needs: how much could be hidden is computed from both.
"""

from __future__ import annotations

import json
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep import capstone
from lockstep.base.machine import Machine
from lockstep.launch import torchrun

from .experiment import Experiment, Result, device_name

TURNS, STEPS = 3, 3
WHAT = "a step of the capstone's programs, large: slow and mended by turns, and each fault alone"
NUMBERS = ("step", "best", "least", "bound", "achieved", "hidden", "exposed", "calls", "megabytes")


def card(program: Path, nproc: int) -> dict[str, Any]:
    """A program's card as plain values, or what went wrong."""
    began = time.perf_counter()
    try:
        found = capstone.run(program, nproc=nproc, steps=STEPS)
    except Exception:
        traceback.print_exc()
        return {"failed": traceback.format_exc()[-1500:]}
    finally:
        print(f"{program.name}: {time.perf_counter() - began:.1f} s", flush=True)
    numbers = {name: getattr(found, name) for name in NUMBERS}
    return {"right": found.right, "off": found.off, **numbers, "said": list(found.said)}


def observed(program: str) -> tuple[dict[str, Any], list[list[int]]]:
    """On a rank: a trace of two steps, and what each operation needs."""
    import runpy

    import torch
    from lockstep.course.capstone.needs import Observed

    device = torch.device("cuda", torch.cuda.current_device())
    train = runpy.run_path(program)["train"]
    with torch.compiler.set_stance("force_eager"):
        train(device, 2)
        with Observed() as seen, torch.profiler.profile() as profiler:
            train(device, 2)
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        trace = json.loads(Path(folder, "trace.json").read_bytes())
    return trace, [sorted(one) for one in seen.needs]


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    name = f"{device_name(machine)}-x{nproc}"
    ways: dict[str, Any] = {"env": {"CAPSTONE_SIZE": "large"}, "show": False, "may_fail": True}
    job = torchrun(observed, str(capstone.MENDED), nproc_per_node=nproc, timeout=60, **ways)
    if job.ok:
        what = "two steps of the capstone's mended program, large, its operations numbered"
        traces = {f"rank{rank}.json.gz": one for rank, (one, _) in enumerate(job.results)}
        yield Result(f"traces/capstone-{name}", what, traces)
        what = f"of each operation in traces/capstone-{name} those whose results it needs, by rank"
        needs = {str(rank): one for rank, (_, one) in enumerate(job.results)}
        yield Result(f"capstone/needs-{name}.json", what, needs)
    else:
        print(job.report, flush=True)
    content: dict[str, Any] = {"ranks": nproc, "size": "large", "steps": STEPS, "turns": []}
    for _ in range(TURNS):
        turn = {"slow": card(capstone.SLOW, nproc), "mended": card(capstone.MENDED, nproc)}
        content["turns"].append(turn)
        yield Result(f"capstone/{name}.json", WHAT, content)
    content["faults"] = {}
    with tempfile.TemporaryDirectory() as folder:
        for fault in capstone.FAULTS:
            program = Path(folder, "fault.py")
            program.write_text(capstone.with_faults([fault]))
            content["faults"][fault] = card(program, nproc)
            yield Result(f"capstone/{name}.json", WHAT, content)


EXPERIMENT = Experiment(
    "capstone",
    "the capstone's programs on GPUs: a step, what it hides, and what each fault costs",
    minutes=3,
    run=run,
    least=2,
    most=4,
    writes={
        "capstone/[!n]*.json": ("ranks", "size", "steps", "turns", "faults"),
        "capstone/needs-*.json": ("[0-9]",),
        "traces/capstone-*": ("rank*.json.gz",),
    },
)
