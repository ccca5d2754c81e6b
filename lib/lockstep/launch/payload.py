"""Values that travel between the notebook and its ranks.

Functions and classes of the notebook travel by value (cloudpickle). The memory of tensors and
arrays is not pickled: it is written once to an anonymous file and mapped on the other side, so a
result of 1 GB costs the kernel 1 GB and not two. Tensors arrive on the CPU, whatever device they
were on, so that reading a result never touches CUDA in the notebook's own process.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle

from .channel import anonymous_file, map_file
from .errors import CannotSend

_ALIGNMENT = 64
_SMALL = 1 << 20  # bytes; below it a copy is cheaper than a mapping, which keeps a descriptor


class _Pickler(cloudpickle.Pickler):
    """Functions of the notebook stay functions of one namespace: they see what the cell binds."""

    def __init__(self, file: io.BytesIO, namespace: dict[str, Any] | None, keep: Any):
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._mark: dict[str, Any] = {}
        if namespace is not None:
            self.globals_ref[id(namespace)] = self._mark

    def persistent_id(self, obj: Any) -> str | None:
        return "namespace" if obj is self._mark else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "pybind11_builtins":
            return _pybind11_type, (obj.__name__,)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            kind = type(obj)
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


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: Any, buffers: Any, namespace: dict[str, Any]):
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._namespace = namespace

    def persistent_load(self, _: Any) -> dict[str, Any]:
        return self._namespace


def dump(value: Any, namespace: dict[str, Any] | None = None) -> tuple[bytes, list[memoryview]]:
    """Pickle a value; returns the pickle and the large buffers that stay outside of it.

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

    file = io.BytesIO()
    try:
        _Pickler(file, namespace, keep).dump(value)
    except CannotSend:
        raise
    except Exception as error:  # pickling runs anybody's __reduce__: any exception may come
        raise CannotSend(str(error) or type(error).__name__) from error
    return file.getvalue(), buffers


def write(pickled: bytes, buffers: Sequence[memoryview]) -> tuple[int, list[int]]:
    """Write what `dump` returned to an anonymous file; returns its descriptor and the part sizes.

    Raises OSError when there is no memory left for it.
    """
    descriptor = anonymous_file("payload")
    parts: Iterable[memoryview] = [memoryview(pickled), *buffers]
    sizes = []
    for part in parts:
        sizes.append(part.nbytes)
        part = part.cast("B")
        while part:
            part = part[os.write(descriptor, part[: 1 << 30]) :]
        os.lseek(descriptor, -sizes[-1] % _ALIGNMENT, os.SEEK_CUR)
    os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
    return descriptor, sizes


class Parcel:
    """A value that has arrived and is still packed: `open()` unpickles it, once."""

    def __init__(self, descriptor: int, sizes: Sequence[int]):
        self._sizes = sizes
        size = os.fstat(descriptor).st_size
        if sum(part + -part % _ALIGNMENT for part in sizes) > size:
            os.close(descriptor)
            raise ValueError("a file that is shorter than was said")
        if size < _SMALL:
            # pread: several ranks read one file, and its position is common to them.
            self._memory = memoryview(bytearray(os.pread(descriptor, size, 0)))
            os.close(descriptor)
        else:
            self._memory = memoryview(map_file(descriptor))

    def open(self, namespace: dict[str, Any] | None = None) -> Any:
        parts, start = [], 0
        for size in self._sizes:
            parts.append(self._memory[start : start + size])
            start += size + -size % _ALIGNMENT
        return _Unpickler(parts[0], parts[1:], {} if namespace is None else namespace).load()
