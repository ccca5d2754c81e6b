"""Experiments on graphs and compiled programs across ranks: what runs without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from experiments import ahead_of_time, cold_start, decode_step, graph_rules, unchanged
from experiments.experiment import CannotRecord
from lockstep.base import machine

TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(2)
dist.all_reduce(x)
print(f"loss {x[0].item():.2f}, time {os.getpid()}.25ms")
print(SECOND_LINE)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("second", "same"),
    [("'end'", True), pytest.param("os.getpid()", False, marks=pytest.mark.long)],
)
def test_a_program_of_others_is_compared_line_by_line(
    tmp_path: Path, second: str, same: bool
) -> None:
    (tmp_path / "configurator.py").touch()
    (tmp_path / "train.py").write_text(TRAIN.replace("SECOND_LINE", second))
    (result,) = unchanged.of_checkout(str(tmp_path), machine.probe(), 2)
    assert result.content["same"] is same
    for launcher in unchanged.LAUNCHERS:
        assert result.content[launcher]["lines"][0] == "loss 2.00, time …ms"
        assert result.content[launcher]["ended"]


def test_a_folder_without_a_known_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRecord, match="no checkout of gpt-fast or nanoGPT"):
        unchanged.of_checkout(str(tmp_path), machine.probe(), 2)


def parts(folder: Path) -> dict[str, Any]:
    graph_rules.note(folder)
    if dist.get_rank() == 1:
        raise KeyError("rank 1 has no such graph")
    dist.barrier()
    return {}


def stays(folder: Path) -> dict[str, Any]:
    graph_rules.note(folder)
    return {"value": dist.get_rank()}


def test_what_is_reported_of_parted_ranks_is_noted_with_its_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_rules, "BACKEND", "gloo")
    monkeypatch.setattr(graph_rules, "PARTED", {"parts": parts, "stays": stays})
    parted = graph_rules.parted("parts", 2)
    assert "rank 1 has no such graph" in parted["failed"]["ranks"][1]["message"]
    assert 0 < parted["seconds"] < graph_rules.LIMIT
    assert graph_rules.parted("stays", 2)["ranks"] == [{"value": 0}, {"value": 1}]


def test_a_launcher_that_fails_does_not_lose_the_other_ones_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no torchrun here")

    monkeypatch.setattr(decode_step, "of_rank_0", lambda *_, **__: {"eager": [3.0, 1.0, 2.0]})
    monkeypatch.setattr(decode_step, "measured_by_torchrun", failing)
    *_, last = decode_step.run(machine.probe(), 2)
    assert last.content["seconds"] == {"lockstep": {"eager": [2.0] * decode_step.TURNS}}
    assert len(last.content["failed"]) == decode_step.TURNS


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_ranks_with_a_folder_each_share_nothing(tmp_path: Path) -> None:
    shared = cold_start.start(tmp_path / "all", 2, "gloo")
    again = cold_start.start(tmp_path / "all", 2, "gloo")
    each = cold_start.start(tmp_path / "each", 2, "gloo", each_its_own=True)
    assert [rank["hits"] for rank in again["ranks"]] == [1, 1]
    assert each["binaries"] == 2 * shared["binaries"] > 0


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_file_compiled_by_one_rank_has_that_ranks_weights() -> None:
    (result,) = ahead_of_time.run(machine.probe(), 2)
    for rank in result.content["ranks"]:
        assert rank["off"]["weights of the file"] > 0.01 > 1e-5 > rank["off"]["its own weights"]
