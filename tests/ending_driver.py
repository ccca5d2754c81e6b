"""A plain Python that runs jobs for `endings.py`: one JSON object a line, in and out."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from typing import Any

from lockstep import Job, torchrun
from lockstep.launch.cell import Cell
from lockstep.launch.options import Options
from lockstep.launch.run import run_cell


def run(order: dict[str, Any]) -> dict[str, Any]:
    os.chdir(order["directory"])
    options = {"backend": "gloo", "may_fail": True, **order["options"]}
    form = order["form"].split()[-1]
    if form == "script":
        job = torchrun(order["path"], *order["arguments"], show=False, **options)
    elif form == "function":
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(order["text"], "cell-ending", "exec"), namespace)
        job = torchrun(namespace["main"], show=False, **options)
    else:
        job = run_cell(Cell(order["text"], "cell-ending"), {}, Options(**options))
    return {
        "code": exit_code(job),
        "output": [job.output(rank) for rank in range(job.nproc)],
        "said": str(job) if job.ok else job.report,
        "seconds": job.seconds,
    }


def exit_code(job: Job) -> int | None:
    """What torchrun would have given as the first failing rank's; None: the job did not end."""
    if job.ok:
        return 0
    if any(failure.kind in ("stuck", "timeout") for failure in job.failures):
        return None
    first = job.failures[0].message if job.failures else ""
    if match := re.search(r"exit\((\d+)\)", first):
        return int(match[1])
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
            answer = {"code": -1, "output": [], "said": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
