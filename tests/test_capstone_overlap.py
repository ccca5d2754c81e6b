"""What could be hidden, and the least time: of programs whose best order is known."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise, permutations
from typing import NamedTuple

import lockstep
import pytest
import torch
from lockstep import virtual
from lockstep.course.capstone.needs import Observed, by_launch
from lockstep.course.capstone.overlap import Overlap, overlap
from lockstep.trace import Collective, Kind, Slice, Trace
from lockstep.trace.slices import DEVICE_KINDS


class Op(NamedTuple):
    """An operation of all ranks. takes: a time for all, or one a rank. needs: places of others."""

    takes: int | tuple[int, ...]
    needs: tuple[int, ...] = ()
    sends: bool = False

    def on(self, rank):
        return self.takes if isinstance(self.takes, int) else self.takes[rank]


def played(program, ranks, order=None, apart=True):
    """A program's trace where each rank does one computation and one communication at a time, in
    this order. apart: communications have a stream of their own."""
    group = Collective("all_reduce", "0", tuple(range(ranks)), evidence="metadata")
    free: dict[tuple[int, int], int] = defaultdict(int)  # when a rank's stream is
    end: dict[tuple[int, int], int] = {}
    slices = []
    for at in order or range(len(program)):
        op = program[at]
        stream = 20 if op.sends and apart else 7
        starts = [
            max([free[rank, stream], *(end[rank, one] for one in op.needs)])
            for rank in range(ranks)
        ]
        for rank, start in enumerate(starts):
            done = (max(starts) if op.sends else start) + op.on(rank)
            free[rank, stream] = end[rank, at] = done
            kind, known = (Kind.COMMUNICATION, group) if op.sends else (Kind.COMPUTE, None)
            slices.append(
                Slice(rank, f"stream {stream}", f"op {at}", start, done - start, kind, stream, at,
                      collective=known)
            )  # fmt: skip
    return Trace.from_slices(slices)


def asked(program, ranks, **how):
    needs = {at: op.needs for at, op in enumerate(program)}
    return overlap(played(program, ranks, **how), dict.fromkeys(range(ranks), needs))


def sends(takes, *needs):
    return Op(takes, needs, sends=True)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_of_programs_whose_best_order_is_known(ranks):
    def found(*program, **how):
        one = asked(program, ranks, **how)
        assert one.hideable % ranks == one.hidden % ranks == 0
        return one.hidden // ranks, one.hideable // ranks, one.least

    # The second computation needs what the communication brings.
    assert found(Op(50), sends(30, 0), Op(40, (1,))) == (0, 0, 120)
    # It does not: it hides all, if it is started meanwhile; longer ones are hidden in part.
    apart = Op(50), sends(30, 0), Op(40, (0,))
    assert found(*apart) == (30, 30, 90)
    assert found(*apart, apart=False) == (0, 30, 90)
    assert found(Op(50), sends(70, 0), Op(40, (0,))) == (40, 40, 120)
    # One computation cannot hide two communications.
    assert found(Op(10), sends(30, 0), sends(30, 0), Op(40)) == (40, 40, 70)
    assert found(Op(10), sends(30, 0), Op(40), sends(30, 1)) == (40, 40, 70)
    # What it needs through others, and what needs it, hides nothing.
    assert found(Op(50), sends(30, 0), Op(9, (1,)), sends(20, 2), Op(5, (3,))) == (0, 0, 114)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_that_compute_for_longer_hold_the_others_up(ranks):
    slow = Op((90, *[10] * (ranks - 1)))
    found = asked([slow, sends(30, 0), Op(20, (1,))], ranks)
    assert found == Overlap(0, 0, 140)  # a transfer begins when the last rank has come
    found = asked([slow, sends(30, 0), Op(20, (0,))], ranks)
    # The others compute while they wait: that hides nothing of the transfer, and could.
    assert found == Overlap(20, 20 * ranks, 120)


def test_what_is_needed_through_another_rank_hides_nothing():
    """Rank 0's last operation needs a broadcast of what rank 1 computes of the first one."""
    every = (0, 1)
    needs = {0: {3: [2]}, 1: {1: [0], 2: [1]}}
    slices = []
    for rank in every:
        for at, start, end in ((0, 0, 30), (2, 40, 60)):
            known = Collective("all_reduce", "0", every, evidence="metadata")
            slices.append(
                Slice(rank, "stream 20", "nccl", start, end - start, Kind.COMMUNICATION, 20, at,
                      collective=known)
            )  # fmt: skip
    slices += [
        Slice(1, "stream 7", "between", 30, 10, Kind.COMPUTE, 7, 1),
        Slice(0, "stream 7", "last", 60, 25, Kind.COMPUTE, 7, 3),
    ]
    assert overlap(Trace.from_slices(slices), needs) == Overlap(0, 0, 85)
    needs[1][2] = []
    assert overlap(Trace.from_slices(slices), needs).hideable == 25 + 10


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_no_order_is_better_and_small_programs_reach_it(ranks):
    draw, reached = random.Random(ranks), 0
    for _ in range(25):
        program = []
        for at in range(6):
            needs = tuple(one for one in range(at) if draw.random() < 0.3)
            takes = draw.randrange(1, 9)
            program.append(Op(takes, needs, sends=draw.random() < 0.4))
        ends, first = [], asked(program, ranks)
        for order in permutations(range(6)):
            place = {at: when for when, at in enumerate(order)}
            if all(place[one] < place[at] for at in order for one in program[at].needs):
                if draw.random() < 0.02:
                    found = asked(program, ranks, order=order)
                    assert (found.hideable, found.least) == (first.hideable, first.least)
                    assert found.hidden <= found.hideable
                ends.append(played(program, 1, order=order).span[1])
        assert min(ends) >= first.least
        reached += min(ends) == first.least
    assert reached >= 20


