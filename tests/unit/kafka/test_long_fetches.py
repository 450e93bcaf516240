"""Fetches that name thousands of partitions: prepared beside the loop; only what exists reaches the core."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaquorum.broker.server.kafka.data import FETCHED_AT_ONCE_MAX, DataHandlers
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.wire.messages import FetchRequest
from tests.unit.broker import manager_world
from tests.unit.kafka import test_data_answers
from tests.unit.kafka.test_data_answers import STRANGE, transactional
from tests.unit.server.test_data_requests import ORDERS

MANY = FETCHED_AT_ONCE_MAX + 1
UNKNOWN, UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID


class Site(test_data_answers.Site):
    """The topic has two partitions."""

    def __init__(self) -> None:
        super().__init__()
        cluster = manager_world.Cluster()
        cluster.topic("orders", partitions=2, as_id=ORDERS)
        image = cluster.image()
        self.handlers = DataHandlers(self.core.requests, lambda: image, transactional(self.core))


def fetch(version: int, *topics: tuple[str, bytes, int], **fields: Any) -> FetchRequest:
    """Of each topic, partitions 0 to a number."""
    by_id = version >= 13
    return FetchRequest(
        **{
            "replica_id": -1,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 9,
            "session_epoch": 0,
            **fields,
        },
        topics=tuple(
            FetchRequest.FetchTopic(
                topic="" if by_id else name,
                topic_id=topic_id if by_id else bytes(16),
                partitions=tuple(
                    FetchRequest.FetchPartition(partition=index, partition_max_bytes=1)
                    for index in range(count)
                ),
            )
            for name, topic_id, count in topics
        ),
    )


def answered(*indexes: int, session_id: int = 7) -> core.FetchResponse:
    return core.FetchResponse(
        session_id=session_id,
        partitions=tuple(core.FetchedPartition(key=(ORDERS, index), high_watermark=3) for index in indexes),
    )


def shown(response: Any) -> dict[tuple[str, bytes, int], int]:
    return {
        (topic.topic, topic.topic_id, part.partition_index): part.error_code
        for topic in response.responses
        for part in topic.partitions
    }


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
async def test_only_partitions_that_exist_reach_the_core(version: int) -> None:
    site = Site()
    body = fetch(version, ("orders", ORDERS, MANY), ("none", STRANGE, 2), ("orders", ORDERS, 2))
    response = await site.ask("fetch", version, body, answered(0, 1, session_id=0))
    asked = site.asked
    assert {part.key for part in asked.partitions} == {(ORDERS, 0), (ORDERS, 1)}
    assert (asked.session_epoch, asked.max_wait_ms) == (-1, 0), "it is answered at once, without a session"
    orders = ("", ORDERS) if version >= 13 else ("orders", bytes(16))
    none = ("", STRANGE) if version >= 13 else ("none", bytes(16))
    expected = {(*orders, index): 0 if index < 2 else UNKNOWN for index in range(MANY)}
    expected |= {(*none, index): UNKNOWN_ID if version >= 13 else UNKNOWN for index in range(2)}
    assert shown(response) == expected
    assert sum(len(topic.partitions) for topic in response.responses) == len(expected)


async def test_the_loop_does_other_things_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    site, loop = Site(), asyncio.get_running_loop()
    beside: list[str] = []
    monkeypatch.setattr(
        "metaquorum.broker.server.kafka.data.known_parts",
        lambda body, version, image: (loop.call_soon_threadsafe(beside.append, "a turn"), (body, ()))[1],
    )
    body = fetch(11, ("orders", ORDERS, MANY))
    response = await site.ask("fetch", 11, body, answered(0, 1))
    assert beside == ["a turn"] and response.session_id == 7


@pytest.mark.parametrize("version", [11, 15])
async def test_a_session_with_a_partition_that_does_not_exist_is_over(version: int) -> None:
    site = Site()
    body = fetch(version, ("orders", ORDERS, MANY), session_id=3, session_epoch=4)
    response = await site.ask("fetch", version, body)
    assert (response.error_code, response.responses, site.core.events) == (70, (), [])


@pytest.mark.parametrize("version", [11, 15])
async def test_a_session_that_forgets_many_goes_on(version: int) -> None:
    site = Site()
    by_id = version >= 13
    forgotten = FetchRequest.ForgottenTopic(
        topic="" if by_id else "orders",
        topic_id=ORDERS if by_id else bytes(16),
        partitions=tuple(range(MANY)),
    )
    body = fetch(version, session_id=3, session_epoch=4, forgotten_topics_data=(forgotten,))
    response = await site.ask("fetch", version, body, answered(0))
    assert (site.asked.session_id, site.asked.session_epoch, len(site.asked.forgotten)) == (3, 4, MANY)
    assert (response.error_code, response.session_id, len(response.responses)) == (0, 7, 1)


async def test_a_follower_is_asked_for_as_it_asks() -> None:
    """Its session may have what this broker has not heard of yet."""
    site = Site()
    body = fetch(
        15,
        ("orders", ORDERS, MANY),
        replica_state=FetchRequest.ReplicaState(replica_id=2, replica_epoch=102),
    )
    await site.ask("fetch", 15, body, answered())
    assert (len(site.asked.partitions), site.asked.session_epoch) == (MANY, 0)


@pytest.mark.parametrize("version", [11, 15])
async def test_a_broker_that_refuses_all_says_so_of_all(version: int) -> None:
    site = Site()
    body = fetch(version, ("orders", ORDERS, MANY))
    fenced = ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "fenced")
    response = await site.ask("fetch", version, body, fenced)
    found = shown(response)
    assert response.error_code == 0 and len(found) == MANY
    assert {found[key] for key in found if key[2] < 2} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
