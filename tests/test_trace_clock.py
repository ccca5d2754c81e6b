"""One clock for all ranks: it is found within 5 µs, its certificate is honest, and it refuses."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.analyses.clock import Misaligned, align
from synthetic import EPOCH, MS, US, Clock, clocks, grid, program, skew

GROUPS = ([(0, 1)], [range(8)], grid(2, 2), grid(2, 3), [range(4), (1, 2)], [(3, 5, 9)])
few = settings(max_examples=25, derandomize=True, deadline=None)


def error(true: Trace, aligned: Trace, shown: dict[int, Clock]) -> int:
    """Nanoseconds by which any start is off the lowest rank's clock, at most."""
    reference = shown[true.ranks[0]].shows(true.start)
    return int(np.abs(aligned.start - reference).max())


def without(trace: Trace, rank: int, first: int = 0, last: int = 0) -> Trace:
    """As if the rank's profiler had missed its `first` and `last` collectives."""
    rows = trace.where(Kind.COMMUNICATION, rank=rank)
    lost = np.concatenate((rows[:first], rows[len(rows) - last :]))
    return trace.select(~np.isin(np.arange(len(trace)), lost))


@few
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(GROUPS), st.integers(10, 60), st.booleans(),
    st.sampled_from([5 * MS, 4_000 * MS]),
)  # fmt: skip
def test_clocks_are_found_within_5_microseconds_and_certified_honestly(
    seed, groups, collectives, sequence, offset
):
    rng = np.random.default_rng(seed)
    true, _ = program(rng, groups=groups, collectives=collectives, sequence=sequence)
    shown = clocks(rng, true.ranks, offset=offset)
    skewed = skew(true, shown)
    assert error(true, skewed, shown) > 5 * US

    aligned = align(skewed)

    assert error(true, aligned, shown) <= aligned.certificate.resolution <= 20 * US
    if collectives >= 30:
        assert error(true, aligned, shown) <= 5 * US
    assert np.array_equal(aligned.duration, true.duration)


@settings(few, max_examples=12)
@given(st.integers(0, 2**32 - 1), st.sampled_from(GROUPS), st.booleans(), st.booleans())
def test_collectives_that_have_nothing_to_do_with_each_other_are_refused(
    seed, groups, sequence, alike
):
    """Each rank's slices come from a run of its own, in which it computed for other times."""
    rng = np.random.default_rng(seed)
    operations = ("all_reduce",) if alike else ("all_reduce", "barrier")
    ranks = sorted({rank for group in groups for rank in group})
    slices = []
    for rank in ranks:
        whole, _ = program(rng, groups=groups, operations=operations, sequence=sequence)
        slices += [whole[row] for row in whole.where(rank=rank)]
    if alike:  # not even the sizes tell
        slices = [
            replace(one, collective=replace(one.collective, bytes_in=8)) if one.collective else one
            for one in slices
        ]
    with pytest.raises(Misaligned):
        align(skew(Trace.from_slices(slices), {}))


def test_drift_is_measured_where_there_is_one():
    rng = np.random.default_rng(1)
    true, _ = program(rng, collectives=150, compute=(1 * MS, 30 * MS))
    shown = {0: Clock(), 1: Clock(2 * MS, 50.0), 2: Clock(-5 * MS), 3: Clock(9, -20.0)}

    aligned = align(skew(true, shown))

    drift = aligned.certificate.drift
    assert set(drift) == {1, 3}
    assert drift[1] == pytest.approx(50, abs=1) and drift[3] == pytest.approx(-20, abs=1)
    assert error(true, aligned, shown) <= 5 * US
    assert "drift up to 49.95 ppm" in str(aligned.certificate)


