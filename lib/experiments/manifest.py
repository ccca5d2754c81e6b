"""`manifest.json`: where each recording is from, under which conditions; and writing both.

An entry is noted down by the command itself. What nobody knows is None.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import pickle
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import __version__
from lockstep.base.machine import Machine, summary

from .experiment import CannotRecord, Result

NAME = "manifest.json"
SUMS = "SHA256SUMS"  # as `sha256sum -c` takes it: who edits a recording by hand is found
# Variables with these beginnings change what is measured.
CONDITIONS = (
    "CUDA_",
    "GLOO_",
    "NCCL_",
    "NVSHMEM_",
    "OMP_",
    "PYTORCH_",
    "TORCH_DISTRIBUTED_",
    "TORCH_FR_",
    "TORCH_NCCL_",
    "TORCH_SYMM",
)
# Of these, what only says what is installed: that is among the versions.
INSTALLED = ("_HOME", "_PATH", "_VERSION")
# What `data/` has besides recordings: `costs` is what benchmarks of Lockstep say where they ran
# last, `published` what others measured.
_NO_RECORDINGS = {
    NAME, SUMS, "README.md", "COSTS.md", "GATE.md", "claims.md", "claims.toml", "costs",
    "published",
}  # fmt: skip
_PATH = re.compile(r"(?<![\w.:/])(?:/[\w.+@-]+){2,}")
_DEVICE = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


# ── What is noted down ───────────────────────────────────────────────────────────────────────


def entry(
    result: Result,
    experiment: str,
    ranks: int,
    machine: Machine,
    command: str,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return the manifest's entry for a result that so many ranks found just now, and here."""
    assert machine.torch is not None
    names = Counter(gpu.name for gpu in machine.gpus)
    gpus = " and ".join(f"{count} {name}" for name, count in names.items())
    several = " of one host" if len(machine.gpus) > 1 else ""
    where = f"{gpus}{several}, {machine.cores} cores" if gpus else summary(machine)
    links = {link for row in machine.links or () for link in row} - {"X"}
    set_by_it = {name: value for name, value in result.environment.items() if value is not None}
    kept = {name: value for name, value in environment.items() if name not in result.environment}
    conditions = {
        name: value
        for name, value in kept.items()
        if name.startswith(CONDITIONS) and not name.endswith(INSTALLED)
    }
    noted: dict[str, Any] = without_names(
        {
            "file": result.file,
            "what": result.what,
            "experiment": experiment,
            "ranks": ranks,
            "machine": where,
            "hardware": {
                "gpus": dict(names),
                "link": ", ".join(sorted(links)) or None,
                "cpu": _cpu(),
                "cores": machine.cores,
            },
            "versions": {
                "python": machine.python,
                "torch": machine.torch.version,
                "cuda": _cuda(machine.torch.build),
                "nccl": machine.torch.nccl,
                "driver": machine.driver,
                "lockstep": _lockstep(),
            },
            "date": time.strftime("%Y-%m-%d"),
            "command": command,
            "conditions": dict(sorted({**conditions, **set_by_it}.items())),
        }
    )
    return noted


def _cpu() -> str | None:
    """Return the processor's name, where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(named[1].split()) if named else None


def _cuda(build: str) -> str | None:
    """Return "13.0" of "cu130"."""
    digits = build.removeprefix("cu")
    return f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() and digits != build else None


@functools.cache  # before the first result is written, which changes the checkout
def _lockstep() -> str:
    """Return the version, and the commit where this is a checkout with its history."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():  # git would look for a history in the folders above
        return __version__
    describe = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        said = subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}, commit {said.stdout.strip()}"


def without_names(value: Any) -> Any:
    """Return the same content without what names this machine or its people.

    A path becomes its last part (of an installed package: the path in it), the name of the host
    "host", the number of a GPU "GPU". Names of users stand in paths, and go with them.
    """
    if isinstance(value, dict):
        return {key: without_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_names(item) for item in value)
    if not isinstance(value, str):
        return value
    text = _DEVICE.sub(r"\1", _PATH.sub(lambda found: _last_part(found[0]), value))
    return re.sub(rf"(?<![\w.-]){re.escape(socket.gethostname())}(?![\w-])", "host", text)


def _last_part(path: str) -> str:
    _, package, module = path.rpartition("/site-packages/")
    return module if package else path.rpartition("/")[2]


# ── Reading and writing ──────────────────────────────────────────────────────────────────────


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a folder's manifest; none where there is no manifest yet.

    Raises CannotRecord where it is no JSON.
    """
    try:
        text = (folder / NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    try:
        found: list[dict[str, Any]] = json.loads(text)
    except ValueError as error:
        raise CannotRecord(f"{folder / NAME} is no JSON ({error}): mend it first") from None
    return found


def read_sums(folder: Path) -> dict[str, str]:
    """Return each file's SHA-256 when it was recorded."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {file: sum_ for sum_, _, file in (line.partition("  ") for line in lines)}


