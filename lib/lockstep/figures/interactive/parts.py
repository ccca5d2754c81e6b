"""The words of a job in one drawing: node, rank, group, store, rendezvous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.formatting import ranks_text
from ...base.provenance import simulated
from ..picture import PALETTE, Figure

_MOST = 16  # ranks


def parts(nodes: int = 2, per_node: int = 2, group: Sequence[int] | None = None) -> Figure:
    """Draw a job: its nodes with their ranks, the store where they meet, and one group.

    per_node: ranks on each node. group: the ranks of one more group; without it, those with local
    rank 0. Raises ValueError for a group with a rank that is not there, and for more than 16 ranks.
    """
    world = nodes * per_node
    if not (nodes >= 1 and per_node >= 1 and world <= _MOST):
        raise ValueError(f"1 to {_MOST} ranks can be drawn, not {nodes} × {per_node}")
    members = sorted(set(range(0, world, per_node) if group is None else group))
    if not members or not 0 <= members[0] <= members[-1] < world:
        raise ValueError(f"a group of {members}, but the ranks are 0 to {world - 1}")

    def draw(canvas: Any) -> None:
        from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

        axes = canvas.subplots()
        ink, paper = axes.spines["left"].get_edgecolor(), axes.get_facecolor()

        def frame(x: float, y: float, wide: float, high: float, **look: Any) -> None:
            style = "round,pad=0,rounding_size=0.08"
            look = {"facecolor": "none", "edgecolor": ink, "linewidth": 1.2, **look}
            axes.add_patch(FancyBboxPatch((x, y), wide, high, boxstyle=style, **look))

        left = [node * (per_node + 0.5) for node in range(nodes)]
        right = left[-1] + per_node
        frame(-0.3, -0.3, right + 0.6, 2.15, edgecolor=PALETTE[7], linestyle="--")
        axes.text(-0.25, 1.66, "the default group: all ranks of the job", fontsize=9)
        middle = right / 2
        for node, start in enumerate(left):
            frame(start - 0.1, -0.1, per_node + 0.1, 1.6)
            axes.text(start - 0.02, 1.28, f"node {node} (a host)", fontsize=9)
            for local in range(per_node):
                rank = node * per_node + local
                mine = rank in members
                look = {"edgecolor": PALETTE[0], "linewidth": 3.2, "hatch": ".."} if mine else {}
                frame(start + local + 0.05, 0.05, 0.8, 1.05, **look)
                axes.text(
                    *(start + local + 0.45, 0.57),
                    f"rank {rank}\nlocal\nrank {local}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    bbox={"facecolor": paper, "linewidth": 0, "pad": 1.5},
                )
                arrow: Any = {"arrowstyle": "<->", "color": PALETTE[1], "mutation_scale": 10}
                begin, end = (start + local + 0.45, 0.03), (middle, -0.98)
                axes.add_patch(FancyArrowPatch(begin, end, shrinkB=2, linestyle=":", **arrow))
        frame(middle - 1.0, -1.5, 2.0, 0.5, facecolor=paper)
        said = "store\nMASTER_ADDR : MASTER_PORT"
        axes.text(middle, -1.25, said, ha="center", va="center", fontsize=9)
        axes.text(
            *(-0.3, -1.75),
            "dotted: the rendezvous. Each rank says in the store that it is there, and finds the "
            "others.",
            fontsize=9,
            va="top",
        )
        axes.text(
            *(-0.3, -2.05),
            f"thick and dotted boxes: one more group, {ranks_text(members)}",
            fontsize=9,
            va="top",
        )
        # Room for the lines of text below.
        axes.set(xlim=(-0.4, max(right + 0.4, 5.4)), ylim=(-2.4, 1.95))
        axes.axis("off")

    alt = (
        f"A job of {world} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}, {per_node} on "
        f"each. A rank is a process; rank = node × {per_node} + local rank. All ranks meet at one "
        "store (the rendezvous) and are the default group; "
        f"{ranks_text(members)} {'is' if len(members) == 1 else 'are'} one more group."
    )
    stamp = simulated("a drawing, nothing is measured")
    return Figure(draw, alt=alt, stamp=stamp, size=(max(6.0, 1.35 * (nodes * per_node + 1)), 3.6))
