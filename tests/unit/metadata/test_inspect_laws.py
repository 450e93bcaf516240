"""Parts of the log tools against a second way to find the same: by lists, by walks, and by tables."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.changes.change_steps import is_last_known
from metaquorum.metadata.inspect.changes.changes import ChangeFeed
from metaquorum.metadata.inspect.checks.check import COUNTED, NEW, REPORTED, ReportedRows
from metaquorum.metadata.inspect.checks.predicate import compile_predicate
from metaquorum.metadata.inspect.log.coverage import BATCH, TRANSACTION, Limits, ShownAs
from metaquorum.metadata.inspect.log.log import open_log
from metaquorum.metadata.inspect.repair.log_copy import node_files
from metaquorum.metadata.inspect.repair.repair import apply_anywhere, refuse_foreign
from metaquorum.metadata.inspect.repair.salvage import examine
from metaquorum.metadata.inspect.summary import BrokerSum, OpenSpans, Place
from metaquorum.metadata.inspect.timeline.timeline import Timeline
from metaquorum.metadata.inspect.walk.states import state_at, steps
from metaquorum.metadata.inspect.walk.steps import RULES, Broken
from metaquorum.metadata.records import types as r
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.segment import segment_name
from metaquorum.storage.types import LogPosition
from tests.unit.metadata.made_logs import (
    ORDERS,
    STORY,
    add_snapshot,
    image_of,
    images_equal,
    leads,
    make_node,
    memory_disk,
    strict,
    write,
)

# ---- times that are summed up

SINCE: Place = (10, 1_000)
EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(-40, 60)), max_size=12)


def placed(events: list[tuple[bool, int, int]]) -> list[tuple[bool, Place]]:
    """Events with rising offsets, some of one offset, and times that mostly rise."""
    found, offset, time_ms = [], 5, 900
    for begins, offsets, passed_ms in events:
        offset, time_ms = offset + offsets, time_ms + passed_ms
        found.append((begins, (offset, time_ms)))
    return found


@given(EVENTS)
def test_a_brokers_fences_are_those_of_a_list(events: list[tuple[bool, int, int]]) -> None:
    broker, open_at = BrokerSum(), None
    closed: list[tuple[Place, Place]] = []
    last_begun: Place = (0, 0)
    for begins, place in placed(events):
        if begins:
            broker.fence(place, f"rule at {place}", "", counts=True)
            open_at = open_at or place
            last_begun = last_begun if closed else place
        else:
            broker.close(place, SINCE)
            if open_at is not None and place[0] > SINCE[0]:
                closed.append((open_at, place))
            open_at = None
    lengths = [max(0, end[1] - max(begun[1], SINCE[1])) for begun, end in closed]
    assert (broker.open, broker.total_ms) == (open_at, sum(lengths))
    assert broker.fences == sum(begins for begins, *_ in events) == broker.rules.total()
    if closed:
        longest = closed[lengths.index(max(lengths))][0]
        assert (broker.longest_ms, broker.longest) == (max(lengths), longest)
        assert broker.longest_rule == f"rule at {longest}"
    else:
        assert (broker.longest_ms, broker.longest, broker.longest_rule) == (-1, last_begun, None)


@given(EVENTS)
def test_spans_of_partitions_are_those_of_a_list(events: list[tuple[bool, int, int]]) -> None:
    spans, open_at = OpenSpans(), dict[str, Place]()
    total_ms, touched = 0, set[str]()
    for number, (begins, place) in enumerate(placed(events)):
        paths = tuple(f"topic/t/{at}" for at in range(number % 3 + 1))
        if begins:
            spans.begin(paths, place)
            open_at = dict.fromkeys(paths, place) | open_at
            continue
        before = len(spans.closed)
        spans.end(paths, place, SINCE)
        ended = {path: open_at.pop(path) for path in paths if path in open_at}
        counted = ended if place[0] > SINCE[0] else {}
        lengths = {path: max(0, place[1] - max(at[1], SINCE[1])) for path, at in counted.items()}
        total_ms, touched = total_ms + sum(lengths.values()), touched | counted.keys()
        told = {(one.begun, one.partitions, one.span_ms) for one in spans.closed[before:]}
        together = {at: [path for path in counted if counted[path] == at] for at in counted.values()}
        assert told == {(at, len(listed), lengths[listed[0]]) for at, listed in together.items()}
    assert ({path: at for path, (at, _) in spans.open.items()}, spans.total_ms) == (open_at, total_ms)
    assert spans.touched == touched


# ---- batches that come again


@given(st.lists(st.integers(0, len(STORY) - 1), max_size=20))
def test_a_batch_that_comes_again_changes_nothing(places: list[int]) -> None:
    """Whatever is missing before a batch: it is applied if it ends behind all that were applied."""
    batches = strict(make_node(memory_disk()).log)
    refused: list[Any] = []
    once, again = Replayer(on_error=refused.append), Replayer(on_error=refused.append)
    end = 0
    for at in places:
        assert apply_anywhere(again, batches[at]) is None
        if batches[at].header.next_offset > end:
            end = batches[at].header.next_offset
            apply_anywhere(once, batches[at])
        assert again.end_offset == end == once.end_offset
    assert images_equal(once.state().image, again.state().image)


def test_the_steps_of_a_checkpoint_end_at_its_state() -> None:
    node = make_node(memory_disk())
    add_snapshot(node, 10)
    (position,) = node.log.snapshots()
    checkpoint = node.log.snapshot(position)
    found = list(steps(checkpoint))
    assert images_equal(found[-1].after, state_at(checkpoint).state.image)
    assert [one.before for one in found[1:]] == [one.after for one in found[:-1]]


# ---- whose segment, and whose records


@pytest.mark.parametrize("others", [0, 1])
def test_one_segment_alone_belongs_to_its_log(others: int) -> None:
    """Whatever it is called: a name that does not fit is evidence only beside another segment."""
    disk = memory_disk()
    node = make_node(disk)
    first = join(node.log.directory, segment_name(0))
    write(disk, join(node.log.directory, segment_name(15)), read_file(disk, first))
    if not others:
        disk.remove(first)
    log = open_log(disk, node.log.path)
    if others:
        with pytest.raises(InspectError, match="its name says offset 15, but its batches begin at 0"):
            refuse_foreign(log)
    else:
        refuse_foreign(log)
        assert len(log.segments) == 1


def test_a_node_that_was_only_formatted_is_left_out() -> None:
    """Its first checkpoint is at offset 0, and there is no segment."""
    node = make_node(memory_disk())
    disk, first = node.log.disk, LogPosition(0, 0)
    content = b"".join(snapshot_batches(ReplayState().image, position=first))
    write(disk, snapshot_path(node.log.directory, first), content)
    disk.remove(join(node.log.directory, segment_name(0)))
    with pytest.raises(InspectError, match=r"holds no complete record; leave it out$"):
        examine(node_files(open_log(disk, node.log.path)))


def test_an_election_follows_the_epoch_of_the_records_before_it() -> None:
    """Up to Kafka 3.5 a cluster's first records precede any election."""
    timeline = Timeline()
    feature, topic = r.FeatureLevelRecord("metadata.version", 14), r.TopicRecord("t", ORDERS)
    timeline.batch(1, 1_000, [(0, feature)])
    timeline.batch(1, 2_000, [(1, topic)])
    events = [*timeline.batch(4, 3_000, [(2, leads(3000))]), *timeline.finish()]
    (told,) = [event.text for event in events if event.kind == "election"]
    assert told.endswith("no controller won epochs 2 to 3, or the winners committed nothing")


