"""Kernels that the trace has lost are said to be missing: their time is no idle time."""

from __future__ import annotations

import json
import random

import pytest
from kineto_files import event, head, kernel, write
from lockstep.__main__ import main
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError, summary
from lockstep.trace.analyses.headline import headline
from lockstep.trace.gate import GateError, gate
from lockstep.trace.unseen import lossy, unseen

US = 1_000
KERNELS = 20  # a step and rank
CALLS = ("cudaLaunchKernel", "hipExtModuleLaunchKernel", "cuLaunchKernelEx")


def program(*, ranks=3, steps=3, call="cudaLaunchKernel"):
    """Slices: steps of a copy, 20 kernels and an all-reduce, 62 µs each, and calls of 5 µs."""
    group = Collective("all_reduce", "0", tuple(range(ranks)), evidence="metadata")
    rows, key = [], 0
    for rank in range(ranks):
        for number in range(steps):
            begin = number * 2_000 * US
            step = (f"ProfilerStep#{number}", begin, 2_000 * US, Kind.STEP)
            rows.append(Slice(rank, "thread 1", *step))
            work = [("Memcpy HtoD", Kind.COPY), *[("gemm", Kind.COMPUTE)] * KERNELS]
            for place, (name, kind) in enumerate([*work, ("nccl", Kind.COMMUNICATION)]):
                key += 1
                name_of_call = "cudaMemcpyAsync" if kind == Kind.COPY else call
                called = begin + 6 * US * place
                launch = (name_of_call, called, 5 * US, Kind.LAUNCH)
                rows.append(Slice(rank, "thread 1", *launch, correlation=key))
                what = (name, begin + (20 + 62 * place) * US, 62 * US, kind, 7, key)
                meets = group if kind == Kind.COMMUNICATION else None
                rows.append(Slice(rank, "stream 7", *what, collective=meets))
    return rows


def is_kernel(one):
    return one.kind in (Kind.COMPUTE, Kind.COMMUNICATION)


def lose(rows, share, rank=1):
    """Without this share of the rank's kernels that compute; all kernels of it if share is 1."""
    draw = random.Random(3)
    lost = [
        one
        for one in rows
        if one.rank == rank and is_kernel(one) and (share == 1 or one.kind == Kind.COMPUTE)
    ]
    gone = set(map(id, draw.sample(lost, round(share * len(lost)))))
    return [one for one in rows if id(one) not in gone]


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_whose_kernels_all_are_gone_is_left_out_though_its_copies_are_there(call):
    trace = Trace.from_slices(lose(program(call=call), 1))
    assert set(unseen(trace)) == {1} and not lossy(trace)
    found = trace.breakdown()
    assert [one.rank for one in found.totals] == [0, 2] and found.lost[1] == 1
    said = " ".join(headline(trace, trace.collectives()))
    assert "rank 1 has copies, but no kernels in the trace, although it makes 63 calls" in said
    assert "most on rank 1" not in said and "host-bound" not in said
    assert trace.cause().ranks == ()
    with pytest.raises(GateError, match="rank 1 has copies, but no kernels"):
        gate(Trace.from_slices(program()), trace)


@pytest.mark.parametrize("call", CALLS)
def test_the_share_of_lost_kernels_is_said_wherever_times_are(call):
    whole, trace = (Trace.from_slices(lose(program(call=call), share)) for share in (0, 0.6))
    assert whole.breakdown().of(1).compute == 3 * KERNELS * 62 * US
    found = trace.breakdown()
    assert found.of(1).compute < 0.5 * whole.breakdown().of(1).compute
    assert found.lost == {0: 0, 1: 36 / 63, 2: 0}
    (why,) = (one for one in found.doubts if "launching calls" in one)
    assert why.startswith("rank 1: the kernels of 36 of 63 launching calls (57 %) are missing")
    assert why in str(found) and "missing" not in str(whole.breakdown())
    said = headline(trace, trace.collectives())
    assert said[:2] == (f"{why}.", "What follows leaves out rank 1.")
    rest = headline(whole, whole.collectives())
    assert "most on rank 1" not in " ".join(said) and len(said) == len(rest) + 2
    assert trace.cause().ranks == ()
    for pair in ((whole, trace), (trace, whole)):
        with pytest.raises(GateError, match="of 36 of 63 launching calls"):
            gate(*pair)
    assert gate(whole, whole).passed


