"""Imbalance of all-to-alls, what leaves a host, and groups that the trace does not say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_files import head, kernel, write
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.matching import match
from synthetic import clocks, grid, program, skew

START = 1_000_000_000
SPLITS = [[1, 1, 1, 5], [2, 2, 2, 2], [0, 0, 0, 8], [4, 0, 0, 4]]  # rows of 100 bytes
few = settings(max_examples=12, derandomize=True, deadline=None)


def experts(folder, *, hosts=None, splits=SPLITS):
    """Two all-to-alls of four ranks, the second even, and an all-reduce of ranks 0 and 1."""
    for rank in range(4):

        def said(name, rows, split, ranks=(0, 1, 2, 3)):
            return {
                "Collective name": name,
                "In msg nelems": rows * 100,
                "dtype": "Byte",
                "Out msg nelems": rows * 100,
                "In split size": str(split),
                "Process Group Name": str(len(ranks)),
                "Group size": len(ranks),
                "Process Group Ranks": str(list(ranks)),
            }

        sent = said("all_to_allv", sum(SPLITS[rank]), splits[rank])
        events = [
            kernel("ncclDevKernel_SendRecv", START, 10_000, stream=20, Seq=1, **sent),
            kernel("ncclDevKernel_SendRecv", START + 20_000, 10_000, stream=20, Seq=2,
                   **said("all_to_allv", 8, [])),
        ]  # fmt: skip
        if rank < 2:
            events.append(
                kernel("ncclDevKernel_AllReduce", START + 40_000, 6_000, stream=21, Seq=1,
                       **said("allreduce", 5, [], (0, 1)))
            )  # fmt: skip
        about = head(rank, 4, **({"host_name": hosts[rank]} if hosts else {}))
        write(folder / f"rank{rank}.json", events, about)
    trace = Trace.load(folder, cache=False)
    # Made on one clock: nothing to align.
    return trace.derive(certificate=Trace.from_slices([]).align().certificate)


def test_who_sends_what_to_whom(tmp_path):
    found = experts(tmp_path, hosts="aabb").traffic()
    (one,) = found.exchanges
    assert (one.group, one.ranks, one.times) == ("4", (0, 1, 2, 3), 2)
    assert np.array_equal(one.matrix, 100 * np.array(SPLITS) + 200)
    total = [[300, 300, 300, 700], [400] * 4, [200, 200, 200, 1000], [600, 200, 200, 600]]
    assert one.matrix.tolist() == total
    assert one.sent == 1.0 and one.received == 2700 / 1600 and one.busiest == 3
    assert one.worst == 1900 / 800  # of the first alone
    assert one.own == 300 + 400 + 200 + 600
    assert one.host == 300 + 400 + 1000 + 200
    assert one.others == 6400 - one.own - one.host
    reach = {(r.where, r.operation): (r.times, r.time, r.bytes) for r in found.reaches}
    assert reach == {
        ("several hosts", "all_to_all"): (2, 80_000, 1_600),
        ("one host", "all_reduce"): (1, 12_000, 500),
    }
    assert "2.38" in str(found)


def test_hosts_by_the_number_of_ranks_and_unknown_ones(tmp_path):
    trace = experts(tmp_path)
    unknown = trace.traffic()
    assert {one.where for one in unknown.reaches} == {"hosts unknown"}
    assert (unknown.exchanges[0].host, unknown.exchanges[0].others) == (-1, -1)
    assert "ranks_per_host=N" in str(unknown)
    known = trace.traffic(ranks_per_host=4)
    assert {one.where for one in known.reaches} == {"one host"}
    assert known.exchanges[0].others == 0
    with pytest.raises(TraceError, match="1 or more"):
        trace.traffic(ranks_per_host=0)


@pytest.mark.parametrize("split", ["[1, 1, ..., 5]", "[1, 2]"])
def test_splits_that_do_not_say_all_are_left_out(tmp_path, split):
    found = experts(tmp_path, hosts="aabb", splits=[split, *SPLITS[1:]]).traffic()
    assert found.exchanges[0].times == 1 and "1 all-to-alls left out" in str(found)


@few
@given(st.integers(0, 2**32 - 1), st.sampled_from([grid(2, 2), grid(2, 4), grid(3, 2)]))
def test_groups_are_found_by_when_their_collectives_end(seed, groups):
    rng = np.random.default_rng(seed)
    true, met = program(
        rng, groups=groups, collectives=30, known=False, sequence=False, apart=True,
        operations=("all_reduce",),
    )  # fmt: skip
    shown = skew(true, clocks(rng, true.ranks))
    matches = match(shown)
    found = [
        tuple(matches.rank[matches.first[at] : matches.first[at + 1]].tolist())
        for at in range(len(matches))
    ]
    assert sorted(found) == sorted(one.ranks for one in met)
    assert not matches.unmatched and matches.assumed.all()
    assert "by when they end, they are" in matches.notes[0]
    answer = shown.align().collectives()
    waited = sum(one.waited(rank) for one in met for rank in one.ranks)
    assert abs(answer.waiting - waited) < 0.001 * waited + 20_000


@pytest.mark.parametrize("alike", ["other counts", "a regular beat"])
def test_what_could_be_several_groups_or_none_is_not_guessed(alike):
    """Two streams whose only partner ends at other times; and streams that all keep one beat."""
    rng = np.random.default_rng(1)
    slices = []
    for rank in range(2):
        for stream, count in ((20, 30), (21, 40)):
            ends = np.cumsum(rng.integers(100_000, 3_000_000, count))
            if alike == "a regular beat":
                ends = 1_000_000 * np.arange(1, 31) + rng.integers(0, 9_000, 30)
            slices += [
                Slice(rank, f"stream {stream}", "nccl", int(end) - 50_000, 50_000,
                      Kind.COMMUNICATION, stream, collective=Collective("all_reduce"))
                for end in ends
            ]  # fmt: skip
    notes = match(Trace.from_slices(slices)).notes
    assert not any("by when they end" in note for note in notes)


def test_streams_of_ranks_that_have_nothing_to_do_with_each_other_are_no_group():
    rng = np.random.default_rng(0)
    slices = []
    for rank in range(2):
        for stream in (20, 21):
            ends = np.cumsum(rng.integers(100_000, 3_000_000, 30))
            slices += [
                Slice(rank, f"stream {stream}", "nccl", int(end) - 50_000, 50_000,
                      Kind.COMMUNICATION, stream, collective=Collective("all_reduce"))
                for end in ends
            ]  # fmt: skip
    notes = match(Trace.from_slices(slices)).notes
    assert not any("by when they end" in note for note in notes)
