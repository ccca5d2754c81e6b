"""`torchrun()` and `World`: a function, a script or a cell on N ranks."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from ..base.formatting import ranks_count
from ..base.machine import in_notebook
from . import cell as cells
from . import payload
from .cell import Cell
from .cluster.allocation import resolve_hosts
from .cluster.slurm import Slurm
from .engines.elastic import Elastic
from .engines.supervised import forkserver
from .engines.warm import Warm
from .errors import CannotSend, LaunchError
from .interrupts import defer_signals, redeliver_interrupts
from .job import Job, JobFailed, JobInterrupted
from .live import Lines, Panel, Silence
from .logs import Logs
from .nodes.base import Hosts, Node, Setting, Task
from .nodes.local import LocalNode
from .nodes.remote import Nodes
from .options import Options, Tracing
from .outcome import Outcome, Plan
from .output import Output
from .ranks import Ranks
from .reserve import kept
from .sizing import size
from .tasks import cell_task, function_task, program_task


class World:
    """Ranks that stay alive between cells: processes, CUDA contexts, groups and variables.

    Its ranks start at the first use and stay until `close()`, the end of a `with` block, or a
    failure; after a failure the next use starts fresh ones, without the old variables. Modules
    of yours that have changed on disk are reloaded before each job. One job at a time: LaunchError
    where another thread uses the world.

    nproc_per_node: as for `torchrun`. backend: "auto"
    (NCCL where there is a GPU for each rank, else gloo), "gloo" or "nccl". env: variables for the
    ranks. timeout: seconds for each job, None for no limit. on: other hosts, see `Nodes`; or
    `Slurm`, whose job is kept until `close()`; or "slurm", as for `torchrun`.
    Raises LaunchError where this machine cannot have such a world.
    """

    def __init__(
        self,
        nproc_per_node: int | str = 4,
        *,
        backend: str = "auto",
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on: Nodes | Slurm | str | None = None,
    ):
        self._options = Options(
            nproc_per_node=nproc_per_node,
            backend=backend,
            env=dict(env or {}),
            timeout=timeout,
            on=resolve_hosts(on),
        )
        self._hosts = _hosts_of(self._options)
        self._each, self.backend, _ = size(self._options, self._hosts)
        self.nproc = sum(self._each)
        self._busy = threading.RLock()  # an interrupt may leave it locked by this same thread
        self._ranks: Ranks | None = None
        self._lease: Hosts | None = None  # the hosts, while they are kept
        self._torn_down = False
        self._sent: dict[str, bytes] = {}
        self._bound: set[str] = set()

    @redeliver_interrupts()
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
        limit = self._options.timeout if timeout is None else timeout
        options = replace(self._options, timeout=limit, trace=trace)
        with self._alone():
            plan = _plan(options, makes_group=not cells.function_initializes(function))
            return self._run(plan, function_task(plan, function, args, kwargs), options)

    @redeliver_interrupts()
    def run_cell(self, cell: Cell, namespace: dict[str, Any], options: Options) -> Job:
        """Execute a cell on every rank, in the namespace that the world keeps there.

        What an earlier cell of this world has bound belongs to the world. Other names come from
        the notebook's `namespace`, again whenever their value there has changed. Only
        options of one job apply, because the ranks exist already.
        """
        own = self._options
        limit = own.timeout if options.timeout is None else options.timeout
        options = replace(
            options,
            nproc_per_node=own.nproc_per_node,
            backend=own.backend,
            timeout=limit,
            on=own.on,
        )
        with self._alone():
            names = cell.names() & namespace.keys() - self._bound
            values, fresh = {}, {}
            for name in names:
                try:
                    digest = payload.digest(namespace[name], namespace)
                except CannotSend:
                    cells.blame({name: namespace[name]})
                if self._sent.get(name) != digest:
                    values[name], fresh[name] = namespace[name], digest
            plan = _plan(options, cell=cell.filename)
            job = self._run(plan, cell_task(plan, cell, values, namespace), options)
            if job.ok:
                self._sent |= fresh
            return job

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise LaunchError(
                "this World is busy: another thread uses it, and its ranks do one job at a "
                "time. Wait for that thread, or create a World for each"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _run(self, plan: Plan, task: Task, options: Options) -> Job:
        task.last = False
        with task:
            if self._ranks is None:
                if self._torn_down:
                    again = "this World had failed, so its ranks are new and have no variables"
                    plan = replace(plan, asides=(*plan.asides, again))
                setting = _setting(plan, self._options)
                lease = self._leased(plan)
                with defer_signals():  # who has taken nodes must give them back
                    ranks = Ranks(self._each, lease.take(plan, setting), setting)
                    # for a world that nobody can name any more
                    self._end = weakref.finalize(self, ranks.leave)
                    self._ranks, self._torn_down = ranks, False
            try:
                job = _run(self._ranks, plan, task, options)
                self._bound = set(job.bound)
                return job
            finally:
                if self._ranks is not None and self._ranks.closed:
                    self._forget()
                    self._torn_down = True

    def _leased(self, plan: Plan) -> Hosts:
        """Return the hosts; those of a queue are kept, and asked for again when they are lost."""
        if self._lease is not None and self._lease.is_lost:
            self._give_back()
        if self._lease is None:
            with _interruptible(plan, self._hosts):
                self._lease = self._hosts.allocate(max(self._each))
        return self._lease

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and lease is not self._hosts:  # else they are whose they were
            lease.close()

    @redeliver_interrupts()
    def close(self) -> None:
        """End the ranks, which leave as Python does; a later use starts new ones."""
        with self._alone():
            if self._ranks is not None:
                self._ranks.leave()
                self._forget()
            self._give_back()
            self._torn_down = False

    def _forget(self) -> None:
        self._end.detach()  # else it would keep the ranks, and what they keep
        self._ranks = None
        self._sent, self._bound = {}, set()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise CannotSend("a World stays in the notebook: it stands for processes")

    def __repr__(self) -> str:
        state = (
            "up" if self._ranks is not None else ("not started: its ranks start at the first use")
        )
        return f"<World: {ranks_count(self.nproc)} · {self.backend} · {state}>"


@redeliver_interrupts()
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
    logs: Logs | None = None,
    show: bool = True,
    on: Nodes | Slurm | str | None = None,
    **kwargs: Any,
) -> Job:
    """Run a function, a script or a module on fresh ranks, as torchrun would, and wait for them.

    what: a function, called as `what(*args, **kwargs)` on every rank; or the path of a script,
    run as `__main__` with `args` as its command line; or "-m", followed by the name of a module
    and its command line: `torchrun("-m", "package.train", "--lr", 0.1)`.
    nproc_per_node: number of ranks, or "gpu" (one for each GPU), "cpu" (one for each core), "auto";
    "2,1" for two ranks on the first of other hosts and one on the second.
    timeout: seconds, None for no limit: ranks that can never go on are found without one.
    backend: of the default process group: "gloo", "nccl", or "auto": NCCL where there is a GPU for
    each rank, else gloo, where ranks see no GPU, so that PyTorch's defaults are the CPU's, too.
    init: False leaves it to the function to make the group; a script, and a function that names
    init_process_group, always does so itself.
    env: variables for the ranks. engine: "warm" (milliseconds) or "torchrun" (PyTorch's elastic
    agent; seconds), with max_restarts. may_fail: return a failed Job instead of raising.
    trace: record every rank with torch.profiler, for `lockstep.Trace.of(job)`; the folder in which
    to keep `rankN.json.gz`, or True for a temporary one that goes with the Job.
    logs: `Logs(log_dir=…, redirects=…, tee=…, local_ranks_filter=…)`, as torchrun's flags.
    show: draw the job while it runs (in a notebook) or print its lines (elsewhere).
    on: other hosts that run the ranks, as many on each: `Nodes`; those of a Slurm cluster,
    `Slurm(…)`, whose job ends with the ranks; "slurm" for those of the Slurm job that this process
    is in, or else of your profile (`lockstep cluster init`).

    Raises JobFailed (its `__cause__` is a RankError where a rank's exception was the cause),
    JobInterrupted, LaunchError where what is asked for makes no sense or cannot be started here,
    CannotSend for an argument that cannot travel, FileNotFoundError for a missing script.
    """
    options = Options(
        nproc_per_node=nproc_per_node,
        timeout=timeout,
        backend=backend,
        env=env or {},
        init=init,
        engine=engine,
        max_restarts=max_restarts,
        may_fail=may_fail,
        trace=trace,
        logs=logs or Logs(),
        show=show,
        on=resolve_hosts(on),
    )
    if not callable(what):
        if kwargs:
            raise TypeError(f"a script takes no keyword arguments: {', '.join(kwargs)}")
        return run_program([str(what), *map(str, args)], options)
    plan = _plan(options, makes_group=init and not cells.function_initializes(what))
    return _once(plan, function_task(plan, what, args, kwargs), options)


@redeliver_interrupts()
def run_program(command: Sequence[str], options: Options) -> Job:
    """Run a script (`[path, *arguments]`) or a module (`["-m", name, *arguments]`)."""
    plan = _plan(options, makes_group=False)
    return _once(plan, program_task(plan, command), options)


@redeliver_interrupts()
def run_cell(cell: Cell, namespace: dict[str, Any], options: Options) -> Job:
    """Run a notebook's cell on fresh ranks; `namespace` is the notebook's."""
    values = {name: namespace[name] for name in cell.names() & namespace.keys()}
    by_itself = cell.initializes or any(map(cells.function_initializes, values.values()))
    plan = _plan(options, makes_group=options.init and not by_itself, cell=cell.filename)
    return _once(plan, cell_task(plan, cell, values, namespace), options)


# ── Plans ────────────────────────────────────────────────────────────────────────────────────


def _plan(options: Options, *, makes_group: bool = True, cell: str = "") -> Plan:
    """Return what is to run, with folders for its profiles and logs if they are to be kept.

    makes_group: whether the ranks make the default process group before they begin.
    Raises LaunchError for what this machine cannot have, and where the folder for the profiles
    holds traces of another job.
    """
    each, backend, note = size(options, _hosts_of(options))
    asides, folders = [options.note, note if makes_group else ""], []

    def temporary() -> Path:
        folders.append(tempfile.TemporaryDirectory(prefix="lockstep-"))
        return Path(folders[-1].name)

    logs, profiles = None, None
    if options.logs.keeps():
        logs = options.logs.folder(options.logs.log_dir or temporary())
        asides.append(f"stdout and stderr are in {logs}")
    elif options.logs.log_dir is not None:
        asides.append("log_dir alone writes nothing, as with torchrun: add tee or redirects")
    if options.trace is True:
        profiles = temporary()
    elif options.trace is not False:
        profiles = Path(options.trace).resolve()
        profiles.mkdir(parents=True, exist_ok=True)
        if any(profiles.glob("*.json*")):
            raise LaunchError(f"{str(options.trace)!r} already holds traces; name another folder")
    return Plan(
        sum(each),
        backend if makes_group else None,
        engine=options.engine,
        each=each,
        cell=cell,
        asides=tuple(filter(None, asides)),
        profiles=profiles,
        logs=logs,
        sees_gpus=not (note and makes_group),
        hidden=options.logs.hidden(sum(each)),
        folders=tuple(folders),
    )


# ── Running ──────────────────────────────────────────────────────────────────────────────────


def _once(plan: Plan, task: Task, options: Options) -> Job:
    setting, hosts = _setting(plan, options), _hosts_of(options)
    when = kept.when(plan) if hosts.are_here else "off"
    try:
        with (
            task,
            _leased(plan, hosts, options) as lease,
            ExitStack() as again,
            ExitStack() as stack,
        ):
            where = lease.where(plan.each)
            plan = replace(plan, asides=(*plan.asides, *([where] if where else [])))
            with defer_signals():  # who has taken nodes must give them back
                ranks = Ranks(plan.each, lease.take(plan, setting), setting)
                stack.callback(ranks.close)
                again.callback(ranks.close)  # for Ctrl-C that comes before the first has begun
            job = _run(ranks, plan, task, options)
            if job.ok and when != "off":
                ranks.detach()
    except (JobFailed, JobInterrupted):
        if options.show and when == "between":
            kept.keep(plan, setting)
        raise
    if options.show and when == "between":
        kept.keep(plan, setting)
    return job


@contextmanager
def _leased(plan: Plan, hosts: Hosts, options: Options) -> Iterator[Hosts]:
    """Have the hosts for one job."""
    with ExitStack() as stack:
        with _interruptible(plan, hosts):
            lease = stack.enter_context(hosts.lease(max(plan.each), options.show))
        yield lease


@contextmanager
def _interruptible(plan: Plan, hosts: Hosts) -> Iterator[None]:
    """End in the same way by an interrupt while there are no ranks yet, as in Slurm's queue."""
    try:
        yield
    except KeyboardInterrupt:
        outcome = Outcome(state="interrupted", verdict=hosts.if_interrupted)
        raise JobInterrupted(Job.from_outcome(plan, outcome)) from None


class ThisHost(Hosts):
    """This host alone."""

    count = 1
    are_here = True
    each_has = "this machine has"

    def __init__(self, options: Options):
        self._options = options

    def count_gpus(self) -> int:
        return gpu_count()

    def count_cores(self) -> int:
        return os.cpu_count() or 1

    def take(self, plan: Plan, setting: Setting) -> Sequence[Node]:
        if self._options.engine == "torchrun":
            return [LocalNode(Elastic(self._options.max_restarts))]
        return [kept.take(plan, setting) or LocalNode(Warm())]


def _hosts_of(options: Options) -> Hosts:
    return ThisHost(options) if options.on is None else options.on


def _setting(plan: Plan, options: Options) -> Setting:
    try:
        directory = os.getcwd()
    except FileNotFoundError:
        raise LaunchError(
            "the current directory of this process no longer exists; os.chdir() to another"
        ) from None
    logs = None if plan.logs is None else options.logs
    # PyTorch would put on them what has no device of its own, such as the mesh of fully_shard.
    unseen = {} if plan.sees_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return Setting(unseen | {**options.env}, directory, list(sys.path), logs, plan.logs)


_LOADS = "the first ranks of a kernel wait until PyTorch is loaded"


def _run(ranks: Ranks, plan: Plan, task: Task, options: Options) -> Job:
    behind = options.show and task.last and kept.when(plan) == "behind"

    def picture(outputs: Sequence[Output], seconds: float, suspicion: str) -> Job:
        notes = (suspicion,) if suspicion else ()
        return Job.from_outcome(plan, Outcome(outputs=tuple(outputs), seconds=seconds, notes=notes))

    display: Panel | Lines | Silence = Silence()
    if options.show:
        display = Panel(picture) if in_notebook() else Lines(plan.hidden)
    with ExitStack() as stack:
        are_here = _hosts_of(options).are_here
        if isinstance(display, Panel) and are_here and not forkserver.has_answered:
            stack.enter_context(display.waiting(Job.from_outcome(plan, Outcome(notes=(_LOADS,)))))
        ranks.start()

    def progress(outputs: Sequence[Output], seconds: float, suspicion: str) -> None:
        nonlocal behind
        display(outputs, seconds, suspicion)
        if behind:
            behind = False
            kept.keep(plan, ranks.setting)

    job = Job.from_outcome(plan, ranks.run(task, options.timeout, progress))
    if job.state == "interrupted":
        display.end(job, report=False)  # the exception shows it
        raise JobInterrupted(job)
    display.end(job, report=options.may_fail)
    if not job.ok and not options.may_fail:
        raise JobFailed(job) from job.cause
    return job


@cache
def gpu_count() -> int:
    """Return how many GPUs PyTorch can use here. A rank is asked: this process stays clean."""
    if sys.platform.startswith("linux") and not any(
        Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    ):
        return 0
    job = torchrun(
        _count_gpus, nproc_per_node=1, backend="gloo", init=False, timeout=60, show=False
    )
    return int(job.results[0])


def _count_gpus() -> int:
    import torch

    return int(torch.cuda.device_count())
