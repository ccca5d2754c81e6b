"""What of PyTorch is observed in a rank; and the one place that keeps it from the program.

The calls are caught at PyTorch's dispatcher, which every path to a process group passes:
`torch.distributed`, DDP's reducer, functional collectives, compiled code. What may block besides
(waits, stores, making and ending groups) is caught where it is defined.

An observer is a generator: it runs until its `yield` before a call, and goes on with what the call
returned, or with RAISED. It runs nothing of the program's own, and what it raises is noted once and
left out of the record: the program never sees it, and calls what it would have called. What
observers use of Python they have from when this module was imported: a program may put something
else into `builtins` or `os`.

A rank must also end as it would without a record. gloo's threads take Python's lock now and then,
to drop a tensor that Python has seen, and every tensor of a call has been seen here. Who destroys a
group's C++ object holds that lock and waits for those threads. So the Python object of a group's
backend, whose end gives the lock back, lives here a little longer than the group; and what is there
when a job is done stays (`groups`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import sys
from builtins import all, any, isinstance, issubclass, len, map, next, repr, sum, type, zip  # noqa: UP029
from collections import deque
from collections.abc import Callable, Generator, Iterable
from signal import getsignal, valid_signals
from types import CodeType
from typing import Any
from weakref import ref

from ..calls import ANY_SOURCE, NOBODY, POINT_TO_POINT, SAME_SIZE, Group
from .naming import frame_here, name_of
from .recorder import Recorder

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
_LONGEST_DESCRIPTION = 60  # characters
_LONGEST_KEYS = 200  # characters of the names for which a rank waits at a store
RAISED = object()  # what an observer gets in place of the result of a call that raised

Arguments = tuple[Any, ...]
Observer = Callable[[Recorder, Arguments, dict[str, Any]], Generator[None, Any, None]]

_recorder: Recorder | None = None
_graph_holds_work = False
# Of torch, once `install` has run: a program may put something else into `sys.modules`.
torch: Any = None
dist: Any = None
_key = object.__hash__  # as id(), of which programs can hear
_OWN = globals()
_get_future: Any = None
_eval_frame: Any = None
_C10D = ""  # the file of what calls its operations from Python


# ── Beside the program ───────────────────────────────────────────────────────────────────────


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


def safely(do: Callable[..., Any], *args: Any, default: Any = None) -> Any:
    """`do(*args)`, or `default` where that raises, which is noted: the program does not see it."""
    compiling = _eval_frame.set_eval_frame(None)  # torch.compile's look at each function
    try:
        with torch._C.DisableTorchFunction():  # subclasses of tensors, modes: the program's
            return do(*args)
    except Exception as error:
        if _comes_from_outside(error):
            raise
        recorder = _recorder
        if recorder is not None:
            recorder.doubt(f"the record of calls is not complete: {_told(error)}")
    finally:
        _eval_frame.set_eval_frame(compiling)
    return default


def _not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """As torch._dynamo.decorators.skip, which need not be imported for that."""
    kinds = _eval_frame._FrameAction
    skip = _eval_frame._FrameExecStrategy(kinds.SKIP, kinds.DEFAULT)
    _eval_frame.set_code_exec_strategy(function.__code__, skip)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def _comes_from_outside(error: Exception) -> bool:
    """Whether this has come while an observer ran, but not of it: from the program's handler of a
    signal, or, being none of the errors that observers run into, from another thread."""
    if type(error).__module__.partition(".")[0] not in _MAY_BE_OURS:
        return True
    handlers, at = _codes_of_handlers(), error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in handlers:
            return True
        at = at.tb_next
    return False


_MAY_BE_OURS = frozenset({"builtins", "struct", "msgspec", "torch"})


def _codes_of_handlers() -> set[CodeType]:
    handlers = [handler for number in valid_signals() if callable(handler := getsignal(number))]
    functions = handlers + [getattr(handler, "func", None) for handler in handlers]  # of a partial
    functions += [getattr(handler, "__func__", type(handler).__call__) for handler in handlers]
    return {code for one in functions if type(code := getattr(one, "__code__", 0)) is CodeType}


def _told(error: Exception) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = at and f" ({at.tb_frame.f_code.co_name}, line {at.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


def _beside(
    observer: Observer, recorder: Recorder, call: Callable[..., Any], args: Arguments, more: Any
) -> Any:
    """`call(*args, **more)`, with an observer beside it."""
    watching = observer(recorder, args, more)
    safely(next, watching, None)
    try:
        result = call(*args, **more)
    except BaseException:
        safely(_go_on, watching, RAISED)
        raise
    safely(_go_on, watching, result)
    return result


def _go_on(watching: Generator[None, Any, None], result: Any) -> None:
    with contextlib.suppress(StopIteration):
        watching.send(result)


def _observed(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None:
            return original(*args, **kwargs)
        return _beside(observer, recorder, original, args, kwargs)

    if not hasattr(original, "__wrapped__"):
        del call.__wrapped__
        with contextlib.suppress(ValueError):  # functions of C++ have none
            call.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return _not_compiled(call)


# ── What is observed ─────────────────────────────────────────────────────────────────────────


def install() -> None:
    """Put the hooks in place, once a process; they cost next to nothing until `start()`.

    Imports torch, runs no tensor operation and starts no thread, so it may run before a fork.
    """
    global torch, dist, _C10D, _get_future, _eval_frame
    import torch
    import torch.distributed as dist

    _C10D, _get_future = dist.distributed_c10d.__file__, dist.Work.get_future
    _eval_frame = torch._C._dynamo.eval_frame
    for own in (_beside, safely):
        _not_compiled(own)
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    library = torch.library.Library("c10d", "IMPL")
    for name, public in _NAMES.items():
        packet = getattr(torch.ops.c10d, name, None)
        if packet is not None:  # an operation that this PyTorch does not have
            hook = _hook(packet.default, _operation(packet.default, public), below)
            library.impl(name, hook, "BackendSelect", with_keyset=True)
    functional = torch.library.Library("_c10d_functional", "IMPL")
    wait = _hook(torch.ops._c10d_functional.wait_tensor.default, _wait_tensor, below)
    functional.impl("wait_tensor", wait, "BackendSelect", with_keyset=True)
    _libraries.extend([library, functional])
    dist.Work.wait = _observed(dist.Work.wait, _wait)
    for name in ("is_completed", "get_future", "synchronize"):
        setattr(dist.Work, name, _observed(getattr(dist.Work, name), _ask))
    torch._C.Future.wait = _observed(torch._C.Future.wait, _future_wait)
    for name in ("get", "wait"):
        setattr(dist.Store, name, _observed(getattr(dist.Store, name), _store(name)))
    for name in ("isend", "irecv", "batch_isend_irecv"):
        _replace(getattr(dist, name), _begun(name))
    _replace(dist.init_process_group, _init_process_group)
    _replace(dist.new_group, _new_group)
    _replace(dist.destroy_process_group, _destroy_process_group)


_libraries: list[Any] = []  # a Library takes its kernels along when it is collected


def _replace(original: Callable[..., Any], observer: Observer) -> None:
    """Observe a function wherever a module of PyTorch has imported it by name."""
    observed = _observed(original, observer)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed"):
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, observed)


def _hook(operation: Any, observer: Observer, below: Any) -> Callable[..., Any]:
    """A kernel for the dispatcher that calls the one below it."""
    redispatch = operation.redispatch

    def hook(keyset: Any, *args: Any) -> Any:
        recorder = _recorder
        if recorder is None or recorder.here.quiet:
            return redispatch(keyset & below, *args)
        return _beside(observer, recorder, redispatch, (keyset & below, *args), {})

    return _not_compiled(hook)


def _operation(operation: Any, name: str) -> Observer:
    """Of one of c10d's operations; `name` is what people call it."""
    arguments = ["keyset", *(argument.name for argument in operation._schema.arguments)]

    def index(*names: str) -> int | None:
        return next((arguments.index(n) for n in names if n in arguments), None)

    group_at = arguments.index("process_group")
    tensors_at = index("input_tensors", "input_tensor", "inputs", "input_list", "input", "tensors")
    peer_at = index("dst", "src", "root_rank")
    tag_at = index("tag")
    async_at = index("async_op")
    any_source = operation._schema.name.endswith("recv_any_source_")
    is_message = name in POINT_TO_POINT
    tensor = torch._C.TensorBase  # a subclass may have other ideas of what these are
    shape_of, type_of = tensor.shape.__get__, tensor.dtype.__get__
    is_on_gpu = tensor.is_cuda.__get__

    def size_of(t: Any) -> int:
        return int(tensor.numel(t) * tensor.element_size(t))

    def observe(recorder: Recorder, args: Arguments, _: Any) -> Generator[None, Any, None]:
        number, group = _group_of(recorder, args[group_at])
        tensors = [] if tensors_at is None else _flat(args[tensors_at]) or _flat(args[1])
        peer = ANY_SOURCE if any_source else None
        if peer_at is not None:
            peer = _global_rank(group, args[peer_at])
        tag = args[tag_at] if tag_at is not None else 0
        # Arguments that equal their default do not arrive here; async_op's default is True.
        asynchronous = async_at is not None and (len(args) <= async_at or args[async_at])
        size = sum(map(size_of, tensors))
        dtype = str(type_of(tensors[0])).removeprefix("torch.") if tensors else ""
        if not is_message:
            recorder.sum_up(group, name, peer, (size, dtype) if name in SAME_SIZE else None)
        on_gpu = bool(tensors) and is_on_gpu(tensors[0])
        stream = _stream_of(tensors[0]) if on_gpu else None
        shapes = tuple(tuple(shape_of(t)) for t in tensors)
        place = recorder.begin(name, number, shapes, dtype, size, peer, tag, asynchronous, stream)
        has_handle = _has_python_the_handle()
        if asynchronous and not has_handle:
            recorder.say_waited(place)
        if on_gpu:
            recorder.on_gpu()
        entered = recorder.enter(place)  # most return at once, some block right here
        out = yield
        recorder.leave(entered)
        if out is RAISED:
            recorder.end(place)
        else:
            _follow(recorder, place, out, is_message, asynchronous, on_gpu, has_handle)

    return observe


