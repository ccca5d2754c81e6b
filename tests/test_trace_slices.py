"""The table of slices: made by hand, looked at, derived from, never changed."""

import weakref

import numpy as np
import pytest
from lockstep import Trace, recorded, simulated
from lockstep.trace import Collective, Kind, Slice, TraceError
from lockstep.trace.matching import match

SUM = Collective("all_reduce", "0", (0, 1), 8, 8, "Float")
SLICES = [
    Slice(1, "stream 7", "gemm", 50, 30, Kind.COMPUTE, stream=7, correlation=3),
    Slice(0, "main", "inner", 10, 5),
    Slice(0, "main", "outer", 10, 40),
    Slice(1, "main", "sum", 20, 10, Kind.COMMUNICATION, collective=SUM, sequence=4),
]


@pytest.fixture
def trace():
    return Trace.from_slices(SLICES, stamp=simulated("by hand"))


def test_slices_come_back_sorted_by_rank_lane_and_start_the_longer_first(trace):
    assert [one.name for one in trace] == ["outer", "inner", "gemm", "sum"]
    assert sorted(trace, key=str) == sorted(SLICES, key=str)
    assert [(lane.rank, lane.label, lane.on_device) for lane in trace.lanes] == [
        (0, "main", False),
        (1, "stream 7", True),
        (1, "main", False),
    ]
    assert trace[-1] == SLICES[3]
    assert trace.ranks == (0, 1)
    assert trace.span == (10, 80)
    assert [one.name for one in map(trace.__getitem__, trace.where(rank=1))] == ["gemm", "sum"]
    assert list(trace.where(Kind.COMMUNICATION)) == [3]
    assert trace.args(0) == {}
    assert repr(trace) == "<Trace: 4 slices in 3 lanes of 2 ranks, 0.000 ms>"


def test_nothing_can_be_written(trace):
    for values in trace.columns().values():
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


def test_columns_in_any_order_and_only_the_necessary_ones(trace):
    names = ("start", "duration", "lane", "name")
    order = np.array([2, 0, 3, 1])
    columns = {name: trace.columns()[name][order] for name in names}
    again = Trace(columns, lanes=trace.lanes, names=trace.names)
    assert [one.name for one in again] == ["outer", "inner", "gemm", "sum"]
    assert again.rank.tolist() == [0, 0, 1, 1]
    assert again.stream.tolist() == [-1, -1, 7, -1]
    assert set(again.collective.tolist()) == {-1}


def test_a_selection_keeps_lanes_names_and_stamp(trace):
    some = trace.select(trace.rank == 1)
    assert [one.name for one in some] == ["gemm", "sum"]
    assert some.ranks == trace.ranks
    assert some.stamp == trace.stamp
    assert len(trace) == 4
    moved = some.derive({"start": some.start + 5})
    assert moved.span == (25, 85)
    assert some.span == (20, 80)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Slice(0, "main", "shrinks", 5, -1), "'shrinks' at 5 ns of rank 0 has a negative duration"),
        (Slice(-2, "main", "nobody's", 5, 1), '"nobody\'s" at 5 ns of rank -2 has a negative'),
    ],
)
def test_impossible_slices_are_refused(wrong, message):
    with pytest.raises(TraceError, match=message):
        Trace.from_slices([*SLICES, wrong])


def test_an_empty_trace_has_no_span():
    assert repr(Trace.from_slices([])) == "<Trace: no slices>"
    with pytest.raises(TraceError, match="no slices"):
        _ = Trace.from_slices([]).span


def test_pandas(trace):
    frame = trace.to_pandas()
    assert frame["name"].tolist() == ["outer", "inner", "gemm", "sum"]
    assert frame["kind"].tolist() == ["other", "other", "compute", "communication"]
    assert frame["start"].dtype == np.int64
    assert frame.loc[frame["rank"] == 1, "duration"].tolist() == [30, 10]


def test_other_slices_and_other_records_are_asked_through_the_trace_as_well(trace):
    without = trace.select(trace.where(Kind.COMMUNICATION))
    assert [one.work.name for one in trace.diff(without).only_before] == ["gemm"]
    assert [one.work.name for one in without.diff(trace).only_after] == ["gemm"]
    memory = Trace.memory(recorded("traces/memory").path / "rank0.pickle.gz", stamp=trace.stamp)
    assert memory.stamp == trace.stamp and memory.device == 0
    hang = Trace.flight(recorded("traces/hang").path, stamp=trace.stamp)
    assert hang.stamp == trace.stamp and hang.ranks == (0, 1, 2, 3)


def test_what_belongs_together_is_found_once_a_trace_and_forgotten_with_it():
    both = [
        Slice(rank, "main", "sum", 20, 10, Kind.COMMUNICATION, collective=SUM) for rank in (0, 1)
    ]
    trace = Trace.from_slices(both)
    found = match(trace)
    assert match(trace) is found and len(found) == 1
    later = trace.derive({"start": trace.start + 5})
    assert match(later).start.tolist() == [25, 25]
    gone = weakref.ref(found)
    del found, trace
    assert gone() is None


@pytest.mark.parametrize(
    ("changes", "ranks", "one_clock"),
    [
        ({}, (0, 1), True),  # made by hand
        ({"about": {0: {"host": "a"}}}, (0, 1), False),
        ({"origin": np.arange(4)}, (0, 1), False),  # rows of files
        ({"about": {0: {"host": "a"}}}, (0,), True),
    ],
)
def test_whose_times_may_be_compared(changes, ranks, one_clock, trace):
    trace = Trace.from_slices([one for one in trace if one.rank in ranks])
    columns = {"origin": changes["origin"]} if "origin" in changes else {}
    measured = trace.derive(columns, about=changes.get("about"))
    assert measured.has_one_clock is one_clock
