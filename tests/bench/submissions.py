"""What a class hands in, executed and judged: `python tests/bench/submissions.py 30 00 01`.

So many learners hand in these labs, a third of them solved, a third half solved, a third blank.
Prints how long `lockstep report` takes for all, how many notebooks a minute that is, and the
memory that the machine had less meanwhile. Options behind -- are the command's: -- --at-once 4.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from lockstep.base import machine
from lockstep.base.paths import MATERIAL

KINDS = ("solved", "half", "blank")


def hand_in(folder: Path, learners: int, labs: list[str]) -> int:
    """Writes the notebooks; returns how many."""
    for learner in range(learners):
        place = folder / f"learner{learner:02}"
        place.mkdir()
        for lab in labs:
            (solved,) = (MATERIAL / "solutions").glob(f"{lab}_*.ipynb")
            (blank,) = (MATERIAL / "labs").glob(f"{lab}_*.ipynb")
            kind = KINDS[learner % len(KINDS)]
            notebook = json.loads((blank if kind == "blank" else solved).read_text())
            if kind == "half":
                begins = {cell["id"]: cell for cell in json.loads(blank.read_text())["cells"]}
                half = len(notebook["cells"]) // 2
                notebook["cells"][half:] = [
                    begins.get(cell["id"], cell) for cell in notebook["cells"][half:]
                ]
            (place / blank.name).write_text(json.dumps(notebook))
    return learners * len(labs)


def least_free(stop: threading.Event, found: list[int]) -> None:
    while not stop.wait(0.5):
        found.append(psutil.virtual_memory().available)


def main(learners: int, labs: list[str], options: list[str]) -> int:
    print(f"{machine.usable_cores()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    before, stop = psutil.virtual_memory().available, threading.Event()
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as scratch:
        submitted = Path(scratch, "submitted")
        submitted.mkdir()
        count = hand_in(submitted, learners, labs)
        watch = threading.Thread(target=least_free, args=(stop, seen))
        watch.start()
        began = time.perf_counter()
        command = [sys.executable, "-m", "lockstep", "report", str(submitted), *options]
        done = subprocess.run([*command, "--to", f"{scratch}/report"], check=False)
        took = time.perf_counter() - began
        stop.set()
        watch.join()
        rows = json.loads(Path(scratch, "report", "report.json").read_text())["notebooks"]
    judged = sum(bool(row["verdicts"]) for row in rows)
    print(
        f"{learners} learners × labs {', '.join(labs)}: {judged} of {count} notebooks in "
        f"{took:.0f} s, {60 * judged / took:.1f} a minute; the machine had up to "
        f"{(before - min(seen)) / 1e9:.1f} GB less; exit code {done.returncode}"
    )
    return done.returncode


if __name__ == "__main__":
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    sys.exit(main(int(words[0]), words[1:at] or ["00"], words[at + 1 :]))
