"""What a question reads of a log once it is known where that mentions what, and that it answers the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaquorum.cli.local.demo_checks import KAFKA_DATA
from metaquorum.console import moments, views
from metaquorum.console.kept_states import SMALL_BYTES
from metaquorum.console.moments import Moments
from metaquorum.console.strip import Strip, _time_at
from metaquorum.console.tables import TableQuery
from metaquorum.console.views import Views
from metaquorum.metadata.image.packed import loaded_bytes
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import Point
from metaquorum.metadata.inspect.walk import mentions
from metaquorum.metadata.inspect.walk.mentions import mentions_of
from metaquorum.metadata.records import types as r
from metaquorum.storage.disk.posix import PosixDisk
from tests.conftest import shared_data_path
from tests.unit.console.asked import Asked
from tests.unit.metadata.made_logs import (
    HOME,
    ORDERS,
    STORY,
    Batch,
    add_snapshot,
    flip,
    make_node,
    memory_disk,
    strict,
)

SHARED = shared_data_path()
GOLDEN = [KAFKA_DATA, *([SHARED / "kafka-3.7" / "controller-3000"] if SHARED else [])]
INVOICES = bytes(15) + b"\x07"


@pytest.mark.parametrize("path", GOLDEN, ids=[path.name for path in GOLDEN])
def test_why_history_and_records_are_the_same_from_parts_of_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With large and small parts, and with few states to begin at."""
    asked, few = Asked(path), Asked(path, memory_bytes=1)
    middle = asked.log.end_offset // 2
    topics = [row["path"] for row in asked.view("table", kind="topics", at=middle)["rows"]]
    (topic,) = random.Random(path.name).sample(topics, 1)
    for target in (topic, f"{topic}/0", "broker/1"):
        for at in ("end", middle):
            params = {"target": target, "at": at}
            asked.moments._mentions = None
            history, why = asked.view("history", **params), asked.view("why", **params, last=3)
            how = ("earlierRecords", "readFrom")  # how far back it was read
            of_target = {"entity": target, "start": 0 if at == "end" else middle, "size": 20}
            records = asked.view("records", **of_target)
            for part_records, console in ((7, asked), (64, few)):
                monkeypatch.setattr(mentions, "PART_RECORDS", part_records)
                found = mentions_of(asked.log)
                assert found is not None and len(found.starts) > 1
                console.moments.use_mentions(found)
                assert console.moments.parts_about("broker/1", changes=True) is not None
                assert console.view("history", **params) == history
                shorter = console.view("why", **params, last=3)
                assert {**shorter, **dict.fromkeys(how)} == {**why, **dict.fromkeys(how)}
                assert console.view("records", **of_target) == records


