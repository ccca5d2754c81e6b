"""Tells why ranks do not go on: read off their call records, without asking them anything.

A rank can still move if it is running, or if it waits in a call whose partners have entered it
or can still move. Ranks that cannot move, cannot ever: that is a deadlock, and it is certain the
moment it exists. Calls of one group that do not match are a mistake whether they hang or not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import TypeAlias

from ..base.formatting import ranks_text
from .record import (
    ANY_SOURCE,
    NOBODY,
    POINT_TO_POINT,
    SAME_SIZE,
    SYNCHRONIZE,
    Call,
    CallLine,
    Group,
    Reader,
    is_new_group,
    replayed,
)


@dataclass(frozen=True)
class Verdict:
    """Says what is wrong, in one sentence or two, and which ranks are in it."""

    sentence: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Seen:
    """A rank as it is known at one moment."""

    reader: Reader
    finished: bool

    @property
    def may_be_helped(self) -> bool:
        """Return whether what the rank waits for may come from something that is no rank."""
        return not self.finished and self.reader.may_be_helped

    def blocked(self) -> Call | None:
        return None if self.finished else self.reader.blocked_in()


def mismatch(ranks: Mapping[int, Seen]) -> Verdict | None:
    """The first place where the ranks' calls on one group contradict each other."""
    calls: dict[tuple[object, int], dict[int, Call]] = {}
    sends: dict[tuple[int, int | None, object, int, int], Call] = {}
    for rank, seen in ranks.items():
        for call in seen.reader.log().values():
            if call.group.is_internal:
                if is_new_group(call.operation) and not _is_unknown(call):
                    calls.setdefault((call.group, call.number), {})[rank] = call
            elif verdict := _nobody_there(call):
                return verdict
            elif call.operation == "send":
                sends[(rank, call.peer, call.group, call.tag, call.number)] = call
            elif call.operation not in POINT_TO_POINT and not replayed(call.operation):
                calls.setdefault((call.group, call.number), {})[rank] = call
    for at in sorted(calls, key=lambda at: min(c.start for c in calls[at].values())):
        verdict = contradiction(calls[at])
        if verdict:
            return verdict
    for rank, seen in ranks.items():
        for call in seen.reader.calls():
            if call.operation != "recv" or call.peer in (None, ANY_SOURCE):
                continue
            sent = sends.get((call.peer, rank, call.group, call.tag, call.number))
            if sent and (sent.bytes, sent.dtype) != (call.bytes, call.dtype):
                return Verdict(
                    f"Rank {call.peer} sends {_tensors(sent)} to rank {rank}, which receives into "
                    f"{_tensors(call)} (send #{sent.number} of this pair on {call.group}). Both "
                    "sides of a message must agree on its size and dtype.",
                    (sent.rank, rank),
                )
    return None


def too_large_a_world(ranks: Mapping[int, Seen]) -> Verdict | None:
    """Ranks make a group in which there is room for more than this job has."""
    for rank, seen in ranks.items():
        for call in seen.reader.setup():
            asked = re.fullmatch(r"init_process_group\(world_size=(\d+)\)", call.operation)
            if call.end is None and asked and int(asked[1]) > len(ranks):
                return Verdict(
                    f"init_process_group was called with a world size of {asked[1]}, but this "
                    f"job has {len(ranks)} ranks: the call waits for ranks that never come.",
                    (rank,),
                )
    return None


def _is_unknown(call: Call) -> bool:
    """Return whether new_group had its ranks in a form that the record could not look at."""
    return "…" in call.operation


def _nobody_there(call: Call) -> Verdict | None:
    """PyTorch crashes or waits for ever where a message is for a rank that the group has not."""
    peer, ranks = call.peer, call.group.ranks
    if call.operation not in POINT_TO_POINT or call.end is not None:
        return None
    if peer in (None, ANY_SOURCE) or peer in ranks:
        return None
    return Verdict(
        f"Rank {call.rank} is in {call}, which has {ranks_text(ranks)} only. Ranks are "
        "numbered from 0 to the world size - 1; to close a ring, take the rank modulo the "
        "world size.",
        (call.rank,),
    )