def test_where_no_rank_is_whole_nothing_is_said_to_hold_it_back():
    rows = program(ranks=2)
    trace = Trace.from_slices(lose(lose(rows, 0.6, 0), 0.6, 1))
    (said,) = headline(trace, trace.collectives())
    assert said.startswith("What holds the steps back cannot be said: rank 0: the kernels of 36")
    with pytest.raises(TraceError, match="launching calls"):
        trace.cause()


def doubts(rows):
    trace = Trace.from_slices(rows)
    return [*lossy(trace), *unseen(trace)]


def test_what_is_whole_gives_no_warning():
    rows = program()
    assert doubts(rows) == []
    without_calls = [one for one in rows if one.kind != Kind.LAUNCH]
    assert doubts(without_calls) == []
    on_cpu = [Slice(0, "thread 1", "aten::mm", 0, 9, Kind.OPERATOR)]
    assert doubts(on_cpu) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_the_recordings_end_may_cut_a_few_off(rank):
    rows = program()
    kernels = sorted(
        (one for one in rows if one.rank == rank and is_kernel(one)), key=lambda one: one.start
    )
    for many, warns in ((1, False), (4, False), (20, True)):
        cut = set(map(id, kernels[-many:]))
        assert bool(doubts([one for one in rows if id(one) not in cut])) == warns
    inside = id(kernels[30])  # 1 of 63 is more than a few, where others follow
    assert doubts([one for one in rows if id(one) != inside]) == [rank]


def test_what_launches_no_kernel_by_itself_is_not_missing():
    rows = program(ranks=1)
    for place in range(30):
        at = 10_000 * US + 10 * place
        for name in ("cudaMemsetAsync", "cudaLaunchHostFunc", "cudaMalloc"):
            key = 5_000 + len(rows)
            rows.append(Slice(0, "thread 1", name, at, 1, Kind.LAUNCH, correlation=key))
    assert doubts(rows) == []


@pytest.mark.parametrize("prefix", ["cuda", "hip"])
def test_what_a_graph_captures_does_not_run(prefix):
    rows = program(ranks=1)
    calls = [f"{prefix}StreamBeginCapture", *[f"{prefix}LaunchKernel"] * 40]
    for place, name in enumerate([*calls, f"{prefix}StreamEndCapture"]):
        key = 5_000 + place
        rows.append(Slice(0, "thread 1", name, 150 * US + place, 1, Kind.LAUNCH, correlation=key))
    assert doubts(rows) == []
    assert doubts([one for one in rows if "Capture" not in one.name]) == [0]


def test_a_call_within_a_call_and_calls_of_other_numbers_lose_nothing():
    rows = program(ranks=1)
    inner = [
        Slice(0, "thread 1", "cuLaunchKernel", one.start + 1, 1, Kind.LAUNCH, -1, one.correlation)
        for one in rows
        if one.name == "cudaLaunchKernel"
    ]
    assert doubts([*rows, *inner]) == []
    other = [
        Slice(0, one.lane, one.name, one.start, one.duration, one.kind, 7, 90_000 + place)
        if is_kernel(one)
        else one
        for place, one in enumerate(rows)
    ]
    assert doubts(other) == []


def test_the_command_says_it_too(tmp_path, capsys):
    for rank in (0, 1):
        events = []
        for place in range(20):
            at = 1_000_000_000 + 100 * place
            events.append(event("hip_runtime", "hipLaunchKernel", at, 5, correlation=place + 1))
            if rank == 0 or place % 5 < 2 or place == 19:
                events.append(kernel("gemm", at + 10, 80, correlation=place + 1))
        write(tmp_path / f"rank{rank}.json", events, head(rank, 2))
    assert main(["trace", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    lost = {row["rank"]: row["lost"] for row in report["answers"]["breakdown"]}
    assert lost == {0: 0, 1: 11 / 20}
    assert "rank 1: the kernels of 11 of 20 launching calls (55 %)" in report["headline"][0]
    _, sections, _ = summary.summarise(tmp_path)
    assert "11 of 20 launching calls" in dict(sections)["Where the time went"]
