"""Says what is wrong with a job's ranks, and with each, from what their nodes know of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.formatting import ranks_text
from ..calls import diagnose
from ..calls.record import agree
from . import failures
from .nodes.base import Node, RankState
from .output import Output
from .replies import Failed

Judge = Callable[[Mapping[int, diagnose.Seen]], diagnose.Verdict | None]


def seen(ranks: Sequence[RankState]) -> dict[int, diagnose.Seen]:
    """Return what is known of each rank at this moment, by its number."""
    return {rank.rank: diagnose.Seen(rank.reader, rank.over) for rank in ranks}


def compare(ranks: Sequence[RankState]) -> str:
    """Say in what ranks that are done have called different things; "" where they have not.

    An answer can be wrong without a hang.
    """
    by_group: dict[Any, set[int]] = {}
    for rank in ranks:
        for name, members, digest in rank.result.digest:
            by_group.setdefault((name, members), set()).add(digest)
    if all(len(digests) == 1 for digests in by_group.values()):
        return ""
    found = mismatch(ranks)
    return found and f"{found} Nothing hung this time, but the values cannot be trusted."


def mismatch(ranks: Sequence[RankState]) -> str:
    """Say which calls of the ranks can never go together; "" where none is known."""
    return _judged(ranks, diagnose.mismatch, diagnose.too_large_a_world)


def suspicion(ranks: Sequence[RankState]) -> str:
    """Say what may be wrong, though it is not certain; "" where nothing is known."""
    return _judged(ranks, diagnose.between_groups, diagnose.parted_replays)


def _judged(ranks: Sequence[RankState], *judges: Judge) -> str:
    """Return the first sentence that one of these has to say of all records; "" for none."""
    if any(rank.reader.is_doubtful for rank in ranks):
        return ""
    agree(rank.reader for rank in ranks)
    now = seen(ranks)
    return next((verdict.sentence for judge in judges if (verdict := judge(now))), "")


def killed_for_memory(nodes: Sequence[Node]) -> str:
    """Say who was ended because memory was used up, where that is known."""
    said = []
    for node in nodes:
        at = f" on {node.name}" if node.name else ""
        by_limit: dict[str, list[int]] = {}
        for rank in node.ranks:
            if rank.starved:
                by_limit.setdefault(rank.starved, []).append(rank.rank)
        said += [f"{ranks_text(who)}{at}: {why}" for why, who in by_limit.items()]
    return f"Killed for memory: {'; '.join(said)}." if said else ""


def failure_of(rank: RankState, kind: str, output: Output) -> failures.Failure | None:
    """Return how a rank failed; None where it did not. kind: why the job ended."""
    now = time.perf_counter()
    if rank.state == "failed":
        assert isinstance(rank.reply, Failed)
        failure = failures.raised(rank.rank, rank.reply)
    elif rank.state == "dead":
        frames = failures.parse_stack(rank.stack)
        starved = bool(rank.starved)
        failure = failures.died(rank.rank, rank.code, rank.peak, now, frames, output.text, starved)
    elif rank.state == "coming":
        failure = failures.Failure(rank.rank, kind, "had not started yet", now)
    elif rank.state == "done" or kind == "failed":
        return None
    else:
        message = {"stuck": "", "timeout": "still running", "interrupted": "interrupted"}[kind]
        if rank.is_stopped:
            message = "stopped by a signal (SIGSTOP) or a debugger"
        frames = failures.parse_stack(rank.stack)
        failure = failures.Failure(rank.rank, kind, message, now, frames)
    call = rank.reader.blocked_in()
    if call is not None:
        failure.call = f"in {call}"
    elif (leaving := rank.reader.leaving()) is not None:
        failure.call = f"its job is done, and it waits for {leaving}"
    elif failure.kind in ("timeout", "stuck", "interrupted"):
        calls = rank.reader.calls()
        failure.call = f"last call: {calls[-1]}" if calls else "no call so far"
    return failure
