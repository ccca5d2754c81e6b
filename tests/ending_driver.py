"""A plain Python that runs jobs for `endings.py`: one JSON object a line, in and out."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import Any

from lockstep import Job, World, torchrun
from lockstep.launch.cell import Cell
from lockstep.launch.logs import Logs
from lockstep.launch.options import Options
from lockstep.launch.output import Output
from lockstep.launch.run import run_cell
from lockstep.launch.sources import remember

# A World's ranks cannot have files for stdout and stderr: these send stderr away, and bind no name.
QUIET = """(lambda os: (lambda file: (os.dup2(file, 2), os.close(file)))(
    os.open(os.devnull, os.O_WRONLY)
))(__import__("os"))
"""


def run(order: dict[str, Any]) -> dict[str, Any]:
    os.chdir(order["directory"])
    options = {"backend": "gloo", "may_fail": True, "show": False, **order["options"]}
    logs = Logs(order["logs"], redirects="3")
    form = order["form"].split()[-1]
    if form == "world":
        with World(options["nproc_per_node"], backend=order["backend"]) as world:
            for text in (QUIET, order["text"]):
                job = world.run_cell(Cell(text, "cell-ending"), {}, Options(**options))
    elif form == "script":
        job = torchrun(order["path"], *order["arguments"], logs=logs, **options)
    elif form == "function":
        remember("cell-ending", order["text"])  # as IPython does
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(order["text"], "cell-ending", "exec", dont_inherit=True), namespace)
        job = torchrun(namespace["main"], logs=logs, **options)
    else:
        cell = Cell(order["text"], "cell-ending")
        job = run_cell(cell, {}, Options(logs=logs, **options))
    return {
        "code": exit_code(job),
        "output": [whole(output) for output in job.outputs] if form == "world" else None,
        "said": str(job) if job.ok else job.report,
        "seconds": job.seconds,
    }


def whole(output: Output) -> str:
    return output.path.read_bytes().decode(errors="replace") if output.path else output.text


def exit_code(job: Job) -> int | None:
    """What torchrun would have given as the first failing rank's; None: the job did not end."""
    if job.ok:
        return 0
    if any(failure.kind in ("stuck", "timeout") for failure in job.failures):
        return None
    if job.failures and job.failures[0].type_name == "KeyboardInterrupt":
        return -signal.SIGINT  # as Python ends itself
    first = job.failures[0].message if job.failures else ""
    if match := re.search(r"(?:exit\(|exited with code )(-?\d+)", first):
        return int(match[1]) % 256
    if match := re.search(r"ended by (SIG\w+)", first):
        return -signal.Signals[match[1]]
    return 1


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # cells print as they run
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except Exception as error:
            answer = {"code": -1, "output": None, "said": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