def contradiction(calls: Mapping[int, Call]) -> Verdict | None:
    first = next(iter(calls.values()))

    def disagree(what: Mapping[int, object]) -> bool:
        return len(set(what.values())) > 1

    if first.group.is_internal:  # new_group
        if not disagree({r: c.operation for r, c in calls.items()}):
            return None
        said = _by_value({r: f"called {c.operation}" for r, c in calls.items()})
        return Verdict(
            f"The ranks have created different groups: as call #{first.number} of new_group, "
            f"{said}. PyTorch names a group by how many its rank has created before, so these "
            "ranks look for each other under different names, now or in a later call. Every "
            "rank must call new_group, in the same order, for the groups of the others too.",
            tuple(sorted(calls)),
        )
    where = f"#{first.number} on {first.group}"
    ranks = tuple(sorted(calls))
    if disagree({r: c.operation for r, c in calls.items()}):
        said = _by_value({r: f"called {c.operation}" for r, c in calls.items()})
        return Verdict(
            f"The ranks are in different collectives: as call {where}, {said}. Every rank of a "
            "group must call the same collectives in the same order.",
            ranks,
        )
    if disagree({r: c.peer for r, c in calls.items()}):
        said = _by_value({r: f"named rank {c.peer}" for r, c in calls.items()})
        return Verdict(
            f"The ranks disagree about the root of {first.operation} {where}: {said}.", ranks
        )
    sizes = {r: (c.bytes, c.dtype) for r, c in calls.items()}
    if first.operation in SAME_SIZE and disagree(sizes):
        said = _by_value({r: f"passed {_tensors(c)}" for r, c in calls.items()})
        return Verdict(
            f"The ranks disagree about {first.operation} {where}: {said}. All of them must pass "
            "tensors of the same shape and dtype.",
            ranks,
        )
    return None


def _tensors(call: Call) -> str:
    return f"{call.dtype}{', '.join(str(list(shape)) for shape in call.shapes)}"


def _by_value(said: Mapping[int, str]) -> str:
    """ "rank 0 called all_reduce, ranks 1–3 called barrier"."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(said.items()):
        groups.setdefault(text, []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} {text}" for text, ranks in groups.items())


def deadlock(
    ranks: Mapping[int, Seen], *, on_gpus: bool = False, helped: Collection[int] = ()
) -> Verdict | None:
    """Ranks that wait for each other, or for one that has left, when none can move any more.

    helped: ranks that something besides the ranks may yet move. on_gpus: a rank waits, too, where
    its GPU waits for others and its main thread stands still: it may have come to a line that needs
    a result. That is likely only where nothing has moved for long.
    """
    reached = {rank: seen.reader.reached() for rank, seen in ranks.items()}
    blocked: dict[int, Call] = {}
    for rank, seen in ranks.items():
        call = seen.blocked()
        if waits_for_gpu(seen) and (on_gpus or call is not None):
            call = _awaited_by_gpu(seen, reached) or call
        if call is not None and rank not in helped:
            blocked[rank] = call
    unfinished = {rank for rank, seen in ranks.items() if not seen.finished}
    if not blocked:
        return None
    missing = {
        rank: _missing(call, reached, ranks.keys(), ranks[rank].reader.on_gpu)
        for rank, call in blocked.items()
    }
    missing |= {rank: [rank] for rank, call in blocked.items() if call.again}
    given_up = {rank: other for rank in blocked if (other := _forsaken(blocked[rank], ranks))}
    missing |= {rank: [other.rank] for rank, other in given_up.items()}
    movable = unfinished - blocked.keys()
    while True:
        freed = {
            rank
            for rank in blocked.keys() - movable - given_up.keys()
            if all(peer in movable for peer in missing[rank])
            or (_anybody(blocked[rank]) and movable)
        }
        if not freed:
            break
        movable |= freed
    stuck = blocked.keys() - movable
    if given_up and stuck:
        text = " ".join(_tell_of_forsaken(blocked[rank], call) for rank, call in given_up.items())
        return Verdict(text, tuple(sorted(stuck)))
    if not stuck or movable:
        return None
    return Verdict(_tell(blocked, missing, ranks), tuple(sorted(stuck)))


def waits_for_gpu(seen: Seen) -> bool:
    """Return whether a rank's main thread waits for its GPU, as far as that can be seen."""
    call = seen.blocked()
    if call is None:
        return seen.reader.stands and not seen.finished
    return call.queued or call.operation == SYNCHRONIZE