def _stream_of(tensor: Any) -> int | None:
    """The stream that a call with this tensor follows; None where a graph is being captured."""
    if torch.cuda.is_current_stream_capturing():
        return None
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _has_python_the_handle() -> bool:
    """Whether a function of torch.distributed made this call, which returns its handle; DDP's
    reducer and functional collectives keep theirs in C++, and may call from threads of C++."""
    at: Any = frame_here()
    while at is not None and at.f_globals is _OWN:
        at = at.f_back
    return at is not None and at.f_code.co_filename == _C10D


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
    """The number that the record has for a process group, and what it is."""
    group = dist.ProcessGroup.unbox(boxed)
    known = _seen.get(_key(group))
    if known is not None and known[0]() is group:
        return known[1]
    name = _name_of(group)
    size = dist.ProcessGroup.size(group)
    found = recorder.group((name, size), lambda: _describe(recorder, group, name, size))
    key, backends = _key(group), _backends(group)

    def gone(_: Any) -> None:
        _seen.pop(key, None)
        _departed.append(backends)

    _seen[key] = (ref(group, gone), found)
    return found


# Groups that have been used, by key; and what those talked by that went last.
_seen: dict[int, tuple[ref[Any], tuple[int, Group]]] = {}
_departed: deque[list[Any]] = deque(maxlen=1)


