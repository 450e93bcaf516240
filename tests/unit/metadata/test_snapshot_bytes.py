"""Columns against plain code, byte by byte and row by row: batches of snapshots, lists of every width, diffs.

The column paths are written for speed. Here each does what the simple way does.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from metaquorum.controller.ledger import encode_records_batch
from metaquorum.controller.partitions.topics import new_partitions
from metaquorum.metadata.columnar.encode import ChangedPartitions, ChangedRows, RecordPieces
from metaquorum.metadata.delta import diff
from metaquorum.metadata.image import MetadataImage, images_equal
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    ZkMigrationStateRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState
from metaquorum.metadata.snapshot import load_snapshot, records_before_topics, snapshot_batches
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.types import LogPosition
from tests.images import describe_difference

LEVEL = 19
TOPICS = [bytes([at]) * 16 for at in range(1, 5)]


def replayed(records: list[tuple[int, Any]], state: ReplayState | None = None, **how: bool) -> ReplayState:
    engine = Replayer(state, **how)
    content = encode_batch(
        base_offset=engine.end_offset,
        leader_epoch=1,
        timestamp_ms=5,
        values=[encode(record, version) for version, record in records],
    )
    for batch in iter_batches(content):
        engine.apply_batch(batch)
    return engine.state()


def partition(topic_id: bytes, index: int, replicas: int = 3, isr: int = 2, **fields: Any) -> tuple[int, Any]:
    brokers = tuple((index + at) % 7 for at in range(replicas))
    record = PartitionRecord(
        index,
        topic_id,
        brokers,
        brokers[:isr],
        leader=brokers[0],
        leader_epoch=index,
        partition_epoch=index + 1,
        directories=tuple(bytes([100 + at]) * 16 for at in brokers),
        **fields,
    )
    return 1, record


def topic(topic_id: bytes) -> tuple[int, Any]:
    return 0, TopicRecord(f"topic-{topic_id[0]}", topic_id)


def filled(count: int, **fields: Any) -> MetadataImage:
    records = [topic(TOPICS[0]), *(partition(TOPICS[0], at, **fields) for at in range(count))]
    return replayed(records).image


@pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 200, 4094, 4095, 5000])
def test_a_batch_of_a_snapshot_is_what_the_plain_encoder_makes_of_its_values(count: int) -> None:
    """The numbers of the records, too, which change their length at 64 and at 8,192."""
    image = filled(count)
    position = LogPosition(7, image.provenance.offset)
    offset = 0
    for part in snapshot_batches(image, position=position, metadata_version=LEVEL):
        for batch in iter_batches(part):
            raws = list(batch.records())
            assert [raw.offset for raw in raws] == list(range(offset, offset + len(raws)))
            offset += len(raws)
            assert batch.data == encode_batch(
                base_offset=raws[0].offset,
                leader_epoch=7,
                timestamp_ms=5,
                values=[raw.value or b"" for raw in raws],
                keys=[raw.key for raw in raws] if batch.header.is_control else None,
                is_control=batch.header.is_control,
            )
    assert offset == count + 5  # header, level, migration state, topic, footer


@pytest.mark.parametrize("level", [16, 17, 23])
@pytest.mark.parametrize(("count", "before"), [(24, 0), (24, 1), (65, 63), (4100, 0)])
def test_a_decision_in_columns_is_the_batch_of_its_records(count: int, before: int, level: int) -> None:
    """What a controller writes for a large topic, and for a broker's death: by columns, or one by one."""
    lists = [(5 + at % 2, at % 5, 9) for at in range(count)]
    active = frozenset(range(10))
    created = new_partitions(TOPICS[0], 7, lists, active, lambda at: bytes([at]) * 16, level >= 17)
    assert created is not None
    indexes = np.arange(count, dtype=np.int32)
    topics = np.tile(np.frombuffer(TOPICS[1], dtype=np.uint64), (count, 1))
    isr = np.array([(at % 7, 300_000 + at) for at in range(count)], dtype=np.int32)
    for rows in (
        ChangedRows(topics, indexes, isr, None),
        ChangedRows(topics, indexes, None, indexes - 1),
        ChangedRows(topics, indexes, isr, indexes - 1),
    ):
        head = [TopicRecord(f"t{at}", TOPICS[2]) for at in range(before)]
        pieces = RecordPieces([*head, created, ChangedPartitions(rows), head[0] if head else NoOpRecord()])
        plain = list(pieces)
        assert len(pieces) == len(plain) and pieces == plain and pieces != plain[1:]
        assert [pieces[at] for at in range(len(plain))] == plain and pieces[-1] is plain[-1]
        assert pieces[1:-1] == tuple(plain[1:-1])
        said = {"base_offset": 9, "epoch": 2, "timestamp_ms": 5, "metadata_version": level}
        in_columns = encode_records_batch(pieces, **said)
        assert in_columns == encode_records_batch(list(pieces), **said)
        (batch,) = iter_batches(in_columns)
        assert [raw.offset for raw in batch.records()] == list(range(9, 9 + before + 2 * count + 1))


