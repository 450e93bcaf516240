"""Time has one name and one place: `now_ms`, the core's clock, comes first; `wall_ms` is for records only."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum.raft.core import RaftCore

RAFT = Path(__file__).resolve().parents[3] / "raft"
CLOCKS = {"clock", "monotonic", "monotonic_ms", "now", "time", "time_ms", "timestamp", "wall"}
INPUTS = [
    method
    for name, method in inspect.getmembers(RaftCore, inspect.isfunction)
    if not name.startswith("_") and "list[RaftEffect]" in str(inspect.signature(method).return_annotation)
]


def functions() -> Iterator[tuple[str, list[str]]]:
    """Where each function of the library stands, and its parameters behind `self` and `state`."""
    for path in sorted(RAFT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                names = [each.arg for each in parameters if each.arg not in ("self", "state")]
                yield f"{path.relative_to(RAFT)} {node.name}", names


def test_the_time_comes_first() -> None:
    late = [where for where, names in functions() if "now_ms" in names[1:] and "__init__" not in where]
    assert late == []


def test_time_has_no_other_name() -> None:
    assert [(where, name) for where, names in functions() for name in names if name in CLOCKS] == []


@pytest.mark.parametrize("method", INPUTS, ids=lambda method: method.__name__)
def test_every_input_of_the_core_takes_the_time(method: Callable[..., Any]) -> None:
    assert list(inspect.signature(method).parameters)[:2] == ["self", "now_ms"]
