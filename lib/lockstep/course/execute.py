"""Execute notebooks without a screen and say how each went: `lockstep run`.

papermill executes; here is what it does not do: refuse parameters that a notebook does not know,
measure memory, bound what is printed, end every process that a cell has started, count checks, and
doubt notebooks that only seem to have run.
"""

from __future__ import annotations

import ast
import ctypes
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat
import papermill
import psutil
from jupyter_client.manager import AsyncKernelManager
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from ..figures.table import Table
from ..launch.channel import deaf
from ..words import in_one_line
from .exercises import MIME, NOT_YET, PASS, TRY_AGAIN

SOLUTIONS = "solutions"
_EVERY = 0.1  # seconds between two looks at the memory
_PATIENCE = 300  # seconds for a cell
_MOST_ROUNDS = 20  # in which processes are ended
_MOST_OUTPUT = 50_000_000  # characters of a notebook's outputs: more than this is no result
_NO_TIME = 0.001  # seconds: what starts ranks or checks an answer takes longer
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOG = logging.getLogger("papermill")
_LOG.setLevel(logging.CRITICAL)  # what it logs is in the table


class BadInput(ValueError):
    """What was asked for cannot be run; the message says what, where, and what to do."""


@dataclass(frozen=True)
class Check:
    """A check that a notebook ran: verdict is PASS, TRY AGAIN or NOT YET; mistake is "" if none."""

    exercise: str
    verdict: str
    mistake: str


@dataclass(frozen=True)
class Execution:
    """How a notebook went."""

    notebook: str  # "labs/00_start_here.ipynb"
    seconds: float  # with the kernel's start and end
    peak_memory: int  # bytes, of the kernel and all its descendants together
    checks: tuple[Check, ...]
    problems: tuple[str, ...]  # () where it went well
    executed: Path | None  # the executed notebook, if it was kept

    @property
    def state(self) -> str:
        return "failed" if self.problems else "ok"

    @property
    def score(self) -> str:
        """The checks in words: "6 passed", "2 of 6 passed, 4 not yet"."""
        count = Counter(check.verdict for check in self.checks)
        total = len(self.checks)
        if not total:
            return "none"
        passed = f"{total}" if count[PASS] == total else f"{count[PASS]} of {total}"
        others = [f"{count[v]} {v.lower()}" for v in (TRY_AGAIN, NOT_YET) if count[v]]
        return ", ".join([f"{passed} passed", *others])

    def as_dict(self) -> dict[str, Any]:
        """For JSON; seconds and bytes."""
        return {
            "notebook": self.notebook,
            "seconds": round(self.seconds, 2),
            "peak_memory_bytes": self.peak_memory,
            "checks": [vars(check) for check in self.checks],
            "state": self.state,
            "problems": list(self.problems),
            "executed": None if self.executed is None else str(self.executed),
        }


# ── What to run ──────────────────────────────────────────────────────────────────────────────


def find(folder: str, numbers: Sequence[str], start: Path) -> list[Path]:
    """The notebooks of `folder` with these numbers ("01" or "1"; none: all), in order.

    The folder is looked for in `start` and above it. Raises BadInput.
    """
    start = start.resolve()
    found: list[Path] = []
    for above in (start, *start.parents):
        if found := sorted((above / folder).glob("[0-9][0-9]_*.ipynb")):
            break
    else:
        raise BadInput(
            f"no {folder}/ with notebooks in {start} or above it: change to a checkout of Lockstep"
        )
    known = {path.name[:2]: path for path in found}
    wanted = [number.zfill(2) for number in numbers]
    for number, given in zip(wanted, numbers, strict=True):
        if number not in known:
            raise BadInput(f"{found[0].parent} has no lab {given}; it has {', '.join(known)}")
    return [path for number, path in known.items() if not wanted or number in wanted]


