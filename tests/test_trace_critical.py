"""The critical path: of programs whose answer is known, and what it proves and what it guesses."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError, joins
from lockstep.trace.analyses.critical import PathSegment, critical_path
from lockstep.trace.certificate import Certificate

OP, LAUNCH, COMPUTE = Kind.OPERATOR, Kind.LAUNCH, Kind.COMPUTE
ALL_REDUCE = Collective("all_reduce", "0", (0, 1), evidence="metadata")


def cpu(name, start, end, kind=OP, rank=0, correlation=-1, lane="thread 1"):
    return Slice(rank, lane, name, start, end - start, kind, correlation=correlation)


def gpu(name, start, end, rank=0, stream=7, correlation=-1, kind=COMPUTE, collective=None):
    lane = f"stream {stream}"
    return Slice(
        rank, lane, name, start, end - start, kind, stream, correlation, collective=collective
    )


def reduce(start, end, rank, correlation=-1, stream=7, collective=ALL_REDUCE):
    return gpu("nccl", start, end, rank, stream, correlation, Kind.COMMUNICATION, collective)


def path_of(*slices):
    return critical_path(Trace.from_slices(slices))


def told(path):
    return [(one.rank, one.kind, one.name, one.start, one.end) for one in path.segments]


def assert_tiles(path, *, last):
    assert path.last == last
    for one, then in zip(path.segments, path.segments[1:], strict=False):
        assert one.end == then.start
    assert all(one.end > one.start for one in path.segments)
    assert sum(path.by_kind.values()) == path.last - path.first == sum(path.by_rank.values())


def test_a_kernel_that_waited_for_its_launch_leads_to_the_thread():
    path = path_of(
        cpu("aten::mm", 0, 100),
        cpu("cudaLaunchKernel", 60, 90, LAUNCH, correlation=1),
        cpu("aten::relu", 150, 250),
        cpu("cudaLaunchKernel", 200, 240, LAUNCH, correlation=2),
        gpu("mm", 95, 130, correlation=1),
        gpu("relu", 243, 260, correlation=2),
    )
    assert told(path) == [
        (0, "host", "aten::mm", 0, 60),
        (0, "host", "cudaLaunchKernel", 60, 90),
        (0, "host", "aten::mm", 90, 100),
        (0, "waiting", "", 100, 150),
        (0, "host", "aten::relu", 150, 200),
        (0, "host", "cudaLaunchKernel", 200, 240),
        (0, "launch", "cudaLaunchKernel", 240, 243),
        (0, "compute", "relu", 243, 260),
    ]
    assert path.segments[0].lane == "thread 1" and path.segments[-1].lane == "stream 7"
    assert path.by_kind == {"host": 190, "waiting": 50, "compute": 17, "launch": 3}
    assert path.by_timing == 0 and path.links["launch"] == 1
    assert_tiles(path, last=260)


def test_a_kernel_queued_long_ago_waited_for_the_one_before_it():
    path = path_of(
        cpu("cudaLaunchKernel", 0, 10, LAUNCH, correlation=1),
        cpu("cudaLaunchKernel", 10, 20, LAUNCH, correlation=2),
        gpu("first", 12, 500, correlation=1),
        gpu("second", 502, 600, correlation=2),
    )
    assert told(path) == [
        (0, "host", "cudaLaunchKernel", 0, 10),
        (0, "launch", "cudaLaunchKernel", 10, 12),
        (0, "compute", "first", 12, 500),
        (0, "waiting", "", 500, 502),
        (0, "compute", "second", 502, 600),
    ]
    assert path.links == {"stream order": 1, "launch": 1, "thread order": 1}


def test_a_launch_that_came_back_after_its_kernel_began_counts_from_its_begin():
    path = path_of(
        cpu("python", 0, 40),
        cpu("cudaLaunchKernel", 40, 90, LAUNCH, correlation=1),
        gpu("kernel", 70, 200, correlation=1),
    )
    assert told(path) == [
        (0, "host", "python", 0, 40),
        (0, "launch", "cudaLaunchKernel", 40, 70),
        (0, "compute", "kernel", 70, 200),
    ]


def test_a_kernel_may_begin_with_its_launch():
    path = path_of(
        cpu("python", 0, 40),
        cpu("cudaLaunchKernel", 40, 90, LAUNCH, correlation=1),
        gpu("kernel", 40, 200, correlation=1),
    )
    assert told(path) == [(0, "host", "python", 0, 40), (0, "compute", "kernel", 40, 200)]
    assert path.links == {"launch": 1, "thread order": 1}


def test_what_is_on_a_stream_and_does_not_run_there_is_no_work():
    work = [
        cpu("cudaLaunchKernel", 0, 10, LAUNCH, correlation=1),
        gpu("kernel", 20, 200, correlation=1),
    ]
    beside = [
        gpu("forward", 15, 900, kind=Kind.GPU_ANNOTATION),
        gpu("Stream Wait Event", 250, 800, kind=Kind.WAIT),
        gpu("too short for its clock", 500, 500),
    ]
    assert told(path_of(*work, *beside)) == told(path_of(*work))


def test_a_launch_in_the_middle_of_an_operator_cuts_it_there():
    path = path_of(
        cpu("aten::mm", 0, 100),
        cpu("cudaLaunchKernel", 60, 60, LAUNCH, correlation=1),  # too short for its clock
        gpu("mm", 65, 130, correlation=1),
    )
    assert told(path) == [
        (0, "host", "aten::mm", 0, 60),
        (0, "launch", "cudaLaunchKernel", 60, 65),
        (0, "compute", "mm", 65, 130),
    ]


def test_another_streams_end_counts_only_right_before_and_only_as_timing():
    def on_two_streams(gap):
        return path_of(
            gpu("own", 0, 1_000, stream=7),
            gpu("copy", 0, 50_000, stream=9, kind=Kind.COPY),
            gpu("after", 50_000 + gap, 90_000, stream=7),
        )

    near = on_two_streams(gap=2_000)
    assert near.by_kind == {"copy": 50_000, "compute": 38_000, "waiting": 2_000}
    assert (near.by_evidence, near.by_timing) == (0, 1)
    far = on_two_streams(gap=20_000)
    assert far.by_kind == {"waiting": 69_000, "compute": 21_000}
    assert (far.by_evidence, far.by_timing) == (1, 0)


def test_a_collective_leads_to_the_rank_that_came_last():
    path = path_of(
        gpu("short", 0, 100, rank=0),
        reduce(100, 480, rank=0),
        gpu("step", 480, 700, rank=0),
        gpu("long", 0, 400, rank=1),
        reduce(405, 481, rank=1),
    )
    assert told(path) == [
        (1, "compute", "long", 0, 400),
        (1, "waiting", "", 400, 405),
        (0, "transfer", "nccl", 405, 480),
        (0, "compute", "step", 480, 700),
    ]
    assert path.by_rank == {1: 405, 0: 295}
    assert path.links["collective"] == 1 and path.unmatched == 0


def test_nobody_waits_for_a_rank_that_came_when_it_was_over_or_within_the_resolution():
    def on_two_ranks(came, resolution=0):
        trace = Trace.from_slices(
            [
                gpu("short", 0, 100, rank=0),
                reduce(100, 400, rank=0),
                gpu("use", 400, 500, rank=0),
                gpu("long", 0, came, rank=1),
                reduce(came, 450, rank=1),
            ]
        )
        exact = Certificate(0, 1, 0, 0, {}, {}, {}, 0, resolution, "by construction")
        path = critical_path(trace.derive(certificate=exact))
        assert_tiles(path, last=500)
        return path.by_rank

    assert on_two_ranks(came=399) == {1: 399, 0: 101}
    assert on_two_ranks(came=400) == {0: 500}
    assert on_two_ranks(came=300, resolution=199) == {1: 300, 0: 200}
    assert on_two_ranks(came=300, resolution=200) == {0: 500}


def test_a_collective_without_its_other_half_is_said_to_hold_waiting():
    path = path_of(gpu("a", 0, 100), reduce(100, 480, rank=0))
    assert path.by_kind == {"transfer": 380, "compute": 100}
    assert path.unmatched == 1 and "includes waiting" in str(path)


def test_a_receive_leads_to_its_sender_and_a_broadcast_to_its_root():
    def message(operation, start, end, rank, peer):
        what = Collective(operation, "0", (0, 1), peer=peer)
        return reduce(start, end, rank, collective=what)

    for there, here in (("send", "recv"), ("broadcast", "broadcast")):
        path = path_of(
            gpu("long", 0, 300, rank=0),
            message(there, 300, 350, 0, 1 if there == "send" else 0),
            message(here, 10, 352, 1, 0),
            gpu("use", 352, 400, rank=1),
        )
        assert path.by_kind == {"compute": 348, "transfer": 52}
        assert path.by_rank == {0: 300, 1: 100}
    path = path_of(  # the root of a broadcast waits for nobody
        gpu("short", 0, 100, rank=0),
        message("broadcast", 100, 360, 0, 0),
        gpu("long", 0, 300, rank=1),
        message("broadcast", 300, 350, 1, 0),
    )
    assert path.by_rank == {0: 360}


def test_only_the_root_of_a_reduce_waits_and_without_a_root_nobody_is_known_to():
    def on_two_ranks(operation, root, late):
        """The late rank comes at 300; the other one goes on, and ends last."""
        what = Collective(operation, "0", (0, 1), peer=root)
        return path_of(
            gpu("short", 0, 100, rank=1 - late),
            reduce(100, 360, 1 - late, collective=what),
            gpu("use", 360, 400, rank=1 - late),
            gpu("long", 0, 300, rank=late),
            reduce(300, 350, late, collective=what),
        ).by_rank

    for operation in ("reduce", "gather"):
        assert on_two_ranks(operation, root=0, late=1) == {1: 300, 0: 100}
        assert on_two_ranks(operation, root=1, late=1) == {0: 400}
    for operation in ("broadcast", "scatter"):
        assert on_two_ranks(operation, root=1, late=1) == {1: 300, 0: 100}
        assert on_two_ranks(operation, root=0, late=1) == {0: 400}
        assert on_two_ranks(operation, root=-1, late=1) == {0: 400}


def test_a_synchronising_call_leads_to_the_device():
    path = path_of(
        cpu("cudaLaunchKernel", 0, 10, LAUNCH, correlation=1),
        gpu("long", 12, 500, correlation=1),
        cpu("cudaDeviceSynchronize", 20, 510, LAUNCH),
        cpu("print", 510, 700),
        cpu("cudaLaunchKernel", 700, 710, LAUNCH, correlation=2),
        gpu("next", 715, 800, correlation=2),
    )
    assert told(path) == [
        (0, "host", "cudaLaunchKernel", 0, 10),
        (0, "launch", "cudaLaunchKernel", 10, 12),
        (0, "compute", "long", 12, 500),
        (0, "host", "cudaDeviceSynchronize", 500, 510),
        (0, "host", "print", 510, 700),
        (0, "host", "cudaLaunchKernel", 700, 710),
        (0, "launch", "cudaLaunchKernel", 710, 715),
        (0, "compute", "next", 715, 800),
    ]
    assert path.links["synchronisation"] == 1 == path.by_timing


@pytest.mark.parametrize(
    ("name", "kind", "leads"),
    [
        ("cudaStreamSynchronize", LAUNCH, True),
        ("hipDeviceSynchronize", LAUNCH, True),
        ("Event Synchronize", Kind.WAIT, True),
        ("cudaMalloc", LAUNCH, False),
        ("synchronize", Kind.PYTHON, False),
        ("aten::_synchronize", OP, False),
    ],
)
def test_a_kernel_that_ends_inside_of_another_call_did_not_hold_it_up(name, kind, leads):
    path = path_of(
        cpu("forward", 0, 50),
        gpu("beside", 0, 60, stream=9),
        cpu(name, 50, 90, kind),
        cpu("cudaLaunchKernel", 90, 100, LAUNCH, correlation=1),
        gpu("next", 105, 200, correlation=1),
    )
    assert path.links.get("synchronisation", 0) == leads
    assert (("compute", "beside", 1, 60) in path.top()) == leads


def test_a_copy_that_ended_inside_of_its_call_held_the_host_up_and_that_is_evidence():
    path = path_of(
        gpu("forward", 0, 400),
        cpu("cudaMemcpyAsync", 10, 450, LAUNCH, correlation=1),
        gpu("to host", 400, 440, correlation=1, kind=Kind.COPY),
        cpu("cudaLaunchKernel", 450, 460, LAUNCH, correlation=2),
        gpu("next", 470, 500, correlation=2),
    )
    assert path.by_kind == {"compute": 430, "copy": 40, "host": 20, "launch": 10}
    assert path.by_timing == 0


def test_a_kernel_that_ended_inside_of_its_call_did_not_hold_the_host_up():
    path = path_of(
        cpu("cudaLaunchKernel", 10, 450, LAUNCH, correlation=1),
        gpu("kernel", 20, 440, correlation=1),
        cpu("cudaLaunchKernel", 450, 460, LAUNCH, correlation=2),
        gpu("next", 470, 500, correlation=2),
    )
    assert path.by_kind == {"host": 450, "compute": 30, "launch": 10}


def test_a_stream_that_communicates_is_no_thread():
    path = path_of(
        cpu("python", 0, 900, Kind.PYTHON),
        gpu("gemm", 50, 100),
        reduce(100, 880, rank=0),
        cpu("cudaLaunchKernel", 900, 910, LAUNCH, correlation=1),
        gpu("next", 915, 1_000, correlation=1),
    )
    assert path.by_kind == {"host": 910, "compute": 85, "launch": 5}
    assert path.by_timing == 0


def test_a_thread_that_only_waits_leads_to_the_thread_that_worked():
    backward = [
        cpu("forward", 0, 100),
        cpu("backward()", 100, 900, Kind.PYTHON),
        cpu("autograd: mm", 150, 880, lane="thread 2"),
        cpu("optimizer", 900, 1_000),
    ]
    path = path_of(*backward)
    assert told(path) == [
        (0, "compute", "forward", 0, 100),
        (0, "waiting", "", 100, 150),
        (0, "compute", "autograd: mm", 150, 880),
        (0, "host", "backward()", 880, 900),
        (0, "compute", "optimizer", 900, 1_000),
    ]
    watchdog = cpu("cudaEventQuery", 890, 895, LAUNCH, lane="thread 3")
    assert told(path_of(*backward, watchdog)) == told(path)


@pytest.mark.parametrize("notified", [1_004_000, 1_200_000, 900_000, 500_000])
def test_a_program_that_polls_inside_of_an_annotation_waits_for_what_it_launched_last(notified):
    """DeepSeek's dispatch: a kernel tells the host how many tokens come, and may go on a while."""
    path = path_of(
        cpu("dispatch", 0, 1_010_000, Kind.ANNOTATION),
        cpu("cudaLaunchKernel", 10_000, 20_000, LAUNCH, correlation=1),
        cpu("cudaLaunchKernel", 30_000, 40_000, LAUNCH, correlation=2),
        gpu("gemm", 20_000, 300_000, correlation=1),
        gpu("notify", 300_000, notified, stream=8, correlation=2),
        gpu("later", 500_000, 980_000, stream=9),
        cpu("cudaLaunchKernel", 1_010_000, 1_020_000, LAUNCH, correlation=3),
        gpu("dispatch", 1_500_000, 1_600_000, stream=10, correlation=3),
    )
    if notified > 1_000_000:
        assert (0, "compute", "notify", 300_000, min(notified, 1_010_000)) in told(path)
        assert path.links["launched last"] == 1
    else:  # it was over long before: what the program did then, nobody knows
        assert (0, "waiting", "dispatch", 40_000, 1_010_000) in told(path)
    assert path.by_kind["host"] < 100_000


