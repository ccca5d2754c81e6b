"""NCCL's calls, as PyTorch's own flight recorder has them: nothing of ours runs in a call.

The recorder is on in every program, and costs a call nothing that could be measured. A thread looks
a few times a second whether NCCL's calls go on. Where they do not, and now and then where they do,
it copies what is new into the call record; so does the end of a job. Between two copies PyTorch
keeps the newest entries (2000, or what the program has asked for); of more, the older ones are
counted as dropped.

PyTorch records a call after its communicator has been made, for which the first call of a group
waits in C++, and nothing of a synchronization with the GPU. So the thread looks at where the main
thread is, too: in which function of `torch.distributed` it stands, and whether it stands still and
keeps its processor busy, as it does while it waits for its GPU.

PyTorch counts a collective that is captured, and does not record it; it is done in each replay of
its graph, which PyTorch does not record either. So captures and replays are noted here, and calls
are numbered without those that were captured.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
import time
from _thread import start_new_thread
from builtins import id, len, sum, tuple, type
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pickle import loads
from threading import get_ident
from time import clock_gettime, perf_counter, perf_counter_ns, time_ns
from types import FrameType
from typing import Any, TypeAlias
from weakref import ref

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ...calls.flight import COALESCED, PARTS, Recorded, recorded
from ...calls.record import ANY_SOURCE, POINT_TO_POINT, SAME_SIZE, Group, replay
from .record_writer import CallKind
from .recorder import Recorder

_Entry: TypeAlias = dict[str, Any]
_key_of = object.__hash__  # as id(), of which programs can hear
_Key: TypeAlias = tuple[int, ...]
_LOOK = 0.25  # seconds between two looks
_COPY = 2.0  # seconds at most between two copies while calls go on
_SHARE = 40  # a copy may take this part of the time: the next one comes so many times as late
_SPINS = 0.2  # a thread that waits for its GPU uses at least this part of a processor
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
# What a program sets that wants to read the recorder itself.
_SET = {
    *_SIZES,
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_DUMP_TEMP_FILE",
}
# Functions of torch.distributed, and their arguments.
_OTHER_NAMES = {"isend": "send", "irecv": "recv"}
_ALL = "all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single"
_ROOTED = "broadcast", "reduce", "gather", "scatter", "reduce_scatter", "reduce_scatter_tensor"
_OPERATIONS = {*_ALL, *_ROOTED, *POINT_TO_POINT, "barrier"}
_TENSORS = ("tensor", "input_tensor", "input", "input_tensor_list", "input_list")
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_GPU = torch.device("cuda")


def is_recorded() -> bool:
    """Return whether PyTorch records NCCL's calls in this process."""
    size = next((os.environ[name] for name in _SIZES if name in os.environ), "")
    return function("_dump_nccl_trace") is not None and size.strip() != "0"


def function(name: str) -> Callable[..., Any] | None:
    """A function of PyTorch's that only its builds with NCCL have."""
    return getattr(torch._C._distributed_c10d, name, None)


@dataclass(frozen=True)
class _Newest:
    """A group's newest call in the record. number: of a collective, as PyTorch counts, from 1."""

    operation: str
    peer: int | None
    number: int
    place: int