WIDTHS = list(product((1, 2, 3, 5), (1, 2, 3, 5)))


@pytest.mark.parametrize("first", WIDTHS)
@pytest.mark.parametrize("second", [(1, 1), (2, 3), (3, 2), (5, 1), (1, 5)])
def test_lists_of_other_widths_come_into_a_chunk(first: tuple[int, int], second: tuple[int, int]) -> None:
    records = [topic(TOPICS[0]), topic(TOPICS[1])]
    records += [partition(TOPICS[0], at, *first) for at in range(40)]
    more = [partition(TOPICS[1], at, *second) for at in range(40)]
    in_columns = replayed(more, replayed(records, use_columns=True), use_columns=True)
    one_by_one = replayed(more, replayed(records, use_columns=False), use_columns=False)
    assert describe_difference(in_columns.image, one_by_one.image) == ""
    for topic_id, (replicas, isr) in ((TOPICS[0], first), (TOPICS[1], second)):
        for info in in_columns.image.topics.partitions_of(topic_id):
            assert (len(info.replicas), len(info.isr)) == (replicas, min(isr, replicas))


@pytest.mark.parametrize("odd_at", [0, 5, 39])
@pytest.mark.parametrize("twin_at", [0, 5, 39])
def test_a_partition_that_comes_twice_in_a_batch_holds_what_came_last(odd_at: int, twin_at: int) -> None:
    """One of the two is odd (it has lists that nearly every partition has empty) and goes another way."""
    records = [topic(TOPICS[0]), *(partition(TOPICS[0], at) for at in range(40))]
    twin = partition(TOPICS[0], twin_at, adding_replicas=(9,))
    records.insert(1 + odd_at, twin)
    in_columns = replayed(records, use_columns=True)
    one_by_one = replayed(records, use_columns=False)
    assert describe_difference(in_columns.image, one_by_one.image) == ""
    last = max(at for at, (_, record) in enumerate(records) if getattr(record, "partition_id", -1) == twin_at)
    held = in_columns.image.topics.partition(TOPICS[0], twin_at)
    assert held is not None
    assert held.adding == records[last][1].adding_replicas


@pytest.mark.parametrize("count", [1, 100, 600, 1500])
def test_a_diff_tells_the_same_in_both_directions(count: int) -> None:
    """Backwards, too, where the older image has fewer chunks."""
    before = replayed([topic(TOPICS[0]), partition(TOPICS[0], 0)])
    records = [topic(TOPICS[1]), *(partition(TOPICS[1], at) for at in range(count))]
    after = replayed(records, before)
    new_keys = tuple((TOPICS[1], at) for at in range(count))
    forward = diff(before.image, after.image)
    backward = diff(after.image, before.image)
    assert forward.partitions.added == backward.partitions.removed == new_keys
    assert forward.partitions.removed == backward.partitions.added == ()
    assert forward.partitions.changed == backward.partitions.changed == ()
    assert [at.topic_id for at in forward.topics_added] == [at.topic_id for at in backward.topics_removed]
    gone = replayed([(0, RemoveTopicRecord(TOPICS[1]))], after)
    assert diff(before.image, gone.image).is_empty
    assert diff(after.image, gone.image).partitions.removed == new_keys


def test_partitions_of_some_places_are_looked_up_at_once() -> None:
    image = filled(700)
    topics = image.topics
    assert [topics.partition(TOPICS[0], at) for at in range(700)] == topics.partitions_of(TOPICS[0])
    assert topics.partition(TOPICS[0], 700) is None
    assert topics.partition(TOPICS[1], 0) is None


def test_what_is_loaded_is_written_again_alike_and_goes_on_alike() -> None:
    image = filled(700)
    position = LogPosition(1, image.provenance.offset)
    content = list(snapshot_batches(image, position=position, metadata_version=LEVEL))
    for use_columns in (True, False):
        loaded = load_snapshot(content, position=position, use_columns=use_columns)
        assert list(snapshot_batches(loaded, position=position)) == content
        more = [topic(TOPICS[2]), *(partition(TOPICS[2], at, 5, 1) for at in range(100))]
        resumed = replayed(more, ReplayState(loaded))
        whole = replayed(more, ReplayState(image))
        assert describe_difference(resumed.image, whole.image).splitlines() == [
            "feature/metadata.version: 19 -> None"
        ]
        assert not images_equal(resumed.image, whole.image)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("named", [1, 2, 3])
