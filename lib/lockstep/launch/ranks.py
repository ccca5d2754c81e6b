"""A set of live ranks, and one job after another on them: the loop that a cell waits in.

Everything is read in the thread that called, so that what ranks print lands in the cell that
runs them. Nodes tell what their ranks print, answer, and how they end; the loop asks the
StallDetector whether the ranks can still move, and says what became of the job.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..calls.record import agree
from . import verdicts
from .errors import refusal
from .interrupts import defer_signals
from .nodes.base import Node, RankState, Setting, Task
from .outcome import End, Outcome
from .output import Output
from .place import Place
from .stall_detector import StallDetector

_TICK = 0.1  # seconds at most between two turns of the loop
_GRACE = 0.5  # seconds in which other ranks may fail by themselves after the first failure

_ENDS = {"done": "done", "failed": "raised", "dead": "died"}  # of a rank's states

# What has come so far, the seconds since, and what may be wrong ("": nothing is suspected).
Show = Callable[[Sequence[Output], float, str], None]
_HELP_MAY_COME = (
    "Nothing moves, and the ranks may be stuck: {} Something other than the ranks may still "
    "release them (a thread, a process, a store of the program's own), so the job goes on."
)


class Ranks:
    """N ranks, some on each of the nodes. Call `close()`, even where an exception came before
    `start()` was done.
    """

    closed = True  # until there is something to close

    def __init__(self, each: Sequence[int], nodes: Sequence[Node], setting: Setting):
        self.nproc = sum(each)
        self._each, self._nodes = each, nodes
        self.setting = setting
        self._ranks: list[RankState] = []
        self._owner = os.getpid()
        # One that needs no descriptor of its own, and that a fork of this process cannot disturb.
        self._selector = selectors.PollSelector()
        self._jobs = 0  # begun so far; the number of the one that runs
        self._said_at_end: list[str] = []  # of what could not be ended
        self._is_started = self.closed = False

    def start(self) -> None:
        """Start them, once. Raises LaunchError where that cannot be; they are closed then."""
        if self._is_started:
            return
        place = Place(0, 0, self.nproc, 0, len(self._nodes))
        try:
            self._is_started = True
            for number, (node, count) in enumerate(zip(self._nodes, self._each, strict=True)):
                first = place.first + place.count
                place = replace(place, first=first, count=count, node=number)
                place = node.start(place, self.setting, self._selector)
            self._ranks = [rank for node in self._nodes for rank in node.ranks]
        except OSError as error:
            self.close()
            raise refusal(error) from error
        except BaseException:
            self.close()
            raise

    # ── One job ──────────────────────────────────────────────────────────────────────────────

    def run(self, task: Task, timeout: float | None, show: Show) -> Outcome:
        """Do one job. Unless it ends well the ranks are gone (`closed`).

        timeout: seconds, None for no limit. An interrupt (Ctrl-C) is an outcome, too.
        """
        self._outputs = [Output(rank) for rank in range(self.nproc)]
        self._seconds, self._suspected = 0.0, ""
        outcome: Outcome | None = None
        try:
            self._jobs = task.number = self._jobs + 1
            for node in self._nodes:
                node.begin(task, dict(enumerate(self._outputs)))
            verdict, kind = self._watch(timeout, show)
            outcome = self._success() if kind == "ok" else self._failure(verdict, kind)
        except KeyboardInterrupt:
            while outcome is None:
                with (
                    contextlib.suppress(KeyboardInterrupt),
                    defer_signals(),
                ):  # a second says nothing new
                    outcome = self._failure(self._suspected, "interrupted")
        finally:
            if outcome is None or outcome.state != "ok":
                self.close()  # a rank that still works on this must not answer the next one
            for output in self._outputs:
                output.close()
            for node in self._nodes:
                node.forget_task()  # ranks that stay up must not keep what their last job gave
            del self._outputs
        return outcome

    def _watch(self, timeout: float | None, show: Show) -> tuple[str, str]:
        """Wait until the job is over; returns the verdict and its kind ("ok" when all is well)."""
        began = time.perf_counter()
        watch = StallDetector(self._processor_time, self._others_live)
        first_failure: float | None = None
        while True:
            if all(rank.state == "done" for rank in self._ranks):
                self._drain()
                contradiction = verdicts.compare(self._ranks)
                return contradiction, "failed" if contradiction else "ok"
            if why_ended := " ".join(node.why_ended for node in self._nodes if node.why_ended):
                return why_ended, "failed"
            now = time.perf_counter()
            if any(rank.state in ("failed", "dead") for rank in self._ranks):
                first_failure = first_failure or now
                if self._settled(now - first_failure):
                    why = verdicts.killed_for_memory(self._nodes)
                    return why or verdicts.mismatch(self._ranks), "failed"
            elif any(node.has_given_up for node in self._nodes):
                return "", "failed"
            else:
                first_failure = None
            if timeout is not None and now - began > timeout:
                return f"The time limit of {timeout:g} s has passed.{self._suspicion()}", "timeout"
            wait = _TICK if timeout is None else max(min(_TICK, began + timeout - now), 0)
            for key, _ in self._selector.select(wait):
                key.data()
            for node in self._nodes:
                node.poll()
            self._seconds = time.perf_counter() - began
            if first_failure is None and (verdict := watch.check(verdicts.seen(self._ranks))):
                return verdict.sentence, "stuck"
            suspicion = watch.suspicion
            self._suspected = _HELP_MAY_COME.format(suspicion.sentence) if suspicion else ""
            show(self._outputs, self._seconds, self._suspected)

    def _settled(self, since: float) -> bool:
        """After a failure: whether the others can tell no more."""
        if any(node.restarts for node in self._nodes):
            return any(node.has_given_up for node in self._nodes)
        return since > _GRACE or all(
            rank.over or (since > _TICK and rank.reader.waits) for rank in self._ranks
        )

    def _suspicion(self) -> str:
        """Say what may be wrong, where that is not certain; begins with a space, or is empty."""
        if self._suspected:
            return f" {self._suspected}"
        suspected = verdicts.suspicion(self._ranks)
        return suspected and f" What may be wrong: {suspected}"

    def _processor_time(self) -> tuple[int, ...] | None:
        used: tuple[int, ...] = ()
        for node in self._nodes:
            here = node.processor_time()
            if here is None:
                return None
            used += here
        return used

    def _others_live(self) -> bool:
        return any(node.others_live() for node in self._nodes)

    # ── What became of it ────────────────────────────────────────────────────────────────────

    def _success(self) -> Outcome:
        ranks = self._ranks
        return self._outcome(
            stopped=time.perf_counter(),
            state="ok",
            shown=tuple(rank.result.shown for rank in ranks),
            parcels=tuple(rank.parcel for rank in ranks),
            unsent={r.rank: why for r in ranks if (why := r.result.unsent) is not None},
            bound=tuple(ranks[0].result.bound),
            device=ranks[0].result.device,
        )

    def _failure(self, verdict: str, kind: str) -> Outcome:
        """Find out what each rank was doing, end them all, and write it down."""
        stopped = time.perf_counter()
        for node in self._nodes:
            node.refresh()
        self.close(gracefully=True)
        agree(rank.reader for rank in self._ranks)
        failures = [
            verdicts.failure_of(rank, kind, self._outputs[rank.rank]) for rank in self._ranks
        ]
        replies = [rank.reply for rank in self._ranks if rank.reply is not None]
        return self._outcome(
            state="interrupted" if kind == "interrupted" else "failed",
            device=next((reply.device for reply in replies if reply.device), ""),
            stopped=stopped,
            verdict=verdict,
            failures=tuple(
                sorted((f for f in failures if f), key=lambda f: (f.is_consequence, f.at))
            ),
        )

    def _outcome(self, stopped: float, **what: Any) -> Outcome:
        readers = tuple(rank.reader.copy() for rank in self._ranks)
        notes = [note for node in self._nodes for note in (node.note, *node.notes)]
        if dropped := max((reader.dropped for reader in readers), default=0):
            notes.append(
                f"a rank made so many calls that the oldest {dropped:,} are not in its record"
            )
        return Outcome(
            seconds=self._seconds,
            ends=tuple(
                End(_ENDS.get(rank.state, "stopped"), stopped if rank.ended is None else rank.ended)
                for rank in self._ranks
            ),
            notes=tuple(dict.fromkeys(filter(None, [*notes, *self._said_at_end]))),  # each once
            outputs=tuple(self._outputs),
            readers=readers,
            **what,
        )

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def close(self, gracefully: bool = False) -> list[str]:
        """End all ranks and whatever they started, in bounded time.

        gracefully: ranks that handle SIGTERM may end by themselves before, for a few seconds.
        Returns a sentence for each process that could not be ended; the job's notes have them, too.
        """
        with defer_signals():
            forked = os.getpid() != self._owner  # a fork of the notebook: the ranks are not its own
            was_closed, self.closed = self.closed or forked, True
            if was_closed:
                return []
            for node in self._nodes:
                node.ask_to_end(gracefully)
            meanwhile = self._drain if gracefully else lambda: None
            said = [one for node in self._nodes for one in node.end(gracefully, meanwhile)]
            self._selector.close()
            self._said_at_end = said
        return said

    def detach(self) -> None:
        """End ranks that have done their only job, and wait for nobody.

        On GPUs the end takes long; the next job of this process waits for it before it begins.
        """
        with defer_signals():
            if not self.closed and os.getpid() == self._owner:
                self.closed = True
                for node in self._nodes:
                    node.detach()
                self._selector.close()

    def _drain(self) -> None:
        """A rank that ends by itself may print, and must not wait for room to do so."""
        for node in self._nodes:
            node.drain()

    def leave(self) -> None:
        """End ranks that have done their jobs; for a few seconds they may leave as Python does."""
        if not self.closed and os.getpid() == self._owner:
            with defer_signals():
                for node in self._nodes:
                    node.ask_to_leave()
                for node in self._nodes:
                    node.leave()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()
