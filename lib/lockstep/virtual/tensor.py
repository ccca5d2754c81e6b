"""Tensors of the virtual GPU, and how PyTorch's operations on them become launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ..trace import Kind
from .costs import PRODUCTS, SEVERAL, Cost, cost
from .kernels import HostMemory, Kernel, Memory, Owner, Use
from .model import Machine
from .schedule import Unit
from .simulator import Device
from .stream_table import program_line
from .work import Computation, NotModelled, Op, flat, generator_at

DEVICE_TYPE = "virtual"
aten = torch.ops.aten
_CPU, _META = torch.device("cpu"), torch.device("meta")
_PAGE = 64 << 10  # bytes; of less, cudaMemcpy of pageable memory returns before it is copied
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
_UNKNOWN_DRAWS = ("poisson", "_standard_gamma", "binomial", "_sample_dirichlet")
_HERE = (DEVICE_TYPE, "meta", "cuda")
_CHANGES_SHAPE = (
    *("resize_", "resize_as_", "set_", "swap_dims_", "swapaxes_", "t_", "transpose_"),
    *("squeeze_", "unsqueeze_", "as_strided_"),
)


class VirtualTensor(torch.Tensor):
    """A tensor on the virtual GPU.

    To PyTorch's C++ it is a meta tensor, as FakeTensor is: autograd then runs its backward pass in
    the thread that asks for it, and what C++ makes beside it arrives here as a meta tensor's.

    _inner: its memory, as a tensor of the CPU; what is in there is what the device has written so
    far. _memory: the block of device memory.
    """

    _inner: torch.Tensor
    _memory: Memory
    _key: tuple[Any, ...]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, memory: Memory) -> VirtualTensor:
        shape, stride = tuple(inner.shape), inner.stride()
        tensor: VirtualTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=_META,
        )  # fmt: skip
        tensor._inner, tensor._memory = inner, memory
        tensor._key = (shape, stride, inner.dtype)
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # outside of the mode, such as in another thread
        return Dispatch.current().call(func, args, kwargs or {})

    # ── What Python asks of a tensor, and not the dispatcher ─────────────────────────────────

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self._memory.device.playing:
            return "VirtualTensor(…)"
        _need_values(self._memory.device, "print")
        shown = repr(self.detach().cpu())
        more = f", device='{self.device}'"
        if self.grad_fn is not None:
            more += f", grad_fn=<{self.grad_fn.name()}>"
        elif self.requires_grad:
            more += ", requires_grad=True"
        return shown[:-1] + more + ")"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotModelled(
            "a tensor of the virtual GPU cannot leave its process: send tensor.cpu() instead"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        with torch.no_grad():
            copied = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return gpu()

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return 0

    def to(self, *args: Any, **kwargs: Any) -> Any:
        to, dtype, later, form = _to(*args, **kwargs)
        same = (to is None or to.type in _HERE) and dtype in (None, self.dtype)
        if same and form in (None, torch.preserve_format) and not kwargs.get("copy"):
            return self
        return aten._to_copy(self, dtype=dtype, device=to, non_blocking=later, memory_format=form)

    def cpu(self, memory_format: Any = torch.preserve_format) -> Any:
        return self.to("cpu", memory_format=memory_format)

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            _need_values(self._memory.device, "numpy()")
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )

    def tolist(self) -> Any:
        _need_values(self._memory.device, "tolist()")
        return self.detach().cpu().tolist()

    def data_ptr(self) -> int:
        first = int(self._inner.storage_offset()) * self._inner.element_size()
        return self._memory.block.segment.address + first

    def record_stream(self, stream: Any) -> None:
        """This tensor is used on that stream, too: its memory must not be given away before."""
        self._memory.recorded.add(stream.number)

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        if isinstance(other, VirtualTensor):
            self._inner, self._memory, self._key = other._inner, other._memory, other._key

    def is_pinned(self, device: Any = None) -> bool:
        return False


def gpu() -> torch.device:
    """The device of tensors on the virtual GPU."""
    return torch.device(DEVICE_TYPE, 0)


def _to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, non_blocking, memory_format) of a call of Tensor.to."""
    to, dtype = kwargs.get("device"), kwargs.get("dtype")
    flags = []
    for one in args:
        if isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, torch.Tensor):
            to, dtype = one.device, one.dtype
        elif isinstance(one, str | torch.device | int) and not isinstance(one, bool):
            to = one
        else:
            flags.append(one)
    other = kwargs.get("other")
    if other is not None:
        to, dtype = other.device, other.dtype
    if isinstance(to, int):
        to = gpu()
    to = torch.device(to) if to is not None else None
    later = bool(kwargs.get("non_blocking", flags[0] if flags else False))
    return to, dtype, later, kwargs.get("memory_format")


