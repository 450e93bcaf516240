"""Every request about logs that names a partition twice: what the core is asked, and what is answered."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.server.kafka.groups import OffsetHandlers
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data
from metaquorum.metadata.requests import data as core
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.messages import (
    DeleteRecordsRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from tests.unit.kafka.test_cluster_answers import T1, image
from tests.unit.kafka.test_data_answers import CLIENT, ORDERS, Site
from tests.unit.kafka.test_log_end_answers import Core, answer

INVALID, NO_TOPIC = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def listing(*asked: tuple[str, int, int]) -> ListOffsetsRequest:
    """One topic entry for each (topic, partition, time)."""
    kinds = ListOffsetsRequest
    return kinds(
        topics=tuple(
            kinds.ListOffsetsTopic(
                name=name,
                partitions=(
                    kinds.ListOffsetsPartition(partition_index=index, timestamp=time, max_num_offsets=1),
                ),
            )
            for name, index, time in asked
        )
    )


def shown(response: Any) -> list[tuple[str, int, int, int]]:
    return [
        (topic.name, part.partition_index, part.error_code, part.offset)
        for topic in response.topics
        for part in topic.partitions
    ]


@pytest.mark.parametrize("version", range(1, 11))
async def test_list_offsets_refuses_both(version: int) -> None:
    site = Site()
    found = core.ListOffsetsResponse(results=(core.ListedOffset(key=(ORDERS, 1), offset=7),))
    body = listing(("orders", 0, -1), ("none", 4, -1), ("orders", 1, -1), ("orders", 0, -2), ("none", 4, -1))
    response = await site.ask("list_offsets", version, body, found)
    assert [(part.key, part.timestamp_ms) for part in site.asked.partitions] == [((ORDERS, 1), -1)]
    assert shown(response) == [
        ("orders", 0, INVALID, -1),
        ("none", 4, INVALID, -1),
        ("orders", 1, 0, 7),
        ("orders", 0, INVALID, -1),
        ("none", 4, INVALID, -1),
    ]


@pytest.mark.parametrize("version", [1, 8, 10])
async def test_list_offsets_refuses_both_within_one_topic_and_whatever_the_times_are(version: int) -> None:
    kinds = ListOffsetsRequest
    times = (-1, -99, 5)
    parts = tuple(kinds.ListOffsetsPartition(partition_index=2, timestamp=time) for time in times)
    body = kinds(topics=(kinds.ListOffsetsTopic(name="orders", partitions=parts),))
    site = Site()
    assert shown(await site.ask("list_offsets", version, body)) == [("orders", 2, INVALID, -1)] * 3
    assert site.core.events == []


async def test_list_offsets_0_answers_each() -> None:
    site = Site()
    results = (core.ListedOffset(key=(ORDERS, 0), offset=9), core.ListedOffset(key=(ORDERS, 0), offset=2))
    body = listing(("orders", 0, -1), ("orders", 0, -2), ("orders", 0, 77))
    response = await site.ask("list_offsets", 0, body, core.ListOffsetsResponse(results=results))
    parts = [topic.partitions[0] for topic in response.topics]
    assert [part.old_style_offsets for part in parts] == [(9,), (2,), ()]
    assert parts[2].error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", range(4, 13))
@pytest.mark.parametrize("known", [True, False])
async def test_fetch_answers_once_with_the_last_position(version: int, known: bool) -> None:
    parts = [
        FetchRequest.FetchPartition(partition=1, fetch_offset=at, partition_max_bytes=9) for at in (5, 6)
    ]
    names = ["orders", "orders"] if known else ["none", "none"]
    body = FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=99,
        topics=tuple(
            FetchRequest.FetchTopic(topic=name, partitions=(part,))
            for name, part in zip(names, parts, strict=True)
        ),
    )
    found = core.FetchResponse(
        session_id=0, partitions=(core.FetchedPartition(key=(ORDERS, 1), records=b"at 6"),)
    )
    response = await Site().ask(
        "fetch", version, body, found if known else core.FetchResponse(session_id=0, partitions=())
    )
    assert [
        (topic.topic, part.partition_index, part.error_code)
        for topic in response.responses
        for part in topic.partitions
    ] == [(names[0], 1, 0 if known else NO_TOPIC)]


@pytest.mark.parametrize("version", range(5))
async def test_offset_for_leader_epoch_answers_each(version: int) -> None:
    kinds = OffsetForLeaderEpochRequest
    asked = (("orders", 0), ("none", 3), ("orders", 2), ("orders", 0))
    body = kinds(
        topics=tuple(
            kinds.OffsetForLeaderTopic(
                topic=name, partitions=(kinds.OffsetForLeaderPartition(partition=0, leader_epoch=epoch),)
            )
            for name, epoch in asked
        )
    )
    ends = (
        data.EpochEnd(key=(T1, 0), leader_epoch=0, end_offset=5),
        data.EpochEnd(key=(T1, 0), error=ErrorCode.UNKNOWN_LEADER_EPOCH),
        data.EpochEnd(key=(T1, 0), leader_epoch=0, end_offset=8),
    )
    found = Core(data.OffsetForLeaderEpochResponse(results=ends))
    response = await answer(found, "OffsetForLeaderEpoch", 23, version, body)
    assert [part.leader_epoch for part in found.asked[0].partitions] == [0, 2, 0]
    assert [
        (topic.topic, part.error_code, part.end_offset)
        for topic in response.topics
        for part in topic.partitions
    ] == [("orders", 0, 5), ("none", 3, -1), ("orders", ErrorCode.UNKNOWN_LEADER_EPOCH, -1), ("orders", 0, 8)]
    fenced = Core(ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced"))
    response = await answer(fenced, "OffsetForLeaderEpoch", 23, version, body)
    assert {part.error_code for topic in response.topics for part in topic.partitions} == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER
    }


@pytest.mark.parametrize("version", range(3))
async def test_delete_records_deletes_up_to_the_last_offset_and_answers_once(version: int) -> None:
    kinds = DeleteRecordsRequest
    body = kinds(
        timeout_ms=9,
        topics=tuple(
            kinds.DeleteRecordsTopic(
                name=name, partitions=(kinds.DeleteRecordsPartition(partition_index=0, offset=offset),)
            )
            for name, offset in (("orders", 9), ("none", 1), ("orders", 4))
        ),
    )
    done = (data.DeletedRecords(key=(T1, 0), low_watermark=4),)
    found = Core(data.DeleteRecordsResponse(results=done))
    response = await answer(found, "DeleteRecords", 21, version, body)
    assert [(part.key, part.offset) for part in found.asked[0].partitions] == [((T1, 0), 4)]
    assert [
        (topic.name, part.error_code, part.low_watermark)
        for topic in response.topics
        for part in topic.partitions
    ] == [("orders", 0, 4), ("none", 3, -1)]


@pytest.mark.parametrize("version", range(3, 13))
async def test_produce_stores_the_last_and_answers_once(version: int) -> None:
    kinds = ProduceRequest
    body = kinds(
        acks=1,
        timeout_ms=9,
        topic_data=tuple(
            kinds.TopicProduceData(
                name="orders", partition_data=(kinds.PartitionProduceData(index=1, records=records),)
            )
            for records in (b"first", b"last")
        ),
    )
    site = Site()
    stored = core.ProduceResponse(results=(core.ProduceResult(key=(ORDERS, 1), base_offset=3),))
    response = await site.ask("produce", version, body, stored)
    assert [(part.key, part.batch.data) for part in site.asked.partitions] == [((ORDERS, 1), b"last")]
    assert [part.base_offset for topic in response.responses for part in topic.partition_responses] == [3]


@pytest.mark.parametrize("version", [1, 7, 8, 9])
async def test_offset_fetch_asks_and_answers_once(version: int) -> None:
    class Coordinators:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        async def ask(self, group_id: str, asked: Any, request: Request, client: Any) -> Any:
            self.asked.append(asked.partitions)
            return ()

    coordinators = Coordinators()
    kinds = OffsetFetchRequest
    topics = tuple(
        kinds.OffsetFetchRequestTopic(name="orders", partition_indexes=(0, 1, 0)) for _ in range(2)
    )
    several = tuple(
        kinds.OffsetFetchRequestTopics(name="orders", partition_indexes=(0, 1, 0)) for _ in range(2)
    )
    groups = (kinds.OffsetFetchRequestGroup(group_id="g", topics=several),)
    body = kinds(groups=groups) if version >= 8 else kinds(group_id="g", topics=topics)
    handlers = OffsetHandlers(coordinators, image)  # type: ignore[arg-type]
    await handlers.offset_fetch(Request(RequestHeader(9, version, 1), body, 0), CLIENT)
    assert coordinators.asked == [(("orders", 0), ("orders", 1))]
