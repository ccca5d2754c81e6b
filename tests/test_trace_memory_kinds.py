"""What allocations are for, in programs whose bytes can be counted by hand."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import lockstep
import pytest
import torch
from lockstep import Trace
from lockstep.trace import TraceError
from torch import nn
from torch.cuda import _memory_viz

DATA = Path(__file__).parents[1] / "data"
RECORDED = ("memory/snapshot-h200.pickle.gz", "traces/memory/rank0.pickle.gz")
BATCH, WIDE, HIGH = 1024, 512, 2048
WEIGHTS = 4 * (WIDE * HIGH + HIGH + HIGH * WIDE + WIDE)


def snapshot(train: Any, **options: Any) -> dict[str, Any]:
    with lockstep.virtual.device("H200", values=False) as cuda:
        cuda.memory._record_memory_history(**options)
        train(cuda)
        return cuda.memory._snapshot()


def adamw(cuda: Any, steps: int = 2) -> None:
    """Two layers; the snapshot is taken while all of it is alive."""
    model = nn.Sequential(nn.Linear(WIDE, HIGH), nn.ReLU(), nn.Linear(HIGH, WIDE)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.randn(BATCH, WIDE, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("context", ["all", "alloc"])
def test_bytes_of_a_training_step_are_those_counted_by_hand(context: str) -> None:
    """Without frames of what is freed, lifetimes must do: the loss then seems to be freed by the
    backward pass, after which it goes."""
    found = Trace.memory(snapshot(adamw, context=context))
    peak = found.by_kind()
    assert sum(peak.values()) == found.allocated[found.peak] == found.allocated.max()
    # In the second step's optimizer, or its backward pass: all of Adam's state is there.
    assert peak["weights"] == WEIGHTS and peak["optimizer"] == 2 * WEIGHTS
    # The batch and the loss, made by lines of the program: nothing tells what they are.
    assert peak["unknown"] == 4 * BATCH * WIDE + (4 if context == "all" else 0)
    most = {
        kind: max(found.by_kind(at).get(kind, 0) for at in range(len(found.time)))
        for kind in ("gradients", "activations")
    }
    assert most["gradients"] == WEIGHTS
    # When the forward pass ends: ReLU's output, the last layer's and the loss. What ReLU was
    # given, and the squares, are let go of at once.
    forward = 4 * (BATCH * HIGH + BATCH * WIDE)
    assert forward <= most["activations"] <= forward + 4 * BATCH * WIDE + 64


def test_each_allocation_of_a_first_step_has_its_kind() -> None:
    found = Trace.memory(snapshot(lambda cuda: adamw(cuda, 1)))
    kept: dict[str, list[int]] = {}
    for one in found.allocations:
        kept.setdefault(one.kind, []).append(one.bytes)
    parameters = sorted([4 * WIDE * HIGH, 4 * HIGH, 4 * HIGH * WIDE, 4 * WIDE])
    assert sorted(kept["weights"]) == sorted(kept["gradients"]) == parameters
    assert sorted(kept["optimizer"]) == sorted(parameters * 2)
    assert 4 * BATCH * HIGH in kept["activations"] and 4 * BATCH * HIGH in kept["temporary"]
    assert kept["unknown"] == [4 * BATCH * WIDE, 4 * BATCH * WIDE, 4]  # batch, squares, loss


def test_gradients_that_nothing_allocates_after_are_gradients() -> None:
    """Plain SGD allocates nothing between the backward pass and zero_grad."""

    def train(cuda: Any) -> None:
        model = nn.Linear(WIDE, WIDE).to("cuda")
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(torch.randn(BATCH, WIDE, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = Trace.memory(snapshot(train))
    gradients = sorted(one.bytes for one in found.allocations if one.kind == "gradients")
    assert gradients == sorted([4 * WIDE, 4 * WIDE * WIDE] * 2)


def test_what_is_computed_again_in_the_backward_pass_is_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    def train(cuda: Any) -> None:
        model = nn.Sequential(nn.Linear(WIDE, HIGH), nn.ReLU(), nn.Linear(HIGH, WIDE)).to("cuda")
        x = torch.randn(BATCH, WIDE, device="cuda")
        checkpoint(model, x, use_reentrant=False).sum().backward()

    found = Trace.memory(snapshot(train))
    hidden = [one.kind for one in found.allocations if one.bytes == 4 * BATCH * HIGH]
    assert hidden[:2] == ["temporary", "temporary"] and "activations" in hidden[2:]
    gradients = [one.bytes for one in found.allocations if one.kind == "gradients"]
    assert sorted(gradients) == sorted([4 * WIDE * HIGH, 4 * HIGH, 4 * HIGH * WIDE, 4 * WIDE])


def test_an_output_that_the_program_keeps_is_an_activation() -> None:
    def train(cuda: Any) -> None:
        model = nn.Linear(WIDE, HIGH).to("cuda")
        kept = model(torch.randn(BATCH, WIDE, device="cuda"))
        kept.sum().backward()
        dropped = model(torch.randn(BATCH, WIDE, device="cuda"))
        assert kept.shape == dropped.shape
        del kept, dropped
        torch.empty(1, device="cuda")

    found = Trace.memory(snapshot(train))
    outputs = [one.kind for one in found.allocations if one.bytes == 4 * BATCH * HIGH]
    assert (outputs[0], outputs[-1]) == ("activations", "temporary")


def test_whoever_knows_better_says_so() -> None:
    def train(cuda: Any) -> None:
        def batch() -> Any:
            return torch.randn(BATCH, WIDE, device="cuda")

        cuda.memory._set_memory_metadata("weights")
        w = torch.randn(WIDE, HIGH, device="cuda", requires_grad=True)
        cuda.memory._set_memory_metadata("kv cache 3")
        cache = torch.empty(7, device="cuda")
        cuda.memory._set_memory_metadata("")
        (batch() @ w).sum().backward()
        assert cache.nbytes == 28

    taken = snapshot(train)
    kinds = {"input": r"test_trace_memory_kinds\.py:\d+ batch", "cache": r"kv cache \d"}
    found, plain = Trace.memory(taken, kinds=kinds), Trace.memory(taken)
    first = [(one.kind, one.bytes) for one in found.allocations[:3]]
    assert first == [("weights", 4 * WIDE * HIGH), ("cache", 28), ("input", 4 * BATCH * WIDE)]
    # The backward pass frees the batch.
    assert [one.kind for one in plain.allocations[:3]] == ["weights", "unknown", "activations"]
    assert [one["label"] for one in found.answer(found.first())["kinds"]][-2:] == ["cache", "input"]
    with pytest.raises(TraceError, match="is no pattern"):
        Trace.memory(taken, kinds={"x": "("})
    with pytest.raises(TraceError, match="4 kinds of your own"):
        Trace.memory(taken, kinds={str(at): "x" for at in range(5)})


def test_what_nothing_tells_is_unknown() -> None:
    found = Trace.memory(snapshot(adamw, context=None))
    assert set(found.by_kind()) == {"unknown"}
    events = [
        {"action": "alloc", "addr": at, "size": 8, "category": category}
        for at, category in enumerate(("parameter", "optimizer_state", "gradient", "input", ""))
    ]
    found = Trace.memory({"device_traces": [events], "segments": []})
    assert [one.kind for one in found.allocations] == [
        *("weights", "optimizer", "gradients", "unknown", "unknown")
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_kinds_of_a_recording_add_up(name: str) -> None:
    found = Trace.memory(DATA / name)
    for at in range(0, len(found.time), 7):
        assert sum(found.by_kind(at).values()) == found.allocated[at]
    # PyTorch's own summary of what is allocated at the end.
    taken = pickle.loads(gzip.decompress((DATA / name).read_bytes()))
    said = _memory_viz.segsum(taken)
    assert f"total_allocated: {_memory_viz.Bytes(int(found.allocated[-1]))}" in said
    assert f"total_reserved: {_memory_viz.Bytes(int(found.reserved[-1]))}" in said


def test_a_transformer_on_an_h200_has_as_many_gradients_as_weights() -> None:
    """The optimizer is Adam's. cuBLAS's workspaces, 32 MiB of each thread, are none of them, and no
    activations either: those are 16 widths for each token and block, and the loss's logarithms."""
    found = Trace.memory(DATA / RECORDED[0])
    peak = found.by_kind()
    assert peak["optimizer"] - 2 * peak["weights"] == 0
    gradients = [one.bytes for one in found.allocations if one.kind == "gradients"]
    assert sum(gradients) == 2 * peak["weights"]  # two steps
    large = [one for one in found.allocations if one.kind == "unknown" and one.bytes > 1 << 20]
    assert [(one.bytes, one.end) for one in large] == [(32 << 20, len(found.time))] * 2
    kept = 2 * (16 * 4 * 2048 * 512 + 2048 * 8192)
    assert peak["activations"] == pytest.approx(kept, rel=0.03)
