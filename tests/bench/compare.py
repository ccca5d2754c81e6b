"""Two checkouts beside each other, by turns in one run: what a change of the launcher costs.

    python tests/bench/compare.py BEFORE/lib AFTER/lib [--rounds 50]

Each checkout has a notebook kernel of its own. In each round both run a cell of four fresh ranks
(init, all-reduce, value back), one with DDP and a step, and one on a kept World; who begins
alternates. Medians and first quartiles, which other programs disturb least; a ratio above 1 means
that AFTER is slower.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

import ways
from inside import RANKS
from report import text
from ways import DDP_STEP, REDUCE, Notebook

PARTS = {
    "fresh cell": lambda notebook: notebook.time(REDUCE),
    "DDP and a step": lambda notebook: notebook.time(DDP_STEP),
    "kept World's cell": lambda notebook: notebook.time(REDUCE, world=True),
}


def notebook_of(lib: Path, stack: contextlib.ExitStack) -> Notebook:
    notebook = stack.enter_context(Notebook(PYTHONPATH=str(lib)))
    notebook.ready()
    where = notebook.run("import lockstep\nprint(lockstep.__file__)").strip()
    if Path(where).parents[1] != lib:
        raise SystemExit(f"the kernel for {lib} has imported {where}: is there a lockstep in it?")
    notebook.run(f"%load_ext lockstep\nworld = lockstep.World({RANKS})")
    for part in PARTS.values():
        part(notebook)  # warms up
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the lib folder of one checkout")
    parser.add_argument("after", type=Path, help="the lib folder of the other")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    libs = [options.before.resolve(), options.after.resolve()]
    samples: dict[str, list[list[float]]] = {name: [[], []] for name in PARTS}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        )
        os.environ |= {"TMPDIR": folder, "IPYTHONDIR": folder, **ways.COMMON}
        notebooks = [notebook_of(lib, stack) for lib in libs]
        for number in range(options.rounds):
            for name, part in PARTS.items():
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    samples[name][which].append(part(notebooks[which]))
            print(f"round {number + 1} of {options.rounds}", end="\r", file=sys.stderr)
    print(f"before: {libs[0]}\nafter:  {libs[1]}\nload: {os.getloadavg()[0]:.1f}\n")
    print(f"{f'{options.rounds} rounds':20}{'before':>10}{'after':>10}{'ratio':>8}")
    for name, (before, after) in samples.items():
        for quarter, label in ((1, name), (0, "  first quartile")):
            old, new = (statistics.quantiles(s, n=4)[quarter] for s in (before, after))
            print(f"{label:20}{text(old, 's'):>10}{text(new, 's'):>10}{new / old:8.3f}")


if __name__ == "__main__":
    main()
