"""GPU time by input shapes, and what kernels and copies achieve: FLOP/s, bytes, bandwidths."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kineto_files import event, head, kernel, write
from lockstep.trace import Trace, TraceError
from lockstep.trace.analyses.rates import work_of
from lockstep.trace.shapes import Input, inputs_in

START = 1_000_000_000
HALF = "c10::BFloat16"


def operator(name, at, dims, types=None, values=None):
    said = {"Input Dims": dims, "Input type": types or [HALF] * len(dims)}
    said["Concrete Inputs"] = values or [""] * len(dims)
    return event("cpu_op", name, START + at, 9_000, **said)


def launched(at, correlation, name="gemm", duration=5_000, **more):
    """A launch and its kernel, ns."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", START + at, 1_000, correlation=correlation),
        kernel(name, START + at + 2_000, duration, correlation=correlation, **more),
    ]


def load(folder, events):
    write(folder / "rank0.json", events, head())
    return Trace.load(folder, cache=False)


def copy(at, size, duration, name="Memcpy HtoD (Pinned -> Device)"):
    args = {"stream": 9, "device": 0, "bytes": size}
    return event("gpu_memcpy", name, START + at, duration, pid=0, tid=9, **args)


def run(folder):
    """Two products of one shape, one of another, an addition, a copy, and a kernel of nobody."""
    return load(
        folder,
        [
            operator("aten::mm", 0, [[64, 32], [32, 16]]),
            *launched(1_000, 1, duration=4_000),
            *launched(3_000, 2, name="split", duration=1_000),
            operator("aten::mm", 20_000, [[64, 32], [32, 16]]),
            *launched(21_000, 3, duration=3_000),
            operator("aten::mm", 40_000, [[8, 32], [32, 16]]),
            *launched(41_000, 4, duration=2_000),
            operator("aten::add_", 60_000, [[64, 1], [64, 16], []], [HALF, HALF, "Scalar"]),
            *launched(61_000, 5, name="add", duration=1_000),
            *launched(90_000, 6, name="nobody's", duration=700),
            copy(100_000, 6_000_000, 250_000),
            copy(400_000, 2_000_000, 150_000),
        ],
    )


def test_time_by_shape(tmp_path):
    found = run(tmp_path).kernels().by_shape()
    assert {one.name: (one.count, one.total) for one in found.groups} == {
        "aten::mm [64, 32] [32, 16]": (3, 8_000),
        "aten::mm [8, 32] [32, 16]": (1, 2_000),
        "aten::add_ [64, 1] [64, 16]": (1, 1_000),
    }
    assert found.unattributed == 700 + 400_000
    assert "aten::mm [8, 32] [32, 16]" in str(found)


def test_rates_of_operators_and_copies(tmp_path):
    found = run(tmp_path).rates()
    large, small, add = found.operators
    assert (large.operator, large.shapes, large.dtype) == ("aten::mm", "[64, 32] [32, 16]", HALF)
    assert (large.calls, large.kernels, large.time) == (2, 3, 8_000)
    assert large.flops == 2 * 2 * 64 * 32 * 16
    assert large.bytes == 2 * 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert large.teraflops == pytest.approx(131_072 / 8_000e-9 / 1e12)
    assert large.intensity == pytest.approx(large.flops / large.bytes)
    assert (small.calls, small.time) == (1, 2_000)
    assert (add.flops, add.bytes) == (0, 2 * (64 + 2 * 64 * 16))
    (moved,) = found.copies
    assert (moved.count, moved.bytes, moved.smallest, moved.largest) == (
        2,
        8 * 10**6,
        2 * 10**6,
        6 * 10**6,
    )
    assert moved.bandwidth == pytest.approx(20.0)
    assert found.time == 11_700
    assert "94.0 % of the kernels' 0.012 ms" in str(found)


def test_values_beside_the_shapes_are_read(tmp_path):
    dims = [[2, 8, 9, 11], [6, 4, 3, 3], [], [], [], []]
    values = ["", "", "[1, 0]", "[2, 1]", "[1, 2]", "2"]
    convolution = operator("aten::cudnn_convolution", 0, dims, values=values)
    (found,) = load(tmp_path, [convolution, *launched(1_000, 1)]).rates().operators
    assert found.flops == 2 * (2 * 6 * 5 * 7) * (4 * 3 * 3)


