"""The device in virtual time: what runs when on the streams, and who waits for whom.

Nothing here knows torch or values: a task has a length and two things to call, at its start and at
its end. Times are nanoseconds (float) of one clock, which host and device share.

A stream begins its tasks in order, none before its launch has come through (`ready`), and not
before the events that it waits for. Tasks share the device:

- Tasks of the SMs: by priority, then by who began, each takes the SMs that its blocks fill, as far
  as they are free; one for which none is free does not begin. What has fewer SMs is so much slower
  in that part of its time in which it does not wait for memory.
- A collective begins when there are SMs for all its blocks, and keeps them: see `tiles`.
- Memory bandwidth: where all together want more than there is, each is slowed in that part of its
  time in which it waits for memory. A collective moves the slower the more of it others use.
- Copy engines: one task at a time each.

A race is decided against the program: `hold` makes the earlier task take so long, or begin so late,
that what nothing orders comes in the wrong order. Where such holds would wait for each other, the
oldest gives way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from .tiles import Tiles

_NOTHING = 1e-6  # less than this of anything (ns, shares) is none
# How much longer a collective takes beside what uses all of the memory's bandwidth: as all-reduces
# beside `add_` and products in `virtual/contention-h200-x2.json`.
BUSY = 0.85


class Unit(Enum):
    SMS = "SMs"
    IN = "host to device"
    OUT = "device to host"


class Marker:
    """A point of a stream, and when the stream came to it."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time: float | None = None


class Meeting(Protocol):
    """The part of other ranks in a collective: they are told when this one came, and when all had.

    earliest: ns that it takes at least from then on; until that time the device can go on. moves:
    whether it is at its own work, and not only waits for others.
    """

    earliest: float
    moves: bool

    def arrive(self, time: float) -> None: ...
    def end(self, time: float) -> float:
        """The virtual time at which this rank is done, or before which it is not: then it is to be
        asked again. Waits for the ranks that have not come. time: now, where all its work is done.
        """
        ...


@dataclass(eq=False)
class DeviceTask:
    """Something that the device does: `work` ns of it, if it has all that it can use.

    share: of the SMs that it can use. tiles: of a product, what it has them for. traffic: the part
    of its time in which memory is what it waits for. ready: when its launch has come through. gap:
    ns between the task before on its stream and this one. begin, finish: called at start and end,
    with inputs still and outputs just now in memory. starts_after, ends_after: tasks whose end its
    start, or its end, must wait for because of a race.
    """

    name: str
    stream: int
    work: float
    ready: float
    share: float = 1.0
    traffic: float = 0.0
    gap: float = 0.0
    engine: Unit = Unit.SMS
    tiles: Tiles | None = None
    meeting: Meeting | None = None
    begin: Callable[[], None] | None = None
    finish: Callable[[], None] | None = None
    about: Any = None
    starts_after: list[DeviceTask] = field(default_factory=list)
    ends_after: list[DeviceTask] = field(default_factory=list)
    start: float | None = None
    end: float | None = None
    left: float = 0.0
    rate: float = 0.0

    @property
    def works(self) -> bool:
        """Whether it has work left; what only waits to be ended leaves the SMs to others."""
        return self.left > _NOTHING or self.meeting is not None

    @property
    def may_start(self) -> bool:
        return all(one.end is not None for one in self.starts_after)

    @property
    def may_end(self) -> bool:
        return all(one.end is not None for one in self.ends_after)


@dataclass(eq=False)
class Record:
    """A stream that comes here sets the marker."""

    marker: Marker
    ready: float


@dataclass(eq=False)
class Await:
    """A stream that comes here goes on when the marker is set."""

    marker: Marker
    ready: float
    came: float | None = None


@dataclass(eq=False)
class StreamQueue:
    """The tasks that a stream has yet to do. free: when its last task ended. running: the one it is
    at."""

    number: int
    priority: int = 0
    items: deque[DeviceTask | Record | Await] = field(default_factory=deque)
    free: float = 0.0
    running: DeviceTask | None = None
    tasks: int = 0  # waiting or running