def calls_no_more(seen: Seen) -> bool:
    """Return whether a rank has finished, or only waits for its GPU to do so."""
    call = seen.blocked()
    return seen.finished or (call is not None and call.operation == SYNCHRONIZE)


def _awaited_by_gpu(seen: Seen, reached: Mapping[int, Mapping[CallLine, int]]) -> Call | None:
    """The first call that the rank's GPU has yet to do, and others have not made."""
    calls = (call for call in seen.reader.queued() if call.peer != ANY_SOURCE)
    return next((call for call in calls if _missing(call, reached, reached.keys(), True)), None)


def between_groups(ranks: Mapping[int, Seen]) -> Verdict | None:
    """Calls that wait for each other on GPUs, with all of them made and none of them done.

    A group does its calls one after the other, and so does a stream. Where each rank's GPU does
    what it has yet to do in the order in which it was queued, and that makes a circle over the
    ranks, none in it can ever end. No record tells which of them may overlap: the verdict is likely
    only where nothing has moved for long, and the ranks in it wait for their GPUs.
    """
    after: dict[_Queued, dict[_Queued, None]] = {}  # what waits for it
    waits_for: dict[_Queued, int] = {}
    orders: dict[int, dict[_Queued, Call]] = {}
    for rank, seen in ranks.items():
        queued = [call for call in seen.reader.queued() if not call.batched]
        own = orders[rank] = {_as_one(call): call for call in queued}
        for before, at in pairwise(own):
            after.setdefault(before, {})[at] = None
    for later in after.values():
        for at in later:
            waits_for[at] = waits_for.get(at, 0) + 1
    free = [at for at in after if at not in waits_for]
    while free:
        for at in after.pop(free.pop(), {}):
            waits_for[at] -= 1
            if not waits_for[at]:
                del waits_for[at]
                free.append(at)
    return _tell_of_circle(_circle(after, waits_for), orders)


# What a call is to all ranks that are in it: its group, for a message who sends and who receives,
# and its number.
_Queued: TypeAlias = tuple[Group, tuple[int, ...], int]


def _as_one(call: Call) -> _Queued:
    ways: tuple[int, ...] = ()
    if call.operation in POINT_TO_POINT:
        peer = NOBODY if call.peer is None else call.peer
        ways = (call.rank, peer) if call.operation == "send" else (peer, call.rank)
    return call.group, ways, call.number


def _circle(
    after: Mapping[_Queued, Collection[_Queued]], held: Collection[_Queued]
) -> list[_Queued]:
    """The shortest circle through one of the collectives that wait for themselves; [] if none."""
    for start in held:
        came: dict[_Queued, _Queued] = {}
        reached = [start]
        for at in reached:  # which grows: the nearest come first
            for following in after.get(at, ()):
                if following == start:
                    circle = [at]
                    while circle[-1] != start:
                        circle.append(came[circle[-1]])
                    return circle[::-1]
                if following not in came:
                    came[following] = at
                    reached.append(following)
    return []


