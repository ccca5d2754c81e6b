"""The call record: every c10d call of a rank, written where the notebook can read it at any time.

A rank appends each call to memory that it shares with the notebook's kernel, so the record is
there even while the rank is blocked inside C++ or after it was killed. What is written here, and
when, `hooks.py` says; the layout of that memory, and its reader, are in `calls/record.py`.

What this module uses of Python it takes when it is imported: a program may put something else into
`time` or `os`.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from _thread import start_new_thread
from builtins import len
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Any
from weakref import ref

from ...calls.record import (
    AGAIN,
    DROPPED,
    END,
    F64,
    FORSAKEN,
    GRAPH,
    HELP,
    LEAVING,
    MOVES,
    ON_GPU,
    STANDS,
    USED,
    WAITING,
    Group,
    offset_of,
)
from .record_writer import CallKind, RecordWriter
from .threads import OtherThreads

_MOST_WATCHERS = 16
_key = object.__hash__  # as id(), of which programs can hear


class _Here:
    """The calls that are under way in one thread."""

    __slots__ = ("batching", "blocking", "fresh", "is_caught", "quiet")

    def __init__(self) -> None:
        self.batching = False  # inside of batch_isend_irecv
        self.quiet = False  # inside of new_group and its like: that traffic is not the learner's
        self.is_caught = False  # inside of a call that is in the record
        self.fresh: list[Any] = []  # Works that their caller may not have got yet
        # A synchronous call that is waited for next: its Work, its entry.
        self.blocking: tuple[Any, int] | None = None


class _Local(threading.local):
    def __init__(self) -> None:
        self.here = _Here()


class Recorder(RecordWriter):
    """Records this process's calls: for all threads, and what interrupts them."""

    def __init__(self, memory: Any):
        super().__init__(memory)
        self._main = threading.main_thread().ident
        self._defaults_ended = 0
        self._outermost = 0  # the entry in which the main thread is, its outermost one
        self._stood_in = 0  # the one in which it was seen to stand, where it has said none
        self.local = _Local()
        self._under_way: dict[int, Any] = {}  # futures of works, by their entry
        self._works: dict[int, tuple[ref[Any], int]] = {}  # by key: the Work, its entry
        self._futures: dict[int, tuple[ref[Any], int]] = {}  # by key: of a Work, its entry
        self._given_out: set[int] = set()  # entries whose future the program has asked for
        self._messages: set[int] = set()  # entries of messages under way
        self._spent: dict[int, tuple[ref[Any], int]] = {}  # messages that were waited for
        self._watchers = _Watchers()
        self._others = OtherThreads()
        self.is_on_gpu = False
        self._may_be_helped = 0  # as the header says

    def reset(self) -> None:
        """Forget the entries: a kept world begins its next cell. Counts and groups go on.

        The new section follows no other one: a work of the cell before that ends now has no entry.
        """
        with self._lock:
            self._section += 2
            self._used = self._held = self._held_before = self.newest = 0
            works = self._works, self._futures, self._spent
            for held in (*works, self._messages, self._given_out):
                held.clear()
            self.local.here.fresh.clear()
            self.is_on_gpu, self._may_be_helped = False, 0
            for which in (WAITING, DROPPED, ON_GPU, HELP, USED, USED + 1, STANDS):
                self._header[which] = 0
            self._begin_section()

    @property
    def own_threads(self) -> set[int]:
        """The threads that record: they do nothing that a program might wait for."""
        return self._watchers.threads

    def settle(self) -> None:
        """Write down the end of each work that is over; its watcher may not have run yet."""
        for place, future in list(self._under_way.items()):
            if future.done():
                self._is_done(place)

    def default_name(self) -> str:
        return f"default {self._defaults_ended}"

    def default_ended(self) -> None:
        """After destroy_process_group(): the next groups reuse the names of the old ones."""
        with self._lock:
            self._groups = {k: v for k, v in self._groups.items() if v[1].is_internal}
            self._defaults_ended += 1

    def begin(self, operation: str, group: int, *what: Any, **more: Any) -> int:
        """Enter a call that is described as for `kind`; returns as `begin_one`."""
        return self.begin_one(self.kind(operation, group, *what, **more))

    def begin_one(self, kind: CallKind, waited: int = 0, at: float | None = None) -> int:
        """Enter a call of this kind; returns its entry, 0 where it has none. waited: for its end,
        as `say_waited` says. at: when it began, None: now.
        """
        here = self.local.here
        if here.fresh:
            here.fresh.clear()
        if here.blocking is not None:  # the program has kept the Work of a synchronous call
            (work, place), here.blocking = here.blocking, None
            self.say_waited(place, 0)
            self.follow(work, place, False, None, False)
        return self._enter(kind, at, waited=waited)

    def queued(self, kind: CallKind, at: float, number: int | None = None) -> int:
        """Enter a call that NCCL has queued, at some moment; returns as `begin_one`.

        number: of a collective, where it is known; None: the next one.
        """
        place = self._enter(kind, at, number)
        self.say_waited(place)
        return place

    def end_queued(self, place: int) -> None:
        """Write down that a GPU has done a call; when is not known."""
        if place >= self._oldest:
            offset = offset_of(place, self._size)
            F64.pack_into(self._memory, offset + END, F64.unpack_from(self._memory, offset)[0])

    def reopen(self, place: int) -> None:
        """Write down that a call is not over: that was a mistake."""
        if place >= self._oldest:
            F64.pack_into(self._memory, offset_of(place, self._size) + END, math.nan)

    def lose(self, count: int) -> None:
        """So many calls are not in the record."""
        self._header[DROPPED] += count

    def on_gpu(self, holds_a_graph: bool = False) -> None:
        self.is_on_gpu = True
        self._header[ON_GPU] = GRAPH if holds_a_graph else 1

    def moved(self) -> None:
        """Say that NCCL's calls go on."""
        self._header[MOVES] += 1

    def stand(self, is_still: bool, place: int) -> None:
        """Say whether the main thread waits for its GPU, and in which entry, if in one; 0: none.

        Not where it has said itself in what it waits.
        """
        self._header[STANDS] = is_still
        if place != self._stood_in and not self._outermost:
            self._stood_in = place
            self._header[WAITING] = self._outermost or place

    # ── Works that go on behind the program ──────────────────────────────────────────────────

    def follow(self, work: Any, place: int, is_message: bool, future: Any, hand_over: bool) -> None:
        """See to it that the entry of a work on the CPU gets its end.

        The Python object of a Work is one and the same as long as it lives, so the one that the
        caller gets and waits for is found again by its identity. With `hand_over` it is held here
        until the caller has it: under gloo a message is given up with what isend() returned.
        future: of the work, where its end is not seen by who waits for it.
        """
        key = _key(work)
        gone: Callable[[Any], Any] = partial(self._works.pop, key)
        if is_message:
            gone = partial(self._given_up, key, place)
            self._messages.add(place)
        self._works[key] = (ref(work, gone), place)
        if hand_over:
            self.local.here.fresh.append(work)
        if future is not None:
            self._under_way[place] = future
            self._watchers.watch(future, partial(self._is_done, place))

    def _given_up(self, key: int, place: int, _: Any) -> None:
        self._messages.discard(place)
        if self._works.pop(key, None) is not None:
            self.end(place, FORSAKEN)

    def _is_done(self, place: int) -> None:
        self.end(place)
        if place in self._given_out:  # what the program wants done then, a thread of gloo's does
            self._given_out.discard(place)
            self._may_be_helped = self._header[HELP] = True
        self._under_way.pop(place, None)

    def disown(self) -> None:
        """In a process that a rank has forked: leave the rank's record alone."""
        self._works.clear()
        self._futures.clear()
        self.local.here.fresh.clear()

    def waited_for(self, work: Any) -> int:
        """The entry of a work that is waited for now; 0 if it is not known, or was waited for."""
        self.local.here.fresh.clear()
        known = self._works.get(_key(work))
        if known is None or known[0]() is not work:
            return 0
        del self._works[_key(work)]
        self.say_waited(known[1])
        return known[1]

    def is_over(self, work: Any, place: int) -> None:
        """A wait has returned; of a message there is no second end to wait for."""
        key = _key(work)
        if place in self._messages:
            self._messages.discard(place)
            self._spent[key] = (ref(work, partial(self._spent.pop, key)), place)

    def waited_again(self, work: Any) -> int:
        """The entry of a message whose end was waited for, and is now waited for again; or 0."""
        known = self._spent.get(_key(work))
        if known is None or known[0]() is not work:
            return 0
        self.say_waited(known[1], AGAIN)
        return known[1]

    def completed(self, work: Any, told: Any) -> None:
        """Somebody has learned in another way than by wait() that a work is over, or by its future
        (`told`) will."""
        self.local.here.fresh.clear()
        known = self._works.get(_key(work))
        if known is None or known[0]() is not work:
            return
        self.say_waited(known[1])
        if told is not None and told is not True:
            key = _key(told)
            if known[1] in self._under_way:
                self._given_out.add(known[1])
            self._others.may_call_back = True
            self._futures[key] = (ref(told, partial(self._futures.pop, key)), known[1])

    def awaited_as(self, future: Any) -> int:
        """The entry of the work whose future this is; 0 if it is not known."""
        known = self._futures.get(_key(future))
        return known[1] if known is not None and known[0]() is future else 0

    def enter(self, place: int, may_be_helped: bool = False) -> bool:
        """The main thread may block in this entry; inside of another one, that one counts.

        may_be_helped: by what is no rank. Returns whether there is something to `leave`.
        """
        if not place or self._outermost or get_ident() != self._main:
            return False
        self._say_who_may_help(may_be_helped)
        self._outermost = self._header[WAITING] = place
        return True

    def _say_who_may_help(self, others: bool) -> None:
        help = others or self._others.may_act(self._watchers.threads)
        if help != self._may_be_helped:
            self._may_be_helped = self._header[HELP] = help

    def leave(self, entered: bool) -> None:
        if entered:
            self._outermost = self._header[WAITING] = 0

    def finish(self, place: int, entered: bool) -> None:
        """A call is over now, and with it the wait that was entered."""
        at = perf_counter()
        if entered:
            self._outermost = self._header[WAITING] = 0
        if place >= self._oldest:
            F64.pack_into(self._memory, offset_of(place, self._size) + END, at)

    @contextlib.contextmanager
    def leaving(self, what: str, may_be_helped: bool = False) -> Iterator[None]:
        """Something that a rank does when its job is done; calls in it are recorded as always."""
        self._say_who_may_help(may_be_helped)
        number, _ = self.group(LEAVING, lambda: Group(LEAVING, ()))
        place = self.begin(what, number)
        try:
            yield
        finally:
            self.end(place)

    @contextlib.contextmanager
    def internal(
        self, kind: str, operation: str, peer: int | None = None, may_be_helped: bool = False
    ) -> Iterator[None]:
        """A call that is not an operation on a group but in which a rank may wait for others."""
        number, _ = self.group(kind, lambda: Group(kind, ()))
        place = self.begin(operation, number, peer=peer)
        here = self.local.here
        before, here.quiet = here.quiet, True
        entered = self.enter(place, may_be_helped)
        try:
            yield
        finally:
            self.leave(entered)
            here.quiet = before
            self.end(place)


class _Watchers:
    """Threads that wait for works to complete, without Python's lock, and then say so.

    They are not `threading`'s: a program that counts its threads, or joins them, has none of them.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: queue.SimpleQueue[tuple[Any, Callable[[], None]]] = queue.SimpleQueue()
        self._busy = 0
        self.threads: set[int] = set()

    def watch(self, future: Any, done: Callable[[], None]) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > len(self.threads) < _MOST_WATCHERS:
                with contextlib.suppress(RuntimeError):  # no more threads: `settle` sees the end
                    self.threads.add(start_new_thread(self._serve, ()))
        self._waiting.put((future, done))

    def _serve(self) -> None:
        while True:
            future, done = self._waiting.get()
            with contextlib.suppress(Exception):  # it failed: whoever waits for the work is told
                future.wait()
            with contextlib.suppress(Exception):  # nobody is there to be told
                done()
            del future, done  # the tensors in it are the program's to keep or to drop
            with self._lock:
                self._busy -= 1
