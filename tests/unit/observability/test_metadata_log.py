"""Lines about metadata: whose epochs, which offset, replayed or live; partitions counted and one by one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from metaquorum.metadata.image import MetadataImage, Provenance, TopicsImage
from metaquorum.metadata.image.chunk import CHUNK_ROWS
from metaquorum.metadata.image.types import PartitionInfo
from metaquorum.observability.metadata_log import CHUNKS_PER_TICK, SUMMARY_MS, MetadataLines

TOPIC_ID = bytes(15) + b"\x01"


def partition(index: int, *, leader: int = 1, leader_epoch: int = 0) -> PartitionInfo:
    return PartitionInfo(
        topic_id=TOPIC_ID,
        index=index,
        replicas=(1, 2),
        isr=(1, 2),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch,
        leader_recovery_state=0,
        directories=(bytes(16),) * 2,
    )


def with_partitions(topics: TopicsImage, *partitions: PartitionInfo) -> TopicsImage:
    builder = topics.builder()
    if builder.by_id.get(TOPIC_ID) is None:
        builder.add_topic(TOPIC_ID, "orders")
    for each in partitions:
        entry = builder.by_id.get(TOPIC_ID)
        assert entry is not None
        builder.put_partition(entry, each)
    return builder.freeze()


def image(offset: int, topics: TopicsImage, *, epoch: int = 4) -> MetadataImage:
    return MetadataImage(topics=topics, provenance=Provenance(offset, epoch, 1_000))


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [entry.__dict__ for entry in caplog.records]


def live_lines(topics: TopicsImage) -> MetadataLines:
    """That have caught up at offset 10 with an image of `topics`."""
    lines = MetadataLines(MetadataImage())
    lines.moved(image(10, topics), 10)
    lines.moved(image(11, topics), 11)
    return lines


def test_the_turn_from_replay_to_live_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    topics = with_partitions(MetadataImage().topics, *(partition(at) for at in range(3)))
    lines = live_lines(topics)
    lines.tick(10 * SUMMARY_MS)
    (line,) = told(caplog)
    assert line["message"] == "caught up with the log: brokers 0, topics 1, partitions 3"
    assert (line["offset"], line["epoch"], line["source"]) == (10, 4, "replayed")


def test_leaders_that_move_are_counted_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    topics = with_partitions(MetadataImage().topics, *(partition(at) for at in range(1000)))
    lines = live_lines(topics)
    caplog.set_level(logging.INFO)
    caplog.clear()
    topics = with_partitions(topics, *(partition(at, leader=2, leader_epoch=1) for at in range(300)))
    lines.moved(image(311, topics), 311)
    lines.tick(5_000)
    topics = with_partitions(topics, *(partition(at, leader=-1, leader_epoch=2) for at in range(290, 310)))
    topics = with_partitions(topics, partition(1000), partition(1001))
    lines.moved(image(333, topics, epoch=5), 333)
    lines.tick(5_000 + SUMMARY_MS - 1)
    assert len(caplog.records) == 1
    lines.tick(5_000 + SUMMARY_MS)
    lines.tick(9_000)
    first, second = told(caplog)
    assert first["message"] == "new leaders 300, leaders lost 0"
    assert (first["offset"], first["epoch"], first["source"]) == (311, 4, "live")
    assert (first["new_leaders"], first["leaders_lost"]) == (300, 0)
    assert second["message"] == "partitions +2, new leaders 0, leaders lost 20"
    assert (second["offset"], second["epoch"]) == (333, 5)
    assert (second["partitions"], second["leaders_lost"]) == (2, 20)


def test_many_changed_chunks_are_counted_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    count = (CHUNKS_PER_TICK + 1) * CHUNK_ROWS
    topics = with_partitions(MetadataImage().topics, *(partition(at) for at in range(count)))
    lines = live_lines(topics)
    caplog.clear()
    every = range(0, count, CHUNK_ROWS)
    lines.moved(image(20, with_partitions(topics, *(partition(at, leader_epoch=1) for at in every))), 20)
    lines.tick(5_000)
    assert not caplog.records
    lines.tick(5_000)
    assert told(caplog)[0]["new_leaders"] == CHUNKS_PER_TICK + 1


def test_partitions_one_by_one_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    topics = with_partitions(MetadataImage().topics, partition(0), partition(1))
    lines = live_lines(topics)
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    topics = with_partitions(topics, partition(1, leader=2, leader_epoch=7))
    lines.moved(image(12, topics), 12)
    (line,) = told(caplog)
    assert line["message"] == "partition orders-1 is led by 2, in sync: 1,2"
    assert (line["topic"], line["partition"], line["leader"]) == ("orders", 1, 2)
    assert (line["leader_epoch"], line["partition_epoch"], line["offset"], line["epoch"]) == (7, 7, 12, 4)
    assert line["source"] == "live"


def test_topics_and_their_partitions_while_a_log_is_replayed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lines = MetadataLines(MetadataImage())
    lines.moved(image(5, with_partitions(MetadataImage().topics, partition(0))), 10)
    assert [(each["message"], each["source"]) for each in told(caplog)] == [
        ("topic orders was created", "replayed"),
        ("partition orders-0 is led by 1, in sync: 1,2", "replayed"),
    ]


def test_a_snapshot_that_took_the_logs_place_is_a_replay_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    topics = with_partitions(MetadataImage().topics, partition(0))
    lines = live_lines(topics)
    caplog.clear()
    # The quorum is at 1,000 when a snapshot that ends at 900 is loaded, and the log from there is replayed.
    moved = with_partitions(topics, partition(0, leader=2, leader_epoch=9))
    lines.moved(image(900, moved), 1_000, snapshots_loaded=1)
    lines.moved(image(1_000, moved), 1_005, snapshots_loaded=1)
    lines.tick(5_000)
    assert not caplog.records
    lines.moved(image(1_001, moved), 1_005, snapshots_loaded=1)
    lines.tick(6_000)
    (line,) = told(caplog)
    assert line["message"].startswith("caught up with the log")
    assert (line["offset"], line["source"]) == (1_000, "replayed")
