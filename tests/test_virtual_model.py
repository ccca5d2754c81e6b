"""The virtual GPU's constants against the recordings, and its times against recorded kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from lockstep import recorded, virtual
from lockstep.trace import Kind, Trace
from lockstep.virtual.fit import fitted
from lockstep.virtual.model import H200, MACHINES, Machine


def test_constants_are_those_of_the_recordings() -> None:
    for name, value in fitted().items():
        assert getattr(H200, name) == pytest.approx(value, rel=0.03), name


@pytest.fixture(scope="module")
def steps() -> Trace:
    return Trace.load(recorded("traces/data-parallel-after").path)


def kernel_of(call: Callable[[], object]) -> int:
    """Nanoseconds of the last kernel that this launches, on a device of times only."""
    with virtual.device(values=False):
        call()
        return [one for one in virtual.trace() if one.stream != -1][-1].duration


def product() -> object:
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    return torch.empty(8192, 2048, **shape) @ torch.empty(2048, 2048, **shape)


def relu() -> object:
    return torch.empty(8192, 2048, device="cuda", dtype=torch.bfloat16).relu()


def small_product() -> object:
    shape = {"device": "cuda", "dtype": torch.bfloat16}
    return torch.empty(64, 1024, **shape) @ torch.empty(1024, 1024, **shape)


def copy() -> object:
    # 8,388,608 bytes from one place of device memory to another
    return torch.empty(2048, 2048, device="cuda", dtype=torch.bfloat16).clone()


@pytest.mark.parametrize(
    ("call", "recording", "name", "within"),
    [
        (product, "traces/data-parallel-after", "nvjet_sm90_tst_256x128", 0.10),
        (relu, "traces/data-parallel-after", "launch_clamp", 0.10),
        (copy, "traces/starved", "Memcpy DtoD", 0.30),
        (small_product, "traces/tensor-parallel-graph", "nvjet_sm90_tst_64x8", 0.10),
    ],
)
def test_a_kernel_takes_what_it_was_recorded_to_take(
    call: Callable[[], object], recording: str, name: str, within: float
) -> None:
    trace = Trace.load(recorded(recording).path)
    rows = [
        row
        for row in trace.where(Kind.COMPUTE, Kind.COPY)
        if name in trace.names[trace.name[row]]
        and (name != "Memcpy DtoD" or trace.args(int(row))["bytes"] == 8_388_608)
    ]
    assert kernel_of(call) == pytest.approx(float(np.median(trace.duration[rows])), rel=within)


def test_tiles_are_quantised() -> None:
    """One tile more than the SMs takes a second wave; what it leaves idle is another's."""
    full, _ = H200.multiply(128 * 132, 256, 4096, "bfloat16")
    more, share = H200.multiply(128 * 133, 256, 4096, "bfloat16")
    assert more - H200.kernel == pytest.approx(2 * (full - H200.kernel))
    assert share == pytest.approx(133 / 264)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_a_faster_machine_is_faster(machine: Machine) -> None:
    large, _ = machine.multiply(8192, 8192, 8192, "bfloat16")
    h200, _ = H200.multiply(8192, 8192, 8192, "bfloat16")
    peaks = {"A100": 312, "H100": 989.5, "H200": 989.5, "B200": 2250}
    assert large / h200 == pytest.approx(989.5 / peaks[machine.name], rel=0.15)
