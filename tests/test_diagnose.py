"""Ranks that use several groups in different orders: found soon, and the groups have names.

Under gloo calls block, so real ranks show it. On GPUs all calls are queued and return: there the
records decide, which are made here as ranks make them; `make test-gpu` has the ranks.
"""

from functools import partial

import pytest
from between_groups import PROGRAMS
from lockstep import torchrun
from lockstep.calls.diagnose import Seen, between_groups, deadlock, mismatch, parted_replays
from lockstep.calls.record import HEADER, HELP, SYNCHRONIZE, Group, Reader, replay
from lockstep.launch import stall_detector
from lockstep.launch.stall_detector import StallDetector
from lockstep.launch.worker.recorder import Recorder


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_that_block_in_another_order_are_found_within_seconds(name):
    program = PROGRAMS[name]
    job = torchrun(
        program.ranks, nproc_per_node=program.nproc, backend="gloo", show=False, may_fail=True,
        timeout=30,
    )  # fmt: skip
    headline = job.report.split("\n\n")[0]
    print(headline)
    assert "time limit" not in job.report and job.state == "failed"
    assert "in the same order, over all these groups together" in headline
    for group in program.groups:
        assert f"on group {group} (" in headline
    ends = max(call.start for calls in job.calls for call in calls)
    assert max(end.at for end in job.ends) - ends < 10


def queued(*programs: str, stand: bool = True) -> dict[int, Seen]:
    """Ranks whose calls were queued and are not done, a word each: "A" a call of group A; "sA1" a
    send to rank 1, "rA1" a recv; "(sA1 rA1)" a batch. A "." after it: it is done.

    stand: their main threads wait for their GPUs.
    """
    found, world = {}, tuple(range(len(programs)))
    for rank, program in enumerate(programs):
        recorder = Recorder(bytearray(HEADER.size + (1 << 16)))
        recorder.on_gpu()
        batched = False
        for word in program.split():
            batched = batched or word.startswith("(")
            call = word.strip("().")
            way, name, peer = list(call if len(call) == 3 else f" {call} ")
            operation = {"s": "send", "r": "recv"}.get(way, "all_reduce")
            number, _ = recorder.group(name, partial(Group, name, world, f"of_{name}"))
            kind = recorder.kind(
                operation, number, ((2,),), "float32", 8, None if peer == " " else int(peer),
                batched=batched, queued=True,
            )  # fmt: skip
            place = recorder.queued(kind, at=float(len(program)))
            if word.endswith("."):
                recorder.end_queued(place)
            batched = batched and not word.endswith(")")
        recorder.stand(stand, 0)
        found[rank] = Seen(Reader(recorder._memory, rank), False)
    return found


CIRCLES = {
    "two groups": ("A B", "B A"),
    "the third call of a group": ("A. A. B A", "A. A. A B"),
    "three groups around": ("A B", "B C", "C A"),
    "another group between": ("A C B", "B C A"),
    "four ranks in a grid": ("A C", "D A", "C B", "B D"),
    "long after": ("A. B. " * 500 + "A B", "A. B. " * 500 + "B A"),
    "messages crosswise": ("rA1 sB1", "rB0 sA0"),
    "messages of one group": ("rA1 sA1", "rA0 sA0"),
    "mutual sends that find no room": ("sA1 rA1", "sA0 rA0"),
    "a message and a call": ("B sA1", "rA0 B"),
    "three in a ring": ("rA2 sB1", "rB0 sC2", "rC1 sA0"),
}


@pytest.mark.parametrize("programs", CIRCLES.values(), ids=CIRCLES)
def test_queued_calls_that_wait_for_each_other_are_found(programs):
    verdict = between_groups(queued(*programs))
    assert verdict is not None
    print(verdict.sentence)
    assert verdict.ranks == tuple(range(len(programs)))
    assert all(f"rank {rank} called" in verdict.sentence for rank in verdict.ranks)


