"""Observes PyTorch in a rank, and is the one place that keeps this from the program.

`torch.distributed` calls the methods of a process group: there its calls are caught. DDP's reducer,
functional collectives and compiled code go past them, in C++. Before the first of these can, calls
begin to be caught at PyTorch's dispatcher instead, which every path to a process group passes, and
where a kernel in Python costs far more (`_descend`). What may block besides (waits, stores, making
and ending groups) is caught where it is defined.

NCCL's calls PyTorch records by itself (`nccl_calls`). While all groups are NCCL's nothing of this
is in a call, or in a wait (`_suit_groups`).

An observer is a generator: it runs until its `yield` before a call, and goes on with what the call
returned, or with RAISED. (A synchronous call on the CPU has plain functions beside it, which cost
less.) It runs nothing of the program's own, and what it raises is noted once and left out of the
record: the program never sees it, and calls what it would have called. What observers use of Python
they have from when this module was imported: a program may put something else into `builtins` or
`os`.

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
import threading
from builtins import all, any, isinstance, issubclass, len, map, next, repr, sum, type, zip  # noqa: UP029
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from math import prod
from signal import getsignal, valid_signals
from time import perf_counter
from types import CodeType, FrameType
from typing import Any
from weakref import ref

from ...calls.record import ANY_SOURCE, NOBODY, ONCE, POINT_TO_POINT, SAME_SIZE, Group
from .naming import frame_here, name_of
from .record_writer import CallKind
from .recorder import Recorder
from .rendezvous import file_of

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
# The method of a process group that calls an operation has its name without the "_" at the end; or
# this one, mostly since PyTorch 2.13.
_OTHER_METHODS = {
    "_allgather_base_": "all_gather_single",
    "allgather_into_tensor_coalesced_": "all_gather_single_coalesced",
    "_reduce_scatter_base_": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_single_coalesced",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv_anysource",
}
_LONGEST_DESCRIPTION = 60  # characters
_LONGEST_KEYS = 200  # characters of the names for which a rank waits at a store
_MOST_KINDS = 4096  # of calls of one operation that are remembered
_LISTS = frozenset({list, tuple})
RAISED = object()  # what an observer gets in place of the result of a call that raised

Arguments = tuple[Any, ...]
_Looks = tuple[tuple[Any, Any, bool], ...]  # tensors' shape, dtype, and whether on a GPU
# What a call is given: its tensors; its peer, as c10d counts, within the group, None: any, or none;
# its tag, and whether it is asynchronous.
_What = tuple[_Looks, int | None, int, bool]
Watching = Generator[None, Any, None]
Observer = Callable[[Recorder, Arguments, dict[str, Any]], Watching]

_recorder: Recorder | None = None
_nccl: Any = None  # the NcclCalls of this process, from its first group of NCCL's on
_all_are_nccls = False  # all groups
_unnamed: dict[str, int] = {}  # groups of NCCL's: how often they have been looked at
_is_aside = False  # no hook is in a call
_has_captured = False
_is_deep = False  # calls are caught at the dispatcher
# Of torch, once `install` has run: a program may put something else into `sys.modules`.
torch: Any = None
dist: Any = None
_options: set[Any] = set()  # the types of what the methods of a process group are given last
_key = object.__hash__  # as id(), of which programs can hear
_OWN = globals()
_get_future: Any = None
_shape_of: Any = None  # getters of tensors whose class may have other ideas of what these are
_dtype_of: Any = None
_is_cuda: Any = None
_base: Any = None  # the class of all tensors
_plain: set[Any] = set()  # the classes of tensors that do as PyTorch does
_has_modes: Any = None  # whether the program is asked about each function of PyTorch
_eval_frame: Any = None
_operations: Any = None  # the class of torch.ops.c10d
_below: Any = None  # the dispatcher's keys below the one at which calls are caught
_C10D = ""  # the file of what calls its operations from Python


# ── Beside the program ───────────────────────────────────────────────────────────────────────


def start(memory: Any) -> Recorder:
    """Begin to record this process's calls into `memory`; `install()` must have run."""
    global _recorder
    _recorder = Recorder(memory)
    os.register_at_fork(after_in_child=_stop)
    return _recorder


def settle() -> None:
    """Have what the record does not know yet of calls in it: a job is over."""
    if _recorder is not None:
        if _nccl is not None:
            with contextlib.suppress(RuntimeError):  # a GPU that is lost: its program is told
                _nccl.copy(is_over=True)
        _recorder.settle()


