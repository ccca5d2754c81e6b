"""What changed between two traces: exact on traces whose difference is known."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.analyses.diff import Side, Work, diff


def step(rank, number, start, kernels, length=1_000, ranges=()):
    """A step: `kernels` as (name, launched after, nanoseconds), `ranges` as (name, from, to)."""
    yield Slice(rank, "thread 1", f"ProfilerStep#{number}", start, length, Kind.STEP)
    for name, first, last in ranges:
        yield Slice(rank, "thread 1", name, start + first, last - first, Kind.ANNOTATION)
    for at, (name, called, spent) in enumerate(kernels):
        correlation = 1_000 * number + at
        launch = ("cudaLaunchKernel", start + called, 5, Kind.LAUNCH)
        yield Slice(rank, "thread 1", *launch, correlation=correlation)
        kernel = (name, start + called + 10_000, spent, Kind.COMPUTE, 7)
        yield Slice(rank, "stream 7", *kernel, correlation=correlation)


def trace_of(kernels, *, steps=2, ranks=1, ranges=()):
    return Trace.from_slices(
        one
        for rank in range(ranks)
        for number in range(steps)
        for one in step(rank, number, 1_000 * number, kernels, ranges=ranges)
    )


def by_name(found):
    return {(one.work.name, one.work.range): one for one in found.changes}


def test_it_compares_a_ranks_step_however_many_there_are():
    before = trace_of([("mm", 10, 700), ("relu", 20, 30), ("relu", 30, 40)], steps=2, ranks=1)
    after = trace_of([("mm", 10, 300), ("relu", 20, 30), ("relu", 30, 40)], steps=3, ranks=2)
    found = diff(before, after)
    assert (found.steps, found.step) == ((2, 6), (1_000, 1_000))
    mm, relu = found.changes
    assert mm.work == Work("compute", "mm", "", "")
    assert mm.delta == -400.0
    assert (mm.before, mm.after) == (Side(2, 1_400), Side(6, 1_800))
    assert relu.delta == 0.0 and relu.counts == (2.0, 2.0) and relu.after == Side(12, 420)
    assert found.total == (770.0, 370.0)
    assert not found.only_before and not found.only_after


def test_a_range_tells_equal_kernels_apart_by_the_launch_not_by_the_kernels_time():
    ranges = [("forward", 0, 500), ("block 0", 5, 100), ("block 1", 100, 200), ("loss", 600, 700)]
    one = [("mm", 10, 50), ("mm", 150, 60), ("mm", 300, 70), ("mm", 650, 80), ("mm", 800, 90)]
    other = [*one[:1], ("mm", 150, 61), *one[2:]]
    found = diff(trace_of(one, ranges=ranges), trace_of(other, ranges=ranges))
    deltas = {place: change.delta for (_, place), change in by_name(found).items()}
    assert deltas == {
        "forward / block 0": 0,
        "forward / block 1": 1,
        "forward": 0,
        "loss": 0,
        "": 0,
    }


def test_fused_kernels_stand_together_by_range():
    ranges = [("mlp", 0, 100), ("head", 200, 300)]
    before = [("mul", 10, 100), ("add", 20, 100), ("gelu", 30, 100), ("mm", 210, 50)]
    after = [("triton_fused", 10, 120), ("mm", 210, 50)]
    found = diff(trace_of(before, ranges=ranges), trace_of(after, ranges=ranges))
    (mlp,) = found.replaced()
    assert mlp.range == "mlp" and mlp.delta == -180
    assert sorted(one.work.name for one in mlp.gone) == ["add", "gelu", "mul"]
    assert [one.work.name for one in mlp.new] == ["triton_fused"]
    assert [one.work.name for one in found.matched] == ["mm"]
    assert "in mlp: 3 slices are gone and 1 new, -0.000 ms" in str(found)


def test_what_only_changed_its_range_is_matched_if_that_is_certain():
    eager = trace_of([("mm", 10, 100), ("sum", 20, 5)], ranges=[("forward", 0, 400)])
    compiled = trace_of([("mm", 10, 90), ("sum", 20, 5)], ranges=[("compiled", 0, 400)])
    moved = by_name(diff(eager, compiled))["mm", "forward"]
    assert moved.moved_to == "compiled" and moved.delta == -10
    twice = trace_of(
        [("mm", 10, 90), ("mm", 410, 90)], ranges=[("compiled", 0, 400), ("more", 400, 500)]
    )
    found = diff(eager, twice)
    assert not found.matched  # which of the two it was cannot be told
    assert [one.work.name for one in found.only_after] == ["mm", "mm"]


def test_communication_of_other_bytes_is_other_work():
    def reduced(size):
        what = Collective("all_reduce", "0", (0, 1), size, size, "Float")
        row = ("nccl", 0, 50, Kind.COMMUNICATION, 7)
        return Trace.from_slices([Slice(0, "stream 7", *row, collective=what)])

    assert diff(reduced(4_096), reduced(4_096)).matched
    found = diff(reduced(4_096), reduced(8_192))
    shapes = {one.work.shape for one in found.matched}, {one.work.shape for one in found.changes}
    assert shapes == (
        set(),
        {"all_reduce 4,096 B → 4,096 B Float", "all_reduce 8,192 B → 8,192 B Float"},
    )


def test_work_launched_outside_of_the_steps_does_not_count_and_a_note_says_so():
    kernels = [("mm", 10, 100)]
    warm_up = Slice(0, "stream 7", "mm", -5_000, 900, Kind.COMPUTE, 7)
    with_warm_up = Trace.from_slices([warm_up, *trace_of(kernels)])
    found = diff(with_warm_up, trace_of(kernels))
    assert [one.delta for one in found.changes] == [0]
    assert found.notes == ("before: 1 slices outside of the steps are not counted",)


def test_without_a_gpu_operators_count_with_their_own_time():
    def operators(inner):
        rows = [("linear", 0, 100), ("addmm", 10, inner), ("relu", 100, 50)]
        return Trace.from_slices(
            Slice(0, "thread 1", name, start, spent, Kind.OPERATOR) for name, start, spent in rows
        )

    deltas = {one.work.name: one.delta for one in diff(operators(80), operators(60)).changes}
    assert deltas == {"linear": 20, "addmm": -20, "relu": 0}


def test_without_a_gpu_all_that_works_or_communicates_counts():
    names = {
        Kind.OPERATOR: "aten::mm",
        Kind.COMPUTE: "kernel",
        Kind.COMMUNICATION: "gloo",
        Kind.SET: "memset",
        Kind.LAUNCH: "call",
        Kind.GPU_ANNOTATION: "range",
    }
    trace = Trace.from_slices(
        Slice(0, "thread 1", name, 10 * at, 5, kind)
        for at, (kind, name) in enumerate(names.items())
    )
    found = {one.work.name for one in diff(trace, trace).changes}
    assert found == {"aten::mm", "kernel", "gloo", "memset"}


def test_an_empty_trace_is_refused():
    with pytest.raises(TraceError, match="after has no slices"):
        diff(trace_of([("mm", 10, 100)]), Trace.from_slices([]))


def test_it_says_in_words_what_changed_and_escapes_names():
    found = diff(trace_of([("<i>mm</i>", 10, 700_000)]), trace_of([("<i>mm</i>", 10, 300_000)]))
    lines = str(found).splitlines()
    assert lines[0] == (
        "GPU time of a rank's step: 0.700 → 0.300 ms (-57.1 %); the step itself: 0.001 → 0.001 ms"
    )
    assert re.split("  +", lines[3]) == [
        *("<i>mm</i>", "no range", "1", "1", "0.700", "0.300", "-0.400"),
    ]
    assert lines[-1] == "1 kinds of work are in both traces, 0 only before, 0 only after"
    assert "<i>" not in found._repr_mimebundle_()["text/html"]
    other = str(diff(trace_of([("mul", 10, 1_000)]), trace_of([("fused", 10, 2_000)])))
    assert [line.split()[:3] for line in other.splitlines()[3:5]] == [
        ["fused", "only", "after:"],
        ["mul", "only", "before:"],
    ]


kernel = st.tuples(st.sampled_from("abc"), st.integers(0, 999), st.integers(1, 10**9))
kernels = st.lists(kernel, min_size=1, max_size=12)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(kernels, kernels, st.integers(1, 3), st.integers(1, 3), st.integers(0, 999))
def test_totals_are_exact(one, other, ranks, steps, half):
    ranges = [("first half", 0, half), ("second half", half, 1_000)] if half else []

    def expected(what, times):
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for name, called, spent in what:
            place = ("first half" if called < half else "second half") if half else ""
            count, total = sums.get((name, place), (0, 0))
            sums[name, place] = count + 1, total + spent
        return {key: Side(count * times, total * times) for key, (count, total) in sums.items()}

    before, after = trace_of(one, ranges=ranges), trace_of(other, steps=steps, ranks=ranks)
    after = trace_of(other, steps=steps, ranks=ranks, ranges=ranges)
    found = diff(before, after)
    sides: tuple[dict[Any, Side], dict[Any, Side]] = {}, {}
    for change in found.changes:
        place = change.work.range if change.moved_to is None else change.moved_to
        for side, range_, into in (
            (change.before, change.work.range, sides[0]),
            (change.after, place, sides[1]),
        ):
            if side.count:
                into[change.work.name, range_] = side
    assert sides == (expected(one, 2), expected(other, steps * ranks))
    same = diff(before, before)
    assert all(change.delta == 0 and change.matched for change in same.changes)
    assert dataclasses.replace(same, stamps=()).total[0] == same.total[1]
