"""A rank of this host with all that this process holds of it: channel, pipes, shared memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
from typing import Any

from ...calls import record
from .. import processes
from ..channel import Channel, anonymous_file, map_file
from ..engines.base import Arrival
from ..logs import LogFiles
from ..worker.process import STACK_SIGNAL
from .base import Printed, RankState, Task

_CHUNK = 1 << 16
_MOST_CHUNKS = 16  # at once: a pipe holds less, and a rank may print for ever
PATIENCE = 10.0  # seconds for a rank to take in who it is, or another message


class Slot(RankState):
    """A rank of this host."""

    pid: int = 0
    channel: Channel | None = None
    output: int = -1
    stacks: int = -1
    memory: mmap.mmap | None = None
    printed: Printed | None = None  # takes its output; None between jobs
    early: bytes = b""  # what it printed before its first job

    @property
    def cannot_act(self) -> bool:
        """True where its process has ended, or somebody has stopped it."""
        seen = processes.status(self.pid)
        return seen is None or seen.state in "TtZX"

    def connect(
        self, arrival: Arrival, job: str, logs: LogFiles | None, start: dict[str, Any]
    ) -> None:
        """Make pipes and a record for a rank that has come up, and tell it who it is.

        job: the name of its job. start: what it is told besides.
        """
        self.pid, self.channel = arrival.pid, arrival.channel
        self.come_up()
        with contextlib.ExitStack() as sent:
            for descriptor in arrival.descriptors.values():
                sent.callback(os.close, descriptor)
            self.output, output = os.pipe()
            sent.callback(os.close, output)
            self.stacks, stacks = os.pipe()
            sent.callback(os.close, stacks)
            os.set_blocking(self.output, False)
            # Its size is fixed: a rank that cuts it short would take this process along.
            memory = anonymous_file(f"{processes.record_name(job)}{self.rank}", record.SIZE)
            sent.callback(os.close, memory)
            self.memory = map_file(os.dup(memory), shared=True)
            self.reader = record.Reader(self.memory, self.rank)
            own = {"output": output, "stacks": stacks, "record": memory}
            descriptors = {**own, **arrival.descriptors}
            if logs is not None:
                attempt = start["environment"]["TORCHELASTIC_RESTART_COUNT"]
                for name, file in logs.open(self.rank, attempt).items():
                    sent.callback(os.close, file)
                    descriptors[name] = file
            message = {"rank": self.rank, "descriptors": list(descriptors), **start}
            with contextlib.suppress(ConnectionError):  # it is dead: its channel says so
                self.channel.send(message, list(descriptors.values()), PATIENCE)

    def send_task(self, task: Task) -> None:
        assert self.channel is not None
        message = {
            "do": "run",
            "job": task.number,
            "backend": task.backend,
            "sizes": task.sizes,
            "again": task.number > 1,
            "last": task.last,
        }
        self.state = "running"
        with contextlib.suppress(OSError):  # it has died: its channel says so in a moment
            self.channel.send(message, [task.content.fileno()])

    # ── What it prints ───────────────────────────────────────────────────────────────────────

    def drain(self, logs: LogFiles | None) -> bool:
        """Read all that it has printed so far; of a rank that never stops, enough for now.

        Returns whether its output has ended.
        """
        for _ in range(_MOST_CHUNKS):
            data = b"" if logs is None else logs.read(self.rank, _CHUNK)
            self.feed(data)
            if len(data) < _CHUNK:
                break  # that was all, for now
        if self.output < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_CHUNKS):
                data = os.read(self.output, _CHUNK)
                if not data:
                    return True
                self.feed(data)
                if len(data) < _CHUNK:
                    break  # that was all, for now
        return False

    def feed(self, data: bytes) -> None:
        if data and self.printed is not None:
            self.printed.feed(data)
        elif self.state == "coming":
            self.early += data

    def feed_early(self) -> None:
        """Hand over what it printed before its first job."""
        early, self.early = self.early, b""
        self.feed(early)

    def skip_output(self) -> bool:
        """Read what belongs to no job; returns whether its output has ended."""
        return not os.read(self.output, _CHUNK)

    # ── Its stack ────────────────────────────────────────────────────────────────────────────

    def ask_for_stack(self) -> bool:
        """Have it write its stack; returns whether it can."""
        self.is_stopped = self.state == "running" and self.cannot_act
        if self.state == "running" and not self.is_stopped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, STACK_SIGNAL)
                return True
        return False

    def read_stack(self, patience: float) -> None:
        """Read what faulthandler wrote; it has no end mark, so until it pauses."""
        with selectors.PollSelector() as selector:
            selector.register(self.stacks, selectors.EVENT_READ)
            while selector.select(patience):
                data = os.read(self.stacks, _CHUNK)
                if not data:
                    break
                self.stack += data.decode(errors="replace")
                patience = 0.01

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def close_output(self) -> None:
        os.close(self.output)
        self.output = -1

    def close(self) -> None:
        """Let go of everything but a copy of its record."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        for descriptor in (self.output, self.stacks):
            if descriptor >= 0:
                os.close(descriptor)
        self.output = self.stacks = -1
        if self.memory is not None:
            self.reader = self.reader.copy()
            self.memory.close()
            self.memory = None