def test_without_drift_all_slices_of_a_rank_move_alike():
    rng = np.random.default_rng(2)
    true, _ = program(rng, collectives=60)
    shown = {rank: Clock(rank * MS) for rank in true.ranks}
    skewed = skew(true, shown)

    aligned = align(skewed)

    certificate = aligned.certificate
    assert certificate.drift == {} and certificate.reference == 0 and certificate.offsets[0] == 0
    for rank in true.ranks:
        moved = np.unique((skewed.start - aligned.start)[true.rank == rank])
        assert moved.tolist() == [certificate.offsets[rank]]
        assert certificate.offsets[rank] == pytest.approx(rank * MS, abs=3 * US)
    assert certificate.matches == 60 and certificate.violations == 0


def test_a_certificate_says_it_in_words_and_an_aligned_trace_stays():
    true, _ = program(np.random.default_rng(3), groups=[(0, 1)], collectives=30)
    aligned = align(skew(true, {1: Clock(3 * MS)}))
    assert str(aligned.certificate) == (
        "One clock: ends of synchronising collectives. 95 % of 30 collectives end on all ranks "
        "within 3.6 µs (0 disagree); offsets from +2,999.9 to +2,999.9 µs against rank 0, no "
        "drift; 0 violate causality. No waiting time below 7.0 µs is reported."
    )
    assert align(aligned) is aligned
    assert "rank 1" in aligned.certificate._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(("first", "last"), [(3, 0), (0, 4), (2, 5)])
@pytest.mark.parametrize("sequence", [True, False])
def test_a_recording_that_begins_or_ends_elsewhere_is_matched(first, last, sequence):
    rng = np.random.default_rng(4)
    true, _ = program(rng, collectives=40, operations=["all_reduce"], sequence=sequence)
    shown = clocks(rng, true.ranks)
    part = without(true, 2, first, last)

    aligned = align(skew(part, shown))

    assert error(part, aligned, shown) <= 5 * US
    assert aligned.certificate.matches == 40
    said = f"rank 2's recording begins {first} × all_reduce of group group 0 later than rank 0's"
    assert (said in aligned.certificate.evidence) == (first > 0 and not sequence)


def test_a_recording_shifted_against_the_other_but_as_long_is_matched():
    rng = np.random.default_rng(5)
    true, _ = program(rng, groups=[(0, 1)], operations=["barrier"], sequence=False)
    part = without(without(true, 0, last=1), 1, first=1)
    shown = clocks(rng, true.ranks)
    assert error(part, align(skew(part, shown)), shown) <= 5 * US


def test_where_several_shifts_fit_none_is_chosen():
    """Collectives as regular as a clock's ticks, and one rank has one more: which one?"""
    true, _ = program(
        np.random.default_rng(6), groups=[(0, 1)], operations=["barrier"], sequence=False,
        compute=(100 * US, 101 * US), transfer=(20 * US, 21 * US), overlap=0,
    )  # fmt: skip
    with pytest.raises(Misaligned, match="several matches are possible"):
        align(skew(without(true, 1, first=1), {}))
    assert align(skew(true, {})).certificate.matches == 40


def test_too_little_evidence_is_refused():
    rng = np.random.default_rng(7)
    with pytest.raises(Misaligned, match=r"cannot be compared: 0 / 1\. .* fewer than 5"):
        align(skew(program(rng, groups=[(0, 1)], collectives=4)[0], {}))
    apart, _ = program(rng, groups=[(0, 1), (2, 3)])
    with pytest.raises(Misaligned, match=r"0, 1 / 2, 3"):
        align(skew(apart, {}))
    # Nobody has to wait for a broadcast's other receivers: its ends say nothing.
    one_way, _ = program(rng, operations=["broadcast", "reduce", "send", "recv"])
    with pytest.raises(Misaligned, match=r"0 / 1 / 2 / 3"):
        align(skew(one_way, {}))
    assert issubclass(Misaligned, TraceError)


def test_some_late_ends_do_not_move_the_clock():
    rng = np.random.default_rng(8)
    true, _ = program(rng, groups=[(0, 1, 2)], collectives=100)
    late = rng.choice(true.where(Kind.COMMUNICATION, rank=1), 15, replace=False)
    duration = true.duration.copy()
    duration[late] += 2 * MS
    shown = clocks(rng, true.ranks)

    aligned = align(skew(true.derive({"duration": duration}), shown))

    assert aligned.certificate.disagreeing == 15
    assert error(true, aligned, shown) <= 5 * US


