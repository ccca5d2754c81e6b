"""Every collective across ranks: who came last, what the others waited, what the transfer took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...base.formatting import counted, cut, in_one_line, microseconds, percent, printable, quantity
from ...figures.table import Table, table
from ...models.cost import bus_factor
from ..intervals import Intervals, covered, subtract, union
from ..joins import busy, own_time
from ..matching import Matches, awaited, match
from ..slices import DEVICE_KINDS, NONE, Column, Kind, Slices, TraceError
from .wording import Answer

# Those whose bus bandwidth is defined, see `lockstep.models.cost.bus_factor`.
_WITH_BUS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"),
    *("broadcast", "reduce", "send", "recv"),
)
# On a thread, what says what the program was doing; a step says nothing of that.
_HOST_KINDS = (
    Kind.OPERATOR,
    Kind.PYTHON,
    Kind.ANNOTATION,
    Kind.LAUNCH,
    Kind.WAIT,
    Kind.OTHER,
)
_TOP = 5
_MOST = 0.8  # of the waiting: who causes that much together is late
_CHANCE = 0.01  # that ranks which take turns at random would look as much as if some were late


@dataclass(frozen=True)
class Doing:
    """The work of a rank while others waited for it.

    where: "device", "host" (the device was idle, and this ran on a thread), or "nothing recorded".
    time: nanoseconds; what ran side by side counts twice.
    """

    where: str
    name: str
    time: int

    def __str__(self) -> str:
        name = in_one_line(cut(self.name, 48))
        what = {"device": name, "host": f"{name} (device idle)"}.get(self.where, self.where)
        return f"{what} {_time(self.time)}"


@dataclass(frozen=True)
class Straggler:
    """A rank that others waited for.

    times: collectives to which it came last, later than the clock's resolution. caused: what the
    others waited in these, nanoseconds summed over ranks. doing: what it was doing from when the
    first came until it came, the longest first.
    """

    rank: int
    times: int
    caused: int
    doing: tuple[Doing, ...]


@dataclass(frozen=True)
class CollectiveTimes:
    """One collective across ranks. Times in nanoseconds, by global rank.

    last: the rank that the others waited for, NONE if nobody waited longer than the resolution.
    waited: 0 where it is below the resolution. transfer: what was left when the last had come.
    bandwidths: bytes per nanosecond, that is GB/s; NaN if unknown.
    """

    operation: str
    group: str
    ranks: tuple[int, ...]
    number: int
    bytes: int
    start: Mapping[int, int]
    end: Mapping[int, int]
    waited: Mapping[int, int]
    last: int
    transfer: int
    algorithm_bandwidth: float
    bus_bandwidth: float


@dataclass(frozen=True)
class Collectives(Answer):
    """Every collective that all its ranks have recorded, in order of time.

    matches: who took part and when, see `Matches`; its entries have one value a collective and
    rank. waited: nanoseconds, one an entry, 0 where below `resolution`. One value a collective:
    last (global rank, or NONE), transfer (nanoseconds), bytes (NONE if unknown),
    algorithm_bandwidth and bus_bandwidth (GB/s, NaN if unknown).

    stragglers: ranks that were waited for, the costliest first. resolution: nanoseconds, of the
    clock. unmatched: reason → number of slices. `collectives[i]` is a
    CollectiveTimes; iterating gives them all.
    """

    matches: Matches
    waited: Column
    last: Column
    transfer: Column
    bytes: Column
    algorithm_bandwidth: Column
    bus_bandwidth: Column
    stragglers: tuple[Straggler, ...]
    resolution: int
    unmatched: Mapping[str, int]
    notes: tuple[str, ...]
    trace: Slices = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.matches)

    @property
    def duration(self) -> int:
        """Nanoseconds of communication, summed over collectives and ranks."""
        return int((self.matches.end - self.matches.start).sum())

    @property
    def waiting(self) -> int:
        """Nanoseconds of it that were waiting for others."""
        return int(self.waited.sum())

    @property
    def share(self) -> float:
        """Which part of the communication was waiting, 0 … 1; NaN if there is none."""
        return self.waiting / self.duration if self.duration else float("nan")

    def caused(self, since: int = 0) -> dict[int, int]:
        """Rank → nanoseconds that others waited for it, the costliest first.

        since: only in collectives to which the last rank came then or later (ns).
        """
        waited = self._waited_since(since)
        ranks = np.unique(self.last[waited > 0]).tolist()
        found = {rank: int(waited[self.last == rank].sum()) for rank in ranks}
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def late(self, since: int = 0) -> tuple[int, ...]:
        """The ranks for which the others waited, the costliest first; () if all take turns.

        They are the fewest ranks that caused `_MOST` of the waiting, with those that caused nearly
        as much. Several are late only if ranks that take turns at random would cause as much with
        a probability below `_CHANCE`, by Chernoff's bound for the relative entropy of what they
        caused and of their part in the groups.
        """
        waited, caused = self._waited_since(since), self.caused(since)
        total, late, before = sum(caused.values()), list[int](), math.inf
        for rank, time in caused.items():
            if sum(caused[one] for one in late) >= _MOST * total and time < before / 2:
                break
            late.append(rank)
            before = time
        if len(late) < 2:
            return tuple(late)
        share = sum(caused[one] for one in late) / total
        part = self.matches.total(np.isin(self.matches.rank, late)) / self.matches.counts
        fair = float(waited @ part) / total
        if fair >= share:
            return ()
        as_many = total**2 / float((waited.astype(float) ** 2).sum())
        ranks = len(np.unique(self.matches.rank))
        chance = math.comb(ranks, len(late)) * math.exp(-as_many * _entropy(share, fair))
        return tuple(late) if chance < _CHANCE else ()

    def _waited_since(self, since: int) -> Column:
        """Nanoseconds, one a collective."""
        begun = self.matches.highest(self.matches.start) >= since
        waited: Column = np.where(begun, self.matches.total(self.waited), 0)
        return waited

    def __getitem__(self, index: int) -> CollectiveTimes:
        index = range(len(self))[index]
        entries = range(int(self.matches.first[index]), int(self.matches.first[index + 1]))
        known = self.trace.known[int(self.matches.known[index])]
        rank = [int(self.matches.rank[entry]) for entry in entries]

        def by_rank(values: Column) -> dict[int, int]:
            return {r: int(values[entry]) for r, entry in zip(rank, entries, strict=True)}

        return CollectiveTimes(
            operation=known.operation,
            group=known.group,
            ranks=tuple(rank),
            number=int(self.matches.number[index]),
            bytes=int(self.bytes[index]),
            start=by_rank(self.matches.start),
            end=by_rank(self.matches.end),
            waited=by_rank(self.waited),
            last=int(self.last[index]),
            transfer=int(self.transfer[index]),
            algorithm_bandwidth=float(self.algorithm_bandwidth[index]),
            bus_bandwidth=float(self.bus_bandwidth[index]),
        )

    def __iter__(self) -> Iterator[CollectiveTimes]:
        return (self[index] for index in range(len(self)))

    def doing(self, index: int) -> tuple[Doing, ...]:
        """Return what the last rank was doing while the others waited in this collective."""
        index = range(len(self))[index]
        if self.last[index] == NONE:
            return ()
        late = _windows(self.matches, np.array([index]), self.last)
        return _doing(self.trace, int(self.last[index]), late)

    def worst(self, top: int = _TOP) -> list[int]:
        """Indices of the collectives in which most was waited, the worst first."""
        total = self.matches.total(self.waited)
        order = np.argsort(-total, kind="stable")[:top]
        return [int(index) for index in order if total[index] > 0]

    def __str__(self) -> str:
        return printable("\n".join([self._headline(), *self._notes()]))

    def _notes(self) -> list[str]:
        """Say who came last, which collectives cost most, and what was left out."""
        said = [
            f"rank {one.rank} came last {counted(one.times, 'time')} and cost the others "
            f"{_time(one.caused)}; meanwhile: {'; '.join(map(str, one.doing[:3]))}"
            for one in self.stragglers[:_TOP]
        ]
        for one_of in map(self.__getitem__, self.worst(3)):
            said.append(
                f"{_name(one_of)}: waited {_time(sum(one_of.waited.values()))} for rank "
                f"{one_of.last}, transfer {_time(one_of.transfer)}"
            )
        if self.unmatched:
            why = ", ".join(f"{count:,} ({reason})" for reason, count in self.unmatched.items())
            said.append(f"slices left out: {why}")
        return [*said, *self.notes]

    def _headline(self) -> str:
        if not len(self):
            return "no collective was recorded by all its ranks"
        below = f", none below {_time(self.resolution)} counted" if self.resolution else ""
        return (
            f"{counted(len(self), 'collective')}, {_time(self.duration)} summed over ranks, of "
            f"which {_time(self.waiting)} ({percent(self.share)}) waiting for others{below}"
        )

    def _tables(self) -> list[Table]:
        heads = ("operation", "times", "size", "share waited", "transfer", "bus bandwidth")
        stamp = self.trace.provenance
        return [table(self._headline(), heads, self._by_operation(), stamp=stamp)]

    def _by_operation(self) -> list[tuple[str, ...]]:
        operations = np.array([one.operation for one in self.trace.known] or [""])
        of = operations[self.matches.known]
        waited = self.matches.total(self.waited)
        spent = self.matches.total(self.matches.end - self.matches.start)
        rows: list[tuple[str, ...]] = []
        for operation in sorted(set(of.tolist())):
            here = of == operation
            known = here & (self.bytes >= 0)
            speed = self.bus_bandwidth[here & ~np.isnan(self.bus_bandwidth)]
            rows.append(
                (
                    _LABELS.get(operation, operation),
                    f"{np.count_nonzero(here):,}",
                    _middle(self.bytes[known], "B"),
                    percent(waited[here].sum() / max(1, spent[here].sum())),
                    _time(int(np.median(self.transfer[here]))),
                    _middle(1e9 * speed, "B/s"),
                )
            )
        return rows


_LABELS = {"send": "send to recv", "recv": "send to recv"}


def _entropy(share: float, fair: float) -> float:
    """The relative entropy (nats) of a coin that shows `share` against one that shows `fair`."""
    pairs = ((share, fair), (1 - share, 1 - fair))
    return sum(one * math.log(one / other) for one, other in pairs if one > 0)


def collectives(trace: Slices) -> Collectives:
    """Every collective across ranks, on one clock.

    In one that synchronises, a rank waited from its own start until the last rank's; what then
    follows, by the last rank's own duration, is the transfer. After a broadcast or scatter the
    others waited for the root, in a reduce or gather the root for the others, in a send and recv
    the two for each other, and never longer than the slice lasted; there the transfer goes from
    the last start to the last end. Waiting below the certificate's resolution counts as none.
    Collectives that not all recorded ranks of the group have are left out, and counted.

    Bus bandwidth after nccl-tests' PERFORMANCE.md; its size is that of the whole: all_gather's
    output, reduce_scatter's input.

    Raises TraceError for a measured trace of several ranks that is not aligned. A trace made by
    hand (nothing in `about`: a schedule, a call record) has one clock by construction.
    """
    if not trace.has_one_clock:
        raise TraceError(
            "the clocks of these ranks are not aligned, so it is unknown who waited for "
            "whom: call trace.align() first, and ask the trace that it returns"
        )
    resolution = trace.certificate.resolution if trace.certificate else 0
    matches = match(trace)
    unmatched = dict(matches.unmatched)
    last_start, first_end = matches.highest(matches.start), matches.lowest(matches.end)
    impossible = matches.synchronises & (last_start > first_end + resolution)
    counts = matches.counts
    for reason, which in (
        ("not all ranks have it", ~matches.complete),
        ("a rank ends before another starts", matches.complete & impossible),
    ):
        if which.any():
            unmatched[reason] = int(counts[which].sum())
    kept = np.flatnonzero(matches.complete & ~impossible)
    matches = matches.select(kept[np.argsort(last_start[kept], kind="stable")])

    operation = np.array([one.operation for one in trace.known] or [""])[matches.known]
    blamed, waits = awaited(trace, matches)
    waited = _waited(matches, blamed, waits, resolution)
    somebody = matches.total(waited) > 0
    last = np.where(somebody, matches.rank[blamed], NONE) if len(matches) else matches.rank[:0]
    own = matches.end[blamed] - matches.start[blamed]
    rest = matches.highest(matches.end) - matches.highest(matches.start)
    transfer = np.where(matches.synchronises, own, rest).clip(0)
    size = _size(trace, matches, operation)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where((size > 0) & (transfer > 0), size / transfer, np.nan)
    factor = np.full(len(matches), np.nan)
    for name in _WITH_BUS:
        if (which := operation == name).any():
            factor[which] = bus_factor(name, matches.size[which])
    return Collectives(
        matches=matches,
        waited=waited,
        last=last,
        transfer=transfer,
        bytes=size,
        algorithm_bandwidth=speed,
        bus_bandwidth=speed * factor,
        stragglers=_stragglers(trace, matches, waited, last),
        resolution=resolution,
        unmatched=unmatched,
        notes=matches.notes,
        trace=trace,
    )


def _waited(matches: Matches, blamed: Column, waits: Column, resolution: int) -> Column:
    """Nanoseconds, one an entry."""
    until = np.minimum(matches.each(matches.start[blamed]), matches.end)
    waited: Column = np.where(waits, until - matches.start, 0).clip(0)
    waited[waited < resolution] = 0
    return waited


def _size(trace: Slices, matches: Matches, operation: Column) -> Column:
    """Bytes of each collective, as nccl-tests count them; of uneven ones the largest rank's."""
    bytes_in = np.array([one.bytes_in for one in trace.known] or [NONE], np.int64)
    bytes_out = np.array([one.bytes_out for one in trace.known] or [NONE], np.int64)
    of_entry = trace.collective[matches.row]
    largest_in = matches.highest(bytes_in[of_entry])
    largest_out = matches.highest(bytes_out[of_entry])
    gathers = np.isin(operation, ("all_gather", "gather"))
    whole, part = (
        np.where(gathers, largest_out, largest_in),
        np.where(gathers, largest_in, largest_out),
    )
    # Where only the part of one rank is known, the whole is as many of it as there are ranks.
    splits = gathers | np.isin(operation, ("reduce_scatter", "scatter"))
    from_part = np.where(splits, part * matches.size, part)
    size: Column = np.where(whole != NONE, whole, np.where(part != NONE, from_part, NONE))
    return size


