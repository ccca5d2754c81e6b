"""What training keeps on the virtual GPU, beside what it kept on an H200 (data/memory)."""

from __future__ import annotations

from random import Random

import lockstep
import pytest
import torch
from experiments.memory import CONFIGS, RECOMPUTED, Config, Transformer
from lockstep.course.labs import lab12
from torch.nn.functional import cross_entropy

RECORDED = lockstep.recorded("memory/h200.json").content
WORKSPACE = 64 << 20  # bytes that cuBLAS takes at its first product on an H200
NEAR = 0.01  # of a peak: rounding, and what a GPU's own kernels need besides


def second_step(config: Config, recompute: str) -> tuple[int, int]:
    """The peaks of its backward pass and of its optimizer, bytes."""
    with lockstep.virtual.device("H200", values=False) as cuda:
        with torch.device("cuda"):
            model = Transformer(config).to(getattr(torch, config.dtype))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        ids = torch.zeros(config.batch, config.length, dtype=torch.int64, device="cuda")
        for _ in range(2):
            cuda.reset_peak_memory_stats()
            cross_entropy(model(ids, recompute).flatten(0, 1), ids.flatten()).backward()
            backward = cuda.max_memory_allocated()
            cuda.reset_peak_memory_stats()
            optimizer.step()
            update = cuda.max_memory_allocated()
            optimizer.zero_grad()
        return backward, update


@pytest.mark.parametrize(
    ("kind", "at", "config"),
    [("models", at, one) for at, one in enumerate(CONFIGS)]
    + [("recomputing", at, RECOMPUTED) for at in (1, 2, 3)],
)
def test_peaks_are_those_of_an_h200(kind: str, at: int, config: Config) -> None:
    recorded = RECORDED[kind][at]
    measured = recorded["steps"][1]
    backward, update = second_step(config, recorded["recompute"])
    for peak, name in (
        (backward, "peak until the backward's end"),
        (update, "peak of the optimizer"),
    ):
        assert (peak + WORKSPACE) / measured[name] == pytest.approx(1, abs=NEAR)


def test_what_lab_12_teaches_is_near_enough_for_its_check() -> None:
    trials = [trial for seed in range(2) for trial in lab12.peaks(Random(seed))]
    for trial in trials:
        (config,) = trial.given
        assert trial.right[0] / lab12.measured_peak(*config) == pytest.approx(1, abs=0.025)
