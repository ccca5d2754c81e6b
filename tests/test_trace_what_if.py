"""What a change would gain: of programs that can be run again with it, and of recordings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from recorded import ALIGNED, IDS
from test_trace_critical import cpu, gpu, programs, reduce

US = 1_000
LATENCY, CALL, SYNCHRONISE = 7 * US, 4 * US, 3 * US


class Program:
    """Rounds of kernels on every rank, each with an all-reduce at its end, and perhaps a host that
    waits for its GPU then.

    rounds: for each the microseconds of each rank's kernels, and of the transfer. aside: the
    all-reduce has a stream of its own, and the next round's second kernel waits for it.
    """

    def __init__(self, rounds, *, aside=False, waits=False):
        self.rounds, self.aside, self.waits = rounds, aside, waits
        self.ranks = range(len(rounds[0][0]))

    def slices(self, halved="", transfer=1, without=None):
        """What a profiler sees of it, also with a change."""
        ranks = self.ranks
        group = Collective("all_reduce", "0", tuple(ranks), evidence="metadata")
        now, busy, aside = ([0 for _ in ranks] for _ in range(3))
        number, made = 0, []
        for kernels, transferred in self.rounds:
            came = []
            for rank in ranks:
                for place, length in enumerate([*kernels[rank], None]):
                    number += 1
                    begin = now[rank]
                    now[rank] += CALL
                    launch = cpu("cudaLaunchKernel", begin, begin + CALL, Kind.LAUNCH, rank, number)
                    made.append(launch)
                    if place == 1 or not self.aside:
                        busy[rank] = max(busy[rank], aside[rank])
                    ready = max(busy[rank], begin + LATENCY)
                    if length is None:
                        came.append((max(ready, aside[rank]), number))
                    else:
                        name = f"kernel {place}"
                        busy[rank] = ready + length * US // (2 if name == halved else 1)
                        made.append(gpu(name, ready, busy[rank], rank, correlation=number))
            for rank, (begin, correlation) in zip(ranks, came, strict=True):
                whom = [one for at, (one, _) in enumerate(came) if at != without or at == rank]
                aside[rank] = max(whom) + transferred * US * transfer
                stream = 20 if self.aside else 7
                made.append(reduce(begin, aside[rank], rank, correlation, stream, group))
                if self.waits:
                    begin = now[rank]
                    now[rank] = max(begin, busy[rank], aside[rank]) + SYNCHRONISE
                    made.append(cpu("cudaDeviceSynchronize", begin, now[rank], Kind.LAUNCH, rank))
        return made

    def trace(self):
        return Trace.from_slices(self.slices())

    def end(self, of=None, **change):
        return max(one.end for one in self.slices(**change) if of is None or one.rank in of)

    def gains(self, found):
        """What each of the changes found really gains."""
        for one in found.gains:
            what = one.change.split(":")[0]
            if what.startswith("kernel"):
                yield one, self.end() - self.end(halved=what)
            elif what.startswith("no exposed"):
                yield one, self.end() - self.end(transfer=0)
            else:
                rank = int(what.split()[-1])
                others = set(self.ranks) - {rank}
                yield one, self.end(others) - self.end(others, without=rank)


def rounds_of(ranks):
    lengths = st.lists(st.integers(1, 60), min_size=3, max_size=3)
    every = st.lists(lengths, min_size=ranks, max_size=ranks)
    return st.lists(st.tuples(every, st.integers(1, 30)), min_size=1, max_size=5)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@settings(derandomize=True, max_examples=15, deadline=None)
@given(data=st.data(), waits=st.booleans())
def test_the_gain_is_what_the_program_gains_when_it_is_run_so(ranks, data, waits):
    program = Program(data.draw(rounds_of(ranks)), waits=waits)
    found = program.trace().what_if()
    assert found.length == program.end()
    assert len(found.gains) >= 4
    for one, gain in program.gains(found):
        assert one.least == one.most == gain, one


@pytest.mark.parametrize("ranks", [2, 3, 8])
@settings(derandomize=True, max_examples=15, deadline=None)
@given(data=st.data(), waits=st.booleans())
def test_with_events_that_the_trace_does_not_tell_it_gains_no_less_than_the_least(
    ranks, data, waits
):
    program = Program(data.draw(rounds_of(ranks)), aside=True, waits=waits)
    for one, gain in program.gains(program.trace().what_if()):
        assert one.least <= gain, one


def test_a_wait_in_vain_is_what_the_two_answers_differ_by():
    """The second kernel of the second round waits for an all-reduce that is over by then."""
    program = Program([([[10, 10, 10]] * 2, 60), ([[80, 30, 10]] * 2, 1)], aside=True)
    one, gain = next(program.gains(program.trace().what_if("kernel 0")))
    assert (one.least, one.most, one.removed) == (25 * US, 45 * US, 90 * US)
    assert gain == 25 * US


def test_a_kernel_off_the_critical_path_gains_nothing():
    ranks = [gpu("early", 0, 40), reduce(40, 110, 0), gpu("late", 0, 100, 1), reduce(100, 110, 1)]
    found = {one.change: one.most for one in Trace.from_slices(ranks).what_if().gains}
    assert found["early: 2 × as fast"] == 0
    assert found["late: 2 × as fast"] == 50
    assert found["nobody waits for rank 1"] == 60
    side = Trace.from_slices([gpu("long", 0, 900), gpu("short", 100, 300, stream=9)])
    assert [one.most for one in side.what_if("short").gains] == [0]
    assert [one.most for one in side.what_if("long", times=3).gains] == [600]


def test_a_name_means_the_kernel_of_that_name_or_else_all_that_contain_it():
    work = [gpu("gemm", 0, 100), gpu("gemm_bias", 100, 160), gpu("relu", 160, 200)]
    trace = Trace.from_slices([*work, gpu("gemm copy", 200, 300, kind=Kind.COPY)])
    assert [one.most for one in trace.what_if("gemm", "gem", "relu").gains] == [80, 50, 20]
    assert [one.most for one in trace.what_if().gains] == [50, 30, 20]
    with pytest.raises(TraceError, match="nothing that computes in this trace has 'copy' in its"):
        trace.what_if("copy")
    with pytest.raises(ValueError, match="times=0"):
        trace.what_if("gemm", times=0)


def test_without_a_gpu_operators_are_faster_and_threads_wait_for_what_ended_last():
    def of_rank(rank, late):
        return [
            cpu("aten::mm", 0, 100 + late, rank=rank),
            cpu("aten::empty", 10, 20, rank=rank),
            cpu("c10d::allreduce_", 105 + late, 110 + late, rank=rank),
            cpu("gloo:all_reduce", 108 + late, 300, Kind.COMMUNICATION, rank, lane="gloo"),
            cpu("aten::add", 320, 380, rank=rank),
        ]

    group = Collective("all_reduce", "0", (0, 1), evidence="metadata")
    slices = [*of_rank(0, 0), *of_rank(1, 50)]
    trace = Trace.from_slices(
        Slice(
            *(one.rank, one.lane, one.name, one.start, one.duration, one.kind),
            collective=group if one.kind == Kind.COMMUNICATION else None,
        )
        for one in slices
    )
    found = trace.what_if()
    assert {one.change: (one.removed, one.most) for one in found.gains} == {
        "mm: 2 × as fast": (125, 75),
        "add: 2 × as fast": (60, 30),
        "no exposed communication": (284, 142),
        "nobody waits for rank 1": (50, 50),
    }


def test_copies_and_operators_in_which_the_host_waits_hold_it():
    work = [
        cpu("cudaLaunchKernel", 0, 5, Kind.LAUNCH, correlation=1),
        gpu("gemm", 5, 105, correlation=1),
        cpu("cudaMemcpyAsync", 10, 130, Kind.LAUNCH, correlation=2),
        gpu("Memcpy DtoH", 105, 120, correlation=2, kind=Kind.COPY),
        cpu("cudaLaunchKernel", 140, 145, Kind.LAUNCH, correlation=3),
        gpu("relu", 150, 170, correlation=3),
    ]
    assert Trace.from_slices(work).what_if("gemm").gains[0].most == 50


def test_what_nccl_does_waits_for_what_its_thread_launched_before():
    """It starts 30 µs after the kernel's end: no timing tells."""
    work = [
        cpu("cudaLaunchKernel", 0, CALL, Kind.LAUNCH, correlation=1),
        gpu("gemm", LATENCY, 107 * US, correlation=1),
        cpu("ncclLaunch", CALL, 2 * CALL, Kind.LAUNCH, correlation=2),
        reduce(137 * US, 200 * US, 0, correlation=2, stream=20),
    ]
    gains = {one.change: one.most for one in Trace.from_slices(work).what_if("gemm").gains}
    assert gains["gemm: 2 × as fast"] == 50 * US


