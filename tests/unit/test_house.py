"""What every file of the package keeps to: its size, its docstring, one meaning of a name.

The tables of exceptions only shrink: an entry that is no longer needed, or that allows more than there is,
fails as well.
"""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from tests.unit.sources import FOLDERS, files, name_of, tree_of

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
SLACK = 20
"""An exception may be a little larger than what it allows, so that not every small edit has to touch it."""
MAX_FILES_IN_A_ROOM = 14
"""A dozen and a few; `__init__` is not counted."""

LONG_FILES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}
FULL_ROOMS: dict[str, int] = {}

NAMES_OF_TWO_THINGS: dict[str, int] = {
    # Kafka has one Fetch for the quorum and for partitions; here each has its own fields
    "FetchRequest": 2,
    "FetchResponse": 2,
    # KIP-853: Kafka's name of the structure in records, and a voter as Raft is configured with it
    "Voter": 2,
}
"""Public classes of the same name in several modules, and how many there are."""

NOQA = re.compile(r"C901|PLR09\d\d")
COMPLEX_FUNCTIONS: dict[str, int] = {
    "C901": 6,
    "PLR0911": 10,
    "PLR0912": 1,
    "PLR0913": 9,
}
"""How many functions carry a noqa, by ruff's rule: most are one `match` over every kind of a thing."""


def only_shrinks(allowed: dict[str, int], found: dict[str, int], limit: int, slack: int = 0) -> list[str]:
    """What is over the limit without an exception, and exceptions that allow more than is needed."""
    over = {name: size for name, size in found.items() if size > limit}
    wrong = [
        f"{name}: {size} lines, files or homes, {allowed.get(name, limit)} are allowed: split it by concept"
        for name, size in over.items()
        if size > allowed.get(name, limit)
    ]
    return wrong + [
        f"{name}: the exception allows {size}, {over.get(name, limit)} are enough: lower or remove it"
        for name, size in allowed.items()
        if size > over.get(name, 0) + slack
    ]


def test_exceptions_only_shrink() -> None:
    assert only_shrinks({}, {"a": 400}, 400) == []
    assert "split it" in only_shrinks({}, {"a": 401}, 400)[0]
    assert only_shrinks({"a": 500}, {"a": 500}, 400) == []
    assert only_shrinks({"a": 500}, {"a": 480}, 400, 20) == []
    assert "lower or remove" in only_shrinks({"a": 500}, {"a": 479}, 400, 20)[0]
    assert "lower or remove" in only_shrinks({"a": 500}, {"a": 300}, 400)[0]
    assert "lower or remove" in only_shrinks({"gone": 500}, {}, 400)[0]


def test_files_are_short() -> None:
    sizes = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in files()}
    assert only_shrinks(LONG_FILES, sizes, MAX_FILE_LINES, SLACK) == []


def test_functions_are_short() -> None:
    sizes: dict[str, int] = {}
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                key = f"{name_of(path)} {node.name}"
                sizes[key] = max(sizes.get(key, 0), node.end_lineno - node.lineno + 1)
    assert only_shrinks(LONG_FUNCTIONS, sizes, MAX_FUNCTION_LINES) == []


def test_complex_functions_do_not_become_more() -> None:
    found = Counter(
        rule
        for path in files()
        for line in path.read_text("utf-8").splitlines()
        if "# noqa:" in line
        for rule in NOQA.findall(line.partition("# noqa:")[2])
    )
    assert only_shrinks(COMPLEX_FUNCTIONS, dict(found), 0) == []


def test_rooms_have_about_a_dozen_files() -> None:
    sizes = Counter(name_of(path.parent) for path in files() if path.name != "__init__.py")
    assert only_shrinks(FULL_ROOMS, dict(sizes), MAX_FILES_IN_A_ROOM) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_says_what_it_is(folder: str) -> None:
    silent = []
    for path in files():
        if name_of(path).split("/")[0] != folder:
            continue
        text = ast.get_docstring(tree_of(path)) or ""
        first = text.partition("\n\n")[0].strip()
        if len(first.split()) < 4 or not first.endswith((".", ":", "`")):
            silent.append(name_of(path))
    assert silent == [], "say in one sentence what the module is"


OWNS = re.compile(r"\b(?:owns?|owned)\b", re.IGNORECASE)
LIMITS = re.compile(r"\b(?:knows?|(?:does|do|must) not|never|no [^.]*\bhere)\b", re.IGNORECASE)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_says_what_it_owns_and_must_not_know(folder: str) -> None:
    silent = []
    for path in files():
        if name_of(path).split("/")[0] == folder and path.name != "__init__.py":
            text = " ".join((ast.get_docstring(tree_of(path)) or "").split())
            if not (OWNS.search(text) and LIMITS.search(text)):
                silent.append(name_of(path))
    assert silent == [], "say what the module owns, and what it must not know (and where that is instead)"


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    twice = {name: len(found) for name, found in homes.items() if len(found) > 1}
    assert only_shrinks(NAMES_OF_TWO_THINGS, twice, 1) == [], {name: homes[name] for name in twice}
