"""Who is named by replica lists: an index that replay keeps, equal to what a scan finds (S0.16, S0.17)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.metadata.features import write_version
from metaquorum.metadata.image import MetadataImage, TopicsImage
from metaquorum.metadata.invariants import check_image
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.types import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import Replayer, ReplayState, replay_records
from metaquorum.metadata.snapshot import load_snapshot, snapshot_batches
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from metaquorum.storage.types import LogPosition

UNASSIGNED = b"\0" * 15 + b"\1"


def scanned(topics: TopicsImage) -> dict[int, int]:
    """The counts, told from the partitions themselves."""
    found: dict[int, int] = {}
    for topic in topics.all():
        for partition in topics.partitions_of(topic.topic_id):
            for broker_id in partition.replicas:
                found[broker_id] = found.get(broker_id, 0) + 1
    return found


def partition(topic_id: bytes, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(UNASSIGNED,) * len(replicas),
    )


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def changes(seed: int, highest_id: int) -> list[object]:
    """Topics that come, change their replicas and go, in a legal order."""
    rng = random.Random(seed)
    records: list[object] = [FeatureLevelRecord(name="metadata.version", feature_level=19)]
    alive: dict[int, dict[int, tuple[int, ...]]] = {}
    for number in range(1, 60):
        kind = rng.randrange(5)
        if kind <= 1 or not alive:
            partitions = {}
            records.append(TopicRecord(name=f"t{number}", topic_id=topic_id(number)))
            for index in range(rng.choice((1, 3, 40, 700))):
                partitions[index] = tuple(rng.sample(range(highest_id - 8, highest_id), rng.randint(1, 4)))
                records.append(partition(topic_id(number), index, partitions[index]))
            alive[number] = partitions
        elif kind == 2:
            gone = rng.choice(list(alive))
            del alive[gone]
            records.append(RemoveTopicRecord(topic_id=topic_id(gone)))
        elif kind == 3:
            chosen = rng.choice(list(alive))
            for index in alive[chosen]:
                replicas = tuple(rng.sample(range(highest_id - 8, highest_id), rng.randint(1, 5)))
                records.append(
                    PartitionChangeRecord(
                        partition_id=index, topic_id=topic_id(chosen), replicas=replicas, isr=replicas
                    )
                )
        else:
            inside = [TopicRecord(name=f"t{number}", topic_id=topic_id(number))]
            inside += [partition(topic_id(number), 0, (highest_id + 5, highest_id - 1))]  # type: ignore[list-item]
            end: object = AbortTransactionRecord(reason=None)
            if rng.random() < 0.5:
                end = EndTransactionRecord()
                alive[number] = {0: (highest_id + 5, highest_id - 1)}
            records += [BeginTransactionRecord(name=None), *inside, end]
    return records


def replayed(records: list[object], batch: int, use_columns: bool, check_each: bool = False) -> MetadataImage:
    engine = Replayer(use_columns=use_columns)
    for start in range(0, len(records), batch):
        part = records[start : start + batch]
        data = encode_batch(
            base_offset=start,
            leader_epoch=1,
            timestamp_ms=0,
            values=[encode(each, write_version(each, 19)) for each in part],
        )
        for found in iter_batches(data, expected_offset=start):
            engine.apply_batch(found)
        if check_each and engine.state().transaction is None:
            topics = engine.state().image.topics
            assert topics.replica_counts() == scanned(topics)
    return engine.state().image


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.sampled_from((1, 50, 2_000)),
    highest=st.sampled_from((20, 16_388, 2**31 - 10)),
)
def test_s0_17_the_index_is_equal_to_a_scan_on_every_path(seed: int, batch: int, highest: int) -> None:
    records = changes(seed, highest)
    by_columns = replayed(records, batch, use_columns=True, check_each=batch > 1)
    one_by_one = replayed(records, batch, use_columns=False)
    truth = scanned(by_columns.topics)
    assert truth and by_columns.topics.replica_counts() == truth
    assert one_by_one.topics.replica_counts() == truth


@pytest.mark.parametrize("use_columns", [True, False])
@pytest.mark.parametrize("many", [1, 60])
def test_s0_17_a_broker_that_is_listed_twice_counts_twice(many: int, use_columns: bool) -> None:
    def changed(replicas: tuple[int, ...]) -> list[object]:
        places = (UNASSIGNED,) * len(replicas)
        return [
            PartitionChangeRecord(at, topic_id(1), replicas=replicas, directories=places)
            for at in range(many)
        ]

    records: list[object] = [TopicRecord(name="a", topic_id=topic_id(1))]
    records += [partition(topic_id(1), at, (1, 1, 2)) for at in range(many)]
    records += [*changed((2, 2, 2)), *changed((3, 1)), *changed((3, 3))]
    records.append(RemoveTopicRecord(topic_id=topic_id(1)))
    counts = [
        replayed(records[: 1 + many * end], many + 1, use_columns).topics.replica_counts()
        for end in range(1, 5)
    ]
    assert counts == [{1: 2 * many, 2: many}, {2: 3 * many}, {1: many, 3: many}, {3: 2 * many}]
    assert replayed(records, many + 1, use_columns).topics.replica_counts() == {}


def test_s0_17_the_index_survives_a_snapshot() -> None:
    image = replayed(changes(7, 30), 500, use_columns=True)
    position = LogPosition(epoch=1, offset=image.provenance.offset)
    data = b"".join(snapshot_batches(image, position=position, timestamp_ms=0))
    loaded = load_snapshot(iter_batches(data), position=position)
    assert loaded.topics.replica_counts() == scanned(image.topics) != {}


def test_s0_17_an_earlier_image_keeps_its_own_index() -> None:
    first = replay_records(
        ReplayState(),
        base_offset=0,
        epoch=1,
        timestamp_ms=0,
        records=[TopicRecord(name="a", topic_id=topic_id(1)), partition(topic_id(1), 0, (1, 2))],
    )
    second = replay_records(
        first,
        base_offset=2,
        epoch=1,
        timestamp_ms=0,
        records=[PartitionChangeRecord(partition_id=0, topic_id=topic_id(1), replicas=(2, 3), isr=(2,))],
    )
    assert first.image.topics.replica_counts() == {1: 1, 2: 1}
    assert second.image.topics.replica_counts() == {2: 1, 3: 1}


@pytest.mark.parametrize("use_columns", [True, False])
def test_s0_17_changes_that_leave_replicas_alone_copy_nothing(use_columns: bool) -> None:
    made = [TopicRecord(name="a", topic_id=topic_id(1))]
    made += [partition(topic_id(1), index, (1, 2)) for index in range(100)]  # type: ignore[list-item]
    engine = Replayer(use_columns=use_columns)
    for base, part in ((0, made), (len(made), _shrinks())):
        data = encode_batch(
            base_offset=base,
            leader_epoch=1,
            timestamp_ms=0,
            values=[encode(each, write_version(each, 19)) for each in part],
        )
        for batch in iter_batches(data, expected_offset=base):
            engine.apply_batch(batch)
        if base == 0:
            before = engine.state().image.topics.replica_counts()
    after = engine.state().image.topics.replica_counts()
    assert after is before and after == {1: 100, 2: 100}


def _shrinks() -> list[object]:
    return [
        PartitionChangeRecord(partition_id=index, topic_id=topic_id(1), isr=(1,), leader=1)
        for index in range(100)
    ]


def test_s0_17_an_index_that_lies_is_a_violation() -> None:
    image = replayed(
        [TopicRecord(name="a", topic_id=topic_id(1)), partition(topic_id(1), 0, (1, 2))], 2, False
    )
    assert check_image(image) == [] or {each.severity for each in check_image(image)} == {"warning"}
    counts = image.topics.columns.replica_counts
    counts[2] += 1
    counts[9] = 1
    wrong = [each for each in check_image(image) if each.rule == "replica-counts"]
    assert [(each.where, each.severity) for each in wrong] == [("broker/2", "error"), ("broker/9", "error")]
    assert "it holds 1 replicas, 2 are counted" in wrong[0].text
