"""The mutants of a source file: where each one is, what it is called, and its code."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType

from tests.mutants.operators import Change, changes, children


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake. `function` is the qualified name of the outermost function, '' at a module's top level.
    `statement` is the line of the statement that contains the mistake; `at_import` is true if the code runs
    when the module is imported, so that no function can be exchanged."""

    file: str
    function: str
    operator: str
    before: str
    after: str
    repeat: int
    line: int
    statement: int
    at_import: bool
    names: tuple[str, ...]
    place: tuple[ast.AST, str, int | None] = field(repr=False, compare=False)
    change: Change = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """A short name that stays the same when lines move: of the file, the function and the mistake."""
        told = "\n".join((self.file, self.function, self.operator, self.before, self.after, str(self.repeat)))
        return hashlib.sha256(told.encode()).hexdigest()[:10]


class Source:
    """One file as a syntax tree, with all its mutants."""

    def __init__(self, root: Path, file: str) -> None:
        self.file = file
        self.path = str((root / file).resolve())
        self.tree = ast.parse((root / file).read_text(), self.path)
        self.mutants = list(self._mutants())

    def _mutants(self) -> Iterator[Mutant]:
        seen: Counter[tuple[str, ...]] = Counter()
        for node, name, at, child, where in _walk(self.tree, _Where()):
            statement = child if isinstance(child, ast.stmt) else where.statement
            if statement is None:
                continue
            whole = ast.unparse(statement)
            for change in changes(child):
                place = (node, name, at)
                if child is statement:
                    after = ast.unparse(change.node)
                else:
                    with exchanged(place, change.node):
                        after = ast.unparse(statement)
                told = (where.function, change.operator, *_differing(whole, after))
                yield Mutant(
                    file=self.file,
                    function=where.function,
                    operator=change.operator,
                    before=told[2],
                    after=told[3],
                    repeat=seen[told],
                    line=getattr(child, "lineno", statement.lineno),
                    statement=statement.lineno,
                    at_import=where.at_import,
                    names=where.names,
                    place=place,
                    change=change,
                )
                seen[told] += 1

    def compiled(self, mutant: Mutant) -> CodeType:
        """The module's code with the mistake in it."""
        with exchanged(mutant.place, mutant.change.node):
            return compile(ast.fix_missing_locations(self.tree), self.path, "exec", dont_inherit=True)


@dataclass(frozen=True, slots=True)
class _Where:
    """The position of a walk: in which function, in which statement, and whether the code runs at import."""

    function: str = ""
    statement: ast.stmt | None = None
    at_import: bool = True
    prefix: str = ""
    names: tuple[str, ...] = ()


@contextmanager
def exchanged(place: tuple[ast.AST, str, int | None], node: ast.AST) -> Iterator[None]:
    """Another node at a place of the tree, during the context."""
    parent, name, at = place
    if at is None:
        before = getattr(parent, name)
        setattr(parent, name, node)
    else:
        before = getattr(parent, name)[at]
        getattr(parent, name)[at] = node
    try:
        yield
    finally:
        if at is None:
            setattr(parent, name, before)
        else:
            getattr(parent, name)[at] = before


def _walk(node: ast.AST, where: _Where) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, _Where]]:
    for name, at, child in children(node):
        inner = where
        if isinstance(child, ast.stmt):
            inner = replace(where, statement=child, names=where.names or _bound(child))
        yield node, name, at, child, inner
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _walk(child.args, inner)  # the defaults
                own = inner.function or f"{inner.prefix}{child.name}"
                inside = replace(inner, function=own, at_import=False)
                for found in _walk(child, inside):
                    if found[0] is not child or found[1] == "body":
                        yield found
            case ast.arguments():
                pass
            case ast.ClassDef() if not inner.function:
                inside = replace(inner, prefix=f"{inner.prefix}{child.name}.", names=(child.name,))
                yield from _walk(child, inside)
            case _:
                yield from _walk(child, inner)


def _bound(node: ast.stmt) -> tuple[str, ...]:
    """Names that a statement at a module's top level binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Assign(targets=targets):
            return tuple(at.id for target in targets for at in ast.walk(target) if isinstance(at, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
    return ()


def _differing(before: str, after: str) -> tuple[str, str]:
    """The lines of two texts between their common beginning and their common end, each as one line."""
    old, new = before.splitlines(), after.splitlines()
    while len(old) > 1 and len(new) > 1 and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return " ".join(line.strip() for line in old), " ".join(line.strip() for line in new)