def _stop() -> None:
    """Stop recording: what a rank forks, such as a data loader's worker, is no rank."""
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
            recorder.doubt(f"the record of calls is incomplete: {_told(error)}")
    finally:
        _eval_frame.set_eval_frame(compiling)
    return default


def _not_compiled(function: Callable[..., Any], *, nor_within: bool = False) -> Callable[..., Any]:
    """As torch._dynamo.decorators.skip, which need not be imported for that."""
    kinds = _eval_frame._FrameAction
    within = kinds.SKIP if nor_within else kinds.DEFAULT
    skip = _eval_frame._FrameExecStrategy(kinds.SKIP, within)
    _eval_frame.set_code_exec_strategy(function.__code__, skip)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def _comes_from_outside(error: Exception) -> bool:
    """Return whether this has come while an observer ran, but not of it: from the program's handler
    of a signal, or, being none of the errors that observers run into, from another thread.
    """
    if type(error).__module__.partition(".")[0] not in _MAY_BE_OURS:
        return True
    handlers, at = _codes_of_handlers(), error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in handlers:
            return True
        at = at.tb_next
    return False


_MAY_BE_OURS = frozenset({"builtins", "ctypes", "struct", "msgspec", "torch"})


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


def _beside(watching: Watching, call: Callable[..., Any], args: Arguments, more: Any) -> Any:
    """`call(*args, **more)`, with an observer beside it."""
    safely(next, watching, None)
    try:
        result = call(*args, **more)
    except BaseException:
        safely(_go_on, watching, RAISED)
        raise
    safely(_go_on, watching, result)
    return result


def _go_on(watching: Watching, result: Any) -> None:
    try:  # noqa: SIM105 - suppress() takes a microsecond of every call
        watching.send(result)
    except StopIteration:
        pass


