"""Who came last in each collective, what the others waited, and what the transfer took."""

from __future__ import annotations

import html
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.analyses.clock import align
from lockstep.trace.analyses.collectives import Doing, collectives
from lockstep.trace.certificate import Certificate
from synthetic import MS, US, clocks, grid, program, skew

GROUPS = ([(0, 1)], [range(8)], grid(2, 2), [range(4), (1, 2)], [(3, 5, 9)])
few = settings(max_examples=15, derandomize=True, deadline=None)


def communication(rank, start, duration, operation="all_reduce", sequence=0, **what):
    """A kernel that communicates, times in µs."""
    what = {"group": "all", "ranks": (0, 1), **what}
    return Slice(
        rank, "stream 20", f"nccl {operation}", start * US, duration * US, Kind.COMMUNICATION,
        stream=20, collective=Collective(operation, **what), sequence=sequence,
    )  # fmt: skip


def compute(rank, start, duration, name="gemm"):
    return Slice(rank, "stream 7", name, start * US, duration * US, Kind.COMPUTE, stream=7)


def on_cpu(rank, start, duration, name, kind=Kind.OPERATOR):
    return Slice(rank, "thread 1", name, start * US, duration * US, kind)


def ask(*slices: Slice):
    return collectives(Trace.from_slices(slices))


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(GROUPS), st.booleans())
def test_on_true_time_the_answers_are_exact(seed, groups, sequence):
    trace, met = program(np.random.default_rng(seed), groups=groups, sequence=sequence)
    found = collectives(trace)
    assert len(found) == len(met) and not found.unmatched
    met.sort(key=lambda one: max(one.start.values()))
    for here, truth in zip(found, met, strict=True):
        assert (here.operation, here.ranks) == (truth.operation, truth.ranks)
        assert (here.start, here.end) == (truth.start, truth.end)
        assert here.last == truth.last and here.transfer == truth.transfer
        assert here.waited == {rank: truth.waited(rank) for rank in truth.ranks}
    waiting = sum(one.waited(rank) for one in met for rank in one.ranks)
    total = sum(one.end[rank] - one.start[rank] for one in met for rank in one.ranks)
    assert found.waiting == waiting and found.duration == total
    assert found.share == pytest.approx(waiting / total)
    assert sum(one.caused for one in found.stragglers) == waiting


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from(GROUPS))
def test_after_alignment_they_are_as_good_as_the_clock_and_never_finer(seed, groups):
    rng = np.random.default_rng(seed)
    trace, met = program(rng, groups=groups)
    aligned = align(skew(trace, clocks(rng, trace.ranks)))
    resolution = aligned.certificate.resolution
    found = collectives(aligned)
    assert found.resolution == resolution and len(found) == len(met)
    truth = {(one.ranks, number // len(groups)): one for number, one in enumerate(met)}
    for here in found:
        true = truth[here.ranks, here.number]
        for rank, waited in here.waited.items():
            assert waited == 0 or waited >= resolution
            assert abs(waited - true.waited(rank)) <= 2 * resolution
        assert (here.last == -1) == (not any(here.waited.values()))
        if here.last != true.last:
            assert here.last == -1 or true.waited(here.last) <= 2 * resolution


def test_clocks_that_nobody_compared_are_not_believed():
    trace, _ = program(np.random.default_rng(1))
    with pytest.raises(TraceError, match=r"call trace\.align\(\) first"):
        collectives(skew(trace, {}))
    assert len(collectives(trace)) == 40  # made by hand: one clock


@pytest.mark.parametrize(
    ("operation", "bytes_in", "bytes_out", "algorithm", "bus"),
    [
        ("all_reduce", 1_000_000, 1_000_000, 10, 15),
        ("all_gather", 250_000, 1_000_000, 10, 7.5),
        ("all_gather", 250_000, -1, 10, 7.5),
        ("reduce_scatter", 1_000_000, 250_000, 10, 7.5),
        ("all_to_all", 1_000_000, 1_000_000, 10, 7.5),
        ("broadcast", 1_000_000, 1_000_000, 10, 10),
        ("all_reduce", -1, -1, math.nan, math.nan),
        ("barrier", 0, 0, math.nan, math.nan),
    ],
)
def test_bandwidth_is_that_of_nccl_tests(operation, bytes_in, bytes_out, algorithm, bus):
    what = {"ranks": (0, 1, 2, 3), "bytes_in": bytes_in, "bytes_out": bytes_out, "peer": 3}
    found = ask(*(communication(rank, rank, 103 - rank, operation, **what) for rank in range(4)))
    assert found[0].transfer == 100 * US
    assert found[0].algorithm_bandwidth == pytest.approx(algorithm, nan_ok=True)
    assert found[0].bus_bandwidth == pytest.approx(bus, nan_ok=True)


def test_a_straggler_is_charged_with_what_it_was_doing():
    found = ask(
        communication(0, 100, 1000),
        compute(1, 0, 300, "slow gemm"),
        # From 300 to 1050 the device is idle: the thread reads data, inside of that it sleeps.
        on_cpu(1, 200, 800, "read data", Kind.PYTHON),
        on_cpu(1, 400, 500, "sleep", Kind.PYTHON),
        on_cpu(1, 0, 2000, "ProfilerStep#1", Kind.STEP),
        communication(1, 1050, 50),
    )
    (straggler,) = found.stragglers
    assert (straggler.rank, straggler.times) == (1, 1)
    assert straggler.caused == 950 * US
    doing = [(one.where, one.name, one.time // US) for one in straggler.doing]
    assert doing == [
        ("host", "sleep", 500),
        ("device", "slow gemm", 200),
        ("host", "read data", 200),
        ("nothing recorded", "", 50),
    ]
    assert found.doing(0) == straggler.doing
    assert str(found) == (
        "1 collective, 1.05 ms summed over ranks, of which 950.0 µs (90 %) waiting for others\n"
        "rank 1 came last 1 time and cost the others 950.0 µs; meanwhile: sleep (device idle) "
        "500.0 µs; slow gemm 200.0 µs; read data (device idle) 200.0 µs\n"
        "all_reduce #0 in all: waited 950.0 µs for rank 1, transfer 50.0 µs"
    )


def test_of_calls_inside_and_beside_each_other_each_has_its_own_time():
    found = ask(
        communication(0, 100, 900),
        on_cpu(1, 100, 400, "load"),
        on_cpu(1, 150, 100, "read"),
        on_cpu(1, 300, 100, "decode"),
        on_cpu(1, 320, 30, "inflate"),
        on_cpu(1, 500, 400, "shuffle"),
        on_cpu(1, 550, 100, "hash"),
        on_cpu(1, 700, 100, "hash"),
        replace(on_cpu(1, 850, 80, "other thread"), lane="thread 2"),
        communication(1, 950, 50),
    )
    assert [(one.name, one.time // US) for one in found.stragglers[0].doing] == [
        *(("hash", 200), ("load", 200), ("shuffle", 200), ("read", 100)),
        *(("other thread", 80), ("decode", 70), ("inflate", 30), ("", 20)),
    ]


def test_the_costliest_straggler_comes_first_in_words_and_table():
    found = ask(
        communication(1, 0, 30, sequence=0),
        communication(0, 20, 10, sequence=0),
        communication(0, 100, 90, sequence=1, bytes_in=4000),
        communication(1, 180, 10, sequence=1, bytes_in=4000),
        communication(0, 200, 1, sequence=2, bytes_in=8000),
        communication(1, 200, 1, sequence=2, bytes_in=8000),
        *(communication(rank, 300, 5, "barrier") for rank in (0, 1)),
    )
    assert [(one.rank, one.caused // US) for one in found.stragglers] == [(1, 80), (0, 20)]
    assert found.worst() == [1, 0] and found.worst(1) == [1]
    words = str(found).splitlines()
    assert words[1].startswith("rank 1 came last 1 time and cost the others 80.0 µs")
    assert words[2].startswith("rank 0 came last 1 time and cost the others 20.0 µs")
    assert [line.partition(":")[0] for line in words[3:]] == [
        "all_reduce #1 of 0.004 MB in all",
        "all_reduce #0 in all",
    ]
    # The median of the sizes that are known, and the share of all the time that was waited.
    table = found._repr_mimebundle_()["text/html"]
    assert all(html.escape(line) in table for line in words[1:])
    cells = re.findall("<t[hd][^>]*>([^<]*)</t[hd]>", table)[6:]
    assert cells == [
        *("all_reduce", "3", "6 kB", "70 %", "10.0 µs", "4.2 GB/s"),
        *("barrier", "1", "unknown", "0 %", "5.0 µs", "unknown"),
    ]


def test_waiting_below_the_resolution_is_none_and_at_it_some():
    trace = Trace.from_slices([communication(0, 0, 30), communication(1, 20, 10)])
    for resolution, waited, last in ((20 * US, 20 * US, 1), (20 * US + 1, 0, -1)):
        exact = Certificate(0, 1, 0, 0, {}, {}, {}, 0, resolution, "by construction")
        found = collectives(trace.derive(certificate=exact))
        assert (found[0].waited, found[0].last) == ({0: waited, 1: 0}, last)


def test_long_names_are_cut_in_words():
    assert str(Doing("host", "a" * 48, 1000)) == f"{'a' * 48} (device idle) 1.0 µs"
    assert str(Doing("device", "a" * 49, 999_999)) == f"{'a' * 47}… 1,000.0 µs"
    assert str(Doing("nothing recorded", "", 10**6)) == "nothing recorded 1.00 ms"


def test_what_two_collectives_share_counts_once_as_lateness():
    found = ask(
        communication(0, 0, 110, sequence=0),
        communication(2, 50, 60, group="b", ranks=(1, 2)),
        communication(1, 100, 10, sequence=0),
        communication(1, 100, 10, group="b", ranks=(1, 2)),
    )
    (straggler,) = found.stragglers
    assert (straggler.times, straggler.caused) == (2, 150 * US)


def test_in_what_does_not_synchronise_only_some_wait():
    three = {"ranks": (0, 1, 2)}
    found = ask(
        *(communication(r, s, 20, "broadcast", peer=1, **three) for r, s in enumerate((0, 10, 15))),
        *(
            communication(r, s, 30, "reduce", peer=0, sequence=1, **three)
            for r, s in enumerate((100, 110, 120))
        ),
        *(communication(r, s, 9, "broadcast", 2, **three) for r, s in enumerate((200, 205, 201))),
    )
    broadcast, reduce, no_root = found
    assert (broadcast.waited, broadcast.last) == ({0: 10 * US, 1: 0, 2: 0}, 1)
    assert (reduce.waited, reduce.last) == ({0: 20 * US, 1: 0, 2: 0}, 2)
    assert (no_root.waited, no_root.last) == ({0: 0, 1: 0, 2: 0}, -1)  # nobody knows for whom
    late = ask(  # the root came when the receiver had given up: it waited no longer than it lasted
        communication(0, 0, 20, "broadcast", peer=1), communication(1, 50, 20, "broadcast", peer=1)
    )
    assert late[0].waited == {0: 20 * US, 1: 0}


def test_sends_and_receives_are_matched_by_their_peers():
    found = ask(
        communication(0, 0, 50, "send", 7, peer=1),
        communication(0, 60, 10, "send", 8, peer=1),
        communication(1, 40, 10, "recv", 3, peer=0),
        communication(1, 60, 10, "recv", 4, peer=0),
        communication(1, 80, 10, "send", 5, peer=0),
        communication(0, 80, 10, "recv", 9, peer=1),
        communication(0, 90, 10, "send", 10),
    )
    assert [one.start for one in found] == [
        {0: 0, 1: 40 * US},
        {0: 60 * US, 1: 60 * US},
        {0: 80 * US, 1: 80 * US},
    ]
    assert found[0].waited == {0: 40 * US, 1: 0}
    assert found.unmatched == {"the peer is unknown": 1}


def test_several_kernels_of_one_sequence_are_one_collective():
    found = ask(
        communication(0, 0, 10),
        communication(0, 20, 10),
        communication(0, 40, 10, sequence=1),
        communication(1, 5, 5),
        communication(1, 20, 12),
        communication(1, 40, 10, sequence=1),
    )
    assert [(one.start, one.end) for one in found] == [
        ({0: 0, 1: 5 * US}, {0: 30 * US, 1: 32 * US}),
        ({0: 40 * US, 1: 40 * US}, {0: 50 * US, 1: 50 * US}),
    ]


def test_a_sequence_that_begins_again_is_another_collective():
    """The group was destroyed and made anew, and counts from 0 again."""
    turns = [(rank, turn) for rank in (0, 1) for turn in range(4)]
    found = ask(*(communication(r, 100 * turn, 10, sequence=turn % 2) for r, turn in turns))
    assert [one.start[0] // US for one in found] == [0, 100, 200, 300]
    assert [one.number for one in found] == [0, 1, 0, 1]


def test_sizes_may_differ_where_splits_may_be_uneven():
    both = ask(
        communication(0, 0, 10, "all_to_all", bytes_in=100),
        communication(1, 0, 10, "all_to_all", bytes_in=900),
    )
    assert len(both) == 1 and both[0].bytes == 900
    neither = ask(communication(0, 0, 10, bytes_in=100), communication(1, 0, 10, bytes_in=900))
    assert len(neither) == 0 and neither.unmatched == {"the ranks' sizes differ": 2}
    assert str(neither).startswith("no collective was recorded by all its ranks")


def test_what_not_all_recorded_and_what_cannot_be_is_left_out_and_counted():
    three = {"ranks": (0, 1, 2)}
    found = ask(
        *(communication(rank, 0, 10, **three) for rank in (0, 1, 2)),
        *(communication(rank, 20, 10, sequence=1, **three) for rank in (0, 1)),
        communication(0, 40, 10, sequence=2, **three),
        *(communication(rank, 60 + 20 * rank, 10, sequence=3, **three) for rank in (0, 1, 2)),
        communication(0, 90, 10, "", sequence=4),
    )
    assert [one.number for one in found] == [0]
    assert found.unmatched == {
        "the operation is unknown": 1,
        "no other rank has it": 1,
        "not all ranks have it": 2,
        "a rank ends before another starts": 3,
    }


def test_ranks_without_a_file_are_not_waited_for():
    found = ask(*(communication(rank, rank, 10, ranks=(0, 1, 2, 3), bytes_in=9) for rank in (0, 1)))
    assert found[0].ranks == (0, 1) and len(found) == 1
    assert found[0].bus_bandwidth == pytest.approx(found[0].algorithm_bandwidth * 1.5)


def test_a_group_may_have_another_name_on_each_rank_but_two_groups_are_two():
    one = ask(communication(0, 0, 10, group="5"), communication(1, 5, 5, group="9"))
    assert len(one) == 1
    two = ask(
        *(communication(rank, at, 10, group=name) for rank in (0, 1) for name, at in
          ((("a", 0), ("b", 50)) if rank else (("b", 50), ("a", 0))))
    )  # fmt: skip
    assert [(one.group, one.start) for one in two] == [
        ("a", {0: 0, 1: 0}),
        ("b", {0: 50 * US, 1: 50 * US}),
    ]


def test_text_of_a_trace_is_escaped():
    slices = [replace(communication(r, r, 9), name="<script>") for r in (0, 1)]
    found = ask(compute(1, 0, 1, "<script>"), *slices)
    bundle = found._repr_mimebundle_()
    assert "<script>" not in bundle["text/html"] and "all_reduce" in bundle["text/html"]
    assert "<script>" in bundle["text/plain"]


def test_an_empty_trace_has_none():
    found = ask()
    assert len(found) == 0 and list(found) == [] and math.isnan(found.share)
    assert found.stragglers == () and found.worst() == []
    assert len(ask(compute(0, 0, 2 * MS // US))) == 0
