"""One clock for all ranks, and a certificate of how good it is.

Nobody can leave an all-reduce, an all-gather, a reduce-scatter, an all-to-all or a barrier before
the last rank has come, so its ends lie within microseconds of each other on all ranks, however far
its starts are apart. What the clocks say of these ends therefore tells how the clocks differ.

A rank's clock is taken to differ from the lowest rank's by an offset and, if that is significant,
by a constant drift. Medians of differences along a tree of ranks give a first answer that outliers
cannot move; least squares over all ranks and groups at once, without the collectives whose ends
disagree more than usual, give the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ...base.formatting import microseconds
from ..certificate import Certificate
from ..matching import Matches, match
from ..slices import DEVICE_KINDS, NONE, Column, Kind, Slices, TraceError

Trace = TypeVar("Trace", bound=Slices)
FEWEST = 5  # collectives that two ranks must share before one clock is compared with the other
_PLENTY = 20  # with so many the less certain kinds of evidence are not asked
_FEWEST_FOR_DRIFT = 8
# Nanoseconds. Ends of one collective that are further apart are not of one collective: on GPUs of
# one host they were measured to agree within 1,000 to 7,000, independent ones differ by millions.
_DISAGREE = 100_000
# An end that is late in the same way each time looks like an offset: no clock is known better.
_LATENESS_OF_GPUS = 7_000
_CLOCK_OF_A_HOST = 1_000  # profilers of several processes read one clock about that well
_LIKELY_DRIFT = 50e-6  # of two quartz clocks against each other
_ABSURD_DRIFT = 500e-6
# A step in a rank's ends that explains them so many times better than a drift is a jump.
_JUMP = 2 * _LATENESS_OF_GPUS
_JUMP_FITS = 4
_AGREEING = 0.8  # share of collectives whose ends must agree
_VIOLATING = 0.05  # share of those that may violate causality by more than lateness explains


class Misaligned(TraceError):
    """No common clock can be had from this trace: says why, and what to record instead."""


def align(trace: Trace) -> Trace:
    """The same trace on one clock, that of the lowest rank, with a certificate.

    Starts move (by an offset, and by a drift where there is one); durations stay as they were
    measured, exactly. So under drift a slice's end is off by drift × duration: 0.5 µs for 10 ms at
    50 ppm. Ranks of one host whose communication runs on threads, with gloo, have one clock
    already: nothing moves there, and the certificate says so. A trace of one rank has one clock,
    too. An aligned trace is returned as it is.

    Raises Misaligned where ranks share fewer than `FEWEST` synchronising collectives, where too
    many of their ends disagree, where clocks jump or drift absurdly, or causality is violated.
    """
    if trace.certificate is not None:
        return trace
    if len(trace.ranks) < 2:
        rank = trace.ranks[0] if trace.ranks else 0
        why = f"rank {rank} is the only one" if trace.ranks else "there are no ranks"
        alone = Certificate(rank, 0, 0, 0, {rank: 0}, {}, {}, 0, 0, why, trace.stamp)
        return trace.derive(certificate=alone)
    matches = match(trace)
    matches = matches.select(np.flatnonzero(matches.synchronises))
    if _one_host(trace):
        return trace.derive(certificate=_already_common(trace, matches))
    used = _best_evidence(matches, trace.ranks)
    clocks = _fit(used, trace.ranks)
    certificate = _certify(trace, used, clocks)
    start = trace.start.copy()
    for index, lane in enumerate(trace.lanes):
        rows = trace.rows_of(index)
        start[rows] -= clocks.ahead(trace.ranks.index(lane.rank), start[rows])
    return trace.derive({"start": start}, certificate=certificate)


@dataclass(frozen=True)
class _Clocks:
    """Each rank's clock against the first's: ahead by offset + drift × (time − at), own time.

    at: the middle of the rank's collectives (ns, its own clock: so offset and drift do not mix).
    offset: nanoseconds. drift: nanoseconds a nanosecond. covariance: of the two, 2 × 2 a rank.
    """

    at: Column
    offset: Column
    drift: Column
    covariance: Column

    def ahead(self, place: Column | int, time: Column) -> Column:
        """Nanoseconds (int64) by which the clocks of the ranks at `place` are ahead at `time`."""
        gained = np.rint(self.drift[place] * (time - self.at[place])) if self.drift.any() else 0
        return np.rint(self.offset[place]).astype(np.int64) + np.asarray(gained).astype(np.int64)


def _one_host(trace: Slices) -> bool:
    """Whether all ranks say that they ran on one host, and communicated from threads."""
    hosts = {trace.about.get(rank, {}).get("host") for rank in trace.ranks}
    rows = trace.where(Kind.COMMUNICATION)
    rows = rows if len(rows) else trace.where(*DEVICE_KINDS)
    return len(hosts) == 1 and None not in hosts and bool(np.all(trace.stream[rows] == NONE))


def _already_common(trace: Slices, matches: Matches) -> Certificate:
    # Gloo's ranks learn of the end when they are woken up, so their ends lie further apart than
    # those of GPUs. That is no error of the clock; but a wait that is shorter than what waking up
    # usually takes says nothing of the rank that came last.
    apart = matches.highest(matches.end) - matches.lowest(matches.end)
    gap = matches.highest(matches.start) - matches.lowest(matches.end)
    worst = int(np.percentile(gap, 95).clip(0)) if len(gap) else 0
    usual = int(np.median(apart)) if len(apart) else 0
    return Certificate(
        reference=trace.ranks[0],
        matches=len(matches),
        disagreeing=0,
        spread=int(np.percentile(apart, 95)) if len(apart) else 0,
        offsets=dict.fromkeys(trace.ranks, 0),
        drift={},
        at={},
        violations=int((gap > 0).sum()),
        resolution=max(usual, worst, _CLOCK_OF_A_HOST),
        evidence="same host clock",
        stamp=trace.stamp,
    )


# ── Which collectives to go by ───────────────────────────────────────────────────────────────


def _best_evidence(matches: Matches, ranks: tuple[int, ...]) -> Matches:
    """The matches to go by: the certain ones if they suffice, otherwise all.

    Less certain are those of a group that the trace does not name, and an all-to-all in which some
    rank moves less than others, because it may leave early.
    """
    place = np.array(ranks)
    certain = matches.select(np.flatnonzero(matches.even & ~matches.assumed))
    if _tree(certain, place, _PLENTY) is not None:
        return certain
    if _tree(matches, place, FEWEST) is not None:
        return matches
    parts = _parts(_links(matches, place), len(ranks), FEWEST)
    alone = " / ".join(_some([ranks[at] for at in part]) for part in parts[:4])
    raise Misaligned(
        f"the clocks of these ranks cannot be compared: {alone}"
        f"{' / …' if len(parts) > 4 else ''}. They share fewer than {FEWEST} matched collectives "
        "that synchronise (all_reduce, all_gather, reduce_scatter, all_to_all, barrier). Record "
        "all ranks over the same steps, at least five, with one such collective over all of them "
        "in each."
        + "".join(f" {count:,} slices: {why}." for why, count in matches.unmatched.items())
    )


def _some(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:6]))
    return f"{shown}, … ({len(ranks)} ranks)" if len(ranks) > 6 else shown


def _links(matches: Matches, ranks: Column) -> Mapping[tuple[int, int], Column]:
    """For neighbours in a group, (place, place) → indices of the former's entries, if any."""
    inner = np.ones(len(matches.rank), bool)
    inner[matches.first[1:] - 1] = False  # the last of each has no neighbour
    entry = np.flatnonzero(inner)
    place = np.searchsorted(ranks, matches.rank)
    pair = place[entry] * len(ranks) + place[entry + 1]
    order = np.argsort(pair, kind="stable")
    begin = np.flatnonzero(np.diff(pair[order], prepend=-1))
    pieces = np.split(entry[order], begin[1:]) if len(begin) else []
    keys = (divmod(int(pair[order[at]]), len(ranks)) for at in begin)
    return dict(zip(keys, pieces, strict=True))