def test_the_sentence_says_who_called_what_in_which_order():
    verdict = between_groups(queued("A B", "B A", "B A"))
    assert verdict.ranks == (0, 1, 2)
    a, b = (f"all_reduce #0 of float32[2] on group of_{n} (ranks 0–2)" for n in "AB")
    assert verdict.sentence.startswith("The order between groups differs: rank")
    assert f"rank 0 called {a}, then {b}; ranks 1, 2 called {b}, then {a}." in verdict.sentence


def test_a_circle_of_messages_is_told_by_what_each_rank_called():
    verdict = between_groups(queued(*CIRCLES["messages crosswise"]))
    shown = "of float32[2] on group of_{} (ranks 0, 1)"
    for rank, other, first, then in ((0, 1, "A", "B"), (1, 0, "B", "A")):
        recv, send = (
            f"{way} rank {other} {shown.format(name)}"
            for way, name in (("recv #0 from", first), ("send #0 to", then))
        )
        assert f"rank {rank} called {recv}, then {send}" in verdict.sentence
    assert "in the same order, over all these groups together" in verdict.sentence
    alone = between_groups(queued(*CIRCLES["messages of one group"])).sentence
    assert alone.startswith("The ranks wait for each other's messages: rank 0 called recv")
    assert "let one side of each pair receive first" in alone


HARMLESS = {
    "the same order": ("A B A B", "A B A B"),
    "in another order, and one is done": ("A. B", "B A."),
    "members differ": ("A C", "A B", "B C"),
    "a batch": ("(sA1 rA1)", "(sA0 rA0)"),
    "by turns": ("sA1 rA1", "rA0 sA0"),
    "nothing was called": ("", ""),
}


@pytest.mark.parametrize("programs", HARMLESS.values(), ids=HARMLESS)
def test_calls_that_may_yet_end_are_left_alone(programs):
    assert between_groups(queued(*programs)) is None


HELD = {
    "each waits for the other": (("A", "B"), "waits in all_reduce #0"),
    "after some that are done": (("A. A", "A. B"), "waits in all_reduce #1"),
    "messages that nobody sends": (("rA1", "rA0"), "in recv"),
    "one in a message": (("rA1", "B"), "recv #0 from rank 1"),
    "a batch": (("(sA1 rA1)", "B"), "waits in send #0"),
}


@pytest.mark.parametrize(("programs", "said"), HELD.values(), ids=HELD)
def test_ranks_that_wait_for_their_gpus_in_no_call_are_judged_by_what_these_wait_for(
    programs, said
):
    """Such as in x.item(), which no record has."""
    ranks = queued(*programs)
    assert between_groups(ranks) is None and deadlock(ranks) is None
    verdict = deadlock(ranks, on_gpus=True)
    assert verdict is not None and said in verdict.sentence
    assert deadlock(queued(*programs, stand=False), on_gpus=True) is None


GOING_ON = {
    "one waits for none": ("A", ""),
    "all have come": ("A B", "A B"),
    "what it waited for is done": ("A.", "B"),
}


@pytest.mark.parametrize("programs", GOING_ON.values(), ids=GOING_ON)
def test_ranks_of_which_one_may_go_on_are_left_alone(programs):
    assert deadlock(queued(*programs), on_gpus=True) is None


def replayed(*programs: str) -> dict[int, Seen]:
    """Ranks that have replayed graphs, a word each: "1x3" graph 1, which has 3 collectives; and
    have called a collective: "a". "end" at the end: their jobs are done, but for their GPUs."""
    found = {}
    for rank, program in enumerate(programs):
        recorder = Recorder(bytearray(HEADER.size + (1 << 16)))
        recorder.on_gpu()
        number, _ = recorder.group("0", lambda: Group("default 0", tuple(range(len(programs)))))
        for word in program.split():
            if word == "end":
                setup, _ = recorder.group("setup", lambda: Group("setup", ()))
                recorder.enter(recorder.begin(SYNCHRONIZE, setup))
                continue
            graph, _, held = word.partition("x")
            operation = replay(int(graph), int(held)) if held else "all_reduce"
            kind = recorder.kind(operation, number, queued=True)
            recorder.end_queued(recorder.queued(kind, at=0.0))
        recorder.stand(True, 0)
        found[rank] = Seen(Reader(recorder._memory, rank), False)
    return found


