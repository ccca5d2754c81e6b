"""Which files import which, read from their text."""

from __future__ import annotations

import ast
from pathlib import Path

Arrows = dict[str, set[str]]  # file → the files that it imports; paths within the package


def arrows(library: Path) -> Arrows:
    """What each file imports of the package, at its head or anywhere else, for types only, too."""
    files = {path.relative_to(library).as_posix(): path for path in library.rglob("*.py")}
    modules = {module(file, library.name): file for file in files}
    found: Arrows = {}
    for file, path in sorted(files.items()):
        package = module(file, library.name).split(".")
        if path.name != "__init__.py":
            package.pop()
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        names = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported(node, package)
        }
        # `from a import b` names the module a.b if there is one, and else something of a.
        targets = {modules.get(name) or modules.get(name.rpartition(".")[0]) for name in names}
        found[file] = {target for target in targets if target} - {file}
    return found


def module(file: str, package: str) -> str:
    """What `import` calls a file of the package."""
    return ".".join((package, *Path(file).with_suffix("").parts)).removesuffix(".__init__")


def imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(node: ast.Import | ast.ImportFrom, package: list[str]) -> list[str]:
    """The full names that an import in this package names."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    start = package[: len(package) - node.level + 1] if node.level else []
    return [".".join((*start, *filter(None, (node.module, one.name)))) for one in node.names]