def _observed(
    original: Callable[..., Any], observer: Observer, *, always: bool = False
) -> Callable[..., Any]:
    """`original` with an observer beside it. always: even while all groups are NCCL's."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None or (_is_aside and not always):
            return original(*args, **kwargs)
        return _beside(observer(recorder, args, kwargs), original, args, kwargs)

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
    global torch, dist, _C10D, _get_future, _eval_frame, _below
    global _base, _has_modes, _shape_of, _dtype_of, _is_cuda
    import torch
    import torch.distributed as dist

    _C10D, _get_future = dist.distributed_c10d.__file__, dist.Work.get_future
    _base, _has_modes = torch._C.TensorBase, torch._C._is_torch_function_mode_enabled
    _plain.update((torch.Tensor, torch.nn.Parameter))
    _shape_of, _dtype_of, _is_cuda = _base.shape.__get__, _base.dtype.__get__, _base.is_cuda.__get__
    _eval_frame = torch._C._dynamo.eval_frame
    kinds = vars(torch._C._distributed_c10d).values()
    _options.update(kind for kind in kinds if hasattr(kind, "asyncOp"))
    for own in (_beside, safely):
        _not_compiled(own)
    _below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    for name in _NAMES:
        for method in (name.rstrip("_"), _OTHER_METHODS.get(name, "")):
            if hasattr(dist.ProcessGroup, method):  # this PyTorch has it
                _put(dist.ProcessGroup, method, _method(method, _Operation(name)))
    for name in ("_verify_params_across_processes", "_broadcast_coalesced"):
        _replace(getattr(dist, name), _way_down)
    _put(dist.Reducer, "__init__", _observed(dist.Reducer.__init__, _way_down))
    _put(dist.Work, "wait", _waited_for(dist.Work.wait))
    for name in ("is_completed", "get_future", "synchronize"):
        _put(dist.Work, name, _observed(getattr(dist.Work, name), _ask))
    _put(torch._C.Future, "wait", _observed(torch._C.Future.wait, _future_wait))
    for name in ("isend", "irecv", "batch_isend_irecv"):
        _replace(getattr(dist, name), _begun(name))
    _watch_the_ways_down()
    for name in ("get", "wait"):
        seen = _observed(getattr(dist.Store, name), _store(name), always=True)
        setattr(dist.Store, name, seen)
    graphs = torch.cuda.CUDAGraph
    graphs.capture_begin = _observed(graphs.capture_begin, _capture, always=True)
    graphs.capture_end = _observed(graphs.capture_end, _captured, always=True)
    graphs.replay = _noting_replays(graphs.replay)
    _replace(dist.init_process_group, _init_process_group, always=True)
    _replace(dist.new_group, _new_group, always=True)
    _replace(dist.destroy_process_group, _destroy_process_group, always=True)


_in_calls: list[tuple[Any, str, Any, Any]] = []  # where hooks are: owner, name, without and with


def _put(owner: Any, name: str, hook: Any) -> None:
    # As it stands there: what getattr() gives of a method of C++ is no method any more.
    _in_calls.append((owner, name, inspect.getattr_static(owner, name), hook))
    setattr(owner, name, hook)


def _replace(original: Callable[..., Any], observer: Observer, *, always: bool = False) -> None:
    """Observe a function wherever a module of PyTorch has imported it by name."""
    observed = _observed(original, observer, always=always)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed"):
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, observed)
                    if not always:
                        _in_calls.append((module, key, original, observed))


def _suit_groups(recorder: Recorder) -> None:
    """Have hooks in calls where a group needs them, and see that NCCL's calls are read.

    A group of NCCL's needs them until its name in the program is known: at its first call, or when
    the thread that reads NCCL's calls has looked twice.
    """
    global _nccl, _all_are_nccls
    world = dist.distributed_c10d._world
    backends = {group: str(one) for group, one in world.pg_backend_config.items()}
    all_are_nccls = False
    if any("nccl" in one for one in backends.values()):
        from .nccl_calls import NcclCalls, is_recorded

        if not is_recorded():
            return
        if _nccl is None:
            _nccl = NcclCalls(recorder, int(os.environ["RANK"]), _nccls_group, _name_groups)
            _nccl.watch()
        for group, name in world.pg_names.items():
            known = group is dist.group.WORLD or recorder.knows((name, group.size(), "nccl"))
            if not known and "nccl" in backends.get(group, ""):
                _unnamed.setdefault(name, 0)
        for name in _unnamed.keys() - world.pg_names.values():  # that are no more
            _unnamed.pop(name, None)
        parts = [part for one in backends.values() for part in one.split(",")]
        all_are_nccls = all(part.endswith(":nccl") for part in parts)
    if all_are_nccls is not _all_are_nccls:
        _all_are_nccls = all_are_nccls
        if all_are_nccls:
            _watch_no_way_down()
        else:
            _watch_the_ways_down()
    _step_aside()


def _step_aside() -> None:
    """Take the hooks out of calls, or put them back, as the groups that there are need it.

    Where the program has put something of its own in the place of a hook, that stays.
    """
    global _is_aside
    aside = _all_are_nccls and not _unnamed
    if aside is not _is_aside:
        _is_aside = aside
        for owner, name, without, hook in _in_calls:
            if vars(owner).get(name) is (hook if aside else without):
                setattr(owner, name, without if aside else hook)


def _nccls_group(
    name: str, ranks: tuple[int, ...], frame: FrameType | None = None
) -> tuple[int, Group]:
    """The same as `_group_of`, for a group that NCCL's record knows by its name.

    NCCL's calls of a group that has another backend, too, are counted by themselves: for the record
    that is another group. frame: where the program is, if not in this thread.
    """
    recorder = _recorder
    assert recorder is not None

    def describe() -> Group:
        world = dist.distributed_c10d._world
        for group, called in list(world.pg_names.items()):
            if called == name:
                found = _describe(recorder, group, name, len(ranks), frame)
                both = "," in str(world.pg_backend_config.get(group, ""))
                return replace(found, name=f"{found.name}, cuda") if both else found
        return Group(name, ranks)

    return recorder.group((name, len(ranks), "nccl"), describe)


def _name_groups(frame: FrameType | None) -> None:
    """Name the groups that were there at the last look, too, and have not been called."""
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        if name in _unnamed:
            _unnamed[name] += 1
            if _unnamed[name] > 1:
                _nccls_group(name, tuple(dist.get_process_group_ranks(group)), frame)
                _unnamed.pop(name, None)
    _step_aside()


def _name_group(group: Any) -> None:
    name = _name_of(group)
    if name in _unnamed:
        _nccls_group(name, tuple(dist.get_process_group_ranks(group)))
        _unnamed.pop(name, None)
        _step_aside()


# What the methods of a process group are given one by one, and not in their options.
_BESIDES = {"dst", "src", "tag", "output_split_sizes", "input_split_sizes"}


class _Operation:
    """Records the calls of one of c10d's operations. `tensors`, `peer`, `tag` and
    `asynchronous` say which of its arguments those are: their places, None where it has none."""

    def __init__(self, name: str):
        self.name = _NAMES[name]
        self.is_message = self.name in POINT_TO_POINT
        self.arguments = [a.name for a in torch._C._get_schema(f"c10d::{name}", "").arguments]
        self.group = self.arguments.index("process_group")
        inputs = ("input_tensors", "input_tensor", "inputs", "input_list", "input", "tensors")
        self.tensors = self._index(*inputs)
        self.peer = self._index("dst", "src", "root_rank")
        self.tag = self._index("tag")
        self.asynchronous = self._index("async_op")
        besides = [a for a in self.arguments if a in _BESIDES]
        self.given = len(besides) + (self.group if self.tensors is not None else 0)
        self._kinds: dict[Any, tuple[CallKind, bool]] = {}  # of calls that there have been

    def _index(self, *names: str) -> int | None:
        return next((self.arguments.index(n) for n in names if n in self.arguments), None)

    def looks(self, args: Arguments) -> _Looks | None:
        """Return what the tensors are like that go in; on a rank from which none does, those that
        come out. None if one of them is no tensor."""
        if self.tensors is None:
            return ()
        looks = _looks(args[self.tensors])
        return _looks(args[0]) if looks == () else looks

    def read(self, args: Arguments, more: dict[str, Any]) -> _What | None:
        """Look at a call to the method that `torch.distributed` calls; None if it is not made in
        the way in which that does it."""
        if more:
            if more.keys() != {"opts"}:
                return None
            args = (*args, more["opts"])
        if self.is_message:
            if len(args) != self.given or any(type(number) is not int for number in args[1:]):
                return None
            peer, tag, asynchronous = (None if self.peer is None else args[1]), args[-1], False
        else:
            if len(args) != self.given + 1 or type(options := args[-1]) not in _options:
                return None
            peer, tag = (None if self.peer is None else options.rootRank), 0
            asynchronous = options.asyncOp
        looks = self.looks(args)
        return None if looks is None else (looks, peer, tag, asynchronous)

    def is_synchronous(self, args: Arguments) -> bool:
        """Return whether `torch.distributed` makes this call, and then waits for its end."""
        if self.is_message or len(args) != self.given + 1 or type(args[-1]) not in _options:
            return False
        return not args[-1].asyncOp

    def begun(self, recorder: Recorder, group: Any, args: Arguments, at: float) -> int:
        """Enter a synchronous call that was begun at some moment. Returns its entry, 0 for none."""
        peer = None if self.peer is None else args[-1].rootRank
        what = self.looks(args) or (), peer, 0, False
        return self.begin(recorder, group, what, ONCE, at)[0]

    def begin(
        self,
        recorder: Recorder,
        group: Any,
        what: _What,
        waited: int = 0,
        at: float | None = None,
    ) -> tuple[int, bool]:
        """Enter a call in the record. Returns its entry, 0 for none, and whether it is on a GPU."""
        seen = _seen.get(_key(group))
        try:
            kind, on_gpu = self._kinds[seen and seen[1], recorder.local.here.batching, what]
        except (KeyError, TypeError):  # the first of its kind, or its sizes are symbols
            kind, on_gpu = safely(self._kind, recorder, group, what, default=(None, False))
            if kind is None:
                return 0, False
        if on_gpu:
            recorder.on_gpu()
        return recorder.begin_one(kind, waited, at), on_gpu

    def _kind(self, recorder: Recorder, group: Any, what: _What) -> tuple[CallKind, bool]:
        looks, peer, tag, asynchronous = what
        number, known = _group_of(recorder, group)
        batched = recorder.local.here.batching
        if peer is not None:
            peer = _global_rank(known, peer)
        elif self.is_message:
            peer = ANY_SOURCE
        shapes = tuple(tuple(shape) for shape, *_ in looks)
        size = sum(prod(shape) * dtype.itemsize for shape, dtype, _ in looks)
        dtype = str(looks[0][1]).removeprefix("torch.") if looks else ""
        said = (self.name, peer, (size, dtype) if self.name in SAME_SIZE else None)
        summed = None if self.is_message else (known, said)
        call = self.name, number, shapes, dtype, size, peer, tag, asynchronous
        found = recorder.kind(*call, batched=batched, summed=summed), bool(looks) and looks[0][2]
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[number, batched, what] = found
        return found

    def call(
        self, recorder: Recorder, group: Any, what: _What, has_handle: bool = True
    ) -> Watching:
        """Observe a call. has_handle: whether Python gets its Work."""
        *_, asynchronous = what
        place, on_gpu = self.begin(recorder, group, what)
        if asynchronous and not has_handle:
            recorder.say_waited(place)
        entered = recorder.enter(place)  # most return at once, some block right here
        out = yield
        recorder.leave(entered)
        if out is RAISED:
            recorder.end(place)
        else:
            _follow(recorder, place, out, self.is_message, asynchronous, on_gpu, has_handle)


def _is_on_gpu(tensor: Any) -> bool:
    return bool(_is_cuda(tensor))


def _method(name: str, operation: _Operation) -> Callable[..., Any]:
    """A method of process groups, observed where it is called as `torch.distributed` calls it."""
    original = getattr(dist.ProcessGroup, name)
    group_kind = dist.ProcessGroup

    def call(group: Any, *args: Any, **more: Any) -> Any:
        recorder = _recorder
        if recorder is None or _is_aside or _is_deep or (here := recorder.local.here).quiet:
            return original(group, *args, **more)
        if _key(group) in _gloos and not more and operation.is_synchronous(args):
            # A thread of gloo's makes this call, and it is written down while that is at work.
            at, here.is_caught = perf_counter(), True
            try:
                work = original(group, *args)
            except BaseException:
                recorder.end(operation.begun(recorder, group, args, at))
                raise
            finally:
                here.is_caught = False
            try:
                here.blocking = work, operation.begun(recorder, group, args, at)
            except RecursionError:  # the program will see it, too: after a call, or in the next
                recorder.doubt()
                raise
            return work
        if _nccl is not None and safely(_is_nccls, group, args, more):
            if _unnamed:
                safely(_name_group, group)
            return original(group, *args, **more)
        what = operation.read(args, more) if type(group) is group_kind else None
        if what is None:
            safely(_descend)
            return original(group, *args, **more)
        here.is_caught = True
        try:
            watching = operation.call(recorder, group, what)
            return _beside(watching, original, (group, *args), more)
        finally:
            here.is_caught = False

    functools.update_wrapper(call, original)
    del call.__wrapped__  # type: ignore[attr-defined]
    # By its name and first argument pybind11 sees that this is no method of a program's subclass.
    call.__code__ = call.__code__.replace(co_name=name)
    return _not_compiled(call, nor_within=True)


# ── At the dispatcher ────────────────────────────────────────────────────────────────────────


def _watch_the_ways_down() -> None:
    """See to it that `_descend` has run before C++ makes a call by itself."""
    global _operations
    for space in ("_c10d_functional", "_dtensor"):
        library = torch.library.Library(space, "IMPL")
        for full in torch._C._dispatch_get_all_op_names():
            if full.startswith(f"{space}::") and "." not in full:
                name = full.partition("::")[2]
                observer = _wait_tensor if name == "wait_tensor" else _way_down
                kernel = _kernel(getattr(getattr(torch.ops, space), name).default, observer)
                library.impl(name, kernel, "BackendSelect", with_keyset=True)
        _libraries.append(library)
    _operations = type(torch.ops.c10d)
    torch.ops.c10d.__class__ = _catching(_operations)


def _watch_no_way_down() -> None:
    global _is_deep
    for library in _libraries:
        library._destroy()
    _libraries.clear()
    _is_deep = False
    torch.ops.c10d.__class__ = _operations


def _catching(kind: Any) -> Any:
    """The class of torch.ops.c10d until somebody takes an operation from there."""

    class CaughtOperations(kind):
        def __getattribute__(self, name: str) -> Any:
            if name in _NAMES and _recorder is not None and not _is_aside:
                safely(_descend)
            return kind.__getattribute__(self, name)

    CaughtOperations.__name__ = CaughtOperations.__qualname__ = kind.__name__
    return CaughtOperations


def _way_down(_: Recorder, args: Arguments, ___: Any) -> Watching:
    if not _is_for_nccl(args):
        _descend()
    yield


def _is_for_nccl(args: Arguments) -> bool:
    return _nccl is not None and (one := _first_tensor(args)) is not None and _is_on_gpu(one)


def _first_tensor(args: Any) -> Any:
    """The first tensor among arguments, or in a list of them; None where there is none."""
    for one in args:
        while type(one) in _LISTS and one:
            one = one[0]
        if issubclass(type(one), _base):
            return one
    return None


def _is_nccls(group: Any, args: Arguments, more: dict[str, Any]) -> bool:
    """Return whether NCCL makes this call of a group, which PyTorch then records."""
    backend = dist.distributed_c10d._world.pg_backend_config.get(group, "")
    if "cuda:nccl" not in backend:
        return False
    tensor = _first_tensor(args)
    if tensor is not None:
        return _is_on_gpu(tensor)
    options = more.get("opts", args[-1] if args else None)  # of a barrier
    device = getattr(options, "device", None)
    return device is None or device.type == "cuda"


def _descend() -> None:
    """From now on calls are caught at the dispatcher, whoever makes them."""
    global _is_deep
    with _descending:
        if _is_deep:
            return
        library = torch.library.Library("c10d", "IMPL")
        space = torch.ops.c10d
        space.__class__ = type(space).__base__
        for name in _NAMES:
            if hasattr(space, name):  # this PyTorch has it
                operation = getattr(space, name).default
                kernel = _kernel(operation, _dispatcher_observer(_Operation(name)))
                library.impl(name, kernel, "BackendSelect", with_keyset=True)
        _libraries.append(library)
        _is_deep = True


_descending = threading.Lock()
_libraries: list[Any] = []  # a Library takes its kernels along when it is collected


def _kernel(operation: Any, observer: Observer) -> Callable[..., Any]:
    """A kernel for the dispatcher that calls the one below it."""
    redispatch = operation.redispatch

    def kernel(keyset: Any, *args: Any) -> Any:
        recorder = _recorder
        if recorder is None or _is_aside or (here := recorder.local.here).quiet or here.is_caught:
            return redispatch(keyset & _below, *args)
        if _is_for_nccl(args):
            return redispatch(keyset & _below, *args)
        watching = observer(recorder, args, {})
        return _beside(watching, redispatch, (keyset & _below, *args), {})

    return _not_compiled(kernel)


def _dispatcher_observer(operation: _Operation) -> Observer:
    def observe(recorder: Recorder, args: Arguments, _: Any) -> Watching:
        at = operation
        group = dist.ProcessGroup.unbox(args[at.group])
        peer = None if at.peer is None else args[at.peer]
        tag = 0 if at.tag is None else args[at.tag]
        # Arguments that equal their default do not arrive here; async_op's default is True.
        place = at.asynchronous
        asynchronous = place is not None and (len(args) <= place or args[place])
        looks = operation.looks(args) or ()
        what = looks, peer, tag, asynchronous
        yield from operation.call(recorder, group, what, _has_python_the_handle())

    return observe


def _has_python_the_handle() -> bool:
    """Return whether a function of torch.distributed made this call, which returns its handle;
    DDP's reducer and functional collectives keep theirs in C++, and may call from threads of C++.
    """
    at: Any = frame_here()
    while at is not None and at.f_globals is _OWN:
        at = at.f_back
    return at is not None and at.f_code.co_filename == _C10D


def _global_rank(group: Group, number: int) -> int:
    """c10d counts within the group, people globally. A program may ask for who is not there."""
    if number < 0:
        return NOBODY
    return group.ranks[number] if number < len(group.ranks) else number


def _looks(tensors: Any) -> _Looks | None:
    """What an argument's tensors are like: one, or those in lists; None if one is no tensor."""
    plain = () if _has_modes() else _plain
    if type(tensors) is list and len(tensors) == 1 and type(one := tensors[0]) in plain:
        return ((one.shape, one.dtype, one.is_cuda),)  # nearly all calls are like that
    looks: list[Any] = []
    for one in tensors if type(tensors) in _LISTS else (tensors,):
        if type(one) in plain:
            looks.append((one.shape, one.dtype, one.is_cuda))
        elif type(one) in _LISTS:
            if (within := _looks(one)) is None:
                return None
            looks += within
        elif issubclass(type(one), _base):
            looks.append(safely(_look, one))
        else:
            return None
    return tuple(looks)