# ── On the virtual device ────────────────────────────────────────────────────────────────────


def meanwhile(how):
    """A product, an all-reduce of it, and two more products: of the result, or of something else.

    The all-reduce finds its SMs when the first of these ends.
    """
    import torch
    import torch.distributed as dist

    with virtual.device(values=False):
        x = torch.ones(2048, 2048).cuda()
        y = None if how == "needs" else torch.ones(4096, 4096).cuda()
        first = x @ x
        work = dist.all_reduce(first, async_op=True)
        if how != "apart":
            work.wait()
        other = first if y is None else y
        for _ in range(2):
            other = other @ other
        work.wait()
        _ = first + other.sum()
        return virtual.trace(), virtual.needs()


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_virtual_device_knows_what_needs_what(ranks):
    def found(how):
        alone = {"nproc_per_node": ranks, "backend": "gloo", "show": False}
        results = lockstep.torchrun(meanwhile, how, **alone).results
        trace = virtual.joined(one for one, _ in results)
        needs = {rank: one for rank, (_, one) in enumerate(results)}
        one, work = overlap(trace, needs), trace.duration[trace.where(*DEVICE_KINDS, rank=0)]
        sent = int(trace.duration[trace.where(Kind.COMMUNICATION)].sum())
        return one.hidden / sent, one.hideable / sent, one.least, int(work.sum())

    hidden, hideable, least, _ = found("apart")
    assert 0.9 < hidden <= hideable == 1
    none, as_much, same, _ = found("waits")
    assert (none, as_much) == (0, 1) and same == pytest.approx(least, rel=0.1)
    none, nothing, least, whole = found("needs")
    assert none == nothing == 0 and least == whole


# ── On real GPUs ─────────────────────────────────────────────────────────────────────────────


def test_an_operation_needs_what_wrote_last_to_its_memory():
    x, y = torch.ones(4, 4), torch.ones(4, 4)
    with Observed() as seen:
        first = x @ x  # 0
        other = y @ y  # 1
        first.add_(1)  # 2: in place
        row = first[0]  # 3: a view, which reads nothing
        row.mul_(2)  # 4: a part of it, so that what 2 wrote is still there
        added = first + other  # 5
        empty = torch.empty_like(added)  # 6: reads nothing
        empty.copy_(added)  # 7
        first.zero_()  # 8: all of it
        _ = first + y  # 9
    assert seen.needs == [
        set(), set(), {0}, set(), {2}, {1, 2, 4}, set(), {5}, {2, 4}, {8},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def on_h200s():
    """Two steps of the mended program on two H200s, as they were recorded."""
    recording = lockstep.recorded("traces/capstone-h200-x2")
    trace = Trace.load(recording.path, stamp=recording.stamp)
    numbered = json.loads(lockstep.recorded("capstone/needs-h200-x2.json").path.read_bytes())
    needs = {
        rank: by_launch(trace.select(trace.where(rank=rank)), numbered[str(rank)])
        for rank in trace.ranks
    }
    return trace, needs


def test_what_real_gpus_could_hide_lies_between_what_chains_and_free_ones_could(on_h200s):
    trace, needs = on_h200s
    chained = {}
    nothing: dict[int, dict[int, set[int]]] = {rank: {} for rank in trace.ranks}
    for rank in trace.ranks:
        mine = trace.where(*DEVICE_KINDS, rank=rank)
        launches = dict.fromkeys(trace.correlation[mine[trace.end[mine].argsort()]].tolist())
        chained[rank] = {one: [before] for before, one in pairwise(launches)}
    chain, found, free = (overlap(trace, one) for one in (chained, needs, nothing))
    # Products last so long that they could hide all that is sent: in such a step all is computing.
    assert chain.hideable == 0 <= found.hidden < found.hideable == free.hideable
    assert chain.hidden == found.hidden == free.hidden  # it is what was, whoever needs whom
    assert free.least == found.least < chain.least
    # With quicker kernels it matters who needs whom.
    device = [replace(one, duration=one.duration // (1 + 39 * (one.kind == Kind.COMPUTE)))
              for one in trace.select(trace.where(*DEVICE_KINDS))]  # fmt: skip
    found, free = (overlap(Trace.from_slices(device), one) for one in (needs, nothing))
    assert 0 < found.hideable < 0.9 * free.hideable
    assert free.least < 0.9 * found.least


def test_recorded_cards_hide_something_where_the_program_sends_meanwhile():
    content = lockstep.recorded("capstone/h200-x2.json").content
    for turn in content["turns"]:
        slow, mended = turn["slow"], turn["mended"]
        assert slow["achieved"] == 0 < mended["achieved"] <= 1
        for one in (slow, mended):
            assert one["right"] and max(one["least"], one["bound"]) < one["step"]
