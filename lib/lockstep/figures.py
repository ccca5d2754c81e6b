"""Figures and tables of the labs: stamped, described in words, legible in both themes."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from typing import Any

from .stamps import Stamp
from .words import in_one_line, printable

# Okabe and Ito's palette, which colour-blind people can tell apart. A figure must not say anything
# by colour alone: write it, too, or hatch it.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#767676")
_THEMES = {
    "light": {"ink": "#1a1a1a", "paper": "#ffffff"},
    "dark": {"ink": "#e6e6e6", "paper": "#111111"},
}
# Outputs follow JupyterLab's theme; elsewhere the light picture shows.
_SWITCH = (
    "<style>.lockstep-dark{display:none}"
    '[data-jp-theme-light="false"] .lockstep-dark{display:inline}'
    '[data-jp-theme-light="false"] .lockstep-light{display:none}</style>'
)


class Figure:
    """A picture (PNG), what it shows in words, and its stamp. It draws itself in a notebook.

    The words are the picture's alternative text, and stand below it together with the stamp: they
    are what a screen reader, a text-only viewer and the comparison of stored outputs get.
    """

    def __init__(
        self,
        draw: Callable[[Any], None],
        *,
        alt: str,
        stamp: Stamp,
        size: tuple[float, float] = (7.0, 3.0),
    ):
        if not alt.strip():
            raise ValueError("a figure needs words for those who do not see it: alt=…")
        self.alt, self.stamp = printable(alt), stamp
        self._pictures = {theme: _png(draw, theme, str(stamp), size) for theme in _THEMES}

    def __repr__(self) -> str:
        return f"figure: {self.alt}\n{self.stamp}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        images = "".join(
            f'<img class="lockstep-{theme}" alt="{html.escape(self.alt)}" style="max-width:100%" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for theme, png in self._pictures.items()
        )
        words = f"<figcaption>{html.escape(self.alt)}</figcaption>"
        return {
            "text/plain": repr(self),
            "text/html": f'{_SWITCH}<figure style="margin:0">{images}{words}</figure>',
            "image/png": base64.b64encode(self._pictures["light"]).decode(),
        }


def figure(
    draw: Callable[[Any], None], *, alt: str, stamp: Stamp, size: tuple[float, float] = (7.0, 3.0)
) -> Figure:
    """Draw a figure, once for the light theme and once for the dark one.

    draw: gets an empty matplotlib Figure and draws into it, with colours from `PALETTE`; texts and
    axes have the theme's colour already. alt: one or two sentences that say what is seen. stamp:
    `lockstep.live(job)`, `recorded(...).stamp` or `simulated(...)`; it stands in the picture.
    size: inches. Raises ValueError where alt is empty.
    """
    return Figure(draw, alt=alt, stamp=stamp, size=size)


def _png(draw: Callable[[Any], None], theme: str, stamp: str, size: tuple[float, float]) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    ink, paper = _THEMES[theme]["ink"], _THEMES[theme]["paper"]
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {**matplotlib.rcParamsDefault}  # not what the learner has set
    style |= {"figure.facecolor": paper, "axes.facecolor": paper, "font.size": 10.0}
    style |= dict.fromkeys(inked, ink)
    with matplotlib.rc_context(style):
        canvas = Canvas(figsize=size, layout="constrained")
        FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.supxlabel(stamp, x=0.995, ha="right", fontsize=9)
        file = io.BytesIO()
        # Without its metadata the picture is the same bytes at each execution.
        canvas.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


class Table:
    """Rows of words and signs, with a caption and a stamp; draws itself as text and as HTML."""

    def __init__(
        self,
        caption: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        stamp: Stamp | Sequence[Stamp],
    ):
        self.caption, self.columns = printable(caption), [in_one_line(name) for name in columns]
        self.rows = [[in_one_line(cell) for cell in row] for row in rows]
        self.stamps = [stamp] if isinstance(stamp, Stamp) else list(stamp)
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(self.columns)} columns, but a row of {len(row)}: {row}")

    def __repr__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        text.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join([self.caption, *text, *map(str, self.stamps)])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        left = 'style="text-align:left"'
        head = "".join(f'<th scope="col" {left}>{html.escape(name)}</th>' for name in self.columns)
        body = "".join(
            "<tr>"
            f'<th scope="row" {left}>{html.escape(row[0])}</th>'
            + "".join(f"<td {left}>{html.escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        muted = 'style="color:var(--jp-ui-font-color2,#666);font-size:85%"'
        stamps = "".join(f"<div {muted}>{html.escape(str(stamp))}</div>" for stamp in self.stamps)
        return {
            "text/plain": repr(self),
            "text/html": f'<table><caption style="text-align:left">{html.escape(self.caption)}'
            f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{stamps}",
        }


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    stamp: Stamp | Sequence[Stamp],
) -> Table:
    """A table with its stamp, or stamps where it puts recorded beside live.

    The first column names the rows. Raises ValueError where a row has another length.
    """
    return Table(caption, columns, rows, stamp)
