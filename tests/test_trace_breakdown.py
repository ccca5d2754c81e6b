"""Steps, and what each rank's time went to: against every nanosecond painted by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lockstep.trace import Kind, Lane, Slice, Step, Trace, TraceError

SORTS = {
    "compute": Kind.COMPUTE,
    "communication": Kind.COMMUNICATION,
    "copy": Kind.COPY,
    "set": Kind.SET,
}
COLUMNS = ["compute", "communication", "overlapped", "exposed", "copies"]
COLUMNS += ["host_bound", "dependency", "other"]
TIMES = st.integers(0, 90)


def step(name, start, end, rank=0, lane="thread 1"):
    return Slice(rank, lane, name, start, end - start, Kind.STEP)


def ran(kind, start, end, stream=7, correlation=-1, rank=0):
    lane = f"stream {stream}"
    return Slice(rank, lane, kind.label, start, end - start, kind, stream, correlation)


def launch(start, end, correlation, rank=0, name="cudaLaunchKernel"):
    return Slice(rank, "thread 1", name, start, end - start, Kind.LAUNCH, correlation=correlation)


@st.composite
def programs(draw):
    """(steps, work, launches) of one rank: kernels anywhere, few correlations, so many graphs."""
    at, steps = draw(st.integers(5, 30)), []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 25))
        steps.append((at, at + length))
        at += length + draw(st.integers(0, 4))
    work = draw(
        st.lists(
            st.tuples(
                st.sampled_from(list(SORTS)),
                TIMES,
                st.integers(0, 12),
                st.sampled_from([7, 20, 24]),
                st.integers(-1, 7),
            ),
            max_size=14,
        )
    )
    calls = draw(st.dictionaries(st.integers(0, 7), st.tuples(TIMES, st.integers(0, 9))))
    return steps, work, calls


def painted(steps, work, calls):
    """What every nanosecond of every step goes to, one after the other. Takes and gives no rows."""
    work = [one for one in work if one[2] > 0]
    last = steps[-1][1]
    end = last
    for _, start, duration, _, correlation in work:
        begun = calls[correlation][0] if correlation in calls else start
        if begun < last:
            end = max(end, start + duration)
    bounds = [start for start, _ in steps] + [end]
    result = []
    for first, after in pairwise(bounds):
        tally = dict.fromkeys(COLUMNS, 0)
        for now in range(first, after):
            running = {one[0] for one in work if one[1] <= now < one[1] + one[2]}
            tally["compute"] += "compute" in running
            tally["communication"] += "communication" in running
            tally["overlapped"] += {"compute", "communication"} <= running
            tally["exposed"] += "communication" in running and "compute" not in running
            tally["copies"] += bool(running) and not running & {"compute", "communication"}
            if not running:
                tally[why_idle(now, work, calls)] += 1
        result.append((first, after, tally))
    return result


def why_idle(now, work, calls):
    later = [one for one in work if one[1] > now]
    soonest = min((one[1] for one in later), default=None)
    known = [one for one in later if one[1] == soonest and one[4] in calls]
    if not known:
        return "other"
    for _, start, _, _, correlation in known:
        inside_graph = any(one[4] == correlation and one[1] < start for one in work)
        if inside_graph or sum(calls[correlation]) <= now:
            return "dependency"
    return "host_bound"


def slices_of(rank, steps, work, calls):
    yield from (
        step(f"ProfilerStep#{at}", begin, end, rank) for at, (begin, end) in enumerate(steps)
    )
    for sort, start, duration, stream, correlation in work:
        yield ran(SORTS[sort], start, start + duration, stream, correlation, rank)
    for correlation, (start, duration) in calls.items():
        # Its name says nothing of kernels, as it may launch copies, or nothing.
        yield launch(start, start + duration, correlation, rank, name="launch")


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(programs(), min_size=1, max_size=3))
def test_every_nanosecond_goes_where_painting_puts_it(ranks):
    trace = Trace.from_slices(
        one for rank, program in enumerate(ranks) for one in slices_of(rank, *program)
    )
    assume(any(work for _, work, _ in ranks))
    found = trace.breakdown()
    for rank, (steps, work, calls) in enumerate(ranks):
        if not work:  # beside ranks with a GPU it has lost its kernels
            assert rank in found.unseen
            continue
        own = [part for part in found.steps if part.rank == rank]
        expected = painted(steps, work, calls)
        assert len(own) == len(expected)
        for number, (part, (start, end, tally)) in enumerate(zip(own, expected, strict=True)):
            assert (part.step, part.start, part.end) == (number, start, end)
            assert {name: getattr(part, name) for name in tally} == tally
        total = found.of(rank)
        assert (total.start, total.end) == (expected[0][0], expected[-1][1])
        for part in (*own, total):
            idle = part.host_bound + part.dependency + part.other
            assert part.compute + part.exposed + part.copies + idle == part.length
            assert part.idle == idle
        assert total.communication == sum(part.communication for part in own)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.lists(programs(), min_size=2, max_size=3), st.randoms())
def test_the_order_of_lanes_and_rows_does_not_matter(ranks, random):
    trace = Trace.from_slices(
        one for rank, program in enumerate(ranks) for one in slices_of(rank, *program)
    )
    assume(any(work for _, work, _ in ranks))
    lanes, rows = list(range(len(trace.lanes))), list(range(len(trace)))
    random.shuffle(lanes)
    random.shuffle(rows)
    columns = {name: values[rows] for name, values in trace.columns().items()}
    columns["lane"] = np.argsort(lanes)[columns["lane"]]
    other = Trace(columns, lanes=[trace.lanes[at] for at in lanes], names=trace.names)
    assert other.breakdown() == trace.breakdown()


def test_a_gap_is_the_hosts_until_the_launch_returns_and_a_dependency_from_then_on():
    trace = Trace.from_slices(
        [
            step("ProfilerStep#0", 0, 100),
            launch(0, 5, 1),
            ran(Kind.COMPUTE, 8, 20, correlation=1),  # 0–5 host, 5–8 launched
            launch(40, 45, 2),
            ran(Kind.COMPUTE, 60, 70, correlation=2),  # 20–45 host, 45–60 launched
            launch(50, 55, 3),
            ran(Kind.COMPUTE, 75, 80, correlation=3),  # 70–75 launched long before
            ran(Kind.COMPUTE, 84, 90, correlation=4),  # 80–84 no launch in the trace
        ]
    )
    part = trace.breakdown().of(0, 0)
    assert (part.host_bound, part.dependency, part.other) == (30, 23, 14)
    assert any("the launches of 1 of 4" in note for note in trace.breakdown().notes)


def test_inside_a_graph_nothing_is_host_bound():
    graph = [
        step("ProfilerStep#0", 0, 100),
        launch(10, 70, 1, name="cudaGraphLaunch"),  # returns late
        ran(Kind.COMPUTE, 20, 30, correlation=1),
        ran(Kind.COMPUTE, 50, 100, correlation=1),
    ]
    part = Trace.from_slices(graph).breakdown().of(0, 0)
    assert (part.host_bound, part.dependency) == (20, 20)
    graph[-1] = ran(Kind.COMPUTE, 50, 100, correlation=2)  # a launch of its own
    part = Trace.from_slices([*graph, launch(30, 55, 2)]).breakdown().of(0, 0)
    assert (part.host_bound, part.dependency) == (40, 0)


def test_the_runtimes_call_counts_and_not_the_drivers_inside_of_it():
    trace = Trace.from_slices(
        [
            step("ProfilerStep#0", 0, 50),
            launch(0, 20, 1),
            launch(5, 10, 1, name="cuLaunchKernel"),
            ran(Kind.COMPUTE, 30, 50, correlation=1),
        ]
    )
    assert trace.breakdown().of(0).host_bound == 20


def test_calls_and_kernels_without_a_correlation_are_not_joined():
    trace = Trace.from_slices(
        [step("ProfilerStep#0", 0, 50), launch(0, 20, -1), ran(Kind.COMPUTE, 30, 50)]
    )
    assert trace.breakdown().of(0).other == 30


def test_one_ranks_launches_are_not_the_others():
    slices = [
        *(step("ProfilerStep#0", 0, 50, rank) for rank in (0, 1)),
        *(ran(Kind.COMPUTE, 30, 50, correlation=1, rank=rank) for rank in (0, 1)),
        launch(0, 20, 1, rank=1),
    ]
    found = Trace.from_slices(slices).breakdown()
    assert [(part.host_bound, part.other) for part in found.steps] == [(0, 30), (20, 0)]


def three_steps():
    return Trace.from_slices(
        [
            *(step(f"ProfilerStep#{n}", 100 * n, 100 * n + 99, rank)
              for n in (4, 5, 6) for rank in (0, 1)),
            *(ran(Kind.COMPUTE, 100 * n, 100 * n + 10 * n, rank=rank)
              for n in (4, 5, 6) for rank in (0, 1)),
        ]
    )  # fmt: skip


def test_a_step_left_out_is_said():
    trace = three_steps()
    whole, rest, least = (trace.breakdown(skip=skip) for skip in (0, 1, 2))
    assert [part.compute for part in whole.totals] == [150, 150]
    assert [part.compute for part in rest.totals] == [110, 110]
    assert [part.step for part in rest.steps] == [5, 6, 5, 6]
    assert (rest.of(0).start, rest.of(0).length) == (500, 199)
    lines = str(rest).splitlines()
    rows = [line.split() for line in lines[3:5]]
    assert rows[0][:4] == ["0", "2", "0.000", "0.000"]  # rank, steps, length, compute
    assert lines[9].split()[:4] == ["0", "2", "55.3", "%"]  # and its share
    assert rows[1][:2] == ["1", "2"]
    assert "without" not in str(whole)
    assert "without step 4" in str(rest)
    assert "without steps 4 and 5" in least._repr_mimebundle_()["text/html"]
    with pytest.raises(TraceError, match="rank 0 has 3 steps, so skip=3 leaves nothing"):
        trace.breakdown(skip=3)
    with pytest.raises(TraceError, match="skip=-1"):
        trace.breakdown(skip=-1)


def test_work_is_counted_where_it_runs_and_the_last_step_waits_for_its_own():
    trace = Trace.from_slices(
        [
            step("ProfilerStep#0", 0, 50),
            step("ProfilerStep#1", 50, 100),
            launch(0, 10, 1),
            ran(Kind.COMPUTE, 40, 70, correlation=1),
            launch(99, 110, 2),
            ran(Kind.COMPUTE, 120, 150, correlation=2),
            launch(100, 110, 3),  # after the last step
            ran(Kind.COMPUTE, 150, 180, correlation=3),
        ]
    )
    first, last = trace.breakdown().steps
    assert (first.end, first.compute, last.compute) == (50, 10, 50)
    assert last.end == 150


def test_time_between_annotations_is_the_step_befores_and_said_where_it_is_much():
    slices = [step("ProfilerStep#0", 0, 40), step("ProfilerStep#1", 90, 100)]
    found = Trace.from_slices(slices).breakdown()
    assert [part.length for part in found.steps] == [90, 10]
    assert any("50.0 % of the time is between its step annotations" in note for note in found.notes)
    assert not any("between" in note for note in three_steps().breakdown().notes)
    little = [step("ProfilerStep#0", 0, 50), step("ProfilerStep#1", 51, 100)]  # 1 %
    assert Trace.from_slices(little).breakdown().notes == ()


def test_a_cell_holds_one_value_and_shares_add_up():
    found = three_steps().breakdown()
    times, shares = found._tables()
    assert len(times.rows) == len(shares.rows) == 2
    cells = [cell.removesuffix(" %") for row in times.rows + shares.rows for cell in row]
    assert not any(" " in cell or "(" in cell for cell in cells)
    for row in shares.rows:
        assert sum(float(cell.removesuffix(" %")) for cell in row[2:-1]) == pytest.approx(100)
    assert times.rows[0][:2] == shares.rows[0][:2] == ["0", "3"]
    assert str(found).count("made by hand") == 1  # one stamp for both tables
    assert found._repr_mimebundle_()["text/html"].count("made by hand") == 1


def test_without_communication_there_is_no_overlap_to_speak_of():
    found = three_steps().breakdown()
    assert found.of(0).overlap is None
    assert {row[-1] for row in found._tables()[1].rows} == {"–"}
    half = [
        step("ProfilerStep#0", 0, 30),
        ran(Kind.COMPUTE, 0, 20),
        ran(Kind.COMMUNICATION, 10, 30, 20),
    ]
    found = Trace.from_slices(half).breakdown()
    assert found.of(0).overlap == 0.5
    assert "50.0 %" in str(found)


def test_a_rank_without_a_gpu_computes_in_operators_and_communicates_in_gloo():
    def on(lane, name, start, end, kind=Kind.OPERATOR):
        return Slice(0, lane, name, start, end - start, kind)

    trace = Trace.from_slices(
        [
            step("ProfilerStep#0", 0, 100),
            on("thread 1", "aten::linear", 10, 30),
            on("thread 1", "aten::mm", 15, 25),
            on("thread 2", "aten::mm", 20, 40),
            on("thread 1", "c10d::allreduce_", 50, 60),
            on("thread 1", "record_param_comms", 52, 58),
            on("thread 3", "gloo:all_reduce", 35, 80, Kind.COMMUNICATION),
        ]
    )
    part = trace.breakdown().of(0, 0)
    assert (part.compute, part.communication, part.overlapped) == (30, 45, 5)
    assert (part.host_bound, part.dependency, part.other) == (0, 0, 30)


def test_operators_do_not_count_where_there_is_a_gpu():
    trace = Trace.from_slices(
        [
            step("ProfilerStep#0", 0, 100),
            Slice(0, "thread 1", "aten::mm", 0, 100, Kind.OPERATOR),
            ran(Kind.COMPUTE, 50, 60),
        ]
    )
    assert trace.breakdown().of(0).compute == 10


def test_a_trace_that_names_no_steps_is_one_step_and_says_so():
    trace = Trace.from_slices([ran(Kind.COMPUTE, 10, 30), launch(5, 8, 1), launch(3, 90, 2)])
    assert trace.steps() == (Step(0, -1, 3, 90),)
    found = trace.breakdown()
    assert (found.of(0).length, found.of(0).compute) == (87, 20)
    assert "whole trace" in str(found)
    assert any("names no steps" in note for note in found.notes)
    with pytest.raises(TraceError, match="no step annotations"):
        trace.breakdown(skip=1)


def test_an_empty_trace_is_refused():
    with pytest.raises(TraceError, match="no slices"):
        Trace.from_slices([]).breakdown()


def test_asking_for_what_is_not_there_names_what_is():
    found = three_steps().breakdown()
    with pytest.raises(TraceError, match=r"no rank 7 .* there are: 0, 1"):
        found.of(7)
    with pytest.raises(TraceError, match=r"rank 1 has no step 9 .* it has: 4, 5, 6"):
        found.of(1, 9)


# ── Steps ────────────────────────────────────────────────────────────────────────────────────


def numbers(*slices):
    found = Trace.from_slices(slices).steps()
    return [(one.number, one.start, one.end) for one in found]


def test_steps_are_numbered_by_their_names_or_their_places():
    assert numbers(step("ProfilerStep#12", 0, 9), step("ProfilerStep#13", 9, 20)) == [
        (12, 0, 9),
        (13, 9, 20),
    ]
    assert numbers(step("train step 3", 0, 9), step("Step_004/100", 9, 20)) == [
        (3, 0, 9),
        (4, 9, 20),
    ]
    assert numbers(step("an iteration", 0, 9), step("an iteration", 9, 20)) == [
        (0, 0, 9),
        (1, 9, 20),
    ]


def test_the_gpus_copy_of_a_step_is_none():
    gpu = Slice(0, "stream 7", "ProfilerStep#0", 4, 90, Kind.GPU_ANNOTATION, 7)
    assert numbers(step("ProfilerStep#0", 0, 9), gpu) == [(0, 0, 9)]
    mistaken = [Slice(0, "stream 7", "ProfilerStep#0", at, 40, Kind.STEP, 7) for at in (4, 44)]
    assert numbers(step("ProfilerStep#0", 0, 9), *mistaken) == [(0, 0, 9)]


def test_of_nested_steps_the_outermost_counts_and_the_profilers_before_others():
    outer = [step("step 0", 0, 50), step("step 1", 50, 100)]
    assert numbers(*outer, step("step 7", 10, 20), step("step 8", 90, 100)) == [
        (0, 0, 50),
        (1, 50, 100),
    ]
    profilers = [step("ProfilerStep#4", 10, 20), step("ProfilerStep#5", 20, 95)]
    assert numbers(*outer, *profilers) == [(4, 10, 20), (5, 20, 95)]


def test_steps_that_reach_into_the_next_are_cut():
    assert numbers(step("step 0", 0, 52), step("step 1", 50, 100)) == [(0, 0, 50), (1, 50, 100)]


def test_the_thread_with_the_most_steps_counts():
    slices = [step(f"step {n}", 10 * n, 10 * n + 10, lane="thread 2") for n in range(3)]
    assert numbers(step("step 0", 1, 12), *slices) == [(0, 0, 10), (1, 10, 20), (2, 20, 30)]


def test_a_lane_of_a_rank_without_slices_has_no_step():
    lanes = [Lane(0, "thread 1"), Lane(1, "thread 1")]
    columns = {name: np.array([value]) for name, value in
               {"start": 5, "duration": 3, "lane": 0, "name": 0, "rank": 0}.items()}  # fmt: skip
    trace = Trace(columns, lanes=lanes, names=["x"])
    assert trace.steps() == (Step(0, -1, 5, 8),)
    assert [part.rank for part in trace.breakdown().totals] == [0]
