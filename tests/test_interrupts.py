"""Ctrl-C at any moment: the job ends, the next one works, nothing is left."""

import subprocess
import sys
from pathlib import Path

import pytest
from each_line import JOBS

PROGRAM = Path(__file__).with_name("each_line.py")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "job, every",
    [("reserve", 60), *(pytest.param(job, 1, marks=pytest.mark.long) for job in JOBS)],
)
def test_ctrl_c_on_any_line_ends_a_job_and_leaves_nothing(job, every):
    command = [sys.executable, str(PROGRAM), job, "--every", str(every)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