def test_short_times_without_operators_are_the_hosts_own():
    path = path_of(
        cpu("forward", 0, 500_000, Kind.ANNOTATION),
        cpu("aten::mm", 99_999, 200_000),
        cpu("aten::mm", 300_000, 400_001),
        cpu("aten::mm", 500_000, 500_010),
    )
    assert [one.kind for one in path.segments if one.name == "forward"] == [
        "host",
        "waiting",
        "host",
    ]


def test_without_a_gpu_communication_on_threads_leads_across_ranks():
    def gloo(start, end, rank):
        return Slice(
            *(rank, "thread 2", "gloo:all_reduce", start, end - start, Kind.COMMUNICATION),
            collective=ALL_REDUCE,
        )

    path = path_of(
        cpu("forward", 0, 100, rank=0),
        cpu("wait", 100, 470, rank=0),
        gloo(100, 460, rank=0),
        cpu("step", 470, 600, rank=0),
        cpu("slow forward", 0, 390, rank=1),
        gloo(395, 461, rank=1),
    )
    assert told(path) == [
        (1, "compute", "slow forward", 0, 390),
        (1, "waiting", "", 390, 395),
        (0, "transfer", "gloo:all_reduce", 395, 460),
        (0, "compute", "wait", 460, 470),
        (0, "compute", "step", 470, 600),
    ]


