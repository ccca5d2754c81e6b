"""A timeline as a still picture: for saved notebooks, for GitHub, and for those without a mouse."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.formatting import NANOSECONDS, cut, fitting
from ..base.style import HATCHES, ink
from ..figures.picture import Figure
from .scene import Column, Row, Scene, coverage, summary

_COLUMNS = 900  # of the picture, that a row's coverage is told by
_MOST_ROWS = 44
_FEW = 2000  # slices that are still drawn one by one
_HALF = 0.42  # of a row's height
_HIGH = 18  # pixels of it
# Patterns, by pixel.
_PATTERNS: dict[str, Callable[[Column, Column], Column]] = {
    "": lambda x, y: np.zeros(x.shape, bool),
    "/": lambda x, y: (x - y) % 8 < 3,
    "\\": lambda x, y: (x + y) % 8 < 3,
    "-": lambda x, y: y % 4 == 1,
    "|": lambda x, y: x % 4 == 1,
    ".": lambda x, y: (x % 4 == y % 4) & (x % 2 == 1),
    "x": lambda x, y: ((x + y) % 8 < 2) | ((x - y) % 8 < 2),
}


def picture(scene: Scene) -> Figure:
    """Draw all of a scene. Its bytes depend on the scene only.

    Where slices are narrower than a pixel, the height of a row's area is the share of the time
    that they cover. Call stacks are cut to fit; a line says what is left out.
    """
    rows, left_out = _rows(scene)
    one_by_one = scene.slices <= _FEW

    def draw(canvas: Any) -> None:
        axes = canvas.subplots()
        unit, size = fitting(scene.span / 2, NANOSECONDS)
        places = _places(rows)
        paper = axes.get_facecolor()
        for row, y in zip(rows, places, strict=True):
            draw_row = _boxes if one_by_one else _areas
            draw_row(axes, scene, row, y, size, paper)
            _names(axes, scene, row, y, size)
        axes.set_xlim(0, scene.span / size)
        axes.set_ylim(min(places) - 0.6, 0.6)
        axes.set_yticks(places, [_label(scene, rows, at) for at in range(len(rows))], fontsize=8)
        for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_weight("bold" if row.is_band else "normal")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{unit} ({left_out})" if left_out else unit, fontsize=9)
        axes.spines[["top", "right", "left"]].set_visible(False)
        if scene.title:
            axes.set_title(_plain(scene.title), loc="left", fontsize=10, weight="bold")
        _path(axes, scene, rows, places, size)
        _legend(canvas, scene, paper)

    high = 1.1 + 0.2 * (len(rows) + sum(one.lane == "" for one in rows) * 0.3)
    if len(rows) <= 14:
        high = 1.1 + 0.3 * len(rows)
    return Figure(draw, alt=summary(scene), stamp=scene.stamp, size=(9.0, high), sharpness=2)


def _rows(scene: Scene) -> tuple[list[Row], str]:
    """The rows that have room, and what is said of the others."""
    ordered = sorted(scene.rows, key=lambda row: (row.rank, row.part))  # pairs side by side
    heads = {(row.rank, row.part): row for row in reversed(ordered)}  # each rank's first
    levels = [[row for row in ordered if row.level < depth] for depth in (64, 8, 4, 2, 1)]
    flat = levels[-1]
    loud = [row for row in flat if not row.is_quiet or row in heads.values()]
    work = [row for row in loud if row.on_device or row in heads.values()]
    choices = [*levels, loud, work, list(reversed(heads.values()))]
    if len(scene.parts) > 1:  # what is compared is seen at once
        choices = choices[-2:]
    rows = next((rows for rows in choices if len(rows) <= _MOST_ROWS), choices[-1])
    shown = rows[:_MOST_ROWS]
    more = len(scene.rows) - len(shown)
    return shown, f"{more} more rows (deeper calls, further lanes) are not drawn" if more else ""


def _places(rows: list[Row]) -> list[float]:
    """Downwards, with some room between ranks, and less between before and after."""
    places = [0.0]
    for above, row in pairwise(rows):
        gap = 0.5 if row.rank != above.rank else 0.15 if row.part != above.part else 0.0
        places.append(places[-1] - 1 - gap)
    return places


def _label(scene: Scene, rows: list[Row], at: int) -> str:
    row = rows[at]
    if row.level:
        return ""
    part = scene.parts[row.part].label
    rank = f"{part} rank {row.rank}".strip()
    if row.is_band:
        return _plain(rank)
    lane = cut(row.lane, 28)
    above = rows[at - 1] if at else None
    is_first = above is None or (above.part, above.rank) != (row.part, row.rank)
    return _plain(f"{rank} · {lane}" if is_first else lane)


def _plain(text: str) -> str:
    """Text of a trace is no formula, and control characters have no shape."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")


