"""Each stream by itself, and kernels and launches of unusual length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Kind, Slice, Trace, TraceError

US = 1_000


def ran(start, duration, correlation=-1, stream=7, name="gemm", rank=0):
    kind = Kind.COMPUTE
    return Slice(
        rank, f"stream {stream}", name, start * US, duration * US, kind, stream, correlation
    )


def call(start, duration, correlation, name="cudaLaunchKernel", rank=0):
    return Slice(
        rank, "thread 1", name, start * US, duration * US, Kind.LAUNCH, correlation=correlation
    )


def outliers(found):
    return {
        (one.kind, one.name): (one.count, one.of, one.time, one.worst) for one in found.outliers
    }


def test_streams_side_by_side():
    found = Trace.from_slices(
        [
            *(call(0, 10, 1), ran(20, 30, 1)),
            *(call(15, 10, 2), ran(40, 20, 2, stream=9)),
            *(call(70, 10, 3), ran(100, 50, 3)),
        ]
    ).streams()
    one, two = found.streams
    assert (one.rank, one.stream, one.count, one.busy, one.alone) == (0, 7, 2, 80 * US, 70 * US)
    # From 50 to 100: until 80 the next had not been launched.
    assert (one.host_bound, one.dependency, one.other) == (30 * US, 20 * US, 0)
    assert (one.gaps, one.longest) == (1, 50 * US)
    assert (two.busy, two.alone) == (20 * US, 10 * US)
    # From 20 to 40: until 25; behind its last kernel until 150 nothing follows.
    assert (two.host_bound, two.dependency, two.other) == (5 * US, 15 * US, 90 * US)
    assert (two.gaps, two.longest) == (2, 90 * US)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_nanosecond_of_a_stream_is_told_once(seed):
    rng = np.random.default_rng(seed)
    slices = []
    for number in range(int(rng.integers(1, 30))):
        start, took = int(rng.integers(50, 300)), int(rng.integers(0, 40))
        slices.append(ran(start, took, number, stream=int(rng.integers(1, 4)), rank=number % 2))
        if rng.random() < 0.7:
            slices.append(call(start - int(rng.integers(1, 50)), 3, number, rank=number % 2))
    trace = Trace.from_slices(slices)
    for one in trace.streams().streams:
        rows = np.flatnonzero((trace.rank == one.rank) & (trace.stream > 0))
        span = np.zeros(400 * US // 100, int)
        alone = span.copy()
        for row in rows:
            piece = slice(int(trace.start[row]) // 100, int(trace.end[row]) // 100)
            (span if trace.stream[row] == one.stream else alone)[piece] = 1
        length = int(trace.end[rows].max() - trace.start[rows].min())
        assert one.busy == 100 * span.sum() and one.busy + one.idle == length
        assert one.alone == 100 * (span & ~alone & 1).sum()
        assert min(one.host_bound, one.dependency, one.other) >= 0


def test_what_stands_out():
    trace = Trace.from_slices(
        [
            *(call(0, 12, 1), ran(13, 5, 1, name="tiny")),  # shorter than its launch, and short
            *(call(20, 8, 2), ran(30, 9, 2, name="tiny")),  # short
            *(call(40, 60, 3), ran(101, 200, 3)),  # a long call
            *(call(110, 5, 4), ran(310, 20, 4)),  # its stream was busy: 9 µs late
            *(call(340, 10, 5), ran(500, 20, 5)),  # 150 µs late
            *(call(600, 90, 6, name="cudaGraphLaunch"), ran(691, 3, 6), ran(695, 12, 6)),
        ]
    )
    found = trace.streams()
    assert outliers(found) == {
        ("shorter than its launch", "tiny"): (1, 2, 5 * US, 5 * US),
        ("short", "tiny"): (2, 2, 14 * US, 5 * US),
        ("short", "gemm"): (1, 5, 3 * US, 3 * US),
        ("long call", "cudaLaunchKernel"): (1, 5, 60 * US, 60 * US),
        ("long call", "cudaGraphLaunch"): (1, 1, 90 * US, 90 * US),
        ("late start", "gemm"): (1, 5, 150 * US, 150 * US),
    }
    assert "late over 100.0 µs" in str(found)
    strict = outliers(trace.streams(short=0, call=70 * US, late=5 * US))
    assert {kind for kind, _ in strict} == {"shorter than its launch", "long call", "late start"}
    assert sum(count for (kind, _), (count, *_) in strict.items() if kind == "late start") == 2


def test_the_worst_of_those_that_are_shorter_than_their_launches_is_the_shortest():
    some = [*(call(0, 10, 1), ran(20, 4, 1)), *(call(30, 10, 2), ran(50, 8, 2))]
    found = outliers(Trace.from_slices(some).streams())
    assert found["shorter than its launch", "gemm"] == (2, 2, 12 * US, 4 * US)


def test_limits_below_zero_and_traces_without_a_gpu():
    with pytest.raises(TraceError, match="0 ns or more"):
        Trace.from_slices([ran(0, 1)]).streams(short=-1)
    with pytest.raises(TraceError, match="no kernels"):
        Trace.from_slices([call(0, 1, 1)]).streams()
