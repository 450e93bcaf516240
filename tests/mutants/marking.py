"""Which statements ran: modules are compiled with a mark before every statement of their functions.

A mark is one store into an array, so that tests run nearly as fast as without it; a tracer would take several
times as long.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_NAME = "__seen__"
_CAPACITY = 1 << 17
PREFIX = "metaquorum."


class Marks:
    """One byte per statement, shared by all modules; `lines` says which statement each one is."""

    def __init__(self) -> None:
        self.seen = bytearray(_CAPACITY)
        self.lines: list[tuple[str, int]] = []

    def new(self, file: str, line: int) -> int:
        self.lines.append((file, line))
        if len(self.lines) > _CAPACITY:
            raise RuntimeError(f"more than {_CAPACITY} statements: choose fewer files")
        return len(self.lines) - 1

    def take(self) -> frozenset[int]:
        """The statements that ran since the last call."""
        found = []
        at = self.seen.find(1)
        while at >= 0:
            found.append(at)
            at = self.seen.find(1, at + 1)
        self.seen[:] = bytes(_CAPACITY)
        return frozenset(found)


class _Marker(ast.NodeTransformer):
    """Puts a mark before every statement of every function."""

    def __init__(self, marks: Marks, file: str) -> None:
        self._marks = marks
        self._file = file
        self._depth = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._depth += is_function
        super().generic_visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                listed = getattr(node, name, None)
                if isinstance(listed, list) and not isinstance(node, ast.ClassDef):
                    setattr(node, name, self._marked(listed))
        self._depth -= is_function
        return node

    def _marked(self, body: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in body:
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not docstring and not isinstance(statement, ast.Nonlocal | ast.Global):
                found.append(self._mark(statement))
            found.append(statement)
        return found

    def _mark(self, statement: ast.stmt) -> ast.stmt:
        number = self._marks.new(self._file, statement.lineno)
        mark = ast.Assign(
            targets=[
                ast.Subscript(
                    value=ast.Name(id=_NAME, ctx=ast.Load()),
                    slice=ast.Constant(value=number),
                    ctx=ast.Store(),
                )
            ],
            value=ast.Constant(value=1),
        )
        return ast.fix_missing_locations(ast.copy_location(mark, statement))


class MarkingFinder(importlib.abc.MetaPathFinder):
    """Imports the chosen files of `root` with marks; `planted` replaces the code of one file."""

    def __init__(self, root: Path, files: Iterable[str], planted: dict[str, CodeType] | None = None) -> None:
        self.marks = Marks()
        self._root = root
        self._files = frozenset(files)
        self._planted = planted or {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        stem = name.removeprefix(PREFIX).replace(".", "/")
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in self._files:
                return importlib.machinery.ModuleSpec(
                    name,
                    _Loader(self, file),
                    origin=str(self._root / file),
                    is_package=file.endswith("__init__.py"),
                )
        return None

    def import_all(self) -> None:
        """Imports the files that no code has imported yet."""
        for file in sorted(self._files):
            name = modules_of(file)[0]
            if name not in sys.modules and not name.endswith(".__main__"):
                importlib.import_module(name)

    def code(self, file: str) -> CodeType:
        if file in self._planted:
            return self._planted[file]
        path = self._root / file
        tree = ast.parse(path.read_text(), str(path))
        return compile(_Marker(self.marks, file).visit(tree), str(path), "exec", dont_inherit=True)


class _Loader(importlib.abc.Loader):
    def __init__(self, finder: MarkingFinder, file: str) -> None:
        self._finder = finder
        self._file = file

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        path = str(self._finder._root / self._file)
        module.__file__ = path
        if self._file.endswith("__init__.py"):
            module.__path__ = [str(Path(path).parent)]
        module.__dict__[_NAME] = self._finder.marks.seen
        exec(self._finder.code(self._file), module.__dict__)


def modules_of(file: str) -> tuple[str, str]:
    """The names as which a file below the root is imported: below the package's name, or its own path."""
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return PREFIX + name, name


def install(finder: MarkingFinder) -> None:
    """Puts the finder first. Raises RuntimeError if one of its modules is imported already."""
    early = [file for file in finder._files if any(name in sys.modules for name in modules_of(file))]
    if early:
        raise RuntimeError(f"{early[0]} is imported already: it cannot be marked")
    sys.meta_path.insert(0, finder)
