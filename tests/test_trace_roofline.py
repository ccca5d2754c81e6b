"""How far operators are from what the machine allows, of traces whose answer is known."""

from __future__ import annotations

import json

import pytest
from kineto_files import GPUS, head, write
from lockstep.models.data_sheets import DATA_SHEETS, data_sheet
from lockstep.trace import Trace, TraceError
from lockstep.trace.analyses.rates import work_of
from lockstep.trace.shapes import inputs_in
from test_trace_rates import HALF, launched, load, operator


def step(*types):
    """A product bound by arithmetic, an addition and a norm bound by memory, in the last type; ns.

    1024³: 2 · 2³⁰ FLOP, which take 2,170 ns of an H200; the addition moves 3 · 2 · 2²⁰ bytes, 1,311
    ns; the norm half a megabyte less.
    """
    square, kind = [1024, 1024], types[-1]
    return [
        operator("aten::mm", 0, [square, square], [kind] * 2),
        *launched(1_000, 1, duration=4_000),
        operator("aten::add", 20_000, [square, square], [HALF] * 2),
        *launched(21_000, 2, name="add", duration=2_000),
        operator("aten::native_layer_norm", 40_000, [square, [1024]], [HALF] * 2),
        *launched(41_000, 3, name="norm", duration=1_500),
        operator("aten::sort", 60_000, [square], [HALF]),
        *launched(61_000, 4, name="sort", duration=2_500),
    ]


def test_the_roof_is_the_longer_of_arithmetic_and_memory_and_the_most_lost_comes_first(tmp_path):
    found = load(tmp_path, step(HALF)).roofline()
    product, addition, norm = found.operators
    assert [one.operator for one in found.operators] == [
        *("aten::mm", "aten::add", "aten::native_layer_norm"),
    ]
    assert (product.bound, product.time) == ("arithmetic", 4_000)
    assert product.roof == pytest.approx(2 * 1024**3 / 989.5e3)
    assert product.share == pytest.approx(0.5426, abs=1e-4)
    assert product.lost == pytest.approx(4_000 - product.roof)
    assert addition.bound == norm.bound == "memory"
    assert addition.roof == pytest.approx(3 * 2 * 1024**2 / 4.8e3)
    assert norm.roof == pytest.approx((2 * 2 * 1024**2 + 2 * 1024) / 4.8e3)
    assert "75.0 % of the kernels' 0.010 ms" in str(found)
    assert "NVIDIA's data sheet of the H200" in str(found)


def test_a_type_whose_peak_is_not_known_is_left_out_and_that_is_said(tmp_path):
    trace = load(tmp_path, step("float"))
    found = trace.roofline()
    assert [one.operator for one in found.operators] == ["aten::add", "aten::native_layer_norm"]
    assert "left out: operators in Float" in str(found)
    given = trace.roofline(flops={"Float": 60e12}, bandwidth=4e12)
    assert given.operators[-1].operator == "aten::mm"  # faster than this, so it loses least
    assert given.operators[-1].share == pytest.approx(2 * 1024**3 / 60e3 / 4_000)
    assert "left out" not in str(given)
    assert "roof by the caller: Float 60 TFLOP/s, 4 TB/s" in str(given)


def test_an_unknown_machine_has_no_roof_until_the_caller_gives_it(tmp_path):
    write(tmp_path / "rank0.json", step(HALF), head(gpu=GPUS["amd"]))
    trace = Trace.load(tmp_path, cache=False)
    with pytest.raises(TraceError, match=rf"no data sheet for this machine \({GPUS['amd']}\)"):
        trace.roofline()
    with pytest.raises(TraceError, match="no data sheet"):
        trace.roofline(bandwidth=5.3e12)
    assert trace.roofline(flops={"BFloat16": 1300e12}, bandwidth=5.3e12).operators
    for rank, gpu in enumerate(("NVIDIA H200", "NVIDIA H200 NVL")):
        write(tmp_path / f"rank{rank}.json", step(HALF), head(rank, 2, gpu=gpu))
    with pytest.raises(TraceError, match=r"\(NVIDIA H200, NVIDIA H200 NVL\)"):
        Trace.load(tmp_path, cache=False).roofline()


def test_without_shapes_it_is_refused(tmp_path):
    with pytest.raises(TraceError, match="record_shapes=True"):
        load(tmp_path, launched(0, 1)).roofline()


def test_where_the_work_of_no_operator_is_known_it_is_refused(tmp_path):
    sort = operator("aten::sort", 0, [[1024, 1024]], [HALF])
    with pytest.raises(TraceError, match="of no operator the work is known"):
        load(tmp_path, [sort, *launched(1_000, 1, name="sort")]).roofline()


def test_a_data_sheet_is_that_of_one_gpu_and_no_variant():
    assert data_sheet("NVIDIA H200") is DATA_SHEETS["H200"]
    assert data_sheet("NVIDIA H100 PCIe") is None and data_sheet("NVIDIA H200 NVL") is None


def test_flops_are_those_that_pytorchs_profiler_counts(tmp_path):
    """Of real recordings: the profiler's own count, with_flops=True, beside ours of its shapes."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, record_shapes=True, with_flops=True) as profiler:
        torch.ones(8, 4) @ torch.ones(4, 6)
        torch.addmm(torch.ones(6), torch.ones(8, 4), torch.ones(4, 6))
        torch.bmm(torch.ones(3, 8, 4), torch.ones(3, 4, 6))
        torch.conv2d(torch.ones(2, 8, 9, 11), torch.ones(6, 8, 3, 3), None, (2, 1), (1, 0))
    profiler.export_chrome_trace(str(tmp_path / "rank0.json"))
    counted = {one.name: one.flops for one in profiler.events() if one.flops}
    events = json.loads((tmp_path / "rank0.json").read_text())["traceEvents"]
    recorded = {
        one["name"]: inputs_in(one.get("args", {})) or () for one in events if "name" in one
    }
    for name in ("aten::mm", "aten::addmm", "aten::bmm"):
        work = work_of(name, recorded[name])
        assert work is not None and work[0] == counted[name] > 0, name
    # The CPU's convolution has its arguments in the order of MIOpen's.
    work = work_of("aten::miopen_convolution", recorded["aten::mkldnn_convolution"])
    assert work is not None and work[0] == counted["aten::conv2d"]
