"""AlterReplicaLogDirs and DescribeLogDirs before a core that the test answers for, and before a broker's
replicas, which answer the recorded requests as Kafka 3.7 did."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from metaquorum.broker.replica.events import DataRequestArrived
from metaquorum.broker.server.kafka.log_dirs import LogDirHandlers
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import UNASSIGNED, ImageBuilder, MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.metadata.requests import data as moving
from metaquorum.wire import codec
from metaquorum.wire.messages import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from metaquorum.wire.table import API_BY_NAME
from tests.unit.broker.manager_world import ME, A, topic_id
from tests.unit.broker.moving_world import MovingWorld
from tests.unit.kafka.test_admin_captures import Exchange, comparable, recorded, scripted

CLIENT = Client(listener="KAFKA", address="127.0.0.1")
MOVE = API_BY_NAME["AlterReplicaLogDirs"].key
ORDERS = b"o" * 16
ARRIVES_MS = 63_700
"""In E-admin-tools: what moves e1-1 to broker 0 asks for its directory before the replica is there."""
PLACES = {"/srv/kafka/broker-0/d1": "/data/a", "/srv/kafka/broker-0/d2": "/data/b"}


def image() -> MetadataImage:
    builder = ImageBuilder(MetadataImage())
    builder.topics.add_topic(ORDERS, "orders")
    return builder.freeze()


class Core:
    """Answers each request with what it was given, and notes it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def begin(self, request: Any) -> Any:
        self.asked.append(request)
        return self.answer


class Broker:
    """A core of real replicas on a simulated disk."""

    def __init__(self, world: MovingWorld) -> None:
        self.world = world

    async def begin(self, request: Any) -> Any:
        self.world.do(DataRequestArrived(key="asked", request=request))
        return self.world.answers["asked"]


async def answer(at: Core | Broker, version: int, body: Any) -> Any:
    """Through the bytes of both."""
    name = type(body).__name__.removesuffix("Request")
    key = API_BY_NAME[name].key
    frame = b"".join(codec.encode_request(codec.RequestHeader(key, version, 1), body))
    handler = LogDirHandlers(at, image).offered()[name]  # type: ignore[arg-type]
    found: Any = handler.handle(codec.decode_request(frame), CLIENT)
    return codec.decode_response(
        key, version, b"".join(codec.encode_response(key, version, 1, await found))
    ).body


def wish(*places: tuple[str, str, tuple[int, ...]]) -> AlterReplicaLogDirsRequest:
    Path_ = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    Topic = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    return AlterReplicaLogDirsRequest(
        dirs=tuple(
            Path_(path=path, topics=(Topic(name=name, partitions=parts),)) for path, name, parts in places
        )
    )


def codes(body: Any) -> dict[tuple[str, int], int]:
    found = [
        ((topic.topic_name, part.partition_index), part.error_code)
        for topic in body.results
        for part in topic.partitions
    ]
    assert len(dict(found)) == len(found), "each is answered once"
    return dict(found)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_each_replica_gets_its_own_answer(version: int) -> None:
    at = Core(
        moving.AlterReplicaLogDirsResponse(
            errors=(ErrorCode.NONE, ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.REPLICA_NOT_AVAILABLE)
        )
    )
    body = await answer(at, version, wish(("/b", "t", (0, 2)), ("/c", "u", (0,))))
    assert codes(body) == {("t", 0): 0, ("t", 2): 57, ("u", 0): 9}
    assert [(each.path, each.topic, each.partition) for each in at.asked[0].wanted] == [
        ("/b", "t", 0),
        ("/b", "t", 2),
        ("/c", "u", 0),
    ]


async def test_one_that_is_named_twice_goes_where_it_was_named_last() -> None:
    at = Core(moving.AlterReplicaLogDirsResponse(errors=(ErrorCode.NONE, ErrorCode.NONE)))
    body = await answer(at, 2, wish(("/b", "t", (0, 0, 1)), ("/c", "t", (0,))))
    assert codes(body) == {("t", 0): 0, ("t", 1): 0}
    assert [(each.path, each.partition) for each in at.asked[0].wanted] == [("/c", 0), ("/b", 1)]


