"""A prediction and what came out, as marks on a line of numbers."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping

from ..base.formatting import in_one_line, number
from ..base.style import SERIES
from .chart import ticks
from .picture import SWITCH, growing

_WIDE, _HIGH, _EDGE = 330, 64, 26  # of a number line, in pixels
_REAL = SERIES[0]  # as a chart's first measurement; the learner's own has a line round it alone
_THEMES = {"light": ("#1a1a1a", "#ffffff"), "dark": ("#e6e6e6", "#111111")}  # ink and paper
_FAR = 20  # times apart, from which on the line is logarithmic


def number_line(
    marks: Mapping[str, float], unit: str = "", close: tuple[float, float] | None = None
) -> dict[str, str]:
    """Numbers on a line: by theme the source of an image; {} where there is nothing to see.

    marks: one or two numbers by name, the learner's first, above the line; the other below. close:
    what would have been near enough. It is logarithmic where two numbers are far apart.
    """
    if not all(map(math.isfinite, marks.values())):
        return {}
    return {theme: _drawn(marks, unit, close, *look) for theme, look in _THEMES.items()}


def images(sources: Mapping[str, str], alt: str) -> str:
    """HTML of the image that fits the theme, "" without one."""
    drawn = "".join(
        f'<img class="lockstep-{theme}" alt="{html.escape(alt)}" src="{source}" '
        f'style="max-width:100%;width:{growing(_WIDE)}">'
        for theme, source in sources.items()
    )
    return f"{SWITCH}<div>{drawn}</div>" if drawn else ""


def _drawn(
    marks: Mapping[str, float], unit: str, close: tuple[float, float] | None, ink: str, paper: str
) -> str:
    least, most = min(marks.values()), max(marks.values())
    logarithmic = least > 0 and most / least >= _FAR
    if logarithmic:
        low, high = least / 2, 2 * most
    else:
        low, high = 1.15 * min(least, 0.0), 1.15 * max(most, 0.0)
        if low == high:
            high = 1.0

    def x(value: float) -> float:
        share = (value - low) / (high - low)
        if logarithmic:
            share = math.log(max(value, low) / low) / math.log(high / low)
        place = _EDGE + (_WIDE - 2 * _EDGE) * share
        return round(min(max(place, _EDGE), _WIDE - _EDGE), 1)

    middle = _HIGH // 2
    parts = [f'<rect width="{_WIDE}" height="{_HIGH}" fill="{paper}"/>']
    if close:
        left, right = sorted(map(x, close))
        parts.append(
            f'<rect x="{left}" y="{middle - 5}" width="{round(right - left, 1)}" height="10" '
            f'fill="{_REAL}" opacity="0.25"/>'
        )
    parts.append(_line(_EDGE, middle, _WIDE - _EDGE, middle, ink, 1.5))
    parts += [
        _line(x(value), middle - 3, x(value), middle + 3, ink, 1)
        for value in ticks(low, high, logarithmic)
    ]
    for place, (name, value) in enumerate(marks.items()):
        at, above = x(value), place == 0
        tip, back = (middle - 2, middle - 11) if above else (middle + 2, middle + 11)
        filled, edge = (paper, ink) if above else (_REAL, _REAL)
        parts.append(
            f'<path d="M{at} {tip}L{at - 5} {back}H{at + 5}Z" fill="{filled}" stroke="{edge}"/>'
        )
        said = html.escape(in_one_line(f"{name} {number(value)} {unit}".rstrip()))
        half = 3.8 * len(said)  # of its width at most, in wide fonts
        text_x = round(min(max(at, half + 2), _WIDE - half - 2), 1)
        text_y = middle - 16 if above else middle + 25
        parts.append(
            f'<text x="{text_x}" y="{text_y}" text-anchor="middle" fill="{ink}">{said}</text>'
        )
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDE}" height="{_HIGH}" '
        f'viewBox="0 0 {_WIDE} {_HIGH}" font-family="system-ui,sans-serif" font-size="12">'
        f"{''.join(parts)}</svg>"
    )
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{colour}" stroke-width="{width}"/>'
