"""OffsetCommit, TxnOffsetCommit and OffsetDelete: who may commit, what is stored, the answer for each
partition.

Owns the checks and the records. Does not keep offsets: `offsets` does, when the records are replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metaquorum.broker.coordinator.groups.consumer.group import ConsumerGroup
from metaquorum.broker.coordinator.groups.group import CONSUMER, Group, Phase
from metaquorum.broker.coordinator.groups.offsets import OffsetTable
from metaquorum.broker.coordinator.groups.rebalance import Rebalances
from metaquorum.broker.coordinator.groups.records import CommittedOffset, offset_record, offset_tombstone
from metaquorum.broker.coordinator.groups.work import Work
from metaquorum.broker.coordinator.state import BatchOrigin
from metaquorum.metadata.errors import ErrorCode
from metaquorum.metadata.node_configs.groups import GroupConfig
from metaquorum.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    TxnOffsetCommitRequest,
)


class Commits:
    """Requests about offsets of existing groups (None: there is no group with this id)."""

    def __init__(
        self, config: GroupConfig, offsets: OffsetTable, rebalances: Rebalances, is_full: Callable[[], bool]
    ) -> None:
        self._config = config
        self._offsets = offsets
        self._rebalances = rebalances
        self._is_full = is_full

    def commit(
        self, work: Work, key: object, group: Group | ConsumerGroup | None, request: OffsetCommitRequest
    ) -> None:
        """Stores the valid offsets, and answers for each partition."""
        error = self._commit_error(group, request)
        if error is None and isinstance(group, Group) and group.members:
            self._rebalances.alive(work, group, request.member_id)
        work.reply(key, committed_response(request, lambda part: self._store(work, request, part, error)))

    def _commit_error(
        self, group: Group | ConsumerGroup | None, request: OffsetCommitRequest
    ) -> ErrorCode | None:
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        if group is None:
            return self._new_error() if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.phase is Phase.EMPTY:
            return None
        if isinstance(group, ConsumerGroup):
            return _epoch_error(group, member_id, generation)
        if generation < 0 and not member_id and request.group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._rebalances.stranger(group, member_id, request.group_instance_id)
        if error is not None:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.REBALANCE_IN_PROGRESS if group.phase is Phase.COMPLETING else None

    def _new_error(self) -> ErrorCode | None:
        """Why a group that does not exist cannot begin with a commit."""
        return ErrorCode.GROUP_MAX_SIZE_REACHED if self._is_full() else None

    def _store(
        self, work: Work, request: OffsetCommitRequest, at: tuple[str, Any], error: ErrorCode | None
    ) -> ErrorCode:
        topic, part = at
        if error is not None:
            return error
        now_ms = work.now.wall_ms
        commit_ms = now_ms if part.commit_timestamp < 0 else part.commit_timestamp
        expire_ms = -1 if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
        return self._put(work, request.group_id, topic, part, commit_ms, expire_ms)

    def _put(
        self, work: Work, group_id: str, topic: str, part: Any, commit_ms: int, expire_ms: int = -1
    ) -> ErrorCode:
        metadata = part.committed_metadata or ""
        if len(metadata.encode()) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        committed = CommittedOffset(
            offset=part.committed_offset,
            leader_epoch=part.committed_leader_epoch,
            metadata=metadata,
            commit_ms=commit_ms,
            expire_ms=expire_ms,
        )
        work.store(offset_record(group_id, (topic, part.partition_index), committed))
        return ErrorCode.NONE

    def commit_in_transaction(
        self, work: Work, key: object, group: Group | ConsumerGroup | None, request: TxnOffsetCommitRequest
    ) -> None:
        """Stores the offsets that count when the transaction commits; the reply is one code per partition."""
        error = self._transaction_error(group, request)
        work.origin = BatchOrigin(-1, request.producer_id, request.producer_epoch)
        now_ms = work.now.wall_ms
        codes = [
            self._put(work, request.group_id, topic.name, part, now_ms) if error is None else error
            for topic in request.topics
            for part in topic.partitions
        ]
        work.reply(key, tuple(codes))

    def _transaction_error(
        self, group: Group | ConsumerGroup | None, request: TxnOffsetCommitRequest
    ) -> ErrorCode | None:
        """Clients before KIP-447 do not name their member."""
        generation = request.generation_id
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return self._new_error() if group is None else None
        if group is None:
            return ErrorCode.ILLEGAL_GENERATION if generation >= 0 else None
        if generation < 0 and group.phase is Phase.EMPTY:
            return None
        if isinstance(group, ConsumerGroup):
            error = _epoch_error(group, request.member_id, generation)
            # TxnOffsetCommit knows no member epochs: a producer could not continue after STALE_MEMBER_EPOCH.
            return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error
        error = self._rebalances.stranger(group, request.member_id, request.group_instance_id)
        if error is None and generation != group.generation:
            error = ErrorCode.ILLEGAL_GENERATION
        return error

    def delete(
        self, work: Work, key: object, group: Group | ConsumerGroup | None, request: OffsetDeleteRequest
    ) -> None:
        """Deletes offsets of topics that the group does not consume (KIP-496)."""
        if group is None:
            work.reply(key, OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
            return
        subscribed: frozenset[str] | None = frozenset()
        if group.phase is not Phase.EMPTY:
            if group.protocol_type != CONSUMER:
                work.reply(key, OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
                return
            subscribed = group.subscribed()
        known = self._offsets.of(group.group_id)

        def delete(topic: str, index: int) -> ErrorCode:
            if subscribed is None or topic in subscribed:
                return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if (topic, index) in known:
                work.store(offset_tombstone(group.group_id, (topic, index)))
            return ErrorCode.NONE

        topics = tuple(
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=delete(topic.name, part.partition_index),
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
        work.reply(key, OffsetDeleteResponse(topics=topics))


def committed_response(
    request: OffsetCommitRequest, code: Callable[[tuple[str, Any]], ErrorCode]
) -> OffsetCommitResponse:
    """An answer with a code for each (topic, partition of the request)."""
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=code((topic.name, part))
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _epoch_error(group: ConsumerGroup, member_id: str, epoch: int) -> ErrorCode | None:
    """Members of the new protocol commit in their epoch, classic members among them in their generation."""
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.epoch == epoch:
        return None
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