def test_new_directories_are_as_many_as_replicas_in_every_chunk(order: tuple[int, int], named: int) -> None:
    """Partitions with two and with three replicas lie in different chunks; a change fits one kind or none."""
    records = [topic(TOPICS[0]), topic(TOPICS[1])]
    records += [partition(TOPICS[0], at, 2) for at in range(600)]
    records += [partition(TOPICS[1], at, 3) for at in range(40)]
    base = replayed(records)
    directories = tuple(bytes([200 + at]) * 16 for at in range(named))
    changes = [
        (1, PartitionChangeRecord(at, TOPICS[which], directories=directories))
        for which in order
        for at in range(40)
    ]
    results = []
    for use_columns in (True, False):
        refused: list[int] = []
        engine = Replayer(
            base, on_error=lambda error, into=refused: into.append(error.offset), use_columns=use_columns
        )
        content = encode_batch(
            base_offset=engine.end_offset,
            leader_epoch=1,
            timestamp_ms=5,
            values=[encode(record, version) for version, record in changes],
        )
        for batch in iter_batches(content):
            engine.apply_batch(batch)
        results.append((refused, engine.state().image))
    assert results[0][0] == results[1][0]
    assert len(results[0][0]) == {1: 80, 2: 40, 3: 40}[named]
    assert describe_difference(results[0][1], results[1][1]) == ""


@pytest.mark.parametrize("count", [3, 40, 700, 3000])
def test_directories_are_told_apart_by_all_of_their_ids(count: int) -> None:
    """Ids that share a half, and more of them with every batch; also where they come from another lineage."""
    rng = random.Random(count)
    halves = [rng.randbytes(8) for _ in range(1 + count // 10)]
    ids = [rng.choice(halves) + rng.choice([rng.choice(halves), rng.randbytes(8)]) for _ in range(count)]
    in_columns, one_by_one = ReplayState(), ReplayState()
    for number, topic_id in enumerate(TOPICS):
        records = [topic(topic_id)]
        for at in range(200):
            held = tuple(
                ids[rng.randrange(1 + count * (number + 1) // len(TOPICS)) % count] for _ in (1, 2, 3)
            )
            version, record = partition(topic_id, at)
            records.append((version, msgspec.structs.replace(record, directories=held)))
        in_columns = replayed(records, in_columns, use_columns=True)
        one_by_one = replayed(records, one_by_one, use_columns=False)
        assert describe_difference(in_columns.image, one_by_one.image) == ""
        assert diff(in_columns.image, one_by_one.image).is_empty
        for _, record in records[1:]:
            held_now = in_columns.image.topics.partition(topic_id, record.partition_id)
            assert held_now is not None
            assert held_now.directories == record.directories
    position = LogPosition(1, in_columns.end_offset)
    content = list(snapshot_batches(in_columns.image, position=position, metadata_version=LEVEL))
    loaded = load_snapshot(content, position=position)
    assert diff(loaded, in_columns.image).partitions.is_empty
    swapped = in_columns.image.topics.partition(TOPICS[0], 0)
    assert swapped is not None
    turned = (swapped.directories[1], swapped.directories[0], swapped.directories[2])
    change = PartitionChangeRecord(0, TOPICS[0], directories=turned)
    changed = replayed([(1, change)], in_columns)
    expected = () if turned == swapped.directories else ((TOPICS[0], 0),)
    for before in (loaded, in_columns.image):
        delta = diff(before, changed.image).partitions
        assert (delta.added, delta.removed) == ((), ())
        assert delta.changed == ((TOPICS[0], 0),) if expected else True


@pytest.mark.parametrize(
    ("level", "states"), [(7, False), (8, True), (19, True), (21, True), (22, False), (23, False)]
)
def test_a_snapshot_states_the_zookeeper_migration_from_3_4_until_4_0(level: int, states: bool) -> None:
    """And at any level, if there was one."""
    for image, told in ((filled(1), states), (replayed([(0, ZkMigrationStateRecord(2))]).image, True)):
        listed = [at for at in records_before_topics(image, level) if isinstance(at, ZkMigrationStateRecord)]
        assert bool(listed) == told
