"""The call record: every c10d call of a rank, written where the notebook can read it at any time.

A rank appends each call to memory that it shares with the notebook's kernel, so the record is
there even while the rank is blocked inside C++ or after it was killed. The calls are caught at
PyTorch's dispatcher, which every path to a process group passes: `torch.distributed`, DDP's
reducer, functional collectives, compiled code.

The layout of that memory, and its reader, are in `calls.py`.

A rank must end as it would without a record. gloo's threads take Python's lock now and then: for
a callback, or to drop a tensor that Python has seen, and every tensor of a call has been seen
here. A program that lets go of a group holds the lock, and waits for those threads. So the groups
are held here: letting go of one waits for nobody. What a program might notice of that,
`destroy_process_group()` does itself: it waits for the works that are still under way. And the
ends of works are seen by threads that wait beside the program, not by callbacks.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import math
import os
import queue
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..calls import (
    AGAIN,
    ANY_SOURCE,
    AWAITED,
    CALL,
    COUNT,
    DROPPED,
    ENTRY,
    F64,
    FORSAKEN,
    GROUP,
    HEADER,
    LEAVING,
    NOBODY,
    ON_GPU,
    ONCE,
    POINT_TO_POINT,
    SAME_SIZE,
    SECTION,
    THREADS,
    U64,
    USED,
    WAITED_FOR,
    WAITING,
    Group,
    line_of,
    offset_of,
    section_size,
)
from .naming import name_of

_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
SETUP = ("init_process_group", "new_group", "destroy_process_group")
BEGUN = ("isend", "irecv", "batch_isend_irecv")  # what they return is the caller's to keep
_Line = tuple[int, str, int | None, int]  # a sequence in which calls are counted
_MOST_WATCHERS = 16
_LONGEST_DESCRIPTION = 60  # characters
_pack = msgspec.msgpack.Encoder().encode
_MOST_DESTROYED = 32  # groups that are held although they have been destroyed


class Recorder:
    """Appends this process's calls to shared memory; thread-safe."""

    def __init__(self, memory: Any, rank: int):
        self._memory = memory
        self._rank = rank
        self._lock = threading.Lock()
        self._main = threading.main_thread().ident
        self._size = section_size(memory)
        self._section = 0
        self._used = 1  # place 0 is nobody's
        self._held = 0  # calls in the current section
        self._held_before = 0  # and in the one before it
        self._counts: dict[_Line, int] = {}
        self._groups: dict[Any, tuple[int, Group]] = {}
        self._groups_made = 0
        self._defaults_ended = 0
        self._outermost = 0  # the entry in which the main thread is, its outermost one
        self.batching = False  # inside of batch_isend_irecv
        self.quiet = False  # inside of new_group and its like: its own traffic is not the learner's
        self._groups_held: list[Any] = []  # process groups, the oldest first
        self._under_way: dict[int, Any] = {}  # futures of works, by their entry
        self._works: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id: the Work, its entry
        self._futures: dict[int, tuple[weakref.ref[Any], int]] = {}  # by id: of a Work, its entry
        self._messages: set[int] = set()  # entries of messages under way
        self._spent: dict[int, tuple[weakref.ref[Any], int]] = {}  # messages that were waited for
        self._fresh: list[Any] = []  # Works that their caller may not have got yet
        self._watchers = _Watchers()
        self.newest = 0
        self.digest: dict[tuple[str, tuple[int, ...]], int] = {}
        HEADER.pack_into(memory, 0, os.getpid(), 0, 0, 0, 0, 0, self._used, 0)

    def reset(self) -> None:
        """Forget the entries: a kept world begins its next cell. Counts and groups go on.

        The new section follows no other one: a work of the cell before that ends now has no entry.
        """
        with self._lock:
            self._section += 2
            self._used = self._held = self._held_before = self.newest = 0
            for held in (self._works, self._futures, self._spent, self._messages):
                held.clear()
            self._fresh.clear()
            for at in (WAITING, DROPPED, ON_GPU, THREADS, USED, USED + 8):
                U64.pack_into(self._memory, at, 0)
            self._begin_section()

    def group(self, key: Any, describe: Callable[[], Group]) -> tuple[int, Group]:
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = (self._groups_made, describe())
            self._groups_made += 1
            with self._lock:
                self._append(math.nan, GROUP, _introduction(*known))
        return known

    def hold(self, group: Any) -> None:
        """Keep a process group, so that no destructor of it runs in the program's own threads.

        Of groups that were destroyed the newest: the threads of the others have long done all they
        had to do.
        """
        import torch.distributed as dist

        self._groups_held.append(group)
        alive = dist.distributed_c10d._world.pg_map
        destroyed = [held for held in self._groups_held if held not in alive]
        for old in destroyed[:-_MOST_DESTROYED]:
            self._groups_held.remove(old)

    def drain(self) -> None:
        """Wait for all works that are under way, as the end of their group would."""
        for place, future in list(self._under_way.items()):
            with contextlib.suppress(Exception):  # whoever waits for the work is told
                future.wait()
            self._is_done(place)

    def settle(self) -> None:
        """Write down the end of each work that is over; its watcher may not have run yet."""
        for place, future in list(self._under_way.items()):
            if future.done():
                self._is_done(place)

    def default_name(self) -> str:
        return f"default {self._defaults_ended}"

    def default_ended(self) -> None:
        """After destroy_process_group(): the next groups reuse the names of the old ones."""
        self._groups = {k: v for k, v in self._groups.items() if v[1].is_internal}
        self._defaults_ended += 1

    def begin(
        self,
        operation: str,
        group: int,
        shapes: tuple[tuple[int, ...], ...] = (),
        dtype: str = "",
        size: int = 0,
        peer: int | None = None,
        tag: int = 0,
        asynchronous: bool = False,
        stream: int | None = None,
    ) -> int:
        """Enter a call; returns its entry."""
        self.handed_over()
        line = (group, *line_of(operation, peer, tag))
        with self._lock:
            number = self._counts.get(line, 0)
            self._counts[line] = number + 1
            what = (operation, group, number, shapes, dtype, size, peer, tag, asynchronous)
            return self._append(time.perf_counter(), CALL, (*what, self.batching, stream))

    @property
    def is_on_gpu(self) -> bool:
        return bool(U64.unpack_from(self._memory, ON_GPU)[0])

    def on_gpu(self) -> None:
        U64.pack_into(self._memory, ON_GPU, 1)

    def sum_up(self, group: Group, *call: Any) -> None:
        """Keep a checksum of what all ranks of a group must do alike, to compare at the end."""
        key = (group.name, group.ranks)
        self.digest[key] = zlib.crc32(repr(call).encode(), self.digest.get(key, 0))

    def _append(self, start: float, kind: int, entry: tuple[Any, ...]) -> int:
        data = _pack(entry)
        if len(data) > self._size // 4 and kind == CALL:  # thousands of tensors at once
            data = _pack((*entry[:3], (), *entry[4:]))
        if self._used + ENTRY.size + len(data) > self._size:
            dropped = U64.unpack_from(self._memory, DROPPED)[0] + self._held_before
            self._section += 1
            self._held, self._held_before = 0, self._held
            self._begin_section()
            U64.pack_into(self._memory, DROPPED, dropped)
        return self._write(start, kind, data)

    def _begin_section(self) -> None:
        """Say in a new section what one must know to read it; it takes the oldest one's memory."""
        self._used = 0
        U64.pack_into(self._memory, USED + 8 * (self._section % 2), 0)
        U64.pack_into(self._memory, SECTION, self._section)
        for number, group in self._groups.values():
            self._write(math.nan, GROUP, _pack(_introduction(number, group)))
        for (number, *line), count in self._counts.items():
            self._write(math.nan, COUNT, _pack((number, line, count)))

    def _write(self, start: float, kind: int, data: bytes) -> int:
        place = self._section * self._size + self._used
        offset = offset_of(place, self._size)
        ENTRY.pack_into(self._memory, offset, start, math.nan, len(data), kind, 0)
        self._memory[offset + ENTRY.size : offset + ENTRY.size + len(data)] = data
        self._used += ENTRY.size + len(data)
        # Only now does a reader see the entry.
        U64.pack_into(self._memory, USED + 8 * (self._section % 2), self._used)
        if kind == CALL:
            self.newest = place
            self._held += 1
        return place

    def end(self, place: int, at: float | None = None) -> None:
        """Write down that a call is over, unless that is known or its entry is gone."""
        section = place // self._size
        if not place or not 0 <= self._section - section <= 1:
            return
        offset = offset_of(place, self._size) + 8
        if math.isnan(F64.unpack_from(self._memory, offset)[0]):
            F64.pack_into(self._memory, offset, time.perf_counter() if at is None else at)

    # ── Works that go on behind the program ──────────────────────────────────────────────────

    def follow(self, work: Any, place: int, is_message: bool, asynchronous: bool) -> None:
        """See to it that the entry of a work on the CPU gets its end.

        The Python object of a Work is one and the same as long as it lives, so the one that the
        caller gets and waits for is found again by its identity. It is held here only until the
        caller has it: under gloo a message is given up with what isend() returned.
        """
        key = id(work)

        def gone(_: Any) -> None:
            self._messages.discard(place)
            if self._works.pop(key, None) is not None and is_message:
                self.end(place, FORSAKEN)

        self._works[key] = (weakref.ref(work, gone), place)
        if is_message:
            self._messages.add(place)
        self._fresh.append(work)
        if asynchronous and not is_message:  # the end of a message is seen by who waits for it
            with contextlib.suppress(RuntimeError):  # gloo's reduce_scatter has none
                future = self._under_way[place] = _future_of(work)
                self._watchers.watch(future, functools.partial(self._is_done, place))

    def follow_on_gpu(self, work: Any, place: int) -> None:
        """So that it is seen which stream waits for the work, and from when on."""
        key = id(work)
        self._works[key] = (weakref.ref(work, lambda _: self._works.pop(key, None)), place)
        self._fresh.append(work)

    def stream_waits(self, place: int, stream: int) -> None:
        """Write down that from now on a stream waits for a call that was asynchronous."""
        with self._lock:
            self._append(time.perf_counter(), AWAITED, (place, stream))

    def _is_done(self, place: int) -> None:
        self.end(place)
        self._under_way.pop(place, None)

    def disown(self) -> None:
        """In a process that a rank has forked: leave the rank's record alone."""
        self._works.clear()
        self._futures.clear()
        self._fresh.clear()

    def handed_over(self) -> None:
        """Whoever began works has got them by now."""
        self._fresh.clear()

    def waited_for(self, work: Any) -> int:
        """The entry of a work that is waited for now; 0 if it is not known, or was waited for."""
        self.handed_over()
        known = self._works.get(id(work))
        if known is None or known[0]() is not work:
            return 0
        del self._works[id(work)]
        self.say_waited(known[1])
        return known[1]

    def is_over(self, work: Any, place: int) -> None:
        """A wait has returned; of a message there is no second end to wait for."""
        key = id(work)
        if place in self._messages:
            self._messages.discard(place)
            self._spent[key] = (weakref.ref(work, lambda _: self._spent.pop(key, None)), place)

    def waited_again(self, work: Any) -> int:
        """The entry of a message whose end was waited for, and is now waited for again; or 0."""
        known = self._spent.get(id(work))
        if known is None or known[0]() is not work:
            return 0
        self.say_waited(known[1], AGAIN)
        return known[1]

    def completed(self, work: Any, told: Any) -> None:
        """Somebody has learned in another way than by wait() that a work is over, or by its future
        (`told`) will."""
        known = self._works.get(id(work))
        if known is None or known[0]() is not work:
            return
        self.say_waited(known[1])
        if told is not None and told is not True:
            key = id(told)
            gone = weakref.ref(told, lambda _: self._futures.pop(key, None))
            self._futures[key] = (gone, known[1])

    def awaited_as(self, future: Any) -> int:
        """The entry of the work whose future this is; 0 if it is not known."""
        known = self._futures.get(id(future))
        return known[1] if known is not None and known[0]() is future else 0

    def say_waited(self, place: int, how: int = ONCE) -> None:
        """Write down that somebody waits, or has waited, for the end of a call."""
        if 0 <= self._section - place // self._size <= 1:
            self._memory[offset_of(place, self._size) + WAITED_FOR] = how

    @contextlib.contextmanager
    def blocking(self, place: int) -> Iterator[None]:
        """The main thread may block in this entry; inside of another one, that one counts."""
        outermost = self._outermost == 0 and threading.get_ident() == self._main
        if outermost:
            self._outermost = place
            U64.pack_into(self._memory, THREADS, _others_may_act())
            U64.pack_into(self._memory, WAITING, place)
        try:
            yield
        finally:
            if outermost:
                self._outermost = 0
                U64.pack_into(self._memory, WAITING, 0)

    @contextlib.contextmanager
    def leaving(self, what: str) -> Iterator[None]:
        """Something that a rank does when its job is done; calls in it are recorded as always."""
        number, _ = self.group(LEAVING, lambda: Group(LEAVING, ()))
        place = self.begin(what, number)
        try:
            yield
        finally:
            self.end(place)

    @contextlib.contextmanager
    def internal(self, kind: str, operation: str, peer: int | None = None) -> Iterator[None]:
        """A call that is not an operation on a group but in which a rank may wait for others."""
        number, _ = self.group(kind, lambda: Group(kind, ()))
        place = self.begin(operation, number, peer=peer)
        self.quiet, before = True, self.quiet
        try:
            with self.blocking(place):
                yield
        finally:
            self.quiet = before
            self.end(place)


