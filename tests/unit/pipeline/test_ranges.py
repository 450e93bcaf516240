"""Ranges of offsets, whose ends are exclusive, and what is said of those that were not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.pipeline.ingest.layout import ClusterEntry
from metaquorum.pipeline.ingest.plan import _extends, _size, _within, without
from metaquorum.pipeline.logs.merged import SHARED_ID, Conflict, MergedHistory

Ranges = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("inner", "outer", "holds"),
    [
        ([], [], True),
        ([], [(0, 5)], True),
        ([(0, 5)], [], False),
        ([(0, 5)], [(0, 5)], True),
        ([(1, 4)], [(0, 5)], True),
        ([(0, 6)], [(0, 5)], False),
        ([(3, 5)], [(4, 9)], False),
        ([(0, 5), (9, 12)], [(0, 5), (8, 20)], True),
        ([(0, 5), (9, 12)], [(0, 5), (10, 20)], False),
        ([(0, 9)], [(0, 5), (5, 9)], False),
    ],
)
def test_a_range_is_within_one_that_holds_all_of_it(inner: Ranges, outer: Ranges, holds: bool) -> None:
    assert _within(inner, outer) is holds


@pytest.mark.parametrize(
    ("below", "size"), [(0, 0), (1, 0), (2, 1), (5, 4), (9, 4), (10, 4), (11, 5), (99, 10)]
)
def test_the_size_of_what_is_below_an_offset(below: int, size: int) -> None:
    assert _size([(1, 5), (10, 16)], below) == size


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], [(1, 5), (10, 16)]),
        ([(0, 20)], []),
        ([(1, 5)], [(10, 16)]),
        ([(5, 10)], [(1, 5), (10, 16)]),
        ([(2, 3)], [(1, 2), (3, 5), (10, 16)]),
        ([(4, 11), (15, 99)], [(1, 4), (11, 15)]),
    ],
)
def test_what_is_left_of_ranges_without_others(others: Ranges, left: Ranges) -> None:
    assert without([(1, 5), (10, 16)], others) == left


Looks = list[tuple[int, int, int]]
ONE: Looks = [(0, 50, -1)]
TWO: Looks = [(0, 50, -1), (70, 90, 75)]


@pytest.mark.parametrize(
    ("known", "now", "extends"),
    [
        (ONE, ONE, True),
        (ONE, [(0, 80, -1)], True),
        (ONE, [(0, 45, -1)], True),  # its uncommitted end was replaced
        (ONE, [(0, 50, -1), (70, 90, 75)], True),
        (ONE, [(0, 45, -1), (70, 90, 75)], False),
        (ONE, [(10, 50, 20)], False),
        (TWO, TWO, True),
        (TWO, [(0, 50, -1), (70, 120, 75)], True),
        (TWO, [(0, 90, -1)], False),  # the hole was filled
        (TWO, [(0, 60, -1), (70, 90, 75)], False),
        (TWO, [(0, 50, -1), (60, 90, 75)], False),
        (TWO, [(0, 50, -1), (70, 90, 70)], False),  # the state is known earlier
        (TWO, ONE, False),
        ([(0, 50, -1), (60, 60, 60)], [(0, 50, -1), (60, 80, 60)], False),
    ],
)
def test_a_history_extends_another_only_at_its_end(known: Looks, now: Looks, extends: bool) -> None:
    assert _extends(now, ClusterEntry(runs=known)) is extends


def log(name: str, node_id: int | None = None, *, is_retained: bool = False) -> Any:
    place = SimpleNamespace(path=f"/{name}", node_id=node_id, is_retained=is_retained)
    return SimpleNamespace(key=name, location=place)


def why(name: str, low: int, high: int, *conflicts: tuple[str, int, str], section: Any = None) -> str | None:
    """Of a segment of one log; the history is that of another from 10 to 20."""
    read: Any = SimpleNamespace(log=section or log("read", 3), start=10, end=20)
    told = [Conflict(log(whose), offset, kind, "why") for whose, offset, kind in conflicts]
    segment: Any = SimpleNamespace(start_offset=low, end_offset=high)
    return MergedHistory("c", [read], told, []).why_unused(log(name), segment)


@pytest.mark.parametrize("kind", ["mismatch", "seam", "superseded", "corrupt", "a-first", "z-last"])
def test_a_conflict_is_why_a_segment_was_not_read(kind: str) -> None:
    assert why("x", 5, 12, ("x", 11, kind)) == f"{kind}: why"
    assert why("x", 5, 12, ("x", 12, kind)) == "its records belong to no part of the history"
    assert why("x", 5, 12, ("y", 11, kind)) == "its records belong to no part of the history"
    assert why("x", 5, 12, ("x", 11, SHARED_ID)) == "its records belong to no part of the history"


def test_a_segment_that_was_read_needs_no_reason() -> None:
    for low, high in ((5, 11), (10, 20), (19, 30)):
        assert why("read", low, high, ("read", 0, "mismatch")) is None
    for low, high in ((5, 10), (20, 30)):
        assert why("read", low, high) == "its records belong to no part of the history"
    assert why("read", 7, 7) == "it holds no record"


def test_records_that_another_log_has_name_it() -> None:
    assert why("x", 10, 12) == "its records were read from node 3, /read"
    assert why("x", 10, 12, section=log("read")) == "its records were read from /read"
    retained = log("read", 3, is_retained=True)
    assert why("x", 19, 21, section=retained) == "an earlier run read its records from another log"
