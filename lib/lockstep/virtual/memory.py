"""The memory of the virtual GPU, given out as PyTorch's caching allocator does.

Segments are real memory of this process, so that an address that is used again holds what was
there. Sizes and rules are those of c10/cuda/CUDACachingAllocator.cpp: blocks of 512 bytes; requests
to 1 MiB from segments of 2 MiB, to 10 MiB from segments of 20 MiB, larger ones from segments of
their size, in steps of 2 MiB; the smallest free block of the same stream and pool that fits, the
rest of it split off; neighbours that are free become one. A block goes back to its stream's pool
when the host lets go of the tensor, at once, whatever streams still do with it: only those named by
`record_stream` are waited for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .memory_history import MemoryHistory
from .race_detector import Access, History

KIB, MIB = 1 << 10, 1 << 20
LEAST, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE_SEGMENT, LARGE, ROUND_LARGE = 20 * MIB, 10 * MIB, 2 * MIB
Pool = tuple[int, int]  # as torch.cuda.graph_pool_handle() gives it; (0, 0) is everybody's
EVERYBODY: Pool = (0, 0)
_FAR = 1 << 46


@dataclass(eq=False)
class Segment:
    """Memory that the allocator took from the device at once.

    left: what tensors that are gone did there. history: what is done there, in a pool of graphs,
    whose tensors lie at the same addresses again and again.
    """

    storage: torch.UntypedStorage
    address: int
    size: int
    key: tuple[Pool, int, bool]  # pool, stream, small
    blocks: list[Block] = field(default_factory=list)  # by offset
    left: list[Access] = field(default_factory=list)
    history: History = field(default_factory=History)


@dataclass(eq=False)
class Block:
    """requested: bytes that the tensor asked for. frames: where, if a history is recorded."""

    segment: Segment
    offset: int
    size: int
    free: bool = True
    requested: int = 0
    frames: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> int:
        return self.segment.address + self.offset


class Allocator:
    """Blocks of device memory.

    allocated, reserved: bytes that tensors have, and that segments have; peak_allocated,
    peak_reserved: the most of it since the last reset. history: of what it does, where that is
    recorded. Raises torch.OutOfMemoryError.
    """

    def __init__(self, capacity: int, device: str, values: bool) -> None:
        self.capacity, self._device, self._values = capacity, device, values
        self.segments: dict[tuple[Pool, int, bool], list[Segment]] = {}
        self._unused: dict[tuple[Pool, int, bool], list[Block]] = {}  # blocks that are free
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.users: Counter[Pool] = Counter()  # how many graphs have a pool
        self._next = 0
        self.waiting: list[tuple[Block, Sequence[Callable[[], bool]]]] = []
        self.history: MemoryHistory | None = None

    def take(self, nbytes: int, stream: int, pool: Pool = EVERYBODY) -> Block:
        size = _rounded(nbytes)
        self._end_waiting()
        small = size <= SMALL
        key = (pool, stream, small)
        block = self._fitting(key, size) or self._new_segment(key, size)
        self._split(block, size, small)
        block.free, block.requested = False, nbytes
        self._unused[key].remove(block)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        block.frames = self._note("alloc", block.requested, block.segment, block.address)
        return block

    def fits(self, nbytes: int, stream: int) -> bool:
        """Whether a tensor of everybody's pool needs no new segment."""
        size = _rounded(nbytes)
        return self._fitting((EVERYBODY, stream, size <= SMALL), size) is not None

    def give_back(self, block: Block, unless: Sequence[Callable[[], bool]] = ()) -> None:
        """Free a block: now, or, of one that other streams use, when all of `unless` say so."""
        self.allocated -= block.size
        self._note("free_requested", block.requested, block.segment, block.address)
        if unless:
            self.waiting.append((block, unless))
        else:
            self._free(block)

    def empty_cache(self) -> None:
        """Give segments that nobody uses, and no graph keeps, back to the device."""
        self._end_waiting()
        for key, segments in self.segments.items():
            if not self.users[key[0]]:
                self._drop(segments)

    def drop_pool(self, pool: Pool) -> None:
        """Give what nobody uses of a graph's pool back."""
        for key, segments in self.segments.items():
            if key[0] == pool:
                self._drop(segments)

    def _drop(self, segments: list[Segment]) -> None:
        for segment in [*segments]:
            if len(segment.blocks) == 1 and segment.blocks[0].free:
                segments.remove(segment)
                self._unused[segment.key].remove(segment.blocks[0])
                self.reserved -= segment.size
                self._note("segment_free", segment.size, segment, segment.address)

    def _note(self, action: str, size: int, segment: Segment, address: int) -> list[dict[str, Any]]:
        if self.history is None:
            return []
        pool, stream, _ = segment.key
        return self.history.note(action, size, stream, pool, addr=address)

    def _fitting(self, key: tuple[Pool, int, bool], size: int) -> Block | None:
        fitting = [block for block in self._unused.get(key, ()) if block.size >= size]
        return min(fitting, key=lambda block: block.size, default=None)

    def _new_segment(self, key: tuple[Pool, int, bool], size: int) -> Block:
        if size <= SMALL:
            length = SMALL_SEGMENT
        elif size < LARGE:
            length = LARGE_SEGMENT
        else:
            length = math.ceil(size / ROUND_LARGE) * ROUND_LARGE
        if self.reserved + length > self.capacity:
            self.empty_cache()
        if self.reserved + length > self.capacity:
            if self.history is not None:
                free = self.capacity - self.reserved
                self.history.note("oom", size, key[1], key[0], device_free=free)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {length / MIB:.2f} MiB. {self._device} has "
                f"a total capacity of {self.capacity / MIB / KIB:.2f} GiB, of which "
                f"{(self.capacity - self.reserved) / MIB:.2f} MiB is free. "
                f"{self.allocated / MIB:.2f} MiB is allocated by PyTorch, and "
                f"{(self.reserved - self.allocated) / MIB:.2f} MiB is reserved by PyTorch but "
                "unallocated."
            )
        memory = self._memory(length)
        # Where there is no memory an address need only be nobody else's.
        address = memory.data_ptr() or _FAR + self._next
        self._next += length
        segment = Segment(memory.untyped_storage(), address, length, key)
        block = Block(segment, 0, length)
        segment.blocks.append(block)
        self.segments.setdefault(key, []).append(segment)
        self._unused.setdefault(key, []).append(block)
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._note("segment_alloc", length, segment, address)
        return block

    def _memory(self, length: int) -> torch.Tensor:
        if not self._values:
            return torch.empty(length, dtype=torch.uint8, device="meta")
        try:  # NumPy's zeros are pages that the system gives when they are first written to
            return torch.from_numpy(np.zeros(length, np.uint8))
        except MemoryError:
            raise MemoryError(
                f"this machine has no {length / MIB:,.0f} MiB for values of the virtual GPU: take "
                "smaller tensors, or lockstep.virtual.device(values=False), which has only times"
            ) from None

    def _split(self, block: Block, size: int, small: bool) -> None:
        rest = block.size - size
        if rest < LEAST if small else rest <= SMALL:
            return
        segment = block.segment
        other = Block(segment, block.offset + size, rest)
        segment.blocks.insert(segment.blocks.index(block) + 1, other)
        self._unused[segment.key].append(other)
        block.size = size

    def _free(self, block: Block) -> None:
        self._note("free_completed", block.requested, block.segment, block.address)
        block.free = True
        blocks, unused = block.segment.blocks, self._unused[block.segment.key]
        at = blocks.index(block)
        if at + 1 < len(blocks) and blocks[at + 1].free:
            after = blocks.pop(at + 1)
            unused.remove(after)
            block.size += after.size
        if at and blocks[at - 1].free:
            blocks[at - 1].size += blocks.pop(at).size
        else:
            unused.append(block)

    def _end_waiting(self) -> None:
        if self.waiting:
            still = []
            for block, unless in self.waiting:
                if all(done() for done in unless):
                    self._free(block)
                else:
                    still.append((block, unless))
            self.waiting = still


def _rounded(nbytes: int) -> int:
    return max(math.ceil(nbytes / LEAST), 1) * LEAST
