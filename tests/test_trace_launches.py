"""Launches joined to what they launched, and how far the host is ahead of its GPU."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Kind, Slice, Trace, TraceError


def step(start, end, rank=0):
    return Slice(rank, "thread 1", "ProfilerStep#0", start, end - start, Kind.STEP)


def ran(start, end, correlation, kind=Kind.COMPUTE, stream=7, rank=0):
    return Slice(
        rank, f"stream {stream}", kind.label, start, end - start, kind, stream, correlation
    )


def call(start, end, correlation, name="cudaLaunchKernel", rank=0):
    return Slice(rank, "thread 1", name, start, end - start, Kind.LAUNCH, correlation=correlation)


def eager_and_graph():
    return Trace.from_slices(
        [
            step(0, 1000),
            call(0, 10, 1),
            ran(20, 30, 1),
            call(100, 120, 2, "cuLaunchKernelEx"),
            ran(110, 200, 2),  # begins before the call returns
            call(300, 320, 3, "cudaMemcpyAsync"),
            ran(350, 360, 3, Kind.COPY, 24),
            call(400, 405, 4, "cudaMemsetAsync"),
            ran(410, 415, 4, Kind.SET),
            call(500, 540, 5, "hipGraphLaunch"),
            *(ran(at, at + 10, 5) for at in (550, 560, 600, 700)),
            call(800, 830, 6, "cudaGraphLaunch"),
            ran(840, 850, 6),  # a graph of one kernel
        ]
    )


def test_calls_are_counted_by_what_they_launch():
    found = eager_and_graph().launches()
    assert [calls.how for calls in found.calls] == ["kernel", "copy", "graph"]
    kernel, copy, graph = found.calls
    assert (kernel.calls, kernel.launched, kernel.host) == (2, 2, 30)
    assert kernel.latency == (10, 20, 20)
    assert kernel.after_call == (-10, 10, 10)
    assert (copy.calls, copy.launched, copy.latency) == (2, 2, (10, 50, 50))
    assert (graph.calls, graph.launched, graph.host) == (2, 5, 70)
    assert (graph.per_call, graph.host_per_call, graph.host_per_launched) == (2.5, 35.0, 14.0)
    assert graph.latency == (40, 50, 50)  # of the first kernel
    assert found.of(0, "graph") is graph
    assert found.notes == ()
    with pytest.raises(TraceError, match="no tensor launches of rank 0; there are: rank 0 kernel"):
        found.of(0, "tensor")


def test_one_call_that_launches_several_is_a_graphs_whatever_its_name():
    slices = [call(0, 10, 1, "replay"), ran(20, 30, 1), ran(30, 40, 1)]
    assert [calls.how for calls in Trace.from_slices(slices).launches().calls] == ["graph"]


def test_the_queue_holds_what_has_been_launched_and_has_not_begun():
    trace = Trace.from_slices(
        [
            step(0, 100),
            call(0, 10, 1),
            call(10, 20, 2),
            call(20, 30, 3),
            ran(40, 50, 1),  # queued 10–40
            ran(50, 70, 2),  # queued 20–50
            ran(90, 100, 3),  # queued 30–90
        ]
    )
    found = trace.launches()
    times, depth = found.depths[0]
    assert times.tolist() == [0, 10, 20, 30, 40, 50, 90, 100]
    assert depth.tolist() == [0, 1, 2, 3, 2, 1, 0, 0]
    queue = found.queue(0)
    # Nothing for 20 ns, one for 50, two for 20, three for 10.
    assert (queue.depth, queue.empty, queue.length) == ((1, 2, 3), 20, 100)
    # Idle and not launched: before the first call returned.
    assert (queue.host_bound, queue.stretches, queue.longest, queue.share) == (10, 1, 10, 0.1)
    with pytest.raises(TraceError, match="ranks that have: 0"):
        found.queue(5)


def test_the_queue_is_that_of_all_steps():
    second = Slice(0, "thread 1", "ProfilerStep#1", 100, 100, Kind.STEP)
    trace = Trace.from_slices([step(0, 100), second, call(150, 160, 1), ran(170, 180, 1)])
    found = trace.launches()
    assert (found.queue(0).length, found.queue(0).empty) == (200, 190)
    row = str(found).splitlines()[-2].split()
    assert row[2:] == [
        *("0", "/", "0", "/", "1"),
        *("0.000", "95.0", "%", "0.000", "80.0", "%", "1", "0.000"),
    ]


def test_of_two_depths_that_last_equally_long_the_median_is_the_lower():
    trace = Trace.from_slices([step(0, 100), call(40, 45, 1), ran(95, 100, 1)])
    assert trace.launches().queue(0).depth == (0, 1, 1)  # 50 ns each


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 80)] * 2, st.integers(0, 9), st.integers(1, 9)), min_size=1)
)
def test_queue_depth_at_every_nanosecond(programs):
    slices = [step(5, 70)]
    for correlation, (called, begun, took, ran_for) in enumerate(programs):
        slices.append(call(called, called + took, correlation))
        slices.append(ran(begun, begun + ran_for, correlation))
    trace = Trace.from_slices(slices)
    found = trace.launches()
    times, depth = (values.tolist() for values in found.depths[0])
    painted = []
    for now in range(5, times[-1]):
        queued = sum(called + took <= now < begun for called, begun, took, _ in programs)
        said = [deep for at, deep in zip(times, depth, strict=True) if at <= now][-1]
        assert said == queued
        painted.append(queued)
    queue, painted = found.queue(0), sorted(painted)
    half, most = (len(painted) + 1) // 2, -(-len(painted) * 9 // 10)
    assert queue.depth == (painted[half - 1], painted[most - 1], painted[-1])
    assert queue.empty == painted.count(0)
    part = trace.breakdown().of(0)
    assert (queue.host_bound, queue.length) == (part.host_bound, part.length)
    lengths = found.stretches[0].ends - found.stretches[0].starts
    assert (queue.stretches, queue.longest) == (len(lengths), max(lengths, default=0))


def test_what_cannot_be_joined_or_believed_is_said():
    trace = Trace.from_slices(
        [
            step(0, 100),
            ran(10, 20, 1),  # without a launch
            call(20, 25, 2),  # without a kernel
            call(25, 28, -1, "cudaStreamSynchronize"),  # launches nothing, and need not
            call(50, 60, 3),
            ran(40, 45, 3),  # begins before it is launched
        ]
    )
    notes = trace.launches().notes
    assert len(notes) == 3
    assert "the launches of 1 of 2" in notes[0]
    assert "what 1 of 2 launching calls launched" in notes[1]
    assert "1 kernels and copies begin before they are launched" in notes[2]


def test_ranks_without_a_gpu_are_left_out():
    cpu = Slice(1, "thread 1", "aten::mm", 0, 10, Kind.OPERATOR)
    found = Trace.from_slices([step(0, 50), call(0, 5, 1), ran(10, 20, 1), cpu]).launches()
    assert [queue.rank for queue in found.queues] == [0]
    assert Trace.from_slices([cpu]).launches().queues == ()


def test_launches_are_shown_as_text_and_in_a_notebook():
    found = eager_and_graph().launches()
    text, html = str(found), found._repr_mimebundle_()["text/html"]
    for piece in ("host per kernel or copy", "graph", "host-bound", "simulated"):
        assert piece in text
        assert piece in html
    assert html.count("<table>") == 2
