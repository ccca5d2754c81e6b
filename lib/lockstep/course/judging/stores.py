"""A store that knows who waits in it, so that a trial can let one rank come last.

How late is late? Not so many milliseconds: an answer that sleeps instead of waiting sleeps longer.
The last one comes when each other rank has gone on without it, or waits for a key that nobody has
written, or has asked so often that it will go on asking. The ranks write this down in the same
store, where the answer does not see it.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

MANY = 10  # times that a rank asks; more is no longer a few
_LONGEST = 2.0  # seconds by which a rank comes late, at most, all times together
_EVERY = 0.002  # seconds between two looks
_OWN = "lockstep/"  # before the trial's own keys
_BUSY, _AWAY, _OVER, _ASKS, _WAITS = b"busy", b"away", b"over", b"asks", b"waits "
ASKED = b"asked"  # of a rank that has asked once, and goes on later
_COUNTED = (
    "set", "add", "check", "compare_set", "append", "multi_set", "delete_key",
)  # fmt: skip
_IN_C = {"delete_key": "deleteKey", "num_keys": "getNumKeys"}  # what C++ calls them
_watched = itertools.count()  # the answers that were on this rank


class UsedBefore(Exception):
    """A world was to meet under keys of which an earlier one is left."""


class NeverMet(Exception):
    """Each rank waits for keys, and nobody is left to write them."""


class Watch:
    """One rank's requests to the store, and what it tells the others of itself.

    asked: how often. written: how many bytes it wrote. there: the keys that it waited for although
    they were there. lags: whether it goes on after waiting only when no other rank does anything
    without it. stalls: the same after its first request. hesitates: whether, once it has looked
    into the store, it writes only when all other ranks have asked once: so ranks that come at once
    do so on a busy machine, too. of_worlds: the store is one in which worlds meet, so keys of
    theirs are not used twice, and waiting in vain raises.
    """

    def __init__(self, real: Any, rank: int, world_size: int, of_worlds: bool):
        self.real, self.rank, self.world_size = real, rank, world_size
        self.asked = self.written = 0
        self.there: list[str] = []
        self.lags = self.stalls = self.hesitates = False
        self._of_worlds = of_worlds
        self._places: set[str] = set()
        self._first_world = True
        self._came = self._meetings = 0
        self._patience = _LONGEST
        self.tell(_BUSY)
        self.meet(world_size)

    # ── For a trial ──────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """The answer is about to be called."""
        self.asked = self.written = 0
        self.there = []
        self._first_world = False
        self.tell(_BUSY)

    def leave(self) -> None:
        """The answer has returned, or this rank is out of it."""
        self.tell(_AWAY)

    def give_up(self) -> None:
        """There is nothing left to see."""
        self.tell(_OVER)

    def is_over(self) -> bool:
        """Whether a rank has given up: to be asked where all ranks have met."""
        return _OVER in self._states(range(self.world_size))

    def come_after(self, others: Iterable[int], *states: bytes) -> bool:
        """Return when these ranks do nothing without this one: False if all have gone on."""
        ranks, began = list(others), time.perf_counter()
        while (late := time.perf_counter() - began) < self._patience:
            if self._settled(ranks, _ASKS, _AWAY, *states):
                break
            time.sleep(_EVERY)
        self._patience -= late
        return not ranks or any(state != _AWAY for state in self._states(ranks))

    def come_last(self, *states: bytes) -> bool:
        """Return when no other rank does anything without this one: False if all have gone on."""
        others = (rank for rank in range(self.world_size) if rank != self.rank)
        return self.come_after(others, *states)

    def meet(self, count: int) -> None:
        """Return when `count` ranks have come here."""
        self._came += count
        self._meetings += 1
        everybody = f"{_OWN}everybody {self._meetings}"
        if self.real.add(f"{_OWN}came", 1) == self._came:
            self.real.set(everybody, b"")
        self.real.wait([everybody])

    def exchange(self, value: Any) -> list[Any]:
        """Return what each rank gives, by rank."""
        self.real.set(f"{_OWN}of {self.rank}", pickle.dumps(value))
        keys = [f"{_OWN}of {rank}" for rank in range(self.world_size)]
        return [pickle.loads(self.real.get(key)) for key in keys]

    @property
    def own_keys(self) -> int:
        """Count the keys in the store that are the trial's."""
        return self.world_size + 1 + self._meetings

    # ── For the store ────────────────────────────────────────────────────────────────────────

    def tell(self, state: bytes) -> None:
        self.real.set(f"{_OWN}{self.rank}", state)

    def count(self) -> None:
        """The answer asks once more."""
        self.asked += 1
        if self.asked > MANY:
            self.tell(_ASKS)

    def ask(self, name: str, *args: Any, **named: Any) -> Any:
        self.count()
        if name in ("set", "append", "multi_set", "compare_set"):
            *_, values = *args, *named.values()
            self.written += sum(map(len, values if name == "multi_set" else [values]))
        if name == "set" and self._of_worlds:
            self._refuse_old(args[0])
        if self.hesitates and self.asked > 1 and name == "set":
            self.hesitates = False
            self.come_last(ASKED)
        answer = getattr(self.real, name)(*args, **named)
        if self.asked == 1 and (self.hesitates or self.stalls):
            self.tell(ASKED)
        if self.asked == 1 and self.stalls:
            self.come_last()
            self.tell(_BUSY)
        return answer

    def wait(self, keys: Any, timeout: datetime.timedelta | None = None) -> None:
        self.count()
        if isinstance(keys, str):
            self.real.wait(keys)  # it says what is wrong with that
        if self.real.check(keys):
            self.there += keys
            return
        with self._waiting_for(keys, timeout or self.real.timeout):
            self.real.wait(keys, *([timeout] if timeout else []))

    def get(self, key: str) -> Any:
        self.count()
        if self.real.check([key]):
            self.there.append(key)
            return self.real.get(key)
        with self._waiting_for([key], self.real.timeout):
            return self.real.get(key)

    def multi_get(self, keys: list[str]) -> Any:
        self.wait(keys)
        return self.real.multi_get(keys)

    @contextlib.contextmanager
    def _waiting_for(self, keys: list[str], timeout: datetime.timedelta) -> Iterator[None]:
        if timeout.total_seconds() >= _LONGEST:  # after less it would go on by itself
            self.tell(_WAITS + "\n".join(keys).encode())
        while self._of_worlds and not self.real.check(keys):
            if self._settled(range(self.world_size), _AWAY):
                raise NeverMet(", ".join(keys))
            time.sleep(_EVERY)
        yield
        self.tell(_BUSY)
        if self.lags:
            self.come_last()

    def _settled(self, ranks: Iterable[int], *states: bytes) -> bool:
        """Whether each of these ranks is in one of these states, or waits for what is not there.

        All states are read before any key is looked for: who then still waits did so all along.
        """
        for state in self._states(ranks):
            if state.startswith(_WAITS):
                if self.real.check(state.removeprefix(_WAITS).decode().split("\n")):
                    return False
            elif state not in states:
                return False
        return True

    def _states(self, ranks: Iterable[int]) -> list[bytes]:
        return [self.real.get(f"{_OWN}{rank}") for rank in ranks]

    def _refuse_old(self, key: str) -> None:
        """Raise UsedBefore where a rank is about to write what one of an earlier world wrote.

        The first keys are those of the first world, which the trial makes: they tell where worlds
        meet, and end with the rank's number.
        """
        place = key.rpartition("/")[0]
        if self._first_world:
            self._places.add(place)
        elif any(place.endswith(one) for one in self._places) and self.real.check([key]):
            raise UsedBefore(key)


