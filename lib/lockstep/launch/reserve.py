"""Ranks in reserve: up before a cell asks for them, used for one job, then thrown away.

On GPUs most of a short cell is waiting for CUDA contexts and for NCCL's ranks to meet. So after a
job the next ranks of the same kind come up while the learner reads: processes as fresh as any, with
their default group made. They have run no code of the learner's. What they inherit (environment,
working directory, paths of modules, cores, size, backend) must be the same when they are wanted,
or they are thrown away and fresh ones start; so where anything is wrong with them, too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from ..base.machine import in_notebook, usable_cores
from .errors import LaunchError
from .interrupts import defer_signals
from .nodes.base import Setting
from .nodes.reserved import ReservedNode
from .outcome import Plan
from .place import Place

VARIABLE = "LOCKSTEP_RESERVE"
WHEN = ("off", "between", "behind")
_IDLE = 600.0  # seconds


class Reserve:
    """At most one set of ranks for this process's next job."""

    def __init__(self) -> None:
        self._when: str | None = None  # what the program has said; None: the environment counts
        self._idle = _IDLE
        self._node: ReservedNode | None = None
        self._kind: Any = None  # all that its ranks have inherited
        self._owner = os.getpid()

    def set(self, when: str | None, minutes: float) -> None:
        """See `lockstep.reserve`."""
        self._when, self._idle = _checked(when), minutes * 60
        if when == "off":
            self.drop()

    def when(self, plan: Plan) -> str:
        """Return when ranks for another job like this are to come up."""
        if plan.backend is None or plan.engine != "warm" or plan.nodes > 1 or plan.logs is not None:
            return "off"
        said = self._when or _checked(os.environ.get(VARIABLE) or None)
        return said or ("between" if plan.backend == "nccl" and in_notebook() else "off")

    @defer_signals()  # ranks that nobody knows would stay for minutes
    def keep(self, plan: Plan, setting: Setting) -> None:
        """Begin to start ranks for another job like this; waits for nothing that takes long."""
        kind = _kind(plan, setting)
        if self._node is not None and self._owner == os.getpid() and kind == self._kind:
            return
        self.drop()
        assert plan.backend is not None
        node = ReservedNode(self._idle)
        try:
            node.prepare(Place(0, plan.nproc, plan.nproc), setting, plan.backend)
        except (LaunchError, OSError):  # the next job says what is wrong, if it still is
            node.end(False, lambda: None)
            return
        self._node, self._kind, self._owner = node, kind, os.getpid()

    def take(self, plan: Plan, setting: Setting) -> ReservedNode | None:
        """The ranks for this job, if there are such; others are thrown away: it needs the room.

        Whether they are still good for one is found out as they start.
        """
        node = self._node
        if node is None or self._owner != os.getpid():
            return None
        if plan.backend is None or self._kind != _kind(plan, setting):
            self.drop()
            return None
        self._node = None
        return node

    def drop(self) -> None:
        """Throw it away; its processes end by themselves, and nobody waits for them."""
        node, self._node = self._node, None
        if node is not None and self._owner == os.getpid():
            node.let_go()

    def __repr__(self) -> str:
        if self._node is None or self._owner != os.getpid():
            return "no ranks in reserve"
        nproc, backend, *_ = self._kind
        state = "ready" if self.is_ready else "not ready"
        return f"{nproc} ranks in reserve, {backend}, {state}"

    @property
    def pids(self) -> list[int]:
        """Its processes, once all of them have met; [] before, and where there is none."""
        return self._node.pids if self.is_ready and self._node is not None else []

    @property
    def is_ready(self) -> bool:
        """Return whether there are ranks, and all of them have met."""
        node = self._node if self._owner == os.getpid() else None
        try:
            return node is not None and node.is_ready()
        except LaunchError:
            return False


def _kind(plan: Plan, setting: Setting) -> tuple[Any, ...]:
    environment: Mapping[str, str] = {**os.environ, **setting.environment}
    return (
        plan.nproc,
        plan.backend,
        environment,
        setting.directory,
        tuple(setting.path),
        usable_cores(),
    )


def _checked(when: str | None) -> str | None:
    if when is not None and when not in WHEN:
        raise LaunchError(f"when is {', '.join(WHEN[:-1])} or {WHEN[-1]}, not {when!r}")
    return when


kept = Reserve()


def reserve(when: str | None = None, *, minutes: float = 10) -> Reserve:
    """Set whether ranks for a next job like the last one start before it is asked for.

    when: "off"; "between" jobs, while nothing is measured; "behind" a running job, whose times may
    suffer; None, the default: as LOCKSTEP_RESERVE says in the environment, else "between"
    in a notebook whose ranks are on GPUs, and "off" where they are not.
    minutes: how long ranks wait for a job before they end.
    Returns the reserve, which prints its state. Raises LaunchError for any other value.
    """
    kept.set(when, minutes)
    return kept


@atexit.register
def _at_exit() -> None:
    with contextlib.suppress(Exception):
        kept.drop()
