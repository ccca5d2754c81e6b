"""Traces of programs of others: a script that knows nothing of it, by torchrun."""

from __future__ import annotations

from pathlib import Path

from experiments import foreign
from lockstep import Trace

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(9):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_two_steps_of_any_script_are_recorded(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    foreign.main(str(tmp_path / "data"), "ddp", "2", str(script))
    trace = Trace.load(tmp_path / "data" / "traces" / "ddp")
    assert trace.ranks == (0, 1)
    for rank in trace.ranks:
        reduced = [one for one in trace if one.rank == rank and one.name == "gloo:all_reduce"]
        assert len(reduced) == foreign.RECORDED
