"""Figures of the labs: stamped, described in words, legible in both themes."""

from __future__ import annotations

import base64
import html
import io
import re
import textwrap
from collections.abc import Callable
from typing import Any

from ..base.formatting import printable
from ..base.provenance import Provenance, required
from ..base.style import SERIES

# Of what has no colour of its own in `looks`. A figure must not say anything by colour alone: write
# it, too, or hatch it.
PALETTE = SERIES
_CAPTION = 120  # characters of a caption, at most: it is one line
_THEMES = {
    "light": {"ink": "#1a1a1a", "paper": "#ffffff"},
    "dark": {"ink": "#e6e6e6", "paper": "#111111"},
}
_DPI = 110
_SMALLEST = 0.7  # of its width: a page with less room scrolls it, and its letters stay legible
_CHARACTERS, _LINE = 14, 0.16  # of a stamp: how many an inch, and the inches of a line
# Outputs follow the theme of JupyterLab and of VS Code; elsewhere the light picture shows.
_DARK = (
    ':is([data-jp-theme-light="false"],[data-vscode-theme-kind="vscode-dark"],'
    '[data-vscode-theme-kind="vscode-high-contrast"])'
)
SWITCH = (
    f"<style>.lockstep-dark{{display:none}}{_DARK} .lockstep-dark{{display:inline}}"
    f"{_DARK} .lockstep-light{{display:none}}</style>"
)


class Figure:
    """A picture (PNG) for the light theme and the dark one, what it shows in words, and its stamp.

    draw: gets an empty matplotlib Figure and draws into it, with colours from `PALETTE`; texts and
    axes have the theme's colour already. alt: one or two sentences that say what is seen; they are
    what a screen reader, a text-only viewer and the comparison of stored outputs get. The first one
    stands above the picture as its caption; all of them unfold below it, and are in the PNG, too.
    stamp: `lockstep.live(job)`, `recorded(...).stamp` or `simulated(...)`; it stands in the
    picture. size: inches. sharpness: 2 for a picture with small letters, which then has twice the
    pixels. Raises ValueError where alt is empty.
    """

    def __init__(
        self,
        draw: Callable[[Any], None],
        *,
        alt: str,
        stamp: Provenance,
        size: tuple[float, float] = (7.0, 3.0),
        sharpness: int = 1,
    ):
        if not alt.strip():
            raise ValueError("a figure needs words for those who do not see it: alt=…")
        (self.stamp,) = required(stamp, "the figure")
        self.alt = printable(alt)
        self._width = round(size[0] * _DPI)
        self._pictures = {
            theme: _png(draw, theme, str(stamp), size, self.alt, sharpness) for theme in _THEMES
        }

    def __repr__(self) -> str:
        return f"figure: {self.alt}\n{self.stamp}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        images = "".join(
            f'<img class="lockstep-{theme}" alt="{html.escape(self.alt)}" '
            f'style="max-width:100%;min-width:{growing(round(_SMALLEST * self._width))};'
            f'width:{growing(self._width)}" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for theme, png in self._pictures.items()
        )
        above, below = caption(self.alt)
        scrolled = (
            '<div tabindex="0" role="group" aria-label="the picture" style="overflow-x:auto">'
            f"{images}</div>"
        )
        return {
            "text/plain": repr(self),
            "text/html": f'{SWITCH}<figure style="margin:0">{above}{scrolled}{below}</figure>',
            "image/png": base64.b64encode(self._pictures["light"]).decode(),
        }


figure = Figure  # as labs call it


def growing(pixels: int) -> str:
    """A length in CSS, which JupyterLab's letters take with them where they are enlarged."""
    return f"calc(var(--jp-code-font-size,13px)*{pixels}/13)"


def wrapped(stamp: str, width: float) -> str:
    """A stamp's text in lines that a picture of so many inches has room for."""
    room = int(width * _CHARACTERS)
    return "\n".join(
        line for each in stamp.split("\n") for line in textwrap.wrap(each, room) or [""]
    )


def caption(alt: str) -> tuple[str, str]:
    """Return what stands above and below a picture, as HTML: a line, and all its words, folded."""
    first = re.split(r"(?<=\.)\s", alt, maxsplit=1)[0]
    first = textwrap.shorten(first, _CAPTION, placeholder=" …")
    above = f"<figcaption>{html.escape(first)}</figcaption>"
    if first == alt:
        return above, ""
    return above, (
        '<details><summary style="cursor:pointer;font-size:85%">'
        f"The picture in words</summary>{html.escape(alt)}</details>"
    )


def _png(
    draw: Callable[[Any], None],
    theme: str,
    stamp: str,
    size: tuple[float, float],
    alt: str,
    sharpness: int,
) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.image import imsave

    ink, paper = _THEMES[theme]["ink"], _THEMES[theme]["paper"]
    width, height = size
    said = wrapped(stamp, width)
    height += _LINE * (said.count("\n") - stamp.count("\n"))
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {**matplotlib.rcParamsDefault}  # not what the learner has set
    style |= {"figure.facecolor": paper, "axes.facecolor": paper, "font.size": 10.0}
    style |= dict.fromkeys(inked, ink)
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        agg = FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.supxlabel(said, x=0.995, ha="right", fontsize=9)
        words = f"{alt} {stamp}"
        canvas.set_dpi(sharpness * _DPI)
        agg.draw()  # savefig would draw twice
        if sharpness > 1:
            return _indexed(agg.buffer_rgba(), words)
        file = io.BytesIO()
        # Without matplotlib's own metadata the picture is the same bytes at each execution.
        metadata: Any = {"Software": None, "Description": words}
        imsave(file, agg.buffer_rgba(), format="png", dpi=_DPI, metadata=metadata)
    return file.getvalue()


def _indexed(pixels: Any, words: str) -> bytes:
    """A PNG in 256 colours, which takes a third of the room: those of most pixels stay exact.

    pixels: (height, width, 4) bytes, red, green, blue, and 255.
    """
    import numpy as np
    from PIL import Image, PngImagePlugin

    whole = np.asarray(pixels).view("<u4")[..., 0] & 0xFFFFFF  # blue, green, red
    row = whole.ravel()
    begins = np.append(0, np.flatnonzero(row[1:] != row[:-1]) + 1)  # of pixels that are alike
    found, at = np.unique(row[begins], return_inverse=True)
    counts = np.bincount(at, np.diff(begins, append=row.size))
    parts = np.stack((found & 0xFF, found >> 8 & 0xFF, found >> 16), axis=1).astype(np.float32)
    names = parts.astype(np.int32) @ (1 << 16, 1 << 8, 1)
    kept = parts[np.lexsort((names, -counts))[:256]]
    distance = (kept**2).sum(axis=1) - 2 * parts @ kept.T  # but for what each row has in common
    index = np.zeros(1 << 24, np.uint8)  # by colour: as few are there, it takes little memory
    index[found] = distance.argmin(axis=1)
    shown = Image.fromarray(index[whole])
    shown.putpalette(kept.astype(np.uint8).tobytes())
    said = PngImagePlugin.PngInfo()
    said.add_text("Description", words)
    file = io.BytesIO()
    shown.save(file, "png", optimize=True, pnginfo=said)
    return file.getvalue()
