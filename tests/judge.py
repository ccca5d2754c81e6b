"""How well the checks judge the answers that the course keeps: `python tests/judge.py [NN ...]`.

    python tests/judge.py 03 --seeds 20 --only ring_all_reduce

Each wrong answer (solutions/source/wrong) must be caught under its own name, and each right one
(solutions/source/right, and the solution itself) accepted, with every seed. Those of
tests/answers were written from the blank labs alone, without sight of the checks: the wrong ones
must be caught, under whatever name, but for those that say that they are not yet. Prints for each
exercise how many always were, how long its checks took, and whatever was judged otherwise. A lab
of which all are judged as meant is put down in verdicts.json: `make test` then tries fewer of them.
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
import verdicts
from lockstep.course import exercises
from lockstep.course.judging.catalogue import answers

SOURCES = Path(__file__).parents[1] / "solutions" / "source"
UNSEEN = Path(__file__).with_name("answers")
NOT_YET = "# Not judged so yet."  # an answer of those that is known to be judged otherwise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labs", nargs="*", help="such as 03; all of them without")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", help="one exercise")
    asked = parser.parse_args()
    well: dict[str, bool] = {}  # by lab
    lockstep.torchrun(bool, nproc_per_node=1, show=False)  # so that what starts ranks is up
    for one in exercises.exercises():
        if (asked.labs and one.lab not in asked.labs) or asked.only not in (None, one.name):
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            solution = lockstep.solution(one.name)
        known: set[str] = set()
        tried: list[tuple[str, str, object]] = [("right", "solution", solution)]
        for kind in ("right", "wrong"):
            for kept in answers(SOURCES, kind, one.lab).get(one.name, []):
                tried.append((kind, kept.name, kept.value()))
            for kept in answers(UNSEEN, kind, one.lab).get(one.name, []):
                known |= {kept.name} if NOT_YET in kept.code else set()
                tried.append((f"unseen {kind}", kept.name, kept.value()))
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
            is_caught = not found["PASS"] and not found["NOT JUDGED"]
            as_meant = {
                "wrong": found[name] == asked.seeds,
                "unseen wrong": is_caught,
            }.get(kind, found["PASS"] == asked.seeds)
            counts[kind] += 1
            counts[f"{kind} as meant"] += as_meant
            counts["caught"] += kind == "wrong" and is_caught
            if not as_meant and not (name in known and kind.startswith("unseen")):
                otherwise.append(f"    {kind} {name}: {dict(found)}; last said:\n      {outcome}")
        print(
            f"{one.lab} {one.name}: {counts['caught']} of {counts['wrong']} wrong ones always "
            f"caught, {counts['wrong as meant']} under their own names; "
            f"{counts['right as meant']} of {counts['right']} right ones always accepted; "
            f"unseen: {counts['unseen wrong as meant']} of {counts['unseen wrong']} wrong ones, "
            f"{counts['unseen right as meant']} of {counts['unseen right']} right ones; "
            f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s",
            *otherwise,
            sep="\n",
            flush=True,
        )
        well[one.lab] = well.get(one.lab, True) and not otherwise
    for lab in well:
        if well[lab] and not asked.only:
            verdicts.record(lab)
    return int(not all(well.values()))


if __name__ == "__main__":
    sys.exit(main())
