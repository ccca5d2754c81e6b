"""The agent of a host: starts, watches and ends ranks there for a notebook elsewhere.

`lockstep agent TICKET` dials in at the notebook that wrote that file of `Credentials`. The agent is
a `LocalNode` with a `Transport`: what that hears of its ranks it passes on; what it is told to do
it does. When the notebook goes, or the agent, its ranks go.
"""

from __future__ import annotations

import contextlib
import os
import platform
import selectors
import socket
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from ..calls.record import Reader
from .channel import NoMessage, anonymous_file, in_turn
from .engines.supervised import forkserver
from .engines.warm import Warm
from .errors import LaunchError, refusal
from .logs import Logs
from .nodes.base import RankState, Setting, Task, levels
from .nodes.credentials import Credentials
from .nodes.local import LocalNode
from .nodes.tls import trust
from .nodes.transport import Transport, prove
from .place import Place
from .run import gpu_count

_TICK = 0.1  # seconds between two looks at the records
_BEAT = 1.0  # seconds after which the agent of a job says that it is there
_GIVEN = "CUDA_VISIBLE_DEVICES"  # how a queue says which GPUs
_MOST_PENDING = 8 << 20  # bytes that the notebook has not taken; ranks that print more wait


def serve(path: Path) -> None:
    """Work for the notebook that wrote the file of credentials at `path` until that lets go.

    Raises LaunchError where there is no such notebook, or it does not let this agent in.
    """
    credentials = Credentials.read(path)
    host, port = credentials.address
    forkserver.wake()  # it imports torch meanwhile
    hello: dict[str, Any] = {"did": "hello", "levels": levels()}
    hello |= {"gpus": gpu_count(), "cores": os.cpu_count() or 1}
    if _GIVEN in os.environ:
        hello["given"] = f"{_GIVEN}={os.environ[_GIVEN]}"
    try:
        tls = trust(credentials.certificate) if credentials.certificate else None
        transport = Transport(socket.create_connection(credentials.address, timeout=10), tls)
        if not prove(transport, credentials.key, dialled=True):
            raise LaunchError(
                f"whoever listens at {host}:{port} does not know the key of the ticket"
            )
    except (OSError, EOFError, NoMessage) as error:
        raise LaunchError(
            f"no notebook waits for this agent at {host}:{port} ({error}). Is the notebook "
            "that wrote the ticket still running, does it wait for more agents, and can this "
            "host reach it?"
        ) from error
    name = os.environ.get("SLURMD_NODENAME") or platform.node() or transport.address
    transport.post({**hello, "host": name, "number": int(os.environ.get("SLURM_NODEID", 0))})
    print(f"the agent on {name} works for the notebook at {host}:{port}", flush=True)
    _Agent(transport).serve()
    print("the notebook has let go of it", flush=True)


class _Sent:
    """Remembers what was said of a rank last, so that only news is sent."""

    def __init__(self) -> None:
        self.state: Any = None
        self.header = b""
        self.sum: int | None = None  # of the record's content; None: it must be sent again


class _LetGo(Exception):
    """The notebook is gone."""


@contextlib.contextmanager
def _reaching_the_notebook() -> Iterator[None]:
    """Raise _LetGo for what fails here: it fails because the notebook is gone."""
    try:
        yield
    except (EOFError, NoMessage, OSError) as error:
        raise _LetGo from error


class _Printed:
    def __init__(self, transport: Transport, rank: int):
        self._transport, self._rank = transport, rank

    def feed(self, data: bytes) -> None:
        with _reaching_the_notebook():
            self._transport.post({"did": "printed", "rank": self._rank}, data)


