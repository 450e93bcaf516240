"""What clients learn of the cluster: Metadata in every version, and DescribeCluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.server.kafka.cluster import (
    Viewpoint,
    answer_describe_cluster,
    answer_describe_topic_partitions,
    answer_metadata,
)
from metaquorum.listeners.forwarded.describe import list_config_resources
from metaquorum.listeners.forwarded.shown_configs import NewTopics
from metaquorum.metadata.image import BROKER_RESOURCE, LOST, TOPIC_RESOURCE, ConfigResource, MetadataImage
from metaquorum.metadata.records.types import (
    BrokerEndpoint,
    BrokerRecord,
    ConfigRecord,
    PartitionRecord,
    TopicRecord,
    UnfenceBrokerRecord,
)
from metaquorum.metadata.replay import ReplayState, replay_records
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    ListConfigResourcesRequest,
    MetadataRequest,
    MetadataResponse,
)
from metaquorum.wire.primitives import Repeated

T1, T2, T3, NONE = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16, bytes(16)
D1, D2, D3, GONE = b"\xd1" * 16, b"\xd2" * 16, b"\xd3" * 16, b"\xdd" * 16
ALL_LISTENERS = ("KAFKA", "PLAINTEXT")


def broker(broker_id: int, directory: bytes, *listeners: str, fenced: bool = False) -> list[Any]:
    ports = {"KAFKA": 9000, "PLAINTEXT": 8000}
    end_points = tuple(
        BrokerEndpoint(name, f"host-{broker_id}", ports[name] + broker_id, 0)
        for name in listeners or ALL_LISTENERS
    )
    made: list[Any] = [
        BrokerRecord(
            broker_id,
            bytes([broker_id]) * 16,
            broker_id + 10,
            end_points=end_points,
            rack=f"r{broker_id}",
            log_dirs=(directory,),
        )
    ]
    return made if fenced else [*made, UnfenceBrokerRecord(broker_id, broker_id + 10)]


def partition(topic: bytes, index: int, leader: int, directories: tuple[bytes, ...] = (D1, D2, D3)) -> Any:
    return PartitionRecord(index, topic, (1, 2, 3), (1, 2), (), (), leader, 0, 4, 9, directories)


def image() -> MetadataImage:
    """Broker 1 is whole, 2 has no Kafka listener, 3 is fenced."""
    records = [
        *broker(1, D1),
        *broker(2, D2, "PLAINTEXT"),
        *broker(3, D3, fenced=True),
        TopicRecord("orders", T1),
        partition(T1, 0, 1),
        partition(T1, 1, 2),
        partition(T1, 2, -1),
        partition(T1, 3, 1, (GONE, D2, D3)),
        partition(T1, 4, 1, (LOST, D2, D3)),
        TopicRecord("__consumer_offsets", T2),
        ConfigRecord(16, "slow-producers", "interval.ms", "1000"),
        ConfigRecord(2, "orders", "retention.ms", "1000"),
    ]
    state = replay_records(ReplayState(), base_offset=0, epoch=1, timestamp_ms=1, records=records)
    return state.image


VIEW = Viewpoint(image=image(), cluster_id="c", node_id=1, listener="KAFKA")


def topics(*names: str | bytes) -> MetadataRequest:
    asked = [
        MetadataRequest.MetadataRequestTopic(name=each)
        if isinstance(each, str)
        else MetadataRequest.MetadataRequestTopic(name=None, topic_id=each)
        for each in names
    ]
    return MetadataRequest(topics=tuple(asked))


def partitions_of(answer: MetadataResponse) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    (topic,) = answer.topics
    return [
        (each.error_code, each.leader_id, each.replica_nodes, each.offline_replicas)
        for each in topic.partitions
    ]


def test_a_client_sees_the_listener_that_it_came_through() -> None:
    answer = answer_metadata(MetadataRequest(topics=None), 12, VIEW)
    assert [(each.node_id, each.host, each.port, each.rack) for each in answer.brokers] == [
        (1, "host-1", 9001, "r1")
    ]
    assert (answer.cluster_id, answer.controller_id) == ("c", 1)
    assert [(each.name, each.topic_id, each.is_internal) for each in answer.topics] == [
        ("__consumer_offsets", T2, True),
        ("orders", T1, False),
    ]


def test_leaders_that_cannot_be_reached_are_errors() -> None:
    replicas = (1, 2, 3)
    expected = [
        (0, 1, replicas, (2, 3)),
        (72, -1, replicas, (2, 3)),  # its leader does not have this listener
        (5, -1, replicas, (2, 3)),  # it has none
        (0, 1, replicas, (1, 2, 3)),  # its directory is gone
        (0, 1, replicas, (1, 2, 3)),  # its broker gave that directory up
    ]
    assert partitions_of(answer_metadata(topics("orders"), 6, VIEW)) == expected
    old = [(5 if code == 72 else code, *rest) for code, *rest in expected]
    assert partitions_of(answer_metadata(topics("orders"), 5, VIEW)) == old


def test_version_0_leaves_out_replicas_that_are_away() -> None:
    found = partitions_of(answer_metadata(topics("orders"), 0, VIEW))
    assert [each[:3] for each in found] == [
        (9, 1, (1,)),
        (5, -1, (1,)),
        (5, -1, (1,)),
        (9, 1, (1,)),
        (9, 1, (1,)),
    ]


@pytest.mark.parametrize(
    ("request_", "version", "found"),
    [
        (topics("orders", "orders", "none"), 12, [(0, "orders", T1), (3, "none", NONE)]),
        (topics(T1, T3), 12, [(0, "orders", T1), (100, None, T3)]),
        (topics(), 1, []),
        (topics(), 0, [(0, "__consumer_offsets", T2), (0, "orders", T1)]),
    ],
)
def test_topics_are_found_by_name_and_id(request_: MetadataRequest, version: int, found: Any) -> None:
    answer = answer_metadata(request_, version, VIEW)
    assert [(each.error_code, each.name, each.topic_id) for each in answer.topics] == found


@pytest.mark.parametrize("version", range(14))
def test_every_version_can_be_written(version: int) -> None:
    for request in (topics("orders", "none"), topics(T1) if version >= 12 else topics()):
        answer = answer_metadata(request, version, VIEW)
        frame = b"".join(codec.encode_response(3, version, 1, answer))
        read = codec.decode_response(3, version, frame).body
        assert [each.name for each in read.topics] == [each.name for each in answer.topics]


def test_operations_are_named_where_they_are_asked_for() -> None:
    asked = MetadataRequest(
        topics=None, include_cluster_authorized_operations=True, include_topic_authorized_operations=True
    )
    answer = answer_metadata(asked, 8, VIEW)
    assert answer.cluster_authorized_operations == 8096
    assert {each.topic_authorized_operations for each in answer.topics} == {3576}
    assert answer_metadata(topics("orders"), 8, VIEW).topics[0].topic_authorized_operations == -(2**31)


def test_a_fenced_broker_names_the_others() -> None:
    """A client that learned of no brokers would have none to ask again."""
    view = replace(VIEW, node_id=3)
    assert VIEW.image.brokers.get(3).fenced
    assert [each.node_id for each in answer_metadata(topics("orders"), 12, view).brokers] == [1]
    assert answer_describe_cluster(DescribeClusterRequest(), view).error_code == 0


def test_describe_cluster_names_fenced_brokers_only_where_asked() -> None:
    answer = answer_describe_cluster(DescribeClusterRequest(), VIEW)
    assert [(each.broker_id, each.port, each.is_fenced) for each in answer.brokers] == [(1, 9001, False)]
    answer = answer_describe_cluster(DescribeClusterRequest(include_fenced_brokers=True), VIEW)
    assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == [(1, False), (3, True)]
    for endpoint_type, code in ((2, 114), (7, 115)):
        request = DescribeClusterRequest(endpoint_type=endpoint_type)
        assert answer_describe_cluster(request, VIEW).error_code == code


def test_resources_with_configurations_are_listed_by_type() -> None:
    """`kafka-client-metrics --list` asks with version 0, which knows no types."""

    def listed(version: int, *types: int) -> list[tuple[int, str]]:
        answer = list_config_resources(ListConfigResourcesRequest(resource_types=types), version, VIEW.image)
        codec.encode_response(74, version, 1, answer)
        assert answer.error_code == 0
        return [(each.resource_type, each.resource_name) for each in answer.config_resources]

    metrics, brokers = [(16, "slow-producers")], ["1", "2", "3"]
    assert listed(0) == listed(1, 16) == metrics
    assert listed(1, 8, 32) == [(8, each) for each in brokers]
    names = [(2, "__consumer_offsets"), (2, "orders"), *((4, each) for each in brokers)]
    assert listed(1) == [*names, *((8, each) for each in brokers), *metrics]
    for version, kind in ((0, 2), (1, 3)):
        asked = ListConfigResourcesRequest(resource_types=(kind,))
        assert list_config_resources(asked, version, VIEW.image).error_code == 35


# ---- DescribeTopicPartitions


def pages(limit: int, *names: str, begin: tuple[str, int] | None = None) -> list[Any]:
    """The topics of every answer, from the first to the last."""
    kinds = DescribeTopicPartitionsRequest
    found: list[Any] = []
    while True:
        cursor = None if begin is None else kinds.Cursor(topic_name=begin[0], partition_index=begin[1])
        asked = tuple(kinds.TopicRequest(name=name) for name in names)
        request = kinds(topics=asked, response_partition_limit=limit, cursor=cursor)
        answer = answer_describe_topic_partitions(request, VIEW)
        codec.encode_response(75, 0, 1, answer)
        found.append(answer.topics)
        if answer.next_cursor is None:
            return found
        begin = answer.next_cursor.topic_name, answer.next_cursor.partition_index
        assert len(found) < 20


def indexes(page: Any) -> list[tuple[str, int, list[int]]]:
    return [(each.name, each.error_code, [one.partition_index for one in each.partitions]) for each in page]


EVERY = [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        *(
            (limit, [[("__consumer_offsets", 0, []), ("orders", 0, EVERY)]])
            for limit in (5, 6, 2_000, 2**31 - 1)
        ),
        (4, [[("__consumer_offsets", 0, []), ("orders", 0, [0, 1, 2, 3])], [("orders", 0, [4])]]),
        (3, [[("__consumer_offsets", 0, []), ("orders", 0, [0, 1, 2])], [("orders", 0, [3, 4])]]),
        *(
            (
                limit,
                [
                    [("__consumer_offsets", 0, []), ("orders", 0, [0])],
                    *([("orders", 0, [at])] for at in EVERY[1:]),
                ],
            )
            for limit in (1, 0, -5)
        ),
    ],
)
def test_partitions_are_described_page_by_page(limit: int, found: Any) -> None:
    assert [indexes(page) for page in pages(limit)] == found


def test_a_page_begins_at_its_cursor() -> None:
    rest = [[("orders", 0, [3, 4])]]
    assert [indexes(page) for page in pages(9, begin=("orders", 3))] == rest
    assert [indexes(page) for page in pages(9, "orders", "__consumer_offsets", begin=("orders", 3))] == rest
    assert [indexes(page) for page in pages(9, begin=("o", 3))] == [[("orders", 0, EVERY)]]
    assert pages(9, begin=("p", 0)) == [()]
    assert [indexes(page) for page in pages(9, "b", "orders", begin=("b", -1))] == [
        [("b", 42, []), ("orders", 42, [])]
    ]
    full = [indexes(page) for page in pages(5, "orders", "zero")]
    assert full == [[("orders", 0, EVERY)], [("zero", 3, [])]], "the next topic does not fit"


def test_topics_that_do_not_exist_fill_a_page_as_well() -> None:
    """Each takes its time; an answer to many names is one turn of the loop."""
    names = [f"strange-{number:05}" for number in range(1_200)]
    found = pages(2_000, *names)
    assert [len(page) for page in found] == [500, 500, 200]
    assert [each.name for page in found for each in page] == names
    wrong = pages(2_000, *(f"{number:05}" for number in range(3_000)), begin=("x", -1))
    assert [len(page) for page in wrong] == [2_000]


def test_every_value_of_a_described_partition() -> None:
    """Without a leader that this listener reaches there is none."""
    ((found, strange, wrong),) = pages(9, "strange", "orders", "a/b", "orders")
    found, strange, wrong = sorted((found, strange, wrong), key=lambda each: each.error_code)
    assert (strange.name, strange.error_code, wrong.name, wrong.error_code) == ("strange", 3, "a/b", 17)
    assert (found.name, found.topic_id, found.is_internal) == ("orders", T1, False)
    assert found.topic_authorized_operations == 3576
    shown = [(each.error_code, each.leader_id, each.leader_epoch) for each in found.partitions]
    assert shown == [(0, 1, 4), (72, -1, 4), (5, -1, 4), (0, 1, 4), (0, 1, 4)]
    assert {(each.replica_nodes, each.isr_nodes) for each in found.partitions} == {((1, 2, 3), (1, 2))}
    assert [each.offline_replicas for each in found.partitions] == [(2, 3)] * 3 + [(1, 2, 3)] * 2
    ((internal, _),) = pages(9)
    assert (internal.name, internal.is_internal) == ("__consumer_offsets", True)


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_broker_that_has_fenced_itself_says_so(serves: bool, include: bool) -> None:
    """To clients that know of fenced brokers; others need its address."""
    own = min(broker_id for broker_id, each in VIEW.image.brokers.items() if not each.fenced)
    view = replace(VIEW, serves=serves, node_id=own)
    answer = answer_describe_cluster(DescribeClusterRequest(include_fenced_brokers=include), view)
    fenced = {each.broker_id: each.is_fenced for each in answer.brokers}
    assert fenced[own] is (include and not serves) and answer.controller_id == own


# The settings in an answer about a created topic: those in force now, in one list for equal topics.


RETENTION = "retention.ms"
TOPIC, DEFAULT, FILE = 1, 3, 4


def with_configs(image: MetadataImage, resource: ConfigResource, **settings: str) -> MetadataImage:
    configs = image.configs.builder()
    configs.put(resource, {key.replace("_", "."): value for key, value in settings.items()})
    return replace(image, configs=configs.freeze())


def shown(configs: Repeated) -> tuple[str, int]:
    return next((each.value, each.config_source) for each in configs if each.name == RETENTION)


def test_a_created_topics_settings_are_those_in_force_now() -> None:
    topics, image = NewTopics({"log.retention.ms": "4"}), MetadataImage()
    assert shown(topics.configs(image, ())) == ("4", FILE)
    assert shown(topics.configs(image, ((RETENTION, "1"),))) == ("1", TOPIC)
    changed = with_configs(image, ConfigResource(BROKER_RESOURCE, ""), log_retention_ms="3")
    assert shown(topics.configs(changed, ())) == ("3", DEFAULT)
    assert shown(topics.configs(image, ())) == ("4", FILE)


def test_equal_topics_share_one_list_while_the_defaults_of_all_brokers_stay() -> None:
    topics, image = NewTopics({}), MetadataImage()
    first = topics.configs(image, ((RETENTION, "1"),))
    other = with_configs(image, ConfigResource(TOPIC_RESOURCE, "t"), retention_ms="2")
    assert topics.configs(other, ((RETENTION, "1"),)) is first
    assert topics.configs(other, ()) is not first