@pytest.mark.parametrize(
    ("call", "least", "most"),
    [("cudaDeviceSynchronize", 10, 10), ("cudaStreamSynchronize", 18, 50)],
)
def test_a_synchronisation_waits_for_the_whole_device_or_for_what_ended_last(call, least, most):
    launch = "cudaLaunchKernel"
    work = [
        cpu(launch, 0, CALL, Kind.LAUNCH, correlation=1),
        gpu("long", LATENCY, 107 * US, correlation=1),
        cpu(launch, CALL, 2 * CALL, Kind.LAUNCH, correlation=2),
        gpu("other", CALL + LATENCY, 97 * US, stream=8, correlation=2),
        cpu(call, 20 * US, 107 * US, Kind.LAUNCH),
        cpu(launch, 108 * US, 112 * US, Kind.LAUNCH, correlation=3),
        gpu("after", 115 * US, 150 * US, correlation=3),
    ]
    one = Trace.from_slices(work).what_if("long").gains[0]
    assert (one.least, one.most) == (least * US, most * US)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(slices=programs())
def test_whatever_the_trace_holds_nothing_is_gained_by_no_change_and_no_more_than_removed(slices):
    try:
        found = Trace.from_slices(slices).what_if()
    except TraceError as error:
        assert "nothing in this trace" in str(error) or "no kernels" in str(error)
        return
    assert all(0 <= one.least <= one.most <= one.removed for one in found.gains)
    unchanged = Trace.from_slices(slices).what_if(times=1)
    assert {one.most for one in unchanged.gains if "1 × as fast" in one.change} <= {0}