def test_a_trace_whose_clocks_are_not_one_is_refused():
    trace = Trace.from_slices([gpu("a", 0, 10, rank=0), gpu("b", 0, 10, rank=1)])
    with pytest.raises(TraceError, match=r"call align\(\) first"):
        critical_path(trace.derive(about={0: {}, 1: {}}))
    assert critical_path(trace).last == 10


def test_a_trace_without_work_is_refused():
    with pytest.raises(TraceError, match="no work"):
        critical_path(Trace.from_slices([]))


def test_it_says_what_it_found_in_words_and_escapes_names():
    path = path_of(gpu("<b>kernel</b>", 0, 750_000), reduce(750_000, 1_000_000, rank=0))
    assert str(path).splitlines()[:4] == [
        "critical path of 1.000 ms: 75 % compute, 25 % transfer",
        "most of it is on rank 0 (100 %): 0.750 ms compute, 0.250 ms transfer",
        "the longest: compute <b>kernel</b> 0.750 ms; transfer nccl 0.250 ms",
        "1 links by evidence, 0 by timing only",
    ]
    later = path_of(
        gpu("<b>kernel</b>", 2**40, 2**40 + 750_000), reduce(2**40 + 750_000, 2**40 + 10**6, 0)
    )
    assert str(later) == str(path)
    shown = path._repr_mimebundle_()
    assert later._repr_mimebundle_() == shown
    cells = re.findall("<t[hd][^>]*>([^<]*)</t[hd]>", shown["text/html"])
    assert cells[5:] == [
        *("&lt;b&gt;kernel&lt;/b&gt;", "compute", "1", "0.750", "75.0 %"),
        *("nccl", "transfer", "1", "0.250", "25.0 %"),
    ]
    assert "<b>" not in shown["text/html"] and "&lt;b&gt;kernel" in shown["text/html"]
    assert path.top(1) == (("compute", "<b>kernel</b>", 1, 750_000),)
    assert path.segments[0] == PathSegment(0, "stream 7", "compute", "<b>kernel</b>", 0, 750_000)