def _introduction(number: int, group: Group) -> tuple[Any, ...]:
    return (number, group.name, group.ranks, group.called)


class _Watchers:
    """Threads that wait for works to complete, without Python's lock, and then say so.

    They are not `threading`'s: a program that counts its threads, or joins them, has none of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Any, Callable[[], None]]] = queue.SimpleQueue()
        self._threads = self._busy = 0

    def watch(self, future: Any, done: Callable[[], None]) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > self._threads < _MOST_WATCHERS:
                self._threads += 1
                _thread.start_new_thread(self._serve, ())
        self._waiting.put((future, done))

    def _serve(self) -> None:
        while True:
            future, done = self._waiting.get()
            with contextlib.suppress(Exception):  # it failed: whoever waits for the work is told
                future.wait()
            done()
            del future, done  # the tensors in it are the program's to keep or to drop
            with self._lock:
                self._busy -= 1


def _others_may_act() -> int:
    """1 if threads run besides the main one; daemons, such as a progress bar's, do not count."""
    if threading.active_count() == 1:
        return 0
    main = threading.main_thread()
    return int(any(not t.daemon for t in threading.enumerate() if t is not main))


def _future_of(work: Any) -> Any:
    ask = type(work).get_future
    return getattr(ask, "__wrapped__", ask)(work)  # not as the program would: see _completed_hook


