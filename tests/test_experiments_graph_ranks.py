"""What `python -m experiments graph-ranks` measures, without GPUs: the same code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lockstep
from experiments import graph_ranks
from lockstep import torchrun


def replayed(folder: str, name: str) -> list[dict[str, Any]]:
    """A case on virtual GPUs; the marks of this rank."""
    import faulthandler

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.cuda = lockstep.cuda(virtual=True)
    notes, rank = graph_ranks.Notes(folder), dist.get_rank()
    case, more = graph_ranks.CASES[name]
    case(notes, **more)
    faulthandler.cancel_dump_traceback_later()
    lines = Path(folder, f"rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_ranks_that_replay_in_another_order_mix_their_tensors_up(tmp_path: Path) -> None:
    name = "rank 1 has captured another order"
    job = torchrun(replayed, str(tmp_path), name, nproc_per_node=3, show=False, backend="gloo")
    last = [(marks[-1]["x"], marks[-1]["y"]) for marks in job.results]
    assert last == [(12, 21), (21, 12), (12, 21)]


def test_who_has_captured_one_more_never_synchronises(tmp_path: Path) -> None:
    name = "rank 1 has one more, captured"
    job = torchrun(
        replayed, str(tmp_path), name, nproc_per_node=2, show=False, backend="gloo", may_fail=True
    )
    assert not job.ok
    marks = [Path(tmp_path, f"rank{rank}.jsonl").read_text() for rank in (0, 1)]
    assert "synchronised" in marks[0] and "launched" in marks[1]
    assert "synchronised" not in marks[1]


def test_where_a_rank_stands_is_read_from_its_stack() -> None:
    other = 'Thread 0x1 (most recent call first):\n  File "threading.py", line 9 in wait\n'
    mine = (
        "Thread 0x2 (most recent call first):\n"
        '  File "torch/cuda/__init__.py", line 5 in synchronize\n'
        '  File "graph_ranks.py", line 7 in one_more\n  File "graph_ranks.py", line 8 in on_rank\n'
    )
    found = graph_ranks.waits_in(f"Timeout (0:00:15)!\n{other}\n{mine}")
    assert found == ["synchronize", "one_more", "on_rank"]
    assert graph_ranks.waits_in("") == []
