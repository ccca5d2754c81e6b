"""A drawing of who holds what: the numbers that ranks held before and after a collective, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base.formatting import ranks_text
from ..base.provenance import Provenance
from ..base.style import RANKS
from .picture import Figure

Held = Sequence[Sequence[float] | None]  # for each rank its numbers; None or empty: nothing
_HATCHES = ("", "..", "--", "\\\\", "oo", "||", "++", "xx")  # of ranks, beside their colours
_COLUMNS = 3  # panels side by side, at most
_GAP = 1.6  # between before and after, in boxes


def buffers(panels: Mapping[str, tuple[Held, Held]], *, stamp: Provenance) -> Figure:
    """Draw what each rank held before and after, as measured: a panel for each name.

    A row of boxes is a rank, a box is a number. It has the colour and the pattern of the rank that
    held this number before (if only one rank did); a number that no rank held before was computed
    on the way, and has a thick frame. So give every rank different numbers. Raises ValueError if
    there is nothing to draw, or if the number of ranks before is not that after.
    """
    if not panels:
        raise ValueError("there is nothing to draw: name a collective, with before and after")
    for name, (before, after) in panels.items():
        if len(before) != len(after) or not before:
            raise ValueError(f"{name}: {len(before)} ranks before and {len(after)} after")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    ranks = max(len(before) for before, _ in panels.values())
    widths = [
        sum(max(len(part or ()) for part in held) for held in both) for both in panels.values()
    ]

    def draw(canvas: Any) -> None:
        everywhere = canvas.subplots(rows, columns, squeeze=False).flatten()
        for axes, (name, (before, after)) in zip(everywhere, panels.items(), strict=False):
            _panel(axes, name, before, after, max(widths))
        for axes in everywhere[len(panels) :]:
            axes.axis("off")

    words = ". ".join(
        f"{name}: before, {_words(before)}; after, {_words(after)}"
        for name, (before, after) in panels.items()
    )
    size = (columns * (1.0 + 0.34 * (max(widths) + _GAP)), rows * (0.6 + 0.34 * ranks) + 0.3)
    return Figure(draw, alt=f"{words}.", stamp=stamp, size=size)


def _panel(axes: Any, name: str, before: Held, after: Held, width: int) -> None:
    from matplotlib.patches import Rectangle

    ink = axes.spines["left"].get_edgecolor()
    offset = max(len(part or ()) for part in before) + _GAP
    for start, held in ((0.0, before), (offset, after)):
        for rank, numbers in enumerate(held):
            if not numbers:
                axes.text(start + 0.3, -rank, "–", ha="center", va="center")
            for place, number in enumerate(numbers or ()):
                owner = _owner(number, before)
                corner = (start + place - 0.45, -rank - 0.42)
                look: Any = {"facecolor": "none", "edgecolor": ink, "linewidth": 2.4}
                if owner is not None:
                    colour = RANKS[owner % len(RANKS)]
                    hatch = _HATCHES[owner % len(_HATCHES)]
                    look = {"facecolor": (colour, 0.6), "edgecolor": colour, "hatch": hatch}
                axes.add_patch(Rectangle(corner, 0.9, 0.84, **look))
                axes.text(
                    start + place,
                    -rank,
                    f"{number:g}",
                    ha="center",
                    va="center",
                    fontsize=9 if len(f"{number:g}") < 4 else 7,
                    weight="normal" if owner is not None else "bold",
                    bbox={"facecolor": axes.get_facecolor(), "pad": 0.8, "linewidth": 0},
                )
    for rank in range(len(before)):
        axes.text(-0.7, -rank, f"rank {rank}", ha="right", va="center", fontsize=9)
    axes.annotate(
        "",
        xy=(offset - 0.6, (1 - len(before)) / 2),
        xytext=(offset - _GAP - 0.2, (1 - len(before)) / 2),
        arrowprops={"arrowstyle": "->", "color": ink, "linewidth": 1.5},
    )
    axes.set_title(name, fontsize=10, loc="left")
    axes.set(xlim=(-2.4, width + _GAP - 0.4), ylim=(0.4 - len(before), 0.6), aspect="equal")
    axes.axis("off")


def _owner(number: float, before: Held) -> int | None:
    """The one rank that held this number before; None where none or several did."""
    owners = [rank for rank, numbers in enumerate(before) if number in (numbers or ())]
    return owners[0] if len(owners) == 1 else None


def _words(held: Held) -> str:
    """ "rank 0 holds 1 2, ranks 1–3 nothing": ranks that hold the same are said together."""
    same: dict[tuple[float, ...], list[int]] = {}
    for rank, numbers in enumerate(held):
        same.setdefault(tuple(numbers or ()), []).append(rank)
    parts: list[str] = []
    for numbers, ranks in same.items():
        verb = "holds" if len(ranks) == 1 else "hold"
        said = " ".join(f"{number:g}" for number in numbers) or "nothing"
        parts.append(f"{ranks_text(ranks)} {verb if not parts else ''}".rstrip() + f" {said}")
    return ", ".join(parts)
