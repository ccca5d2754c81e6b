"""Execute notebooks without a screen and say how each went: `lockstep run`.

nbclient executes; here is what it does not do: set parameters, in papermill's way, and refuse those
that a notebook does not know, measure memory, bound what is printed, end every process that a cell
has started, count checks, and doubt notebooks that only seem to have run.
"""

from __future__ import annotations

import ast
import ctypes
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from IPython.core.inputtransformer2 import TransformerManager
from jupyter_client.manager import AsyncKernelManager
from tqdm import tqdm

from ..base.formatting import in_one_line
from ..base.paths import MATERIAL
from ..base.refused import Refused
from ..course.exercises import MIME, NOT_YET, PASS, TRY_AGAIN
from ..figures.table import Table
from ..launch.interrupts import defer_signals
from ..launch.oom import OomCounter
from .fast_nbformat import CellExecutionError, NotebookClient, nbformat

SOLUTIONS = "solutions"
_EVERY = 0.1  # seconds between two looks at the memory
_PATIENCE = 300  # seconds for a cell
_MOST_ROUNDS = 20  # in which processes are ended
_MOST_OUTPUT = 50_000_000  # characters of a notebook's outputs: more than this is no result
_LONGEST_BASE = 107 - len("/lockstep-12345678/kernel-1")
_NO_TIME = 0.001  # seconds: what starts ranks or checks an answer takes longer
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SILENT = logging.Logger("nbclient", logging.CRITICAL)  # what it logs is in the table


class BadInput(Refused):
    """Something that was asked for cannot be run; the message says what, where, and what to do."""


@dataclass(frozen=True)
class Check:
    """A check that a notebook ran: verdict is PASS, TRY AGAIN or NOT YET; mistake is "" if none."""

    exercise: str
    verdict: str
    mistake: str


@dataclass(frozen=True)
class Execution:
    """An execution of a notebook."""

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
        """Return it for JSON; in seconds and bytes."""
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
    """Return the notebooks of `folder` with these numbers ("01" or "1"; none: all), in order.

    The folder is looked for in `start` and above it; where there is none, it is the course's own.
    Raises BadInput.
    """
    start = start.resolve()
    found: list[Path] = []
    for above in (start, *start.parents, MATERIAL):
        there = sorted((above / folder).glob("[0-9][0-9]_*.ipynb"))
        if found := [path for path in there if "." not in path.stem]:  # 01_topic.newer is a copy
            break
    else:
        raise BadInput(f"no {folder}/ with notebooks in {start}, above it, or in {MATERIAL}")
    known = dict.fromkeys(path.name[:2] for path in found)
    wanted = [number.zfill(2) for number in numbers]
    for number, given in zip(wanted, numbers, strict=True):
        if number not in known:
            raise BadInput(f"{found[0].parent} has no lab {given}; it has {', '.join(known)}")
    return [path for path in found if not wanted or path.name[:2] in wanted]


