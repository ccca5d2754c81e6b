"""The call record: every c10d call of a rank, written where the notebook can read it at any time.

A rank appends each call to memory that it shares with the notebook's kernel, so the record is
there even while the rank is blocked inside C++ or after it was killed. The calls are caught at
PyTorch's dispatcher, which every path to a process group passes: `torch.distributed`, DDP's
reducer, functional collectives, compiled code.

Layout of the shared memory: a header of six unsigned 64-bit numbers (bytes used, process id,
offset of the entry in which the rank's main thread now waits or 0, calls that no longer fitted,
1 once a call or a group was on a GPU, 1 if other threads may act while the main one waits), then
entries: start and end (float64, seconds), length (uint32), marshalled tuple. An entry is a call,
the introduction of a process group, or (where a kept world goes on with its next cell) how many
calls of one sequence came before.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import marshal
import math
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SIZE = 64 << 20  # bytes of address space; memory is used only as the record grows
_HEADER = struct.Struct("<QQQQQQ")
_USED, _PID, _WAITING, _LOST, _ON_GPU, _THREADS = 0, 8, 16, 24, 32, 40
_TIMES = struct.Struct("<dd")
_ENTRY = struct.Struct("<ddI")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")

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
ANY_SOURCE = -1
POINT_TO_POINT = frozenset({"send", "recv"})
# Operations in which every rank must pass as many elements of the same type.
SAME_SIZE = frozenset(
    {"all_reduce", "broadcast", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor"}
)
SETUP = ("init_process_group", "new_group", "destroy_process_group")
SYNCHRONIZE = "torch.cuda.synchronize"  # what a rank does last on a GPU
Line = tuple[int, str, int | None, int]  # a sequence in which calls are counted, see _line()


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it."""

    name: str
    ranks: tuple[int, ...]

    @property
    def is_default(self) -> bool:
        return self.name.startswith("default")

    @property
    def is_internal(self) -> bool:
        """Not a process group: rendezvous on a store, making and ending groups."""
        return self.name in ("store", "setup")

    def __str__(self) -> str:
        if self.is_default:
            return "the default group"
        number = f" {self.name}" if len(self.name) < 4 else ""  # others are long hashes
        return f"group{number} {list(self.ranks)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One c10d call of one rank.

    start, end: seconds on the host's monotonic clock, the same for all ranks of one machine.
        `end` is when the operation was complete (gloo), or when the call came back to the host
        (NCCL: what the GPU did and when is a trace's business). None: it never was.
    shapes, dtype: of the tensors that the rank passed in (for `recv`: that it received into).
    bytes: of those tensors together.
    peer: global rank of the other side (send, recv) or of the root (broadcast, reduce, gather,
        scatter); None for the others, ANY_SOURCE for a recv from anybody.
    number: 0 for the rank's first operation on this group, and so on; sends and receives are
        counted apart, by direction and peer.
    """

    rank: int
    operation: str
    group: Group
    number: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    bytes: int
    peer: int | None
    tag: int
    asynchronous: bool
    start: float
    end: float | None

    @property
    def seconds(self) -> float:
        """From start to end; NaN where the call never ended."""
        return math.nan if self.end is None else self.end - self.start

    @property
    def line(self) -> CallLine:
        """The sequence that `number` counts: a group's collectives, or one way of a pair."""
        return (self.group, *_line(self.operation, self.peer, self.tag))

    def __str__(self) -> str:
        if self.group.is_internal:
            return self.operation
        what = f"{self.operation} #{self.number}"
        if self.operation in POINT_TO_POINT:
            way = "to" if self.operation == "send" else "from"
            other = "any rank" if self.peer == ANY_SOURCE else f"rank {self.peer}"
            what = f"{self.operation} #{self.number} {way} {other}"
            if self.tag:
                what += f" (tag {self.tag})"
        elif self.peer is not None:
            what += f" with root {self.peer}"
        if self.shapes and self.dtype:
            shown = ", ".join(str(list(shape)) for shape in self.shapes[:3])
            more = f", … {len(self.shapes)} tensors" if len(self.shapes) > 3 else ""
            what += f" of {self.dtype}{shown}{more}"
        return f"{what} on {self.group}"


CallLine = tuple[Group, str, int | None, int]


def _line(operation: str, peer: int | None, tag: int) -> tuple[str, int | None, int]:
    if operation in ("destroy_process_group", SYNCHRONIZE):  # leaving is no partner of new_group
        return (operation, None, 0)
    return (operation, peer, tag) if operation in POINT_TO_POINT else ("", None, 0)


# ── The rank's side ──────────────────────────────────────────────────────────────────────────


class Recorder:
    """Appends this process's calls to shared memory; thread-safe."""

    def __init__(self, memory: Any, rank: int):
        self._memory = memory
        self._rank = rank
        self._lock = threading.Lock()
        self._main = threading.main_thread().ident
        self._used = _HEADER.size
        self._counts: dict[Line, int] = {}
        self._groups: dict[Any, tuple[int, Group]] = {}
        self._groups_made = 0
        self._defaults_ended = 0
        self._outermost = 0  # the entry in which the main thread is, its outermost one
        self.quiet = False  # inside of new_group and its like: its own traffic is not the learner's
        self.pending: dict[int, tuple[Any, int]] = {}  # id of a Work: the Work, its entry
        self.newest = 0
        self.digest: dict[tuple[str, tuple[int, ...]], int] = {}
        _HEADER.pack_into(memory, 0, self._used, os.getpid(), 0, 0, 0, 0)

    def reset(self) -> None:
        """Forget the entries: a kept world begins its next cell. Counts and groups go on."""
        with self._lock:
            self._used, self.newest = _HEADER.size, 0
            self.pending.clear()
            _HEADER.pack_into(self._memory, 0, self._used, os.getpid(), 0, 0, 0, 0)
            for number, group in self._groups.values():
                self._append(math.nan, ("group", number, group.name, group.ranks))
            for line, count in self._counts.items():
                self._append(math.nan, ("count", line, count))

    def group(self, key: Any, describe: Callable[[], Group]) -> tuple[int, Group]:
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = (self._groups_made, describe())
            self._groups_made += 1
            with self._lock:
                self._append(math.nan, ("group", known[0], known[1].name, known[1].ranks))
        return known

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
    ) -> int:
        """Enter a call; returns its entry."""
        line = (group, *_line(operation, peer, tag))
        with self._lock:
            number = self._counts.get(line, 0)
            self._counts[line] = number + 1
            entry = ("call", operation, group, number, shapes, dtype, size, peer, tag, asynchronous)
            return self._append(time.perf_counter(), entry)

    def on_gpu(self) -> None:
        _U64.pack_into(self._memory, _ON_GPU, 1)

    def sum_up(self, group: Group, *call: Any) -> None:
        """Keep a checksum of what all ranks of a group must do alike, to compare at the end."""
        key = (group.name, group.ranks)
        self.digest[key] = zlib.crc32(repr(call).encode(), self.digest.get(key, 0))

    def _append(self, start: float, entry: tuple[Any, ...]) -> int:
        data = marshal.dumps(entry)
        offset, used = self._used, self._used + _ENTRY.size + len(data)
        if used > len(self._memory):
            _U64.pack_into(self._memory, _LOST, _U64.unpack_from(self._memory, _LOST)[0] + 1)
            return 0
        _ENTRY.pack_into(self._memory, offset, start, math.nan, len(data))
        self._memory[offset + _ENTRY.size : used] = data
        self._used = used
        _U64.pack_into(self._memory, _USED, used)  # only now does a reader see the entry
        if entry[0] == "call":
            self.newest = offset
        return offset

    def end(self, offset: int) -> None:
        if offset and math.isnan(_F64.unpack_from(self._memory, offset + 8)[0]):
            _F64.pack_into(self._memory, offset + 8, time.perf_counter())

    @contextlib.contextmanager
    def blocking(self, offset: int) -> Iterator[None]:
        """The main thread may block in this entry; inside of another one, that one counts."""
        outermost = self._outermost == 0 and threading.get_ident() == self._main
        if outermost:
            self._outermost = offset
            _U64.pack_into(self._memory, _THREADS, _others_may_act())
            _U64.pack_into(self._memory, _WAITING, offset)
        try:
            yield
        finally:
            if outermost:
                self._outermost = 0
                _U64.pack_into(self._memory, _WAITING, 0)

    @contextlib.contextmanager
    def internal(self, kind: str, operation: str) -> Iterator[None]:
        """A call that is not an operation on a group but in which a rank may wait for others."""
        number, _ = self.group(kind, lambda: Group(kind, ()))
        offset = self.begin(operation, number)
        self.quiet, before = True, self.quiet
        try:
            with self.blocking(offset):
                yield
        finally:
            self.quiet = before
            self.end(offset)


