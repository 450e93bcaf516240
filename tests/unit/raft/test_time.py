"""Time has one name: the keyword `now_ms` is the core's clock; `wall_ms` is for records and display only."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metaquorum.raft.core import RaftCore

RAFT = Path(__file__).resolve().parents[3] / "raft"
CLOCKS = {"at_ms", "clock", "monotonic", "monotonic_ms", "now", "time", "time_ms", "timestamp", "wall"}
INPUTS = [
    method
    for name, method in inspect.getmembers(RaftCore, inspect.isfunction)
    if not name.startswith("_") and "list[RaftEffect]" in str(inspect.signature(method).return_annotation)
]


def functions() -> Iterator[tuple[str, list[str], list[str]]]:
    """Where each function of the library stands, its parameters, and those of them that are keywords."""
    for path in sorted(RAFT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                where = f"{path.relative_to(RAFT)} {getattr(node, 'name', 'lambda')}"
                keywords = [each.arg for each in node.args.kwonlyargs]
                places = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
                yield where, [*places, *keywords], keywords


def test_the_time_is_a_keyword() -> None:
    found = [(where, "now_ms" in keywords) for where, names, keywords in functions() if "now_ms" in names]
    assert len(found) > 90
    assert [where for where, is_keyword in found if not is_keyword] == []


def test_time_has_no_other_name() -> None:
    assert [(where, name) for where, names, _ in functions() for name in names if name in CLOCKS] == []


@pytest.mark.parametrize("method", INPUTS, ids=lambda method: method.__name__)
def test_every_input_of_the_core_takes_the_time(method: Callable[..., Any]) -> None:
    assert inspect.signature(method).parameters["now_ms"].kind is inspect.Parameter.KEYWORD_ONLY
