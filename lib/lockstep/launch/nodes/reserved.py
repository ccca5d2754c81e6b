"""Ranks of this host that come up before there is a job for them."""

from __future__ import annotations

import contextlib
import selectors
import time

from ..engines.warm import Warm
from ..interrupts import defer_signals
from ..place import Place
from .base import Setting
from .local import TICK, LocalNode
from .slot import PATIENCE

_COMING = 30.0  # seconds for ranks in reserve that are still coming up


class ReservedNode(LocalNode):
    """Forked ranks that make their group and wait for a job.

    Where they are no good any more `start` starts others instead.
    """

    def __init__(self, seconds: float):
        """seconds: how long they wait for a job; then they end."""
        self._warm = Warm(unused=seconds)
        super().__init__(self._warm)

    def prepare(self, place: Place, setting: Setting, backend: str) -> None:
        """Start ranks that make their group and wait for a job; waits for none of that.

        Raises LaunchError, or OSError, where nothing can be started.
        """
        self._request(place, setting, selectors.PollSelector())
        self._on_arrival()
        for slot in self.ranks:
            assert slot.channel is not None
            with contextlib.suppress(OSError):  # it has died: `use` finds that
                slot.channel.send({"do": "prepare", "backend": backend}, patience=PATIENCE)

    def is_ready(self) -> bool:
        """Return whether all ranks have met; looks at what they have said so far."""
        self._engine.started()  # else somebody else might read that
        for key, _ in self._selector.select(0):
            key.data()
        return all(slot.state == "ready" for slot in self.ranks)

    @property
    def pids(self) -> list[int]:
        """The processes of its ranks, as they have said it themselves."""
        return [slot.reader.pid for slot in self.ranks]

    def start(self, place: Place, setting: Setting, selector: selectors.BaseSelector) -> Place:
        """Use the ranks that are there, which were prepared for the same place and setting."""
        if self._use():
            with defer_signals():
                for key in self._selector.get_map().values():
                    selector.register(key.fileobj, selectors.EVENT_READ, key.data)
                self._selector.close()
                self._selector = selector
            return self._place
        self.end(False, lambda: None)
        self._engine, self.why_ended = Warm(), ""
        return super().start(place, setting, selector)

    def _use(self) -> bool:
        """Return whether the ranks can do a job, once all have come up."""
        if not self._warm.use():
            return False
        self._confirm()
        for slot, pid in zip(self.ranks, self._warm.pids, strict=True):
            slot.pid = pid
        until = time.monotonic() + _COMING
        while waiting := [slot for slot in self.ranks if slot.state != "ready"]:
            held = any(slot.over or slot.cannot_act for slot in waiting)
            if held or self.why_ended or time.monotonic() > until:
                return False
            for key, _ in self._selector.select(TICK):
                key.data()
        return not any(slot.cannot_act for slot in self.ranks)

    def let_go(self) -> None:
        """End ranks that nobody uses; waits for nothing."""
        self._warm.let_go()
        for slot in self.ranks:
            self._forget(slot)
