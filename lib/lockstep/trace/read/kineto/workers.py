"""The files of a trace read, here or by processes.

Large files are read by processes of their own, `python -m lockstep.trace.read.kineto FOLDER FILE…`,
so that loading works in a notebook's kernel and in a script without a main guard, and leaves no
memory behind. They write columns into the cache, from where the trace is put together.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ....base.machine import in_notebook, usable_cores
from ...slices import TraceError
from .cache import entry_of, keep, prune, saved
from .file import File, read
from .files import State, is_large, state_of, text_size
from .text import NotATrace

_LIBRARY = Path(__file__).parents[4]  # the folder that the package is in


class Found(NamedTuple):
    """A file that was read, and its state by which a later change is seen."""

    path: Path
    state: State
    file: File


def read_all(
    paths: list[Path], store: Path | None, processes: int | None, in_folder: bool, notes: list[str]
) -> list[Found]:
    """All files, with so many processes at a time. What is no trace is left out, with a note, if it
    was merely found in a folder and there are others."""
    large = [path for path in paths if is_large(path)] if store else []
    missing = [path for path in large if not entry_of(store, path).exists()] if store else []
    errors: dict[str, list[str]] = {}
    number = min(processes or usable_cores(), len(missing))
    if store and number > 1:
        errors = _in_processes(store, missing, number)
    found: list[Found] = []
    no_traces: list[NotATrace] = []
    for path in dict.fromkeys(paths):  # what is named twice is still one file
        state = state_of(path)
        try:
            if str(path) in errors:
                kind, message = errors[str(path)]
                raise (NotATrace if kind == NotATrace.__name__ else TraceError)(message)
            found.append(
                Found(path, state, read_one(path, state, store if path in large else None))
            )
        except NotATrace as error:
            if not in_folder:
                raise
            no_traces.append(error)
    if not found:
        raise no_traces[0]
    notes += [f"left out: {error}" for error in no_traces]
    if missing and store:
        prune(store, spare={entry_of(store, path) for path in large})
    return found


def read_one(path: Path, state: State, store: Path | None) -> File:
    """One file, from the store if it is there; else it is read and, where that works, stored."""
    if store is None:
        return read(path)
    entry = entry_of(store, path)
    try:
        file = saved(entry)
        with contextlib.suppress(OSError):
            os.utime(entry)  # so that it is not the next to go
        return file
    except (OSError, ValueError, EOFError):  # not there, or damaged
        shutil.rmtree(entry, ignore_errors=True)
    file = read(path)
    if state_of(path) != state:
        raise TraceError(f"{path} changed while it was read: load it again when it is complete")
    with contextlib.suppress(OSError):  # no space, or no right to write: it works without
        keep(file, entry)
    return file


def _in_processes(store: Path, paths: list[Path], number: int) -> dict[str, list[str]]:
    """Read the files into the store, with so many processes. Gives kind and message of the errors,
    by path. A file that could be read but not stored is in neither."""
    shares: list[list[str]] = [[] for _ in range(number)]
    loads = [0] * number
    for path in sorted(paths, key=lambda one: -text_size(one)):
        least = loads.index(min(loads))
        shares[least].append(str(path))
        loads[least] += text_size(path)
    # The reader that runs here must be the one that runs there. Not "-m" with the notebook's folder
    # on the path: a file random.py in it would be imported.
    python_path = os.pathsep.join(filter(None, (str(_LIBRARY), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": python_path, "OPENBLAS_NUM_THREADS": "1"}
    workers: list[subprocess.Popen[str]] = []
    errors: dict[str, list[str]] = {}
    from tqdm import tqdm  # small traces do not wait for its import

    seen = sys.stderr.isatty() or in_notebook()
    bar = tqdm(
        desc="reading", total=len(paths), unit="file", delay=2, leave=False, disable=not seen
    )
    try:
        for share in shares:
            command = [sys.executable, "-P", "-m", __package__, str(store), *share]
            workers.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env=environment,
                )
            )
        for worker, share in zip(workers, shares, strict=True):
            assert worker.stdout is not None
            for line in worker.stdout:
                errors |= json.loads(line)
                bar.update()
            if worker.wait() < 0:
                raise TraceError(
                    f"a process that was reading {', '.join(share)} was ended by signal "
                    f"{-worker.returncode}; if memory is short, load with processes=1"
                )
    finally:
        bar.close()
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    return errors


def main(store: str, *paths: str) -> None:
    """Read each file into the store, and print a line of its errors, by path, when it is done."""
    for name in paths:
        path, errors = Path(name), {}
        try:
            read_one(path, state_of(path), Path(store))
        except TraceError as error:
            errors[name] = [type(error).__name__, str(error)]
        print(json.dumps(errors), flush=True)
