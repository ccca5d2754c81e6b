"""How a rank's end looks to the others: what they notice, in which words, after how many seconds.

One rank, the culprit, raises, is killed, leaves, stands still or comes late in the fourth of ten
all-reduces. The others are ordinary: nothing catches what they are told. They are started by
torchrun, whose agent ends them too, or each by itself, as a scheduler does. Then what survivors can
do: abort their group and make a new one, or let NCCL shrink it.
"""

from __future__ import annotations

import json
import math
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from .experiment import Experiment, Result, device_name, end

CULPRIT, AT, CALLS = 1, 3, 10  # which rank, in which call, of how many
TIMEOUT = 10.0  # seconds that a call may take, as the group was told
LATE = 3.0  # seconds
LATEST = 25.0  # seconds that a GPU is busy before the culprit's call
WATCHED = {"gloo": 25.0, "nccl": 50.0}  # seconds after the culprit's end
STARTING = 90.0  # seconds until all ranks have called for the first time
AFTER = 5.0  # seconds that the culprit is watched when all others have ended
PATIENCE = 2.0  # seconds that survivors wait before they go on without the culprit
WORDS, KEPT = 600, 3000  # characters
SHRINK_ABORT = 1  # as torch.distributed.distributed_c10d says
_PREFIX = re.compile(r"^(\[rank\d+\]:)?(\[[WEF]\d{4} [^\]]*\])?\s*")
_HOST = re.compile(r"\s*host\s*: ")  # its name is nobody's business
_FRAME = re.compile(r"^(\[rank\d+\]:)?( {2,}|frame #|Traceback)")
_TELLING = re.compile(
    r"error|exception|time.?out|timed out|closed|reset|abort|terminat|signal|watchdog|heartbeat",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Case:
    """ending: what the culprit does. call: what the ranks call. starts: who starts the ranks.
    then: what the survivors do; "" where they are ordinary. environment: what is set for it."""

    ending: str
    starts: str = "no agent"
    call: str = "all_reduce"
    then: str = ""
    environment: dict[str, str] = field(default_factory=dict)


ANEW, SHRINK = "abort and begin anew", "shrink"
COMMON = (
    Case("raises"),
    Case("is killed"),
    Case("leaves"),
    Case("sleeps"),
    Case("is stopped"),
    Case("comes late"),
    Case("computes wrong"),
    Case("never joins"),
    Case("raises", starts="torchrun"),
    Case("is killed", starts="torchrun"),
    Case("leaves", starts="torchrun"),
    Case("sleeps", starts="torchrun"),
)
CASES = {
    "gloo": (
        *COMMON,
        Case("sleeps", call="monitored_barrier"),
        Case("is killed", call="monitored_barrier"),
        *(Case(it, then=ANEW) for it in ("is killed", "sleeps")),
        Case("is killed", then=SHRINK),
    ),
    "nccl": (
        *COMMON,
        Case("its GPU is busy"),
        *(
            Case(ending, environment={name: value})
            for name, value in (
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"),
                ("TORCH_NCCL_BLOCKING_WAIT", "1"),
                ("TORCH_NCCL_ENABLE_MONITORING", "0"),
            )
            for ending in ("is killed", "sleeps")
        ),
        *(
            Case(ending, then=then, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
            for then in (ANEW, SHRINK)
            for ending in ("is killed", "sleeps", "its GPU is busy")
        ),
    ),
}


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


class Rank:
    """A rank of a case. It tells the experiment, through a pipe that ends with it, what it does and
    when, by the clock that all processes of a host share."""

    def __init__(self, folder: str, case: Case, backend: str, port: int):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        said = os.open(f"{folder}/said{self.rank}", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        self._pipe = os.open(f"{folder}/pipe{self.rank}", os.O_WRONLY)
        self._case, self._backend, self._port = case, backend, port
        self._device = torch.device("cpu")
        self.tell("is there", pid=os.getpid())

    def tell(self, event: str, **values: Any) -> None:
        line = {"event": event, "at": time.monotonic(), **values}
        os.write(self._pipe, f"{json.dumps(line)}\n".encode())

    def run(self) -> None:
        if self._is_culprit and self._case.ending == "never joins":
            self._end()
        if self._backend == "nccl":
            self._device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self._device)
        try:
            self._join("env://", self.rank, self.size)
            self._calls()
        except Exception as error:
            self.tell("raises", type=type(error).__name__, words=str(error)[:WORDS])
            raise
        if self._case.ending != "leaves":  # it has: without it, there is nobody to meet
            dist.destroy_process_group()

    @property
    def _is_culprit(self) -> bool:
        return self.rank == CULPRIT

    def _join(self, where: str, rank: int, size: int) -> None:
        limit = timedelta(seconds=TIMEOUT)
        on = self._device if self._backend == "nccl" else None
        dist.init_process_group(
            self._backend, where, rank=rank, world_size=size, timeout=limit, device_id=on
        )

    def _calls(self) -> None:
        longest, sums = 0.0, []
        for at in range(CALLS):
            x = torch.ones(4, device=self._device)
            if at == AT and self._is_culprit:
                self._end()
                if self._case.ending == "computes wrong":
                    x[0] = 1e6
            elif at == AT and self._case.then:
                self._go_on(x)
                return
            began = time.monotonic()
            if self._case.call == "monitored_barrier":
                dist.monitored_barrier(timeout=timedelta(seconds=TIMEOUT))
            else:
                dist.all_reduce(x)
                self._wait()
            longest = max(longest, time.monotonic() - began)
            sums.append(x[0].item())
            if at == 0:
                self.tell("has called")
            time.sleep(0.02)
        self.tell("is done", longest=longest, sums=sums)

    def _wait(self) -> None:
        if self._backend == "nccl":
            torch.cuda.synchronize()

    def _end(self) -> None:
        """End as the case says: this is the culprit."""
        self.tell("ends")
        match self._case.ending:
            case "raises":
                raise ValueError("on purpose")
            case "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "is stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "leaves":
                os._exit(0)
            case "sleeps" | "never joins":
                time.sleep(3600)
            case "comes late":
                time.sleep(LATE)
            case "its GPU is busy":
                torch.cuda._sleep(int(LATEST * 1.98e9))  # a clock rate that H100s and H200s have

    def _go_on(self, x: torch.Tensor) -> None:
        """Wait, in vain, then go on without the culprit: this is a survivor."""
        work = dist.all_reduce(x, async_op=True)
        until = time.monotonic() + PATIENCE
        why = f"nothing within {PATIENCE:g} s"
        while time.monotonic() < until:
            if work.is_completed():
                why = "the call is over"
                break
            time.sleep(0.001)
        try:
            if why == "the call is over":
                work.wait()
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:WORDS]}"
        self.tell("gives up", why=why)
        done: dict[str, float] = {}
        rank = self.rank - (self.rank > CULPRIT)
        began = time.monotonic()

        def step(name: str) -> None:
            nonlocal began
            now = time.monotonic()
            done[name] = now - began
            began = now
            self.tell("has gone on", steps=done)

        try:
            if self._case.then == SHRINK:
                dist.shrink_group([CULPRIT], shrink_flags=SHRINK_ABORT)
                step("shrink_group")
            else:
                dist.distributed_c10d._abort_process_group()
                step("abort")
                self._join(f"tcp://127.0.0.1:{self._port}", rank, self.size - 1)
                step("init_process_group")
            for name in ("first all_reduce", "second all_reduce"):
                y = torch.ones(4, device=self._device)
                dist.all_reduce(y)
                self._wait()
                step(name)
            self.tell("has gone on", steps=done, sums=[y[0].item()], size=dist.get_world_size())
        except Exception as error:
            words = f"{type(error).__name__}: {str(error)[:WORDS]}"
            self.tell("has gone on", steps=done, failed=words)
        sys.stdout.flush()
        os._exit(0)