@pytest.mark.parametrize("folder", ALIGNED, ids=IDS)
def test_recordings_replay_as_measured_and_gain_no_more_than_what_is_removed(folder):
    trace = Trace.load(folder).align()
    unchanged = trace.what_if(times=1)
    same = [one for one in unchanged.gains if "1 × as fast" in one.change]
    assert same
    assert not any(one.removed or one.least or one.most for one in same)
    found = trace.what_if()
    assert found.length <= trace.span[1] - trace.span[0]
    assert all(0 <= one.least <= one.most <= one.removed for one in found.gains)
    assert max(one.most for one in found.gains) < found.length


def test_who_saves_a_checkpoint_is_who_nobody_should_wait_for():
    """Rank 0 of "saving" writes to disk while the others wait."""
    best = Trace.load("data/traces/cases/saving").align().what_if().gains[0]
    assert best.change == "nobody waits for rank 0"
    assert best.least > 0


def test_it_says_what_no_trace_tells_and_escapes_names():
    found = Trace.from_slices([gpu("<b>gemm</b>\x1b[31m", 0, 100)]).what_if()
    assert "no trace tells" in str(found) and "\x1b" not in str(found)
    assert "<b>gemm" not in found._repr_mimebundle_()["text/html"]


def test_clocks_that_are_not_one_are_aligned_first_and_that_is_said():
    trace = Trace.load("data/traces/slow-rank")
    assert str(trace.align().certificate) in str(trace.what_if())
    with pytest.raises(TraceError, match="nothing in this trace"):
        Trace.from_slices([cpu("sleep", 0, 5, Kind.PYTHON)]).what_if()
    launches = cpu("cudaLaunchKernel", 2, 3, Kind.LAUNCH, correlation=1)
    with pytest.raises(TraceError, match="no kernels in the trace"):
        Trace.from_slices([cpu("aten::mm", 0, 5), launches]).what_if()