def parse(pairs: Sequence[str]) -> dict[str, Any]:
    """What NAME=VALUE pairs set; a VALUE that is no Python literal is a string. Raises BadInput."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (equals and name.isidentifier()):
            raise BadInput(f"-p wants NAME=VALUE, such as NPROC=8, not {pair!r}")
        given[name] = _literal(text, text)
    return given


def refuse_misfits(parameters: Mapping[str, Any], notebooks: Sequence[Path]) -> None:
    """Raises BadInput for what a notebook does not know, and for a type that its default has not.

    papermill would run the notebook as if nothing had been said.
    """
    for notebook in notebooks if parameters else ():
        defaults = _defaults(notebook)
        for name, value in parameters.items():
            if name not in defaults:
                known = ", ".join(f"{name}={default}" for name, default in defaults.items())
                knows = f"it has {known}" if known else "it has none"
                raise BadInput(f"{_name(notebook)} has no parameter {name}; {knows}")
            where = f"{_name(notebook)}, where {name}={defaults[name]}"
            _refuse_type(value, defaults[name], f"{where}: {value!r}")


def _defaults(notebook: Path) -> dict[str, str]:
    """The parameters of a notebook, with the code of their defaults."""
    try:
        found = papermill.inspect_notebook(_for_papermill(notebook))
    except nbformat.reader.NotJSONError:
        raise BadInput(f"{notebook} is not a notebook: its content is not JSON") from None
    return {name: parameter["default"] for name, parameter in found.items()}


def _refuse_type(value: Any, default: str, what: str) -> None:
    expected, kind = _literal(default, None), type(value).__name__
    fits = type(value) is type(expected) or (type(expected), type(value)) == (float, int)
    if expected is not None and not fits:
        wanted = type(expected).__name__
        quote = " in quotes of its own" if wanted == "str" else ""
        raise BadInput(f"{what} is of type {kind}: pass a value of type {wanted}{quote}")
    if not isinstance(value, (bool, int, float, str, list, dict, type(None))):
        raise BadInput(
            f"{what} is of type {kind}: only numbers, strings, lists and dicts are passed"
        )


def _literal(code: str, otherwise: Any) -> Any:
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return otherwise


def _name(notebook: Path) -> str:
    return in_one_line(f"{notebook.parent.name}/{notebook.name}")


def _for_papermill(path: Path) -> str:
    """papermill takes braces in a path for fields to be filled in."""
    return str(path).replace("{", "{{").replace("}", "}}")


# ── Running it ───────────────────────────────────────────────────────────────────────────────


def run(
    notebooks: Sequence[Path],
    parameters: Mapping[str, Any],
    keep: Path | None = None,
    force: bool = False,
    progress: bool = False,
) -> Iterator[Execution]:
    """Execute one notebook after the other, whatever becomes of them.

    keep: the folder for the executed notebooks; without it only those that failed are kept, in a
    new folder among the temporary ones. force: overwrite files in `keep`, but never the notebooks
    themselves. progress: show a bar on stderr. Raises BadInput.
    """
    if keep:
        if keep.resolve() in {notebook.parent.resolve() for notebook in notebooks}:
            raise BadInput(f"--keep {keep} would overwrite the notebooks: name another folder")
        there = [notebook.name for notebook in notebooks if os.path.lexists(keep / notebook.name)]
        if there and not force:
            raise BadInput(
                f"--keep {keep} would overwrite {', '.join(there)} there: name another folder, or "
                "say --force"
            )
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--keep {keep}: {error.strerror}: name another folder") from None
    folder = keep
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        for notebook in notebooks:
            done = execute(notebook, Path(scratch).resolve() / notebook.name, parameters, progress)
            if done.executed and (keep or done.problems):
                folder = folder or Path(tempfile.mkdtemp(prefix="lockstep-failed-"))
                kept = Path(shutil.move(done.executed, folder.resolve() / notebook.name))
                yield replace(done, executed=kept)
            else:
                yield replace(done, executed=None)


def execute(
    notebook: Path, output: Path, parameters: Mapping[str, Any], progress: bool = False
) -> Execution:
    """Execute a notebook in its folder and write it to `output`, an absolute path.

    What goes wrong in it is not raised, but among the problems. Raises KeyboardInterrupt, when the
    kernel has ended. progress: show a bar on stderr.
    """
    kernel = _Kernel()
    problem, peak = "", 0
    began = time.perf_counter()
    # In a thread: a Ctrl-C inside of its event loop keeps papermill from ending the kernel.
    with _nothing_left() as survivors, ThreadPoolExecutor(1) as thread:
        running = thread.submit(
            papermill.execute_notebook,
            _for_papermill(notebook),
            _for_papermill(output),
            dict(parameters),
            engine_name=_Engine.NAME,
            kernel_name="python3",
            cwd=notebook.parent,
            progress_bar={"desc": _name(notebook)} if progress else False,
            kernel=kernel,
        )
        try:
            while not wait([running], timeout=_EVERY).done:
                peak = max(peak, memory(kernel.pid)) if kernel.pid else 0
            running.result()
        except PapermillExecutionError:
            pass  # the error is in the notebook, too
        except Exception as error:  # the kernel died, or did not start
            problem = _line(type(error).__name__, str(error))
        except BaseException:  # Ctrl-C
            kernel.kill("interrupted")
            raise
    seconds = time.perf_counter() - began
    problem = kernel.killed_because or problem
    executed = nbformat.read(output, 4) if output.exists() else nbformat.v4.new_notebook()
    problems = [_last_cell(executed) + problem] if problem else errors(executed)
    if not problems:
        problems = audit(executed)
    found = checks(executed)
    bad = (TRY_AGAIN, NOT_YET) if notebook.parent.name == SOLUTIONS else (TRY_AGAIN,)
    problems += [
        f"check {one.exercise}: {one.verdict}" + (f", {one.mistake}" if one.mistake else "")
        for one in found
        if one.verdict in bad
    ]
    problems += survivors
    path = output if output.exists() else None
    return Execution(_name(notebook), seconds, peak, tuple(found), tuple(problems), path)


class _Kernel:
    """The kernel's process, which papermill starts in its thread."""

    def __init__(self) -> None:
        self.pid = 0  # until it is there
        self.killed_because = ""

    def started(self, pid: int) -> None:
        self.pid = pid
        if self.killed_because:
            self.kill(self.killed_because)

    def kill(self, why: str) -> None:
        """End it and its process group; or do so once it is there."""
        self.killed_because = why
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class _Engine(NBClientEngine):
    """papermill's own way to execute, with a kernel that we can end and a bound on what it says."""

    NAME = "lockstep"

    @classmethod
    def execute_managed_notebook(cls, notebook: Any, kernel_name: str, **options: Any) -> Any:
        kernel: _Kernel = options["kernel"]
        manager = _kernel_manager(kernel)
        client = _Client(
            notebook,
            kernel_name=kernel_name,
            kernel_manager_class=manager,
            timeout=_PATIENCE,
            log=_LOG,
        )
        client.kernel, client.room = kernel, _MOST_OUTPUT
        return client.execute()