class NcclCalls:
    """Copies NCCL's calls into this process's record."""

    def __init__(
        self,
        recorder: Recorder,
        rank: int,
        describe: Callable[..., tuple[int, Group]],
        name_groups: Callable[[FrameType | None], None],
    ):
        """To be made in the main thread. rank: this process's. describe: the record's number for
        the group of a name and of ranks, and what it is, by where the main thread is. name_groups:
        to be called at each look, with that.
        """
        self._recorder, self._rank = recorder, rank
        self._describe, self._name_groups = describe, name_groups
        self._lock = threading.RLock()
        self._next = 0  # the entry that PyTorch writes next
        self._pending: dict[int, list[int]] = {}  # entries that are not done: their places
        self._parts: dict[_Key, list[int]] = {}  # they, by what a batch has in common
        self._uneven: dict[int, list[Recorded]] = {}  # by group: parts of a call that is to come
        self._newest: dict[int, _Newest] = {}  # by the record's number of a group
        # Of calls that PyTorch has not yet: by group, operation and place.
        self._stood_in: dict[int, tuple[str, int]] = {}
        self._reopened = 0  # the place of a call in which the main thread stands; 0: of none
        self._messages: dict[int, int] = {}  # by group: how many were recorded
        self._begun: dict[str, int] = {}  # by group: PyTorch's count when a capture began
        # By group: PyTorch's count before and after each capture.
        self._captured: dict[str, list[tuple[int, int]]] = {}
        # By key: a graph that holds collectives, and what its replays are called.
        self._graphs: dict[int, tuple[ref[Any], list[CallKind]]] = {}
        self._captures = 0
        self._replays: deque[tuple[float, list[CallKind]]] = deque()  # not in the record yet
        self._status: Any = None
        self._mark: Any = None  # where the main thread was
        self._used = 0.0  # seconds of a processor that it had used then
        self._looked = self._copied = perf_counter()
        self._took = 0.0
        self._clock = time.pthread_getcpuclockid(get_ident())
        self._state = _thread_state()

    def watch(self) -> None:
        """Begin to look, in a thread of its own, which Python's `threading` does not know."""
        with contextlib.suppress(RuntimeError):  # no more threads: the job's end sees the calls
            self._recorder.own_threads.add(start_new_thread(self._look_on, ()))

    def _look_on(self) -> None:
        pause = threading.Lock()
        pause.acquire()
        while True:
            pause.acquire(timeout=_LOOK)
            try:
                with self._lock:
                    self._look()
            except Exception:  # such as a GPU that is lost: its program is told
                self._recorder.doubt()
                return

    def _look(self) -> None:
        now = perf_counter()
        status = _dump(with_calls=False)["pg_status"]
        goes_on, self._status = status != self._status, status
        since = now - self._copied
        copies = since >= _SHARE * self._took and (not goes_on or since >= _COPY)
        goes_on = (copies and self.copy()) or goes_on
        frame = self._frame()
        self._name_groups(frame)
        mark = frame and (id(frame), frame.f_lasti)
        used = clock_gettime(self._clock)
        still = not goes_on and mark is not None and mark == self._mark
        spins = used - self._used >= _SPINS * (now - self._looked)
        self._mark, self._used, self._looked = mark, used, now
        if goes_on:
            self._recorder.moved()
        if not still and self._reopened:
            self._recorder.end_queued(self._reopened)
            self._reopened = 0
        if copies or not still:
            place = self._blocked_in(frame) if still else 0
            self._recorder.stand(still and spins, place)

    # ── What PyTorch does not record ─────────────────────────────────────────────────────────

    def begin_capture(self) -> None:
        self._begun = _counts()

    def end_capture(self, graph: Any) -> None:
        """Note what was captured since."""
        kinds = []
        for name, count in _counts().items():
            begun = self._begun.get(name, count)
            if count > begun:
                self._captured.setdefault(name, []).append((begun, count))
                group, _ = self._describe(name, _ranks_of(name), None)
                operation = replay(self._captures, count - begun)
                kinds.append(self._recorder.kind(operation, group, queued=True))
        self._captures += 1
        if kinds:
            key = _key_of(graph)
            self._graphs[key] = ref(graph, lambda _: self._graphs.pop(key, None)), kinds

    def replay(self, graph: Any) -> None:
        """Note that a graph is replayed; the thread writes it into the record."""
        known = self._graphs.get(_key_of(graph))
        if known is not None and known[0]() is graph:
            self._replays.append((perf_counter(), known[1]))

    def _take_replays(self) -> bool:
        """Write down what was replayed; returns whether anything was."""
        found = bool(self._replays)
        while self._replays:
            at, kinds = self._replays.popleft()
            for kind in kinds:
                self._recorder.end_queued(self._recorder.queued(kind, at=at))
        return found

    def _number(self, entry: _Entry) -> int:
        """How many of its group's collectives were called, and not captured, before it."""
        counted, name = int(entry["collective_seq_id"]), str(entry["process_group"][0])
        spans = self._captured.get(name, ())
        return counted - 1 - sum(after - before for before, after in spans if before < counted)

    # ── What PyTorch recorded ────────────────────────────────────────────────────────────────

    def copy(self, *, is_over: bool = False) -> bool:
        """Copy what is new, and which of the calls before are done; returns whether any is.

        is_over: nothing calls NCCL now, and so PyTorch may forget what it has.
        """
        with self._lock:
            began = self._copied = perf_counter()
            found = _dump(with_calls=True)
            entries, news = found.get("entries", []), self._take_replays()
            news |= bool(entries) and self._take(entries, found["pg_config"])
            self._took = perf_counter() - began
            forget = function("_reset_fr_recording_nccl")
            if is_over and forget and not self._pending and os.environ.keys().isdisjoint(_SET):
                forget()
                self._next = 0
            return news

    def _take(self, entries: list[_Entry], groups: Mapping[str, Any]) -> bool:
        first, before = int(entries[0]["record_id"]), (self._next, len(self._pending))
        lost = max(0, first - self._next)
        if lost:
            self._recorder.lose(lost)
            for number in [one for one in self._pending if one < first]:  # done, so long ago
                self._end(number)
        ahead = time_ns() - perf_counter_ns()  # of the monotonic clock
        batches = {_key(entry) for entry in entries if _ends_a_batch(entry)}
        frame, known = self._frame(), dict[str, tuple[int, Group]]()
        for entry in entries:
            number, name = int(entry["record_id"]), str(entry["process_group"][0])
            if number >= self._next and entry["profiling_name"].startswith("nccl:"):
                if name not in known:
                    ranks = tuple(json.loads(groups[name]["ranks"]))
                    known[name] = self._describe(name, ranks, frame)
                self._enter(entry, known[name], ahead, lost > 0, _key(entry) in batches)
            self._next = max(self._next, number + 1)
            if entry["state"] == "completed":
                self._end(number)
        open_ = self._pending.keys()
        self._parts = {at: own for at, own in self._parts.items() if not open_.isdisjoint(own)}
        return (self._next, len(self._pending)) != before

    def _end(self, number: int) -> None:
        for place in self._pending.pop(number, ()):
            self._recorder.end_queued(place)

    def _enter(
        self, entry: _Entry, known: tuple[int, Group], ahead: int, lost: bool, batched: bool
    ) -> None:
        call, key, (group, described) = recorded(entry), _key(entry), known
        if call.operation == COALESCED:
            over = self._parts.pop(key, [])
            places = [place for part in over for place in self._pending.pop(part, ())]
            self._pending[int(entry["record_id"])] = places
            return
        if call.operation in PARTS:
            self._uneven.setdefault(key[0], []).append(call)
            return
        parts = self._uneven.pop(key[0], [])
        if len(parts) == len(described.ranks):
            own = parts[described.ranks.index(self._rank)]
            call = replace(own, operation=call.operation)
        peer = None if call.peer is None else described.ranks[call.peer]
        kind = self._recorder.kind(
            call.operation,
            group,
            call.shapes,
            call.dtype,
            call.bytes,
            peer,
            batched=batched and call.peer is not None,
            queued=True,
        )
        place = self._known(entry, call, group, described, lost) or self._recorder.queued(
            kind,
            at=(int(entry["time_created_ns"]) - ahead) / 1e9,
            number=self._number(entry) if call.peer is None else None,
        )
        self._newest[group] = _Newest(call.operation, peer, key[1], place)
        self._pending[int(entry["record_id"])] = [place]
        if entry["state"] != "completed":
            self._parts.setdefault(key, []).append(int(entry["record_id"]))

    def _known(self, entry: _Entry, call: Recorded, group: int, known: Group, lost: bool) -> int:
        """Count a call; returns its place where the main thread stood in it, else 0."""
        if call.peer is not None:
            before, self._messages[group] = self._messages.get(group, 0), int(entry["p2p_seq_id"])
            if lost and self._messages[group] > before + 1:  # whose they were is not known
                self._recorder.doubt()
        elif call.operation in SAME_SIZE:
            self._recorder.sum_up(known, call.operation, None, (call.bytes, call.dtype))
        operation, place = self._stood_in.pop(group, ("", 0))
        return place if operation == call.operation else 0

    # ── Where the main thread is ─────────────────────────────────────────────────────────────

    def _frame(self) -> FrameType | None:
        with contextlib.suppress(ValueError):  # it runs no Python
            found: FrameType = _frame_of(self._state)
            return found
        return None

    def _blocked_in(self, frame: FrameType | None) -> int:
        """The entry of the call in which the main thread stands; 0 where it is in none."""
        while frame is not None:
            name = frame.f_code.co_name
            operation = _OTHER_NAMES.get(name, name)
            if frame.f_code.co_filename == distributed_c10d.__file__ and operation in _OPERATIONS:
                return self._standing_in(operation, frame.f_locals)
            frame = frame.f_back
        return 0

    def _standing_in(self, operation: str, given: Mapping[str, Any]) -> int:
        found = given.get("group")
        group = dist.group.WORLD if found is None else found
        if type(group) is not dist.ProcessGroup:
            return 0
        ranks = tuple(dist.get_process_group_ranks(group))
        number, known = self._describe(str(group.group_name), ranks, self._frame())
        peer = _peer(operation, given, known) if operation in POINT_TO_POINT else None
        if self._stood_in.get(number, ("", 0))[0] == operation:
            return self._stood_in[number][1]
        newest = self._newest.get(number)
        if newest is not None and (newest.operation, newest.peer) == (operation, peer):
            nccl: Any = group._get_backend(_GPU)
            begun = nccl._get_sequence_number_for_group()
            if peer is not None or newest.number == begun:
                # PyTorch takes a call for done that the host has not handed to the GPU.
                self._recorder.reopen(newest.place)
                self._reopened = newest.place
                return newest.place
        tensors = [one for name in _TENSORS for one in _flat(given.get(name))]
        if not tensors and operation != "barrier":
            return 0
        kind = self._recorder.kind(
            operation,
            number,
            tuple(tuple(one.shape) for one in tensors),
            str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            sum(one.numel() * one.element_size() for one in tensors),
            peer,
            queued=True,
        )
        place = self._recorder.queued(kind, at=perf_counter())
        self._stood_in[number] = (operation, place)
        return place


