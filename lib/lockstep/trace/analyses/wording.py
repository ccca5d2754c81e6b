"""Words and drawings that several answers share."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from ...base.formatting import in_one_line, printable
from ...base.provenance import Provenance
from ...figures.table import Table, table

_WIDTH = 72
_NAMESPACES = re.compile(r"\(anonymous namespace\)::|\b[A-Za-z_]\w*::")


class Answer:
    """Tables of one stamp, which stands once, below the last, between sentences."""

    stamp: Provenance

    def _table(
        self, caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> Table:
        """Return a table with the answer's stamp; all columns but the first hold numbers."""
        return table(caption, columns, rows, stamp=self.stamp, right=True)

    def _tables(self) -> Sequence[Table]:
        raise NotImplementedError

    def _first(self) -> Sequence[str]:
        """Sentences above the tables."""
        return ()

    def _notes(self) -> Sequence[str]:
        """Sentences below them: the answer's `notes`, if it has any."""
        notes: Sequence[str] = getattr(self, "notes", ())
        return notes

    def __str__(self) -> str:
        *above, last = self._tables()
        shown = [*(f"{one.without_stamp()!r}\n" for one in above), repr(last)]
        return printable("\n".join([*self._first(), *shown, *self._notes()]))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        *above, last = self._tables()
        shown = [*(one.without_stamp() for one in above), last]
        drawn = [one._repr_mimebundle_()["text/html"] for one in shown]
        parts = [*map(_sentence, self._first()), *drawn, *map(_sentence, self._notes())]
        return {"text/plain": str(self), "text/html": "".join(parts)}


def _sentence(said: str) -> str:
    return f'<div style="overflow-wrap:anywhere">{html.escape(said)}</div>'


def shortened(name: str, width: int = _WIDTH) -> str:
    """A kernel's name without return type, namespaces and parameters, cut in the middle to width.

    >>> shortened("void at::native::add<4, at::Tensor>(int, at::Tensor)")
    'add<4, Tensor>'
    """
    if len(name) > 4000:  # names of megabytes occur; no one reads their middle
        name = f"{name[:2000]}…{name[-2000:]}"
    name = in_one_line(name)
    short = _NAMESPACES.sub("", _without_parameters(name.removeprefix("void "))).strip() or name
    if len(short) <= width:
        return short
    tail = width // 3
    return f"{short[: width - tail - 1]}…{short[-tail:]}"


def _without_parameters(name: str) -> str:
    """A C++ function's name up to its parameters: the parenthesis that the last `)` closes."""
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if not depth:
            # "Memcpy HtoD (Pageable -> Device)" is no function.
            return name[:at] if at and not name[at - 1].isspace() else name
    return name