papermill_engines.register(_Engine.NAME, _Engine)


class _Client(PapermillNotebookClient):
    """Takes what the kernel says, and ends a kernel that says too much."""

    kernel: _Kernel
    room = 0  # in characters, for what will yet be said

    def process_message(self, message: Any, cell: Any, cell_index: int) -> Any:
        if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
            if self.room < 0:
                return None
            content, room = message["content"], self.room
            if message["msg_type"] == "stream":
                self.room -= len(content["text"])
                content["text"] = content["text"][:room]
            else:
                self.room -= len(str(content))
            if self.room < 0:
                self.kernel.kill(f"ended, for it printed more than {_MOST_OUTPUT / 1e6:g} MB")
        return super().process_message(message, cell, cell_index)


def _kernel_manager(kernel: _Kernel) -> type[AsyncKernelManager]:
    """What starts the kernel, and tells `kernel` so."""

    class Manager(AsyncKernelManager):
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            # No learner has done what is executed here.
            environment = {**os.environ, "LOCKSTEP_PROGRESS": "off"}
            # What cells and ranks write goes elsewhere: here a kernel speaks of its own life.
            await super().start_kernel(env=environment, stderr=subprocess.DEVNULL, **options)
            kernel.started(self.provisioner.pid)  # type: ignore[union-attr]

    return Manager


@contextmanager
def _nothing_left() -> Iterator[list[str]]:
    """End with the block all processes that began in it, also those that left their session.

    Gives a list that then names those which could not be ended.
    """
    me, survivors = psutil.Process(), list[str]()
    before = me.children()
    _adopt_orphans(True)
    try:
        yield survivors
    finally:
        with deaf():
            survivors += _end(lambda: [child for child in me.children() if child not in before])
            _adopt_orphans(False)