class _Copies:
    """Copies between host and device, and the host's memory that the device can reach."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pinned: dict[int, StorageWeakRef] = {}

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = StorageWeakRef(storage)
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        found = self._pinned.get(tensor.untyped_storage().data_ptr())
        return found is not None and not found.expired()

    def to_host(
        self, source: VirtualTensor, target: torch.Tensor, later: bool, stream: int, operator: str
    ) -> None:
        """later: the host goes on meanwhile, if the target is pinned."""
        if not self._device.values and target.is_floating_point():
            with self._device.as_device():
                target.fill_(torch.nan)  # so that nobody takes it for a result
        pinned = self.is_pinned(target)
        waits = not (later and pinned)
        host = target if pinned else None
        self.launch(source._inner, target, source, host, stream, operator, Unit.OUT, pinned)
        if waits:
            self._device.synchronise([stream], "cudaStreamSynchronize")

    def to_device(
        self, source: torch.Tensor, target: VirtualTensor, later: bool, stream: int, operator: str
    ) -> None:
        """later: as for `to_host`; memory that is not pinned is staged first."""
        device, pinned = self._device, self.is_pinned(source)
        if not pinned and source.dim():
            device.refuse_unpinned(stream)
        staged = source.detach()
        if source.dim() == 0 or not pinned:
            with device.as_device():
                staged = staged.clone()
        waits = not (later and pinned)
        host = source if pinned else None
        self.launch(staged, target._inner, target, host, stream, operator, Unit.IN, pinned)
        if waits and not (later or (source.nbytes < _PAGE and source.dim() == 0)):
            device.synchronise([stream], "cudaStreamSynchronize")
        elif not pinned:
            device.spend("staging", 1e9 * source.nbytes / device.machine.pageable)

    def launch(
        self, source: torch.Tensor, target: torch.Tensor, tensor: VirtualTensor,
        host: torch.Tensor | None, stream: int, operator: str, engine: Unit, pinned: bool,
    ) -> None:  # fmt: skip
        """Launch a copy. host: the side of it that the program could touch meanwhile."""
        device = self._device
        rate = device.machine.pinned if pinned else device.machine.pageable
        nbytes = max(source.nbytes, target.nbytes)
        inward = engine is Unit.IN
        uses = [Use(tensor._memory, tensor._inner, inward)]
        device.inside_backward(tensor._memory, stream, inward)
        if host is not None:
            address = host.untyped_storage().data_ptr()
            shared = device.watch.shared.setdefault(address, HostMemory(host))
            uses.append(Use(shared, host, not inward))
        work = Computation(torch.Tensor.copy_, (target, source), {}, (), (0,))
        kernel = Kernel(
            f"copy {engine.value}", device.machine.kernel + 1e9 * nbytes / rate, 0.0, 0.0,
            Kind.COPY, uses, work if device.values else None, engine, program_line(),
        )  # fmt: skip
        device.launch(kernel, stream, operator)


def _need_values(device: Owner, what: str) -> None:
    if not device.values:
        raise NotModelled(
            f"this virtual GPU was made with values=False and has only times: {what} asks for a "
            "value"
        )


class _Cached:
    """Shapes and costs of operations on a device, each computed once."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._shapes: dict[Any, Any] = {}
        self._costs: dict[Any, Cost] = {}

    def shape(self, op: Op, call: _Call) -> Any:
        """Shape, stride and dtype of what an operation returns; nothing is computed."""
        key = (op, *call.key)
        if key not in self._shapes:
            with self._device.as_device():
                self._shapes[key] = self._try_shape(op, call)
        return self._shapes[key]

    def cost(
        self, op: Op, call: _Call, given: Sequence[VirtualTensor], made: Sequence[VirtualTensor],
        returned: Any,
    ) -> Cost:  # fmt: skip
        key = (op, torch.backends.cuda.matmul.allow_tf32, *call.key)
        if key not in self._costs or op.needs_values:
            self._costs[key] = cost(
                self._device.machine, op.func, [one._inner for one in given],
                [one._inner for one in made], call.args, returned,
            )  # fmt: skip
        return self._costs[key]

    @staticmethod
    def _try_shape(op: Op, call: _Call) -> Any:
        args, kwargs = _mapped(call.args, _on_meta), _mapped(call.kwargs, _on_meta)
        try:
            returned = op.func(*args, **kwargs)
        except (NotImplementedError, RuntimeError):  # it has no such kernel: let the CPU say it
            args, kwargs = _mapped(call.args, _likely), _mapped(call.kwargs, _likely)
            with generator_at(torch.default_generator.get_state()):
                returned = op.func(*args, **kwargs)
        if op.like:
            alike = [torch.empty_like(args[at]) for at in op.like]
            returned = (*alike, *returned[len(alike) :])
        if any(one.layout is not torch.strided or one.is_quantized for one in flat(returned)):
            raise NotModelled(f"the virtual GPU does not model {op}: its result is not dense")
        return _shapes_of(returned)