class _Agent:
    def __init__(self, transport: Transport):
        self._transport = transport
        self._selector = selectors.DefaultSelector()
        self._selector.register(transport, selectors.EVENT_READ, self._on_message)
        self._is_at_work = False  # ranks do a job
        self._node: LocalNode | None = None
        self._sent: dict[int, _Sent] = {}
        self._task: Task | None = None
        self._refreshed = self._spoke = 0.0

    def serve(self) -> None:
        try:
            while True:
                self._turn()
        except _LetGo:
            return
        except Exception as error:  # a defect, or a host without files or memory: never in silence
            with contextlib.suppress(_LetGo):
                self._post({"did": "failed", "why": f"{type(error).__name__}: {error}"})
            raise
        finally:
            if self._node is not None:
                self._node.end(False, lambda: None)
            forkserver.close()
            self._transport.close()

    def _turn(self) -> None:
        if self._is_at_work:
            assert self._node is not None
            wanted = selectors.EVENT_READ | (
                selectors.EVENT_WRITE if self._transport.pending else 0
            )
            self._selector.modify(self._transport, wanted, self._on_message)
            for key in in_turn(self._selector, _TICK):
                key.data()
            if self._is_at_work:
                self._node.poll()
                self._tell()
        elif self._transport.ready(_BEAT):  # what ranks do between jobs the next job learns
            self._on_message()
        while self._transport.pending > _MOST_PENDING:
            self._transport.wait_to_send(_TICK)
            self._flush()
        # Between jobs nobody reads what it says, and a connection that is full for long is taken
        # for one whose other end is gone. That the notebook's host has gone TCP finds (keep-alive).
        is_silent = time.monotonic() - self._spoke > _BEAT
        if self._is_at_work and is_silent and not self._transport.pending:
            self._post({"did": "beat"})

    def _post(self, message: dict[str, Any], *attached: Any) -> None:
        self._spoke = time.monotonic()
        with _reaching_the_notebook():
            self._transport.post(message, *attached)

    def _flush(self) -> None:
        with _reaching_the_notebook():
            self._transport.flush()

    def _take_message(self) -> tuple[dict[str, Any], list[memoryview]] | None:
        with _reaching_the_notebook():
            return self._transport.take_message()

    # ── What it is told to do ────────────────────────────────────────────────────────────────

    def _on_message(self) -> None:
        self._flush()
        while (received := self._take_message()) is not None:
            message, attached = received
            do = message["do"]
            if do == "clock":
                self._post({"did": "clock", "now": time.perf_counter()})
            elif do == "start":
                self._start(message)
            elif self._node is None:
                self._post({"did": "over", "said": []})  # of ranks that could not be started
            elif do == "begin":
                self._begin(message, attached[0])
            elif do == "forget":
                self._is_at_work = False
                self._node.forget_task()
                self._task = None
            elif do == "refresh":
                self._node.refresh()
                self._tell(whole=True)
                self._post({"did": "refreshed"})
            elif do == "leave":
                self._node.leave()
                self._post({"did": "left"})
            else:
                self._end(message["gracefully"])

    def _start(self, message: dict[str, Any]) -> None:
        said = message["setting"]
        setting = Setting(
            said["environment"],
            said["directory"],
            said["path"],
            None if said["logs"] is None else Logs(**said["logs"]),
            None if said["log_folder"] is None else Path(said["log_folder"]),
        )
        place = Place(**{**message["place"], "master": tuple(message["place"]["master"])})
        self._node = LocalNode(Warm())
        try:
            place = replace(place, interface=_interface(self._transport.address))
            place = self._node.start(place, setting, self._selector)
        except (LaunchError, OSError) as error:
            why = refusal(error) if isinstance(error, OSError) else error
            self._node.end(False, lambda: None)
            self._node = None
            self._post({"did": "refused", "why": str(why)})
            return
        self._sent = {rank.rank: _Sent() for rank in self._node.ranks}
        self._post({"did": "started", "master": place.master, "note": self._node.note})

    def _begin(self, message: dict[str, Any], content: memoryview) -> None:
        assert self._node is not None
        file = open(anonymous_file("payload"), "wb")  # noqa: SIM115
        file.write(content)
        file.flush()
        self._task = Task(file, **message["task"])
        self._sent = {rank.rank: _Sent() for rank in self._node.ranks}
        ranks = [rank.rank for rank in self._node.ranks]
        self._node.begin(self._task, {rank: _Printed(self._transport, rank) for rank in ranks})
        self._is_at_work = True

    def _end(self, gracefully: bool) -> None:
        assert self._node is not None
        node, self._node, self._is_at_work = self._node, None, False
        said = node.end(gracefully, node.drain)
        self._post({"did": "over", "said": said})

    # ── What it tells ────────────────────────────────────────────────────────────────────────

    def _tell(self, whole: bool = False) -> None:
        """Pass on what is new; of the records at most every tenth of a second.

        whole: the records, too, as they are now.
        """
        assert self._node is not None
        now = time.monotonic()
        is_due = now - self._refreshed >= _TICK
        moved = False
        for rank in self._node.ranks:
            sent = self._sent[rank.rank]
            state = (rank.state, rank.code, rank.stack, rank.is_stopped, id(rank.reply))
            if state != sent.state or is_due or whole:
                moved |= self._tell_record(rank, sent, whole or state != sent.state)
            if state != sent.state:
                sent.state = state
                self._tell_state(rank)
        if is_due or whole:
            self._refreshed = now
            self._tell_node(None if moved else self._node.processor_time())

    def _tell_node(self, used: tuple[int, ...] | None) -> None:
        assert self._node is not None
        is_stalled = used is not None and any(rank.reader.waits for rank in self._node.ranks)
        others = is_stalled and self._node.others_live()
        said = {"why_ended": self._node.why_ended, "notes": self._node.notes, "others": others}
        self._post({"did": "node", "used": used, **said})

    def _tell_state(self, rank: RankState) -> None:
        if rank.state == "dead":
            self._tell_node(None)  # why comes first: with the last rank's end the job is judged
        message = {"did": "rank", **rank.report()}
        self._post(message, *([] if rank.parcel is None else [rank.parcel.memory]))

    def _tell_record(self, rank: RankState, sent: _Sent, whole: bool) -> bool:
        """Pass on its record; returns whether it has entered or left a call since the last time.

        As long as it does its header is enough; its calls follow when it stands still.
        """
        reader: Reader = rank.reader
        header = reader.header
        moved = header != sent.header
        if moved and not whole:
            sent.header, sent.sum = header, None
            self._post({"did": "record", "rank": rank.rank, "header": header, "places": None})
            return True
        sections = reader.sections()
        content = 0
        for _, data in sections:
            content = zlib.crc32(data, content)
        if content != sent.sum or moved:
            sent.header, sent.sum = header, content
            places = [place for place, _ in sections]
            message = {"did": "record", "rank": rank.rank, "header": header, "places": places}
            self._post(message, *(data for _, data in sections))
        return moved


def _interface(address: str) -> str:
    """The name of the network interface that has an address; "" where none is found."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return ""
