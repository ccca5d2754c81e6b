"""Cells of a notebook that fail once they are run again, alone: `python tests/going_back.py 00 03`.

Every notebook of these labs, or of all, is run whole in a real kernel. Then each cell is run again,
in order, backwards and in a random order: a learner who goes back runs one cell, and its names may
meanwhile mean something else. Prints each error that the first run did not have.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kernel import Kernel

ROOT = Path(__file__).parents[1]


def failures(notebook: Path, seed: int = 0) -> Iterator[str]:
    """Say which cells fail when they run again, in which order, and with what error."""
    cells = json.loads(notebook.read_text())["cells"]
    code = {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}
    kernel = Kernel(LOCKSTEP_PROGRESS="off")
    try:
        kernel.execute(f"%cd -q {notebook.parent}")
        usual = {name: kernel.execute(source, 120).error_name for name, source in code.items()}
        mixed = random.Random(seed).sample([*code], len(code))
        orders = {"in order": [*code], "backwards": [*code][::-1], f"shuffled by {seed}": mixed}
        for order, names in orders.items():
            for name in names:
                reply = kernel.execute(code[name], 120)
                if reply.error_name not in ("", usual[name]):
                    said = re.sub(r"\x1b\[[\d;]*m", "", reply.error)
                    yield f"{name}, {order}: {said[-300:]}"
    finally:
        kernel.close()


if __name__ == "__main__":
    for number in sys.argv[1:] or ["[0-9][0-9]"]:
        for notebook in sorted((ROOT / "labs").glob(f"{number}_*.ipynb")):
            print(notebook.name, *failures(notebook), sep="\n--- ", flush=True)
