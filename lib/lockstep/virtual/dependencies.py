"""Whose results each launch needs: true dependencies, whatever streams and the host wait for."""

from __future__ import annotations

import torch

from .kernels import Kernel, extent


class Dependencies:
    """The launches so far, by their correlations.

    needs: of each the launches that wrote last to the memory that it reads or writes to. What the
    host has read from the device, and decides by, is not known.
    """

    def __init__(self) -> None:
        self.needs: dict[int, set[int]] = {}
        self._parts: list[int] = []  # of the operation whose last kernel comes next

    def on_launch(self, kernel: Kernel, launch: int) -> None:
        needs = self.needs.setdefault(launch, set())
        if kernel.part:
            self._parts.append(launch)
            return
        for memory, view, writes in kernel.uses:
            with torch._C.DisableTorchFunction():  # the view is looked at, and nothing is computed
                (first, last), whole = extent(view), view.is_contiguous()
            written = memory.history.written
            needs.update(
                by for a, b, of, by in written if a < last and first < b and of is memory.owner
            )
            if writes:
                # What lies between the elements of a view with gaps stays.
                rest = [(a, min(b, first) if whole else b, of, by) for a, b, of, by in written]
                rest += [(max(a, last), b, of, by) for a, b, of, by in written if whole]
                left = [one for one in rest if one[0] < one[1]]
                memory.history.written = [*left, (first, last, memory.owner, launch)]
        for part in self._parts:
            self.needs[part] = needs.copy()
        needs.update(self._parts)
        needs.discard(launch)  # a graph's kernels have one launch
        self._parts = []
