"""The Kafka services of a broker, made from its file: every API in every version leads where it belongs."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from metaquorum.broker.server.kafka.forwarding import Forwarder, Published
from metaquorum.broker.server.kafka.services import TransactionServices, broker_services
from metaquorum.clients.search import ClientError
from metaquorum.config.load import load_config
from metaquorum.listeners.forwarded.table import FORWARDED
from metaquorum.listeners.services import Client, Services, features_of
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.features import KRAFT_VERSION
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image.image import FeaturesImage
from metaquorum.metadata.requests import data as core
from metaquorum.metadata.requests.data import (
    AlterReplicaLogDirsRequest,
    DeleteRecordsRequest,
    OffsetForLeaderEpochRequest,
)
from metaquorum.proto import forwarding_pb2 as pb
from metaquorum.wire import codec
from metaquorum.wire.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    ProduceRequest,
)
from metaquorum.wire.table import API_BY_NAME, request_type
from tests.unit.broker.manager_world import Cluster, topic_id
from tests.unit.kafka.auth.test_checks import sample
from tests.unit.server.nodes import new_site
from tests.unit.server.test_data_requests import Core

TEXT = "orders"
CLIENT = Client(listener="PLAINTEXT", address="10.0.0.9", principal="User:ann", by_token=True)
NODE_ID = 101
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def image() -> MetadataImage:
    cluster = Cluster()
    cluster.broker(NODE_ID)
    for name in (TEXT, OFFSETS, TRANSACTIONS):
        cluster.topic(name, leader=NODE_ID)
    return cluster.image()


class Controllers:
    """No active controller answers; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[pb.ForwardRequest] = []

    async def forward(self, frame: bytes, *, timeout_ms: int, **asked: Any) -> Any:
        self.asked.append(pb.ForwardRequest(frame=frame, **asked))
        raise ClientError("it is away")


