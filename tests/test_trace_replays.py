"""What replays of graphs ran, and the operators that were captured."""

from pathlib import Path

import pytest
from lockstep import Trace
from lockstep.trace import Kind, Slice

TRACES = Path(__file__).parents[1] / "data" / "traces"


def call(start, name, correlation=0, rank=0):
    return Slice(rank, "thread 1", name, start, 5, Kind.LAUNCH, correlation=correlation)


def operator(name, start, end, rank=0):
    return Slice(rank, "thread 1", name, start, end - start, Kind.OPERATOR)


def ran(name, start, end, correlation, kind=Kind.COMPUTE, stream=7, rank=0):
    return Slice(rank, f"stream {stream}", name, start, end - start, kind, stream, correlation)


CAPTURE = [
    call(0, "cudaStreamBeginCapture_v10000"),
    operator("aten::linear", 10, 60),
    operator("aten::addmm", 15, 55),
    call(20, "cudaLaunchKernel"),
    operator("aten::copy_", 60, 90),
    call(70, "cudaMemcpyAsync"),
    operator("aten::relu", 100, 150),
    call(110, "cudaLaunchKernel"),
    call(200, "cudaStreamEndCapture"),
    call(210, "cudaGraphInstantiate"),
]


def replay(at, correlation, later=0, stream=7, rank=0):
    """Three nodes, with an idle time of 5 before the copy and of 10 + later before the last one."""
    return [
        call(at, "cudaGraphLaunch", correlation, rank),
        ran("gemm", at + 10, at + 40, correlation, rank=rank),
        ran("Memcpy DtoD", at + 45, at + 60, correlation, Kind.COPY, stream, rank),
        ran("relu", at + 70 + later, at + 90 + later, correlation, rank=rank),
    ]


def test_nodes_are_linked_to_the_operators_that_were_captured():
    step = Slice(0, "thread 1", "ProfilerStep#3", 900, 700, Kind.STEP)
    slower = [*replay(1200, 2, later=20)[:-1], ran("relu", 1290, 1320, 2)]
    trace = Trace.from_slices([*CAPTURE, step, *replay(1000, 1), *slower])
    (graph,) = trace.replays().graphs
    assert (graph.rank, graph.replays, graph.where) == (0, 2, "ProfilerStep")
    assert graph.lengths == (80, 80, 110)
    assert graph.busy == pytest.approx((65 + 75) / 190)
    assert (graph.launch, graph.linked) == (5, "")
    assert [one.name for one in graph.nodes] == ["gemm", "Memcpy DtoD", "relu"]
    assert [one.start for one in graph.nodes] == [0, 35, 70]
    assert [one.time for one in graph.nodes] == [30, 15, 25]
    assert [one.longest for one in graph.nodes] == [30, 15, 30]
    assert [one.gap for one in graph.nodes] == [0, 5, 20]  # 10 and 30
    assert [one.captured_in for one in graph.nodes] == ["aten::addmm", "aten::copy_", "aten::relu"]


def test_calls_that_make_no_node_are_no_part_of_a_capture():
    driver = [Slice(0, "thread 1", "cuLaunchKernel", at, 1, Kind.LAUNCH) for at in (21, 23)]
    made = [
        ran("relu", -90, -80, 9),
        *CAPTURE[:4],
        *driver,
        *CAPTURE[4:-2],
        call(130, "cudaLaunchHostFunc"),
        *CAPTURE[-2:],
    ]
    (graph,) = Trace.from_slices([*made, *replay(1000, 1)]).replays().graphs
    assert [one.captured_in for one in graph.nodes] == ["aten::addmm", "aten::copy_", "aten::relu"]


def test_nodes_of_branches_that_run_one_beside_another_idle_only_where_none_runs():
    """A long node on one stream; on another a short one inside of it, and one after both."""
    beside = [
        call(0, "cudaGraphLaunch", 1),
        ran("long", 10, 100, 1),
        ran("short", 20, 30, 1, stream=8),
    ]
    trace = Trace.from_slices([*beside, ran("last", 110, 120, 1, stream=8)])
    (graph,) = trace.replays().graphs
    assert [(one.name, one.gap) for one in graph.nodes] == [("long", 0), ("short", 0), ("last", 10)]
    assert graph.lengths[0] == 110
    assert graph.busy == pytest.approx(100 / 110)


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        (replay(1000, 1), "the trace has no capture"),
        ([*CAPTURE, *replay(1000, 1, stream=8)], "several streams"),
        ([*CAPTURE, *replay(1000, 1)[:-1]], "none of the trace's captures"),
        # A copy where the capture has a kernel.
        (
            [*CAPTURE, *replay(1000, 1)[:2], ran("a", 1050, 1060, 1), ran("b", 1060, 1070, 1)],
            "none",
        ),
        (
            [
                *CAPTURE,
                call(500, "cudaStreamBeginCapture"),
                *(
                    call(at, name)
                    for at, name in ((510, "cuLaunchKernel"), (520, "cudaMemcpyAsync"))
                ),
                *(call(530, "cudaLaunchKernel"), call(540, "cudaStreamEndCapture")),
                *replay(1000, 1),
            ],
            "several of the trace's captures",
        ),
    ],
)
def test_what_cannot_be_linked_says_why(slices, why):
    found = Trace.from_slices(slices).replays()
    assert why in found.graphs[0].linked
    assert f"rank 0: {found.graphs[0].linked}" in str(found)
    assert {one.captured_in for one in found.graphs[0].nodes} == {""}


def test_a_capture_elsewhere_is_no_capture_of_this_rank():
    trace = Trace.from_slices([*CAPTURE, *replay(1000, 1), *replay(1000, 1, rank=1)])
    mine, other = trace.replays().graphs
    assert (mine.linked, mine.nodes[0].captured_in) == ("", "aten::addmm")
    assert (other.rank, other.linked[:24]) == (1, "the trace has no capture")


def test_graphs_are_told_apart_by_what_they_run_whatever_the_order():
    swapped = [
        call(3000, "cudaGraphLaunch", 4),
        *(ran("relu", 3010, 3030, 4, stream=8), ran("gemm", 3015, 3045, 4)),
        ran("Memcpy DtoD", 3050, 3060, 4, Kind.COPY),
    ]
    other = [call(2000, "hipGraphLaunch", 3), ran("gemm", 2010, 2500, 3)]
    trace = Trace.from_slices([*replay(1000, 1), *other, *swapped])
    graphs = trace.replays().graphs
    assert [(one.replays, len(one.nodes)) for one in graphs] == [(1, 1), (2, 3)]
    assert {one.name: one.time for one in graphs[1].nodes} == {
        "gemm": 30,
        "Memcpy DtoD": 12.5,
        "relu": 20,
    }


def test_a_trace_without_graphs_says_so():
    trace = Trace.from_slices([call(0, "cudaLaunchKernel", 1), ran("gemm", 10, 20, 1)])
    assert str(trace.replays()).startswith("no graph was replayed\n")
    assert "no graph was replayed" in trace.replays()._repr_mimebundle_()["text/html"]


def test_the_recorded_graph_has_six_kernels_a_layer():
    graphs = Trace.load(TRACES / "tensor-parallel-graph").replays().graphs
    assert [(one.rank, one.replays, len(one.nodes)) for one in graphs] == [
        (rank, 3, 96) for rank in range(4)
    ]
    for one in graphs:
        inside = sum(node.time + node.gap for node in one.nodes)
        assert inside == pytest.approx(sum(one.lengths) / 3, rel=0.01)
        assert 100 * one.busy == pytest.approx(84, abs=1)
