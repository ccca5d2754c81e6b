"""The GPUs of a group connect before a program asks for it, by NCCL alone and past PyTorch.

NCCL connects GPUs at the first operation that needs that, which takes a good part of a short cell.
A collective of PyTorch's would do it, too, but would leave a sequence number, an entry in the
flight recorder and memory in the allocator, where a program could find them.
"""

from __future__ import annotations

import ctypes
from typing import Any

_FLOAT32, _SUM = 7, 0  # ncclDataType_t, ncclRedOp_t
_COUNT = 256  # numbers of each rank: as few as that NCCL sends by its protocol for small messages
_IN_PROGRESS = 7  # ncclResult_t of a communicator that does not block


def connect(world_size: int) -> None:
    """Have the ranks of the default group meet in an all-reduce and an all-gather of a few bytes.

    All of them must call this. Where this PyTorch does not give its communicator away, nothing
    happens: the first collective connects, as always. Raises RuntimeError where NCCL fails.
    """
    import torch
    import torch.distributed as dist

    assert dist.group.WORLD is not None
    backend: Any = dist.group.WORLD._get_backend(torch.device("cuda"))
    if world_size == 1 or not hasattr(backend, "_comm_ptr"):
        return
    try:
        nccl = ctypes.CDLL("libnccl.so.2")  # PyTorch has loaded it
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # it is linked into PyTorch itself
        return
    comm, stream, memory = ctypes.c_void_p(backend._comm_ptr()), None, ctypes.c_uint64()
    count, whole = ctypes.c_size_t(_COUNT), ctypes.c_size_t(4 * _COUNT * world_size)
    _check(driver.cuMemAlloc_v2(ctypes.byref(memory), whole))
    try:
        place = ctypes.c_void_p(memory.value)
        _check(nccl.ncclAllReduce(place, place, count, _FLOAT32, _SUM, comm, stream))
        _await(nccl, comm)
        part = ctypes.c_void_p(memory.value + 4 * _COUNT * dist.get_rank())
        _check(nccl.ncclAllGather(part, place, count, _FLOAT32, comm, stream))
        _await(nccl, comm)
        _check(driver.cuStreamSynchronize(stream))
    finally:
        driver.cuMemFree_v2(memory)


def _await(nccl: ctypes.CDLL, comm: ctypes.c_void_p) -> None:
    """Until NCCL has taken what it was asked; it may come back before that."""
    state = ctypes.c_int(_IN_PROGRESS)
    while state.value == _IN_PROGRESS:
        _check(nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
    _check(state.value)


def _check(result: int) -> None:
    if result not in (0, _IN_PROGRESS):
        raise RuntimeError(f"NCCL or the driver answers {result}")