# ── Beside the ranks ─────────────────────────────────────────────────────────────────────────


class Watch:
    """Collects what the ranks of a case tell, and when each of them ends."""

    def __init__(self, folder: Path, nproc: int):
        self.told: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(nproc)}
        self.ended: dict[int, float] = {}
        self._left: dict[int, bytes] = dict.fromkeys(range(nproc), b"")
        self._ready = selectors.DefaultSelector()
        for rank in range(nproc):
            os.mkfifo(folder / f"pipe{rank}")
            pipe = os.open(folder / f"pipe{rank}", os.O_RDONLY | os.O_NONBLOCK)
            self._ready.register(pipe, selectors.EVENT_READ, rank)

    def last(self, rank: int, event: str) -> dict[str, Any] | None:
        """Return the last such event of a rank."""
        return next((one for one in reversed(self.told[rank]) if one["event"] == event), None)

    def until(self, seconds: float) -> None:
        """Read until all ranks have ended, or so many seconds after the culprit's end, or a few
        after that of all others, or until it is clear that nothing starts."""
        began = time.monotonic()
        while len(self.ended) < len(self.told):
            ends = self.last(CULPRIT, "ends")
            limit = ends["at"] + seconds if ends else began + STARTING
            others = [self.ended.get(rank, math.inf) for rank in self.told if rank != CULPRIT]
            if time.monotonic() > min(limit, max(others) + AFTER):
                return
            for key, _ in self._ready.select(timeout=0.02):
                self._read(key.fd, key.data)

    def _read(self, pipe: int, rank: int) -> None:
        text = os.read(pipe, 1 << 16)
        *lines, self._left[rank] = (self._left[rank] + text).split(b"\n")
        self.told[rank] += [json.loads(line) for line in lines]
        if not text and self.told[rank]:  # before the rank has opened it, too, nothing is there
            self.ended[rank] = time.monotonic()
            self._close(pipe)
        elif not text:
            time.sleep(0.001)

    def _close(self, pipe: int) -> None:
        self._ready.unregister(pipe)
        os.close(pipe)

    def kill(self) -> None:
        """End the ranks that are left."""
        for rank, events in self.told.items():
            for event in events[:1]:
                if rank not in self.ended:
                    with suppress(ProcessLookupError):
                        os.kill(event["pid"], signal.SIGKILL)
        for key in list(self._ready.get_map().values()):
            self._close(key.fd)