class Site:
    """The services of one broker; its core refuses what arrives there."""

    def __init__(self, root: Path, more: dict[str, str] | None = None) -> None:
        config = load_config(new_site(root).broker_file(more or {}), "broker")
        known = image()
        self.core = Core()
        self.controllers = Controllers()
        self.published = Published(known)
        self.forwarder = Forwarder(
            self.controllers,  # type: ignore[arg-type]
            node_id=NODE_ID,
            published=self.published,
        )
        data: Any = SimpleNamespace(requests=self.core.requests, image=known, connector=None)
        clock: Any = SimpleNamespace(wall_ms=lambda: 1_234)
        self.transactions = TransactionServices(config, data, clock=clock)
        self.services: Services = broker_services(
            config,
            "the cluster",
            data,
            self.published,
            self.transactions,
            forwarder=self.forwarder,
            kraft_version=lambda: 1,
            wall_ms=clock.wall_ms,
        )

    async def ask(self, api: str, version: int, body: Any) -> tuple[Any, list[Any]]:
        """The answer, as the client reads it in this version, and what reached the core."""
        header = codec.RequestHeader(API_BY_NAME[api].key, version, 1, "app")
        frame = b"".join(codec.encode_request(header, body))
        handler = self.services.find(header.api_key, version)
        assert handler is not None
        found = handler(codec.decode_request(frame), CLIENT)
        seen: list[Any] = []

        async def wait() -> Any:
            return await found if inspect.isawaitable(found) else found

        waiting = asyncio.ensure_future(wait())
        for _ in range(30):
            await asyncio.sleep(0)
            while self.core.events:
                event: Any = self.core.events.pop(0)
                seen.append(event.request)
                self.core.answer(event, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk"))
        assert waiting.done(), f"{api} {version} waits for something else"
        answer = waiting.result()
        frame = b"".join(codec.encode_response(header.api_key, version, 1, answer))
        return codec.decode_response(header.api_key, version, frame).body, seen


CORE: dict[str, tuple[type, str]] = {
    "Produce": (core.ProduceRequest, ""),
    "Fetch": (core.FetchRequest, ""),
    "ListOffsets": (core.ListOffsetsRequest, ""),
    "OffsetForLeaderEpoch": (OffsetForLeaderEpochRequest, ""),
    "DeleteRecords": (DeleteRecordsRequest, ""),
    "DescribeLogDirs": (core.DescribeLogDirsRequest, ""),
    "AlterReplicaLogDirs": (AlterReplicaLogDirsRequest, ""),
    "WriteTxnMarkers": (core.ProduceRequest, ""),
    "DescribeProducers": (core.DescribeProducersRequest, ""),
    **dict.fromkeys(
        (
            *("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch"),
            *("OffsetDelete", "DescribeGroups", "ListGroups", "ConsumerGroupHeartbeat"),
            *("ConsumerGroupDescribe", "DeleteGroups"),
        ),
        (core.CoordinatorRequest, OFFSETS),
    ),
    **dict.fromkeys(
        (
            *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
            *("DescribeTransactions", "ListTransactions"),
        ),
        (core.CoordinatorRequest, TRANSACTIONS),
    ),
}
"""Where each request goes: the kind of the core's request, and for a coordinator its topic."""


UNSEEN = {("Produce", at) for at in (0, 1, 2)} | {
    (api, 0) for api in ("ListOffsets", "OffsetCommit", "OffsetFetch")
}
"""Too old: answered before the core."""
IMAGE = {
    *("Metadata", "FindCoordinator", "DescribeCluster", "DescribeTopicPartitions", "ListConfigResources"),
    *("DescribeConfigs", "DescribeAcls", "DescribeClientQuotas", "DescribeUserScramCredentials"),
    *("ApiVersions", "SaslHandshake", "SaslAuthenticate"),
}
VERSIONS = [(api.name, version) for api in API_BY_NAME.values() for version in api.versions]


def body_of(api: str, version: int) -> Any:
    """A request that names what exists."""
    body = sample(request_type(API_BY_NAME[api].key).schema, version, TEXT)
    by_id = version >= {"Fetch": 13, "Produce": 13, "OffsetCommit": 10}.get(api, 99)
    given = {"topic_id": topic_id(TEXT)} if by_id else {}
    if api == "Produce":
        part = ProduceRequest.PartitionProduceData(index=0, records=b"batch")
        topic = replace(body.topic_data[0], partition_data=(part,), **given)
        return replace(body, topic_data=(topic,), transactional_id=None, acks=1)
    return replace(body, topics=(replace(body.topics[0], **given),)) if by_id else body


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def requests_of(api: str, version: int) -> list[tuple[type, str]]:
    """What must reach the core."""
    assert {api} & {*CORE, *IMAGE, *FORWARDED}, f"{api}: say in CORE or IMAGE what answers it"
    return [] if api in IMAGE or (api, version) in UNSEEN or api in FORWARDED else [CORE[api]]


async def test_every_version_of_every_api_leads_where_it_belongs(site: Site) -> None:
    seen: set[str] = set()
    for api, version in VERSIONS:
        if site.services.find(API_BY_NAME[api].key, version) is None:
            continue
        seen.add(api)
        site.controllers.asked.clear()
        _, requests = await site.ask(api, version, body_of(api, version))
        found = [(type(each), getattr(each, "topic", "")) for each in requests]
        assert found == requests_of(api, version), (api, version)
        assert len(site.controllers.asked) == (api in FORWARDED), (api, version)
    assert seen == {*CORE, *IMAGE, *FORWARDED}


@pytest.mark.parametrize(("api", "topic"), [(api, topic) for api, (_, topic) in CORE.items() if topic])
async def test_a_coordinator_hears_who_asks(site: Site, api: str, topic: str) -> None:
    version = API_BY_NAME[api].min_version + (api in ("OffsetCommit", "OffsetFetch"))
    _, (request,) = await site.ask(api, version, body_of(api, version))
    if api == "TxnOffsetCommit":  # the broker itself asks whether the group's partition is in the transaction
        assert (request.topic, request.partition) == (TRANSACTIONS, 0)
        return
    assert replace(request, body=None) == core.CoordinatorRequest(
        topic=topic,
        partition=0,
        body=None,
        version=version,
        client_id="app",
        client_host="/10.0.0.9",
        principal="User:ann",
    )


@pytest.mark.parametrize("api", sorted(FORWARDED))
async def test_a_controller_gets_the_frame_and_who_sent_it(site: Site, api: str) -> None:
    version = FORWARDED[api].max_version
    body = body_of(api, version)
    await site.ask(api, version, body)
    (asked,) = site.controllers.asked
    header = codec.RequestHeader(API_BY_NAME[api].key, version, 1, "app")
    assert asked == pb.ForwardRequest(
        frame=b"".join(codec.encode_request(header, body)),
        broker_id=NODE_ID,
        principal="User:ann",
        client_address="10.0.0.9",
        by_token=True,
    )


async def test_the_cluster_is_seen_from_this_broker(site: Site) -> None:
    """Through the client's listener, under the broker's own id."""
    metadata, _ = await site.ask("Metadata", 12, MetadataRequest(topics=()))
    cluster, _ = await site.ask("DescribeCluster", 0, DescribeClusterRequest())
    for answer in (metadata, cluster):
        assert (answer.cluster_id, answer.controller_id) == ("the cluster", NODE_ID)
        assert len(answer.brokers) == 4
    versions, _ = await site.ask(
        "ApiVersions", 4, ApiVersionsRequest(client_software_name="a", client_software_version="1")
    )
    levels = {each.name: each.max_version_level for each in versions.finalized_features}
    assert levels["kraft.version"] == 1 and set(levels) == {"kraft.version", "metadata.version"}


def test_features_are_those_of_the_last_record_and_unknown_before_the_first() -> None:
    assert features_of(MetadataImage(), 0).epoch == -1


@pytest.mark.parametrize(("level", "finalized"), [(0, {}), (1, {KRAFT_VERSION: 1})])
def test_a_level_of_kraft_version_that_a_leader_of_kafka_39_recorded_is_none(
    level: int, finalized: dict[str, int]
) -> None:
    image = MetadataImage(features=FeaturesImage(finalized={KRAFT_VERSION: 1}))
    assert features_of(image, level).finalized == finalized


async def test_the_topics_partition_decides_who_coordinates(site: Site) -> None:
    for kind, topic in ((0, OFFSETS), (1, TRANSACTIONS)):
        answer, _ = await site.ask(
            "FindCoordinator", 4, FindCoordinatorRequest(key_type=kind, coordinator_keys=("a", "b"))
        )
        places = [(each.key, each.node_id, each.host, each.port) for each in answer.coordinators]
        assert places == [(key, NODE_ID, "host101", 9101) for key in "ab"], topic
        one, _ = await site.ask("FindCoordinator", 3, FindCoordinatorRequest(key_type=kind, key="a"))
        assert (one.node_id, one.host, one.port, one.error_code) == (NODE_ID, "host101", 9101, 0)
    strange, _ = await site.ask(
        "FindCoordinator", 6, FindCoordinatorRequest(key_type=7, coordinator_keys=("a",))
    )
    (found,) = strange.coordinators
    assert (found.key, found.node_id, found.port) == ("a", -1, -1)
    assert (found.error_code, found.error_message) == (42, "7 is not a type of coordinator")


# ---- topics that are created because clients ask for them

SIZES = {"num.partitions": "4", "default.replication.factor": "2"}


@pytest.mark.parametrize(
    ("more", "allowed", "sizes"),
    [
        ({}, True, (-1, -1)),
        (SIZES, True, (4, 2)),
        ({**SIZES, "auto.create.topics.enable": "false"}, True, None),
        ({}, False, None),
    ],
)
async def test_a_topic_is_created_where_client_and_file_allow_it(
    tmp_path: Path, more: dict[str, str], allowed: bool, sizes: tuple[int, int] | None
) -> None:
    site = Site(tmp_path, more)
    kind = MetadataRequest.MetadataRequestTopic
    body = MetadataRequest(
        topics=(kind(name=TEXT), kind(name="new"), kind(name=OFFSETS), kind(name="a/b")),
        allow_auto_topic_creation=allowed,
    )
    answer, _ = await site.ask("Metadata", 8, body)
    assert [(each.name, each.error_code) for each in answer.topics] == [
        (TEXT, 0),
        ("new", 3),
        (OFFSETS, 0),
        ("a/b", 17),
    ]
    asked = [codec.decode_request(each.frame) for each in site.controllers.asked]
    if sizes is None:
        assert asked == []
        return
    (request,) = asked
    assert request.header.client_id == "app" and site.controllers.asked[0].principal == "User:ann"
    found = [(each.name, each.num_partitions, each.replication_factor) for each in request.body.topics]
    assert found == [("new", *sizes)] and request.body.timeout_ms == 30_000
    await site.ask("Metadata", 8, body)
    assert len(site.controllers.asked) == 2, "it may be asked for again once the first attempt has ended"


# ---- values of the file


async def test_the_file_says_how_long_other_brokers_may_take(tmp_path: Path) -> None:
    parts = Site(tmp_path, {"replica.socket.timeout.ms": "7000"}).transactions
    assert parts._brokers._timeout_s == 7.0
    assert (parts.markers._timeout_ms, parts._producers._timeout_ms) == (7_000, 7_000)


async def test_markers_are_for_the_time_of_day_and_wait_for_the_replicas(site: Site) -> None:
    _, (request,) = await site.ask("WriteTxnMarkers", 1, body_of("WriteTxnMarkers", 1))
    assert (request.acks, request.by_coordinator) == (core.ACKS_ALL, True)
    assert request.timeout_ms == 30_000
    assert request.partitions[0].batch.headers[0].base_timestamp_ms == 1_234
