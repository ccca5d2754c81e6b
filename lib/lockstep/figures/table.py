"""Tables of the labs: stamped, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from ..stamps import Stamp
from ..words import in_one_line, printable


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
