"""Ranks that use several groups in different orders: found soon, and the groups have names.

Under gloo calls block, so real ranks show it. On GPUs all calls are queued and return: there the
records decide, which are made here as ranks make them; `make test-gpu` has the ranks.
"""

from functools import partial
from typing import Any

import pytest
from between_groups import PROGRAMS
from lockstep import torchrun
from lockstep.calls.diagnose import Seen, between_groups, deadlock
from lockstep.calls.record import HEADER, Group, Reader
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


def seen(orders: dict[int, str], **calls) -> dict[int, Seen]:
    """Ranks whose calls were queued: each letter is a group and its call; small: asynchronous.

    A "|" begins another stream, a "!" a graph that is captured.
    """
    members = {
        letter: tuple(rank for rank, order in orders.items() if letter in order.upper())
        for letter in "".join(orders.values()).upper()
    }
    found = {}
    for rank, order in orders.items():
        memory = bytearray(HEADER.size + (1 << 16))
        recorder = Recorder(memory)
        stream: Any = 7
        for letter in order:
            if letter in "|!":
                stream = None if letter == "!" else stream + 1
                continue
            name = letter.upper()
            number, _ = recorder.group(name, partial(Group, name, members[name], f"of_{name}"))
            queued: dict[str, Any] = {"asynchronous": letter.islower(), "stream": stream}
            recorder.end(recorder.begin("all_reduce", number, ((2,),), "float32", 8, **queued))
        found[rank] = Seen(Reader(memory, rank), False)
    return found


CIRCLES = {
    "two groups": {0: "AB", 1: "BA"},
    "the third call of a group": {0: "AABA", 1: "AAAB"},
    "three groups around": {0: "AB", 1: "BC", 2: "CA"},
    "one of the calls is asynchronous": {0: "Ab", 1: "Ba"},
    "another group between": {0: "ACB", 1: "BCA"},
    "four ranks in a grid": {0: "AC", 1: "DA", 2: "CB", 3: "BD"},
    "by the order of one group, on two streams": {0: "Ab|B", 1: "bBA"},
    "long after": {0: "AB" * 500 + "AB", 1: "AB" * 500 + "BA"},
}


@pytest.mark.parametrize("orders", CIRCLES.values(), ids=CIRCLES)
def test_queued_calls_that_wait_for_each_other_are_found(orders):
    verdict = between_groups(seen(orders))
    assert verdict is not None
    print(verdict.sentence)
    assert verdict.sentence.startswith("The order between groups differs: rank")
    assert verdict.sentence.count("on group of_") >= 4


def test_the_sentence_says_who_called_what_in_which_order():
    verdict = between_groups(seen({0: "AB", 1: "BA", 2: "BA"}))
    assert verdict.ranks == (0, 1, 2)
    a, b = (f"all_reduce #0 of float32[2] on group of_{n} (ranks 0–2)" for n in "AB")
    assert f"rank 0 called {a}, then {b}; ranks 1, 2 called {b}, then {a}." in verdict.sentence


HARMLESS = {
    "the same order": {0: "ABAB", 1: "ABAB"},
    "asynchronous calls": {0: "ab", 1: "ba"},
    "one is asynchronous and comes first": {0: "aB", 1: "BA"},
    "two streams": {0: "A|B", 1: "B|A"},
    "a graph that was captured": {0: "!AB", 1: "!BA"},
    "members differ": {0: "AC", 1: "AB", 2: "BC"},
    "nothing was called": {0: "", 1: ""},
}


def test_asynchronous_calls_in_different_orders_are_a_suspicion():
    ranks = seen({0: "ab", 1: "ba"})
    verdict = between_groups(ranks, suspected=True)
    assert verdict is not None and "The order between groups differs" in verdict.sentence
    assert between_groups(seen({0: "ab", 1: "ab"}), suspected=True) is None


@pytest.mark.parametrize("orders", HARMLESS.values(), ids=HARMLESS)
def test_calls_that_may_yet_end_are_left_alone(orders):
    assert between_groups(seen(orders)) is None


# ── Messages, and calls that are waited for later ────────────────────────────────────────────


def queued(*programs: str) -> dict[int, Seen]:
    """Ranks whose calls were queued, a word each: "A" a call of group A; "a" the same, only begun,
    and "wA" the wait for the last one of it; "sA1" a send to rank 1, "rA1" a recv, both only begun,
    and "wrA1" the wait, "rA1.5" with tag 5; "*A0" a broadcast by
    rank 0 and "+A0" a reduce to it; "|" another stream from here on.
    """
    found = {}
    for rank, program in enumerate(programs):
        recorder = Recorder(bytearray(HEADER.size + (1 << 16)))
        recorder.on_gpu()
        places, stream = dict[str, Any](), 7
        for word in program.split():
            if word == "|":
                stream += 1
            elif word.startswith("w"):
                recorder.stream_waits(places[word[1:]], stream)
            else:
                rooted = len(word) > 1
                name = word[1] if rooted else word.upper()
                world = tuple(range(len(programs)))
                number, _ = recorder.group(name, partial(Group, name, world, f"of_{name}"))
                operations = {"s": "send", "r": "recv", "*": "broadcast", "+": "reduce"}
                operation = operations[word[0]] if rooted else "all_reduce"
                peer = int(word[2]) if rooted else None
                begun: dict[str, Any] = {"asynchronous": word.islower(), "stream": stream}
                tag = int(word.partition(".")[2] or 0)
                what = (operation, number, ((2,),), "float32", 8, peer, tag)
                place = recorder.begin(*what, **begun)
                recorder.end(place)
                places[word if rooted else name] = place
        found[rank] = Seen(Reader(recorder._memory, rank), False)
    return found