_recorder: Recorder | None = None
_graph_holds_work = False


def start(memory: Any, rank: int) -> Recorder:
    """Begin to record this process's calls into `memory`; `install()` must have run."""
    global _recorder
    _recorder = Recorder(memory, rank)
    os.register_at_fork(after_in_child=_stop)
    return _recorder


def _stop() -> None:
    """What a rank forks, such as a data loader's worker, is no rank."""
    global _recorder
    if _recorder is not None:
        _recorder.disown()
    _recorder = None


def install() -> None:
    """Put the hooks in place, once a process; they cost next to nothing until `start()`.

    Imports torch, runs no tensor operation and starts no thread, so it may run before a fork.
    """
    import torch
    import torch.distributed as dist

    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library = torch.library.Library("c10d", "IMPL")
    for name, public in _NAMES.items():
        packet = getattr(torch.ops.c10d, name, None)
        if packet is not None:  # an operation that this PyTorch does not have
            library.impl(
                name, _hook(packet.default, public, below), "BackendSelect", with_keyset=True
            )
    functional = torch.library.Library("_c10d_functional", "IMPL")
    functional.impl(
        "wait_tensor",
        _wait_tensor_hook(torch.ops._c10d_functional.wait_tensor.default, below),
        "BackendSelect",
        with_keyset=True,
    )
    _libraries.extend([library, functional])
    dist.Work.wait = _wait_hook(dist.Work.wait)  # type: ignore[method-assign]
    for name in ("is_completed", "get_future", "synchronize"):
        setattr(dist.Work, name, _completed_hook(getattr(dist.Work, name)))
    torch._C.Future.wait = _future_hook(torch._C.Future.wait)  # type: ignore[method-assign]
    for name in ("get", "wait"):
        setattr(dist.Store, name, _store_hook(name, getattr(dist.Store, name)))
    for name in BEGUN:
        _replace(getattr(dist, name), _begun_hook(getattr(dist, name)))
    for name in SETUP:
        _replace(getattr(dist, name), _setup_hook(name, getattr(dist, name)))


