"""Values that travel between the notebook and its ranks.

Functions and classes of the notebook travel by value (cloudpickle). The memory of tensors and
arrays is not pickled: it is written once to an anonymous file and mapped on the other side, so a
result of 1 GB costs the kernel 1 GB and not two. The pickle itself goes straight into that file,
too. Tensors arrive on the CPU, whatever device they were on, so that reading a result never touches
CUDA in the notebook's own process.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import pickle
import struct
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, ClassVar, Protocol

import cloudpickle

from ..base.formatting import megabytes
from . import sources
from .channel import anonymous_file, map_file
from .errors import CannotSend
from .interrupts import defer_signals

_ALIGNMENT = 64
_SMALL = 1 << 20  # bytes; below it a copy is cheaper than a mapping, which keeps a descriptor


class Sink(Protocol):
    """Takes a pickle."""

    def write(self, data: Any, /) -> object: ...


class _Pickler(cloudpickle.Pickler):
    """Functions of the notebook stay functions of one namespace: they see what the cell binds.

    That holds of all that say they are of `__main__`: Dynamo looks there for their globals.
    The text of the cell that defined a function travels with it, so that the receiver can show
    its lines.
    """

    def __init__(self, file: Sink, namespace: dict[str, Any] | None, keep: Any):
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._texts: dict[str, str | None] = {}  # one object for each cell: it is pickled once
        self._mark: dict[str, Any] = {}
        self._one_namespace = namespace is not None
        if namespace is not None:
            self.globals_ref[id(namespace)] = self._mark

    def persistent_id(self, obj: Any) -> str | None:
        return "namespace" if obj is self._mark else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            name = obj.co_filename
            text = self._texts.setdefault(name, sources.cell_source(name))
            if text is None:
                return NotImplemented
            make, parts = self.dispatch_table[types.CodeType](obj)
            return _code_of_cell, (name, text, make, parts)
        if self._one_namespace and isinstance(obj, types.FunctionType):
            if obj.__globals__.get("__name__") == "__main__":
                self.globals_ref[id(obj.__globals__)] = self._mark
            return super().reducer_override(obj)
        kind: type = type(obj)
        if issubclass(kind, types.ModuleType):
            parent, _, own = str(obj.__name__).rpartition(".")
            # torch.ops is not of that type, and torch._C._functions is no module of its own.
            inside = getattr(sys.modules.get(parent), own, None) is obj
            if kind is not types.ModuleType or (inside and obj.__name__ not in sys.modules):
                return _named, (str(obj.__name__),)
        if isinstance(obj, type) and obj.__module__ == "pybind11_builtins":
            return _pybind11_type, (obj.__name__,)
        if kind is struct.Struct:  # Python cannot pickle it
            return struct.Struct, (obj.format,)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch._ops.OpOverloadPacket):
            return _named, ("torch.ops." + obj._qualified_op_name.replace("::", "."),)
        if torch is not None and isinstance(obj, torch._ops.OpOverload):
            return getattr, (obj.overloadpacket, obj._overloadname)
        if torch is not None and isinstance(obj, torch.Tensor):
            if kind.__name__ == "DTensor":
                raise CannotSend(
                    "a DTensor is spread over the ranks: send x.to_local() or x.full_tensor()"
                )
            plain = kind in (torch.Tensor, torch.nn.Parameter) and obj.layout is torch.strided
            if plain and not obj.is_quantized:
                if obj.device.type == "meta":
                    return _empty_tensor, (str(obj.dtype), tuple(obj.shape), "meta")
                return _tensor, (
                    str(obj.dtype),
                    tuple(obj.shape),
                    _bytes_of(obj),
                    obj.requires_grad,
                    kind is torch.nn.Parameter,
                )
        return super().reducer_override(obj)


def _code_of_cell(
    filename: str, text: str, make: Callable[..., types.CodeType], parts: tuple[Any, ...]
) -> types.CodeType:
    if not sources.knows(filename):
        sources.remember(filename, text)
    return make(*parts)


def _named(name: str) -> Any:
    """A module, or what is only an attribute of one, as torch.ops.aten is.

    Raises ImportError where there is neither.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        parent, _, own = name.rpartition(".")
        if not parent or not hasattr(found := _named(parent), own):
            raise error
        return getattr(found, own)


def _pybind11_type(name: str) -> type:
    """A type that pybind11 makes in each process, and no module has: the metaclass of classes
    that derive from PyTorch's C++ ones, such as a process group or a Work of one's own."""
    from torch.distributed import Work

    related = inspect.getmro(type(Work)) + inspect.getmro(Work)
    return next(kind for kind in related if kind.__name__ == name)


def _bytes_of(tensor: Any) -> pickle.PickleBuffer:
    import torch

    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return pickle.PickleBuffer(flat.view(torch.uint8).numpy())


def _empty_tensor(dtype: str, shape: tuple[int, ...], device: str) -> Any:
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)