def _counts() -> dict[str, int]:
    """Return, by the name of each group of NCCL's, PyTorch's count of its collectives."""
    found: dict[str, int] = {}
    for group, name in list(distributed_c10d._world.pg_names.items()):
        with contextlib.suppress(RuntimeError):  # it has no backend for GPUs
            nccl: Any = group._get_backend(_GPU)
            found[str(name)] = nccl._get_sequence_number_for_group()
    return found


def _ranks_of(name: str) -> tuple[int, ...]:
    world = distributed_c10d._world
    group = next(group for group, called in world.pg_names.items() if called == name)
    return tuple(dist.get_process_group_ranks(group))


def _key(entry: _Entry) -> _Key:
    return int(entry["pg_id"]), int(entry["collective_seq_id"]), int(entry["p2p_seq_id"])


def _ends_a_batch(entry: _Entry) -> bool:
    return str(entry["profiling_name"]).endswith(f":{COALESCED}")


def _flat(given: Any) -> list[Any]:
    """The tensors on a GPU in an argument: plain ones, as others may do anything when asked."""
    parts = given if type(given) in (list, tuple) else [given]
    return [one for one in parts if type(one) in _PLAIN and one.is_cuda]


def _peer(operation: str, given: Mapping[str, Any], known: Group) -> int:
    name = "dst" if operation == "send" else "src"
    peer, within = given.get(name), given.get(f"group_{name}")
    if type(peer) is int:
        return peer
    return known.ranks[within] if type(within) is int else ANY_SOURCE


def _dump(*, with_calls: bool) -> dict[str, Any]:
    dump = function("_dump_nccl_trace")
    assert dump is not None
    found: dict[str, Any] = loads(dump(with_calls, False, False))
    return found


_PYTHON = ctypes.PyDLL(None)  # a handle of our own: the program may set types in its one
_thread_state: Callable[[], int] = _PYTHON.PyThreadState_Get
_thread_state.restype = ctypes.c_void_p  # type: ignore[attr-defined]
# Unlike sys._current_frames() this tells nothing to the program's audit hooks.
_frame_of: Callable[[int], FrameType] = _PYTHON.PyThreadState_GetFrame
_frame_of.restype, _frame_of.argtypes = ctypes.py_object, (ctypes.c_void_p,)  # type: ignore[attr-defined]