def _look(tensor: Any) -> tuple[Any, Any, bool]:
    return _shape_of(tensor), _dtype_of(tensor), _is_cuda(tensor)


def _group_of(recorder: Recorder, group: Any) -> tuple[int, Group]:
    """The number that the record has for a process group, and what it is."""
    key = _key(group)
    if (known := _seen.get(key)) is not None:
        return known[1:]
    name = _name_of(group)
    size = dist.ProcessGroup.size(group)
    found = recorder.group((name, size), lambda: _describe(recorder, group, name, size))
    backends = _backends(group)
    gloo = getattr(dist, "ProcessGroupGloo", None)  # not every PyTorch has it
    if backends and all(type(one) is gloo for one in backends):
        _gloos.add(key)

    def gone(_: Any) -> None:
        _seen.pop(key, None)
        _gloos.discard(key)
        _departed.append(backends)

    _seen[key] = ref(group, gone), *found
    return found


# Groups that have been used, by key; and what those talked by that went last.
_seen: dict[int, tuple[ref[Any], int, Group]] = {}
_departed: deque[list[Any]] = deque(maxlen=1)
_gloos: set[int] = set()  # those, by key, that talk by gloo alone


def groups() -> list[Any]:
    """The process groups that are alive: while they are held none of them ends."""
    return [group() for group, *_ in list(_seen.values())]


