"""Small parts of the log tools by themselves: stretches summed up, what was not covered, places and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect import summary as summaries
from metaquorum.metadata.inspect.entities.history import filter_of
from metaquorum.metadata.inspect.entities.targets import suggestion
from metaquorum.metadata.inspect.entities.views import Wanted
from metaquorum.metadata.inspect.log.coverage import (
    Coverage,
    Uncovered,
    before_the_log,
    before_the_state,
    known_from,
    offsets_text,
)
from metaquorum.metadata.inspect.log.points import (
    END,
    Point,
    ms_hint,
    parse_point,
    parse_span_ms,
    parse_time_ms,
    utc_text,
)
from metaquorum.metadata.inspect.summary import BrokerSum, OpenSpans, PartitionSpan
from metaquorum.metadata.inspect.walk.batch_filter import BatchFilter
from metaquorum.storage.types import LogPosition

# ---- stretches ------------------------------------------------------------------------------

START = (10, 1_000)


def span(
    begun: tuple[int, int], ended: tuple[int, int] | None, first: str, many: int, ms: int
) -> PartitionSpan:
    return PartitionSpan(begun=begun, ended=ended, first=first, partitions=many, span_ms=ms)


def test_what_began_and_ended_together_is_one_stretch() -> None:
    found = OpenSpans()
    found.begin(("topic/a/0", "topic/a/1"), (11, 1_100))
    found.begin(("topic/a/1", "topic/b/0"), (12, 1_200))
    found.end(("topic/a/0", "topic/a/1", "topic/b/0", "topic/none/0"), (20, 1_500), START)
    assert found.closed == [
        span((11, 1_100), (20, 1_500), "topic/a/0", 2, 400),
        span((12, 1_200), (20, 1_500), "topic/b/0", 1, 300),
    ]
    assert (found.total_ms, found.open) == (1_100, {})
    assert found.touched == {"topic/a/0", "topic/a/1", "topic/b/0"}
    found.end(("topic/a/0",), (21, 9_000), START)
    assert len(found.closed) == 2


@pytest.mark.parametrize(
    ("begun", "ended", "ms"),
    [
        ((2, 100), (9, 900), None),
        ((2, 100), (10, 1_000), None),
        ((2, 100), (11, 1_001), 1),
        ((2, 100), (11, 900), 0),
        ((10, 1_000), (11, 1_003), 3),
        ((10, 2_000), (11, 1_500), 0),
    ],
)
def test_only_what_is_in_the_range_counts(
    begun: tuple[int, int], ended: tuple[int, int], ms: int | None
) -> None:
    found, broker = OpenSpans(), BrokerSum()
    found.begin(("p",), begun)
    found.end(("p",), ended, START, ended=False)
    broker.fence(begun, "rule", counts=True)
    broker.close(ended, START)
    assert found.open == {} and broker.open is None
    if ms is None:
        assert (found.closed, found.total_ms, found.touched) == ([], 0, set())
        assert (broker.total_ms, broker.longest_ms, broker.longest) == (0, -1, begun)
    else:
        assert found.closed == [span(begun, None, "p", 1, ms)]
        assert (broker.total_ms, broker.longest_ms, broker.longest) == (ms, ms, begun)
        assert broker.longest_rule == "rule"


def test_a_topic_that_goes_ends_what_is_below_it() -> None:
    found = OpenSpans()
    found.end_below("topic/a", (20, 2_000), START)
    found.begin(("topic/a/0", "topic/ab/0", "topic/a"), (11, 1_100))
    found.end_below("topic/a", (20, 2_000), START)
    assert list(found.open) == ["topic/ab/0", "topic/a"]
    assert [one.first for one in found.closed] == ["topic/a/0"]


def test_the_longest_come_first_and_not_all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "KEPT", 2)
    found = OpenSpans()
    for at, (length, many) in enumerate(((5, 1), (9, 1), (9, 2), (7, 1))):
        paths = tuple(f"{at}/{each}" for each in range(many))
        found.begin(paths, (11 + at, 1_000))
        found.end(paths, (30, 1_000 + length), START)
    assert [one.first for one in found.worst(9)] == ["2/0", "1/0", "3/0", "0/0"]
    assert [one.first for one in found.worst(1)] == ["2/0"]
    found.begin(("x",), (20, 1_000))
    found.end(("x",), (30, 1_009), START)
    assert [one.first for one in found.closed] == ["2/0", "1/0"]
    assert found.total_ms == 5 + 9 + 18 + 7 + 9


def test_a_broker_is_fenced_once_until_it_is_not() -> None:
    broker = BrokerSum()
    broker.close((12, 1_100), START)
    broker.fence((12, 1_200), "silent", counts=True)
    broker.fence((13, 1_300), "again", counts=True)
    assert (broker.fences, broker.open, broker.open_rule) == (2, (12, 1_200), "silent")
    broker.close((14, 1_400), START)
    broker.fence((15, 1_500), "before", counts=False)
    broker.close((16, 1_700), START)
    broker.fence((17, 1_800), "last", counts=True)
    assert (broker.fences, dict(broker.rules)) == (3, {"silent": 1, "again": 1, "last": 1})
    assert (broker.total_ms, broker.longest_ms, broker.longest, broker.longest_rule) == (
        *(400, 200, (12, 1_200), "silent"),
    )
    assert broker.open == (17, 1_800)


# ---- what was not covered -------------------------------------------------------------------


def gap(start: int, end: int | None, reason: str = "r", text: str = "t", path: str = "p") -> Uncovered:
    return Uncovered(from_offset=start, to_offset=end, reason=reason, text=text, path=path)


@pytest.mark.parametrize(
    ("added", "kept"),
    [
        ([None], []),
        ([gap(5, 5)], []),
        ([gap(5, 4)], []),
        ([gap(5, None)], [gap(5, None)]),
        ([gap(5, 6), gap(6, 9)], [gap(5, 9)]),
        ([gap(5, 6), gap(6, None)], [gap(5, None)]),
        ([gap(5, 6), gap(7, 9)], [gap(5, 6), gap(7, 9)]),
        ([gap(5, 6), gap(6, 9, "other")], [gap(5, 6), gap(6, 9, "other")]),
        ([gap(5, 6), gap(6, 9, "r", "other")], [gap(5, 6), gap(6, 9, "r", "other")]),
        ([gap(5, 6), gap(6, 9, "r", "t", "other")], [gap(5, 6), gap(6, 9, "r", "t", "other")]),
        ([gap(5, 6), gap(5, 6), gap(1, 2), gap(5, 6)], [gap(5, 6), gap(1, 2)]),
    ],
)
def test_neighbours_that_say_the_same_are_one(added: list[Uncovered | None], kept: list[Uncovered]) -> None:
    coverage = Coverage()
    assert not coverage
    for one in added:
        coverage.add(one)
    assert list(coverage) == kept and bool(coverage) == bool(kept)
    assert coverage.tree() == [one.tree() for one in kept]


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (5, None, "offsets from 5 on"),
        (5, 4, "no offset from 5 on"),
        (5, 5, "no offset from 5 on"),
        (5, 6, "offset 5"),
        (5, 7, "offsets 5 to 6"),
        (0, 2, "offsets 0 to 1"),
    ],
)
def test_offsets_in_words(start: int, end: int | None, text: str) -> None:
    assert offsets_text(start, end) == text
    assert gap(start, end).line == f"{text} (r): t"


@dataclass
class Log:
    """As much of a log as coverage asks for."""

    start_offset: int
    ends: tuple[int, ...] = ()
    torn: tuple[int, ...] = ()
    is_checkpoint: bool = False
    path: str = "p"
    segments: tuple[int, ...] = (0,)
    tried: list[int] = field(default_factory=list)

    def snapshots(self) -> list[LogPosition]:
        return [LogPosition(1, each) for each in self.ends]

    def is_whole(self, found: LogPosition) -> bool:
        self.tried.append(found.offset)
        return found.offset not in self.torn


@pytest.mark.parametrize(
    ("log", "known"),
    [
        (Log(0, (50,)), 0),
        (Log(40, (30,)), None),
        (Log(40, (40,)), 40),
        (Log(40, (30, 50, 90)), 50),
        (Log(40, (30, 50, 90), torn=(50,)), 90),
        (Log(40), None),
        (Log(40, is_checkpoint=True), 40),
    ],
)
def test_from_where_on_the_state_is_known(log: Any, known: int | None) -> None:
    assert known_from(log) == known


@pytest.mark.parametrize(
    ("log", "start", "end", "expected"),
    [
        (Log(0), None, END, None),
        (Log(40, (70,)), None, END, (40, 70)),
        (Log(40, (70,)), Point(offset=10), END, (40, 70)),
        (Log(40, (70,)), Point(offset=60), END, (60, 70)),
        (Log(40, (70,)), Point(offset=69), END, (69, 70)),
        (Log(40, (70,)), Point(offset=70), END, None),
        (Log(40, (70,)), Point(time_ms=5), END, None),
        (Log(40, (70,)), None, Point(offset=50), (40, 50)),
        (Log(40, (70,)), None, Point(offset=90), (40, 70)),
        (Log(40, (70,)), None, Point(time_ms=90), (40, 70)),
        (Log(40, (40,)), None, END, None),
        (Log(40), None, END, (40, None)),
        (Log(40), Point(offset=60), Point(offset=90), (60, 90)),
        (Log(40), Point(time_ms=5), END, (40, None)),
    ],
)
def test_the_stretch_without_a_state(
    log: Any, start: Point | None, end: Point, expected: tuple[int, int | None] | None
) -> None:
    found = before_the_state(log, start, end, "events")
    assert (None if found is None else (found.from_offset, found.to_offset)) == expected
    if found is not None:
        assert found.reason == "state-unknown" and found.path == "p"
        assert found.text.startswith("events; the log begins at offset 40, and ")
        assert ("no snapshot beside it" in found.text) == (known_from(log) is None)


@pytest.mark.parametrize(
    ("log", "start", "expected"),
    [
        (Log(40), None, None),
        (Log(40), Point(time_ms=4), None),
        (Log(40), Point(offset=39), (39, 40)),
        (Log(40), Point(offset=40), None),
        (Log(0), Point(offset=0), None),
        (Log(40, is_checkpoint=True), Point(offset=3), None),
        (Log(40, segments=()), None, (0, 40)),
        (Log(40, segments=()), Point(offset=40), (40, 40)),
        (Log(40, is_checkpoint=True, segments=()), None, None),
    ],
)
def test_the_stretch_before_the_log(log: Any, start: Point | None, expected: tuple[int, int] | None) -> None:
    found = before_the_log(log, start)
    assert (None if found is None else (found.from_offset, found.to_offset)) == expected
    assert found is None or found.reason == "not-in-log"


# ---- places and times -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "point"),
    [
        (None, END),
        ("end", END),
        ("0", Point(offset=0)),
        ("4321", Point(offset=4321)),
        ("4321+", Point(offset=4321, after=True)),
        ("@77", Point(time_ms=77)),
        ("1970-01-01", Point(time_ms=0)),
        ("1970-01-01T00:00:01.5Z", Point(time_ms=1_500)),
        ("1970-01-01T01:00:00+01:00", Point(time_ms=0)),
        ("1969-12-31T23:59:59.9999", Point(time_ms=-1)),
    ],
)
def test_places_as_users_name_them(text: str | None, point: Point) -> None:
    assert parse_point(text) == point
    assert point.is_end == (text in (None, "end"))


@pytest.mark.parametrize("text", ["", "+", "x", "4+4", "٣", "-1", "@", "@x", "1970-13-01"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="neither a time nor an offset"):
        parse_point(text)


@pytest.mark.parametrize(
    ("point", "next_offset", "time", "covers"),
    [
        (Point(offset=5), 5, 10**9, True),
        (Point(offset=5), 6, 0, False),
        (Point(offset=0), 1, 0, False),
        (Point(time_ms=5), 99, 5, True),
        (Point(time_ms=5), 0, 6, False),
        (END, 99, 99, True),
    ],
)
def test_what_is_before_a_place(point: Point, next_offset: int, time: int, covers: bool) -> None:
    assert point.covers(next_offset, time) is covers


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("12h", 43_200_000),
        ("90min", 5_400_000),
        ("90m", 5_400_000),
        ("1d12h", 129_600_000),
        ("45s", 45_000),
        ("7ms", 7),
        ("1m1ms", 60_001),
        ("0s", 0),
        ("P1DT12H", 129_600_000),
        ("PT5M", 300_000),
        ("PT1H1S", 3_601_000),
        ("P2D", 172_800_000),
    ],
)
def test_spans_of_time(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "12", "h", "1h 2m", "-1h", "1x", "P", "PT", "P1H", "1.5h", "1H"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_span_ms(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_001, "1970-01-01T00:00:01.001Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (10**18, f"{10**18}ms"),
    ],
)
def test_times_in_words(ms: int, text: str) -> None:
    assert utc_text(ms) == text
    if text.endswith("Z"):
        assert parse_time_ms(text) == ms


def test_a_number_that_is_hardly_an_offset_gets_a_hint() -> None:
    assert ms_hint(10**12 - 1) == ""
    assert ms_hint(10**12) == " (a time in milliseconds is written @1000000000000)"


# ---- names and what concerns them ------------------------------------------------------------


def test_ids_come_by_value_and_names_behind_them() -> None:
    known = [f"broker/{one}" for one in ("b", "10", "2", "a")]
    assert suggestion("broker/77", MetadataImage(), known) == "; known are 2, 10, a, b"
    many = [f"controller/{one}" for one in range(12)]
    assert (
        suggestion("controller/x", MetadataImage(), many)
        == "; known are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
    )


@pytest.mark.parametrize(
    ("path", "batch_filter"),
    [
        ("broker/1", BatchFilter(topics=frozenset(), brokers=frozenset({1}), leaves_others=True)),
        ("broker", BatchFilter(topics=frozenset(), brokers=None, leaves_others=True)),
        ("quorum", BatchFilter(topics=frozenset(), brokers=frozenset(), leaves_others=True)),
        (
            "topic/orders/0",
            BatchFilter(
                topics=frozenset({"orders"}),
                partition=0,
                brokers=frozenset(),
                together=True,
                leaves_others=True,
            ),
        ),
        (
            "topic/orders",
            BatchFilter(topics=frozenset({"orders"}), brokers=frozenset(), together=True, leaves_others=True),
        ),
        ("topic", BatchFilter(topics=None, brokers=frozenset(), together=True, leaves_others=True)),
        ("", BatchFilter(topics=None, brokers=None)),
    ],
)
def test_a_history_passes_over_what_is_about_other_topics(path: str, batch_filter: BatchFilter) -> None:
    assert filter_of(Wanted(path)) == batch_filter