WAITING = {
    "waited for in another order": ("a wA b wB", "b wB a wA"),
    "begun alike, waited for before the next": ("a b wA wB C", "C a b wA wB"),
    "on the stream that waits": ("a wA B", "B a wA"),
    "messages crosswise": ("rA1 wrA1 sB1", "rB0 wrB0 sA0"),
    "messages of one group": ("rA1 wrA1 sA1", "rA0 wrA0 sA0"),
    "a message and a call": ("B sA1", "rA0 wrA0 B"),
    "three in a ring": ("rA2 wrA2 sB1", "rB0 wrB0 sC2", "rC1 wrC1 sA0"),
    "a broadcast that waits for its root": ("B *A0", "*A0 B"),
    "a reduce that waits for the others": ("+A0 B", "B +A0"),
    "broadcasts of both": ("*A1 *B0", "*B0 *A1"),
}


@pytest.mark.parametrize("programs", WAITING.values(), ids=WAITING)
def test_queued_waits_and_messages_that_make_a_circle_are_found(programs):
    verdict = between_groups(queued(*programs))
    assert verdict is not None
    print(verdict.sentence)
    assert verdict.ranks == tuple(range(len(programs)))
    said = [f"rank {rank} called" for rank in verdict.ranks]
    assert all(words in verdict.sentence for words in said)


def test_a_circle_of_messages_is_told_by_what_each_rank_called():
    verdict = between_groups(queued(*WAITING["messages crosswise"]))
    shown = "of float32[2] on group of_{} (ranks 0, 1)"
    for rank, other, first, then in ((0, 1, "A", "B"), (1, 0, "B", "A")):
        recv, send = (
            f"{way} rank {other} {shown.format(name)}"
            for way, name in (("recv #0 from", first), ("send #0 to", then))
        )
        assert f"rank {rank} called {recv}, then {send}" in verdict.sentence
    assert "in the same order, over all these groups together" in verdict.sentence
    alone = between_groups(queued(*WAITING["messages of one group"])).sentence
    assert alone.startswith("The ranks wait for each other's messages: rank 0 called recv")
    assert "let one side of each pair send first" in alone


MAY_END = {
    "begun in another order and waited for afterwards": ("a b wA wB", "b a wB wA"),
    "on another stream than the one that waits": ("a | wA B", "B | a wA"),
    "small messages of which both are sent first": ("sA1 wsA1 rA1 wrA1", "sA0 wsA0 rA0 wrA0"),
    "receives that are begun before": ("rA1 sA1 wrA1", "rA0 sA0 wrA0"),
    "a message that comes": ("sA1 wsA1 B", "rA0 wrA0 B"),
    "calls that were never waited for": ("a b", "b a"),
    "broadcasts by one": ("*A0 *B0", "*B0 *A0"),
    "a broadcast that its root need not wait for": ("*A0 B", "B *A0"),
    "a reduce that the others need not wait for": ("B +A0", "+A0 B"),
}


@pytest.mark.parametrize("programs", MAY_END.values(), ids=MAY_END)
def test_waits_and_messages_that_may_yet_end_are_left_alone(programs):
    assert between_groups(queued(*programs)) is None


def test_messages_with_several_tags_are_left_alone():
    """NCCL heeds no tag, so the record does not say which of them meet."""
    programs = "rA1{} rA1.1 wrA1.1 sB1", "rB0 wrB0 sA0.1 sA0{}"
    assert between_groups(queued(*(program.format(".1") for program in programs))) is not None
    assert between_groups(queued(*(program.format(".2") for program in programs))) is None


HELD = {
    "each waits for the other": (("a wA", "b wB"), "waits in all_reduce #0"),
    "by calls that were not asynchronous": (("A", "B"), "waits in all_reduce #0"),
    "messages that nobody sends": (("rA1 wrA1", "rA0 wrA0"), "in recv"),
    "one in a message": (("rA1 wrA1", "B"), "recv #0 from rank 1"),
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


GOING_ON = {
    "nobody waits": ("a", "b"),
    "one waits for none": ("A", ""),
    "one begins what it does not wait for": ("A", "b"),
    "all have come": ("A B", "A B"),
    "small messages may be over": ("sA1 wsA1", "sA0 wsA0"),
    "a root need not wait": ("*A0", "*B1"),
}


@pytest.mark.parametrize("programs", GOING_ON.values(), ids=GOING_ON)
def test_ranks_of_which_one_may_go_on_are_left_alone(programs):
    assert deadlock(queued(*programs), on_gpus=True) is None


def test_mutual_sends_are_a_suspicion_for_small_ones_find_room_on_the_way():
    crosswise = queued("sA1 wsA1 rA1 wrA1", "sA0 wsA0 rA0 wrA0")
    assert between_groups(crosswise) is None
    verdict = between_groups(crosswise, suspected=True)
    assert verdict is not None and verdict.ranks == (0, 1)
    assert "The ranks wait for each other's messages: rank 0 called send #0" in verdict.sentence
    assert "let one side of each pair receive first" in verdict.sentence
    by_turns = queued("sA1 wsA1 rA1 wrA1", "rA0 wrA0 sA0 wsA0")
    around = queued("sA1 wsA1 rA2 wrA2", "sA2 wsA2 rA0 wrA0", "sA0 wsA0 rA1 wrA1")
    assert between_groups(by_turns, suspected=True) is None
    assert (verdict := between_groups(around, suspected=True)) and verdict.ranks == (0, 1, 2)
