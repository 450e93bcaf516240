"""Values that hold for a while, and the columns that say from when until when."""

from __future__ import annotations

from metaquorum.metadata.records.batch_cause import BatchCause
from metaquorum.pipeline.intervals.moments import Intervals, Memory, Moment

A, B, C = (Moment(at, 10 * at, 10 * at, BatchCause(principal=f"who {at}")) for at in (3, 5, 9))


def test_a_value_holds_up_to_the_offset_and_time_at_which_it_ended() -> None:
    found: Intervals[str] = Intervals()
    found.start("k", ("v", 1), A)
    found.end("k", B, "why")
    found.end("k", C, "it has none")
    assert found.take() == [("v", 1, "why", 3, 30, 5, 50, True, True, "who 3")]
    assert found.take() == found.open_rows() == []


def test_what_begins_where_another_ended_leaves_no_gap() -> None:
    found: Intervals[str] = Intervals()
    for moment in (A, B, C):
        found.end("k", moment)
        found.start("k", (moment.offset,), moment)
    rows = [*found.take(), *found.open_rows()]
    assert [(row[1], row[3]) for row in rows] == [(3, 5), (5, 9), (9, None)]
    assert [(row[2], row[4]) for row in rows] == [(30, 50), (50, 90), (90, None)]


def test_a_value_that_lasts_has_no_end_and_stays_open() -> None:
    found: Intervals[str] = Intervals()
    found.start("k", ("v",), A)
    expected = ("v", "so far", 3, 30, None, None, True, True, "who 3")
    for _ in range(2):
        assert found.open_rows(lambda key: ("so far",)) == [expected]
    assert found.take() == []


def test_beginnings_and_ends_that_nobody_saw() -> None:
    found: Intervals[str] = Intervals(has_actors=False)
    found.start("older", ("v",), A, from_known=False)
    found.start("lost", ("w",), B)
    found.lose(C, lambda key: (key,))
    assert found.take() == [
        ("v", "older", 3, 30, 9, 90, False, False),
        ("w", "lost", 5, 50, 9, 90, True, False),
    ]
    assert found.open == {}


def test_more_that_is_known_of_a_value_changes_no_beginning() -> None:
    found: Intervals[str] = Intervals()
    found.start("k", ("v",), A)
    found.refine("k", ("w",))
    found.end("k", C)
    assert found.take() == [("w", 3, 30, 9, 90, True, True, "who 3")]


def test_what_began_below_an_offset_is_taken_from_who_saw_it_begin() -> None:
    left: Intervals[str] = Intervals()
    right: Intervals[str] = Intervals()
    left.start("k", ("v",), A)
    right.start("k", ("v",), B, from_known=False)
    right.start("own", ("w",), C)
    right.adopt(left, below=5)
    assert right.open["k"].offset == 5, "not below it"
    right.adopt(left, below=6)
    assert [right.open[key].offset for key in ("k", "own")] == [3, 9]


def test_a_saved_state_goes_on_as_it_was() -> None:
    found: Intervals[tuple[str, int]] = Intervals()
    found.start(("k", 1), ("v", (1, 2)), A)
    again: Intervals[tuple[str, int]] = Intervals()
    again.load([[list(key), list(value)] for key, value in found.save()])
    assert again.open == found.open


def test_who_was_asked_for_in_vain_is_remembered() -> None:
    memory = Memory([("a", 1)])
    assert (memory.recall("a"), memory.recall("b"), memory.missed) == (1, None, {"b"})
