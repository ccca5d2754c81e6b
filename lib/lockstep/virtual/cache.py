"""The L2 cache: which memory is still in it."""

from __future__ import annotations

from collections.abc import Iterable

from .kernels import Memory


class L2Cache:
    """Forgets what so many bytes were used after."""

    def __init__(self, nbytes: float) -> None:
        self._nbytes = nbytes
        self._moved = 0  # bytes that operations have used so far
        self._used: dict[tuple[int, int], int] = {}  # by place: `_moved` when it was used last

    def fetched(self, read: Iterable[Memory], written: Iterable[Memory]) -> int:
        """Let an operation use memory; return the bytes of what it reads that have left."""
        read, before = list(read), self._moved
        cold = sum(
            memory.nbytes
            for memory in read
            if before - self._used.get(memory.place, before) > self._nbytes
        )
        for memory in (*read, *written):
            self._moved += memory.nbytes
            self._used[memory.place] = self._moved
        return cold