def test_ranks_whose_graphs_hold_other_numbers_of_collectives_have_parted():
    parted = parted_replays(replayed("a 0x2 0x2", "a 0x3 0x3", "a 0x2 0x2"))
    assert parted.ranks == (0, 2)
    assert "rank 1 got 7" in parted.sentence and "ranks 0, 2 got 5" in parted.sentence
    assert "As replay #0 on the default group" in parted.sentence
    assert "rank 1 made a replay of graph 0 (3 collectives)" in parted.sentence


def test_ranks_that_part_in_three_ways_are_held_by_the_one_with_the_fewest():
    assert parted_replays(replayed("a 0x2", "a 0x3", "a 0x4", "a 0x5")).ranks == (0,)


def test_a_rank_that_replays_another_graph_has_parted_from_there():
    parted = parted_replays(replayed("0x1 0x1 1x1", "0x1 1x1 1x1"))
    assert parted.ranks == () and "As replay #1" in parted.sentence


@pytest.mark.parametrize(
    "programs",
    [
        ("0x2 0x2 a", "0x2 0x2 a"),
        ("0x3 a", "0x3 a", "0x3 a"),
        ("a a", "a"),  # no replays: others judge that
    ],
)
def test_ranks_that_replay_the_same_have_not_parted(programs):
    assert parted_replays(replayed(*programs)) is None


def test_a_rank_that_runs_a_graphs_collectives_eagerly_is_no_contradiction():
    ranks = replayed("0x2 a a", "a a a a", "0x2 0x2")
    assert mismatch(ranks) is None
    assert "As replay #0" in parted_replays(ranks).sentence  # but worth telling


@pytest.mark.parametrize("programs, told", [
    (("0x2 end", "0x2 0x2"), True),
    (("0x2", "0x2 0x2"), False),  # it may only be late
])  # fmt: skip
def test_ranks_that_part_are_ended_where_who_is_behind_calls_no_more(programs, told, monkeypatch):
    monkeypatch.setattr(stall_detector, "_STILL_FOR_GPU", 0.0)
    monkeypatch.setattr(stall_detector, "_STILL", 0.0)
    monkeypatch.setattr(stall_detector, "_EVERY", 0.0)
    detector, ranks = StallDetector(lambda: (), lambda: False), replayed(*programs)
    said = [detector.check(ranks) for _ in range(3)][-1]
    assert (said is not None) is told
    assert (said or detector.suspicion).ranks == (0,)


def test_a_rank_that_goes_on_while_records_are_read_is_not_judged(monkeypatch):
    """What it does then may well be what a thread of another rank waits for."""
    for patience in ("_STILL", "_EVERY"):
        monkeypatch.setattr(stall_detector, patience, 0.0)
    memories = [bytearray(HEADER.size + (1 << 16)) for _ in range(2)]
    recorders = [Recorder(memory) for memory in memories]
    ranks = {rank: Seen(Reader(memory, rank), False) for rank, memory in enumerate(memories)}

    def receive(rank: int) -> None:
        number, _ = recorders[rank].group("", partial(Group, "default 0", (0, 1)))
        recorders[rank].enter(recorders[rank].begin("recv", number, peer=1 - rank))

    def goes_on(seen: dict[int, Seen]) -> None:
        if seen[1].blocked() is None:
            header[HELP] = 1
            receive(1)

    receive(0)
    header = memoryview(memories[0])[: HEADER.size].cast("Q")
    header[HELP] = 0  # whatever threads the tests have
    monkeypatch.setattr("lockstep.calls.diagnose.mismatch", goes_on)
    detector = StallDetector(lambda: (), lambda: False)
    assert [detector.check(ranks) for _ in range(6)] == [None] * 6
    assert detector.suspicion is not None