def watched(case: Case, backend: str, nproc: int) -> dict[str, Any]:
    """Run a case and return what was seen, in seconds since the culprit's end."""
    with tempfile.TemporaryDirectory(prefix="lockstep-faults-") as name:
        folder = Path(name)
        watch = Watch(folder, nproc)
        port, second = _free_ports(2)
        given = json.dumps(asdict(case))
        program = ["-m", __name__, str(folder), backend, str(second), given]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **case.environment}
        if case.starts == "torchrun":
            agent = ["-m", "torch.distributed.run", f"--nproc-per-node={nproc}"]
            commands = [[sys.executable, *agent, f"--master-port={port}", *program]]
            variables = [environment]
        else:
            commands = [[sys.executable, *program]] * nproc
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            variables = [
                {**environment, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                | {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc)}
                for rank in range(nproc)
            ]
        with open(folder / "agent", "wb") as said:
            running = [
                subprocess.Popen(command, env=one, stdout=said, stderr=said)
                for command, one in zip(commands, variables, strict=True)
            ]
            try:
                watch.until(WATCHED.get(backend, STARTING))
                codes = _codes(running) if len(watch.ended) == nproc else []
                agent_ended = time.monotonic()
            finally:
                watch.kill()
                for process in running:
                    end(process)
        found: dict[str, Any] = {**asdict(case), **_summary(watch, folder, nproc)}
        if case.starts == "torchrun":
            began = (watch.last(CULPRIT, "ends") or {"at": agent_ended})["at"]
            found["agent"] = {
                "ended": agent_ended - began if codes else None,
                "exit code": codes[0] if codes else None,
                "said": text_of(folder / "agent"),
            }
        elif codes and "culprit" in found:
            for one in (found["culprit"], *found["peers"]):
                one["exit code"] = codes[one["rank"]]
        return found


