"""Words for people: ranks in sentences, times and sizes in the units that people read, and text of
others made fit to be shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Control characters move the cursor, hide text or set a terminal's title; those of bidirectional
# text turn the order of what is shown round; lone surrogates cannot be encoded at all.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    """The text with what a terminal would obey instead of showing written out: "\\x1b[2J".

    Lines and tabs stay.
    """
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def in_one_line(text: object) -> str:
    """The same for a name, which must not seem to be several lines of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def milliseconds(nanoseconds: float) -> str:
    """1,234.568 of 1_234_567_890. The unit is the sentence's, or the head's of a column."""
    return f"{nanoseconds / 1e6:,.3f}"


def microseconds(nanoseconds: float, places: int) -> str:
    """1,234.57 of 1_234_567, with two places."""
    return f"{nanoseconds / 1e3:,.{places}f}"


def megabytes(count: float) -> str:
    """12 of 12_345_678 bytes."""
    return f"{count / 1e6:.0f}"


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0–3", "ranks 0, 2 and 5" (no "and" before a run): for people."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        str(run[0]) if len(run) == 1 else f"{run[0]}{'–' if len(run) > 2 else ', '}{run[-1]}"
        for run in runs
    ]
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)


def ranks_count(nproc: int) -> str:
    return "1 rank" if nproc == 1 else f"{nproc} ranks"


def by_value(values: Sequence[str | None]) -> list[tuple[str, str]]:
    """("ranks 0–3", text) for each distinct text, in the order of the first rank that has it."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            groups.setdefault(value, []).append(rank)
    return [(ranks_text(ranks), value) for value, ranks in groups.items()]
