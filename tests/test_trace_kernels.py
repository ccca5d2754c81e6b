"""Where the GPU's time goes, by kernel, step, phase and annotation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Kind, Slice, Trace, TraceError
from lockstep.trace.analyses.kernels import kernels
from lockstep.trace.analyses.wording import shortened
from lockstep.trace.joins import innermost

GEMM = "void cutlass::gemm<float, 4>(cutlass::Params)"


def ran(name, start, duration, correlation=-1, rank=0, stream=7, kind=Kind.COMPUTE):
    return Slice(rank, f"stream {stream}", name, start, duration, kind, stream, correlation)


def call(at, correlation, rank=0, lane="thread 1"):
    return Slice(rank, lane, "cudaLaunchKernel", at, 1, Kind.LAUNCH, correlation=correlation)


def on_cpu(name, start, end, kind=Kind.ANNOTATION, rank=0, lane="thread 1"):
    return Slice(rank, lane, name, start, end - start, kind)


def groups(found):
    return {group.name: (group.count, group.total) for group in found.groups}


def test_kernels_by_name_largest_total_first():
    trace = Trace.from_slices(
        [
            *(ran(GEMM, 100 * at, took) for at, took in enumerate((10, 20, 60))),
            ran(GEMM, 50, 30, rank=1, stream=9),
            ran("Memset", 0, 5, kind=Kind.SET),
            ran("copy", 20, 15, rank=1, kind=Kind.COPY),
            on_cpu("aten::mm", 0, 900, Kind.OPERATOR),
        ]
    )
    found = trace.kernels()
    assert [group.name for group in found.groups] == [GEMM, "copy", "Memset"]
    gemm, copy, _ = found.groups
    assert (copy.count, copy.median) == (1, 15)
    assert (gemm.count, gemm.total, gemm.mean, gemm.median) == (4, 120, 30.0, 20)
    assert gemm.by_rank == {0: 90, 1: 30}
    assert copy.by_rank == {0: 0, 1: 15}
    assert gemm.streams == (7, 9)
    assert gemm.share == 120 / 140
    assert (found.total, found.count, found.distinct, found.unattributed) == (140, 6, 3, 0)
    top = trace.kernels(1)
    assert [group.name for group in top.groups] == [GEMM]
    assert (top.total, top.distinct) == (140, 3)
    assert "1 of 3" in str(top)


def test_ten_groups_are_shown_unless_others_are_asked_for():
    eleven = [
        one
        for at in range(11)
        for one in (
            on_cpu(f"range {at}", 10 * at, 10 * at + 5),
            call(10 * at, at),
            ran(f"kernel {at}", 10 * at, 1, at),
        )
    ]
    found = Trace.from_slices(eleven).kernels()
    assert (len(found.groups), found.distinct) == (10, 11)
    assert len(found.by_annotation().groups) == 10
    assert str(found).startswith("GPU time by kernel, 10 of 11 ")
    assert str(found.by_step()).startswith("GPU time by step, 0 of 0 ")


def test_the_same_question_has_the_same_answer_which_does_not_hold_the_trace():
    found = launched().kernels()
    assert found == launched().kernels() != found.by_step()
    assert "trace" not in repr(found)


def launched():
    return Trace.from_slices(
        [
            on_cpu("ProfilerStep#3", 0, 100, Kind.STEP),
            on_cpu("ProfilerStep#4", 100, 200, Kind.STEP),
            on_cpu("model", 0, 60),
            on_cpu("layer", 10, 30),
            on_cpu("Optimizer.step#SGD.step", 120, 160),
            on_cpu("autograd::engine::evaluate_function: MmBackward0", 50, 90, Kind.OPERATOR,
                   lane="thread 2"),
            on_cpu("nested", 55, 60, Kind.OPERATOR, lane="thread 2"),
            call(20, 1), ran("a", 300, 1, 1),  # in layer, though it runs long after
            call(40, 2), ran("a", 310, 2, 2),  # in model, after layer
            call(57, 3, lane="thread 2"), ran("a", 320, 4, 3),  # backward, on another thread
            call(130, 4), ran("a", 330, 8, 4), ran("a", 340, 16, 4),  # a graph, in the optimizer
            call(180, 5), ran("a", 360, 32, 5),  # in no annotation
            call(250, 6), ran("a", 400, 64, 6),  # in no step
            ran("a", 500, 128, 7),  # without a launch
        ]
    )  # fmt: skip


def test_kernels_by_the_step_they_were_launched_in():
    found = launched().kernels().by_step()
    assert groups(found) == {"step 3": (3, 7), "step 4": (3, 56)}
    assert found.unattributed == 64 + 128
    assert found.unattributed_share == 192 / 255
    assert "unattributed: 75.3 %" in str(found)


def test_kernels_by_the_innermost_annotation_around_their_launch():
    found = launched().kernels().by_annotation()
    assert groups(found) == {
        "layer": (1, 1),
        "model": (1, 2),
        "Optimizer.step#SGD.step": (2, 24),
    }
    assert found.unattributed == 4 + 32 + 64 + 128


def test_kernels_by_phase():
    found = launched().kernels().by_phase()
    assert groups(found) == {
        "forward and the rest": (4, 99),
        "backward": (1, 4),
        "optimizer": (2, 24),
    }
    assert found.unattributed == 128


def test_what_is_launched_as_a_phase_or_a_step_ends_is_no_longer_in_it():
    trace = Trace.from_slices(
        [
            on_cpu("ProfilerStep#0", 0, 20, Kind.STEP),
            on_cpu("Optimizer.step#SGD.step", 10, 20),
            *(one for at in (9, 10, 19, 20) for one in (call(at, at), ran("a", 100 + at, at, at))),
        ]
    )
    found = kernels(trace, by="phase")
    assert groups(found) == {"forward and the rest": (2, 29), "optimizer": (2, 29)}
    assert groups(found.by_step()) == {"step 0": (3, 38)}


def test_steps_of_one_number_count_together_and_ranks_apart():
    trace = Trace.from_slices(
        one
        for rank in (0, 1)
        for one in (
            on_cpu("ProfilerStep#0", 100 * rank, 100 * rank + 50, Kind.STEP, rank),
            call(20, 1, rank),  # in rank 0's step only
            ran("a", 300, 10 + rank, 1, rank),
        )
    )
    found = kernels(trace, by="step")
    assert groups(found) == {"step 0": (1, 10)}
    assert found.groups[0].by_rank == {0: 10, 1: 0}
    assert found.unattributed == 11


def test_without_steps_annotations_or_a_gpu_nothing_is_made_up():
    trace = Trace.from_slices([call(0, 1), ran("a", 10, 5, 1)])
    for by in ("step", "annotation"):
        found = kernels(trace, by=by)
        assert (found.groups, found.unattributed_share) == ((), 1.0)
    cpu = Trace.from_slices([on_cpu("aten::mm", 0, 10, Kind.OPERATOR)])
    for by in ("name", "step", "annotation", "phase"):
        found = kernels(cpu, by=by)
        assert (found.groups, found.total, found.unattributed_share) == ((), 0, 0.0)
        assert str(found)


def test_other_questions_are_refused():
    with pytest.raises(TraceError, match="by='colour': kernels are grouped by name, step"):
        kernels(launched(), by="colour")
    with pytest.raises(TraceError, match="top=0"):
        launched().kernels(0)


def test_names_are_shortened_for_display_only():
    assert shortened(GEMM) == "gemm<float, 4>"
    functor = (
        "void at::native::(anonymous namespace)::add<at::native::Add<float> >(int, at::T (*)())"
    )
    assert shortened(functor) == "add<Add<float> >"
    assert shortened("Memcpy HtoD (Pageable -> Device)") == "Memcpy HtoD (Pageable -> Device)"
    assert shortened("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert shortened(")") == ")"
    assert shortened("") == ""
    long = shortened("k" * 50 + "<" + "x" * 10_000_000 + ">(int)", 40)
    assert len(long) == 40
    assert long.startswith("kkk")
    assert "…" in long


def test_names_that_are_alike_when_short_stay_apart_and_text_is_escaped():
    names = ["void one::add(int)", "void two::add(int)", "<script>alert(1)</script>"]
    found = Trace.from_slices(ran(name, 10 * at, 9 - at) for at, name in enumerate(names)).kernels()
    assert "add [1]" in str(found)
    assert "add [2]" in str(found)
    assert "[" not in str(found).splitlines()[-2]  # whose name is like no other
    html = found._repr_mimebundle_()["text/html"]
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=20))
def test_the_innermost_range_of_ranges_that_overlap_in_any_way(ranges):
    ranges = sorted(
        ((start, start + length) for start, length in ranges), key=lambda r: (r[0], -r[1])
    )
    starts, ends = (np.array([r[at] for r in ranges], np.int64) for at in (0, 1))
    times = np.arange(-1, 62)
    expected = [
        next((at for at in range(len(ranges) - 1, -1, -1) if starts[at] <= t < ends[at]), -1)
        for t in times.tolist()
    ]
    assert innermost(starts, ends, times).tolist() == expected


def test_operators_and_modules_are_the_innermost_around_the_launch():
    def cpu(name, start, end, kind):
        return Slice(0, "thread 1", name, start, end - start, kind)

    def ran(at, number, lasts):
        call = Slice(0, "thread 1", "cudaLaunchKernel", at, 2, Kind.LAUNCH, correlation=number)
        work = Slice(0, "stream 7", "k", at + 5, lasts, Kind.COMPUTE, 7, number)
        return call, work

    trace = Trace.from_slices(
        [
            cpu("nn.Module: Block_0", 0, 90, Kind.PYTHON),
            cpu("block.py(7): forward", 1, 89, Kind.PYTHON),
            cpu("nn.Module: Linear_3", 5, 40, Kind.PYTHON),
            cpu("aten::linear", 6, 39, Kind.OPERATOR),
            cpu("aten::mm", 10, 30, Kind.OPERATOR),
            *ran(12, 1, 100),
            *ran(35, 2, 10),
            *ran(50, 3, 1),
            *ran(95, 4, 7),
        ]
    )
    found = trace.kernels()
    by_operator = {one.name: one.total for one in found.by_operator().groups}
    assert by_operator == {"aten::mm": 100, "aten::linear": 10}
    assert found.by_operator().unattributed == 8
    assert {one.name: one.total for one in found.by_module().groups} == {
        "nn.Module: Linear_3": 110,
        "nn.Module: Block_0": 1,
    }
    assert found.by_module().unattributed == 7
    assert "aten::mm" in str(found.by_operator(1))
