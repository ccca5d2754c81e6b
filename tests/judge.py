"""How well the checks judge the answers that the course keeps: `python tests/judge.py [NN ...]`.

    python tests/judge.py 03 --seeds 20 --only ring_all_reduce

Each wrong answer (solutions/source/wrong) must be caught under its own name, and each right one
(solutions/source/right, and the solution itself) accepted, with every seed. Prints for each
exercise how many always were, how long its checks took, and whatever was judged otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import lockstep
from lockstep.author.source import answers
from lockstep.course import exercises

SOURCES = Path(__file__).parents[1] / "solutions" / "source"


def defined(code: str, name: str, filename: str) -> object:
    """What a program of the course's answers defines under an exercise's name."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, filename, "exec"), namespace)
    return namespace[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labs", nargs="*", help="such as 03; all of them without")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="one exercise")
    asked = parser.parse_args()
    failed = False
    lockstep.torchrun(bool, nproc_per_node=1, show=False)  # so that what starts ranks is up
    for one in exercises.exercises():
        if (asked.labs and one.lab not in asked.labs) or asked.only not in (None, one.name):
            continue
        (source,) = SOURCES.glob(f"{one.lab}_*.py")
        with contextlib.redirect_stdout(io.StringIO()):
            solution = lockstep.solution(one.name)
        tried: list[tuple[str, str, object]] = [("right", "solution", solution)]
        for kind in ("right", "wrong"):
            for name, code in answers(source, kind).get(one.name, {}).items():
                answer = defined(code, one.name, f"{kind}/{one.lab}.py")
                tried.append((kind, name, answer))
        counts: Counter[str] = Counter()
        seconds: list[float] = []
        otherwise = []
        for kind, name, answer in tried:
            found = Counter[str]()
            for seed in range(asked.seeds):
                began = time.perf_counter()
                outcome = lockstep.check(one.name, answer, seed=seed)
                seconds.append(time.perf_counter() - began)
                found[outcome.mistake or outcome.verdict] += 1
            wanted = "PASS" if kind == "right" else name
            counts[kind] += 1
            counts[f"{kind} as meant"] += found[wanted] == asked.seeds
            counts["caught"] += kind == "wrong" and not found["PASS"] and not found["NOT JUDGED"]
            if found[wanted] != asked.seeds:
                otherwise.append(f"    {kind} {name}: {dict(found)}; last said:\n      {outcome}")
        print(
            f"{one.lab} {one.name}: {counts['caught']} of {counts['wrong']} wrong ones always "
            f"caught, {counts['wrong as meant']} under their own names; "
            f"{counts['right as meant']} of {counts['right']} right ones always accepted; "
            f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s",
            *otherwise,
            sep="\n",
            flush=True,
        )
        failed = failed or bool(otherwise)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