def forget_departed() -> None:
    """Let go of what was kept of groups that are no more: while the program holds the handles of
    their calls, for which they may wait. A store of theirs may tidy up then."""
    _departed.clear()


def _name_of(group: Any) -> str:
    try:
        return str(dist.ProcessGroup.group_name.fget(group))
    except RuntimeError:  # the program has made it by itself, without one
        return ""


def _backends(group: Any) -> list[Any]:
    """The Python objects of what a group talks by; to be dropped after it."""
    found = []
    for device in dist.ProcessGroup._device_types.fget(group):
        with contextlib.suppress(RuntimeError):  # it has none for that device
            found.append(dist.ProcessGroup._get_backend(group, device))
    return found


def _describe(
    recorder: Recorder, group: Any, name: str, size: int, frame: FrameType | None = None
) -> Group:
    default = dist.group.WORLD
    if default is None or group is default:
        return Group(recorder.default_name(), tuple(range(size)), "")
    ranks = dist.distributed_c10d._world.pg_group_ranks.get(group)
    if ranks is None:  # the program has made it by itself: who is in it is not known
        recorder.doubt()
        ranks = range(size)
    called = safely(name_of, group, frame, default="") or _described(group)
    # A program may give them as anything that counts: bools, floats, tensors.
    return Group(name, tuple(int(rank) for rank in ranks), called)


