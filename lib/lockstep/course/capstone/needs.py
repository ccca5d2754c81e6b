"""Whose results each operation needs, on a real GPU: noted while the program runs.

A profiler's trace says which kernels an operation has launched, and not whose results they read. So
`Observed` sees each operation with its tensors, and puts an annotation around it, by which
`by_launch` finds its kernels in the trace. Imported where torch may be: on a rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...trace.joins import launched_in, on_device
from ...trace.slices import NONE, Kind, Slices
from ...virtual.collectives import FORMS
from ...virtual.work import Op, flat

_MARK = "needs of "


class Observed(TorchDispatchMode):
    """While it is on, operations are numbered.

    needs: of each the operations that wrote last to the memory that it reads or writes to, as
    `lockstep.virtual.needs` does; but memory is one result as a whole, whatever part of it is used.
    What the host has read, and decides by, is not known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.needs: list[set[int]] = []
        self._wrote: dict[int, set[int]] = defaultdict(set)  # last, by storage

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        op, kwargs, number = Op(func), kwargs or {}, len(self.needs)
        self.needs.append(set())
        with torch.profiler.record_function(f"{_MARK}{number}"):
            found = func(*args, **kwargs)
        given = dict(enumerate(args)) | {op.names.index(name): one for name, one in kwargs.items()}
        written = op.written
        if op.namespace == "c10d":
            form = FORMS.get(op.name)  # its schema does not say what it writes to
            written = [*given] if form is None else [form.out] if form.out is not None else []
        used = {place: flat(one) for place, one in given.items()}
        before = {_storage(one) for some in used.values() for one in some}
        if not op.reads_shapes_only and not op.is_view:
            for storage in before:
                self.needs[number] |= self._wrote[storage]
        for place in written:
            for one in used.get(place, ()):
                self._write(one, number)
        if op.namespace != "c10d":
            for one in flat(found):
                if _storage(one) not in before:  # new, at an address that may be another's old one
                    self._wrote[_storage(one)] = set() if op.only_allocates else {number}
        return found

    def _write(self, tensor: torch.Tensor, number: int) -> None:
        whole = tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
        last = self._wrote[_storage(tensor)]
        self._wrote[_storage(tensor)] = {number} if whole else last | {number}


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def by_launch(trace: Slices, needs: Sequence[set[int]]) -> Mapping[int, set[int]]:
    """Whose results each launch of one rank's trace needs, by their correlations, of what its
    operations need.

    A kernel needs those before it of its operation. Of an operation without kernels, as one that
    waits for the host's memory, those count that it needs itself.
    """
    rows = on_device(trace)
    marks = np.array([name.startswith(_MARK) for name in trace.names], bool)
    wanted = marks[trace.name] & (trace.kind == Kind.ANNOTATION)
    around = launched_in(trace, rows, wanted)
    launches: dict[int, list[int]] = defaultdict(list)
    for row, mark in zip(rows.tolist(), around.tolist(), strict=True):
        if mark != NONE:
            number = int(trace.names[trace.name[mark]].removeprefix(_MARK))
            launches[number].append(int(trace.correlation[row]))
    ready: list[set[int]] = []  # of each operation, the launches that it and what it needs end with
    found: dict[int, set[int]] = {}
    for number, some in enumerate(needs):
        before = set().union(*(ready[one] for one in some))
        for launch in launches[number]:
            found[launch] = found.get(launch, set()) | before
            before = {launch}
        ready.append(before)
    return found