def _adopt_orphans(yes: bool) -> None:
    """Whether a descendant whose parent has ended becomes our child, not init's (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, int(yes), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _end(children: Callable[[], list[psutil.Process]]) -> list[str]:
    """Kill these and their descendants, again and again: who loses its parent is our child then."""
    for _ in range(_MOST_ROUNDS):
        family = [one for child in children() for one in _family(child)]
        if not family:
            return []
        for process in family:
            with suppress(psutil.Error):  # it has just ended, or is another user's
                process.kill()
        psutil.wait_procs(family, timeout=1)
    return [f"process {child.pid} could not be ended" for child in children()]


def _family(process: psutil.Process) -> list[psutil.Process]:
    """The process and its descendants; nobody once it is gone."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def memory(pid: int) -> int:
    """Bytes in use by a process and its descendants; 0 once it is gone.

    A page that n processes share counts 1/n in each (PSS); where the system does not tell that,
    shared pages do not count (USS).
    """
    try:
        family = _family(psutil.Process(pid))
    except psutil.Error:
        return 0
    total = 0
    for process in family:
        try:
            used = process.memory_full_info()
        except psutil.Error:  # it has just ended
            continue
        total += getattr(used, "pss", used.uss)
    return total


# ── Reading an executed notebook ─────────────────────────────────────────────────────────────


def checks(notebook: Any) -> list[Check]:
    """The checks whose outcomes an executed notebook shows, in order."""
    return [
        Check(**output.data[MIME])
        for cell in _code(notebook)
        for output in cell.outputs
        if MIME in output.get("data", {})
    ]


def errors(notebook: Any) -> list[str]:
    """A line for each cell that raised, but for those tagged `raises-exception`."""
    found = []
    for cell in _code(notebook):
        if "raises-exception" in cell.metadata.get("tags", []):
            continue
        raised = [output for output in cell.outputs if output.output_type == "error"]
        if raised:
            found.append(f"cell {cell.id}: {_line(raised[0].ename, raised[0].evalue)}")
        elif cell.metadata.get("papermill", {}).get("exception"):
            found.append(f"cell {cell.id}: it failed and does not say why")
    return found


def audit(notebook: Any) -> list[str]:
    """What makes one doubt that papermill executed this notebook, or that it proves anything."""
    found = []
    for cell in _code(notebook):
        seconds = cell.metadata.get("papermill", {}).get("duration") or 0.0
        works = cell.source.lstrip().startswith("%%torchrun") or "lockstep.check(" in cell.source
        if cell.execution_count is None:
            found.append(f"cell {cell.id} was not executed")
        elif works and seconds < _NO_TIME:
            found.append(f"cell {cell.id} took {seconds:g} s: its ranks cannot have run")
    if not checks(notebook):
        found.append("no check was run")
    return found


def _code(notebook: Any) -> list[Any]:
    """The code cells with something to run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def _last_cell(notebook: Any) -> str:
    """Names the last cell that was begun; "" if none was."""
    begun = [c.id for c in _code(notebook) if c.metadata.get("papermill", {}).get("start_time")]
    return f"cell {begun[-1]}: " if begun else ""


def _line(name: str, text: str) -> str:
    first = next(iter(_COLOUR.sub("", text).strip().splitlines()), "")
    return f"{name}: {first}" if first else name


# ── Saying it ────────────────────────────────────────────────────────────────────────────────


def table(executions: Sequence[Execution]) -> str:
    """A row for each notebook, and under them what went wrong."""
    columns = ("notebook", "seconds", "peak memory", "checks", "state")
    rows = []
    for one in executions:
        seconds, peak = f"{one.seconds:7.1f}", f"{one.peak_memory / 1e6:8.0f} MB"  # to the right
        rows.append((one.notebook, seconds, peak, one.score, one.state))
    lines = Table("executed notebooks", columns, rows, stamp=None).lines()
    for one in executions:
        if one.problems:
            lines += ["", f"{one.notebook} failed:", *(f"  {problem}" for problem in one.problems)]
            lines += [f"  executed notebook: {one.executed}"] if one.executed else []
    return "\n".join(lines)
