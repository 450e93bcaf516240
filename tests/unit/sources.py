"""The package's own files, for the tests that read them as text."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.name for path in (REPOSITORY / "metaquorum").iterdir() if path.is_symlink())


@cache
def files() -> list[Path]:
    """Every module of the package, but for generated ones."""
    found = sorted((REPOSITORY / "metaquorum").glob("*.py"))
    for folder in FOLDERS:
        found += sorted(path for path in (REPOSITORY / folder).rglob("*.py") if "_pb2" not in path.name)
    return found


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def module_of(path: Path) -> str:
    """The name by which it is imported."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "metaquorum" else ("metaquorum", *parts))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))
