"""The traffic between ranks: the imbalance of all-to-alls, and what leaves a host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.formatting import in_one_line, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..slices import NONE, Column, Slices, TraceError
from .collectives import Collectives
from .wording import Answer

ONE, SEVERAL, UNKNOWN = "one host", "several hosts", "hosts unknown"


@dataclass(frozen=True, slots=True)
class Reach:
    """The collectives of one operation whose groups lie on one host, or on several.

    where: "one host", "several hosts" or "hosts unknown". times: collectives. time, waited:
    nanoseconds summed over ranks. bytes: as `Collectives.bytes`, of those where it is known.
    bus_bandwidth: the median, GB/s, NaN where none is known.
    """

    where: str
    operation: str
    times: int
    time: int
    waited: int
    bytes: int
    bus_bandwidth: float


@dataclass(frozen=True)
class Exchange:
    """All all-to-alls of one group whose sizes are known. Bytes.

    matrix: [i, j] from rank ranks[i] to rank ranks[j]. times: collectives. waited: nanoseconds.
    sent, received: the largest of the ranks' sums over the mean; 1 is balance. worst: the same of
    the most uneven single collective, whichever of both is larger. own, host, others: what a rank
    kept, sent to ranks of its host, and to other hosts; host and others NONE where hosts are
    unknown. busiest: the rank that received most.
    """

    group: str
    ranks: tuple[int, ...]
    times: int
    waited: int
    matrix: NDArray[np.int64]
    sent: float
    received: float
    worst: float
    own: int
    host: int
    others: int
    busiest: int


@dataclass(frozen=True)
class Traffic(Answer):
    """Collectives by reach, the longest first, and all-to-alls by group."""

    reaches: tuple[Reach, ...]
    exchanges: tuple[Exchange, ...]
    notes: tuple[str, ...]
    stamp: Provenance

    def _tables(self) -> list[Table]:
        reaches = self._table(
            "collectives by the hosts of their groups · ms, summed over ranks",
            ["group lies on", "operation", "times", "time", "waited", "share", "MB", "bus GB/s"],
            [
                [
                    *(one.where, one.operation, f"{one.times:,}", milliseconds(one.time)),
                    *(milliseconds(one.waited), percent(one.waited / max(one.time, 1))),
                    f"{one.bytes / 1e6:,.3f}",
                    "" if np.isnan(one.bus_bandwidth) else f"{one.bus_bandwidth:,.1f}",
                ]
                for one in self.reaches
            ],
        )
        heads = ["group", "times", "MB", "kept", "to its host", "to other hosts"]
        exchanges = self._table(
            "all-to-alls · imbalance: the largest of the ranks over their mean",
            [*heads, "sent", "received", "worst one", "most goes to rank"],
            [
                [
                    *(in_one_line(one.group), f"{one.times:,}", f"{one.matrix.sum() / 1e6:,.3f}"),
                    *(_share(part, one) for part in (one.own, one.host, one.others)),
                    *(f"{uneven:.2f}" for uneven in (one.sent, one.received, one.worst)),
                    one.busiest,
                ]
                for one in self.exchanges
            ],
        )
        return [reaches, exchanges] if self.exchanges else [reaches]


def _share(part: int, one: Exchange) -> str:
    return "unknown" if part == NONE else percent(part / max(int(one.matrix.sum()), 1), 1)


def traffic(trace: Slices, met: Collectives, ranks_per_host: int | None = None) -> Traffic:
    """Count what collectives move within hosts and between them; reads all-to-alls' files again.

    ranks_per_host: ranks 0 … n−1 share the first host, and so on; without it hosts are those that
    the files name. Which bytes of an all-reduce leave a host depends on its algorithm, so there
    only the reach of groups is told; an all-to-all says by its splits who sends what to whom, and
    one without splits sends the same to all. Collectives that not all ranks have recorded are in
    none of these. Raises TraceError for ranks_per_host below 1.
    """
    if ranks_per_host is not None and ranks_per_host < 1:
        raise TraceError(f"ranks_per_host={ranks_per_host}: it must be 1 or more")
    hosts = {
        rank: (
            str(trace.about.get(rank, {}).get("host", ""))
            if ranks_per_host is None
            else f"host {rank // ranks_per_host}"
        )
        for rank in range(max(trace.ranks, default=0) + 1)
    }
    notes: list[str] = []
    reaches = _reaches(met, hosts)
    if any(one.where == UNKNOWN for one in reaches):
        notes.append("the files do not name the hosts of all ranks: give ranks_per_host=N")
    return Traffic(
        reaches, _exchanges(trace, met, hosts, notes), tuple(notes), met.trace.provenance
    )


def _reaches(met: Collectives, hosts: dict[int, str]) -> tuple[Reach, ...]:
    matches = met.matches
    where = []
    for known, first, last in zip(
        matches.known, matches.first[:-1], matches.first[1:], strict=True
    ):
        ranks = met.trace.known[int(known)].ranks or matches.rank[first:last].tolist()
        where.append(_where({hosts.get(rank, "") for rank in ranks}))
    time, waited = matches.total(matches.end - matches.start), matches.total(met.waited)
    operation = [met.trace.known[int(known)].operation for known in matches.known]
    keys = list(zip(where, operation, strict=True))
    found = []
    for key in dict.fromkeys(keys):
        mine = np.array([one == key for one in keys], bool)
        speed = met.bus_bandwidth[mine]
        found.append(
            Reach(
                *key,
                times=int(mine.sum()),
                time=int(time[mine].sum()),
                waited=int(waited[mine].sum()),
                bytes=int(met.bytes[mine & (met.bytes > 0)].sum()),
                bus_bandwidth=float(np.nanmedian(speed))
                if not np.isnan(speed).all()
                else float("nan"),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.time))


def _where(hosts: set[str]) -> str:
    if "" in hosts:
        return UNKNOWN
    return ONE if len(hosts) == 1 else SEVERAL


def _exchanges(
    trace: Slices, met: Collectives, hosts: dict[int, str], notes: list[str]
) -> tuple[Exchange, ...]:
    matches = met.matches
    operations = [met.trace.known[int(known)].operation for known in matches.known]
    which = [at for at, name in enumerate(operations) if name == "all_to_all"]
    entries = [range(int(matches.first[at]), int(matches.first[at + 1])) for at in which]
    rows = matches.row[[entry for some in entries for entry in some]]
    said = dict(met.trace.args_of(rows))
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, NDArray[np.int64]]]] = {}
    lost = 0
    for at, some in zip(which, entries, strict=True):
        known = met.trace.known[int(matches.known[at])]
        ranks = tuple(int(matches.rank[entry]) for entry in some)
        matrix = _matrix(met.trace, matches.row[list(some)], said)
        if matrix is None or (known.ranks and known.ranks != ranks):
            lost += 1
        else:
            groups.setdefault((known.group, ranks), []).append((at, matrix))
    if lost:
        notes.append(
            f"{lost:,} all-to-alls left out: their sizes, or some of their ranks, are missing"
        )
    waited = matches.total(met.waited)
    found = []
    for (group, ranks), every in groups.items():
        total = np.sum([matrix for _, matrix in every], axis=0)
        host_of = np.array([hosts.get(rank, "") for rank in ranks])
        own = int(np.trace(total))
        host = int(total[host_of[:, None] == host_of].sum()) - own if "" not in host_of else NONE
        found.append(
            Exchange(
                *(group, ranks, len(every), int(waited[[at for at, _ in every]].sum()), total),
                *(_uneven(total, 1), _uneven(total, 0)),
                worst=max(_uneven(one, axis) for _, one in every for axis in (0, 1)),
                own=own,
                host=host,
                others=NONE if host == NONE else int(total.sum()) - own - host,
                busiest=ranks[int(total.sum(axis=0).argmax())],
            )
        )
    return tuple(found)


def _matrix(
    trace: Slices, rows: Column, said: dict[int, dict[str, Any]]
) -> NDArray[np.int64] | None:
    """Bytes from each rank to each other, of one all-to-all; None where they are not known."""
    matrix = np.zeros((len(rows), len(rows)), np.int64)
    for at, row in enumerate(rows.tolist()):
        size = trace.known[int(trace.collective[row])].bytes_in
        text = str(said.get(row, {}).get("In split size", "[]"))
        splits = [int(one) for one in re.findall(r"\d+", text)]
        if size < 0 or "..." in text or len(splits) not in (0, len(rows)):
            return None
        if not sum(splits):
            splits = [1] * len(rows)
        shares = np.array(splits, object) * size // sum(splits)  # whole numbers of any size
        matrix[at] = shares.astype(np.int64)
    return matrix


def _uneven(matrix: NDArray[np.int64], axis: int) -> float:
    """The largest sum along an axis over the mean of them."""
    sums = matrix.sum(axis=axis)
    return float(sums.max() / sums.mean()) if sums.any() else 1.0
