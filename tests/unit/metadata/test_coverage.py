"""What an answer does not cover: the stretch before the first known state, and the shape all tools print."""

from __future__ import annotations

import pytest

from metaquorum.metadata.inspect.log.coverage import (
    MISSING,
    NOT_IN_LOG,
    STATE_UNKNOWN,
    Coverage,
    Uncovered,
    before_the_log,
    before_the_state,
    known_from,
)
from metaquorum.metadata.inspect.log.log import MetadataLog
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.storage.log.segment import segment_name
from tests.unit.metadata.made_logs import HOME, add_snapshot, make_node, memory_disk


def trimmed(*snapshots: int, first: int = 4) -> MetadataLog:
    """The story with segments of two batches each, without what is before `first`, with those snapshots."""
    disk = memory_disk()
    node = make_node(disk, per_segment=2)
    for offset in snapshots:
        add_snapshot(node, offset)
    for base in [one for one in node.log.segments if one < first]:
        disk.remove(f"{HOME}/__cluster_metadata-0/{segment_name(base)}")
    return node.log


@pytest.mark.parametrize(
    "snapshots, known",
    [((12,), 12), ((11, 13), 11), ((2,), None), ((), None), ((2, 4), 4), ((4, 12), 4)],
)
def test_a_state_is_known_from_the_first_snapshot_that_is_not_before_the_log(
    snapshots: tuple[int, ...], known: int | None
) -> None:
    log = trimmed(*snapshots)
    assert log.start_offset == 4
    assert known_from(log) == known
    found = before_the_state(log, None, END, "nothing is told")
    if known == 4:
        assert found is None
    else:
        assert found is not None and found.reason == STATE_UNKNOWN
        assert (found.from_offset, found.to_offset) == (4, known)


def test_a_snapshot_without_its_end_is_no_state() -> None:
    log = trimmed(11, 13)
    first = log.snapshot(log.snapshots()[0]).path
    file = log.disk.open_append(first)
    file.truncate(file.size() - 40)
    file.close()
    assert known_from(log) == 13


def test_what_was_asked_about_bounds_it() -> None:
    log = trimmed(12)
    found = before_the_state(log, Point(offset=5), Point(offset=7), "x")
    assert found is not None and (found.from_offset, found.to_offset) == (5, 7)
    assert before_the_state(log, Point(offset=12), END, "x") is None
    before = before_the_log(log, Point(offset=1))
    assert before is not None and before.tree() == {
        "path": log.path,
        "fromOffset": 1,
        "toOffset": 4,
        "reason": NOT_IN_LOG,
        "text": "the log begins at offset 4: earlier records were deleted, or are on another node",
    }
    assert before_the_log(log, None) is None and before_the_log(log, Point(offset=4)) is None


def test_neighbours_are_one_range_and_nothing_is_told_twice() -> None:
    coverage = Coverage()
    assert not coverage
    for start, end in ((3, 5), (5, 9), (3, 9), (9, 9), (20, None), (20, None)):
        coverage.add(Uncovered(from_offset=start, to_offset=end, reason=MISSING, text="lost"))
    assert [one.line for one in coverage] == [
        "offsets 3 to 8 (missing): lost",
        "offsets from 20 on (missing): lost",
    ]


def test_only_neighbours_of_one_log_one_reason_and_one_text_become_one() -> None:
    def lost(start: int, end: int | None, **other: str) -> Uncovered:
        told = {"reason": MISSING, "text": "lost", "path": "/log"} | other
        return Uncovered(from_offset=start, to_offset=end, **told)

    coverage = Coverage()
    first, apart = lost(0, 5), lost(10, 12)
    coverage.extend((first, apart, lost(12, 12), lost(12, 14), apart))
    assert coverage.ranges == [first, lost(10, 14), apart], "a range is told again only where it is another"
    for other in ({"path": "/later"}, {"reason": NOT_IN_LOG}, {"text": "trimmed"}, {"text": "aa"}):
        coverage = Coverage()
        coverage.extend((first, lost(5, 7, **other), lost(7, None, **other)))
        assert coverage.ranges == [first, lost(5, None, **other)]
