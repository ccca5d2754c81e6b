"""Charts of curves: interactive where plotly is there, a picture and words everywhere else."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from ..base.formatting import in_one_line, printable, quantity
from ..base.machine import in_notebook
from ..base.provenance import Provenance, required
from .picture import PALETTE, Figure, caption

PLOTLY = "application/vnd.plotly.v1+json"
Point = Sequence[float]  # (x, y) or (x, y, low, high)
_CURVE = 40  # a line of more points is a curve: no markers, and a band for error bars
_COLUMNS = 3  # of a legend
_FEW_DECADES = 3  # on a logarithmic axis, for ticks between them
_LOGARITHMIC = {True: "xy", False: "", "x": "x", "y": "y"}
# Beside the colour, so that no line is told by it alone; each for matplotlib and for plotly.
_MARKERS = (
    *(("o", "circle"), ("s", "square"), ("^", "triangle-up"), ("D", "diamond")),
    *(("v", "triangle-down"), ("P", "cross"), ("X", "x"), ("*", "star")),
)
_MODEL = ("--", "dash")  # and no measurement
_DASHES = (
    ("-", "solid"),
    ("-.", "dashdot"),
    (":", "dot"),
    ((0, (8, 2, 1, 2, 1, 2)), "longdashdot"),
)
_UNITS = {"bytes": "B", "bytes/s": "B/s", "seconds": "s"}
# Plotly draws with the colours that it is told, on a paper of either theme: a grey that can be
# read on both. JupyterLab's theme then has the last word, by a style in the words' output.
_GREY, _FAINT = "#797979", "rgba(127,127,127,0.3)"
# The quotient of two lengths, which only new browsers divide.
_ENLARGED = "tan(atan2(var(--jp-code-font-size,13px),13px))"
_HEIGHT, _INCHES = 460, 7.0  # of plotly's chart in pixels, of the picture's width
_CHART = ".jp-OutputArea-child:has(+ .jp-OutputArea-child .lockstep-words)"
_STYLE = (
    f"<style>{_CHART} .main-svg text:not(.hoverlayer *)"
    "{fill:var(--jp-ui-font-color1)!important}"
    # While it is drawn anew, as after a change of the theme, what stands below must not move.
    f"{_CHART} .jp-RenderedPlotly{{min-height:{_HEIGHT}px;"
    # Plotly's letters are as large as it was told. Where JupyterLab's are enlarged, so is the whole
    # chart, and has less width to be drawn in (`flex` beside the cell's number, `width` below it).
    f"--by:{_ENLARGED};transform:scale(var(--by));transform-origin:0 0;"
    "flex:calc(1/var(--by)) 1 0;width:calc(100%/var(--by));"
    f"margin-bottom:calc({_HEIGHT}px*(var(--by) - 1))}}</style>"
)


class Chart:
    """Lines over an axis; draws itself in a notebook. See `chart`."""

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
            _Line.of(in_one_line(label), points, number, self._x, self._y)
            for number, (label, points) in enumerate(lines.items())
        ]
        if not self._lines:
            raise ValueError("a chart needs a line")
        for label, points in (models or {}).items():
            if label not in lines:
                raise ValueError(f"a model of {label!r}, but there is no such line")
            number = list(lines).index(label)
            name = in_one_line(f"{label}, model")
            self._lines.append(_Line.of(name, points, number, self._x, self._y, model=True))
        self.alt = printable(alt)
        first, *others = required(stamp, "the chart")
        self.stamp = Provenance(first.kind, "\n".join([first.source, *map(str, others)]))

    @cached_property
    def _picture(self) -> Figure:
        rows = len(self._lines) // _COLUMNS + str(self.stamp).count("\n")
        return Figure(self._draw, alt=self.alt, stamp=self.stamp, size=(_INCHES, 3.8 + 0.2 * rows))

    def __repr__(self) -> str:
        return f"chart: {self.alt}\n{self.stamp}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {**self._picture._repr_mimebundle_(), "text/plain": repr(self)}

    def _ipython_display_(self) -> None:
        if not in_notebook() or find_spec("plotly") is None:  # it has JupyterLab's extension
            raise NotImplementedError  # IPython then draws it as it draws all else
        from IPython.display import display

        # Two outputs. Whoever draws plotly shows no other form of the first one, whoever cannot
        # shows the picture; the words stand below for all. The PNG comes with the words: where it
        # comes with plotly's form, JupyterLab's extension shows it instead of the chart.
        picture = self._picture._repr_mimebundle_()
        still = picture["text/html"].replace(caption(self.alt)[1], "")
        display({PLOTLY: self.plotly(), "text/html": still, "text/plain": repr(self)}, raw=True)
        display({"text/html": self._words(), "image/png": picture["image/png"]}, raw=True)

    def _words(self) -> str:
        line, words = caption(self.alt)
        stamp = html.escape(str(self.stamp)).replace("\n", "<br>")
        return (
            f'{_STYLE}<figure class="lockstep-words" style="margin:0">{line}'
            f'<div style="font-size:85%">{stamp}</div>{words}</figure>'
        )

    def _values(self, axis: str) -> list[float]:
        """All that is drawn along an axis."""
        of = slice(0, 1) if axis == "x" else slice(1, None)
        return [value for line in self._lines for row in line.points for value in row[of]]

    # ── Plotly ───────────────────────────────────────────────────────────────────────────────

    def plotly(self) -> dict[str, Any]:
        """The interactive chart as plotly's JSON; `plotly.graph_objects.Figure(…)` takes it, too,
        without `config`. Its stamp stands below it, where it has room on a small screen, too; so
        the chart offers no picture of itself without one.
        """
        layout = {
            "template": {},
            "autosize": True,
            "height": _HEIGHT,
            "margin": {"l": 80, "r": 20, "t": 60, "b": 60},
            "font": {"color": _GREY, "size": 14},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(PALETTE),
            "hovermode": "closest",
            "hoverlabel": {"font": {"color": "#1a1a1a"}, "bgcolor": "#ffffff", "namelength": -1},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": _GREY, "activecolor": PALETTE[0]},
            "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            "xaxis": self._x.plotly(self._values("x")),
            "yaxis": self._y.plotly(self._values("y")),
        }
        traces = [trace for line in self._lines for trace in line.plotly(self._x, self._y)]
        return {
            "data": traces,
            "layout": layout,
            "config": {
                "responsive": True,
                "displaylogo": False,
                "showSendToCloud": False,  # a button that uploads the chart
                "modeBarButtonsToRemove": ["select2d", "lasso2d", "toImage"],
            },
        }

    # ── Matplotlib ───────────────────────────────────────────────────────────────────────────

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


def chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: str,
    alt: str,
    stamp: Provenance | Sequence[Provenance],
    models: Mapping[str, Sequence[Point]] | None = None,
    log: bool | str = True,
) -> Chart:
    """Draw lines over an axis: interactive where possible, else as a picture, and always in words.

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
    return Chart(lines, x=x, y=y, alt=alt, stamp=stamp, models=models, log=log)


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

    def plotly(self, values: list[float]) -> dict[str, Any]:
        """The axis with these values on it."""
        drawn: dict[str, Any] = {
            "type": "log" if self.log else "linear",
            "gridcolor": _FAINT,
            "zeroline": False,
            "showline": True,
            "linecolor": _GREY,
            "ticks": "outside",
            "automargin": True,
        }
        if self.log or self.unit:
            ticks = (_ticks if self.log else _even_ticks)(min(values), max(values))
            drawn |= {"tickvals": ticks, "ticktext": [self.say(value) for value in ticks]}
        title = {"text": _harmless(self.label), "standoff": 10, "font": {"size": 14}}
        return {**drawn, "title": title}


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
class _Line:
    label: str
    points: list[tuple[float, ...]]
    spread: bool
    color: str
    marker: tuple[str, str]
    dash: tuple[Any, str]  # as matplotlib and as plotly has it
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
    ) -> _Line:
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
            len(rows[0]) == 4,
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

    def plotly(self, x_axis: _Axis, y_axis: _Axis) -> list[dict[str, Any]]:
        x, y, *spread = (list(column) for column in zip(*self.points, strict=True))
        said = [f"{x_axis.say(row[0])}: {y_axis.say(row[1])}" for row in self.points]
        if self.spread:
            ends = [f" ({y_axis.say(row[2])} to {y_axis.say(row[3])})" for row in self.points]
            said = [one + end for one, end in zip(said, ends, strict=True)]
        name = _harmless(self.label)
        line: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines" if self._is_curve else "lines+markers",
            "name": name,
            "legendgroup": name,
            "x": x,
            "y": y,
            "line": {"color": self.color, "dash": self.dash[1], "width": 2},
            "marker": {"color": self.color, "symbol": self.marker[1], "size": 7},
            "customdata": said,
            "hovertemplate": f"{name}<br>%{{customdata}}<extra></extra>",
        }
        if not spread:
            return [line]
        low, high = spread
        if not self._is_curve:
            line["error_y"] = {
                "type": "data",
                "array": [top - value for top, value in zip(high, y, strict=True)],
                "arrayminus": [value - bottom for bottom, value in zip(low, y, strict=True)],
                "color": self.color,
                "thickness": 1.5,
                "width": 3,
            }
            return [line]
        band = {
            "type": "scatter",
            "mode": "lines",
            "x": x + x[::-1],
            "y": high + low[::-1],
            "fill": "toself",
            "fillcolor": self.color,
            "opacity": 0.2,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
            "legendgroup": name,
        }
        return [band, line]

    def draw(self, axes: Any) -> None:
        x, y, *spread = zip(*self.points, strict=True)
        label = self.label.replace("$", r"\$").lstrip("_")  # matplotlib hides what begins with _
        look: dict[str, Any] = {"color": self.color, "linestyle": self.dash[0], "label": label}
        if not self._is_curve:
            look |= {"marker": self.marker[0], "markersize": 4.5}
        axes.plot(x, y, linewidth=1.5, **look)
        if spread and self._is_curve:
            axes.fill_between(x, *spread, color=self.color, alpha=0.2, linewidth=0)
        elif spread:
            low, high = spread
            below = [value - bottom for value, bottom in zip(y, low, strict=True)]
            above = [top - value for value, top in zip(y, high, strict=True)]
            error = {"yerr": [below, above], "fmt": "none", "ecolor": self.color, "capsize": 2}
            axes.errorbar(x, y, elinewidth=1, **error)


def _harmless(text: str) -> str:
    """Plotly reads some HTML, and TeX between dollars; this is text."""
    return html.escape(text, quote=False).replace("$", "&#36;").replace("%{", "%&#123;")
