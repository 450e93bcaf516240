"""Every value of a request reaches the core, and every value of its answer the client: no two are alike."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from metaquorum.broker.server.data import fetch_messages
from metaquorum.broker.server.kafka.data_answers import fetched
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.storage.types import LogPosition
from metaquorum.wire import codec
from metaquorum.wire.messages import FetchResponse, ListOffsetsRequest
from tests.unit.kafka.test_data_answers import Site, produce
from tests.unit.server.test_data_requests import ORDERS

FETCH = 1
OTHER = b"o" * 16


def sent(version: int, body: Any) -> Any:
    """A request as the other side reads it."""
    header = codec.RequestHeader(FETCH, version, 1)
    return codec.decode_request(b"".join(codec.encode_request(header, body))).body


def answered(version: int, body: Any) -> Any:
    frame = b"".join(codec.encode_response(FETCH, version, 1, body))
    return codec.decode_response(FETCH, version, frame).body


PARTITIONS = tuple(
    core.FetchPartition(
        key=key,
        fetch_offset=10 * at,
        max_bytes=10 * at + 1,
        current_leader_epoch=10 * at + 2,
        last_fetched_epoch=10 * at + 3,
        log_start_offset=10 * at + 4,
    )
    for at, key in enumerate([(ORDERS, 0), (ORDERS, 5), (OTHER, 2)], start=1)
)


@pytest.mark.parametrize("version", [13, 14, 15, 16])
@pytest.mark.parametrize("partitions", [PARTITIONS, PARTITIONS[1:], ()])
@pytest.mark.parametrize("session", [(0, -1), (0, 0), (8, 3)])
def test_a_leader_is_asked_what_a_follower_asks(
    version: int, partitions: tuple[core.FetchPartition, ...], session: tuple[int, int]
) -> None:
    request = core.FetchRequest(
        replica_id=0,
        replica_epoch=77 if version >= 15 else -1,
        max_wait_ms=500 if partitions or session[1] > 0 else 0,
        min_bytes=2,
        max_bytes=3_000,
        session_id=session[0],
        session_epoch=session[1],
        partitions=partitions,
        forgotten=((ORDERS, 9), (ORDERS, 8), (OTHER, 4)),
    )
    wire = fetch_messages.fetch_request(request, version)
    assert fetch_messages.fetch_asked(sent(version, wire), version) == request


@pytest.mark.parametrize("version", [11, 12, 18])
@pytest.mark.parametrize("read_committed", [False, True])
def test_a_leader_is_asked_what_a_client_asks(version: int, read_committed: bool) -> None:
    request = core.FetchRequest(
        max_wait_ms=500,
        min_bytes=2,
        max_bytes=3_000,
        partitions=PARTITIONS,
        read_committed=read_committed,
        rack="r",
    )
    wire = structs.replace(
        fetch_messages.fetch_request(request, 18), isolation_level=int(read_committed), rack_id="r"
    )
    assert fetch_messages.fetch_asked(wire, version) == request


FETCHED = (
    core.FetchedPartition(
        key=(ORDERS, 0), high_watermark=1, log_start_offset=2, last_stable_offset=3, records=b"records"
    ),
    core.FetchedPartition(
        key=(ORDERS, 5),
        high_watermark=4,
        log_start_offset=5,
        last_stable_offset=6,
        diverging=LogPosition(7, 8),
    ),
    core.FetchedPartition(
        key=(OTHER, 2), error=ErrorCode.NOT_LEADER_OR_FOLLOWER, message="moved", leader=0, leader_epoch=9
    ),
)


@pytest.mark.parametrize("version", [13, 16])
def test_a_follower_reads_what_a_leader_answers(version: int) -> None:
    topics = [
        FetchResponse.FetchableTopicResponse(
            topic_id=topic_id, partitions=tuple(fetched(part, version) for part in parts)
        )
        for topic_id, parts in fetch_messages.by_topic(FETCHED)
    ]
    body = answered(version, FetchResponse(session_id=12, responses=tuple(topics)))
    found = fetch_messages.fetch_answer(body)
    assert isinstance(found, core.FetchResponse) and found.session_id == 12
    refused = structs.replace(FETCHED[2], message="the leader answered NOT_LEADER_OR_FOLLOWER")
    if version < 16:  # they do not name the leader
        refused = structs.replace(refused, leader=None, leader_epoch=-1)
    assert found.partitions == (*FETCHED[:2], refused)


def test_a_client_hears_of_aborted_transactions_and_of_nearer_replicas() -> None:
    found = core.FetchedPartition(key=(ORDERS, 0), aborted=((7, 40), (8, 50)), preferred_read_replica=2)
    part = fetched(found, 16)
    assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()] == [
        (7, 40),
        (8, 50),
    ]
    assert part.preferred_read_replica == 2
    assert fetched(structs.replace(found, aborted=None), 16).aborted_transactions is None


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_producer_hears_what_the_core_says(acks: int) -> None:
    refused = tuple(core.RefusedRecord(at, f"record {at}") for at in (2, 4))
    results = (
        core.ProduceResult(key=(ORDERS, 0), base_offset=11, log_append_time_ms=12, log_start_offset=13),
        core.ProduceResult(
            key=(ORDERS, 1), error=ErrorCode.INVALID_RECORD, message="two", refused_records=refused
        ),
    )
    site = Site()
    response = await site.ask("produce", 9, produce(acks=acks), core.ProduceResponse(results=results))
    assert (site.asked.acks, site.asked.timeout_ms) == (acks, 9)
    first, second = response.responses[0].partition_responses
    assert (first.base_offset, first.log_append_time_ms, first.log_start_offset) == (11, 12, 13)
    assert (second.index, second.error_code, second.error_message) == (1, 87, "two")
    found = [(each.batch_index, each.batch_index_error_message) for each in second.record_errors]
    assert found == [(2, "record 2"), (4, "record 4")]


@pytest.mark.parametrize("version", [2, 4, 6])
@pytest.mark.parametrize("isolation", [0, 1])
async def test_offsets_are_asked_for_as_a_client_reads(version: int, isolation: int) -> None:
    kinds = ListOffsetsRequest
    parts = tuple(
        kinds.ListOffsetsPartition(
            partition_index=at,
            timestamp=100 + at,
            **({"current_leader_epoch": 30 + at} if version >= 4 else {}),
        )
        for at in (1, 0)
    )
    topic = kinds.ListOffsetsTopic(name="orders", partitions=parts)
    results = tuple(
        core.ListedOffset(key=(ORDERS, at), offset=40 + at, timestamp_ms=50 + at, leader_epoch=60 + at)
        for at in (1, 0)
    )
    site = Site()
    response = await site.ask(
        "list_offsets",
        version,
        ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=(topic,)),
        core.ListOffsetsResponse(results=results),
    )
    assert site.asked.read_committed is bool(isolation) and site.asked.replica_id == -1
    epochs = {each.key[1]: each.current_leader_epoch for each in site.asked.partitions}
    assert epochs == ({1: 31, 0: 30} if version >= 4 else {1: -1, 0: -1})
    assert [(each.key, each.timestamp_ms) for each in site.asked.partitions] == [
        ((ORDERS, 1), 101),
        ((ORDERS, 0), 100),
    ]
    found = [
        (each.partition_index, each.offset, each.timestamp, each.leader_epoch)
        for each in response.topics[0].partitions
    ]
    assert found == [(at, 40 + at, 50 + at, 60 + at if version >= 4 else -1) for at in (1, 0)]