rounds = st.integers(1, 6).flatmap(
    lambda ranks: st.lists(
        st.tuples(
            st.lists(st.integers(1, 10**6), min_size=ranks, max_size=ranks), st.integers(1, 999)
        ),
        min_size=1,
        max_size=8,
    )
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(rounds=rounds)
def test_of_rounds_of_work_and_all_reduce_it_is_each_rounds_slowest_rank(rounds):
    ranks = len(rounds[0][0])
    everybody = Collective("all_reduce", "0", tuple(range(ranks)))
    slices, now = [], 0
    expected = {"compute": 0, "transfer": 0}
    by_rank = dict.fromkeys(range(ranks), 0)
    for spent, transfer in rounds:
        end = now + max(spent) + transfer
        for rank, one in enumerate(spent):
            slices.append(gpu("work", now, now + one, rank))
            slices.append(reduce(now + one, end, rank, collective=everybody))
        expected["compute"] += max(spent)
        expected["transfer"] += transfer
        by_rank[spent.index(max(spent))] += max(spent)
        now = end
    path = path_of(*slices)
    assert_tiles(path, last=now)
    assert path.first == 0 and path.by_kind == expected and path.by_timing == 0
    if all(spent.count(max(spent)) == 1 for spent, _ in rounds):
        computed = {rank: path.on(rank).get("compute", 0) for rank in range(ranks)}
        assert computed == by_rank


@st.composite
def programs(draw):
    """Any slices on any lanes, whether they make sense or not."""
    time = st.integers(0, 300)
    kinds = [one for one in Kind if one is not Kind.GPU_ANNOTATION]
    one = st.builds(
        lambda rank, stream, start, duration, kind, correlation, name, number: Slice(
            *(rank, f"lane {stream}", name, start, duration, kind, stream, correlation),
            collective=ALL_REDUCE if kind is Kind.COMMUNICATION else None,
            sequence=number,
        ),
        *(st.integers(0, 1), st.sampled_from([-1, 3, 4]), time, time, st.sampled_from(kinds)),
        *(st.integers(-1, 5), st.sampled_from(["a", "cudaStreamSynchronize"]), st.integers(-1, 3)),
    )
    return draw(st.lists(one, min_size=1, max_size=12))


@settings(derandomize=True, max_examples=80, deadline=None)
@given(slices=programs())
def test_whatever_the_trace_holds_the_segments_tile_the_path(slices):
    trace = Trace.from_slices(slices)
    device = [s for s in slices if s.kind in (6, 7, 8, 9) and s.duration and s.stream >= 0]
    try:
        path = critical_path(trace)
    except TraceError as error:
        assert ("no work" in str(error) or "no kernels" in str(error)) and not device
        return
    if device:
        assert path.last >= max(one.end for one in device)
    assert_tiles(path, last=path.last)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=14),
    times=st.lists(st.integers(-2, 45), max_size=9),
    block=st.integers(1, 5),
)
def test_the_innermost_interval_is_found_whatever_the_blocks_are(spans, times, block):
    spans.sort(key=lambda one: (one[0], -one[1]))
    start = np.array([one[0] for one in spans], np.int64)
    end = start + np.array([one[1] for one in spans], np.int64)
    wanted = [
        max((at for at in range(len(spans)) if start[at] <= time < end[at]), default=-1)
        for time in times
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "_BLOCK", block)
        assert joins.innermost(start, end, np.array(times, np.int64)).tolist() == wanted