def _boxes(axes: Any, scene: Scene, row: Row, y: float, size: float, paper: Any) -> None:
    looks = scene.looks
    piece = slice(row.first, row.last)
    pixel = scene.span / _COLUMNS
    for kind in np.unique(scene.kind[piece]).tolist():
        these = np.flatnonzero(scene.kind[piece] == kind) + row.first
        # The line around it, in which the hatch is drawn, too, would hide a narrow one.
        is_wide = scene.duration[these] > 4 * pixel
        for rows, hatch, line in ((these[is_wide], HATCHES, 0.5), (these[~is_wide], {}, 0.0)):
            starts = scene.start[rows] / size
            lengths = np.maximum(scene.duration[rows], pixel) / size  # or nothing would be seen
            axes.broken_barh(
                np.stack((starts, lengths), axis=1),
                (y - _HALF, 2 * _HALF),
                facecolor=looks[kind].colour,
                edgecolor=paper,
                hatch=hatch.get(looks[kind].pattern),
                linewidth=line,
            )


def _areas(axes: Any, scene: Scene, row: Row, y: float, size: float, paper: Any) -> None:
    """An image: a shape with a thousand steps a row would take seconds."""
    from matplotlib.colors import to_rgb

    looks = scene.looks
    edges = np.linspace(0, scene.span, _COLUMNS + 1).astype(np.int64)
    widths = np.diff(edges)
    image = np.zeros((_HIGH, _COLUMNS, 4), np.float32)
    height, x = np.indices((_HIGH, _COLUMNS))  # of the bottom row 0
    paper = np.array(to_rgb(paper))
    covers = coverage(scene, row, edges)
    base = {kind: np.array(to_rgb(looks[kind].colour)) for kind in covers}
    # Faintly: something is here. To its height: how much of the pixel's time.
    most = np.argmax(np.stack(list(covers.values())), axis=0)
    colours = np.stack(list(base.values()))[most]
    some = sum(covers.values()) > 0
    image[:, some, :3] = 0.25 * colours[some] + 0.75 * paper
    image[:, some, 3] = 1
    below = np.zeros(_COLUMNS, np.int64)
    done = np.zeros(_COLUMNS)
    for kind, times in covers.items():
        done += times / np.maximum(widths, 1)
        above = np.where(times > 0, np.maximum(np.round(done * _HIGH), 1), below).astype(np.int64)
        fill = (height >= below) & (height < above)
        image[fill, :3] = base[kind]
        marked = fill & _PATTERNS[looks[kind].pattern](x, height)
        image[marked, :3] = 0.55 * base[kind] + 0.45 * paper
        below = np.maximum(above, below)
    axes.imshow(
        image,
        origin="lower",
        extent=(0, scene.span / size, y - _HALF, y + _HALF),
        aspect="auto",
        interpolation="nearest",
    )


def _names(axes: Any, scene: Scene, row: Row, y: float, size: float) -> None:
    """Into the slices that are wide enough."""
    looks = scene.looks
    piece = slice(row.first, row.last)
    letter = scene.span / 130  # about the width of one
    for at in np.flatnonzero(scene.duration[piece] > 4 * letter)[:60] + row.first:
        kind = int(scene.kind[at])
        if row.is_band:
            continue
        room = int(scene.duration[at] / letter) - 1
        name = scene.operation(at) or _short(scene.names[scene.name[at]])
        axes.text(
            scene.start[at] / size + letter / size / 2,
            y,
            _plain(cut(name, room)),
            fontsize=7,
            va="center_baseline",
            color=ink(looks[kind].colour),
            clip_on=True,
            bbox={"facecolor": looks[kind].colour, "edgecolor": "none", "pad": 0.8}
            if looks[kind].pattern
            else None,
        )


def _path(axes: Any, scene: Scene, rows: list[Row], places: list[float], size: float) -> None:
    """Along the bottom of the rows that it is on, and from one to the next."""
    if not scene.path:
        return
    of_row = {(row.part, row.rank, row.lane): y for row, y in zip(rows, places, strict=True)}
    of_rank = {(row.part, row.rank): y for row, y in reversed([*zip(rows, places, strict=True)])}
    x: list[float] = []
    y: list[float] = []
    for start, end, at in scene.path:
        row = scene.rows[at]
        above = of_rank.get((row.part, row.rank), min(places))  # of a row that is not drawn
        place = of_row.get((row.part, row.rank, row.lane), above) - _HALF
        x += [start / size, end / size]
        y += [place, place]
    ink = axes.xaxis.label.get_color()
    axes.plot(x, y, color=axes.get_facecolor(), linewidth=3.5, solid_joinstyle="miter")
    axes.plot(x, y, color=ink, linewidth=1.6, solid_joinstyle="miter")


def _short(name: str) -> str:
    """A kernel's name without its template and arguments; other names as they are."""
    cut = min((at for at in (name.find("<"), name.find("(")) if at >= 0), default=-1)
    if cut < 4:
        return name
    head = name[:cut].removeprefix("void ")
    return head.rsplit("::", 1)[-1] or name


def _legend(canvas: Any, scene: Scene, paper: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    looks = scene.looks
    handles: list[Any] = [
        Patch(
            facecolor=looks[kind].colour,
            edgecolor=paper,
            linewidth=0,
            hatch=HATCHES.get(looks[kind].pattern),
            label=_plain(looks[kind].label),
        )
        for kind in scene.legend
    ]
    if scene.path:
        ink = canvas.axes[0].xaxis.label.get_color()
        handles.append(Line2D([], [], color=ink, linewidth=1.6, label="critical path"))
    canvas.legend(
        handles=handles,
        loc="outside upper left",
        ncols=5,
        fontsize=8,
        frameon=False,
        handlelength=2.4,
        handleheight=1.0,
    )
