"""The ranks of other hosts: each has an agent, which dials in and does there what it is told."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ...base.formatting import printable, ranks_text
from ...calls.record import Reader
from ..channel import NoMessage
from ..errors import LaunchError, reason
from ..live import Notice
from ..outcome import Plan
from ..place import Place
from ..processes import GRACE, LAST_MOMENT
from . import tls
from .base import Hosts, Printed, RankState, Setting, Task, levels
from .credentials import Credentials, remove
from .transport import Transport, prove

_SILENCE = 10.0  # seconds without a word, after which an agent is lost
_PATIENCE = 60.0  # seconds for ranks to be started, on a busy host, too
_STALE = 0.5  # seconds for which it holds what an agent has said of the processor
_PINGS = 8


@dataclass(eq=False)
class _Host:
    """Another host, as it greeted. ahead: of its clock, in seconds."""

    name: str
    order: tuple[int, str, bytes]  # in which hosts get their ranks
    transport: Transport
    gpus: int
    given: str  # which GPUs a queue has given it, as a variable of its environment
    cores: int
    ahead: float
    lost: str = ""  # why nothing more is heard of it


class Nodes(Hosts):
    """Other hosts that run ranks for this notebook, by an agent on each that connects to it.

    >>> nodes = lockstep.Nodes(2, address="10.0.0.1")
    >>> nodes.command  # run this on each host, in this environment
    >>> nodes.wait()
    >>> lockstep.torchrun(train, nproc_per_node=4, on=nodes)

    count: how many hosts; ranks go to them in the order of their names. address: of this host, at
    which the others reach it; the loopback by default. Its connections are authenticated by a key
    in a file that only you can read and, beyond loopback, encrypted. The process groups' own
    connections are neither: use them in a network that you trust.
    Raises LaunchError where nothing can listen at that address, or nothing can be encrypted.
    """

    _renewal = "Create new Nodes, and start their agents."
    each_has = "one of these hosts has"

    def __init__(self, count: int, *, address: str = "127.0.0.1"):
        if count < 1:
            raise LaunchError(f"the number of nodes must be 1 or more, not {count}")
        self.count = count
        self._hosts: list[_Host] = []
        self._busy = threading.Lock()
        self._tls, certificate = None, ""
        if tls.is_needed(address):
            self._tls, certificate = tls.certificate()
        try:
            self._listener = socket.create_server((address, 0))
        except OSError as error:
            raise LaunchError(f"cannot listen at {address}: {reason(error)}") from None
        self._credentials = Credentials.new((address, self._listener.getsockname()[1]), certificate)
        self._path, claim = self._credentials.write()
        self._end = weakref.finalize(
            self, _let_go, os.getpid(), self._listener, self._hosts, self._path, claim
        )

    @property
    def address(self) -> str:
        """Host and port at which this process listens."""
        host, port = self._credentials.address
        return f"{host}:{port}"

    @property
    def names(self) -> list[str]:
        """The names of the hosts that are here."""
        return [host.order[1] for host in self._hosts]

    @property
    def command(self) -> str:
        """The command that is to be run on each host."""
        return f"lockstep agent {shlex.quote(str(self._path))}"

    def wait(self, timeout: float = 120.0, *, show: bool = True) -> Nodes:
        """Wait until all agents have connected; meanwhile show the command that starts them.

        Raises LaunchError after `timeout` seconds, and for an agent of other versions; in both
        cases others may still come, and wait() may be called again.
        """
        until = time.monotonic() + timeout
        notice = Notice(show)
        while len(self._hosts) < self.count:
            notice.say(
                f"{len(self._hosts)} of {self.count} agents are here. Run on each host: "
                f"{self.command}"
            )
            if not self.admit(until - time.monotonic()):
                here = f" ({', '.join(self.names)})" if self._hosts else ""
                raise LaunchError(
                    f"{len(self._hosts)} of {self.count} agents{here} have come within "
                    f"{timeout:g} s. Run on each other host: {self.command}; then call wait() "
                    "again"
                )
        self.settle()
        notice.say(f"agents are on {', '.join(self.names)}")
        return self

    def admit(self, patience: float) -> bool:
        """Wait for a caller, and let in an agent; whether one has called within `patience` s.

        Raises LaunchError for an agent of other versions.
        """
        self._listener.settimeout(max(patience, 0.001))
        try:
            caller, _ = self._listener.accept()
        except TimeoutError:
            return False
        try:
            self._let_in(caller)
        except LaunchError:
            raise
        except (OSError, EOFError, NoMessage, LookupError, TypeError, ValueError):
            pass  # it is no agent
        return True

    def settle(self) -> None:
        """Give the hosts their order, once all agents are here."""
        self._hosts.sort(key=lambda host: host.order)  # whoever came first

    def _let_in(self, caller: socket.socket) -> None:
        """Let in one who knows the key; nobody else's words are heard."""
        try:
            transport = Transport(caller, self._tls)
        except BaseException:
            caller.close()
            raise
        try:
            if not prove(transport, self._credentials.key, dialled=False):
                return
            hello = transport.receive(_PATIENCE)[0]
            name = printable(str(hello["host"]))
            _refuse_others(f"{name} ({transport.peer})", dict(hello.get("levels", {})))
            gpus, given = int(hello["gpus"]), printable(str(hello.get("given", "")))
            cores = int(hello["cores"])
            order = (int(hello["number"]), name, ip_address(transport.peer).packed)
            called = f"{name} ({transport.peer})"
            ahead = _clock_ahead(transport)
            self._hosts.append(_Host(called, order, transport, gpus, given, cores, ahead))
            transport = None  # type: ignore[assignment]
        finally:
            if transport is not None:
                transport.close()

    def count_gpus(self) -> int:
        self._all_here()
        return min(host.gpus for host in self._hosts)

    def count_cores(self) -> int:
        self._all_here()
        return min(host.cores for host in self._hosts)

    @property
    def is_lost(self) -> bool:
        return any(host.lost for host in self._hosts)

    def take(self, plan: Plan, setting: Setting) -> list[RemoteNode]:
        gpus = plan.each if plan.backend == "nccl" else ()
        self._all_here()
        for host, least in zip(self._hosts, gpus, strict=False):
            if host.gpus < least:
                given = f", although it was given {host.given}" if host.given else ""
                raise LaunchError(
                    f"PyTorch can use {host.gpus or 'no'} GPU{'s' * (host.gpus != 1)} on "
                    f"{host.name}{given}, and NCCL needs {least} there. Is PyTorch built for "
                    "these GPUs, and is the driver loaded? With --backend gloo the same "
                    "calls run on the CPU."
                )
        if lost := next((host for host in self._hosts if host.lost), None):
            raise LaunchError(f"{lost.lost} {self._renewal}")
        if not self._busy.acquire(blocking=False):
            raise LaunchError(
                "these nodes are busy: they run one job, or one World, at a time. Close the World, "
                "or wait for the thread that uses them"
            )
        left = iter(range(len(self._hosts), 0, -1))

        def done() -> None:
            if next(left) == 1:
                self._busy.release()

        return [RemoteNode(host, done, self.why_lost) for host in self._hosts]

    def why_lost(self) -> str:
        """Say more where an agent is lost; begins with a space, or is empty."""
        return ""

    def _all_here(self) -> None:
        if len(self._hosts) < self.count:
            raise LaunchError(
                f"{len(self._hosts)} of {self.count} agents are here. Run on each host: "
                f"{self.command}; then call wait()"
            )

    def close(self) -> None:
        """Let go of the agents, which end, and remove the file of credentials."""
        self._end()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        here = ", ".join(host.name for host in self._hosts) or "none yet"
        if len(self._hosts) < self.count:
            return f"<Nodes: {self.count} · agents: {here} · on each host: {self.command}>"
        return f"<Nodes: {self.count} · agents: {here}>"


