"""Which wrong answers that are one change away from the solution pass: `python tests/survivors.py`.

    python tests/survivors.py 03 --only ring_all_reduce --seeds 2

Each mutant is a solution with one change: what tests/mutants.py does to code, or a statement left
out. A mutant that every seed accepts is listed. Some of them are right, too: an addition of zero,
an order that does not matter. Each of the others needs a trial that tells it from the solution, or
a sign. This takes minutes, so `make test` leaves it out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import lockstep
from lockstep.course import exercises
from lockstep.course.judging.catalogue import Answer
from mutants import Change, changes


def solution_of(name: str) -> str:
    with contextlib.redirect_stdout(shown := io.StringIO()):
        lockstep.solution(name)
    return shown.getvalue()


def dropped(tree: ast.AST) -> Iterator[Change]:
    """Every statement that calls something or writes somewhere, left out."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            found = getattr(node, name, None)
            block: list[Any] = found if isinstance(found, list) else []
            for at, one in enumerate(block):
                if isinstance(one, ast.Expr | ast.AugAssign):
                    yield one, "left out", _passing(block, at)


def _passing(block: list[Any], at: int) -> Callable[[], None]:
    return lambda: block.__setitem__(at, ast.copy_location(ast.Pass(), block[at]))


def mutants(code: str) -> Iterator[tuple[int, str, str]]:
    """Yield of each mutant its line, what was done, and the code."""
    for number, (node, what, _) in enumerate([*changes(tree := ast.parse(code)), *dropped(tree)]):
        other = ast.parse(code)
        [*changes(other), *dropped(other)][number][2]()
        yield getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(other))


def passes(name: str, code: str, seeds: int) -> bool:
    try:
        answer = Answer(name, "mutant", code, f"a mutant of {name}").value()
    except Exception:
        return False
    return all(lockstep.check(name, answer, seed=seed).verdict == "PASS" for seed in range(seeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("labs", nargs="*", help="such as 03; all of them without")
    parser.add_argument("--only", help="one exercise")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    lockstep.torchrun(bool, nproc_per_node=1, show=False)  # so that what starts ranks is up
    for one in exercises.exercises():
        if (asked.labs and one.lab not in asked.labs) or asked.only not in (None, one.name):
            continue
        code = solution_of(one.name)
        lines = code.splitlines()
        found = left = 0
        for line, what, mutant in mutants(code):
            found += 1
            if passes(one.name, mutant, asked.seeds):
                print(f"  {one.name}:{line}: {what}: {lines[line - 1].strip()}", flush=True)
                left += 1
        print(f"{one.lab} {one.name}: {left} of {found} mutants survive", flush=True)


if __name__ == "__main__":
    main()
