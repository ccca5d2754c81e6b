"""The drawn programs' times on an H200, and on a virtual one: `python tests/drawn_times.py`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drawn_programs import FITTED, KEPT, LATER, Drawn
from lockstep import recorded, virtual
from lockstep.virtual.model import H200, Machine

HALVES = {"fitted": FITTED, "kept": KEPT, "later": LATER}
HOST = (
    "dispatch", "matmul", "attention", "several", "each_tensor", "backward", "view", "allocate",
    "module", "context", "optimizer", "parameter", "launch", "graph_launch", "event",
)  # fmt: skip
# How much longer than the model's host that of the machine took which recorded the first halves, by
# the fitted one. Later recordings say for each program what a launch took just then.
SLOWER = 1.65


def beside_host(slower: float) -> Machine:
    """A virtual H200 beside a host that takes so much longer than the model's."""
    return replace(H200, **{name: slower * getattr(H200, name) for name in HOST})


def simulated(programs: Mapping[str, Drawn], slower: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step between two events on a virtual H200, from an idle device.

    slower: how much longer than the model's host the recording's took, by program.
    """
    found = {}
    for name, program in programs.items():
        with virtual.device(beside_host(slower[name]), values=False) as cuda:
            step = program.make(cuda)
            step()
            first, last = (cuda.Event(enable_timing=True) for _ in range(2))
            cuda.synchronize()
            first.record()
            step()
            last.record()
            cuda.synchronize()
            found[name] = first.elapsed_time(last) / 1e3
    return found


def _content(half: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = recorded(f"virtual/drawn-{half}-h200.json").content
    return content


def compared(half: str) -> list[tuple[str, float, float, float, bool]]:
    """(program, seconds, excess of the other run, deviation of ours, whether the host bounds it).

    A program is bound by the host where this takes longer to launch its kernels than they last.
    """
    content = _content(half)
    again = content.get("programs_again", content["programs"])
    launch = H200.dispatch + H200.launch
    slower = {
        name: row["launch_seconds"] * 1e9 / launch if "launch_seconds" in row else SLOWER
        for name, row in content["programs"].items()
    }
    ours = simulated({name: HALVES[half][name] for name in slower}, slower)
    rows = []
    for name, row in content["programs"].items():
        one, other = sorted((row["seconds"], again[name]["seconds"]))
        by_host = row["host_seconds"] > row["kernel_seconds"]
        rows.append((name, one, other / one - 1, ours[name] / one - 1, by_host))
    return rows


def table(half: str) -> str:
    rows = compared(half)
    lines = [f"{'µs':>10} {'other run':>9} {'simulated':>9}  program"]
    lines += [
        f"{seconds * 1e6:10,.1f} {spread:+9.1%} {deviation:+9.1%}  {'(host) ' * host}{name}"
        for name, seconds, spread, deviation, host in sorted(rows, key=lambda row: abs(row[3]))
    ]
    for what, host in (("bound by the device", False), ("bound by the host", True)):
        apart = sorted(abs(row[3]) for row in rows if row[4] == host)
        spreads = [row[2] for row in rows if row[4] == host]
        tenth = apart[min(int(0.9 * len(apart)), len(apart) - 1)]
        lines.append(
            f"{half}, {what}: {len(apart)} programs, median {statistics.median(apart):.1%}, nine "
            f"in ten {tenth:.1%}, worst {apart[-1]:.1%}"
        )
        if any(spreads):  # the half that is kept was measured twice
            lines[-1] += (
                f"; the H200 from itself: median {statistics.median(spreads):.1%}, worst "
                f"{max(spreads):.1%}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    for half in sys.argv[1:] or ("fitted",):
        print(table(half), end="\n\n")
