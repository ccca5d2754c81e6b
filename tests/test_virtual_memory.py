"""Snapshots of the virtual GPU's memory: PyTorch's own tools read them, and they add up."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lockstep
import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

MIB = 1 << 20


def train(cuda: Any, steps: int = 2, file: Path | None = None) -> dict[str, Any]:
    cuda.memory._record_memory_history()
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(1024, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if file:
        cuda.memory._dump_snapshot(file)
    return cuda.memory._snapshot()


def test_the_history_leads_to_what_the_segments_hold_and_has_the_counters_peak() -> None:
    with lockstep.virtual.device("H200", values=False) as cuda:
        found = lockstep.Trace.memory(train(cuda))
        most, reserved = cuda.max_memory_allocated(), cuda.max_memory_reserved()
    assert found.mismatch == {"allocated": 0, "active": 0, "reserved": 0} and not found.notes
    alive = sum(one.count for one in found.at_peak)
    assert 0 <= most - found.allocated.max() <= 512 * alive
    assert found.reserved.max() == reserved
    assert found.timed and found.time[-1] > 0


def test_pytorchs_own_tools_accept_it(tmp_path: Path) -> None:
    """They check, too, that blocks fill their segments."""
    with lockstep.virtual.device("H200", values=False) as cuda:
        snapshot = train(cuda, file=tmp_path / "snapshot.pickle")
        reserved = cuda.memory_reserved()
    loaded = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert loaded["segments"] == snapshot["segments"]
    assert "Active Memory Timeline" in _memory_viz.trace_plot(loaded)
    assert "Allocator State History" in _memory_viz.segment_plot(loaded)
    assert f"total_reserved: {_memory_viz.Bytes(reserved)}" in _memory_viz.segsum(loaded)
    assert _memory_viz.trace(loaded).count("cudaMalloc") == len(loaded["segments"])
    # What was not freed is what the segments hold.
    (left,) = _memory_viz.filter_alloc_free_pairs(loaded)["device_traces"]
    kept = [one for one in left if one["action"] == "alloc"]
    held = [
        (block["address"], block["requested_size"])
        for segment in loaded["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert sorted((one["addr"], one["size"]) for one in kept) == sorted(held)


def test_frames_are_the_programs_and_a_backward_pass_has_none() -> None:
    with lockstep.virtual.device("H200", values=False) as cuda:
        (events,) = train(cuda)["device_traces"]
    files = {frame["filename"] for one in events for frame in one["frames"]}
    assert not any("lockstep/virtual" in file for file in files)
    innermost = {
        (Path(one["frames"][0]["filename"]).name, one["frames"][0]["name"])
        for one in events
        if one["action"] == "alloc" and one["frames"]
    }
    assert {
        ("linear.py", "forward"),
        ("adam.py", "_init_group"),
        ("module.py", "convert"),
    } <= innermost
    bare = [one for one in events if one["action"] == "alloc" and not one["frames"]]
    assert {2048 * 512 * 4, 2048 * 4} <= {one["size"] for one in bare}  # gradients


def test_it_is_the_same_each_time_and_nothing_is_kept_unless_it_is_asked_for() -> None:
    def sizes() -> list[Any]:
        with lockstep.virtual.device("H200", values=False) as cuda:
            (events,) = train(cuda)["device_traces"]
        return [(one["action"], one["size"], one["time_us"], one["frames"]) for one in events]

    assert sizes() == sizes()
    with lockstep.virtual.device("H200", values=False) as cuda:
        kept = torch.empty(100, device="cuda")
        snapshot = cuda.memory._snapshot()
        assert kept.nbytes == 400 and snapshot["device_traces"] == [[]]
        (segment,) = snapshot["segments"]
        assert (segment["total_size"], segment["requested_size"]) == (2 * MIB, 400)
        train(cuda, steps=1)
        for enabled, has_frames in ((None, False), ("state", True)):
            cuda.memory._record_memory_history(enabled=enabled)
            new = torch.empty(MIB, device="cuda")
            snapshot = cuda.memory._snapshot()
            assert snapshot["device_traces"] == [[]]
            blocks = [one for segment in snapshot["segments"] for one in segment["blocks"]]
            (block,) = [one for one in blocks if one["address"] == new.data_ptr()]
            assert bool(block["frames"]) == has_frames


def test_running_out_of_memory_and_giving_it_back_are_events() -> None:
    with lockstep.virtual.device("H200", values=False) as cuda:
        cuda.memory._record_memory_history(max_entries=4)
        kept = torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        del kept
        cuda.empty_cache()
        (events,) = cuda.memory._snapshot()["device_traces"]
        free, _ = cuda.mem_get_info()
    said = [one["action"] for one in events]
    assert said == ["oom", "free_requested", "free_completed", "segment_free"]
    assert events[0]["device_free"] == free - (100 << 30) and events[0]["size"] == 100 << 30


def test_what_another_stream_still_uses_is_active_and_metadata_is_attached() -> None:
    with lockstep.virtual.device("H200", values=False) as cuda:
        cuda.memory._record_memory_history()
        cuda.memory._set_memory_metadata("cache")
        side = cuda.Stream()
        x = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        with cuda.stream(side):
            cuda._sleep(1_000_000)
            x.add_(1)
        x.record_stream(side)
        del x
        cuda.memory._set_memory_metadata("")
        snapshot = cuda.memory._snapshot()
        found = lockstep.Trace.memory(snapshot)
    events = [one for one in snapshot["device_traces"][0] if one["action"] == "alloc"]
    assert [one["user_metadata"] for one in events] == ["cache"]
    assert found.allocated[-1] == 0 and found.active[-1] == 4 * MIB
    assert not any(found.mismatch.values())
    with pytest.raises(lockstep.virtual.NotModelled, match=r"torch\.cuda\.memory\.memory_stats"):
        cuda.memory.memory_stats()
