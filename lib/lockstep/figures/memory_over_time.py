"""A GPU's memory over time as stacked areas by kind: what a page draws, and a picture.

States are numbered: state n is after n events of the allocator, and lasts until the next. Where
they are more than a page can show, they are put into groups, of which each is drawn as its state
with the most bytes; a page asks for fewer states to see more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.formatting import BYTES, binary, cut, fitting, in_one_line
from ..base.provenance import Provenance
from ..base.style import ERROR, HATCHES, Look
from .picture import Figure
from .table import Table

Column = NDArray[np.int64]
MOST_GROUPS = 1_500  # of states
MOST_DRAWN = 2_000  # allocations; the others are one band of each kind
_LONGEST = 160  # characters of a line of code
_STEPS = 2_000  # of a picture
_ROWS = 4  # lines of each kind in a table
INFERRED = "Kinds are inferred from call stacks and lifetimes."


@dataclass(frozen=True, eq=False)
class MemoryOverTime:
    """Columns of what is drawn.

    time: nanoseconds, of each state's start; its number where not `timed`. allocated, reserved: its
    bytes. peak: the state with the most. begin, end, size, kind, where: of allocations, in the
    order of their begins; the last two count `looks` and `lines`. failed: states in which memory
    ran out. said: sentences.
    """

    time: Column
    timed: bool
    allocated: Column
    reserved: Column
    peak: int
    begin: Column
    end: Column
    size: Column
    kind: Column
    where: Column
    looks: Sequence[Look]
    lines: Sequence[str]
    failed: Sequence[int]
    title: str
    said: Sequence[str]
    stamp: Provenance

    @cached_property
    def by_kind(self) -> Column:
        """Bytes of each kind in each state."""
        return self._by_kind(self.begin, self.end, self.size, self.kind, len(self.time))

    def _by_kind(
        self, first: Column, last: Column, size: Column, kind: Column, count: int
    ) -> Column:
        change = np.zeros((len(self.looks), count + 1), np.int64)
        np.add.at(change, (kind, first), size)
        np.add.at(change, (kind, last), -size)
        return np.cumsum(change, axis=1)[:, :count]

    def groups(self, first: int, last: int, most: int = MOST_GROUPS) -> tuple[Column, Column]:
        """Return where groups of the states [first, last) begin, and the fullest state of each."""
        count = min(last - first, most)
        edges = first + np.arange(count + 1, dtype=np.int64) * (last - first) // count
        full = [
            start + int(np.argmax(self.allocated[start:end]))
            for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
        return edges, np.array(full, np.int64)

    def scene(self, first: int, last: int) -> dict[str, Any]:
        """Return what a page draws of the states [first, last)."""
        edges, full = self.groups(first, last)
        begin = np.searchsorted(full, self.begin)
        end = np.searchsorted(full, self.end)
        shown = np.flatnonzero(begin < end)
        # The largest ones on the picture: bytes times width.
        area = self.size[shown].astype(np.float64) * (end - begin)[shown]
        drawn = shown[np.argsort(-area, kind="stable")[:MOST_DRAWN]]
        drawn = drawn[np.lexsort((drawn, self.kind[drawn]))]
        rest = self.by_kind[:, full] - self._by_kind(
            begin[drawn], end[drawn], self.size[drawn], self.kind[drawn], len(full)
        )
        used, where = np.unique(self.where[drawn], return_inverse=True)
        columns = (begin[drawn], end[drawn], self.size[drawn], self.kind[drawn], where)
        times = self.time[np.minimum(edges, len(self.time) - 1)]
        last_state = len(self.time) - 1
        spans = (self.time[np.minimum(one[drawn], last_state)] for one in (self.begin, self.end))
        steps = np.flatnonzero(np.diff(self.reserved[full], prepend=-1))
        return {
            "title": self.title,
            "stamp": str(self.stamp),
            "inferred": INFERRED,
            "timed": self.timed,
            "states": len(self.time),
            "span": int(self.time[-1]),
            "exact": len(full) == last - first,
            "first": first,
            "last": last,
            "edges": _deltas(edges),
            "times": _deltas(times),
            "full": _deltas(full),
            "allocations": [one.tolist() for one in columns],
            "began": [*map(np.ndarray.tolist, spans)],
            "open": [int(at) for at in np.flatnonzero(self.end[drawn] > last_state)],
            "lines": [cut(in_one_line(self.lines[one]), _LONGEST) for one in used.tolist()],
            "kinds": [
                {"label": in_one_line(look.label), "colour": look.colour, "pattern": look.pattern}
                for look in self.looks
            ],
            "rest": [[] if not one.any() else one.tolist() for one in rest],
            "others": len(shown) - len(drawn),
            "reserved": [steps.tolist(), self.reserved[full][steps].tolist()],
            "most": int(self.reserved.max()),
            "error": ERROR,
            "peak": {
                "state": self.peak,
                "time": int(self.time[self.peak]),
                "bytes": int(self.allocated[self.peak]),
            },
            "failed": [[int(at), int(self.time[at])] for at in self.failed[:20]],
            "said": " ".join(f"{one}." for one in self.said[:3]),
        }

    def held(self, state: int) -> list[tuple[Look, int, list[tuple[str, int, int]]]]:
        """(kind, its bytes, [(line, allocations, bytes)]), the most bytes first."""
        alive = np.flatnonzero((self.begin <= state) & (state < self.end))
        pairs, at = np.unique(
            np.stack((self.kind[alive], self.where[alive])), axis=1, return_inverse=True
        )
        count = np.bincount(at.ravel(), minlength=pairs.shape[1])
        size = np.zeros(pairs.shape[1], np.int64)
        np.add.at(size, at.ravel(), self.size[alive])
        found = []
        for kind, look in enumerate(self.looks):
            mine = np.flatnonzero(pairs[0] == kind)
            rows = [
                (self.lines[pairs[1, one]], int(count[one]), int(size[one]))
                for one in mine.tolist()
            ]
            if rows:
                rows.sort(key=lambda row: (-row[2], row[0]))
                found.append((look, sum(row[2] for row in rows), rows))
        return sorted(found, key=lambda one: -one[1])

    def table(self) -> Table:
        """Return a table of what is alive at the peak, by kind and line."""
        rows: list[tuple[str, str, str, str]] = []
        for look, _, lines in self.held(self.peak):
            shown = len(lines) if len(lines) == _ROWS + 1 else _ROWS  # one more fits, too
            more = lines[shown:]
            rows += [(look.label, line, f"{n:,}", binary(size)) for line, n, size in lines[:shown]]
            if more:
                count, size = sum(one[1] for one in more), sum(one[2] for one in more)
                rows.append((look.label, f"{len(more)} more lines", f"{count:,}", binary(size)))
        columns = ("kind", "alive at the peak", "allocations", "bytes")
        return Table("; ".join(self.said), columns, rows, self.stamp)

    def picture(self) -> Figure:
        """Stacked areas by kind, with reserved memory above and the peak marked."""
        edges, full = self.groups(0, len(self.time), _STEPS)
        name, unit = fitting(max(int(self.reserved.max()), int(self.allocated.max())), BYTES)
        at = np.repeat(edges, 2)[1:-1]  # a state is as wide as any other, however long it lasts
        values = np.repeat(self.by_kind[:, full] / unit, 2, axis=1)
        reserved = np.repeat(self.reserved[full] / unit, 2)

        def draw(canvas: Any) -> None:
            axes = canvas.subplots()
            ink, paper = axes.spines["left"].get_edgecolor(), axes.get_facecolor()
            base = np.zeros(len(at))
            for look, own in zip(self.looks, values, strict=True):
                axes.fill_between(
                    at,
                    base,
                    base + own,
                    facecolor=look.colour,
                    edgecolor=paper,
                    linewidth=0,
                    hatch=HATCHES.get(look.pattern),
                    label=_plain(look.label),
                )
                base = base + own
            axes.plot(at, base, color=ink, linewidth=0.6)
            axes.plot(at, reserved, color=ink, linestyle=":", linewidth=1, label="reserved")
            top = self.peak + 0.5, self.allocated[self.peak] / unit
            axes.plot(*top, "v", color=ink, markeredgecolor=paper, markersize=9, label="peak")
            for number, state in enumerate(self.failed):
                place = state + 0.5, self.reserved[state] / unit
                label = "" if number else "out of memory"
                axes.plot(*place, "x", color=ERROR, markersize=9, label=label)
            axes.set_xlabel("events of the allocator")
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
            canvas.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)

        held = ", ".join(f"{look.label} {binary(size)}" for look, size, _ in self.held(self.peak))
        alt = f"{self.title}. At the peak: {held}. {INFERRED} {'; '.join(self.said)}."
        return Figure(draw, alt=alt, stamp=self.stamp, size=(7.0, 3.6), sharpness=2)


def _deltas(values: Column) -> list[int]:
    return np.diff(values, prepend=0).tolist()


def _plain(text: str) -> str:
    """To matplotlib a text between dollars is a formula, and one after an underscore is none."""
    return in_one_line(text).replace("$", r"\$").removeprefix("_")
