"""A follower's fetches against those of Kafka 3.7's brokers: both sides, to the byte."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from metaquorum.broker.server.data import fetch_messages
from metaquorum.broker.server.kafka.data_answers import fetched
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.wire import codec
from metaquorum.wire.messages import FetchResponse, ListOffsetsResponse
from tests.unit.wire.captures import Frame, frames

FETCH, VERSION = 1, 16
A, B = b"a" * 16, b"b" * 16


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> list[Frame]:
    """What followers sent, and what they got."""
    found = frames(shared_data / "kafka-3.7-wire", only="C-broker-lifecycle")
    return [each for each in found if "-fetcher-" in each.client_id]


@pytest.mark.shared_data
def test_requests_of_kafkas_followers_are_written_to_the_byte(recorded: list[Frame]) -> None:
    followers = 0
    for frame in recorded:
        if not frame.is_request:
            continue
        request = codec.decode_request(frame.data)
        asked = fetch_messages.fetch_asked(request.body, VERSION)
        assert asked.replica_id >= 0 and asked.replica_epoch >= 0
        written = codec.encode_request(request.header, fetch_messages.fetch_request(asked, VERSION))
        assert b"".join(written) == frame.data, frame.where
        followers += 1
    assert followers > 900


@pytest.mark.shared_data
def test_answers_of_kafkas_leaders_are_read_and_written(recorded: list[Frame]) -> None:
    """Byte for byte, but for what a follower does not use: that nothing was aborted, and other nodes'
    addresses."""
    same = refused = 0
    for frame in recorded:
        if frame.is_request:
            continue
        response = codec.decode_response(FETCH, VERSION, frame.data)
        answer = fetch_messages.fetch_answer(response.body)
        if isinstance(answer, ApiError):
            assert answer.code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            )
            refused += 1
            continue
        ours = FetchResponse(
            session_id=answer.session_id,
            responses=tuple(
                FetchResponse.FetchableTopicResponse(
                    topic_id=topic_id,
                    partitions=tuple(fetched(part, VERSION) for part in parts),
                )
                for topic_id, parts in fetch_messages.by_topic(answer.partitions)
            ),
        )
        same += without_unused(ours) == without_unused(response.body)
    assert same + refused == sum(not frame.is_request for frame in recorded)


def without_unused(body: FetchResponse) -> FetchResponse:
    replace = msgspec.structs.replace
    return replace(
        body,
        node_endpoints=(),
        responses=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(
                        part,
                        aborted_transactions=part.aborted_transactions or None,
                        records=bytes(part.records or b""),
                    )
                    for part in topic.partitions
                ),
            )
            for topic in body.responses
        ),
    )


def test_a_follower_below_version_15_names_itself_in_the_old_field() -> None:
    asked = core.FetchRequest(
        replica_id=4, replica_epoch=8, max_wait_ms=1, min_bytes=1, max_bytes=9, partitions=()
    )
    old, new = fetch_messages.fetch_request(asked, 14), fetch_messages.fetch_request(asked, 15)
    assert (old.replica_id, old.replica_state.replica_id) == (4, -1)
    assert (new.replica_id, new.replica_state.replica_id, new.replica_state.replica_epoch) == (-1, 4, 8)


def test_an_error_that_is_not_known_is_an_unknown_error() -> None:
    answer = fetch_messages.fetch_answer(FetchResponse(error_code=9999))
    assert isinstance(answer, ApiError) and answer.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_log_starts_that_a_leader_is_asked_for() -> None:
    """Kafka's leaders do not say them with OFFSET_OUT_OF_RANGE."""
    keys = [("orders", (A, 1)), ("orders", (A, 2)), ("bills", (B, 0))]
    parts = [
        (name, core.FetchPartition(key=key, fetch_offset=5, max_bytes=1, current_leader_epoch=3))
        for name, key in keys
    ]
    request = fetch_messages.log_start_request(7, parts)
    assert request.replica_id == 7
    assert [(each.name, len(each.partitions)) for each in request.topics] == [("orders", 2), ("bills", 1)]
    assert {part.timestamp for topic in request.topics for part in topic.partitions} == {-2}
    answered = ListOffsetsResponse.ListOffsetsPartitionResponse
    parts_of_orders = (answered(partition_index=1, offset=40), answered(partition_index=2, error_code=6))
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="orders", partitions=parts_of_orders)
    answer = ListOffsetsResponse(topics=(topic,))
    assert fetch_messages.log_starts(answer, parts) == {(A, 1): 40}
