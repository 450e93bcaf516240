"""DeleteRecords and OffsetForLeaderEpoch before a core that the test answers for, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.server.kafka.log_ends import LogEndHandlers
from metaquorum.listeners.services import Client
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.wire import codec
from metaquorum.wire.codec import Request, RequestHeader
from metaquorum.wire.messages import DeleteRecordsRequest, OffsetForLeaderEpochRequest
from tests.unit.kafka.test_cluster_answers import T1, image

CLIENT = Client(listener="KAFKA", address="127.0.0.1")


class Core:
    """Answers each request with what it was given, and notes it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def begin(self, request: Any) -> Any:
        self.asked.append(request)
        return self.answer


async def answer(core_: Core, name: str, key: int, version: int, body: Any) -> Any:
    handler = LogEndHandlers(core_, image).offered()[name]  # type: ignore[arg-type]
    found: Any = handler.handle(Request(RequestHeader(key, version, 1), body, 0), CLIENT)
    frame = b"".join(codec.encode_response(key, version, 1, await found))
    return codec.decode_response(key, version, frame).body


def deletion(topic: str) -> DeleteRecordsRequest:
    part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=5)
    wanted = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=(part,))
    return DeleteRecordsRequest(topics=(wanted,), timeout_ms=700)


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_by_name(version: int) -> None:
    done = core.DeleteRecordsResponse(results=(core.DeletedRecords(key=(T1, 0), low_watermark=5),))
    found = Core(done)
    (topic,) = (await answer(found, "DeleteRecords", 21, version, deletion("orders"))).topics
    assert (topic.name, topic.partitions[0].error_code, topic.partitions[0].low_watermark) == ("orders", 0, 5)
    assert found.asked == [
        core.DeleteRecordsRequest(
            timeout_ms=700, partitions=(core.DeleteRecordsPartition(key=(T1, 0), offset=5),)
        )
    ]
    (topic,) = (await answer(found, "DeleteRecords", 21, version, deletion("none"))).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].low_watermark) == (3, -1)
    assert len(found.asked) == 1
    fenced = Core(ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced"))
    (topic,) = (await answer(fenced, "DeleteRecords", 21, version, deletion("orders"))).topics
    assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def question(topic: str) -> OffsetForLeaderEpochRequest:
    part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=3)
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=(part,))
    return OffsetForLeaderEpochRequest(topics=(wanted,))


@pytest.mark.parametrize("version", range(5))
async def test_the_end_of_an_epoch_by_name(version: int) -> None:
    known = core.EpochEnd(key=(T1, 0), leader_epoch=2, end_offset=19)
    found = Core(core.OffsetForLeaderEpochResponse(results=(known,)))
    (topic,) = (await answer(found, "OffsetForLeaderEpoch", 23, version, question("orders"))).topics
    (part,) = topic.partitions
    assert (part.error_code, part.end_offset) == (0, 19)
    assert part.leader_epoch == (2 if version >= 1 else -1)
    assert found.asked[0].partitions == (core.EpochPartition(key=(T1, 0), leader_epoch=3),)
    (topic,) = (await answer(found, "OffsetForLeaderEpoch", 23, version, question("none"))).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].end_offset) == (3, -1)
    refused = core.EpochEnd(key=(T1, 0), error=ErrorCode.FENCED_LEADER_EPOCH, message="ended")
    found = Core(core.OffsetForLeaderEpochResponse(results=(refused,)))
    (topic,) = (await answer(found, "OffsetForLeaderEpoch", 23, version, question("orders"))).topics
    assert topic.partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