_libraries: list[Any] = []  # a Library takes its kernels along when it is collected


def _replace(original: Any, replacement: Any) -> None:
    """Put `replacement` wherever a module of PyTorch has imported `original` by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed"):
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, replacement)


def _hook(operation: Any, name: str, below: Any) -> Callable[..., Any]:
    arguments = [argument.name for argument in operation._schema.arguments]

    def index(*names: str) -> int | None:
        return next((arguments.index(n) for n in names if n in arguments), None)

    group_at = arguments.index("process_group")
    tensors_at = index("input_tensors", "input_tensor", "inputs", "input_list", "input", "tensors")
    peer_at = index("dst", "src", "root_rank")
    tag_at = index("tag")
    async_at = index("async_op")
    any_source = operation._schema.name.endswith("recv_any_source_")

    def hook(keyset: Any, *args: Any) -> Any:
        recorder = _recorder
        if recorder is None or recorder.quiet:
            return operation.redispatch(keyset & below, *args)
        number, group = _group_of(recorder, args[group_at])
        tensors = [] if tensors_at is None else _flat(args[tensors_at]) or _flat(args[0])
        peer = ANY_SOURCE if any_source else None
        if peer_at is not None:
            peer = _global_rank(group, args[peer_at])
        tag = args[tag_at] if tag_at is not None else 0
        # Arguments that equal their default do not arrive here; async_op's default is True.
        asynchronous = async_at is not None and (len(args) <= async_at or args[async_at])
        size = sum(t.numel() * t.element_size() for t in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        if name not in POINT_TO_POINT:
            recorder.sum_up(group, name, peer, (size, dtype) if name in SAME_SIZE else None)
        on_gpu = bool(tensors) and tensors[0].is_cuda
        place = recorder.begin(
            name,
            number,
            tuple(tuple(t.shape) for t in tensors),
            dtype,
            size,
            peer,
            tag,
            asynchronous,
            _stream_of(tensors[0]) if on_gpu else None,
        )
        if asynchronous and not _has_python_the_handle():
            recorder.say_waited(place)
        if on_gpu:
            recorder.on_gpu()
        try:
            with recorder.blocking(place):  # most return at once, some block right here
                out = operation.redispatch(keyset & below, *args)
        except BaseException:
            recorder.end(place)
            raise
        _follow(recorder, place, out, name in POINT_TO_POINT, asynchronous, on_gpu)
        return out

    return hook


def _stream_of(tensor: Any) -> int | None:
    """The stream that a call with this tensor follows; None where a graph is being captured."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        return None
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _has_python_the_handle() -> bool:
    """Whether a function of torch.distributed made this call, which returns its handle; DDP's
    reducer and functional collectives keep theirs in C++."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return bool(caller == "torch.distributed.distributed_c10d")


def _global_rank(group: Group, number: int) -> int:
    """c10d counts within the group, people globally. A program may ask for who is not there."""
    if number < 0:
        return NOBODY
    return group.ranks[number] if number < len(group.ranks) else number


def _flat(tensors: Any) -> list[Any]:
    if not isinstance(tensors, (list, tuple)):
        return [tensors]
    return [t for part in tensors for t in _flat(part)]


def _group_of(recorder: Recorder, boxed: Any) -> tuple[int, Group]:
    import torch.distributed as dist

    group = dist.ProcessGroup.unbox(boxed)

    def describe() -> Group:
        default = dist.group.WORLD
        is_default = default is None or group == default
        name = recorder.default_name() if is_default else group.group_name
        try:
            ranks = dist.get_process_group_ranks(group)
        except (KeyError, ValueError):  # a group that is still being made
            ranks = list(range(group.size()))
        recorder.hold(group)
        called = "" if is_default else name_of(group) or _described(group)
        return Group(name, tuple(ranks), called)

    return recorder.group((group.group_name, group.size()), describe)


def _described(group: Any) -> str:
    """What the program, or a mesh, said of a group when it made it (group_desc)."""
    said = str(group.group_desc)
    own = said.isprintable() and len(said) <= _LONGEST_DESCRIPTION and ":" not in said
    return said if own and said != "undefined" else ""


def _follow(
    recorder: Recorder, place: int, out: Any, is_message: bool, asynchronous: bool, on_gpu: bool
) -> None:
    """See to it that the entry gets its end."""
    import torch
    import torch.distributed as dist

    boxed = out[-1] if isinstance(out, tuple) else out
    if not isinstance(boxed, torch.ScriptObject):  # monitored_barrier has no Work: it is over
        recorder.say_waited(place)
        recorder.end(place)
        return
    if on_gpu:
        global _graph_holds_work
        captured = torch.cuda.is_current_stream_capturing()
        _graph_holds_work = _graph_holds_work or captured
        recorder.say_waited(place)  # its stream does
        recorder.end(place)
        if (asynchronous or is_message) and not captured:
            begun = dist.Work.unbox(boxed)
            if begun is not None:
                recorder.follow_on_gpu(begun, place)
        return
    work: Any = dist.Work.unbox(boxed)
    if work is None:  # NCCL's answer to a call that the program has waited for already
        recorder.say_waited(place)
        recorder.end(place)
        return
    recorder.follow(work, place, is_message, asynchronous)


def _begun_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    batch = original.__name__ == "batch_isend_irecv"

    @functools.wraps(original)
    def begin(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return original(*args, **kwargs)
        recorder.batching = batch or recorder.batching
        try:
            works = original(*args, **kwargs)
        finally:
            recorder.batching = recorder.batching and not batch
        recorder.handed_over()
        return works

    return begin


def _wait_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        place = recorder.waited_again(self) or recorder.waited_for(self) if recorder else 0
        if recorder is None or not place:
            return original(self, *args, **kwargs)
        try:
            with recorder.blocking(place):
                told = original(self, *args, **kwargs)
            recorder.is_over(self, place)
            return told
        finally:
            recorder.say_waited(place)
            recorder.end(place)
            if recorder.is_on_gpu and (stream := _current_stream()) is not None:
                recorder.stream_waits(place, stream)

    return wait


def _future_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of wait() on what a work's get_future() returned."""

    @functools.wraps(original)
    def wait(self: Any) -> Any:
        recorder = _recorder
        place = recorder.awaited_as(self) if recorder else 0
        if recorder is None or not place:
            return original(self)
        with recorder.blocking(place):
            value = original(self)
        if recorder.is_on_gpu and (stream := _current_stream()) is not None:
            recorder.stream_waits(place, stream)
        return value

    return wait