class Dispatch(TorchDispatchMode):
    """Makes launches of operations on tensors of `device`; leaves the CPU's as they are."""

    active: Dispatch | None = None
    communicate: Callable[..., Any]  # see `collectives`
    before_host_waits: Callable[..., None]

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self._ops: dict[Any, Op] = {}
        self._cached = _Cached(device)
        self._marks: list[tuple[str, float]] = []
        self._copies = _Copies(device)
        self.means_meta = False  # whether the program itself has said "meta"

    @staticmethod
    def current() -> Dispatch:
        if Dispatch.active is None:
            raise RuntimeError("this tensor belongs to a virtual GPU that has been switched off")
        return Dispatch.active

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        device = self.device
        if device.playing:
            return func(*args, **kwargs)
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = Op(func)
        call = _Call(args, kwargs, self.means_meta)
        if not call.on_device:
            return self._on_host(op, call, args, kwargs)
        if op.namespace == "c10d":
            return self.communicate(self, op, args, kwargs, call.args)
        if any(one._memory.device is not device for one in call.tensors):
            raise RuntimeError("this tensor belongs to another virtual GPU than the one that is on")
        if op.reads_shapes_only and torch.device(kwargs.get("device") or _META).type == "cpu":
            with device.aside():
                return op.func(*call.args, **call.kwargs)
        if op.name in ("_to_copy", "copy_"):
            moved = self._move(op, call, args, kwargs)
            if moved is not None:
                return moved
        self._check(op, call)
        if op.is_view:
            if op.name == "_unsafe_view":
                return self._view(call, aten.view.default)
            return self._view(call, op.func)
        if op.only_allocates:
            stream = device.stream_of_call()
            device.spend(str(op), device.machine.allocate)
            return self._made(self._cached.shape(op, call), stream)[0]
        if op.name == "_local_scalar_dense":
            return self._look(op, call)
        stream = device.stream_of_call()
        known = None
        if op.needs_values and (op.name not in _INDEXING or _has_mask(call)):
            known = self._answer(op, call, stream)
            if not isinstance(known, torch.Tensor | tuple | list):
                return known
        return self._launch(op, call, args, kwargs, stream, known)

    # ── Launches ─────────────────────────────────────────────────────────────────────────────

    def _launch(
        self, op: Op, call: _Call, args: Sequence[Any], kwargs: dict[str, Any], stream: int,
        known: Any,
    ) -> Any:  # fmt: skip
        device = self.device
        if call.hosts:
            call.keep()
        written, where = _written(op, args, kwargs)
        fresh: list[VirtualTensor] = []
        returned: Any = None
        if not op.returns_written and not op.returns_nothing:
            shape = _shapes_of(known) if known is not None else self._cached.shape(op, call)
            returned, fresh = self._made(shape, stream)
        here = {id(one) for one in written}
        read = [] if op.reads_shapes_only else call.tensors
        if op.only_writes:
            read = [one for one in read if id(one) not in here]
        made = [*written, *fresh]
        uses = [Use(one._memory, one._inner, False) for one in read if id(one) not in here]
        uses += [Use(one._memory, one._inner, True) for one in made]
        for one in read:
            device.inside_backward(one._memory, stream, False)
        for one in made:
            device.inside_backward(one._memory, stream, True)
        work = Computation(op.compute, call.args, call.kwargs, [one._inner for one in fresh], where)
        if known is not None:
            work.results = list(zip(work.made, flat(known), strict=True))
        draw = self._draw(op, work) if op.is_random and _draws(op, call) else None
        costs = self._cached.cost(op, call, read, made, returned)
        only_read = [one._memory for one in read if id(one) not in here]
        fetched = device.cache.fetched(only_read, (one._memory for one in made))
        lasts = costs.lasts(device.machine, fetched)
        kernel = Kernel(
            costs.name, lasts, costs.share, costs.traffic, costs.kind, uses,
            work if device.values else None, line=program_line(), draw=draw, tiles=costs.tiles,
        )  # fmt: skip
        for _ in range(costs.kernels - 1):
            part = replace(kernel, uses=(), values=None, draw=None, part=True)
            device.launch(part, stream, str(op))
        device.launch(kernel, stream, str(op), dispatch=_dispatch(device.machine, op, len(made)))
        if op.returns_written:
            return written[0] if len(written) == 1 else tuple(written)
        return returned

    def _made(self, shape: Any, stream: int) -> tuple[Any, list[VirtualTensor]]:
        """New tensors of these shapes, and all of them in a list."""
        if isinstance(shape, list):
            parts = [self._made(one, stream) for one in shape]
            return tuple(one for one, _ in parts), [one for _, some in parts for one in some]
        if shape is None:
            return None, []
        size, stride, dtype = shape
        extent = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
        nbytes = extent * dtype.itemsize if 0 not in size else 0
        memory = self.device.take(nbytes, stream)
        tensor = VirtualTensor(memory.tensor(size, stride, dtype), memory)
        return tensor, [tensor]

    def _draw(self, op: Op, work: Computation) -> Callable[[], torch.Tensor]:
        """Return what makes random numbers those of the program's order, whenever they are
        computed."""
        if op.name in _UNKNOWN_DRAWS:
            raise NotModelled(
                f"the virtual GPU does not model {op}: how many random numbers it draws depends on "
                "values that are not there yet"
            )
        if work.kwargs.get("generator") is not None:
            raise RuntimeError(
                f"Expected a '{DEVICE_TYPE}' device type for generator but found 'cpu'"
            )
        device = self.device

        def draw() -> torch.Tensor:
            before = device.state
            with device.as_device(), generator_at(before) as drawing:
                op.compute(*_mapped(work.args, _likely), **_mapped(work.kwargs, _likely))
            device.state = drawing.after
            return before

        return draw

    def _answer(self, op: Op, call: _Call, stream: int) -> Any:
        """The result of what has a shape, or an answer, that depends on values: the host waits."""
        device = self.device
        _need_values(device, str(op))
        uses = [Use(one._memory, one._inner, False) for one in call.tensors]
        costs = self._cached.cost(op, call, call.tensors, (), None)
        kernel = Kernel(
            costs.name, costs.work, costs.share, costs.traffic, costs.kind, uses,
            line=program_line(),
        )  # fmt: skip
        device.launch(kernel, stream, str(op))
        device.synchronise([stream], "cudaStreamSynchronize", str(op))
        with device.as_device():
            return op.func(*call.args, **call.kwargs)

    def _look(self, op: Op, call: _Call) -> Any:
        """The host wants a value: it is copied on the current stream, and the host waits."""
        device, tensor = self.device, call.tensors[0]
        _need_values(device, "item()")
        stream = device.stream_of_call()
        device.refuse_in_capture("cudaStreamSynchronize", stream)
        seen = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._copies.launch(tensor._inner, seen, tensor, None, stream, "aten::item", Unit.OUT, True)
        device.synchronise([stream], "cudaStreamSynchronize", "aten::item")
        return op.func(seen)

    # ── Views, and operations without a kernel ───────────────────────────────────────────────

    def _view(self, call: _Call, func: Any) -> Any:
        device = self.device
        device.stream_of_call()
        device.host += device.machine.view
        base = call.tensors[0]
        inner = func(*call.args, **call.kwargs)
        return _wrapped(inner, base._memory)

    def _check(self, op: Op, call: _Call) -> None:
        if op.name in _CHANGES_SHAPE:
            raise NotModelled(f"the virtual GPU does not model {op}: make a new tensor instead")
        if not op.reads_shapes_only and any(one.dim() for one in call.hosts):
            if op.name in _INDEXING:
                self.device.refuse_unpinned(self.device.stream_of_call())
            else:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    f"devices, {DEVICE_TYPE}:0 and cpu!"
                )
        for one in call.tensors:
            if one.layout is not torch.strided or one.is_quantized:
                raise NotModelled(f"the virtual GPU does not model {one.layout} tensors ({op})")

    # ── Between host and device ──────────────────────────────────────────────────────────────

    def _move(
        self, op: Op, call: _Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> torch.Tensor | None:
        """_to_copy and copy_ where one side is the host's; None where both are the device's."""
        device, target = self.device, None
        made: Any = None  # shape, stride and dtype of a target that there is not yet
        if op.name == "copy_":
            target, source = args[0], args[1]
            later = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
            if isinstance(target, VirtualTensor) and isinstance(source, VirtualTensor):
                return None
            if isinstance(target, VirtualTensor) and source.dim() == 0 and target.dim() > 0:
                return None
        else:
            source, later = args[0], bool(kwargs.get("non_blocking"))
            to = kwargs.get("device") or source.device
            if isinstance(source, VirtualTensor) and to.type in _HERE:
                return None
            if to.type not in (*_HERE, "cpu"):
                raise NotModelled(f"the virtual GPU cannot copy to {to}")
            with device.as_device():
                meta = _on_meta(source._inner if isinstance(source, VirtualTensor) else source)
                form = kwargs.get("memory_format") or torch.preserve_format
                made = _shapes_of(op.func(meta, dtype=kwargs.get("dtype"), memory_format=form))
        stream = device.stream_of_call()
        if isinstance(source, VirtualTensor):
            if target is None:
                with device.aside():
                    target = torch.empty_strided(made[0], made[1], dtype=made[2])
                if later:  # PyTorch pins what it makes for such a copy
                    self._copies.pin(target)
            self._copies.to_host(source, target, later, stream, str(op))
        else:
            if target is None:
                target = self._made(made, stream)[0]
            self._copies.to_device(source, target, later, stream, str(op))
        return target

    # ── The host's own operations ────────────────────────────────────────────────────────────

    def _on_host(self, op: Op, call: _Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        device = self.device
        if op.name == "_pin_memory":
            with device.aside():
                return self._copies.pin(args[0].clone())
        if op.name == "is_pinned":
            return self._copies.is_pinned(args[0])
        if kwargs.get("pin_memory"):
            return self._copies.pin(op.func(*args, **{**kwargs, "pin_memory": False}))
        if op.namespace == "profiler":
            self._annotate(op, args)
        if op.namespace == "c10d":
            self.before_host_waits(device, op, args)
        if device.watch.shared and not op.is_view and op.namespace == "aten":
            written, _ = _written(op, args, kwargs)
            for one in call.hosts:
                address = one.untyped_storage().data_ptr()
                if address in device.watch.shared:
                    writes = any(one is other for other in written)
                    device.host_uses(address, one, writes, str(op))
        return op.func(*args, **kwargs)

    def _annotate(self, op: Op, args: Sequence[Any]) -> None:
        device = self.device
        if op.name.startswith("_record_function_enter"):
            self._marks.append((str(args[0]), device.host))
        elif op.name.startswith("_record_function_exit") and self._marks:
            name, since = self._marks.pop()
            kind = Kind.STEP if name.startswith("ProfilerStep#") else Kind.ANNOTATION
            device.profiler.host(name, since, device.host, kind)


class _Call:
    """The arguments of a call, with memory in place of tensors of the device.

    tensors: those of the device; hosts: those of the CPU. key: all that shapes can depend on.
    """

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any], means_meta: bool) -> None:
        self._here = (DEVICE_TYPE,) if means_meta else (DEVICE_TYPE, "meta")
        self.tensors: list[VirtualTensor] = []
        self.hosts: list[torch.Tensor] = []
        self.on_device = False
        self.key: list[Any] = []
        self.args = [self._taken(one) for one in args]
        self.kwargs: dict[str, Any] = {}
        for name, value in kwargs.items():
            self.key.append(name)
            self.kwargs[name] = self._taken(value)

    def keep(self) -> None:
        """Take the host's numbers as they are now: a launch has them in its arguments."""
        kept = {id(one): one.detach().clone() for one in self.hosts}
        self.args = _mapped(self.args, lambda one: kept.get(id(one), one))
        self.kwargs = _mapped(self.kwargs, lambda one: kept.get(id(one), one))

    def _taken(self, value: Any) -> Any:
        kind = type(value)
        if kind is VirtualTensor:
            self.on_device = True
            self.tensors.append(value)
            self.key.append(value._key)
            return value._inner
        if kind is list or kind is tuple:
            self.key.append(len(value))
            return [self._taken(one) for one in value]
        if kind is torch.device:
            self.key.append(value.type)
            if value.type in self._here:
                self.on_device = True
                return _CPU
            return value
        if isinstance(value, torch.Tensor):
            self.hosts.append(value)
            self.key.append((tuple(value.shape), value.dtype))
            return value
        self.key.append((kind, value) if kind in (int, float, bool, complex) else value)
        return value


