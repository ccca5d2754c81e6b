"""Passes of inference servers are steps, told apart by phase; other annotations are none."""

from __future__ import annotations

import pytest
from kineto_files import event, head, kernel, write
from lockstep.trace import Kind, Trace, TraceError
from lockstep.trace.read.kineto import kinds
from lockstep.trace.steps import Batch, batch_in

START = 1_000_000_000
PASSES = {
    "execute_context_1(888)_generation_0(0)": Batch("prefill", 1, 888),
    "execute_context_1(888_788544)_generation_0(0)": Batch("prefill", 1, 888),
    "execute_context_2(100)_generation_30(31)": Batch("mixed", 32, 131),
    "execute_context_0(0)_generation_7(7)": Batch("decode", 7, 7),
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk5sqsq32sqsk5)": Batch(
        "decode", 32, 32
    ),
    "step[DECODE bs=32]": Batch("decode", 32),
    "step[EXTEND bs=15 toks=15360]": Batch("prefill", 15, 15_360),
    "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]": Batch("prefill", 2, 12),
    "step[MIXED bs=4 toks=130]": Batch("mixed", 4, 130),
    "prefill[bs=2 tok=16384]": Batch("prefill", 2, 16_384),
    "decode[bs=64 tok=64]": Batch("decode", 64, 64),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_a_pass_works_on(name):
    assert kinds.kind("user_annotation", name) is Kind.STEP
    assert batch_in(name) == PASSES[name]


@pytest.mark.parametrize(
    "name", ["execute_diffusion_1_256x256", "execute_model", "step[3]", "prefill", "decode_step"]
)
def test_other_annotations_are_no_passes(name):
    assert kinds.kind("user_annotation", name) is Kind.ANNOTATION
    assert batch_in(name) is None


def work(at, correlation, duration):
    return [
        event("cuda_runtime", "cudaLaunchKernel", START + at, 1_000, correlation=correlation),
        kernel("gemm", START + at + 2_000, duration, correlation=correlation),
    ]


def test_passes_by_phase(tmp_path):
    def annotated(name, at):
        return event("user_annotation", name, START + at, 40_000)

    events = [
        annotated("execute_context_2(300)_generation_0(0)", 0),
        *work(1_000, 1, 30_000),
        annotated("execute_context_0(0)_generation_2(2)", 50_000),
        event("user_annotation", "step[DECODE bs=2]", START + 51_000, 30_000),  # inside: no step
        *work(52_000, 2, 10_000),
        annotated("execute_context_0(0)_generation_4(4)", 110_000),
        *work(111_000, 3, 20_000),
    ]
    write(tmp_path / "rank0.json", events, head())
    trace = Trace.load(tmp_path, cache=False)
    assert [step.number for step in trace.steps()] == [0, 1, 2]
    decode, prefill = trace.serving().passes
    assert (prefill.phase, prefill.passes, prefill.requests) == ("prefill", 1, 2)
    assert (prefill.length, prefill.compute, prefill.idle) == (50_000, 30_000, 20_000)
    assert prefill.tokens_per_second == pytest.approx(300 / 50e-6)
    assert (decode.phase, decode.passes, decode.requests, decode.tokens) == ("decode", 2, 2, 6)
    assert (decode.length, decode.median, decode.compute) == (100_000, 40_000, 30_000)
    assert decode.host_bound <= decode.idle == 70_000
    assert "6,000,000" in str(trace.serving())
    assert [one.phase for one in trace.serving(skip=1).passes] == ["decode"]


def test_a_trace_of_no_server_is_refused(tmp_path):
    write(tmp_path / "rank0.json", work(0, 1, 10), head())
    with pytest.raises(TraceError, match="no step of these traces is a pass"):
        Trace.load(tmp_path, cache=False).serving()