def _tell_of_circle(
    circle: Sequence[_Queued], orders: Mapping[int, Mapping[_Queued, Call]]
) -> Verdict | None:
    places = {rank: {at: i for i, at in enumerate(order)} for rank, order in orders.items()}

    def have(first: _Queued, then: _Queued) -> list[int]:
        """The ranks that made these calls in this order."""
        return [
            rank
            for rank, place in places.items()
            if first in place and then in place and place[first] < place[then]
        ]

    has_messages = any(ways for _, ways, _ in circle)
    turns = [at for i, at in enumerate(circle) if has_messages or at[0] != circle[i - 1][0]]
    told: list[tuple[list[int], str]] = []
    for i, first in enumerate(turns):
        then = turns[(i + 1) % len(turns)]
        makers = have(first, then)
        if not makers:  # a record that lost its oldest calls
            return None
        calls = [orders[makers[0]][at] for at in (first, then)]
        told.append((makers, f"{ranks_text(makers)} called {calls[0]}, then {calls[1]}"))
    if not told:
        return None
    least = told.index(min(told))
    said = [text for _, text in told[least:] + told[:least]]
    if len({group for group, _, _ in circle}) > 1:
        what, mend = "The order between groups differs", _ONE_ORDER
    else:
        what, mend = "The ranks wait for each other's messages", _BY_TURNS
    return Verdict(
        f"{what}: {'; '.join(said)}. A GPU that executes its calls in order can finish none "
        f"of these. {mend}",
        tuple(sorted({rank for makers, _ in told for rank in makers})),
    )


_ONE_ORDER = (
    "Ranks that share several groups must call their collectives in the same order, over all "
    "these groups together."
)
_BY_TURNS = (
    "A send that does not fit into a buffer ends only when its recv has begun: let one side "
    "of each pair receive first, or use batch_isend_irecv."
)


def held_by_a_graph(ranks: Mapping[int, Seen]) -> Verdict | None:
    """A group on GPUs that does not end because of a captured graph, if it takes long."""
    held = tuple(
        rank
        for rank, seen in ranks.items()
        if seen.reader.holds_a_graph and (call := seen.blocked()) and call.group.name == "setup"
    )
    if not held:
        return None
    return Verdict(
        f"destroy_process_group() does not return on {ranks_text(held)}: a captured CUDA "
        "graph that holds NCCL work is still alive. Delete the graph first (del graph; "
        "torch.cuda.synchronize()), then destroy the group.",
        held,
    )


def parted_replays(ranks: Mapping[int, Seen]) -> Verdict | None:
    """Replays of captured graphs that do not go together, as far as their collectives are known.

    The ranks in it are those whose GPUs were given the fewest collectives, beyond which no GPU
    gets; none, where the numbers are equal and the graphs are not, which may well be right.
    """
    reached = {rank: seen.reader.reached() for rank, seen in ranks.items()}
    groups = {line[0]: None for lines in reached.values() for line in lines if replayed(line[1])}
    for group in groups:
        if not ranks.keys() >= set(group.ranks):
            continue
        given = {
            rank: sum(
                count * (replayed(line[1]) or 1)
                for line, count in reached[rank].items()
                if line[0] == group and (not line[1] or replayed(line[1]))
            )
            for rank in group.ranks
        }
        counts = _by_value({rank: f"got {count}" for rank, count in given.items()})
        fewest, most = min(given.values()), max(given.values())
        where = _first_difference(group, ranks)
        if fewest < most:
            said = f"The ranks' GPUs have been given different numbers of collectives on {group}, "
            said += f"those in replays of captured graphs included: {counts}.{where and ' '}{where}"
        elif where:
            said = where
        else:
            continue
        short = tuple(rank for rank in group.ranks if given[rank] == fewest < most)
        return Verdict(f"{said} {_ONE_PLAN}", short)
    return None


def _first_difference(group: Group, ranks: Mapping[int, Seen]) -> str:
    """Say where the ranks' replays begin to differ; "" where they do not, or nobody knows."""
    replays = {
        rank: [
            call.operation
            for call in ranks[rank].reader.calls()
            if call.group == group and replayed(call.operation)
        ]
        for rank in group.ranks
    }
    if any(ranks[rank].reader.dropped for rank in group.ranks):
        return ""
    for at, operations in enumerate(zip_longest(*replays.values(), fillvalue="")):
        if len(set(operations)) > 1:
            made = {
                r: f"made {f'a {one}' if one else 'none'}"
                for r, one in zip(replays, operations, strict=True)
            }
            return f"As replay #{at} on {group}, {_by_value(made)}."
    return ""