def _others_may_act() -> int:
    """1 if threads run besides the main one; daemons, such as a progress bar's, do not count."""
    if threading.active_count() == 1:
        return 0
    main = threading.main_thread()
    return int(any(not t.daemon for t in threading.enumerate() if t is not main))


_recorder: Recorder | None = None
_graph_holds_work = False


def start(memory: Any, rank: int) -> Recorder:
    """Begin to record this process's calls into `memory`; `install()` must have run."""
    global _recorder
    _recorder = Recorder(memory, rank)
    return _recorder


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
    for name in ("get", "wait"):
        setattr(dist.Store, name, _store_hook(name, getattr(dist.Store, name)))
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

    def place(*names: str) -> int | None:
        return next((arguments.index(n) for n in names if n in arguments), None)

    group_at = arguments.index("process_group")
    tensors_at = place("input_tensors", "input_tensor", "inputs", "input_list", "input", "tensors")
    peer_at = place("dst", "src", "root_rank")
    tag_at = place("tag")
    async_at = place("async_op")
    any_source = operation._schema.name.endswith("recv_any_source_")

    def hook(keyset: Any, *args: Any) -> Any:
        recorder = _recorder
        if recorder is None or recorder.quiet:
            return operation.redispatch(keyset & below, *args)
        number, group = _group_of(recorder, args[group_at])
        tensors = [] if tensors_at is None else _flat(args[tensors_at]) or _flat(args[0])
        peer = ANY_SOURCE if any_source else None
        if peer_at is not None:
            peer = group.ranks[args[peer_at]]  # c10d counts within the group, people globally
        tag = args[tag_at] if tag_at is not None else 0
        # Arguments that equal their default do not arrive here; async_op's default is True.
        asynchronous = async_at is not None and (len(args) <= async_at or args[async_at])
        size = sum(t.numel() * t.element_size() for t in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        if name not in POINT_TO_POINT:
            recorder.sum_up(group, name, peer, (size, dtype) if name in SAME_SIZE else None)
        offset = recorder.begin(
            name,
            number,
            tuple(tuple(t.shape) for t in tensors),
            dtype,
            size,
            peer,
            tag,
            asynchronous,
        )
        on_gpu = bool(tensors) and tensors[0].is_cuda
        if on_gpu:
            recorder.on_gpu()
        try:
            with recorder.blocking(offset):  # most return at once, some block right here
                out = operation.redispatch(keyset & below, *args)
        except BaseException:
            recorder.end(offset)
            raise
        _follow(recorder, offset, out, asynchronous, on_gpu)
        return out

    return hook


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
        return Group(name, tuple(ranks))

    return recorder.group((group.group_name, group.size()), describe)


def _follow(recorder: Recorder, offset: int, out: Any, asynchronous: bool, on_gpu: bool) -> None:
    """See to it that the entry gets its end."""
    import torch
    import torch.distributed as dist

    boxed = out[-1] if isinstance(out, tuple) else out
    if not isinstance(boxed, torch.ScriptObject):  # monitored_barrier has no Work: it is over
        recorder.end(offset)
        return
    if on_gpu:
        global _graph_holds_work
        _graph_holds_work = _graph_holds_work or torch.cuda.is_current_stream_capturing()
        recorder.end(offset)
        return
    # The Python object of a Work is one and the same as long as it lives, so the one that the
    # caller gets and waits for is found again by its identity.
    work = dist.Work.unbox(boxed)
    recorder.pending[id(work)] = (work, offset)
    if asynchronous:
        try:
            future = work.get_future()
        except RuntimeError:
            return  # no future (send, recv): its end is seen when it is waited for
        key = id(work)

        def done(_: Any) -> None:
            recorder.end(offset)
            recorder.pending.pop(key, None)

        future.add_done_callback(done)


def _wait_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        entry = recorder.pending.pop(id(self), None) if recorder else None
        if recorder is None or entry is None:
            return original(self, *args, **kwargs)
        try:
            with recorder.blocking(entry[1]):
                return original(self, *args, **kwargs)
        finally:
            recorder.end(entry[1])

    return wait


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
        what = name
        if name == "new_group":
            if kwargs.get("use_local_synchronization"):  # a matter of the members alone
                return original(*args, **kwargs)
            ranks = args[0] if args else kwargs.get("ranks")
            what = f"new_group({'' if ranks is None else sorted(ranks)})"
        elif name == "init_process_group":
            asked = args[3] if len(args) > 3 else kwargs.get("world_size", -1)
            if isinstance(asked, int) and asked > 0:
                what = f"init_process_group(world_size={asked})"
        if _by_nccl(name, args, kwargs):
            recorder.on_gpu()  # NCCL's ranks keep the processor busy while they wait
        with recorder.internal("setup", what):
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

    if _graph_holds_work and any(isinstance(o, torch.cuda.CUDAGraph) for o in gc.get_objects()):
        raise RuntimeError(
            "destroy_process_group() would hang: a captured CUDA graph that holds NCCL work is "
            "still alive. Delete the graph first (del graph; torch.cuda.synchronize()), then "
            "destroy the group."
        )


# ── The notebook's side ──────────────────────────────────────────────────────────────────────


class Reader:
    """Reads a rank's record while it is being written, or from a copy afterwards."""

    def __init__(self, memory: Any, rank: int):
        self._memory = memory
        self._rank = rank
        self._before: dict[Any, int] = {}

    def copy(self) -> Reader:
        used = max(self._header()[0], _HEADER.size)
        return Reader(bytes(self._memory[:used]), self._rank)

    @property
    def pid(self) -> int:
        """The rank's process; 0 until it has begun."""
        return self._header()[1]

    @property
    def on_gpu(self) -> bool:
        """Whether the rank has made calls on a GPU, which return when they are queued."""
        return self._header()[4] != 0

    @property
    def has_threads(self) -> bool:
        """Whether other threads of the rank may act while its main thread waits."""
        return self._header()[5] != 0

    def _header(self) -> tuple[int, int, int, int, int, int]:
        used, pid, waiting, lost, on_gpu, threads = _HEADER.unpack_from(self._memory, 0)
        return used, pid, waiting, lost, on_gpu, threads

    @property
    def lost(self) -> int:
        """How many calls no longer fitted."""
        return self._header()[3]

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever the rank's main thread enters or leaves a call."""
        header = self._header()
        return header[0], header[2]

    @property
    def waits(self) -> bool:
        """Whether the rank's main thread is blocked in a call at this moment."""
        return self._header()[2] != 0

    def calls(self) -> list[Call]:
        """The operations on process groups so far, in the order in which they began."""
        return [call for call in self.log().values() if not call.group.is_internal]

    def setup(self) -> list[Call]:
        """The calls so far that make or end process groups, in the order in which they began."""
        return [call for call in self.log().values() if call.group.name == "setup"]

    def blocked_in(self) -> Call | None:
        """The call in which the rank's main thread waits, if it does."""
        return self.log().get(self._header()[2])

    def reached(self) -> dict[CallLine, int]:
        """For each sequence of calls, how many of them this rank has entered."""
        calls = self.log().values()
        return self._before | {call.line: call.number + 1 for call in calls}

    def log(self) -> dict[int, Call]:
        """Everything, by its place in the record."""
        groups: dict[int, Group] = {}
        entries: dict[int, Call] = {}
        self._before = {}
        offset, used = _HEADER.size, self._header()[0]
        while offset < used:
            start, end, length = _ENTRY.unpack_from(self._memory, offset)
            body = offset + _ENTRY.size
            kind, *rest = marshal.loads(self._memory[body : body + length])
            if kind == "group":
                number, name, ranks = rest
                groups[number] = Group(name, tuple(ranks))
            elif kind == "count":
                (group, *line), count = rest
                if group in groups:
                    self._before[(groups[group], *line)] = count
            else:
                operation, group, number, shapes, dtype, size, peer, tag, asynchronous = rest
                entries[offset] = Call(
                    rank=self._rank,
                    operation=operation,
                    group=groups[group],
                    number=number,
                    shapes=shapes,
                    dtype=dtype,
                    bytes=size,
                    peer=peer,
                    tag=tag,
                    asynchronous=asynchronous,
                    start=start,
                    end=None if math.isnan(end) else end,
                )
            offset = body + length
        return entries
