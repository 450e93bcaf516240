"""Waits of tests have limits: since Python 3.12 a server's `wait_closed` waits for its connections, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIMITS = ("within(", "asyncio.timeout(")


def unlimited(node: ast.AST, name: str) -> Iterator[int]:
    """The lines that call a method of this name outside a limit."""
    if isinstance(node, ast.AsyncWith) and any(
        ast.unparse(item.context_expr).startswith(LIMITS) for item in node.items
    ):
        return
    if isinstance(node, ast.Call):
        if ast.unparse(node.func) == "asyncio.wait_for":
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from unlimited(child, name)


def test_a_wait_for_the_end_of_connections_has_a_limit() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if "wait_closed" in (source := path.read_text("utf-8"))
        for line in unlimited(ast.parse(source), "wait_closed")
    ]
    assert found == [], "put it into `async with within(...)` of tests.waiting, which says what it waits for"


def test_a_limit_is_seen() -> None:
    open_wait = "async def f(s):\n    await s.wait_closed()\n"
    assert list(unlimited(ast.parse(open_wait), "wait_closed")) == [2]
    limited = "async def f(s):\n    async with within('x'):\n        await s.wait_closed()\n"
    assert list(unlimited(ast.parse(limited), "wait_closed")) == []
