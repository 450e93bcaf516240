"""Snapshots: their shape, their bounds, what is refused when one is loaded, and old levels."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.metadata.errors import ReplayError, UnsupportedVersionError
from metaquorum.metadata.image import ImageBuilder, MetadataImage, Provenance, images_equal
from metaquorum.metadata.records.codec import decode_control, encode, encode_control
from metaquorum.metadata.records.control import SnapshotFooterRecord, SnapshotHeaderRecord
from metaquorum.metadata.records.types import (
    BeginTransactionRecord,
    BrokerRecord,
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import OpenTransaction, ReplayState, replay_records
from metaquorum.metadata.replica import SnapshotPolicy
from metaquorum.metadata.snapshot import (
    BATCH_BYTES,
    BATCH_RECORDS,
    SnapshotLoadError,
    load_snapshot,
    snapshot_batches,
)
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.errors import CorruptLogError
from metaquorum.storage.types import LogPosition

POSITION = LogPosition(4, 100)


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def image_of(*records: Any) -> MetadataImage:
    return replay_records(ReplayState(), base_offset=0, epoch=4, timestamp_ms=9, records=records).image


def topics(count: int, partitions: int, rf: int = 3, level: int = 19) -> MetadataImage:
    records: list[Any] = [FeatureLevelRecord("metadata.version", level)]
    for topic in range(count):
        records.append(TopicRecord(f"topic-{topic}", uuid(1000 + topic)))
        for index in range(partitions):
            replicas = tuple((topic + index + at) % 400 for at in range(rf))
            directories = tuple(uuid(500 + at) for at in replicas)
            records.append(
                PartitionRecord(
                    index, uuid(1000 + topic), replicas, replicas, (), (), replicas[0], 0, 1, 2, directories
                )
            )
    return image_of(*records)


def test_a_snapshot_is_header_data_footer_with_offsets_from_zero() -> None:
    image = topics(3, 5)
    content = list(snapshot_batches(image, position=POSITION, timestamp_ms=1234))
    batches = list(iter_batches(b"".join(content), expected_offset=0))
    assert [batch.header.is_control for batch in batches] == [True, False, False, True]
    assert {batch.header.leader_epoch for batch in batches} == {4}
    header, footer = (decode_control(raw.key, raw.value) for at in (0, -1) for raw in batches[at].records())
    assert header == SnapshotHeaderRecord(1234) and footer == SnapshotFooterRecord()
    loaded = load_snapshot(content, position=POSITION)
    assert images_equal(loaded, image, provenance=False)
    assert (loaded.provenance.offset, loaded.provenance.epoch, loaded.provenance.timestamp_ms) == (
        100,
        4,
        1234,
    )
    assert images_equal(load_snapshot(batches, position=POSITION), loaded)


def test_an_empty_image_has_a_snapshot() -> None:
    content = list(snapshot_batches(MetadataImage(), position=LogPosition(0, 0)))
    assert len(content) == 2
    loaded = load_snapshot(content, position=LogPosition(0, 0))
    assert images_equal(loaded, MetadataImage(), provenance=False)


@pytest.mark.parametrize(
    ("count", "partitions", "rf"), [(40, 300, 3), (1, 9000, 2), (2, 700, 60), (5000, 1, 1)]
)
def test_batches_are_bounded(count: int, partitions: int, rf: int) -> None:
    image = topics(count, partitions, rf)
    content = list(snapshot_batches(image, position=POSITION))
    for batch in iter_batches(b"".join(content)):
        assert batch.header.records_count <= BATCH_RECORDS
        assert batch.header.size_bytes <= BATCH_BYTES + 64 * 1024
    assert images_equal(load_snapshot(content, position=POSITION), image, provenance=False)


def test_equal_images_give_equal_bytes_whatever_their_history() -> None:
    forward = topics(4, 30)
    builder = ImageBuilder(topics(4, 30))
    builder.topics.remove_topic(builder.topics.by_id[uuid(1001)])
    rest = builder.freeze()
    again: list[Any] = [TopicRecord("topic-1", uuid(1001))]
    for at in reversed(range(30)):
        partition = forward.topics.partition(uuid(1001), at)
        assert partition is not None
        again.append(
            PartitionRecord(
                at,
                uuid(1001),
                partition.replicas,
                partition.isr,
                (),
                (),
                partition.leader,
                0,
                1,
                2,
                partition.directories,
            )
        )
    state = ReplayState(rest)
    other = replay_records(state, base_offset=state.end_offset, epoch=4, timestamp_ms=9, records=again).image
    assert b"".join(snapshot_batches(other, position=POSITION)) == b"".join(
        snapshot_batches(forward, position=POSITION)
    )


def test_registered_brokers_are_taken_as_registered_before_the_snapshot() -> None:
    image = image_of(FeatureLevelRecord("metadata.version", 19), BrokerRecord(7, uuid(1), 1))
    loaded = load_snapshot(snapshot_batches(image, position=POSITION), position=POSITION)
    assert image.brokers.registration_offset(7) == 1
    assert loaded.brokers.registration_offset(7) == 99


def test_an_old_level_is_written_in_its_versions_or_refused() -> None:
    old = image_of(TopicRecord("t", uuid(1)), PartitionRecord(0, uuid(1), (1, 2), (1,), (), (), 1, 0, 3, 4))
    content = b"".join(snapshot_batches(old, position=POSITION))
    versions = {
        raw.value[1:3]
        for batch in iter_batches(content)
        for raw in batch.records()
        if not batch.header.is_control
    }
    assert versions == {bytes((2, 0)), bytes((3, 0))}
    assert images_equal(load_snapshot([content], position=POSITION), old, provenance=False)
    with pytest.raises(UnsupportedVersionError, match=r"3\.7-IV2"):
        list(snapshot_batches(topics(1, 1, level=7), position=POSITION))


def control(record: Any, offset: int) -> bytes:
    key, value = encode_control(record)
    return encode_batch(
        base_offset=offset, leader_epoch=4, timestamp_ms=1, values=[value], keys=[key], is_control=True
    )


def data(offset: int, *records: Any) -> bytes:
    values = [encode(record, 0) for record in records]
    return encode_batch(base_offset=offset, leader_epoch=4, timestamp_ms=1, values=values)


def strange_control(offset: int) -> bytes:
    return encode_batch(
        base_offset=offset,
        leader_epoch=4,
        timestamp_ms=1,
        values=[b"\0"],
        keys=[b"\0\0\0\x63"],
        is_control=True,
    )


HEADER, FOOTER = SnapshotHeaderRecord(5), SnapshotFooterRecord()
TOPIC = TopicRecord("t", uuid(1))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "ends without its footer"),
        ([control(HEADER, 0)], "ends without its footer"),
        ([control(HEADER, 0), data(1, TOPIC)], "ends without its footer"),
        ([data(0, TOPIC), control(FOOTER, 1)], "not a snapshot header"),
        ([control(FOOTER, 0)], "not a snapshot header"),
        ([control(HEADER, 0), strange_control(1), control(FOOTER, 2)], "type 99"),
        ([control(HEADER, 0), control(FOOTER, 1), data(2, TOPIC)], "records follow"),
        (
            [control(HEADER, 0), data(1, BeginTransactionRecord("x")), control(FOOTER, 2)],
            "not hold transaction markers",
        ),
    ],
)
def test_a_snapshot_that_is_not_whole_is_refused(content: list[bytes], reason: str) -> None:
    with pytest.raises(SnapshotLoadError, match=reason) as caught:
        load_snapshot(content, position=POSITION)
    assert "fetch the snapshot again" in str(caught.value)


def test_damage_and_nonsense_in_a_snapshot_are_named() -> None:
    damaged = bytearray(b"".join(snapshot_batches(topics(1, 3), position=POSITION)))
    damaged[-3] ^= 1
    with pytest.raises(CorruptLogError, match="CRC"):
        load_snapshot([bytes(damaged)], position=POSITION)
    nonsense = [control(HEADER, 0), data(1, TOPIC, TOPIC), control(FOOTER, 3)]
    with pytest.raises(ReplayError, match="already exists"):
        load_snapshot(nonsense, position=POSITION)
    skipped: list[ReplayError] = []
    image = load_snapshot(nonsense, position=POSITION, on_error=skipped.append)
    assert len(skipped) == 1 and len(image.topics) == 1


# When a snapshot is due and where it ends.


HOUR_MS = 3_600_000


def policy_of(*, max_bytes: int = 1_000, interval_ms: int = HOUR_MS, last_offset: int = 5) -> SnapshotPolicy:
    return SnapshotPolicy(max_bytes=max_bytes, interval_ms=interval_ms, last_offset=last_offset, now_ms=0)


def state_at(offset: int, epoch: int = 3) -> ReplayState:
    return ReplayState(MetadataImage().with_provenance(Provenance(offset, epoch, 0)))


def test_by_size_it_is_due_with_the_byte_that_makes_it_full() -> None:
    policy = policy_of()
    policy.replayed(999)
    assert policy.cut(state_at(10), 1) is None
    policy.replayed(1)
    assert policy.cut(state_at(10), 1) == LogPosition(3, 10)
    policy.written(LogPosition(3, 10))
    assert policy.cut(state_at(11), 1) is None, "the bytes count anew"


def test_by_age_it_is_due_at_its_deadline_when_there_is_something_new() -> None:
    policy = policy_of()
    assert policy.next_deadline_ms(state_at(5)) is None and policy.cut(state_at(5), 2 * HOUR_MS) is None
    assert policy.next_deadline_ms(state_at(6)) == HOUR_MS
    assert policy.cut(state_at(6), HOUR_MS - 1) is None
    assert policy.cut(state_at(6), HOUR_MS) == LogPosition(3, 6)
    assert policy.next_deadline_ms(state_at(7)) is None, "one is in progress"
    policy.written(LogPosition(3, 6))
    assert policy.next_deadline_ms(state_at(7)) == 2 * HOUR_MS


def test_with_an_interval_of_zero_no_age_makes_it_due() -> None:
    policy = policy_of(interval_ms=0)
    assert policy.next_deadline_ms(state_at(6)) is None
    assert policy.cut(state_at(6), 1_000 * HOUR_MS) is None
    policy.replayed(1_000)
    assert policy.cut(state_at(6), 1_000 * HOUR_MS) == LogPosition(3, 6)


def test_inside_a_transaction_it_waits_for_the_end() -> None:
    policy = policy_of()
    policy.replayed(5_000)
    begun = OpenTransaction(begin_offset=6, name=None, pending=state_at(9).image)
    inside = ReplayState(state_at(6).image, begun)
    assert policy.cut(inside, 2 * HOUR_MS) is None and policy.next_deadline_ms(inside) is None
    assert policy.cut(state_at(9), 2 * HOUR_MS) == LogPosition(3, 9)


@pytest.mark.parametrize(
    ("written", "ended", "counts"),
    [((3, 10), True, True), ((3, 9), False, True), ((4, 10), False, True), ((3, 5), False, False)],
)
def test_only_the_snapshot_that_was_asked_for_ends_the_wait_for_it(
    written: tuple[int, int], ended: bool, counts: bool
) -> None:
    policy = policy_of()
    policy.in_progress = LogPosition(3, 10)
    assert policy.written(LogPosition(*written)) == counts
    assert (policy.in_progress is None) == ended


def test_a_fetched_snapshot_counts_as_the_newest_unless_it_is_older() -> None:
    policy = policy_of()
    policy.replayed(5_000)
    policy.loaded(LogPosition(4, 20), HOUR_MS)
    assert policy.last_offset == 20 and policy.cut(state_at(21, 4), HOUR_MS) is None
    assert policy.next_deadline_ms(state_at(21, 4)) == 2 * HOUR_MS
    policy.loaded(LogPosition(4, 15), HOUR_MS)
    assert policy.last_offset == 20
