"""A set of live ranks, and one job after another on them: the loop that a cell waits in.

Everything is read in the thread that called, so that what ranks print lands in the cell that
runs them. The loop reads the ranks' output, their answers, and how processes ended, and asks the
standstill watch whether the ranks can still move.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..machine import usable_cores
from . import calls, processes
from .channel import Channel, NoMessage, anonymous_file, deaf, map_file
from .engines.base import Arrival, Engine
from .errors import LaunchError, reason, refusal
from .explain import diagnose, report
from .explain.standstill import StandstillWatch
from .inside.rank import STACK_SIGNAL
from .job import Job
from .logs import LogFiles
from .output import Output
from .payload import Parcel

_TICK = 0.1  # seconds at most between two turns of the loop
_GRACE = 0.5  # seconds in which other ranks may fail by themselves after the first failure
_LEAVE = 5.0  # seconds for the ranks of a World to leave
_CHUNK = 1 << 16
_MOST_CHUNKS = 16  # at once: a pipe holds less, and a rank may print for ever
_PATIENCE = 10.0  # seconds for a rank to take in who it is

Show = Callable[[Job], None]


@dataclass
class Task:
    """One job for a set of ranks: its packed content and how the ranks are to treat it.

    Use as a context manager, which lets go of the content.
    """

    descriptor: int  # of the file with the content
    sizes: list[int]  # of its parts
    backend: str | None  # of the default group that the ranks make first; None: they make none
    cell: str = ""  # the file name of the cell, for reports
    may_leave: bool = False  # a script may end its process by itself

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __del__(self) -> None:  # of one that an exception kept from its `with`
        self._close()

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@dataclass
class _Slot:
    """One rank as the notebook sees it."""

    rank: int
    pid: int = 0
    channel: Channel | None = None
    output: int = -1
    stacks: int = -1
    memory: mmap.mmap | None = None
    reader: calls.Reader = field(default_factory=lambda: calls.Reader.of_nothing(0))
    state: str = "coming"  # running, done, failed, dead
    reply: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    peak: int = 0
    stack: str = ""

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "dead")


class Ranks:
    """N ranks that `engine` starts. Use as a context manager, or call `close()`, even where an
    exception came before `start()` was done.

    environment: for the ranks, on top of what torchrun sets. logs: files for some of their output.
    """

    closed = True  # until there is something to close

    def __init__(
        self,
        nproc: int,
        engine: Engine,
        environment: Mapping[str, str],
        logs: LogFiles | None = None,
    ):
        try:
            self._directory = os.getcwd()
        except FileNotFoundError:
            raise LaunchError(
                "the directory in which this process works is no more; os.chdir() to another"
            ) from None
        self.nproc = nproc
        self._engine = engine
        self._environment = dict(environment)
        self._logs = logs
        self._slots = [_Slot(rank) for rank in range(nproc)]
        self._owner = os.getpid()
        # One that needs no descriptor of its own, and that a fork of this process cannot disturb.
        self._selector = selectors.PollSelector()
        self._task: Task | None = None
        self._jobs = 0  # begun so far; the number of the one that runs
        self._threads = str(max(1, usable_cores() // nproc))
        self._agent_ended = False
        self._fate = ""  # of the process that watches over the ranks, once it is gone
        self._is_started = self.closed = False
        self.note = ""
        self._environment[processes.VARIABLE] = engine.job

    def start(self) -> None:
        """Start them, once. Raises LaunchError where that cannot be; they are closed then."""
        if self._is_started:
            return
        engine = self._engine
        try:
            self._is_started = True
            engine.start(self.nproc, self._environment)
            self.note = engine.started()
            self._selector.register(engine.events, selectors.EVENT_READ, self._on_event)
            self._arrival = engine.fileno()
            if self._arrival is not None:
                self._selector.register(self._arrival, selectors.EVENT_READ, self._on_arrival)
            self._on_arrival()
        except OSError as error:
            self.close()
            raise refusal(error) from error
        except BaseException:
            self.close()
            raise

    # ── One job ──────────────────────────────────────────────────────────────────────────────

    def run(
        self, task: Task, job: Job, timeout: float | None, show: Show, last: bool = True
    ) -> None:
        """Do one job and fill in `job`. Unless it ends well the ranks are gone (`closed`).

        timeout: seconds, None for no limit. last: no other job will come, so the ranks leave when
        they have done it. Raises KeyboardInterrupt when interrupted, with the job's state set, all
        ranks gone.
        """
        self._job, self._task, self._last = job, task, last
        job.outputs = [Output(rank) for rank in range(self.nproc)]
        try:
            self._jobs += 1
            for slot in self._slots:
                slot.state, slot.reply = "coming", {}
                if slot.channel is not None:
                    self._send_task(slot)
            verdict, kind = self._watch(timeout, show)
            if kind == "ok":
                self._collect()
            else:
                self._fail(verdict, kind)
        except KeyboardInterrupt:
            with deaf():
                self._fail("", "interrupted")
            raise
        finally:
            if job.state != "ok":
                self.close()  # a rank that still works on this job must not answer the next one
            for output in job.outputs:
                output.close()
            for slot in self._slots:
                slot.reply = {}
            self._task = None
            del self._job  # ranks that stay up must not keep what their last job gave

    def _watch(self, timeout: float | None, show: Show) -> tuple[str, str]:
        """Wait until the job is over; returns the verdict and its kind ("ok" when all is well)."""
        began = time.perf_counter()
        watch = StandstillWatch()
        first_failure: float | None = None
        while True:
            if all(slot.state == "done" for slot in self._slots):
                for slot in self._slots:
                    self._drain(slot)
                contradiction = self._compare()
                return contradiction, "failed" if contradiction else "ok"
            if self._fate:
                return self._fate, "failed"
            now = time.perf_counter()
            if any(slot.state in ("failed", "dead") for slot in self._slots):
                first_failure = first_failure or now
                if self._settled(now - first_failure):
                    return self._mismatch(), "failed"
            elif self._agent_ended:
                return "", "failed"
            else:
                first_failure = None
            if timeout is not None and now - began > timeout:
                return f"The time limit of {timeout:g} s has passed.", "timeout"
            wait = _TICK if timeout is None else max(min(_TICK, began + timeout - now), 0)
            for key, _ in self._selector.select(wait):
                key.data(key)
            if self._logs is not None:  # they are files, which nobody can wait for
                for slot in self._slots:
                    self._drain(slot)
            self._job.seconds = time.perf_counter() - began
            show(self._job)
            if first_failure is None and (verdict := watch.look(self._seen())):
                return verdict.sentence, "stuck"

    def _settled(self, since: float) -> bool:
        """After a failure: whether the others can tell no more."""
        if self._engine.restarts:
            return self._agent_ended
        return since > _GRACE or all(
            slot.over or (since > _TICK and slot.reader.waits) for slot in self._slots
        )

    def _compare(self) -> str:
        """All have finished: but did they do the same? An answer can be wrong without a hang."""
        by_group: dict[Any, set[int]] = {}
        for slot in self._slots:
            for name, members, digest in slot.reply["digest"]:
                by_group.setdefault((name, tuple(members)), set()).add(digest)
        if all(len(digests) == 1 for digests in by_group.values()):
            return ""
        found = self._mismatch()
        return found and f"{found} Nothing hung this time, but the values cannot be trusted."

    def _mismatch(self) -> str:
        verdict = diagnose.mismatch(self._seen())
        return verdict.sentence if verdict else ""

    def _seen(self) -> dict[int, diagnose.Seen]:
        return {slot.rank: diagnose.Seen(slot.reader, slot.over) for slot in self._slots}

    def _collect(self) -> None:
        job = self._job
        job.shown = [slot.reply["shown"] for slot in self._slots]
        job.parcels = [slot.reply.get("parcel") for slot in self._slots]
        job.unsent = {s.rank: s.reply["unsent"] for s in self._slots if "unsent" in s.reply}
        job.bound = self._slots[0].reply["bound"]
        job.device = self._slots[0].reply["device"]
        job.peak_memory |= {slot.rank: slot.reply["peak"] for slot in self._slots}
        job.readers = [slot.reader.copy() for slot in self._slots]
        self._tell_of_dropped_calls()
        job.state = "ok"

    def _tell_of_dropped_calls(self) -> None:
        dropped = max(reader.dropped for reader in self._job.readers)
        if dropped:
            text = f"a rank made so many calls that the oldest {dropped:,} are not in its record"
            self._job.add_note(text)

    def _fail(self, verdict: str, kind: str) -> None:
        """Find out what each rank was doing, end them all, and write it down."""
        job = self._job
        for slot in self._slots:
            self._drain(slot)
        self._ask_for_stacks()
        for slot in self._slots:  # now: ranks that are being ended stir each other
            slot.reader = slot.reader.copy()
        job.readers = [slot.reader for slot in self._slots]
        self._tell_of_dropped_calls()
        self.close(gracefully=True)
        job.verdict = verdict
        job.state = "interrupted" if kind == "interrupted" else "failed"
        job.shown, job.parcels = [None] * self.nproc, [None] * self.nproc
        failures = [self._failure(slot, kind) for slot in self._slots]
        job.failures = sorted(
            (f for f in failures if f is not None), key=lambda f: (f.is_consequence, f.at)
        )

    def _failure(self, slot: _Slot, kind: str) -> report.Failure | None:
        if slot.state == "failed":
            failure = report.raised(slot.rank, slot.reply)
        elif slot.state == "dead":
            frames = report.parse_stack(slot.stack)
            failure = report.died(slot.rank, slot.code, slot.peak, time.perf_counter(), frames)
        elif slot.state == "coming":
            failure = report.Failure(slot.rank, kind, "had not come up yet", time.perf_counter())
        elif slot.state == "done" or kind == "failed":
            return None
        else:
            message = {"stuck": "", "timeout": "still at work", "interrupted": "interrupted"}
            frames = report.parse_stack(slot.stack)
            failure = report.Failure(slot.rank, kind, message[kind], time.perf_counter(), frames)
        call = slot.reader.blocked_in()
        if call is not None:
            failure.call = f"in {call}"
        elif (leaving := slot.reader.leaving()) is not None:
            failure.call = f"its job is done, and it waits for {leaving}"
        elif failure.kind in ("timeout", "stuck", "interrupted"):
            calls = slot.reader.calls()
            failure.call = f"last call: {calls[-1]}" if calls else "no call so far"
        return failure

    def _ask_for_stacks(self) -> None:
        asked = []
        for slot in self._slots:
            if slot.state == "running":
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(slot.pid, STACK_SIGNAL)
                    asked.append(slot)
        for slot in asked:
            self._read_stack(slot, 0.3)

    def _read_stack(self, slot: _Slot, patience: float) -> None:
        """Read what faulthandler wrote; it has no end mark, so until it pauses."""
        with selectors.PollSelector() as selector:
            selector.register(slot.stacks, selectors.EVENT_READ)
            while selector.select(patience):
                data = os.read(slot.stacks, _CHUNK)
                if not data:
                    break
                slot.stack += data.decode(errors="replace")
                patience = 0.01

    # ── What arrives ─────────────────────────────────────────────────────────────────────────

    def _on_arrival(self, _: Any = None) -> None:
        waiting = self._engine.arrivals()
        try:
            while waiting:
                with deaf():
                    self._admit(waiting.pop(0))
        finally:
            for arrival in waiting:
                arrival.close()

    def _admit(self, arrival: Arrival) -> None:
        """Tell a rank that has come up who it is; it may replace one that failed."""
        slot = self._slots[arrival.rank]
        if slot.channel is not None:
            self._drain(slot)
            self._forget(slot)
            again = arrival.environment["TORCHELASTIC_RESTART_COUNT"]
            self._job.outputs[slot.rank].feed(f"[restart {again}]\n".encode())
        slot.pid, slot.channel = arrival.pid, arrival.channel
        slot.state, slot.reply, slot.code = "coming", {}, None
        environment = {**self._environment, **arrival.environment}
        environment.setdefault("OMP_NUM_THREADS", self._threads)
        for backend in ("GLOO", "NCCL"):  # all ranks are here: nobody else needs to reach them
            environment.setdefault(f"{backend}_SOCKET_IFNAME", _LOOPBACK)
        # A store asks the name server about 127.0.0.1, and five seconds are long for no answer.
        environment.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
        with contextlib.ExitStack() as sent:
            for descriptor in arrival.descriptors.values():
                sent.callback(os.close, descriptor)
            slot.output, output = os.pipe()
            sent.callback(os.close, output)
            slot.stacks, stacks = os.pipe()
            sent.callback(os.close, stacks)
            os.set_blocking(slot.output, False)
            # Its size is fixed: a rank that cuts it short would take this process along.
            name = f"{processes.record_name(self._engine.job)}{slot.rank}"
            memory = anonymous_file(name, calls.SIZE)
            sent.callback(os.close, memory)
            slot.memory = map_file(os.dup(memory), shared=True)
            slot.reader = calls.Reader(slot.memory, slot.rank)
            own = {"output": output, "stacks": stacks, "record": memory}
            descriptors = {**own, **arrival.descriptors}
            if self._logs is not None:
                again = environment["TORCHELASTIC_RESTART_COUNT"]
                for name, file in self._logs.open(slot.rank, again).items():
                    sent.callback(os.close, file)
                    descriptors[name] = file
            start = {
                "rank": slot.rank,
                "descriptors": list(descriptors),
                "environment": environment,
                "directory": self._directory,
                "path": list(sys.path),
                "exits_on_failure": self._engine.name != "warm",
            }
            with contextlib.suppress(ConnectionError):  # it is dead: its channel says so
                slot.channel.send(start, list(descriptors.values()), _PATIENCE)
        self._selector.register(slot.output, selectors.EVENT_READ, lambda _: self._drain(slot))
        self._selector.register(slot.channel, selectors.EVENT_READ, lambda _: self._on_reply(slot))
        if self._task is not None:
            self._send_task(slot)

    def _send_task(self, slot: _Slot) -> None:
        assert self._task is not None and slot.channel is not None
        message = {
            "backend": self._task.backend,
            "do": "run",
            "job": self._jobs,
            "sizes": self._task.sizes,
            "again": self._jobs > 1,
            "last": self._last,
        }
        slot.state = "running"
        with contextlib.suppress(OSError):  # it has died: its channel says so in a moment
            slot.channel.send(message, [self._task.descriptor])

    def _on_reply(self, slot: _Slot) -> None:
        assert slot.channel is not None
        try:
            received = slot.channel.take()
        except EOFError:
            self._selector.unregister(slot.channel)
            if not slot.over:
                self._drain(slot)
                self._read_stack(slot, 0)
                slot.state = "dead"
                self._await_end(slot)
            return
        except NoMessage as error:
            self._distrust(slot, f"sent what is no message ({error}): {_INTRUDED}")
            return
        except OSError as error:
            self._distrust(slot, f"its answer could not come in: {reason(error)}")
            return
        if received is None:  # not all of it has come yet
            return
        reply, descriptors = received
        if reply.get("did") == "hello":  # a rank that was started as a program of its own
            return
        if reply.get("job") not in (0, self._jobs):  # it answers what nobody asks any more
            for descriptor in descriptors:
                os.close(descriptor)
            return
        self._drain(slot)
        try:
            if missing := _EXPECTED[reply["did"]] - reply.keys():
                raise ValueError(f"it lacks {min(missing)}")
            if descriptors:
                reply["parcel"] = Parcel(descriptors.pop(0), reply["sizes"])
        except (LookupError, TypeError, ValueError) as error:
            self._distrust(slot, f"sent what is no answer ({error}): {_INTRUDED}")
        except OSError as error:
            self._distrust(slot, f"its result could not come in: {reason(error)}")
        else:
            if (note := str(reply.get("note", ""))) not in self._job.note:  # of each, the same
                self._job.add_note(note)
            slot.reply = reply
            slot.state = reply["did"]
        for descriptor in descriptors:
            os.close(descriptor)

    def _distrust(self, slot: _Slot, why: str) -> None:
        """Hear no more from a rank whose channel says what no rank would."""
        assert slot.channel is not None
        self._selector.unregister(slot.channel)
        self._drain(slot)
        slot.state = "failed"
        slot.reply = {
            "at": time.perf_counter(),
            "kind": "NoMessage",
            "blocks": [(why, [])],
            "exit_code": "",
        }

    def _await_end(self, slot: _Slot) -> None:
        """A rank's channel has closed, so its process ends now: hear how."""
        while slot.code is None and self._engine.events.ready(0.5):
            if not self._on_event():
                break
        if slot.code == 0 and self._task is not None and self._task.may_leave:
            slot.state = "done"
            slot.reply = {"shown": None, "digest": [], "device": "CPU", "bound": [], "peak": 0}

    def _on_event(self, _: Any = None) -> bool:
        """Hear what the warm parent says; False once it is gone."""
        if self._fate:
            return False
        try:
            received = self._engine.events.take()
        except (EOFError, NoMessage):
            self._selector.unregister(self._engine.events)
            self._fate = self._engine.fate() or "The warm parent has let go of these ranks."
            return False
        if received is None:  # _await_end() has read it
            return True
        message, _ = received
        if message["did"] == "ended":
            if self._arrival is not None:  # what ended is the agent
                self._agent_ended = True
            else:
                slot = self._slots[message["index"]]
                slot.code, slot.peak = message["code"], message["peak"]
                self._job.peak_memory[slot.rank] = slot.peak
        return True

    def _drain(self, slot: _Slot) -> None:
        """Read all that the rank has printed so far; of one that never stops, enough for now."""
        for _ in range(_MOST_CHUNKS):
            data = b"" if self._logs is None else self._logs.read(slot.rank, _CHUNK)
            self._job.outputs[slot.rank].feed(data)
            if len(data) < _CHUNK:
                break  # that was all, for now
        if slot.output < 0:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_CHUNKS):
                data = os.read(slot.output, _CHUNK)
                if not data:
                    self._selector.unregister(slot.output)
                    os.close(slot.output)
                    slot.output = -1
                    return
                self._job.outputs[slot.rank].feed(data)
                if len(data) < _CHUNK:
                    return  # that was all, for now

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def _forget(self, slot: _Slot) -> None:
        for end in (slot.output, slot.channel):
            if end is not None and end != -1:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
        if slot.channel is not None:
            slot.channel.close()
            slot.channel = None
        for descriptor in (slot.output, slot.stacks):
            if descriptor >= 0:
                os.close(descriptor)
        slot.output = slot.stacks = -1
        if slot.memory is not None:
            slot.reader = slot.reader.copy()
            slot.memory.close()
            slot.memory = None

    def close(self, gracefully: bool = False) -> list[str]:
        """End all ranks and whatever they started, in bounded time.

        gracefully: ranks that handle SIGTERM may end by themselves before, for a few seconds.
        Returns a sentence for each process that could not be ended; the job's note has them, too.
        """
        with deaf():
            forked = os.getpid() != self._owner  # a fork of the notebook: the ranks are not its own
            was_closed, self.closed = self.closed or forked, True
            if was_closed:
                return []
            said = self._engine.end(gracefully, self._drain_all if gracefully else lambda: None)
            for slot in self._slots:
                self._forget(slot)
            self._selector.close()
            if self._logs is not None:
                self._logs.close()
        if self._task is not None:
            for sentence in said:
                if sentence != self._fate:
                    self._job.add_note(sentence)
        return said

    def leave(self) -> None:
        """End ranks that have done their jobs; for a few seconds they may leave as Python does."""
        if self.closed or os.getpid() != self._owner:
            self.close()
            return
        with deaf(), selectors.PollSelector() as selector:
            for slot in self._slots:
                if slot.channel is None:
                    continue
                with contextlib.suppress(OSError):
                    slot.channel.send({"do": "leave"}, patience=_TICK)
                selector.register(slot.channel, selectors.EVENT_READ, slot.channel)
                if slot.output >= 0:
                    selector.register(slot.output, selectors.EVENT_READ, None)
            here = sum(slot.channel is not None for slot in self._slots)
            until = time.monotonic() + _LEAVE
            while here and (rest := until - time.monotonic()) > 0:
                for key, _ in selector.select(rest):
                    if key.data is None:  # what they print now belongs to no job
                        if not os.read(key.fd, _CHUNK):
                            selector.unregister(key.fd)
                        continue
                    try:
                        key.data.take()
                    except (EOFError, NoMessage, OSError):
                        selector.unregister(key.data)
                        here -= 1
        self.close()

    def _drain_all(self) -> None:
        """A rank that ends by itself may print, and must not wait for room to do so."""
        if self._task is not None:  # between jobs there is nothing that could keep it
            for slot in self._slots:
                self._drain(slot)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:  # a signal's handler may have raised before that could begin
            self.close()

    def __del__(self) -> None:
        if not self.closed:
            self.close()


# What an answer holds, by what the rank did.
_EXPECTED = {
    "done": {"at", "shown", "digest", "device", "peak", "bound"},
    "failed": {"at", "kind", "blocks", "exit_code"},
}
_INTRUDED = "its program wrote to a descriptor that it did not open"
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
