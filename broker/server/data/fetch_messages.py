"""Fetch by topic ids (KIP-516) as Kafka's messages: a follower's request and a leader's answer, on both
sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from msgspec import structs

from metaquorum.metadata.errors import ApiError, ErrorCode
from metaquorum.metadata.requests import data as core
from metaquorum.storage.types import LogPosition
from metaquorum.wire.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

FIRST_VERSION, LAST_VERSION = 13, 16
"""From the first version that names topics by id to the one that Kafka 3.7's brokers send."""
_STATE_SINCE = 15
ERROR_OF_ALL_SINCE = 7
"""From this version on an answer can refuse the request as a whole."""
_RACK_SINCE = 11
"""Older clients know only leaders (KIP-392)."""
READ_COMMITTED = 1
"""The isolation level of a consumer that reads up to the last stable offset."""
LIST_OFFSETS_VERSIONS = (4, 8)
"""From the first with the leader's epoch to that of Kafka 3.7's brokers."""


def fetch_request(request: core.FetchRequest, version: int) -> FetchRequest:
    """The request that a follower sends."""
    names_state = version >= _STATE_SINCE
    state = FetchRequest.ReplicaState()
    if names_state:
        state = FetchRequest.ReplicaState(replica_id=request.replica_id, replica_epoch=request.replica_epoch)
    return FetchRequest(
        replica_id=-1 if names_state else request.replica_id,
        replica_state=state,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        topics=tuple(
            FetchRequest.FetchTopic(topic_id=topic_id, partitions=tuple(map(_asked, parts)))
            for topic_id, parts in groupby(request.partitions, lambda part: part.key[0])
        ),
        forgotten_topics_data=tuple(
            FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=tuple(index for _, index in keys))
            for topic_id, keys in groupby(request.forgotten, lambda key: key[0])
        ),
    )


def fetch_asked(body: FetchRequest, version: int) -> core.FetchRequest:
    """The request that a leader receives."""
    replica_id, replica_epoch = body.replica_id, -1
    if version >= _STATE_SINCE:
        replica_id, replica_epoch = body.replica_state.replica_id, body.replica_state.replica_epoch
    partitions = tuple(
        core.FetchPartition(
            key=(topic.topic_id, part.partition),
            fetch_offset=part.fetch_offset,
            max_bytes=part.partition_max_bytes,
            current_leader_epoch=part.current_leader_epoch,
            last_fetched_epoch=part.last_fetched_epoch,
            log_start_offset=part.log_start_offset,
        )
        for topic in body.topics
        for part in topic.partitions
    )
    continues = body.session_epoch > 0
    return core.FetchRequest(
        replica_id=replica_id,
        replica_epoch=replica_epoch,
        # No partitions, nothing to wait for; a session's other partitions are requested without being named.
        max_wait_ms=max(body.max_wait_ms, 0) if partitions or continues else 0,
        min_bytes=body.min_bytes,
        max_bytes=body.max_bytes,
        read_committed=body.isolation_level == READ_COMMITTED,
        rack=body.rack_id if version >= _RACK_SINCE and replica_id < 0 else None,
        session_id=body.session_id,
        session_epoch=body.session_epoch,
        partitions=partitions,
        forgotten=tuple(
            (topic.topic_id, index) for topic in body.forgotten_topics_data for index in topic.partitions
        ),
    )


def by_ids(body: FetchRequest, ids: Mapping[str, bytes | None]) -> FetchRequest:
    """A request that names topics, with ids; topics without an id are left out."""
    return structs.replace(
        body,
        topics=tuple(
            FetchRequest.FetchTopic(topic_id=topic_id, partitions=topic.partitions)
            for topic in body.topics
            if (topic_id := ids[topic.topic]) is not None
        ),
        forgotten_topics_data=tuple(
            FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=topic.partitions)
            for topic in body.forgotten_topics_data
            if (topic_id := ids[topic.topic]) is not None
        ),
    )


def _asked(part: core.FetchPartition) -> FetchRequest.FetchPartition:
    return FetchRequest.FetchPartition(
        partition=part.key[1],
        current_leader_epoch=part.current_leader_epoch,
        fetch_offset=part.fetch_offset,
        last_fetched_epoch=part.last_fetched_epoch,
        log_start_offset=part.log_start_offset,
        partition_max_bytes=part.max_bytes,
    )


def fetch_answer(answer: FetchResponse) -> core.FetchResponse | ApiError:
    """A leader's answer."""
    if answer.error_code:
        code = ErrorCode.of(answer.error_code)
        return ApiError(code, f"the leader refused the fetch with {code.name}")
    return core.FetchResponse(
        session_id=answer.session_id,
        partitions=tuple(
            _got(topic.topic_id, part) for topic in answer.responses for part in topic.partitions
        ),
    )


def _got(topic_id: bytes, part: FetchResponse.PartitionData) -> core.FetchedPartition:
    code = ErrorCode.of(part.error_code)
    diverging = part.diverging_epoch
    leader = part.current_leader
    return core.FetchedPartition(
        key=(topic_id, part.partition_index),
        error=code,
        message=None if code is ErrorCode.NONE else f"the leader answered {code.name}",
        high_watermark=part.high_watermark,
        last_stable_offset=part.last_stable_offset,
        log_start_offset=part.log_start_offset,
        diverging=None if diverging.epoch < 0 else LogPosition(diverging.epoch, diverging.end_offset),
        leader=None if leader.leader_id < 0 else leader.leader_id,
        leader_epoch=leader.leader_epoch,
        records=bytes(part.records or b""),
    )


def log_start_request(
    replica_id: int, parts: Iterable[tuple[str, core.FetchPartition]]
) -> ListOffsetsRequest:
    """Requests the start offsets of these partitions' logs, with the names of their topics."""
    return ListOffsetsRequest(
        replica_id=replica_id,
        topics=tuple(
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=tuple(
                    ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=part.key[1],
                        current_leader_epoch=part.current_leader_epoch,
                        timestamp=core.EARLIEST_TIMESTAMP,
                    )
                    for _, part in group
                ),
            )
            for name, group in groupby(parts, lambda each: each[0])
        ),
    )


def log_starts(
    answer: ListOffsetsResponse, parts: Iterable[tuple[str, core.FetchPartition]]
) -> dict[core.PartitionKey, int]:
    """The leader's answers; a partition that it refused is missing."""
    keys = {(name, part.key[1]): part.key for name, part in parts}
    return {
        keys[topic.name, part.partition_index]: part.offset
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code and (topic.name, part.partition_index) in keys
    }


def by_topic(parts: Iterable[core.FetchedPartition]) -> Iterable[tuple[bytes, list[core.FetchedPartition]]]:
    """Consecutive partitions of one topic together, in their order."""
    for topic_id, group in groupby(parts, lambda part: part.key[0]):
        yield topic_id, list(group)
