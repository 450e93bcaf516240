"""Creating and deleting topics: the exact records, and Kafka's refusals, topic by topic."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from metaquorum.controller.ledger import encode_records_batch
from metaquorum.controller.partitions.partitions import removal_slice
from metaquorum.controller.partitions.placement import UsableBroker
from metaquorum.controller.partitions.rules import rules_of
from metaquorum.controller.partitions.topics import Allowance, decide_create_topics, decide_delete_topics
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.image import MIGRATING, UNASSIGNED, ConfigResource, MetadataImage
from metaquorum.metadata.node_configs import ControllerConfig
from metaquorum.metadata.records.types import (
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.replay import ReplayState, replay, replay_records
from metaquorum.metadata.requests.common import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
    TopicResult,
    TopicsResponse,
)
from metaquorum.metadata.settings.topic_names import colliding_name, name_problem
from metaquorum.storage.batches.batch import iter_batches
from metaquorum.storage.uuids import ZERO_UUID
from tests.unit.controller.node_quorum import CLUSTER, image_of
from tests.unit.controller.test_broker_decisions import TOPIC, broker, partition

CONFIG = ControllerConfig(cluster_id=CLUSTER, node_id=1)
NEW_ID = b"new-topic-id-001"


def create(image: MetadataImage, *topics: NewTopic, usable: tuple[int, ...] = (1, 2, 3), **options: object):
    ids = iter(bytes([n]) * 16 for n in range(1, 100))
    result = decide_create_topics(
        image,
        CreateTopicsRequest(topics=topics, **options),
        CONFIG,
        candidates=[UsableBroker(broker_id) for broker_id in usable],
        new_topic_id=lambda: next(ids),
        rng=Random(1),
        allowance=Allowance(),
    )
    assert isinstance(result.response, TopicsResponse)
    return result, result.response.results


def cluster(*records: object) -> MetadataImage:
    return image_of(broker(1), broker(2), broker(3), *records)


def test_explicit_replica_lists_become_one_atomic_batch() -> None:
    image = cluster(broker(4, fenced=True))
    result, (answer,) = create(image, NewTopic(name="a", assignments=((1, 2), (4, 3))))
    topic_id = b"\1" * 16
    dirs = {b: image.brokers[b].directories[0] for b in (1, 2, 3, 4)}
    assert result.records == (
        TopicRecord(name="a", topic_id=topic_id),
        PartitionRecord(
            partition_id=0,
            topic_id=topic_id,
            replicas=(1, 2),
            isr=(1, 2),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(dirs[1], dirs[2]),
        ),
        # Broker 4 is fenced: a replica, not in sync (KIP-841).
        PartitionRecord(
            partition_id=1,
            topic_id=topic_id,
            replicas=(4, 3),
            isr=(3,),
            leader=3,
            leader_epoch=0,
            partition_epoch=0,
            directories=(dirs[4], dirs[3]),
        ),
    )
    assert answer == TopicResult(
        name="a", topic_id=topic_id, error=ErrorCode.NONE, partitions=2, replication_factor=2
    )


def test_configurations_are_in_the_same_batch_between_a_topic_and_its_partitions() -> None:
    """As Kafka orders them; a topic that is given a wrong one is refused and the others are created."""
    configs = (("retention.ms", "5"), ("flush.ms", "4"))
    wanted = (
        NewTopic(name="a", partitions=1, configs=configs),
        NewTopic(name="b", partitions=1, configs=(("retention.ms", "soon"),)),
        NewTopic(name="c", partitions=1, configs=(("no.such.key", "1"),)),
        NewTopic(name="d", partitions=1, configs=(("flush.ms", "1"), ("flush.ms", "2"))),
        NewTopic(name="e", partitions=1),
    )
    result, answers = create(cluster(), *wanted)
    assert [answer.note for answer in answers] == [
        "flush.ms=4: this is stored but has no effect yet",
        *[None] * 4,
    ]
    kinds = [type(record).__name__ for record in result.records]
    assert kinds == [
        "TopicRecord",
        *["ConfigRecord"] * 2,
        "PartitionRecord",
        "TopicRecord",
        "PartitionRecord",
    ]
    assert list(result.records[1:3]) == [ConfigRecord(2, "a", *config) for config in configs]
    assert [answer.error for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert answers[0].configs == (("flush.ms", "4"), ("retention.ms", "5"))
    assert answers[4].configs == ()
    checked, (dry,) = create(cluster(), wanted[0], validate_only=True)
    assert checked.records == () and dry.configs == answers[0].configs and dry.topic_id == ZERO_UUID
    image = replay_records(
        ReplayState(cluster()), base_offset=4, epoch=1, timestamp_ms=0, records=list(result.records)
    ).newest
    assert image.configs[ConfigResource(2, "a")] == dict(configs)


def test_configurations_count_towards_the_records_of_a_request() -> None:
    topic = NewTopic(name="a", partitions=CONFIG.records_per_request_max - 1)
    _, (fits,) = create(cluster(), topic)
    assert fits.error is ErrorCode.NONE
    _, (refused,) = create(cluster(), replace(topic, configs=(("flush.ms", "1"),)))
    assert refused.error is ErrorCode.POLICY_VIOLATION


def test_defaults_come_from_the_configuration_and_partitions_are_spread() -> None:
    result, _ = create(cluster(), NewTopic(name="a"), NewTopic(name="b", partitions=6, replication_factor=2))
    partitions = [record for record in result.records if isinstance(record, PartitionRecord)]
    assert len(partitions) == 1 + 6
    assert Counter(record.leader for record in partitions[1:]) == {1: 2, 2: 2, 3: 2}
    assert all(len(set(record.replicas)) == 2 and record.isr == record.replicas for record in partitions[1:])


def test_directories_are_named_where_there_is_no_choice() -> None:
    two = BrokerRecord(
        broker_id=7, incarnation_id=b"i" * 16, broker_epoch=9, fenced=False, log_dirs=(b"x" * 16, b"y" * 16)
    )
    none = BrokerRecord(broker_id=8, incarnation_id=b"j" * 16, broker_epoch=9, fenced=False, log_dirs=())
    result, _ = create(cluster(two, none), NewTopic(name="a", assignments=((1, 7, 8),)), usable=(1, 7, 8))
    record = result.records[1]
    assert isinstance(record, PartitionRecord)
    assert record.directories == (cluster().brokers[1].directories[0], UNASSIGNED, MIGRATING)
    old = image_of(broker(1), level=16)
    record = create(old, NewTopic(name="a", assignments=((1,),)))[0].records[1]
    assert isinstance(record, PartitionRecord) and record.directories == ()


REFUSED = [
    (NewTopic(name=""), ErrorCode.INVALID_TOPIC_EXCEPTION, "must not be empty"),
    (NewTopic(name="."), ErrorCode.INVALID_TOPIC_EXCEPTION, "cannot be"),
    (NewTopic(name=".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "cannot be"),
    (NewTopic(name="a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "character"),
    (NewTopic(name="a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "character"),
    (NewTopic(name="ä"), ErrorCode.INVALID_TOPIC_EXCEPTION, "character"),
    (NewTopic(name="x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "249"),
    (NewTopic(name="old.one"), ErrorCode.TOPIC_ALREADY_EXISTS, "exists"),
    (NewTopic(name="old_one"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with old.one"),
    (NewTopic(name="n", partitions=0), ErrorCode.INVALID_PARTITIONS, "at least one"),
    (NewTopic(name="n", partitions=-1), ErrorCode.INVALID_PARTITIONS, "at least one"),
    (NewTopic(name="n", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR, "from 1 to"),
    (NewTopic(name="n", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR, "3 are registered"),
    (NewTopic(name="n", partitions=2**31 - 1), ErrorCode.POLICY_VIOLATION, "fewer"),
    (NewTopic(name="n", partitions=50_000), ErrorCode.POLICY_VIOLATION, "fewer"),
    (NewTopic(name="n", assignments=()), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "at least one"),
    (NewTopic(name="n", assignments=((),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no replicas"),
    (NewTopic(name="n", assignments=((1, 1),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "twice"),
    (NewTopic(name="n", assignments=((1, 2), (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the same number"),
    (NewTopic(name="n", assignments=((9,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "not registered"),
    (NewTopic(name="n", assignments=((4,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "fenced"),
    (NewTopic(name="n", assignments=((1,),), partitions=1), ErrorCode.INVALID_REQUEST, "leave out"),
]


@pytest.mark.parametrize(("topic", "code", "text"), REFUSED)
def test_refused_topics_write_nothing_and_do_not_stop_the_others(
    topic: NewTopic, code: ErrorCode, text: str
) -> None:
    image = cluster(
        broker(4, fenced=True), TopicRecord(name="old.one", topic_id=TOPIC), partition(0, (1,), (1,), 1)
    )
    result, answers = create(image, topic, NewTopic(name="good"))
    assert answers[0].error is code
    assert text in (answers[0].message or "")
    assert answers[0].topic_id is None
    assert answers[1].error is ErrorCode.NONE
    assert [type(record) for record in result.records] == [TopicRecord, PartitionRecord]


def test_no_broker_at_all_is_a_replication_factor_that_cannot_be() -> None:
    _, (answer,) = create(image_of(), NewTopic(name="a"), usable=())
    assert answer.error is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_name_twice_in_a_request_is_refused_each_time() -> None:
    result, answers = create(cluster(), NewTopic(name="a"), NewTopic(name="b"), NewTopic(name="a"))
    assert [answer.error for answer in answers] == [
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert len(result.records) == 2


def test_names_of_one_request_collide_too() -> None:
    _, answers = create(cluster(), NewTopic(name="a.b"), NewTopic(name="a_b"))
    assert [answer.error for answer in answers] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_validate_only_answers_alike_and_writes_nothing() -> None:
    result, (answer,) = create(cluster(), NewTopic(name="a", partitions=3), validate_only=True)
    assert result.records == ()
    assert (answer.error, answer.topic_id, answer.partitions) == (ErrorCode.NONE, bytes(16), 3)


def test_more_records_than_a_batch_may_hold_are_refused_as_a_whole() -> None:
    many = [NewTopic(name=f"t{n}", partitions=20_000) for n in range(3)]
    result, answers = create(cluster(), *many)
    assert result.records == ()
    assert [answer.error for answer in answers] == [ErrorCode.POLICY_VIOLATION] * 3
    largest, _ = create(cluster(), NewTopic(name="t", partitions=49_999))
    assert len(largest.records) == 50_000


# ---- deleting


def delete(image: MetadataImage, *topics: str | bytes) -> tuple[tuple[object, ...], list[TopicResult]]:
    result = decide_delete_topics(image, DeleteTopicsRequest(topics=topics), CONFIG, Allowance())
    assert isinstance(result.response, TopicsResponse)
    return result.records, list(result.response.results)


def test_delete_by_name_and_by_id() -> None:
    image = cluster(TopicRecord(name="a", topic_id=TOPIC), TopicRecord(name="b", topic_id=NEW_ID))
    records, answers = delete(image, "a", NEW_ID)
    assert records == (RemoveTopicRecord(topic_id=TOPIC), RemoveTopicRecord(topic_id=NEW_ID))
    assert [(a.name, a.topic_id, a.error) for a in answers] == [
        ("a", TOPIC, ErrorCode.NONE),
        ("b", NEW_ID, ErrorCode.NONE),
    ]


def test_unknown_and_repeated_topics_are_refused_one_by_one() -> None:
    image = cluster(TopicRecord(name="a", topic_id=TOPIC), TopicRecord(name="b", topic_id=NEW_ID))
    records, answers = delete(image, "nope", b"?" * 16, "a", TOPIC, "b")
    assert [answer.error for answer in answers] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert records == (RemoveTopicRecord(topic_id=NEW_ID),)


# ---- names and placement


def test_a_name_of_249_characters_and_every_legal_character() -> None:
    assert name_problem("x" * 249) is None
    assert name_problem("azAZ09._-") is None
    assert name_problem("...") is None


@pytest.mark.parametrize("marks", [1, 3, 8, 9, 40])
def test_collisions_are_found_however_many_marks_a_name_has(marks: int) -> None:
    name = "a" + ".a" * marks
    other = name.replace(".", "_")
    names = {other, "unrelated", name}
    assert colliding_name(name, names.__contains__, lambda: sorted(names)) == other
    names.discard(other)
    assert colliding_name(name, names.__contains__, lambda: sorted(names)) is None


# A topic's name is written once, however many partitions go with it (S1.21).


NAME = "a-name-that-is-sent-once"
PARTITIONS = 10_000


def encoded(image: MetadataImage, records: tuple[Record, ...] | object) -> bytes:
    return encode_records_batch(
        records,  # type: ignore[arg-type]
        base_offset=image.provenance.offset,
        epoch=1,
        timestamp_ms=0,
        metadata_version=19,
    )


def test_ten_thousand_partitions_name_their_topic_once() -> None:
    image = image_of(*[broker(broker_id) for broker_id in (1, 2, 3)])
    topic = NewTopic(name=NAME, partitions=PARTITIONS, replication_factor=3)
    result = decide_create_topics(
        image,
        CreateTopicsRequest(topics=(topic,)),
        ControllerConfig(cluster_id=CLUSTER, node_id=1),
        candidates=[UsableBroker(broker_id) for broker_id in (1, 2, 3)],
        new_topic_id=lambda: b"topic-id-0000001",
        rng=Random(1),
        allowance=Allowance(),
    )
    created = encoded(image, result.records)
    assert created.count(NAME.encode()) == 1

    state = replay(ReplayState(image), next(iter_batches(created)))
    moves = removal_slice(state.newest, 1, rules_of(state.newest, lambda _: True), PARTITIONS).records
    assert len(moves) == PARTITIONS
    moved = encoded(state.newest, moves)
    assert NAME.encode() not in moved and len(moved) < 48 * PARTITIONS