# ── Stragglers ───────────────────────────────────────────────────────────────────────────────


def _stragglers(
    trace: Slices, matches: Matches, waited: Column, last: Column
) -> tuple[Straggler, ...]:
    caused = matches.total(waited)
    found = []
    for rank in np.unique(last[last != NONE]).tolist():
        which = np.flatnonzero(last == rank)
        late = _windows(matches, which, last)
        total = int(caused[which].sum())
        found.append(Straggler(rank, len(which), total, _doing(trace, rank, late)))
    return tuple(sorted(found, key=lambda one: (-one.caused, one.rank)))


def _windows(matches: Matches, which: Column, last: Column) -> Intervals:
    """From when the first came to these collectives until the last had come."""
    of = matches.select(which)
    is_last = of.rank == of.each(last[which])
    return union(of.lowest(of.start), of.start[is_last])


def _doing(trace: Slices, rank: int, late: Intervals) -> tuple[Doing, ...]:
    """Return a rank's work in these times: on its device and, where that was idle, on its
    threads."""
    device = _within(trace, trace.where(*DEVICE_KINDS, rank=rank), late)
    found = _by_name(trace, "device", device, _time_in(trace, device, late))

    idle = subtract(late, busy(trace, device))
    host = _within(trace, trace.where(*_HOST_KINDS, rank=rank), idle)
    host = host[trace.stream[host] == NONE]
    found += _by_name(trace, "host", host, own_time(trace, host, idle))

    nothing = subtract(idle, busy(trace, host)).total
    if nothing:
        found.append(Doing("nothing recorded", "", nothing))
    return tuple(sorted(found, key=lambda one: (-one.time, one.where, one.name)))


