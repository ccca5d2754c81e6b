"""Memory by the profiler's own events: peaks, growth by step, and who allocates."""

from __future__ import annotations

import json

import pytest
from kineto_files import PID, event, head, kernel, number, write
from lockstep.trace import Trace, TraceError

START = 1_000_000_000


def memory(at, size, total, address=0, device=0, **more):
    args = {"Total Reserved": 5_000, "Total Allocated": total, "Bytes": size, "Addr": address}
    args |= {"Device Id": device, "Device Type": 0 if device < 0 else 1, **more}
    return (
        '  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", '
        f'"pid": {PID}, "tid": {PID}, "ts": {number(START + at)}, "args": {json.dumps(args)}}}'
    )


def operator(name, start, end):
    return event("cpu_op", name, START + start, end - start)


def step(n, start, end):
    return event("user_annotation", f"ProfilerStep#{n}", START + start, end - start)


def training():
    return [
        step(1, 1_000, 10_000),
        operator("aten::linear", 2_000, 4_000),
        operator("aten::addmm", 2_500, 3_000),
        memory(2_600, 700, 1_700, address=1),
        memory(3_500, 300, 2_000, address=2),
        memory(5_000, -700, 1_300, address=1),
        step(2, 10_000, 20_000),
        operator("aten::empty", 12_000, 13_000),
        memory(12_500, 900, 2_200, address=3),
        memory(12_600, 64, 64, address=9, device=-1),
        memory(15_000, -500, 1_700, address=77),  # from before the recording
        kernel("gemm", START + 3_000, 1_000),
    ]


def test_peaks_growth_and_who_allocates(tmp_path):
    write(tmp_path / "rank0.json", training(), head())
    trace = Trace.load(tmp_path, cache=False)
    found = trace.allocations()
    (one,) = found.usage
    assert (one.rank, one.device, one.events) == (0, 0, 5)
    assert (one.peak, one.step, one.operator, one.reserved) == (2_200, 2, "aten::empty", 5_000)
    assert one.at - trace.start.min() == 12_500 - 1_000
    assert (one.first, one.last, one.growth) == (1_700, 1_700, 0)
    # 1,000 were allocated before the first event.
    assert [(s.step, s.peak, s.growth) for s in found.by_step] == [(1, 2_000, 300), (2, 2_200, 400)]
    assert [(o.operator, o.count, o.total, o.kept) for o in found.operators] == [
        ("aten::empty", 1, 900, 900),
        ("aten::addmm", 1, 700, 0),
        ("aten::linear", 1, 300, 300),
    ]
    times, size = found.curves[0, 0]
    assert size.tolist() == [1_700, 2_000, 1_300, 2_200, 1_700]
    assert (times - times[0]).tolist() == [0, 900, 2_400, 9_900, 12_400]
    assert "1 × the host's memory left out" in str(found)


def test_times_of_events_follow_the_common_clock(tmp_path):
    """Rank 1's clock is 1 ms ahead: after align() its events have moved with its slices."""
    for rank, ahead in enumerate((0, 1_000_000)):
        said = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
        said |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
        events = [
            kernel(
                "ncclDevKernel_AllReduce", START + ahead + 100_000 * n, 50_000 + n, stream=20,
                Seq=n, **said,
            )
            for n in range(40)
        ]  # fmt: skip
        events += [memory(ahead + 250_000, 10, 10), operator("aten::x", ahead, ahead + 4_000_000)]
        write(tmp_path / f"rank{rank}.json", events, head(rank, 2))
    trace = Trace.load(tmp_path, cache=False)
    before, after = (one.allocations().usage for one in (trace, trace.align()))
    assert before[1].at - before[0].at == 1_000_000
    assert abs(after[1].at - after[0].at) < 10


def test_the_hosts_memory_where_there_is_no_gpu(tmp_path):
    events = [operator("aten::mm", 0, 9_000), memory(10, 64, 0, address=1, device=-1)]
    events += [memory(20, 32, 0, address=2, device=-1), memory(30, -64, 0, address=1, device=-1)]
    write(tmp_path / "rank0.json", events, head(gpu=None))
    (one,) = Trace.load(tmp_path, cache=False).allocations().usage
    assert (one.device, one.peak, one.last, one.reserved) == (-1, 96, 32, -1)


@pytest.mark.parametrize(
    "what", [[], [memory(1, "x", 3)], [memory(1, 3, 3, **{"Device Id": None})]]
)
def test_without_events_it_refuses(tmp_path, what):
    write(tmp_path / "rank0.json", [operator("aten::mm", 0, 9_000), *what], head())
    with pytest.raises(TraceError, match="profile_memory=True"):
        Trace.load(tmp_path, cache=False).allocations()
    with pytest.raises(TraceError, match="profile_memory=True"):
        Trace.from_slices([]).allocations()