# ── Programs whose answer is known by construction: run again with one thing faster ───────────


class Program:
    """Kernels of ranks, launched one by one on one stream; an all-reduce is the last of each round.

    launches, kernels: [rank][number] nanoseconds of the host for the launch, and of the GPU.
    latency: from the launching call's end to the kernel's begin, if the stream is free.
    """

    def __init__(self, launches, kernels, a_round, latency=0):
        self.launches, self.kernels = launches, kernels
        self.a_round, self.latency = a_round, latency

    def slices(self, host=1.0, compute=1.0, transfer=1.0):
        """What a profiler sees of it; with factors on the three times."""
        ranks = range(len(self.launches))
        group = Collective("all_reduce", "0", tuple(ranks), evidence="metadata")
        called, ended = [0 for _ in ranks], [0 for _ in ranks]
        made = []
        for number in range(len(self.launches[0])):
            reduces = number % self.a_round == self.a_round - 1
            begins = []
            for rank in ranks:
                begin = called[rank]
                called[rank] += round(host * self.launches[rank][number])
                made.append(cpu("cudaLaunchKernel", begin, called[rank], LAUNCH, rank, number))
                begins.append(max(ended[rank], called[rank] + self.latency))
            for rank, begin in zip(ranks, begins, strict=True):
                length = self.kernels[rank][number]
                if reduces:  # all leave together, a while after the last has come
                    ended[rank] = max(begins) + round(transfer * self.kernels[0][number])
                    made.append(reduce(begin, ended[rank], rank, number, collective=group))
                else:
                    ended[rank] = begin + round(compute * length)
                    made.append(gpu("gemm", begin, ended[rank], rank, correlation=number))
        return made

    def end(self, **factors):
        return max(one.start + one.duration for one in self.slices(**factors))

    def wins(self, part, by=1e-3):
        """Nanoseconds of this part that the end waits for: at least, and at most.

        By how much the end comes earlier if the part takes a little less time, and later if a
        little more, for all of it. The end is the largest of many sums, so convex in the factor.
        """
        least, most = (self.end(**{part: 1 + step}) for step in (-by, by))
        return round((self.end() - least) / by), round((most - self.end()) / by)


