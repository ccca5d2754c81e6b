"""The provenance that each figure carries: live, recorded, simulated or published by others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from .formatting import printable
from .paths import DATA


@dataclass(frozen=True)
class Provenance:
    """kind: "live", "recorded", "simulated" or "published". source: on what machine, by which
    model, or by whom and where."""

    kind: str
    source: str

    def __post_init__(self) -> None:
        for name in ("kind", "source"):  # which may hold a folder's name
            object.__setattr__(self, name, printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.kind} · {self.source}"


def each(stamp: Provenance | Sequence[Provenance] | None) -> list[Provenance]:
    """One stamp or several as a list, in which no two are the same."""
    return [stamp] if isinstance(stamp, Provenance) else list(dict.fromkeys(stamp or ()))


def required(stamp: Provenance | Sequence[Provenance] | None, what: str) -> list[Provenance]:
    """As `each`; raises ValueError where there is none, naming what lacks it."""
    if not stamp:
        raise ValueError(
            f"{what} has no stamp: say where its figures come from, with "
            "stamp=lockstep.live(job), lockstep.recorded(file).stamp or "
            "lockstep.simulated(model)"
        )
    return each(stamp)


class Measured(Protocol):
    """Something that has its own stamp, such as a job."""

    @property
    def stamp(self) -> Provenance: ...


def live(job: Measured) -> Provenance:
    """Return the stamp of what was measured in a job, such as "live · 4 ranks · gloo · CPU"."""
    return job.stamp


def simulated(model: str) -> Provenance:
    """Return the stamp of what a model computed; `model` names it."""
    return Provenance("simulated", model)


@dataclass(frozen=True)
class Recording:
    """A recording made elsewhere: a file, or a folder of traces, and the stamp for figures."""

    path: Path
    stamp: Provenance

    @cached_property
    def content(self) -> Any:
        """The content of the JSON file."""
        return json.loads(self.path.read_text(encoding="utf-8"))


def recorded(file: str) -> Recording:
    """Open a recording of the course by its name in `data/manifest.json`.

    Its stamp says how many ranks were at work where the machine has another number of GPUs.
    Raises FileNotFoundError for an unknown name; the message lists the recordings.
    """
    manifest = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    for entry in manifest:
        if entry["file"] == file:
            gpus, ranks = sum(entry["hardware"]["gpus"].values()), entry.get("ranks")
            fewer = f"{ranks} ranks on " if gpus and ranks and ranks != gpus else ""
            said = [fewer + entry["machine"], f"PyTorch {entry['versions']['torch']}"]
            if gpus:
                versions = entry["versions"]
                said += [f"NCCL {versions['nccl']}"] if versions["nccl"] else []
                said += [f"driver {versions['driver'] or 'unknown'}"]
            if gpus > 1 and entry["conditions"] is None:
                said += ["NVLS unknown"]
            said += _conditions(entry["conditions"] or {})
            return Recording(
                DATA / file, Provenance("recorded", " · ".join([*said, entry["date"]]))
            )
    there = ", ".join(entry["file"] for entry in manifest)
    raise FileNotFoundError(f"there is no recording {file!r} in {DATA}; there are: {there}")


# Variables that keep NCCL, NVSHMEM and PyTorch's symmetric memory from the multicast of NVLink.
_NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
_SAYS_NOTHING = {"CUDA_VISIBLE_DEVICES"}  # which of the machine's GPUs: the ranks are counted


def _conditions(given: Mapping[str, str]) -> list[str]:
    """The variables that a recording was made with, in words where several mean one thing."""
    rest = dict(given)
    said = []
    if _NO_MULTICAST.items() <= given.items():
        said = ["NVLS and NVLink multicast: off"]
        rest = {name: value for name, value in given.items() if name not in _NO_MULTICAST}
    elif given.get("NCCL_NVLS_ENABLE") == "0":
        said = ["NVLS: off"]
        del rest["NCCL_NVLS_ENABLE"]
    return [
        *(f"{name}: {value}" for name, value in rest.items() if name not in _SAYS_NOTHING),
        *said,
    ]


@dataclass(frozen=True)
class Publication:
    """Figures that others measured and published; nobody of this course saw them come about.

    values: the figures. quote: a few words of the source that say so. stamp: for figures made of
    them.
    """

    authors: str
    year: int
    title: str
    section: str
    link: str
    quote: str
    values: dict[str, Any]

    @property
    def stamp(self) -> Provenance:
        return Provenance("published", f"{self.authors} {self.year}, {self.title}, {self.section}")

    def __str__(self) -> str:
        return f"“{self.quote}”\n{self.stamp}\n{self.link}"

    def __repr__(self) -> str:
        return str(self)


def published(name: str) -> Publication:
    """Open the notes on a publication in `data/published/` by its name: "megascale".

    Raises FileNotFoundError for an unknown name; the message lists the known ones.
    """
    files = {path.stem: path for path in (DATA / "published").glob("*.json")}
    if name not in files:
        known = ", ".join(sorted(files))
        raise FileNotFoundError(f"there is no publication {name!r}; there are: {known}")
    return Publication(**json.loads(files[name].read_text(encoding="utf-8")))
