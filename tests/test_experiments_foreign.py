"""Traces of programs of others: a script that knows nothing of it, by torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import foreign
from experiments.__main__ import main
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


@pytest.mark.long
def test_two_steps_of_any_script_are_recorded(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main([f"foreign/{script}", "-n", "2", "--to", str(tmp_path / "data")]) == 0
    trace = Trace.load(tmp_path / "data" / "traces" / "foreign" / f"{tmp_path.name}-train-x2")
    assert trace.ranks == (0, 1)
    for rank in trace.ranks:
        reduced = [one for one in trace if one.rank == rank and one.name == "gloo:all_reduce"]
        assert len(reduced) == foreign.RECORDED


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("foreign", 2, "foreign records a program of others: say 'foreign/SCRIPT ARGUMENTS...'"),
        ("foreign/nowhere.py", 2, "there is no script nowhere.py"),
        ("foreign/{folder}/short.py", 1, "short.py takes fewer than 6 steps of an optimizer"),
    ],
)
def test_what_cannot_be_recorded_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], program: str, code: int, said: str
) -> None:
    (tmp_path / "short.py").write_text("")
    arguments = [program.format(folder=tmp_path), "-n", "1", "--to", str(tmp_path / "data")]
    assert main(arguments) == code
    assert said in capfd.readouterr().err
    assert not list((tmp_path / "data").rglob("*.gz"))