# ---- tables


@pytest.mark.parametrize(("isr", "elr", "last"), [*product(((), (1,)), ((), (2,)), ((), (3,), (3, 4), (4,)))])
def test_who_is_elected_for_being_the_last_one_known(
    isr: tuple[int, ...], elr: tuple[int, ...], last: tuple[int, ...]
) -> None:
    before: Any = SimpleNamespace(isr=isr, elr=elr, last_known_elr=last)
    assert is_last_known(before, 3) is ((isr, elr, last) == ((), (), (3,)))


@pytest.mark.parametrize(("fenced", "leaving"), [*product((False, True), repeat=2)])
def test_a_broker_is_active_that_is_neither_fenced_nor_leaving(fenced: bool, leaving: bool) -> None:
    known = SimpleNamespace(fenced=fenced, in_controlled_shutdown=leaving)
    feed: Any = SimpleNamespace(brokers={1: known})
    assert ChangeFeed._is_active(feed, 1) is (not fenced and not leaving)
    assert not ChangeFeed._is_active(feed, 2)


@given(st.lists(st.tuples(st.sampled_from([BATCH, TRANSACTION]), st.integers(0, 3)), max_size=6))
def test_a_transaction_is_shown_rather_than_a_batch_in_it(places: list[tuple[str, int]]) -> None:
    limits, expected = Limits(), list[ShownAs]()
    limits.place(None)
    for atomic, offset in places:
        shown = ShownAs(asked=9, offset=offset, atomic=atomic, first=offset)
        limits.place(shown)
        if shown in expected:
            continue
        if atomic == TRANSACTION:
            expected = [one for one in expected if one.atomic == TRANSACTION or one.offset < offset]
        expected.append(shown)
    assert limits.shown == expected


ALL = object()


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("partition('a', 0).leader == 1", {"a"}),
        ("len(partitions('a')) == topic('b').topic_id", {"a", "b"}),
        ("config('topic/a', 'k') == None", set()),
        ("config('topic/a', 'k') == partition('b', 0).leader", {"b"}),
        ("broker(1).fenced", set()),
        ("image.features == 1", ALL),
        ("len(partitions()) == 1", ALL),
        ("partition(str(1), 0).leader == 1", ALL),
        ("partition('a', 0).leader == 1 and len(partitions()) == 2", ALL),
        ("'a' in topics", ALL),
        ("leaderless() == 0", ALL),
        ("violations() == []", ALL),
        ("len([image]) == 1", None),
        ("offset == 1", None),
        ("partition('a', 0).leader == epoch", None),
    ],
)
def test_what_an_expression_is_about(text: str, topics: Any) -> None:
    """None: every batch counts. ALL: every batch that is not idle."""
    batch_filter = compile_predicate(text).batch_filter
    if topics is None:
        assert batch_filter is None
    else:
        assert batch_filter is not None and batch_filter.topics == (None if topics is ALL else topics)


def test_rows_that_were_reported_are_known_until_topics_change() -> None:
    image = image_of(make_node(memory_disk()).log)
    rows = image.topics.columns.row_limit
    places, reported = list(product(range(RULES), range(rows))), ReportedRows()
    rules, at = (np.array(each) for each in zip(*places, strict=True))
    every = Broken(np.zeros(len(places), dtype=np.int64), rules, at)
    assert reported.of(image.topics, every).tolist() == [NEW] * len(places)
    for number, (rule, row) in enumerate(places):
        reported.put(rule, row, (REPORTED, COUNTED)[number % 2])
    expected = [(REPORTED, COUNTED)[number % 2] for number in range(len(places))]
    assert reported.of(image.topics, every).tolist() == expected
    assert [reported.state(*place) for place in places] == expected
    more = image_of(make_node(memory_disk(), [*STORY, (2, [r.TopicRecord("new", b"n" * 16)])]).log)
    assert reported.of(more.topics, every).tolist() == [NEW] * len(places)
