"""`torchrun()` and `World`: a function, a script or a cell on N ranks."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from . import cell as cells
from . import payload
from .cell import Cell
from .engines import Elastic, Engine, Warm
from .errors import CannotSend, JobFailed, JobInterrupted, LaunchError
from .job import Job, ranks_count
from .live import Lines, Panel, Silence, in_notebook
from .ranks import Ranks, Task

BACKENDS = ("auto", "gloo", "nccl")
ENGINES = ("warm", "torchrun")
_MOST_RANKS = 200
Tracing: TypeAlias = bool | str | os.PathLike[str]  # whether, or where, to keep profiles


class World:
    """Ranks that stay alive between cells: processes, CUDA contexts, groups and variables.

    Its ranks come up at the first use and stay until `close()`, the end of a `with` block, or a
    failure; after a failure the next use brings up fresh ones, without the old variables.

    nproc_per_node: number of ranks, or "gpu", "cpu", "auto" as for torchrun. backend: "auto"
    (NCCL where there is a GPU for each rank, else gloo), "gloo" or "nccl". env: variables for the
    ranks. timeout: seconds for each job, None for no limit.
    Raises LaunchError where this machine cannot have such a world.
    """

    def __init__(
        self,
        nproc_per_node: int | str = 4,
        *,
        backend: str = "auto",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ):
        self.nproc = _nproc(nproc_per_node)
        self.backend, self._note = _backend(backend, self.nproc)
        self._env = dict(env or {})
        self._timeout = timeout
        self._ranks: Ranks | None = None
        self._torn_down = False
        self._sent: dict[str, bytes] = {}
        self._bound: set[str] = set()

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        trace: Tracing = False,
        **kwargs: Any,
    ) -> Job:
        """Call `function(*args, **kwargs)` on every rank; returns the Job, raises JobFailed.

        trace: as for `torchrun`.
        """
        job, task = _function_task(function, args, kwargs, self.nproc, self.backend, trace)
        return self._run(job, task, timeout, may_fail=False, show=True)

    def run_cell(
        self,
        cell: Cell,
        namespace: dict[str, Any],
        *,
        timeout: float | None = None,
        may_fail: bool = False,
        trace: Tracing = False,
    ) -> Job:
        """Execute a cell on every rank, in the namespace that the world keeps there.

        What an earlier cell of this world has bound belongs to the world. Other names come from
        the notebook's `namespace`, again whenever their value there has changed.
        """
        names = cell.names() & namespace.keys() - self._bound
        values, fresh = {}, {}
        for name in names:
            try:
                pickled, buffers = payload.dump(namespace[name], namespace)
            except CannotSend:
                cells.blame({name: namespace[name]})
            digest = hashlib.sha256(b"".join([pickled, *buffers])).digest()
            if self._sent.get(name) != digest:
                values[name], fresh[name] = namespace[name], digest
        job, task = _cell_task(cell, values, namespace, self.nproc, self.backend, trace)
        self._run(job, task, timeout, may_fail=may_fail, show=True)
        if job.ok:
            self._sent |= fresh
        return job

    def _run(self, job: Job, task: Task, timeout: float | None, may_fail: bool, show: bool) -> Job:
        if self._ranks is None:
            self._ranks = Ranks(self.nproc, Warm(), {**os.environ, **self._env})
            weakref.finalize(self, self._ranks.leave)  # a world that nobody can name any more
            if self._torn_down:
                job.note = "this world had failed, so its ranks are new and know no variables"
                self._torn_down = False
        try:
            limit = self._timeout if timeout is None else timeout
            _run(self._ranks, job, task, limit, may_fail, show, self._note, last=False)
            self._bound = set(job.bound)
            return job
        finally:
            if self._ranks is not None and self._ranks.closed:
                self._ranks, self._torn_down = None, True
                self._sent, self._bound = {}, set()

    def close(self) -> None:
        """End the ranks, which leave as Python does; a later use starts new ones."""
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None
            self._sent, self._bound = {}, set()
        self._torn_down = False

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise CannotSend("a World belongs to the notebook: its ranks are processes")

    def __repr__(self) -> str:
        state = "up" if self._ranks is not None else "not up: its ranks start at the first use"
        return f"<World: {ranks_count(self.nproc)} · {self.backend} · {state}>"


def torchrun(
    what: Callable[..., Any] | str | os.PathLike[str],
    *args: Any,
    nproc_per_node: int | str = 4,
    timeout: float | None = None,
    backend: str = "auto",
    env: Mapping[str, str] | None = None,
    init: bool = True,
    engine: str = "warm",
    max_restarts: int = 0,
    may_fail: bool = False,
    trace: Tracing = False,
    show: bool = True,
    **kwargs: Any,
) -> Job:
    """Run a function or a script on fresh ranks, as torchrun would, and wait for them.

    what: a function, called as `what(*args, **kwargs)` on every rank; or the path of a script,
    run as `__main__` with `args` as its command line.
    nproc_per_node: number of ranks, or "gpu" (one for each GPU), "cpu" (one for each core), "auto".
    timeout: seconds, None for no limit: ranks that can never go on are found without one.
    backend: of the default process group: "gloo", "nccl", or "auto" (NCCL where there is a GPU for
    each rank, else gloo). init: False leaves it to the function to make the group; a script, and a
    function that names init_process_group, always does so itself.
    env: variables for the ranks. engine: "warm" (milliseconds) or "torchrun" (PyTorch's elastic
    agent; seconds), with max_restarts. may_fail: return a failed Job instead of raising.
    trace: record every rank with torch.profiler, for `lockstep.Trace.of(job)`; the folder in which
    to keep `rankN.json.gz`, or True for a temporary one that goes with the Job.
    show: draw the job while it runs (in a notebook) or print its lines (elsewhere).

    Raises JobFailed (its `__cause__` is a RankError where a rank's exception was the cause),
    JobInterrupted, LaunchError where what is asked for makes no sense or cannot be started here,
    CannotSend for an argument that cannot travel, FileNotFoundError for a missing script.
    """
    nproc = _nproc(nproc_per_node)
    chosen, note = _backend(backend, nproc)
    if callable(what):
        job, task = _function_task(what, args, kwargs, nproc, chosen if init else None, trace)
    else:
        if kwargs:
            raise TypeError(f"a script takes no keyword arguments: {', '.join(kwargs)}")
        job, task = _script_task(Path(what), [str(a) for a in args], nproc, trace)
    environment = {**os.environ, **(env or {})}
    return _once(job, task, environment, engine, max_restarts, timeout, may_fail, show, note)


def torchrun_cell(
    cell: Cell,
    namespace: dict[str, Any],
    *,
    nproc_per_node: int | str = 4,
    timeout: float | None = None,
    backend: str = "auto",
    env: Mapping[str, str] | None = None,
    init: bool = True,
    engine: str = "warm",
    max_restarts: int = 0,
    may_fail: bool = False,
    trace: Tracing = False,
) -> Job:
    """Run a notebook's cell on fresh ranks; `namespace` is the notebook's. See `torchrun`."""
    nproc = _nproc(nproc_per_node)
    chosen, note = _backend(backend, nproc)
    values = {name: namespace[name] for name in cell.names() & namespace.keys()}
    calls_init = cell.initializes or any(map(cells.function_initializes, values.values()))
    group = None if calls_init or not init else chosen
    job, task = _cell_task(cell, values, namespace, nproc, group, trace)
    environment = {**os.environ, **(env or {})}
    return _once(job, task, environment, engine, max_restarts, timeout, may_fail, True, note)


# ── Tasks ────────────────────────────────────────────────────────────────────────────────────


def _function_task(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    nproc: int,
    backend: str | None,
    trace: Tracing,
) -> tuple[Job, Task]:
    if cells.function_initializes(function):
        backend = None
    content = {"kind": "function", "function": function, "args": args, "kwargs": kwargs}
    namespace = getattr(function, "__globals__", {})
    main = namespace if namespace.get("__name__") == "__main__" else None
    parts = {"the function": function}
    parts |= {f"argument {i}": value for i, value in enumerate(args)} | kwargs
    job = _job(nproc, backend, trace)
    return job, _pack(content, job, parts, main)


def _cell_task(
    cell: Cell,
    values: dict[str, Any],
    namespace: dict[str, Any],
    nproc: int,
    backend: str | None,
    trace: Tracing,
) -> tuple[Job, Task]:
    content = {"kind": "cell", "source": cell.source, "filename": cell.filename, "values": values}
    job = _job(nproc, backend, trace)
    task = _pack(content, job, values, namespace)
    job.cell = task.cell = cell.filename
    return job, task


def _script_task(
    script: Path, arguments: list[str], nproc: int, trace: Tracing
) -> tuple[Job, Task]:
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {str(script)!r} in {os.getcwd()}")
    content = {"kind": "script", "script": str(script.resolve()), "arguments": arguments}
    job = _job(nproc, None, trace)
    task = _pack(content, job, {}, None)
    task.may_leave = True
    return job, task


def _job(nproc: int, backend: str | None, trace: Tracing) -> Job:
    """A new job, with a folder for its profiles if it is to be traced.

    Raises LaunchError where that folder holds traces of another job.
    """
    job = Job(nproc, backend)
    if trace is True:
        job.keeps = tempfile.TemporaryDirectory(prefix="lockstep-")
        job.profiles = Path(job.keeps.name)
    elif trace is not False:
        job.profiles = Path(trace).resolve()
        job.profiles.mkdir(parents=True, exist_ok=True)
        if any(job.profiles.glob("*.json*")):
            raise LaunchError(f"{str(trace)!r} holds traces already; say another folder")
    return job


def _pack(
    content: dict[str, Any],
    job: Job,
    parts: Mapping[str, Any],
    namespace: dict[str, Any] | None,
) -> Task:
    """Pickle a task; where that fails, say which of its parts is to blame."""
    content["trace"] = None if job.profiles is None else str(job.profiles)
    content["sources"] = cells.sources()
    try:
        pickled, buffers = payload.dump(content, namespace)
    except CannotSend:
        cells.blame(parts)
    if len(pickled) + sum(buffer.nbytes for buffer in buffers) > cells.MOST_BYTES:
        cells.blame(parts)
    return Task(pickled, buffers, job.backend)


# ── Running ──────────────────────────────────────────────────────────────────────────────────


def _once(
    job: Job,
    task: Task,
    environment: Mapping[str, str],
    engine: str,
    max_restarts: int,
    timeout: float | None,
    may_fail: bool,
    show: bool,
    note: str,
) -> Job:
    job.engine = engine
    with Ranks(job.nproc, _engine(engine, max_restarts), environment) as ranks:
        return _run(ranks, job, task, timeout, may_fail, show, note, last=True)


def _run(
    ranks: Ranks,
    job: Job,
    task: Task,
    timeout: float | None,
    may_fail: bool,
    show: bool,
    note: str,
    last: bool,
) -> Job:
    if timeout is not None and timeout <= 0:
        raise LaunchError(f"a time limit is a positive number of seconds, not {timeout:g}")
    display = (Panel() if in_notebook() else Lines()) if show else Silence()
    job.note = "; ".join(part for part in (job.note, note, ranks.note) if part)
    try:
        ranks.run(task, job, timeout, display, last)
    except KeyboardInterrupt:
        display.end(job, report=False)  # the exception shows it
        raise JobInterrupted(job) from None
    display.end(job, report=may_fail)
    if not job.ok and not may_fail:
        raise JobFailed(job) from job.cause
    return job


def _engine(name: str, max_restarts: int) -> Engine:
    if name not in ENGINES:
        raise LaunchError(f"there is no engine {name!r}; there are {' and '.join(ENGINES)}")
    if name == "torchrun":
        return Elastic(max_restarts)
    if max_restarts:
        raise LaunchError("max_restarts needs engine='torchrun': the elastic agent restarts ranks")
    return Warm()


def _nproc(asked: int | str) -> int:
    """How many ranks are meant. Raises LaunchError where that makes no sense here."""
    if isinstance(asked, str) and not asked.isdigit():
        words: dict[str, Callable[[], int]] = {
            "gpu": gpu_count,
            "cpu": _cpu_count,
            "auto": lambda: gpu_count() or _cpu_count(),
        }
        if asked not in words:
            raise LaunchError(f"nproc_per_node is a number, gpu, cpu or auto, not {asked!r}")
        nproc = words[asked]()
        if nproc == 0:
            raise LaunchError(
                "this machine has no GPU that PyTorch can use, so nproc_per_node=gpu means no "
                "rank at all. Say a number of ranks: they run on the CPU with gloo."
            )
        return nproc
    nproc = int(asked)
    if not 1 <= nproc <= _MOST_RANKS:
        raise LaunchError(f"nproc_per_node must be from 1 to {_MOST_RANKS}, not {nproc}")
    return nproc


def _cpu_count() -> int:
    return os.cpu_count() or 1


def _backend(asked: str, nproc: int) -> tuple[str, str]:
    """The backend that is meant, and a note for the learner where that may surprise.

    Raises LaunchError for an unknown one, and where this machine cannot have it.
    """
    if asked not in BACKENDS:
        raise LaunchError(
            f"there is no backend {asked!r} here; there are {', '.join(BACKENDS)}. For one of "
            "your own make the process group yourself: init=False, or --no-init in a cell."
        )
    if asked == "gloo":
        return "gloo", ""
    gpus = gpu_count()
    if asked == "nccl" and gpus < nproc:
        there = {0: "no GPU that PyTorch can use", 1: "1 GPU"}.get(gpus, f"{gpus} GPUs")
        most = f"-n {gpus}, or " if gpus else ""
        raise LaunchError(
            f"this machine has {there}, and NCCL needs one for each of the {nproc} ranks. "
            f"Use {most}--backend gloo: the same calls on the CPU."
        )
    if gpus >= nproc:
        return "nccl", ""
    few = {0: "", 1: "this machine has 1 GPU"}.get(gpus, f"this machine has {gpus} GPUs")
    return "gloo", few and f"{few}, fewer than the {nproc} ranks: they use gloo on the CPU"


@cache
def gpu_count() -> int:
    """GPUs that PyTorch can use here; asked in a rank, so that this process stays clean."""
    if sys.platform.startswith("linux") and not any(
        Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    ):
        return 0
    job, task = _function_task(_count_gpus, (), {}, 1, None, False)
    return int(_once(job, task, os.environ, "warm", 0, 60, False, False, "").results[0])


def _count_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())
