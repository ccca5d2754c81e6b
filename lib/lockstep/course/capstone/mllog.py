"""A run as the lines that MLPerf's benchmarks log: `lockstep.capstone.run(…, log="run.log")`.

Each is `:::MLLOG` and a JSON object with the fields of `mlperf_logging.mllog` of MLCommons
(https://github.com/mlcommons/logging), whose keys these are; its `compliance_checker.mlp_parser`
reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...trace import Trace


def write(
    path: str | Path, program: str, losses: Sequence[float], trace: Trace, right: bool
) -> None:
    """Write a run's lines; times are milliseconds on the trace's clock. Raises OSError."""
    text = "\n".join(_lines(program, losses, trace, right)) + "\n"
    Path(path).write_text(text, encoding="utf-8")


def _lines(program: str, losses: Sequence[float], trace: Trace, right: bool) -> Iterator[str]:
    steps = trace.steps()
    first, last = min(one.start for one in steps), max(one.end for one in steps)
    yield _line("submission_benchmark", program, first)
    yield _line("run_start", None, first, "INTERVAL_START")
    for number, loss in enumerate(losses):
        ends = max(one.end for one in steps if one.number == number)
        yield _line("train_loss", loss, ends, step_num=number)
    status = "success" if right else "aborted"
    yield _line("run_stop", None, last, "INTERVAL_END", status=status)


def _line(key: str, value: Any, time: int, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    fields = {"namespace": "", "time_ms": time / 1e6, "event_type": kind}
    return f":::MLLOG {json.dumps(fields | {'key': key, 'value': value, 'metadata': metadata})}"