def _parts(links: Mapping[tuple[int, int], Column], ranks: int, fewest: int) -> list[list[int]]:
    """The sets of ranks that links of at least `fewest` matches connect."""
    part = list(range(ranks))
    for (a, b), entries in links.items():
        if len(entries) >= fewest and part[a] != part[b]:
            old, new = part[b], part[a]
            part = [new if one == old else one for one in part]
    return [[at for at in range(ranks) if part[at] == one] for one in sorted(set(part))]


def _tree(matches: Matches, ranks: Column, fewest: int) -> list[tuple[int, int, Column]] | None:
    """(from, to, entries) from the first rank to all others, by links of at least `fewest` matches.

    Takes the links with most matches first. None where some rank is out of reach.
    """
    links = _links(matches, ranks)
    if len(_parts(links, len(ranks), fewest)) > 1:
        return None
    by_count = sorted(links.items(), key=lambda link: -len(link[1]))
    reached, tree = {0}, []
    while len(reached) < len(ranks):
        pair, entries = next(
            link for link in by_count if (link[0][0] in reached) != (link[0][1] in reached)
        )
        a, b = pair if pair[0] in reached else pair[::-1]
        reached.add(b)
        tree.append((a, b, entries))
    return tree


# ── Fitting ──────────────────────────────────────────────────────────────────────────────────


