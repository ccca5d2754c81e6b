"""A notebook cell as a program for ranks: what it needs from the notebook, and how it runs."""

from __future__ import annotations

import ast
import builtins
import dis
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ..base.formatting import megabytes
from . import payload, sources
from .errors import CannotSend

MOST_BYTES = 100_000_000  # of the notebook's own values in one job; more belongs into the ranks


@dataclass(frozen=True)
class Cell:
    """The source of a cell and the name under which tracebacks show its lines."""

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
            raise

    @property
    def initializes(self) -> bool:
        """Return whether the cell itself calls init_process_group."""
        return "init_process_group" in _identifiers(ast.parse(self.source))

    def names(self) -> set[str]:
        """The global names that the cell reads before it binds them itself."""
        walker = _Reads()
        walker.visit(ast.parse(self.source))
        return walker.read

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


class _Reads(ast.NodeVisitor):
    """Names read at a cell's top level or inside its functions, less those bound before.

    Follows the order of evaluation. What is bound only perhaps (in an if, a loop, a try) still
    counts as read: sending one value too many is harmless, one too few is not.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._bound: set[str] = set()
        self._certain = True

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self._bound and not hasattr(builtins, node.id):
                self.read.add(node.id)
        elif self._certain:
            self._bound.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit_Name(ast.Name(node.target.id, ast.Load()))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        for part in (node.value, node.annotation, node.target):
            if part is not None:
                self.visit(part)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        if self._certain:
            names = ((a.asname or a.name.split(".")[0]) for a in node.names)
            self._bound.update(names)

    visit_ImportFrom = visit_Import

    def _visit_perhaps(self, node: ast.AST) -> None:
        certain, self._certain = self._certain, False
        self.generic_visit(node)
        self._certain = certain

    visit_If = visit_For = visit_While = visit_Try = visit_TryStar = visit_Match = _visit_perhaps

    def _visit_scope(self, node: Any) -> None:
        """A function, class or comprehension: the compiler knows which of its names are global."""
        for part in ast.iter_child_nodes(node):  # decorators, defaults, annotations, bases
            if isinstance(part, ast.expr):
                self.visit(part)
        wrapped = ast.Module([node if isinstance(node, ast.stmt) else ast.Expr(node)], [])
        code = compile(ast.fix_missing_locations(wrapped), "scope", "exec", dont_inherit=True)
        inner = {name for part in _nested(code) for name in _globals_of(part)}
        own = {node.name} if isinstance(node, ast.stmt) else set()  # type: ignore[attr-defined]
        self.read |= {name for name in inner - own - self._bound if not hasattr(builtins, name)}
        if self._certain:
            self._bound |= own

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _visit_scope
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_scope


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _globals_of(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval


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
