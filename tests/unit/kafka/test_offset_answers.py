"""Offsets of groups: what coordinators are asked, and what clients hear."""

from __future__ import annotations

from typing import Any

import pytest

from metaquorum.broker.coordinator.groups.group import FetchedOffset, FetchOffsets
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests.data import CoordinatorRequest
from metaquorum.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
)
from tests.unit.broker.manager_world import topic_id
from tests.unit.kafka.group_broker import Broker, refused


def committing(version: int) -> OffsetCommitRequest:
    """Partition 1 of `orders` exists, 7 does not; nor does the other topic."""
    kinds = OffsetCommitRequest
    epoch = {"committed_leader_epoch": 3} if version >= 6 else {}
    parts = tuple(
        kinds.OffsetCommitRequestPartition(
            partition_index=at, committed_offset=40 + at, committed_metadata="note", **epoch
        )
        for at in (7, 1)
    )
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=5,
        member_id="m",
        topics=tuple(
            kinds.OffsetCommitRequestTopic(
                **({"topic_id": topic_id(name)} if version >= 10 else {"name": name}), partitions=parts
            )
            for name in ("absent", "orders")
        ),
        **({"group_instance_id": "i"} if version >= 7 else {}),
        **({"retention_time_ms": 77} if 2 <= version <= 4 else {}),
    )


def committed(request: CoordinatorRequest) -> OffsetCommitResponse:
    kinds = OffsetCommitResponse
    return OffsetCommitResponse(
        topics=tuple(
            kinds.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    kinds.OffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=ErrorCode.OFFSET_METADATA_TOO_LARGE
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.body.topics
        )
    )


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("code", [None, ErrorCode.ILLEGAL_GENERATION])
async def test_offsets_of_partitions_that_exist_are_committed(version: int, code: ErrorCode | None) -> None:
    by_id = version >= 10
    broker = Broker(committed if code is None else refused(code))
    sent = committing(version)
    answer = await broker.ask("OffsetCommit", version, sent)
    (asked,) = broker.asked
    for name in (
        "group_id",
        "generation_id_or_member_epoch",
        "member_id",
        "group_instance_id",
        "retention_time_ms",
    ):
        assert getattr(asked.body, name) == getattr(sent, name), name
    ((topic,), (part,)) = asked.body.topics, asked.body.topics[0].partitions
    assert (topic.name, topic.topic_id) == ("orders", topic_id("orders") if by_id else bytes(16))
    assert part == sent.topics[1].partitions[1]
    unknown = 100 if by_id else 3
    heard = [
        [(each.partition_index, each.error_code) for each in topic.partitions] for topic in answer.topics
    ]
    assert heard == [[(7, unknown), (1, unknown)], [(7, 3), (1, 12 if code is None else code)]]
    assert [(each.name, each.topic_id) for each in answer.topics] == [
        (each.name, each.topic_id) for each in sent.topics
    ]


FOUND = (
    FetchedOffset(topic="orders", partition=1, offset=41, leader_epoch=3, metadata="note"),
    FetchedOffset(topic="orders", partition=0, error=ErrorCode.UNSTABLE_OFFSET_COMMIT),
)


def fields(part: Any) -> tuple[Any, ...]:
    return (
        part.partition_index,
        part.committed_offset,
        part.committed_leader_epoch,
        part.metadata,
        part.error_code,
    )


async def test_a_partition_that_is_named_often_is_stored_once_with_the_last_offset() -> None:
    kinds = OffsetCommitRequest
    topics = [
        kinds.OffsetCommitRequestTopic(
            name="orders",
            partitions=tuple(
                kinds.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                for index in (1, 0, 1)
            ),
        )
        for offset in (7, 8)
    ]
    broker = Broker(committed)
    answer = await broker.ask("OffsetCommit", 8, OffsetCommitRequest(group_id="g", topics=tuple(topics)))
    (asked,) = broker.asked
    (topic,) = asked.body.topics
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(1, 8), (0, 8)]
    told = [(part.partition_index, part.error_code) for topic in answer.topics for part in topic.partitions]
    assert told == [(index, ErrorCode.OFFSET_METADATA_TOO_LARGE) for index in (1, 0, 1)] * 2


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("everything", [False, True])
async def test_offsets_of_one_group_are_fetched(stable: bool, everything: bool) -> None:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=(1, 0))
    body = OffsetFetchRequest(group_id="g", topics=None if everything else (topic,), require_stable=stable)
    broker = Broker(lambda request: FOUND)
    answer = await broker.ask("OffsetFetch", 7, body)
    wanted = None if everything else (("orders", 1), ("orders", 0))
    assert broker.asked[0].body == FetchOffsets(group_id="g", partitions=wanted, require_stable=stable)
    ((found,),) = (answer.topics,)
    assert [fields(each) for each in found.partitions] == [(1, 41, 3, "note", 0), (0, -1, -1, "", 88)]