_ONE_PLAN = (
    "Collectives in a replay are matched by their order alone: every rank must replay graphs that "
    "hold the same collectives, in the same order."
)


def never_met(ranks: Mapping[int, Seen]) -> Verdict | None:
    """All ranks have come to make the same group, and look for each other in vain.

    What they wait for is written by nobody only if they look in different places. That shows in
    no record: it is likely where nothing has moved for long.
    """
    unfinished = {rank: seen.blocked() for rank, seen in ranks.items() if not seen.finished}
    calls = {call.operation for call in unfinished.values() if call and call.group.name == "setup"}
    if len(calls) != 1 or None in unfinished.values():
        return None
    return Verdict(
        f"{ranks_text(unfinished).capitalize()} are all in {calls.pop()} and do not find each "
        "other. Do they use the same store, under the same prefix, with ranks numbered from "
        "0 without a gap?",
        tuple(sorted(unfinished)),
    )


def cannot_leave(ranks: Mapping[int, Seen]) -> Verdict | None:
    """All that is left to do is to leave, and a rank does not get that done.

    A thread may well wait for something outside; so this is likely only where nothing has moved
    for long.
    """
    leaving = {rank: seen.reader.leaving() for rank, seen in ranks.items() if not seen.finished}
    if not leaving or None in leaving.values():
        return None
    said = _by_value({rank: f"awaiting {call}" for rank, call in leaving.items()})
    return Verdict(
        f"The job is done, but not all of its ranks can exit: {said}. Nothing in them has "
        "moved for a long time. A program exits only when its threads have ended: let the "
        "thread end, or make it a daemon.",
        tuple(sorted(leaving)),
    )


def left_behind(ranks: Mapping[int, Seen]) -> Verdict | None:
    """Ranks may wait for a collective outside of the call: on the GPU, or inside of a backward.

    A rank that has finished, or only waits for its GPU, makes no more calls: collectives that
    others have begun beyond its count can never complete.
    """
    reached = {rank: seen.reader.reached() for rank, seen in ranks.items()}
    closed = {rank for rank, seen in ranks.items() if calls_no_more(seen)}
    if verdict := _never_sent(ranks, closed):
        return verdict
    lines = {line for lines in reached.values() for line in lines}
    for line in lines:
        group, operation = line[0], line[1]
        if operation or group.is_internal:
            continue
        if not set(group.ranks) <= ranks.keys():
            continue
        counts = {r: reached[r].get(line, 0) for r in group.ranks}
        short = [r for r in group.ranks if r in closed and counts[r] < max(counts.values())]
        if not short:
            continue
        fewest = min(counts[r] for r in short)
        missed = {
            r: call
            for r in group.ranks
            if not ranks[r].finished
            and r not in short
            and (call := _not_over(ranks[r].reader, line, fewest)) is not None
        }
        if waiting := list(missed):
            verb = "waits" if len(waiting) == 1 else "wait"
            left = f"{'is' if len(short) == 1 else 'are'} leaving"
            if all(ranks[r].finished for r in short):
                left = "already left"
            text = (
                f"{ranks_text(waiting)} {verb} in {missed[waiting[0]]} for {ranks_text(short)}, "
                f"which {left} "
                "without that call. Every rank of a group must call the same collectives in the "
                "same order."
            )
            return Verdict(text[0].upper() + text[1:], tuple(sorted([*waiting, *short])))
    return None


def _not_over(reader: Reader, line: CallLine, number: int) -> Call | None:
    """The rank's first call on a line, from a number on, for whose end it may still wait."""
    calls = (call for call in reader.calls() if call.line == line and call.number >= number)
    return next((call for call in calls if call.end is None), None)