@pytest.mark.parametrize("jump", [40 * US, 400 * US])
def test_a_clock_that_jumps_for_a_while_is_noticed(jump):
    rng = np.random.default_rng(9)
    true, _ = program(rng, groups=[range(3)], collectives=200)
    first, last = true.span
    begin, end = first + (last - first) * 4 // 10, first + (last - first) * 5 // 10
    jumped = (true.rank == 2) & (true.start >= begin) & (true.start < end)
    skewed = skew(true.derive({"start": true.start + jumped * jump}), {})
    if jump > 100 * US:
        with pytest.raises(Misaligned, match=r"rank 2's clock jumps: for a while it is [2-4]\d\d"):
            align(skewed)
    else:
        assert align(skewed).certificate.resolution >= jump - 7 * US


def test_a_jump_too_short_for_the_spread_still_lowers_the_resolution():
    """It lasts for 19 of 400 collectives, so 95 % of the ends agree as if it had not been."""
    true, _ = program(np.random.default_rng(14), groups=[(0, 1)], collectives=400)
    jumped = true.where(Kind.COMMUNICATION, rank=1)[200:219]
    start = true.start.copy()
    start[jumped] += 60 * US
    certificate = align(skew(true.derive({"start": start}), {})).certificate
    assert certificate.spread < 10 * US
    assert certificate.resolution >= 50 * US


def test_a_clock_is_found_through_a_higher_rank():
    rng = np.random.default_rng(15)
    true, _ = program(rng, groups=[(0, 2), (0, 2), (1, 2)])
    shown = clocks(rng, true.ranks)
    assert error(true, align(skew(true, shown)), shown) <= 5 * US


def test_collectives_that_one_leaves_before_another_has_come_are_refused():
    """Ends agree as well as those of a schedule kept by two, but nobody waits for anybody."""
    rng = np.random.default_rng(10)
    everyone = Collective("barrier", "all", (0, 1), evidence="metadata")
    slices = [
        Slice(
            rank, "stream 1", "barrier", EPOCH + turn * MS + int(rng.integers(0, 40 * US)), 5 * US,
            Kind.COMMUNICATION, stream=1, collective=everyone, sequence=turn,
        )
        for rank in (0, 1)
        for turn in range(50)
    ]  # fmt: skip
    with pytest.raises(Misaligned, match="ends before the last one starts"):
        align(Trace.from_slices(slices))


def test_an_unnamed_group_is_taken_for_that_of_all_ranks_and_said():
    rng = np.random.default_rng(11)
    true, _ = program(rng, known=False, sequence=False)
    shown = clocks(rng, true.ranks)
    aligned = align(skew(true, shown))
    assert error(true, aligned, shown) <= 5 * US
    assert "assumed to be that of all ranks" in aligned.certificate.evidence

    some, _ = program(rng, groups=[(0, 1, 2)], known=False)
    also = Trace.from_slices([*some, Slice(3, "thread 1", "aten::mm", EPOCH, 5)])
    with pytest.raises(Misaligned, match="the group is unknown"):
        align(skew(also, {}))


def on_threads(hosts: list[str]) -> Trace:
    """Gloo: the ranks learn of the end when they are woken, up to 3 ms late."""
    rng = np.random.default_rng(12)
    true, _ = program(rng, groups=[(0, 1)], collectives=200, lateness=(1 * US, 3 * MS))
    slices = [replace(one, lane="thread 1", stream=-1) for one in true]
    about = {rank: {"host": host} for rank, host in enumerate(hosts)}
    return Trace.from_slices(slices).derive(about=about)