def test_without_shapes_copies_are_told_and_else_it_refuses(tmp_path):
    bare = [event("cpu_op", "aten::mm", START, 9_000), *launched(1_000, 1)]
    trace = load(tmp_path, bare)
    for ask in (trace.rates, trace.kernels().by_shape):
        with pytest.raises(TraceError, match="record_shapes=True"):
            ask()
    found = load(tmp_path, [*bare, copy(50_000, 100, 50)]).rates()
    assert found.operators == () and found.copies[0].bandwidth == 2.0
    assert "record_shapes=True" in str(found)


def test_a_file_that_has_changed_is_not_read_again(tmp_path):
    trace = run(tmp_path)
    write(tmp_path / "rank0.json", launched(0, 1), head())
    with pytest.raises(TraceError, match="has changed since it was loaded"):
        trace.rates()


@pytest.mark.parametrize(
    ("dims", "types"),
    [("nothing", None), ([[1], "x"], [HALF]), ([[1, -2]], [3]), ([[[2, 3], [4]]], ["TensorList"])],
)
def test_strange_inputs_are_no_errors(dims, types):
    found = inputs_in({"Input Dims": dims, "Input type": types, "Concrete Inputs": 7})
    assert (found is None) == (dims == "nothing")
    for name in ("aten::mm", "aten::add", "aten::copy_", "aten::convolution_backward"):
        work_of(name, found or ())
    assert work_of("aten::mm", found or ()) is None


def tensors(*shapes, values=()):
    return [Input(shape, "float") for shape in shapes] + [Input(value=one) for one in values]


def counted(call):
    """FLOPs of PyTorch's own counter, on tensors without data."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.device("meta"):
        call(torch)
    return counter.get_total_flops()


CASES = {
    "mm": (
        tensors((8, 4), (4, 6)),
        lambda torch: torch.empty(8, 4) @ torch.empty(4, 6),
    ),
    "addmm": (
        tensors((6,), (8, 4), (4, 6)),
        lambda torch: torch.addmm(torch.empty(6), torch.empty(8, 4), torch.empty(4, 6)),
    ),
    "bmm": (
        tensors((3, 8, 4), (3, 4, 6)),
        lambda torch: torch.bmm(torch.empty(3, 8, 4), torch.empty(3, 4, 6)),
    ),
    "cudnn_convolution": (
        tensors((2, 8, 9, 11), (6, 4, 3, 3), values=("[1, 0]", "[2, 1]", "[1, 2]", "2")),
        lambda torch: torch.conv2d(
            torch.empty(2, 8, 9, 11), torch.empty(6, 4, 3, 3), None, (2, 1), (1, 0), (1, 2), 2
        ),
    ),
    "miopen_convolution": (
        [*tensors((2, 4, 9), (6, 4, 3)), Input(), *tensors(values=("[1]", "[2]", "[1]", "1"))],
        lambda torch: torch.conv1d(torch.empty(2, 4, 9), torch.empty(6, 4, 3), None, 2, 1),
    ),
    "_flash_attention_forward": (
        tensors((2, 16, 4, 8), (2, 24, 4, 8), (2, 24, 4, 8)),
        lambda torch: torch.nn.functional.scaled_dot_product_attention(
            torch.empty(2, 4, 16, 8), torch.empty(2, 4, 24, 8), torch.empty(2, 4, 24, 8)
        ),
    ),
}


def known_work(operator: str, inputs: Sequence[Input]) -> tuple[int, int]:
    found = work_of(operator, inputs)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_pytorchs_counter(name):
    inputs, call = CASES[name]
    flops, size = known_work(f"aten::{name}", inputs)
    assert flops == counted(call) > 0
    assert size > sum(4 * one.elements for one in inputs if one.shape)


def test_flops_of_backward_passes():
    forward = known_work("aten::cudnn_convolution", CASES["cudnn_convolution"][0])[0]
    out = (2, 6, 5, 7)
    both = tensors(out, (2, 8, 9, 11), (6, 4, 3, 3)) + [Input()] * 7
    assert known_work("aten::convolution_backward", [*both, Input(value="[True, True, False]")])[
        0
    ] == (2 * forward)
    assert known_work("aten::convolution_backward", [*both, Input(value="[False, True, True]")])[
        0
    ] == (forward)
    query, key = (2, 16, 4, 8), (2, 24, 4, 8)
    ahead = known_work("aten::_flash_attention_forward", tensors(query, key, key))[0]
    back = known_work("aten::_flash_attention_backward", tensors(query, query, key, key))[0]
    assert back / ahead == 2.5
