"""A learner's own copies of the labs, and JupyterLab on them: `lockstep labs`.

A copy is made once. A file that the learner has changed is never written again; one that is still
as it was copied follows the course. Which that is says `.lockstep.json` beside the copies: by file,
the hash of what was copied last. Hashed are the cells' sources and outputs: JupyterLab also writes
other metadata when it saves a notebook that nobody has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.paths import MATERIAL
from ..base.refused import Refused
from .links import FURTHER, file_name
from .syllabus import LABS

FOLDER = Path("my-lockstep")
_FOLDERS = ("labs", "solutions")
_HASHES = ".lockstep.json"
_JUPYTER = Path(__file__).parent / "jupyter"  # a folder of Jupyter's configuration


class CannotCopy(Refused):
    """The labs cannot be copied there; the message says why and what to do."""


@dataclass
class Copies:
    """The files that were copied or not, by name in the folder: "labs/00_start_here.ipynb"."""

    folder: Path
    new: list[str] = field(default_factory=list)
    refreshed: list[str] = field(default_factory=list)  # the learner had not changed it
    newer: list[str] = field(default_factory=list)  # the course's is; the learner's has work in it
    beside: list[str] = field(default_factory=list)  # the newer one, where it was asked for
    same: list[str] = field(default_factory=list)  # as the course's
    kept: list[str] = field(default_factory=list)  # has work in it, and the course's is not newer

    def __str__(self) -> str:
        lines = []
        labs = [name for name in self.new if name.startswith("labs/")]
        if labs := [name for name in labs if not Path(name).stem.endswith(FURTHER)]:
            lines.append(f"copied {_count(labs, 'lab')} to {self.folder}, for you to edit")
        if self.refreshed:
            lines.append(f"updated {_count(self.refreshed, 'notebook')} that you had not changed")
        lines += [f"new version, beside yours: {name}" for name in self.beside]
        if self.newer:
            lines += [
                f"newer in the course, but yours has your work and was kept: {n}"
                for n in self.newer
            ]
            lines.append(
                f"  to put the new version beside yours: lockstep labs --newer {self.folder}"
            )
        return "\n".join(lines or [self._found])

    @property
    def _found(self) -> str:
        count = _count([*self.same, *self.kept], "notebook")
        return f"nothing to copy: {self.folder} has {count}, {len(self.kept)} with your work"


def holds_other_things(folder: Path) -> bool:
    """Return whether a folder has files in it and was not made by `lockstep labs`."""
    with suppress(OSError):  # it does not exist, or copy() says why it cannot be read
        return any(folder.iterdir()) and not (folder / _HASHES).exists()
    return False


def copy(folder: Path, newer: bool = False, force: bool = False) -> Copies:
    """Copy labs and solutions to `folder`, which is made.

    newer: also put the course's newer notebooks beside those that the learner has changed.
    force: also where the folder holds other things. Raises CannotCopy.
    """
    done = Copies(folder)
    if folder.resolve() in (MATERIAL.resolve(), *(MATERIAL.resolve() / name for name in _FOLDERS)):
        raise CannotCopy(
            f"{folder} is the course itself, which must stay blank: name another folder, such "
            f"as lockstep labs {FOLDER}"
        )
    if holds_other_things(folder) and not force:
        raise CannotCopy(
            f"{folder} has other files in it: name a new folder, or add --force to copy the labs "
            "there all the same"
        )
    try:
        hashes = _read_hashes(folder / _HASHES)
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
            for source in sorted((MATERIAL / name).glob("[0-9][0-9]_*.ipynb")):
                _copy_one(source, f"{name}/{source.name}", newer, hashes, done)
        _write_whole(folder / _HASHES, (json.dumps(hashes, indent=1) + "\n").encode())
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CannotCopy(f"{where}{error.strerror or error}: name another folder") from None
    return done


def _copy_one(source: Path, name: str, newer: bool, hashes: dict[str, str], done: Copies) -> None:
    content, mine = source.read_bytes(), done.folder / name
    today = _hash(content)
    if not os.path.lexists(mine):
        _write_whole(mine, content)
        done.new.append(name)
    elif (held := _hash(mine.read_bytes())) == today:
        done.same.append(name)
    elif held == hashes.get(name):  # as it was copied: nobody's work
        _write_whole(mine, content)
        done.refreshed.append(name)
    elif hashes.get(name) == today:  # changed by the learner, and not by the course
        done.kept.append(name)
    elif newer:
        done.beside.append(_beside(mine, content))
    else:
        done.newer.append(name)
        return
    hashes[name] = today


def _beside(mine: Path, content: bytes) -> str:
    """Write `content` below a name of its own, beside `mine`; returns the file's path."""
    names = (f"{mine.stem}.newer{'' if n == 1 else f'-{n}'}.ipynb" for n in range(1, 1000))
    path = next(one for name in names if not os.path.lexists(one := mine.with_name(name)))
    _write_whole(path, content)
    return str(path)


