"""Parts that exercises on messages between two ranks share: tensors to send, late ranks, signs."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...calls.record import Call
from ..judging import Run, Tensor

_LARGE = {"int32": 2**30, "int64": 2**60}  # whole numbers that floats cannot hold


def tensors(
    draw: random.Random, count: int, dtype: str, shape: tuple[int, ...], *, strided: bool = False
) -> list[Tensor]:
    """So many tensors, all of whose numbers differ: eighths, or large whole numbers."""
    length = math.prod(shape)
    numbers: list[float] = draw.sample(range(-240, 241), count * length)
    if dtype in _LARGE:
        numbers = [_LARGE[dtype] + int(one) for one in numbers]
    else:
        scale = 2.0**100 if dtype == "bfloat16" else 1.0  # float16 has no such numbers
        numbers = [one / 8 * scale for one in numbers]
    return [
        Tensor.of(numbers[at * length : (at + 1) * length], dtype, shape, strided=strided)
        for at in range(count)
    ]


@contextlib.contextmanager
def watched(operation: str, look: Callable[[Any], None]) -> Iterator[None]:
    """On a rank: `look(tensor)` before each "send" or "recv" begins."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    looked = {"send": (torch.ops.c10d.send.default,), "recv": (torch.ops.c10d.recv_.default,)}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            if func in looked[operation]:
                look(args[0][0])
            return func(*args, **(kwargs or {}))

    with Watch():
        yield


@contextlib.contextmanager
def writes(tensor: Any, note: Callable[[], Any]) -> Iterator[None]:
    """On a rank: `note()` before each operation of PyTorch that writes into the tensor's memory."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    memory = tensor.untyped_storage().data_ptr()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            named = kwargs or {}
            into = [one for one in (*args[:1], named.get("out")) if isinstance(one, torch.Tensor)]
            if func._schema.is_mutable and memory in {t.untyped_storage().data_ptr() for t in into}:
                note()
            return func(*args, **named)

    with Watch():
        yield


@contextlib.contextmanager
def slow(operation: str, pauses: Sequence[float]) -> Iterator[None]:
    """On a rank: so many seconds pass before each next "send" or "recv" begins."""
    import time

    if not pauses:
        yield
        return
    left = list(pauses)
    with watched(operation, lambda tensor: time.sleep(left.pop(0)) if left else None):
        yield


def waits_in(run: Run, rank: int) -> str:
    """The operation in which a rank waits for ever: "send", "recv", or "" where it does not.

    Where a message was given up, or is for nobody, that is what everybody waits for.
    """
    calls = run.calls(rank)
    lost = any(call.forsaken or call.peer not in (None, *run.ranks) for call in run.all_calls)
    stuck = run.failure == "stuck" and not lost and calls and calls[-1].end is None
    return calls[-1].operation if stuck else ""


def too_small(run: Run, rank: int) -> Any:
    """A message that is larger than the tensor into which this rank receives it."""
    sent: dict[Any, Call] = {(c.rank, c.peer, c.tag, c.number): c for c in run.all_calls
                             if c.operation == "send"}  # fmt: skip
    for call in run.receives(rank):
        there = sent.get((call.peer, rank, call.tag, call.number))
        if there is not None and there.bytes > call.bytes:
            return {"sent": there.bytes, "space": call.bytes, "peer": call.peer}
    return False


def collective(run: Run, rank: int) -> Any:
    return bool(run.collectives(rank)) and {"operation": run.collectives(rank)[0].operation}