async def test_what_is_refused_as_a_whole_is_refused_for_each() -> None:
    at = Core(ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "it is fenced"))
    body = await answer(at, 2, wish(("/b", "t", (0, 1))))
    assert codes(body) == {("t", 0): 8, ("t", 1): 8}


@pytest.mark.parametrize(("version", "details"), [(0, False), (4, False), (4, True)])
async def test_a_copy_is_described_as_one(version: int, details: bool) -> None:
    """Fields of ours are for who asks for them: not every client passes over tagged fields right."""
    replica = core.ReplicaDescription(
        key=(ORDERS, 0),
        topic="orders",
        size_bytes=70,
        start_offset=1,
        end_offset=5,
        high_watermark=-1,
        lag=3,
        future=True,
    )
    place = core.LogDirDescription(
        path="/b",
        directory_id=b"b" * 16,
        error=ErrorCode.NONE,
        message=None,
        total_bytes=10,
        usable_bytes=5,
        replicas=(replica, replace(replica, key=(ORDERS, 1), future=False)),
    )
    Topic = DescribeLogDirsRequest.DescribableLogDirTopic
    asked = DescribeLogDirsRequest(topics=(Topic(topic="orders", partitions=(0,)),), include_details=details)
    body = await answer(Core(core.DescribeLogDirsResponse(directories=(place,))), version, asked)
    ((topic,),) = [each.topics for each in body.results]
    ((index, size, lag, future),) = [
        (each.partition_index, each.partition_size, each.offset_lag, each.is_future_key)
        for each in topic.partitions
    ]
    assert (topic.name, index, size, lag, future) == ("orders", 0, 70, 3, True)
    (result,) = body.results
    part = topic.partitions[0]
    ours = (result.directory_id, part.start_offset, part.end_offset)
    assert ours == ((b"b" * 16, 1, 5) if details else (bytes(16), -1, -1))


def recorded_world() -> MovingWorld:
    """Broker 0 as it was: `err` is there, `e1` is elsewhere."""
    world = MovingWorld()
    world.cluster.topic("err", place=A, replicas=(ME,))
    world.cluster.topic("e1", partitions=2, leader=2, replicas=(2, 3))
    world.publish()
    world.settle()
    return world


def here(exchange: Exchange) -> AlterReplicaLogDirsRequest:
    """The request, with this world's paths for those that Kafka's broker had."""
    body: AlterReplicaLogDirsRequest = codec.decode_request(exchange.request).body
    dirs = tuple(msgspec.structs.replace(each, path=PLACES.get(each.path, each.path)) for each in body.dirs)
    return msgspec.structs.replace(body, dirs=dirs)


async def test_recorded_requests_are_answered_as_kafka_did(shared_data: Path) -> None:
    world, seen, e1 = recorded_world(), [], (topic_id("e1"), 1)
    only = frozenset({MOVE})
    for exchange in chain(
        recorded(shared_data, "E-admin-tools", only),
        scripted(shared_data, "M-error-cases", only),
        scripted(shared_data, "N-all-versions", only),
    ):
        if exchange.time_ms > ARRIVES_MS and e1 not in world.manager.partitions:
            world.cluster.change(e1, replicas=(2, 3, ME), place=UNASSIGNED)
            world.publish()
            world.settle()
            assert world.names("e1") == {"/data/a": [], "/data/b": ["e1-1"]}, "where it was asked to be"
        ours = await answer(Broker(world), exchange.version, here(exchange))
        assert comparable(msgspec.to_builtins(ours)) == comparable(msgspec.to_builtins(exchange.answer))
        seen.append(list(codes(ours).values()))
        world.settle()
    assert seen == [[9]] * 10 + [[0]] * 2 + [[57]] * 2 + [[]] * 3
    assert world.names("e1") == {"/data/a": ["e1-1"], "/data/b": []}
