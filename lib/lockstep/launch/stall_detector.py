"""Judges ranks only while nothing moves, so that a busy machine is no deadlock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ..calls import diagnose
from ..calls.diagnose import Seen, Verdict
from ..calls.record import Call, agree

_EVERY = 0.1  # seconds between two looks
_STILL = 0.4  # seconds without any movement before ranks are judged
_STILL_IN_SETUP = 1.0  # the same while a group is being made, which is slow on a busy machine
_STILL_UNMET = 5.0  # the same where all ranks are there and should find each other
_POLLING = 0.05  # of a core for each rank: those that look for each other may look now and then
_STILL_LEAVING = 60.0  # the same where ranks are done and a thread of theirs, say, is not
_STILL_ON_GPU = 1.0  # the same on GPUs, where a rank that waits may well use its processor
_STILL_FOR_GPU = 3.0  # the same where each GPU waits for others, and ranks for theirs, it seems
_ASK_AGAIN = 1.0  # between two questions whether somebody else of the job is alive


class StallDetector:
    """Judges ranks when no call begins or ends, and no processor is used.

    Where something that is no rank may still help (a thread, a process that a rank has started, a
    store of the program's own), ranks that stand still are suspected, and no more.

    A rank that is ready to run but has no core is thus not mistaken for one that waits. Ranks on
    GPUs spin while they wait, and wait outside of any call: for them it counts which calls their
    GPUs have yet to do, and that their main threads stand still.
    """

    def __init__(
        self,
        processor_time: Callable[[], tuple[int, ...] | None],
        others_live: Callable[[], bool],
    ) -> None:
        """processor_time: as `processes.processor_time` says it of the unfinished ranks.
        others_live: whether the job has other processes than its ranks."""
        self._processor_time, self._others_live = processor_time, others_live
        self.suspicion: Verdict | None = None
        self._last: Mapping[int, tuple[bool, tuple[int, ...]]] = {}
        self._used: tuple[int, ...] | None = None
        self._still_since = self._quiet_since = 0.0
        self._looked = 0.0
        self._judged = False
        self._certain: Verdict | None = None
        self._likely: Verdict | None = None  # certain once it is clear that none moves
        self._is_open = False  # whether something else may help
        self._asked = 0.0  # when it was asked who else is alive
        self._patience = _STILL
        self._may_poll = False

    def check(self, ranks: Mapping[int, Seen]) -> Verdict | None:
        """Return what is wrong with the ranks, once that is certain; to be called often."""
        now = time.perf_counter()
        if now - self._looked < _EVERY:
            return None
        self._looked = now
        state = _state(ranks)
        if state != self._last:
            self._last, self._still_since, self._judged = state, now, False
            self.suspicion = None
            self._quiet_since, self._used = now, self._processor_time()
            return None
        if now - self._still_since < _STILL:
            return None
        if not all(seen.reader.is_current for seen in ranks.values()):
            return None
        if not self._judged:
            self._judge(ranks)  # once: the same records would be judged the same
            if _state(ranks) != state:  # not all of them were read before a rank went on
                self._judged = False
                return None
        if self._certain or self._likely is None:
            return self._certain
        if not self._is_quiet(ranks, now):
            return None
        if self._is_open or self._somebody_else_may_help(ranks, now):
            self.suspicion = self._likely
            return None
        return self._likely

    def _is_quiet(self, ranks: Mapping[int, Seen], now: float) -> bool:
        """Return whether nothing has moved for as long as the likely verdict wants."""
        if any(seen.reader.on_gpu for seen in ranks.values()):
            return now - self._still_since >= self._patience
        used = self._processor_time()
        if self._may_poll:
            moved = used is not None and not self._only_polled(used, now)
        else:
            moved = used is None or used != self._used
        if moved:
            self._quiet_since, self._used = now, used
        return used is not None and now - self._quiet_since >= self._patience

    def _somebody_else_may_help(self, ranks: Mapping[int, Seen], now: float) -> bool:
        """A key of the store may come from a process that a rank has started, and so may a peer."""
        calls = [call for seen in ranks.values() if (call := seen.blocked()) is not None]
        if not any(_is_open_to_others(call) for call in calls):
            return False
        if now - self._asked >= _ASK_AGAIN or self.suspicion is None:
            self._asked, self._others_lived = now, self._others_live()
        return self._others_lived

    def _only_polled(self, used: tuple[int, ...], now: float) -> bool:
        """Return whether ranks have used no more, since it is quiet, than those that poll."""
        if self._used is None or len(used) != len(self._used):
            return False
        seconds = (sum(used) - sum(self._used)) / os.sysconf("SC_CLK_TCK")
        return seconds <= _POLLING * (now - self._quiet_since) * len(used)

    def _judge(self, ranks: Mapping[int, Seen]) -> None:
        self._judged, self._may_poll, self._is_open = True, False, False
        self._certain = self._likely = None
        if any(seen.reader.is_doubtful for seen in ranks.values()):
            return
        agree(seen.reader for seen in ranks.values())
        helped = [rank for rank, seen in ranks.items() if seen.may_be_helped]
        self._certain = diagnose.mismatch(ranks)
        self._likely = (
            diagnose.too_large_a_world(ranks)
            or diagnose.deadlock(ranks, helped=helped)
            or diagnose.left_behind(ranks)
        )
        if self._likely is None and helped:
            self._likely, self._is_open = diagnose.deadlock(ranks), True
        calls = [call for seen in ranks.values() if (call := seen.blocked()) is not None]
        in_setup = any(call.group.is_internal for call in calls)
        self._patience = _STILL_IN_SETUP if in_setup else _STILL
        if any(seen.reader.on_gpu for seen in ranks.values()):
            self._patience = _STILL_ON_GPU
            if self._likely is None:
                self._likely = _if_they_wait(ranks, diagnose.between_groups(ranks))
            if self._likely is None:
                self._likely = diagnose.held_by_a_graph(ranks) or diagnose.deadlock(
                    ranks, on_gpus=True, helped=helped
                )
                self._patience = _STILL_FOR_GPU
            if self._likely is None and (parted := diagnose.parted_replays(ranks)):
                behind = [ranks[rank] for rank in parted.ranks]
                closed = bool(behind) and all(map(diagnose.calls_no_more, behind))
                self._likely, self._is_open = parted, not closed  # else a rank may only be late
        if self._likely is None and not any(seen.reader.on_gpu for seen in ranks.values()):
            # NCCL takes seconds to make a group, and says nothing meanwhile.
            self._likely, self._patience = diagnose.never_met(ranks), _STILL_UNMET
            self._may_poll = self._likely is not None
        if self._likely is None:
            # A thread may well wait for something outside.
            self._likely, self._patience = diagnose.cannot_leave(ranks), _STILL_LEAVING
            self._is_open = any(seen.may_be_helped for seen in ranks.values())


def _state(ranks: Mapping[int, Seen]) -> dict[int, tuple[bool, tuple[int, ...]]]:
    return {rank: (seen.finished, seen.reader.progress) for rank, seen in ranks.items()}


def _if_they_wait(ranks: Mapping[int, Seen], verdict: Verdict | None) -> Verdict | None:
    """The verdict, where all ranks in it wait for their GPUs."""
    waiting = verdict and all(diagnose.waits_for_gpu(ranks[rank]) for rank in verdict.ranks)
    return verdict if waiting else None


def _is_open_to_others(call: Call) -> bool:
    return call.group.name == "store" or call.operation.startswith("init_process_group")
