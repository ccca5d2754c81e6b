"""The likely cause of slow steps: of programs made for it, and of recordings without labels."""

from pathlib import Path

import pytest
from lockstep.trace import Collective, Kind, Slice, Trace, summary
from lockstep.trace.analyses.headline import headline

DATA = Path(__file__).parents[1] / "data" / "traces"
US = 1_000
RECORDED = {
    "slow-rank": ("straggler", (1,)),
    "cases/reducing": ("exposed communication", ()),
    "starved": ("starved input", ()),
    "tensor-parallel-eager": ("launch-bound", ()),
    "cases/compiling": ("recompile", (2,)),
    "cases/saving": ("checkpoint", (0,)),
    "cases/emptied": ("allocator thrashing", ()),
    "data-parallel-before": ("exposed communication", ()),
    "data-parallel-after": ("", ()),
    "experts": ("launch-bound", ()),
    "tensor-parallel-compiled": ("launch-bound", ()),
    "tensor-parallel-graph": ("exposed communication", ()),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recordings(name):
    trace, sections, _ = summary.summarise(DATA / name)
    found = trace.cause()
    assert (found.word, found.ranks) == RECORDED[name]
    assert dict(sections)["Likely cause"] == str(found)


def test_the_headline_of_a_thrashing_allocator_speaks_of_memory():
    _, sections, _ = summary.summarise(DATA / "cases" / "emptied")
    said = sections[0][1]
    assert "38 % of its steps the host is in cudaMalloc and cudaFree" in said
    assert "CUDA graph" not in said


def program(
    work, *, late=(None, 0), slow=(None, 0), call="cudaLaunchKernel", name="gemm", steps=4, ranks=3
):
    """The cause of this program, see `trace_of`."""
    return trace_of(work, late, slow, call, name, steps, ranks).cause()


def trace_of(work, late, slow, call, name, steps, ranks):
    """Steps: kernels of (host, device) µs each, then an all-reduce of 20 µs, which the host awaits.

    late, slow: a rank, and how many µs more its first kernel takes, or the call that launches it.
    call: of each launch; or a function of rank and step.
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
                host += slow[1] if rank == slow[0] and not place else 0
                key += 1
                called = call if isinstance(call, str) else call(rank, number)
                rows.append(
                    Slice(rank, "thread 1", called, at, host * US, Kind.LAUNCH, correlation=key)
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
    return Trace.from_slices(rows)


def test_one_rank_with_more_to_compute_is_a_straggler():
    found = program([(5, 200)] * 5, late=(2, 400))
    assert (found.word, found.ranks) == ("straggler", (2,))
    assert found.share == pytest.approx(400 / 1_425, abs=0.02)


def test_the_same_work_on_all_ranks_is_nobodys_fault():
    assert str(program([(5, 200)] * 5)).startswith("nothing but computing: ")
    assert program([(5, 30)]).word == "exposed communication"


def test_hosts_that_are_slow_all_the_time_or_once_a_step():
    assert program([(40, 10)] * 20).word == "launch-bound"
    found = program([(600, 100), *[(5, 100)] * 5])
    assert (found.word, found.ranks) == ("starved input", ())


def test_one_rank_alone_is_starved():
    found = program([(5, 100)] * 6, slow=(1, 600))
    assert (found.word, found.ranks) == ("starved input", (1,))


def test_a_pause_within_a_step_is_neither_input_nor_launches():
    work = [(5, 100)] * 3
    found = program([*work, (3_000, 100), *work])
    assert not found.word and "most of it in long pauses" in str(found)
    found = program([(600, 100), *work], steps=1)  # once is no habit
    assert not found.word
    found = program([*work, *work], slow=(1, 3_000), steps=1)  # of one rank: the others wait
    assert (found.word, found.ranks) == ("straggler", (1,))


def test_memory_from_the_driver_counts_where_it_takes_time():
    assert program([(100, 100)] * 4, call="cudaMalloc").word == "allocator thrashing"
    assert program([(5, 400)] * 4, call="cudaMalloc").word != "allocator thrashing"


def test_the_first_step_may_fill_the_cache_and_compile():
    def called(name):
        return lambda rank, step: "cudaLaunchKernel" if step else name

    work = [(100, 100)] * 4
    assert program(work, call=called("cudaMalloc")).word != "allocator thrashing"
    assert program(work, call=called("entire_frame_compile (dynamo_timed)")).word != "recompile"


@pytest.mark.parametrize("ranks", [{1}, {0, 1, 2}])
@pytest.mark.parametrize(
    ("name", "word"),
    [("cudaFree", "allocator thrashing"), ("bytecode_tracing (dynamo_timed)", "recompile")],
)
def test_what_pytorch_does_is_one_ranks_or_all_ranks(name, word, ranks):
    found = program(
        [(5, 100), (100, 100), (5, 20)],
        slow=(1, 50),
        call=lambda rank, _: name if rank in ranks else "cudaLaunchKernel",
    )
    assert (found.word, found.ranks) == (word, (1,) if ranks == {1} else ())


def test_one_rank_of_several_does_not_tell_who_waits():
    group = Collective("all_reduce", "0", (0, 1), evidence="metadata")
    rows = []
    for step in range(3):
        at = 100 * US * step
        rows.append(Slice(0, "thread 1", f"ProfilerStep#{step}", at, 100 * US, Kind.STEP))
        rows.append(Slice(0, "stream 7", "gemm", at, 40 * US, Kind.COMPUTE, 7))
        what = ("nccl", at + 40 * US, 60 * US, Kind.COMMUNICATION, 7)
        rows.append(Slice(0, "stream 7", *what, collective=group))
    said = str(Trace.from_slices(rows).cause())
    assert said.startswith("exposed communication") and "one rank does not show whether" in said


def test_what_has_no_word_is_not_called_computing():
    rows = []
    for step in range(3):
        at = 100 * US * step
        rows.append(Slice(0, "thread 1", f"ProfilerStep#{step}", at, 100 * US, Kind.STEP))
        rows.append(Slice(0, "stream 7", "gemm", at, 30 * US, Kind.COMPUTE, 7))
    found = Trace.from_slices(rows).cause()
    assert str(found) == "no word for it: other idle takes 70 % of a step"


@pytest.mark.parametrize(("free", "grow"), [("hipFree", "hipMalloc"), ("cudaFree", "cuMemMap")])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_trace_of_one_step_counts_what_its_allocator_takes(free, grow, ranks):
    def called(rank, step):
        return (free, grow)[rank % 2]

    trace = trace_of([(3_000, 100), (5, 20)], (None, 0), (None, 0), called, "gemm", 1, ranks)
    found = trace.cause()
    assert (found.word, found.ranks) == ("allocator thrashing", ())
    assert found.share > 0.9 and f"2 calls of {free} a step" in found.because
    said = " ".join(headline(trace, trace.collectives()))
    assert f"the host is in {free}" in said or f"the host is in {grow}" in said
    assert "fusion" not in said and "CUDA graph" not in said


def test_memory_freed_after_the_last_kernel_is_seen_too():
    rows = [
        Slice(0, "thread 1", "ProfilerStep#3", 0, 1_000 * US, Kind.STEP),
        Slice(0, "thread 1", "hipLaunchKernel", 0, 5 * US, Kind.LAUNCH, correlation=1),
        Slice(0, "stream 7", "gemm", 9 * US, 40 * US, Kind.COMPUTE, 7, correlation=1),
        Slice(0, "thread 1", "hipFree", 50 * US, 940 * US, Kind.LAUNCH, correlation=2),
    ]
    trace = Trace.from_slices(rows)
    assert trace.cause().word == "allocator thrashing"
    said = headline(trace, trace.collectives())
    assert (
        "94 % of its steps the host is in hipFree" in said[1] and "not in the trace" not in said[0]
    )


def test_what_compiles_in_the_only_step_may_do_so_for_the_first_time():
    found = program([(100, 100)] * 4, call="entire_frame_compile (dynamo_timed)", steps=1)
    assert found.word != "recompile"
