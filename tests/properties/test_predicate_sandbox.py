"""A user's expression only reads values: whatever it contains, it opens nothing, imports nothing, and does
not change the image.
"""

from __future__ import annotations

import io
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.image.chunk import Chunk
from metaquorum.metadata.image.columns import PartitionColumns
from metaquorum.metadata.inspect.checks.predicate import (
    REFUSED,
    PredicateError,
    compile_predicate,
    is_refused,
)
from metaquorum.metadata.inspect.checks.predicate_names import HELPERS, RESOLVERS, SAFE_BUILTINS
from tests.unit.metadata.test_predicate import PLACE, image

REACHING = (
    "open",
    "import",
    "os.",
    "shutil.",
    "subprocess.",
    "socket.",
    "ctypes.",
    "pickle.",
    "sys._getframe",
)
"""Prefixes of the audit events (PEP 578) that an expression must not cause."""
CODE = (types.ModuleType, types.CodeType, types.FrameType, io.IOBase)
COLUMNS = (np.ndarray, np.generic, memoryview, PartitionColumns, Chunk)

_watched: list[str] | None = None


def _hook(event: str, _: tuple[Any, ...]) -> None:
    if _watched is not None and event.startswith(REACHING):
        _watched.append(event)


sys.addaudithook(_hook)


def parts_of(value: object) -> Iterator[tuple[str, object]]:
    """What an expression can reach from a value: its attributes, what they return, and its first elements."""
    for name in dir(value):
        if not is_refused(name):
            found = getattr(value, name, None)
            yield f".{name}", found
            if callable(found):
                for arguments in ((), (0,), (b"",), ("orders",)):
                    try:
                        yield f".{name}{arguments}", found(*arguments)
                    except Exception:
                        pass
    if isinstance(value, list | tuple | dict | set | frozenset):
        yield from ((f"[{at}]", each) for at, each in enumerate([*value][:3]))


def test_nothing_but_values_can_be_reached() -> None:
    todo = deque([("image", PLACE.image), *((name, make(PLACE)) for name, make in RESOLVERS.items())])
    seen: set[tuple[type, str]] = set()
    while todo:
        path, value = todo.popleft()
        assert not isinstance(value, CODE + COLUMNS), path
        for step, part in parts_of(value):
            place = (type(value), step)
            if place not in seen and path.count(".") < 5:
                seen.add(place)
                todo.append((path + step, part))
    assert len(seen) > 150


ATTRIBUTES = sorted(
    {
        name
        for each in (PLACE.image, PLACE.image.topics, PLACE.image.brokers[1], PLACE.quorum, "", (), {}, 1)
        for name in dir(each)
    }
    | REFUSED
)
ATOMS = st.sampled_from(
    [
        *HELPERS,
        *SAFE_BUILTINS,
        "1",
        "0",
        "'orders'",
        "'/tmp/x'",
        "b''",
        "[]",
        "{}",
        "()",
        "True",
        "None",
        "10**9",
    ]
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names, arguments = st.sampled_from(ATTRIBUTES), st.lists(inner, max_size=2)
    return st.one_of(
        st.tuples(inner, names).map(lambda parts: f"({parts[0]}).{parts[1]}"),
        st.tuples(inner, arguments).map(lambda parts: f"({parts[0]})({', '.join(parts[1])})"),
        st.tuples(inner, inner).map(lambda parts: f"({parts[0]})[{parts[1]}]"),
        st.tuples(inner, inner, st.sampled_from("+ * % ** << == in and".split())).map(
            lambda parts: f"({parts[0]}) {parts[2]} ({parts[1]})"
        ),
        inner.map(lambda text: f"[x for x in {text}]"),
        inner.map(lambda text: f"(lambda *x: {text})"),
        inner.map(lambda text: f"f'{{{text}!r}}'" if "'" not in text else text),
    )


def fingerprint() -> str:
    found = PLACE.image
    counts, brokers = found.topics.columns.replica_counts.items(), found.brokers.items()
    return repr([list(found.topics.all()), list(counts), dict(brokers)])


@settings(max_examples=600, deadline=None)
@given(st.recursive(ATOMS, _grown, max_leaves=8))
def test_no_expression_reaches_outside_or_changes_the_image(source: str) -> None:
    global _watched  # noqa: PLW0603
    before = fingerprint()
    try:
        predicate = compile_predicate(source)
    except PredicateError:
        return
    _watched = []
    try:
        predicate.verdict(PLACE)
    except PredicateError:
        pass
    finally:
        events, _watched = _watched, None
    assert events == [] and fingerprint() == before


def test_the_watch_would_see_it() -> None:
    global _watched  # noqa: PLW0603
    _watched = []
    try:
        with open(__file__):
            pass
    finally:
        events, _watched = _watched, None
    assert "open" in events and image() is not PLACE.image