def _tensor(
    dtype: str, shape: tuple[int, ...], data: Any, requires_grad: bool, parameter: bool
) -> Any:
    import torch

    if memoryview(data).nbytes == 0:
        tensor = _empty_tensor(dtype, shape, "cpu")
    else:
        kind = getattr(torch, dtype.removeprefix("torch."))
        tensor = torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


class _View:
    """Memory as a file that hands out views of itself: a long string is not copied to be read."""

    def __init__(self, memory: memoryview):
        self._rest = memory

    def read(self, size: int) -> Any:  # pickle wants bytes, and takes any buffer
        part, self._rest = self._rest[:size], self._rest[size:]
        return part

    def readinto(self, room: memoryview) -> int:
        part = self.read(len(room))
        room[: len(part)] = part
        return len(part)

    def readline(self) -> Any:
        raise pickle.UnpicklingError("pickles of protocol 5 have no lines")


class Unpickler(pickle.Unpickler):
    """Unpickles a value that has arrived; functions get the globals `namespace`."""

    def __init__(self, data: memoryview, buffers: Any, namespace: dict[str, Any]):
        super().__init__(_View(data), buffers=buffers)
        self._namespace = namespace

    def persistent_load(self, _: Any) -> dict[str, Any]:
        return self._namespace


def dump(value: Any, file: Sink, namespace: dict[str, Any] | None = None) -> list[memoryview]:
    """Pickle a value into `file`; returns the large buffers, which stay outside of it.

    Functions whose globals are `namespace` will have the receiver's namespace as theirs.

    Raises CannotSend, with the reason, for what cannot be pickled.
    """
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < 4096:
            return True  # small ones stay in the pickle
        buffers.append(raw)
        return False

    try:
        _Pickler(file, namespace, keep).dump(value)
    except (CannotSend, OSError):
        raise
    except Exception as error:  # pickling runs anybody's __reduce__: any exception may come
        raise CannotSend(str(error) or type(error).__name__) from error
    return buffers


def size(value: Any) -> int:
    """Return how many bytes a value has when it travels. Raises CannotSend where it cannot."""
    count = 0

    def write(data: Any) -> None:
        nonlocal count
        count += len(data)

    buffers = dump(value, types.SimpleNamespace(write=write))
    return count + sum(buffer.nbytes for buffer in buffers)


def digest(value: Any, namespace: dict[str, Any] | None = None) -> bytes:
    """Equal for values that would travel as the same bytes. Raises CannotSend as `dump` does."""
    sha = hashlib.sha256()
    for buffer in dump(value, types.SimpleNamespace(write=sha.update), namespace):
        sha.update(buffer)
    return sha.digest()


def write(
    value: Any, namespace: dict[str, Any] | None = None, most: int | None = None
) -> tuple[BinaryIO, list[int]]:
    """Write a value to an anonymous file; returns that, open, and the sizes of its parts.

    Raises CannotSend as `dump` does and where it is more than `most` bytes, OSError when there is
    no memory left for it.
    """
    with defer_signals():  # who has the descriptor must own it
        file = open(anonymous_file("payload"), "wb")  # noqa: SIM115
    try:
        buffers = dump(value, file, namespace)
        sizes = [file.tell(), *(buffer.nbytes for buffer in buffers)]
        if most is not None and sum(sizes) > most:
            raise CannotSend(f"it is {megabytes(sum(sizes))} MB")
        for buffer in buffers:
            file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
            file.write(buffer)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file, sizes


class Parcel:
    """A value that has arrived and is still packed: `open()` unpickles it, once.

    sizes: of its parts in `memory`. Raises ValueError where that has less. unpickler: what opens
    the values that this process gets; set a stricter one where their senders are not trusted.
    """

    unpickler: ClassVar[type[Unpickler]] = Unpickler

    def __init__(self, memory: Any, sizes: Sequence[int]):
        self.memory = memoryview(memory)
        self.sizes = sizes
        if sum(part + -part % _ALIGNMENT for part in sizes[:-1]) + sizes[-1] > len(self.memory):
            raise ValueError("a file that is shorter than was said")

    @classmethod
    def from_file(cls, descriptor: int, sizes: Sequence[int]) -> Parcel:
        """Read a file that `write` has written; closes its descriptor."""
        size = os.fstat(descriptor).st_size
        if size >= _SMALL:
            return cls(map_file(descriptor), sizes)
        # pread: several ranks read one file, and its position is common to them.
        memory = bytearray(os.pread(descriptor, size, 0))
        os.close(descriptor)
        return cls(memory, sizes)

    def open(self, namespace: dict[str, Any] | None = None) -> Any:
        memory, self.memory = self.memory, memoryview(b"")  # only tensors go on to need it
        parts, start = [], 0
        for size in self.sizes:
            parts.append(memory[start : start + size])
            start += size + -size % _ALIGNMENT
        return self.unpickler(parts[0], parts[1:], {} if namespace is None else namespace).load()
