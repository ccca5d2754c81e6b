"""Which changes of a question's code no test sees: `python tests/mutants.py [MODULE ...]`.

    python tests/mutants.py collectives critical --sample 40 --seed 1 --seconds 90 [--own]

Each mutant is a module of trace/analyses with one change: a comparison or a sign turned round,
& for |, % for //, `and` for `or`, a constant one more, a `not` dropped, min for max. The tests of
the module run on it, in a process forked from one that has imported all else; what passes them is
listed. A mutant whose tests do not end in time counts as seen. This takes minutes, so `make test`
leaves it out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent
ANALYSES = TESTS.parent / "lib" / "lockstep" / "trace" / "analyses"
# Not lockstep itself: the module that is changed would be imported with it.
SLOW_TO_IMPORT = ("pytest", "hypothesis", "numpy", "msgspec", "psutil", "jupyter_client.manager")

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "argmin": "argmax",
    "lowest": "highest",
    "any": "all",
    "left": "right",
    "starts": "ends",
}
_NAMES |= {after: before for before, after in _NAMES.items()}

Change = tuple[ast.AST, str, Callable[[], None]]  # where, what, and how to do it


def changes(tree: ast.AST) -> Iterator[Change]:
    """Every change of one place in the code; neither of annotations nor of decorators."""
    left_out = {id(one) for node in ast.walk(tree) for part in _declared(node) for one in part}
    for node in ast.walk(tree):
        if id(node) not in left_out:
            yield from _of(node)


def _declared(node: ast.AST) -> Iterator[list[ast.AST]]:
    heads = (getattr(node, name, None) for name in ("annotation", "returns"))
    for head in (*heads, *getattr(node, "decorator_list", ())):
        if head is not None:
            yield list(ast.walk(head))


def _of(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            if other := _COMPARISONS.get(type(op)):
                yield node, f"{_sign(op)} → {other.__name__}", _setter(node.ops, at, other())
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        if another := _OPERATORS.get(type(node.op)):
            yield node, f"{_sign(node.op)} → {another.__name__}", _setter(node, "op", another())
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        twice = ast.UnaryOp(node.op, node.operand)
        yield node, f"{_sign(node.op)} dropped", _setter(node, "operand", twice)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, f"{node.value} → {not node.value}", _setter(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        more = node.value + 1
        yield node, f"{node.value} → {more}", _setter(node, "value", more)
    elif isinstance(node, ast.Name | ast.Attribute):
        where = "id" if isinstance(node, ast.Name) else "attr"
        if isinstance(node.ctx, ast.Load) and (better := _NAMES.get(name := getattr(node, where))):
            yield node, f"{name} → {better}", _setter(node, where, better)


def _sign(op: ast.AST) -> str:
    return type(op).__name__


def _setter(thing: object, where: int | str, value: object) -> Callable[[], None]:
    def change() -> None:
        if isinstance(where, int):
            thing[where] = value  # type: ignore[index]
        else:
            setattr(thing, where, value)

    return change


class Mutant(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree, for this process only."""

    def __init__(self, name: str, path: Path, tree: ast.Module):
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name: str, *_: object):
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.tree, str(self.path), "exec"), module.__dict__)


def survives(module: str, number: int | None, seconds: float, own: bool = False) -> bool:
    """Say whether the tests pass with change no. `number`, or with none, within this time."""
    child = os.fork()
    if not child:
        os._exit(_tested(module, number, own))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _tested(module: str, number: int | None, own: bool) -> int:
    import pytest

    sys.dont_write_bytecode = True
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    path = ANALYSES / f"{module}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if number is not None:
        [*changes(tree)][number][2]()
    mutant = Mutant(f"lockstep.trace.analyses.{module}", path, ast.fix_missing_locations(tree))
    sys.meta_path.insert(0, mutant)
    with contextlib.suppress(BaseException):
        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
        return int(pytest.main([*quiet, *map(str, tests_of(module, own))]))
    return 1


def tests_of(module: str, own: bool) -> list[Path]:
    """The tests that ask this question. own: without those of the recordings."""
    of = {"wording": ("kernels", "diff")}.get(module, (module,))
    recordings = [] if own else [TESTS / "test_recordings.py"]
    return [*(TESTS / f"test_trace_{one}.py" for one in of), *recordings]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modules = sorted(path.stem for path in ANALYSES.glob("[a-z]*.py"))
    parser.add_argument("modules", nargs="*", default=modules, help=", ".join(modules))
    parser.add_argument("--sample", type=int, default=40, help="mutants a module")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--seconds", type=float, default=60, help="that the tests may take")
    parser.add_argument("--only", help="changes of lines with this text")
    parser.add_argument("--own", action="store_true", help="without the tests of recordings")
    options = parser.parse_args()
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "lib")]
    for name in SLOW_TO_IMPORT:
        importlib.import_module(name)
    assert "lockstep" not in sys.modules
    for module in options.modules:
        source = (ANALYSES / f"{module}.py").read_text(encoding="utf-8")
        lines = source.splitlines()
        found = [*changes(ast.parse(source))]
        numbers = [
            number
            for number, (node, _, _) in enumerate(found)
            if not options.only or options.only in lines[node.lineno - 1]  # type: ignore[attr-defined]
        ]
        drawn = sorted(
            random.Random(options.seed).sample(numbers, min(options.sample, len(numbers)))
        )
        if not survives(module, None, 5 * options.seconds, options.own):
            raise SystemExit(f"{module}: its tests fail, or do not end, without any change")
        began, left = time.monotonic(), 0
        for number in drawn:
            if survives(module, number, options.seconds, options.own):
                node, what, _ = found[number]
                line = node.lineno  # type: ignore[attr-defined]
                print(f"  {module}.py:{line}: {what}: {lines[line - 1].strip()}", flush=True)
                left += 1
        took = time.monotonic() - began
        print(
            f"{module}: {left} of {len(drawn)} mutants survive (of {len(found)} there are), "
            f"{took:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