def _read_hashes(file: Path) -> dict[str, str]:
    """Read the hashes of what was copied; none where the file is not there or was spoilt."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _write_whole(path: Path, content: bytes) -> None:
    """Write all of it or nothing: a full disk must not leave half a notebook."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_bytes(content)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _hash(content: bytes) -> str:
    """Hash the cells of a notebook; all of a file that is none."""
    with suppress(ValueError, KeyError, TypeError):
        cells = json.loads(content)["cells"]
        # What a learner sees of them; lines are joined, as not all programs split them.
        parts = ("cell_type", "source", "outputs")
        seen = [[_joined(cell.get(part)) for part in parts] for cell in cells]
        content = json.dumps(seen, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _joined(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    if isinstance(value, list):
        return [_joined(one) for one in value]
    if isinstance(value, dict):
        return {name: _joined(one) for name, one in value.items()}
    return value


def _count(things: Sequence[str], name: str) -> str:
    return f"1 {name}" if len(things) == 1 else f"{len(things)} {name}s"


# ── JupyterLab ───────────────────────────────────────────────────────────────────────────────


def jupyterlab(
    folder: Path,
    options: Sequence[str],
    environment: Mapping[str, str],
    page: str = f"/lab/tree/labs/{file_name(LABS[0])}",
) -> tuple[list[str], dict[str, str]] | None:
    """Return the command that opens lab 00 in JupyterLab, or another page, and its environment;
    None where there is no JupyterLab.

    Every address that it prints is that page's. `options` are JupyterLab's own; they come last,
    so they win.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        return None
    command = [
        *(sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder.resolve()}"),
        f"--LabApp.default_url={page}",
    ]
    if os.geteuid() == 0:  # which it refuses, and a container often has no other user
        command.append("--allow-root")
    if is_remote(environment):
        command.append("--no-browser")
    path = os.pathsep.join(filter(None, [str(_JUPYTER), environment.get("JUPYTER_CONFIG_PATH")]))
    return [*command, *options], {**environment, "JUPYTER_CONFIG_PATH": path}


def is_remote(environment: Mapping[str, str]) -> bool:
    """Return whether the learner's browser is on another machine."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    return "SSH_CONNECTION" in environment and not any(environment.get(name) for name in screens)


def how_to_reach(environment: Mapping[str, str]) -> str:
    """Say what to type on the learner's machine, where this one is reached by SSH."""
    words = environment["SSH_CONNECTION"].split()
    host = words[2] if len(words) > 2 else "this-host"
    user = environment.get("USER") or environment.get("LOGNAME") or "you"
    return (
        "JupyterLab runs on this machine, and your browser does not. On your own machine, run:\n"
        f"  ssh -N -L 8888:localhost:8888 {user}@{host}\n"
        "Then open there the address with localhost that JupyterLab prints below. If its port is "
        "not 8888, change both numbers."
    )