def groups() -> list[Any]:
    """The process groups that are alive: while they are held none of them ends."""
    return [group() for group, _ in list(_seen.values())]


def forget_departed() -> None:
    """Let go of what was kept of groups that are no more: while the program holds the handles of
    their calls, for which they may wait. A store of theirs may tidy up then."""
    _departed.clear()


def _name_of(group: Any) -> str:
    return str(dist.ProcessGroup.group_name.fget(group))


def _backends(group: Any) -> list[Any]:
    """The Python objects of what a group talks by; to be dropped after it."""
    found = []
    for device in dist.ProcessGroup._device_types.fget(group):
        with contextlib.suppress(RuntimeError):  # it has none for that device
            found.append(dist.ProcessGroup._get_backend(group, device))
    return found


def _describe(recorder: Recorder, group: Any, name: str, size: int) -> Group:
    default = dist.group.WORLD
    if default is None or group is default:
        return Group(recorder.default_name(), tuple(range(size)), "")
    ranks = dist.distributed_c10d._world.pg_group_ranks.get(group)
    if ranks is None:  # the program has made it by itself: who is in it is not known
        recorder.doubt()
        ranks = range(size)
    called = safely(name_of, group, default="") or _described(group)
    return Group(name, tuple(ranks), called)


def _described(group: Any) -> str:
    """What the program, or a mesh, said of a group when it made it (group_desc)."""
    said = str(dist.ProcessGroup.group_desc.fget(group))
    own = said.isprintable() and len(said) <= _LONGEST_DESCRIPTION and ":" not in said
    return said if own and said != "undefined" else ""