def _never_sent(ranks: Mapping[int, Seen], closed: Collection[int]) -> Verdict | None:
    """A rank waits for its GPU, which receives what a rank that makes no more calls never sent."""
    for rank in closed:
        if ranks[rank].finished or not ranks[rank].reader.on_gpu:
            continue
        for call in ranks[rank].reader.calls():
            peer = NOBODY if call.peer is None else call.peer
            if call.operation != "recv" or peer not in closed or call.end is not None:
                continue
            line = (call.group, "send", rank)
            sent = sum(n for at, n in ranks[peer].reader.reached().items() if at[:3] == line)
            if sent <= call.number:
                return Verdict(
                    f"Rank {rank} waits for {call}, but rank {peer} has made all of its calls "
                    "and never sent it. Every recv needs a send on the rank that it names, "
                    "in the same group.",
                    tuple(sorted((rank, peer))),
                )
    return None


def _anybody(call: Call) -> bool:
    return call.group.name == "store" or call.peer == ANY_SOURCE


def _missing(
    call: Call,
    reached: Mapping[int, Mapping[CallLine, int]],
    everybody: Collection[int],
    on_gpu: bool,
) -> list[int]:
    """The ranks that must still enter a call before it can complete."""
    if _anybody(call):
        return sorted(set(everybody) - {call.rank})
    if call.operation in POINT_TO_POINT:
        assert call.peer is not None
        other = "recv" if call.operation == "send" else "send"
        mirror = (call.group, other, call.rank, call.tag)
        anonymous = (call.group, other, ANY_SOURCE, call.tag)
        if call.peer not in reached:  # there is no such rank
            return [call.peer]
        there = reached[call.peer]
        if there.get(mirror, 0) > call.number or (other == "recv" and there.get(anonymous, 0)):
            return []
        return [call.peer]
    members: Collection[int] = call.group.ranks
    if call.group.is_internal:
        members = everybody
        if not on_gpu and (asked := re.fullmatch(r"new_group\(\[([\d, ]+)\]\)", call.operation)):
            members = [int(rank) for rank in asked[1].split(",")]  # gloo connects no one else
    return [r for r in members if r not in reached or reached[r].get(call.line, 0) <= call.number]


def _forsaken(call: Call, ranks: Mapping[int, Seen]) -> Call | None:
    """The other side's half of a message that this call waits for, where it was given up."""
    if call.operation not in POINT_TO_POINT or call.peer is None or call.peer not in ranks:
        return None
    other = "recv" if call.operation == "send" else "send"
    line = (call.group, other, call.rank, call.tag)
    for candidate in ranks[call.peer].reader.log().values():
        if candidate.line == line and candidate.number == call.number:
            return candidate if candidate.forsaken else None
    return None


def _tell_of_forsaken(call: Call, other: Call) -> str:
    begun = "isend" if other.operation == "send" else "irecv"
    return (
        f"Rank {call.rank} waits in {call}; rank {other.rank} had begun its side of that "
        f"message with {begun}(), but the handle that {begun}() returned was dropped before "
        "wait() was called (the function returned, or the name got another value), and that "
        "cancelled the message. Keep the handle, and call its wait()."
    )


def _tell(
    blocked: Mapping[int, Call], missing: Mapping[int, list[int]], ranks: Mapping[int, Seen]
) -> str:
    for call in blocked.values():
        if lost := _nobody_there(call):
            return lost.sentence
        if call.again:
            way = "to" if call.operation == "send" else "from"
            return (
                f"Rank {call.rank} waits a second time for its {call.operation} "
                f"#{call.number} {way} rank {call.peer}, which has completed. Under gloo that "
                "never returns: drop a handle after its wait()."
            )
    if other_tag := _other_tag(blocked, ranks):
        return other_tag
    somebody_left = any(ranks[peer].finished for absent in missing.values() for peer in absent)
    if alike := _tell_of_one_kind(blocked, somebody_left):
        return alike
    sentences = []
    together: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank, call in sorted(blocked.items()):
        together.setdefault((str(call), tuple(missing[rank])), []).append(rank)
    for (where, absent), waiting in together.items():
        verb = "waits" if len(waiting) == 1 else "wait"
        sentence = f"{ranks_text(waiting)} {verb} in {where}"
        finished = [r for r in absent if ranks[r].finished]
        if finished:
            sentence += f" for {ranks_text(finished)}, which already left without that call"
        elif absent:
            sentence += f" for {ranks_text(absent)}"
        sentences.append(sentence)
    text = "; ".join(sentences)
    return f"{text[0].upper()}{text[1:]}. {_rule(blocked.values(), somebody_left)}"