@cache
def _store() -> type:
    """The class, which derives from PyTorch's: so prefixes and process groups take it, too."""
    import torch.distributed as dist

    class Store(dist.Store):
        def __init__(self, watch: Watch):
            super().__init__()
            self._watch = watch

        def __getattr__(self, name: str) -> Any:
            return getattr(self._watch.real, name)

        def get(self, key: str) -> Any:
            return self._watch.get(key)

        def multi_get(self, keys: list[str]) -> Any:
            return self._watch.multi_get(keys)

        def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
            self._watch.wait(keys, timeout)

        def barrier(self, *args: Any, **named: Any) -> None:
            self._watch.tell(_WAITS + b"the last one")
            self._watch.real.barrier(*args, **named)
            self._watch.tell(_BUSY)

        def num_keys(self) -> int:
            return int(self._watch.ask("num_keys")) - self._watch.own_keys

        def list_keys(self) -> list[str]:
            return [key for key in self._watch.ask("list_keys") if not key.startswith(_OWN)]

        def clone(self) -> Any:
            return self

        def set_timeout(self, timeout: datetime.timedelta) -> None:
            self._watch.real.set_timeout(timeout)

        timeout = property(lambda self: self._watch.real.timeout)

    for name in _COUNTED:
        setattr(Store, name, _asking(name))
    for name, in_c in _IN_C.items():
        setattr(Store, in_c, getattr(Store, name))
    return Store


def _asking(name: str) -> Callable[..., Any]:
    def ask(self: Any, *args: Any, **named: Any) -> Any:
        return self._watch.ask(name, *args, **named)

    return ask


def watched(*, of_worlds: bool = False) -> tuple[Any, Watch]:
    """The job's store as the answer gets it on this rank, and the watch over it. Of several answers
    one after the other each gets its own part of the store, and no world of those before it."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    real: dist.Store = dist.TCPStore(address, port, is_master=False)
    if before := next(_watched):
        real = dist.PrefixStore(str(before), real)
    watch = Watch(real, rank, world_size, of_worlds)
    return _store()(watch), watch