def _follow(
    recorder: Recorder,
    place: int,
    out: Any,
    is_message: bool,
    asynchronous: bool,
    on_gpu: bool,
    has_handle: bool,
) -> None:
    """See to it that the entry gets its end."""
    boxed = out[-1] if type(out) is tuple else out
    is_work = isinstance(boxed, torch.ScriptObject)  # monitored_barrier has none
    work = dist.Work.unbox(boxed) if is_work else None
    if on_gpu:
        global _graph_holds_work
        captured = torch.cuda.is_current_stream_capturing()
        _graph_holds_work = _graph_holds_work or captured
        recorder.say_waited(place)  # its stream does
        recorder.end(place)
        if work is not None and (asynchronous or is_message) and not captured:
            recorder.follow_on_gpu(work, place, has_handle)
        return
    # None: NCCL's answer to a call that the program has waited for already. A class of the
    # program's own says nothing of its ends to us.
    if work is None or type(work).wait is not dist.Work.wait:
        recorder.say_waited(place)
        recorder.end(place)
        return
    future = None
    if asynchronous and not is_message:  # the end of a message is seen by who waits for it
        with contextlib.suppress(RuntimeError):  # gloo's reduce_scatter has none
            future = _get_future(work)  # not as the program would: see _ask
    recorder.follow(work, place, is_message, future, has_handle or not asynchronous)


def _begun(name: str) -> Observer:
    """Of isend, irecv and batch_isend_irecv: what they return is the caller's to keep."""

    def observe(recorder: Recorder, _: Any, __: Any) -> Generator[None, Any, None]:
        here = recorder.here
        before, here.batching = here.batching, here.batching or name == "batch_isend_irecv"
        yield
        here.batching = before
        here.fresh.clear()

    return observe


def _wait(recorder: Recorder, args: Arguments, _: Any) -> Generator[None, Any, None]:
    work = args[0]
    place = recorder.waited_again(work) or recorder.waited_for(work)
    if not place:
        return
    entered = recorder.enter(place)
    told = yield
    recorder.leave(entered)
    if told is not RAISED:
        recorder.is_over(work, place)
    recorder.say_waited(place)
    recorder.end(place)
    _say_who_waits(recorder, place)


def _future_wait(recorder: Recorder, args: Arguments, _: Any) -> Generator[None, Any, None]:
    """Of wait() on what a work's get_future() returned."""
    place = recorder.awaited_as(args[0])
    if not place:
        return
    entered = recorder.enter(place)
    told = yield
    recorder.leave(entered)
    if told is not RAISED:
        _say_who_waits(recorder, place)


def _say_who_waits(recorder: Recorder, place: int) -> None:
    """The stream on which a wait() was queued; not while a graph is captured, nor on a CPU."""
    cuda = torch.cuda
    if recorder.is_on_gpu and cuda.is_initialized() and not cuda.is_current_stream_capturing():
        recorder.stream_waits(place, int(cuda.current_stream().cuda_stream))


def _ask(recorder: Recorder, args: Arguments, _: Any) -> Generator[None, Any, None]:
    """Of what tells in another way than wait() that a work is over."""
    told = yield
    if told is not False and told is not RAISED:
        recorder.completed(args[0], told)


