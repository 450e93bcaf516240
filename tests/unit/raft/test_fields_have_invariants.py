"""What a replica keeps says of each field what always holds for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

RAFT = Path(__file__).resolve().parents[3] / "raft"


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Those that change: data classes, and others with a constructor."""
    for path in (RAFT / name for name in ("log_view.py", "memory.py", "roles.py", "state.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and (node.decorator_list or constructor(node)):
                yield f"{path.stem}.{node.name}", node


def constructor(node: ast.ClassDef) -> list[ast.stmt]:
    return next(
        (at.body for at in node.body if isinstance(at, ast.FunctionDef) and at.name == "__init__"), []
    )


def bare_fields(body: list[ast.stmt]) -> list[str]:
    """Fields that no text follows. The name of a role is no field: it never changes."""
    bare = []
    for at, after in zip(body, [*body[1:], None], strict=False):
        if not isinstance(at, ast.Assign | ast.AnnAssign):
            continue
        (target,) = at.targets if isinstance(at, ast.Assign) else [at.target]
        told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        of_instance = isinstance(target, ast.Attribute) or isinstance(at, ast.AnnAssign)
        name = ast.unparse(target)
        if of_instance and not told and name != "role":
            bare.append(name)
    return bare


CLASSES = dict(classes())


def test_the_state_is_found() -> None:
    assert {"roles.Follower", "roles.LeaderView", "log_view.LogView", "state.RaftState"} <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_has_its_invariant(name: str) -> None:
    node = CLASSES[name]
    declared = {
        at.target.id for at in node.body if isinstance(at, ast.AnnAssign) and isinstance(at.target, ast.Name)
    }
    given = [name for name in bare_fields(constructor(node)) if name.removeprefix("self.") not in declared]
    assert bare_fields(node.body) + given == []


def test_a_field_without_one_is_noticed() -> None:
    (node,) = ast.parse('class A:\n    a: int\n    """Never falls."""\n    b: int = 0\n').body
    assert isinstance(node, ast.ClassDef)
    assert bare_fields(node.body) == ["b"]