def _current_stream() -> int | None:
    """The stream on which a wait() is queued; None while a graph is captured, or off the GPU."""
    import torch

    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    return int(torch.cuda.current_stream().cuda_stream)


def _completed_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ask(self: Any, *args: Any) -> Any:
        told = original(self, *args)
        if _recorder is not None and told is not False:
            _recorder.completed(self, told)
        return told

    return ask


def _wait_tensor_hook(operation: Any, below: Any) -> Callable[..., Any]:
    def wait_tensor(keyset: Any, *args: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return operation.redispatch(keyset & below, *args)
        with recorder.blocking(recorder.newest):
            return operation.redispatch(keyset & below, *args)

    return wait_tensor


def _store_hook(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def blocking(self: Any, keys: Any, *args: Any) -> Any:
        recorder = _recorder
        if recorder is None or recorder.quiet:
            return original(self, keys, *args)
        shown = keys if isinstance(keys, str) else ", ".join(keys)
        with recorder.internal("store", f"store.{name}({shown!r})"):
            return original(self, keys, *args)

    return blocking


def _setup_hook(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None or recorder.quiet:
            return original(*args, **kwargs)
        if name == "destroy_process_group":
            _refuse_while_a_graph_lives()
        what, rank = name, None
        if name == "new_group":
            if kwargs.get("use_local_synchronization"):  # a matter of the members alone
                return original(*args, **kwargs)
            ranks = args[0] if args else kwargs.get("ranks")
            what = f"new_group({'' if ranks is None else sorted(ranks)})"
        elif name == "init_process_group":
            asked = args[3] if len(args) > 3 else kwargs.get("world_size", -1)
            if isinstance(asked, int) and asked > 0:
                what = f"init_process_group(world_size={asked})"
            rank = args[4] if len(args) > 4 else kwargs.get("rank")
        if _by_nccl(name, args, kwargs):
            recorder.on_gpu()  # NCCL's ranks keep the processor busy while they wait
        with recorder.internal("setup", what, rank if isinstance(rank, int) else None):
            if name == "destroy_process_group":
                recorder.drain()
            result = original(*args, **kwargs)
        if name == "destroy_process_group" and not _default_group_exists():
            recorder.default_ended()
        return result

    return call


def _by_nccl(name: str, args: Any, kwargs: Any) -> bool:
    import torch.distributed as dist

    if name == "init_process_group":
        return "nccl" in str(args[0] if args else kwargs.get("backend"))
    return dist.is_initialized() and dist.get_backend() == "nccl"


def _default_group_exists() -> bool:
    import torch.distributed as dist

    return dist.is_initialized()


def _refuse_while_a_graph_lives() -> None:
    import torch

    graphs = (one for one in gc.get_objects() if isinstance(one, torch.cuda.CUDAGraph))
    if _graph_holds_work and any(map(_holds_a_capture, graphs)):
        raise RuntimeError(
            "destroy_process_group() would hang: a captured CUDA graph that holds NCCL work is "
            "still alive. Delete the graph first (del graph; torch.cuda.synchronize()), then "
            "destroy the group."
        )


def _holds_a_capture(graph: Any) -> bool:
    """Whether it has captured something, and was not reset."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True
