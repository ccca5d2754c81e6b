"""The profile of a cluster, said once: a TOML file in the user's folder of settings."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from ..errors import LaunchError
from .slurm import Slurm

_HEAD = '# What `on="slurm"` and `%%torchrun --on slurm` ask Slurm for; see lockstep.Slurm.\n'


def path() -> Path:
    return platformdirs.user_config_path("lockstep") / "cluster.toml"


def read() -> Slurm:
    """The cluster of the profile; without one, all is the cluster's own choice.

    Raises LaunchError for a profile that cannot be read.
    """
    file = path()
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Slurm()
    except (OSError, ValueError) as error:
        raise LaunchError(f"the profile {file} cannot be read: {error}") from None
    table = said.get("slurm")
    if not isinstance(table, dict) or len(said) > 1:
        raise LaunchError(f"the profile {file} must have one table, [slurm]")
    return _slurm(table, file)


def _slurm(table: Mapping[str, Any], file: Path) -> Slurm:
    known = [field.name for field in fields(Slurm)]
    for name in table:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise LaunchError(f"the profile {file} has {name!r}: {hint}")
    try:
        return msgspec.convert(table, Slurm)
    except msgspec.ValidationError as error:
        raise LaunchError(f"the profile {file}: {error}") from None


def write(cluster: Slurm) -> Path:
    """Write what differs from a cluster's own choice; returns the file. Raises OSError for none."""
    own = asdict(Slurm())
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in asdict(cluster).items()
        if value != own[name] or name == "nodes"
    ]
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([_HEAD + "[slurm]", *lines, ""]), encoding="utf-8")
    return file
