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


def cut(text: str, length: int) -> str:
    """The text, or what fits of it: "a long na…" of so many characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def milliseconds(nanoseconds: float) -> str:
    """1,234.568 of 1_234_567_890. The unit is the sentence's, or the head's of a column."""
    return f"{nanoseconds / 1e6:,.3f}"


def microseconds(nanoseconds: float, places: int) -> str:
    """1,234.57 of 1_234_567, with two places."""
    return f"{nanoseconds / 1e3:,.{places}f}"


def megabytes(count: float) -> str:
    """12 of 12_345_678 bytes."""
    return f"{count / 1e6:.0f}"


def percent(share: float, places: int = 0, *, sign: bool = False) -> str:
    """25 % of 0.25; with one place 25.0 %, with a sign +25 %."""
    return f"{100 * share:{'+' if sign else ''}.{places}f} %"


Units = Sequence[tuple[str, float]]  # names and sizes, the largest first
NANOSECONDS: Units = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1))
BYTES: Units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))
_LARGE: Units = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1))
_SMALL: Units = (("", 1), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))


def fitting(value: float, units: Units) -> tuple[str, float]:
    """The largest of the units that `value` has one of; the smallest if there is none."""
    return next((one for one in units if abs(value) >= one[1] * (1 - 1e-12)), units[-1])


def quantity(value: float, unit: str) -> str:
    """1 kB, 16.8 µs, 340 GB/s: in three digits, with the prefix that fits."""
    rounded = float(f"{value:.3g}")  # what is rounded to 1,000 µs is 1 ms
    prefix, size = fitting(rounded, _SMALL if unit == "s" else _LARGE) if rounded else ("", 1)
    return f"{float(f'{rounded / size:.3g}'):,g} {prefix}{unit}"


def number(value: float) -> str:
    """1,234, 0.273, 12.6, 1.2e-05: whole numbers as they are, others in three digits."""
    if value == round(value, 0) and abs(value) < 1e15:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if 100 <= abs(rounded) < 1e15 else f"{rounded:g}"


def binary(count: int) -> str:
    """1.50 GiB, 12 bytes: as PyTorch says it of a GPU's memory."""
    unit, size = fitting(count, BYTES)
    return f"{count / size:,.2f} {unit}" if size > 1 else f"{count} {unit}"


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


def counted(number: int, what: str) -> str:
    """1 slice, 2,000 slices."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ranks_count(nproc: int) -> str:
    return "1 rank" if nproc == 1 else f"{nproc} ranks"


def by_value(values: Sequence[str | None]) -> list[tuple[str, str]]:
    """("ranks 0–3", text) for each distinct text, in the order of the first rank that has it."""
    groups: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            groups.setdefault(value, []).append(rank)
    return [(ranks_text(ranks), value) for value, ranks in groups.items()]
