"""A rank that the kernel ends because memory is used up is named, with what there was."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lockstep.launch import oom

_ROOT = Path("/sys/fs/cgroup")
_BYTES = 1_000_000_000


def why_no_group() -> str:
    """Why no control group with a limit can be made here; "" where one can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "control groups need Linux and root"
    if _is_first() or "memory" in _controllers():
        return ""
    return "no control group here may limit memory"


def _is_first() -> bool:
    """Whether memory belongs to control groups of version 1."""
    return os.access(_ROOT / "memory/memory.limit_in_bytes", os.W_OK)


def _controllers() -> list[str]:
    """Of version 2, which a group of ours would have."""
    with contextlib.suppress(OSError):
        return (_ROOT / "cgroup.subtree_control").read_text().split()
    return []


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group whose processes may use a gigabyte."""
    folder = (_ROOT / "memory" if _is_first() else _ROOT) / f"lockstep-test-{os.getpid()}"
    folder.mkdir()
    name = "memory.limit_in_bytes" if _is_first() else "memory.max"
    (folder / name).write_text(str(_BYTES))
    yield folder
    until = time.monotonic() + 30
    while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.05)  # nothing tells of it
    folder.rmdir()


_PROGRAM = """
    import os, subprocess, sys
    from pathlib import Path
    Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    import lockstep, torch
    import torch.distributed as dist

    def grow():
        if dist.get_rank() == 1:
            kept = [torch.ones(1 << 22) for _ in range(1000)]
        dist.barrier()

    def grow_elsewhere():
        if dist.get_rank() == 1:
            subprocess.run([sys.executable, "-c", "bytearray(1 << 34)"], check=True)
        dist.barrier()

    def be_killed():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        dist.barrier()

    for function in (grow, grow_elsewhere, be_killed):
        job = lockstep.torchrun(function, nproc_per_node=2, may_fail=True, show=False)
        print("──", job.verdict, "·", job.report, "·", job.note)

    import nbformat
    from lockstep.author import execute
    folder = Path(sys.argv[2])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("bytearray(1 << 33)")])
    nbformat.write(notebook, folder / "small.ipynb")
    (done,) = execute.run([folder / "small.ipynb"], {}, folder / "out")
    print("──", *done.problems)
"""


@pytest.mark.skipif(bool(why_no_group()), reason=why_no_group())
@pytest.mark.more
def test_who_was_killed_for_memory_is_named_and_who_was_not_is_not(group, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    done = subprocess.run(
        [sys.executable, program, group, tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr  # the notebook itself is spared
    _, grown, elsewhere, killed, notebook = done.stdout.split("── ")
    limit = "may use 953.67 MiB of memory, and has used it up"
    assert grown.startswith("Killed for memory: rank 1: this job, or container, "), grown
    assert (
        limit in grown and "rank 1: killed by the kernel (SIGKILL), because memory ran out" in grown
    )
    assert "a process that is not a rank" in elsewhere and limit in elsewhere, elsewhere
    assert "CalledProcessError" in elsewhere and "Killed" not in elsewhere.partition(" · ")[0]
    assert "emory" not in killed.partition(" · ")[0] and limit not in killed, killed
    assert "Kernel died" in notebook and limit in notebook, notebook


@pytest.mark.parametrize(
    ("groups", "files", "killed", "limit"),
    [
        pytest.param(
            "0::/job/rank\n",
            {
                "sys/fs/cgroup/job/rank/memory.events": "low 0\noom 2\noom_kill 3\n",
                "sys/fs/cgroup/job/rank/memory.max": "max\n",
                "sys/fs/cgroup/job/memory.events": "low 0\noom 2\noom_kill 9\n",
                "sys/fs/cgroup/job/memory.max": "2000\n",
            },
            *(3, 2000),
            id="version 2, a limit above",
        ),
        pytest.param(
            "0::/job/rank\n",
            {
                "sys/fs/cgroup/job/memory.events": "oom 2\noom_kill 9\noom_group_kill 0\n",
                "sys/fs/cgroup/job/memory.max": "2000\n",
            },
            *(9, 2000),
            id="version 2, no such controller in the innermost",
        ),
        pytest.param(
            "4:memory:/job\n0::/\n",
            {
                "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 4\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            },
            *(4, None),
            id="version 1, no limit",
        ),
        pytest.param("0::/\n", {"proc/vmstat": "oom_kill 5\n"}, *(5, None), id="the host's"),
        pytest.param("", {}, *(0, None), id="nothing counts"),
    ],
)
def test_what_the_kernel_counts_is_read(tmp_path, groups, files, killed, limit):
    for name, text in {**files, "proc/self/cgroup": groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (oom.killed(tmp_path), oom.limit(tmp_path)) == (killed, limit)