def parse(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the values that NAME=VALUE pairs set; a VALUE that is no Python literal is a string.

    Raises BadInput.
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (equals and name.isidentifier()):
            raise BadInput(f"-p needs NAME=VALUE, such as NPROC=8, not {pair!r}")
        given[name] = _literal(text, text)
    return given


def refuse_misfits(parameters: Mapping[str, Any], notebooks: Sequence[Path]) -> None:
    """Raise BadInput for what a notebook does not know, and for a type that its default has not.

    And for a file that is no notebook.
    """
    for notebook in notebooks:
        defaults = _defaults(_read(notebook))
        for name, value in parameters.items():
            if name not in defaults:
                known = ", ".join(f"{name}={default}" for name, default in defaults.items())
                knows = f"it has {known}" if known else "it has none"
                raise BadInput(f"{_name(notebook)} has no parameter {name}; {knows}")
            where = f"{_name(notebook)}, where {name}={defaults[name]}"
            _refuse_type(value, defaults[name], f"{where}: {value!r}")


def _read(path: Path) -> Any:
    try:
        return nbformat.read(path, 4)
    except Exception as error:  # of whatever kind: of JSON, of what stands in it
        raise BadInput(f"{path} is not a notebook: {_line('', str(error))}") from None


def _defaults(notebook: Any) -> dict[str, str]:
    """Return the parameters of a notebook, with the code of their defaults."""
    sources = [notebook.cells[at].source for at in _parameter_cells(notebook)]
    code = TransformerManager().transform_cell("\n".join(sources))  # there may be a magic in it
    return {
        target.id: ast.get_source_segment(code, statement.value) or ""
        for statement in ast.parse(code).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _parameter_cells(notebook: Any) -> list[int]:
    """Return the number of the cell that sets defaults, if any: papermill's convention is a tag."""
    tagged = [cell.metadata.get("tags", []) for cell in notebook.cells]
    return [at for at, tags in enumerate(tagged) if "parameters" in tags][:1]


def _refuse_type(value: Any, default: str, what: str) -> None:
    expected, kind = _literal(default, None), type(value).__name__
    fits = type(value) is type(expected) or (type(expected), type(value)) == (float, int)
    if expected is not None and not fits:
        wanted = type(expected).__name__
        quote = " in quotes of its own" if wanted == "str" else ""
        raise BadInput(f"{what} is of type {kind}: pass a value of type {wanted}{quote}")


def _literal(code: str, otherwise: Any) -> Any:
    try:
        return ast.literal_eval(code)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return otherwise


def _name(notebook: Path) -> str:
    return in_one_line(f"{notebook.parent.name}/{notebook.name}")


# ── Running it ───────────────────────────────────────────────────────────────────────────────


def run(
    notebooks: Sequence[Path],
    parameters: Mapping[str, Any],
    keep: Path | None = None,
    force: bool = False,
    progress: bool = False,
    limit: float = math.inf,
) -> Iterator[Execution]:
    """Execute one notebook after the other, whatever becomes of them.

    keep: the folder for the executed notebooks; without it only those that failed are kept, in a
    new folder among the temporary ones. force: overwrite files in `keep`, but never the notebooks
    themselves. progress: show a bar on stderr. limit: seconds for a notebook, which then is ended.
    Raises BadInput.
    """
    if keep:
        if keep.resolve() in {notebook.parent.resolve() for notebook in notebooks}:
            raise BadInput(f"--keep {keep} would overwrite the notebooks: name another folder")
        there = [notebook.name for notebook in notebooks if os.path.lexists(keep / notebook.name)]
        if there and not force:
            raise BadInput(
                f"--keep {keep} would overwrite {', '.join(there)} there: name another "
                "folder, or add --force"
            )
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--keep {keep}: {error.strerror}: name another folder") from None
    folder = keep
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        for notebook in notebooks:
            output = Path(scratch).resolve() / notebook.name
            done = execute(notebook, output, parameters, progress, limit)
            if keep or done.problems:
                folder = folder or Path(tempfile.mkdtemp(prefix="lockstep-failed-"))
                kept = Path(shutil.move(output, folder.resolve() / notebook.name))
                yield replace(done, executed=kept)
            else:
                yield replace(done, executed=None)


def execute(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any],
    progress: bool = False,
    limit: float = math.inf,
    weigh: bool = True,
) -> Execution:
    """Execute a notebook in its folder and write it to `output`, an absolute path.

    What goes wrong in it is not raised, but among the problems. Raises KeyboardInterrupt, when the
    kernel has ended. progress: show a bar on stderr. limit: seconds, after which it is ended.
    weigh: measure the peak of memory, which takes a quarter of the processor time; else it is 0.
    """
    document = _prepare(notebook, parameters)
    bar = tqdm(document.cells, desc=_name(notebook), disable=not progress)
    problem, peak, toll = "", 0, OomCounter()
    began = time.perf_counter()
    # In a thread: a Ctrl-C inside of its event loop keeps nbclient from ending the kernel.
    with _sockets() as folder, _nothing_left() as survivors, bar, ThreadPoolExecutor(1) as thread:
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        client = _Client(document, kernel, timeout=_PATIENCE, log=_SILENT)
        client.room = _MOST_OUTPUT
        running = thread.submit(client.execute_all, bar, notebook.parent)
        try:
            while not wait([running], timeout=_EVERY).done:
                peak = max(peak, memory(_pid(kernel)) if weigh else 0)
                if time.perf_counter() - began > limit:
                    _kill(kernel)
            running.result()
        except CellExecutionError as error:
            problem = _line(error.ename, error.evalue)
        except Exception as error:  # the kernel died, or did not start
            said = ": ".join(filter(None, (str(error), toll.explains())))
            problem = _line(type(error).__name__, said)
        except BaseException:  # Ctrl-C
            with defer_signals():
                while not wait([running], timeout=_EVERY).done:  # it may only just be starting
                    _kill(kernel)
            raise
    seconds = time.perf_counter() - began
    if seconds > limit:
        problem = f"ended, because it took longer than {limit:g} s"
    if client.room < 0:
        problem = f"ended, because it printed more than {_MOST_OUTPUT / 1e6:g} MB"
    nbformat.write(document, output)
    problems = [_last_cell(document) + problem] if problem else audit(document)
    found = checks(document)
    bad = (TRY_AGAIN, NOT_YET) if notebook.parent.name == SOLUTIONS else (TRY_AGAIN,)
    problems += [
        f"check {one.exercise}: {one.verdict}" + (f", {one.mistake}" if one.mistake else "")
        for one in found
        if one.verdict in bad
    ]
    problems += survivors
    return Execution(_name(notebook), seconds, peak, tuple(found), tuple(problems), output)


def _prepare(path: Path, parameters: Mapping[str, Any]) -> Any:
    """Return the notebook at `path` as if it had never run, with these parameters.

    As with papermill, a cell behind that of the defaults sets them; papermill itself would write
    a tuple as text.
    """
    notebook = _read(path)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    if parameters:
        code = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
        cell = nbformat.v4.new_code_cell(code, metadata={"tags": ["injected-parameters"]})
        (at,) = _parameter_cells(notebook)
        notebook.cells.insert(at + 1, cell)
    return notebook


def _sockets() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a kernel's sockets, whose names have room for about 100 characters.

    They are none of TCP: a port that is free when a kernel is told of it may be taken when it
    begins, most of all where ranks come and go.
    """
    base = tempfile.gettempdir()
    base = "/tmp" if len(base) > _LONGEST_BASE else base
    return tempfile.TemporaryDirectory(prefix="lockstep-", dir=base)


class _Client(NotebookClient):
    """A client that runs every cell, and ends a kernel that prints too much."""

    room = 0  # in characters, for what will yet be said

    def execute_all(self, cells: Iterable[Any], folder: Path) -> None:
        """Do as `execute`, which lets the process end with a complaint if no kernel starts."""
        # No learner has done what is executed here, and nobody reads between two cells: ranks that
        # came up meanwhile would only be in the way of what the next one measures.
        environment = {"LOCKSTEP_RESERVE": "off", **os.environ, "LOCKSTEP_PROGRESS": "off"}
        # What cells and ranks write goes elsewhere: here a kernel speaks of its own life.
        options = {"cwd": folder, "env": environment, "stderr": subprocess.DEVNULL}
        with self.setup_kernel(cleanup_kc=True, **options):
            for index, cell in enumerate(cells):
                self.execute_cell(cell, index)
            self.set_widgets_metadata()

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
                _kill(self.km)
        return super().process_message(message, cell, cell_index)


def _pid(kernel: Any) -> int:
    """Return the kernel's process; 0 before it is there and after it has gone."""
    return getattr(kernel.provisioner, "pid", None) or 0


def _kill(kernel: Any) -> None:
    """End the kernel and its process group, if it is there."""
    if pid := _pid(kernel):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


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
        with defer_signals():
            survivors += _end(lambda: [child for child in me.children() if child not in before])
            _adopt_orphans(False)


def _adopt_orphans(yes: bool) -> None:
    """Have descendants whose parent has ended become our children, not init's, or not (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, int(yes), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _end(children: Callable[[], list[psutil.Process]]) -> list[str]:
    """Kill these and their descendants, again and again: who loses its parent is our child then."""
    for _ in range(_MOST_ROUNDS):
        alive = [one for child in children() for one in family(child.pid)]
        if not alive:
            return []
        for process in alive:
            with suppress(psutil.Error):  # it has just ended, or is another user's
                process.kill()
        psutil.wait_procs(alive, timeout=1)
    return [f"process {child.pid} could not be ended" for child in children()]


def family(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants; nobody once it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def memory(pid: int) -> int:
    """Return the bytes in use by a process and its descendants; 0 where there is none."""
    return sum(map(own_memory, family(pid))) if pid else 0


def own_memory(process: psutil.Process) -> int:
    """Return the bytes in use by a process; 0 once it has ended.

    A page that n processes share counts 1/n in each (PSS); where the system does not tell that,
    shared pages do not count (USS).
    """
    try:
        used = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(used, "pss", used.uss))


# ── Reading an executed notebook ─────────────────────────────────────────────────────────────


def checks(notebook: Any) -> list[Check]:
    """Return the checks whose outcomes an executed notebook shows, in order."""
    return [
        Check(**output.data[MIME])
        for cell in _code(notebook)
        for output in cell.outputs
        if MIME in output.get("data", {})
    ]


def audit(notebook: Any) -> list[str]:
    """Return what makes one doubt that this notebook was executed, or that it proves anything."""
    found = []
    for cell in _code(notebook):
        works = cell.source.lstrip().startswith("%%torchrun") or "lockstep.check(" in cell.source
        if cell.execution_count is None:
            found.append(f"cell {cell.id} was not executed")
        elif works and (seconds := kernel_seconds(cell)) < _NO_TIME:
            found.append(f"cell {cell.id} took {seconds:g} s: its ranks cannot have run")
    if not checks(notebook) and not _goes_further(notebook):
        found.append("no check was run")
    return found


def _goes_further(notebook: Any) -> bool:
    """Return whether a notebook goes further than its lab: it need not have an exercise."""
    return any(
        cell.cell_type == "markdown"
        and re.match(r"# .*: going further$", cell.source, re.MULTILINE)
        for cell in notebook.cells
    )


def kernel_seconds(cell: Mapping[str, Any]) -> float:
    """Return how long the kernel had to do with a cell, as nbclient and papermill note it."""
    times = cell["metadata"].get("execution", {})
    begun, ended = (times.get(f"iopub.status.{state}") for state in ("busy", "idle"))
    if not (begun and ended):
        return 0.0
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()


def _code(notebook: Any) -> list[Any]:
    """Return the code cells with something to run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def _last_cell(notebook: Any) -> str:
    """Name the last cell that was begun; "" if none was."""
    begun = [cell.id for cell in _code(notebook) if "execution" in cell.metadata]
    return f"cell {begun[-1]}: " if begun else ""


def _line(name: str, text: str) -> str:
    first = next(iter(_COLOUR.sub("", text).strip().splitlines()), "")
    return ": ".join(part for part in (name, first) if part)


# ── Saying it ────────────────────────────────────────────────────────────────────────────────


def table(executions: Sequence[Execution]) -> str:
    """Return a row for each notebook, and under them what went wrong."""
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
