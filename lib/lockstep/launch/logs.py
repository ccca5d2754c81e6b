"""Ranks' stdout and stderr in files, as torchrun's flags ask for them."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import LaunchError

_STREAMS = {"stdout": 1, "stderr": 2}  # as bits of what redirects and tee say


@dataclass(frozen=True)
class Logs:
    """Which streams of which ranks go into files; names and meanings are those of torchrun.

    log_dir: the folder, in which each run makes one of its own; without it, a temporary one that
    goes with the Job. redirects: streams that go into files only; tee: into files and under the
    cell. "0" none, "1" stdout, "2" stderr, "3" both, or by rank: "0:3,1:2". local_ranks_filter:
    the ranks of which anything is shown ("0,2"); "" for all.
    Raises LaunchError for anything else.
    """

    log_dir: str | os.PathLike[str] | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""

    def __post_init__(self) -> None:
        for name, said in (("redirects", self.redirects), ("tee", self.tee)):
            if not re.fullmatch(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", said):
                raise LaunchError(
                    f"{name} is 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), or that for some "
                    f"ranks, as in 0:3,1:2; not {said!r}"
                )
        if not re.fullmatch(r"(\d+(,\d+)*)?", self.local_ranks_filter):
            raise LaunchError(
                f"local_ranks_filter is a list of ranks, as in 0,2; not {self.local_ranks_filter!r}"
            )

    def hidden(self, nproc: int) -> frozenset[int]:
        """The ranks of which nothing is shown. Raises LaunchError for ranks that do not exist."""
        if not self.local_ranks_filter:
            return frozenset()
        ranks, shown = set(range(nproc)), set(map(int, self.local_ranks_filter.split(",")))
        if unknown := shown - ranks:
            raise LaunchError(
                f"local_ranks_filter names rank {min(unknown)}, but the ranks are 0 to {nproc - 1}"
            )
        return frozenset(ranks - shown)

    def keeps(self) -> bool:
        """Return whether anything at all goes into files."""
        return re.search(r"[1-3](,|$)", f"{self.redirects},{self.tee}") is not None

    def folder(self, base: str | os.PathLike[str]) -> Path:
        """A new folder for one run, below `base`. Raises LaunchError where there can be none."""
        try:
            os.makedirs(base, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="lockstep_", dir=base)).resolve()
        except OSError as error:
            raise LaunchError(f"log_dir: no folder can be created there: {error}") from None

    def streams(self, rank: int) -> list[tuple[str, bool]]:
        """The streams of a rank that go into files, each with whether it is shown as well."""
        redirects, tee = _bits_of_rank(self.redirects, rank), _bits_of_rank(self.tee, rank)
        return [
            (name, bool(tee & bit)) for name, bit in _STREAMS.items() if (redirects | tee) & bit
        ]


def _bits_of_rank(said: str, rank: int) -> int:
    if ":" not in said:
        return int(said)
    by_rank = dict(pair.split(":") for pair in said.split(","))
    return int(by_rank.get(str(rank), "0"))


class LogFiles:
    """The files of one run: ranks write to them, and what is to be shown is read from them."""

    def __init__(self, logs: Logs, folder: Path):
        self._logs = logs
        self._folder = folder
        self._shown: dict[int, list[int]] = {}  # by rank, descriptors of files that are read

    def open(self, rank: int, attempt: str) -> dict[str, int]:
        """Make the files of a rank that has come up; returns descriptors for it, by stream."""
        folder = self._folder / f"attempt_{attempt}" / str(rank)
        descriptors = {}
        for stream, shown in self._logs.streams(rank):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{stream}.log"
            descriptors[stream] = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            if shown:
                self._shown.setdefault(rank, []).append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return descriptors

    def read(self, rank: int, most: int) -> bytes:
        """Return what a rank has written since then and is to be shown, at most `most` bytes."""
        return b"".join(os.read(file, most) for file in self._shown.get(rank, ()))

    def close(self) -> None:
        for files in self._shown.values():
            for file in files:
                os.close(file)
        self._shown = {}