def sums_of(folder: Path, recording: str) -> dict[str, str]:
    """Return the SHA-256 of a recording below `folder`, by file."""
    at = folder / recording
    files = sorted(one for one in at.rglob("*") if one.is_file()) if at.is_dir() else [at]
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def doubts(folder: Path) -> list[str]:
    """Say what is wrong with the recordings of a folder: changed, without an entry, without a
    file."""
    entries = [entry["file"] for entry in read(folder)]
    sums = read_sums(folder)
    there = {
        file: sum_
        for one in sorted(folder.iterdir())
        if one.name not in _NO_RECORDINGS
        for file, sum_ in sums_of(folder, one.name).items()
    }
    found = [
        f"{file} is in the manifest, and not there"
        for file in entries
        if not (folder / file).exists()
    ]
    twice = [file for file, count in Counter(entries).items() if count > 1]
    found += [f"{file} is in the manifest more than once" for file in twice]
    for file in sorted(there.keys() | sums.keys()):
        if file not in there:
            found.append(f"{file} is in {SUMS}, and not there")
        elif not _is_of(file, entries):
            found.append(f"{file} has no entry in the manifest")
        elif file not in sums:
            found.append(f"{file} has no line in {SUMS}: no experiment recorded it")
        elif there[file] != sums[file]:
            found.append(f"{file} is not what was recorded: it was changed since")
    return found


def _is_of(file: str, recordings: Sequence[str]) -> bool:
    return any(file == one or file.startswith(f"{one}/") for one in recordings)


def write(folder: Path, results: Sequence[Result], entries: Sequence[dict[str, Any]]) -> None:
    """Put results and their entries into a folder; an older recording of that name is replaced.

    All of it is written beside first and then renamed: an error leaves the folder as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=folder) as scratch:
        beside, before = Path(scratch, "new"), Path(scratch, "old")
        for result in results:
            if result.is_folder:
                for name, content in result.content.items():
                    _write(beside / result.file / name, content)
            else:
                _write(beside / result.file, result.content)
        known = {one["file"]: one for one in [*read(folder), *entries]}  # in the order of old
        _write(beside / NAME, list(known.values()))
        new = tuple(result.file for result in results)
        sums = {file: sum_ for file, sum_ in read_sums(folder).items() if not _is_of(file, new)}
        sums |= {file: sum_ for one in new for file, sum_ in sums_of(beside, one).items()}
        _write_sums(beside, sums)
        for file in [*new, NAME, SUMS]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            if (folder / file).is_dir():  # unlike a file, a folder is not replaced by a rename
                shutil.move(folder / file, before / file)
            os.replace(beside / file, folder / file)


def adopt(folder: Path, other: Path) -> list[str]:
    """Take all recordings of another folder into this one, with their entries; returns their names.

    Raises CannotRecord where there is no such folder, or a recording is not as it was recorded.
    """
    if not other.is_dir():
        raise CannotRecord(f"--from {other}: there is no such folder")
    if wrong := doubts(other):
        raise CannotRecord(f"{other}: {'; '.join(wrong)}")
    new = read(other)
    if not new:
        raise CannotRecord(f"there are no recordings in {other}")
    names = [entry["file"] for entry in new]
    for name in names:
        if (folder / name).is_dir():  # its files may be other ones now
            shutil.rmtree(folder / name)
    for file in read_sums(other):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(other / file, folder / file)
    entries = {one["file"]: one for one in [*read(folder), *new]}
    _write(folder / NAME, list(entries.values()))
    sums = {file: sum_ for file, sum_ in read_sums(folder).items() if not _is_of(file, names)}
    _write_sums(folder, sums | read_sums(other))
    return names


def _write_sums(folder: Path, sums: Mapping[str, str]) -> None:
    lines = [f"{sum_}  {file}\n" for file, sum_ in sorted(sums.items())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _write(file: Path, content: Any) -> None:
    """Write a file as its suffix says. The same content gives the same bytes."""
    content = without_names(content)
    if file.suffix == ".json":
        data = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    elif file.name.endswith(".json.gz"):
        data = gzip.compress(json.dumps(content).encode(), mtime=0)
    elif file.name.endswith(".pickle.gz"):
        data = gzip.compress(pickle.dumps(content), mtime=0)
    elif not file.suffix:
        data = pickle.dumps(content)
    else:
        raise ValueError(f"{file.name}: a recording is .json, .json.gz, .pickle.gz or a pickle")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


if __name__ == "__main__":
    # Of what was recorded by a Lockstep that wrote no sums; with names: of these recordings anew.
    data = Path(__file__).parents[2] / "data"
    known = {file: sum_ for file, sum_ in read_sums(data).items() if not _is_of(file, sys.argv[1:])}
    for one in read(data):
        known = sums_of(data, one["file"]) | known
    _write_sums(data, known)