def _let_go(
    owner: int, listener: socket.socket, hosts: list[_Host], path: Path, claim: int
) -> None:
    if os.getpid() != owner:  # a fork of the notebook
        return
    listener.close()
    for host in hosts:
        host.transport.close()
    hosts.clear()
    remove(path)
    os.close(claim)


def _refuse_others(called: str, theirs: Mapping[str, str]) -> None:
    """Raises LaunchError where a host has other versions than this one."""
    other = [
        f"{name} {printable(theirs.get(name, 'of another version'))}, here {own}"
        for name, own in levels().items()
        if theirs.get(name) != own
    ]
    if other:
        raise LaunchError(
            f"the agent on {called} was refused, because all hosts must have the same "
            f"versions: {'; '.join(other)}. Start it in the environment of this notebook"
        )


def _clock_ahead(transport: Transport) -> float:
    """Return by how many seconds a host's clock is ahead, by the quickest answer (Cristian)."""
    found = []
    for _ in range(_PINGS):
        asked = time.perf_counter()
        transport.post({"do": "clock"})
        while (answer := transport.receive(_PATIENCE)[0])["did"] != "clock":
            pass
        came, now = time.perf_counter(), answer["now"]
        found.append((came - asked, now - (asked + came) / 2))
    return float(min(found)[1])


