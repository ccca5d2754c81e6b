"""Charts of curves: a widget while the kernel lives, and a picture and words everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.formatting import in_one_line, printable, quantity
from ..base.provenance import Provenance, required
from .picture import PALETTE, Figure
from .widget import Playable

Point = Sequence[float]  # (x, y) or (x, y, low, high)
Range = tuple[float, float]
_CURVE = 40  # a line of more points is a curve: no markers, and a band for error bars
_COLUMNS = 3  # of a legend
_FEW_DECADES = 3  # on a logarithmic axis, for ticks between them
_MOST_TICKS = 8  # of the widget
_ROOM = 0.04  # of the widget's axes beyond what is drawn
_LOGARITHMIC = {True: "xy", False: "", "x": "x", "y": "y"}
# Beside the colour, so that no line is told by it alone, as matplotlib calls them; dashes are
# lengths of ink and of gaps.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_MODEL = (3.7, 1.6)  # and no measurement
_DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6.4, 1.6, 1.0, 1.6),
    (1.0, 1.65),
    (8.0, 2.0, 1.0, 2.0, 1.0, 2.0),
)
_UNITS = {"bytes": "B", "bytes/s": "B/s", "seconds": "s"}


class Chart(Playable):
    """Lines over an axis: in a notebook points say their values, and a picture and words stay.

    lines: for each label its points: (x, y), or (x, y, low, high) where the value scatters. A line
    of more than 40 points is drawn as a curve, others with a marker at each point. x, y: what the
    axes show. A label that ends in "(bytes)", "(seconds)" or "(bytes/s)" gets ticks such as 1 MB,
    10 µs and 100 GB/s. alt: one or two sentences that say what is seen. stamp: as in
    `lockstep.figure`, or several where live stands beside recorded. models: by the label of a
    line, what a model says of it: dashes of its colour. log: both axes are logarithmic, none is
    (False), or one of them ("x", "y").

    Raises ValueError for a chart without words or lines, for points that cannot be drawn, and for a
    model of a line that is not there.
    """

    start = "sliders"

    def __init__(
        self,
        lines: Mapping[str, Sequence[Point]],
        *,
        x: str,
        y: str,
        alt: str,
        stamp: Provenance | Sequence[Provenance],
        models: Mapping[str, Sequence[Point]] | None = None,
        log: bool | str = True,
    ):
        if not alt.strip():
            raise ValueError("a chart needs words for those who do not see it: alt=…")
        if log not in _LOGARITHMIC:
            raise ValueError(f'log is True, False, "x" or "y", not {log!r}')
        logarithmic = _LOGARITHMIC[log]
        self._x = _Axis.of(x, log="x" in logarithmic)
        self._y = _Axis.of(y, log="y" in logarithmic)
        self._lines = [
            _Curve.of(in_one_line(label), points, number, self._x, self._y)
            for number, (label, points) in enumerate(lines.items())
        ]
        if not self._lines:
            raise ValueError("a chart needs a line")
        for label, points in (models or {}).items():
            if label not in lines:
                raise ValueError(f"a model of {label!r}, but there is no such line")
            number = list(lines).index(label)
            name = in_one_line(f"{label}, model")
            self._lines.append(_Curve.of(name, points, number, self._x, self._y, model=True))
        self.alt = printable(alt)
        first, *others = required(stamp, "the chart")
        self.stamp = Provenance(first.kind, "\n".join([first.source, *map(str, others)]))

    def __repr__(self) -> str:
        return f"chart: {self.alt}\n{self.stamp}"

    def still(self) -> dict[str, Any]:
        rows = len(self._lines) // _COLUMNS + str(self.stamp).count("\n")
        size = (7.0, 3.8 + 0.2 * rows)
        picture = Figure(self._draw, alt=self.alt, stamp=self.stamp, size=size)
        return {**picture._repr_mimebundle_(), "text/plain": repr(self)}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        nothing_to_turn = {"title": "", "sliders": [], "choices": [], "asked": {}}
        drawn = {"said": self.alt, "chart": self.packed()}
        return {**nothing_to_turn, "stamp": str(self.stamp), "drawn": [drawn]}

    def packed(
        self, x: Range | None = None, y: Range | None = None, mark: float | None = None
    ) -> dict[str, Any]:
        """Return what the page draws: places are shares of the axes.

        x, y: from where to where they reach, if not as far as the lines. mark: a place on the x
        axis.
        """
        along, up = self._x.scale(x or self._reach("x")), self._y.scale(y or self._reach("y"))
        return {
            "x": along.packed(),
            "y": up.packed(),
            "lines": [
                {**line.packed(along, up), "crossed": mark and line.crossed(mark, up)}
                for line in self._lines
            ],
            "mark": None if mark is None else along.place(mark),
        }

    def _values(self, axis: str) -> list[float]:
        """All that is drawn along an axis."""
        of = slice(0, 1) if axis == "x" else slice(1, None)
        return [value for line in self._lines for row in line.points for value in row[of]]

    def _reach(self, axis: str) -> Range:
        """An axis of the widget, with some room at its ends."""
        values, log = self._values(axis), (self._x if axis == "x" else self._y).log
        low, high = min(values), max(values)
        if log:
            room = (high / low) ** _ROOM if high > low else 2.0
            return low / room, high * room
        room = _ROOM * (high - low) or abs(high) or 1.0
        return low - room, high + room

    def _draw(self, canvas: Any) -> None:
        from matplotlib.ticker import FixedLocator

        axes = canvas.subplots()
        for line in self._lines:
            line.draw(axes)
        for axis, name in ((self._x, "x"), (self._y, "y")):
            if axis.log:
                getattr(axes, f"set_{name}scale")("log")
            getattr(axes, f"set_{name}label")(axis.label.replace("$", r"\$"))
            ticks = getattr(axes, f"{name}axis")
            if axis.log:
                values = self._values(name)
                ticks.set_major_locator(FixedLocator(_ticks(min(values), max(values))))
                ticks.set_minor_formatter(lambda *_: "")
            ticks.set_major_formatter(lambda value, _, axis=axis: axis.say(value))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        columns = min(len(self._lines), _COLUMNS)
        canvas.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=3)


@dataclass(frozen=True)
class _Axis:
    label: str
    unit: str
    log: bool

    @classmethod
    def of(cls, label: str, log: bool) -> _Axis:
        found = re.fullmatch(r"(.*?)\s*\(?\b(bytes|bytes/s|seconds)\)?", label, re.DOTALL)
        if not found:
            return cls(label, "", log)
        return cls(found[1] or found[2], _UNITS[found[2]], log)

    def say(self, value: float) -> str:
        """A value with its unit: 1 kB, 16.8 µs, 340 GB/s."""
        if not self.unit:
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        return quantity(value, self.unit)

    def scale(self, reach: Range) -> _Scale:
        return _Scale(self, *reach)


@dataclass(frozen=True)
class _Scale:
    """An axis of the widget, from `low` to `high`."""

    axis: _Axis
    low: float
    high: float

    def place(self, value: float) -> float:
        """A share of the axis's length."""
        if self.axis.log:
            return round(math.log(value / self.low) / math.log(self.high / self.low), 5)
        return round((value - self.low) / (self.high - self.low), 5)

    def packed(self) -> dict[str, Any]:
        shown = ticks(self.low, self.high, self.axis.log)
        shown = shown[:: 1 + (len(shown) - 1) // _MOST_TICKS]
        said = [(self.place(one), self.axis.say(one)) for one in shown]
        return {"label": in_one_line(self.axis.label), "ticks": said}


def ticks(low: float, high: float, log: bool) -> list[float]:
    """Return the ticks of an axis from `low` to `high`."""
    return [one for one in (_ticks if log else _even_ticks)(low, high) if low <= one <= high]


def _ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: 1, 10, 100, …; with 2 and 5 between where there is
    room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    between = (1, 2, 5) if math.log10(high / low) <= _FEW_DECADES else (1,)
    return [float(f"{one}e{decade}") for decade in decades for one in between]


def _even_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a linear axis: six to twelve multiples of 1, 2 or 5 times a power of
    ten."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = max(n * power for n in (1, 2, 5) if n * power <= span / 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


@dataclass(frozen=True)
class _Curve:
    label: str
    points: list[tuple[float, ...]]
    color: str
    marker: str
    dash: tuple[float, ...]
    model: bool  # of the line in its colour

    @classmethod
    def of(
        cls,
        label: str,
        points: Sequence[Point],
        number: int,
        x: _Axis,
        y: _Axis,
        model: bool = False,
    ) -> _Curve:
        rows = sorted((tuple(map(float, point)) for point in points), key=lambda row: row[0])
        if not rows:
            raise ValueError(f"the line {label!r} has no points")
        if {len(row) for row in rows} not in ({2}, {4}):
            raise ValueError(
                f"the points of {label!r} must all be (x, y), or all (x, y, low, high)"
            )
        for row in rows:
            for value, axis in zip(row, (x, y, y, y), strict=False):
                if not math.isfinite(value):
                    raise ValueError(f"the line {label!r} has a point that cannot be drawn: {row}")
                if axis.log and value <= 0:
                    raise ValueError(
                        f"the line {label!r} has {value:g}, but a logarithmic axis shows only what "
                        f"is above 0: {row}. With log=False it can be drawn"
                    )
            if len(row) == 4 and not row[2] <= row[1] <= row[3]:
                raise ValueError(f"in {label!r}, a value is not between its low and high: {row}")
        # 32 lines differ in what is not colour, and one from the next of its colour in all of it.
        turn, place = divmod(number, len(PALETTE))
        return cls(
            label,
            rows,
            PALETTE[place],
            _MARKERS[(place + turn) % len(_MARKERS)],
            _MODEL
            if model
            else _DASHES[(turn if len(rows) <= _CURVE else place + 2 * turn) % len(_DASHES)],
            model,
        )

    @property
    def _is_curve(self) -> bool:
        return self.model or len(self.points) > _CURVE

    def packed(self, x: _Scale, y: _Scale) -> dict[str, Any]:
        """For the page: a point is (x, y, perhaps low and high), `said` what each says."""
        said = [f"{x.axis.say(row[0])}: {y.axis.say(row[1])}" for row in self.points]
        if len(self.points[0]) > 2:
            ends = [f" ({y.axis.say(low)} to {y.axis.say(high)})" for *_, low, high in self.points]
            said = [one + end for one, end in zip(said, ends, strict=True)]
        return {
            "label": self.label,
            "colour": self.color,
            "dash": self.dash,
            "marker": "" if self._is_curve else self.marker,
            "points": [[x.place(row[0]), *map(y.place, row[1:])] for row in self.points],
            "said": [] if self._is_curve else said,
        }

    def crossed(self, mark: float, y: _Scale) -> tuple[float, str] | None:
        """The place on the y axis of the point at `mark`, and its value in words, if there is
        one."""
        return next(
            ((y.place(row[1]), y.axis.say(row[1])) for row in self.points if row[0] == mark), None
        )

    def draw(self, axes: Any) -> None:
        x, y, *spread = zip(*self.points, strict=True)
        label = self.label.replace("$", r"\$").lstrip("_")  # matplotlib hides what begins with _
        dash = (0, self.dash) if self.dash else "-"
        look: dict[str, Any] = {"color": self.color, "linestyle": dash, "label": label}
        if not self._is_curve:
            look |= {"marker": self.marker, "markersize": 4.5}
        axes.plot(x, y, linewidth=1.5, **look)
        if spread and self._is_curve:
            axes.fill_between(x, *spread, color=self.color, alpha=0.2, linewidth=0)
        elif spread:
            low, high = spread
            below = [value - bottom for value, bottom in zip(y, low, strict=True)]
            above = [top - value for value, top in zip(y, high, strict=True)]
            error = {"yerr": [below, above], "fmt": "none", "ecolor": self.color, "capsize": 2}
            axes.errorbar(x, y, elinewidth=1, **error)


chart = Chart  # as labs call it
