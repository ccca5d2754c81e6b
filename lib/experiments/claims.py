"""What claims of the labs say on this machine's GPU: `lockstep.claim` shows it where a lab itself
can only compute the verdict, by the model of a virtual GPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.base.machine import Machine

from .experiment import CannotRecord, Experiment, Result, device_name

NUMBERS = ("04", "06")  # the labs whose programs run on the GPU, where there is one
LIMIT = 240.0  # seconds for a notebook


def run(machine: Machine, _: int) -> Iterator[Result]:
    """Yield the claims that solutions have measured on the GPU, by sentence."""
    try:
        from lockstep.author import claims, execute
    except ModuleNotFoundError as missing:
        raise CannotRecord(f"claims needs {missing.name}: pip install 'lockstep[labs]'") from None
    notebooks = execute.find("solutions", NUMBERS, Path.cwd())
    found = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-claims-") as folder:
        for done in execute.run(notebooks, {}, keep=Path(folder), limit=LIMIT):
            print("\n  ".join([f"{done.notebook}: {done.state}", *done.problems]), flush=True)
            if done.executed is None:
                continue
            lab = Path(done.notebook).name[:2]
            for one in claims.claims_in(lab, json.loads(done.executed.read_text("utf-8"))):
                if f"live · {machine.gpus[0].name}" in one.stamps:
                    found[one.sentence] = {"verdict": one.verdict, "because": one.because}
    what = f"claims of labs {', '.join(NUMBERS)}, as their solutions have measured them on the GPU"
    yield Result(f"claims/{device_name(machine)}.json", what, {"claims": found})


EXPERIMENT = Experiment(
    "claims",
    "claims of labs 04 and 06 on a GPU, where the labs have a virtual one",
    minutes=4,
    run=run,
    ranks=1,
    least=1,
    most=1,
    writes={"claims/*.json": ("claims",)},
)