def _described(group: Any) -> str:
    """Return what the program, or a mesh, said of a group when it made it (group_desc)."""
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
    work = out[-1] if type(out) is tuple else out  # monitored_barrier has none
    if isinstance(work, torch.ScriptObject):  # of the dispatcher
        work = dist.Work.unbox(work)
    if on_gpu and not has_handle:  # its stream waits for it
        recorder.say_waited(place)
        recorder.end(place)
        return
    # None: NCCL's answer to a call that the program has waited for already. A class of the
    # program's own says nothing of its ends to us.
    if work is None or type(work).wait is not dist.Work.wait:
        recorder.say_waited(place)
        recorder.end(place)
        return
    future = None
    if asynchronous and not is_message and not on_gpu:  # else who waits for it sees its end
        with contextlib.suppress(RuntimeError):  # gloo's reduce_scatter has none
            future = _get_future(work)  # not as the program would: see _ask
    recorder.follow(work, place, is_message, future, has_handle or not asynchronous)


def _begun(name: str) -> Observer:
    """Observe isend, irecv and batch_isend_irecv: what they return is the caller's to keep."""

    def observe(recorder: Recorder, _: Any, __: Any) -> Watching:
        here = recorder.local.here
        before, here.batching = here.batching, here.batching or name == "batch_isend_irecv"
        yield
        here.batching = before
        here.fresh.clear()

    return observe


