"""Kernels: what a launch gives to the device, and the memory that each uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from ..trace import Collective, Kind
from .memory import EVERYBODY, Block
from .race_detector import NOBODY, Access, History, Owned, SourceLine
from .schedule import DeviceTask, Meeting, Unit
from .work import Computation

_TENSORS = itertools.count(1)


class Owner(Protocol):
    """The device that memory is of. playing: whether it computes now. values: whether it does."""

    playing: bool
    values: bool

    def release(self, memory: Memory) -> None: ...


class Memory:
    """A block of device memory that a tensor and its views share."""

    def __init__(self, device: Owner, block: Block, nbytes: int, stream: int, graph: int) -> None:
        self.device, self.block, self.nbytes, self.stream = device, block, nbytes, stream
        pooled = block.segment.key[0] != EVERYBODY
        self.history = block.segment.history if pooled else History()
        self.owner = Owned(graph, next(_TENSORS))
        self.recorded: set[int] = set()  # other streams that record_stream named
        self.made_in = (0, stream)  # the backward pass, and the stream, that wrote to it last
        self.overwritten: Access | None = None  # by a replay, for a tensor that was there before

    @property
    def base(self) -> int:
        return self.block.offset

    @property
    def segment(self) -> int:
        return id(self.block.segment)

    @property
    def place(self) -> tuple[int, int]:
        """The segment and the place in it: what is given out there again has it, too."""
        return self.segment, self.block.offset

    def tensor(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        start = self.block.offset // dtype.itemsize
        storage = self.block.segment.storage
        return torch.empty(0, dtype=dtype, device=storage.device).set_(
            storage, start, shape, stride
        )

    def __del__(self) -> None:
        self.device.release(self)


class Use(NamedTuple):
    """A tensor's memory as an operation uses it.

    All three kinds have a history of who used them, an owner, a base and a length in bytes, and the
    id of their segment, which is 0 of the host's.
    """

    memory: Memory | HostMemory | Extent
    view: torch.Tensor
    writes: bool


@dataclass(eq=False)
class Kernel:
    """The work that a launch gives to the device; a captured one is launched again and again.

    part: whether it is one of several kernels of an operation, and not the last, which reads and
    writes for all. tiles: see `costs.Cost`.
    """

    name: str
    work: float
    share: float
    traffic: float
    kind: Kind
    uses: Sequence[Use]
    values: Computation | None = None
    engine: Unit = Unit.SMS
    line: SourceLine | None = None
    collective: Collective | None = None
    meet: Callable[[], Meeting] | None = None
    draw: Callable[[], torch.Tensor] | None = None  # takes random numbers, says from what state
    part: bool = False
    tiles: int = 0


class About(NamedTuple):
    """The origin of a task."""

    kind: Kind
    correlation: int
    collective: Collective | None
    line: SourceLine | None
    work: Computation | None


@dataclass(eq=False)
class HostMemory:
    """Memory of the host that the device copies from or to while the host goes on."""

    tensor: torch.Tensor  # which keeps it
    history: History = field(default_factory=History)
    owner: Owned = NOBODY
    base: int = 0
    segment: int = 0

    @property
    def nbytes(self) -> int:
        return self.tensor.untyped_storage().nbytes()


@dataclass(eq=False)
class Extent:
    """A piece of memory that does not keep it: captured kernels know addresses, not tensors."""

    history: History
    owner: Owned
    base: int
    nbytes: int
    segment: int


def extent(view: torch.Tensor) -> tuple[int, int]:
    """The bytes of its segment that a view reaches over: from, to."""
    size, elements = view.element_size(), view.numel()
    first = int(view.storage_offset()) * size
    if elements and not view.is_contiguous():
        steps = zip(view.shape, view.stride(), strict=True)
        elements = sum((n - 1) * stride for n, stride in steps) + 1
    return first, first + elements * size


def computed(compute: Callable[[], None], task: DeviceTask) -> None:
    """An error comes when the operation is played, as a GPU's does: so it names the operation."""
    try:
        compute()
    except Exception as error:
        where = task.about.line or "a line that is not known"
        raise RuntimeError(
            f"{task.name}, launched in {where}, failed on the virtual GPU: {error}"
        ) from error
