"""One partition of a Produce or Fetch answer, in the form of each version, with its leader's endpoint.

What an answer contains besides its error code, as in Kafka: the leader only if the leadership was the error
(KIP-951), nothing about the log if a fetch failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from metaquorum.broker.server.data import fetch_messages
from metaquorum.broker.server.kafka.cluster import endpoint_of
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.codecs import holds_zstd
from metaquorum.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceResponse,
)

ZSTD_FROM_FETCH = 10
"""The version from which consumers know zstd (KIP-110)."""
LEADER_FROM_PRODUCE, LEADER_FROM_FETCH = 10, 16
"""The first versions that name the leader and its endpoint (KIP-951)."""
UNKNOWN_OFFSET = -1
_DIVERGING_FROM = 12
_BEFORE_THE_LOG = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors of a fetch that name no aborted transactions; with others their list is null."""
_OF_LEADERSHIP = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

_NO_LEADER = FetchResponse.LeaderIdAndEpoch()

Endpoint = TypeVar("Endpoint", ProduceResponse.NodeEndpoint, FetchResponse.NodeEndpoint)


def endpoints(
    kind: type[Endpoint], leaders: Iterable[int], image: MetadataImage, listener: str
) -> tuple[Endpoint, ...]:
    """The endpoints, for clients of a listener, of the leaders that an answer names; -1 is none."""
    nodes: list[Endpoint] = []
    for leader in sorted({*leaders} - {-1}):
        at = endpoint_of(image, leader, listener)
        if at is not None:
            rack = image.brokers[leader].rack
            nodes.append(kind(node_id=leader, host=at.host, port=at.port, rack=rack))
    return tuple(nodes)


def refusal_of_all(error: ApiError) -> ApiError:
    """Why a broker refuses a whole request, in a code that every client repeats with new metadata: Java's
    producers and kafkajs give up on BROKER_NOT_AVAILABLE."""
    if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
        return error
    return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)


def produced(
    index: int, result: core.ProduceResult | ApiError, version: int
) -> ProduceResponse.PartitionProduceResponse:
    """One partition of an answer to a Produce."""
    if isinstance(result, ApiError):
        return ProduceResponse.PartitionProduceResponse(
            index=index,
            error_code=result.code,
            base_offset=UNKNOWN_OFFSET,
            log_start_offset=UNKNOWN_OFFSET,
            error_message=result.message,
        )
    leader = ProduceResponse.LeaderIdAndEpoch()
    if version >= LEADER_FROM_PRODUCE and result.error in _OF_LEADERSHIP and result.leader is not None:
        leader = ProduceResponse.LeaderIdAndEpoch(leader_id=result.leader, leader_epoch=result.leader_epoch)
    return ProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=result.error,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        record_errors=tuple(
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=one.index, batch_index_error_message=one.message
            )
            for one in result.refused_records
        ),
        error_message=result.message,
        current_leader=leader,
    )


def not_fetched(
    index: int, code: ErrorCode, leader: FetchResponse.LeaderIdAndEpoch = _NO_LEADER
) -> FetchResponse.PartitionData:
    """A partition with only the reason of its refusal."""
    return FetchResponse.PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=UNKNOWN_OFFSET,
        aborted_transactions=() if code in _BEFORE_THE_LOG else None,
        records=b"",
        current_leader=leader,
    )


def known_parts(
    body: FetchRequest, version: int, image: MetadataImage
) -> tuple[FetchRequest, tuple[FetchResponse.FetchableTopicResponse, ...]]:
    """The request with the partitions that exist, and the answers about the others: each once."""
    by_id = version >= fetch_messages.FIRST_VERSION
    no_topic = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics, existing = image.topics, []
    missing: dict[tuple[str, bytes], dict[int, ErrorCode]] = {}
    for topic in body.topics:
        topic_info = topics.topic(topic.topic_id) if by_id else topics.topic_named(topic.topic)
        code = no_topic if topic_info is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        parts = []
        for part in topic.partitions:
            if topic_info is not None and topics.partition(topic_info.topic_id, part.partition) is not None:
                parts.append(part)
            else:
                missing.setdefault((topic.topic, topic.topic_id), {})[part.partition] = code
        if parts:
            existing.append(replace(topic, partitions=tuple(parts)))
    refused = [
        FetchResponse.FetchableTopicResponse(
            topic=name,
            topic_id=topic_id,
            partitions=tuple([not_fetched(index, code) for index, code in codes.items()]),
        )
        for (name, topic_id), codes in missing.items()
    ]
    return replace(body, topics=tuple(existing)), tuple(refused)