class RemoteNode:
    """The ranks of another host, by its agent. See `Node`."""

    restarts = has_given_up = False

    def __init__(self, host: _Host, done: Callable[[], None], why_lost: Callable[[], str]):
        self._host = host
        self._why_lost = why_lost
        self._done: Callable[[], None] | None = done
        self.ranks: list[RankState] = []
        self.note = self._trouble = ""
        self.notes: list[str] = []
        self._outputs: Mapping[int, Printed] = {}
        self._answer: dict[str, Any] = {}
        self._selector: selectors.BaseSelector | None = None
        self._used: tuple[int, ...] | None = None
        self._others_live = False
        self._used_at = self._heard_at = 0.0

    @property
    def name(self) -> str:
        return self._host.name

    @property
    def why_ended(self) -> str:
        return self._host.lost or self._trouble

    def start(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> Place:
        if place.node == 0:
            place = replace(place, master=(self._host.transport.peer, 0))
        last = place.first + place.count
        self.ranks = [RankState.empty(rank) for rank in range(place.first, last)]
        selector.register(self._host.transport, selectors.EVENT_READ, self._on_message)
        self._selector = selector
        logs, folder = setting.logs, setting.log_folder
        said = {
            "environment": dict(setting.environment),
            "directory": setting.directory,
            "path": list(setting.path),
            "logs": None if logs is None else {**asdict(logs), "log_dir": None},
            "log_folder": None if folder is None else str(folder),
        }
        self._post({"do": "start", "place": asdict(place), "setting": said})
        answer = self._await({"started", "refused"}, _PATIENCE)
        if answer is None:
            raise LaunchError(self.why_ended)
        if answer["did"] == "refused":
            raise LaunchError(f"on {self._host.name}: {answer['why']}")
        self.note = answer["note"]
        host, port = answer["master"]
        return replace(place, master=(host, port))

    def begin(self, task: Task, outputs: Mapping[int, Printed]) -> None:
        self._outputs = outputs
        self.notes = []
        self._heard_at, self._used = time.monotonic(), None
        for rank in self.ranks:
            rank.begin("running")
        told = {name: value for name, value in vars(task).items() if name != "content"}
        file = task.content.fileno()
        self._post({"do": "begin", "task": told}, os.pread(file, os.fstat(file).st_size, 0))
        while self._host.transport.pending and not self._host.lost:
            self._host.transport.wait_to_send(0.1)
            self._on_message()
            self.poll()

    def forget_task(self) -> None:
        self._outputs = {}
        for rank in self.ranks:
            rank.forget_job()
        if self._done is not None:
            self._post({"do": "forget"})

    def poll(self) -> None:
        if not self._host.lost:
            with contextlib.suppress(OSError):  # who is gone is heard to be
                self._host.transport.flush()
            if time.monotonic() - self._heard_at > _SILENCE:
                self._lose(f"nothing was heard from it for {_SILENCE:g} s")

    def drain(self) -> None:
        self._on_message()

    def refresh(self) -> None:
        self._post({"do": "refresh"})
        self._await({"refreshed"}, _SILENCE)

    def others_live(self) -> bool:
        return self._others_live

    def processor_time(self) -> tuple[int, ...] | None:
        return self._used if time.monotonic() - self._used_at < _STALE else None

    # ── What it hears ────────────────────────────────────────────────────────────────────────

    def _post(self, message: dict[str, Any], *attached: Any) -> None:
        with contextlib.suppress(OSError):  # who is gone is heard to be
            self._host.transport.post(message, *attached)

    def _on_message(self) -> None:
        try:
            while (
                not self._host.lost
                and (received := self._host.transport.take_message()) is not None
            ):
                self._heard_at = time.monotonic()
                self._take_in(*received)
        except EOFError:
            self._lose("its connection was closed: the agent was ended, or its host went down")
        except (NoMessage, LookupError, TypeError, ValueError) as error:
            self._lose(f"it sent what no agent sends ({type(error).__name__}: {error})")

    def _lose(self, why: str) -> None:
        who = ranks_text(rank.rank for rank in self.ranks)
        self._host.lost = f"The agent on {self._host.name} is lost: {why}. Lost with it: {who}."
        self._host.lost += self._why_lost()
        self._forget()

    def _await(self, kinds: set[str], patience: float) -> dict[str, Any] | None:
        """Return the agent's answer; None when it does not come, and then the agent is lost."""
        until = time.monotonic() + patience
        self._answer = {}
        while not self._host.lost and self._answer.get("did") not in kinds:
            with contextlib.suppress(OSError):
                self._host.transport.flush()
            if self._host.transport.ready(0.01 if self._host.transport.pending else 0.1):
                self._on_message()
            elif time.monotonic() > until:
                self._lose(f"it did not answer within {patience:g} s")
        return None if self._host.lost else self._answer

    def _take_in(self, message: dict[str, Any], attached: list[memoryview]) -> None:
        did = message["did"]
        if did == "printed":
            if message["rank"] in self._outputs:
                self._outputs[message["rank"]].feed(bytes(attached[0]))
        elif did == "node":
            used, self._others_live = message["used"], message["others"]
            self._used = None if used is None else tuple(used)
            self._used_at = time.monotonic()
            self.notes = list(message["notes"])
            if message["why_ended"]:
                self._trouble = f"On {self._host.name}: {message['why_ended']}"
        elif did == "record":
            rank = self._rank(message)
            places = message["places"]
            if places is None:
                sections = rank.reader.sections()
            else:
                sections = list(zip(places, map(bytes, attached), strict=True))
            rank.reader = Reader.from_sections(
                message["header"], sections, rank.rank, self._host.ahead, places is not None
            )
        elif did == "rank":
            result = attached[0] if attached else None
            self._rank(message).update(message, result, self._host.ahead)
        elif did == "failed":
            self._lose(f"it has failed ({printable(str(message['why']))})")
        elif did != "beat":
            self._answer = message

    def _rank(self, message: dict[str, Any]) -> RankState:
        return self.ranks[message["rank"] - self.ranks[0].rank]

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def ask_to_leave(self) -> None:
        self._post({"do": "leave"})

    def leave(self) -> None:
        self._await({"left"}, GRACE + LAST_MOMENT + _SILENCE)

    def detach(self) -> None:
        self.end(False, lambda: None)

    def ask_to_end(self, gracefully: bool) -> None:
        if self._selector is not None:
            self._post({"do": "end", "gracefully": gracefully})

    def end(self, gracefully: bool, meanwhile: Callable[[], None]) -> list[str]:
        said: list[str] = []
        if self._selector is not None and not self._host.lost:
            answer = self._await({"over"}, GRACE + LAST_MOMENT + _SILENCE)
            said = [self._host.lost] if answer is None else [str(one) for one in answer["said"]]
        self._forget()
        if self._done is not None:
            self._done()
            self._done = None
        return [f"on {self._host.name}: {one}" for one in said]

    def _forget(self) -> None:
        if self._selector is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._host.transport)
            self._selector = None
