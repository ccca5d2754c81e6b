"""Messages of a job, in rounds, from the record of its ranks' calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MOST = 4000  # messages; more are no help to anybody's eyes


@dataclass(frozen=True)
class Sent:
    """One message that arrived."""

    source: int
    to: int
    nbytes: int


@dataclass(frozen=True)
class Messages:
    """states: for each rank a bit for each rank that it may have numbers of, at the start and after
    each round. others: calls that are no messages, in words.
    """

    rounds: list[list[Sent]]
    states: list[list[int]]
    others: str


def messages_of(calls: Sequence[Sequence[Any]]) -> Messages:
    """The messages in `Job.calls`: the k-th send of a pair belongs to its k-th receive.

    A message is in the round after all that its sender had sent or received before it, and that its
    receiver had received before. Before: it had ended, and was not begun together with it. Messages
    that nobody received are left out. Raises ValueError where there is none, or too many.
    """
    places = [_places(own) for own in calls]
    waiting: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
    pairs = []
    for rank, own in enumerate(calls):
        for at, call in enumerate(own):
            if call.operation == "send":
                waiting[call.group.ranks, rank, call.peer, call.tag].append((at, call))
    for rank, own in enumerate(calls):
        for at, call in enumerate(own):
            if call.operation != "recv" or call.end is None:
                continue
            queue = waiting[call.group.ranks, call.peer, rank, call.tag]
            if queue:
                sent_at, send = queue.pop(0)
                pairs.append((call.end, send, sent_at, call, at))
    if not pairs:
        raise ValueError("this job has no messages to play: no send() that was received")
    if len(pairs) > _MOST:
        raise ValueError(f"{len(pairs):,} messages are too many to play; {_MOST:,} can be")
    done: list[list[tuple[Any, int, int]]] = [[] for _ in calls]  # call, place, round
    by_round: dict[int, list[Sent]] = defaultdict(list)
    for _, send, sent_at, recv, at in sorted(pairs, key=lambda pair: pair[0]):
        source, to = send.rank, recv.rank
        before = [number for one, place, number in done[source] if _is_before(one, place, send,
                  places[source][sent_at])]  # fmt: skip
        before += [
            number
            for one, place, number in done[to]
            if one.operation == "recv" and _is_before(one, place, recv, places[to][at])
        ]
        number = 1 + max(before, default=0)
        done[source].append((send, places[source][sent_at], number))
        done[to].append((recv, places[to][at], number))
        by_round[number].append(Sent(source, to, send.bytes))
    rounds = [
        sorted(by_round[number], key=lambda one: (one.source, one.to))
        for number in sorted(by_round)
    ]
    return Messages(rounds, _states(len(calls), rounds), _others(calls))


def _is_before(one: Any, place: int, other: Any, other_place: int) -> bool:
    return place < other_place and one.end is not None and one.end <= other.start


def _places(own: Sequence[Any]) -> list[int]:
    """For each call of a rank a number that is the same for those that were begun together.

    A call goes with those before it if all return at once, until they have ended and one of its
    kind comes again.
    """
    places: list[int] = []
    together: list[Any] = []
    for call in own:
        joins = call.asynchronous or call.batched
        over = any(one.end is None or one.end > call.start for one in together)
        again = any(one.operation == call.operation for one in together)
        if together and joins and (over or not again):
            together.append(call)
            places.append(places[-1])
        else:
            together = [call] if joins else []
            places.append(places[-1] + 1 if places else 0)
    return places


def _states(ranks: int, rounds: Sequence[Sequence[Sent]]) -> list[list[int]]:
    states = [[1 << rank for rank in range(ranks)]]
    for each in rounds:
        before = states[-1]
        now = list(before)
        for one in each:
            now[one.to] |= before[one.source]
        states.append(now)
    return states


def _others(calls: Sequence[Sequence[Any]]) -> str:
    """Return the other calls of one rank, as all make them."""
    most = max(
        (
            Counter(call.operation for call in own if call.operation not in ("send", "recv"))
            for own in calls
        ),
        key=lambda counted: counted.total(),
    )
    return ", ".join(f"{count} {name}" for name, count in most.items())