def fetched(result: core.FetchedPartition, version: int) -> FetchResponse.PartitionData:
    """One partition of an answer to a Fetch."""
    if version < ZSTD_FROM_FETCH and holds_zstd(result.records):
        return not_fetched(result.key[1], ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if result.error is not ErrorCode.NONE:
        leader = _NO_LEADER
        if version >= LEADER_FROM_FETCH and result.error in _OF_LEADERSHIP and result.leader is not None:
            leader = FetchResponse.LeaderIdAndEpoch(leader_id=result.leader, leader_epoch=result.leader_epoch)
        return not_fetched(result.key[1], result.error, leader)
    diverging = FetchResponse.EpochEndOffset()
    if version >= _DIVERGING_FROM and result.diverging is not None:
        diverging = FetchResponse.EpochEndOffset(
            epoch=result.diverging.epoch, end_offset=result.diverging.offset
        )
    return FetchResponse.PartitionData(
        partition_index=result.key[1],
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        diverging_epoch=diverging,
        aborted_transactions=None
        if result.aborted is None
        else tuple(
            FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in result.aborted
        ),
        preferred_read_replica=result.preferred_read_replica,
        records=result.records,
    )


# One partition of a ListOffsets answer, in the form of each version.
# What old versions support: which special timestamps, which errors, and lists of offsets.

_FIRST_BY_TIME = 1
"""ListOffsets 0 lists where segments begin, by when their files changed; here only the latest and the
earliest offset."""
_LAST_OF_EARLY_TIMES = 8
_OFFSET_NOT_AVAILABLE_FROM = 5
"""The version of ListOffsets from which clients know this error (KIP-207)."""
# The first version that knows each special timestamp.
_SPECIAL_FROM = {
    core.LATEST_TIMESTAMP: 0,
    core.EARLIEST_TIMESTAMP: 0,
    core.NEWEST_TIMESTAMP: 7,
    core.EARLIEST_LOCAL_TIMESTAMP: 8,
    core.LATEST_TIERED_TIMESTAMP: 9,
}


def time_asked(timestamp: int, version: int) -> int | None:
    """What to look for; None if this version does not allow it, and the core gets no request.

    Up to version 8, the last of Kafka 3.7, a negative number that has a special meaning in no version is an
    early time.
    """
    since = _SPECIAL_FROM.get(timestamp)
    if since is not None and version >= since:
        return timestamp
    if timestamp >= 0:
        return timestamp if version >= _FIRST_BY_TIME else None
    return core.BEFORE_ALL if since is None and _FIRST_BY_TIME <= version <= _LAST_OF_EARLY_TIMES else None


def listed(
    result: core.ListedOffset | None,
    asked: ListOffsetsRequest.ListOffsetsPartition,
    code: ErrorCode,
    version: int,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    """`result` None: the core got no request, or answered with `code`."""
    if result is None:
        if time_asked(asked.timestamp, version) is None:
            code = ErrorCode.UNSUPPORTED_VERSION
        return ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=code
        )
    code = result.error
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and version < _OFFSET_NOT_AVAILABLE_FROM:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    if version < _FIRST_BY_TIME:
        offsets = (result.offset,) if code is ErrorCode.NONE and asked.max_num_offsets > 0 else ()
        return ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=code, old_style_offsets=offsets
        )
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=result.timestamp_ms,
        offset=result.offset,
        leader_epoch=result.leader_epoch if version >= 4 else -1,
    )


def invalid(
    asked: ListOffsetsRequest.ListOffsetsPartition,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    """The request names the partition more than once: which time is meant is unknown."""
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=ErrorCode.INVALID_REQUEST
    )


# Partitions that one request names more than once: which they are, and each one once.
# What is answered then depends on the API, as in Kafka: `data` and `log_ends` say it.

T = TypeVar("T", bound=Hashable)
Value = TypeVar("Value")


def repeated(places: Iterable[T]) -> frozenset[T]:
    """Those that occur more than once."""
    return frozenset([place for place, count in Counter(places).items() if count > 1])


def last_of_each(parts: Iterable[tuple[str, T, Value]]) -> dict[str, dict[T, Value]]:
    """The last value of each (topic, partition), by topic, where the first one was."""
    topics: dict[str, dict[T, Value]] = {}
    for topic, index, value in parts:
        topics.setdefault(topic, {})[index] = value
    return topics
