"""Differences with the record that made each, and histories, on small logs that are known by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaquorum.metadata.errors import InspectError
from metaquorum.metadata.inspect.entities.diff import (
    ADDED,
    CHANGED,
    REMOVED,
    diff_logs,
    diff_points,
    sort_key,
)
from metaquorum.metadata.inspect.entities.history import history
from metaquorum.metadata.inspect.entities.views import Wanted, aliases, entities_below, resolved
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.points import END, Point
from metaquorum.metadata.inspect.walk.states import state_at
from metaquorum.metadata.records import types as r
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.snapshots import snapshot_name
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text
from tests.unit.metadata.test_inspect_states import TOPIC, Maker, feature


def partition(index: int, leader: int = 1) -> r.PartitionRecord:
    return r.PartitionRecord(index, TOPIC, (1, 2), (1, 2), leader=leader, leader_epoch=0, partition_epoch=0)


def story(directory: Path) -> Maker:
    maker = Maker(directory)
    maker.batch(feature(5))  # 0
    maker.batch(r.TopicRecord("orders", TOPIC), partition(0), partition(1))  # 1 2 3
    maker.batch(r.PartitionChangeRecord(0, TOPIC, isr=(1,)))  # 4
    maker.batch(  # 5 6 7
        r.PartitionChangeRecord(0, TOPIC, leader=2),
        r.PartitionChangeRecord(0, TOPIC, isr=(1, 2)),
        r.ConfigRecord(2, "orders", "retention.ms", "9"),
    )
    maker.batch(r.ConfigRecord(2, "orders", "cleanup.policy", "compact"))  # 8
    return maker


def between(log: MetadataLog, a: int, b: int, path: str | None = None) -> list[Any]:
    return diff_points(log, state_at(log, Point(offset=a)), state_at(log, Point(offset=b)), Wanted(path))


def test_every_field_names_the_record_that_made_it(tmp_path: Path) -> None:
    log = story(tmp_path).log()
    changes = {change.entity: change for change in between(log, 4, 9)}
    assert list(changes) == ["config/topic/orders", "topic/orders/0"]
    leader = changes["topic/orders/0"]
    assert leader.kind == CHANGED
    fields = {one.name: (one.old, one.new, one.cause.offset) for one in leader.fields}
    assert fields["leader"] == (1, 2, 5)
    assert fields["leaderEpoch"] == (0, 1, 5)
    assert fields["partitionEpoch"][:2] == (0, 3)
    assert fields["partitionEpoch"][2] == 6
    assert "isr" not in fields
    config = changes["config/topic/orders"]
    assert (config.kind, config.cause.offset, config.cause.type_name) == (ADDED, 7, "CONFIG_RECORD")
    assert {one.name: one.cause.offset for one in config.fields} == {"retention.ms": 7, "cleanup.policy": 8}
    assert between(log, 9, 9) == []


def test_a_topic_takes_its_partitions_and_settings_with_it(tmp_path: Path) -> None:
    maker = story(tmp_path)
    gone = maker.batch(r.RemoveTopicRecord(TOPIC))
    changes = between(maker.log(), 9, gone + 1)
    assert [(change.entity, change.kind, change.cause.offset) for change in changes] == [
        ("config/topic/orders", REMOVED, gone),
        ("topic/orders", REMOVED, gone),
        ("topic/orders/0", REMOVED, gone),
        ("topic/orders/1", REMOVED, gone),
    ]
    back = between(maker.log(), gone + 1, 9)
    assert {change.kind for change in back} == {ADDED}


def test_an_aborted_transaction_is_nobodys_cause(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.batch(feature(5))
    changed = maker.batch(feature(6))
    maker.batch(r.BeginTransactionRecord(None))
    maker.batch(feature(9))
    maker.batch(r.AbortTransactionRecord(None))
    maker.batch(r.NoOpRecord())
    [change] = between(maker.log(), 1, maker.offset)
    assert change.cause.offset == changed
    [span_before, span] = history(maker.log(), Wanted("feature"))
    assert (span_before.to_offset, span.fields, span.to_offset) == (changed, {"level": 6}, None)


def test_a_committed_transaction_holds_from_its_end(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    maker.batch(feature(5))
    maker.batch(r.BeginTransactionRecord(None))
    inside = maker.batch(feature(9))
    end = maker.batch(r.EndTransactionRecord())
    [_, span] = history(maker.log(), Wanted("feature"))
    assert span.from_offset == end
    assert span.cause is not None
    assert span.cause.offset == inside
    [change] = between(maker.log(), 1, maker.offset)
    assert change.cause.offset == inside


def test_history_has_a_row_for_each_batch_that_changed_something(tmp_path: Path) -> None:
    log = story(tmp_path).log()
    rows = list(history(log, Wanted("topic/orders/0")))
    assert [(row.from_offset, row.to_offset, row.fields["isr"], row.fields["leader"]) for row in rows] == [
        (1, 4, [1, 2], 1),
        (4, 5, [1], 1),
        (5, None, [1, 2], 2),
    ]
    assert [row.cause.offset for row in rows if row.cause] == [2, 4, 6]
    assert rows[0].ended_by == rows[1].cause
    whole = list(history(log, Wanted("topic/orders")))
    assert {row.entity for row in whole} == {
        "topic/orders", "topic/orders/0", "topic/orders/1", "config/topic/orders"
    }  # fmt: skip
    late = list(history(log, Wanted("topic/orders/0"), Point(offset=4), Point(offset=5)))
    assert [(row.from_offset, row.to_offset, row.fields["isr"]) for row in late] == [(4, None, [1])]
    later = list(history(log, Wanted("topic/orders/0"), Point(offset=5)))
    assert [(row.from_offset, row.to_offset, row.fields["isr"]) for row in later] == [(5, None, [1, 2])]
    quiet = list(history(log, Wanted("topic/orders/0"), Point(offset=8)))
    assert [(row.from_offset, row.to_offset, row.cause) for row in quiet] == [(8, None, None)]


def test_one_setting_is_a_field_of_its_resource(tmp_path: Path) -> None:
    log = story(tmp_path).log()
    rows = list(history(log, Wanted("config/topic/orders/retention.ms")))
    assert [(row.from_offset, row.to_offset, row.fields) for row in rows] == [
        (5, None, {"retention.ms": "9"})
    ]
    [change] = between(log, 0, 9, "config/topic/orders/retention.ms")
    assert [one.name for one in change.fields] == ["retention.ms"]


def test_two_logs_are_compared_with_the_records_of_both(tmp_path: Path) -> None:
    logs = []
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        maker = story(directory)
        maker.batch(r.PartitionChangeRecord(1, TOPIC, leader=2 if name == "a" else -1))
        logs.append(maker.log())
    first, second = logs
    [change] = diff_logs(first, state_at(first), second, state_at(second))
    [one] = [one for one in change.fields if one.name == "leader"]
    assert (change.entity, one.old, one.new) == ("topic/orders/1", 2, -1)
    assert one.cause is not None
    assert one.old_cause is not None
    assert (one.old_cause.offset, one.cause.offset) == (9, 9)
    assert one.old_cause.file.startswith(str(tmp_path / "a"))
    assert one.cause.file.startswith(str(tmp_path / "b"))


def test_a_checkpoint_is_a_side_without_records_and_has_no_history(tmp_path: Path) -> None:
    maker = story(tmp_path)
    at = state_at(maker.log(), Point(offset=5))
    path = tmp_path / snapshot_name(LogPosition(1, 5))
    path.write_bytes(b"".join(snapshot_batches(at.image, position=LogPosition(1, 5))))
    checkpoint = open_log(PosixDisk(), str(path))
    log = maker.log()
    assert diff_logs(checkpoint, state_at(checkpoint), log, state_at(log, Point(offset=5))) == []
    changes = diff_logs(checkpoint, state_at(checkpoint), log, state_at(log))
    assert [change.entity for change in changes] == ["config/topic/orders", "topic/orders/0"]
    assert all(change.old_cause is None and change.cause is not None for change in changes)
    with pytest.raises(InspectError, match="is a single state, not a history"):
        list(history(checkpoint))
    with pytest.raises(InspectError, match="is a single state, not a history"):
        state_at(checkpoint, Point(offset=3))


def test_paths_sort_by_number_and_have_other_names() -> None:
    paths = ["topic/orders/10", "topic/orders/9", "broker/2", "topic/orders", "broker/10"]
    assert sorted(paths, key=sort_key) == [
        "broker/2", "broker/10", "topic/orders", "topic/orders/9", "topic/orders/10"
    ]  # fmt: skip
    assert aliases("quota/client-id=<default>,user=CN=a,O=b") == (
        "quota/client-id=<default>,user=CN=a,O=b", "client-id/<default>", "user/CN=a,O=b"
    )  # fmt: skip
    assert Wanted("user/alice").has("scram/SCRAM-SHA-256/alice")
    assert Wanted("broker/3").has("config/broker/3")
    assert not Wanted("broker/3").has("broker/30")


def test_a_topic_is_also_known_by_its_id(tmp_path: Path) -> None:
    image = state_at(story(tmp_path).log()).image
    assert resolved(f"topic/{uuid_to_text(TOPIC)}/1", image) == "topic/orders/1"
    assert resolved("topic/orders/1", image) == "topic/orders/1"
    assert [path for path, _ in entities_below(image, Wanted("topic/orders"))] == [
        "topic/orders", "topic/orders/0", "topic/orders/1", "config/topic/orders"
    ]  # fmt: skip
    assert [path for path, _ in entities_below(image, Wanted("topic/orders/1"))] == ["topic/orders/1"]
    assert list(entities_below(image, Wanted("topic/none"))) == []
    assert END.is_end
