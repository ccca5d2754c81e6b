"""Run somebody else's program so that it harms nothing: what Linux lets every user do.

The program sees a root folder in memory: of this machine Python, the course and the system's
programs, for reading only; three folders of its own, which are gone afterwards. It has its own
process numbers and a network with nothing but itself. Its time, its memory, its room for files and
its processes are bounded. What it leaves in the folder that SANDBOX_OUT names comes back, as data.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import psutil

from ..author.execute import family, own_memory
from ..base.machine import packages
from ..base.paths import MATERIAL

WEAKER = (
    "Without namespaces a notebook runs as you: it can reach the network, read your files and "
    "those of the other learners, and write where you can. Its time, its memory, the size of each "
    "file and the length of its output are still bounded, and its processes are ended. If you are "
    "root, an answer can reach its check, too."
)
_NEEDED = "import ipykernel, nbclient, torch, lockstep.teach.run_notebook"
_INIT = Path(__file__).with_name("sandbox_init.py")
_PACKAGE = Path(__file__).parents[1]
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_EVERY = 0.2  # seconds between two looks at memory and processes
_GRACE = 10.0  # seconds for a sandbox to end by itself when its time is up
_LEAST_FREE = 0.04  # of the machine's memory: files without a name count nowhere else
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Limits:
    """seconds: by the clock. memory: bytes, of each process and of all together. disk: bytes of
    all files. processes: at once. out: bytes that come back."""

    seconds: float = 600.0
    memory: int = 6 << 30
    disk: int = 1 << 30
    processes: int = 256
    out: int = 32 << 20


@dataclass(frozen=True)
class Ended:
    """how: "exit 0", "signal 9", "time", "disk", "memory", "processes", or "refused: why".

    files: by name, what the program left. said: what it wrote to the descriptor that SANDBOX_SAYS
    names.
    """

    how: str
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    said: bytes = b""


@cache
def why_not() -> str:
    """Return why this machine lets us build no walls; "" where it does."""
    if not sys.platform.startswith("linux"):
        return f"sandboxes are made of Linux's namespaces, and this is {sys.platform}"
    ended = run(["-c", "pass"], limits=Limits(seconds=30))
    return "" if ended.how == "exit 0" else ended.how.removeprefix("refused: ")


def lacks() -> str:
    """Return what keeps notebooks from running in a sandbox that can be built; "" for nothing."""
    ended = run(["-c", _NEEDED], limits=Limits(seconds=120))
    if ended.how == "exit 0":
        return ""
    return f"what notebooks need cannot be imported in it ({ended.how}): {_NEEDED}"


def stamp(limits: Limits, walls: bool) -> str:
    """Say under which conditions notebooks were run."""
    where = "in a sandbox without network" if walls else f"WITHOUT a sandbox. {WEAKER}"
    most = f"{limits.seconds:g} s, {limits.memory / 1e9:g} GB of memory, {limits.disk / 1e9:g} GB"
    return f"live · {limits.processes} processes and {most} of files at most, {where}"


def run(
    arguments: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    walls: bool = True,
    stop: threading.Event | None = None,
) -> Ended:
    """Run Python with these arguments and with `files` (by name) in its working folder.

    walls: False where there can be none; see WEAKER. stop: when it is set, the run ends at once.
    Raises OSError where nothing can be started.
    """
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True) as folder:
        top = "" if walls else folder
        home, out, temporary = f"{top}/home", f"{top}/out", f"{top}/tmp"
        if not walls:
            for made in (home, temporary):
                os.mkdir(made)
            for name, text in (files or {}).items():
                Path(home, name).write_text(text, encoding="utf-8", errors="surrogatepass")
        hears, says = os.pipe()
        asked = {
            "walls": walls,
            "root": folder,
            "show": _shown(),
            "files": {f"{home}/{name}": text for name, text in (files or {}).items()},
            "command": [_python(), *arguments],
            "environment": {**_environment(home, temporary), "SANDBOX_OUT": out}
            | {"SANDBOX_SAYS": str(says)},
            "directory": home,
            "out": out,
            "verdicts": says,
            "seconds": limits.seconds,
            "memory": limits.memory,
            "disk": limits.disk,
            "processes": limits.processes,
            "most_out": limits.out,
        }
        with open(hears, "rb") as heard:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_INIT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[says],
                    start_new_session=True,
                )
            finally:
                os.close(says)
            with process:
                try:
                    return _watch(process, json.dumps(asked).encode(), heard.fileno(), limits, stop)
                finally:
                    process.kill()  # and with it, all that is inside


def _watch(
    process: subprocess.Popen[bytes],
    asked: bytes,
    heard: int,
    limits: Limits,
    stop: threading.Event | None,
) -> Ended:
    began = time.monotonic()
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(asked)
        process.stdin.close()
    left, said = bytearray(), bytearray()
    most = limits.out + (1 << 20)  # with the lines between the files
    why, stopped_at = "", 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, left)
        selector.register(heard, selectors.EVENT_READ, said)
        next_look = began
        while selector.get_map():
            if stop is not None and stop.is_set():
                return Ended("stopped")
            for key, _ in selector.select(_EVERY):
                chunk = os.read(key.fd, _CHUNK)
                if not chunk or len(key.data) + len(chunk) > most:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk[: max(most - len(key.data), 0)])
            now = time.monotonic()
            if now >= next_look:
                if not why:
                    why = _excess(family(process.pid)[1:], limits)
                    if why or now - began > limits.seconds + _GRACE:
                        why, stopped_at = why or "time", now
                        process.terminate()
                elif now - stopped_at > _GRACE:
                    process.kill()
                next_look = time.monotonic() + _EVERY
    first, files = _unpacked(bytes(left))
    how = f"refused: {first['refused']}" if "refused" in first else str(first.get("ended", ""))
    return Ended(why or how or "refused: it ended before it began", files, bytes(said))


def _excess(inside: list[psutil.Process], limits: Limits) -> str:
    """Return what these processes have too much of, or ""."""
    machine = psutil.virtual_memory()
    if machine.available < _LEAST_FREE * machine.total:
        return "memory"
    # Pages that are shared count often here; to count them once costs a hundred times as much.
    if sum(map(_resident, inside)) > limits.memory and sum(map(own_memory, inside)) > limits.memory:
        return "memory"
    return "processes" if len(inside) > limits.processes else ""


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0


def _unpacked(left: bytes) -> tuple[dict[str, object], dict[str, bytes]]:
    """Return the first line, and the files behind it; what does not read as such is left out."""
    files: dict[str, bytes] = {}
    try:
        line, _, rest = left.partition(b"\n")
        first = json.loads(line or b"{}")
        while rest:
            line, _, rest = rest.partition(b"\n")
            head = json.loads(line)
            name, size = str(head["name"]), int(head["size"])
            files[name], rest = rest[:size], rest[size:]
    except (ValueError, KeyError, TypeError):
        return {}, files
    return (first if isinstance(first, dict) else {}), files


# ── What is shown inside ─────────────────────────────────────────────────────────────────────


def _python() -> str:
    return os.path.join(os.path.realpath(sys.prefix), "bin", Path(sys.executable).name)


def _shown() -> list[str]:
    """Return the folders that a program needs: the system's, Python's, the course's; none is in
    another."""
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    python |= {sysconfig.get_path("stdlib"), *packages()}
    course = [str(_PACKAGE), *(str(MATERIAL / name) for name in ("labs", "solutions", "data"))]
    wanted = [*_SYSTEM, *map(os.path.realpath, [*python, *course])]
    found: list[str] = []
    for path in sorted({path for path in wanted if os.path.exists(path)}, key=len):
        folders = [other for other in found if not os.path.islink(other)]
        if not any(Path(path).is_relative_to(other) for other in folders):
            found.append(path)
    return found


def _environment(home: str, temporary: str) -> dict[str, str]:
    """Return the program's variables, none of them the teacher's: some are secrets."""
    # Python finds a user's own packages below the home folder, which is another one there.
    users = [path for path in (site.getusersitepackages(),) if path in sys.path]
    return {
        "PATH": f"{os.path.dirname(_python())}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join([os.path.realpath(_PACKAGE.parent), *users]),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
        "USER": "learner",
        "LOCKSTEP_PROGRESS": "off",
    }
