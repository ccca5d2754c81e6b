"""A notebook cell as a program for ranks: what it needs from the notebook, and how it runs."""

from __future__ import annotations

import ast
import builtins
import dis
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..base.formatting import megabytes
from . import payload, sources
from .errors import CannotSend, UnreadableCell

MOST_BYTES = 100_000_000  # of the notebook's own values in one job; more belongs into the ranks


@dataclass(frozen=True)
class Cell:
    """The source of a cell and the name under which tracebacks show its lines.

    Raises UnreadableCell for a syntax error.
    """

    source: str
    filename: str

    def __post_init__(self) -> None:
        try:
            ast.parse(self.source, self.filename)
        except SyntaxError as error:
            line = (error.text or "").lstrip()
            if line.startswith(("%", "!")):
                error.msg = (
                    f"{line.split()[0]} belongs to the notebook: IPython's magics and shell "
                    "commands do not exist inside a rank; put it in a cell of its own"
                )
            error.filename = "this cell"
            said = "".join(traceback.format_exception_only(error))
            raise UnreadableCell(said.strip()) from None

    @property
    def initializes(self) -> bool:
        """Return whether the cell itself calls init_process_group."""
        return "init_process_group" in _identifiers(ast.parse(self.source))

    def names(self) -> set[str]:
        """Return the global names that the cell reads before it binds them itself.

        What it binds only perhaps (in an if, a loop, a try) still counts as read: sending one value
        too many is harmless, one too few is not.
        """
        read: set[str] = set()
        bound = set(dir(builtins))
        for statement in _in_order(ast.parse(self.source).body):
            try:
                reads, binds = names_of(statement)
            except SyntaxError:  # of what only the compiler refuses: the ranks say where
                break
            read |= reads - bound
            if not isinstance(statement, _PERHAPS):
                bound |= binds
        return read

    def run(self, namespace: dict[str, Any]) -> Any:
        """Execute in `namespace`; returns the value of the last expression, None without one."""
        sources.remember(self.filename, self.source)
        tree = ast.parse(self.source, self.filename)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, self.filename, "exec", dont_inherit=True), namespace)
        if not isinstance(last, ast.Expr):
            return None
        code = compile(ast.Expression(last.value), self.filename, "eval", dont_inherit=True)
        value = eval(code, namespace)
        return None if self.source.rstrip().endswith(";") else value


_PERHAPS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match)
_READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")


def _in_order(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements with those of `with` blocks one by one, which are executed for certain."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith):
            inside, statement.body = statement.body, [ast.copy_location(ast.Pass(), statement)]
            yield statement
            yield from _in_order(inside)
        else:
            yield statement


def names_of(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the global names that a top-level statement reads, and those that it binds."""
    code = compile(ast.Module([statement], []), "statement", "exec", dont_inherit=True)
    own = [(one.opname, one.argval) for one in dis.get_instructions(code)]
    binds = {name for operation, name in own if operation in ("STORE_NAME", "STORE_GLOBAL")}
    inner = {
        one.argval
        for part in _nested(code)
        if part is not code
        for one in dis.get_instructions(part)
        if one.opname in _READS
    }
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner -= binds  # it may call itself
    read = {name for operation, name in own if operation in _READS}
    return (read | inner) - {"__annotations__"}, binds  # where an annotated name stands


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _identifiers(tree: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


def function_initializes(function: Any) -> bool:
    """Return whether a function, or one of the notebook that it calls, names init_process_group."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        code = getattr(waiting.pop(), "__code__", None)
        if code is None or id(code) in seen:
            continue
        seen.add(id(code))
        for part in _nested(code):
            if "init_process_group" in part.co_names:
                return True
        scope = getattr(function, "__globals__", {})
        waiting += [
            scope[name]
            for part in _nested(code)
            for name in part.co_names
            if isinstance(scope.get(name), types.FunctionType)
            and scope[name].__module__ == function.__module__
        ]
    return False


def blame(values: Mapping[str, Any]) -> NoReturn:
    """Say which of the notebook's values cannot travel, or which is too large for it.

    Raises CannotSend, always.
    """
    sizes = {}
    for name, value in values.items():
        try:
            sizes[name] = payload.size(value)
        except CannotSend as error:
            raise CannotSend(
                f"{name!r} (a {type(value).__name__}) cannot be sent to the ranks: {error}. "
                "Create it inside the cell or the function."
            ) from None
    largest = max(sizes, key=lambda name: sizes[name])
    raise CannotSend(
        f"{largest!r} is {megabytes(sizes[largest])} MB; a notebook can send its ranks "
        f"{megabytes(MOST_BYTES)} MB in all. Create it inside the cell, or save it to a file "
        "and load it there."
    )
