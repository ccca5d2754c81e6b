"""A picture of a grid of ranks, and of the groups that one of them is in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..base.formatting import ranks_text
from ..base.provenance import Provenance
from .picture import PALETTE, Figure

_STYLES = ("-", "--", ":")  # of the groups' lines, so that colour is not all that tells them apart
_GAP = 0.8  # between blocks, in cells


def grid(
    sizes: Mapping[str, int], *, rank: int, groups: Mapping[str, Sequence[int]], stamp: Provenance
) -> Figure:
    """Draw a grid of ranks, and the groups along each axis that `rank` is in.

    sizes: the grid, such as {"dp": 2, "pp": 2, "tp": 2}; one to three axes, the last one varies
    fastest. It is drawn with the last axis downwards, the one before to the right, and the first
    as blocks. groups: for each axis, the members (global ranks) of the group of `rank`, as
    measured; what is drawn is what it says. Raises ValueError for more axes or a rank that is not
    in the grid.
    """
    if not 1 <= len(sizes) <= len(_STYLES):
        raise ValueError(f"a grid of 1 to {len(_STYLES)} axes can be drawn, not of {len(sizes)}")
    world_size = math.prod(sizes.values())
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a grid of {world_size} ranks")
    blocks, columns, rows = (1,) * (3 - len(sizes)) + tuple(sizes.values())

    def place(one: int) -> tuple[float, float]:
        block, column, row = one // (columns * rows), one // rows % columns, one % rows
        return block * (columns + _GAP) + column, -row

    def draw(canvas: Any) -> None:
        from matplotlib.patches import FancyArrowPatch

        axes = canvas.subplots()
        for number, (axis, members) in enumerate(groups.items()):
            ordered = sorted(members)
            label = f"{axis}: ranks {', '.join(map(str, ordered))}"
            look: Any = {"color": PALETTE[number], "linestyle": _STYLES[number], "linewidth": 4}
            axes.plot([], [], label=label, **look)
            # From block to block in an arc, past the ranks in between.
            bend = -0.25 if len(sizes) == 3 and axis == next(iter(sizes)) else 0.0
            for one, other in pairwise(ordered):
                arc = f"arc3,rad={bend}"
                line = FancyArrowPatch(place(one), place(other), connectionstyle=arc, **look)
                line.set_arrowstyle("-")
                axes.add_patch(line)
        for one in range(world_size):
            mine = one == rank
            axes.text(
                *place(one),
                str(one),
                ha="center",
                va="center",
                fontsize=12,
                weight="bold" if mine else "normal",
                bbox={
                    "boxstyle": "round,pad=0.5",
                    "facecolor": axes.get_facecolor(),
                    "edgecolor": axes.spines["left"].get_edgecolor(),
                    "linewidth": 3 if mine else 1,
                },
            )
        for block in range(blocks if len(sizes) == 3 else 0):
            middle = place(block * columns * rows)[0] + (columns - 1) / 2
            axes.text(middle, 0.75, f"{next(iter(sizes))} {block}", ha="center")
        axes.set(xlim=(-0.6, blocks * (columns + _GAP) - _GAP - 0.4), ylim=(0.3 - rows, 1.0))
        axes.axis("off")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=4)

    shape = " × ".join(f"{size} {axis}" for axis, size in sizes.items())
    words = "; ".join(
        f"{axis} with {ranks_text(set(members) - {rank})}" for axis, members in groups.items()
    )
    alt = f"{world_size} ranks in a grid of {shape}. Rank {rank} is in groups along {words}."
    return Figure(draw, alt=alt, stamp=stamp, size=(2.5 + blocks * columns, 1.0 + 0.8 * rows))
