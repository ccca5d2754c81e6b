"""The ranks of this host: their channels, their output, their records."""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...base.formatting import megabytes
from ...base.machine import usable_cores
from ...calls import record
from .. import processes
from ..channel import MOST_BYTES, Channel, NoMessage, anonymous_file, map_file
from ..engines.base import Arrival, Engine
from ..engines.warm import Warm
from ..errors import LaunchError, reason
from ..interrupts import defer_signals
from ..logs import LogFiles
from ..oom import OomCounter
from ..payload import Parcel
from ..place import Place
from ..worker.rank import STACK_SIGNAL
from .base import Printed, RankState, Setting, Task

_TICK = 0.1  # seconds
_LEAVE = 5.0  # seconds for ranks to leave
_CHUNK = 1 << 16
_MOST_CHUNKS = 16  # at once: a pipe holds less, and a rank may print for ever
_PATIENCE = 10.0  # seconds for a rank to take in who it is
_MOST_VARIABLES = MOST_BYTES - 1_000_000  # bytes, all together
_COMING = 30.0  # seconds for ranks in reserve that are still coming up
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class _Slot(RankState):
    """A rank, and what this process holds of it."""

    pid: int = 0
    channel: Channel | None = None
    output: int = -1
    stacks: int = -1
    memory: mmap.mmap | None = None
    early: bytes = b""  # what it printed before its first job