def _waited_for(original: Callable[..., Any]) -> Callable[..., Any]:
    """Work.wait: after a synchronous call on the CPU it has next to nothing beside it."""
    observed = _observed(original, _wait)

    @functools.wraps(observed)
    def wait(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None or _is_aside:
            return original(*args, **kwargs)
        here = recorder.local.here
        if here.blocking is None or not args or args[0] is not here.blocking[0]:
            return observed(*args, **kwargs)
        (_, place), here.blocking = here.blocking, None
        entered = recorder.enter(place)
        try:
            return original(*args, **kwargs)
        finally:
            recorder.finish(place, entered)

    return _not_compiled(wait, nor_within=True)


def _wait(recorder: Recorder, args: Arguments, _: Any) -> Watching:
    work = args[0]
    place = recorder.waited_for(work) or recorder.waited_again(work)
    if not place:
        return
    entered = recorder.enter(place)
    told = yield
    recorder.leave(entered)
    if told is not RAISED:
        recorder.is_over(work, place)
    recorder.say_waited(place)
    recorder.end(place)


def _future_wait(recorder: Recorder, args: Arguments, _: Any) -> Watching:
    """Observe wait() on what a work's get_future() returned."""
    place = recorder.awaited_as(args[0])
    if not place:
        return
    entered = recorder.enter(place)
    yield
    recorder.leave(entered)


def _ask(recorder: Recorder, args: Arguments, _: Any) -> Watching:
    """Observe what tells in another way than wait() that a work is over."""
    told = yield
    if told is not False and told is not RAISED:
        recorder.completed(args[0], told)


def _wait_tensor(recorder: Recorder, _: Any, __: Any) -> Watching:
    entered = recorder.enter(recorder.newest)
    yield
    recorder.leave(entered)


def _store(name: str) -> Observer:
    def observe(recorder: Recorder, args: Arguments, _: Any) -> Watching:
        if recorder.local.here.quiet or len(args) < 2:
            return
        keys = [args[1]] if type(args[1]) is str else args[1]
        plain = type(keys) in _LISTS and all(type(key) is str for key in keys)
        shown = repr(", ".join(keys) if plain else "…")
        what = f"store.{name}({shown if len(shown) < _LONGEST_KEYS else '…'})"
        with recorder.internal("store", what, may_be_helped=not _is_the_jobs(args[0])):
            yield

    return observe


def _is_the_jobs(store: Any) -> bool:
    """Return whether only this job's ranks know a store: the launcher has given it to them."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    store = file_of(store)
    if isinstance(store, dist.FileStore):
        return str(store.path).startswith("/proc/self/fd/")
    if isinstance(store, dist.TCPStore):
        known = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        return (store.host, str(store.port)) == known
    return isinstance(store, dist.HashStore)


def _init_process_group(recorder: Recorder, args: Arguments, more: dict[str, Any]) -> Watching:
    if recorder.local.here.quiet:
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
        safely(_suit_groups, recorder)


_OF_INIT = ("backend", "init_method", "timeout", "world_size", "rank", "store")


def _new_group(recorder: Recorder, args: Arguments, more: dict[str, Any]) -> Watching:
    # With local synchronization it is a matter of the members alone.
    if recorder.local.here.quiet or more.get("use_local_synchronization"):
        return
    _note_nccl(recorder)
    ranks = args[0] if args else more.get("ranks")
    what = f"new_group({'' if ranks is None else _members(ranks)})"
    with recorder.internal("setup", what):
        yield
    _suit_groups(recorder)


def _capture(_: Recorder, __: Arguments, ___: Any) -> Watching:
    global _has_captured
    _has_captured = True
    if _nccl is not None:
        _nccl.begin_capture()
    yield


def _captured(_: Recorder, args: Arguments, __: Any) -> Watching:
    if (yield) is not RAISED and _nccl is not None:
        _nccl.end_capture(args[0])


def _noting_replays(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, which replays a graph. What NCCL's graphs gain must not be lost here: it notes
    the time, and nothing else."""

    @functools.wraps(original)
    def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
        if _nccl is not None and _recorder is not None:
            _nccl.replay(graph)
        return original(graph, *args, **kwargs)

    return _not_compiled(replay)


def _members(ranks: Any) -> str:
    """Sorted; or "…" where to look at them would change them, or run what is the program's."""
    plain = type(ranks) in (list, tuple, range, set, frozenset)
    return str(sorted(ranks)) if plain and all(type(one) is int for one in ranks) else "…"


def _destroy_process_group(recorder: Recorder, args: Arguments, more: dict[str, Any]) -> Watching:
    if recorder.local.here.quiet:
        return
    _note_nccl(recorder)
    if _nccl is not None:
        _nccl.copy()
    if _has_captured and any(map(_holds_a_capture, _instances(torch.cuda.CUDAGraph))):
        recorder.on_gpu(holds_a_graph=True)
    with recorder.internal("setup", "destroy_process_group"):
        yield
        forget_departed()
    if not dist.is_initialized():
        recorder.default_ended()
    _suit_groups(recorder)


def _note_nccl(recorder: Recorder) -> None:
    if dist.is_initialized() and dist.get_backend() == "nccl":
        recorder.on_gpu()


def _instances(kind: type) -> Iterable[Any]:
    return (one for one in gc.get_objects() if issubclass(type(one), kind))


def _holds_a_capture(graph: Any) -> bool:
    """Return whether it has captured something, and was not reset."""
    try:
        torch.cuda.CUDAGraph.pool(graph)
    except RuntimeError:
        return False
    return True