class Schedule:
    """All streams of a device, played as far as somebody needs to know.

    ended: told of each task that is done, in order; waited: of each wait that lasted
    (stream, from, to). notice: ns that a stream needs to see what it has waited for.
    """

    def __init__(
        self,
        ended: Callable[[DeviceTask], None],
        waited: Callable[[int, float, float], None],
        notice: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.queues: dict[int, StreamQueue] = {}
        self._ended, self._waited, self._notice = ended, waited, notice
        self._running: list[DeviceTask] = []
        self._pending: dict[int, StreamQueue] = {}  # those with something to do
        self._changed = True

    def queue(self, number: int, priority: int = 0) -> StreamQueue:
        if number not in self.queues:
            self.queues[number] = StreamQueue(number, priority)
        return self.queues[number]

    def add(self, number: int, item: DeviceTask | Record | Await) -> None:
        queue = self.queues[number]
        queue.items.append(item)
        self._pending[number] = queue
        if isinstance(item, DeviceTask):
            item.left = item.work
            queue.tasks += 1
        self._changed = True

    @property
    def idle(self) -> bool:
        return not self._pending

    # ── Playing ──────────────────────────────────────────────────────────────────────────────

    def play(self, until: Callable[[], bool] | None = None, limit: float = math.inf) -> None:
        """Go on until it is so, or until the time `limit`, or until there is nothing to do."""
        while self._pending:
            if until is not None and until():
                return
            if self._changed:
                self._begin()
            if until is not None and until():  # a marker may have been reached
                return
            nearest = self._next()
            if math.isinf(nearest):
                if not self._pending:
                    return
                if not self._give_way():
                    if limit < math.inf:
                        return  # it waits for what the host has not yet said
                    raise RuntimeError("the virtual GPU waits for an event that nothing will set")
                continue
            self._advance(min(nearest, limit))
            if nearest > limit:
                return

    def _begin(self) -> None:
        """Start what can start now, and share the device anew."""
        self._changed = False
        moved = True
        while moved:
            moved = False
            for queue in [*self._pending.values()]:
                moved |= self._pass_markers(queue)
            heads = [
                queue.items[0]
                for queue in self._pending.values()
                if queue.running is None
                and queue.items
                and isinstance(queue.items[0], DeviceTask)
                and self._time_of(queue) <= self.now + _NOTHING
                and queue.items[0].may_start
            ]
            heads.sort(key=lambda task: (self.queues[task.stream].priority, task.ready))
            for head in heads:
                if self._has_room(head):
                    self._start(head)
                    moved = True
        self._share()

    def _pass_markers(self, queue: StreamQueue) -> bool:
        moved = False
        while queue.running is None and queue.items:
            item = queue.items[0]
            if isinstance(item, DeviceTask):
                break
            time = max(queue.free, item.ready)
            if time > self.now + _NOTHING:
                break
            if isinstance(item, Await):
                if item.came is None:
                    item.came = time
                if item.marker.time is None or item.marker.time > self.now + _NOTHING:
                    break
                if item.marker.time > item.came + _NOTHING:
                    self._waited(queue.number, item.came, item.marker.time)
                    queue.free = item.marker.time + self._notice
            else:
                item.marker.time = time
            queue.items.popleft()
            moved = True
        if not queue.items and queue.running is None:
            self._pending.pop(queue.number, None)
        return moved

    def _time_of(self, queue: StreamQueue) -> float:
        """Return when the head of a queue can start as far as its stream goes."""
        item = queue.items[0]
        if isinstance(item, DeviceTask):
            return max(item.ready, queue.free + item.gap if queue.free else 0.0)
        return max(item.ready, queue.free)

    def _has_room(self, task: DeviceTask) -> bool:
        if task.engine is not Unit.SMS:
            return all(one.engine is not task.engine or not one.works for one in self._running)
        priority, is_collective = self.queues[task.stream].priority, task.meeting is not None
        ahead = 0.0
        for one in self._running:
            if one.engine is not Unit.SMS or not one.works:
                continue
            if is_collective and (one.tiles is not None or one.meeting is not None):
                ahead += one.tiles.share if one.tiles is not None else one.share
            elif one.meeting is None and self.queues[one.stream].priority <= priority:
                ahead += one.share
        return ahead < 1 - max(task.share * is_collective, 2 * _NOTHING) + _NOTHING

    def _start(self, task: DeviceTask) -> None:
        queue = self.queues[task.stream]
        queue.items.popleft()
        queue.running = task
        task.start = self.now
        self._running.append(task)
        if task.tiles is not None and task.tiles.beside(self._held()):
            task.left = task.tiles.rest()
        if task.begin is not None:
            task.begin()
        if task.meeting is not None:
            task.meeting.arrive(self.now)
            task.left = task.meeting.earliest

    def _held(self) -> float:
        """The share of the SMs that collectives have."""
        return sum(one.share for one in self._running if one.meeting is not None)

    def _share(self) -> None:
        """Give every running task its rate."""
        free, wanted = 1.0, 0.0
        working = [task for task in self._running if task.works]
        held = self._held()
        for task in sorted(working, key=lambda task: self.queues[task.stream].priority):
            task.rate = 1.0
            if task.engine is Unit.SMS and task.meeting is None:
                got = min(task.share, free if task.tiles is not None else free - held)
                free -= max(got, 0.0)
                waits = task.traffic
                task.rate = got / (got * waits + task.share * (1 - waits)) if got > 0 else 0.0
                if task.tiles is not None and task.tiles.beside(held):
                    task.left = task.tiles.rest()
            if task.meeting is None or task.meeting.moves:
                wanted += task.traffic * task.rate
        for task in working:
            if task.meeting is None:
                task.rate /= 1 + task.traffic * max(wanted - 1, 0.0)
        others = sum(task.traffic * task.rate for task in working if task.meeting is None)
        for task in working:
            if task.meeting is not None and task.meeting.moves:
                task.rate = 1 / (1 + BUSY * others)

    def _next(self) -> float:
        """The next time at which something can happen, infinity if nothing can."""
        nearest = math.inf
        for task in self._running:
            if task.left > _NOTHING:
                if task.rate > 0:
                    nearest = min(nearest, self.now + task.left / task.rate)
            elif task.meeting is not None or task.may_end:
                return self.now
        for queue in self._pending.values():
            if queue.running is None and queue.items:
                item = queue.items[0]
                time = self._time_of(queue)
                if isinstance(item, Await):
                    if item.marker.time is not None:
                        time = max(time, item.marker.time)
                    elif item.came is not None:
                        continue
                elif isinstance(item, DeviceTask) and time <= self.now + _NOTHING:
                    time = self._room(item)
                nearest = min(nearest, time)
        return nearest

    def _room(self, task: DeviceTask) -> float:
        """When SMs may be free for one that waits for them, before the end of another."""
        ends = (
            self.now + one.tiles.next_end / one.rate
            for one in self._running
            if task.meeting is not None and one.tiles is not None and one.works and one.rate > 0
        )
        return min(ends, default=math.inf)

    def _advance(self, time: float) -> None:
        passed = max(time - self.now, 0.0)
        self.now = max(time, self.now)
        self._changed = True
        for task in [*self._running]:
            task.left -= passed * task.rate
            if task.tiles is not None:
                task.tiles.advance(passed * task.rate)
            if task.left > _NOTHING:
                continue
            if task.meeting is not None:
                rest = task.meeting.end(self.now) - self.now
                if rest > _NOTHING:
                    task.left, task.rate = rest, 1.0
                    continue
                task.meeting = None
            if task.may_end:
                self._finish(task)

    def _finish(self, task: DeviceTask) -> None:
        task.end = self.now
        self._running.remove(task)
        queue = self.queues[task.stream]
        queue.running, queue.free = None, self.now
        queue.tasks -= 1
        if task.finish is not None:
            task.finish()
        self._ended(task)
        if not queue.items:
            self._pending.pop(queue.number, None)

    def _give_way(self) -> bool:
        """Drop the holds of the oldest task that waits for one; False if none does."""
        held = [task for task in self._running if not task.may_end]
        held += [
            queue.items[0]
            for queue in self._pending.values()
            if queue.running is None and queue.items and isinstance(queue.items[0], DeviceTask)
            and not queue.items[0].may_start
        ]  # fmt: skip
        if not held:
            return False
        oldest = min(held, key=lambda task: task.ready)
        oldest.starts_after.clear()
        oldest.ends_after.clear()
        self._changed = True
        return True