def _codes(running: list[subprocess.Popen[bytes]]) -> list[int]:
    try:
        return [process.wait(60) for process in running]
    except subprocess.TimeoutExpired:
        return []


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _summary(watch: Watch, folder: Path, nproc: int) -> dict[str, Any]:
    began = watch.last(CULPRIT, "ends")
    if began is None:
        texts = {rank: text_of(folder / f"said{rank}") for rank in range(nproc)}
        return {"failed": "the culprit did not come to its end", "said": texts}
    rows = [_row(watch, folder, rank, began["at"]) for rank in range(nproc)]
    culprit = {k: v for k, v in rows[CULPRIT].items() if k not in ("noticed", "by", "words")}
    return {"culprit": culprit, "peers": [row for row in rows if row["rank"] != CULPRIT]}


def _row(watch: Watch, folder: Path, rank: int, began: float) -> dict[str, Any]:
    """Return what a rank noticed: an error that Python raises, or the end of its process.

    noticed: None where there was neither while it was watched, or all its calls ended well.
    """
    raised, done = watch.last(rank, "raises"), watch.last(rank, "is done")
    up, on = watch.last(rank, "gives up"), watch.last(rank, "has gone on")
    ended = watch.ended.get(rank)
    said = text_of(folder / f"said{rank}", frames=False)
    row: dict[str, Any] = {"rank": rank, "noticed": None, "by": "", "words": ""}
    if raised:
        row |= {"noticed": raised["at"] - began, "by": raised["type"], "words": raised["words"]}
    elif ended is not None and not done and not on:
        row |= {"noticed": ended - began, "by": "its process ends", "words": _telling(said)}
    row["ended"] = ended - began if ended is not None else None
    if done:
        row |= {"longest call": done["longest"], "sums": done["sums"]}
    if up:
        row |= {"gave up": up["at"] - began, "why": up["why"]}
    if on:
        row |= {key: on[key] for key in ("steps", "sums", "size", "failed") if key in on}
    return {**row, "said": said}


def text_of(file: Path, frames: bool = True) -> str:
    """Return what a process wrote; of a long text the first and the last part."""
    with suppress(FileNotFoundError):
        lines = file.read_text(errors="replace").strip().splitlines()
        lines = [line.replace("localhost", "the host") for line in lines if not _HOST.match(line)]
        text = "\n".join(line for line in lines if frames or not _FRAME.match(line))
        half = KEPT // 2
        return text if len(text) <= KEPT else f"{text[:half]}\n[…]\n{text[-half:]}"
    return ""


def _telling(text: str) -> str:
    """Return the first line that says that something is wrong, without time and place."""
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    return next((line[:WORDS] for line in lines if _TELLING.search(line)), "")


# ── The experiment ───────────────────────────────────────────────────────────────────────────


def _tried(case: Case, backend: str, nproc: int) -> dict[str, Any]:
    try:
        return watched(case, backend, nproc)
    except Exception as error:
        return {**asdict(case), "failed": f"{type(error).__name__}: {error}"}


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    backend = "nccl" if machine.gpus else "gloo"
    content: dict[str, Any] = {
        "backend": backend,
        "world_size": nproc,
        "unit": "seconds since the culprit's end; null: not seen while watched",
        "timeout": TIMEOUT,
        "watched": WATCHED[backend],
        "late": LATE,
        "patience": PATIENCE,
        "cases": [],
    }
    file = f"faults/{device_name(machine)}-x{nproc}.json"
    what = f"what {nproc} ranks notice of one's end, in which words and when; going on without it"
    # Cores, and not the GPUs, are what starting a process takes.
    with ThreadPoolExecutor(max(1, machine.cores // (2 * nproc))) as jobs:
        one = partial(_tried, backend=backend, nproc=nproc)
        for found in jobs.map(one, CASES[backend]):
            content["cases"].append(found)
            yield Result(file, what, content)


EXPERIMENT = Experiment(
    "faults",
    "what ranks notice of another's end, and how they go on without it",
    minutes=5,
    run=run,
    least=2,
    ranks=None,
    gpus=False,
    writes={
        "faults/*.json": (
            *("backend", "world_size", "unit", "timeout", "watched", "late", "patience", "cases"),
        )
    },
)


if __name__ == "__main__":  # a rank
    Rank(sys.argv[1], Case(**json.loads(sys.argv[4])), sys.argv[2], int(sys.argv[3])).run()