@pytest.mark.parametrize("path", GOLDEN, ids=[path.name for path in GOLDEN])
def test_why_that_is_read_from_near_the_last_records_says_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mentions, moments):
        monkeypatch.setattr(module, "PART_RECORDS", 3)
    asked = Asked(path)
    draw, end, begun = random.Random(path.name), asked.log.end_offset, 0
    for at in sorted(draw.sample(range(end // 3, end), 4)):
        rows = asked.view("table", kind="partitions", at=at, size=1000)["rows"]
        paths = [row["path"] for row in rows if row["path"] is not None]
        for target in ("broker/0", "broker/1", "broker/2", *draw.sample(paths, min(4, len(paths)))):
            if not asked.view("entity", path=target, at=at)["exists"]:
                continue
            for last in (1, 3):
                near = asked.view("why", target=target, at=at, last=last)
                with monkeypatch.context() as patched:
                    patched.setattr(asked.moments, "parts_about", lambda *_, **more: None)
                    far = asked.view("why", target=target, at=at, last=last)
                begun += near.pop("readFrom", 0) > far.pop("readFrom", 0)
                del near["earlierRecords"], far["earlierRecords"]
                assert near == far, (target, at, last)
    assert begun > 5


@pytest.mark.parametrize("path", GOLDEN, ids=[path.name for path in GOLDEN])
def test_a_long_history_is_that_of_the_newest_states(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the parts of the log near its end are read."""
    for module in (mentions, moments):
        monkeypatch.setattr(module, "PART_RECORDS", 3)
    asked, shorter = Asked(path), 0
    topics = [row["path"] for row in asked.view("table", kind="topics")["rows"]]
    for target in ("broker/1", "topic", *random.Random(path.name).sample(topics, 2), f"{topics[0]}/0"):
        whole = asked.view("history", target=target)["spans"]
        for count in (1, 2, 5):
            with monkeypatch.context() as patched:
                patched.setattr(views, "SPANS_MAX", count)
                answer = asked.view("history", target=target)
                begun = next(asked.moments.states_before(target), None)
                shorter += begun is not None and begun.end_offset > 0
            assert answer["spans"] == whole[:count] and answer["isCut"] == (len(whole) > count)
    assert shorter > 3


def test_between_two_parts_are_the_brokers_records_from_the_end_of_one_to_the_start_of_the_next() -> None:
    known = [mentions.BrokerMention(offset, 0, None) for offset in (3, 5, 9)]
    for first, end, expected in ((0, 3, []), (3, 9, [3, 5]), (4, 10, [5, 9]), (5, 5, []), (10, 20, [])):
        assert [each.offset for each in mentions.between(known, first, end)] == expected


def test_only_the_parts_that_mention_an_entity_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentions, "PART_RECORDS", 100)
    changes: list[Batch] = [(2, [r.PartitionChangeRecord(0, ORDERS, leader=at % 2)]) for at in range(1000)]
    made: list[Batch] = [(2, [r.TopicRecord("invoices", INVOICES)])]
    asked = _moments([*STORY, *changes[:500], *made, *changes[500:]])
    (made_at,) = [at for at in asked[1] if at]
    parts = asked[0].parts_about("topic/invoices", changes=True)
    assert parts is not None
    read = [(part.begun().end_offset, part.end_offset) for part in parts]
    assert any(start <= made_at < end for start, end in read)
    assert sum(end - start for start, end in read) < 250
    orders = asked[0].parts_about("topic/orders", changes=False)
    assert orders is not None and sum(part.end_offset - part.begun().end_offset for part in orders) < 250
    assert asked[0].parts_about("topic/absent", changes=True) is None
    settings = asked[0].parts_about("config/topic/orders", changes=True)
    assert [part.end_offset for part in settings or ()] == [part.end_offset for part in orders]


@pytest.mark.parametrize("together", [1, 200])
def test_of_a_partition_only_the_parts_that_change_it_are_read(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """However many records a batch has. A change of a topic that is not known may be one of any."""
    monkeypatch.setattr(mentions, "PART_RECORDS", 400)
    made: list[Batch] = [
        (2, [r.TopicRecord("invoices", INVOICES)]),
        (2, [r.PartitionRecord(at, INVOICES, (1,), (1,)) for at in range(800)]),
    ]
    changes = [r.PartitionChangeRecord(at % 800, INVOICES, leader=at % 2) for at in range(8000)]
    batches: list[Batch] = [(2, changes[at : at + together]) for at in range(0, len(changes), together)]
    unknown: list[Batch] = [(2, [r.PartitionChangeRecord(0, bytes(15) + b"\x08", leader=1)])]
    disk = memory_disk()
    make_node(disk, [*STORY, *made, *batches, *unknown])
    log = open_log(disk, HOME)
    found = mentions_of(log)
    assert found is not None
    end = log.end_offset
    first = end - 1 - len(changes)
    for index in (0, 399, 400, 799):
        parts = found.parts_about(f"topic/invoices/{index}", changes=True)
        assert parts is not None
        for number in range(index, len(changes), 800):
            assert any(low <= first + number < high for low, high in parts)
        assert sum(high - low for low, high in parts) < 0.75 * end
        assert parts[-1][0] < end == parts[-1][1]
    assert found.parts_about("topic/invoices", changes=True) == [(0, end)]


def test_the_records_of_a_topic_that_was_deleted_are_found_also_behind_its_creation(tmp_path: Path) -> None:
    """Only its creation has its name: the page behind it, too, knows what the others are about."""
    make_node(PosixDisk(), STORY, home=str(tmp_path / "node"))
    asked = Asked(tmp_path / "node")
    whole, behind = (asked.view("records", entity="topic/payments", start=start) for start in (0, 8))
    assert [row["offset"] for row in whole["records"]] == [7, 8, 9, 12]
    assert behind["records"] == whole["records"][1:]


def _moments(batches: list[Batch]) -> tuple[Moments, list[int]]:
    """The moments of a log that was read, and where it creates the topic invoices."""
    disk = memory_disk()
    make_node(disk, batches)
    log = open_log(disk, HOME)
    moments = Moments(log, 64 << 20)
    list(moments.fill())
    found = mentions_of(log)
    assert found is not None
    moments.use_mentions(found)
    offset, places = 0, []
    for _, records in batches:
        for record in records:
            if isinstance(record, r.TopicRecord) and record.name == "invoices":
                places.append(offset)
            offset += 1
    return moments, places


def test_a_transaction_is_read_as_one_whatever_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mentions, "PART_RECORDS", 10)
    idle: Batch = (2, [r.NoOpRecord()])
    inside: list[Batch] = [
        (2, [r.BeginTransactionRecord("t")]),
        (2, [r.PartitionChangeRecord(0, ORDERS, leader=2)]),
        *[idle] * 40,
        (2, [r.EndTransactionRecord()]),
    ]
    moments, _ = _moments([*STORY, *[idle] * 40, *inside, *[idle] * 40])
    parts = moments.parts_about("broker/1", changes=True)
    assert parts is not None
    read = [(part.begun().end_offset, part.end_offset) for part in parts]
    began = moments.log.end_offset - 40 - len(inside)
    assert any(start <= began and began + len(inside) <= end for start, end in read)


def test_why_in_a_part_knows_what_was_written_just_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence that is split over batches: the record of the broker is in a part about something else."""
    monkeypatch.setattr(mentions, "PART_RECORDS", 5)
    topic = [r.TopicRecord("many", INVOICES)]
    made = [r.PartitionRecord(at, INVOICES, (1, 2), (1, 2), leader=1) for at in range(1000)]
    moved = [r.PartitionChangeRecord(at, INVOICES, leader=2, isr=(2,)) for at in range(1000)]
    idle: Batch = (2, [r.NoOpRecord()])
    batches = [*STORY, (2, [*topic, *made]), (2, moved), *[idle] * 9, (2, [r.FenceBrokerRecord(1, 2)])]
    stamps = [1000 * at for at in range(len(STORY) + 1)] + [60_000 + 100 * at for at in range(11)]
    disk = memory_disk()
    make_node(disk, batches, stamps=stamps)
    views = Views(Strip(Moments(open_log(disk, HOME), 64 << 20)), ("night",))
    whole = views.why("topic/many/3", None, 20)
    assert whole["records"][0]["causes"][0]["rule"] == "broker-fenced"
    list(views.moments.fill())
    found = mentions_of(views.moments.log)
    assert found is not None
    views.moments.use_mentions(found)
    parts = found.parts_about("topic/many/3", changes=True)
    assert parts is not None and parts[-1][1] < whole["records"][0]["causes"][0]["offset"]
    assert views.why("topic/many/3", None, 20) == whole


def test_where_the_log_grew_since_is_read_and_a_damaged_log_has_no_parts() -> None:
    disk = memory_disk()
    node = make_node(disk, STORY)
    moments = Moments(open_log(disk, HOME), 64 << 20)
    assert moments.parts_about("topic/orders", changes=True) is None  # nothing was read yet
    list(moments.fill())
    found = mentions_of(moments.log)
    assert found is not None
    end = moments.log.end_offset
    moments.use_mentions(replace(found, starts=[0], end_offset=end - 2))
    parts = list(moments.parts_about("topic/orders", changes=True) or ())
    assert parts[-1].end_offset == end and parts[-1].begun().end_offset <= end - 2
    flip(node, strict(node.log)[2].header.base_offset)
    assert mentions_of(open_log(disk, HOME)) is None


@pytest.fixture
def log() -> MetadataLog:
    changes: list[Batch] = [
        (2, [r.PartitionChangeRecord(at % 2, ORDERS, leader=at % 3 - 1)]) for at in range(1000)
    ]
    disk = memory_disk()
    add_snapshot(make_node(disk, [*STORY, *changes]), 100)
    return open_log(disk, HOME)


def test_the_limit_counts_recent_states_and_where_the_log_mentions_what(log: MetadataLog) -> None:
    """A state along the log gives way to those that a page asked for last, and these to one another."""
    each_bytes = SMALL_BYTES + loaded_bytes([Moments(log, 1 << 20).state().state.newest])
    limit_bytes = 12 * each_bytes
    moments = Moments(log, limit_bytes)
    list(moments.fill())
    kept_before = len(moments._kept)
    found = mentions_of(log)
    assert found is not None
    moments.use_mentions(found)
    for offset in range(200, 230):
        moments.state(Point(offset=offset))
    recent_bytes = len(moments._recent) * SMALL_BYTES
    recent_bytes += loaded_bytes(state.image for state in moments._recent.values())
    assert 1 < len(moments._recent) and recent_bytes <= limit_bytes // 2
    assert moments._kept.cost_bytes + recent_bytes + found.size_bytes <= limit_bytes
    assert 2 < len(moments._kept) < kept_before
    small = Moments(log, 1)
    for offset in (200, 210, 220):
        small.state(Point(offset=offset))
    assert list(small._recent) == [220], "the one that is shown stays, whatever the limit"


def test_a_chain_begins_at_the_first_record_about_its_entity_and_not_before(
    log: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of the log is longer than a part, and no whole number of them."""
    monkeypatch.setattr(moments, "PART_RECORDS", 20)
    made = Moments(log, 64 << 20)
    monkeypatch.setattr(made, "ranges_about", lambda *given, **more: [(500, 530), (540, 540)])
    offsets = [state.end_offset for state in made.fill()]
    assert len(offsets) > 200
    before = max(offset for offset in offsets if offset <= 500)
    assert [state.end_offset for state in made.states_before("topic/orders")][-1] == before


def test_differences_that_are_kept_have_a_limit_and_the_newest_stays(
    log: MetadataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Views(Strip(Moments(log, 64 << 20)), ("night",))
    query = TableQuery(size=1)
    answers = [made.diff(("0", str(end)), "", query) for end in (20, 30, 40, 50, 60)]
    assert len(made._diffs) == 4 and (0, 20, "") not in made._diffs
    monkeypatch.setattr(views, "KEPT_CHANGES", 1)
    assert made.diff(("0", "20"), "", query) == answers[0]
    assert list(made._diffs) == [(0, 20, "")] and answers[0]["total"] > 1


@pytest.mark.parametrize(("offset", "time_ms"), [(-1, 10), (0, 10), (4, 10), (5, 20), (9, 30), (99, 30)])
def test_the_time_of_an_offset_is_that_of_its_batch_or_of_the_nearest_one(offset: int, time_ms: int) -> None:
    assert _time_at([0, 5, 9], [10, 20, 30], offset) == time_ms
    assert _time_at([], [], offset) == 0
