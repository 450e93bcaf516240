"""Fetches of the metadata log that arrive over Kafka's protocol, as values of Raft, and the answers to them.

`kafka.client.quorum` is the other side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from metaquorum.clients.kafka.quorum import METADATA_TOPIC_ID
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.internal_topics import METADATA_TOPIC
from metaquorum.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftError,
    RaftResponse,
)
from metaquorum.storage.types import LogPosition
from metaquorum.wire import messages as wire

UNKNOWN_OFFSET = 2**63 - 1
"""The high watermark of a fetch that does not say one (KIP-1166)."""
_NODES_FROM = 17
"""From this version on, answers name the leader's address (KIP-853)."""
BY_NAME_TO = 12
"""Up to this version, a fetch names its topic."""


def fetch_of(body: wire.FetchRequest, version: int, reader: bytes, cluster_id: str) -> FetchRequest | None:
    """The fetch; None if it is not one of partition 0 of the metadata log. `reader` stands for a caller
    without a directory id, `cluster_id` for one that names none."""
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1:
        return None
    topic, asked = body.topics[0], body.topics[0].partitions[0]
    is_it = topic.topic == METADATA_TOPIC if version <= BY_NAME_TO else topic.topic_id == METADATA_TOPIC_ID
    if not is_it or asked.partition != 0 or body.max_wait_ms < 0 or asked.last_fetched_epoch < 0:
        return None
    if asked.last_fetched_epoch > asked.current_leader_epoch:
        return None
    known = asked.high_watermark
    return FetchRequest(
        cluster_id=cluster_id if body.cluster_id is None else body.cluster_id,
        replica_id=body.replica_state.replica_id if version >= 15 else body.replica_id,
        replica_directory_id=asked.replica_directory_id if any(asked.replica_directory_id) else reader,
        epoch=asked.current_leader_epoch,
        fetch_offset=asked.fetch_offset,
        last_fetched_epoch=asked.last_fetched_epoch,
        high_watermark=asked.fetch_offset if known == UNKNOWN_OFFSET else known,
        max_wait_ms=body.max_wait_ms,
        max_bytes=body.max_bytes,
    )


class LeaderAt(NamedTuple):
    """A leader, and where its listener of the name by which a client came is."""

    node_id: int
    host: str
    port: int


def fetch_answer(response: RaftResponse, version: int, leader: LeaderAt | None = None) -> wire.FetchResponse:
    """The answer to a fetch. `leader`: None if its address is not known."""
    types = wire.FetchResponse
    if not isinstance(response, FetchResponse):
        return types(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    if response.error in _OF_THE_WHOLE:
        return types(error_code=response.error)
    partition = types.PartitionData(
        partition_index=0,
        error_code=response.error,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        diverging_epoch=_named(types.EpochEndOffset, response.diverging),
        current_leader=_leader(types.LeaderIdAndEpoch, response),
        snapshot_id=_named(types.SnapshotId, response.snapshot),
        aborted_transactions=(),
        records=response.records,
    )
    topic = types.FetchableTopicResponse(
        topic=METADATA_TOPIC if version <= BY_NAME_TO else "",
        topic_id=METADATA_TOPIC_ID if version > BY_NAME_TO else bytes(16),
        partitions=(partition,),
    )
    named = version >= _NODES_FROM
    return types(responses=(topic,), node_endpoints=_nodes(types.NodeEndpoint, leader) if named else ())


def snapshot_fetch_of(
    body: wire.FetchSnapshotRequest, reader: bytes, cluster_id: str
) -> FetchSnapshotRequest | None:
    """The fetch of a snapshot; None if it is not one of partition 0 of the metadata log."""
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1:
        return None
    topic, asked = body.topics[0], body.topics[0].partitions[0]
    if topic.name != METADATA_TOPIC or asked.partition != 0:
        return None
    return FetchSnapshotRequest(
        cluster_id=cluster_id if body.cluster_id is None else body.cluster_id,
        replica_id=body.replica_id,
        replica_directory_id=asked.replica_directory_id if any(asked.replica_directory_id) else reader,
        epoch=asked.current_leader_epoch,
        snapshot=LogPosition(asked.snapshot_id.epoch, asked.snapshot_id.end_offset),
        position=asked.position,
        max_bytes=body.max_bytes,
    )


def snapshot_answer(
    response: RaftResponse, version: int = 0, leader: LeaderAt | None = None
) -> wire.FetchSnapshotResponse:
    """The answer to a fetch of a snapshot; `leader` as in `fetch_answer`."""
    types = wire.FetchSnapshotResponse
    if not isinstance(response, FetchSnapshotResponse):
        return types(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    if response.error in _OF_THE_WHOLE:
        return types(error_code=response.error)
    partition = types.PartitionSnapshot(
        index=0,
        error_code=response.error,
        snapshot_id=_named(types.SnapshotId, response.snapshot),
        current_leader=_leader(types.LeaderIdAndEpoch, response),
        size=response.size_bytes,
        position=response.position,
        unaligned_records=response.data,
    )
    named = version >= 1
    return types(
        topics=(types.TopicSnapshot(name=METADATA_TOPIC, partitions=(partition,)),),
        node_endpoints=_nodes(types.NodeEndpoint, leader) if named else (),
    )


_OF_THE_WHOLE = frozenset({RaftError.INVALID_REQUEST, RaftError.INCONSISTENT_CLUSTER_ID})
"""Errors that Kafka answers for the request rather than its partition."""


def _nodes(kind: Any, leader: LeaderAt | None) -> tuple[Any, ...]:
    return () if leader is None else (kind(node_id=leader.node_id, host=leader.host, port=leader.port),)


def _named(kind: Any, position: LogPosition | None) -> Any:
    return (
        kind(epoch=-1, end_offset=-1)
        if position is None
        else kind(epoch=position.epoch, end_offset=position.offset)
    )


def _leader(kind: Any, response: FetchResponse | FetchSnapshotResponse) -> Any:
    leader_id = -1 if response.leader_id is None else response.leader_id
    return kind(leader_id=leader_id, leader_epoch=response.epoch)
