"""Watches for races as operations are launched, and makes each of them show in a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from .happens_before import Clock
from .kernels import Extent, HostMemory, Kernel, Memory, computed, extent
from .race_detector import Access, Race, Races, SourceLine, race
from .schedule import DeviceTask


class Actor(NamedTuple):
    """An operation that uses memory, or the host itself. clock: what is done before it."""

    name: str
    stream: int
    number: int
    clock: Clock
    line: SourceLine | None
    task: DeviceTask | None = None


class RaceWatch:
    """The races of a device so far.

    named, coded: a stream in words, and as the program writes it. as_device: what is computed
    inside is the device's work. pooled: memory that tensors have in pools of graphs. shared: memory
    of the host that the device uses, by address.
    """

    def __init__(
        self,
        named: Callable[[int], str],
        coded: Callable[[int], str],
        as_device: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._named, self._coded, self._as_device = named, coded, as_device
        self._found: dict[Any, Race] = {}
        self._open: list[tuple[Any, Access, Access]] = []  # pairs whose order in time is not known
        self._shown: set[Any] = set()  # those of `_found` that have shown in a number
        self.pooled: WeakSet[Memory] = WeakSet()
        self.shared: dict[int, HostMemory] = {}

    @property
    def races(self) -> Races:
        self._settle()
        unlucky = self._shown | {key for key, _, _ in self._open}
        return Races(replace(one, by_luck=key not in unlucky) for key, one in self._found.items())

    def on_launch(self, kernel: Kernel, actor: Actor) -> None:
        """See what a kernel races with; `actor` has its task."""
        with torch._C.DisableTorchFunction():  # views are looked at here, and nothing is computed
            found = [pair for one in kernel.uses for pair in self._use(*one, actor)]
        for old, new in found:
            self._note(old, new)
            if old.task is not None and actor.task is not None:
                _hold(old, new, actor.task)
                self._read_early(old.task)
                self._read_early(actor.task)

    def on_host_use(self, address: int, view: torch.Tensor, writes: bool, actor: Actor) -> None:
        """The program itself reads or writes memory that the device copies from or to."""
        for old, new in self._use(self.shared[address], view, writes, actor):
            self._note(old, new)

    def forget(self, host: Clock) -> None:
        """Forget what the host has waited for in memory of its own."""
        self._settle()
        for address, memory in [*self.shared.items()]:
            memory.history.forget(host)
            if not memory.history.known:
                del self.shared[address]

    def given_out(self, memory: Memory, host: Clock) -> None:
        """A tensor has got memory: what others did there last may race with what it does."""
        block, kept = memory.block, []
        start, end = block.offset, block.offset + block.size
        for one in block.segment.left:
            if host.get(one.stream, 0) >= one.number:
                continue
            if one.last <= start or end <= one.first:
                kept.append(one)
            else:
                kept += [*_cut(one, 0, start), *_cut(one, end, one.last)]
                memory.history.known += _cut(one, start, end)
        block.segment.left[:] = kept

    def given_back(self, memory: Memory, done: Clock) -> None:
        """A tensor has let go of memory. done: what is over before others get it."""
        if memory.history is not memory.block.segment.history:
            memory.history.forget(done)
            memory.block.segment.left.extend(memory.history.known)

    def _use(
        self, memory: Memory | HostMemory | Extent, view: torch.Tensor, writes: bool, actor: Actor
    ) -> Sequence[tuple[Access, Access]]:
        first, last = extent(view)
        name, stream, number, clock, line, task = actor
        new = Access(task, name, stream, number, first, last, view, writes, line, memory.owner)
        if self.pooled:
            self._share_pool(memory, new)
        return [(old, new) for old in memory.history.add(new, clock)]

    def _share_pool(self, memory: Memory | HostMemory | Extent, new: Access) -> None:
        """See a replay overwrite what another graph of its pool has put out, and who reads it."""
        for other in self.pooled:
            if other.owner is memory.owner:
                if new.writes:
                    other.overwritten = None
                elif other.overwritten is not None:
                    self._note(other.overwritten, new)
            elif isinstance(memory, Extent) and new.writes:
                is_there = new.first < other.base + other.nbytes and other.base < new.last
                if other.segment == memory.segment and is_there:
                    other.overwritten = replace(new, replayed=True)

    def _read_early(self, task: DeviceTask) -> None:
        """A task that races reads when it begins, and writes when it ends."""
        work = task.about.work
        if work is None or task.end is not None:
            return
        if task.start is None:
            task.begin = partial(computed, work.read, task)
        else:
            with self._as_device():
                work.read()

    def _note(self, old: Access, new: Access) -> None:
        key = (old.line, new.line, old.name, new.name, old.writes, new.writes)
        if key not in self._found:
            self._found[key] = race(old, new, self._named, self._coded)
        if key not in self._shown:
            self._open.append((key, old, new))
            if new.task is None or old.replayed:
                self._settle()

    def _settle(self) -> None:
        """See in what order those that race came, of which that is known by now."""
        still = []
        for key, old, new in self._open:
            order = _came_in_order(old, new)
            if order is False:
                self._shown.add(key)
            elif order is None and key not in self._shown:
                still.append((key, old, new))
        self._open = still


def _cut(access: Access, first: int, last: int) -> list[Access]:
    """The part of an access that lies in bytes [first, last), if any."""
    first, last = max(access.first, first), min(access.last, last)
    return [replace(access, first=first, last=last)] if first < last else []


def _came_in_order(old: Access, new: Access) -> bool | None:
    """Whether two that race came in the program's order all the same; None: not yet known."""
    first, second = old.task, new.task
    if old.replayed or first is None:
        return False
    if second is None:
        return first.end is not None
    if old.writes:
        if first.end is not None:
            return second.start is None or first.end <= second.start
        return False if second.end is not None else None
    if first.start is not None:
        return second.end is None or first.start < second.end
    return False if second.end is not None else None


def _hold(old: Access, new: Access, task: DeviceTask) -> None:
    """Let the second of two that race come first, if the first is not over."""
    first = old.task
    if first is None or first.end is not None:
        return
    if old.writes:
        first.ends_after.append(task)
    elif first.start is None:
        first.starts_after.append(task)