def _written(
    op: Op, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[VirtualTensor], list[int | str]]:
    """The tensors that a call writes to, and at which of its arguments they are."""
    found: list[VirtualTensor] = []
    where: list[int | str] = []
    for place in op.written:
        name = op.names[place]
        value = args[place] if place < len(args) else kwargs.get(name)
        some = flat(value)
        if some:
            found += some  # type: ignore[arg-type]
            where.append(place if place < len(args) else name)
    return found, where


def _draws(op: Op, call: _Call) -> bool:
    """Whether a call takes random numbers: attention without dropout does not."""
    if "scaled_dot_product" not in op.name:
        return True
    return bool([*call.args, 0.0, 0.0, 0.0, 0.0][3] or call.kwargs.get("dropout_p"))


def _dispatch(machine: Machine, op: Op, made: int) -> float:
    """ns of the host before the launch of an operation that writes so many tensors."""
    more = machine.matmul if op.name in PRODUCTS else 0.0
    if "scaled_dot_product" in op.name:  # several kernels could do it
        more = machine.attention
    if op.name.startswith(SEVERAL):
        more = machine.several + made * machine.each_tensor
    if torch._C._current_autograd_node() is not None:
        more += machine.backward
    return machine.dispatch + more


def _has_mask(call: _Call) -> bool:
    return any(one.dtype in (torch.bool, torch.uint8) for one in (*call.tensors[1:], *call.hosts))


def _wrapped(inner: Any, memory: Memory) -> Any:
    if isinstance(inner, torch.Tensor):
        return VirtualTensor(inner, memory)
    return tuple(_wrapped(one, memory) for one in inner)


def _shapes_of(value: Any) -> Any:
    """Shape, stride and dtype in place of tensors."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return [_shapes_of(one) for one in value]
    if value is None:
        return None
    raise NotModelled(f"the virtual GPU does not model what returns a {type(value).__name__}")


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in value.items()}
    if change is _on_meta and isinstance(value, torch.device):
        return _META
    return value


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _likely(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of this shape with values that every operation takes."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.fill_(0.5 if tensor.is_floating_point() else 1)