def test_ranks_of_one_host_that_communicate_on_threads_have_one_clock():
    trace = on_threads(["here", "here"])
    aligned = align(trace)
    certificate = aligned.certificate
    assert np.array_equal(aligned.start, trace.start)
    assert set(certificate.offsets.values()) == {0}
    assert "same host clock" in str(certificate)
    # Half of the ends are further apart: a shorter wait says nothing of who came last.
    assert 0.5 * MS < certificate.resolution < 1.5 * MS
    with pytest.raises(Misaligned, match="do not agree"):
        align(on_threads(["here", "there"]))


def test_one_rank_has_one_clock():
    true, _ = program(np.random.default_rng(13), groups=[(0, 1)])
    alone = Trace.from_slices(one for one in true if one.rank == 1)
    aligned = align(alone)
    assert np.array_equal(aligned.start, alone.start)
    assert str(aligned.certificate) == "One clock: rank 1 is the only one."


@pytest.mark.parametrize("jump", [80_000, -80_000, 25_000, 0])
@pytest.mark.parametrize("drift", [0.0, 30.0])
def test_a_clock_that_jumps_is_no_clock_that_drifts(jump, drift):
    rng = np.random.default_rng(7)
    trace, _ = program(rng, groups=(range(4),), collectives=120)
    first, last = trace.span
    clocks_of = clocks(rng, trace.ranks, drift=drift)
    start = skew(trace, clocks_of).start.copy()
    late = (trace.rank == 2) & (trace.start > (first + last) // 2)
    start[late] += jump
    jumped = skew(trace, clocks_of).derive({"start": start})
    if not jump:
        assert max(map(abs, jumped.align().certificate.drift.values()), default=0) < 130
        return
    with pytest.raises(TraceError, match="rank 2's clock jumps by") as caught:
        jumped.align()
    said = int(re.findall(r"by (\d+) µs", str(caught.value))[0])
    assert abs(said - abs(jump) / 1000) < 8


def late_recording(ranks, odd, missed, *, sequence, **what):
    """A program of 60 rounds; one rank's recording begins so many collectives later than others."""
    rng = np.random.default_rng(odd)
    true, _ = program(rng, groups=[range(ranks)], collectives=60, sequence=sequence, **what)
    begins = true.start[true.where(Kind.COMMUNICATION, rank=odd)[missed]]
    return true.select(~((true.rank == odd) & (true.start < begins)))


@pytest.mark.parametrize("missed", [10, 40])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("sequence", [True, False])
def test_a_clock_ahead_of_a_recording_that_begins_later_makes_no_other_clock_jump(
    ranks, missed, sequence
):
    for odd in range(ranks):
        part = late_recording(ranks, odd, missed, sequence=sequence, operations=["all_reduce"])
        shown = {odd: Clock(3 * MS)}
        aligned = align(skew(part, shown))
        assert error(part, aligned, {0: Clock(), **shown}) <= 7 * US
        assert aligned.certificate.matches == (60 if ranks > 2 else 60 - missed)


def test_which_recording_is_too_short_to_be_matched_is_said():
    for odd in range(4):
        part = late_recording(4, odd, 50, sequence=False)
        others = ", ".join(str(rank) for rank in range(4) if rank != odd)
        parts = f"{others} / {odd}" if odd else f"{odd} / {others}"
        with pytest.raises(Misaligned, match=re.escape(f"cannot be compared: {parts}.")):
            align(skew(part, {odd: Clock(3 * MS)}))


@pytest.mark.parametrize("jumper", [0, 1, 2])
def test_a_jump_is_its_own_ranks_beside_a_recording_that_begins_later(jumper):
    part = late_recording(3, 0, 10, sequence=True, operations=["all_reduce"])
    skewed = skew(part, {0: Clock(3 * MS)})
    middle = int(np.median(skewed.start))
    start = skewed.start + 80 * US * ((part.rank == jumper) & (skewed.start > middle))
    with pytest.raises(Misaligned, match=rf"rank {jumper}'s clock jumps by (7|8)\d µs"):
        align(skewed.derive({"start": start}))