class LocalNode:
    """The ranks that `engine` starts on this host. See `Node`."""

    name = ""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.ranks: list[Any] = []
        self._slots: list[_Slot] = []  # none before the start
        self.restarts = engine.restarts
        self.has_given_up = False
        self.fate = ""
        self.note = ""
        self.notes: list[str] = []
        self._task: Task | None = None
        self._outputs: Mapping[int, Printed] = {}
        self._logs: LogFiles | None = None
        self._oom: OomCounter | None = None  # since the last job, or this one's beginning
        self._arrival: int | None = None
        self._selector: selectors.BaseSelector = selectors.PollSelector()

    def start(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> Place:
        if self._slots:  # prepared before, for the same place and setting
            if self._use():
                with defer_signals():
                    for key in self._selector.get_map().values():
                        selector.register(key.fileobj, selectors.EVENT_READ, key.data)
                    self._selector.close()
                    self._selector = selector
                return self._place
            self.end(False, lambda: None)
            self._engine, self.fate = Warm(), ""
        self._request(place, setting, selector)
        self._confirm()
        self._on_arrival()
        return self._place

    def _request(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> None:
        """Have the engine start the ranks; does not wait for that where it need not."""
        self._place, self._setting, self._selector = place, setting, selector
        last = place.first + place.count
        self._slots = [_Slot.empty(rank) for rank in range(place.first, last)]
        self.ranks = self._slots
        self._threads = str(max(1, usable_cores() // place.count))
        if setting.logs is not None and setting.log_folder is not None:
            self._logs = LogFiles(setting.logs, setting.log_folder)
        self._environment = {
            **os.environ,
            **setting.environment,
            processes.VARIABLE: self._engine.job,
        }
        _refuse_too_many(self._environment)
        self._place = self._engine.start(place, self._environment)

    def _confirm(self) -> None:
        self.note = self._engine.started()
        self._selector.register(self._engine.events, selectors.EVENT_READ, self._on_event)
        self._arrival = self._engine.fileno()
        if self._arrival is not None:
            self._selector.register(self._arrival, selectors.EVENT_READ, self._on_arrival)

    # ── In reserve ───────────────────────────────────────────────────────────────────────────

    def prepare(self, place: Place, setting: Setting, backend: str) -> None:
        """Start ranks that make their group and wait for a job; waits for none of that.

        Raises LaunchError, or OSError, where nothing can be started.
        """
        self._request(place, setting, selectors.PollSelector())
        self._on_arrival()
        for slot in self._slots:
            assert slot.channel is not None
            with contextlib.suppress(OSError):  # it has died: `use` finds that
                slot.channel.send({"do": "prepare", "backend": backend}, patience=_PATIENCE)

    def is_ready(self) -> bool:
        """Whether all prepared ranks have met; looks at what they have said so far."""
        self._engine.started()  # else somebody else might read that
        for key, _ in self._selector.select(0):
            key.data()
        return all(slot.state == "ready" for slot in self._slots)

    @property
    def pids(self) -> list[int]:
        """Of its ranks, as they have said it themselves."""
        return [slot.reader.pid for slot in self._slots]

    def _use(self) -> bool:
        """Whether prepared ranks can do a job."""
        assert isinstance(self._engine, Warm)
        if not self._engine.use():
            return False
        self._confirm()
        for slot, pid in zip(self._slots, self._engine.pids, strict=True):
            slot.pid = pid
        until = time.monotonic() + _COMING
        while waiting := [slot for slot in self._slots if slot.state != "ready"]:
            held = any(slot.over or _is_stopped(slot.pid) for slot in waiting)
            if held or self.fate or time.monotonic() > until:
                return False
            for key, _ in self._selector.select(_TICK):
                key.data()
        return not any(_is_stopped(slot.pid) for slot in self._slots)

    def let_go(self) -> None:
        """End prepared ranks that nobody uses; waits for nothing."""
        assert isinstance(self._engine, Warm)
        self._engine.let_go()
        for slot in self._slots:
            self._forget(slot)

    # ── A job ────────────────────────────────────────────────────────────────────────────────

    def begin(self, task: Task, outputs: Mapping[int, Printed]) -> None:
        self._task, self._outputs = task, outputs
        self.notes.clear()
        self._oom = self._oom or OomCounter()
        for slot in self._slots:
            slot.state, slot.reply, slot.parcel, slot.peak = "coming", {}, None, 0
            early, slot.early = slot.early, b""
            self._feed(slot, early)
            if slot.channel is not None:
                self._send_task(slot)

    def forget_task(self) -> None:
        self._task, self._outputs, self._oom = None, {}, OomCounter()
        for slot in self._slots:
            slot.reply, slot.parcel = {}, None

    def poll(self) -> None:
        if self._logs is not None:  # they are files, which nobody can wait for
            self.drain()

    def drain(self) -> None:
        if self._task is not None:  # what ranks print between jobs belongs to none
            for slot in self._slots:
                self._drain(slot)

    def look(self) -> None:
        self.drain()
        if self._oom is not None and (why := self._oom.explains()):  # a rank's own process, too
            self.notes.append(f"meanwhile the kernel ended a process that is no rank: {why}")
        self._ask_for_stacks()
        for slot in self._slots:  # now: ranks that are being ended stir each other
            slot.reader = slot.reader.copy()

    def processor_time(self) -> tuple[int, ...] | None:
        return processes.processor_time(s.reader.pid for s in self._slots if not s.over)

    def others_live(self) -> bool:
        return processes.others_live(self._engine.job, {slot.pid for slot in self._slots})

    def _ask_for_stacks(self) -> None:
        asked = []
        for slot in self._slots:
            slot.is_stopped = slot.state == "running" and _is_stopped(slot.pid)
            if slot.state == "running" and not slot.is_stopped:
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

    def _on_arrival(self) -> None:
        waiting: list[Arrival] = []
        try:
            with defer_signals():
                waiting += self._engine.arrivals()
            while waiting:
                with defer_signals():
                    self._admit(waiting.pop(0))
        finally:
            for arrival in waiting:
                arrival.close()

    def _admit(self, arrival: Arrival) -> None:
        """Tell a rank that has come up who it is; it may replace one that failed."""
        slot = self._slots[arrival.rank - self._place.first]
        if slot.channel is not None:
            self._drain(slot)
            self._forget(slot)
            again = arrival.environment["TORCHELASTIC_RESTART_COUNT"]
            self._feed(slot, f"[restart {again}]\n".encode())
        slot.pid, slot.channel = arrival.pid, arrival.channel
        slot.state, slot.reply, slot.code = "coming", {}, None
        environment = {**self._environment, **arrival.environment}
        environment.setdefault("OMP_NUM_THREADS", self._threads)
        for backend in ("GLOO", "NCCL"):  # nobody but the job's own hosts needs to reach them
            variable = f"{backend}_SOCKET_IFNAME"
            environment.setdefault(variable, self._place.interface or LOOPBACK)
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
            memory = anonymous_file(name, record.SIZE)
            sent.callback(os.close, memory)
            slot.memory = map_file(os.dup(memory), shared=True)
            slot.reader = record.Reader(slot.memory, slot.rank)
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
                "directory": self._setting.directory,
                "path": list(self._setting.path),
                "exits_on_failure": self._engine.ranks_exit_on_failure,
            }
            with contextlib.suppress(ConnectionError):  # it is dead: its channel says so
                slot.channel.send(start, list(descriptors.values()), _PATIENCE)
        self._selector.register(slot.output, selectors.EVENT_READ, lambda: self._drain(slot))
        self._selector.register(slot.channel, selectors.EVENT_READ, lambda: self._on_reply(slot))
        if self._task is not None:
            self._send_task(slot)

    def _send_task(self, slot: _Slot) -> None:
        assert self._task is not None and slot.channel is not None
        message = {
            "do": "run",
            "job": self._task.number,
            "backend": self._task.backend,
            "sizes": self._task.sizes,
            "again": self._task.number > 1,
            "last": self._task.last,
        }
        slot.state = "running"
        with contextlib.suppress(OSError):  # it has died: its channel says so in a moment
            slot.channel.send(message, [self._task.content.fileno()])

    @defer_signals()  # descriptors come in
    def _on_reply(self, slot: _Slot) -> None:
        assert slot.channel is not None
        try:
            received = slot.channel.take()
        except EOFError:
            self._selector.unregister(slot.channel)
            if not slot.over:
                self._drain(slot)
                self._read_stack(slot, 0)
                slot.state, slot.reply = "dead", {"at": time.perf_counter()}
                self._await_end(slot)
                if slot.code is None and not self.fate and not _is_stopped(slot.pid):
                    self._distrust(slot, _CUT_OFF)
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
        if reply.get("did") == "ready" and self._task is None:
            slot.state = "ready"
            return
        number = 0 if self._task is None else self._task.number
        if reply.get("job") not in (0, number):  # it answers what nobody asks any more
            for descriptor in descriptors:
                os.close(descriptor)
            return
        self._drain(slot)
        try:
            if missing := _EXPECTED[reply["did"]] - reply.keys():
                raise ValueError(f"it lacks {min(missing)}")
            if descriptors:
                slot.parcel = Parcel.from_file(descriptors.pop(0), reply["sizes"])
        except (LookupError, TypeError, ValueError) as error:
            self._distrust(slot, f"sent what is no answer ({error}): {_INTRUDED}")
        except OSError as error:
            self._distrust(slot, f"its result could not come in: {reason(error)}")
        else:
            if (note := str(reply.get("note", ""))) not in ("", *self.notes):  # of each, the same
                self.notes.append(note)
            slot.reply = reply
            slot.state = reply["did"]
            slot.peak = reply.get("peak", 0)
        for descriptor in descriptors:
            os.close(descriptor)

    def _distrust(self, slot: _Slot, why: str) -> None:
        """Hear no more from a rank whose channel says what no rank would."""
        assert slot.channel is not None
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(slot.channel)
        self._drain(slot)
        slot.state = "failed"
        slot.reply = {
            "did": "failed",
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
        if self._oom is not None and slot.code in (None, -signal.SIGKILL):
            slot.starved = self._oom.explains()
        if slot.code == 0 and self._task is not None and self._task.may_leave:
            slot.state = "done"
            slot.reply |= {"shown": None, "digest": [], "device": "CPU", "bound": []}

    def _on_event(self) -> bool:
        """Hear what the forkserver says; False once it is gone."""
        if self.fate:
            return False
        try:
            received = self._engine.events.take()
        except (EOFError, NoMessage):
            self._selector.unregister(self._engine.events)
            self.fate = self._engine.fate() or "The warm parent has let go of these ranks."
            return False
        if received is None:  # _await_end() has read it
            return True
        message, _ = received
        if message["did"] == "ended":
            if self._arrival is not None:  # what ended is the elastic agent
                self.has_given_up = True
            else:
                slot = self._slots[message["index"]]
                slot.code, slot.peak = message["code"], message["peak"]
        return True

    def _drain(self, slot: _Slot) -> None:
        """Read all that the rank has printed so far; of one that never stops, enough for now."""
        for _ in range(_MOST_CHUNKS):
            data = b"" if self._logs is None else self._logs.read(slot.rank, _CHUNK)
            self._feed(slot, data)
            if len(data) < _CHUNK:
                break  # that was all, for now
        if slot.output < 0:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_CHUNKS):
                data = os.read(slot.output, _CHUNK)
                if not data:
                    with defer_signals():
                        self._selector.unregister(slot.output)
                        os.close(slot.output)
                        slot.output = -1
                    return
                self._feed(slot, data)
                if len(data) < _CHUNK:
                    return  # that was all, for now

    def _feed(self, slot: _Slot, data: bytes) -> None:
        if data and slot.rank in self._outputs:
            self._outputs[slot.rank].feed(data)
        elif slot.state == "coming":
            slot.early += data

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

    def ask_to_leave(self) -> None:
        """Nothing: `leave` asks, and all ranks here are asked at once."""

    def leave(self) -> None:
        with selectors.PollSelector() as selector:
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

    def ask_to_end(self, gracefully: bool) -> None:
        """Nothing: `end` asks, and all ranks here are asked at once."""

    def detach(self) -> None:
        """End ranks that have done their last job; the next job waits for that."""
        assert isinstance(self._engine, Warm)
        self._hear_no_more()
        self._engine.detach()
        for slot in self._slots:
            self._forget(slot)

    def _hear_no_more(self) -> None:
        for key in list(self._selector.get_map().values()) if self._slots else ():
            if key.data in (self._on_event, self._on_arrival):
                self._selector.unregister(key.fileobj)

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        self._hear_no_more()
        said = self._engine.end(gracefully, meanwhile)
        for slot in self._slots:
            self._forget(slot)
        if self._logs is not None:
            self._logs.close()
        return [sentence for sentence in said if sentence != self.fate]


# What an answer holds, by what the rank did.
_EXPECTED = {
    "done": {"at", "shown", "digest", "device", "peak", "bound"},
    "failed": {"at", "kind", "blocks", "exit_code"},
}
_CUT_OFF = (
    "its process lives, but the notebook hears no more of it: its program has closed a descriptor "
    "that it did not open"
)
_INTRUDED = "its program wrote to a descriptor that it did not open"


def _refuse_too_many(environment: Mapping[str, str]) -> None:
    """Raise LaunchError where variables are longer than what is sent to a rank may be."""
    sizes = {name: len(os.fsencode(name + value)) for name, value in environment.items()}
    if (size := sum(sizes.values())) > _MOST_VARIABLES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise LaunchError(
            f"the variables of the environment take {megabytes(size)} MB, and ranks get "
            f"{megabytes(_MOST_VARIABLES)} MB at most; {largest} alone takes "
            f"{megabytes(sizes[largest])} MB. Write it to a file, or pass it as an argument."
        )


def _is_stopped(pid: int) -> bool:
    """Whether a process cannot act: it has ended, or somebody has stopped it."""
    seen = processes.status(pid)
    return seen is None or seen.state in "TtZX"
