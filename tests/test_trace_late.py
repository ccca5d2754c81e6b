"""Who is late: by construction, and never another rank on the same page."""

from __future__ import annotations

import re

import numpy as np
import pytest
from lockstep.base.formatting import milliseconds, ranks_text
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.analyses.headline import headline
from recorded import ALIGNED, IDS
from synthetic import EPOCH, MS, US, clocks, grid, program, skew


def delayed(seed, ranks, late, *, turns, kind="device", rounds=40):
    """All-reduces after random work of 20 µs to 3 ms; `late` ranks work 4 ms more.

    turns: one of them in each round, else all of them. kind: "device", or "host" for gloo's ranks.
    """
    rng = np.random.default_rng(seed)
    group = Collective("all_reduce", "all", tuple(range(ranks)), 8, 8, evidence="metadata")
    free, rows = EPOCH, []
    for turn in range(rounds):
        work = np.exp(rng.uniform(np.log(20 * US), np.log(3 * MS), ranks)).astype(int)
        now = [late[turn % len(late)]] if late and turns else list(late)
        work[now] += 4 * MS
        end = free + int(work.max()) + 100 * US
        for rank in range(ranks):
            lane, stream = ("stream 7", 7) if kind == "device" else ("thread 1", -1)
            computes = Kind.COMPUTE if kind == "device" else Kind.OPERATOR
            rows.append(Slice(rank, lane, "gemm", free, int(work[rank]), computes, stream))
            come = free + int(work[rank])
            what = ("all_reduce", come, end - come, Kind.COMMUNICATION, stream)
            rows.append(Slice(rank, lane, *what, collective=group, sequence=turn))
        free = end
    return Trace.from_slices(rows)


def said_of(trace):
    """(cause, headline, collectives), which must not contradict each other."""
    found, met = trace.cause(), trace.collectives()
    said = " ".join(headline(trace, met))
    late = met.late()
    assert set(late) <= {one.rank for one in met.stragglers}
    if met.waiting:
        assert "no rank is late" not in f"{found} {said}"
    if "no rank in particular" in f"{found} {said}":
        assert not late
    if named := re.search(r"(ranks? [\d,– ]+) came last ([\d,]+ times|once)", said):
        those = [one for one in met.stragglers if one.rank in late] or list(met.stragglers[:1])
        assert named[1] == ranks_text(one.rank for one in those)
        cost = milliseconds(sum(one.caused for one in those))
        assert f"cost the others {cost} ms" in said
    if found.word in ("straggler", "checkpoint", "recompile") and found.ranks and len(met):
        assert set(found.ranks) == set(late)
    return found, said, met


@pytest.mark.parametrize("path", ALIGNED, ids=IDS)
def test_no_sentence_about_a_recording_contradicts_its_collectives(path):
    said_of(Trace.load(path).align())


@pytest.mark.parametrize("groups", [[(0, 1)], [range(3)], [range(8)], grid(2, 3)])
@pytest.mark.parametrize("operations", [("all_reduce",), ("broadcast", "barrier", "reduce")])
def test_no_sentence_about_a_random_program_contradicts_its_collectives(groups, operations):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        true, _ = program(rng, groups=groups, operations=operations, overlap=seed / 4)
        skewed = skew(true, clocks(rng, true.ranks))
        try:
            trace = skewed.align()
        except TraceError:
            continue
        said_of(trace)


@pytest.mark.parametrize("kind", ["device", "host"])
@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize(
    ("ranks", "late"),
    [(2, (1,)), (3, (0,)), (3, (0, 2)), (8, (5,)), (8, (0, 6)), (8, (1, 2, 7))],
)
def test_every_straggler_is_named_and_nobody_else(ranks, late, turns, kind):
    for seed in range(3):
        found, said, met = said_of(delayed(seed, ranks, late, turns=turns, kind=kind))
        assert tuple(sorted(met.late())) == late
        assert (found.word, found.ranks) == ("straggler", late)
        assert f"{ranks_text(late)} came last" in said
        assert ranks_text(late) in str(found)


@pytest.mark.parametrize("kind", ["device", "host"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_that_take_turns_are_no_stragglers(ranks, kind):
    for seed in range(4):
        found, said, met = said_of(delayed(seed, ranks, (), turns=False, kind=kind))
        assert met.late() == () and found.ranks == ()
        assert found.word == "exposed communication"
        assert "of it is waiting, for no rank in particular" in found.because
        assert "no rank in particular" in said


def test_the_share_of_several_stragglers_is_what_the_others_wait_for_them():
    """Two take turns to work 4 ms more: the others wait for that, and they for each other."""
    trace = delayed(0, 8, (0, 6), turns=True)
    found = trace.cause()
    met = trace.collectives()
    others = [rank for rank in trace.ranks if rank not in (0, 6)]
    waited = sum(one.waited[rank] for one in met for rank in others if one.last in (0, 6))
    length = sum(one.length for one in trace.breakdown().totals if one.rank in others)
    assert found.share == pytest.approx(waited / length, abs=1e-9)
    assert "of their steps for ranks 0, 6" in found.because


def test_what_computing_hides_is_no_waiting():
    trace = delayed(0, 8, (0, 6), turns=True)
    hidden = [
        Slice(one.rank, "stream 8", "norm", one.start, one.duration, Kind.COMPUTE, 8)
        for one in trace
        if one.kind == Kind.COMMUNICATION and one.rank not in (0, 6)
    ]
    both = Trace.from_slices([*trace, *hidden])
    assert sorted(both.collectives().late()) == [0, 6]
    assert both.cause().word != "straggler"


def test_who_hides_its_communication_is_not_late_for_that():
    """Rank 0 waits least outside of kernels, but computes meanwhile; all wait for rank 2."""
    for late, word in (((2,), "straggler"), ((), "exposed communication")):
        trace = delayed(0, 3, late, turns=False)
        hidden = [
            Slice(0, "stream 8", "norm", one.start, one.duration, Kind.COMPUTE, 8)
            for one in trace
            if one.kind == Kind.COMMUNICATION and one.rank == 0
        ]
        found, _, _ = said_of(Trace.from_slices([*trace, *hidden]))
        assert (found.word, found.ranks) in [(word, late), ("", ())]
        assert late == () or found.ranks == late


def test_a_warm_up_that_is_left_out_makes_nobody_late():
    rows = list(delayed(0, 3, (2,), turns=False))
    begin = max(one.start + one.duration for one in rows) + MS
    group = Collective("all_reduce", "all", (0, 1, 2), 8, 8, evidence="metadata")
    first = EPOCH - 9_000 * MS
    for rank in range(3):
        work = 8_000 * MS if rank == 0 else MS
        rows.append(Slice(rank, "stream 7", "warm-up", first, work, Kind.COMPUTE, 7))
        wait = 8_001 * MS - work
        what = ("all_reduce", first + work, wait, Kind.COMMUNICATION, 7)
        rows.append(Slice(rank, "stream 7", *what, collective=group, sequence=99))
        for number, (start, end) in enumerate(((first, EPOCH), (EPOCH, begin))):
            step = (f"ProfilerStep#{number}", start, end - start, Kind.STEP)
            rows.append(Slice(rank, "thread 1", *step))
    trace = Trace.from_slices(rows)
    assert trace.collectives().late() == (0,)
    assert trace.cause(skip=1).ranks == (2,)