@given(seed=st.integers(0, 10**6), host=st.sampled_from([20, 60, 200]))
@settings(max_examples=60, deadline=None)
def test_what_is_on_the_path_is_what_wins_when_it_takes_less(seed, host):
    """The path's share of a kind is what the end loses when all of that kind takes less time."""
    rng = np.random.default_rng(seed)
    shape = (3, 24)
    program = Program(
        (rng.integers(host // 2, host, shape) * 1_000).tolist(),
        (rng.integers(20, 120, shape) * 1_000).tolist(),
        a_round=6,
    )
    path = path_of(*program.slices())
    assert path.last == program.end()
    for part, kind in (("host", "host"), ("compute", "compute"), ("transfer", "transfer")):
        least, most = program.wins(part)
        assert least <= path.by_kind.get(kind, 0) <= most


def test_busy_gpus_are_off_the_path_of_a_host_that_is_only_just_late():
    """As data-parallel-before is: large kernels first, then many small ones, which come one by one.

    The GPU works for 79 of 102 µs, and yet only the last kernel is on the path.
    """
    kernels = [40_000, 30_000] + [1_000] * 9
    program = Program([[5_000] * 2 + [10_000] * 9], [kernels], a_round=12, latency=1_000)
    path = path_of(*program.slices())
    assert path.by_kind == {"host": 100_000, "launch": 1_000, "compute": 1_000}
    assert program.wins("compute") == (1_000, 1_000)
    assert path.idle == path.last - sum(kernels) == 23_000
    said = f"its GPU idles for {path.idle / 1e6:.3f} ms: faster hosts would save about that"
    assert said in str(path)
    faster = program.end(host=0.01)
    assert path.last - faster == pytest.approx(path.idle, rel=0.2)
