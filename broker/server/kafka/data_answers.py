"""One partition of a Produce or Fetch answer, in the form of each version, with its leader's endpoint.

Owns what an answer contains besides its error code, as in Kafka: the leader only if the leadership was the
error (KIP-951), nothing about the log if a fetch failed. Does not decide on an error: the core or `data`
does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from metaquorum.broker.server.kafka.cluster import endpoint_of
from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.requests import data as core
from metaquorum.storage.batches.codecs import holds_zstd
from metaquorum.wire.messages import FetchResponse, ProduceResponse

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
    found: list[Endpoint] = []
    for leader in sorted({*leaders} - {-1}):
        at = endpoint_of(image, leader, listener)
        if at is not None:
            rack = image.brokers[leader].rack
            found.append(kind(node_id=leader, host=at.host, port=at.port, rack=rack))
    return tuple(found)


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