def _wait_tensor(recorder: Recorder, _: Any, __: Any) -> Generator[None, Any, None]:
    entered = recorder.enter(recorder.newest)
    yield
    recorder.leave(entered)


def _store(name: str) -> Observer:
    def observe(recorder: Recorder, args: Arguments, _: Any) -> Generator[None, Any, None]:
        if recorder.here.quiet or len(args) < 2:
            return
        keys = [args[1]] if type(args[1]) is str else args[1]
        plain = type(keys) in (list, tuple) and all(type(key) is str for key in keys)
        shown = repr(", ".join(keys) if plain else "…")
        what = f"store.{name}({shown if len(shown) < _LONGEST_KEYS else '…'})"
        with recorder.internal("store", what, may_be_helped=not _is_the_jobs(args[0])):
            yield

    return observe


def _is_the_jobs(store: Any) -> bool:
    """Whether only the ranks of this job know a store: the one that the launcher gave them."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.FileStore):
        return str(store.path).startswith("/proc/self/fd/")
    if isinstance(store, dist.TCPStore):
        known = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        return (store.host, str(store.port)) == known
    return isinstance(store, dist.HashStore)


def _init_process_group(
    recorder: Recorder, args: Arguments, more: dict[str, Any]
) -> Generator[None, Any, None]:
    if recorder.here.quiet:
        return
    given = dict(zip(_OF_INIT, args, strict=False)) | more
    size, rank = (given.get(name) for name in ("world_size", "rank"))
    elsewhere = given.get("store") is not None or given.get("init_method") not in (None, "env://")
    by_itself = type(size) is int and size > 0
    what = f"init_process_group(world_size={size})" if by_itself else "init_process_group"
    others = elsewhere and by_itself and str(size) != os.environ.get("WORLD_SIZE")
    if "nccl" in str(given.get("backend")):
        recorder.on_gpu()  # NCCL's ranks keep the processor busy while they wait
    with recorder.internal("setup", what, rank if type(rank) is int else None, others):
        yield
    if dist.is_initialized():
        own = dist.get_rank(), dist.get_world_size()
        if own != tuple(int(os.environ.get(name, -1)) for name in ("RANK", "WORLD_SIZE")):
            recorder.doubt()


_OF_INIT = ("backend", "init_method", "timeout", "world_size", "rank", "store")


def _new_group(
    recorder: Recorder, args: Arguments, more: dict[str, Any]
) -> Generator[None, Any, None]:
    # With local synchronization it is a matter of the members alone.
    if recorder.here.quiet or more.get("use_local_synchronization"):
        return
    _note_nccl(recorder)
    ranks = args[0] if args else more.get("ranks")
    what = f"new_group({'' if ranks is None else _members(ranks)})"
    with recorder.internal("setup", what):
        yield


def _members(ranks: Any) -> str:
    """Sorted; or "…" where to look at them would change them, or run what is the program's."""
    plain = type(ranks) in (list, tuple, range, set, frozenset)
    return str(sorted(ranks)) if plain and all(type(one) is int for one in ranks) else "…"


def _destroy_process_group(
    recorder: Recorder, args: Arguments, more: dict[str, Any]
) -> Generator[None, Any, None]:
    if recorder.here.quiet:
        return
    _note_nccl(recorder)
    if _graph_holds_work and any(map(_holds_a_capture, _instances(torch.cuda.CUDAGraph))):
        recorder.on_gpu(holds_a_graph=True)
    with recorder.internal("setup", "destroy_process_group"):
        yield
        forget_departed()
    if not dist.is_initialized():
        recorder.default_ended()


def _note_nccl(recorder: Recorder) -> None:
    if dist.is_initialized() and dist.get_backend() == "nccl":
        recorder.on_gpu()


def _instances(kind: type) -> Iterable[Any]:
    return (one for one in gc.get_objects() if issubclass(type(one), kind))


def _holds_a_capture(graph: Any) -> bool:
    """Whether it has captured something, and was not reset."""
    try:
        torch.cuda.CUDAGraph.pool(graph)
    except RuntimeError:
        return False
    return True
