"""Tables as text and as HTML: those of the labs, which are stamped, and those of the command."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from ..base.formatting import in_one_line, printable
from ..base.provenance import Provenance, each, required

# "1,024", "3.5 ms", "+12 %", "–", "unknown": what stands to the right.
_NUMBER = re.compile(r"[−+-]?[\d.,]+( ?[\w/%µ×]{1,5})?|–?|unknown")


class Table:
    """Rows of words and signs, with a caption; draws itself as text and as HTML.

    stamp: None only where nothing was measured, as in `lockstep doctor`. right: all columns but the
    first hold numbers, and end below each other; in HTML, numbers do so anyway. Labs call `table`.
    """

    def __init__(
        self,
        caption: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        stamp: Provenance | Sequence[Provenance] | None,
        *,
        right: bool = False,
    ):
        self._right = right
        self.caption, self.columns = printable(caption), [in_one_line(name) for name in columns]
        self.rows = [[in_one_line(cell) for cell in row] for row in rows]
        self.stamps = each(stamp)
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{len(self.columns)} columns, but a row of {len(row)}: {row}")

    def __repr__(self) -> str:
        head, *rows = self.lines()
        rule = "  ".join("─" * width for width in self._widths())
        return "\n".join([self.caption, head, rule, *rows, *map(str, self.stamps)])

    def without_stamp(self) -> Table:
        """The same where another table that stands below it has the stamp of both."""
        return Table(self.caption, self.columns, self.rows, None, right=self._right)

    def lines(self) -> list[str]:
        """The names of the columns, and the rows, aligned: what a terminal lists."""
        return [
            "  ".join(
                cell.rjust(width) if self._right and at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(line, self._widths(), strict=True))
            ).rstrip()
            for line in (self.columns, *self.rows)
        ]

    def _widths(self) -> list[int]:
        return [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        left = 'style="text-align:left"'
        # Names stay in sight when the rest is scrolled, and leave the lines between rows in sight.
        # Where nothing is known of the paper, which must cover what is scrolled, `left` is no
        # length, and they do not stay.
        stays = "position:sticky;left:calc(var(--jp-border-width)*0);background-clip:padding-box"
        # Names of rows keep their words whole where there is room, and leave room for numbers.
        longest = max((len(row[0]) for row in self.rows), default=0)
        wide = f"min-width:min({longest + 1}ch,12em,30vw)"
        named = f'style="text-align:left;background:inherit;{stays};overflow-wrap:anywhere;{wide}"'
        number = 'style="text-align:right;font-variant-numeric:tabular-nums"'
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        looks = [
            number if at and (self._right or all(map(_NUMBER.fullmatch, cells))) else left
            for at, cells in enumerate(columns)
        ]
        paper = "background:var(--jp-layout-color0)"
        first = f'style="text-align:left;{paper};{stays}"'
        heads = [first, *looks[1:]][: len(looks)]  # a table may have no columns
        head = "".join(
            _header("col", look, name) for look, name in zip(heads, self.columns, strict=True)
        )
        body = "".join(
            "<tr>"
            + _header("row", named, row[0])
            + "".join(
                f"<td {look}>{html.escape(cell)}</td>"
                for look, cell in zip(looks[1:], row[1:], strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        small = 'style="font-size:85%"'
        stamps = "".join(f"<div {small}>{html.escape(str(stamp))}</div>" for stamp in self.stamps)
        return {
            "text/plain": repr(self),
            # What is wider than the page scrolls by itself, by keyboard, too. The caption does not.
            "text/html": f'<div style="font-size:var(--jp-ui-font-size1,13px)">'
            f"{html.escape(self.caption)}</div>"
            f'<div tabindex="0" role="group" style="overflow-x:auto" '
            f'aria-label="{html.escape(self.caption)}"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{stamps}",
        }


def _header(scope: str, look: str, name: str) -> str:
    """Return the HTML of a header cell; one without a name heads nothing."""
    return f'<th scope="{scope}" {look}>{html.escape(name)}</th>' if name else f"<td {look}></td>"


def table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    stamp: Provenance | Sequence[Provenance],
    right: bool = False,
) -> Table:
    """Return a table with its stamp, or several stamps where recorded stands beside live.

    The first column names the rows; right: the others hold numbers. Raises ValueError where a row
    has another length, or where there is no stamp.
    """
    return Table(caption, columns, rows, required(stamp, f"the table {caption!r}"), right=right)
