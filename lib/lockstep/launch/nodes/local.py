"""The ranks of this host: their channels, their output, their records."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...base.formatting import megabytes
from ...base.machine import usable_cores
from .. import processes
from ..channel import MOST_BYTES, NoMessage
from ..engines.base import Arrival
from ..engines.supervised import Engine
from ..errors import LaunchError, reason
from ..interrupts import defer_signals
from ..logs import LogFiles
from ..oom import OomCounter
from ..payload import Parcel
from ..place import Place
from ..replies import Done, Failed, read_reply
from .base import Printed, Setting, Task
from .slot import Slot

TICK = 0.1  # seconds
_LEAVE = 5.0  # seconds for ranks to leave
_MOST_VARIABLES = MOST_BYTES - 1_000_000  # bytes, all together
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class LocalNode:
    """The ranks that `engine` starts on this host. See `Node`."""

    name = ""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.ranks: list[Slot] = []  # none before the start
        self.restarts = engine.restarts
        self.has_given_up = False
        self.why_ended = ""
        self.note = ""
        self.notes: list[str] = []
        self._task: Task | None = None
        self._logs: LogFiles | None = None
        self._oom: OomCounter | None = None  # since the last job, or this one's beginning
        self._arrival: int | None = None
        self._selector: selectors.BaseSelector = selectors.PollSelector()

    def start(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> Place:
        self._request(place, setting, selector)
        self._confirm()
        self._on_arrival()
        return self._place

    def _request(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> None:
        """Have the engine start the ranks; does not wait for that where it need not."""
        self._place, self._setting, self._selector = place, setting, selector
        last = place.first + place.count
        self.ranks = [Slot.empty(rank) for rank in range(place.first, last)]
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

    # ── A job ────────────────────────────────────────────────────────────────────────────────

    def begin(self, task: Task, outputs: Mapping[int, Printed]) -> None:
        self._task = task
        self.notes.clear()
        self._oom = self._oom or OomCounter()
        for slot in self.ranks:
            slot.begin()
            slot.printed = outputs.get(slot.rank)
            slot.feed_early()
            if slot.channel is not None:
                slot.send_task(task)

    def forget_task(self) -> None:
        self._task, self._oom = None, OomCounter()
        for slot in self.ranks:
            slot.printed = None
            slot.forget_job()

    def poll(self) -> None:
        if self._logs is not None:  # they are files, which nobody can wait for
            self.drain()

    def drain(self) -> None:
        if self._task is not None:  # what ranks print between jobs belongs to none
            for slot in self.ranks:
                self._drain(slot)

    def refresh(self) -> None:
        self.drain()
        if self._oom is not None and (why := self._oom.explains()):  # a rank's own process, too
            self.notes.append(f"meanwhile the kernel ended a process that is not a rank: {why}")
        asked = [slot for slot in self.ranks if slot.ask_for_stack()]
        for slot in asked:
            slot.read_stack(0.3)
        for slot in self.ranks:  # now: ranks that are being ended stir each other
            slot.reader = slot.reader.copy()

    def processor_time(self) -> tuple[int, ...] | None:
        return processes.processor_time(s.reader.pid for s in self.ranks if not s.over)

    def others_live(self) -> bool:
        return processes.others_live(self._engine.job, {slot.pid for slot in self.ranks})

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
        slot = self.ranks[arrival.rank - self._place.first]
        if slot.channel is not None:
            self._drain(slot)
            self._forget(slot)
            again = arrival.environment["TORCHELASTIC_RESTART_COUNT"]
            slot.feed(f"[restart {again}]\n".encode())
        start = {
            "environment": self._environment_of(arrival),
            "directory": self._setting.directory,
            "path": list(self._setting.path),
            "exits_on_failure": self._engine.ranks_exit_on_failure,
        }
        slot.connect(arrival, self._engine.job, self._logs, start)
        assert slot.channel is not None
        self._selector.register(slot.output, selectors.EVENT_READ, lambda: self._drain(slot))
        self._selector.register(slot.channel, selectors.EVENT_READ, lambda: self._on_reply(slot))
        if self._task is not None:
            slot.send_task(self._task)

    def _environment_of(self, arrival: Arrival) -> dict[str, str]:
        """Return the environment of a rank that has come up."""
        environment = {**self._environment, **arrival.environment}
        environment.setdefault("OMP_NUM_THREADS", self._threads)
        for backend in ("GLOO", "NCCL"):  # nobody but the job's own hosts needs to reach them
            variable = f"{backend}_SOCKET_IFNAME"
            environment.setdefault(variable, self._place.interface or LOOPBACK)
        # A store asks the name server about 127.0.0.1, and five seconds are long for no answer.
        environment.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
        return environment

    @defer_signals()  # descriptors come in
    def _on_reply(self, slot: Slot) -> None:
        assert slot.channel is not None
        try:
            received = slot.channel.take()
        except EOFError:
            self._on_closed(slot)
            return
        except NoMessage as error:
            self._distrust(slot, f"sent an invalid message ({error}): {_INTRUDED}")
            return
        except OSError as error:
            self._distrust(slot, f"its answer could not be received: {reason(error)}")
            return
        if received is None:  # not all of it has come yet
            return
        message, descriptors = received
        if message.get("did") == "hello":  # a rank that was started as a program of its own
            return
        if message.get("did") == "ready" and self._task is None:
            slot.state = "ready"
            return
        number = 0 if self._task is None else self._task.number
        if message.get("job") in (0, number):  # else it answers what nobody asks any more
            self._drain(slot)
            self._take_in(slot, message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _take_in(self, slot: Slot, message: dict[str, Any], descriptors: list[int]) -> None:
        """Take what a rank says of its job; removes the descriptors that it uses."""
        parcel = None
        try:
            reply = read_reply(message)
            if isinstance(reply, Done) and descriptors:
                parcel = Parcel.from_file(descriptors.pop(0), reply.sizes)
        except (LookupError, ValueError) as error:
            self._distrust(slot, f"sent an invalid answer ({error}): {_INTRUDED}")
        except OSError as error:
            self._distrust(slot, f"its result could not be received: {reason(error)}")
        else:
            if reply.note not in ("", *self.notes):  # of each rank the same
                self.notes.append(reply.note)
            slot.answer(reply, parcel)

    def _on_closed(self, slot: Slot) -> None:
        """Find out what became of a rank whose channel has closed."""
        assert slot.channel is not None
        self._selector.unregister(slot.channel)
        if not slot.over:
            self._drain(slot)
            slot.read_stack(0)
            slot.die(time.perf_counter())
            self._await_end(slot)
            if slot.code is None and not self.why_ended and not slot.cannot_act:
                self._distrust(slot, _CUT_OFF)

    def _distrust(self, slot: Slot, why: str) -> None:
        """Hear no more from a rank whose channel says what no rank would."""
        assert slot.channel is not None
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(slot.channel)
        self._drain(slot)
        slot.answer(Failed(time.perf_counter(), "NoMessage", [(why, [])], exit_code=""))

    def _await_end(self, slot: Slot) -> None:
        """A rank's channel has closed, so its process ends now: hear how."""
        while slot.code is None and self._engine.events.ready(0.5):
            if not self._on_event():
                break
        if self._oom is not None and slot.code in (None, -signal.SIGKILL):
            slot.starved = self._oom.explains()
        if slot.code == 0 and self._task is not None and self._task.may_leave:
            at = slot.ended or time.perf_counter()
            slot.answer(Done(at, shown=None, digest=[], device="CPU", peak=slot.peak, bound=[]))

    def _on_event(self) -> bool:
        """Hear what the forkserver says; False once it is gone."""
        if self.why_ended:
            return False
        try:
            received = self._engine.events.take()
        except (EOFError, NoMessage):
            self._selector.unregister(self._engine.events)
            self.why_ended = self._engine.why_ended() or "The forkserver has released these ranks."
            return False
        if received is None:  # _await_end() has read it
            return True
        message, _ = received
        if message["did"] == "ended":
            if self._arrival is not None:  # what ended is the elastic agent
                self.has_given_up = True
            else:
                slot = self.ranks[message["index"]]
                slot.exit(message["code"], message["peak"])
        return True

    def _drain(self, slot: Slot) -> None:
        if slot.drain(self._logs):
            with defer_signals():
                self._selector.unregister(slot.output)
                slot.close_output()

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def _forget(self, slot: Slot) -> None:
        for end in (slot.output, slot.channel):
            if end is not None and end != -1:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
        slot.close()

    def ask_to_leave(self) -> None:
        """Nothing: `leave` asks, and all ranks here are asked at once."""

    def leave(self) -> None:
        with selectors.PollSelector() as selector:
            here = [slot for slot in self.ranks if slot.channel is not None]
            for slot in here:
                assert slot.channel is not None
                with contextlib.suppress(OSError):
                    slot.channel.send({"do": "leave"}, patience=TICK)
                selector.register(slot.channel, selectors.EVENT_READ, (slot, True))
                if slot.output >= 0:
                    selector.register(slot.output, selectors.EVENT_READ, (slot, False))
            until = time.monotonic() + _LEAVE
            while here and (rest := until - time.monotonic()) > 0:
                for key, _ in selector.select(rest):
                    slot, is_channel = key.data
                    if not is_channel:
                        if slot.skip_output():
                            selector.unregister(key.fd)
                        continue
                    try:
                        slot.channel.take()
                    except (EOFError, NoMessage, OSError):
                        selector.unregister(slot.channel)
                        here.remove(slot)

    def ask_to_end(self, gracefully: bool) -> None:
        """Nothing: `end` asks, and all ranks here are asked at once."""

    def detach(self) -> None:
        self._hear_no_more()
        self._engine.detach()
        for slot in self.ranks:
            self._forget(slot)

    def _hear_no_more(self) -> None:
        for key in list(self._selector.get_map().values()) if self.ranks else ():
            if key.data in (self._on_event, self._on_arrival):
                self._selector.unregister(key.fileobj)

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        self._hear_no_more()
        said = self._engine.end(gracefully, meanwhile)
        for slot in self.ranks:
            self._forget(slot)
        if self._logs is not None:
            self._logs.close()
        return [sentence for sentence in said if sentence != self.why_ended]


_CUT_OFF = (
    "its process is alive, but the notebook no longer hears from it: its program has closed "
    "a file descriptor that it did not open"
)
_INTRUDED = "its program wrote to a file descriptor that it did not open"


def _refuse_too_many(environment: Mapping[str, str]) -> None:
    """Raise LaunchError where variables are longer than what is sent to a rank may be."""
    sizes = {name: len(os.fsencode(name + value)) for name, value in environment.items()}
    if (size := sum(sizes.values())) > _MOST_VARIABLES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise LaunchError(
            f"the environment variables take {megabytes(size)} MB, and ranks get "
            f"{megabytes(_MOST_VARIABLES)} MB at most; {largest} alone takes "
            f"{megabytes(sizes[largest])} MB. Write it to a file, or pass it as an argument."
        )
