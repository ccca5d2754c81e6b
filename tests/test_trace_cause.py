"""The likely cause of slow steps: of programs made for it, and of recordings without labels."""

from pathlib import Path

import pytest
from lockstep import summary
from lockstep.trace import Collective, Kind, Slice, Trace

DATA = Path(__file__).parents[1] / "data" / "traces"
US = 1_000
RECORDED = {
    "slow-rank": ("straggler", 1),
    "cases/reducing": ("exposed communication", None),
    "starved": ("starved input", None),
    "tensor-parallel-eager": ("launch-bound", None),
    "cases/compiling": ("recompile", 2),
    "cases/saving": ("checkpoint", 0),
    "cases/emptied": ("allocator thrashing", None),
    "data-parallel-before": ("exposed communication", None),
    "data-parallel-after": ("", None),
    "experts": ("launch-bound", None),
    "tensor-parallel-compiled": ("launch-bound", None),
    "tensor-parallel-graph": ("exposed communication", None),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recordings(name):
    trace, sections = summary.of(DATA / name)
    found = trace.cause()
    assert (found.word, found.rank) == RECORDED[name]
    assert dict(sections)["Likely cause"] == str(found)


def program(work, *, late=(None, 0), call="cudaLaunchKernel", name="gemm", steps=4, ranks=3):
    """Steps: kernels of (host, device) µs each, then an all-reduce of 20 µs, which the host awaits.

    late: a rank, and how many µs more its first kernel takes. call: of each launch.
    """
    group = Collective("all_reduce", "0", tuple(range(ranks)), evidence="metadata")
    rows, key = [], 0
    now = [0] * ranks
    for number in range(steps):
        begins, calls = [], []
        for rank in range(ranks):
            at = free = now[rank]
            for place, (host, device) in enumerate(work):
                more = late[1] if rank == late[0] and not place else 0
                key += 1
                rows.append(
                    Slice(rank, "thread 1", call, at, host * US, Kind.LAUNCH, correlation=key)
                )
                at += host * US
                begin, length = max(at, free), (device + more) * US
                kind = (name, begin, length, Kind.COMPUTE, 7)
                rows.append(Slice(rank, "stream 7", *kind, correlation=key))
                free = begin + length
            begins.append(free)
            calls.append(at)
        end = max(begins) + 20 * US
        for rank, begin in enumerate(begins):
            key += 1
            launch = ("cudaLaunchKernel", calls[rank], US, Kind.LAUNCH)
            rows.append(Slice(rank, "thread 1", *launch, correlation=key))
            what = ("nccl", begin + US, end - begin - US, Kind.COMMUNICATION, 7)
            rows.append(Slice(rank, "stream 7", *what, correlation=key, collective=group))
            length = end - now[rank]
            rows.append(
                Slice(rank, "thread 1", f"ProfilerStep#{number}", now[rank], length, Kind.STEP)
            )
            now[rank] = end
    return Trace.from_slices(rows).cause()


def test_one_rank_with_more_to_compute_is_a_straggler():
    found = program([(5, 200)] * 5, late=(2, 400))
    assert (found.word, found.rank) == ("straggler", 2)
    assert found.share == pytest.approx(400 / 1_425, abs=0.02)


def test_the_same_work_on_all_ranks_is_nobodys_fault():
    assert program([(5, 200)] * 5).word == ""
    assert program([(5, 30)]).word == "exposed communication"


def test_hosts_that_are_slow_all_the_time_or_once_a_step():
    assert program([(40, 10)] * 20).word == "launch-bound"
    assert program([(600, 100), *[(5, 100)] * 5]).word == "starved input"


def test_memory_from_the_driver_counts_where_it_takes_time():
    assert program([(100, 100)] * 4, call="cudaMalloc").word == "allocator thrashing"
    assert program([(5, 400)] * 4, call="cudaMalloc").word != "allocator thrashing"