def _time_in(trace: Slices, rows: Column, times: Intervals) -> Column:
    return covered(times, trace.start[rows], trace.start[rows] + trace.duration[rows])


def _within(trace: Slices, rows: Column, times: Intervals) -> Column:
    """Those of the rows that are in these times at all."""
    return rows[_time_in(trace, rows, times) > 0]


def _by_name(trace: Slices, where: str, rows: Column, time: Column) -> list[Doing]:
    total = np.zeros(len(trace.names), np.int64)
    np.add.at(total, trace.name[rows], time)
    return [Doing(where, trace.names[at], int(total[at])) for at in np.flatnonzero(total).tolist()]


# ── Words ────────────────────────────────────────────────────────────────────────────────────


def _time(nanoseconds: int) -> str:
    if nanoseconds < 1_000_000:
        return f"{microseconds(nanoseconds, 1)} µs"
    return f"{nanoseconds / 1e6:,.2f} ms"


def _middle(values: Column, unit: str) -> str:
    return quantity(float(np.median(values)), unit) if len(values) else "unknown"


def _name(one: CollectiveTimes) -> str:
    size = f" of {one.bytes / 1e6:,.3f} MB" if one.bytes > 0 else ""
    group = f" in {in_one_line(one.group)}" if one.group else ""
    operation = _LABELS.get(one.operation, one.operation)
    return f"{operation} #{one.number}{size}{group}"
