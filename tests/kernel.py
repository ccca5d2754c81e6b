"""A real notebook kernel for the tests, and a look at what its jobs leave behind."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lockstep
import psutil
from jupyter_client.manager import KernelManager

HANG = 50.0  # seconds; with the machine for themselves, cells of the tests take a tenth of it


def suspend(process: psutil.Process) -> None:
    """Stop a process; a signal takes a while to arrive on a busy machine."""
    process.suspend()
    until = time.monotonic() + HANG
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < until, f"{process} cannot be stopped"


@dataclass
class Reply:
    """What a learner sees under a cell."""

    stdout: str = ""
    displays: dict[str, dict[str, str]] = field(default_factory=dict)  # by id, as last updated
    error: str = ""  # the traceback as shown
    error_name: str = ""
    seconds: float = 0.0

    @property
    def shown(self) -> str:
        return self.stdout + "\n".join(data["text/plain"] for data in self.displays.values())

    @property
    def html(self) -> str:
        return "\n".join(data.get("text/html", "") for data in self.displays.values())


class Kernel:
    """An ipykernel with lockstep loaded, whose processes and files can be told from all others."""

    def __init__(self, **environment: str):
        # Not pytest's tmp_path: a Unix socket's path has room for about 100 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="ls-"))
        self.temporary = self._folder / "tmp"
        self.cache = self._folder / "cache"
        self.work = self._folder / "work"
        for folder in (self.temporary, self.cache, self.work):
            folder.mkdir()
        self._mark = uuid.uuid4().hex
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            "LOCKSTEP_TESTED_BY": self._mark,
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.cache),
            "IPYTHONDIR": str(self._folder / "ipython"),
            "PYTHONPATH": str(Path(lockstep.__file__).parents[1]),
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        }
        # Not TCP: of two that start at once, one may take the port that the other was told of.
        self._manager = KernelManager(
            shutdown_wait_time=1.0, transport="ipc", ip=str(self._folder / "kernel")
        )
        self._manager.start_kernel(env=self._environment, cwd=str(self.work))
        self._connect()
        self.load()

    def _connect(self) -> None:
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=HANG)

    def load(self) -> None:
        """Load lockstep, as the first cells of a lab do."""
        self.execute("%load_ext lockstep")
        self.execute("%%torchrun -n 1\n1")  # from here on the forkserver is up
        self.remember()

    # ── Cells ────────────────────────────────────────────────────────────────────────────────

    def execute(self, code: str, within: float = HANG) -> Reply:
        """Run a cell to its end."""
        self.start(code)
        return self.finish(within)

    def start(self, code: str) -> None:
        self._reply, self._began = Reply(), time.perf_counter()
        self._asked = self._client.execute(code)

    def finish(self, within: float = HANG) -> Reply:
        """Wait for the end of the cell that was started."""
        return self.wait_for(lambda _: False, within)

    def wait_for(self, seen: Callable[[Reply], bool], within: float = HANG) -> Reply:
        """Wait until something is seen under the cell, or it ends."""
        until = time.perf_counter() + within
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=max(until - time.perf_counter(), 0.01))
            except queue.Empty:
                self._manager.interrupt_kernel()
                self._client.get_shell_msg(timeout=within)
                shown = f"{self._reply.shown}\n{self._reply.error}"
                raise AssertionError(f"not over after {within:g} s. Seen:\n{shown}") from None
            if message["parent_header"].get("msg_id") != self._asked:
                continue
            self._take(message["msg_type"], message["content"])
            self._reply.seconds = time.perf_counter() - self._began
            idle = message["content"].get("execution_state") == "idle"
            if idle or seen(self._reply):
                return self._reply

    def _take(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            self._reply.stdout += content["text"]
        elif kind in ("display_data", "update_display_data", "execute_result"):
            number = str(len(self._reply.displays))
            name = content.get("transient", {}).get("display_id", number)
            self._reply.displays[name] = content["data"]
        elif kind == "error":
            self._reply.error = "\n".join(content["traceback"])
            self._reply.error_name = content["ename"]

    def value(self, expression: str) -> str:
        """The repr of an expression in the kernel."""
        reply = self.execute(f"print(repr({expression}))")
        assert not reply.error, reply.error
        return reply.stdout.rstrip("\n")

    # ── The kernel's life ────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """As Jupyter's ■ does: SIGINT to the kernel's process group."""
        self._began = time.perf_counter()
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """As Jupyter does: ask it to leave, kill it if it does not; then a fresh one, without
        lockstep."""
        self._client.stop_channels()
        self._manager.restart_kernel()
        self._connect()

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._manager.provisioner.pid)  # raises once it has ended

    @property
    def warm_parent(self) -> psutil.Process:
        (child,) = self.process.children()
        return child

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        _, alive = psutil.wait_procs(self.processes(), timeout=5)
        for process in alive:
            process.kill()
        shutil.rmtree(self._folder)

    # ── What is left ─────────────────────────────────────────────────────────────────────────

    def processes(self) -> list[psutil.Process]:
        """The kernel and all that came of it, whoever their parents are now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("LOCKSTEP_TESTED_BY") == self._mark:
                    found.append(process)
            except psutil.Error:  # somebody else's, a zombie, or gone
                continue
        return found

    def listeners(self) -> list[tuple[int, str]]:
        """The TCP ports on which the kernel's processes listen: (process id, address)."""
        found = []
        for process in self.processes():
            try:
                connections = process.net_connections("inet")
            except psutil.Error:
                continue
            found += [(process.pid, c.laddr.ip) for c in connections if c.status == "LISTEN"]
        return found

    def files(self) -> list[str]:
        own = [p for p in self.temporary.rglob("*") if "torchinductor_" not in str(p)]
        # PyTorch's compile cache is to stay.
        return sorted(str(path) for path in [*own, *shared_memory(self.processes())])

    def _state(self) -> dict[str, list[str]]:
        own = {process.pid: process for process in self.processes()}
        for process in self.process.children(recursive=True):  # zombies have no environment
            own[process.pid] = process
        names = {}
        for pid, process in own.items():
            with suppress(psutil.NoSuchProcess):  # gone since
                names[pid] = process.name()
        return {
            "process": [f"{pid} {name}" for pid, name in names.items()],
            "listener": [str(listener) for listener in self.listeners()],
            "file": self.files(),
        }

    def remember(self) -> None:
        """What is there now is no leftover."""
        self._before = self._state()

    def leftovers(self) -> list[str]:
        """What has come since `remember()` and is still there; [] is clean.

        Semaphores have no owner: some may be of other tests, whose processes were killed a moment
        ago, and on their way out. So they are looked at again.
        """
        before, until = self._before, time.monotonic() + 5
        while True:
            now = self._state()
            left = [f"{kind} {one}" for kind in now for one in now[kind] if one not in before[kind]]
            others = [one for one in left if one.startswith("file /dev/shm/sem.")]
            if not others or left != others or time.monotonic() > until:
                return left


def shared_memory(own: Iterable[psutil.Process]) -> list[Path]:
    """The files of /dev/shm but what others have mapped: other tests run at the same time."""
    shared = [*Path("/dev/shm").glob("*")]
    if not shared:
        return []
    mapped = ""
    for process in set(psutil.pids()) - {process.pid for process in own}:
        with suppress(OSError):  # somebody else's, or gone
            mapped += Path(f"/proc/{process}/maps").read_text()
    # Who had mapped one when they were listed may have ended meanwhile, and removed it.
    return [path for path in shared if str(path) not in mapped and path.exists()]
