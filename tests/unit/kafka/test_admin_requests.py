"""What commands of administrators ask of which node, and what they make of its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaquorum.clients.admin import configs, partition_logs, topics
from metaquorum.clients.admin.groups import commit_offsets, delete_group, delete_offsets
from metaquorum.clients.admin.partition_logs import TopicPartition
from metaquorum.clients.admin.topics import DescribedPartition
from metaquorum.clients.kafka.cluster import KafkaClient
from metaquorum.listeners.forwarded.shown_configs import ShownConfigs
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from metaquorum.metadata.settings.broker_keys import check_broker_value
from metaquorum.metadata.settings.configs import ConfigEntry, ConfigSource
from metaquorum.metadata.settings.keys import ConfigValueError
from metaquorum.wire.messages import (
    DeleteGroupsResponse,
    DescribeConfigsRequest,
    DescribeTopicPartitionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
)
from tests.unit.kafka.kafka_node import FakeNode, running
from tests.unit.kafka.test_group_admin import A, B, C

PLACES = {("t", 3): 30, ("t", 0): 10, ("u", 1): 21}
CODES = {("t", 3): 0, ("t", 0): 25, ("u", 1): 86}


class Coordinator(FakeNode):
    """That of every group. Keeps what it was asked; `refuses`: all that it is asked to delete."""

    def __init__(self, refuses: int = 0) -> None:
        self.bodies: list[Any] = []
        self._refuses = refuses
        super().__init__(
            {
                "FindCoordinator": self.find,
                "OffsetCommit": self.commit,
                "OffsetDelete": self.delete,
                "DeleteGroups": self.delete_groups,
            }
        )

    def find(self, body: Any) -> FindCoordinatorResponse:
        made = FindCoordinatorResponse.Coordinator
        return FindCoordinatorResponse(
            coordinators=tuple(
                made(key=key, node_id=0, host="127.0.0.1", port=self.port) for key in body.coordinator_keys
            )
        )

    def commit(self, body: Any) -> OffsetCommitResponse:
        self.bodies.append(body)
        return OffsetCommitResponse(
            topics=_results(
                body, OffsetCommitResponse, "OffsetCommitResponseTopic", "OffsetCommitResponsePartition"
            )
        )

    def delete(self, body: Any) -> OffsetDeleteResponse:
        self.bodies.append(body)
        if self._refuses:
            return OffsetDeleteResponse(error_code=self._refuses)
        return OffsetDeleteResponse(
            topics=_results(
                body, OffsetDeleteResponse, "OffsetDeleteResponseTopic", "OffsetDeleteResponsePartition"
            )
        )

    def delete_groups(self, body: Any) -> DeleteGroupsResponse:
        self.bodies.append(body)
        made = DeleteGroupsResponse.DeletableGroupResult
        results = [made(group_id=name, error_code=self._refuses) for name in body.groups_names]
        return DeleteGroupsResponse(results=tuple(results))


def _results(body: Any, kinds: Any, topic: str, part: str) -> tuple[Any, ...]:
    return tuple(
        getattr(kinds, topic)(
            name=each.name,
            partitions=tuple(
                getattr(kinds, part)(
                    partition_index=one.partition_index, error_code=CODES[each.name, one.partition_index]
                )
                for one in each.partitions
            ),
        )
        for each in body.topics
    )


async def test_offsets_of_a_group_are_set_and_deleted_partition_by_partition() -> None:
    node = Coordinator()
    async with running(node) as servers, KafkaClient(servers, timeout_ms=60_000) as client:
        assert await commit_offsets(client, "g", PLACES) == CODES
        assert await delete_offsets(client, "g", PLACES) == CODES
        assert await delete_group(client, "g") is ErrorCode.NONE
    committed, deleted, gone = node.bodies
    assert committed.group_id == deleted.group_id == "g" and gone.groups_names == ("g",)
    sent = {
        (topic.name, part.partition_index): part.committed_offset
        for topic in committed.topics
        for part in topic.partitions
    }
    assert sent == PLACES
    assert {
        (topic.name, part.partition_index) for topic in deleted.topics for part in topic.partitions
    } == set(PLACES)
    assert {part.committed_metadata for topic in committed.topics for part in topic.partitions} == {""}


async def test_a_group_that_may_not_be_changed_is_said() -> None:
    node = Coordinator(refuses=ErrorCode.NON_EMPTY_GROUP)
    async with running(node) as servers, KafkaClient(servers, timeout_ms=60_000) as client:
        assert await delete_group(client, "g") is ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(ApiError, match="group g"):
            await delete_offsets(client, "g", PLACES)


def test_every_value_of_a_partition_is_shown() -> None:
    kinds = DescribeTopicPartitionsResponse
    values: dict[str, Any] = {
        "partition_index": 1,
        "leader_id": 2,
        "leader_epoch": 3,
        "replica_nodes": (2, 4),
        "isr_nodes": (2,),
        "offline_replicas": (4,),
    }
    more = {"eligible_leader_replicas": (5,), "last_known_elr": (6,)}
    shown = DescribedPartition(
        index=1,
        leader=2,
        leader_epoch=3,
        replicas=(2, 4),
        isr=(2,),
        offline=(4,),
        elr=(5,),
        last_known_elr=(6,),
    )
    assert topics._partition(kinds.DescribeTopicPartitionsResponsePartition(**values, **more)) == shown
    none = dict.fromkeys(more)
    for part in (
        MetadataResponse.MetadataResponsePartition(**values),
        kinds.DescribeTopicPartitionsResponsePartition(**values, **none),
    ):
        assert topics._partition(part) == DescribedPartition(
            index=1, leader=2, leader_epoch=3, replicas=(2, 4), isr=(2,), offline=(4,)
        )


class Brokers:
    def __init__(self, *alive: int, asks_brokers: bool = True) -> None:
        self._alive = alive
        self.asks_brokers = asks_brokers
        self.asked = 0

    async def brokers(self) -> dict[int, object]:
        self.asked += 1
        return dict.fromkeys(self._alive)


RESOURCES = {
    ConfigResource(BROKER_RESOURCE, "0"): 0,
    ConfigResource(BROKER_RESOURCE, "7"): 7,
    ConfigResource(BROKER_LOGGER_RESOURCE, "7"): 7,
    ConfigResource(BROKER_RESOURCE, ""): None,
    ConfigResource(BROKER_RESOURCE, "x"): None,
    ConfigResource(BROKER_RESOURCE, "²"): None,
    ConfigResource(TOPIC_RESOURCE, "7"): None,
    ConfigResource(GROUP_RESOURCE, "7"): None,
    ConfigResource(CLIENT_METRICS_RESOURCE, "7"): None,
}


@pytest.mark.parametrize("asks_brokers", [True, False])
async def test_only_a_brokers_own_configuration_is_asked_of_it(asks_brokers: bool) -> None:
    client: Any = Brokers(0, 7, asks_brokers=asks_brokers)
    found = await configs._by_node(client, [(each, each) for each in RESOURCES])
    assert {each: at for at, some in found for each in some} == {
        each: at if asks_brokers else None for each, at in RESOURCES.items()
    }
    assert client.asked == int(asks_brokers)


async def test_a_broker_that_does_not_run_is_named_and_a_topic_of_its_number_is_none() -> None:
    client: Any = Brokers(0)
    with pytest.raises(ApiError, match="broker 7 is not running"):
        await configs._by_node(client, [(ConfigResource(BROKER_RESOURCE, "7"), 1)])
    for kind in (TOPIC_RESOURCE, GROUP_RESOURCE):
        assert [*await configs._by_node(client, [(ConfigResource(kind, "7"), 1)])] == [(None, [1])]
    assert client.asked == 1


async def test_requests_about_many_resources_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "RESOURCES_PER_REQUEST", 2)
    parts = [(ConfigResource(TOPIC_RESOURCE, str(at)), at) for at in range(5)]
    client: Any = Brokers()
    assert [*await configs._by_node(client, parts)] == [(None, [0, 1]), (None, [2, 3]), (None, [4])]


async def test_between_two_looks_for_a_leader_there_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What heals after two pauses is found, what does not is said, and what is known is not asked again."""
    pauses: list[float] = []
    asked: list[dict[TopicPartition, int]] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def led(
        client: object, places: Any
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, ErrorCode]]:
        return {1: list(places)}, {}

    async def at_leader(client: object, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, Any]:
        asked.append(wanted)
        heals = ErrorCode.NOT_LEADER_OR_FOLLOWER if len(pauses) < 2 else 9
        answers = {A: 7, B: heals, C: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        return {place: answers[place] for place in wanted}

    monkeypatch.setattr(partition_logs, "asyncio", SimpleNamespace(sleep=pause))
    monkeypatch.setattr(partition_logs, "by_leader", led)
    monkeypatch.setattr(partition_logs, "_at_leader", at_leader)
    client: Any = None
    found = await partition_logs.log_offsets(client, {A: 1, B: 2, C: 3})
    assert found == {A: 7, B: 9, C: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert asked == [{A: 1, B: 2, C: 3}, {B: 2}, {B: 2}]
    assert pauses == [partition_logs._PAUSE_S] * 2


# Values of configurations as DescribeConfigs shows them.


@pytest.mark.parametrize(
    ("value", "shown"), [(" 7 ", "7"), ("7\n", "7"), ("a b", "a b"), ("", ""), (None, None)]
)
def test_blanks_around_a_value_are_not_shown(value: str | None, shown: str | None) -> None:
    entry = ConfigEntry(
        name="retention.ms", value=value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG, sensitive=False
    )
    asked = DescribeConfigsRequest.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="t")
    found = ShownConfigs(4, True, False)(asked, [entry])
    assert [each.value for each in found.configs] == [shown]


@pytest.mark.parametrize("per_broker", [True, False])
def test_advertised_listeners_cannot_be_altered(per_broker: bool) -> None:
    with pytest.raises(ConfigValueError, match="in the broker's file"):
        check_broker_value("advertised.listeners", "PLAINTEXT://h:1", per_broker=per_broker)
