"""One large trace: time and peak memory of the whole command on a file of some GB.

    python tests/bench/large.py [--gb 2.5] [--folder FOLDER] [--more]

The file is one rank's, in the text that PyTorch's profiler writes; it is removed afterwards. The
command writes JSON, its cache is empty, and memory is the peak of the proportional set size (PSS)
of it and its descendants, asked for ten times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from trace import tree  # the bench beside this one: its folder comes first

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))


def events(layers: int) -> Iterator[str]:
    """A run of so many layers, 118 events each."""
    from kineto_files import START, _rank

    draw = random.Random(0)
    plan, at = [], 0
    for layer in range(layers):
        last = 20_000 + draw.randint(0, 20_000)
        busy = 12 * (last + 700)
        plan.append((at, last, at + busy + 2_000, at + busy + 182_000))
        at += busy + (350_000 if layer % 12 == 11 else 0)
    yield from _rank(plan, START, 12, 12, "nvidia", "relative")


def generate(path: Path, size: float) -> int:
    """Writes a file of about `size` bytes; returns how many events it has."""
    from kineto_files import head

    layers = max(12, round(size / _BYTES_OF_A_LAYER))
    number = 0
    with path.open("w") as out:
        out.write(json.dumps(head(0, 8))[:-1] + ', "traceEvents": [\n')
        for one in events(layers):
            out.write(one + ",\n")
            number += 1
        out.write('  {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0}\n]}\n')
    return number


_BYTES_OF_A_LAYER = 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gb", type=float, default=2.5)
    parser.add_argument("--folder", type=Path, help="where the file is made for a while")
    parser.add_argument("--more", action="store_true", help="answer the rarer questions, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rank0.json"
        number = generate(path, options.gb * 1e9)
        print(f"{path.stat().st_size / 1e9:.2f} GB, {number:,} events", flush=True)
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "lib")
        command = [sys.executable, "-m", "lockstep", "trace", str(path), "--json"]
        command += ["--more"] if options.more else []
        began = time.perf_counter()
        with (Path(folder) / "said.json").open("w+") as out:
            process = psutil.Popen(command, stdout=out, env=environment)
            peak = 0
            while process.poll() is None:
                peak = max(peak, tree(process))
                time.sleep(0.1)
            seconds = time.perf_counter() - began
            if process.returncode:
                raise SystemExit(f"it failed: {process.returncode}")
            out.seek(0)
            answers = json.load(out)["answers"]
        used = sum(os.times()[2:4])  # of children that have ended
        load = os.getloadavg()[0]
        print(
            f"{seconds:.0f} s ({used:.0f} s of CPU time), peak {peak / 1e9:.2f} GB, "
            f"load of the machine {load:.1f}, {sum(map(len, answers.values())):,} rows"
        )


if __name__ == "__main__":
    main()