def _fit(matches: Matches, ranks: tuple[int, ...]) -> _Clocks:
    """Offset and drift of each rank, the first being the reference."""
    place = np.searchsorted(np.array(ranks), matches.rank)
    own = [matches.end[place == rank] for rank in range(len(ranks))]
    at = np.array([(int(ends.min()) + int(ends.max())) // 2 for ends in own])
    time = (matches.end - at[place]).astype(np.float64)
    scale = max(1.0, float(np.abs(time).max()))
    time /= scale  # in −1 … 1, so that the equations are well-conditioned

    offset, drift = np.zeros(len(ranks)), np.zeros(len(ranks))
    for a, b, entries in _tree(matches, np.array(ranks), FEWEST) or ():
        later = (matches.end[entries + 1] - matches.end[entries]).astype(np.float64)
        sign = 1 if place[entries[0]] == a else -1
        by, slope = _line(time[entries], sign * later)
        offset[b], drift[b] = offset[a] + by, drift[a] + slope

    seen = np.bincount(place, minlength=len(ranks))
    others = np.arange(len(ranks)) > 0
    drifting = others & (seen >= _FEWEST_FOR_DRIFT)
    drift[~drifting] = 0
    likely = _LIKELY_DRIFT * scale
    offset, drift, covariance = _refine(matches, place, time, offset, drift, drifting, likely)
    # A drift counts if it is certain, and comes to more than a microsecond from end to end. The
    # clocks stay as unsure as the drifts that do not count.
    certain = (np.abs(drift) > 3 * np.sqrt(covariance[:, 1, 1])) & (np.abs(drift) > 500)
    if np.any(drifting & ~certain):
        drift[~certain] = 0
        offset, drift, _ = _refine(matches, place, time, offset, drift, certain, likely)
    covariance = covariance / np.array([[1, scale], [scale, scale**2]])
    return _Clocks(at, offset, drift / scale, covariance)


def _line(time: Column, value: Column) -> tuple[float, float]:
    """Value at time 0 and slope: medians over stretches of time, and the median slope of these.

    After Theil (1950) and Sen (1968): up to 29 % of the stretches may be wrong.
    """
    if len(time) < _FEWEST_FOR_DRIFT:
        return float(np.median(value)), 0.0
    order = np.argsort(time, kind="stable")
    stretches = np.array_split(order, min(16, len(order) // 2))
    t = np.array([np.median(time[one]) for one in stretches])
    v = np.array([np.median(value[one]) for one in stretches])
    i, j = np.triu_indices(len(t), 1)
    apart = t[j] > t[i]
    slope = float(np.median((v[j] - v[i])[apart] / (t[j] - t[i])[apart])) if apart.any() else 0.0
    return float(np.median(value - slope * time)), slope


def _refine(
    matches: Matches,
    place: Column,
    time: Column,
    offset: Column,
    drift: Column,
    drifting: Column,
    likely: float,
) -> tuple[Column, Column, Column]:
    """Least squares over all ranks at once, without the collectives that disagree unusually.

    Unknown are also the true ends of the collectives: they fall out when each equation has its
    collective's mean subtracted. Of a few collectives within milliseconds any drift could be read;
    so drifts are drawn towards 0, as much as the measurement is weaker than what is likely.
    """
    ranks, ends = len(offset), matches.end - int(matches.end.min())
    covariance = np.zeros((ranks, 2, 2))
    free = np.flatnonzero(np.concatenate((np.arange(ranks) > 0, drifting)))
    for _ in range(3):
        left = ends - offset[place] - drift[place] * time
        apart = matches.highest(left) - matches.lowest(left)
        keep = apart <= 3 * np.median(apart) + 1_000
        kept = matches.each(keep)
        counts, p, t = matches.counts[keep], place[kept], time[kept]
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))
        residual = left[kept] - np.repeat(np.add.reduceat(left[kept], first) / counts, counts)
        both = np.concatenate((np.bincount(p, minlength=ranks), np.bincount(p, t, ranks)))
        square: Column = np.diag(np.concatenate((both[:ranks], np.bincount(p, t * t, ranks))))
        square[np.arange(ranks), np.arange(ranks) + ranks] = both[ranks:]
        square[np.arange(ranks) + ranks, np.arange(ranks)] = both[ranks:]
        square -= _of_means(p, t, first, counts, ranks)
        right: Column = np.concatenate(
            (np.bincount(p, residual, ranks), np.bincount(p, t * residual, ranks))
        )
        freedom = max(1, len(residual) - len(counts) - len(free))
        noise = float(residual @ residual) / freedom
        prior = noise / likely**2
        square[np.arange(ranks, 2 * ranks), np.arange(ranks, 2 * ranks)] += prior
        right[ranks:] -= prior * drift
        inverse = np.linalg.pinv(square[np.ix_(free, free)], hermitian=True)
        step = np.zeros(2 * ranks)
        step[free] = inverse @ right[free]
        offset, drift = offset + step[:ranks], drift + step[ranks:]
    full = np.zeros((2 * ranks, 2 * ranks))
    full[np.ix_(free, free)] = inverse * noise
    for i, rows in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        a, b = (np.arange(ranks) + ranks * side for side in rows)
        covariance[:, i // 2, i % 2] = full[a, b]
    return offset, drift, covariance


def _of_means(p: Column, t: Column, first: Column, counts: Column, ranks: int) -> Column:
    """Return what the normal equations lose when each collective's mean is subtracted."""
    total = np.zeros((2 * ranks, 2 * ranks))
    chunk = max(1, 4_000_000 // (2 * ranks))
    for low in range(0, len(counts), chunk):
        n = counts[low : low + chunk]
        entries = slice(int(first[low]), int(first[low] + n.sum()))
        row = np.repeat(np.arange(len(n)), n)
        sums = np.zeros((len(n), 2 * ranks))
        sums[row, p[entries]] = 1
        sums[row, p[entries] + ranks] = t[entries]
        sums /= np.sqrt(n)[:, None]
        total += sums.T @ sums
    return total


# ── Judging ──────────────────────────────────────────────────────────────────────────────────


def _certify(trace: Slices, used: Matches, clocks: _Clocks) -> Certificate:
    """Check the clocks against the matches, and say how good they are. Raises Misaligned."""
    ranks = np.array(trace.ranks)
    place = np.searchsorted(ranks, used.rank)
    end = used.end - clocks.ahead(place, used.end)
    start = used.start - clocks.ahead(place, used.start)
    apart = used.highest(end) - used.lowest(end)
    agree = apart <= _DISAGREE
    if agree.mean() < _AGREEING:
        raise Misaligned(
            f"the ends of {len(used):,} collectives do not agree on any clock: "
            f"{np.count_nonzero(~agree):,} end more than {_DISAGREE // 1000} µs apart, half "
            f"of all more than {microseconds(np.median(apart), 0)} µs. Are these files of one "
            "run, and each of the rank that it names?"
        )
    jump, rank, when = _jump(used, end, place, len(ranks))
    if abs(jump) > _JUMP:
        raise Misaligned(
            f"rank {ranks[rank]}'s clock jumps by {microseconds(abs(jump), 0)} µs, "
            f"{(when - int(used.end.min())) / 1e6:,.0f} ms after the first collective. Use "
            "the part before, or the part after."
        )
    fastest = int(np.argmax(np.abs(clocks.drift)))
    if abs(clocks.drift[fastest]) > _ABSURD_DRIFT:
        raise Misaligned(
            f"rank {ranks[fastest]}'s clock would gain {clocks.drift[fastest] * 1e6:,.0f} ppm on "
            f"rank {ranks[0]}'s, which no clock does. Are these files of one run?"
        )
    wander, rank = _wander(used, end, place, len(ranks))
    if wander > _DISAGREE:
        raise Misaligned(
            f"rank {ranks[rank]}'s clock jumps: for a while it is {microseconds(wander, 0)} "
            "µs off. Use a shorter part of the trace."
        )
    gap = used.highest(start) - used.lowest(end)  # > 0: somebody left before the last had come
    violations = int((gap > 0).sum())
    worst = int(gap[agree].max(initial=0))
    spread = int(np.percentile(apart[agree], 95))
    if np.count_nonzero(gap[agree] > _LATENESS_OF_GPUS) > _VIOLATING * agree.sum():
        raise Misaligned(
            f"in {violations:,} of {len(used):,} collectives a rank ends before the last one "
            f"starts, by up to {microseconds(worst, 1)} µs: they cannot be the same. Are these "
            "files of one run?"
        )
    unsure = max(_unsure(trace, clocks, index) for index in range(1, len(ranks)))
    return Certificate(
        reference=int(ranks[0]),
        matches=len(used),
        disagreeing=int((~agree).sum()),
        spread=spread,
        offsets={int(r): round(float(o)) for r, o in zip(ranks, clocks.offset, strict=True)},
        drift={int(r): float(d) * 1e6 for r, d in zip(ranks, clocks.drift, strict=True) if d},
        at=dict(zip(trace.ranks, clocks.at.tolist(), strict=True)),
        violations=violations,
        resolution=max(spread, worst, 2 * wander, unsure, _LATENESS_OF_GPUS),
        evidence=_evidence(used),
        stamp=trace.stamp,
    )


def _unsure(trace: Slices, clocks: _Clocks, place: int) -> int:
    """Nanoseconds, four standard deviations, by which a rank's clock may be off at its worst."""
    starts = trace.start[trace.where(rank=trace.ranks[place])]
    reach = np.array([1.0, float(np.abs(starts - clocks.at[place]).max())])
    return int(4 * np.sqrt(reach @ np.abs(clocks.covariance[place]) @ reach))


def _wander(matches: Matches, end: Column, place: Column, ranks: int) -> tuple[int, int]:
    """Return how far off (ns) a clock is at most over a stretch of time, and its rank's place."""
    middle = (matches.highest(end) + matches.lowest(end)) // 2
    off = end - matches.each(middle)
    worst, of = 0, 0
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(ranks + 1))
    for rank in range(ranks):
        entries = order[bounds[rank] : bounds[rank + 1]]
        entries = entries[np.argsort(end[entries], kind="stable")]
        for stretch in np.array_split(entries, max(1, min(20, len(entries) // _PLENTY))):
            away = abs(int(np.median(off[stretch]))) if len(stretch) else 0
            if away > worst:
                worst, of = away, rank
    return worst, of


def _jump(matches: Matches, end: Column, place: Column, ranks: int) -> tuple[int, int, int]:
    """(by how many ns, place of the rank, when) of the largest jump of a clock; 0 without one.

    end: on the fitted clocks, as the others of one collective need not be those of the next. A
    rank's ends minus the mean of the others' are a line over time, if clocks drift. Where a line
    with one step explains them `_JUMP_FITS` times better, the clock has jumped there. Stretches of
    time stand for their medians, so that single late ends do not count.
    """
    end = end - int(end.min())
    others = matches.each(matches.total(end)) - end
    ahead = end - others / (matches.each(matches.counts) - 1)
    found = (0, 0, 0)
    for rank in range(ranks):
        mine = np.flatnonzero(place == rank)
        mine = mine[np.argsort(matches.end[mine], kind="stable")]
        if len(mine) < 2 * _FEWEST_FOR_DRIFT:
            continue
        stretches = np.array_split(mine, min(64, len(mine) // 2))
        time = np.array([np.median(matches.end[one] - matches.end[mine[0]]) for one in stretches])
        off = np.array([np.median(ahead[one]) for one in stretches])
        time, off = time / max(1.0, time[-1]), off - off.mean()
        line = np.stack((np.ones_like(time), time), axis=1)
        plain = _misfit(line, off)[0]
        for at in range(3, len(time) - 2):
            step = np.concatenate((line, (np.arange(len(time)) >= at)[:, None]), axis=1)
            left, size = _misfit(step, off)
            if plain > _JUMP_FITS * left and abs(size) > abs(found[0]):
                found = (int(size), rank, int(matches.end[stretches[at][0]]))
    return found


def _misfit(columns: Column, values: Column) -> tuple[float, float]:
    """Return the residual of least squares (summed squares) and the last column's coefficient."""
    fitted, *_ = np.linalg.lstsq(columns, values, rcond=None)
    left = values - columns @ fitted
    return float(left @ left) + 1.0, float(fitted[-1])


def _evidence(used: Matches) -> str:
    what = "ends of synchronising collectives"
    if used.assumed.any():
        what += ", their group assumed to be that of all ranks"
    notes = [note for note in used.notes if "recording begins" in note]
    return "; ".join([what, *notes])