def _tell_of_one_kind(blocked: Mapping[int, Call], somebody_left: bool) -> str:
    """Say so where all waiting ranks do the same, and nobody the other half; else ""."""
    operations = {call.operation for call in blocked.values()}
    if all(call.group.name == "store" for call in blocked.values()):
        said = _by_value({r: f"in {c.operation}" for r, c in blocked.items()})
        return f"Every waiting rank waits for a key of the store ({said}) that nobody sets."
    if somebody_left:
        return ""
    if operations == {"send"}:
        said = _by_value({r: f"to rank {c.peer}" for r, c in blocked.items()})
        return (
            f"Every waiting rank is in send ({said}) and nobody receives. A send waits for "
            "its receiver (gloo: always; NCCL: on the GPU, and the host waits at the first message "
            "of a pair). Let one side of each pair receive first, or use isend or "
            "batch_isend_irecv."
        )
    if operations == {"recv"}:
        said = _by_value(
            {
                r: "from any rank" if c.peer == ANY_SOURCE else f"from rank {c.peer}"
                for r, c in blocked.items()
            }
        )
        return f"Every waiting rank is in recv ({said}) and nobody sends."
    return ""


def _rule(blocked: Collection[Call], somebody_left: bool) -> str:
    """Return the rule that the calls break."""
    if any(is_new_group(call.operation) for call in blocked):
        return "Every rank must call new_group, in the same order, members or not."
    if any(call.operation == "destroy_process_group" for call in blocked):
        return (
            "destroy_process_group waits for the group's work to end; on a GPU it also waits for "
            "ever while a captured CUDA graph that holds NCCL work is alive: delete the graph "
            "first."
        )
    if not somebody_left and _collectives_of_several_groups(blocked):
        return _ONE_ORDER
    rules = []
    kinds = {call.operation in POINT_TO_POINT for call in blocked}
    if True in kinds:
        rules.append(
            "Every send needs a recv on the rank that it names, in the same group and with "
            "the same tag, and every recv such a send."
        )
    if kinds == {True, False} and len({call.group for call in blocked}) > 1:
        rules.append(_ONE_ORDER)
    elif False in kinds:
        rules.append("Every rank of a group must call the same collectives in the same order.")
    return " ".join(rules)


def _other_tag(blocked: Mapping[int, Call], ranks: Mapping[int, Seen]) -> str:
    """Say that a message has begun on both sides with tags that differ; "" where that is not so."""
    for rank, call in sorted(blocked.items()):
        if call.operation not in POINT_TO_POINT or call.peer is None or call.peer not in ranks:
            continue
        other = "recv" if call.operation == "send" else "send"
        mirror = (call.group, other, rank)
        begun = [one for one in ranks[call.peer].reader.calls() if one.end is None]
        tags = {one.tag for one in begun if (one.group, one.operation, one.peer) == mirror}
        if tags and call.tag not in tags:
            there = "a recv from it" if other == "recv" else "a send to it"
            way = "sends to" if call.operation == "send" else "receives from"
            return (
                f"Rank {rank} {way} rank {call.peer} with tag {call.tag}, and rank {call.peer} has "
                f"begun {there} with tag {min(tags)}: the tags differ, so the two never meet."
            )
    return ""


def _collectives_of_several_groups(calls: Collection[Call]) -> bool:
    groups = {call.group for call in calls}
    return (
        len(groups) > 1
        and not any(group.is_internal for group in groups)
        and not any(call.operation in POINT_TO_POINT for call in calls)
    )