@pytest.mark.parametrize(("version", "whole"), [(0, False), (1, False), (2, True), (7, True)])
async def test_a_refusal_of_all_offsets_has_its_place(version: int, whole: bool) -> None:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=(1,))
    broker = Broker(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    answer = await broker.ask("OffsetFetch", version, OffsetFetchRequest(group_id="g", topics=(topic,)))
    code = 16 if version else ErrorCode.UNSUPPORTED_VERSION
    assert answer.error_code == (code if whole else 0)
    assert [fields(each) for each in answer.topics for each in each.partitions] == (
        [] if whole else [(1, -1, -1, "", code)]
    )
    assert len(broker.asked) == (1 if version else 0)


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_offsets_of_several_groups_are_fetched(version: int) -> None:
    kinds = OffsetFetchRequest

    def topic(name: str) -> Any:
        named = {"topic_id": topic_id(name)} if version >= 10 else {"name": name}
        return kinds.OffsetFetchRequestTopics(**named, partition_indexes=(1, 0))

    def say(request: CoordinatorRequest) -> Any:
        return ApiError(ErrorCode.STALE_MEMBER_EPOCH, "no") if request.body.group_id == "no" else FOUND

    broker = Broker(say)
    groups = tuple(
        kinds.OffsetFetchRequestGroup(group_id=name, topics=topics)
        for name, topics in (("some", (topic("orders"),)), ("no", (topic("orders"),)), ("all", None))
    )
    answer = await broker.ask("OffsetFetch", version, OffsetFetchRequest(groups=groups, require_stable=True))
    wanted = (("orders", 1), ("orders", 0))
    assert [each.body for each in broker.asked] == [
        FetchOffsets(group_id=name, partitions=parts, require_stable=True)
        for name, parts in (("some", wanted), ("no", wanted), ("all", None))
    ]
    assert [(each.group_id, each.error_code, len(each.topics)) for each in answer.groups] == [
        ("some", 0, 1),
        ("no", 113, 0),
        ("all", 0, 1),
    ]
    (found,) = answer.groups[2].topics
    assert (found.name, found.topic_id) == ("orders", topic_id("orders"))
    assert [fields(each) for each in found.partitions] == [(1, 41, 3, "note", 0), (0, -1, -1, "", 88)]


async def test_an_id_that_no_topic_has_is_named_as_unknown() -> None:
    kinds = OffsetFetchRequest
    absent = kinds.OffsetFetchRequestTopics(topic_id=topic_id("absent"), partition_indexes=(1, 0))
    group = kinds.OffsetFetchRequestGroup(group_id="g", topics=(absent,))
    broker = Broker(lambda request: ())
    ((found,),) = (
        each.topics
        for each in (await broker.ask("OffsetFetch", 10, OffsetFetchRequest(groups=(group,)))).groups
    )
    assert broker.asked[0].body.partitions == ()
    assert found.topic_id == topic_id("absent")
    assert [fields(each) for each in found.partitions] == [(1, -1, -1, "", 100), (0, -1, -1, "", 100)]


@pytest.mark.parametrize("code", [None, ErrorCode.GROUP_ID_NOT_FOUND])
async def test_offsets_are_deleted_of_partitions_that_exist(code: ErrorCode | None) -> None:
    kinds = OffsetDeleteRequest
    part = kinds.OffsetDeleteRequestPartition
    parts = tuple(part(partition_index=at) for at in (7, 1, 0))
    topics = tuple(
        kinds.OffsetDeleteRequestTopic(name=name, partitions=parts) for name in ("absent", "orders")
    )

    def say(request: CoordinatorRequest) -> Any:
        made = OffsetDeleteResponse
        known = [
            (topic.name, [each.partition_index for each in topic.partitions]) for topic in request.body.topics
        ]
        assert known == [("absent", []), ("orders", [1, 0])]
        heard = {1: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0: ErrorCode.NONE}
        return made(
            topics=(
                made.OffsetDeleteResponseTopic(
                    name="orders",
                    partitions=tuple(
                        made.OffsetDeleteResponsePartition(partition_index=at, error_code=each)
                        for at, each in heard.items()
                    ),
                ),
            )
        )

    answer = await Broker(say if code is None else refused(code)).ask(
        "OffsetDelete", 0, OffsetDeleteRequest(group_id="g", topics=topics)
    )
    heard = [
        [(each.partition_index, each.error_code) for each in topic.partitions] for topic in answer.topics
    ]
    assert answer.error_code == (code or 0)
    assert heard == ([] if code else [[(7, 3), (1, 3), (0, 3)], [(7, 3), (1, 86), (0, 0)]])
    unnamed = await Broker(say).ask("OffsetDelete", 0, OffsetDeleteRequest(group_id="", topics=topics))
    assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID
